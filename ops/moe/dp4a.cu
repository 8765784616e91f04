/* dp4a.cu: moe_gate_up_swiglu and moe_down from planes of Q8_0 where few pairs of a token and a slot share an expert,
 * sm_80 up: an entry of the list (single.cuh) has one pair.
 *
 * A warp computes an item: eight rows of an entry, in steps of 1024 columns. Lane b has block b of the step, of all
 * eight rows: its dots by dp4a. Four lanes have a run of four blocks, of partition lane / 4 (src/math/q8_0.h): the sum
 * goes round these lanes, one block a turn. A warp has one stage of its own in shared memory, codes and scales of a
 * step, and asks for the next one, of the next item too, as soon as the dots are in registers; no other warp reads it,
 * so there is no barrier but __syncwarp. x of all tokens lies in shared memory too.
 *
 *     gate_up  a team of eight warps has 32 rows of an entry, of gate and of up: an item a warp. They become a block of
 *              codes, which the warps store in turns. The results have two buffers, so that the barrier between writes
 *              and reads of one also orders the reads before its next writes
 *     down     a CTA has tiles of eight rows, whose items (one an entry) its warps share out; the results of a batch of
 *              tiles wait in shared memory, then all threads add the slots. Two buffers again. Constant weights are
 *              requested before the kernels before have ended, by the ids as they are then: a router has long written
 *              them. If they have changed, all begins again. With one token two CTAs fit a multiprocessor, so that the
 *              next kernel's can do so while this one computes */
#include "args.cuh"
#include "single.cuh"

enum { ROWS = 8, HALF = 4, STEP = 1024, TEAM = 8, TILE = 32, MOST_WARPS = 16 };
enum { PIECES = STEP / 512 }; /* of 512 bytes, 16 a lane */
enum { RESULTS = 8 << 10 };   /* bytes of a batch of down */

/* Threads for which registers are allotted: of down 64 registers a thread on Hopper, so that two CTAs fit a
 * multiprocessor. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define BOUND(down) ((down) ? 64 * MOST_WARPS : 32 * MOST_WARPS)
#else
#define BOUND(down) (32 * MOST_WARPS)
#endif

typedef struct dp4a_args {
    moe_args p;
    int warps, blocks; /* of a CTA; of a row */
    moe_tiles tiles;   /* of 32 rows of gate_up, of 8 of down */
    int pitch;         /* of a row in a stage */
    uint32_t at_x, at_scales, at_ring, at_results;
} dp4a_args;

/* The number of this warp, or its team, in the CTA. */
#define UNIT(down) ((int)threadIdx.x / ((down) ? 32 : 32 * TEAM))

/* This warp's stage. The thread's number is read again wherever it is asked for: in a register, it would spill others.
 */
static __device__ __forceinline__ const char *stage_of(const dp4a_args &a, const char *memory)
{
    int thread = (int)threadIdx.x;

    asm volatile("" : "+r"(thread));
    return memory + a.at_ring + thread / 32 * (ROWS * (a.pitch + STEP / 16));
}

/* What is copied next: the rest of the item at `at`. */
typedef struct dp4a_loader {
    moe_walk at;
    int left; /* columns, a multiple of 64, and the rows behind the first that the matrix has, 7 at most */
    const char *codes;
    const uint8_t *scales;
} dp4a_loader;

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Goes to the first step of the item at l->at. Rows behind the last are the last one again. */
template <int DOWN>
static __device__ __forceinline__ void seek(const dp4a_args &a, const moe_pairs *list, dp4a_loader *l)
{
    const moe_item item = moe_item_of<DOWN>(a.tiles, l->at);

    l->left = 0;
    if (item.entry < list->entries) {
        const int lane = threadIdx.x % 32, end = (int)a.p.rows - 1;
        const int first = DOWN ? 0 : threadIdx.x / 32 % 4 * ROWS; /* in the tile */
        const int row = min(moe_tile<DOWN>(a.tiles, l->at, item) * (DOWN ? ROWS : TILE) + first, end);
        const moe_weight &w = a.p.weight[DOWN ? 0 : threadIdx.x / 128 % 2];
        const int64_t expert = list->of[item.entry].expert, at = (int64_t)row * a.p.cols;

        l->left = (int)a.p.cols + min(end - row, ROWS - 1);
        l->codes = w.data + expert * w.stride + at + lane * 16;
        l->scales = (const uint8_t *)w.scales + expert * w.scales_stride + at / 16 + lane % 16 * 4;
    }
}

/* Copies the next step into the stage. */
static __device__ __forceinline__ void copy(const dp4a_args &a, dp4a_loader *l, uint32_t stage)
{
    const int lane = threadIdx.x % 32, cols = (int)a.p.cols, last = l->left % ROWS;

    if (l->left >= ROWS) {
        const char *from = l->codes;
        uint32_t to = stage + (uint32_t)lane * 16;

#pragma unroll 2 /* the addresses of all rows at once would spill */
        for (int r = 0; r < ROWS; r++, to += (uint32_t)a.pitch) {
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (i * 512 + lane * 16 + ROWS - 1 < l->left)
                    mma_copy16(to + (uint32_t)i * 512, from + i * 512, 16);
            from += r < last ? cols : 0;
        }
        if (lane % 16 * 64 + ROWS - 1 < l->left)
#pragma unroll
            for (int r = lane / 16; r < ROWS; r += 2)
                mma_copy4(stage + (uint32_t)(ROWS * a.pitch + r * (STEP / 16) + lane % 16 * 4),
                          l->scales + min(r, last) * (cols / 16), 4);
        l->codes += STEP;
        l->scales += STEP / 16;
        l->left -= STEP;
    }
    mma_copy_commit();
}

/* --------------------------------------------------------------------------------------------------------- products */

/* x of all pairs (gate_up: of all tokens) to shared memory: codes, and scales. A warp has a row at a time. */
template <int DOWN> static __device__ __forceinline__ void copy_x(const dp4a_args &a, const char *memory)
{
    const int lane = threadIdx.x % 32, slots = DOWN ? a.p.slots : 1, cols = (int)a.p.cols;

    for (int row = threadIdx.x / 32; row < a.p.tokens * slots; row += a.warps) {
        const int token = row / slots, slot = row - token * slots;
        const char *const from = a.p.x + token * a.p.x_stride + slot * a.p.x_slot;
        const float *const scales = a.p.x_scales + token * a.p.x_ld + slot * a.p.x_slot_ld;

        for (int i = lane * 16; i < cols; i += 512)
            mma_copy16(ptx_shared(memory + a.at_x) + (uint32_t)(row * cols + i), from + i, 16);
        for (int i = lane; i < a.blocks; i += 32)
            mma_copy4(ptx_shared(memory + a.at_scales) + (uint32_t)(row * a.blocks + i) * 4, scales + i, 4);
    }
    mma_copy_commit();
}

/* This lane's block of a step: dots of HALF rows from `row` on, and their scales. x: its two halves swapped as those of
 * the weights, so that eight lanes read different banks. */
static __device__ __forceinline__ void multiply(const dp4a_args &a, const char *stage, int row, int lane, const char *x,
                                                float xs, float *dot, float *s)
{
    const int swap = lane >> 2 & 1;
    const uint4 x0 = *(const uint4 *)(x + 16 * swap), x1 = *(const uint4 *)(x + 16 * (swap ^ 1));
    const char *from = stage + row * a.pitch + lane * 32;
    const char *scale = stage + ROWS * a.pitch + row * (STEP / 16) + lane * 2;

#pragma unroll
    for (int r = 0; r < HALF; r++, from += a.pitch, scale += STEP / 16) {
        const uint4 first = *(const uint4 *)(from + 16 * swap), second = *(const uint4 *)(from + 16 * (swap ^ 1));
        int sum = 0;

        sum = __dp4a((int)first.x, (int)x0.x, sum);
        sum = __dp4a((int)first.y, (int)x0.y, sum);
        sum = __dp4a((int)first.z, (int)x0.z, sum);
        sum = __dp4a((int)first.w, (int)x0.w, sum);
        sum = __dp4a((int)second.x, (int)x1.x, sum);
        sum = __dp4a((int)second.y, (int)x1.y, sum);
        sum = __dp4a((int)second.z, (int)x1.z, sum);
        sum = __dp4a((int)second.w, (int)x1.w, sum);
        dot[r] = (float)sum;
        s[r] = __fmul_rn(ptx_f32_from_f16(*(const uint16_t *)scale), xs);
    }
}

/* The sum of the eight partitions, of which lanes 3, 7, ... have one each: of row (lane / 4) ^ 7, .. in every lane. */
static __device__ __forceinline__ float add_partitions(float *v, int lane)
{
#pragma unroll
    for (int far = 4, half = ROWS / 2; far < 32; far *= 2, half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            const bool upper = (lane & far) != 0;
            const float mine = upper ? v[i + half] : v[i], other = upper ? v[i] : v[i + half];

            v[i] = mine + __shfl_xor_sync(0xffffffffu, other, far);
        }
    return v[0];
}

/* The product of an item, whose first step has been asked for; then the next item's. Writes eight results. */
template <int DOWN>
static __device__ __forceinline__ void product(const dp4a_args &a, const moe_pairs *list, const char *memory,
                                               dp4a_loader *l, int pair, float *to)
{
    const int lane = threadIdx.x % 32, before = (lane & ~3) | ((lane + 3) & 3);
    const int row = DOWN ? pair : pair / a.p.slots;
    const char *x = memory + a.at_x + row * (int)a.p.cols + lane * 32;
    const float *xs = (const float *)(memory + a.at_scales) + row * a.blocks + lane;
    float acc[ROWS] = {};

#pragma unroll 1
    for (int block = lane; block - lane < a.blocks; block += STEP / 32) {
        const char *const stage = stage_of(a, memory);

        if (l->left < ROWS) { /* this step is the item's last */
            moe_advance<DOWN>(list, a.tiles, UNIT(DOWN), DOWN ? a.warps : a.warps / TEAM, &l->at);
            seek<DOWN>(a, list, l);
        }
        mma_copy_wait_for<0>();
        __syncwarp(); /* the lanes' copies are visible to each other */
#pragma unroll
        for (int row = 0; row < ROWS; row += HALF) { /* at once, all rows would take more than 64 registers */
            float dot[HALF] = {}, s[HALF] = {};

            if (block < a.blocks)
                multiply(a, stage, row, lane, x, *xs, dot, s);
            if (row + HALF == ROWS) {
                __syncwarp(); /* all lanes have read the stage before it is written again */
                copy(a, l, ptx_shared(stage));
            }
#pragma unroll
            for (int i = 0; i < RIDGE_Q8_0_RUN; i++) /* of lane i of four */
#pragma unroll
                for (int r = 0; r < HALF; r++)
                    acc[row + r] = __fmaf_rn(s[r], dot[r], __shfl_sync(0xffffffffu, acc[row + r], before));
        }
        x += STEP;
        xs += STEP / 32;
    }
    {
        const float y = add_partitions(acc, lane);

        if (lane % 4 == 3)
            to[(lane >> 2 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 4 & 1)] = y;
    }
}

/* ---------------------------------------------------------------------------------------------------------- results */

/* gate_up: a warp of a team stores its tile; results: 32 rows of gate, 32 of up. */
static __device__ __forceinline__ void store_slot(const dp4a_args &a, const moe_pairs *list, moe_item item,
                                                  const float *results)
{
    const int pair = list->of[item.entry].pair, expert = list->of[item.entry].expert;
    const int lane = threadIdx.x % 32, row = item.tile * TILE, at = min(row + lane, (int)a.p.rows - 1);
    const float gate = moe_bias(a.p.weight[0], expert, at, results[lane]);
    const float up = moe_bias(a.p.weight[1], expert, at, results[TILE + lane]);

    moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, row, moe_swiglu_inline(a.p.act, gate, up, a.p.swiglu));
}

/* gate_up: slots without an expert, which no entry stores. */
static __device__ __forceinline__ void store_rest(const dp4a_args &a, const moe_pairs *list)
{
    const int warps = (int)gridDim.x * a.warps, warp = (int)blockIdx.x + threadIdx.x / 32 * (int)gridDim.x;

    if (list->entries == a.p.tokens * a.p.slots)
        return;
    for (int pair = 0; pair < a.p.tokens * a.p.slots; pair++)
        if (list->of[pair].id < 0)
            for (int tile = warp; tile < a.tiles.all; tile += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, tile * TILE, 0.0f);
}

/* down: the tiles of a batch. A thread has a row of a token; results: [tile][pair][row]. */
static __device__ __forceinline__ void store_sums(const dp4a_args &a, const moe_pairs *list, moe_walk batch,
                                                  const float *results)
{
    const int pairs = a.p.tokens * a.p.slots, tiles = min(moe_tiles_left(a.tiles, batch), a.tiles.batch);

    for (int i = threadIdx.x; i < tiles * ROWS * a.p.tokens; i += (int)blockDim.x) {
        const int r = i % ROWS, token = i / ROWS % a.p.tokens, tile = i / ROWS / a.p.tokens;
        const int row = moe_tile<1>(a.tiles, batch, {0, tile}) * ROWS + r;
        const float *const from = results + tile * pairs * ROWS + r;
        float sum = 0.0f;

        if (row >= a.p.rows)
            continue;
#pragma unroll 4
        for (int pair = token * a.p.slots; pair < (token + 1) * a.p.slots; pair++) {
            const int expert = list->of[pair].id;
            const float v = from[pair * ROWS];

            if (expert >= 0)
                sum = __fmaf_rn(list->of[pair].weight, moe_bias(a.p.weight[0], expert, row, v), sum);
        }
        moe_store_sum(a.p, token, row, sum);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* Makes the list and asks for the first step and for x. */
template <int DOWN>
static __device__ __forceinline__ void start(const dp4a_args &a, moe_pairs *list, const char *memory, dp4a_loader *l)
{
#pragma unroll 1
    for (int early = DOWN && a.p.weights_const; early >= 0; early--) {
        if (!early) {
            ptx_grid_dependency_wait();
            ptx_launch_dependents();
            copy_x<DOWN>(a, memory);
            if (DOWN)
                moe_prefetch_sums(a.p, (int)blockIdx.x * a.tiles.each * ROWS, a.tiles.each * ROWS);
            if (DOWN && a.p.weights_const) {
                if (moe_pairs_hold<1>(a.p, list))
                    break;
                mma_copy_wait_for<0>(); /* what was copied is not wanted, and its stage is written again */
            }
        }
        moe_make_pairs<DOWN>(a.p, list);
        l->at = moe_begin<DOWN>(list, a.tiles, UNIT(DOWN));
        seek<DOWN>(a, list, l);
        copy(a, l, ptx_shared(stage_of(a, memory)));
    }
}

template <int DOWN>
static __global__ void __launch_bounds__(BOUND(DOWN), 1) moe_dp4a(const __grid_constant__ dp4a_args a)
{
    extern __shared__ __align__(16) char memory[];
    moe_pairs *const list = (moe_pairs *)memory;
    const int warp = threadIdx.x / 32, team = warp / TEAM;
    float *const results = (float *)(memory + a.at_results);
    const int pairs = a.p.tokens * a.p.slots;
    dp4a_loader l = {};

    start<DOWN>(a, list, memory, &l);
    if (DOWN)
        moe_prefetch_bias(a.p, list, (int)blockIdx.x * a.tiles.each * ROWS, a.tiles.each * ROWS);
    else
        store_rest(a, list);
    if (DOWN && a.p.weights_const)
        mma_copy_wait_for<0>();
    else
        mma_copy_wait_for<1>(); /* x was asked for before the first step */
    __syncthreads();            /* x and the slots' weights are there before they are read */
    if constexpr (!DOWN) {
        for (int number = 0;; number++) {
            const moe_item at = moe_item_of<DOWN>(a.tiles, l.at);
            float *const to = results + (team * 2 + (number & 1)) * 2 * TILE;

            if (at.entry >= list->entries)
                return;
            product<DOWN>(a, list, memory, &l, list->of[at.entry].pair, to + warp % TEAM * ROWS);
            ptx_barrier_sync(1 + team, 32 * TEAM);
            if (warp % TEAM == number % TEAM)
                store_slot(a, list, at, to);
        }
    } else {
        for (moe_walk batch = {}; moe_tiles_left(a.tiles, batch) > 0; batch.first += a.tiles.batch) {
            while (l.at.first == batch.first) {
                const moe_item at = moe_item_of<DOWN>(a.tiles, l.at);

                if (at.entry >= list->entries)
                    break;

                const int pair = list->of[at.entry].pair;

                product<DOWN>(a, list, memory, &l, pair,
                              results + (((l.at.first & a.tiles.batch) + at.tile) * pairs + pair) * ROWS);
            }
            __syncthreads(); /* orders the writes before the reads, and these before the next but one batch's writes */
            store_sums(a, list, batch, results + (batch.first & a.tiles.batch) * pairs * ROWS);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- host */

static const void *const functions[2] = {(const void *)moe_dp4a<0>, (const void *)moe_dp4a<1>};

static ridge_status prepare(const ridge_device *device)
{
    return host_prepare(device, functions, 2, cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device),
                        "moe: loading kernels");
}

/* Sets the sizes for CTAs of `warps`. Returns the bytes of shared memory. */
static int64_t lay_out(const ridge_device *device, const ridge_problem *problem, int warps, dp4a_args *a)
{
    const bool down = problem->op == RIDGE_MOE_DOWN;
    const int64_t cols = problem->dim[1], pairs = problem->dim[0] * problem->dim[4];
    const int64_t x = down ? pairs : problem->dim[0];
    int64_t bytes = moe_pairs_bytes(pairs);

    a->warps = warps;
    a->blocks = (int)(cols / 32);
    a->pitch = (int)ridge_min(cols, STEP);
    a->tiles.all = (int)ridge_ceil_div(problem->dim[2], down ? ROWS : TILE);
    a->tiles.each = (int)ridge_ceil_div(a->tiles.all, device->units);
    for (a->tiles.batch = 1; a->tiles.batch < a->tiles.each && 2 * a->tiles.batch * pairs * ROWS * 4 <= RESULTS;)
        a->tiles.batch *= 2;
    a->at_x = (uint32_t)bytes;
    bytes += x * cols;
    a->at_scales = (uint32_t)bytes;
    bytes = ridge_round_up(bytes + x * a->blocks * 4, 16);
    a->at_ring = (uint32_t)bytes;
    bytes += warps * (ROWS * (a->pitch + STEP / 16));
    a->at_results = (uint32_t)bytes;
    return bytes + (down ? 2 * a->tiles.batch * pairs * ROWS : warps / TEAM * 4 * TILE) * (int64_t)sizeof(float);
}

/* As many warps as fit and have items. Shapes alone decide. Returns 0: x does not fit. */
static int64_t plan(const ridge_device *device, const ridge_problem *problem, dp4a_args *a)
{
    const int64_t pairs = problem->dim[0] * problem->dim[4];
    int most;

    lay_out(device, problem, TEAM, a);
    most = (int)(problem->op == RIDGE_MOE_DOWN ? ridge_round_up(pairs * a->tiles.each, TEAM)
                                               : TEAM * ridge_ceil_div(a->tiles.all * pairs, device->units));
    most = most < TEAM ? TEAM : most > MOST_WARPS ? MOST_WARPS : most; /* without rows, any */
    for (int warps = most; warps >= TEAM; warps -= TEAM) {
        const int64_t bytes = lay_out(device, problem, warps, a);

        if (bytes <= host_max_shared(device))
            return bytes;
    }
    return 0;
}

/* Tables of scales are at multiples of the four bytes that a copy takes. */
static bool aligned(const dp4a_args *a)
{
    uintptr_t bits = 0;

    for (int i = 0; i < (a->p.down ? 1 : 2); i++)
        bits |= (uintptr_t)a->p.weight[i].scales | (uintptr_t)a->p.weight[i].scales_stride;
    return bits % 4 == 0;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    dp4a_args a = {};
    const int64_t shared = plan(device, &bound->problem, &a);
    int64_t most;

    a.p = moe_args_of(&bound->call);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    if (!aligned(&a))
        return moe_launch_any(device, kernel, bound, workspace, size, stream);
    most = a.p.down ? ridge_ceil_div(a.tiles.all, a.tiles.each) : (int64_t)a.tiles.all * a.p.tokens * a.p.slots;
    return host_launch_shared(device, kernel->name, functions[a.p.down], dim3((unsigned)ridge_min(most, device->units)),
                              32 * a.warps, (size_t)shared, &a, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    dp4a_args a = {};

    if (problem->dtype[2] != RIDGE_I8)
        return "weights are not planes of Q8_0";
    if (problem->dim[0] == 0 || problem->dim[1] == 0)
        return "nothing to multiply";
    if (problem->dim[1] % 64)
        return "needs cols that are a multiple of 64";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (problem->dim[1] > 0x3fff00 || problem->dim[2] > 0x3fff00)
        return "more than 2^22 - 256 rows or columns";
    return plan(device, problem, &a) ? NULL : "x does not fit in shared memory";
}

/* The weights of an expert for each pair. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + (double)problem->dim[1] * (double)problem->dim[2] * (problem->op == RIDGE_MOE_DOWN ? 1.1 : 2.2) *
                   (double)problem->dim[0] * (double)problem->dim[4] * 1.2e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                        \
    {                                                                                                              \
        "cuda." op_name ".dp4a", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, launch                                                                                           \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_dp4a = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

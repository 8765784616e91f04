/* dp4a.cu: moe_gate_up_swiglu and moe_down from planes of Q8_0 where few pairs of a token and a slot share an expert,
 * sm_80 up: an entry of the list (list.cuh) has one pair.
 *
 * A warp computes an item: eight rows of an entry, in steps of 512 columns. It copies a step, 512 codes and 16 scales
 * of each row, into one of two stages of its own in shared memory, and from one item into the next; no other warp reads
 * them, so there is no barrier but __syncwarp. x of all tokens lies in shared memory too, with zeros behind its last
 * column. Lane 16 h + b has block b of the step, of the rows 2 j + h: its dot by dp4a. Four lanes have a run of four
 * blocks, of partition b / 4, or b / 4 + 4 in every other step (src/math/q8_0.h): the sum goes round these lanes, one
 * block a turn.
 *
 *     gate_up  a team of eight warps has 32 rows of an entry, of gate and of up: an item a warp. They become a block of
 *              codes. The results have two buffers, so that the barrier between writes and reads of one also orders
 *              the reads before its next writes
 *     down     a CTA has tiles of 8, 16, ... rows of all entries, whose items its warps share out; then all threads add
 *              the slots. Constant weights are requested before the kernels before have ended, by the ids as they are
 *              then: a router has long written them. If they have changed, all begins again */
#include "args.cuh"
#include "list.cuh"

enum { ROWS = 8, STEP = 512, STAGES = 2, TEAM = 8, TILE = 32, MOST_WARPS = 16 };
enum { SCALES = STEP / 32 * 2, STAGE = ROWS * (STEP + SCALES) }; /* bytes */

typedef struct dp4a_args {
    moe_args p;
    int warps, steps, blocks; /* of a CTA; of a row */
    int tiles, groups;        /* of 32 rows of gate_up, of 8 `groups` rows of down; 1, 2, 4, .. */
    uint32_t at_x, at_scales, at_ring, at_results;
} dp4a_args;

/* A warp's items, one after another. gate_up: tile counts the tiles of all entries; the item is the warp's in its
 * team, four of gate and four of up. down: the item is one of its tile. */
typedef struct item_pos {
    int tile, item;
} item_pos;

/* Where an item's weights are. */
typedef struct item_rows {
    int entry, sub, row;
} item_rows;

/* The next step to copy. */
typedef struct dp4a_loader {
    item_pos at;
    int step, last; /* steps: none is left; rows behind the first that the matrix has */
    const char *codes;
    const uint8_t *scales; /* from blocks 2 (lane % 8) on */
} dp4a_loader;

/* ------------------------------------------------------------------------------------------------------------ items */

static __device__ __forceinline__ item_pos begin(const dp4a_args &a)
{
    const int warp = threadIdx.x / 32;

    return a.p.down ? item_pos{(int)blockIdx.x, warp}
                    : item_pos{(int)blockIdx.x + warp / TEAM * (int)gridDim.x, warp % TEAM};
}

/* Goes to the next position that is one of an item; false: there is none. */
static __device__ __forceinline__ bool find(const dp4a_args &a, const moe_list *list, item_pos *at)
{
    const int warp = threadIdx.x / 32, items = a.groups * list->entries; /* of a tile of down */

    if (!a.p.down)
        return at->tile < a.tiles * list->entries;
    if (warp >= items)
        return false;
    for (; at->item >= items; at->tile += (int)gridDim.x)
        at->item = warp;
    return at->tile < a.tiles;
}

static __device__ __forceinline__ void advance(const dp4a_args &a, item_pos *at)
{
    if (a.p.down)
        at->item += a.warps;
    else
        at->tile += a.warps / TEAM * (int)gridDim.x;
}

static __device__ __forceinline__ item_rows rows_of(const dp4a_args &a, item_pos at)
{
    if (a.p.down)
        return {at.item / a.groups, 0, (at.tile * a.groups + at.item % a.groups) * ROWS};
    return {at.tile / a.tiles, at.item / 4, at.tile % a.tiles * TILE + at.item % 4 * ROWS};
}

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Goes to the first step of the item at l->at, or of the next. Rows behind the last are the last one again. */
static __device__ __forceinline__ void seek(const dp4a_args &a, const moe_list *list, dp4a_loader *l)
{
    const int lane = threadIdx.x % 32, end = (int)a.p.rows - 1;

    l->step = a.steps;
    if (find(a, list, &l->at)) {
        const item_rows r = rows_of(a, l->at);
        const moe_weight &w = a.p.weight[r.sub];
        const int64_t row = min(r.row, end), expert = list->expert[r.entry];

        l->step = 0;
        l->last = end - (int)row;
        l->codes = w.data + expert * w.stride + row * a.p.cols + lane * 16;
        l->scales = (const uint8_t *)w.scales + expert * w.scales_stride + row * (a.p.cols / 16) + lane % 8 * 4;
    }
}

/* Copies the next step into a stage and advances. Behind the last column are zeros. */
static __device__ __forceinline__ void copy(const dp4a_args &a, const moe_list *list, dp4a_loader *l, uint32_t stage)
{
    const int lane = threadIdx.x % 32, cols = (int)a.p.cols;

    if (l->step < a.steps) {
        const int codes = l->step * STEP + lane * 16 < cols ? 16 : 0;
        const int scales = l->step * (STEP / 32) + lane % 8 * 2 < a.blocks ? 4 : 0;

#pragma unroll
        for (int r = 0; r < ROWS; r++)
            mma_copy16(stage + (uint32_t)(r * STEP + lane * 16),
                       l->codes + (codes ? min(r, l->last) * cols : -lane * 16), codes);
#pragma unroll
        for (int r = lane / 8; r < ROWS; r += 4)
            mma_copy4(stage + (uint32_t)(ROWS * STEP + r * SCALES + lane % 8 * 4),
                      l->scales + (scales ? min(r, l->last) * (cols / 16) : -(lane % 8 * 4)), scales);
        l->codes += STEP;
        l->scales += SCALES;
        if (++l->step == a.steps) {
            advance(a, &l->at);
            seek(a, list, l);
        }
    }
    mma_copy_commit();
}

/* --------------------------------------------------------------------------------------------------------- products */

/* x of all pairs (gate_up: of all tokens) to shared memory: codes, and scales as floats. */
static __device__ __forceinline__ void copy_x(const dp4a_args &a, char *memory)
{
    const int rows = a.p.tokens * (a.p.down ? a.p.slots : 1), pieces = a.steps * (STEP / 16);

#pragma unroll 4
    for (int i = threadIdx.x; i < rows * pieces; i += (int)blockDim.x) {
        const int row = i / pieces, piece = i % pieces, token = a.p.down ? row / a.p.slots : row;
        const int slot = row - token * (a.p.down ? a.p.slots : 1);
        uint4 code = make_uint4(0, 0, 0, 0);
        float scale = 0.0f;

        if (piece * 16 < a.p.cols) {
            code = *(const uint4 *)(a.p.x + token * a.p.x_stride + slot * a.p.x_slot + piece * 16);
            scale = a.p.x_scales[token * a.p.x_ld + slot * a.p.x_slot_ld + piece / 2];
        }
        *(uint4 *)(memory + a.at_x + i * 16) = code;
        if (piece % 2 == 0)
            ((float *)(memory + a.at_scales))[i / 2] = scale;
    }
}

/* A step of an item: adds it to acc, in lane 3 of each run's four. x, xs: this lane's block, its two halves swapped as
 * those of the weights, so that eight lanes read different banks. */
static __device__ __forceinline__ void multiply(const char *stage, int lane, const uint4 *x, float xs, float *acc)
{
    const int block = lane % 16, swap = lane >> 2 & 1, before = (lane & ~3) | ((lane + 3) & 3);
    const char *const from = stage + lane / 16 * STEP + block * 32;
    float dot[ROWS / 2], s[ROWS / 2];

#pragma unroll
    for (int j = 0; j < ROWS / 2; j++) {
        const uint4 first = *(const uint4 *)(from + 2 * j * STEP + 16 * swap);
        const uint4 second = *(const uint4 *)(from + 2 * j * STEP + 16 * (swap ^ 1));
        const char *const scale = stage + ROWS * STEP + (2 * j + lane / 16) * SCALES + block * 2;
        int sum = 0;

        sum = __dp4a((int)first.x, (int)x[0].x, sum);
        sum = __dp4a((int)first.y, (int)x[0].y, sum);
        sum = __dp4a((int)first.z, (int)x[0].z, sum);
        sum = __dp4a((int)first.w, (int)x[0].w, sum);
        sum = __dp4a((int)second.x, (int)x[1].x, sum);
        sum = __dp4a((int)second.y, (int)x[1].y, sum);
        sum = __dp4a((int)second.z, (int)x[1].z, sum);
        sum = __dp4a((int)second.w, (int)x[1].w, sum);
        dot[j] = (float)sum;
        s[j] = __fmul_rn(ptx_f32_from_f16(*(const uint16_t *)scale), xs);
    }
#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_RUN; i++) /* of lane i of four */
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++)
            acc[j] = __fmaf_rn(s[j], dot[j], __shfl_sync(0xffffffffu, acc[j], before));
}

/* The product of an item; stage: the number of that with its first step. Writes eight results. */
static __device__ __forceinline__ void product(const dp4a_args &a, const moe_list *list, const char *memory,
                                               const char *ring, dp4a_loader *l, int *stage, int entry, float *to)
{
    const int lane = threadIdx.x % 32, swap = lane >> 2 & 1, pair = list->pair[entry][0];
    const int row = a.p.down ? pair : pair / a.p.slots;
    const char *const x = memory + a.at_x + row * a.steps * STEP + lane % 16 * 32;
    const float *const xs = (const float *)(memory + a.at_scales) + row * a.steps * (STEP / 32) + lane % 16;
    float acc[2][ROWS / 2] = {};

    for (int first = 0; first < a.steps; first += 2)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int step = first + k;
            const char *const from = ring + *stage * STAGE;
            uint4 v[2];

            if (step == a.steps)
                break;
            v[0] = *(const uint4 *)(x + step * STEP + 16 * swap);
            v[1] = *(const uint4 *)(x + step * STEP + 16 * (swap ^ 1));
            mma_copy_wait_for<STAGES - 1>();
            __syncwarp(); /* the lanes' copies are visible to each other */
            multiply(from, lane, v, xs[step * (STEP / 32)], acc[k]);
            __syncwarp(); /* all lanes have read the stage before it is written again */
            copy(a, list, l, ptx_shared(from));
            *stage ^= 1;
        }
#pragma unroll
    for (int j = 0; j < ROWS / 2; j++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            acc[k][j] += __shfl_xor_sync(0xffffffffu, acc[k][j], 4);
            acc[k][j] += __shfl_xor_sync(0xffffffffu, acc[k][j], 8);
        }
        if (lane % 16 == 3)
            to[2 * j + lane / 16] = acc[0][j] + acc[1][j];
    }
}

/* ---------------------------------------------------------------------------------------------------------- results */

/* gate_up: the first warp of a team stores its tile; results: 32 rows of gate, 32 of up. */
static __device__ __forceinline__ void store_slot(const dp4a_args &a, const moe_list *list, int tile,
                                                  const float *results)
{
    const int entry = tile / a.tiles, pair = list->pair[entry][0], expert = list->expert[entry];
    const int lane = threadIdx.x % 32, row = tile % a.tiles * TILE, at = min(row + lane, (int)a.p.rows - 1);
    const float gate = moe_bias(a.p.weight[0], expert, at, results[lane]);
    const float up = moe_bias(a.p.weight[1], expert, at, results[TILE + lane]);

    moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, row, moe_swiglu_inline(a.p.act, gate, up, a.p.swiglu));
}

/* gate_up: slots without an expert, which no entry stores. */
static __device__ __forceinline__ void store_rest(const dp4a_args &a, const moe_list *list)
{
    const int warps = (int)gridDim.x * a.warps, warp = (int)blockIdx.x + threadIdx.x / 32 * (int)gridDim.x;

    for (int pair = 0; pair < a.p.tokens * a.p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int tile = warp; tile < a.tiles; tile += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, tile * TILE, 0.0f);
}

/* down: a thread has a row of a token; results: [pair][rows of the tile]. */
static __device__ __forceinline__ void store_sums(const dp4a_args &a, const moe_list *list, int tile,
                                                  const float *results)
{
    const int rows = a.groups * ROWS;

    for (int i = threadIdx.x; i < rows * a.p.tokens; i += (int)blockDim.x) {
        const int token = i / rows, r = i % rows, row = tile * rows + r;
        float sum = 0.0f;

        if (row >= a.p.rows)
            continue;
        for (int pair = token * a.p.slots; pair < (token + 1) * a.p.slots; pair++) {
            const int expert = ((const int *)list->ids)[pair];

            if (expert >= 0)
                sum =
                    __fmaf_rn(list->weight[pair], moe_bias(a.p.weight[0], expert, row, results[pair * rows + r]), sum);
        }
        moe_store_sum(a.p, token, row, sum);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

static __global__ void __launch_bounds__(32 * MOST_WARPS, 1) moe_dp4a(const __grid_constant__ dp4a_args a)
{
    extern __shared__ __align__(16) char memory[];
    moe_list *const list = (moe_list *)memory;
    const int team = threadIdx.x / (32 * TEAM);
    const char *const ring = memory + a.at_ring + threadIdx.x / 32 * (STAGES * STAGE);
    float *const results = (float *)(memory + a.at_results) + (a.p.down ? 0 : team * 4 * TILE);
    const item_pos first = begin(a);
    item_pos at = first;
    dp4a_loader l = {};
    int stage = 0, parity = 0;

    for (int early = a.p.down && a.p.weights_const; early >= 0; early--) {
        if (!early) {
            ptx_grid_dependency_wait();
            if (a.p.down && a.p.weights_const) {
                if (moe_list_holds(a.p, list))
                    break;
                mma_copy_wait_for<0>(); /* what was copied is not wanted, and its stages are written again */
            }
        }
        if (a.p.tokens == 1)
            moe_make_list_1(a.p, moe_load_id_1(a.p), list);
        else
            moe_make_list(a.p, list, 1);
        l.at = first;
        seek(a, list, &l);
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            copy(a, list, &l, ptx_shared(ring + i * STAGE));
    }
    ptx_launch_dependents(); /* behind the first copies, which it would delay */
    copy_x(a, memory);
    if (a.p.down)
        moe_keep_weights(a.p, list);
    else
        store_rest(a, list);
    __syncthreads(); /* x and the slots' weights are written before they are read */
    if (!a.p.down) {
        for (; find(a, list, &at); advance(a, &at), parity ^= 1) {
            float *const to = results + parity * 2 * TILE;

            product(a, list, memory, ring, &l, &stage, at.tile / a.tiles, to + at.item * ROWS);
            ptx_barrier_sync(1 + team, 32 * TEAM);
            if (at.item == 0)
                store_slot(a, list, at.tile, to);
        }
        return;
    }
    for (int tile = blockIdx.x; tile < a.tiles; tile += (int)gridDim.x) {
        for (; find(a, list, &at) && at.tile == tile; advance(a, &at)) {
            const item_rows r = rows_of(a, at);

            product(a, list, memory, ring, &l, &stage, r.entry,
                    results + (list->pair[r.entry][0] * a.groups + at.item % a.groups) * ROWS);
        }
        __syncthreads(); /* the results are written before they are read */
        store_sums(a, list, tile, results);
        if (tile + (int)gridDim.x < a.tiles)
            __syncthreads(); /* and read before they are written again */
    }
}

/* ------------------------------------------------------------------------------------------------------------- host */

static const void *const function[1] = {(const void *)moe_dp4a};

static ridge_status prepare(const ridge_device *device)
{
    return host_prepare(device, function, 1, cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device),
                        "moe: loading kernels");
}

/* Sets the sizes for CTAs of `warps`. Returns the bytes of shared memory. */
static int64_t lay_out(const ridge_problem *problem, int warps, dp4a_args *a)
{
    const bool down = problem->op == RIDGE_MOE_DOWN;
    const int64_t pairs = problem->dim[0] * problem->dim[4], x = down ? pairs : problem->dim[0];
    const int64_t steps = ridge_ceil_div(problem->dim[1], STEP);
    int64_t bytes = ridge_round_up((int64_t)sizeof(moe_list), 16);

    a->warps = warps;
    for (a->groups = 1; down && 2 * a->groups * pairs <= warps;)
        a->groups *= 2;
    a->at_x = (uint32_t)bytes;
    bytes += x * steps * STEP;
    a->at_scales = (uint32_t)bytes;
    bytes += x * steps * (STEP / 32 * 4);
    a->at_ring = (uint32_t)bytes;
    bytes += warps * STAGES * STAGE;
    a->at_results = (uint32_t)bytes;
    bytes += (down ? pairs * a->groups * ROWS : warps / TEAM * 4 * TILE) * (int64_t)sizeof(float);
    a->steps = (int)steps;
    a->blocks = (int)(problem->dim[1] / 32);
    a->tiles = (int)ridge_ceil_div(problem->dim[2], down ? a->groups * ROWS : TILE);
    return bytes;
}

/* CTAs of 16 warps, or of 8 where memory is small. Shapes alone decide. Returns 0: x does not fit. */
static int64_t plan(const ridge_device *device, const ridge_problem *problem, dp4a_args *a)
{
    for (int warps = MOST_WARPS; warps >= TEAM; warps -= TEAM) {
        const int64_t bytes = lay_out(problem, warps, a);

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
    most = a.p.down ? a.tiles : (int64_t)a.tiles * a.p.tokens * a.p.slots;
    return host_launch_shared(device, kernel->name, function[0],
                              dim3((unsigned)(most < device->units ? most : device->units)), 32 * a.warps,
                              (size_t)shared, &a, stream);
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

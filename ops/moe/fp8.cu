/* fp8.cu: moe_gate_up_swiglu and moe_down with weights and x in e4m3, on tensor cores, sm_89 up.
 *
 *     y = fma(rn(scale of x * scale of the weights), P_b, y) over the blocks b of 128 columns, ascending, from +0
 *
 * P_b is eight mma.sync of f16 one after another, whose codes are exact in f16, so that products and sums are as good
 * as f32. x is on the side of 16 rows, of which an entry's pairs (list.cuh) are the first 8; a tile of 8 rows of
 * weights is the other side. So a warp may have any rows, and what a row of a pair adds up depends on nothing else: not
 * on its place among the pairs or the tiles.
 *
 * A warp computes an item: an entry's pairs times four tiles of rows (fewer where warps would have no item), of gate_up
 * as many of gate as of up. It copies what it needs by itself with cp.async, three stages ahead and from one item
 * into the next: no warp waits for another. A stage is a block of columns: the codes of the tiles and of x, and the
 * scales of both. Lane 4 g + q has chunks q and q + 4 of 16 columns of pair g and of row g of each tile, the same
 * columns of both. With four tiles and four pairs x is an eighth of what is read.
 *
 * In gate_up a CTA has a range of all items, entry by entry. In down it has a group of tiles, of all entries; the
 * results wait in shared memory, then all threads add the slots. More groups than CTAs are taken in rounds. */
#include "args.cuh"
#include "list.cuh"

enum { BLOCK = 128, TILE = 8, TILE_BYTES = TILE * BLOCK, DEPTH = 4 /* stages of a warp */ };
enum { RESULT_BYTES = 48 * 1024 /* of results in shared memory, at most */ };

/* A stage of T tiles: their codes, those of x, scales of x and of the tiles. */
#define AT_X(t) ((t)*TILE_BYTES)
#define AT_SCALES(t) (AT_X(t) + MOE_COLUMNS * BLOCK)
#define STAGE(t) (AT_SCALES(t) + 64)
#define MOST_WARPS(t) ((t) == 4 ? 8 : 16)

typedef struct fp8_args {
    moe_args p;
    int groups;        /* gate_up: items of an entry; down: tiles of a CTA's round */
    int tiles, rounds; /* down: all tiles, rounds */
    uint32_t at_results, at_ring;
} fp8_args;

/* A pair, and where its codes and its first scale are: elements. */
typedef struct fp8_x {
    int64_t codes, scale;
    int token, slot;
} fp8_x;

/* Items [first, last) of a CTA's round; down: of `wide` tiles from tile `base` on. */
typedef struct fp8_range {
    int first, last, base, wide;
} fp8_range;

/* An item: an entry and which of its groups of tiles. */
typedef struct fp8_item {
    int number, entry, group;
} fp8_item;

/* The stage that a warp copies next. */
template <int DOWN> struct fp8_loader {
    fp8_range range;
    fp8_item at;
    int round, left, rows;                 /* columns, 0: there is no item; rows of the weights */
    const char *from[DOWN ? 1 : 2], *x[2]; /* this lane's 16 bytes of the first copy; x NULL: of no pair */
    const float *scale;                    /* that this lane copies, NULL: none */
    int64_t scale_step;
};

#if __CUDA_ARCH__ >= 890
/* ------------------------------------------------------------------------------------------------------------ items */

template <int DOWN, int T>
static __device__ __forceinline__ fp8_range find_range(const fp8_args &a, const moe_list *list, int round)
{
    const int cta = (int)blockIdx.x, ctas = (int)gridDim.x;
    fp8_range r;

    if (DOWN) {
        r.base = (round * ctas + cta) * a.groups;
        r.wide = max(min(a.groups, a.tiles - r.base), 0);
        r.first = 0;
        r.last = list->entries * ((r.wide + T - 1) / T);
    } else {
        const int64_t items = (int64_t)list->entries * a.groups;

        r.base = r.wide = 0;
        r.first = (int)(items * cta / ctas);
        r.last = (int)(items * (cta + 1) / ctas);
    }
    return r;
}

/* gate_up goes through the groups of an entry, down through the entries of a group. */
template <int DOWN, int T>
static __device__ __forceinline__ fp8_item first_item(const fp8_args &a, const moe_list *list, const fp8_range &r)
{
    const int number = r.first + (int)threadIdx.x / 32, wide = max(DOWN ? list->entries : a.groups, 1);
    const int turn = number / wide, rest = number - turn * wide;

    return {number, DOWN ? rest : turn, DOWN ? turn : rest};
}

template <int DOWN, int T>
static __device__ __forceinline__ void next_item(const fp8_args &a, const moe_list *list, fp8_item *at)
{
    const int step = (int)blockDim.x / 32, wide = DOWN ? list->entries : a.groups;
    int *const slow = DOWN ? &at->group : &at->entry, *const fast = DOWN ? &at->entry : &at->group;

    at->number += step;
    for (*fast += step; *fast >= wide; ++*slow)
        *fast -= wide;
}

/* The first row of an item's weights. */
template <int DOWN, int T> static __device__ __forceinline__ int row_of(const fp8_range &r, const fp8_item &at)
{
    return DOWN ? (r.base + at.group * T) * TILE : at.group * (T / 2 * TILE);
}

template <int DOWN, int T>
static __device__ __forceinline__ int rows_of(const fp8_args &a, const fp8_range &r, const fp8_item &at)
{
    const int row = row_of<DOWN, T>(r, at);

    return DOWN ? min(min((r.base + r.wide) * TILE, (int)a.p.rows) - row, T * TILE)
                : min((int)a.p.rows - row, T / 2 * TILE);
}

/* Goes to the first stage of its item, or of the first in a later round. */
template <int DOWN, int T>
static __device__ __forceinline__ void seek(const fp8_args &a, const moe_list *list, const fp8_x *from,
                                            fp8_loader<DOWN> *l)
{
    enum { SUB_TILES = DOWN ? T : T / 2 };
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32, tile = lane - MOE_COLUMNS, cols = (int)p.cols;
    int row, count;
    int64_t expert;

    while (l->at.number >= l->range.last) {
        if (++l->round >= a.rounds) {
            l->left = 0;
            return;
        }
        l->range = find_range<DOWN, T>(a, list, l->round);
        l->at = first_item<DOWN, T>(a, list, l->range);
    }
    row = row_of<DOWN, T>(l->range, l->at);
    expert = list->expert[l->at.entry];
    count = list->count[l->at.entry];
    l->left = cols;
    l->rows = rows_of<DOWN, T>(a, l->range, l->at);
#pragma unroll
    for (int s = 0; s < (DOWN ? 1 : 2); s++)
        l->from[s] = p.weight[s].data + expert * p.weight[s].stride + (int64_t)(row + lane / 8) * cols + lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 2; i++)
        l->x[i] = 4 * i + lane / 8 < count ? p.x + from[list->pair[l->at.entry][4 * i + lane / 8]].codes + lane % 8 * 16
                                           : NULL;
    l->scale = NULL;
    if (lane < count) {
        l->scale = p.x_scales + from[list->pair[l->at.entry][lane]].scale;
        l->scale_step = p.x_block;
    } else if (tile >= 0 && tile < T && tile % SUB_TILES * TILE < l->rows) {
        const moe_weight &w = p.weight[DOWN ? 0 : tile / SUB_TILES];

        l->scale = (const float *)(w.scales + expert * w.scales_stride) +
                   (int64_t)((row + tile % SUB_TILES * TILE) / BLOCK) * ((cols + BLOCK - 1) / BLOCK);
        l->scale_step = 1;
    }
}

/* 16 bytes of weights. Those of the row's next stage come to L2 with them: 253 -> 235 us (DeepSeek-V3, gate and up, 8
 * tokens). */
static __device__ __forceinline__ void copy_codes(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Copies a stage's codes of weights; WHOLE: all of its rows and columns are there. */
template <int DOWN, int T, int WHOLE>
static __device__ __forceinline__ void copy_weights(const fp8_args &a, const fp8_loader<DOWN> *l, uint32_t to)
{
    enum { COPIES = T * 2 / (DOWN ? 1 : 2) };
    const int lane = threadIdx.x % 32;
    const bool there = WHOLE || lane % 8 * 16 < l->left;
    const int64_t step = 4 * (int64_t)(int)a.p.cols;

#pragma unroll
    for (int s = 0; s < (DOWN ? 1 : 2); s++) {
        const char *from = there ? l->from[s] : l->from[s] - lane % 8 * 16;

#pragma unroll
        for (int i = 0; i < COPIES; i++, from += step)
            if (WHOLE || 4 * i + lane / 8 < l->rows)
                copy_codes(to + (s * COPIES + i) * 512, from, there ? 16 : 0);
    }
}

/* Copies a stage and advances. Rows and pairs that are not there keep what the stage held: they have results of their
 * own. Columns that are not there are zeros. */
template <int DOWN, int T>
static __device__ __forceinline__ void copy_stage(const fp8_args &a, const moe_list *list, const fp8_x *from,
                                                  fp8_loader<DOWN> *l, uint32_t stage)
{
    const int lane = threadIdx.x % 32;
    const uint32_t to = stage + lane / 8 * BLOCK + (lane % 8 * 16 ^ (lane / 8 & 1) * 64);

    if (l->left > 0) {
        const int there = lane % 8 * 16 < l->left;

        if (l->left >= BLOCK && l->rows == T * TILE / (DOWN ? 1 : 2))
            copy_weights<DOWN, T, 1>(a, l, to);
        else
            copy_weights<DOWN, T, 0>(a, l, to);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (l->x[i]) {
                mma_copy16(to + AT_X(T) + i * 512, there ? l->x[i] : l->x[i] - lane % 8 * 16, there * 16);
                l->x[i] += BLOCK;
            }
        if (l->scale) {
            mma_copy4(stage + AT_SCALES(T) + lane * 4, l->scale, 4);
            l->scale += l->scale_step;
        }
#pragma unroll
        for (int s = 0; s < (DOWN ? 1 : 2); s++)
            l->from[s] += BLOCK;
        l->left -= BLOCK;
        if (l->left <= 0) {
            next_item<DOWN, T>(a, list, &l->at);
            seek<DOWN, T>(a, list, from, l);
        }
    }
    mma_copy_commit();
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Adds a block of columns to y[tile][row of two]. */
template <int T> static __device__ __forceinline__ void add_block(const char *stage, float (*y)[2])
{
    const int lane = threadIdx.x % 32, group = lane / 4;
    const char *const own = stage + group * BLOCK;
    const float *const scales = (const float *)(stage + AT_SCALES(T));
    const float x_scale = scales[group];
    float acc[T][4];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = (half * 64 + lane % 4 * 16) ^ (group & 1) * 64;
        const uint4 x = *(const uint4 *)(own + AT_X(T) + at);
        uint32_t a[4][2];

        mma_convert<0>(x.x, &a[0][0], &a[0][1]);
        mma_convert<0>(x.y, &a[1][0], &a[1][1]);
        mma_convert<0>(x.z, &a[2][0], &a[2][1]);
        mma_convert<0>(x.w, &a[3][0], &a[3][1]);
#pragma unroll
        for (int t = 0; t < T; t++) {
            const uint4 w = *(const uint4 *)(own + t * TILE_BYTES + at);

#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t low, high;

                mma_convert<0>(k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w, &low, &high);
                mma_f16(acc[t], a[k][0], 0, a[k][1], 0, low, high, half + k > 0);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float scale = __fmul_rn(x_scale, scales[MOE_COLUMNS + t]);

        y[t][0] = __fmaf_rn(scale, acc[t][0], y[t][0]);
        y[t][1] = __fmaf_rn(scale, acc[t][1], y[t][1]);
    }
}

/* gate_up: stores the results; down: leaves them at results[pair][row of the item]. */
template <int DOWN, int T>
static __device__ __forceinline__ void finish_item(const fp8_args &a, const moe_list *list, const fp8_x *from,
                                                   int entry, int row, int rows, float *results, const float (*y)[2])
{
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32, expert = list->expert[entry];
    int pair;

    if (lane / 4 >= list->count[entry])
        return;
    pair = list->pair[entry][lane / 4];
#pragma unroll
    for (int i = 0; i < (DOWN ? T : T / 2) * 2; i++) {
        const int own = i / 2 * TILE + lane % 4 * 2 + i % 2;

        if (own >= rows)
            continue;
        if (DOWN)
            results[pair * (a.groups * TILE) + own] = moe_bias(p.weight[0], expert, row + own, y[i / 2][i % 2]);
        else
            moe_store(p, from[pair].token * p.out_stride + from[pair].slot * p.rows + row + own,
                      moe_swiglu(p.act, moe_bias(p.weight[0], expert, row + own, y[i / 2][i % 2]),
                                 moe_bias(p.weight[1], expert, row + own, y[T / 2 + i / 2][i % 2]), p.swiglu));
    }
}

#endif

/* ----------------------------------------------------------------------------------------------------------- kernel */

template <int DOWN, int T>
static __global__ void __launch_bounds__(32 * MOST_WARPS(T), 1) moe_fp8(const __grid_constant__ fp8_args a)
{
#if __CUDA_ARCH__ >= 890
    extern __shared__ __align__(128) char memory[];
    moe_list *const list = (moe_list *)memory;
    fp8_x *const from = (fp8_x *)(list + 1);
    float *const results = (float *)(memory + a.at_results);
    char *const ring = memory + a.at_ring + threadIdx.x / 32 * (DEPTH * STAGE(T));
    fp8_loader<DOWN> l = {};
    int stage = 0;

    moe_make_list(a.p, list, MOE_COLUMNS); /* while the kernels before may be running */
    ptx_grid_dependency_wait();
    if (!moe_list_holds(a.p, list))
        moe_make_list(a.p, list, MOE_COLUMNS);
    for (int i = threadIdx.x; i < a.p.tokens * a.p.slots; i += (int)blockDim.x) {
        const int token = i / a.p.slots, slot = i - token * a.p.slots;

        from[i] = {token * a.p.x_stride + slot * a.p.x_slot, token * a.p.x_ld + slot * a.p.x_slot_ld, token, slot};
    }
    __syncthreads(); /* written before they are read */
    l.range = find_range<DOWN, T>(a, list, 0);
    l.at = first_item<DOWN, T>(a, list, l.range);
    seek<DOWN, T>(a, list, from, &l);
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1; i++)
        copy_stage<DOWN, T>(a, list, from, &l, ptx_shared(ring + i * STAGE(T)));
    ptx_launch_dependents(); /* behind the first copies, which it would delay */
    if (DOWN)
        moe_keep_weights(a.p, list);
    else
        moe_store_rest(a.p, list);
    for (int round = 0; round < a.rounds; round++) {
        const fp8_range r = find_range<DOWN, T>(a, list, round);

#pragma unroll 1
        for (fp8_item at = first_item<DOWN, T>(a, list, r); at.number < r.last; next_item<DOWN, T>(a, list, &at)) {
            float y[T][2] = {};

#pragma unroll 1
            for (int left = (int)a.p.cols; left > 0; left -= BLOCK) {
                mma_copy_wait_for<DEPTH - 2>();
                __syncwarp(); /* the lanes' copies are visible to each other, and all have read the stage before */
                copy_stage<DOWN, T>(a, list, from, &l, ptx_shared(ring + (stage + DEPTH - 1) % DEPTH * STAGE(T)));
                add_block<T>(ring + stage * STAGE(T), y);
                stage = (stage + 1) % DEPTH;
            }
            finish_item<DOWN, T>(a, list, from, at.entry, row_of<DOWN, T>(r, at), rows_of<DOWN, T>(a, r, at),
                                 results + at.group * (T * TILE), y);
        }
        if (DOWN) {
            __syncthreads(); /* the results and the weights of the slots are written before they are read */
            moe_store_sums<TILE>(a.p, a.groups, list, r.base, results);
            __syncthreads(); /* and read before they are written again */
        }
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By down, then tiles: 1, 2, 4. */
static const void *const functions[5] = {(const void *)moe_fp8<0, 2>, (const void *)moe_fp8<0, 4>,
                                         (const void *)moe_fp8<1, 1>, (const void *)moe_fp8<1, 2>,
                                         (const void *)moe_fp8<1, 4>};

static ridge_status prepare(const ridge_device *device)
{
    if (device->arch < RIDGE_ARCH_SM89)
        return RIDGE_OK;
    return host_prepare(device, functions, 5, cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device),
                        "moe: loading kernels");
}

typedef struct fp8_plan {
    int tiles, warps; /* of an item; 0 warps: shared memory is too small */
    int64_t bytes;    /* of shared memory */
} fp8_plan;

/* As many warps as rings fit behind `before` bytes. */
static fp8_plan place(const ridge_device *device, int tiles, int64_t before)
{
    for (int warps = MOST_WARPS(tiles); warps >= 2; warps /= 2)
        if (before + (int64_t)warps * DEPTH * STAGE(tiles) <= host_max_shared(device))
            return {tiles, warps, before + (int64_t)warps * DEPTH * STAGE(tiles)};
    return {};
}

/* Divides the rows: items of four tiles, or of fewer if warps would have none. */
static fp8_plan plan_of(const ridge_device *device, bool down, int64_t pairs, int64_t experts, int64_t rows,
                        fp8_args *a)
{
    const int64_t entries = ridge_min(pairs, experts);
    int64_t bytes = ridge_round_up((int64_t)sizeof(moe_list) + pairs * (int64_t)sizeof(fp8_x), 16);
    int tiles = 4;

    a->rounds = 1;
    a->at_results = (uint32_t)bytes;
    a->groups = (int)ridge_ceil_div(rows, tiles / 2 * TILE);
    if (down) {
        a->tiles = (int)ridge_ceil_div(rows, TILE);
        a->groups =
            (int)ridge_min(ridge_max(1, RESULT_BYTES / (pairs * TILE * 4)), ridge_ceil_div(a->tiles, device->units));
        a->rounds = (int)ridge_ceil_div(ridge_ceil_div(a->tiles, a->groups), device->units);
        bytes += pairs * a->groups * TILE * 4;
        while (tiles > 1 && (tiles >= 2 * a->groups || entries * ridge_ceil_div(a->groups, tiles) < MOST_WARPS(4)))
            tiles /= 2;
    } else if (entries * a->groups < 2 * MOST_WARPS(4) * device->units) {
        tiles = 2;
        a->groups = (int)ridge_ceil_div(rows, TILE);
    }
    a->at_ring = (uint32_t)ridge_round_up(bytes, 128);
    /* With 99 KB fewer pairs may have more results than most, so that four tiles fit only those. */
    while (down && tiles > 1 && place(device, tiles, a->at_ring).warps == 0)
        tiles /= 2;
    return place(device, tiles, a->at_ring);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const bool down = bound->call.op == RIDGE_MOE_DOWN;
    fp8_args a = {};
    fp8_plan plan;
    int64_t grid;

    a.p = moe_args_of(&bound->call);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    plan = plan_of(device, down, (int64_t)a.p.tokens * a.p.slots, a.p.experts, a.p.rows, &a);
    grid = down ? ridge_ceil_div(a.tiles, a.groups) : (int64_t)a.groups * a.p.tokens * a.p.slots;
    return host_launch_shared(device, kernel->name, functions[down ? 2 + plan.tiles / 2 : plan.tiles / 4],
                              dim3((unsigned)ridge_min(grid, device->units)), 32 * plan.warps, (size_t)plan.bytes, &a,
                              stream);
}

/* Whatever the number of tokens is, since other rows add in another order. */
static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t *const dim = problem->dim;
    fp8_args a;

    if (problem->dtype[0] != RIDGE_E4M3)
        return "x is not e4m3";
    if (problem->op == RIDGE_MOE_GATE_UP_SWIGLU && problem->dtype[RIDGE_MOE_GATE_UP_SWIGLU_OUT] == RIDGE_I8)
        return "out is codes";
    if (dim[0] * dim[4] == 0 || dim[1] == 0 || dim[2] == 0)
        return "nothing to multiply";
    if (problem->inputs_align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (dim[1] > 1 << 24 || dim[2] > 1 << 20)
        return "more than 2^24 columns or 2^20 rows";
    return plan_of(device, problem->op == RIDGE_MOE_DOWN, RIDGE_MOE_MAX_TOKENS * dim[4], dim[3], dim[2], &a).warps
               ? NULL
               : "shared memory is too small";
}

/* The weights of as many experts as the tokens are expected to name. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double pairs = (double)problem->dim[0] * (double)problem->dim[4], experts = (double)problem->dim[3];

    return 3 + (double)problem->dim[1] * (double)problem->dim[2] * (problem->op == RIDGE_MOE_DOWN ? 1.1e-3 : 2.2e-3) *
                   (pairs < experts ? pairs : experts) / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                       \
    {                                                                                                             \
        "cuda." op_name ".fp8", op_id, RIDGE_ARCH_SM89, RIDGE_ARCH_CUDA_LAST,                                     \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE | RIDGE_ARITHMETIC_1, 0, {}, why_not, NULL, cost, launch \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_fp8 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

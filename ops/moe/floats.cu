/* floats.cu: moe_gate_up_swiglu and moe_down with weights in bf16 or e4m3 and x in bf16, sm_80 up.
 *
 * An entry of the list (single.cuh) has one pair. (pairs.cu is for experts with more.) A warp computes an item: eight
 * rows of an entry, of gate_up four of gate and four of up. Lane i has the chains 8 i .. 8 i + 7 (products.h) of each
 * row. A warp copies SPAN bytes of each row, and the scales of e4m3, into a stage of its own in shared memory, STAGES
 * ahead and from one item into the next; no other warp reads them, so there is no barrier but __syncwarp. All of x lies
 * in shared memory too where it is small (LOCAL), else what a span needs of it comes with the span: a load of x from
 * global memory, even from L1, would wait for copies that were requested before it.
 *
 *     gate_up  items are dealt out to CTAs one by one, and a CTA's to its warps
 *     down     a CTA has whole tiles of rows, whose items (one an entry) its warps share out; the results of a batch
 *              of tiles wait in shared memory, then all threads add the slots. The results have two buffers, so that
 *              one barrier a batch orders the writes before the reads, and those before the next but one batch's writes
 *
 * Constant weights are requested before the kernels before have ended, by the ids as they are then: a router has long
 * written them. If they have changed, all begins again. Where two CTAs fit a multiprocessor these are all stages, else
 * one, so that x does not come behind them. */
#include "args.cuh"
#include "single.cuh"

enum { VALUES = 8, SPAN = 512, SCALES = SPAN / 128, WARPS = 12, STAGES = 3 };
enum { X = 64 << 10, SHARED_OF_TWO = 113 << 10 }; /* bytes of x at most; of a CTA, two of which fit a multiprocessor */

/* Threads for which registers are allotted: 128 a thread on Hopper where x is LOCAL, so that two CTAs of eight warps
 * fit a multiprocessor. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define BOUND(local) ((local) ? 512 : 32 * WARPS)
#else
#define BOUND(local) (32 * WARPS)
#endif
#define SUBS(down) ((down) ? 1 : 2)
#define ROWS(down) (VALUES / SUBS(down)) /* of a matrix */
/* A stage: SPAN bytes of each row, [matrix][scale] of e4m3, x unless it is LOCAL. */
#define AT_X(form) (VALUES * SPAN + ((form) == RIDGE_E4M3 ? 2 * SCALES * 4 : 0))
#define STAGE(form, local) (AT_X(form) + ((local) ? 0 : (form) == RIDGE_E4M3 ? 2 * SPAN : SPAN))

typedef struct floats_args {
    moe_args p;
    int steps; /* of 256 columns */
    int early; /* spans of a warp that are requested before the kernels before have ended */
    moe_tiles tiles;
    uint32_t at_results, at_x, at_ring;
} floats_args;

/* The next span to copy. */
template <int DOWN> struct float_loader {
    moe_walk at;
    int left, last; /* bytes of the rows, 0: there is no item; rows of the tile behind its first */
    const char *from[SUBS(DOWN)];
    const float *scale; /* the one that this lane copies, of lanes below SCALES for each matrix */
    const char *x;      /* this lane's first 16 bytes, unless it is LOCAL */
};

/* ---------------------------------------------------------------------------------------------------------- weights */

template <int FORM, int DOWN, int LOCAL>
static __device__ __forceinline__ void seek_item(const floats_args &a, const moe_pairs *list, float_loader<DOWN> *l)
{
    enum { SIZE = FORM == RIDGE_BF16 ? 2 : 1 };
    const int lane = threadIdx.x % 32;
    int64_t expert;
    int row;

    const moe_item item = moe_item_of<DOWN>(a.tiles, l->at);

    l->left = 0;
    if (item.entry >= list->entries)
        return;
    row = moe_tile<DOWN>(a.tiles, l->at, item) * ROWS(DOWN);
    expert = list->of[item.entry].expert;
    l->left = (int)a.p.cols * SIZE;
    l->last = (int)a.p.rows - 1 - row;
#pragma unroll
    for (int s = 0; s < SUBS(DOWN); s++)
        l->from[s] = a.p.weight[s].data + expert * a.p.weight[s].stride + row * a.p.cols * SIZE + lane * 16;
    if (FORM == RIDGE_E4M3) {
        const int s = DOWN ? 0 : lane / SCALES % 2;
        const char *const scales = a.p.weight[s].scales + expert * a.p.weight[s].scales_stride;

        l->scale = (const float *)scales + row / 128 * ((a.p.cols + 127) / 128) + lane % SCALES;
    }
    if (!LOCAL) {
        const int pair = list->of[item.entry].pair, token = pair / a.p.slots, slot = pair - token * a.p.slots;

        l->x = a.p.x + (token * a.p.x_stride + slot * a.p.x_slot) * 2 + lane * 16;
    }
}

/* Copies a span of each row into a stage and advances. A row behind the last is the last one again. */
template <int FORM, int DOWN, int LOCAL>
static __device__ __forceinline__ void copy_span(const floats_args &a, const moe_pairs *list, float_loader<DOWN> *l,
                                                 uint32_t stage)
{
    enum { SIZE = FORM == RIDGE_BF16 ? 2 : 1, X_SPAN = 2 / SIZE * SPAN };
    const int lane = threadIdx.x % 32;

    if (l->left > 0) {
        if (lane * 16 < l->left)
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                mma_copy16(stage + (uint32_t)(i * SPAN + lane * 16),
                           l->from[i / ROWS(DOWN)] + (int64_t)min(i % ROWS(DOWN), l->last) * ((int)a.p.cols * SIZE),
                           16);
        if (FORM == RIDGE_E4M3) {
            if (lane < SCALES * SUBS(DOWN) && lane % SCALES * 128 < l->left)
                mma_copy4(stage + (uint32_t)(VALUES * SPAN + lane * 4), l->scale, 4);
            l->scale += SCALES;
        }
        if (!LOCAL) {
#pragma unroll
            for (int i = 0; i < X_SPAN; i += 512)
                if (i + lane * 16 < l->left * (2 / SIZE))
                    mma_copy16(stage + (uint32_t)(AT_X(FORM) + i + lane * 16), l->x + i, 16);
            l->x += X_SPAN;
        }
#pragma unroll
        for (int s = 0; s < SUBS(DOWN); s++)
            l->from[s] += SPAN;
        l->left -= SPAN;
        if (l->left <= 0) {
            moe_advance<DOWN>(list, a.tiles, (int)threadIdx.x / 32, (int)blockDim.x / 32, &l->at);
            seek_item<FORM, DOWN, LOCAL>(a, list, l);
        }
    }
    mma_copy_commit();
}

/* All of x, a row for each token or, of down, pair. */
template <int DOWN> static __device__ __forceinline__ void copy_x(const floats_args &a, uint32_t to)
{
    const moe_args &p = a.p;
    const int pieces = (int)p.cols / 8;

    for (int row = 0; row < p.tokens * (DOWN ? p.slots : 1); row++) {
        const int token = DOWN ? row / p.slots : row, slot = DOWN ? row - token * p.slots : 0;
        const char *const from = p.x + (token * p.x_stride + slot * p.x_slot) * 2;

        for (int i = threadIdx.x; i < pieces; i += (int)blockDim.x)
            mma_copy16(to + (uint32_t)(row * pieces + i) * 16, from + (int64_t)i * 16, 16);
    }
    mma_copy_commit();
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Where all of x has that of an entry's pair. */
template <int DOWN>
static __device__ __forceinline__ const char *local_x(const floats_args &a, const moe_pairs *list, int entry,
                                                      const char *x)
{
    const int pair = list->of[entry].pair;

    return x + (DOWN ? pair : pair / a.p.slots) * ((int)a.p.cols * 2);
}

template <int FORM> static __device__ __forceinline__ void load_weights(const char *from, float *w)
{
    if (FORM == RIDGE_BF16) {
        num_unpack<RIDGE_BF16>(*(const uint4 *)from, w);
    } else {
        const uint2 v = *(const uint2 *)from;

        moe_unpack_e4m3(v.x, w);
        moe_unpack_e4m3(v.y, w + 4);
    }
}

/* Adds a step to the chains [value][chain]; a value is sub * ROWS + row. codes: this lane's of the first row. */
template <int FORM, int DOWN>
static __device__ __forceinline__ void add_step(const char *codes, uint4 x_codes, const float *scale, float (*chain)[8])
{
    enum { R = ROWS(DOWN) };
    float x[8];

    num_unpack<RIDGE_BF16>(x_codes, x);
#pragma unroll
    for (int s = 0; s < SUBS(DOWN); s++) {
        float scaled[8];

#pragma unroll
        for (int i = 0; i < 8; i++)
            scaled[i] = FORM == RIDGE_E4M3 ? __fmul_rn(x[i], scale[s]) : x[i];
#pragma unroll
        for (int r = 0; r < R; r++) {
            float w[8];

            load_weights<FORM>(codes + (s * R + r) * SPAN, w);
#pragma unroll
            for (int i = 0; i < 8; i++)
                chain[s * R + r][i] = __fmaf_rn(w[i], scaled[i], chain[s * R + r][i]);
        }
    }
}

/* The value of number 4 (lane & 1) + 2 (lane / 2 & 1) + (lane / 4 & 1), in every lane. */
static __device__ __forceinline__ float add_chains(const float (*chain)[8])
{
    const int lane = threadIdx.x % 32;
    float v[VALUES];

#pragma unroll
    for (int i = 0; i < VALUES; i++)
        v[i] = ((chain[i][0] + chain[i][1]) + (chain[i][2] + chain[i][3])) +
               ((chain[i][4] + chain[i][5]) + (chain[i][6] + chain[i][7]));
#pragma unroll
    for (int s = 0; s < 3; s++) {
        const int half = VALUES / 2 >> s;

#pragma unroll
        for (int i = 0; i < half; i++) {
            const bool high = lane >> s & 1;
            const float keep = high ? v[i + half] : v[i], send = high ? v[i] : v[i + half];

            v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 1 << s);
        }
    }
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], 8);
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], 16);
    return v[0];
}

/* Lanes below 8 have a value each. gate_up: stores the results; down: leaves them at results[tile of the batch][pair]
 * [row]. */
template <int DOWN>
static __device__ __forceinline__ void finish_item(const floats_args &a, const moe_pairs *list, moe_item at, int tile,
                                                   float *results, const float (*chain)[8])
{
    enum { R = ROWS(DOWN) };
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32, value = (lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1);
    const int sub = DOWN ? 0 : lane & 1, row = tile * R + value % R, pair = list->of[at.entry].pair;
    const bool there = lane < VALUES && row < p.rows;
    float y = add_chains(chain);

    if (there)
        y = moe_bias(p.weight[sub], list->of[at.entry].expert, row, y);
    if (DOWN) {
        if (there)
            results[pair * R + value % R] = y;
    } else {
        const float up = __shfl_xor_sync(0xffffffffu, y, 1);
        const int owner = pair / p.slots;

        if (there && sub == 0)
            moe_store(p, owner * p.out_stride + (pair - owner * p.slots) * p.rows + row,
                      moe_swiglu_inline(p.act, y, up, p.swiglu));
    }
}

/* ---------------------------------------------------------------------------------------------------------- results */

/* down: a thread has a row of a token. */
static __device__ __forceinline__ void store_sums(const floats_args &a, const moe_pairs *list, moe_walk batch,
                                                  const float *results)
{
    enum { R = ROWS(1) };
    const moe_args &p = a.p;
    const int pairs = p.tokens * p.slots, tiles = min(moe_tiles_left(a.tiles, batch), a.tiles.batch);

    for (int i = threadIdx.x; i < tiles * p.tokens * R; i += (int)blockDim.x) {
        const int r = i % R, token = i / R % p.tokens, tile = i / R / p.tokens;
        const int row = moe_tile<1>(a.tiles, batch, {0, tile}) * R + r;
        const float *const from = results + (tile * pairs + token * p.slots) * R + r;
        float sum = 0.0f;

        if (row >= p.rows)
            continue;
        for (int slot = 0; slot < p.slots; slot++)
            if (list->of[token * p.slots + slot].id >= 0)
                sum = __fmaf_rn(list->of[token * p.slots + slot].weight, from[slot * R], sum);
        moe_store_sum(p, token, row, sum);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* An item, its spans from stage *stage of the ring on. x: all of it, if it is LOCAL. */
template <int FORM, int DOWN, int LOCAL>
static __device__ __forceinline__ void add_item(const floats_args &a, const moe_pairs *list, const moe_item &at,
                                                float_loader<DOWN> *l, const char *x, const char *ring, int *stage,
                                                float (*chain)[8])
{
    enum { SIZE = FORM == RIDGE_BF16 ? 2 : 1, STEPS = SPAN / (MOE_CHAINS * SIZE) };
    const int lane = threadIdx.x % 32;
    const bool whole = (a.steps - 1) * MOE_CHAINS + lane * 8 < a.p.cols; /* this lane has columns in the last step */

    if (LOCAL)
        x = local_x<DOWN>(a, list, at.entry, x) + lane * 16;
    for (int left = a.steps; left > 0; left -= STEPS) {
        const char *const span = ring + *stage * STAGE(FORM, LOCAL);
        const char *const own = LOCAL ? x : span + AT_X(FORM) + lane * 16;

        mma_copy_wait_for<STAGES - 1>();
        __syncwarp(); /* the lanes' copies are visible to each other */
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            if (left > k + 1 || (left == k + 1 && whole)) {
                const float *const scales = (const float *)(span + VALUES * SPAN) + 2 * k + lane / 16;
                const float scale[2] = {FORM == RIDGE_E4M3 ? scales[0] : 1.0f,
                                        FORM == RIDGE_E4M3 && !DOWN ? scales[SCALES] : 1.0f};

                add_step<FORM, DOWN>(span + (k * MOE_CHAINS + lane * 8) * SIZE,
                                     *(const uint4 *)(own + k * (MOE_CHAINS * 2)), scale, chain);
            }
        __syncwarp(); /* all lanes have read the stage before it is written again */
        copy_span<FORM, DOWN, LOCAL>(a, list, l, ptx_shared(span));
        x += STEPS * MOE_CHAINS * 2;
        *stage = *stage + 1 == STAGES ? 0 : *stage + 1;
    }
}

/* Makes the list and requests what there is to request: x and the first spans, those of constant weights of down first.
 * Returns the first item. */
template <int FORM, int DOWN, int LOCAL>
static __device__ __forceinline__ moe_walk begin(const floats_args &a, moe_pairs *list, const char *x, const char *ring,
                                                 float_loader<DOWN> *l)
{
    enum { WEIGHTS = DOWN && FORM == RIDGE_E4M3 }; /* bf16: 12.2 -> 12.5 us with them */
    moe_walk first;
    int asked;

#pragma unroll 1
    for (bool early = DOWN && LOCAL && a.early;; early = false) {
        if (!early) {
            ptx_grid_dependency_wait();
            if (LOCAL)
                copy_x<DOWN>(a, ptx_shared(x));
            if (DOWN && LOCAL && a.early) {
                if (moe_pairs_hold<WEIGHTS>(a.p, list))
                    break;
                mma_copy_wait_for<0>(); /* what was copied is not wanted, and its stages are written again */
            }
        }
        moe_make_pairs<WEIGHTS>(a.p, list);
        first = l->at = moe_begin<DOWN>(list, a.tiles, (int)threadIdx.x / 32);
        seek_item<FORM, DOWN, LOCAL>(a, list, l);
        asked = WEIGHTS && early ? a.early : 1;
#pragma unroll 1
        for (int i = 0; i < asked; i++)
            copy_span<FORM, DOWN, LOCAL>(a, list, l, ptx_shared(ring + i * STAGE(FORM, LOCAL)));
        if (!early)
            break;
    }
    ptx_launch_dependents();
    for (int i = 1; i < STAGES; i++)
        if (i >= asked)
            copy_span<FORM, DOWN, LOCAL>(a, list, l, ptx_shared(ring + i * STAGE(FORM, LOCAL)));
    return first;
}

/* gate_up: slots without an expert, which no entry stores. */
static __device__ __forceinline__ void store_rest(const moe_args &p, const moe_pairs *list)
{
    const int threads = (int)(gridDim.x * blockDim.x);

    if (list->entries == p.tokens * p.slots)
        return;
    for (int pair = 0; pair < p.tokens * p.slots; pair++)
        if (list->of[pair].id < 0)
            for (int row = (int)(blockIdx.x * blockDim.x + threadIdx.x); row < p.rows; row += threads)
                moe_store(p, pair / p.slots * p.out_stride + pair % p.slots * p.rows + row, 0.0f);
}

template <int FORM, int DOWN, int LOCAL>
static __global__ void __launch_bounds__(BOUND(LOCAL), 1) moe_floats(const __grid_constant__ floats_args a)
{
    enum { R = ROWS(DOWN) };
    extern __shared__ __align__(128) char memory[];
    moe_pairs *const list = (moe_pairs *)memory;
    const int pairs = a.p.tokens * a.p.slots;
    const char *const ring = memory + a.at_ring + threadIdx.x / 32 * (STAGES * STAGE(FORM, LOCAL));
    const char *const x = memory + a.at_x;
    float_loader<DOWN> l;
    moe_walk at = begin<FORM, DOWN, LOCAL>(a, list, x, ring, &l);
    int stage = 0;

    if (!DOWN)
        store_rest(a.p, list);
    else if (FORM == RIDGE_BF16)
        moe_keep_pair_weights(a.p, list);
    if (LOCAL) {
        if (DOWN && a.early == STAGES) /* x was requested after all spans, else before the last STAGES - 1 */
            mma_copy_wait_for<0>();
        else
            mma_copy_wait_for<STAGES - 1>();
        __syncthreads(); /* x is there, of which every thread has copied some */
    }
    for (moe_walk batch = {}; !DOWN || moe_tiles_left(a.tiles, batch) > 0; batch.first += a.tiles.batch) {
        float *const results = (float *)(memory + a.at_results) + (batch.first & a.tiles.batch) * pairs * R;

        while (!DOWN || at.first == batch.first) {
            const moe_item item = moe_item_of<DOWN>(a.tiles, at);
            float chain[VALUES][8] = {};

            if (item.entry >= list->entries)
                break;
            add_item<FORM, DOWN, LOCAL>(a, list, item, &l, x, ring, &stage, chain);
            finish_item<DOWN>(a, list, item, moe_tile<DOWN>(a.tiles, at, item),
                              results + (DOWN ? item.tile : 0) * pairs * R, chain);
            moe_advance<DOWN>(list, a.tiles, (int)threadIdx.x / 32, (int)blockDim.x / 32, &at);
        }
        if (!DOWN)
            return;
        __syncthreads();
        store_sums(a, list, batch, results);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(local)                                                                                       \
    {                                                                                                      \
        (const void *)moe_floats<RIDGE_BF16, 0, local>, (const void *)moe_floats<RIDGE_BF16, 1, local>,    \
            (const void *)moe_floats<RIDGE_E4M3, 0, local>, (const void *)moe_floats<RIDGE_E4M3, 1, local> \
    }

/* By where x is, form, down. */
static const void *const functions[2][4] = {FORMS(0), FORMS(1)};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 2 && !status; i++)
        status = host_prepare(device, functions[i], 4, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              host_max_shared(device), "moe: loading kernels");
    return status;
}

typedef struct float_plan {
    int local, warps, two; /* two: CTAs fit a multiprocessor */
    moe_tiles tiles;
    int64_t at_results, at_x, at_ring, bytes;
} float_plan;

static void lay_out(bool down, const int64_t *dim, int warps, int local, float_plan *p)
{
    const int64_t pairs = dim[0] * dim[4], x = dim[0] * (down ? dim[4] : 1) * dim[1] * 2;

    p->local = local;
    p->warps = warps;
    p->at_results = moe_pairs_bytes(pairs);
    p->at_x = ridge_round_up(p->at_results + (down ? 2 * p->tiles.batch * pairs * VALUES * 4 : 0), 128);
    p->at_ring = p->at_x + (local ? ridge_round_up(x, 128) : 0);
    p->bytes = p->at_ring + (int64_t)warps * STAGES * STAGE(RIDGE_E4M3, local);
}

/* With x in shared memory if it is small and leaves room for the stages of ten warps at least; else without; else with
 * fewer. Few products of down in e4m3: with little enough memory that the next kernel's CTA fits beside this one and
 * asks for its weights (bf16 is slower so). Shapes alone decide. */
static float_plan plan(const ridge_device *device, int form, bool down, const int64_t *dim)
{
    static const int warps[] = {WARPS, 10, WARPS, 8, 4};
    const int64_t pairs = dim[0] * dim[4];
    float_plan p = {};

    p.tiles.all = (int)ridge_ceil_div(dim[2], VALUES / (down ? 1 : 2));
    p.tiles.each = (int)ridge_ceil_div(p.tiles.all, device->units);
    for (p.tiles.batch = 1; p.tiles.batch < p.tiles.each && 2 * p.tiles.batch * pairs <= 256;)
        p.tiles.batch *= 2;
    if (device->arch == RIDGE_ARCH_SM90 && form == RIDGE_E4M3 && down && pairs * p.tiles.each <= 16) {
        lay_out(down, dim, 8, 1, &p);
        p.two = p.bytes <= SHARED_OF_TWO;
        if (p.two)
            return p;
    }
    for (int i = dim[0] * (down ? dim[4] : 1) * dim[1] * 2 <= X ? 0 : 2; i < 5; i++) {
        lay_out(down, dim, warps[i], i < 2, &p);
        if (p.bytes <= host_max_shared(device))
            return p;
    }
    p.bytes = INT64_MAX;
    return p;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const bool down = bound->call.op == RIDGE_MOE_DOWN;
    const float_plan f = plan(device, (int)bound->call.arg[2].dtype, down, bound->call.dim);
    floats_args a = {};
    int64_t most;

    a.p = moe_args_of(&bound->call);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    a.steps = (int)ridge_ceil_div(a.p.cols, MOE_CHAINS);
    a.early = down && f.local && a.p.weights_const ? (f.two ? STAGES : 1) : 0;
    a.tiles = f.tiles;
    a.at_results = (uint32_t)f.at_results;
    a.at_x = (uint32_t)f.at_x;
    a.at_ring = (uint32_t)f.at_ring;
    most = down ? ridge_ceil_div(f.tiles.all, f.tiles.each) : (int64_t)f.tiles.all * a.p.tokens * a.p.slots;
    return host_launch_shared(device, kernel->name, functions[f.local][(a.p.form == RIDGE_E4M3) * 2 + down],
                              dim3((unsigned)ridge_min(most, device->units)), 32 * f.warps, (size_t)f.bytes, &a,
                              stream);
}

const char *moe_floats_why_not(const ridge_problem *problem)
{
    const int64_t *const dim = problem->dim;

    if (problem->dtype[2] != RIDGE_BF16 && problem->dtype[2] != RIDGE_E4M3)
        return "weights are not bf16 or e4m3";
    if (problem->dtype[0] != RIDGE_BF16)
        return "x is not bf16";
    if (problem->op == RIDGE_MOE_GATE_UP_SWIGLU && problem->dtype[RIDGE_MOE_GATE_UP_SWIGLU_OUT] == RIDGE_I8)
        return "out is codes";
    if (dim[0] * dim[4] == 0 || dim[1] == 0)
        return "nothing to multiply";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    return dim[1] > 1 << 24 || dim[2] > 1 << 20 ? "more than 2^24 columns or 2^20 rows" : NULL;
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const char *why = moe_floats_why_not(problem);

    if (why)
        return why;
    return plan(device, (int)problem->dtype[2], problem->op == RIDGE_MOE_DOWN, problem->dim).bytes == INT64_MAX
               ? "shared memory is too small"
               : NULL;
}

/* The weights of an expert for each pair, from L2 where pairs share it. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double pairs = (double)problem->dim[0] * (double)problem->dim[4];
    const double size = problem->dtype[2] == RIDGE_BF16 ? 2 : 1, products = problem->op == RIDGE_MOE_DOWN ? 1 : 2;

    return 3.5 + (double)problem->dim[1] * (double)problem->dim[2] * products * size * pairs * 1e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                          \
    {                                                                                                                \
        "cuda." op_name ".floats", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, launch                                                                                             \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_floats = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

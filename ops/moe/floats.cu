/* floats.cu: moe_gate_up_swiglu and moe_down with weights in bf16 or e4m3 and x in bf16, sm_80 up.
 *
 * A warp computes an item: eight rows of an entry of the list (list.cuh) that has one pair, four of one that has up to
 * two, half of them of gate and half of up. Lane i has the chains 8 i .. 8 i + 7 (products.h) of each row. A warp
 * copies SPAN bytes of each row, and the scales of e4m3, into a stage of its own in shared memory, STAGES ahead and
 * from one item into the next; no other warp reads them, so there is no barrier but __syncwarp. x lies in shared memory
 * too where it fits (LOCAL): a load of x from global memory, even from L1, waits for copies that were requested before
 * it. Where x does not fit, more warps hide that.
 *
 *     gate_up  items are dealt out to CTAs one by one, and a CTA's to its warps
 *     down     a CTA has whole tiles of rows, whose items (one an entry) its warps share out; the results of `batch`
 *              tiles wait in shared memory, then all threads add the slots. The results have two buffers, so that one
 *              barrier a batch orders the writes before the reads, and those before the next but one batch's writes.
 *              Constant weights are requested before the kernels before have ended, by the ids as they are then: a
 *              router has long written them. If they have changed, all begins again */
#include "args.cuh"
#include "list.cuh"

enum { VALUES = 8, SPAN = 512, SCALES = SPAN / 128 };

#define SUBS(down) ((down) ? 1 : 2)
#define ROWS(down, t) (VALUES / SUBS(down) / (t)) /* of a matrix */
#define STREAMS(t) (VALUES / (t))                 /* rows of an item */
#define WARPS(local, t) ((local) || (t) == 1 ? 12 : 16)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MOST_WARPS(local, t) 12 /* the stages of more do not fit, and registers would spill */
#else
#define MOST_WARPS(local, t) WARPS(local, t)
#endif
#define STAGES(t) (3 * (t))
#define STAGE(form, t) (STREAMS(t) * SPAN + ((form) == RIDGE_E4M3 ? 2 * SCALES * 4 : 0)) /* bytes */

typedef struct floats_args {
    moe_args p;
    int steps, tiles, batch; /* of 256 columns; of rows; of tiles */
    uint32_t at_x, at_ring;
} floats_args;

typedef struct float_item {
    int number; /* of the CTA, or beyond its last */
    int entry, tile;
} float_item;

/* The next span to copy. */
template <int DOWN> struct float_loader {
    float_item at;
    int left, last; /* bytes of the rows, 0: there is no item; rows of the tile behind its first */
    const char *from[SUBS(DOWN)];
    const float *scale; /* the one that this lane copies, of lanes below SCALES for each matrix */
};

/* ------------------------------------------------------------------------------------------------------------ items */

/* Sets entry and tile of an item by its number; false: there is none. */
template <int DOWN>
static __device__ __forceinline__ bool find_item(const floats_args &a, const moe_list *list, float_item *at)
{
    const int first = (int)blockIdx.x, step = (int)gridDim.x, entries = list->entries;

    if (entries == 0)
        return false;
    if (DOWN) {
        const int tile = at->number / entries;

        at->entry = at->number - tile * entries;
        at->tile = first + tile * step;
        return at->tile < a.tiles;
    }
    at->entry = (first + at->number * step) / a.tiles;
    at->tile = first + at->number * step - at->entry * a.tiles;
    return at->entry < entries;
}

template <int FORM, int DOWN, int T>
static __device__ __forceinline__ void seek_item(const floats_args &a, const moe_list *list, float_loader<DOWN> *l)
{
    enum { SIZE = FORM == RIDGE_BF16 ? 2 : 1 };
    const int lane = threadIdx.x % 32;
    int64_t expert;
    int row;

    l->left = 0;
    if (!find_item<DOWN>(a, list, &l->at))
        return;
    row = l->at.tile * ROWS(DOWN, T);
    expert = list->expert[l->at.entry];
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
}

static __device__ __forceinline__ void copy_word(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from) : "memory");
}

/* Copies a span of each row into a stage and advances. A row behind the last is the last one again. */
template <int FORM, int DOWN, int T>
static __device__ __forceinline__ void copy_span(const floats_args &a, const moe_list *list, float_loader<DOWN> *l,
                                                 uint32_t stage)
{
    enum { SIZE = FORM == RIDGE_BF16 ? 2 : 1 };
    const int lane = threadIdx.x % 32;

    if (l->left > 0) {
        if (lane * 16 < l->left)
#pragma unroll
            for (int i = 0; i < STREAMS(T); i++)
                mma_copy16(
                    stage + (uint32_t)(i * SPAN + lane * 16),
                    l->from[i / ROWS(DOWN, T)] + (int64_t)min(i % ROWS(DOWN, T), l->last) * ((int)a.p.cols * SIZE), 16);
        if (FORM == RIDGE_E4M3) {
            if (lane < SCALES * SUBS(DOWN) && lane % SCALES * 128 < l->left)
                copy_word(stage + (uint32_t)(STREAMS(T) * SPAN + lane * 4), l->scale);
            l->scale += SCALES;
        }
#pragma unroll
        for (int s = 0; s < SUBS(DOWN); s++)
            l->from[s] += SPAN;
        l->left -= SPAN;
        if (l->left <= 0) {
            l->at.number += (int)blockDim.x / 32;
            seek_item<FORM, DOWN, T>(a, list, l);
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

/* Where x of an entry's pairs begins, in units of 16 bytes: in shared memory, or from p.x on. */
template <int DOWN, int T, int LOCAL>
static __device__ __forceinline__ void seek_x(const floats_args &a, const moe_list *list, int entry, uint32_t *x)
{
    const moe_args &p = a.p;

#pragma unroll
    for (int t = 0; t < T; t++) {
        const int pair = list->pair[entry][t < list->count[entry] ? t : 0];
        const int token = pair / p.slots, slot = pair - token * p.slots;

        x[t] = (uint32_t)(LOCAL ? (DOWN ? pair : token) * (p.cols / 8) : (token * p.x_stride + slot * p.x_slot) / 8) +
               threadIdx.x % 32;
    }
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

/* Adds a step to the chains [value][chain]; a value is ((sub * T) + token) * ROWS + row. codes: this lane's of the
 * first row. */
template <int FORM, int DOWN, int T>
static __device__ __forceinline__ void add_step(const char *codes, const uint4 *x_codes, const float *scale, int count,
                                                float (*chain)[8])
{
    enum { R = ROWS(DOWN, T) };
    float x[T][8];

#pragma unroll
    for (int t = 0; t < T; t++)
        num_unpack<RIDGE_BF16>(x_codes[t], x[t]);
#pragma unroll
    for (int s = 0; s < SUBS(DOWN); s++) {
        float scaled[T][8];

#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                scaled[t][i] = FORM == RIDGE_E4M3 ? __fmul_rn(x[t][i], scale[s]) : x[t][i];
#pragma unroll
        for (int r = 0; r < R; r++) {
            float w[8];

            load_weights<FORM>(codes + (s * R + r) * SPAN, w);
#pragma unroll
            for (int t = 0; t < T; t++)
                if (t < count)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        chain[(s * T + t) * R + r][i] = __fmaf_rn(w[i], scaled[t][i], chain[(s * T + t) * R + r][i]);
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
template <int DOWN, int T>
static __device__ __forceinline__ void finish_item(const floats_args &a, const moe_list *list, float_item at,
                                                   float *results, const float (*chain)[8])
{
    enum { R = ROWS(DOWN, T) };
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32, value = (lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1);
    const int sub = DOWN ? 0 : lane & 1, token = value / R % T, row = at.tile * R + value % R;
    const int pair = list->pair[at.entry][token < list->count[at.entry] ? token : 0];
    const bool there = lane < VALUES && token < list->count[at.entry] && row < p.rows;
    float y = add_chains(chain);

    if (there)
        y = moe_bias(p.weight[sub], list->expert[at.entry], row, y);
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

/* gate_up: slots without an expert. */
static __device__ __forceinline__ void store_rest(const floats_args &a, const moe_list *list)
{
    const moe_args &p = a.p;

    for (int pair = 0; pair < p.tokens * p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int row = (int)(blockIdx.x * blockDim.x + threadIdx.x); row < p.rows;
                 row += (int)(gridDim.x * blockDim.x))
                moe_store(p, pair / p.slots * p.out_stride + pair % p.slots * p.rows + row, 0.0f);
}

/* down: a thread has a row of a token. */
template <int T>
static __device__ __forceinline__ void store_sums(const floats_args &a, const moe_list *list, int first, int tiles,
                                                  const float *results)
{
    enum { R = ROWS(1, T) };
    const moe_args &p = a.p;
    const int pairs = p.tokens * p.slots;

    for (int i = threadIdx.x; i < tiles * p.tokens * R; i += (int)blockDim.x) {
        const int r = i % R, token = i / R % p.tokens, tile = i / R / p.tokens;
        const int row = (int)(blockIdx.x + (first + tile) * gridDim.x) * R + r;
        const float *const from = results + (tile * pairs + token * p.slots) * R + r;
        float sum = 0.0f;

        if (row >= p.rows)
            continue;
        for (int slot = 0; slot < p.slots; slot++)
            if (((const int *)list->ids)[token * p.slots + slot] >= 0)
                sum = __fmaf_rn(list->weight[token * p.slots + slot], from[slot * R], sum);
        moe_store_sum(p, token, row, sum);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* An item, its spans from stage *stage of the ring on. */
template <int FORM, int DOWN, int T, int LOCAL>
static __device__ __forceinline__ void add_item(const floats_args &a, const moe_list *list, const float_item &at,
                                                float_loader<DOWN> *l, const uint4 *x, const char *ring, int *stage,
                                                float (*chain)[8])
{
    enum { SIZE = FORM == RIDGE_BF16 ? 2 : 1, STEPS = SPAN / (MOE_CHAINS * SIZE) };
    const int lane = threadIdx.x % 32, count = T == 1 ? 1 : list->count[at.entry];
    const bool whole = (a.steps - 1) * MOE_CHAINS + lane * 8 < a.p.cols; /* this lane has columns in the last step */
    uint32_t next[T];
    uint4 ahead[T]; /* of the next step */

    seek_x<DOWN, T, LOCAL>(a, list, at.entry, next);
#pragma unroll
    for (int t = 0; t < T; t++)
        if (whole || a.steps > 1)
            ahead[t] = x[next[t]];
    for (int left = a.steps; left > 0; left -= STEPS) {
        const char *const span = ring + *stage * STAGE(FORM, T);

        mma_copy_wait_for<STAGES(T) - 1>();
        __syncwarp(); /* the lanes' copies are visible to each other */
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            if (k < left) {
                const float *const scales = (const float *)(span + STREAMS(T) * SPAN) + 2 * k + lane / 16;
                const float scale[2] = {FORM == RIDGE_E4M3 ? scales[0] : 1.0f,
                                        FORM == RIDGE_E4M3 && !DOWN ? scales[SCALES] : 1.0f};
                uint4 now[T];

#pragma unroll
                for (int t = 0; t < T; t++) {
                    now[t] = ahead[t];
                    next[t] += MOE_CHAINS / 8;
                    if (left > k + 2 || (left > k + 1 && whole))
                        ahead[t] = x[next[t]];
                }
                if (whole || left > k + 1)
                    add_step<FORM, DOWN, T>(span + (k * MOE_CHAINS + lane * 8) * SIZE, now, scale, count, chain);
            }
        __syncwarp(); /* all lanes have read the stage before it is written again */
        copy_span<FORM, DOWN, T>(a, list, l, ptx_shared(span));
        *stage = *stage + 1 == STAGES(T) ? 0 : *stage + 1;
    }
}

/* Makes the list and requests what there is to request: the first span, x, then other spans. */
template <int FORM, int DOWN, int T, int LOCAL>
static __device__ __forceinline__ void begin(const floats_args &a, moe_list *list, const char *x, const char *ring,
                                             float_loader<DOWN> *l)
{
    for (bool early = DOWN && T == 1 && a.p.weights_const;; early = false) {
        if (!early) {
            ptx_grid_dependency_wait();
            if (LOCAL)
                copy_x<DOWN>(a, ptx_shared(x));
        }
        if (T == 1 && a.p.tokens == 1)
            moe_make_list_1(a.p, list);
        else
            moe_make_list(a.p, list, T);
        l->at.number = (int)threadIdx.x / 32;
        seek_item<FORM, DOWN, T>(a, list, l);
        copy_span<FORM, DOWN, T>(a, list, l, ptx_shared(ring));
        if (!early)
            break;
        ptx_grid_dependency_wait();
        if (moe_list_holds(a.p, list)) {
            if (LOCAL)
                copy_x<DOWN>(a, ptx_shared(x));
            break;
        }
        mma_copy_wait_for<0>(); /* what was copied is not wanted, and its stage is written again */
    }
    for (int i = 1; i < STAGES(T); i++)
        copy_span<FORM, DOWN, T>(a, list, l, ptx_shared(ring + i * STAGE(FORM, T)));
    if (DOWN)
        moe_keep_weights(a.p, list);
}

template <int FORM, int DOWN, int T, int LOCAL>
static __global__ void __launch_bounds__(32 * MOST_WARPS(LOCAL, T), 1) moe_floats(const __grid_constant__ floats_args a)
{
    enum { R = ROWS(DOWN, T) };
    extern __shared__ __align__(128) char memory[];
    moe_list *const list = (moe_list *)memory;
    const int pairs = a.p.tokens * a.p.slots;
    const int mine = DOWN ? (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x : 1; /* tiles */
    const char *const ring = memory + a.at_ring + threadIdx.x / 32 * (STAGES(T) * STAGE(FORM, T));
    const uint4 *const x = LOCAL ? (const uint4 *)(memory + a.at_x) : (const uint4 *)a.p.x;
    float_item at = {(int)threadIdx.x / 32};
    float_loader<DOWN> l;
    int stage = 0;

    begin<FORM, DOWN, T, LOCAL>(a, list, memory + a.at_x, ring, &l);
    ptx_launch_dependents(); /* behind the first copies, which it would delay */
    if (!DOWN)
        store_rest(a, list);
    if (LOCAL) {
        mma_copy_wait_for<STAGES(T) - 1>();
        __syncthreads(); /* x is there, of which every thread has copied some */
    }
    for (int first = 0; first < mine; first += DOWN ? a.batch : 1) {
        float *const results = (float *)(memory + sizeof *list) + (first / a.batch & 1) * a.batch * pairs * R;

        for (;
             find_item<DOWN>(a, list, &at) && (!DOWN || at.tile < (int)blockIdx.x + (first + a.batch) * (int)gridDim.x);
             at.number += (int)blockDim.x / 32) {
            const int tile = DOWN ? (at.tile - (int)blockIdx.x) / (int)gridDim.x - first : 0;
            float chain[VALUES][8] = {};

            add_item<FORM, DOWN, T, LOCAL>(a, list, at, &l, x, ring, &stage, chain);
            finish_item<DOWN, T>(a, list, at, results + tile * pairs * R, chain);
        }
        if (DOWN) {
            __syncthreads();
            store_sums<T>(a, list, first, min(a.batch, mine - first), results);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define ONE_AND_TWO(form, down, local) \
    (const void *)moe_floats<form, down, 1, local>, (const void *)moe_floats<form, down, 2, local>
#define FORMS(local)                                                                                             \
    {                                                                                                            \
        ONE_AND_TWO(RIDGE_BF16, 0, local), ONE_AND_TWO(RIDGE_BF16, 1, local), ONE_AND_TWO(RIDGE_E4M3, 0, local), \
            ONE_AND_TWO(RIDGE_E4M3, 1, local)                                                                    \
    }

/* By where x is, form, down, several tokens. */
static const void *const functions[2][8] = {FORMS(0), FORMS(1)};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 2 && !status; i++)
        status = host_prepare(device, functions[i], 8, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              host_max_shared(device), "moe: loading kernels");
    return status;
}

typedef struct float_plan {
    int local, warps, batch; /* tiles of down whose slots are added together: two items a warp at most */
    int64_t at_x, at_ring, bytes;
} float_plan;

/* Whether an entry has up to two pairs: of more pairs than experts. Of fewer, few share an expert, and those that do
 * find its weights in L2; an entry of one pair has twice as many rows an item. */
static bool in_pairs(const int64_t *dim)
{
    return dim[0] > 1 && dim[0] * dim[4] > dim[3];
}

/* With x in shared memory if that leaves room for the stages of all warps; else without; else with fewer warps. */
static float_plan plan(const ridge_device *device, bool down, const int64_t *dim)
{
    const int warps[] = {WARPS(1, 1), in_pairs(dim) ? WARPS(0, 2) : WARPS(0, 1), 8, 4};
    const int64_t pairs = dim[0] * dim[4], x = dim[0] * (down ? dim[4] : 1) * dim[1] * 2;
    float_plan p = {};

    p.batch = (int)ridge_max(1, 2 * WARPS(1, 1) / pairs);
    p.at_x = ridge_round_up(
        (int64_t)sizeof(moe_list) + (down ? 2 * p.batch * pairs * VALUES * (int64_t)sizeof(float) : 0), 128);
    for (int i = 0; i < 4; i++) {
        p.local = i == 0;
        p.warps = warps[i];
        p.at_ring = p.at_x + (p.local ? ridge_round_up(x, 128) : 0);
        /* two tokens: twice as many stages, with scales each */
        p.bytes = p.at_ring + (int64_t)p.warps * STAGES(2) * STAGE(RIDGE_E4M3, 2);
        if (p.bytes <= host_max_shared(device))
            return p;
    }
    p.bytes = INT64_MAX;
    return p;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const bool down = bound->call.op == RIDGE_MOE_DOWN;
    const float_plan f = plan(device, down, bound->call.dim);
    floats_args a = {};
    int64_t most;
    int several;

    a.p = moe_args_of(&bound->call);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    if (a.p.x_stride * a.p.tokens >> 34)
        return moe_launch_any(device, kernel, bound, workspace, bytes, stream);
    several = in_pairs(bound->call.dim);
    a.steps = (int)ridge_ceil_div(a.p.cols, MOE_CHAINS);
    a.tiles = (int)ridge_ceil_div(a.p.rows, VALUES / (down ? 1 : 2) / (several + 1));
    a.batch = f.batch;
    a.at_x = (uint32_t)f.at_x;
    a.at_ring = (uint32_t)f.at_ring;
    most = a.tiles * (down ? 1 : (int64_t)a.p.tokens * a.p.slots);
    return host_launch_shared(
        device, kernel->name, functions[f.local][(a.p.form == RIDGE_E4M3) * 4 + down * 2 + several],
        dim3((unsigned)ridge_min(most, device->units)), 32 * f.warps, (size_t)f.bytes, &a, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1], rows = problem->dim[2], pairs = problem->dim[0] * problem->dim[4];

    if (problem->dtype[2] != RIDGE_BF16 && problem->dtype[2] != RIDGE_E4M3)
        return "weights are not bf16 or e4m3";
    if (problem->dtype[0] != RIDGE_BF16)
        return "x is not bf16";
    if (problem->op == RIDGE_MOE_GATE_UP_SWIGLU && problem->dtype[RIDGE_MOE_GATE_UP_SWIGLU_OUT] == RIDGE_I8)
        return "out is codes";
    if (pairs == 0 || cols == 0)
        return "nothing to multiply";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (cols > 1 << 24 || rows > 1 << 20)
        return "more than 2^24 columns or 2^20 rows";
    return plan(device, problem->op == RIDGE_MOE_DOWN, problem->dim).bytes == INT64_MAX ? "shared memory is too small"
                                                                                        : NULL;
}

/* The weights of as many experts as the tokens are expected to name. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double pairs = (double)problem->dim[0] * (double)problem->dim[4], experts = (double)problem->dim[3];
    const double size = problem->dtype[2] == RIDGE_BF16 ? 2 : 1, products = problem->op == RIDGE_MOE_DOWN ? 1 : 2;

    return 3.5 + (double)problem->dim[1] * (double)problem->dim[2] * products * size *
                     (pairs < experts ? pairs : experts) * 1e-3 / device->copy_gbps;
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

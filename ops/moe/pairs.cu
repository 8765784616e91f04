/* pairs.cu: moe_gate_up_swiglu and moe_down with weights in bf16 or e4m3 and x in bf16, where pairs outnumber experts,
 * sm_90 up.
 *
 * An entry of the list (list.cuh) has up to MOST pairs, so that a weight is read and unpacked once for all of them. A
 * team of two warps computes an item: ROWS rows of a matrix times an entry's pairs, of gate_up first those of gate and
 * then those of up. Lane i of warp h has the chains 128 h + 4 i .. + 3 (products.h) of each: 32 results of a team with
 * four pairs, 128 chains of a lane. Each warp copies its own half of the columns into a ring of its own by cp.async,
 * `depth` stages ahead and from one item into the next.
 *
 * x of an entry's pairs lies in shared memory for all teams: read for each team, it would be as many bytes from L2 as
 * the weights are. There is room for `slots` entries; the warp that leaves one last asks for the x of the entry that
 * takes its place. (A warp more for that would leave fewer registers.) Items go in the order of the entries:
 *     gate_up  a CTA has a range of all items, which meets an entry or a few
 *     down     a CTA has `groups` groups of rows, of all entries; the results wait in shared memory, then all threads
 *              add the slots */
#include "args.cuh"
#include "chains.cuh"
#include "list.cuh"

enum { ROWS = 8, OWN = 4, HALF = MOE_CHAINS / 2, MOST_SLOTS = 16 };

typedef struct pairs_args {
    moe_args p;
    int groups, all; /* groups of ROWS rows that an entry has: for a CTA at a time (gate_up: all of them), in all */
    int rounds;      /* of down: a CTA's turns at `groups` groups */
    int depth, slots;
    uint32_t at_x, at_ring;
} pairs_args;

/* One kernel's sizes. A stage: [step][row][the warp's 128 columns], then the scales of each step. */
template <int FORM, int MOST> struct pairs_shape {
    static const int SIZE = FORM == RIDGE_BF16 ? 2 : 1;
    static const int STEPS = 4 / SIZE, COLUMNS = STEPS * MOE_CHAINS;
    static const int TEAMS = MOST == 4 ? 4 : 6, WARPS = 2 * TEAMS, THREADS = 32 * WARPS;
    static const int LINE = HALF * SIZE, COPIES = ROWS * LINE / 512; /* of a step: 512 bytes each */
    static const int CODES = STEPS * ROWS * LINE, STAGE = CODES + 16;
};

/* In shared memory behind the list. */
typedef struct pairs_shared {
    uint64_t full[MOST_SLOTS];   /* x has come */
    int left[MOST_SLOTS];        /* warps that have left it */
    float other[6][2][4 * ROWS]; /* sums of a team's second warp; two buffers */
} pairs_shared;

/* Items [first, last) of a CTA's round: number / wide is the entry, base + number % wide the group. */
typedef struct pairs_range {
    int first, last, wide, base;
} pairs_range;

/* An item: `number` of the range, group: of its entry, from base on. */
typedef struct pairs_item {
    int number, entry, group;
} pairs_item;

/* The stage that a warp copies next. */
template <class S> struct pairs_loader {
    pairs_range range;
    pairs_item at;
    int round, sub, left;        /* left: columns, 0: there is no item */
    const char *from[S::COPIES]; /* this lane's 16 bytes of each copy of a step */
    const float *scale;          /* of the first lanes: of a step */
};

#if __CUDA_ARCH__ >= 900
/* ------------------------------------------------------------------------------------------------------------ items */

template <int DOWN>
static __device__ __forceinline__ pairs_range find_range(const pairs_args &a, const moe_list *list, int round)
{
    const int cta = (int)blockIdx.x, ctas = (int)gridDim.x;
    pairs_range r;

    if (DOWN) {
        r.base = (round * ctas + cta) * a.groups;
        r.wide = max(min(a.groups, a.all - r.base), 0);
        r.first = 0;
        r.last = list->entries * r.wide;
    } else {
        const int64_t items = (int64_t)list->entries * a.groups;

        r.base = 0;
        r.wide = a.groups;
        r.first = (int)(items * cta / ctas);
        r.last = (int)(items * (cta + 1) / ctas);
    }
    return r;
}

static __device__ __forceinline__ void first_item(const pairs_range &r, int team, pairs_item *at)
{
    at->number = r.first + team;
    at->entry = r.wide ? at->number / r.wide : 0;
    at->group = at->number - at->entry * r.wide;
}

template <int TEAMS> static __device__ __forceinline__ void next_item(const pairs_range &r, pairs_item *at)
{
    at->number += TEAMS;
    at->group += TEAMS;
    for (; at->group >= r.wide && at->number < r.last; at->entry++)
        at->group -= r.wide;
}

/* Goes to the first stage of its item, or of the first in a later round. Beyond the last row it reads the last row. */
template <class S, int DOWN>
static __device__ __forceinline__ void seek(const pairs_args &a, const moe_list *list, pairs_loader<S> *l, int half,
                                            int lane)
{
    enum { LANES = S::LINE / 16 }; /* of a row */
    const moe_weight &w = a.p.weight[DOWN ? 0 : l->sub];
    const int cols = (int)a.p.cols;
    int row;
    int64_t expert;

    while (l->at.number >= l->range.last) {
        if (++l->round >= a.rounds) {
            l->left = 0;
            return;
        }
        l->range = find_range<DOWN>(a, list, l->round);
        first_item(l->range, (int)threadIdx.x / 64, &l->at);
    }
    row = (l->range.base + l->at.group) * ROWS;
    expert = list->expert[l->at.entry];
    l->left = cols;
#pragma unroll
    for (int i = 0; i < S::COPIES; i++)
        l->from[i] = w.data + expert * w.stride +
                     ((int64_t)min(row + i * (ROWS / S::COPIES) + lane / LANES, (int)a.p.rows - 1) * cols +
                      half * HALF + lane % LANES * (16 / S::SIZE)) *
                         S::SIZE;
    if (S::SIZE == 1)
        l->scale =
            (const float *)(w.scales + expert * w.scales_stride) + row / 128 * ((cols + 127) / 128) + lane * 2 + half;
}

/* Copies a stage and advances; nothing is read behind the last column. */
template <class S, int DOWN>
static __device__ __forceinline__ void copy_stage(const pairs_args &a, const moe_list *list, pairs_loader<S> *l,
                                                  uint32_t to, int half, int lane)
{
    if (l->left > 0) {
        const int own = half * HALF + lane % (S::LINE / 16) * (16 / S::SIZE);

        to += (uint32_t)lane * 16;
        if (l->left >= S::COLUMNS) {
#pragma unroll
            for (int s = 0; s < S::STEPS; s++)
#pragma unroll
                for (int i = 0; i < S::COPIES; i++)
                    mma_copy16(to + (uint32_t)(s * S::COPIES + i) * 512, l->from[i] + s * (MOE_CHAINS * S::SIZE), 16);
        } else {
#pragma unroll 1
            for (int s = 0; s < S::STEPS; s++)
#pragma unroll
                for (int i = 0; i < S::COPIES; i++)
                    mma_copy16(to + (uint32_t)(s * S::COPIES + i) * 512, l->from[i] + s * (MOE_CHAINS * S::SIZE),
                               own + s * MOE_CHAINS < l->left ? 16 : 0);
        }
        if (S::SIZE == 1) {
            if (lane < S::STEPS && half * HALF + lane * MOE_CHAINS < l->left)
                mma_copy4(to + (uint32_t)(S::CODES - lane * 12), l->scale, 4);
            l->scale += S::STEPS * 2;
        }
#pragma unroll
        for (int i = 0; i < S::COPIES; i++)
            l->from[i] += S::COLUMNS * S::SIZE;
        l->left -= S::COLUMNS;
        if (l->left <= 0) {
            if (DOWN || ++l->sub == 2) {
                l->sub = 0;
                next_item<S::TEAMS>(l->range, &l->at);
            }
            seek<S, DOWN>(a, list, l, half, lane);
        }
    }
    mma_copy_commit();
}

/* ---------------------------------------------------------------------------------------------------------------- x */

/* Which x of its CTA a warp is at, in the order of the items: number -1: before the first. */
typedef struct pairs_x {
    int number, slot, turn;
} pairs_x;

/* The x of a CTA: how many, and the first one's entry. */
template <int DOWN> static __device__ __forceinline__ int count_x(const pairs_args &a, const moe_list *list, int *first)
{
    const pairs_range r = find_range<DOWN>(a, list, 0);
    int count = 0;

    *first = DOWN ? 0 : r.first / r.wide;
    if (DOWN)
        for (int round = 0; round < a.rounds; round++)
            count += find_range<DOWN>(a, list, round).wide ? list->entries : 0;
    else if (r.first < r.last)
        count = (r.last - 1) / r.wide - *first + 1;
    return count;
}

/* By one thread: requests x of a number, if there is any. */
template <int DOWN, int MOST>
static __device__ __forceinline__ void ask_x(const pairs_args &a, const moe_list *list, pairs_shared *s, char *to,
                                             int number, int slot)
{
    const moe_args &p = a.p;
    const uint32_t bytes = (uint32_t)p.cols * 2, full = ptx_shared(&s->full[slot]);
    int entry, count, first;

    if (number >= count_x<DOWN>(a, list, &first))
        return;
    entry = (first + number) % list->entries;
    count = list->count[entry];
    ptx_mbarrier_expect(full, (uint32_t)count * bytes);
    for (int t = 0; t < count; t++) {
        const int pair = list->pair[entry][t], token = pair / p.slots;

        ptx_bulk_load(ptx_shared(to) + (uint32_t)(slot * MOST + t) * bytes,
                      p.x + (token * p.x_stride + (pair - token * p.slots) * p.x_slot) * 2, bytes, full);
    }
}

/* Goes on to a later x: waits for all on the way, so that a warp leaves none before it has come. */
template <int DOWN, int MOST, int WARPS>
static __device__ __forceinline__ void hold_x(const pairs_args &a, const moe_list *list, pairs_shared *s, char *to,
                                              pairs_x *x, int number)
{
    while (x->number < number) {
        if (x->number >= 0) {
            __syncwarp(); /* all lanes have read x before it is left */
            if (threadIdx.x % 32 == 0) {
                __threadfence_block();
                if (atomicAdd(&s->left[x->slot], 1) == WARPS - 1) {
                    s->left[x->slot] = 0;
                    ask_x<DOWN, MOST>(a, list, s, to, x->number + a.slots, x->slot);
                }
            }
            if (++x->slot == a.slots) {
                x->slot = 0;
                x->turn++;
            }
        }
        x->number++;
        ptx_mbarrier_wait(ptx_shared(&s->full[x->slot]), (uint32_t)x->turn & 1);
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* 256 columns, of which this lane has four; codes and x: of those. */
template <int FORM, int P>
static __device__ __forceinline__ void add_step(const char *codes, const char *x, int x_bytes, float scale,
                                                float (*chain)[P][OWN])
{
    enum { LINE = pairs_shape<FORM, P>::LINE };
    float v[P][OWN];

#pragma unroll
    for (int t = 0; t < P; t++) {
        const uint2 c = *(const uint2 *)(x + t * x_bytes);

        num_unpack2<RIDGE_BF16>(c.x, v[t], v[t] + 1);
        num_unpack2<RIDGE_BF16>(c.y, v[t] + 2, v[t] + 3);
        if (FORM == RIDGE_E4M3)
#pragma unroll
            for (int i = 0; i < OWN; i++)
                v[t][i] = __fmul_rn(v[t][i], scale);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float w[OWN];

        if (FORM == RIDGE_BF16) {
            const uint2 c = *(const uint2 *)(codes + r * LINE);

            num_unpack2<RIDGE_BF16>(c.x, w, w + 1);
            num_unpack2<RIDGE_BF16>(c.y, w + 2, w + 3);
        } else {
            moe_unpack_e4m3(*(const uint32_t *)(codes + r * LINE), w);
        }
#pragma unroll
        for (int t = 0; t < P; t++)
#pragma unroll
            for (int i = 0; i < OWN; i++)
                chain[r][t][i] = __fmaf_rn(w[i], v[t][i], chain[r][t][i]);
    }
}

/* A matrix's rows of an item: their products with P pairs, x: of this lane's columns. Lane i below ROWS * P of the
 * first warp has that of number moe_chain_index(i): row * P + pair. */
template <int FORM, int DOWN, int MOST, int P>
static __device__ __forceinline__ float add_rows(const pairs_args &a, const moe_list *list,
                                                 pairs_loader<pairs_shape<FORM, MOST>> *l, const char *x,
                                                 const char *ring, int *stage, int *buffer, float (*other)[4 * ROWS])
{
    typedef pairs_shape<FORM, MOST> S;
    const int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, cols = (int)a.p.cols;
    float chain[ROWS][P][OWN] = {}, *const c = &chain[0][0][0];
    float v[ROWS * P];

#pragma unroll 1
    for (int column = 0; column < cols; column += S::COLUMNS) {
        const char *const at = ring + *stage * S::STAGE, *const codes = at + lane * (OWN * S::SIZE);
        const float *const scale = (const float *)(at + S::CODES);

        moe_wait_stage(a.depth);
        __syncwarp(); /* the lanes' copies are visible to each other */
        if (column + S::COLUMNS <= cols) {
#pragma unroll
            for (int s = 0; s < S::STEPS; s++)
                add_step<FORM, P>(codes + s * (ROWS * S::LINE), x + s * (MOE_CHAINS * 2), cols * 2,
                                  S::SIZE == 1 ? scale[s] : 1.0f, chain);
        } else {
#pragma unroll 1
            for (int s = 0; s < S::STEPS; s++)
                if (column + s * MOE_CHAINS + half * HALF + lane * OWN < cols)
                    add_step<FORM, P>(codes + s * (ROWS * S::LINE), x + s * (MOE_CHAINS * 2), cols * 2,
                                      S::SIZE == 1 ? scale[s] : 1.0f, chain);
        }
        __syncwarp(); /* all lanes have read the stage before it is written again */
        copy_stage<S, DOWN>(a, list, l, ptx_shared(at), half, lane);
        x += S::COLUMNS * 2;
        *stage = *stage + 1 == a.depth ? 0 : *stage + 1;
    }
#pragma unroll
    for (int i = 0; i < ROWS * P; i++)
        v[i] = (c[OWN * i] + c[OWN * i + 1]) + (c[OWN * i + 2] + c[OWN * i + 3]);
    moe_add_lanes<ROWS * P>(v, lane);
    *buffer ^= 1;
    if (half == 1 && lane < ROWS * P)
        other[*buffer][lane] = v[0];
    ptx_barrier_sync(1 + (int)threadIdx.x / 64, 64); /* written before read; two buffers order the next */
    return half == 0 && lane < ROWS * P ? v[0] + other[*buffer][lane] : 0.0f;
}

/* An item. down: its results go to results[pair][row of the CTA]. */
template <int FORM, int DOWN, int MOST, int P>
static __device__ __forceinline__ void add_item(const pairs_args &a, const moe_list *list, int entry, int group,
                                                int base, pairs_loader<pairs_shape<FORM, MOST>> *l, const char *x,
                                                const char *ring, int *stage, int *buffer, pairs_shared *s,
                                                float *results)
{
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32, team = threadIdx.x / 64, number = moe_chain_index<ROWS * P>(lane);
    const int row = group * ROWS + number / P, t = number % P;
    const bool there = threadIdx.x % 64 < ROWS * P && threadIdx.x % 64 < 32 && row < p.rows && t < list->count[entry];
    const int pair = there ? list->pair[entry][t] : 0, expert = list->expert[entry];
    float gate = 0.0f;

#pragma unroll 1
    for (int sub = 0; sub < (DOWN ? 1 : 2); sub++) {
        float y = add_rows<FORM, DOWN, MOST, P>(a, list, l, x, ring, stage, buffer, s->other[team]);

        if (there)
            y = moe_bias(p.weight[DOWN ? 0 : sub], expert, row, y);
        if (DOWN && there)
            results[pair * (a.groups * ROWS) + row - base * ROWS] = y;
        if (!DOWN && sub == 1 && there) {
            const int token = pair / p.slots;

            moe_store(p, token * p.out_stride + (pair - token * p.slots) * p.rows + row,
                      moe_swiglu_inline(p.act, gate, y, p.swiglu));
        }
        gate = y;
    }
}

#endif

/* ----------------------------------------------------------------------------------------------------------- kernel */

template <int FORM, int DOWN, int MOST>
static __global__ void __launch_bounds__(pairs_shape<FORM, MOST>::THREADS, 1)
    moe_pairs(const __grid_constant__ pairs_args a)
{
#if __CUDA_ARCH__ >= 900
    typedef pairs_shape<FORM, MOST> S;
    extern __shared__ __align__(128) char memory[];
    moe_list *const list = (moe_list *)memory;
    pairs_shared *const s = (pairs_shared *)(list + 1);
    float *const results = (float *)(s + 1);
    char *const all = memory + a.at_x, *const ring = memory + a.at_ring + threadIdx.x / 32 * (a.depth * S::STAGE);
    const int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, team = threadIdx.x / 64;
    pairs_loader<S> l = {};
    pairs_x x = {-1};
    int stage = 0, buffer = 0, before; /* before: the first x's entry, less the x of earlier rounds */

    if (threadIdx.x < MOST_SLOTS) {
        s->left[threadIdx.x] = 0;
        ptx_mbarrier_init(ptx_shared(&s->full[threadIdx.x]), 1);
        ptx_mbarrier_fence_init();
    }
    ptx_grid_dependency_wait();
    moe_make_list(a.p, list, MOST); /* its barriers order the mbarriers' initialisation too */
    if ((int)threadIdx.x < a.slots)
        ask_x<DOWN, MOST>(a, list, s, all, (int)threadIdx.x, (int)threadIdx.x);
    l.range = find_range<DOWN>(a, list, 0);
    first_item(l.range, team, &l.at);
    seek<S, DOWN>(a, list, &l, half, lane);
#pragma unroll 1
    for (int i = 0; i < a.depth; i++)
        copy_stage<S, DOWN>(a, list, &l, ptx_shared(ring + i * S::STAGE), half, lane);
    ptx_launch_dependents(); /* behind the first copies, which it would delay */
    if (DOWN)
        moe_keep_weights(a.p, list);
    else
        moe_store_rest(a.p, list);
    count_x<DOWN>(a, list, &before);
    for (int round = 0; round < a.rounds; round++) {
        const pairs_range r = find_range<DOWN>(a, list, round);
        pairs_item at;

#pragma unroll 1
        for (first_item(r, team, &at); at.number < r.last; next_item<S::TEAMS>(r, &at)) {
            const int entry = at.entry, group = r.base + at.group, of = list->count[entry];
            const char *own;

            hold_x<DOWN, MOST, S::WARPS>(a, list, s, all, &x, entry - before);
            own = all + x.slot * (MOST * 2 * (int)a.p.cols) + (half * HALF + lane * OWN) * 2;
            if (MOST == 4 && of > 2)
                add_item<FORM, DOWN, MOST, MOST>(a, list, entry, group, r.base, &l, own, ring, &stage, &buffer, s,
                                                 results);
            else if (of == 2)
                add_item<FORM, DOWN, MOST, 2>(a, list, entry, group, r.base, &l, own, ring, &stage, &buffer, s,
                                              results);
            else
                add_item<FORM, DOWN, MOST, 1>(a, list, entry, group, r.base, &l, own, ring, &stage, &buffer, s,
                                              results);
        }
        if (r.first < r.last) { /* x of which this team has no item too */
            hold_x<DOWN, MOST, S::WARPS>(a, list, s, all, &x, (r.last - 1) / r.wide - before);
            before -= list->entries;
        }
        if (DOWN) {
            __syncthreads(); /* the results are written before they are read */
            moe_store_sums<ROWS>(a.p, a.groups, list, r.base, results);
            __syncthreads(); /* and read before they are written again */
        }
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define KERNEL(form, down, most)                                                           \
    {                                                                                      \
        (const void *)moe_pairs<form, down, most>, most, pairs_shape<form, most>::THREADS, \
            pairs_shape<form, most>::WARPS *pairs_shape<form, most>::STAGE                 \
    }

/* By form, down, pairs of an entry. */
static const struct pairs_kernel {
    const void *function;
    int most, threads, stage; /* stage: of all warps */
} kernels[2][2][2] = {
    {{KERNEL(RIDGE_BF16, 0, 2), KERNEL(RIDGE_BF16, 0, 4)}, {KERNEL(RIDGE_BF16, 1, 2), KERNEL(RIDGE_BF16, 1, 4)}},
    {{KERNEL(RIDGE_E4M3, 0, 2), KERNEL(RIDGE_E4M3, 0, 4)}, {KERNEL(RIDGE_E4M3, 1, 2), KERNEL(RIDGE_E4M3, 1, 4)}}};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 8 && !status; i++)
        status =
            host_prepare(device, &kernels[i / 4][i / 2 % 2][i % 2].function, 1,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device), "moe: loading kernels");
    return status;
}

/* Sets where things lie in shared memory, with as many entries of x and stages as fit; returns the bytes, or 0: nothing
 * fits. dim: of the call. */
static int64_t place(const ridge_device *device, const struct pairs_kernel *k, bool down, const int64_t *dim,
                     pairs_args *a)
{
    static const int depths[] = {4, 3, 2};
    const int64_t pairs = dim[0] * dim[4], units = device->units;
    const int64_t slot = k->most * 2 * dim[1], most = ridge_max(1, 65536 / (pairs * ROWS * 4));

    a->all = (int)ridge_ceil_div(dim[2], ROWS);
    a->rounds = down ? (int)ridge_ceil_div(a->all, units * most) : 1;
    a->groups = down ? (int)ridge_ceil_div(a->all, units * a->rounds) : a->all;
    a->at_x = (uint32_t)ridge_round_up(
        (int64_t)(sizeof(moe_list) + sizeof(pairs_shared)) + (down ? pairs * a->groups * ROWS * 4 : 0), 128);
    for (int d = 0; d < 3; d += 2)
        for (a->slots = down ? MOST_SLOTS : 2; a->slots; a->slots /= 2)
            for (int i = d; i < 3 && i < d + 2; i++) {
                const int64_t ring = a->at_x + ridge_round_up(slot * a->slots, 128);
                const int64_t bytes = ring + depths[i] * (int64_t)k->stage;

                a->at_ring = (uint32_t)ring;
                a->depth = depths[i];
                if (bytes <= host_max_shared(device))
                    return bytes;
            }
    return 0;
}

/* The kernel of a call, with four pairs an entry where experts have more than two in the mean. */
static const struct pairs_kernel *choose(const ridge_device *device, int form, bool down, const int64_t *dim,
                                         pairs_args *a, int64_t *bytes)
{
    for (int i = dim[0] * dim[4] > 2 * dim[3]; i >= 0; i--) {
        const struct pairs_kernel *const k = &kernels[form == RIDGE_E4M3][down][i];

        *bytes = place(device, k, down, dim, a);
        if (*bytes)
            return k;
    }
    return NULL;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const bool down = bound->call.op == RIDGE_MOE_DOWN;
    const int64_t *const dim = bound->call.dim;
    const struct pairs_kernel *k;
    pairs_args a = {};
    int64_t bytes, grid;

    a.p = moe_args_of(&bound->call);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    k = choose(device, a.p.form, down, dim, &a, &bytes);
    grid = down ? ridge_ceil_div(a.all, a.groups) : a.all * dim[0] * dim[4];
    return host_launch_shared(device, kernel->name, k->function, dim3((unsigned)ridge_min(grid, device->units)),
                              k->threads, (size_t)bytes, &a, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t *const dim = problem->dim;
    const char *why = moe_floats_why_not(problem);
    pairs_args a;
    int64_t bytes;

    if (why)
        return why;
    if (dim[2] == 0)
        return "nothing to multiply";
    return choose(device, (int)problem->dtype[2], problem->op == RIDGE_MOE_DOWN, dim, &a, &bytes)
               ? NULL
               : "shared memory is too small";
}

/* The weights of as many experts as the tokens are expected to name; with a pair an expert `floats` is better. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double pairs = (double)problem->dim[0] * (double)problem->dim[4], experts = (double)problem->dim[3];
    const double size = problem->dtype[2] == RIDGE_BF16 ? 2 : 1, products = problem->op == RIDGE_MOE_DOWN ? 1 : 2;

    return (pairs > experts ? 3 : 6) + (double)problem->dim[1] * (double)problem->dim[2] * products * size *
                                           (pairs < experts ? pairs : experts) * (pairs > experts ? 0.9 : 1.2) * 1e-3 /
                                           device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                         \
    {                                                                                                               \
        "cuda." op_name ".pairs", op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, launch                                                                                            \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_pairs = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

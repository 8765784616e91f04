/* decode_load_sm90.cuh: the first half of the device side of decode_sm90.cu, which says how it works: what
 * the host hands over, the rings, the two loading warps. */
#ifndef RIDGE_GEMM_FP8_STREAM_LOAD_CUH
#define RIDGE_GEMM_FP8_STREAM_LOAD_CUH

#include <stddef.h>

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "cuda/sm90/wgmma_narrow.cuh"

enum { ROWS = 64, BK = 128, GROUPS = 2, SPLIT_MOST = 8, QUAD = 4 /* blocks: k is split at multiples of these */ };
enum {
    CONSUMERS = 128 * GROUPS,
    THREADS = CONSUMERS + 64,
    SLICES = 2 /* of a warpgroup and pass */,
    SLOTS = GROUPS * SLICES,
    W_MOST = 12 /* stages of a warpgroup */
};
enum { HALF = 115712 /* bytes of shared memory that leave room for a second CTA */, FULL = 232448, PLACE = 1024 };
enum { SCALE_LAST = 0, SCALE_BLOCK };

/* Blocks of a stage at most, 4 or 2 of them: one instruction loads a slice's rows of all, as issuing one takes 100 to
 * 150 ns. */
enum { CHUNK_MOST = 4 };
/* Blocks that a warpgroup multiplies at a time; while they are under way it adds up those before. */
#define TOGETHER(n) ((n) >= 32 ? 1 : 2)
/* Blocks of the tokens' ring at most. A box of tokens arrives behind the weights that were asked for before it, so this
 * ring must reach as far along k as the weights', and a stage more. */
#define X_MOST(n) ((n) == 64 ? 16 : 40)

typedef struct stream_args {
    CUtensorMap w, x, tokens_scales, d;
    const float *scale_x, *scale_w;
    int64_t ld_x, ld_w; /* of the scale tables; 0: one scale for the tensor */
    char *out;
    const void *bias;
    int64_t stride;                        /* of D, elements */
    int m, n, blocks, slices, high, shift; /* k is split in 1 << shift */
    int chunk;                             /* blocks of a stage: 4 or 2 */
    int x_stages, w_stages;
    int ahead;              /* slices whose first stage is asked into L2 while the grid before ends */
    int beyond;             /* slices whose first stage behind the ring is */
    int boxes, sums, bytes; /* of shared memory: where the ring of weights and the partial sums begin, all */
    int box;                /* bytes of a slice's rows of one block */
    int lines;              /* the maps have lines of 128 bytes as their third dimension: whole stages an instruction */
    int scales_box;         /* bytes of a stage of the tokens' scales by block, which TMA brings; 0: it can not */
    int dtype, accumulate, bias_f32, settled;
    /* decode_tokens_sm90.cuh: */
    int rows;                         /* of a box of tokens, a multiple of 8 */
    int most, begins[SPLIT_MOST + 1]; /* rank r finishes units of 8 rows begins[r] to begins[r + 1] of a slice */
    /* units of 8 rows of a slice that each rank finishes and TMA stores, 0: it can not; where in shared memory, the
     * bits of an address that its place in the swizzle's pattern turns over */
    int leave_units, leave;
    uint32_t leave_mask;
    int whole; /* eight neighbours of D can be stored at a time: 16 bits, aligned, nothing added */
} stream_args;

/* The fixed part of shared memory; the rings of tokens and of weights and the sums come after it. */
template <int N> struct stream_memory {
    alignas(128) float scale_x[X_MOST(N)][N];
    float scale_w[X_MOST(N)][SLOTS][2]; /* by block: stage * chunk + block of the stage */
    uint64_t w_full[GROUPS * W_MOST], w_empty[GROUPS * W_MOST], x_full[X_MOST(N) / 2], x_empty[X_MOST(N) / 2];
    uint64_t sums_full[SLOTS], sums_free[SLOTS];
};

#define FIXED(n) (((int)sizeof(stream_memory<n>) + PLACE - 1) / PLACE * PLACE)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The address of shared memory, computed once: in a cluster each __cvta_generic_to_shared reads a special register. */
static __device__ __forceinline__ uint32_t stream_base(const void *shared)
{
    uint32_t base = ptx_shared(shared);

    asm volatile("" : "+r"(base));
    return base;
}

#define PLACE_OF(n, member) (uint32_t) offsetof(stream_memory<n>, member)

/* A place in a ring. */
typedef struct stream_ring {
    uint32_t stage, phase;
} stream_ring;

static __device__ __forceinline__ void stream_advance(stream_ring *r, uint32_t stages)
{
    if (++r->stage == stages) {
        r->stage = 0;
        r->phase ^= 1;
    }
}

/* What a CTA does: slices [first, last), blocks of k [begin, end). */
typedef struct stream_share {
    int rank, first, last, begin, end;
} stream_share;

static __device__ __forceinline__ stream_share stream_locate(const stream_args &p)
{
    const int cluster = (int)blockIdx.x >> p.shift, clusters = (int)gridDim.x >> p.shift;
    const int64_t quads = (p.blocks + QUAD - 1) / QUAD;
    stream_share a;

    a.rank = (int)blockIdx.x & ((1 << p.shift) - 1);
    a.first = (int)((int64_t)cluster * p.slices / clusters);
    a.last = (int)((int64_t)(cluster + 1) * p.slices / clusters);
    a.begin = (int)(a.rank * quads >> p.shift) * QUAD;
    a.end = min((int)((a.rank + 1) * quads >> p.shift) * QUAD, p.blocks);
    return a;
}

/* The first stage of the first slice, or of two of them (`ahead`; 0: none), on its way to L2 while the grid before
 * ends, which is right whatever that one writes: all writes meet in L2. More than one stage of a slice is slower. */
static __device__ __forceinline__ void stream_prefetch(const stream_args &p, const stream_share &a)
{
    for (int g = 0; g < p.ahead && p.lines && a.begin < a.end; g++)
        if (a.first + g < a.last)
            ptx_tma_prefetch_3d(&p.w, 0, (a.first + g) * p.high, a.begin);
}

/* One thread: the stages of weights, pass by pass: the first slice's, then the second's, ... A warpgroup has a ring of
 * its own: stages may be filled out of order, and one that does not wait for the other's could take an older phase of a
 * common barrier for the one it wants. With settled weights and many tokens the ring is full long before these have
 * come; then L2 is asked for a stage more. */
template <int N> static __device__ void stream_load_weights(const stream_args &p, stream_memory<N> *s, stream_share a)
{
    const uint64_t policy = ptx_policy_evict_first();
    const uint32_t w = ptx_shared(s) + (uint32_t)p.boxes, full = ptx_shared(s->w_full), empty = ptx_shared(s->w_empty);
    const uint32_t bytes = (uint32_t)(p.box * p.chunk), stages = (uint32_t)p.w_stages;
    stream_ring even = {0, 0}, odd = {0, 0};
    bool hold = !p.settled; /* until the grid before has ended */

    if (hold)
        stream_prefetch(p, a);
    for (int slice = a.first; slice < a.last; slice += SLOTS) {
        const int count = min((int)SLOTS, a.last - slice);

        for (int kb = a.begin; kb < a.end; kb += p.chunk)
            for (int g = 0; g < count; g++) {
                stream_ring r = g % 2 ? odd : even;
                const uint32_t stage = (g % 2 ? stages : 0) + r.stage, to = w + stage * bytes;
                const int row = (slice + g) * p.high;

                ptx_mbarrier_wait(empty + 8 * stage, r.phase ^ 1);
                ptx_mbarrier_expect(full + 8 * stage, bytes);
                if (hold) /* here: the instructions that load are there when it ends */
                    ptx_grid_wait();
                hold = false;
                if (p.lines)
                    ptx_tma_load_3d_policy(to, &p.w, 0, row, kb, full + 8 * stage, policy);
                else
                    for (int i = 0; i < p.chunk; i++)
                        ptx_tma_load_2d_policy(to + (uint32_t)(i * p.box), &p.w, (kb + i) * BK, row, full + 8 * stage,
                                               policy);
                if (g < p.beyond && kb == a.begin && slice == a.first && p.lines && kb + (int)stages * p.chunk < a.end)
                    ptx_tma_prefetch_3d(&p.w, 0, row, kb + (int)stages * p.chunk);
                stream_advance(&r, stages);
                if (g % 2)
                    odd = r;
                else
                    even = r;
            }
    }
}

/* The scales by block of a stage's tokens that TMA can not bring. Those of tokens that are not there stay rubbish. */
template <int N> static __device__ __forceinline__ void stream_load_scales(const stream_args &p, uint32_t to, int kb)
{
    for (int t = threadIdx.x % 32; t < p.chunk * N; t += 32)
        if (t % N < p.m)
            ptx_copy_async4(to + 4 * (uint32_t)t, p.scale_x + min(kb + t / N, p.blocks - 1) * p.ld_x + t % N);
}

/* One warp: the tokens and, by block, the scales: a slice may lie in two blocks of 128 rows. The tokens' scales that
 * do not depend on k come with the first stage, behind its tokens. */
template <int N, int MODE>
static __device__ void stream_load_tokens(const stream_args &p, stream_memory<N> *s, stream_share a)
{
    const int lane = threadIdx.x % 32, slot = lane % (2 * SLOTS);
    const uint32_t box = (uint32_t)((N == 64 ? p.rows : N) * BK);
    const uint32_t scales_box = MODE == SCALE_BLOCK ? (uint32_t)p.scales_box : 0;
    stream_ring r = {0, 0};
    bool hold = true; /* until the grid before has ended */

    for (int slice = a.first; slice < a.last; slice += SLOTS) {
        const int row = min((slice + slot / 2) * p.high + (slot & 1) * (p.high - 1), p.n - 1);

        for (int kb = a.begin; kb < a.end; kb += p.chunk) {
            const uint32_t full = ptx_shared(&s->x_full[r.stage]),
                           to = ptx_shared(s) + FIXED(N) + r.stage * (uint32_t)p.chunk * box;

            ptx_mbarrier_wait(ptx_shared(&s->x_empty[r.stage]), r.phase ^ 1);
            __syncwarp(); /* a lane that fell behind by two phases would wait for ever */
            if (lane == 0)
                ptx_mbarrier_expect(full, (uint32_t)p.chunk * box + scales_box);
            if (hold)
                ptx_grid_wait();
            if (lane == 0) {
                if (p.lines)
                    ptx_tma_load_3d(to, &p.x, 0, 0, kb, full);
                else
                    for (int i = 0; i < p.chunk; i++)
                        ptx_tma_load_2d(to + (uint32_t)i * box, &p.x, (kb + i) * BK, 0, full);
                if (MODE == SCALE_BLOCK && scales_box)
                    ptx_tma_load_2d(ptx_shared(s->scale_x[r.stage * p.chunk]), &p.tokens_scales, 0, kb, full);
            }
            if (MODE == SCALE_LAST && hold)
                for (int t = lane; t < N; t += 32)
                    ptx_copy_async4(ptx_shared(&s->scale_x[0][t]), p.scale_x + (p.ld_x ? min(t, p.m - 1) : 0));
            hold = false;
            if (MODE == SCALE_BLOCK) {
                if (!scales_box)
                    stream_load_scales<N>(p, ptx_shared(s->scale_x[r.stage * p.chunk]), kb);
                if (lane < p.chunk * SLOTS * 2)
                    ptx_copy_async4(ptx_shared(&s->scale_w[r.stage * p.chunk][0][0]) + 4 * (uint32_t)lane,
                                    p.scale_w + row / 128 * p.ld_w + min(kb + lane / (2 * SLOTS), p.blocks - 1));
            }
            ptx_copy_async_arrive(full);
            stream_advance(&r, (uint32_t)p.x_stages);
        }
    }
}

#endif

#endif

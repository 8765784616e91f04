/* copies.cuh: how weights in block formats come to shared memory, by cp.async or by bulk copies: which unit of which
 * tile a warp asks for next. */
#ifndef RIDGE_BLOCKS_COPIES_CUH
#define RIDGE_BLOCKS_COPIES_CUH

#include "args.cuh"
#include "cuda/mma.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

/* ----------------------------------------------------------------------------------------------------- bulk copies */

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000 /* beyond, Q4_1 spills, and none has been timed */
enum { BLOCK_HAS_BULK = 1 };
#else
enum { BLOCK_HAS_BULK = 0 };
#endif
#if !(__CUDA_ARCH__ >= 900) /* for kernels that are compiled without a body */
static __device__ __forceinline__ void ptx_mbarrier_init(uint32_t, uint32_t)
{
}
static __device__ __forceinline__ void ptx_mbarrier_fence_init(void)
{
}
static __device__ __forceinline__ void ptx_mbarrier_expect(uint32_t, uint32_t)
{
}
static __device__ __forceinline__ void ptx_mbarrier_wait(uint32_t, uint32_t)
{
}
static __device__ __forceinline__ void ptx_mbarrier_arrive(uint32_t)
{
}
static __device__ __forceinline__ void block_bulk(uint32_t, const void *, uint32_t, uint32_t)
{
}
static __device__ __forceinline__ bool ptx_elect(void)
{
    return false;
}
#else
/* A bulk copy of weights. A call reads them once, so that they leave L2 first: what the kernels between large ones
 * read, their code and arguments too, then stays there from layer to layer. */
static __device__ __forceinline__ void block_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    ptx_bulk_load_policy(to, from, bytes, bar, ptx_policy_evict_first());
}
#endif

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Formats whose instructions bound one token (APART) compute two tiles side by side: what is around a unit, and x, is
 * for both, and their instructions wait less for each other. Those of two bits (APART = 2), of which a stage of two
 * tiles is small, do so with several tokens too, where reads of shared memory bound them, most of them of x. */
#define BLOCK_SIDE(F, tokens, bulk) (((tokens) == 1 ? F::APART > 0 : (bulk) && F::APART == 2) ? 2 : 1)
/* Units of a tile in a stage. Of one token in some formats (TOGETHER) one warp of a team copies four units for four
 * warps, which lie together in memory; else each warp copies for itself. */
#define BLOCK_TOGETHER(F, tokens, bulk) ((bulk) && (tokens) == 1 && F::TOGETHER ? 4 : 1)
/* Bytes from stage to stage: bulk copies to multiples of 128 bytes are faster than to others. */
#define BLOCK_PITCH(unit) (((unit) + 127) / 128 * 128)

/* The next unit to copy, or two of as many tiles. Where `left` = `tail` it lacks its second run. */
typedef struct block_loader {
    int work, sub, left, tail;
    const uint8_t *from[2];
} block_loader;

static __device__ __forceinline__ const uint8_t *block_tile_at(const block_mma_args &a, int work, int sub)
{
    const bool second = a.gate_up ? sub : work >= a.tiles;
    const int tile = !a.gate_up && second ? work - a.tiles : work;

    return a.weight[second].tiles + tile * a.weight[second].stride;
}

/* How often a team goes through x for one piece of work. */
template <int SIDE> static __device__ __forceinline__ int block_passes(const block_mma_args &a)
{
    return 1 + (SIDE == 2 && a.each == 2 ? 0 : a.gate_up);
}

/* The second of two tiles may be missing: the first one is in its place, and the result is not stored. */
template <class F, int SIDE>
static __device__ __forceinline__ void block_seek(const block_mma_args &a, block_loader *l, int part)
{
    if (SIDE == 2 && a.each == 2) {
#pragma unroll
        for (int i = 0; i < SIDE; i++)
            l->from[i] =
                block_tile_at(a, a.gate_up ? l->work : min(2 * l->work + i, a.all - 1), i) + (int64_t)part * F::UNIT;
    } else {
        l->from[0] = block_tile_at(a, l->work, l->sub) + (int64_t)part * F::UNIT;
    }
}

/* Copies a unit into a stage. The last unit of a tile may lack its second run: the scales then come to lie where they
 * always do, and what the stage holds of the second run meets scales of zero. */
template <class F, int BULK>
static __device__ __forceinline__ void block_copy_unit(const uint8_t *from, bool tail, uint32_t stage, uint32_t bar,
                                                       int lane)
{
    const int codes = tail ? F::CODES / 2 : F::CODES, bytes = codes + F::UNIT - F::CODES;

    if constexpr (BULK) {
        if (ptx_elect()) {
            ptx_mbarrier_expect(bar, (uint32_t)bytes);
            block_bulk(stage, from, (uint32_t)(tail ? codes : F::UNIT), bar);
            if (tail)
                block_bulk(stage + F::CODES, from + codes, F::UNIT - F::CODES, bar);
        }
    } else {
#pragma unroll
        for (int i = 0; i < F::UNIT / 16; i += 32) {
            const int at = (i + lane) * 16;

            if (at < bytes)
                mma_copy16(stage + (uint32_t)(at < codes ? at : at + F::CODES - codes), from + at, 16);
        }
    }
}

/* The same of two tiles, by bulk copies, of which one thread is elected once. */
template <class F>
static __device__ __forceinline__ void block_copy_two(const uint8_t *const *from, bool tail, uint32_t stage,
                                                      uint32_t bar)
{
    const int codes = tail ? F::CODES / 2 : F::CODES, rest = F::UNIT - F::CODES;

    if (ptx_elect()) {
        ptx_mbarrier_expect(bar, (uint32_t)(2 * (codes + rest)));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            block_bulk(stage + i * BLOCK_PITCH(F::UNIT), from[i], (uint32_t)(tail ? codes : F::UNIT), bar);
            if (tail)
                block_bulk(stage + i * BLOCK_PITCH(F::UNIT) + F::CODES, from[i] + codes, rest, bar);
        }
    }
}

/* The same of up to four neighbouring units of a tile, or of two tiles, none of which lacks a run. */
template <class F, int SIDE>
static __device__ __forceinline__ void block_copy_units(const block_mma_args &a, const block_loader *l, uint32_t stage,
                                                        uint32_t bar)
{
    const uint32_t bytes = (uint32_t)(l->left == 1 ? (a.units - 1) % 4 + 1 : 4) * F::UNIT;
    const int tiles = SIDE == 2 ? a.each : 1;

    static_assert(!F::SMALL, "no last unit of one run");
    if (ptx_elect()) {
        ptx_mbarrier_expect(bar, (uint32_t)tiles * bytes);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
            if (i < tiles)
                block_bulk(stage + (uint32_t)(i * BLOCK_PITCH(4 * F::UNIT)), l->from[i], bytes, bar);
    }
}

/* Copies the next unit into a stage and advances; left = 0: there is none. */
template <class F, int SIDE, int BULK, int TOGETHER>
static __device__ __forceinline__ void block_copy(const block_mma_args &a, block_loader *l, uint32_t stage,
                                                  uint32_t bar, int part, int lane, int mine, int step)
{
    if (l->left) {
        const bool tail = F::SMALL && l->left == l->tail, two = SIDE == 2 && a.each == 2;

        if constexpr (TOGETHER > 1) {
            block_copy_units<F, SIDE>(a, l, stage, bar);
        } else if (BULK && two) {
            block_copy_two<F>(l->from, tail, stage, bar);
        } else {
            block_copy_unit<F, BULK>(l->from[0], tail, stage, bar, lane);
            if (two)
                block_copy_unit<F, 0>(l->from[1], tail, stage + BLOCK_PITCH(F::UNIT), bar, lane);
        }
        l->from[0] += 4 * F::UNIT;
        l->from[1] += 4 * F::UNIT;
        if (--l->left == 0) {
            l->sub ^= block_passes<SIDE>(a) - 1;
            l->work += l->sub ? 0 : step;
            if (l->work < a.work) {
                l->left = mine;
                block_seek<F, SIDE>(a, l, part);
            }
        }
    }
    if (!BULK)
        mma_copy_commit();
}

#endif

/* pipeline.cuh: a ring of stages in shared memory between a producer (TMA, or threads) and consumers (wgmma, or
 * threads), with two mbarriers a stage:
 *
 *     full[s]   completes when stage s has all its arrivals and bytes; orders the producer's writes before the
 *               consumers' reads
 *     empty[s]  completes when every consumer has released stage s; orders their reads before the next writes
 *
 *     producer                                          consumer
 *     pipeline_acquire(empty, at)  waits for empty[s]   pipeline_wait(full, at)       waits for full[s]
 *     pipeline_expect(full, at.stage, bytes)            ... reads stage s ...
 *     ... TMA into stage s, completing on full[s] ...   pipeline_release(empty, at.stage), or _cluster
 *     pipeline_advance(&at, stages)                     pipeline_advance(&at, stages)
 *
 * `full` and `empty` are the shared-memory addresses of full[0] and empty[0] (ptx_shared), which are 8 bytes a stage
 * apart; for pipeline_release_cluster `empty` is an address in another CTA, or in this one, from ptx_map. All state is
 * a pair of integers, so that a loop keeps it in registers. A side that knows how many stages it has passed need not
 * carry the pair: pipeline_at<STAGES>(n) computes it.
 *
 * The producer starts at PIPELINE_PRODUCER: with phase 1 its first wait for each stage returns at once, since the
 * phase before the first counts as complete. Consumers start at PIPELINE_CONSUMER. Where consumers of other CTAs
 * release stages of this one, the producer drains the pipeline before it exits: it acquires every stage once more,
 * since the CTA's shared memory must outlive the last of those arrivals. */
#ifndef RIDGE_PIPELINE_CUH
#define RIDGE_PIPELINE_CUH

#include "cuda/ptx/ptx.cuh"

/* A stage, and the parity of the phase to wait for. */
typedef struct pipeline_state {
    uint32_t stage, phase;
} pipeline_state;

#define PIPELINE_PRODUCER \
    {                     \
        0, 1              \
    }
#define PIPELINE_CONSUMER \
    {                     \
        0, 0              \
    }

#if __CUDA_ARCH__ >= 900

/* The consumer's state after n stages; the producer's has the other phase. */
template <uint32_t STAGES> static __device__ __forceinline__ pipeline_state pipeline_at(uint32_t n)
{
    return {n % STAGES, n / STAGES & 1};
}

template <uint32_t STAGES> static __device__ __forceinline__ pipeline_state pipeline_producer_at(uint32_t n)
{
    return {n % STAGES, (n / STAGES & 1) ^ 1};
}

static __device__ __forceinline__ void pipeline_advance(pipeline_state *at, uint32_t stages)
{
    at->stage = at->stage + 1 == stages ? 0 : at->stage + 1;
    at->phase ^= at->stage == 0;
}

/* By one thread, before ptx_mbarrier_fence_init and a barrier of the CTA or the cluster. Arrivals a phase: `producers`
 * on full, besides bytes; `consumers` on empty. */
static __device__ __forceinline__ void pipeline_init(uint32_t full, uint32_t empty, uint32_t stages, uint32_t producers,
                                                     uint32_t consumers)
{
    for (uint32_t i = 0; i < stages; i++) {
        ptx_mbarrier_init(full + i * 8, producers);
        ptx_mbarrier_init(empty + i * 8, consumers);
    }
}

/* Waits until every consumer has released the stage. */
static __device__ __forceinline__ void pipeline_acquire(uint32_t empty, pipeline_state at)
{
    ptx_mbarrier_wait(empty + at.stage * 8, at.phase);
}

/* One of full's arrivals, and the bytes that TMA will bring into the stage. */
static __device__ __forceinline__ void pipeline_expect(uint32_t full, uint32_t stage, uint32_t bytes)
{
    ptx_mbarrier_expect(full + stage * 8, bytes);
}

/* Waits until the stage has been filled. */
static __device__ __forceinline__ void pipeline_wait(uint32_t full, pipeline_state at)
{
    ptx_mbarrier_wait(full + at.stage * 8, at.phase);
}

/* One of empty's arrivals: this thread's reads of the stage are complete. One lane does it for a warp, after a
 * __syncwarp that orders the other lanes' reads before it. */
static __device__ __forceinline__ void pipeline_release(uint32_t empty, uint32_t stage)
{
    ptx_mbarrier_arrive(empty + stage * 8);
}

static __device__ __forceinline__ void pipeline_release_cluster(uint32_t empty, uint32_t stage)
{
    ptx_mbarrier_arrive_cluster(empty + stage * 8);
}

#endif

#endif

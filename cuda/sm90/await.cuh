/* await.cuh: what a warp has loaded from a stage of a ring must be there before it releases the stage.
 *
 * ptxas waits for no data of ld.shared and ldmatrix before an mbarrier's arrive, and the arrive overtakes them
 * where loads of another CTA from global memory fill the multiprocessor's queue. TMA or a bulk copy then writes over
 * what is still to be read: rows of output_b in a token of DeepSeek-V4-Flash, beside an hc_split that loads its matrix.
 * __syncwarp is no remedy, and racecheck does not see it. */
#ifndef RIDGE_AWAIT_CUH
#define RIDGE_AWAIT_CUH

#include <stdint.h>

/* 0, but not before N sums of what was loaded have been computed, eight in a row of which depend on one load: to be
 * added to the address of the mbarrier. none: 0, a kernel parameter, so that the compiler does not know it. */
template <int N> static __device__ __forceinline__ uint32_t pipeline_behind_sums(const float *sums, uint32_t none)
{
    uint32_t seen = 0;

#pragma unroll
    for (int i = 0; i < N; i += 8)
        seen ^= __float_as_uint(sums[i]);
    return seen & none;
}

#endif

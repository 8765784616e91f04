/* scales_1d1d_sm90.cuh: gemm_fp8 on Hopper where B has a scale for each row and 128 of k (ROW128): two operations an
 * element and block of k.
 *
 *     fin = fma(sB, rn(sA P_b), fin)
 *
 * Neither the tensor cores nor the FP32 pipes bound this loop: while wgmma run, other instructions that use registers
 * issue at about 0.37 a clock, whatever their pipe, and loads of scales from shared memory queue behind the operands of
 * wgmma. So the product with sA, which is in registers, comes first and gives sB time to arrive; it is made in place,
 * which frees registers for loads ahead; and sB lies as a lane needs it, 16 bytes a load. The product with sB first, or
 * more loads ahead of the wait, is slower: docs/measured.md. */
#ifndef RIDGE_GEMM_FP8_SCALES_1D1D_SM90_CUH
#define RIDGE_GEMM_FP8_SCALES_1D1D_SM90_CUH

#include "args_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Floats between the scales of two lanes: with this padding four loads of 16 bytes at once hit different banks. */
template <class T> static __device__ __forceinline__ int gemm_lane_pitch(void)
{
    return T::BLOCK_N / 4 + 4;
}

/* One warp: rearranges the scales of B of every stage, so that lane l of each four finds those of its columns, 8 j + 2
 * l and the next for all j, one after another. */
template <class T, int MODE> static __device__ void gemm_permute_scales_b(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    const int lane = threadIdx.x % 32, to = lane % 2 * 2 * gemm_lane_pitch<T>() + lane / 2 * 2;
    gemm_ring ring = {PIPELINE_CONSUMER, gemm_stages<T>(p)};
    /* Written before the barrier at the kernel's start. The slot is written again UNITS - 1 units later: by then the
     * producer has acquired stages that were released only after these threads had arrived at `ready`. */
    gemm_unit unit = s->unit[0];

    for (int number = 1; unit.end; number++) {
        for (int kb = unit.begin; kb < unit.end; kb++) {
            float *const lane_scales = s->scale_b_lanes[ring.at.stage] + to;

            ptx_mbarrier_wait(ptx_shared(&s->full[ring.at.stage]), ring.at.phase);
            if (lane < T::BLOCK_N / 4) {
                const float4 v = *(const float4 *)&s->scale_b[ring.at.stage][4 * lane];

                *(float2 *)lane_scales = make_float2(v.x, v.y);
                *(float2 *)(lane_scales + gemm_lane_pitch<T>()) = make_float2(v.z, v.w);
            }
            ptx_mbarrier_arrive(ptx_shared(&s->ready[ring.at.stage]));
            gemm_advance<T::STAGES>(&ring);
        }
        unit = s->unit[number % UNITS];
    }
}

/* acc *= scale, in its register. */
static __device__ __forceinline__ void gemm_scale_by(float *acc, float scale)
{
    asm("mul.rn.f32 %0, %0, %1;" : "+f"(*acc) : "f"(scale));
}

/* `first`: the scales of columns j = 0, read before the wait for the wgmma. */
template <int BLOCK_N>
static __device__ __forceinline__ void gemm_promote_1d1d(const gemm_scales &v, const float *lane_scales, float2 first,
                                                         float *acc, float *fin)
{
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++)
        gemm_scale_by(&acc[i], i & 2 ? v.lower : v.upper);
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++) {
        const float2 w = j ? *(const float2 *)(lane_scales + 2 * j) : first;

#pragma unroll
        for (int i = 0; i < 4; i++)
            fin[4 * j + i] = __fmaf_rn(i & 1 ? w.y : w.x, acc[4 * j + i], fin[4 * j + i]);
    }
}

#endif

#endif

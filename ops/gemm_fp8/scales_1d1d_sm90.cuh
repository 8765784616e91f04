/* scales_1d1d_sm90.cuh: gemm_fp8 on Hopper where B has a scale for each row and 128 of k (ROW128): two operations an
 * element and block of k. Included by kernel_sm90.cuh.
 *
 *     fin = fma(sB, rn(sA P_b), fin)
 *
 * What bounds this loop is neither the tensor cores nor the FP32 pipes: while matrix instructions run, others that use
 * registers issue at about 0.37 a clock, whatever their pipe, and scales come from shared memory behind the operands
 * of those instructions. So the product with sA, which is in registers, comes first and leaves time for sB to arrive;
 * it is made in place, so that registers are free for loads ahead; and sB lies as a lane wants it, 16 bytes a load.
 * The product with sB first, or more loads ahead of the wait, is slower: docs/measured.md. */

/* Floats between the scales of two lanes: four loads of 16 bytes at once fall into different banks. */
template <class T> static __device__ __forceinline__ int gemm_lane_pitch(void)
{
    return T::BN / 4 + 4;
}

/* One warp: the scales of B of every stage, for lanes 0 .. 3 of each four those of columns 8 j + 2 lane and the next,
 * all j. */
template <class T, int MODE> static __device__ void gemm_spread_scales(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    const int lane = threadIdx.x % 32, to = lane % 2 * 2 * gemm_lane_pitch<T>() + lane / 2 * 2;
    gemm_ring ring = {PIPELINE_CONSUMER, gemm_stages<T>(p)};
    /* There since the barrier at the beginning. Its place is used again PIECES - 1 pieces later: by then the ring has
     * waited for stages that come back only after these threads arrived at `ready`. */
    gemm_piece piece = s->piece[0];

    for (int number = 1; piece.end; number++) {
        for (int kb = piece.begin; kb < piece.end; kb++) {
            float *spread = s->spread[ring.at.stage] + to;

            ptx_mbarrier_wait(ptx_shared(&s->full[ring.at.stage]), ring.at.phase);
            if (lane < T::BN / 4) {
                const float4 v = *(const float4 *)&s->scale_b[ring.at.stage][4 * lane];

                *(float2 *)spread = make_float2(v.x, v.y);
                *(float2 *)(spread + gemm_lane_pitch<T>()) = make_float2(v.z, v.w);
            }
            ptx_mbarrier_arrive(ptx_shared(&s->ready[ring.at.stage]));
            gemm_advance<T::STAGES>(&ring);
        }
        piece = s->piece[number % PIECES];
    }
}

/* In place. */
static __device__ __forceinline__ void gemm_scale_by(float *acc, float scale)
{
    asm("mul.rn.f32 %0, %0, %1;" : "+f"(*acc) : "f"(scale));
}

/* `first`: the scales of columns j = 0, read before the matrix instructions are waited for. */
template <int BN>
static __device__ __forceinline__ void gemm_promote_column(const gemm_scales &v, const float *spread, float2 first,
                                                           float *acc, float *fin)
{
#pragma unroll
    for (int i = 0; i < BN / 2; i++)
        gemm_scale_by(&acc[i], i & 2 ? v.lower : v.upper);
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float2 w = j ? *(const float2 *)(spread + 2 * j) : first;

#pragma unroll
        for (int i = 0; i < 4; i++)
            fin[4 * j + i] = __fmaf_rn(i & 1 ? w.y : w.x, acc[4 * j + i], fin[4 * j + i]);
    }
}

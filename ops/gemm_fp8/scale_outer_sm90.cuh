/* scale_outer_sm90.cuh: gemm_fp8 on Hopper where B has a scale for each row and 128 of k, with the products of the
 * scales made by the tensor cores (T::FACTOR). Included by kernel_sm90.cuh.
 *
 *     fin = fma(S_b, P_b, fin),  S_b = sA sB to 2^-21
 *
 * One operation an element and block of k instead of two: a fifth matrix instruction, 64 x BN x 16 of bf16, makes the
 * outer product of the scales. Three warps, two where they do not come by TMA, cut each scale into three bf16, high +
 * middle + low, exactly but for subnormal parts; eight of the nine products (all but low low) are the eight elements of
 * a row of A's and of B's cuts. The instruction has 16: the same eight again, so that B's are of half the scale. An
 * infinite scale gives NaN (docs/numerics.md). */

/* Low words of the descriptors of this warpgroup's cuts of A and of those of B, in stage 0. */
typedef struct gemm_cuts {
    uint32_t a, b;
} gemm_cuts;

/* A row of cuts. A: h h m h l m m l, B: h m h l h m l m. */
static __device__ __forceinline__ uint4 gemm_cut_scale(float x, bool of_a)
{
    const float rest = x - __uint_as_float(__float_as_uint(x) & 0xffff0000u);
    const float low = rest - __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
    const uint32_t h = __float_as_uint(x), m = __float_as_uint(rest), l = __float_as_uint(low);

    if (of_a)
        return make_uint4(__byte_perm(h, h, 0x7632), __byte_perm(m, h, 0x7632), __byte_perm(l, m, 0x7632),
                          __byte_perm(m, l, 0x7632));
    return make_uint4(__byte_perm(h, m, 0x7632), __byte_perm(h, l, 0x7632), __byte_perm(h, m, 0x7632),
                      __byte_perm(l, m, 0x7632));
}

/* The last THREADS of the loading warpgroup: the cuts of every stage. */
template <class T, int MODE, int THREADS> static __device__ void gemm_cut_scales(gemm_memory<T, MODE> *s)
{
    const int thread = threadIdx.x - (128 - THREADS);
    gemm_ring ring = {};
    gemm_piece piece;

    /* The first pieces are there without it, but behind a wait ptxas keeps shared memory's address: else the loop reads
     * SR_CgaCtaId for every block (dW 1.5 to 3.4 % slower). */
    ptx_mbarrier_wait(ptx_shared(&s->full[0]), 0);
    piece = s->piece[0];
    for (int number = 1; piece.end; number++) {
        for (int kb = piece.begin; kb < piece.end; kb++) {
            ptx_mbarrier_wait(ptx_shared(&s->full[ring.at.stage]), ring.at.phase);
#pragma unroll
            for (int i = 0; i < T::BM / THREADS; i++) {
                const int row = thread + i * THREADS;

                *(uint4 *)&s->cut_a[ring.at.stage][row * 16] = gemm_cut_scale(s->scale_a[ring.at.stage][row], true);
            }
#pragma unroll
            for (int row = thread; row < T::BN; row += THREADS)
                *(uint4 *)&s->cut_b[ring.at.stage][row * 16] =
                    gemm_cut_scale(0.5f * s->scale_b[ring.at.stage][row], false);
            ptx_fence_async(); /* before the matrix instruction reads them */
            ptx_mbarrier_arrive(ptx_shared(&s->ready[ring.at.stage]));
            gemm_advance<T::STAGES>(&ring);
        }
        piece = s->piece[number % PIECES];
    }
}

/* One block of k. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_block_factor(gemm_memory<T, MODE> *s, const gemm_places &at,
                                                         const gemm_cuts &cuts, gemm_ring *ring, float *fin)
{
    const uint32_t stage = ring->at.stage, a = at.a + stage * (T::BM * BK / 16), b = at.b + stage * (T::BN * BK / 16);
    float acc[T::BN / 2], factor[T::BN / 2];

    pipeline_wait(at.ready, ring->at); /* who arrived there had waited for the codes */
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        gemm_wgmma<T::BN, FORMATS>(acc, wgmma_descriptor_of(a + 2 * k), wgmma_descriptor_of(b + 2 * k), k > 0);
    wgmma_bf16_96(factor, wgmma_descriptor_rows16(cuts.a + stage * T::BM),
                  wgmma_descriptor_rows16(cuts.b + stage * T::BN));
    wgmma_commit();
    wgmma_wait();
    if (threadIdx.x % 32 < T::CM + T::CN - 1)
        pipeline_release_cluster(at.empty, stage);
#pragma unroll
    for (int i = 0; i < T::BN / 2; i++)
        fin[i] = __fmaf_rn(factor[i], acc[i], fin[i]);
    gemm_advance<T::STAGES>(ring);
}

/* The blocks of a piece into fin. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_multiply_factor(gemm_memory<T, MODE> *s, const gemm_places &at,
                                                            const gemm_cuts &cuts, gemm_ring *ring,
                                                            const gemm_piece &piece, float *fin)
{
#pragma unroll 1
    for (int kb = piece.begin; kb < piece.end; kb++)
        gemm_block_factor<T, MODE, FORMATS>(s, at, cuts, ring, fin);
}

/* Sets the flag of a head that this warpgroup has left: all warps that could wait for it cut scales. */
template <class T> static __device__ __forceinline__ void gemm_publish_own(const gemm_args &p, int group)
{
    __threadfence();
    ptx_barrier_sync(1 + T::WGS + group, 128);
    if (threadIdx.x % 128 == 0)
        ptx_store_release(&p.flag[gemm_slot<T>((int)blockIdx.x, group)], p.nonce);
}

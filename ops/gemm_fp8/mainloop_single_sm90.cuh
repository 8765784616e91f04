/* mainloop_single_sm90.cuh: the loop over k of gemm_fp8 on Hopper for tiles with one multiplying warpgroup, which has
 * nobody to promote while its matrix instructions run: it has two blocks under way. Included by kernel_sm90.cuh. */

/* The matrix instructions of one block of k, and what promotes them. */
typedef struct gemm_flight {
    uint32_t stage;
    gemm_scales v;
} gemm_flight;

template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ gemm_flight gemm_issue(const gemm_memory<T, MODE> *s, const gemm_places &at,
                                                         gemm_ring *ring, float *acc)
{
    const uint32_t stage = ring->at.stage, a = at.a + stage * at.step, b = at.b + stage * (T::BN * BK / 16);
    gemm_flight f = {stage, {}};

    pipeline_wait(at.full, ring->at);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        gemm_wgmma<T::BN, FORMATS>(acc, wgmma_descriptor_of(a + 2 * k), wgmma_descriptor_of(b + 2 * k), k > 0);
    wgmma_commit();
    if (MODE == SCALE_BLOCK) {
        const float column = s->scale_b[stage][0];

        f.v.upper = s->scale_a[stage][at.row + ring->late] * column;
        f.v.lower = s->scale_a[stage][at.row + ring->late + 8] * column;
    }
    ring->late = (ring->late + at.shift) & 3;
    gemm_advance<T::STAGES>(ring);
    return f;
}

/* After the wait: the stage goes back, then the promotion. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_land(const gemm_places &at, const gemm_flight &f, float *acc, float *fin)
{
    wgmma_pin<T::BN / 2>(acc); /* no use before the wait */
    __syncwarp();              /* the warp has read its scales */
    if (threadIdx.x % 32 < T::CM + T::CN - 1)
        pipeline_release_cluster(at.empty, f.stage);
    if (MODE == SCALE_BLOCK)
        gemm_promote_block<T::BN>(f.v, f.v, 128, acc, fin);
    else
#pragma unroll
        for (int i = 0; i < T::BN / 2; i++)
            fin[i] += acc[i];
}

/* The blocks of a piece into fin by a warpgroup that is alone: while it promotes one, the matrix instructions of the
 * next run. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_multiply_two(gemm_memory<T, MODE> *s, const gemm_places &at,
                                                         gemm_ring *ring, const gemm_piece &piece, float *fin)
{
    float even[T::BN / 2], odd[T::BN / 2];
    gemm_flight first, second;
    int left = piece.end - piece.begin - 1;

    ring->late = at.from;
    first = gemm_issue<T, MODE, FORMATS>(s, at, ring, even);
#pragma unroll 1
    for (; left >= 2; left -= 2) {
        second = gemm_issue<T, MODE, FORMATS>(s, at, ring, odd);
        wgmma_wait_before();
        gemm_land<T, MODE>(at, first, even, fin);
        first = gemm_issue<T, MODE, FORMATS>(s, at, ring, even);
        wgmma_wait_before();
        gemm_land<T, MODE>(at, second, odd, fin);
    }
    if (left) {
        second = gemm_issue<T, MODE, FORMATS>(s, at, ring, odd);
        wgmma_wait_before();
        gemm_land<T, MODE>(at, first, even, fin);
        wgmma_wait();
        gemm_land<T, MODE>(at, second, odd, fin);
    } else {
        wgmma_wait();
        gemm_land<T, MODE>(at, first, even, fin);
    }
}

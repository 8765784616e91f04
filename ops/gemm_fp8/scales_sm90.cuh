/* scales_sm90.cuh: the warps of gemm_fp8 on Hopper that bring scales: those that TMA cannot, and those of B that
 * are BLK128. Included by kernel_sm90.cuh. */

/* One warp, where TMA cannot: the scales of every stage that pass through shared memory. As few instructions as can be:
 * while matrix instructions run, all others issue at a third of the clock. */
template <class T, int MODE> static __device__ void gemm_load_scales(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    enum { A = T::BM / 32, B = MODE == SCALE_COLUMN ? T::BN / 32 : 0 };
    const int64_t step = p.block_a ? 1 : p.ld_a;
    const int lane = threadIdx.x % 32;
    gemm_ring ring = {PIPELINE_PRODUCER, gemm_stages<T>(p)};
    gemm_piece piece;

    ptx_grid_wait();
    for (int number = 0; piece = gemm_piece_at<T>(p, number), piece.end; number++) {
        const float *from[A + B]; /* of this lane, block after block */

#pragma unroll
        for (int i = 0; i < A + B; i++) {
            const int row = min(piece.row + lane + 32 * i, p.m - 1),
                      col = min(piece.col + lane + 32 * (i - A), p.n - 1);

            from[i] = i >= A ? p.scale_b + col : p.scale_a + (p.block_a ? row / 128 * p.ld_a : row);
            from[i] += piece.begin * (i < A ? step : p.ld_b);
        }
#pragma unroll 1
        for (int kb = piece.begin; kb < piece.end; kb++) {
            ptx_mbarrier_wait(ptx_shared(&s->empty[ring.at.stage]), ring.at.phase);
#pragma unroll
            for (int i = 0; i < A + B; i++) {
                ptx_copy_async4(i < A ? ptx_shared(&s->scale_a[ring.at.stage][lane + 32 * i])
                                      : ptx_shared(&s->scale_b[ring.at.stage][lane + 32 * (i - A)]),
                                from[i]);
                from[i] += i < A ? step : p.ld_b;
            }
            ptx_copy_async_arrive(ptx_shared(&s->full[ring.at.stage]));
            gemm_advance<T::STAGES>(&ring);
        }
    }
}

/* BLK128: the scales of B of CHUNK blocks of k, one a lane; with TWO the upper lanes have those of the last columns. */
template <int BN> static __device__ __forceinline__ float gemm_read_chunk(const gemm_args &p, int col, int kb)
{
    const int lane = (int)threadIdx.x % 32;

    if (gemm_span<BN>::TWO && lane >= 16)
        col += BN - 1;
    return p.scale_b[min(col, p.n - 1) / 128 * p.ld_b + min(kb + lane % gemm_span<BN>::CHUNK, p.blocks - 1)];
}

/* BLK128, one warp: the scales of B of every stage. It reads many at a time and ahead, in the piece after this one too:
 * the multiplying warps would wait for that at a tile's end. */
template <class T> static __device__ void gemm_load_column(const gemm_args &p, gemm_memory<T, SCALE_BLOCK> *s)
{
    enum { MEETS = T::WGS == 3 && !T::FEW }; /* the tiles that share items */
    enum { TWO = gemm_span<T::BN>::TWO, CHUNK = gemm_span<T::BN>::CHUNK };
    gemm_piece piece = s->piece[0], after = {};
    gemm_ring ring = {PIPELINE_PRODUCER, gemm_stages<T>(p)};
    float next;

    ptx_grid_wait();
    next = gemm_read_chunk<T::BN>(p, piece.col, piece.begin);
    for (int number = 1; piece.end; number++, piece = after)
        for (int kb = piece.begin; kb < piece.end; kb += CHUNK) {
            const float now = next;
            const int count = min((int)CHUNK, piece.end - kb);

            if (MEETS && kb == 0)
                gemm_meet<T>(p, number - 1);
            for (int i = 0; i < count; i++) {
                const uint32_t full = ptx_shared(&s->full[ring.at.stage]);
                const float scale = __shfl_sync(~0u, now, i);
                const float last = TWO ? __shfl_sync(~0u, now, i + CHUNK) : 0.0f;

                ptx_mbarrier_wait(ptx_shared(&s->empty[ring.at.stage]), ring.at.phase);
                __syncwarp(); /* all have seen this phase before lane 0's arrival lets the next one end */
                if (threadIdx.x % 32 == 0) {
                    s->scale_b[ring.at.stage][0] = scale;
                    if (TWO)
                        s->scale_b[ring.at.stage][TWO] = last;
                    ptx_mbarrier_arrive(full);
                }
                if (i == 0 && kb + CHUNK < piece.end) {
                    next = gemm_read_chunk<T::BN>(p, piece.col, kb + CHUNK);
                } else if (i == 0) {
                    ptx_mbarrier_wait(full, ring.at.phase ^ 1); /* the next piece is there */
                    after = s->piece[number % PIECES];
                    next = gemm_read_chunk<T::BN>(p, after.col, after.begin);
                }
                gemm_advance<T::STAGES>(&ring);
            }
        }
    if (MEETS && p.every && threadIdx.x % 32 == 0 && ptx_cluster_rank() == 0)
        p.progress[blockIdx.x / (T::CM * T::CN)] = 0; /* a graph launches this again with the same nonce */
}

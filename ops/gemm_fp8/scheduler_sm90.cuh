/* scheduler_sm90.cuh: which blocks of k of which items a cluster does. Included by kernel_sm90.cuh.
 *
 * An item is the tiles of one cluster over all of k. Without `partial` cluster c of C does items c, c + C, ... and in
 * the last round some idle. With it the last C to 2 C items, laid end to end, are cut into C equal pieces: a piece is a
 * head (the first blocks of an item), perhaps a whole item, and a tail (the last blocks of another). Two clusters share
 * an item: the one with its head does that first and leaves `fin` in `partial`; the one with its tail, the next
 * cluster, does that last and goes on from there. So nobody waits for long, and every element is summed in the order of
 * k whatever the cuts are: the same bits. The items before these are done first, while all clusters are at the same
 * block of k and find each other's loads in L2. Clusters begin in order, as blocks are dispatched, so that the cluster
 * whose head is waited for runs. A flag that holds the launch's nonce says that a head is there; its reader clears it.
 */

/* The first row and column of this CTA's tile of an item: bundles of GROUP_ROWS rows of items, columns within, so that
 * what runs at once shares L2. The last rows' tile begins earlier where it would reach beyond A, since TMA takes its
 * time over rows outside: some rows are computed twice, in the same order of sums, and the same bits written twice. */
template <class T> static __device__ __forceinline__ void gemm_locate(const gemm_args &p, int item, int *row, int *col)
{
    const int bundle = item / (GROUP_ROWS * p.items_n), place = item % (GROUP_ROWS * p.items_n);
    const int down = min((int)GROUP_ROWS, p.items_m - bundle * GROUP_ROWS), rank = (int)ptx_cluster_rank();

    *row = min(((bundle * GROUP_ROWS + place % down) * T::CM + rank % T::CM) * gemm_high<T>(p), p.last);
    *col = (place / down * T::CN + rank / T::CM) * T::BN;
}

/* Piece `number` of this CTA, in this order: items c, c + C, .. below `plain`, the head, whole shared items, the tail.
 */
template <class T> static __device__ __forceinline__ gemm_piece gemm_piece_at(const gemm_args &p, int number)
{
    enum { SHARES = T::CM * T::CN > 1 };
    const int clusters = (int)gridDim.x / (T::CM * T::CN), c = (int)blockIdx.x / (T::CM * T::CN);
    const gemm_cut from = p.cut[SHARES ? c : 0], to = p.cut[SHARES ? c + 1 : 0];
    const int tail = from.block, head = to.block, own = from.item + (tail > 0), own_end = to.item;
    const int rounds = (p.plain - c + clusters - 1) / clusters, shared = number - rounds - (head > 0);
    gemm_piece piece = {0, 0, 0, p.blocks};

    if (number < rounds) {
        gemm_locate<T>(p, c + number * clusters, &piece.row, &piece.col);
    } else if (shared < 0) {
        piece.end = head;
        gemm_locate<T>(p, p.plain + own_end, &piece.row, &piece.col);
    } else if (shared < own_end - own) {
        gemm_locate<T>(p, p.plain + own + shared, &piece.row, &piece.col);
    } else if (tail && shared == own_end - own) {
        piece.begin = tail;
        gemm_locate<T>(p, p.plain + own - 1, &piece.row, &piece.col);
    } else {
        piece.end = 0;
    }
    return piece;
}

/* One warp, when the cluster begins plain item `round`: now and then clusters wait for each other. When they are far
 * apart in k they do not find each other's loads in L2: at 16384 x 16384 x 106496 that read three times as much of
 * DRAM. Only for a while: the others need not be running. */
template <class T> static __device__ void gemm_meet(const gemm_args &p, int round)
{
    const int clusters = (int)gridDim.x / (T::CM * T::CN), lane = (int)threadIdx.x % 32;
    const uint64_t tag = p.nonce & ~UINT64_C(0xffffff), here = tag | (uint64_t)round;

    if (!p.every || round == 0 || round % p.every || round >= p.plain / clusters)
        return;
    if (lane == 0 && ptx_cluster_rank() == 0)
        *(volatile uint64_t *)&p.progress[blockIdx.x / (T::CM * T::CN)] = here;
    for (int i = 0; i < 32; i++) {
        bool late = false;

        for (int c = lane; c < clusters; c += 32) {
            const uint64_t there = *(volatile uint64_t *)&p.progress[c];

            late |= there < here || (there ^ tag) >> 24;
        }
        if (!__any_sync(~0u, late))
            return;
        __nanosleep(200);
    }
}

/* The place of what a warpgroup of a CTA left. */
template <class T> static __device__ __forceinline__ int64_t gemm_slot(int block, int group)
{
    return (int64_t)block * T::WGS + group;
}

/* fin of a head, for the next cluster. Neighbours are swapped: four floats of a load lie in registers from a multiple
 * of 4 on, like the accumulators, and an fma whose accumulator and fin are both even or both odd takes longer. The
 * warpgroup does not wait for its stores: gemm_publish does. */
template <class T>
static __device__ __forceinline__ void gemm_suspend(const gemm_args &p, uint64_t *left, int group, const float *fin)
{
    const int64_t slot = gemm_slot<T>((int)blockIdx.x, group);
    float4 *to = (float4 *)p.partial + slot * (T::SLICES * T::BN / 8 * 128) + threadIdx.x % 128;

#pragma unroll
    for (int i = 0; i < T::SLICES * T::BN / 8; i++)
        to[i * 128] = make_float4(fin[4 * i + 1], fin[4 * i], fin[4 * i + 3], fin[4 * i + 2]);
    ptx_mbarrier_arrive(ptx_shared(left)); /* orders them before the flag */
}

/* One thread: sets the flags of this CTA's head, if it has one, as the warpgroups leave it. */
template <class T> static __device__ void gemm_publish(const gemm_args &p, uint64_t *left)
{
    const uint32_t cluster = blockIdx.x / (T::CM * T::CN);

    if (!p.partial || p.cut[cluster + 1].block == 0)
        return;
    for (int group = 0; group < T::WGS; group++) {
        ptx_mbarrier_wait(ptx_shared(&left[group]), 0);
        __threadfence();
        ptx_store_release(&p.flag[gemm_slot<T>((int)blockIdx.x, group)], p.nonce);
    }
}

/* fin at the beginning of a piece: zero, or what the cluster before left. */
template <class T>
static __device__ __forceinline__ void gemm_resume(const gemm_args &p, int begin, int group, float *fin)
{
    const int64_t slot = gemm_slot<T>((int)blockIdx.x - T::CM * T::CN, group);
    const float4 *from = (const float4 *)p.partial + slot * (T::SLICES * T::BN / 8 * 128) + threadIdx.x % 128;

    if (begin == 0) {
#pragma unroll
        for (int i = 0; i < T::SLICES * T::BN / 2; i++)
            fin[i] = 0.0f;
        return;
    }
    if (threadIdx.x % 128 == 0) {
        while (ptx_load_acquire(&p.flag[slot]) != p.nonce)
            ;
        *(volatile uint64_t *)&p.flag[slot] = 0; /* nobody reads it before the kernel's end: no fence */
    }
    ptx_barrier_sync(1 + T::WGS + group, 128); /* the flag was seen before anybody reads */
#pragma unroll
    for (int i = 0; i < T::SLICES * T::BN / 8; i++) {
        const float4 v = from[i * 128];

        fin[4 * i + 1] = v.x;
        fin[4 * i] = v.y;
        fin[4 * i + 3] = v.z;
        fin[4 * i + 2] = v.w;
    }
}

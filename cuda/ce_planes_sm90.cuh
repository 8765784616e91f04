/* ce_planes_sm90.cuh: the end of a tile of dW in ce_gradients_sm90.cu where dW is of 16 bits and added to, or its f32
 * sum lies in two planes (ce_sm90.cuh): what there is is loaded, the tile added, and the sum stored in planes or
 * rounded. */
#ifndef RIDGE_CE_PLANES_SM90_CUH
#define RIDGE_CE_PLANES_SM90_CUH

#include "ce_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A thread's part of a warp's 16 x 256 elements of a 16-bit dW: eight of every fourth row, and again 64 columns on. */
typedef struct dw_part {
    uint16_t *high, *low;
    int64_t high_step, low_step; /* four rows */
    int rows, cols;              /* that there are from the first element on */
} dw_part;

static __device__ __forceinline__ dw_part part_of_dw(const ce_gradients &a, const gemm16_work &w, int first_row,
                                                     int first_col)
{
    const int row = first_row + threadIdx.x % 32 / 8, col = first_col + threadIdx.x % 8 * 8;
    const ce_planes &d = a.dw_at;

    return {d.high + row * d.high_ld + col,
            d.low + row * d.low_ld + col,
            4 * d.high_ld,
            4 * d.low_ld,
            w.m - row,
            w.n - col};
}

/* Eight elements of dW in the planes of its sum, or as they are (then `low` is none). */
typedef struct dw_old {
    uint4 high, low;
} dw_old;

static __device__ __forceinline__ void load_old(const dw_part &d, int before, int k, int q, dw_old *old)
{
    if (before == CE_DW_NOTHING || d.rows <= 4 * k || d.cols <= 64 * q)
        return;
    old->high = *(const uint4 *)(d.high + k * d.high_step + 64 * q);
    if (before == CE_DW_PLANES)
        old->low = *(const uint4 *)(d.low + k * d.low_step + 64 * q);
}

/* Before a tile's product: of the planes the first quarter is loaded, the others are brought to L2. */
static __device__ __forceinline__ void ask_old(const ce_gradients &a, const gemm16_work &w, int first_row,
                                               int first_col, dw_old *old)
{
    const dw_part d = part_of_dw(a, w, first_row, first_col);

    if (a.before != CE_DW_PLANES)
        return;
#pragma unroll
    for (int k = 0; k < 4; k++)
        load_old(d, CE_DW_PLANES, k, 0, &old[k]);
#pragma unroll
    for (int k = 0; k < 4; k++) { /* of eight threads of a row one for each line of each plane */
        const int q = 1 + threadIdx.x % 8 / 2;

        if (q < G16_N / 64 && d.rows > 4 * k && d.cols > 64 * q)
            ptx_prefetch_l2(threadIdx.x % 2 ? d.low + k * d.low_step + 64 * q : d.high + k * d.high_step + 64 * q);
    }
}

/* The tile's v, added to what there is: to the planes, or rounded. */
template <int BF16, int BEFORE, int AFTER>
static __device__ __forceinline__ void put_sum(const dw_part &d, int k, int q, const dw_old &old, float *v)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    const bool there = d.rows > 4 * k && d.cols > 64 * q;
    uint4 high, low;
    float sum[8];

    if (BEFORE == CE_DW_PLANES)
        ce_join(old.high, old.low, sum);
    else if (BEFORE == CE_DW_ITSELF)
        num_unpack<dtype>(old.high, sum);
#pragma unroll
    for (int e = 0; e < 8 && BEFORE != CE_DW_NOTHING; e++)
        v[e] += sum[e];
    if (AFTER == CE_DW_PLANES) {
        ce_split(v, &high, &low);
        if (there)
            *(uint4 *)(d.low + k * d.low_step + 64 * q) = low;
    } else {
        high = num_pack<dtype>(v);
    }
    if (there)
        *(uint4 *)(d.high + k * d.high_step + 64 * q) = high;
}

/* A warp's 16 x 256 of a 16-bit dW that is added to, or whose sum is not complete: 64 columns at a time, turned in
 * shared memory so that whole lines are read and written. There four floats, number c of a row, lie at c / 2 (odd c: in
 * the second 128 bytes), exchanged so that neither way meets a bank twice. */
template <int BF16, int BEFORE, int AFTER>
static __device__ __forceinline__ void put_planes(const ce_gradients &a, const gemm16_work &w, gemm16_memory *s,
                                                  int group, int first_row, int first_col, dw_old *old,
                                                  const float *acc)
{
    const dw_part d = part_of_dw(a, w, first_row, first_col);
    int lane = threadIdx.x % 32;

    asm volatile("" : "+r"(lane)); /* addresses are made here: kept from tile to tile they would spill */
    const int row = lane / 4, odd = lane % 4 / 2, line = lane / 8, piece = lane % 8;
    uint8_t *panel = s->d[group][0] + threadIdx.x % 128 / 32 * (16 * 256);
    uint8_t *in = panel + row * 256 + odd * 128 + lane % 2 * 8, *out = panel + line * 256;
    const int in_at = (row & 3) ^ odd * 4, out_at = piece ^ line;

#pragma unroll
    for (int k = 0; k < 4 && BEFORE == CE_DW_ITSELF; k++)
        load_old(d, BEFORE, k, 0, &old[k]);
#pragma unroll
    for (int q = 0; q < G16_N / 64; q++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(in + h * (8 * 256) + (i ^ in_at) * 16) =
                    make_float2(acc[4 * (8 * q + i) + 2 * h], acc[4 * (8 * q + i) + 2 * h + 1]);
        __syncwarp(); /* all of the panel */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float4 x = *(const float4 *)(out + k * (4 * 256) + out_at * 16),
                         y = *(const float4 *)(out + k * (4 * 256) + 128 + (out_at ^ 4) * 16);
            float v[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};

            put_sum<BF16, BEFORE, AFTER>(d, k, q, old[k], v);
            if (q + 1 < G16_N / 64) /* on its way while the others are added */
                load_old(d, BEFORE, k, q + 1, &old[k]);
        }
        __syncwarp(); /* it has been read */
    }
}

#endif

#endif

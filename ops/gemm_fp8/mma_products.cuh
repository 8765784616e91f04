/* mma_products.cuh: gemm_fp8 by mma.sync: the products of a block of k that lies in shared memory (mma.cuh says how),
 * and their scales. */
#ifndef RIDGE_GEMM_FP8_MMA_PRODUCTS_CUH
#define RIDGE_GEMM_FP8_MMA_PRODUCTS_CUH

#include "cuda/mma.cuh"

/* f16 products, decoded by integer instructions or by the conversion of sm_89; or the fp8 instruction of sm_89. */
enum { KIND_DECODE = 0, KIND_CONVERT, KIND_FP8 };
enum { BK = 128 };

/* Kernels without a row on a GPU have no body there: before sm_89 all but those that decode, after sm_90 those. */
#if __CUDA_ARCH__ > 900
#define MMA_RUNS(kind) ((kind) != KIND_DECODE)
#elif __CUDA_ARCH__ >= 890
#define MMA_RUNS(kind) true
#else
#define MMA_RUNS(kind) ((kind) == KIND_DECODE)
#endif

template <int KIND, int E5M2> static __device__ __forceinline__ void mma_expand(uint32_t w, uint32_t *x, uint32_t *y)
{
#if __CUDA_ARCH__ >= 890
    if (KIND == KIND_CONVERT) {
        mma_convert<E5M2>(w, x, y);
        return;
    }
#endif
    mma_decode<E5M2>(w, x, y);
}

/* acc (+)= the products of 16 of k (chunk c) for 16 MT x 8 NT results, by f16. a, b: as in mma_block. */
template <int KIND, int E5_A, int E5_B, int MT, int NT>
static __device__ __forceinline__ void mma_chunk_f16(uint32_t a, uint32_t b, int c, float (*acc)[NT][4])
{
    uint32_t code_b[NT], y[NT][2];

    mma_load<8 * NT>(code_b, b ^ c << 4);
#pragma unroll
    for (int j = 0; j < NT; j++)
        mma_expand<KIND, E5_B>(code_b[j], &y[j][0], &y[j][1]);
#pragma unroll
    for (int i = 0; i < MT; i += 2) { /* two at a time, to save registers */
        uint32_t code_a[4];

        mma_load<32>(code_a, (a ^ c << 4) + i * 16 * BK);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t x[4];

            mma_expand<KIND, E5_A>(code_a[2 * h], &x[0], &x[2]);
            mma_expand<KIND, E5_A>(code_a[2 * h + 1], &x[1], &x[3]);
#pragma unroll
            for (int j = 0; j < NT; j++)
                mma_f16(acc[i + h][j], x[0], x[1], x[2], x[3], y[j][0], y[j][1], c > 0);
        }
    }
}

/* The same for 32 of k by the fp8 instruction. */
template <int E5_A, int E5_B, int MT, int NT>
static __device__ __forceinline__ void mma_chunk_fp8(uint32_t a, uint32_t b, int c, float (*acc)[NT][4])
{
#if __CUDA_ARCH__ >= 890
    uint32_t x[2][2 * MT], y[2][NT];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        mma_load<16 * MT>(x[h], a ^ (c + h) << 4);
        mma_load<8 * NT>(y[h], b ^ (c + h) << 4);
    }
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < MT; i++)
            mma_fp8<E5_A, E5_B>(acc[i][j], x[0][2 * i], x[0][2 * i + 1], x[1][2 * i], x[1][2 * i + 1], y[0][j], y[1][j],
                                c > 0);
#endif
}

/* The codes of 16 of k (chunk c) for 16 MT x 8 NT results. */
template <int MT, int NT>
static __device__ __forceinline__ void mma_load_codes(uint32_t a, uint32_t b, int c, uint32_t *code_a, uint32_t *code_b)
{
    mma_load<8 * NT>(code_b, b ^ c << 4);
#pragma unroll
    for (int i = 0; i < MT; i += 2)
        mma_load<32>(code_a + 2 * i, (a ^ c << 4) + i * 16 * BK);
}

/* acc (+)= their products. */
template <int KIND, int E5_A, int E5_B, int MT, int NT>
static __device__ __forceinline__ void mma_multiply_codes(const uint32_t *code_a, const uint32_t *code_b, bool keep,
                                                          float (*acc)[NT][4])
{
    uint32_t y[NT][2];

#pragma unroll
    for (int j = 0; j < NT; j++)
        mma_expand<KIND, E5_B>(code_b[j], &y[j][0], &y[j][1]);
#pragma unroll
    for (int i = 0; i < MT; i++) {
        uint32_t x[4];

        mma_expand<KIND, E5_A>(code_a[2 * i], &x[0], &x[2]);
        mma_expand<KIND, E5_A>(code_a[2 * i + 1], &x[1], &x[3]);
#pragma unroll
        for (int j = 0; j < NT; j++)
            mma_f16(acc[i][j], x[0], x[1], x[2], x[3], y[j][0], y[j][1], keep);
    }
}

/* acc = the products of one block of k by f16, the codes of a chunk loaded while those before are multiplied: 4 %
 * faster on an H200. Unrolled less it gains nothing. */
template <int KIND, int E5_A, int E5_B, int MT, int NT>
static __device__ __forceinline__ void mma_block_ahead(uint32_t a, uint32_t b, float (*acc)[NT][4])
{
    uint32_t code_a[2][2 * MT], code_b[2][NT];

    mma_load_codes<MT, NT>(a, b, 0, code_a[0], code_b[0]);
#pragma unroll
    for (int c = 0; c < BK / 16; c += 2) {
        mma_load_codes<MT, NT>(a, b, c + 1, code_a[1], code_b[1]);
        mma_multiply_codes<KIND, E5_A, E5_B, MT, NT>(code_a[0], code_b[0], c > 0, acc);
        if (c + 2 < BK / 16)
            mma_load_codes<MT, NT>(a, b, c + 2, code_a[0], code_b[0]);
        mma_multiply_codes<KIND, E5_A, E5_B, MT, NT>(code_a[1], code_b[1], true, acc);
    }
}

/* acc = the products of one block of k. a, b: the address of chunk 0 of the row of A and of B that this lane reads. The
 * loops are unrolled as far as registers allow; ptxas spills with more. */
template <int KIND, int E5_A, int E5_B, int MT, int NT>
static __device__ __forceinline__ void mma_block(uint32_t a, uint32_t b, float (*acc)[NT][4])
{
    if constexpr (KIND == KIND_FP8) {
#pragma unroll 1
        for (int c = 0; c < BK / 16; c += 2)
            mma_chunk_fp8<E5_A, E5_B, MT, NT>(a, b, c, acc);
    } else if constexpr (MT < 4) {
#pragma unroll
        for (int c = 0; c < BK / 16; c++)
            mma_chunk_f16<KIND, E5_A, E5_B, MT, NT>(a, b, c, acc);
    } else if constexpr (NT == 4) {
#pragma unroll 4
        for (int c = 0; c < BK / 16; c++)
            mma_chunk_f16<KIND, E5_A, E5_B, MT, NT>(a, b, c, acc);
    } else {
        mma_block_ahead<KIND, E5_A, E5_B, MT, NT>(a, b, acc);
    }
}

/* The factor that f16 products of decoded codes lack: 2^8 for each e4m3 operand. */
template <int KIND, int E5_A, int E5_B> static __device__ __forceinline__ float mma_unit(void)
{
    return KIND != KIND_DECODE ? 1.0f : (E5_A ? 1.0f : 256.0f) * (E5_B ? 1.0f : 256.0f);
}

/* fin = fma(rn(sA sB), acc * unit, fin). scale_a, scale_b: the scales of the warp's first row and column. */
template <int MT, int NT>
static __device__ __forceinline__ void mma_promote(const float *scale_a, const float *scale_b, float unit,
                                                   float (*acc)[NT][4], float (*fin)[NT][4])
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < MT; i++) {
        const float upper = scale_a[16 * i + lane / 4], lower = scale_a[16 * i + lane / 4 + 8];

#pragma unroll
        for (int j = 0; j < NT; j++) {
            const float2 s = *(const float2 *)&scale_b[8 * j + lane % 4 * 2];

            fin[i][j][0] = __fmaf_rn(upper * s.x, acc[i][j][0] * unit, fin[i][j][0]);
            fin[i][j][1] = __fmaf_rn(upper * s.y, acc[i][j][1] * unit, fin[i][j][1]);
            fin[i][j][2] = __fmaf_rn(lower * s.x, acc[i][j][2] * unit, fin[i][j][2]);
            fin[i][j][3] = __fmaf_rn(lower * s.y, acc[i][j][3] * unit, fin[i][j][3]);
        }
    }
}

/* The same where all of the warp's rows have one scale: half as many products of scales and fewer loads. */
template <int MT, int NT>
static __device__ __forceinline__ void mma_promote_rows(float row, const float *scale_b, float unit,
                                                        float (*acc)[NT][4], float (*fin)[NT][4])
{
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 s = *(const float2 *)&scale_b[8 * j + threadIdx.x % 4 * 2];
        const float x = row * s.x, y = row * s.y;

#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                fin[i][j][e] = __fmaf_rn(e % 2 ? y : x, acc[i][j][e] * unit, fin[i][j][e]);
    }
}

/* The same of tiles `from` to `to` of 16 x 8 results, NT in a row, where the 8 columns of a tile have one scale. */
template <int NT>
static __device__ __forceinline__ void mma_promote_tiles(int from, int to, const float *scale_a, const float *scale_b,
                                                         float unit, float (*acc)[NT][4], float (*fin)[NT][4])
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int t = from; t < to; t++) {
        const int i = t / NT, j = t % NT;
        const float upper = scale_a[16 * i + lane / 4] * scale_b[8 * j],
                    lower = scale_a[16 * i + lane / 4 + 8] * scale_b[8 * j];

#pragma unroll
        for (int e = 0; e < 4; e++)
            fin[i][j][e] = __fmaf_rn(e < 2 ? upper : lower, acc[i][j][e] * unit, fin[i][j][e]);
    }
}

/* The products of one block of k of 64 x 8 NT results and their scales, by halves of the rows: the scales of the first
 * half beside the products of the second. The columns of a tile have one scale. */
template <int KIND, int E5_A, int E5_B, int NT>
static __device__ __forceinline__ void mma_block_halves(uint32_t a, uint32_t b, const float *scale_a,
                                                        const float *scale_b, float (*fin)[NT][4])
{
    enum { STEPS = BK / 16, TILES = 2 * NT };
    const float unit = mma_unit<KIND, E5_A, E5_B>();
    uint32_t code_a[2][4], code_b[2][NT];
    float acc[2][2][NT][4];

    mma_load<8 * NT>(code_b[0], b);
    mma_load<32>(code_a[0], a);
#pragma unroll
    for (int s = 0; s < 2 * STEPS; s++) {
        const int half = s / STEPS, next = s + 1;

        if (next < 2 * STEPS) {
            mma_load<8 * NT>(code_b[next % 2], b ^ (next % STEPS) << 4);
            mma_load<32>(code_a[next % 2], (a ^ (next % STEPS) << 4) + next / STEPS * 32 * BK);
        }
        mma_multiply_codes<KIND, E5_A, E5_B, 2, NT>(code_a[s % 2], code_b[s % 2], s % STEPS > 0, acc[half]);
        if (half)
            mma_promote_tiles<NT>((s - STEPS) * TILES / STEPS, (s - STEPS + 1) * TILES / STEPS, scale_a, scale_b, unit,
                                  acc[0], fin);
    }
    mma_promote_tiles<NT>(0, TILES, scale_a + 32, scale_b, unit, acc[1], fin + 2);
}

#endif

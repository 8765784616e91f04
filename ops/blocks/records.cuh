/* records.cuh: x in the form in which the products read it: a record for every 256 columns, with the codes as B
 * operands of mma.m16n8k32, the scales, and what the format's sums need beside them. A record holds eight tokens, or
 * one: then its eight blocks are the columns of the operand, or lanes gather eight tokens out of as many records. */
#ifndef RIDGE_BLOCKS_RECORDS_CUH
#define RIDGE_BLOCKS_RECORDS_CUH

#include "args.cuh"

/* What a block of x has beside codes and scale: nothing; the start of its sum; scale times sum for the minimum; two of
 * these, one for 16 columns each: starts without 12582912, sums. */
typedef enum block_x { BLOCK_X_PLAIN = 0, BLOCK_X_START, BLOCK_X_SUM, BLOCK_X_START_16, BLOCK_X_SUM_16 } block_x;

#define BLOCK_AUX(kind) ((kind) == BLOCK_X_PLAIN ? 0 : (kind) >= BLOCK_X_START_16 ? 2 : 1)
/* Bytes of x for 256 columns: of one token, and of eight. */
#define BLOCK_RECORD_1(kind) (256 + 32 * (1 + BLOCK_AUX(kind)))
#define BLOCK_RECORD_8(kind) (8 * BLOCK_RECORD_1(kind))

/* Where word w (four columns) of block b and token n lies in a record. */
template <class F, int TOKENS> static __device__ __forceinline__ int block_word_at(int b, int n, int t, int half)
{
    if (TOKENS == 1)
        return b * 32 + t * 8 + half * 4;
    return (b >> 1) * 512 + n * 64 + t * 16 + (b & 1) * 8 + half * 4;
}

/* Where number k of block b and token n lies: k = 0 is the scale. */
template <int TOKENS> static __device__ __forceinline__ int block_number_at(int k, int b, int n)
{
    if (TOKENS == 1)
        return 256 + 32 * k + 4 * b;
    return 2048 + 256 * k + (b >> 1) * 64 + (n >> 1) * 16 + (b & 1) * 8 + (n & 1) * 4;
}

/* Four lanes write a block of a record: lane u has the codes of columns 8 u .. 8 u + 7. */
template <class F, int TOKENS>
static __device__ __forceinline__ void block_write_x(char *record, int b, int n, int u, uint2 codes, float xs)
{
    int sum = __dp4a((int)codes.x, 0x01010101, __dp4a((int)codes.y, 0x01010101, 0)), sum16, other;
    uint32_t low = codes.x, high = codes.y;
    float aux[2] = {0, 0};

    sum16 = sum + __shfl_xor_sync(~0u, sum, 1);
    other = __shfl_xor_sync(~0u, sum16, 2);
    sum = sum16 + other;
    if (F::PAIRS) { /* both words of a lane of the product come from neighbouring columns: t = u */
        *(uint2 *)(record + block_word_at<F, TOKENS>(b, n, u, 0)) = codes;
    } else if (F::MIXED) { /* two columns of the low half, two of the high half in a word */
        const uint32_t mine = u < 2 ? codes.x : codes.y, got = __shfl_xor_sync(~0u, u < 2 ? codes.y : codes.x, 2);

        low = u < 2 ? mine : got;
        high = u < 2 ? got : mine;
        *(uint2 *)(record + block_word_at<F, TOKENS>(b, n, u < 2 ? 2 * u : 2 * u - 3, 0)) =
            make_uint2(ptx_prmt(low, high, 0x5140), ptx_prmt(low, high, 0x7362));
    } else {
        *(uint32_t *)(record + block_word_at<F, TOKENS>(b, n, 2 * u & 3, u >> 1)) = codes.x;
        *(uint32_t *)(record + block_word_at<F, TOKENS>(b, n, (2 * u + 1) & 3, u >> 1)) = codes.y;
    }
    if (F::X == BLOCK_X_START)
        aux[0] = __int_as_float(0x4b400000 - F::OFFSET * sum);
    if (F::X == BLOCK_X_SUM)
        aux[0] = ridge_block_x_sum(xs, sum);
    if (F::X == BLOCK_X_START_16) {
        aux[0] = __int_as_float(-F::OFFSET * sum16);
        aux[1] = __int_as_float(-F::OFFSET * other);
    }
    if (F::X == BLOCK_X_SUM_16) {
        aux[0] = ridge_block_x_sum(xs, sum16);
        aux[1] = ridge_block_x_sum(xs, other);
    }
    if (u != 0)
        return;
    *(float *)(record + block_number_at<TOKENS>(0, b, n)) = xs;
#pragma unroll
    for (int k = 0; k < BLOCK_AUX(F::X); k++)
        *(float *)(record + block_number_at<TOKENS>(1 + k, b, n)) = aux[k];
}

/* Eight activations, from any address. */
static __device__ __forceinline__ void block_load8(const block_mma_args &a, const char *row, int column, float *x)
{
    if (a.vector_x) {
        q8_0_load8(row, column, a.x_dtype == RIDGE_BF16, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = a.x_dtype == RIDGE_BF16 ? __uint_as_float((uint32_t)((const uint16_t *)row)[column + i] << 16)
                                       : ((const float *)row)[column + i];
}

static __device__ __forceinline__ uint2 block_load_codes(const block_mma_args &a, const char *from)
{
    uint32_t word[2] = {0, 0};

    if (a.vector_x)
        return *(const uint2 *)from;
#pragma unroll
    for (int i = 0; i < 8; i++)
        word[i / 4] |= (uint32_t)(uint8_t)from[i] << i % 4 * 8;
    return make_uint2(word[0], word[1]);
}

/* Writes the records of `count` tokens, those that there are not and blocks beyond the last one as zeros: with TOKENS =
 * 1 one after another, else those of eight, of the next eight, ... The threads `first`, first + step,
 * ... take four lanes a block; all of a warp come. */
template <class F, int TOKENS>
static __device__ __forceinline__ void block_make_records(const block_mma_args &a, char *to, int count, int first,
                                                          int step)
{
    enum { RECORD = TOKENS == 1 ? BLOCK_RECORD_1(F::X) : BLOCK_RECORD_8(F::X) };
    const int per_token = a.units * 32; /* of 8 columns */

    for (int i = first; i < per_token * count; i += step) {
        const int token = i / per_token, u = i % per_token, block = u / 4;
        uint2 codes = make_uint2(0, 0);
        float xs = 0, x[8];
        char *record = to + ((TOKENS == 1 ? token : token >> 3) * a.units + block / 8) * RECORD;
        const bool there = token < a.tokens && block < a.blocks; /* the same in a block's four lanes */
        const int owner = TOKENS == 1 ? token / a.x_slots : token, slot = TOKENS == 1 ? token % a.x_slots : 0;
        const char *row = (const char *)a.x + owner * a.x_stride + slot * a.x_slot;

        if (a.x_dtype == RIDGE_I8) {
            if (there) {
                codes = block_load_codes(a, row + u * 8);
                xs = a.x_scales[owner * a.x_ld + slot * a.x_slot_ld + block];
            }
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[k] = 0;
            if (there)
                block_load8(a, row, u * 8, x);
            codes = q8_0_quantise8(x, &xs);
        }
        block_write_x<F, TOKENS>(record, block % 8, token & 7, u % 4, codes, xs);
    }
}

/* Makes the records in global memory, where they are too large for shared memory or serve many CTAs. */
template <class F, int TOKENS>
static __global__ void __launch_bounds__(256) block_records(const __grid_constant__ block_mma_args a)
{
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    block_make_records<F, TOKENS>(a, a.records_out, (a.tokens + TOKENS - 1) / TOKENS * TOKENS,
                                  (int)(blockIdx.x * 256 + threadIdx.x), (int)gridDim.x * 256);
}

#endif

/* records.cuh: x in the form in which the products read it: a record for every 256 columns, with the codes as B
 * operands of mma.m16n8k32, the scales, and what the format's sums need beside them. A record holds eight tokens, whose
 * rows of codes ldmatrix reads, or one: then its blocks are the columns of the operand, or (APART) each is in several
 * of them, or lanes gather eight tokens out of as many records. */
#ifndef RIDGE_BLOCKS_RECORDS_CUH
#define RIDGE_BLOCKS_RECORDS_CUH

#include "args.cuh"

/* What a block of x has beside codes and scale: nothing; what is to be added to a sum that starts at 0x4b400000, read
 * as a float; scale times sum for the minimum; two numbers, one for 16 columns each: integers that sums start at;
 * scales times sums. */
typedef enum block_x { BLOCK_X_PLAIN = 0, BLOCK_X_START, BLOCK_X_SUM, BLOCK_X_START_16, BLOCK_X_SUM_16 } block_x;

#define BLOCK_AUX(kind) ((kind) == BLOCK_X_PLAIN ? 0 : (kind) >= BLOCK_X_START_16 ? 2 : 1)
/* Bytes of x for 256 columns: of one token, and of eight, whose rows of codes begin in different banks (ldmatrix). */
#define BLOCK_RECORD_1(kind) (256 + 32 * (1 + BLOCK_AUX(kind)))
enum { BLOCK_X_PITCH = 256 + 16 };
#define BLOCK_RECORD_8(kind) (8 * (BLOCK_X_PITCH + 32 * (1 + BLOCK_AUX(kind))))

/* Where word w (four columns) of block b and token n lies in a record. */
template <class F, int TOKENS> static __device__ __forceinline__ int block_word_at(int b, int n, int t, int half)
{
    if (TOKENS > 1)
        return n * BLOCK_X_PITCH + b * 32 + half * 16 + t * 4;
    return F::APART ? (b >> 1) * 64 + t * 16 + (b & 1) * 8 + half * 4 : b * 32 + t * 8 + half * 4;
}

/* Where number k of block b and token n lies: k = 0 is the scale. */
template <int TOKENS> static __device__ __forceinline__ int block_number_at(int k, int b, int n)
{
    if (TOKENS == 1)
        return 256 + 32 * k + 4 * b;
    return 8 * BLOCK_X_PITCH + 256 * k + (b >> 1) * 64 + (n >> 1) * 16 + (b & 1) * 8 + (n & 1) * 4;
}

/* Scale and the like of a block, of whose codes `low` and `high` are the sums of 16 columns. */
template <class F, int TOKENS>
static __device__ __forceinline__ void block_write_numbers(char *record, int b, int n, float xs, int low, int high)
{
    float aux[2] = {0, 0};

    if (F::X == BLOCK_X_START)
        aux[0] = (float)(-12582912 - F::OFFSET * (low + high));
    if (F::X == BLOCK_X_SUM)
        aux[0] = ridge_block_x_sum(xs, low + high);
    if (F::X == BLOCK_X_START_16) {
        aux[0] = __int_as_float(-F::OFFSET * low);
        aux[1] = __int_as_float(-F::OFFSET * high);
    }
    if (F::X == BLOCK_X_SUM_16) {
        aux[0] = ridge_block_x_sum(xs, low);
        aux[1] = ridge_block_x_sum(xs, high);
    }
    *(float *)(record + block_number_at<TOKENS>(0, b, n)) = xs;
#pragma unroll
    for (int k = 0; k < BLOCK_AUX(F::X); k++)
        *(float *)(record + block_number_at<TOKENS>(1 + k, b, n)) = aux[k];
}

/* Both words of a lane of the product. */
template <class F, int TOKENS>
static __device__ __forceinline__ void block_write_words(char *record, int b, int n, int t, uint32_t first,
                                                         uint32_t second)
{
    *(uint32_t *)(record + block_word_at<F, TOKENS>(b, n, t, 0)) = first;
    *(uint32_t *)(record + block_word_at<F, TOKENS>(b, n, t, 1)) = second;
}

/* Four lanes write a block of a record: lane u has the codes of columns 8 u .. 8 u + 7. */
template <class F, int TOKENS>
static __device__ __forceinline__ void block_write_x(char *record, int b, int n, int u, uint2 codes, float xs)
{
    const int sum = __dp4a((int)codes.x, 0x01010101, __dp4a((int)codes.y, 0x01010101, 0));
    const int sum16 = sum + __shfl_xor_sync(~0u, sum, 1), other = __shfl_xor_sync(~0u, sum16, 2);
    uint32_t low = codes.x, high = codes.y;

    if (F::PAIRS) { /* both words of a lane of the product come from neighbouring columns: t = u */
        block_write_words<F, TOKENS>(record, b, n, u, codes.x, codes.y);
    } else if (F::MIXED) { /* two columns of the low half, two of the high half in a word */
        const uint32_t mine = u < 2 ? codes.x : codes.y, got = __shfl_xor_sync(~0u, u < 2 ? codes.y : codes.x, 2);

        low = u < 2 ? mine : got;
        high = u < 2 ? got : mine;
        block_write_words<F, TOKENS>(record, b, n, u < 2 ? 2 * u : 2 * u - 3, ptx_prmt(low, high, 0x5140),
                                     ptx_prmt(low, high, 0x7362));
    } else {
        *(uint32_t *)(record + block_word_at<F, TOKENS>(b, n, 2 * u & 3, u >> 1)) = codes.x;
        *(uint32_t *)(record + block_word_at<F, TOKENS>(b, n, (2 * u + 1) & 3, u >> 1)) = codes.y;
    }
    if (u == 0)
        block_write_numbers<F, TOKENS>(record, b, n, xs, sum16, other);
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

/* Eight columns of a token: as floats, or codes and the scale of their block. */
typedef struct block_eight {
    float x[8], xs;
    uint2 codes;
} block_eight;

/* Columns 8 u .. of a token, or of one of its slots; what there is not is zero. */
template <int TOKENS>
static __device__ __forceinline__ void block_load_eight(const block_mma_args &a, int token, int u, block_eight *v)
{
    const int owner = TOKENS == 1 ? token / a.x_slots : token, slot = TOKENS == 1 ? token % a.x_slots : 0;
    const char *row = (const char *)a.x + owner * a.x_stride + slot * a.x_slot;

    v->codes = make_uint2(0, 0);
    v->xs = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        v->x[k] = 0;
    if (token >= a.tokens || u / 4 >= a.blocks) /* the same in a block's four lanes */
        return;
    if (a.x_dtype == RIDGE_I8) {
        v->codes = block_load_codes(a, row + u * 8);
        v->xs = a.x_scales[owner * a.x_ld + slot * a.x_slot_ld + u / 4];
    } else {
        block_load8(a, row, u * 8, v->x);
    }
}

/* Writes the records of `count` tokens: with TOKENS = 1 one after another, else those of eight, of the next eight, ...
 * The threads `first`, first + step, ... take eight columns of one token, or of four, whose loads are then in flight
 * together (with eight, products spill registers); all of a warp come. */
template <class F, int TOKENS, class G>
static __device__ __forceinline__ void block_make_records(const block_mma_args &a, char *to, int count, int first,
                                                          int step, G meanwhile)
{
    enum { RECORD = TOKENS == 1 ? BLOCK_RECORD_1(F::X) : BLOCK_RECORD_8(F::X), BATCH = TOKENS == 1 ? 1 : 4 };
    enum { EVERY = TOKENS == 1 && F::APART }; /* every warp calls `meanwhile`, also one without columns */
    const int per_token = a.units * 32, all = per_token * (count / BATCH); /* of 8 columns */

#pragma unroll 1
    for (int i = first; (EVERY && i == first) || i < all; i += step) {
        const int token = i / per_token * BATCH, u = i % per_token;
        char *record = to + ((TOKENS == 1 ? token : token >> 3) * a.units + u / 32) * RECORD;
        block_eight v[BATCH];

#pragma unroll
        for (int n = 0; n < BATCH; n++)
            block_load_eight<TOKENS>(a, token + n, u, &v[n]);
        if (i == first)
            meanwhile();
        if (i >= all) /* the same in a warp */
            break;
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            if (a.x_dtype != RIDGE_I8)
                v[n].codes = q8_0_quantise8(v[n].x, &v[n].xs);
            block_write_x<F, TOKENS>(record, u / 4 % 8, (token & 7) + n, u % 4, v[n].codes, v[n].xs);
        }
    }
}

/* The same of codes in rows that begin at multiples of 16 bytes, a whole block a thread: a fifteenth of the
 * instructions. A warp has 32 blocks of a token, in each CTA of another one first: all of them at once would ask one
 * part of L2. Behind the first loads every warp calls `meanwhile`. */
template <class F, int TOKENS, class G>
static __device__ __forceinline__ void block_copy_records(const block_mma_args &a, char *to, int first, int step,
                                                          G meanwhile)
{
    enum { RECORD = TOKENS == 1 ? BLOCK_RECORD_1(F::X) : BLOCK_RECORD_8(F::X), BATCH = TOKENS == 1 ? 1 : 2 };
    enum { EVERY = TOKENS == 1 && F::APART };
    const int all = (a.units * 8 + 31) / 32 * 32 * TOKENS;

#pragma unroll 1
    for (int begin = first; (EVERY && begin == first) || begin < all; begin += BATCH * step) {
        uint32_t word[BATCH][8] = {};
        float xs[BATCH] = {};

#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at = begin + i * step, token = (at / 32 + (int)blockIdx.x) % TOKENS;
            const int block = at / 32 / TOKENS * 32 + at % 32;

            if (begin + i * step < all && token < a.tokens && block < a.blocks) {
                const uint4 *from = (const uint4 *)((const char *)a.x + token * a.x_stride + block * 32);
                const uint4 v = from[0], w = from[1];

                word[i][0] = v.x, word[i][1] = v.y, word[i][2] = v.z, word[i][3] = v.w;
                word[i][4] = w.x, word[i][5] = w.y, word[i][6] = w.z, word[i][7] = w.w;
                xs[i] = a.x_scales[token * a.x_ld + block];
            }
        }
        if (begin == first)
            meanwhile();
        if (begin >= all)
            break;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at = begin + i * step, token = (at / 32 + (int)blockIdx.x) % TOKENS;
            const int block = at / 32 / TOKENS * 32 + at % 32, b = block % 8, n = token % 8;
            char *const record = to + ((token >> 3) * a.units + block / 8) * RECORD;
            int low = 0, high = 0;
            uint32_t own[2][4];

            if (at >= all || block >= a.units * 8)
                continue;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                low = __dp4a((int)word[i][k], 0x01010101, low);
                high = __dp4a((int)word[i][4 + k], 0x01010101, high);
            }
#pragma unroll
            for (int t = 0; t < 4; t++) { /* as block_write_x */
                const uint32_t x = word[i][F::PAIRS ? 2 * t : t], y = word[i][F::PAIRS ? 2 * t + 1 : 4 + t];

                own[0][t] = F::MIXED ? ptx_prmt(x, y, 0x5140) : x;
                own[1][t] = F::MIXED ? ptx_prmt(x, y, 0x7362) : y;
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (TOKENS == 1)
                    *(uint2 *)(record + block_word_at<F, 1>(b, 0, k, 0)) = make_uint2(own[0][k], own[1][k]);
                else if (k < 2)
                    *(uint4 *)(record + block_word_at<F, TOKENS>(b, n, 0, k)) =
                        make_uint4(own[k][0], own[k][1], own[k][2], own[k][3]);
            block_write_numbers<F, TOKENS>(record, b, n, xs[i], low, high);
        }
    }
}

/* The records of a CTA's own x, by the threads from `first` on; `meanwhile` is called while its loads are in flight. */
template <class F, int TOKENS, class G>
static __device__ __forceinline__ void block_make_x(const block_mma_args &a, char *to, int first, G meanwhile)
{
    if (a.x_dtype == RIDGE_I8 && a.vector_x)
        block_copy_records<F, TOKENS>(a, to, first, (int)blockDim.x, meanwhile);
    else
        block_make_records<F, TOKENS>(a, to, TOKENS, first, (int)blockDim.x, meanwhile);
}

/* Makes the records in global memory, where they are too large for shared memory or serve many CTAs. */
template <class F, int TOKENS>
static __global__ void __launch_bounds__(256) block_records(const __grid_constant__ block_mma_args a)
{
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    block_make_records<F, TOKENS>(a, a.records_out, (a.tokens + TOKENS - 1) / TOKENS * TOKENS,
                                  (int)(blockIdx.x * 256 + threadIdx.x), (int)gridDim.x * 256, [] {});
}

#endif

/* cpu_q8_0.h: rows of Q8_0 blocks.
 *
 * The contract is a product rounded to f32, then halves away from zero. Elements of 16 bits have at most 11 bits, as
 * has amax: 127 x / amax is either halfway between two integers or at least 2^-19 of itself away from that. So a
 * reciprocal that is off by 2^-21 decides as the exact one does, except halfway, where the sign of its error decides:
 * it must be up, unless d was rounded such that the contract's product falls short. If it falls short for one x of the
 * block, it does for every x, and for amax itself, whose product should be 127. So the product of amax decides the
 * sign, and one conversion gives the nearest integer (tests/test_quantize.c tries all of them). Blocks whose d is
 * subnormal are left to the contract's own arithmetic. */
#ifndef RIDGE_CPU_QUANTIZE_Q8_0_H
#define RIDGE_CPU_QUANTIZE_Q8_0_H

#include "cpu_vectors.h"

enum { BLOCK = RIDGE_Q8_0_BLOCK, BLOCKS = G / BLOCK, CHUNK = 8 /* groups between two stores: whole lines in all */ };

/* ridge_q8_0_scale of n blocks, a multiple of LANES: the halves to store, and what the elements are multiplied by. True
 * if a block is not finite or has a subnormal d. */
INLINE bool q8_0_scales(uint32_t dtype, int n, const uint32_t *restrict amax, float *restrict r,
                        uint16_t *restrict half)
{
    const uint32_t infinity = 0x7f800000u, least = 0x03fe0000u; /* 127 * 2^-126 */
    const float up = dtype == RIDGE_F32 ? 1.0f : 1 + 0x1p-21f, down = dtype == RIDGE_F32 ? 1.0f : 1 - 0x1p-21f;
    float d[CHUNK * BLOCKS];
    uint32_t odd = 0;

    for (int b = 0; b < n; b++) {
        const float most = ridge_float(amax[b]), whole = most / 127.0f;
        float inverse = 1.0f / whole;

        inverse = inverse < ridge_float(infinity) ? inverse : 0.0f;
        inverse = amax[b] < infinity ? inverse : 0.0f;
        r[b] = inverse * (most * inverse >= 127.0f ? up : down);
        d[b] = amax[b] < infinity ? whole : ridge_float(RIDGE_NAN_F32);
        odd |= (amax[b] >= infinity) | (amax[b] - 1 < least - 1);
    }
    for (int b = 0; b < n; b += LANES)
        store_half(half + b, f16_from_f32(as_f32(load(d + b))));
    return odd;
}

/* The codes of one step. */
INLINE ints q8_0_codes(uint32_t dtype, const char *x, const float *r)
{
    const ints almost = all32(0x3effffff), sign = all32(0x80000000u);
    floats v[4];
    ints t[4];

    widen(dtype, x, false, v);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const floats y = mul(v[i], all_f32(r[i * LANES / BLOCK]));

        /* Adding the number below 0.5 and dropping the fraction rounds halves away from zero, and does not lift the
         * number below 0.5 itself. */
        t[i] = dtype == RIDGE_F32 ? truncated(add(y, as_f32(or_bits(almost, and_bits(as_ints(y), sign))))) : rounded(y);
    }
    return in_order(dtype, pack_s16(pack_s32(t[0], t[1]), pack_s32(t[2], t[3])));
}

/* 128 elements become four blocks. */
INLINE void q8_0_group(uint32_t dtype, const char *x, const float *r, const uint16_t *half, uint8_t *blocks)
{
    UNROLL
    for (int b = 0; b < BLOCKS; b += ELEMENTS / BLOCK, blocks += ELEMENTS / BLOCK * RIDGE_Q8_0_BYTES) {
        const ints codes = q8_0_codes(dtype, x + b * BLOCK * size_of(dtype), r + b);

        memcpy(blocks, half + b, 2);
#ifdef __AVX512F__
        memcpy(blocks + RIDGE_Q8_0_BYTES, half + b + 1, 2);
        _mm256_storeu_si256((__m256i *)(void *)(blocks + 2), _mm512_castsi512_si256(codes));
        _mm256_storeu_si256((__m256i *)(void *)(blocks + RIDGE_Q8_0_BYTES + 2), _mm512_extracti64x4_epi64(codes, 1));
#else
        store(blocks + 2, codes);
#endif
    }
}

/* The codes of blocks that are not finite, which are 0, and of those with a subnormal d. */
static void q8_0_odd(uint32_t dtype, const char *x, int64_t count, const uint32_t *amax, uint8_t *blocks)
{
    for (int64_t b = 0; b < count; b++) {
        uint8_t *code = blocks + b * RIDGE_Q8_0_BYTES + 2;
        float r;

        ridge_q8_0_scale(amax[b], &r);
        if (amax[b] >= 0x7f800000u)
            memset(code, 0, BLOCK);
        else if (amax[b] < 0x03fe0000u && dtype == RIDGE_BF16)
            for (int i = 0; i < BLOCK; i++) {
                uint16_t bits;

                memcpy(&bits, x + (b * BLOCK + i) * 2, 2);
                code[i] = (uint8_t)ridge_q8_0_code(ridge_f32_from_bf16(bits) * r);
            }
    }
}

INLINE void q8_0_amax(uint32_t dtype, const char *x, int64_t count, uint32_t *amax)
{
    const int bytes = BLOCK * size_of(dtype);
    int64_t b = 0;

#ifdef __AVX512F__
    for (; dtype != RIDGE_F32 && b + 16 <= count; b += 16) {
        ints m[16];

        UNROLL
        for (int k = 0; k < 16; k++)
            m[k] = magnitudes(dtype, load(x + (b + k) * bytes));
        largest_of_rows(dtype, m, amax + b);
    }
#endif
    for (; b < count; b++)
        amax[b] = amax_of(dtype, x + b * bytes, bytes);
}

/* Bytes to memory; whole lines may bypass the cache. */
static void put_bytes(uint8_t *to, const uint8_t *from, size_t n, bool stream)
{
    size_t i = -(uintptr_t)to % 64;

    if (!stream || n < i + 64) {
        memcpy(to, from, n);
        return;
    }
    memcpy(to, from, i);
    for (; i + 64 <= n; i += 64)
        for (size_t k = 0; k < 64; k += VECTOR_BYTES)
            stream_store(to + i + k, load(from + i + k));
    memcpy(to + i, from + i, n - i);
}

/* As row128: a chunk's scales before its codes. The chunk is assembled in L1, and the second chunk after it, which may
 * belong to row_after, is prefetched meanwhile. (Chunks of 4096 elements run at 0.78 to 0.95 of a copy, these of 1024
 * at 0.86 to 0.96.) */
INLINE void q8_0_row(uint32_t dtype, const char *x, int64_t cols, uint8_t *blocks, bool stream, const char *row_after)
{
    enum { MOST = CHUNK * BLOCKS };
    const int size = size_of(dtype), wide = G * size;
    _Alignas(64) uint8_t out[MOST * RIDGE_Q8_0_BYTES];
    _Alignas(64) char padded[G * 4];
    uint32_t amax[MOST] = {0};
    uint16_t half[MOST];
    float r[MOST];

    for (int64_t begin = 0; begin < cols; begin += CHUNK * G) {
        const int64_t n = cols - begin < CHUNK * G ? cols - begin : CHUNK * G, count = n / BLOCK;
        const int64_t ahead = begin + 2 * CHUNK * G;
        const char *from = x + begin * size, *next = x + ahead * size;
        bool odd;

        if (ahead >= cols)
            next = row_after ? row_after + (ahead - cols) * size : NULL;
        q8_0_amax(dtype, from, count, amax);
        odd = q8_0_scales(dtype, MOST, amax, r, half);
        for (int64_t b = 0; b < count; b += BLOCKS) {
            for (int k = 0; next && k < wide; k += 64)
                __builtin_prefetch(next + b * BLOCK * size + k);
            q8_0_group(dtype, whole_group(from + b * BLOCK * size, n - b * BLOCK, size, padded), r + b, half + b,
                       out + b * RIDGE_Q8_0_BYTES);
        }
        if (odd)
            q8_0_odd(dtype, from, count, amax, out);
        put_bytes(blocks, out, (size_t)count * RIDGE_Q8_0_BYTES, stream);
        blocks += count * RIDGE_Q8_0_BYTES;
    }
}

static void q8_0(uint32_t dtype, const void *x, int64_t cols, uint8_t *blocks, bool stream, const void *next)
{
    switch (dtype) {
    case RIDGE_BF16:
        q8_0_row(RIDGE_BF16, x, cols, blocks, stream, next);
        break;
    case RIDGE_F16:
        q8_0_row(RIDGE_F16, x, cols, blocks, stream, next);
        break;
    default:
        q8_0_row(RIDGE_F32, x, cols, blocks, stream, next);
    }
}

#endif

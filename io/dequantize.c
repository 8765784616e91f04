/* dequantize.c: element and block types to f32.
 *
 * A block is taken apart in two steps. Unpacking is integer work: it gives one int8 code an element, and one f32 scale
 * and minimum a group. Then one loop serves all block types: value = scale * code + min, two roundings, never fused
 * (-ffp-contract=off). That is the order of operations in ggml, to the bit: where ggml subtracts a minimum, adding its
 * negative is the same, and where it has none, adding -0 changes nothing, not even the sign of a zero.
 *
 * NaN: F32 is copied; BF16 and F16 keep sign and payload (F16's become quiet), as in ggml. Everywhere else a NaN is the
 * canonical 7FC00000, since what ggml gives depends there on the machine and on the order of an addition's operands.
 * Leaves out: IQ types but IQ2_XXS, TQ types, NVFP4. */
#include <string.h>

#include "cpu/num.h"
#include "io.h"
#include "src/math/blocks.h"
#include "src/math/iq2.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "ridge reads little-endian formats on little-endian machines"
#endif

enum { SUPER = 256 };

typedef struct unpacked {
    float scale[16], min[16];
    int8_t code[SUPER];
} unpacked;

static float half(const uint8_t *at)
{
    uint16_t bits;

    memcpy(&bits, at, sizeof bits);
    return ridge_f32_from_f16(bits);
}

/* ------------------------------------------------------------------------------------------ blocks of 32: one group */

/* 16 bytes: low nibbles are elements 0..15, high ones 16..31. */
static void nibbles(const uint8_t *from, int8_t *code)
{
    for (int i = 0; i < 16; i++) {
        code[i] = (int8_t)(from[i] & 15);
        code[i + 16] = (int8_t)(from[i] >> 4);
    }
}

/* Bit i of a 32-bit word is the fifth bit of element i. */
static void fifth_bits(const uint8_t *from, int8_t *code)
{
    for (int i = 0; i < 32; i++)
        code[i] = (int8_t)(code[i] | (from[i / 8] >> (i % 8) & 1) << 4);
}

static void centre(int8_t *code, int count, int zero)
{
    for (int i = 0; i < count; i++)
        code[i] = (int8_t)(code[i] - zero);
}

static void unpack_q4_0(const uint8_t *from, unpacked *to)
{
    to->scale[0] = half(from);
    to->min[0] = -0.0f;
    nibbles(from + 2, to->code);
    centre(to->code, 32, 8);
}

static void unpack_q4_1(const uint8_t *from, unpacked *to)
{
    to->scale[0] = half(from);
    to->min[0] = half(from + 2);
    nibbles(from + 4, to->code);
}

static void unpack_q5_0(const uint8_t *from, unpacked *to)
{
    to->scale[0] = half(from);
    to->min[0] = -0.0f;
    nibbles(from + 6, to->code);
    fifth_bits(from + 2, to->code);
    centre(to->code, 32, 16);
}

static void unpack_q5_1(const uint8_t *from, unpacked *to)
{
    to->scale[0] = half(from);
    to->min[0] = half(from + 2);
    nibbles(from + 8, to->code);
    fifth_bits(from + 4, to->code);
}

static void unpack_q8_0(const uint8_t *from, unpacked *to)
{
    to->scale[0] = half(from);
    to->min[0] = -0.0f;
    memcpy(to->code, from + 2, 32);
}

/* Half the scale of OCP, and codes of twice E2M1's values. */
static void unpack_mxfp4(const uint8_t *from, unpacked *to)
{
    to->scale[0] = ridge_block_e8m0(from[0]);
    to->min[0] = -0.0f;
    nibbles(from + 1, to->code);
    for (int i = 0; i < 32; i++)
        to->code[i] = (int8_t)ridge_block_e2m1((unsigned)to->code[i]);
}

/* -------------------------------------------------------------------------- super-blocks of 256: 8 or 16 groups (K) */

/* 64 bytes of 2-bit codes: each 32 bytes hold 128 elements, 32 of them per bit pair. */
static void pairs(const uint8_t *from, int8_t *code)
{
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++)
            code[32 * part + i] = (int8_t)(from[32 * (part / 4) + i] >> 2 * (part % 4) & 3);
}

/* 32 bytes: bit `part` of byte i belongs to element 32 * part + i, and is worth 1 << shift. */
static void high_bits(const uint8_t *from, int8_t *code, int shift)
{
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++)
            code[32 * part + i] = (int8_t)(code[32 * part + i] | (from[i] >> part & 1) << shift);
}

/* Eight 6-bit scales and minima in 12 bytes: the first four of each are the low 6 bits of bytes 0..3 and 4..7; the
 * others have their low 4 bits in bytes 8..11 and their high 2 on top of the first four. */
static void scales_q4_k(const uint8_t *from, float d, float min, unpacked *to)
{
    for (int i = 0; i < 4; i++) {
        int low = from[8 + i];
        to->scale[i] = d * (float)(from[i] & 63);
        to->min[i] = -(min * (float)(from[4 + i] & 63));
        to->scale[4 + i] = d * (float)((low & 15) | from[i] >> 6 << 4);
        to->min[4 + i] = -(min * (float)(low >> 4 | from[4 + i] >> 6 << 4));
    }
}

static void nibbles_q4_k(const uint8_t *from, int8_t *code)
{
    for (int pair = 0; pair < 4; pair++)
        for (int i = 0; i < 32; i++) {
            code[64 * pair + i] = (int8_t)(from[32 * pair + i] & 15);
            code[64 * pair + 32 + i] = (int8_t)(from[32 * pair + i] >> 4);
        }
}

static void unpack_q2_k(const uint8_t *from, unpacked *to)
{
    float d = half(from + 80), min = half(from + 82);

    for (int i = 0; i < 16; i++) {
        to->scale[i] = d * (float)(from[i] & 15);
        to->min[i] = -(min * (float)(from[i] >> 4));
    }
    pairs(from + 16, to->code);
}

/* Sixteen 6-bit scales in 12 bytes: low nibbles in the nibbles of bytes 0..7, high 2 bits in bytes 8..11. */
static void unpack_q3_k(const uint8_t *from, unpacked *to)
{
    const uint8_t *scale = from + 96;
    float d = half(from + 108);

    for (int i = 0; i < 16; i++) {
        int low = scale[i % 8] >> 4 * (i / 8) & 15, high = scale[8 + i % 4] >> 2 * (i / 4) & 3;
        to->scale[i] = d * (float)((low | high << 4) - 32);
        to->min[i] = -0.0f;
    }
    pairs(from + 32, to->code);
    high_bits(from, to->code, 2);
    centre(to->code, SUPER, 4);
}

static void unpack_q4_k(const uint8_t *from, unpacked *to)
{
    scales_q4_k(from + 4, half(from), half(from + 2), to);
    nibbles_q4_k(from + 16, to->code);
}

static void unpack_q5_k(const uint8_t *from, unpacked *to)
{
    scales_q4_k(from + 4, half(from), half(from + 2), to);
    nibbles_q4_k(from + 48, to->code);
    high_bits(from + 16, to->code, 4);
}

/* Each half of 128 elements is four parts of 32: low nibbles of 64 bytes, then their high ones; the high 2 bits of part
 * p are bit pair p of 32 bytes. */
static void unpack_q6_k(const uint8_t *from, unpacked *to)
{
    float d = half(from + 208);

    for (int i = 0; i < 16; i++) {
        to->scale[i] = d * (float)(int8_t)from[192 + i];
        to->min[i] = -0.0f;
    }
    for (int part = 0; part < 8; part++) {
        const uint8_t *low = from + 64 * (part / 4) + 32 * (part % 2), *high = from + 128 + 32 * (part / 4);
        int nibble = 4 * (part / 2 % 2), pair = 2 * (part % 4);
        for (int i = 0; i < 32; i++)
            to->code[32 * part + i] = (int8_t)(((low[i] >> nibble & 15) | (high[i] >> pair & 3) << 4) - 32);
    }
}

/* Eight groups of 8 bytes: four indices of codebook entries, and a word of 7 sign bits for each and 4 bits of scale. */
static void unpack_iq2_xxs(const uint8_t *from, unpacked *to)
{
    float d = half(from);

    for (int group = 0; group < 8; group++) {
        const uint8_t *index = from + 2 + 8 * group;
        uint32_t word;
        memcpy(&word, index + 4, sizeof word);
        to->scale[group] = d * (0.5f + (float)(word >> 28)) * 0.25f;
        to->min[group] = -0.0f;
        for (int i = 0; i < 32; i++) {
            int size = ridge_iq2_magnitude(ridge_iq2_xxs_grid[index[i / 8]] >> 2 * (i % 8) & 3);
            bool minus = ridge_iq2_signs(word >> 7 * (i / 8) & 127) >> i % 8 & 1;
            to->code[32 * group + i] = (int8_t)(minus ? -size : size);
        }
    }
}

typedef struct unpacker {
    void (*unpack)(const uint8_t *from, unpacked *to);
    int group; /* elements that share a scale */
} unpacker;

static const unpacker unpackers[RIDGE_TYPES] = {
    [RIDGE_TYPE_Q4_0] = {unpack_q4_0, 32},   [RIDGE_TYPE_Q4_1] = {unpack_q4_1, 32},
    [RIDGE_TYPE_Q5_0] = {unpack_q5_0, 32},   [RIDGE_TYPE_Q5_1] = {unpack_q5_1, 32},
    [RIDGE_TYPE_Q8_0] = {unpack_q8_0, 32},   [RIDGE_TYPE_Q2_K] = {unpack_q2_k, 16},
    [RIDGE_TYPE_Q3_K] = {unpack_q3_k, 16},   [RIDGE_TYPE_Q4_K] = {unpack_q4_k, 32},
    [RIDGE_TYPE_Q5_K] = {unpack_q5_k, 32},   [RIDGE_TYPE_Q6_K] = {unpack_q6_k, 16},
    [RIDGE_TYPE_MXFP4] = {unpack_mxfp4, 32}, [RIDGE_TYPE_IQ2_XXS] = {unpack_iq2_xxs, 32},
};

/* Inlined with a constant `group`, so that the inner loop has a known length. */
static inline void values(const unpacked *from, int count, int group, float *to)
{
    for (int g = 0; g < count / group; g++) {
        float scale = from->scale[g], min = from->min[g];
        for (int i = 0; i < group; i++)
            to[g * group + i] = ridge_f32_canonical(scale * (float)from->code[g * group + i] + min);
    }
}

static void dequantize_blocks(const unpacker *unpacker, const ridge_type_info *info, const uint8_t *from,
                              int64_t blocks, float *to)
{
    unpacked block;

    for (int64_t b = 0; b < blocks; b++) {
        unpacker->unpack(from + b * info->bytes, &block);
        if (unpacker->group == 16)
            values(&block, info->block, 16, to + b * info->block);
        else
            values(&block, info->block, 32, to + b * info->block);
    }
}

/* ------------------------------------------------------------------------------------------------------ plain types */

static void from_f64(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        double x;
        memcpy(&x, from + 8 * i, sizeof x);
        to[i] = ridge_f32_canonical((float)x);
    }
}

static void from_f16(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t x;
        memcpy(&x, from + 2 * i, sizeof x);
        uint32_t quiet = (x & 0x7fffu) > 0x7c00u ? 1u << 22 : 0;
        to[i] = ridge_float(ridge_bits(ridge_f32_from_f16(x)) | quiet);
    }
}

static void from_bf16(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t x;
        memcpy(&x, from + 2 * i, sizeof x);
        to[i] = ridge_f32_from_bf16(x);
    }
}

/* Shifted to the fields of f16, an e4m3 code is its value times 2^-8, subnormals included. */
static void from_e4m3(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t x = from[i];
        float value = ridge_f32_from_f16((uint16_t)((x & 0x80u) << 8 | (x & 0x7fu) << 7)) * 256.0f;
        to[i] = (x & 0x7fu) == 0x7fu ? ridge_float(RIDGE_NAN_F32) : value;
    }
}

/* e5m2 is the high byte of an f16. */
static void from_e5m2(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = ridge_f32_canonical(ridge_f32_from_f16((uint16_t)(from[i] << 8)));
}

/* Not inlined: the floating-point mode is set around it. */
static __attribute__((noinline)) void dequantize(uint32_t type, const void *from, int64_t count, float *to)
{
    const ridge_type_info *info = ridge_type_query(type);

    switch (type) {
    case RIDGE_TYPE_F64:
        from_f64(from, count, to);
        break;
    case RIDGE_TYPE_F32:
        memcpy(to, from, (size_t)count * sizeof *to);
        break;
    case RIDGE_TYPE_F16:
        from_f16(from, count, to);
        break;
    case RIDGE_TYPE_BF16:
        from_bf16(from, count, to);
        break;
    case RIDGE_TYPE_F8_E4M3:
        from_e4m3(from, count, to);
        break;
    case RIDGE_TYPE_F8_E5M2:
        from_e5m2(from, count, to);
        break;
    default:
        dequantize_blocks(&unpackers[type], info, from, count / info->block, to);
    }
}

ridge_status ridge_dequantize(uint32_t type, const void *from, int64_t count, float *to)
{
    const ridge_type_info *info = ridge_type_query(type);
    unsigned mode;

    if (!info || !info->dequantize)
        return io_fail(RIDGE_ERR_UNSUPPORTED, "ridge_dequantize: type %u (%s) cannot be dequantized", (unsigned)type,
                       info ? info->name : "unknown");
    if (count < 0 || count % info->block)
        return io_fail(RIDGE_ERR_ARG, "ridge_dequantize: %lld elements are not a whole number of %s blocks of %d",
                       (long long)count, info->name, (int)info->block);
    if (count == 0)
        return RIDGE_OK;
    if (!from || !to)
        return io_fail(RIDGE_ERR_ARG, "ridge_dequantize: %s is NULL", from ? "to" : "from");
    mode = ridge_fp_begin();
    dequantize(type, from, count, to);
    ridge_fp_end(mode);
    return RIDGE_OK;
}

/* fill.c: builds the image of a case: poison everywhere, then every input by its family's own fill or, where that has
 * none, by the dtype and the fill of the case. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "family.h"

static float edge_value(uint64_t *state)
{
    static const float special[] = {0.0f,     -0.0f,  1.0f,     -1.0f,     0x1p-126f, -0x1p-126f, 0x1p-133f, -0x1p-140f,
                                    0x1p-24f, 88.0f,  -88.0f,   -104.0f,   104.0f,    -103.5f,    30.0f,     -17.25f,
                                    3e38f,    -3e38f, 65504.0f, -65504.0f, 1e5f,      -1.278f,    15.0f,     -14.5f};
    uint64_t z = random_next(state);
    unsigned kind = (unsigned)(z & 31);

    if (kind < 2)
        return kind ? INFINITY : -INFINITY;
    if (kind == 2)
        return ridge_float(0x7f800001u | (uint32_t)(z >> 40));
    if (kind < 16)
        return special[(z >> 8) % (sizeof special / sizeof special[0])];
    return random_normal(state) * ridge_float((uint32_t)(127 + (int)(z >> 8 & 15) - 8) << 23);
}

/* 128 columns of a kind of their own: zeros, a power of two as amax, subnormal, huge, now and then a NaN or infinity.
 */
static float group_value(uint64_t *state, int64_t j, unsigned *kind, float *scale)
{
    uint64_t z = random_next(state);

    if (j % 128 == 0) {
        *kind = (unsigned)(z & 15);
        *scale = ridge_float(((uint32_t)(z >> 8) % 250u + 1u) << 23);
    }
    if (*kind == 0 || (z >> 32 & 7) == 0)
        return z & 64 ? 0.0f : -0.0f;
    if (*kind == 1) /* ties of the encoding, and an amax that is a power of two */
        return j % 128 == 5 ? *scale : *scale * 0x1p-8f * (float)((int)(z >> 40 & 255) - 128);
    if (*kind == 2)
        return ridge_float((uint32_t)(z >> 41)); /* subnormal */
    if (*kind == 3 && (z >> 48) % 128 == 0)
        return z & 64 ? INFINITY : ridge_float(0xff800001u);
    return random_normal(state) * *scale;
}

/* N(0,1), and where float64 must say what follows from them: +inf, a NaN, both infinities and -inf in rows 1, 3, 5 and
 * 7 of eight, one of the three in every 96th element of a vector. */
static float special_value(uint64_t *state, int64_t row, int64_t j, int64_t at, bool vector)
{
    const float value = random_normal(state);
    const int64_t kind = vector ? j / 96 % 3 * 2 + 1 : row % 8;

    if (vector ? j % 96 != 17 : kind % 2 == 0 || (j != at && !(kind == 5 && j == at / 2)))
        return value;
    return kind == 3 ? ridge_float(0x7fc00000u) : kind == 1 || (kind == 5 && j == at) ? INFINITY : -INFINITY;
}

/* An fp8 code: N(0,1), now and then an edge of the format; NaN and infinity only in every eighth row, or every result
 * would be one. */
static unsigned char fp8_value(const test_case *c, uint64_t *state, int e5m2, int64_t row)
{
    static const unsigned char edge[] = {0x00, 0x80, 0x01, 0x81, 0x03, 0x04, 0x07, 0x08, 0x7b, 0xfb};
    static const unsigned char special[] = {0x7c, 0xfc, 0x7e, 0x7f, 0xff};
    uint64_t z;

    if (c->fill == FILL_EXACT && row % 31 == 6)
        return 0; /* rows of A and of B, columns of D: nothing but zeros */
    if (c->fill == FILL_EXACT)
        return ridge_fp8_from_f32((float)(random_next(state) % 5) - 2.0f, e5m2);
    if (c->fill == FILL_SPECIAL && row % 2 && random_next(state) % 128 == 0)
        return special[row / 2 % (int)sizeof special];
    if (c->fill != FILL_EDGE || ((z = random_next(state)) & 7))
        return ridge_fp8_from_f32(random_normal(state), e5m2);
    if ((z & 0x3f8) == 0 && row % 8 == 5)
        return special[(z >> 16) % sizeof special];
    return edge[(z >> 16) % sizeof edge];
}

static void fill_row(const test_case *c, uint32_t dtype, unsigned char *row, int64_t cols, int64_t index, uint64_t seed,
                     bool first, bool vector)
{
    uint64_t state =
        seed ^ (uint64_t)(c->fill == FILL_PERIOD ? index % IMAGE_PERIOD : index) * UINT64_C(0xd1342543de82ef95);
    const int64_t at = cols * 3 / 7;
    size_t size = ridge_dtype_size(dtype);
    float scale = 1.0f;
    unsigned kind = 0;

    random_next(&state);
    if (c->fill == FILL_NORMAL)
        scale = ridge_float((uint32_t)(127 + (int)(random_next(&state) % 13) - 6) << 23);
    for (int64_t j = 0; j < cols; j++, row += size) {
        if (dtype == RIDGE_E4M3 || dtype == RIDGE_E5M2) {
            *row = fp8_value(c, &state, dtype == RIDGE_E5M2, index);
        } else if (c->fill == FILL_EXACT) {
            dtype_store(row, dtype, (float)((int)(random_next(&state) >> 60) - 8));
        } else if (size == 1) {
            *row = (unsigned char)(random_next(&state) >> 24);
        } else if (c->fill == FILL_EVERY && first && size == 2) {
            uint16_t pattern = (uint16_t)(index * cols + j);
            memcpy(row, &pattern, 2);
        } else if (c->fill == FILL_EDGE || (c->fill == FILL_EVERY && !first)) {
            dtype_store(row, dtype, edge_value(&state));
        } else if (c->fill == FILL_SPECIAL) {
            dtype_store(row, dtype, special_value(&state, index, j, at, vector));
        } else if (c->fill == FILL_GROUPS) {
            dtype_store(row, dtype, group_value(&state, j, &kind, &scale));
        } else {
            dtype_store(row, dtype, random_normal(&state) * scale);
        }
    }
}

static void fill_operand(const test_case *c, const image *im, int arg, uint64_t seed, bool first)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const ridge_operand *operand = &im->call.arg[arg];
    unsigned char *base = im->host + im->offset[arg];
    bool (*const fill)(const test_case *, const image *, int, uint64_t) = check_family_of(op->id)->fill;
    int64_t rows, cols, pitch;

    if (fill && fill(c, im, arg, seed))
        return;
    op->extent(&im->call, arg, &rows, &cols);
    pitch = (operand->stride ? operand->stride : cols) * (int64_t)ridge_dtype_size(operand->dtype);
    rows = im->periodic && rows > IMAGE_PERIOD ? IMAGE_PERIOD : rows;
#pragma omp parallel for schedule(static) if (rows * cols > 100000)
    for (int64_t r = 0; r < rows; r++) {
        if (c->fill != FILL_PERIOD || r < IMAGE_PERIOD)
            fill_row(c, operand->dtype, base + r * pitch, cols, r, seed + (uint64_t)arg, first,
                     op->arg[arg].kind == RIDGE_VECTOR);
    }
#pragma omp parallel for schedule(static) if (rows * cols > 100000)
    for (int64_t r = IMAGE_PERIOD; r < rows; r++)
        if (c->fill == FILL_PERIOD)
            memcpy(base + r * pitch, base + r % IMAGE_PERIOD * pitch, (size_t)cols * ridge_dtype_size(operand->dtype));
}

bool image_build(const test_case *c, uint64_t seed, image *im)
{
    const ridge_op_row *op = ridge_op_at(c->call.op);
    bool first = true;

    image_place(c, im);
    im->host = aligned_alloc(256, (im->bytes + 255) / 256 * 256);
    im->memo = calloc(1, sizeof *im->memo);
    if (!im->host || !im->memo)
        return false;
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < im->bytes; block += 65536) /* guards and padding: NaN in every float dtype */
        memset(im->host + block, 0xff, im->bytes - block < 65536 ? im->bytes - block : 65536);
    for (int arg = 0; arg < op->args; arg++) /* other than input padding, so that copying that one into it shows */
        if (im->length[arg] && ridge_operand_role(&im->call, arg) == RIDGE_OUT)
            memset(im->host + im->offset[arg], 0xfe, im->length[arg]);
    for (int arg = 0; arg < op->args; arg++) {
        if (!im->length[arg] || !(ridge_operand_role(&im->call, arg) & RIDGE_IN))
            continue;
        fill_operand(c, im, arg, seed, first);
        first = false;
    }
    return true;
}

bool image_build_to_time(const test_case *c, uint64_t seed, image *im)
{
    const ridge_op_row *op = ridge_op_at(c->call.op);

    image_place(c, im);
    if (!(check_family_of(op->id)->periodic >> op->id & 1) || im->bytes < (size_t)16 << 20)
        return image_build(c, seed, im);
    im->periodic = true;
    im->host = calloc(1, im->bytes); /* the pages that nothing is written to cost nothing */
    im->memo = calloc(1, sizeof *im->memo);
    if (!im->host || !im->memo)
        return false;
    for (int arg = 0; arg < op->args; arg++)
        if (im->length[arg] && (ridge_operand_role(&im->call, arg) & RIDGE_IN))
            fill_operand(c, im, arg, seed, arg == 0);
    return true;
}

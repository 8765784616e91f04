/* fill.c: inputs of the matmuls that are no plain numbers: Q8_0 weights in both forms and quantised activations. With
 * FILL_GROUPS and FILL_EDGE every row is of a kind of its own: all codes -128, alternating signs, scales 0, subnormal,
 * 65504, one NaN or infinity. */
#include <math.h>
#include <string.h>

#include "cpu/num.h"
#include "q8_0.h"

static bool hard(const test_case *c)
{
    return c->fill == FILL_GROUPS || c->fill == FILL_EDGE || c->fill == FILL_EVERY;
}

static void fill_codes(const test_case *c, unsigned char *to, int64_t n, uint64_t *state)
{
    const unsigned kind = hard(c) ? (unsigned)(random_next(state) % 6) : 5;

    for (int64_t i = 0; i < n; i++) {
        const unsigned char any = (unsigned char)(random_next(state) >> 24);

        to[i] = kind == 0   ? 0x80
                : kind == 1 ? (i & 1 ? 0x7f : 0x81)
                : kind == 2 ? (i & 1 ? 0x7f : 0x80)
                : kind == 3 ? 0
                            : any;
    }
}

/* The f16 bits of one scale; `special`: the one block of its row that may be not finite. */
static uint16_t half_scale(unsigned kind, uint64_t *state, bool special)
{
    const uint16_t any = ridge_f16_from_f32(random_normal(state) * 0x1p-6f);

    switch (kind) {
    case 0:
        return 0;
    case 1:
        return any & 0x83ff; /* subnormal, either sign */
    case 2:
        return (uint16_t)(0x7bff | (any & 0x8000)); /* 65504 */
    case 3:
        return special ? 0x7e01 : any;
    case 4:
        return special ? (uint16_t)(0x7c00 | (any & 0x8000)) : any;
    default:
        return any;
    }
}

static float x_scale(unsigned kind, uint64_t *state, bool special)
{
    const float any = random_normal(state);

    switch (kind) {
    case 0:
        return any < 0 ? -0.0f : 0.0f;
    case 1:
        return any * 0x1p-140f;
    case 2:
        return any * 0x1p90f;
    case 3:
        return special ? NAN : any;
    case 4:
        return special ? INFINITY : any;
    default:
        return any;
    }
}

/* One row of a weight or of x in any form; cols counts elements of the operand's dtype. */
static void fill_weights(const test_case *c, uint32_t dtype, unsigned char *row, int64_t cols, uint64_t state)
{
    const int64_t blocks = dtype == RIDGE_U8 ? cols / 34 : cols;
    const unsigned kind = hard(c) ? (unsigned)(random_next(&state) % 9) : 9;
    const int64_t special = blocks ? (int64_t)(random_next(&state) % (uint64_t)blocks) : 0;

    if (dtype == RIDGE_I8) {
        fill_codes(c, row, cols, &state);
        return;
    }
    for (int64_t b = 0; b < blocks; b++) {
        const uint16_t half = half_scale(kind, &state, b == special);
        const float scale = dtype == RIDGE_F32 ? x_scale(kind, &state, b == special) : 0;

        if (dtype == RIDGE_U8) {
            memcpy(row + 34 * b, &half, 2);
            fill_codes(c, row + 34 * b + 2, 32, &state);
        } else if (dtype == RIDGE_F16) {
            memcpy(row + 2 * b, &half, 2);
        } else {
            memcpy(row + 4 * b, &scale, 4);
        }
    }
}

bool fill_q8_0(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const ridge_operand *operand = &im->call.arg[arg];
    unsigned char *base = im->host + im->offset[arg];
    int64_t rows, cols, pitch;

    if (!is_product(op->id) ||
        (operand->dtype != RIDGE_U8 && operand->dtype != RIDGE_I8 && !strstr(op->arg[arg].name, "_scales")))
        return false;
    op->extent(&im->call, arg, &rows, &cols);
    pitch = (operand->stride ? operand->stride : cols) * (int64_t)ridge_dtype_size(operand->dtype);
#pragma omp parallel for schedule(static) if (rows * cols > 100000)
    for (int64_t r = 0; r < rows; r++)
        fill_weights(c, operand->dtype, base + r * pitch, cols,
                     (seed + (uint64_t)arg) ^ (uint64_t)(r + 1) * UINT64_C(0xd1342543de82ef95));
    return true;
}

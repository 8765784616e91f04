/* oracle.c: float64 checks of products with weights in block formats, and of their repacking. Weights are what
 * ridge_dequantize, the reader of checkpoints, makes of the blocks; codes that a product makes of x inside are taken
 * from the C reference of q8_0_quantize_rows, which has a check of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "ops/blocks/cpu.h"
#include "ridge_io.h"

const uint32_t block_file_types[RIDGE_DTYPES] = {
    [RIDGE_Q4_0] = RIDGE_TYPE_Q4_0,   [RIDGE_Q4_1] = RIDGE_TYPE_Q4_1, [RIDGE_Q8_0] = RIDGE_TYPE_Q8_0,
    [RIDGE_MXFP4] = RIDGE_TYPE_MXFP4, [RIDGE_Q2_K] = RIDGE_TYPE_Q2_K, [RIDGE_Q4_K] = RIDGE_TYPE_Q4_K,
    [RIDGE_Q5_K] = RIDGE_TYPE_Q5_K,   [RIDGE_Q6_K] = RIDGE_TYPE_Q6_K, [RIDGE_IQ2_XXS] = RIDGE_TYPE_IQ2_XXS,
};

/* x as codes and scales, and the weights of the call in blocks. */
typedef struct operands {
    int8_t *codes;
    float *scales;
    uint8_t *blocks[2];
} operands;

/* One row of a weight in blocks, in f32. */
typedef struct weight_row {
    const uint8_t *blocks;
    float *w;
} weight_row;

static bool quantise(const image *im, ridge_device *cpu, operands *o)
{
    const int64_t tokens = im->call.dim[0], cols = im->call.dim[1];
    ridge_call call =
        ridge_q8_0_quantize_rows(tokens, cols, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_I8));

    o->codes = calloc((size_t)(tokens * cols) + 1, 1);
    o->scales = calloc((size_t)(tokens * cols / 32) + 1, sizeof *o->scales);
    if (!o->codes || !o->scales)
        return false;
    if (im->call.arg[0].dtype == RIDGE_I8) {
        for (int64_t i = 0; i < tokens * cols; i++)
            o->codes[i] = *(const int8_t *)oracle_address(im, im->host, 0, i / cols, i % cols);
        for (int64_t i = 0; i < tokens * cols / 32; i++)
            memcpy(&o->scales[i], oracle_address(im, im->host, 1, i / (cols / 32), i % (cols / 32)), 4);
        return true;
    }
    call.arg[0] = image_call(im, im->host).arg[0];
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, RIDGE_I8, o->codes, 0);
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES, RIDGE_F32, o->scales, 0);
    return ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
}

/* Both weights of the call: slots 2 and 3. */
static bool unpack(const image *im, ridge_device *cpu, operands *o)
{
    const block_layout f = block_layout_of(im->call.arg[2].dtype);
    const int64_t cols = im->call.dim[1], pitch = block_row_bytes(f, cols);
    const int count = im->call.op == RIDGE_BLOCK_MATMUL ? 1 : 2;
    const ridge_call there = image_call(im, im->host);

    for (int i = 0; i < count; i++) {
        const int64_t rows = im->call.dim[im->call.op == RIDGE_BLOCK_PAIR && i ? 3 : 2];
        ridge_call call = ridge_block_unpack(rows, cols, ridge_matrix(NULL, (ridge_dtype)im->call.arg[2].dtype), NULL);

        o->blocks[i] = calloc((size_t)(rows * pitch) + 1, 1);
        if (!o->blocks[i])
            return false;
        call.arg[RIDGE_BLOCK_REPACK_TILES] = there.arg[2 + i];
        ridge_set(&call, RIDGE_BLOCK_REPACK_BLOCKS, RIDGE_U8, o->blocks[i], 0);
        if (rows && ridge_run(cpu, &call, NULL, 0, NULL) != RIDGE_OK)
            return false;
    }
    return true;
}

estimate oracle_block_product(uint32_t format, int64_t cols, const uint8_t *from, const float *w, const int8_t *codes,
                              const float *scales)
{
    const block_layout f = block_layout_of(format);
    const int64_t blocks = cols / 32;
    double sum = 0, size = 0, tiny = 0;
    const block_minima minima = ridge_block_minima(format);
    bool infinite = false;

    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *x = codes + 32 * b;
        const double xs = (double)scales[b];
        double part[4] = {0}, dot; /* side by side */
        int x_sum[2] = {0, 0}, integer = 0;
        block_values v;

        ridge_block_decode(format, from + 32 * b / f.columns * f.bytes, (int)(b % (f.columns / 32)), &v);
        for (int half = 0; half < 2; half++)
            for (int i = 16 * half; i < 16 * half + 16; i++) {
                integer += v.sub[half] * v.code[i] * x[i];
                x_sum[half] += x[i];
            }
        for (int i = 0; i < 32; i++)
            part[i % 4] += (double)w[32 * b + i] * x[i];
        for (int i = 0; i < 32; i++)
            infinite |= isinf(w[32 * b + i]) != 0; /* of a scale whose products with codes may be finite */
        dot = part[0] + part[1] + (part[2] + part[3]);
        if (isnan((double)v.scale * xs) || (minima && (isnan((double)v.min[0] * xs) || isnan((double)v.min[1] * xs))))
            return (estimate){NAN, 0};
        infinite = infinite || !isfinite((float)(v.scale * xs)) || !isfinite(v.min[0]) || !isfinite(v.min[1]);
        infinite = infinite || (minima && fabs(xs) * (abs(x_sum[0]) + abs(x_sum[1])) > 0x1p127); /* times 0: NaN */
        sum += xs * dot;
        size += fabs((double)v.scale * xs * integer);
        for (int i = 0; i < 2; i++)
            size += fabs((double)v.min[i] * xs * x_sum[i]) + 16 * 127 * 0x1p-24 * fabs((double)v.min[i] * xs);
        tiny += abs(integer) * 0x1p-149 + 0x1p-140;
    }
    if (infinite || size > 0x1p120) /* an intermediate may be infinite, and two of them NaN */
        return (estimate){0, INFINITY};
    return (estimate){sum, ((double)blocks / 2 + 16) * 0x1p-24 * size + tiny};
}

/* A row times token t. */
static estimate product(const image *im, const operands *o, weight_row row, int64_t t)
{
    const int64_t cols = im->call.dim[1];

    return oracle_block_product(im->call.arg[2].dtype, cols, row.blocks, row.w, o->codes + t * cols,
                                o->scales + t * (cols / 32));
}

/* e plus an input, added in f32. */
static estimate plus(estimate e, double more)
{
    if (e.error == INFINITY)
        return isnan(more) ? (estimate){NAN, 0} : e;
    e.value += more;
    e.error += isfinite(e.value) ? 0x1p-24 * (fabs(e.value) + e.error) : 0;
    return e;
}

static estimate with_bias(const oracle_run *s, estimate e, int bias, int64_t r)
{
    return s->im->length[bias] ? plus(e, oracle_in(s, bias, 0, r)) : e;
}

static void check_row(oracle_run *s, const operands *o, const weight_row *row, int64_t t, int64_t r, int which)
{
    const image *im = s->im;
    estimate e;

    switch (im->call.op) {
    case RIDGE_BLOCK_MATMUL:
        e = with_bias(s, product(im, o, row[0], t), RIDGE_BLOCK_MATMUL_BIAS, r);
        if (im->length[RIDGE_BLOCK_MATMUL_RESIDUAL])
            e = plus(e, oracle_in(s, RIDGE_BLOCK_MATMUL_RESIDUAL, t, r));
        oracle_estimate(s, RIDGE_BLOCK_MATMUL_OUT, t, r, e);
        break;
    case RIDGE_BLOCK_PAIR:
        e = with_bias(s, product(im, o, row[which], t), RIDGE_BLOCK_PAIR_BIAS0 + which, r);
        oracle_estimate(s, RIDGE_BLOCK_PAIR_OUT0 + which, t, r, e);
        break;
    default:
        e = oracle_gated(&im->call, with_bias(s, product(im, o, row[0], t), RIDGE_BLOCK_GATE_UP_SWIGLU_GATE_BIAS, r),
                         with_bias(s, product(im, o, row[1], t), RIDGE_BLOCK_GATE_UP_SWIGLU_UP_BIAS, r),
                         im->length[RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE]
                             ? oracle_in(s, RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE, 0, t)
                             : 1);
        oracle_estimate(s, RIDGE_BLOCK_GATE_UP_SWIGLU_OUT, t, r, e);
        break;
    }
}

static void check_all(oracle_run *run, const operands *o, float *w)
{
    const ridge_call *call = &run->im->call;
    const block_layout f = block_layout_of(call->arg[2].dtype);
    const int64_t cols = call->dim[1], pitch = block_row_bytes(f, cols);
    const bool both = call->op == RIDGE_BLOCK_GATE_UP_SWIGLU;

    for (int which = 0; which < (call->op == RIDGE_BLOCK_PAIR ? 2 : 1); which++)
        for (int64_t r = 0; r < call->dim[2 + which]; r++) {
            weight_row row[2];

            for (int i = 0; i < 2; i++) {
                row[i] = (weight_row){NULL, w + i * cols};
                if (i != which && !both)
                    continue;
                row[i].blocks = o->blocks[i] + r * pitch;
                if (ridge_dequantize(block_file_types[call->arg[2].dtype], row[i].blocks, cols, row[i].w) != RIDGE_OK)
                    oracle_fail(run, ridge_error());
            }
            for (int64_t t = 0; t < call->dim[0]; t++)
                check_row(run, o, row, t, r, which);
        }
}

void oracle_block_products(oracle_run *run)
{
    const image *im = run->im;
    float *w = calloc((size_t)im->call.dim[1] * 2 + 1, sizeof *w);
    ridge_device *cpu = NULL;
    operands o = {0};
    char why[300];

    if (w && ridge_open("cpu:c", &cpu) == RIDGE_OK && quantise(im, cpu, &o) && unpack(im, cpu, &o)) {
        check_all(run, &o, w);
    } else {
        snprintf(why, sizeof why, "the oracle cannot take the operands apart: %s", ridge_error());
        oracle_fail(run, why);
    }
    ridge_close(cpu);
    free(w);
    free(o.codes);
    free(o.scales);
    free(o.blocks[0]);
    free(o.blocks[1]);
}

/* Each code and scale of the tiles is that of the blocks: by the layout's other direction, block_byte. */
void oracle_blocks_moved(oracle_run *run)
{
    const ridge_call *call = &run->im->call;
    const uint32_t format = call->arg[RIDGE_BLOCK_REPACK_TILES].dtype;
    const block_layout f = block_layout_of(format);
    const int64_t cols = call->dim[1], units = block_units(cols);
    uint8_t mine[BLOCK_MAX_ROW_BYTES];

    for (int64_t r = 0; r < call->dim[0]; r++)
        for (int64_t u = 0; u < units; u++) {
            const int count = (int)(cols - 256 * u < 256 ? cols / 32 - 8 * u : 8);
            const int runs = u == units - 1 ? block_last_runs(cols) : 2, bytes = count * 32 / f.columns * f.bytes;
            const uint8_t *tile = oracle_address(run->im, run->got, RIDGE_BLOCK_REPACK_TILES, r / BLOCK_ROWS, 0);
            const uint8_t *row = oracle_address(run->im, run->got, RIDGE_BLOCK_REPACK_BLOCKS, r, 0);

            ridge_block_row_of_unit(format, tile + u * block_unit_bytes(f, 2), runs, (int)(r % BLOCK_ROWS), count,
                                    mine);
            if (memcmp(mine, row + 256 * u / f.columns * f.bytes, (size_t)bytes))
                oracle_note(run, INFINITY, "block", r, u);
        }
}

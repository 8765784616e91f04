/* oracle.c: float64 checks of the FP8 quantisers. Codes are decoded by definition, from tables built
 * here, and compared with the nearest one; nothing is shared with the library's arithmetic. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

/* What is under test: x as doubles, packed. */
typedef struct subject {
    oracle_run *run;
    const image *im;
    const unsigned char *got;
    double *x;
    int64_t rows, cols, matrix; /* matrix: rows of one */
    int e5m2;
    double decoded[127]; /* of the codes 0 .. 126, ascending; infinity and NaN of e5m2 left out */
    int codes;
    double floor;
    bool pow2;
} subject;

static void decode_table(subject *s)
{
    const int fraction = s->e5m2 ? 2 : 3, bias = s->e5m2 ? 15 : 7;

    s->codes = s->e5m2 ? 124 : 127;
    for (int c = 0; c < s->codes; c++) {
        int exponent = c >> fraction, low = c & ((1 << fraction) - 1);

        s->decoded[c] = exponent ? ldexp((double)(low + (1 << fraction)), exponent - bias - fraction)
                                 : ldexp((double)low, 1 - bias - fraction);
    }
}

/* One code: no farther from x / scale than the nearest code, up to 2^-20 of it. */
static void check_code(subject *s, uint8_t code, double x, double scale, int64_t row, int64_t col)
{
    double v = fabs(x) / scale, best, got;
    int low = 0, high = s->codes - 1;

    if (isnan(scale) || !(scale > 0) || isinf(scale) || !isfinite(x)) {
        oracle_note(s->run, code == 0x7f ? 0 : INFINITY, "code of a group that is not finite", row, col);
        return;
    }
    if ((code & 0x7f) >= s->codes || (x != 0 && signbit(x) != (code >> 7))) {
        oracle_note(s->run, INFINITY, "code that is not finite or has the wrong sign", row, col);
        return;
    }
    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (s->decoded[middle] <= v)
            low = middle;
        else
            high = middle;
    }
    best = fmin(fabs(v - s->decoded[low]), fabs(s->decoded[high] - v));
    got = fabs(s->decoded[code & 0x7f] - v);
    oracle_note(s->run, (got - best) / (v * 0x1p-20 + 0x1p-40), "code", row, col);
}

/* A scale from the amax of its group: NaN exactly if that is not finite. */
static void check_scale(subject *s, double got, double amax, int64_t row, int64_t col)
{
    double m = fmax(amax, s->floor), want = m / (s->e5m2 ? 57344.0 : 448.0);

    if (!isfinite(amax)) {
        oracle_note(s->run, isnan(got) ? 0 : INFINITY, "scale of a group that is not finite", row, col);
        return;
    }
    want = m == 0 ? 1 : fmax(want, 0x1p-126);
    if (s->pow2) {
        int exponent;
        bool power = frexp(got, &exponent) == 0.5;

        oracle_note(s->run, power && got >= want * (1 - 0x1p-23) && got < 2 * want ? 0 : INFINITY, "power-of-two scale",
                    row, col);
    } else {
        oracle_note(s->run, fabs(got - want) / dtype_ulp(want, RIDGE_F32), "scale", row, col);
    }
}

/* x[row, row+rows) x [col, col+cols) shares the scale `scale`; codes are in operand q, transposed or not, then those of
 * one matrix after another. */
static void check_block(subject *s, int64_t row, int64_t rows, int64_t col, int64_t cols, double scale, int q,
                        bool transposed, bool derived)
{
    double amax = 0;

    for (int64_t r = row; r < row + rows; r++)
        for (int64_t c = col; c < col + cols; c++) {
            double x = s->x[r * s->cols + c];

            amax = isfinite(x) ? fmax(amax, fabs(x)) : INFINITY;
            if (isinf(amax))
                break;
        }
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t c = col; c < col + cols; c++)
            amax = isfinite(s->x[r * s->cols + c]) ? amax : INFINITY;
    if (derived)
        check_scale(s, scale, amax, row, col);
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t c = col; c < col + cols; c++)
            check_code(s,
                       *(const uint8_t *)oracle_address(s->im, s->got, q, transposed ? r / s->matrix * s->cols + c : r,
                                                        transposed ? r % s->matrix : c),
                       s->x[r * s->cols + c], scale, r, c);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A form with one scale per 128 (or 128 x 128): operands q and q + 1. */
static void check_form(subject *s, int q, bool block, bool transposed)
{
    const int64_t high = block || transposed ? 128 : 1, wide = block || !transposed ? 128 : 1;
    const int64_t tall = (s->matrix + 127) / 128, across = (s->cols + 127) / 128;

    for (int64_t first = 0; first < s->rows; first += s->matrix)
        for (int64_t r = 0; r < s->matrix; r += high)
            for (int64_t c = 0; c < s->cols; c += wide) {
                const int64_t n = first / s->matrix;
                const double scale = block && transposed ? oracle_out(s->run, q + 1, n * across + c / 128, r / 128)
                                     : block             ? oracle_out(s->run, q + 1, n * tall + r / 128, c / 128)
                                     : transposed        ? oracle_out(s->run, q + 1, r / 128, n * s->cols + c)
                                                         : oracle_out(s->run, q + 1, c / 128, first + r);

                check_block(s, first + r, least(high, s->matrix - r), c, least(wide, s->cols - c), scale, q, transposed,
                            true);
            }
}

/* TENSOR and ROW, with what a caller gives or asks for. */
static void check_whole(subject *s)
{
    const image *im = s->im;
    const bool row_mode = (im->call.flags & RIDGE_SCALE) == RIDGE_SCALE_ROW;
    const bool given = im->length[RIDGE_QUANTIZE_FP8_GIVEN] > 0, amaxes = im->length[RIDGE_QUANTIZE_FP8_AMAX] > 0;
    const int64_t high = row_mode ? 1 : s->rows;

    for (int64_t r = 0; r < s->rows; r += high) {
        double scale = oracle_out(s->run, given ? RIDGE_QUANTIZE_FP8_GIVEN : RIDGE_QUANTIZE_FP8_SCALE, 0, r), amax = 0;

        if (given && scale > 0 && isfinite(scale))
            scale = fmin(fmax(scale, 0x1p-126), 0x1p126);
        check_block(s, r, high, 0, s->cols, scale, RIDGE_QUANTIZE_FP8_Q, false, !given);
        for (int64_t i = r * s->cols; i < (r + high) * s->cols; i++)
            amax = isfinite(s->x[i]) ? fmax(amax, fabs(s->x[i])) : NAN + amax;
        if (amaxes) {
            double got = oracle_out(s->run, RIDGE_QUANTIZE_FP8_AMAX, 0, r);

            for (int64_t i = r * s->cols; i < (r + high) * s->cols; i++)
                amax = isfinite(s->x[i]) ? amax : NAN;
            oracle_note(s->run, isnan(amax) ? (isnan(got) ? 0 : INFINITY) : (got == amax ? 0 : INFINITY), "amax", r, 0);
        }
    }
}

static void check_colsum(subject *s)
{
    for (int64_t c = 0; c < s->cols; c++) {
        double sum = 0, size = 0, got = oracle_out(s->run, RIDGE_QUANTIZE_FP8_DUAL_COLSUM, 0, c);

        for (int64_t r = 0; r < s->rows; r++) {
            sum += s->x[r * s->cols + c];
            size += fabs(s->x[r * s->cols + c]);
        }
        if (!(size < 1e38)) /* overflow, infinity or NaN: only a NaN must show */
            oracle_note(s->run, isnan(sum) && !isnan(got) ? INFINITY : 0, "colsum", 0, c);
        else
            oracle_note(s->run, fabs(got - sum) / (0x1p-24 * (24 + (double)s->rows / 128) * size + 0x1p-149), "colsum",
                        0, c);
    }
}

/* swiglu_quantize: x is what swiglu_fwd's C reference stores. */
static bool swiglu_elements(subject *s)
{
    const uint32_t dtype = s->im->call.arg[RIDGE_SWIGLU_QUANTIZE_GATE].dtype;
    const size_t size = ridge_dtype_size(dtype);
    const ridge_call all = image_call(s->im, s->im->host);
    void *out = calloc((size_t)(s->rows * s->cols) + 1, size);
    ridge_call call = ridge_swiglu_fwd(s->rows, s->cols, (ridge_dtype)dtype, NULL, NULL, out);
    ridge_device *cpu = NULL;
    bool good = out && ridge_open("cpu:c", &cpu) == RIDGE_OK;

    call.arg[RIDGE_SWIGLU_FWD_GATE] = all.arg[RIDGE_SWIGLU_QUANTIZE_GATE];
    call.arg[RIDGE_SWIGLU_FWD_UP] = all.arg[RIDGE_SWIGLU_QUANTIZE_UP];
    call.arg[RIDGE_SWIGLU_FWD_ROW_SCALE] = all.arg[RIDGE_SWIGLU_QUANTIZE_ROW_SCALE];
    call.flags = all.flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED);
    call.opt.swiglu = all.opt.swiglu_quantize.swiglu;
    good = good && ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
    for (int64_t i = 0; i < s->rows * s->cols && good; i++)
        s->x[i] = dtype_load((char *)out + (size_t)i * size, dtype);
    ridge_close(cpu);
    free(out);
    return good;
}

void oracle_quantize(oracle_run *run)
{
    const image *im = run->im;
    const bool swiglu = im->call.op == RIDGE_SWIGLU_QUANTIZE, single = im->call.op == RIDGE_QUANTIZE_FP8;
    const int q = swiglu ? (int)RIDGE_SWIGLU_QUANTIZE_Q : (int)RIDGE_QUANTIZE_FP8_Q;
    const uint32_t scale = im->call.flags & RIDGE_SCALE, dual = im->call.flags & RIDGE_DUAL;
    subject s = {.run = run, .im = im, .got = run->got, .rows = im->call.dim[0], .cols = im->call.dim[1]};
    bool good = true;

    s.matrix = im->call.op == RIDGE_QUANTIZE_FP8_DUAL ? s.rows / im->call.opt.quantize.matrices : s.rows;
    s.e5m2 = im->call.arg[q].dtype == RIDGE_E5M2;
    s.pow2 = (im->call.flags & RIDGE_POW2) != 0;
    s.floor = (double)(swiglu ? im->call.opt.swiglu_quantize.floor : im->call.opt.quantize.floor);
    s.x = malloc(((size_t)(s.rows * s.cols) + 1) * sizeof *s.x);
    decode_table(&s);
    if (swiglu)
        good = s.x && swiglu_elements(&s);
    else
        for (int64_t i = 0; i < s.rows * s.cols && s.x; i++)
            s.x[i] = oracle_in(run, 0, i / s.cols, i % s.cols);
    if (!s.x || !good || s.rows == 0 || s.cols == 0) {
        if (s.rows && s.cols)
            oracle_fail(run, "the oracle ran out of memory");
        free(s.x);
        return;
    }
    if (single && (scale == RIDGE_SCALE_TENSOR || scale == RIDGE_SCALE_ROW))
        check_whole(&s);
    else
        check_form(&s, q, single ? scale == RIDGE_SCALE_BLK128 : dual == RIDGE_DUAL_BLK_BLK, false);
    if (!single)
        check_form(&s, q + 2, dual != RIDGE_DUAL_ROW_ROW, true);
    if (im->call.op == RIDGE_QUANTIZE_FP8_DUAL && im->length[RIDGE_QUANTIZE_FP8_DUAL_COLSUM])
        check_colsum(&s);
    free(s.x);
}

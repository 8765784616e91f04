/* oracle.c: the float64 reference of gemm_fp8 and its two bounds, per element and per 128 x 128 tile; and of
 * Hopper's rows the very bits. Codes are decoded by definition; nothing is shared with the library's arithmetic.
 * Reference, bound and bits of a case are computed once, by all cores, and kept with the image. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "gemm.h"
#include "tensor_core.h"

enum { BLOCK = 128, TILE_LEAST = 1024 /* elements, below which the norm of a tile says little */ };

static double decode(unsigned code, bool e5m2)
{
    const int fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, magnitude = (int)(code & 0x7f);
    const int exponent = magnitude >> fraction, low = magnitude & ((1 << fraction) - 1);
    double value = exponent ? ldexp((double)(low + (1 << fraction)), exponent - bias - fraction)
                            : ldexp((double)low, 1 - bias - fraction);

    if (e5m2 && exponent == 31)
        value = low ? NAN : INFINITY;
    if (!e5m2 && magnitude == 0x7f)
        value = NAN;
    return code & 0x80 ? -value : value;
}

/* All rows of an operand, decoded and packed. */
static double *decoded(const image *im, int arg)
{
    const bool e5m2 = im->call.arg[arg].dtype == RIDGE_E5M2;
    int64_t rows, cols;
    double table[256], *to;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    to = malloc((size_t)(rows * cols + 1) * sizeof *to);
    for (unsigned code = 0; code < 256; code++)
        table[code] = decode(code, e5m2);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const unsigned char *from = oracle_address(im, im->host, arg, r, 0);

        for (int64_t c = 0; c < cols && to; c++)
            to[r * cols + c] = table[from[c]];
    }
    return to;
}

/* The scale of row r (of A or B) in block `block`. */
static double scale(const image *im, int arg, uint32_t mode, int64_t r, int64_t block)
{
    const int64_t row = mode == RIDGE_SCALE_ROW128 ? block : mode == RIDGE_SCALE_BLK128 ? r / BLOCK : 0;
    const int64_t col = mode == RIDGE_SCALE_BLK128 ? block : mode == RIDGE_SCALE_TENSOR ? 0 : r;

    if (im->call.flags & (arg == RIDGE_GEMM_FP8_SCALE_A ? RIDGE_SCALE_T : RIDGE_SCALE_B_T))
        return dtype_load(oracle_address(im, im->host, arg, col, row), RIDGE_F32);
    return dtype_load(oracle_address(im, im->host, arg, row, col), RIDGE_F32);
}

/* Sum of products and of their magnitudes, in any order: float64 has bits to spare. */
static void dot(const double *a, const double *b, int64_t n, double *sum, double *mass)
{
    double s = 0, m = 0;

#pragma omp simd reduction(+ : s, m)
    for (int64_t x = 0; x < n; x++) {
        const double p = a[x] * b[x];

        s += p;
        m += fabs(p);
    }
    *sum = s;
    *mass = m;
}

/* One element: the sum in float64, and how far a row may be from it. Two terms of the bound are for what the others
 * leave out: the additions of bias and D in f32, and D's smallest numbers. */
static void element(const image *im, const double *a, const double *b, int64_t i, int64_t j, double *reference,
                    double *bound)
{
    const uint32_t mode_a = im->call.flags & RIDGE_SCALE, mode_b = (im->call.flags & RIDGE_SCALE_B) >> 4;
    const ridge_operand *d = &im->call.arg[RIDGE_GEMM_FP8_D], *bias = &im->call.arg[RIDGE_GEMM_FP8_BIAS];
    const bool blocks = mode_a == RIDGE_SCALE_ROW128 || mode_a == RIDGE_SCALE_BLK128;
    const int64_t k = im->call.dim[2];
    double sum = 0, mass = 0, size;

    for (int64_t block = 0; block * BLOCK < k; block++) {
        const int64_t begin = block * BLOCK, end = k - begin < BLOCK ? k : begin + BLOCK;
        const double s =
            scale(im, RIDGE_GEMM_FP8_SCALE_A, mode_a, i, block) * scale(im, RIDGE_GEMM_FP8_SCALE_B, mode_b, j, block);
        double part = 0, part_mass = 0;

        dot(a + i * k + begin, b + j * k + begin, end - begin, &part, &part_mass);
        /* a scale of all blocks multiplies once, at the end: infinity times their sum */
        sum += blocks ? s * part : part;
        mass += s * part_mass * (s * part_mass);
    }
    if (!blocks && k)
        sum *= scale(im, RIDGE_GEMM_FP8_SCALE_A, mode_a, i, 0) * scale(im, RIDGE_GEMM_FP8_SCALE_B, mode_b, j, 0);
    size = fabs(sum);
    if (bias->dtype != RIDGE_NONE) {
        const double x = dtype_load(oracle_address(im, im->host, RIDGE_GEMM_FP8_BIAS, 0, j), bias->dtype);

        sum += x;
        size += fabs(x);
    }
    if (im->call.flags & RIDGE_ACCUMULATE) {
        const double x = dtype_load(oracle_address(im, im->host, RIDGE_GEMM_FP8_D, i, j), d->dtype);

        sum += x;
        size += fabs(x);
    }
    *reference = sum;
    *bound = 0x1p-10 * sqrt(mass) + dtype_unit(im->call.arg[RIDGE_GEMM_FP8_D].dtype) * fabs(sum) + 0x1p-22 * size +
             0.5 * dtype_ulp(0, d->dtype);
}

static bool prepare(const image *im)
{
    const int64_t m = im->call.dim[0], n = im->call.dim[1];
    double *a, *b;

    if (im->memo->reference)
        return true;
    a = decoded(im, RIDGE_GEMM_FP8_A);
    b = decoded(im, RIDGE_GEMM_FP8_B);
    im->memo->reference = malloc((size_t)(m * n + 1) * sizeof(double));
    im->memo->bound = malloc((size_t)(m * n + 1) * sizeof(double));
    if (a && b && im->memo->reference && im->memo->bound) {
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                element(im, a, b, i, j, &im->memo->reference[i * n + j], &im->memo->bound[i * n + j]);
    }
    free(a);
    free(b);
    return a && b && im->memo->reference && im->memo->bound;
}

/* The norm of the error of one tile over its bound; 0 where the tile is small or holds what is not finite. Every
 * element may be off by half of D's smallest number too. */
static double tile_ratio(const image *im, const unsigned char *got, int64_t row, int64_t col)
{
    const int64_t m = im->call.dim[0], n = im->call.dim[1];
    const int64_t rows = m - row < BLOCK ? m - row : BLOCK, cols = n - col < BLOCK ? n - col : BLOCK;
    const uint32_t dtype = im->call.arg[RIDGE_GEMM_FP8_D].dtype;
    double error = 0, norm = 0;

    if (rows * cols < TILE_LEAST)
        return 0;
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t j = col; j < col + cols; j++) {
            const double reference = im->memo->reference[i * n + j];
            const double y = dtype_load(oracle_address(im, got, RIDGE_GEMM_FP8_D, i, j), dtype);
            const double e = isinf(y) ? 0 : y - reference; /* an overflow: judged by its own bound */

            error += e * e;
            norm += reference * reference;
        }
    if (!isfinite(norm))
        return 0;
    return isnan(error) ? INFINITY
                        : sqrt(error) / ((0x1p-11 + dtype_unit(dtype)) * sqrt(norm) +
                                         0.5 * dtype_ulp(0, dtype) * sqrt((double)(rows * cols)));
}

void oracle_gemm(oracle_run *run)
{
    const image *im = run->im;
    const int64_t m = im->call.dim[0], n = im->call.dim[1];
    const uint32_t dtype = im->call.arg[RIDGE_GEMM_FP8_D].dtype;

    if (m == 0 || n == 0)
        return;
    if (!prepare(im)) {
        oracle_fail(run, "the oracle ran out of memory");
        return;
    }
    if (im->fill == FILL_EXACT && im->call.dim[2] && !oracle_gemm_bits(im, run->got, run->text, run->size)) {
        run->worst = INFINITY; /* the tensor cores lose nothing of it */
        return;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const double y = oracle_out(run, RIDGE_GEMM_FP8_D, i, j), reference = im->memo->reference[i * n + j];
            const double ratio = oracle_ratio(y, reference, im->memo->bound[i * n + j], dtype);

            if (!(ratio <= run->worst)) {
                run->worst = ratio;
                snprintf(run->text, run->size,
                         "d[%" PRId64 ",%" PRId64 "] is %.9g, the float64 reference %.9g: %.3g of the bound", i, j, y,
                         reference, ratio);
            }
        }
    for (int64_t row = 0; row < m && (im->fill == FILL_NORMAL || im->fill == FILL_UNIT); row += BLOCK)
        for (int64_t col = 0; col < n; col += BLOCK)
            oracle_note(run, tile_ratio(im, run->got, row, col), "the norm of the error of the tile at d", row, col);
}

/* ------------------------------------------------------------------------------------------------------------ bits */

enum { SPLITS = 4 /* k in 1, 2, 4 or 8 runs */, QUAD = 4 /* at multiples of so many blocks */ };

bool oracle_gemm_has_bits(const ridge_kernel *kernel)
{
    return (kernel->contract & RIDGE_TYPICAL) && kernel->arch_max == RIDGE_ARCH_SM90;
}

/* All rows of an operand, each with zeros up to whole blocks; values NULL: no memory. */
static tensor_numbers numbers_of(const image *im, int arg, int64_t rows)
{
    const bool e5m2 = im->call.arg[arg].dtype == RIDGE_E5M2;
    const int64_t k = im->call.dim[2], whole = (k + BLOCK - 1) / BLOCK * BLOCK;
    float *value = malloc((size_t)(rows * whole + 1) * sizeof *value);
    int16_t *exponent = malloc((size_t)(rows * whole + 1) * sizeof *exponent);
    bool special = false;

#pragma omp parallel for reduction(|| : special)
    for (int64_t r = 0; r < rows; r++) {
        const unsigned char *from = oracle_address(im, im->host, arg, r, 0);

        for (int64_t c = 0, at = r * whole; c < whole && value && exponent; c++, at++) {
            value[at] = c < k ? (float)decode(from[c], e5m2) : 0.0f;
            exponent[at] = tensor_exponent(value[at], e5m2 ? TENSOR_E5M2 : TENSOR_E4M3);
            special = special || !isfinite(value[at]);
        }
    }
    return (tensor_numbers){value, exponent, special};
}

/* Scale x as the tensor cores multiply it: three bf16, which are its high, middle and low bits. `order` names those of
 * the eight elements; the other eight are the same. */
static void cut_scale(float x, const char *order, float *value, int16_t *exponent)
{
    const float high = ridge_float(ridge_bits(x) & 0xffff0000u), rest = x - high;
    const float middle = ridge_float(ridge_bits(rest) & 0xffff0000u);
    const float low = ridge_float(ridge_bits(rest - middle) & 0xffff0000u);

    for (int i = 0; i < 16; i++) {
        value[i] = order[i % 8] == 'h' ? high : order[i % 8] == 'm' ? middle : low;
        exponent[i] = tensor_exponent(value[i], TENSOR_BF16);
    }
}

/* sA sB by the tensor cores. */
static float tensor_product(float a, float b)
{
    float value[2][16];
    int16_t exponent[2][16];
    const bool special = !isfinite(a) || !isfinite(b);

    cut_scale(a, "hhmhlmml", value[0], exponent[0]);
    cut_scale(0.5f * b, "hmhlhmlm", value[1], exponent[1]);
    return tensor_add_bf16((tensor_numbers){value[0], exponent[0], special},
                           (tensor_numbers){value[1], exponent[1], special});
}

/* acc and one block's products, in the order of the row that takes this call. */
static float add_block(const image *im, const tensor_numbers *a, const tensor_numbers *b, int64_t i, int64_t j,
                       int64_t block, float acc)
{
    const uint32_t mode_a = im->call.flags & RIDGE_SCALE, mode_b = (im->call.flags & RIDGE_SCALE_B) >> 4;
    const int64_t blocks = (im->call.dim[2] + BLOCK - 1) / BLOCK;
    float sum = 0, scale_a, scale_b;

    for (int64_t k = block * BLOCK; k < (block + 1) * BLOCK; k += 32)
        sum = tensor_add_fp8(tensor_from(a, i * blocks * BLOCK + k), tensor_from(b, j * blocks * BLOCK + k), sum);
    if (mode_a == RIDGE_SCALE_TENSOR || mode_a == RIDGE_SCALE_ROW)
        return acc + sum;
    scale_a = (float)scale(im, RIDGE_GEMM_FP8_SCALE_A, mode_a, i, block);
    scale_b = (float)scale(im, RIDGE_GEMM_FP8_SCALE_B, mode_b, j, block);
    if (mode_b == RIDGE_SCALE_BLK128 && !(im->call.flags & RIDGE_GROUPED_K)) /* groups of k: by the way of ROW128 */
        return fmaf(scale_a * scale_b, sum, acc);
    if (im->call.arg[RIDGE_GEMM_FP8_D].dtype == RIDGE_F32)
        return fmaf(scale_b, scale_a * sum, acc);
    return fmaf(tensor_product(scale_a, scale_b), sum, acc);
}

/* One element of D before its rounding, k in 1 << shift runs. */
static float element_bits(const image *im, const tensor_numbers *a, const tensor_numbers *b, int64_t i, int64_t j,
                          int shift)
{
    const uint32_t mode_a = im->call.flags & RIDGE_SCALE, mode_b = (im->call.flags & RIDGE_SCALE_B) >> 4;
    const ridge_operand *d = &im->call.arg[RIDGE_GEMM_FP8_D], *bias = &im->call.arg[RIDGE_GEMM_FP8_BIAS];
    const int64_t blocks = (im->call.dim[2] + BLOCK - 1) / BLOCK, quads = (blocks + QUAD - 1) / QUAD;
    float sum = 0;

    for (int64_t run = 0; run < 1 << shift; run++) {
        const int64_t end = ((run + 1) * quads >> shift) * QUAD;
        float acc = 0;

        for (int64_t block = (run * quads >> shift) * QUAD; block < end && block < blocks; block++)
            acc = add_block(im, a, b, i, j, block, acc);
        sum = run ? sum + acc : acc;
    }
    if (blocks &&
        (mode_a == RIDGE_SCALE_TENSOR || mode_a == RIDGE_SCALE_ROW)) /* without any k 0, whatever the scales */
        sum *= (float)scale(im, RIDGE_GEMM_FP8_SCALE_A, mode_a, i, 0) *
               (float)scale(im, RIDGE_GEMM_FP8_SCALE_B, mode_b, j, 0);
    if (bias->dtype != RIDGE_NONE)
        sum += (float)dtype_load(oracle_address(im, im->host, RIDGE_GEMM_FP8_BIAS, 0, j), bias->dtype);
    if (im->call.flags & RIDGE_ACCUMULATE)
        sum += (float)dtype_load(oracle_address(im, im->host, RIDGE_GEMM_FP8_D, i, j), d->dtype);
    return sum;
}

bool oracle_gemm_store_bits(const image *im, int shift, unsigned char *bits)
{
    const int64_t m = im->call.dim[0], n = im->call.dim[1];
    const uint32_t dtype = im->call.arg[RIDGE_GEMM_FP8_D].dtype;
    const tensor_numbers a = numbers_of(im, RIDGE_GEMM_FP8_A, m), b = numbers_of(im, RIDGE_GEMM_FP8_B, n);
    const bool good = a.value && a.exponent && b.value && b.exponent;

#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n && good; j++)
            dtype_store((void *)oracle_address(im, bits, RIDGE_GEMM_FP8_D, i, j), dtype,
                        ridge_f32_canonical(element_bits(im, &a, &b, i, j, shift)));
    free((void *)a.value);
    free((void *)a.exponent);
    free((void *)b.value);
    free((void *)b.exponent);
    return good;
}

/* The image as such a row leaves it. */
static unsigned char *image_of_bits(const image *im, int shift)
{
    unsigned char *bits = malloc(im->bytes);

    if (bits)
        memcpy(bits, im->host, im->bytes);
    if (bits && !oracle_gemm_store_bits(im, shift, bits)) {
        free(bits);
        bits = NULL;
    }
    return bits;
}

bool oracle_gemm_bits(const image *im, const unsigned char *got, char *text, size_t size)
{
    const int splits = im->call.dim[0] > 64 ? 1 : SPLITS;
    bool good = false;

    for (int shift = 0; shift < splits && !good; shift++) {
        unsigned char **bits = &im->memo->bits[shift];

        *bits = *bits ? *bits : image_of_bits(im, shift);
        if (*bits)
            good = image_equal(im, *bits, got, text, size);
        else
            snprintf(text, size, "out of memory");
    }
    return good;
}

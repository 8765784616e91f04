/* oracle_gemm.c: the float64 reference of gemm_fp8 and its two bounds, per element and per 128 x 128 tile. Codes are
 * decoded by definition; nothing is shared with the library's arithmetic. Reference and bound of a case are computed
 * once, by all cores, and kept with the image. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "oracle.h"

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

    ridge_op_table[im->call.op]->extent(&im->call, arg, &rows, &cols);
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

    return dtype_load(oracle_address(im, im->host, arg, row, col), RIDGE_F32);
}

static double unit_of(const image *im)
{
    const uint32_t d = im->call.arg[RIDGE_GEMM_FP8_D].dtype;

    return ldexp(1.0, d == RIDGE_BF16 ? -8 : d == RIDGE_F16 ? -11 : -24);
}

/* Sum of products and of their magnitudes; four chains, because one is bound by the latency of an addition. */
static void dot(const double *a, const double *b, int64_t n, double *sum, double *mass)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, m0 = 0, m1 = 0, m2 = 0, m3 = 0;
    int64_t x = 0;

    for (; x + 4 <= n; x += 4) {
        const double p0 = a[x] * b[x], p1 = a[x + 1] * b[x + 1], p2 = a[x + 2] * b[x + 2], p3 = a[x + 3] * b[x + 3];

        s0 += p0, s1 += p1, s2 += p2, s3 += p3;
        m0 += fabs(p0), m1 += fabs(p1), m2 += fabs(p2), m3 += fabs(p3);
    }
    for (; x < n; x++) {
        s0 += a[x] * b[x];
        m0 += fabs(a[x] * b[x]);
    }
    *sum = (s0 + s1) + (s2 + s3);
    *mass = (m0 + m1) + (m2 + m3);
}

/* One element: the sum in float64, and how far a row may be from it. Two terms of the bound are for what the others
 * leave out: the additions of bias and D in f32, and D's smallest numbers. */
static void element(const image *im, const double *a, const double *b, int64_t i, int64_t j, double *reference,
                    double *bound)
{
    const uint32_t mode_a = im->call.flags & RIDGE_SCALE, mode_b = (im->call.flags & RIDGE_SCALE_B) >> 4;
    const ridge_operand *d = &im->call.arg[RIDGE_GEMM_FP8_D], *bias = &im->call.arg[RIDGE_GEMM_FP8_BIAS];
    const int64_t k = im->call.dim[2];
    double sum = 0, mass = 0, size;

    for (int64_t block = 0; block * BLOCK < k; block++) {
        const int64_t begin = block * BLOCK, end = k - begin < BLOCK ? k : begin + BLOCK;
        const double s =
            scale(im, RIDGE_GEMM_FP8_SCALE_A, mode_a, i, block) * scale(im, RIDGE_GEMM_FP8_SCALE_B, mode_b, j, block);
        double part = 0, part_mass = 0;

        dot(a + i * k + begin, b + j * k + begin, end - begin, &part, &part_mass);
        sum += s * part;
        mass += s * part_mass * (s * part_mass);
    }
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
    *bound = 0x1p-10 * sqrt(mass) + unit_of(im) * fabs(sum) + 0x1p-22 * size + 0.5 * dtype_ulp(0, d->dtype);
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

/* Error over bound. What is not finite must be so in kind; a value beyond the dtype may become infinity. */
static double ratio_of(double got, double reference, double bound, uint32_t dtype)
{
    const double most = dtype == RIDGE_F16 ? 65520.0 : 0x1.ffp127;

    if (isnan(reference) || isnan(got))
        return isnan(reference) && isnan(got) ? 0 : INFINITY;
    if (isinf(reference) || (isinf(got) && fabs(reference) + bound >= most))
        return isinf(got) && signbit(got) == signbit(reference) ? 0 : INFINITY;
    return fabs(got - reference) <= bound * 1e30 ? fabs(got - reference) / bound : INFINITY;
}

/* The norm of the error of one tile over its bound; 0 where the tile is small or holds what is not finite. */
static double tile_ratio(const image *im, const unsigned char *got, int64_t row, int64_t col)
{
    const int64_t m = im->call.dim[0], n = im->call.dim[1];
    const int64_t rows = m - row < BLOCK ? m - row : BLOCK, cols = n - col < BLOCK ? n - col : BLOCK;
    double error = 0, norm = 0;

    if (rows * cols < TILE_LEAST)
        return 0;
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t j = col; j < col + cols; j++) {
            const double reference = im->memo->reference[i * n + j];
            const double y =
                dtype_load(oracle_address(im, got, RIDGE_GEMM_FP8_D, i, j), im->call.arg[RIDGE_GEMM_FP8_D].dtype);
            const double e = isinf(y) ? 0 : y - reference; /* an overflow: judged by its own bound */

            error += e * e;
            norm += reference * reference;
        }
    if (!isfinite(norm))
        return 0;
    return isnan(error) ? INFINITY : sqrt(error) / ((0x1p-11 + unit_of(im)) * sqrt(norm));
}

bool oracle_gemm(const image *im, const unsigned char *got, double *worst, char *text, size_t size)
{
    const int64_t m = im->call.dim[0], n = im->call.dim[1];
    const uint32_t dtype = im->call.arg[RIDGE_GEMM_FP8_D].dtype;

    *worst = 0;
    if (m == 0 || n == 0)
        return true;
    if (!prepare(im)) {
        snprintf(text, size, "out of memory");
        return false;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const double y = dtype_load(oracle_address(im, got, RIDGE_GEMM_FP8_D, i, j), dtype);
            const double ratio = ratio_of(y, im->memo->reference[i * n + j], im->memo->bound[i * n + j], dtype);

            if (!(ratio <= *worst)) {
                *worst = ratio;
                snprintf(text, size,
                         "d[%" PRId64 ",%" PRId64 "] is %.9g, the float64 reference %.9g: %.3g of the bound", i, j, y,
                         im->memo->reference[i * n + j], ratio);
            }
        }
    if (im->fill != FILL_NORMAL && im->fill != FILL_UNIT)
        return *worst <= 1;
    for (int64_t row = 0; row < m; row += BLOCK)
        for (int64_t col = 0; col < n; col += BLOCK) {
            const double ratio = tile_ratio(im, got, row, col);

            if (!(ratio <= *worst)) {
                *worst = ratio;
                snprintf(text, size,
                         "the error of the tile at row %" PRId64 " column %" PRId64 " is %.3g of the bound of its norm",
                         row, col, ratio);
            }
        }
    return *worst <= 1;
}

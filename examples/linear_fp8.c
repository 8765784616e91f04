/* linear_fp8.c: a linear layer Y = X W^T in FP8 as training uses it: X, W and the gradient G are quantised once, each
 * together with its transpose, and three products give Y, dX = G W and dW += G^T X (into an f32 main gradient). Checked
 * against float64 products of the unquantised tensors.
 *
 * Runs on the CPU. On a GPU every call below is the same; the arrays are device memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ridge.h"

enum { M = 264, N = 200, K = 328 }; /* tokens, outputs, inputs: none a multiple of 128 */

/* An fp8 matrix [rows, cols] and its transpose, with their scales. */
typedef struct dual {
    void *q, *q_t;
    float *scale, *scale_t;
} dual;

static ridge_device *device;

static void *take(size_t bytes)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);

    if (!memory)
        exit(1);
    return memory;
}

static void run(const ridge_call *call)
{
    size_t bytes = 0;
    ridge_status status = ridge_workspace_bytes(device, call, &bytes);
    void *workspace = bytes ? take(bytes) : NULL;

    if (status == RIDGE_OK)
        status = ridge_run(device, call, workspace, bytes, NULL);
    free(workspace);
    if (status != RIDGE_OK) {
        fprintf(stderr, "linear_fp8: %s\n", ridge_error());
        exit(1);
    }
}

/* Row strides that are multiples of 16 bytes are the fast path: ridge_ld_fp8, ridge_ld_scale. */
static dual quantise(int64_t rows, int64_t cols, const float *x, uint32_t form)
{
    const int64_t down = (rows + 127) / 128, across = (cols + 127) / 128;
    const int block = form == RIDGE_DUAL_BLK_BLK;
    dual d = {take((size_t)(rows * ridge_ld_fp8(cols))), take((size_t)(cols * ridge_ld_fp8(rows))),
              take((size_t)(across * ridge_ld_scale(rows)) * 4), take((size_t)(down * ridge_ld_scale(cols)) * 4)};
    ridge_call call =
        ridge_quantize_fp8_dual(rows, cols, RIDGE_F32, x, form, RIDGE_E4M3, d.q, d.scale, d.q_t, d.scale_t);

    call.arg[RIDGE_QUANTIZE_FP8_DUAL_Q].stride = ridge_ld_fp8(cols);
    call.arg[RIDGE_QUANTIZE_FP8_DUAL_Q_T].stride = ridge_ld_fp8(rows);
    call.arg[RIDGE_QUANTIZE_FP8_DUAL_SCALE].stride = block ? 0 : ridge_ld_scale(rows);
    call.arg[RIDGE_QUANTIZE_FP8_DUAL_SCALE_T].stride = block ? 0 : ridge_ld_scale(cols);
    run(&call);
    return d;
}

static ridge_call product(int64_t m, int64_t n, int64_t k, const void *a, const float *scale_a, const void *b,
                          uint32_t mode_b, const float *scale_b, float *d)
{
    ridge_call call = ridge_gemm_fp8(m, n, k, RIDGE_E4M3, a, RIDGE_SCALE_ROW128, scale_a, RIDGE_E4M3, b, mode_b,
                                     scale_b, RIDGE_F32, d);

    call.arg[RIDGE_GEMM_FP8_A].stride = call.arg[RIDGE_GEMM_FP8_B].stride = ridge_ld_fp8(k);
    call.arg[RIDGE_GEMM_FP8_SCALE_A].stride = ridge_ld_scale(m);
    call.arg[RIDGE_GEMM_FP8_SCALE_B].stride = mode_b == RIDGE_SCALE_B_BLK128 ? 0 : ridge_ld_scale(n);
    return call;
}

/* Signal to noise of d[i,j] - start against sum over x of a[i a_row + x a_col] * b[j b_row + x b_col], and the worst
 * element: a product of two e4m3 numbers is off by 0.037 of itself on average, so a quarter of the root of the sum of
 * squares is six standard deviations. */
static int check(const char *name, int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                 const float *b, int64_t b_row, int64_t b_col, double start, const float *d)
{
    double signal = 0, noise = 0, worst = 0;

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = 0, squares = 0, error;

            for (int64_t x = 0; x < k; x++) {
                const double p = (double)a[i * a_row + x * a_col] * (double)b[j * b_row + x * b_col];

                want += p;
                squares += p * p;
            }
            error = (double)d[i * n + j] - start - want;
            signal += want * want;
            noise += error * error;
            worst = fmax(worst, fabs(error) / (0.25 * sqrt(squares)));
        }
    printf("%-3s %5.1f dB, worst element %.2f of its bound\n", name, 10 * log10(signal / noise), worst);
    return signal > 316.3 * noise && worst <= 1; /* 25 dB; a NaN makes noise one */
}

static float *fill(int64_t count, float size)
{
    static uint32_t state = 1;
    float *x = take((size_t)count * sizeof *x);

    for (int64_t i = 0; i < count; i++) {
        x[i] = -2.0f * size; /* and four uniform numbers: close to a normal one */
        for (int t = 0; t < 4; t++)
            x[i] += size * (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
    }
    return x;
}

int main(void)
{
    float *x = fill(M * K, 1), *w = fill(N * K, 0.02f), *g = fill(M * N, 1e-4f);
    float *y = take(M * N * 4), *dx = take(M * K * 4), *dw = take(N * K * 4);
    dual qx, qw, qg;
    ridge_call call;
    int good;

    if (ridge_open("cpu", &device) != RIDGE_OK) {
        fprintf(stderr, "%s\n", ridge_error());
        return 1;
    }
    for (int i = 0; i < N * K; i++)
        dw[i] = 0.001f; /* what earlier micro-batches left */
    qx = quantise(M, K, x, RIDGE_DUAL_ROW_ROW);
    qw = quantise(N, K, w, RIDGE_DUAL_BLK_BLK);
    qg = quantise(M, N, g, RIDGE_DUAL_ROW_ROW);
    call = product(M, N, K, qx.q, qx.scale, qw.q, RIDGE_SCALE_B_BLK128, qw.scale, y);
    run(&call);
    call = product(M, K, N, qg.q, qg.scale, qw.q_t, RIDGE_SCALE_B_BLK128, qw.scale_t, dx);
    run(&call);
    call = product(N, K, M, qg.q_t, qg.scale_t, qx.q_t, RIDGE_SCALE_B_ROW128, qx.scale_t, dw);
    call.flags |= RIDGE_ACCUMULATE;
    run(&call);
    good = check("Y", M, N, K, x, K, 1, w, K, 1, 0, y);
    good = check("dX", M, K, N, g, N, 1, w, 1, K, 0, dx) && good;
    good = check("dW", N, K, M, g, 1, N, x, 1, K, (double)0.001f, dw) && good;
    ridge_close(device);
    return !good;
}

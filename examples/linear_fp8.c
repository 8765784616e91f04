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
    ridge_tensor q, q_t;
} dual;

static ridge_device *device;

static void *take(size_t bytes)
{
    static _Alignas(256) unsigned char arena[8 << 20];
    static size_t used;
    void *memory = arena + used;

    used += (bytes + 255) / 256 * 256;
    if (used > sizeof arena)
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
    if (status != RIDGE_OK) {
        fprintf(stderr, "linear_fp8: %s\n", ridge_error());
        exit(1);
    }
}

/* Codes [rows, cols] with room for their scales. Row strides that are multiples of 16 bytes are the fast path. */
static ridge_tensor codes(int64_t rows, int64_t cols, ridge_scaling scaling)
{
    const int64_t down = (rows + 127) / 128, across = (cols + 127) / 128;
    const int block = scaling == RIDGE_SCALING_BLK128;
    ridge_tensor t = {NULL, RIDGE_E4M3, ridge_ld_fp8(cols), NULL, scaling, block ? across : ridge_ld_scale(rows)};

    t.data = take((size_t)(rows * t.stride));
    t.scale = take((size_t)((block ? down : across) * t.scale_stride) * 4);
    return t;
}

/* The codes of x and of its transpose. */
static dual quantise(int64_t rows, int64_t cols, const float *x, ridge_scaling scaling)
{
    const dual d = {codes(rows, cols, scaling), codes(cols, rows, scaling)};
    const ridge_call call = ridge_quantize_fp8_dual(rows, cols, ridge_matrix(x, RIDGE_F32), d.q, d.q_t);

    run(&call);
    return d;
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
    qx = quantise(M, K, x, RIDGE_SCALING_ROW128);
    qw = quantise(N, K, w, RIDGE_SCALING_BLK128);
    qg = quantise(M, N, g, RIDGE_SCALING_ROW128);
    call = ridge_gemm_fp8(M, N, K, qx.q, qw.q, ridge_matrix(y, RIDGE_F32));
    run(&call);
    call = ridge_gemm_fp8(M, K, N, qg.q, qw.q_t, ridge_matrix(dx, RIDGE_F32));
    run(&call);
    call = ridge_gemm_fp8(N, K, M, qg.q_t, qx.q_t, ridge_matrix(dw, RIDGE_F32));
    call.flags |= RIDGE_ACCUMULATE;
    run(&call);
    good = check("Y", M, N, K, x, K, 1, w, K, 1, 0, y);
    good = check("dX", M, K, N, g, N, 1, w, 1, K, 0, dx) && good;
    good = check("dW", N, K, M, g, 1, N, x, 1, K, (double)0.001f, dw) && good;
    ridge_close(device);
    return !good;
}

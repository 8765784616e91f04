/* cpu.c: gemm_fp8 on the CPU: the C reference, the threads around the SIMD tiles (cpu_simd.h), and the kernel list.
 *
 * The reference is docs/numerics.md in float64: the 128-blocks of k in ascending order, then bias, then D, one
 * rounding.
 */
#include "cpu.h"

#include <math.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "src/util.h"

static int64_t blocks(int64_t n)
{
    return ridge_ceil_div(n, GEMM_BLOCK);
}

static gemm_args args_of(const ridge_call *call)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B],
                        *d = &call->arg[RIDGE_GEMM_FP8_D], *bias = &call->arg[RIDGE_GEMM_FP8_BIAS];
    const uint32_t mode = call->flags & RIDGE_SCALE;
    gemm_args g = {.m = call->dim[0], .n = call->dim[1], .k = call->dim[2]};

    g.a = a->data;
    g.b = b->data;
    g.d = d->data;
    g.lda = a->stride;
    g.ldb = b->stride;
    g.ldd = d->stride;
    g.a_e5m2 = a->dtype == RIDGE_E5M2;
    g.b_e5m2 = b->dtype == RIDGE_E5M2;
    g.dtype = d->dtype;
    g.bias = bias->dtype == RIDGE_NONE ? NULL : bias->data;
    g.bias_dtype = bias->dtype;
    g.scale_a = gemm_scale_of(&call->arg[RIDGE_GEMM_FP8_SCALE_A], mode, call->flags & RIDGE_SCALE_T);
    g.scale_b = gemm_scale_of(&call->arg[RIDGE_GEMM_FP8_SCALE_B], (call->flags & RIDGE_SCALE_B) >> 4,
                              call->flags & RIDGE_SCALE_B_T);
    g.whole = mode == RIDGE_SCALE_TENSOR || mode == RIDGE_SCALE_ROW;
    g.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    return g;
}

/* Nothing to write: an empty D, or a D that k = 0 leaves as it is, down to the sign of its zeros. */
static bool idle(const gemm_args *g)
{
    return g->m == 0 || g->n == 0 || (g->k == 0 && g->accumulate && !g->bias);
}

/* -------------------------------------------------------------------------------------------------------- reference */

static double load(uint32_t dtype, const void *memory, int64_t i)
{
    switch (dtype) {
    case RIDGE_BF16:
        return (double)ridge_f32_from_bf16(((const uint16_t *)memory)[i]);
    case RIDGE_F16:
        return (double)ridge_f32_from_f16(((const uint16_t *)memory)[i]);
    default:
        return (double)((const float *)memory)[i];
    }
}

/* x in f32, rounded to odd where it does not fit: a second rounding to 16 bits then gives what one would. */
static float round_to_odd(double x)
{
    float f = (float)x;
    uint32_t u = ridge_bits(f);

    if (!((double)f != x) || x != x)
        return f;
    if (fabs((double)f) > fabs(x))
        u--;
    return ridge_float(u | 1u);
}

static void store(uint32_t dtype, void *memory, int64_t i, double x)
{
    if (dtype == RIDGE_BF16)
        ((uint16_t *)memory)[i] = ridge_bf16_from_f32(round_to_odd(x));
    else if (dtype == RIDGE_F16)
        ((uint16_t *)memory)[i] = ridge_f16_from_f32(round_to_odd(x));
    else
        ((float *)memory)[i] = ridge_f32_canonical((float)x);
}

/* Elements of a row that are summed side by side: an addition waits for the one before it in its own sum only. */
enum { REFERENCE_COLS = 4 };

/* The products of columns j ..; behind the last one, that one again. */
static void reference_elements(const gemm_args *g, const double value[2][256], int64_t i, int64_t j,
                               double sum[REFERENCE_COLS])
{
    const uint8_t *a = g->a + i * g->lda, *b[REFERENCE_COLS];
    const double *of_a = value[g->a_e5m2], *of_b = value[g->b_e5m2];

    for (int c = 0; c < REFERENCE_COLS; c++) {
        b[c] = g->b + ridge_min(j + c, g->n - 1) * g->ldb;
        sum[c] = 0;
    }
    for (int64_t block = 0; block < blocks(g->k); block++) {
        const int64_t end = ridge_min(g->k, (block + 1) * GEMM_BLOCK);
        double part[REFERENCE_COLS] = {0};

        for (int64_t k = block * GEMM_BLOCK; k < end; k++)
            for (int c = 0; c < REFERENCE_COLS; c++)
                part[c] += of_a[a[k]] * of_b[b[c][k]];
        for (int c = 0; c < REFERENCE_COLS; c++)
            sum[c] += g->whole ? part[c]
                               : (double)(gemm_scale_at(&g->scale_a, i, block) *
                                          gemm_scale_at(&g->scale_b, ridge_min(j + c, g->n - 1), block)) *
                                     part[c];
    }
    for (int c = 0; c < REFERENCE_COLS && g->whole && g->k; c++)
        sum[c] *=
            (double)(gemm_scale_at(&g->scale_a, i, 0) * gemm_scale_at(&g->scale_b, ridge_min(j + c, g->n - 1), 0));
}

static void reference_row(const gemm_args *g, const double value[2][256], int64_t i)
{
    unsigned char *d = g->d + i * g->ldd * (g->dtype == RIDGE_F32 ? 4 : 2);
    double sum[REFERENCE_COLS];

    for (int64_t j = 0; j < g->n; j++) {
        double *at = &sum[j % REFERENCE_COLS];

        if (j % REFERENCE_COLS == 0)
            reference_elements(g, value, i, j, sum);
        if (g->bias)
            *at += load(g->bias_dtype, g->bias, j);
        if (g->accumulate)
            *at += load(g->dtype, d, j);
        store(g->dtype, d, j, *at);
    }
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const work)(const gemm_args *, const double[2][256], int64_t) = reference_row;
    const gemm_args g = args_of(&bound->call);
    double value[2][256];
    ridge_team *team;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    if (idle(&g))
        return RIDGE_OK;
    for (int i = 0; i < 512; i++)
        value[i >> 8][i & 255] = (double)ridge_f32_from_fp8((uint8_t)(i & 255), i >> 8);
    team = ridge_team_begin((double)g.m * (double)g.n * (double)g.k * 1e-3, g.m);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < g.m; i++)
            work(&g, (const double(*)[256])value, i);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

/* -------------------------------------------------------------------------------------------------------- SIMD rows */

#if defined(__x86_64__)

/* How D is divided into tiles. No result depends on it: every element is summed in the same order by any tile. */
typedef struct tiling {
    int64_t rows, cols, down, across;
} tiling;

/* The largest tiles; smaller ones where those leave threads without work. */
static tiling tiling_of(int64_t m, int64_t n, int threads)
{
    tiling c = {ridge_round_up(ridge_ceil_div(m, ridge_ceil_div(m, GEMM_TILE_ROWS)), GEMM_ROWS), GEMM_TILE_COLS, 1, 1};

    while (c.cols > 64 && ridge_ceil_div(m, c.rows) * ridge_ceil_div(n, c.cols) < 4 * (int64_t)threads)
        c.cols /= 2;
    while (c.rows > 4 * GEMM_ROWS && ridge_ceil_div(m, c.rows) * ridge_ceil_div(n, c.cols) < 2 * (int64_t)threads)
        c.rows = ridge_round_up(c.rows / 2, GEMM_ROWS);
    c.rows = ridge_min(c.rows, m);
    c.cols = ridge_min(c.cols, ridge_round_up(n, GEMM_COLS));
    c.down = ridge_ceil_div(m, c.rows);
    c.across = ridge_ceil_div(n, c.cols);
    return c;
}

/* Bytes of one thread's workspace, in whole pages so that threads share no cache line. */
static size_t thread_bytes(const tiling *c)
{
    return (size_t)ridge_round_up((int64_t)(gemm_work_floats(c->rows, c->cols) * sizeof(float)), 4096);
}

static int threads_of(const ridge_device *device, const tiling *c)
{
    return (int)ridge_min(device->units, c->down * c->across);
}

static size_t workspace_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1];
    tiling c;

    (void)kernel;
    if (m == 0 || n == 0)
        return 0;
    c = tiling_of(m, n, device->units);
    return (size_t)threads_of(device, &c) * thread_bytes(&c);
}

static ridge_status launch_tiles(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                 void *workspace, size_t bytes, void *stream)
{
    gemm_tile_function *const work =
        kernel->arch_min == RIDGE_ARCH_AVX512 ? ridge_cpu_gemm_fp8_avx512 : ridge_cpu_gemm_fp8_avx2;
    const gemm_args g = args_of(&bound->call);
    char *slot = workspace;
    tiling c;
    ridge_team *team;

    (void)bytes, (void)stream;
    if (idle(&g))
        return RIDGE_OK;
    c = tiling_of(g.m, g.n, device->units);
    team = ridge_team_begin((double)g.m * (double)g.n * (double)g.k * 5e-5, c.down * c.across);
    ridge_team_limit(team, threads_of(device, &c));
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
        char *mine;
#pragma omp atomic capture
        {
            mine = slot;
            slot += thread_bytes(&c);
        }
#pragma omp for schedule(dynamic) nowait
        for (int64_t t = 0; t < c.down * c.across; t++) {
            const int64_t row = t % c.down * c.rows, col = t / c.down * c.cols;
            const gemm_tile tile = {row, ridge_min(c.rows, g.m - row), col, ridge_min(c.cols, g.n - col),
                                    (float *)(void *)mine};

            work(&g, &tile);
        }
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

#endif

/* ------------------------------------------------------------------------------------------------------------- list */

/* param[0]: products a nanosecond and core. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double products = (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];

    return products * 1e-3 / kernel->param[0] / (device->units > 0 ? device->units : 1);
}

#define ROW(arch_name, low, rate, need, launcher)                                                                   \
    {                                                                                                               \
        .name = "cpu.gemm_fp8." arch_name, .op = RIDGE_GEMM_FP8, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,    \
        .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .param = {rate}, .workspace = need, .cost = cost, \
        .launch = launcher                                                                                          \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("avx512", RIDGE_ARCH_AVX512, 40, workspace_of, launch_tiles),
    ROW("avx2", RIDGE_ARCH_AVX2, 25, workspace_of, launch_tiles),
#endif
    ROW("c", RIDGE_ARCH_C, 1, NULL, launch_reference),
};

const ridge_kernel_list ridge_cpu_gemm_fp8 = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

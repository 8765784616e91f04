/* cpu.c: rms_norm and head_rms_norm_rope_tail on the CPU: the C reference, the threads, and the kernel list. Leaves
 * out: the vector code (cpu_simd.h).
 *
 * The rows or heads of both ops are independent; RoPE's sines and cosines are computed once a token. */
#include "cpu.h"

#include "cpu/num.h"
#include "cpu/team.h"

/* -------------------------------------------------------------------------------------------------------- reference */

static float load(int bf16, const void *x, int64_t i)
{
    return bf16 ? ridge_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static void store(int bf16, void *out, int64_t i, float value)
{
    if (bf16)
        ((uint16_t *)out)[i] = ridge_bf16_from_f32(value);
    else
        ((float *)out)[i] = ridge_f32_canonical(value);
}

static float reference_factor(const norm_args *a, const void *x)
{
    float part[RIDGE_NORM_PARTS] = {0};

    for (int64_t j = 0; j < a->n; j++) {
        const float v = load(a->x_bf16, x, j);

        part[j % RIDGE_NORM_PARTS] = ridge_fma(v, v, part[j % RIDGE_NORM_PARTS]);
    }
    for (int s = RIDGE_NORM_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    return ridge_rms_factor(part[0], a->n, a->eps);
}

static float reference_element(const norm_args *a, const void *x, int64_t j, float factor)
{
    float y = load(a->x_bf16, x, j);

    y = a->norm ? y * factor : y;
    return a->w ? y * load(a->w_bf16, a->w, j) : y;
}

static void reference_row(const norm_args *a, const void *x, const float *c, const float *s, void *out)
{
    const float factor = a->norm ? reference_factor(a, x) : 1.0f;
    const int64_t tail = a->n - a->n_rot;

    for (int64_t j = 0; j < tail; j++)
        store(a->out_bf16, out, j, reference_element(a, x, j, factor));
    for (int64_t i = 0; i < a->n_rot / 2; i++) {
        const int64_t j = tail + 2 * i;
        float y0, y1;

        ridge_rope_rotate(reference_element(a, x, j, factor), reference_element(a, x, j + 1, factor), c[i], s[i], &y0,
                          &y1);
        store(a->out_bf16, out, j, y0);
        store(a->out_bf16, out, j + 1, y1);
    }
}

/* ---------------------------------------------------------------------------------------------------------- threads */

static int64_t position(const norm_args *a, int64_t t)
{
    return a->pos64 ? ((const int64_t *)a->pos)[t] : ((const int32_t *)a->pos)[t];
}

/* Sines and cosines of one token into the workspace, n_rot floats a token, then its heads; of rms_norm its one row. */
static void token(const norm_args *a, int64_t t, norm_row *row, float *workspace)
{
    const int64_t pairs = a->n_rot / 2, x_size = a->x_bf16 ? 2 : 4, out_size = a->out_bf16 ? 2 : 4;
    const char *from = a->x + t * a->stride;
    char *to = a->out + t * a->out_stride;
    float *c = pairs ? workspace + t * a->n_rot : NULL, *s = pairs ? c + pairs : NULL;

    for (int64_t i = 0; i < pairs; i++)
        ridge_rope_angle(position(a, t), a->freqs[i], a->mscale, a->inverse, &c[i], &s[i]);
    for (int64_t h = 0; h < a->heads; h++)
        row(a, from + h * a->n * x_size, c, s, to + h * a->n * out_size);
}

static ridge_status run(const ridge_bound *bound, norm_row *row, float *workspace)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const one_token)(const norm_args *, int64_t, norm_row *, float *) = token;
    const norm_args a = norm_args_of(&bound->call);
    ridge_team *team;

    if (a.heads == 0 || a.n == 0)
        return RIDGE_OK;
    team = ridge_team_begin((double)(a.rows * a.heads * a.n) / 2048, a.rows);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < a.rows; t++)
            one_token(&a, t, row, workspace);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    (void)device, (void)kernel, (void)bytes, (void)stream;
    return run(bound, reference_row, workspace);
}

#if defined(__x86_64__)
static ridge_status launch_avx2(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                void *workspace, size_t bytes, void *stream)
{
    (void)device, (void)kernel, (void)bytes, (void)stream;
    return run(bound, ridge_cpu_norm_avx2, workspace);
}

static ridge_status launch_avx512(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    (void)device, (void)kernel, (void)bytes, (void)stream;
    return run(bound, ridge_cpu_norm_avx512, workspace);
}
#endif

/* ------------------------------------------------------------------------------------------------------------- list */

/* c and s of every token; without heads nothing is computed. */
static size_t angles(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    if (problem->op == RIDGE_RMS_NORM || problem->dim[1] == 0)
        return 0;
    return (size_t)problem->dim[0] * (size_t)problem->dim[3] * sizeof(float);
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double elements = (double)problem->dim[0] * (double)problem->dim[1] *
                            (problem->op == RIDGE_RMS_NORM ? 1.0 : (double)problem->dim[2]);

    return elements * 8e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define ROW(op_name, op_id, arch_name, low, percent, launcher)                                                      \
    {                                                                                                               \
        .name = "cpu." op_name "." arch_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,          \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .param = {percent}, \
        .workspace = angles, .cost = cost, .launch = launcher                                                       \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("rms_norm", RIDGE_RMS_NORM, "avx512", RIDGE_ARCH_AVX512, 120, launch_avx512),
    ROW("rms_norm", RIDGE_RMS_NORM, "avx2", RIDGE_ARCH_AVX2, 130, launch_avx2),
    ROW("head_rms_norm_rope_tail", RIDGE_HEAD_RMS_NORM_ROPE_TAIL, "avx512", RIDGE_ARCH_AVX512, 120, launch_avx512),
    ROW("head_rms_norm_rope_tail", RIDGE_HEAD_RMS_NORM_ROPE_TAIL, "avx2", RIDGE_ARCH_AVX2, 130, launch_avx2),
#endif
    ROW("rms_norm", RIDGE_RMS_NORM, "c", RIDGE_ARCH_C, 5000, launch_reference),
    ROW("head_rms_norm_rope_tail", RIDGE_HEAD_RMS_NORM_ROPE_TAIL, "c", RIDGE_ARCH_C, 5000, launch_reference),
};

const ridge_kernel_list ridge_cpu_norm = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

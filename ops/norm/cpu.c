/* cpu.c: rms_norm and head_rms_norm_rope_tail on the CPU: the C reference, the threads, and the kernel list.
 *
 * Both ops are rows of independent norms; RoPE's sines and cosines are computed once a token. */
#include "cpu.h"

#include "cpu/num.h"

/* -------------------------------------------------------------------------------------------------------- reference */

static float load(uint32_t dtype, const void *x, int64_t i)
{
    return dtype == RIDGE_BF16 ? ridge_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static void store(uint32_t dtype, void *out, int64_t i, float value)
{
    if (dtype == RIDGE_BF16)
        ((uint16_t *)out)[i] = ridge_bf16_from_f32(value);
    else
        ((float *)out)[i] = ridge_f32_canonical(value);
}

static float reference_factor(const norm_args *a, const void *x)
{
    float part[RIDGE_NORM_PARTS] = {0};

    for (int64_t j = 0; j < a->n; j++) {
        const float v = load(a->x_dtype, x, j);

        part[j % RIDGE_NORM_PARTS] = ridge_fma(v, v, part[j % RIDGE_NORM_PARTS]);
    }
    for (int s = RIDGE_NORM_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    return ridge_rms_factor(part[0], a->n, a->eps);
}

static float reference_element(const norm_args *a, const void *x, int64_t j, float factor)
{
    float y = load(a->x_dtype, x, j);

    y = a->norm ? y * factor : y;
    return a->w ? y * load(a->w_dtype, a->w, j) : y;
}

static void reference_row(const norm_args *a, const void *x, const float *c, const float *s, void *out)
{
    const float factor = a->norm ? reference_factor(a, x) : 1.0f;
    const int64_t tail = a->n - a->n_rot;

    for (int64_t j = 0; j < tail; j++)
        store(a->out_dtype, out, j, reference_element(a, x, j, factor));
    for (int64_t i = 0; i < a->n_rot / 2; i++) {
        const int64_t j = tail + 2 * i;
        float y0, y1;

        ridge_rope_turn(reference_element(a, x, j, factor), reference_element(a, x, j + 1, factor), c[i], s[i], &y0,
                        &y1);
        store(a->out_dtype, out, j, y0);
        store(a->out_dtype, out, j + 1, y1);
    }
}

/* ---------------------------------------------------------------------------------------------------------- threads */

static int64_t stride_of(const ridge_operand *x, int64_t packed)
{
    return (x->stride ? x->stride : packed) * (x->dtype == RIDGE_F32 ? 4 : 2);
}

static norm_args collect(const ridge_call *call)
{
    const bool rope = call->op == RIDGE_HEAD_RMS_NORM_ROPE_TAIL;
    const int out = rope ? (int)RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT : (int)RIDGE_RMS_NORM_OUT;
    norm_args a = {.n = call->dim[rope ? 2 : 1], .eps = call->opt.norm.eps};

    a.n_rot = rope ? call->dim[3] : 0;
    a.x_dtype = call->arg[0].dtype;
    a.w_dtype = call->arg[1].dtype; /* slot 1 in both ops */
    a.w = call->arg[1].data;
    a.out_dtype = call->arg[out].dtype;
    a.norm = !rope || !(call->flags & RIDGE_ROPE_ONLY);
    return a;
}

static int64_t position(const ridge_call *call, int64_t t)
{
    const ridge_operand *pos = &call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS];

    return pos->dtype == RIDGE_I64 ? ((const int64_t *)pos->data)[t] : ((const int32_t *)pos->data)[t];
}

/* Sines and cosines of one token, then its heads. `angles` has room for n_rot floats. */
static void token(const ridge_call *call, const norm_args *a, int64_t t, norm_row *row, float *angles)
{
    const ridge_operand *x = &call->arg[0], *out = &call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT];
    const double *freqs = call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS].data;
    const int64_t heads = call->dim[1], pairs = a->n_rot / 2;
    const int64_t in_size = x->dtype == RIDGE_F32 ? 4 : 2, out_size = out->dtype == RIDGE_F32 ? 4 : 2;
    const char *from = (const char *)x->data + t * stride_of(x, heads * a->n);
    char *to = (char *)out->data + t * stride_of(out, heads * a->n);

    for (int64_t i = 0; i < pairs; i++)
        ridge_rope_angle(position(call, t), freqs[i], call->opt.norm.mscale, (call->flags & RIDGE_ROPE_INVERSE) != 0,
                         &angles[i], &angles[pairs + i]);
    for (int64_t h = 0; h < heads; h++)
        row(a, from + h * a->n * in_size, angles, angles + pairs, to + h * a->n * out_size);
}

static void run(const ridge_call *call, norm_row *row, float *workspace)
{
    void (*volatile const one_token)(const ridge_call *, const norm_args *, int64_t, norm_row *, float *) = token;
    const bool rope = call->op == RIDGE_HEAD_RMS_NORM_ROPE_TAIL;
    const norm_args a = collect(call);
    const ridge_operand *x = &call->arg[0], *out = &call->arg[RIDGE_RMS_NORM_OUT];
    const int64_t rows = call->dim[0], width = rope ? call->dim[1] * a.n : a.n;

    if (rows == 0 || width == 0)
        return;
#pragma omp parallel if (rows > 1 && rows * width >= 32768)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            if (rope)
                one_token(call, &a, r, row, workspace + r * a.n_rot);
            else
                row(&a, (const char *)x->data + r * stride_of(x, a.n), NULL, NULL,
                    (char *)out->data + r * stride_of(out, a.n));
        }
        ridge_fp_end(mode);
    }
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;

    norm_row *volatile row = reference_row; /* no arithmetic moves across the change of mode */

    (void)device, (void)kernel, (void)bytes, (void)stream;
    run(call, row, workspace);
    return RIDGE_OK;
}

#if defined(__x86_64__)
static ridge_status launch_avx2(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;

    (void)device, (void)kernel, (void)bytes, (void)stream;
    run(call, ridge_cpu_norm_avx2, workspace);
    return RIDGE_OK;
}

static ridge_status launch_avx512(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;

    (void)device, (void)kernel, (void)bytes, (void)stream;
    run(call, ridge_cpu_norm_avx512, workspace);
    return RIDGE_OK;
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

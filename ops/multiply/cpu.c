/* cpu.c: multiply on the CPU: one row for every instruction set, plain loops over blocks that stay in L1. */
#include <string.h>

#include "src/internal.h"
#include "cpu/num.h"

enum { BLOCK = 512 };

typedef struct span {
    const char *x;
    char *out;
    uint32_t x_dtype, out_dtype;
    float factor;
} span;

/* Elements [first, first + n), n <= BLOCK. */
static void widen(const span *s, int64_t first, int64_t n, float *to)
{
    const uint16_t *half = (const uint16_t *)s->x + first;

    if (s->x_dtype == RIDGE_F32)
        memcpy(to, (const float *)s->x + first, (size_t)n * sizeof *to);
    else if (s->x_dtype == RIDGE_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_bf16(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_f16(half[i]);
}

static void narrow(const span *s, int64_t first, int64_t n, const float *from)
{
    uint16_t *half = (uint16_t *)s->out + first;

    if (s->out_dtype == RIDGE_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)s->out)[first + i] = ridge_f32_canonical(from[i]);
    else if (s->out_dtype == RIDGE_BF16)
        for (int64_t i = 0; i < n; i++)
            half[i] = ridge_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = ridge_f16_from_f32(from[i]);
}

static void block(const span *s, int64_t first, int64_t n)
{
    float v[BLOCK];

    widen(s, first, n, v);
    for (int64_t i = 0; i < n; i++)
        v[i] *= s->factor;
    narrow(s, first, n, v);
}

static int64_t pitch(const ridge_operand *x, int64_t cols)
{
    return (x->stride ? x->stride : cols) * (x->dtype == RIDGE_F32 ? 4 : 2);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;

    void (*volatile const one_block)(const span *, int64_t, int64_t) = block; /* stays behind the change of mode */
    const ridge_operand *x = &call->arg[RIDGE_MULTIPLY_X], *out = &call->arg[RIDGE_MULTIPLY_OUT];
    const int64_t rows = call->dim[0], cols = call->dim[1], blocks = (cols + BLOCK - 1) / BLOCK;
    const float factor = rows && cols ? *(const float *)call->arg[RIDGE_MULTIPLY_FACTOR].data : 1.0f;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    if (rows == 0 || cols == 0 || (factor == 1.0f && x->data == out->data))
        return RIDGE_OK;
#pragma omp parallel if (rows * cols >= 65536)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows * blocks; i++) {
            const int64_t row = i / blocks, first = i % blocks * BLOCK;
            const span s = {(const char *)x->data + row * pitch(x, cols), (char *)out->data + row * pitch(out, cols),
                            x->dtype, out->dtype, factor};

            one_block(&s, first, cols - first < BLOCK ? cols - first : BLOCK);
        }
        ridge_fp_end(mode);
    }
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 8e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {.name = "cpu.multiply.c",
     .op = RIDGE_MULTIPLY,
     .arch_min = RIDGE_ARCH_C,
     .arch_max = RIDGE_ARCH_AVX512,
     .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     .cost = cost,
     .launch = launch},
};

const ridge_kernel_list ridge_cpu_multiply = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

/* cpu.c: multiply on the CPU: one kernel row for every instruction set, plain loops over blocks that stay in L1. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/util.h"

enum { BLOCK = 512 };

/* n <= BLOCK elements of a row. */
static void block(const ridge_call *call, const char *x, char *out, int64_t n, float factor)
{
    float v[BLOCK];

    ridge_widen(call->arg[RIDGE_MULTIPLY_X].dtype, x, n, v);
    for (int64_t i = 0; i < n; i++)
        v[i] *= factor;
    ridge_narrow(call->arg[RIDGE_MULTIPLY_OUT].dtype, out, n, v);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const one_block)(const ridge_call *, const char *, char *, int64_t, float) = block;
    const ridge_call *call = &bound->call;
    const multiply_args p = multiply_args_of(bound);
    const int64_t x_size = call->arg[RIDGE_MULTIPLY_X].dtype == RIDGE_F32 ? 4 : 2;
    const int64_t out_size = call->arg[RIDGE_MULTIPLY_OUT].dtype == RIDGE_F32 ? 4 : 2;
    const int64_t blocks = ridge_ceil_div(p.cols, BLOCK);
    ridge_team *team;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    if (p.rows == 0 || p.cols == 0 || (*p.factor == 1.0f && p.x == p.out))
        return RIDGE_OK;
    team = ridge_team_begin((double)(p.rows * p.cols) / 4096, p.rows * blocks);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < p.rows * blocks; i++) {
            const int64_t row = i / blocks, col = i % blocks * BLOCK;

            one_block(call, p.x + (row * p.x_stride + col) * x_size, p.out + (row * p.out_stride + col) * out_size,
                      ridge_min(BLOCK, p.cols - col), *p.factor);
        }
        ridge_fp_end(mode);
        ridge_team_end(team);
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

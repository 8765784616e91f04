/* cpu.c: sum on the CPU: one kernel row for every instruction set, plain loops over blocks that stay in L1. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/util.h"

enum { BLOCK = 512 };

static void block(const ridge_call *call, const sum_args *p, int64_t row, int64_t col)
{
    const uint32_t x = call->arg[RIDGE_SUM_X].dtype, out = call->arg[RIDGE_SUM_OUT].dtype;
    const int64_t x_size = x == RIDGE_F32 ? 4 : 2, out_size = out == RIDGE_F32 ? 4 : 2;
    const int64_t n = ridge_min(BLOCK, p->cols - col);
    const char *from = p->x + (row * p->x_stride + col) * x_size;
    float total[BLOCK], v[BLOCK];

    ridge_widen(x, from, n, total);
    for (int64_t part = 1; part < p->parts; part++) {
        ridge_widen(x, from + part * p->part * x_size, n, v);
        for (int64_t i = 0; i < n; i++)
            total[i] += v[i];
    }
    ridge_narrow(out, p->out + (row * p->out_stride + col) * out_size, n, total);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const one_block)(const ridge_call *, const sum_args *, int64_t, int64_t) = block;
    const sum_args p = sum_args_of(bound);
    const int64_t blocks = ridge_ceil_div(p.cols, BLOCK);
    ridge_team *team;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    team = ridge_team_begin((double)p.rows * (double)p.cols * (double)p.parts / 4096, p.rows * blocks);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < p.rows * blocks; i++)
            one_block(&bound->call, &p, i / blocks, i % blocks * BLOCK);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)(problem->dim[2] + 1) * 4e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {.name = "cpu.sum.c",
     .op = RIDGE_SUM,
     .arch_min = RIDGE_ARCH_C,
     .arch_max = RIDGE_ARCH_AVX512,
     .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE,
     .cost = cost,
     .launch = launch},
};

const ridge_kernel_list ridge_cpu_sum = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

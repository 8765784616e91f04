/* cpu_pairs.c: moe_permute, moe_combine and moe_combine_bwd on the CPU, in C. A token of the last two is one thread's.
 */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/math/experts.h"

/* A counting sort: the pairs of each expert are counted, then placed in the order of their numbers. */
static void permute(const permute_args *a)
{
    int32_t next[RIDGE_MOE_MAX_EXPERTS] = {0};
    int32_t sum = 0;

    for (int64_t i = 0; i < a->pairs; i++) {
        const int32_t id = a->ids[i / a->slots * a->ids_stride + i % a->slots];

        if (id >= 0 && id < a->experts)
            next[id]++;
    }
    for (int32_t e = 0; e < a->experts; e++) {
        const int32_t count = next[e];

        next[e] = a->offsets[e] = sum;
        sum += count;
    }
    a->offsets[a->experts] = sum;
    for (int64_t i = 0; i < a->pairs; i++) {
        const int32_t id = a->ids[i / a->slots * a->ids_stride + i % a->slots];
        const int32_t row = id >= 0 && id < a->experts ? next[id]++ : -1;

        a->place[i / a->slots * a->place_stride + i % a->slots] = row;
        if (row >= 0)
            a->rows[row] = (int32_t)i;
    }
    for (int64_t row = sum; row < a->pairs; row++)
        a->rows[row] = -1;
}

static ridge_status launch_permute(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *workspace, size_t bytes, void *stream)
{
    const permute_args a = permute_args_of(&bound->call);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    permute(&a);
    return RIDGE_OK;
}

static float load(const experts_matrix *m, int64_t row, int64_t col)
{
    return ridge_load_element(m->dtype, m->data, row * m->stride + col);
}

static void store(const experts_matrix *m, int64_t row, int64_t col, float value)
{
    const ridge_operand x = {m->data, m->stride, m->dtype, 0};

    ridge_store_element(&x, row * m->stride + col, value);
}

static void combine_token(const void *args, int64_t t)
{
    const combine_args *a = args;
    for (int64_t j = 0; j < a->cols; j++) {
        float sum = 0.0f;

        for (int32_t s = 0; s < a->slots; s++) {
            const int32_t row = a->place[t * a->place_stride + s];

            if (row >= 0 && row < a->pairs)
                sum = a->weights ? ridge_fma(a->weights[t * a->weights_stride + s], load(&a->y, row, j), sum)
                                 : sum + load(&a->y, row, j);
        }
        if (a->shared.data)
            sum = load(&a->shared, t, j) + sum;
        if (a->residual.data)
            sum = load(&a->residual, t, j) + sum;
        store(&a->out, t, j, sum);
    }
}

static void combine_bwd_token(const void *args, int64_t t)
{
    const combine_args *a = args;
    for (int32_t s = 0; s < a->slots; s++) {
        const int32_t row = a->place[t * a->place_stride + s];
        const bool valid = row >= 0 && row < a->pairs;
        const float w = a->weights ? a->weights[t * a->weights_stride + s] : 1.0f;
        float part[RIDGE_EXPERTS_PARTS] = {0};

        for (int64_t j = 0; j < a->cols && valid; j++) {
            const float g = load(&a->out, t, j);

            store(&a->dy, row, j, w * g);
            if (a->dweights) {
                float *p = &part[j / RIDGE_EXPERTS_GROUP % RIDGE_EXPERTS_PARTS];

                *p = ridge_fma(g, load(&a->y, row, j), *p);
            }
        }
        for (int half = RIDGE_EXPERTS_PARTS / 2; half > 0; half /= 2)
            for (int p = 0; p < half; p++)
                part[p] += part[p + half];
        if (a->dweights)
            a->dweights[t * a->dweights_stride + s] = ridge_f32_canonical(part[0]);
    }
}

static ridge_status launch_combine(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *workspace, size_t bytes, void *stream)
{
    const combine_args a = combine_args_of(&bound->call);

    (void)device, (void)workspace, (void)bytes, (void)stream;
    ridge_team_run((double)a.pairs * (double)a.cols / 500, a.tokens,
                   kernel->op == RIDGE_MOE_COMBINE ? combine_token : combine_bwd_token, &a);
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * 1e-3;
}

#define ROW(text, number, function)                                                                            \
    {                                                                                                          \
        .name = "cpu." text ".c", .op = number, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512,       \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE, .cost = cost, .launch = function \
    }

static const ridge_kernel rows[] = {
    ROW("moe_permute", RIDGE_MOE_PERMUTE, launch_permute),
    ROW("moe_combine", RIDGE_MOE_COMBINE, launch_combine),
    ROW("moe_combine_bwd", RIDGE_MOE_COMBINE_BWD, launch_combine),
};

const ridge_kernel_list ridge_cpu_experts_pairs = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

/* cpu_products.c: moe_gate_up_swiglu and moe_down on the CPU, in C: the reference of every other row. A thread has some
 * rows of a token: in moe_down through all of its slots. */
#include "cpu.h"

#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/blocks/cpu.h"
#include "src/math/q8_0.h"

enum { ROWS = MOE_CPU_ROWS };

/* Row r of the weight of expert e times the codes of a token. */
static float dot_codes(const moe_args *a, const moe_weight *w, int32_t e, int64_t r, const int8_t *x, const float *xs)
{
    const int8_t *codes = (const int8_t *)w->data + e * w->stride + r * a->cols;
    const uint16_t *scales = (const uint16_t *)(const void *)(w->scales + e * w->scales_stride) + r * (a->cols / 32);
    float acc[RIDGE_Q8_0_PARTS] = {0};

    for (int64_t b = 0; b < a->cols / 32; b++) {
        float *part = &acc[ridge_q8_0_part(b)];
        int32_t dot = 0;

        for (int64_t i = 32 * b; i < 32 * b + 32; i++)
            dot += codes[i] * x[i];
        *part = ridge_q8_0_step(*part, ridge_f32_from_f16(scales[b]), xs[b], dot);
    }
    return ridge_q8_0_tree(acc);
}

/* The same in a block format. */
static float dot_blocks(const moe_args *a, const moe_weight *w, int32_t e, int64_t r, const int8_t *x, const float *xs)
{
    const block_quantised q = {x, xs, 0, 0};
    const uint8_t *tiles = (const uint8_t *)w->data + e * w->stride;
    const uint32_t format = (uint32_t)a->form;
    float y;

    ridge_block_reference_row(format, tiles + r / BLOCK_ROWS * block_tile_bytes(block_layout_of(format), a->cols),
                              (int)(r % BLOCK_ROWS), a->cols, &q, 1, &y);
    return y;
}

float ridge_cpu_moe_x(const moe_args *a, const float *xs, int64_t at, int64_t j)
{
    if (a->x_fp8)
        return ridge_f32_from_fp8(((const uint8_t *)a->x)[at + j], 0) * xs[j / 128 * a->x_block];
    return a->x_bf16 ? ridge_f32_from_bf16(((const uint16_t *)(const void *)a->x)[at + j])
                     : ((const float *)(const void *)a->x)[at + j];
}

/* The same with floats, x of e4m3 made floats. */
static float dot_floats(const moe_args *a, const moe_weight *w, int32_t e, int64_t r, const float *xs, int64_t at)
{
    const char *row = w->data + e * w->stride + r * a->cols * moe_weight_size(a->form);
    const float *scales = a->form == RIDGE_E4M3 ? (const float *)(const void *)(w->scales + e * w->scales_stride) +
                                                      r / 128 * ridge_ceil_div(a->cols, 128)
                                                : NULL;
    float chain[MOE_CHAINS] = {0};

    for (int64_t j = 0; j < a->cols; j++) {
        const float v = a->form == RIDGE_F32    ? ((const float *)(const void *)row)[j]
                        : a->form == RIDGE_BF16 ? ridge_f32_from_bf16(((const uint16_t *)(const void *)row)[j])
                                                : ridge_f32_from_fp8((uint8_t)row[j], 0);
        const float x = ridge_cpu_moe_x(a, xs, at, j);

        chain[j % MOE_CHAINS] = ridge_fma(v, scales ? x * scales[j / 128] : x, chain[j % MOE_CHAINS]);
    }
    for (int s = 1; s < MOE_CHAINS; s *= 2)
        for (int i = 0; i < MOE_CHAINS; i += 2 * s)
            chain[i] += chain[i + s];
    return chain[0];
}

/* Row r of weight `which` of expert e times the x of a token's slot, and the bias. */
static float product(const moe_args *a, int which, int32_t e, int64_t r, int64_t t, int64_t s)
{
    const moe_weight *w = &a->weight[which];
    const int64_t at = t * a->x_stride + s * a->x_slot;
    const int8_t *x = (const int8_t *)a->x + at;
    const float *xs = a->x_scales ? a->x_scales + t * a->x_ld + s * a->x_slot_ld : NULL;
    const float y = a->form == RIDGE_I8               ? dot_codes(a, w, e, r, x, xs)
                    : moe_is_tiles((uint32_t)a->form) ? dot_blocks(a, w, e, r, x, xs)
                                                      : dot_floats(a, w, e, r, xs, at);

    return w->bias ? y + w->bias[e * w->bias_stride + r] : y;
}

static void put(const moe_args *a, int64_t at, float y)
{
    if (a->out_dtype == RIDGE_BF16)
        ((uint16_t *)a->out)[at] = ridge_bf16_from_f32(y);
    else
        ((float *)a->out)[at] = ridge_f32_canonical(y);
}

float ridge_cpu_moe_swiglu(const moe_args *a, float gate, float up)
{
    const float x = ridge_swiglu_gate(gate, a->swiglu), b = ridge_swiglu_up(up, a->swiglu);

    return ridge_swiglu_scale(ridge_act_fwd(a->act, x, a->swiglu.alpha) * b, 1.0f, a->swiglu);
}

void ridge_cpu_moe_store_slot(const moe_args *a, int64_t t, int64_t s, int64_t first, int count, const float *y)
{
    const int64_t at = s * a->rows + first;
    uint32_t amax = 0;
    float r;

    if (a->out_dtype != RIDGE_I8) {
        for (int i = 0; i < count; i++)
            put(a, t * a->out_stride + at + i, y[i]);
        return;
    }
    for (int i = 0; i < ROWS; i++)
        amax = ridge_magnitude(y[i]) > amax ? ridge_magnitude(y[i]) : amax;
    a->out_scales[t * a->out_ld + at / 32] = ridge_q8_0_x_scale(amax, &r);
    for (int i = 0; i < ROWS; i++)
        ((int8_t *)a->out)[t * a->out_stride + at + i] = (int8_t)ridge_q8_0_x_code(y[i], r);
}

static float load(const void *from, bool bf16, int64_t at)
{
    return bf16 ? ridge_f32_from_bf16(((const uint16_t *)from)[at]) : ((const float *)from)[at];
}

void ridge_cpu_moe_store_sum(const moe_args *a, int64_t t, int64_t r, float sum)
{
    if (a->shared)
        sum = load(a->shared, a->shared_bf16, t * a->shared_stride + r) + sum;
    if (a->residual)
        sum = load(a->residual, a->residual_bf16, t * a->residual_stride + r) + sum;
    if (!a->n_hc)
        put(a, t * a->out_stride + r, sum);
    for (int dst = 0; dst < a->n_hc; dst++) {
        float acc = ridge_hc_start(sum, a->post[t * a->post_stride + dst]);

        for (int src = 0; src < a->n_hc; src++)
            acc = ridge_hc_step(acc, a->comb[t * a->comb_stride + dst + a->n_hc * src],
                                a->res[t * a->res_stride + src * a->rows + r]);
        put(a, t * a->out_stride + dst * a->rows + r, acc);
    }
}

/* Rows [first, last) of a token's slot. */
static void gate_up(const moe_args *a, int64_t t, int64_t s, int64_t first, int64_t last)
{
    const int32_t e = a->ids[t * a->ids_stride + s];
    float y[ROWS] = {0};

    for (int64_t r = first; r < last && e >= 0 && e < a->experts; r++)
        y[r - first] = ridge_cpu_moe_swiglu(a, product(a, 0, e, r, t, s), product(a, 1, e, r, t, s));
    ridge_cpu_moe_store_slot(a, t, s, first, (int)(last - first), y);
}

static void down(const moe_args *a, int64_t t, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        float sum = 0.0f;

        for (int64_t s = 0; s < a->slots; s++) {
            const int32_t e = a->ids[t * a->ids_stride + s];

            if (e >= 0 && e < a->experts)
                sum = ridge_fma(a->weights[t * a->weights_stride + s], product(a, 0, e, r, t, s), sum);
        }
        ridge_cpu_moe_store_sum(a, t, r, sum);
    }
}

static void run_part(const moe_args *a, int64_t part)
{
    const int64_t parts = ridge_ceil_div(a->rows, ROWS), pair = part / parts, first = part % parts * ROWS;
    const int64_t last = ridge_min(first + ROWS, a->rows);

    if (a->down)
        down(a, pair, first, last);
    else
        gate_up(a, pair / a->slots, pair % a->slots, first, last);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const run)(const moe_args *, int64_t) = run_part;
    const moe_args a = moe_args_of(&bound->call);
    const int64_t parts = a.tokens * (a.down ? 1 : a.slots) * ridge_ceil_div(a.rows, ROWS);
    ridge_team *team =
        ridge_team_begin((double)a.tokens * (double)a.slots * (double)a.rows * (double)a.cols * 1e-3, parts);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t part = 0; part < parts; part++)
            run(&a, part);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * (double)problem->dim[4] * 1e-3;
}

#define ROW(op_name, op_id)                                                                                   \
    {                                                                                                         \
        .name = "cpu." op_name ".c", .op = op_id, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512,    \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .cost = cost, \
        .launch = launch                                                                                      \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

const ridge_kernel_list ridge_cpu_moe_products = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

/* cpu.c: products with weights in block formats on the CPU: the C references and the kernel list.
 *
 * The reference takes each row of a unit back to GGUF blocks and decodes those (cpu_decode.c), so that it shares
 * nothing with the fast rows but the formulas of src/math/blocks.h. gate_up_swiglu is composed of block_matmul and
 * swiglu_fwd, through f32 matrices in the workspace. */
#include "cpu.h"

#include <string.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "problem.h"
#include "ops/swiglu/cpu.h"
#include "src/util.h"

/* -------------------------------------------------------------------------------------------------------- arguments */

static const float *optional(const ridge_call *call, int arg)
{
    return call->arg[arg].dtype ? call->arg[arg].data : NULL;
}

static block_args args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    block_args a = {.call = call, .tokens = call->dim[0], .cols = call->dim[1], .format = arg[2].dtype};
    const bool one = call->op == RIDGE_BLOCK_MATMUL;

    for (int i = 0; i < (one ? 1 : 2); i++) {
        a.weight[i].tiles = arg[2 + i].data;
        a.weight[i].stride = 16 * arg[2 + i].stride;
        a.weight[i].rows = call->dim[call->op == RIDGE_BLOCK_PAIR && i ? 3 : 2];
    }
    if (one) {
        a.weight[0].out = arg[RIDGE_BLOCK_MATMUL_OUT];
        a.weight[0].bias = optional(call, RIDGE_BLOCK_MATMUL_BIAS);
        a.residual = arg[RIDGE_BLOCK_MATMUL_RESIDUAL];
    } else if (call->op == RIDGE_BLOCK_PAIR) {
        for (int i = 0; i < 2; i++) {
            a.weight[i].out = arg[RIDGE_BLOCK_PAIR_OUT0 + i];
            a.weight[i].bias = optional(call, RIDGE_BLOCK_PAIR_BIAS0 + i);
        }
    } else {
        a.gate_up = true;
        a.weight[0].out = arg[RIDGE_BLOCK_GATE_UP_SWIGLU_OUT];
        a.weight[0].bias = optional(call, RIDGE_BLOCK_GATE_UP_SWIGLU_GATE_BIAS);
        a.weight[1].bias = optional(call, RIDGE_BLOCK_GATE_UP_SWIGLU_UP_BIAS);
        a.token_scale = optional(call, RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE);
        a.swiglu = ridge_swiglu_resolve(call->opt.swiglu);
    }
    return a;
}

/* -------------------------------------------------------------------------------------------------------- reference */

/* One block of q8_0_quantize_rows. */
static void quantize_block(uint32_t dtype, const void *x, int64_t first, int8_t *codes, float *scale)
{
    uint32_t amax = 0;
    float r;

    for (int i = 0; i < 32; i++)
        if (ridge_magnitude(ridge_load_element(dtype, x, first + i)) > amax)
            amax = ridge_magnitude(ridge_load_element(dtype, x, first + i));
    *scale = ridge_q8_0_x_scale(amax, &r);
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t)ridge_q8_0_x_code(ridge_load_element(dtype, x, first + i), r);
}

static block_quantised reference_x(const ridge_call *call, char **workspace)
{
    void (*volatile const block)(uint32_t, const void *, int64_t, int8_t *, float *) = quantize_block;
    const ridge_operand *x = &call->arg[0], *s = &call->arg[1];
    const int64_t tokens = call->dim[0], cols = call->dim[1];
    int8_t *codes;
    float *scales;
    unsigned mode;

    if (x->dtype == RIDGE_I8)
        return (block_quantised){x->data, s->data, x->stride, s->stride};
    codes = ridge_take(workspace, tokens * cols);
    scales = ridge_take(workspace, tokens * (cols / 32) * (int64_t)sizeof(float));
    mode = ridge_fp_begin();
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t b = 0; b < cols / 32; b++)
            block(x->dtype, x->data, t * x->stride + 32 * b, codes + t * cols + 32 * b, &scales[t * (cols / 32) + b]);
    ridge_fp_end(mode);
    return (block_quantised){codes, scales, cols, cols / 32};
}

/* Adds a block to its partition. */
static float block_step(float acc, const block_values *w, const int8_t *codes, float xs, block_minima minima)
{
    int32_t dot[2] = {0, 0}, sum[2] = {0, 0};

    for (int half = 0; half < 2; half++)
        for (int i = 16 * half; i < 16 * half + 16; i++) {
            dot[half] += w->code[i] * codes[i];
            sum[half] += codes[i];
        }
    acc = ridge_q8_0_step(acc, w->scale, xs, w->sub[0] * dot[0] + w->sub[1] * dot[1]);
    if (minima == BLOCK_MIN_32)
        acc = ridge_block_min_step(acc, w->min[0], ridge_block_x_sum(xs, sum[0] + sum[1]));
    for (int i = 0; i < 2 && minima == BLOCK_MIN_16; i++)
        acc = ridge_block_min_step(acc, w->min[i], ridge_block_x_sum(xs, sum[i]));
    return acc;
}

void ridge_block_reference_row(uint32_t format, const uint8_t *tile, int row, int64_t cols, const block_quantised *x,
                               int64_t tokens, float *y)
{
    const block_layout f = block_layout_of(format);
    const block_minima minima = ridge_block_minima(format);
    const uint8_t *unit = tile;
    float acc[RIDGE_Q8_0_MAX_TOKENS][RIDGE_Q8_0_PARTS] = {{0}};
    uint8_t blocks[BLOCK_MAX_ROW_BYTES];
    block_values w;

    for (int64_t u = 0; u < block_units(cols); u++) {
        const bool last = u == block_units(cols) - 1;
        const int count = (int)ridge_min(8, cols / 32 - 8 * u);

        ridge_block_row_of_unit(format, unit, last ? block_last_runs(cols) : 2, row, count, blocks);
        for (int b = 0; b < count; b++) {
            ridge_block_decode(format, blocks + (f.columns == 32 ? b * f.bytes : 0), f.columns == 32 ? 0 : b, &w);
            for (int64_t t = 0; t < tokens; t++) {
                float *part = &acc[t][ridge_q8_0_part(8 * u + b)];

                *part = block_step(*part, &w, x->codes + t * x->stride + 256 * u + 32 * b,
                                   x->scales[t * x->ld + 8 * u + b], minima);
            }
        }
        unit += block_unit_bytes(f, 2);
    }
    for (int64_t t = 0; t < tokens; t++)
        y[t] = ridge_block_tree(acc[t]);
}

/* y[t] of one row, for all tokens. */
static void reference_row(const block_args *a, const block_quantised *x, int which, int64_t row, float *y)
{
    ridge_block_reference_row(a->format, a->weight[which].tiles + row / BLOCK_ROWS * a->weight[which].stride,
                              (int)(row % BLOCK_ROWS), a->cols, x, a->tokens, y);
}

/* out[t, r] for all tokens and rows of one weight, with its bias and residual. */
static void reference_matmul(const block_quantised *x, const block_args *a, int which, const ridge_operand *out)
{
    void (*volatile const row)(const block_args *, const block_quantised *, int, int64_t, float *) = reference_row;
    const int64_t rows = a->weight[which].rows;
    const float *bias = a->weight[which].bias;
    ridge_team *const team = ridge_team_begin((double)(a->tokens * rows * a->cols) * 1e-3, rows);

#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {
            float y[RIDGE_Q8_0_MAX_TOKENS];

            row(a, x, which, r, y);
            for (int64_t t = 0; t < a->tokens; t++) {
                float v = bias ? y[t] + bias[r] : y[t];

                if (a->residual.data)
                    v += ridge_load_element(a->residual.dtype, a->residual.data, t * a->residual.stride + r);
                ridge_store_element(out, t * out->stride + r, v);
            }
        }
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
}

/* A packed f32 matrix [tokens, rows] of the workspace. */
static ridge_operand scratch(const block_args *a, char **workspace)
{
    ridge_operand m = {.dtype = RIDGE_F32, .stride = a->weight[0].rows};

    m.data = ridge_take(workspace, a->tokens * m.stride * (int64_t)sizeof(float));
    return m;
}

static void reference_gate_up(const block_args *a, const block_quantised *x, char *workspace)
{
    const ridge_call *call = a->call;
    const ridge_operand *out = &a->weight[0].out;
    const ridge_operand gate = scratch(a, &workspace), up = scratch(a, &workspace), y = scratch(a, &workspace);
    const int64_t rows = call->dim[2];
    ridge_call swiglu = ridge_swiglu_fwd(a->tokens, rows, RIDGE_F32, gate.data, up.data, y.data);

    swiglu.arg[RIDGE_SWIGLU_FWD_GATE] = gate;
    swiglu.arg[RIDGE_SWIGLU_FWD_UP] = up;
    swiglu.arg[RIDGE_SWIGLU_FWD_OUT] = y;
    reference_matmul(x, a, 0, &gate);
    reference_matmul(x, a, 1, &up);
    swiglu.flags = call->flags & RIDGE_ACTIVATION;
    swiglu.opt.swiglu = call->opt.swiglu;
    swiglu.arg[RIDGE_SWIGLU_FWD_ROW_SCALE] = call->arg[RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE];
    ridge_cpu_swiglu_reference(&swiglu);
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t r = 0; r < rows; r++)
            ridge_store_element(out, t * out->stride + r, ((const float *)y.data)[t * rows + r]);
}

static ridge_status reference_few(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    const block_args a = args_of(&bound->call);
    char *rest = workspace;
    block_quantised x;

    (void)device, (void)kernel, (void)bytes, (void)stream;
    if (a.tokens == 0)
        return RIDGE_OK;
    x = reference_x(&bound->call, &rest);
    if (a.gate_up)
        reference_gate_up(&a, &x, rest);
    for (int i = 0; i < 2 && !a.gate_up; i++)
        reference_matmul(&x, &a, i, &a.weight[i].out);
    return RIDGE_OK;
}

/* Quantised x, and the f32 matrices between the parts of gate_up_swiglu. */
static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    return ridge_block_by_few(reference_few, RIDGE_Q8_0_MAX_TOKENS, device, kernel, bound, workspace, bytes, stream);
}

static size_t reference_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t tokens = ridge_block_few(problem, RIDGE_Q8_0_MAX_TOKENS).dim[0], elements = tokens * problem->dim[1];
    const int64_t size = (int64_t)sizeof(float);
    char *at = NULL;

    (void)device, (void)kernel;
    if (problem->dtype[0] != RIDGE_I8) {
        ridge_take(&at, elements);
        ridge_take(&at, elements / 32 * size);
    }
    for (int i = 0; i < 3 && problem->op == RIDGE_BLOCK_GATE_UP_SWIGLU; i++)
        ridge_take(&at, tokens * problem->dim[2] * size);
    return (size_t)(uintptr_t)at;
}

/* -------------------------------------------------------------------------------------------------------- SIMD rows */

#if defined(__x86_64__)

/* By param[1] of a kernel row. */
static const block_vectors *const vectors[] = {&ridge_cpu_blocks_avx2, &ridge_cpu_blocks_avxvnni,
                                               &ridge_cpu_blocks_vnni256};
enum { AVX2 = 0, AVXVNNI, VNNI256 };

/* Blocks [first, last) of all tokens; those beyond the last column are zeros. */
static void prepare(const block_vectors *v, const block_args *a, int64_t first, int64_t last)
{
    const ridge_operand *x = &a->call->arg[0], *s = &a->call->arg[1];

    for (int64_t i = first; i < last; i++) {
        const int64_t t = i % a->tokens, b = i / a->tokens;
        int8_t codes[32] = {0};
        float scale = 0;

        if (b < a->cols / 32 && x->dtype == RIDGE_I8) {
            memcpy(codes, (const int8_t *)x->data + t * x->stride + 32 * b, sizeof codes);
            scale = ((const float *)s->data)[t * s->stride + b];
        } else if (b < a->cols / 32) {
            quantize_block(x->dtype, x->data, t * x->stride + 32 * b, codes, &scale);
        }
        v->prepare(a, codes, scale, t, b);
    }
}

/* What follows the sums of a tile: rows `first` .. of a weight, or of gate and up. */
static void finish(const block_args *a, int which, int64_t first, float (*y)[RIDGE_Q8_0_MAX_TOKENS],
                   float (*up)[RIDGE_Q8_0_MAX_TOKENS])
{
    const ridge_operand *out = &a->weight[which].out;
    const float *bias = a->weight[which].bias, *up_bias = a->weight[1].bias;
    const int64_t count = ridge_min(BLOCK_ROWS, a->weight[which].rows - first);

    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t i = 0; i < count; i++) {
            const int64_t r = first + i;
            float v = bias ? y[i][t] + bias[r] : y[i][t];

            if (a->gate_up) {
                const float b = ridge_swiglu_up(up_bias ? up[i][t] + up_bias[r] : up[i][t], a->swiglu);
                const uint32_t act = a->call->flags & RIDGE_ACTIVATION;
                const float h = ridge_act_fwd(act, ridge_swiglu_gate(v, a->swiglu), a->swiglu.alpha);

                v = ridge_swiglu_scale(h * b, a->token_scale ? a->token_scale[t] : 1.0f, a->swiglu);
            } else if (a->residual.data) {
                v += ridge_load_element(a->residual.dtype, a->residual.data, t * a->residual.stride + r);
            }
            ridge_store_element(out, t * out->stride + r, v);
        }
}

static void one_tile(const block_vectors *v, const block_args *a, int which, int64_t tile)
{
    float y[BLOCK_ROWS][RIDGE_Q8_0_MAX_TOKENS], up[BLOCK_ROWS][RIDGE_Q8_0_MAX_TOKENS];

    v->product(a, a->weight[which].tiles + tile * a->weight[which].stride, y);
    if (a->gate_up)
        v->product(a, a->weight[1].tiles + tile * a->weight[1].stride, up);
    finish(a, which, tile * BLOCK_ROWS, y, up);
}

typedef struct tiles_work {
    const block_vectors *v;
    const block_args *a;
    int64_t blocks, first, tiles; /* of x; tiles of the first weight; of both */
    bool shared;
} tiles_work;

static void tiles_thread(const void *args, ridge_thread thread)
{
    const tiles_work *w = args;

    if (w->shared) {
        prepare(w->v, w->a, ridge_team_first(thread, w->blocks), ridge_team_last(thread, w->blocks));
        ridge_team_wait(thread);
    }
    for (int64_t i = ridge_team_first(thread, w->tiles); i < ridge_team_last(thread, w->tiles); i++)
        one_tile(w->v, w->a, i >= w->first, i - (i >= w->first ? w->first : 0));
}

/* The work units are tiles: those of the first weight, then those of pair's second one. A short x is prepared by the
 * calling thread: a barrier among threads that sleep takes about 30 microseconds. */
static ridge_status vectors_few(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                void *workspace, size_t bytes, void *stream)
{
    const block_vectors *v = vectors[kernel->param[1]];
    block_args a = args_of(&bound->call);
    const int64_t blocks = 8 * block_units(a.cols) * a.tokens, first = ridge_ceil_div(a.weight[0].rows, BLOCK_ROWS);
    const int64_t tiles = first + (a.gate_up ? 0 : ridge_ceil_div(a.weight[1].rows, BLOCK_ROWS));
    const bool shared = a.tokens * a.cols > 16384;
    const tiles_work w = {v, &a, blocks, first, tiles, shared};
    char *at = workspace;

    (void)device, (void)bytes, (void)stream;
    if (a.tokens == 0)
        return RIDGE_OK;
    a.tables = ridge_take(&at, (int64_t)v->tables);
    a.prepared = at;
    if (a.format == RIDGE_IQ2_XXS)
        v->fill_tables(a.tables);
    if (!shared) {
        unsigned mode = ridge_fp_begin();

        prepare(v, &a, 0, blocks);
        ridge_fp_end(mode);
    }
    ridge_team_all(ridge_team_begin((double)(tiles * BLOCK_ROWS * a.cols) / 2048, tiles), tiles_thread, &w);
    return RIDGE_OK;
}

static ridge_status launch_vectors(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *workspace, size_t bytes, void *stream)
{
    return ridge_block_by_few(vectors_few, RIDGE_Q8_0_MAX_TOKENS, device, kernel, bound, workspace, bytes, stream);
}

static size_t vectors_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const block_vectors *v = vectors[kernel->param[1]];

    (void)device;
    return (size_t)ridge_round_up((int64_t)v->tables, 256) +
           (size_t)(ridge_block_few(problem, RIDGE_Q8_0_MAX_TOKENS).dim[0] * block_units(problem->dim[1])) *
               v->prepared;
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)problem;
    if (kernel->param[1] == AVXVNNI && !(device->features & RIDGE_HAS_AVX_VNNI))
        return "this processor has no AVX-VNNI";
    if (kernel->param[1] == VNNI256 && !(device->features & RIDGE_HAS_AVX512_VNNI))
        return "this processor has no AVX512-VNNI";
    return NULL;
}

#endif

/* ------------------------------------------------------------------------------------------------------------- list */

/* param[0] is the row's time with one token in percent of the time the memory needs, param[2] what each further token
 * adds. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double percent = kernel->param[0] + kernel->param[2] * (double)(problem->dim[0] - 1);
    double rows = (double)problem->dim[2];

    if (problem->op == RIDGE_BLOCK_PAIR)
        rows += (double)problem->dim[3];
    if (problem->op == RIDGE_BLOCK_GATE_UP_SWIGLU)
        rows *= 2;
    return rows * (double)problem->dim[1] * 1e-3 / device->copy_gbps * 0.01 * percent;
}

#define CONTRACTS (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)

#define REFERENCE(op_name, op_id)                                                                          \
    {                                                                                                      \
        .name = "cpu." op_name ".c", .op = op_id, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512, \
        .contract = CONTRACTS, .param = {9000, 0, 5000}, .workspace = reference_workspace, .cost = cost,   \
        .launch = launch_reference                                                                         \
    }

#define ROW(op_name, op_id, set_name, low, percent, more, set)                                                    \
    {                                                                                                             \
        .name = "cpu." op_name "." set_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,         \
        .contract = CONTRACTS, .param = {percent, set, more}, .why_not = why_not, .workspace = vectors_workspace, \
        .cost = cost, .launch = launch_vectors                                                                    \
    }

#if defined(__x86_64__)
#define ROWS(op_name, op_id)                                               \
    ROW(op_name, op_id, "vnni256", RIDGE_ARCH_AVX512, 130, 40, VNNI256),   \
        ROW(op_name, op_id, "avxvnni", RIDGE_ARCH_AVX2, 135, 42, AVXVNNI), \
        ROW(op_name, op_id, "avx2", RIDGE_ARCH_AVX2, 150, 55, AVX2), REFERENCE(op_name, op_id)
#else
#define ROWS(op_name, op_id) REFERENCE(op_name, op_id)
#endif

static const ridge_kernel rows[] = {
    ROWS("block_matmul", RIDGE_BLOCK_MATMUL),
    ROWS("block_pair", RIDGE_BLOCK_PAIR),
    ROWS("block_gate_up_swiglu", RIDGE_BLOCK_GATE_UP_SWIGLU),
};

const ridge_kernel_list ridge_cpu_blocks = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

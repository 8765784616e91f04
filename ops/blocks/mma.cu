/* mma.cu: the host half of products with weights in block formats: the rows, how shared memory is laid out, and the
 * launch. The kernels are in a file a format (mma.cuh has their main loop). */
#include "problem.h"
#include "mma.cuh"

typedef struct block_plan {
    int form; /* 0: one token, 1: up to 8, 2: up to 16 */
    int teams, depth;
    int each;     /* tiles of a team side by side */
    bool records; /* x lies in global memory */
    uint32_t at_ring, at_sums, at_hand, at_bars;
    int64_t bytes;
} block_plan;

const block_kernels *ridge_block_kernels_of(uint32_t format)
{
    switch (format) {
    case RIDGE_Q4_0:
        return &ridge_block_kernels_q4_0;
    case RIDGE_Q4_1:
        return &ridge_block_kernels_q4_1;
    case RIDGE_Q8_0:
        return &ridge_block_kernels_q8_0;
    case RIDGE_MXFP4:
        return &ridge_block_kernels_mxfp4;
    case RIDGE_Q2_K:
        return &ridge_block_kernels_q2_k;
    case RIDGE_Q4_K:
        return &ridge_block_kernels_q4_k;
    case RIDGE_Q5_K:
        return &ridge_block_kernels_q5_k;
    case RIDGE_Q6_K:
        return &ridge_block_kernels_q6_k;
    default:
        return &ridge_block_kernels_iq2_xxs;
    }
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (uint32_t format = RIDGE_Q4_0; format < RIDGE_DTYPES && !status; format++) {
        const block_kernels *k = ridge_block_kernels_of(format);

        for (int bulk = 0; bulk < (device->arch == RIDGE_ARCH_SM90 ? 2 : 1) && !status; bulk++)
            status = host_prepare(device, k->mma[bulk], 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  host_max_shared(device), "block_matmul: loading kernels");
        if (!status)
            status = host_load(device, k->records, 3, "block_matmul: loading kernels");
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- plan */

static const int form_tokens[3] = {1, 8, 16};

/* Lays out shared memory for so many teams and stages, of one token always for two tiles side by side; returns whether
 * it fits. */
static bool fits(block_plan *p, const block_kernels *k, int64_t units, bool gate_up, int64_t most)
{
    const int64_t x = p->records ? 0 : units * k->record[p->form], side = p->form ? p->each : k->side[0][0];
    const int sums = (gate_up || side == 2 ? 2 : 1) * BLOCK_SUMS(form_tokens[p->form]);

    p->at_ring = (uint32_t)ridge_round_up(k->tables + x, 128);
    p->at_sums =
        (uint32_t)ridge_round_up(p->at_ring + (int64_t)p->teams * 4 * p->depth * side * BLOCK_PITCH(k->unit), 128);
    p->at_hand = p->at_sums + (uint32_t)(p->teams * sums);
    p->at_bars = p->at_hand + (uint32_t)(p->form ? p->teams * 4 * BLOCK_HAND(k->x) * side : 0);
    p->bytes = p->at_bars + (int64_t)p->teams * 4 * BLOCK_MAX_DEPTH * 8;
    return k->tables + x < most && p->bytes <= most;
}

/* What teams share out: tiles, of gate_up_swiglu pairs of them, or, with `each` = 2, pairs of neighbours. */
static int64_t work_of(int gate_up, int64_t tiles, int each)
{
    return gate_up ? tiles : ridge_ceil_div(tiles, each);
}

/* That of a CTA. */
static int64_t tiles_of(const ridge_device *device, const ridge_problem *problem, int each)
{
    const int64_t tiles = ridge_ceil_div(problem->dim[2], BLOCK_ROWS) +
                          (problem->op == RIDGE_BLOCK_PAIR ? ridge_ceil_div(problem->dim[3], BLOCK_ROWS) : 0);

    return ridge_ceil_div(work_of(problem->op == RIDGE_BLOCK_GATE_UP_SWIGLU, tiles, each), device->units);
}

/* What teams have room for in the time that their tiles take. */
static int64_t room(int64_t tiles, int teams)
{
    return ridge_ceil_div(tiles, teams) * teams;
}

/* Stages of a warp, at most. Of formats with many instructions a byte fewer, since more in flight only delays x, which
 * the loop begins with; but not where few teams have a tile. */
static int64_t most_stages(const block_kernels *k, const block_plan *p, int bulk, int64_t tiles)
{
    if (p->form > 1 || tiles < 1)
        return BLOCK_MAX_DEPTH;
    return ridge_min(BLOCK_MAX_DEPTH, k->depth[bulk] * p->teams / ridge_min(p->teams, tiles));
}

/* The teams that leave the fewest of them idle in the last round, of those within two of as many as fit with two
 * stages each; then more stages. Of several tokens two tiles are side by side where all teams have room for them.
 * Where x leaves no room for two teams, it stays in global memory. */
static block_plan plan(const ridge_device *device, const ridge_problem *problem, int bulk)
{
    const block_kernels *k = ridge_block_kernels_of(problem->dtype[2]);
    const int64_t tokens = problem->dim[0], units = block_units(problem->dim[1]), most = host_max_shared(device);
    const int form = tokens == 1 ? 0 : tokens <= 8 ? 1 : 2, side = k->side[bulk][form], teams = k->teams[bulk][form];
    const bool gate_up = problem->op == RIDGE_BLOCK_GATE_UP_SWIGLU;
    block_plan p = {}, best = {};
    int64_t tiles = 0;

    p.form = form;
    p.each = gate_up || tiles_of(device, problem, 1) > teams ? side : 1;
    p.depth = 2;
    best.bytes = INT64_MAX;
    for (;;) {
        const bool two = form && p.each == 2;

        tiles = tiles_of(device, problem, p.each);
        for (p.teams = teams; p.teams >= (two ? teams : p.records ? 1 : 2); p.teams--) {
            if (best.teams && p.teams < teams - 2)
                break;
            if (fits(&p, k, units, gate_up, most) && (!best.teams || room(tiles, p.teams) < room(tiles, best.teams)))
                best = p;
        }
        if (best.teams || p.records)
            break;
        p.each = two ? 1 : p.each;
        p.records = !two;
    }
    for (p = best; best.teams && p.depth < most_stages(k, &p, bulk, tiles); best = p) {
        p.depth++;
        if (!fits(&p, k, units, gate_up, most))
            break;
    }
    return best;
}

/* Tokens of a launch: of two IQ2_XXS matrices and a GeForce's shared memory eight, whose sums take half the room. */
static int64_t most_tokens(const ridge_device *device, const ridge_problem *problem, int bulk)
{
    const ridge_problem few = ridge_block_few(problem, RIDGE_Q8_0_MAX_TOKENS);

    return plan(device, &few, bulk).bytes == INT64_MAX ? 8 : RIDGE_Q8_0_MAX_TOKENS;
}

/* -------------------------------------------------------------------------------------------------------- workspace */

typedef struct block_space {
    int8_t *codes;
    float *scales;
    char *records;
} block_space;

/* Codes of floats, where not every CTA quantises them itself, and records where shared memory has no room for them. */
static size_t take(const ridge_device *device, const ridge_problem *problem, int bulk, char *at, block_space *s)
{
    const int64_t elements = problem->dim[0] * problem->dim[1];
    const block_plan p = plan(device, problem, bulk);

    if (problem->dtype[0] != RIDGE_I8 && !q8_0_fuses_x(problem)) {
        s->codes = (int8_t *)ridge_take(&at, elements);
        s->scales = (float *)ridge_take(&at, elements / 32 * (int64_t)sizeof(float));
    }
    if (p.records)
        s->records = (char *)ridge_take(&at, block_units(problem->dim[1]) *
                                                 ridge_block_kernels_of(problem->dtype[2])->record[p.form]);
    return (size_t)(uintptr_t)at;
}

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const ridge_problem few = ridge_block_few(problem, most_tokens(device, problem, kernel->param[0]));
    block_space s = {};

    return take(device, &few, kernel->param[0], NULL, &s);
}

/* ----------------------------------------------------------------------------------------------------------- launch */

static block_weight weight_of(const ridge_call *call, int w, int out, int bias, int64_t rows)
{
    block_weight m = {};

    m.tiles = (const uint8_t *)call->arg[w].data;
    m.stride = 16 * call->arg[w].stride;
    m.bias = (const float *)call->arg[bias].data;
    m.out = call->arg[out].data;
    m.out_stride = call->arg[out].stride;
    m.rows = (int)rows;
    return m;
}

block_mma_args block_collect(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    block_mma_args a = {};

    a.x_dtype = (int)arg[0].dtype;
    a.x = arg[0].data;
    a.x_stride = q8_0_row_bytes(&arg[0]);
    a.x_scales = (const float *)arg[1].data;
    a.x_ld = arg[1].stride;
    a.vector_x = ((uintptr_t)a.x | (uintptr_t)a.x_stride) % 16 == 0;
    a.tokens = (int)call->dim[0];
    a.blocks = (int)(call->dim[1] / 32);
    a.units = (int)block_units(call->dim[1]);
    a.tail = block_last_runs(call->dim[1]) == 1;
    a.x_slots = 1;
    a.weights_const = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    if (call->op == RIDGE_BLOCK_MATMUL) {
        a.weight[0] =
            weight_of(call, RIDGE_BLOCK_MATMUL_W, RIDGE_BLOCK_MATMUL_OUT, RIDGE_BLOCK_MATMUL_BIAS, call->dim[2]);
        a.residual = arg[RIDGE_BLOCK_MATMUL_RESIDUAL].data;
        a.residual_stride = arg[RIDGE_BLOCK_MATMUL_RESIDUAL].stride;
        a.bf16 = arg[RIDGE_BLOCK_MATMUL_OUT].dtype == RIDGE_BF16;
    } else if (call->op == RIDGE_BLOCK_PAIR) {
        for (int i = 0; i < 2; i++)
            a.weight[i] = weight_of(call, RIDGE_BLOCK_PAIR_W0 + i, RIDGE_BLOCK_PAIR_OUT0 + i,
                                    RIDGE_BLOCK_PAIR_BIAS0 + i, call->dim[2 + i]);
        a.bf16 = arg[RIDGE_BLOCK_PAIR_OUT0].dtype == RIDGE_BF16;
    } else {
        for (int i = 0; i < 2; i++)
            a.weight[i] = weight_of(call, RIDGE_BLOCK_GATE_UP_SWIGLU_GATE + i, RIDGE_BLOCK_GATE_UP_SWIGLU_OUT,
                                    RIDGE_BLOCK_GATE_UP_SWIGLU_GATE_BIAS + i, call->dim[2]);
        a.gate_up = 1;
        a.bf16 = arg[RIDGE_BLOCK_GATE_UP_SWIGLU_OUT].dtype == RIDGE_BF16;
        a.act = call->flags & RIDGE_ACTIVATION;
        a.token_scale = (const float *)arg[RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE].data;
        a.swiglu = ridge_swiglu_resolve(call->opt.swiglu);
    }
    a.tiles = (int)ridge_ceil_div(a.weight[0].rows, BLOCK_ROWS);
    a.work = a.tiles + (a.gate_up ? 0 : (int)ridge_ceil_div(a.weight[1].rows, BLOCK_ROWS));
    return a;
}

/* x of the arguments: the call's, or its codes made in the workspace. */
static ridge_status make_x(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           const block_space *s, void *stream, block_mma_args *a)
{
    const ridge_operand *x = &bound->call.arg[0];
    ridge_status status = RIDGE_OK;

    if (s->codes) {
        q8_0_rows_args q = {};

        q.rows = bound->call.dim[0];
        q.cols = bound->call.dim[1];
        q.codes = s->codes;
        q.scales = s->scales;
        q.codes_stride = q.cols;
        q.scales_stride = q.cols / 32;
        status = q8_0_launch_quantize(device, kernel->name, x, &q, stream);
        a->x_dtype = (int)RIDGE_I8;
        a->x = s->codes;
        a->x_stride = q.cols;
        a->x_scales = s->scales;
        a->x_ld = q.scales_stride;
        a->vector_x = a->x_stride % 16 == 0;
    }
    return status;
}

static ridge_status launch_few(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                               void *space, size_t, void *stream)
{
    const block_plan p = plan(device, &bound->problem, kernel->param[0]);
    const block_kernels *k = ridge_block_kernels_of(bound->call.arg[2].dtype);
    block_mma_args a = block_collect(&bound->call);
    block_space s = {};
    ridge_status status;

    if (a.tokens == 0 || a.work == 0)
        return RIDGE_OK;
    take(device, &bound->problem, kernel->param[0], (char *)space, &s);
    status = make_x(device, kernel, bound, &s, stream, &a);
    if (status)
        return status;
    a.teams = p.teams;
    a.depth = p.depth;
    a.stage = p.each * BLOCK_PITCH(k->unit);
    a.each = p.each;
    a.all = a.work;
    a.work = (int)work_of(a.gate_up, a.work, a.each);
    a.at_ring = p.at_ring;
    a.at_sums = p.at_sums;
    a.at_hand = p.at_hand;
    a.at_bars = p.at_bars;
    if (p.records) {
        const int64_t threads = (int64_t)a.units * 32 * ridge_ceil_div(form_tokens[p.form], 4);

        a.records_out = s.records;
        status = host_launch(device, kernel->name, k->records[p.form], dim3((unsigned)ridge_ceil_div(threads, 256)),
                             256, &a, stream);
        if (status)
            return status;
        a.records = s.records;
    }
    return host_launch_shared(device, kernel->name, k->mma[kernel->param[0]][p.form],
                              dim3((unsigned)ridge_min(a.work, device->units)), BLOCK_TEAM * p.teams, (size_t)p.bytes,
                              &a, stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *space, size_t bytes, void *stream)
{
    return ridge_block_by_few(launch_few, most_tokens(device, &bound->problem, kernel->param[0]), device, kernel, bound,
                              space, bytes, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const ridge_problem few = ridge_block_few(problem, 8);

    if (problem->dim[1] > 1 << 24 || problem->dim[2] > 1 << 30 || problem->dim[3] > 1 << 30)
        return "more than 2^24 columns or 2^30 rows";
    if (plan(device, &few, kernel->param[0]).bytes == INT64_MAX)
        return "shared memory is too small";
    return NULL;
}

/* Microseconds: a launch, x, and the weights at the rate of a copy. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double rows = ridge_block_rows(problem);
    const double read = ridge_block_bytes(problem) * (kernel->param[0] ? 1.0e-3 : 1.1e-3) / device->copy_gbps;
    const int64_t most = most_tokens(device, problem, kernel->param[0]);
    const double few = (double)ridge_min(problem->dim[0], most);
    const double products = 19e-9 * few * rows * (double)problem->dim[1]; /* what bounds more than about four */

    return 10e-6 * (double)problem->dim[0] * (double)problem->dim[1] +
           (3 + (read > products ? read : products)) * (double)ridge_ceil_div(problem->dim[0], most);
}

#define ROW(op_name, op_id, name, low, high, bulk)                                                             \
    {                                                                                                          \
        "cuda." op_name "." name, op_id, low, high, Q8_0_CONTRACT, 0, {bulk}, why_not, workspace, cost, launch \
    }
#define ROWS(op_name, op_id)                                          \
    ROW(op_name, op_id, "bulk", RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, 1), \
        ROW(op_name, op_id, "mma", RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, 0)

/* param[0]: weights come by bulk copies. */
static const ridge_kernel rows[] = {
    ROWS("block_matmul", RIDGE_BLOCK_MATMUL),
    ROWS("block_pair", RIDGE_BLOCK_PAIR),
    ROWS("block_gate_up_swiglu", RIDGE_BLOCK_GATE_UP_SWIGLU),
};

extern "C" const ridge_kernel_list ridge_cuda_blocks = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

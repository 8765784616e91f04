/* cpu_prefill.c: attention_prefill on the CPU: attention_decode's arithmetic on q rounded to the cache's dtype, exact.
 * A unit is up to 16 queries of a KV head (or one token with all queries of the group). Its pieces lie in a part of the
 * workspace that belongs to the thread, so that the workspace does not grow with the tokens. */
#include "cpu_rows.h"
#include "cpu/team.h"

typedef struct prefill {
    attention_args a;
    const attention_level *level;
    int64_t tokens, units; /* of a unit; of the call */
    int64_t lanes;         /* units at a time, by the threads and the workspace */
    size_t floats;         /* of a lane's part of the workspace: q, then the pieces */
} prefill;

static int64_t unit_tokens(int64_t group)
{
    return group < RIDGE_ATTENTION_ROWS ? RIDGE_ATTENTION_ROWS / group : 1;
}

static size_t unit_floats(int64_t group, int64_t n, int64_t positions)
{
    return (size_t)(unit_tokens(group) * group) * (size_t)(n + attention_pieces_of(positions) * (n + 2));
}

/* Heads [first, first + group) of a token as f32, rounded. */
static void round_queries(const attention_args *a, int64_t t, int64_t first, float *q)
{
    row_load(a->q_bf16, a->q + t * a->q_stride + first * a->n * (a->q_bf16 ? 2 : 4), a->group * a->n, q);
    for (int64_t i = 0; i < a->group * a->n; i++)
        q[i] = a->kv == RIDGE_BF16 ? ridge_f32_from_bf16(ridge_bf16_from_f32(q[i]))
                                   : ridge_f32_from_f16(ridge_f16_from_f32(q[i]));
}

/* The unit as a call of attention_decode of one KV head. */
static void one_unit(const prefill *p, int64_t unit, float *scratch)
{
    const int64_t kv = unit % p->a.kv_heads, t0 = unit / p->a.kv_heads * p->tokens, head = kv * p->a.group;
    const int64_t tokens = ridge_min(p->tokens, p->a.tokens - t0), rows = tokens * p->a.group;
    attention_args a = p->a;
    int64_t first = INT64_MAX, end = 0;

    for (int64_t t = 0; t < tokens; t++) {
        int64_t from, to;

        round_queries(&p->a, t0 + t, head, scratch + t * a.group * a.n);
        attention_range(&a, a.pos[t0 + t], &from, &to);
        if (from < to) {
            first = ridge_min(first, from);
            end = to > end ? to : end;
        }
    }
    a.tokens = tokens;
    a.heads = a.group;
    a.kv_heads = 1;
    a.q = (const char *)scratch;
    a.q_bf16 = 0;
    a.q_stride = a.group * a.n * (int64_t)sizeof(float);
    a.k += kv * a.k_stride;
    a.v += kv * a.v_stride;
    a.pos += t0;
    a.sinks = a.sinks ? a.sinks + head : NULL;
    a.out += t0 * a.out_stride + head * a.n * (a.out_bf16 ? 2 : 4);
    a.pieces = scratch + p->tokens * a.group * a.n;
    for (int64_t i = first / RIDGE_ATTENTION_PIECE; i < attention_pieces_of(end); i++)
        for (int64_t r = 0; r < rows; r += RIDGE_ATTENTION_ROWS)
            p->level->piece(&a, 0, i, r, (int)ridge_min(rows - r, RIDGE_ATTENTION_ROWS));
    for (int64_t r = 0; r < rows; r++)
        p->level->merge(&a, r / a.group, r % a.group);
}

/* Every lane has scratch memory of its own. */
static void prefill_thread(const void *args, ridge_thread thread)
{
    const prefill *p = args;

    for (int64_t lane = thread.number; lane < p->lanes; lane += thread.of)
        for (int64_t i = lane; i < p->units; i += p->lanes)
            one_unit(p, i, p->a.pieces + (size_t)lane * p->floats);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    prefill p = {.a = attention_args_of(&bound->call, workspace), .level = kernel->variant};
    ridge_team *team;

    (void)device, (void)stream;
    if (p.a.tokens == 0 || p.a.heads == 0 || p.a.n == 0)
        return RIDGE_OK;
    p.tokens = unit_tokens(p.a.group);
    p.units = ridge_ceil_div(p.a.tokens, p.tokens) * p.a.kv_heads;
    p.floats = unit_floats(p.a.group, p.a.n, p.a.positions);
    team = ridge_team_begin(bound->op->flops(&bound->problem) * 1e-4, p.units);
    p.lanes = ridge_min(ridge_min(p.units, (int64_t)(bytes / (p.floats * sizeof(float)))), team->threads);
    ridge_team_all(team, prefill_thread, &p);
    return RIDGE_OK;
}

static size_t workspace_bytes(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t kv_heads = problem->dim[2], group = kv_heads ? problem->dim[1] / kv_heads : 0;
    const int64_t threads = device->units > 0 ? device->units : 1;

    (void)kernel;
    if (group == 0 || problem->dim[0] == 0 || problem->dim[3] == 0)
        return 0;
    return unit_floats(group, problem->dim[3], problem->dim[4]) * sizeof(float) *
           (size_t)ridge_min(ridge_ceil_div(problem->dim[0], unit_tokens(group)) * kv_heads, threads);
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device;
    return ridge_op_at(problem->op)->flops(problem) * 1e-5 * 0.01 * kernel->param[0];
}

#define ROW(arch_name, low, percent, level_of)                                                                   \
    {                                                                                                            \
        .name = "cpu.attention_prefill." arch_name, .op = RIDGE_ATTENTION_PREFILL, .arch_min = low,              \
        .arch_max = RIDGE_ARCH_AVX512,                                                                           \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,                  \
        .variant = &(level_of), .param = {percent}, .workspace = workspace_bytes, .cost = cost, .launch = launch \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("avx512", RIDGE_ARCH_AVX512, 120, ridge_cpu_attention_avx512),
    ROW("avx2", RIDGE_ARCH_AVX2, 130, ridge_cpu_attention_avx2),
#endif
    ROW("c", RIDGE_ARCH_C, 5000, ridge_cpu_attention_c),
};

const ridge_kernel_list ridge_cpu_attention_prefill = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

/* cpu.c: kv_append, attention_decode and both in one call on the CPU: the C reference of a piece, the threads, and the
 * kernel list. Leaves out: what all levels share (cpu_rows.h) and the vector code (cpu_simd.h). */
#include "cpu/team.h"
#include "cpu_rows.h"
#include "src/util.h"

/* -------------------------------------------------------------------------------------------------------- reference */

static float kv_element(const attention_args *a, const char *head, int64_t position, int64_t i)
{
    const char *row = head + position * a->kv_row, *block = row + i / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES;
    uint16_t half;

    memcpy(&half, a->kv == RIDGE_U8 ? block : row + 2 * i, 2);
    if (a->kv == RIDGE_U8)
        return ridge_f32_from_f16(half) * (float)((const int8_t *)block)[2 + i % RIDGE_Q8_0_BLOCK];
    return a->kv == RIDGE_BF16 ? ridge_f32_from_bf16(half) : ridge_f32_from_f16(half);
}

static float reference_dot(const attention_args *a, const float *q, const char *k, int64_t position)
{
    float part[16] = {0};

    for (int64_t c = 0; c < a->n; c++)
        part[c % 16] = ridge_fma(q[c], kv_element(a, k, position, c), part[c % 16]);
    for (int s = 4; s > 0; s /= 2)
        for (int i = 0; i < s; i++) {
            part[i] += part[i + s];
            part[8 + i] += part[8 + i + s];
        }
    return part[0] + part[8];
}

static float reference_sum(const float *p)
{
    float part[RIDGE_ATTENTION_CHUNK];

    memcpy(part, p, sizeof part);
    for (int s = RIDGE_ATTENTION_CHUNK / 2; s > 0; s /= 2)
        for (int i = 0; i < s; i++)
            part[i] += part[i + s];
    return part[0];
}

/* One query; first and end are the keys of the piece that it sees. */
static void reference_query(const attention_args *a, int64_t t, int64_t head, int64_t piece, int64_t first, int64_t end)
{
    const int64_t kv_head = head / a->group, base = piece * RIDGE_ATTENTION_PIECE;
    const char *k = a->k + kv_head * a->k_stride, *v = a->v + kv_head * a->v_stride;
    float q[RIDGE_MAX_HEAD_DIM], p[RIDGE_ATTENTION_PIECE] = {0}, *o = piece_at(a, t, head, piece), m = -INFINITY, l = 0;

    row_load(a->q_bf16, a->q + t * a->q_stride + head * a->n * (a->q_bf16 ? 2 : 4), a->n, q);
    for (int64_t i = first; i < end; i++) {
        p[i - base] = ridge_attention_score(reference_dot(a, q, k, i), a->scale, a->softcap);
        m = ridge_attention_max(m, p[i - base]);
    }
    for (int64_t i = first; i < end; i++)
        p[i - base] = ridge_attention_weight(m, p[i - base]);
    for (int64_t chunk = 0; chunk < RIDGE_ATTENTION_PIECE; chunk += RIDGE_ATTENTION_CHUNK)
        l = chunk ? l + reference_sum(p + chunk) : reference_sum(p);
    for (int64_t c = 0; c < a->n; c++)
        for (int64_t chunk = 0; chunk < RIDGE_ATTENTION_PIECE; chunk += RIDGE_ATTENTION_CHUNK) {
            float sum = 0.0f;

            for (int64_t i = chunk; i < chunk + RIDGE_ATTENTION_CHUNK; i++)
                if (base + i >= first && base + i < end)
                    sum = ridge_fma(p[i], kv_element(a, v, base + i, c), sum);
            o[c] = chunk ? o[c] + sum : sum;
        }
    o[a->n] = m;
    o[a->n + 1] = l;
}

static void reference_piece(const attention_args *a, int64_t kv_head, int64_t piece, int64_t first_row, int rows)
{
    const int64_t base = piece * RIDGE_ATTENTION_PIECE;

    for (int64_t r = first_row; r < first_row + rows; r++) {
        const int64_t t = r / a->group, head = kv_head * a->group + r % a->group;
        int64_t first, end;

        attention_range(a, a->pos[t], &first, &end);
        first = first > base ? first : base;
        end = ridge_min(end, base + RIDGE_ATTENTION_PIECE);
        if (first < end)
            reference_query(a, t, head, piece, first, end);
    }
}

const attention_level ridge_cpu_attention_c = {append_one_head, reference_piece, merge_pieces};

/* ---------------------------------------------------------------------------------------------------------- threads */

/* What the threads of a call do: angles and heads to append, then queries against pieces, `rows` a unit, and merges. */
typedef struct attention_work {
    append_args append;
    attention_args attend;
    const attention_level *level;
    float *angles; /* cosines and sines of every token */
    int64_t heads; /* of a token to append */
    int64_t rows;
    bool attends;
    bool merged;                                   /* all keys lie in one piece: a merge follows its piece at once */
    int64_t all_angles, all_heads, units, queries; /* the parts of the four passes */
} attention_work;

static void make_angle(const attention_work *w, int64_t i)
{
    const append_args *a = &w->append;
    const int64_t pairs = a->n_rot / 2, t = i / pairs, pair = i % pairs;
    float *c = w->angles + t * a->n_rot + pair;

    ridge_rope_angle(a->pos[t], a->freqs[pair], a->mscale, 0, c, c + pairs);
}

static void append_unit(const attention_work *w, int64_t i)
{
    const append_args *a = &w->append;
    const float *c = w->angles + i / w->heads * a->n_rot;

    w->level->append(a, i / w->heads, i % w->heads, c, c + a->n_rot / 2);
}

static void attend_piece(const attention_work *w, int64_t i)
{
    const attention_args *a = &w->attend;
    const int64_t all = a->tokens * a->group, blocks = ridge_ceil_div(all, w->rows), row = i % blocks * w->rows;

    w->level->piece(a, i / blocks % a->kv_heads, i / blocks / a->kv_heads, row, (int)ridge_min(all - row, w->rows));
    for (int64_t r = row; r < ridge_min(all, row + w->rows) && w->merged; r++)
        w->level->merge(a, r / a->group, i / blocks % a->kv_heads * a->group + r % a->group);
}

static void attend_merge(const attention_work *w, int64_t i)
{
    w->level->merge(&w->attend, i / w->attend.heads, i % w->attend.heads);
}

/* Microseconds of one thread, twice: a call of one token follows a product, whose threads still wait for work. 9 heads
 * of 64 and 64 positions take 13 us. */
static double attention_us(const attention_work *w, int64_t end)
{
    const append_args *a = &w->append;
    const attention_args *t = &w->attend;

    return (double)(a->tokens * w->heads * a->n) * 1e-2 + (double)(end * t->tokens * t->heads * t->n) * 4.4e-4;
}

static void attention_thread(const void *args, ridge_thread thread)
{
    const attention_work *w = args;

    for (int64_t i = ridge_team_first(thread, w->all_angles); i < ridge_team_last(thread, w->all_angles); i++)
        make_angle(w, i);
    if (w->all_angles)
        ridge_team_wait(thread);
    for (int64_t i = ridge_team_first(thread, w->all_heads); i < ridge_team_last(thread, w->all_heads); i++)
        append_unit(w, i);
    if (!w->queries)
        return;
    if (w->all_heads)
        ridge_team_wait(thread);
    for (int64_t i = thread.number; i < w->units; i += thread.of)
        attend_piece(w, i);
    if (w->merged)
        return;
    ridge_team_wait(thread);
    for (int64_t i = ridge_team_first(thread, w->queries); i < ridge_team_last(thread, w->queries); i++)
        attend_merge(w, i);
}

/* Appends and attends in one region of threads. */
static ridge_status run_work(attention_work w, int64_t end)
{
    int64_t each; /* units, for so many rows at once */
    ridge_team *team;

    w.all_heads = w.append.tokens * w.heads;
    w.all_angles = w.all_heads ? w.append.tokens * (w.append.n_rot / 2) : 0;
    w.queries = w.attends ? w.attend.tokens * w.attend.heads : 0;
    each = w.queries ? attention_pieces_of(end) * w.attend.kv_heads : 0;
    team = ridge_team_begin(attention_us(&w, end), ridge_max(w.all_heads, w.queries));
    if (each * ridge_ceil_div(w.attend.tokens * w.attend.group, w.rows) < team->threads)
        w.rows = 1;
    w.units = each * ridge_ceil_div(w.attend.tokens * w.attend.group, w.rows);
    w.merged = w.queries && attention_pieces_of(end) == 1;
    ridge_team_part(team, attention_thread, &w, sizeof w);
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- list */

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    attention_work w = {.level = kernel->variant, .angles = workspace, .rows = RIDGE_ATTENTION_ROWS};
    int64_t end = 0;

    (void)device, (void)bytes, (void)stream;
    if (call->op == RIDGE_KV_APPEND)
        w.append = append_args_of(call);
    else if (call->op == RIDGE_ATTENTION_DECODE)
        w.attend = attention_args_of(call, workspace);
    else {
        w.append = attention_halves(call, workspace, &w.attend);
        w.angles = (float *)(void *)((char *)workspace + attention_workspace(&bound->problem));
    }
    w.heads = w.append.n ? w.append.heads + 2 * w.append.kv_heads : 0;
    for (int64_t t = 0; t < w.attend.tokens; t++)
        end = ridge_max(w.attend.pos[t] + INT64_C(1), end);
    end = ridge_min(end, w.attend.positions);
    w.attends = w.attend.tokens * w.attend.heads * w.attend.n > 0;
    return run_work(w, end);
}

/* The pieces; sines and cosines of every token behind them. */
static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (problem->op == RIDGE_KV_APPEND ? 0 : attention_workspace(problem)) +
           (problem->op == RIDGE_ATTENTION_DECODE ? 0
                                                  : (size_t)problem->dim[0] * (size_t)problem->dim[3] * sizeof(float));
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double heads = (double)problem->dim[1] + 2 * (double)problem->dim[2];

    return heads * (double)problem->dim[0] * (double)problem->dim[3] * 8e-3 / device->copy_gbps * 0.01 *
           kernel->param[0];
}

#define ROW(op_name, op_id, arch_name, low, percent, level)                                                          \
    {                                                                                                                \
        .name = "cpu." op_name "." arch_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,           \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .variant = &(level), \
        .param = {percent}, .workspace = workspace, .cost = cost, .launch = launch                                   \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("kv_append", RIDGE_KV_APPEND, "avx512", RIDGE_ARCH_AVX512, 120, ridge_cpu_attention_avx512),
    ROW("kv_append", RIDGE_KV_APPEND, "avx2", RIDGE_ARCH_AVX2, 130, ridge_cpu_attention_avx2),
    ROW("attention_decode", RIDGE_ATTENTION_DECODE, "avx512", RIDGE_ARCH_AVX512, 120, ridge_cpu_attention_avx512),
    ROW("attention_decode", RIDGE_ATTENTION_DECODE, "avx2", RIDGE_ARCH_AVX2, 130, ridge_cpu_attention_avx2),
    ROW("kv_append_attention", RIDGE_KV_APPEND_ATTENTION, "avx512", RIDGE_ARCH_AVX512, 120, ridge_cpu_attention_avx512),
    ROW("kv_append_attention", RIDGE_KV_APPEND_ATTENTION, "avx2", RIDGE_ARCH_AVX2, 130, ridge_cpu_attention_avx2),
#endif
    ROW("kv_append", RIDGE_KV_APPEND, "c", RIDGE_ARCH_C, 5000, ridge_cpu_attention_c),
    ROW("attention_decode", RIDGE_ATTENTION_DECODE, "c", RIDGE_ARCH_C, 5000, ridge_cpu_attention_c),
    ROW("kv_append_attention", RIDGE_KV_APPEND_ATTENTION, "c", RIDGE_ARCH_C, 5000, ridge_cpu_attention_c),
};

const ridge_kernel_list ridge_cpu_attention = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

/* cpu.c: kv_append, attention_decode and both in one call on the CPU: the C reference of a piece, the threads, and the
 * kernel list. Leaves out: what all levels share (cpu_rows.h) and the vector code (cpu_simd.h). */
#include "cpu_rows.h"

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

const attention_level ridge_cpu_attention_c = {append_one_token, reference_piece, merge_pieces};

/* ---------------------------------------------------------------------------------------------------------- threads */

static void append_token_of(const append_args *a, const attention_level *level, int64_t t, float *angles)
{
    const int64_t pairs = a->n_rot / 2;
    float *c = angles + t * a->n_rot, *s = c + pairs;

    for (int64_t i = 0; i < pairs; i++)
        ridge_rope_angle(a->pos[t], a->freqs[i], a->mscale, 0, &c[i], &s[i]);
    level->append(a, t, c, s);
}

static ridge_status append(append_args a, const attention_level *level, float *angles)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const one_token)(const append_args *, const attention_level *, int64_t, float *) = append_token_of;

    if (a.heads + a.kv_heads == 0 || a.n == 0)
        return RIDGE_OK;
#pragma omp parallel if (a.tokens > 1 && a.tokens * (a.heads + 2 * a.kv_heads) * a.n >= 65536)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static)
        for (int64_t t = 0; t < a.tokens; t++)
            one_token(&a, level, t, angles);
        ridge_fp_end(mode);
    }
    return RIDGE_OK;
}

/* Unit i of the pieces, or of the queries and heads that are merged. */
static void attend_piece(const attention_args *a, const attention_level *level, int64_t i)
{
    const int64_t all = a->tokens * a->group, blocks = ridge_ceil_div(all, RIDGE_ATTENTION_ROWS);
    const int64_t row = i % blocks * RIDGE_ATTENTION_ROWS;

    level->piece(a, i / blocks % a->kv_heads, i / blocks / a->kv_heads, row,
                 (int)ridge_min(all - row, RIDGE_ATTENTION_ROWS));
}

static void attend_merge(const attention_args *a, const attention_level *level, int64_t i)
{
    level->merge(a, i / a->heads, i % a->heads);
}

static ridge_status attend(attention_args a, const attention_level *level)
{
    void (*volatile const one_piece)(const attention_args *, const attention_level *, int64_t) = attend_piece;
    void (*volatile const one_merge)(const attention_args *, const attention_level *, int64_t) = attend_merge;
    int64_t end = 0, units;

    if (a.tokens == 0 || a.heads == 0 || a.n == 0)
        return RIDGE_OK;
    for (int64_t t = 0; t < a.tokens; t++)
        end = a.pos[t] + INT64_C(1) > end ? a.pos[t] + INT64_C(1) : end;
    end = ridge_min(end, a.positions);
    units = attention_pieces_of(end) * a.kv_heads * ridge_ceil_div(a.tokens * a.group, RIDGE_ATTENTION_ROWS);
#pragma omp parallel if (units > 1 && end * a.tokens * a.heads * a.n >= 1000000)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static, 1)
        for (int64_t i = 0; i < units; i++)
            one_piece(&a, level, i);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a.tokens * a.heads; i++)
            one_merge(&a, level, i);
        ridge_fp_end(mode);
    }
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- list */

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const attention_level *level = kernel->variant;
    const ridge_call *call = &bound->call;
    attention_args attention;
    ridge_status status;

    (void)device, (void)bytes, (void)stream;
    if (call->op == RIDGE_KV_APPEND)
        return append(append_args_of(call), level, workspace);
    if (call->op == RIDGE_ATTENTION_DECODE)
        return attend(attention_args_of(call, workspace), level);
    status = append(attention_halves(call, workspace, &attention), level,
                    (float *)(void *)((char *)workspace + attention_workspace(&bound->problem)));
    return status ? status : attend(attention, level);
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

/* cpu.c: embed and sample on the CPU, in C. A row of sample is one thread's. The candidates that top_k and top_p leave
 * are found by their keys (src/math/sample.h) a byte at a time, from the highest on, without sorting; those of a small
 * top_k by one pass that keeps the best, and the rest of the work is theirs alone. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/blocks/value.h"
#include "src/math/sample.h"

/* ----------------------------------------------------------------------------------------------------------- embed */

static float load(int32_t dtype, const void *from, int64_t i)
{
    switch (dtype) {
    case RIDGE_BF16:
        return ridge_f32_from_bf16(((const uint16_t *)from)[i]);
    case RIDGE_F16:
        return ridge_f32_from_f16(((const uint16_t *)from)[i]);
    default:
        return ((const float *)from)[i];
    }
}

static void store(int32_t dtype, void *to, int64_t i, float value)
{
    switch (dtype) {
    case RIDGE_BF16:
        ((uint16_t *)to)[i] = ridge_bf16_from_f32(value);
        break;
    case RIDGE_F16:
        ((uint16_t *)to)[i] = ridge_f16_from_f32(value);
        break;
    default:
        ((float *)to)[i] = ridge_f32_canonical(value);
        break;
    }
}

/* Element j of row `id` of the table. */
static float weight(const embed_args *a, int64_t id, int64_t j)
{
    if (a->table_dtype == RIDGE_U8) {
        const unsigned char *block = (const unsigned char *)a->table + id * a->stride + j / 32 * 34;

        return ridge_f32_from_f16((uint16_t)(block[0] | block[1] << 8)) * (float)(int8_t)block[2 + j % 32];
    }
    if (a->table_dtype == RIDGE_I8)
        return ridge_f32_from_f16(((const uint16_t *)a->scales)[id * a->scales_stride + j / 32]) *
               (float)((const int8_t *)a->table)[id * a->stride + j];
    if (a->table_dtype >= RIDGE_Q4_0)
        return block_value((uint32_t)a->table_dtype, (const uint8_t *)a->table + id / BLOCK_ROWS * a->stride * 16,
                           a->cols, (int)(id % BLOCK_ROWS), j);
    return load(a->table_dtype, a->table, id * a->stride + j);
}

static void embed_token(const void *args, int64_t t)
{
    const embed_args *a = args;
    const int64_t id = a->ids64 ? ((const int64_t *)a->ids)[t] : ((const int32_t *)a->ids)[t];
    const bool known = id >= 0 && id < a->vocab;

    for (int64_t j = 0; j < a->cols; j++)
        store(a->out_dtype, a->out, t * a->out_stride + j,
              known ? weight(a, id, j) * a->scale : ridge_float(RIDGE_NAN_F32));
}

static ridge_status launch_embed(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                 void *workspace, size_t bytes, void *stream)
{
    const embed_args a = embed_args_of(&bound->call);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    ridge_team_run((double)(a.tokens * a.cols) / 512, a.tokens, embed_token, &a);
    return RIDGE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- sample */

enum { FEW = 256 }; /* candidates that a list on the stack holds */

/* Tokens that are left: those with a larger key, and the first `equal` of those with this one. */
typedef struct sample_cut {
    uint32_t key;
    int64_t equal;
} sample_cut;

/* What a token counts: 1, or its weight. */
static uint64_t measure(bool by_weight, float logit, float largest)
{
    return by_weight ? ridge_sample_weight(ridge_sample_ratio(logit, largest)) : 1;
}

/* Cuts what `from` leaves after the first tokens, by (key descending, number ascending), whose sum reaches `least`; one
 * is left at least. */
static sample_cut cut(const float *logits, int64_t n, float largest, bool by_weight, uint64_t least, sample_cut from)
{
    const uint64_t one = measure(by_weight, ridge_sample_logit(from.key), largest);
    uint64_t above = 0, each, need;
    sample_cut c = {0, 0};

    for (int shift = 24; shift >= 0; shift -= 8) {
        uint64_t sum[256] = {0}, count[256] = {0};
        int bin = 255;

        for (int64_t i = 0; i < n; i++) {
            const uint32_t key = ridge_sample_key(logits[i]);

            if (key > from.key && (uint64_t)key >> (shift + 8) == (uint64_t)c.key >> (shift + 8)) {
                sum[key >> shift & 255] += measure(by_weight, logits[i], largest);
                count[key >> shift & 255]++;
            }
        }
        if (from.equal && (uint64_t)from.key >> (shift + 8) == (uint64_t)c.key >> (shift + 8)) {
            sum[from.key >> shift & 255] += one * (uint64_t)from.equal;
            count[from.key >> shift & 255] += (uint64_t)from.equal;
        }
        for (; bin >= 0 && (count[bin] == 0 || above + sum[bin] < least); bin--)
            above += sum[bin];
        if (bin < 0) /* all of them are not enough */
            return from;
        c.key |= (uint32_t)bin << shift;
        c.equal = (int64_t)count[bin];
    }
    each = measure(by_weight, ridge_sample_logit(c.key), largest);
    need = each ? (least - above + each - 1) / each : 0;
    need = need ? need : 1;
    c.equal = need < (uint64_t)c.equal ? (int64_t)need : c.equal;
    return c;
}

/* Is token i left? *equal counts those with the key of the cut. */
static bool is_left(const sample_args *a, sample_cut c, float logit, float largest, int64_t *equal)
{
    const uint32_t key = ridge_sample_key(logit);

    return (key > c.key || (key == c.key && (*equal)++ < c.equal)) && ridge_sample_ratio(logit, largest) >= a->min_p;
}

static int64_t draw(const sample_args *a, const float *logits, int64_t n, float largest, sample_cut c, uint64_t bits)
{
    uint64_t sum = 0, at;
    int64_t equal = 0, i = 0;

    for (int64_t j = 0; j < n; j++)
        if (is_left(a, c, logits[j], largest, &equal))
            sum += ridge_sample_weight(ridge_exp((logits[j] - largest) / a->temperature));
    at = ridge_high64(bits, sum);
    equal = 0;
    for (uint64_t before = 0; i < n; i++) {
        if (is_left(a, c, logits[i], largest, &equal))
            before += ridge_sample_weight(ridge_exp((logits[i] - largest) / a->temperature));
        if (before > at)
            break;
    }
    return i;
}

/* The first `most` tokens, at most FEW, by (key descending, number ascending): their logits and numbers, by number. */
static void gather(const float *logits, int64_t n, int64_t most, float *kept, int64_t *number)
{
    uint32_t best[FEW];
    int64_t left = 0;

    for (int64_t i = 0; i < n; i++) {
        const uint32_t key = ridge_sample_key(logits[i]);
        int64_t at = left < most ? left : most - 1;

        if (left == most && key <= best[at])
            continue;
        left += left < most;
        for (; at > 0 && key > best[at - 1]; at--) {
            best[at] = best[at - 1];
            number[at] = number[at - 1];
        }
        best[at] = key;
        number[at] = i;
    }
    for (int64_t i = 1; i < left; i++) {
        const int64_t token = number[i];
        int64_t at = i;

        for (; at > 0 && number[at - 1] > token; at--)
            number[at] = number[at - 1];
        number[at] = token;
    }
    for (int64_t i = 0; i < left; i++)
        kept[i] = logits[number[i]];
}

/* The first of the largest logits; -1 where one is NaN. By blocks, whose loops have no branch. */
static int64_t largest_of(const float *logits, int64_t n)
{
    enum { BLOCK = 256 };
    uint32_t key = 0;
    int64_t at = 0;

    for (int64_t j = 0; j < n; j += BLOCK) {
        const int64_t end = j + BLOCK < n ? j + BLOCK : n;
        uint32_t most = 0, bad = 0;

        for (int64_t i = j; i < end; i++) {
            const uint32_t k = ridge_sample_key(logits[i]);

            most = k > most ? k : most;
            bad |= (uint32_t)(logits[i] != logits[i]);
        }
        if (bad)
            return -1;
        if (most > key) {
            key = most;
            at = j;
        }
    }
    while (ridge_sample_key(logits[at]) != key)
        at++;
    return at;
}

/* The largest of a lone row's logits, which all threads look for, each in some pieces. */
enum { PIECES = 64 };

typedef struct piece_work {
    const float *logits;
    int64_t n, each, *at;
} piece_work;

static void largest_of_piece(const void *args, int64_t i)
{
    const piece_work *w = args;
    const int64_t first = i * w->each, n = w->n - first < w->each ? w->n - first : w->each;
    const int64_t at = largest_of(w->logits + first, n);

    w->at[i] = at < 0 ? at : first + at;
}

static int64_t largest_by_all(const float *logits, int64_t n)
{
    const int64_t each = (n + PIECES - 1) / PIECES;
    int64_t at[PIECES], best = 0;
    const piece_work w = {logits, n, each < 1024 ? 1024 : each, at};

    ridge_team_run((double)n / 1024, (n + w.each - 1) / w.each, largest_of_piece, &w);
    for (int64_t i = 0; i * w.each < n; i++) {
        if (at[i] < 0)
            return -1;
        if (ridge_sample_key(logits[at[i]]) > ridge_sample_key(logits[best]))
            best = at[i];
    }
    return best;
}

typedef struct sample_work {
    sample_args a;
    int64_t best; /* the largest logit of a lone row; -2: not looked for yet */
} sample_work;

static int64_t sample_row(const sample_work *w, int64_t row)
{
    const sample_args *a = &w->a;
    const float *logits = a->logits + row * a->stride;
    const bool few = a->top_k && a->top_k < a->vocab && a->top_k <= FEW;
    int64_t best, n = a->vocab, number[FEW], token;
    float largest, kept[FEW];
    sample_cut c = {0, 0};

    if (a->copy) {
        float *copy = a->copy + row * a->vocab;

        memcpy(copy, logits, (size_t)a->vocab * sizeof *copy);
        for (int64_t h = 0; h < a->past; h++) {
            const int32_t id = a->history[row * a->history_stride + h];

            if (id >= 0 && id < a->vocab)
                copy[id] = ridge_sample_penalised(logits[id], a->penalty);
        }
        logits = copy;
    }
    best = w->best == -2 ? largest_of(logits, a->vocab) : w->best;
    if (best < 0)
        return -1;
    largest = logits[best];
    if (a->temperature == 0.0f || largest - largest != 0.0f)
        return best;
    if (few) {
        n = a->top_k;
        gather(logits, a->vocab, n, kept, number);
        logits = kept;
    } else if (a->top_k && a->top_k < a->vocab) {
        c = cut(logits, a->vocab, largest, false, (uint64_t)a->top_k, c);
    }
    if (a->top_p < 1.0f) {
        uint64_t sum = 0;
        int64_t equal = 0;

        for (int64_t i = 0; i < n; i++) {
            const uint32_t key = ridge_sample_key(logits[i]);

            if (key > c.key || (key == c.key && equal++ < c.equal))
                sum += measure(true, logits[i], largest);
        }
        c = cut(logits, n, largest, true, ridge_sample_share(a->top_p, sum), c);
    }
    token = draw(a, logits, n, largest, c, ridge_philox((uint64_t)a->seed[row], (uint64_t)a->counter[row]));
    return few ? number[token] : token;
}

static void sample_one(const void *args, int64_t row)
{
    const sample_args *a = &((const sample_work *)args)->a;
    const int64_t token = sample_row(args, row);

    if (a->token64)
        ((int64_t *)a->token)[row] = token;
    else
        ((int32_t *)a->token)[row] = (int32_t)token;
}

static ridge_status launch_sample(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    sample_work w = {sample_args_of(&bound->call), -2};

    (void)device, (void)kernel, (void)bytes, (void)stream;
    w.a.copy = w.a.past ? (float *)workspace : NULL;
    if (w.a.rows == 1 && !w.a.copy)
        w.best = largest_by_all(w.a.logits, w.a.vocab);
    ridge_team_run((double)(w.a.rows * w.a.vocab) / 64, w.a.rows, sample_one, &w);
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- list */

static size_t workspace_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device;
    if (kernel->op != RIDGE_SAMPLE || problem->dtype[RIDGE_SAMPLE_HISTORY] == RIDGE_NONE)
        return 0;
    return (size_t)problem->dim[0] * (size_t)problem->dim[1] * sizeof(float);
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 2e-3;
}

#define ROW(op_name, op_id, launcher)                                                                      \
    {                                                                                                      \
        .name = "cpu." op_name ".c", .op = op_id, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512, \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,            \
        .workspace = workspace_of, .cost = cost, .launch = launcher                                        \
    }

static const ridge_kernel rows[] = {
    ROW("embed", RIDGE_EMBED, launch_embed),
    ROW("sample", RIDGE_SAMPLE, launch_sample),
};

const ridge_kernel_list ridge_cpu_generate = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

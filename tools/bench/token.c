/* token.c: `ridge bench --suite ds4flash-token`: a token of DeepSeek-V4-Flash as one CUDA graph, beside a read of the
 * bytes that its weights have: 43 layers of hyper-connections, the dense products in Q8_0, the router and six of 256
 * experts, then the output head. Every call reads what the one before has written; weights are random. Once with
 * experts as people have them, gate and up in IQ2_XXS and down in Q2_K, once in MXFP4. The graph has two branches: what
 * the next calls do not wait for.
 *
 * Not in it: attention itself, with its compressor, indexer and cache (the product behind it reads the queries); the
 * layers whose experts follow from the token; the embedding and drawing a token. A layer has dense weights of its own;
 * experts of several layers share memory where the device has no room for all, which no cache holds either.
 *
 * Longer than 600 lines: memory, calls, branches and report of one bench. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check/blocks/blocks.h"
#include "check/measure.h"
#include "cpu/num.h"

enum { LAYERS = 43, HIDDEN = 4096, STREAMS = 4, EXPERTS = 256, SLOTS = 6, FFN = 2048, VOCAB = 129280 };
enum { Q_RANK = 1024, KV = 512, HEADS = 64, HEAD_DIM = 512, N_ROT = 64, LOW = 8192 };
enum { MIXES = STREAMS * (2 + STREAMS), CALLS = 18 * LAYERS + 2, ROUNDS = 15, REPLAYS = 40, ALIGN = 256 };

typedef struct planes {
    int64_t rows, cols;
    unsigned char *codes, *scales;
} planes;

typedef struct hc {
    unsigned char *fn;
    float *scale, *base, *norm;
} hc;

typedef struct layer {
    hc attention, ffn;
    planes q_a, kv, q_b, out_a, out_b, gate, up, down;
    unsigned char *router, *routed[3]; /* gate, up, down */
} layer;

enum { BRANCHES = 2 };

/* More streams, from 1 on; 0 is the token's. The library's backend has no events; the driver's functions are looked up
 * by the names of its ABI and answer 0 for success. */
typedef struct branches {
    void *driver, *stream[1 + BRANCHES], *event[2 * (1 + BRANCHES)], *workspace[1 + BRANCHES];
    int (*create)(void **event, unsigned flags);
    int (*destroy)(void *event);
    int (*record)(void *event, void *stream);
    int (*wait)(void *stream, void *event, unsigned flags);
} branches;

typedef struct token {
    bench *b;
    const ridge_backend *backend;
    ridge_dtype experts[2]; /* of gate and up, of down */
    /* One block of memory: of the size, or, while that is counted, none. */
    unsigned char *memory;
    size_t at;
    void *stream;
    branches branch;
    layer layer[LAYERS];
    hc head;
    planes output;
    /* What a token has. */
    float *start, *res[2], *post, *comb, *floats, *normed, *q, *kv, *heads, *low, *route, *weights, *shared, *mid,
        *logits, *ones, *aside_scales;
    double *freqs;
    int32_t *ids, *pos, *zero;
    unsigned char *codes, *mid_codes, *aside_codes;
    float *scales, *mid_scales;
    ridge_call call[CALLS];
    const char *name[CALLS];
    unsigned char aside[CALLS], joins[CALLS]; /* runs on this branch; waits for those of these bits */
    int calls;
    double bytes;
    void *workspace;
    size_t workspace_bytes;
} token;

/* ------------------------------------------------------------------------------------------------------------ memory
 */

static void *take(token *t, size_t bytes)
{
    unsigned char *p = t->memory ? t->memory + t->at : NULL;

    t->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static float *take_floats(token *t, int64_t count)
{
    return take(t, (size_t)count * sizeof(float));
}

static void take_planes(token *t, planes *w, int64_t rows, int64_t cols)
{
    *w = (planes){rows, cols, take(t, (size_t)(rows * cols)), NULL};
}

static void take_scales(token *t, planes *w)
{
    w->scales = take(t, (size_t)(w->rows * w->cols / 32 * 2));
}

static int64_t expert_bytes(const token *t, int k)
{
    return k < 2 ? FFN / 16 * ridge_block_tile_bytes(t->experts[0], HIDDEN)
                 : HIDDEN / 16 * ridge_block_tile_bytes(t->experts[1], FFN);
}

enum { PLANES = 8 };

static planes *plane_of(layer *l, int i)
{
    planes *const list[PLANES] = {&l->q_a, &l->kv, &l->q_b, &l->out_a, &l->out_b, &l->gate, &l->up, &l->down};

    return list[i];
}

/* What calls hand on. */
static void place_buffers(token *t)
{
    t->res[0] = take_floats(t, STREAMS * HIDDEN);
    t->res[1] = take_floats(t, STREAMS * HIDDEN);
    t->post = take_floats(t, STREAMS);
    t->comb = take_floats(t, STREAMS * STREAMS);
    t->floats = take_floats(t, HIDDEN);
    t->normed = take_floats(t, KV);
    t->aside_codes = take(t, HIDDEN);
    t->aside_scales = take_floats(t, HIDDEN / 32);
    t->q = take_floats(t, Q_RANK);
    t->kv = take_floats(t, KV);
    t->heads = take_floats(t, HEADS * HEAD_DIM);
    t->low = take_floats(t, LOW);
    t->route = take_floats(t, EXPERTS);
    t->weights = take_floats(t, SLOTS);
    t->shared = take_floats(t, HIDDEN);
    t->mid = take_floats(t, FFN);
    t->logits = take_floats(t, VOCAB);
    t->ids = take(t, SLOTS * sizeof *t->ids);
    t->zero = take(t, ALIGN);
    t->pos = take(t, ALIGN);
    t->freqs = take(t, N_ROT / 2 * sizeof *t->freqs);
    t->codes = take(t, HIDDEN);
    t->scales = take_floats(t, HIDDEN / 32);
    t->mid_codes = take(t, SLOTS * FFN);
    t->mid_scales = take_floats(t, SLOTS * FFN / 32);
}

/* Codes, scales, 16-bit matrices, floats and experts lie together, so that each kind is filled at once. begin[i] is
 * where kind i begins. */
static void place(token *t, int sets, size_t begin[6])
{
    static const int64_t size[PLANES][2] = {{Q_RANK, HIDDEN}, {KV, HIDDEN},  {HEADS * HEAD_DIM, Q_RANK},
                                            {LOW, HIDDEN},    {HIDDEN, LOW}, {FFN, HIDDEN},
                                            {FFN, HIDDEN},    {HIDDEN, FFN}};

    t->at = 0;
    begin[0] = t->at;
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < PLANES; k++)
            take_planes(t, plane_of(&t->layer[i], k), size[k][0], size[k][1]);
    take_planes(t, &t->output, VOCAB, HIDDEN);
    begin[1] = t->at;
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < PLANES; k++)
            take_scales(t, plane_of(&t->layer[i], k));
    take_scales(t, &t->output);
    begin[2] = t->at;
    for (int i = 0; i <= LAYERS; i++)
        for (int k = 0; k < (i < LAYERS ? 2 : 1); k++) {
            hc *const h = i == LAYERS ? &t->head : k ? &t->layer[i].ffn : &t->layer[i].attention;

            h->fn = take(t, (size_t)(i < LAYERS ? MIXES : STREAMS) * STREAMS * HIDDEN * 2);
        }
    for (int i = 0; i < LAYERS; i++)
        t->layer[i].router = take(t, (size_t)EXPERTS * HIDDEN * 2);
    begin[3] = t->at;
    for (int i = 0; i <= LAYERS; i++)
        for (int k = 0; k < (i < LAYERS ? 2 : 1); k++) {
            hc *const h = i == LAYERS ? &t->head : k ? &t->layer[i].ffn : &t->layer[i].attention;

            h->scale = take_floats(t, 3);
            h->base = take_floats(t, MIXES);
            h->norm = take_floats(t, HIDDEN);
        }
    t->ones = take_floats(t, HIDDEN);
    t->start = take_floats(t, STREAMS * HIDDEN);
    begin[4] = t->at;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < LAYERS; i++)
            t->layer[i].routed[k] =
                i < sets ? take(t, (size_t)(EXPERTS * expert_bytes(t, k))) : t->layer[i % sets].routed[k];
    begin[5] = t->at;
    place_buffers(t);
}

/* Fills memory with a pattern again and again: the first piece from the host, then twice as much from copy to copy. */
static bool repeat(token *t, unsigned char *to, size_t bytes, const void *pattern, size_t size)
{
    const ridge_device *device = t->b->device;
    size_t have = size < bytes ? size : bytes;

    if (bytes && t->backend->upload(device, to, pattern, have))
        return false;
    for (size_t more; have < bytes; have += more) {
        more = have < bytes - have ? have : bytes - have;
        if (t->backend->copy(device, to + have, to, more, t->stream))
            return false;
    }
    return t->backend->sync(device, t->stream) == RIDGE_OK;
}

/* Random weights, in the size of a model's; experts: one, copied. */
static bool fill(token *t, int sets, const size_t begin[6])
{
    const size_t size = 16 << 20;
    unsigned char *pattern = malloc(size);
    uint64_t state = t->b->o->seed;
    bool good = pattern != NULL;
    double freqs[N_ROT / 2];

    for (size_t i = 0; good && i < size; i += 8)
        *(uint64_t *)(void *)(pattern + i) = random_next(&state) & UINT64_C(0x7f7f7f7f7f7f7f7f);
    good = good && repeat(t, t->memory + begin[0], begin[1] - begin[0], pattern, size - 40);
    for (size_t i = 0; good && i < size / 2; i++)
        ((uint16_t *)(void *)pattern)[i] = ridge_f16_from_f32(random_normal(&state) * 4e-4f);
    good = good && repeat(t, t->memory + begin[1], begin[2] - begin[1], pattern, size - 40);
    for (size_t i = 0; good && i < size / 2; i++) /* f16 of hc, bf16 of routers: both below 1 */
        ((uint16_t *)(void *)pattern)[i] = (uint16_t)((random_next(&state) & 0x83ff) | 0x2000);
    good = good && repeat(t, t->memory + begin[2], begin[3] - begin[2], pattern, size - 40);
    for (size_t i = 0; good && i < size / 4; i++)
        ((float *)(void *)pattern)[i] = 0.5f + 0.25f * random_normal(&state);
    good = good && repeat(t, t->memory + begin[3], begin[4] - begin[3], pattern, size - 40);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < sets && good; i++) {
            const int64_t rows = k < 2 ? FFN : HIDDEN, cols = k < 2 ? HIDDEN : FFN;

            if (i == 0)
                good = fill_tiles(t->experts[k == 2], rows, cols, false, pattern, 0, state + (uint64_t)k);
            good = good && repeat(t, t->layer[i].routed[k], (size_t)(EXPERTS * expert_bytes(t, k)), pattern,
                                  (size_t)expert_bytes(t, k));
        }
    for (int i = 0; i < N_ROT / 2; i++)
        freqs[i] = pow(10000, -2.0 * i / N_ROT);
    if (good)
        memset(pattern, 0, ALIGN);
    good = good && !t->backend->upload(t->b->device, t->zero, pattern, ALIGN) &&
           !t->backend->upload(t->b->device, t->pos, pattern, ALIGN) &&
           !t->backend->upload(t->b->device, t->freqs, freqs, sizeof freqs);
    free(pattern);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- calls
 */

static ridge_tensor f32(const void *data)
{
    return ridge_matrix(data, RIDGE_F32);
}

static ridge_tensor q8_0(const planes *w)
{
    return ridge_scaled(w->codes, RIDGE_I8, w->scales, RIDGE_SCALING_ROW32);
}

static void add(token *t, const char *name, ridge_call call)
{
    call.flags |= RIDGE_WEIGHTS_CONST;
    t->bytes += ridge_problem_bytes(&call);
    t->name[t->calls] = name;
    t->call[t->calls++] = call;
}

/* Its factors put a sublayer's result back, much later than its input is there: a branch makes them, with an input that
 * no call reads, and the stream the input alone. */
static void add_factors(token *t, const hc *h, const float *res, int branch)
{
    t->aside[t->calls] = (unsigned char)branch;
    add(t, "hc_split, for its factors",
        ridge_hc_split(1, HIDDEN, STREAMS, res, ridge_matrix(h->fn, RIDGE_F16), h->scale, h->base, f32(h->norm),
                       t->post, t->comb, ridge_scaled(t->aside_codes, RIDGE_I8, t->aside_scales, RIDGE_SCALING_ROW32)));
}

static void add_input(token *t, const hc *h, const float *res, float *floats)
{
    ridge_call call =
        ridge_hc_split(1, HIDDEN, STREAMS, res, ridge_matrix(h->fn, RIDGE_F16), h->scale, h->base, f32(h->norm), NULL,
                       NULL, ridge_scaled(t->codes, RIDGE_I8, t->scales, RIDGE_SCALING_ROW32));

    if (floats)
        ridge_set(&call, RIDGE_HC_SPLIT_FLOATS, RIDGE_F32, floats, 0);
    add(t, "hc_split, input alone", call);
}

static void add_attention(token *t, const layer *l)
{
    const ridge_tensor none = {0}, x = ridge_scaled(t->codes, RIDGE_I8, t->scales, RIDGE_SCALING_ROW32);

    add_input(t, &l->attention, t->res[0], NULL);
    add_factors(t, &l->attention, t->res[0], 2);
    add(t, "q_a and kv", ridge_q8_0_pair(1, HIDDEN, Q_RANK, KV, x, q8_0(&l->q_a), q8_0(&l->kv), f32(t->q), f32(t->kv)));
    t->aside[t->calls] = 1;
    add(t, "norm of kv", ridge_rms_norm(1, KV, f32(t->kv), f32(t->ones), f32(t->normed)));
    add(t, "norm of q_a", ridge_add_rms_norm(1, Q_RANK, f32(t->q), none, f32(t->ones), none, x));
    add(t, "q_b", ridge_q8_0_matmul(1, Q_RANK, HEADS * HEAD_DIM, x, q8_0(&l->q_b), f32(t->heads)));
    add(t, "head norm and rope",
        ridge_head_rms_norm_rope_tail(1, HEADS, HEAD_DIM, N_ROT, f32(t->heads), none, ridge_matrix(t->pos, RIDGE_I32),
                                      t->freqs, f32(t->heads)));
    add(t, "output_a", ridge_q8_0_matmul(1, HIDDEN, LOW, f32(t->heads), q8_0(&l->out_a), f32(t->low)));
    t->joins[t->calls] = 1u << 1 | 1u << 2;
    add(t, "output_b, expand",
        ridge_q8_0_matmul_hc_expand(1, LOW, HIDDEN, STREAMS, f32(t->low), q8_0(&l->out_b), t->post, t->comb, t->res[0],
                                    t->res[1]));
}

static void add_ffn(token *t, const layer *l)
{
    const ridge_tensor x = ridge_scaled(t->codes, RIDGE_I8, t->scales, RIDGE_SCALING_ROW32);
    const ridge_tensor mid = ridge_scaled(t->mid_codes, RIDGE_I8, t->mid_scales, RIDGE_SCALING_ROW32);
    ridge_call call;

    add_input(t, &l->ffn, t->res[1], t->floats);
    call = ridge_q8_0_gate_up_swiglu(1, HIDDEN, FFN, x, q8_0(&l->gate), q8_0(&l->up), f32(t->mid));
    call.opt.swiglu.limit = 10;
    t->aside[t->calls] = 1;
    add(t, "shared gate and up", call);
    t->aside[t->calls] = 1;
    add(t, "shared down", ridge_q8_0_matmul(1, FFN, HIDDEN, f32(t->mid), q8_0(&l->down), f32(t->shared)));
    add_factors(t, &l->ffn, t->res[1], 2);
    call = ridge_moe_down(1, HIDDEN, EXPERTS, 1, 1, f32(t->floats), ridge_matrix(l->router, RIDGE_BF16), t->zero,
                          t->ones, f32(t->route)); /* the matrix of an only expert */
    add(t, "router", call);
    call = ridge_moe_route(1, EXPERTS, SLOTS, f32(t->route), t->ids, t->weights);
    call.flags |= RIDGE_ROUTE_SQRT_SOFTPLUS | RIDGE_ROUTE_NORMALISE;
    call.opt.moe_route.scale = 1.5f;
    call.opt.moe_route.eps = 1e-20f;
    ridge_set(&call, RIDGE_MOE_ROUTE_BIAS, RIDGE_F32, l->ffn.norm, 0);
    add(t, "route", call);
    call = ridge_moe_gate_up_swiglu(1, HIDDEN, FFN, EXPERTS, SLOTS, x, ridge_matrix(l->routed[0], t->experts[0]),
                                    ridge_matrix(l->routed[1], t->experts[0]), t->ids, mid);
    call.opt.swiglu.limit = 10;
    add(t, "experts' gate and up", call);
    call = ridge_moe_down(1, FFN, HIDDEN, EXPERTS, SLOTS, mid, ridge_matrix(l->routed[2], t->experts[1]), t->ids,
                          t->weights, f32(t->res[0]));
    call.opt.moe_down.n_hc = STREAMS;
    ridge_set(&call, RIDGE_MOE_DOWN_SHARED, RIDGE_F32, t->shared, 0);
    ridge_set(&call, RIDGE_MOE_DOWN_POST, RIDGE_F32, t->post, 0);
    ridge_set(&call, RIDGE_MOE_DOWN_COMB, RIDGE_F32, t->comb, 0);
    ridge_set(&call, RIDGE_MOE_DOWN_RES, RIDGE_F32, t->res[1], 0);
    t->joins[t->calls] = 1u << 1 | 1u << 2;
    add(t, "experts' down, expand", call);
}

static void add_calls(token *t)
{
    const ridge_tensor x = ridge_scaled(t->codes, RIDGE_I8, t->scales, RIDGE_SCALING_ROW32);

    for (int i = 0; i < LAYERS; i++) {
        add_attention(t, &t->layer[i]);
        add_ffn(t, &t->layer[i]);
    }
    add(t, "hc_split of the head",
        ridge_hc_split(1, HIDDEN, STREAMS, t->res[0], ridge_matrix(t->head.fn, RIDGE_F16), t->head.scale, t->head.base,
                       f32(t->head.norm), NULL, NULL, x));
    add(t, "output", ridge_q8_0_matmul(1, HIDDEN, VOCAB, x, q8_0(&t->output), f32(t->logits)));
}

/* ------------------------------------------------------------------------------------------------------------- times
 */

/* All calls but those at the place `without` of a layer, or those at the place `only` alone (-1: none is left out, all
 * are run), or a read (variant >= 0). */
typedef struct part {
    const token *t;
    int only, without, variant;
} part;

/* The place of a call: in its layer, or behind all layers. */
static int place_of(const token *t, int call)
{
    const int step = (t->calls - 2) / LAYERS;

    return call < t->calls - 2 ? call % step : step + call - (t->calls - 2);
}

/* What comes next on stream `to` waits for what `from` has so far. */
static ridge_status follow(const branches *b, int event, void *to, void *from)
{
    if (b->record(b->event[event], from) || b->wait(to, b->event[event], 0))
        return ridge_fail(RIDGE_ERR_DEVICE, "the driver could not order two streams");
    return RIDGE_OK;
}

/* A call of the token, or, `without` it, what the branches need at its place. *open: the branches that have a call for
 * which no other has waited, as bits. */
static ridge_status run_call(const token *t, int i, bool without, unsigned *open)
{
    const branches *b = &t->branch;
    const int aside = t->aside[i];
    ridge_status status = RIDGE_OK;

    if (aside && !without) {
        *open |= 1u << aside;
        status = follow(b, 2 * aside, b->stream[aside], t->stream);
        return status ? status
                      : ridge_run(t->b->device, &t->call[i], b->workspace[aside], t->workspace_bytes, b->stream[aside]);
    }
    for (int k = 1; k <= BRANCHES && !status; k++)
        if (t->joins[i] & *open & 1u << k) {
            *open &= ~(1u << k);
            status = follow(b, 2 * k + 1, t->stream, b->stream[k]);
        }
    return status || without ? status
                             : ridge_run(t->b->device, &t->call[i], t->workspace, t->workspace_bytes, t->stream);
}

static ridge_status run(const void *state)
{
    const part *p = state;
    const token *t = p->t;
    ridge_status status = RIDGE_OK;
    unsigned open = 0;

    if (p->variant >= 0)
        return t->backend->stream_read(t->b->device, p->variant, t->memory, (size_t)t->bytes / 16 * 16, t->stream);
    for (int i = 0; i < t->calls && !status; i++) {
        if (p->only >= 0 && place_of(t, i) == p->only)
            status = ridge_run(t->b->device, &t->call[i], t->workspace, t->workspace_bytes, t->stream);
        else if (p->only < 0)
            status = run_call(t, i, place_of(t, i) == p->without, &open);
    }
    return status;
}

static bool measure(const part *p, double us[3])
{
    const ridge_device *device = p->t->b->device;
    const work w = {run, p};
    double round[ROUNDS];
    void *graph = NULL;
    ridge_status status = measure_capture(device, p->t->stream, w, &graph);

    for (int r = -2; r < ROUNDS && !status; r++)
        status = measure_once(device, p->t->stream, graph, w, &round[r < 0 ? 0 : r]);
    if (graph)
        device->backend->graph_free(device, graph);
    measure_order(round, status ? 0 : ROUNDS, us);
    return status == RIDGE_OK;
}

static void emit(const token *t, const char *what, const char *provider, const double us[3], double bytes, double floor)
{
    record r;

    record_begin(&t->b->sink, &r);
    snprintf(r.suite, sizeof r.suite, "ds4flash-token");
    snprintf(r.op, sizeof r.op, "token");
    snprintf(r.problem, sizeof r.problem, "experts=%s,%s %s kernels=%d mb=%.1f", ridge_dtype_name(t->experts[0]),
             ridge_dtype_name(t->experts[1]), what, t->calls, bytes * 1e-6);
    snprintf(r.provider, sizeof r.provider, "%s", provider);
    snprintf(r.kernel, sizeof r.kernel, "graph");
    r.us = us[0];
    r.us_p20 = us[1];
    r.us_p80 = us[2];
    r.gbps = bytes > 0 ? bytes / us[0] * 1e-3 : -1;
    r.floor_us = floor;
    record_emit(&t->b->sink, &r);
}

/* The bits of the logits; false: some is no number. */
static bool sum_logits(const token *t, uint64_t *sum)
{
    float *logits = malloc(VOCAB * sizeof *logits);
    bool good = logits && !t->backend->download(t->b->device, logits, t->logits, VOCAB * sizeof *logits);

    *sum = 0;
    for (int i = 0; good && i < VOCAB; i++) {
        good = isfinite(logits[i]);
        *sum = (*sum ^ ridge_bits(logits[i])) * UINT64_C(0x9e3779b97f4a7c15);
    }
    free(logits);
    return good;
}

/* From the same streams to the same logits: run call by call, then a graph again and again. */
static bool same_logits(const token *t)
{
    const ridge_device *device = t->b->device;
    const part whole = {t, -1, -1, -1};
    const work w = {run, &whole};
    uint64_t sum, first = 0;
    void *graph = NULL;
    bool good = measure_capture(device, t->stream, w, &graph) == RIDGE_OK;
    double us;

    for (int i = 0; good && i < REPLAYS; i++) {
        good = !t->backend->copy(device, t->res[0], t->start, STREAMS * HIDDEN * sizeof(float), t->stream) &&
               !(i ? measure_once(device, t->stream, graph, w, &us) : run(&whole)) &&
               !t->backend->sync(device, t->stream) && sum_logits(t, &sum);
        first = i ? first : sum;
        if (good && sum != first)
            good = !ridge_fail(RIDGE_ERR_DEVICE, "run %d gave other logits than the first", i);
    }
    if (graph)
        device->backend->graph_free(device, graph);
    return good;
}

static bool report(token *t)
{
    const int step = (t->calls - 2) / LAYERS;
    double best[3] = {-1, -1, -1}, us[3], one[3];
    if (!same_logits(t))
        return false;
    if (!measure(&(part){t, -1, -1, -1}, us))
        return false;
    for (int v = 0; v < t->backend->stream_variants; v++) {
        if (!measure(&(part){t, -1, -1, v}, one))
            return false;
        if (best[0] < 0 || one[0] < best[0])
            memcpy(best, one, sizeof one);
    }
    emit(t, "layers=43", "read", best, t->bytes, best[0]);
    emit(t, "layers=43", "ridge", us, t->bytes, best[0]);
    if (!t->b->sink.json)
        printf("ds4flash-token, experts in %s and %s: %d calls, %.1f MB, %.1f us, %.2f times a read (%.1f us); no "
               "attention, compressor or indexer in it\n",
               ridge_dtype_name(t->experts[0]), ridge_dtype_name(t->experts[1]), t->calls, t->bytes * 1e-6, us[0],
               us[0] / best[0], best[0]);
    for (int i = 0; i < step + 2; i++) { /* what each is in a graph of itself, layer after layer, and in the token */
        const int call = i < step ? i : t->calls - 2 + i - step, times = i < step ? LAYERS : 1;
        const double bytes = ridge_problem_bytes(&t->call[call]);
        double without[3];
        char what[64];

        if (!measure(&(part){t, i, -1, -1}, one) || !measure(&(part){t, -1, i, -1}, without))
            return false;
        for (int k = 0; k < 3; k++) {
            one[k] /= times;
            without[k] = (us[0] - without[k]) / times;
        }
        snprintf(what, sizeof what, "call=%d", call);
        emit(t, what, "ridge:alone", one, bytes, -1);
        emit(t, what, "ridge:in-token", without, bytes, -1);
        if (!t->b->sink.json)
            printf("    %-24s %8.2f us %9.2f MB %8.1f GB/s %8.2f us less without it\n", t->name[call], one[0],
                   bytes * 1e-6, bytes / one[0] * 1e-3, without[0]);
    }
    fflush(stdout);
    return true;
}

static bool open_branch(token *t)
{
    branches *b = &t->branch;
    const struct {
        const char *name;
        void *to;
    } list[] = {{"cuEventCreate", &b->create},
                {"cuEventDestroy_v2", &b->destroy},
                {"cuEventRecord", &b->record},
                {"cuStreamWaitEvent", &b->wait}};

    b->driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!b->driver)
        return !ridge_fail(RIDGE_ERR_DEVICE, "there is no NVIDIA driver");
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        void *found = dlsym(b->driver, list[i].name);

        if (!found)
            return !ridge_fail(RIDGE_ERR_DEVICE, "the driver has no %s", list[i].name);
        *(void **)list[i].to = found;
    }
    for (int k = 1; k <= BRANCHES; k++) {
        if (t->backend->stream_new(t->b->device, &b->stream[k]))
            return false;
        for (int i = 2 * k; i < 2 * k + 2; i++)
            if (b->create(&b->event[i], 2 /* CU_EVENT_DISABLE_TIMING */))
                return !ridge_fail(RIDGE_ERR_DEVICE, "the driver cannot make an event");
    }
    return true;
}

static void close_branch(token *t)
{
    for (int i = 0; i < 2 * (1 + BRANCHES); i++)
        if (t->branch.event[i])
            t->branch.destroy(t->branch.event[i]);
    for (int k = 1; k <= BRANCHES; k++) {
        if (t->branch.stream[k])
            t->backend->stream_free(t->b->device, t->branch.stream[k]);
        if (t->branch.workspace[k])
            t->backend->release(t->b->device, t->branch.workspace[k]);
    }
    if (t->branch.driver)
        dlclose(t->branch.driver);
}

/* With experts for as many layers as fit. */
static bool bench_token_of(bench *b, ridge_dtype gate_up, ridge_dtype down)
{
    const ridge_backend *backend = b->device->backend;
    token *t = calloc(1, sizeof *t);
    size_t begin[6], need;
    int sets = LAYERS;
    bool good = t != NULL;

    if (good) {
        *t = (token){.b = b, .backend = backend, .experts = {gate_up, down}};
        for (place(t, sets, begin); t->at > (size_t)((double)b->device->memory_bytes * 0.85) && sets > 1;)
            place(t, --sets, begin);
        good = !backend->stream_new(b->device, &t->stream) && open_branch(t) &&
               !backend->alloc(b->device, t->at, (void **)&t->memory);
    }
    if (good) {
        place(t, sets, begin);
        add_calls(t);
        good = fill(t, sets, begin);
    }
    for (int i = 0; good && i < t->calls; i++) {
        good = ridge_workspace_bytes(b->device, &t->call[i], &need) == RIDGE_OK;
        t->workspace_bytes = good && need > t->workspace_bytes ? need : t->workspace_bytes;
    }
    for (int k = 0; good && k <= BRANCHES; k++)
        good = !t->workspace_bytes ||
               !backend->alloc(b->device, t->workspace_bytes, k ? &t->branch.workspace[k] : &t->workspace);
    good = good && report(t);
    if (!good)
        fprintf(stderr, "ridge bench: ds4flash-token: %s\n", ridge_error());
    if (t && t->memory)
        backend->release(b->device, t->memory);
    if (t && t->workspace)
        backend->release(b->device, t->workspace);
    if (t && t->stream)
        backend->stream_free(b->device, t->stream);
    if (t)
        close_branch(t);
    free(t);
    return good;
}

bool bench_token(bench *b)
{
    if (!b->device->backend->graph_begin || !b->device->backend->stream_read) {
        fprintf(stderr, "ridge bench: ds4flash-token needs a device with graphs\n");
        return false;
    }
    return bench_token_of(b, RIDGE_IQ2_XXS, RIDGE_Q2_K) && bench_token_of(b, RIDGE_MXFP4, RIDGE_MXFP4);
}

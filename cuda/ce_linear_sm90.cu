/* ce_linear_sm90.cu: linear_ce_eval, linear_ce_train and linear_ce_backward on Hopper, bf16 and f16: the plan of a
 * call (chunks, workspace) and the kernel rows; ce_sm90.cuh says how a chunk is done.
 *
 * Where dW is f32 [vocab, hidden] (or is summed up so in the workspace) and not added to, its own memory holds P^T
 * until it is written: 2 hidden tokens fit, so that most calls are one chunk, dW is written once and no dW is read.
 * Else, and beyond that, chunks are as large as the workspace allows. */
#include "ce_sm90.cuh"

enum { SAMPLE = 256 };

typedef struct linear_plan {
    int64_t chunk, overlaid; /* rows of a chunk; of the first one, if its P^T lies in dW (else 0) */
    int group;               /* classes of a group of dW, where P^T lies in it */
    int pieces[2];           /* of dX in a chunk, in the first one if that is overlaid */
    bool sums;               /* dW is summed in f32 in the workspace */
} linear_plan;

/* One call. */
typedef struct linear_job {
    const ridge_device *device;
    const char *name;
    void *stream;
    ce_chunk c;
    linear_plan plan;
    char *probs;
    float *partial;
    float *dw;
    int64_t dw_ld;
} linear_job;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

static int dx_slot(uint32_t op)
{
    return op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;
}

enum { LARGE = -1, MANY = 16384 };

/* Bytes of workspace that chunks may take: P^T and the scaled x. param[0]: in MB, 0 = as much as gives full products;
 * LARGE: an eighth of the tokens, 8192 at most, so that dW is not read and written every thousand tokens. */
static int64_t budget_of(const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (kernel->param[0] == LARGE)
        return 2 * problem->dim[2] * least(up(problem->dim[0], 1024) / 8, 8192) + 4 * problem->dim[1] * problem->dim[1];
    if (kernel->param[0])
        return kernel->param[0] * INT64_C(1000000);
    return most(INT64_C(280000000), 2048 * problem->dim[2] + 4000000);
}

static int64_t partial_of(const ridge_problem *problem, int64_t rows, int pieces)
{
    return pieces > 1 ? rows * problem->dim[1] * 4 * pieces : 0;
}

/* Pieces of the vocabulary that keep all clusters busy with dX, where it has few tiles: as few as come within 7 % of
 * that, and within so many bytes. */
static int pieces_of(const ridge_device *device, const ridge_problem *problem, int64_t rows, int64_t bytes)
{
    const int64_t clusters = device->units / G16_CLUSTER, high = G16_CLUSTER * G16_M;
    const int64_t items = up(rows, high) / high * (up(problem->dim[1], G16_N) / G16_N);
    int best = 1;
    double best_use = 0;

    if (problem->dtype[dx_slot(problem->op)] == RIDGE_NONE)
        return 1;
    for (int pieces = 1; pieces <= 8 && problem->dim[2] / pieces >= 1024 && best_use < 0.93; pieces++) {
        const double use = (double)(items * pieces) / (double)up(items * pieces, clusters);

        if (use > best_use + 0.001 && partial_of(problem, rows, pieces) <= bytes) {
            best = pieces;
            best_use = use;
        }
    }
    return best;
}

enum { PARTIAL = 44000000 }; /* bytes of dX in pieces; in an overlaid chunk P^T leaves more room */

/* Rows of a chunk of P^T and n_r x within so many bytes, and what pieces of dX need. */
static int64_t rows_within(const ridge_device *device, const ridge_problem *problem, int64_t bytes, int64_t row)
{
    const int64_t rows = most(bytes / row / 128 * 128, 128);

    return pieces_of(device, problem, rows, PARTIAL) == 1 ? rows : most((bytes - PARTIAL) / row / 128 * 128, 128);
}

/* Classes of a group of dW: whole waves of tiles, in no more than a third of the workspace. */
static int64_t group_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                        int64_t rows, int64_t bytes)
{
    const int64_t high = G16_CLUSTER * G16_M, tiles = up(problem->dim[1], G16_N) / G16_N;
    int64_t pairs = device->units / G16_CLUSTER, common = pairs, other = tiles;

    while (other) { /* the greatest common divisor */
        const int64_t left = common % other;

        common = other;
        other = left;
    }
    pairs /= common;
    if (kernel->param[0] > 0)
        pairs = 8;
    while (pairs > 8 && 2 * pairs * high * rows > bytes / 2)
        pairs /= 2;
    return pairs * high;
}

static linear_plan plan_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t tokens = most(problem->dim[0], 1), hidden = problem->dim[1], vocab = problem->dim[2];
    const int64_t budget = problem->op == RIDGE_LINEAR_CE_EVAL ? 0 : budget_of(kernel, problem);
    const uint8_t dw =
        problem->op == RIDGE_LINEAR_CE_EVAL ? (uint8_t)RIDGE_NONE : problem->dtype[dx_slot(problem->op) + 1];
    const bool add = (problem->flags & RIDGE_ACCUMULATE) != 0;
    linear_plan plan = {up(tokens, 128), 0, 0, {1, 1}, false};
    int64_t scaled = 0, rest = tokens, chunks, first = least(2 * hidden / 128 * 128, up(tokens, 128));

    if (problem->op == RIDGE_LINEAR_CE_EVAL)
        return plan;
    plan.sums = dw != RIDGE_NONE && dw != RIDGE_F32;
    plan.chunk = rows_within(device, problem, budget, 2 * (vocab + hidden));
    plan.group = (int)group_of(device, kernel, problem, first, budget);
    if (plan.chunk < tokens && dw != RIDGE_NONE && !add && !(problem->flags & RIDGE_CE_W_HV) &&
        vocab > 2 * plan.group && first > 0) {
        plan.overlaid = first;
        plan.pieces[1] = pieces_of(device, problem, plan.overlaid, most(budget - PARTIAL, PARTIAL) / 4);
        scaled = 2 * plan.overlaid * hidden;
        rest = most(tokens - plan.overlaid, 1);
        plan.chunk = rows_within(device, problem, budget - scaled, 2 * vocab);
    }
    chunks = (rest + plan.chunk - 1) / plan.chunk;
    plan.chunk = up((rest + chunks - 1) / chunks, 128);
    plan.pieces[0] = pieces_of(device, problem, plan.chunk, PARTIAL);
    return plan;
}

/* Rows of a compact x in eval: with the rest no more than twice the parts of the sums. */
static int64_t eval_rows(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t bytes = problem->dim[0] * ((device->units / G16_CLUSTER) * (int64_t)sizeof(ce_part) - 64);

    return least(most(bytes / (2 * problem->dim[1]) / 256 * 256, 256), up(problem->dim[0], 128));
}

static void *take(char **at, int64_t bytes)
{
    void *piece = *at;

    *at += (bytes + 1023) / 1024 * 1024;
    return piece;
}

/* What lies where in the workspace; from 1024 it only counts. */
static char *place(linear_job *j, const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                   void *workspace)
{
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    const linear_plan plan = plan_of(device, kernel, problem);
    const int64_t rows = most(plan.chunk, plan.overlaid);
    char *at = ce_place(&j->c.p, problem, device->units / G16_CLUSTER, workspace);

    j->plan = plan;
    if (problem->op == RIDGE_LINEAR_CE_EVAL) {
        j->c.compact = take(&at, eval_rows(device, problem) * hidden * 2);
        return at;
    }
    j->c.compact = j->c.scaled = take(&at, up(least(rows, up(most(tokens, 1), 128)), 128) * hidden * 2);
    j->c.exponent = (float *)take(&at, tokens * 4);
    j->c.factor = (float *)take(&at, tokens * 4);
    j->c.mix = (float2 *)take(&at, tokens * 8);
    j->c.at_target = (float *)take(&at, tokens * 4);
    j->c.same = (int2 *)take(&at, vocab * 8);
    if (!ce_needs_stats(problem->op)) { /* parts are only there for the ops that have sums */
        j->c.p.part = NULL;
        j->c.p.splits = 1;
    }
    j->probs =
        (char *)take(&at, most(2 * plan.group * plan.overlaid + partial_of(problem, plan.overlaid, plan.pieces[1]),
                               plan.overlaid >= tokens ? 0 : 2 * vocab * plan.chunk));
    j->partial = (float *)take(&at, plan.overlaid >= tokens ? 0 : partial_of(problem, plan.chunk, plan.pieces[0]));
    if (plan.sums)
        j->dw = (float *)take(&at, 4 * vocab * hidden);
    return at;
}

/* ------------------------------------------------------------------------------------------------- tensor maps */

/* [lines, length] of 16 bits as a factor: along k (boxes 64 x `wide` lines) or not (64 x 64). */
static ridge_status map_of(const linear_job *j, CUtensorMap *map, const void *base, int64_t length, int64_t lines,
                           int64_t stride, int wide)
{
    return host_tensor_map(j->device, map, j->c.p.dtype, base, length, lines, stride, 64, wide, 128);
}

static ridge_status x_maps(const linear_job *j, ce_product *g)
{
    const ce_params *p = &j->c.p;
    ridge_status status = map_of(j, &g->maps.a[0], p->x, p->hidden, p->tokens, p->x_stride, 128);

    g->from_x = 1;
    g->maps.split_m = g->maps.split_k = INT32_MAX;
    if (!status && j->c.compact)
        status = map_of(j, &g->maps.a[1], j->c.compact, p->hidden, up(j->c.rows, 128), p->hidden, 128);
    return status;
}

/* W, n classes of it class_step apart, as B of the logits. */
static ridge_status w_map(const linear_job *j, ce_product *g, int64_t n, int64_t step)
{
    const ce_params *p = &j->c.p;

    return p->hv ? map_of(j, &g->maps.b, p->w, n, p->hidden, p->w_stride, 64)
                 : map_of(j, &g->maps.b, p->w, p->hidden, n, p->w_stride * step, G16_SHARE);
}

/* P^T with its two places; lines of `wide` a box. */
static ridge_status probs_maps(const linear_job *j, CUtensorMap *map, int wide)
{
    const ce_probs *q = &j->c.probs;
    const int64_t vocab = j->c.p.vocab, length = up(j->c.rows, 128);
    ridge_status status = map_of(j, &map[0], q->first, length, least(q->split, vocab), q->first_ld, wide);

    if (!status && q->split < vocab)
        status = map_of(j, &map[1], q->rest, length, vocab - q->split, q->rest_ld, wide);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ products */

static ridge_status step(linear_job *j, int which)
{
    return ce_step(j->device, j->name, which, &j->c, j->stream);
}

static ce_product product_of(const linear_job *j, int64_t m, int64_t n, int64_t k)
{
    ce_product g = {};

    g.c = j->c;
    g.m = (int)m;
    g.n = (int)n;
    g.k = (int)k;
    g.maps.split_m = g.maps.split_k = INT32_MAX;
    g.class_step = 1;
    g.pieces = 1;
    g.bundle = G16_PAIRS / 2; /* 1024 rows: 1 to 3 % faster than 2048 */
    g.stagger = 3;
    return g;
}

static bool has_extra(const ce_params *p)
{
    return p->bias || p->softcap > 0.0f || p->temperature != 1.0f;
}

/* what: CE_STATS or CE_PROBS; step: of the classes of a sample. */
static ridge_status logits(linear_job *j, int what, int64_t n, int64_t step, bool sums)
{
    const ce_params *p = &j->c.p;
    ce_product g = product_of(j, j->c.rows, n, p->hidden);
    ridge_status status = x_maps(j, &g);

    g.limit_m = 1;
    g.class_step = (int)step;
    g.sums = sums;
    g.mixed = (j->c.known || j->c.gated) && (p->smoothing != 0.0f || p->square_scale != 0.0f);
    if (!status)
        status = w_map(j, &g, n, step);
    if (!status && what == CE_PROBS)
        status = probs_maps(j, g.store, 64);
    if (has_extra(p) || (what == CE_STATS ? p->full : g.mixed))
        what++; /* the variant that knows every option */
    return status ? status : ce_product_launch(j->device, j->name, what, &g, j->stream);
}

static ridge_status make_dx(linear_job *j)
{
    const ce_params *p = &j->c.p;
    ce_product g = product_of(j, j->c.rows, p->hidden, p->vocab);
    ridge_status status = probs_maps(j, g.maps.a, 64);

    g.limit_m = 1;
    g.pieces = j->c.pieces;
    g.maps.split_k = j->c.probs.split;
    g.out = p->dx;
    g.ld = p->dx_stride;
    if (!status)
        status = p->hv ? map_of(j, &g.maps.b, p->w, p->vocab, p->hidden, p->w_stride, G16_SHARE)
                       : map_of(j, &g.maps.b, p->w, p->hidden, p->vocab, p->w_stride, 64);
    status = status ? status : ce_product_launch(j->device, j->name, CE_DX, &g, j->stream);
    return status || j->c.pieces == 1 ? status : step(j, CE_STEP_ADD);
}

/* dW of classes [first, first + count); of all of them with W [H, V]. */
static ridge_status make_dw(linear_job *j, bool add, int64_t first, int64_t count)
{
    const ce_params *p = &j->c.p;
    const int64_t rows = up(j->c.rows, 128);
    ce_product g = product_of(j, p->hv ? p->hidden : count, p->hv ? p->vocab : p->hidden, j->c.rows);
    CUtensorMap *x = p->hv ? &g.maps.a[0] : &g.maps.b;
    ridge_status status = map_of(j, x, j->c.scaled, p->hidden, rows, p->hidden, 64);

    g.limit_k = 1;
    g.add = add;
    g.first_m = (int)first;
    g.bundle = G16_PAIRS;
    g.out = p->hv ? (void *)j->dw
                  : (void *)((char *)j->dw + first * j->dw_ld * (j->plan.sums || p->dw_dtype == RIDGE_F32 ? 4 : 2));
    g.ld = j->dw_ld;
    g.out_dtype = j->plan.sums ? (int)RIDGE_F32 : p->dw_dtype;
    if (!status && p->hv)
        status = map_of(j, &g.maps.b, j->c.probs.first, rows, p->vocab, j->c.probs.first_ld, G16_SHARE);
    if (!status && !p->hv) {
        status = probs_maps(j, g.maps.a, 128);
        g.maps.split_m = j->c.probs.split;
    }
    return status ? status : ce_product_launch(j->device, j->name, CE_DW, &g, j->stream);
}

/* ------------------------------------------------------------------------------------------------------ a chunk */

/* Sums of rows over all classes. */
static ridge_status stats(linear_job *j)
{
    return logits(j, CE_STATS, j->c.p.vocab, 1, false);
}

/* P^T from a guess of the exponents; and again, on the device's own decision, from lse. */
static ridge_status guess(linear_job *j)
{
    const int64_t classes = least(SAMPLE, j->c.p.vocab);
    ridge_status status;

    j->c.sample = (int)classes;
    status = logits(j, CE_STATS, classes, j->c.p.hv ? 1 : j->c.p.vocab / classes, false);
    status = status ? status : step(j, CE_STEP_GUESS);
    status = status ? status : logits(j, CE_PROBS, j->c.p.vocab, 1, true);
    status = status ? status : step(j, CE_STEP_CHECK);
    j->c.gated = 1;
    status = status ? status : step(j, CE_STEP_RESET);
    status = status ? status : stats(j);
    status = status ? status : step(j, CE_STEP_KNOWN);
    status = status ? status : logits(j, CE_PROBS, j->c.p.vocab, 1, false);
    j->c.gated = 0;
    return status;
}

static ridge_status known(linear_job *j)
{
    ridge_status status = j->c.p.lse_in ? RIDGE_OK : stats(j);

    status = status ? status : step(j, CE_STEP_KNOWN);
    return status ? status : logits(j, CE_PROBS, j->c.p.vocab, 1, false);
}

static ridge_status chunk(linear_job *j, int64_t begin, int64_t rows, bool overlaid)
{
    const bool add = begin > 0 || (j->c.p.flags & RIDGE_ACCUMULATE);
    ridge_status status;

    j->c.begin = begin;
    j->c.rows = rows;
    j->c.probs.first = (uint16_t *)j->probs;
    j->c.probs.first_ld = up(rows, 128);
    j->c.probs.split = overlaid ? j->plan.group : INT32_MAX;
    j->c.pieces = j->plan.pieces[overlaid];
    j->c.partial = overlaid ? (float *)(j->probs + 2 * j->plan.group * j->plan.overlaid) : j->partial;
    j->c.probs.rest = (uint16_t *)j->dw;
    j->c.probs.rest_ld = 2 * j->dw_ld;
    status = step(j, CE_STEP_CLEAR);
    status = status ? status : step(j, CE_STEP_GATHER);
    if (!status)
        status = j->c.known ? known(j) : guess(j);
    status = status ? status : step(j, CE_STEP_SCALE);
    if (!status && j->c.p.dbias)
        status = ce_step_bias(j->device, j->name, &j->c, add, j->stream);
    if (!status && j->c.p.dx)
        status = make_dx(j);
    if (!status && j->c.p.dw && !overlaid)
        status = make_dw(j, add, 0, j->c.p.vocab);
    for (int64_t first = (j->c.p.vocab - 1) / j->plan.group * j->plan.group; overlaid && first >= 0 && !status;
         first -= j->plan.group)
        status = make_dw(j, add, first, least(j->plan.group, j->c.p.vocab - first));
    if (!status && (j->c.p.dw || j->c.p.dbias))
        status = ce_step_targets(j->device, j->name, &j->c, j->c.p.dw ? j->dw : NULL, j->dw_ld, j->stream);
    return status;
}

/* All rows at once where none is ignored; else chunks of them, compact. */
static ridge_status eval(linear_job *j, int64_t chunk)
{
    ridge_status status;

    j->c.rows = j->c.p.tokens;
    j->c.when = CE_ALL_ROWS;
    status = stats(j);
    j->c.when = CE_SOME_ROWS;
    for (; j->c.begin < j->c.p.tokens && !status; j->c.begin += chunk) {
        j->c.rows = least(chunk, j->c.p.tokens - j->c.begin);
        status = step(j, CE_STEP_GATHER);
        status = status ? status : stats(j);
    }
    return status;
}

static ridge_status cast_dw(const linear_job *j, int load)
{
    const ce_params *p = &j->c.p;

    if (!j->plan.sums)
        return RIDGE_OK;
    return ce_step_cast(j->device, j->name, j->dw, p->dw, p->dw_dtype, p->hv ? p->hidden : p->vocab,
                        p->hv ? p->vocab : p->hidden, p->dw_stride, load, j->stream);
}

static ridge_status all_chunks(linear_job *j)
{
    ridge_status status = RIDGE_OK;
    int64_t begin = 0;

    do { /* without tokens one empty chunk still writes dW */
        const bool overlaid = begin == 0 && j->plan.overlaid > 0;
        const int64_t rows = least(overlaid ? j->plan.overlaid : j->plan.chunk, j->c.p.tokens - begin);

        status = chunk(j, begin, rows, overlaid);
        begin += rows;
    } while (begin < j->c.p.tokens && !status);
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                           const ridge_call *call, void *workspace, size_t, void *stream)
{
    linear_job j = {};
    ce_params *p = &j.c.p;
    ridge_status status;

    j.device = device;
    j.name = kernel->name;
    j.stream = stream;
    *p = ce_collect(call);
    place(&j, device, kernel, problem, workspace);
    j.c.known = p->lse_in || p->full || p->smoothing != 0.0f;
    j.dw_ld = j.plan.sums ? (p->hv ? p->vocab : p->hidden) : p->dw_stride;
    if (!j.plan.sums)
        j.dw = (float *)p->dw;
    status = ce_begin(device, j.name, p, stream);
    if (!status && p->dw && (call->flags & RIDGE_ACCUMULATE))
        status = cast_dw(&j, 1);
    if (!status)
        status = call->op == RIDGE_LINEAR_CE_EVAL ? eval(&j, eval_rows(device, problem)) : all_chunks(&j);
    if (!status && p->dw)
        status = cast_dw(&j, 0);
    if (!status && p->dx)
        status = ce_other_rows(device, j.name, p, stream);
    return status || !ce_needs_stats(call->op) ? status : ce_finish(device, j.name, p, stream);
}

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    linear_job j = {};

    return (size_t)(place(&j, device, kernel, problem, (void *)1024) - (char *)1024);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    const bool hv = (problem->flags & RIDGE_CE_W_HV) != 0;

    if (problem->dtype[0] == RIDGE_F32)
        return "is for bf16 and f16";
    if (tokens == 0 || hidden == 0)
        return "nothing to multiply";
    if (vocab < 8)
        return "is for eight classes and more";
    if (problem->align < 4 || hidden % 8 || (hv && vocab % 8))
        return "TMA needs rows of x, W, dX and dW that begin at multiples of 16 bytes";
    if (tokens > 0x3fffff00 || hidden > 0x3fffff00 || vocab > 0x3fffff00)
        return "more than 2^30 tokens, hidden units or classes";
    return device->units < 2 ? "is for two multiprocessors and more" : NULL;
}

/* Products at 640 TFLOP/s and the steps between. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool large = kernel->param[0] == LARGE && problem->dim[0] > MANY; /* up to there it would only take memory */
    const double gemms = problem->op == RIDGE_LINEAR_CE_EVAL ? 1 : large ? 2.9 : kernel->param[0] ? 3.3 : 3;
    double tiles = (double)((problem->dim[0] + 255) / 256) * (double)((problem->dim[2] + 255) / 256), waves;

    waves = tiles / (device->units / 2);
    waves = waves < 1 ? 1 : waves;
    return 30 * gemms + gemms * waves * (device->units / 2) * 131072.0 * (double)problem->dim[1] / 640e6;
}

#define ROW(op_name, variant, op_id, megabytes)                                                                       \
    {                                                                                                                 \
        "cuda." op_name ".wgmma128x256" variant, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, RIDGE_STABLE | RIDGE_CLOSE, \
            0, {megabytes}, why_not, workspace, cost, launch                                                          \
    }

static const ridge_kernel rows[] = {
    ROW("linear_ce_eval", "", RIDGE_LINEAR_CE_EVAL, 0),
    ROW("linear_ce_train", "", RIDGE_LINEAR_CE_TRAIN, 0),
    ROW("linear_ce_train", ".large", RIDGE_LINEAR_CE_TRAIN, LARGE),
    ROW("linear_ce_train", ".small", RIDGE_LINEAR_CE_TRAIN, 1), /* the smallest chunks: 128 rows */
    ROW("linear_ce_backward", "", RIDGE_LINEAR_CE_BACKWARD, 0),
    ROW("linear_ce_backward", ".large", RIDGE_LINEAR_CE_BACKWARD, LARGE),
    ROW("linear_ce_backward", ".small", RIDGE_LINEAR_CE_BACKWARD, 1),
};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = ce_product_prepare(device);

    return status ? status : ce_step_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_ce_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

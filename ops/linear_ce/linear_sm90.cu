/* linear_sm90.cu: linear_ce_eval, linear_ce_train and linear_ce_backward on Hopper, bf16 and f16: the launches of a
 * call and the kernel rows; workspace_sm90.cu cuts it into chunks, linear_sm90.cuh says how a chunk is done. */
#include "linear_sm90.cuh"

/* One call. */
typedef struct linear_job {
    const ridge_device *device;
    const char *name;
    void *stream;
    ce_chunk c;
    ce_plan plan;
    ce_area space;
    ce_dw dw;
} linear_job;

/* ------------------------------------------------------------------------------------------------- tensor maps */

/* [lines, length] of 16 bits as a factor: along k (boxes 64 x `wide` lines) or not (64 x `wide` of k). */
static ridge_status map_of(const linear_job *j, CUtensorMap *map, const void *base, int64_t length, int64_t lines,
                           int64_t stride, int wide)
{
    return host_tensor_map(j->device, map, j->c.p.dtype, base, length, lines, stride, 64, wide, 128);
}

static ridge_status x_maps(const linear_job *j, ce_product *g)
{
    const ce_params *p = &j->c.p;
    ridge_status status = map_of(j, &g->maps.a[0], p->x, p->hidden, p->tokens, p->x_stride, 128);

    if (status)
        return status;
    return j->c.compact ? map_of(j, &g->maps.a[1], j->c.compact, p->hidden, ce_up(j->c.rows, 128), p->hidden, 128)
                        : map_of(j, &g->maps.a[1], p->x, p->hidden, p->tokens, p->x_stride, 1); /* row by row */
}

/* W, n classes of it class_step apart, as B of the logits. in_turn: the warpgroups, see gemm16_load_half. */
static ridge_status w_map(const linear_job *j, ce_product *g, int64_t n, int64_t step, bool in_turn)
{
    const ce_params *p = &j->c.p;

    return p->hv ? map_of(j, &g->maps.b, p->w, n, p->hidden, p->w_stride, in_turn ? G16_K / 2 : G16_K)
                 : map_of(j, &g->maps.b, p->w, p->hidden, n, p->w_stride * step,
                          in_turn ? G16_TURN_N / G16_CLUSTER : G16_SHARE);
}

/* P^T with its places; lines of `wide` a box. */
static ridge_status probs_maps(const linear_job *j, CUtensorMap *map, int wide)
{
    const ce_probs *q = &j->c.probs;
    const int64_t vocab = j->c.p.vocab, length = ce_up(j->c.rows, 128), inside = ce_least(length, q->tail_at);
    const int64_t most = ce_least(length, q->more_at);
    ridge_status status = map_of(j, &map[0], q->first, inside, ce_least(q->split, vocab), q->first_ld, wide);

    if (!status && q->split < vocab)
        status = map_of(j, &map[1], q->rest, inside, vocab - q->split, q->rest_ld, wide);
    if (!status && inside < most)
        status = map_of(j, &map[2], q->tail, most - inside, vocab, q->tail_ld, wide);
    if (!status && most < length)
        status = map_of(j, &map[3], q->more, length - most, vocab, q->more_ld, wide);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ products */

static ridge_status step(linear_job *j, int which)
{
    return ce_step(j->device, j->name, which, &j->c, j->stream);
}

static void plain_maps(gemm16_maps *maps)
{
    maps->split_m = maps->split_k = maps->tail_m = maps->tail_k = maps->more_m = maps->more_k = INT32_MAX;
}

static bool has_extra(const ce_params *p)
{
    return p->bias || p->softcap > 0.0f || p->temperature != 1.0f;
}

/* The exponents of tokens [begin, begin + rows), those that are ignored too, from u of every sample_step-th class. */
static ridge_status look(linear_job *j, int64_t begin, int64_t rows)
{
    const ce_params *p = &j->c.p;
    const int64_t pairs = ce_up(rows, G16_CLUSTER * G16_M) / (G16_CLUSTER * G16_M);
    const int64_t blocks = ce_up(p->hidden, G16_K) / G16_K, room = j->plan.area / (4 * CE_SAMPLE * rows);
    ce_product g = {};
    ridge_status status;
    int64_t pieces;

    j->c.begin = begin;
    j->c.rows = rows;
    j->c.compact = NULL;
    j->c.sample = (int)ce_least(CE_SAMPLE, p->vocab);
    j->c.sample_step = p->hv ? 1 : (int)(p->vocab / j->c.sample);
    j->c.look = (float *)j->space.area;
    pieces = ce_most(ce_least(ce_least(j->device->units / G16_CLUSTER / pairs, 16), room), 1);
    pieces = ce_up(blocks, pieces) / pieces;                  /* blocks of a piece */
    j->c.look_pieces = (int)(ce_up(blocks, pieces) / pieces); /* none is empty */
    g.c = j->c;
    g.n = j->c.sample;
    g.k = (int)p->hidden;
    g.bundle = (int)pairs;
    g.pieces = j->c.look_pieces;
    plain_maps(&g.maps);
    status = x_maps(j, &g);
    if (!status)
        status = w_map(j, &g, j->c.sample, j->c.sample_step, false);
    status = status ? status : ce_product_launch(j->device, j->name, CE_LOOK, &g, j->stream);
    return status ? status : step(j, CE_STEP_GUESS);
}

/* Before the first chunk, in the room that is theirs: as many tokens at once as fit. */
static ridge_status look_at_all(linear_job *j)
{
    const int64_t most = j->plan.area / (4 * CE_SAMPLE) / 128 * 128;
    ridge_status status = RIDGE_OK;

    for (int64_t begin = 0; begin < j->c.p.tokens && !status; begin += most)
        status = look(j, begin, ce_least(most, j->c.p.tokens - begin));
    return status;
}

/* what: CE_STATS, CE_LISTED or CE_PROBS. */
static ridge_status logits(linear_job *j, int what, bool sums)
{
    const ce_params *p = &j->c.p;
    ce_product g = {};
    ridge_status status;
    bool extra;

    g.c = j->c;
    g.n = (int)p->vocab;
    g.k = (int)p->hidden;
    g.bundle = G16_PAIRS;
    g.pieces = 1;
    g.sums = sums;
    g.mixed = (j->c.known || j->c.gated) && (p->smoothing != 0.0f || p->square_scale != 0.0f);
    extra = has_extra(p) || (what == CE_PROBS ? g.mixed : p->full);
    if (what == CE_LISTED && extra)
        return RIDGE_OK; /* CE_STATS_EXTRA loads such rows itself */
    plain_maps(&g.maps);
    status = x_maps(j, &g);
    if (!status && what == CE_PROBS)
        status = probs_maps(j, g.store, extra ? G16_N / 2 : G16_TURN_N / 2);
    if (extra) /* the variant that knows every option */
        what = what == CE_PROBS ? CE_PROBS_EXTRA : CE_STATS_EXTRA;
    if (!status)
        status = w_map(j, &g, p->vocab, 1, ce_in_turn(what));
    return status ? status : ce_product_launch(j->device, j->name, what, &g, j->stream);
}

static ridge_status dx_maps(const linear_job *j, gemm16_maps *maps)
{
    const ce_params *p = &j->c.p;
    ridge_status status = probs_maps(j, maps->a, 64);

    maps->split_k = j->c.probs.split;
    maps->tail_m = j->c.probs.tail_at;
    maps->more_m = j->c.probs.more_at;
    if (status)
        return status;
    return p->hv ? map_of(j, &maps->b, p->w, p->vocab, p->hidden, p->w_stride, G16_SHARE)
                 : map_of(j, &maps->b, p->w, p->hidden, p->vocab, p->w_stride, 64);
}

static ridge_status dw_maps(const linear_job *j, gemm16_maps *maps)
{
    const ce_params *p = &j->c.p;
    const int64_t rows = ce_up(j->c.rows, 128);
    const int share = ce_dw_height(p->dtype, p->dw_dtype) / G16_CLUSTER;
    ridge_status status = map_of(j, p->hv ? &maps->a[0] : &maps->b, j->c.scaled, p->hidden, rows, p->hidden,
                                 p->hv && share % 64 ? G16_K / 2 : G16_K);

    if (!status && p->hv)
        return map_of(j, &maps->b, j->c.probs.first, rows, p->vocab, j->c.probs.first_ld, G16_TALL_N);
    maps->split_m = j->c.probs.split;
    maps->tail_k = j->c.probs.tail_at;
    maps->more_k = j->c.probs.more_at;
    return status ? status : probs_maps(j, maps->a, share);
}

/* dW of 16 bits in one chunk is rounded at once: the targets' du are added in its epilogue; else at last. */
static bool late_targets(const linear_job *j)
{
    return !j->c.p.dw || j->c.p.dw_dtype == RIDGE_F32 || j->plan.sums;
}

/* The last chunk of several rounds the sum: all targets have been added before. */
static bool rounds(const linear_job *j)
{
    return j->plan.sums && j->c.begin > 0 && j->c.begin + j->c.rows >= j->c.p.tokens;
}

/* dX and dW. */
static ridge_status gradients(linear_job *j, bool add)
{
    ce_gradients g = {};
    ridge_status status = RIDGE_OK;

    g.c = j->c;
    g.dx = j->c.p.dx != NULL;
    g.dw = j->c.p.dw != NULL;
    g.dw_at = j->dw;
    g.dw_dtype = j->c.p.dw_dtype;
    g.before = add ? CE_DW_ITSELF : CE_DW_NOTHING;
    g.after = CE_DW_ITSELF;
    if (rounds(j)) {
        g.before = CE_DW_SUM;
    } else if (j->plan.sums && j->c.begin > 0) {
        g.before = CE_DW_NOTHING;
        g.after = CE_DW_MORE;
    } else if (j->plan.sums) {
        g.after = CE_DW_SUM;
    }
    g.targets = !late_targets(j);
    plain_maps(&g.dx_maps);
    plain_maps(&g.dw_maps);
    if (g.dx)
        status = dx_maps(j, &g.dx_maps);
    if (!status && g.dw)
        status = dw_maps(j, &g.dw_maps);
    status = status ? status : ce_gradients_launch(j->device, j->name, &g, j->stream);
    return status || !g.dx || j->c.pieces == 1 ? status : step(j, CE_STEP_ADD);
}

/* ------------------------------------------------------------------------------------------------------ a chunk */

/* Sums of rows over all classes. */
static ridge_status stats(linear_job *j)
{
    ridge_status status = logits(j, CE_STATS, false);

    /* which of the two has anything to do is known on the device alone */
    return status || j->c.compact ? status : logits(j, CE_LISTED, false);
}

/* P^T from the guessed exponents; and again, on the device's own decision, from lse. */
static ridge_status guess(linear_job *j)
{
    ridge_status status = logits(j, CE_PROBS, true);

    status = status ? status : step(j, CE_STEP_CHECK);
    j->c.gated = 1;
    status = status ? status : step(j, CE_STEP_RESET);
    status = status ? status : stats(j);
    status = status ? status : step(j, CE_STEP_KNOWN);
    status = status ? status : logits(j, CE_PROBS, false);
    j->c.gated = 0;
    return status;
}

static ridge_status known(linear_job *j)
{
    ridge_status status = j->c.p.lse_in ? RIDGE_OK : stats(j);

    status = status ? status : step(j, CE_STEP_KNOWN);
    return status ? status : logits(j, CE_PROBS, false);
}

/* Where P^T of a chunk lies. */
static void place_probs(linear_job *j, int64_t rows, bool overlaid)
{
    ce_probs *q = &j->c.probs;
    const int64_t all = ce_up(rows, 128), inside = overlaid ? ce_least(j->plan.inside, all) : all;
    const int64_t beside = overlaid ? ce_least(j->plan.beside, all - inside) : 0;

    j->c.scaled = j->c.compact = j->space.area;
    j->c.sums = (float *)((uint16_t *)j->c.scaled + ce_up(rows, 128) * j->c.p.hidden);
    q->first = (uint16_t *)j->c.sums + ce_up(rows, 128) * CE_SUMS(j->c.p.hidden) / 2;
    q->first_ld = inside;
    q->split = overlaid ? j->plan.ahead : INT32_MAX;
    q->rest = j->dw.own;
    q->rest_ld = j->dw.own_ld * (j->c.p.dw_dtype == RIDGE_F32 ? 2 : 1);
    q->tail_at = inside < rows ? (int)inside : INT32_MAX;
    q->more_at = beside && inside + beside < rows ? (int)(inside + beside) : INT32_MAX;
    q->more = q->first + (overlaid ? j->plan.ahead : j->c.p.vocab) * inside;
    q->more_ld = ce_up(rows, 128) - inside - beside;
    j->c.pieces = j->plan.pieces[overlaid];
    j->c.partial = (float *)(q->more + j->c.p.vocab * q->more_ld);
    q->tail = beside ? j->dw.rest - j->plan.ahead * j->dw.rest_ld : q->more;
    q->tail_ld = beside ? j->dw.rest_ld : q->more_ld;
}

/* What the targets of all rows give to dW and dbias. Their sums lie at the area's end. */
static ridge_status all_targets(linear_job *j)
{
    static const ce_dw none = {};
    const ce_params *p = &j->c.p;
    const bool f32 = p->dw_dtype == RIDGE_F32;
    linear_job all = *j;
    ridge_status status = RIDGE_OK;

    all.c.begin = 0;
    all.c.rows = p->tokens;
    if (late_targets(j)) {
        all.c.sums = (float *)((char *)j->space.area + j->plan.area - CE_SUMS(p->hidden) * ce_up(p->tokens, 128));
        status = ce_targets_find(j->device, j->name, &all.c, j->stream);
    }
    if (status || !(late_targets(j) || p->dbias))
        return status;
    return ce_targets_add(j->device, j->name, &all.c, f32 ? (float *)j->dw.own : NULL, j->dw.own_ld,
                          j->plan.sums ? &j->dw : &none, j->stream);
}

static ridge_status chunk(linear_job *j, int64_t begin, int64_t rows, bool overlaid)
{
    const bool add = begin > 0 || (j->c.p.flags & RIDGE_ACCUMULATE);
    ridge_status status;

    j->c.begin = begin;
    j->c.rows = rows;
    place_probs(j, rows, overlaid);
    status = step(j, CE_STEP_GATHER);
    if (!status)
        status = j->c.known ? known(j) : guess(j);
    status = status ? status : step(j, CE_STEP_SCALE);
    if (!status && !late_targets(j))
        status = ce_targets_find(j->device, j->name, &j->c, j->stream);
    if (!status && j->c.p.dbias)
        status = ce_step_bias(j->device, j->name, &j->c, add, j->stream);
    if (!status && rounds(j))
        status = all_targets(j);
    return status ? status : gradients(j, add);
}

/* After the last chunk. The sum of one chunk (W [H, V]), or of a last one without rows, is not rounded yet. */
static ridge_status finish_dw(linear_job *j)
{
    ridge_status status = RIDGE_OK;

    if ((j->c.p.dw || j->c.p.dbias) && !rounds(j))
        status = all_targets(j);
    if (status || !j->plan.sums)
        return status;
    return ce_step_merge(j->device, j->name, &j->c, &j->dw, !rounds(j), j->stream);
}

/* All rows at once; where some are ignored the others are loaded by their numbers. */
static ridge_status eval(linear_job *j)
{
    j->c.rows = j->c.p.tokens;
    return stats(j);
}

static ridge_status all_chunks(linear_job *j)
{
    ridge_status status = j->c.known ? RIDGE_OK : look_at_all(j);
    int64_t begin = 0;

    while (!status) { /* without tokens one empty chunk still writes dW */
        const bool overlaid = begin == 0 && j->plan.overlaid > 0;
        const int64_t rows = ce_least(overlaid ? j->plan.overlaid : j->plan.chunk, j->c.p.tokens - begin);

        status = chunk(j, begin, rows, overlaid);
        begin += rows;
        if (begin >= j->c.p.tokens)
            break;
    }
    return status ? status : finish_dw(j);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const ridge_call *call = &bound->call;

    linear_job j = {};
    ce_params *p = &j.c.p;
    ridge_status status;

    j.device = device;
    j.name = kernel->name;
    j.stream = stream;
    *p = ce_collect(call);
    j.plan = ce_plan_of(device, problem, kernel->param[0], (int64_t)bytes);
    ce_plan_place(&j.c, &j.space, device, problem, &j.plan, workspace);
    j.c.known = p->lse_in || p->full || p->smoothing != 0.0f;
    j.dw = {(uint16_t *)p->dw, j.space.rest, p->dw_stride, p->hv ? p->vocab : p->hidden};
    status = ce_begin(device, j.name, p, stream);
    if (!status)
        status = call->op == RIDGE_LINEAR_CE_EVAL ? eval(&j) : all_chunks(&j);
    if (!status && p->dx)
        status = ce_other_rows(device, j.name, p, stream);
    return status || !ce_needs_stats(call->op) ? status : ce_finish(device, j.name, p, stream);
}

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const ce_plan plan = ce_plan_of(device, problem, kernel->param[0], 0);
    ce_chunk c = {};
    ce_area space = {};

    return (size_t)ce_plan_place(&c, &space, device, problem, &plan, (void *)1024);
}

/* Of 256 rows of a cluster. */
static double tiles_of(int64_t rows, int64_t cols, int64_t width)
{
    return (double)((rows + 255) / 256) * (double)((cols + width - 1) / width);
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
    if (tiles_of(tokens, vocab, G16_TURN_N) > 2e9 || tiles_of(tokens, hidden, G16_N) > 2e9 ||
        tiles_of(vocab, hidden, G16_TALL_N) > 2e9) /* dW's: 128 x 256 and more */
        return "more than 2^31 tiles";
    return device->units < 2 ? "is for two multiprocessors and more" : NULL;
}

/* Products at 640 TFLOP/s and the steps between. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double gemms = problem->op == RIDGE_LINEAR_CE_EVAL ? 1 : kernel->param[0] ? 3.3 : 3;
    double waves = tiles_of(problem->dim[0], problem->dim[2], G16_N) / (device->units / 2);

    waves = waves < 1 ? 1 : waves;
    return 30 * gemms + gemms * waves * (device->units / 2) * 131072.0 * (double)problem->dim[1] / 640e6;
}

#define ROW(op_name, variant, op_id, small)                                                                           \
    {                                                                                                                 \
        "cuda." op_name ".wgmma" variant, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, RIDGE_STABLE | RIDGE_CLOSE, \
            0, {small}, why_not, workspace, cost, launch                                                              \
    }

static const ridge_kernel rows[] = {
    ROW("linear_ce_eval", "", RIDGE_LINEAR_CE_EVAL, 0),
    ROW("linear_ce_train", "", RIDGE_LINEAR_CE_TRAIN, 0),
    ROW("linear_ce_train", ".small", RIDGE_LINEAR_CE_TRAIN, 1), /* chunks of 128 rows, or what the workspace allows */
    ROW("linear_ce_backward", "", RIDGE_LINEAR_CE_BACKWARD, 0),
    ROW("linear_ce_backward", ".small", RIDGE_LINEAR_CE_BACKWARD, 1),
};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = ce_product_prepare(device);

    status = status ? status : ce_gradients_prepare(device);
    status = status ? status : ce_targets_prepare(device);
    return status ? status : ce_step_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_ce_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

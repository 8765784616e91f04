/* linear_chunks.cu: linear_ce_eval, linear_ce_train and linear_ce_backward in chunks of rows, bf16 and f16: the
 * launches of a call. workspace.cu cuts the call into chunks, linear_chunks.cuh has the equations.
 *
 * The launches of linear_ce_train, in order. B: rows of a chunk, V: classes, H: hidden units. The products
 * (ce_products) are persistent on Hopper, with as many CTAs of 384 threads, in clusters of two, as there are SMs;
 * elsewhere they have a CTA of 256 threads for each tile (linear_mma16.cuh). The other kernels have CTAs of 256 threads
 * (begin: 512).
 *
 *     kernel                     grid        reads                    writes                         when
 *     -- once a call
 *     ce_begin_kernel            <= 133      target, class_weight     totals, list, label, part      always
 *     logits SAMPLE              SMs         x, 256 rows of W         sample_u                       predicted
 *     predict_exponent           tokens/8    sample_u, bias           exponent, part                 predicted
 *     -- each chunk
 *     gather_x                   B           x, list                  x_compact; counters            always; +
 *     logits PROBS               SMs         x, W, exponent           P^T, part, target_z            predicted
 *     check_exponent             B/8         part, target_z           lse, factor, target_du, redo   predicted
 *     -- exponents from lse: if `redo` is set (else each returns at once), or the only way
 *     reset_parts                B/8                                  part                           predicted
 *     logits STATS               SMs         x, W                     part, target_z                 lse is not given
 *     exponent_from_lse          B/8         part or lse              exponent, mix, factor, lse     always
 *     logits PROBS               SMs         x, W, exponent, mix      P^T, target_z                  always
 *     -- each chunk, continued
 *     scale_x                    B           x, factor                x_scaled, P^T targets, links   always
 *     id_probs                   B/8         ids, id_logprob          P^T, target_du                 ids (ids.cu)
 *     link_targets, sum_frequent B/8; *      links, x, target_du      links, frequent_sums           16-bit dW, 1 chunk
 *     dbias                      V/8         P^T, factor              dbias                          dbias is wanted
 *     grads                      SMs         P^T, W, x_scaled, factor dX or partial sums, dW or sum  always
 *     reduce_dx                  B           dx_partial, factor, W    dX                             dX has split-K
 *     -- once a call, at the end (with an f32 sum of dW the targets come before the last grads)
 *     link_targets, sum_frequent tokens/8; * links, x, target_du      links, frequent_sums           not yet
 *     targets_to_dw              tokens; H   frequent_sums, links, x  dW or sum, dbias               not yet, or dbias
 *     round_dw                   V/8         f32 sum                  dW                             f32 sum; ++
 *     ce_other                   tokens/8    target                   dX                             rows not listed
 *     ce_finish_kernel           tokens/32   part, target_z           every output by token          always
 *
 * +: x_compact only if rows are ignored. ++: only if the last chunk turned out to have no rows, or was the only one.
 * *: frequent targets by slices of 256 hidden units. Exponents are predicted unless lse is given (linear_ce_backward)
 * or an output or option needs it first: label smoothing, entropy, argmax, accuracy. linear_ce_eval is begin, STATS and
 * finish; on Hopper STATS is two launches, one of which gathers rows by TMA where some are ignored: only the device
 * knows which of the two has work. Where it picks classes (top.cuh, ids.cu) there it is in chunks: for the top classes
 * SAMPLE and top_scale; each chunk gather_x, order_ids, STATS, top_finish, again STATS and top_finish if `redo` is set,
 * and ids_from_z. */
#include "linear_chunks.cuh"
#include "phase.h"

/* ------------------------------------------------------------------------------------------------------ products */

static ridge_status row_kernel(ce_job *j, int which)
{
    return ce_row_launch(j->device, j->name, which, &j->c, j->stream);
}

/* u of every sample_stride-th class of a chunk's rows, to memory of plan.area bytes. */
static ridge_status sample_product(ce_job *j, void *memory)
{
    const ce_params *p = &j->c.p;

    j->c.sample_classes = (int)ridge_min(CE_SAMPLE_CLASSES, p->vocab);
    j->c.sample_stride = p->hv ? 1 : (int)(p->vocab / j->c.sample_classes);
    j->c.sample_u = (float *)memory;
    return j->products->sample(j);
}

/* How many classes of the sample reach a logit that is below the k-th of all: six deviations above the number of the k
 * best in the sample, and 8 for small ones, so that it is wrong in one row of 10^10 if classes come in no order. 0:
 * there is no such logit. */
static int top_rank_of(const ce_chunk *c)
{
    const double best = (double)c->p.top_k * c->sample_classes / (double)c->p.vocab;
    const int rank = (int)ceil(best + 6 * sqrt(best) + 8);

    return c->p.hv || rank > c->sample_classes ? 0 : rank; /* [H, V] has a sample of adjacent classes */
}

/* Before the first chunk, in the area of the chunks, as many tokens at once as fit, ignored ones too: u of the sample,
 * and what the kernel makes of it. */
static ridge_status sample_all(ce_job *j, void *memory, int kernel)
{
    const int64_t most = j->plan.area / (4 * CE_SAMPLE_CLASSES) / 128 * 128;
    ridge_status status = RIDGE_OK;

    j->c.x_compact = NULL;
    for (j->c.begin = 0; j->c.begin < j->c.p.tokens && !status; j->c.begin += most) {
        j->c.rows = ridge_min(most, j->c.p.tokens - j->c.begin);
        status = sample_product(j, memory);
        if (kernel == CE_ROW_TOP_SCALE)
            j->c.top_rank = top_rank_of(&j->c);
        status = status ? status : row_kernel(j, kernel);
    }
    j->c.begin = 0;
    return status;
}

/* A 16-bit dW of one chunk is rounded at once: its epilogue adds the targets' du. Else they are added at the end. */
static bool targets_at_end(const ce_job *j)
{
    return !j->c.p.dw || j->c.p.dw_dtype == RIDGE_F32 || j->plan.f32_sum;
}

/* The last of several chunks rounds the f32 sum: the targets of all rows are added before it. */
static bool rounds_sum(const ce_job *j)
{
    return j->plan.f32_sum && j->c.begin > 0 && j->c.begin + j->c.rows >= j->c.p.tokens;
}

/* dX and dW; in phases one of them. */
static ridge_status gradients(ce_job *j, bool add)
{
    const uint32_t phase = j->c.p.flags & RIDGE_CE_PHASE;
    ce_grads g = {};
    ridge_status status;

    g.c = j->c;
    g.dx = j->c.p.dx != NULL && phase != RIDGE_CE_DW;
    g.dw = j->c.p.dw != NULL && phase != RIDGE_CE_DX;
    if (phase == RIDGE_CE_DX)
        g.c.progress += CE_PROGRESS_COUNTERS(j->c.p.vocab);
    g.dw_at = j->dw;
    g.dw_dtype = j->c.p.dw_dtype;
    g.reads = add ? CE_DW_OUT : CE_DW_NONE;
    g.writes = CE_DW_OUT;
    if (rounds_sum(j)) {
        g.reads = CE_DW_SUM;
    } else if (j->plan.f32_sum && j->c.begin > 0) {
        g.reads = CE_DW_NONE;
        g.writes = CE_DW_SUM_ADD;
    } else if (j->plan.f32_sum) {
        g.writes = CE_DW_SUM;
    }
    g.targets = !targets_at_end(j);
    status = j->products->grads(j, &g);
    return status || !g.dx || j->c.dx_splits == 1 ? status : row_kernel(j, CE_ROW_REDUCE_DX);
}

/* ------------------------------------------------------------------------------------------------------ a chunk */

/* P^T from predicted exponents; and again from lse if the device finds one of them bad. */
static ridge_status probs_predicted(ce_job *j)
{
    ridge_status status = j->products->logits(j, CE_PROBS, true);

    status = status ? status : row_kernel(j, CE_ROW_CHECK);
    j->c.if_redo = 1;
    status = status ? status : row_kernel(j, CE_ROW_RESET);
    status = status ? status : j->products->logits(j, CE_STATS, false);
    status = status ? status : row_kernel(j, CE_ROW_FROM_LSE);
    status = status ? status : j->products->logits(j, CE_PROBS, false);
    j->c.if_redo = 0;
    return status;
}

static ridge_status probs_from_lse(ce_job *j)
{
    ridge_status status = j->c.p.lse_in ? RIDGE_OK : j->products->logits(j, CE_STATS, false);

    status = status ? status : row_kernel(j, CE_ROW_FROM_LSE);
    return status ? status : j->products->logits(j, CE_PROBS, false);
}

/* The layout of a chunk's area, and the segments of its P^T (ce_probs). */
static void lay_out(ce_job *j, int64_t rows, bool aliased)
{
    const ce_params *p = &j->c.p;
    const ce_plan *plan = &j->plan;
    ce_probs *q = &j->c.probs;
    const int64_t all = ridge_round_up(rows, 128), in_dw = aliased ? ridge_min(plan->rows_in_dw, all) : all;
    const int64_t in_spare = aliased ? ridge_min(plan->rows_in_spare, all - in_dw) : 0;

    j->c.x_scaled = j->c.x_compact = j->space.chunk;
    j->c.frequent_sums = (float *)((uint16_t *)j->c.x_scaled + all * p->hidden);
    q->data[0] = (uint16_t *)j->c.frequent_sums + all * CE_FREQUENT_BYTES(p->hidden) / 2;
    q->ld[0] = in_dw;
    q->class1 = aliased ? plan->lead_classes : INT32_MAX;
    q->data[1] = j->dw.own;
    q->ld[1] = j->dw.own_ld * (p->dw_dtype == RIDGE_F32 ? 2 : 1);
    q->row2 = in_dw < rows ? (int)in_dw : INT32_MAX;
    q->row3 = in_spare && in_dw + in_spare < rows ? (int)(in_dw + in_spare) : INT32_MAX;
    q->data[3] = q->data[0] + (aliased ? plan->lead_classes : p->vocab) * in_dw;
    q->ld[3] = all - in_dw - in_spare;
    q->data[2] = in_spare ? j->dw.spare - plan->lead_classes * j->dw.spare_ld : q->data[3];
    q->ld[2] = in_spare ? j->dw.spare_ld : q->ld[3];
    j->c.dx_splits = plan->dx_splits[aliased];
    j->c.dx_partial = (float *)(q->data[3] + p->vocab * q->ld[3]);
}

/* Adds what the targets of all rows give to dW and dbias. Their sums lie at the end of the area. */
static ridge_status all_targets(ce_job *j)
{
    static const ce_dw none = {};
    const ce_params *p = &j->c.p;
    const bool f32 = p->dw_dtype == RIDGE_F32;
    ce_job all = *j;
    ridge_status status = RIDGE_OK;

    all.c.begin = 0;
    all.c.rows = p->tokens;
    if (targets_at_end(j)) {
        all.c.frequent_sums = (float *)((char *)j->space.chunk + j->plan.area -
                                        CE_FREQUENT_BYTES(p->hidden) * ridge_round_up(p->tokens, 128));
        status = ce_targets_find(j->device, j->name, &all.c, j->stream);
    }
    if (status || !(targets_at_end(j) || p->dbias))
        return status;
    return ce_targets_add(j->device, j->name, &all.c, f32 ? (float *)j->dw.own : NULL, j->dw.own_ld,
                          j->plan.f32_sum ? &j->dw : &none, j->stream);
}

static ridge_status chunk(ce_job *j, int64_t begin, int64_t rows, bool aliased)
{
    const bool add = begin > 0 || (j->c.p.flags & RIDGE_ACCUMULATE);
    ridge_status status;

    j->c.begin = begin;
    j->c.rows = rows;
    lay_out(j, rows, aliased);
    status = row_kernel(j, CE_ROW_GATHER);
    if (!status)
        status = j->c.lse_known ? probs_from_lse(j) : probs_predicted(j);
    status = status ? status : row_kernel(j, CE_ROW_SCALE);
    if (!status)
        status = ce_ids_chunk(j->device, j->name, &j->c, j->stream);
    if (!status && !targets_at_end(j))
        status = ce_targets_find(j->device, j->name, &j->c, j->stream);
    if (!status && j->c.p.dbias)
        status = ce_dbias_launch(j->device, j->name, &j->c, add, j->stream);
    if (!status && rounds_sum(j))
        status = all_targets(j);
    return status ? status : gradients(j, add);
}

/* After the last chunk: the f32 sum of a single chunk (W [H, V]), or after a last one without rows, is not rounded yet.
 */
static ridge_status finish_dw(ce_job *j)
{
    ridge_status status = RIDGE_OK;

    if ((j->c.p.dw || j->c.p.dbias) && !rounds_sum(j))
        status = all_targets(j);
    if (status || !j->plan.f32_sum)
        return status;
    return ce_round_dw_launch(j->device, j->name, &j->c, &j->dw, !rounds_sum(j), j->stream);
}

/* The sums of a chunk and its top classes; and again, without a bound from the sample, if the device finds that it left
 * too few of a row. */
static ridge_status eval_chunk(ce_job *j)
{
    ce_top t = {j->c.p, j->c.begin, j->c.rows, j->space.sample != NULL, 0};
    ridge_status status = RIDGE_OK;

    for (j->c.if_redo = 0; j->c.if_redo <= (j->c.top_rank > 0) && !status; j->c.if_redo++) {
        status = j->products->logits(j, CE_STATS, false);
        t.if_redo = j->c.if_redo;
        status = status ? status : ce_top_finish(j->device, j->name, &t, j->stream);
    }
    j->c.if_redo = 0;
    return status;
}

/* All rows at once; where classes are picked, so many as there is memory for lists, and for a compact x. */
static ridge_status eval(ce_job *j)
{
    const ce_params *p = &j->c.p;

    /* Of every other call the ids' logits are products of their own. */
    if (ce_has_more(p) || p->softcap > 0.0f || p->bias)
        j->c.p.id_order = NULL;
    if (!p->id_order && !p->top_k && !p->draw)
        j->space.chunk = NULL;
    const int64_t tokens = p->tokens, most = p->top_k || j->space.chunk ? (int64_t)CE_TOP_ROWS : tokens;
    ridge_status status = j->space.sample ? sample_all(j, j->space.sample, CE_ROW_TOP_SCALE) : RIDGE_OK;

    for (; j->c.begin < tokens && !status; j->c.begin += most) {
        j->c.rows = ridge_min(most, tokens - j->c.begin);
        j->c.x_compact = j->space.chunk;
        if (j->c.x_compact)
            status = row_kernel(j, CE_ROW_GATHER);
        if (!status)
            status = ce_ids_rows(j->device, j->name, &j->c.p, j->c.begin, j->c.rows, false, j->stream);
        status = status ? status : eval_chunk(j);
        if (!status)
            status = ce_ids_rows(j->device, j->name, &j->c.p, j->c.begin, j->c.rows, true, j->stream);
    }
    return status ? status : ce_ids_eval(j->device, j->name, &j->c.p, j->stream);
}

static ridge_status all_chunks(ce_job *j)
{
    ridge_status status = j->c.lse_known ? RIDGE_OK : sample_all(j, j->space.chunk, CE_ROW_PREDICT);
    int64_t begin = 0;

    while (!status) { /* a call without tokens has one empty chunk, which writes dW */
        const bool aliased = begin == 0 && j->plan.aliased > 0;
        const int64_t rows = ridge_min(aliased ? j->plan.aliased : j->plan.chunk, j->c.p.tokens - begin);

        status = chunk(j, begin, rows, aliased);
        begin += rows;
        if (begin >= j->c.p.tokens)
            break;
    }
    return status ? status : finish_dw(j);
}

/* ------------------------------------------------------------------------------------------------------- in phases */

/* The sums of this slice's rows, and P^T from predicted exponents if there are such. */
static ridge_status begin_phase(ce_job *j)
{
    ridge_status status = j->c.lse_known ? RIDGE_OK : sample_all(j, j->space.chunk, CE_ROW_PREDICT);

    lay_out(j, j->c.p.tokens, j->plan.aliased > 0);
    j->c.begin = 0;
    j->c.rows = j->c.p.tokens;
    status = status ? status : row_kernel(j, CE_ROW_GATHER);
    if (!status && !j->c.lse_known) {
        status = j->products->logits(j, CE_PROBS, true);
        status = status ? status : row_kernel(j, CE_ROW_CHECK);
        j->c.if_redo = 1;
        status = status ? status : row_kernel(j, CE_ROW_RESET);
    }
    status = status ? status : j->products->logits(j, CE_STATS, false);
    return status ? status : ce_finish(j->device, j->name, &j->c.p, j->stream);
}

/* P^T again if the device finds the exponent of a row bad for the lse of all slices; or for the first time. */
static ridge_status dx_phase(ce_job *j)
{
    ridge_status status = RIDGE_OK;

    if (!j->c.lse_known) {
        status = row_kernel(j, CE_ROW_CHECK);
        j->c.if_redo = 1;
        status = status ? status : row_kernel(j, CE_ROW_RESET);
    }
    status = status ? status : probs_from_lse(j);
    j->c.if_redo = 0;
    status = status ? status : row_kernel(j, CE_ROW_SCALE);
    status = status ? status : gradients(j, false);
    return status || !j->c.p.dx ? status : ce_other_rows(j->device, j->name, &j->c.p, j->stream);
}

static ridge_status dw_phase(ce_job *j)
{
    const bool add = (j->c.p.flags & RIDGE_ACCUMULATE) != 0;
    ridge_status status = RIDGE_OK;

    if (!targets_at_end(j))
        status = ce_targets_find(j->device, j->name, &j->c, j->stream);
    if (!status && j->c.p.dbias)
        status = ce_dbias_launch(j->device, j->name, &j->c, add, j->stream);
    status = status ? status : gradients(j, add);
    return status ? status : finish_dw(j);
}

static ridge_status one_phase(ce_job *j)
{
    j->c.lse_known = j->c.p.full || j->c.p.smoothing != 0.0f; /* before BEGIN ends, whatever comes after it */
    if (j->c.p.flags & RIDGE_CE_BEGIN) {
        const ridge_status status = ce_begin(j->device, j->name, &j->c.p, j->stream);

        return status ? status : begin_phase(j);
    }
    lay_out(j, j->c.p.tokens, j->plan.aliased > 0);
    j->c.rows = j->c.p.tokens;
    return j->c.p.flags & RIDGE_CE_DX ? dx_phase(j) : dw_phase(j);
}

ridge_status ce_chunks_run(const ce_products *products, bool small, const ridge_device *device, const char *name,
                           const ridge_bound *bound, void *workspace, size_t bytes, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    ce_job j = {};
    ce_params *p = &j.c.p;
    ridge_status status;

    j.device = device;
    j.name = name;
    j.stream = stream;
    j.products = products;
    *p = ce_collect(bound);
    j.plan = ce_plan_of(products, device, problem, small, (int64_t)bytes);
    ce_plan_layout(products, &j.c, &j.space, device, problem, &j.plan, workspace);
    j.c.lse_known = p->lse_in || p->full || p->smoothing != 0.0f;
    j.dw = {(uint16_t *)p->dw, j.space.spare, p->dw_stride, p->hv ? p->vocab : p->hidden};
    if (p->flags & RIDGE_CE_PHASE)
        return one_phase(&j);
    status = ce_begin(device, j.name, p, stream);
    if (!status && p->op == RIDGE_LINEAR_CE_BACKWARD)
        status = ce_ids_begin(device, j.name, p, stream);
    if (!status)
        status = p->op == RIDGE_LINEAR_CE_EVAL ? eval(&j) : all_chunks(&j);
    if (!status && p->dx)
        status = ce_other_rows(device, j.name, p, stream);
    return status || !ce_needs_stats(p->op) ? status : ce_finish(device, j.name, p, stream);
}

size_t ce_chunks_bytes(const ce_products *products, bool small, const ridge_device *device,
                       const ridge_problem *problem)
{
    const ce_plan plan = ce_plan_of(products, device, problem, small, 0);
    ce_chunk c = {};
    ce_area space = {};

    return (size_t)ce_plan_layout(products, &c, &space, device, problem, &plan, NULL);
}

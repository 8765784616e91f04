/* workspace.cu: how a call of the linear cross entropy in chunks is cut, and the layout of its workspace.
 *
 * Every chunk but the first reads and writes all of dW, so there should be few. Where dW is [vocab, hidden], not added
 * to, and made in order (ce_products), its own memory holds P^T of rows of the first chunk until dW is written: 2
 * hidden rows (hidden, if dW has 16 bits); the workspace holds those of more. The other chunks are as large as the
 * workspace allows, in whole tiles. For a dW of 16 bits there may be spare memory of the same size in the workspace,
 * which at first holds P^T of hidden rows too; if there are several chunks nevertheless, the f32 sum of dW lies in
 * both, so that dW is rounded once.
 *
 * The workspace: what ce_layout needs; arrays by row and class; an area that every chunk uses anew: n_r x, sums of
 * frequent targets, P^T, partial sums of dX; and the spare memory. Its row 0 follows the end of the area directly,
 * since row v of segment 2 of P^T lies `lead_classes` rows before row v of the spare memory. */
#include "linear_chunks.cuh"
#include "phase.h"

static int64_t down(int64_t x, int64_t step)
{
    return x / step * step;
}

/* A tile of dX is BLOCK_M rows a CTA by BLOCK_N; chunks are rounded to CHUNK_M rows; bytes for partial sums of dX. */
enum { BLOCK_M = 128, BLOCK_N = 256, CHUNK_M = 256, ALIGN = 1024, PARTIAL = 44000000 };

static int dx_slot(uint32_t op)
{
    return op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;
}

static uint32_t dw_dtype(const ridge_problem *problem)
{
    return problem->op == RIDGE_LINEAR_CE_EVAL ? (uint32_t)RIDGE_NONE : problem->dtype[dx_slot(problem->op) + 1];
}

static int64_t partial_bytes(const ridge_problem *problem, int64_t rows, int splits)
{
    return splits > 1 ? rows * problem->dim[1] * 4 * splits : 0;
}

/* Split-K of dX: splits of the vocabulary that keep all CTAs busy, where dX has few tiles and no dW is computed
 * meanwhile: the fewest that come within 7 % of that, and within so many bytes. */
static int dx_splits_of(const ce_products *q, const ridge_device *device, const ridge_problem *problem, int64_t rows,
                        int64_t bytes)
{
    const int64_t workers = device->units / q->ctas, block_m = q->ctas * BLOCK_M;
    const int64_t tiles =
        ridge_round_up(rows, block_m) / block_m * (ridge_round_up(problem->dim[1], BLOCK_N) / BLOCK_N);
    int best = 1;
    double best_use = 0;

    if (problem->dtype[dx_slot(problem->op)] == RIDGE_NONE)
        return 1;
    for (int splits = 1; splits <= 8 && problem->dim[2] / splits >= 1024 && best_use < 0.93; splits++) {
        const double use = (double)(tiles * splits) / (double)ridge_round_up(tiles * splits, workers);

        if (use > best_use + 0.001 && partial_bytes(problem, rows, splits) <= bytes) {
            best = splits;
            best_use = use;
        }
    }
    return best;
}

/* Classes of dW whose memory holds no P^T: some waves of tiles, which clusters can compute while others still compute
 * dX, and at least a bundle; in no more than half of the area. */
static int lead_classes_of(bool small, int64_t in_dw, int64_t bytes_left)
{
    int64_t classes = small ? CE_BUNDLE_CLASSES : 4 * CE_BUNDLE_CLASSES;

    while (classes > CE_BUNDLE_CLASSES && 2 * classes * in_dw > bytes_left / 2)
        classes /= 2;
    return (int)classes;
}

/* Bytes of the area for a row of a chunk: n_r x and its share of the sums of frequent targets. */
static int64_t row_bytes(const ridge_problem *problem)
{
    return 2 * problem->dim[1] + CE_FREQUENT_BYTES(problem->dim[1]);
}

/* Bytes of the area: of a chunk whose P^T lies only in the workspace, and of one aliased with dW. */
static int64_t chunk_bytes(const ridge_problem *problem, int64_t rows)
{
    return (row_bytes(problem) + ridge_max(2 * problem->dim[2], 4 * CE_SAMPLE_CLASSES)) *
           ridge_round_up(rows, 128); /* P^T, or u of the sample */
}

static int64_t aliased_bytes(const ridge_problem *problem, const ce_plan *plan, int64_t rows)
{
    const int64_t all = ridge_round_up(rows, 128), in_dw = ridge_min(all, plan->rows_in_dw),
                  in_spare = ridge_min(all - in_dw, plan->rows_in_spare);

    return row_bytes(problem) * all + 2 * plan->lead_classes * (in_dw + (in_spare > 0 ? problem->dim[1] : 0)) +
           2 * problem->dim[2] * (all - in_dw - in_spare);
}

/* The rows of an aliased chunk in so many bytes. */
static int64_t aliased_rows(const ridge_problem *problem, const ce_plan *plan, int64_t bytes_left)
{
    const int64_t row = row_bytes(problem), in_dw = plan->rows_in_dw + plan->rows_in_spare;
    const int64_t full = aliased_bytes(problem, plan, in_dw),
                  less = plan->rows_in_spare > 0 ? 2 * plan->lead_classes * problem->dim[1] : 0;

    if (bytes_left < full)
        return ridge_min(down(ridge_max(bytes_left - less, 0) / (row + 2 * plan->lead_classes), 128), in_dw);
    return in_dw + down((bytes_left - full) / (row + 2 * problem->dim[2]), 128);
}

/* Where dW has an f32 sum, the sums of frequent targets of all rows lie beside the last chunk. */
static int64_t all_frequent_bytes(const ridge_problem *problem, const ce_plan *plan)
{
    return plan->spare ? CE_FREQUENT_BYTES(problem->dim[1]) * ridge_round_up(problem->dim[0], 128) : 0;
}

/* The first chunk aliased with dW, if that leaves fewer chunks; the others as large as the bytes allow. */
static void cut(const ce_products *q, const ridge_device *device, const ridge_problem *problem, ce_plan *plan,
                bool alias, int64_t bytes_left)
{
    const int64_t tokens = problem->dim[0], others_left = bytes_left - all_frequent_bytes(problem, plan);
    const int64_t rows = ridge_max(down(others_left / chunk_bytes(problem, 1) * 128, 128), 128);
    const int64_t first = alias ? aliased_rows(problem, plan, bytes_left) : 0;
    int64_t chunks = 0, left;

    if (rows >= tokens) {
        plan->chunk = ridge_round_up(tokens, 128);
        return;
    }
    plan->chunk = rows;
    if (first >= tokens) {
        plan->aliased = tokens;
    } else {
        left = tokens - first;
        chunks = (left + rows - 1) / rows;
        plan->chunk = ridge_round_up((left + chunks - 1) / chunks, 128);
        if (ridge_round_up(plan->chunk, CHUNK_M) <= rows)
            plan->chunk = ridge_round_up(plan->chunk, CHUNK_M);
        plan->aliased = first < 128 ? 0 : ridge_max(tokens - chunks * plan->chunk, 0);
    }
    if (plan->aliased)
        plan->dx_splits[1] =
            dx_splits_of(q, device, problem, plan->aliased, bytes_left - aliased_bytes(problem, plan, plan->aliased));
}

/* Bytes before the area. */
static int64_t fixed_bytes(const ce_products *q, const ridge_device *device, const ridge_problem *problem,
                           const ce_plan *plan)
{
    ce_chunk c = {};
    ce_area space = {};
    ce_plan none = *plan;

    none.area = 0;
    return ce_plan_layout(q, &c, &space, device, problem, &none, NULL) + 4 * ALIGN;
}

/* The bytes of a call whose caller passes no workspace size: the workspace targets of linear_ce. */
static int64_t usual_bytes(const ridge_problem *problem)
{
    const int64_t vocab = problem->dim[2], half = 2 * vocab * problem->dim[1];

    return ridge_max(INT64_C(300000000), 2048 * vocab + 16000000) +
           (dw_dtype(problem) == RIDGE_NONE || dw_dtype(problem) == RIDGE_F32 ? 0 : half);
}

/* A plan with or without spare memory. bytes: of the workspace, 0 = the usual ones. */
static ce_plan plan_with(const ce_products *q, const ridge_device *device, const ridge_problem *problem, bool small,
                         bool spare, int64_t bytes)
{
    const uint32_t dw = dw_dtype(problem);
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    ce_plan plan = {};
    int64_t bytes_left;
    bool alias;

    plan.spare = spare;
    plan.dx_splits[0] = plan.dx_splits[1] = 1;
    plan.rows_in_dw = down(dw == RIDGE_F32 ? 2 * hidden : hidden, 128);
    plan.rows_in_spare = spare ? plan.rows_in_dw : 0;
    bytes_left = (bytes ? bytes : usual_bytes(problem)) - fixed_bytes(q, device, problem, &plan);
    plan.lead_classes = lead_classes_of(
        small, ridge_min(plan.rows_in_dw + plan.rows_in_spare, ridge_round_up(tokens, 128)), bytes_left);
    if (small && !bytes)
        bytes_left =
            ridge_max(aliased_bytes(problem, &plan, ridge_min(plan.rows_in_dw + plan.rows_in_spare + 128, tokens)),
                      chunk_bytes(problem, 128) + all_frequent_bytes(problem, &plan));
    alias = q->ordered && dw != RIDGE_NONE && !(problem->flags & (RIDGE_ACCUMULATE | RIDGE_CE_W_HV)) &&
            vocab > 2 * plan.lead_classes && plan.rows_in_dw > 0;
    if (small && !bytes && !alias)
        bytes_left = chunk_bytes(problem, 128) + all_frequent_bytes(problem, &plan);
    if (dw == RIDGE_NONE && bytes_left > 2 * PARTIAL)
        bytes_left -= PARTIAL;
    cut(q, device, problem, &plan, alias, bytes_left);
    if (dw == RIDGE_NONE)
        plan.dx_splits[0] = dx_splits_of(q, device, problem, plan.chunk, PARTIAL);
    plan.area = plan.aliased ? aliased_bytes(problem, &plan, plan.aliased) +
                                   partial_bytes(problem, plan.aliased, plan.dx_splits[1])
                             : 0;
    if (plan.aliased < tokens)
        plan.area = ridge_max(plan.area, chunk_bytes(problem, plan.chunk) + all_frequent_bytes(problem, &plan) +
                                             partial_bytes(problem, plan.chunk, plan.dx_splits[0]));
    plan.area = ridge_round_up(ridge_max(plan.area, CE_FREQUENT_BYTES(hidden) * ridge_round_up(tokens, 128)),
                               ALIGN); /* the last launches need those of all rows */
    return plan;
}

static bool one_chunk(const ridge_problem *problem, const ce_plan *plan)
{
    return plan->aliased >= problem->dim[0] || (!plan->aliased && plan->chunk >= problem->dim[0]);
}

/* The usual plan, or that of so many bytes. */
static ce_plan choose(const ce_products *q, const ridge_device *device, const ridge_problem *problem, bool small,
                      int64_t bytes)
{
    const uint32_t dw = dw_dtype(problem);
    const bool half = dw != RIDGE_NONE && dw != RIDGE_F32, always = (problem->flags & RIDGE_CE_W_HV) || !q->ordered;
    ce_plan plan = plan_with(q, device, problem, small, half && always, bytes);

    if (half && !plan.spare && !one_chunk(problem, &plan))
        plan = plan_with(q, device, problem, small, true, bytes);
    plan.f32_sum = plan.spare && (always || !one_chunk(problem, &plan));
    return plan;
}

/* linear_ce_train in phases: P^T of all rows at once, since lse comes between it and the gradients. */
static ce_plan plan_of_phases(const ce_products *q, const ridge_device *device, const ridge_problem *problem)
{
    const uint32_t dw = dw_dtype(problem);
    const int64_t tokens = problem->dim[0], all = ridge_round_up(tokens, 128);
    const bool hv = (problem->flags & RIDGE_CE_W_HV) != 0;
    ce_plan plan = {};

    plan.spare = plan.f32_sum = dw != RIDGE_NONE && dw != RIDGE_F32 && (hv || !q->ordered);
    plan.rows_in_dw = down(dw == RIDGE_F32 ? 2 * problem->dim[1] : problem->dim[1], 128);
    plan.lead_classes = lead_classes_of(false, ridge_min(plan.rows_in_dw, all), usual_bytes(problem));
    plan.chunk = all;
    if (q->ordered && dw != RIDGE_NONE && !hv && !(problem->flags & RIDGE_ACCUMULATE) &&
        problem->dim[2] > 2 * plan.lead_classes && plan.rows_in_dw > 0)
        plan.aliased = tokens;
    plan.dx_splits[0] = plan.dx_splits[1] = dx_splits_of(q, device, problem, tokens, PARTIAL);
    plan.area = (plan.aliased ? aliased_bytes(problem, &plan, tokens) : chunk_bytes(problem, tokens)) +
                partial_bytes(problem, tokens, plan.dx_splits[0]);
    plan.area = ridge_round_up(ridge_max(plan.area, CE_FREQUENT_BYTES(problem->dim[1]) * all), ALIGN);
    return plan;
}

static int64_t bytes_of(const ce_products *q, const ridge_device *device, const ridge_problem *problem,
                        const ce_plan *plan)
{
    ce_chunk c = {};
    ce_area space = {};

    return ce_plan_layout(q, &c, &space, device, problem, plan, NULL);
}

ce_plan ce_plan_of(const ce_products *q, const ridge_device *device, const ridge_problem *problem, bool small,
                   int64_t bytes)
{
    ce_plan usual = {}, larger;

    if (problem->op == RIDGE_LINEAR_CE_EVAL) { /* u of the sample, with four splits of k */
        if (q->ordered && ce_wants_top(problem))
            usual.area = 4 * 4 * CE_SAMPLE_CLASSES * ridge_min(ridge_round_up(problem->dim[0], 128), CE_TOP_ROWS);
        return usual;
    }
    if (problem->flags & RIDGE_CE_PHASE)
        return plan_of_phases(q, device, problem);
    usual = choose(q, device, problem, small, 0);
    if (bytes <= ridge_max(bytes_of(q, device, problem, &usual), small ? 0 : usual_bytes(problem)))
        return usual;
    larger = choose(q, device, problem, small, bytes);
    return bytes_of(q, device, problem, &larger) <= bytes ? larger : usual;
}

static void *take(char **at, int64_t bytes)
{
    return ridge_take(at, ridge_round_up(bytes, ALIGN));
}

/* Sets the pointers; from NULL on it only counts. Returns the bytes. */
int64_t ce_plan_layout(const ce_products *q, ce_chunk *c, ce_area *space, const ridge_device *device,
                       const ridge_problem *problem, const ce_plan *plan, void *workspace)
{
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    char *at = ce_layout(&c->p, problem, q->parts(device, problem), workspace);

    if (problem->op == RIDGE_LINEAR_CE_EVAL) {
        if (q->ordered && (ce_wants_top(problem) || ce_wants_sample(problem) || ce_may_order_ids(problem)))
            space->chunk = take(&at, ridge_round_up(ridge_min(tokens, CE_TOP_ROWS), 128) * hidden * 2);
        if (q->ordered && ce_may_order_ids(problem)) {
            const int64_t ids = ridge_min(tokens, CE_TOP_ROWS) * CE_MOST_IDS; /* a problem does not know its number */

            c->p.id_order = (int2 *)take(&at, ids * 8);
            c->p.id_z = (float *)take(&at, ids * 4);
        }
        if (plan->area)
            space->sample = take(&at, plan->area);
        return (int64_t)((uintptr_t)at - (uintptr_t)workspace);
    }
    c->exponent = (float *)take(&at, tokens * 4);
    c->factor = (float *)take(&at, tokens * 4);
    c->lse = (double *)take(&at, tokens * 8);
    c->mix = (float2 *)take(&at, tokens * 8);
    c->target_du = (float *)take(&at, tokens * 4);
    c->next_row = (int32_t *)take(&at, tokens * 4);
    c->frequent = (int32_t *)take(&at, tokens / (CE_FREQUENT + 1) * 4);
    c->class_rows = (int2 *)take(&at, vocab * 8);
    c->class_chain = (int32_t *)take(&at, vocab * 4);
    c->progress = (uint64_t *)take(&at, 2 * CE_PROGRESS_COUNTERS(vocab) * 8);
    if (problem->op == RIDGE_LINEAR_CE_BACKWARD && problem->dtype[RIDGE_LINEAR_CE_BACKWARD_DENTROPY] != RIDGE_NONE)
        c->bend = (float4 *)take(&at, (tokens + 1) * 16);
    if (!ce_needs_stats(problem->op)) { /* only ops with sums have parts */
        c->p.part = NULL;
        c->p.parts = 1;
    }
    space->chunk = take(&at, plan->area);
    if (plan->spare)
        space->spare = (uint16_t *)take(&at, 2 * vocab * hidden);
    return (int64_t)((uintptr_t)at - (uintptr_t)workspace);
}

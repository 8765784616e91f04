/* workspace_sm90.cu: how a call of the linear cross entropy on Hopper is cut into chunks, and what lies where in its
 * workspace.
 *
 * Every chunk but one reads and writes all of dW, so there should be few. Where dW is [vocab, hidden] and not added to,
 * its own memory holds P^T of the first chunk until it is written: that of 2 hidden tokens (hidden, if dW is of 16
 * bits), and the workspace that of some more. The others are as large as the workspace allows, and of whole tiles. dW
 * of 16 bits may have as much of the workspace as it takes itself, each with P^T of hidden tokens at first; if there
 * are several chunks nevertheless, its f32 sum lies in both. So it is rounded once.
 *
 * The workspace: what ce_place needs, numbers of each token and class, an area of which every chunk makes its own use:
 * n_r x, sums of common targets, P^T, dX in pieces; and as much as dW takes, whose row 0 follows the area's end, so
 * that row v of the first chunk's P^T lies `ahead` rows before its row v. */
#include "linear_sm90.cuh"

static int64_t down(int64_t x, int64_t step)
{
    return x / step * step;
}

enum { HIGH = G16_CLUSTER * G16_M, ROUNDING = 1024, PARTIAL = 44000000 }; /* the last: bytes for dX in pieces */

static int dx_slot(uint32_t op)
{
    return op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;
}

static uint32_t dw_dtype(const ridge_problem *problem)
{
    return problem->op == RIDGE_LINEAR_CE_EVAL ? (uint32_t)RIDGE_NONE : problem->dtype[dx_slot(problem->op) + 1];
}

static int64_t partial_bytes(const ridge_problem *problem, int64_t rows, int pieces)
{
    return pieces > 1 ? rows * problem->dim[1] * 4 * pieces : 0;
}

/* Pieces of the vocabulary that keep all clusters busy with dX, where it has few tiles and dW is not made meanwhile: as
 * few as come within 7 % of that, and within so many bytes. */
static int pieces_of(const ridge_device *device, const ridge_problem *problem, int64_t rows, int64_t bytes)
{
    const int64_t clusters = device->units / G16_CLUSTER;
    const int64_t items = ce_up(rows, HIGH) / HIGH * (ce_up(problem->dim[1], G16_N) / G16_N);
    int best = 1;
    double best_use = 0;

    if (problem->dtype[dx_slot(problem->op)] == RIDGE_NONE)
        return 1;
    for (int pieces = 1; pieces <= 8 && problem->dim[2] / pieces >= 1024 && best_use < 0.93; pieces++) {
        const double use = (double)(items * pieces) / (double)ce_up(items * pieces, clusters);

        if (use > best_use + 0.001 && partial_bytes(problem, rows, pieces) <= bytes) {
            best = pieces;
            best_use = use;
        }
    }
    return best;
}

/* Classes of dW whose place holds no P^T: some waves of tiles, which clusters make while others still have dX, and at
 * least a bundle; in no more than half of the area. */
static int ahead_of(bool small, int64_t inside, int64_t room)
{
    int64_t classes = small ? CE_BUNDLE : 4 * CE_BUNDLE;

    while (classes > CE_BUNDLE && 2 * classes * inside > room / 2)
        classes /= 2;
    return (int)classes;
}

/* Bytes of the area for a row of a chunk: n_r x and its share of the sums of common targets. */
static int64_t row_bytes(const ridge_problem *problem)
{
    return 2 * problem->dim[1] + CE_SUMS(problem->dim[1]);
}

/* Bytes of the area: of a chunk in the workspace, and of one that lies in dW too. */
static int64_t chunk_bytes(const ridge_problem *problem, int64_t rows)
{
    return (row_bytes(problem) + ce_most(2 * problem->dim[2], 4 * CE_SAMPLE)) *
           ce_up(rows, 128); /* P^T, or u of the sample */
}

static int64_t overlaid_bytes(const ridge_problem *problem, const ce_plan *plan, int64_t rows)
{
    const int64_t all = ce_up(rows, 128), inside = ce_least(all, plan->inside),
                  beside = ce_least(all - inside, plan->beside);

    return row_bytes(problem) * all + 2 * plan->ahead * (inside + (beside > 0 ? problem->dim[1] : 0)) +
           2 * problem->dim[2] * (all - inside - beside);
}

/* As many rows as such an area has room for. */
static int64_t overlaid_rows(const ridge_problem *problem, const ce_plan *plan, int64_t room)
{
    const int64_t row = row_bytes(problem), inside = plan->inside + plan->beside;
    const int64_t full = overlaid_bytes(problem, plan, inside),
                  less = plan->beside > 0 ? 2 * plan->ahead * problem->dim[1] : 0;

    if (room < full)
        return ce_least(down(ce_most(room - less, 0) / (row + 2 * plan->ahead), 128), inside);
    return inside + down((room - full) / (row + 2 * problem->dim[2]), 128);
}

/* Beside the last chunk of several there lie sums of common targets of all rows, where it is summed. */
static int64_t late_bytes(const ridge_problem *problem, const ce_plan *plan)
{
    return plan->beyond ? CE_SUMS(problem->dim[1]) * ce_up(problem->dim[0], 128) : 0;
}

/* The first chunk in dW's memory, if that leaves fewer chunks; the others as large as there is room for. */
static void cut(const ridge_device *device, const ridge_problem *problem, ce_plan *plan, bool overlay, int64_t room)
{
    const int64_t tokens = problem->dim[0], left_room = room - late_bytes(problem, plan);
    const int64_t rows = ce_most(down(left_room / chunk_bytes(problem, 1) * 128, 128), 128);
    const int64_t first = overlay ? overlaid_rows(problem, plan, room) : 0;
    int64_t chunks = 0, left;

    if (rows >= tokens) {
        plan->chunk = ce_up(tokens, 128);
        return;
    }
    plan->chunk = rows;
    if (first >= tokens) {
        plan->overlaid = tokens;
    } else {
        left = tokens - first;
        chunks = (left + rows - 1) / rows;
        plan->chunk = ce_up((left + chunks - 1) / chunks, 128);
        if (ce_up(plan->chunk, HIGH) <= rows)
            plan->chunk = ce_up(plan->chunk, HIGH);
        plan->overlaid = first < 128 ? 0 : ce_most(tokens - chunks * plan->chunk, 0);
    }
    if (plan->overlaid)
        plan->pieces[1] =
            pieces_of(device, problem, plan->overlaid, room - overlaid_bytes(problem, plan, plan->overlaid));
}

/* Bytes before the area. */
static int64_t fixed_bytes(const ridge_device *device, const ridge_problem *problem, const ce_plan *plan)
{
    ce_chunk c = {};
    ce_area space = {};
    ce_plan none = *plan;

    none.area = 0;
    return ce_plan_place(&c, &space, device, problem, &none, (void *)1024) + 4 * ROUNDING;
}

/* What a call may take if its caller does not say: targets of linear_ce. */
static int64_t usual_bytes(const ridge_problem *problem)
{
    const int64_t vocab = problem->dim[2], half = 2 * vocab * problem->dim[1];

    return ce_most(INT64_C(300000000), 2048 * vocab + 16000000) +
           (dw_dtype(problem) == RIDGE_NONE || dw_dtype(problem) == RIDGE_F32 ? 0 : half);
}

/* One way to do it. bytes: of the workspace, 0 = as many as are usual. */
static ce_plan plan_with(const ridge_device *device, const ridge_problem *problem, bool small, bool beyond,
                         int64_t bytes)
{
    const uint32_t dw = dw_dtype(problem);
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    ce_plan plan = {};
    int64_t room;
    bool overlay;

    plan.beyond = beyond;
    plan.pieces[0] = plan.pieces[1] = 1;
    plan.inside = down(dw == RIDGE_F32 ? 2 * hidden : hidden, 128);
    plan.beside = beyond ? plan.inside : 0;
    room = (bytes ? bytes : usual_bytes(problem)) - fixed_bytes(device, problem, &plan);
    plan.ahead = ahead_of(small, ce_least(plan.inside + plan.beside, ce_up(tokens, 128)), room);
    if (small && !bytes)
        room = ce_most(overlaid_bytes(problem, &plan, ce_least(plan.inside + plan.beside + 128, tokens)),
                       chunk_bytes(problem, 128) + late_bytes(problem, &plan));
    overlay = dw != RIDGE_NONE && !(problem->flags & (RIDGE_ACCUMULATE | RIDGE_CE_W_HV)) && vocab > 2 * plan.ahead &&
              plan.inside > 0;
    if (small && !bytes && !overlay)
        room = chunk_bytes(problem, 128) + late_bytes(problem, &plan);
    if (dw == RIDGE_NONE && room > 2 * PARTIAL)
        room -= PARTIAL;
    cut(device, problem, &plan, overlay, room);
    if (dw == RIDGE_NONE)
        plan.pieces[0] = pieces_of(device, problem, plan.chunk, PARTIAL);
    plan.area = plan.overlaid ? overlaid_bytes(problem, &plan, plan.overlaid) +
                                    partial_bytes(problem, plan.overlaid, plan.pieces[1])
                              : 0;
    if (plan.overlaid < tokens)
        plan.area = ce_most(plan.area, chunk_bytes(problem, plan.chunk) + late_bytes(problem, &plan) +
                                           partial_bytes(problem, plan.chunk, plan.pieces[0]));
    plan.area =
        ce_up(ce_most(plan.area, CE_SUMS(hidden) * ce_up(tokens, 128)), ROUNDING); /* at last those of all rows */
    return plan;
}

static bool one_chunk(const ridge_problem *problem, const ce_plan *plan)
{
    return plan->overlaid >= problem->dim[0] || (!plan->overlaid && plan->chunk >= problem->dim[0]);
}

/* The usual plan, or that of so many bytes. */
static ce_plan choose(const ridge_device *device, const ridge_problem *problem, bool small, int64_t bytes)
{
    const uint32_t dw = dw_dtype(problem);
    const bool half = dw != RIDGE_NONE && dw != RIDGE_F32;
    ce_plan plan = plan_with(device, problem, small, half && (problem->flags & RIDGE_CE_W_HV), bytes);

    if (half && !plan.beyond && !one_chunk(problem, &plan))
        plan = plan_with(device, problem, small, true, bytes);
    plan.sums = plan.beyond && ((problem->flags & RIDGE_CE_W_HV) || !one_chunk(problem, &plan));
    return plan;
}

static int64_t bytes_of(const ridge_device *device, const ridge_problem *problem, const ce_plan *plan)
{
    ce_chunk c = {};
    ce_area space = {};

    return ce_plan_place(&c, &space, device, problem, plan, (void *)1024);
}

ce_plan ce_plan_of(const ridge_device *device, const ridge_problem *problem, bool small, int64_t bytes)
{
    ce_plan usual = {}, larger;

    if (problem->op == RIDGE_LINEAR_CE_EVAL)
        return usual;
    usual = choose(device, problem, small, 0);
    if (bytes <= ce_most(bytes_of(device, problem, &usual), small ? 0 : usual_bytes(problem)))
        return usual;
    larger = choose(device, problem, small, bytes);
    return bytes_of(device, problem, &larger) <= bytes ? larger : usual;
}

static void *take(char **at, int64_t bytes)
{
    void *piece = *at;

    *at += ce_up(bytes, ROUNDING);
    return piece;
}

/* Sets the pointers; from 1024 it only counts. Returns the bytes. */
int64_t ce_plan_place(ce_chunk *c, ce_area *space, const ridge_device *device, const ridge_problem *problem,
                      const ce_plan *plan, void *workspace)
{
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    char *at = ce_place(&c->p, problem, ce_product_splits(device, problem), workspace);

    if (problem->op == RIDGE_LINEAR_CE_EVAL)
        return at - (char *)workspace;
    c->exponent = (float *)take(&at, tokens * 4);
    c->factor = (float *)take(&at, tokens * 4);
    c->lse = (double *)take(&at, tokens * 8);
    c->mix = (float2 *)take(&at, tokens * 8);
    c->at_target = (float *)take(&at, tokens * 4);
    c->next = (int32_t *)take(&at, tokens * 4);
    c->common = (int32_t *)take(&at, tokens / (CE_COMMON + 1) * 4);
    c->same = (int2 *)take(&at, vocab * 8);
    c->chain = (int32_t *)take(&at, vocab * 4);
    c->turns = (uint64_t *)take(&at, CE_TURNS(vocab) * 8);
    if (!ce_needs_stats(problem->op)) { /* parts are only there for the ops that have sums */
        c->p.part = NULL;
        c->p.splits = 1;
    }
    space->area = take(&at, plan->area);
    if (plan->beyond)
        space->rest = (uint16_t *)take(&at, 2 * vocab * hidden);
    return at - (char *)workspace;
}

/* linear_sm90.cu: the products of the linear cross entropy on Hopper (linear_sm90.cuh): tensor maps, launches, and the
 * kernel rows of linear_ce_eval, linear_ce_train and linear_ce_backward. linear_chunks.cu has the call. */
#include "linear_sm90.cuh"
#include "phase.h"

/* ------------------------------------------------------------------------------------------------- tensor maps */

/* A matrix [lines, length] of 16-bit elements; boxes of 64 x `box` lines. */
static ridge_status map_of(const ce_job *j, CUtensorMap *map, const void *base, int64_t length, int64_t lines,
                           int64_t stride, int box)
{
    return host_tensor_map(j->device, map, j->c.p.dtype, base, length, lines, stride, 64, box, 128);
}

static ridge_status x_maps(const ce_job *j, ce_logits_args *g)
{
    const ce_params *p = &j->c.p;
    ridge_status status = map_of(j, &g->x[0], p->x, p->hidden, p->tokens, p->x_stride, 128);

    if (status)
        return status;
    return j->c.x_compact
               ? map_of(j, &g->x[1], j->c.x_compact, p->hidden, ridge_round_up(j->c.rows, 128), p->hidden, 128)
               : map_of(j, &g->x[1], p->x, p->hidden, p->tokens, p->x_stride, 1); /* to be gathered */
}

/* n classes of W, `step` apart, as B of the logits: the half of block_n that a CTA loads, see gemm16_load_half. */
static ridge_status w_map(const ce_job *j, ce_logits_args *g, int64_t n, int64_t step, bool pingpong)
{
    const ce_params *p = &j->c.p;

    return p->hv ? map_of(j, &g->w, p->w, n, p->hidden, p->w_stride, pingpong ? G16_BLOCK_K / 2 : G16_BLOCK_K)
                 : map_of(j, &g->w, p->w, p->hidden, n, p->w_stride * step,
                          (pingpong ? G16_PINGPONG_N : G16_COOP_N) / G16_CLUSTER);
}

/* The segments of P^T; `box` classes a box. */
static ridge_status probs_maps(const ce_job *j, CUtensorMap *map, int box)
{
    const ce_probs *q = &j->c.probs;
    const int64_t vocab = j->c.p.vocab, rows = ridge_round_up(j->c.rows, 128), row2 = ridge_min(rows, q->row2);
    const int64_t row3 = ridge_min(rows, q->row3);
    ridge_status status = map_of(j, &map[0], q->data[0], row2, ridge_min(q->class1, vocab), q->ld[0], box);

    if (!status && q->class1 < vocab)
        status = map_of(j, &map[1], q->data[1], row2, vocab - q->class1, q->ld[1], box);
    if (!status && row2 < row3)
        status = map_of(j, &map[2], q->data[2], row3 - row2, vocab, q->ld[2], box);
    if (!status && row3 < rows)
        status = map_of(j, &map[3], q->data[3], rows - row3, vocab, q->ld[3], box);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ products */

static ridge_status sample(ce_job *j)
{
    const ce_params *p = &j->c.p;
    const int64_t rows = j->c.rows, pairs = ridge_ceil_div(rows, G16_CLUSTER * G16_BLOCK_M);
    const int64_t blocks = ridge_ceil_div(p->hidden, G16_BLOCK_K), most = j->plan.area / (4 * CE_SAMPLE_CLASSES * rows);
    ce_logits_args g = {};
    ridge_status status;
    int64_t splits;

    splits = ridge_max(ridge_min(ridge_min(j->device->units / G16_CLUSTER / pairs, 16), most), 1);
    j->c.sample_splits = (int)ridge_ceil_div(blocks, ridge_ceil_div(blocks, splits)); /* none is empty */
    g.c = j->c;
    g.n = j->c.sample_classes;
    g.k = (int)p->hidden;
    g.bundle = (int)pairs;
    g.splits = j->c.sample_splits;
    status = x_maps(j, &g);
    if (!status)
        status = w_map(j, &g, j->c.sample_classes, j->c.sample_stride, false);
    return status ? status : ce_logits_launch(j->device, j->name, CE_SAMPLE, &g, j->stream);
}

/* what: CE_STATS, CE_STATS_GATHER, CE_STATS_TOP, CE_STATS_DRAW or CE_PROBS. */
static ridge_status product(const ce_job *j, int what, bool sums)
{
    const ce_params *p = &j->c.p;
    const bool picks = what == CE_STATS_TOP || what == CE_STATS_DRAW;
    ce_logits_args g = {};
    const bool bends = what == CE_PROBS && p->dentropy;
    ridge_status status;
    bool options;

    g.c = j->c;
    g.n = (int)p->vocab;
    g.k = (int)p->hidden;
    g.bundle = G16_BUNDLE;
    g.splits = 1;
    g.sums = sums;
    g.mixed = p->smoothing != 0.0f;
    g.only_top = ce_has_more(p) || (what == CE_STATS_DRAW && p->top_k > 0); /* the sums come from another product */
    const bool spread = what != CE_PROBS && p->full && !ce_has_more(p) && !ce_has_options(p);
    options = ce_has_options(p) || (what == CE_PROBS ? g.mixed : p->full && !(spread && what == CE_STATS));
    if (what == CE_STATS_GATHER && options && !spread)
        return RIDGE_OK; /* the kernels with options gather rows themselves */
    g.only_gathers = what == CE_STATS_GATHER;
    status = x_maps(j, &g);
    if (!status && what == CE_PROBS)
        status = probs_maps(j, g.store, options ? G16_COOP_N / 2 : G16_PINGPONG_N / 2);
    if (options && !picks)
        what = bends              ? CE_PROBS_OPTIONS_BEND
               : what == CE_PROBS ? CE_PROBS_OPTIONS
               : ce_has_more(p)   ? CE_STATS_OPTIONS
                                  : CE_STATS_TOP;
    else if (bends)
        what = CE_PROBS_BEND;
    else if (spread && !picks)
        what = CE_STATS_SPREAD;
    if (what != CE_STATS_GATHER && what != CE_PROBS && !picks && p->id_order) {
        status = status ? status : w_map(j, &g, p->vocab, 1, true);
        return status ? status : ce_logits_launch(j->device, j->name, CE_STATS_IDS, &g, j->stream);
    }
    if (what == CE_STATS_TOP && !p->bias && p->softcap == 0.0f && !g.only_gathers) {
        status = status ? status : w_map(j, &g, p->vocab, 1, true);
        if (!status)
            status = ce_logits_launch(j->device, j->name, CE_STATS_TOP_PLAIN, &g, j->stream);
        if (status || j->c.x_compact)
            return status;
        g.only_gathers = 1; /* only the device knows which of the two has work */
    }
    if (!status)
        status = w_map(j, &g, p->vocab, 1, ce_is_pingpong(what));
    return status ? status : ce_logits_launch(j->device, j->name, what, &g, j->stream);
}

/* The sums of rows over all classes, or P^T. CE_STATS_TOP and CE_STATS_DRAW give all that CE_STATS_SPREAD gives; other
 * outputs are a product of their own. */
static ridge_status logits(const ce_job *j, int what, bool sums)
{
    const bool top = j->c.p.top_k > 0, draw = j->c.p.draw != NULL;
    ridge_status status = top ? product(j, CE_STATS_TOP, false) : RIDGE_OK;

    if (!status && draw)
        status = product(j, CE_STATS_DRAW, false);
    if (status || ((top || draw) && !ce_has_more(&j->c.p)) || (top && j->c.if_redo))
        return status;
    status = product(j, what, sums);

    /* only the device knows which of the two has work */
    return status || what == CE_PROBS || j->c.x_compact ? status : product(j, CE_STATS_GATHER, false);
}

static ridge_status dx_maps(const ce_job *j, ce_grads_args *g)
{
    const ce_params *p = &j->c.p;
    ridge_status status = probs_maps(j, g->dx_probs, 64);

    if (status)
        return status;
    return p->hv ? map_of(j, &g->dx_w, p->w, p->vocab, p->hidden, p->w_stride, G16_COOP_N / G16_CLUSTER)
                 : map_of(j, &g->dx_w, p->w, p->hidden, p->vocab, p->w_stride, 64);
}

static ridge_status dw_maps(const ce_job *j, ce_grads_args *g)
{
    const ce_params *p = &j->c.p;
    const int64_t rows = ridge_round_up(j->c.rows, 128);
    const int half = ce_dw_block_m(p->dtype, p->dw_dtype) / G16_CLUSTER;
    ridge_status status = map_of(j, &g->dw_x_scaled, j->c.x_scaled, p->hidden, rows, p->hidden,
                                 p->hv && half % 64 ? G16_BLOCK_K / 2 : G16_BLOCK_K);

    return status ? status : probs_maps(j, g->dw_probs, p->hv ? (int)G16_1X2_N : half);
}

static ridge_status grads(const ce_job *j, ce_grads *g)
{
    ce_grads_args a = {};
    ridge_status status = RIDGE_OK;

    a.c = g->c;
    a.dx = g->dx;
    a.dw = g->dw;
    a.dw_at = g->dw_at;
    a.dw_dtype = g->dw_dtype;
    a.reads = g->reads;
    a.writes = g->writes;
    a.targets = g->targets;
    if (a.dx)
        status = dx_maps(j, &a);
    if (!status && a.dw)
        status = dw_maps(j, &a);
    return status ? status : ce_grads_launch(j->device, j->name, &a, j->stream);
}

static const ce_products products = {G16_CLUSTER, true, ce_row_parts, sample, logits, grads};

/* ---------------------------------------------------------------------------------------------------------- rows */

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    return ce_chunks_run(&products, kernel->param[0], device, kernel->name, bound, workspace, bytes, stream);
}

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return ce_chunks_bytes(&products, kernel->param[0], device, problem);
}

/* Work tiles of a cluster, 256 rows each. */
static double tiles_of(int64_t rows, int64_t cols, int64_t block_n)
{
    return (double)((rows + 255) / 256) * (double)((cols + block_n - 1) / block_n);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    const bool hv = (problem->flags & RIDGE_CE_W_HV) != 0;

    if (problem->dtype[0] == RIDGE_F32)
        return "is for bf16 and f16";
    if (kernel->param[0] && (problem->flags & RIDGE_CE_PHASE))
        return "phases are of one chunk";
    if (tokens == 0 || hidden == 0)
        return "nothing to multiply";
    if (vocab < 8)
        return "is for eight classes and more";
    if (problem->align < 4 || hidden % 8 || (hv && vocab % 8))
        return "TMA needs rows of x, W, dX and dW that begin at multiples of 16 bytes";
    if (tokens > 0x3fffff00 || hidden > 0x3fffff00 || vocab > 0x3fffff00)
        return "more than 2^30 tokens, hidden units or classes";
    if (tiles_of(tokens, vocab, G16_PINGPONG_N) > 2e9 || tiles_of(tokens, hidden, G16_COOP_N) > 2e9 ||
        tiles_of(vocab, hidden, G16_1X2_N) > 2e9) /* dW's are of 128 x 256 or more */
        return "more than 2^31 tiles";
    return device->units < 2 ? "is for two multiprocessors and more" : NULL;
}

/* The products at 680 TFLOP/s of an H200 (train of .small: 1.1 times as long), or as long as W, P^T and dW take to be
 * moved, and the kernels between them: 40 us, and 210 more with gradients, 165 for .small. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool eval = problem->op == RIDGE_LINEAR_CE_EVAL;
    const double gemms = eval ? 1 : kernel->param[0] ? 3.3 : 3;
    const double tokens = (double)problem->dim[0], hidden = (double)problem->dim[1], vocab = (double)problem->dim[2];
    const double moved = 2 * hidden * (vocab + tokens) + (eval ? 0 : 6 * hidden * vocab + 4 * tokens * vocab);
    const double rate = 680e6 / 132 * (device->units / 2 * 2) * host_sm_share(device);
    const double waves = tiles_of(problem->dim[0], problem->dim[2], G16_COOP_N) / (device->units / 2);
    const double multiply = gemms * (waves < 1 ? 1 : waves) * (device->units / 2) * 131072.0 * hidden / rate;
    const double load = moved * 1e-3 / device->copy_gbps;

    return (eval ? 40 : kernel->param[0] ? 205 : 250) + (multiply > load ? multiply : load);
}

#define ROW(op_name, variant, op_id, small)                                                                       \
    {                                                                                                             \
        "cuda." op_name ".wgmma" variant, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, RIDGE_STABLE | RIDGE_CLOSE, 0, \
            {small}, why_not, workspace, cost, launch                                                             \
    }

static const ridge_kernel rows[] = {
    ROW("linear_ce_eval", "", RIDGE_LINEAR_CE_EVAL, 0),
    ROW("linear_ce_train", "", RIDGE_LINEAR_CE_TRAIN, 0),
    ROW("linear_ce_train", ".small", RIDGE_LINEAR_CE_TRAIN,
        1), /* chunks of 128 rows, or more if the workspace allows */
    ROW("linear_ce_backward", "", RIDGE_LINEAR_CE_BACKWARD, 0),
    ROW("linear_ce_backward", ".small", RIDGE_LINEAR_CE_BACKWARD, 1),
};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = ce_logits_prepare(device);

    return status ? status : ce_grads_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_ce_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

/* linear_sm90.cu: linear_ce_eval, linear_ce_train and linear_ce_backward on Hopper, bf16 and f16: the launches of a
 * call and the kernel rows. workspace_sm90.cu cuts the call into chunks, linear_sm90.cuh has the equations.
 *
 * The launches of linear_ce_train, in order. B: rows of a chunk, V: classes, H: hidden units. SMs: a persistent kernel
 * of at most as many CTAs, of 384 threads, in clusters of two; the other kernels have CTAs of 256 threads (begin: 512).
 *
 *     kernel                     grid        reads                    writes                         when
 *     -- once a call
 *     ce_begin_kernel            <= 133      target, class_weight     totals, list, label, part      always
 *     ce_logits_coop<SAMPLE>     SMs         x, 256 rows of W         sample_u                       predicted
 *     predict_exponent           tokens/8    sample_u, bias           exponent, part                 predicted
 *     -- each chunk
 *     gather_x                   B           x, list                  x_compact; counters            always; +
 *     ce_logits_pingpong<PROBS>  SMs         x, W, exponent           P^T, part, target_z            predicted
 *     check_exponent             B/8         part, target_z           lse, factor, target_du, redo   predicted
 *     -- exponents from lse: if `redo` is set (else each returns at once), or the only way
 *     reset_parts                B/8                                  part                           predicted
 *     ce_logits_pingpong<STATS>  SMs         x, W                     part, target_z                 lse is not given
 *     exponent_from_lse          B/8         part or lse              exponent, mix, factor, lse     always
 *     ce_logits_pingpong<PROBS>  SMs         x, W, exponent, mix      P^T, target_z                  always
 *     -- each chunk, continued
 *     scale_x                    B           x, factor                x_scaled, P^T targets, links   always
 *     link_targets, sum_frequent B/8; *      links, x, target_du      links, frequent_sums           16-bit dW, 1 chunk
 *     dbias                      V/8         P^T, factor              dbias                          dbias is wanted
 *     ce_grads_kernel            SMs         P^T, W, x_scaled, factor dX or partial sums, dW or sum  always
 *     reduce_dx                  B           dx_partial, factor, W    dX                             dX has split-K
 *     -- once a call, at the end (with an f32 sum of dW the targets come before the last ce_grads_kernel)
 *     link_targets, sum_frequent tokens/8; * links, x, target_du      links, frequent_sums           not yet
 *     targets_to_dw              tokens; H   frequent_sums, links, x  dW or sum, dbias               not yet, or dbias
 *     round_dw                   V/8         f32 sum                  dW                             f32 sum; ++
 *     ce_other                   tokens/8    target                   dX                             rows not listed
 *     ce_finish_kernel           tokens/32   part, target_z           every output by token          always
 *
 * +: x_compact only if rows are ignored. ++: only if the last chunk turned out to have no rows, or was the only one.
 * *: frequent targets by slices of 256 hidden units. Exponents are predicted unless lse is given (linear_ce_backward)
 * or an output or option needs it first: label smoothing, entropy, argmax, accuracy. With bias, softcap or temperature
 * (and PROBS from lse with smoothing or z-loss) ce_logits_coop<.._OPTIONS> stands for ce_logits_pingpong.
 * linear_ce_eval is begin, STATS, STATS_GATHER and finish: rows are gathered by TMA where some are ignored, and only
 * the device knows which of the two has work. */
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

/* A matrix [lines, length] of 16-bit elements; boxes of 64 x `box` lines. */
static ridge_status map_of(const linear_job *j, CUtensorMap *map, const void *base, int64_t length, int64_t lines,
                           int64_t stride, int box)
{
    return host_tensor_map(j->device, map, j->c.p.dtype, base, length, lines, stride, 64, box, 128);
}

static ridge_status x_maps(const linear_job *j, ce_logits_args *g)
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
static ridge_status w_map(const linear_job *j, ce_logits_args *g, int64_t n, int64_t step, bool pingpong)
{
    const ce_params *p = &j->c.p;

    return p->hv ? map_of(j, &g->w, p->w, n, p->hidden, p->w_stride, pingpong ? G16_BLOCK_K / 2 : G16_BLOCK_K)
                 : map_of(j, &g->w, p->w, p->hidden, n, p->w_stride * step,
                          (pingpong ? G16_PINGPONG_N : G16_COOP_N) / G16_CLUSTER);
}

/* The segments of P^T; `box` classes a box. */
static ridge_status probs_maps(const linear_job *j, CUtensorMap *map, int box)
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

static ridge_status row_kernel(linear_job *j, int which)
{
    return ce_row_launch(j->device, j->name, which, &j->c, j->stream);
}

static bool has_options(const ce_params *p)
{
    return p->bias || p->softcap > 0.0f || p->temperature != 1.0f;
}

/* Predicts the exponents of tokens [begin, begin + rows), ignored ones too, from u of every sample_stride-th class. */
static ridge_status sample(linear_job *j, int64_t begin, int64_t rows)
{
    const ce_params *p = &j->c.p;
    const int64_t pairs = ridge_ceil_div(rows, G16_CLUSTER * G16_BLOCK_M);
    const int64_t blocks = ridge_ceil_div(p->hidden, G16_BLOCK_K), most = j->plan.area / (4 * CE_SAMPLE_CLASSES * rows);
    ce_logits_args g = {};
    ridge_status status;
    int64_t splits;

    j->c.begin = begin;
    j->c.rows = rows;
    j->c.x_compact = NULL;
    j->c.sample_classes = (int)ridge_min(CE_SAMPLE_CLASSES, p->vocab);
    j->c.sample_stride = p->hv ? 1 : (int)(p->vocab / j->c.sample_classes);
    j->c.sample_u = (float *)j->space.chunk;
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
    status = status ? status : ce_logits_launch(j->device, j->name, CE_SAMPLE, &g, j->stream);
    return status ? status : row_kernel(j, CE_ROW_PREDICT);
}

/* Before the first chunk, in the area of the chunks: as many tokens at once as fit. */
static ridge_status sample_all(linear_job *j)
{
    const int64_t most = j->plan.area / (4 * CE_SAMPLE_CLASSES) / 128 * 128;
    ridge_status status = RIDGE_OK;

    for (int64_t begin = 0; begin < j->c.p.tokens && !status; begin += most)
        status = sample(j, begin, ridge_min(most, j->c.p.tokens - begin));
    return status;
}

/* what: CE_STATS, CE_STATS_GATHER or CE_PROBS. */
static ridge_status logits(linear_job *j, int what, bool sums)
{
    const ce_params *p = &j->c.p;
    ce_logits_args g = {};
    ridge_status status;
    bool options;

    g.c = j->c;
    g.n = (int)p->vocab;
    g.k = (int)p->hidden;
    g.bundle = G16_BUNDLE;
    g.splits = 1;
    g.sums = sums;
    g.mixed = (j->c.lse_known || j->c.if_redo) && (p->smoothing != 0.0f || p->square_scale != 0.0f);
    options = has_options(p) || (what == CE_PROBS ? g.mixed : p->full);
    if (what == CE_STATS_GATHER && options)
        return RIDGE_OK; /* CE_STATS_OPTIONS gathers rows itself */
    status = x_maps(j, &g);
    if (!status && what == CE_PROBS)
        status = probs_maps(j, g.store, options ? G16_COOP_N / 2 : G16_PINGPONG_N / 2);
    if (options)
        what = what == CE_PROBS ? CE_PROBS_OPTIONS : CE_STATS_OPTIONS;
    if (!status)
        status = w_map(j, &g, p->vocab, 1, ce_is_pingpong(what));
    return status ? status : ce_logits_launch(j->device, j->name, what, &g, j->stream);
}

static ridge_status dx_maps(const linear_job *j, ce_grads_args *g)
{
    const ce_params *p = &j->c.p;
    ridge_status status = probs_maps(j, g->dx_probs, 64);

    if (status)
        return status;
    return p->hv ? map_of(j, &g->dx_w, p->w, p->vocab, p->hidden, p->w_stride, G16_COOP_N / G16_CLUSTER)
                 : map_of(j, &g->dx_w, p->w, p->hidden, p->vocab, p->w_stride, 64);
}

static ridge_status dw_maps(const linear_job *j, ce_grads_args *g)
{
    const ce_params *p = &j->c.p;
    const int64_t rows = ridge_round_up(j->c.rows, 128);
    const int half = ce_dw_block_m(p->dtype, p->dw_dtype) / G16_CLUSTER;
    ridge_status status = map_of(j, &g->dw_x_scaled, j->c.x_scaled, p->hidden, rows, p->hidden,
                                 p->hv && half % 64 ? G16_BLOCK_K / 2 : G16_BLOCK_K);

    return status ? status : probs_maps(j, g->dw_probs, p->hv ? (int)G16_1X2_N : half);
}

/* A 16-bit dW of one chunk is rounded at once: its epilogue adds the targets' du. Else they are added at the end. */
static bool targets_at_end(const linear_job *j)
{
    return !j->c.p.dw || j->c.p.dw_dtype == RIDGE_F32 || j->plan.f32_sum;
}

/* The last of several chunks rounds the f32 sum: the targets of all rows are added before it. */
static bool rounds_sum(const linear_job *j)
{
    return j->plan.f32_sum && j->c.begin > 0 && j->c.begin + j->c.rows >= j->c.p.tokens;
}

/* dX and dW. */
static ridge_status gradients(linear_job *j, bool add)
{
    ce_grads_args g = {};
    ridge_status status = RIDGE_OK;

    g.c = j->c;
    g.dx = j->c.p.dx != NULL;
    g.dw = j->c.p.dw != NULL;
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
    if (g.dx)
        status = dx_maps(j, &g);
    if (!status && g.dw)
        status = dw_maps(j, &g);
    status = status ? status : ce_grads_launch(j->device, j->name, &g, j->stream);
    return status || !g.dx || j->c.dx_splits == 1 ? status : row_kernel(j, CE_ROW_REDUCE_DX);
}

/* ------------------------------------------------------------------------------------------------------ a chunk */

/* The sums of rows over all classes. */
static ridge_status stats(linear_job *j)
{
    ridge_status status = logits(j, CE_STATS, false);

    /* only the device knows which of the two has work */
    return status || j->c.x_compact ? status : logits(j, CE_STATS_GATHER, false);
}

/* P^T from predicted exponents; and again from lse if the device finds one of them bad. */
static ridge_status probs_predicted(linear_job *j)
{
    ridge_status status = logits(j, CE_PROBS, true);

    status = status ? status : row_kernel(j, CE_ROW_CHECK);
    j->c.if_redo = 1;
    status = status ? status : row_kernel(j, CE_ROW_RESET);
    status = status ? status : stats(j);
    status = status ? status : row_kernel(j, CE_ROW_FROM_LSE);
    status = status ? status : logits(j, CE_PROBS, false);
    j->c.if_redo = 0;
    return status;
}

static ridge_status probs_from_lse(linear_job *j)
{
    ridge_status status = j->c.p.lse_in ? RIDGE_OK : stats(j);

    status = status ? status : row_kernel(j, CE_ROW_FROM_LSE);
    return status ? status : logits(j, CE_PROBS, false);
}

/* The layout of a chunk's area, and the segments of its P^T (ce_probs). */
static void lay_out(linear_job *j, int64_t rows, bool aliased)
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
static ridge_status all_targets(linear_job *j)
{
    static const ce_dw none = {};
    const ce_params *p = &j->c.p;
    const bool f32 = p->dw_dtype == RIDGE_F32;
    linear_job all = *j;
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

static ridge_status chunk(linear_job *j, int64_t begin, int64_t rows, bool aliased)
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
static ridge_status finish_dw(linear_job *j)
{
    ridge_status status = RIDGE_OK;

    if ((j->c.p.dw || j->c.p.dbias) && !rounds_sum(j))
        status = all_targets(j);
    if (status || !j->plan.f32_sum)
        return status;
    return ce_round_dw_launch(j->device, j->name, &j->c, &j->dw, !rounds_sum(j), j->stream);
}

/* All rows at once. */
static ridge_status eval(linear_job *j)
{
    j->c.rows = j->c.p.tokens;
    return stats(j);
}

static ridge_status all_chunks(linear_job *j)
{
    ridge_status status = j->c.lse_known ? RIDGE_OK : sample_all(j);
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

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    linear_job j = {};
    ce_params *p = &j.c.p;
    ridge_status status;

    j.device = device;
    j.name = kernel->name;
    j.stream = stream;
    *p = ce_collect(bound);
    j.plan = ce_plan_of(device, problem, kernel->param[0], (int64_t)bytes);
    ce_plan_layout(&j.c, &j.space, device, problem, &j.plan, workspace);
    j.c.lse_known = p->lse_in || p->full || p->smoothing != 0.0f;
    j.dw = {(uint16_t *)p->dw, j.space.spare, p->dw_stride, p->hv ? p->vocab : p->hidden};
    status = ce_begin(device, j.name, p, stream);
    if (!status)
        status = p->op == RIDGE_LINEAR_CE_EVAL ? eval(&j) : all_chunks(&j);
    if (!status && p->dx)
        status = ce_other_rows(device, j.name, p, stream);
    return status || !ce_needs_stats(p->op) ? status : ce_finish(device, j.name, p, stream);
}

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const ce_plan plan = ce_plan_of(device, problem, kernel->param[0], 0);
    ce_chunk c = {};
    ce_area space = {};

    return (size_t)ce_plan_layout(&c, &space, device, problem, &plan, NULL);
}

/* Work tiles of a cluster, 256 rows each. */
static double tiles_of(int64_t rows, int64_t cols, int64_t block_n)
{
    return (double)((rows + 255) / 256) * (double)((cols + block_n - 1) / block_n);
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
    if (tiles_of(tokens, vocab, G16_PINGPONG_N) > 2e9 || tiles_of(tokens, hidden, G16_COOP_N) > 2e9 ||
        tiles_of(vocab, hidden, G16_1X2_N) > 2e9) /* dW's are of 128 x 256 or more */
        return "more than 2^31 tiles";
    return device->units < 2 ? "is for two multiprocessors and more" : NULL;
}

/* The products at 640 TFLOP/s, and 30 us a product for the kernels between them. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double gemms = problem->op == RIDGE_LINEAR_CE_EVAL ? 1 : kernel->param[0] ? 3.3 : 3;
    double waves = tiles_of(problem->dim[0], problem->dim[2], G16_COOP_N) / (device->units / 2);

    waves = waves < 1 ? 1 : waves;
    return 30 * gemms + gemms * waves * (device->units / 2) * 131072.0 * (double)problem->dim[1] / 640e6;
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

    status = status ? status : ce_grads_prepare(device);
    status = status ? status : ce_targets_prepare(device);
    return status ? status : ce_row_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_ce_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

/* linear_mma16.cu: linear_ce_eval, linear_ce_train and linear_ce_backward of bf16 and f16 on every device from sm_80
 * on: the products' launches (linear_mma16.cuh) and the kernel rows. linear_chunks.cu has the call, linear_mma.cu what
 * any alignment and f32 take. */
#include "linear_mma16.cuh"

enum { SAMPLE_SPLITS = 16, MOST_PARTS = 128 };

/* Parts of a row's sum: strips of classes. Eval has 8 bytes of workspace a token and SM, of which other members take 48
 * a token. */
static int parts_of(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t tiles = ridge_ceil_div(problem->dim[2], CE16_CLASSES);
    const int64_t most = problem->op == RIDGE_LINEAR_CE_EVAL ? device->units - 6 : MOST_PARTS;

    return (int)ridge_max(ridge_min(tiles, ridge_min(most, MOST_PARTS)), 1);
}

static ridge_status sample(ce_job *j)
{
    const ce_params *p = &j->c.p;
    const int64_t rows = j->c.rows, tiles = ridge_ceil_div(rows, CE16_TOKENS);
    const int64_t most = j->plan.area / (4 * CE_SAMPLE_CLASSES * rows);
    ce16_logits g = {};
    int64_t splits = ridge_max(ridge_min(ridge_min(j->device->units / tiles, SAMPLE_SPLITS), most), 1);

    g.split = (int)ridge_round_up(ridge_ceil_div(p->hidden, splits), G80_BLOCK_K);
    splits = ridge_ceil_div(p->hidden, g.split); /* none is empty */
    j->c.sample_splits = (int)splits;
    g.c = j->c;
    g.n = j->c.sample_classes;
    g.k = (int)p->hidden;
    g.strips = g.each = 1;
    g.splits = (int)splits;
    return ce16_logits_launch(j, CE16_SAMPLE, &g);
}

/* Tiles of a strip: of the numbers that give no more strips than a row's sum has parts, the one whose CTAs finish
 * first. */
static void choose_strips(const ce_job *j, ce16_logits *g)
{
    const int64_t tiles = ridge_ceil_div(g->n, CE16_CLASSES), token_tiles = ridge_ceil_div(g->c.rows, CE16_TOKENS);
    const int64_t most = g->c.p.part ? g->c.p.parts : tiles, least = ridge_ceil_div(tiles, most);
    int64_t best = INT64_MAX;

    for (int64_t each = least; each < least + 8; each++) {
        const int64_t strips = ridge_ceil_div(tiles, each);
        const int64_t time = ridge_ceil_div(strips * token_tiles, j->device->units) * each;

        if (time < best) {
            best = time;
            g->each = (int)each;
            g->strips = (int)strips;
        }
    }
}

static ridge_status logits(const ce_job *j, int what, bool sums)
{
    const ce_params *p = &j->c.p;
    ce16_logits g = {};
    bool options;

    g.c = j->c;
    g.n = (int)p->vocab;
    g.k = (int)p->hidden;
    g.splits = 1;
    g.sums = sums;
    g.mixed = p->smoothing != 0.0f;
    options = ce_has_options(p) || (what == CE_PROBS ? g.mixed : p->full);
    choose_strips(j, &g);
    if (what == CE_STATS)
        return ce16_logits_launch(j, options ? CE16_STATS_FULL : CE16_STATS, &g);
    return ce16_logits_launch(j, options || p->dentropy ? CE16_PROBS_OPTIONS : CE16_PROBS, &g);
}

static ridge_status grads(const ce_job *j, ce_grads *g)
{
    ce16_grads a = {};

    a.g = *g;
    return ce16_grads_launch(j, &a);
}

static const ce_products products = {1, false, parts_of, sample, logits, grads};

/* ---------------------------------------------------------------------------------------------------------- rows */

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    return ce_chunks_run(&products, false, device, kernel->name, bound, workspace, bytes, stream);
}

static size_t workspace(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return ce_chunks_bytes(&products, false, device, problem);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[2];
    const int64_t tile = CE16_CLASSES * CE16_TOKENS;

    if (problem->dtype[0] == RIDGE_F32)
        return "is for bf16 and f16";
    if (ce_wants_top(problem))
        return "has no top-k";
    if (ce_wants_sample(problem))
        return "draws no classes";
    if (tokens == 0 || hidden == 0)
        return "nothing to multiply";
    if (vocab < 8)
        return "is for eight classes and more";
    if (problem->align < 4 || hidden % 8 || ((problem->flags & RIDGE_CE_W_HV) && vocab % 8))
        return "cp.async needs rows of x, W, dX and dW that begin at multiples of 16 bytes";
    if (tokens > 0x3fffff00 || hidden > 0x3fffff00 || vocab > 0x3fffff00)
        return "more than 2^30 tokens, hidden units or classes";
    if (tokens * vocab / tile > 0x3fffffff || hidden / 256 * (tokens + vocab) / 128 > 0x3fffffff)
        return "more than 2^30 tiles";
    return NULL;
}

/* Three products (eval: one) at 0.79 of what mma.sync reaches from registers (eval on an H200), or as long as W, P^T
 * and dW take to be moved; and the kernels between them, 60 us, and 390 more with gradients (256 tokens; fewer
 * were not measured and count as 256). Every chunk after the first reads and writes dW's sum. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const bool eval = problem->op == RIDGE_LINEAR_CE_EVAL;
    const double cells = (double)problem->dim[1] * (double)problem->dim[2];
    const double tiles = 2 * (double)ridge_ceil_div(problem->dim[0], 2 * CE16_BLOCK_M) *
                         (double)ridge_ceil_div(problem->dim[2], CE16_BLOCK_N);
    const double waves = tiles / (device->units ? device->units : 1);
    const double macs =
        (eval ? 1 : 3) * (waves < 1 ? 1 : waves) * CE16_BLOCK_M * CE16_BLOCK_N * (double)problem->dim[1];
    const double multiply = macs / (0.79e3 * device->mma_f16 * device->clock_ghz);
    const double moved = (eval ? 2 : 8) * cells + 4 * (double)problem->dim[0] * (double)problem->dim[2];
    const double load = moved * 1e-3 / device->copy_gbps;
    const ce_plan plan = ce_plan_of(&products, device, problem, false, 0);
    const double sums = plan.chunk > 0 ? (double)ridge_ceil_div(problem->dim[0], plan.chunk) - 1 : 0;

    return (eval ? 60 : 450) + (multiply > load ? multiply : load) + sums * 8e-3 * cells / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                         \
    {                                                                                                               \
        "cuda." op_name ".mma256x128", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, RIDGE_STABLE | RIDGE_CLOSE, 0, \
            {}, why_not, workspace, cost, launch                                                                    \
    }

static const ridge_kernel rows[] = {
    ROW("linear_ce_eval", RIDGE_LINEAR_CE_EVAL),
    ROW("linear_ce_train", RIDGE_LINEAR_CE_TRAIN),
    ROW("linear_ce_backward", RIDGE_LINEAR_CE_BACKWARD),
};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = ce16_logits_prepare(device);

    status = status ? status : ce16_grads_prepare(device);
    status = status ? status : ce_targets_prepare(device);
    return status ? status : ce_row_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_ce_mma16 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

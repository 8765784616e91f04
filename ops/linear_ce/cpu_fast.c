/* cpu_fast.c: the fast rows of linear_ce_*, ce_fwd and ce_bwd: the chunked algorithm around the vector code of
 * cpu_simd.h.
 *
 * Rows that are not ignored are listed in order. A chunk of them at a time, for each block of classes: the logits by a
 * matrix product into the workspace, then one pass that keeps maximum, sum of exponentials and target logit. For the
 * gradients the block's logits become dz in place (one more exponential), and two products add dz W to the chunk's dX
 * and dz^T x to dW. Where the chunk's logits of all classes fit the workspace they are kept between the two passes;
 * else they are computed again. All threads run the same loops; the loops that they share are divided so that no sum
 * depends on the number of threads. */
#if defined(__x86_64__)
#include "cpu_fast.h"

#include <string.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "phase.h"
#include "src/util.h"

/* The layout of the workspace: byte offsets, and their sum. */
typedef struct plan {
    int64_t chunk, width, ld; /* rows of a chunk; logits kept of a row, and their stride */
    size_t stat, list, row, z, pack_a, pack_b, dx, dw, bytes;
} plan;

static size_t take(plan *p, int64_t count, size_t size)
{
    const size_t at = p->bytes;

    p->bytes += (size_t)ridge_round_up(count * (int64_t)size, 64);
    return at;
}

static plan plan_of(const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool given = problem->op == RIDGE_CE_FWD || problem->op == RIDGE_CE_BWD;
    const bool train = problem->op == RIDGE_LINEAR_CE_TRAIN, back = problem->op == RIDGE_LINEAR_CE_BACKWARD;
    const int dx = train ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;
    const int64_t tokens = problem->dim[0], hidden = problem->dim[1], vocab = problem->dim[given ? 1 : 2];
    const uint8_t dw = problem->dtype[dx + 1];
    plan p = {0};

    p.chunk = ridge_min(kernel->param[1], tokens);
    p.width = kernel->param[2] ? vocab : ridge_min(vocab, CE_BLOCK);
    p.ld = ridge_round_up(p.width, 16) + 16; /* not a power of two: rows would fall on the same cache sets */
    p.stat = take(&p, tokens, sizeof(ce_stat));
    p.list = take(&p, tokens, sizeof(int64_t));
    p.row = take(&p, p.chunk, sizeof(ce_row));
    p.z = take(&p, p.chunk * p.ld, sizeof(float));
    if (given)
        return p;
    p.pack_a = take(&p, CE_PACK_A, sizeof(float));
    p.pack_b = take(&p, CE_PACK_B, sizeof(float));
    if ((train || back) && problem->dtype[dx] != RIDGE_NONE)
        p.dx = take(&p, p.chunk * hidden, sizeof(float));
    if ((train || back) && dw != RIDGE_NONE && dw != RIDGE_F32)
        p.dw = take(&p, hidden * vocab, sizeof(uint16_t)); /* the lower plane of its f32 sum */
    return p;
}

size_t ridge_cpu_ce_fast_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device;
    return plan_of(kernel, problem).bytes;
}

/* Below so many FLOP (a fifth of a millisecond) waking and joining threads costs more than they bring. */
enum { ONE_THREAD = 20000000, PER_US = 100000 };

/* One call. */
typedef struct job {
    ce_args a;
    plan p;
    const ce_vectors *v;
    ce_totals totals;
    ce_stat *stat;
    int64_t *list, count; /* the rows that are not ignored */
    ce_row *row;
    float *z, *pack_a, *pack_b, *dx, *dw; /* dw: the caller's own, f32 */
    ce_planes planes;                     /* a 16-bit dW's sum: the upper one lies in dW itself */
    bool stats, gradients, spread, sums;
} job;

static void prepare(job *j, unsigned char *workspace)
{
    const ce_args *a = &j->a;

    j->totals = ridge_cpu_ce_totals(a);
    j->stat = (ce_stat *)(void *)(workspace + j->p.stat);
    j->list = (int64_t *)(void *)(workspace + j->p.list);
    j->row = (ce_row *)(void *)(workspace + j->p.row);
    j->z = (float *)(void *)(workspace + j->p.z);
    j->pack_a = (float *)(void *)(workspace + j->p.pack_a);
    j->pack_b = (float *)(void *)(workspace + j->p.pack_b);
    j->dx = (float *)(void *)(workspace + j->p.dx);
    if (a->dw_dtype == RIDGE_F32)
        j->dw = (float *)(void *)a->dw;
    else
        j->planes = (ce_planes){(uint16_t *)(void *)a->dw, (uint16_t *)(void *)(workspace + j->p.dw), a->dw_stride,
                                a->hv ? a->vocab : a->hidden};
    j->stats = !a->lse_in;
    j->gradients = a->op != RIDGE_LINEAR_CE_EVAL && a->op != RIDGE_CE_FWD;
    j->spread = a->entropy || (a->flags & RIDGE_CE_RECORD_SUMS);
    j->sums = a->o.label_smoothing != 0.0f || (a->flags & RIDGE_CE_RECORD_SUMS);
    for (int64_t token = 0; token < a->tokens; token++) {
        const int64_t y = ridge_cpu_ce_target(a, token);

        if (y == CE_IGNORED || (y == CE_BAD && !j->stats)) /* without stats a row out of range has nothing to add */
            continue;
        j->list[j->count++] = token;
        j->stat[token] = ridge_cpu_ce_empty();
    }
}

/* ------------------------------------------------------------------------------------------------- rows of a chunk */

static float *z_of(const job *j, int64_t row, int64_t first)
{
    return j->z + row * j->p.ld + (j->p.width == j->a.vocab ? first : 0);
}

static ce_span span_of(const job *j, int64_t token, int64_t row, int64_t first, int64_t count)
{
    return (ce_span){&j->a, z_of(j, row, first), first, count, ridge_cpu_ce_target(&j->a, token)};
}

static void set_row(job *j, int64_t token, ce_row *r)
{
    const int64_t y = ridge_cpu_ce_target(&j->a, token);
    const ce_stat *s = &j->stat[token];
    ce_factors f;

    r->target = y;
    if (y < 0)
        return;
    f = ridge_cpu_ce_factors(&j->a, &j->totals, token, y, j->stats ? ridge_cpu_ce_lse(s) : (double)j->a.lse_in[token]);
    r->shift = j->stats ? (double)s->max : (double)j->a.lse_in[token];
    r->inverse_sum = j->stats ? 1 / s->sum : 1;
    r->all = f.all;
    r->excess = f.all - f.label;
    r->scale = (float)(f.all * r->inverse_sum);
    r->smooth = (float)f.smooth;
    r->bend = (float)f.bend;
}

/* z of the ids among a span's classes to their output; the first span writes -inf for the others. */
static void take_ids(const job *j, const ce_span *s, int64_t token)
{
    float *to = j->a.id_logprob + token * j->a.id_stride;

    for (int64_t k = 0; k < j->a.o.ids; k++) {
        const int64_t at = ridge_cpu_ce_id(&j->a, token, k) - j->a.offset - s->first;

        if (at >= 0 && at < s->count)
            to[k] = s->z[at];
        else if (s->first == 0)
            to[k] = -INFINITY;
    }
}

/* The span's classes among the token's top ones. */
static void take_top(const job *j, const ce_span *s, int64_t token)
{
    for (int64_t i = 0; i < s->count && j->a.o.topk; i++)
        ridge_cpu_ce_top(&j->a, token, s->first + i, s->z[i]);
}

/* du of the ids among a span's classes. */
static void id_gradients(const job *j, const ce_span *s, int64_t token)
{
    const ce_args *a = &j->a;
    const double lse = (double)a->lse_in[token];
    const ce_factors f = ridge_cpu_ce_factors(a, &j->totals, token, s->target, lse);
    double hit, slope;

    for (int64_t k = 0; k < a->o.ids; k++) {
        const int64_t c = ridge_cpu_ce_id(a, token, k), at = c - a->offset - s->first;

        if (at < 0 || at >= s->count || !ridge_cpu_ce_hit(a, token, k, &hit))
            continue;
        const double du = ridge_cpu_ce_id_du(a, &f, token, k, lse, hit, &slope);

        s->z[at] = c == s->target ? (float)((double)s->z[at] + hit * slope) : (float)du;
    }
}

static void gradient_row(const job *j, const ce_span *s, const ce_row *r, int64_t token)
{
    if (r->target >= 0) {
        j->v->gradient(s, r);
        if (j->a.o.ids)
            id_gradients(j, s, token);
    } else {
        memset(s->z, 0, (size_t)s->count * sizeof *s->z);
    }
}

/* ---------------------------------------------------------------------------------------------- products of a block */

static ce_matrix x_of(const job *j, int64_t begin, bool along_k)
{
    return (ce_matrix){j->a.x, j->a.x_stride, j->list + begin, j->a.dtype, along_k};
}

/* W's classes from `first`; its lines are classes, or with hv hidden units. */
static ce_matrix w_of(const job *j, int64_t first, bool along_k)
{
    const int64_t size = j->a.dtype == RIDGE_F32 ? 4 : 2;

    return (ce_matrix){j->a.w + first * (j->a.hv ? 1 : j->a.w_stride) * size, j->a.w_stride, NULL, j->a.dtype, along_k};
}

static ce_matrix dz_of(const job *j, int64_t first, bool along_k)
{
    return (ce_matrix){z_of(j, 0, first), j->p.ld, NULL, RIDGE_F32, along_k};
}

static void logits_block(const job *j, int64_t begin, int64_t rows, int64_t first, int64_t count)
{
    const ce_gemm g = {rows,
                       count,
                       j->a.hidden,
                       x_of(j, begin, true),
                       w_of(j, first, !j->a.hv),
                       z_of(j, 0, first),
                       j->p.ld,
                       false,
                       j->pack_a,
                       j->pack_b,
                       {0}};

    j->v->gemm(&g);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const ce_span s = span_of(j, j->list[begin + r], r, first, count);

        j->v->logits(&s);
    }
}

static void dw_block(const job *j, int64_t begin, int64_t rows, int64_t first, int64_t count)
{
    const bool add = begin > 0 || (j->a.flags & RIDGE_ACCUMULATE);
    ce_gemm g = {.k = rows, .ld = j->a.dw_stride, .add = add, .pack_a = j->pack_a, .pack_b = j->pack_b};

    if (j->a.dw) {
        g.m = j->a.hv ? j->a.hidden : count;
        g.n = j->a.hv ? count : j->a.hidden;
        g.a = j->a.hv ? x_of(j, begin, false) : dz_of(j, first, false);
        g.b = j->a.hv ? dz_of(j, first, false) : x_of(j, begin, false);
        g.planes = j->planes;
        if (j->dw) {
            g.d = j->dw + first * (j->a.hv ? 1 : j->a.dw_stride);
        } else {
            g.planes.high += first * (j->a.hv ? 1 : g.planes.high_ld);
            g.planes.low += first * (j->a.hv ? 1 : g.planes.low_ld);
        }
        j->v->gemm(&g);
    }
    if (!j->a.dbias)
        return;
#pragma omp for schedule(static)
    for (int64_t c = 0; c < count; c += 64) {
        const int64_t wide = ridge_min(64, count - c);

        if (!add)
            memset(j->a.dbias + first + c, 0, (size_t)wide * sizeof(float));
        j->v->columns(z_of(j, 0, first) + c, j->p.ld, rows, wide, j->a.dbias + first + c);
    }
}

static void gradient_block(const job *j, int64_t begin, int64_t rows, int64_t first, int64_t count)
{
    if (!j->stats || j->p.width < j->a.vocab)
        logits_block(j, begin, rows, first, count);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const ce_span s = span_of(j, j->list[begin + r], r, first, count);

        gradient_row(j, &s, &j->row[r], j->list[begin + r]);
    }
    if (j->a.dx) {
        const ce_gemm g = {rows,
                           j->a.hidden,
                           count,
                           dz_of(j, first, true),
                           w_of(j, first, j->a.hv),
                           j->dx,
                           j->a.hidden,
                           first > 0,
                           j->pack_a,
                           j->pack_b,
                           {0}};

        j->v->gemm(&g);
    }
    dw_block(j, begin, rows, first, count);
}

static void linear_chunk(job *j, int64_t begin, int64_t rows)
{
    const int64_t size = j->a.dtype == RIDGE_F32 ? 4 : 2;

    for (int64_t first = 0; first < j->a.vocab && j->stats; first += CE_BLOCK) {
        const int64_t count = ridge_min(CE_BLOCK, j->a.vocab - first);

        logits_block(j, begin, rows, first, count);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            const ce_span s = span_of(j, j->list[begin + r], r, first, count);

            j->v->stats(&s, j->spread, j->sums, &j->stat[j->list[begin + r]]);
            take_ids(j, &s, j->list[begin + r]);
            take_top(j, &s, j->list[begin + r]);
            if (j->a.sample_id)
                ridge_cpu_ce_draw(&j->a, j->list[begin + r], s.first, s.count, s.z);
        }
    }
    if (!j->gradients)
        return;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        set_row(j, j->list[begin + r], &j->row[r]);
    for (int64_t first = 0; first < j->a.vocab; first += CE_BLOCK)
        gradient_block(j, begin, rows, first, ridge_min(CE_BLOCK, j->a.vocab - first));
    if (j->a.dx) {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            j->v->store(j->a.dx + j->list[begin + r] * j->a.dx_stride * size, j->a.dtype, j->a.hidden,
                        j->dx + r * j->a.hidden);
    }
}

/* Given logits: each row on its own, block by block. */
static void given_row(job *j, int64_t token, int64_t row)
{
    const int64_t size = j->a.dtype == RIDGE_F32 ? 4 : 2;

    if (j->gradients)
        set_row(j, token, &j->row[row]);
    for (int64_t first = 0; first < j->a.vocab; first += CE_BLOCK) {
        const int64_t count = ridge_min(CE_BLOCK, j->a.vocab - first);
        const ce_span s = span_of(j, token, row, first, count);

        j->v->load(j->a.x + (token * j->a.x_stride + first) * size, j->a.dtype, count, s.z);
        j->v->logits(&s);
        if (j->stats)
            j->v->stats(&s, j->spread, j->sums, &j->stat[token]);
        if (j->gradients) {
            gradient_row(j, &s, &j->row[row], token);
            j->v->store(j->a.dx + (token * j->a.dx_stride + first) * size, j->a.dtype, count, s.z);
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- the call */

/* Line i of a 16-bit dW: its values or zeros to the planes, or rounded from the planes, 256 elements at a time. */
typedef enum line_step { LINE_LOAD, LINE_CLEAR, LINE_ROUND } line_step;

static void convert_line(const job *j, int64_t i, line_step step)
{
    const int64_t length = j->a.hv ? j->a.vocab : j->a.hidden;
    uint16_t *high = j->planes.high + i * j->planes.high_ld, *low = j->planes.low + i * j->planes.low_ld;
    float sum[256] = {0};

    for (int64_t at = 0; at < length; at += 256) {
        const int64_t count = ridge_min(256, length - at);

        if (step == LINE_LOAD)
            j->v->load(high + at, j->a.dw_dtype, count, sum);
        for (int64_t e = at; e < at + count; e++) {
            if (step == LINE_ROUND) {
                sum[e - at] = ridge_float((uint32_t)high[e] << 16 | low[e]);
                continue;
            }
            high[e] = (uint16_t)(ridge_bits(sum[e - at]) >> 16);
            low[e] = (uint16_t)ridge_bits(sum[e - at]);
        }
        if (step == LINE_ROUND)
            j->v->store(high + at, j->a.dw_dtype, count, sum);
    }
}

/* dW's sum begins with the values in dW, or with zeros if no chunk will write it first. */
static void begin_dw(const job *j)
{
    const bool add = (j->a.flags & RIDGE_ACCUMULATE) != 0;
    const int64_t lines = j->a.hv ? j->a.hidden : j->a.vocab;

    if (j->a.dw && !(add && j->dw) && (add || j->count == 0)) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < lines; i++)
            if (j->dw)
                memset(j->dw + i * j->a.dw_stride, 0, (size_t)(j->a.hv ? j->a.vocab : j->a.hidden) * sizeof(float));
            else
                convert_line(j, i, add ? LINE_LOAD : LINE_CLEAR);
    }
    if (j->a.dbias && !add && j->count == 0) {
#pragma omp single
        memset(j->a.dbias, 0, (size_t)j->a.vocab * sizeof(float));
    }
}

/* Rounds a 16-bit dW once. */
static void end_dw(const job *j)
{
    if (j->a.dw && !j->dw) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (j->a.hv ? j->a.hidden : j->a.vocab); i++)
            convert_line(j, i, LINE_ROUND);
    }
}

/* Rows of dX that no chunk writes: 0 where ignored, NaN where the target is out of range. */
static void other_rows(const job *j)
{
    const int64_t size = j->a.dtype == RIDGE_F32 ? 4 : 2;
    const int64_t length = j->a.op == RIDGE_CE_BWD ? j->a.vocab : j->a.hidden;
    float block[64];

#pragma omp for schedule(static)
    for (int64_t token = 0; token < j->a.tokens; token++) {
        const int64_t y = ridge_cpu_ce_target(&j->a, token);

        if (y >= 0)
            continue;
        for (int i = 0; i < 64; i++)
            block[i] = y == CE_BAD ? ridge_float(RIDGE_NAN_F32) : 0.0f;
        for (int64_t c = 0; c < length; c += 64)
            j->v->store(j->a.dx + (token * j->a.dx_stride + c) * size, j->a.dtype, ridge_min(64, length - c), block);
    }
}

static void team(job *j)
{
    const bool given = j->a.op == RIDGE_CE_FWD || j->a.op == RIDGE_CE_BWD;

    if (j->gradients && !given)
        begin_dw(j);
    for (int64_t begin = 0; begin < j->count; begin += j->p.chunk) {
        const int64_t rows = ridge_min(j->p.chunk, j->count - begin);

        if (!given) {
            linear_chunk(j, begin, rows);
            continue;
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            given_row(j, j->list[begin + r], r);
    }
    if (!j->gradients)
        return;
    if (!given)
        end_dw(j);
    if (j->a.dx)
        other_rows(j);
}

static int threads_of(const ridge_bound *bound, const ce_args *a)
{
    const double flops = bound->op->flops(&bound->problem) * (a->w ? 1 : 8);

    return ridge_team_begin(flops >= ONE_THREAD ? flops / PER_US : 0, INT64_MAX)->threads;
}

ridge_status ridge_cpu_ce_fast(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                               void *workspace, size_t bytes, void *stream)
{
    /* Through pointers, so that no arithmetic moves across the change of mode. */
    void (*volatile const first)(job *, unsigned char *) = prepare;
    void (*volatile const work)(job *) = team;
    void (*volatile const last)(const ce_args *, const ce_totals *, const ce_stat *) = ridge_cpu_ce_finish;
    ridge_bound phase;
    const ridge_status status = ridge_ce_phase(&bound, &phase);
    unsigned mode;
    int threads;
    job j;

    (void)device, (void)bytes, (void)stream;
    if (status || !bound)
        return status;
    mode = ridge_fp_begin();
    memset(&j, 0, sizeof j);
    j.a = ridge_cpu_ce_args(&bound->call);
    j.p = plan_of(kernel, &bound->problem);
    j.v = kernel->arch_min == RIDGE_ARCH_AVX512 ? &ridge_cpu_ce_avx512 : &ridge_cpu_ce_avx2;
    first(&j, workspace);
    threads = threads_of(bound, &j.a);
    (void)threads; /* without OpenMP */
#pragma omp parallel num_threads(threads)
    {
        const unsigned own = ridge_fp_begin();

        work(&j);
        ridge_fp_end(own);
    }
    if (j.stats)
        last(&j.a, &j.totals, j.stat);
    ridge_fp_end(mode);
    return RIDGE_OK;
}
#else
typedef int ce_fast_is_empty;
#endif

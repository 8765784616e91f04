/* cpu.c: quantize_fp8, quantize_fp8_dual and swiglu_quantize on the CPU: the C reference, the threads around the
 * SIMD functions (cpu_simd.h), and the kernel list.
 *
 * The reference is the oracle of every test: one element at a time, group by group, straight from docs/numerics.md. */
#include "cpu.h"

#include <string.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/swiglu/cpu.h"
#include "src/util.h"

/* Codes in slot q, their scales in the slot after it. */
static quantize_out output(const ridge_call *call, int q, quantize_form form)
{
    const ridge_operand *codes = &call->arg[q], *scale = &call->arg[q + 1];

    return (quantize_out){form, codes->data, scale->data, codes->stride, scale->stride};
}

/* The arguments of any of the three ops; the row form of TENSOR and ROW modes is absent. */
static quantize_args args_of(const ridge_call *call)
{
    const bool swiglu = call->op == RIDGE_SWIGLU_QUANTIZE, single = call->op == RIDGE_QUANTIZE_FP8;
    const int q = swiglu ? (int)RIDGE_SWIGLU_QUANTIZE_Q : (int)RIDGE_QUANTIZE_FP8_Q;
    const uint32_t scale = call->flags & RIDGE_SCALE, dual = call->flags & RIDGE_DUAL;
    const bool block = single ? scale == RIDGE_SCALE_BLK128 : dual == RIDGE_DUAL_BLK_BLK;
    quantize_args a = {.rows = call->dim[0], .cols = call->dim[1]};

    a.dtype = call->arg[0].dtype;
    a.size = a.dtype == RIDGE_F32 ? 4 : 2;
    a.x = swiglu ? NULL : call->arg[0].data;
    a.stride = call->arg[0].stride * a.size;
    a.e5m2 = call->arg[q].dtype == RIDGE_E5M2;
    a.pow2 = (call->flags & RIDGE_POW2) != 0;
    a.floor = swiglu ? call->opt.swiglu_quantize.floor : call->opt.quantize.floor;
    a.row = output(call, q, block ? QUANTIZE_BLK128 : QUANTIZE_ROW128);
    if (single && scale != RIDGE_SCALE_ROW128 && scale != RIDGE_SCALE_BLK128)
        a.row.form = QUANTIZE_ABSENT;
    if (!single)
        a.col = output(call, q + 2, dual == RIDGE_DUAL_ROW_ROW ? QUANTIZE_ROW128 : QUANTIZE_BLK128);
    return a;
}

/* The swiglu_fwd whose result swiglu_quantize quantises, with resolved strides; `out` is packed. */
static ridge_call swiglu_of(const ridge_call *call, void *out)
{
    const int64_t rows = call->dim[0], cols = call->dim[1];
    ridge_call swiglu = ridge_swiglu_fwd(rows, cols, (ridge_dtype)call->arg[0].dtype, NULL, NULL, out);

    swiglu.arg[RIDGE_SWIGLU_FWD_GATE] = call->arg[RIDGE_SWIGLU_QUANTIZE_GATE];
    swiglu.arg[RIDGE_SWIGLU_FWD_UP] = call->arg[RIDGE_SWIGLU_QUANTIZE_UP];
    swiglu.arg[RIDGE_SWIGLU_FWD_OUT].stride = cols;
    swiglu.arg[RIDGE_SWIGLU_FWD_ROW_SCALE] = call->arg[RIDGE_SWIGLU_QUANTIZE_ROW_SCALE];
    swiglu.flags = call->flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED);
    swiglu.opt.swiglu = call->opt.swiglu_quantize.swiglu;
    return swiglu;
}

/* -------------------------------------------------------------------------------------------------------- reference */

static float load(const quantize_args *a, int64_t row, int64_t col)
{
    const unsigned char *at = a->x + row * a->stride + col * a->size;

    switch (a->dtype) {
    case RIDGE_BF16:
        return ridge_f32_from_bf16(*(const uint16_t *)(const void *)at);
    case RIDGE_F16:
        return ridge_f32_from_f16(*(const uint16_t *)(const void *)at);
    default:
        return *(const float *)(const void *)at;
    }
}

/* A part of x: what shares a scale. */
typedef struct block {
    int64_t row, rows, col, cols;
} block;

static uint32_t block_amax(const quantize_args *a, block b)
{
    uint32_t amax = 0;

    for (int64_t r = b.row; r < b.row + b.rows; r++)
        for (int64_t c = b.col; c < b.col + b.cols; c++)
            if (ridge_magnitude(load(a, r, c)) > amax)
                amax = ridge_magnitude(load(a, r, c));
    return amax;
}

static float block_scale(const quantize_args *a, uint32_t amax)
{
    return ridge_fp8_scale(amax, a->floor, a->e5m2, a->pow2);
}

static uint8_t code(const quantize_args *a, float x, float reciprocal, bool guard)
{
    return guard && ridge_magnitude(x) >= 0x7f800000u ? 0x7f : ridge_fp8_from_f32(x * reciprocal, a->e5m2);
}

/* One form over the whole tensor, `transposed` or not. */
static void reference_form(const quantize_args *a, const quantize_out *o, bool transposed)
{
    const int64_t block_rows = o->form == QUANTIZE_BLK128 || transposed ? RIDGE_GROUP : 1;
    const int64_t block_cols = o->form == QUANTIZE_BLK128 || !transposed ? RIDGE_GROUP : 1;

    for (int64_t row = 0; row < a->rows; row += block_rows)
        for (int64_t col = 0; col < a->cols; col += block_cols) {
            const block b = {row, ridge_min(block_rows, a->rows - row), col, ridge_min(block_cols, a->cols - col)};
            const float s = block_scale(a, block_amax(a, b)), r = ridge_fp8_reciprocal(s);

            if (o->form == QUANTIZE_BLK128)
                o->scale[transposed ? col / RIDGE_GROUP * o->ld + row / RIDGE_GROUP
                                    : row / RIDGE_GROUP * o->ld + col / RIDGE_GROUP] = s;
            else
                o->scale[transposed ? row / RIDGE_GROUP * o->ld + col : col / RIDGE_GROUP * o->ld + row] = s;
            for (int64_t i = row; i < row + b.rows; i++)
                for (int64_t j = col; j < col + b.cols; j++)
                    o->q[transposed ? j * o->stride + i : i * o->stride + j] = code(a, load(a, i, j), r, false);
        }
}

/* The order of src/math/quantize.h: groups of 8 rows; pairs of groups; the pairs of a tile; tiles. */
static float reference_sum(const quantize_args *a, int64_t col)
{
    float sum = 0;

    for (int64_t tile = 0; tile < a->rows; tile += RIDGE_GROUP) {
        float part = 0;

        for (int64_t pair = tile; pair < tile + RIDGE_GROUP; pair += 2 * RIDGE_SUM_ROWS) {
            float group[2] = {0, 0};

            for (int64_t row = pair; row < pair + 2 * RIDGE_SUM_ROWS; row++)
                if (row < a->rows)
                    group[(row - pair) / RIDGE_SUM_ROWS] += load(a, row, col);
            part += group[0] + group[1];
        }
        sum += part;
    }
    return sum;
}

/* TENSOR and ROW: rows [begin, end) share a scale. */
static void reference_whole(const quantize_args *a, const ridge_call *call, int64_t begin, int64_t end, int64_t index)
{
    const float *given = call->arg[RIDGE_QUANTIZE_FP8_GIVEN].data;
    float *amax_out = call->arg[RIDGE_QUANTIZE_FP8_AMAX].data;
    const block all = {begin, end - begin, 0, a->cols};
    const uint32_t amax = block_amax(a, all);
    const float s = given ? given[index] : block_scale(a, amax), r = ridge_fp8_reciprocal(s);

    if (!given)
        a->row.scale[index] = s;
    if (amax_out)
        amax_out[index] = ridge_float(amax >= 0x7f800000u ? RIDGE_NAN_F32 : amax);
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < a->cols; j++)
            a->row.q[i * a->row.stride + j] = code(a, load(a, i, j), r, given != NULL);
}

static void reference(const ridge_call *call, void *workspace)
{
    quantize_args a = args_of(call);

    if (call->op == RIDGE_SWIGLU_QUANTIZE) {
        const ridge_call swiglu = swiglu_of(call, workspace);

        ridge_cpu_swiglu_reference(&swiglu);
        a.x = workspace;
        a.stride = a.cols * a.size;
    }
    if (a.row.form == QUANTIZE_ABSENT && (call->flags & RIDGE_SCALE) == RIDGE_SCALE_TENSOR)
        reference_whole(&a, call, 0, a.rows, 0);
    else if (a.row.form == QUANTIZE_ABSENT)
        for (int64_t row = 0; row < a.rows; row++)
            reference_whole(&a, call, row, row + 1, row);
    else
        reference_form(&a, &a.row, false);
    if (a.col.form != QUANTIZE_ABSENT)
        reference_form(&a, &a.col, true);
    if (call->op == RIDGE_QUANTIZE_FP8_DUAL && call->arg[RIDGE_QUANTIZE_FP8_DUAL_COLSUM].data)
        for (int64_t col = 0; col < a.cols; col++)
            ((float *)call->arg[RIDGE_QUANTIZE_FP8_DUAL_COLSUM].data)[col] =
                ridge_f32_canonical(reference_sum(&a, col));
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const work)(const ridge_call *, void *) = reference;
    unsigned mode;

    (void)device, (void)kernel, (void)bytes, (void)stream;
    if (call->dim[0] == 0 || call->dim[1] == 0)
        return RIDGE_OK;
    if (call->op == RIDGE_QUANTIZE_FP8_DUAL && call->opt.quantize.matrices > 1)
        return ridge_cpu_quantize_matrices(device, kernel, bound);
    mode = ridge_fp_begin();
    work(call, workspace);
    ridge_fp_end(mode);
    return RIDGE_OK;
}

/* The out of swiglu_fwd. */
static size_t reference_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return problem->op == RIDGE_SWIGLU_QUANTIZE
               ? (size_t)problem->dim[0] * (size_t)problem->dim[1] * (problem->dtype[0] == RIDGE_F32 ? 4 : 2)
               : 0;
}

/* -------------------------------------------------------------------------------------------------------- SIMD rows */

#if defined(__x86_64__)

enum { PER_US = 2048 }; /* elements */

static ridge_team *team_of(const quantize_args *a, int64_t parts)
{
    return ridge_team_begin((double)(a->rows * a->cols) / PER_US, parts);
}
enum { AVX2 = 0, AVX512, AVX512VBMI }; /* param[1] of the rows */

static int64_t groups(int64_t n)
{
    return ridge_ceil_div(n, RIDGE_GROUP);
}

static const quantize_vectors *vectors_of(const ridge_kernel *kernel)
{
    static const quantize_vectors *const set[] = {&ridge_cpu_quantize_avx2, &ridge_cpu_quantize_avx512,
                                                  &ridge_cpu_quantize_avx512vbmi};

    return set[kernel->param[1]];
}

static bool streams(const ridge_device *device, const quantize_args *a)
{
    return ridge_cpu_streams(device, (double)a->rows * (double)a->cols * (a->col.form == QUANTIZE_ABSENT ? 1 : 2));
}

/* The arguments of one thread: with tables of its own, if the kernel row uses tables. */
static quantize_args with_tables(const quantize_args *a, quantize_tables *own)
{
    quantize_args mine = *a;

    mine.tables = a->by_table ? own : NULL;
    if (a->by_table)
        memset(own->tag, 0, sizeof own->tag);
    return mine;
}

/* Ends a thread's work. The fence orders its stores that bypassed the cache before whatever follows the join of the
 * threads. */
static void finish(const quantize_args *a, unsigned mode)
{
    if (a->stream)
        _mm_sfence();
    ridge_fp_end(mode);
}

/* The largest magnitude of all elements. */
static uint32_t amax_of_all(const quantize_vectors *v, const quantize_args *a)
{
    uint32_t all = 0;
    ridge_team *const team = team_of(a, a->rows);

    (void)team; /* without OpenMP */
#pragma omp parallel for schedule(static) num_threads(team->threads) reduction(max : all)
    for (int64_t row = 0; row < a->rows; row++) {
        uint32_t amax = v->amax(a->dtype, a->x + row * a->stride, a->cols);
        all = amax > all ? amax : all;
    }
    return all;
}

static float reported_amax(uint32_t amax)
{
    return ridge_float(amax >= 0x7f800000u ? RIDGE_NAN_F32 : amax);
}

/* One scale a row, or one for all. Scales that are not given need the largest magnitudes first. */
static void whole(const quantize_vectors *v, const quantize_args *a, const ridge_call *call)
{
    const bool one = (call->flags & RIDGE_SCALE) == RIDGE_SCALE_TENSOR;
    const float *given = call->arg[RIDGE_QUANTIZE_FP8_GIVEN].data;
    float *amax_out = call->arg[RIDGE_QUANTIZE_FP8_AMAX].data;
    uint32_t all = one && !given ? amax_of_all(v, a) : 0;
    const float tensor_scale = one ? given ? *given : block_scale(a, all) : 1;
    ridge_team *const team = team_of(a, a->rows);

    if (one && !given)
        *a->row.scale = tensor_scale;
#pragma omp parallel num_threads(team->threads) reduction(max : all)
    {
        quantize_tables own;
        const quantize_args mine = with_tables(a, &own);
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < a->rows; row++) {
            const unsigned char *x = a->x + row * a->stride;
            uint32_t amax = one || given ? 0 : v->amax(a->dtype, x, a->cols), seen;
            const float s = one ? tensor_scale : given ? given[row] : block_scale(a, amax);

            seen = v->encode(&mine, x, ridge_fp8_reciprocal(s), !one && !given, given != NULL,
                             a->row.q + row * a->row.stride, row + 1 < a->rows ? x + a->stride : NULL);
            amax = given ? seen : amax;
            all = amax > all ? amax : all;
            if (!one && !given)
                a->row.scale[row] = s;
            if (!one && amax_out)
                amax_out[row] = reported_amax(amax);
        }
        finish(a, mode);
        ridge_team_end(team);
    }
    if (one && amax_out)
        *amax_out = reported_amax(all);
}

static void row_groups(const quantize_vectors *v, const quantize_args *a)
{
    ridge_team *const team = team_of(a, ridge_ceil_div(a->rows, QUANTIZE_ROWS));

#pragma omp parallel num_threads(team->threads)
    {
        quantize_tables own;
        const quantize_args mine = with_tables(a, &own);
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < a->rows; row += QUANTIZE_ROWS)
            v->row128(&mine, row, ridge_min(QUANTIZE_ROWS, a->rows - row));
        finish(a, mode);
        ridge_team_end(team);
    }
}

/* A strip is 128 rows of 512 bytes of swiglu_fwd's out: whole blocks of its vector code. */
enum { STRIP_BYTES = 512 };

/* The processor's prefetcher does not predict short parts of many rows. (Inline: gcc 12 drops calls of a function that
 * only prefetches.) */
static inline __attribute__((always_inline)) void prefetch_ahead(const swiglu_args *part, int64_t i, int64_t rows,
                                                                 bool more)
{
    enum { AHEAD = 6 };
    const int64_t wide = part->flags & RIDGE_INTERLEAVED ? 2 * STRIP_BYTES : STRIP_BYTES;
    const int64_t row = i + AHEAD < rows ? i + AHEAD : i + AHEAD - rows, step = i + AHEAD < rows ? 0 : 1;

    if (row >= rows || (step && !more))
        return;
    for (int64_t k = 0; k < wide; k += 64)
        __builtin_prefetch(part->gate.data + row * part->gate.stride * part->size + step * wide + k, 0, 2);
    for (int64_t k = 0; k < STRIP_BYTES && part->up.data; k += 64)
        __builtin_prefetch(part->up.data + row * part->up.stride * part->size + step * STRIP_BYTES + k, 0, 2);
}

/* Computes a strip into y. `more`: the strip to the right comes next. */
static void swiglu_strip(const swiglu_args *s, swiglu_columns *columns, int64_t row, int64_t rows, int64_t col,
                         int64_t cols, bool more, void *y)
{
    const int64_t wide = s->flags & RIDGE_INTERLEAVED ? 2 * col : col;
    swiglu_args part = *s;

    part.gate.data += (row * part.gate.stride + wide) * part.size;
    if (part.up.data)
        part.up.data += (row * part.up.stride + col) * part.size;
    if (part.row_scale)
        part.row_scale += row;
    part.out.data = y;
    part.out.stride = STRIP_BYTES / part.size;
    part.stream = false;
    for (int64_t i = 0; i < rows; i++) {
        prefetch_ahead(&part, i, rows, more);
        columns(&part, i, 0, cols);
    }
}

static void swiglu_tiles(const quantize_vectors *v, const quantize_args *a, const swiglu_args *s,
                         swiglu_columns *columns)
{
    const int64_t width = STRIP_BYTES / a->size, across = ridge_ceil_div(a->cols, width);
    ridge_team *const team = team_of(a, groups(a->rows) * across);

#pragma omp parallel num_threads(team->threads)
    {
        _Alignas(64) unsigned char y[RIDGE_GROUP * STRIP_BYTES];
        quantize_tables own;
        const quantize_args mine = with_tables(a, &own);
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < groups(a->rows) * across; t++) {
            const int64_t tr = t / across, row = tr * RIDGE_GROUP, col = t % across * width;
            const int64_t cols = ridge_min(width, a->cols - col);

            swiglu_strip(s, columns, row, ridge_min(RIDGE_GROUP, a->rows - row), col, cols, t % across + 1 < across, y);
            for (int64_t c = 0; c < cols; c += RIDGE_GROUP)
                v->tile(&mine, tr, (col + c) / RIDGE_GROUP, y + c * a->size, STRIP_BYTES, NULL);
        }
        finish(a, mode);
        ridge_team_end(team);
    }
}

/* The elements of the t-th tile to compute, and its row and column of tiles. Every row of tiles begins at another
 * column: threads side by side would otherwise use the same sets of the caches that they share. */
static const unsigned char *tile_number(const quantize_args *a, int64_t t, int64_t *tr, int64_t *tc)
{
    enum { APART = 5 };
    const int64_t across = groups(a->cols);

    *tr = t / across;
    *tc = (t + *tr * APART) % across;
    return a->x + *tr * RIDGE_GROUP * a->stride + *tc * RIDGE_GROUP * a->size;
}

static void tiles(const quantize_vectors *v, const quantize_args *a)
{
    const int64_t count = groups(a->rows) * groups(a->cols);
    ridge_team *const team = team_of(a, count);

#pragma omp parallel num_threads(team->threads)
    {
        quantize_tables own;
        const quantize_args mine = with_tables(a, &own);
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < count; t++) {
            int64_t tr, tc;
            const unsigned char *next = t + 1 < count ? tile_number(a, t + 1, &tr, &tc) : NULL;
            const unsigned char *x = tile_number(a, t, &tr, &tc);

            v->tile(&mine, tr, tc, x, a->stride, next);
        }
        finish(a, mode);
        ridge_team_end(team);
    }
}

/* Two threads of a core are often 4 or 8 rows of tiles apart: after 8, rows begin two strips further, so that both do
 * not use the same sets of the caches. */
static void strips(const quantize_vectors *v, const quantize_args *a)
{
    const int64_t wide = QUANTIZE_STRIP / a->size, across = ridge_ceil_div(a->cols, wide);
    ridge_team *const team = team_of(a, groups(a->rows) * across);

#pragma omp parallel num_threads(team->threads)
    {
        quantize_tables own;
        const quantize_args mine = with_tables(a, &own);
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < groups(a->rows) * across; t++) {
            const int64_t tr = t / across, col = (t + tr / 8 * 2) % across * wide;

            v->blocks(&mine, tr, col, ridge_min(wide, a->cols - col), col + 2 * wide <= a->cols);
        }
        finish(a, mode);
        ridge_team_end(team);
    }
}

static void add_tile_sums(const quantize_args *a, float *colsum)
{
    for (int64_t col = 0; col < a->cols; col++) {
        float sum = 0;

        for (int64_t tile = 0; tile < groups(a->rows); tile++)
            sum += a->tile_sums[tile * a->cols + col];
        colsum[col] = ridge_f32_canonical(sum);
    }
}

static ridge_status launch_fp8(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                               void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    const quantize_vectors *v = vectors_of(kernel);
    quantize_args a = args_of(call);
    float *colsum = call->op == RIDGE_QUANTIZE_FP8_DUAL ? call->arg[RIDGE_QUANTIZE_FP8_DUAL_COLSUM].data : NULL;

    (void)bytes, (void)stream;
    if (a.rows == 0 || a.cols == 0)
        return RIDGE_OK;
    if (call->op == RIDGE_QUANTIZE_FP8_DUAL && call->opt.quantize.matrices > 1)
        return ridge_cpu_quantize_matrices(device, kernel, bound);
    a.stream = streams(device, &a);
    a.by_table = kernel->param[1] == AVX512VBMI && a.dtype == RIDGE_BF16;
    a.tile_sums = colsum ? workspace : NULL;
    if (a.row.form == QUANTIZE_ABSENT) {
        const unsigned mode = ridge_fp_begin(); /* for the scale of a tensor, which this thread makes */
        void (*volatile const work)(const quantize_vectors *, const quantize_args *, const ridge_call *) = whole;

        work(v, &a, call);
        ridge_fp_end(mode);
    } else if (a.row.form == QUANTIZE_ROW128 && a.col.form == QUANTIZE_ABSENT)
        row_groups(v, &a);
    else if (a.col.form == QUANTIZE_ABSENT)
        strips(v, &a);
    else
        tiles(v, &a);
    if (colsum) {
        unsigned mode = ridge_fp_begin();
        void (*volatile const work)(const quantize_args *, float *) = add_tile_sums;

        work(&a, colsum);
        ridge_fp_end(mode);
    }
    return RIDGE_OK;
}

static ridge_status launch_swiglu(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    const ridge_call swiglu = swiglu_of(call, NULL);
    const swiglu_args s = ridge_cpu_swiglu_args(&bound->problem, &swiglu);
    quantize_args a = args_of(call);

    (void)workspace, (void)bytes, (void)stream;
    if (a.rows == 0 || a.cols == 0)
        return RIDGE_OK;
    a.stream = streams(device, &a);
    a.by_table = kernel->param[1] == AVX512VBMI && a.dtype == RIDGE_BF16;
    swiglu_tiles(vectors_of(kernel), &a, &s,
                 kernel->arch_min == RIDGE_ARCH_AVX512 ? ridge_cpu_swiglu_avx512 : ridge_cpu_swiglu_avx2);
    return RIDGE_OK;
}

/* Sums of the tiles. */
static size_t sums_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool sums =
        problem->op == RIDGE_QUANTIZE_FP8_DUAL && problem->dtype[RIDGE_QUANTIZE_FP8_DUAL_COLSUM] != RIDGE_NONE;

    (void)device, (void)kernel;
    return sums ? (size_t)groups(problem->dim[0]) * (size_t)problem->dim[1] * sizeof(float) : 0;
}

/* The row with tables is for bf16: tables of other types would be long. */
static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (kernel->param[1] == AVX512VBMI && !(device->features & RIDGE_HAS_AVX512_VBMI))
        return "this processor has no AVX512-VBMI";
    if (kernel->param[1] == AVX512VBMI && problem->dtype[0] != RIDGE_BF16)
        return "tables are for bf16";
    return NULL;
}

#endif

/* ------------------------------------------------------------------------------------------------------------- list */

/* param[0] is the row's time in percent of the time the memory needs. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double elements = (double)problem->dim[0] * (double)problem->dim[1];
    const double bytes = problem->op == RIDGE_QUANTIZE_FP8 ? 3 : problem->op == RIDGE_QUANTIZE_FP8_DUAL ? 4 : 6;

    return elements * bytes * 1e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define CONTRACTS (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)

#define ROW(op_name, op_id, set_name, low, percent, set, launcher)                                                     \
    {                                                                                                                  \
        .name = "cpu." op_name "." set_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,              \
        .contract = CONTRACTS, .param = {percent, set}, .why_not = why_not, .workspace = sums_workspace, .cost = cost, \
        .launch = launcher                                                                                             \
    }

#define REFERENCE(op_name, op_id)                                                                          \
    {                                                                                                      \
        .name = "cpu." op_name ".c", .op = op_id, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512, \
        .contract = CONTRACTS, .param = {9000}, .workspace = reference_workspace, .cost = cost,            \
        .launch = launch_reference                                                                         \
    }

#if defined(__x86_64__)
#define ROWS(op_name, op_id, launcher)                                               \
    ROW(op_name, op_id, "avx512vbmi", RIDGE_ARCH_AVX512, 110, AVX512VBMI, launcher), \
        ROW(op_name, op_id, "avx512", RIDGE_ARCH_AVX512, 120, AVX512, launcher),     \
        ROW(op_name, op_id, "avx2", RIDGE_ARCH_AVX2, 130, AVX2, launcher), REFERENCE(op_name, op_id)
#else
#define ROWS(op_name, op_id, launcher) REFERENCE(op_name, op_id)
#endif

static const ridge_kernel rows[] = {
    ROWS("quantize_fp8", RIDGE_QUANTIZE_FP8, launch_fp8),
    ROWS("quantize_fp8_dual", RIDGE_QUANTIZE_FP8_DUAL, launch_fp8),
    ROWS("swiglu_quantize", RIDGE_SWIGLU_QUANTIZE, launch_swiglu),
};

const ridge_kernel_list ridge_cpu_quantize = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

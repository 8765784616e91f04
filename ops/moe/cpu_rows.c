/* cpu_rows.c: moe_gate_up_swiglu and moe_down on x86 CPUs. As on a GPU, an expert is an entry of a list with all of its
 * (token, slot) pairs, at most 16 in one entry, so that its weights are read once. Products of codes are those of
 * ops/q8_0 and ops/blocks (x is laid out once an entry, in the workspace); those of floats are cpu_simd.h's. A thread
 * has 32 rows: of one entry in gate_up, of all entries in down, whose weighted sums follow at once. */
#include "cpu.h"

#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/blocks/cpu.h"
#include "ops/q8_0/cpu.h"

#if defined(__x86_64__)

enum { PAIRS = RIDGE_MOE_MAX_TOKENS * RIDGE_MOE_MAX_SLOTS, COLUMNS = RIDGE_Q8_0_MAX_TOKENS, ROWS = MOE_CPU_ROWS };

/* An instruction set, by param[0] of a row: `codes` for weights of Q8_0 and `tiles` for block formats, or `floats`. */
typedef struct moe_set {
    const q8_0_vectors *codes;
    const block_vectors *tiles;
    moe_dot *floats;
} moe_set;

static const moe_set sets[] = {
    {&ridge_cpu_q8_0_vnni256, &ridge_cpu_blocks_vnni256, NULL},
    {&ridge_cpu_q8_0_avxvnni, &ridge_cpu_blocks_avxvnni, NULL},
    {&ridge_cpu_q8_0_avx2, &ridge_cpu_blocks_avx2, NULL},
    {NULL, NULL, ridge_cpu_moe_dot_avx512},
    {NULL, NULL, ridge_cpu_moe_dot_avx2},
};
enum { VNNI256, AVXVNNI, AVX2, FLOATS_AVX512, FLOATS_AVX2 };

/* An expert and its pairs, token * slots + slot, in order. */
typedef struct entry {
    int32_t expert;
    int32_t count;
    uint16_t pair[COLUMNS];
} entry;

typedef struct work {
    moe_args a;
    moe_set set;
    entry list[PAIRS];
    int64_t entries, groups;
    char *prepared; /* x of an entry's pairs: entry by entry, as many columns each */
    void *tables;   /* of block formats */
    void (*prepare)(const struct work *w, int64_t e);
    int64_t parts; /* of all entries; threads take FEW of them as they become free */
} work;

enum { FEW = 4 };

static void make_list(work *w)
{
    const moe_args *a = &w->a;

    for (int pair = 0; pair < a->tokens * a->slots; pair++) {
        const int32_t id = a->ids[pair / a->slots * a->ids_stride + pair % a->slots];
        int64_t e = w->entries - 1;

        if (id < 0 || id >= a->experts)
            continue;
        while (e >= 0 && (w->list[e].expert != id || w->list[e].count == COLUMNS))
            e--;
        if (e < 0) {
            e = w->entries++;
            w->list[e].expert = id;
            w->list[e].count = 0;
        }
        w->list[e].pair[w->list[e].count++] = (uint16_t)pair;
    }
}

/* Where x of the first pair of an entry is laid out: all pairs before it have `size` bytes each. */
static char *prepared_of(const work *w, int64_t e, size_t size)
{
    size_t before = 0;

    for (int64_t i = 0; i < e; i++)
        before += (size_t)w->list[i].count;
    return w->prepared + before * size;
}

/* ------------------------------------------------------------------------------------------------------------ codes */

/* The call of Q8_0 that pair `column` of an entry is token `column` of: prepare reads its x there. */
static void lay_out(const work *w, int64_t e, int column, ridge_call *call, q8_0_args *q)
{
    const moe_args *a = &w->a;
    const int pair = w->list[e].pair[column], t = pair / a->slots, s = pair % a->slots;

    call->arg[0] = (ridge_operand){.dtype = RIDGE_I8, .stride = 0};
    call->arg[1] = (ridge_operand){.dtype = RIDGE_F32, .stride = 0};
    call->arg[0].data = (void *)((uintptr_t)a->x + (size_t)(t * a->x_stride + s * a->x_slot));
    call->arg[1].data = (void *)((uintptr_t)(a->x_scales + t * a->x_ld + s * a->x_slot_ld));
    *q = (q8_0_args){.call = call, .tokens = w->list[e].count, .blocks = a->cols / 32};
    q->prepared = prepared_of(w, e, (size_t)w->groups * w->set.codes->prepared);
}

static void prepare_entry(const work *w, int64_t e)
{
    ridge_call call = {0};
    q8_0_args q;

    for (int column = 0; column < w->list[e].count; column++) {
        lay_out(w, e, column, &call, &q);
        for (int64_t g = 0; g < w->groups; g++)
            w->set.codes->prepare(&q, column, g);
    }
}

static void dots_of_codes(const work *w, int64_t e, int which, int64_t row, int count, float (*y)[COLUMNS])
{
    const moe_args *a = &w->a;
    const moe_weight *m = &a->weight[which];
    const int64_t expert = w->list[e].expert;
    const q8_0_weight weight = {.codes = (const uint8_t *)m->data + expert * m->stride,
                                .scales = (const uint8_t *)m->scales + expert * m->scales_stride,
                                .rows = a->rows,
                                .stride = a->cols,
                                .step = RIDGE_Q8_0_BLOCK,
                                .scale_stride = a->cols / 16,
                                .scale_step = 2};
    ridge_call call = {0};
    q8_0_args q;

    lay_out(w, e, 0, &call, &q);
    for (int i = 0; i < count; i += Q8_0_ROWS)
        w->set.codes->dots(&q, &weight, row + i, (int)ridge_min(Q8_0_ROWS, count - i), y + i);
}

/* ------------------------------------------------------------------------------------------------------------ tiles */

/* The product of tiles whose tokens are an entry's pairs. */
static block_args tiles_of(const work *w, int64_t e)
{
    const size_t size = (size_t)block_units(w->a.cols) * w->set.tiles->prepared;

    return (block_args){.tokens = w->list[e].count,
                        .cols = w->a.cols,
                        .format = (uint32_t)w->a.form,
                        .prepared = prepared_of(w, e, size),
                        .tables = w->tables};
}

/* Blocks beyond the last column are zeros. */
static void prepare_tiles(const work *w, int64_t e)
{
    const moe_args *a = &w->a;
    const block_args args = tiles_of(w, e);

    for (int column = 0; column < w->list[e].count; column++) {
        const int pair = w->list[e].pair[column], t = pair / a->slots, s = pair % a->slots;
        const int8_t *x = (const int8_t *)a->x + t * a->x_stride + s * a->x_slot;
        const float *scales = a->x_scales + t * a->x_ld + s * a->x_slot_ld;
        const int8_t zeros[32] = {0};

        for (int64_t b = 0; b < 8 * block_units(a->cols); b++) {
            const bool there = b < a->cols / 32;

            w->set.tiles->prepare(&args, there ? x + 32 * b : zeros, there ? scales[b] : 0.0f, column, b);
        }
    }
}

static void dots_of_tiles(const work *w, int64_t e, int which, int64_t row, int count, float (*y)[COLUMNS])
{
    const moe_weight *m = &w->a.weight[which];
    const block_args args = tiles_of(w, e);
    const int64_t bytes = block_tile_bytes(block_layout_of(args.format), w->a.cols);
    const uint8_t *tile = (const uint8_t *)m->data + w->list[e].expert * m->stride + row / BLOCK_ROWS * bytes;

    for (int i = 0; i < count; i += BLOCK_ROWS, tile += bytes)
        w->set.tiles->product(&args, tile, y + i);
}

/* ----------------------------------------------------------------------------------------------------------- floats */

/* x of an entry's pairs in f32. */
static void widen_entry(const work *w, int64_t e)
{
    const moe_args *a = &w->a;
    float *to = (float *)(void *)prepared_of(w, e, (size_t)a->cols * sizeof *to);

    for (int column = 0; column < w->list[e].count; column++) {
        const int pair = w->list[e].pair[column];
        const int64_t t = pair / a->slots, s = pair % a->slots, at = t * a->x_stride + s * a->x_slot;
        const float *xs = a->x_fp8 ? a->x_scales + t * a->x_ld + s * a->x_slot_ld : NULL;

        for (int64_t j = 0; j < a->cols; j++, to++)
            *to = ridge_cpu_moe_x(a, xs, at, j);
    }
}

/* Rows row .. row + count - 1 lie in one block of 128. */
static void dots_of_floats(const work *w, int64_t e, int which, int64_t row, int count, float (*y)[COLUMNS])
{
    const moe_args *a = &w->a;
    const moe_weight *m = &a->weight[which];
    const int64_t expert = w->list[e].expert, size = moe_weight_size(a->form);
    const char *rows = m->data + expert * m->stride + row * a->cols * size;
    const float *x = (const float *)(const void *)prepared_of(w, e, (size_t)a->cols * sizeof *x), *scales = NULL;

    if (a->form == RIDGE_E4M3)
        scales = (const float *)(const void *)(m->scales + expert * m->scales_stride) +
                 row / 128 * ridge_ceil_div(a->cols, 128);
    for (int i = 0; i < count; i++)
        for (int column = 0; column < w->list[e].count; column++)
            y[i][column] = w->set.floats(a->form, rows + i * a->cols * size, scales, x + column * a->cols, a->cols);
}

/* ------------------------------------------------------------------------------------------------------------- parts
 */

static void dots(const work *w, int64_t e, int which, int64_t row, int count, float (*y)[COLUMNS])
{
    const moe_weight *m = &w->a.weight[which];
    const float *bias = m->bias ? m->bias + w->list[e].expert * m->bias_stride + row : NULL;

    if (moe_is_tiles((uint32_t)w->a.form))
        dots_of_tiles(w, e, which, row, count, y);
    else if (w->set.codes)
        dots_of_codes(w, e, which, row, count, y);
    else
        dots_of_floats(w, e, which, row, count, y);
    for (int i = 0; i < count && bias; i++)
        for (int column = 0; column < w->list[e].count; column++)
            y[i][column] += bias[i];
}

static void gate_up(const work *w, int64_t e, int64_t first, int count)
{
    float gate[ROWS][COLUMNS], up[ROWS][COLUMNS], y[ROWS] = {0};

    dots(w, e, 0, first, count, gate);
    dots(w, e, 1, first, count, up);
    for (int column = 0; column < w->list[e].count; column++) {
        const int pair = w->list[e].pair[column];

        for (int i = 0; i < count; i++)
            y[i] = ridge_cpu_moe_swiglu(&w->a, gate[i][column], up[i][column]);
        ridge_cpu_moe_store_slot(&w->a, pair / w->a.slots, pair % w->a.slots, first, count, y);
    }
}

static void down(const work *w, int64_t first, int count)
{
    const moe_args *a = &w->a;
    float y[ROWS][COLUMNS], results[PAIRS][ROWS];

    for (int64_t e = 0; e < w->entries; e++) {
        dots(w, e, 0, first, count, y);
        for (int column = 0; column < w->list[e].count; column++)
            for (int i = 0; i < count; i++)
                results[w->list[e].pair[column]][i] = y[i][column];
    }
    for (int t = 0; t < a->tokens; t++)
        for (int i = 0; i < count; i++) {
            float sum = 0.0f;

            for (int s = 0; s < a->slots; s++) {
                const int32_t id = a->ids[t * a->ids_stride + s];

                if (id >= 0 && id < a->experts)
                    sum = ridge_fma(a->weights[t * a->weights_stride + s], results[t * a->slots + s][i], sum);
            }
            ridge_cpu_moe_store_sum(a, t, first + i, sum);
        }
}

/* The parts of gate_up: 32 rows of an entry, and after the entries 32 rows of each slot that has no expert. */
static void run_part(const work *w, int64_t part)
{
    const moe_args *a = &w->a;
    const int64_t parts = ridge_ceil_div(a->rows, ROWS), e = part / parts, first = part % parts * ROWS;
    const int count = (int)ridge_min(ROWS, a->rows - first);
    const float zeros[ROWS] = {0};

    if (a->down) {
        down(w, first, count);
    } else if (e < w->entries) {
        gate_up(w, e, first, count);
    } else {
        for (int pair = 0; pair < a->tokens * a->slots; pair++) {
            const int32_t id = a->ids[pair / a->slots * a->ids_stride + pair % a->slots];

            if (id < 0 || id >= a->experts)
                ridge_cpu_moe_store_slot(a, pair / a->slots, pair % a->slots, first, count, zeros);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- rows */

static void rows_thread(const void *args, ridge_thread thread)
{
    const work *w = args;

    for (int64_t e = ridge_team_first(thread, w->entries); e < ridge_team_last(thread, w->entries); e++)
        w->prepare(w, e);
    ridge_team_wait(thread);
    for (int64_t i = FEW * ridge_team_next(thread.team); i < w->parts; i = FEW * ridge_team_next(thread.team))
        for (int64_t part = i; part < ridge_min(i + FEW, w->parts); part++)
            run_part(w, part);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const bool tiles = moe_is_tiles(bound->problem.dtype[2]);
    work w = {.a = moe_args_of(&bound->call), .set = sets[kernel->param[0]], .prepared = workspace};
    ridge_team *team;

    (void)device, (void)bytes, (void)stream;
    w.groups = ridge_ceil_div(w.a.cols / 32, Q8_0_GROUP);
    make_list(&w);
    if (bound->problem.dtype[2] == RIDGE_IQ2_XXS) {
        w.tables = workspace;
        w.prepared += ridge_round_up((int64_t)w.set.tiles->tables, 256);
        w.set.tiles->fill_tables(w.tables);
    }
    w.prepare = tiles ? prepare_tiles : w.set.codes ? prepare_entry : widen_entry;
    w.parts = ridge_ceil_div(w.a.rows, ROWS) * (w.a.down ? 1 : w.entries + 1);
    team = ridge_team_begin((double)w.entries * (double)w.a.rows * (double)w.a.cols / 4096, w.parts);
    ridge_team_share(team, 0);
    ridge_team_all(team, rows_thread, &w);
    return RIDGE_OK;
}

static size_t workspace_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const moe_set *set = &sets[kernel->param[0]];
    const size_t groups = (size_t)ridge_ceil_div(problem->dim[1] / 32, Q8_0_GROUP);

    (void)device;
    if (moe_is_tiles(problem->dtype[2]))
        return (size_t)ridge_round_up((int64_t)set->tiles->tables, 256) +
               (size_t)(problem->dim[0] * problem->dim[4] * block_units(problem->dim[1])) * set->tiles->prepared;
    return (size_t)(problem->dim[0] * problem->dim[4]) *
           (set->codes ? groups * set->codes->prepared : (size_t)problem->dim[1] * sizeof(float));
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (moe_is_codes(problem->dtype[2]) != (sets[kernel->param[0]].codes != NULL))
        return sets[kernel->param[0]].codes ? "weights are floats" : "weights are codes";
    if (kernel->param[0] == AVXVNNI && !(device->features & RIDGE_HAS_AVX_VNNI))
        return "this processor has no AVX-VNNI";
    if (kernel->param[0] == VNNI256 && !(device->features & RIDGE_HAS_AVX512_VNNI))
        return "this processor has no AVX512-VNNI";
    return NULL;
}

/* param[1]: time in percent of the C reference's. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device;
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * (double)problem->dim[4] *
           kernel->param[1] * 1e-5;
}

#define ROW(op_name, op_id, set_name, low, set, percent)                                                       \
    {                                                                                                          \
        .name = "cpu." op_name "." set_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,      \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,                \
        .param = {set, percent}, .why_not = why_not, .workspace = workspace_of, .cost = cost, .launch = launch \
    }
#define ROWS(op_name, op_id)                                                        \
    ROW(op_name, op_id, "vnni256", RIDGE_ARCH_AVX512, VNNI256, 30),                 \
        ROW(op_name, op_id, "avxvnni", RIDGE_ARCH_AVX2, AVXVNNI, 35),               \
        ROW(op_name, op_id, "avx2", RIDGE_ARCH_AVX2, AVX2, 40),                     \
        ROW(op_name, op_id, "floats_avx512", RIDGE_ARCH_AVX512, FLOATS_AVX512, 10), \
        ROW(op_name, op_id, "floats_avx2", RIDGE_ARCH_AVX2, FLOATS_AVX2, 15)

static const ridge_kernel rows[] = {
    ROWS("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROWS("moe_down", RIDGE_MOE_DOWN),
};

const ridge_kernel_list ridge_cpu_moe_rows = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

#endif

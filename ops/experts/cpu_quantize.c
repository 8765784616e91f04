/* cpu_quantize.c: moe_permute_quantize, moe_swiglu_quantize and moe_swiglu_bwd_quantize on the CPU, in C: tiles of 128
 * rows of one group and 128 columns, each one thread's, whose elements are first copied together in f32. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/math/experts.h"
#include "src/math/quantize.h"
#include "src/math/swiglu.h"
#include "src/util.h"

typedef struct quantize_call {
    const ridge_call *call;
    const ridge_operand *q; /* q, scale, q_t, scale_t, offsets_t */
    const int32_t *rows;    /* NULL: sorted */
    int64_t pairs, cols;
    int32_t experts, slots;
    int e5m2, pow2;
    float floor;
    bool swiglu, backward;
    int32_t start[RIDGE_MOE_MAX_EXPERTS + 1], tile[RIDGE_MOE_MAX_EXPERTS + 1]; /* of each group: first row, tile */
} quantize_call;

static void read_call(const ridge_call *call, quantize_call *a)
{
    const ridge_operand *arg = call->arg;
    const int32_t *offsets;
    int64_t most = 0;

    a->call = call;
    a->backward = call->op == RIDGE_MOE_SWIGLU_BWD_QUANTIZE;
    a->swiglu = call->op == RIDGE_MOE_SWIGLU_QUANTIZE || a->backward;
    a->q = &arg[a->backward ? (int)RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q
                : a->swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_Q
                            : (int)RIDGE_MOE_PERMUTE_QUANTIZE_Q];
    a->rows = a->swiglu ? NULL : arg[RIDGE_MOE_PERMUTE_QUANTIZE_ROWS].data;
    a->slots = a->swiglu ? 1 : (int32_t)call->dim[1];
    a->pairs = call->dim[0] * a->slots;
    a->cols = a->backward ? 2 * call->dim[1] : call->dim[a->swiglu ? 1 : 2];
    a->experts = (int32_t)call->dim[a->swiglu ? 2 : 3];
    a->e5m2 = a->q->dtype == RIDGE_E5M2;
    a->pow2 = (call->flags & RIDGE_POW2) != 0;
    a->floor = a->swiglu ? call->opt.swiglu_quantize.floor : call->opt.quantize.floor;
    offsets = arg[a->backward ? (int)RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS
                  : a->swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS
                              : (int)RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS]
                  .data;
    a->tile[0] = 0;
    for (int32_t e = 0; e <= a->experts; e++) {
        most = offsets[e] > most ? ridge_min(offsets[e], a->pairs) : most;
        a->start[e] = (int32_t)most;
        if (e > 0)
            a->tile[e] = a->tile[e - 1] + (int32_t)ridge_ceil_div(a->start[e] - a->start[e - 1], RIDGE_GROUP);
    }
}

/* swiglu_fwd of `cols` elements of a row, in f32 but rounded to the dtype. */
static void swiglu_row(const quantize_call *a, int64_t row, int64_t col, int64_t cols, float *out)
{
    const ridge_operand *arg = a->call->arg;
    const ridge_operand *gate = &arg[RIDGE_MOE_SWIGLU_QUANTIZE_GATE], *up = &arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP];
    const float *scale = arg[RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE].data;
    const ridge_swiglu_options o = ridge_swiglu_resolve(a->call->opt.swiglu_quantize.swiglu);
    const bool pairs = (a->call->flags & RIDGE_INTERLEAVED) != 0;
    const uint32_t dtype = gate->dtype, act = a->call->flags & RIDGE_ACTIVATION;
    float held;
    const ridge_operand one = {&held, 1, dtype, 0};

    for (int64_t j = 0; j < cols; j++) {
        const int64_t at = row * gate->stride + (pairs ? 2 : 1) * (col + j);
        const float u = pairs ? ridge_load_element(dtype, gate->data, at + 1)
                              : ridge_load_element(dtype, up->data, row * up->stride + col + j);
        float h = ridge_act_fwd(act, ridge_swiglu_gate(ridge_load_element(dtype, gate->data, at), o), o.alpha);

        if (a->call->flags & RIDGE_ROUND_GATE) {
            ridge_store_element(&one, 0, h);
            h = ridge_load_element(dtype, &held, 0);
        }
        ridge_store_element(&one, 0, ridge_swiglu_scale(h * ridge_swiglu_up(u, o), scale ? scale[row] : 1.0f, o));
        out[j] = ridge_load_element(dtype, &held, 0);
    }
}

/* swiglu_bwd of an element: dgate and dup, not rounded; returns its term of drow. */
static float swiglu_bwd_element(const quantize_call *a, int64_t row, int64_t col, float *dgate, float *dup)
{
    const ridge_operand *arg = a->call->arg, *dout = &arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT];
    const ridge_operand *gate = &arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_GATE], *up = &arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP];
    const float *scale = arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_ROW_SCALE].data;
    const ridge_swiglu_options o = ridge_swiglu_resolve(a->call->opt.swiglu_quantize.swiglu);
    const float y = ridge_load_element(dout->dtype, dout->data, row * dout->stride + col);
    const float g = ridge_load_element(dout->dtype, gate->data, row * gate->stride + col);
    const float u = ridge_load_element(dout->dtype, up->data, row * up->stride + col), b = ridge_swiglu_up(u, o);
    const float dy = ridge_swiglu_scale(y, scale ? scale[row] : 1.0f, o);
    float dh, h = ridge_act_bwd(a->call->flags & RIDGE_ACTIVATION, ridge_swiglu_gate(g, o), o.alpha, &dh);

    *dup = ridge_swiglu_dup(dy * h, u, o);
    *dgate = ridge_swiglu_dgate(dy * b, dh, g, o);
    return y * ridge_swiglu_drow(h, b, o);
}

/* `cols` elements of a row of dgate and dup side by side, in f32 but rounded to the dtype. */
static void swiglu_bwd_row(const quantize_call *a, int64_t row, int64_t col, int64_t cols, float *out)
{
    const uint32_t dtype = a->call->arg[0].dtype;
    const int64_t half = a->cols / 2;
    float held, dgate, dup;
    const ridge_operand one = {&held, 1, dtype, 0};

    for (int64_t j = 0; j < cols; j++) {
        swiglu_bwd_element(a, row, (col + j) % half, &dgate, &dup);
        ridge_store_element(&one, 0, col + j < half ? dgate : dup);
        out[j] = ridge_load_element(dtype, &held, 0);
    }
}

static float drow_of(const quantize_call *a, int64_t row)
{
    const int64_t cols = a->cols / 2;
    float sum = 0, dgate, dup;

    for (int64_t first = 0; first < cols; first += RIDGE_GROUP) {
        float part[RIDGE_GROUP / RIDGE_EXPERTS_GROUP] = {0};

        for (int64_t col = first; col < ridge_min(first + RIDGE_GROUP, cols); col++)
            part[(col - first) / RIDGE_EXPERTS_GROUP] += swiglu_bwd_element(a, row, col, &dgate, &dup);
        for (int s = 1; s < RIDGE_GROUP / RIDGE_EXPERTS_GROUP; s *= 2)
            for (int p = 0; p < RIDGE_GROUP / RIDGE_EXPERTS_GROUP; p += 2 * s)
                part[p] += part[p + s];
        sum += part[0];
    }
    return ridge_f32_canonical(sum);
}

/* The elements of a tile; rows and columns beyond those that it has are 0. */
static void load_tile(const quantize_call *a, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      float (*x)[RIDGE_GROUP])
{
    const ridge_operand *from = &a->call->arg[0];
    const int64_t size = from->dtype == RIDGE_F32 ? 4 : 2;

    memset(x, 0, sizeof *x * RIDGE_GROUP);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t pair = a->rows ? a->rows[row + i] : row + i;

        if (a->backward)
            swiglu_bwd_row(a, row + i, col, cols, x[i]);
        else if (a->swiglu)
            swiglu_row(a, row + i, col, cols, x[i]);
        else if (pair >= 0 && pair < a->pairs)
            ridge_widen(from->dtype, (const char *)from->data + (pair / a->slots * from->stride + col) * size, cols,
                        x[i]);
    }
}

/* The scale of a row of a tile, or of a column, and what its elements are multiplied by. */
static float scale_of(const quantize_call *a, const float *x, int64_t step, float *reciprocal)
{
    uint32_t amax = 0;
    float s;

    for (int64_t i = 0; i < RIDGE_GROUP; i++)
        amax = ridge_magnitude(x[i * step]) > amax ? ridge_magnitude(x[i * step]) : amax;
    s = ridge_fp8_scale(amax, a->floor, a->e5m2, a->pow2);
    *reciprocal = ridge_fp8_reciprocal(s);
    return s;
}

/* Tile `tile` of the padded rows, of group e, and tile tc of the columns. */
static void quantize_tile(const quantize_call *a, int32_t e, int64_t tile, int64_t tc)
{
    const int64_t row = a->start[e] + (tile - a->tile[e]) * RIDGE_GROUP, col = tc * RIDGE_GROUP;
    const int64_t rows = ridge_min(RIDGE_GROUP, a->start[e + 1] - row), cols = ridge_min(RIDGE_GROUP, a->cols - col);
    const ridge_operand *scale = &a->q[1], *q_t = &a->q[2], *scale_t = &a->q[3];
    float x[RIDGE_GROUP][RIDGE_GROUP], r;

    load_tile(a, row, rows, col, cols, x);
    for (int64_t i = 0; i < rows; i++) {
        uint8_t *to = (uint8_t *)a->q->data + (row + i) * a->q->stride + col;

        ((float *)scale->data)[tc * scale->stride + row + i] = scale_of(a, x[i], 1, &r);
        for (int64_t j = 0; j < cols; j++)
            to[j] = ridge_fp8_from_f32(x[i][j] * r, a->e5m2);
    }
    for (int64_t j = 0; j < cols && q_t->data; j++) {
        uint8_t *to = (uint8_t *)q_t->data + (col + j) * q_t->stride + tile * RIDGE_GROUP;

        ((float *)scale_t->data)[tile * scale_t->stride + col + j] = scale_of(a, &x[0][j], RIDGE_GROUP, &r);
        for (int64_t i = 0; i < RIDGE_GROUP; i++)
            to[i] = ridge_fp8_from_f32(x[i][j] * r, a->e5m2);
    }
}

static void quantize_row_of_tiles(const void *args, int64_t tile)
{
    const quantize_call *a = args;
    float *drow = a->backward ? a->call->arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW].data : NULL;
    int32_t e = 0;
    int64_t row;

    while (a->tile[e + 1] <= tile)
        e++;
    row = a->start[e] + (tile - a->tile[e]) * RIDGE_GROUP;
    for (int64_t i = 0; i < ridge_min(RIDGE_GROUP, a->start[e + 1] - row) && drow; i++)
        drow[row + i] = drow_of(a, row + i);
    for (int64_t tc = 0; tc < ridge_ceil_div(a->cols, RIDGE_GROUP); tc++)
        quantize_tile(a, e, tile, tc);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    quantize_call a;
    int32_t *offsets_t;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    read_call(&bound->call, &a);
    offsets_t = a.q[4].data;
    for (int32_t e = 0; e <= a.experts && offsets_t; e++)
        offsets_t[e] = a.tile[e] * RIDGE_GROUP;
    ridge_team_run((double)a.pairs * (double)a.cols / 100, a.tile[a.experts], quantize_row_of_tiles, &a);
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * 1e-2;
}

#define ROW(text, number)                                                                                    \
    {                                                                                                        \
        .name = "cpu." text ".c", .op = number, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512,     \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE, .cost = cost, .launch = launch \
    }

static const ridge_kernel rows[] = {
    ROW("moe_permute_quantize", RIDGE_MOE_PERMUTE_QUANTIZE),
    ROW("moe_swiglu_quantize", RIDGE_MOE_SWIGLU_QUANTIZE),
    ROW("moe_swiglu_bwd_quantize", RIDGE_MOE_SWIGLU_BWD_QUANTIZE),
};

const ridge_kernel_list ridge_cpu_experts_quantize = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

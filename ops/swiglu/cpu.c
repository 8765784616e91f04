/* cpu.c: swiglu_fwd and swiglu_bwd on the CPU: the C reference, the threads around the SIMD rows, and the kernel
 * list.
 *
 * The reference is the oracle of every test: one element at a time, nothing shared with the fast rows but the formulas
 * of src/math/swiglu.h. The fast rows divide every row into work tiles; a tile's result depends on nothing but its own
 * operands, so that neither the division nor the number of threads can be seen. */
#include "cpu.h"

#include "cpu/num.h"
#include "cpu/team.h"
#include "src/util.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* -------------------------------------------------------------------------------------------------------- reference */

/* The index of element (row, col). */
static int64_t element(const ridge_operand *x, int64_t row, int64_t col)
{
    return row * x->stride + col;
}

static float load(const ridge_operand *x, int64_t i)
{
    switch (x->dtype) {
    case RIDGE_BF16:
        return ridge_f32_from_bf16(((const uint16_t *)x->data)[i]);
    case RIDGE_F16:
        return ridge_f32_from_f16(((const uint16_t *)x->data)[i]);
    default:
        return ((const float *)x->data)[i];
    }
}

static void store(const ridge_operand *x, int64_t i, float value)
{
    switch (x->dtype) {
    case RIDGE_BF16:
        ((uint16_t *)x->data)[i] = ridge_bf16_from_f32(value);
        break;
    case RIDGE_F16:
        ((uint16_t *)x->data)[i] = ridge_f16_from_f32(value);
        break;
    default:
        ((float *)x->data)[i] = ridge_f32_canonical(value);
        break;
    }
}

static float rounded(uint32_t dtype, float x)
{
    switch (dtype) {
    case RIDGE_BF16:
        return ridge_f32_from_bf16(ridge_bf16_from_f32(x));
    case RIDGE_F16:
        return ridge_f32_from_f16(ridge_f16_from_f32(x));
    default:
        return x;
    }
}

static float row_factor(const ridge_operand *x, int64_t row)
{
    return x->data ? ((const float *)x->data)[row] : 1.0f;
}

/* Gate and up of (row, col), raw. */
static void load_gate_up(const ridge_call *call, int gate, int64_t row, int64_t col, float *a, float *b)
{
    const ridge_operand *g = &call->arg[gate], *u = &call->arg[gate + 1];

    if (call->flags & RIDGE_INTERLEAVED) {
        *a = load(g, element(g, row, 2 * col));
        *b = load(g, element(g, row, 2 * col + 1));
    } else {
        *a = load(g, element(g, row, col));
        *b = load(u, element(u, row, col));
    }
}

static void fwd_row(const ridge_call *call, int64_t row)
{
    const ridge_swiglu_options o = ridge_swiglu_resolve(call->opt.swiglu);
    const ridge_operand *out = &call->arg[RIDGE_SWIGLU_FWD_OUT];
    const float factor = row_factor(&call->arg[RIDGE_SWIGLU_FWD_ROW_SCALE], row);

    for (int64_t col = 0; col < call->dim[1]; col++) {
        float gate, up, a, b, h;
        load_gate_up(call, RIDGE_SWIGLU_FWD_GATE, row, col, &gate, &up);
        a = ridge_swiglu_gate(gate, o);
        b = ridge_swiglu_up(up, o);
        h = ridge_act_fwd(call->flags & RIDGE_ACTIVATION, a, o.alpha);
        if (call->flags & RIDGE_ROUND_GATE)
            h = rounded(out->dtype, h);
        store(out, element(out, row, col), ridge_swiglu_scale(h * b, factor, o));
    }
}

static void bwd_row(const ridge_call *call, int64_t row)
{
    const ridge_swiglu_options o = ridge_swiglu_resolve(call->opt.swiglu);
    const ridge_operand *dout = &call->arg[RIDGE_SWIGLU_BWD_DOUT], *drow = &call->arg[RIDGE_SWIGLU_BWD_DROW];
    const ridge_operand *dgate = &call->arg[RIDGE_SWIGLU_BWD_DGATE], *dup = &call->arg[RIDGE_SWIGLU_BWD_DUP];
    const float factor = row_factor(&call->arg[RIDGE_SWIGLU_BWD_ROW_SCALE], row);
    const bool round = call->flags & RIDGE_ROUND_GATE_BWD;
    const int64_t cols = call->dim[1];
    float part[RIDGE_DROW_PARTS] = {0};

    for (int64_t col = 0; col < cols; col++) {
        float gate, up, a, b, h, dh, dy, dyp, dyb, db, da;
        load_gate_up(call, RIDGE_SWIGLU_BWD_GATE, row, col, &gate, &up);
        dy = load(dout, element(dout, row, col));
        a = ridge_swiglu_gate(gate, o);
        b = ridge_swiglu_up(up, o);
        h = ridge_act_bwd(call->flags & RIDGE_ACTIVATION, a, o.alpha, &dh);
        dyp = ridge_swiglu_scale(dy, factor, o);
        dyb = round ? rounded(dgate->dtype, dyp * b) : dyp * b;
        db = ridge_swiglu_dup(dyp * (round ? rounded(dgate->dtype, h) : h), up, o);
        da = ridge_swiglu_dgate(dyb, dh, gate, o);
        part[col / RIDGE_DROW_GROUP % RIDGE_DROW_PARTS] += dy * ridge_swiglu_drow(h, b, o);
        if (call->flags & RIDGE_INTERLEAVED) {
            store(dgate, element(dgate, row, 2 * col), da);
            store(dgate, element(dgate, row, 2 * col + 1), db);
        } else {
            store(dgate, element(dgate, row, col), da);
            store(dup, element(dup, row, col), db);
        }
    }
    for (int s = RIDGE_DROW_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    if (drow->data)
        store(drow, row, part[0]);
}

void ridge_cpu_swiglu_reference(const ridge_call *call)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const one_row)(const ridge_call *, int64_t) = call->op == RIDGE_SWIGLU_FWD ? fwd_row : bwd_row;
    const bool work = call->dim[1] || (call->op == RIDGE_SWIGLU_BWD && call->arg[RIDGE_SWIGLU_BWD_DROW].data);
    const int64_t rows = work ? call->dim[0] : 0;
    ridge_team *team;

    team = ridge_team_begin((double)(rows * call->dim[1]) / 256, rows);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; row++)
            one_row(call, row);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    ridge_cpu_swiglu_reference(&bound->call);
    return RIDGE_OK;
}

/* -------------------------------------------------------------------------------------------------------- SIMD rows */

swiglu_args ridge_cpu_swiglu_args(const ridge_problem *problem, const ridge_call *call)
{
    swiglu_args args = swiglu_args_of(call);

    args.plain = problem->plain && !args.row_scale && !args.drow &&
                 !(args.flags & (args.backward ? RIDGE_ROUND_GATE_BWD : RIDGE_ROUND_GATE));
    return args;
}

#if defined(__x86_64__)

/* Columns of a work tile: whole blocks, and long enough that its start does not count. */
enum { TILE = 4096, PER_US = 2048 /* elements */ };

/* Streaming stores pay when the outputs do not fit the cache and their lines were not just read as inputs. */
static bool streams(const ridge_device *device, const swiglu_args *args)
{
    bool alias =
        args->out.data == args->gate.data || args->out.data == args->up.data || args->out.data == args->dout.data;
    double bytes = (double)args->rows * (double)args->cols * args->size * (args->backward ? 2 : 1);

    if (args->second.data)
        alias = alias || args->second.data == args->gate.data || args->second.data == args->up.data ||
                args->second.data == args->dout.data;
    return !alias && ridge_cpu_streams(device, bytes);
}

static bool is_packed(swiglu_matrix m, int64_t cols)
{
    return !m.data || m.stride == cols;
}

/* Elementwise work on packed operands does not depend on the row: as one long row, narrow matrices run at full speed.
 */
static void flatten(swiglu_args *args)
{
    const int64_t wide = args->flags & RIDGE_INTERLEAVED ? 2 * args->cols : args->cols;
    const int64_t wide_out = args->backward ? wide : args->cols;

    if (!args->row_scale && !args->drow && is_packed(args->gate, wide) && is_packed(args->up, args->cols) &&
        is_packed(args->dout, args->cols) && is_packed(args->out, wide_out) && is_packed(args->second, args->cols)) {
        args->cols *= args->rows;
        args->rows = 1;
    }
}

static ridge_status launch_tiles(const ridge_device *device, const ridge_bound *bound, swiglu_columns *columns)
{
    swiglu_args args = ridge_cpu_swiglu_args(&bound->problem, &bound->call);
    ridge_team *team;

    if (args.rows == 0 || (args.cols == 0 && !args.drow))
        return RIDGE_OK;
    args.stream = streams(device, &args);
    flatten(&args);
    args.tile = args.drow ? args.cols : TILE; /* drow is one sum over its row */
    args.tiles = args.drow ? 1 : (uint32_t)ridge_ceil_div(args.cols, TILE);
    team = ridge_team_begin((double)(args.rows * args.cols) / PER_US, args.rows * args.tiles);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < args.rows * args.tiles; i++) {
            const int64_t row = i / args.tiles, begin = i % args.tiles * args.tile;

            columns(&args, row, begin, ridge_min(args.cols, begin + args.tile));
        }
        if (args.stream)
            _mm_sfence();
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static ridge_status launch_avx2(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                void *workspace, size_t bytes, void *stream)
{
    (void)kernel, (void)workspace, (void)bytes, (void)stream;
    return launch_tiles(device, bound, ridge_cpu_swiglu_avx2);
}

static ridge_status launch_avx512(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    (void)kernel, (void)workspace, (void)bytes, (void)stream;
    return launch_tiles(device, bound, ridge_cpu_swiglu_avx512);
}

#endif

/* ------------------------------------------------------------------------------------------------------------- list */

/* param[0] is the row's time in percent of the time the memory needs. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const uint32_t dtype = problem->dtype[0];
    const double matrices = problem->op == RIDGE_SWIGLU_FWD ? 3 : 5;
    const double bytes = (double)problem->dim[0] * (double)problem->dim[1] * matrices * (dtype == RIDGE_F32 ? 4 : 2);

    return bytes * 1e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define ROW(op_name, op_id, arch_name, low, percent, launcher)                                                      \
    {                                                                                                               \
        .name = "cpu." op_name "." arch_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,          \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .param = {percent}, \
        .cost = cost, .launch = launcher                                                                            \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("swiglu_fwd", RIDGE_SWIGLU_FWD, "avx512", RIDGE_ARCH_AVX512, 110, launch_avx512),
    ROW("swiglu_fwd", RIDGE_SWIGLU_FWD, "avx2", RIDGE_ARCH_AVX2, 120, launch_avx2),
#endif
    ROW("swiglu_fwd", RIDGE_SWIGLU_FWD, "c", RIDGE_ARCH_C, 5000, launch_reference),
#if defined(__x86_64__)
    ROW("swiglu_bwd", RIDGE_SWIGLU_BWD, "avx512", RIDGE_ARCH_AVX512, 110, launch_avx512),
    ROW("swiglu_bwd", RIDGE_SWIGLU_BWD, "avx2", RIDGE_ARCH_AVX2, 120, launch_avx2),
#endif
    ROW("swiglu_bwd", RIDGE_SWIGLU_BWD, "c", RIDGE_ARCH_C, 5000, launch_reference),
};

const ridge_kernel_list ridge_cpu_swiglu = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

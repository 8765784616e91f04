/* cpu.c: Q8_0 decode on the CPU: the C references, the threads around the SIMD rows (cpu_simd.h), and
 * the kernel list.
 *
 * The references are the oracle of every test. A fused op's reference is the composition of the unfused ones, through
 * f32 matrices in the workspace; nothing is shared with the fast rows but the formulas of src/math/q8_0.h. */
#include "cpu.h"

#include <string.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/q8_0/op.h"
#include "ops/swiglu/cpu.h"
#include "src/util.h"

/* -------------------------------------------------------------------------------------------------------- arguments */

static q8_0_weight weight_of(const ridge_call *call, int slot, int64_t rows)
{
    const ridge_operand *w = &call->arg[slot], *s = &call->arg[slot + 1];
    q8_0_weight m = {.codes = w->data, .rows = rows};

    if (w->dtype == RIDGE_I8) {
        m.stride = w->stride;
        m.step = RIDGE_Q8_0_BLOCK;
        m.scales = s->data;
        m.scale_stride = 2 * s->stride;
        m.scale_step = 2;
    } else {
        m.stride = m.scale_stride = w->stride;
        m.step = m.scale_step = RIDGE_Q8_0_BYTES;
        m.scales = w->data;
        if (m.codes)
            m.codes += 2;
    }
    return m;
}

static q8_0_args args_of(const ridge_call *call)
{
    q8_0_args a = {.call = call, .tokens = call->dim[0], .blocks = call->dim[1] / RIDGE_Q8_0_BLOCK};
    const int64_t rows = call->dim[2];

    a.weight[0] = weight_of(call, 2, rows);
    if (call->op == RIDGE_Q8_0_PAIR)
        a.weight[1] = weight_of(call, 4, call->dim[3]);
    if (call->op == RIDGE_Q8_0_GATE_UP_SWIGLU) {
        a.weight[1] = weight_of(call, 4, rows);
        a.swiglu = ridge_swiglu_resolve(call->opt.swiglu);
    }
    return a;
}

/* With a norm: makes the codes of x in the workspace, which then stand for x. kernel: the row of add_rms_norm; NULL:
 * the fastest. */
static ridge_status normalise(const ridge_device *device, const char *kernel, ridge_call *call, char **workspace)
{
    const int slot = ridge_q8_0_norm_slot(call->op);
    const int64_t tokens = call->dim[0], blocks = call->dim[1] / RIDGE_Q8_0_BLOCK;
    ridge_tensor codes;
    ridge_call norm;

    if (slot < 0 || !ridge_has(call, slot) || tokens * blocks == 0)
        return RIDGE_OK;
    codes = ridge_matrix(ridge_take(workspace, tokens * call->dim[1]), RIDGE_I8);
    codes.scaling = RIDGE_SCALING_ROW32;
    codes.scale = ridge_take(workspace, tokens * blocks * (int64_t)sizeof(float));
    norm = ridge_q8_0_norm_call(call, codes);
    norm.kernel = kernel;
    call->arg[0] = (ridge_operand){.data = codes.data, .dtype = RIDGE_I8, .stride = call->dim[1]};
    call->arg[1] = (ridge_operand){.data = codes.scale, .dtype = RIDGE_F32, .stride = blocks};
    return ridge_run(device, &norm, NULL, 0, NULL);
}

/* The bytes that it takes. */
static void normalise_workspace(const ridge_problem *problem, char **at)
{
    const int slot = ridge_q8_0_norm_slot(problem->op);
    const int64_t elements = problem->dim[0] * problem->dim[1];

    if (slot < 0 || problem->dtype[slot] == RIDGE_NONE)
        return;
    ridge_take(at, elements);
    ridge_take(at, elements / RIDGE_Q8_0_BLOCK * (int64_t)sizeof(float));
}

/* -------------------------------------------------------------------------------------------------------- reference */

static void reference_quantize(uint32_t dtype, const void *x, int64_t cols, int8_t *codes, float *scales)
{
    for (int64_t b = 0; b < cols / RIDGE_Q8_0_BLOCK; b++) {
        const int64_t first = b * RIDGE_Q8_0_BLOCK;
        uint32_t amax = 0;
        float r;

        for (int64_t i = first; i < first + RIDGE_Q8_0_BLOCK; i++)
            if (ridge_magnitude(ridge_load_element(dtype, x, i)) > amax)
                amax = ridge_magnitude(ridge_load_element(dtype, x, i));
        scales[b] = ridge_q8_0_x_scale(amax, &r);
        for (int64_t i = first; i < first + RIDGE_Q8_0_BLOCK; i++)
            codes[i] = (int8_t)ridge_q8_0_x_code(ridge_load_element(dtype, x, i), r);
    }
}

/* Activations as codes and scales, row strides in elements. */
typedef struct quantised {
    const int8_t *codes;
    const float *scales;
    int64_t stride, ld;
} quantised;

typedef void quantize_row(uint32_t dtype, const void *x, int64_t cols, int8_t *codes, float *scales);

typedef struct quantize_work {
    const ridge_call *call;
    quantize_row *row;
} quantize_work;

static void quantize_one(const void *args, int64_t r)
{
    const quantize_work *w = args;
    const ridge_operand *arg = w->call->arg, *x = &arg[RIDGE_Q8_0_QUANTIZE_ROWS_X];
    const ridge_operand *q = &arg[RIDGE_Q8_0_QUANTIZE_ROWS_CODES], *s = &arg[RIDGE_Q8_0_QUANTIZE_ROWS_SCALES];
    const int64_t size = x->dtype == RIDGE_F32 ? 4 : 2;

    w->row(x->dtype, (const char *)x->data + r * x->stride * size, w->call->dim[1], (int8_t *)q->data + r * q->stride,
           (float *)s->data + r * s->stride);
}

static void quantize_rows(const ridge_call *call, quantize_row *row)
{
    const int64_t cols = call->dim[1], rows = cols ? call->dim[0] : 0;

    ridge_team_run((double)(rows * cols) / 2048, rows, quantize_one, &(quantize_work){call, row});
}

static ridge_status launch_quantize_reference(const ridge_device *device, const ridge_kernel *kernel,
                                              const ridge_bound *bound, void *workspace, size_t bytes, void *stream)
{
    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    quantize_rows(&bound->call, reference_quantize);
    return RIDGE_OK;
}

static quantised reference_x(const ridge_call *call, char **workspace)
{
    const ridge_operand *x = &call->arg[0], *s = &call->arg[1];
    const int64_t tokens = call->dim[0], cols = call->dim[1], blocks = cols / RIDGE_Q8_0_BLOCK;
    quantised q = {x->data, s->data, x->stride, s->stride};
    ridge_tensor codes;
    ridge_call inside;

    if (x->dtype == RIDGE_I8)
        return q;
    codes = ridge_matrix(ridge_take(workspace, tokens * cols), RIDGE_I8);
    codes.scaling = RIDGE_SCALING_ROW32;
    codes.scale = ridge_take(workspace, tokens * blocks * (int64_t)sizeof(float));
    inside = ridge_q8_0_quantize_rows(tokens, cols, ridge_matrix(x->data, (ridge_dtype)x->dtype), codes);
    inside.arg[RIDGE_Q8_0_QUANTIZE_ROWS_X].stride = x->stride;
    inside.arg[RIDGE_Q8_0_QUANTIZE_ROWS_CODES].stride = cols;
    inside.arg[RIDGE_Q8_0_QUANTIZE_ROWS_SCALES].stride = blocks;
    quantize_rows(&inside, reference_quantize);
    return (quantised){codes.data, codes.scale, cols, blocks};
}

static float reference_dot(const quantised *x, int64_t token, const q8_0_weight *w, int64_t row, int64_t blocks)
{
    const int8_t *codes = x->codes + token * x->stride;
    const float *scales = x->scales + token * x->ld;
    float acc[RIDGE_Q8_0_PARTS] = {0};

    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *q = (const int8_t *)w->codes + row * w->stride + b * w->step;
        float *part = &acc[ridge_q8_0_part(b)];
        int32_t dot = 0;
        uint16_t half;

        memcpy(&half, w->scales + row * w->scale_stride + b * w->scale_step, sizeof half);
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            dot += q[i] * codes[b * RIDGE_Q8_0_BLOCK + i];
        *part = ridge_q8_0_step(*part, ridge_f32_from_f16(half), scales[b], dot);
    }
    return ridge_q8_0_tree(acc);
}

typedef struct reference_work {
    const quantised *x;
    const q8_0_args *a;
    const q8_0_weight *w;
    const ridge_operand *out;
} reference_work;

static void reference_row(const void *args, int64_t r)
{
    const reference_work *w = args;

    for (int64_t t = 0; t < w->a->tokens; t++)
        ridge_store_element(w->out, t * w->out->stride + r, reference_dot(w->x, t, w->w, r, w->a->blocks));
}

/* out[t, r] for all tokens and rows of one weight. */
static void reference_matmul(const quantised *x, const q8_0_args *a, int which, const ridge_operand *out)
{
    const reference_work w = {x, a, &a->weight[which], out};
    const double us = (double)(a->tokens * w.w->rows * a->blocks * RIDGE_Q8_0_BLOCK) * 1e-3;

    ridge_team_run(us, w.w->rows, reference_row, &w);
}

/* A packed f32 matrix [tokens, rows] of the workspace. */
static ridge_operand scratch(const q8_0_args *a, char **workspace)
{
    ridge_operand m = {.dtype = RIDGE_F32, .stride = a->weight[0].rows};

    m.data = ridge_take(workspace, a->tokens * m.stride * (int64_t)sizeof(float));
    return m;
}

static void reference_gate_up(const q8_0_args *a, const quantised *x, char *workspace)
{
    const ridge_call *call = a->call;
    const ridge_operand *out = &call->arg[RIDGE_Q8_0_GATE_UP_SWIGLU_OUT];
    const ridge_operand gate = scratch(a, &workspace), up = scratch(a, &workspace), y = scratch(a, &workspace);
    const int64_t rows = call->dim[2];
    ridge_call swiglu = ridge_swiglu_fwd(a->tokens, rows, RIDGE_F32, gate.data, up.data, y.data);

    swiglu.arg[RIDGE_SWIGLU_FWD_GATE] = gate;
    swiglu.arg[RIDGE_SWIGLU_FWD_UP] = up;
    swiglu.arg[RIDGE_SWIGLU_FWD_OUT] = y;
    reference_matmul(x, a, 0, &gate);
    reference_matmul(x, a, 1, &up);
    swiglu.flags = call->flags & RIDGE_ACTIVATION;
    swiglu.opt.swiglu = call->opt.swiglu;
    swiglu.arg[RIDGE_SWIGLU_FWD_ROW_SCALE] = call->arg[RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE];
    ridge_cpu_swiglu_reference(&swiglu);
    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t r = 0; r < rows; r++)
            ridge_store_element(out, t * out->stride + r, ((const float *)y.data)[t * rows + r]);
}

/* One token; v = W x (+ add) in f32. */
static void reference_expand(const ridge_call *call, int64_t t, const float *v)
{
    const ridge_operand *arg = call->arg, *res = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_RES];
    const ridge_operand *out = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT], *add = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD];
    const ridge_operand *post = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_POST], *comb = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB];
    const int64_t rows = call->dim[2], n = call->dim[3];
    const float *p = (const float *)post->data + t * post->stride;
    const float *c = (const float *)comb->data + t * comb->stride;
    const float *x = (const float *)res->data + t * res->stride;

    for (int64_t r = 0; r < rows; r++) {
        const float more = add->data ? ((const float *)add->data)[t * add->stride + r] : 0.0f;
        const float sum = add->data ? v[r] + more : v[r];

        for (int64_t dst = 0; dst < n; dst++) {
            float acc = ridge_hc_start(sum, p[dst]);

            for (int64_t src = 0; src < n; src++)
                acc = ridge_hc_step(acc, c[dst + n * src], x[src * rows + r]);
            ridge_store_element(out, t * out->stride + dst * rows + r, acc);
        }
    }
}

static void reference_hc(const q8_0_args *a, const quantised *x, char *workspace)
{
    void (*volatile const expand)(const ridge_call *, int64_t, const float *) = reference_expand;
    const ridge_operand v = scratch(a, &workspace), *y = &a->call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_Y];
    const int64_t rows = a->call->dim[2];
    unsigned mode;

    reference_matmul(x, a, 0, &v);
    mode = ridge_fp_begin();
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *from = (const float *)v.data + t * rows;

        if (y->data && rows > 0)
            memcpy((float *)y->data + t * y->stride, from, (size_t)rows * sizeof *from);
        expand(a->call, t, from);
    }
    ridge_fp_end(mode);
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    ridge_call call = bound->call;
    const q8_0_args a = args_of(&call);
    char *rest = workspace;
    ridge_status status;
    quantised x;

    (void)kernel, (void)bytes, (void)stream;
    if (a.tokens == 0)
        return RIDGE_OK;
    status = normalise(device, "cpu.add_rms_norm.c", &call, &rest);
    if (status)
        return status;
    x = reference_x(&call, &rest);
    switch (call.op) {
    case RIDGE_Q8_0_MATMUL:
        reference_matmul(&x, &a, 0, &call.arg[RIDGE_Q8_0_MATMUL_OUT]);
        break;
    case RIDGE_Q8_0_PAIR:
        reference_matmul(&x, &a, 0, &call.arg[RIDGE_Q8_0_PAIR_OUT0]);
        reference_matmul(&x, &a, 1, &call.arg[RIDGE_Q8_0_PAIR_OUT1]);
        break;
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
        reference_gate_up(&a, &x, rest);
        break;
    default:
        reference_hc(&a, &x, rest);
        break;
    }
    return RIDGE_OK;
}

/* Quantised x, and the f32 matrices between the parts of a fused op. */
static size_t reference_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t elements = problem->dim[0] * problem->dim[1], size = (int64_t)sizeof(float);
    const int matrices = problem->op == RIDGE_Q8_0_GATE_UP_SWIGLU     ? 3
                         : problem->op == RIDGE_Q8_0_MATMUL_HC_EXPAND ? 1
                                                                      : 0;
    char *at = NULL;

    (void)device, (void)kernel;
    normalise_workspace(problem, &at);
    if (!at && problem->dtype[0] != RIDGE_I8) {
        ridge_take(&at, elements);
        ridge_take(&at, elements / RIDGE_Q8_0_BLOCK * size);
    }
    for (int i = 0; i < matrices; i++)
        ridge_take(&at, problem->dim[0] * problem->dim[2] * size);
    return (size_t)(uintptr_t)at;
}

/* -------------------------------------------------------------------------------------------------------- SIMD rows */

#if defined(__x86_64__)

/* By param[1] of a kernel row. */
static const q8_0_vectors *const vectors[] = {&ridge_cpu_q8_0_avx2, &ridge_cpu_q8_0_avxvnni, &ridge_cpu_q8_0_vnni256,
                                              &ridge_cpu_q8_0_avx512vnni};
enum { AVX2 = 0, AVXVNNI, VNNI256, AVX512VNNI };

static int64_t groups_of(int64_t cols)
{
    return ridge_ceil_div(cols / RIDGE_Q8_0_BLOCK, Q8_0_GROUP);
}

/* Rows of a unit of work, as many units for each thread: of one token the time is that of the thread with the most (576
 * rows, 16 threads: 36 rows in 3 units of 12; units of 16 rows would leave twelve threads 32 rows and four 48). */
static int64_t unit_of(const q8_0_args *a, int64_t rows, int threads)
{
    const int64_t each = ridge_ceil_div(rows, threads);

    return a->tokens > 1 || rows == 0 ? Q8_0_ROWS : ridge_ceil_div(each, ridge_ceil_div(each, Q8_0_ROWS));
}

/* Units that are shared out beforehand. Where a thread has six or more, the last third goes to threads as they become
 * free: they begin up to 2 us apart, and other work may hold one up. Fewer units lose more by jumping to another place
 * in the weights (960 rows of 576 columns, 16 threads: 7.9 -> 9.1 us). */
static int64_t fixed_units(const q8_0_args *a, int64_t units, int threads)
{
    return a->tokens > 1 || threads == 1 || units < 6 * threads ? units : units * 2 / 3 / threads * threads;
}

/* Prepares x: the groups [first, last) of the groups of all tokens. */
static void prepare(const q8_0_vectors *v, const q8_0_args *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        v->prepare(a, i % a->tokens, i / a->tokens);
}

/* Unit i of the work: rows of the first weight up to unit `first`, then of the second. */
static void run_unit(const q8_0_vectors *v, const q8_0_args *a, int64_t unit, int64_t first, int64_t i)
{
    const int which = i >= first;
    const int64_t row = (i - (which ? first : 0)) * unit;

    for (int64_t token = 0; token < a->tokens; token += Q8_0_PANEL) {
        q8_0_args panel = *a;

        panel.first = token;
        panel.count = ridge_min(Q8_0_PANEL, a->tokens - token);
        v->rows(&panel, which, row, (int)ridge_min(unit, a->weight[which].rows - row));
    }
}

typedef struct vectors_work {
    const ridge_device *device;
    const q8_0_vectors *v;
    ridge_call call;
    q8_0_args a;   /* but for its call */
    char *rest;    /* of the workspace */
    int64_t unit;  /* rows */
    int64_t first; /* units of the first weight */
    int64_t units, fixed;
    bool shared;
    ridge_status *status; /* for the calling thread */
} vectors_work;

/* Requests weights of units [first, last) into the second cache until x is there. */
static void fetch(const vectors_work *w, ridge_thread thread, int64_t first, int64_t last)
{
    const q8_0_args *a = &w->a;
    const int weights = w->call.op == RIDGE_Q8_0_GATE_UP_SWIGLU ? 2 : 1;

    for (int which = 0; which < weights; which++) {
        const q8_0_weight *m = &a->weight[which];
        const uint8_t *end = m->codes + ridge_min(last * w->unit, m->rows) * m->stride;

        for (const uint8_t *at = m->codes + first * w->unit * m->stride; at < end; at += 1024) {
            if (ridge_team_told(thread))
                return;
            for (int i = 0; i < 1024 && i < end - at; i += 64)
                _mm_prefetch((const char *)at + i, _MM_HINT_T1);
        }
    }
}

/* x: by all threads, or a short one by one thread, while the others fetch weights. */
static ridge_status prepare_x(const vectors_work *w, ridge_thread thread, int64_t first, int64_t last)
{
    const int64_t groups = groups_of(w->call.dim[1]) * w->a.tokens;
    ridge_call call = w->call;
    q8_0_args a = w->a;
    char *rest = w->rest;

    a.call = &call;
    if (w->shared) {
        prepare(w->v, &a, ridge_team_first(thread, groups), ridge_team_last(thread, groups));
        ridge_team_wait(thread);
        return RIDGE_OK;
    }
    if (thread.number) {
        fetch(w, thread, first, last);
        return ridge_team_listen(thread) == 1 ? RIDGE_OK : RIDGE_ERR_ARG;
    }
    *w->status = normalise(w->device, NULL, &call, &rest);
    if (!*w->status)
        prepare(w->v, &a, 0, groups);
    ridge_team_tell(thread, *w->status ? 2 : 1);
    return *w->status;
}

static void vectors_thread(const void *args, ridge_thread thread)
{
    const vectors_work *w = args;
    const int64_t first = ridge_team_first(thread, w->fixed), last = ridge_team_last(thread, w->fixed);

    q8_0_args a = w->a;

    a.call = &w->call;
    if (prepare_x(w, thread, first, last))
        return;
    for (int64_t i = first; i < last; i++)
        run_unit(w->v, &a, w->unit, w->first, i);
    if (w->fixed < w->units)
        for (int64_t i = ridge_team_next(thread.team); i < w->units; i = ridge_team_next(thread.team))
            run_unit(w->v, &a, w->unit, w->first, i);
}

/* The work units are rows of the first weight, then those of pair's second weight (gate_up_swiglu computes the same
 * rows of both weights in one unit). */
static ridge_status launch_vectors(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *workspace, size_t bytes, void *stream)
{
    const q8_0_vectors *v = vectors[kernel->param[1]];
    const q8_0_args a = args_of(&bound->call);
    const int64_t rows = a.weight[0].rows, cols = bound->call.dim[1];
    const int64_t all = rows + (bound->call.op == RIDGE_Q8_0_PAIR ? a.weight[1].rows : 0);
    ridge_status status = RIDGE_OK;
    vectors_work w = {.device = device, .v = v, .call = bound->call, .a = a, .rest = workspace, .status = &status};
    ridge_team *team;

    (void)bytes, (void)stream;
    w.a.prepared = ridge_take(&w.rest, a.tokens * groups_of(cols) * (int64_t)v->prepared);
    if (a.tokens == 0)
        return RIDGE_OK;
    w.shared = a.tokens * cols > 16384;
    if (w.shared)
        status = normalise(device, NULL, &w.call, &w.rest);
    if (status)
        return status;
    team = ridge_team_begin((double)(all * cols) / 4096, all);
    w.unit = unit_of(&a, all, team->threads);
    w.first = ridge_ceil_div(rows, w.unit);
    w.units = w.first + ridge_ceil_div(all - rows, w.unit);
    w.fixed = fixed_units(&a, w.units, team->threads);
    ridge_team_share(team, w.fixed);
    ridge_team_part(team, vectors_thread, &w, sizeof w);
    return status;
}

static ridge_status launch_quantize_vectors(const ridge_device *device, const ridge_kernel *kernel,
                                            const ridge_bound *bound, void *workspace, size_t bytes, void *stream)
{
    (void)device, (void)workspace, (void)bytes, (void)stream;
    quantize_rows(&bound->call, vectors[kernel->param[1]]->quantize);
    return RIDGE_OK;
}

static size_t vectors_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    char *at = NULL;

    (void)device;
    ridge_take(&at, problem->dim[0] * groups_of(problem->dim[1]) * (int64_t)vectors[kernel->param[1]]->prepared);
    normalise_workspace(problem, &at);
    return (size_t)(uintptr_t)at;
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)problem;
    if (kernel->param[1] == AVXVNNI && !(device->features & RIDGE_HAS_AVX_VNNI))
        return "this processor has no AVX-VNNI";
    if (kernel->param[1] >= VNNI256 && !(device->features & RIDGE_HAS_AVX512_VNNI))
        return "this processor has no AVX512-VNNI";
    return NULL;
}

#endif

/* ------------------------------------------------------------------------------------------------------------- list */

/* param[0] is the row's time with one token in percent of the time the memory needs, param[2] what each further token
 * adds. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    double percent = kernel->param[0] + kernel->param[2] * (double)(problem->dim[0] - 1);
    double rows = (double)problem->dim[2];

    if (problem->op == RIDGE_Q8_0_QUANTIZE_ROWS) {
        rows = 5 * (double)problem->dim[0];
        percent = kernel->param[0];
    }
    if (problem->op == RIDGE_Q8_0_PAIR)
        rows += (double)problem->dim[3];
    if (problem->op == RIDGE_Q8_0_GATE_UP_SWIGLU)
        rows *= 2;
    return rows * (double)problem->dim[1] * 1e-3 / device->copy_gbps * 0.01 * percent;
}

#define CONTRACTS (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)

#define REFERENCE(op_name, op_id, need, launcher)                                                            \
    {                                                                                                        \
        .name = "cpu." op_name ".c", .op = op_id, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512,   \
        .contract = CONTRACTS, .param = {5000, 0, 5000}, .workspace = need, .cost = cost, .launch = launcher \
    }

#define ROW(op_name, op_id, set_name, low, percent, more, set, need, launcher)                                     \
    {                                                                                                              \
        .name = "cpu." op_name "." set_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,          \
        .contract = CONTRACTS, .param = {percent, set, more}, .why_not = why_not, .workspace = need, .cost = cost, \
        .launch = launcher                                                                                         \
    }

#if defined(__x86_64__)
#define ROWS(op_name, op_id)                                                                                      \
    ROW(op_name, op_id, "avx512vnni", RIDGE_ARCH_AVX512, 240, 18, AVX512VNNI, vectors_workspace, launch_vectors), \
        ROW(op_name, op_id, "vnni256", RIDGE_ARCH_AVX512, 130, 38, VNNI256, vectors_workspace, launch_vectors),   \
        ROW(op_name, op_id, "avxvnni", RIDGE_ARCH_AVX2, 135, 40, AVXVNNI, vectors_workspace, launch_vectors),     \
        ROW(op_name, op_id, "avx2", RIDGE_ARCH_AVX2, 150, 53, AVX2, vectors_workspace, launch_vectors),           \
        REFERENCE(op_name, op_id, reference_workspace, launch_reference)
#else
#define ROWS(op_name, op_id) REFERENCE(op_name, op_id, reference_workspace, launch_reference)
#endif

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("q8_0_quantize_rows", RIDGE_Q8_0_QUANTIZE_ROWS, "vnni256", RIDGE_ARCH_AVX512, 120, 0, VNNI256, NULL,
        launch_quantize_vectors),
    ROW("q8_0_quantize_rows", RIDGE_Q8_0_QUANTIZE_ROWS, "avx2", RIDGE_ARCH_AVX2, 140, 0, AVX2, NULL,
        launch_quantize_vectors),
#endif
    REFERENCE("q8_0_quantize_rows", RIDGE_Q8_0_QUANTIZE_ROWS, NULL, launch_quantize_reference),
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROWS("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

const ridge_kernel_list ridge_cpu_q8_0_matmul = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

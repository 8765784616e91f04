/* matmul_host.cu: the host half that every CUDA row of the four Q8_0 products shares: the arguments of a bound call,
 * and the launch that quantises its activations into the workspace. */
#include "args.cuh"

/* The scales of activations in a workspace, by token or by block; *at advances behind them. */
static float *take_scales(char **at, int64_t tokens, int64_t cols)
{
    return (float *)ridge_take(at, ridge_round_up(tokens, 16) * (cols / RIDGE_Q8_0_BLOCK) * (int64_t)sizeof(float));
}

/* The codes and scales of quantised activations. */
static void take_x(char **at, int64_t tokens, int64_t cols, q8_0_rows_args *x)
{
    x->codes = (int8_t *)ridge_take(at, tokens * cols);
    x->scales = take_scales(at, tokens, cols);
}

size_t q8_0_workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    q8_0_rows_args x = {};
    char *at = NULL;

    if (problem->dtype[0] != RIDGE_I8)
        take_x(&at, problem->dim[0], problem->dim[1], &x);
    return (size_t)(uintptr_t)at;
}

size_t q8_0_gemm_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    char *at = NULL;

    if (problem->dtype[0] != RIDGE_I8 && !q8_0_has_norm(problem))
        return q8_0_workspace(device, kernel, problem);
    at = (char *)(uintptr_t)q8_0_workspace(device, kernel, problem); /* of the codes that the norm makes */
    take_scales(&at, problem->dim[0], problem->dim[1]);
    return (size_t)(uintptr_t)at;
}

static q8_0_weight weight_of(const ridge_call *call, int slot, int64_t rows)
{
    const ridge_operand *w = &call->arg[slot], *s = &call->arg[slot + 1];
    q8_0_weight m = {};

    m.rows = rows;
    m.codes = (const uint8_t *)w->data;
    m.stride = w->stride;
    if (w->dtype == RIDGE_I8) {
        m.step = RIDGE_Q8_0_BLOCK;
        m.scales = (const uint8_t *)s->data;
        m.scale_stride = 2 * s->stride;
        m.scale_step = 2;
    } else {
        m.scale_stride = m.stride;
        m.step = m.scale_step = RIDGE_Q8_0_BYTES;
        m.scales = m.codes;
        m.codes += 2;
    }
    return m;
}

static void collect_hc(const ridge_call *call, q8_0_matmul_args *p)
{
    const ridge_operand *post = &call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_POST],
                        *comb = &call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB],
                        *res = &call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_RES],
                        *add = &call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD],
                        *y = &call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_Y],
                        *out = &call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT];

    p->n_hc = (int)call->dim[3];
    p->post = (const float *)post->data;
    p->post_ld = post->stride;
    p->comb = (const float *)comb->data;
    p->comb_ld = comb->stride;
    p->res = (const float *)res->data;
    p->res_stride = res->stride;
    p->add = (const float *)add->data;
    p->add_stride = add->stride;
    p->y = (float *)y->data;
    p->y_stride = y->stride;
    p->out[0] = out->data;
    p->out_stride[0] = out->stride;
}

q8_0_matmul_args q8_0_collect(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const bool pair = call->op == RIDGE_Q8_0_PAIR, gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    const int norm = ridge_q8_0_norm_slot(call->op);
    const int out = pair      ? (int)RIDGE_Q8_0_PAIR_OUT0
                    : gate_up ? (int)RIDGE_Q8_0_GATE_UP_SWIGLU_OUT
                              : (int)RIDGE_Q8_0_MATMUL_OUT;
    q8_0_matmul_args p = {};

    p.op = (int)call->op;
    p.tokens = (int)call->dim[0];
    p.blocks = call->dim[1] / RIDGE_Q8_0_BLOCK;
    p.weights_const = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    if (norm >= 0) {
        p.norm = (const float *)arg[norm].data;
        p.eps = call->opt.q8_0.eps;
    }
    if (arg[0].dtype == RIDGE_I8) {
        p.x = (const int8_t *)arg[0].data;
        p.x_stride = arg[0].stride;
        p.x_scales = (const float *)arg[1].data;
        p.x_ld = arg[1].stride;
    }
    p.weight[0] = weight_of(call, 2, call->dim[2]);
    if (pair || gate_up)
        p.weight[1] = weight_of(call, 4, pair ? call->dim[3] : call->dim[2]);
    if (call->op == RIDGE_Q8_0_MATMUL_HC_EXPAND) {
        collect_hc(call, &p);
        return p;
    }
    p.bf16 = arg[out].dtype == RIDGE_BF16;
    for (int i = 0; i <= pair; i++) {
        p.out[i] = arg[out + i].data;
        p.out_stride[i] = arg[out + i].stride;
    }
    if (gate_up) {
        p.act = call->flags & RIDGE_ACTIVATION;
        p.token_scale = (const float *)arg[RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE].data;
        p.swiglu = ridge_swiglu_resolve(call->opt.swiglu);
    }
    return p;
}

/* Launches the quantisation of x into the workspace and sets x in the arguments. */
static ridge_status quantise(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                             void *workspace, void *stream, q8_0_matmul_args *p, int64_t scales_stride,
                             int64_t scales_step, bool paired)
{
    q8_0_rows_args q = {};
    char *at = (char *)workspace;

    q.rows = call->dim[0];
    q.cols = call->dim[1];
    take_x(&at, q.rows, q.cols, &q);
    p->x = q.codes;
    p->x_scales = q.scales;
    p->x_stride = q.codes_stride = q.cols;
    p->x_ld = q.scales_stride = scales_stride;
    q.scales_step = scales_step;
    q.paired = paired;
    return q8_0_launch_quantize(device, kernel->name, &call->arg[0], &q, stream);
}

/* The same of x with a norm; the scales are by token. *rest: the workspace, then what is left of it. */
static ridge_status normalise(const ridge_device *device, const ridge_call *call, char **rest, void *stream,
                              q8_0_matmul_args *p)
{
    q8_0_rows_args q = {};
    ridge_call norm;

    take_x(rest, call->dim[0], call->dim[1], &q);
    norm = ridge_q8_0_norm_call(call, ridge_scaled(q.codes, RIDGE_I8, q.scales, RIDGE_SCALING_ROW32));
    p->x = q.codes;
    p->x_scales = q.scales;
    p->x_stride = call->dim[1];
    p->x_ld = p->blocks;
    return ridge_run(device, &norm, NULL, 0, stream);
}

/* Transposes scales by token into the workspace. */
static ridge_status transpose(const ridge_device *device, const ridge_kernel *kernel, const ridge_operand *scales,
                              char *workspace, void *stream, bool paired, q8_0_matmul_args *p, int64_t step)
{
    q8_0_rows_args s = {};

    s.rows = p->tokens;
    s.cols = p->blocks;
    s.scales = take_scales(&workspace, p->tokens, p->blocks * RIDGE_Q8_0_BLOCK);
    s.scales_step = step;
    s.paired = paired;
    p->x_scales = s.scales;
    p->x_ld = 1;
    return q8_0_launch_transpose(device, kernel->name, scales, &s, stream);
}

ridge_status q8_0_quantise(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                           void *workspace, void *stream, q8_0_matmul_args *p)
{
    char *rest = (char *)workspace;

    if (call->arg[0].dtype == RIDGE_I8)
        return RIDGE_OK;
    if (p->norm)
        return normalise(device, call, &rest, stream, p);
    return quantise(device, kernel, call, workspace, stream, p, p->blocks, 1, false);
}

ridge_status q8_0_quantise_by_block(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                                    void *workspace, void *stream, bool paired, q8_0_matmul_args *p, int64_t *x_step)
{
    char *rest = (char *)workspace;
    ridge_operand scales = call->arg[1];
    ridge_status status;

    *x_step = ridge_round_up(call->dim[0], 16);
    if (call->arg[0].dtype != RIDGE_I8 && !p->norm)
        return quantise(device, kernel, call, workspace, stream, p, 1, *x_step, paired);
    if (p->norm) {
        status = normalise(device, call, &rest, stream, p);
        if (status)
            return status;
        scales.data = (void *)p->x_scales;
        scales.dtype = RIDGE_F32;
        scales.stride = p->x_ld;
    }
    return transpose(device, kernel, &scales, rest, stream, paired, p, *x_step);
}

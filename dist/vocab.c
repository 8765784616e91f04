/* vocab.c: linear cross entropy over a vocabulary that is cut among the ranks. Of each slice eval, or the first phase
 * of train, makes records, which all ranks gather and combine: loss and lse are then those of the whole. From lse the
 * other phases make this rank's part of dX and its dW; the parts of a rank's rows go to that rank, while dW is made
 * where the engine can do so, and are added there in the order of the ranks. */
#include <string.h>

#include "dist.h"

#define BASE \
    ((char *)((uintptr_t)1 << 44)) /* stands for a workspace that is not there yet: only numbers are looked at */

static size_t dtype_bytes(uint32_t dtype)
{
    return dtype == RIDGE_I64 ? 8 : dtype == RIDGE_F32 || dtype == RIDGE_I32 ? 4 : 2;
}

/* The next part of the workspace; NULL where it is not needed. */
static char *take(char **at, size_t bytes)
{
    char *part = *at;

    *at += (bytes + 255) / 256 * 256;
    return bytes ? part : NULL;
}

static ridge_tensor tensor_of(const ridge_operand *arg)
{
    ridge_tensor t = ridge_matrix(arg->data, (ridge_dtype)arg->dtype);

    t.stride = arg->stride;
    return t;
}

static bool present(const ridge_operand *arg)
{
    return arg->dtype != RIDGE_NONE && arg->data;
}

/* ------------------------------------------------------------------------------------------------------------ plan */

static const int token_outputs[] = {RIDGE_LINEAR_CE_TOKEN_LOSS, RIDGE_LINEAR_CE_LSE, RIDGE_LINEAR_CE_TARGET_LOGIT};
static const int combined_outputs[] = {RIDGE_CE_COMBINE_TOKEN_LOSS, RIDGE_CE_COMBINE_LSE,
                                       RIDGE_CE_COMBINE_TARGET_LOGIT};

/* Operands that no call of this rank would miss: they are read or written by messages. */
static ridge_status refuse_operands(const ridge_call *call, uint32_t how)
{
    static const struct {
        int slot;
        const char *name;
    } needed[] = {{RIDGE_LINEAR_CE_X, "x"}, {RIDGE_LINEAR_CE_TARGET, "target"}, {RIDGE_LINEAR_CE_LOSS, "loss"}};
    const ridge_operand *x = &call->arg[RIDGE_LINEAR_CE_X], *dx = &call->arg[RIDGE_LINEAR_CE_DX];

    for (size_t i = 0; i < 3 && call->dim[0]; i++)
        if (!present(&call->arg[needed[i].slot]))
            return dist_fail(RIDGE_ERR_ARG, "ridge_dist: operand %s is NULL", needed[i].name);
    if (call->op == RIDGE_LINEAR_CE_TRAIN && present(dx) && dx->dtype != x->dtype)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: operand dx has another dtype than x");
    for (int i = 0; i < 2 && how & RIDGE_DIST_ROWS; i++) {
        const ridge_operand *arg = i ? dx : x;

        if (arg->stride && arg->stride != call->dim[1])
            return dist_fail(RIDGE_ERR_ARG,
                             "ridge_dist: %s has a row stride of %lld, with RIDGE_DIST_ROWS it must be packed",
                             i ? "dx" : "x", (long long)arg->stride);
    }
    return RIDGE_OK;
}

static ridge_status refuse(const ridge_dist *dist, const ridge_call *call, uint32_t how)
{
    static const struct {
        int slot;
        const char *name;
    } absent[] = {{RIDGE_LINEAR_CE_ENTROPY, "entropy"},
                  {RIDGE_LINEAR_CE_ARGMAX, "argmax"},
                  {RIDGE_LINEAR_CE_ACCURACY, "accuracy"},
                  {RIDGE_LINEAR_CE_ERRORS, "errors"},
                  {RIDGE_LINEAR_CE_RECORD, "record"}};

    if (!call || call->struct_size != sizeof *call)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: %s",
                         call ? "struct_size of the call is not this header's" : "call is NULL");
    if (call->op != RIDGE_LINEAR_CE_EVAL && call->op != RIDGE_LINEAR_CE_TRAIN)
        return dist_fail(RIDGE_ERR_UNSUPPORTED, "ridge_dist: op %u is neither linear_ce_eval nor linear_ce_train",
                         (unsigned)call->op);
    if (how & ~RIDGE_DIST_ROWS)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: how is %#x, of which only RIDGE_DIST_ROWS is known",
                         (unsigned)how);
    if (call->invalid)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: %s", call->invalid);
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (present(&call->arg[absent[i].slot]))
            return dist_fail(RIDGE_ERR_UNSUPPORTED, "ridge_dist: operand %s is not supported over several ranks",
                             absent[i].name);
    if (call->dim[2] < 1 || call->opt.ce.vocab_total < call->dim[2])
        return dist_fail(RIDGE_ERR_ARG,
                         "ridge_dist: a slice of %lld classes of vocab_total %lld: each rank needs one at least",
                         (long long)call->dim[2], (long long)call->opt.ce.vocab_total);
    if (call->opt.ce.grad_scale != 1.0f)
        return dist_fail(RIDGE_ERR_UNSUPPORTED, "ridge_dist: option grad_scale is %g: use the operand",
                         (double)call->opt.ce.grad_scale);
    if (call->op == RIDGE_LINEAR_CE_TRAIN && call->flags & RIDGE_CE_NONE)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: linear_ce_train has no gradient of RIDGE_CE_NONE");
    if (call->dim[0] < 0 || call->dim[1] < 1 || call->dim[0] > (int64_t)1 << 40 || call->dim[1] > (int64_t)1 << 32)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: %lld tokens of %lld", (long long)call->dim[0],
                         (long long)call->dim[1]);
    if (how & RIDGE_DIST_ROWS && call->dim[0] % dist->peers.size)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist: %lld tokens are no multiple of %d ranks", (long long)call->dim[0],
                         (int)dist->peers.size);
    return refuse_operands(call, how);
}

/* The parts of the workspace, messages first: at the same offsets on every rank. */
static void lay_out(const ridge_dist *dist, const ridge_call *call, char *base, dist_plan *p)
{
    const size_t size = (size_t)dist->peers.size, tokens = (size_t)p->tokens, rows = (size_t)p->rows;
    const ridge_operand *x = &call->arg[RIDGE_LINEAR_CE_X], *dx = &call->arg[RIDGE_LINEAR_CE_DX];
    const size_t row_bytes = (size_t)p->hidden * dtype_bytes(x->dtype);
    char *at = base;

    p->record_bytes = tokens * (call->opt.ce.label_smoothing != 0.0f ? 6 : 3) * 4;
    p->x_bytes = p->sharded ? rows * row_bytes : 0;
    p->target_bytes = p->sharded ? rows * dtype_bytes(call->arg[RIDGE_LINEAR_CE_TARGET].dtype) : 0;
    p->part_bytes = p->wants_dx ? rows * row_bytes : 0;
    p->direct =
        p->wants_dx && !p->sharded && p->tokens == p->rows * (int64_t)size && (!dx->stride || dx->stride == p->hidden);
    p->record = take(&at, p->record_bytes);
    p->records = take(&at, p->record_bytes * size);
    p->x = take(&at, p->x_bytes * size);
    p->target = take(&at, p->target_bytes * size);
    p->part = take(&at, p->part_bytes * size);
    p->received = take(&at, p->part_bytes * size);
    p->mine = take(&at, p->sharded ? 0 : p->part_bytes);
    p->whole = take(&at, p->sharded || p->direct ? 0 : p->part_bytes * size);
    p->lse = take(&at, tokens * 4);
    p->outputs = take(&at, p->sharded ? tokens * 16 : 0); /* loss, token_loss, lse, target_logit of all rows */
    p->inner = at;
    p->bytes = (size_t)(at - base);
}

static ridge_tensor x_of(const dist_plan *p, const ridge_call *call)
{
    const ridge_operand *x = &call->arg[RIDGE_LINEAR_CE_X];

    return p->sharded ? ridge_matrix(p->x, (ridge_dtype)x->dtype) : tensor_of(x);
}

static ridge_tensor target_of(const dist_plan *p, const ridge_call *call)
{
    const ridge_operand *target = &call->arg[RIDGE_LINEAR_CE_TARGET];

    return ridge_matrix(p->sharded ? p->target : target->data, (ridge_dtype)target->dtype);
}

static uint32_t sums_of(const ridge_call *call)
{
    return call->opt.ce.label_smoothing != 0.0f ? RIDGE_CE_RECORD_SUMS : 0;
}

/* What linear_ce_eval and the phases of linear_ce_train have in common. */
static void plan_common(const ridge_call *call, const dist_plan *p, ridge_call *c)
{
    c->flags = call->flags | sums_of(call);
    c->opt.ce = call->opt.ce;
    c->arg[RIDGE_LINEAR_CE_BIAS] = call->arg[RIDGE_LINEAR_CE_BIAS];
    c->arg[RIDGE_LINEAR_CE_CLASS_WEIGHT] = call->arg[RIDGE_LINEAR_CE_CLASS_WEIGHT];
    ridge_set(c, RIDGE_LINEAR_CE_RECORD, RIDGE_F32, p->record, 0);
}

static void plan_eval(const ridge_call *call, dist_plan *p)
{
    p->eval = ridge_linear_ce_eval(p->tokens, p->hidden, call->dim[2], x_of(p, call),
                                   tensor_of(&call->arg[RIDGE_LINEAR_CE_W]), target_of(p, call), NULL);
    plan_common(call, p, &p->eval);
}

static void plan_combine(const ridge_dist *dist, const ridge_call *call, const int64_t *offset, dist_plan *p)
{
    const bool none = call->flags & RIDGE_CE_NONE;
    float *loss = (float *)call->arg[RIDGE_LINEAR_CE_LOSS].data;
    ridge_call *c = &p->combine;

    *c =
        ridge_ce_combine(p->tokens, call->opt.ce.vocab_total, dist->peers.size, (const float *)(const void *)p->records,
                         offset, target_of(p, call), none && p->sharded ? (float *)(void *)p->outputs : loss);
    c->flags = (call->flags & (RIDGE_CE_SUM | RIDGE_CE_NONE)) | sums_of(call);
    c->opt.ce.ignore_index = call->opt.ce.ignore_index;
    c->opt.ce.label_smoothing = call->opt.ce.label_smoothing;
    c->opt.ce.lse_square_scale = call->opt.ce.lse_square_scale;
    c->arg[RIDGE_CE_COMBINE_CLASS_WEIGHT] = call->arg[RIDGE_LINEAR_CE_CLASS_WEIGHT];
    for (int i = 0; i < 3; i++)
        if (present(&call->arg[token_outputs[i]]))
            ridge_set(c, combined_outputs[i], RIDGE_F32,
                      p->sharded ? p->outputs + (size_t)p->tokens * 4 * (size_t)(i + 1)
                                 : call->arg[token_outputs[i]].data,
                      0);
    if (present(&c->arg[RIDGE_CE_COMBINE_LSE]))
        p->lse = (char *)c->arg[RIDGE_CE_COMBINE_LSE].data;
    else
        ridge_set(c, RIDGE_CE_COMBINE_LSE, RIDGE_F32, p->lse, 0);
}

/* After plan_combine, which says where lse lies. */
static void plan_train(const ridge_call *call, dist_plan *p)
{
    const ridge_operand *arg = call->arg;
    const ridge_tensor none = ridge_matrix(NULL, RIDGE_NONE);
    ridge_call *c = &p->begin;

    *c = ridge_linear_ce_train(p->tokens, p->hidden, call->dim[2], x_of(p, call), tensor_of(&arg[RIDGE_LINEAR_CE_W]),
                               target_of(p, call), NULL,
                               p->wants_dx ? ridge_matrix(p->part, (ridge_dtype)arg[RIDGE_LINEAR_CE_X].dtype) : none,
                               present(&arg[RIDGE_LINEAR_CE_DW]) ? tensor_of(&arg[RIDGE_LINEAR_CE_DW]) : none);
    plan_common(call, p, c);
    ridge_set(c, RIDGE_LINEAR_CE_LSE, RIDGE_F32, p->lse, 0);
    c->arg[RIDGE_LINEAR_CE_GRAD_SCALE] = arg[RIDGE_LINEAR_CE_GRAD_SCALE];
    c->arg[RIDGE_LINEAR_CE_DBIAS] = arg[RIDGE_LINEAR_CE_DBIAS];
    p->dx = p->dw = *c;
    p->begin.flags |= RIDGE_CE_BEGIN;
    p->dx.flags |= RIDGE_CE_DX;
    p->dw.flags |= RIDGE_CE_DW;
}

/* What add_dx writes dx by, before anything is sent. */
static ridge_status check_dx(const ridge_dist *dist, const ridge_call *call, const dist_plan *p)
{
    const ridge_operand *dx = &call->arg[RIDGE_LINEAR_CE_DX];
    const ridge_tensor from = ridge_matrix(p->part, (ridge_dtype)dx->dtype);
    const ridge_call copy = ridge_sum(p->sharded ? p->rows : p->tokens, p->hidden, 1, from, tensor_of(dx));
    size_t need;

    return p->wants_dx ? dist_local(ridge_workspace_bytes(dist->device, &copy, &need)) : RIDGE_OK;
}

static ridge_status plan_with(const ridge_dist *dist, const ridge_call *call, uint32_t how, const int64_t *offset,
                              char *base, dist_plan *p)
{
    const int64_t size = dist->peers.size;
    ridge_status status = refuse(dist, call, how);

    if (status)
        return status;
    memset(p, 0, sizeof *p);
    p->train = call->op == RIDGE_LINEAR_CE_TRAIN;
    p->sharded = (how & RIDGE_DIST_ROWS) != 0;
    p->wants_dx = p->train && present(&call->arg[RIDGE_LINEAR_CE_DX]);
    p->tokens = call->dim[0];
    p->hidden = call->dim[1];
    p->rows = (p->tokens + size - 1) / size;
    lay_out(dist, call, base, p);
    plan_combine(dist, call, offset, p);
    if (p->train)
        plan_train(call, p);
    else
        plan_eval(call, p);
    status = ridge_workspace_bytes(dist->device, p->train ? &p->begin : &p->eval, &p->inner_bytes);
    if (!status)
        status = ridge_workspace_bytes(dist->device, &p->combine, &p->between_bytes);
    if (status)
        return dist_local(status);
    p->between = p->inner + (p->inner_bytes + 255) / 256 * 256; /* the phases' state stays while combine runs */
    p->bytes += (size_t)(p->between - p->inner) + p->between_bytes;
    return check_dx(dist, call, p);
}

ridge_status dist_plan_of(const ridge_dist *dist, const ridge_call *call, uint32_t how, char *base, dist_plan *plan)
{
    return plan_with(dist, call, how, (const int64_t *)(const void *)(BASE - 65536), base ? base : BASE, plan);
}

ridge_status ridge_dist_workspace_bytes(ridge_dist *dist, const ridge_call *call, uint32_t how, size_t *bytes)
{
    dist_plan plan;
    ridge_status status;

    if (!dist || !bytes)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_workspace_bytes: %s is NULL", dist ? "bytes" : "dist");
    status = dist_plan_of(dist, call, how, NULL, &plan);
    *bytes = status ? 0 : plan.bytes;
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- run */

/* One part is a copy. */
static ridge_status sum(const ridge_dist *dist, int64_t rows, int64_t cols, int64_t parts, ridge_tensor x,
                        ridge_tensor out, void *stream)
{
    const ridge_call call = ridge_sum(rows, cols, parts, x, out);

    return dist_local(ridge_run(dist->device, &call, NULL, 0, stream));
}

static ridge_status gather(const ridge_dist *dist, const void *send, void *recv, size_t bytes, void *stream)
{
    return bytes && dist->peers.all_gather(dist->peers.engine, send, recv, bytes, stream)
               ? dist_peer(dist, "all_gather")
               : RIDGE_OK;
}

/* This rank's rows of what ce_combine gave for all. */
static ridge_status cut_outputs(const ridge_dist *dist, const ridge_call *call, const dist_plan *p, void *stream)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 4 && !status && p->sharded; i++) {
        const int slot = i ? token_outputs[i - 1] : RIDGE_LINEAR_CE_LOSS;
        const ridge_operand *out = &call->arg[slot];
        char *from = p->outputs + (size_t)p->tokens * 4 * (size_t)i + (size_t)(p->rows * dist->peers.rank) * 4;

        if (present(out) && (i || call->flags & RIDGE_CE_NONE))
            status =
                sum(dist, 1, p->rows, 1, ridge_matrix(from, RIDGE_F32), ridge_matrix(out->data, RIDGE_F32), stream);
    }
    return status;
}

/* The sum of the parts of this rank's rows of dX, and where every rank has all rows that to all. */
static ridge_status add_dx(const ridge_dist *dist, const ridge_call *call, const dist_plan *p, void *stream)
{
    const ridge_operand *dx = &call->arg[RIDGE_LINEAR_CE_DX];
    const ridge_dtype dtype = (ridge_dtype)dx->dtype;
    char *mine = p->sharded ? (char *)dx->data : p->mine;
    ridge_status status;

    status = sum(dist, p->rows, p->hidden, dist->peers.size, ridge_matrix(p->received, dtype),
                 ridge_matrix(mine, dtype), stream);
    if (status || p->sharded)
        return status;
    status = gather(dist, mine, p->direct ? dx->data : p->whole, p->part_bytes, stream);
    if (status || p->direct)
        return status;
    return sum(dist, p->tokens, p->hidden, 1, ridge_matrix(p->whole, dtype), tensor_of(dx), stream);
}

/* The phases after lse is known. The parts of dX go to the ranks whose rows they are, beside dW where the engine can.
 */
static ridge_status gradients(const ridge_dist *dist, const ridge_call *call, const dist_plan *p, void *stream)
{
    const ridge_peers *peers = &dist->peers;
    const bool sends = p->wants_dx && p->part_bytes;
    ridge_status status = dist_local(ridge_run(dist->device, &p->dx, p->inner, p->inner_bytes, stream));

    if (!status && sends && peers->all_to_all(peers->engine, p->part, p->received, p->part_bytes, stream))
        status = dist_peer(dist, "all_to_all");
    if (!status)
        status = dist_local(ridge_run(dist->device, &p->dw, p->inner, p->inner_bytes, stream));
    if (!status && sends && peers->join && peers->join(peers->engine, stream))
        status = dist_peer(dist, "join");
    return status || !p->wants_dx ? status : add_dx(dist, call, p, stream);
}

static ridge_status run(const ridge_dist *dist, const ridge_call *call, const dist_plan *p, void *stream)
{
    const ridge_device *device = dist->device;
    ridge_status status = RIDGE_OK;

    if (p->sharded)
        status = gather(dist, call->arg[RIDGE_LINEAR_CE_X].data, p->x, p->x_bytes, stream);
    if (!status && p->sharded)
        status = gather(dist, call->arg[RIDGE_LINEAR_CE_TARGET].data, p->target, p->target_bytes, stream);
    if (!status)
        status = dist_local(ridge_run(device, p->train ? &p->begin : &p->eval, p->inner, p->inner_bytes, stream));
    if (!status)
        status = gather(dist, p->record, p->records, p->record_bytes, stream);
    if (!status)
        status = dist_local(ridge_run(device, &p->combine, p->between, p->between_bytes, stream));
    if (!status)
        status = cut_outputs(dist, call, p, stream);
    return status || !p->train ? status : gradients(dist, call, p, stream);
}

ridge_status ridge_dist_run(ridge_dist *dist, const ridge_call *call, uint32_t how, const int64_t *offset,
                            void *workspace, size_t bytes, void *stream)
{
    dist_plan plan;
    ridge_status status;

    if (!dist || !offset || !workspace)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_run: %s is NULL",
                         !dist     ? "dist"
                         : !offset ? "offset"
                                   : "workspace");
    if ((uintptr_t)workspace % 256)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_run: the workspace is not aligned to 256 bytes");
    status = plan_with(dist, call, how, offset, (char *)workspace, &plan);
    if (status)
        return status;
    if (bytes < plan.bytes)
        return dist_fail(RIDGE_ERR_WORKSPACE, "ridge_dist_run: the workspace has %zu bytes, the call needs %zu", bytes,
                         plan.bytes);
    return run(dist, call, &plan, stream);
}

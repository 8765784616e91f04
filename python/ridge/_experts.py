"""_experts.py: the ops of the training of experts over any kind of array (adapters: see _ops.py)."""
import functools

from . import _abi as A
from . import _ops as ops
from ._core import ArgumentError, form
from ._ops import ABSENT

RULES = {"softmax": A.ROUTE_SOFTMAX, "topk_softmax": A.ROUTE_TOPK_SOFTMAX, "sigmoid": A.ROUTE_SIGMOID,
         "sqrt_softplus": A.ROUTE_SQRT_SOFTPLUS}
_ROW128 = (("q", A.SCALING_ROW128), ("q_t", A.SCALING_ROW128))


def ld_groups(rows, experts):
    """Columns of a transposed copy with that many groups: ridge_ld_groups."""
    return (rows + 127 * min(rows, experts)) // 128 * 128


def present(xp, t, name=None, shape=None):
    """The operand of a vector or of a packed matrix that may be absent; a copy lives in the first result."""
    if t is None:
        return None, ABSENT
    if shape is not None:
        ops.same_shape(name, t.shape, shape)
    t = xp.vector(t)
    return t, xp.operand(t, 0)


@functools.lru_cache(maxsize=256)
def _route_form(op, rule, normalise, groups, top_groups, group_max, scale, eps):
    flags = ops.pick(RULES, rule, "rule") | (A.ROUTE_NORMALISE if normalise else 0)
    if op == "moe_route":
        flags |= A.ROUTE_GROUP_MAX if group_max else 0
    return form(op, flags, (("groups", groups), ("top_groups", top_groups), ("scale", float(scale)), ("eps", float(eps))))


def route(xp, logits, slots, bias, logit_bias, rule, normalise, groups, top_groups, group_max, scale, eps):
    """(ids [tokens, slots] i32, weights f32)"""
    tokens, experts = ops.two_dims("logits", logits)
    f = _route_form("moe_route", rule, bool(normalise), groups, top_groups, bool(group_max), scale, eps)
    x, stride = xp.matrix(logits)
    ids, weights = xp.empty(x, (tokens, slots), A.I32), xp.empty(x, (tokens, slots), A.F32)
    bias, b = present(xp, bias, "bias", (experts,))
    logit_bias, lb = present(xp, logit_bias, "logit_bias", (experts,))
    xp.launch(f, x, (tokens, experts, slots, 0, 0, 0, *xp.operand(x, stride), *xp.operand(ids, 0), *xp.operand(weights, 0), *b,
                     *lb))
    return ids, weights


def route_bwd(xp, logits, ids, dweights, logit_bias, rule, normalise, scale, eps):
    """dlogits, of logits' dtype"""
    tokens, experts = ops.two_dims("logits", logits)
    f = _route_form("moe_route_bwd", rule, bool(normalise), 1, 1, False, scale, eps)
    x, stride = xp.matrix(logits)
    ids, i = present(xp, ids)
    dweights, d = present(xp, dweights, "dweights", ids.shape)
    logit_bias, lb = present(xp, logit_bias, "logit_bias", (experts,))
    out = xp.empty(x, (tokens, experts), xp.operand(x, 0)[2])
    xp.launch(f, x, (tokens, experts, ids.shape[1], 0, 0, 0, *xp.operand(x, stride), *i, *d, *xp.operand(out, 0), *lb))
    return out


def permute(xp, ids, experts):
    """(offsets [experts + 1], rows [tokens * slots], place [tokens, slots]), all i32"""
    tokens, slots = ops.two_dims("ids", ids)
    ids, i = present(xp, ids)
    offsets, rows = xp.empty(ids, (experts + 1,), A.I32), xp.empty(ids, (tokens * slots,), A.I32)
    place = xp.empty(ids, (tokens, slots), A.I32)
    xp.launch(form("moe_permute"), ids, (tokens, slots, experts, 0, 0, 0, *i, *xp.operand(offsets, 0), *xp.operand(rows, 0),
                                         *xp.operand(place, 0)), True)
    return offsets, rows, place


def _outputs(xp, like, pairs, cols, experts, dtype, transposed):
    """(q, scale, q_t, scale_t, offsets_t) and their operands; the transpose is None where it is not wanted."""
    shape, ld = ops.scale_shape(A.SCALING_ROW128, pairs, cols)
    q, scale = ops.fp8_empty(xp, like, pairs, cols, dtype), xp.empty(like, shape, A.F32, ld)
    values = (*xp.operand(q, ops.q_stride(xp, q)), *xp.operand(scale, ld))
    if not transposed:
        return (q, scale, None, None, None), values + 3 * ABSENT
    padded = ld_groups(pairs, experts)
    shape, ld = ops.scale_shape(A.SCALING_ROW128, cols, padded)
    q_t, scale_t = xp.empty(like, (cols, padded), dtype), xp.empty(like, shape, A.F32, ld)
    offsets_t = xp.empty(like, (experts + 1,), A.I32)
    return (q, scale, q_t, scale_t, offsets_t), (*values, *xp.operand(q_t, 0), *xp.operand(scale_t, ld),
                                                 *xp.operand(offsets_t, 0))


def permute_quantize(xp, x, rows, slots, offsets, dtype, transposed):
    """(q, scale, q_t, scale_t, offsets_t) of x's rows in the order of `rows` (None: as they are, slots = 1)."""
    tokens, cols = ops.two_dims("x", x)
    experts = offsets.shape[0] - 1
    f = form("moe_permute_quantize", 0, (("floor", 0.0),), _ROW128)
    x, stride = xp.matrix(x)
    rows, r = present(xp, rows, "rows", (tokens * slots,))
    offsets, o = present(xp, offsets)
    out, values = _outputs(xp, x, tokens * slots, cols, experts, dtype, transposed)
    xp.launch(f, x, (tokens, slots, cols, experts, 0, 0, *xp.operand(x, stride), *r, *o, *values), True)
    return out


@functools.lru_cache(maxsize=256)
def _swiglu_form(activation, options, interleaved):
    flags = ops.pick(ops.ACTIVATIONS, activation, "activation") | (A.INTERLEAVED if interleaved else 0)
    return form("moe_swiglu_quantize", flags, (*zip(ops.OPTIONS, ops._five.unpack(options)), ("floor", 0.0)), _ROW128)


def swiglu_quantize(xp, z, offsets, row_scale, activation, options, interleaved, dtype, transposed):
    """permute_quantize of swiglu of z, whose columns are gate and up."""
    f = _swiglu_form(activation, ops.swiglu_options(*options), bool(interleaved))
    rows, _ = ops.two_dims("z", z)
    kept, g, u, cols = ops.gate_and_up(xp, z, None, interleaved)
    offsets, o = present(xp, offsets)
    row_scale, s = present(xp, row_scale, "row_scale", (rows,))
    out, values = _outputs(xp, z, rows, cols, offsets.shape[0] - 1, dtype, transposed)
    xp.launch(f, z, (rows, cols, offsets.shape[0] - 1, 0, 0, 0, *g, *u, *o, *values, *s), True)
    return out


@functools.lru_cache(maxsize=256)
def _swiglu_bwd_form(activation, options):
    flags = ops.pick(ops.ACTIVATIONS, activation, "activation")
    return form("moe_swiglu_bwd_quantize", flags, (*zip(ops.OPTIONS, ops._five.unpack(options)), ("floor", 0.0)), _ROW128)


def swiglu_bwd_quantize(xp, dout, z, offsets, row_scale, activation, options, interleaved, dtype, transposed):
    """(drow, q, scale, q_t, scale_t, offsets_t): permute_quantize of swiglu_bwd's gradient of z, whose columns are gate and
    up. Rows of drow of no group are not written."""
    rows, _ = ops.two_dims("z", z)
    if interleaved:  # one kernel has no such form
        f = ops.swiglu_form("swiglu_bwd", activation, *options, False, False, True)
        dz, _, drow = ops.swiglu_bwd(xp, f, dout, z, None, row_scale, True, True)
        return (drow, *permute_quantize(xp, dz, None, 1, offsets, dtype, transposed))
    f = _swiglu_bwd_form(activation, ops.swiglu_options(*options))
    kept, g, u, cols = ops.gate_and_up(xp, z, None, False)
    ops.same_shape("dout", dout.shape, (rows, cols))
    dout, stride = xp.matrix(dout)
    offsets, o = present(xp, offsets)
    row_scale, s = present(xp, row_scale, "row_scale", (rows,))
    drow = xp.empty(z, (rows,), A.F32)
    out, values = _outputs(xp, z, rows, 2 * cols, offsets.shape[0] - 1, dtype, transposed)
    xp.launch(f, z, (rows, cols, offsets.shape[0] - 1, 0, 0, 0, *xp.operand(dout, stride), *g, *u, *o, *values, *s,
                     *xp.operand(drow, 0)), True)
    return (drow, *out)


def combine(xp, y, place, weights, out_dtype, shared=None, residual=None):
    """out [tokens, cols]: the weighted sum of each token's rows of y."""
    tokens, slots = ops.two_dims("place", place)
    pairs, cols = ops.two_dims("y", y)
    if pairs != tokens * slots:
        raise ArgumentError(f"y has {pairs} rows, not those of {tokens} tokens with {slots} slots")
    y, stride = xp.matrix(y)
    place, p = present(xp, place)
    weights, w = present(xp, weights, "weights", (tokens, slots))
    shared, s = present(xp, shared, "shared", (tokens, cols))
    residual, r = present(xp, residual, "residual", (tokens, cols))
    out = xp.empty(y, (tokens, cols), out_dtype)
    xp.launch(form("moe_combine"), y, (tokens, slots, cols, 0, 0, 0, *xp.operand(y, stride), *p, *w, *xp.operand(out, 0), *s, *r))
    return out


def combine_bwd(xp, dout, y, place, weights):
    """(dy, dweights); dweights is None without y. Rows of dy that no place names are not written."""
    tokens, slots = ops.two_dims("place", place)
    cols = dout.shape[1]
    ops.same_shape("dout", dout.shape, (tokens, cols))
    dout, stride = xp.matrix(dout)
    kept, yv = None, ABSENT
    if y is not None:
        ops.same_shape("y", y.shape, (tokens * slots, cols))
        kept, y_stride = xp.matrix(y)
        yv = xp.operand(kept, y_stride)
    place, p = present(xp, place)
    weights, w = present(xp, weights, "weights", (tokens, slots))
    dy = xp.empty(dout, (tokens * slots, cols), xp.operand(dout, 0)[2])
    dweights = xp.empty(dout, (tokens, slots), A.F32) if y is not None else None
    xp.launch(form("moe_combine_bwd"), dout, (tokens, slots, cols, 0, 0, 0, *xp.operand(dout, stride), *yv, *p, *w,
                                              *xp.operand(dy, 0), *(xp.operand(dweights, 0) if y is not None else ABSENT)))
    return dy, dweights


def weights(xp, w, dtype, transposed=True):
    """Codes and scales of every expert's matrix w [experts, n, k] and of its transpose, each [experts, ..]; None for those of
    the transpose where they are not wanted."""
    experts, n, k = w.shape
    if not transposed and n % 128 == 0:  # blocks of one matrix below another
        q, scale, _ = ops.quantize_fp8(xp, w.reshape(experts * n, k), "blk128", dtype, False, 0.0, None, False)
        return q.reshape(experts, n, k), scale.reshape(experts, ops.blocks(n), ops.blocks(k)), None, None
    f = form("quantize_fp8_dual", 0, (("floor", 0.0), ("matrices", max(experts, 1))),
             (("q", A.SCALING_BLK128), ("q_t", A.SCALING_BLK128)))
    w, stride = xp.matrix(w.reshape(experts * n, k))
    values, out = (experts * n, k, 0, 0, 0, 0, *xp.operand(w, stride)), []
    for rows, cols in ((n, k), (k, n)):
        q = ops.fp8_empty(xp, w, experts * rows, cols, dtype)
        scale = xp.empty(w, (experts * ops.blocks(rows), ops.blocks(cols)), A.F32)
        values += (*xp.operand(q, ops.q_stride(xp, q)), *xp.operand(scale, 0))
        out += q.reshape(experts, rows, cols), scale.reshape(experts, ops.blocks(rows), ops.blocks(cols))
    xp.launch(f, w, (*values, *ABSENT))
    return tuple(out) if transposed else (*out[:2], None, None)

"""_sharding.py: how torch.ops.ridge.* run on DTensors: for each op, which placements of its operands give which of its results,
so that every rank's call is the op itself. An op without a line for the placements at hand gets replicated operands.

A rule is given the op's arguments (tensors as specs with shape and mesh) and yields (placements of the results, placements of
the tensor arguments, in order): R replicated, P a partial sum, 0, 1, .. sharded along that dimension."""
import sys

import torch

from .. import _abi as A
from .. import _ops as ops

R, P = "R", "P"
_rules = {}


def _rule(name):
    def register(function):
        _rules[name] = function
        return function
    return register


def _whole(n, unit, x):
    """n divides into whole units on every rank, however the mesh's dimensions are used."""
    return n % (unit * x.mesh.size()) == 0


def _table(mode, dim, n, x):
    """The placement of a scale table whose matrix [rows, cols] is sharded along dim, of n elements; None: not possible."""
    if mode == A.SCALING_TENSOR:
        return R
    if mode == A.SCALING_ROW:
        return 0 if dim == 0 else R
    if mode == A.SCALING_ROW128:
        return 1 if dim == 0 else 0 if _whole(n, 128, x) else None
    return dim if _whole(n, 128, x) or (mode == A.SCALING_ROW128_T and dim == 0) else None


def _flat(x):
    """Dimensions before the last one whose shards are also shards of the rows of x as a matrix."""
    for dim in range(x.ndim - 1):
        yield dim
        if x.shape[dim] != 1:
            return


# ------------------------------------------------------------------------------------------------------------- SwiGLU


@_rule("swiglu")
def _swiglu(gate, up, row_scale, *_):
    for d in range(gate.ndim - 1):
        yield [d], [d, d, d]
    if up is not None:
        yield [gate.ndim - 1], [gate.ndim - 1, gate.ndim - 1, R]


@_rule("swiglu_backward")
def _swiglu_backward(dout, gate, up, row_scale, *rest):
    last, drow = gate.ndim - 1, rest[-1]
    for d in range(last):
        yield [d, R if up is None else d, d if drow else R], [d, d, d, d]
    if up is not None:
        yield [last, last, P if drow else R], [last, last, last, R]


def _linear_after_swiglu(gate, up, weight, bias):
    """(dim or name of the sharding, placements of the four): tokens, output features, input features."""
    last = gate.ndim - 1
    for d in range(last):
        yield d, [d, d, R, R]
    yield "out", [R, R, 0, 0]
    if up is not None:
        yield "in", [last, last, 1, R]


@_rule("swiglu_linear")
def _swiglu_linear(gate, up, weight, bias, *_):
    for how, four in _linear_after_swiglu(gate, up, weight, bias):
        if how != "in":
            yield [gate.ndim - 1 if how == "out" else how], four
        elif bias is None:  # else every rank would add it
            yield [P], four


@_rule("swiglu_linear_backward")
def _swiglu_linear_backward(dy, gate, up, weight, activation, options, interleaved, dgate, dweight):
    for how, (g, u, w, _) in _linear_after_swiglu(gate, up, weight, None):
        dg = {"out": P, "in": g}.get(how, g)
        dw = {"out": 0, "in": 1}.get(how, P)
        yield ([dg if dgate else R, dg if dgate and up is not None else R, dw if dweight else R],
               [{"out": gate.ndim - 1, "in": R}.get(how, how), g, u, w])


# ---------------------------------------------------------------------------------------------------------------- FP8


@_rule("quantize_fp8")
def _quantize_fp8(x, scale, *_):
    mode = ops.SCALES[scale]
    for d in (0, 1):
        table = _table(mode, d, x.shape[d], x)
        if table is not None and mode != A.SCALING_TENSOR and (d == 0 or mode != A.SCALING_ROW):
            yield [d, table], [d]


@_rule("quantize_fp8_dual")
def _quantize_fp8_dual(x, form, dtype, pow2, floor, colsum):
    mode, mode_t = ops.DUALS[form]
    for d in (0, 1):
        table, table_t = _table(mode, d, x.shape[d], x), _table(mode_t, 1 - d, x.shape[d], x)
        if table is not None and table_t is not None:
            yield [d, table, 1 - d, table_t, (P, 0)[d] if colsum else R], [d]


@_rule("fp8_gemm")
def _fp8_gemm(a, scale_a, b, scale_b, scales, dtype, bias):
    mode_a, mode_b = ops.PAIRS[scales]
    m, n, k_a, k_b = (_table(mode_a, 0, a.shape[0], a), _table(mode_b, 0, b.shape[0], a), _table(mode_a, 1, a.shape[1], a),
                      _table(mode_b, 1, a.shape[1], a))
    if m is not None:
        yield [0], [0, m, R, R, R]
    if n is not None:
        yield [1], [R, R, 0, n, 0]
    if k_a is not None and k_b is not None and bias is None:
        yield [P], [1, k_a, 1, k_b]


@_rule("fp8_gemm_")
def _fp8_gemm_into(out, a, scale_a, b, scale_b, scales):
    """The result is added to out, whose placement is taken as it is."""
    for (how,), four in _fp8_gemm(a, scale_a, b, scale_b, scales, None, None):
        yield [], [how, *four[:4]]


def _fp8_layer(x, columns, weight, wgrad):
    """(how, placements of what fp8_linear keeps for the gradients: codes and scales of x transposed and of the weight's)"""
    from ._library import WGRAD
    mode = ops.DUALS[WGRAD[wgrad][0]][1]
    tokens, blk = ops.rows_of(x.shape), A.SCALING_BLK128
    for d in _flat(x):
        table = _table(mode, 1, tokens, x)
        if table is not None and x.shape[d] % x.mesh.size() == 0 and _whole(tokens, 128, x):
            yield d, [1, table, R, R]
    out, inside, table = _table(blk, 1, weight.shape[0], x), _table(blk, 0, columns, x), _table(mode, 0, columns, x)
    if out is not None:
        yield "out", [R, R, 1, out]
    if inside is not None and table is not None:
        yield "in", [0, table, 0, inside]


@_rule("fp8_linear")
def _fp8_linear(x, weight, bias, gradient_dtype, wgrad):
    for how, kept in _fp8_layer(x, x.shape[-1], weight, wgrad):
        if how == "out":
            yield [x.ndim - 1, *kept], [R, 0, 0]
        elif how != "in":
            yield [how, *kept], [how, R, R]
        elif bias is None:
            yield [P, *kept], [x.ndim - 1, 1, R]


@_rule("fp8_swiglu_linear")
def _fp8_swiglu_linear(gate, up, weight, bias, activation, options, interleaved, gradient_dtype, wgrad):
    last = gate.ndim - 1
    for how, kept in _fp8_layer(gate, weight.shape[1], weight, wgrad):
        if how == "out":
            yield [last, *kept], [R, R, 0, 0]
        elif how != "in":
            yield [how, *kept], [how, how, R, R]
        elif bias is None and up is not None:
            yield [P, *kept], [last, last, 1, R]


# --------------------------------------------------------------------------------------------------------------- Q8_0


@_rule("q8_0_quantize")
def _q8_0_quantize(x):
    yield [0], [0]
    if _whole(x.shape[1], 32, x):
        yield [1], [1]


@_rule("q8_0_repack")
def _q8_0_repack(blocks):
    yield [0, 0], [0]


@_rule("q8_0_matmul")
@_rule("q8_0_linear")
def _q8_0_matmul(x, w, scales, *_):
    yield [0], [0, R, R]
    yield [1], [R, 0, 0]


# ------------------------------------------------------------------------------------------------------- norm and RoPE


@_rule("add_rms_norm")
def _add_rms_norm(x, residual, *_):
    for d in range(x.ndim - 1):
        yield [d, R if residual is None else d], [d, d, R]


@_rule("rms_norm_backward")
def _rms_norm_backward(dout, x, weight, dsum, eps, dx, dw):
    for d in range(x.ndim - 1):
        yield [d if dx else R, P if dw else R], [d, d, R, d]


@_rule("rope")
def _rope(x, *_):
    for d in range(x.ndim - 2):
        yield [d], [d, d, R]
    yield [x.ndim - 2], [x.ndim - 2, R, R]  # heads


# ------------------------------------------------------------------------------------------------------ cross entropy
# Along the tokens. A mean divides by what all of them have: it gets replicated operands.


@_rule("linear_ce_eval")
def _linear_ce_eval(x, weight, target, bias, class_weight, reduction, ignore_index, options, lse):
    if reduction != "mean":
        yield [0 if reduction == "none" else P, 0 if lse else R], [0, R, 0, R, R]


@_rule("linear_ce_train")
def _linear_ce_train(x, weight, target, bias, class_weight, reduction, ignore_index, options, dx, dw, dbias):
    if reduction == "sum":
        yield [P, 0 if dx else R, P if dw else R, P if dbias else R], [0, R, 0, R, R]


@_rule("linear_ce_weighted")
def _linear_ce_weighted(x, weight, target, bias, row_weight, ignore_index, options, dx, dw, dbias):
    yield [P, 0, 0 if dx else R, P if dw else R, P if dbias else R], [0, R, 0, R, 0]


@_rule("linear_ce_backward")
def _linear_ce_backward(lse, dloss, x, weight, target, bias, class_weight, reduction, ignore_index, options, dx, dw, dbias, *_):
    if reduction != "mean":
        yield ([0 if dx else R, P if dw else R, P if dbias else R],
               [0, 0 if reduction == "none" else R, 0, R, 0, R, R, 0, 0, 0, 0, 0])


@_rule("linear_ce_logprobs")
def _linear_ce_logprobs(x, weight, target, bias, ids, ignore_index, options, entropy, argmax):
    yield [0, 0, 0 if entropy else R, R if ids is None else 0, 0 if argmax else R], [0, R, 0, R, 0]


@_rule("linear_ce_stats")
def _linear_ce_stats(*_):
    yield [0] * 5, [0, R, 0, R, R]


@_rule("linear_ce_topk")
def _linear_ce_topk(*_):
    yield [0, 0], [0, R, 0, R]


@_rule("linear_ce_sample")
def _linear_ce_sample(*_):
    yield [0, 0], [0, R, 0, 0, 0, R]


@_rule("ce_fwd")
def _ce_fwd(logits, target, class_weight, reduction, *_):
    if reduction != "mean":
        for d in range(logits.ndim - 1):
            yield [d if reduction == "none" else P, d], [d, d, R]


@_rule("ce_stats")
def _ce_stats(logits, *_):
    for d in range(logits.ndim - 1):
        yield [d] * 5, [d, d, R]


@_rule("ce_bwd")
def _ce_bwd(lse, dloss, logits, target, class_weight, reduction, *_):
    if reduction != "mean":
        for d in range(logits.ndim - 1):
            yield [d], [d, d if reduction == "none" else R, d, d, R]


@_rule("moe_route")
def _moe_route(logits, *_):
    yield [0, 0], [0, R, R]


@_rule("moe_route_backward")
def _moe_route_backward(*_):
    yield [0], [0, 0, 0, R]


@_rule("moe_gather")
def _moe_gather(*_):
    yield [0], [R, 0, R]


@_rule("moe_combine")
def _moe_combine(*_):
    yield [1], [1, R, R]


@_rule("moe_permute")
@_rule("moe_combine_backward")
@_rule("moe_experts")
@_rule("grouped_fp8_linear")
@_rule("grouped_fp8_linear_backward")
def _sorted_by_expert(*_):
    """Which rows a rank has depends on the ids of all tokens: replicated operands only."""
    return ()


@_rule("multiply")
def _multiply(x, *_):
    for d in range(x.ndim):
        yield [d], [d, R]
    yield [P], [P, R]


# ----------------------------------------------------------------------------------------------------------- to PyTorch


def strategies(name, *args):
    """[(placements of the results, placements of all arguments)] in torch's words; the replicated ones first."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    schema = getattr(torch.ops.ridge, name).default._schema
    at = [i for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]

    def placed(outs, ins):
        word = {R: Replicate, P: Partial}
        every, ins = [None] * len(schema.arguments), list(ins) + [R] * (len(at) - len(ins))
        for i, p in zip(at, ins):
            every[i] = None if args[i] is None else word[p]() if p in word else Shard(p)
        return [word[p]() if p in word else Shard(p) for p in outs], every

    return [placed([R] * len(schema.returns), []), *(placed(*each) for each in _rules[name](*args))]


_registered = False


def register():
    """Tells DTensor the rules, once, and not before torch.distributed.tensor is there: importing it takes a second."""
    global _registered
    if _registered or "torch.distributed.tensor" not in sys.modules:
        return
    _registered = True
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding
    propagator = DTensor._op_dispatcher.sharding_propagator
    for name in _rules:
        op = getattr(torch.ops.ridge, name).default
        register_sharding(op)(lambda *args, name=name: strategies(name, *args))
        # The key of DTensor's cache has the arguments from here on; by itself it would begin at the first integer and find a
        # "sum" where a "mean" is asked for.
        first = next((i for i, a in enumerate(op._schema.arguments) if "Tensor" not in str(a.type)), 100)
        propagator.op_to_schema_info[op] = RuntimeSchemaInfo(first, needs_pytree=True)


@torch.compiler.assume_constant_result
def register_while_compiling():
    """register() at the time of tracing."""
    register()
    return 0

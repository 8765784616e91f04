"""experts.py: mixtures of experts in FP8 training: grouped products, a layer, and Hugging Face's expert blocks in place.

Tokens are sorted by expert, and the groups of rows have any size: nothing is padded but the transposed copies, and no size is
read by the host. Two calls with the same inputs give the same bits."""
from __future__ import annotations

import functools
from typing import Optional, Sequence

import torch
from torch import Tensor

from .. import _abi as A
from .. import _experts as X
from .. import _ops as ops
from .._core import ArgumentError
from . import _library as L
from ._arrays import DTYPES, autocast_dtype, dtype_number, same_device, tensors
from .models import Patch, _take

__all__ = ["MoE", "grouped_fp8_linear", "moe_experts", "moe_route", "patch_moe"]
_op = torch.ops.ridge


def _bytes(t):
    return t if t is None else t.view(torch.uint8)


def _codes(t, dtype=torch.float8_e4m3fn):
    return t.view(dtype)


def _weights(xp, w, transposed):
    """(codes, scales, codes of the transpose, its scales) of each expert's matrix [out, in]; transposed: w is [.., in, out]."""
    four = X.weights(xp, w, A.E4M3)
    return (*four[2:], *four[:2]) if transposed else four


def _transposed_weights(xp, w_t, w_ts):
    """w_t: the transposed codes of weights, or the weights."""
    if w_t.dtype != torch.uint8:
        _, _, w_t, w_ts = X.weights(xp, w_t, A.E4M3)
    return _codes(w_t), w_ts


def _gemm(xp, mode, a, scale_a, b, scale_b, offsets, dtype, bias=None):
    if bias is not None and dtype_number(bias.dtype) not in (dtype, A.F32):
        bias = bias.float()
    return ops.gemm_fp8_grouped(xp, a, scale_a, b, scale_b, offsets, mode, dtype, None, bias=bias, report=False)[0]


# --------------------------------------------------------------------------------------------------- registered ops


@L._define("moe_route(Tensor logits, int slots, Tensor? bias, Tensor? logit_bias, str rule, bool normalise, int groups, "
           "int top_groups, bool group_max, float scale, float eps) -> (Tensor, Tensor)")
def _route(xp, logits, slots, bias, logit_bias, *rest):
    same_device(logits, bias, logit_bias)
    return X.route(xp, logits, slots, bias, logit_bias, *rest)


@L._define("moe_route_backward(Tensor dweights, Tensor logits, Tensor ids, Tensor? logit_bias, str rule, bool normalise, "
           "float scale, float eps) -> Tensor")
def _route_backward(xp, dweights, logits, ids, logit_bias, rule, normalise, scale, eps):
    return X.route_bwd(xp, logits, ids, dweights, logit_bias, rule, normalise, scale, eps)


def _route_setup(ctx, inputs, output):
    logits, _, _, logit_bias, rule, normalise, _, _, _, scale, eps = inputs
    ctx.save_for_backward(logits, output[0], logit_bias)
    ctx.rest = rule, normalise, scale, eps
    ctx.mark_non_differentiable(output[0])
    ctx.set_materialize_grads(False)


def _route_gradient(ctx, _, dweights):
    if dweights is None:
        return (None,) * 11
    logits, ids, logit_bias = ctx.saved_tensors
    dlogits = _op.moe_route_backward(dweights, logits, ids, logit_bias, *ctx.rest)
    return dlogits, None, None, dlogits.float().sum(0) if ctx.needs_input_grad[3] else None, *(None,) * 7


@L._define("moe_permute(Tensor ids, int experts) -> (Tensor, Tensor, Tensor)")
def _permute(xp, ids, experts):
    return X.permute(xp, ids, experts)


@L._define("moe_gather(Tensor x, Tensor rows, Tensor place) -> Tensor")
def _gather(xp, x, rows, place):
    return x.index_select(0, rows.clamp_min(0) // place.shape[1])


def _gather_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[2])


def _gather_gradient(ctx, dy):
    return _op.moe_combine(dy, ctx.saved_tensors[0], None), None, None


@L._define("moe_combine(Tensor y, Tensor place, Tensor? weights) -> Tensor")
def _combine(xp, y, place, weights):
    same_device(y, place, weights)
    return X.combine(xp, y, place, weights, dtype_number(y.dtype))


@L._define("moe_combine_backward(Tensor dout, Tensor? y, Tensor place, Tensor? weights) -> (Tensor, Tensor)")
def _combine_backward(xp, dout, y, place, weights):
    dy, dweights = X.combine_bwd(xp, dout, y, place, weights)
    return dy, L._none(dout, dweights)


def _combine_setup(ctx, inputs, output):
    y, place, weights = inputs
    ctx.save_for_backward(y if weights is not None else None, place, weights)


def _combine_gradient(ctx, dout):
    y, place, weights = ctx.saved_tensors
    dy, dweights = _op.moe_combine_backward(dout, y if ctx.needs_input_grad[2] else None, place, weights)
    return dy, None, dweights if ctx.needs_input_grad[2] else None


@L._define("grouped_fp8_linear(Tensor x, Tensor weight, Tensor offsets, Tensor? bias, bool transposed, str gradient_dtype) -> "
           "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def _linear(xp, x, weight, offsets, bias, transposed, gradient_dtype):
    """y, and what the gradients need: transposed codes of x and of the weights, their scales, and the offsets of x's."""
    same_device(x, weight, offsets, bias)
    ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
    q, s, q_t, s_t, offsets_t = X.permute_quantize(xp, x, None, 1, offsets, A.E4M3, True)
    wq, ws, wtq, wts = _weights(xp, weight, transposed)
    y = _gemm(xp, "m", q, s, wq, ws, offsets, dtype_number(x.dtype), bias)
    return y, _bytes(q_t), s_t, offsets_t, _bytes(wtq), wts


@L._define("grouped_fp8_linear_backward(Tensor dy, Tensor offsets, Tensor x_t, Tensor x_t_scales, Tensor offsets_t, Tensor w_t, "
           "Tensor w_t_scales, bool transposed, str gradient_dtype, bool dx, bool dweight, bool dbias) -> (Tensor, Tensor, Tensor)")
def _linear_backward(xp, dy, offsets, x_t, x_t_scales, offsets_t, w_t, w_t_scales, transposed, gradient_dtype, want_x, want_w,
                     want_b):
    dtype = dtype_number(dy.dtype)
    q, s, q_t, s_t, _ = X.permute_quantize(xp, dy, None, 1, offsets, L.FORMATS[gradient_dtype], want_w)
    dx = _gemm(xp, "m", q, s, _codes(w_t), w_t_scales, offsets, dtype) if want_x else None
    dw = _weight_gradient(xp, q_t, s_t, _codes(x_t), x_t_scales, offsets_t, transposed, dtype) if want_w else None
    return L._none(dy, dx), L._none(dy, dw), L._none(dy, _bias_gradient(dy, offsets) if want_b else None)


def _bias_gradient(dy, offsets):
    """The sums of the rows of each group, in f32; by sorted indices, which keeps their order."""
    groups = offsets.shape[0] - 1
    group = torch.searchsorted(offsets[1:], torch.arange(dy.shape[0], device=dy.device, dtype=offsets.dtype), right=True)
    sums = dy.new_zeros((groups + 1, dy.shape[1]), dtype=torch.float32)
    sums.index_put_((torch.where(torch.arange(dy.shape[0], device=dy.device) < offsets[0], groups, group),), dy.float(),
                    accumulate=True)
    return sums[:groups]


def _weight_gradient(xp, g_t, g_s, x_t, x_s, offsets_t, transposed, dtype):
    one, other = ((x_t, x_s), (g_t, g_s)) if transposed else ((g_t, g_s), (x_t, x_s))
    return _gemm(xp, "k", *one, *other, offsets_t, dtype)


def _linear_setup(ctx, inputs, output):
    x, weight, offsets, bias, *ctx.rest = inputs
    ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(offsets, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _linear_gradient(ctx, dy, *_):
    if dy is None:
        return (None,) * 6
    want, (of_weight, of_bias) = ctx.needs_input_grad, ctx.dtypes
    dx, dw, db = _op.grouped_fp8_linear_backward(dy, *ctx.saved_tensors, *ctx.rest, want[0], want[1], want[3])
    return (dx if want[0] else None, dw.to(of_weight) if want[1] else None, None, db.to(of_bias) if want[3] else None, None,
            None)


EXPERTS = "str activation, float[] options, bool interleaved, str gradient_dtype"


@L._define(f"moe_experts(Tensor x, Tensor ids, Tensor weights, Tensor gate_up, Tensor down, {EXPERTS}, bool recompute) -> "
           f"({', '.join(15 * ['Tensor'])})")
def _experts(xp, x, ids, weights, gate_up, down, activation, options, interleaved, gradient_dtype, recompute):
    """out, and what the gradients need. The weights of the pairs are multiplied into the activations before `down`, which is
    linear: the sum over slots has none then, and their gradient is a sum over the activations."""
    same_device(x, ids, weights, gate_up, down)
    ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
    dtype, slots = dtype_number(x.dtype), ids.shape[1]
    offsets, rows, place = X.permute(xp, ids.to(torch.int32), gate_up.shape[0])
    row_weights = weights.to(torch.float32).reshape(-1).index_select(0, rows.clamp_min(0))
    z, *for_z = _up(xp, x, rows, slots, offsets, gate_up, dtype, recompute)
    y, *for_y = _down(xp, z, offsets, row_weights, activation, options, interleaved, down, dtype, recompute)
    return (X.combine(xp, y, place, None, dtype), offsets, rows, place, row_weights, z, *for_z, *for_y)


def _up(xp, x, rows, slots, offsets, gate_up, dtype, recompute):
    """The product with gate_up, and what its gradients need; the codes of the rows end here. recompute: those of transposes
    are made in the backward pass."""
    q, s, x_t, x_ts, _ = X.permute_quantize(xp, x, rows, slots, offsets, A.E4M3, not recompute)
    wq, ws, *w_t = X.weights(xp, gate_up, A.E4M3, not recompute)
    return (_gemm(xp, "m", q, s, wq, ws, offsets, dtype), *_kept(x, x_t, x_ts), *_kept(x, *w_t))


def _down(xp, z, offsets, row_weights, activation, options, interleaved, down, dtype, recompute):
    q, s, h_t, h_ts, offsets_t = X.swiglu_quantize(xp, z, offsets, row_weights, activation, options, interleaved, A.E4M3, True)
    wq, ws, *w_t = X.weights(xp, down, A.E4M3, not recompute)
    return _gemm(xp, "m", q, s, wq, ws, offsets, dtype), offsets_t, _bytes(h_t), h_ts, *_kept(z, *w_t)


def _kept(like, codes, scales):
    return L._none(like, _bytes(codes)), L._none(like, scales)


# The backward is two ops, so that what the first one alone needs can be freed before the second, under torch.compile, and
# each tensor ends with the last call that reads it.


@L._define(f"moe_experts_backward_down(Tensor dout, Tensor[] saved, {EXPERTS}, bool ddown) -> "
           "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def _experts_backward_down(xp, dout, saved, activation, options, interleaved, gradient_dtype, want):
    """(codes of dz, scales, transposed codes, their scales, dweights, ddown)"""
    offsets, rows, place, row_weights, z, offsets_t, h_t, h_ts, w_t, w_ts = saved
    dtype, code = dtype_number(dout.dtype), L.FORMATS[gradient_dtype]
    q, s, g_t, g_ts, _ = X.permute_quantize(xp, dout, rows, place.shape[1], offsets, code, want)
    d2 = _weight_gradient(xp, g_t, g_ts, _codes(h_t), h_ts, offsets_t, False, dtype) if want else None
    del g_t, g_ts
    dh = _gemm(xp, "m", q, s, *_transposed_weights(xp, w_t, w_ts), offsets, dtype)
    del q, s
    drow, q, s, z_t, z_ts, _ = X.swiglu_bwd_quantize(xp, dh, z, offsets, row_weights, activation, options, interleaved, code, True)
    dweights = torch.where(place >= 0, drow.index_select(0, place.clamp_min(0).reshape(-1)).view(place.shape), 0.0)
    return _bytes(q), s, _bytes(z_t), z_ts, dweights, L._none(dout, d2)


@L._define("moe_experts_backward_up(Tensor like, Tensor[] codes, Tensor[] saved, str gradient_dtype, bool dx, bool dgate_up) -> "
           "(Tensor, Tensor)")
def _experts_backward_up(xp, like, codes, saved, gradient_dtype, want_x, want_w):
    """(dx, dgate_up), of the dtype of `like`. x_t: the transposed codes of x's rows, or x; w_t those of gate_up, or gate_up."""
    q, s, z_t, z_ts = codes
    offsets, offsets_t, rows, place, x_t, x_ts, w_t, w_ts = saved
    dtype, kind = dtype_number(like.dtype), DTYPES[L.FORMATS[gradient_dtype]]
    dx = d1 = None
    if want_x:
        rows_dx = _gemm(xp, "m", _codes(q, kind), s, *_transposed_weights(xp, w_t, w_ts), offsets, dtype)
        dx = X.combine(xp, rows_dx, place, None, dtype)
        del rows_dx
    if want_w:
        if x_t.dtype != torch.uint8:
            _, _, x_t, x_ts, _ = X.permute_quantize(xp, x_t, rows, place.shape[1], offsets, A.E4M3, True)
        d1 = _weight_gradient(xp, _codes(z_t, kind), z_ts, _codes(x_t), x_ts, offsets_t, False, dtype)
    return L._none(like, dx), L._none(like, d1)


def _experts_setup(ctx, inputs, output):
    x, _, weights, gate_up, down, *ctx.rest, recompute = inputs
    ctx.dtypes = weights.dtype, gate_up.dtype, down.dtype
    kept = list(output[1:])
    if recompute:
        kept[5], kept[7], kept[12] = x, gate_up, down
    ctx.save_for_backward(*kept)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _experts_gradient(ctx, dout, *_):
    if dout is None:
        return (None,) * 10
    want = ctx.needs_input_grad
    offsets, rows, place, row_weights, z, x_t, x_ts, w1_t, w1_ts, offsets_t, *of_down = ctx.saved_tensors
    clear = getattr(ctx, "maybe_clear_saved_tensors", None)  # unless the graph is kept; what `down` alone needs ends with it
    if clear:
        clear()
    *codes, dw, d2 = _op.moe_experts_backward_down(dout, [offsets, rows, place, row_weights, z, offsets_t, *of_down], *ctx.rest,
                                                   want[4])
    del z, of_down
    dx, d1 = _op.moe_experts_backward_up(dout, codes, [offsets, offsets_t, rows, place, x_t, x_ts, w1_t, w1_ts], ctx.rest[-1],
                                         want[0], want[3])
    of_weights, of_1, of_2 = ctx.dtypes
    return (dx if want[0] else None, None, dw.to(of_weights) if want[2] else None, d1.to(of_1) if want[3] else None,
            d2.to(of_2) if want[4] else None, *(None,) * 5)


for _name, _gradient, _setup in (("moe_route", _route_gradient, _route_setup), ("moe_gather", _gather_gradient, _gather_setup),
                                 ("moe_combine", _combine_gradient, _combine_setup),
                                 ("grouped_fp8_linear", _linear_gradient, _linear_setup),
                                 ("moe_experts", _experts_gradient, _experts_setup)):
    torch.library.register_autograd(f"ridge::{_name}", _gradient, setup_context=_setup, lib=L.library)
for _name in ("moe_route_backward", "moe_combine_backward", "grouped_fp8_linear_backward", "moe_experts_backward_down",
              "moe_experts_backward_up"):
    L._no_gradient(_name)

# -------------------------------------------------------------------------------------------------------- functions


def _cast(x):
    dtype = autocast_dtype(x)
    return x if dtype is None else x.to(dtype)


def grouped_fp8_linear(x: Tensor, weight: Tensor, offsets: Tensor, *, bias: Optional[Tensor] = None, transposed: bool = False,
                       gradient_dtype: str = "e4m3") -> Tensor:
    """x [rows, in] times the matrix of each row's group, plus its bias: weight [groups, out, in] (transposed: [groups, in,
    out]), bias [groups, out], group g the rows offsets[g] .. offsets[g + 1] - 1, an int32 or int64 tensor on x's device. Rows of
    no group are not written.

    All three products run in FP8: scales for 128 values of a row (gradients of the weight: for 128 rows of a group), and for
    128 x 128 of a weight. gradient_dtype: "e4m3" or "e5m2"."""
    tensors("grouped_fp8_linear", x=x, weight=weight, offsets=offsets, bias=(bias, None))
    if weight.dim() != 3 or x.dim() != 2 or x.shape[1] != weight.shape[1 if transposed else 2]:
        raise ArgumentError(f"x {list(x.shape)} and weight {list(weight.shape)} are not [rows, in] and "
                            f"[groups, {'in, out' if transposed else 'out, in'}]")
    ops.same_shape("offsets", offsets.shape, (weight.shape[0] + 1,))
    if bias is not None:
        ops.same_shape("bias", bias.shape, (weight.shape[0], weight.shape[2 if transposed else 1]))
    if offsets.dtype == torch.int64:  # a wrong one stays wrong
        offsets = offsets.clamp(-1, 2**31 - 1).to(torch.int32)
    return _op.grouped_fp8_linear(_cast(x), weight, offsets, bias, transposed, gradient_dtype)[0]


def moe_route(logits: Tensor, slots: int, *, bias: Optional[Tensor] = None, logit_bias: Optional[Tensor] = None,
              rule: str = "softmax", normalise: bool = False, groups: int = 1, top_groups: int = 1, group_max: bool = False,
              scale: float = 1.0, eps: float = 0.0) -> tuple[Tensor, Tensor]:
    """(ids [tokens, slots] int32, weights float32) of logits [tokens, experts]: the experts of each token. rule: "softmax",
    "topk_softmax", "sigmoid", "sqrt_softplus"; ridge.h (moe_route) says what each model takes. Differentiable in logits and
    logit_bias; bias decides the choice only."""
    tensors("moe_route", logits=logits, bias=(bias, None), logit_bias=(logit_bias, None))
    return _op.moe_route(logits, slots, bias, logit_bias, rule, normalise, groups, top_groups, group_max, float(scale), float(eps))


def moe_experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *,
                gate_up_bias: Optional[Tensor] = None, down_bias: Optional[Tensor] = None, activation: str = "silu",
                alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0, interleaved: bool = False,
                transposed: bool = False, gradient_dtype: str = "e4m3", recompute: bool = False) -> Tensor:
    """The sum over each token's slots of weights[t, s] * down(act(gate x) * up x), with the matrices of expert ids[t, s].

    x [tokens, hidden]; ids and weights [tokens, slots], an id outside the experts is left out; gate_up [experts, 2 ffn,
    hidden] (gate, then up, or interleaved) and down [experts, hidden, ffn], transposed: [.., in, out]. Differentiable in all
    but ids; products in FP8 as those of grouped_fp8_linear.

    recompute: x and the weights are kept for the backward pass in place of transposed codes (a byte for each slot and column
    of x's rows, a byte a weight), which are made again there; the same bits. Without effect on experts with biases or
    transposed matrices."""
    tensors("moe_experts", x=x, ids=ids, weights=weights, gate_up=gate_up, down=down)
    if x.dim() != 2 or ids.dim() != 2 or ids.shape != weights.shape or ids.shape[0] != x.shape[0]:
        raise ArgumentError(f"x {list(x.shape)}, ids {list(ids.shape)} and weights {list(weights.shape)} are not [tokens, hidden] "
                            "and twice [tokens, slots]")
    if ids.is_floating_point():
        raise ArgumentError(f"ids has dtype {ids.dtype}, not one of integers")
    if gate_up.dim() != 3 or down.dim() != 3:
        raise ArgumentError(f"gate_up {list(gate_up.shape)} and down {list(down.shape)} are not a matrix of each expert")
    x = _cast(x)
    options = [1.0, 1.0, float(alpha), float(up_offset), float(limit)]
    if gate_up_bias is None and down_bias is None and not transposed:
        return _op.moe_experts(x, ids, weights, gate_up, down, activation, options, interleaved, gradient_dtype, bool(recompute))[0]
    offsets, rows, place = _op.moe_permute(ids.to(torch.int32), gate_up.shape[0])
    linear = functools.partial(grouped_fp8_linear, offsets=offsets, transposed=transposed, gradient_dtype=gradient_dtype)

    from . import swiglu
    z = linear(_op.moe_gather(x, rows, place), gate_up, bias=gate_up_bias)
    h = swiglu(z, None, activation=activation, alpha=alpha, up_offset=up_offset, limit=limit, interleaved=interleaved)
    return _op.moe_combine(linear(h, down, bias=down_bias), place, weights.to(torch.float32))


class MoE(torch.nn.Module):
    """A router and its experts: x [.., hidden] -> [.., hidden]. `routing` are options of moe_route."""

    def __init__(self, hidden: int, ffn: int, experts: int, slots: int, *, activation: str = "silu",
                 gradient_dtype: str = "e4m3", recompute: bool = False, device=None, dtype=None, **routing) -> None:
        super().__init__()
        self.slots, self.activation, self.routing = slots, activation, routing
        self.gradient_dtype, self.recompute = gradient_dtype, recompute
        new = functools.partial(torch.empty, device=device, dtype=dtype)
        self.router = torch.nn.Parameter(new(experts, hidden))
        self.gate_up = torch.nn.Parameter(new(experts, 2 * ffn, hidden))
        self.down = torch.nn.Parameter(new(experts, hidden, ffn))
        for p in self.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        two = x.reshape(-1, x.shape[-1])
        ids, weights = moe_route(torch.nn.functional.linear(two, self.router).float(), self.slots, **self.routing)
        out = moe_experts(two, ids, weights, self.gate_up, self.down, activation=self.activation,
                          gradient_dtype=self.gradient_dtype, recompute=self.recompute)
        return out.view(*x.shape[:-1], -1)


# ----------------------------------------------------------------------------------------------------- Hugging Face

_ACTIVATIONS = {"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "PytorchGELUTanh": "gelu_tanh",
                "GELUTanh": "gelu_tanh"}


def _experts_options(module):
    """The arguments of moe_experts that a block's class stands for; None: it is no block of experts that this knows."""
    gate_up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not (isinstance(gate_up, torch.nn.Parameter) and isinstance(down, torch.nn.Parameter) and gate_up.dim() == 3):
        return None
    if type(module).__name__ == "GptOssExperts":
        return {"alpha": float(getattr(module, "alpha", 1.702)), "up_offset": 1.0, "limit": float(getattr(module, "limit", 7.0)),
                "interleaved": True, "transposed": True}
    activation = _ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)
    return {"activation": activation} if activation and gate_up.shape[1] == 2 * down.shape[2] else None


def _experts_forward(module, hidden_states, top_k_index, top_k_weights, *, options):
    two = hidden_states.reshape(-1, hidden_states.shape[-1])
    out = moe_experts(two, top_k_index, top_k_weights, module.gate_up_proj, module.down_proj,
                      gate_up_bias=getattr(module, "gate_up_proj_bias", None), down_bias=getattr(module, "down_proj_bias", None),
                      **options)
    return out.view(hidden_states.shape).to(hidden_states.dtype)


def patch_moe(model: torch.nn.Module, *, gradient_dtype: str = "e4m3", recompute: bool = False,
              exclude: Sequence[str] = ()) -> Patch:
    """Every block of experts of a Hugging Face model (transformers 5: Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and V3,
    gpt-oss and others with gate_up_proj and down_proj [experts, ..]) computes in FP8, in place; routers and their losses stay
    the model's. recompute: as of moe_experts. exclude: ends of module names that stay. Returns a Patch: undo() restores the
    model."""
    ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
    patch, found = Patch(), False
    try:
        for name, module in model.named_modules():
            options = _experts_options(module)
            if options is None or any(name == e or name.endswith("." + e) for e in exclude):
                continue
            found = True
            options |= {"gradient_dtype": gradient_dtype, "recompute": recompute}
            _take(patch, module, lambda p, m, o=options: p.set(m, "forward", functools.partial(_experts_forward, m, options=o)))
        if not found:
            raise ArgumentError(f"{type(model).__name__} has no block of experts with gate_up_proj and down_proj [experts, ..]")
    except ArgumentError:
        patch.undo()
        raise
    return patch

"""ridge.torch: ridge's kernels as PyTorch functions and modules, with gradients, on the CPU and on CUDA. Longer than 600 lines
because the public functions with their docstrings stand in one place.

They work under torch.compile, CUDA graphs and autocast, and on DTensors (FSDP2, tensor and sequence parallelism: a call runs on
the shards where its result is then a sharded, replicated or partial one, else on gathered operands: a mean of cross entropy is
such a case, a sum is not); inputs may be strided or expanded. In eager mode without a
subclass, mode or transform a call goes past the dispatcher to the library (a few microseconds); otherwise it is an op of
torch.ops.ridge. Errors are ridge's exceptions with the library's message. Gradients are autograd's, in reverse mode and
once: a second derivative is an error, torch.func.grad is PyTorch's error for registered ops, and forward mode
(torch.func.jvp) takes the results for constants.
"""
from __future__ import annotations

import typing
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .. import _core  # noqa: F401: a missing library is reported before anything else
from .._core import ArgumentError
from .. import _ops as ops
from . import _distill
from . import _library as L
from ._arrays import Arrays, autocast_dtype, dtype_number, needs_grad, no_gradient, plain, tensors
from ._functions import AddRMSNorm, LinearCE, LinearCERows, LinearLogprobs, SwiGLU, apply_linear_ce, apply_swiglu
from ._plans import Planned

__all__ = ["Fp8Linear", "Patch", "Q8_0Linear", "RowStatistics", "add_rms_norm", "apply_ridge_to", "cross_entropy",
           "cross_entropy_stats", "fp8_gemm", "linear_cross_entropy", "linear_cross_entropy_stats", "linear_entropy",
           "linear_distill", "linear_jsd", "linear_kl", "linear_logprobs", "linear_sample", "linear_topk", "linear_weighted_nll", "patch_llama", "q8_0_matmul",
           "q8_0_quantize", "q8_0_repack", "quantize_fp8", "quantize_fp8_dual", "rms_norm", "rope", "rope_freqs", "swap_linear",
           "swiglu", "swiglu_linear"]
_on_tensors = Arrays()
_op = torch.ops.ridge


def _call(function, op, every, args):
    """Past the dispatcher if nothing needs it."""
    return function(_on_tensors, *args) if plain(*every) and not needs_grad(*every) else op(*args)


def _ordinary(args, *tensors):
    """For Planned: where a gradient is asked for, the ordinary way has it, or says that there is none."""


def _swiglu(xp, gate, up, activation, gate_mul, down_mul, alpha, up_offset, limit, round_gate, interleaved):
    f = ops.swiglu_form("swiglu_fwd", activation, gate_mul, down_mul, alpha, up_offset, limit, round_gate, False, interleaved)
    return ops.swiglu_fwd(xp, f, gate, up, None, interleaved)


def _gemm(xp, a, scale_a, b, scale_b, scales, out_dtype):
    return L.fp8_gemm(xp, a, scale_a, b, scale_b, scales, out_dtype, None)


def _dual(xp, x, form, dtype, pow2, floor):
    return ops.quantize_fp8_dual(xp, x, form, ops.pick(L.FORMATS, dtype, "dtype"), pow2, floor, False)[:4]


def _swiglu_gradient(options, gate, up):
    activation, *five, round_gate, interleaved = options
    return apply_swiglu(gate, up, None, activation, tuple(five), round_gate, round_gate, interleaved)


def _usual_loss(x, weight, target):
    """Nothing to cast, and of the right shapes: whatever else is left to the ordinary way and its errors."""
    return (x.device.type in ("cpu", "cuda") and x.dtype is weight.dtype and target.dtype in (torch.int32, torch.int64) and
            x.dim() > 0 and x.shape[:-1] == target.shape and not torch.is_autocast_enabled(x.device.type))


def _loss(xp, x, weight, target, reduction, ignore_index, *options):
    return ops.linear_ce_eval(L.problem(xp, x, weight, target, None, None, reduction, ignore_index, options))[0]


def _loss_gradient(args, x, weight, target):
    """None under torch.no_grad, which a plan's guards do not see: the ordinary way computes no gradients there."""
    reduction, ignore_index, *options = args
    return None if reduction == "none" or not torch.is_grad_enabled() else apply_linear_ce(x, weight, target, None, None, reduction, ignore_index, options)


_swiglu = Planned(_swiglu, _swiglu_gradient, signed=lambda args: args[1:4])
_loss = Planned(_loss, _loss_gradient, usual=_usual_loss)
_gemm, _quantize, _dual = (Planned(f, _ordinary, names=2) for f in (_gemm, L.quantize_fp8, _dual))


def swiglu(gate: Tensor, up: Optional[Tensor] = None, *, activation: str = "silu", gate_mul: float = 1.0, down_mul: float = 1.0,
           alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0, round_gate: bool = False,
           row_scale: Optional[Tensor] = None, interleaved: bool = False) -> Tensor:
    """act(gate) * up over the last dimension; bf16, f16 or f32. Differentiable in gate, up and row_scale.

    up: None: gate holds both, as halves of its last dimension or (interleaved) alternating.
    activation: "silu", "gelu" (erf), "gelu_tanh", "relu2". limit clamps gate from above and up to both sides, alpha and
    up_offset are gpt-oss's, row_scale [..] f32 multiplies rows (a mixture's weights). round_gate rounds act(gate) to the
    dtype first, forward and backward, where PyTorch's eager kernels round; act itself stays ridge's, so that the last bit may
    differ from theirs (and GELU's tail, which they lose).
    """
    if row_scale is None:  # the usual call
        out = _swiglu((activation, gate_mul, down_mul, alpha, up_offset, limit, round_gate, interleaved), gate, up)
        if out is not None:
            return out
    tensors("swiglu", gate=gate, up=(up, None), row_scale=(row_scale, None))
    ops.numbers_only(gate_mul=gate_mul, down_mul=down_mul, alpha=alpha, up_offset=up_offset, limit=limit, round_gate=round_gate,
                     interleaved=interleaved)
    ops.pick(ops.ACTIVATIONS, activation, "activation")
    args = (gate, up, row_scale, activation, (gate_mul, down_mul, alpha, up_offset, limit), round_gate, round_gate,
            interleaved)
    if not plain(gate, up, row_scale):
        return _op.swiglu(gate, up, row_scale, activation, [float(x) for x in args[4]], round_gate, round_gate, interleaved)
    if torch.is_grad_enabled() and (gate.requires_grad or (up is not None and up.requires_grad) or
                                    (row_scale is not None and row_scale.requires_grad)):
        return SwiGLU.apply(*args)
    return L.swiglu(_on_tensors, *args)


def swiglu_linear(gate: Tensor, up: Optional[Tensor], weight: Tensor, bias: Optional[Tensor] = None, *, activation: str = "silu",
                  gate_mul: float = 1.0, down_mul: float = 1.0, alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0,
                  interleaved: bool = False, recompute: Optional[bool] = None) -> Tensor:
    """F.linear(swiglu(gate, up, ...), weight, bias), an MLP's second half. up None: as in swiglu.

    recompute: backward makes the activation again instead of keeping it: a third less of an MLP's saved memory for one more
    pass over gate and up. None: where there are more than four times as many rows as outputs.
    """
    tensors("swiglu_linear", gate=gate, up=(up, None), weight=weight, bias=(bias, None))
    ops.numbers_only(gate_mul=gate_mul, down_mul=down_mul, alpha=alpha, up_offset=up_offset, limit=limit, interleaved=interleaved)
    ops.pick(ops.ACTIVATIONS, activation, "activation")
    every, dtype = (gate, up, weight, bias), autocast_dtype(gate)
    for t in every:
        if t is not None and t.device != gate.device:
            raise ArgumentError(f"tensors are on {gate.device} and on {t.device}: move them to one device")
    features = gate.shape[-1] if gate.dim() and up is not None else gate.shape[-1] // 2 if gate.dim() else 0
    if weight.dim() != 2 or weight.shape[1] != features:
        raise ArgumentError(f"weight has shape {list(weight.shape)}, not [.., {features}]: it takes what swiglu of gate gives")
    if dtype is not None:
        every = tuple(None if t is None else t.to(dtype) for t in every)
    options = [float(v) for v in (gate_mul, down_mul, alpha, up_offset, limit)]
    if every[2].dtype != every[0].dtype:
        raise ArgumentError(f"gate is {every[0].dtype}, weight {every[2].dtype}: the dtypes must be the same")
    if recompute is None:
        recompute = every[0].numel() > 4 * every[0].shape[-1] * weight.shape[0]
    if not recompute:
        gate, up, weight, bias = every
        h = swiglu(gate, up, activation=activation, gate_mul=gate_mul, down_mul=down_mul, alpha=alpha, up_offset=up_offset,
                   limit=limit, interleaved=interleaved)
        return torch.nn.functional.linear(h, weight, bias)
    return _op.swiglu_linear(*every, activation, options, interleaved)


def linear_cross_entropy(input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Optional[Tensor] = None,
                         weight: Optional[Tensor] = None, size_average: Optional[bool] = None,
                         ignore_index: Optional[int] = -100, reduce: Optional[bool] = None, reduction: str = "mean",
                         label_smoothing: float = 0.0, *, options: Any = None, shift: int = 0, softcap: float = 0.0,
                         temperature: float = 1.0, lse_square_scale: float = 0.0, nan_if_empty: bool = False) -> Tensor:
    """F.cross_entropy(F.linear(input, linear_weight, linear_bias), target, ...) without the logits.

    input [.., hidden], linear_weight [vocab, hidden] of the same dtype (under autocast both are cast to its dtype), target
    [..] of class indices; weight [vocab] are class weights; the rest are torch.nn.functional.cross_entropy's arguments and
    defaults. Calls of PyTorch 2.15's F.linear_cross_entropy work as they are: ignore_index None is -100, and options, which
    says how PyTorch cuts the logits into chunks, is taken and changes nothing.
    shift n: position t predicts target t + n along the last dimension of target; the last n positions of each sequence predict
    nothing, and with reduction "none" they are not in the result. softcap s: logits s tanh(logits / s); then / temperature;
    lse_square_scale adds that times logsumexp^2 (z-loss).
    The loss is f32. With "mean" and "sum" the gradients are made in the forward call; without grad only the loss is.
    Unlike PyTorch, a mean over no rows is 0 (NaN with nan_if_empty), and a target out of range makes the loss NaN instead of an
    assertion.
    """
    if ignore_index is None:
        ignore_index = -100
    if linear_bias is None and weight is None and size_average is None and reduce is None and not nan_if_empty and \
            options is None and type(shift) is int and shift == 0:
        loss = _loss((reduction, ignore_index, label_smoothing, softcap, temperature, lse_square_scale), input, linear_weight,
                     target)  # the usual call
        if loss is not None:
            return loss
    if size_average is not None or reduce is not None:
        raise ArgumentError("size_average and reduce are deprecated in PyTorch and not supported: use reduction")
    tensors("linear_cross_entropy", input=input, linear_weight=linear_weight, target=target, linear_bias=(linear_bias, None),
            weight=(weight, None))
    ops.numbers_only(ignore_index=ignore_index, label_smoothing=label_smoothing, softcap=softcap, temperature=temperature,
                     lse_square_scale=lse_square_scale, nan_if_empty=nan_if_empty)
    ops.pick(ops.REDUCTIONS, reduction, "reduction")
    if options is not None and type(options).__name__ != "LinearCrossEntropyOptions":
        raise ArgumentError(f"options is a {type(options).__name__}, not a torch.nn.LinearCrossEntropyOptions")
    input, linear_weight, t = _loss_inputs("linear_cross_entropy", input, linear_weight, target, weight, ignore_index)
    target, shift = t, _shift(shift, t)
    if shift:
        t = torch.nn.functional.pad(t[..., shift:], (0, shift), value=int(ignore_index))
    x, t = input.reshape(-1, input.shape[-1]), t.reshape(-1)
    numbers = [float(label_smoothing), float(softcap), float(temperature), float(lse_square_scale)]
    args = (x, linear_weight, t, linear_bias, weight, reduction, ops.whole("ignore_index", ignore_index), numbers)
    want = [x.requires_grad, linear_weight.requires_grad, linear_bias is not None and linear_bias.requires_grad]
    here = plain(x, linear_weight, t, linear_bias, weight)
    if not torch.is_grad_enabled() or not any(want):
        loss = L.linear_ce_eval(_on_tensors, *args, False)[0] if here else _op.linear_ce_eval(*args, False)[0]
    elif reduction == "none":
        loss = LinearCERows.apply(*args) if here else _op.linear_ce_eval(*args, True)[0]
    else:
        loss = LinearCE.apply(*args) if here else _op.linear_ce_train(*args, *want)[0]
    if reduction == "mean" and nan_if_empty:
        loss = torch.where((t != ignore_index).any(), loss, float("nan"))
    if reduction != "none":
        return loss
    loss = loss.view(target.shape)
    return loss[..., :target.shape[-1] - shift] if shift else loss


def _shift(shift, target):
    n = ops.whole("shift", shift)
    if n and not (target.dim() and 0 < n <= target.shape[-1]):
        raise ArgumentError(f"shift is {shift}, not within a sequence of target's shape {list(target.shape)}")
    return n


def _loss_inputs(function, input, linear_weight, target, weight, ignore_index):
    """(input, linear_weight or None, target), cast where autocast or the library wants it; or an error."""
    no_gradient(function, weight=weight)
    name = "input" if linear_weight is not None else "logits"
    ops.whole("ignore_index", ignore_index)
    if target.is_floating_point():
        raise ArgumentError("target holds class probabilities; only class indices are supported")
    if not input.dim():
        raise ArgumentError(f"{name} has no dimensions")
    dtype = autocast_dtype(input) if linear_weight is not None else None
    if dtype is not None:
        input, linear_weight = input.to(dtype), linear_weight.to(dtype)
    elif linear_weight is not None and input.dtype != linear_weight.dtype:
        raise ArgumentError(f"input is {input.dtype}, linear_weight {linear_weight.dtype}: the dtypes must be the same")
    if input.shape[:-1] != target.shape:
        raise ArgumentError(f"target has shape {list(target.shape)}, not {list(input.shape[:-1])}")
    return input, linear_weight, target if target.dtype in (torch.int32, torch.int64) else target.long()


class RowStatistics(typing.NamedTuple):
    """Of every row of logits z: the loss; lse = log sum e^z; z of the target; the entropy of softmax(z) in nats (f32); the
    class of the largest z (int64). A row whose target is ignore_index has 0, 0, 0, 0 and -1."""
    loss: Tensor
    lse: Tensor
    target_logit: Tensor
    entropy: Tensor
    argmax: Tensor


def linear_cross_entropy_stats(input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Optional[Tensor] = None,
                               weight: Optional[Tensor] = None, ignore_index: Optional[int] = -100, label_smoothing: float = 0.0,
                               *, softcap: float = 0.0, temperature: float = 1.0,
                               lse_square_scale: float = 0.0) -> RowStatistics:
    """RowStatistics of linear_cross_entropy's rows, each of target's shape, without the logits. No gradient."""
    tensors("linear_cross_entropy_stats", input=input, linear_weight=linear_weight, target=target,
            linear_bias=(linear_bias, None), weight=(weight, None))
    ops.numbers_only(label_smoothing=label_smoothing, softcap=softcap, temperature=temperature, lse_square_scale=lse_square_scale)
    no_gradient("linear_cross_entropy_stats", input=input, linear_weight=linear_weight, linear_bias=linear_bias)
    ignore_index = -100 if ignore_index is None else ignore_index
    x, w, t = _loss_inputs("linear_cross_entropy_stats", input, linear_weight, target, weight, ignore_index)
    rows = _op.linear_ce_stats(x.reshape(-1, x.shape[-1]), w, t.reshape(-1), linear_bias, weight,
                               ops.whole("ignore_index", ignore_index),
                               [float(label_smoothing), float(softcap), float(temperature), float(lse_square_scale)])
    return RowStatistics(*(t.view(target.shape) for t in rows))


def linear_logprobs(input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Optional[Tensor] = None,
                    ignore_index: Optional[int] = -100, *, entropy: bool = False, softcap: float = 0.0,
                    temperature: float = 1.0) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """log softmax(F.linear(input, linear_weight, linear_bias)) at target, without the logits: f32, of target's shape, never
    above 0. With entropy=True also the entropy of each row's softmax [..], in nats, from the same pass.

    target: [..], a class a row; or [.., K] with K from 1 to 256, for distillation: K classes a row, in any order.
    All is differentiable in input, linear_weight and linear_bias, with one backward pass, which computes the logits again.
    A target that is ignore_index has 0 and no gradient, and a row without another one has entropy 0; a target out of range has
    NaN. softcap and temperature as in linear_cross_entropy.
    """
    tensors("linear_logprobs", input=input, linear_weight=linear_weight, target=target, linear_bias=(linear_bias, None))
    ops.numbers_only(entropy=entropy, softcap=softcap, temperature=temperature)
    ignore_index = ops.whole("ignore_index", -100 if ignore_index is None else ignore_index)
    ids = None
    if target.dim() == input.dim() and target.dim() and target.shape[:-1] == input.shape[:-1]:
        ids = target if target.dtype in (torch.int32, torch.int64) else target.long()
        target = torch.where((ids != ignore_index).any(-1), 0 if ignore_index else 1, ignore_index).to(ids.dtype)
    logprob, of_rows, of_ids, _ = _logprobs("linear_logprobs", input, linear_weight, target, linear_bias, ids, ignore_index,
                                            bool(entropy), softcap, temperature)
    logprob = logprob if ids is None else of_ids
    return (logprob, of_rows) if entropy else logprob


def linear_weighted_nll(input: Tensor, linear_weight: Tensor, target: Tensor, row_weight: Tensor,
                        linear_bias: Optional[Tensor] = None, ignore_index: Optional[int] = -100, *, softcap: float = 0.0,
                        temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(sum over rows of row_weight * -log p(target), log p(target) of each row), without the logits.

    The sum is differentiable, its gradients are made in the forward call: three products, where linear_logprobs, whose gradient is
    known only in backward, takes four. row_weight, of target's shape and without a gradient, are weights of tokens, or advantages
    over a number of tokens: the policy gradient of a policy that sampled these tokens itself (its ratio is 1). Rows whose target is
    ignore_index have 0. softcap and temperature as in linear_cross_entropy.
    """
    tensors("linear_weighted_nll", input=input, linear_weight=linear_weight, target=target, row_weight=row_weight,
            linear_bias=(linear_bias, None))
    ops.numbers_only(softcap=softcap, temperature=temperature)
    no_gradient("linear_weighted_nll", row_weight=row_weight)
    ignore_index = ops.whole("ignore_index", -100 if ignore_index is None else ignore_index)
    if row_weight.shape != target.shape:
        raise ArgumentError(f"row_weight has shape {list(row_weight.shape)}, not target's {list(target.shape)}")
    x, w, t = _loss_inputs("linear_weighted_nll", input, linear_weight, target, None, ignore_index)
    want = [torch.is_grad_enabled() and s is not None and s.requires_grad for s in (x, w, linear_bias)]
    numbers = [0.0, float(softcap), float(temperature), 0.0]
    x, t, row_weight = x.reshape(-1, x.shape[-1]), t.reshape(-1), row_weight.reshape(-1)
    if any(want):
        loss, rows = _op.linear_ce_weighted(x, w, t, linear_bias, row_weight, ignore_index, numbers, *want)[:2]
    else:
        rows = _op.linear_ce_eval(x, w, t, linear_bias, None, "none", ignore_index, numbers, False)[0]
        loss = (rows * row_weight.to(torch.float32)).sum()
    return loss, 0 - rows.detach().view(target.shape)


def linear_entropy(input: Tensor, linear_weight: Tensor, linear_bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, *,
                   softcap: float = 0.0, temperature: float = 1.0) -> Tensor:
    """The entropy of each row's softmax(F.linear(input, linear_weight, linear_bias)), in nats, without the logits: f32 [..].
    Differentiable as linear_logprobs, which gives both. mask [..] bool: False leaves a row out (0, no gradient)."""
    tensors("linear_entropy", input=input, linear_weight=linear_weight, linear_bias=(linear_bias, None), mask=(mask, None))
    ops.numbers_only(softcap=softcap, temperature=temperature)
    target = _of_mask(input, mask)
    return _logprobs("linear_entropy", input, linear_weight, target, linear_bias, None, -1, True, softcap, temperature)[1]


def _of_mask(input, mask):
    """Targets: 0, or -1 for the rows that are left out."""
    if mask is None:
        return torch.zeros(input.shape[:-1], dtype=torch.int32, device=input.device)
    if mask.dtype != torch.bool or mask.shape != input.shape[:-1]:
        raise ArgumentError(f"mask is {mask.dtype}{list(mask.shape)}, not torch.bool{list(input.shape[:-1])}")
    return mask.to(torch.int32) - 1


def linear_topk(input: Tensor, linear_weight: Tensor, k: int, linear_bias: Optional[Tensor] = None,
                mask: Optional[Tensor] = None, *, softcap: float = 0.0, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The k most likely classes of each row's softmax(F.linear(input, linear_weight, linear_bias)) and their log-probabilities,
    without the logits: (i64 [.., k], f32 [.., k]), the most likely first, of equals the lowest class. k is at most 256.

    Not differentiable: linear_logprobs of these classes is. mask [..] bool: False leaves a row out (-1 and 0).
    """
    tensors("linear_topk", input=input, linear_weight=linear_weight, linear_bias=(linear_bias, None), mask=(mask, None))
    ops.numbers_only(softcap=softcap, temperature=temperature)
    k = ops.whole("k", k)
    if not 1 <= k <= 256:
        raise ArgumentError(f"k is {k}, not in 1 .. 256")
    x, w, t = _loss_inputs("linear_topk", input, linear_weight, _of_mask(input, mask), None, -1)
    bias = None if linear_bias is None else linear_bias.detach()
    ids, logprob = _op.linear_ce_topk(x.detach().reshape(-1, x.shape[-1]), w.detach(), t.reshape(-1), bias, k, -1,
                                      [0.0, float(softcap), float(temperature), 0.0])
    return ids.view(*t.shape, k), logprob.view(*t.shape, k)


def linear_sample(input: Tensor, linear_weight: Tensor, seed: Tensor, counter: Optional[Tensor] = None,
                  linear_bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, *, softcap: float = 0.0,
                  temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """A class drawn from each row's softmax(F.linear(input, linear_weight, linear_bias) / temperature) and its log-probability
    there, without the logits: (i64 [..], f32 [..]).

    seed and counter: i64 [..] or of one element; counter is 0 where it is not given. A draw is a function of the row's logits,
    seed and counter alone: give each row a pair of its own (a seed a sequence, its position as the counter), and it is drawn again
    whatever rows are beside it. Not differentiable: linear_logprobs of these classes is. mask [..] bool: False leaves a row out
    (-1 and 0).
    """
    tensors("linear_sample", input=input, linear_weight=linear_weight, seed=seed, counter=(counter, None),
            linear_bias=(linear_bias, None), mask=(mask, None))
    ops.numbers_only(softcap=softcap, temperature=temperature)
    x, w, t = _loss_inputs("linear_sample", input, linear_weight, _of_mask(input, mask), None, -1)
    bias = None if linear_bias is None else linear_bias.detach()
    ids, logprob = _op.linear_ce_sample(x.detach().reshape(-1, x.shape[-1]), w.detach(), t.reshape(-1), *_pair(t.shape, seed, counter),
                                        bias, -1, [0.0, float(softcap), float(temperature), 0.0])
    return ids.view(t.shape), logprob.view(t.shape)


def _pair(shape, seed, counter):
    """seed and counter of each row."""
    pair = []
    for name, t in (("seed", seed), ("counter", torch.zeros_like(seed) if counter is None else counter)):
        if t.dtype != torch.int64 or t.numel() != 1 and t.shape != shape:
            raise ArgumentError(f"{name} is {t.dtype}{list(t.shape)}, not torch.int64{list(shape)} or of one element")
        pair.append((t.reshape(()).expand(shape.numel()) if t.numel() == 1 else t.reshape(-1)).contiguous())
    return pair


def _logprobs(function, input, linear_weight, target, linear_bias, ids, ignore_index, entropy, softcap, temperature, argmax=False):
    """(log-probability, and None where not wanted: entropy, log-probabilities of ids, argmax), shaped as target and ids"""
    x, w, t = _loss_inputs(function, input, linear_weight, target, None, ignore_index)
    args = (x.reshape(-1, x.shape[-1]), w, t.reshape(-1), linear_bias, None if ids is None else ids.reshape(t.numel(), -1),
            ignore_index, [0.0, float(softcap), float(temperature), 0.0], entropy, argmax)
    if not plain(x, w, t, linear_bias, ids):
        out = _op.linear_ce_logprobs(*args)
    elif needs_grad(x, w, linear_bias):
        out = LinearLogprobs.apply(*args)
    else:
        out = L.linear_ce_logprobs(_on_tensors, *args)
    return (out[0].view(target.shape), out[2].view(target.shape) if entropy else None,
            None if ids is None else out[3].view(ids.shape), out[4].view(target.shape) if argmax else None)


def linear_kl(input: Tensor, linear_weight: Tensor, teacher_logprob: Tensor, ids: Tensor, linear_bias: Optional[Tensor] = None,
              ignore_index: Optional[int] = -100, *, reverse: bool = False, tail: bool = False, softcap: float = 0.0,
              temperature: float = 1.0) -> Tensor:
    """The Kullback-Leibler divergence of each row from a teacher that is known at K classes, without the logits: f32 [..].

    ids [.., K] (different ones, K up to 256) and teacher_logprob [.., K], its log-probabilities there, at this temperature.
    Forward: sum q (log q - log p), q the teacher, p = softmax(F.linear(input, linear_weight, linear_bias)); reverse: sum
    p (log p - log q). Over the ids alone, or with tail=True over the ids and all other classes taken as one. An id that is
    ignore_index does not count. Differentiable in input, linear_weight and linear_bias, as linear_logprobs.
    """
    ops.numbers_only(reverse=reverse)
    three = _distill.both("linear_kl", linear_logprobs, input, linear_weight, teacher_logprob, ids, linear_bias, ignore_index,
                          tail, softcap, temperature)
    return _distill.kl(*three, bool(reverse))


def linear_jsd(input: Tensor, linear_weight: Tensor, teacher_logprob: Tensor, ids: Tensor, linear_bias: Optional[Tensor] = None,
               ignore_index: Optional[int] = -100, *, beta: float = 0.5, tail: bool = False, softcap: float = 0.0,
               temperature: float = 1.0) -> Tensor:
    """The generalised Jensen-Shannon divergence, beta KL(q, m) + (1 - beta) KL(p, m) with m = beta q + (1 - beta) p and beta
    between 0 and 1: f32 [..]. The rest as in linear_kl."""
    if not 0 < ops.real("beta", beta) < 1:
        raise ArgumentError(f"beta is {beta}, not between 0 and 1: the ends are linear_kl's two forms")
    three = _distill.both("linear_jsd", linear_logprobs, input, linear_weight, teacher_logprob, ids, linear_bias, ignore_index,
                          tail, softcap, temperature)
    return _distill.jsd(*three, float(beta))


def _of_distill(input, linear_weight, teacher_input, teacher_weight, linear_bias, teacher_bias, mask, beta, temperature, softcap,
                teacher_softcap, reduction):
    """What linear_distill asks of its arguments."""
    tensors("linear_distill", input=input, linear_weight=linear_weight, teacher_input=teacher_input, teacher_weight=teacher_weight,
            linear_bias=(linear_bias, None), teacher_bias=(teacher_bias, None), mask=(mask, None))
    if not 0 <= ops.real("beta", beta) <= 1:
        raise ArgumentError(f"beta is {beta}, not in 0 .. 1")
    if not 0 < ops.real("temperature", temperature) < float("inf"):
        raise ArgumentError(f"temperature is {temperature}, not finite and positive")
    for name, cap in (("softcap", softcap), ("teacher_softcap", teacher_softcap)):
        if not 0 <= ops.real(name, cap) < float("inf"):
            raise ArgumentError(f"{name} is {cap}, not finite and at least 0")
    if reduction not in ("mean", "sum"):
        raise ArgumentError(f"reduction is {reduction!r}, not 'mean' or 'sum'")
    vocab = linear_weight.shape[:1]
    for name, t, shape in (("linear_weight", linear_weight, (*vocab, input.shape[-1])),
                           ("teacher_input", teacher_input, (*input.shape[:-1], teacher_weight.shape[-1])),
                           ("teacher_weight", teacher_weight, (*vocab, teacher_input.shape[-1])),
                           ("linear_bias", linear_bias, vocab), ("teacher_bias", teacher_bias, vocab)):
        if t is not None and t.shape != shape:
            raise ArgumentError(f"{name} has shape {list(t.shape)}, not {list(shape)}")


def linear_distill(input: Tensor, linear_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor,
                   linear_bias: Optional[Tensor] = None, teacher_bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, *,
                   beta: float = 0.0, temperature: float = 1.0, softcap: float = 0.0, teacher_softcap: float = 0.0,
                   reduction: str = "mean") -> Tensor:
    """The divergence of softmax(F.linear(input, linear_weight, linear_bias) / temperature) from the teacher's, over all classes,
    in chunks of rows: of neither are all logits in memory at once. f32.

    beta 0: KL(teacher, student); 1: KL(student, teacher); between: linear_jsd's divergence. A softcap c makes c tanh(z / c) of
    the student's logits, teacher_softcap of the teacher's; 0 is none. The hidden sizes may differ, the classes not. mask [..] bool:
    False leaves a row out. reduction: "mean" over the rows that are not left out, or "sum"; 0 of none. The gradients in input,
    linear_weight and linear_bias are made with the loss, by PyTorch's products; the teacher has none. There is no factor of
    temperature squared.
    """
    _of_distill(input, linear_weight, teacher_input, teacher_weight, linear_bias, teacher_bias, mask, beta, temperature, softcap,
                teacher_softcap, reduction)
    keep = (_of_mask(input, mask) >= 0).reshape(-1).to(torch.float32)
    return _distill.Distill.apply(input.reshape(-1, input.shape[-1]), linear_weight, linear_bias,
                                  teacher_input.detach().reshape(keep.numel(), -1), teacher_weight.detach(),
                                  None if teacher_bias is None else teacher_bias.detach(), keep, _distill.divisor(keep, reduction),
                                  (float(beta), float(temperature), float(softcap), float(teacher_softcap)))


def cross_entropy(logits: Tensor, target: Tensor, weight: Optional[Tensor] = None, ignore_index: Optional[int] = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0, *, softcap: float = 0.0, temperature: float = 1.0,
                  lse_square_scale: float = 0.0) -> Tensor:
    """The cross entropy of logits that are there: [.., vocab] bf16, f16 or f32 with the classes last (F.cross_entropy has them
    second), target [..]. The rest, and the loss, as in linear_cross_entropy. Differentiable in the logits, once."""
    args = _of_logits("cross_entropy", logits, target, weight, ignore_index, label_smoothing, softcap, temperature, lse_square_scale)
    ops.pick(ops.REDUCTIONS, reduction, "reduction")
    return _op.ce_fwd(*args[:3], reduction, *args[3:])[0]


def cross_entropy_stats(logits: Tensor, target: Tensor, weight: Optional[Tensor] = None, ignore_index: Optional[int] = -100,
                        label_smoothing: float = 0.0, *, softcap: float = 0.0, temperature: float = 1.0,
                        lse_square_scale: float = 0.0) -> RowStatistics:
    """RowStatistics of cross_entropy's rows. No gradient."""
    tensors("cross_entropy_stats", logits=logits)
    no_gradient("cross_entropy_stats", logits=logits)
    return RowStatistics(*_op.ce_stats(*_of_logits("cross_entropy_stats", logits, target, weight, ignore_index, label_smoothing,
                                                   softcap, temperature, lse_square_scale)))


def _of_logits(function, logits, target, weight, ignore_index, *numbers):
    tensors(function, logits=logits, target=target, weight=(weight, None))
    ops.numbers_only(**dict(zip(("label_smoothing", "softcap", "temperature", "lse_square_scale"), numbers)))
    ignore_index = -100 if ignore_index is None else ignore_index
    logits, _, target = _loss_inputs(function, logits, None, target, weight, ignore_index)
    return logits, target, weight, ops.whole("ignore_index", ignore_index), [float(v) for v in numbers]


def rms_norm(x: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-6, *, out_dtype: Optional[torch.dtype] = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in f32, rounded once to out_dtype (x's own by default); bf16,
    f16 or f32. Differentiable in x and weight. Gemma's form: weight + 1."""
    return _add_rms_norm("rms_norm", x, None, weight, eps, out_dtype)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-6, *,
                 out_dtype: Optional[torch.dtype] = None) -> tuple[Tensor, Tensor]:
    """(rms_norm(sum, weight, eps), sum) of sum = x + residual, rounded to residual's dtype, in one pass; both are
    differentiable, in x, residual and weight, by one pass too."""
    tensors("add_rms_norm", residual=residual)
    return _add_rms_norm("add_rms_norm", x, residual, weight, eps, out_dtype)


def _add_rms_norm(function, x, residual, weight, eps, out_dtype):
    tensors(function, x=x, weight=(weight, None))
    ops.numbers_only(eps=eps)
    args = x, residual, weight, float(eps), out_dtype or x.dtype
    if not plain(x, residual, weight):
        return _op.add_rms_norm(*args)
    if needs_grad(x, residual, weight):
        return AddRMSNorm.apply(*args)
    return L.add_rms_norm(_on_tensors, *args)


def rope_freqs(n_rot: int, base: float = 10000.0, *, yarn: Optional[dict[str, float]] = None,
               device: Union[torch.device, str, int, None] = None) -> tuple[Tensor, float]:
    """(freqs, mscale) for rope: base^(-2i/n_rot), float64 [n_rot/2]; yarn: a dict with freq_scale, original_context and, where
    they are not 1, 1, 32 and 1, ext_factor, attn_factor, beta_fast and beta_slow. mscale is 1 without yarn."""
    freqs, mscale = _core.rope_freqs(ops.whole("n_rot", n_rot), ops.real("base", base), yarn)
    return torch.tensor(list(freqs)[:n_rot // 2], dtype=torch.float64, device=device), mscale


def rope(x: Tensor, positions: Tensor, freqs: Tensor, *, pairs: str = "halves", inverse: bool = False, mscale: float = 1.0) -> Tensor:
    """x [.., heads, head_dim] with the first 2 * len(freqs) elements of each head turned by the angles positions * freqs (in
    float64), the others copied. positions [..] int32 or int64, freqs float64 in radians a position (rope_freqs).

    pairs: "halves" (elements i and i + n_rot/2, Hugging Face) or "adjacent" (2i and 2i + 1, GGUF's Llama). inverse turns the
    other way, mscale multiplies sine and cosine (YaRN). Differentiable in x."""
    tensors("rope", x=x, positions=positions, freqs=freqs)
    ops.numbers_only(mscale=mscale, inverse=inverse)
    ops.pick(ops.PAIRINGS, pairs, "pairs")
    no_gradient("rope", freqs=freqs)
    args = x, positions, freqs, pairs, bool(inverse), float(mscale)
    return L.rope(_on_tensors, *args) if plain(x, positions, freqs) and not needs_grad(x) else _op.rope(*args)


def quantize_fp8(x: Tensor, scale: str = "row128", dtype: str = "e4m3", *, pow2: bool = False,
                 floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """(codes, scales) of x [rows, cols]: code * scale is x. scale: "tensor" [1], "row" [rows], "row128"
    [ceil(cols/128), rows] or "blk128" [ceil(rows/128), ceil(cols/128)]; dtype "e4m3" or "e5m2". No gradient: an error
    where x requires one."""
    out = _quantize((scale, dtype, pow2, floor), x)
    if out is not None:
        return out
    tensors("quantize_fp8", x=x)
    no_gradient("quantize_fp8", x=x)
    ops.numbers_only(pow2=pow2, floor=floor)
    ops.pick(ops.SCALES, scale, "scale")
    ops.pick(L.FORMATS, dtype, "dtype")
    return _call(L.quantize_fp8, _op.quantize_fp8, (x,), (x, scale, dtype, pow2, float(floor)))


def quantize_fp8_dual(x: Tensor, form: str = "row_row", dtype: str = "e4m3", *, pow2: bool = False,
                      floor: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(codes, scales, codes of x transposed, its scales) in one read of x. form: "row_row" (activations and gradients),
    "row_blk" or "blk_blk" (weights). No gradient."""
    out = _dual((form, dtype, pow2, floor), x)
    if out is not None:
        return out
    tensors("quantize_fp8_dual", x=x)
    no_gradient("quantize_fp8_dual", x=x)
    ops.numbers_only(pow2=pow2, floor=floor)
    ops.pick(ops.DUALS, form, "form")
    ops.pick(L.FORMATS, dtype, "dtype")
    return _call(L.quantize_fp8_dual, _op.quantize_fp8_dual, (x,), (x, form, dtype, pow2, float(floor), False))[:4]


def fp8_gemm(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, *, scales: str = "row128_blk128",
             out_dtype: torch.dtype = torch.bfloat16, bias: Optional[Tensor] = None, out: Optional[Tensor] = None) -> Tensor:
    """a [m, k] times the transpose of b [n, k], codes with their scales: "tensor" and "row" (both operands), "row_tensor",
    "tensor_row", "row128_blk128", "row128_row128" or "blk128_row128", as quantize_fp8 writes them; "row128t" in place of every
    "row128": its table is [rows, ceil(k/128)]. With `out` (f32 or bf16) the result is added to it. No gradient.
    docs/layouts.md says what other programs' scales are."""
    if out is None and bias is None:  # the usual call
        d = _gemm((scales, out_dtype), a, scale_a, b, scale_b)
        if d is not None:
            return d
    tensors("fp8_gemm", a=a, scale_a=scale_a, b=b, scale_b=scale_b, bias=(bias, None), out=(out, None))
    no_gradient("fp8_gemm", a=a, scale_a=scale_a, b=b, scale_b=scale_b, bias=bias, out=out)
    every = (a, scale_a, b, scale_b, bias, out)
    ops.pick(ops.PAIRS, scales, "scales")
    dtype_number(out_dtype)
    if out is None:
        return _call(L.fp8_gemm, _op.fp8_gemm, every, (a, scale_a, b, scale_b, scales, out_dtype, bias))
    if bias is not None:
        raise ArgumentError("bias and out exclude each other")
    if plain(*every):
        L.fp8_gemm_(_on_tensors, out, a, scale_a, b, scale_b, scales)
        torch.autograd.graph.increment_version(out)
    else:
        _op.fp8_gemm_(out, a, scale_a, b, scale_b, scales)
    return out


def q8_0_quantize(x: Tensor) -> Tensor:
    """x [rows, cols] -> GGUF's Q8_0 blocks, uint8 [rows, cols/32*34]. No gradient."""
    tensors("q8_0_quantize", x=x)
    no_gradient("q8_0_quantize", x=x)
    return _call(L.q8_0_quantize, _op.q8_0_quantize, (x,), (x,))


def q8_0_repack(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks -> (codes int8 [rows, cols], scales float16 [rows, cols/32]), the form that kernels read fastest."""
    tensors("q8_0_repack", blocks=blocks)
    return _call(L.q8_0_repack, _op.q8_0_repack, (blocks,), (blocks,))


def q8_0_matmul(x: Tensor, w: Tensor, scales: Optional[Tensor] = None, *, out_dtype: Optional[torch.dtype] = None) -> Tensor:
    """x [tokens, cols] bf16 or f32 times Q8_0 weights: blocks, or codes with scales. The same bits for a token
    whatever the number of tokens. Differentiable in x."""
    if scales is not None:
        out = q8_0_planes((out_dtype,), x, w, scales)
        if out is not None:
            return out
    tensors("q8_0_matmul", x=x, w=w, scales=(scales, None))
    dtype_number(out_dtype or x.dtype)
    return _call(L.q8_0_matmul, _op.q8_0_matmul, (x, w, scales), (x, w, scales, out_dtype or x.dtype))


from .nn import Fp8Linear, Q8_0Linear, q8_0_planes  # noqa: E402
from .models import Patch, apply_ridge_to, patch_llama, swap_linear  # noqa: E402
from .experts import MoE, grouped_fp8_linear, moe_experts, moe_route, patch_moe  # noqa: E402

__all__ += ["MoE", "grouped_fp8_linear", "moe_experts", "moe_route", "patch_moe"]

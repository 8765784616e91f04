"""_functions.py: gradients in eager mode. The same formulas as the registered ops have, without the dispatcher, and with what
only eager mode allows: cross entropy hands its gradient tensors over instead of copying them."""
import functools

import torch

from .. import _ops as ops
from .._core import UnsupportedError
from . import _library as L
from ._arrays import NUMBERS, Arrays
from ._plans import Planned

_on_tensors = Arrays()


class _Twice(torch.autograd.Function):
    """Stands between gradients made with create_graph=True and what they depend on: a second derivative through them would
    be 0 unnoticed. (once_differentiable looks only at the gradient of the output, and torch.autograd.grad goes past it.)"""

    @staticmethod
    def forward(ctx, gradients, *_):
        return gradients

    @staticmethod
    def backward(ctx, *_):
        raise UnsupportedError("ridge.torch's functions can be differentiated once only")


def _once(backward):
    """backward without a graph of its own, and with _Twice behind it where one is asked for."""
    def guarded(ctx, *args):
        if not torch.is_grad_enabled():
            return backward(ctx, *args)
        with torch.no_grad():
            gradients = backward(ctx, *args)
        return _Twice.apply(gradients, *args, *ctx.saved_tensors)
    return guarded


def _swiglu(xp, gate, up, activation, options, round_gate, round_gate_bwd, interleaved):
    return L.swiglu(xp, gate, up, None, activation, options, round_gate, round_gate_bwd, interleaved)


def _swiglu_backward(xp, dout, gate, up, activation, options, round_gate, round_gate_bwd, interleaved):
    return L.swiglu_backward(xp, dout, gate, up, None, activation, options, round_gate, round_gate_bwd, interleaved, False)[:2]


def _multipliers(args):
    return args[1][:3]


_swiglu, _swiglu_backward = Planned(_swiglu, signed=_multipliers), Planned(_swiglu_backward, signed=_multipliers)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        gate, up, row_scale, *rest = args
        ctx.save_for_backward(gate, up, row_scale)
        ctx.rest = tuple(rest)
        if up is not None and row_scale is None:
            out = _swiglu(ctx.rest, gate, up)
            if out is not None:
                return out
        return L.swiglu(_on_tensors, *args)

    @staticmethod
    @_once
    def backward(ctx, dout):
        gate, up, row_scale = ctx.saved_tensors
        want = ctx.needs_input_grad[2]
        if up is not None and row_scale is None:
            two = _swiglu_backward(ctx.rest, dout, gate, up)
            if two is not None:
                return *two, None, None, None, None, None, None
        dgate, dup, drow = L.swiglu_backward(_on_tensors, dout, gate, up, row_scale, *ctx.rest, want)
        return dgate, dup if up is not None else None, drow if want else None, None, None, None, None, None


@Planned
def _train(xp, x, weight, target, reduction, ignore_index, options, *want):
    return L.linear_ce_eager(xp, x, weight, target, None, None, reduction, ignore_index, options, *want)


@Planned
def _scale(xp, t, factor):
    return ops.multiply(xp, t, factor)


def _gradients(args, want):
    """(loss, dx, dweight, dbias)"""
    x, weight, target, bias, class_weight, reduction, ignore_index, options = args
    if bias is None and class_weight is None:
        out = _train((reduction, ignore_index, tuple(options), *want), x, weight, target)
        if out is not None:
            return out
    return L.linear_ce_eager(_on_tensors, *args, *want)


def given_away(ctx, dloss, again):
    """Of a loss whose forward made ctx.gradients too: gradients for x, weight, target and bias. again(inputs) makes them anew."""
    inputs = ctx.saved_tensors  # raises if an input was changed in place, as every PyTorch op does
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        _, *gradients = again(inputs)
    dloss = dloss.to(torch.float32)
    for i, (wanted, dtype) in enumerate(zip(ctx.want, (None, ctx.weight_dtype, ctx.bias_dtype))):
        t = gradients[i]
        gradients[i] = None  # a gradient in f32 goes as soon as the one in 16 bits is there
        if wanted and dtype in (None, t.dtype):
            gradients[i] = ops.multiply(_on_tensors, t, dloss) if _scale((), t, dloss) is None else t
        elif wanted:
            gradients[i] = ops.multiply(_on_tensors, t, dloss, NUMBERS[dtype])
    return gradients[0], gradients[1], None, gradients[2]


class LinearCE(torch.autograd.Function):
    """Mean and sum: forward computes the gradients too. The first backward scales them in place and gives them away; a
    second one (retain_graph) computes them again, so that none sees what became of the first's."""

    @staticmethod
    def forward(ctx, *args):
        L.ce_setup(ctx, args)
        ctx.save_for_backward(*args[:5])
        ctx.rest = args[5:]
        ctx.want = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
        loss, *ctx.gradients = _gradients(args, ctx.want)
        return loss

    @staticmethod
    @_once
    def backward(ctx, dloss):
        if dloss is None:
            return (None,) * 8
        return (*given_away(ctx, dloss, lambda inputs: _gradients((*inputs, *ctx.rest), ctx.want)), *(None,) * 4)


def _direct(function):
    """Its apply without what torch.autograd.Function's does for transforms: for planned calls, which have none."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


apply_swiglu, apply_linear_ce = _direct(SwiGLU), _direct(LinearCE)


class LinearCERows(torch.autograd.Function):
    """reduction="none": the gradient of every row's loss is known in backward only, where the logits are made again."""

    @staticmethod
    def forward(ctx, *args):
        L.ce_setup(ctx, args)
        loss, lse = L.linear_ce_eval(_on_tensors, *args, True)
        ctx.save_for_backward(*args[:5], lse)
        ctx.rest = args[5:]
        return loss

    @staticmethod
    @_once
    def backward(ctx, dloss):
        if dloss is None:
            return (None,) * 8
        *inputs, lse = ctx.saved_tensors
        want = ctx.needs_input_grad
        three = L.linear_ce_backward(_on_tensors, lse, dloss, *inputs, *ctx.rest, want[0], want[1], want[3])
        return (*L.gradients_of(ctx, *three), *(None,) * 4)


class LinearLogprobs(torch.autograd.Function):
    """(log-probability, lse, entropy, log-probabilities of ids, argmax) of every row; lse has no gradient."""

    @staticmethod
    def forward(ctx, *args):
        out = L.linear_ce_logprobs(_on_tensors, *args)
        L.logprobs_setup(ctx, args, out)
        ctx.mark_non_differentiable(out[1], out[4], *(() if args[7] else out[2:3]), *(() if args[4] is not None else out[3:4]))
        return out

    @staticmethod
    @_once
    def backward(ctx, dlogprob, _, dentropy, did, __):
        backward = functools.partial(L.linear_ce_backward, _on_tensors)
        return *L.logprobs_gradient(backward, ctx, dlogprob, dentropy, did), *(None,) * 5


class Fp8LinearFunction(torch.autograd.Function):
    """With main_grad: the weight's gradient is added to that tensor (f32) and autograd sees none."""

    @staticmethod
    def forward(ctx, x, weight, bias, gradient_dtype, wgrad, main_grad):
        y, *saved = L.fp8_linear(_on_tensors, x, weight, bias, gradient_dtype, wgrad)
        ctx.save_for_backward(*saved)
        ctx.rest = gradient_dtype, wgrad, main_grad, weight.dtype, None if bias is None else bias.dtype
        return y

    @staticmethod
    @_once
    def backward(ctx, dy):
        gradient_dtype, wgrad, main_grad, weight_dtype, bias_dtype = ctx.rest
        dx, dw, dbias = L.fp8_linear_gradient(dy, *ctx.saved_tensors, gradient_dtype, wgrad, ctx.needs_input_grad, main_grad)
        return dx, None if dw is None else dw.to(weight_dtype), None if dbias is None else dbias.to(bias_dtype), *(None,) * 3


class Fp8SwiGLULinearFunction(torch.autograd.Function):
    """Fp8LinearFunction of swiglu's result."""

    @staticmethod
    def forward(ctx, gate, up, weight, bias, activation, options, interleaved, gradient_dtype, wgrad, main_grad):
        ctx.rest = activation, options, interleaved, gradient_dtype, wgrad
        y, *saved = L.fp8_swiglu_linear(_on_tensors, gate, up, weight, bias, *ctx.rest)
        ctx.save_for_backward(gate, up, *saved)
        ctx.more = main_grad, weight.dtype, None if bias is None else bias.dtype
        return y

    @staticmethod
    @_once
    def backward(ctx, dy):
        main_grad, weight_dtype, bias_dtype = ctx.more
        gate, up, *codes = ctx.saved_tensors
        dgate, dup, dw, dbias = L.fp8_swiglu_linear_gradient(dy, gate, up, codes, ctx.rest, ctx.needs_input_grad, main_grad)
        return (dgate, dup, None if dw is None else dw.to(weight_dtype), None if dbias is None else dbias.to(bias_dtype),
                *(None,) * 6)


class AddRMSNorm(torch.autograd.Function):
    """(out, sum): sum is x + residual, or nothing without residual."""

    @staticmethod
    def forward(ctx, *args):
        out = L.add_rms_norm(_on_tensors, *args)
        L._norm_setup(ctx, args, out)
        if args[1] is None:
            ctx.mark_non_differentiable(out[1])
        return out

    @staticmethod
    @_once
    def backward(ctx, dout, dsum):
        return *L.norm_gradient(lambda *args: L.rms_norm_backward(_on_tensors, *args), ctx, dout, dsum), None, None

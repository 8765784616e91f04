"""_distill.py: divergences between a student's softmax(F.linear(input, weight)) and a teacher. One that is known at K classes
a row: linear_logprobs at the ids, and PyTorch's operators on [.., K]; one with hidden states and a head: chunks of rows."""
import math

import torch
from torch import Tensor

from .. import _ops as ops
from .._core import ArgumentError
from ._arrays import Arrays

_on_tensors = Arrays()


def _with_rest(log_p, keep):
    """log_p [.., K] and the logarithm of what is left of 1."""
    rest = -torch.expm1(torch.where(keep, log_p, -torch.inf).logsumexp(-1, keepdim=True))
    return torch.cat([log_p, rest.clamp(min=torch.finfo(torch.float32).eps).log()], -1)


def _divergence(log_a, log_b, keep):
    """sum a (log a - log b); a class with a = 0 adds nothing."""
    keep = keep & (log_a > -torch.inf)
    log_a, log_b = torch.where(keep, log_a, 0), torch.where(keep, log_b, 0)
    return torch.where(keep, log_a.exp() * (log_a - log_b), 0).sum(-1)


def both(function, logprobs, input, linear_weight, teacher_logprob, ids, linear_bias, ignore_index, tail, softcap, temperature):
    """(log-probabilities of student and teacher, which of them count), of the ids and, with tail, of all other classes."""
    ops.numbers_only(tail=tail, softcap=softcap, temperature=temperature)
    if not isinstance(teacher_logprob, Tensor) or not isinstance(ids, Tensor):
        raise ArgumentError(f"{function}: teacher_logprob and ids must be tensors")
    if teacher_logprob.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(f"{function} has no gradient for teacher_logprob, which requires one: pass teacher_logprob.detach()")
    if ids.shape != teacher_logprob.shape or ids.dim() != input.dim():
        raise ArgumentError(f"teacher_logprob has shape {list(teacher_logprob.shape)}, ids {list(ids.shape)}: both must be "
                            f"{[*input.shape[:-1], 'K']}")
    ignore_index = -100 if ignore_index is None else ignore_index
    keep = ids != ignore_index
    student = logprobs(input, linear_weight, ids, linear_bias, ignore_index, softcap=softcap, temperature=temperature)
    teacher = torch.where(keep, teacher_logprob.to(torch.float32), 0)
    if tail:
        some = keep.any(-1, keepdim=True)
        student, teacher = _with_rest(student, keep), _with_rest(teacher, keep)
        keep = torch.cat([keep, some], -1)
    return student, teacher, keep


def kl(student, teacher, keep, reverse):
    return _divergence(student, teacher, keep) if reverse else _divergence(teacher, student, keep)


def jsd(student, teacher, keep, beta):
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * _divergence(teacher, mixture, keep) + (1 - beta) * _divergence(student, mixture, keep)


# ------------------------------------------------------------------------------- a teacher with hidden states and a head

LOGITS = 2**27  # logits of a chunk of rows, of the student and of the teacher, in f32
GRADIENTS = 2**30  # gradients of logits that are multiplied at once: a sum of dW that is read and written less often
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 256  # a chunk of more rows has a multiple of this


def _rows(elements, vocab):
    rows = max(elements // max(vocab, 1), 1)
    return rows // ROWS * ROWS or rows


def _mm(a, b, out=None, add=False):
    """a b in f32, into `out` or added to it; rounded once where `out` has 16 bits."""
    if out is not None and out.dtype != torch.float32:
        return torch.mm(a, b.to(a.dtype), out=out)
    if a.dtype == torch.float32 or not a.is_cuda:
        a, b = a.to(torch.float32), b.to(torch.float32)
        return out.addmm_(a, b) if add else torch.mm(a, b, out=out)
    if add:
        return torch.addmm(out, a, b, out_dtype=torch.float32, out=out)
    return torch.mm(a, b, out_dtype=torch.float32, **({} if out is None else {"out": out}))


def _logits(x, weight, bias, softcap):
    z = _mm(x, weight.t())
    z = z if bias is None else z.add_(bias)
    return z.div_(softcap).tanh_().mul_(softcap) if softcap else z


def divisor(keep, reduction):
    return keep.new_ones(()) if reduction == "sum" else keep.sum().clamp(min=1)


def _distilled(x, weight, bias, teacher, teacher_weight, teacher_bias, keep, divisor, options, ranks, want):
    """(loss, [gradients in x, weight and bias, None where not wanted], what of the divisor they still lack)."""
    beta, temperature, softcap, teacher_softcap = options
    loss = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
    rows, vocab = x.shape[0], weight.shape[0]
    divergence = torch.ops.ridge.divergence_ if ranks is None else ranks.divergence_
    each, some = (_rows(most, vocab if ranks is None else ranks.classes) for most in (GRADIENTS, LOGITS))
    # f16 would lose small ones to the divisor; a sum of several chunks is f32
    dtype, left = (x.dtype if x.dtype in (torch.bfloat16, torch.float16) else torch.float32), x.dtype == torch.float16
    scale = keep if left else keep / divisor
    dx_dtype, dw_dtype = (dtype if fits and not left else torch.float32
                          for fits in (ranks is None, rows <= each and weight.dtype == dtype))
    dx = torch.empty(x.shape, dtype=dx_dtype, device=x.device) if want[0] else None
    dw = (torch.empty if rows else torch.zeros)(weight.shape, dtype=dw_dtype, device=x.device) if want[1] else None
    db = torch.zeros(weight.shape[:1], dtype=torch.float32, device=x.device) if want[2] else None
    dz = torch.empty((min(each, rows), vocab), dtype=dtype, device=x.device) if any(want) else None
    for begin in range(0, rows, each):
        end = min(begin + each, rows)
        for first in range(begin, end, some):
            at = slice(first, min(first + some, end))
            z, part = _logits(x[at], weight, bias, softcap), None if dz is None else dz[first - begin:at.stop - begin]
            loss[at] = divergence(part, z, _logits(teacher[at], teacher_weight, teacher_bias, teacher_softcap), scale[at], beta,
                                  temperature)
            if softcap and dz is not None:
                part.mul_(1 - z.div_(softcap).square_())
        part, at = None if dz is None else dz[:end - begin], slice(begin, end)
        if want[2]:
            db += part.sum(0, dtype=torch.float32)
        if want[0]:
            _mm(part, weight, out=dx[at])
        if want[1]:
            _mm(part.t(), x[at], out=dw, add=begin > 0)
    dx = dx if ranks is None or dx is None else ranks.sum_of(dx)
    return loss.sum() / divisor, [dx, dw, db], divisor if left else None


class Distill(torch.autograd.Function):
    """The sum of the rows' divergences over a divisor, and its gradients in the same pass: four products a chunk, of which two give
    gradients, and the op divergence_ between them. keep: f32 [rows], 1 or 0. The first backward scales the gradients in place and
    gives them away, a second one makes them again. ranks: None, or of weights whose classes are spread over ranks an object that
    has the largest slice's `classes`, divergence_ over all slices, and the sum of dx."""

    @staticmethod
    def forward(ctx, x, weight, bias, teacher, teacher_weight, teacher_bias, keep, divisor, options, ranks=None):
        args = x, weight, bias, teacher, teacher_weight, teacher_bias, keep, divisor
        ctx.save_for_backward(*args)
        ctx.rest = options, ranks, ctx.needs_input_grad[:3]
        loss, *ctx.gradients = _distilled(*args, *ctx.rest)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, up):
        inputs = ctx.saved_tensors  # raises if an input was changed in place
        (gradients, left), ctx.gradients = ctx.gradients or _distilled(*inputs, *ctx.rest)[1:], None
        up = up if left is None else up / left
        for i, (t, like) in enumerate(zip(gradients, inputs)):
            gradients[i] = None  # a gradient in f32 goes as soon as the one in 16 bits is there
            if t is not None:
                gradients[i] = _scaled(t, up, like.dtype)
            del t
        return *gradients, *(None,) * 7


def _scaled(t, up, dtype):
    """t times up, in place where it has the dtype."""
    if t.dtype == dtype and dtype in DTYPES:
        ops.multiply(_on_tensors, t, up.to(torch.float32))
        return t
    return torch.ops.ridge.multiply(t, up, dtype) if dtype in DTYPES else t.mul(up).to(dtype)

"""_distill.py: divergences between a student's softmax(F.linear(input, weight)) and a teacher. One that is known at K classes
a row: linear_logprobs at the ids, and PyTorch's operators on [.., K]; one with hidden states and a head: chunks of rows."""
import math

import torch
from torch import Tensor

from .. import _ops as ops
from .._core import ArgumentError


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
    """a b in f32, into `out` or added to it."""
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


class Distill(torch.autograd.Function):
    """The sum of the rows' divergences, and its gradients in the same pass: four products a chunk, of which two give gradients,
    and the op divergence_ between them. keep: f32 [rows], 1 or 0. Gradients are kept in f32 until the loss's gradient is known."""

    @staticmethod
    def forward(ctx, x, weight, bias, teacher, teacher_weight, teacher_bias, keep, beta, temperature, softcap, teacher_softcap):
        want = ctx.needs_input_grad[:3]
        loss = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
        dx = torch.empty(x.shape, dtype=torch.float32, device=x.device) if want[0] else None
        dw = (torch.empty if len(x) else torch.zeros)(weight.shape, dtype=torch.float32, device=x.device) if want[1] else None
        db = torch.zeros(weight.shape[:1], dtype=torch.float32, device=x.device) if want[2] else None
        dtype = x.dtype if x.dtype in (torch.bfloat16, torch.float16) else torch.float32
        rows, vocab = x.shape[0], weight.shape[0]
        each, some = _rows(GRADIENTS, vocab), _rows(LOGITS, vocab)
        dz = torch.empty((min(each, rows), vocab), dtype=dtype, device=x.device) if any(want) else None
        for begin in range(0, rows, each):
            end = min(begin + each, rows)
            for first in range(begin, end, some):
                at = slice(first, min(first + some, end))
                z, part = _logits(x[at], weight, bias, softcap), None if dz is None else dz[first - begin:at.stop - begin]
                loss[at] = torch.ops.ridge.divergence_(part, z, _logits(teacher[at], teacher_weight, teacher_bias, teacher_softcap),
                                                       keep[at], beta, temperature)
                if softcap and dz is not None:
                    part.mul_(1 - z.div_(softcap).square_())
            part, at = None if dz is None else dz[:end - begin], slice(begin, end)
            if want[2]:
                db += part.sum(0, dtype=torch.float32)
            if want[0]:
                _mm(part, weight, out=dx[at])
            if want[1]:
                _mm(part.t(), x[at], out=dw, add=begin > 0)
        ctx.save_for_backward(*(t for t in (dx, dw, db) if t is not None))
        ctx.dtypes = [t.dtype if wanted else None for t, wanted in zip((x, weight, bias), want)]
        return loss.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, up):
        saved = iter(ctx.saved_tensors)
        return *(_scaled(next(saved), up, dtype) if dtype else None for dtype in ctx.dtypes), *(None,) * 8


def _scaled(t, up, dtype):
    return torch.ops.ridge.multiply(t, up, dtype) if dtype in DTYPES else t.mul(up).to(dtype)

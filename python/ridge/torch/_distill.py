"""_distill.py: divergences between a student's softmax(F.linear(input, weight)) and a teacher that is known at K classes a
row, without the student's logits: linear_logprobs at the ids, and PyTorch's operators on [.., K]."""
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

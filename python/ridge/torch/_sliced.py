"""_sliced.py: what ridge.torch.distributed gives of a head whose classes are spread over the ranks, beside its loss:
log-probabilities, entropies, the likeliest classes and draws. Each rank evaluates its slice; records of 12 or 24 bytes a row and
what the slices found are gathered, and every rank forms the same results from them."""
import torch

from .. import _ops as ops
from . import _library as L
from ._arrays import Arrays
from ._collectives import gathered, transposed

_on_tensors = Arrays()


def sum_of_ranks(dx, group):
    """Parts [rows, hidden] of every rank, added in the order of the ranks: the whole on every rank."""
    tokens, n = dx.shape[0], group.size()
    rows = -(-tokens // n)
    if rows * n > tokens:
        dx = torch.cat((dx, dx.new_zeros(rows * n - tokens, dx.shape[1])))
    dx = ops.sum_parts(_on_tensors, transposed(dx.view(n, rows, dx.shape[1]), group))
    return gathered(dx, group).flatten(0, 1)[:tokens]


class Head:
    """A call's operands and how the vocabulary is cut. options: softcap and temperature."""

    def __init__(self, group, cut, x, weight, target, bias, ignore_index, options):
        self.group, self.cut, self.x, self.weight, self.target = group, cut, x, weight, target
        self.bias, self.options = bias, L.ce_options(ignore_index, [0.0, *options, 0.0])

    def problem(self):
        """A new one: what is asked for becomes a part of it."""
        slice_of = (*self.options, ("vocab_offset", self.cut.first), ("vocab_total", self.cut.total))
        return ops.CeProblem(_on_tensors, self.x, self.weight, self.target, self.bias, None, "none", False, slice_of, self.cut.total)

    def of_ranks(self, t):
        """[ranks with classes, ..]"""
        return gathered(t, self.group)[list(self.cut.ranks)]

    def combined(self, sums, found, **more):
        """(-log p at the targets, lse, entropy or None), and found, tensors by the operand's name, as the slices fill them"""
        record = self.x.new_empty(len(self.target), 6 if sums else 3, dtype=torch.float32)
        if self.weight.shape[0]:
            ops.linear_ce_record(self.problem(), record, sums, found, **more)
        rows = ops.ce_combine(_on_tensors, self.of_ranks(record), self.cut.offsets, self.target, None, self.cut.total, "none",
                              self.options[:1], sums)
        return rows, {name: self.of_ranks(t) for name, t in found.items()}


class Logprobs(torch.autograd.Function):
    """(log-probability of the target, entropy, log-probabilities of ids or None) of every row, on every rank."""

    @staticmethod
    def forward(ctx, x, weight, bias, target, ids, head):
        found = {} if ids is None else {"id_logprob": x.new_empty(ids.shape, dtype=torch.float32)}
        (loss, lse, entropy), found = head.combined(True, found, ids=ids)
        of_ids = None
        if ids is not None:  # an id that is ignored has 0 in every slice, one that is no class NaN
            of_ids = (found["id_logprob"].amax(0) - lse[:, None]).clamp_(max=0)
            ignored = dict(head.options)["ignore_index"]
            of_ids = torch.where((ids == ignored) | (target == ignored)[:, None], 0, of_ids)
        ctx.head, ctx.dtypes = head, (weight.dtype, None if bias is None else bias.dtype)
        ctx.save_for_backward(x, weight, lse, entropy, ids, of_ids)
        ctx.set_materialize_grads(False)
        return 0 - loss, entropy, of_ids

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dlogprob, dentropy, did):
        x, weight, lse, entropy, ids, of_ids = ctx.saved_tensors  # raises if one was changed in place
        want, head = ctx.needs_input_grad, ctx.head
        dloss = torch.zeros_like(lse) if dlogprob is None else 0 - dlogprob
        more = [None if dentropy is None else entropy, dentropy]
        more += [None] * 3 if did is None else [ids, of_ids, did.contiguous()]
        if not weight.shape[0]:
            dx, dw, dbias = torch.zeros_like(x), torch.zeros_like(weight), lse.new_zeros(0)
        else:
            dx, dw, dbias = ops.linear_ce_backward(head.problem(), lse, dloss, want[0], want[1], want[2], None, *more)
        dx = sum_of_ranks(dx, head.group) if want[0] else None
        return dx, dw if want[1] else None, dbias.to(ctx.dtypes[1]) if want[2] else None, None, None, None


class Divergences:
    """divergence_ of rows whose classes are spread over the ranks: 16 bytes a row from each, twice."""

    def __init__(self, head):
        begins = [*head.cut.offsets.tolist(), head.cut.total]
        self.group, self.classes = head.group, max(end - begin for begin, end in zip(begins, begins[1:]))

    def divergence_(self, dlogits, student, teacher, scale, beta, temperature):
        rows, here = len(student), student.shape[1] > 0
        lse, terms = (student.new_full((2, rows), value, dtype=torch.float32) for value in (-torch.inf, 0))
        none = torch.zeros(rows, dtype=torch.int32, device=student.device)
        for to, z in zip(lse, (student, teacher) if here else ()):
            to.copy_(torch.ops.ridge.ce_fwd(z, none, None, "none", -100, [0.0, 0.0, temperature, 0.0])[1])
        lse = gathered(lse, self.group).logsumexp(0)
        if here:
            terms[0] = ops.divergence(_on_tensors, student, teacher, scale, beta, temperature, None, tuple(lse), terms[1])
        loss, own = ops.sum_parts(_on_tensors, gathered(terms, self.group))
        if here and dlogits is not None:
            ops.divergence(_on_tensors, student, teacher, scale, beta, temperature, dlogits, tuple(lse), own)
        return loss

    def sum_of(self, dx):
        return sum_of_ranks(dx, self.group)


def topk(head, k):
    """The k largest classes of every row and their log-probabilities; -1 and 0 of rows that are left out."""
    tokens, here = len(head.target), min(k, head.weight.shape[0])
    found = {"top_id": torch.full((tokens, k), -2, device=head.x.device),
             "top_logprob": torch.full((tokens, k), -torch.inf, device=head.x.device)}
    (_, lse, _), found = head.combined(False, found, topk=here)
    z, ids = (found[name].transpose(0, 1).flatten(1) for name in ("top_logprob", "top_id"))
    order = torch.sort(z, dim=1, descending=True, stable=True).indices  # of equals the slice with the lower classes
    behind = torch.sort((ids.gather(1, order) == -2).int(), dim=1, stable=True).indices[:, :k]  # what no slice has filled
    order = order.gather(1, behind)
    ids, log_p = ids.gather(1, order), (z.gather(1, order) - lse[:, None]).clamp_(max=0)
    return ids, torch.where(ids < 0, 0, log_p)


def sample(head, seed, counter):
    """A class drawn for every row and its log-probability; -1 and 0 of rows that are left out."""
    number = {"sample_id": torch.int64, "sample_logprob": torch.float32, "sample_score": torch.float32}
    found = {name: head.x.new_empty(len(head.target), dtype=dtype) for name, dtype in number.items()}
    (_, lse, _), found = head.combined(False, found, draw=(seed, counter))
    best = found["sample_score"].argmax(0, keepdim=True)  # the first of equals: the slice with the lower classes
    ids, z = (found[name].gather(0, best)[0] for name in ("sample_id", "sample_logprob"))
    return ids, torch.where(ids < 0, 0, (z - lse).clamp_(max=0))

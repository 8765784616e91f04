"""ridge.torch.distributed: the loss of a head whose vocabulary is spread over the ranks of a process group; with FSDP2, weights
that are gathered as FP8 codes, and gradients that are added in the order of the ranks; tensor parallelism of Fp8Linear. Longer
than 600 lines because the public functions with their docstrings stand in one place.

Nothing here makes a group. Bytes are moved by the group's all_gather and all_to_all; what is added is added by ridge, in the order
of the ranks, so that every rank and every run gets the same bits, whatever the engine does. A rank that dies or stops is noticed
by the group's own timeout (init_process_group(timeout=..), half an hour by default with gloo): the others get a PeerError, or,
with NCCL, what its watchdog does.

The gradients belong to one loss, that of all ranks' rows: where FSDP2 reduces gradients of such a loss, they are to be summed and
not averaged (fully_shard's module.set_gradient_divide_factor(1.0)).
"""
from __future__ import annotations

import functools
import json
import typing
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import ParallelStyle

from .. import _abi as A
from .. import _ops as ops
from .._core import ArgumentError, Error
from . import _distill
from . import _library as L
from . import _loss_inputs, _of_distill, _of_mask, _pair
from ._arrays import Arrays, Fakes, compiling, plain, same_device, tensors
from ._collectives import PeerError, by_copies, copy_engine, empty_parts, gathered, gathering, gathering_both, gathering_in, transposing
from ._fsdp import gather_fp8, ordered_reduce
from ._functions import _once, given_away
from ._parallel import Column, Row
from ._sliced import Divergences, Head, Logprobs
from ._sliced import sample as sample_of_slices
from ._sliced import topk as top_of_slices
from .nn import Fp8Linear

__all__ = ["Fp8ColwiseParallel", "Fp8RowwiseParallel", "PeerError", "VocabParallelHead", "copy_engine", "gather_fp8",
           "linear_cross_entropy", "linear_distill", "linear_jsd", "linear_kl", "linear_logprobs", "linear_sample", "linear_topk",
           "ordered_reduce"]
_on_tensors = Arrays()
_MESSAGE = 2048  # bytes of what a rank says of its call
# Classes of a rank behind whose dW the whole parts of dx of another rank are received: a row takes 2H bytes at 250 GB/s, and of each class
# 2H FLOP at 650 TFLOP/s. It saves the gather of sums, which nothing hides; two ranks receive as many bytes either way.
_HIDDEN = 2600


# ------------------------------------------------------------------------------------------------------------- agreement


def _agree(function, group, device, said, error):
    """What every rank says of its call, in their order. Where one has an error, or says something else than rank 0 of a name that
    does not begin with "own ", all ranks raise the same ArgumentError."""
    text = json.dumps({**said, "error": error and error[:_MESSAGE // 4]}).encode()
    if len(text) > _MESSAGE:
        raise ArgumentError(f"{function}: what rank {group.rank()} says of its call has {len(text)} bytes, more than {_MESSAGE}")
    mine = torch.zeros(_MESSAGE, dtype=torch.uint8)
    mine[:len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    every = [json.loads(bytes(t).rstrip(b"\0")) for t in gathered(mine.to(device), group).cpu().numpy()]
    for rank, other in enumerate(every):
        if other["error"]:
            raise ArgumentError(f"{function}: rank {rank}: {other['error']}")
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if not name.startswith("own ") and other.get(name) != value:
                raise ArgumentError(f"{function}: rank {rank} has {name} {other.get(name)!r}, rank 0 has {value!r}")
    return every


class _Slices(typing.NamedTuple):
    """How the vocabulary is cut."""
    first: int  # class of this rank's slice
    total: int
    ranks: tuple[int, ...]  # that have classes
    offsets: Tensor  # of these, on the device


def _slices_of(function, every, rank, device):
    counts, offsets, totals = ([each[f"own {name}"] for each in every] for name in ("classes", "vocab_offset", "vocab_total"))
    total = sum(counts)
    for r, offset in enumerate(offsets):
        begin = sum(counts[:r])
        if offset >= 0 and counts[r] and offset != begin:
            raise ArgumentError(f"{function}: rank {r}'s slice begins at vocab_offset {offset}, not at {begin}, where the slices of "
                                "the ranks before it end")
        if totals[r] not in (-1, total):
            raise ArgumentError(f"{function}: rank {r} has vocab_total {totals[r]}, but the slices have {total} classes")
    if not total:
        raise ArgumentError(f"{function}: no rank has a class")
    begins = [sum(counts[:r]) for r in range(len(counts))]
    ranks = tuple(r for r, count in enumerate(counts) if count)
    return _Slices(begins[rank], total, ranks, torch.tensor([begins[r] for r in ranks], device=device))


_known: Any = weakref.WeakKeyDictionary()  # group -> {what a rank says of a call: _Slices}
_FUNCTION = "linear_cross_entropy"


def _slices(xp, group, x, weight, target, bias, class_weight, reduction, ignore_index, options, sharded, offset, total, want_dx,
            trains=False):
    """The _Slices of a call on which all ranks agree. On the CPU they are asked each time; with NCCL, where an answer is waited
    for by the host, once for a problem."""
    said = {"rows": "sharded" if sharded else "whole", "input.shape": list(x.shape), "input.dtype": str(x.dtype),
            "target.dtype": str(target.dtype), "weight.dtype": str(weight.dtype), "weight's columns": weight.shape[-1],
            "reduction": reduction, "ignore_index": ignore_index, "label_smoothing": options[0], "softcap": options[1],
            "temperature": options[2], "lse_square_scale": options[3], "linear_bias": bias is not None,
            "class_weight": None if class_weight is None else list(class_weight.shape),
            "a gradient of input": want_dx, "gradients made with the loss": trains, "own classes": weight.shape[0], "own vocab_offset": offset, "own vocab_total": total}
    known, key = _known.setdefault(group, {}), json.dumps(said)
    if x.is_cuda and key in known:
        return known[key]
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ArgumentError(f"{_FUNCTION}: the ranks agree on a problem in its first call, which cannot be captured: call it once "
                            "before")
    error = None
    try:  # a call of no rows and one class, of which the library tells what is wrong with the options
        same_device(x, weight, target, bias, class_weight)
        ops.two_dims("weight", weight)
        none = ops.CeProblem(xp, x[:0], x.new_zeros(1, weight.shape[1]).to(weight.dtype), target[:0], None, None, reduction, False,
                             L.ce_options(ignore_index, options))
        ops.linear_ce_eval(none)
        if bias is not None:
            ops.same_shape("bias", bias.shape, weight.shape[:1])
        if not sharded:  # two sums of bits, by which ranks with other rows are found
            said["sum of target"] = int(target.sum())
            said["sum of input's bits"] = int(x.contiguous().view(torch.int32 if x.element_size() == 4 else torch.int16).sum())
    except Error as e:
        error = str(e)
    every = _agree(_FUNCTION, group, x.device, said, error)
    found = known[key] = _slices_of(_FUNCTION, every, group.rank(), x.device)
    if class_weight is not None:
        ops.same_shape("class_weight", class_weight.shape, (found.total,))
    return found


# ------------------------------------------------------------------------------------------------------------ the two ops

_ARGS = "Tensor? bias, Tensor? class_weight, str reduction, int ignore_index, float[] options, str group, bool sharded, " \
        "int offset, int total, bool want_dx"


def _group(name):
    return dist.distributed_c10d._resolve_process_group(name)


def _problem(xp, x, weight, target, bias, class_weight, reduction, ignore_index, options, cut):
    return ops.CeProblem(xp, x, weight, target, bias, class_weight, reduction, False,
                         (*L.ce_options(ignore_index, options), ("vocab_offset", cut.first), ("vocab_total", cut.total)), cut.total)


def _all_of(x, target, group, sharded):
    return (t.flatten(0, 1) for t in gathering_both(x, target, group)()) if sharded else (x, target)


def _f32(class_weight):
    return None if class_weight is None else class_weight.to(torch.float32).contiguous()


def _combined(xp, record, cut, group, target, class_weight, reduction, ignore_index, options):
    """(loss, lse) of all classes from this rank's records."""
    records = gathered(record, group)
    if len(cut.ranks) < group.size():  # what the ranks without a class have sent is passed over
        records = torch.stack([records[r] for r in cut.ranks])
    return ops.ce_combine(xp, records, cut.offsets, target, class_weight, cut.total, reduction,
                          tuple(o for o in L.ce_options(ignore_index, options) if o[0] not in ("softcap", "temperature")))[:2]


def _sending(dx, group, to_all):
    """Begins to move parts of dx; ends with all parts of this rank's rows, or, to_all, with those of all rows."""
    size, tokens = group.size(), dx.shape[0]
    if to_all:
        return gathering(dx, group)
    rows = -(-tokens // size)
    if rows * size > tokens:
        dx = torch.cat((dx, dx.new_zeros(rows * size - tokens, dx.shape[1])))
    return transposing(dx.view(size, rows, dx.shape[1]), group)


def _added(xp, parts, group, sharded, tokens):
    """Their sum, and with whole rows that of every rank."""
    dx = ops.sum_parts(xp, parts)
    return dx if sharded or dx.shape[0] == tokens else gathered(dx, group).flatten(0, 1)[:tokens]


@L._define(f"linear_ce_sharded(Tensor x, Tensor weight, Tensor target, {_ARGS}) -> (Tensor, Tensor, Tensor, Tensor)")
def _forward(xp, x, weight, target, bias, class_weight, reduction, ignore_index, options, name, sharded, offset, total, want_dx):
    """loss, lse of all rows, and, with sharded rows, x and target of all ranks."""
    group = _group(name)
    tokens = x.shape[0] * (group.size() if sharded else 1)
    if isinstance(xp, Fakes):
        new = x.new_empty
        return (new(x.shape[0] if reduction == "none" else (), dtype=torch.float32), new(tokens, dtype=torch.float32),
                new((tokens, x.shape[1]) if sharded else 0), target.new_empty(tokens if sharded else 0))
    class_weight = _f32(class_weight)
    cut = _slices(xp, group, x, weight, target, bias, class_weight, reduction, ignore_index, options, sharded, offset, total, want_dx)
    rows, targets = _all_of(x, target, group, sharded)
    width = 6 if options[0] else 3
    record = x.new_empty(tokens, width, dtype=torch.float32)
    if weight.shape[0]:
        p = _problem(xp, rows, weight, targets, bias, class_weight, reduction, ignore_index, options, cut)
        ops.linear_ce_record(p, record, width == 6)
    loss, lse = _combined(xp, record, cut, group, targets, class_weight, reduction, ignore_index, options)
    if reduction == "none" and sharded:
        loss = loss.view(group.size(), -1)[group.rank()].clone()
    empty = x.new_empty(0)
    return loss, lse, rows if sharded else empty, targets if sharded else empty.to(target.dtype)


@L._define(f"linear_ce_sharded_backward(Tensor lse, Tensor dloss, Tensor x, Tensor weight, Tensor target, {_ARGS}, bool dw, "
           "bool dbias) -> (Tensor, Tensor, Tensor)")
def _backward(xp, lse, dloss, x, weight, target, bias, class_weight, reduction, ignore_index, options, name, sharded, offset, total,
              want_dx, want_dw, want_dbias):
    """x and target of all rows; dx is that of this rank's rows."""
    group = _group(name)
    size, tokens = group.size(), x.shape[0]
    if isinstance(xp, Fakes):
        return (x.new_empty((tokens // size if sharded else tokens, x.shape[1]) if want_dx else 0),
                weight.new_empty(weight.shape if want_dw else 0),
                x.new_empty(weight.shape[:1] if want_dbias else 0, dtype=torch.float32))
    class_weight = _f32(class_weight)
    mine = x.view(size, -1, x.shape[1])[0] if sharded else x
    cut = _slices(xp, group, mine, weight, target[:mine.shape[0]], bias, class_weight, reduction, ignore_index, options, sharded, offset,
                  total, want_dx)
    dloss = dloss.to(torch.float32)
    if reduction == "none" and sharded:
        dloss = gathered(dloss, group).flatten()
    if weight.shape[0]:
        p = _problem(xp, x, weight, target, bias, class_weight, reduction, ignore_index, options, cut)
        dx, dw, dbias = ops.linear_ce_backward(p, lse, dloss, want_dx, want_dw, want_dbias)
    else:
        dx, dw, dbias = torch.zeros_like(x), torch.zeros_like(weight), lse.new_zeros(0)
    if want_dx:
        dx = _added(xp, _sending(dx, group, not sharded and size == 2)(), group, sharded, tokens)
    return (dx if want_dx else L._none(x, None), dw if want_dw else L._none(x, None), dbias if want_dbias else L._none(lse, None))


def _setup(ctx, inputs, output):
    x, weight, target, bias, class_weight, *ctx.rest = inputs
    _, lse, rows, targets = output
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(lse, rows if ctx.rest[4] else x, weight, targets if ctx.rest[4] else target, bias, class_weight)
    ctx.set_materialize_grads(False)


def _gradient(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 13
    lse, *inputs = ctx.saved_tensors
    want = ctx.needs_input_grad
    dx, dw, dbias = torch.ops.ridge.linear_ce_sharded_backward(lse, dloss, *inputs, *ctx.rest, want[1], want[3])
    return (dx if want[0] else None, dw if want[1] else None, None, dbias.to(ctx.bias_dtype) if want[3] else None, *(None,) * 9)


torch.library.register_autograd("ridge::linear_ce_sharded", _gradient, setup_context=_setup, lib=L.library)
L._no_gradient("linear_ce_sharded_backward")


def _phases(xp, x, weight, target, bias, class_weight, reduction, ignore_index, options, name, sharded, offset, total, want_dx,
            want_dw, want_dbias, dw_dtype):
    """loss, dx of this rank's rows, dw and dbias, for a loss whose gradient is 1: the logits are made once. Parts of dx travel
    while dw is made."""
    group = _group(name)
    tokens = x.shape[0] * (group.size() if sharded else 1)
    if isinstance(xp, Fakes):
        new = x.new_empty
        return (new((), dtype=torch.float32), new(x.shape if want_dx else 0),
                new(weight.shape if want_dw else 0, dtype=torch.float32 if dw_dtype else weight.dtype),
                new(weight.shape[:1] if want_dbias else 0, dtype=torch.float32))
    class_weight = _f32(class_weight)
    cut = _slices(xp, group, x, weight, target, bias, class_weight, reduction, ignore_index, options, sharded, offset, total, want_dx,
                  True)
    rows, targets = _all_of(x, target, group, sharded)
    record = x.new_empty(tokens, 6 if options[0] else 3, dtype=torch.float32)
    lse = x.new_empty(tokens, dtype=torch.float32)
    run, room = None, None
    to_all = not sharded and cut.total >= _HIDDEN * group.size() * (group.size() - 1)
    if want_dx and to_all and by_copies(group):
        room = empty_parts(group, group.size(), *rows.shape, x, x.dtype)
    if weight.shape[0]:
        p = _problem(xp, rows, weight, targets, bias, class_weight, reduction, ignore_index, options, cut)
        run = ops.CePhases(p, record, lse, want_dx, want_dw, want_dbias, dw_dtype, None if room is None else room[group.rank()])
        run.run(A.CE_BEGIN)
    loss, whole = _combined(xp, record, cut, group, targets, class_weight, reduction, ignore_index, options)
    if run:
        lse.copy_(whole)
        run.run(A.CE_DX)
        dx, dw, dbias = run.dx, run.dw, run.dbias
    else:
        dx = torch.zeros_like(rows) if room is None else room[group.rank()].zero_()
        dw, dbias = torch.zeros_like(weight), lse.new_zeros(0)
    parts = gathering_in(room, group) if room is not None else _sending(dx, group, to_all) if want_dx else None
    if run:
        run.run(A.CE_DW)
    if want_dx:
        dx = _added(xp, parts(), group, sharded, tokens)
    return loss, *(t if want else L._none(lse, None) for t, want in ((dx, want_dx), (dw, want_dw), (dbias, want_dbias)))


@L._define(f"linear_ce_sharded_train(Tensor x, Tensor weight, Tensor target, {_ARGS}, bool dw, bool dbias) -> "
           "(Tensor, Tensor, Tensor, Tensor)")
def _train(xp, *args):
    return _phases(xp, *args, A.F32)


def _train_gradient(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 15
    return (*L.gradients_of(ctx, *ctx.saved_tensors, dloss), *(None,) * 11)


torch.library.register_autograd("ridge::linear_ce_sharded_train", _train_gradient, setup_context=L._train_setup, lib=L.library)


class _Train(torch.autograd.Function):
    """The same in eager mode: as ridge.torch's LinearCE its gradients are scaled in place and given away."""

    @staticmethod
    def forward(ctx, *args):
        L.ce_setup(ctx, args)
        ctx.save_for_backward(*args[:5])
        ctx.rest = args[5:]
        ctx.want = (args[12], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
        loss, *ctx.gradients = _Train.made(args, ctx.want)
        return loss

    @staticmethod
    def made(args, want):
        return _phases(_on_tensors, *args, *want[1:], None if args[1].dtype is torch.bfloat16 else A.F32)

    @staticmethod
    @_once
    def backward(ctx, dloss):
        if dloss is None:
            return (None,) * 13
        return (*given_away(ctx, dloss, lambda inputs: _Train.made((*inputs, *ctx.rest), ctx.want)), *(None,) * 9)


# --------------------------------------------------------------------------------------------------------------- the loss


def _part(n, ranks, rank):
    """(first, count) of rank's part of n, cut as torch.chunk and DTensor's Shard do."""
    size = -(-n // ranks)
    first = min(n, rank * size)
    return first, min(n, first + size) - first


def _local(name, t, group):
    """(local tensor, group, offset, total) of a weight or a bias."""
    from torch.distributed.tensor import DTensor, Shard
    if not isinstance(t, DTensor):
        return t, group, -1, -1
    if t.device_mesh.ndim != 1 or t.placements != (Shard(0),):
        raise ArgumentError(f"{name} is a DTensor placed {t.placements} on a mesh of {t.device_mesh.ndim} dimensions: it must be "
                            "Shard(0) on one of 1")
    of_mesh = t.device_mesh.get_group()
    if group is not None and group.group_name != of_mesh.group_name:
        raise ArgumentError(f"group is not that of {name}'s device mesh")
    first, _ = _part(t.shape[0], of_mesh.size(), of_mesh.rank())
    return t.to_local(grad_placements=t.placements), of_mesh, first, t.shape[0]


def _tell(group, t, error):
    """Gives an error to the other ranks where they are asking: all raise it then."""
    if isinstance(group, dist.ProcessGroup) and isinstance(t, Tensor) and not compiling() and (t.is_cpu or not _known.get(group)):
        _agree(_FUNCTION, group, t.device, {}, str(error))


def linear_cross_entropy(input: Tensor, weight: Tensor, target: Tensor, linear_bias: Optional[Tensor] = None,
                         class_weight: Optional[Tensor] = None, *, group: Any = None, rows: str = "whole",
                         vocab_offset: Optional[int] = None, vocab_total: Optional[int] = None, reduction: str = "mean",
                         ignore_index: int = -100, label_smoothing: float = 0.0, softcap: float = 0.0, temperature: float = 1.0,
                         lse_square_scale: float = 0.0, recompute: bool = False) -> Tensor:
    """ridge.torch.linear_cross_entropy of a weight whose rows (classes) are spread over a group: no rank has the others' classes,
    and none has logits.

    weight [classes of this rank, hidden], 0 classes too, and linear_bias are this rank's slice: plain tensors with their group, the
    slices in the order of the ranks, or DTensors Shard(0) on a mesh of one dimension, whose group and cuts they are.
    vocab_offset and vocab_total only check that. target and class_weight [vocab_total] speak of the whole vocabulary.

    rows "whole": every rank has the same input [.., hidden] and target [..] (tensor parallelism), and gets the whole gradient of
    input: do not reduce it again. "sharded": each has rows of its own, the same number on all ranks (pad with ignore_index, which
    costs nothing), and gets their gradient; the loss is that of all rows, the divisor of a mean is global, and "none" gives this
    rank's rows. So the FSDP group can hold the head: its weight then is never gathered.

    The loss is the same bits on every rank. Where gradients are wanted (not of "none"), forward makes them too: 6BHV FLOP over the
    ranks, as on one device; until it ends it holds the probabilities of all rows and this rank's classes, 2 bytes each, in part in
    the gradient of weight. recompute=True makes them in backward, from logits made again (8BHV), a few hundred MB at a time. Received
    by a rank, of n: 12 bytes a row and other rank; of a gradient of input its size times (n-1)/n, with whole rows twice that;
    sharded rows: x of the others. Gradients of input are added in f32 from parts in its dtype.
    Ranks that disagree raise one ArgumentError each, which names rank and argument (whole rows that are not the same ones too): in
    each call on the CPU, in the first call of a problem on CUDA. There a call that differs on one rank only after that ends in the group's timeout.
    """
    try:
        tensors(_FUNCTION, input=input, weight=weight, target=target, linear_bias=(linear_bias, None),
                class_weight=(class_weight, None))
        ops.numbers_only(label_smoothing=label_smoothing, softcap=softcap, temperature=temperature, lse_square_scale=lse_square_scale)
        sharded = ops.pick({"whole": False, "sharded": True}, rows, "rows")
        ops.pick(ops.REDUCTIONS, reduction, "reduction")
        weight, group, offset, total = _local("weight", weight, group)
        if linear_bias is not None:
            linear_bias = _local("linear_bias", linear_bias, group)[0]
        offset = offset if vocab_offset is None else ops.whole("vocab_offset", vocab_offset)
        total = total if vocab_total is None else ops.whole("vocab_total", vocab_total)
        input, weight, t = _loss_inputs(_FUNCTION, input, weight, target, class_weight, ignore_index)
    except (Error, TypeError) as error:
        _tell(group, input, error)
        raise
    if group is None:
        raise ArgumentError("weight is a plain tensor: which ranks have the other slices is said by group")
    x = input.reshape(-1, input.shape[-1])
    want = [torch.is_grad_enabled() and v is not None and v.requires_grad for v in (x, weight, linear_bias)]
    args = (x, weight, t.reshape(-1), linear_bias, class_weight, reduction, ops.whole("ignore_index", ignore_index),
            [float(label_smoothing), float(softcap), float(temperature), float(lse_square_scale)], group.group_name, sharded, offset,
            total, want[0])
    if reduction == "none" or recompute or not any(want):
        loss = torch.ops.ridge.linear_ce_sharded(*args)[0]
    elif plain(*args[:5]):
        loss = _Train.apply(*args)
    else:
        loss = torch.ops.ridge.linear_ce_sharded_train(*args, *want[1:])[0]
    return loss.view(target.shape) if reduction == "none" else loss


def _head(function, input, weight, target, linear_bias, group, ignore_index, softcap, temperature):
    """A Head of whole rows on which all ranks agree."""
    try:
        tensors(function, input=input, weight=weight, target=target, linear_bias=(linear_bias, None))
        ops.numbers_only(softcap=softcap, temperature=temperature)
        weight, group, offset, total = _local("weight", weight, group)
        linear_bias = None if linear_bias is None else _local("linear_bias", linear_bias, group)[0]
        input, weight, t = _loss_inputs(function, input, weight, target, None, ignore_index)
    except (Error, TypeError) as error:
        _tell(group, input, error)
        raise
    if group is None:
        raise ArgumentError("weight is a plain tensor: which ranks have the other slices is said by group")
    x, t = input.reshape(-1, input.shape[-1]), t.reshape(-1)
    grad = torch.is_grad_enabled() and x.requires_grad
    cut = _slices(_on_tensors, group, x.detach(), weight.detach(), t, linear_bias, None, "none", ignore_index,
                  [0.0, float(softcap), float(temperature), 0.0], False, offset, total, grad)
    return Head(group, cut, x, weight, t, linear_bias, ignore_index, (float(softcap), float(temperature)))


@torch.compiler.disable
def linear_logprobs(input: Tensor, weight: Tensor, target: Tensor, linear_bias: Optional[Tensor] = None, ignore_index: int = -100, *,
                    group: Any = None, entropy: bool = False, softcap: float = 0.0,
                    temperature: float = 1.0) -> Any:
    """ridge.torch.linear_logprobs of a weight whose classes are spread over a group as in linear_cross_entropy; every rank has the
    same rows and gets the same bits, and the whole gradient of input. target [..] or [.., K]. Sent by a rank: 24 bytes a row and 4
    a row and K; in backward the gradient of input. Not within torch.compile."""
    ops.numbers_only(entropy=entropy)
    ids, of_rows = None, target
    if target.dim() == input.dim() and target.shape[:-1] == input.shape[:-1]:
        ids = (target if target.dtype in (torch.int32, torch.int64) else target.long()).reshape(-1, target.shape[-1])
        of_rows = torch.where((target != ignore_index).any(-1), 0 if ignore_index else 1, ignore_index).to(ids.dtype)
    head = _head("linear_logprobs", input, weight, of_rows, linear_bias, group, ops.whole("ignore_index", ignore_index), softcap,
                 temperature)
    logprob, of_entropy, of_ids = Logprobs.apply(head.x, head.weight, head.bias, head.target, ids, head)
    logprob = (logprob if ids is None else of_ids).view(target.shape)
    return (logprob, of_entropy.view(of_rows.shape)) if entropy else logprob


def _kept(input, mask):
    return _of_mask(input, mask) if isinstance(input, Tensor) else mask


@torch.compiler.disable
def linear_topk(input: Tensor, weight: Tensor, k: int, linear_bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, *,
                group: Any = None, softcap: float = 0.0, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """ridge.torch.linear_topk of such a weight: the same on every rank. Not differentiable."""
    k = ops.whole("k", k)
    with torch.no_grad():
        head = _head("linear_topk", input, weight, _kept(input, mask), linear_bias, group, -1, softcap, temperature)
        if not 1 <= k <= min(256, head.cut.total):
            raise ArgumentError(f"k is {k}, not in 1 .. {min(256, head.cut.total)}")
        return tuple(t.view(*input.shape[:-1], k) for t in top_of_slices(head, k))


@torch.compiler.disable
def linear_sample(input: Tensor, weight: Tensor, seed: Tensor, counter: Optional[Tensor] = None,
                  linear_bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, *, group: Any = None, softcap: float = 0.0,
                  temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """ridge.torch.linear_sample of such a weight, whose slices begin at multiples of 16 classes: the same on every rank, and the
    draw of one process that has the same logits. Not differentiable."""
    with torch.no_grad():
        head = _head("linear_sample", input, weight, _kept(input, mask), linear_bias, group, -1, softcap, temperature)
        return tuple(t.view(input.shape[:-1]) for t in sample_of_slices(head, *_pair(input.shape[:-1], seed, counter)))


def linear_kl(input: Tensor, weight: Tensor, teacher_logprob: Tensor, ids: Tensor, linear_bias: Optional[Tensor] = None,
              ignore_index: int = -100, *, group: Any = None, reverse: bool = False, tail: bool = False, softcap: float = 0.0,
              temperature: float = 1.0) -> Tensor:
    """ridge.torch.linear_kl of such a weight, by linear_logprobs: the same on every rank."""
    ops.numbers_only(reverse=reverse)
    return _distill.kl(*_distill.both("linear_kl", functools.partial(linear_logprobs, group=group), input, weight, teacher_logprob,
                                      ids, linear_bias, ignore_index, tail, softcap, temperature), bool(reverse))


def linear_jsd(input: Tensor, weight: Tensor, teacher_logprob: Tensor, ids: Tensor, linear_bias: Optional[Tensor] = None,
               ignore_index: int = -100, *, group: Any = None, beta: float = 0.5, tail: bool = False, softcap: float = 0.0,
               temperature: float = 1.0) -> Tensor:
    """ridge.torch.linear_jsd of such a weight, by linear_logprobs: the same on every rank."""
    if not 0 < ops.real("beta", beta) < 1:
        raise ArgumentError(f"beta is {beta}, not between 0 and 1: the ends are linear_kl's two forms")
    return _distill.jsd(*_distill.both("linear_jsd", functools.partial(linear_logprobs, group=group), input, weight,
                                       teacher_logprob, ids, linear_bias, ignore_index, tail, softcap, temperature), float(beta))


@torch.compiler.disable
def linear_distill(input: Tensor, linear_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor,
                   linear_bias: Optional[Tensor] = None, teacher_bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, *,
                   group: Any = None, beta: float = 0.0, temperature: float = 1.0, softcap: float = 0.0,
                   teacher_softcap: float = 0.0, reduction: str = "mean") -> Tensor:
    """ridge.torch.linear_distill of weights whose classes are spread over a group as in linear_cross_entropy, the teacher's as the
    student's: on every rank the same rows, the same loss, and the whole gradient of input. Sent by a rank: 16 bytes a row, and with
    gradients that of input in f32."""
    options = (beta, temperature, softcap, teacher_softcap, reduction)
    try:
        linear_weight, group = _local("linear_weight", linear_weight, group)[:2]
        teacher_weight = _local("teacher_weight", teacher_weight, group)[0]
        linear_bias, teacher_bias = (t if t is None else _local(name, t, group)[0]
                                     for name, t in (("linear_bias", linear_bias), ("teacher_bias", teacher_bias)))
        _of_distill(input, linear_weight, teacher_input, teacher_weight, linear_bias, teacher_bias, mask, *options)
    except (Error, TypeError) as error:
        _tell(group, input, error)
        raise
    head = _head("linear_distill", input, linear_weight, _kept(input, mask), linear_bias, group, -1, softcap, temperature)
    keep = (head.target >= 0).to(torch.float32)
    return _distill.Distill.apply(head.x, head.weight, head.bias, teacher_input.detach().reshape(keep.numel(), -1),
                                  teacher_weight.detach(), None if teacher_bias is None else teacher_bias.detach(), keep,
                                  _distill.divisor(keep, reduction),
                                  (float(beta), float(temperature), float(softcap), float(teacher_softcap)), Divergences(head))


class VocabParallelHead(torch.nn.Module):
    """A head (torch.nn.Linear from hidden to the vocabulary) of which each rank of a group keeps a slice of the classes: weight and
    bias are DTensors Shard(0), in state_dict too. Keep it out of fully_shard (ignored_params): it is sharded already."""

    weight: torch.nn.Parameter
    bias: Optional[torch.nn.Parameter]
    in_features: int
    out_features: int

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, group: Any, *, model: Optional[torch.nn.Module] = None) -> VocabParallelHead:
        """The rows of this rank of a layer that every rank has whole. group: a process group or a DeviceMesh of one dimension.
        model: where it is given, a layer whose weight is also another module's (a tied embedding) is an error: the two would be
        trained apart."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard
        for name, other in model.named_modules() if model is not None else ():
            if other is not linear and any(p is linear.weight for p in other.parameters(recurse=False)):
                raise ArgumentError(f"the head's weight is also {name}'s: untie them, or keep the head whole")
        self = cls()
        mesh = group if isinstance(group, DeviceMesh) else DeviceMesh.from_group(group, linear.weight.device.type)
        first, count = _part(linear.out_features, mesh.size(), mesh.get_local_rank())
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name in ("weight", "bias"):
            whole = getattr(linear, name)
            if whole is not None:
                local = whole.detach()[first:first + count].clone()
                t = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
                whole = torch.nn.Parameter(t, requires_grad=whole.requires_grad)
            setattr(self, name, whole)
        return self

    def loss(self, input: Tensor, target: Tensor, **options: Any) -> Tensor:
        """linear_cross_entropy of this head; options are its arguments."""
        return linear_cross_entropy(input, self.weight, target, self.bias, **options)

    def forward(self, input: Tensor) -> Tensor:
        """The logits of all classes, gathered: for generation. input is the same on all ranks."""
        from torch.distributed.tensor import DTensor, Replicate
        mesh = self.weight.device_mesh  # type: ignore[attr-defined]
        x = DTensor.from_local(input, mesh, [Replicate()], run_check=False)
        return torch.nn.functional.linear(x, self.weight, self.bias).full_tensor()  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


# ----------------------------------------------------------------------------------------------------- tensor parallelism


class _Fp8Parallel(ParallelStyle):
    dim: int  # of the weight that is cut
    _forward: Any

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        if not isinstance(module, Fp8Linear):
            raise ArgumentError(f"{type(self).__name__} takes an Fp8Linear, not a {type(module).__name__}")
        if module.weight.shape[self.dim] % (128 * device_mesh.size()):
            raise ArgumentError(f"a weight of {list(module.weight.shape)} cannot be cut along dimension {self.dim} into "
                                f"{device_mesh.size()} whole blocks of 128")
        for name, p in list(module.named_parameters(recurse=False)):
            place = Shard(self.dim) if name == "weight" or self.dim == 0 else Replicate()
            t = distribute_tensor(p, device_mesh, [place])
            module.register_parameter(name, torch.nn.Parameter(t, requires_grad=p.requires_grad))
        module.forward = functools.partial(type(self)._forward, module, device_mesh.get_group())  # type: ignore[method-assign]
        return module


def _here(module, group, x, features):
    if x.shape[-1] != features or x.dim() < 2:
        raise ArgumentError(f"this part of an Fp8Linear takes [.., tokens, {features}], not an input of shape {list(x.shape)}")
    return module.weight.to_local(), (group, module.gradient_dtype, module.wgrad)


class Fp8ColwiseParallel(_Fp8Parallel):
    """For parallelize_module: an Fp8Linear whose outputs are cut among the ranks of a mesh. Its input is this rank's part of the
    sequence, [.., s/n, in] (sequence parallelism), its output [.., s, out/n]: plain tensors. Activations travel as FP8 codes with
    their scales, 1.03 bytes an element in each pass; parts of dX as they are, added in f32 in the order of the ranks. y and dW have
    one device's bits. s/n must be a multiple of 128; torch.compile leaves the layer out; transfers are not overlapped with products."""

    dim = 0

    @staticmethod
    @torch.compiler.disable
    def _forward(module, group, x):
        weight, how = _here(module, group, x, module.in_features)
        return Column.apply(x, weight, None if module.bias is None else module.bias.to_local(), *how)


class Fp8RowwiseParallel(_Fp8Parallel):
    """The layer after it: inputs are cut. Its input is [.., s, in/n], its output this rank's part of the sequence, [.., s/n, out]:
    partial sums added in f32 in the order of the ranks. Backward gathers dY as codes; dX and dW have one device's bits."""

    dim = 1

    @staticmethod
    @torch.compiler.disable
    def _forward(module, group, x):
        weight, how = _here(module, group, x, module.in_features // group.size())
        y = Row.apply(x, weight, *how)
        return y if module.bias is None else y + module.bias.to_local(grad_placements=[Partial()])

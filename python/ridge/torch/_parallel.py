"""_parallel.py: Fp8Linear cut among the ranks of a group (tensor parallelism with sequence parallelism): activations and gradients
are gathered as FP8 codes, partial sums are added in the order of the ranks. Transfers go on beside products: a gather beside the
quantisation of the weight and the product of this rank's own rows, the parts of dX beside dW, those of y beside their last rows.

A product stays on its multiprocessors until it ends, and its tiles are dealt out when it begins: beside a transfer that holds some
of them the last ones would begin when the transfer is over. So it leaves free what the group's own limit says that NCCL may take; of
two ranks only for as many rows as the transfer lasts, as it is estimated, and the rest of the product has all of them."""
import weakref

import torch

from .. import _abi as A
from .. import _ops as ops
from .._core import ArgumentError
from . import _library as L
from ._arrays import Arrays, Beside, dtype_number
from ._collectives import by_copies, empty_parts, gathering_both, gathering_columns, trading
from ._functions import _once

_on_tensors = Arrays()
_E4M3 = torch.float8_e4m3fn
_LEAST = 1024  # rows of a product of its own: a few waves of tiles
_OF_CTA, _RATE = 6e9, 1.1e15  # bytes a second that a CTA of NCCL brings beside a product, and the product's FLOP a second
_beside = weakref.WeakKeyDictionary()  # group -> Arrays of what runs beside its transfers


def _beside_transfers(group):
    """NCCL takes up to max_ctas multiprocessors, where the group was made with such a limit; copy engines take none."""
    if by_copies(group):
        return _on_tensors
    found = _beside.get(group)
    if found is None:
        try:
            most = group._get_backend(torch.device("cuda")).options.config.max_ctas
        except (AttributeError, RuntimeError):  # not NCCL's
            most = 0
        found = _beside[group] = Beside(most) if 0 < most <= 64 and group.size() > 1 else _on_tensors
    return found


def _rows_first(t):
    """[.., s, cols] -> [s, .., cols] as a matrix: parts of s are then parts of its rows."""
    return t if t.dim() == 2 else t.movedim(-2, 0).reshape(-1, t.shape[-1])


def _rows_last(two, shape):
    """Back: shape is that of the result."""
    return two if len(shape) == 2 else two.view(shape[-2], *shape[:-2], shape[-1]).movedim(0, -2)


class _Into(Arrays):
    """Arrays whose next outputs lie in these tensors; None: anywhere."""

    def __init__(self, tensors):
        self.tensors = tensors

    def empty(self, like, shape, dtype, ld=None):
        t = self.tensors.pop(0) if self.tensors else None
        return Arrays.empty(like, shape, dtype, ld) if t is None else t


def _quantised(two, form, dtype, sums=False, group=None, sent=0):
    """quantize_fp8_dual of this rank's rows. sent: 1: codes and scales of the rows go to the group next, 2: then those of the columns,
    both of form row_row."""
    rows, cols = two.shape
    if rows % 128:
        raise ArgumentError(f"this rank has {rows} tokens: a part of a sequence-parallel activation must be a multiple of 128")
    xp, copies = _on_tensors, by_copies(group) if sent else None
    if copies and cols % 128 == 0:
        code = _E4M3 if dtype == "e4m3" else torch.float8_e5m2
        q, s = copies.room([(torch.Size((rows, cols)), code), (torch.Size((cols // 128, rows)), torch.float32)], two.device)
        qt, st = (copies.room([(torch.Size((cols, rows)), code), (torch.Size((rows // 128, cols)), torch.float32)], two.device)
                  if sent == 2 else (None, None))
        xp = _Into([q, qt, s, st])
    q, s, qt, st, sums = ops.quantize_fp8_dual(xp, two, form, ops.pick(L.FORMATS, dtype, "dtype"), False, 0.0, sums)
    return q.view(torch.uint8), s, qt.view(torch.uint8), st, sums


def _all_columns(qt, st, by_row, group, met=False):
    """Begins to gather codes of the transpose [cols, rows] of all ranks' rows, and scales: [rows/128, cols], or of blocks
    [cols/128, rows/128]; ends with both."""
    both = gathering_columns(qt, st, group, met)

    def wait():
        codes, s = both()
        return codes, s.flatten(0, 1) if by_row else s.transpose(0, 1).flatten(1)
    return wait


def _gemm(a, s, b, t, scales, dtype, bias=None, out=None, xp=_on_tensors):
    return ops.fp8_gemm(xp, a.view(_E4M3) if a.dtype is torch.uint8 else a, s, b.view(_E4M3) if b.dtype is torch.uint8 else b,
                        t.contiguous(), scales, dtype_number(dtype), bias, out, False)


def _gemm_beside(a, s, b, t, scales, dtype, group, received, bias=None, out=None):
    """A product beside a transfer of which this rank receives so many bytes."""
    xp, rows = _beside_transfers(group), a.shape[0]
    if out is None:
        out = torch.empty(rows, b.shape[0], dtype=dtype, device=a.device)
    first = rows
    if xp is not _on_tensors and group.size() == 2:
        first = -(-int(received / (xp.free * _OF_CTA) * _RATE / (2 * b.shape[0] * b.shape[1])) // 256) * 256
    if first + _LEAST > rows:
        return _gemm(a, s, b, t, scales, dtype, bias, out, xp)
    if first:
        _gemm(a[:first], s[:, :first], b, t, scales, dtype, bias, out[:first], xp)
    _gemm(a[first:], s[:, first:], b, t, scales, dtype, bias, out[first:])
    return out


def _ranges(ranks):
    """Ranks as ranges."""
    found: list[list[int]] = []
    for r in sorted(ranks):
        if found and found[-1][1] == r:
            found[-1][1] += 1
        else:
            found.append([r, r + 1])
    return found


def _in_steps(group, flops):
    """Whether products of so many FLOP for each rank are worth a launch of their own: in a graph, or where they last longer than the
    host needs for that."""
    return bool(by_copies(group)) and group.size() > 2 and (flops > 3e-4 * _RATE or torch.cuda.is_current_stream_capturing())


def _distances(group, steps):
    """Distances to the other ranks, those together whose parts are multiplied before any of them travels: at most so many steps."""
    every = list(range(1, group.size()))
    steps = min(len(every), steps)
    return [every[len(every) * i // steps:len(every) * (i + 1) // steps] for i in range(steps)]


def _arriving(group, steps):
    """(how many ranks' parts are waited for, 0: all; of which these are multiplied then): by copies they come one after another."""
    n, rank = group.size(), group.rank()
    others = [(rank + d) % n for d in range(1, n)]
    return [(1, others[:1]), (0, others[1:])] if steps else [(0, others)]


def _product_of_all(q, s, group, codes, weight, dtype, bias=None, more=None):
    """q [rows, k] with scales s [k/128, rows] of all ranks times b: [ranks * rows, n]. Beside the transfer weight() gives b and its
    scales, and this rank's own rows are multiplied if they are many. more() begins another transfer of as many bytes, which goes on
    to the end."""
    rank, rows, scales = group.rank(), q.shape[0], "row128_blk128"
    alone = rows >= _LEAST or group.size() == 1
    both, xp = gathering_both(q.view(torch.uint8), s, group, not alone), _beside_transfers(group)
    if more:
        more()
    b, t = weight()
    y = torch.empty(group.size() * rows, b.shape[0], dtype=dtype, device=q.device)
    if alone:
        _gemm_beside(q.view(codes), s, b, t, scales, dtype, group, (2 if more else 1) * (group.size() - 1) * q.numel(), bias,
                     y[rank * rows:(rank + 1) * rows])
    steps = _in_steps(group, 2 * rows * b.shape[0] * b.shape[1])
    for count, ranks in _arriving(group, steps) if alone else [(0, range(group.size()))]:
        every, tables = both(count) if count else both()
        for first, end in _ranges(ranks):
            _gemm(every[first:end].view(codes).flatten(0, 1), tables[first:end].transpose(0, 1).flatten(1), b, t, scales, dtype, bias,
                  y[first * rows:end * rows], xp if more and group.size() > 2 else _on_tensors)
    return y


def _sum_of_products(q, s, b, t, dtype, group, beside=0):
    """Begins this rank's rows of the sum over the ranks of q [ranks * rows, k] times b; ends with them. What other ranks wait for is
    multiplied first, beside a transfer of so many bytes, and travels beside the product of this rank's own rows; where there is no such
    transfer, nothing is expected to follow beside which it would travel: by copies a third of it may go beside the next."""
    n, rank, scales = group.size(), group.rank(), "row128_blk128"
    rows = q.shape[0] // n
    partial = empty_parts(group, n, rows, b.shape[0], q, dtype)
    waits = []
    if rows < _LEAST or n == 1:
        _gemm(q, s, b, t, scales, dtype, None, partial.flatten(0, 1))
        parts = partial
        if n > 1:
            parts, begin = trading(partial, group)
            waits.append(begin(range(1, n)))
            parts[rank] = partial[rank]
    else:
        parts, begin = trading(partial, group)
        steps = 3 if not beside and _in_steps(group, 2 * rows * b.shape[0] * b.shape[1]) else 1
        for distances in _distances(group, steps):
            for first, end in _ranges((rank + d) % n for d in distances):
                of = q[first * rows:end * rows], s[:, first * rows:end * rows], b, t, scales, dtype
                out = partial[first:end].flatten(0, 1)
                _gemm_beside(*of, group, beside, None, out) if beside else _gemm(*of, None, out)
            waits.append(begin(distances))
        _gemm_beside(q[rank * rows:(rank + 1) * rows], s[:, rank * rows:(rank + 1) * rows], b, t, scales, dtype, group,
                     (n - 1) * partial[0].numel() * partial.element_size(), None, parts[rank])

    def summed():
        for wait in waits:
            wait()
        return ops.sum_parts(_on_tensors, parts)
    return summed


def _weight(weight):
    wq, ws, wtq, wts, _ = ops.quantize_fp8_dual(_on_tensors, weight, "blk_blk", A.E4M3, False, 0.0, False)
    return wq, ws, wtq, wts


class Column(torch.autograd.Function):
    """x [.., s/n, k] of this rank's part of a sequence, weight [out/n, k] -> y [.., s, out/n]."""

    @staticmethod
    def forward(ctx, x, weight, bias, group, gradient_dtype, wgrad):
        form = ops.pick(L.WGRAD, wgrad, "wgrad")[0]
        xq, xs, *column, _ = _quantised(_rows_first(x), form, "e4m3", False, group, 1)
        transposed = []

        def quantised():
            wq, ws, *wt = _weight(weight)
            transposed.extend(wt)
            return wq, ws

        y = _product_of_all(xq, xs, group, torch.float8_e4m3fn, quantised, x.dtype, bias)
        ctx.save_for_backward(*column, transposed[0].view(torch.uint8), transposed[1])
        ctx.rest = x.shape, group, gradient_dtype, wgrad, weight.dtype, None if bias is None else bias.dtype
        return _rows_last(y, (*x.shape[:-2], x.shape[-2] * group.size(), weight.shape[0]))

    @staticmethod
    @_once
    def backward(ctx, dy):
        xtq, xts, wtq, wts = ctx.saved_tensors
        shape, group, gradient_dtype, wgrad, weight_dtype, bias_dtype = ctx.rest
        of_x = _all_columns(xtq, xts, wgrad == "row128", group) if ctx.needs_input_grad[1] else None
        gq, gs, gtq, gts, sums = _quantised(_rows_first(dy), "row_row", gradient_dtype, ctx.needs_input_grad[2])
        code = ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
        gq, gtq = (t.view(torch.float8_e4m3fn if code == A.E4M3 else torch.float8_e5m2) for t in (gq, gtq))
        dw = summed = None
        if ctx.needs_input_grad[0]:
            summed = _sum_of_products(gq, gs, wtq, wts, dy.dtype, group, (group.size() - 1) * xtq.numel() if of_x else 0)
        if of_x:
            b, t = (v.contiguous() for v in of_x())
            beside = _beside_transfers(group) if summed and group.size() > 2 else _on_tensors  # of two ranks the parts are there by now
            dw = _gemm(gtq, gts, b, t, L.WGRAD[wgrad][1], dy.dtype, xp=beside).to(weight_dtype)
        dx = _rows_last(summed(), shape) if summed else None
        return dx, dw, sums.to(bias_dtype) if ctx.needs_input_grad[2] else None, None, None, None


class Row(torch.autograd.Function):
    """x [.., s, k/n], weight [out, k/n] -> y [.., s/n, out] of this rank's part of the sequence."""

    @staticmethod
    def forward(ctx, x, weight, group, gradient_dtype, wgrad):
        xq, xs, xtq, xts, _ = _quantised(_rows_first(x), ops.pick(L.WGRAD, wgrad, "wgrad")[0], "e4m3")
        wq, ws, wtq, wts = _weight(weight)
        y = _sum_of_products(xq, xs, wq, ws, x.dtype, group)()
        ctx.save_for_backward(xtq, xts, wtq.view(torch.uint8), wts)
        ctx.rest = x.shape, group, gradient_dtype, wgrad, weight.dtype
        return _rows_last(y, (*x.shape[:-2], x.shape[-2] // group.size(), weight.shape[0]))

    @staticmethod
    @_once
    def backward(ctx, dy):
        xtq, xts, wtq, wts = ctx.saved_tensors
        shape, group, gradient_dtype, wgrad, weight_dtype = ctx.rest
        gq, gs, gtq, gts, _ = _quantised(_rows_first(dy), "row_row", gradient_dtype, False, group, 2 if all(ctx.needs_input_grad[:2]) else 0)
        code = torch.float8_e4m3fn if ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype") == A.E4M3 else torch.float8_e5m2
        dx = dw = None
        columns = []

        def more():  # behind the gather of the rows
            columns.append(_all_columns(gtq, gts, True, group, True))

        if ctx.needs_input_grad[0]:
            dx = _rows_last(_product_of_all(gq, gs, group, code, lambda: (wtq, wts), dy.dtype, None,
                                            more if ctx.needs_input_grad[1] else None), shape)
        elif ctx.needs_input_grad[1]:
            more()
        if ctx.needs_input_grad[1]:
            gtq, gts = columns[0]()
            dw = _gemm(gtq.view(code), gts.contiguous(), xtq, xts, L.WGRAD[wgrad][1], dy.dtype).to(weight_dtype)
        return dx, dw, None, None, None

"""_parallel.py: Fp8Linear cut among the ranks of a group (tensor parallelism with sequence parallelism): activations and gradients
are gathered as FP8 codes, partial sums are added in the order of the ranks. Transfers go on beside products: a gather beside the
quantisation of the weight and the product of this rank's own rows, the parts of dX beside dW, those of y beside their last rows."""
import torch

from .. import _abi as A
from .. import _ops as ops
from .._core import ArgumentError
from . import _library as L
from ._arrays import Arrays, dtype_number
from ._collectives import gathering, transposing
from ._functions import _once

_on_tensors = Arrays()
_LEAST = 1024  # rows of a product of its own: a few waves of tiles


def _rows_first(t):
    """[.., s, cols] -> [s, .., cols] as a matrix: parts of s are then parts of its rows."""
    return t.movedim(-2, 0).reshape(-1, t.shape[-1])


def _rows_last(two, shape):
    """Back: shape is that of the result."""
    return two.view(shape[-2], *shape[:-2], shape[-1]).movedim(0, -2)


def _quantised(two, form, dtype, group):
    """quantize_fp8_dual of this rank's rows."""
    if two.shape[0] % 128:
        raise ArgumentError(f"this rank has {two.shape[0]} tokens: a part of a sequence-parallel activation must be a multiple of 128")
    q, s, qt, st, sums = ops.quantize_fp8_dual(_on_tensors, two, form, ops.pick(L.FORMATS, dtype, "dtype"), False, 0.0, True)
    return q.view(torch.uint8), s, qt.view(torch.uint8), st, sums


def _all_columns(qt, st, by_row, group):
    """Begins to gather codes of the transpose [cols, rows] of all ranks' rows, and scales: [rows/128, cols], or of blocks
    [cols/128, rows/128]; ends with both."""
    codes, scales = gathering(qt, group), gathering(st, group)

    def wait():
        s = scales()
        return codes().transpose(0, 1).flatten(1), s.flatten(0, 1) if by_row else s.transpose(0, 1).flatten(1)
    return wait


def _gemm(a, s, b, t, scales, dtype, bias=None, out=None):
    e4m3 = torch.float8_e4m3fn
    return ops.fp8_gemm(_on_tensors, a.view(e4m3) if a.dtype is torch.uint8 else a, s,
                        b.view(e4m3) if b.dtype is torch.uint8 else b, t.contiguous(), scales, dtype_number(dtype), bias, out, False)


def _others(group):
    """Ranges of ranks before and behind this one."""
    rank, n = group.rank(), group.size()
    return [(a, b) for a, b in ((0, rank), (rank + 1, n)) if a < b]


def _product_of_all(q, s, group, codes, weight, dtype, bias=None):
    """q [rows, k] with scales s [k/128, rows] of all ranks times b: [ranks * rows, n]. Beside the transfer weight() gives b and its
    scales, and this rank's own rows are multiplied if they are many."""
    every, tables = gathering(q.view(torch.uint8), group), gathering(s, group)
    b, t = weight()
    rank, rows, scales = group.rank(), q.shape[0], "row128_blk128"
    y = torch.empty(group.size() * rows, b.shape[0], dtype=dtype, device=q.device)
    alone = rows >= _LEAST or group.size() == 1
    if alone:
        _gemm(q.view(codes), s, b, t, scales, dtype, bias, y[rank * rows:(rank + 1) * rows])
    every, tables = every().view(codes), tables()
    for first, end in _others(group) if alone else [(0, group.size())]:
        _gemm(every[first:end].flatten(0, 1), tables[first:end].transpose(0, 1).flatten(1), b, t, scales, dtype, bias,
              y[first * rows:end * rows])
    return y


def _sum_of_products(q, s, b, t, dtype, group):
    """This rank's rows of the sum over the ranks of q [ranks * rows, k] times b. What other ranks wait for is multiplied first, and
    travels beside the product of this rank's own rows."""
    n, rank, scales = group.size(), group.rank(), "row128_blk128"
    rows = q.shape[0] // n
    if rows < _LEAST or n == 1:
        return ops.sum_parts(_on_tensors, transposing(_gemm(q, s, b, t, scales, dtype).view(n, rows, -1), group)())
    partial = torch.empty(n, rows, b.shape[0], dtype=dtype, device=q.device)
    for first, end in _others(group):
        _gemm(q[first * rows:end * rows], s[:, first * rows:end * rows], b, t, scales, dtype, None, partial[first:end].flatten(0, 1))
    sent = transposing(partial, group)  # its own part is not made yet, and not needed elsewhere
    own = _gemm(q[rank * rows:(rank + 1) * rows], s[:, rank * rows:(rank + 1) * rows], b, t, scales, dtype)
    parts = sent()
    parts[rank] = own
    return ops.sum_parts(_on_tensors, parts)


def _weight(weight):
    wq, ws, wtq, wts, _ = ops.quantize_fp8_dual(_on_tensors, weight, "blk_blk", A.E4M3, False, 0.0, False)
    return wq, ws, wtq, wts


class Column(torch.autograd.Function):
    """x [.., s/n, k] of this rank's part of a sequence, weight [out/n, k] -> y [.., s, out/n]."""

    @staticmethod
    def forward(ctx, x, weight, bias, group, gradient_dtype, wgrad):
        form = ops.pick(L.WGRAD, wgrad, "wgrad")[0]
        xq, xs, *column, _ = _quantised(_rows_first(x), form, "e4m3", group)
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
        gq, gs, gtq, gts, sums = _quantised(_rows_first(dy), "row_row", gradient_dtype, group)
        code = ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
        gq, gtq = (t.view(torch.float8_e4m3fn if code == A.E4M3 else torch.float8_e5m2) for t in (gq, gtq))
        dw = parts = None
        if ctx.needs_input_grad[0]:
            partial = _gemm(gq, gs, wtq, wts, "row128_blk128", dy.dtype)
            parts = transposing(partial.view(group.size(), -1, partial.shape[1]), group)
        if of_x:
            dw = _gemm(gtq, gts, *(t.contiguous() for t in of_x()), L.WGRAD[wgrad][1], dy.dtype).to(weight_dtype)
        dx = _rows_last(ops.sum_parts(_on_tensors, parts()), shape) if parts else None
        return dx, dw, sums.to(bias_dtype) if ctx.needs_input_grad[2] else None, None, None, None


class Row(torch.autograd.Function):
    """x [.., s, k/n], weight [out, k/n] -> y [.., s/n, out] of this rank's part of the sequence."""

    @staticmethod
    def forward(ctx, x, weight, group, gradient_dtype, wgrad):
        xq, xs, xtq, xts, _ = _quantised(_rows_first(x), ops.pick(L.WGRAD, wgrad, "wgrad")[0], "e4m3", group)
        wq, ws, wtq, wts = _weight(weight)
        y = _sum_of_products(xq, xs, wq, ws, x.dtype, group)
        ctx.save_for_backward(xtq, xts, wtq.view(torch.uint8), wts)
        ctx.rest = x.shape, group, gradient_dtype, wgrad, weight.dtype
        return _rows_last(y, (*x.shape[:-2], x.shape[-2] // group.size(), weight.shape[0]))

    @staticmethod
    @_once
    def backward(ctx, dy):
        xtq, xts, wtq, wts = ctx.saved_tensors
        shape, group, gradient_dtype, wgrad, weight_dtype = ctx.rest
        gq, gs, gtq, gts, _ = _quantised(_rows_first(dy), "row_row", gradient_dtype, group)
        code = torch.float8_e4m3fn if ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype") == A.E4M3 else torch.float8_e5m2
        dx = dw = None
        columns = []

        def weight():  # after the gather of the rows has begun
            if ctx.needs_input_grad[1]:
                columns.append(_all_columns(gtq, gts, True, group))
            return wtq, wts

        if ctx.needs_input_grad[0]:
            dx = _rows_last(_product_of_all(gq, gs, group, code, weight, dy.dtype), shape)
        else:
            weight()
        if ctx.needs_input_grad[1]:
            gtq, gts = columns[0]()
            dw = _gemm(gtq.view(code), gts.contiguous(), xtq, xts, L.WGRAD[wgrad][1], dy.dtype).to(weight_dtype)
        return dx, dw, None, None, None

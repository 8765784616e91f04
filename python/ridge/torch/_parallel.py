"""_parallel.py: Fp8Linear cut among the ranks of a group (tensor parallelism with sequence parallelism): activations and gradients
are gathered as FP8 codes, partial sums are added in the order of the ranks."""
import torch

from .. import _abi as A
from .. import _ops as ops
from .._core import ArgumentError
from . import _library as L
from ._arrays import Arrays, dtype_number
from ._collectives import gathered, transposed
from ._functions import _once

_on_tensors = Arrays()


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


def _all_rows(q, s, group):
    """Codes [rows, cols] with scales [ceil(cols/128), rows] of all ranks' rows."""
    return gathered(q, group).flatten(0, 1), gathered(s, group).transpose(0, 1).flatten(1)


def _all_columns(qt, st, by_row, group):
    """Codes of the transpose [cols, rows] of all ranks' rows; scales: [rows/128, cols], or of blocks [cols/128, rows/128]."""
    scales = gathered(st, group)
    return gathered(qt, group).transpose(0, 1).flatten(1), scales.flatten(0, 1) if by_row else scales.transpose(0, 1).flatten(1)


def _gemm(a, s, b, t, scales, dtype, bias=None):
    e4m3 = torch.float8_e4m3fn
    return ops.fp8_gemm(_on_tensors, a.view(e4m3) if a.dtype is torch.uint8 else a, s.contiguous(),
                        b.view(e4m3) if b.dtype is torch.uint8 else b, t.contiguous(), scales, dtype_number(dtype), bias, None)


def _summed(partial, group):
    """This rank's rows of the sum of all ranks' partial sums."""
    return ops.sum_parts(_on_tensors, transposed(partial.view(group.size(), -1, partial.shape[1]), group))


def _weight(weight):
    wq, ws, wtq, wts, _ = ops.quantize_fp8_dual(_on_tensors, weight, "blk_blk", A.E4M3, False, 0.0, False)
    return wq, ws, wtq, wts


class Column(torch.autograd.Function):
    """x [.., s/n, k] of this rank's part of a sequence, weight [out/n, k] -> y [.., s, out/n]."""

    @staticmethod
    def forward(ctx, x, weight, bias, group, gradient_dtype, wgrad):
        form = ops.pick(L.WGRAD, wgrad, "wgrad")[0]
        xq, xs, *column, _ = _quantised(_rows_first(x), form, "e4m3", group)
        wq, ws, wtq, wts = _weight(weight)
        y = _gemm(*_all_rows(xq, xs, group), wq, ws, "row128_blk128", x.dtype, bias)
        ctx.save_for_backward(*column, wtq.view(torch.uint8), wts)
        ctx.rest = x.shape, group, gradient_dtype, wgrad, weight.dtype, None if bias is None else bias.dtype
        return _rows_last(y, (*x.shape[:-2], x.shape[-2] * group.size(), weight.shape[0]))

    @staticmethod
    @_once
    def backward(ctx, dy):
        xtq, xts, wtq, wts = ctx.saved_tensors
        shape, group, gradient_dtype, wgrad, weight_dtype, bias_dtype = ctx.rest
        gq, gs, gtq, gts, sums = _quantised(_rows_first(dy), "row_row", gradient_dtype, group)
        code = ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
        gq, gtq = (t.view(torch.float8_e4m3fn if code == A.E4M3 else torch.float8_e5m2) for t in (gq, gtq))
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = _rows_last(_summed(_gemm(gq, gs, wtq, wts, "row128_blk128", dy.dtype), group), shape)
        if ctx.needs_input_grad[1]:
            of_x = _all_columns(xtq, xts, wgrad == "row128", group)
            dw = _gemm(gtq, gts, *of_x, L.WGRAD[wgrad][1], dy.dtype).to(weight_dtype)
        return dx, dw, sums.to(bias_dtype) if ctx.needs_input_grad[2] else None, None, None, None


class Row(torch.autograd.Function):
    """x [.., s, k/n], weight [out, k/n] -> y [.., s/n, out] of this rank's part of the sequence."""

    @staticmethod
    def forward(ctx, x, weight, group, gradient_dtype, wgrad):
        xq, xs, xtq, xts, _ = _quantised(_rows_first(x), ops.pick(L.WGRAD, wgrad, "wgrad")[0], "e4m3", group)
        wq, ws, wtq, wts = _weight(weight)
        y = _summed(_gemm(xq, xs, wq, ws, "row128_blk128", x.dtype), group)
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
        if ctx.needs_input_grad[0]:
            gq, gs = _all_rows(gq, gs, group)
            dx = _rows_last(_gemm(gq.view(code), gs, wtq, wts, "row128_blk128", dy.dtype), shape)
        if ctx.needs_input_grad[1]:
            gtq, gts = _all_columns(gtq, gts, True, group)
            dw = _gemm(gtq.view(code), gts, xtq, xts, L.WGRAD[wgrad][1], dy.dtype).to(weight_dtype)
        return dx, dw, None, None, None

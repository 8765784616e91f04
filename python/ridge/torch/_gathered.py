"""_gathered.py: weights of Fp8Linear that FSDP2 gathers as FP8 codes: what the rank's shard is, what the gathered weight is, and
the products with it."""
import functools

import torch

from .. import _abi as A
from .. import _ops as ops
from . import _library as L
from ._arrays import Arrays, dtype_number, same_device
from ._collectives import gathered
from ._functions import _once

aten = torch.ops.aten
_on_tensors = Arrays()
_KEEPS = {aten.as_strided.default, aten.clone.default, aten.copy_.default, aten.detach.default, aten.empty_like.default,
          aten.new_empty.default, aten.new_zeros.default, aten.slice.Tensor, aten.split.Tensor, aten.view.default,
          aten._to_copy.default, aten._pin_memory.default}


class ShardWeight(torch.Tensor):
    """A weight as it is (f32 or 16 bits), which FSDP2 asks for the codes of its shard. Every other op sees the tensor inside."""

    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_wrapper_subclass(cls, t.size(), strides=t.stride(), storage_offset=t.storage_offset(), dtype=t.dtype,
                                                   layout=t.layout, device=t.device, requires_grad=t.requires_grad)

    def __init__(self, t):
        self.inner = t

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, _, size, stride):
        return ShardWeight(inner["inner"])

    def __repr__(self):
        return f"ShardWeight({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        inner = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        out = func(*inner[0], **inner[1])
        if func is aten.copy_.default and isinstance(args[0], cls):
            return args[0]
        if func not in _KEEPS or not any(isinstance(t, cls) for t in args[:1]):
            return out
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, out)

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        """(codes, scales) of the shard; codes alone where ranks cut through blocks: the ranks have told each other the scales then."""
        t = self.inner.to(mp_policy.param_dtype or self.inner.dtype)
        cut = _Cut(outer_size[0], mesh.size(), mesh.get_local_rank())
        if cut.whole:
            codes, scales = _codes_of(t)
            return (codes.view(torch.uint8).contiguous(), scales.contiguous()), cut
        codes, cut.scales = _quantised_part(t, cut, mesh.get_group())
        return (codes,), cut  # FSDP2 takes nothing beside shards that are padded

    def fsdp_post_all_gather(self, outputs, cut, param_dtype, *, out=None):
        if out is not None:  # the memory of the first time, which FSDP2 has filled again
            if not cut.whole:
                out.scales.copy_(cut.scales)
            return None
        return GatheredWeight(outputs[0][:cut.total], outputs[1] if cut.whole else cut.scales, param_dtype), outputs


@functools.lru_cache(1024)
def _tables(total, ranks, device):
    """For blocks that ranks cut through: [blocks, parts], of all ranks' heads and tails those that are its parts, or the row of zeros
    behind them. For every block: the row with its scales among those of such blocks and the ranks' whole blocks behind them."""
    parts, whole, per_rank = {}, {}, -(-total // ranks) // 128
    for r in range(ranks):
        first, end, head, tail = _Cut(total, ranks, r).span()
        for k, (block, rows) in enumerate(((first // 128, head), (end // 128, tail))):
            if rows:
                parts.setdefault(block, []).append(2 * r + k)
        begin = -(-first // 128)
        whole |= {begin + i: r * per_rank + i for i in range((end - tail - first - head) // 128)}
    most = max(len(rows) for rows in parts.values())
    of_parts = [rows + [2 * ranks] * (most - len(rows)) for _, rows in sorted(parts.items())]
    place = {block: i for i, block in enumerate(sorted(parts))}
    of_blocks = [place[block] if block in place else len(place) + whole[block] for block in range(-(-total // 128))]
    return torch.tensor(of_parts, device=device), torch.tensor(of_blocks, device=device), place


class _Cut:
    """The rows of a weight that a rank has, as FSDP2 cuts them: ceil(total/ranks) each, the last ranks fewer or none."""

    def __init__(self, total, ranks, rank):
        self.total, self.ranks, self.rank, self.rows, self.scales = total, ranks, rank, -(-total // ranks), None
        self.whole = total == self.rows * ranks and self.rows % 128 == 0

    def span(self):
        """(first, end, rows of a block that begins on another rank, rows of one that ends there or is the last one and not whole)"""
        first = min(self.total, self.rank * self.rows)
        end = min(self.total, first + self.rows)
        head = min(-first % 128, end - first)
        return first, end, head, end - max(first + head, end // 128 * 128)


def _codes_of(t, form="blk128"):
    return ops.quantize_fp8(_on_tensors, t, form, A.E4M3, False, 0.0, None, False)[:2]


def _largest(t):
    """Of the columns of each block, [1, ceil(cols/128)]; 0 of no rows."""
    columns = torch.nn.functional.pad(t.abs().amax(0, keepdim=True) if len(t) else t.new_zeros(1, t.shape[1]), (0, -t.shape[1] % 128))
    return columns.view(1, -1, 128).amax(2).float()


def _spread(largest, like):
    """[blocks, cols]: the largest magnitudes [blocks, ceil(cols/128)] in the first of 128 columns each, zeros behind."""
    rows = like.new_zeros(largest.shape[0], largest.shape[1] * 128)
    rows[:, ::128] = largest
    return rows[:, :like.shape[1]]


def _quantised_part(t, cut, group):
    """Codes [ceil(rows/ranks), cols] of a shard that cuts through blocks of 128 rows, zeros behind them, and the scales of all blocks
    of the weight. The ranks tell each other the scales of their whole blocks and the largest magnitudes of their parts of others; a
    part has those of the whole block in a row of its own while it is quantised: so it gets the codes of the whole block."""
    first, end, head, tail = cut.span()
    count, blocks = end - first, cut.rows // 128
    of_parts, of_blocks, place = _tables(cut.total, cut.ranks, t.device)
    codes = torch.zeros(cut.rows, t.shape[1], dtype=torch.uint8, device=t.device)
    mine = torch.zeros(2 + blocks, -(-t.shape[1] // 128), dtype=torch.float32, device=t.device)
    mine[0], mine[1] = _largest(t[:head])[0], _largest(t[count - tail:])[0]
    if head + tail < count:
        q, s = _codes_of(t[head:count - tail])
        codes[head:count - tail], mine[2:2 + s.shape[0]] = q.view(torch.uint8), s
    every = gathered(mine, group)
    largest = torch.cat((every[:, :2].flatten(0, 1), every.new_zeros(1, mine.shape[1])))[of_parts].amax(1)
    scales = torch.cat((_codes_of(_spread(largest, t), "row128")[1].t(), every[:, 2:].flatten(0, 1)))[of_blocks]
    for a, b, block in ((0, head, first // 128), (count - tail, count, end // 128)):
        if a < b:
            q, _ = _codes_of(torch.cat((t[a:b], _spread(largest[place[block]][None], t))))
            codes[a:b] = q.view(torch.uint8)[:b - a]
    return codes, scales.contiguous()


class GatheredWeight(torch.Tensor):
    """A whole weight that is there as codes and scales of blocks of 128 x 128 only; Fp8Linear takes them. Any other op sees code
    times scale."""

    @staticmethod
    def __new__(cls, codes, scales, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, codes.size(), strides=codes.stride(), dtype=dtype, device=codes.device)

    def __init__(self, codes, scales, dtype):
        self.bytes, self.scales = codes, scales

    def __tensor_flatten__(self):
        return ["bytes", "scales"], self.dtype

    @staticmethod
    def __tensor_unflatten__(inner, dtype, size, stride):
        return GatheredWeight(inner["bytes"], inner["scales"], dtype)

    def __repr__(self):
        return f"GatheredWeight({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        t = args[0]
        if func is aten.detach.default or func is aten.as_strided.default and tuple(args[1]) == tuple(t.shape):
            return cls(t.bytes, t.scales, t.dtype)
        args, kwargs = torch.utils._pytree.tree_map_only(cls, cls.plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    def plain(self):
        scale = self.scales.repeat_interleave(128, 0)[:self.shape[0]].repeat_interleave(128, 1)[:, :self.shape[1]]
        return (self.codes().float() * scale).to(self.dtype)

    def codes(self):
        return self.bytes.view(torch.float8_e4m3fn)

    def transposed(self):
        """Codes (uint8) and scales of the transpose."""
        codes, scales = ops.transpose_fp8(_on_tensors, self.codes(), self.scales)
        return codes.view(torch.uint8), scales


class GatheredLinear(torch.autograd.Function):
    """Fp8LinearFunction with a GatheredWeight: its transpose is made in backward, from what is gathered again there."""

    @staticmethod
    def forward(ctx, x, weight, bias, gradient_dtype, wgrad, main_grad):
        same_device(x, weight.bytes, bias)
        two = x.reshape(-1, x.shape[-1])
        xq, xs, xtq, xts, _ = ops.quantize_fp8_dual(_on_tensors, two, ops.pick(L.WGRAD, wgrad, "wgrad")[0], A.E4M3, False, 0.0, False)
        ctx.save_for_backward(xtq.view(torch.uint8), xts)
        ctx.weight, ctx.rest = weight, (gradient_dtype, wgrad)
        ctx.more = main_grad, None if bias is None else bias.dtype
        return _product(xq, xs, weight, bias, x)

    @staticmethod
    @_once
    def backward(ctx, dy):
        main_grad, bias_dtype = ctx.more
        dx, dw, dbias = L.fp8_linear_gradient(dy, *ctx.saved_tensors, *ctx.weight.transposed(), *ctx.rest, ctx.needs_input_grad, main_grad)
        return (dx, None if dw is None else dw.to(ctx.weight.dtype), None if dbias is None else dbias.to(bias_dtype), *(None,) * 3)


class GatheredSwiGLULinear(torch.autograd.Function):
    """GatheredLinear of swiglu's result."""

    @staticmethod
    def forward(ctx, gate, up, weight, bias, activation, options, interleaved, gradient_dtype, wgrad, main_grad):
        same_device(gate, up, weight.bytes, bias)
        form = ops.pick(L.WGRAD, wgrad, "wgrad")[0]
        f = ops.swiglu_quantize_form(form, activation, *options, interleaved)
        hq, hs, htq, hts = ops.swiglu_quantize(_on_tensors, f, form, gate, up, interleaved, A.E4M3)
        ctx.save_for_backward(gate, up, htq.view(torch.uint8), hts)
        ctx.weight, ctx.rest = weight, (activation, options, interleaved, gradient_dtype, wgrad)
        ctx.more = main_grad, None if bias is None else bias.dtype
        return _product(hq, hs, weight, bias, gate)

    @staticmethod
    @_once
    def backward(ctx, dy):
        main_grad, bias_dtype = ctx.more
        gate, up, *codes = ctx.saved_tensors
        dgate, dup, dw, dbias = L.fp8_swiglu_linear_gradient(dy, gate, up, (*codes, *ctx.weight.transposed()), ctx.rest,
                                                             ctx.needs_input_grad, main_grad)
        return (dgate, dup, None if dw is None else dw.to(ctx.weight.dtype), None if dbias is None else dbias.to(bias_dtype),
                *(None,) * 6)


def _product(xq, xs, weight, bias, x):
    y = ops.fp8_gemm(_on_tensors, xq, xs, weight.codes(), weight.scales, "row128_blk128", dtype_number(x.dtype), bias, None)
    return y.view(*x.shape[:-1], weight.shape[0])


@torch.compiler.disable
def gathered_linear(*args):
    """Under torch.compile these run as they are, between what is compiled."""
    return GatheredLinear.apply(*args)


@torch.compiler.disable
def gathered_swiglu_linear(*args):
    return GatheredSwiGLULinear.apply(*args)

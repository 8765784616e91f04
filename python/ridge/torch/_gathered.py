"""_gathered.py: weights of Fp8Linear that FSDP2 gathers as FP8 codes: what the rank's shard is, what the gathered weight is, and
the products with it."""
import warnings

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
        """(codes, scales) of the shard; the shard itself where the ranks have not as many rows each."""
        t = self.inner.to(mp_policy.param_dtype or self.inner.dtype)
        if outer_size[0] % mesh.size():
            _say_once(outer_size, mesh.size())
            rows = -(-outer_size[0] // mesh.size())
            if t.shape[0] < rows:  # FSDP2 gathers padded shards, and takes nothing beside them
                t = torch.cat((t, t.new_zeros(rows - t.shape[0], *t.shape[1:])))
            return (t.contiguous(),), None
        cut = _Cut(outer_size[0], mesh.size(), mesh.get_local_rank())
        codes, scales = _quantised_part(t, cut, mesh.get_group()) if cut.rows % 128 else _codes_of(t)
        return (codes.view(torch.uint8).contiguous(), scales.contiguous()), cut

    def fsdp_post_all_gather(self, outputs, cut, param_dtype, *, out=None):
        tables = cut and cut.rows % 128
        if out is not None:  # the memory of the first time, which FSDP2 has filled again
            if tables:
                out.scales.copy_(outputs[1].index_select(0, cut.tables(outputs[1].device)))
            return None
        if cut is None:
            return outputs[0], outputs
        scales = outputs[1].index_select(0, cut.tables(outputs[1].device)) if tables else outputs[1]
        return GatheredWeight(outputs[0], scales, param_dtype), outputs


_said = set()


def _say_once(size, ranks):
    if (tuple(size), ranks) not in _said:
        _said.add((tuple(size), ranks))
        warnings.warn(f"ridge: gather_fp8: the rows of a weight of {list(size)} are no multiple of {ranks} ranks: it is gathered as it is",
                      stacklevel=2)


class _Cut:
    """A weight of whose rows each rank has as many, which may be a part of a block of 128."""

    def __init__(self, total, ranks, rank):
        self.total, self.ranks, self.rank, self.rows, self._tables = total, ranks, rank, total // ranks, None

    def parts(self, rank):
        """The blocks that begin or end on another rank: of rank's first rows, and of its last; -1 where there is none."""
        first, end = rank * self.rows, (rank + 1) * self.rows
        return first // 128 if first % 128 else -1, end // 128 if end % 128 else -1

    def tables(self, device):
        """The row of the gathered tables that has the scales of each block: that of the rank with its first row."""
        if self._tables is None:
            of = [(block * 128) // self.rows for block in range(-(-self.total // 128))]
            self._tables = torch.tensor([r * self.table_rows() + block - r * self.rows // 128 for block, r in enumerate(of)], device=device)
        return self._tables

    def table_rows(self):
        return self.rows // 128 + 2


def _codes_of(t):
    return ops.quantize_fp8(_on_tensors, t, "blk128", A.E4M3, False, 0.0, None, False)[:2]


def _largest(t):
    """Of the columns of each block, [1, ceil(cols/128)]; 0 of no rows."""
    columns = torch.nn.functional.pad(t.abs().amax(0, keepdim=True) if len(t) else t.new_zeros(1, t.shape[1]), (0, -t.shape[1] % 128))
    return columns.view(1, -1, 128).amax(2)


def _quantised_part(t, cut, group):
    """Codes [rows, cols] of a shard that cuts through blocks of 128 rows, and the scales of the blocks, zeros behind them. The ranks
    tell each other the largest magnitudes of their parts of such blocks, which a part then has in a row of its own while it is
    quantised: so its codes and scales are those of the whole block."""
    first, end = cut.rank * cut.rows, (cut.rank + 1) * cut.rows
    head = min(-first % 128, cut.rows)  # rows of a block that begins on another rank
    tail = end - max(first + head, end // 128 * 128)  # of one that ends there
    parts = torch.cat((_largest(t[:head] if head else t[:0]), _largest(t[len(t) - tail:] if tail else t[:head])))
    every = gathered(parts.contiguous(), group)
    codes = torch.zeros(cut.rows, t.shape[1], dtype=torch.uint8, device=t.device)
    scales = torch.zeros(cut.table_rows(), parts.shape[1], dtype=torch.float32, device=t.device)

    def put(a, b, largest):
        """Quantises rows a to b."""
        if a == b:
            return
        x = t[a:b]
        if largest is not None:
            more = torch.zeros(1, largest.shape[0] * 128, dtype=t.dtype, device=t.device)
            more[0, ::128] = largest
            x = torch.cat((x, more[:, :t.shape[1]]))
        q, s = _codes_of(x)
        codes[a:b] = q.view(torch.uint8)[:b - a]
        at = (first + a) // 128 - first // 128
        scales[at:at + s.shape[0]] = s

    def of_block(block):
        return torch.stack([every[r, k] for r in range(cut.ranks) for k in range(2) if cut.parts(r)[k] == block]).amax(0)

    put(0, head, of_block(first // 128) if head else None)
    put(head, cut.rows - tail, None)
    put(cut.rows - tail, cut.rows, of_block(end // 128) if tail else None)
    return codes, scales


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

"""_fsdp.py: what FSDP2 gathers and adds: weights as FP8 codes, gradients in the order of the ranks. Public in distributed.py."""
import torch
import torch.distributed as dist
from torch import Tensor

from .. import _ops as ops
from .._core import ArgumentError
from ._arrays import Arrays
from ._collectives import transposed
from ._gathered import ShardWeight
from .nn import Fp8Linear

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter as _REDUCE_SCATTER
except ImportError:  # an older PyTorch
    _REDUCE_SCATTER = object  # type: ignore[assignment,misc]


def gather_fp8(module: torch.nn.Module) -> None:
    """Before fully_shard: the weights of the Fp8Linears in `module` are then gathered as FP8 codes with their scales, 1.0003
    bytes an element, and not in 16 bits. Results keep their bits: a shard that ends with a block of 128 rows is quantised as the
    whole weight would be, from param_dtype of fully_shard's mixed precision. Where the rows are no multiple of 128 times the
    ranks, the ranks tell each other scales and largest magnitudes by one small all_gather more a weight. torch.compile leaves
    these layers out. Not with reshard_after_forward to fewer ranks."""
    new: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for m in module.modules():
        if isinstance(m, Fp8Linear) and type(m.weight) is torch.nn.Parameter and not isinstance(m.weight.data, ShardWeight):
            if m.weight.device.type != "meta" and type(m.weight.data) is not Tensor:
                raise ArgumentError(f"gather_fp8: a weight is a {type(m.weight.data).__name__} already: call it before fully_shard")
            if m.weight not in new:
                new[m.weight] = torch.nn.Parameter(ShardWeight(m.weight.data), m.weight.requires_grad)
            m.weight = new[m.weight]
    if not new:
        raise ArgumentError("gather_fp8: no Fp8Linear with a plain weight here: call it before fully_shard")
    for name, m in module.named_modules():
        if any(p in new for p in m.parameters(recurse=False)):
            raise ArgumentError(f"gather_fp8: {name} shares its weight with an Fp8Linear")


class _OrderedReduceScatter(_REDUCE_SCATTER):
    """FSDP2's reduce-scatter as an all-to-all of the parts and their sum in the order of the ranks."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ArgumentError(f"ordered_reduce sums and averages; FSDP2 asks for {op}")
        parts = transposed(input_tensor.view(group.size(), -1), group)
        total = ops.sum_parts(Arrays(), parts)
        if op == dist.ReduceOp.AVG:
            total = total.div_(group.size())
        output_tensor.view(-1).copy_(total)


def ordered_reduce(module: torch.nn.Module) -> None:
    """Gradients of every fully_shard module in `module` are added in f32 and in the order of the ranks, whatever the dtype that
    they travel in: the same bits whatever algorithm the engine would choose. As many bytes as a reduce-scatter by a ring.
    Call it after fully_shard."""
    from torch.distributed.fsdp import FSDPModule
    found = [m for m in module.modules() if isinstance(m, FSDPModule)]
    if not found:
        raise ArgumentError("ordered_reduce: no module here is fully_shard's")
    for m in found:
        m.set_custom_reduce_scatter(_OrderedReduceScatter())
        m.set_force_sum_reduction_for_comms(True)

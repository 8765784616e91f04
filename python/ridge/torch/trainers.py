"""trainers.py: the loss heads of TRL and verl on ridge's linear_logprobs: log-probabilities and entropies without the logits.

Each of the two libraries computes them in one autograd function, which its Python module looks up by name at every call. A
patch puts an object there whose apply() is ridge's. A call that ridge has no kernel for goes to the library's own function.
"""
from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from . import _logprobs, linear_cross_entropy_stats
from .._core import ArgumentError, UnsupportedError
from ._arrays import NUMBERS, autocast_dtype
from .models import Patch

TRL = ["hidden", "weight", "bias", "targets", "temperature", "chunk_size", "final_logit_softcapping", "logit_scale", "outputs"]
OPTIONAL = "entropy", "log_sum_sq_probs", "mean_logits", "is_top1"
VERL = ["hidden_states", "vocab_weights", "input_ids", "temperature", "chunk_size"]
VERL_TRITON = ["hidden", "weight", "labels", "temperature", "reduction", "dist_process_group"]


class _Instead:
    """Stands where a library has its function: ridge's, or the library's own where that one returns None."""

    def __init__(self, own, ours):
        self.own, self.ours = own, ours

    def __call__(self, *args):
        out = self.ours(*args)
        return self.own(*args) if out is None else out

    apply = __call__


def _replace(patch, library, module, name, function, parameters, ours):
    """The name of the module, which is the autograd function of the name `function` or its apply."""
    where = importlib.import_module(module)
    own = getattr(where, name, None)
    if isinstance(own, _Instead):
        raise ArgumentError(f"{library} is patched already: undo() that patch first")
    found = getattr(where, function, None)
    takes = list(inspect.signature(found.forward).parameters)[1:] if hasattr(found, "forward") else None
    if takes != parameters:
        raise UnsupportedError(f"{module}.{function} " + ("does not exist" if takes is None else f"takes {', '.join(takes)}") +
                               f" in this version of {library}: ridge knows the one that takes {', '.join(parameters)}")
    patch.set(where, name, _Instead(own if name != function else own.apply, ours))


def _operands(hidden, weight, bias=None):
    """hidden, weight and bias in the dtype in which the library multiplies them; None if ridge cannot."""
    dtype = autocast_dtype(hidden) or hidden.dtype
    if dtype not in NUMBERS or dtype is torch.float64 or hidden.device.type not in ("cpu", "cuda") or hasattr(weight, "ds_id"):
        return None  # ds_id: DeepSpeed's ZeRO-3, which has the weight only while its own function runs
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _call(three, target, entropy, softcap, temperature, argmax=False):
    """(log-probability, entropy or None, argmax or None)"""
    x, w, b = three
    with torch.autocast(x.device.type, enabled=False):
        out = _logprobs("linear_logprobs", x, w, target, b, None, -100, entropy, softcap, temperature, argmax)
    return out[0], out[1], out[3]


def _trl(hidden, weight, bias, targets, temperature, _, softcap=None, scale=1.0, outputs=OPTIONAL):
    """(log-probability, entropy, log of the sum of squared probabilities, mean logit, target is the argmax), None for what is
    not among the outputs; the first two have gradients. The logits are softcap tanh(scale hidden weight / softcap) / temperature."""
    three = _operands(hidden, weight, bias)
    if three is None or not scale > 0 or (softcap and "mean_logits" in outputs):
        return None
    softcap, temperature = (softcap or 0.0) / scale, temperature / scale  # ridge's are of logits without a scale
    top1 = "is_top1" in outputs
    logprob, entropy, argmax = _call(three, targets, "entropy" in outputs, softcap, temperature, top1)
    squares = mean = None
    with torch.no_grad():
        if "log_sum_sq_probs" in outputs:  # log sum p^2 = log sum e^2z - 2 lse; 2z is what half the temperature gives
            twice = linear_cross_entropy_stats(*(t.detach() for t in three[:2]), targets, None if bias is None else three[2].detach(),
                                               softcap=softcap, temperature=temperature / 2)
            squares = twice.lse - twice.target_logit + 2 * logprob
        if "mean_logits" in outputs:  # the mean of products is the product with the mean
            mean = three[0].float() @ three[1].mean(0, dtype=torch.float32)
            mean = (mean if bias is None else mean + three[2].mean(dtype=torch.float32)) / temperature
    return logprob, entropy, squares, mean, argmax == targets if top1 else None


def _verl(hidden, weight, ids, temperature=1.0, *_):
    """(log-probability, entropy), both f32."""
    three = _operands(hidden, weight)
    if three is None or not isinstance(temperature, (int, float)):
        return None
    return _call(three, ids, True, 0.0, temperature)[:2]


def _verl_triton(hidden, weight, ids, temperature=1.0, reduction="none", group=None):
    if reduction != "none" or (group is not None and torch.distributed.get_world_size(group) > 1):
        return None
    return _verl(hidden.flatten(0, -2), weight, ids.flatten(), temperature)


def patch_trl() -> Patch:
    """TRL's trainers (SFT, DPO, KTO, GRPO, RLOO and async GRPO; written for TRL 1.16) take their log-probabilities and entropies
    from ridge, in the whole process, whether a trainer is made before or after. Returns a Patch: undo() takes it back.

    It is the function of TRL's fused head; trainers that make logits (ORPO, CPO) and the distillation trainers, whose teacher
    has a head of its own, stay as they are. TRL's own function goes on where ridge has no kernel: float64, a head under
    DeepSpeed's ZeRO-3, and the mean logit of a model with a softcap (which DPO and KTO ask for).
    """
    patch = Patch()
    _replace(patch, "TRL", "trl.trainer.utils", *("_ChunkedLogProbFunction",) * 2, TRL, _trl)
    return patch


def patch_verl() -> Patch:
    """verl's fused heads (`use_fused_kernels`, backends "torch" and "triton"; written for verl 0.9) take log-probabilities and
    entropies from ridge, in the whole process: call it in every worker. Returns a Patch: undo() takes it back.

    The entropy is f32, where the "torch" backend rounds it to the logits' dtype. Megatron's vocabulary-parallel head stays verl's.
    """
    patch = Patch()
    try:
        _replace(patch, "verl", "verl.utils.experimental.torch_functional", *("FusedLinearForPPOFunction",) * 2, VERL, _verl)
        _replace(patch, "verl", "verl.utils.kernel.linear_cross_entropy", "linear_cross_entropy", "LinearCrossEntropy", VERL_TRITON,
                 _verl_triton)
    except Exception:
        patch.undo()
        raise
    return patch

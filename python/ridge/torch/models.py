"""models.py: exchanges parts of a Hugging Face model for ridge's, in place.

A module's forward is replaced on the instance, by functools.partial of a function of this file: it is pickled and copied with
the model, and looks at the model as it is when it is called. Where it finds what it does not know exactly, the model's own
forward runs."""
from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from . import linear_cross_entropy, rms_norm, rope, swiglu, swiglu_linear
from .._core import ArgumentError
from ._arrays import compiling
from .nn import Fp8Linear

# Model types whose MLP is down(act(gate) * up) and whose loss is the cross entropy of lm_head(model(..)), times the factor and
# within the softcap that _logits knows. A test compares each with its own forward.
DENSE = ("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "granite", "cohere", "cohere2",
         "olmo", "olmo2", "olmo3", "smollm3", "glm", "glm4", "exaone4")
MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "olmoe", "granitemoe")  # plus the router's loss; their experts stay
# How those pair the elements that RoPE turns; the others have a form of their own.
PAIRS = {**dict.fromkeys(("cohere", "cohere2", "glm", "glm4"), "adjacent"),
         **{kind: "halves" for kind in DENSE + MOE if kind not in ("gemma3_text", "gpt_oss", "olmo3", "cohere", "cohere2", "glm", "glm4")}}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu",
               "relu2": "relu2"}


def _table(module: Any, name: str) -> dict:
    children = getattr(module, "_modules", {})
    return children if name in children else module.__dict__


class Patch:
    """What apply_ridge_to and swap_linear did to a model; undo() takes it back. Also a context manager. It may be pickled
    together with the model, as one object."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, str, object]] = []

    def set(self, module: Any, name: str, value: object) -> None:
        """An attribute of the instance, or a child module."""
        table = _table(module, name)
        self.steps.append((module, name, table.get(name)))
        table[name] = value

    def undo(self) -> None:
        for module, name, before in reversed(self.steps):
            table = _table(module, name)
            if before is None:
                table.pop(name, None)
            else:
                table[name] = before
        self.steps = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def _ours(module):
    """What apply_ridge_to set as the instance's forward: the function's name, or None."""
    forward = module.__dict__.get("forward")
    return forward.func.__name__ if isinstance(forward, functools.partial) and forward.func.__module__ == __name__ else None


def _hooked(module):
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def _plain(linear, kind=torch.nn.Linear):
    """Nothing but its parameters: calling it is calling F.linear (or, of kind Fp8Linear, what that does) with them."""
    return (type(linear) is kind and not _hooked(linear) and ("forward" not in linear.__dict__ or _ours(linear) is not None) and
            type(linear.weight) in (torch.Tensor, torch.nn.Parameter))


def _class_of(module):
    """The class whose forward it has: not FSDP2's, which it makes of that one."""
    return next(cls for cls in type(module).__mro__ if "forward" in vars(cls))


def _defined_by_transformers(module):
    """The forward of its class is Hugging Face's own: no subclass's, no remote code's."""
    return _class_of(module).__module__.startswith("transformers.models.")


# ---------------------------------------------------------------------------------------------------------------- MLP


def _mlp_forward(self, x, *, activation):
    gate, up = (self.gate_up_proj(x), None) if hasattr(self, "gate_up_proj") else (self.gate_proj(x), self.up_proj(x))
    down = self.down_proj
    if _plain(down, Fp8Linear):
        return down.swiglu(gate, up, activation=activation)
    if _plain(down):
        return swiglu_linear(gate, up, down.weight, down.bias, activation=activation)
    return down(swiglu(gate, up, activation=activation))


def _is_mlp(module):
    names = [name for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
             if isinstance(getattr(module, name, None), torch.nn.Module)]
    return names in (["gate_proj", "up_proj", "down_proj"], ["gate_up_proj", "down_proj"]) and hasattr(module, "config")


def _patch_mlp(patch, module):
    name = getattr(module.config, "hidden_act", None) or getattr(module.config, "hidden_activation", None)
    if name not in ACTIVATIONS:
        raise ArgumentError(f"the MLPs' activation is {name!r}, not one of {', '.join(ACTIVATIONS)}")
    patch.set(module, "forward", functools.partial(_mlp_forward, module, activation=ACTIVATIONS[name]))


# --------------------------------------------------------------------------------------------------------------- norm
# Hugging Face's three forms: weight + 1 ("gemma"); the product rounded to x's dtype ("rounded"); the product in the dtype
# of both ("llama"). Two of them round before the weight too: ridge rounds once, at the end.


def _norm_forward(self, x, *, form):
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return type(self).forward(self, x)
    if form == "gemma":
        return rms_norm(x, 1.0 + self.weight.float(), self.eps)
    out = x.dtype if form == "rounded" else torch.promote_types(x.dtype, self.weight.dtype)
    return rms_norm(x, self.weight, self.variance_epsilon, out_dtype=out)


def _is_norm(module):
    cls = _class_of(module)
    return (cls.__name__.endswith("RMSNorm") and isinstance(getattr(module, "weight", None), torch.Tensor) and
            cls.__module__.startswith("transformers.models.") and
            (cls.__name__.startswith("Gemma") if hasattr(module, "eps") else hasattr(module, "variance_epsilon")))


def _patch_norm(patch, module):
    name = _class_of(module).__name__
    form = "gemma" if hasattr(module, "eps") else "rounded" if name.startswith(("GptOss", "Olmo")) else "llama"
    patch.set(module, "forward", functools.partial(_norm_forward, module, form=form))


# --------------------------------------------------------------------------------------------------------------- RoPE
# The model's rotary module gives every layer (cos, sin), and the layers' attention calls apply_rotary_pos_emb of its Python
# module with them. The patched one gives (positions, frequencies) instead, and that function, which is replaced once for all
# models, takes either.


def _rotate(q, k, cos, sin, *more, own, pairs, **options):
    """apply_rotary_pos_emb: own is Hugging Face's."""
    if cos.is_floating_point():
        return own(q, k, cos, sin, *more, **options)
    turned = []
    for x in (q, k):  # [batch, heads, tokens, head_dim]
        x = x.transpose(1, 2)
        turned.append(rope(x, cos.expand(x.shape[:2]), sin, pairs=pairs).transpose(1, 2))
    return tuple(turned)


class _Rotates:
    """Holds that the Python module of a model has _rotate; made again where the model is loaded."""

    def __init__(self, name: str, pairs: str) -> None:
        self.name, self.pairs = name, pairs
        self.__setstate__(self.__dict__)

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        module = importlib.import_module(self.name)
        own = module.apply_rotary_pos_emb
        if getattr(own, "func", None) is not _rotate:
            module.apply_rotary_pos_emb = functools.partial(_rotate, own=own, pairs=self.pairs)


def _rotary_forward(self, x, position_ids, *, rotates):
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return type(self).forward(self, x, position_ids)
    return position_ids, self.inv_freq.double()


def _is_rotary(module):
    """Of a table of frequencies that stays as it is, and without a factor."""
    cls = type(module)
    return (cls.__name__.endswith("RotaryEmbedding") and _defined_by_transformers(module) and
            list(inspect.signature(cls.forward).parameters) == ["self", "x", "position_ids"] and
            getattr(module, "rope_type", "") in ("default", "linear", "llama3") and module.attention_scaling == 1.0 and
            hasattr(sys.modules[cls.__module__], "apply_rotary_pos_emb"))


def _patch_rope(patch, module, pairs):
    rotates = _Rotates(type(module).__module__, pairs)
    patch.set(module, "forward", functools.partial(_rotary_forward, module, rotates=rotates))


# --------------------------------------------------------------------------------------------------------------- loss


def _logits(model):
    """What the model does to the head's product, as options of linear_cross_entropy."""
    scaling, scale = getattr(model.config, "logits_scaling", None), getattr(model.config, "logit_scale", None)
    return {"temperature": float(scaling) if scaling else 1 / float(scale) if scale else 1.0,
            "softcap": getattr(model.config, "final_logit_softcapping", None) or 0.0}


def _head_forward(self, input, target=None, **options):
    """A linear layer that can also give the loss, within its own call: there FSDP2 has gathered its weight."""
    if target is None:
        return torch.nn.functional.linear(input, self.weight, self.bias)
    return linear_cross_entropy(input, self.weight, target, self.bias, **options)


def _is_unit(linear):
    """fully_shard was called on it: its class is made of FSDPModule and Linear, and its hooks are FSDP's two."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return (fsdp is not None and type(linear).__mro__[1:3] == (fsdp, torch.nn.Linear) and _ours(linear) == "_head_forward" and
            len(linear._forward_hooks) <= 1 and len(linear._forward_pre_hooks) <= 1 and
            not linear._backward_hooks and not linear._backward_pre_hooks)


_warned = weakref.WeakSet()


def _why_own_loss(model):
    """Why the model's loss must come from its own logits, or None."""
    head = model.lm_head
    if not _plain(head) and not _is_unit(head):
        return (f"lm_head is not a plain torch.nn.Linear any more (a {type(head).__name__} whose weight is a "
                f"{type(getattr(head, 'weight', None)).__name__}, {'with' if _hooked(head) else 'without'} hooks)")
    if getattr(model.loss_function, "__name__", "") != "ForCausalLMLoss":
        return "its loss_function is not Hugging Face's ForCausalLMLoss"
    return None


def _causal_forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                    labels=None, use_cache=None, logits_to_keep=0, *, output, **kwargs):
    """The model's own forward, but with labels in training the loss comes without logits (which are None), in an object of
    the class `output`."""
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
              "past_key_values": past_key_values, "inputs_embeds": inputs_embeds, "use_cache": use_cache}
    lazy = (self.training and labels is not None and isinstance(logits_to_keep, int) and logits_to_keep == 0 and
            kwargs.get("return_dict", getattr(self.config, "return_dict", True)) is not False)
    why = _why_own_loss(self) if lazy else None
    if why and not compiling() and self not in _warned:
        _warned.add(self)
        warnings.warn(f"ridge: the loss of this {type(self).__name__} is made from logits, by the model itself: {why}", stacklevel=3)
    if not lazy or why:
        return type(self).forward(self, **inputs, labels=labels, logits_to_keep=logits_to_keep, **kwargs)
    moe = self.config.model_type in MOE
    if moe and kwargs.get("output_router_logits") is None:
        kwargs["output_router_logits"] = self.config.output_router_logits
    out = self.model(**inputs, **kwargs)
    loss = _loss(self, out.last_hidden_state, labels, **kwargs)
    rest = {"logits": None, "past_key_values": out.past_key_values, "hidden_states": out.hidden_states,
            "attentions": out.attentions}
    if not moe:
        return output(loss=loss, **rest)
    aux_loss = None
    if kwargs["output_router_logits"]:
        balance = sys.modules[_class_of(self).__module__].load_balancing_loss_func
        aux_loss = balance(out.router_logits, self.num_experts, self.num_experts_per_tok, attention_mask)
        loss = loss + self.router_aux_loss_coef * aux_loss.to(loss.device)
    return output(loss=loss, aux_loss=aux_loss, router_logits=out.router_logits, **rest)


def _loss(model, hidden, labels, num_items_in_batch=None, shift_labels=None, ignore_index=-100, **_):
    """As ForCausalLMLoss: the mean over the labels, NaN where there is none; or the sum over num_items_in_batch."""
    if shift_labels is None:  # token t predicts token t + 1; the last one of each row predicts nothing
        shift_labels = torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)
    options = {"ignore_index": ignore_index, **_logits(model), "reduction": "mean" if num_items_in_batch is None else "sum",
               "nan_if_empty": num_items_in_batch is None}
    target, head = shift_labels.to(hidden.device), model.lm_head
    if _plain(head):
        loss = linear_cross_entropy(hidden, head.weight, target, head.bias, **options)
    else:
        loss = head(hidden, target=target, **options)
    if num_items_in_batch is not None:
        loss = loss / (num_items_in_batch.to(loss.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch)
    return loss


def _patch_loss(patch, model):
    if not hasattr(model, "model") or not isinstance(getattr(model, "lm_head", None), torch.nn.Module):
        raise ArgumentError(f"{type(model).__name__} is not a causal language model (model and lm_head): loss=False leaves its "
                            "loss alone")
    if not _defined_by_transformers(model):
        raise ArgumentError(f"{type(model).__name__} has a forward of its own, whose loss ridge does not know: loss=False leaves "
                            "it alone")
    head = model.lm_head
    if issubclass(type(head), torch.nn.Linear) and "forward" not in head.__dict__:
        patch.set(head, "forward", functools.partial(_head_forward, head))
    from transformers import modeling_outputs  # here: torch.compile refuses to import a module that loads lazily
    moe = model.config.model_type in MOE
    output = modeling_outputs.MoeCausalLMOutputWithPast if moe else modeling_outputs.CausalLMOutputWithPast
    patch.set(model, "forward", functools.partial(_causal_forward, model, output=output))


# ------------------------------------------------------------------------------------------------------------ the whole


def _unwrapped(model):
    """The Hugging Face model within PEFT's, torch.compile's or DistributedDataParallel's."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model


def _take(patch, module, function):
    """function(patch, module) sets the module's forward, unless it is set already."""
    if _ours(module) is not None:
        raise ArgumentError(f"this {type(module).__name__} is patched already: undo() that patch first")
    if "forward" in module.__dict__:
        raise ArgumentError(f"this {type(module).__name__} has a forward on the instance, by accelerate's hooks perhaps: patch the "
                            "model before they are added")
    function(patch, module)


def apply_ridge_to(model: torch.nn.Module, *, mlp: bool = True, norm: bool = True, rope: bool = True,
                   loss: bool = True) -> Patch:
    """Ridge's SwiGLU in the MLPs, its RMSNorm, its RoPE and its linear cross entropy for the loss of a Hugging Face causal
    language model, in place, by its config's model_type: models.DENSE and models.MOE (of a mixture: norms, RoPE, shared or
    dense MLPs, and the loss with the router's; the experts stay). Returns a Patch: undo() restores the model.

    RoPE's angles are then made in float64 and its rotation in f32, where Hugging Face rounds cos and sin to the activations'
    dtype. Frequencies that depend on the length, and YaRN's factor, stay the model's own.

    In training with labels the output's logits are then None, and the loss is the model's own: its softcap and scaling, NaN
    where every label is ignored. PEFT adapters and fully_shard may be applied before or after. Whenever lm_head is not
    exactly a torch.nn.Linear (an adapter, hooks, a sharded or quantised weight) the model's own forward makes the loss, and a
    warning says so once; FSDP2's fully_shard(lm_head) needs no such thing.
    """
    model, patch = _unwrapped(model), Patch()
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in DENSE + MOE:
        raise ArgumentError(f"{type(model).__name__} is no Hugging Face model of a type that ridge knows (config.model_type is "
                            f"{kind!r}): {', '.join(DENSE + MOE)}")
    try:
        if mlp:
            found = [module for module in model.modules() if _is_mlp(module)]
            for module in found:
                if not _defined_by_transformers(module):
                    raise ArgumentError(f"the MLP {type(module).__name__} has a forward of its own: mlp=False leaves it alone")
                _take(patch, module, _patch_mlp)
            if not found and kind in DENSE:
                raise ArgumentError(f"{type(model).__name__} has no MLP with gate_proj, up_proj and down_proj")
        for module in filter(_is_norm, model.modules()) if norm else ():
            _take(patch, module, _patch_norm)
        for module in filter(_is_rotary, model.modules()) if rope and kind in PAIRS else ():
            _take(patch, module, functools.partial(_patch_rope, pairs=PAIRS[kind]))
        if loss:
            _take(patch, model, _patch_loss)
    except ArgumentError:
        patch.undo()
        raise
    return patch


patch_llama = apply_ridge_to  # its first name


def swap_linear(model: torch.nn.Module, *, exclude: Sequence[str] = ("lm_head",), gradient_dtype: str = "e4m3",
                wgrad: str = "blk128") -> Patch:
    """Every torch.nn.Linear of the model becomes an Fp8Linear with the same parameters, in place, but for those whose
    name ends in one of `exclude`. Returns a Patch."""
    patch = Patch()
    for name, module in list(model.named_modules()):
        for child, linear in list(module._modules.items()):
            full = f"{name}.{child}".lstrip(".")
            if type(linear) is torch.nn.Linear and not any(full == e or full.endswith("." + e) for e in exclude):
                patch.set(module, child, Fp8Linear.from_linear(linear, gradient_dtype=gradient_dtype, wgrad=wgrad))
    return patch

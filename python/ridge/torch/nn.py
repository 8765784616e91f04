"""nn.py: the layers."""
from __future__ import annotations

import os
import weakref
from typing import Optional, Union

import torch
from torch import Tensor

from .. import _abi as A
from .. import _ops as ops
from .._core import ArgumentError
from . import _library as L
from ._arrays import autocast_dtype, needs_grad, plain, tell_dtensor
from ._functions import Fp8LinearFunction, Fp8SwiGLULinearFunction
from ._gathered import GatheredWeight, gathered_linear, gathered_swiglu_linear
from ._plans import Planned

q8_0_planes = Planned(lambda xp, x, w, scales, dtype: L.q8_0_matmul(xp, x, w, scales, dtype or x.dtype),
                      lambda args, *tensors: None)  # with a gradient: by the dispatcher


class Fp8Linear(torch.nn.Linear):
    """torch.nn.Linear whose three products (forward, dX, dW) run in FP8, with scales for every 128 of the contraction.

    The weight stays as it is (bf16 or f32) and is quantised in each call; each operand is read once for both of its forms.
    Without a gradient its codes are kept until it changes; a change that autograd does not see (through .data) shows after
    the next train() or eval().
    gradient_dtype: "e4m3" or "e5m2". wgrad: the input's scales in the weight's gradient, "blk128" (one for 128 tokens of 128
    features) or "row128" (one for 128 tokens of each feature: 0.1 to 0.7 dB more exact, that product a third slower). A weight
    with an attribute main_grad (f32, its shape) gets its gradient added to that, and .grad stays None; eager mode only.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Union[torch.device, str, int, None] = None,
                 dtype: Optional[torch.dtype] = None, *, gradient_dtype: str = "e4m3", wgrad: str = "blk128") -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._settle(gradient_dtype, wgrad)

    def _settle(self, gradient_dtype, wgrad):
        ops.pick(L.FORMATS, gradient_dtype, "gradient_dtype")
        ops.pick(L.WGRAD, wgrad, "wgrad")
        self.gradient_dtype, self.wgrad, self._codes = gradient_dtype, wgrad, None

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, *, gradient_dtype: str = "e4m3", wgrad: str = "blk128") -> Fp8Linear:
        """The same parameters (not copies) in an Fp8Linear."""
        self = cls.__new__(cls)
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.training = linear.training
        self._settle(gradient_dtype, wgrad)
        return self

    def forward(self, x: Tensor) -> Tensor:
        self._takes(x.shape[-1:], x)
        (x,), weight, bias, main_grad, here = self._parts(x)
        if not needs_grad(x, weight, bias):
            return self._infer(x, weight, bias, here)
        if here or isinstance(weight, GatheredWeight):
            function = Fp8LinearFunction.apply if here else gathered_linear
            return function(x, weight, bias, self.gradient_dtype, self.wgrad, main_grad)
        if main_grad is not None:
            raise ArgumentError("Fp8Linear with main_grad works in eager mode only")
        return torch.ops.ridge.fp8_linear(x, weight, bias, self.gradient_dtype, self.wgrad)[0]

    def swiglu(self, gate: Tensor, up: Optional[Tensor] = None, *, activation: str = "silu", gate_mul: float = 1.0,
               down_mul: float = 1.0, alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0,
               interleaved: bool = False) -> Tensor:
        """self(swiglu(gate, up, ...)), quantised as it is made: the activation is neither written nor kept in 16 bits."""
        self._takes(gate.shape[-1:] if up is not None else tuple(n // 2 for n in gate.shape[-1:]), gate)
        (gate, up), weight, bias, main_grad, here = self._parts(gate, up)
        ops.numbers_only(gate_mul=gate_mul, down_mul=down_mul, alpha=alpha, up_offset=up_offset, limit=limit,
                         interleaved=interleaved)
        ops.pick(ops.ACTIVATIONS, activation, "activation")
        options = [float(v) for v in (gate_mul, down_mul, alpha, up_offset, limit)]
        if not needs_grad(gate, up, weight, bias):
            from . import swiglu
            return self._infer(swiglu(gate, up, activation=activation, gate_mul=gate_mul, down_mul=down_mul, alpha=alpha,
                                      up_offset=up_offset, limit=limit, interleaved=interleaved), weight, bias, here)
        args = gate, up, weight, bias, activation, options, interleaved, self.gradient_dtype, self.wgrad
        if here or isinstance(weight, GatheredWeight):
            return (Fp8SwiGLULinearFunction.apply if here else gathered_swiglu_linear)(*args, main_grad)
        if main_grad is not None:
            raise ArgumentError("Fp8Linear with main_grad works in eager mode only")
        return torch.ops.ridge.fp8_swiglu_linear(*args)[0]

    def _takes(self, features, x):
        if tuple(features) != (self.in_features,):
            raise ArgumentError(f"this Fp8Linear takes {self.in_features} features, not those of an input of shape {list(x.shape)}")

    def _parts(self, x, *more):
        """Inputs and bias in the dtype that autocast asks for; whether PyTorch's dispatcher can be gone past."""
        tell_dtensor()
        inputs, dtype = (x, *more), autocast_dtype(x)
        if dtype is not None:
            inputs = tuple(None if t is None else t.to(dtype) for t in inputs)
        weight, bias = self.weight, self.bias
        if bias is not None and bias.dtype not in (inputs[0].dtype, torch.float32):
            bias = bias.to(inputs[0].dtype)
        return inputs, weight, bias, getattr(weight, "main_grad", None), plain(*inputs, weight, bias)

    def _infer(self, x, weight, bias, here):
        from . import fp8_gemm, quantize_fp8
        # A parametrization's weight is a new tensor in each call, at the old one's place perhaps; one made in inference
        # mode has no version.
        state, kept = (weight.data_ptr(), weight._version) if here and not weight.is_inference() else None, self._codes
        if isinstance(weight, GatheredWeight):
            codes = weight.codes(), weight.scales
        elif state and kept and kept[0]() is weight and kept[1] == state:
            codes = kept[2]
        else:
            codes = quantize_fp8(weight.detach(), "blk128")
            if state:
                self._codes = weakref.ref(weight), state, codes
        q, s = quantize_fp8(x.reshape(-1, x.shape[-1]))
        return fp8_gemm(q, s, *codes, out_dtype=x.dtype, bias=bias).view(*x.shape[:-1], self.out_features)

    def train(self, mode: bool = True) -> Fp8Linear:
        self._codes = None
        return super().train(mode)

    def __getstate__(self):
        return {**self.__dict__, "_codes": None}


class Q8_0Linear(torch.nn.Module):
    """A linear layer with GGUF's Q8_0 weights, for text generation, and as the frozen layer of an adapter: the input has a gradient,
    weights and bias have none. A token's result is the same bits in any batch.
    """

    codes: Tensor
    scales: Tensor
    bias: Optional[Tensor]

    def __init__(self, blocks: Tensor, bias: Optional[Tensor] = None) -> None:
        """blocks: uint8 [out, in/32*34] as in a GGUF file."""
        super().__init__()
        codes, scales = torch.ops.ridge.q8_0_repack(blocks)
        self.in_features, self.out_features = codes.shape[1], codes.shape[0]
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales.view(torch.int16))  # bits of f16, so that .to(dtype) leaves them alone
        self.register_buffer("bias", None if bias is None else bias.detach())

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear) -> Q8_0Linear:
        weight = linear.weight.detach()
        return cls(torch.ops.ridge.q8_0_quantize(weight), linear.bias)

    @classmethod
    def from_gguf(cls, path: Union[str, os.PathLike[str]], name: str,
                  device: Union[torch.device, str, int, None] = None) -> Q8_0Linear:
        """The Q8_0 tensor of that name in a GGUF file."""
        from .._io import read_q8_0
        return cls(torch.from_numpy(read_q8_0(path, name)).to(device or "cpu"))

    def forward(self, x: Tensor) -> Tensor:
        two, scales = x.reshape(-1, *x.shape[-1:]), self.scales.view(torch.float16)
        out = q8_0_planes((None,), two, self.codes, scales) if two.shape[0] <= A.Q8_0_MAX_PROMPT else None
        if out is None:
            if x.dtype not in (torch.bfloat16, torch.float32) or x.shape[-1:] != (self.in_features,):
                raise ArgumentError(f"this Q8_0Linear takes bfloat16 or float32 of {self.in_features} features, not {x.dtype} of "
                                    f"shape {list(x.shape)}")
            tell_dtensor()
            out = torch.ops.ridge.q8_0_linear(two, self.codes, scales)
        out = out.view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias.to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

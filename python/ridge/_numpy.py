"""_numpy.py: the ops on numpy arrays, on the CPU. bfloat16 and fp8 are ml_dtypes' types where that is installed; without
it bf16 cannot be named and fp8 codes are uint8."""
from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np

from . import _abi as A
from . import _core
from . import _ops as ops
from ._core import ArgumentError, device

try:
    import ml_dtypes
    _SMALL = {A.BF16: np.dtype(ml_dtypes.bfloat16), A.E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
              A.E5M2: np.dtype(ml_dtypes.float8_e5m2)}
except ImportError:
    _SMALL = {A.E4M3: np.dtype(np.uint8), A.E5M2: np.dtype(np.uint8)}
_DTYPES = {A.F32: np.dtype(np.float32), A.F16: np.dtype(np.float16), A.F64: np.dtype(np.float64), A.I8: np.dtype(np.int8),
           A.U8: np.dtype(np.uint8), A.I32: np.dtype(np.int32), A.I64: np.dtype(np.int64), **_SMALL}
_NUMBERS = {dtype.name: number for number, dtype in reversed(_DTYPES.items())}
ops.REAL += (np.bool_,)
_NAMED = {"e4m3": A.E4M3, "e5m2": A.E5M2, "f32": A.F32, "f16": A.F16, "bf16": A.BF16}


def _number(dtype):
    number = _NAMED.get(dtype) if isinstance(dtype, str) else None
    try:
        number = number or _NUMBERS.get(np.dtype(dtype).name)
    except (TypeError, ValueError):
        pass
    if number not in _DTYPES or dtype is None:  # which numpy takes for float64
        raise ArgumentError(f"dtype {dtype} is none of ridge's, or needs ml_dtypes")
    return number


class _Numpy:
    codes = None  # what uint8 stands for in the call at hand, where ml_dtypes is missing

    @staticmethod
    def itemsize(t):
        return t.itemsize

    @staticmethod
    def matrix(t):
        cols = t.shape[-1]
        if t.flags.c_contiguous:
            return t, 0
        if t.ndim == 2 and t.strides[1] == t.itemsize and t.strides[0] >= cols * t.itemsize:
            return t, t.strides[0] // t.itemsize
        return np.ascontiguousarray(t), 0

    @staticmethod
    def vector(t):
        return np.ascontiguousarray(t)

    def operand(self, t, stride):
        number = _NUMBERS.get(t.dtype.name)
        if number is None:
            raise ArgumentError(f"dtype {t.dtype.name} is none of ridge's (f32, f16, bf16 and, where a function says so, codes and "
                                "indices)")
        if not t.dtype.isnative:
            raise ArgumentError(f"dtype {t.dtype.str} has another byte order than this machine")
        if number == A.U8 and self.codes:
            number = self.codes
        return t.ctypes.data, stride, number

    @staticmethod
    def empty(like, shape, dtype, ld=None):
        if dtype not in _DTYPES:
            raise ArgumentError("bf16 needs the package ml_dtypes")
        if ld is None or ld == shape[1]:
            return np.empty(shape, _DTYPES[dtype])
        return np.empty((shape[0], ld), _DTYPES[dtype])[:, :shape[1]]

    @staticmethod
    def launch(f, like, values, scratch=False):
        cpu = device("cpu")
        need = f.workspace(cpu, values) if scratch else 0
        if not need:
            return f.run(cpu, values, None, 0, None)
        memory = np.empty(need + 256, np.uint8)
        start = -memory.ctypes.data % 256
        f.run(cpu, values, memory.ctypes.data + start, need, None)


_xp = _Numpy()
Array = np.ndarray[Any, Any]


def _fp8(number):
    """The adapter for a call whose uint8 arrays are codes of that format."""
    if _DTYPES[number] != np.uint8:
        return _xp
    xp = _Numpy()
    xp.codes = number
    return xp


def _arrays(function, **arguments):
    ops.check_types((np.ndarray, np.generic), "numpy.ndarray", f"ridge.{function}", arguments)
    for name, t in arguments.items():
        if isinstance(t[0] if type(t) is tuple else t, np.ma.MaskedArray):
            raise TypeError(f"ridge.{function}: {name} is a masked array, whose mask would be ignored: pass .filled(value)")


def swiglu(gate: Array, up: Optional[Array] = None, *, activation: str = "silu", gate_mul: float = 1.0, down_mul: float = 1.0,
           alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0, round_gate: bool = False,
           row_scale: Optional[Array] = None, interleaved: bool = False) -> Array:
    """act(gate) * up over the last dimension. Without `up`, gate holds both: halves, or interleaved."""
    _arrays("swiglu", gate=gate, up=(up, None), row_scale=(row_scale, None))
    ops.numbers_only(round_gate=round_gate, interleaved=interleaved)
    f = ops.swiglu_form("swiglu_fwd", activation, gate_mul, down_mul, alpha, up_offset, limit, round_gate, False,
                        interleaved)
    return ops.swiglu_fwd(_xp, f, gate, up, row_scale, interleaved)


def swiglu_backward(dout: Array, gate: Array, up: Optional[Array] = None, *, activation: str = "silu", gate_mul: float = 1.0,
                    down_mul: float = 1.0, alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0,
                    round_gate: bool = False, row_scale: Optional[Array] = None,
                    interleaved: bool = False) -> tuple[Array, Optional[Array]]:
    """(dgate, dup); dup is None where gate holds both. round_gate rounds as PyTorch eager's backward does."""
    _arrays("swiglu_backward", dout=dout, gate=gate, up=(up, None), row_scale=(row_scale, None))
    ops.numbers_only(round_gate=round_gate, interleaved=interleaved)
    f = ops.swiglu_form("swiglu_bwd", activation, gate_mul, down_mul, alpha, up_offset, limit, False, round_gate,
                        interleaved)
    return ops.swiglu_bwd(_xp, f, dout, gate, up, row_scale, interleaved, False)[:2]


def quantize_fp8(x: Array, scale: str = "row128", dtype: Any = "e4m3", *, pow2: bool = False,
                 floor: float = 0.0) -> tuple[Array, Array]:
    """(codes, scales) of x [rows, cols]; scale: "tensor", "row", "row128" or "blk128"."""
    _arrays("quantize_fp8", x=x)
    ops.numbers_only(pow2=pow2)
    number = _number(dtype)
    return ops.quantize_fp8(_fp8(number), x, scale, number, pow2, ops.real("floor", floor), None, False)[:2]


def quantize_fp8_dual(x: Array, form: str = "row_row", dtype: Any = "e4m3", *, pow2: bool = False,
                      floor: float = 0.0) -> tuple[Array, Array, Array, Array]:
    """(codes, scales, codes of the transpose, its scales): form "row_row", "row_blk" or "blk_blk"."""
    _arrays("quantize_fp8_dual", x=x)
    ops.numbers_only(pow2=pow2)
    number = _number(dtype)
    return ops.quantize_fp8_dual(_fp8(number), x, form, number, pow2, ops.real("floor", floor), False)[:4]


def fp8_gemm(a: Array, scale_a: Array, b: Array, scale_b: Array, *, scales: str = "row128_blk128", out_dtype: Any = "f32",
             bias: Optional[Array] = None, dtype: Any = "e4m3") -> Array:
    """a [m, k] times the transpose of b [n, k], codes with their scales. `dtype` says what uint8 codes are."""
    _arrays("fp8_gemm", a=a, scale_a=scale_a, b=b, scale_b=scale_b, bias=(bias, None))
    return ops.fp8_gemm(_fp8(_number(dtype)), a, scale_a, b, scale_b, scales, _number(out_dtype), bias, None)


def gemm_fp8_grouped(a: Array, scale_a: Array, b: Array, scale_b: Array, offsets: Array, *, mode: str = "m",
                     scales: Optional[str] = None, out_dtype: Any = "f32", out: Optional[Array] = None,
                     bias: Optional[Array] = None, dtype: Any = "e4m3") -> Array:
    """A product a group (an expert). mode "m": a [m, k], b [groups, n, k], d [m, n], group g has the rows offsets[g] ..
    offsets[g + 1]; "k": a [m, k], b [n, k], d [groups, m, n], group g has those elements of k, multiples of 128, and is
    added to `out` if there is one; "masked": a [groups, m, k], of which the first offsets[g] rows count. bias [groups, n].
    `scales` as of fp8_gemm, by default "row128_blk128", mode "k": "row128_row128"; those of a by 128 x 128 need mode "k". A
    scale by tensor: of a one, of b one a group (mode "k": one); by row: of each row of a, [groups, n] of b (mode "k": also
    [groups, m] of a); "blk128" of each b. What belongs to no group of `out`, or of a result that is made here, is left as it
    was."""
    _arrays("gemm_fp8_grouped", a=a, scale_a=scale_a, b=b, scale_b=scale_b, offsets=offsets, out=(out, None), bias=(bias, None))
    d, bad = ops.gemm_fp8_grouped(_fp8(_number(dtype)), a, scale_a, b, scale_b, offsets, mode, _number(out_dtype), out, scales,
                                  bias)
    if bad[0]:
        raise ArgumentError(f"offsets of group {bad[0] - 1} decrease, reach outside, or are no multiples of 128 (mode 'k')")
    return d


def q8_0_quantize(x: Array) -> Array:
    """x [rows, cols] -> GGUF's Q8_0 blocks, uint8 [rows, cols/32*34]."""
    _arrays("q8_0_quantize", x=x)
    return ops.q8_0_quantize(_xp, x)


def q8_0_repack(blocks: Array) -> tuple[Array, Array]:
    """Blocks -> (codes int8 [rows, cols], scales float16 [rows, cols/32]), the form that kernels read fastest."""
    _arrays("q8_0_repack", blocks=blocks)
    return ops.q8_0_repack(_xp, blocks)


def q8_0_matmul(x: Array, w: Array, scales: Optional[Array] = None, *, out_dtype: Any = "f32") -> Array:
    """x [tokens, cols] times Q8_0 weights: blocks, or codes with scales."""
    _arrays("q8_0_matmul", x=x, w=w, scales=(scales, None))
    return ops.q8_0_matmul(_xp, x, w, scales, _number(out_dtype))


def rms_norm(x: Array, weight: Optional[Array] = None, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    _arrays("rms_norm", x=x, weight=(weight, None))
    return ops.rms_norm(_xp, x, weight, ops.real("eps", eps))


def rope_freqs(n_rot: int, base: float = 10000.0, *, yarn: Optional[dict[str, float]] = None) -> tuple[Array, float]:
    """(freqs, mscale) for rope: base^(-2i/n_rot), float64 [n_rot/2]; yarn: a dict with freq_scale, original_context and, where
    they are not 1, 1, 32 and 1, ext_factor, attn_factor, beta_fast and beta_slow. mscale is 1 without yarn."""
    freqs, mscale = _core.rope_freqs(ops.whole("n_rot", n_rot), ops.real("base", base), yarn)
    return np.array(freqs[:n_rot // 2]), mscale


def rope(x: Array, positions: Array, freqs: Array, *, pairs: str = "halves", inverse: bool = False, mscale: float = 1.0) -> Array:
    """x [.., heads, head_dim] with the first 2 * len(freqs) elements of each head turned by the angles positions * freqs, the
    others copied; pairs: "halves" (elements i and i + n_rot/2, Hugging Face) or "adjacent" (2i and 2i + 1)."""
    _arrays("rope", x=x, positions=positions, freqs=freqs)
    ops.numbers_only(inverse=inverse)
    return ops.rope(_xp, x, positions, freqs, pairs, inverse, ops.real("mscale", mscale))


def linear_cross_entropy(x: Array, weight: Array, target: Array, *, bias: Optional[Array] = None,
                         class_weight: Optional[Array] = None, ignore_index: int = -100, reduction: str = "mean",
                         label_smoothing: float = 0.0, softcap: float = 0.0, temperature: float = 1.0,
                         lse_square_scale: float = 0.0,
                         gradients: bool = False) -> Union[Array, tuple[Array, Array, Array]]:
    """The loss of softmax(x weight^T + bias) at the targets; with gradients=True (loss, dx, dweight) of its mean or
    sum. x [tokens, hidden], weight [vocab, hidden], target int32 or int64."""
    _arrays("linear_cross_entropy", x=x, weight=weight, target=target, bias=(bias, None),
            class_weight=(class_weight, None))
    options = {"label_smoothing": label_smoothing, "softcap": softcap, "temperature": temperature,
               "lse_square_scale": lse_square_scale}
    ops.numbers_only(gradients=gradients)
    p = ops.CeProblem(_xp, x, weight, target, bias, class_weight, reduction, False, (
        ("ignore_index", ops.whole("ignore_index", ignore_index)), *((name, ops.real(name, v)) for name, v in options.items())))
    if gradients:
        if reduction == "none":
            raise ArgumentError("gradients of reduction 'none' are not one pair: each row's loss has its own. Use 'mean' or 'sum'")
        return ops.linear_ce_train(p, True, True, False)[:3]
    return ops.linear_ce_eval(p)[0]

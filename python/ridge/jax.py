"""ridge.jax: ridge's kernels as JAX functions with gradients, on the CPU and on CUDA: jit, grad, vmap (one call after another),
CUDA graphs. Calls go through jax.ffi to one C handler (python/jax_ffi.c); no build against jaxlib.

Shapes, dtypes and options are checked when a function is traced and raise ridge's exceptions.
"""
from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Optional

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from . import _abi as A
from . import _core
from . import _experts as X
from . import _ops as ops
from ._core import ArgumentError

_DTYPES = {A.F32: jnp.float32, A.F64: jnp.float64, A.F16: jnp.float16, A.BF16: jnp.bfloat16, A.I32: jnp.int32, A.I64: jnp.int64,
           A.U8: jnp.uint8, A.E4M3: jnp.float8_e4m3fn, A.E5M2: jnp.float8_e5m2}
_NUMBERS = {jnp.dtype(dtype): number for number, dtype in _DTYPES.items()}


# What an exported program names: a call's bytes mean the same in this version of the library only.
TARGET = f"ridge_call_{'_'.join(map(str, A.VERSION))}"


def _register():
    path = os.path.join(os.path.dirname(_core.library_path), "libridge_jax.so")
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"ridge.jax: {path} was not found or does not load ({error}); `pip install .` builds it") from None
    for platform in ("cpu", "CUDA"):
        handler = getattr(lib, f"ridge_jax_{platform.lower()}")
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)
    return lib


_lib = _register()


@functools.lru_cache(maxsize=None)
def _cuda():
    """ridge's first CUDA device if JAX has one, all of JAX's opened for the handler; else None."""
    try:
        count = len(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return None
    for ordinal in range(count):
        _core.check(_lib.ridge_jax_open(ordinal))
    return _core.device("cuda:0")


def export(function: Any, **options: Any) -> Any:
    """jax.export.export(function, ...) of a jitted function that calls ridge's: JAX refuses custom calls that it does not know.

    The exported program runs where this version of ridge.jax is imported, and on the kind of device that was traced for: the
    workspace of each call is part of it."""
    checks = [*options.pop("disabled_checks", ()), jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    return jax.export.export(function, disabled_checks=checks, **options)


def _number(t):
    number = _NUMBERS.get(jnp.dtype(t.dtype))
    if number is None:
        raise ArgumentError(f"dtype {t.dtype} is none of ridge's")
    return number


def _options(**values):
    """Options as a static argument, floats as text: JAX's caches would take 0.0 and -0.0, which are equal, for one."""
    return tuple((name, v if isinstance(v, int) else v.hex()) for name, v in values.items())


def _call(op, flags, options, dims, operands, results, scratch=False, **scaling):
    """operands: {slot name: array}, results: {slot name: ShapeDtypeStruct}; gives the results in order. scaling: of matrices
    with scales, by name."""
    slots, options = A.SLOTS[op], {name: v if isinstance(v, int) else float.fromhex(v) for name, v in options}
    template = _core.new_call(op, flags, options, scaling=scaling)
    template.dim[:len(dims)] = dims
    probe = _core.Call.from_buffer_copy(template)
    for i, (name, t) in enumerate((*operands.items(), *results.items())):
        # Addresses that nothing dereferences, far from one another: validation wants some.
        probe.arg[slots[name]] = _core.Operand(i + 1 << 42, 0, _number(t), 0)
    order = [slots[name] for name in (*operands, *results)]

    def on(device):
        try:
            need = device.workspace_bytes(probe)  # also validates
        except _core.UnsupportedError:
            if device is _core.device("cpu"):
                raise
            need = 0  # this trace may be for the CPU: the call itself refuses, with the same text
        out, at = list(results.values()), list(order)
        if scratch and need:
            out.append(jax.ShapeDtypeStruct((need + 256,), jnp.uint8))
            at.append(-1)
        run = jax.ffi.ffi_call(TARGET, tuple(out), vmap_method="sequential")
        words = np.frombuffer(bytes(template), np.int64)
        return lambda *args: tuple(run(*args, call=words, slots=np.array(at, np.int64))[:len(results)])

    cpu, cuda = on(_core.device("cpu")), _cuda()
    if cuda is None:
        return cpu(*operands.values())
    return jax.lax.platform_dependent(*operands.values(), cpu=cpu, cuda=on(cuda))


def _like(t, shape=None):
    return jax.ShapeDtypeStruct(t.shape if shape is None else shape, t.dtype)


# ------------------------------------------------------------------------------------------------------------- SwiGLU


def swiglu(gate: jax.Array, up: jax.Array, *, activation: str = "silu", gate_mul: float = 1.0, down_mul: float = 1.0,
           alpha: float = 1.0, up_offset: float = 0.0, limit: float = 0.0, round_gate: bool = False) -> jax.Array:
    """act(gate) * up, bf16, f16 or f32; both [.., n]. Options as in ridge.torch.swiglu. Differentiable in both."""
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.ndim == 0:
        raise ArgumentError(f"gate is {gate.dtype}{list(gate.shape)}, up {up.dtype}{list(up.shape)}: they must be alike")
    ops.numbers_only(round_gate=round_gate)
    five = {"gate_mul": gate_mul, "down_mul": down_mul, "alpha": alpha, "up_offset": up_offset, "limit": limit}
    options = _options(**{name: ops.real(name, v) for name, v in five.items()})
    cols = gate.shape[-1]
    out = _swiglu((ops.pick(ops.ACTIVATIONS, activation, "activation"), bool(round_gate), options),
                  gate.reshape(-1, cols), up.reshape(-1, cols))
    return out.reshape(gate.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _swiglu(how, gate, up):
    activation, round_gate, options = how
    return _call("swiglu_fwd", activation | (A.ROUND_GATE if round_gate else 0), options, gate.shape,
                 {"gate": gate, "up": up}, {"out": _like(gate)})[0]


def _swiglu_fwd(how, gate, up):
    return _swiglu(how, gate, up), (gate, up)


def _swiglu_bwd(how, saved, dout):
    (activation, round_gate, options), (gate, up) = how, saved
    return _call("swiglu_bwd", activation | (A.ROUND_GATE_BWD if round_gate else 0), options, gate.shape,
                 {"dout": dout, "gate": gate, "up": up}, {"dgate": _like(gate), "dup": _like(up)})


_swiglu.defvjp(_swiglu_fwd, _swiglu_bwd)

# ------------------------------------------------------------------------------------------------------- norm and RoPE


def rms_norm(x: jax.Array, weight: Optional[jax.Array] = None, eps: float = 1e-6) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in f32, rounded once to x's dtype; bf16, f16 or f32.
    Differentiable in x and weight."""
    return _norm_of("rms_norm", x, None, weight, eps)[0]


def add_rms_norm(x: jax.Array, residual: jax.Array, weight: Optional[jax.Array] = None,
                 eps: float = 1e-6) -> tuple[jax.Array, jax.Array]:
    """(rms_norm(sum, weight, eps), sum) of sum = x + residual, rounded to residual's dtype, in one pass. Both are
    differentiable, in x, residual and weight."""
    if residual.shape != x.shape:
        raise ArgumentError(f"residual has shape {list(residual.shape)}, not {list(x.shape)}")
    return _norm_of("add_rms_norm", x, residual, weight, eps)


def _norm_of(function, x, residual, weight, eps):
    if not x.ndim:
        raise ArgumentError(f"{function}: x has no dimensions")
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ArgumentError(f"weight has shape {list(weight.shape)}, not {list(x.shape[-1:])}")
    return _norm(_options(eps=ops.real("eps", eps)), x, residual, weight)


def _rows(x):
    return ops.rows_of(x.shape), x.shape[-1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(options, x, residual, weight):
    """(out, sum); without residual sum is x."""
    operands = {"x": x, "residual": residual, "w": weight}
    results = {"out": _like(x)} if residual is None else {"out": _like(x), "sum": _like(residual)}
    got = _call("add_rms_norm", 0, options, _rows(x), {name: t for name, t in operands.items() if t is not None}, results, True)
    return got if residual is not None else (got[0], x)


def _norm_fwd(options, x, residual, weight):
    out, total = _norm(options, x, residual, weight)
    return (out, total), (total, weight, x[:0], residual if residual is None else residual[:0])  # dtypes of both


def _norm_bwd(options, saved, gradients):
    (total, weight, x, residual), (dout, dsum) = saved, gradients
    operands = {"dout": dout, "x": total, "dsum": dsum, **({} if weight is None else {"w": weight})}
    results = {"dx": _like(total), **({} if weight is None else {"dw": _like(weight)})}
    dx, *dw = _call("rms_norm_bwd", 0, options, _rows(total), operands, results, True)
    return dx.astype(x.dtype), None if residual is None else dx, dw[0] if dw else None


_norm.defvjp(_norm_fwd, _norm_bwd)
_double = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


def rope(x: jax.Array, positions: jax.Array, freqs: Any, *, pairs: str = "halves", inverse: bool = False,
         mscale: float = 1.0) -> jax.Array:
    """x [.., heads, head_dim] with the first 2 * len(freqs) elements of each head turned by the angles positions * freqs (in
    float64, whatever jax_enable_x64 is), the others copied. positions [..] int32 or int64; freqs: numbers known when the
    function is traced (ridge.rope_freqs), in radians a position.

    pairs: "halves" (elements i and i + n_rot/2, Hugging Face) or "adjacent" (2i and 2i + 1). inverse turns the other way,
    mscale multiplies sine and cosine (YaRN). Differentiable in x."""
    if x.ndim < 2 or positions.shape != x.shape[:-2]:
        raise ArgumentError(f"x {list(x.shape)} and positions {list(positions.shape)} do not fit: [.., heads, head_dim] and [..]")
    if isinstance(freqs, jax.core.Tracer):
        raise ArgumentError("freqs is traced: it must be numbers that are known when the function is traced")
    freqs = np.asarray(freqs, np.float64)
    if freqs.ndim != 1:
        raise ArgumentError(f"freqs has shape {list(freqs.shape)}, not one dimension")
    ops.numbers_only(inverse=inverse)
    how = ops.pick(ops.PAIRINGS, pairs, "pairs"), bool(inverse), _options(mscale=ops.real("mscale", mscale)), freqs.tobytes()
    return _rope(how, x, positions)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rope(how, x, positions):
    flags, inverse, options, freqs = how
    with _double(True):  # else JAX makes them f32
        freqs = jnp.asarray(np.frombuffer(freqs, np.float64))
        return _call("rope", flags | (A.ROPE_INVERSE if inverse else 0), options,
                     (ops.rows_of((*x.shape[:-2], 1)), *x.shape[-2:], 2 * freqs.shape[0]),
                     {"x": x, "pos": positions, "freqs": freqs}, {"out": _like(x)})[0]


def _rope_fwd(how, x, positions):
    return _rope(how, x, positions), positions


def _rope_bwd(how, positions, dout):
    flags, inverse, *rest = how
    return _rope((flags, not inverse, *rest), dout, positions), None


_rope.defvjp(_rope_fwd, _rope_bwd)

# ------------------------------------------------------------------------------------------------- mixtures of experts

_FORMATS = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}


def ragged_dot_fp8(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, *, preferred_element_type: Any = None,
                   gradient_dtype: str = "e4m3") -> jax.Array:
    """jax.lax.ragged_dot with products in FP8: lhs [m, k], whose rows are those of one group after another, times rhs
    [groups, k, n]; group_sizes [groups] int32, of any size, read by the device alone. Rows beyond their sum are zero.

    lhs and rhs are bf16, f16 or f32. A scale for 128 values of a row of lhs and of the gradient, for 128 rows of a group in the
    gradient of rhs, and for 128 x 128 of rhs. The result has the dtype preferred_element_type, else lhs's. gradient_dtype: "e4m3"
    or "e5m2", the codes of gradients. Differentiable in lhs and rhs. On Hopper k and n that are multiples of 16 are fast."""
    if lhs.ndim != 2 or rhs.ndim != 3 or group_sizes.ndim != 1 or rhs.shape[:2] != (group_sizes.shape[0], lhs.shape[1]):
        raise ArgumentError(f"lhs {list(lhs.shape)}, rhs {list(rhs.shape)} and group_sizes {list(group_sizes.shape)} do not fit: "
                            "[m, k], [groups, k, n], [groups]")
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise ArgumentError(f"group_sizes has dtype {group_sizes.dtype}, not one of integers")
    if not rhs.shape[0]:
        raise ArgumentError("rhs has no groups")
    ops.pick(_FORMATS, gradient_dtype, "gradient_dtype")
    out = jnp.dtype(lhs.dtype if preferred_element_type is None else preferred_element_type)
    ends = jnp.cumsum(jnp.maximum(group_sizes, 0).astype(jnp.int32))
    offsets = jnp.minimum(jnp.concatenate([jnp.zeros(1, jnp.int32), ends]), lhs.shape[0])
    return _ragged_dot((out, gradient_dtype), lhs, rhs, offsets)


def _group_codes(x, offsets, dtype, transposed):
    """(codes, scales) of x's rows, and of its transpose, whose groups are padded, with their offsets."""
    (m, k), groups = x.shape, offsets.shape[0] - 1
    of = jax.ShapeDtypeStruct
    results = {"q": of((m, k), dtype), "scale": of((ops.blocks(k), m), jnp.float32)}
    if transposed:
        padded = X.ld_groups(m, groups)
        results |= {"q_t": of((k, padded), dtype), "scale_t": of((ops.blocks(padded), k), jnp.float32),
                    "offsets_t": of((groups + 1,), jnp.int32)}
    return _call("moe_permute_quantize", 0, _options(floor=0.0), (m, 1, k, groups), {"x": x, "offsets": offsets}, results, True,
                 q=A.SCALING_ROW128, q_t=A.SCALING_ROW128)


def _weight_codes(w):
    """(codes, scales) of each matrix [k, n] of w, and of its transpose."""
    groups, k, n = w.shape
    of = jax.ShapeDtypeStruct
    results = {name: t for name_q, name_scale, rows, cols in (("q", "scale", k, n), ("q_t", "scale_t", n, k)) for name, t in (
        (name_q, of((groups * rows, cols), jnp.float8_e4m3fn)),
        (name_scale, of((groups * ops.blocks(rows), ops.blocks(cols)), jnp.float32)))}
    return _call("quantize_fp8_dual", 0, _options(floor=0.0, matrices=groups), (groups * k, n), {"x": w.reshape(groups * k, n)},
                 results, True, q=A.SCALING_BLK128, q_t=A.SCALING_BLK128)


def _grouped(a, scale_a, b, scale_b, offsets, n, dtype):
    """The rows of each group times its matrix; zero where no group has a row."""
    m, k = a.shape
    y, = _call("gemm_fp8_grouped", A.GROUPED_M, (), (m, n, k, offsets.shape[0] - 1),
               {"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b, "offsets": offsets},
               {"d": jax.ShapeDtypeStruct((m, n), dtype)}, True, a=A.SCALING_ROW128, b=A.SCALING_BLK128)
    return jnp.where(jnp.arange(m)[:, None] < offsets[-1], y, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ragged_dot(how, lhs, rhs, offsets):
    q, scale = _group_codes(lhs, offsets, jnp.float8_e4m3fn, False)
    _, _, w_t, w_t_scale = _weight_codes(rhs)
    return _grouped(q, scale, w_t, w_t_scale, offsets, rhs.shape[2], how[0])


def _ragged_dot_fwd(how, lhs, rhs, offsets):
    q, scale, *x_t = _group_codes(lhs, offsets, jnp.float8_e4m3fn, True)
    w, w_scale, w_t, w_t_scale = _weight_codes(rhs)
    y = _grouped(q, scale, w_t, w_t_scale, offsets, rhs.shape[2], how[0])
    return y, (x_t, w, w_scale, offsets, lhs[:0], rhs[:0])  # the last two for their dtypes


def _ragged_dot_bwd(how, saved, dy):
    (x_t, x_t_scale, offsets_t), w, w_scale, offsets, lhs, rhs = saved
    groups, n, k = offsets.shape[0] - 1, dy.shape[1], x_t.shape[0]
    q, scale, dy_t, dy_t_scale, _ = _group_codes(dy, offsets, _FORMATS[how[1]], True)
    dlhs = _grouped(q, scale, w, w_scale, offsets, k, lhs.dtype)
    drhs, = _call("gemm_fp8_grouped", A.GROUPED_K, (), (k, n, x_t.shape[1], groups),
                  {"a": x_t, "scale_a": x_t_scale, "b": dy_t, "scale_b": dy_t_scale, "offsets": offsets_t},
                  {"d": jax.ShapeDtypeStruct((groups * k, n), rhs.dtype)}, True, a=A.SCALING_ROW128, b=A.SCALING_ROW128)
    return dlhs, drhs.reshape(groups, k, n), None


_ragged_dot.defvjp(_ragged_dot_fwd, _ragged_dot_bwd)

# ------------------------------------------------------------------------------------------------------ cross entropy


def linear_softmax_cross_entropy_loss(x: jax.Array, labels: jax.Array, weights: jax.Array, *, reduction: str = "sum",
                                      bias: Optional[jax.Array] = None, ignore_index: int = -100, label_smoothing: float = 0.0,
                                      softcap: float = 0.0, temperature: float = 1.0,
                                      lse_square_scale: float = 0.0, axis_name: Optional[str] = None) -> jax.Array:
    """The cross entropy of softmax(x @ weights + bias) at the labels, without the logits.

    x [.., hidden] and weights [hidden, vocab] of one dtype (bf16, f16, f32), labels [..] int32 or int64, bias [vocab];
    reduction "sum", "mean" (over labels that are not ignore_index) or "none" ([..]). The loss is f32. Differentiable in x,
    weights and bias.

    axis_name, inside jax.shard_map: weights and bias hold this device's classes, as many on every device, in the order of the
    axis; x and labels are rows of its own, as many on every device. The loss is that of all rows, the same bits on every device
    ("none": of its own rows). Devices exchange x, 12 bytes a row (24 with label_smoothing) and parts of dx, which are added in
    f32 in the order of the axis. Forward 2BHV FLOP over the devices, backward 6BHV. With check_vma=False differentiate inside.
    """
    _check_head(x, labels.shape, weights, bias)
    four = {"label_smoothing": label_smoothing, "softcap": softcap, "temperature": temperature,
            "lse_square_scale": lse_square_scale}
    options = _options(ignore_index=ops.whole("ignore_index", ignore_index),
                       **{name: ops.real(name, v) for name, v in four.items()})
    ops.pick(ops.REDUCTIONS, reduction, "reduction")
    if axis_name is None:
        loss = _loss((reduction, options), x.reshape(-1, x.shape[-1]), labels.reshape(-1), weights, bias)
    else:
        loss = _cut_loss((reduction, options, axis_name), x.reshape(-1, x.shape[-1]), labels.reshape(-1), weights, bias)
    return loss.reshape(labels.shape) if reduction == "none" else loss


def _check_head(x, labels_shape, weights, bias):
    if x.dtype != weights.dtype:
        raise ArgumentError(f"x is {x.dtype}, weights {weights.dtype}: the dtypes must be the same")
    if x.ndim < 1 or weights.ndim != 2 or x.shape[-1] != weights.shape[0] or x.shape[:-1] != labels_shape:
        raise ArgumentError(f"x {list(x.shape)}, labels {list(labels_shape)} and weights {list(weights.shape)} do not fit: "
                            "[.., hidden], [..], [hidden, vocab]")
    if bias is not None and bias.shape != weights.shape[1:]:
        raise ArgumentError(f"bias has shape {list(bias.shape)}, not {[weights.shape[1]]}")


def linear_logprobs(x: jax.Array, labels: jax.Array, weights: jax.Array, *, bias: Optional[jax.Array] = None,
                    ignore_index: int = -100, softcap: float = 0.0, temperature: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """(log softmax(x @ weights + bias) at the labels, the entropy of each row's softmax in nats), both f32 [..], without the
    logits. Differentiable in x, weights and bias, both with one backward pass. Rows whose label is ignore_index have 0 and 0.
    x [.., hidden] and weights [hidden, vocab] of one dtype (bf16, f16, f32), labels [..] int32 or int64, bias [vocab].
    """
    _check_head(x, labels.shape, weights, bias)
    options = _options(ignore_index=ops.whole("ignore_index", ignore_index), softcap=ops.real("softcap", softcap),
                       temperature=ops.real("temperature", temperature))
    two = _logprobs(("none", options), x.reshape(-1, x.shape[-1]), labels.reshape(-1), weights, bias)
    return two[0].reshape(labels.shape), two[1].reshape(labels.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(how, x, labels, weights, bias):
    return _logprobs_fwd(how, x, labels, weights, bias)[0]


def _logprobs_fwd(how, x, labels, weights, bias):
    of_rows = jax.ShapeDtypeStruct((x.shape[0],), jnp.float32)
    loss, lse, entropy = _loss_call("linear_ce_eval", how, x, labels, weights, bias, {},
                                    {"loss": of_rows, "lse": of_rows, "entropy": of_rows})
    return (0 - loss, entropy), (x, labels, weights, bias, lse, entropy)


def _logprobs_bwd(how, saved, gradients):
    x, labels, weights, bias, lse, entropy = saved
    dlogprob, dentropy = (g.astype(jnp.float32) for g in gradients)
    dx, dw, *dbias = _loss_call("linear_ce_backward", how, x, labels, weights, bias,
                                {"lse": lse, "dloss": 0 - dlogprob, "entropy": entropy, "dentropy": dentropy},
                                _gradient_shapes(x, weights, bias))
    return dx, None, dw, dbias[0].astype(bias.dtype) if dbias else None


_logprobs.defvjp(_logprobs_fwd, _logprobs_bwd)


def _loss_call(op, how, x, labels, weights, bias, operands, results):
    reduction, options = how
    inputs = {"x": x, "w": weights, "target": labels, **({} if bias is None else {"bias": bias}), **operands}
    return _call(op, ops.REDUCTIONS[reduction] | A.CE_W_HV, options, (*x.shape, weights.shape[1]), inputs, results, True)


def _loss_shape(how, x):
    return jax.ShapeDtypeStruct((x.shape[0],) if how[0] == "none" else (1,), jnp.float32)


def _gradient_shapes(x, weights, bias):
    shapes = {"dx": _like(x), "dw": _like(weights)}
    return shapes if bias is None else {**shapes, "dbias": jax.ShapeDtypeStruct(bias.shape, jnp.float32)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(how, x, labels, weights, bias):
    loss, = _loss_call("linear_ce_eval", how, x, labels, weights, bias, {}, {"loss": _loss_shape(how, x)})
    return loss if how[0] == "none" else loss[0]


def _loss_fwd(how, x, labels, weights, bias):
    """Sum and mean: the gradients come with the loss. None: each row's factor is known in backward only."""
    if how[0] == "none":
        lse = jax.ShapeDtypeStruct((x.shape[0],), jnp.float32)
        loss, lse = _loss_call("linear_ce_eval", how, x, labels, weights, bias, {}, {"loss": _loss_shape(how, x), "lse": lse})
        return loss, (x, labels, weights, bias, lse)
    loss, *gradients = _loss_call("linear_ce_train", how, x, labels, weights, bias, {},
                                  {"loss": _loss_shape(how, x), **_gradient_shapes(x, weights, bias)})
    return loss[0], (gradients, bias)


def _loss_bwd(how, saved, dloss):
    if how[0] == "none":
        x, labels, weights, bias, lse = saved
        gradients = _loss_call("linear_ce_backward", how, x, labels, weights, bias,
                               {"lse": lse, "dloss": dloss.astype(jnp.float32)}, _gradient_shapes(x, weights, bias))
    else:
        gradients, bias = saved
        gradients = [(dloss * g.astype(jnp.float32)).astype(g.dtype) for g in gradients]
    return gradients[0], None, gradients[1], None if bias is None else gradients[2].astype(bias.dtype)


_loss.defvjp(_loss_fwd, _loss_bwd)


# The vocabulary cut along an axis of shard_map. One program runs on every device, so that a slice's first class is no option of
# a call: labels are counted from that class on, around the end, instead.
_OUT, _IGNORED = -7, -100


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cut_loss(how, x, labels, weights, bias):
    return _cut_loss_fwd(how, x, labels, weights, bias)[0]


def _cut(how, x, labels, weights):
    """(devices, classes of all, rows of all, their labels, labels from this device's first class on)."""
    _, options, axis = how
    n, slice_ = jax.lax.axis_size(axis), weights.shape[1]
    total, ignored = n * slice_, dict(options)["ignore_index"]
    x, labels = (jax.lax.all_gather(t, axis, tiled=True) for t in (x, labels))
    turned = (labels - jax.lax.axis_index(axis).astype(labels.dtype) * slice_) % total
    turned = jnp.where((labels >= 0) & (labels < total), turned, _OUT)
    return n, total, x, labels, jnp.where(labels == ignored, _IGNORED, turned).astype(labels.dtype)


def _cut_options(options, **more):
    return tuple((dict(options) | more).items())


def _varying(t, axis):
    """A custom call's result is something else on every device, of which shard_map knows nothing."""
    try:
        return jax.lax.pcast(t, axis, to="varying")
    except ValueError:  # it knows
        return t


def _cut_call(op, flags, how, x, turned, weights, bias, total, operands, results):
    inputs = {"x": x, "w": weights, "target": turned, **({} if bias is None else {"bias": bias}), **operands}
    options = _cut_options(how[1], ignore_index=_IGNORED, vocab_total=total)
    out = _call(op, ops.REDUCTIONS[how[0]] | A.CE_W_HV | flags, options, (*x.shape, weights.shape[1]), inputs, results, True)
    return [_varying(t, how[2]) for t in out]


def _cut_loss_fwd(how, x, labels, weights, bias):
    reduction, options, axis = how
    n, total, every, every_label, turned = _cut(how, x, labels, weights)
    tokens, smooth = every.shape[0], float.fromhex(dict(options)["label_smoothing"]) != 0
    sums = A.CE_RECORD_SUMS if smooth else 0
    record, = _cut_call("linear_ce_eval", sums, how, every, turned, weights, bias, total, {},
                        {"record": jax.ShapeDtypeStruct((tokens, 6 if smooth else 3), jnp.float32)})
    records = jax.lax.all_gather(record, axis, tiled=True)
    with _double(True):
        offset = jnp.asarray(np.arange(n, dtype=np.int64) * weights.shape[1])
        of_whole = {k: v for k, v in options if k not in ("softcap", "temperature")}
        loss, lse = _call("ce_combine", ops.REDUCTIONS[reduction] | sums, tuple(of_whole.items()), (tokens, total, n),
                          {"record": records, "offset": offset, "target": every_label},
                          {"loss": _loss_shape(how, every), "lse": jax.ShapeDtypeStruct((tokens,), jnp.float32)}, True)
    if reduction == "none":
        rows = x.shape[0]
        loss = jax.lax.dynamic_slice_in_dim(_varying(loss, axis), jax.lax.axis_index(axis) * rows, rows)
    else:
        first = jax.lax.axis_index(axis) == 0  # all have the same number: from a sum of one, shard_map knows that they do
        loss = jax.lax.psum(jnp.where(first, _varying(loss[0], axis), 0), axis)
    return loss, (x, labels, weights, bias, _varying(lse, axis))


def _cut_loss_bwd(how, saved, dloss):
    x, labels, weights, bias, lse = saved
    reduction, _, axis = how
    n, total, every, _, turned = _cut(how, x, labels, weights)
    dloss = dloss.astype(jnp.float32)
    dloss = jax.lax.all_gather(dloss, axis, tiled=True) if reduction == "none" else dloss.reshape(1)
    dx, dw, *dbias = _cut_call("linear_ce_backward", 0, how, every, turned, weights, bias, total, {"lse": lse, "dloss": dloss},
                               _gradient_shapes(every, weights, bias))
    rows, hidden = x.shape
    parts = jax.lax.all_to_all(dx.reshape(n, rows, hidden), axis, 0, 0).reshape(n * rows, hidden)
    dx, = _call("sum", 0, (), (rows, hidden, n), {"x": parts}, {"out": _like(x)})
    return _varying(dx, axis), None, dw, dbias[0].astype(bias.dtype) if dbias else None


_cut_loss.defvjp(_cut_loss_fwd, _cut_loss_bwd)

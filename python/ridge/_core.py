"""_core.py: libridge through ctypes: the library, its argument struct, devices and errors. Needs nothing but Python.

A call goes through a Form: the argument struct of one op with its flags and options filled in, made once and reused;
dimensions, pointers, strides and dtypes are packed into it by one struct.pack_into. Structs in flight are taken from a
list and put back, so that threads never share one.
"""
from __future__ import annotations

import ctypes as C
import functools
import os
import struct
from typing import Any, Optional

from . import _abi as A


class Error(RuntimeError):
    """What libridge answers when it does not run a call; the text is the library's own."""


class ArgumentError(Error, ValueError):
    """Wrong on any device: null, misaligned, a shape, dtype or option that does not fit."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but no kernel of this build runs it on this device; the text says why, kernel by kernel."""


class WorkspaceError(Error):
    """The workspace is too small."""


class DeviceError(Error):
    """There is no such device, or the driver refused."""


class FileError(Error):
    """A file is malformed or cannot be read."""


_ERRORS = {A.ERR_ARG: ArgumentError, A.ERR_UNSUPPORTED: UnsupportedError, A.ERR_WORKSPACE: WorkspaceError,
           A.ERR_DEVICE: DeviceError, A.ERR_FILE: FileError}

# --------------------------------------------------------------------------------------------------------- the struct


class Operand(C.Structure):
    _fields_ = [("data", C.c_void_p), ("stride", C.c_int64), ("dtype", C.c_uint32), ("reserved", C.c_uint32)]


class Tensor(C.Structure):
    """struct ridge_tensor."""
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int), ("stride", C.c_int64), ("scale", C.c_void_p), ("scaling", C.c_int),
                ("scale_stride", C.c_int64)]


def _pairs(text):
    return [item.split() for item in text.split(", ")]


def _options(name):
    fields = [(field, {"float": C.c_float, "int64_t": C.c_int64}[kind]) for kind, field in _pairs(A.OPTIONS[name])]
    return type("Options", (C.Structure,), {"_fields_": fields})


_swiglu, _quantize, _swiglu_quantize, _norm, _ce = map(_options, ("swiglu", "quantize", "swiglu_quantize", "norm", "ce"))
_embed, _sample, _moe_route, _divergence = map(_options, ("embed", "sample", "moe_route", "divergence"))
_kv_append, _attention, _q8_0, _hc = map(_options, ("kv_append", "attention", "q8_0", "hc"))
_kv_append_attention, _moe_down = map(_options, ("kv_append_attention", "moe_down"))
OPTIONS = {"swiglu_fwd": _swiglu, "swiglu_bwd": _swiglu, "quantize_fp8": _quantize, "quantize_fp8_dual": _quantize,
           "swiglu_quantize": _swiglu_quantize, "rms_norm": _norm, "head_rms_norm_rope_tail": _norm, "add_rms_norm": _norm,
           "rms_norm_bwd": _norm, "rope": _norm,
           "q8_0_matmul": _q8_0, "q8_0_gate_up_swiglu": _q8_0, "block_gate_up_swiglu": _swiglu,
           "linear_ce_eval": _ce, "linear_ce_train": _ce, "linear_ce_backward": _ce, "ce_fwd": _ce, "ce_bwd": _ce,
           "ce_combine": _ce, "kv_append": _kv_append, "attention_decode": _attention, "attention_prefill": _attention,
           "kv_append_attention": _kv_append_attention, "embed": _embed, "sample": _sample,
           "moe_route": _moe_route, "moe_gate_up_swiglu": _swiglu, "moe_down": _moe_down, "moe_permute_quantize": _quantize,
            "moe_swiglu_quantize": _swiglu_quantize, "moe_swiglu_bwd_quantize": _swiglu_quantize, "moe_route_bwd": _moe_route,
            "hc_mix": _hc, "hc_split": _hc, "divergence": _divergence}


class Call(C.Structure):
    """struct ridge_call; tests/test_abi.py compares its layout with the C compiler's."""
    _fields_ = [("struct_size", C.c_uint32), ("op", C.c_uint32), ("flags", C.c_uint32), ("reserved", C.c_uint32),
                ("kernel", C.c_char_p), ("invalid", C.c_char_p), ("dim", C.c_int64 * A.MAX_DIMS), ("arg", Operand * A.MAX_ARGS),
                ("opt", C.c_double * 16)]


# --------------------------------------------------------------------------------------------------------- the library


def _candidates():
    if os.environ.get("RIDGE_LIBRARY"):  # that one or none
        yield os.path.abspath(os.environ["RIDGE_LIBRARY"])
        return
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ("libridge.so.0", "libridge.so"):
        yield os.path.join(here, name)
    tree = os.path.dirname(os.path.dirname(here))
    if os.path.exists(os.path.join(tree, "CMakeLists.txt")):  # run from the source tree
        yield os.path.join(tree, "build", "libridge.so")
    yield "libridge.so.0"  # wherever the loader looks


def _load():
    tried = []
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(path)
            continue
        try:
            lib = C.CDLL(path)
        except OSError as error:
            tried.append(f"{path} ({error})")
            continue
        lib.ridge_version.restype = C.c_char_p
        version = lib.ridge_version().decode()
        if tuple(map(int, version.split(".")[:2])) != A.VERSION[:2]:
            raise ImportError(f"ridge: {path} is version {version}, this package needs "
                              f"{A.VERSION[0]}.{A.VERSION[1]}")
        return lib, path
    raise ImportError("ridge: the library was not found; `pip install .` or `make` in ridge's tree builds it. Tried: "
                      + ", ".join(tried))


_lib, library_path = _load()
_lib.ridge_error.restype = C.c_char_p
_lib.ridge_open.argtypes = [C.c_char_p, C.POINTER(C.c_void_p)]
_lib.ridge_close.argtypes = [C.c_void_p]
_lib.ridge_close.restype = None
_lib.ridge_run.argtypes = [C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p]
_lib.ridge_workspace_bytes.argtypes = [C.c_void_p, C.c_void_p, C.POINTER(C.c_size_t)]
_lib.ridge_pick.argtypes = [C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(C.c_char_p)]
_lib.ridge_explain.argtypes = [C.c_void_p, C.c_void_p, C.c_char_p, C.c_size_t, C.POINTER(C.c_size_t)]
_lib.ridge_device_query.argtypes = [C.c_void_p, C.c_void_p]
_lib.ridge_order_graph.argtypes = [C.c_void_p, C.c_void_p]
_run = _lib.ridge_run


def encoded(name, text):
    """text for C, where a NUL would end it: another text than the caller's."""
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"{name} is a {type(text).__name__}, not a str")
    text = text.encode() if isinstance(text, str) else text
    if b"\0" in text:
        raise ArgumentError(f"{name} {text.decode(errors='replace')!r} has a NUL character")
    return text


def new_call(op: str, flags: int = 0, options: Optional[dict[str, float]] = None, kernel: Optional[str] = None,
             scaling: Any = None) -> Call:
    """A Call of an op by name, without operands: its builder's, with these flags and options; scaling: {tensor of the
    builder: SCALING_*}. For ops without a function here: ridge.h describes their operands, ridge._abi has its numbers.

        call, slot = ridge.new_call("block_repack"), _abi.SLOTS["block_repack"]
        call.dim[:2] = rows, cols  # in the builder's order
        for name, dtype, array in ("blocks", _abi.U8, blocks), ("tiles", _abi.Q4_0, tiles):
            call.arg[slot[name]].data, call.arg[slot[name]].dtype = array.ctypes.data, dtype
        device.run(call)  # others need device.workspace_bytes(call) at an address that is a multiple of 256
    """
    if op not in A.OPS_BY_NAME:
        raise ArgumentError(f"there is no op {op!r}")
    scaling = dict(scaling or ())
    zero = {"int64": lambda name: C.c_int64(0), "dtype": lambda name: C.c_int(0), "pointer": lambda name: C.c_void_p(),
            "tensor": lambda name: Tensor(scaling=scaling.get(name, 0))}
    builder = _lib[f"ridge_{op}"]
    builder.restype = Call
    call = builder(*(zero[kind](name) for kind, name in _pairs(A.BUILDERS[op])))
    C.memset(C.addressof(call.arg), 0, C.sizeof(call.arg))
    call.flags |= flags
    call.kernel = encoded("kernel", kernel) if kernel else None
    fields = OPTIONS[op].from_buffer(call, Call.opt.offset) if op in OPTIONS else None
    for name, value in (options or {}).items():
        if name not in (field for field, _ in getattr(fields, "_fields_", ())):  # ctypes would take it for an attribute
            raise TypeError(f"{op} has no option {name!r}")
        setattr(fields, name, value)
    return call


def library_function(name):
    """A function of the library whose arguments are ctypes objects, passed as they are; it returns an int."""
    return _lib[name]  # an object of its own: ._lib.name keeps its argtypes


def version() -> str:
    """The library's version, "0.2.0"."""
    return _lib.ridge_version().decode()


class _Yarn(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("reserved", C.c_uint32), *((name, C.c_double) for name in
                ("freq_scale", "original_context", "ext_factor", "attn_factor", "beta_fast", "beta_slow"))]


def rope_freqs(n_rot, base, yarn):
    """(the n_rot/2 frequencies as a ctypes array of doubles, mscale)"""
    if yarn is not None:
        known = {name for name, _ in _Yarn._fields_[2:]}
        if not isinstance(yarn, dict) or not set(yarn) <= known or not {"freq_scale", "original_context"} <= set(yarn):
            raise ArgumentError(f"yarn is {yarn!r}, not a dict of {', '.join(sorted(known))} with freq_scale and original_context")
        yarn = _Yarn(C.sizeof(_Yarn), 0, **{"ext_factor": 1.0, "attn_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, **yarn})
    freqs, mscale = (C.c_double * max(min(n_rot, 1 << 20) // 2, 1))(), C.c_float()
    check(_lib.ridge_rope_freqs(C.c_int64(n_rot), C.c_double(base), C.byref(yarn) if yarn is not None else None, freqs,
                                C.byref(mscale)))
    return freqs, mscale.value


def check(status):
    """Raises the library's message as an exception if status is not OK."""
    if status:
        raise _ERRORS.get(status, Error)(_lib.ridge_error().decode(errors="replace"))


# --------------------------------------------------------------------------------------------------------- devices


class _Info(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("ordinal", C.c_int32), ("backend", C.c_char * 16), ("arch", C.c_char * 16),
                ("name", C.c_char * 128), ("units", C.c_int32), ("tuned_rows", C.c_int32), ("l2_bytes", C.c_int64),
                ("memory_bytes", C.c_int64)]


class Device:
    """An open device: "cpu", "cuda", "cuda:1", "model:sm90", ...; None = the GPU if there is one, else the CPU.
    Immutable; any number of threads may use it. A copy is the same object; a pickle holds the name, and opens the device
    of that name where it is loaded."""

    def __init__(self, spec: Optional[str] = None) -> None:
        self.handle: Optional[int] = None
        self.spec = spec
        if spec is not None and not isinstance(spec, str):
            raise TypeError(f"a device is named by a str, not by a {type(spec).__name__}")
        handle = C.c_void_p()
        check(_lib.ridge_open(encoded("the device's name", spec) if spec else None, C.byref(handle)))
        self.handle = handle.value

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: object) -> Device:
        return self

    def __reduce__(self):
        return Device, (self.spec,)

    def __del__(self):
        if getattr(self, "handle", None) and _lib is not None:
            _lib.ridge_close(self.handle)
            self.handle = None

    @property
    def info(self) -> dict[str, Any]:
        """backend, arch, name, units, tuned_rows, l2_bytes, memory_bytes, ordinal."""
        info = _Info(struct_size=C.sizeof(_Info))
        check(_lib.ridge_device_query(self.handle, C.byref(info)))
        values = {name: getattr(info, name) for name, _ in _Info._fields_[1:]}
        return {name: v.decode(errors="replace") if isinstance(v, bytes) else v for name, v in values.items()}

    def workspace_bytes(self, call: Call) -> int:
        need = C.c_size_t()
        check(_lib.ridge_workspace_bytes(self.handle, C.addressof(call), C.byref(need)))
        return need.value

    def pick(self, call: Call, workspace_bytes: int = 2**63) -> str:
        """The name of the kernel that would run."""
        name = C.c_char_p()
        check(_lib.ridge_pick(self.handle, C.addressof(call), workspace_bytes, C.byref(name)))
        return name.value.decode()

    def explain(self, call: Call) -> str:
        """Every kernel of the op with its verdict, as `ridge explain` prints it."""
        text = C.create_string_buffer(1 << 16)
        check(_lib.ridge_explain(self.handle, C.addressof(call), text, len(text), None))
        return text.value.decode()

    def run(self, call: Call, workspace: Optional[int] = None, workspace_bytes: int = 0, stream: Optional[int] = None) -> None:
        """Launches a call; workspace and stream are addresses. What the operands point to stays the caller's."""
        check(_run(self.handle, C.addressof(call), workspace, workspace_bytes, stream))

    def order_graph(self, graph: int) -> None:
        """Lets kernels behind the joins of a captured CUDA graph start early; graph is the address of the cudaGraph_t, not
        yet instantiated: raw_cuda_graph() of a torch.cuda.CUDAGraph(keep_graph=True). ridge_order_graph of ridge.h says more."""
        check(_lib.ridge_order_graph(self.handle, graph))


_devices = {}


def device(spec):
    """The device of that name, opened once a process."""
    found = _devices.get(spec)
    if found is None:
        found = _devices.setdefault(spec, Device(spec))
    return found


# --------------------------------------------------------------------------------------------------------- forms

_DIM = Call.dim.offset
FIRST_WORD = _DIM // 8  # of the struct as 64-bit words: 6 dimensions, then three for each operand
_SLOT = "Qqq"  # pointer, stride, dtype with the reserved word above it
_ABSENT = (0, 0, 0)


class Form:
    """One op with its flags, options and scalings. launch packs the rest: values = 6 dimensions, then pointer, stride, dtype of
    each operand in the order of its slots."""

    def __init__(self, op, flags=0, options=(), scaling=()):
        self.op = op
        call = new_call(op, flags, dict(options), None, scaling)
        if call.invalid:
            raise ArgumentError(f"{op}: {call.invalid.decode()}")
        self.image = bytes(call)
        self.slots = max(A.SLOTS[op].values()) + 1
        self.pack = struct.Struct("6q" + _SLOT * self.slots).pack_into
        self.free = []
        self.need = {}  # (device, alignment, dimensions, strides, dtypes) -> workspace bytes

    def _new(self):
        buffer = C.create_string_buffer(self.image, len(self.image))
        return buffer, C.addressof(buffer)

    def run(self, device, values, workspace, workspace_bytes, stream):
        try:
            taken = self.free.pop()
        except IndexError:
            taken = self._new()
        self.pack(taken[0], _DIM, *values)
        status = _run(device.handle, taken[1], workspace, workspace_bytes, stream)
        self.free.append(taken)
        if status:
            check(status)

    def call(self, values):
        """The Call that run would make."""
        buffer = bytearray(self.image)
        self.pack(buffer, _DIM, *values)
        return Call.from_buffer_copy(buffer)

    def workspace(self, device, values):
        """Bytes of the kernel that an unlimited workspace would get; remembered by dimensions, strides, dtypes and the
        alignment, all of which decide between kernels."""
        bits = 256
        for pointer in values[6::3]:
            bits |= pointer
        key = (device.handle, bits & -bits, values[:6], values[7::3], values[8::3])
        need = self.need.get(key)
        if need is None:
            if len(self.need) > 10000:  # ever new shapes
                self.need.clear()
            need = self.need[key] = device.workspace_bytes(self.call(values))
        return need


@functools.lru_cache(maxsize=4096)
def _form(op, flags, options, scaling, text):
    return Form(op, flags, options, scaling)


def form(op, flags=0, options=(), scaling=()):
    """The Form of an op; options and scaling are tuples of (name, value). 0.0 and -0.0 have Forms of their own, though they
    are equal."""
    return _form(op, flags, options, scaling, repr(options) if options else "")

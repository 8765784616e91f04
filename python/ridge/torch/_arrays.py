"""_arrays.py: torch tensors as operands (see ridge/_ops.py), on the tensor's device and its current stream."""
import torch

from .. import _abi as A
from .. import _ops as ops
from .._core import ArgumentError, UnsupportedError, device
from . import _advice
from ._sharding import register, register_while_compiling

ops.REAL += torch.SymInt, torch.SymFloat, torch.SymBool
ops.WHOLE += (torch.SymInt,)
DTYPES = {A.F32: torch.float32, A.F16: torch.float16, A.BF16: torch.bfloat16, A.E4M3: torch.float8_e4m3fn,
          A.E5M2: torch.float8_e5m2, A.F64: torch.float64, A.I8: torch.int8, A.U8: torch.uint8, A.I32: torch.int32,
          A.I64: torch.int64}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_stream = raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current = current_device = getattr(torch._C, "_cuda_getDevice", None)
_devices = {}
_advised = _advice.done


def _device(index):
    found = _devices[index] = device("cpu" if index < 0 else f"cuda:{index}")
    return found


def device_of(index):
    """The open ridge device of a tensor's get_device()."""
    return _devices.get(index) or _device(index)


class Arrays:
    @staticmethod
    def itemsize(t):
        return t.element_size()

    @staticmethod
    def matrix(t):
        if t.is_contiguous():
            return t, 0
        two = t if t.dim() == 2 else t.reshape(-1, t.shape[-1])  # a view where leading dimensions collapse
        rows, stride = two.shape[0], two.stride(0)
        # A row stride of 0 (an expanded tensor) means packed to the library, a short one that rows overlap: both are copied.
        if two.stride(1) == 1 and stride >= two.shape[1] and rows > 1:
            return (t if two is t else two), stride
        return two.contiguous(), 0

    @staticmethod
    def vector(t):
        return t if t.is_contiguous() else t.contiguous()

    @staticmethod
    def operand(t, stride):
        try:
            return t.data_ptr(), stride, NUMBERS[t.dtype]
        except KeyError:
            raise ArgumentError(f"dtype {t.dtype} is none of ridge's (float32, float16, bfloat16 and, where a function says so, "
                                "codes and indices)") from None

    @staticmethod
    def empty(like, shape, dtype, ld=None):
        # empty_like and empty_strided take half of empty's time.
        if len(shape) == 2:
            return torch.empty_strided(shape, (ld or shape[1], 1), dtype=DTYPES[dtype], device=like.device)
        if shape == like.shape and like.is_contiguous():
            return torch.empty_like(like, dtype=DTYPES[dtype])
        return torch.empty(shape, dtype=DTYPES[dtype], device=like.device)

    @staticmethod
    def memory_for(f, like, values):
        """Memory as workspace of several launches that keep something in it."""
        index = like.get_device()
        need = f.workspace(_devices.get(index) or _device(index), values)
        return torch.empty((need + 256,), dtype=torch.uint8, device=like.device)

    @staticmethod
    def launch(f, like, values, scratch=False):
        """scratch: False: no workspace; True, or bytes beyond what the kernel wants: one of its own; else what memory_for gave."""
        index = like.get_device()
        on = _devices.get(index) or _device(index)
        if isinstance(scratch, torch.Tensor):
            return _launch(on, f, like, values, index, 0, scratch)
        if scratch:
            return _launch(on, f, like, values, index, 0 if scratch is True else scratch)
        if index < 0:
            return f.run(on, values, None, 0, None)
        if _current() == index:
            return f.run(on, values, None, 0, _stream(index))
        with torch.cuda.device(index):
            return f.run(on, values, None, 0, _stream(index))


def _launch(on, f, like, values, index, more, memory=None):
    """With what workspace the kernel wants, from torch's allocator: it is freed in stream order, and part of a graph's pool
    under capture."""
    pointer, need = None, memory.numel() - 256 if memory is not None else f.workspace(on, values) + (more if index >= 0 else 0)
    if index >= 0 and (f.op, index) not in _advised:
        _advice.consider(on, f, values, index)
    if need:
        if memory is None:
            memory = torch.empty_strided((need + 256,), (1,), dtype=torch.uint8, device=like.device)
        pointer = memory.data_ptr()
        pointer += -pointer % 256
    if index < 0:
        return f.run(on, values, pointer, need, None)
    if _current() == index:
        return f.run(on, values, pointer, need, _stream(index))
    with torch.cuda.device(index):
        return f.run(on, values, pointer, need, _stream(index))


class Beside(Arrays):
    """On a CUDA device of which products leave `free` multiprocessors to kernels that run beside them."""

    def __init__(self, free):
        self.free, self.on = free, {}

    def launch(self, f, like, values, scratch=False):
        index = like.get_device()
        if index < 0:
            return Arrays.launch(f, like, values, scratch)
        on = self.on.get(index)
        if on is None:
            units = device_of(index).info["units"]
            on = self.on[index] = device(f"cuda:{index}/{max(units - self.free, units // 2)}")
        return _launch(on, f, like, values, index, 0)


class Fakes(Arrays):
    """Only shapes, strides and checks, for tensors without memory."""

    @staticmethod
    def operand(t, stride):
        if t.dtype not in NUMBERS:
            raise ArgumentError(f"dtype {t.dtype} is none of ridge's")
        return 0, stride, NUMBERS[t.dtype]

    @staticmethod
    def memory_for(f, like, values):
        return None

    @staticmethod
    def launch(f, like, values, scratch=False):
        pass


def same_device(first, *others):
    """All operands on the first one's device, or an error that names both."""
    index, cpu = first.get_device(), first.is_cpu
    if index < 0 and not cpu and not first.is_meta:
        raise ArgumentError(f"tensors on {first.device.type} are not supported: cpu or cuda")
    for t in others:
        if t is not None and (t.get_device() != index or t.is_cpu is not cpu):
            raise ArgumentError(f"tensors are on {first.device} and on {t.device}: move them to one device")


def tensors(function, **arguments):
    ops.check_types(torch.Tensor, "torch.Tensor", function, arguments)
    tell_dtensor()


def tell_dtensor():
    """Before a call that may be one of DTensors: they know the ops from then on."""
    if compiling():
        register_while_compiling()
    else:
        register()


compiling = torch.compiler.is_dynamo_compiling
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active


def plain(*tensors):
    """True where nothing but the call itself has to happen: no tracing, no subclass, no mode, no transform, and memory."""
    if compiling() or _modes() or _transforms():
        return False
    for t in tensors:
        kind = type(t)
        if t is not None and (kind is not torch.Tensor and kind is not torch.nn.Parameter or t.is_meta):
            return False
    return True


def needs_grad(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def no_gradient(function, **arguments):
    """An error where autograd would want a gradient that there is not: it would be missing unnoticed."""
    if torch.is_grad_enabled():
        for name, t in arguments.items():
            if t is not None and t.requires_grad:
                raise UnsupportedError(f"{function} has no gradient for {name}, which requires one: pass {name}.detach(), or "
                                       "call it under torch.no_grad()")


def autocast_dtype(t):
    """What autocast makes of a tensor on this one's device; None: it leaves it alone."""
    kind = t.device.type
    return torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else None


def dtype_number(dtype, name="out_dtype"):
    try:
        return NUMBERS[dtype]
    except (KeyError, TypeError):
        raise ArgumentError(f"{name} is {dtype!r}, none of ridge's") from None

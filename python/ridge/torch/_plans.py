"""_plans.py: calls that were made before. The first call with given shapes, strides, dtypes and options goes through
ridge/_ops.py over an adapter that writes down what it does; later ones fill in the pointers: one packed argument struct, one
allocation an output, one ridge_run, in a function written for that plan."""
import ctypes as C
import functools

import torch

from .. import _core, _ops
from .._core import Error
from ._arrays import DTYPES, Arrays, compiling, current_device, device_of, plain, raw_stream


def _allocator(kind):
    """empty_strided(shape, stride, dtype) on the current device; inductor's own saves half of the public one's time."""
    found = getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None)
    return found or (lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype, device=kind))


_empty = {"cpu": _allocator("cpu"), "cuda": _allocator("cuda")}
_NONE, _BASE = C.c_size_t(0), 1 << 44  # the n-th tensor's pointer while a plan is made is n times this
_FIRST = _core.FIRST_WORD
_run = _core.library_function("ridge_run")  # arguments are ctypes objects: nothing is converted
_Guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda t: False)  # also one that left its transform
_streams = {}


def _stream(raw):
    if len(_streams) > 1000:
        _streams.clear()
    found = _streams[raw] = C.c_void_p(raw)
    return found


class _NotPlanned(Exception):
    pass


class _Writer(Arrays):
    """An adapter over tensors without memory, each of which stands for one argument."""

    def __init__(self, inputs):
        self.tensors = list(inputs)
        self.inputs, self.outputs, self.calls = len(inputs), [], []

    def number(self, t):
        for i, other in enumerate(self.tensors):
            if t is other:
                return i
        raise _NotPlanned

    def matrix(self, t):
        two, stride = Arrays.matrix(t)
        if two is not t:
            if two.is_contiguous():  # a copy
                raise _NotPlanned
            number = self.number(t)
            self.tensors[number], two = two, two
        return two, stride

    def vector(self, t):
        if not t.is_contiguous():
            raise _NotPlanned
        return t

    def operand(self, t, stride):
        return (self.number(t) + 1) * _BASE, stride, Arrays.operand(t, stride)[2]

    def empty(self, like, shape, dtype, ld=None):
        t = Arrays.empty(like, shape, dtype, ld)
        self.tensors.append(t)
        self.outputs.append((tuple(t.shape), t.stride(), DTYPES[dtype]))
        return t

    def launch(self, f, like, values, scratch=False):
        self.calls.append((f, values, scratch))


class Plan:
    """One call with everything known but its pointers; run(*tensors) makes it, or is None on another device than the current."""

    def __init__(self, function, tensors, args, index):
        writer = _Writer([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors])
        result = function(writer, *writer.tensors, *args)
        if len(writer.calls) != 1:
            raise _NotPlanned
        form, values, scratch = writer.calls[0]
        self.extra = 0 if scratch is True or index < 0 else int(scratch)
        self.device, self.need = device_of(index), {}
        self.empty = _empty["cpu" if index < 0 else "cuda"]
        words = [[] for _ in writer.tensors]
        template = list(values)
        for i in range(6, len(values), 3):
            if values[i]:
                words[values[i] // _BASE - 1].append((_FIRST + i, values[i] % _BASE))
                template[i] = 0
        self.image = bytes(form.call(template))
        single = not isinstance(result, tuple)
        results = [None if t is None else f"t{writer.number(t)}" for t in ((result,) if single else result)]
        self.run = self._written(writer, words, results[0] if single else f"({', '.join(map(str, results))},)", index, scratch)

    def new(self):
        buffer = C.create_string_buffer(self.image, len(self.image))
        words = memoryview(buffer).cast("B").cast("Q")
        return words, C.c_void_p(C.addressof(buffer)), C.c_void_p()

    def measured(self, words, bits):
        """What the kernel wants at this alignment: (bytes, shape of their memory or None)."""
        need = self.device.workspace_bytes(_core.Call.from_buffer_copy(words.cast("B"))) + self.extra
        self.need[bits] = C.c_size_t(need), (need + 256,) if need else None
        return self.need[bits]

    def _written(self, writer, words, result, index, scratch):
        """A function for this plan only: a third of the time of one that loops over lists."""
        known = {"pop": (free := []).pop, "push": free.append, "new": self.new, "empty": self.empty, "ridge_run": _run,
                 "handle": C.c_void_p(self.device.handle), "none": _NONE, "check": _core.check, "sizes": self.need,
                 "measured": self.measured, "one": (1,), "uint8": torch.uint8,
                 "current": current_device, "raw_stream": raw_stream, "streams": _streams, "new_stream": _stream}
        lines = [f"def run({', '.join(f't{i}' for i in range(writer.inputs))}):"]
        if index >= 0:
            lines += [f"    if current() != {index}:", "        return None"]
        lines += ["    try:", "        taken = w, call, space = pop()", "    except IndexError:",
                  "        taken = w, call, space = new()"]
        for i, at in enumerate(words):
            if i >= writer.inputs:
                known[f"made{i}"] = writer.outputs[i - writer.inputs]
                lines.append(f"    t{i} = empty(*made{i})")
            if at:
                lines.append(f"    p{i} = t{i}.data_ptr()")
            lines += [f"    w[{word}] = p{i} + {offset}" if offset else f"    w[{word}] = p{i}" for word, offset in at]
        if index >= 0:
            lines += [f"    raw = raw_stream({index})", "    stream = streams.get(raw) or new_stream(raw)"]
        if scratch:
            used = [f"(p{i} + {offset})" if offset else f"p{i}" for i, at in enumerate(words[:writer.inputs]) for _, offset in at]
            lines += [f"    bits = {' | '.join(used)}", "    bits &= -bits & 0xffff",
                      "    size, shape = sizes.get(bits) or measured(w, bits)", "    if shape:",
                      # from torch's allocator, which frees it in stream order
                      "        memory = empty(shape, one, uint8)", "        space.value = memory.data_ptr() + 255 & -256"]
        lines += [f"    status = ridge_run(handle, call, {'space if shape else None, size' if scratch else 'None, none'}, "
                  f"{'stream' if index >= 0 else 'None'})", "    push(taken)", "    if status:", "        check(status)",
                  f"    return {result}"]
        exec("\n".join(lines), known)
        return known["run"]


def _make(function, tensors, args):
    """The plan of this call; False where there can be none."""
    index = tensors[0].get_device()
    if all(t.get_device() == index for t in tensors) and (index >= 0 or all(t.is_cpu for t in tensors)):
        try:
            return Plan(function, tensors, args, index)
        except (_NotPlanned, Error, TypeError):  # the ordinary way will do it, or say what is wrong
            pass
    return False


def _of(t):
    return t.shape, t.stride(), t.dtype, t.get_device()


def _guard(tensors):
    """A check in one call, by PyTorch's own guards: tensors of the same type, shape, strides, dtype, device and need of a
    gradient, under the same modes and transforms."""
    try:
        return _Guards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                       dynamic_dims_strides=[list(t.stride()) for t in tensors]).check
    except Exception:  # another PyTorch's: without
        return lambda *tensors: False


_NAME = str, torch.dtype, type(None)


class Planned:
    """function(xp, *tensors, *args) of ops on one launch, by plans. Called with the tuple of args and the tensors: the result,
    or None where the call has to go the ordinary way."""

    def __init__(self, function, gradient=None, signed=lambda args: (), usual=lambda *tensors: True, names=1):
        """gradient(args, *tensors) makes the call where a tensor needs one. The first `names` options are names or dtypes, the
        others numbers; a call with anything else goes the ordinary way, which says so. signed(args): the options of which a zero's sign
        tells. The tables cannot tell 0.0 from -0.0, so that a call with either there goes the ordinary way. So does one that is
        not usual(*tensors), which is asked where the guards do not know the call."""
        self.function, self.gradient, self.signed, self.usual = function, gradient, signed, usual
        self.plans, self.recent, self.names = {}, {}, names

    def __call__(self, args, *tensors):
        if compiling():
            return None
        try:
            for check, run in self.recent.get(args, ()):
                if check(*tensors):
                    return run(*tensors)
        except TypeError:
            if not self._fits(args):  # no key
                return None
            raise
        return self._other(args, tensors)

    def _fits(self, args):
        return (all(isinstance(v, _NAME) for v in args[:self.names]) and
                all(isinstance(v, _ops.REAL) for option in args[self.names:]
                    for v in (option if type(option) is tuple else (option,))))

    def _other(self, args, tensors):
        """Not one of the last few."""
        if not all(isinstance(t, torch.Tensor) and not _wrapped(t) for t in tensors) or not plain(*tensors):
            return None
        if not self._fits(args) or not all(self.signed(args)) or not self.usual(*tensors):
            return None
        leaf = self.gradient and any(t.requires_grad for t in tensors)
        if leaf and torch.is_grad_enabled():
            return self._call(args, tensors, functools.partial(self.gradient, args))
        key = (args, *map(_of, tensors))
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) > 4096:  # ever new shapes
                self.plans.clear()
                self.recent.clear()
            plan = self.plans[key] = _make(self.function, tensors, args)
        if not plan:
            return None
        if leaf:  # the guards do not know torch.no_grad
            return plan.run(*tensors)
        return self._call(args, tensors, plan.run)

    def _call(self, args, tensors, run):
        out = run(*tensors)
        if len(self.recent) > 1000:  # ever new options
            self.recent.clear()
        self.recent[args] = [(_guard(tensors), run), *self.recent.get(args, ())][:4]
        return out

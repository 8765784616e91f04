"""_plans.py: calls that were made before. The first call with given shapes, strides, dtypes and options goes through
ridge/_ops.py over an adapter that writes down what it does; later ones fill in the pointers: one packed argument struct, one
allocation an output, one ridge_run."""
import ctypes as C

import torch

from .. import _core
from .._core import ArgumentError, Error
from ._arrays import DTYPES, Arrays, current_device, device_of, raw_stream


def _allocator(kind):
    """empty_strided(shape, stride, dtype) on the current device; inductor's own saves half of the public one's time."""
    found = getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None)
    return found or (lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype, device=kind))


_empty = {"cpu": _allocator("cpu"), "cuda": _allocator("cuda")}
_NONE, _BASE = C.c_size_t(0), 1 << 44  # the n-th tensor's pointer while a plan is made is n times this
_FIRST = _core.FIRST_WORD
_run = _core.library_function("ridge_run")  # arguments are ctypes objects: nothing is converted
_streams = {}


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
    """One call with everything known but its pointers."""

    def __init__(self, function, tensors, args, index):
        writer = _Writer([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors])
        result = function(writer, *writer.tensors, *args)
        if len(writer.calls) != 1:
            raise _NotPlanned
        self.form, values, self.scratch = writer.calls[0]
        self.device, self.index = device_of(index), index
        self.handle = C.c_void_p(self.device.handle)
        self.empty = _empty["cpu" if index < 0 else "cuda"]
        words = [[] for _ in writer.tensors]
        template = list(values)
        for i in range(6, len(values), 3):
            if values[i]:
                words[values[i] // _BASE - 1].append((_FIRST + i, values[i] % _BASE))
                template[i] = 0
        self.inputs = [(word, number, offset) for number in range(writer.inputs) for word, offset in words[number]]
        self.outputs = [(*shape, tuple(at)) for shape, at in zip(writer.outputs, words[writer.inputs:])]
        self.single = not isinstance(result, tuple)
        self.results = [None if t is None else writer.number(t) for t in ((result,) if self.single else result)]
        self.image, self.free, self.need = bytes(self.form.call(template)), [], {}
        self.simple = self.results == [writer.inputs + i for i in range(len(self.outputs))]

    def new(self):
        buffer = C.create_string_buffer(self.image, len(self.image))
        return memoryview(buffer).cast("B").cast("Q"), C.c_void_p(C.addressof(buffer))

    def workspace(self, words, bits):
        """(pointer, bytes, memory): what the kernel wants at this alignment, from torch's allocator, which frees it in
        stream order."""
        need = self.need.get(bits)
        if need is None:
            need = self.need[bits] = self.device.workspace_bytes(_core.Call.from_buffer_copy(words.cast("B")))
        if not need:
            return None, _NONE, None
        memory = self.empty((need + 256,), (1,), torch.uint8)
        pointer = memory.data_ptr()
        return C.c_void_p(pointer + -pointer % 256), C.c_size_t(need), memory

    def __call__(self, *tensors):
        try:
            taken = self.free.pop()
        except IndexError:
            taken = self.new()
        words, outs, bits, empty = taken[0], [], 0, self.empty
        for word, number, offset in self.inputs:
            words[word] = pointer = tensors[number].data_ptr() + offset
            bits |= pointer
        for shape, stride, dtype, at in self.outputs:
            t = empty(shape, stride, dtype)
            outs.append(t)
            pointer = t.data_ptr()
            for word, offset in at:
                words[word] = pointer + offset
        if self.index < 0:
            stream = None
        else:
            raw = raw_stream(self.index)
            stream = _streams.get(raw)
            if stream is None:
                if len(_streams) > 1000:
                    _streams.clear()
                stream = _streams[raw] = C.c_void_p(raw)
        if self.scratch:
            pointer, size, memory = self.workspace(words, bits & -bits & 0xffff)  # their alignment
            status = _run(self.handle, taken[1], pointer, size, stream)
        else:
            status = _run(self.handle, taken[1], None, _NONE, stream)
        self.free.append(taken)
        if status:
            _core.check(status)
        if self.single:
            return outs[0]
        if self.simple:
            return tuple(outs)
        every = (*tensors, *outs)
        return tuple([None if i is None else every[i] for i in self.results])


def _make(function, tensors, args):
    """The plan of this call; False where there can be none."""
    index = tensors[0].get_device()
    if all(t.get_device() == index for t in tensors) and (index >= 0 or all(t.is_cpu for t in tensors)):
        try:
            return Plan(function, tensors, args, index)
        except (_NotPlanned, Error, TypeError):  # the ordinary way will do it, or say what is wrong
            pass
    return False


def of(t):
    """A tensor's part of the key."""
    return t.shape, t.stride(), t.dtype, t.get_device()


class Planned:
    """function(xp, *tensors, *args) of ops on one launch, by plans. The key of a call: of(t) for each tensor, then args."""

    def __init__(self, function):
        self.function, self.plans = function, {}

    def __call__(self, key, tensors):
        """The result, or None where the call has to go the ordinary way."""
        try:
            plan = self.plans.get(key)
        except TypeError:
            raise ArgumentError("an option is neither a number nor a string") from None
        if plan is None:
            if len(self.plans) > 4096:  # ever new shapes
                self.plans.clear()
            plan = self.plans[key] = _make(self.function, tensors, key[4 * len(tensors):])
        if plan and (plan.index < 0 or plan.index == current_device()):
            return plan(*tensors)
        return None

"""_io.py: tensors of checkpoint files (safetensors, GGUF) as numpy arrays, through libridge_io, which needs libjansson."""
import ctypes as C
import functools
import os

import numpy as np

from . import _core
from ._core import ArgumentError, FileError

MAX_RANK = 8


class _Tensor(C.Structure):
    _fields_ = [("name", C.c_char_p), ("type", C.c_uint32), ("rank", C.c_int32), ("shape", C.c_int64 * MAX_RANK),
                ("elements", C.c_int64), ("bytes", C.c_int64), ("offset", C.c_int64), ("shard", C.c_int32),
                ("reserved", C.c_int32)]


class _Type(C.Structure):
    _fields_ = [("name", C.c_char_p), ("block", C.c_int32), ("bytes", C.c_int32), ("gguf", C.c_int32),
                ("safetensors", C.c_int32), ("dequantize", C.c_int32)]


@functools.lru_cache(maxsize=None)
def _library():
    folder, tried = os.path.dirname(_core.library_path), []
    for path in (os.path.join(folder, "libridge_io.so.0"), "libridge_io.so.0"):
        try:
            lib = C.CDLL(path)
            break
        except OSError as error:
            tried.append(str(error))
    else:
        raise ImportError("ridge: libridge_io, which reads checkpoint files, does not load; it needs libjansson. "
                          + "; ".join(tried))
    lib.ridge_io_error.restype = C.c_char_p
    lib.ridge_file_open.argtypes = [C.c_char_p, C.POINTER(C.c_void_p)]
    lib.ridge_file_close.argtypes = [C.c_void_p]
    lib.ridge_file_close.restype = None
    lib.ridge_file_tensors.argtypes = [C.c_void_p]
    lib.ridge_file_tensors.restype = C.c_int64
    lib.ridge_file_tensor.argtypes = [C.c_void_p, C.c_int64]
    lib.ridge_file_tensor.restype = C.POINTER(_Tensor)
    lib.ridge_file_find.argtypes = [C.c_void_p, C.c_char_p]
    lib.ridge_file_find.restype = C.POINTER(_Tensor)
    lib.ridge_file_read.argtypes = [C.c_void_p, C.POINTER(_Tensor), C.c_int64, C.c_void_p, C.c_int64]
    lib.ridge_type_query.argtypes = [C.c_uint32]
    lib.ridge_type_query.restype = C.POINTER(_Type)
    return lib


class File:
    """An open checkpoint: a .safetensors or .gguf file, an index of shards, or a directory with one of these. A copy or a
    pickle opens the path again."""

    def __init__(self, path):
        self.handle = C.c_void_p()
        self.path = os.fspath(path)
        self.lib = _library()
        self._check(self.lib.ridge_file_open(_core.encoded("path", os.fsencode(self.path)), C.byref(self.handle)))

    def close(self):
        if self.handle:
            self.lib.ridge_file_close(self.handle)
            self.handle = C.c_void_p()

    def __del__(self):
        if getattr(self, "lib", None) is not None:
            self.close()

    def __reduce__(self):
        return File, (self.path,)

    def _opened(self):
        if not self.handle:
            raise ArgumentError(f"{self.path} is closed")
        return self.handle

    def _check(self, status):
        if status:
            raise _core._ERRORS.get(status, FileError)(self.lib.ridge_io_error().decode(errors="replace"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def names(self):
        handle = self._opened()
        return [self.lib.ridge_file_tensor(handle, i).contents.name.decode()
                for i in range(self.lib.ridge_file_tensors(handle))]

    def read(self, name):
        """(type name, shape, the tensor's bytes as uint8)"""
        found = self.lib.ridge_file_find(self._opened(), _core.encoded("the tensor's name", name))
        if not found:
            raise ArgumentError(f"{self.path} has no tensor '{name}'")
        tensor = found.contents
        out = np.empty(tensor.bytes, np.uint8)
        self._check(self.lib.ridge_file_read(self.handle, found, 0, out.ctypes.data, tensor.bytes))
        kind = self.lib.ridge_type_query(tensor.type).contents.name.decode()
        return kind, tuple(tensor.shape[:tensor.rank]), out


def read_q8_0(path, name):
    """The blocks of a two-dimensional Q8_0 tensor, uint8 [rows, cols/32*34]."""
    with File(path) as file:
        kind, shape, data = file.read(name)
    if kind != "Q8_0" or len(shape) != 2:
        raise ArgumentError(f"'{name}' of {path} is {kind} {list(shape)}, not a Q8_0 matrix")
    return data.reshape(shape[0], -1)

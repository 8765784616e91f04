"""ridge_ctypes.py: include/ridge.h for bench/peers.py through ctypes. numpy and torch are not needed here."""
import ctypes as C

MAX_DIMS, MAX_ARGS = 6, 24
F32, F16, BF16 = 1, 2, 3
I64 = 10
SWIGLU_FWD, SWIGLU_BWD = 1, 2
LINEAR_CE_EVAL, LINEAR_CE_TRAIN, LINEAR_CE_BACKWARD = 17, 18, 19


class Operand(C.Structure):
    _fields_ = [("data", C.c_void_p), ("stride", C.c_int64), ("dtype", C.c_uint32), ("reserved", C.c_uint32)]


class SwigluOptions(C.Structure):
    _fields_ = [(name, C.c_float) for name in ("gate_mul", "down_mul", "alpha", "up_offset", "limit")]


class CeOptions(C.Structure):
    _fields_ = ([(name, C.c_int64) for name in ("ignore_index", "vocab_offset", "vocab_total")] +
                [(name, C.c_float) for name in ("label_smoothing", "softcap", "temperature", "lse_square_scale", "grad_scale",
                                                "reserved")])


class Options(C.Union):
    _fields_ = [("swiglu", SwigluOptions), ("ce", CeOptions), ("space", C.c_double * 16)]


class Call(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("op", C.c_uint32), ("flags", C.c_uint32), ("reserved", C.c_uint32),
                ("kernel", C.c_char_p), ("dim", C.c_int64 * MAX_DIMS), ("arg", Operand * MAX_ARGS), ("opt", Options)]


class Library:
    """One libridge.so and one open device. ridge_run itself refuses a call whose size differs from the header's."""

    def __init__(self, path, device=None):
        self.lib = C.CDLL(path)
        self.lib.ridge_error.restype = C.c_char_p
        self.lib.ridge_open.argtypes = [C.c_char_p, C.POINTER(C.c_void_p)]
        self.lib.ridge_run.argtypes = [C.c_void_p, C.POINTER(Call), C.c_void_p, C.c_size_t, C.c_void_p]
        self.lib.ridge_workspace_bytes.argtypes = [C.c_void_p, C.POINTER(Call), C.POINTER(C.c_size_t)]
        self.lib.ridge_pick.argtypes = [C.c_void_p, C.POINTER(Call), C.c_size_t, C.POINTER(C.c_char_p)]
        self.lib.ridge_explain.argtypes = [C.c_void_p, C.POINTER(Call), C.c_char_p, C.c_size_t, C.c_void_p]
        self.device = C.c_void_p()
        self.check(self.lib.ridge_open(device.encode() if device else None, C.byref(self.device)))

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.ridge_error().decode())

    def call(self, op, dims, dtype, pointers, kernel=None):
        call = Call(struct_size=C.sizeof(Call), op=op)
        call.kernel = kernel.encode() if kernel else None
        call.opt.swiglu = SwigluOptions(1, 1, 1, 0, 0)
        for i, dim in enumerate(dims):
            call.dim[i] = dim
        for i, pointer in enumerate(pointers):
            call.arg[i] = Operand(pointer, 0, dtype, 0)
        return call

    def run(self, call, stream, workspace=None, size=0):
        self.check(self.lib.ridge_run(self.device, C.byref(call), workspace, size, stream))

    def workspace(self, call):
        size = C.c_size_t()
        self.check(self.lib.ridge_workspace_bytes(self.device, C.byref(call), C.byref(size)))
        return size.value

    def pick(self, call):
        name = C.c_char_p()
        self.check(self.lib.ridge_pick(self.device, C.byref(call), 2**63, C.byref(name)))
        return name.value.decode()

    def runnable(self, call):
        """Names of the rows that can run this call."""
        text = C.create_string_buffer(1 << 16)
        self.check(self.lib.ridge_explain(self.device, C.byref(call), text, len(text), None))
        return [line[2:].split()[0] for line in text.value.decode().splitlines()[1:] if "can run" in line]

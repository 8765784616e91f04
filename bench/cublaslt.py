"""cublaslt.py: FP8 products by a libcublasLt.so of the caller's choice, called without PyTorch: the newest release beside the
one that PyTorch brings, in one process. CUBLASLT=name=FILE[,name=FILE] in the environment names the libraries.

A product tries every algorithm that the library lists for it and keeps the fastest, so that none depends on the library's
choice."""
import ctypes
import os

import torch

BF16, E4M3, F32, COMPUTE_F32 = 14, 28, 0, 68
TYPES = {torch.bfloat16: BF16, torch.float8_e4m3fn: E4M3}
TRANSA, A_SCALE, B_SCALE, FAST_ACCUM, A_MODE, B_MODE, WORKSPACE_BYTES = 3, 17, 18, 25, 31, 32, 1
MODES = {"TENSOR": 0, "ROW": 3, "ROW128": 4, "BLK128": 5}
WORKSPACE = 64 << 20


class Heuristic(ctypes.Structure):
    _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path, mode=os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0) | os.RTLD_NOW)
        self.lib.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version, self.handle = self.lib.cublasLtGetVersion(), ctypes.c_void_p()
        self.check("cublasLtCreate", ctypes.byref(self.handle))
        self.space = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)

    def check(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def make(self, kind, *args):
        made = ctypes.c_void_p()
        self.check(f"cublasLt{kind}Create", ctypes.byref(made), *args)
        return made

    def set(self, kind, made, attribute, value):
        self.check(f"cublasLt{kind}SetAttribute", made, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def layout(self, t):
        """A row-major matrix as cuBLAS sees it: its transpose by columns."""
        return self.make("MatrixLayout", TYPES[t.dtype], ctypes.c_uint64(t.shape[1]), ctypes.c_uint64(t.shape[0]),
                         ctypes.c_int64(t.stride(0)))

    def description(self, fp8, a, sa, b, sb):
        """D^T = B A^T: cuBLAS's A is b. Scales: pairs of a mode of ridge's and a tensor."""
        made = self.make("MatmulDesc", COMPUTE_F32, F32)
        self.set("MatmulDesc", made, TRANSA, ctypes.c_int32(1))
        if fp8:
            self.set("MatmulDesc", made, FAST_ACCUM, ctypes.c_int8(1 if sa[0] in ("TENSOR", "ROW") else 0))
            for (mode, scale), pointer, place in ((sb, A_SCALE, A_MODE), (sa, B_SCALE, B_MODE)):
                self.set("MatmulDesc", made, place, ctypes.c_int32(MODES[mode]))
                self.set("MatmulDesc", made, pointer, ctypes.c_void_p(scale.data_ptr()))
        return made

    def algorithms(self, description, la, lb, ld, most):
        preference = self.make("MatmulPreference")
        self.set("MatmulPreference", preference, WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE))
        found, count = (Heuristic * most)(), ctypes.c_int()
        self.check("cublasLtMatmulAlgoGetHeuristic", self.handle, description, lb, la, ld, ld, preference, most, found,
                   ctypes.byref(count))
        return [found[i] for i in range(count.value) if not found[i].state]

    def launch(self, description, pa, la, pb, lb, pd, ld, algo):
        space, one, zero = self.space, ctypes.c_float(1), ctypes.c_float(0)
        stream = torch.cuda.current_stream().cuda_stream
        self.check("cublasLtMatmul", self.handle, description, ctypes.byref(one), ctypes.c_void_p(pb), lb, ctypes.c_void_p(pa),
                   la, ctypes.byref(zero), ctypes.c_void_p(pd), ld, ctypes.c_void_p(pd), ld, algo,
                   ctypes.c_void_p(space.data_ptr()), ctypes.c_size_t(space.numel()), ctypes.c_void_p(stream))

    def product(self, a, sa, b, sb, d, most=24):
        """(what was chosen, call(a, b, d)); sa, sb: (mode, tensor), as cuBLASLt lays them out."""
        description = self.description(a.dtype == torch.float8_e4m3fn, a, sa, b, sb)
        la, lb, ld = self.layout(a), self.layout(b), self.layout(d)
        found = self.algorithms(description, la, lb, ld, most)
        run = lambda h, a=a, b=b, d=d: self.launch(description, a.data_ptr(), la, b.data_ptr(), lb, d.data_ptr(), ld, h.algo)
        best, at = fastest(run, found)
        return f"{at + 1} of {len(found)}", lambda a, b, d, scales=(sa, sb): run(best, a, b, d)  # `scales` keeps them alive


def fastest(run, found, rounds=3):
    """The algorithm with the least time of three, and its place in the list."""
    times = []
    for at, h in enumerate(found):
        try:
            run(h)
            spans = []
            for _ in range(rounds):
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                run(h)
                end.record()
                torch.cuda.synchronize()
                spans.append(begin.elapsed_time(end))
            times.append((min(spans), at))
        except RuntimeError:
            continue
    if not times:
        raise RuntimeError("no algorithm")
    return found[min(times)[1]], min(times)[1]


def padded_blocks(scale):
    """A table of 128 x 128 blocks, its rows padded to four floats."""
    table = torch.ones(scale.shape[0], (scale.shape[1] + 3) // 4 * 4, device="cuda")
    table[:, :scale.shape[1]] = scale
    return table


def libraries():
    """{name: Library}, as CUBLASLT says."""
    out = {}
    for word in os.environ.get("CUBLASLT", "").split(","):
        name, _, path = word.partition("=")
        if path:
            try:
                out[name] = Library(path)
                print(f"cuBLASLt {name}: version {out[name].version}")
            except (OSError, RuntimeError) as error:
                print(f"left out: cuBLASLt {name}: {error}")
    return out

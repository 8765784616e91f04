"""cublaslt_grouped.py: groups of rows by cuBLASLt's grouped matmul, which takes blockwise scales on Hopper from release 13.4
on: what TransformerEngine's grouped GEMM calls, with the same descriptors (pointers, sizes and scales of each group in
arrays on the device), without TransformerEngine. CUBLASLT names the libraries, see cublaslt.py. Rows of a group are padded
to 16, as the library wants."""
import ctypes
import functools

import torch

import cublaslt as lt

SCALES = lt.MODES["BLK128"], lt.MODES["ROW128"]  # of cuBLAS's A, the weights, and of B
POINTER_MODE, DEVICE = 2, 1
AVERAGE_K, AVERAGE_ROWS, AVERAGE_COLS = 13, 14, 15
ALIGNED = 16


@functools.cache
def libraries():
    return lt.libraries()


def on_device(values, dtype):
    return torch.tensor(values, dtype=dtype, device="cuda")


def layout(library, dtype, rows, cols, lead):
    """A grouped layout; rows, cols, lead: int32 on the device, one a group."""
    made = ctypes.c_void_p()
    library.check("cublasLtGroupedMatrixLayoutCreate", ctypes.byref(made), ctypes.c_int(lt.TYPES[dtype]), ctypes.c_int(len(rows)),
                  *[ctypes.c_void_p(t.data_ptr()) for t in (rows, cols, lead)])
    return made


def padded(a, sa, given):
    """Rows of each group padded to 16, and its scales as a table of its own, [k/128][rows]."""
    wide = [(r + ALIGNED - 1) // ALIGNED * ALIGNED for r in given]
    x = torch.zeros(sum(wide), a.shape[1], device="cuda", dtype=a.dtype)
    tables, at, to = [], 0, 0
    for r, w in zip(given, wide):
        x[to:to + r] = a[at:at + r]
        table = torch.ones(sa.shape[0], max(w, ALIGNED), device="cuda")
        table[:, :r] = sa[:, at:at + r]
        tables.append(table)
        at, to = at + r, to + w
    return x, tables, wide


def product(library, a, sa, given, w, sw):
    """(which algorithm of how many, call(w), out, rows of each group); w [groups, n, k], sw by 128 x 128."""
    groups, n, k = w.shape
    x, tables, wide = padded(a, sa, given)
    out = torch.empty(len(x), n, device="cuda", dtype=torch.bfloat16)
    first = [sum(wide[:g]) for g in range(groups)]
    same, rows = (lambda v: on_device([v] * groups, torch.int32)), on_device(wide, torch.int32)
    sizes = same(n), same(k), rows
    la = layout(library, w.dtype, sizes[1], sizes[0], sizes[1])
    lb = layout(library, x.dtype, sizes[1], rows, sizes[1])
    ld = layout(library, out.dtype, sizes[0], rows, sizes[0])
    scales_b = [lt.padded_blocks(s) for s in sw]
    pointers = {}
    address = lambda parts: on_device(parts, torch.int64)
    of_x = address([x[f:].data_ptr() if f < len(x) else x.data_ptr() for f in first])
    of_d = address([out[f:].data_ptr() if f < len(x) else out.data_ptr() for f in first])
    of_sa, of_sb = address([t.data_ptr() for t in tables]), address([t.data_ptr() for t in scales_b])
    made = library.make("MatmulDesc", lt.COMPUTE_F32, lt.F32)
    library.set("MatmulDesc", made, lt.TRANSA, ctypes.c_int32(1))
    library.set("MatmulDesc", made, POINTER_MODE, ctypes.c_int32(DEVICE))
    for mode, pointer, place, table in zip(SCALES, (lt.A_SCALE, lt.B_SCALE), (lt.A_MODE, lt.B_MODE),
                                           (of_sb, of_sa)):
        library.set("MatmulDesc", made, place, ctypes.c_int32(mode))
        library.set("MatmulDesc", made, pointer, ctypes.c_void_p(table.data_ptr()))
    preference = library.make("MatmulPreference")
    library.set("MatmulPreference", preference, lt.WORKSPACE_BYTES, ctypes.c_uint64(lt.WORKSPACE))
    for attribute, value in ((AVERAGE_K, k), (AVERAGE_ROWS, n), (AVERAGE_COLS, max(1, sum(wide) // groups))):
        library.set("MatmulPreference", preference, attribute, ctypes.c_int64(value))
    most, count = 16, ctypes.c_int()
    found = (lt.Heuristic * most)()
    library.check("cublasLtMatmulAlgoGetHeuristic", library.handle, made, la, lb, ld, ld, preference, most, found,
                  ctypes.byref(count))
    factors = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], device="cuda")
    one, zero = ctypes.c_void_p(factors.data_ptr()), ctypes.c_void_p(factors.data_ptr() + 16)

    def run(h, weights):
        if id(weights) not in pointers:
            pointers[id(weights)] = address([weights[g].data_ptr() for g in range(groups)])
        of_w = pointers[id(weights)]
        library.check("cublasLtMatmul", library.handle, made, one, ctypes.c_void_p(of_w.data_ptr()), la,
                      ctypes.c_void_p(of_x.data_ptr()), lb, zero, ctypes.c_void_p(of_d.data_ptr()), ld,
                      ctypes.c_void_p(of_d.data_ptr()), ld, h.algo, ctypes.c_void_p(library.space.data_ptr()),
                      ctypes.c_size_t(library.space.numel()), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    run.keep = factors, out, x, tables, scales_b, sizes, of_x, of_d, of_sa, of_sb
    best, at = lt.fastest(lambda h: run(h, w), [found[i] for i in range(count.value) if not found[i].state])
    return f"grouped, {at + 1} of {count.value}", lambda weights: run(best, weights), out, wide


def providers(a, sa, given, sets, sw, want):
    """{"cublaslt-NAME": (kernel, call)} of the libraries whose results are within 1 % of want(group, rows) in the
    largest group: 256 rows and 128 columns at most."""
    made = {}
    for name, library in libraries().items():
        try:
            kernel, call, out, wide = product(library, a, sa, given, sets[0], sw)
            for w in sets:
                call(w)
            call(sets[0])
            torch.cuda.synchronize()
            g = max(range(len(given)), key=lambda i: given[i])
            rows, first = min(given[g], 256), sum(wide[:g])
            right = want(g, rows)
            wrong = ((out[first:first + rows, :128].double() - right).norm() / right.norm()).item()
            if wrong < 1e-2:
                made[f"cublaslt-{name}"] = (kernel, call)
            else:
                print(f"left out: cublaslt-{name}: wrong by {wrong:.3g}")
        except Exception as error:
            print(f"left out: cublaslt-{name} grouped: {type(error).__name__}: {str(error)[:160]}")
    return made

"""peers_gemm.py: the suites `decode` and `train` of peers.py.

decode: gemm_fp8 for few tokens beside cuBLASLt, cuBLAS in bf16 and, where they can be imported, DeepGEMM and TK-GEMM
(TK_GEMM_DIR: the folder of splitk_gemm_fp8.py). The floor is a read of the weights. DECODE_M and DECODE_NK in the environment
narrow it: DECODE_M=1,64 DECODE_NK=8192x8192.

train: the products that the linear layers of seven models train with, beside cuBLASLt (the algorithm that PyTorch gets from
it) and DeepGEMM, each checked against float64 before it is timed. CUBLASLT names further releases of cuBLASLt (cublaslt.py),
for both suites. TRAIN_EVERY=3 in the environment: every third problem of
each kind, by size; TRAIN_MOST=40: none of more than 40 TFLOP."""
import importlib, os, sys

import torch
import triton
import triton.language as tl

import binding
import cublaslt as lt

NK = [(8192, 8192), (10240, 8192), (57344, 8192), (8192, 28672), (7168, 2048), (4096, 14336)]
M = [1, 2, 4, 8, 16, 32, 64]
MODES = {"tensor": ("TENSOR", "TENSOR"), "row": ("ROW", "ROW"), "row128_blk128": ("ROW128", "BLK128")}
BYTES = 280e6  # of weights in a rotation: more than four times the L2 of an H200


@triton.jit
def read_kernel(words, sink, n, BLOCK: tl.constexpr, LOADS: tl.constexpr):
    at = tl.program_id(0) * BLOCK * LOADS + tl.arange(0, BLOCK)
    folded = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, n, BLOCK * LOADS * tl.num_programs(0)):
        for i in tl.static_range(LOADS):
            place = start + at + i * BLOCK
            folded ^= tl.load(words + place, mask=place < n, other=0)
    if tl.max(folded) == 0x12345678:
        tl.store(sink, 1)


def stream(w, sink, blocks, threads):
    words = w.view(torch.int32)
    return read_kernel[(132 * blocks,)](words, sink, words.numel(), BLOCK=threads * 4, LOADS=4, num_warps=threads // 32)


def optional(name, folder=None):
    if folder:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        print(f"left out: {name}: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}")
        return None


def ridge_call(m, n, k, mode, a, sa, w, sw, d, weights_const, kernel=None):
    from ridge import _abi
    return binding.call("gemm_fp8", (m, n, k), dict(a=a, scale_a=sa, b=w, scale_b=sw, d=d),
                        _abi.WEIGHTS_CONST if weights_const else 0, kernel, dict(zip("ab", MODES[mode])))


def scales(mode, m, n, k):
    """Of A and B as ridge has them: ROW128 is [k/128, m], contiguous."""
    shape = {"tensor": ((1,), (1,)), "row": ((m,), (n,)), "row128_blk128": ((k // 128, m), (n // 128, k // 128))}[mode]
    return [torch.rand(s, device="cuda") + 0.5 for s in shape]


def reference(mode, a, sa, w, sw):
    """The first 128 columns in float64."""
    a, w, k = a.double(), w[:128].double(), a.shape[1]
    if mode == "row128_blk128":
        a, w = a * sa.double().t().repeat_interleave(128, 1), w * sw[:1].double().repeat_interleave(128, 1)
    elif mode == "row":
        a, w = a * sa.double()[:, None], w * sw[:128].double()[:, None]
    else:
        a = a * sa.double() * sw.double()
    return a @ w.t()


def cublaslt(mode, m, n, k, a, sa, sw):
    """torch's scaled product; m is padded to 16, as cuBLASLt wants it."""
    rows = max(16, m)
    x = torch.zeros(rows, k, device="cuda", dtype=torch.float8_e4m3fn)
    x[:m].copy_(a)
    if mode == "tensor":
        one = [s.reshape(()) for s in (sa, sw)]
        return lambda w: torch._scaled_mm(x, w.t(), scale_a=one[0], scale_b=one[1], out_dtype=torch.bfloat16, use_fast_accum=True)
    if mode == "row":
        row = torch.ones(rows, 1, device="cuda")
        row[:m, 0] = sa
        return lambda w: torch._scaled_mm(x, w.t(), scale_a=row, scale_b=sw[None], out_dtype=torch.bfloat16, use_fast_accum=True)
    from torch.nn.functional import ScalingType, scaled_mm
    block = torch.ones(k // 128, rows, device="cuda")
    block[:, :m] = sa
    padded = torch.ones(n // 128, (k // 128 + 3) // 4 * 4, device="cuda")
    padded[:, :k // 128] = sw
    return lambda w: scaled_mm(x, w.t(), block.t(), ScalingType.BlockWise1x128, padded.t(), ScalingType.BlockWise128x128,
                               output_dtype=torch.bfloat16)


def released(library, mode, m, n, k, a, sa, w, sw):
    """As `cublaslt`, by a library of lt.libraries(): (what was chosen, call)."""
    rows = max(16, m)
    x = torch.zeros(rows, k, device="cuda", dtype=torch.float8_e4m3fn)
    x[:m].copy_(a)
    d = torch.empty(rows, len(w), device="cuda", dtype=torch.bfloat16)
    block = torch.ones((k // 128, rows) if mode == "row128_blk128" else rows, device="cuda")
    block[..., :m] = sa
    pair = {"tensor": (sa, sw), "row": (block, sw)}.get(mode) or (block, lt.padded_blocks(sw))
    chosen, call = library.product(x, (MODES[mode][0], pair[0]), w, (MODES[mode][1], pair[1]), d)

    def run(w):
        call(x, w, d)
        return d[:m]
    return f"{mode} {chosen}", run


def deepgemm(module, m, n, a, sa, sw):
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    table = sa.t()
    if hasattr(module, "get_mn_major_tma_aligned_tensor"):
        table = module.get_mn_major_tma_aligned_tensor(table.contiguous())
    return lambda w: module.fp8_gemm_nt((a, table), (w, sw), d)


def decode_suite(lib, all_kernels):
    deep, python, releases = optional("deep_gemm"), optional("ridge.torch"), lt.libraries()
    tk = optional("splitk_gemm_fp8", os.environ.get("TK_GEMM_DIR", "."))
    tokens = [int(x) for x in os.environ.get("DECODE_M", "").split(",") if x] or M
    shapes = [tuple(int(x) for x in s.split("x")) for s in os.environ.get("DECODE_NK", "").split(",") if s] or NK
    sink = torch.zeros(1, device="cuda", dtype=torch.int32)
    for n, k in shapes:
        sets = [torch.empty(n, k, device="cuda", dtype=torch.bfloat16).normal_().to(torch.float8_e4m3fn)
                for _ in range(max(3, int(BYTES // (n * k)) + 1))]
        wide = [w.to(torch.bfloat16) for w in sets[:max(3, int(BYTES // (2 * n * k)) + 1)]]
        pair = {id(w): wide[i % len(wide)] for i, w in enumerate(sets)}
        for m in tokens:
            for mode in MODES:
                a16 = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
                a = a16.to(torch.float8_e4m3fn)
                sa, sw = scales(mode, m, n, k)
                d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
                run = lambda call: lib.run(call, stream=binding.stream())
                providers = {}
                for name, const in (("ridge", False), ("ridge:weights_const", True)):
                    ready = {id(w): ridge_call(m, n, k, mode, a, sa, w, sw, d, const) for w in sets}
                    kernel = lib.pick(ready[id(sets[0])]) + (" weights_const" if const else "")
                    providers[name] = (kernel, lambda w, ready=ready: run(ready[id(w)]))
                if python:
                    providers["python"] = ("ridge.torch", lambda w: python.fp8_gemm(a, sa, w, sw, scales=mode))
                providers["cublaslt"] = (mode, cublaslt(mode, m, n, k, a, sa, sw))
                want = reference(mode, a, sa, sets[0], sw)
                for name, library in releases.items():
                    kernel, call = released(library, mode, m, n, k, a, sa, sets[0], sw)
                    wrong = ((call(sets[0])[:, :128].double() - want).norm() / want.norm()).item()
                    if wrong < 0.01:
                        providers[f"cublaslt-{name}"] = (kernel, call)
                    else:
                        print(f"left out: cublaslt-{name} at m={m} n={n} k={k} {mode}: wrong by {wrong:.3g}")
                if mode == "tensor":
                    providers["cublas-bf16"] = ("matmul", lambda w: a16 @ pair[id(w)].t())
                    for blocks, threads in ((1, 512), (2, 512), (4, 256)):
                        providers[f"stream:{blocks}x{threads}"] = ("read", lambda w, b=blocks, t=threads: stream(w, sink, b, t))
                    if tk and m >= 16:  # it reads 64 rows whatever m is
                        rows = torch.cat((a.view(torch.uint8), torch.zeros(64, k, device="cuda", dtype=torch.uint8))).view(a.dtype)[:m]
                        providers["tk-gemm"] = ("split-k", lambda w, x=rows: tk.gemm_split_k(x, w.t()))
                if deep and mode == "row128_blk128":
                    providers["deepgemm"] = ("fp8_gemm_nt", deepgemm(deep, m, n, a, sa, sw))

                def error(w):
                    run(ridge_call(m, n, k, mode, a, sa, w, sw, d, False))
                    torch.cuda.synchronize()
                    return ((d[:, :128].double() - want).norm() / want.norm()).item()

                yield dict(op="gemm_fp8", problem=f"m={m} n={n} k={k} scales={mode}", bytes=n * k + m * k + 2 * m * n,
                           flops=2 * m * n * k, sets=sets, providers=providers, error=error)
        del sets, wide, pair
        torch.cuda.empty_cache()


# name: (tokens of a sequence, hidden, inner, heads, heads of keys and values)
MODELS = {"llama-2-7b": (4096, 4096, 11008, 32, 32), "llama-2-70b": (4096, 8192, 28672, 64, 8),
          "llama-3.1-8b": (8192, 4096, 14336, 32, 8), "llama-3.1-405b": (8192, 16384, 53248, 128, 8),
          "qwen2.5-7b": (8192, 3584, 18944, 28, 4), "qwen2.5-72b": (8192, 8192, 29568, 64, 8),
          "mistral-7b": (4096, 4096, 14336, 32, 8)}


def train_problems(every):
    """(m, n, k, scales of A and B): forward and dgrad, then dW; of each the distinct ones by FLOP."""
    products, weights = set(), set()
    for sequence, hidden, inner, heads, kv in MODELS.values():
        for m in (sequence, 2 * sequence, 4 * sequence):
            for n, k in (((heads + 2 * kv) * 128, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)):
                products |= {(m, n, k), (m, k, n)}
                weights.add((n, k, m))
    most = 0.5e12 * float(os.environ.get("TRAIN_MOST", "inf"))
    for problems, modes in ((products, ("ROW128", "BLK128")), (weights, ("ROW128", "ROW128"))):
        for dims in sorted((d for d in problems if d[0] * d[1] * d[2] <= most),
                           key=lambda d: (d[0] * d[1] * d[2], d))[every // 2::every]:
            yield *dims, modes


def train_scales(mode, rows, k):
    return torch.rand((rows // 128, k // 128) if mode == "BLK128" else (k // 128, rows), device="cuda") + 0.5


def wide(x, scale, mode, rows):
    """The first rows of a matrix in float64."""
    if mode == "BLK128":
        return x[:rows].double() * scale[:rows // 128].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return x[:rows].double() * scale[:, :rows].double().t().repeat_interleave(128, 1)


def train_rivals(deep, releases, m, n, k, modes, sa, sb, first):
    """{name: (kernel, call(a, b, d), type of d, whether it adds to d)}; first: the first set of a, b and d"""
    from torch.nn.functional import ScalingType, scaled_mm
    one = torch.ones((), device="cuda")
    if modes[1] == "BLK128":
        table = torch.ones(n // 128, (k // 128 + 3) // 4 * 4, device="cuda")
        table[:, :k // 128] = sb
        recipe = (ScalingType.BlockWise1x128, table.t(), ScalingType.BlockWise128x128)
    else:
        recipe = (ScalingType.BlockWise1x128, sb.t(), ScalingType.BlockWise1x128)
    out = {"cublaslt": ("blockwise", lambda a, b, d: scaled_mm(
               a, b.t(), sa.t(), recipe[0], recipe[1], recipe[2], output_dtype=torch.bfloat16), torch.bfloat16, False),
           "cublaslt-tensor": ("per tensor", lambda a, b, d: torch._scaled_mm(
               a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True), torch.bfloat16, False)}
    for name, library in releases.items():
        blocks = [lt.padded_blocks(s) if mode == "BLK128" else s for s, mode in zip((sa, sb), modes)]
        for kind, (a, b) in (("", zip(modes, blocks)), ("-tensor", [("TENSOR", one.reshape(1))] * 2)):
            try:
                chosen, call = library.product(first[0], a, first[1], b, first[2])
                out[f"cublaslt-{name}{kind}"] = (("blockwise " if not kind else "per tensor ") + chosen, call, torch.bfloat16, False)
            except RuntimeError as error:
                print(f"left out: cublaslt-{name}{kind} at m={m} n={n} k={k}: {error}")
    if deep:
        tables = [deep.get_mn_major_tma_aligned_tensor(s.t().contiguous()) if mode == "ROW128" else s
                  for s, mode in zip((sa, sb), modes)]
        if modes[1] == "BLK128":
            out["deepgemm"] = ("1d2d", lambda a, b, d: deep.fp8_gemm_nt((a, tables[0]), (b, tables[1]), d), torch.bfloat16, False)
        else:
            out["deepgemm"] = ("1d1d", lambda a, b, d: deep.fp8_gemm_nt((a, tables[0]), (b, tables[1]), d, c=d, recipe=(1, 1, 128)),
                               torch.float32, True)
    return out


def train_suite(lib, all_kernels):
    deep, releases = optional("deep_gemm"), lt.libraries()
    for m, n, k, modes in train_problems(int(os.environ.get("TRAIN_EVERY", "1"))):
        sets = []
        for _ in range(int(BYTES // (m * k + n * k + 2 * m * n)) + 1):
            sets.append([torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn) for rows in (m, n)]
                        + [torch.empty(m, n, device="cuda", dtype=torch.bfloat16)])
        sa, sb = (train_scales(mode, rows, k) for mode, rows in zip(modes, (m, n)))
        make = lambda t, kernel=None: binding.call("gemm_fp8", (m, n, k), dict(
            a=t[0], scale_a=sa, b=t[1], scale_b=sb, d=t[2]), 0, kernel, dict(zip("ab", modes)))
        space = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)  # stream-K rows need some
        run = lambda call: lib.run(call, space.data_ptr(), space.numel(), binding.stream())
        picked, providers = lib.pick(make(sets[0]), space.numel()), {}
        names = {"ridge": picked}
        if all_kernels:
            names |= {f"ridge:{row}": row for row in binding.runnable(lib, make(sets[0])) if row != picked}
        for provider, kernel in names.items():
            ready = {id(t): make(t, kernel) for t in sets}
            providers[provider] = (kernel, lambda t, ready=ready: run(ready[id(t)]))
        rows = min(m, 256)
        want = wide(sets[0][0], sa, modes[0], rows) @ wide(sets[0][1], sb, modes[1], 128).t()
        off = lambda d: ((d[:rows, :128].double() - want).norm() / want.norm()).item()
        for name, (kernel, call, kind, adds) in train_rivals(deep, releases, m, n, k, modes, sa, sb, sets[0]).items():
            outs = {id(t): t[2] if kind == torch.bfloat16 else torch.zeros(m, n, device="cuda", dtype=kind) for t in sets}
            try:
                got = call(sets[0][0], sets[0][1], outs[id(sets[0])])
                wrong = off(outs[id(sets[0])] if got is None else got)
                if name.endswith("-tensor") or wrong < 0.01:
                    providers[name] = (kernel, lambda t, call=call, outs=outs: call(t[0], t[1], outs[id(t)]))
                else:
                    print(f"left out: {name} at m={m} n={n} k={k}: wrong by {wrong:.3g}")
            except Exception as error:
                print(f"left out: {name} at m={m} n={n} k={k}: {str(error).splitlines()[0][:160]}")
        yield dict(op="gemm_fp8", problem=f"m={m} n={n} k={k} scales={'_'.join(modes).lower()}",
                   bytes=m * k + n * k + 2 * m * n, flops=2 * m * n * k, sets=sets, providers=providers, error=lambda t: off(t[2]))
        del sets, providers
        torch.cuda.empty_cache()

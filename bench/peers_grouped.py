"""peers_grouped.py: the suite `grouped` of peers.py: gemm_fp8_grouped of rows, to bf16, beside torch._grouped_mm in bf16 and,
where it can be imported, DeepGEMM's product of contiguous groups, whose rows are padded to 128 a group. `dense` is one
product of ridge of all rows with one weight: the same FLOP without groups."""
import importlib

import torch

import binding

# groups, n, k of a layer's first and second product; of DeepSeek-V3 and Qwen3 the experts of one of eight devices
SHAPES = {"deepseek-v3": ((32, 4096, 7168), (32, 7168, 2048)), "qwen3-30b": ((16, 1536, 2048), (16, 2048, 768)),
          "mixtral": ((8, 28672, 4096),)}
ROWS = (64, 256, 1024, 4096)  # of a group in the mean
ROUTINGS = ("equal", "zipf", "one")
MOST = 1 << 16  # rows in all
CACHE = 200e6  # bytes of weights in a rotation


def sizes(routing, groups, rows):
    """Rows of each group; their sum is groups * rows."""
    if routing == "equal":
        return [rows] * groups
    if routing == "one":
        return [groups * rows if g == groups // 2 else 0 for g in range(groups)]
    weight = [1 / (g + 1) for g in range(groups)]
    given = [int(groups * rows * w / sum(weight)) for w in weight]
    given[0] += groups * rows - sum(given)
    return given


def optional(name):
    try:
        return importlib.import_module(name)
    except Exception as error:
        print(f"left out: {name}: {type(error).__name__}")
        return None


def codes(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)


def deepgemm(deep, a, sa, sw, given, n):
    """The rows of each group padded to whole blocks of 128, with zeros."""
    wide = [(r + 127) // 128 * 128 for r in given]
    group = torch.cat([torch.full((w,), g, dtype=torch.int32) for g, w in enumerate(wide)]).cuda()
    x, scale = torch.zeros(sum(wide), a.shape[1], device="cuda", dtype=a.dtype), torch.ones(sum(wide), sa.shape[0], device="cuda")
    at = to = 0
    for r, w in zip(given, wide):
        x[to:to + r] = a[at:at + r]
        scale[to:to + r] = sa[:, at:at + r].t()
        at, to = at + r, to + w
    if hasattr(deep, "get_mn_major_tma_aligned_tensor"):
        scale = deep.get_mn_major_tma_aligned_tensor(scale)
    d = torch.empty(sum(wide), n, device="cuda", dtype=torch.bfloat16)
    return lambda w: deep.m_grouped_fp8_gemm_nt_contiguous((x, scale), (w, sw), d, group)


def problem(lib, all_kernels, deep, name, groups, n, k, rows, routing):
    given = sizes(routing, groups, rows)
    m, ends = sum(given), torch.tensor(given).cumsum(0).to(torch.int32).cuda()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int32, device="cuda"), ends])
    sets = [codes(groups, n, k) for _ in range(max(2, int(CACHE // (groups * n * k)) + 1))]
    a16 = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    a, d = a16.to(torch.float8_e4m3fn), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    sa, sw = torch.rand(k // 128, m, device="cuda") + 0.5, torch.rand(groups, n // 128, k // 128, device="cuda") + 0.5
    scaling = {"a": "ROW128", "b": "BLK128"}
    make = lambda w, kernel=None: binding.call("gemm_fp8_grouped", (m, n, k, groups), dict(
        a=a, scale_a=sa, b=w, scale_b=sw, d=d, offsets=offsets), 0, kernel, scaling)
    run = lambda call: lib.run(call, stream=binding.stream())
    picked, providers = lib.pick(make(sets[0])), {}
    names = {"ridge": picked}
    if all_kernels:
        names |= {f"ridge:{row}": row for row in binding.runnable(lib, make(sets[0])) if row != picked}
    for provider, kernel in names.items():
        ready = {id(w): make(w, kernel) for w in sets}
        providers[provider] = (kernel, lambda w, ready=ready: run(ready[id(w)]))
    one = {id(w): binding.call("gemm_fp8", (m, n, k), dict(a=a, scale_a=sa, b=w[0], scale_b=sw[0], d=d), 0, None, scaling)
           for w in sets}
    providers["dense"] = (lib.pick(one[id(sets[0])], 0), lambda w: run(one[id(w)]))
    wide = sets[0].to(torch.bfloat16)
    providers["torch-bf16"] = ("_grouped_mm", lambda w: torch._grouped_mm(a16, wide.transpose(1, 2), offs=ends))
    if deep:
        providers["deepgemm"] = ("m_grouped_fp8_gemm_nt_contiguous", deepgemm(deep, a, sa, sw, given, n))

    def error(w):
        g = max(range(groups), key=lambda i: given[i])
        first = sum(given[:g])
        part = slice(first, first + min(given[g], 256))
        want = ((a[part].double() * sa[:, part].double().t().repeat_interleave(128, 1)) @
                (w[g][:128].double() * sw[g][:1].double().repeat_interleave(128, 1)).t())
        return ((d[part, :128].double() - want).norm() / want.norm()).item()

    return dict(op="gemm_fp8_grouped", problem=f"model={name} m={m} n={n} k={k} groups={groups} routing={routing}",
                bytes=groups * n * k + m * k + 2 * m * n, flops=2 * m * n * k, sets=sets, providers=providers, error=error)


def grouped_suite(lib, all_kernels):
    deep = optional("deep_gemm")
    for name, shapes in SHAPES.items():
        for (groups, n, k), rows, routing in ((s, r, w) for s in shapes for r in ROWS for w in ROUTINGS):
            if groups * rows <= MOST and (routing == "equal" or rows == 1024):
                yield problem(lib, all_kernels, deep, name, groups, n, k, rows, routing)
                torch.cuda.empty_cache()

"""peers_grouped.py: the suites of peers.py for gemm_fp8_grouped: `grouped` (groups of rows, 24 problems and 5), `grouped_k`
(gradients of the experts' weights) and `grouped_masked` (few rows an expert), beside torch._grouped_mm in bf16, cuBLASLt's
grouped matmul where CUBLASLT names a library that has it (cublaslt_grouped.py) and, where it can be imported, DeepGEMM, whose
contiguous groups are padded to 128 rows. `dense` is one product of ridge of all rows with one weight: the same FLOP without
groups. `padded`: ridge's product where each group has DeepGEMM's rows. `read`: a read of the weights of the experts that have
rows.

GROUPED_ROWS in the environment narrows `grouped` to problems of these rows an expert, GROUPED_ROWS=64,256, and
GROUPED_FROM to those from that number on."""
import importlib, os

import torch

import binding

# groups, n, k of a layer's two products, of the experts of one of eight devices (Mixtral: of all)
LAYERS = {"deepseek-v3": ((32, 4096, 7168), (32, 7168, 2048)), "kimi-k2": ((48, 4096, 7168), (48, 7168, 2048)),
          "qwen3-30b": ((16, 1536, 2048), (16, 2048, 768)), "qwen3-235b": ((16, 3072, 4096), (16, 4096, 1536)),
          "gpt-oss-120b": ((16, 5760, 2880), (16, 2880, 2880)), "mixtral": ((8, 28672, 4096), (8, 4096, 14336))}
# layer, which of its products, rows an expert in the mean, routing
PROBLEMS = (("deepseek-v3", 0, 64, "equal"), ("deepseek-v3", 0, 256, "equal"), ("deepseek-v3", 0, 1024, "zipf"),
            ("deepseek-v3", 0, 4096, "equal"), ("deepseek-v3", 1, 128, "zipf"), ("deepseek-v3", 1, 512, "equal"),
            ("deepseek-v3", 1, 2048, "one"), ("kimi-k2", 0, 64, "zipf"), ("kimi-k2", 0, 512, "equal"),
            ("kimi-k2", 1, 256, "equal"), ("kimi-k2", 1, 1024, "zipf"), ("qwen3-30b", 0, 256, "equal"),
            ("qwen3-30b", 0, 2048, "zipf"), ("qwen3-30b", 0, 8192, "equal"), ("qwen3-30b", 1, 512, "zipf"),
            ("qwen3-30b", 1, 2048, "equal"), ("qwen3-235b", 0, 128, "equal"), ("qwen3-235b", 0, 1024, "equal"),
            ("qwen3-235b", 1, 4096, "zipf"), ("gpt-oss-120b", 0, 256, "zipf"), ("gpt-oss-120b", 0, 1024, "equal"),
            ("gpt-oss-120b", 1, 2048, "zipf"), ("mixtral", 0, 512, "one"), ("mixtral", 1, 2048, "equal"))
# the same of rows that find their experts by chance, so that hardly a group is a multiple of 128
PROBLEMS += tuple((*problem, "random") for problem in (("deepseek-v3", 0, 256), ("kimi-k2", 1, 128), ("qwen3-30b", 0, 256),
                                                       ("qwen3-235b", 0, 128), ("gpt-oss-120b", 1, 256)))
CACHE = 200e6  # bytes of weights in a rotation


def sizes(routing, groups, rows):
    """Rows of each group; their sum is groups * rows."""
    if routing == "equal":
        return [rows] * groups
    if routing == "one":
        return [groups * rows if g == groups // 2 else 0 for g in range(groups)]
    if routing == "random":
        drawn = torch.randint(groups, (groups * rows,), generator=torch.Generator().manual_seed(7))
        return drawn.bincount(minlength=groups).tolist()
    weight = [1 / (g + 1) for g in range(groups)]
    given = [int(groups * rows * w / sum(weight)) for w in weight]
    given[0] += groups * rows - sum(given)
    return given


def optional(name):
    try:
        return importlib.import_module(name)
    except Exception as error:
        print(f"left out: {name}: {type(error).__name__}: {str(error)[:160]}")
        return None


def blocks(x):
    return (x + 127) // 128


def codes(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)


def scales(*shape):
    return torch.rand(*shape, device="cuda") + 0.5


def tma_aligned(deep, scale):
    """[.., rows, blocks] as DeepGEMM's kernels load it."""
    return deep.get_mn_major_tma_aligned_tensor(scale.contiguous())


def padded(a, sa, given):
    """The rows of each group and zeros up to whole blocks of 128, their scales, and how many rows each group has then."""
    wide = [blocks(r) * 128 for r in given]
    x = torch.zeros(sum(wide), a.shape[1], device="cuda", dtype=a.dtype)
    scale = torch.ones(sa.shape[0], sum(wide), device="cuda")
    at = to = 0
    for r, w in zip(given, wide):
        x[to:to + r] = a[at:at + r]
        scale[:, to:to + r] = sa[:, at:at + r]
        at, to = at + r, to + w
    return x, scale, wide


def contiguous(deep, x, scale, wide, sw, n):
    group = torch.cat([torch.full((w,), g, dtype=torch.int32) for g, w in enumerate(wide)]).cuda()
    scale = tma_aligned(deep, scale.t())
    d = torch.empty(sum(wide), n, device="cuda", dtype=torch.bfloat16)
    return lambda w: deep.m_grouped_fp8_gemm_nt_contiguous((x, scale), (w, sw), d, group)


def ends_of(given):
    return torch.tensor([0] + given).cumsum(0).to(torch.int32).cuda()


def ridge_providers(lib, all_kernels, sets, make):
    """The row that is picked, and with --kernels all others. make(set, kernel)."""
    picked = lib.pick(make(sets[0], None))
    names = {"ridge": None}
    if all_kernels:
        names |= {f"ridge:{row}": row for row in binding.runnable(lib, make(sets[0], None)) if row != picked and ".mma" not in row}
    space, providers = torch.zeros(1 << 16, device="cuda", dtype=torch.uint8), {}
    for provider, kernel in names.items():
        ready = {id(w): make(w, kernel) for w in sets}
        # `make` keeps the tensors that the calls point to
        providers[provider] = (kernel or picked, lambda w, ready=ready, make=make: lib.run(
            ready[id(w)], space.data_ptr(), space.numel(), binding.stream()))
    return providers


def weights(groups, n, k):
    return [codes(groups, n, k) for _ in range(max(2, int(CACHE // (groups * n * k)) + 1))]


def rows_problem(lib, all_kernels, deep, name, groups, n, k, rows, routing):
    given = sizes(routing, groups, rows)
    m, offsets = sum(given), ends_of(given)
    sets = weights(groups, n, k)
    a, d = codes(m, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    sa, sw = scales(blocks(k), m), scales(groups, blocks(n), blocks(k))
    scaling = {"a": "ROW128", "b": "BLK128"}
    make = lambda w, kernel: binding.call("gemm_fp8_grouped", (m, n, k, groups), dict(
        a=a, scale_a=sa, b=w, scale_b=sw, d=d, offsets=offsets), 0, kernel, scaling)
    providers = ridge_providers(lib, all_kernels, sets, make)
    x, scale, wide = padded(a, sa, given)
    if wide != given:
        full, d_wide = ends_of(wide), torch.empty(len(x), n, device="cuda", dtype=torch.bfloat16)
        whole = {id(w): binding.call("gemm_fp8_grouped", (len(x), n, k, groups), dict(
            a=x, scale_a=scale, b=w, scale_b=sw, d=d_wide, offsets=full), 0, None, scaling) for w in sets}
        providers["padded"] = (lib.pick(whole[id(sets[0])]), lambda w, keep=(x, scale, full, d_wide): lib.run(
            whole[id(w)], stream=binding.stream()))
    one = {id(w): binding.call("gemm_fp8", (m, n, k), dict(a=a, scale_a=sa, b=w[0], scale_b=sw[0], d=d), 0, None, scaling)
           for w in sets}
    need = lib.workspace_bytes(one[id(sets[0])])
    space = torch.empty(max(need, 1), device="cuda", dtype=torch.uint8)
    providers["dense"] = (lib.pick(one[id(sets[0])]), lambda w: lib.run(one[id(w)], space.data_ptr(), need, binding.stream()))
    if m * k < 1 << 29:
        a16, w16 = a.to(torch.bfloat16), sets[0].to(torch.bfloat16)
        providers["torch-bf16"] = ("_grouped_mm", lambda w: torch._grouped_mm(a16, w16.transpose(1, 2), offs=offsets[1:]))
    if deep:
        providers["deepgemm"] = ("m_grouped_fp8_gemm_nt_contiguous", contiguous(deep, x, scale, wide, sw, n))

    def right(w, g, rows):
        part = slice(sum(given[:g]), sum(given[:g]) + rows)
        return ((a[part].double() * sa[:, part].double().t().repeat_interleave(128, 1)[:, :k]) @
                (w[g][:128].double() * sw[g][:1].double().repeat_interleave(128, 1)[:, :k]).t())

    def error(w):
        g = max(range(groups), key=lambda i: given[i])
        first, rows = sum(given[:g]), min(given[g], 256)
        want = right(w, g, rows)
        return ((d[first:first + rows, :128].double() - want).norm() / want.norm()).item()

    if os.environ.get("CUBLASLT"):
        import cublaslt_grouped
        providers |= cublaslt_grouped.providers(a, sa, given, sets, sw, lambda g, rows: right(sets[0], g, rows))

    return dict(op="gemm_fp8_grouped", problem=f"model={name} m={m} n={n} k={k} groups={groups} routing={routing}",
                bytes=groups * n * k + m * k + 2 * m * n, flops=2 * m * n * k, sets=sets, providers=providers, error=error)


def masked_problem(lib, all_kernels, deep, name, groups, n, k, rows):
    most = 128
    sets = weights(groups, n, k)
    a, d = codes(groups, most, k), torch.empty(groups, most, n, device="cuda", dtype=torch.bfloat16)
    sa, sw = scales(blocks(k), groups * most), scales(groups, blocks(n), blocks(k))
    counts = torch.full((groups,), rows, dtype=torch.int32, device="cuda")
    make = lambda w, kernel: binding.call("gemm_fp8_grouped", (most, n, k, groups), dict(
        a=a, scale_a=sa, b=w, scale_b=sw, d=d, offsets=counts), binding.constant("GROUPED_MASKED"), kernel,
        {"a": "ROW128", "b": "BLK128"})
    providers = ridge_providers(lib, all_kernels, sets, make)
    import peers_gemm  # needs Triton
    sink = torch.zeros(1, device="cuda", dtype=torch.int32)
    for shape in ((1, 512), (2, 512), (4, 256)):
        providers[f"stream:{shape[0]}x{shape[1]}"] = ("read", lambda w, s=shape: peers_gemm.stream(w, sink, *s))
    if deep:
        scale = tma_aligned(deep, sa.t().reshape(groups, most, blocks(k)))
        out = torch.empty_like(d)
        providers["deepgemm"] = ("fp8_m_grouped_gemm_nt_masked", lambda w: deep.fp8_m_grouped_gemm_nt_masked(
            (a, scale), (w, sw), out, counts, rows))

    def error(w):
        want = ((a[-1, :rows].double() * sa[:, -most:][:, :rows].double().t().repeat_interleave(128, 1)[:, :k]) @
                (w[-1][:128].double() * sw[-1][:1].double().repeat_interleave(128, 1)[:, :k]).t())
        return ((d[-1, :rows, :128].double() - want).norm() / want.norm()).item()

    return dict(op="gemm_fp8_grouped", problem=f"model={name} mode=masked m={most} rows={rows} n={n} k={k} groups={groups}",
                bytes=groups * (n * k + rows * k + 2 * rows * n), flops=2 * groups * rows * n * k, sets=sets, providers=providers,
                error=error)


def k_problem(lib, all_kernels, deep, name, groups, m, n, rows):
    """dW [groups, m, n] from `rows` tokens a group. Each set is the two outputs, one in bf16 and one added to in f32."""
    k = groups * rows
    a, b, sa, sb = codes(m, k), codes(n, k), scales(blocks(k), m), scales(blocks(k), n)
    sets = [(torch.zeros(groups, m, n, device="cuda", dtype=torch.bfloat16), torch.zeros(groups, m, n, device="cuda"))
            for _ in range(2)]
    offsets = torch.arange(0, k + 1, rows, dtype=torch.int32, device="cuda")
    flag = binding.constant("GROUPED_K")
    call = lambda d, flags, kernel: binding.call("gemm_fp8_grouped", (m, n, k, groups), dict(
        a=a, scale_a=sa, b=b, scale_b=sb, d=d, offsets=offsets), flags, kernel, {"a": "ROW128", "b": "ROW128"})
    providers = ridge_providers(lib, all_kernels, sets, lambda s, kernel: call(s[0], flag, kernel))
    ready = {id(s): call(s[1], flag | binding.constant("ACCUMULATE"), None) for s in sets}
    providers["ridge-f32"] = (lib.pick(ready[id(sets[0])]), lambda s: lib.run(ready[id(s)], stream=binding.stream()))
    if k % 16 == 0 and (m + n) * k < 1 << 30:
        at, bt, ends = a.to(torch.bfloat16).t(), b.to(torch.bfloat16).t(), offsets[1:].contiguous()
        providers["torch-bf16"] = ("_grouped_mm", lambda s: torch._grouped_mm(at.t(), bt, offs=ends))
    if deep:
        part = lambda x: torch.cat([x[:, g * rows:(g + 1) * rows].reshape(-1) for g in range(groups)])
        x, y, counts = part(a), part(b), torch.full((groups,), rows, dtype=torch.int32, device="cuda")
        providers["deepgemm-f32"] = ("k_grouped_fp8_gemm_nt_contiguous", lambda s: deep.k_grouped_fp8_gemm_nt_contiguous(
            (x, sa.t()), (y, sb.t()), s[1], [rows] * groups, counts, s[1]))

    def error(s):
        part = slice((groups - 1) * rows, k)
        dq = lambda x, scale: x[:128, part].double() * scale[part.start // 128:, :128].double().t().repeat_interleave(128, 1)
        want = dq(a, sa) @ dq(b, sb).t()
        return ((s[0][-1, :128, :128].double() - want).norm() / want.norm()).item()

    return dict(op="gemm_fp8_grouped", problem=f"model={name} mode=k m={m} n={n} k={k} groups={groups}",
                bytes=(m + n) * k + 2 * groups * m * n, flops=2 * m * n * k, sets=sets, providers=providers, error=error)


def narrowed():
    return [int(x) for x in os.environ.get("GROUPED_ROWS", "").split(",") if x]


def grouped_suite(lib, all_kernels):
    deep = optional("deep_gemm")
    for name, product, rows, routing in PROBLEMS[int(os.environ.get("GROUPED_FROM", 0)):]:
        if not narrowed() or rows in narrowed():
            yield rows_problem(lib, all_kernels, deep, name, *LAYERS[name][product], rows, routing)
            torch.cuda.empty_cache()


def masked_suite(lib, all_kernels):
    deep = optional("deep_gemm")
    for name, layer in LAYERS.items():
        for groups, n, k in layer:
            for rows in narrowed() or (8, 32, 64):
                yield masked_problem(lib, all_kernels, deep, name, groups, n, k, rows)
                torch.cuda.empty_cache()


def k_suite(lib, all_kernels):
    deep = optional("deep_gemm")
    for name, layer in LAYERS.items():
        for groups, m, n in layer:
            for rows in narrowed() or (2048,):
                yield k_problem(lib, all_kernels, deep, name, groups, m, n, rows)
                torch.cuda.empty_cache()

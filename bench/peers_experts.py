"""peers_experts.py: experts in e4m3 with x in e4m3, one token or a few, by others, as records (bench/records) of the problems
that ridge's moe_gate_up_swiglu and moe_down have: SGLang's Triton kernel fused_moe_kernel in several settings, and DeepGEMM's
masked grouped product. Neither makes swiglu, the weighted sum over slots (Triton multiplies by the slots' weights) nor codes of
x; their lists of rows are made beforehand, every slot has another expert as long as there are some.

    FUSED_MOE=sglang/kernels/ops/moe/fused_moe_triton_kernels.py python3 bench/peers_experts.py FILE.csv

PART=I/N in the environment: every N-th kernel is compiled and nothing is timed, so that N processes fill the caches at once;
FUSED_MOE_VERSION goes into the records.

A graph has as many calls as it takes to read 1200 MB of weights, none twice; times are those of whole graphs by events."""
import datetime, importlib.util, os, statistics, sys, types

import torch
import triton.language as tl

# name, columns, rows, experts, slots
LAYERS = (("deepseek-v3", 7168, 2048, 32, 8), ("qwen3-30b", 2048, 768, 128, 8))
# columns of a tile, stages, whether launches are programmatic; 4 warps
SETTINGS = tuple((n, stages, early) for n, stages in ((32, 4), (64, 3), (64, 4), (128, 3)) for early in (False, True))
TOKENS, ROTATION, ROUNDS, TILE = (1, 8, 16), 1200e6, 15, 16


def load_fused_moe(path):
    """The file of the kernel alone: what it imports of SGLang is replaced, on an NVIDIA GPU from sm_90 on."""
    def fake(name, **names):
        module = sys.modules[name] = types.ModuleType(name)
        module.__dict__.update(names)

    no, yes, none = lambda *a: False, lambda *a: True, None
    fake("sglang.kernels.jit.utils", is_arch_support_pdl=yes)
    fake("sglang.kernels.ops.quantization.fp8_kernel", per_token_group_quant_fp8=none, scaled_fp8_quant=none,
         sglang_per_token_group_quant_fp8=none)
    fake("sglang.kernels.ops.quantization.int8_kernel", per_token_group_quant_int8=none, per_token_quant_int8=none,
         sglang_per_token_group_quant_int8=none)
    fake("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=no)
    fake("sglang.srt.environ", envs=types.SimpleNamespace(SGLANG_USE_AITER=types.SimpleNamespace(get=no)))
    fake("sglang.srt.layers.moe.utils", get_moe_padding_size=lambda x: 0)
    fake("sglang.srt.utils", cpu_has_amx_support=no, is_cpu=no, is_cuda=yes, is_hip=no, is_sm90_supported=yes)
    spec = importlib.util.spec_from_file_location("fused_moe_triton_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def codes(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)


def scales(*shape):
    return torch.rand(*shape, device="cuda") + 0.5


class Problem:
    """A product of a layer: `n` rows of an expert's weights, calls[i] = (weights, scales, experts of the pairs)."""

    def __init__(self, op, name, cols, rows, experts, slots, tokens):
        up = op == "moe_gate_up_swiglu"
        self.op, self.name, self.up, self.tokens, self.slots, self.experts = op, name, up, tokens, slots, experts
        self.cols, self.rows = (cols, rows) if up else (rows, cols)
        self.k, self.n, self.pairs = self.cols, 2 * rows if up else cols, tokens * slots
        self.active = min(self.pairs, experts)
        self.bytes = self.active * self.n * self.k
        count = max(int(ROTATION / self.bytes) + 1, 2)
        each = max(experts // self.active, 1)
        sets = [(codes(experts, self.n, self.k), scales(experts, self.n // 128, self.k // 128))
                for _ in range((count + each - 1) // each)]
        self.calls = [(*sets[i // each], [(i * self.active + p) % experts for p in range(self.pairs)])
                      for i in range(count)]
        self.x = codes(tokens if up else self.pairs, self.k)
        self.sx = scales(self.x.shape[0], self.k // 128)

    def text(self):
        return (f"tokens={self.tokens} cols={self.cols} rows={self.rows} experts={self.experts} slots={self.slots} "
                f"x=e4m3 w=e4m3 out=bf16")

    def want(self, call, pair):
        """The first 128 results of a pair, in float64, without the slot's weight."""
        w, sw, ids = call
        row = pair // self.slots if self.up else pair
        x = self.x[row].double() * self.sx[row].double().repeat_interleave(128)
        return (w[ids[pair]][:128].double() * sw[ids[pair]][:1].double().repeat_interleave(128, 1)) @ x


def triton_calls(module, p, setting):
    n, stages, early = setting
    weight = torch.full((p.tokens, p.slots), 1.0, device="cuda")
    out = torch.empty(p.pairs, p.n, device="cuda", dtype=torch.bfloat16)
    runs = []
    module.is_arch_support_pdl = lambda: early
    for w, sw, ids in p.calls:
        rows, of = [], []
        for e in sorted(set(ids)):
            mine = [i for i, other in enumerate(ids) if other == e]
            while mine:
                rows += mine[:TILE] + [p.pairs] * (TILE - len(mine[:TILE]))
                of.append(e)
                mine = mine[TILE:]
        given = [torch.tensor(t, device="cuda", dtype=torch.int32) for t in (rows, of, [len(rows)])]
        topk = torch.tensor(ids, device="cuda", dtype=torch.int32).reshape(p.tokens, p.slots)
        config = dict(BLOCK_SIZE_M=TILE, BLOCK_SIZE_N=n, BLOCK_SIZE_K=128, GROUP_SIZE_M=1, num_stages=stages, num_warps=4)
        runs.append(lambda w=w, sw=sw, given=given, topk=topk: module.invoke_fused_moe_kernel(
            p.x, w, None, out, p.sx, sw, None, weight, topk, *given, not p.up, p.slots if p.up else 1, config, tl.bfloat16,
            True, False, False, False, False, [128, 128]))
    return runs, lambda i: out[i, :128]


def deep_calls(deep, p):
    most = 64
    x, sx = codes(p.experts, most, p.k), scales(p.experts, most, p.k // 128)
    out = torch.empty(p.experts, most, p.n, device="cuda", dtype=torch.bfloat16)
    runs = []
    for w, sw, ids in p.calls:
        counts = torch.tensor([ids.count(e) for e in range(p.experts)], device="cuda", dtype=torch.int32)
        runs.append(lambda w=w, sw=sw, counts=counts: deep.fp8_m_grouped_gemm_nt_masked(
            (x, aligned), (w, sw), out, counts, max(p.pairs // p.experts, 1)))
    for i, e in enumerate(p.calls[0][2]):  # the rows of the first call, which is checked
        row = i // p.slots if p.up else i
        at = p.calls[0][2][:i].count(e)
        x[e, at], sx[e, at] = p.x[row], p.sx[row]
    aligned = deep.get_mn_major_tma_aligned_tensor(sx)
    return runs, lambda i: out[p.calls[0][2][i], p.calls[0][2][:i].count(p.calls[0][2][i]), :128]


def measure(runs):
    """Microseconds a call: median, fifth and fourth fifth, of a graph of all calls."""
    runs[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, repeats = [], 1
    for round in range(ROUNDS + 3):
        graph.replay()
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        us = start.elapsed_time(end) * 1e3 / repeats
        repeats = int(6000 / us) + 1
        times.append(us / len(runs))
    times = sorted(times[3:])
    return statistics.median(times), times[len(times) // 5], times[-1 - len(times) // 5]


def main():
    part, parts = (int(x) for x in os.environ.get("PART", "0/0").split("/"))
    module = load_fused_moe(os.environ["FUSED_MOE"]) if os.environ.get("FUSED_MOE") else None
    try:
        import deep_gemm as deep
    except Exception as error:
        print(f"left out: deep_gemm: {type(error).__name__}: {str(error)[:160]}")
        deep = None
    file = open(sys.argv[1], "a")
    stamp, name = datetime.datetime.now(datetime.timezone.utc), torch.cuda.get_device_name()
    commit = {"triton": os.environ.get("FUSED_MOE_VERSION", ""), "deepgemm": getattr(deep, "__version__", "")}
    global ROTATION
    ROTATION = 1 if parts else ROTATION
    at = 0
    for layer in LAYERS:
        for tokens in TOKENS:
            for op in ("moe_gate_up_swiglu", "moe_down"):
                p = Problem(op, *layer, tokens)
                kernels = [("triton", f"fused_moe.n{s[0]}.s{s[1]}{'.pdl' if s[2] else ''}",
                            lambda s=s: triton_calls(module, p, s))
                        for s in SETTINGS if module] + ([("deepgemm", "masked", lambda: deep_calls(deep, p))] if deep else [])
                for provider, kernel, make in kernels:
                    at += 1
                    if parts and at % parts != part:
                        continue
                    runs, result = make()
                    runs[0]()
                    error = max(((result(i).double() - p.want(p.calls[0], i)).norm() / p.want(p.calls[0], i).norm()).item()
                                for i in (0, p.pairs - 1))
                    if parts:
                        continue
                    us, low, high = measure(runs)
                    flops = 2 * p.pairs * p.n * p.k
                    print(f"{stamp:%Y%m%dT%H%M%S}-{os.getpid()},{stamp:%Y-%m-%dT%H:%M:%SZ},{commit[provider]},{name},,peers,"
                          f"{op},{p.text()},"
                          f"{provider},{kernel},{us:.6g},{low:.6g},{high:.6g},{flops / us * 1e-6:.6g},"
                          f"{p.bytes / us * 1e-3:.6g},,{error:.3g},", file=file, flush=True)
                del p, kernels
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""peers.py: ridge beside what people use today, in one process, on the same tensors, interleaved.

    python3 bench/peers.py [--suite swiglu] [--lib FILE] [--csv FILE] [--commit ID] [--kernels]

Every provider is captured into a CUDA graph of one call per set of buffers (enough sets that the L2 holds none when its
turn comes) and replayed; every round replays every provider twice, the first time untimed, in an order of its own; reported
are the median and the 20/80 percentiles of the time of one call. Columns as `ridge bench --csv` writes them. A provider that
cannot be imported is left out, in one line.
"""
import argparse, datetime, importlib, itertools, math, os, random, statistics, sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import binding

COLUMNS = ("run,date,commit,device,driver,suite,op,problem,provider,kernel,us,us_p20,us_p80,tflops,gbps,floor_us,err,"
           "peak_bytes").split(",")
CACHE = 4 * 60e6  # bytes that a rotation must exceed: four times the largest L2 of Hopper
SHAPES = [(64, 14336), (1024, 14336), (2048, 14336)] + [(8192, n) for n in (4096, 11008, 14336, 18944, 28672, 29568, 53248)]


def optional(name):
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the import raises, the others still run
        print(f"left out: {name}: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}")
        return None


def capture(calls):
    """A graph that makes the calls one after another."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.kept = [call() for call in calls]  # so that each call has an output of its own, as ridge's have
    return graph


def time_all(graphs, calls, rounds):
    """{provider: sorted us of one call}, one replay of each provider a round, in random order, each after one of its own
    that is not timed."""
    times = {name: [] for name in graphs}
    order = list(graphs.items())
    for round_ in range(-3, rounds):
        random.shuffle(order)
        for name, graph in order:
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if round_ >= 0:
                times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return {name: sorted(t) for name, t in times.items()}


def bf16_error(got, want):
    """Largest error in bf16 ulps of the float64 result (2^-20 of slack around zero)."""
    exponent = torch.floor(torch.log2(want.abs().clamp_min(2.0**-126)))
    return ((got.double() - want).abs() / (2.0 ** (exponent - 7) + 2.0**-20)).max().item()


# ------------------------------------------------------------------------------------------------------------- swiglu
# A suite yields problems: op, problem text, bytes, flops, sets of buffers, {provider: (kernel name, call(set))}, and
# check(set) -> error after a provider's call, or None.

def swiglu_tensors(rows, cols, count):
    sets = max(2, min(64, int(CACHE // (count * rows * cols * 2)) + 1))
    return [[torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(count)] for _ in range(sets)]


def swiglu_suite(lib, all_kernels):
    liger, python = optional("liger_kernel.ops.swiglu"), optional("ridge.torch")

    def fwd_math(a, b):
        return F.silu(a) * b

    def bwd_math(dy, a, b):
        s = torch.sigmoid(a.float())
        h = a.float() * s
        return (dy.float() * b.float() * (s + h * (1 - s))).to(a.dtype), (dy.float() * h).to(a.dtype)

    def bwd_eager(dy, a, b):
        return torch.ops.aten.silu_backward(dy * b, a), dy * F.silu(a)

    fwd_compiled, bwd_compiled = torch.compile(fwd_math, dynamic=False), torch.compile(bwd_math, dynamic=False)

    def tiled(function, arguments):
        """Liger with its column-tiled kernel forced, where its module has the switch."""
        before = liger._should_tile
        liger._should_tile = lambda *a, **k: True
        try:
            return function(*arguments)
        finally:
            liger._should_tile = before

    def ridge(op, rows, cols, names):
        make = lambda t, kernel=None: binding.call(op, (rows, cols), dict(zip(names, t)), kernel=kernel)
        return make, lambda call: lib.run(call, stream=binding.stream())

    for backward, (rows, cols) in itertools.product((False, True), SHAPES):
        sets = swiglu_tensors(rows, cols, 5 if backward else 3)
        op = "swiglu_bwd" if backward else "swiglu_fwd"
        names = ("dout", "gate", "up", "dgate", "dup") if backward else ("gate", "up", "out")
        make, run = ridge(op, rows, cols, names)
        probe = make(sets[0])
        picked = lib.pick(probe)
        kernels = {"ridge": picked}
        if all_kernels:
            kernels |= {f"ridge:{name}": name for name in binding.runnable(lib, probe) if name != picked}
        providers = {}
        for name, kernel in kernels.items():
            ready = {id(t): make(t, kernel) for t in sets}
            providers[name] = (kernel, lambda t, ready=ready: run(ready[id(t)]))
        if python:  # the same kernels through ridge.torch
            more = (None, "silu", [1.0, 1.0, 1.0, 0.0, 0.0], False, False, False, False)
            entry = ((lambda t: torch.ops.ridge.swiglu_backward(*t[:3], *more)) if backward else
                     (lambda t: python.swiglu(t[0], t[1])))
            providers["python"] = ("ridge.torch", entry)
        inputs = (lambda t: (t[0], t[1], t[2])) if backward else (lambda t: (t[0], t[1]))
        providers["torch"] = ("eager", lambda t: (bwd_eager if backward else fwd_math)(*inputs(t)))
        providers["torch.compile"] = ("inductor", lambda t: (bwd_compiled if backward else fwd_compiled)(*inputs(t)))
        if liger:
            # Liger's backward writes over a and b: it gets outputs and inputs of its own.
            entry = ((lambda t: liger.swiglu_backward(t[3], t[4], t[0])) if backward else
                     (lambda t: liger.swiglu_forward(t[0], t[1])))
            providers["liger"] = ("one-row", entry)
            if hasattr(liger, "_should_tile"):
                providers["liger-tiled"] = ("tiled", lambda t, e=entry: tiled(e, (t,)))
        half = rows * cols * (5 if backward else 3) // 2
        flat = [torch.empty(2 * half, device="cuda", dtype=torch.bfloat16).normal_() for _ in sets]
        index = {id(t): i for i, t in enumerate(sets)}
        providers["copy"] = ("copy_", lambda t: flat[index[id(t)]][:half].copy_(flat[index[id(t)]][half:]))

        def error(t):
            n = min(rows, 64)
            a, b = ((t[1], t[2]) if backward else (t[0], t[1]))
            a, b = a[:n].double(), b[:n].double()
            s = torch.sigmoid(a)
            if not backward:
                return bf16_error(t[2][:n], a * s * b)
            dy = t[0][:n].double()
            return max(bf16_error(t[3][:n], dy * b * s * (1 + a * (1 - s))), bf16_error(t[4][:n], dy * a * s))

        if backward and liger:
            for t in sets:  # what Liger overwrites starts as good data
                t[3].normal_(), t[4].normal_()
        size = rows * cols
        yield dict(op=op, problem=f"rows={rows} cols={cols} dtype=bf16",
                   bytes=2 * size * (5 if backward else 3), flops=size * (11 if backward else 5), sets=sets,
                   providers=providers, error=error)
        del sets, flat, providers
        torch.cuda.empty_cache()


def decode_suite(lib, all_kernels):
    import peers_gemm  # needs Triton
    yield from peers_gemm.decode_suite(lib, all_kernels)


def train_suite(lib, all_kernels):
    import peers_gemm
    yield from peers_gemm.train_suite(lib, all_kernels)


def norm_suite(lib, all_kernels):
    import peers_norm
    yield from peers_norm.norm_suite(lib, all_kernels)


def attention_suite(lib, all_kernels):
    import peers_attention
    yield from peers_attention.attention_suite(lib, all_kernels)


def grouped_suite(name):
    def suite(lib, all_kernels):
        import peers_grouped
        yield from getattr(peers_grouped, name)(lib, all_kernels)
    return suite


SUITES = {"swiglu": swiglu_suite, "decode": decode_suite, "train": train_suite, "norm": norm_suite,
          "attention": attention_suite, "grouped": grouped_suite("grouped_suite"), "grouped_k": grouped_suite("k_suite"),
          "grouped_masked": grouped_suite("masked_suite")}


# --------------------------------------------------------------------------------------------------------------- main

def measure(problem, rounds):
    graphs = {}
    errors = {}
    for name, (kernel, call) in problem["providers"].items():
        try:
            if name.startswith("ridge"):
                call(problem["sets"][0])
                torch.cuda.synchronize()
                errors[name] = problem["error"](problem["sets"][0])
            graphs[name] = capture([lambda t=t, call=call: call(t) for t in problem["sets"]])
        except Exception as error:
            print(f"left out: {name} at {problem['op']} {problem['problem']}: {str(error).splitlines()[0][:160]}")
    times = time_all(graphs, len(problem["sets"]), rounds)
    for graph in graphs.values():
        graph.reset()
        graph.kept = None
    return times, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", default="swiglu", choices=SUITES)
    parser.add_argument("--lib", help="a libridge.so; else the package's")
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", action="store_true", help="every row of ridge that can run, not only the one picked")
    args = parser.parse_args()
    lib = binding.library(args.lib)
    torch._dynamo.config.recompile_limit = 64
    now = datetime.datetime.now(datetime.timezone.utc)
    base = dict(run=now.strftime("%Y%m%dT%H%M%S") + f"-peers{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                commit=args.commit, device=torch.cuda.get_device_name(), suite=args.suite,
                driver=f"CUDA {torch.version.cuda} torch {torch.__version__}")
    warm = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(600):
        warm @ warm
    torch.cuda.synchronize()
    out = None
    if args.csv:
        new = not os.path.exists(args.csv) or os.path.getsize(args.csv) == 0
        out = open(args.csv, "a")
        if new:
            out.write(",".join(COLUMNS) + "\n")
    ratios = {}
    for problem in SUITES[args.suite](lib, args.kernels):
        times, errors = measure(problem, args.rounds)
        floor = min((statistics.median(t) for name, t in times.items() if name == "copy" or name.startswith("stream:")),
                    default=math.nan)
        line = f"{problem['op']:11s} {problem['problem']:36s}"
        for name, t in times.items():
            us = statistics.median(t)
            row = dict(base, op=problem["op"], problem=problem["problem"], provider="ridge" if name.startswith("ridge") else name,
                       kernel=problem["providers"][name][0], us=us, us_p20=t[len(t) // 5], us_p80=t[-1 - len(t) // 5],
                       tflops=problem["flops"] / us * 1e-6, gbps=problem["bytes"] / us * 1e-3, floor_us=floor,
                       err=errors.get(name, ""), peak_bytes="")
            if out:
                out.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]).replace(",", " ")
                                   for c in COLUMNS) + "\n")
                out.flush()
            line += f" {name.replace('ridge:', '')} {us:.2f} us"
            if name != "ridge" and not name.startswith("ridge:"):
                ratios.setdefault((problem["op"], name), []).append((us / statistics.median(times["ridge"]), problem["problem"]))
        gbps = problem["bytes"] / statistics.median(times["ridge"]) * 1e-3
        print(f"{line} | ridge {gbps:.0f} GB/s, err {errors.get('ridge', math.nan):.3f} ulp", flush=True)
    for (op, name), values in sorted(ratios.items()):
        mean = math.exp(sum(math.log(v) for v, _ in values) / len(values))
        worst = min(values)
        print(f"{op}: ridge is {mean:.3f} x as fast as {name}, worst {worst[0]:.3f} at {worst[1]}")


if __name__ == "__main__":
    main()

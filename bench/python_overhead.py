"""python_overhead.py: host microseconds of one call through ridge.torch, beside ctypes alone and PyTorch's own ops.

    python3 bench/python_overhead.py [--csv FILE] [--commit ID] [--device cuda]

Small operands, so that the GPU is never behind; the median over rounds of 200 calls (20 of many launches each) between two
synchronisations. "added" in the table is the call less the same launch through the reused argument struct (form.run).
"""
import argparse
import datetime
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import ridge.torch as R  # noqa: E402
from ridge import _abi as A  # noqa: E402
from ridge import _core  # noqa: E402

COLUMNS = ("run,date,commit,device,driver,suite,op,problem,provider,kernel,us,us_p20,us_p80,tflops,gbps,floor_us,err,"
           "peak_bytes").split(",")


def host_us(call, sync, calls=200, rounds=25):
    times = []
    for round_ in range(-3, rounds):
        sync()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        end = time.perf_counter()
        if round_ >= 0:
            times.append((end - begin) / calls * 1e6)
    sync()
    return sorted(times)


def form_run(device, name, flags, dims, operands, options=(), scaling=()):
    """The launch alone: a packed struct and ridge_run. operands: in the order of the slots, or {name: tensor}."""
    if isinstance(operands, dict):
        named, operands = operands, [None] * (max(A.SLOTS[name].values()) + 1)
        for slot, t in named.items():
            operands[A.SLOTS[name][slot]] = t
    form = _core.form(name, flags, options, scaling)
    on = _core.device("cpu" if device == "cpu" else "cuda:0")
    stream = None if device == "cpu" else torch.cuda.current_stream().cuda_stream
    values = (*dims, *(0,) * (6 - len(dims)))
    for t in operands:
        values += (0, 0, 0) if t is None else (t.data_ptr(), 0, R._on_tensors.operand(t, 0)[2])
    need = on.workspace_bytes(form.call(values))
    space = torch.empty(need + 256, device=device, dtype=torch.uint8)
    pointer = space.data_ptr() + -space.data_ptr() % 256 if need else None
    return lambda kept=(operands, space): form.run(on, values, pointer, need, stream)


def cases(device):
    """(op, problem, {provider: call})"""
    bf16 = dict(device=device, dtype=torch.bfloat16)
    a, b = torch.randn(1, 512, **bf16), torch.randn(1, 512, **bf16)
    out = torch.empty_like(a)
    ap, bp = a.clone().requires_grad_(), b.clone().requires_grad_()
    yield "swiglu_fwd", "no gradient", {
        "ctypes": form_run(device, "swiglu_fwd", A.SILU, (1, 512), (a, b, out, None)),
        "ridge": lambda: R.swiglu(a, b), "torch": lambda: F.silu(a) * b, "torch.add": lambda: a + b,
        "dispatcher": lambda: torch.ops.ridge.swiglu(a, b, None, "silu", [1.0, 1.0, 1.0, 0.0, 0.0], False, False, False)}
    yield "swiglu_fwd", "gradient", {"ridge": lambda: R.swiglu(ap, bp), "torch": lambda: F.silu(ap) * bp, "torch.add": lambda: ap + bp}
    g = torch.randn(1, 512, **bf16)

    def train(function):
        ap.grad = bp.grad = None
        function(ap, bp).backward(g)

    yield "swiglu_bwd", "as autograd calls it", {
        "ctypes": form_run(device, "swiglu_bwd", A.SILU, (1, 512), {"dout": g, "gate": a, "up": b, "dgate": out,
                                                                    "dup": torch.empty_like(a)}),
        "ridge": lambda: R._functions._swiglu_backward(("silu", (1.0, 1.0, 1.0, 0.0, 0.0), False, False, False), g, a, b)}
    yield "swiglu", "forward + backward", {"ridge": lambda: train(R.swiglu), "torch": lambda: train(lambda x, y: F.silu(x) * y)}
    x = torch.randn(128, 256, **bf16)
    q, s = R.quantize_fp8(x)
    w, ws = R.quantize_fp8(torch.randn(256, 256, **bf16), "blk128")
    d = torch.empty(128, 256, **bf16)
    yield "quantize_fp8", "row128", {"ctypes": form_run(device, "quantize_fp8", 0, (128, 256), (x, q, s, None, None), (),
                                                        (("q", A.SCALING_ROW128),)),
                                     "ridge": lambda: R.quantize_fp8(x)}
    q2, s2, qt, st = R.quantize_fp8_dual(x)
    yield "quantize_fp8_dual", "row_row", {"ctypes": form_run(device, "quantize_fp8_dual", 0, (128, 256), (x, q2, s2, qt, st, None), (),
                                                              (("q", A.SCALING_ROW128), ("q_t", A.SCALING_ROW128))),
                                           "ridge": lambda: R.quantize_fp8_dual(x)}
    yield "gemm_fp8", "row128_blk128", {"ctypes": form_run(device, "gemm_fp8", 0, (128, 256, 256), (q, s, w, ws, d, None), (),
                                                           (("a", A.SCALING_ROW128), ("b", A.SCALING_BLK128))),
                                        "ridge": lambda: R.fp8_gemm(q, s, w, ws)}
    yield from loss_cases(device)
    codes, scales = R.q8_0_repack(R.q8_0_quantize(torch.randn(256, 256, **bf16)))
    yield "q8_0_matmul", "tokens=1", {"ridge": lambda: R.q8_0_matmul(a[:, :256], codes, scales)}


def loss_cases(device):
    x, w = torch.randn(64, 256, device=device, dtype=torch.bfloat16), torch.randn(512, 256, device=device, dtype=torch.bfloat16)
    t, loss = torch.randint(512, (64,), device=device), torch.zeros((), device=device)
    xp, wp = x.clone().requires_grad_(), w.clone().requires_grad_()
    head = {"x": x, "w": w, "target": t, "loss": loss}

    def train(function):
        xp.grad = wp.grad = None
        function(xp, wp, t).backward()

    def plain(x, w, t):
        return F.cross_entropy(F.linear(x, w).float(), t)

    dims = (64, 256, 512)
    yield "linear_ce_eval", "no gradient", {"ctypes": form_run(device, "linear_ce_eval", A.CE_MEAN, dims, head),
                                            "ridge": lambda: R.linear_cross_entropy(x, w, t), "torch": lambda: plain(x, w, t)}
    both = {"dx": torch.empty_like(x), "dw": torch.empty_like(w)}
    yield "linear_ce_train", "forward", {"ctypes": form_run(device, "linear_ce_train", A.CE_MEAN, dims, {**head, **both}),
                                         "ridge": lambda: R.linear_cross_entropy(xp, wp, t), "torch": lambda: plain(xp, wp, t)}
    yield "linear_ce_train", "forward + backward", {"ridge": lambda: train(R.linear_cross_entropy), "torch": lambda: train(plain)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    sync = torch.cuda.synchronize if args.device == "cuda" else (lambda: None)
    now = datetime.datetime.now(datetime.timezone.utc)
    base = dict.fromkeys(COLUMNS, "") | dict(
        run=now.strftime("%Y%m%dT%H%M%S") + f"-host{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"), commit=args.commit,
        device=torch.cuda.get_device_name() if args.device == "cuda" else "CPU", suite="host",
        driver=f"CUDA {torch.version.cuda} torch {torch.__version__}")
    rows = []
    for op, problem, providers in cases(args.device):
        results = {}
        for name, call in providers.items():
            try:
                call()
            except R._core.Error as error:
                print(f"left out: {op} {problem} {name}: {str(error)[:140]}")
                continue
            t = results[name] = host_us(call, sync, 20 if op.startswith("linear_ce") else 200)
            rows.append(dict(base, op="host_call", problem=f"op={op} {problem}", provider=name, kernel="python", us=statistics.median(t),
                             us_p20=t[len(t) // 5], us_p80=t[-1 - len(t) // 5]))
        line = "  ".join(f"{name} {statistics.median(t):.2f}" for name, t in results.items())
        if "ctypes" in results and "ridge" in results:
            line += f"  added {statistics.median(results['ridge']) - statistics.median(results['ctypes']):.2f}"
        print(f"{op:17s} {problem:14s} {line}", flush=True)
    if args.csv:
        new = not os.path.exists(args.csv) or os.path.getsize(args.csv) == 0
        with open(args.csv, "a") as f:
            if new:
                f.write(",".join(COLUMNS) + "\n")
            for row in rows:
                f.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS) + "\n")


if __name__ == "__main__":
    main()

"""peers_ce_cpu.py: linear cross entropy on the CPU beside sgemm of the same dimensions (eval one product, train three), in one
process, one after the other.

    LD_PRELOAD=TORCH/lib/libgomp-....so OMP_WAIT_POLICY=active python3 bench/peers_ce_cpu.py [--lib build/libridge.so] [--csv FILE]
        [--commit ID] [--rounds N] [--shapes 2048x1024x32000,...] [--only NAMES]

sgemm: torch.mm (MKL) and numpy.matmul (OpenBLAS as a rule). With one OpenMP runtime for all, idle threads may spin; numpy's
OpenBLAS has threads of its own, beside which they must not: --only ridge-bf16,ridge-f32,numpy without the two variables. Every
timed call follows an untimed one of its own, in an order of its own. err: the largest error of 16 rows' losses against float64.
Columns as `ridge bench --csv` writes them.
"""
import argparse, datetime, os, platform, random, statistics, time

import numpy
import torch

import binding
from peers import COLUMNS

SHAPES = "2048x1024x32000,512x2048x50257"


class Problem:
    def __init__(self, tokens, hidden, vocab):
        torch.manual_seed(1)
        self.dims, self.text = (tokens, hidden, vocab), f"tokens={tokens} hidden={hidden} vocab={vocab}"
        self.x, self.w = torch.randn(tokens, hidden), torch.randn(vocab, hidden).mul_(1.5 / hidden**0.5)
        self.y = torch.randint(vocab, (tokens,))
        self.flops = 2.0 * tokens * hidden * vocab


def ridge_calls(device, p, dtype):
    """{op: (kernel, call, its largest error)}"""
    x, w = p.x.to(dtype), p.w.to(dtype)
    loss, each, dx, dw = torch.zeros(1), torch.zeros(p.dims[0]), torch.zeros_like(x), torch.zeros_like(p.w)
    z = x[:16].double() @ w.double().T
    want = z.logsumexp(1) - z.gather(1, p.y[:16, None])[:, 0]
    out = {}
    for op, more in (("linear_ce_eval", {}), ("linear_ce_train", dict(dx=dx, dw=dw))):
        call = binding.call(op, p.dims, dict(x=x, w=w, target=p.y, loss=loss, token_loss=each, **more))
        need = device.workspace_bytes(call)
        space = torch.empty(need + 256, dtype=torch.uint8)
        start = (space.data_ptr() + 255) // 256 * 256
        kept = (x, w, space, loss, each, dx, dw)

        def run(call=call, start=start, need=need, kept=kept):
            device.run(call, start, need)

        run()
        out[op] = device.pick(call), run, (each[:16].double() - want).abs().max().item()
    return out


def products(p, multiply, x, w, dz, numbers):
    """x W^T; and with dz W and dz^T x. The operands are ready, the results' memory is."""
    z, dx, dw = numbers(p.dims[0], p.dims[2]), numbers(*p.dims[:2]), numbers(*p.dims[:0:-1])

    def eval():
        multiply(x, w.T, out=z)

    def train():
        eval()
        multiply(dz, w, out=dx)
        multiply(dz.T, x, out=dw)

    return {"linear_ce_eval": ("sgemm", eval, ""), "linear_ce_train": ("sgemm", train, "")}


def providers(device, p, only):
    dz = torch.randn(p.dims[0], p.dims[2])
    makers = {"ridge-bf16": lambda: ridge_calls(device, p, torch.bfloat16),
              "ridge-f32": lambda: ridge_calls(device, p, torch.float32),
              "torch": lambda: products(p, torch.mm, p.x, p.w, dz, torch.empty),
              "numpy": lambda: products(p, numpy.matmul, p.x.numpy(), p.w.numpy(), dz.numpy(),
                                        lambda *shape: numpy.empty(shape, numpy.float32))}
    return [(op, name, *entry) for name in only for op, entry in makers[name]().items()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", help="a libridge.so; else the package's")
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--only", default="ridge-bf16,ridge-f32,torch")
    args = parser.parse_args()
    device = binding.library(args.lib, "cpu")
    torch.set_num_threads(os.cpu_count())
    now = datetime.datetime.now(datetime.timezone.utc)
    base = dict(run=now.strftime("%Y%m%dT%H%M%S") + f"-{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                commit=args.commit, device=device.info["name"] or platform.processor(), suite="linear_ce-cpu", floor_us="",
                driver=f"torch {torch.__version__} numpy {numpy.__version__}", peak_bytes="", gbps="")
    out = open(args.csv, "a") if args.csv else None
    if out and out.tell() == 0:
        out.write(",".join(COLUMNS) + "\n")
    for shape in args.shapes.split(","):
        p = Problem(*map(int, shape.split("x")))
        runs = providers(device, p, args.only.split(","))
        times = {run[:2]: [] for run in runs}
        for _ in range(args.rounds):
            for op, name, _, call, _ in random.sample(runs, len(runs)):
                call()
                start = time.perf_counter()
                call()
                times[op, name].append((time.perf_counter() - start) * 1e6)
        for op, name, kernel, _, err in runs:
            t, flops = sorted(times[op, name]), p.flops * (1 if op == "linear_ce_eval" else 3)
            us = statistics.median(t)
            row = dict(base, op=op, problem=p.text, provider=name, kernel=kernel, us=us, us_p20=t[len(t) // 5],
                       us_p80=t[-1 - len(t) // 5], tflops=flops / us * 1e-6, err=err)
            if out:
                out.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]).replace(",", " ")
                                   for c in COLUMNS) + "\n")
                out.flush()
            print(f"{op:15s} {p.text:38s} {name:10s} {us * 1e-3:8.2f} ms [{row['us_p20'] * 1e-3:.2f}, {row['us_p80'] * 1e-3:.2f}] "
                  f"{flops / us * 1e-3:7.0f} GFLOP/s {err}", flush=True)


if __name__ == "__main__":
    main()

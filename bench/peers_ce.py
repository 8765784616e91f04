"""peers_ce.py: linear cross entropy: ridge beside what people use today, in one process, on the same tensors, one after the other.

    python3 bench/peers_ce.py [--lib build/libridge.so] [--csv FILE] [--commit ID] [--rounds N] [--shapes 0,1,...] [--only NAMES]

Eval, forward + backward (dW in f32; "ridge_dw16": in 16 bits, as the rivals write it), and backward alone. Rivals: cuBLAS on
the single product x W^T, torch eager, torch.compile, PyTorch's chunked loss where it has one (2.13 up), and Liger, Apple CCE
and quack where they can be imported; "liger_cute" and "liger_scaled" are Liger's two operators for Hopper in the CuTe DSL, of
which the former computes its gradients in any case and is timed with them alone. peak_bytes: memory beyond the inputs, gradients
included. err: of the gradients, relative to float64 by rms over sampled rows of dX and dW, the larger of the two. Columns as
`ridge bench --csv` writes them. quack imports only from a site-packages or dist-packages.
"""
import argparse, copy, datetime, os, statistics, sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import binding
from peers import COLUMNS, optional

SHAPES = [(4096, 4096, 128256), (8192, 4096, 128256), (8192, 2304, 256000), (8192, 4096, 151936), (16384, 2048, 32000),
          (1024, 4096, 128256), (32768, 4096, 128256)]
IGNORED = -100


class Problem:
    def __init__(self, tokens, hidden, vocab):
        torch.manual_seed(1)
        self.dims = (tokens, hidden, vocab)
        self.x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        self.w = torch.randn(vocab, hidden, device="cuda", dtype=torch.bfloat16).mul_(1.5 / hidden**0.5)
        self.y = torch.randint(vocab, (tokens,), device="cuda")
        self.text = f"tokens={tokens} hidden={hidden} vocab={vocab} dtype=bf16"

    def half(self):
        """The same x and W."""
        other = copy.copy(self)
        other.y = self.y.clone()
        other.y[1::2] = IGNORED
        other.text += " half of the rows ignored"
        return other

    def bytes(self, op):
        """Each operand once: x and W, and the gradients (dW in f32)."""
        tokens, hidden, vocab = self.dims
        read = 2 * hidden * (tokens + vocab)
        return read + (0 if op == "linear_ce_eval" else 2 * tokens * hidden + 4 * vocab * hidden)

    def flops(self, products):
        tokens, hidden, vocab = self.dims
        return products * 2.0 * tokens * hidden * vocab


class Ridge:
    """The three calls with their own outputs and one workspace."""

    def __init__(self, lib, p, kernel=None):
        tokens, hidden, vocab = p.dims
        self.lib, self.p = lib, p
        self.loss = torch.zeros(1, device="cuda")
        self.lse = torch.zeros(tokens, device="cuda")
        self.dx = torch.zeros_like(p.x)
        self.dw = torch.zeros(vocab, hidden, device="cuda")
        self.dw16 = torch.zeros(vocab, hidden, device="cuda", dtype=p.x.dtype)  # as the rivals write it
        head, gradients = dict(x=p.x, w=p.w, target=p.y), dict(dx=self.dx, dw=self.dw)
        more = {"eval": dict(loss=self.loss, lse=self.lse), "train": dict(loss=self.loss, **gradients),
                "backward": dict(lse=self.lse, **gradients),
                "train16": dict(loss=self.loss, dx=self.dx, dw=self.dw16)}
        self.calls = {name: binding.call(f"linear_ce_{name.removesuffix('16')}", p.dims, {**head, **operands}, ignore_index=IGNORED)
                      for name, operands in more.items()}
        self.need = {name: lib.workspace_bytes(call) for name, call in self.calls.items()}
        self.space = torch.empty(max(self.need.values()), device="cuda", dtype=torch.uint8)

    def run(self, name):
        self.lib.run(self.calls[name], self.space.data_ptr(), self.need[name], binding.stream())

    def extra(self, name):
        dw = self.dw16 if name == "train16" else self.dw
        return self.need[name] + (0 if name == "eval" else self.dx.nbytes + dw.nbytes)


def reference(p, rows=16, classes=64):
    """float64 gradients of sampled rows and classes."""
    tokens, hidden, vocab = p.dims
    valid = (p.y != IGNORED).nonzero().flatten()
    lse = torch.cat([torch.logsumexp(torch.mm(x, p.w.T, out_dtype=torch.float32), 1) for x in p.x.split(1024)])
    some = valid[torch.linspace(0, len(valid) - 1, rows, device="cuda").long()]
    u = torch.cat([p.x[some].double() @ w.double().T for w in p.w.split(16384)], 1)
    g = torch.softmax(u, 1)
    g[torch.arange(rows), p.y[some]] -= 1
    dx = sum(g[:, i:i + 16384] @ p.w[i:i + 16384].double() for i in range(0, vocab, 16384)) / len(valid)
    cls = torch.cat([p.y[valid[:classes // 2]], torch.arange(classes // 2, device="cuda")])
    q = torch.exp(p.x[valid].double() @ p.w[cls].double().T - lse[valid].double()[:, None])
    q -= (p.y[valid][:, None] == cls[None]).double()
    return some, dx, cls, q.T @ p.x[valid].double() / len(valid)


def error(got_dx, got_dw, truth):
    some, dx, cls, dw = truth
    rms = lambda a, b: ((a.double() - b).norm() / b.norm()).item()
    return max(rms(got_dx[some], dx), rms(got_dw[cls], dw))


def torch_loss(x, w, y):
    return F.cross_entropy((x @ w.T).float(), y, ignore_index=IGNORED)


def rivals(only):
    """{name: loss(x, w, y)}"""
    out = {"torch": torch_loss, "torch.compile": torch.compile(torch_loss, dynamic=False)}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):  # PyTorch's own in chunks of tokens, from 2.13 on
        out["torch.chunked"] = lambda x, w, y: F.linear_cross_entropy(x, w, y, ignore_index=IGNORED,
                                                                      options=torch.nn.LinearCrossEntropyOptions())
    python = optional("ridge.torch")  # ridge's own kernels through its PyTorch function, gradients scaled and cast
    if python:
        out["python"] = lambda x, w, y: python.linear_cross_entropy(x, w, y, ignore_index=IGNORED)
    liger = optional("liger_kernel.ops.fused_linear_cross_entropy")
    cute, scaled = (optional(f"liger_kernel.ops.cutedsl.ops.fused_{name}_cross_entropy_sm90") for name in ("linear", "scaled"))
    cce = optional("cut_cross_entropy")
    quack = optional("quack.linear_cross_entropy")
    if liger:
        out["liger"] = lambda x, w, y: liger.LigerFusedLinearCrossEntropyFunction.apply(x, w, y)[0]
    if cute:
        out["liger_cute"] = lambda x, w, y: cute.liger_fused_linear_cross_entropy_sm90(x, w, y)
    if scaled:
        apply = scaled.LigerFusedScaledCrossEntropySM90Function.apply
        out["liger_scaled"] = lambda x, w, y: apply(x, w, y).sum() / (y != IGNORED).sum()
    if cce:
        out["cce"] = lambda x, w, y: cce.linear_cross_entropy(x, w, y)
        out["cce_exact"] = lambda x, w, y: cce.linear_cross_entropy(x, w, y, impl="cce_exact")  # keeps small gradients
    if quack:
        def chunked(fused):
            def loss(x, w, y):  # 0.6.5 cannot tell rows from columns where a chunk has as many rows as x has columns
                rows = 2048 if fused is None and min(4096, x.shape[0]) == x.shape[1] else 4096
                return quack.chunked_linear_cross_entropy(x, w, y, chunk_size=rows, ignore_index=IGNORED, tuned=False,
                                                          use_scaled_exp=fused)
            return loss
        out["quack"] = chunked(None)  # its own choice: on Hopper the backward by scaled exponentials
        out["quack_plain"] = chunked(False)  # logits, cross entropy and gradients; its search won 0.1 % of dW at B = 1024
    return {name: loss for name, loss in out.items() if not only or name in only.split(",")}


def passes(p, ridge, names, leaf):
    """[(op, provider, flops, call, extra bytes or None)]"""
    out = [("linear_ce_eval", "ridge", p.flops(1), lambda: ridge.run("eval"), ridge.extra("eval")),
           ("linear_ce_train", "ridge", p.flops(3), lambda: ridge.run("train"), ridge.extra("train")),
           ("linear_ce_train", "ridge_dw16", p.flops(3), lambda: ridge.run("train16"), ridge.extra("train16")),
           ("linear_ce_backward", "ridge", p.flops(3), lambda: ridge.run("backward"), ridge.extra("backward"))]

    def train(loss):
        leaf[0].grad = leaf[1].grad = None
        loss(leaf[0], leaf[1], p.y).backward()

    def forward(loss):
        with torch.no_grad():
            loss(p.x, p.w, p.y)

    for name, loss in names.items():
        if name != "liger_cute":
            out.append(("linear_ce_eval", name, p.flops(1), lambda loss=loss: forward(loss), None))
        out.append(("linear_ce_train", name, p.flops(3), lambda loss=loss: train(loss), None))
    return out


def measure(problems, lib, names, rounds):
    """Problems of one x and W, in the same rounds; the product, which all have, beside the first. Returns
    [(problem, its Ridge, op, provider, flops, sorted us, extra bytes, error)]"""
    first = problems[0]
    leaf = (first.x.detach().requires_grad_(), first.w.detach().requires_grad_())
    runs = []  # (problem, its Ridge, what passes() has)
    times, once, peak, err = {}, {}, {}, {}
    for p in problems:
        ridge = Ridge(lib, p)
        truth = reference(p)
        own = passes(p, ridge, names, leaf)
        if p is first:
            own.append(("linear_ce_eval", "cublas x W^T", p.flops(1), lambda: torch.mm(first.x, first.w.T), None))
        for run in own:
            op, name, _, call, extra = run
            key = (p.text, op, name)
            try:
                leaf[0].grad = leaf[1].grad = None
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                call()
                torch.cuda.synchronize()
                peak[key] = extra if extra is not None else torch.cuda.max_memory_allocated() - before
                if op != "linear_ce_eval":
                    dx, dw = {"ridge": (ridge.dx, ridge.dw), "ridge_dw16": (ridge.dx, ridge.dw16)}.get(
                        name, (leaf[0].grad, leaf[1].grad))
                    err[key] = error(dx, dw, truth)
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                once[key] = begin.elapsed_time(end)
                times[key] = []
                runs.append((p, ridge, *run))
            except Exception as problem:
                print(f"left out: {name} {op} at {p.text}: {str(problem).splitlines()[0][:160]}")
    for done in range(rounds):
        # in an order of its own, each after 0.15 s of its own calls that are not timed: whoever follows a slow rival, which leaves
        # the matrix units cool, would meet higher clocks. The slowest run twice and without, so that they do not take all of the
        # machine's time.
        for i in torch.randperm(len(runs)).tolist():
            p, _, op, name, _, call, _ = runs[i]
            key = (p.text, op, name)
            slow = once[key] > 2 * once[p.text, op, "ridge"]
            if slow and done > 1:
                continue
            for _ in range(0 if slow else 1 + int(150 / once[key])):
                call()
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[key].append(begin.elapsed_time(end) * 1e3)
    leaf[0].grad = leaf[1].grad = None
    return [(p, ridge, op, name, flops, sorted(times[p.text, op, name]), peak[p.text, op, name],
             err.get((p.text, op, name), "")) for p, ridge, op, name, flops, _, _ in runs]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", help="a libridge.so; else the package's")
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", default=",".join(str(i) for i in range(len(SHAPES))))
    parser.add_argument("--half", action="store_true", help="also with half of the rows ignored, in the same rounds")
    parser.add_argument("--alone", action="store_true", help="without rivals but cuBLAS")
    parser.add_argument("--only", help="these rivals, comma-separated: torch, torch.compile, torch.chunked, python, liger,"
                        " liger_cute, liger_scaled, cce, cce_exact, quack, quack_plain")
    args = parser.parse_args()
    lib = binding.library(args.lib)
    now = datetime.datetime.now(datetime.timezone.utc)
    base = dict(run=now.strftime("%Y%m%dT%H%M%S") + f"-ce{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                commit=args.commit, device=torch.cuda.get_device_name(), suite="linear_ce", floor_us="",
                driver=f"CUDA {torch.version.cuda} torch {torch.__version__}")
    warm = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        warm @ warm
    del warm
    names = {} if args.alone else rivals(args.only)
    out = None
    if args.csv:
        new = not os.path.exists(args.csv) or os.path.getsize(args.csv) == 0
        out = open(args.csv, "a")
        if new:
            out.write(",".join(COLUMNS) + "\n")
    for at in (int(s) for s in args.shapes.split(",")):
        torch._dynamo.reset()  # its limit of recompilations is one for all problems
        p = Problem(*SHAPES[at])
        for p, ridge, op, name, flops, t, peak, err in measure([p] + [p.half()] * args.half, lib,
                                                               names, args.rounds):
            us = statistics.median(t)
            own = {"ridge": op[10:], "ridge_dw16": "train16"}.get(name)
            kernel = lib.pick(ridge.calls[own]) if own else name
            row = dict(base, op=op, problem=p.text, provider=name, kernel=kernel, us=us, us_p20=t[len(t) // 5],
                       us_p80=t[-1 - len(t) // 5], tflops=flops / us * 1e-6, gbps=p.bytes(op) / us * 1e-3, err=err,
                       peak_bytes=float(peak))
            if out:
                out.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]).replace(",", " ")
                                   for c in COLUMNS) + "\n")
                out.flush()
            tail = f" err {err:.2e}" if err != "" else ""
            print(f"{op:19s} {p.text} {name:13s} {us * 1e-3:8.3f} ms {flops / us * 1e-6:6.0f} TFLOP/s "
                  f"{peak * 1e-6:8.0f} MB{tail}", flush=True)
        del p, ridge
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""peers_rl.py: the loss head of post-training, log-probabilities of given tokens and entropies from the last hidden states: ridge
beside TRL, verl and Liger, in one process, on the same tensors.

    python3 bench/peers_rl.py [--lib build/libridge.so] [--peers DIR] [--csv FILE] [--commit ID] [--rounds N] [--shapes 0,1,...]
        [--only NAMES] [--ops NAMES] [--clocks hot,cool] [--limit SECONDS]

ops: ce_eval and ce_train (the loss alone, and with its gradients); logprobs_forward; logprobs_train (forward, and backward of the
log-probabilities); logprobs_entropy_train (of the entropies too); grpo_train (the clipped objective); weighted_train (gradients of
the log-probabilities known beforehand) and distill_train (a JSD from a teacher of the same sizes), ridge alone. "cublas" is the
product x W^T alone, "liger_cute" liger-cute-kernels as a team of one, "liger_cute_nll" the same without the entropy. Other rivals:
"torch" (logits, log_softmax, gather), the same by torch.compile, "trl" (TRL 1.16's head, its trainers' default), "trl_logits"
(cuBLAS's logits and TRL's Triton kernel on them), "trl_1.13" (its SFT trainer's default loss before that head: ce_train alone),
"verl" and "verl_triton" (its two backends), "liger" (GRPO only; its Hopper kernels for the log-probabilities need
nvidia-cutlass-dsl). --peers: a folder with the unpacked packages (TRL 1.13's trl/trainer/sft_trainer.py as trl_1.13.py), whose
modules are imported without the packages' own imports. --clocks: "hot" times a call after 0.15 s of its own kind, "cool" after
0.15 s without work; the problem's text says which. peak_bytes: memory beyond the inputs, gradients included.
err: of the gradients, as in peers_ce.py. Columns as `ridge bench --csv` writes them.
"""
import argparse
import ast
import contextlib
import datetime
import importlib
import importlib.util
import os
import statistics
import sys
import time
import types

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import binding
from peers import COLUMNS
from peers_ce import Problem, error, reference

SHAPES = [(8192, 4096, 128256), (8192, 4096, 151936), (16384, 2048, 248320), (8192, 2880, 201088), (4096, 3840, 262144),
          (4096, 7168, 129280), (8192, 2304, 256000), (8192, 5120, 152064),
          (1024, 4096, 128256), (16384, 2048, 32000)]
SEQUENCES = 8  # of a GRPO group


def module(folder, name):
    """A module of a package, without the __init__ of the packages around it, which import much more; None where it is not."""
    parts = name.split(".")
    root = os.path.join(folder or "", parts[0])
    if not folder or not os.path.isdir(root):
        print(f"left out: {name}: no {root}")
        return None
    for i in range(1, len(parts)):
        package = ".".join(parts[:i])
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [os.path.join(folder, *parts[:i])]
    try:
        return importlib.import_module(name)
    except Exception as problem:
        print(f"left out: {name}: {str(problem).splitlines()[0][:140]}")
        return None


def by_logits(x, w, y):
    logp = (x @ w.T).float().log_softmax(-1)
    return logp.gather(-1, y[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def rivals(folder):
    """{name: (log-probability, entropy) of (x, w, y)}"""
    import ridge.torch
    if not importlib.util.find_spec("transformers"):  # all that TRL's kernels ask of it is whether there is a Triton
        sys.modules["transformers"], utils = types.ModuleType("transformers"), types.ModuleType("transformers.utils")
        utils.is_triton_available = lambda: True
        sys.modules["transformers.utils"] = utils
    out = {"ridge": lambda x, w, y: ridge.torch.linear_logprobs(x, w, y, entropy=True), "torch": by_logits,
           "torch.compile": torch.compile(by_logits, dynamic=False)}
    tiles, kernel = module(folder, "trl.kernels.chunked_logprob"), module(folder, "trl.kernels.logprob_entropy")
    if tiles:  # its backward asks for this one; there is nothing to gather
        utils = sys.modules["trl.trainer.utils"] = types.ModuleType("trl.trainer.utils")
        utils.maybe_gather_lm_head_ctx = lambda *_: contextlib.nullcontext()
        out["trl"] = lambda x, w, y: tiles.ChunkedLogProbFunction.apply(x, w, None, y, 1.0, 32768, None, 1.0, ("entropy",))[:2]
    if kernel:
        out["trl_logits"] = lambda x, w, y: tuple(t[0] for t in kernel.selective_log_softmax_and_entropy((x @ w.T)[None], y[None]))
    verl, triton = module(folder, "verl.utils.experimental.torch_functional"), module(folder, "verl.utils.kernel.linear_cross_entropy")
    if verl:
        out["verl"] = lambda x, w, y: verl.FusedLinearForPPOFunction.apply(x, w, y, 1.0, 512)
    if triton:
        out["verl_triton"] = lambda x, w, y: triton.linear_cross_entropy(x, w, y, 1.0, "none")
    return out | liger_cute()


def trl_1_13(folder):
    """{"trl_1.13": the loss of (x, w, y)}: the default of its SFT trainer, in chunks of 256 tokens, under autocast as there. Its two
    functions are taken out of the module, which imports the trainers; there is nothing to gather."""
    path = os.path.join(folder or "", "trl_1.13.py")
    if not os.path.exists(path):
        print(f"left out: trl_1.13: no {path}")
        return {}
    with open(path) as f:
        tree = ast.parse(f.read())
    names = ("_chunk", "_chunked_cross_entropy_loss")
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    own = {"torch": torch, "F": torch.nn.functional, "maybe_gather_lm_head_ctx": lambda *_: contextlib.nullcontext()}
    exec(compile(tree, path, "exec"), own)

    def call(x, w, y):
        with torch.autocast("cuda", torch.bfloat16):
            return own["_chunked_cross_entropy_loss"](x[None], w, 256, shift_labels=y[None])[0]
    return {"trl_1.13": call}


class LigerCute(torch.autograd.Function):
    """(log-probability, entropy) by liger-cute-kernels' tensor-parallel kernels on one rank."""
    native = team = None

    @staticmethod
    def forward(ctx, x, w, y, entropy):
        f = LigerCute.native
        f.fused_linear_scaled_cross_entropy_configure_backward(len(x), x.shape[1], len(w), 1, LigerCute.team)
        f.fused_linear_scaled_cross_entropy_configure_forward(len(x), len(w), LigerCute.team)
        nll, lse, of_rows = f.fused_linear_scaled_cross_entropy_forward(x, w, y, 0, -100, 1.0, LigerCute.team, entropy)
        ctx.save_for_backward(x, w, y, lse, of_rows)
        ctx.entropy = entropy
        return -nll, of_rows

    @staticmethod
    def backward(ctx, dlogprob, dentropy):
        dentropy = torch.zeros_like(dlogprob) if dentropy is None else dentropy
        up = (-dlogprob).contiguous(), dentropy.contiguous()
        return *LigerCute.native.fused_linear_scaled_cross_entropy_backward(*up, *ctx.saved_tensors, 0, -100, 1.0, LigerCute.team, 1,
                                                                            ctx.entropy), None, None

    @staticmethod
    def pools(x, w):
        f = LigerCute.native
        return (f.fused_linear_scaled_cross_entropy_forward_workspace_bytes(len(x), len(w))
                + f.fused_linear_scaled_cross_entropy_backward_workspace_bytes(len(x), x.shape[1], len(w), 1))


def liger_cute():
    try:
        from liger_cute_kernels import tvm_ffi as native
        torch.zeros(1, device="cuda")  # its NVSHMEM asks for a current context
        of_one = torch.empty(native.uniqueid_nbytes(), dtype=torch.uint8)
        native.get_uniqueid(of_one.data_ptr())
        native.init_with_uniqueid(0, 1, of_one.data_ptr())
        LigerCute.native, LigerCute.team = native, native.team_world()
        return {name: lambda x, w, y, entropy=name == "liger_cute": LigerCute.apply(x, w, y, entropy)
                for name in ("liger_cute", "liger_cute_nll")}
    except Exception as problem:
        print(f"left out: liger_cute: {str(problem).splitlines()[0][:140] if str(problem) else type(problem).__name__}")
        return {}


def grpo(logprobs, x, w, y, advantage):
    logprob, _ = logprobs(x, w, y)
    ratio = (logprob - logprob.detach()).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def liger_grpo(folder):
    loss = module(folder, "liger_kernel.chunked_loss.grpo_loss")
    if not loss:
        return {}
    head = loss.LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, loss_type="grpo")

    def call(x, w, y, advantage):
        of = (SEQUENCES, -1)
        return head(x.view(*of, x.shape[-1]), w, y.view(of), torch.ones_like(y.view(of)), advantage.view(of)[:, 0].contiguous())[0]
    return {"liger": call}


def passes(p, names, liger, leaf, older):
    """[(op, provider, flops, call)]"""
    advantage = torch.randn(SEQUENCES, device="cuda").repeat_interleave(p.dims[0] // SEQUENCES)
    each = torch.full((p.dims[0],), -1.0 / p.dims[0], device="cuda")

    def forward(f):
        with torch.no_grad():
            f(p.x, p.w, p.y)

    def train(f, entropy):
        leaf[0].grad = leaf[1].grad = None
        logprob, of_rows = f(*leaf, p.y)
        torch.autograd.backward((logprob, of_rows)[:1 + entropy], (each.to(logprob.dtype), each.to(of_rows.dtype))[:1 + entropy])

    def objective(loss):
        leaf[0].grad = leaf[1].grad = None
        loss(*leaf, p.y, advantage).backward()

    losses = {name: (lambda *args, f=names[name]: grpo(f, *args)) for name in ("ridge", "trl", "verl") if name in names}
    out = [("logprobs_forward", name, p.flops(1), lambda f=f: forward(f)) for name, f in names.items() if name != "liger_cute_nll"]
    out += [("logprobs_train", name, p.flops(3), lambda f=f: train(f, 0)) for name, f in names.items()]
    out += [("logprobs_entropy_train", name, p.flops(3), lambda f=f: train(f, 1)) for name, f in names.items()
            if name != "liger_cute_nll"]
    if "ridge" in names:
        import ridge.torch as R
        teacher = torch.randn_like(p.x), torch.randn_like(p.w) * p.w.std()
        out += [("logprobs_forward", "cublas", p.flops(1), lambda: p.x @ p.w.T),
                ("ce_eval", "ridge", p.flops(1), lambda: forward(R.linear_cross_entropy)),
                ("ce_train", "ridge", p.flops(3), lambda: objective(lambda x, w, y, _: R.linear_cross_entropy(x, w, y))),
                ("weighted_train", "ridge", p.flops(3),
                 lambda: objective(lambda x, w, y, a: R.linear_weighted_nll(x, w, y, a / len(y))[0])),
                ("distill_train", "ridge", p.flops(4),
                 lambda: objective(lambda x, w, y, _: R.linear_distill(x, w, *teacher, beta=0.5)))]
    sft = older | {name: (lambda x, w, y, f=names[name]: -f(x, w, y)[0].mean()) for name in ("trl", "verl_triton", "liger_cute_nll")
                   if name in names}
    out += [("ce_train", name, p.flops(3), lambda f=f: objective(lambda x, w, y, _: f(x, w, y))) for name, f in sft.items()]
    if "liger_cute_nll" in sft:
        out.append(("ce_eval", "liger_cute_nll", p.flops(1), lambda: forward(sft["liger_cute_nll"])))
    return out + [("grpo_train", name, p.flops(3), lambda f=f: objective(f)) for name, f in {**losses, **liger}.items()]


def timed(call):
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def at_clocks(clocks, call, us):
    """The time of a call at hot or at cool clocks."""
    if clocks == "cool":
        time.sleep(0.15)
    for _ in range(1 + int(150e3 / us) if clocks == "hot" else 0):
        call()
    return timed(call)


def measure(p, names, liger, older, ops, clocks, rounds, deadline):
    """[(op, provider, flops, clocks, sorted us, extra bytes, error)]"""
    leaf = (p.x.detach().requires_grad_(), p.w.detach().requires_grad_())
    truth, runs, once, times, peak, err = reference(p), [], {}, {}, {}, {}
    for run in passes(p, names, liger, leaf, older):
        op, name, _, call = run
        if ops and op not in ops.split(","):
            continue
        if time.monotonic() > deadline:
            print(f"left out: {name} {op} at {p.text}: no time")
            continue
        try:
            call()  # compiles
            leaf[0].grad = leaf[1].grad = None
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            torch.cuda.synchronize()
            pools = LigerCute.pools(p.x, p.w) if name.startswith("liger_cute") else 0
            peak[op, name] = torch.cuda.max_memory_allocated() - before + pools
            if op == "logprobs_train":
                err[op, name] = error(leaf[0].grad, leaf[1].grad, truth)
            once[op, name] = timed(call)
            times |= {(op, name, at): [] for at in clocks}
            runs.append(run)
        except Exception as problem:
            print(f"left out: {name} {op} at {p.text}: {str(problem).splitlines()[0][:160] if str(problem) else type(problem).__name__}")
    for done in range(rounds):  # in an order of its own
        for at in clocks:
            for i in torch.randperm(len(runs)).tolist():
                op, name, _, call = runs[i]
                if done and time.monotonic() > deadline:
                    break
                times[op, name, at].append(at_clocks(at, call, once[op, name]))
    leaf[0].grad = leaf[1].grad = None
    return [(op, name, flops, at, sorted(times[op, name, at]), peak[op, name], err.get((op, name), ""))
            for op, name, flops, _ in runs for at in clocks]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", help="a libridge.so; else the package's")
    parser.add_argument("--peers", help="a folder with the unpacked packages trl, verl and liger_kernel")
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default=",".join(str(i) for i in range(len(SHAPES))))
    parser.add_argument("--only", help="these providers, comma-separated")
    parser.add_argument("--ops", help="these ops, comma-separated")
    parser.add_argument("--clocks", default="hot", help="hot, cool or both, comma-separated")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    deadline = time.monotonic() + args.limit
    binding.library(args.lib)
    names = {name: f for name, f in rivals(args.peers).items() if not args.only or name in args.only.split(",")}
    liger = liger_grpo(args.peers) if not args.only or "liger" in args.only.split(",") else {}
    older = trl_1_13(args.peers) if not args.only or "trl_1.13" in args.only.split(",") else {}
    now = datetime.datetime.now(datetime.timezone.utc)
    base = dict.fromkeys(COLUMNS, "") | dict(
        run=now.strftime("%Y%m%dT%H%M%S") + f"-rl{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"), commit=args.commit,
        device=torch.cuda.get_device_name(), suite="rl", driver=f"CUDA {torch.version.cuda} torch {torch.__version__}")
    warm = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        warm @ warm
    del warm
    for at in (int(s) for s in args.shapes.split(",")):
        torch._dynamo.reset()
        p = Problem(*SHAPES[at])
        for op, name, flops, clocks, t, peak, err in measure(p, names, liger, older, args.ops, args.clocks.split(","), args.rounds,
                                                             deadline):
            if not t:
                continue
            us = statistics.median(t)
            row = dict(base, op=op, problem=f"{p.text} clocks={clocks}", provider=name, kernel=name, us=us,
                       us_p20=t[len(t) // 5], us_p80=t[-1 - len(t) // 5], tflops=flops / us * 1e-6, err=err, peak_bytes=float(peak))
            print(f"{op:22s} {p.text} {clocks:4s} {name:14s} {us * 1e-3:8.3f} ms {flops / us * 1e-6:6.0f} TFLOP/s {peak * 1e-6:8.0f} MB"
                  + (f" err {err:.2e}" if err != "" else ""), flush=True)
            if args.csv:
                new = not os.path.exists(args.csv) or os.path.getsize(args.csv) == 0
                with open(args.csv, "a") as f:
                    f.write(",".join(COLUMNS) + "\n" if new else "")
                    f.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]).replace(",", " ") for c in COLUMNS) + "\n")
        del p
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""links.py: what several GPUs of one host do: their links, the loss of a vocabulary that is spread over them, and FSDP2.

    python3 bench/links.py [--parts links,loss,fsdp,tp] [--ranks N] [--csv FILE] [--commit ID] [--lib FILE] [--small]

As many ranks as the machine has GPUs; on a machine without one, 2 over gloo with small shapes, to try the script. Written are
records (bench/records) of suite dist: us is the median of the slowest rank. Provider ridge-1 is one device's time for the whole
problem, taken on every device at once, so that all are as hot as with several. Bandwidths (gbps) are bytes received by a rank.

links: all_gather, all_to_all, all_reduce by size; with NCCL's own number of CTAs (nccl) and with 8 (nccl-8); a bf16 product alone
and while all-gathers run beside it. loss: linear cross entropy with gradients and without, whole and sharded rows; vocab-parallel
is logits in bf16 and three all_reduce, in PyTorch. fsdp: MLPs of Llama-3-8B's width, forward and backward: torch in bf16 with
torch.compile; Fp8Linear with weights gathered in bf16 and as codes; gathered bytes in peak_bytes. tp: two Fp8Linears of
an MLP, cut by columns and by rows, forward and backward.
NVLink multicast stays off.
"""
import argparse
import datetime
import os
import statistics
import sys
import time

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import binding  # noqa: E402
from train_llama import COLUMNS  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SHAPES = ((8192, 4096, 128256), (8192, 2048, 32000), (8192, 5120, 152064), (1024, 4096, 128256), (16384, 4096, 128256))
SMALL = ((64, 64, 512),)


def clock(run, repeats):
    """us of each of `repeats` calls after two."""
    marks = []
    for i in range(repeats + 2):
        if CUDA:
            mark = torch.cuda.Event(enable_timing=True)
            mark.record()
        else:
            mark = time.perf_counter()
        marks.append(mark)
        if i < repeats + 1:
            run()
    if CUDA:
        torch.cuda.synchronize()
    pairs = list(zip(marks, marks[1:]))[1:]
    return [a.elapsed_time(b) * 1e3 if CUDA else (b - a) * 1e6 for a, b in pairs]


def timed(run, repeats=10):
    """(median, p20, p80) in us, of the rank whose median is largest."""
    dist.barrier()
    us = sorted(clock(run, repeats))
    mine = torch.tensor([statistics.median(us), us[len(us) // 5], us[len(us) * 4 // 5]], device=DEVICE)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return max((t.tolist() for t in every), key=lambda t: t[0])


# ----------------------------------------------------------------------------------------------------------------- links


def groups():
    """{provider: group}"""
    if not CUDA:
        return {"gloo": dist.group.WORLD}
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = 8
    return {"nccl": dist.group.WORLD, "nccl-8": dist.new_group(pg_options=options)}


def collectives(n, bytes_, group):
    """{op: (call, bytes received by a rank)}"""
    whole = torch.zeros(bytes_ // 2 // n * n, dtype=torch.bfloat16, device=DEVICE)
    other, part = torch.zeros_like(whole), torch.zeros(len(whole) // n, dtype=whole.dtype, device=DEVICE)
    received = len(whole) * 2 * (n - 1) // n
    return {"all_gather": (lambda: dist.all_gather_into_tensor(whole, part, group=group), received),
            "all_to_all": (lambda: dist.all_to_all_single(whole, other, group=group), received),
            "all_reduce": (lambda: dist.all_reduce(whole, group=group), 2 * received)}


def links(args, n, record):
    every, sizes = groups(), (4096, 1 << 20, 16 << 20, 64 << 20, 128 << 20, 512 << 20)
    for provider, group in every.items():
        for size in sizes[:2] if args.small else sizes:
            for op, (run, received) in collectives(n, size, group).items():
                us = timed(run, 20)
                record(op, f"bytes={size} ranks={n}", provider, us, gbps=received / us[0] / 1e3)
    side = 256 if args.small else 8192
    a, b = (torch.randn(side, side, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    us = timed(lambda: a @ b)
    record("matmul", f"m={side} n={side} k={side} beside=none ranks={n}", "torch", us, tflops=2e-6 * side**3 / us[0])
    for provider, group in every.items() if CUDA else ():
        other, (run, _) = torch.cuda.Stream(priority=-1), collectives(n, 256 << 20, group)["all_gather"]
        stop = torch.cuda.Event()
        with torch.cuda.stream(other):
            for _ in range(60):
                run()
            stop.record()
        us = timed(lambda: a @ b, 10)
        hidden = not stop.query()  # the transfers lasted longer than the products
        torch.cuda.synchronize()
        record("matmul", f"m={side} n={side} k={side} beside=all_gather ranks={n} covered={int(hidden)}", provider, us,
               tflops=2e-6 * side**3 / us[0])


# ------------------------------------------------------------------------------------------------------------------ loss


def parallel_torch(x, w, t, first):
    """The loss by logits in bf16 and three all_reduce, as vocabulary-parallel heads have it in PyTorch; its gradients by hand."""
    z = (x @ w.t()).float()
    most = z.max(1).values
    dist.all_reduce(most, dist.ReduceOp.MAX)
    z -= most[:, None]
    here = (t >= first) & (t < first + len(w))
    at = (t - first).clamp(0, len(w) - 1)[:, None]
    target = torch.where(here, z.gather(1, at)[:, 0], 0)
    dist.all_reduce(target)
    e = z.exp_()
    total = e.sum(1)
    dist.all_reduce(total)
    loss = (total.log() - target).mean()
    e *= (1 / total / len(t))[:, None]
    e.scatter_add_(1, at, (here.float() * (-1 / len(t)))[:, None])
    dz = e.to(torch.bfloat16)
    dx = dz @ w
    dist.all_reduce(dx)
    return loss, dx, dz.t() @ x


def loss(args, n, record):
    import ridge.torch as R
    import ridge.torch.distributed as D
    rank = dist.get_rank()
    for tokens, hidden, vocab in SMALL if args.small else SHAPES:
        torch.manual_seed(0)
        problem = f"tokens={tokens} hidden={hidden} vocab={vocab}"
        x = torch.randn(tokens, hidden, device=DEVICE).to(torch.bfloat16).requires_grad_()
        w = (torch.randn(vocab, hidden, device=DEVICE) * 0.02).to(torch.bfloat16).requires_grad_()
        t = torch.randint(vocab, (tokens,), device=DEVICE)
        first, count = D._part(vocab, n, rank)
        part = w.detach()[first:first + count].clone().requires_grad_()
        mine, mine_t = x.detach().chunk(n)[rank].clone().requires_grad_(), t.chunk(n)[rank].clone()

        def step(function):
            x.grad = w.grad = part.grad = mine.grad = None
            function().backward()

        calls = {
            "ridge-1": lambda: R.linear_cross_entropy(x, w, t),
            "ridge whole": lambda: D.linear_cross_entropy(x, part, t, group=dist.group.WORLD),
            "ridge sharded": lambda: D.linear_cross_entropy(mine, part, mine_t, group=dist.group.WORLD, rows="sharded"),
        }
        flops = 2e-6 * tokens * hidden * vocab
        want = None
        for name, call in calls.items():
            provider, _, rows = name.partition(" ")
            where = f"{problem} ranks={n if rows else 1}" + (f" rows={rows}" if rows else "")
            value = call().item()
            want = want or value
            us = timed(lambda: step(call), 3 if args.small else 8)
            record("linear_ce_train", where, provider, us, tflops=3 * flops / us[0], err=abs(value - want) / want)
            with torch.no_grad():
                us = timed(call, 3 if args.small else 8)
            record("linear_ce_eval", where, provider, us, tflops=flops / us[0])
        x.grad = w.grad = part.grad = mine.grad = None
        plain, plain_w = x.detach(), part.detach()
        us = timed(lambda: parallel_torch(plain, plain_w, t, first), 3 if args.small else 8)
        record("linear_ce_train", f"{problem} ranks={n} rows=whole", "vocab-parallel", us, tflops=3 * flops / us[0])


# ------------------------------------------------------------------------------------------------------------------ FSDP2


class Mlp(torch.nn.Module):
    def __init__(self, linear, hidden, inner):
        super().__init__()
        self.gate_up, self.down = linear(hidden, 2 * inner, bias=False), linear(inner, hidden, bias=False)

    def forward(self, x):
        h = self.gate_up(x)
        if hasattr(self.down, "swiglu"):
            return x + self.down.swiglu(h)
        gate, up = h.chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Gather:
    """FSDP2's all-gather, and the bytes of it."""
    bytes = 0

    def allocate(self, size, *, dtype, device):
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        Gather.bytes += output_tensor.numel() * output_tensor.element_size()
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


def fsdp(args, n, record):
    import ridge.torch as R
    import ridge.torch.distributed as D
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    hidden, inner, layers = (256, 256 * n, 2) if args.small else (4096, 14336, 6)
    mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (n,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for provider in ("torch", "ridge-bf16-gather", "ridge", "ridge-ordered"):
        torch.manual_seed(0)
        with torch.device(DEVICE):
            linear = torch.nn.Linear if provider == "torch" else R.Fp8Linear
            model = torch.nn.Sequential(*(Mlp(linear, hidden, inner) for _ in range(layers)))
        if provider in ("ridge", "ridge-ordered"):
            D.gather_fp8(model)
        for layer in model:
            if provider == "torch" and CUDA:
                layer.compile()
            fully_shard(layer, mesh=mesh, mp_policy=policy)
            layer.set_custom_all_gather(Gather())
        fully_shard(model, mesh=mesh, mp_policy=policy)
        if provider == "ridge-ordered":
            D.ordered_reduce(model)
        for tokens in (64,) if args.small else (8192, 1024):
            x = torch.randn(tokens, hidden, device=DEVICE).to(torch.bfloat16)

            def step():
                model(x).sum().backward()
                for p in model.parameters():
                    p.grad = None

            step()
            Gather.bytes = 0
            step()
            bytes_ = Gather.bytes
            us = timed(step, 3 if args.small else 8)
            record("fsdp_step", f"tokens={tokens} layers={layers} hidden={hidden} inner={inner} ranks={n}", provider, us,
                   tflops=12e-6 * tokens * 3 * hidden * inner * layers / 2 / us[0], peak_bytes=bytes_)
        del model


# --------------------------------------------------------------------------------------------------- tensor parallelism


def tp(args, n, record):
    import ridge.torch as R
    import ridge.torch.distributed as D
    from torch.distributed.tensor.parallel import parallelize_module
    mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (n,))
    for hidden, inner in ((256, 256 * n),) if args.small else ((4096, 14336), (8192, 28672)):
        tokens = 256 * n if args.small else 8192
        for provider in ("ridge-1", "ridge"):
            with torch.device(DEVICE):
                pair = torch.nn.Sequential(R.Fp8Linear(hidden, inner, bias=False), R.Fp8Linear(inner, hidden, bias=False))
            pair = pair.to(torch.bfloat16)
            if provider == "ridge":
                parallelize_module(pair, mesh, {"0": D.Fp8ColwiseParallel(), "1": D.Fp8RowwiseParallel()})
            x = torch.randn(tokens // (n if provider == "ridge" else 1), hidden, device=DEVICE).to(torch.bfloat16).requires_grad_()
            dy = torch.randn_like(x)

            def step():
                x.grad = None
                for p in pair.parameters():
                    p.grad = None
                pair(x).backward(dy)

            us = timed(step, 3 if args.small else 20)
            record("fp8_pair", f"tokens={tokens} hidden={hidden} inner={inner} ranks={n if provider == 'ridge' else 1}", provider, us,
                   tflops=12e-6 * tokens * hidden * inner / us[0])


# ------------------------------------------------------------------------------------------------------------------ ranks


def main(rank, args, n, port, now):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    if CUDA:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if CUDA else "gloo", rank=rank, world_size=n, timeout=datetime.timedelta(seconds=60))
    binding.library(args.lib, f"cuda:{rank}" if CUDA else "cpu")
    base = dict.fromkeys(COLUMNS, "") | {
        "run": f"{now:%Y%m%dT%H%M%S}-links{port}", "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "commit": args.commit, "suite": "dist",
        "device": torch.cuda.get_device_name() if CUDA else "CPU",
        "driver": f"torch {torch.__version__}" + (f" NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if CUDA else "")}

    def record(op, problem, provider, us, **more):
        if rank:
            return
        row = base | {"op": op, "problem": problem, "provider": provider, "us": us[0], "us_p20": us[1], "us_p80": us[2]} | more
        print(f"{op:16s} {problem:62s} {provider:18s} {us[0]:12.1f} us " +
              " ".join(f"{k} {v:.4g}" for k, v in more.items()), flush=True)
        if args.csv:
            new = not os.path.exists(args.csv) or not os.path.getsize(args.csv)
            with open(args.csv, "a") as f:
                f.write(",".join(COLUMNS) + "\n" if new else "")
                f.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS) + "\n")

    for part in args.parts.split(","):
        begun = time.monotonic()
        {"links": links, "loss": loss, "fsdp": fsdp, "tp": tp}[part](args, n, record)
        if rank == 0:
            print(f"{part}: {time.monotonic() - begun:.1f} s", flush=True)
        if CUDA:
            torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="links,loss,fsdp,tp")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--lib")
    parser.add_argument("--small", action="store_true", default=not CUDA)
    arguments = parser.parse_args()
    torch.multiprocessing.spawn(main, (arguments, arguments.ranks, 20000 + os.getpid() % 20000,
                                       datetime.datetime.now(datetime.timezone.utc)), nprocs=arguments.ranks)

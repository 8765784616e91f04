"""links.py: what several GPUs of one host do: their links, the loss of a vocabulary that is spread over them, and FSDP2.

    python3 bench/links.py [--parts links,loss,fsdp,tp,model] [--ranks N] [--csv FILE] [--commit ID] [--lib FILE] [--small]
        [--shapes 0,3] [--providers ridge,ridge-16] [--trace FOLDER]

As many ranks as the machine has GPUs; on a machine without one, 2 over gloo with small shapes, to try the script. Written are
records (bench/records) of suite dist: us is the median of the slowest rank. Provider ridge-1 is one device's time for the whole
problem, taken on every device at once, so that all are as hot as with several. Bandwidths (gbps) are bytes received by a rank.

links: all_gather, all_to_all, all_reduce by size; with NCCL's own number of CTAs (nccl) and with 8 and 16 (nccl-8, nccl-16); a
bf16 product alone and while all-gathers run beside it. loss: linear cross entropy with gradients and without, whole and
sharded rows, and with logits made again in backward (recompute), over a group of 16 CTAs whose transfers go first (ridge-16);
the last shape is what the host takes; vocab-parallel is logits in bf16 and three all_reduce, in PyTorch; liger, liger-logits,
megatron and cce: Liger's tensor-parallel losses over hidden states and over logits, Megatron's fused one, Apple's cut cross
entropy; -graph: a step as a CUDA graph. fsdp: MLPs of Llama-3-8B's width, forward and backward: torch in bf16 with
torch.compile, torchao's float8 with its FP8 all-gather likewise; Fp8Linear with weights gathered in bf16 and as codes;
gathered bytes in peak_bytes. tp: two linear layers of an MLP, cut by columns and by rows, forward and backward: Fp8Linears, as
many products without a transfer (ridge-local), torch's in bf16 compiled, torch-async with products and transfers in one (async
TP). ridge-16: over a group whose transfers take 16 CTAs at most and go first; ridge-copy: by copy engine; -graph: a step as a
CUDA graph; ridge-host: as many calls of layers of 256, which is what the host takes. --trace: a timeline of a step of each of
ridge's, by PyTorch's profiler. model: what 8, 64 and 10000 GPUs would do, from the latency and bandwidth that `links` has
measured in this run. NVLink multicast stays off.
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
SHAPES = ((8192, 4096, 128256), (8192, 2048, 32000), (8192, 5120, 152064), (1024, 4096, 128256), (16384, 4096, 128256), (128, 256, 8192))
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
    if timed.once:
        run()
        return 1.0, 1.0, 1.0
    dist.barrier()
    us = sorted(clock(run, repeats))
    mine = torch.tensor([statistics.median(us), us[len(us) // 5], us[len(us) * 4 // 5]], device=DEVICE)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return max((t.tolist() for t in every), key=lambda t: t[0])


def captured(step):
    """step as a CUDA graph"""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph.replay


def traced(args, name, step):
    """A timeline of one step among others, of rank 0."""
    if not args.trace:
        return
    with torch.profiler.profile() as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        os.makedirs(args.trace, exist_ok=True)
        profile.export_chrome_trace(os.path.join(args.trace, f"{name}.json.gz"))


timed.once = False


def asked(args, providers):
    """Those of the providers that --providers names, or all."""
    return [name for name in providers if not args.providers or name in args.providers.split(",")]


# ----------------------------------------------------------------------------------------------------------------- links


def group_of(ctas):
    """All ranks, by transfers of at most so many CTAs, whose stream goes first."""
    if not CUDA or not ctas:
        return dist.group.WORLD
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas, options.config.cga_cluster_size = ctas, 2
    return dist.new_group(pg_options=options)


def groups():
    """{provider: group}"""
    return {"nccl": group_of(0), "nccl-8": group_of(8), "nccl-16": group_of(16)} if CUDA else {"gloo": dist.group.WORLD}


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
    rank, few, copied = dist.get_rank(), group_of(16), dist.new_group()
    if CUDA:
        D.copy_engine(copied)
    for tokens, hidden, vocab in SMALL if args.small else [SHAPES[int(i)] for i in args.shapes.split(",")]:
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
            "ridge-16 whole": lambda: D.linear_cross_entropy(x, part, t, group=few),
            "ridge-copy whole": lambda: D.linear_cross_entropy(x, part, t, group=copied),
            "ridge-recompute whole": lambda: D.linear_cross_entropy(x, part, t, group=dist.group.WORLD, recompute=True),
        }
        flops = 2e-6 * tokens * hidden * vocab
        want = None
        for name, call in calls.items():
            if not asked(args, (name.split()[0],)):
                continue
            provider, _, rows = name.partition(" ")
            where = f"{problem} ranks={n if rows else 1}" + (f" rows={rows}" if rows else "")
            value = call().item()
            want = want or value
            us = timed(lambda: step(call), 3 if args.small else 8)
            record("linear_ce_train", where, provider, us, tflops=3 * flops / us[0], err=abs(value - want) / want)
            with torch.no_grad():
                us = timed(call, 3 if args.small else 8)
            record("linear_ce_eval", where, provider, us, tflops=flops / us[0])
            if CUDA and rows and provider in ("ridge", "ridge-copy"):
                traced(args, f"loss-{tokens}-{hidden}-{rows}-{provider}", lambda: step(call))
                replay = captured(lambda: step(call))
                us = timed(replay, 3 if args.small else 8)
                record("linear_ce_train", where, provider + "-graph", us, tflops=3 * flops / us[0])
                del replay
        x.grad = w.grad = part.grad = mine.grad = None
        plain, plain_w = x.detach(), part.detach()
        if asked(args, ("vocab-parallel",)):
            us = timed(lambda: parallel_torch(plain, plain_w, t, first), 3 if args.small else 8)
            record("linear_ce_train", f"{problem} ranks={n} rows=whole", "vocab-parallel", us, tflops=3 * flops / us[0])
        others = rivals(x, part, t, vocab) if vocab % n == 0 else {}
        for name in asked(args, others):
            call = others[name]
            try:
                off = abs(call().item() - want) / want if want else 0.0
                us = timed(lambda: step(call), 3 if args.small else 5)
                record("linear_ce_train", f"{problem} ranks={n} rows=whole", name, us, tflops=3 * flops / us[0], err=off)
            except Exception as error:  # not here, or no memory: on every rank
                print(f"{name}: {str(error)[:200]}", flush=True)
        torch.cuda.empty_cache() if CUDA else None


def rivals(x, part, t, vocab):
    """Others' losses over a vocabulary that is cut, as far as they are installed."""
    group, found = dist.group.WORLD, {}

    class Reduced(torch.autograd.Function):  # Megatron's copy to the tensor-parallel region
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, dx):
            dx = dx.contiguous()
            dist.all_reduce(dx)
            return dx

    def logits():
        return F.linear(Reduced.apply(x), part)[:, None]

    try:
        from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyTPFunction as fused
        from liger_kernel.transformers.vocab_parallel_cross_entropy import LigerVocabParallelCrossEntropy
        over_logits = LigerVocabParallelCrossEntropy()
        if CUDA:
            found["liger"] = lambda: fused.apply(x, part, t, group).mean()
            found["liger-logits"] = lambda: over_logits(logits(), t[:, None], tp_group=group).mean()
    except ImportError:
        pass
    try:
        from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
        found["megatron"] = lambda: fused_vocab_parallel_cross_entropy(logits(), t[:, None], group).mean()
    except ImportError:
        pass
    try:
        from cut_cross_entropy import linear_cross_entropy
        from cut_cross_entropy.vocab_parallel import VocabParallelOptions
        if CUDA:
            cut = VocabParallelOptions.from_vocab(vocab, group)
            found["cce"] = lambda: linear_cross_entropy(x, part, t, vocab_parallel_options=cut)
    except ImportError:
        pass
    return found


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
        return dist.all_gather_into_tensor(output_tensor.view(torch.uint8), input_tensor.view(torch.uint8), group=group,
                                           async_op=async_op)  # gloo knows no FP8


def fsdp(args, n, record):
    import ridge.torch as R
    import ridge.torch.distributed as D
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    hidden, inner, layers = (256, 256 * n, 2) if args.small else (4096, 14336, 6)
    mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (n,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for provider in asked(args, ("torch", "torchao", "ridge-bf16-gather", "ridge", "ridge-ordered")):
        torch.manual_seed(0)
        theirs = provider.startswith("torch")
        with torch.device(DEVICE):
            linear = torch.nn.Linear if theirs else R.Fp8Linear
            model = torch.nn.Sequential(*(Mlp(linear, hidden, inner) for _ in range(layers)))
        if provider == "torchao":
            try:
                from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
            except ImportError:
                continue
            convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
        if provider in ("ridge", "ridge-ordered"):
            D.gather_fp8(model)
        for layer in model:
            if theirs and CUDA:
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
                if provider == "torchao":  # after the optimiser's step: the weights' scales, by one all_reduce
                    precompute_float8_dynamic_scale_for_fsdp(model)

            step()
            Gather.bytes = 0
            step()
            bytes_ = Gather.bytes
            us = timed(step, 3 if args.small else 8)
            record("fsdp_step", f"tokens={tokens} layers={layers} hidden={hidden} inner={inner} ranks={n}", provider, us,
                   tflops=12e-6 * tokens * 3 * hidden * inner * layers / 2 / us[0], peak_bytes=bytes_)
        del model


# --------------------------------------------------------------------------------------------------- tensor parallelism


def pair_of(provider, hidden, inner, n, mesh):
    """Two linear layers in bf16: whole for ridge-1, one rank's products for ridge-local, else cut over the mesh."""
    import ridge.torch as R
    import ridge.torch.distributed as D
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    linear, local = (R.Fp8Linear if provider.startswith("ridge") else torch.nn.Linear), inner // n if provider == "ridge-local" else inner
    with torch.device(DEVICE):
        pair = torch.nn.Sequential(linear(hidden, local, bias=False), linear(local, hidden, bias=False)).to(torch.bfloat16)
    if provider.startswith("torch"):
        parallelize_module(pair, mesh, {"0": ColwiseParallel(input_layouts=Shard(1)), "1": RowwiseParallel(output_layouts=Shard(1))})
    elif provider not in ("ridge-1", "ridge-local"):
        parallelize_module(pair, mesh, {"0": D.Fp8ColwiseParallel(), "1": D.Fp8RowwiseParallel()})
    if provider == "torch-async":
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group
        enable_symm_mem_for_group(mesh.get_group().group_name)
    torch._inductor.config._micro_pipeline_tp = provider == "torch-async"
    if provider.startswith("torch") and CUDA:  # pair.compile() would break its graph at the layers' hooks: nothing to fuse
        torch._dynamo.reset()
        return pair, torch.compile(pair)
    return pair, pair


def tp(args, n, record):
    from torch.distributed.device_mesh import DeviceMesh
    every = ("ridge-1", "ridge-local", "ridge-host", "ridge", "ridge-16", "ridge-24", "ridge-copy", "torch", "torch-async")
    every = asked(args, every if CUDA else every[:4])
    meshes = {name: DeviceMesh.from_group(dist.new_group() if name == "ridge-copy" else group_of(
        int(name[6:]) if name[6:].isdigit() and name != "ridge-1" else 0), DEVICE) for name in every}
    if "ridge-copy" in meshes and CUDA:
        import ridge.torch.distributed as D
        D.copy_engine(meshes["ridge-copy"].get_group())
    widths = [w for i, w in enumerate(((4096, 14336), (8192, 28672))) if str(i) in args.shapes.split(",")]
    for hidden, inner in ((256, 256 * n),) if args.small else widths:
        for provider in every:
            whole, host = provider in ("ridge-1", "ridge-local"), provider == "ridge-host"
            tokens = 256 * n if args.small or host else 8192
            width = (256, 256 * n) if host else (hidden, inner)
            pair, run = pair_of(provider, *width, n, meshes[provider])
            x = torch.randn(tokens // (1 if whole else n), width[0], device=DEVICE).to(torch.bfloat16).requires_grad_()
            if provider.startswith("torch"):  # [1, tokens, hidden], as its plans are used
                x = x.detach()[None].requires_grad_()
            dy = torch.randn_like(x)

            def step():
                x.grad = None
                for p in pair.parameters():
                    p.grad = None
                run(x).backward(dy)

            def write(name, us):
                record("fp8_pair" if provider.startswith("ridge") else "pair",
                       f"tokens={tokens} hidden={width[0]} inner={width[1]} ranks={1 if whole else n}", name, us,
                       tflops=12e-6 * tokens * width[0] * width[1] / us[0])

            try:
                write(provider, timed(step, 3 if args.small else 20))
                if CUDA and provider.startswith("ridge"):
                    if provider in ("ridge-16", "ridge-copy"):
                        traced(args, f"pair-{width[0]}-{provider}", step)
                    write(provider + "-graph", timed(captured(step), 3 if args.small else 20))
            except Exception as error:  # of a rival, on every rank
                print(f"{provider}: {str(error)[:300]}", flush=True)


# ---------------------------------------------------------------------------------------------------------------- on paper


def loss_of(one, alpha, beta, g, tokens, hidden, vocab):
    """Seconds: three products, records gathered, parts of dX beside dW, which are added."""
    product, part = one / 3 / g, 2 * tokens * hidden
    if vocab / g >= 2600 * (g - 1):
        exposed = max(0, (g - 1) * part / beta - product)
    else:
        exposed = max(0, (g - 1) / g * part / beta - product) + (g - 1) / g * part / beta
    return 3 * product + 2 * alpha + exposed + (g + 1) * part / 4e12


def pair_at_best(one, beta, g, tokens, hidden):
    """Seconds of its products and of its bytes: codes four times and parts of 16 bits twice, each beside products."""
    return one / g, (4 * 1.03 + 2 * 2) * tokens * hidden * (g - 1) / g / beta


def model(args, n, record):
    """The step of a loss and of a pair of layers on more GPUs than there are here: products at one device's rate in this run,
    transfers at the bandwidth of this run's largest all_to_all. A kernel of NCCL takes 10 us on the device. Behind one host's 8 GPUs
    50 GB/s and 20 us stand for a network. Lines, no record: of other numbers of GPUs nothing was measured."""
    def found(op, problem, providers=("nccl", "gloo")):
        return next((1e-6 * model.seen[op, problem, p] for p in providers if (op, problem, p) in model.seen), None)

    size = next((s for s in (512 << 20, 1 << 20) if found("all_to_all", f"bytes={s} ranks={n}")), 0)
    if not size or dist.get_rank():
        return
    alpha, beta = 10e-6, size * (n - 1) / n / found("all_to_all", f"bytes={size} ranks={n}")
    print(f"model: {beta / 1e9:.0f} GB/s within a host; 20 us, 50 GB/s beyond 8 GPUs")
    for ranks in (2, 4, 8, 64, 10000):
        g = min(ranks, 8)  # classes and columns are cut within a host
        for tokens, hidden, vocab in SHAPES:
            one = found("linear_ce_train", f"tokens={tokens} hidden={hidden} vocab={vocab} ranks=1", ("ridge-1",))
            if one and ranks <= 8:
                us = loss_of(one, alpha, beta, g, tokens, hidden, vocab)
                print(f"model: loss {tokens},{hidden},{vocab} on {g} GPUs: {us * 1e3:.2f} ms ({one / us:.2f} x one)")
        for hidden, inner in ((4096, 14336), (8192, 28672)):
            one = found("fp8_pair", f"tokens=8192 hidden={hidden} inner={inner} ranks=1", ("ridge-1",))
            if one and ranks <= 8:
                products, moved = pair_at_best(one, beta, g, 8192, hidden)
                print(f"model: layers {hidden} x {inner} on {g} GPUs: products {products * 1e3:.2f} ms, bytes {moved * 1e3:.2f} "
                      f"({moved / products:.2f}): {one / max(products, moved):.2f} x one at best, {one / (products + moved):.2f} x exposed")
        # FSDP2 of an 8B layer in FP8: codes twice, gradients once in bf16; 218e6 weights, groups of at most 512 ranks
        group, (latency, rate) = min(ranks, 512), (alpha, beta) if ranks <= 8 else (20e-6, 50e9)
        gather = (2 * 1 + 2) * 218e6 * (group - 1) / group / rate + 3 * latency * (group if group <= 8 else 8 + group / 8)
        products = 6 * 8192 * 218e6 / 1.0e15
        print(f"model: FSDP2 of an 8B layer on {ranks} GPUs, groups of {group}, 8192 tokens a GPU: products {products * 1e3:.1f} ms, "
              f"transfers {gather * 1e3:.1f} ms: {'hidden' if gather < products else f'{(gather - products) * 1e3:.1f} ms exposed'}")


# ------------------------------------------------------------------------------------------------------------------ ranks


model.seen = {}


def main(rank, args, n, port, now):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    if CUDA:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if CUDA else "gloo", rank=rank, world_size=n, timeout=datetime.timedelta(seconds=60))
    binding.library(args.lib, f"cuda:{rank}" if CUDA else "cpu")
    timed.once = args.warm
    base = dict.fromkeys(COLUMNS, "") | {
        "run": f"{now:%Y%m%dT%H%M%S}-links{port}", "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "commit": args.commit, "suite": "dist",
        "device": torch.cuda.get_device_name() if CUDA else "CPU",
        "driver": f"torch {torch.__version__}" + (f" NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if CUDA else "")}

    def record(op, problem, provider, us, **more):
        if rank or args.warm:
            return
        model.seen[op, problem, provider] = us[0]
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
        {"links": links, "loss": loss, "fsdp": fsdp, "tp": tp, "model": model}[part](args, n, record)
        if rank == 0:
            print(f"{part}: {time.monotonic() - begun:.1f} s", flush=True)
        if CUDA:
            torch.cuda.empty_cache()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # to destroy the groups may never end once async TP has used one


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="links,loss,fsdp,tp,model")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--lib")
    parser.add_argument("--small", action="store_true", default=not CUDA)
    parser.add_argument("--shapes", default="0,1,2,3,4,5", help="which of the loss's, or of the layers'")
    parser.add_argument("--providers", default="", help="only these of the loss's, FSDP2's or the layers'")
    parser.add_argument("--trace")
    parser.add_argument("--warm", action="store_true", help="compile and run once: no time is measured")
    arguments = parser.parse_args()
    torch.multiprocessing.spawn(main, (arguments, arguments.ranks, 20000 + os.getpid() % 20000,
                                       datetime.datetime.now(datetime.timezone.utc)), nprocs=arguments.ranks)

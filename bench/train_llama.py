"""train_llama.py: a Llama of few layers at the width of Llama-3-8B trained on text: PyTorch alone (torch.compile), with ridge's
SwiGLU and linear cross entropy, and with Fp8Linear as well; step time, peak memory and loss side by side.

    python3 bench/train_llama.py [--steps 50] [--tokens 8192] [--providers torch,torch-again,ridge,ridge-fp8]
        [--fsdp | --tp] [--csv FILE]

The text is the Python standard library's sources, one token for each word, run of spaces and sign, numbered by frequency; all
providers see the same tokens and the same initial weights, and take their steps in turn, in a new order every step. Step times
are medians over the last 60 % of the steps. Written are records (bench/records): op train_step with us and peak_bytes (beyond
parameters, gradients and optimiser state), and op train_loss with the loss of every step in `err`. "torch-again" is PyTorch a
second time: its own run-to-run noise; "ridge-fp8-row" is Fp8Linear(wgrad="row128"); "torchao-tensorwise" and "torchao-rowwise"
are torchao's float8 training, by the recipe of that name, of the layers that Fp8Linear takes, under torch.compile. The text is
cut into pieces of 1024 tokens that come in a random order, the same for all.

--fsdp: on all GPUs of the machine (--ranks N: on so many; on a CPU over gloo), --tokens on each, with FSDP2. PyTorch shards the head
too and averages its ranks' losses; ridge's providers keep a slice of the head's classes on each rank (VocabParallelHead, rows
"sharded"), ridge-fp8 gathers the weights of its layers as FP8 codes.

--tp: the same GPUs as one: layers, embedding and head are cut (tensor parallelism), and so is the sequence between them; --tokens in
all. torch has PyTorch's plans and loss_parallel, ridge-fp8 ridge's Fp8ColwiseParallel, Fp8RowwiseParallel and VocabParallelHead.
"""
import argparse
import collections
import datetime
import functools
import glob
import os
import re
import statistics
import sys
import sysconfig
import time

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import ridge.torch as R  # noqa: E402

COLUMNS = ("run,date,commit,device,driver,suite,op,problem,provider,kernel,us,us_p20,us_p80,tflops,gbps,floor_us,err,"
           "peak_bytes").split(",")


def text_tokens(count, vocab):
    """`count` tokens of the standard library's sources."""
    words = []
    for path in sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py"))):
        with open(path, encoding="utf-8", errors="replace") as f:
            words += re.findall(r"\w+|[^\S\n]+|\n+|[^\w\s]", f.read())
        if len(words) > count:
            break
    number = {word: min(i, vocab - 1) for i, (word, _) in enumerate(collections.Counter(words).most_common())}
    tokens = torch.tensor([number[word] for word in words])
    tokens = tokens.repeat(-(-count // len(tokens)))[:count]
    pieces = list(tokens.split(1024))  # in an order of its own: files differ more than parts of one file
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
    return torch.cat([pieces[i] for i in order])


def down_torch(down, gate_up):
    gate, up = gate_up.chunk(2, -1)
    return down(F.silu(gate) * up)


def down_ridge(down, gate_up):
    return R.swiglu_linear(gate_up, None, down.weight)


def down_fp8(down, gate_up):
    return down.swiglu(gate_up)


def down_of_ranks(down, gate_up):
    return down(R.swiglu(gate_up))


DOWN = {"ridge": down_ridge, "ridge-fp8": down_fp8, "ridge-fp8-row": down_fp8}


class Block(nn.Module):
    """Pre-norm attention (grouped heads, rotary positions) and SwiGLU, projections fused as engines fuse them."""

    def __init__(self, args, tail):
        super().__init__()
        hidden, inner, heads, kv = args.hidden, args.inner, args.heads, args.kv
        self.heads, self.kv, self.size, self.tail = heads, kv, args.head, tail
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv) * self.size, bias=False)
        self.out = nn.Linear(heads * self.size, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x, cos, sin):
        y = self.qkv(self.norm1(x))
        b, t, _ = y.shape  # with --tp of all ranks
        q, k, v = y.view(b, t, -1, self.size).transpose(1, 2).split((self.heads, self.kv, self.kv), 1)

        def turn(y):
            one, two = y.chunk(2, -1)
            return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.tail(self.down, self.gate_up(self.norm2(x)))


class Model(nn.Module):
    def __init__(self, args, block):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.blocks = nn.ModuleList(block() for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.hidden, eps=1e-5)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, cos, sin):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)


def loss_torch(x, weight, target):
    return F.cross_entropy(F.linear(x, weight).float(), target)


def rotary(args, device, dtype):
    angle = torch.arange(args.sequence)[:, None] * (5e5 ** (-torch.arange(0, args.head, 2) / args.head))[None]
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def shard(model, args, own, fp8):
    """FSDP2 over all ranks; ridge's head is cut by classes over the same group."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    import ridge.torch.distributed as D
    mesh = torch.distributed.device_mesh.init_device_mesh(args.device, (args.ranks,))
    how = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    if fp8:
        D.gather_fp8(model.blocks)
    if own:
        model.head = D.VocabParallelHead.from_linear(model.head, mesh, model=model)
        how["ignored_params"] = set(model.head.parameters())
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    for module in model.modules() if own else ():  # one loss, that of all rows: its gradients are summed
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def cut(model, args, own):
    """Tensor parallelism with the sequence cut between the layers. A rank's rows of qkv and of gate_up are its heads and its columns:
    they are brought together first, so that the model stays what it is on one GPU."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
    import ridge.torch.distributed as D
    mesh = torch.distributed.device_mesh.init_device_mesh(args.device, (args.ranks,))
    column, row = D.Fp8ColwiseParallel() if own else ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
    plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(use_local_output=True)}
    if not own:
        plan["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    for i, block in enumerate(model.blocks):
        plan |= {f"blocks.{i}.{name}": SequenceParallel(use_local_output=True) for name in ("norm1", "norm2")}
        plan |= {f"blocks.{i}.{name}": column for name in ("qkv", "gate_up")}
        plan |= {f"blocks.{i}.{name}": D.Fp8RowwiseParallel() if own else row for name in ("out", "down")}
        for layer, parts in ((block.qkv, [n * block.size for n in (block.heads, block.kv, block.kv)]), (block.gate_up, [args.inner] * 2)):
            shares = [rows.chunk(args.ranks) for rows in layer.weight.detach().split(parts)]
            layer.weight.detach().copy_(torch.cat([share[r] for r in range(args.ranks) for share in shares]))
        block.heads, block.kv = block.heads // args.ranks, block.kv // args.ranks
        block.tail = down_of_ranks if own else block.tail
    if own:
        model.head = D.VocabParallelHead.from_linear(model.head, mesh, model=model)
    parallelize_module(model, mesh, plan)


class Trainee:
    """One provider: its model, optimiser and what was measured."""

    def __init__(self, provider, args):
        self.provider, self.args, self.own = provider, args, provider.startswith("ridge")
        torch.manual_seed(0)
        with torch.device(args.device):
            self.model = self.build().to(torch.bfloat16)
        self.change()
        if args.tp:
            cut(self.model, args, self.own)
        compile_ = (lambda f: f) if args.eager else torch.compile
        for block in self.model.blocks:
            block.forward = compile_(block.forward)
        self.loss_of = R.linear_cross_entropy if self.own else compile_(loss_torch)
        if args.fsdp:
            shard(self.model, args, self.own, provider.startswith("ridge-fp8"))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.0, fused=args.device == "cuda")
        local = [getattr(p, "_local_tensor", p) for p in self.model.parameters()]
        self.held = sum(p.numel() * p.element_size() for p in local)
        self.losses, self.marks, self.peak = [], [], 0

    def build(self):
        return Model(self.args, lambda: Block(self.args, DOWN.get(self.provider, down_torch)))

    def change(self):
        """What a provider does to the model once it has its weights."""
        if self.provider.startswith("ridge-fp8"):
            R.swap_linear(self.model, exclude=("head",), wgrad="row128" if self.provider.endswith("row") else "blk128")
        elif self.provider.startswith("torchao-"):
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            convert_to_float8_training(self.model.blocks, config=Float8LinearConfig.from_recipe_name(self.provider[8:]))

    def mark(self):
        if self.args.device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def step(self, number, tokens, cos, sin):
        args = self.args
        cuda = args.device == "cuda" and number > 1  # the optimiser's state is there, everything is compiled
        for group in self.optimiser.param_groups:
            group["lr"] = args.lr * min(1.0, (number + 1) / args.warmup)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        x, y = tokens[:-1].view(args.tokens // args.sequence, -1), tokens[1:].view(args.tokens // args.sequence, -1)
        begin = self.mark()
        hidden = self.model(x, cos, sin)
        if args.tp and self.own:
            loss = self.model.head.loss(hidden.flatten(0, 1), y.chunk(args.ranks, 1)[args.rank].flatten(), rows="sharded")
        elif args.fsdp and self.own:
            loss = self.model.head.loss(hidden.flatten(0, 1), y.flatten(), rows="sharded")
        elif args.tp:
            from torch.distributed.tensor.parallel import loss_parallel
            with loss_parallel():
                loss = F.cross_entropy(self.model.head(hidden).flatten(0, 1).float(), y.flatten())
                loss.backward()
            loss = loss.full_tensor()
        else:
            loss = self.loss_of(hidden.view(-1, args.hidden), self.model.head.weight, y.flatten())
        if not args.tp or self.own:
            loss.backward()
        del hidden
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())
        self.marks.append((begin, self.mark()))
        if cuda:  # the allocator's account runs with the host: nothing has to be waited for
            self.peak = max(self.peak, torch.cuda.max_memory_allocated() - before - self.held)

    def times(self):
        """ms of each step"""
        return [a.elapsed_time(b) if self.args.device == "cuda" else (b - a) * 1e3 for a, b in self.marks]


def profile_step(trainee, *rest):
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
        trainee.step(*rest)
        torch.cuda.synchronize()
    print(trainee.provider)
    print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=24, max_name_column_width=70))


def losses_of(trainee, args):
    """Of all ranks' tokens: ridge's is that already, PyTorch's are averaged."""
    losses = torch.stack(trainee.losses).float()
    if args.fsdp and not trainee.own:
        torch.distributed.all_reduce(losses)
        losses /= args.ranks
    return losses.tolist()


def train(args, tokens, kind):
    """The providers step by step in turn, so that all meet the same clocks; in an order of its own every step, because whoever
    follows a lighter step finds higher ones."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    trainees = [kind(provider, args) for provider in args.providers.split(",")]
    cos, sin = rotary(args, args.device, torch.bfloat16)
    order = torch.Generator().manual_seed(1)
    for number in range(args.steps):
        first = (number if args.tp else number * args.ranks + args.rank) * args.tokens
        part = tokens[first:first + args.tokens + 1]
        for i in torch.randperm(len(trainees), generator=order).tolist():
            trainees[i].step(number, part, cos, sin)
    if args.device == "cuda":
        torch.cuda.synchronize()
    measured = [(t.provider, losses_of(t, args), t.times(), t.peak) for t in trainees]
    for trainee in trainees if args.profile else ():
        profile_step(trainee, args.steps, part, cos, sin)
    return measured


def arguments(providers, **sizes):
    parser = argparse.ArgumentParser()
    integer = functools.partial(parser.add_argument, type=int)
    for name, default in sizes.items():
        integer(f"--{name}", default=default)
    parser.add_argument("--lr", type=float, default=1e-4)
    integer("--warmup", default=20, help="steps over which the learning rate rises to its value")
    parser.add_argument("--profile", action="store_true", help="the kernels of one more step of each")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--providers", default=providers)
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    parser.set_defaults(fsdp=False, tp=False, rank=0, ranks=1)
    return parser


def write(args, suite, rows):
    """Appends the rows to the record args.csv, if there is one."""
    if not args.csv:
        return
    now = datetime.datetime.now(datetime.timezone.utc)
    base = dict.fromkeys(COLUMNS, "") | dict(
        run=now.strftime("%Y%m%dT%H%M%S") + f"-train{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"), commit=args.commit,
        device=torch.cuda.get_device_name() if args.device == "cuda" else "CPU", suite=suite,
        driver=f"CUDA {torch.version.cuda} torch {torch.__version__}")
    new = not os.path.exists(args.csv) or os.path.getsize(args.csv) == 0
    with open(args.csv, "a") as f:
        f.write(",".join(COLUMNS) + "\n" if new else "")
        for row in rows:
            row = base | row
            f.write(",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS) + "\n")


def run(args, kind, **more):
    """Trains all providers, prints a line of each and writes the record; `more` joins the problem."""
    tokens = text_tokens(args.steps * (1 if args.tp else args.ranks) * args.tokens + 1, args.vocab).to(args.device)
    names = {"tokens": args.tokens, "layers": args.layers, "hidden": args.hidden, "vocab": args.vocab} | more
    problem = " ".join(f"{name}={value}" for name, value in names.items())
    rows, first = [], None
    measured = train(args, tokens, kind)
    for provider, losses, times, peak in measured if args.rank == 0 else ():
        last = sorted(times[max(3, len(times) * 2 // 5):] or times)
        ms = statistics.median(last)
        rows.append(dict(op="train_step", problem=problem, provider=provider, kernel="compiled" if not args.eager else "eager",
                         us=ms * 1e3, us_p20=last[len(last) // 5] * 1e3, us_p80=last[-1 - len(last) // 5] * 1e3, peak_bytes=peak))
        rows += [dict(op="train_loss", problem=f"step={i} {problem}", provider=provider, kernel="", err=v)
                 for i, v in enumerate(losses)]
        first = first or (ms, losses, peak)
        off = [abs(a - b) / b for a, b in zip(losses, first[1])]
        print(f"{provider:12s} {ms:8.2f} ms a step ({first[0] / ms:.3f} x), peak {peak / 2**20:8.0f} MiB beyond the model "
              f"({peak / max(first[2], 1):.3f}), loss {losses[0]:.4f} -> {losses[-1]:.4f}, from the first's at most {max(off):.2%}, "
              f"{statistics.mean(off[len(off) // 2:]):.2%} in the mean of the second half, {off[-1]:.2%} at the end", flush=True)
    if args.rank == 0:
        write(args, "train", rows)


def on_ranks(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0")
    if args.device == "cuda":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl" if args.device == "cuda" else "gloo", rank=rank, world_size=args.ranks)
    args.rank = rank
    run(args, Trainee, ranks=args.ranks, **({"tp": 1} if args.tp else {"fsdp": 1}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    parser = arguments("torch,torch-again,ridge,ridge-fp8", steps=50, tokens=8192, sequence=4096, layers=2, hidden=4096,
                       inner=14336, heads=32, kv=8, head=128, vocab=128256)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--tp", action="store_true")
    parser.add_argument("--ranks", type=int, default=0, help="with --fsdp or --tp; default: the machine's GPUs")
    args = parser.parse_args()
    if not args.fsdp and not args.tp:
        args.ranks = 1
        return run(args, Trainee)
    args.ranks = args.ranks or torch.cuda.device_count() or 2
    torch.multiprocessing.spawn(on_ranks, (args, 20000 + os.getpid() % 20000), nprocs=args.ranks)


if __name__ == "__main__":
    main()

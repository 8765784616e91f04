"""ridge.torch.distributed on as many ranks as the machine has GPUs, over NCCL; without a GPU on two over gloo, to try the script.

    python3 tests/several_gpus.py [--ranks N] [--checks problems,layers] [--steps 10000] [--replays 1000] [--lib libridge.so]
        [--failures 100 | --numbers 3,7-12] [--together N] [--deadline N] [--seconds N]

layers: tensor-parallel Fp8Linears against one device's layers: the bits of y and dW of one cut by columns, of dX and dW of one
cut by rows, with and without products that leave multiprocessors to NCCL, and by copy engine. problems: loss and gradients of
the slices against one device's op: whole and sharded rows, mean and sum, options, dtypes, uneven slices; the same bits on all
ranks and in a second run. disagreements: the last rank asks for something else. gathers: Fp8Linears whose weights FSDP2 gathers
as codes, cut at blocks, within them and with ranks that have no row, against weights gathered as they are. steps: one training
step again and again, every result held against the first one's bits on the device. replays: the same from a CUDA graph.
failures: a rank is killed, stopped, or takes no turn in a step of its own choice: every other rank must get an error within the
group's deadline (--deadline, four seconds) and two more, and none may hang; the processes that are left then make a new group
for the next failure. Ends with "N passed, N failed".
"""
import argparse
import datetime
import os
import signal
import socket
import sys
import tempfile
import time
import traceback

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(ROOT, "bench"), os.path.join(ROOT, "python")]
CUDA = torch.cuda.device_count() > 0  # without opening one: children are forked
SLACK = 2


def open_rank(rank, n, port, seconds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", NCCL_DEBUG="ERROR")
    if CUDA:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if CUDA else "gloo", rank=rank, world_size=n, timeout=datetime.timedelta(seconds=seconds))
    import ridge.torch as R
    import ridge.torch.distributed as D
    return R, D, f"cuda:{rank}" if CUDA else "cpu"


def operands(tokens, hidden, vocab, dtype, device, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(a, hidden, generator=g).to(device, dtype) / s for a, s in ((tokens, 1), (vocab, hidden ** 0.5)))
    t = torch.randint(vocab, (tokens,), generator=g)
    t[::7] = -100
    return x, w, t.to(device)


def run(function, *leaves):
    leaves = [v.detach().clone().requires_grad_() for v in leaves]
    loss = function(*leaves)
    loss.backward()
    return [loss.detach(), *(v.grad for v in leaves)]


def same_everywhere(t):
    first = t.contiguous().clone()
    dist.broadcast(first, 0)
    return torch.equal(first, t)


def problems(rank, n, R, D, device, args):
    """(passed, failed)"""
    sizes = ((1024, 512, 9000), (768, 1024, 20001)) if CUDA else ((24, 64, 203),)
    options = ({}, dict(label_smoothing=0.1, softcap=20.0, temperature=0.7, lse_square_scale=1e-3))
    good = bad = 0
    for tokens, hidden, vocab in sizes:
        for dtype in (torch.bfloat16, torch.float16):
            x, w, t = operands(tokens, hidden, vocab, dtype, device)
            first, count = D._part(vocab, n, rank)
            part = w[first:first + count]
            for rows in ("whole", "sharded"):
                mine = slice(rank * tokens // n, (rank + 1) * tokens // n) if rows == "sharded" else slice(None)
                for reduction in ("mean", "sum"):
                    for more in options:
                        for recompute in (False, True):
                            want = run(lambda x, w: R.linear_cross_entropy(x, w, t, reduction=reduction, **more), x, w)
                            two = [run(lambda x, w: D.linear_cross_entropy(
                                x, w, t[mine], group=dist.group.WORLD, rows=rows, reduction=reduction, recompute=recompute, **more),
                                x[mine], part) for _ in range(2)]
                            loss, dx, dw = two[0]
                            fine = all(torch.equal(a, b) for a, b in zip(*two)) and same_everywhere(loss)
                            fine = fine and (rows == "sharded" or same_everywhere(dx))
                            fine = fine and abs(loss.item() - want[0].item()) <= 1e-5 * abs(want[0].item())
                            for got, ref in ((dx, want[1][mine]), (dw, want[2][first:first + count])):
                                off = (got.double() - ref.double()).norm() / ref.double().norm()
                                fine = fine and bool(off < 8e-3)
                            if not fine:
                                print(f"rank {rank}: {tokens} {hidden} {vocab} {dtype} {rows} {reduction} {more} {recompute}", flush=True)
                            good, bad = good + fine, bad + (not fine)
    return good, bad


def mesh_with(ctas, n, device):
    """A mesh of all ranks; with NCCL of a group that takes at most so many multiprocessors, or none (0)."""
    if CUDA and ctas == 0:
        import ridge.torch.distributed as D
        mesh = torch.distributed.device_mesh.DeviceMesh.from_group(dist.new_group(), "cuda")
        D.copy_engine(mesh.get_group())
        return mesh
    if not CUDA or ctas is None:
        return torch.distributed.device_mesh.init_device_mesh(device.split(":")[0], (n,))
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas, options.config.cga_cluster_size = ctas, 2
    return torch.distributed.device_mesh.DeviceMesh.from_group(dist.new_group(pg_options=options), "cuda")


def layers(rank, n, R, D, device, args, groups=((None, 6e9), (4, 6e9), (16, 6e10))):
    """(passed, failed); of groups with so many CTAs, which bring so many bytes a second each: 6e10, so that products are cut."""
    from torch.distributed.tensor.parallel import parallelize_module
    from ridge.torch import _parallel
    tokens, hidden, inner = (2048, 1024, 2048) if CUDA else (128, 256, 128)  # of a rank
    torch.manual_seed(1)
    x, dh, dy = (torch.randn(n * tokens, cols).to(device, torch.bfloat16) for cols in (hidden, n * inner, hidden))
    good = bad = 0
    for wgrad in ("blk128", "row128"):
        torch.manual_seed(2)
        with torch.device(device):
            up, down = R.Fp8Linear(hidden, n * inner, wgrad=wgrad), R.Fp8Linear(n * inner, hidden, bias=False, wgrad=wgrad)
        X, H = x.clone().requires_grad_(), dh.clone().requires_grad_()
        y, z = up(X), down(H)
        y.backward(dh)
        z.backward(dy)
        rows, cols = slice(rank * tokens, (rank + 1) * tokens), slice(rank * inner, (rank + 1) * inner)
        for ctas, _parallel._OF_CTA in groups:
            torch.manual_seed(2)
            with torch.device(device):
                mine = torch.nn.ModuleDict({"up": R.Fp8Linear(hidden, n * inner, wgrad=wgrad),
                                            "down": R.Fp8Linear(n * inner, hidden, bias=False, wgrad=wgrad)})
            parallelize_module(mine, mesh_with(ctas, n, device),
                               {"up": D.Fp8ColwiseParallel(), "down": D.Fp8RowwiseParallel()})
            runs = []
            for _ in range(2):
                for p in mine.parameters():
                    p.grad = None
                mx, mh = x[rows].clone().requires_grad_(), dh[:, cols].clone().requires_grad_()
                my, mz = mine["up"](mx), mine["down"](mh)
                my.backward(dh[:, cols].contiguous())
                mz.backward(dy[rows].contiguous())
                runs.append([my.detach(), mh.grad, mine["up"].weight.grad.to_local(), mine["down"].weight.grad.to_local(), mz.detach(),
                             mx.grad])
            want = [y[:, cols], H.grad[:, cols], up.weight.grad[cols], down.weight.grad[:, cols], z[rows], X.grad[rows]]
            fine = [torch.equal(a, b) for a, b in zip(*runs)] + [torch.equal(a, b) for a, b in zip(runs[0][:4], want)]
            fine += [bool((a.double() - b.double()).norm() < 6e-3 * b.double().norm()) for a, b in zip(runs[0][4:], want[4:])]
            if not all(fine):
                print(f"rank {rank}: layers {wgrad} {ctas}: {fine}", flush=True)
            good, bad = good + all(fine), bad + (not all(fine))
    return good, bad


def by_copy_engine(rank, n, R, D, device, args):
    """The layers, and the loss, which keeps its bits: (passed, failed)."""
    if not CUDA:
        return 0, 0
    from ridge.torch import _parallel
    good = bad = 0
    for _parallel._RATE in (0, 1.1e15):  # at first in steps
        a, b = layers(rank, n, R, D, device, args, ((0, 6e9),))
        good, bad = good + a, bad + b
    group = mesh_with(0, n, device).get_group()
    for tokens, hidden, vocab in ((1024, 512, 9000 * n), (777, 1024, 20001 * n)):
        x, w, t = operands(tokens, hidden, vocab, torch.bfloat16, device)
        first, count = D._part(vocab, n, rank)
        runs = [run(lambda x, w: D.linear_cross_entropy(x, w, t, group=g), x, w[first:first + count])
                for g in (dist.group.WORLD, *[group] * 5)]
        fine = all(torch.equal(a, b) for other in runs[1:] for a, b in zip(runs[0], other))
        if not fine:
            print(f"rank {rank}: loss by copy engine: {[[torch.equal(a, b) for a, b in zip(runs[0], o)] for o in runs]}", flush=True)
        good, bad = good + fine, bad + (not fine)
    return good, bad


def gathers(rank, n, R, D, device, args):
    """(passed, failed): a layer of so many rows, whose weight FSDP2 gathers as codes or as it is."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = torch.distributed.device_mesh.init_device_mesh(device.split(":")[0], (n,))
    good = bad = 0
    for rows in (256 * n, 96 * n, 300 * n, 90 * n + 1, 128 * n - 1, 1, 515):
        runs = []
        for coded in (False, True, True):
            torch.manual_seed(rows)
            layer, x = R.Fp8Linear(512, rows), torch.randn(256, 512)
            layer, x = layer.to(device), x.to(device, torch.bfloat16).requires_grad_()
            if coded:
                D.gather_fp8(layer)
            fully_shard(layer, mesh=mesh, mp_policy=policy)
            for _ in range(2):  # the second time FSDP2 gathers into memory of the first
                x.grad = None
                y = layer(x)
                (y.float() ** 2).mean().backward()
            runs.append([y.detach(), x.grad, *(p.grad.to_local() for p in layer.parameters())])
        fine = all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*runs))
        if not fine:
            print(f"rank {rank}: gather of {rows} rows: {[torch.equal(a, b) for a, b in zip(*runs[:2])]}", flush=True)
        good, bad = good + fine, bad + (not fine)
    return good, bad


def soak(rank, n, R, D, device, args):
    """A step again and again, and from a graph: (passed, failed), of runs of all ranks."""
    tokens, hidden, vocab = (512, 512, 8192) if CUDA else (16, 64, 200)
    x, w, t = operands(tokens, hidden, vocab, torch.bfloat16, device)
    first, count = D._part(vocab, n, rank)
    x, part = x.requires_grad_(), w[first:first + count].clone().requires_grad_()

    def step():
        x.grad = part.grad = None
        loss = D.linear_cross_entropy(x, part, t, group=dist.group.WORLD)
        loss.backward()
        return loss.detach(), x.grad, part.grad

    step()
    want = [v.clone() for v in step()]
    wrong = torch.zeros((), dtype=torch.int64, device=device)

    def compare(got):
        wrong.add_(sum((a.flatten().view(torch.uint8) != b.flatten().view(torch.uint8)).any().long() for a, b in zip(got, want)))

    begun = time.monotonic()
    for i in range(args.steps):
        compare(step())
        if rank == 0 and i % 2500 == 2499:
            print(f"{i + 1} steps: {int(wrong)} results differ", flush=True)
    total, out = args.steps, [f"{args.steps} steps in {time.monotonic() - begun:.1f} s: {int(wrong)} results differ"]
    if CUDA:
        begun, graph = time.monotonic(), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            compare(step())
        for _ in range(args.replays):
            graph.replay()
        torch.cuda.synchronize()
        total += args.replays
        out.append(f"{args.replays} replays in {time.monotonic() - begun:.1f} s: {int(wrong)} results differ in all")
        del graph
    if rank == 0:
        print("\n".join(out), flush=True)
    return (0, 1) if int(wrong) else (total, 0)


def disagreements(rank, n, R, D, device, args):
    """(passed, failed): the last rank asks for something else; every rank must get the error that names it, and go on."""
    x, w, t = operands(64, 64, 128 * n, torch.bfloat16, device)
    first, count = D._part(128 * n, n, rank)
    part, odd = w[first:first + count], rank == n - 1
    good = bad = 0
    for field, rows, more in (("label_smoothing", 64, dict(label_smoothing=0.1 * odd)), ("input.shape", 64 - odd, {}),
                              ("reduction", 64, dict(reduction="sum" if odd else "mean")),
                              ("vocab_offset", 64, dict(vocab_offset=first + odd)), ("sum of target", 64, {})):
        of = t[:rows].clone()
        of[1] = odd if field == "sum of target" else 0
        try:
            D.linear_cross_entropy(x[:rows], part, of, group=dist.group.WORLD, **more)
            said = "no error"
        except R.ArgumentError as error:
            said = str(error)
        fine = field in said and f"rank {n - 1}" in said
        if not fine:
            print(f"rank {rank}: disagreement about {field}: {said}", flush=True)
        good, bad = good + fine, bad + (not fine)
    loss = D.linear_cross_entropy(x, part, t, group=dist.group.WORLD)
    fine = bool(torch.isfinite(loss)) and same_everywhere(loss)
    return good + fine, bad + (not fine)


CHECKS = problems, disagreements, soak, gathers, layers, by_copy_engine


def steady(rank, n, port, args):
    R, D, device = open_rank(rank, n, port, 120)
    good, bad = 0, 0
    for part in CHECKS:
        if args.checks and part.__name__ not in args.checks.split(","):
            continue
        try:
            a, b = part(rank, n, R, D, device, args)
        except Exception:
            traceback.print_exc()
            a, b = 0, 1
        good, bad = good + a, bad + b
        if rank == 0:
            print(f"{part.__name__}: {a} passed, {b} failed", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 1 if bad else 0


# --------------------------------------------------------------------------------------------------------------- failures


def meet(rank, n, path, seconds):
    """A group of its own for a failure. Its ranks meet in a file, since a store within a rank would end with that rank."""
    group = dict(store=dist.FileStore(path, n), rank=rank, world_size=n, timeout=datetime.timedelta(seconds=seconds))
    dist.init_process_group("nccl" if CUDA else "gloo", **group)


def part_ways():
    """Ends a group of which a rank is gone; this process is as good as before."""
    if CUDA:
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def step_of(D, x, part, t):
    D.linear_cross_entropy(x, part, t, group=dist.group.WORLD).backward()
    if CUDA:
        torch.cuda.synchronize()


def one_failure(rank, n, number, path, operands_, D, args):
    """Rank `number % n` fails in step `number % 3 + 1`, and the others must see it: "fine", or what is not."""
    x, part, t = operands_
    fails, at, kind = rank == number % n, number % 3 + 1, number // n % 3
    meet(rank, n, path, 60)
    step_of(D, x, part, t)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=args.deadline), dist.group.WORLD)
    for step in range(1, at + 1):
        if fails and step == at:
            if kind < 2:
                os.kill(os.getpid(), signal.SIGKILL if kind == 0 else signal.SIGSTOP)
            else:  # takes no turn until the others are done
                while not os.path.exists(f"{path}.over"):
                    time.sleep(0.05)
            return "fine"
        begun = time.monotonic()
        try:
            step_of(D, x, part, t)
        except D.PeerError as error:
            took = time.monotonic() - begun
            early = step == at - 1  # this rank was behind, and what it still waited for went with the other one
            if (step == at or early) and took < args.deadline + SLACK and f"rank {rank} of {n}" in str(error):
                return "fine"
            return f"in step {step} of {at} after {took:.1f} s: {str(error)[:200]}"
    return "noticed nothing"


def member(rank, n, orders, answers, args):
    """Takes part in the failures whose number and file it reads; answers "RANK NUMBER found TEXT", then "RANK NUMBER ready -"."""
    os.environ.update(TORCH_NCCL_BLOCKING_WAIT="1", GLOO_SOCKET_IFNAME="lo", NCCL_DEBUG="ERROR")  # an exception where the call is
    if CUDA:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    import ridge.torch.distributed as D
    x, w, t = operands(64, 64, 512, torch.bfloat16, f"cuda:{rank}" if CUDA else "cpu")
    first, count = D._part(512, n, rank)
    mine = x.requires_grad_(), w[first:first + count].clone().requires_grad_(), t
    with os.fdopen(orders) as lines:
        for line in lines:
            number, path = line.split()
            said = one_failure(rank, n, int(number), path, mine, D, args)
            os.write(answers, f"{rank} {number} found {' '.join(said.split())}\n".encode())
            part_ways()
            os.write(answers, f"{rank} {number} ready -\n".encode())
    return 0


class Crew:
    """n processes that go from failure to failure, of which those that are killed or hang are replaced."""

    def __init__(self, n, folder, args):
        self.n, self.folder, self.args, self.pids, self.orders, self.rest = n, folder, args, [None] * n, [None] * n, b""
        self.heard = {}  # (number, rank, "found" or "ready"): text
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.replaced = 0

    def send(self, rank, text):
        if self.pids[rank] is None:
            read, self.orders[rank] = os.pipe()
            self.pids[rank] = forked(member, rank, self.n, read, self.write, self.args)
            os.close(read)
        os.write(self.orders[rank], text.encode())

    def lose(self, rank):
        for signal_ in (signal.SIGKILL, signal.SIGCONT):
            try:
                os.kill(self.pids[rank], signal_)
            except ProcessLookupError:
                pass
        os.close(self.orders[rank])
        reap([self.pids[rank]], 20)
        self.pids[rank] = None

    def hear(self, number, what, wanted, seconds):
        """{rank: text} of the ranks `wanted` that say it of a failure in time."""
        until = time.monotonic() + seconds
        while any((number, rank, what) not in self.heard for rank in wanted) and time.monotonic() < until:
            try:
                self.rest += os.read(self.read, 65536)
            except BlockingIOError:
                time.sleep(0.02)
            *lines, self.rest = self.rest.split(b"\n")
            for line in lines:
                rank, of, which, text = line.decode().split(" ", 3)
                self.heard[int(of), int(rank), which] = text
        return {rank: self.heard[number, rank, what] for rank in wanted if (number, rank, what) in self.heard}

    def fail(self, number):
        """Whether every rank but the one that fails ends with an error in time."""
        bad, path = number % self.n, f"{self.folder}/{number}"
        for rank in range(self.n):
            self.send(rank, f"{number} {path}\n")
        others = set(range(self.n)) - {bad}
        said = self.hear(number, "found", others, 40 + self.args.deadline)
        open(f"{path}.over", "w").close()
        wrong = {rank: said.get(rank, "hangs") for rank in others if said.get(rank) != "fine"}
        if wrong:
            print(f"failure {number} of rank {bad}: {wrong}", flush=True)
        if number // self.n % 3 == 0:
            self.lose(bad)
        else:
            os.kill(self.pids[bad], signal.SIGCONT)
            others.add(bad)
        for rank in others - set(self.hear(number, "ready", others, 15)):
            self.replaced += 1
            self.lose(rank)
        return not wrong


def reap(pids, seconds):
    """{pid: exit status, None: it hangs}"""
    found, until = {}, time.monotonic() + seconds
    while len(found) < len(pids) and time.monotonic() < until:
        for pid in pids:
            if pid not in found:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    found[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return {pid: found.get(pid) for pid in pids}


def forked(function, *args):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = function(*args)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status or 0)


def free_port(number=0):
    """One of its own for each number, so that runs side by side do not meet."""
    for port in range(20000 + (os.getppid() * 101 + number) % 10000, 65000, 499):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise OSError("no free port")


def share(first, until, pipe, folder, args):
    """Every --together-th failure from the first; a line "number fine replaced" for each."""
    crew = Crew(args.ranks, folder, args)
    for number in args.numbers[first::args.together]:
        if time.monotonic() > until:
            break
        fine = crew.fail(number)
        os.write(pipe, f"{number} {int(fine)} {crew.replaced}\n".encode())
        crew.replaced = 0
    for rank in range(args.ranks):
        if crew.pids[rank]:
            crew.lose(rank)
    return 0


def failures(args):
    """(ended in time, run, processes that had to be replaced though they had not failed)"""
    read, write = os.pipe()
    until = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as folder:
        pids = [forked(share, first, until, write, folder, args) for first in range(min(args.together, len(args.numbers)))]
        os.close(write)
        every = []
        with os.fdopen(read) as lines:
            for line in lines:
                every.append(line.split())
                if len(every) % 10 == 0:
                    print(f"{len(every)} failures, in time {sum(fine == '1' for _, fine, _ in every)}", flush=True)
        reap(pids, 60)
    return sum(fine == "1" for _, fine, _ in every), len(every), sum(int(replaced) for _, _, replaced in every)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--checks", default="", help="only these of the checks before the failures")
    parser.add_argument("--failures", type=int, default=100)
    parser.add_argument("--numbers", help="failures by number, as 3,7-12, in place of the first so many: they come by rank, then by kind")
    parser.add_argument("--together", type=int, default=1, help="failures side by side")
    parser.add_argument("--deadline", type=float, default=4, help="of a group whose rank fails, in seconds")
    parser.add_argument("--seconds", type=float, default=3600, help="after which no other failure is begun")
    parser.add_argument("--lib")
    args = parser.parse_args()
    ranges = [part.partition("-") for part in (args.numbers or f"0-{args.failures - 1}").split(",")]
    args.numbers = [i for a, _, b in ranges for i in range(int(a), int(b or a) + 1)]
    if args.lib:
        os.environ["RIDGE_LIBRARY"] = os.path.abspath(args.lib)
    import ridge.torch.distributed  # noqa: F401  before any fork: it takes seconds
    good = bad = 0
    if args.steps or args.checks:
        port = free_port()
        ended = reap([forked(steady, rank, args.ranks, port, args) for rank in range(args.ranks)], 3600)
        for pid, code in ended.items():
            if code is None:
                os.kill(pid, signal.SIGKILL)
        good, bad = sum(c == 0 for c in ended.values()), sum(c != 0 for c in ended.values())
    begun = time.monotonic()
    fine, count, replaced = failures(args) if args.numbers else (0, 0, 0)
    if args.numbers:
        print(f"failures: {fine} of {count} ended in time, {replaced} processes did not go on in a new group, "
              f"{time.monotonic() - begun:.0f} s", flush=True)
    good, bad = good + fine, bad + count - fine
    print(f"{good} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

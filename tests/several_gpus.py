"""ridge.torch.distributed on as many ranks as the machine has GPUs, over NCCL; without a GPU on two over gloo, to try the script.

    python3 tests/several_gpus.py [--ranks N] [--steps 10000] [--replays 1000] [--failures 100] [--lib libridge.so]

problems: loss and gradients of the slices against one device's op: whole and sharded rows, mean and sum, options, dtypes, uneven slices;
the same bits on all ranks and in a second run. steps: one training step again and again, every result held against the first one's bits
on the device. replays: the same from a CUDA graph. failures: a rank is killed, stopped, or takes another turn in a step of its own choice,
in processes of their own: every other rank must end with an error within the group's deadline of four seconds and two more, and none may
hang. Ends with "N passed, N failed".
"""
import argparse
import datetime
import os
import signal
import socket
import sys
import time
import traceback

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(ROOT, "bench"), os.path.join(ROOT, "python")]
CUDA = torch.cuda.device_count() > 0  # without opening one: children are forked
DEADLINE, SLACK = 4, 2


def open_rank(rank, n, port, lib, seconds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TORCH_NCCL_BLOCKING_WAIT="1",
                      NCCL_DEBUG="ERROR")
    if lib:
        os.environ["RIDGE_LIBRARY"] = os.path.abspath(lib)
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
    for _ in range(args.steps):
        compare(step())
    total, out = args.steps, [f"{args.steps} steps in {time.monotonic() - begun:.1f} s: {int(wrong)} results differ"]
    if CUDA:
        begun, graph = time.monotonic(), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
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


def steady(rank, n, port, args):
    R, D, device = open_rank(rank, n, port, args.lib, 120)
    good, bad = 0, 0
    for part in (problems, soak):
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


def lone(rank, n, port, number, args):
    """The rank `number % n` fails in step number % 3 + 1; the others must see it."""
    R, D, device = open_rank(rank, n, port, args.lib, DEADLINE)
    x, w, t = operands(64, 64, 512, torch.bfloat16, device)
    first, count = D._part(512, n, rank)
    x, part = x.requires_grad_(), w[first:first + count].clone().requires_grad_()
    fails, at = rank == number % n, number % 3 + 1
    for step in range(at + 1):
        if fails and step == at:
            kind = number // n % 3
            if kind < 2:
                os.kill(os.getpid(), signal.SIGKILL if kind == 0 else signal.SIGSTOP)
            time.sleep(DEADLINE + 2 * SLACK)  # takes no turn
            os._exit(0)
        begun = time.monotonic()
        try:
            D.linear_cross_entropy(x, part, t, group=dist.group.WORLD).backward()
            if CUDA:
                torch.cuda.synchronize()
        except D.PeerError as error:
            took = time.monotonic() - begun
            early = step == at - 1  # this rank was behind, and what it still waited for went with the other one
            fine = (step == at or early) and took < DEADLINE + SLACK and f"rank {rank} of {n}" in str(error)
            if not fine:
                print(f"failure {number}: rank {rank} in step {step} of {at} after {took:.1f} s: {str(error)[:200]}", flush=True)
            os._exit(0 if fine else 3)
    os._exit(4)  # noticed nothing


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


def fail(number, n, port, args):
    """Whether every rank but the one that fails ends with an error in time."""
    pids = [forked(lone, rank, n, port, number, args) for rank in range(n)]
    bad = number % n
    others = [pid for rank, pid in enumerate(pids) if rank != bad]
    ended = reap(others, 30 + DEADLINE + SLACK)
    os.kill(pids[bad], signal.SIGCONT)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    reap([pids[bad], *(pid for pid in others if ended[pid] is None)], 10)
    # With NCCL a peer that is gone may also end a rank by its watchdog, which does not ask anybody
    fine = all(code == 0 or (CUDA and code not in (None, 3, 4)) for code in ended.values())
    if not fine:
        print(f"failure {number}: {list(ended.values())} (None: hangs)", flush=True)
    return fine


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--failures", type=int, default=100)
    parser.add_argument("--every", type=int, default=1, help="only every such failure: they come by rank, then by kind")
    parser.add_argument("--lib")
    args = parser.parse_args()
    good = bad = 0
    if args.steps:
        port = free_port()
        ended = reap([forked(steady, rank, args.ranks, port, args) for rank in range(args.ranks)], 3600)
        for pid, code in ended.items():
            if code is None:
                os.kill(pid, signal.SIGKILL)
        good, bad = sum(c == 0 for c in ended.values()), sum(c != 0 for c in ended.values())
    begun = time.monotonic()
    fine = sum(fail(number * args.every, args.ranks, free_port(), args) for number in range(args.failures))
    if args.failures:
        print(f"failures: {fine} of {args.failures} ended in time, {time.monotonic() - begun:.0f} s", flush=True)
    good, bad = good + fine, bad + args.failures - fine
    print(f"{good} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

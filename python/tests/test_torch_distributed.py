"""ridge.torch.distributed over gloo on the CPU, 2 and 4 ranks. The ranks of a number are started once and run every check below
whose name begins with "check_"; each is a test."""
import contextlib
import datetime
import os
import signal
import socket
import sys
import time
import traceback

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_common import near, rms  # noqa: E402

pytest.importorskip("torch.distributed.tensor.experimental", reason="this PyTorch has no DTensor")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("no gloo", allow_module_level=True)
import ridge.torch.distributed as D  # noqa: E402
from ridge.torch import _collectives, _distill  # noqa: E402

OPTIONS = {"plain": {}, "all": dict(label_smoothing=0.1, lse_square_scale=1e-3, softcap=20.0, temperature=0.7)}


def same_on_all(t):
    """The bits of t are those of rank 0."""
    first = t.detach().clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, t.detach()), (first, t)


def problem(tokens, vocab, hidden=64, dtype=torch.float32):
    torch.manual_seed(tokens + vocab)
    x, w, t = torch.randn(tokens, hidden, dtype=dtype), torch.randn(vocab, hidden, dtype=dtype) / 8, torch.randint(0, vocab, (tokens,))
    t[::5] = -100
    return x, w, t


def mine(t, rank, n):
    return t.chunk(n)[rank] if rank < len(t.chunk(n)) else t[:0]


class File:
    """In place of symmetric memory: a file that all ranks have mapped."""

    def __init__(self, bytes_, path):
        self.bytes, self.path = bytes_, path

    def meet(self, seconds):
        dist.barrier()

    def of(self, rank, shape, dtype, first):
        whole = torch.from_file(f"{self.path}-{rank}", shared=True, size=self.bytes, dtype=torch.uint8)
        return whole[first:first + torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)


class Files(_collectives.Copies):
    """copy_engine's transfers with such files, without streams."""

    def __init__(self, group):
        self.group, self.seconds, self.rings, self.ready = group, 1, {}, {}

    def new(self, bytes_, device):
        self.count = getattr(self, "count", 0) + 1
        file = File(bytes_, f"{os.path.dirname(sys.stdout.name)}/{self.count}-{bytes_}")
        file.of(self.group.rank(), torch.Size((bytes_,)), torch.uint8, 0)
        dist.barrier()  # torch.from_file writes a byte into a file that it makes larger: no other rank may come first
        return file

    def copying(self, buffer, out, groups, met=False):
        if not met:
            buffer.meet(self.seconds)
        for theirs, mine in (pair for pairs in groups for pair in pairs):
            mine.copy_(theirs)
        dist.barrier()
        return [lambda: None for _ in groups]


def against_one(rank, n, x, w, t, bias, class_weight, rows, reduction, tolerance, **options):
    """Loss and gradients of the slices against those of one process; in two runs, with the same bits."""
    leaves, one = [v.clone().requires_grad_() for v in (x, w, bias)], {k: v for k, v in options.items() if k != "recompute"}
    want = R.linear_cross_entropy(leaves[0], leaves[1], t, leaves[2], weight=class_weight, reduction=reduction, **one)
    dloss = torch.linspace(0.5, 1, want.numel()).view(want.shape)
    want.backward(dloss)
    part = (lambda v: mine(v, rank, n)) if rows == "sharded" else (lambda v: v)
    got = []
    for D._HIDDEN, files in ((2600, False), (1, False), (1, True)):  # 1: parts of all rows of dx travel, every rank adds them
        if files:
            _collectives._copies[dist.group.WORLD] = Files(dist.group.WORLD)
        X, W, b = (v.clone().requires_grad_() for v in (part(x), mine(w, rank, n), mine(bias, rank, n)))
        loss = D.linear_cross_entropy(X, W, part(t), b, class_weight, group=dist.group.WORLD, rows=rows, reduction=reduction, **options)
        loss.backward(part(dloss) if reduction == "none" else dloss)
        got.append((loss.detach(), X.grad, W.grad, b.grad))
    D._HIDDEN = 2600
    _collectives._copies.clear()
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*got)), "other bits in another run"
    loss, dx, dw, db = got[0]
    near(loss, part(want.detach()) if reduction == "none" else want.detach(), 1e-6)
    for ours, ref in ((dx, part(leaves[0].grad)), (dw, mine(leaves[1].grad, rank, n)), (db, mine(leaves[2].grad, rank, n))):
        assert ours.dtype is ref.dtype and ours.shape == ref.shape
        assert (ours.double() - ref.double()).norm() <= tolerance * ref.double().norm() + 1e-30
    if rows == "whole":
        same_on_all(dx)
    if rows == "whole" or reduction != "none":
        same_on_all(loss)


def check_loss_and_gradients_are_one_process_s(rank, n):
    for rows, tokens in (("whole", 22), ("sharded", 24)):  # 22 rows, 203 classes: no number of ranks divides them
        for reduction in ("mean", "sum", "none"):
            for name, options in OPTIONS.items():
                x, w, t = problem(tokens, 203)
                class_weight = torch.rand(203) if name == "all" else None
                bias = torch.randn(203)
                against_one(rank, n, x, w, t, bias, class_weight, rows, reduction, 1e-6, **options)
                if rows == "sharded":
                    against_one(rank, n, x, w, t, bias, class_weight, rows, reduction, 1e-6, recompute=True, **options)
    for dtype in (torch.bfloat16, torch.float16):
        x, w, t = problem(24, 203, dtype=dtype)
        against_one(rank, n, x, w, t, torch.randn(203), None, "sharded", "mean", 8e-3)


def check_a_rank_without_a_class_takes_part(rank, n):
    for vocab in (1, 5, 9):  # of 4 ranks the last have none
        for rows in ("whole", "sharded"):
            against_one(rank, n, *problem(4 * n, vocab), torch.randn(vocab), None, rows, "mean", 1e-6, label_smoothing=0.1)


def check_the_divisor_of_a_mean_is_that_of_all_ranks(rank, n):
    x, w, t = problem(8 * n, 50)
    t[:8] = -100  # rank 0 has nothing to learn from
    t[8:13] = -100
    against_one(rank, n, x, w, t, torch.zeros(50), None, "sharded", "mean", 1e-6)
    t[:] = -100
    against_one(rank, n, x, w, t, torch.zeros(50), None, "sharded", "mean", 1e-6)


def check_a_target_out_of_range_is_nan_on_every_rank(rank, n):
    x, w, t = problem(2 * n, 50)
    t[1] = 50
    for rows in ("whole", "sharded"):
        part = mine(w, rank, n).clone().requires_grad_()
        loss = D.linear_cross_entropy(mine(x, rank, n) if rows == "sharded" else x, part,
                                      mine(t, rank, n) if rows == "sharded" else t, group=dist.group.WORLD, rows=rows)
        loss.backward()
        assert loss.isnan() and not part.grad.isnan().any()


def check_logprobs_are_one_process_s(rank, n):
    """Of the target and of K classes, with the entropy, and their gradients; ranks without a class."""
    for vocab, k in ((203, 0), (203, 5), (5, 2)):
        x, w, t = problem(22, vocab)
        bias = torch.randn(vocab)
        if k:
            t = torch.randint(0, vocab, (22, k))
            t[::5] = t[3, 1] = -100
        one = [v.clone().requires_grad_() for v in (x, w, bias)]
        two = [v.clone().requires_grad_() for v in (x, mine(w, rank, n), mine(bias, rank, n))]
        want = R.linear_logprobs(one[0], one[1], t, one[2], entropy=True, temperature=0.8)
        got = D.linear_logprobs(two[0], two[1], t, two[2], group=dist.group.WORLD, entropy=True, temperature=0.8)
        up = [torch.randn(v.shape) for v in want]
        torch.autograd.backward(want, up)
        torch.autograd.backward(got, up)
        for ours, ref in zip(got, want):
            near(ours.detach(), ref.detach(), 2e-6)
            same_on_all(ours)
        near(two[0].grad, one[0].grad, 1e-5)
        same_on_all(two[0].grad)
        for ours, ref in zip(two[1:], one[1:]):
            near(ours.grad, mine(ref.grad, rank, n), 1e-5)
        alone = two[0].detach().requires_grad_()
        D.linear_logprobs(alone, two[1].detach(), t, group=dist.group.WORLD).sum().backward()


def check_topk_and_draws_are_one_process_s(rank, n):
    for vocab, k in ((64 * n, 9), (32 * n, 33)):  # k is more than a rank has
        x, w, t = problem(22, vocab)
        mask, part, seed = t != -100, w.chunk(n)[rank], torch.arange(22) + 5
        ids, logprob = R.linear_topk(x, w, k, mask=mask)
        for ours, ref in zip(D.linear_topk(x, part, k, mask=mask, group=dist.group.WORLD), (ids, logprob)):
            near(ours.double(), ref.double(), 2e-6)
            same_on_all(ours)
        want = R.linear_sample(x, w, seed, seed[:1], mask=mask, temperature=1.3)
        got = D.linear_sample(x, part, seed, seed[:1], mask=mask, temperature=1.3, group=dist.group.WORLD)
        assert torch.equal(got[0], want[0])
        near(got[1], want[1], 2e-6)
        same_on_all(got[1])


def check_distillation_is_one_process_s(rank, n):
    """Loss and gradients of all three divergences; ranks without a class; rows that are left out."""
    for vocab, beta, caps, reduction in ((203, 0.4, (0.0, 0.0), "mean"), (203, 0.0, (3.0, 0.0), "sum"), (5, 1.0, (0.0, 2.0), "mean")):
        x, w, t = problem(22, vocab)
        bias, tx, tw = torch.randn(vocab), torch.randn(22, 24), torch.randn(vocab, 24) / 4
        mask = t != -100
        tx[~mask] = torch.nan
        options = dict(mask=mask, beta=beta, temperature=1.5, softcap=caps[0], teacher_softcap=caps[1], reduction=reduction)
        one = [v.clone().requires_grad_() for v in (x, w, bias)]
        two = [v.clone().requires_grad_() for v in (x, mine(w, rank, n), mine(bias, rank, n))]
        want = R.linear_distill(*one[:2], tx, tw, one[2], bias, **options)
        with pieces_of(3):
            got = D.linear_distill(*two[:2], tx, mine(tw, rank, n), two[2], mine(bias, rank, n), group=dist.group.WORLD, **options)
        near(got.detach(), want.detach(), 2e-6)
        same_on_all(got)
        want.backward()
        got.backward()
        near(two[0].grad, one[0].grad, 1e-5)
        same_on_all(two[0].grad)
        for ours, ref in zip(two[1:], one[1:]):
            near(ours.grad, mine(ref.grad, rank, n), 1e-5)
        with torch.no_grad():
            near(D.linear_distill(x, mine(w, rank, n), tx, mine(tw, rank, n), group=dist.group.WORLD, **options),
                 R.linear_distill(x, w, tx, tw, **options), 2e-6)
    with pytest.raises(ridge.ArgumentError, match="beta is 2"):
        D.linear_distill(x, mine(w, rank, n), tx, mine(tw, rank, n), group=dist.group.WORLD, beta=2)


def check_divergences_at_ids_are_one_process_s(rank, n):
    x, w, _ = problem(22, 203)
    ids = torch.stack([torch.randperm(203)[:6] for _ in range(22)])
    logq = torch.randn(22, 203).log_softmax(-1).gather(1, ids)
    for name, more in (("linear_kl", dict(reverse=True)), ("linear_kl", dict(tail=True)), ("linear_jsd", dict(beta=0.3, tail=True))):
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        want = getattr(R, name)(one, w, logq, ids, temperature=1.2, **more)
        got = getattr(D, name)(two, mine(w, rank, n), logq, ids, group=dist.group.WORLD, temperature=1.2, **more)
        near(got.detach(), want.detach(), 1e-5)
        same_on_all(got)
        up = torch.randn(22)
        want.backward(up)
        got.backward(up)
        near(two.grad, one.grad, 1e-4)


@contextlib.contextmanager
def pieces_of(rows):
    """linear_distill in chunks of so many rows."""
    whole = _distill._rows
    _distill._rows = lambda *_: rows
    try:
        yield
    finally:
        _distill._rows = whole


def mesh_of(n):
    return torch.distributed.device_mesh.init_device_mesh("cpu", (n,))


def check_dtensor_weights_and_the_head(rank, n):
    from torch.distributed.tensor import DTensor, Shard
    x, w, t = problem(12, 203)
    linear = torch.nn.Linear(64, 203)
    with torch.no_grad():
        linear.weight.copy_(w)
        dist.broadcast(linear.bias, 0)
    head = D.VocabParallelHead.from_linear(linear, mesh_of(n))
    assert isinstance(head.state_dict()["weight"], DTensor) and head.weight.placements == (Shard(0),)
    assert torch.equal(head.weight.full_tensor(), w)
    near(head(x).detach(), linear(x).detach(), 1e-6)
    X = x.clone().requires_grad_()
    head.loss(X, t).backward()
    leaves = x.clone().requires_grad_()
    R.linear_cross_entropy(leaves, linear.weight, t, linear.bias).backward()
    near(X.grad, leaves.grad, 1e-5, 1e-7)
    near(head.weight.grad.full_tensor(), linear.weight.grad, 1e-5, 1e-7)
    near(head.bias.grad.full_tensor(), linear.bias.grad, 1e-5, 1e-7)
    other = torch.distributed.tensor.distribute_tensor(w, mesh_of(n), [Shard(1)])
    with pytest.raises(ridge.ArgumentError, match="must be Shard"):
        D.linear_cross_entropy(x, other, t)
    tied = torch.nn.Sequential(torch.nn.Embedding(203, 64), linear)
    tied[0].weight = linear.weight
    with pytest.raises(ridge.ArgumentError, match="also 0's"):
        D.VocabParallelHead.from_linear(linear, mesh_of(n), model=tied)


def check_checkpointing_and_compile_give_the_same_bits(rank, n):
    x, w, t = problem(6 * n, 203)
    part = mine(w, rank, n)

    def run(function):
        X, W = x.clone().requires_grad_(), part.clone().requires_grad_()
        loss = function(X, W)
        loss.backward()
        return loss.detach(), X.grad, W.grad

    def plain(X, W):
        return D.linear_cross_entropy(X * 2, W, t, group=dist.group.WORLD)

    want = run(plain)
    for other in (lambda X, W: torch.utils.checkpoint.checkpoint(plain, X, W, use_reentrant=False),
                  torch.compile(plain, fullgraph=True, backend="aot_eager")):
        assert all(torch.equal(a, b) for a, b in zip(want, run(other)))


def check_compiled_modules_have_the_bits_of_eager_ones(rank, n):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import parallelize_module
    x, runs = torch.randn(128, 512).bfloat16(), []
    for compiled in (False, True):
        torch.manual_seed(2)
        mlp, pair = Mlp([128 * n]), torch.nn.Sequential(R.Fp8Linear(512, 128 * n), torch.nn.Tanh(), R.Fp8Linear(128 * n, 512))
        D.gather_fp8(mlp)
        if compiled:
            mlp.compile(backend="aot_eager")
        fully_shard(mlp, mesh=mesh_of(n))
        parallelize_module(pair, mesh_of(n), {"0": D.Fp8ColwiseParallel(), "2": D.Fp8RowwiseParallel()})
        if compiled:
            pair.compile(backend="aot_eager")
        got = []
        for model in (mlp, pair):
            X = x.clone().requires_grad_()
            y = model(X)
            (y.float() ** 2).mean().backward()
            got += [y.detach(), X.grad, *(p.grad.full_tensor() for p in model.parameters())]
        runs.append(got)
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def check_ranks_that_disagree_get_one_error_each(rank, n):
    x, w, t = problem(12, 203)
    part, last = mine(w, rank, n), rank == n - 1
    cases = [
        (dict(reduction="sum" if last else "mean"), {}, f"rank {n - 1} has reduction 'sum', rank 0 has 'mean'"),
        (dict(label_smoothing=0.5 if last else 0.0), {}, f"rank {n - 1} has label_smoothing 0.5, rank 0 has 0.0"),
        (dict(rows="sharded" if last else "whole"), {}, f"rank {n - 1} has rows 'sharded', rank 0 has 'whole'"),
        ({}, dict(x=x[:8], t=t[:8]) if last else {}, rf"rank {n - 1} has input.shape \[8, 64\], rank 0 has \[12, 64\]"),
        ({}, dict(x=x.half(), w=part.half()) if last else {}, f"rank {n - 1} has input.dtype 'torch.float16'"),
        ({}, dict(w=part[:, :32]) if last else {}, rf"rank {n - 1}: input has 64 columns, the weight's shape is \[1, 32\]"),
        ({}, dict(t=t[:5]) if last else {}, rf"rank {n - 1}: target has shape \[5\], not \[12\]"),
        (dict(vocab_offset=7 if last else None), {}, f"rank {n - 1}'s slice begins at vocab_offset 7, not at"),
        (dict(vocab_total=204), {}, "has vocab_total 204, but the slices have 203 classes"),
        (dict(label_smoothing=2.0), {}, "rank 0: linear_ce_eval: option label_smoothing must lie in 0 .. 1"),
        ({}, dict(x=x.clone().requires_grad_()) if last else {}, f"rank {n - 1} has a gradient of input True"),
        ({}, dict(x=x + 1) if last else {}, f"rank {n - 1} has sum of input's bits "),
        ({}, dict(t=t.clamp(max=100)) if last else {}, f"rank {n - 1} has sum of target "),
        (dict(reduction="max" if last else "mean"), {}, f"rank {n - 1}: reduction is 'max', not one of"),
    ]
    for options, tensors, text in cases:
        a = {"x": x, "w": part, "t": t, **tensors}
        with pytest.raises(ridge.ArgumentError, match=text):
            D.linear_cross_entropy(a["x"], a["w"], a["t"], group=dist.group.WORLD, **options)
    D.linear_cross_entropy(x, part, t, group=dist.group.WORLD)  # the group is as good as before


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 64))
        self.head = torch.nn.Linear(64, 203, bias=False)


def check_the_fsdp_group_can_hold_the_head(rank, n):
    from torch.distributed.fsdp import fully_shard
    x, _, t = problem(6 * n, 203)
    t[:6] = -100
    one, many = Model(), Model()
    for p in one.parameters():
        dist.broadcast(p.data, 0)
    many.load_state_dict(one.state_dict())
    mesh = mesh_of(n)
    many.head = D.VocabParallelHead.from_linear(many.head, mesh, model=many)
    fully_shard(many.body, mesh=mesh)
    many.body.set_gradient_divide_factor(1.0)
    D.ordered_reduce(many.body)
    want = R.linear_cross_entropy(one.body(x), one.head.weight, t)
    got = many.head.loss(many.body(mine(x, rank, n)), mine(t, rank, n), rows="sharded")
    want.backward()
    got.backward()
    near(got.detach(), want.detach(), 1e-6)
    for (name, p), q in zip(one.named_parameters(), many.parameters()):
        near(q.grad.full_tensor(), p.grad, 1e-4, 1e-6)


def check_ordered_reduce_adds_in_the_order_of_the_ranks(rank, n):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    layer = torch.nn.Linear(48, 40)  # 40 rows are no multiple of 64
    for p in layer.parameters():
        dist.broadcast(p.data, 0)
    copies = [torch.nn.Linear(48, 40).bfloat16() for _ in range(n)]
    for copy in copies:
        copy.load_state_dict(layer.state_dict())
    fully_shard(layer, mesh=mesh_of(n), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    D.ordered_reduce(layer)
    torch.manual_seed(3)
    x = torch.randn(n, 8, 48).bfloat16() * torch.logspace(0, 3, n)[:, None, None].bfloat16()
    (layer(x[rank]) ** 2).sum().backward()
    for r, copy in enumerate(copies):
        (copy(x[r]) ** 2).sum().backward()
    for name, p in layer.named_parameters():
        total = copies[0].get_parameter(name).grad.float()
        for copy in copies[1:]:
            total = total + copy.get_parameter(name).grad.float()
        want = (total.bfloat16() / n).to(p.grad.dtype)
        assert torch.equal(p.grad.full_tensor(), want), name
    with pytest.raises(ridge.ArgumentError, match="no module here"):
        D.ordered_reduce(torch.nn.Linear(2, 2))


class Mlp(torch.nn.Module):
    """Rows that are cut within blocks only in the last layers."""

    def __init__(self, out):
        super().__init__()
        self.gate_up = R.Fp8Linear(512, 1024)
        self.down = R.Fp8Linear(512, 512)
        self.last = torch.nn.ModuleList(R.Fp8Linear(512, rows) for rows in out)

    def forward(self, x):
        x = self.down.swiglu(self.gate_up(x))
        return torch.cat([last(x) for last in self.last], -1)


class CountedGather:
    """FSDP2's all-gather, and the bytes of it."""

    def __init__(self):
        self.bytes = 0

    def allocate(self, size, *, dtype, device):
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.bytes += output_tensor.numel() * output_tensor.element_size()
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


def check_weights_gathered_as_codes_give_the_bits_of_gathered_weights(rank, n):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    torch.manual_seed(2)
    # Parts of blocks, less than one a rank, blocks between parts; another number a rank, of whole blocks too; ranks without a row
    rows = 96 * n, 40 * n, 300 * n, 90 * n + 1, 128 * n - 1, 1, 515
    model, runs, count = Mlp(rows), [], []
    state = {name: t.clone() for name, t in model.state_dict().items()}
    x = torch.randn(3, 40, 512).bfloat16()
    for coded in (False, True):
        model = Mlp(rows)
        model.load_state_dict(state)
        if coded:
            D.gather_fp8(model)
        mesh, policy = mesh_of(n), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        gather = CountedGather()
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        model.set_custom_all_gather(gather)
        optimizer, results = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        for step in range(2):
            X = x.clone().requires_grad_()
            y = model(X)
            (y.float() ** 2).mean().backward()
            optimizer.step()
            results += [y.detach(), X.grad, *(p.grad.full_tensor() for p in model.parameters())]
            optimizer.zero_grad()
        with torch.no_grad():
            results.append(model(x))
        runs.append(results + [p.full_tensor().detach() for p in model.parameters()])
        count.append(gather.bytes)
    for i, (a, b) in enumerate(zip(*runs)):
        assert type(b) is torch.Tensor and torch.equal(a, b), i
    of_codes = sum(m.weight.numel() for m in (model.gate_up, model.down, *model.last)) / sum(p.numel() for p in model.parameters())
    assert count[1] <= count[0] * (1 - 0.494 * of_codes), count
    with pytest.raises(ridge.ArgumentError, match="no Fp8Linear with a plain weight here"):
        D.gather_fp8(model)


def check_a_column_and_a_row_give_one_process_s_layers(rank, n):
    from torch.distributed.tensor.parallel import parallelize_module
    from ridge.torch import _parallel
    mesh = mesh_of(n)
    group = mesh.get_group()  # where there is a GPU it is not the world's: DeviceMesh then makes a group of its own
    torch.manual_seed(4)
    for wgrad, gradient_dtype, batch, least, files in (("blk128", "e4m3", (2,), 1, False), ("blk128", "e4m3", (2,), 1024, False),
                                                       ("row128", "e5m2", (), 1, True), ("blk128", "e4m3", (), 1024, True)):
        _parallel._LEAST = least  # 1: own rows are a product of their own
        if files:
            _collectives._copies[group] = Files(group)
            _parallel._RATE = 0  # every product is worth a launch of its own

        def layers():
            torch.manual_seed(4)
            return torch.nn.ModuleDict({"up": R.Fp8Linear(256, 128 * n, wgrad=wgrad, gradient_dtype=gradient_dtype),
                                        "down": R.Fp8Linear(128 * n, 256, wgrad=wgrad, gradient_dtype=gradient_dtype)})
        one, many = layers(), layers()
        parallelize_module(many, mesh, {"up": D.Fp8ColwiseParallel(), "down": D.Fp8RowwiseParallel()})
        x, dy = torch.randn(*batch, 128 * n, 256).bfloat16(), torch.randn(*batch, 128 * n, 256).bfloat16()
        dh = torch.randn(*batch, 128 * n, 128 * n).bfloat16()

        def part(t, dim):
            return t.chunk(n, dim)[rank].contiguous()

        # The rows of one process in the order in which they are gathered: parts of the sequence of all batches.
        X, H = (t.movedim(-2, 0).flatten(0, -2).clone().requires_grad_() for t in (x, dh))
        y, z = one["up"](X), one["down"](H)
        y.backward(dh.movedim(-2, 0).flatten(0, -2))
        z.backward(dy.movedim(-2, 0).flatten(0, -2))

        def back(t):
            return t.view(128 * n, *batch, t.shape[-1]).movedim(0, -2)

        mx, mh = part(x, -2).requires_grad_(), part(dh, -1).requires_grad_()
        my, mz = many["up"](mx), many["down"](mh)
        my.backward(part(dh, -1))
        mz.backward(part(dy, -2))
        assert torch.equal(my, part(back(y), -1)) and torch.equal(mh.grad, part(back(H.grad), -1))
        for name in ("up", "down"):
            assert torch.equal(many[name].weight.grad.full_tensor(), one[name].weight.grad), name
        near(many["up"].bias.grad.full_tensor(), one["up"].bias.grad, 1e-5)
        near(many["down"].bias.grad.full_tensor(), one["down"].bias.grad, 1e-2, 1e-1)
        assert rms(mz, part(back(z), -2)) < 6e-3 and rms(mx.grad, part(back(X.grad), -2)) < 6e-3
    assert _collectives._copies[group].rings
    _collectives._copies.clear()
    with pytest.raises(ridge.ArgumentError, match="this rank has 64 tokens"):
        many["up"](mx[..., :64, :])
    with pytest.raises(ridge.ArgumentError, match="whole blocks of 128"):
        parallelize_module(R.Fp8Linear(256, 64), mesh_of(n), D.Fp8ColwiseParallel())


# ------------------------------------------------------------------------------------------------------------- the ranks

CHECKS = [name for name in dir() if name.startswith("check_")]


def rank_of(rank, n, port, folder, names, seconds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    sys.stdout = sys.stderr = open(f"{folder}/{rank}.txt", "w")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n, timeout=datetime.timedelta(seconds=seconds))
    for name in names:
        try:
            globals()[name](rank, n)
            text = "passed"
        except BaseException:
            text = traceback.format_exc()
        with open(f"{folder}/{name}.{rank}", "w") as f:
            f.write(text)
        if text != "passed":  # the others may wait for this rank now
            os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


def start(n, folder, names, seconds=60):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = torch.multiprocessing.get_context("forkserver")  # torch is imported once, by a process that has used nothing of it
    context.set_forkserver_preload(["torch._dynamo", "test_torch_distributed"])
    ranks = [context.Process(target=rank_of, args=(rank, n, port, str(folder), names, seconds)) for rank in range(n)]
    for p in ranks:
        p.start()
    return ranks


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folders = {}
    for n in (2, 4):
        folders[n] = tmp_path_factory.mktemp(str(n))
        ranks = start(n, folders[n], CHECKS)
        for p in ranks:
            p.join(200)
            p.kill()
    return folders


@pytest.mark.parametrize("n", (2, 4))
@pytest.mark.parametrize("name", CHECKS)
def test_ranks(results, name, n):
    for rank in range(n):
        try:
            said = (results[n] / f"{name}.{rank}").read_text()
        except FileNotFoundError:
            said = "not reached: " + (results[n] / f"{rank}.txt").read_text()
        assert said == "passed", f"rank {rank}: {said}"


def lone(rank, n):
    """Rank 1 is gone or stopped by then: rank 0 must get an error."""
    x, w, t = problem(8, 50)
    D.linear_cross_entropy(x, mine(w, rank, n), t, group=dist.group.WORLD)
    if rank:
        os.kill(os.getpid(), WAY)
    begun = time.monotonic()
    with pytest.raises(D.PeerError, match="on rank 0 of 2"):
        D.linear_cross_entropy(x, mine(w, rank, n), t, group=dist.group.WORLD)
    assert time.monotonic() - begun < 5 + 2
    open(f"{os.path.dirname(sys.stdout.name)}/found", "w").close()
    os._exit(0)


def lone_after_a_kill(rank, n):
    globals()["WAY"] = signal.SIGKILL
    lone(rank, n)


def lone_after_a_stop(rank, n):
    globals()["WAY"] = signal.SIGSTOP
    lone(rank, n)


@pytest.mark.parametrize("how", ("lone_after_a_kill", "lone_after_a_stop"))
def test_a_peer_that_dies_or_stops_is_an_error_within_the_deadline(how, tmp_path):
    ranks = start(2, tmp_path, [how], 5)
    ranks[0].join(60)
    for p in ranks:
        p.kill()
    assert (tmp_path / "found").exists(), (tmp_path / f"{how}.0").read_text()

"""DTensor, FSDP2 and tensor parallelism: two ranks on the CPU (gloo), each result compared with one process's."""
import os
import socket
import sys
import traceback

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch_common import ce_problem, leaves, near, rms  # noqa: E402

pytest.importorskip("torch.distributed.tensor.experimental", reason="this PyTorch has no DTensor")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("no gloo", allow_module_level=True)
RANKS = 2


def rank_of(rank, port, folder, name):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    sys.stdout = sys.stderr = open(f"{folder}/{rank}.txt", "w")
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=RANKS)
        torch.manual_seed(1)
        globals()[name](torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,)))
        dist.barrier()
        dist.destroy_process_group()
        print("passed", flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def on_two_ranks(function, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank_of, args=(rank, port, str(folder), function.__name__)) for rank in range(RANKS)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join(240)
        if p.is_alive():
            p.kill()
    said = [(folder / f"{rank}.txt").read_text() for rank in range(RANKS)]
    assert all(p.exitcode == 0 and text.endswith("passed\n") for p, text in zip(ranks, said)), "\n".join(said)


# -------------------------------------------------------------------------------------------------- every op, every rule


def samples():
    """Several calls of each op, of shapes that divide into whole blocks on two ranks."""
    F32, BF16 = torch.float32, torch.bfloat16
    a, b, d = (torch.randn(4, 6, 64) for _ in range(3))
    five, ce = [1.0, 1.0, 1.0, 0.0, 0.0], [0.1, 0.0, 1.0, 1e-3]
    x, w, t, more = ce_problem("cpu", F32, {"weight": True, "linear_bias": True}, (20,))
    t[3] = -100
    cw, bias, big = more["weight"], more["linear_bias"], torch.randn(256, 256)
    lse, dl, ids, dids = torch.randn(20) + 5, torch.rand(20), torch.randint(0, 200, (20, 4)), torch.rand(20, 4)
    lx, lw, lb = torch.randn(256, 256, dtype=BF16), torch.randn(256, 256, dtype=BF16), torch.randn(256, dtype=BF16)
    blocks, z = R.q8_0_quantize(torch.randn(32, 128)), torch.randn(4, 6, 30)
    zt = torch.randint(0, 30, (4, 6))
    yield "swiglu", (a, b, torch.rand(4, 6), "silu", five, False, False, False)
    yield "swiglu", (a, None, None, "gelu", five, True, True, True)
    yield "swiglu_backward", (d, a, b, torch.rand(4, 6), "silu", five, False, False, False, True)
    yield "swiglu_backward", (d[..., :32], a, None, None, "silu", five, False, False, False, False)
    for bias_ in (None, torch.randn(32)):
        yield "swiglu_linear", (a, b, torch.randn(32, 64), bias_, "silu", five, False)
    for want in ((True, True), (True, False), (False, True)):
        yield "swiglu_linear_backward", (torch.randn(4, 6, 32), a, b, torch.randn(32, 64), "silu", five, False, *want)
    for residual in (None, b):
        yield "add_rms_norm", (a, residual, torch.randn(64), 1e-6, F32)
        yield "rms_norm_backward", (d, a, torch.randn(64), residual, 1e-6, True, True)
    yield "rope", (torch.randn(4, 6, 2, 64), torch.randint(0, 99, (4, 6)), R.rope_freqs(32)[0], "halves", False, 1.0)
    for mode in ("tensor", "row", "row128", "blk128"):
        yield "quantize_fp8", (big, mode, "e4m3", False, 0.0)
        yield "quantize_fp8", (torch.randn(6, 200), mode, "e5m2", False, 0.0)
    for form in ("row_row", "row_blk", "blk_blk"):
        yield "quantize_fp8_dual", (big, form, "e4m3", False, 0.0, form == "row_row")
    for pair in ("tensor", "row", "row_tensor", "tensor_row", "row128_blk128", "row128_row128", "blk128_row128"):
        first, second = (pair, pair) if "_" not in pair else pair.split("_")
        for bias_ in (None, torch.randn(256)):
            (p, sp), (q, sq) = R.quantize_fp8(big, first), R.quantize_fp8(big.flip(0), second)
            yield "fp8_gemm", (p, sp, q, sq, pair, F32, bias_)
            if "row128" in pair:
                sp, sq = (v.t().contiguous() if "row128" == mode else v for v, mode in ((sp, first), (sq, second)))
                yield "fp8_gemm", (p, sp, q, sq, pair.replace("row128", "row128t"), F32, bias_)
        yield "fp8_gemm_", (torch.randn(256, 256), p, sp, q, sq, pair.replace("row128", "row128t"))
    for wgrad in ("row128", "blk128"):
        for bias_ in (None, lb):
            yield "fp8_linear", (lx, lw, bias_, "e4m3", wgrad)
            yield "fp8_linear", (lx.view(2, 128, 256), lw, bias_, "e4m3", wgrad)
            yield "fp8_swiglu_linear", (lx, lx.flip(0), lw, bias_, "silu", five, False, "e4m3", wgrad)
    yield "q8_0_quantize", (torch.randn(32, 128),)
    yield "q8_0_repack", (blocks,)
    yield "q8_0_matmul", (torch.randn(4, 128), blocks, None, F32)
    yield "q8_0_matmul", (torch.randn(4, 128), *R.q8_0_repack(blocks), F32)
    yield "q8_0_linear", (torch.randn(40, 128), *R.q8_0_repack(blocks))
    for reduction in ("sum", "mean", "none"):
        some = (reduction, -100, ce)
        scalar = dl if reduction == "none" else dl[:1]
        yield "linear_ce_eval", (x, w, t, bias, cw, *some, True)
        if reduction != "none":
            yield "linear_ce_train", (x, w, t, bias, cw, *some, True, True, True)
            yield "linear_ce_train", (x, w, t, None, None, *some, True, False, False)
        yield "linear_ce_backward", (lse, scalar, x, w, t, bias, cw, *some, True, True, True, *(None,) * 5)
        yield "linear_ce_backward", (lse, scalar, x, w, t, bias, cw, *some, True, True, True, dl, dl.flip(0), ids, -dids, dids)
        yield "ce_fwd", (z, zt, None, *some)
        yield "ce_bwd", (torch.rand(4, 6) + 4, torch.rand(4, 6) if reduction == "none" else torch.rand(()), z, zt, None, *some)
    for ids_, entropy in ((None, False), (None, True), (ids, False), (ids, True)):
        yield "linear_ce_logprobs", (x, w, t, bias, ids_, -100, ce, entropy, not entropy)
    yield "linear_ce_stats", (x, w, t, bias, cw, -100, ce)
    yield "linear_ce_topk", (x, w, t, bias, 3, -100, ce)
    for wanted in (True, False):
        yield "linear_ce_weighted", (x, w, t, bias if wanted else None, dl, -100, ce, True, wanted, wanted)
    yield "linear_ce_sample", (x, w, t, torch.arange(len(t)), torch.arange(len(t)) * 3, bias, -100, ce)
    yield "ce_stats", (z, zt, None, -100, ce)
    yield "multiply", (a, torch.full((), 0.5), BF16)
    yield from expert_samples()


def expert_samples():
    x, logits, w = torch.randn(12, 64), torch.randn(12, 6), torch.rand(12, 2)
    gate_up, down, rest = torch.randn(6, 64, 64), torch.randn(6, 64, 32), ("silu", [1.0, 1.0, 1.0, 0.0, 0.0], False, "e4m3", False)
    rule = ("softmax", True)
    ids, _ = torch.ops.ridge.moe_route(logits, 2, None, None, *rule, 1, 1, False, 1.0, 0.0)
    offsets, rows, place = torch.ops.ridge.moe_permute(ids, 6)
    y = torch.randn(24, 64)
    yield "moe_route", (logits, 2, None, torch.randn(6), *rule, 1, 1, False, 1.0, 0.0)
    yield "moe_route_backward", (w, logits, ids, None, *rule, 1.0, 0.0)
    yield "moe_permute", (ids, 6)
    yield "moe_gather", (x, rows, place)
    for weights in (w, None):
        yield "moe_combine", (y, place, weights)
        yield "moe_combine_backward", (x, y if weights is not None else None, place, weights)
    yield "moe_experts", (x, ids, w, gate_up, down, *rest)
    linear = (y, gate_up, offsets, None, False, "e4m3")
    yield "grouped_fp8_linear", linear
    kept = torch.ops.ridge.grouped_fp8_linear(*linear)[1:]
    yield "grouped_fp8_linear_backward", (torch.randn(24, 64), offsets, *kept[:3], *kept[3:], False, "e4m3", True, True, True)


def plain_number(t):
    return t.view(torch.uint8) if t.dtype.itemsize == 1 and t.is_floating_point() else t


def every_rule(mesh):
    """Operands placed as a rule says: the results are placed as it says, and are those of the whole operands. The same op is
    called with one argument after another changed, so that a cached rule of another call would show."""
    from ridge.torch import _sharding
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    R.swiglu(*(distribute_tensor(torch.randn(4, 4), mesh, [Replicate()]) for _ in range(2)))  # registers them
    seen = {name: 0 for name in _sharding._rules}
    for name, args in samples():
        op = getattr(torch.ops.ridge, name)
        inside = name.endswith("_")  # its result is its first argument
        first = args[0].clone()
        want = op(first, *args[1:])
        want = (first,) if inside else want if isinstance(want, tuple) else (want,)
        specs = [DTensorSpec(mesh, (Replicate(),), tensor_meta=TensorMeta(a.shape, a.stride(), a.dtype))
                 if isinstance(a, torch.Tensor) else a for a in args]
        for outs, ins in _sharding.strategies(name, *specs):
            seen[name] += 1
            placed, whole = [], True
            for a, p in zip((args[0].clone(), *args[1:]), ins):  # a replica may be the tensor itself
                if not isinstance(a, torch.Tensor):
                    placed.append(a)
                elif p.is_partial():  # a half each: exact
                    placed.append(DTensor.from_local(a / 2, mesh, [p]))
                elif a.dtype.itemsize == 1 and a.is_floating_point():  # collectives know no fp8
                    local = a.chunk(RANKS, p.dim)[mesh.get_local_rank()].contiguous() if p.is_shard() else a
                    placed.append(DTensor.from_local(local, mesh, [p], run_check=False))
                else:
                    placed.append(distribute_tensor(a, mesh, [p]))
            got = op(*placed)
            got, outs = ((placed[0],), ins[:1]) if inside else (got if isinstance(got, tuple) else (got,), outs)
            where = f"{name} {outs} {ins} {[a for a in args if not isinstance(a, torch.Tensor)]}"
            for g, v, p in zip(got, want, outs):
                if not any(q.is_partial() for q in (*outs, *[i for i in ins if i is not None])):
                    assert g.placements == (p,), (where, g.placements)
                assert g.shape == v.shape and g.dtype == v.dtype, (where, g.shape, v.shape)
                if v.dtype.itemsize == 1 and v.is_floating_point():
                    g = DTensor.from_local(g.to_local().view(torch.uint8), mesh, g.placements, run_check=False)
                full = g.full_tensor()
                if g.placements[0].is_partial() or v.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8):
                    limit = 2e-2 if v.dtype == torch.bfloat16 else 1e-5
                    assert rms(full, v) < limit or not v.numel() or not v.any(), (where, rms(full, v))
                else:
                    assert torch.equal(full, plain_number(v)), where
    registered = {op.split("::")[1] for op in torch._C._dispatch_get_all_op_names() if op.startswith("ridge::")}
    # An op with a list of tensors, those with a group of their own, and linear_distill's own are for plain tensors.
    plain = {"moe_experts_backward_down", "moe_experts_backward_up", "linear_ce_sharded", "linear_ce_sharded_backward", "divergence_"}
    assert seen.keys() == registered - plain, seen.keys() ^ (registered - plain)
    few = {"linear_ce_train": 4, **dict.fromkeys(("moe_permute", "moe_experts", "grouped_fp8_linear", "grouped_fp8_linear_backward"), 1)}
    assert all(n >= few.get(name, 2) for name, n in seen.items()), seen


def test_every_rule(tmp_path):
    on_two_ranks(every_rule, tmp_path)


# -------------------------------------------------------------------------------------------------- layers and gradients


def gradients(mesh):
    """Public functions and layers on DTensors: results and gradients, eager and compiled."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def check(function, tensors, placements, tolerance):
        one = leaves(*tensors)
        many = [distribute_tensor(t, mesh, [p]).detach().requires_grad_() for t, p in zip(tensors, placements)]
        want, got = function(*one), function(*many)
        dy = torch.randn_like(want)
        assert rms(got.full_tensor(), want) < tolerance, (function, placements)
        back = torch.autograd.grad(got, many, distribute_tensor(dy, mesh, [Replicate()]))
        for g, v in zip(back, torch.autograd.grad(want, one, dy)):
            assert rms(g.full_tensor(), v) < tolerance, (function, placements)

    a, b, w, x = torch.randn(4, 6, 64), torch.randn(4, 6, 64), torch.randn(32, 64), torch.randn(20, 64)
    head, t = torch.randn(200, 64), torch.randint(0, 200, (20,))
    every = [Replicate(), Shard(0), Shard(1), Shard(2)]
    for p in every:
        check(R.swiglu, (a, b), (p, p), 1e-6)
        for q in (Replicate(), Shard(0), Shard(1)):
            check(lambda a, b, w: R.swiglu_linear(a, b, w, recompute=True), (a, b, w), (p, p, q), 1e-5)
    for reduction in ("sum", "mean", "none"):
        for p in every[:2]:
            target = distribute_tensor(t, mesh, [p])
            for q in (Replicate(), Shard(0)):
                check(lambda x, w: R.linear_cross_entropy(x, w, target if hasattr(x, "placements") else t, reduction=reduction),
                      (x, head), (p, q), 1e-5)
            check(lambda x: R.cross_entropy(x, target if hasattr(x, "placements") else t % 64, reduction=reduction)
                  if not hasattr(x, "placements") else R.cross_entropy(x, target % 64, reduction=reduction), (x,), (p,), 1e-5)
    lx, lw, lb = (torch.randn(*s, dtype=torch.bfloat16) for s in ((256, 256), (256, 256), (256,)))
    for wgrad in ("row128", "blk128"):
        layer = R.Fp8Linear(256, 256, wgrad=wgrad, dtype=torch.bfloat16)

        def call(x, w, b):
            return torch.func.functional_call(layer, {"weight": w, "bias": b}, (x,))

        for p, q, r in ((Shard(0), Replicate(), Replicate()), (Replicate(), Shard(0), Shard(0)), (Shard(1), Shard(1), Replicate()),
                        (Replicate(), Shard(1), Replicate()), (Shard(0), Shard(0), Shard(0))):
            check(call, (lx, lw, lb), (p, q, r), 2e-2)
    linear = torch.nn.Linear(128, 32)
    q8 = R.Q8_0Linear.from_linear(linear)
    q = R.Q8_0Linear.from_linear(linear)
    for name, buffer in q.named_buffers():
        setattr(q, name, DTensor.from_local(buffer, mesh, [Replicate()], run_check=False))
    check(lambda x: (q if hasattr(x, "placements") else q8)(x), (torch.randn(40, 128),), (Shard(0),), 1e-5)
    compiled = torch.compile(lambda a, b: R.swiglu(a, b) * 2, backend="aot_eager", fullgraph=True)
    da, db = (distribute_tensor(v, mesh, [Shard(1)]) for v in (a, b))
    assert torch.equal(compiled(da, db).full_tensor(), R.swiglu(a, b) * 2)


def test_gradients(tmp_path):
    on_two_ranks(gradients, tmp_path)


def compiled_first(mesh):
    """DTensor learns the ops although the first call is a compiled one."""
    from torch.distributed.tensor import Shard, distribute_tensor
    a, b = torch.randn(4, 64), torch.randn(4, 64)
    f = torch.compile(lambda a, b: R.swiglu(a, b), backend="aot_eager", fullgraph=True)
    assert torch.equal(f(*(distribute_tensor(v, mesh, [Shard(0)]) for v in (a, b))).full_tensor(), R.swiglu(a, b))


def test_compiled_first(tmp_path):
    on_two_ranks(compiled_first, tmp_path)


def patched_models(mesh):
    """fully_shard of the layers, of lm_head by itself, of norm and lm_head together, and tensor parallelism: losses and gradients
    of the patched model are those of the same model without."""
    import copy
    import warnings

    from test_torch_models import batch, tiny
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def layers(model):
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def head(model):
        fully_shard(model.lm_head, mesh=mesh)
        layers(model)

    def norm_and_head(model):
        fully_shard([model.model.norm, model.lm_head], mesh=mesh)
        layers(model)

    def swapped(model):
        R.swap_linear(model)
        layers(model)

    def parallel(model):
        for layer in model.model.layers:
            parallelize_module(layer.mlp, mesh, {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(),
                                                 "down_proj": RowwiseParallel()})

    def parallel_head(model):
        from torch.distributed.tensor import Replicate
        parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})

    base, inputs = tiny("llama", tie_word_embeddings=False), batch()
    for change in (layers, head, norm_and_head, swapped, parallel, parallel_head):
        for order in ("patch first", "patch last"):
            one, two = copy.deepcopy(base), copy.deepcopy(base)
            if change is swapped:
                R.swap_linear(one)
            if order == "patch first":
                R.apply_ridge_to(two)
            change(two)
            if order == "patch last":
                R.apply_ridge_to(two)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                want, got = one(**inputs), two(**inputs)
            own = any("made from logits" in str(w.message) for w in said)
            assert own == (change is parallel_head), (change, order, [str(w.message) for w in said])
            assert (got.logits is None) == (change is not parallel_head)
            near(got.loss, want.loss, 1e-3 if change is swapped else 1e-5)
            want.loss.backward()
            got.loss.backward()
            for (name, p), q in zip(one.named_parameters(), two.parameters()):
                g = q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad
                assert rms(g, p.grad) < (0.1 if change is swapped else 1e-4), (change, order, name, rms(g, p.grad))


def test_patched_models(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    on_two_ranks(patched_models, tmp_path)

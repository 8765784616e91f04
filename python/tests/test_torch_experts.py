"""Mixtures of experts in training: ridge.torch.experts beside plain PyTorch in float64 and Hugging Face's modules in float32.
FP8 has 4 bits of a product's operands: results differ by some percent, in the root of the mean square."""
import weakref

import pytest
from torch_common import F, leaves, near, needs, on_devices, rms, seed, torch  # noqa: F401

from ridge import ArgumentError
from ridge.torch import experts as E

FP8 = 0.1
ROUTES = [{"normalise": True}, {}, {"rule": "topk_softmax"}, {"rule": "sigmoid", "normalise": True, "scale": 2.5, "eps": 1e-20},
          {"rule": "sqrt_softplus", "scale": 1.5}]


def moe64(x, ids, weights, gate_up, down, act=F.silu, biases=None):
    """The definition, expert by expert; gate_up [experts, 2 ffn, hidden]."""
    out = torch.zeros_like(x)
    for e in range(gate_up.shape[0]):
        tokens, slots = torch.where(ids == e)
        z = x[tokens] @ gate_up[e].T + (biases[0][e] if biases else 0)
        y = act(z) @ down[e].T + (biases[1][e] if biases else 0)
        out = out.index_add(0, tokens, y * weights[tokens, slots, None])
    return out


def glu(z):
    gate, up = z.chunk(2, -1)
    return F.silu(gate) * up


def gpt_oss(z):
    gate, up = z[..., ::2].clamp(max=7.0), z[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def problem(device, dtype=torch.float32, tokens=61, slots=3, experts=6, hidden=96, ffn=80):
    x, w = torch.randn(tokens, hidden, device=device, dtype=dtype), torch.rand(tokens, slots, device=device)
    gate_up = torch.randn(experts, 2 * ffn, hidden, device=device, dtype=dtype) / hidden**0.5
    down = torch.randn(experts, hidden, ffn, device=device, dtype=dtype) / ffn**0.5
    return leaves(x, w, gate_up, down), torch.randint(-1, experts + 1, (tokens, slots), device=device)


def compare(got, want, inputs, inputs64, bound=FP8):
    assert rms(got, want) < bound
    d = torch.randn_like(want)
    pairs = zip(torch.autograd.grad(got, inputs, d.to(got.dtype)), torch.autograd.grad(want, inputs64, d))
    for i, (g, g64) in enumerate(pairs):
        assert g.shape == g64.shape and rms(g, g64) < bound, i


@on_devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradient_dtype", ["e4m3", "e5m2"])
def test_experts(device, dtype, gradient_dtype, needs):
    (x, w, gate_up, down), ids = problem(device, dtype)
    wide = [t.detach().double().requires_grad_() for t in (x, w, gate_up, down)]
    got = needs(lambda: E.moe_experts(x, ids, w, gate_up, down, gradient_dtype=gradient_dtype))
    compare(got, moe64(wide[0], ids, *wide[1:], act=glu), (x, w, gate_up, down), wide, FP8 if gradient_dtype == "e4m3" else 0.2)


@on_devices
@pytest.mark.parametrize("sizes", [(256, 128), (96, 80)])
def test_experts_twice(device, sizes, needs):
    """Weights whose blocks are quantised in one call, and others; and the same bits again."""
    (x, w, gate_up, down), ids = problem(device, hidden=sizes[0], ffn=sizes[1])
    wide = [t.detach().double().requires_grad_() for t in (x, w, gate_up, down)]
    got = needs(lambda: E.moe_experts(x, ids, w, gate_up, down))
    again = E.moe_experts(x, ids, w, gate_up, down, recompute=True)
    assert torch.equal(got, again)
    d = torch.randn_like(got)
    for a, b in zip(*(torch.autograd.grad(y, (x, w, gate_up, down), d, retain_graph=True) for y in (got, again))):
        assert torch.equal(a, b)
    compare(got, moe64(wide[0], ids, *wide[1:], act=glu), (x, w, gate_up, down), wide)


@pytest.mark.parametrize("retain", [False, True])
def test_saved_tensors_end_with_the_last_use(retain, monkeypatch):
    """When the gradient of the rows is made, autograd holds nothing any more, unless the graph is kept."""
    class Held:
        def __init__(self, tensor):
            self.tensor = tensor

    (x, w, gate_up, down), ids = problem("cpu")
    alive, seen, combine = weakref.WeakSet(), [], E.X.combine

    def pack(tensor):
        held = Held(tensor)
        alive.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        y = E.moe_experts(x, ids, w, gate_up, down)
    assert alive
    monkeypatch.setattr(E.X, "combine", lambda *args: seen.append(len(alive)) or combine(*args))
    y.sum().backward(retain_graph=retain)
    assert len(seen) == 1 and bool(seen[0]) == retain


@on_devices
def test_experts_of_gpt_oss(device, needs):
    (x, w, gate_up, down), ids = problem(device)
    gate_up, down = leaves(gate_up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous())
    b1, b2 = leaves(torch.randn(6, 160, device=device), torch.randn(6, 96, device=device))
    inputs = x, w, gate_up, down, b1, b2
    wide = [t.detach().double().requires_grad_() for t in inputs]
    got = needs(lambda: E.moe_experts(x, ids, w, gate_up, down, gate_up_bias=b1, down_bias=b2, alpha=1.702, up_offset=1.0,
                                      limit=7.0, interleaved=True, transposed=True))
    want = moe64(wide[0], ids, wide[1], wide[2].transpose(1, 2), wide[3].transpose(1, 2), gpt_oss, wide[4:])
    compare(got, want, inputs, wide)


@on_devices
def test_no_tokens_and_no_experts(device, needs):
    (x, w, gate_up, down), ids = problem(device)
    assert needs(lambda: E.moe_experts(x[:0], ids[:0], w[:0], gate_up, down)).shape == (0, 96)
    none = E.moe_experts(x, torch.full_like(ids, -1), w, gate_up, down)
    assert torch.equal(none, torch.zeros_like(none))
    assert all(not g.any() for g in torch.autograd.grad(none.sum(), (x, w, gate_up, down)))


@on_devices
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_fp8_linear(device, transposed, needs):
    sizes = [0, 1, 130, 40, 0, 7]
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0)], dtype=torch.int32, device=device)
    x, w = leaves(torch.randn(sum(sizes), 64, device=device), torch.randn(6, *((64, 48) if transposed else (48, 64)), device=device))
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    matrix = wide[1] if transposed else wide[1].transpose(1, 2)
    want = torch.cat([part @ matrix[e] for e, part in enumerate(wide[0].split(sizes))])
    got = needs(lambda: E.grouped_fp8_linear(x, w, offsets, transposed=transposed))
    assert torch.equal(got, E.grouped_fp8_linear(x, w, offsets.long(), transposed=transposed))
    compare(got, want, (x, w), wide)
    bias, = leaves(torch.randn(6, 48, device=device))
    wide.append(bias.detach().double().requires_grad_())
    want = torch.cat([part @ matrix[e] + wide[2][e] for e, part in enumerate(wide[0].split(sizes))])
    inputs, d = (x, w, bias), torch.randn_like(want)
    got = [E.grouped_fp8_linear(x, w, offsets, bias=bias, transposed=transposed) for _ in range(2)]
    one, two = (torch.autograd.grad(y, inputs, d.to(y.dtype), retain_graph=True) for y in got)
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    near(one[2], torch.stack([part.sum(0) for part in d.split(sizes)]), 1e-5, 1e-5)
    compare(got[0], want, inputs, wide)


@on_devices
def test_rows_of_no_group(device, needs):
    """Neither their values nor their gradients reach a gradient."""
    x, w, bias = leaves(torch.randn(40, 64, device=device), torch.randn(2, 48, 64, device=device), torch.randn(2, 48, device=device))
    offsets = torch.tensor([5, 9, 31], dtype=torch.int32, device=device)
    y = needs(lambda: E.grouped_fp8_linear(x, w, offsets, bias=bias))
    d = torch.randn_like(y)
    want = [d[5:9].sum(0), d[9:31].sum(0)]
    d[:5], d[31:] = float("nan"), float("nan")
    _, dw, db = torch.autograd.grad(y, (x, w, bias), d)
    near(db, torch.stack(want).double(), 1e-5, 1e-5)
    assert dw.isfinite().all()


@on_devices
@pytest.mark.parametrize("options", ROUTES, ids=lambda o: o.get("rule", "softmax") + "_".join(o)[:12])
def test_route(device, options, needs):
    logits, = leaves(torch.randn(37, 24, device=device))
    bias, = leaves(torch.randn(24, device=device))
    ids, weights = needs(lambda: E.moe_route(logits, 4, logit_bias=bias, **options))
    wide = [t.detach().double().requires_grad_() for t in (logits, bias)]
    z = wide[0] + wide[1]
    rule = options.get("rule", "softmax")
    scores = {"softmax": lambda: z.softmax(-1), "topk_softmax": lambda: z, "sigmoid": lambda: z.sigmoid(),
              "sqrt_softplus": lambda: F.softplus(z).sqrt()}[rule]()
    assert torch.equal(ids.long(), scores.topk(4, -1).indices)
    want = scores.gather(1, ids.long())
    want = want.softmax(-1) if rule == "topk_softmax" else want
    want = want / (want.sum(-1, keepdim=True) + options.get("eps", 0)) if options.get("normalise") else want
    want = want * options.get("scale", 1)
    near(weights, want, 1e-5)
    d = torch.randn_like(want)
    for got, of64 in zip(torch.autograd.grad(weights, (logits, bias), d.float()), torch.autograd.grad(want, wide, d)):
        near(got, of64, 1e-4, 1e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_compile_and_checkpoint(recompute):
    (x, w, gate_up, down), ids = problem("cpu")
    want = torch.autograd.grad(E.moe_experts(x, ids, w, gate_up, down).square().sum(), (x, w, gate_up, down))

    def loss(*args):
        return E.moe_experts(args[0], ids, *args[1:], recompute=recompute).square().sum()

    for other in (torch.compile(loss, backend="aot_eager", fullgraph=True),
                  lambda *args: torch.utils.checkpoint.checkpoint(loss, *args, use_reentrant=False)):
        for a, b in zip(torch.autograd.grad(other(x, w, gate_up, down), (x, w, gate_up, down)), want):
            assert torch.equal(a, b)


@on_devices
def test_autocast(device, needs):
    """x in bf16, weights as they are: the bits of a call with x in bf16, and gradients of the inputs' own dtypes."""
    (x, w, gate_up, down), ids = problem(device)

    def call(x):
        return E.moe_experts(x, ids, w, gate_up, down)

    with torch.autocast(device, dtype=torch.bfloat16):
        got = needs(lambda: call(x))
    want = call(x.bfloat16())
    assert got.dtype == torch.bfloat16 and torch.equal(got, want)
    d = torch.randn_like(want)
    for a, b, like in zip(*(torch.autograd.grad(y, (x, w, gate_up, down), d) for y in (got, want)), (x, w, gate_up, down)):
        assert a.dtype == like.dtype and torch.equal(a, b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_graph():
    """A captured step, forward and backward, replayed with other tokens, whose experts are others: the bits of an eager step."""
    layer = E.MoE(256, 128, 8, 2, normalise=True, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(200, 256, device="cuda", dtype=torch.bfloat16).requires_grad_()
    d, inputs = torch.randn_like(x), (x, *layer.parameters())

    def step():
        out = layer(x)
        return out, *torch.autograd.grad(out, inputs, d)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    for _ in range(3):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(kept, step()))


def test_layer_trains():
    layer = E.MoE(32, 48, 4, 2, normalise=True)
    x, target = torch.randn(64, 32), torch.randn(64, 32) / 4
    optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = F.mse_loss(layer(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


KINDS = {"mixtral": {"num_local_experts": 4}, "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 48, "head_dim": 16},
         "deepseek_v3": {"n_routed_experts": 4, "num_key_value_heads": 4, "moe_intermediate_size": 48, "first_k_dense_replace": 0, "n_group": 2,
                         "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
                         "v_head_dim": 16},
         "gpt_oss": {"num_local_experts": 4, "head_dim": 16}}


@pytest.mark.parametrize("kind", KINDS)
def test_patch_moe(kind):
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="expert blocks in one tensor: transformers 5")
    config = transformers.AutoConfig.for_model(kind, vocab_size=97, hidden_size=64, intermediate_size=48, num_hidden_layers=2,
                                               num_attention_heads=4, **{"num_key_value_heads": 2, "num_experts_per_tok": 2, **KINDS[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    tokens = torch.randint(0, 97, (2, 19))

    def run():
        model.zero_grad()
        out = model(input_ids=tokens, labels=tokens)
        out.loss.backward()
        return out.logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if "experts." in n and "shared" not in n}

    block = next(m for m in model.modules() if hasattr(m, "gate_up_proj"))
    x, weights, d = (torch.randn(38, 64), torch.rand(38, 2), torch.randn(38, 64))
    inputs, ids = (*leaves(x, weights), *block.parameters()), torch.randint(0, 4, (38, 2))

    def of_block(block):
        out = block(inputs[0], ids, inputs[1])
        return out.detach(), *torch.autograd.grad(out, inputs, d)

    want, gradients, alone = *run(), of_block(block)
    with E.patch_moe(model):
        got, fp8 = run()
        patched, compiled = of_block(block), of_block(torch.compile(block, backend="aot_eager", fullgraph=True))
        with pytest.raises(ArgumentError, match="patched|forward"):
            E.patch_moe(model)
    assert 0 < rms(got, want) < 0.2
    assert {n: g.shape for n, g in fp8.items()} == {n: g.shape for n, g in gradients.items()}
    # of the whole model: two layers of routers choose from activations of FP8, and some tokens go elsewhere
    assert all(rms(fp8[n], gradients[n]) < 0.6 for n in gradients)
    assert all(rms(a, b) < FP8 for a, b in zip(patched, alone))
    assert all(torch.equal(a, b) for a, b in zip(compiled, patched))
    again, _ = run()
    assert torch.equal(again, want)


def test_errors():
    (x, w, gate_up, down), ids = problem("cpu")
    with pytest.raises(ArgumentError, match="ids"):
        E.moe_experts(x, ids[:5], w, gate_up, down)
    with pytest.raises(ArgumentError, match="ids has dtype torch.float32"):
        E.moe_experts(x, ids.float(), w, gate_up, down)
    with pytest.raises(ArgumentError, match="gate_up .* not a matrix of each expert"):
        E.moe_experts(x, ids, w, gate_up[0], down)
    with pytest.raises(ArgumentError, match="gradient_dtype"):
        E.moe_experts(x, ids, w, gate_up, down, gradient_dtype="e3m4")
    with pytest.raises(ArgumentError, match="weight"):
        E.grouped_fp8_linear(x, gate_up[:, :, 1:], torch.zeros(7, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="no block of experts"):
        E.patch_moe(torch.nn.Linear(2, 2))

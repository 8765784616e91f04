"""ridge.torch against float64 PyTorch: every option, gradients, and every way in which PyTorch calls an op. Runs on the CPU and,
where there is one, on the GPU; an op without a CUDA kernel in this build is skipped with the library's reason."""
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.nn.functional as F  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no CUDA device"))]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ULP = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)
    torch._dynamo.reset()


@pytest.fixture
def needs():
    """Calls; where this build has no kernel for the device, the test is skipped with the library's text."""
    def call(function):
        try:
            return function()
        except ridge.UnsupportedError as error:
            pytest.skip(str(error)[:300])
    return call


def cuda_only(device):
    if device != "cuda":
        pytest.skip("CUDA graphs need a CUDA device")


def near(got, want, rtol, atol=None):
    torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=rtol if atol is None else atol)


def rms(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()


# ------------------------------------------------------------------------------------------------------------- SwiGLU


def swiglu64(a, b, activation="silu", gate_mul=1.0, down_mul=1.0, alpha=1.0, up_offset=0.0, limit=0.0, row_scale=None):
    a, b = a.double(), b.double()
    if limit:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    a = a * gate_mul
    h = {"silu": lambda: a * torch.sigmoid(alpha * a), "gelu": lambda: F.gelu(a), "relu2": lambda: F.relu(a) ** 2,
         "gelu_tanh": lambda: F.gelu(a, approximate="tanh")}[activation]()
    y = h * (b + up_offset) * down_mul
    return y if row_scale is None else y * row_scale.double()[..., None]


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"activation": "gelu_tanh"}, {"activation": "relu2"},
                                     {"gate_mul": 1.5, "down_mul": 0.5, "alpha": 1.702, "up_offset": 1.0, "limit": 1.1},
                                     {"row_scale": True}])
def test_swiglu(device, dtype, options):
    a, b, dy = (torch.randn(3, 5, 96, device=device, dtype=dtype) for _ in range(3))
    options = dict(options)
    if "row_scale" in options:
        options["row_scale"] = torch.rand(3, 5, device=device).requires_grad_()
    one, two = leaves(a, b), leaves(a.double(), b.double())
    got, want = R.swiglu(*one, **options), swiglu64(*two, **options)
    assert got.dtype == dtype and got.shape == a.shape
    near(got, want, 2 * ULP[dtype])
    extra = (options["row_scale"],) if "row_scale" in options else ()
    for g, w in zip(torch.autograd.grad(got, (*one, *extra), dy), torch.autograd.grad(want, (*two, *extra), dy.double())):
        near(g, w, 8 * ULP[dtype], 8 * ULP[dtype])


def test_swiglu_layouts(device):
    a, b = (torch.randn(6, 64, device=device) for _ in range(2))
    want, (da, db) = R.swiglu(a, b), torch.autograd.grad(swiglu64(*(two := leaves(a, b))).sum(), two)
    halves, = leaves(torch.cat([a, b], 1))
    woven, = leaves(torch.stack([a, b], 2).reshape(6, 128))
    for x, kw, d in ((halves, {}, torch.cat([da, db], 1)),
                     (woven, {"interleaved": True}, torch.stack([da, db], 2).reshape(6, 128))):
        y = R.swiglu(x, **kw)
        assert torch.equal(y, want)
        near(torch.autograd.grad(y.sum(), x)[0], d, 1e-5)
    for p, q in ((halves[:, :64], halves[:, 64:]), (a.T.contiguous().T, b), (a[:, None], b[:, None])):
        assert torch.equal(R.swiglu(p.detach(), q.detach()).view(6, 64), want)
    for p in (a[:1].expand(6, 64), a[:, :1].expand(6, 64), a.as_strided((6, 64), (1, 1))):  # rows that are not their own
        q, = leaves(p)
        base, = leaves(p.clone())
        near(R.swiglu(p, b), swiglu64(p, b), 1e-5)
        assert torch.equal(torch.autograd.grad(R.swiglu(q, b).sum(), q)[0], torch.autograd.grad(R.swiglu(base, b).sum(), base)[0])
    x, = leaves(a)
    y = R.swiglu(x, b)
    near(torch.autograd.grad(y, x, torch.ones((), device=device).expand(6, 64))[0], da, 1e-5)  # what .sum() hands back


def test_swiglu_round_gate_is_eager(device):
    a, b, dy = (torch.randn(64, 256, device=device, dtype=torch.bfloat16) for _ in range(3))
    one, two = leaves(a, b), leaves(a, b)
    got, want = R.swiglu(*one, round_gate=True), F.silu(two[0]) * two[1]
    near(got, want, 2**-7)
    assert (got != want).float().mean() < 0.02  # the same roundings, but for the last bit of the sigmoid
    for g, w in zip(torch.autograd.grad(got, one, dy), torch.autograd.grad(want, two, dy)):
        near(g, w, 2**-6)


def test_swiglu_twice_and_retained(device):
    (x,) = leaves(torch.randn(4, 64, device=device))
    y = R.swiglu(x, x)  # one tensor for both
    first, = torch.autograd.grad(y.sum(), x, retain_graph=True)
    second, = torch.autograd.grad(y.sum(), x)
    assert torch.equal(first, second)
    (z,) = leaves(x.double())
    near(first, torch.autograd.grad(swiglu64(z, z).sum(), z)[0], 1e-5)
    (p,) = leaves(x)
    with pytest.raises(RuntimeError, match="inplace|modified"):
        y = R.swiglu(p * 1, q := p * 2)
        q.add_(1)
        y.sum().backward()


def test_swiglu_autocast_and_empty(device):
    a, b = leaves(*(torch.randn(4, 64, device=device) for _ in range(2)))
    with torch.autocast(device, torch.bfloat16):
        w = torch.randn(64, 64, device=device)
        y = R.swiglu(F.linear(a, w), F.linear(b, w))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert a.grad.dtype == torch.float32
    e, = leaves(torch.empty(0, 64, device=device))
    R.swiglu(e, e).sum().backward()
    assert e.grad.shape == (0, 64)


# ------------------------------------------------------------------------------------------------------ cross entropy

CE_OPTIONS = [{}, {"label_smoothing": 0.1}, {"weight": True}, {"linear_bias": True}, {"softcap": 5.0, "temperature": 0.7},
              {"lse_square_scale": 1e-2}, {"weight": True, "label_smoothing": 0.2, "linear_bias": True}]


def ce64(x, w, t, linear_bias=None, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, softcap=0.0,
         temperature=1.0, lse_square_scale=0.0):
    z = x @ w.T + (0 if linear_bias is None else linear_bias)
    z = (softcap * torch.tanh(z / softcap) if softcap else z) / temperature
    loss = F.cross_entropy(z.reshape(-1, z.shape[-1]), t.reshape(-1), None if weight is None else weight.double(),
                           ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)
    loss = loss.view(t.shape) if reduction == "none" else loss
    square = torch.where(t == ignore_index, 0.0, z.logsumexp(-1) ** 2) * lse_square_scale
    return loss + (square if reduction == "none" else square.sum() if reduction == "sum" else
                   square.sum() / (t != ignore_index).sum())


def ce_problem(device, dtype, options, rows=(7, 9), hidden=64, vocab=200):
    options = dict(options)
    x, w = torch.randn(*rows, hidden, device=device, dtype=dtype), torch.randn(vocab, hidden, device=device, dtype=dtype) / 8
    t = torch.randint(0, vocab, rows, device=device)
    if "weight" in options:
        options["weight"] = torch.rand(vocab, device=device)
    if "linear_bias" in options:
        options["linear_bias"] = torch.randn(vocab, device=device, dtype=dtype)
    return x, w, t, options


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", CE_OPTIONS)
def test_linear_cross_entropy(device, dtype, reduction, options, needs):
    x, w, t, options = ce_problem(device, dtype, options)
    t[0, 2] = t[5] = -100
    one, two = leaves(x, w), leaves(x.double(), w.double())
    bias = {}
    if "linear_bias" in options:
        one, two = one + leaves(options["linear_bias"]), two + leaves(options["linear_bias"].double())
        options = {**options, "linear_bias": one[2]}
        bias = {"linear_bias": two[2]}
    got = needs(lambda: R.linear_cross_entropy(one[0], one[1], t, reduction=reduction, **options))
    want = ce64(two[0], two[1], t, reduction=reduction, **{**options, **bias})
    assert got.dtype == torch.float32 and got.shape == want.shape
    near(got, want, 1e-4 if dtype == torch.float32 else 2e-2)
    with torch.no_grad():
        near(R.linear_cross_entropy(one[0], one[1], t, reduction=reduction, **options), want, 1e-4 if dtype == torch.float32 else 2e-2)
    dl = torch.rand_like(got) * 3  # not uniform over rows
    for g, v, leaf in zip(torch.autograd.grad(got, one, dl), torch.autograd.grad(want, two, dl.double()), one):
        assert g.dtype == leaf.dtype and g.shape == leaf.shape
        assert rms(g, v) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_ce_equals_pytorch_defaults(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {}, (40,))
    near(needs(lambda: R.linear_cross_entropy(x, w, t)), F.cross_entropy(F.linear(x, w), t), 1e-4)
    near(R.linear_cross_entropy(x, w, t.int()), F.cross_entropy(F.linear(x, w), t), 1e-4)


def test_ce_frozen_and_ignored(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    (xl,), (wl,) = leaves(x), leaves(w)
    needs(lambda: R.linear_cross_entropy(xl, w, t)).backward()
    R.linear_cross_entropy(x, wl, t).backward()
    both = leaves(x, w)
    R.linear_cross_entropy(*both, t).backward()
    assert torch.equal(both[0].grad, xl.grad) and rms(both[1].grad, wl.grad) < 1e-6
    loss = R.linear_cross_entropy(*both, torch.full_like(t, -100))
    both[0].grad = both[1].grad = None
    loss.backward()
    assert loss.item() == 0 and not both[0].grad.any() and not both[1].grad.any()
    assert R.linear_cross_entropy(*both, torch.full_like(t, -100), nan_if_empty=True).isnan()
    assert torch.equal(R.linear_cross_entropy(x, w, t, nan_if_empty=True), R.linear_cross_entropy(x, w, t))


def test_ce_second_backward_and_accumulation(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    x, w = leaves(x, w)
    loss = needs(lambda: R.linear_cross_entropy(x, w, t))
    first = [g.clone() for g in torch.autograd.grad(loss * 3, (x, w), retain_graph=True)]
    second = torch.autograd.grad(loss * 3, (x, w), retain_graph=True)
    third = torch.autograd.grad(loss, (x, w))
    assert all(torch.equal(p, q) for p, q in zip(first, second))
    assert all(rms(p, 3 * q) < 1e-6 for p, q in zip(first, third))
    for _ in range(2):
        R.linear_cross_entropy(x, w, t).backward()
    assert rms(w.grad, 2 * third[1]) < 1e-6
    loss = R.linear_cross_entropy(x, w, t)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified"):
        loss.backward()


def test_ce_strided_expanded_autocast(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    want = needs(lambda: R.linear_cross_entropy(x, w, t))
    wide = torch.randn(200, 80, device=device)
    wide[:, :64] = w
    near(R.linear_cross_entropy(x, wide[:, :64], t), want, 1e-6)
    near(R.linear_cross_entropy(x, w.T.contiguous().T, t), want, 1e-6)
    near(R.linear_cross_entropy(x[:1, :1].expand(7, 9, 64), w, t), ce64(x[:1, :1].expand(7, 9, 64).double(), w.double(), t), 1e-4)
    xs, ws = leaves(x, w)
    with torch.autocast(device, torch.bfloat16):
        loss = R.linear_cross_entropy(xs, ws, t)
    loss.backward()
    near(loss, want, 2e-2)
    assert xs.grad.dtype == torch.float32


def test_ce_target_out_of_range_is_nan(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    t[0, 0] = 200
    loss = needs(lambda: R.linear_cross_entropy(x, w, t, reduction="none"))
    assert loss[0, 0].isnan() and not loss[1:].isnan().any()


# ---------------------------------------------------------------------------------------------------------------- FP8


def spread(scale, mode, rows, cols):
    s = scale.double()
    if mode == "tensor":
        return s.view(1, 1).expand(rows, cols)
    if mode == "row":
        return s[:, None].expand(rows, cols)
    if mode == "row128":
        return s.T.repeat_interleave(128, 1)[:, :cols]
    return s.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("mode", ["tensor", "row", "row128", "blk128"])
def test_quantize(device, mode, dtype):
    x = torch.randn(200, 300, device=device, dtype=torch.bfloat16)
    q, s = R.quantize_fp8(x, mode, dtype)
    assert q.dtype == (torch.float8_e4m3fn if dtype == "e4m3" else torch.float8_e5m2) and q.shape == x.shape
    y = q.double() * spread(s, mode, 200, 300)
    assert rms(y, x) < (0.03 if dtype == "e4m3" else 0.06)
    wide = torch.randn(200, 400, device=device, dtype=torch.bfloat16)
    wide[:, :300] = x
    q2, s2 = R.quantize_fp8(wide[:, :300], mode, dtype)  # by stride
    assert torch.equal(q2.float(), q.float()) and torch.equal(s2, s)


@pytest.mark.parametrize("form", ["row_row", "row_blk", "blk_blk"])
def test_dual(device, form):
    x = torch.randn(150, 272, device=device, dtype=torch.bfloat16)
    one, two = (m + "128" for m in form.split("_"))
    q, s, qt, st = R.quantize_fp8_dual(x, form)
    for codes, scales, mode, y in ((q, s, one, x), (qt, st, two, x.T)):
        a, b = R.quantize_fp8(y.contiguous(), mode)
        assert torch.equal(codes.float(), a.float()) and torch.equal(scales, b)


@pytest.mark.parametrize("m", [1, 3, 16, 64, 65, 192])  # decoding rows up to 64
def test_gemm(device, m, needs):
    n, k = 256, 384
    x, w = torch.randn(m, k, device=device, dtype=torch.bfloat16), torch.randn(n, k, device=device, dtype=torch.bfloat16)
    bias = torch.randn(n, device=device)
    for scales in ("tensor_tensor", "row_row", "row128_blk128", "row128_row128", "blk128_row128"):
        one, two = scales.split("_")
        (a, sa), (b, sb) = R.quantize_fp8(x, one), R.quantize_fp8(w, two)
        want = (a.double() * spread(sa, one, m, k)) @ (b.double() * spread(sb, two, n, k)).T
        got = needs(lambda: R.fp8_gemm(a, sa, b, sb, scales=scales))
        assert got.dtype == torch.bfloat16 and rms(got, want) < 4e-3
        assert rms(R.fp8_gemm(a, sa, b, sb, scales=scales, bias=bias, out_dtype=torch.float32), want + bias) < 1e-3
        into = torch.ones(m, n, device=device)
        assert R.fp8_gemm(a, sa, b, sb, scales=scales, out=into) is into and rms(into, want + 1) < 1e-3


@pytest.mark.parametrize("gradient_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("bias", [True, False])
def test_fp8_linear(device, bias, gradient_dtype, needs):
    plain = torch.nn.Linear(256, 384, bias, device=device, dtype=torch.bfloat16)
    layer = R.Fp8Linear.from_linear(plain, gradient_dtype=gradient_dtype)
    assert layer.weight is plain.weight
    x, = leaves(torch.randn(3, 50, 256, device=device, dtype=torch.bfloat16))
    y = needs(lambda: layer(x))
    want = plain(x)
    assert y.shape == want.shape and rms(y, want) < 0.06
    parameters = [x, *plain.parameters()]
    dy = torch.randn_like(y)
    for g, w, limit in zip(torch.autograd.grad(y, parameters, dy), torch.autograd.grad(want, parameters, dy), (0.09, 0.09, 0.01)):
        assert g.dtype == w.dtype and rms(g, w) < limit
    with torch.no_grad():
        near(needs(lambda: layer(x)), y, 1e-2)
        layer.weight.mul_(2)
        near(layer(x) - (0 if not bias else layer.bias), (y - (0 if not bias else layer.bias)) * 2, 3e-2)  # not the codes of before


def test_fp8_linear_main_grad(device, needs):
    layer = R.Fp8Linear(256, 384, bias=False, device=device, dtype=torch.bfloat16)
    x = torch.randn(130, 256, device=device, dtype=torch.bfloat16)
    needs(lambda: layer(x)).sum().backward()
    want, layer.weight.grad = layer.weight.grad, None
    layer.weight.main_grad = torch.zeros(384, 256, device=device)
    for _ in range(2):
        layer(x).sum().backward()
    assert layer.weight.grad is None and rms(layer.weight.main_grad, 2 * want.double()) < 1e-2


def test_fp8_autocast_expanded_retained(device, needs):
    layer = R.Fp8Linear(256, 128, device=device)  # f32 parameters, as AMP has them
    x, = leaves(torch.randn(40, 256, device=device))
    with torch.autocast(device, torch.bfloat16):
        y = needs(lambda: layer(x))
        both = layer.swiglu(x, x)
    assert y.dtype == both.dtype == torch.bfloat16 and rms(y, F.linear(x, layer.weight, layer.bias)) < 0.06
    first = torch.autograd.grad(y.float().sum(), (x, *layer.parameters()), retain_graph=True)
    again = torch.autograd.grad(y.float().sum(), (x, *layer.parameters()))
    assert all(torch.equal(p, q) and p.dtype == torch.float32 for p, q in zip(first, again))
    twice = torch.autograd.grad(both.float().sum(), x, retain_graph=True)[0]
    assert torch.equal(twice, torch.autograd.grad(both.float().sum(), x)[0])
    for t in (x.detach()[:1].expand(40, 256), x.detach()[:, :1].expand(40, 256), x.detach().T.contiguous().T):
        for got, want in zip(R.quantize_fp8(t), R.quantize_fp8(t.clone(memory_format=torch.contiguous_format))):
            assert torch.equal(got.float(), want.float())
        q, s = R.quantize_fp8(t.bfloat16())
        w, u = R.quantize_fp8(layer.weight.detach().bfloat16(), "blk128")
        d = R.fp8_gemm(q, s, w, u)
        assert torch.equal(d, R.fp8_gemm(q.clone(), s.clone(), w, u))


def mlp_options():
    return [{}, {"activation": "gelu_tanh"}, {"gate_mul": 1.5, "down_mul": 0.5, "alpha": 1.702, "up_offset": 1.0, "limit": 1.1}]


@pytest.mark.parametrize("options", mlp_options())
@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu_linear(device, dtype, halves, options):
    a, b = (torch.randn(3, 5, 96, device=device, dtype=dtype) for _ in range(2))
    w, bias = torch.randn(48, 96, device=device, dtype=dtype) / 8, torch.randn(48, device=device, dtype=dtype)
    x, other, w, bias = leaves(torch.cat((a, b), -1) if halves else a, b, w, bias)
    inputs = (x, w, bias) if halves else (x, other, w, bias)
    y = R.swiglu_linear(x, None if halves else other, w, bias, **options)
    two = leaves(*(t.double() for t in inputs))
    gate, up = two[0].chunk(2, -1) if halves else two[:2]
    want = F.linear(swiglu64(gate, up, **options), *two[-2:])
    assert y.dtype == dtype and rms(y, want) < 4 * ULP[dtype]
    dy = torch.randn_like(y)
    for g, v in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(want, two, dy.double())):
        assert rms(g, v) < 4 * ULP[dtype]
    frozen = torch.autograd.grad(R.swiglu_linear(x.detach(), None if halves else other.detach(), w, **options).sum(), w)[0]
    assert frozen.shape == w.shape
    with torch.autocast(device, torch.bfloat16):
        assert R.swiglu_linear(x, None if halves else other, w, bias, **options).dtype == torch.bfloat16


@pytest.mark.parametrize("options", mlp_options())
@pytest.mark.parametrize("halves", [True, False])
def test_fp8_swiglu(device, halves, options, needs):
    """The fused form is the two after each other, bit for bit: forward, and every gradient."""
    a, b = (torch.randn(3, 50, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    layer = R.Fp8Linear(256, 384, device=device, dtype=torch.bfloat16)
    inputs = leaves(torch.cat((a, b), -1)) if halves else leaves(a, b)
    y = needs(lambda: layer.swiglu(*inputs, **options))
    want = layer(R.swiglu(*inputs, **options))
    assert torch.equal(y, want)
    leaf = (*inputs, *layer.parameters())
    dy = torch.randn_like(y)
    wanted = torch.autograd.grad(want, leaf, dy)
    for g, v in zip(torch.autograd.grad(y, leaf, dy), wanted):
        assert torch.equal(g, v)
    with torch.no_grad():
        near(layer.swiglu(*inputs, **options), want, 1e-2)
    layer.weight.main_grad = torch.zeros(384, 256, device=device)
    layer.swiglu(*inputs, **options).backward(dy)
    assert layer.weight.grad is None and layer.weight.main_grad.any()
    del layer.weight.main_grad
    f = torch.compile(lambda *x: layer.swiglu(*x, **options), fullgraph=True)
    assert torch.equal(f(*inputs), want)
    for g, v in zip(torch.autograd.grad(f(*inputs), leaf, dy), wanted):
        assert rms(g, v) < 1e-3


def test_plans(device, needs):
    """Calls that are made again take the short way: other values, layouts, alignments and errors in between."""
    a, b = (torch.randn(40, 96, device=device, dtype=torch.bfloat16) for _ in range(2))
    wide = torch.randn(40, 300, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        a.normal_()
        for x, y in ((a, b), (b, a), (a, a), (wide[:, 1:97], wide[:, 97:193]), (wide[:, :96], b), (a.T.contiguous().T, b),
                     (a[:, :1].expand(40, 96), b), (a[0], b[0]), (a[:0], b[:0])):
            near(R.swiglu(x, y), swiglu64(x, y), 2**-7)
        with pytest.raises(ridge.ArgumentError, match="activation is"):
            R.swiglu(a, b, activation="none")
        with pytest.raises(ridge.ArgumentError, match="neither a number nor a string"):
            R.swiglu(a, b, activation=["silu"])
        with pytest.raises(ridge.ArgumentError, match="up has shape"):
            R.swiglu(a, b[:3])
        for mode in ("tensor", "row", "row128", "blk128"):
            for x in (a, wide[:, 3:99]):
                q, s = R.quantize_fp8(x, mode)
                assert rms(q.double() * spread(s, mode, 40, 96), x) < 0.03
    first, second = R.swiglu(a, b), R.swiglu(a, b)
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, second)
    out, version = torch.zeros(40, 16, device=device), None
    (q, s), (w, t) = R.quantize_fp8(a, "row"), R.quantize_fp8(torch.randn(16, 96, device=device), "row")
    version = out._version
    needs(lambda: R.fp8_gemm(q, s, w, t, scales="row_row", out=out))
    assert out._version > version  # autograd sees that it was written to


# --------------------------------------------------------------------------------------------------------------- Q8_0


def write_gguf(path, blocks):
    """A GGUF file of one Q8_0 tensor "w"."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQQIQ", 1, b"w", 2, blocks.shape[1] // 34 * 32, len(blocks), 8, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + blocks.tobytes())
    return path


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_q8_0_decode(device, dtype, needs):
    """A decode layer of a real width: against the weights it stands for, and a token's bits in any batch."""
    linear = torch.nn.Linear(1024, 2048, bias=False, device=device, dtype=dtype)
    layer = R.Q8_0Linear.from_linear(linear)
    held = (layer.codes.double().view(2048, -1, 32) * layer.scales.view(torch.float16).double()[..., None]).view(2048, 1024)
    x = torch.randn(21, 1024, device=device, dtype=dtype)
    one = torch.cat([needs(lambda: layer(x[i:i + 1])) for i in range(21)])
    assert one.dtype == dtype and rms(one, x.double() @ held.T) < 0.01  # x is quantised too
    for tokens in (2, 3, 4, 5, 7, 8, 9, 16, 17, 21):
        assert torch.equal(layer(x[:tokens]), one[:tokens]), tokens
    assert torch.equal(layer(x[None, 5:8]), one[None, 5:8])


def test_q8_0(device, needs, tmp_path):
    w, x = torch.randn(96, 256, device=device), torch.randn(5, 256, device=device)
    blocks = R.q8_0_quantize(w)
    codes, scales = R.q8_0_repack(blocks)
    got = needs(lambda: R.q8_0_matmul(x, codes, scales))
    assert torch.equal(got, R.q8_0_matmul(x, blocks)) and rms(got, x @ w.T) < 0.02
    assert torch.equal(got, torch.cat([R.q8_0_matmul(x[i:i + 1], codes, scales) for i in range(5)]))
    linear = torch.nn.Linear(256, 96, device=device)
    layer = R.Q8_0Linear.from_linear(linear)
    y = layer(torch.cat([x] * 7)[None])  # 35 tokens: three calls
    assert y.shape == (1, 35, 96) and rms(y, linear(torch.cat([x] * 7)[None])) < 0.02
    assert torch.equal(y[0, :5], y[0, 30:])
    try:
        path = write_gguf(tmp_path / "m.gguf", R.q8_0_quantize(linear.weight.detach().cpu()).numpy())
        assert torch.equal(R.Q8_0Linear.from_gguf(path, "w", device)(x), R.Q8_0Linear.from_gguf(path, "w").to(device)(x))
        near(R.Q8_0Linear.from_gguf(path, "w", device)(x) + linear.bias, layer(x), 1e-6)
    except ImportError as error:
        pytest.skip(str(error))
    near(layer.to(torch.bfloat16)(x.bfloat16()), linear(x), 5e-2, 0.2)


# ------------------------------------------------------------------------------------------ how PyTorch calls the ops


def samples(device):
    a, b = (torch.randn(6, 64, device=device).requires_grad_() for _ in range(2))
    x, w, t, _ = ce_problem(device, torch.float32, {}, (20,))
    q, s = R.quantize_fp8(torch.randn(128, 128, device=device), "row128")
    p, r = R.quantize_fp8(torch.randn(128, 128, device=device), "blk128")
    lx, lw = (torch.randn(128, 128, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    options, ce = [1.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]
    x, w = leaves(x, w)
    blocks = R.q8_0_quantize(torch.randn(32, 64, device=device))
    return {
        "swiglu": (a, b, None, "silu", options, False, False, False),
        "swiglu strided": (a[:, ::2], b.T.contiguous().T[:, ::2], torch.rand(6, device=device), "silu", options, False, False, False),
        "swiglu halves": (a, None, None, "gelu", options, True, True, False),
        "linear_ce_train": (x, w, t, None, None, "mean", -100, ce, True, True, False),
        "linear_ce_eval": (x, w, t, None, None, "none", -100, ce, True),
        "quantize_fp8": (a.detach(), "row128", "e4m3", False, 0.0),
        "quantize_fp8_dual": (a.detach(), "row_row", "e4m3", False, 0.0, True),
        "fp8_gemm": (q, s, p, r, "row128_blk128", torch.bfloat16, None),
        "fp8_linear": (lx, lw, None, "e4m3"),
        "swiglu_linear": (a, b, torch.randn(32, 64, device=device).requires_grad_(), None, "silu", options, False),
        "fp8_swiglu_linear": (lx, None, lw[:, :64].detach().requires_grad_(), None, "silu", options, False, "e4m3"),
        "multiply": (a.detach(), torch.full((), 0.5, device=device), torch.bfloat16),
        "q8_0_quantize": (a.detach(),),
        "q8_0_repack": (blocks,),
        "q8_0_matmul": (torch.randn(3, 64, device=device), blocks, None, torch.float32),
    }


NAMES = ["swiglu", "swiglu strided", "swiglu halves", "linear_ce_train", "linear_ce_eval", "quantize_fp8", "quantize_fp8_dual",
         "fp8_gemm", "fp8_linear", "swiglu_linear", "fp8_swiglu_linear", "multiply", "q8_0_quantize", "q8_0_repack", "q8_0_matmul"]


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(device, name, needs):
    op, args = getattr(torch.ops.ridge, name.split()[0]), samples(device)[name]
    needs(lambda: op(*args))
    # PyTorch can neither compare nor add up fp8 tensors, which two of the four checks do with every output.
    fp8 = name.startswith(("quantize", "fp8_gemm"))
    tests = ("test_autograd_registration", "test_faketensor") if fp8 else \
        ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op.default, args, test_utils=tests)


def test_compile_without_breaks(device, needs):
    layer = R.Fp8Linear(128, 128, bias=True, device=device, dtype=torch.bfloat16)

    def step(x, w, t):
        h = R.swiglu(layer(x), layer(x), round_gate=True)
        return R.linear_cross_entropy(h, w, t) + R.linear_cross_entropy(h, w, t, reduction="none").mean()

    x, w = leaves(torch.randn(130, 128, device=device, dtype=torch.bfloat16), torch.randn(64, 128, device=device, dtype=torch.bfloat16))
    t = torch.randint(0, 64, (130,), device=device)
    want = needs(lambda: step(x, w, t))
    wanted = torch.autograd.grad(want, (x, w, layer.weight))
    got = torch.compile(step, fullgraph=True)(x, w, t)
    near(got, want, 2e-2)
    for g, v in zip(torch.autograd.grad(got, (x, w, layer.weight)), wanted):
        assert rms(g, v) < 0.05


def test_compile_swiglu(device):
    a, b = leaves(*(torch.randn(70, 64, device=device, dtype=torch.bfloat16) for _ in range(2)))
    f = torch.compile(lambda a, b: R.swiglu(a * 2, b), fullgraph=True, dynamic=True)
    for rows in (70, 33):
        y, want = f(a[:rows], b[:rows]), R.swiglu(a[:rows] * 2, b[:rows])
        assert torch.equal(y, want)
        for g, v in zip(torch.autograd.grad(y.sum(), (a, b)), torch.autograd.grad(want.sum(), (a, b))):
            assert torch.equal(g, v)


def graphed(function):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


def test_cuda_graph(device, needs):
    cuda_only(device)
    a, b = (torch.randn(64, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    layer = R.Fp8Linear(256, 256, bias=False, device=device, dtype=torch.bfloat16)
    x, = leaves(torch.randn(128, 256, device=device, dtype=torch.bfloat16))

    def both():
        return R.swiglu(a, b), *torch.autograd.grad(layer(x).sum(), (x, layer.weight))

    graph, got = graphed(both)
    with torch.no_grad():
        a.normal_()
        x.normal_()
    graph.replay()
    for g, w in zip(got, both()):
        assert torch.equal(g, w)
    t = torch.randint(0, 256, (128,), device=device)
    needs(lambda: R.linear_cross_entropy(x, layer.weight, t))
    graph, got = graphed(lambda: torch.autograd.grad(R.linear_cross_entropy(x, layer.weight, t), (x, layer.weight)))
    graph.replay()
    for g, w in zip(got, torch.autograd.grad(R.linear_cross_entropy(x, layer.weight, t), (x, layer.weight))):
        assert torch.equal(g, w)


def test_streams(device):
    cuda_only(device)
    a, b = (torch.randn(2048, 4096, device=device, dtype=torch.bfloat16) for _ in range(2))
    want, outs = R.swiglu(a, b), []
    for _ in range(4):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outs.append(R.swiglu(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(o, want) for o in outs)


def test_fake_tensors_take_the_op(device):
    a, b = (torch.randn(4, 6, 64, device=device) for _ in range(2))
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        fake = R.swiglu(mode.from_tensor(a), mode.from_tensor(b))
    assert fake.shape == a.shape and fake.device.type == device


# ------------------------------------------------------------------------------------------------------------- errors


def test_errors(device):
    a = torch.randn(4, 64, device=device)
    w, t = torch.randn(10, 64, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    wrong = [(lambda: R.swiglu(a, a[:2]), "up has shape"), (lambda: R.swiglu(a, a.half()), "dtype f16"),
             (lambda: R.swiglu(a.double(), a.double()), "dtype f64"), (lambda: R.swiglu(a.cfloat(), a.cfloat()), "complex64"),
             (lambda: R.swiglu(a, a, activation="tanh"), "activation is 'tanh'"),
             (lambda: R.swiglu(a.long(), a.long()), "dtype i64"),
             (lambda: R.quantize_fp8(a[0]), "two dimensions"), (lambda: R.quantize_fp8(a, dtype="e3m4"), "dtype is 'e3m4'"),
             (lambda: R.linear_cross_entropy(a, w.half(), t), "dtypes must be the same"),
             (lambda: R.linear_cross_entropy(a, w, t[:3]), "target has shape"),
             (lambda: R.linear_cross_entropy(a, w[:, :32], t), "columns"),
             (lambda: R.linear_cross_entropy(a, w, t, reduction="all"), "reduction is 'all'"),
             (lambda: R.linear_cross_entropy(a, w, t, size_average=True), "size_average"),
             (lambda: R.linear_cross_entropy(a, w, torch.rand(4, 10, device=device)), "class probabilities"),
             (lambda: R.q8_0_matmul(a, torch.zeros(3, 34, dtype=torch.uint8, device=device)), "columns")]
    for call, text in wrong:
        with pytest.raises(ridge.ArgumentError, match=text):
            call()
    if device == "cuda":
        for call in (lambda: R.swiglu(a, a.cpu()), lambda: R.linear_cross_entropy(a, w.cpu(), t), lambda: R.swiglu(a.cpu(), a)):
            with pytest.raises(ridge.ArgumentError, match="move them to one device"):
                call()


# ------------------------------------------------------------------------------------------------- models of the field


def tiny(kind, device):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=160, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(device)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mistral", "Qwen3"])
def test_patch_llama(device, kind, needs):
    model = tiny(kind, device).train()
    ids = torch.randint(1, 160, (2, 24), device=device)
    labels = ids.clone()
    labels[0, :5] = -100
    names = [n for n, _ in model.named_parameters()]

    def run(**kw):
        out = model(input_ids=ids, labels=labels, **kw)
        return out, torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True)

    before, want = run()
    count, wanted = run(num_items_in_batch=torch.tensor(17, device=device))
    with R.patch_llama(model):
        after, got = needs(run)
        assert after.logits is None
        near(after.loss, before.loss, 1e-5)
        for n, g, w in zip(names, got, want):
            assert rms(g, w) < 1e-4, n
        near(run(num_items_in_batch=torch.tensor(17, device=device))[0].loss, count.loss, 1e-5)
        model.eval()
        assert model(input_ids=ids, labels=labels).logits is not None
        model.generate(ids[:, :4], max_new_tokens=3, do_sample=False)
        model.train()
    again, _ = run()
    assert torch.equal(again.loss, before.loss) and again.logits is not None
    assert "forward" not in model.__dict__


def test_swap_linear(device, needs):
    model = tiny("Llama", device).to(torch.bfloat16).train()
    ids = torch.randint(1, 160, (4, 40), device=device)
    want = model(input_ids=ids, labels=ids).loss
    patch = R.swap_linear(model)
    assert isinstance(model.model.layers[0].mlp.up_proj, R.Fp8Linear) and type(model.lm_head) is torch.nn.Linear
    loss = needs(lambda: model(input_ids=ids, labels=ids).loss)
    near(loss, want, 2e-2)
    needs(loss.backward)
    assert all(p.grad is not None for p in model.parameters())
    patch.undo()
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear


def test_patch_refuses_other_models(device):
    with pytest.raises(ridge.ArgumentError, match="no MLP"):
        R.patch_llama(torch.nn.Linear(2, 2))

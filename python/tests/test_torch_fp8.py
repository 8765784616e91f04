"""FP8 and Q8_0 in ridge.torch: codes, products, Fp8Linear, SwiGLU with the layer after it, decoding."""
import copy
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from ridge.torch import _library as L  # noqa: E402
from torch_common import ULP, leaves, near, needs, on_devices, rms, seed, spread, swiglu64  # noqa: E402,F401

pytestmark = on_devices


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
    for scales in ("tensor_tensor", "row_row", "row_tensor", "tensor_row", "row128_blk128", "row128_row128", "blk128_row128"):
        one, two = scales.split("_")
        (a, sa), (b, sb) = R.quantize_fp8(x, one), R.quantize_fp8(w, two)
        want = (a.double() * spread(sa, one, m, k)) @ (b.double() * spread(sb, two, n, k)).T
        got = needs(lambda: R.fp8_gemm(a, sa, b, sb, scales=scales))
        assert got.dtype == torch.bfloat16 and rms(got, want) < 4e-3
        assert rms(R.fp8_gemm(a, sa, b, sb, scales=scales, bias=bias, out_dtype=torch.float32), want + bias) < 1e-3
        into = torch.ones(m, n, device=device)
        assert R.fp8_gemm(a, sa, b, sb, scales=scales, out=into) is into and rms(into, want + 1) < 1e-3
        if "row128" in scales:  # the same bits from the transposed tables
            sa, sb = (t.t().contiguous() if "row128" == mode else t for t, mode in ((sa, one), (sb, two)))
            assert torch.equal(R.fp8_gemm(a, sa, b, sb, scales=scales.replace("row128", "row128t")), got)
            wide = torch.zeros(sa.shape[0], sa.shape[1] + 5, device=device)
            wide[:, :sa.shape[1]] = sa
            assert torch.equal(R.fp8_gemm(a, wide[:, :sa.shape[1]], b, sb, scales=scales.replace("row128", "row128t")), got)


@pytest.mark.parametrize("gradient_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wgrad", ["row128", "blk128"])
def test_fp8_linear(device, wgrad, bias, gradient_dtype, needs):
    plain = torch.nn.Linear(256, 384, bias, device=device, dtype=torch.bfloat16)
    layer = R.Fp8Linear.from_linear(plain, gradient_dtype=gradient_dtype, wgrad=wgrad)
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


@pytest.mark.parametrize("wgrad", ["row128", "blk128"])
def test_fp8_linear_main_grad(device, wgrad, needs):
    layer = R.Fp8Linear(256, 384, bias=False, device=device, dtype=torch.bfloat16, wgrad=wgrad)
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


MLP_OPTIONS = [{}, {"activation": "gelu_tanh"}, {"gate_mul": 1.5, "down_mul": 0.5, "alpha": 1.702, "up_offset": 1.0, "limit": 1.1}]


@pytest.mark.parametrize("options", MLP_OPTIONS)
@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu_linear(device, dtype, halves, options):
    a, b = (torch.randn(3, 5, 96, device=device, dtype=dtype) for _ in range(2))
    w, bias = torch.randn(48, 96, device=device, dtype=dtype) / 8, torch.randn(48, device=device, dtype=dtype)
    x, other, w, bias = leaves(torch.cat((a, b), -1) if halves else a, b, w, bias)
    inputs = (x, w, bias) if halves else (x, other, w, bias)
    kept = R.swiglu_linear(x, None if halves else other, w, bias, **options)  # 15 rows are few
    y = R.swiglu_linear(x, None if halves else other, w, bias, recompute=True, **options)
    assert torch.equal(y, kept) and y.grad_fn.name() != kept.grad_fn.name()
    for g, v in zip(torch.autograd.grad(kept.sum(), inputs), torch.autograd.grad(y.sum(), inputs, retain_graph=True)):
        assert rms(g, v) < ULP[dtype]
    two = leaves(*(t.double() for t in inputs))
    gate, up = two[0].chunk(2, -1) if halves else two[:2]
    want = F.linear(swiglu64(gate, up, **options), *two[-2:])
    assert y.dtype == dtype and rms(y, want) < 4 * ULP[dtype]
    dy = torch.randn_like(y)
    for g, v in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(want, two, dy.double())):
        assert rms(g, v) < 4 * ULP[dtype]
    fixed = R.swiglu_linear(x.detach(), None if halves else other.detach(), w, recompute=True, **options)
    frozen = torch.autograd.grad(fixed.sum(), w)[0]
    assert frozen.shape == w.shape
    with torch.autocast(device, torch.bfloat16):
        assert R.swiglu_linear(x, None if halves else other, w, bias, **options).dtype == torch.bfloat16


@pytest.mark.parametrize("options", MLP_OPTIONS)
@pytest.mark.parametrize("halves,wgrad", [(True, "row128"), (False, "row128"), (False, "blk128")])
def test_fp8_swiglu(device, halves, wgrad, options, needs):
    """The fused form is the two after each other, bit for bit: forward, and every gradient."""
    a, b = (torch.randn(3, 50, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    layer = R.Fp8Linear(256, 384, device=device, dtype=torch.bfloat16, wgrad=wgrad)
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


def test_fp8_kept_codes(device, needs):
    """In inference the weight's codes are kept: a change in place is seen at once, one through .data at the next eval()."""
    layer, x = R.Fp8Linear(256, 128, bias=False, device=device).eval(), torch.randn(4, 256, device=device)
    with torch.no_grad():
        y = needs(lambda: layer(x))
        layer.weight.mul_(2)
        assert torch.equal(layer(x), 2 * y)
        layer.weight.data.mul_(2)
        assert torch.equal(layer.eval()(x), 4 * y)
    normed = torch.nn.utils.parametrizations.weight_norm(R.Fp8Linear(256, 128, bias=False, device=device))
    with torch.no_grad():
        y = normed(x)
        normed.parametrizations.weight.original0.mul_(2)  # the weight is a new tensor, at the same place
        assert torch.equal(normed(x), 2 * y)
    with torch.inference_mode():
        layer = R.Fp8Linear(256, 128, bias=False, device=device)
        y = layer(x)
        layer.weight.mul_(2)
        assert torch.equal(layer(x), 2 * y)
    assert torch.equal(copy.deepcopy(layer)(x), 2 * y)


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
    other = R.Q8_0Linear.from_linear(torch.nn.Linear(256, 96, device=device))
    other.load_state_dict(layer.state_dict())  # the bias too
    assert torch.equal(other(x), layer(x)) and other.to("meta").bias.is_meta
    try:
        path = write_gguf(tmp_path / "m.gguf", R.q8_0_quantize(linear.weight.detach().cpu()).numpy())
        assert torch.equal(R.Q8_0Linear.from_gguf(path, "w", device)(x), R.Q8_0Linear.from_gguf(path, "w").to(device)(x))
        near(R.Q8_0Linear.from_gguf(path, "w", device)(x) + linear.bias, layer(x), 1e-6)
    except ImportError as error:
        pytest.skip(str(error))
    near(layer.to(torch.bfloat16)(x.bfloat16()), linear(x), 5e-2, 0.2)


def test_q8_0_gradient_of_the_input(device, needs):
    """Through frozen weights, as for an adapter before such a layer: eager, on every form of the weights, and compiled."""
    linear = torch.nn.Linear(256, 96, device=device)
    layer = R.Q8_0Linear.from_linear(linear)
    blocks = R.q8_0_quantize(linear.weight.detach())
    held = L.q8_0_weight(blocks, None, torch.float64)
    assert torch.equal(held, L.q8_0_weight(*R.q8_0_repack(blocks), torch.float64))
    for tokens in (3, 35):
        x, dy = torch.randn(tokens, 256, device=device), torch.randn(tokens, 96, device=device)
        with torch.no_grad():
            want = needs(lambda: layer(x))
        ways = [lambda x: layer(x[None])[0], torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)]
        ways += [lambda x: R.q8_0_matmul(x, blocks) + linear.bias.detach(),
                 lambda x: R.q8_0_matmul(x, *R.q8_0_repack(blocks)) + linear.bias.detach()]
        for way in ways:
            for dtype in (torch.float32, torch.bfloat16):
                leaf, = leaves(x.to(dtype))
                y = way(leaf)
                assert rms(y, want) < 2e-2
                dx, = torch.autograd.grad(y, leaf, dy.to(y.dtype))
                assert rms(dx, dy.double() @ held) < (1e-6 if dtype == torch.float32 else 1e-2)


def test_what_has_no_gradient_says_so(device, needs):
    """Asked for one, every function that has none raises, eager and as a registered op; under no_grad it works."""
    x = torch.randn(128, 128, device=device)
    leaf, = leaves(x)
    (q, s), (w, t) = R.quantize_fp8(x), R.quantize_fp8(x, "blk128")
    bias, target = torch.randn(128, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    calls = {"quantize_fp8": lambda x: R.quantize_fp8(x), "quantize_fp8_dual": lambda x: R.quantize_fp8_dual(x),
             "q8_0_quantize": lambda x: R.q8_0_quantize(x), "fp8_gemm": lambda x: R.fp8_gemm(q, s, w, t, bias=x[0]),
             "linear_cross_entropy": lambda x: R.linear_cross_entropy(bias[None], w.float(), target, weight=x[0].abs())}
    for name, call in calls.items():
        needs(lambda: call(x))
        for _ in range(2):  # also where the call is known
            with pytest.raises(ridge.UnsupportedError, match=f"{name} has no gradient for .*, which requires one"):
                call(leaf)
            with torch.no_grad():
                call(leaf)
    op = torch.ops.ridge
    for call in (lambda: op.quantize_fp8(leaf, "row128", "e4m3", False, 0.0)[1], lambda: op.multiply(leaf, bias[:1], torch.float32),
                 lambda: op.fp8_gemm(q, s.requires_grad_(), w, t, "row128_blk128", torch.float32, None)):
        with pytest.raises(ridge.UnsupportedError, match="has no gradient"):
            call().sum().backward()


def test_messages_name_the_layer(device):
    x, layer = torch.ones(4, 100, device=device), R.Fp8Linear(256, 128, device=device)
    q8 = R.Q8_0Linear.from_linear(torch.nn.Linear(64, 32, device=device))
    for call, text in ((lambda: layer(x), r"this Fp8Linear takes 256 features, not those of an input of shape \[4, 100\]"),
                       (lambda: layer(x[0, 0]), r"takes 256 features, not those of an input of shape \[\]"),
                       (lambda: layer.swiglu(x), "takes 256 features"), (lambda: layer.swiglu(x, x), "takes 256 features"),
                       (lambda: q8(x), "this Q8_0Linear takes bfloat16 or float32 of 64 features"),
                       (lambda: q8(torch.ones(4, 64, device=device, dtype=torch.float16)), "dtype f16|of 64 features, not torch.float16"),
                       (lambda: R.swiglu_linear(x, x, layer.weight), r"weight has shape \[128, 256\], not \[.., 100\]"),
                       (lambda: R.swiglu_linear(x, None, layer.weight), r"not \[.., 50\]")):
        with pytest.raises(ridge.ArgumentError, match=text):
            call()

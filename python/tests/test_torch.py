"""ridge.torch against float64 PyTorch: SwiGLU, plans, and every way in which PyTorch calls an op."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch_common import (DTYPES, ULP, ce_problem, cuda_only, leaves, near, needs, on_devices, rms, seed,  # noqa: E402,F401
                          spread, swiglu64)

pytestmark = on_devices


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


def test_no_second_derivative(device, needs):
    """An error, whatever the gradient is made of and however the second one is asked for: never 0 unnoticed."""
    (x, w), t = leaves(torch.randn(4, 64, device=device), torch.randn(10, 64, device=device)), torch.arange(4, device=device)
    for function in (lambda: R.swiglu(x, x).sum(), lambda: R.swiglu(x, x).pow(2).sum(), lambda: R.swiglu(x).sum(),
                     lambda: R.linear_cross_entropy(x, w, t), lambda: R.linear_cross_entropy(x, w, t, reduction="none").sum()):
        y = needs(function)
        want, = torch.autograd.grad(y, x, retain_graph=True)
        g, = torch.autograd.grad(y, x, create_graph=True)
        assert torch.equal(g, want)
        with pytest.raises(ridge.UnsupportedError, match="once only"):
            torch.autograd.grad(y + g.pow(2).sum(), x)
    x.grad = None
    R.swiglu(x, x).sum().backward(create_graph=True)
    torch.optim.SGD([x], 0.1).zero_grad(set_to_none=False)
    assert not x.grad.any()


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
        with pytest.raises(ridge.ArgumentError, match=r"activation is \['silu'\], not one of"):
            R.swiglu(a, b, activation=["silu"])
        with pytest.raises(ridge.ArgumentError, match="gate_mul is a Tensor, not a number"):  # it would be kept for good
            R.swiglu(a, b, gate_mul=torch.ones(()))
        with pytest.raises(ridge.ArgumentError, match="up has shape"):
            R.swiglu(a, b[:3])
        for mode in ("tensor", "row", "row128", "blk128"):
            for x in (a, wide[:, 3:99]):
                q, s = R.quantize_fp8(x, mode)
                assert rms(q.double() * spread(s, mode, 40, 96), x) < 0.03
    first, second = R.swiglu(a, b), R.swiglu(a, b)
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, second)
    with torch.no_grad():
        x, = leaves(a)
        for _ in range(3):
            assert not R.swiglu(x, b).requires_grad and not R.swiglu(x, x).requires_grad
    for _ in range(3):
        assert R.swiglu(x, b).requires_grad and R.swiglu(b, x).requires_grad
        assert torch.equal(R.swiglu(torch.nn.Parameter(a, False), b), first)
        assert torch.equal(torch.func.vmap(R.swiglu)(a[:, None], b[:, None])[:, 0], first)
        with torch.inference_mode():
            assert torch.equal(R.swiglu(a, b), first) and torch.equal(R.swiglu(a.clone(), b), first)
    out, version = torch.zeros(40, 16, device=device), None
    (q, s), (w, t) = R.quantize_fp8(a, "row"), R.quantize_fp8(torch.randn(16, 96, device=device), "row")
    version = out._version
    needs(lambda: R.fp8_gemm(q, s, w, t, scales="row_row", out=out))
    assert out._version > version  # autograd sees that it was written to


def test_zeros_keep_their_sign(device):
    """0.0 and -0.0 are equal and have one hash: no table may take one for the other."""
    a, b = (torch.randn(4, 64, device=device) for _ in range(2))
    negative = a.signbit() ^ b.signbit()
    for name in ("gate_mul", "down_mul"):
        for zero in (0.0, -0.0, 0.0, -0.0):
            (x, y), minus = leaves(a, b), str(zero)[0] == "-"
            out = R.swiglu(x, y, **{name: zero})
            out.backward(torch.ones_like(out))
            assert not out.any() and torch.equal(out.signbit(), negative ^ minus)
            assert not y.grad.any() and torch.equal(y.grad.signbit(), a.signbit() ^ minus)
            for other in (R.swiglu(a, b, **{name: zero}), R.swiglu(torch.cat((a, b), 1), **{name: zero}),
                          R.swiglu(a, b, row_scale=torch.ones(4, device=device), **{name: zero})):
                assert torch.equal(other.signbit(), out.signbit())
    b[0] = -0.0
    first = R.swiglu(a, b)
    for options in ({"up_offset": -0.0}, {"limit": -0.0}, {"gate_mul": 1, "limit": False, "round_gate": 0}):
        for _ in range(2):
            out = R.swiglu(a, b, **options)
            assert torch.equal(out, first) and torch.equal(out.signbit(), first.signbit())


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
        "linear_ce_stats": (x.detach(), w.detach(), t, None, None, -100, ce),
        "linear_ce_topk": (x.detach(), w.detach(), t, None, 3, -100, ce),
        "linear_ce_weighted": (x, w, t, None, torch.rand(20, device=device), -100, ce, True, True, False),
        "linear_ce_sample": (x.detach(), w.detach(), t, torch.arange(20, device=device), torch.arange(20, device=device), None, -100, ce),
        "ce_fwd": (torch.randn(20, 30, device=device).requires_grad_(), t % 30, None, "mean", -100, ce),
        "ce_fwd none": (torch.randn(4, 5, 30, device=device).requires_grad_(), t.view(4, 5) % 30, None, "none", -100, ce),
        "ce_stats": (torch.randn(20, 30, device=device), t % 30, None, -100, ce),
        "add_rms_norm": (a, None, torch.randn(64, device=device).requires_grad_(), 1e-6, torch.float32),
        "add_rms_norm sum": (a, b, torch.randn(64, device=device).requires_grad_(), 1e-6, torch.float32),
        "rope": (torch.randn(6, 2, 64, device=device).requires_grad_(), torch.arange(6, device=device),
                 R.rope_freqs(32, device=device)[0], "halves", False, 1.0),
        "quantize_fp8": (a.detach(), "row128", "e4m3", False, 0.0),
        "quantize_fp8_dual": (a.detach(), "row_row", "e4m3", False, 0.0, True),
        "fp8_gemm": (q, s, p, r, "row128_blk128", torch.bfloat16, None),
        "fp8_linear": (lx, lw, None, "e4m3", "row128"),
        "fp8_linear blk128": (lx, lw, None, "e5m2", "blk128"),
        "swiglu_linear": (a, b, torch.randn(32, 64, device=device).requires_grad_(), None, "silu", options, False),
        "fp8_swiglu_linear": (lx, None, lw[:, :64].detach().requires_grad_(), None, "silu", options, False, "e4m3", "blk128"),
        "multiply": (a.detach(), torch.full((), 0.5, device=device), torch.bfloat16),
        "q8_0_quantize": (a.detach(),),
        "q8_0_repack": (blocks,),
        "q8_0_matmul": (torch.randn(3, 64, device=device).requires_grad_(), blocks, None, torch.float32),
        "q8_0_linear": (torch.randn(20, 64, device=device).requires_grad_(), *R.q8_0_repack(blocks)),
    }


NAMES = ["swiglu", "swiglu strided", "swiglu halves", "linear_ce_train", "linear_ce_eval", "linear_ce_stats", "linear_ce_topk",
         "linear_ce_sample", "linear_ce_weighted",
         "ce_fwd", "ce_fwd none", "ce_stats", "add_rms_norm", "add_rms_norm sum", "rope", "quantize_fp8", "quantize_fp8_dual",
         "fp8_gemm", "fp8_linear", "fp8_linear blk128", "swiglu_linear", "fp8_swiglu_linear", "multiply",
         "q8_0_quantize", "q8_0_repack", "q8_0_matmul", "q8_0_linear"]


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


def test_order_graph(device):
    """Two branches and their join: the same bits as one kernel after the other, with the graph's edges in order."""
    cuda_only(device)
    x, side = torch.randn(64, 256, device=device), torch.cuda.Stream()

    def work(branch):
        a = R.swiglu(x, x)
        branch.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(branch):
            b = R.swiglu(a, x)
        c = R.swiglu(x, a)
        torch.cuda.current_stream().wait_stream(branch)
        return R.swiglu(b, c)

    want = work(torch.cuda.current_stream())
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        pytest.skip("this PyTorch keeps no graph")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        got = work(side)
    ridge.Device("cuda").order_graph(graph.raw_cuda_graph())
    graph.instantiate()
    graph.replay()
    assert torch.equal(got, want)


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
    for call, text in ((lambda: R.swiglu([1.0], a), "swiglu: gate is a list, not a torch.Tensor"),
                       (lambda: R.swiglu(a, 2.0), "up is a float, not a torch.Tensor or None"),
                       (lambda: R.swiglu(None), "gate is a NoneType"),
                       (lambda: R.quantize_fp8([[1.0]]), "x is a list"), (lambda: R.quantize_fp8_dual(None), "x is a NoneType"),
                       (lambda: R.fp8_gemm(a, a, a, None), "scale_b is a NoneType"),
                       (lambda: R.q8_0_matmul(a, None), "w is a NoneType"),
                       (lambda: R.linear_cross_entropy(a, w, [1, 2]), "target is a list"),
                       (lambda: R.swiglu_linear(a, None, None), "weight is a NoneType"),
                       (lambda: R.q8_0_quantize(3), "x is a int")):
        with pytest.raises(TypeError, match=text):
            call()
    if device == "cuda":
        for call in (lambda: R.swiglu(a, a.cpu()), lambda: R.linear_cross_entropy(a, w.cpu(), t), lambda: R.swiglu(a.cpu(), a)):
            with pytest.raises(ridge.ArgumentError, match="move them to one device"):
                call()

"""rms_norm, add_rms_norm and rope of ridge.torch against float64: values, gradients, layouts, dtypes, errors."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
from torch_common import DTYPES, ULP, leaves, near, needs, on_devices, rms, seed  # noqa: E402,F401

pytestmark = on_devices


def norm64(x, weight, eps):
    x = x.double()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", [None, "same", torch.float32])
@pytest.mark.parametrize("shape", [(3, 5, 96), (64,), (0, 64), (33, 256)])
def test_rms_norm(device, dtype, weight, shape, needs):
    x, dy = torch.randn(*shape, device=device, dtype=dtype), torch.randn(*shape, device=device, dtype=dtype)
    w = None if weight is None else torch.randn(shape[-1], device=device, dtype=dtype if weight == "same" else weight)
    one, two = (leaves(x, *([] if w is None else [w])), leaves(x.double(), *([] if w is None else [w.double()])))
    got, want = needs(lambda: R.rms_norm(*one, eps=1e-5)), norm64(*two, *([None] if w is None else []), 1e-5)
    assert got.dtype == dtype and got.shape == x.shape
    near(got, want, 2 * ULP[dtype])
    near(R.rms_norm(*[t.detach() for t in one], eps=1e-5), want, 2 * ULP[dtype])
    for g, v, leaf in zip(torch.autograd.grad(got, one, dy), torch.autograd.grad(want, two, dy.double()), one):
        assert g.dtype == leaf.dtype and (not v.numel() or not v.any() or rms(g, v) < 3 * ULP[leaf.dtype])
    assert R.rms_norm(x, w, out_dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("x_dtype,residual_dtype", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32),
                                                    (torch.float16,) * 2])
def test_add_rms_norm(device, x_dtype, residual_dtype, needs):
    """Both results and all gradients, also where only one of the results was used."""
    x, r = torch.randn(7, 9, 128, device=device, dtype=x_dtype), torch.randn(7, 9, 128, device=device, dtype=residual_dtype)
    w = torch.randn(128, device=device, dtype=x_dtype)
    total = (x.double() + r.double()).to(residual_dtype)
    for use in ((1, 1), (1, 0), (0, 1)):
        one, two = leaves(x, r, w), leaves(x.double(), r.double(), w.double())
        out, s = needs(lambda: R.add_rms_norm(*one, eps=1e-5))
        assert out.dtype == x_dtype and torch.equal(s, total)
        near(out, norm64(total, w, 1e-5), 2 * ULP[x_dtype])
        t = two[0] + two[1]
        y, dy, ds = norm64(t, two[2], 1e-5), torch.randn_like(x).double(), torch.randn_like(x).double()
        got = (out * dy * use[0]).sum() + (s * ds * use[1]).sum()
        want = (y * dy * use[0]).sum() + (t * ds * use[1]).sum()
        pick = [0, 1] if not use[0] else [0, 1, 2]
        if not use[0]:
            got = (s * ds).sum()
        for g, v, i in zip(torch.autograd.grad(got, [one[i] for i in pick]), torch.autograd.grad(want, [two[i] for i in pick]), pick):
            assert g.dtype == one[i].dtype and rms(g, v) < 6 * ULP[x_dtype], (use, i)
    (only,) = leaves(r)
    out, s = R.add_rms_norm(x, only)
    assert torch.autograd.grad(out.sum() + s.sum(), only)[0].dtype == residual_dtype


def test_norm_layouts_compile_and_errors(device, needs):
    x, w, (leaf,) = torch.randn(6, 64, device=device), torch.randn(64, device=device), leaves(torch.randn(6, 64, device=device))
    want = needs(lambda: R.rms_norm(x, w))
    wide = torch.randn(6, 200, device=device)
    wide[:, 3:67] = x
    for y in (wide[:, 3:67], x.T.contiguous().T, x.view(2, 3, 64), x.view(3, 2, 64).transpose(0, 1).contiguous().transpose(0, 1),
              wide.view(2, 3, 200)[..., 3:67]):
        assert torch.equal(R.rms_norm(y, w).reshape(6, 64), want)
        one, two = y.detach().requires_grad_(), x.view(y.shape).detach().requires_grad_()
        dy = torch.randn(64, device=device).expand(y.shape)
        for residual in (None, y):
            for g, v in zip(*(torch.autograd.grad(R.rms_norm(t, w) if residual is None else sum(R.add_rms_norm(t, residual, w)), t, dy)
                              for t in (one, two))):
                assert g.shape == v.shape
                near(g, v, 1e-6)
    assert torch.equal(R.rms_norm(x[:1].expand(6, 64), w), R.rms_norm(x[:1].repeat(6, 1), w))
    f = torch.compile(lambda x, r: sum(R.add_rms_norm(x, r, w)), fullgraph=True, backend="aot_eager", dynamic=True)
    one, two = leaves(x, x.flip(0)), leaves(x, x.flip(0))
    for g, v in zip(torch.autograd.grad(f(*one).sum(), one), torch.autograd.grad(sum(R.add_rms_norm(*two, w)).sum(), two)):
        near(g, v, 1e-6)
    g, = torch.autograd.grad(R.rms_norm(leaf, w).sum(), leaf, create_graph=True)
    with pytest.raises(ridge.UnsupportedError, match="once only"):
        torch.autograd.grad(g.pow(2).sum(), leaf)
    assert R.rms_norm(x.to("meta"), w.to("meta")).shape == (6, 64)
    for call, text in ((lambda: R.rms_norm(x, w[:3]), "weight has shape"), (lambda: R.add_rms_norm(x, x[:2], w), "residual has shape"),
                       (lambda: R.rms_norm(x[0, 0]), "no dimensions"), (lambda: R.rms_norm(x, w, eps="a"), "eps is 'a', not a number"),
                       (lambda: R.rms_norm(x.double(), w), "f64"), (lambda: R.rms_norm(x, w, eps=-1.0), "eps")):
        with pytest.raises(ridge.ArgumentError, match=text):
            call()


def rope64(x, positions, freqs, pairs, inverse, mscale):
    x, n = x.double(), 2 * len(freqs)
    angle = positions.double()[..., None, None] * freqs * (-1 if inverse else 1)
    c, s = angle.cos() * mscale, angle.sin() * mscale
    a, b = (x[..., :n // 2], x[..., n // 2:n]) if pairs == "halves" else (x[..., :n:2], x[..., 1:n:2])
    y = a * c - b * s, a * s + b * c
    turned = torch.cat(y, -1) if pairs == "halves" else torch.stack(y, -1).flatten(-2)
    return torch.cat((turned, x[..., n:]), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
@pytest.mark.parametrize("n_rot,inverse,yarn", [(64, False, None), (32, True, None),
                                                (64, False, {"freq_scale": 0.25, "original_context": 4096})])
def test_rope(device, dtype, pairs, n_rot, inverse, yarn, needs):
    freqs, mscale = R.rope_freqs(n_rot, 10000.0, yarn=yarn, device=device)
    assert yarn or (mscale == 1 and torch.allclose(freqs.cpu(), 10000.0 ** (-torch.arange(0, n_rot, 2, dtype=torch.float64) / n_rot)))
    positions = torch.randint(0, 100000, (2, 5), device=device)
    for x in (torch.randn(2, 5, 3, 64, device=device, dtype=dtype),
              torch.randn(2, 3, 5, 64, device=device, dtype=dtype).transpose(1, 2)):
        one, two = leaves(x), leaves(x.double())
        options = {"pairs": pairs, "inverse": inverse, "mscale": mscale}
        got, want = needs(lambda: R.rope(*one, positions, freqs, **options)), rope64(*two, positions, freqs, **options)
        assert got.dtype == dtype
        near(got, want, 4 * ULP[dtype])
        assert torch.equal(R.rope(x, positions.int(), freqs, **options), got)
        dy = torch.randn_like(got)
        assert rms(torch.autograd.grad(got, one, dy)[0], torch.autograd.grad(want, two, dy.double())[0]) < 4 * ULP[dtype]
    one = leaves(x)
    f = torch.compile(lambda x: R.rope(x, positions, freqs, **options), fullgraph=True, backend="aot_eager")
    assert torch.equal(f(*one), R.rope(*one, positions, freqs, **options))


def test_rope_is_hugging_faces(device):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="transformers is not installed")
    q, positions = torch.randn(2, 4, 7, 64, device=device), torch.arange(7, device=device).expand(2, 7)
    freqs, _ = R.rope_freqs(64, device=device)
    angle = (positions.double()[..., None] * freqs).repeat(1, 1, 2)
    want, _ = llama.apply_rotary_pos_emb(q, q, angle.cos().float(), angle.sin().float())
    near(R.rope(q.transpose(1, 2), positions, freqs).transpose(1, 2), want, 1e-5)


def test_rope_errors(device):
    x, positions, (freqs, _) = torch.randn(5, 3, 64, device=device), torch.arange(5, device=device), R.rope_freqs(64, device=device)
    for call, text in ((lambda: R.rope(x[0, 0], positions, freqs), r"not \[.., heads, head_dim\]"),
                       (lambda: R.rope(x, positions[:3], freqs), "positions has shape"),
                       (lambda: R.rope(x, positions, freqs, pairs="x"), "pairs is 'x'"),
                       (lambda: R.rope(x, positions.float(), freqs), "pos"), (lambda: R.rope(x, positions, freqs.float()), "freqs"),
                       (lambda: R.rope(x[..., :32], positions, freqs), "n_rot"), (lambda: R.rope_freqs(63), "n_rot"),
                       (lambda: R.rope_freqs(64, 0.5), "base"), (lambda: R.rope_freqs(64, yarn={"x": 1}), "yarn is"),
                       (lambda: R.rope_freqs("a"), "n_rot is 'a', not a whole number")):
        with pytest.raises(ridge.ArgumentError, match=text):
            call()

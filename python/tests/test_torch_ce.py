"""linear_cross_entropy against PyTorch's in float64: every option, gradients, layouts."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch_common import ce_problem, leaves, near, needs, on_devices, rms, seed  # noqa: E402,F401

pytestmark = on_devices


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


def test_ce_made_again(device, needs):
    """Calls that were made before take the short way: other layouts, dtypes, modes, options and errors in between."""
    x, w, t, _ = ce_problem(device, torch.float32, {})
    wide = torch.randn(7, 9, 80, device=device)
    needs(lambda: R.linear_cross_entropy(x, w, t))
    for _ in range(3):
        x, t[0, 0] = torch.randn_like(x), 5
        for options in ({}, {"reduction": "sum", "label_smoothing": 0.1}, {"reduction": "none"}, {"ignore_index": 5}):
            for y in (x, wide[..., 5:69], x[:1, :1].expand(7, 9, 64), x.transpose(0, 1).contiguous().transpose(0, 1)):
                one, two = leaves(y, w), leaves(y.double(), w.double())
                loss, want = R.linear_cross_entropy(*one, t, **options), ce64(*two, t, **options)
                assert loss.shape == want.shape and one[0].grad is None
                near(loss, want, 1e-4)
                near(R.linear_cross_entropy(y, w, t.int(), **options), want, 1e-4)
                loss.sum().backward()
                want.sum().backward()
                assert rms(one[0].grad, two[0].grad) < 1e-5 and rms(one[1].grad, two[1].grad) < 1e-5
                with torch.no_grad():
                    assert not R.linear_cross_entropy(*one, t, **options).requires_grad
        one = leaves(x, w)
        with torch.autocast(device, torch.bfloat16):
            got = R.linear_cross_entropy(x, w, t), R.linear_cross_entropy(*one, t)
        want = R.linear_cross_entropy(x.bfloat16(), w.bfloat16(), t)
        assert all(rms(g, want) < 1e-6 for g in got)
        assert torch.equal(R.linear_cross_entropy(x.view(63, 64), w, t.view(63)), R.linear_cross_entropy(x, w, t))
        for wrong, text in (((x, w.bfloat16(), t), "dtypes must be the same"), ((x, w, t[0]), "target has shape"),
                            ((x, w, torch.rand(7, 200, device=device)), "class probabilities")):
            with pytest.raises(ridge.ArgumentError, match=text):
                R.linear_cross_entropy(*wrong)
        with pytest.raises(ridge.ArgumentError, match="reduction is"):
            R.linear_cross_entropy(x, w, t, reduction="product")

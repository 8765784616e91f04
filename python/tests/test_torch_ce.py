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


def test_the_signature_of_pytorchs_own(device, needs):
    """Each call of F.linear_cross_entropy (PyTorch 2.15) is a call of ridge's: names, order, defaults, options."""
    x, w, t, more = ce_problem(device, torch.float32, {"weight": True, "linear_bias": True}, (40,))
    t[3] = -100
    own = getattr(F, "linear_cross_entropy", None)
    calls = [{}, {"linear_bias": more["linear_bias"]}, {"weight": more["weight"], "reduction": "sum"}, {"ignore_index": None},
             {"ignore_index": 7, "label_smoothing": 0.1, "reduction": "none"}]
    if own:
        import inspect
        assert set(inspect.signature(own).parameters) <= set(inspect.signature(R.linear_cross_entropy).parameters)
        calls.append({"options": torch.nn.LinearCrossEntropyOptions()})
    for call in calls:
        target = t.clamp(min=0) if call.get("ignore_index") == 7 else t
        got = needs(lambda: R.linear_cross_entropy(x, w, target, **call))
        near(got, ce64(x.double(), w.double(), target, **{k: v for k, v in call.items() if k != "options" and v is not None}), 1e-4)
        if own:
            near(got, own(x, w, target, **call), 1e-4)
    with pytest.raises(ridge.ArgumentError, match="options is a dict, not a torch.nn.LinearCrossEntropyOptions"):
        R.linear_cross_entropy(x, w, t, options={})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_shift(device, reduction, needs):
    """Position t predicts target t + n of its own sequence, as with both cut by hand; the same gradients."""
    x, w, t, _ = ce_problem(device, torch.float32, {})
    t[0, 4] = -100
    assert torch.equal(needs(lambda: R.linear_cross_entropy(x, w, t, shift=0, reduction=reduction)),
                       R.linear_cross_entropy(x, w, t, shift=False, reduction=reduction))
    for shift, n in ((True, 1), (1, 1), (2, 2), (9, 9)):
        one, two = leaves(x, w), leaves(x, w)
        short = t.to(torch.int16 if n == 2 else torch.int64)
        got = R.linear_cross_entropy(*one, short, shift=shift, reduction=reduction, lse_square_scale=1e-2)
        want = R.linear_cross_entropy(two[0][:, :9 - n], two[1], t[:, n:], reduction=reduction, lse_square_scale=1e-2)
        assert got.shape == want.shape
        near(got, want, 1e-6)
        if n < 9:
            for g, v in zip(torch.autograd.grad(got.sum(), one), torch.autograd.grad(want.sum(), two)):
                assert rms(g, v) < 1e-6
    for shift, text in ((-1, "shift is -1, not within a sequence"), (10, "shift is 10, not within"),
                        (0.5, "shift is 0.5, not a whole"),
                        ("a", "shift is 'a', not a whole number")):
        with pytest.raises(ridge.ArgumentError, match=text):
            R.linear_cross_entropy(x, w, t, shift=shift)


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0, "temperature": 0.7}, {"weight": True, "label_smoothing": 0.2}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_statistics_and_logits_that_are_there(device, dtype, options, needs):
    """Against float64 of the logits, in one test for both forms; the loss of given logits has a gradient."""
    x, w, t, options = ce_problem(device, dtype, {**options, "linear_bias": True})
    bias = options.pop("linear_bias")
    t[0, 2] = -100
    logits = (x.double() @ w.double().T + bias.double()).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    cap = {k: v for k, v in options.items() if k in ("softcap", "temperature")}
    z = logits.double()
    z = (cap["softcap"] * torch.tanh(z / cap["softcap"]) if cap else z) / cap.get("temperature", 1.0)
    kept = t != -100
    for rows, loose in ((needs(lambda: R.linear_cross_entropy_stats(x, w, t, bias, **options)), tolerance),
                        (needs(lambda: R.cross_entropy_stats(logits, t, **options)), 1e-4)):
        near(rows.loss, ce64_of(logits, t, **options, reduction="none"), loose)
        near(rows.lse, torch.where(kept, z.logsumexp(-1), 0.0), loose)
        near(rows.target_logit, torch.where(kept, z.gather(-1, t.clamp(min=0)[..., None])[..., 0], 0.0), loose)
        near(rows.entropy, torch.where(kept, torch.distributions.Categorical(logits=z).entropy(), 0.0), loose)
        assert torch.equal(rows.argmax[~kept], torch.full_like(rows.argmax[~kept], -1)) and rows.argmax.dtype == torch.int64
        assert (rows.argmax == z.argmax(-1))[kept].float().mean() > (0.99 if loose < 1e-3 else 0.9)
        assert all(r.shape == t.shape for r in rows)
    for reduction in ("mean", "sum", "none"):
        (one,), (two,) = leaves(logits), leaves(logits.double())
        got, want = R.cross_entropy(one, t, reduction=reduction, **options), ce64_of(two, t, reduction=reduction, **options)
        near(got, want, 1e-4)
        dl = torch.rand_like(got) * 3
        if reduction == "none":
            dl = dl[:1, :1].expand(t.shape)  # as .sum() hands it back: copied, and the copy must live until the launch
        g, v = torch.autograd.grad(got, one, dl)[0], torch.autograd.grad(want, two, dl.double())[0]
        assert g.dtype == dtype and rms(g, v) < (1e-5 if dtype == torch.float32 else 1e-2)


def ce64_of(logits, t, **options):
    eye = torch.eye(logits.shape[-1], dtype=torch.float64, device=logits.device)
    return ce64(logits.double(), eye, t, **options)


def test_statistics_refuse(device):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    (leaf,) = leaves(x)
    for call, text in ((lambda: R.linear_cross_entropy_stats(leaf, w, t), "has no gradient for input"),
                       (lambda: R.cross_entropy_stats(leaf, t), "has no gradient for logits"),
                       (lambda: R.cross_entropy(x, t[0]), "target has shape"),
                       (lambda: R.cross_entropy(x, t, softcap=None), "softcap is None"),
                       (lambda: R.cross_entropy(x, t, reduction="all"), "reduction is 'all'"),
                       (lambda: R.cross_entropy(x, x), "class probabilities"),
                       (lambda: R.cross_entropy(x, t, w[:, 0]), "class weights has shape")):
        with pytest.raises(ridge.Error, match=text):
            call()
    (z,) = leaves(torch.randn(4, 10, device=device))
    g, = torch.autograd.grad(R.cross_entropy(z, t[0, :4] % 10), z, create_graph=True)
    with pytest.raises(ridge.UnsupportedError, match="once only"):
        torch.autograd.grad(g.pow(2).sum(), z)


def logprobs64(x, w, t, linear_bias=None, softcap=0.0, temperature=1.0, ignore_index=-100):
    """(log-probability of t, entropy) in float64"""
    z = x @ w.T + (0 if linear_bias is None else linear_bias)
    z = (softcap * torch.tanh(z / softcap) if softcap else z) / temperature
    logp, keep = z.log_softmax(-1), t != ignore_index
    return logp.gather(-1, t.clamp(min=0)[..., None])[..., 0] * keep, -(logp.exp() * logp).sum(-1) * keep


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"linear_bias": True}, {"softcap": 5.0, "temperature": 0.7}])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_linear_logprobs_and_entropy(device, dtype, options, way, needs):
    """Values and gradients of both, together and each alone, with ignored rows."""
    x, w, t, options = ce_problem(device, dtype, options)
    t[0, 2] = t[5] = -100
    one, two = leaves(x, w), leaves(x.double(), w.double())
    bias = {}
    if "linear_bias" in options:
        one, two = one + leaves(options["linear_bias"]), two + leaves(options["linear_bias"].double())
        options, bias = {**options, "linear_bias": one[2]}, {"linear_bias": two[2]}
    call = R.linear_logprobs if way == "eager" else torch.compile(R.linear_logprobs, fullgraph=True, backend="aot_eager")
    got = needs(lambda: call(one[0], one[1], t, entropy=True, **options))
    want = logprobs64(two[0], two[1], t, **{**options, **bias})
    tol = 1e-5 if dtype == torch.float32 else 2e-2
    for g, v in zip(got, want):
        assert g.dtype == torch.float32 and g.shape == t.shape
        near(g, v, tol)
    assert (got[0] <= 0).all()
    dl, dh = torch.randn_like(got[0]), torch.randn_like(got[1])
    for a, b in ((dl, dh), (dl, None), (None, dh)):
        terms = [(g * d).sum() for g, d in zip(got, (a, b)) if d is not None]
        terms64 = [(g * d.double()).sum() for g, d in zip(want, (a, b)) if d is not None]
        for g, v, leaf in zip(torch.autograd.grad(sum(terms), one, retain_graph=True),
                              torch.autograd.grad(sum(terms64), two, retain_graph=True), one):
            assert g.dtype == leaf.dtype and rms(g, v) < (1e-5 if dtype == torch.float32 else 1e-2)
    near(R.linear_logprobs(one[0], one[1], t, **options), want[0], tol)
    with torch.no_grad():
        near(R.linear_logprobs(one[0], one[1], t, **options), want[0], tol)


def test_linear_entropy(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    one, two = leaves(x, w), leaves(x.double(), w.double())
    mask = torch.rand_like(t, dtype=torch.float32) < 0.7
    got = needs(lambda: R.linear_entropy(*one, mask=mask))
    want = logprobs64(*two, torch.where(mask, 0, -100))[1]
    near(got, want, 1e-5)
    up = torch.randn_like(got)
    for g, v in zip(torch.autograd.grad(got, one, up), torch.autograd.grad(want, two, up.double())):
        assert rms(g, v) < 1e-5
    near(R.linear_entropy(x, w), logprobs64(x.double(), w.double(), t)[1], 1e-5)
    with pytest.raises(ridge.ArgumentError, match="mask is torch.int64"):
        R.linear_entropy(x, w, mask=t)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"linear_bias": True, "softcap": 5.0, "temperature": 0.7}])
def test_linear_topk(device, dtype, options, needs):
    """Values as those of torch.topk of float64 logits, each the log-probability of its class; rows that are left out."""
    x, w, t, options = ce_problem(device, dtype, options)
    bias = options.pop("linear_bias", None)
    mask = torch.rand_like(t, dtype=torch.float32) < 0.7
    ids, logprob = needs(lambda: R.linear_topk(x, w, 7, bias, mask, **options))
    z = x.double() @ w.double().T + (0 if bias is None else bias.double())
    cap = options.get("softcap", 0.0)
    z = (cap * torch.tanh(z / cap) if cap else z) / options.get("temperature", 1.0)
    log_p = z.log_softmax(-1)
    assert ids.shape == logprob.shape == (*t.shape, 7) and ids.dtype == torch.int64
    assert (ids[~mask] == -1).all() and (logprob[~mask] == 0).all()
    tol = 1e-5 if dtype == torch.float32 else 2e-2
    near(logprob[mask], log_p.topk(7).values[mask], tol)
    near(logprob[mask], log_p.gather(-1, ids.clamp(min=0))[mask], tol)
    assert (ids.sort().values.diff()[mask] > 0).all()
    equal = R.linear_topk(x[0], w[5].expand_as(w).contiguous(), 7, **options)[0]  # of equals the lowest class
    assert torch.equal(equal, torch.arange(7, device=device).expand_as(equal))
    for k in (0, 257):
        with pytest.raises(ridge.ArgumentError, match=f"k is {k}"):
            R.linear_topk(x, w, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_linear_weighted_nll(device, dtype, way, needs):
    """As linear_logprobs times the weights, values and gradients; a second backward; without gradients."""
    x, w, t, _ = ce_problem(device, dtype, {})
    t[0] = -100
    row_weight, bias = torch.randn(t.shape, device=device), torch.randn(w.shape[0], device=device)
    one, two = leaves(x, w, bias), leaves(x, w, bias)
    call = R.linear_weighted_nll
    call = call if way == "eager" else torch.compile(call, fullgraph=True, backend="aot_eager")
    loss, logprob = needs(lambda: call(one[0], one[1], t, row_weight, one[2], temperature=0.8))
    want = R.linear_logprobs(two[0], two[1], t, two[2], temperature=0.8)
    assert not logprob.requires_grad
    near(logprob, want, 1e-6)
    near(loss, -(want * row_weight).sum(), 1e-5)
    expected = torch.autograd.grad(-(want * row_weight).sum() * 0.5, two)
    for retain in (True, False):
        for g, v, leaf in zip(torch.autograd.grad(loss * 0.5, one, retain_graph=retain), expected, one):
            assert g.dtype == leaf.dtype and rms(g, v.double()) < (1e-5 if dtype == torch.float32 else 1e-2)
    with torch.no_grad():
        near(R.linear_weighted_nll(x, w, t, row_weight, bias, temperature=0.8)[0], loss, 1e-6)
    with pytest.raises(ridge.ArgumentError, match="row_weight has shape"):
        R.linear_weighted_nll(x, w, t, row_weight[0])


def test_linear_sample(device, needs):
    """As often as softmax says (chi-squared, 39 degrees of freedom), the same rows again alone, rows that are left out."""
    x, w = torch.randn(1, 24, device=device), torch.randn(40, 24, device=device) * 0.4
    many = 4000
    seed, counter = torch.arange(many, device=device), torch.full((1,), 7, device=device)
    ids, logprob = needs(lambda: R.linear_sample(x.expand(many, -1), w, seed, counter, temperature=1.3))
    log_p = (x.double() @ w.double().T / 1.3).log_softmax(-1)[0]
    near(logprob, log_p[ids], 1e-5)
    expected = log_p.exp() * many
    assert ((torch.bincount(ids, minlength=40) - expected) ** 2 / expected).sum() < 80
    for at in (0, 1, many - 1):
        assert R.linear_sample(x, w, seed[at:at + 1], counter, temperature=1.3)[0] == ids[at]
    other = R.linear_sample(x.expand(many, -1), w, seed, counter + 1, temperature=1.3)[0]
    assert (other != ids).float().mean() > 0.5
    mask = seed % 3 != 0
    ids_, logprob_ = R.linear_sample(x.expand(many, -1), w, seed, counter, mask=mask, temperature=1.3)
    assert torch.equal(ids_[mask], ids[mask]) and (ids_[~mask] == -1).all() and (logprob_[~mask] == 0).all()
    with pytest.raises(ridge.ArgumentError, match="seed is torch.float32"):
        R.linear_sample(x, w, x[:, 0])
    with pytest.raises(ridge.ArgumentError, match="counter is torch.int64"):
        R.linear_sample(x, w, seed[:1], seed[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"linear_bias": True, "softcap": 5.0, "temperature": 0.7}])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_linear_logprobs_of_ids(device, dtype, options, way, needs):
    """K classes a row, some several times, some ignored, with the entropy: values and gradients."""
    x, w, t, options = ce_problem(device, dtype, options)
    ids = torch.randint(0, w.shape[0], (*t.shape, 12), device=device)
    ids[..., 3] = ids[..., 1]
    ids[0, :, 5] = ids[2, 3] = -100
    one, two = leaves(x, w), leaves(x.double(), w.double())
    bias = {}
    if "linear_bias" in options:
        one, two = one + leaves(options["linear_bias"]), two + leaves(options["linear_bias"].double())
        options, bias = {**options, "linear_bias": one[2]}, {"linear_bias": two[2]}
    call = R.linear_logprobs if way == "eager" else torch.compile(R.linear_logprobs, fullgraph=True, backend="aot_eager")
    logprob, entropy = needs(lambda: call(one[0], one[1], ids, entropy=True, **options))
    each = [logprobs64(two[0], two[1], ids[..., k], **{**options, **bias}) for k in range(12)]
    want = torch.stack([e[0] for e in each], -1)
    want_entropy = logprobs64(two[0], two[1], torch.where((ids != -100).any(-1), 0, -100), **{**options, **bias})[1]
    tol = 1e-5 if dtype == torch.float32 else 2e-2
    assert logprob.shape == ids.shape and entropy.shape == t.shape and (logprob <= 0).all()
    near(logprob, want, tol)
    near(entropy, want_entropy, tol)
    dl, dh = torch.randn_like(logprob), torch.randn_like(entropy)
    for weights in ((dl, dh), (dl, 0 * dh)):
        got = torch.autograd.grad((logprob * weights[0]).sum() + (entropy * weights[1]).sum(), one, retain_graph=True)
        ref = torch.autograd.grad((want * weights[0].double()).sum() + (want_entropy * weights[1].double()).sum(), two,
                                  retain_graph=True)
        for g, v, leaf in zip(got, ref, one):
            assert g.dtype == leaf.dtype and rms(g, v) < (1e-5 if dtype == torch.float32 else 1e-2)
    near(R.linear_logprobs(x, w, ids, **{k: v.detach() if k == "linear_bias" else v for k, v in options.items()}), want, tol)


def test_linear_logprobs_errors(device, needs):
    x, w, t, _ = ce_problem(device, torch.float32, {})
    with pytest.raises(ridge.ArgumentError, match="option ids must lie in 0 .. 256"):
        needs(lambda: R.linear_logprobs(x, w, t[..., None].expand(*t.shape, 257)))
    with pytest.raises(ridge.ArgumentError, match="target has shape"):
        R.linear_logprobs(x, w, t[1:])
    assert R.linear_logprobs(x, w, t[..., None] * 0 + 10000).isnan().all()


def test_no_gradients_under_no_grad_after_training(device, monkeypatch):
    """A call of the same tensors under no_grad, after one that trained, is eval."""
    x, w = leaves(torch.randn(8, 64, device=device), torch.randn(32, 64, device=device))
    target = torch.randint(32, (8,), device=device)
    loss = R.linear_cross_entropy(x, w, target)
    loss.backward()

    def unwanted(*args, **kwargs):
        raise AssertionError("gradients are computed")
    monkeypatch.setattr(ridge.torch._functions, "_gradients", unwanted)
    with torch.no_grad():
        again = R.linear_cross_entropy(x, w, target)
    assert not again.requires_grad
    near(again, loss.detach(), 1e-6)

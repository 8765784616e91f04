"""Losses of post-training over ridge's logits-free head, against the same formulas on float64 logits: distillation from a
teacher's K classes, examples/post_training.py, and a model that is trained by them."""
import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch_common import ce_problem, leaves, near, needs, on_devices, rms, seed  # noqa: E402,F401

pytestmark = on_devices


def divergence64(beta, x, w, b, tx, tw, tb, temperature, keep, caps=(0, 0)):
    two = (c * (z / c).tanh() if c else z for z, c in zip((x @ w.T + b, tx @ tw.T + tb), caps))
    logp, logq = ((z / temperature).log_softmax(-1) for z in two)
    p, q = logp.exp(), logq.exp()
    m = (beta * q + (1 - beta) * p).log()
    rows = beta * (q * (logq - m)) + (1 - beta) * (p * (logp - m))
    rows = q * (logq - logp) if beta == 0 else p * (logp - logq) if beta == 1 else rows
    return rows.sum(-1)[keep].mean()


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gradients", [5000, 10**9])
def test_distillation_from_hidden_states(device, beta, dtype, gradients, monkeypatch):
    """Several chunks, another hidden size, rows that are left out: the loss and its gradients, which a second backward makes
    again."""
    import ridge.torch._distill as D
    monkeypatch.setattr(D, "LOGITS", 1500)
    monkeypatch.setattr(D, "GRADIENTS", gradients)
    x, w, t, _ = ce_problem(device, dtype, {})
    tx, tw, _, _ = ce_problem(device, dtype, {}, hidden=48)
    b, tb = (torch.randn(w.shape[0], device=device, dtype=dtype) for _ in range(2))
    keep = torch.rand(t.shape, device=device) < 0.7
    one, two = leaves(x, w, b), leaves(x.double(), w.double(), b.double())
    got = R.linear_distill(*one[:2], tx, tw, one[2], tb, keep, beta=beta, temperature=1.5)
    want = divergence64(beta, *two, tx.double(), tw.double(), tb.double(), 1.5, keep)
    near(got, want, 1e-5 if dtype == torch.float32 else 1e-3)
    first, again = torch.autograd.grad(got, one, torch.tensor(3.0, device=device), retain_graph=True), torch.autograd.grad(got, one)
    for g, second, v, leaf in zip(first, again, torch.autograd.grad(want, two), one):
        assert g.dtype == leaf.dtype and rms(g, 3 * v) < (1e-5 if dtype == torch.float32 else 1e-2)
        assert rms(second, v) < (1e-5 if dtype == torch.float32 else 1e-2)
    near(R.linear_distill(x, w, tx, tw, b, tb, keep, beta=beta, temperature=1.5, reduction="sum"), got * keep.sum(), 1e-5)
    assert R.linear_distill(x, w, tx, tw, mask=torch.zeros_like(keep), beta=beta) == 0
    assert R.linear_distill(x, w, x, w, beta=beta).abs() < 1e-5


def test_distillation_with_softcaps(device, monkeypatch):
    import ridge.torch._distill as D
    monkeypatch.setattr(D, "LOGITS", 1500)
    x, w, t, _ = ce_problem(device, torch.float32, {})
    tx, tw, _, _ = ce_problem(device, torch.float32, {}, hidden=48)
    b, tb = (torch.randn(w.shape[0], device=device) for _ in range(2))
    keep, one, two = torch.rand(t.shape, device=device) < 0.7, leaves(x, w, b), leaves(x.double(), w.double(), b.double())
    got = R.linear_distill(*one[:2], tx, tw, one[2], tb, keep, beta=0.4, temperature=1.5, softcap=2.0, teacher_softcap=3.0)
    want = divergence64(0.4, *two, tx.double(), tw.double(), tb.double(), 1.5, keep, (2.0, 3.0))
    near(got, want, 1e-5)
    for g, v in zip(torch.autograd.grad(got, one), torch.autograd.grad(want, two)):
        assert rms(g, v) < 1e-5


def test_distillation_refuses(device):
    x, w, _, _ = ce_problem(device, torch.float32, {})
    for more, text in (({"beta": 1.5}, "beta is 1.5"), ({"temperature": 0.0}, "temperature is 0"),
                       ({"softcap": -1.0}, "softcap is -1"),
                       ({"reduction": "none"}, "reduction is 'none'"), ({"linear_bias": w[0]}, "linear_bias has shape")):
        with pytest.raises(ridge.ArgumentError, match=text):
            R.linear_distill(x, w, x, w, **more)
    with pytest.raises(ridge.ArgumentError, match="teacher_weight has shape"):
        R.linear_distill(x, w, x, w[1:])


def logprobs64(hidden, head, ids, entropy=False, ignore_index=-100):
    logp, keep = (hidden @ head.T).log_softmax(-1), ids != ignore_index
    logprob = logp.gather(-1, ids.clamp(min=0)[..., None])[..., 0] * keep
    return (logprob, -(logp.exp() * logp).sum(-1) * keep) if entropy else logprob


def teacher_of(x, w, k):
    """(ids, log-probabilities) of the k likeliest classes"""
    logp, ids = (x.double() @ w.double().T).log_softmax(-1).topk(k, -1)
    return ids, logp.float()


def distilled64(kind, x, w, logq, ids, tail):
    logp, logq = (x @ w.T).log_softmax(-1).gather(-1, ids), logq.double()
    if tail:
        logp, logq = (torch.cat([t, (1 - t.exp().sum(-1, keepdim=True)).log()], -1) for t in (logp, logq))
    p, q = logp.exp(), logq.exp()
    if isinstance(kind, float):
        m = kind * q + (1 - kind) * p
        return (kind * q * (logq - m.log()) + (1 - kind) * p * (logp - m.log())).sum(-1)
    return (q * (logq - logp) if kind == "forward" else p * (logp - logq)).sum(-1)


@pytest.mark.parametrize("kind", ["forward", "reverse", 0.1, 0.5])
@pytest.mark.parametrize("tail", [False, True])
def test_distillation_from_k_classes(device, kind, tail, needs):
    x, w, _, _ = ce_problem(device, torch.float32, {})
    ids, logq = teacher_of(torch.randn_like(x), w, 16)
    one, two = leaves(x, w), leaves(x.double(), w.double())

    def divergence(ids):
        if isinstance(kind, float):
            return R.linear_jsd(*one, logq, ids, beta=kind, tail=tail)
        return R.linear_kl(*one, logq, ids, reverse=kind == "reverse", tail=tail)

    got, want = needs(lambda: divergence(ids)), distilled64(kind, *two, logq, ids, tail)
    near(got, want, 1e-5)
    up = torch.rand_like(got)
    for g, v in zip(torch.autograd.grad(got, one, up), torch.autograd.grad(want, two, up.double())):
        assert rms(g, v) < 1e-4
    if tail:
        assert (got > 0).all()
    some = ids.clone()
    some[0, 0] = -100
    partial = divergence(some)
    assert partial[0, 0] == 0 and torch.equal(partial[1:], got[1:])
    assert torch.autograd.grad(partial.sum(), one)[0][0, 0].abs().max() == 0


def test_distillation_of_a_teacher_without_mass(device, needs):
    """-inf of the teacher: nothing in the forward direction, infinity in the reverse one."""
    x, w, _, _ = ce_problem(device, torch.float32, {})
    ids, logq = teacher_of(x, w, 4)
    logq[..., 3] = -torch.inf
    (x,) = leaves(x)
    forward = needs(lambda: R.linear_kl(x, w, logq, ids))
    near(forward, R.linear_kl(x, w, logq[..., :3], ids[..., :3]), 1e-6)
    assert torch.autograd.grad(forward.sum(), x)[0].isfinite().all()
    assert R.linear_kl(x, w, logq, ids, reverse=True).isinf().all()
    with pytest.raises(ridge.ArgumentError, match="beta is 1.0"):
        R.linear_jsd(x, w, logq, ids, beta=1.0)
    with pytest.raises(ridge.ArgumentError, match="both must be"):
        R.linear_kl(x, w, logq, ids[..., :3])


def post_training():
    path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "post_training.py"
    spec = importlib.util.spec_from_file_location("post_training", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gradients_of_a_policy_that_sampled_itself(device, needs):
    """on_policy_loss and grpo_loss, whose ratio is 1."""
    x, w, t, _ = ce_problem(device, torch.float32, {})
    example, one, two = post_training(), leaves(x, w), leaves(x, w)
    mask, advantage = torch.rand(t.shape, device=device) < 0.7, torch.randn(t.shape[0], device=device)
    old = R.linear_logprobs(x, w, t)
    needs(lambda: example.on_policy_loss(*one, t, mask, advantage)).backward()
    example.grpo_loss(*two, t, mask, old, advantage).backward()
    for a, b in zip(one, two):
        assert rms(a.grad, b.grad.double()) < 1e-5


@pytest.mark.parametrize("name", ["grpo_loss", "dpo_loss", "orpo_loss"])
def test_examples_of_losses(device, name, monkeypatch, needs):
    """examples/post_training.py on ridge's log-probabilities and on those of float64 logits."""
    x, w, t, _ = ce_problem(device, torch.float32, {}, (6, 9))
    mask = torch.rand(t.shape, device=device) < 0.7
    mask[:, 0] = True
    more = {"grpo_loss": (torch.randn(t.shape, device=device) / 4 - 5, torch.randn(6, device=device), 0.2, 0.01),
            "dpo_loss": (torch.randn(6, device=device) - 30, 0.1), "orpo_loss": (0.5,)}[name]
    example, one, two = post_training(), leaves(x, w), leaves(x.double(), w.double())
    got = needs(lambda: getattr(example, name)(*one, t, mask, *more))
    monkeypatch.setattr(example, "linear_logprobs", logprobs64)
    want = getattr(example, name)(*two, t, mask, *(m.double() if isinstance(m, torch.Tensor) else m for m in more))
    near(got, want, 1e-5)
    for g, v in zip(torch.autograd.grad(got, one), torch.autograd.grad(want, two)):
        assert rms(g, v) < 1e-4


def objectives(x, w, t):
    """{name: a loss of (x, w, bias)}: every function of this package with gradients through the head, with its options."""
    more = {"softcap": 4.0, "temperature": 0.8}
    device, vocab = x.device, w.shape[0]
    ids, logq = teacher_of(torch.randn_like(x), w, 12)
    ids[0, 0], ids[1, 2, 3] = -100, -100  # a row and a class that do not count
    up, ups = torch.randn(t.shape, device=device), torch.randn(ids.shape, device=device)
    other, head, mask = torch.randn(*t.shape, 48, device=device), torch.randn(vocab, 48, device=device) / 6, t % 3 > 0
    smooth = {"weight": torch.rand(vocab, device=device), "label_smoothing": 0.1, "lse_square_scale": 1e-2}
    out = {"cross_entropy": lambda x, w, b: R.linear_cross_entropy(x, w, t, b, reduction="sum", **smooth, **more),
           "entropy": lambda x, w, b: (R.linear_entropy(x, w, b, mask, **more) * up).sum(),
           "weighted_nll": lambda x, w, b: R.linear_weighted_nll(x, w, t, up, b, **more)[0],
           "logprobs": lambda x, w, b: sum((v * up).sum() for v in R.linear_logprobs(x, w, t, b, entropy=True, **more)),
           "logprobs of ids": lambda x, w, b: (R.linear_logprobs(x, w, ids, b, **more) * ups).sum()}
    for tail in (False, True):
        for reverse in (False, True):
            out[f"kl {reverse} {tail}"] = lambda x, w, b, f={"reverse": reverse, "tail": tail}: (
                R.linear_kl(x, w, logq, ids, b, **f, **more) * up).sum()
        out[f"jsd {tail}"] = lambda x, w, b, f={"beta": 0.3, "tail": tail}: (R.linear_jsd(x, w, logq, ids, b, **f, **more) * up).sum()
    for beta in (0.0, 0.3, 1.0):
        out[f"distill {beta}"] = lambda x, w, b, f={"beta": beta, "teacher_softcap": 3.0, "reduction": "sum"}: R.linear_distill(
            x, w, other, head, b, None, mask, **f, **more)
    return out


def test_gradients_are_finite_differences(device, needs):
    """Along random directions in input, weight and bias, with softcap, temperature, and rows and classes that do not count. A gradient
    that is off by a part of its norm is off by about as much along such a direction; f32 leaves 1e-4 of it."""
    x, w, t, _ = ce_problem(device, torch.float32, {}, (4, 5), 32, 70)
    t[1, 3] = -100
    point = [x, w, torch.randn(70, device=device) / 2]
    for name, loss in objectives(x, w, t).items():
        one = leaves(*point)
        gradients = torch.autograd.grad(needs(lambda: loss(*one)), one)
        for _ in range(3):
            to = [torch.randn_like(p) for p in point]
            with torch.no_grad():
                difference = lambda h: (loss(*(p + h * d for p, d in zip(point, to)))
                                        - loss(*(p - h * d for p, d in zip(point, to)))).item() / (2 * h)
                slope = (4 * difference(2**-8) - difference(2**-7)) / 3
            along = sum((g.double() * d.double()).sum().item() for g, d in zip(gradients, to))
            norm = sum(g.double().square().sum().item() for g in gradients) ** 0.5
            assert abs(along - slope) < 1e-3 * norm, (name, along, slope, norm)


def trained(device, dtype, seed, loss):
    """Losses of 60 steps of a two-layer model, from the same weights and data for every dtype and loss."""
    g = torch.Generator().manual_seed(seed)
    vocab, width = 97, 32
    table = torch.randn(vocab, width, generator=g).to(device, dtype)
    params = [(torch.randn(*shape, generator=g) / shape[1] ** 0.5).to(device, dtype).requires_grad_()
              for shape in ((width, width), (width, width), (vocab, width))]
    after = torch.randperm(vocab, generator=g).to(device)
    optimizer, losses = torch.optim.AdamW(params, lr=1e-2), []
    for _ in range(60):
        now = torch.randint(0, vocab, (8, 16), generator=g).to(device)
        hidden = table[now]
        hidden = hidden + F.silu(hidden @ params[0].T) @ params[1].T
        value = loss(hidden, params[2], after[now])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return torch.tensor(losses, dtype=torch.float64)


def test_training_converges_as_in_float64(device, needs):
    """Three seeds: with ridge's f32 head the loss follows the one of float64 logits, far within what seeds make of it."""
    def objective(logprobs):
        def loss(hidden, head, target):
            logprob, entropy = logprobs(hidden, head, target, entropy=True)
            return -(logprob + 0.01 * entropy).mean()
        return loss

    ours = torch.stack([needs(lambda: trained(device, torch.float32, s, objective(R.linear_logprobs))) for s in range(3)])
    reference = torch.stack([trained(device, torch.float64, s, objective(logprobs64)) for s in range(3)])
    assert (reference[:, -1] < 0.5 * reference[:, 0]).all()
    spread = (reference[:, -10:].mean(-1).max() - reference[:, -10:].mean(-1).min()).item()
    off = (ours - reference).abs()
    assert off[:, :10].max() < 1e-4 and off[:, -10:].mean() < 0.1 * spread

"""torch_common.py: what the tests of ridge.torch share. They run on the CPU and, where there is one, on the GPU; an op without a
CUDA kernel in this build is skipped with the library's reason."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import torch.nn.functional as F  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no CUDA device"))]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ULP = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
on_devices = pytest.mark.parametrize("device", DEVICES)


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


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def swiglu64(a, b, activation="silu", gate_mul=1.0, down_mul=1.0, alpha=1.0, up_offset=0.0, limit=0.0, row_scale=None):
    a, b = a.double(), b.double()
    if limit:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    a = a * gate_mul
    h = {"silu": lambda: a * torch.sigmoid(alpha * a), "gelu": lambda: F.gelu(a), "relu2": lambda: F.relu(a) ** 2,
         "gelu_tanh": lambda: F.gelu(a, approximate="tanh")}[activation]()
    y = h * (b + up_offset) * down_mul
    return y if row_scale is None else y * row_scale.double()[..., None]


def ce_problem(device, dtype, options, rows=(7, 9), hidden=64, vocab=200):
    options = dict(options)
    x, w = torch.randn(*rows, hidden, device=device, dtype=dtype), torch.randn(vocab, hidden, device=device, dtype=dtype) / 8
    t = torch.randint(0, vocab, rows, device=device)
    if "weight" in options:
        options["weight"] = torch.rand(vocab, device=device)
    if "linear_bias" in options:
        options["linear_bias"] = torch.randn(vocab, device=device, dtype=dtype)
    return x, w, t, options


def spread(scale, mode, rows, cols):
    s = scale.double()
    if mode == "tensor":
        return s.view(1, 1).expand(rows, cols)
    if mode == "row":
        return s[:, None].expand(rows, cols)
    if mode == "row128":
        return s.T.repeat_interleave(128, 1)[:, :cols]
    return s.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]

"""What ridge.torch does with arguments that hold nothing or are of the wrong kind: tensors without memory (device meta) have
their results' shapes, and an option that is no number is refused on every way through the library."""
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
from torch_common import leaves, seed  # noqa: E402,F401

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def empty(*shape, dtype=F32, device="meta"):
    return torch.empty(shape, dtype=dtype, device=device)


def codes(x, mode):
    return [t.to("meta") for t in R.quantize_fp8(x, mode)]


def meta_calls():
    """Every public function: the call, and the shapes and dtypes of what it returns."""
    x, target = empty(6, 256, dtype=BF16), empty(6, dtype=torch.int64)
    a, b = codes(torch.zeros(6, 256), "row128"), codes(torch.zeros(128, 256), "blk128")
    linear = torch.nn.Linear(256, 128, device="meta", dtype=BF16)
    head, blocks = empty(100, 256, dtype=BF16), empty(8, 68, dtype=torch.uint8)
    planes = empty(8, 64, dtype=torch.int8), empty(8, 2, dtype=torch.float16)
    frozen = R.Fp8Linear.from_linear(torch.nn.Linear(256, 128, device="meta", dtype=BF16)).requires_grad_(False)
    halves = (6, 128), BF16
    return {
        "swiglu": (lambda: R.swiglu(x, x), [((6, 256), BF16)]),
        "swiglu of one": (lambda: R.swiglu(x), [halves]),
        "swiglu with row_scale": (lambda: R.swiglu(x, x, row_scale=empty(6)), [((6, 256), BF16)]),
        "swiglu_linear": (lambda: R.swiglu_linear(x, x, linear.weight, recompute=True), [halves]),
        "swiglu_linear, kept": (lambda: R.swiglu_linear(x, x, linear.weight, recompute=False), [halves]),
        "loss": (lambda: R.linear_cross_entropy(x, head, target), [((), F32)]),
        "loss of every row": (lambda: R.linear_cross_entropy(x, head, target, reduction="none"), [((6,), F32)]),
        "loss with all": (lambda: R.linear_cross_entropy(x, head, target, empty(100), empty(100), nan_if_empty=True), [((), F32)]),
        "quantize_fp8": (lambda: R.quantize_fp8(x), [((6, 256), FP8), ((2, 6), F32)]),
        "quantize_fp8_dual": (lambda: R.quantize_fp8_dual(x), [((6, 256), FP8), ((2, 6), F32), ((256, 6), FP8), ((1, 256), F32)]),
        "fp8_gemm": (lambda: R.fp8_gemm(*a, *b), [halves]),
        "fp8_gemm with bias": (lambda: R.fp8_gemm(*a, *b, bias=empty(128, dtype=BF16)), [halves]),
        "fp8_gemm into out": (lambda: R.fp8_gemm(*a, *b, out=empty(6, 128)), [((6, 128), F32)]),
        "q8_0_quantize": (lambda: R.q8_0_quantize(empty(8, 64)), [((8, 68), torch.uint8)]),
        "q8_0_repack": (lambda: R.q8_0_repack(blocks), [((8, 64), torch.int8), ((8, 2), torch.float16)]),
        "q8_0_matmul": (lambda: R.q8_0_matmul(empty(3, 64), blocks), [((3, 8), F32)]),
        "q8_0_matmul of planes": (lambda: R.q8_0_matmul(empty(3, 64), *planes, out_dtype=BF16), [((3, 8), BF16)]),
        "Fp8Linear": (lambda: R.Fp8Linear.from_linear(linear)(x), [halves]),
        "Fp8Linear, frozen": (lambda: frozen(x), [halves]),
        "Fp8Linear.swiglu": (lambda: R.Fp8Linear.from_linear(linear).swiglu(x, x), [halves]),
        "Fp8Linear on meta": (lambda: R.Fp8Linear(256, 128, device="meta")(x.float()), [((6, 128), F32)]),
        "Q8_0Linear": (lambda: R.Q8_0Linear.from_linear(torch.nn.Linear(64, 8, device="meta"))(empty(20, 64)), [((20, 8), F32)]),
        "swap_linear": (lambda: R.swap_linear(m := torch.nn.Sequential(linear)) and m(x), [halves]),
    }


@pytest.mark.parametrize("name", list(meta_calls()))
def test_meta(name):
    call, want = meta_calls()[name]
    got = call()
    got = got if isinstance(got, tuple) else (got,)
    assert [(tuple(t.shape), t.dtype) for t in got] == want and all(t.is_meta for t in got)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_meta_gradients(reduction):
    x, w, gate, up, weight = leaves(empty(6, 64), empty(100, 64), empty(6, 64), empty(6, 64), empty(16, 64))
    R.linear_cross_entropy(x, w, empty(6, dtype=torch.int64), reduction=reduction).sum().backward()
    R.swiglu(gate, up).sum().backward()
    R.swiglu_linear(gate, up, weight, recompute=True).sum().backward()
    layer = R.Fp8Linear(64, 16, device="meta")
    layer(x).sum().backward()
    for t in (x, w, gate, up, weight, layer.weight, layer.bias):
        assert t.grad.is_meta and t.grad.shape == t.shape and t.grad.dtype == t.dtype


def test_meta_and_memory():
    """Some operands on the CPU, others without memory."""
    here, there = (lambda *s, dtype=F32: torch.zeros(s, dtype=dtype)), empty
    q, b = R.quantize_fp8(here(4, 256)), R.quantize_fp8(here(128, 256), "blk128")
    wrong = [lambda: R.swiglu(here(4, 8), there(4, 8)), lambda: R.swiglu(there(4, 8), here(4, 8)),
             lambda: R.swiglu(here(4, 8), here(4, 8), row_scale=there(4)),
             lambda: R.swiglu_linear(here(4, 8), here(4, 8), there(16, 8)),
             lambda: R.linear_cross_entropy(here(6, 64), there(100, 64), here(6, dtype=torch.int64)),
             lambda: R.linear_cross_entropy(here(6, 64), here(100, 64), there(6, dtype=torch.int64)),
             lambda: R.fp8_gemm(*q, *(t.to("meta") for t in b)), lambda: R.fp8_gemm(*q, *b, out=there(4, 128)),
             lambda: R.q8_0_matmul(here(3, 64), there(8, 68, dtype=torch.uint8)),
             lambda: R.Fp8Linear(256, 128, device="meta")(here(4, 256))]
    for call in wrong:
        with pytest.raises(ridge.ArgumentError, match="tensors are on .* and on .*: move them to one device"):
            call()


def test_options_that_are_no_numbers():
    x, w, target, c = torch.zeros(6, 64), torch.zeros(100, 64), torch.zeros(6, dtype=torch.int64), torch.zeros(4, 256)
    half, q, p = torch.tensor(0.5), R.quantize_fp8(c), R.quantize_fp8(torch.zeros(128, 256), "blk128")
    losses = [lambda **o: R.linear_cross_entropy(x, w, target, **o), lambda **o: R.linear_cross_entropy(*leaves(x, w), target, **o),
              lambda **o: R.linear_cross_entropy(x, w, target, torch.zeros(100), **o),
              lambda **o: R.linear_cross_entropy(x, w, target, reduction="none", **o),
              lambda **o: R.linear_cross_entropy(x, w, target, nan_if_empty=True, **o),
              lambda **o: R.linear_cross_entropy(*leaves(x, w), target, torch.zeros(100), **o)]
    gates = [lambda **o: R.swiglu(c, c, **o), lambda **o: R.swiglu(*leaves(c, c), **o), lambda **o: R.swiglu(c, **o),
             lambda **o: R.swiglu(c, c, row_scale=torch.ones(4), **o), lambda **o: R.swiglu_linear(c, c, c, recompute=True, **o),
             lambda **o: R.swiglu_linear(c, c, c, recompute=False, **o), lambda **o: R.Fp8Linear(256, 128).swiglu(c, c, **o)]
    codes = [lambda **o: R.quantize_fp8(c, **o), lambda **o: R.quantize_fp8_dual(c, **o)]
    for calls, names in ((losses, ("label_smoothing", "softcap", "temperature", "lse_square_scale", "ignore_index")),
                         (gates, ("gate_mul", "down_mul", "alpha", "up_offset", "limit", "interleaved")), (codes, ("floor", "pow2"))):
        for call in calls:
            for name in names:
                for value, text in ((half, "a Tensor"), ([1.0], "a list"), ("a", "'a'"), (None, "None")):
                    if value is None and name == "ignore_index":  # as PyTorch's own: the default
                        continue
                    with pytest.raises(ridge.ArgumentError, match=f"{name} is {text}, not a number"):
                        call(**{name: value})
    for call, name in [(f, "activation") for f in gates] + [(f, "dtype") for f in codes] + [
            (losses[0], "reduction"), (lambda **o: R.fp8_gemm(*q, *p, **o), "scales"), (lambda **o: R.Fp8Linear(8, 8, **o), "wgrad"),
            (lambda **o: R.Fp8Linear(8, 8, **o), "gradient_dtype"),
            (lambda **o: R.fp8_gemm(*q, *p, bias=torch.zeros(128), **o), "scales")]:
        for value in (half, ["x"], "x", 3):
            with pytest.raises(ridge.ArgumentError, match=f"{name} is .*, not one of"):
                call(**{name: value})
    for call in (lambda: R.fp8_gemm(*q, *p, out_dtype="bf16"), lambda: R.fp8_gemm(*q, *p, out_dtype=[1]),
                 lambda: R.fp8_gemm(*q, *p, out_dtype=torch.complex64),
                 lambda: R.q8_0_matmul(x[:3], torch.zeros(8, 68, dtype=torch.uint8), out_dtype="x")):
        with pytest.raises(ridge.ArgumentError, match="out_dtype is .*, none of ridge's"):
            call()


def test_ignore_index_is_whole():
    """On every way: by a plan, by one that is there already for an equal number, with gradients, by the dispatcher."""
    x, w, target = torch.randn(6, 64), torch.randn(100, 64), torch.tensor([0, 1, 2, 0, 4, 5])
    calls = [lambda **o: R.linear_cross_entropy(x, w, target, **o), lambda **o: R.linear_cross_entropy(*leaves(x, w), target, **o),
             lambda **o: R.linear_cross_entropy(*leaves(x, w), target, reduction="none", **o).sum(),
             lambda **o: R.linear_cross_entropy(x, w, target, nan_if_empty=True, **o),
             lambda **o: R.linear_cross_entropy(x.to("meta"), w.to("meta"), target.to("meta"), **o)]
    for call in calls:
        want = call(ignore_index=0)
        for value in (2**64, 2**63, -2**63 - 1, 0.5, float("nan"), float("inf"), np.float32(0.5)):
            for _ in range(2):
                with pytest.raises(ridge.ArgumentError, match="ignore_index is .*, not a whole number from"):
                    call(ignore_index=value)
        for value in (0, 0.0, np.int64(0), False, np.False_):
            assert want.is_meta or torch.equal(call(ignore_index=value), want)
        for value in (2**63 - 1, -2**63):
            call(ignore_index=value)


def test_dynamic_ignore_index_compiles():
    x, w, target = torch.randn(6, 64), torch.randn(100, 64), torch.tensor([0, 1, 2, 3, 4, 5])

    def loss(i):
        return R.linear_cross_entropy(x, w, target, ignore_index=i)

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for i in (3, 5):
        torch.testing.assert_close(compiled(i), loss(i))
    with pytest.raises(ridge.ArgumentError, match="ignore_index is 0.5, not a whole number from"):
        torch.compile(loss, backend="aot_eager")(0.5)


def test_numpy_bools():
    """As Python's, before and after a plan for the equal one was made."""
    x, w, target = torch.randn(4, 256), torch.randn(100, 256), torch.zeros(4, dtype=torch.int64)
    calls = [lambda b: R.swiglu(x, interleaved=b), lambda b: R.swiglu(*leaves(x), interleaved=b),
             lambda b: R.swiglu(x, x, row_scale=torch.ones(4), round_gate=b), lambda b: R.quantize_fp8(x, pow2=b)[1],
             lambda b: R.swiglu_linear(x, None, torch.ones(8, 128), interleaved=b, recompute=True),
             lambda b: R.linear_cross_entropy(x, w, target, softcap=b), lambda b: R.quantize_fp8_dual(x, pow2=b)[1]]
    for call in calls:
        first = call(np.True_)
        assert torch.equal(first, call(True)) and torch.equal(call(np.True_), first)
    assert R.swiglu(x.to("meta"), interleaved=np.True_).shape == (4, 128)


class TestAdvice:
    """A warning, once, where PyTorch's own path is predicted to be faster."""

    EXPLAINED = "gemm_fp8 m=8192 on sm100 (x)\n  cuda.gemm_fp8.a  no: y\n* cuda.gemm_fp8.b  can run; predicted 3000.00 us, workspace 0 bytes\n"

    def properties(self, **values):
        import types
        return types.SimpleNamespace(**{"major": 10, "minor": 0, "name": "NVIDIA B200", "multi_processor_count": 148,
                                        "clock_rate": 1965000, **values})

    def form(self, op):
        import types
        return types.SimpleNamespace(op=op, call=lambda values: values)

    def consider(self, monkeypatch, op, dims, **values):
        import types
        from ridge.torch import _advice
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: self.properties(**values))
        monkeypatch.setattr(_advice, "done", set())
        device = types.SimpleNamespace(explain=lambda call: self.EXPLAINED)
        return lambda: _advice.consider(device, self.form(op), dims, 0)

    def test_slower_is_said_once(self, monkeypatch):
        consider = self.consider(monkeypatch, "gemm_fp8", (8192, 8192, 8192))
        with pytest.warns(UserWarning, match="gemm_fp8 on NVIDIA B200: predicted 3 ms where PyTorch's products alone take about 0.308 ms"):
            consider()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            consider()

    def test_a_longer_call_is_judged_too(self, monkeypatch):
        from ridge.torch import _advice
        consider = self.consider(monkeypatch, "gemm_fp8", (65536, 8192, 65536))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            consider()  # 3 ms are good for so many operations
        import types
        device = types.SimpleNamespace(explain=lambda call: self.EXPLAINED)
        with pytest.warns(UserWarning, match="gemm_fp8"):
            _advice.consider(device, self.form("gemm_fp8"), (8192, 8192, 8192), 0)

    @pytest.mark.parametrize("dims, values", [((64, 8192, 8192), {}), ((8192, 8192, 8192), {"major": 9}),
                                              ((65536, 8192, 65536), {"major": 8, "minor": 0, "multi_processor_count": 108})])
    def test_short_unknown_or_faster_is_not(self, monkeypatch, dims, values):
        consider = self.consider(monkeypatch, "gemm_fp8", dims, **values)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            consider()

"""The numpy functions against float64: that every operand, option and layout reaches the library in its place. The kernels'
own numerics are `ridge test`'s business."""
import copy
import gc
import os
import struct

import numpy as np
import pytest
import ridge

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: bf16 and fp8 have no numpy types")
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
random = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


def close(got, want, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rtol, atol=atol)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype,rtol", [(np.float32, 1e-5), (np.float16, 2e-3), (BF16, 1e-2)])
@pytest.mark.parametrize("shape", [(5, 96), (2, 3, 64), (0, 64), (64,)])
def test_swiglu(dtype, rtol, shape):
    a, b = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    x, y = a.astype(np.float64), b.astype(np.float64)
    got = ridge.swiglu(a, b)
    assert got.dtype == a.dtype and got.shape == a.shape
    close(got, x * sigmoid(x) * y, rtol, rtol)


def test_swiglu_layouts_agree():
    a, b = normal(6, 64), normal(6, 64)
    want, dwant = ridge.swiglu(a, b), ridge.swiglu_backward(a + b, a, b)
    halves, woven = np.concatenate([a, b], 1), np.stack([a, b], 2).reshape(6, 128)
    assert np.array_equal(ridge.swiglu(halves), want)
    assert np.array_equal(ridge.swiglu(woven, interleaved=True), want)
    assert np.array_equal(ridge.swiglu(halves[:, :64], halves[:, 64:]), want)  # by stride
    assert np.array_equal(ridge.swiglu(a.T.copy().T, np.flip(b, 0)[::-1]), want)  # copied
    assert np.array_equal(ridge.swiglu_backward(a + b, halves)[0], np.concatenate(dwant, 1))
    d = ridge.swiglu_backward(a + b, woven, interleaved=True)[0].reshape(6, 64, 2)
    assert np.array_equal(d[..., 0], dwant[0]) and np.array_equal(d[..., 1], dwant[1])
    one = np.broadcast_to(a[:1], a.shape)  # stride 0 means packed to the library
    assert np.array_equal(ridge.swiglu(one, b), ridge.swiglu(one.copy(), b))


def test_swiglu_options():
    a, b, w = normal(6, 64), normal(6, 64), normal(6)
    x, y = np.minimum(a.astype(np.float64), 0.8), np.clip(b.astype(np.float64), -0.8, 0.8)
    z = x * 1.5
    got = ridge.swiglu(a, b, gate_mul=1.5, down_mul=0.5, alpha=1.702, up_offset=1.0, limit=0.8, row_scale=w)
    close(got, z * sigmoid(1.702 * z) * (y + 1) * 0.5 * w[:, None])
    close(ridge.swiglu(a, b, activation="relu2"), np.maximum(a, 0).astype(np.float64) ** 2 * b)


def test_workspace_of_each_layout():
    """Kernels take other layouts with less workspace: what is remembered of one must not be what the other gets."""
    from ridge import _abi as A, _core
    device = _core.Device("model:sm90")
    form = _core.form("linear_ce_train")

    def need(stride=0, offset=0):
        operands = {"x": A.BF16, "w": A.BF16, "target": A.I64, "loss": A.F32, "dx": A.BF16, "dw": A.F32}
        values = [0] * (6 + 3 * form.slots)
        values[:3] = 1024, 4096, 32000
        for i, (name, dtype) in enumerate(operands.items()):
            at = 6 + 3 * A.SLOTS["linear_ce_train"][name]
            values[at:at + 3] = (i + 1 << 40) + (offset if name == "x" else 0), stride if name == "x" else 0, dtype
        assert form.workspace(device, tuple(values)) == device.workspace_bytes(form.call(tuple(values)))

    try:
        for layout in ((4099,), (), (0, 2), (4104,), ()):
            need(*layout)
    except ridge.UnsupportedError as error:  # a library without CUDA rows
        pytest.skip(str(error))


def test_zeros_keep_their_sign():
    a, b = normal(2, 8), normal(2, 8)
    for zero in (0.0, -0.0, 0.0, -0.0):  # equal, with one hash
        assert np.array_equal(np.signbit(ridge.swiglu(a, b, gate_mul=zero)), np.signbit(a) ^ np.signbit(b) ^ np.signbit(zero))
    scale = np.ones(())
    for value in (1.0, 2.0):  # an option is its value now, not the object
        scale[...] = value
        close(ridge.swiglu(a, b, down_mul=scale), ridge.swiglu(a, b, down_mul=value))
    with pytest.raises(ridge.ArgumentError, match="not all of them are numbers"):
        ridge.swiglu(a, b, limit="0")


def test_swiglu_backward():
    a, b, dy = normal(6, 64), normal(6, 64), normal(6, 64)
    x, y, d = (t.astype(np.float64) for t in (a, b, dy))
    s = sigmoid(x)
    da, db = ridge.swiglu_backward(dy, a, b)
    close(da, d * y * s * (1 + x * (1 - s)), 1e-4, 1e-5)
    close(db, d * x * s, 1e-4, 1e-5)


@pytest.mark.parametrize("scale,shape", [("tensor", (1,)), ("row", (70,)), ("row128", (3, 70)), ("blk128", (1, 3))])
@pytest.mark.parametrize("dtype,number,top", [("e4m3", E4M3, 448), ("e5m2", E5M2, 57344)])
def test_quantize(scale, shape, dtype, number, top):
    x = normal(70, 300)
    q, s = ridge.quantize_fp8(x, scale, dtype)
    assert q.dtype == number and q.shape == x.shape and s.shape == shape
    wide = {"tensor": lambda: np.broadcast_to(s[0], x.shape), "row": lambda: np.broadcast_to(s[:, None], x.shape),
            "row128": lambda: np.repeat(s.T, 128, 1)[:, :300],
            "blk128": lambda: np.repeat(np.repeat(s, 128, 0), 128, 1)[:70, :300]}[scale]()
    close(q.astype(np.float64) * wide, x, 0.13, top / 2**15 * float(s.max()))
    assert np.abs(q.astype(np.float32)).max() == top


def test_dual_and_gemm():
    """One linear layer's forward, dgrad and wgrad from the dual forms, each against its own dequantised operands."""
    m, n, k = 144, 256, 192
    x, w, g = normal(m, k, dtype=BF16), normal(n, k, dtype=BF16), normal(m, n, dtype=BF16)
    xq, xs, xtq, xts = ridge.quantize_fp8_dual(x)
    wq, ws, wtq, wts = ridge.quantize_fp8_dual(w, "blk_blk")
    gq, gs, gtq, gts = ridge.quantize_fp8_dual(g)
    x, w, g = (t.astype(np.float64) for t in (x, w, g))

    def near(got, want):
        assert np.linalg.norm(got.astype(np.float64) - want) <= 0.06 * np.linalg.norm(want)

    bias = normal(n)
    near(ridge.fp8_gemm(xq, xs, wq, ws, bias=bias), x @ w.T + bias)
    near(ridge.fp8_gemm(gq, gs, wtq, wts), g @ w)
    near(ridge.fp8_gemm(gtq, gts, xtq, xts, scales="row128_row128", out_dtype="bf16"), g.T @ x)
    q, s = ridge.quantize_fp8(normal(4, 64), "row")
    p, t = ridge.quantize_fp8(normal(8, 64), "row", "e5m2")
    want = (q.astype(np.float64) * s[:, None]) @ (p.astype(np.float64) * t[:, None]).T
    close(ridge.fp8_gemm(q, s, p, t, scales="row_row"), want)
    p, t = ridge.quantize_fp8(normal(8, 64), "tensor")
    close(ridge.fp8_gemm(q, s, p, t, scales="row_tensor"), (q.astype(np.float64) * s[:, None]) @ (p.astype(np.float64) * t).T)
    close(ridge.fp8_gemm(p, t, q, s, scales="tensor_row"), (p.astype(np.float64) * t) @ (q.astype(np.float64) * s[:, None]).T)
    assert np.array_equal(ridge.fp8_gemm(xq, xs.T.copy(), wq, ws, scales="row128t_blk128"), ridge.fp8_gemm(xq, xs, wq, ws))


def test_grouped_gemm():
    x, w = normal(300, 256), normal(3, 128, 256)
    (xq, xs), (wq, ws) = ridge.quantize_fp8(x), ridge.quantize_fp8(w.reshape(384, 256), "blk128")
    wq, ws, offsets = wq.reshape(3, 128, 256), ws.reshape(3, 1, 2), np.array([0, 100, 100, 300])
    y = ridge.gemm_fp8_grouped(xq, xs, wq, ws, offsets)
    for g in range(3):
        rows = slice(offsets[g], offsets[g + 1])
        assert np.array_equal(y[rows], ridge.fp8_gemm(xq[rows], xs[:, rows].copy(), wq[g], ws[g]))
    y = ridge.gemm_fp8_grouped(xq.reshape(3, 100, 256), xs, wq, ws, np.array([7, 0, 100], np.int32), mode="masked")
    assert np.array_equal(y[2], ridge.fp8_gemm(xq[200:], xs[:, 200:].copy(), wq[2], ws[2]))
    (rq, rs), (vq, vs) = ridge.quantize_fp8(x, "row"), ridge.quantize_fp8(w.reshape(384, 256), "row")
    y = ridge.gemm_fp8_grouped(rq, rs, vq.reshape(3, 128, 256), vs.reshape(3, 128), offsets, scales="row")
    assert np.array_equal(y[100:], ridge.fp8_gemm(rq[100:], rs[100:], vq[256:], vs[256:], scales="row"))
    y = ridge.gemm_fp8_grouped(rq, rs, vq.reshape(3, 128, 256), vs[:3].copy(), offsets, scales="row_tensor")
    assert np.array_equal(y[100:], ridge.fp8_gemm(rq[100:], rs[100:], vq[256:], vs[2:3].copy(), scales="row_tensor"))
    (gq, gs), (tq, ts) = ridge.quantize_fp8(x[:96]), ridge.quantize_fp8(x[96:160])
    dw = ridge.gemm_fp8_grouped(gq, gs, tq, ts, np.array([0, 128, 128, 256]), mode="k")
    assert not dw[1].any() and np.array_equal(dw[0], ridge.fp8_gemm(gq[:, :128], gs[:1], tq[:, :128], ts[:1],
                                                                    scales="row128_row128"))
    again = ridge.gemm_fp8_grouped(gq, gs, tq, ts, np.array([0, 128, 128, 256]), mode="k", out=dw.copy())
    assert np.array_equal(again, dw + dw)
    rows = np.stack([2 * rs[:96], rs[:96], rs[:96]]), np.stack([rs[96:160], rs[96:160], 4 * rs[96:160]])
    dw = ridge.gemm_fp8_grouped(rq[:96], rows[0], rq[96:160], rows[1], np.array([0, 128, 128, 256]), mode="k", scales="row")
    assert np.array_equal(dw[2], ridge.fp8_gemm(rq[:96, 128:], rows[0][2], rq[96:160, 128:], rows[1][2], scales="row"))
    dw = ridge.gemm_fp8_grouped(rq[:96], rs[:1], rq[96:160], rs[96:97], np.array([0, 128, 128, 256]), mode="k", scales="tensor")
    assert np.array_equal(dw[0], ridge.fp8_gemm(rq[:96, :128], rs[:1], rq[96:160, :128], rs[96:97], scales="tensor"))
    bias = normal(3, 128)
    y = ridge.gemm_fp8_grouped(xq, xs, wq, ws, offsets, bias=bias)
    assert np.array_equal(y[100:], ridge.fp8_gemm(xq[100:], xs[:, 100:].copy(), wq[2], ws[2], bias=bias[2]))
    for wrong in ([0, 200, 100, 300], [-1, 0, 1, 2], [0, 1, 2, 301]):
        with pytest.raises(ridge.ArgumentError, match="offsets of group"):
            ridge.gemm_fp8_grouped(xq, xs, wq, ws, np.array(wrong))


def test_q8_0():
    x, w = normal(3, 128), normal(40, 128)
    b = ridge.q8_0_quantize(w)
    codes, scales = ridge.q8_0_repack(b)
    got = ridge.q8_0_matmul(x, b)
    assert np.array_equal(got, ridge.q8_0_matmul(x, codes, scales))
    assert np.abs(got - x @ w.T).max() < 0.5
    assert ridge.q8_0_matmul(x.astype(BF16), codes, scales, out_dtype="bf16").dtype == BF16


def test_read_gguf(tmp_path):
    """A minimal GGUF file of one Q8_0 tensor; the format's rules are ridge_io's own tests' business."""
    from ridge import _io
    try:
        _io._library()
    except ImportError as error:
        pytest.skip(str(error))
    blocks = ridge.q8_0_quantize(normal(6, 64))
    text = b"w.weight"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(text)) + text
    head += struct.pack("<IQQIQ", 2, 64, 6, 8, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + blocks.tobytes())
    assert np.array_equal(_io.read_q8_0(path, "w.weight"), blocks)
    odd = os.path.join(os.fsencode(tmp_path), b"\xff.gguf")  # a name that is no UTF-8, as bytes and as Python's text
    os.link(path, odd)
    assert np.array_equal(_io.read_q8_0(odd, "w.weight"), blocks)
    assert np.array_equal(_io.read_q8_0(os.fsdecode(odd), "w.weight"), blocks)
    with _io.File(path) as file:
        assert file.names() == ["w.weight"]
    with pytest.raises(ridge.ArgumentError, match="no tensor 'x'"):
        _io.read_q8_0(path, "x")
    for wrong, kind, text in ((lambda: _io.read_q8_0(path, "w.weight\0x"), ridge.ArgumentError, "NUL character"),
                              (lambda: _io.File(f"{path}\0x"), ridge.ArgumentError, "NUL character"),
                              (lambda: _io.read_q8_0(path, None), TypeError, "the tensor's name is a NoneType, not a str"),
                              (lambda: file.read("w.weight"), ridge.ArgumentError, "m.gguf is closed"),
                              (file.names, ridge.ArgumentError, "m.gguf is closed")):
        with pytest.raises(kind, match=text):
            wrong()
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        file = _io.File(path)
        twin = copy.deepcopy(file)
        file.close()
        assert twin.names() == ["w.weight"]
    del file, twin
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == opened  # a file that is dropped is closed
    path.write_bytes(b"GGUF nonsense")
    with pytest.raises(ridge.FileError, match="m.gguf"):
        _io.read_q8_0(path, "w.weight")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy(reduction):
    x, w, t = normal(20, 32), normal(50, 32), random.integers(0, 50, 20)
    t[3] = t[9] = -1
    z = x.astype(np.float64) @ w.T.astype(np.float64)
    keep = t != -1
    rows = np.where(keep, np.log(np.exp(z).sum(1)) - z[np.arange(20), np.maximum(t, 0)], 0)
    want = {"mean": rows.sum() / keep.sum(), "sum": rows.sum(), "none": rows}[reduction]
    close(ridge.linear_cross_entropy(x, w, t, ignore_index=-1, reduction=reduction), want)
    if reduction == "none":
        return
    loss, dx, dw = ridge.linear_cross_entropy(x, w, t, ignore_index=-1, reduction=reduction, gradients=True)
    close(loss, want)
    p = np.exp(z - np.log(np.exp(z).sum(1))[:, None])
    p[np.arange(20)[keep], t[keep]] -= 1
    p *= keep[:, None] / (keep.sum() if reduction == "mean" else 1)
    close(dx, p @ w, 1e-4, 1e-5)
    close(dw, p.T @ x, 1e-4, 1e-5)


def test_linear_cross_entropy_options():
    x, w, b, cw = normal(20, 32), normal(50, 32), normal(50), random.random(50).astype(np.float32)
    t = random.integers(0, 50, 20).astype(np.int32)
    z = 3 * np.tanh((x.astype(np.float64) @ w.T + b) / 3) / 0.7
    lse = np.log(np.exp(z).sum(1))
    ce = 0.9 * cw[t] * (lse - z[np.arange(20), t]) + 0.1 / 50 * (cw * (lse[:, None] - z)).sum(1)
    got = ridge.linear_cross_entropy(x, w, t, bias=b, class_weight=cw, label_smoothing=0.1, softcap=3.0, temperature=0.7,
                                     lse_square_scale=0.01)
    close(got, ce.sum() / cw[t].sum() + 0.01 * (lse**2).mean())


def test_rms_norm():
    x, w = normal(4, 3, 96), normal(96)
    x64 = x.astype(np.float64)
    close(ridge.rms_norm(x, w, 1e-5), x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * w)


@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
def test_rope(pairs):
    (freqs, mscale), x, at = ridge.rope_freqs(32, 1e4), normal(2, 5, 3, 64), random.integers(0, 99999, (2, 5))
    assert mscale == 1 and np.allclose(freqs, 1e4 ** (-np.arange(0, 32, 2) / 32)) and freqs.dtype == np.float64
    c, s = np.cos(at[..., None, None] * freqs), np.sin(at[..., None, None] * freqs)
    a, b = (x[..., :16], x[..., 16:32]) if pairs == "halves" else (x[..., :32:2], x[..., 1:32:2])
    got = ridge.rope(x, at, freqs, pairs=pairs)
    p, q = (got[..., :16], got[..., 16:32]) if pairs == "halves" else (got[..., :32:2], got[..., 1:32:2])
    close(p, a * c - b * s)
    close(q, a * s + b * c)
    assert np.array_equal(got[..., 32:], x[..., 32:])
    close(ridge.rope(got, at, freqs, pairs=pairs, inverse=True), x)
    assert ridge.rope_freqs(64, yarn={"freq_scale": 0.25, "original_context": 4096})[1] > 1


def test_errors():
    a = normal(4, 64)
    wrong = [(lambda: ridge.swiglu(a, a[:2]), "up has shape"), (lambda: ridge.swiglu(a, a.astype(np.float16)), "dtype f16"),
             (lambda: ridge.swiglu(a.astype(np.int64), a), "gate has dtype i64"),
             (lambda: ridge.swiglu(a, a.astype(a.dtype.newbyteorder())), "another byte order"),
             (lambda: ridge.swiglu(a, a, activation="tanh"), "activation is 'tanh'"),
             (lambda: ridge.swiglu(a, a, limit=-1.0), "limit"), (lambda: ridge.swiglu(normal(4, 63)), "even last dimension"),
             (lambda: ridge.swiglu(a, a, row_scale=a[0]), "row_scale has shape"),
             (lambda: ridge.swiglu_backward(a, a, a[:, :8]), "up has shape"),
             (lambda: ridge.swiglu_backward(a, a, a, row_scale=a[0]), "row_scale has shape"),
             (lambda: ridge.rms_norm(a, a[0, :3]), "weight has shape"), (lambda: ridge.rms_norm(a[0, 0]), "no dimensions"),
             (lambda: ridge.q8_0_matmul(a, *(t[:, :1] for t in ridge.q8_0_repack(ridge.q8_0_quantize(a)))), "columns"),
             (lambda: ridge.q8_0_matmul(a, ridge.q8_0_repack(ridge.q8_0_quantize(a))[0], a[:1, :1]), "scales has shape"),
             (lambda: ridge.quantize_fp8(a, "block"), "scale is 'block'"), (lambda: ridge.quantize_fp8(a[0]), "two dimensions"),
             (lambda: ridge.q8_0_matmul(a, ridge.q8_0_quantize(normal(4, 96))), "columns"),
             (lambda: ridge.linear_cross_entropy(a, a[:, :32], np.zeros(4, np.int64)), "columns"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.float32)), "target"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), reduction="all"), "reduction is 'all'"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), label_smoothing=2.0), "label_smoothing"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), softcap="a"), "softcap is 'a', not a number"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), softcap="3"), "softcap is '3', not a number"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), gradients="no"), "gradients is 'no', not a number"),
             (lambda: ridge.swiglu(a, a, activation=["silu"]), "activation is \\['silu'\\], not one of"),
             (lambda: ridge.swiglu(a, interleaved="no"), "interleaved is 'no', not a number"),
             (lambda: ridge.swiglu_backward(a, a, a, round_gate=[]), "round_gate is a list, not a number"),
             (lambda: ridge.quantize_fp8(a, ["row"]), "scale is \\['row'\\], not one of"),
             (lambda: ridge.quantize_fp8_dual(a, ["row_row"]), "form is \\['row_row'\\], not one of"),
             (lambda: ridge.quantize_fp8(a, pow2="no"), "pow2 is 'no', not a number"),
             (lambda: ridge.quantize_fp8_dual(a, pow2="no"), "pow2 is 'no', not a number"),
             (lambda: ridge.quantize_fp8(a, dtype=None), "dtype None is none of ridge's"),
             (lambda: ridge.quantize_fp8(a, floor=None), "floor is None, not a number"),
             (lambda: ridge.quantize_fp8(a, dtype="e9"), "dtype e9 is none of ridge's"),
             (lambda: ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), reduction="none", gradients=True),
              "gradients of reduction 'none'"),
             (lambda: ridge.rms_norm(a, eps=[1]), "eps is \\[1\\], not a number")]
    for call, text in wrong:
        with pytest.raises(ridge.ArgumentError, match=text):
            call()
    for value in (2**64, 2**63, -2**63 - 1, 0.5, float("nan"), float("inf"), "0", None, np.float32(0.5)):
        with pytest.raises(ridge.ArgumentError, match="ignore_index is .*, not a whole number from"):
            ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), ignore_index=value)
    for value in (np.int32(0), False, -2**63, 2**63 - 1):
        ridge.linear_cross_entropy(a, a, np.zeros(4, np.int64), ignore_index=value)
    assert np.array_equal(ridge.swiglu(a, interleaved=np.True_), ridge.swiglu(a, interleaved=True))
    for call, text in ((lambda: ridge.swiglu([[1.0]]), "ridge.swiglu: gate is a list, not a numpy.ndarray"),
                       (lambda: ridge.rms_norm(a, "w"), "weight is a str, not a numpy.ndarray or None"),
                       (lambda: ridge.swiglu(a, np.ma.masked_less(a, 0)), "up is a masked array, whose mask would be ignored"),
                       (lambda: ridge.rms_norm(np.ma.masked_less(a, 0)), "x is a masked array")):
        with pytest.raises(TypeError, match=text):
            call()

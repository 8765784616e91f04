"""ridge.jax against float64: values and gradients, jit, vmap, errors, and the layout of XLA's call interface."""
import functools
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402
import ridge  # noqa: E402
import ridge.jax as R  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
random = np.random.default_rng(3)


def cuda():
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


PLACES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not cuda(), reason="JAX has no CUDA device"))]


@pytest.fixture(params=PLACES)
def place(request):
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


def needs(function):
    """Calls; where this build has no kernel for the device, the test is skipped with the library's text."""
    try:
        return jax.block_until_ready(function())
    except (ridge.UnsupportedError, jax.errors.JaxRuntimeError) as error:
        if "no kernel of this build" not in str(error):
            raise
        pytest.skip(str(error)[:300])


def normal(*shape, dtype=np.float32):
    return jnp.asarray(random.standard_normal(shape), dtype)


def close(got, want, limit):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= limit * max(np.linalg.norm(want), 1e-6), np.abs(got - want).max()


@pytest.mark.parametrize("dtype,limit", [(np.float32, 1e-6), (jnp.bfloat16, 4e-3), (np.float16, 1e-3)])
@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 64), (64,)])
def test_swiglu(place, dtype, limit, shape):
    a, b, d = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    x, y, e = (np.asarray(t, np.float64) for t in (a, b, d))
    s = 1 / (1 + np.exp(-x))
    for f in (R.swiglu, jax.jit(R.swiglu)):
        got, back = jax.vjp(f, a, b)
        assert got.dtype == a.dtype
        close(got, x * s * y, limit)
        da, db = back(d)
        close(da, e * y * s * (1 + x * (1 - s)), limit)
        close(db, e * x * s, limit)


def test_zeros_keep_their_sign(place):
    a, b = normal(2, 8), normal(2, 8)
    for zero in (0.0, -0.0, 0.0, -0.0):  # equal, with one hash
        one = functools.partial(R.swiglu, gate_mul=zero)
        for f in (one, jax.jit(lambda x, y: one(x, y))):
            out, back = jax.vjp(f, a, b)
            assert np.array_equal(np.signbit(out), np.signbit(a) ^ np.signbit(b) ^ np.signbit(zero))
            assert np.array_equal(np.signbit(back(np.ones_like(a))[1]), np.signbit(a) ^ np.signbit(zero))


def test_swiglu_options_and_vmap(place):
    a, b = normal(4, 6, 64), normal(4, 6, 64)
    want = R.swiglu(a, b)
    assert jnp.array_equal(jax.vmap(R.swiglu)(a, b), want)
    assert jnp.array_equal(R.swiglu(a[:, :, ::-1].T.T[:, :, ::-1], b), want)
    close(R.swiglu(a, b, activation="gelu"), jax.nn.gelu(a, approximate=False) * b, 1e-6)
    close(R.swiglu(a, b, limit=0.5, gate_mul=2.0), jax.nn.silu(2 * jnp.minimum(a, 0.5)) * jnp.clip(b, -0.5, 0.5), 1e-6)
    eager = jax.nn.silu(a.astype(jnp.bfloat16)) * b.astype(jnp.bfloat16)
    close(R.swiglu(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), round_gate=True), eager, 8e-3)


def loss64(x, t, w, reduction, bias=0.0, smoothing=0.0, softcap=0.0, ignore=-100, square=0.0):
    z = x @ w + bias
    z = softcap * jnp.tanh(z / softcap) if softcap else z
    lse = jax.nn.logsumexp(z, -1)
    row = (1 - smoothing) * (lse - jnp.take_along_axis(z, jnp.maximum(t, 0)[..., None], -1)[..., 0]) + \
        smoothing * (lse[..., None] - z).mean(-1) + square * lse**2
    row = jnp.where(t == ignore, 0, row)
    return row if reduction == "none" else row.sum() / (1 if reduction == "sum" else (t != ignore).sum())


@pytest.mark.parametrize("dtype,limit", [(np.float32, 1e-5), (jnp.bfloat16, 1e-2)])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("options", [{}, {"bias": True, "label_smoothing": 0.1}, {"softcap": 4.0, "lse_square_scale": 0.01}])
def test_loss(place, dtype, limit, reduction, options):
    x, w = normal(3, 7, 32, dtype=dtype), (normal(32, 90) / 4).astype(dtype)
    t = jnp.asarray(random.integers(0, 90, (3, 7)), jnp.int32).at[1, 2].set(-100)
    kw = dict(options)
    bias = normal(90) if kw.pop("bias", None) else None
    names = {"label_smoothing": "smoothing", "lse_square_scale": "square"}

    def got(x, w, b):
        return R.linear_softmax_cross_entropy_loss(x, t, w, reduction=reduction, bias=b, **kw)

    def want(x, w, b):
        return loss64(x, t, w, reduction, 0.0 if b is None else b, **{names.get(k, k): v for k, v in kw.items()})

    needs(lambda: got(x, w, bias))
    value, back = jax.vjp(got, x, w, bias)
    d = 3 * jnp.abs(normal(*value.shape))
    with jax.enable_x64(True):
        wide = [None if v is None else jnp.asarray(np.asarray(v, np.float64)) for v in (x, w, bias)]
        value64, back64 = jax.vjp(want, *wide)
        gradients64 = back64(jnp.asarray(np.asarray(d, np.float64)))
    close(value, value64, limit)
    close(got(x, w, bias), value64, limit)  # without a gradient
    for g, v, leaf in zip(back(d), gradients64, (x, w, bias)):
        if leaf is not None:
            assert g.dtype == leaf.dtype
            close(g, v, limit)
    step = jax.jit(jax.value_and_grad(lambda x, w: got(x, w, bias).sum(), argnums=(0, 1)))
    assert all(jnp.array_equal(p, q) for p, q in zip(step(x, w)[1], step(x, w)[1]))


def test_twice_and_remat(place):
    x, w, t = normal(20, 32), normal(32, 50), jnp.asarray(random.integers(0, 50, 20), jnp.int32)
    f = lambda x: R.linear_softmax_cross_entropy_loss(R.swiglu(x, x), t, w)  # noqa: E731
    close(needs(lambda: jax.grad(jax.checkpoint(f))(x)), jax.grad(f)(x), 1e-6)
    value, back = jax.vjp(f, x)
    assert all(jnp.array_equal(p, q) for p, q in zip(back(value), back(value)))


COMMAND_BUFFER = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp, numpy as np
import ridge.jax as R
random = np.random.default_rng(1)
f = jax.jit(lambda a, b: R.swiglu(R.swiglu(a, b) + b, R.swiglu(b, a)))
for _ in range(4):  # traced, captured, replayed with other buffers
    a, b = (jnp.asarray(random.standard_normal((64, 256)), jnp.float32) for _ in range(2))
    got = np.asarray(f(a, b), np.float64)
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    two = lambda g, u: g / (1 + np.exp(-g)) * u
    want = two(two(x, y) + y, two(y, x))
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
"""


def test_command_buffer(place, tmp_path):
    """XLA captures the calls into a command buffer (a CUDA graph) where it is told to, and replays it."""
    if place != "cuda":
        pytest.skip("command buffers need a CUDA device")
    flags = ("--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1 "
             f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text")
    env = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-c", COMMAND_BUFFER, os.path.join(HERE, "..")], env=env, capture_output=True, text=True,
                          timeout=120)
    if "Unknown flag" in done.stderr:
        pytest.skip("this XLA has other flags for command buffers")
    assert done.returncode == 0, done.stderr[-2000:]
    text = "".join(path.read_text(errors="replace") for path in tmp_path.iterdir() if path.suffix == ".txt")
    assert "command_buffer" in text, "no command buffer was made"


@pytest.mark.parametrize("dtype,limit", [(np.float32, 2e-6), (jnp.bfloat16, 8e-3), (np.float16, 2e-3)])
@pytest.mark.parametrize("weighted", [True, False])
def test_norm(place, dtype, limit, weighted):
    """rms_norm and add_rms_norm: values and gradients against JAX's own in f32, jit and vmap."""
    x, r, dy, ds = (normal(2, 3, 64, dtype=dtype) for _ in range(4))
    w = (normal(64, dtype=dtype),) if weighted else ()

    def own(x, w=None):
        x = x.astype(jnp.float32)
        y = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return y if w is None else y * w.astype(jnp.float32)

    got, back = needs(lambda: jax.vjp(lambda x, *w: R.rms_norm(x, *w, eps=1e-5), x, *w))
    want, own_back = jax.vjp(own, x, *w)
    assert got.dtype == x.dtype
    close(got, want, limit)
    for g, v in zip(back(dy), own_back(dy.astype(jnp.float32))):
        assert g.dtype == x.dtype
        close(g, v, limit)

    def both(x, r, *w):
        s = (x.astype(jnp.float32) + r.astype(jnp.float32)).astype(dtype)
        return own(s, *w), s

    got, back = jax.vjp(lambda x, r, *w: R.add_rms_norm(x, r, *w, eps=1e-5), x, r, *w)
    want, own_back = jax.vjp(both, x, r, *w)
    assert np.array_equal(got[1], want[1])
    close(got[0], want[0], limit)
    for g, v in zip(back((dy, ds)), own_back((dy.astype(jnp.float32), ds))):
        close(g, v, 2 * limit)
    assert np.array_equal(jax.jit(jax.vmap(lambda x: R.rms_norm(x, *w)))(x), R.rms_norm(x, *w))
    for call, text in ((lambda: R.rms_norm(x, x), "weight has shape"),
                       (lambda: R.add_rms_norm(x, r[:1]), "residual has shape"), (lambda: R.rms_norm(x[0, 0, 0]), "no dimensions")):
        with pytest.raises(ridge.ArgumentError, match=text):
            call()


@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
def test_rope(place, pairs):
    """The bits of numpy's at large positions, with JAX's 32 bits; its gradient is the inverse rotation; jit and vmap."""
    freqs, _ = ridge.rope_freqs(32)
    x, dy, at = normal(2, 5, 3, 64), normal(2, 5, 3, 64), jnp.asarray(random.integers(0, 999999, (2, 5)), jnp.int32)
    want = ridge.rope(np.asarray(x), np.asarray(at), freqs, pairs=pairs)
    got, back = needs(lambda: jax.vjp(lambda x: R.rope(x, at, freqs, pairs=pairs), x))
    assert np.array_equal(got, want) and got.dtype == jnp.float32
    assert np.array_equal(back(dy)[0], ridge.rope(np.asarray(dy), np.asarray(at), freqs, pairs=pairs, inverse=True))
    assert np.array_equal(jax.jit(lambda x, at: R.rope(x, at, freqs, pairs=pairs))(x, at), want)
    assert np.array_equal(jax.vmap(lambda x, at: R.rope(x, at, freqs, pairs=pairs))(x, at), want)
    assert (jnp.ones(3) * 2.5).dtype == jnp.float32  # nothing stays switched on
    for call, text in ((lambda: R.rope(x, at[0], freqs), "do not fit"), (lambda: R.rope(x, at, freqs, pairs="x"), "pairs is 'x'"),
                       (lambda: R.rope(x, at, freqs[None]), "one dimension"),
                       (lambda: jax.jit(R.rope)(x, at, freqs), "freqs is traced")):
        with pytest.raises(ridge.ArgumentError, match=text):
            call()


def ragged64(lhs, rhs, sizes):
    """Group by group; rows beyond the groups are zero."""
    out, at = jnp.zeros((lhs.shape[0], rhs.shape[2]), lhs.dtype), 0
    for g, size in enumerate(sizes):
        end = min(at + size, lhs.shape[0])
        out, at = out.at[at:end].set(jnp.matmul(lhs[at:end], rhs[g], precision="highest")), end
    return out


@functools.lru_cache(maxsize=None)
def ragged_step(**options):
    """The value and the gradients for d, compiled."""
    def step(lhs, rhs, sizes, d):
        out, back = jax.vjp(lambda a, b: R.ragged_dot_fp8(a, b, sizes, **options), lhs, rhs)
        return out, *back(d)
    return jax.jit(step)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("sizes", [[0, 1, 130, 40, 0, 7], [3, 0, 0, 200, 5, 6], [0] * 6, [400, 1, 2, 3, 4, 5]])
def test_ragged_dot_fp8(place, dtype, sizes):
    """Values and gradients; group sizes are data, so that one compiled function serves all; a group that is too long is cut."""
    lhs, rhs, d = normal(214, 96, dtype=dtype), normal(6, 96, 144, dtype=dtype), normal(214, 144, dtype=dtype)
    needs(lambda: R.ragged_dot_fp8(lhs, rhs, jnp.asarray(sizes)))
    want, want_back = jax.vjp(lambda a, b: ragged64(a, b, sizes), lhs.astype(np.float32), rhs.astype(np.float32))
    for options, bound in (({}, 0.06), ({"gradient_dtype": "e5m2"}, 0.12)):
        args = lhs, rhs, jnp.asarray(sizes, jnp.int32), d
        got = ragged_step(**options)(*args)
        assert [t.dtype for t in got] == [dtype] * 3
        for one, other, limit in zip(got, (want, *want_back(d.astype(np.float32))), (0.06, bound, bound)):
            close(one, other, limit)
        assert not np.asarray(got[0], np.float32)[sum(sizes):].any()
        assert all(np.array_equal(a, b) for a, b in zip(got, ragged_step(**options)(*args)))
    wide = R.ragged_dot_fp8(lhs, rhs, jnp.asarray(sizes), preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32
    close(wide, want, 0.06)


def test_ragged_dot_fp8_without_rows_and_vmap(place):
    lhs, rhs, sizes = normal(2, 40, 32), normal(2, 3, 32, 48), jnp.asarray([[10, 0, 30], [1, 38, 0]])
    one = needs(lambda: [R.ragged_dot_fp8(*args) for args in zip(lhs, rhs, sizes)])
    assert np.array_equal(jax.vmap(R.ragged_dot_fp8)(lhs, rhs, sizes), jnp.stack(one))
    back = jax.vjp(R.ragged_dot_fp8, lhs[0, :0], rhs[0], sizes[0])[1](jnp.zeros((0, 48)))
    assert back[0].shape == (0, 32) and not back[1].any()


def test_export(place):
    """A jitted function and its gradient can be exported; JAX by itself refuses custom calls that it does not know."""
    x, y = normal(4, 64), normal(4, 64)
    for function in (R.swiglu, jax.grad(lambda a, b: R.swiglu(a, b).sum())):
        want = needs(lambda: function(x, y))
        with pytest.raises(ValueError, match="no compatibility guarantees"):
            jax.export.export(jax.jit(function))(x, y)
        exported = R.export(jax.jit(function), platforms=[place])(x, y)
        assert np.array_equal(exported.call(x, y), want)
        try:
            assert np.array_equal(jax.export.deserialize(exported.serialize()).call(x, y), want)
        except ImportError:  # flatbuffers
            pass


def test_errors(place):
    a, t = normal(4, 64), jnp.zeros(4, jnp.int32)
    wrong = [(lambda: R.swiglu(a, a[:2]), "alike"), (lambda: R.swiglu(a, a, activation="tanh"), "activation is 'tanh'"),
             (lambda: R.swiglu(a.astype(jnp.int32), a.astype(jnp.int32)), "dtype i32"),
             (lambda: R.swiglu(a, a, limit=-1.0), "limit"),
             (lambda: R.linear_softmax_cross_entropy_loss(a, t, a), "do not fit"),
             (lambda: R.linear_softmax_cross_entropy_loss(a, t, a.T.astype(jnp.bfloat16)), "dtypes must be the same"),
             (lambda: R.linear_softmax_cross_entropy_loss(a, t, a.T, reduction="all"), "reduction is 'all'"),
             (lambda: R.linear_softmax_cross_entropy_loss(a, t, a.T, ignore_index=2**64), "ignore_index is .*, not a whole number"),
             (lambda: R.linear_softmax_cross_entropy_loss(a, t, a.T, ignore_index=0.5), "ignore_index is 0.5, not a whole number"),
             (lambda: R.linear_softmax_cross_entropy_loss(a, t, a.T, softcap="3"), "softcap is '3', not a number"),
             (lambda: R.swiglu(a, a, activation=["silu"]), "activation is .*, not one of"),
             (lambda: R.swiglu(a, a, round_gate="no"), "round_gate is 'no', not a number"),
             (lambda: jax.jit(R.linear_softmax_cross_entropy_loss)(a, t.astype(jnp.uint8), a.T), "target"),
             (lambda: R.ragged_dot_fp8(a, a, t), "do not fit"),
             (lambda: R.ragged_dot_fp8(a, a[None], t[:1]), "do not fit"),
             (lambda: R.ragged_dot_fp8(a, a.T[None], t[:1].astype(np.float32)), "not one of integers"),
             (lambda: R.ragged_dot_fp8(a, a.T[None], t[:1], gradient_dtype="e3m4"), "gradient_dtype is 'e3m4'")]
    for call, text in wrong:
        with pytest.raises(ridge.ArgumentError, match=text):
            call()


LAYOUT = r"""
#include "xla/ffi/api/c_api.h"
#include "xla_ffi.h"
#define SAME(mine, m, theirs, t) _Static_assert(offsetof(mine, m) == offsetof(theirs, t), #theirs "." #t)
SAME(xla_error_args, code, XLA_FFI_Error_Create_Args, errc);
SAME(xla_buffer, data, XLA_FFI_Buffer, data);
SAME(xla_buffer, dims, XLA_FFI_Buffer, dims);
SAME(xla_array, data, XLA_FFI_Array, data);
SAME(xla_span, length, XLA_FFI_ByteSpan, len);
SAME(xla_values, at, XLA_FFI_Args, args);
SAME(xla_values, at, XLA_FFI_Rets, rets);
SAME(xla_attributes, name, XLA_FFI_Attrs, names);
SAME(xla_attributes, at, XLA_FFI_Attrs, attrs);
SAME(xla_stream_args, stream, XLA_FFI_Stream_Get_Args, stream);
SAME(xla_ordinal_args, ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);
SAME(xla_api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(xla_api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME(xla_api, ordinal_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
SAME(xla_frame, stage, XLA_FFI_CallFrame, stage);
SAME(xla_frame, results, XLA_FFI_CallFrame, rets);
SAME(xla_frame, attributes, XLA_FFI_CallFrame, attrs);
SAME(xla_metadata, traits, XLA_FFI_Metadata, traits);
SAME(xla_metadata, version.minor, XLA_FFI_Metadata, api_version.minor_version);
SAME(xla_metadata_extension, metadata, XLA_FFI_Metadata_Extension, metadata);
_Static_assert(XLA_FFI_ExecutionStage_EXECUTE == 3 && XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE == 1, "numbers");
_Static_assert(XLA_FFI_DataType_S8 == 2 && XLA_FFI_DataType_S32 == 4 && XLA_FFI_DataType_S64 == 5 && XLA_FFI_DataType_U8 == 6 &&
               XLA_FFI_DataType_F16 == 10 && XLA_FFI_DataType_F32 == 11 && XLA_FFI_DataType_F64 == 12 &&
               XLA_FFI_DataType_BF16 == 16 && XLA_FFI_DataType_F8E5M2 == 19 && XLA_FFI_DataType_F8E4M3FN == 20, "dtypes");
_Static_assert(XLA_FFI_AttrType_ARRAY == 1 && XLA_FFI_ArgType_BUFFER == 1 && XLA_FFI_RetType_BUFFER == 1, "kinds");
int x;
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_declarations_are_jaxlibs(tmp_path):
    header = os.path.join(HERE, "..", "xla_ffi.h")
    if not os.path.exists(header):
        pytest.skip("python/xla_ffi.h is not here")
    (tmp_path / "layout.c").write_text(LAYOUT)
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-I", jax.ffi.include_dir(), "-I", os.path.dirname(header),
                    tmp_path / "layout.c"], check=True)


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0, "temperature": 0.7}])
def test_linear_logprobs_and_entropy(options):
    """Values and gradients of both, with a bias and ignored rows, under jit."""
    key = jax.random.split(jax.random.PRNGKey(3), 6)
    x, w = jax.random.normal(key[0], (5, 7, 32)), jax.random.normal(key[1], (32, 50)) / 4
    bias, labels = jax.random.normal(key[2], (50,)), jax.random.randint(key[3], (5, 7), 0, 50).at[1, 2].set(-100)
    up = jax.random.normal(key[4], (5, 7)), jax.random.normal(key[5], (5, 7))

    def reference(x, w, bias):
        z = jnp.matmul(x, w, precision="highest") + bias  # a GPU would take tf32 by default
        z = options["softcap"] * jnp.tanh(z / options["softcap"]) / options["temperature"] if options else z
        logp, keep = jax.nn.log_softmax(z), labels != -100
        at = jnp.take_along_axis(logp, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
        return at * keep, -(jnp.exp(logp) * logp).sum(-1) * keep

    def ours(x, w, bias):
        return R.linear_logprobs(x, labels, w, bias=bias, **options)

    def summed(f):
        return lambda *args: sum((u * v).sum() for u, v in zip(up, f(*args)))

    for got, want in zip(jax.jit(ours)(x, w, bias), reference(x, w, bias)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    for got, want in zip(jax.jit(jax.grad(summed(ours), (0, 1, 2)))(x, w, bias), jax.grad(summed(reference), (0, 1, 2))(x, w, bias)):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4)
    with pytest.raises(ridge.ArgumentError, match="do not fit"):
        R.linear_logprobs(x, labels[1:], w)


def trained(seed, dtype, head):
    """Losses of 60 steps of Adam on a two-layer model: which token follows which; the same weights and data for every dtype."""
    draw, vocab, width = np.random.default_rng(seed), 97, 32
    table = jnp.asarray(draw.standard_normal((vocab, width)), dtype)
    params = [jnp.asarray(draw.standard_normal((width, n)) / width**0.5, dtype) for n in (width, width, vocab)]
    after = draw.permutation(vocab)

    def loss(params, now, target):
        x = table[now]
        x = x + jax.nn.silu(x @ params[0]) @ params[1]
        logprob, entropy = head(x, target, params[2])
        return -(logprob + 0.01 * entropy).mean()

    @jax.jit
    def step(params, one, two, i, now, target):
        value, gradients = jax.value_and_grad(loss)(params, now, target)
        one = [0.9 * m + 0.1 * g for m, g in zip(one, gradients)]
        two = [0.99 * v + 0.01 * g * g for v, g in zip(two, gradients)]
        params = [p - 1e-2 * (m / (1 - 0.9**i)) / (jnp.sqrt(v / (1 - 0.99**i)) + 1e-8) for p, m, v in zip(params, one, two)]
        return params, one, two, value

    one = two = [jnp.zeros_like(p) for p in params]
    losses = []
    for i in range(1, 61):
        now = draw.integers(0, vocab, (8, 16))
        ids = (jnp.asarray(t, jnp.int32) for t in (now, after[now]))
        params, one, two, value = step(params, one, two, jnp.asarray(i, dtype), *ids)
        losses.append(float(value))
    return losses


def test_training_converges_as_in_float64(place):
    """Three seeds: with ridge's f32 head the loss follows the one of float64 logits, far within what seeds make of it."""
    def logits(x, target, weights):
        logp = jax.nn.log_softmax(x @ weights)
        return jnp.take_along_axis(logp, target[..., None], -1)[..., 0], -(jnp.exp(logp) * logp).sum(-1)

    with jax.default_matmul_precision("highest"):
        ours = np.array([needs(lambda: trained(s, jnp.float32, R.linear_logprobs)) for s in range(3)])
        with jax.enable_x64(True):
            reference = np.array([trained(s, jnp.float64, logits) for s in range(3)])
    assert (reference[:, -1] < 0.5 * reference[:, 0]).all()
    spread = np.ptp(reference[:, -10:].mean(-1))
    off = np.abs(ours - reference)
    assert off[:, :10].max() < 2e-5 and off[:, -10:].mean() < 0.1 * spread, (off.max(), spread)


CUT = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp, numpy as np
gpus = sys.argv[2] == "cuda"
if not gpus:
    jax.config.update("jax_num_cpu_devices", 4)
elif len(jax.devices()) < 2:
    sys.exit("cut over nothing: one GPU")
import ridge.jax as R
from jax.sharding import AxisType, PartitionSpec as P
several = dict(label_smoothing=0.1, softcap=20.0, temperature=0.7, lse_square_scale=1e-3)
size, dtype, off = (32, jnp.bfloat16, (2e-5, 8e-3)) if gpus else (1, jnp.float32, (2e-6, 2e-6))  # of the loss and of gradients
for n in (1, len(jax.devices())):
    mesh = jax.make_mesh((n,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])
    for reduction, options in (("mean", {}), ("sum", several), ("none", several)):
        rng = np.random.default_rng(n)
        tokens, hidden, vocab = 8 * size * n, 48 * size, 40 * size * n
        x, w, b = (jnp.asarray(rng.standard_normal(s), t) for s, t in
                   (((tokens, hidden), dtype), ((hidden, vocab), dtype), (vocab, jnp.float32)))
        y = np.where(np.arange(tokens) % 5 == 2, 3, rng.integers(0, vocab, tokens))  # 3, a class, is ignored
        y = jnp.asarray(y, jnp.int32)
        g = jnp.linspace(0.5, 1, tokens) if reduction == "none" else jnp.float32(0.7)

        def loss(x, y, w, b, **more):
            return R.linear_softmax_cross_entropy_loss(x, y, w, bias=b, reduction=reduction, ignore_index=3, **options, **more)

        cut = jax.shard_map(lambda *a: loss(*a, axis_name="tp"), mesh=mesh, in_specs=(P("tp"), P("tp"), P(None, "tp"), P("tp")),
                            out_specs=P("tp") if reduction == "none" else P())
        w /= 7 * size**0.5
        want, gradients = jax.value_and_grad(lambda x, w, b: (loss(x, y, w, b) * g).sum(), (0, 1, 2))(x, w, b)
        step = jax.jit(jax.value_and_grad(lambda x, w, b: (cut(x, y, w, b) * g).sum(), (0, 1, 2)))
        got, ours = step(x, w, b)
        assert abs(got - want) <= off[0] * abs(want), (got, want)
        for a, c in zip(ours, gradients):
            a, c = (np.asarray(t, np.float64) for t in (a, c))
            assert np.linalg.norm(a - c) <= off[1] * np.linalg.norm(c), (n, reduction, a.shape, np.linalg.norm(a - c) / np.linalg.norm(c))
        again = step(x, w, b)
        assert all(jnp.array_equal(a, c) for a, c in zip(jax.tree.leaves(again), jax.tree.leaves((got, ours))))
    assert jnp.isnan(cut(x, jnp.where(jnp.arange(tokens) == 1, vocab, y), w, b)).any()
print("cut over 1 and", len(jax.devices()), "devices")
"""


@pytest.mark.parametrize("platform", PLACES)
def test_the_vocabulary_over_the_devices_of_a_mesh(platform):
    env = {**os.environ, "JAX_PLATFORMS": platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NCCL_NVLS_ENABLE": "0"}
    run = subprocess.run([sys.executable, "-c", CUT, os.path.join(HERE, ".."), platform], env=env, capture_output=True, text=True,
                         timeout=300)
    if "cut over nothing" in run.stderr:
        pytest.skip("one GPU")
    assert run.returncode == 0 and "cut over" in run.stdout, run.stderr[-2000:]

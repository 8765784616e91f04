"""_library.py: the ops as torch.library knows them (torch.ops.ridge.*): schema, implementation, fake, gradient. All are
functional but for fp8_gemm_, which adds to its output, and divergence_, which writes one. An absent result is a tensor of no
elements. Longer than 600 lines because each op is here once.

An op whose results change in shape, stride or dtype between releases gets a new name: torch.compile's caches on disk know an
op by name and schema only."""
import torch

from .. import _abi as A
from .. import _ops as ops
from .._core import UnsupportedError
from ._arrays import Arrays, Fakes, dtype_number, same_device

library = torch.library.Library("ridge", "DEF")
FORMATS = {"e4m3": A.E4M3, "e5m2": A.E5M2}


def _define(schema):
    """Registers function(xp, ...) as the op's implementation, and as its fake with the adapter that runs nothing."""
    def register(function):
        name = schema.split("(")[0]
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
        real, fake = Arrays(), Fakes()
        library.impl(name, lambda *args: function(real, *args), "CPU")
        library.impl(name, lambda *args: function(real, *args), "CUDA")
        torch.library.register_fake(f"ridge::{name}", lambda *args: function(fake, *args), lib=library)
        return function
    return register


def _no_gradient(name):
    """Without it PyTorch warns only, and the gradient is missing."""
    def refuse(ctx, *_):
        raise UnsupportedError(f"ridge::{name} has no gradient: ridge.torch's functions can be differentiated once only, its "
                               "quantisers and fp8_gemm not at all")
    torch.library.register_autograd(f"ridge::{name}", refuse, lib=library)


def _none(like, t):
    return like.new_empty(0) if t is None else t


# ------------------------------------------------------------------------------------------------------------- SwiGLU
# options: gate_mul, down_mul, alpha, up_offset, limit

SWIGLU = "Tensor gate, Tensor? up, Tensor? row_scale, str activation, float[] options, bool round_gate, " \
         "bool round_gate_bwd, bool interleaved"


@_define(f"swiglu({SWIGLU}) -> Tensor")
def swiglu(xp, gate, up, row_scale, activation, options, round_gate, round_gate_bwd, interleaved):
    f = ops.swiglu_form("swiglu_fwd", activation, *options, round_gate, False, interleaved)
    same_device(gate, up, row_scale)
    return ops.swiglu_fwd(xp, f, gate, up, row_scale, interleaved)


@_define(f"swiglu_backward(Tensor dout, {SWIGLU}, bool drow) -> (Tensor, Tensor, Tensor)")
def swiglu_backward(xp, dout, gate, up, row_scale, activation, options, round_gate, round_gate_bwd, interleaved, drow):
    same_device(gate, dout, up, row_scale)
    f = ops.swiglu_form("swiglu_bwd", activation, *options, False, round_gate_bwd, interleaved)
    dgate, dup, drow = ops.swiglu_bwd(xp, f, dout.to(gate.dtype), gate, up, row_scale, interleaved, drow)
    return dgate, _none(gate, dup), _none(gate, drow)


def _swiglu_setup(ctx, inputs, output):
    gate, up, row_scale = inputs[:3]
    ctx.save_for_backward(gate, up, row_scale)
    ctx.rest = inputs[3:]


def _swiglu_gradient(ctx, dout):
    gate, up, row_scale = ctx.saved_tensors
    want = ctx.needs_input_grad
    dgate, dup, drow = torch.ops.ridge.swiglu_backward(dout, gate, up, row_scale, *ctx.rest, want[2])
    return dgate, dup if up is not None else None, drow if want[2] else None, None, None, None, None, None


torch.library.register_autograd("ridge::swiglu", _swiglu_gradient, setup_context=_swiglu_setup, lib=library)

# ---------------------------------------------------------------------------------------------------------------- FP8


@_define("quantize_fp8(Tensor x, str scale, str dtype, bool pow2, float floor) -> (Tensor, Tensor)")
def quantize_fp8(xp, x, scale, dtype, pow2, floor):
    same_device(x)
    return ops.quantize_fp8(xp, x, scale, ops.pick(FORMATS, dtype, "dtype"), pow2, floor, None, False)[:2]


@_define("quantize_fp8_dual(Tensor x, str form, str dtype, bool pow2, float floor, bool colsum) -> "
         "(Tensor, Tensor, Tensor, Tensor, Tensor)")
def quantize_fp8_dual(xp, x, form, dtype, pow2, floor, colsum):
    same_device(x)
    *four, sums = ops.quantize_fp8_dual(xp, x, form, ops.pick(FORMATS, dtype, "dtype"), pow2, floor, colsum)
    return (*four, _none(four[1], sums))


@_define("fp8_gemm(Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, str scales, ScalarType out_dtype, Tensor? bias) -> "
         "Tensor")
def fp8_gemm(xp, a, scale_a, b, scale_b, scales, out_dtype, bias):
    same_device(a, scale_a, b, scale_b, bias)
    return ops.fp8_gemm(xp, a, scale_a, b, scale_b, scales, dtype_number(out_dtype), bias, None)


@_define("fp8_gemm_(Tensor(a!) out, Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, str scales) -> ()")
def fp8_gemm_(xp, out, a, scale_a, b, scale_b, scales):
    same_device(a, scale_a, b, scale_b, out)
    ops.fp8_gemm(xp, a, scale_a, b, scale_b, scales, None, None, out)


# wgrad: how x is quantised for the weight's gradient, "row128" or "blk128" (where the product is a third faster)
WGRAD = {"row128": ("row_row", "row128_row128"), "blk128": ("row_blk", "row128_blk128")}


@_define("fp8_linear(Tensor x, Tensor weight, Tensor? bias, str gradient_dtype, str wgrad) -> "
         "(Tensor, Tensor, Tensor, Tensor, Tensor)")
def fp8_linear(xp, x, weight, bias, gradient_dtype, wgrad):
    """y, and what the gradients need: the transposed codes of x and weight with their scales. The codes go as uint8,
    because autograd's machinery (and opcheck) adds up and compares outputs, which PyTorch has not for fp8."""
    same_device(x, weight, bias)
    two = x.reshape(-1, x.shape[-1])
    xq, xs, xtq, xts, _ = ops.quantize_fp8_dual(xp, two, ops.pick(WGRAD, wgrad, "wgrad")[0], A.E4M3, False, 0.0, False)
    wq, ws, wtq, wts, _ = ops.quantize_fp8_dual(xp, weight, "blk_blk", A.E4M3, False, 0.0, False)
    y = ops.fp8_gemm(xp, xq, xs, wq, ws, "row128_blk128", dtype_number(x.dtype), bias, None)
    return y.view(*x.shape[:-1], weight.shape[0]), xtq.view(torch.uint8), xts, wtq.view(torch.uint8), wts


def fp8_linear_gradient(dy, xtq, xts, wtq, wts, gradient_dtype, wgrad, want, main_grad=None):
    """(dx, dweight, dbias), each None where it is not wanted. With main_grad the weight's is added to that."""
    op = torch.ops.ridge
    xtq, wtq = xtq.view(torch.float8_e4m3fn), wtq.view(torch.float8_e4m3fn)
    two = dy.reshape(-1, dy.shape[-1])
    gq, gs, gtq, gts, dbias = op.quantize_fp8_dual(two, "row_row", gradient_dtype, False, 0.0, want[2])
    dx = dw = None
    if want[0]:
        dx = op.fp8_gemm(gq, gs, wtq, wts, "row128_blk128", dy.dtype, None).view(*dy.shape[:-1], wtq.shape[0])
    if want[1] and main_grad is not None:
        op.fp8_gemm_(main_grad, gtq, gts, xtq, xts, WGRAD[wgrad][1])
    elif want[1]:
        dw = op.fp8_gemm(gtq, gts, xtq, xts, WGRAD[wgrad][1], dy.dtype, None)
    return dx, dw, dbias if want[2] else None


def _fp8_linear_setup(ctx, inputs, output):
    x, weight, bias, *ctx.rest = inputs
    ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _fp8_linear_gradient(ctx, dy, *_):
    if dy is None:
        return (None,) * 5
    dx, dw, dbias = fp8_linear_gradient(dy, *ctx.saved_tensors, *ctx.rest, ctx.needs_input_grad)
    return dx, None if dw is None else dw.to(ctx.dtypes[0]), None if dbias is None else dbias.to(ctx.dtypes[1]), None, None


torch.library.register_autograd("ridge::fp8_linear", _fp8_linear_gradient, setup_context=_fp8_linear_setup, lib=library)

# ------------------------------------------------------------------------------------------- SwiGLU and the layer after it
# The gradient needs only gate and up: what is between is made again, or was kept as FP8 codes.

BOTH = "Tensor gate, Tensor? up, Tensor weight, Tensor? bias, str activation, float[] options, bool interleaved"


@_define(f"swiglu_linear({BOTH}) -> Tensor")
def swiglu_linear(xp, gate, up, weight, bias, activation, options, interleaved):
    h = swiglu(xp, gate, up, None, activation, options, False, False, interleaved)
    return torch.nn.functional.linear(h, weight, bias)


@_define("swiglu_linear_backward(Tensor dy, Tensor gate, Tensor? up, Tensor weight, str activation, float[] options, "
         "bool interleaved, bool dgate, bool dweight) -> (Tensor, Tensor, Tensor)")
def swiglu_linear_backward(xp, dy, gate, up, weight, activation, options, interleaved, want_gate, want_weight):
    two, dgate, dup, dw = dy.reshape(-1, dy.shape[-1]), None, None, None
    if want_weight:
        h = swiglu(xp, gate, up, None, activation, options, False, False, interleaved)
        dw = two.t() @ h.reshape(-1, h.shape[-1])
        del h
    if want_gate:
        dh = (two @ weight).view(*dy.shape[:-1], weight.shape[1])
        dgate, dup, _ = swiglu_backward(xp, dh, gate, up, None, activation, options, False, False, interleaved, False)
    return _none(gate, dgate), _none(gate, dup), _none(gate, dw)


def _swiglu_linear_setup(ctx, inputs, output):
    gate, up, weight, bias, *ctx.rest = inputs
    ctx.save_for_backward(gate, up, weight)


def _swiglu_linear_gradient(ctx, dy):
    gate, up, weight = ctx.saved_tensors
    want = ctx.needs_input_grad
    in_gate = want[0] or want[1]
    dgate, dup, dw = torch.ops.ridge.swiglu_linear_backward(dy, gate, up, weight, *ctx.rest, in_gate, want[2])
    dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if want[3] else None
    return dgate if in_gate else None, dup if in_gate and up is not None else None, dw if want[2] else None, dbias, None, None, None


torch.library.register_autograd("ridge::swiglu_linear", _swiglu_linear_gradient, setup_context=_swiglu_linear_setup, lib=library)


@_define(f"fp8_swiglu_linear({BOTH}, str gradient_dtype, str wgrad) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def fp8_swiglu_linear(xp, gate, up, weight, bias, activation, options, interleaved, gradient_dtype, wgrad):
    """fp8_linear of swiglu's result, which is never written in 16 bits."""
    same_device(gate, up, weight, bias)
    form = ops.pick(WGRAD, wgrad, "wgrad")[0]
    f = ops.swiglu_quantize_form(form, activation, *options, interleaved)
    hq, hs, htq, hts = ops.swiglu_quantize(xp, f, form, gate, up, interleaved, A.E4M3)
    wq, ws, wtq, wts, _ = ops.quantize_fp8_dual(xp, weight, "blk_blk", A.E4M3, False, 0.0, False)
    y = ops.fp8_gemm(xp, hq, hs, wq, ws, "row128_blk128", dtype_number(gate.dtype), bias, None)
    return y.view(*gate.shape[:-1], weight.shape[0]), htq.view(torch.uint8), hts, wtq.view(torch.uint8), wts


def fp8_swiglu_linear_gradient(dy, gate, up, codes, rest, want, main_grad=None):
    """(dgate, dup, dweight, dbias), each None where it is not wanted."""
    *of_swiglu, gradient_dtype, wgrad = rest
    in_gate = want[0] or want[1]
    dh, dw, dbias = fp8_linear_gradient(dy, *codes, gradient_dtype, wgrad, (in_gate, want[2], want[3]), main_grad)
    dgate = dup = None
    if in_gate:
        activation, options, interleaved = of_swiglu
        dgate, dup, _ = torch.ops.ridge.swiglu_backward(dh, gate, up, None, activation, options, False, False, interleaved, False)
    return dgate, dup if up is not None else None, dw, dbias


def _fp8_swiglu_linear_setup(ctx, inputs, output):
    gate, up, weight, bias, *ctx.rest = inputs
    ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(gate, up, *output[1:])
    ctx.set_materialize_grads(False)


def _fp8_swiglu_linear_gradient(ctx, dy, *_):
    if dy is None:
        return (None,) * 9
    gate, up, *codes = ctx.saved_tensors
    dgate, dup, dw, dbias = fp8_swiglu_linear_gradient(dy, gate, up, codes, ctx.rest, ctx.needs_input_grad)
    return (dgate, dup, None if dw is None else dw.to(ctx.dtypes[0]), None if dbias is None else dbias.to(ctx.dtypes[1]),
            *(None,) * 5)


torch.library.register_autograd("ridge::fp8_swiglu_linear", _fp8_swiglu_linear_gradient, setup_context=_fp8_swiglu_linear_setup,
                                lib=library)

# --------------------------------------------------------------------------------------------------------------- Q8_0


@_define("q8_0_quantize(Tensor x) -> Tensor")
def q8_0_quantize(xp, x):
    same_device(x)
    return ops.q8_0_quantize(xp, x)


@_define("q8_0_repack(Tensor blocks) -> (Tensor, Tensor)")
def q8_0_repack(xp, blocks):
    same_device(blocks)
    return ops.q8_0_repack(xp, blocks)


@_define("q8_0_matmul(Tensor x, Tensor w, Tensor? scales, ScalarType out_dtype) -> Tensor")
def q8_0_matmul(xp, x, w, scales, out_dtype):
    same_device(x, w, scales)
    return ops.q8_0_matmul(xp, x, w, scales, dtype_number(out_dtype))


@_define("q8_0_linear(Tensor x, Tensor codes, Tensor scales) -> Tensor")
def q8_0_linear(xp, x, codes, scales):
    """x [any number of tokens, in]: a token's result is the same bits in any batch."""
    same_device(x, codes, scales)
    if isinstance(xp, Fakes) or not x.shape[0]:
        return x.new_empty(x.shape[0], codes.shape[0])
    parts = [ops.q8_0_matmul(xp, part, codes, scales, dtype_number(x.dtype)) for part in x.split(A.Q8_0_MAX_PROMPT)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def q8_0_weight(w, scales, dtype):
    """The matrix that blocks, or codes with scales, stand for: code times scale in f32, rounded once."""
    if scales is None:
        blocks = w.unflatten(1, (-1, 34))
        codes, scales = blocks[..., 2:].view(torch.int8), blocks[..., :2].contiguous().view(torch.float16)
    else:
        codes, scales = w.unflatten(1, (-1, 32)), scales[..., None]
    return (codes * scales.float()).flatten(1).to(dtype)


def _q8_0_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1], inputs[2])
    ctx.dtype, ctx.count = inputs[0].dtype, len(inputs)


def _q8_0_gradient(ctx, dout):
    """Through frozen weights: for adapters before or beside such a layer."""
    return (dout @ q8_0_weight(*ctx.saved_tensors, dout.dtype)).to(ctx.dtype), *(None,) * (ctx.count - 1)


for _name in ("q8_0_matmul", "q8_0_linear"):
    torch.library.register_autograd(f"ridge::{_name}", _q8_0_gradient, setup_context=_q8_0_setup, lib=library)

# ------------------------------------------------------------------------------------------------------- norm and RoPE


@_define("add_rms_norm(Tensor x, Tensor? residual, Tensor? weight, float eps, ScalarType out_dtype) -> (Tensor, Tensor)")
def add_rms_norm(xp, x, residual, weight, eps, out_dtype):
    """(rms_norm of x + residual, that sum)"""
    same_device(x, residual, weight)
    out, total = ops.add_rms_norm(xp, x, residual, weight, eps, dtype_number(out_dtype))
    return out, _none(x, total)


@_define("rms_norm_backward(Tensor dout, Tensor x, Tensor? weight, Tensor? dsum, float eps, bool dx, bool dweight) -> "
         "(Tensor, Tensor)")
def rms_norm_backward(xp, dout, x, weight, dsum, eps, want_dx, want_dw):
    same_device(x, dout, weight, dsum)
    dx, dw = ops.rms_norm_bwd(xp, dout, x, weight, dsum, eps, want_dx, want_dw)
    return _none(x, dx), _none(x, dw)


def _norm_setup(ctx, inputs, output):
    x, residual, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x if residual is None else output[1], weight)
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype
    ctx.set_materialize_grads(False)


def norm_gradient(backward, ctx, dout, dsum):
    """(dx, dresidual, dweight): dx is that of both terms of the sum."""
    x, weight = ctx.saved_tensors
    dtype, of_residual = ctx.dtypes
    if of_residual is None:
        dsum = None
    want_x, want_w = ctx.needs_input_grad[0] or ctx.needs_input_grad[1], ctx.needs_input_grad[2]
    if dout is None:  # only the sum was used
        dx, dw = dsum, None
    else:
        dx, dw = backward(dout, x, weight, dsum, ctx.eps, want_x, want_w)
        dw = dw if want_w else None
    if dx is None or not want_x:
        return None, None, dw
    return (dx.to(dtype) if ctx.needs_input_grad[0] else None,
            dx.to(of_residual) if ctx.needs_input_grad[1] else None, dw)


def _norm_gradient(ctx, dout, dsum):
    return *norm_gradient(torch.ops.ridge.rms_norm_backward, ctx, dout, dsum), None, None


torch.library.register_autograd("ridge::add_rms_norm", _norm_gradient, setup_context=_norm_setup, lib=library)


@_define("rope(Tensor x, Tensor positions, Tensor freqs, str pairs, bool inverse, float mscale) -> Tensor")
def rope(xp, x, positions, freqs, pairs, inverse, mscale):
    same_device(x, positions, freqs)
    return ops.rope(xp, x, positions, freqs, pairs, inverse, mscale)


def _rope_setup(ctx, inputs, output):
    x, positions, freqs, *ctx.rest = inputs
    ctx.save_for_backward(positions, freqs)


def _rope_gradient(ctx, dout):
    """The rotation by the opposite angle; differentiable itself."""
    positions, freqs = ctx.saved_tensors
    pairs, inverse, mscale = ctx.rest
    return torch.ops.ridge.rope(dout, positions, freqs, pairs, not inverse, mscale), *(None,) * 5


torch.library.register_autograd("ridge::rope", _rope_gradient, setup_context=_rope_setup, lib=library)

# ------------------------------------------------------------------------------------------------------ cross entropy
# options: label_smoothing, softcap, temperature, lse_square_scale

CE = "Tensor x, Tensor weight, Tensor target, Tensor? bias, Tensor? class_weight, str reduction, int ignore_index, " \
     "float[] options"


def ce_options(ignore_index, options):
    names = ("label_smoothing", "softcap", "temperature", "lse_square_scale")
    return (("ignore_index", ops.whole("ignore_index", ignore_index)), *zip(names, options))


def problem(xp, x, weight, target, bias, class_weight, reduction, ignore_index, options):
    same_device(x, weight, target, bias, class_weight)
    if class_weight is not None:
        class_weight = class_weight.to(torch.float32)
    return ops.CeProblem(xp, x, weight, target, bias, class_weight, reduction, False, ce_options(ignore_index, options))


@_define(f"linear_ce_eval({CE}, bool lse) -> (Tensor, Tensor)")
def linear_ce_eval(xp, *args):
    loss, out = ops.linear_ce_eval(problem(xp, *args[:8]), ("lse",) if args[8] else ())
    return loss, _none(loss, out.get("lse"))


@_define(f"linear_ce_train({CE}, bool dx, bool dw, bool dbias) -> (Tensor, Tensor, Tensor, Tensor)")
def linear_ce_train(xp, *args):
    """dW is f32 whatever the weight is; what multiplies it by the loss's gradient rounds it."""
    loss, *gradients = ops.linear_ce_train(problem(xp, *args[:8]), *args[8:], A.F32)
    return (loss, *(_none(loss, t) for t in gradients))


@_define("linear_ce_weighted(Tensor x, Tensor weight, Tensor target, Tensor? bias, Tensor row_weight, int ignore_index, "
         "float[] options, bool dx, bool dw, bool dbias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def linear_ce_weighted(xp, x, weight, target, bias, row_weight, ignore_index, options, *want):
    """The sum of the rows' losses times row_weight, the rows' losses, and the gradients of the sum."""
    p = problem(xp, x, weight, target, bias, None, "none", ignore_index, options)
    same_device(x, row_weight)
    row_weight = row_weight.to(torch.float32)
    rows, *gradients = ops.linear_ce_train(p, *want, A.F32, row_weight)
    return ((rows * row_weight).sum(), rows, *(_none(rows, t) for t in gradients))


def linear_ce_eager(xp, *args):
    """As linear_ce_train, but dW of a bf16 weight is made in bf16, rounded once: nothing is left to do then in backward, for a
    loss whose gradient is 1. f16 stays f32 until it is scaled, or it would underflow."""
    return ops.linear_ce_train(problem(xp, *args[:8]), *args[8:], None if args[1].dtype is torch.bfloat16 else A.F32)


@_define("linear_ce_backward(Tensor lse, Tensor dloss, " + CE + ", bool dx, bool dw, bool dbias, Tensor? entropy, "
         "Tensor? dentropy, Tensor? ids, Tensor? id_logprob, Tensor? did_logprob) -> "
         "(Tensor, Tensor, Tensor)")
def linear_ce_backward(xp, lse, dloss, *args):
    more = [t.to(torch.float32) if t is not None and t.is_floating_point() else t for t in args[11:]]
    three = ops.linear_ce_backward(problem(xp, *args[:8]), lse, dloss.to(torch.float32), *args[8:11], None, *more)
    return tuple(_none(lse, t) for t in three)


@_define("linear_ce_logprobs(Tensor x, Tensor weight, Tensor target, Tensor? bias, Tensor? ids, int ignore_index, "
         "float[] options, bool entropy, bool argmax) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def linear_ce_logprobs(xp, x, weight, target, bias, ids, ignore_index, options, entropy, argmax):
    """Of every row: the target's log-probability, lse, and where wanted the entropy, the ids' log-probabilities, the argmax."""
    p = problem(xp, x, weight, target, bias, None, "none", ignore_index, options)
    loss, out = ops.linear_ce_eval(p, ("lse", *("entropy",) * entropy, *("argmax",) * argmax), ids)
    return 0 - loss, out["lse"], *(_none(loss, out.get(name)) for name in ("entropy", "id_logprob", "argmax"))


def logprobs_setup(ctx, inputs, output):
    ce_setup(ctx, inputs)
    ctx.save_for_backward(*inputs[:5], *output[1:4])
    ctx.rest = inputs[5:]


def logprobs_gradient(backward, ctx, dlogprob, dentropy, did):
    """(dx, dweight, None, dbias), all None where nothing arrived."""
    x, weight, target, bias, ids, lse, entropy, id_logprob = ctx.saved_tensors
    ignore_index, options, with_entropy, _ = ctx.rest
    dentropy, did = dentropy if with_entropy else None, did if ids is not None else None
    if dlogprob is None and dentropy is None and did is None:
        return (None,) * 4
    dloss = torch.zeros_like(lse) if dlogprob is None else 0 - dlogprob
    want = ctx.needs_input_grad
    more = (None if dentropy is None else entropy, dentropy, *((None,) * 3 if did is None else (ids, id_logprob, did)))
    three = backward(lse, dloss, x, weight, target, bias, None, "none", ignore_index, options, want[0], want[1], want[3],
                     *more)
    return gradients_of(ctx, *three)


def _logprobs_gradient(ctx, dlogprob, _, dentropy, did, __):
    return *logprobs_gradient(torch.ops.ridge.linear_ce_backward, ctx, dlogprob, dentropy, did), *(None,) * 5


@_define("linear_ce_stats(Tensor x, Tensor weight, Tensor target, Tensor? bias, Tensor? class_weight, int ignore_index, "
         "float[] options) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def linear_ce_stats(xp, x, weight, target, bias, class_weight, ignore_index, options):
    """Of every row: loss, lse, target logit, entropy, argmax."""
    loss, out = ops.linear_ce_eval(problem(xp, x, weight, target, bias, class_weight, "none", ignore_index, options), STATS)
    return loss, *(out[name] for name in STATS)


@_define("linear_ce_topk(Tensor x, Tensor weight, Tensor target, Tensor? bias, int k, int ignore_index, float[] options) -> "
         "(Tensor, Tensor)")
def linear_ce_topk(xp, x, weight, target, bias, k, ignore_index, options):
    """Of every row: the k most likely classes, and their log-probabilities."""
    p = problem(xp, x, weight, target, bias, None, "none", ignore_index, options)
    out = ops.linear_ce_eval(p, (), None, k)[1]
    return out["top_id"], out["top_logprob"]


@_define("linear_ce_sample(Tensor x, Tensor weight, Tensor target, Tensor seed, Tensor counter, Tensor? bias, int ignore_index, "
         "float[] options) -> (Tensor, Tensor)")
def linear_ce_sample(xp, x, weight, target, seed, counter, bias, ignore_index, options):
    """Of every row: a class drawn, and its log-probability."""
    p = problem(xp, x, weight, target, bias, None, "none", ignore_index, options)
    out = ops.linear_ce_eval(p, (), None, 0, (seed, counter))[1]
    return out["sample_id"], out["sample_logprob"]


STATS = "lse", "target_logit", "entropy", "argmax"
LOGITS = "Tensor logits, Tensor target, Tensor? class_weight, str reduction, int ignore_index, float[] options"


def of_logits(xp, logits, target, class_weight, reduction, ignore_index, options):
    same_device(logits, target, class_weight)
    if class_weight is not None:
        class_weight = class_weight.to(torch.float32)
    return ops.LogitsProblem(xp, logits, target, class_weight, reduction, ce_options(ignore_index, options))


@_define(f"ce_fwd({LOGITS}) -> (Tensor, Tensor)")
def ce_fwd(xp, *args):
    """(loss, lse)"""
    loss, out = ops.ce_fwd(of_logits(xp, *args), ("lse",))
    return loss, out["lse"]


@_define("ce_stats(Tensor logits, Tensor target, Tensor? class_weight, int ignore_index, float[] options) -> "
         "(Tensor, Tensor, Tensor, Tensor, Tensor)")
def ce_stats(xp, logits, target, class_weight, ignore_index, options):
    """linear_ce_stats of logits."""
    loss, out = ops.ce_fwd(of_logits(xp, logits, target, class_weight, "none", ignore_index, options), STATS)
    return loss, *(out[name] for name in STATS)


@_define(f"ce_bwd(Tensor lse, Tensor dloss, {LOGITS}) -> Tensor")
def ce_bwd(xp, lse, dloss, *args):
    return ops.ce_bwd(of_logits(xp, *args), lse, dloss.to(torch.float32))


def _ce_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], output[1])
    ctx.rest = inputs[3:]
    ctx.set_materialize_grads(False)


def _ce_gradient(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 6
    *inputs, lse = ctx.saved_tensors
    return torch.ops.ridge.ce_bwd(lse, dloss, *inputs, *ctx.rest), *(None,) * 5


torch.library.register_autograd("ridge::ce_fwd", _ce_gradient, setup_context=_ce_setup, lib=library)


@_define("divergence_(Tensor(a!)? dlogits, Tensor student, Tensor teacher, Tensor? scale, float beta, float temperature) -> Tensor")
def divergence_(xp, dlogits, student, teacher, scale, beta, temperature):
    same_device(student, teacher, scale, dlogits)
    return ops.divergence(xp, student, teacher, scale, beta, temperature, dlogits)


@_define("multiply(Tensor x, Tensor factor, ScalarType dtype) -> Tensor")
def multiply(xp, x, factor, dtype):
    """x times a factor on the device, rounded once to dtype: one pass where PyTorch takes two."""
    same_device(x, factor)
    return ops.multiply(xp, x.contiguous(), factor.to(torch.float32), dtype_number(dtype))


def gradients_of(ctx, dx, dw, dbias, factor=None):
    """What backward returns for (x, weight, target, bias); factor is the loss's own gradient."""
    out = []
    for t, wanted, dtype in ((dx, 0, None), (dw, 1, ctx.weight_dtype), (dbias, 3, ctx.bias_dtype)):
        if not ctx.needs_input_grad[wanted]:
            out.append(None)
            continue
        if factor is None:
            out.append(t.to(dtype) if dtype else t)
        else:
            out.append(torch.ops.ridge.multiply(t, factor, dtype or t.dtype))
    return out[0], out[1], None, out[2]


def ce_setup(ctx, inputs):
    ctx.weight_dtype, ctx.bias_dtype = inputs[1].dtype, None if inputs[3] is None else inputs[3].dtype
    ctx.set_materialize_grads(False)


def _train_setup(ctx, inputs, output):
    ce_setup(ctx, inputs)
    ctx.save_for_backward(*output[1:])


def _train_gradient(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 11
    return (*gradients_of(ctx, *ctx.saved_tensors, dloss), *(None,) * 7)


def _weighted_setup(ctx, inputs, output):
    ce_setup(ctx, inputs)
    ctx.save_for_backward(*output[2:])


def _weighted_gradient(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 10
    return (*gradients_of(ctx, *ctx.saved_tensors, dloss), *(None,) * 6)


def _eval_setup(ctx, inputs, output):
    ce_setup(ctx, inputs)
    ctx.save_for_backward(*inputs[:5], output[1])
    ctx.rest = inputs[5:8]


def _eval_gradient(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 9
    *inputs, lse = ctx.saved_tensors
    want = ctx.needs_input_grad
    three = torch.ops.ridge.linear_ce_backward(lse, dloss, *inputs, *ctx.rest, want[0], want[1], want[3], *(None,) * 5)
    return (*gradients_of(ctx, *three), *(None,) * 5)


torch.library.register_autograd("ridge::linear_ce_train", _train_gradient, setup_context=_train_setup, lib=library)
torch.library.register_autograd("ridge::linear_ce_weighted", _weighted_gradient, setup_context=_weighted_setup, lib=library)
torch.library.register_autograd("ridge::linear_ce_eval", _eval_gradient, setup_context=_eval_setup, lib=library)
torch.library.register_autograd("ridge::linear_ce_logprobs", _logprobs_gradient, setup_context=logprobs_setup, lib=library)
for _name in ("swiglu_backward", "quantize_fp8", "quantize_fp8_dual", "fp8_gemm", "swiglu_linear_backward", "q8_0_quantize",
              "rms_norm_backward", "linear_ce_backward", "linear_ce_stats", "linear_ce_topk", "linear_ce_sample", "ce_stats",
              "ce_bwd", "multiply"):
    _no_gradient(_name)

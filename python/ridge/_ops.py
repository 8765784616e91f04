"""_ops.py: the ops over any kind of array: shapes, layouts, flags. Longer than 600 lines because each op is here once, for
numpy and torch alike. They bring an adapter (`xp`):

    xp.matrix(t)                  t whose rows can be addressed by one stride, [.., cols] -> (t or a copy, its stride)
    xp.vector(t)                  t or a contiguous copy
    xp.operand(t, stride)         (pointer, stride, ridge dtype)
    xp.empty(like, shape, dtype, ld=None)    new memory beside `like`; ld = the row stride of a matrix
    xp.launch(form, like, values, scratch)   runs it where `like` lives; scratch: False, True (it may want a workspace), or
                                  the bytes that it can use beyond what it asks for
"""
import functools
import numbers
import struct

from . import _abi as A
from ._core import ArgumentError, form

ACTIVATIONS = {"silu": A.SILU, "gelu_tanh": A.GELU_TANH, "gelu_erf": A.GELU_ERF, "gelu": A.GELU_ERF, "relu2": A.RELU2}
SCALES = {"tensor": A.SCALING_TENSOR, "row": A.SCALING_ROW, "row128": A.SCALING_ROW128, "blk128": A.SCALING_BLK128}
DUALS = {f"{q}_{q_t}": (SCALES[q + "128"], SCALES[q_t + "128"]) for q, q_t in (("row", "row"), ("row", "blk"), ("blk", "blk"))}
_OPERANDS = {**SCALES, "row128t": A.SCALING_ROW128_T}  # of fp8_gemm: also the table [rows, ceil(cols/128)] of other quantisers
PAIRS = {f"{a}_{b}": (_OPERANDS[a], _OPERANDS[b]) for a, b in (
    ("tensor", "tensor"), ("row", "row"), ("row", "tensor"), ("tensor", "row"), ("row128", "blk128"), ("row128", "row128"),
    ("blk128", "row128"), ("row128t", "blk128"), ("row128t", "row128t"), ("blk128", "row128t"))}
PAIRS |= {"tensor": PAIRS["tensor_tensor"], "row": PAIRS["row_row"]}  # as the command line names them
REDUCTIONS = {"mean": A.CE_MEAN, "sum": A.CE_SUM, "none": A.CE_NONE}
ABSENT = (0, 0, 0)


def pick(table, name, what):
    try:
        return table[name]
    except (KeyError, TypeError):
        raise ArgumentError(f"{what} is {name!r}, not one of {', '.join(map(repr, table))}") from None


REAL = (float, int, numbers.Real)  # the fast ones first; numpy adds its bool, ridge.torch PyTorch's symbols
WHOLE = (int,)  # ridge.torch adds its symbol


def numbers_only(**options):
    """An error for what is no number, a tensor among them: it would be read once, whatever it held later."""
    for name, v in options.items():
        if not isinstance(v, REAL):
            raise ArgumentError(f"{name} is {repr(v) if isinstance(v, (str, type(None))) else 'a ' + type(v).__name__}, "
                                "not a number")


def check_types(kind, what, function, arguments):
    """A TypeError for what is not of that kind; a pair (t, None) may be None."""
    for name, t in arguments.items():
        t = t[0] if (optional := type(t) is tuple and len(t) == 2 and t[1] is None) else t
        if not isinstance(t, kind) and not (optional and t is None):
            raise TypeError(f"{function}: {name} is a {type(t).__name__}, not a {what}{' or None' if optional else ''}")


def real(name, v):
    try:
        if isinstance(v, (str, bytes, bytearray)):  # which float() reads
            raise TypeError
        return float(v)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {v!r}, not a number") from None


def whole(name, v):
    """v as an integer of 64 bits, nothing cut off. A float may be one: a plan for -100 is found for -100.0 as well."""
    try:
        n = v if isinstance(v, WHOLE) else int(v)
        if n == v and -1 << 63 <= n < 1 << 63:
            return n
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"{name} is {v!r}, not a whole number from -2^63 to 2^63 - 1")


def blocks(n):
    return (n + 127) // 128


def rows_of(shape):
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows


def same_shape(name, got, want):
    if got != want and tuple(got) != tuple(want):
        raise ArgumentError(f"{name} has shape {list(got)}, not {list(want)}")


# ------------------------------------------------------------------------------------------------------------- SwiGLU


OPTIONS = "gate_mul", "down_mul", "alpha", "up_offset", "limit"
_five = struct.Struct("5d")


def swiglu_options(*values):
    """The five as bytes, a key by bits: equal numbers may differ (0.0 and -0.0), and a tensor may change its value."""
    try:
        return _five.pack(*values)
    except struct.error:
        raise ArgumentError(f"{', '.join(OPTIONS)} are {values!r}: not all of them are numbers") from None


def swiglu_form(op, activation, gate_mul, down_mul, alpha, up_offset, limit, round_gate, round_gate_bwd, interleaved):
    pick(ACTIVATIONS, activation, "activation")  # what is no key for the cache either
    return _swiglu_form(op, activation, swiglu_options(gate_mul, down_mul, alpha, up_offset, limit), round_gate, round_gate_bwd,
                        interleaved)


@functools.lru_cache(maxsize=1024)  # a quarter of the host time of a call, without it
def _swiglu_form(op, activation, options, round_gate, round_gate_bwd, interleaved):
    flags = pick(ACTIVATIONS, activation, "activation") | (A.INTERLEAVED if interleaved else 0)
    flags |= A.ROUND_GATE if round_gate and op == "swiglu_fwd" else 0
    flags |= A.ROUND_GATE_BWD if round_gate_bwd and op == "swiglu_bwd" else 0
    return form(op, flags, tuple(zip(OPTIONS, _five.unpack(options))))


def gate_and_up(xp, gate, up, interleaved):
    """Operands of gate and up: two tensors, the halves of one, or one that interleaves them."""
    if not len(gate.shape):
        raise ArgumentError("gate has no dimensions")
    t, stride = xp.matrix(gate)
    if up is not None:
        same_shape("up", up.shape, gate.shape)
        u, up_stride = xp.matrix(up)
        return (t, u), xp.operand(t, stride), xp.operand(u, up_stride), gate.shape[-1]
    if gate.shape[-1] % 2:
        raise ArgumentError(f"gate and up in one tensor need an even last dimension, not {gate.shape[-1]}")
    cols = gate.shape[-1] // 2
    pointer, stride, dtype = xp.operand(t, stride)
    if interleaved:
        return (t,), (pointer, stride, dtype), ABSENT, cols
    stride = stride or 2 * cols
    return (t,), (pointer, stride, dtype), (pointer + cols * xp.itemsize(t), stride, dtype), cols


def swiglu_fwd(xp, f, gate, up, row_scale, interleaved):
    shape = gate.shape
    kept, g, u, cols = gate_and_up(xp, gate, up, interleaved)
    out = xp.empty(gate, shape if up is not None else (*shape[:-1], cols), g[2])
    scale = ABSENT
    if row_scale is not None:
        row_scale = xp.vector(row_scale)
        same_shape("row_scale", row_scale.shape, shape[:-1])
        scale = xp.operand(row_scale, 0)
    xp.launch(f, gate, (rows_of(shape), cols, 0, 0, 0, 0, *g, *u, *xp.operand(out, 0), *scale))
    return out


def swiglu_bwd(xp, f, dout, gate, up, row_scale, interleaved, want_drow):
    """(dgate, dup, drow); dup is None where gate and up are one tensor, drow where it is not wanted."""
    kept, g, u, cols = gate_and_up(xp, gate, up, interleaved)
    same_shape("dout", dout.shape, (*gate.shape[:-1], cols))
    dout, stride = xp.matrix(dout)
    dgate = xp.empty(gate, gate.shape, g[2])
    dup = xp.empty(gate, gate.shape, g[2]) if up is not None else None
    dg = xp.operand(dgate, 0)
    if up is not None:
        du = xp.operand(dup, 0)
    elif interleaved:
        du = ABSENT
    else:
        dg = (dg[0], 2 * cols, dg[2])
        du = (dg[0] + cols * xp.itemsize(dgate), 2 * cols, dg[2])
    drow = xp.empty(gate, gate.shape[:-1], A.F32) if want_drow else None
    scale = ABSENT
    if row_scale is not None:
        row_scale = xp.vector(row_scale)  # a copy lives until the launch
        same_shape("row_scale", row_scale.shape, gate.shape[:-1])
        scale = xp.operand(row_scale, 0)
    xp.launch(f, gate, (rows_of(gate.shape), cols, 0, 0, 0, 0, *xp.operand(dout, stride), *g, *u, *dg, *du, *scale,
                        *(xp.operand(drow, 0) if want_drow else ABSENT)))
    return dgate, dup, drow


# ----------------------------------------------------------------------------------------------------------- multiply


def multiply(xp, x, factor, dtype=None):
    """x times factor[0], in place (then a factor of 1 costs nothing), or into a new tensor of that dtype. x is packed."""
    rows, cols = (rows_of(x.shape), x.shape[-1]) if len(x.shape) else (1, 1)
    if len(factor.shape):
        same_shape("factor", factor.shape, (1,))
    out = x if dtype is None else xp.empty(x, x.shape, dtype)
    xp.launch(form("multiply"), x, (rows, cols, 0, 0, 0, 0, *xp.operand(x, 0), *xp.operand(factor, 0), *xp.operand(out, 0)))
    return out


def sum_parts(xp, x, dtype=None):
    """x [parts, ..] -> [..] of that dtype (x's own by default): part 0 + part 1 + .. in f32, rounded once. x is packed."""
    parts, shape = x.shape[0], x.shape[1:]
    rows, cols = (rows_of(shape), shape[-1]) if len(shape) else (1, 1)
    x2 = xp.operand(x, 0)
    out = xp.empty(x, shape, dtype or x2[2])
    xp.launch(form("sum"), x, (rows, cols, parts, 0, 0, 0, *x2, *xp.operand(out, 0)))
    return out


def divergence(xp, student, teacher, scale, beta, temperature, dlogits=None, lse=(), own=None):
    """The loss [rows] of [rows, cols]; into dlogits, which is packed, its gradient by the student's logits times scale. lse: of a
    slice of the classes, of student and teacher: the slice's terms of loss, and of own into own; with dlogits own is given, and
    there is no loss."""
    two_dims("student", student)
    same_shape("teacher", teacher.shape, student.shape)
    rows, cols = student.shape
    if scale is not None:
        same_shape("scale", scale.shape, (rows,))
        scale = xp.vector(scale)
    (student, z_stride), (teacher, y_stride) = xp.matrix(student), xp.matrix(teacher)
    loss = None if lse and dlogits is not None else xp.empty(student, (rows,), A.F32)
    if dlogits is not None:
        same_shape("dlogits", dlogits.shape, (rows, cols))
    for t in (*lse, *(() if own is None else (own,))):
        same_shape("lse, teacher_lse and own", t.shape, (rows,))
    f = form("divergence", 0, (("beta", float(beta)), ("temperature", float(temperature))))
    rest = (loss, dlogits, scale, *(lse or (None, None)), own)
    xp.launch(f, student, (rows, cols, 0, 0, 0, 0, *xp.operand(student, z_stride), *xp.operand(teacher, y_stride),
                           *(v for t in rest for v in (ABSENT if t is None else xp.operand(t, 0)))))
    return loss


# ---------------------------------------------------------------------------------------------------------------- FP8


def scale_shape(mode, rows, cols):
    """(shape, ld) of the scale table of an fp8 matrix [rows, cols]; ld is the row stride on the fast path."""
    if mode == A.SCALING_TENSOR:
        return (1,), None
    if mode == A.SCALING_ROW:
        return (rows,), None
    if mode == A.SCALING_ROW128:
        return (blocks(cols), rows), (rows + 3) // 4 * 4
    if mode == A.SCALING_ROW128_T:
        return (rows, blocks(cols)), None
    return (blocks(rows), blocks(cols)), None


def two_dims(name, t):
    shape = t.shape
    if len(shape) != 2:
        raise ArgumentError(f"{name} has shape {list(shape)}, not two dimensions")
    return shape


def fp8_empty(xp, like, rows, cols, dtype):
    return xp.empty(like, (rows, cols), dtype, (cols + 15) // 16 * 16)


@functools.lru_cache(maxsize=256)
def quantize_form(op, scalings, pow2, floor):
    return form(op, A.POW2 if pow2 else 0, (("floor", float(floor)),), tuple(zip(("q", "q_t"), scalings)))


def quantize_fp8(xp, x, scale, dtype, pow2, floor, given, want_amax):
    """(codes, scales, amax)"""
    rows, cols = two_dims("x", x)
    mode = pick(SCALES, scale, "scale")
    f = quantize_form("quantize_fp8", (mode,), pow2, floor)
    x, stride = xp.matrix(x)
    q = fp8_empty(xp, x, rows, cols, dtype)
    shape, ld = scale_shape(mode, rows, cols)
    if given is not None:
        given = xp.vector(given)
        same_shape("given", given.shape, shape)
    scales = xp.empty(x, shape, A.F32, ld) if given is None else None
    amax = xp.empty(x, shape, A.F32) if want_amax else None
    values = (rows, cols, 0, 0, 0, 0, *xp.operand(x, stride), *xp.operand(q, q_stride(xp, q)))
    for t in (scales, given, amax):
        values += xp.operand(t, ld or 0) if t is not None else ABSENT
    xp.launch(f, x, values, mode == A.SCALING_TENSOR)
    return q, scales if given is None else given, amax


def q_stride(xp, q):
    return (q.shape[1] + 15) // 16 * 16


def quantize_fp8_dual(xp, x, dual, dtype, pow2, floor, want_colsum):
    """(codes, scales, codes of the transpose, its scales, column sums)"""
    rows, cols = two_dims("x", x)
    mode, mode_t = pick(DUALS, dual, "form")
    f = quantize_form("quantize_fp8_dual", (mode, mode_t), pow2, floor)
    x, stride = xp.matrix(x)
    q, q_t = fp8_empty(xp, x, rows, cols, dtype), fp8_empty(xp, x, cols, rows, dtype)
    shape, ld = scale_shape(mode, rows, cols)
    shape_t, ld_t = scale_shape(mode_t, cols, rows)
    scale, scale_t = xp.empty(x, shape, A.F32, ld), xp.empty(x, shape_t, A.F32, ld_t)
    colsum = xp.empty(x, (cols,), A.F32) if want_colsum else None
    xp.launch(f, x, (rows, cols, 0, 0, 0, 0, *xp.operand(x, stride), *xp.operand(q, q_stride(xp, q)),
                     *xp.operand(scale, ld or 0), *xp.operand(q_t, q_stride(xp, q_t)), *xp.operand(scale_t, ld_t or 0),
                     *(xp.operand(colsum, 0) if want_colsum else ABSENT)), want_colsum)
    return q, scale, q_t, scale_t, colsum


def transpose_fp8(xp, q, scale):
    """(codes of the transpose, its scales) of codes with scales of blocks of 128 x 128"""
    rows, cols = two_dims("q", q)
    same_shape("scale", scale.shape, (blocks(rows), blocks(cols)))
    (q, stride), (scale, ld) = xp.matrix(q), xp.matrix(scale)
    vq = xp.operand(q, stride)
    q_t, scale_t = fp8_empty(xp, q, cols, rows, vq[2]), xp.empty(q, (blocks(cols), blocks(rows)), A.F32)
    f = form("transpose_fp8", 0, (), (("q", A.SCALING_BLK128), ("q_t", A.SCALING_BLK128)))
    xp.launch(f, q, (rows, cols, 0, 0, 0, 0, *vq, *xp.operand(scale, ld), *xp.operand(q_t, q_stride(xp, q_t)),
                     *xp.operand(scale_t, 0)))
    return q_t, scale_t


def swiglu_quantize_form(dual, activation, gate_mul, down_mul, alpha, up_offset, limit, interleaved):
    return _swiglu_quantize_form(dual, activation, swiglu_options(gate_mul, down_mul, alpha, up_offset, limit), interleaved)


@functools.lru_cache(maxsize=256)
def _swiglu_quantize_form(dual, activation, options, interleaved):
    flags = pick(ACTIVATIONS, activation, "activation") | (A.INTERLEAVED if interleaved else 0)
    scaling = tuple(zip(("q", "q_t"), pick(DUALS, dual, "form")))
    return form("swiglu_quantize", flags, (*zip(OPTIONS, _five.unpack(options)), ("floor", 0.0)), scaling)


def swiglu_quantize(xp, f, dual, gate, up, interleaved, dtype):
    """quantize_fp8_dual of swiglu_fwd's result [rows, cols]: (codes, scales, codes of the transpose, scales); dual: as f's."""
    kept, g, u, cols = gate_and_up(xp, gate, up, interleaved)
    rows = rows_of(gate.shape)
    q, q_t = fp8_empty(xp, gate, rows, cols, dtype), fp8_empty(xp, gate, cols, rows, dtype)
    mode, mode_t = DUALS[dual]
    (shape, ld), (shape_t, ld_t) = scale_shape(mode, rows, cols), scale_shape(mode_t, cols, rows)
    scale, scale_t = xp.empty(gate, shape, A.F32, ld), xp.empty(gate, shape_t, A.F32, ld_t)
    xp.launch(f, gate, (rows, cols, 0, 0, 0, 0, *g, *u, *xp.operand(q, q_stride(xp, q)), *xp.operand(scale, ld or 0),
                        *xp.operand(q_t, q_stride(xp, q_t)), *xp.operand(scale_t, ld_t or 0), *ABSENT), True)
    return q, scale, q_t, scale_t


def gemm_operand(xp, name, t, scale, mode, k):
    rows, cols = two_dims(name, t)
    if cols != k:
        raise ArgumentError(f"{name} has {cols} columns, not {k}: both operands have the contraction last")
    shape, _ = scale_shape(mode, rows, cols)
    if scale.shape != shape:
        same_shape("scale_" + name, scale.shape if len(scale.shape) else (1,), shape)
    t, stride = xp.matrix(t)
    if len(shape) == 2:
        scale, scale_stride = xp.matrix(scale)
    else:
        scale, scale_stride = xp.vector(scale), 0
    return (t, scale), (*xp.operand(t, stride), *xp.operand(scale, scale_stride))


def fp8_gemm(xp, a, scale_a, b, scale_b, scales, out_dtype, bias, out, adds=True):
    """a [m, k] times b [n, k] transposed; into `out` if there is one, where it is added to what is there unless adds is False."""
    mode_a, mode_b = pick(PAIRS, scales, "scales")
    m, k = two_dims("a", a)
    kept_a, va = gemm_operand(xp, "a", a, scale_a, mode_a, k)
    kept_b, vb = gemm_operand(xp, "b", b, scale_b, mode_b, k)
    n = b.shape[0]
    stride = 0
    if out is None:
        d = xp.empty(a, (m, n), out_dtype)
    else:
        same_shape("out", out.shape, (m, n))
        d, stride = xp.matrix(out)
        if d is not out:
            raise ArgumentError("out must be addressable by rows: its last stride is 1 and rows do not overlap")
    if bias is not None:
        bias = xp.vector(bias)
        same_shape("bias", bias.shape, (n,))
    xp.launch(form("gemm_fp8", A.ACCUMULATE if out is not None and adds else 0, (), (("a", mode_a), ("b", mode_b))), a,
              (m, n, k, 0, 0, 0, *va, *vb, *xp.operand(d, stride), *(xp.operand(bias, 0) if bias is not None else ABSENT)),
              True)
    return d


GROUPED = {"m": A.GROUPED_M, "k": A.GROUPED_K, "masked": A.GROUPED_MASKED}


def gemm_fp8_grouped(xp, a, scale_a, b, scale_b, offsets, mode, out_dtype, out, scales=None, bias=None, report=True):
    """(d, bad) of a product a group; into `out`, with mode "k" by accumulation, if there is one. Without `report` bad is None,
    and one kernel less runs."""
    flag, by_k, masked = pick(GROUPED, mode, "mode"), mode == "k", mode == "masked"
    mode_a, mode_b = pick(PAIRS, scales or ("row128_row128" if by_k else "row128_blk128"), "scales")
    if len(a.shape) != (3 if masked else 2) or len(b.shape) != (2 if by_k else 3) or len(offsets.shape) != 1:
        raise ArgumentError(f"mode {mode!r}: a has {len(a.shape)} dimensions, b {len(b.shape)}, offsets {len(offsets.shape)}")
    m, n, k = a.shape[-2], b.shape[-2], a.shape[-1]
    groups = offsets.shape[0] - (not masked)
    if b.shape[-1] != k:
        raise ArgumentError(f"a has {k} columns, b {b.shape[-1]}: both operands have the contraction last")
    if groups < 0 or (masked and a.shape[0] != groups) or (not by_k and b.shape[0] != groups):
        raise ArgumentError(f"offsets are those of {groups} groups, a has shape {list(a.shape)}, b {list(b.shape)}")
    shape_a = (groups, m) if by_k and mode_a == A.SCALING_ROW else scale_shape(mode_a, groups * m if masked else m, k)[0]
    shape_b = (groups, n) if mode_b == A.SCALING_ROW else scale_shape(mode_b, n if by_k else groups * n, k)[0]
    if not by_k and mode_b in (A.SCALING_TENSOR, A.SCALING_BLK128):  # those of a group begin anew
        shape_b = (groups,) if mode_b == A.SCALING_TENSOR else (groups, blocks(n), blocks(k))
    same_shape("scale_a", scale_a.shape if len(scale_a.shape) else (1,), shape_a)
    same_shape("scale_b", scale_b.shape if len(scale_b.shape) else (1,), shape_b)
    shape = (m, n) if mode == "m" else (groups, m, n)
    (a, stride_a), (b, stride_b) = map(xp.matrix, (a, b))
    whole = A.SCALING_TENSOR, A.SCALING_ROW
    scale_a, ld_a = (xp.vector(scale_a.reshape(-1)), 0) if mode_a in whole else xp.matrix(scale_a)
    scale_b, ld_b = (xp.vector(scale_b.reshape(-1)), 0) if mode_b in whole else xp.matrix(scale_b)
    if bias is not None:
        same_shape("bias", bias.shape, (groups, n))
        bias = xp.vector(bias.reshape(-1))
    offsets, stride, d = xp.vector(offsets), 0, out
    if out is None:
        d = xp.empty(a, shape, out_dtype)
    else:
        same_shape("out", out.shape, shape)
        d, stride = xp.matrix(out)
        if d is not out:
            raise ArgumentError("out must be addressable by rows: its last stride is 1 and rows do not overlap")
    bad = xp.empty(a, (1,), A.I32) if report else None
    flags = flag | (A.ACCUMULATE if by_k and out is not None else 0)
    xp.launch(form("gemm_fp8_grouped", flags, (), (("a", mode_a), ("b", mode_b))), a,
              (m, n, k, groups, 0, 0, *xp.operand(a, stride_a), *xp.operand(scale_a, ld_a), *xp.operand(b, stride_b),
               *xp.operand(scale_b, ld_b), *xp.operand(d, stride), *xp.operand(offsets, 0),
               *(xp.operand(bad, 0) if report else ABSENT), *(xp.operand(bias, 0) if bias is not None else ABSENT)), True)
    return d, bad


# --------------------------------------------------------------------------------------------------------------- Q8_0


def q8_0_quantize(xp, x):
    rows, cols = two_dims("x", x)
    x, stride = xp.matrix(x)
    w = xp.empty(x, (rows, cols // 32 * 34), A.U8)
    xp.launch(form("q8_0_quantize"), x, (rows, cols, 0, 0, 0, 0, *xp.operand(x, stride), *xp.operand(w, 0)))
    return w


def q8_0_repack(xp, w):
    """Blocks [rows, cols/32*34] u8 -> codes [rows, cols] i8 and scales [rows, cols/32] f16."""
    rows, wide = two_dims("blocks", w)
    if wide % 34:
        raise ArgumentError(f"blocks have {wide} bytes a row, not a multiple of 34")
    cols = wide // 34 * 32
    w, stride = xp.matrix(w)
    ld = (cols + 127) // 128 * 128
    codes, scales = xp.empty(w, (rows, cols), A.I8, ld), xp.empty(w, (rows, cols // 32), A.F16)
    xp.launch(form("q8_0_repack"), w, (rows, cols, 0, 0, 0, 0, *xp.operand(w, stride), *xp.operand(codes, ld),
                                       *xp.operand(scales, 0)))
    return codes, scales


def q8_0_matmul(xp, x, w, scales, out_dtype):
    """x [tokens, cols] times the rows of w (blocks, or codes with scales): [tokens, rows]."""
    tokens, cols = two_dims("x", x)
    rows, wide = two_dims("w", w)
    if (wide if scales is not None else wide // 34 * 32) != cols:
        raise ArgumentError(f"x has {cols} columns, the weight {wide if scales is not None else wide // 34 * 32}")
    x, x_stride = xp.matrix(x)
    w, stride = xp.matrix(w)
    out = xp.empty(x, (tokens, rows), out_dtype)
    s = ABSENT
    if scales is not None:
        same_shape("scales", scales.shape, (rows, cols // 32))
        scales, scale_stride = xp.matrix(scales)
        s = xp.operand(scales, scale_stride)
    xp.launch(form("q8_0_matmul"), x, (tokens, cols, rows, 0, 0, 0, *xp.operand(x, x_stride), *ABSENT,
                                       *xp.operand(w, stride), *s, *xp.operand(out, 0), *ABSENT), True)
    return out


# ------------------------------------------------------------------------------------------------ norm, cross entropy


def rms_norm(xp, x, weight, eps):
    if not len(x.shape):
        raise ArgumentError("x has no dimensions")
    if weight is not None:
        same_shape("weight", weight.shape, x.shape[-1:])
    x2, stride = xp.matrix(x)
    v = xp.operand(x2, stride)
    out = xp.empty(x, x.shape, v[2])
    weight = xp.vector(weight) if weight is not None else None
    w = xp.operand(weight, 0) if weight is not None else ABSENT
    xp.launch(form("rms_norm", 0, (("eps", float(eps)),)), x, (rows_of(x.shape), x.shape[-1], 0, 0, 0, 0, *v, *w,
                                                              *xp.operand(out, 0)))
    return out


def weight_of(xp, weight, cols):
    if weight is None:
        return None, ABSENT
    same_shape("weight", weight.shape, (cols,))
    weight = xp.vector(weight)
    return weight, xp.operand(weight, 0)


def add_rms_norm(xp, x, residual, weight, eps, out_dtype=None):
    """(rms_norm of x + residual, that sum in residual's dtype); without residual (rms_norm of x, None)."""
    if not len(x.shape):
        raise ArgumentError("x has no dimensions")
    cols = x.shape[-1]
    kept_w, w = weight_of(xp, weight, cols)
    x2, stride = xp.matrix(x)
    v = xp.operand(x2, stride)
    r, total, summed = ABSENT, ABSENT, None
    if residual is not None:
        same_shape("residual", residual.shape, x.shape)
        residual, stride = xp.matrix(residual)
        r = xp.operand(residual, stride)
        summed = xp.empty(x, x.shape, r[2])
        total = xp.operand(summed, 0)
    out = xp.empty(x, x.shape, out_dtype or v[2])
    xp.launch(form("add_rms_norm", 0, (("eps", float(eps)),)), x,
              (rows_of(x.shape), cols, 0, 0, 0, 0, *v, *r, *w, *total, *xp.operand(out, 0), *ABSENT), True)
    return out, summed


def rms_norm_bwd(xp, dout, x, weight, dsum, eps, want_dx, want_dw):
    """(dx, dw), each None where it is not wanted; dsum: the gradient of x (or the sum) by what else reads it, or None."""
    shape, cols = x.shape, x.shape[-1]
    kept_w, w = weight_of(xp, weight, cols)
    same_shape("dout", dout.shape, shape)
    (x, xs), (dout, ds) = xp.matrix(x), xp.matrix(dout)
    v, more = xp.operand(x, xs), ABSENT
    if dsum is not None:
        same_shape("dsum", dsum.shape, shape)
        dsum, stride = xp.matrix(dsum)
        more = xp.operand(dsum, stride)
    dx = xp.empty(x, shape, v[2]) if want_dx else None
    dw = xp.empty(x, (cols,), w[2]) if want_dw else None
    xp.launch(form("rms_norm_bwd", 0, (("eps", float(eps)),)), x,
              (rows_of(shape), cols, 0, 0, 0, 0, *xp.operand(dout, ds), *v, *w,
               *(xp.operand(dx, 0) if want_dx else ABSENT), *(xp.operand(dw, 0) if want_dw else ABSENT), *more), True)
    return dx, dw


PAIRINGS = {"halves": A.ROPE_HALVES, "adjacent": 0}


def rope(xp, x, positions, freqs, pairs, inverse, mscale):
    """x [.., heads, head_dim]; positions [..] i32 or i64; freqs [n_rot/2] f64."""
    if len(x.shape) < 2:
        raise ArgumentError(f"x has shape {list(x.shape)}, not [.., heads, head_dim]")
    *lead, heads, head_dim = x.shape
    same_shape("positions", positions.shape, lead)
    if len(freqs.shape) != 1:
        raise ArgumentError(f"freqs has shape {list(freqs.shape)}, not one dimension")
    flags = pick(PAIRINGS, pairs, "pairs") | (A.ROPE_INVERSE if inverse else 0)
    tokens = rows_of((*lead, 1))
    x, stride = xp.matrix(x.reshape(tokens, heads * head_dim))
    positions, freqs = xp.vector(positions), xp.vector(freqs)
    v = xp.operand(x, stride)
    out = xp.empty(x, (*lead, heads, head_dim), v[2])
    xp.launch(form("rope", flags, (("mscale", float(mscale)),)), x,
              (tokens, heads, head_dim, 2 * freqs.shape[0], 0, 0, *v, *xp.operand(positions, 0), *xp.operand(freqs, 0),
               *xp.operand(out, 0)))
    return out


CE_STATS = {"token_loss": A.F32, "lse": A.F32, "target_logit": A.F32, "entropy": A.F32, "argmax": A.I64}


class CeProblem:
    """The operands that linear_ce_eval, _train and _backward share. total: the classes of the whole vocabulary, where w has a
    slice of them."""

    def __init__(self, xp, x, w, target, bias, class_weight, reduction, transposed, options, total=None):
        self.xp, self.x, self.reduction = xp, x, reduction
        if not len(x.shape):
            raise ArgumentError("input has no dimensions")
        tokens, hidden = rows_of(x.shape), x.shape[-1]
        rows, cols = two_dims("weight", w)
        vocab = cols if transposed else rows
        if (rows if transposed else cols) != hidden:
            raise ArgumentError(f"input has {hidden} columns, the weight's shape is {[rows, cols]}")
        same_shape("target", target.shape, x.shape[:-1])
        if bias is not None:
            same_shape("bias", bias.shape, (vocab,))
        if class_weight is not None:
            same_shape("the class weights", class_weight.shape, (vocab if total is None else total,))
        self.dims = (tokens, hidden, vocab, 0, 0, 0)
        self.shape_w = (rows, cols)
        self.flags = pick(REDUCTIONS, reduction, "reduction") | (A.CE_W_HV if transposed else 0)
        self.options = tuple(options)
        (self.x2, xs), (self.w2, ws), self.target = xp.matrix(x), xp.matrix(w), xp.vector(target)
        self.bias = xp.vector(bias) if bias is not None else None
        self.class_weight = xp.vector(class_weight) if class_weight is not None else None
        self.head = (*xp.operand(self.x2, xs), *xp.operand(self.w2, ws), *xp.operand(self.target, 0))

    def some(self, t):
        return self.xp.operand(t, 0) if t is not None else ABSENT

    def loss(self):
        return self.xp.empty(self.x, self.x.shape[:-1] if self.reduction == "none" else (), A.F32)

    def gradients(self, want_dx, want_dw, want_dbias, dw_dtype):
        x, v = self.xp, self.head
        dx = x.empty(self.x, self.x.shape, v[2]) if want_dx else None
        dw = x.empty(self.x, self.shape_w, dw_dtype or v[5]) if want_dw else None
        dbias = x.empty(self.x, self.dims[2:3], A.F32) if want_dbias else None
        return dx, dw, dbias

    def launch(self, op, values):
        """Beyond 16384 tokens the gradients get memory for an eighth of them at a time (P^T): dW is then not read and written
        for every thousand tokens, and a model's activations take far more."""
        tokens, _, vocab = self.dims[:3]
        extra = min(tokens // 8, 8192) * 2 * vocab if tokens > 16384 and op != "linear_ce_eval" else 0
        self.xp.launch(form(op, self.flags, self.options), self.x, self.dims + self.head + values, extra or True)


def _ids(p, ids):
    """ids [tokens, K] as an operand; K becomes an option of the problem."""
    if ids is None:
        return ABSENT
    if len(ids.shape) != 2 or ids.shape[0] != p.dims[0]:
        raise ArgumentError(f"ids has shape {list(ids.shape)}, not [{p.dims[0]}, K]")
    p.options += (("ids", ids.shape[1]),)
    return p.xp.operand(*p.xp.matrix(ids))


def linear_ce_eval(p, stats=(), ids=None, topk=0, draw=None):
    """(loss, {name: statistic}); with ids [tokens, K] also "id_logprob" of their shape; with topk "top_id" and "top_logprob";
    with draw (seed, counter: i64 [tokens] each) "sample_id" and "sample_logprob" """
    loss = p.loss()
    out = {name: p.xp.empty(p.x, p.dims[:1], CE_STATS[name]) for name in stats}
    values = p.some(loss) + p.some(p.bias) + p.some(p.class_weight)
    for name in CE_STATS:
        values += p.some(out.get(name))
    if ids is not None:
        out["id_logprob"] = p.xp.empty(p.x, ids.shape, A.F32)
    values += ABSENT * (14 - 11)
    for t in draw or (None, None):
        values += p.some(None if t is None else p.xp.vector(t))
    values += ABSENT * (18 - 16) + _ids(p, ids) + p.some(out.get("id_logprob"))
    if draw:
        out["sample_id"] = p.xp.empty(p.x, p.dims[:1], A.I64)
        out["sample_logprob"] = p.xp.empty(p.x, p.dims[:1], A.F32)
    if topk:
        p.options += (("topk", topk),)
        out["top_id"] = p.xp.empty(p.x, (p.dims[0], topk), A.I64)
        out["top_logprob"] = p.xp.empty(p.x, (p.dims[0], topk), A.F32)
    for name in ("top_id", "top_logprob", "sample_id", "sample_logprob"):
        values += p.some(out.get(name))
    p.launch("linear_ce_eval", values)
    return loss, out


def linear_ce_record(p, out, sums, found=None, ids=None, topk=0, draw=None):
    """What each row of a slice of the vocabulary gives to ce_combine, into out [tokens, 6 if sums else 3]; and into found, by the
    operand's name, what linear_ce_eval gives of ids, topk and draw, where tables may have more columns than topk."""
    operands = dict(zip(("x", "w", "target"), (p.head[:3], p.head[3:6], p.head[6:9])), bias=p.some(p.bias),
                    class_weight=p.some(p.class_weight), record=p.some(out), ids=_ids(p, ids))
    if topk:
        p.options += (("topk", topk),)
    for name, t in zip(("seed", "counter"), draw or ()):
        operands[name] = p.some(p.xp.vector(t))
    for name, t in (found or {}).items():
        operands[name] = p.some(t) if len(t.shape) == 1 else p.xp.operand(*p.xp.matrix(t[:, :topk] if topk else t))
    f = form("linear_ce_eval", p.flags | (A.CE_RECORD_SUMS if sums else 0), p.options)
    p.xp.launch(f, p.x, p.dims + by_slots("linear_ce_eval", operands), True)


def ce_combine(xp, record, offsets, target, class_weight, vocab, reduction, options, entropy=False):
    """(loss, lse, entropy or None) from the records [slices, tokens, 3 or 6] of slices that begin at `offsets`."""
    slices, tokens, width = record.shape
    loss = xp.empty(record, (tokens,) if reduction == "none" else (), A.F32)
    lse = xp.empty(record, (tokens,), A.F32)
    entropy = xp.empty(record, (tokens,), A.F32) if entropy else None
    flags = pick(REDUCTIONS, reduction, "reduction") | (A.CE_RECORD_SUMS if width == 6 else 0)
    operands = {name: xp.operand(t, 0) for name, t in (("record", record), ("offset", offsets), ("target", xp.vector(target)),
                                                       ("loss", loss), ("class_weight", class_weight), ("lse", lse),
                                                       ("entropy", entropy)) if t is not None}
    xp.launch(form("ce_combine", flags, options), record, (tokens, vocab, slices, 0, 0, 0, *by_slots("ce_combine", operands)), True)
    return loss, lse, entropy


def by_slots(op, operands):
    """The operands of a call, given by name, in the order of its slots."""
    slots = A.SLOTS[op]
    values = [ABSENT] * (max(slots.values()) + 1)
    for name, operand in operands.items():
        values[slots[name]] = operand
    return sum(values, ())


def linear_ce_train(p, want_dx, want_dw, want_dbias, dw_dtype=None, row_weight=None):
    """row_weight [tokens], with reduction none: the gradient of each row's loss"""
    loss = p.loss()
    dx, dw, dbias = p.gradients(want_dx, want_dw, want_dbias, dw_dtype)
    if row_weight is not None:
        same_shape("row_weight", row_weight.shape, p.dims[:1])
        row_weight = p.xp.vector(row_weight)
    values = p.some(loss) + p.some(p.bias) + p.some(p.class_weight) + ABSENT * 8 + p.some(row_weight)
    p.launch("linear_ce_train", values + p.some(dx) + p.some(dw) + p.some(dbias) + ABSENT * 6)
    return loss, dx, dw, dbias


def linear_ce_backward(p, lse, dloss, want_dx, want_dw, want_dbias, dw_dtype=None, entropy=None, dentropy=None,
                       ids=None, id_logprob=None, did_logprob=None):
    dx, dw, dbias = p.gradients(want_dx, want_dw, want_dbias, dw_dtype)
    same_shape("lse", lse.shape, p.dims[:1])
    if dloss is not None and (p.reduction == "none" or len(dloss.shape)):
        same_shape("dloss", dloss.shape, p.dims[:1] if p.reduction == "none" else (1,))
    rows = [t if t is None else p.xp.vector(t) for t in (lse, dloss, entropy, dentropy)]  # copies live until the launch
    for name, t in zip(("entropy", "dentropy"), rows[2:]):
        if t is not None:
            same_shape(name, t.shape, p.dims[:1])
    for name, t in (("id_logprob", id_logprob), ("did_logprob", did_logprob)):
        if ids is not None:
            same_shape(name, t.shape, ids.shape)
    tables = [t if t is None else p.xp.matrix(t) for t in (id_logprob, did_logprob)]
    lse, dloss, entropy, dentropy = map(p.some, rows)
    id_logprob, did_logprob = (ABSENT if t is None else p.xp.operand(*t) for t in tables)
    p.launch("linear_ce_backward", lse + dloss + p.some(p.bias) + p.some(p.class_weight) + p.some(dx) + p.some(dw)
             + p.some(dbias) + entropy + dentropy + _ids(p, ids) + id_logprob + did_logprob)
    return dx, dw, dbias


class CePhases:
    """linear_ce_train of a slice in three launches, between which lse [tokens] is filled in; begin writes record. dx: where it goes."""

    def __init__(self, p, record, lse, want_dx, want_dw, want_dbias, dw_dtype=None, dx=None):
        self.p = p
        self.dx, self.dw, self.dbias = p.gradients(want_dx and dx is None, want_dw, want_dbias, dw_dtype)
        self.dx = self.dx if dx is None else dx
        operands = dict(zip(("x", "w", "target"), (p.head[:3], p.head[3:6], p.head[6:9])), bias=p.some(p.bias),
                        class_weight=p.some(p.class_weight), lse=p.some(lse), record=p.some(record), dx=p.some(self.dx),
                        dw=p.some(self.dw), dbias=p.some(self.dbias))
        self.values = p.dims + by_slots("linear_ce_train", operands)
        flags = p.flags | (A.CE_RECORD_SUMS if record.shape[1] == 6 else 0)
        self.form_of = {phase: form("linear_ce_train", flags | phase, p.options) for phase in (A.CE_BEGIN, A.CE_DX, A.CE_DW)}
        self.state = p.xp.memory_for(self.form_of[A.CE_BEGIN], p.x, self.values)

    def run(self, phase):
        self.p.xp.launch(self.form_of[phase], self.p.x, self.values, self.state)


class LogitsProblem:
    """The operands that ce_fwd and ce_bwd share: logits [.., vocab] that are there already."""

    def __init__(self, xp, logits, target, class_weight, reduction, options):
        if not len(logits.shape):
            raise ArgumentError("logits has no dimensions")
        same_shape("target", target.shape, logits.shape[:-1])
        if class_weight is not None:
            same_shape("the class weights", class_weight.shape, logits.shape[-1:])
        self.xp, self.logits, self.reduction, self.options = xp, logits, reduction, tuple(options)
        self.rows = logits.shape[:-1]
        self.dims = (rows_of(logits.shape), logits.shape[-1], 0, 0, 0, 0)
        (self.two, stride), self.target = xp.matrix(logits), xp.vector(target)
        self.class_weight = xp.vector(class_weight) if class_weight is not None else None
        self.head = (*xp.operand(self.two, stride), *xp.operand(self.target, 0))

    def some(self, t):
        return self.xp.operand(t, 0) if t is not None else ABSENT

    def launch(self, op, values):
        f = form(op, pick(REDUCTIONS, self.reduction, "reduction"), self.options)
        self.xp.launch(f, self.logits, self.dims + self.head + values, True)


def ce_fwd(p, stats=()):
    """(loss, {name: statistic})"""
    loss = p.xp.empty(p.logits, p.rows if p.reduction == "none" else (), A.F32)
    out = {name: p.xp.empty(p.logits, p.rows, CE_STATS[name]) for name in stats}
    values = p.some(loss) + p.some(p.class_weight)
    for name in CE_STATS:
        values += p.some(out.get(name))
    p.launch("ce_fwd", values + ABSENT * 3)
    return loss, out


def ce_bwd(p, lse, dloss):
    same_shape("lse", lse.shape, p.rows)
    same_shape("dloss", dloss.shape, p.rows if p.reduction == "none" else ())
    lse, dloss = p.xp.vector(lse), p.xp.vector(dloss)  # copies live until the launch
    dlogits = p.xp.empty(p.logits, p.logits.shape, p.head[2])
    p.launch("ce_bwd", p.some(lse) + p.some(dloss) + p.some(p.class_weight) + p.some(dlogits) + ABSENT * 2)
    return dlogits

"""peers_norm.py: the suite `norm` of peers.py: add_rms_norm, its backward and RoPE beside PyTorch's eager operators, what
torch.compile makes of them, and Liger where it is installed. 8192 tokens in bf16."""
import torch
import torch.nn.functional as F

import binding
from peers import CACHE, bf16_error, optional

EPS = 1e-6


def add_norm(x, residual, w):
    total = x + residual
    return total, F.rms_norm(total, (total.shape[-1],), w, EPS)


def norm_backward(dout, x, w, dsum):
    """dx + dsum and dw, in f32 as a fused kernel has them."""
    xf, g = x.float(), dout.float() * w.float()
    r = torch.rsqrt(xf.square().mean(-1, keepdim=True) + EPS)
    scaled = xf * r
    dx = r * (g - scaled * (g * scaled).mean(-1, keepdim=True))
    return (dx + dsum.float()).to(x.dtype), (dout.float() * scaled).sum(0).to(w.dtype)


def rotate(x, cos, sin):
    """Hugging Face's apply_rotary_pos_emb of [tokens, heads, head_dim], tables [tokens, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, None] + turned * sin[:, None]


def sets_of(rows, cols, count):
    sets = max(2, min(64, int(CACHE // (count * rows * cols * 2)) + 1))
    return [[torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(count)] for _ in range(sets)]


def copies(sets, elements):
    flat = [torch.empty(elements, device="cuda", dtype=torch.bfloat16).normal_() for _ in sets]
    index = {id(t): i for i, t in enumerate(sets)}
    half = elements // 2
    return "copy_", lambda t: flat[index[id(t)]][:half].copy_(flat[index[id(t)]][half:])


def ridge_calls(lib, sets, make, all_kernels):
    probe = make(sets[0], None)
    picked = lib.pick(probe)
    names = {"ridge": picked}
    if all_kernels:
        names |= {f"ridge:{name}": name for name in binding.runnable(lib, probe) if name != picked}
    bytes_ = max(lib.workspace_bytes(make(sets[0], kernel)) for kernel in names.values())
    work = torch.empty(max(bytes_, 1), device="cuda", dtype=torch.uint8)
    made = {}
    for name, kernel in names.items():
        ready = {id(t): make(t, kernel) for t in sets}
        made[name] = (kernel, lambda t, ready=ready: lib.run(ready[id(t)], workspace=work.data_ptr() if bytes_ else 0,
                                                            workspace_bytes=bytes_, stream=binding.stream()))
    return made


def norm_suite(lib, all_kernels):
    compiled = [torch.compile(f, dynamic=False) for f in (add_norm, norm_backward, rotate)]
    liger = optional("liger_kernel.ops.fused_add_rms_norm")
    for rows, cols in ((8192, 4096), (8192, 2048), (8192, 8192)):
        w = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
        sets = sets_of(rows, cols, 4)
        make = lambda t, kernel: binding.call("add_rms_norm", (rows, cols),
                                              dict(x=t[0], residual=t[1], w=w, sum=t[2], out=t[3]), kernel=kernel, eps=EPS)
        providers = ridge_calls(lib, sets, make, all_kernels)
        providers["torch"] = ("eager", lambda t: add_norm(t[0], t[1], w))
        providers["torch.compile"] = ("inductor", lambda t: compiled[0](t[0], t[1], w))
        if liger:
            providers["liger"] = ("fused_add_rms_norm", lambda t: liger.fused_add_rms_norm_forward(
                t[0], t[1], w, EPS, 0.0, "llama"))
        providers["copy"] = copies(sets, 4 * rows * cols)

        def error(t):
            total = (t[0][:64] + t[1][:64]).double()
            return bf16_error(t[3][:64], total * torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS) * w.double())

        yield dict(op="add_rms_norm", problem=f"rows={rows} cols={cols}", bytes=8 * rows * cols, flops=5 * rows * cols,
                   sets=sets, providers=providers, error=error)
        dw = torch.empty(cols, device="cuda", dtype=torch.bfloat16)
        make = lambda t, kernel: binding.call("rms_norm_bwd", (rows, cols), dict(dout=t[0], x=t[1], w=w, dsum=t[2], dx=t[3],
                                                                                 dw=dw), kernel=kernel, eps=EPS)
        providers = ridge_calls(lib, sets, make, all_kernels)
        providers["torch.compile"] = ("inductor", lambda t: compiled[1](t[0], t[1], w, t[2]))
        providers["torch"] = ("eager", lambda t: torch.ops.aten._fused_rms_norm_backward(
            t[0], t[1], [cols], torch.rsqrt(t[1].float().square().mean(-1, keepdim=True) + EPS), w, [True, True]))
        providers["copy"] = copies(sets, 4 * rows * cols)

        def error(t):
            want = norm_backward(t[0][:64].double(), t[1][:64].double(), w.double(), t[2][:64].double())[0]
            return bf16_error(t[3][:64], want)

        yield dict(op="rms_norm_bwd", problem=f"rows={rows} cols={cols} dsum=bf16", bytes=8 * rows * cols,
                   flops=12 * rows * cols, sets=sets, providers=providers, error=error)
    for heads in (32, 8):
        rows, cols = 8192, 128 * heads
        sets = sets_of(rows, cols, 2)
        pos = torch.arange(rows, device="cuda", dtype=torch.int64)
        freqs = torch.tensor([5e5 ** (-i / 64) for i in range(64)], device="cuda", dtype=torch.float64)
        angle = torch.cat([pos[:, None] * freqs] * 2, -1)
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        make = lambda t, kernel: binding.call("rope", (rows, heads, 128, 128), dict(x=t[0], pos=pos, freqs=freqs, out=t[1]),
                                              flags=0x400, kernel=kernel)
        providers = ridge_calls(lib, sets, make, all_kernels)
        providers["torch"] = ("eager", lambda t: rotate(t[0].view(rows, heads, 128), cos, sin))
        providers["torch.compile"] = ("inductor", lambda t: compiled[2](t[0].view(rows, heads, 128), cos, sin))
        providers["copy"] = copies(sets, 2 * rows * cols)

        def error(t):
            want = rotate(t[0].view(rows, heads, 128).double(), angle.cos(), angle.sin())
            return bf16_error(t[1].view(rows, heads, 128), want)

        yield dict(op="rope", problem=f"tokens={rows} heads={heads} head_dim=128 n_rot=128 halves=1", bytes=4 * rows * cols,
                   flops=3 * rows * cols, sets=sets, providers=providers, error=error)

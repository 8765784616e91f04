"""peers_attention.py: the suite `attention` of peers.py: attention_decode and attention_prefill beside PyTorch's
scaled_dot_product_attention by each of its fused backends. bf16; the queries are the last tokens of a full cache."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

import binding
from peers import CACHE
from peers_norm import ridge_calls

DECODE = [(1, 512, 32, 8, 128), (1, 2048, 32, 8, 128), (1, 4096, 32, 8, 128), (1, 16384, 32, 8, 128),
          (8, 4096, 32, 8, 128), (16, 512, 32, 8, 128), (1, 512, 9, 3, 64)]  # tokens, positions, heads, kv_heads, head_dim
PREFILL = [(128, 128, 32, 8, 128), (512, 512, 32, 8, 128), (2048, 2048, 32, 8, 128), (4096, 4096, 32, 8, 128),
           (512, 512, 9, 3, 64)]
BACKENDS = {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cudnn": SDPBackend.CUDNN_ATTENTION}


def of_torch(t, tokens, positions, heads, kv_heads, dim, backend):
    """Of a few queries at the end of the cache PyTorch's kernels mask nothing: less work than ridge's."""
    q = t[0].view(tokens, heads, dim).transpose(0, 1)[None]
    with sdpa_kernel(backend):
        return sdpa(q, t[1].view(1, kv_heads, positions, dim), t[2].view(1, kv_heads, positions, dim),
                    is_causal=tokens == positions, enable_gqa=True)


def attention_suite(lib, all_kernels):
    for op, shapes in (("attention_decode", DECODE), ("attention_prefill", PREFILL)):
        for tokens, positions, heads, kv_heads, dim in shapes:
            shape = (tokens, positions, heads, kv_heads, dim)
            bytes_ = 2 * (2 * tokens * heads + 2 * positions * kv_heads) * dim
            new = lambda *size: torch.randn(*size, device="cuda", dtype=torch.bfloat16)
            sets = [[new(tokens, heads * dim), new(kv_heads, positions * dim), new(kv_heads, positions * dim),
                     new(tokens, heads * dim)] for _ in range(max(2, min(64, int(CACHE // bytes_) + 1)))]
            pos = torch.arange(positions - tokens, positions, device="cuda", dtype=torch.int32)
            make = lambda t, kernel: binding.call(op, (tokens, heads, kv_heads, dim, positions),
                                                  dict(q=t[0], k=t[1], v=t[2], pos=pos, out=t[3]), kernel=kernel,
                                                  scale=dim**-0.5)
            providers = ridge_calls(lib, sets, make, all_kernels)
            for name, backend in BACKENDS.items():
                providers[name] = (name.split()[1], lambda t, b=backend: of_torch(t, *shape, b))
            flat = [new(max(bytes_ // 2, 2)) for _ in sets]
            index = {id(t): i for i, t in enumerate(sets)}
            half = flat[0].numel() // 2
            providers["copy"] = ("copy_", lambda t: flat[index[id(t)]][:half].copy_(flat[index[id(t)]][half:]))

            def error(t):
                """Largest difference from float64 in units of 2^-8 of the largest result."""
                q = t[0].view(tokens, heads, dim).double().transpose(0, 1)[:2]
                k, v = (x.view(kv_heads, positions, dim).double()[:1] for x in t[1:3])
                seen = torch.arange(positions, device="cuda")[None] <= pos[:, None]
                s = (q @ k.transpose(1, 2) * dim**-0.5).masked_fill(~seen, -torch.inf)
                want = s.softmax(-1) @ v
                got = t[3].view(tokens, heads, dim).double().transpose(0, 1)[:2]
                return ((got - want).abs().max() / want.abs().max() * 256).item()

            yield dict(op=op, problem=f"tokens={tokens} heads={heads} kv_heads={kv_heads} head_dim={dim} "
                       f"positions={positions}", bytes=bytes_, flops=4 * heads * dim * tokens * (positions - (tokens - 1) / 2),
                       sets=sets, providers=providers, error=error)
            torch.cuda.empty_cache()

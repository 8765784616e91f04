"""train_moe.py: two layers of a mixture of experts at the width of Qwen3-30B-A3B trained on text: its experts in bf16 by
PyTorch (torch._grouped_mm over rows sorted by expert, torch.compile), and in FP8 by ridge.torch; step time, peak memory and
loss side by side. Attention, norms, router and embeddings are PyTorch's for all.

    python3 bench/train_moe.py [--steps 50] [--tokens 8192] [--providers torch,torch-again,ridge,ridge-e5m2] [--csv FILE]
    python3 bench/train_moe.py --layer 32768 [--csv FILE]      # one block of experts, forward and backward, alone

Text, order of the providers and records are those of train_llama.py. The loss head is ridge's for "ridge" and PyTorch's for
"torch"; "ridge-e5m2" quantises gradients to e5m2, "ridge-recompute" keeps x and the weights in place of their transposed
codes; "liger" has Liger-Kernel's experts in bf16, "sonic" SonicMoE's, whose rows of gate and up alternate, behind ridge's
router. Records of --layer: op moe_layer, with the FLOP of the three products of each pair of a token and an expert, forward
and backward, and peak_bytes beyond weights and input, the new gradients included.
"""
import statistics

import torch
import torch.nn.functional as F
from torch import nn

import train_llama as T
from ridge.torch import experts as E

GRADIENTS = {"ridge": "e4m3", "ridge-e5m2": "e5m2", "ridge-recompute": "e4m3"}


def experts_torch(x, ids, weights, gate_up, down):
    """PyTorch's best of today: sort, two grouped products, sum over the slots."""
    tokens, slots = ids.shape
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    all_experts = torch.arange(gate_up.shape[0], device=x.device)
    ends = torch.searchsorted(flat[order], all_experts, right=True, out_int32=True)
    z = torch._grouped_mm(x[order // slots], gate_up.transpose(1, 2), offs=ends)
    gate, up = z.chunk(2, -1)
    h = F.silu(gate) * up * weights.flatten()[order, None].to(x.dtype)
    y = torch._grouped_mm(h, down.transpose(1, 2), offs=ends)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=x.device)
    return y[place].view(tokens, slots, -1).sum(1)


def experts_liger(x, ids, weights, gate_up, down):
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
    return LigerFusedMoEFunction.apply(x, gate_up, down, ids.to(torch.int32), weights.to(x.dtype))


def experts_sonic(x, ids, weights, gate_up, down):
    from sonicmoe import functional as S
    from sonicmoe.enums import ActivationType
    (tokens, slots), experts = ids.shape, gate_up.shape[0]
    pairs = tokens * slots
    count, ends, *orders = [torch.empty(n, dtype=torch.int32, device=x.device)
                            for n in (experts, experts + 1, pairs, pairs, pairs)]
    S.TC_topk_router_metadata_triton(ids.to(torch.int32), experts, count, ends, *orders)
    a, h = S._UpProjection.apply(x, gate_up.permute(1, 2, 0), None, ends, pairs, slots, *orders, None, False,
                                 ActivationType.SWIGLU, False, False)
    return S._DownProjection.apply(a, h, down.permute(1, 2, 0), None, weights.float(), ends, tokens, slots, *orders, None,
                                   False, ActivationType.SWIGLU)


RIVALS = {"torch": experts_torch, "liger": experts_liger, "sonic": experts_sonic}


class Experts(nn.Module):
    """Softmax over all experts, the best `slots` of them normalised."""

    def __init__(self, args, provider):
        super().__init__()
        self.slots, self.provider = args.slots, provider
        self.router = nn.Linear(args.hidden, args.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(args.experts, 2 * args.inner, args.hidden))
        self.down = nn.Parameter(torch.empty(args.experts, args.hidden, args.inner))
        for p in (self.gate_up, self.down):
            nn.init.normal_(p, std=0.02)

    def forward(self, x):
        two = x.reshape(-1, x.shape[-1])
        logits = self.router(two).float()
        if self.provider in GRADIENTS:
            ids, weights = E.moe_route(logits, self.slots, normalise=True)
            out = E.moe_experts(two, ids, weights, self.gate_up, self.down, gradient_dtype=GRADIENTS[self.provider],
                                recompute=self.provider == "ridge-recompute")
        elif self.provider == "sonic":  # its own router's CuTe kernel is compiled when called
            out = experts_sonic(two, *E.moe_route(logits, self.slots, normalise=True), self.gate_up, self.down)
        else:
            weights, ids = logits.softmax(-1).topk(self.slots, -1)
            experts = RIVALS.get(self.provider, experts_torch)
            out = experts(two, ids, weights / weights.sum(-1, keepdim=True), self.gate_up, self.down)
        return out.view(x.shape)


class Block(nn.Module):
    """Pre-norm attention (grouped heads, norms of q and k, rotary positions) and experts."""

    def __init__(self, args, provider):
        super().__init__()
        self.heads, self.kv, self.size = args.heads, args.kv, args.head
        self.norm1, self.norm2 = nn.RMSNorm(args.hidden, eps=1e-6), nn.RMSNorm(args.hidden, eps=1e-6)
        self.q_norm, self.k_norm = nn.RMSNorm(self.size, eps=1e-6), nn.RMSNorm(self.size, eps=1e-6)
        self.qkv = nn.Linear(args.hidden, (args.heads + 2 * args.kv) * self.size, bias=False)
        self.out = nn.Linear(args.heads * self.size, args.hidden, bias=False)
        self.experts = Experts(args, provider)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, -1, self.size).transpose(1, 2).split((self.heads, self.kv, self.kv), 1)

        def turn(y):
            one, two = y.chunk(2, -1)
            return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

        y = F.scaled_dot_product_attention(turn(self.q_norm(q)), turn(self.k_norm(k)), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.experts(self.norm2(x))


class Trainee(T.Trainee):
    def build(self):
        return T.Model(self.args, lambda: Block(self.args, self.provider))

    def change(self):
        pass


def off(block, x):
    """A rival's output and gradients beside those of experts_torch: the largest relative difference by rms."""
    rearranged = lambda w: torch.cat((w[:, ::2], w[:, 1::2]), 1) if block.provider == "sonic" else w
    leaves = (x, block.gate_up, block.down)
    ids = torch.rand(len(x), len(block.gate_up), device=x.device).topk(block.slots).indices
    weights = torch.rand(ids.shape, device=x.device)
    dout, got = torch.randn_like(x), []
    for experts in (RIVALS[block.provider], lambda x, i, w, up, down: experts_torch(x, i, w, rearranged(up), down)):
        y = experts(x, ids, weights, block.gate_up, block.down)
        got.append((y.detach(), *torch.autograd.grad(y, leaves, dout)))
    return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(*got))


def layer(args):
    """One block of experts with random routing weights: ms of forward and backward, TFLOP/s, memory."""
    tokens, rows = args.layer, []
    flops = 3 * 6.0 * tokens * args.slots * args.hidden * args.inner
    x = torch.randn(tokens, args.hidden, device=args.device, dtype=torch.bfloat16, requires_grad=True)
    dout = torch.randn_like(x) / args.hidden**0.5
    for provider in args.providers.split(","):
        torch.manual_seed(0)
        with torch.device(args.device):
            block = Experts(args, provider).to(torch.bfloat16)
        rival = RIVALS.get(provider, experts_torch) is not experts_torch
        eager = args.eager or rival  # Liger's experts ask the device for sizes: a graph break
        if rival:
            print(f"{provider}: off experts_torch by {off(block, x.detach().requires_grad_()):.2e}", flush=True)
        forward, events = block if eager else torch.compile(block), []
        for i in range(args.steps):  # without a synchronisation between them, as in training
            x.grad = None
            block.zero_grad(set_to_none=True)
            if i == args.steps - 1 and args.device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
            events[-1][0].record()
            forward(x).backward(dout)
            events[-1][1].record()
        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) for begin, end in events[:-1]]
        peak, last = torch.cuda.max_memory_allocated() - held, sorted(times[len(times) // 2:])
        ms = statistics.median(last)
        print(f"{provider:12s} {ms:8.3f} ms, {flops / ms / 1e9:6.0f} TFLOP/s, peak {peak / 2**20:6.0f} MiB", flush=True)
        rows.append(dict(op="moe_layer", provider=provider, kernel="eager" if eager else "compiled", us=ms * 1e3,
                         us_p20=last[len(last) // 5] * 1e3, us_p80=last[-1 - len(last) // 5] * 1e3, tflops=flops / ms / 1e9,
                         peak_bytes=peak, problem=f"tokens={tokens} hidden={args.hidden} inner={args.inner} "
                         f"experts={args.experts} slots={args.slots}"))
        del block, forward
        torch.cuda.empty_cache()
    T.write(args, "moe-train", rows)


def main():
    parser = T.arguments("torch,torch-again,ridge,ridge-e5m2", steps=50, tokens=8192, sequence=4096, layers=2, hidden=2048,
                         inner=768, heads=32, kv=4, head=128, experts=128, slots=8, vocab=151936)
    parser.add_argument("--layer", type=int, default=0, metavar="TOKENS", help="only one block of experts, of so many tokens")
    args = parser.parse_args()
    layer(args) if args.layer else T.run(args, Trainee, experts=args.experts, slots=args.slots)


if __name__ == "__main__":
    main()

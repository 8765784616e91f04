"""converge.py: does training with ridge converge as without it? A byte-level Llama of two layers learns this project's own
documents from the same weights on the same text by PyTorch alone ("torch"), with ridge's loss head ("ridge-head"), and with
its SwiGLU, norms and RoPE too ("ridge"). "torch-again" is PyTorch with the loss in two halves of the batch: the same but for
rounding, which says how much rounding alone does.

    python3 bench/converge.py [--steps 300] [--seeds 3] [--objective ce] [--providers torch,ridge] [--device cuda] [--csv FILE]

--objective: "ce" (linear_cross_entropy), or "logprobs" (linear_logprobs with an entropy bonus, as in reinforcement learning).
Passes (status 0) if with ridge each seed's mean loss of the last tenth of the steps is off PyTorch's by less than the spread of
PyTorch's seeds among themselves, and the mean over the seeds by less than half of it. Written are records: op converge, a row
for each seed and provider, `err` that loss.
"""
import argparse
import datetime
import glob
import os
import sys

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "python"), HERE]
import ridge.torch as R  # noqa: E402
from train_llama import COLUMNS  # noqa: E402

BONUS = 0.01  # of the entropy


def text():
    """Bytes of the documents and the C sources, a token each."""
    root = os.path.join(HERE, "..")
    paths = sorted(glob.glob(os.path.join(root, "docs", "*.md")) + glob.glob(os.path.join(root, "src", "*.c")))
    return torch.frombuffer(bytearray(b"\n".join(open(path, "rb").read() for path in paths)), dtype=torch.uint8)


class Model(torch.nn.Module):
    """SwiGLU, RMSNorm and attention, by the provider's kernels."""

    def __init__(self, hidden, provider):
        super().__init__()
        self.ridge, self.head_by, self.heads = provider == "ridge", provider, hidden // 64
        self.embed = torch.nn.Embedding(256, hidden)
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({
            "qkv": torch.nn.Linear(hidden, 3 * hidden, bias=False), "out": torch.nn.Linear(hidden, hidden, bias=False),
            "gate_up": torch.nn.Linear(hidden, 6 * hidden, bias=False), "down": torch.nn.Linear(3 * hidden, hidden, bias=False),
            "norm1": torch.nn.RMSNorm(hidden, eps=1e-5), "norm2": torch.nn.RMSNorm(hidden, eps=1e-5)}) for _ in range(2))
        self.norm, self.head = torch.nn.RMSNorm(hidden, eps=1e-5), torch.nn.Linear(hidden, 256, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)

    def normed(self, norm, x):
        return R.rms_norm(x, norm.weight, norm.eps) if self.ridge else norm(x)

    def forward(self, tokens):
        b, t = tokens.shape
        x = self.embed(tokens)
        freqs = 1e4 ** (-torch.arange(0, 64, 2, device=x.device, dtype=torch.float64) / 64)
        positions = torch.arange(t, device=x.device)

        def turn(y):  # [b, t, heads, 64]
            if self.ridge:
                return R.rope(y, positions.expand(b, t), freqs).transpose(1, 2)
            angle = positions[:, None, None] * freqs
            one, two = y.float().chunk(2, -1)
            cos, sin = angle.cos().float(), angle.sin().float()
            return torch.cat((one * cos - two * sin, two * cos + one * sin), -1).to(y.dtype).transpose(1, 2)

        for layer in self.layers:
            q, k, v = layer["qkv"](self.normed(layer["norm1"], x)).view(b, t, 3, self.heads, 64).unbind(2)
            y = F.scaled_dot_product_attention(turn(q), turn(k), v.transpose(1, 2), is_causal=True)
            x = x + layer["out"](y.transpose(1, 2).reshape(b, t, -1))
            gate_up = layer["gate_up"](self.normed(layer["norm2"], x))
            if self.ridge:
                x = x + R.swiglu_linear(gate_up, None, layer["down"].weight)
            else:
                gate, up = gate_up.chunk(2, -1)
                x = x + layer["down"](F.silu(gate) * up)
        return self.normed(self.norm, x)

    def loss(self, tokens, objective):
        x, target, weight = self(tokens[:, :-1]), tokens[:, 1:], self.head.weight
        if self.head_by == "torch-again":
            return sum(by_logits(*part, weight, objective) for part in zip(x.chunk(2), target.chunk(2))) / 2
        if self.head_by == "torch":
            return by_logits(x, target, weight, objective)
        if objective == "ce":
            return R.linear_cross_entropy(x, weight, target)
        logprob, entropy = R.linear_logprobs(x, weight, target, entropy=True)
        return -(logprob + BONUS * entropy).mean()


def by_logits(x, target, weight, objective):
    logp = F.linear(x, weight).float().log_softmax(-1)
    logprob = logp.gather(-1, target[..., None])[..., 0]
    return -(logprob if objective == "ce" else logprob - BONUS * (logp.exp() * logp).sum(-1)).mean()


def train(args, data, seed, provider):
    """The loss of every step."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    model = Model(args.hidden, provider).to(args.device, dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0, fused=args.device == "cuda")
    draw, losses = torch.Generator().manual_seed(seed), []
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / 20)
        at = torch.randint(len(data) - args.sequence - 1, (args.sequences,), generator=draw)
        tokens = data[at[:, None].to(args.device) + torch.arange(args.sequence + 1, device=args.device)].long()
        loss = model.loss(tokens, args.objective)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).double().cpu()


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 300), ("seeds", 3), ("hidden", 512), ("sequence", 256), ("sequences", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--objective", default="ce", choices=("ce", "logprobs"))
    parser.add_argument("--providers", default="torch,ridge", help="the first is what the others are compared with")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    data, last, failed = text().to(args.device), max(1, args.steps // 10), []
    print(f"{args.objective}: {args.steps} steps, {args.seeds} seeds; mean loss of the last {last} steps")
    rows = []
    for provider in args.providers.split(","):
        losses = torch.stack([train(args, data, seed, provider) for seed in range(args.seeds)])
        ends = losses[:, -last:].mean(-1)
        rows += [(provider, seed, value) for seed, value in enumerate(ends.tolist())]
        first = ends if len(rows) == args.seeds else first
        spread, off = (first.max() - first.min()).item(), ends - first
        if not (off.abs().max() < spread and abs(off.mean()) < spread / 2 and (ends < 0.7 * losses[:, 0]).all()):
            failed.append(provider)
        print(f"{provider:12s} {', '.join(f'{v:.4f}' for v in ends)}; off at most {off.abs().max():.4f}, in the mean "
              f"{off.mean():+.4f} +- {off.std() / args.seeds ** 0.5:.4f}; spread of the first's seeds {spread:.4f}", flush=True)
    print("FAILS: " + ", ".join(failed) if failed else "passes")
    if args.csv:
        now = datetime.datetime.now(datetime.timezone.utc)
        base = dict.fromkeys(COLUMNS, "") | dict(
            run=now.strftime("%Y%m%dT%H%M%S") + f"-converge{os.getpid()}", date=now.strftime("%Y-%m-%dT%H:%M:%SZ"), commit=args.commit,
            device=torch.cuda.get_device_name() if args.device == "cuda" else "CPU", suite="converge", op="converge",
            driver=f"CUDA {torch.version.cuda} torch {torch.__version__}")
        new = not os.path.exists(args.csv) or os.path.getsize(args.csv) == 0
        with open(args.csv, "a") as f:
            f.write(",".join(COLUMNS) + "\n" if new else "")
            for provider, seed, value in rows:
                row = dict(base, problem=f"objective={args.objective} steps={args.steps} hidden={args.hidden} seed={seed}",
                           provider=provider, err=f"{value:.6g}")
                f.write(",".join(str(row[c]) for c in COLUMNS) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

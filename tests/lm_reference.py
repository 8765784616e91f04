"""lm_reference.py LM_TOOL WORK [MODEL.gguf TOKEN...]: logits of ridge_lm against a forward pass in float64 that shares
nothing with it but the file: read and dequantised by the gguf package, computed from the papers' formulas (Llama, RoPE,
grouped queries, Qwen's biases and norms, Gemma 3's windows and scales, gpt-oss's sinks, YaRN, routing and clamps). Small models of every family, or a real one.

Weights are what the products read: those of block formats that ridge has, else Q8_0. Products round their activations to 8 bits in groups of 32, so two passes are
compared: one that does the same, which must agree closely, and an exact one, whose distance is what that rounding costs.
"""
import math
import pathlib
import subprocess
import sys

import gguf
import numpy as np

KEPT = ("Q8_0", "Q4_0", "Q4_1", "MXFP4", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS")


def field(reader, key, default=None):
    entry = reader.fields.get(key)
    return default if entry is None else entry.contents()


class Model:
    def __init__(self, path, rounded):
        reader = gguf.GGUFReader(path)
        self.rounded = rounded
        self.arch = field(reader, "general.architecture")
        get = lambda key, default=None: field(reader, f"{self.arch}.{key}", default)
        self.layers, self.heads = get("block_count"), get("attention.head_count")
        self.kv = get("attention.head_count_kv", self.heads)
        self.hidden = get("embedding_length")
        self.dim = get("attention.key_length", self.hidden // self.heads)
        self.eps, self.base = get("attention.layer_norm_rms_epsilon"), get("rope.freq_base", 10000.0)
        self.factor = get("rope.scaling.factor", 1.0)
        self.used = get("expert_used_count", 0)
        self.oss = self.arch == "gpt-oss"
        self.window = get("attention.sliding_window", 0) if self.arch == "gemma3" or self.oss else 0
        self.original = get("rope.scaling.original_context_length")
        self.tensors = {}
        types = {t.name: t.tensor_type.name for t in reader.tensors}
        for t in reader.tensors:
            other = t.name.replace("ffn_gate", "ffn_up") if "ffn_gate" in t.name else t.name.replace("ffn_up", "ffn_gate")
            kept = types[t.name] in KEPT and types.get(other, types[t.name]) == types[t.name]  # gate and up are of one format
            values = gguf.quants.dequantize(t.data, t.tensor_type)
            exact = "bias" in t.name or "ffn_gate_inp" in t.name or t.name == "token_embd.weight"
            if len(t.shape) == 2 and not exact and not kept:
                codes = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
                values = gguf.quants.dequantize(codes, gguf.GGMLQuantizationType.Q8_0)
            self.tensors[t.name] = np.asarray(values, dtype=np.float64)
        self.divisors = self.tensors.get("rope_freqs.weight", np.ones(self.dim // 2))

    def product(self, name, x, expert=None):
        """x W^T, with x in 8 bits where the products of ridge have it so."""
        weight = self.tensors[name] if expert is None else self.tensors[name][expert]
        if self.rounded:
            groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
            scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
            with np.errstate(divide="ignore", invalid="ignore"):
                codes = np.where(scale > 0, np.rint(groups * (np.float32(1) / scale)), 0)
            x = (codes.astype(np.float64) * scale.astype(np.float64)).reshape(x.shape)
        return x @ weight.T

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.tensors[name]

    def rope(self, x, local):
        """x [tokens, heads, dim]; Llama's files pair neighbours, the others halves."""
        base, factor = (10000.0, 1.0) if local else (self.base, self.factor)
        i = np.arange(self.dim // 2)
        plain, size = base ** (-2.0 * i / self.dim), 1.0
        freqs = plain / factor / (1 if local else self.divisors)
        if self.oss:  # YaRN: the pairs that turn 32 times in the original context stay, those that turn less than once do not
            low, high = (self.dim / 2 * math.log(self.original / (turns * 2 * math.pi)) / math.log(base) for turns in (32, 1))
            low, high = max(math.floor(low), 0), min(math.ceil(high), self.dim - 1)
            stretched = np.clip((i - low) / max(high - low, 0.001), 0, 1)
            freqs, size = plain / factor * stretched + plain * (1 - stretched), 1 + 0.1 * math.log(factor)
        angle = np.arange(x.shape[0])[:, None, None] * freqs
        c, s = np.cos(angle) * size, np.sin(angle) * size
        first, second = (x[..., 0::2], x[..., 1::2]) if self.arch == "llama" else np.split(x, 2, axis=-1)
        a, b = first * c - second * s, first * s + second * c
        return np.stack([a, b], -1).reshape(x.shape) if self.arch == "llama" else np.concatenate([a, b], -1)

    def attention(self, layer, x):
        n, name = x.shape[0], f"blk.{layer}.attn_"
        local = self.window > 0 and (layer % 2 == 0 if self.oss else layer % 6 != 5)
        part = {}
        for which, heads in (("q", self.heads), ("k", self.kv), ("v", self.kv)):
            y = self.product(f"{name}{which}.weight", x) + self.tensors.get(f"{name}{which}.bias", 0.0)
            y = y.reshape(n, heads, self.dim)
            if f"{name}{which}_norm.weight" in self.tensors:
                y = self.norm(f"{name}{which}_norm.weight", y)
            if which != "v":
                y = self.rope(y, local and not self.oss)
            if which != "q":
                y = y.astype(np.float16).astype(np.float64)  # the cache
            part[which] = y
        out = np.empty((n, self.heads, self.dim))
        for h in range(self.heads):
            g = h // (self.heads // self.kv)
            scores = part["q"][:, h] @ part["k"][:, g].T / math.sqrt(self.dim)
            distance = np.arange(n)[:, None] - np.arange(n)[None, :]
            scores[(distance < 0) | (distance >= self.window if local else False)] = -np.inf
            most = scores.max(-1, keepdims=True)
            p = np.exp(scores - most)
            sink = np.exp(self.tensors[f"{name}sinks.weight"][h] - most) if self.oss else 0.0
            out[:, h] = p / (p.sum(-1, keepdims=True) + sink) @ part["v"][:, g]
        return self.product(f"{name}output.weight", out.reshape(n, -1)) + self.tensors.get(f"{name}output.bias", 0.0)

    def experts(self, layer, x):
        """Softmax over all experts, the largest of them, their weights over their sum."""
        name = f"blk.{layer}.ffn_"
        logits = x @ self.tensors[f"{name}gate_inp.weight"].T
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for t in range(x.shape[0]):
            best = np.argsort(-p[t], kind="stable")[: self.used]
            for e in best:
                gate, up = (self.product(f"{name}{which}_exps.weight", x[t : t + 1], e) for which in ("gate", "up"))
                down = self.product(f"{name}down_exps.weight", gate / (1 + np.exp(-gate)) * up, e)
                out[t] += p[t, e] / p[t, best].sum() * down[0]
        return out

    def oss_experts(self, layer, x):
        """A softmax of the chosen logits alone; gate and up are clamped, and up has 1 added to it."""
        name = f"blk.{layer}.ffn_"
        logits = x @ self.tensors[f"{name}gate_inp.weight"].T + self.tensors[f"{name}gate_inp.bias"]
        out = np.zeros_like(x)
        for t in range(x.shape[0]):
            best = np.argsort(-logits[t], kind="stable")[: self.used]
            p = np.exp(logits[t, best] - logits[t, best].max())
            for e, share in zip(best, p / p.sum()):
                gate, up = (self.product(f"{name}{which}_exps.weight", x[t : t + 1], e) + self.tensors[f"{name}{which}_exps.bias"][e]
                            for which in ("gate", "up"))
                gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
                down = self.product(f"{name}down_exps.weight", gate / (1 + np.exp(-1.702 * gate)) * (up + 1), e)
                out[t] += share * (down[0] + self.tensors[f"{name}down_exps.bias"][e])
        return out

    def feed_forward(self, layer, x):
        if self.oss:
            return self.oss_experts(layer, x)
        if self.used:
            return self.experts(layer, x)
        gate, up = (self.product(f"blk.{layer}.ffn_{which}.weight", x) for which in ("gate", "up"))
        if self.arch == "gemma3":
            act = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            act = gate / (1 + np.exp(-gate))
        return self.product(f"blk.{layer}.ffn_down.weight", act * up)

    def logits(self, tokens):
        x = self.tensors["token_embd.weight"][tokens]
        if self.arch == "gemma3":
            x = x * math.sqrt(self.hidden)
        for layer in range(self.layers):
            for norm, branch, post in (("attn_norm", self.attention, "post_attention_norm"),
                                       ("post_attention_norm" if self.oss else "ffn_norm", self.feed_forward, "post_ffw_norm")):
                y = branch(layer, self.norm(f"blk.{layer}.{norm}.weight", x))
                post = f"blk.{layer}.{post}.weight"
                x = x + (self.norm(post, y) if post in self.tensors and not self.oss else y)
        head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return self.product(head, self.norm("output_norm.weight", x))


def compare(tool, path, tokens, most):
    got = subprocess.run([tool, "logits", path, "cpu", "7", *map(str, tokens)], check=True, capture_output=True).stdout
    got = np.frombuffer(got, np.float32).reshape(len(tokens), -1).astype(np.float64)
    good = True
    for rounded in (True, False):
        want = Model(path, rounded).logits(np.array(tokens))[:, :got.shape[1]]
        off = np.abs(got - want).max() / want.std()
        same = (got.argmax(-1) == want.argmax(-1)).mean()
        print(f"{path}: {'8-bit' if rounded else 'exact'} activations: largest error {off:.2e} of the logits' spread, "
              f"{100 * same:.1f} % of {len(tokens)} likeliest tokens the same")
        good &= bool(off < most) if rounded else bool(same > 0.8)
    return good


if __name__ == "__main__":
    tool, work = sys.argv[1], pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    good = True
    if len(sys.argv) > 3:
        good = compare(tool, sys.argv[3], [int(t) for t in sys.argv[4:]], 0.6)
    else:
        for family in ("llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss", "gemma3", "llama:k", "qwen3moe:k", "gemma3:4", "gpt-oss:4"):
            path = str(work / f"{family}.gguf")
            subprocess.run([tool, "make", family, path], check=True)
            # With block formats an activation in some ten thousand lies so near the middle of two codes that f32 and float64
            # round it apart; that moves logits by up to 0.04.
            good &= compare(tool, path, [7 + i * 37 % 250 for i in range(30)], 0.1 if ":" in family else 0.02)
    sys.exit(not good)

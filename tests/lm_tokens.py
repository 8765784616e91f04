"""lm_tokens.py LM_TOOL WORK MODEL.gguf [LINES]: the tokens of ridge_lm against those of Hugging Face's tokenizers, on random
texts, for every pre-tokeniser, with the vocabulary of a real model. Exit status 77 (skipped) without the packages or the model."""
import pathlib
import random
import subprocess
import sys

try:
    import gguf
    import numpy as np
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
except ImportError as error:
    print(f"lm_tokens: skipped, {error}")
    sys.exit(77)

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
PRE = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3 % "1,3"), "isolated"), BYTES]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3 % "1"), "isolated"), BYTES]),
}


def small_model(path, tokens, types, merges, pre):
    """A file with this vocabulary and a transformer that is as small as one can be."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1), w.add_context_length(64), w.add_embedding_length(32), w.add_feed_forward_length(32)
    w.add_head_count(1), w.add_head_count_kv(1), w.add_layer_norm_rms_eps(1e-5), w.add_rope_dimension_count(32)
    w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre(pre), w.add_token_list(tokens), w.add_token_types(types)
    w.add_token_merges(merges), w.add_bos_token_id(1), w.add_eos_token_id(2), w.add_unk_token_id(0)
    w.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float16))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        w.add_tensor(f"blk.0.{name}.weight", np.zeros((32, 32), np.float16))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def texts(count, words, rng):
    """Words of the vocabulary, runs of spaces and digits, contractions, and characters from all of Unicode."""
    edges = [0x20, 0x09, 0x0A, 0x0D, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x200A, 0x200B, 0x2028, 0x202F, 0x3000, 0x17F, 0x212A,
             0x660, 0x966, 0x2160, 0xB2, 0x4E00, 0x300, 0x1F999, 0xFFFD, 0xE000, 0x27, 0x61, 0x41, 0xDF, 0x130]
    parts = ["'s", "'S", "'LL", "'ve", "'\u017f", " 's", "''d", "  ", "   \n", "\r\n", "\n\n \n", " \t ", "12", "1234567", "x1", " 3.14",
             "<|im_start|>", "_", "...", " -- ", "\u00e9t\u00e9", "na\u00efve", "\u4f60\u597d", "\U0001F600\u200d"]
    for _ in range(count):
        out = []
        for _ in range(rng.randrange(1, 12)):
            kind = rng.randrange(6)
            if kind < 2:
                out.append(rng.choice(words))
            elif kind == 2:
                out.append(rng.choice(parts))
            elif kind == 3:
                out.append(chr(rng.choice(edges)) * rng.randrange(1, 4))
            elif kind == 4:
                code = rng.randrange(0x110000)
                out.append(" " if 0xD800 <= code < 0xE000 or code == 0 else chr(code))
            else:
                out.append("".join(chr(rng.randrange(1, 0x500)) for _ in range(rng.randrange(1, 5))))
        yield "".join(out)


def same_but_for_age(pre, text):
    """Unicode grew between the two libraries' tables: texts with a character that both do not know alike are left out."""
    import unicodedata
    return all(unicodedata.category(c) != "Cn" for c in text)


def main():
    tool, work, path = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    if not path.exists():
        print(f"lm_tokens: skipped, there is no {path}")
        return 77
    work.mkdir(parents=True, exist_ok=True)
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 3000
    fields = gguf.GGUFReader(path).fields
    tokens, types, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    decoder, rng, failed = decoders.ByteLevel(), random.Random(1), 0
    for pre, splitter in PRE.items():
        hf = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in merges],
                                  ignore_merges=pre == "llama-bpe", unk_token=tokens[0]))
        hf.pre_tokenizer = splitter
        words = [decoder.decode([t]) for t, kind in zip(tokens, types) if kind == 1][::7]
        small_model(work / f"{pre}.gguf", tokens, types, merges, pre)
        lines = [t for t in texts(count, words, rng) if same_but_for_age(pre, t)]
        got = subprocess.run([tool, "tokenize", work / f"{pre}.gguf"], input=b"".join(t.encode() + b"\0" for t in lines),
                             check=True, capture_output=True).stdout.decode().split("\n")
        # no special tokens: unk (bytes that the vocabulary lacks) differs in how often it stands
        wrong = 0
        for line, ids in zip(lines, got):
            want, have = hf.encode(line).ids, [int(i) for i in ids.split()]
            if have != want and [i for i in have if i] != [i for i in want if i]:
                wrong += 1
                if wrong <= 3:
                    print(f"{pre}: {line!r}\n  tokenizers {want}\n  ridge      {have}")
        print(f"{pre}: {len(lines)} texts, {wrong} differ")
        failed += wrong
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

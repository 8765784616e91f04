"""lm_tokens.py LM_TOOL WORK [COUNT [MODEL.gguf]]: the tokens of ridge_lm beside those of Hugging Face's tokenizers and of
SentencePiece. Vocabularies are trained here on random text, written as GGUF and read by both sides; a model's own is
compared with every pre-tokeniser where it is given. COUNT texts each: words of several scripts and of the vocabulary, numbers,
spaces of all kinds, contractions, characters at the edges of classes, and in every sixth bytes that are no UTF-8.

Neither package takes such bytes. ridge splits each as a character of no class and gives it its byte's token, so that
the oracle splits a text with characters of plane 16 in their place, puts the bytes back and merges the pieces.
Exit status 77 where a package is not installed."""
import io
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

try:
    import gguf
    import numpy as np
    import sentencepiece
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
except ImportError as error:
    print(f"lm_tokens: skipped, {error}")
    sys.exit(77)

TOOL, WORK = sys.argv[1], pathlib.Path(sys.argv[2])
COUNT = int(sys.argv[3]) if len(sys.argv) > 3 else 3000
rng = random.Random(1)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2_SPLIT = pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), "isolated")
DIGITS = pre_tokenizers.Digits(individual_digits=True)
SPLIT = {
    "gpt-2": GPT2_SPLIT,
    "smollm": pre_tokenizers.Sequence([DIGITS, GPT2_SPLIT]),
    "llama-bpe": pre_tokenizers.Split(Regex(LLAMA3 % "1,3"), "isolated"),
    "gpt-4o": pre_tokenizers.Split(Regex(GPT4O), "isolated"),
    "qwen2": pre_tokenizers.Split(Regex(LLAMA3 % "1"), "isolated"),
}
PRE = {pre: GPT2 if pre == "gpt-2" else pre_tokenizers.Sequence([DIGITS, GPT2] if pre == "smollm" else [SPLIT[pre], BYTES])
       for pre in SPLIT}
PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that are their own character in such a vocabulary
REST = [b for b in range(256) if b not in PLAIN]
LETTER = {b: chr(b) for b in PLAIN} | {b: chr(256 + i) for i, b in enumerate(REST)}
BROKEN, STANDS = "surrogateescape", 0x10FE00  # a byte b that is no UTF-8: U+DC00 + b in Python's text, U+10FE00 + b for the oracle
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\r\n", "\t", "\n\n", " \n", "\x0b", "\x85", "\xa0", "\u1680", "\u2003", "\u2028",
          "\u202f", "\u205f", "\u3000", "\u180e", "\u200b"]
ODD = ["'s", "'S", "'\u017f", "'re", "'LL", "'d", "''", "don't", "I'Ve", "\u00bd", "\u0663", "\u2167", "\u4e09", "e\u0301", "\u0130", "\u01c5",
       "\u02b0", "\u0345", "\u00aa", "\U0001f999", "\U0001f468\u200d\U0001f469", "\ufeff", "\u00ad", "_", "--", "...", "!?\n", "\x7f", "\ud7ff", "\ue000",
       "\U00010000", "#\r\n\n", "//\n", "HTTPServer'S", "aBC", "a1b2", "3.14", "1234567", "\u0e01\u0e33", "\u1100\u1161\u11a8", "\u0915\u094d\u0937", "A\u030a", "\u212b",
       "\ufb01", "\u2126", "q\u0307\u0323"]
RANGES = [(0x21, 0x7E), (0x61, 0x7A), (0xA1, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA), (0x621, 0x64A),
          (0x904, 0x939), (0x3041, 0x3096), (0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0x1F600, 0x1F64F), (0x30, 0x39), (1, 0x2FFFF)]

# Combining characters since Unicode 10, whose classes the table of `tokenizers` lacks: its NFC does not sort them.
TOO_NEW = {c for c in map(chr, range(0x300, 0x30000)) if unicodedata.combining(c) and
           normalizers.NFC().normalize_str(c + "\u0334") != unicodedata.normalize("NFC", c + "\u0334")}


def text(words=(), broken=False):
    """A random text, with broken bytes if `broken`, without NUL bytes, since the tool's input ends a text with one, and
    without characters that are too new for one of the two Unicode tables."""
    parts = []
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.3:
            parts.append(rng.choice(SPACES))
        elif kind < 0.45:
            parts.append(rng.choice(ODD))
        elif kind < 0.7 and words:
            parts.append(rng.choice(words))
        else:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 7))))
    parts = ["".join(c for c in part if unicodedata.category(c) not in ("Cn", "Cs") and c not in TOO_NEW) for part in parts]
    if broken:
        for _ in range(rng.randint(1, 3)):
            whole = rng.choice("\xe9\u20ac\U0001f600").encode()
            bad = rng.choice([bytes([rng.randint(0x80, 0xFF)]), whole[:-1], whole[1:], b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
            parts.insert(rng.randint(0, len(parts)), bad.decode("utf-8", BROKEN))
    return "".join(parts).encode("utf-8", BROKEN).decode("utf-8", BROKEN)


def standing(t):
    return "".join(chr(STANDS - 0xDC00 + ord(c)) if "\udc80" <= c <= "\udcff" else c for c in t)


def bytes_of(t):
    return b"".join(bytes([ord(c) - STANDS]) if ord(c) >= STANDS else c.encode() for c in t)


def write(path, model, pre, tokens, types, merges=None, scores=None):
    """A file with this vocabulary and a transformer that is as small as one can be."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1), w.add_context_length(64), w.add_embedding_length(32), w.add_feed_forward_length(32)
    w.add_head_count(1), w.add_head_count_kv(1), w.add_layer_norm_rms_eps(1e-5), w.add_rope_dimension_count(32)
    w.add_tokenizer_model(model), w.add_token_list(tokens), w.add_token_types(types)
    w.add_bos_token_id(1), w.add_eos_token_id(2), w.add_unk_token_id(0)
    if merges is not None:
        w.add_tokenizer_pre(pre), w.add_token_merges(merges)
    else:
        w.add_token_scores(scores), w.add_add_space_prefix(False)
    w.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float16))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        w.add_tensor(f"blk.0.{name}.weight", np.zeros((32, 32), np.float16))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def differ(name, path, oracle, words=()):
    texts = [t for t in (text(words, i % 6 == 0) for i in range(COUNT)) if t]
    out = subprocess.run([TOOL, "tokenize", path], input=b"".join(t.encode("utf-8", BROKEN) + b"\0" for t in texts), check=True,
                         capture_output=True).stdout.decode().split("\n")
    wrong, bad = [], 0
    for t, ids in zip(texts, out):
        want = oracle(t)
        bad += standing(t) != t
        if want != [int(i) for i in ids.split()]:
            wrong.append((t, ids, want))
    print(f"{name}: {len(texts)} texts, {bad} with broken bytes, {len(wrong)} differ", flush=True)
    for t, ids, want in wrong[:3]:
        print(f"    {t!r}\n      ridge  {ids}\n      oracle {want}")
    return len(wrong)


def ids_of(tokenizer, pre):
    """An oracle: a tokenizer as it is, and its normalizer, a split and its merges one by one where bytes are broken."""
    def ids(t):
        stands = standing(t)
        if stands == t:
            return tokenizer.encode(t).ids
        if pre == "qwen2":
            stands = unicodedata.normalize("NFC", stands)
        return [token.id for piece, _ in SPLIT[pre].pre_tokenize_str(stands)
                for token in tokenizer.model.tokenize("".join(LETTER[b] for b in bytes_of(piece)))]
    return ids


def hugging_face(pre, vocabulary, merges, unknown=None):
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe", unk_token=unknown))
    if pre == "qwen2":
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = PRE[pre]
    return t


def trained_bpe(pre, corpus):
    t = hugging_face(pre, {}, [])
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(t.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    path = WORK / f"trained-{pre}.gguf"
    write(path, "gpt2", pre, tokens, [1] * len(tokens), merges)
    oracle = hugging_face(pre, model["vocab"], [tuple(m.split(" ")) for m in merges])
    return differ(f"byte-level BPE, {pre}", path, ids_of(oracle, pre))


def trained_spm(corpus):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=out, vocab_size=5000, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False, minloglevel=2,
        hard_vocab_limit=False, user_defined_symbols=["\n\n", "<tag>"], character_coverage=0.98)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    tokens = [sp.id_to_piece(i) for i in range(sp.get_piece_size())]
    scores = [sp.get_score(i) for i in range(len(tokens))]
    types = [6 if sp.is_byte(i) else 3 if sp.is_control(i) else 2 if sp.is_unknown(i)
             else 4 if tokens[i] in ("\n\n", "<tag>") else 1 for i in range(len(tokens))]
    path = WORK / "trained-spm.gguf"
    write(path, "llama", None, tokens, types, scores=scores)
    stand = {tuple(sp.encode(chr(STANDS + b))): sp.piece_to_id(f"<0x{b:02X}>")
             for b in range(0x80, 0x100)}

    def ids(t):
        out, want = [], sp.encode(standing(t))
        while want:
            four = stand.get(tuple(want[:4]))
            out.append(want[0] if four is None else four)
            del want[:1 if four is None else 4]
        return out
    return differ("SentencePiece", path, ids, ["<tag>", "\n\n"])


def of_model(model):
    """A model's own vocabulary under every pre-tokeniser."""
    fields = gguf.GGUFReader(model).fields
    tokens, types, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    vocabulary, wrong = {token: i for i, token in enumerate(tokens)}, 0
    words = [t.replace("\u0120", " ") for t, kind in zip(tokens, types) if kind == 1][300::7]
    for pre in PRE:
        path = WORK / f"model-{pre}.gguf"
        write(path, "gpt2", pre, tokens, types, merges)
        oracle = hugging_face(pre, vocabulary, [tuple(m.split(" ")) for m in merges], tokens[0])
        wrong += differ(f"{pathlib.Path(model).name}, {pre}", path, ids_of(oracle, pre), words)
    return wrong


WORK.mkdir(parents=True, exist_ok=True)
corpus = [text() for _ in range(3000)]
failed = sum(trained_bpe(pre, corpus) for pre in PRE) + trained_spm([c for c in corpus if c.strip()])
failed += sum(of_model(model) for model in sys.argv[4:])
sys.exit(bool(failed))

"""peers_lm.py LM_TOOL MODEL.gguf TEXT [WINDOWS [CSV]]: ridge_lm beside llama.cpp (the PyPI wheel xllamacpp, through ctypes) on
the CPU, and beside transformers where torch and gguf are there: perplexity and logits of the same tokens, the likeliest
text after a few prompts, and the processor time of a token. A Q8_0 file, so that all of them have the same weights. Every
window begins with the token that begins a text where the model wants one. CSV: the record of perplexity and logits.

The wheel's library exports llama.cpp's C functions. Of its structs only the first fields of llama_context_params are
touched (n_ctx, n_batch, n_ubatch); the rest is what llama.cpp fills in.
"""
import ctypes as C
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import xllamacpp

COLUMNS = ("run,date,commit,device,driver,suite,op,problem,provider,kernel,us,us_p20,us_p80,tflops,gbps,floor_us,err,"
           "peak_bytes").split(",")

WINDOW = 512
PROMPTS = ("The capital of France is", "Once upon a time, there was a", "To make a cup of tea, first", "def fibonacci(n):",
           "Water boils at")


class Params(C.Structure):  # larger than llama.cpp's, which are passed and returned in memory
    _fields_ = [("word", C.c_uint32 * 256)]


class Batch(C.Structure):
    _fields_ = [("count", C.c_int32), ("token", C.POINTER(C.c_int32)), ("embd", C.c_void_p),
                ("pos", C.POINTER(C.c_int32)), ("n_seq", C.POINTER(C.c_int32)),
                ("seq", C.POINTER(C.POINTER(C.c_int32))), ("logits", C.POINTER(C.c_int8))]


class Llama:
    def __init__(self, path, threads):
        folder = pathlib.Path(xllamacpp.__file__).parent
        self.library = C.CDLL(str(next(folder.glob("xllamacpp*.so"))), mode=C.RTLD_GLOBAL)
        call = self.call
        self.quiet = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda *_: None)
        call("llama_log_set", None, C.c_void_p, C.c_void_p)(C.cast(self.quiet, C.c_void_p), None)
        call("llama_backend_init", None)()
        params = call("llama_context_default_params", Params)()
        params.word[0] = params.word[1] = params.word[2] = WINDOW
        model = call("llama_model_load_from_file", C.c_void_p, C.c_char_p, Params)(
            path.encode(), call("llama_model_default_params", Params)())
        self.context = call("llama_init_from_model", C.c_void_p, C.c_void_p, Params)(model, params)
        assert self.context, path
        call("llama_set_n_threads", None, C.c_void_p, C.c_int32, C.c_int32)(self.context, threads, threads)
        vocabulary = call("llama_model_get_vocab", C.c_void_p, C.c_void_p)(model)
        self.vocabulary = call("llama_vocab_n_tokens", C.c_int32, C.c_void_p)(vocabulary)
        self.begin = ([call("llama_vocab_bos", C.c_int32, C.c_void_p)(vocabulary)]
                      if call("llama_vocab_get_add_bos", C.c_bool, C.c_void_p)(vocabulary) else [])
        self.batch = call("llama_batch_init", Batch, C.c_int32, C.c_int32, C.c_int32)(WINDOW, 0, 1)
        self.run = call("llama_decode", C.c_int32, C.c_void_p, Batch)
        self.row = call("llama_get_logits_ith", C.POINTER(C.c_float), C.c_void_p, C.c_int32)
        self.at = 0

    def call(self, name, result, *arguments):
        function = getattr(self.library, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def clear(self):
        memory = self.call("llama_get_memory", C.c_void_p, C.c_void_p)(self.context)
        self.call("llama_memory_clear", None, C.c_void_p, C.c_bool)(memory, True)
        self.at = 0

    def decode(self, tokens, every=False):
        b, last = self.batch, len(tokens) - 1
        b.count = len(tokens)
        for i, token in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq[i], b.seq[i][0], b.logits[i] = token, self.at + i, 1, 0, every or i == last
        assert self.run(self.context, b) == 0
        self.at += len(tokens)
        return np.stack([np.ctypeslib.as_array(self.row(self.context, i), (self.vocabulary,)).astype(np.float64)
                         for i in (range(len(tokens)) if every else [last])])


def ridge(tool, verb, path, *words, text=None):
    done = subprocess.run([tool, verb, path, *map(str, words)], input=text, capture_output=True, check=True)
    return done.stdout


def tokens_of(tool, path, text):
    return [int(t) for t in ridge(tool, "tokenize", path, text=text + b"\0").split()]


def transformers_model(path):
    """The logits of a window in f32, or None."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
        folder, name = os.path.split(os.path.abspath(path))
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    except ImportError as error:
        print("transformers left out:", error)
        return None

    def logits(window):
        with torch.no_grad():
            return model(torch.tensor([window])).logits[0].double().numpy()
    return logits


def surprises(rows, window):
    """Of the second half of a window, as `ridge perplexity` and llama-perplexity count it."""
    rows = rows[WINDOW // 2:WINDOW - 1]
    rows = rows - rows.max(-1, keepdims=True)
    return np.log(np.exp(rows).sum(-1)) - rows[np.arange(len(rows)), window[WINDOW // 2 + 1:]]


def texts(tool, path, llama):
    for prompt in PROMPTS:
        tokens = llama.begin + tokens_of(tool, path, prompt.encode())
        ours = [int(t) for t in ridge(tool, "greedy", path, "cpu", 64, *tokens).split()]
        llama.clear()
        row, same = llama.decode(tokens)[0], 0
        while same < 64:
            first, second = np.argsort(-row)[:2]
            if first != ours[same]:
                break
            row, same = llama.decode([int(first)])[0], same + 1
        gap = "" if same == 64 else f"; there llama.cpp's two largest logits are {row[first] - row[second]:.3f} apart"
        print(f"{prompt!r}: {same} of 64 tokens the same{gap}")


def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((line.split(": ")[1].strip() for line in f if line.startswith("model name")), "CPU")


def record(csv, model, rows):
    now = time.gmtime()
    new = not os.path.exists(csv)
    with open(csv, "a") as f:
        f.write(",".join(COLUMNS) + "\n" if new else "")
        for provider, what, value in rows:
            row = dict.fromkeys(COLUMNS, "") | {
                "run": time.strftime("%Y%m%dT%H%M%S-lm", now), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
                "device": cpu_name(), "suite": "logits", "op": "ridge_lm", "problem": f"{model} {what}",
                "provider": provider, "err": f"{value:.6g}"}
            f.write(",".join(row[c] for c in COLUMNS) + "\n")


def main():
    tool, path, text = sys.argv[1:4]
    tokens = tokens_of(tool, path, pathlib.Path(text).read_bytes())
    llama, rows_of = Llama(path, 1), []
    each = WINDOW - len(llama.begin)
    count = min(len(tokens) // each, int(sys.argv[4]) if len(sys.argv) > 4 else 5)

    def of_ridge(window):
        rows = ridge(tool, "logits", path, "cpu", 64, *window)
        return np.frombuffer(rows, np.float32).reshape(WINDOW, -1).astype(np.float64)

    def of_llama(window):
        llama.clear()
        return llama.decode(window, every=True)

    passes = {"ridge": of_ridge, "llama.cpp": of_llama, "transformers": transformers_model(path)}
    passes = {name: f for name, f in passes.items() if f}
    last = list(passes)[-1]  # what the others are held against
    bits, off, same, spread = {n: [] for n in passes}, dict.fromkeys(passes, 0.0), dict.fromkeys(passes, 0.0), 0.0
    for i in range(count):
        window = llama.begin + tokens[i * each:(i + 1) * each]
        logits = {name: f(window) for name, f in passes.items()}
        spread += logits[last].var(-1).mean() / count
        for name, rows in logits.items():
            bits[name].append(surprises(rows, window))
            off[name] += ((rows - logits[last])**2).mean() / count
            same[name] += (rows.argmax(-1) == logits[last].argmax(-1)).mean() / count
    bits = {name: np.concatenate(b) for name, b in bits.items()}
    for name, b in bits.items():
        print(f"{name}: perplexity {np.exp(b.mean()):.4f} over {len(b)} tokens", flush=True)
        rows_of.append((name, f"perplexity of {len(b)} tokens", np.exp(b.mean())))
        for other in list(bits)[:list(bits).index(name)]:
            apart = bits[other] - b
            error = 100 * apart.std() / len(b)**0.5
            print(f"  {other}'s is {100 * (np.exp(apart.mean()) - 1):+.3f} % of it apart, standard error {error:.3f} %")
            rows_of.append((other, f"perplexity over that of {name} at {len(b)} tokens", np.exp(apart.mean())))
            rows_of.append((other, "standard error of that ratio", error / 100))
        if name != last and last == "transformers":
            rms = (off[name] / spread)**0.5
            print(f"  logits off transformers' by {rms:.4f} of their spread (rms), likeliest the same "
                  f"{100 * same[name]:.1f} %")
            rows_of += [(name, "logits beside transformers in f32: rms over their spread", rms),
                        (name, "logits beside transformers in f32: likeliest the same (share)", same[name])]
    if len(sys.argv) > 5:
        record(sys.argv[5], os.path.basename(path), rows_of)
    texts(tool, path, llama)
    times = []
    llama.clear()
    for i in range(48):
        start = time.process_time()
        llama.decode([(i * 7919 + 11) % llama.vocabulary])
        times.append(time.process_time() - start)
    print(f"llama.cpp, 1 thread: {1 / np.median(times):.1f} tokens a second of processor time")


if __name__ == "__main__":
    main()

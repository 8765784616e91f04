"""interop_transformers.py RIDGE: models of several kinds, converted to both FP8 forms, load in transformers, which multiplies
codes and scales to what ridge makes of them, bit for bit, and they give nearly the logits of the original. On the CPU; exit
status 77 where torch, transformers or compressed-tensors is not installed."""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import compressed_tensors  # noqa: F401, for the form with a scale a row
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
except ImportError as error:
    print("interop.transformers: skipped:", error)
    sys.exit(77)

ridge = sys.argv[1]
failed = 0
torch.manual_seed(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
COMMON = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 64, "dtype": "bfloat16"}
MODELS = {"llama": {}, "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
          "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "decoder_sparse_step": 1, "head_dim": 64},
          "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2}}


def check(good, *what):
    global failed
    if not good:
        failed += 1
        print("FAIL", *what)


def quantize(source, to):
    out = source.with_name(f"{source.name}-{to}")
    done = subprocess.run([ridge, "quantize", source, "-o", out, "--to", to, "--quiet", "--device", "cpu"], capture_output=True, text=True)
    check(done.returncode == 0, source.name, to, done.stderr)
    return out


def load(path, **more):
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **more)
    check(not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), path.name, info)
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(1, 33)[None]).logits.float()


def off(a, b):
    return ((a - b).norm() / b.norm()).item()


with tempfile.TemporaryDirectory() as folder:
    for kind, more in MODELS.items():
        config = transformers.AutoConfig.for_model(kind, **COMMON, **more)
        original = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        source = pathlib.Path(folder) / kind
        original.save_pretrained(source, max_shard_size="1MB")
        wanted = logits(original)
        for to in ("fp8-block128", "fp8-row"):
            path = quantize(source, to)
            back = load(quantize(path, "bf16"))  # ridge's own decoding
            loaded = load(path)
            distance = off(logits(loaded), wanted)
            check(distance < 0.15, kind, to, "logits are off by", distance)
            check(off(logits(back), wanted) < 0.15, kind, to, "back in bf16")
            quantised, same = 0, True
            if to == "fp8-block128":  # dequantised when it is loaded
                mine = back.state_dict()
                for name, w in loaded.state_dict().items():
                    same = same and torch.equal(w, mine[name])
                    quantised += not torch.equal(w, original.state_dict()[name])
                check(same, kind, to, "another weight than ridge's")
            else:
                config = json.loads((path / "config.json").read_text())["quantization_config"]
                quantised = config["quant_method"] == "compressed-tensors"
            check(quantised, kind, to, "nothing is quantised")
            print(f"{kind} {to}: logits off by {distance:.3f}")
print(f"interop.transformers: {failed} failures (transformers {transformers.__version__}, torch {torch.__version__})")
sys.exit(failed != 0)

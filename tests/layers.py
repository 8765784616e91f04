"""layers.py ROOT: uses run downwards. A file includes nothing from a higher layer, nothing of a folder beside its own
(another op family, io from ops), no source file, and no two files include each other."""
import pathlib
import re
import subprocess
import sys

# Each layer may use those after it; folders of one layer may not use each other, but for the first, the programs.
LAYERS = [["tools", "python", "bench", "tests", "examples"], ["check", "lm", "dist"], ["ops", "io"], ["cpu", "cuda"],
          ["src"], ["include"]]
# Families whose arithmetic another one fuses: user, used.
ALLOWED = {
    ("ops/quantize_fp8", "ops/swiglu"),  # swiglu_quantize is swiglu_fwd and quantize_fp8_dual in one kernel
    ("ops/q8_0", "ops/swiglu"),          # q8_0_gate_up_swiglu applies the activation to its two products
    ("ops/blocks", "ops/swiglu"),        # block_gate_up_swiglu likewise
    ("ops/moe", "ops/swiglu"),           # moe_gate_up_swiglu too
    ("ops/moe", "ops/q8_0"),             # the products of experts are those of Q8_0
    ("ops/experts", "ops/swiglu"),       # moe_swiglu_quantize is swiglu_fwd and moe_permute_quantize in one kernel
    ("ops/experts", "ops/quantize_fp8"), # whose tiles its groups consist of
    ("ops/experts", "ops/moe"),          # moe_route_bwd needs the scores of moe_route
    ("ops/moe", "ops/blocks"),           # and those of block formats,
    ("ops/blocks", "ops/moe"),           # whose files compile the experts' kernels beside their own
    ("check/moe", "check/blocks"),       # weights in block formats, made and taken apart
    ("check/moe", "check/gemm_fp8"),     # scales of codes in FP8
    ("ops/generate", "ops/blocks"),      # embeddings in block formats
    ("check/generate", "check/blocks"),  # likewise
    ("ops/blocks", "ops/q8_0"),          # its activation codes, made inside a product
    ("ops/q8_0", "ops/norm"),            # products with a norm quantise what rms_norm makes of x
    ("ops/q8_0", "ops/quantize_fp8"),    # Q8_0 blocks are quantised by the same row and column helpers
}
root = pathlib.Path(sys.argv[1])
wrong = []


def layer(path):
    return next((i for i, folders in enumerate(LAYERS) if path.split("/")[0] in folders), None)


def unit(path):
    """What may not use another one of its layer: a family of ops or of checks, or a folder."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in ("ops", "check") and len(parts) > 2 else parts[0]


def included(path):
    """The project's files that a file includes."""
    for name in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', (root / path).read_text(), re.M):
        for folder in (pathlib.PurePosixPath(path).parent, pathlib.PurePosixPath(), pathlib.PurePosixPath("include")):
            if (root / folder / name).is_file():
                yield str(folder / name)
                break


files = [f for f in subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh"],
                                   capture_output=True, text=True, check=True).stdout.split() if (root / f).is_file()]
used_pairs = set()
uses = {path: list(included(path)) for path in files}
for path, used in uses.items():
    for other in used:
        mine, its, parts = layer(path), layer(other), (unit(path), unit(other))
        if mine is None or its is None:
            wrong.append(f"{path} includes {other}: one of them is in no layer (tests/layers.py)")
        elif its < mine:
            wrong.append(f"{path} includes {other}, which is a layer above it")
        elif parts in ALLOWED:
            used_pairs.add(parts)
        elif its == mine > 0 and parts[0] != parts[1] and parts[1] != "check":
            wrong.append(f"{path} includes {other}, which belongs to {parts[1]} only")
        if not other.endswith((".h", ".cuh")):
            wrong.append(f"{path} includes {other}, which is a source file")

wrong += [f"tests/layers.py allows {a} to include files of {b}, and none does" for a, b in ALLOWED - used_pairs]
done = set()


def circle(path, way):
    if path in way:
        wrong.append("a circle of includes: " + " -> ".join(way[way.index(path):] + [path]))
    elif path not in done:
        for other in uses.get(path, []):
            circle(other, way + [path])
        done.add(path)


for path in files:
    circle(path, [])
print("\n".join(wrong) if wrong else f"{len(files)} files, {sum(map(len, uses.values()))} includes: all downwards")
sys.exit(bool(wrong))

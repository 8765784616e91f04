"""regret.py: how far the picks are from the best row, and the predicted times from the measured ones.

    python3 bench/regret.py --ridge build/ridge --run records.csv          # on a GPU: times the rows, then prints
    python3 bench/regret.py --ridge build/ridge --device model:h100-sxm records.csv   # anywhere: picks of today

Regret is the time of the row that is picked over that of the fastest row, 1 at best; the ratio is the measured time of
the picked row over its predicted one. Rows that are picked only where no others run are not timed. A record keeps the
times of all rows, so a changed cost function is judged without a GPU; `--check 51`: fails unless 51 problems are within
the targets.
"""

import argparse
import csv
import math
import re
import subprocess
import sys

# n, k of weights, and m. Forward and dgrad: the layers of train84 and shapes with few columns or little k.
FORWARD = [(4096, 4096, 4096), (4096, 12288, 4096), (4096, 4096, 11008), (4096, 22016, 4096), (8192, 6144, 4096),
           (8192, 4096, 14336), (8192, 28672, 4096), (4096, 8192, 8192), (4096, 10240, 8192), (16384, 3584, 18944),
           (4096, 2112, 7168), (4096, 576, 7168), (4096, 7168, 2048), (4096, 32768, 512), (4096, 4096, 7168)]
WGRAD = [(4096, 4096, 4096), (6144, 4096, 8192), (28672, 4096, 8192), (8192, 8192, 4096), (4096, 14336, 16384),
         (576, 7168, 8192), (3584, 18944, 8192)]
MIDDLE = [(65, 4096, 14336), (128, 8192, 8192), (96, 6144, 4096), (192, 4096, 14336), (256, 7168, 2048),
          (320, 8192, 8192), (384, 6144, 4096), (512, 10240, 8192), (65, 28672, 8192), (200, 28672, 4096)]
DECODE = [(1, 8192, 8192), (16, 4096, 14336), (64, 28672, 8192), (8, 7168, 2048), (64, 4096, 4096), (32, 2112, 7168)]
Q8_0 = [(1, 4096, 4096, 0), (1, 4096, 14336, 1), (8, 14336, 4096, 1), (2, 2048, 4096, 0), (1, 8192, 8192, 1),
        (8, 4096, 1024, 0)]
CE = [("train", 4096, 4096, 32000, ""), ("train", 256, 4096, 32000, ""), ("train", 64, 2048, 32000, ""),
      ("train", 1024, 4096, 128256, ""), ("backward", 2048, 2304, 64000, ""), ("eval", 4096, 4096, 128256, "")]


def problems():
    """Yields group, pattern of rows, problem."""
    for m, n, k in FORWARD:
        yield "train84 forward", "*wgmma*", f"gemm_fp8 m={m} n={n} k={k}"
    for n, k, m in WGRAD:
        yield "train84 dW", "*wgmma*", f"gemm_fp8 m={n} n={k} k={m} scales=row128_row128"
    for m, n, k in MIDDLE:
        yield "m of 65 to 512", "*wgmma*", f"gemm_fp8 m={m} n={n} k={k}"
    yield "m of 65 to 512", "*wgmma*", "gemm_fp8 m=256 n=8192 k=8192 scales=row"
    for m, n, k in DECODE:
        yield "decode", "*decode*", f"gemm_fp8 m={m} n={n} k={k}"
    for tokens, k, n, const in Q8_0:
        yield "decode", "*tma*", f"q8_0_matmul tokens={tokens} cols={k} rows={n} x=i8 w=i8 weights_const={const}"
    for op, tokens, hidden, vocab, more in CE:
        yield "cross entropy", "*wgmma*", f"linear_ce_{op} tokens={tokens} hidden={hidden} vocab={vocab} variant=1{more}"


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def explain(ridge, device, problem):
    """The row that is picked, and the predicted us of every row."""
    predicted, picked = {}, None
    for line in run([ridge, "explain", *problem.split(), "--device", device]).splitlines():
        found = re.match(r"([* ]) (\S+) +can run; predicted ([0-9.]+) us", line)
        if found:
            predicted[found[2]] = float(found[3])
            picked = found[2] if found[1] == "*" else picked
    return picked, predicted


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(ridge, device, rows_of, verbose):
    """Prints a line for each group; returns the (regret, ratio) of all problems."""
    groups = {}
    for group, pattern, problem in problems():
        rows = rows_of.get(problem)
        if not rows:
            continue
        picked, predicted = explain(ridge, device, problem)
        if picked not in rows:
            print(f"{problem}: {picked} is picked, which the record does not have")
            continue
        best = min(rows, key=rows.get)
        regret, ratio = rows[picked] / rows[best], rows[picked] / predicted[picked]
        groups.setdefault(group, []).append((regret, ratio))
        if verbose:
            print(f"{problem:72} {picked.split('.', 2)[2]:22} {rows[picked]:9.2f} us, regret {regret:.3f}, ratio "
                  f"{ratio:.2f}; best {best.split('.', 2)[2]}")
    print(f"{'group':18} {'problems':>8} {'regret: mean':>13} {'worst':>6} {'ratio: least':>13} {'mean':>6} {'most':>6}")
    groups["all"] = [x for group in list(groups.values()) for x in group]
    for group, list_of in groups.items():
        regrets, ratios = [x[0] for x in list_of], [x[1] for x in list_of]
        print(f"{group:18} {len(list_of):8} {mean(regrets):13.4f} {max(regrets):6.3f} {min(ratios):13.2f} "
              f"{mean(ratios):6.2f} {max(ratios):6.2f}")
    return groups["all"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", help="records of `ridge bench`")
    parser.add_argument("--ridge", default="build/ridge")
    parser.add_argument("--device", default="cuda", help="whose picks and predictions (default: cuda)")
    parser.add_argument("--run", action="store_true", help="times the rows first")
    parser.add_argument("--check", type=int, metavar="N", help="fails unless N problems are there: mean regret 1.02, worst 1.10, "
                        "ratios from 0.77 to 1.3")
    parser.add_argument("--verbose", action="store_true", help="a line for each problem")
    options = parser.parse_args()

    if options.run:
        for _, pattern, problem in problems():
            run([options.ridge, "bench", *problem.split(), "--kernel", pattern, "--csv", options.csv, "--device",
                 options.device])
    rows_of = {}
    with open(options.csv, newline="") as file:
        for record in csv.DictReader(file):
            if record["provider"] == "ridge":
                problem = f"{record['op']} {record['problem']}"
                rows_of.setdefault(canonical(problem), {})[record["kernel"]] = float(record["us"])
    found = judge(options.ridge, options.device, {p: rows_of.get(canonical(p)) for _, _, p in problems()}, options.verbose)
    if options.check is not None:
        regrets, ratios = zip(*found)
        if len(found) != options.check or mean(regrets) > 1.02 or max(regrets) > 1.10 or min(ratios) < 0.77 or max(ratios) > 1.3:
            sys.exit(f"{options.csv}: {len(found)} problems of {options.check}, or a target is missed")


def canonical(problem):
    """The problem without fields that have their default values."""
    default = {"a=e4m3", "b=e4m3", "d=bf16", "scales=row128_blk128", "weights_const=0", "dtype=bf16", "target=i64", "out=f32"}
    return " ".join(word for word in problem.split() if word not in default)


if __name__ == "__main__":
    main()

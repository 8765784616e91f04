"""report.py RECORD... [-o PAGE.html] [--roofline FILE.svg] [--speed FILE.svg]: pictures of bench/records/*.csv.

The page holds, for every device, its roofline and, for every op, bars of each provider beside ridge. --roofline draws
the roofline of the first device only, --speed the comparison that README.md shows (SPEED below says of what).
Providers are compared within one run only. Needs only the standard library; what it writes loads nothing.
"""
import argparse
import csv
import html
import math
import re
import sys

TEXTS = ["run", "date", "commit", "device", "driver", "suite", "op", "problem", "provider", "kernel"]
FIGURES = ["us", "us_p20", "us_p80", "tflops", "gbps", "floor_us", "err", "peak_bytes"]
BLUE, GREY, INK, FAINT = "#0b5fa5", "#c3cad1", "#1a1a1a", "#5f6a74"
# Colours of the roofline: the first family whose expression an op's name has.
FAMILIES = (("swiglu", "^swiglu_[fb]wd", "#009e73"), ("quantisers", "quantize|pack", "#cc79a7"),
            ("gemm_fp8", "^gemm_fp8", BLUE), ("q8_0", "^q8_0", "#d55e00"), ("linear_ce", "ce_", "#e69f00"),
            ("others", "", "#7b858f"))

# One group of bars: title, what is printed, record, op, filter on ridge's lines (column: regular expression), providers
# as (provider, its name in the picture), ridge first, and the caption.
SPEED = (
    ("SwiGLU forward, bf16", "time", "20261121-h200-swiglu-peers", "swiglu_fwd", {},
     (("ridge", "ridge"), ("torch.compile", "torch.compile"), ("liger-tiled", "Liger-Kernel, tiled")),
     "mean of {} shapes, 64 x 14336 to 8192 x 53248"),
    ("SwiGLU backward, bf16", "time", "20261121-h200-swiglu-peers", "swiglu_bwd", {},
     (("ridge", "ridge"), ("torch.compile", "torch.compile"), ("liger-tiled", "Liger-Kernel, tiled")),
     "mean of {} shapes, 64 x 14336 to 8192 x 53248"),
    ("FP8 GEMM, forward and dgrad", "TFLOP/s", "20261121-h200-gemm-fp8-train84-rivals",
     "gemm_fp8", {}, (("ridge", "ridge"), ("deepgemm", "DeepGEMM"), ("cublaslt", "cuBLASLt")),
     "scales 1x128 by 128x128, mean of {} products of seven models' layers"),
    ("FP8 GEMM, weight gradient", "TFLOP/s", "20261121-h200-gemm-fp8-wgrad", "gemm_fp8", {},
     (("ridge", "ridge"), ("deepgemm", "DeepGEMM (adds to f32)"), ("cublaslt", "cuBLASLt")),
     "scales 1x128 by 1x128, mean of {} products of seven models' layers"),
    ("FP8 GEMM, decoding one token", "time", "20261122-h200-gemm-fp8-decode", "gemm_fp8",
     {"problem": "m=1 .*row128_blk128", "kernel": "stream$"},
     (("ridge", "ridge"), ("deepgemm", "DeepGEMM"), ("cublaslt", "cuBLASLt")),
     "scales 1x128 by 128x128, mean of {} matrices"),
    ("Q8_0 matmul, one token", "time", "20261122-h200-q8-0", "q8_0_matmul",
     {"suite": "^q8_0$", "problem": "tokens=1 .*x=i8.*(settled|weights_const)=1"},
     (("ridge", "ridge"), ("ggml", "ggml (llama.cpp)"), ("ds4", "ds4")),
     "constant weights, mean of {} matrices of 4.5 to 71 MB"),
    ("Q8_0 matmul, eight tokens", "time", "20261122-h200-q8-0", "q8_0_matmul",
     {"suite": "^q8_0$", "problem": "tokens=8 .*x=i8.*(settled|weights_const)=1"},
     (("ridge", "ridge"), ("ggml", "ggml (llama.cpp)")), "constant weights, mean of {} matrices of 4.5 to 71 MB"),
    ("Linear cross entropy, loss and gradients, bf16", "time", "20261122-h200-linear-ce-sums", "linear_ce_train", {},
     (("ridge_dw16", "ridge"), ("torch.compile", "torch.compile")),
     "16-bit dW, mean of {} shapes of 1024 to 16384 tokens, 32000 to 256000 classes"),
    ("Linear cross entropy, 1024 tokens", "time", "20261122-h200-linear-ce-quack-sustained",
     "linear_ce_train", {"problem": "tokens=1024 "},
     (("ridge_dw16", "ridge"), ("quack_plain", "quack, its faster mode"), ("torch.compile", "torch.compile"),
      ("quack", "quack, default")), "16-bit dW, hidden 4096, 128256 classes, mean of two processes"),
    ("Two Llama-3-8B layers, training step in bf16", "time", "20261121-h200-train-order", "train_step",
     {"problem": "tokens=8192 "}, (("ridge", "ridge"), ("torch", "torch.compile")),
     "8192 tokens, mean of two processes"),
    ("Two Llama-3-8B layers, training step with FP8 products", "time", "20261121-h200-train-order", "train_step",
     {"problem": "tokens=8192 "}, (("ridge-fp8", "ridge, FP8"), ("torch", "torch.compile, bf16")),
     "8192 tokens, mean of two processes"),
)
# Words of ridge's problem and a rival's that differ where both do the same work: ridge has Q8_0 weights as planes (i8),
# others as blocks (u8); DeepGEMM adds its weight gradient to f32.
ALIKE = ((" settled=1", ""), (" weights_const=1", ""), ("w=u8", "w=i8"), (" accumulate=1", ""), ("d=f32", "d=bf16"))


def number(text):
    value = float(text or "nan")
    if math.isinf(value):
        raise ValueError(text)
    return value if value >= 0 else math.nan


def read(path):
    """The lines of a record, figures as numbers (NaN: not measured)."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        for column in TEXTS + FIGURES:
            if column not in (lines.fieldnames or ()):
                sys.exit(f"report.py: {path}: there is no column '{column}'")
        rows = []
        for row in lines:
            for column in FIGURES:
                try:
                    row[column] = number(row[column])
                except (TypeError, ValueError):
                    sys.exit(f"report.py: {path}:{lines.line_num}: {column} is no number: '{row[column]}'")
            row["file"] = path
            rows.append(row)
    return rows


def flop(row):
    """FLOP of a line of gemm_fp8 and its operands' bytes, scales left out."""
    m, n, k = (int(re.search(rf"\b{name}=(\d+)", row["problem"])[1]) for name in "mnk")
    return 2 * m * n * k, m * k + n * k + m * n * (4 if "d=f32" in row["problem"] else 2)


def text(x, y, words, size=12, colour=INK, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" {more}>{html.escape(words)}</text>'


def svg(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
            f'font-family="Helvetica,Arial,sans-serif">\n<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def bar_chart(heading, note, groups):
    """Groups (title, caption, bars); a bar is (name, figure, speed over ridge's, is it ridge)."""
    width, left, right, y = 800, 200, 710, 34
    unit = (right - left) / max(1, *(bar[2] for _, _, bars in groups for bar in bars))
    parts = [text(16, y, heading, 19, INK, 'font-weight="bold"'), text(16, y + 20, note, 12, FAINT)]
    y += 28
    for title, caption, bars in groups:
        y += 26
        parts += [text(16, y, title, 13.5, INK, 'font-weight="bold"'), text(16, y + 15, caption, 10.5, FAINT)]
        y += 22
        for name, figure, speed, ours in bars:
            length = speed * unit
            fill, inside = BLUE if ours else GREY, length > 9 * len(figure)
            parts += [text(left - 8, y + 13, name, 12, BLUE if ours else INK,
                           'text-anchor="end"' + ' font-weight="bold"' * ours),
                      f'<rect x="{left}" y="{y}" width="{length:.1f}" height="17" rx="2" fill="{fill}"/>',
                      text(left + length + (-7 if inside else 6), y + 13, figure, 11.5,
                           "#ffffff" if ours and inside else INK, 'text-anchor="end"' * inside)]
            if not ours:
                parts.append(text(width - 16, y + 13, f"{1 / speed:.2f} ×", 13, BLUE if speed < 0.995 else FAINT,
                                  'text-anchor="end" font-weight="bold"'))
            y += 20
    return svg(width, y + 14, parts)


def time_text(us):
    value, unit = (us * 1e-3, "ms") if us >= 1e3 else (us, "µs")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def times(rows, op, provider, where):
    """Problem -> time of a provider, the mean over the runs. Of several lines in a run ridge's first counts, which is
    the kernel that is picked, and a rival's fastest."""
    by = {}
    for row in rows:
        wanted = row["op"] == op and row["provider"] == provider and row["us"] > 0
        if not wanted or not all(re.search(pattern, row[column]) for column, pattern in where.items()):
            continue
        problem = row["problem"]
        for word, same in ALIKE:
            problem = problem.replace(word, same)
        runs = by.setdefault(problem, {})
        if not provider.startswith("ridge"):
            runs[row["run"]] = min(row["us"], runs.get(row["run"], math.inf))
        runs.setdefault(row["run"], row["us"])
    return {problem: mean(runs.values()) for problem, runs in by.items()}


def speed_chart(rows):
    groups = []
    for title, unit, record, op, where, providers, caption in SPEED:
        lines = [row for row in rows if record + ".csv" in row["file"]]
        ours, bars = times(lines, op, providers[0][0], where), []
        for provider, name in providers:
            theirs = times(lines, op, provider, where if provider.startswith("ridge") else {})
            shared = sorted(ours.keys() & theirs.keys())
            if not shared:
                sys.exit(f"report.py: --speed: no line of {op} by {provider} in {record}.csv, or it is not given")
            speed = mean([ours[p] / theirs[p] for p in shared])
            figure = time_text(mean([ours[p] for p in ours]) / speed)
            if unit == "TFLOP/s":
                figure = f"{mean([flop({'problem': p})[0] / ours[p] * 1e-6 for p in ours]) * speed:.0f} TFLOP/s"
            bars.append((name, figure, speed, provider.startswith("ridge")))
        groups.append((title, f"{caption.format(len(ours))} · {record}", bars))
    return bar_chart("ridge beside its rivals on one NVIDIA H200",
                     "Longer is faster; geometric means, measured side by "
                     "side in one job. At the right: how many times as fast ridge is.", groups)


def rates(row):
    """FLOP a byte and TFLOP/s, or None."""
    tflops, gbps = row["tflops"], row["gbps"]
    if row["op"] == "gemm_fp8" and not gbps > 0:
        gbps = flop(row)[1] / row["us"] * 1e-3
    return (tflops / gbps * 1e3, tflops) if tflops > 0 and gbps > 0 else None


def roofline(rows, device):
    """The fastest line of every problem of ridge; "" where none has both rates. Lines with half of the rows ignored are
    left out: their FLOP count what is not computed."""
    best = {}
    for row in rows:
        key = (row["op"], row["problem"])
        counts = row["op"] != "chain" and not re.search("-half|ignored", row["file"] + row["problem"])
        if row["provider"] == "ridge" and counts and rates(row):
            best[key] = min(row, best.get(key, row), key=lambda r: r["us"])
    if not best:
        return ""
    points = {name: [] for name, _, _ in FAMILIES}
    for row in best.values():
        points[next(name for name, pattern, _ in FAMILIES if re.search(pattern, row["op"]))].append(rates(row))
    xs, ys = zip(*(point for family in points.values() for point in family))
    top = [row for row in rows if row["op"] == "ceiling"]
    gbps = max((row["gbps"] for row in top if row["gbps"] > 0), default=0)
    roofs = [(name, max((row["tflops"] for row in top if kind in row["problem"] and row["tflops"] > 0), default=0))
             for name, kind in (("bf16", "bf16"), ("FP8", "e4m3"))]
    width, left, right, high, low = 800, 64, 780, 60, 480
    x0, x1, y0, y1 = min(xs) / 2, max(xs) * 2, min(ys) / 2, 2 * max(*ys, *(roof for _, roof in roofs))

    def px(x):
        return left + (right - left) * math.log(x / x0) / math.log(x1 / x0)

    def py(y):
        return low - (low - high) * math.log(y / y0) / math.log(y1 / y0)

    parts = [text(16, 30, f"Roofline of one {device}", 19, INK, 'font-weight="bold"'),
             text(16, high - 8, "TFLOP/s", 12, FAINT),
             text((left + right) / 2, low + 36, "FLOP a byte of operands", 12, FAINT, 'text-anchor="middle"')]
    for at, first, last in (("x", x0, x1), ("y", y0, y1)):
        for value in (10.0 ** power for power in range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1)):
            line = f"M{px(value):.1f} {low}V{high}" if at == "x" else f"M{left} {py(value):.1f}H{right}"
            parts += [f'<path d="{line}" stroke="#e3e6e9"/>',
                      text(px(value), low + 17, f"{value:g}", 11, FAINT, 'text-anchor="middle"') if at == "x"
                      else text(left - 6, py(value) + 4, f"{value:g}", 11, FAINT, 'text-anchor="end"')]
    for i, (name, _, colour) in enumerate(FAMILIES):
        dots = "".join(f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="2.6"/>' for x, y in points[name])
        parts += [f'<g fill="{colour}" fill-opacity="0.7">{dots}</g>', text(left + 14 + i * 118, low + 64, name, 12),
                  f'<circle cx="{left + 4 + i * 118}" cy="{low + 60}" r="5" fill="{colour}"/>']
    for name, roof in roofs:
        if gbps and roof:
            start = max(x0, y0 / gbps * 1e3)
            line = f"M{px(start):.1f} {py(gbps * start * 1e-3):.1f}L{px(roof / gbps * 1e3):.1f} {py(roof):.1f}H{right}"
            parts += [f'<path d="{line}" fill="none" stroke="{INK}" stroke-width="1.3"/>',
                      text(left + 10, py(roof) + 4, f"{name}: {roof:.0f} TFLOP/s, by cuBLASLt", 11)]
    if gbps:
        x, y = px(x0 * 4), py(gbps * x0 * 4e-3) - 10
        angle = math.degrees(math.atan2((high - low) / math.log(y1 / y0), (right - left) / math.log(x1 / x0)))
        parts.append(text(x, y, f"memory: {gbps:.0f} GB/s, the fastest read", 11, INK,
                          f'transform="rotate({angle:.1f} {x:.1f} {y:.1f})"'))
    return svg(width, low + 80, parts)


def op_chart(rows, op):
    """Bars of every problem of an op that a rival shares a run with, from its latest such run; "" if there is none."""
    runs = {}
    for row in rows:
        if row["op"] == op and row["us"] > 0:
            best = runs.setdefault(row["problem"], {}).setdefault((row["date"], row["run"]), {})
            if row["us"] < best.get(row["provider"], math.inf):
                best[row["provider"]] = row["us"]
    groups = []
    for problem, by_run in runs.items():
        shared = [key for key in sorted(by_run) if "ridge" in by_run[key] and len(by_run[key]) > 1]
        if shared:
            best = by_run[shared[-1]]
            order = sorted(best, key=lambda name: (name != "ridge", best[name]))
            groups.append((problem, shared[-1][1], [(name, time_text(best[name]), best["ridge"] / best[name],
                                                     name == "ridge") for name in order]))
    return bar_chart(op, "Longer is faster. At the right: how many times as fast ridge is.", groups) if groups else ""


def page(rows):
    parts = [('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>ridge: what was measured</title>\n'
              "<style>body{font-family:sans-serif;max-width:54rem;margin:auto;padding:1rem}svg{width:100%;height:auto}"
              "</style></head>\n<body>\n<h1>ridge: what was measured</h1>\n")]
    for device in sorted({row["device"] for row in rows}):
        here = [row for row in rows if row["device"] == device]
        parts.append(f"<h2>{html.escape(device)}</h2>\n{roofline(here, device)}")
        parts += [op_chart(here, op) for op in sorted({row["op"] for row in here})]
    return "".join(parts) + "</body></html>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", metavar="RECORD")
    parser.add_argument("-o", "--output", metavar="PAGE.html")
    parser.add_argument("--roofline", metavar="FILE.svg")
    parser.add_argument("--speed", metavar="FILE.svg")
    options = parser.parse_args()
    if not (options.output or options.roofline or options.speed):
        parser.error("one of -o, --roofline and --speed is needed")
    rows = [row for path in options.records for row in read(path)]
    ours = [row for row in rows if row["provider"] == "ridge"]
    if not ours:
        sys.exit("report.py: the records hold no line of ridge")
    device = ours[0]["device"]
    for path, draw in ((options.output, lambda: page(rows)), (options.speed, lambda: speed_chart(rows)),
                       (options.roofline, lambda: roofline([row for row in rows if row["device"] == device], device))):
        picture = draw() if path else None
        if picture == "":
            sys.exit("report.py: no line of ridge has both TFLOP/s and GB/s")
        if path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(picture)


if __name__ == "__main__":
    main()

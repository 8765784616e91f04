"""quantize_kills.py RIDGE [KILLS [SEED]]: `ridge quantize` ended at random moments by the signals that end a program. What it
leaves is what the manual says: the old output or none, or the whole new one; of SIGKILL a directory .ridge-XXXXXX beside an
output directory, or the new config.json beside a single file."""
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ridge = str(pathlib.Path(sys.argv[1]).resolve())
kills = int(sys.argv[2]) if len(sys.argv) > 2 else 30
random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGPIPE, signal.SIGUSR1, signal.SIGQUIT]
ROWS = 512
wrong = 0


def make_file(path, tensors):
    header, at = {}, 0
    for name in tensors:
        header[name] = {"dtype": "BF16", "shape": [ROWS, 4096], "data_offsets": [at, at + ROWS * 8192]}
        at += ROWS * 8192
    text = json.dumps(header).encode()
    with open(path, "wb") as to:
        to.write(struct.pack("<Q", len(text)) + text)
        to.write(random.randbytes(1 << 16) * (at >> 16))


def state(folder):
    """Every file with its contents' hash, every directory."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "directory"
            for p in sorted(folder.rglob("*"))}


def fail(*what):
    global wrong
    wrong += 1
    print("FAIL", *what)


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    model = root / "in"
    (model / "1_Pooling").mkdir(parents=True)
    make_file(model / "a.safetensors", ["0.weight", "1.weight"])
    make_file(model / "b.safetensors", ["2.weight", "3.weight"])
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        f"{i}.weight": "ab"[i // 2] + ".safetensors" for i in range(4)}}))
    for name in ("config.json", "tokenizer.json", "1_Pooling/config.json"):
        (model / name).write_text('{"a": 0.1}')
    source = state(model)
    CASES = {"directory": (model, []), "directory over an old one": (model, ["--force"]),
             "file": (model / "a.safetensors", []), "file over an old one": (model / "a.safetensors", ["--force"])}
    work = root / "work"
    whole, seconds, olds = {}, {}, {}

    def lay_out(case):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if "old" in case and "directory" in case:
            (work / "out").mkdir()
            (work / "out/old").write_text("old")
        elif "old" in case:
            (work / "out").write_text("old")
        return state(work)

    def start(case):
        path, more = CASES[case]
        return subprocess.Popen([ridge, "quantize", path, "-o", work / "out", "--to", "fp8-row", "--device", "cpu", "--no-stats", "--quiet", *more],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    for case in CASES:  # undisturbed
        olds[case] = lay_out(case)
        begin = time.monotonic()
        status = start(case).wait()
        seconds[case] = time.monotonic() - begin
        whole[case] = state(work)
        if status:
            fail(case, "without a signal gives", status)
    ended = left = 0
    for i in range(kills):
        case, number = random.choice(list(CASES)), random.choice(SIGNALS)
        lay_out(case)
        tool = start(case)
        time.sleep(random.uniform(0, 1.1 * seconds[case]))
        for _ in range(random.choice([1, 1, 1, 2, 4])):
            tool.send_signal(number)
            time.sleep(random.choice([0, 0, 0.002]))
        status = tool.wait()
        found = state(work)
        ended += status != 0
        what = (i, case, number.name, "status", status)
        rest = {p for p in found if p.split("/")[0].startswith(".ridge-")} | ({"config.json"} if case.startswith("file") else set())
        if number == signal.SIGKILL and status:
            left += bool(rest & set(found))
            found = {p: h for p, h in found.items() if p not in rest}
            if found not in (olds[case], whole[case], {p: h for p, h in whole[case].items() if p not in rest}):
                fail(*what, "left", sorted(found))
        elif status == 0 and found != whole[case]:
            fail(*what, "is not whole:", sorted(found))
        elif status and found != olds[case]:
            fail(*what, "left", sorted(set(found) - set(olds[case])) or "the old one changed")
        elif status not in (0, 130, -number):  # -number: it came before the tool could catch it
            fail(*what)
        if state(model) != source:
            fail(*what, "the input has changed")
            break
print(f"quantize_kills: {kills} signals, {ended} of which ended a run; SIGKILL left something {left} times; {wrong} failures")
sys.exit(bool(wrong))

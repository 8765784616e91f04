"""short_memory.py RIDGE PRELOADED: verbs of the tool, each as often as it allocates, one allocation failing each time.
Then either nothing is different, or there is a message and a failure: no crash, and no file that is not whole."""
import hashlib
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ridge, preloaded = sys.argv[1:]
problem = ["swiglu_fwd", "rows=4", "cols=4", "--device", "cpu"]
header = b'{"a.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]}}'
verbs = [["info", "--json"], ["explain", *problem, "--json"], ["kernels", "*multiply*", "--json"],
         ["test", *problem, "--quiet", "--once", "--kernel", "*.c"], ["tune", *problem, "--quiet", "-o", "out"],
         ["inspect", "in", "--json"], ["quantize", "in", "-o", "out", "--to", "fp8-row", "--quiet"]]
same = {"kernels", "inspect"}  # what they print is no time and nothing of the machine
wrong = 0


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def once(verb, at):
    """What came, and whether allocation `at` was reached."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "in").mkdir()
        (folder / "in" / "config.json").write_text('{"model_type": "llama"}')
        (folder / "in" / "model.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header + b"".join(struct.pack("<f", i % 97 - 48) for i in range(4096)))
        read, write = os.pipe()
        environment = dict(os.environ, OMP_NUM_THREADS="1", LD_PRELOAD=preloaded, SHORT_AT=str(at), SHORT_TO=str(write))
        run = subprocess.run([ridge, *verb], cwd=folder, env=environment, pass_fds=[write], capture_output=True,
                             timeout=300)
        os.close(write)
        reached = os.read(read, 1) == b""
        os.close(read)
        files = {name: value for name, value in digest(folder).items() if verb[0] != "tune"}
        out = run.stdout if verb[0] in same else b""
        hidden = [path.name for path in folder.iterdir() if path.name not in ("in", "out")]
        return (run.returncode, out, files, hidden, run.stderr + run.stdout), reached


for verb in verbs:
    good, _ = once(verb, 0)
    wrong += good[0] != 0
    at, reached = 0, True
    while reached:
        at += 1
        (status, out, files, hidden, said), reached = once(verb, at)
        whole = all(good[2].get(name) == value for name, value in files.items())
        if status not in (0, 1) or hidden or not whole or (status == 0 and out != good[1]) or (status == 1 and not said):
            print(f"ridge {' '.join(verb)}: allocation {at} fails: status {status}, files {sorted(files)} {hidden}: "
                  f"{said[-300:]}")
            wrong += 1
    print(f"ridge {' '.join(verb)}: {at - 1} allocations")
    wrong += at < 3
sys.exit(wrong != 0)

"""A process forked after a call on several threads: multiprocessing's default start method on Linux before Python 3.14."""
import os
import subprocess
import sys

SCRIPT = """
import multiprocessing, os
import numpy as np, ridge

x = np.random.default_rng(7).standard_normal((512, 4096)).astype(np.float32)

def call(_):
    return ridge.swiglu(x, x)

if __name__ == "__main__":
    want = call(0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all((got == want).all() for got in pool.map(call, range(4)))
    child = os.fork()
    if child == 0:
        os._exit(0 if (call(0) == want).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (call(0) == want).all()
"""


def test_forked_children_compute(tmp_path):
    path = tmp_path / "forks.py"
    path.write_text(SCRIPT)
    subprocess.run([sys.executable, path], check=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "4"})

"""The annotations, by mypy where it is installed: a user sees the types of results, and his mistakes are found."""
import os
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
pytest.importorskip("torch", reason="torch is not installed")
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ridge")
PROGRAM = """
import numpy as np
import ridge
import ridge.torch as R
import torch
from typing_extensions import assert_type

x = torch.zeros(4, 64)
assert_type(R.swiglu(x, x), torch.Tensor)
assert_type(R.quantize_fp8(x)[1], torch.Tensor)
assert_type(R.linear_cross_entropy(x, x, x.long(), ignore_index=None, shift=1), torch.Tensor)
assert_type(R.cross_entropy_stats(x, x.long()).entropy, torch.Tensor)
assert_type(R.Q8_0Linear.from_linear(torch.nn.Linear(64, 32)), R.Q8_0Linear)
with R.apply_ridge_to(torch.nn.Linear(2, 2)) as patch:
    assert_type(patch, R.Patch)
a: np.ndarray = ridge.rms_norm(np.zeros((2, 4)))
R.swiglu(1.0)  # wrong
R.swiglu(x, activation=3)  # wrong
R.linear_cross_entropy(x, x, x, shift="a")  # wrong
ridge.Device(0)  # wrong
"""


def mypy(folder, *arguments):
    path = os.path.dirname(os.path.abspath(PACKAGE))
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(folder / "cache"), *arguments],
                          capture_output=True, text=True, cwd=folder, env={**os.environ, "MYPYPATH": path})
    return done.stdout + done.stderr


def test_annotations(tmp_path):
    assert os.path.exists(os.path.join(PACKAGE, "py.typed"))
    (tmp_path / "program.py").write_text(PROGRAM)
    said = mypy(tmp_path, "--ignore-missing-imports", "program.py").splitlines()
    wrong = [f"program.py:{i}: error" for i, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    assert len(said) == len(wrong) and all(line.startswith(w) for line, w in zip(said, wrong)), "\n".join(said)

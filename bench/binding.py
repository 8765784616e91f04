"""binding.py: the package ridge for the benches: --lib says which libridge.so, calls are made from tensors."""
import os
import sys

import torch


def library(path, device="cuda"):
    """The open device of the libridge.so at `path` (None: the package's own), for this process's whole package."""
    if path:
        os.environ["RIDGE_LIBRARY"] = path
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
    from ridge import _core
    return _core.device(device)


def call(op, dims, operands, flags=0, kernel=None, scaling=None, **options):
    """A call; operands: {name: packed tensor}; scaling: {name: "ROW128", ...}."""
    from ridge import _abi, _core
    from ridge.torch._arrays import NUMBERS
    scaling = {name: getattr(_abi, f"SCALING_{mode}") for name, mode in (scaling or {}).items()}
    made = _core.new_call(op, flags, options, kernel, scaling)
    for i, n in enumerate(dims):
        made.dim[i] = n
    for name, t in operands.items():
        made.arg[_abi.SLOTS[op][name]] = _core.Operand(t.data_ptr(), 0, NUMBERS[t.dtype], 0)
    return made


def constant(name):
    from ridge import _abi
    return getattr(_abi, name)


def stream():
    return torch.cuda.current_stream().cuda_stream


def runnable(device, made):
    """Names of the rows that can run this call."""
    return [line[2:].split()[0] for line in device.explain(made).splitlines()[1:] if "can run" in line]

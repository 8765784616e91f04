"""_advice.py: says once where PyTorch's own path is probably faster: on a GPU whose tensor cores ridge does not use to the full."""
import math
import warnings

import torch

# Multiply-adds of bf16 a clock of a multiprocessor, dense, with f32 sums, from NVIDIA's white papers; GeForce cards have half.
# Not Hopper: docs/measured.md has what ridge and PyTorch take there.
RATES = {(8, 0): 1024, (8, 6): 512, (8, 9): 512, (10, 0): 4096, (10, 3): 4096, (12, 0): 512, (12, 1): 512}
REACHED = 0.75  # of that by cuBLAS in long products; an H200's best is 0.8
FEW = 1e11  # operations: where less is to do, other costs decide
done = set()  # (op, device index): said, or nothing to say; with a size: asked


def products(op, dims):
    """Operations of the call's products: what PyTorch's own path cannot do without."""
    size = 2.0 * dims[0] * dims[1] * dims[2]
    return size * {"linear_ce_train": 3, "linear_ce_backward": 3}.get(op, 1)


def predicted_us(explained):
    """The prediction for the row that would run, from `ridge explain`'s text; None where none can."""
    for line in explained.split("\n"):
        if line.startswith("*") and "predicted " in line:
            return float(line.split("predicted ")[1].split(" ")[0])
    return None


def torch_us(operations, fp8, capability, name, units, clock_ghz):
    """The time of the products alone by cuBLAS; None on a chip that the table lacks."""
    rate = RATES.get(capability)
    if rate is None:
        return None
    if "GeForce" in name:
        rate /= 2
    if fp8 and capability >= (8, 9):
        rate *= 2
    return operations / (2e3 * rate * units * clock_ghz * REACHED)


def consider(device, form, values, index):
    """Called for every call of an op on a device until it is done; a long one of each size is asked about."""
    key = (form.op, index)
    operations = products(form.op, values)
    size = (*key, round(math.log2(max(operations, FEW))))
    if key in done or size in done or operations < FEW:
        return
    done.add(size)
    p = torch.cuda.get_device_properties(index)
    own = torch_us(operations, form.op == "gemm_fp8", (p.major, p.minor), p.name, p.multi_processor_count,
                   getattr(p, "clock_rate", 1.7e6) * 1e-6)  # kHz; torch before 2.6 has none
    if own is None:
        done.add(key)
        return
    ours = predicted_us(device.explain(form.call(values)))
    if ours and ours > 1.1 * own:
        done.add(key)
        warnings.warn(f"ridge: {form.op} on {p.name}: predicted {ours / 1e3:.3g} ms where PyTorch's products alone take about "
                      f"{own / 1e3:.3g} ms; this GPU's tensor cores are used through mma.sync", stacklevel=6)

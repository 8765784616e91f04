"""What the package takes from include/ridge.h: numbers, struct layouts, the version; and how it fails."""
import ctypes
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import ridge
from ridge import _abi, _core

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEADER = os.path.join(ROOT, "include", "ridge.h")
needs_header = pytest.mark.skipif(not os.path.exists(HEADER), reason="include/ridge.h is not here")


@needs_header
def test_abi_is_the_headers():
    sys.path.insert(0, os.path.join(ROOT, "python"))
    import generate_abi
    with open(os.path.join(ROOT, "python", "ridge", "_abi.py"), encoding="utf-8") as f:
        assert f.read() == generate_abi.generate(HEADER), "run python3 python/generate_abi.py > python/ridge/_abi.py"


PROGRAM = r"""
#include <stdio.h>
#include "ridge.h"
int main(void) {
    %s
    return 0;
}"""
STRUCTS = {"ridge_call": (_core.Call, None), "ridge_tensor": (_core.Tensor, None), "ridge_operand": (_core.Operand, None),
           "ridge_device_info": (_core._Info, None), "ridge_swiglu_options": (_core._swiglu, None),
           "ridge_quantize_options": (_core._quantize, None), "ridge_norm_options": (_core._norm, None),
           "ridge_swiglu_quantize_options": (_core._swiglu_quantize, "floor"), "ridge_ce_options": (_core._ce, None)}


@needs_header
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_layout(tmp_path):
    lines, want = [], []
    for name, (kind, only) in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        want.append(f"{name} {ctypes.sizeof(kind)}")
        for field in [only] if only else [f[0] for f in kind._fields_]:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            want.append(f"{name}.{field} {getattr(kind, field).offset}")
    (tmp_path / "layout.c").write_text(PROGRAM % "\n    ".join(lines))
    subprocess.run(["cc", "-I", os.path.dirname(HEADER), "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    got = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split("\n")
    assert got[:-1] == want


def test_new_call_does_what_its_docstring_shows():
    rows, cols = 32, 64
    blocks = np.random.default_rng(1).integers(0, 256, (rows, cols // 32 * 18), dtype=np.uint8)
    tiles, back = np.zeros((2, 2048), dtype=np.uint8), np.zeros_like(blocks)
    names = {"ridge": ridge, "_abi": _abi, "device": ridge.Device("cpu"), "rows": rows, "cols": cols, "tiles": tiles}
    shown = textwrap.dedent(ridge.new_call.__doc__.split("\n\n")[1])
    exec(shown, names | {"blocks": blocks})
    exec(shown.replace("repack", "unpack"), names | {"blocks": back})
    assert tiles.any() and (back == blocks).all()


def test_calls_are_the_builders():
    """new_call: the builder's number, flags and defaults, every operand absent, what is given on top."""
    for op, number in _abi.OPS_BY_NAME.items():
        call = ridge.new_call(op)
        assert call.op == number and call.struct_size == ctypes.sizeof(call) and not any(a.dtype for a in call.arg)
    call = ridge.new_call("gemm_fp8", _abi.ACCUMULATE, scaling={"a": _abi.SCALING_ROW128, "b": _abi.SCALING_BLK128})
    assert not call.invalid and call.flags & _abi.ACCUMULATE and call.flags != _abi.ACCUMULATE
    assert b"scalings of a and b" in ridge.new_call("gemm_fp8").invalid
    ce = _core._ce.from_buffer(ridge.new_call("ce_fwd", options={"softcap": 3.0}), _core.Call.opt.offset)
    assert (ce.ignore_index, ce.temperature, ce.grad_scale, ce.softcap) == (-100, 1.0, 1.0, 3.0)
    with pytest.raises(ridge.ArgumentError, match="scaling of q is none of"):
        _core.form("quantize_fp8")


def test_missing_library_is_one_clear_sentence(tmp_path):
    package = os.path.join(ROOT, "python", "ridge")
    shutil.copytree(package, tmp_path / "ridge", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    done = subprocess.run([sys.executable, "-c", "import ridge"], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": "", "RIDGE_LIBRARY": ""})
    assert done.returncode and "ImportError: ridge: the library was not found" in done.stderr
    assert "pip install" in done.stderr


def test_unknown_names():
    with pytest.raises(ridge.ArgumentError, match="there is no op 'swiglu'"):
        ridge.new_call("swiglu")
    with pytest.raises(TypeError, match="swiglu_fwd has no option 'gain'"):
        ridge.new_call("swiglu_fwd", options={"gain": 2.0})
    with pytest.raises(TypeError, match="gemm_fp8 has no option 'gain'"):
        ridge.new_call("gemm_fp8", options={"gain": 2.0})


def test_version_and_device():
    assert tuple(map(int, ridge.__version__.split("."))) == _abi.VERSION
    cpu = ridge.Device("cpu")
    assert cpu.info["backend"] == "cpu" and cpu.info["units"] > 0
    with pytest.raises(ridge.ArgumentError, match="nonsense"):
        ridge.Device("nonsense")
    with pytest.raises(TypeError, match="named by a str, not by a int"):
        ridge.Device(0)


def test_a_copied_device_is_not_closed_twice():
    """A copy is the same object, a pickle holds the name only: loaded in another process, an address would be freed there."""
    done = subprocess.run([sys.executable, "-c", """
import copy, pickle, numpy as np, ridge
cpu = ridge.Device("cpu")
for other in (copy.copy(cpu), copy.deepcopy(cpu), copy.deepcopy([cpu])[0]):
    assert other is cpu
loaded = pickle.loads(pickle.dumps(cpu))
assert loaded is not cpu and loaded.handle != cpu.handle and loaded.spec == "cpu"
print(pickle.dumps(ridge.Device("model:sm90")).hex())
del cpu, other, loaded"""], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert not done.returncode, done.stderr
    assert pickle.loads(bytes.fromhex(done.stdout)).info["arch"] == "sm90"


def test_text_is_not_cut_at_a_nul():
    for call in (lambda: ridge.Device("cpu\0x"), lambda: ridge.new_call("swiglu_fwd", kernel="c\0x")):
        with pytest.raises(ridge.ArgumentError, match="has a NUL character"):
            call()


def test_model_device_answers_and_does_not_run():
    model = ridge.Device("model:sm90")
    call = ridge.new_call("swiglu_fwd")
    x = np.zeros((4, 64), np.float32)
    call.dim[0], call.dim[1] = 4, 64
    for i in range(3):
        call.arg[i] = _core.Operand(x.ctypes.data, 0, _abi.F32, 0)
    call.arg[2].data = np.zeros_like(x).ctypes.data
    if "cuda" not in model.explain(call):
        pytest.skip("a library without CUDA rows")
    assert model.pick(call).startswith("cuda.swiglu_fwd.")
    assert "can run" in model.explain(call)
    with pytest.raises(ridge.DeviceError, match="launches nothing"):
        model.run(call)


def test_graphs_need_a_gpu():
    for spec in "cpu", "model:sm90":
        with pytest.raises(ridge.UnsupportedError, match="ridge_order_graph: device .* has no CUDA graphs"):
            ridge.Device(spec).order_graph(4096)
    with pytest.raises(ridge.ArgumentError, match="graph is NULL"):
        ridge.Device("cpu").order_graph(0)


def test_threads_do_not_share_a_struct():
    """More threads than structs: every result is its own."""
    inputs = [np.full((8, 512), i, np.float32) for i in range(8)]
    wrong = []

    def work(x):
        want = ridge.swiglu(x, x)
        for _ in range(200):
            if not np.array_equal(ridge.swiglu(x, x), want):
                wrong.append(x[0, 0])

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_every_options_struct_belongs_to_an_op():
    """A struct of options that no op is listed for could not be set from Python (kv_append's and attention's were not)."""
    listed = [tuple(name for name, _ in struct._fields_) for struct in set(_core.OPTIONS.values())]
    for name, text in _core.A.OPTIONS.items():
        assert tuple(item.split()[1] for item in text.split(", ")) in listed, name
    for op in _core.A.OPS_BY_NAME:  # block_gate_up_swiglu's could not
        if "swiglu" in op:
            assert ridge.new_call(op, options={"limit": 7.0}), op
    call = ridge.new_call("attention_decode", options={"scale": 0.5, "window": 7})
    assert bytes(call)[_core.Call.opt.offset:][:12] == (7).to_bytes(8, "little") + bytes.fromhex("0000003f")

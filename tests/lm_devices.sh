#!/bin/sh
# lm_devices.sh LM_TOOL [DEVICE]: a model's logits and texts are the same bytes on the CPU and on a GPU, whose steps of up
# to 16 tokens are graphs while panels of 17 and 40 tokens are launched call by call: token by token, in panels, and in
# steps of 1, 5 and 16 texts. Without the device the test is skipped (77).
set -u
tool=$1 device=${2:-cuda}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bad=0
count=0
tokens=$(awk 'BEGIN { for (i = 0; i < 40; i++) print 7 + i * 37 % 250 }')

same() { # same WHAT: the device's bytes are there and are the CPU's
    count=$((count + 1))
    [ -s "$dir/cpu" ] && cmp -s "$dir/cpu" "$dir/device" && return
    echo "lm_devices: $1: $device differs from the CPU"
    bad=$((bad + 1))
}

for family in llama qwen2 qwen3 gemma3 qwen3moe gpt-oss; do
    model=$dir/$family.gguf
    "$tool" make $family "$model" || exit 1
    if ! "$tool" logits "$model" "$device" 1 7 >"$dir/device" 2>"$dir/log"; then
        grep -qi "no cuda device" "$dir/log" && { echo "lm_devices: skipped, $(cat "$dir/log")"; exit 77; }
        cat "$dir/log"
        exit 1
    fi
    "$tool" logits "$model" cpu 1 $tokens >"$dir/cpu" || exit 1
    for panel in 1 7 16 17 40; do
        "$tool" logits "$model" "$device" $panel $tokens >"$dir/device" || bad=$((bad + 1))
        same "$family, $panel tokens a call"
    done
    for texts in 1 5 16; do
        for temperature in 0 0.8; do
            "$tool" steps "$model" cpu $texts 20 $temperature >"$dir/cpu" || bad=$((bad + 1))
            "$tool" steps "$model" "$device" $texts 20 $temperature >"$dir/device" || bad=$((bad + 1))
            same "$family, $texts texts a step, temperature $temperature"
        done
    done
done
[ $bad = 0 ] && echo "lm_devices: $count comparisons, all the same bytes"
exit $((bad > 0))

#!/bin/sh
# generate.sh RIDGE LM_TOOL: the verbs generate and perplexity on small models: text, seeds, a dialogue, errors.
set -u
ridge=$1 tool=$2
dir=$(mktemp -d)
log=$dir/log
trap 'rm -rf "$dir"' EXIT
. "$(dirname "$0")/expect.sh"

for family in llama gemma3; do
    "$tool" make $family "$dir/$family.gguf" || fail "no model of $family"
done
model=$dir/llama.gguf
one=$("$ridge" generate "$model" -p "ab cd" -n 20 --seed 7 --device cpu -q) || fail "generate failed"
two=$("$ridge" generate "$model" -p "ab cd" -n 20 --seed 7 --device cpu:c -q)
[ -n "$one" ] && [ "$one" = "$two" ] || fail "the same seed gave '$one' and '$two'"
[ "$one" != "$("$ridge" generate "$model" -p "ab cd" -n 20 --seed 8 --device cpu -q)" ] || fail "another seed gave the same text"
expect 0 '"text_tokens": ' "$ridge" generate "$dir/gemma3.gguf" -p "ab" -n 5 --temp 0 --device cpu --json
expect 0 'tokens/s' "$ridge" generate "$dir/gemma3.gguf" -p "ab" -n 5 --temp 0 --device cpu
# A text that was saved goes on as if it had not stopped, on another device too.
for family in llama gemma3; do
    set -- "$dir/$family.gguf" --seed 7 --device
    whole=$("$ridge" generate "$@" cpu -p "ab cd" -n 20 -q --json | grep '"text":')
    first=$("$ridge" generate "$@" cpu -p "ab cd" -n 9 -q --json --save "$dir/text" | grep '"text":')
    rest=$("$ridge" generate "$@" cpu:c -n 11 -q --json --load "$dir/text" | grep '"text":')
    [ -n "$rest" ] && [ "$whole" = "${first%\"*}$(printf "%s\n" "$rest" | sed 's/^ *"text": "//')" ] ||
        fail "$family: '$whole' was cut into '$first' and '$rest'"
done
expect 1 "ridge_lm.model is" "$ridge" generate "$model" --load "$dir/text" --device cpu
echo text >"$dir/lines"
expect 1 "lines" "$ridge" generate "$model" --load "$dir/lines" --device cpu
expect 1 "nothing" "$ridge" generate "$model" --load "$dir/nothing" --device cpu
expect 1 "outside 1 .. 4" "$ridge" generate "$dir/gemma3.gguf" --load "$dir/text" --ctx 4 --device cpu
head -c 700 "$dir/text" >"$dir/cut"
expect 1 "cut" "$ridge" generate "$dir/gemma3.gguf" --load "$dir/cut" --device cpu
expect 1 "no/such" "$ridge" generate "$model" -p a -n 1 --device cpu --save "$dir/no/such/file"
# --save replaces what it wrote, and no other file: said before the text is made.
cp "$model" "$dir/kept.gguf"
for file in "$dir/kept.gguf" "$dir/lines"; do
    expect 1 "is there and is no saved text" "$ridge" generate "$dir/kept.gguf" -p a -n 1 --device cpu --save "$file"
done
cmp -s "$model" "$dir/kept.gguf" && [ "$(cat "$dir/lines")" = text ] || fail "--save replaced a file that is no saved text"
expect 0 "" "$ridge" generate "$dir/gemma3.gguf" -p ab -n 3 --device cpu -q --load "$dir/text" --save "$dir/text"
printf 'ab\n' | "$ridge" generate "$dir/gemma3.gguf" -i -n 3 --device cpu -q --load "$dir/text" >"$log" 2>&1 ||
    fail "a loaded dialogue failed: $(cat "$log")"
# A dialogue whose last message has no room is saved all the same, and goes on in a longer one.
printf 'ab\n%0500d\n' 0 >"$dir/lines"
expect 1 "there is room for" sh -c '"$0" generate "$1" -i -n 3 --device cpu -q --ctx 100 --save "$2" <"$3"' "$ridge" "$model" "$dir/full" "$dir/lines"
expect 0 "" "$ridge" generate "$model" -n 3 --device cpu -q --load "$dir/full"
printf 'ab\ncd\n' >"$dir/lines"
"$ridge" generate "$model" -i -n 5 --device cpu -q <"$dir/lines" >"$dir/out" 2>&1 || fail "a dialogue failed: $(cat "$dir/out")"
expect 0 "" "$ridge" generate "$model" -p "ab cd" -n 2 --device cpu -q --fast-prompt
# Ctrl-C ends the text, not the program, which still reports.
timeout --preserve-status -k 60 -s INT 1 "$ridge" generate "$model" -p "ab cd" -n 1000000 --ctx 1000000 --temp 0 \
    --device cpu --json >"$dir/out" 2>"$log" && grep -q '"stop": "interrupt"' "$dir/out" ||
    fail "an interrupt did not end a text: $(cat "$dir/out" "$log")"
# Nor do SIGTERM and SIGHUP lose what is to be saved, in an answer or at the prompt of a dialogue.
for signal in TERM HUP; do
    timeout -k 60 -s $signal 1 "$ridge" generate "$model" -p "ab cd" -n 1000000 --ctx 1000000 --temp 0 --device cpu -q \
        --save "$dir/$signal" >/dev/null 2>&1
    { echo ab && sleep 2; } | timeout -k 60 -s $signal 1 "$ridge" generate "$model" -i -n 3 --device cpu -q \
        --save "$dir/$signal-i" >/dev/null 2>&1
    [ -s "$dir/$signal" ] && [ -s "$dir/$signal-i" ] || fail "$signal: nothing was saved"
done
expect 0 "of a read" "$ridge" bench --model "$model" --test tg128 --device cpu
expect 1 "no test matches; there are pp512, 'pp512 fast', tg128" "$ridge" bench --model "$model" --test tg999 --device cpu
expect 0 "perplexity" "$ridge" perplexity "$model" "$0" --ctx 32 --device cpu -q
expect 1 "fewer than a window" "$ridge" perplexity "$model" "$dir/lines" --ctx 512 --device cpu
expect 1 "cannot read" "$ridge" perplexity "$model" "$dir/nothing" --device cpu
expect 1 "there is room for 4" "$ridge" generate "$model" -p "a b c d e f g h" --ctx 4 --device cpu
expect 1 "lines" "$ridge" generate "$dir/lines" -p a --device cpu
expect 2 "are needed" "$ridge" generate "$model"
expect 2 "top-p" "$ridge" generate "$model" -p a --top-p 2
expect 2 "temp" "$ridge" generate "$model" -p a --temp nan
[ $bad = 0 ] && echo "generate: all as expected"
exit $((bad > 0))

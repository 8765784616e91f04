#!/bin/sh
# cli.sh RIDGE: verbs, exit statuses, and messages of the tool, as a user meets them.
set -u
ridge=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
log=$dir/out
. "$(dirname "$0")/expect.sh"
problem="swiglu_fwd rows=8 cols=64 dtype=bf16"
expect 0 "cpu " "$ridge" info
expect 0 '"devices"' "$ridge" info --json
expect 0 "gate" "$ridge" ops
expect 0 '"operands"' "$ridge" ops --json 'swiglu*'
[ "$("$ridge" ops --names | sort -u | wc -l)" = "$("$ridge" ops --json | grep -c '"summary"')" ] || fail "names of ops"
expect 0 "cpu.multiply.c" "$ridge" kernels --names multiply
! grep -q ' ' "$dir/out" || fail "a name with a blank"
expect 2 "unrecognized option" "$ridge" info --names
expect 0 "last-level cache" "$ridge" info
expect 2 "too many arguments: 'nosuch'" "$ridge" info nosuch
expect 2 "unrecognized option" "$ridge" info --suite decode
expect 1 "nothing matches" "$ridge" ops nosuch
expect 2 "too many arguments: 'multiply'" "$ridge" ops swiglu_fwd multiply
expect 2 "too many arguments: 'b'" "$ridge" kernels a b
expect 0 "cpu.swiglu_fwd.c" "$ridge" kernels swiglu_fwd
expect 0 "--matrix-rate" "$ridge" help bench
expect 0 "--matrix-rate" "$ridge" --help bench
expect 2 "there is no verb 'nosuch'" "$ridge" help nosuch
expect 2 "there is no verb 'nosuch'" "$ridge" nosuch
expect 0 "cpu.swiglu_fwd.c" "$ridge" kernels
expect 1 "nothing matches" "$ridge" kernels nosuch
expect 0 "picked: lowest cost" "$ridge" explain $problem --device cpu
expect 0 "* cpu.swiglu_fwd.c " "$ridge" explain $problem --device cpu:c
expect 0 "no: runs on avx512, this is c" "$ridge" explain $problem --device cpu:c
expect 1 "unknown model 'sm99' (c, avx2" "$ridge" explain $problem --device model:sm99
expect 2 "no operand is aligned to 1 byte" "$ridge" explain $problem align=1 --device cpu
expect 2 "there is no field 'colour'; the fields are rows= cols= dtype= act= " "$ridge" explain swiglu_fwd rows=8 colour=red
expect 2 "moe_route: bad value in 'rule=top2'; it takes softmax topk_softmax sigmoid sqrt_softplus" \
    "$ridge" explain moe_route tokens=1 experts=8 slots=2 rule=top2
expect 2 "block_matmul: bad value in 'w=q3_k'; it takes q4_0 q4_1 q8_0 mxfp4 q2_k" "$ridge" explain block_matmul w=q3_k
expect 2 "there is no field 'm'; the fields are rows= " "$ridge" bench swiglu_fwd m=64
expect 1 "no kernel row matches 'nosuch'" "$ridge" test --device cpu --kernel nosuch --quiet
expect 1 "no kernel row of multiply matches 'nosuch'" "$ridge" test multiply --device cpu --kernel nosuch --quiet
expect 1 "no op matches 'nosuch'" "$ridge" test nosuch --device cpu --quiet
! grep -q passed "$dir/out" || fail "a summary of nothing"
# One problem: what a failure prints can be asked for again.
expect 0 " passed, 0 failed" "$ridge" test $problem fill=edge slices=1 repeats=3 --device cpu --quiet
expect 0 "1 passed, 0 failed" "$ridge" test gemm_fp8 m=5 n=7 k=40 fill=exact --once --kernel '*.c' --device cpu --quiet
expect 2 "k= is missing" "$ridge" test gemm_fp8 m=5 n=7 --device cpu --quiet
expect 2 "bad value in 'fill=red'" "$ridge" test $problem fill=red --device cpu --quiet
expect 2 "fill=exact is for ops whose sums are exact" "$ridge" test $problem fill=exact --device cpu --quiet
expect 1 "no case ran" "$ridge" test $problem --kernel 'cpu.swiglu_fwd.avx2' --device cpu:c --quiet
expect 0 " passed, 0 failed" "$ridge" test " $problem " --device cpu --quiet
expect 0 " passed, 0 failed" "$ridge" test 'multiply ' --quick --device cpu --quiet
expect 1 "no op matches ''" "$ridge" test ' ' --device cpu --quiet
expect 1 "--units is for a CUDA device" "$ridge" test $problem --units 4 --device cpu --quiet
# Not a failed row: what no device takes, and what this machine has no room for.
expect 1 "ridge test: $problem limit=-1: swiglu_fwd: option limit" "$ridge" test $problem limit=-1 --device cpu --quiet
for verb in test bench "tune -o $dir/t.tsv"; do
    expect 1 "GB of memory, " "$ridge" $verb swiglu_fwd rows=10000000 cols=1000000 --device cpu
    expect 1 "overflows the address space" "$ridge" $verb gemm_fp8 m=2000000000 n=2000000000 k=2000000000 --device cpu
    expect 1 "2^40 bytes or more" "$ridge" $verb multiply rows=1099511627776 cols=1099511627776 pad=8 --device cpu
    expect 1 "swiglu_fwd: operand gate is 1099511627776 x 0, empty" timeout 60 "$ridge" $verb swiglu_fwd rows=1099511627776 cols=0 --device cpu
    expect 1 "linear_ce_train: operand w is 1099511627776 x 0, empty" \
        timeout 60 "$ridge" $verb linear_ce_train tokens=0 hidden=0 vocab=1099511627776 --device cpu
done
expect 0 " passed, 0 failed" "$ridge" test multiply rows=16777216 cols=0 --device cpu --quiet
# A failure is a command that runs it again. Here memory runs out, so that something fails.
short() { (
    export OMP_NUM_THREADS=1
    ulimit -v 250000
    exec "$@"
); }
if short "$ridge" info --json >/dev/null 2>&1; then
    expect 1 "ridge test swiglu_fwd rows=1000 cols=10000 dtype=bf16 --seed 7 --device cpu" \
        short "$ridge" test swiglu_fwd rows=1000 cols=10000 --seed 7 --device cpu --quiet
    line=$(sed -n 's/^     ridge //p' "$log" | head -1)
    expect 0 " passed, 0 failed" "$ridge" $line --once --quiet
else
    echo "left out: a failure as the command that runs it again: 'ridge info' does not start in 250 MB here"
fi
expect 1 "'exact' compares a CUDA device" "$ridge" test exact --device cpu
expect 1 "unknown device" "$ridge" test --device tpu
expect 1 "option limit must be finite and positive, or 0 for no clamp: $problem limit=-1" "$ridge" explain $problem limit=-1
expect 1 "tokens is above 65536: q8_0_matmul tokens=65537" "$ridge" explain q8_0_matmul tokens=65537 cols=32 rows=8 x=f32 w=u8 out=f32
# Problem text: every dimension is said, every number is one; strict.
expect 2 "swiglu_fwd: cols= is missing" "$ridge" explain swiglu_fwd rows=8 --device cpu
expect 2 "gemm_fp8: k= is missing" "$ridge" bench gemm_fp8 m=8 n=16 --device cpu
for word in rows=1e3 rows=99999999999999999999 rows=-1 rows= rows pad=x pad=-1 shift=99999 alias=2 strict=2; do
    expect 2 "'$word'" "$ridge" explain $problem $word --device cpu
done
expect 2 "swiglu_fwd: rows= is there twice" "$ridge" explain $problem rows=9 --device cpu
expect 0 "scales=row128_blk128 weights_const=1 on c" "$ridge" explain gemm_fp8 m=8 n=16 k=32 weights_const=1 --device cpu:c
expect 2 "longer than" "$ridge" explain $problem $(seq -f 'pad=%g' 1 200) --device cpu
expect 0 "strict=1 on c" "$ridge" explain $problem strict=1 --device cpu:c
expect 1 "no place in a tuning file" "$ridge" tune $problem strict=1 --device cpu -o "$dir/t.tsv" --quiet
if "$ridge" kernels 'cuda.*' >/dev/null 2>&1 && [ ! -e /proc/driver/nvidia ] &&
    libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) && ! echo "$libraries" | grep -q libcuda.so; then
    expect 1 "no cuda device: there is no NVIDIA driver" "$ridge" test swiglu_fwd --device cuda --quick
fi
if ! "$ridge" kernels 'cuda.*' >/dev/null 2>&1; then
    expect 0 "no row of this one: this build has no CUDA backend" "$ridge" explain $problem --device model:sm90
fi
for number in abc 12x -1 '' 1e3 0x10 99999999999999999999 ' 1' nan; do
    expect 2 "--seed takes a whole number" "$ridge" bench $problem --device cpu "--seed=$number"
    expect 2 "--seed takes a whole number" "$ridge" test --device cpu "--seed=$number"
    expect 2 "--chain takes a whole number" "$ridge" bench --suite decode --device cpu "--chain=$number"
done
expect 2 "--chain takes a whole number" "$ridge" bench --suite decode --device cpu --chain=0
expect 2 "--rotation takes a whole number" "$ridge" bench $problem --device cpu --rotation=0
for number in abc 12x -1 '' 0 nan inf 1e999; do
    expect 2 "--matrix-rate takes a number above 0" "$ridge" bench $problem --device cpu "--matrix-rate=$number"
done
for verb in "test" "bench $problem" "tune $problem"; do
    expect 1 "a model device runs nothing" "$ridge" $verb --device model:sm90
done
expect 2 "usage" "$ridge" bench
expect 1 "there is no suite" "$ridge" bench --suite nosuch --device cpu
expect 1 "there is no suite 'nosuch'" "$ridge" bench --suite quick,nosuch --device cpu
expect 2 "there is no op" "$ridge" tune nosuch rows=1 -o "$dir/t.tsv" --device cpu
expect 2 "there is no op" "$ridge" bench nosuch rows=1 --device cpu
expect 0 "cpu.swiglu_fwd.c" "$ridge" bench $problem --device cpu --kernel '*.c' --csv "$dir/a.csv"
expect 0 '"us"' "$ridge" bench $problem --device cpu --json
# work counts the outputs that are asked for: train's loss, dX and dW are three products, eval's loss is one
"$ridge" bench linear_ce_train tokens=8 hidden=64 vocab=500 --device cpu --json 2>/dev/null | python3 -c '
import json, sys
row = next(r for r in json.load(sys.stdin) if r["kernel"].startswith("cpu."))
assert abs(row["tflops"] * row["us"] * 1e6 / (6 * 8 * 64 * 500) - 1) < 0.05, row' || fail "bench: FLOP of linear_ce_train"
"$ridge" bench --overhead $problem --device cpu --json 2>/dev/null | python3 -c 'import json, sys; json.load(sys.stdin)' || fail "bench: no JSON"
expect 1 "'smollm2-135m' is a shape; behind it belongs one of :q8_0 :q4_0" \
    "$ridge" bench --model smollm2-135m --device cpu
expect 1 "'smollm2:q8_0' is no file, and no shape: there are" "$ridge" bench --model smollm2:q8_0 --device cpu
expect 1 "No such file" "$ridge" bench --weights "$dir/none" --device cpu
expect 0 "cpu.swiglu_fwd.c" "$ridge" bench $problem --device cpu --kernel '*.c' --csv "$dir/a.csv" # once more, appended
[ "$(grep -c '^run,' "$dir/a.csv")" = 1 ] || fail "one header, not $(grep -c '^run,' "$dir/a.csv")"
echo precious >"$dir/other"
expect 1 "is no record" "$ridge" bench $problem --device cpu --csv "$dir/other"
[ "$(cat "$dir/other")" = precious ] || fail "wrote into a file that is no record"
{ cat "$dir/a.csv" && printf 'r,d,cut'; } >"$dir/cut.csv" # the next run does not go on in that line
expect 0 "cpu.swiglu_fwd.c" "$ridge" bench $problem --device cpu --csv "$dir/cut.csv" --kernel '*.c'
expect 1 "too few columns" "$ridge" compare "$dir/cut.csv"
sed -i '/^r,d,cut$/d' "$dir/cut.csv" && expect 0 "copy" "$ridge" compare "$dir/cut.csv"
# tune replaces tuning files alone, no record and no model; a closed stream's number goes to no file.
cp "$dir/a.csv" "$dir/kept.csv"
expect 1 "kept.csv: it is there and is no tuning file" "$ridge" tune $problem -o "$dir/kept.csv" --device cpu
echo "# ridge" >"$dir/kept.md"
expect 1 "kept.md: it is there and is no tuning file" "$ridge" tune $problem -o "$dir/kept.md" --device cpu
"$ridge" bench $problem --device cpu --csv "$dir/closed.csv" >&- 2>/dev/null && fail "a closed standard output is no failure"
expect 0 "copy" "$ridge" compare "$dir/closed.csv"
"$ridge" info <&- >"$dir/out" 2>&1 || fail "needs a standard input"
cmp -s "$dir/a.csv" "$dir/kept.csv" || fail "a record was replaced"
expect 0 '"noisy"' "$ridge" bench $problem --device cpu --json
"$ridge" kernels 'cuda.*' >/dev/null 2>&1 || ! "$ridge" info | grep -q 'model.*sm90' || fail "info names models without a row"
expect 0 "copy" "$ridge" compare "$dir/a.csv"
expect 0 '"geometric_mean"' "$ridge" compare --json "$dir/a.csv"
expect 0 "geometric mean of 1" "$ridge" compare --diff "$dir/a.csv" "$dir/a.csv"
echo broken >"$dir/b.csv"
expect 1 "b.csv:1: not the header" "$ridge" compare "$dir/b.csv"
expect 1 "cannot read" "$ridge" compare "$dir/none.csv"
expect 1 "cannot read ''" "$ridge" compare ''
: >"$dir/empty.csv"
expect 1 "it is empty" "$ridge" compare "$dir/empty.csv"
head -c 100000 /dev/zero >"$dir/zeros.csv"
expect 1 "not the header" "$ridge" compare "$dir/zeros.csv"
expect 1 "not a regular file" "$ridge" compare /dev/zero
{ cat "$dir/a.csv" && head -c 5000 /dev/zero | tr '\0' x; } >"$dir/long.csv"
expect 1 "the line is too long" "$ridge" compare "$dir/long.csv"
expect 0 "keep the cost model" "$ridge" tune $problem --device cpu -o "$dir/t.tsv" --quiet
expect 1 "cannot write" "$ridge" tune $problem --device cpu -o "$dir/no/t.tsv" --quiet
expect 1 "Is a directory" "$ridge" tune $problem --device cpu -o "$dir" --quiet
expect 1 "without a name" "$ridge" tune $problem --device cpu -o "" --quiet
expect 1 "not to standard output" "$ridge" tune $problem --device cpu -o - --quiet
mkdir "$dir/far" && echo "# ridge old" >"$dir/far/t.tsv" && chmod 640 "$dir/far/t.tsv" && ln -s far/t.tsv "$dir/link.tsv"
expect 0 "keep the cost model" "$ridge" tune $problem --device cpu -o "$dir/link.tsv" --quiet # a link stays one
{ [ -L "$dir/link.tsv" ] && [ "$(ls "$dir/far")" = t.tsv ] && ! grep -q old "$dir/far/t.tsv"; } || fail "not behind the link"
[ "$(stat -c %a "$dir/far/t.tsv")" = 640 ] || fail "another mode: $(stat -c %a "$dir/far/t.tsv")"
ln -s nowhere "$dir/dangling" && expect 1 "link to nothing" "$ridge" tune $problem --device cpu -o "$dir/dangling" --quiet
ln -s loop "$dir/loop" && expect 1 "cannot write" "$ridge" tune $problem --device cpu -o "$dir/loop" --quiet
mkfifo "$dir/pipe" && expect 1 "no regular file" "$ridge" tune $problem --device cpu -o "$dir/pipe" --quiet
[ -p "$dir/pipe" ] || fail "a pipe was replaced"
expect 0 "cpu.swiglu_fwd.c" "$ridge" bench $problem strict=1 --device cpu --kernel '*'
expect 1 "Is a directory" "$ridge" compare "$dir"
sed '2s/,[0-9.]*,[0-9.e-]*,[0-9.]*$/,inf,,/' "$dir/a.csv" >"$dir/inf.csv"
expect 1 "inf.csv:2: a figure is not a number" "$ridge" compare "$dir/inf.csv"
sed '2s/,[0-9.]*,[0-9.e-]*,[0-9.]*$/,nan,,/' "$dir/a.csv" >"$dir/nan.csv"
expect 0 "copy" "$ridge" compare "$dir/nan.csv"
expect 0 '"ratio"' "$ridge" compare --json --diff "$dir/a.csv" "$dir/a.csv"
expect 0 "geometric" "$ridge" compare --diff "$dir/a.csv" "$dir/a.csv"
printf '%s\tcpu.swiglu_fwd.c\t1\n' "$problem" >"$dir/pin.tsv"
expect 0 "picked: tuned" env RIDGE_TUNED="$dir/pin.tsv" "$ridge" explain $problem --device cpu
expect 0 "picked: pinned" env RIDGE_KERNEL=swiglu_fwd=cpu.swiglu_fwd.c "$ridge" explain $problem --device cpu
expect 1 "RIDGE_KERNEL" env RIDGE_KERNEL=swiglu_fwd=nosuch "$ridge" explain $problem --device cpu
printf 'nonsense\n' >"$dir/pin.tsv"
expect 1 "pin.tsv:1:" env RIDGE_TUNED="$dir/pin.tsv" "$ridge" explain $problem --device cpu
expect 1 "cannot open" env RIDGE_TUNED="$dir/none" "$ridge" info
expect 1 "RIDGE_TUNED: cannot open $dir: Is a directory" env RIDGE_TUNED="$dir" "$ridge" info
expect 1 "RIDGE_DEVICE: unknown device 'tpu'" env RIDGE_DEVICE=tpu "$ridge" explain $problem
expect 0 "on c" env RIDGE_DEVICE=tpu "$ridge" explain $problem --device cpu:c
expect 1 "OpenMP would start 100000 threads" env OMP_NUM_THREADS=100000 "$ridge" info
full() { ( # no file may be larger than 512 bytes (of some shells: 1024)
    trap '' XFSZ
    ulimit -f 1
    exec "$@"
); }
cp "$dir/a.csv" "$dir/full.csv"
full "$ridge" bench $problem --device cpu --kernel '*' --csv "$dir/full.csv" >/dev/null 2>&1 && fail "a full disk is no failure of bench"
full "$ridge" report "$dir/a.csv" -o "$dir/full.html" >/dev/null 2>&1 && fail "a full disk is no failure of report"
ls "$dir" | grep -q '\.part\|full.html' && fail "left over: $(ls "$dir" | tr '\n' ' ')"
# A line of the log is a command.
line=$(RIDGE_LOG=1 "$ridge" bench $problem --device cpu 2>&1 >/dev/null | sed -n 's/^ridge bench /bench /p' | head -1)
expect 0 "swiglu_fwd" "$ridge" $line
for arch in sm100 sm103; do # Blackwell prefers tiles of 1024 columns for wide rows, Hopper does not
    "$ridge" kernels 'cuda.*' >/dev/null 2>&1 || break
    expect 0 "* cuda.swiglu_fwd.tile1024" "$ridge" explain swiglu_fwd rows=8192 cols=14336 --device model:$arch
    expect 0 "* cuda.swiglu_bwd.tile1024" "$ridge" explain swiglu_bwd rows=8192 cols=14336 --device model:$arch
    expect 0 "  cuda.swiglu_fwd.tile1024" "$ridge" explain swiglu_fwd rows=8192 cols=14336 --device model:sm90
    expect 0 "  cuda.swiglu_fwd.tile1024" "$ridge" explain swiglu_fwd rows=8192 cols=4096 --device model:$arch
done
for op in moe_gate_up_swiglu moe_down; do # no tokens: nothing to share out
    "$ridge" kernels 'cuda.*' >/dev/null 2>&1 || break
    expect 0 "cuda.$op.blocks" "$ridge" explain $op x=i8 w=mxfp4 tokens=0 cols=256 rows=64 experts=8 slots=2 --device model:sm90
done
# Every GPU has a row for every block format: a token, several, a prompt, experts; GeForce cards have least shared memory.
for arch in sm80 sm86 sm89 sm90 sm100 sm120; do
    "$ridge" kernels 'cuda.*' >/dev/null 2>&1 || break
    for w in q4_0 q4_1 q8_0 mxfp4 q2_k q4_k q5_k q6_k iq2_xxs; do
        for of in "block_matmul rows=4096 tokens=16" "block_pair rows0=4096 rows1=64 tokens=1" \
            "block_gate_up_swiglu rows=4096 tokens=16" "block_gate_up_swiglu rows=4096 tokens=512"; do
            # shellcheck disable=SC2086
            expect 0 "picked" "$ridge" explain $of cols=14336 x=i8 w=$w out=f32 --device model:$arch
        done
        for tokens in 1 16; do
            of="tokens=$tokens experts=128 slots=8 x=i8 w=$w"
            # shellcheck disable=SC2086
            expect 0 "picked" "$ridge" explain moe_gate_up_swiglu $of cols=2048 rows=768 out=i8 --device model:$arch
            # shellcheck disable=SC2086
            expect 0 "picked" "$ridge" explain moe_down $of cols=768 rows=2048 out=f32 --device model:$arch
        done
    done
done
if [ -w /dev/full ]; then
    expect 1 "cannot write /dev/full" "$ridge" bench $problem --device cpu --csv /dev/full
    for verb in info "info --json" ops kernels "explain $problem" "compare $dir/a.csv" help "help bench" --version; do
        "$ridge" $verb >/dev/full 2>"$dir/out" && fail "a full disk is no failure of $verb"
        grep -q "cannot write to standard output" "$dir/out" || fail "$verb: $(cat "$dir/out")"
    done
fi
[ $bad = 0 ] && echo "cli: all as expected"
exit $((bad > 0))

#!/bin/sh
# other.sh ROOT BUILD KIND: a second build, CPU only, with another compiler or a sanitizer, and a short test of it.
# `sanitizers` builds what `asan` and `fuzz` run.
set -eu
root=$1 dir=$2/other-$3 log=$2/other-$3.log
target=all # or what of it the test runs
configure() {
    cmake -S "$root" -B "$dir" -G Ninja -DRIDGE_CUDA=OFF "$@" >"$log" 2>&1 || { cat "$log"; exit 1; }
    cmake --build "$dir" --target $target >"$log" 2>&1 || { tail -40 "$log"; exit 1; }
}
case $3 in
clang)
    ridge=$2/wheel/site/ridge/bin/ridge # clang's, by python.sh
    if ! [ -x "$ridge" ]; then # without Python's packages
        target=ridge_tool ridge=$dir/ridge
        configure -DCMAKE_C_COMPILER=clang -DBUILD_TESTING=OFF
    fi
    "$ridge" test --quick --once --device cpu --quiet --part 1/6 # a case's oracle takes most of the time
    ;;
sanitizers)
    target=sanitized
    level=.
    ! grep -qs avx2 /proc/cpuinfo || level=_avx2
    configure -DCMAKE_C_COMPILER=clang -DRIDGE_FUZZ=ON -DRIDGE_SANITIZE=address,undefined -DRIDGE_SANITIZE_SIMD=$level
    ;;
asan)
    dir=$2/other-sanitizers device=cpu
    ! grep -qs avx2 /proc/cpuinfo || device=cpu:avx2 # avx512's rows are the same sources, and were built unchecked
    # Every fourth case of vector rows: 370 CPU seconds for all. rows.cpu runs them all without a sanitizer.
    "$dir/ridge" test --quick --once --device $device --quiet --kernel '*avx*' --part 1/4
    # Ops with such rows have run in plain C too, as the reference of those cases: every fifteenth as a row.
    vectors=$("$dir/ridge" kernels | sed -n 's/^cpu\.\([a-z0-9_]*\)\.[a-z0-9_.]*avx.*/\1/p' | sort -u)
    for op in $("$dir/ridge" ops | sed -n 's/^\([a-z0-9_]*\):.*/\1/p'); do
        every=1
        ! echo "$vectors" | grep -qx "$op" || every=15
        "$dir/ridge" test --quick --once --device $device --quiet --kernel '*.c' --part 1/$every "$op" >"$log" 2>&1 ||
            { cat "$log"; exit 1; }
    done
    sh "$root/tests/quantize.sh" "$dir/ridge" "$dir/tests/quantize_tool" few
    python3 "$root/tests/quantize_files.py" "$dir/ridge"
    python3 "$root/tests/quantize_blocks.py" "$dir/ridge"
    "$dir/tests/test_core"
    for name in io gguf gguf_bad dequantize lm; do # hostile files
        [ ! -x "$dir/tests/test_$name" ] || "$dir/tests/test_$name" >"$log" 2>&1 || { grep -v OK "$log"; exit 1; }
    done
    ;;
tsan) # without OpenMP: libgomp's own synchronisation is invisible to ThreadSanitizer; the host code is what this checks
    target=test_threads # runs swiglu_fwd alone
    configure -DRIDGE_OPENMP=OFF -DRIDGE_SANITIZE=thread -DRIDGE_SANITIZE_SIMD=^swiglu_ -DRIDGE_TOOLS=OFF
    "$dir/tests/test_threads"
    ;;
fuzz)
    dir=$2/other-sanitizers
    export OMP_TOOL=disabled # LLVM's would open std::cout on the stdout that fuzz_tool takes away again
    for name in text safetensors gguf lm session tool; do
        [ -x "$dir/tests/fuzz_$name" ] || continue
        mkdir -p "$dir/corpus-$name" # what is found goes here, not into the tree
        seeds=$root/tests/fuzz/corpus/$name
        [ -d "$seeds" ] || seeds=
        "$dir/tests/fuzz_$name" "$dir/corpus-$name" $seeds -max_total_time=10 -verbosity=0 -print_final_stats=1 >"$log" 2>&1 ||
            { tail -40 "$log"; exit 1; }
        grep -E 'executed' "$log" | sed "s/^/$name: /"
    done
    ;;
esac

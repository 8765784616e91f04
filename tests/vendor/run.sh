#!/bin/sh
# run.sh ROOT BUILD [CMAKE OPTION...]: tests/vendor with ridge by FetchContent is configured; with add_subdirectory it is
# built, its tests run, and its installation has its own program only.
set -eu
root=$1 work=$2/vendor
shift 2
type=
for how in fetch add; do
    rm -rf "$work/$how"
    mkdir -p "$work/$how"
    cmake -S "$root/tests/vendor" -B "$work/$how" -DHOW=$how -DRIDGE_SOURCE="$root" -DRIDGE_CUDA=OFF $type "$@" \
        >"$work/$how/log" 2>&1 || { tail -30 "$work/$how/log"; exit 1; }
    type="-DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O1" # 32 CPU seconds less than -O3
done
cmake --build "$work/add" -j 2 >"$work/log" 2>&1 || { tail -30 "$work/log"; exit 1; }
cd "$work/add"
ctest -j 2 --output-on-failure >>log 2>&1 || { tail -30 log; exit 1; }
cmake --install . --prefix "$work/add/stage" >/dev/null
files=$(cd stage && find . -type f)
[ "$files" = ./bin/app_static ] || { echo "vendor: ridge has installed: $files"; exit 1; }
echo "vendor: $(ctest -N | sed -n 's/^Total Tests: //p') programs built and ran"

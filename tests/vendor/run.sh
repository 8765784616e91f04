#!/bin/sh
# run.sh ROOT BUILD [CMAKE OPTION...]: builds tests/vendor with ridge by add_subdirectory and by FetchContent; its tests
# run, and its installation has its own program only.
set -eu
root=$1 work=$2/vendor
shift 2
for how in add fetch; do
    rm -rf "$work/$how"
    mkdir -p "$work/$how"
    cmake -S "$root/tests/vendor" -B "$work/$how" -DHOW=$how -DRIDGE_SOURCE="$root" -DRIDGE_CUDA=OFF "$@" >"$work/$how/log" 2>&1 &&
        cmake --build "$work/$how" -j 2 >>"$work/$how/log" 2>&1 || { tail -30 "$work/$how/log"; exit 1; }
    (cd "$work/$how" && ctest -j 2 --output-on-failure >>log 2>&1) || { tail -30 "$work/$how/log"; exit 1; }
    count=$(cd "$work/$how" && ctest -N | sed -n 's/^Total Tests: //p')
    cmake --install "$work/$how" --prefix "$work/$how/stage" >/dev/null
    files=$(cd "$work/$how/stage" && find . -type f)
    [ "$files" = ./bin/app_static ] || { echo "vendor: ridge has installed: $files"; exit 1; }
    echo "vendor: $how: $count programs built and ran"
done

#!/bin/sh
# run.sh BUILD HERE: installs into BUILD/stage and builds consumers of it: through pkg-config and through find_package, in C
# and C++, shared and static. Each must run.
set -eu
build=$1 here=$2 stage=$1/stage work=$1/consumers
rm -rf "$stage" "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$stage" >/dev/null
export PKG_CONFIG_PATH="$stage/lib/pkgconfig:$stage/lib64/pkgconfig:$stage/lib/$(cc -dumpmachine 2>/dev/null || echo none)/pkgconfig:$stage/lib/x86_64-linux-gnu/pkgconfig"
libdir=$(pkg-config --variable=libdir ridge)
test -f "$stage/share/man/man1/ridge.1" && test -f "$stage/share/doc/ridge/LICENSE" && test -f "$stage/share/man/man3/ridge.3" && "$stage/bin/ridge" --version
for cc in gcc g++; do
    $cc -x "$([ $cc = gcc ] && echo c || echo c++)" "$here/consumer.c" -x none -o "$work/$cc-shared" $(pkg-config --cflags --libs ridge)
    LD_LIBRARY_PATH="$libdir" "$work/$cc-shared"
    $cc -x "$([ $cc = gcc ] && echo c || echo c++)" "$here/consumer.c" -x none -o "$work/$cc-static" $(pkg-config --cflags ridge) \
        "$libdir/libridge.a" $(pkg-config --static --libs-only-other --libs-only-L ridge) \
        $(pkg-config --static --libs-only-l ridge | sed 's/-lridge//')
    "$work/$cc-static"
done
sed -n '/^```c$/,/^```$/p' "$here/../../README.md" | sed '/^```/d' >"$work/app.c" # README's program, as it says
gcc -Wall -Wextra -Werror "$work/app.c" -o "$work/app" $(pkg-config --cflags --libs ridge)
LD_LIBRARY_PATH="$libdir" "$work/app" | grep -q '^silu(2)'
cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$stage" >/dev/null
cmake --build "$work/cmake" >/dev/null
mkdir "$work/part"
printf 'cmake_minimum_required(VERSION 3.22)\nproject(part C)\nfind_package(ridge REQUIRED COMPONENTS nosuch)\n' >"$work/part/CMakeLists.txt"
cmake -S "$work/part" -B "$work/part/build" -DCMAKE_PREFIX_PATH="$stage" 2>&1 | tr -s ' \n' ' ' | grep -q 'no component nosuch'
for program in c_shared c_static cxx_shared cxx_static dist_shared dist_static; do
    "$work/cmake/$program"
done
gcc "$here/consumer_dist.c" -o "$work/dist" $(pkg-config --cflags --libs ridge_dist)
LD_LIBRARY_PATH="$libdir" "$work/dist"
if pkg-config --exists ridge_io; then
    gcc "$here/consumer_io.c" -o "$work/io-shared" $(pkg-config --cflags --libs ridge_io)
    LD_LIBRARY_PATH="$libdir" "$work/io-shared" "$work/io.safetensors"
    gcc "$here/consumer_io.c" -o "$work/io-static" $(pkg-config --cflags ridge_io) "$libdir/libridge_io.a" \
        $(pkg-config --static --libs ridge_io | sed 's/-lridge_io//')
    "$work/io-static" "$work/io.safetensors"
    for program in io_c_shared io_c_static io_cxx_shared; do
        "$work/cmake/$program" "$work/io.safetensors"
    done
    echo "install: 5 consumers of ridge_io built and ran"
fi
echo "install: 11 consumers built and ran"
make -s -C "$here/../.." uninstall BUILD="$build" PREFIX="$stage" >/dev/null
find "$stage" ! -type d -o -name ridge | grep . && { echo "install: uninstall left these"; exit 1; }
echo "install: uninstall left nothing"

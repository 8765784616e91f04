#!/bin/sh
# cross.sh ROOT BUILD: the library, its examples and the consumer of its header for aarch64, where there is a cross
# compiler (Debian: gcc-aarch64-linux-gnu); with qemu-user they run too. Skipped (77) without one.
set -eu
root=$1 work=$2/cross
command -v aarch64-linux-gnu-gcc >/dev/null || { echo "cross: skipped, no aarch64-linux-gnu-gcc"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
PKG_CONFIG_LIBDIR="$work" cmake -S "$root" -B "$work" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_C_COMPILER_LAUNCHER="${3:-}" -DRIDGE_CUDA=OFF -DRIDGE_TOOLS=OFF \
    -DBUILD_TESTING=OFF >"$work/log" 2>&1 && cmake --build "$work" -j 2 >>"$work/log" 2>&1 || { tail -30 "$work/log"; exit 1; }
aarch64-linux-gnu-gcc "$root/tests/install/consumer.c" -I"$root/include" "$work/libridge.a" -fopenmp -lm -o "$work/consumer"
file=$(aarch64-linux-gnu-objdump -f "$work/libridge.so" | sed -n 's/.*file format //p')
if command -v qemu-aarch64 >/dev/null; then
    qemu-aarch64 -L /usr/aarch64-linux-gnu "$work/consumer"
    file="$file, ran"
fi
echo "cross: $file"

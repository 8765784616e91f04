#!/bin/sh
# interop.sh BUILD HERE IO_TOOL [RIDGE]: ridge_io and `ridge quantize` against the packages that everybody uses, in both directions. They go into a
# virtual environment under BUILD; without python3-venv or a network the test is skipped (exit status 77).
set -eu
build=$1 here=$2 tool=$3 venv=$1/interop-venv work=$1/interop
packages="safetensors==0.8.0 gguf==0.19.0 numpy==2.4.6"
skip() {
    echo "interop: skipped, $1"
    exit 77
}
if [ "$(cat "$venv/packages" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv" >/dev/null 2>&1 || skip "no python3-venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 --timeout 15 $packages >"$venv/log" 2>&1 ||
        skip "pip cannot install $packages: $(tail -1 "$venv/log")"
    echo "$packages" >"$venv/packages"
fi
rm -rf "$work"
mkdir -p "$work"
"$venv/bin/python" "$here/interop.py" "$tool" "$work" ${4:+"$4"}

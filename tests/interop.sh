#!/bin/sh
# interop.sh BUILD HERE IO_TOOL [RIDGE]: ridge_io and `ridge quantize` against the packages that everybody uses, in both
# directions. They are in the virtual environment that venv.sh makes; without it the test is skipped (exit status 77).
set -eu
build=$1 here=$2 tool=$3 python=$1/venv/bin/python work=$1/interop
[ -x "$python" ] || { echo "interop: skipped, no $python"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
"$python" "$here/interop.py" "$tool" "$work" ${4:+"$4"}

#!/bin/sh
# python.sh BUILD ROOT [wheel]: python/tests with the library of BUILD. wheel: on a wheel of the CPU library, made and installed
# under BUILD/wheel, from outside the source tree. Skipped (77) without the environment that venv.sh makes.
set -eu
build=$1 root=$2 python=$1/venv/bin/python work=$1/wheel
[ "${3:-}" != wheel ] || rm -rf "$work/out" "$work/site"
[ -x "$python" ] || { echo "python: skipped, no $python"; exit 77; }
if [ "${3:-}" != wheel ]; then
    export PYTHONPATH="$root/python" LD_LIBRARY_PATH="$build"
    exec "$python" -m pytest -q -p no:cacheprovider --rootdir "$root/python" "$root/python/tests"
fi
mkdir -p "$work"
# By clang, where it is: the test of that name runs the tool of this wheel, and the library above is gcc's. In a folder of
# its own: CMake forgets -DRIDGE_CUDA=OFF where it finds another compiler's cache.
clang=
! command -v clang >/dev/null || clang="-C cmake.define.CMAKE_C_COMPILER=clang"
# shellcheck disable=SC2086
"$python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$work/out" \
    -C cmake.define.RIDGE_CUDA=OFF $clang -C build-dir="$work/build${clang:+-clang}" "$root"
ls "$work"/out/ridge_kernels-*-py3-none-*.whl
"$python" -m pip install -q --disable-pip-version-check --no-deps --target "$work/site" "$work"/out/*.whl
cd "$work"
PYTHONPATH="$work/site" "$python" -c "
import numpy, ridge
assert ridge.library_path.startswith('$work/site'), ridge.library_path
print(ridge.__version__, ridge.library_path, ridge.swiglu(numpy.ones((2, 8), numpy.float32))[0])"
for tool in "$work/site/bin/ridge" "$python -m ridge"; do # the tool is in the wheel
    PYTHONPATH="$work/site" $tool info | grep '^cpu '
done
status=0
PYTHONPATH="$work/site" "$work/site/bin/ridge" inspect nothing.gguf >/dev/null 2>&1 || status=$?
[ "$status" = 1 ]

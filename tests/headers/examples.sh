#!/bin/sh
# examples.sh ROOT BUILD: the example at the head of ridge.h builds and runs against the library of BUILD; every other
# @code block of the header compiles, in C and C++, with the names of examples.h.
set -eu
root=$1 build=$2 work=$2/header-examples
rm -rf "$work"
mkdir -p "$work"
awk -v out="$work" '
    / \* @endcode/ { inside = 0; if (n > 1) print "}" > file; next }
    inside { sub(/^ \* ?/, ""); print > file }
    / \* @code/ { inside = 1; n++; file = out "/" n ".c"
        if (n > 1) print "#include \"examples.h\"\nvoid example(void);\nvoid example(void)\n{" > file }' "$root/include/ridge.h"
[ -f "$work/9.c" ] || { echo "fewer than 9 examples in ridge.h"; exit 1; }
flags="-Wall -Wextra -Werror -Wno-unused-variable -Wno-unused-but-set-variable -I$root/include -I$root/tests/headers"
gcc -std=c99 $flags "$work/1.c" -o "$work/first" -L"$build" -lridge
LD_LIBRARY_PATH="$build" "$work/first" | grep -q '^silu(2) \* 2 = 3.52319'
for file in "$work"/[2-9].c; do
    gcc -std=c99 $flags -fsyntax-only "$file"
    g++ -std=c++11 -x c++ $flags -fsyntax-only "$file"
done
echo "the examples of ridge.h compile; the first one runs"

#!/bin/sh
# docs.sh ROOT BUILD: Doxygen over the public headers, into BUILD/docs. What is not documented is an error (macros apart).
# Skipped (77) without doxygen.
set -eu
command -v doxygen >/dev/null || { echo "docs: skipped, no doxygen (Debian: doxygen)"; exit 77; }
cd "$1"
mkdir -p "$2/docs"
BUILD=$2 doxygen docs/Doxyfile >"$2/docs/log" 2>&1 || { cat "$2/docs/log"; exit 1; }
! grep -E 'warning|error' "$2/docs/log" | grep -v '(macro definition)' || exit 1
[ -f "$2/docs/man/man3/ridge.h.3" ] && [ -f "$2/docs/html/index.html" ]

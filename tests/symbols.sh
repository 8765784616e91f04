#!/bin/sh
# symbols.sh LIBRIDGE.SO LIBRIDGE.A RIDGE.H [LIBRARY]: the shared library exports exactly the header's functions and needs
# only libc (and libm, libgomp, LIBRARY); every global name in the archive begins with ridge_.
set -eu
want=$(sed -n 's/^RIDGE_API .*[ *]\(ridge_[a-z0-9_]*\)(.*/\1/p' "$3" | sort)
have=$(nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort)
[ "$want" = "$have" ] || { echo "exported and declared functions differ:"; echo "$want" | sed 's/^/  declared /'; echo "$have" | sed 's/^/  exported /'; exit 1; }
others=$(readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE "^(libc|libm|libgomp|libomp|ld-linux-[a-z0-9_-]+${4:+|$4})\.so(\.|$)" || true)
[ -z "$others" ] || { echo "the library needs: $others"; exit 1; }
# nvcc's stubs carry the kernels' mangled names, weak or local; they are hidden in the shared library.
alien=$(nm -g --defined-only "$2" 2>/dev/null | awk 'NF == 3 && $2 != "W" && $2 != "V" && $2 != "u" {print $3}' |
    grep -vE '^(ridge_|__|_Z|fatbinData)' || true)
[ -z "$alien" ] || { echo "names without ridge_: $alien"; exit 1; }

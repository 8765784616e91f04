#!/bin/sh
# deps.sh PACKAGE...: installs those that are missing, by the names of Debian 12, Ubuntu 22.04 and 24.04: of "a|b|c" the
# first that the system knows. Where there is no dpkg the tools themselves must be there. DEPS_DRY=1 only says what is
# missing.
if ! command -v dpkg-query >/dev/null 2>&1; then
    for tool in cmake ninja cc pkg-config; do
        command -v $tool >/dev/null 2>&1 || { echo "ridge: $tool is missing; install it with your system's package manager"; exit 1; }
    done
    exit 0
fi
installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}
known() {
    apt-cache show "$1" 2>/dev/null | grep -q '^Package:'
}
missing=
for choice in "$@"; do
    there= first=
    for package in $(echo "$choice" | tr '|' ' '); do
        installed "$package" && there=yes && break
    done
    [ -z "$there" ] || continue # apt-cache takes half a second a package
    for package in $(echo "$choice" | tr '|' ' '); do
        known "$package" && first=$package && break
    done
    missing="$missing ${first:-${choice%%|*}}"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || [ -n "${DEPS_DRY:-}" ]; then
    echo "ridge: packages are missing. Run: sudo apt-get install$missing"
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
if [ -z "${DEPS_UPDATED:-}" ] && [ -z "$(find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | head -1)" ]; then
    apt-get update -qq && DEPS_UPDATED=1 exec sh "$0" "$@" # without lists no name is known
fi
echo "ridge: installing$missing"
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; }

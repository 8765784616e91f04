#!/bin/sh
# deps.sh PACKAGE...: installs those that are missing. Where there is no dpkg the tools themselves must be there.
if ! command -v dpkg-query >/dev/null 2>&1; then
    for tool in cmake ninja cc pkg-config; do
        command -v $tool >/dev/null 2>&1 || { echo "ridge: $tool is missing; install it with your system's package manager"; exit 1; }
    done
    exit 0
fi
missing=
for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "ridge: packages are missing. Run: sudo apt-get install$missing"
    exit 1
fi
echo "ridge: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; }

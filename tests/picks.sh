#!/bin/sh
# picks.sh RIDGE DEVICE SUITE [COUNT]: the rows that COUNT (20) fresh processes pick for a suite are the same.
set -eu
first=$("$1" explain --device "$2" --suite "$3")
for i in $(seq 2 "${4:-20}"); do
    [ "$("$1" explain --device "$2" --suite "$3")" = "$first" ] || { echo "process $i picked other rows"; exit 1; }
done
echo "$first" | cut -f 2,3 | sort | uniq -c

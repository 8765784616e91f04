#!/bin/sh
# report.sh ROOT WORK: bench/report.py draws the committed records as well-formed XML, docs/speed.svg is what they say,
# and a record with a missing column is an error that names it.
set -u
root=$1 work=$2
here=$(dirname "$0")
rm -rf "$work" && mkdir -p "$work" || exit 1
log=$work/out
. "$here/expect.sh"
report="python3 $root/bench/report.py"
$report "$root"/bench/records/*h200*.csv -o "$work/page.html" --roofline "$work/roofline.svg" --speed "$work/speed.svg" &&
    python3 -c 'import sys, xml.etree.ElementTree as xml
for path in sys.argv[1:]: xml.parse(path)' "$work/roofline.svg" "$work/speed.svg" || fail "no pictures, or not XML"
cmp "$work/speed.svg" "$root/docs/speed.svg" || fail "docs/speed.svg is not what bench/report.py makes of the records"
for word in 'Roofline of one NVIDIA H200' '>gemm_fp8<' torch.compile '</html>'; do
    grep -q -- "$word" "$work/page.html" || fail "no '$word' on the page"
done
record=$root/bench/records/20261121-h200-ceilings.csv
cut -d, -f1-10,12- "$record" >"$work/column.csv"
expect 1 "there is no column 'us'" $report "$work/column.csv" -o "$work/none.html"
sed '2s/NVIDIA H200,.*/NVIDIA H200,,,,,ridge,,many,,,,,,,/' "$record" >"$work/figure.csv"
expect 1 "figure.csv:2: us is no number: 'many'" $report "$work/figure.csv" -o "$work/none.html"
expect 1 "hold no line of ridge" $report "$record" -o "$work/none.html"
expect 2 "one of -o" $report "$record"
[ ! -e "$work/none.html" ] || fail "a failure left a page"
exit $((bad > 0))

#!/bin/sh
# report.sh RIDGE RECORDS WORK: `ridge report` on the committed records: a well-formed page with every section, its SVGs well-formed
# XML; errors; and, where a chromium is installed, the page opened at a phone's width and printed.
set -u
ridge=$1 records=$2 work=$3
here=$(dirname "$0")
command -v gnuplot >/dev/null || { echo "report: skipped, no gnuplot"; exit 77; }
rm -rf "$work" && mkdir -p "$work" || exit 1
log=$work/out
. "$here/expect.sh"
# A decoding curve, and text that HTML and gnuplot would take for their own.
{
    head -1 "$records/20261121-h200-ceilings.csv"
    for m in 1 4 16 64; do
        for rival in ridge rival; do
            echo "r1,2026-11-21T00:00:00Z,abc,A <b>'GPU'</b> & co,CUDA 13.0,decode,gemm_fp8,m=$m n=8192 k=8192 note='\$x',$rival,k,2$m.5,2$m.1,2$m.9,1.5,900,20,,"
        done
    done
} >"$work/decode.csv"
"$ridge" report "$records"/*.csv "$work/decode.csv" --baseline "$records/20261121-h200-swiglu-rows.csv" -o "$work/page.html" ||
    fail "no page"
python3 "$here/report.py" "$work/page.html" "NVIDIA H200" Roofline Environment "Since an older record" "swiglu_fwd" torch.compile \
    "A <b>'GPU'</b> & co" || bad=1
"$ridge" report "$records"/*.csv -o "$work/roofline.svg" && python3 "$here/report.py" "$work/roofline.svg" || fail "no picture"
# A record without GB/s has its points on the roofline too: its operands say them. One point is no empty range.
{
    head -1 "$work/decode.csv"
    echo "r1,2026-11-21T00:00:00Z,abc,GPU,CUDA 13.0,,linear_ce_train,tokens=64 hidden=64 vocab=1000 dtype=bf16,ridge,k,10,,,2.5,,,,"
} >"$work/bytes.csv"
"$ridge" report "$work/bytes.csv" -o "$work/bytes.svg" >"$work/out" 2>&1
{ [ ! -s "$work/out" ] && grep -q linear_ce_train "$work/bytes.svg"; } || fail "linear_ce_train is not on the roofline: $(cat "$work/out")"
# Of two runs the later one is drawn, in whichever order they come.
sed 's/,10,,,2.5,/,20,,,1.25,/; s/00:00:00Z/01:00:00Z/; s/^r1,/r2,/' "$work/bytes.csv" >"$work/later.csv"
"$ridge" report "$work/later.csv" -o "$work/one.svg" && "$ridge" report "$work/bytes.csv" "$work/later.csv" -o "$work/ab.svg" &&
    "$ridge" report "$work/later.csv" "$work/bytes.csv" -o "$work/ba.svg" || fail "no picture of two runs"
{ cmp "$work/ab.svg" "$work/one.svg" && cmp "$work/ba.svg" "$work/one.svg" && ! cmp -s "$work/bytes.svg" "$work/one.svg"; } ||
    fail "not the later of two runs"
head -1 "$work/decode.csv" >"$work/empty.csv"
echo nonsense >"$work/wrong.csv"
expect 2 "usage" "$ridge" report "$work/decode.csv"
expect 1 "hold no line" "$ridge" report "$work/empty.csv" -o "$work/none.html"
expect 1 "not the header" "$ridge" report "$work/wrong.csv" -o "$work/none.html"
expect 1 "cannot write" "$ridge" report "$work/decode.csv" -o "$work/no/such/folder.html"
expect 1 "decode.csv: it is a record" "$ridge" report "$work/bytes.csv" -o "$work/decode.csv"
expect 1 "no gnuplot on PATH" env PATH="$work" "$ridge" report "$work/decode.csv" -o "$work/none.html"
mkdir "$work/bin" && printf '#!/bin/sh\nexit 3\n' >"$work/bin/gnuplot" && chmod +x "$work/bin/gnuplot"
expect 1 "gnuplot failed (status 3)" env PATH="$work/bin:$PATH" "$ridge" report "$work/decode.csv" -o "$work/none.html"
[ -z "$(find "$work" -name 'none.html*')" ] || fail "a failure left a page"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$browser" ]; then
    for width in 390 1200; do
        timeout 60 "$browser" --headless --no-sandbox --disable-gpu --window-size=$width,3000 \
            --screenshot="$work/$width.png" "file://$work/page.html" >"$work/out" 2>&1 && [ -s "$work/$width.png" ] || fail "not shown at $width"
    done
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --print-to-pdf="$work/page.pdf" "file://$work/page.html" \
        >"$work/out" 2>&1 && [ -s "$work/page.pdf" ] || fail "not printed"
    echo "report: shown at two widths and printed by $browser"
else
    echo "report: no chromium here, the page was parsed but not opened"
fi
exit $((bad > 0))

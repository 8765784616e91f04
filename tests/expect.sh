# expect.sh: what the shell tests of the tool share: sourced with `log`, the file that a command's output goes to, set.
bad=0
fail() {
    echo "FAIL $*"
    bad=$((bad + 1))
}
# expect STATUS TEXT COMMAND...: the exit status, and TEXT somewhere in the output
expect() {
    status=$1 text=$2
    shift 2
    "$@" >"$log" 2>&1
    got=$?
    { [ $got = "$status" ] && grep -qF -- "$text" "$log"; } || {
        fail "($got, expected $status and '$text'): $*"
        head -5 "$log"
    }
}

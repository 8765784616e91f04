#!/bin/sh
# several_gpus.sh BUILD [CSV]: all that there is of several GPUs, on as many ranks as this machine has GPUs (RANKS=N: on so
# many); without a GPU small, on two ranks over gloo. A part that fails or takes too long does not stop the next.
set -u
build=$1 csv=${2:-} python=${PYTHON:-python3} failed=
export RIDGE_LIBRARY="$(realpath "$build")/libridge.so" NCCL_NVLS_ENABLE=0
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
ranks=${RANKS:-$([ "$gpus" -gt 0 ] && echo "$gpus" || echo 2)}
record=${csv:+--csv "$csv" --commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
part() { # part NAME SECONDS COMMAND...
    name=$1 seconds=$2
    shift 2
    echo "== $name"
    timeout -k 5 "$seconds" "$@" || failed="$failed $name"
}
steps='--steps 10000 --replays 1000 --failures 100' small=
if [ "$gpus" = 0 ]; then
    steps='--steps 100 --failures 6 --deadline 3'
    small='--device cpu --eager --steps 3 --tokens 512 --sequence 256 --hidden 256 --inner 512 --heads 4 --kv 2 --head 64 --vocab 512'
fi
# shellcheck disable=SC2086
{
    part tests 1800 "$python" tests/several_gpus.py --ranks "$ranks" $steps --together 3
    "$python" -c 'import jax' 2>/dev/null && part jax 300 "$python" -m pytest -q python/tests/test_jax.py -k over_the_devices
    [ "$gpus" = 0 ] || [ ! -x "$build/examples/linear_ce_nccl" ] || part c 60 "$build/examples/linear_ce_nccl" "$ranks"
    part links 900 "$python" bench/links.py --ranks "$ranks" $record
    for how in fsdp tp; do
        part "$how" 600 "$python" bench/train_llama.py --$how --ranks "$ranks" --providers torch,ridge-fp8 $small $record
    done
}
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }

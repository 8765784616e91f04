#!/bin/sh
# dist_mpi.sh DIST_MPI EXAMPLE: the example over 1, 2, 4 and 8 ranks gives the same losses; a peer that stops is an
# error of the other within the deadline; one that exits or is killed ends the program, by the error or by mpirun.
set -eu
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
run() {
    timeout 40 mpirun --oversubscribe --bind-to none --mca btl self,vader --mca btl_vader_single_copy_mechanism none "$@"
}
first=$(run -n 1 "$2")
for ranks in 2 4 8; do
    said=$(run -n $ranks "$2")
    [ "${said#* }" = "ranks:${first#*ranks:}" ] || { echo "1 rank: $first, but $said"; exit 1; }
done
echo "$first"
for what in stop exit kill; do
    status=0
    said=$(run -n 2 "$1" $what 2>&1) || status=$?
    [ $status != 0 ] && [ $status != 124 ] || { echo "$what: mpirun ended with $status: $said"; exit 1; }
    [ $what != stop ] || echo "$said" | grep -q 'found: rank 0 of 2: all_gather: MPI_Iallgather: not done after 3 seconds' ||
        { echo "$what: $said"; exit 1; }
done

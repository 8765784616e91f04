/* dist_mpi.c WHAT: a rank of two under mpirun, over ridge_mpi.h. Rank 1 exits ("exit"), is killed ("kill") or stopped
 * ("stop") before the second call: rank 0 must get RIDGE_ERR_PEER within the deadline of three seconds. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "ridge_mpi.h"

enum { TOKENS = 8, HIDDEN = 16, VOCAB = 40 };

static void leave(const char *what)
{
    if (strcmp(what, "exit") == 0)
        _exit(3);
    raise(strcmp(what, "kill") == 0 ? SIGKILL : SIGSTOP);
}

int main(int argc, char **argv)
{
    static float x[TOKENS * HIDDEN], w[VOCAB * HIDDEN], loss;
    static int64_t target[TOKENS], offset[] = {0, VOCAB / 2};
    static _Alignas(256) char workspace[1 << 24];
    ridge_device *device = NULL;
    ridge_dist *dist = NULL;
    ridge_peers peers;
    ridge_mpi mpi;
    ridge_call call;
    double begin;

    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    peers = ridge_mpi_peers(&mpi, MPI_COMM_WORLD, 3);
    call = ridge_linear_ce_eval(TOKENS, HIDDEN, VOCAB / 2, ridge_matrix(x, RIDGE_F32), ridge_matrix(w, RIDGE_F32),
                                ridge_matrix(target, RIDGE_I64), &loss);
    call.opt.ce.vocab_offset = offset[peers.rank];
    call.opt.ce.vocab_total = VOCAB;
    if (argc != 2 || peers.size != 2 || ridge_open("cpu", &device) || ridge_dist_open(device, &peers, &dist) ||
        ridge_dist_agree(dist, &call, 0) || ridge_dist_run(dist, &call, 0, offset, workspace, sizeof workspace, NULL)) {
        fprintf(stderr, "rank %d: %s %s\n", (int)peers.rank, ridge_dist_error(), ridge_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (peers.rank)
        leave(argv[1]);
    begin = MPI_Wtime();
    if (ridge_dist_run(dist, &call, 0, offset, workspace, sizeof workspace, NULL) == RIDGE_ERR_PEER &&
        MPI_Wtime() - begin < 5)
        printf("found: %s\n", ridge_dist_error());
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 4);
}

/* linear_ce_mpi.c: examples/linear_ce.c's output layer with its classes cut among the ranks of an MPI program:
 *
 *     mpirun -n 3 linear_ce_mpi
 *
 * Every rank has all rows of x and a slice of the classes; it gets the same loss, all of dx and its slice of dw. */
#include <stdio.h>
#include <stdlib.h>

#include "ridge_mpi.h"

enum { VOCAB = 27, HIDDEN = 48, STEPS = 60 };

static const char text[] = "the ridge point of the roofline is where the memory and the arithmetic of a machine are in "
                           "balance and a kernel to the left of the ridge is bound by bytes and one to the right of "
                           "the ridge is bound by operations ";

static int letter(int i)
{
    return text[i] == ' ' ? 26 : text[i] - 'a';
}

static float noise(void)
{
    static unsigned state = 1;

    state = state * 1664525u + 1013904223u;
    return ((float)(state >> 8) * 0x1p-23f - 1.0f) * 0.1f;
}

enum { TOKENS = (int)sizeof text - 3 };
static float x[TOKENS][HIDDEN], dx[TOKENS][HIDDEN], w[VOCAB][HIDDEN], dw[VOCAB][HIDDEN];
static int32_t target[TOKENS];

/* The same numbers on every rank, which keeps its own rows of w. */
static void fill(void)
{
    for (int t = 0; t < TOKENS; t++) {
        target[t] = letter(t + 2);
        for (int j = 0; j < HIDDEN; j++)
            x[t][j] = noise() * 10;
    }
    for (int c = 0; c < VOCAB; c++)
        for (int j = 0; j < HIDDEN; j++)
            w[c][j] = noise();
}

static int train(ridge_dist *dist, int rank, int size)
{
    int64_t first, count, *offset = malloc((size_t)size * sizeof *offset);
    float loss = 0, begin = 0;
    void *workspace = NULL;
    ridge_call call;
    size_t bytes;

    for (int r = 0; r < size && offset; r++)
        ridge_dist_shard(VOCAB, 1, r, size, &offset[r], &count);
    ridge_dist_shard(VOCAB, 1, rank, size, &first, &count);
    call = ridge_linear_ce_train(TOKENS, HIDDEN, count, ridge_matrix(x, RIDGE_F32), ridge_matrix(w[first], RIDGE_F32),
                                 ridge_matrix(target, RIDGE_I32), &loss, ridge_matrix(dx, RIDGE_F32),
                                 ridge_matrix(dw[first], RIDGE_F32));
    call.opt.ce.vocab_offset = first;
    call.opt.ce.vocab_total = VOCAB;
    if (!offset || ridge_dist_agree(dist, &call, 0) || ridge_dist_workspace_bytes(dist, &call, 0, &bytes) ||
        !(workspace = aligned_alloc(256, (bytes + 255) / 256 * 256)))
        return -1;
    for (int step = 0; step <= STEPS; step++) {
        if (ridge_dist_run(dist, &call, 0, offset, workspace, bytes, NULL))
            return -1;
        begin = step ? begin : loss;
        for (int j = 0; j < HIDDEN; j++) {
            for (int64_t c = first; c < first + count; c++)
                w[c][j] -= 4 * dw[c][j];
            for (int t = 0; t < TOKENS; t++)
                x[t][j] -= 4 * dx[t][j];
        }
    }
    if (rank == 0)
        printf("%d ranks: loss %.5f -> %.5f\n", size, (double)begin, (double)loss);
    free(workspace);
    free(offset);
    return loss < 0.5f * begin ? 0 : -1;
}

int main(int argc, char **argv)
{
    ridge_device *device = NULL;
    ridge_dist *dist = NULL;
    ridge_peers peers;
    ridge_mpi mpi;

    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    peers = ridge_mpi_peers(&mpi, MPI_COMM_WORLD, 20);
    fill();
    if (ridge_open("cpu", &device) || ridge_dist_open(device, &peers, &dist) || train(dist, peers.rank, peers.size)) {
        fprintf(stderr, "rank %d: %s%s\n", (int)peers.rank, ridge_dist_error(), device ? "" : ridge_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    ridge_dist_close(dist);
    ridge_close(device);
    MPI_Finalize();
    return 0;
}

/** @file ridge_mpi.h
 * ridge_peers over an MPI communicator, for memory that MPI can reach (of the CPU; of a GPU with an MPI that knows it
 * and a program that has waited for its stream). A header only: it is compiled against the program's own MPI. Every
 * collective is a nonblocking one that is asked until it is done or the deadline has passed. Set MPI_ERRORS_RETURN on
 * the communicator, or MPI ends the program itself where it notices a lost peer. */
#ifndef RIDGE_MPI_H
#define RIDGE_MPI_H

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "ridge_dist.h"

/** What ridge_mpi_peers fills; it must stay as long as the peers. */
typedef struct ridge_mpi {
    MPI_Comm comm;  /**< the caller's */
    double seconds; /**< deadline of each collective */
    char text[200]; /**< of the last failure */
} ridge_mpi;

/* 0 when the request is done. */
static inline int ridge_mpi_finish_(ridge_mpi *m, int started, MPI_Request *request, const char *what)
{
    const double begin = MPI_Wtime();
    int done = 0;

    if (started != MPI_SUCCESS) {
        snprintf(m->text, sizeof m->text, "%s: MPI error %d", what, started);
        return -1;
    }
    while (!done) {
        const int status = MPI_Test(request, &done, MPI_STATUS_IGNORE);

        if (status != MPI_SUCCESS) {
            snprintf(m->text, sizeof m->text, "%s: MPI error %d", what, status);
            return -1;
        }
        if (!done && !(MPI_Wtime() - begin < m->seconds)) {
            snprintf(m->text, sizeof m->text, "%s: not done after %g seconds: a peer has died, stopped or not called",
                     what, m->seconds);
            return -1; /* the request stays: only MPI_Abort ends it */
        }
    }
    return 0;
}

/* A type of `bytes` bytes, which may be more than an int holds. */
static inline int ridge_mpi_type_(size_t bytes, MPI_Datatype *type)
{
    const size_t chunk = (size_t)1 << 30;
    int lengths[2] = {(int)(bytes / chunk), (int)(bytes % chunk)};
    MPI_Aint at[2] = {0, (MPI_Aint)(bytes / chunk * chunk)};
    MPI_Datatype types[2] = {MPI_BYTE, MPI_BYTE};
    int status = MPI_Type_contiguous((int)chunk, MPI_BYTE, &types[0]);

    if (status == MPI_SUCCESS)
        status = MPI_Type_create_struct(2, lengths, at, types, type);
    if (status == MPI_SUCCESS)
        status = MPI_Type_commit(type);
    MPI_Type_free(&types[0]);
    return status;
}

static inline int ridge_mpi_move_(ridge_mpi *m, const void *send, void *recv, size_t bytes, int all_to_all)
{
    MPI_Datatype type = MPI_BYTE;
    MPI_Request request = MPI_REQUEST_NULL;
    int count = (int)bytes, status = MPI_SUCCESS;
    const int large = bytes > INT_MAX;

    if (large) {
        status = ridge_mpi_type_(bytes, &type);
        count = 1;
    }
    if (status == MPI_SUCCESS && all_to_all)
        status = MPI_Ialltoall(send, count, type, recv, count, type, m->comm, &request);
    else if (status == MPI_SUCCESS)
        status = MPI_Iallgather(send, count, type, recv, count, type, m->comm, &request);
    status = ridge_mpi_finish_(m, status, &request, all_to_all ? "MPI_Ialltoall" : "MPI_Iallgather");
    if (large && type != MPI_BYTE)
        MPI_Type_free(&type);
    return status;
}

static inline int ridge_mpi_all_gather_(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    (void)stream;
    return ridge_mpi_move_((ridge_mpi *)engine, send, recv, bytes, 0);
}

static inline int ridge_mpi_all_to_all_(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    (void)stream;
    return ridge_mpi_move_((ridge_mpi *)engine, send, recv, bytes, 1);
}

static inline int ridge_mpi_exchange_(void *engine, const void *send, void *recv, size_t bytes)
{
    return ridge_mpi_move_((ridge_mpi *)engine, send, recv, bytes, 0);
}

/* Collectives have ended when they return. */
static inline int ridge_mpi_progress_(void *engine, void *stream)
{
    (void)engine, (void)stream;
    return 0;
}

static inline const char *ridge_mpi_text_(void *engine)
{
    return ((ridge_mpi *)engine)->text;
}

/** The peers of a communicator, whose collectives fail after `seconds`. The communicator stays the caller's. */
static inline ridge_peers ridge_mpi_peers(ridge_mpi *state, MPI_Comm comm, double seconds)
{
    ridge_peers peers;
    int rank = 0, size = 0;

    memset(&peers, 0, sizeof peers);
    memset(state, 0, sizeof *state);
    state->comm = comm;
    state->seconds = seconds;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    peers.struct_size = sizeof peers;
    peers.rank = rank;
    peers.size = size;
    peers.engine = state;
    peers.all_gather = ridge_mpi_all_gather_;
    peers.all_to_all = ridge_mpi_all_to_all_;
    peers.exchange = ridge_mpi_exchange_;
    peers.progress = ridge_mpi_progress_;
    peers.text = ridge_mpi_text_;
    return peers;
}

#endif

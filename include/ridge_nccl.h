/** @file ridge_nccl.h
 * ridge_peers over an NCCL communicator. A header only: it is compiled against the program's own NCCL and CUDA runtime.
 * It needs nanosleep: with -std=c11 define _POSIX_C_SOURCE as 200809L. The communicator may be blocking or not;
 * ridge_dist_wait asks ncclCommGetAsyncError. */
#ifndef RIDGE_NCCL_H
#define RIDGE_NCCL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ridge_dist.h"

/** What ridge_nccl_peers fills; it must stay as long as the peers. */
typedef struct ridge_nccl {
    ncclComm_t comm;         /**< the caller's */
    int size;                /**< ranks */
    double seconds;          /**< deadline of `exchange` */
    cudaStream_t side;       /**< where all_to_all runs, or NULL: on the caller's stream */
    cudaEvent_t ready, done; /**< before and after it */
    char *memory;            /**< of `exchange`, and its bytes */
    size_t bytes;            /**< of memory */
    cudaStream_t own;        /**< of `exchange` */
    char text[200];          /**< of the last failure */
} ridge_nccl;

static inline int ridge_nccl_ok_(ridge_nccl *n, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return 1;
    snprintf(n->text, sizeof n->text, "%s: %s", what, ncclGetErrorString(result));
    return 0;
}

static inline int ridge_nccl_cuda_(ridge_nccl *n, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return 1;
    snprintf(n->text, sizeof n->text, "%s: %s", what, cudaGetErrorString(error));
    return 0;
}

static inline int ridge_nccl_all_gather_(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    ridge_nccl *n = (ridge_nccl *)engine;

    return !ridge_nccl_ok_(n, ncclAllGather(send, recv, bytes, ncclUint8, n->comm, (cudaStream_t)stream),
                           "ncclAllGather");
}

static inline int ridge_nccl_all_to_all_(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    ridge_nccl *n = (ridge_nccl *)engine;
    cudaStream_t on = n->side ? n->side : (cudaStream_t)stream;
    int good = 1;

    if (n->side)
        good = ridge_nccl_cuda_(n, cudaEventRecord(n->ready, (cudaStream_t)stream), "cudaEventRecord") &&
               ridge_nccl_cuda_(n, cudaStreamWaitEvent(n->side, n->ready, 0), "cudaStreamWaitEvent");
    good = good && ridge_nccl_ok_(n, ncclGroupStart(), "ncclGroupStart");
    if (!good)
        return -1;
    for (int r = 0; r < n->size && good; r++)
        good =
            ridge_nccl_ok_(n, ncclSend((const char *)send + (size_t)r * bytes, bytes, ncclUint8, r, n->comm, on),
                           "ncclSend") &&
            ridge_nccl_ok_(n, ncclRecv((char *)recv + (size_t)r * bytes, bytes, ncclUint8, r, n->comm, on), "ncclRecv");
    good = ridge_nccl_ok_(n, ncclGroupEnd(), "ncclGroupEnd") && good;
    if (good && n->side)
        good = ridge_nccl_cuda_(n, cudaEventRecord(n->done, n->side), "cudaEventRecord");
    return !good;
}

static inline int ridge_nccl_join_(void *engine, void *stream)
{
    ridge_nccl *n = (ridge_nccl *)engine;

    return !ridge_nccl_cuda_(n, cudaStreamWaitEvent((cudaStream_t)stream, n->done, 0), "cudaStreamWaitEvent");
}

static inline int ridge_nccl_progress_(void *engine, void *stream)
{
    ridge_nccl *n = (ridge_nccl *)engine;
    ncclResult_t state = ncclSuccess;
    cudaError_t done;

    if (!ridge_nccl_ok_(n, ncclCommGetAsyncError(n->comm, &state), "ncclCommGetAsyncError") ||
        !ridge_nccl_ok_(n, state, "NCCL"))
        return -1;
    done = cudaStreamQuery((cudaStream_t)stream);
    if (done == cudaErrorNotReady)
        return RIDGE_PEERS_RUNNING;
    return ridge_nccl_cuda_(n, done, "cudaStreamQuery") ? 0 : -1;
}

/* Memory and a stream of its own, once: cudaFree may wait for a kernel that waits for this rank. Where a peer does not
 * answer they are left as they are. */
static inline int ridge_nccl_room_(ridge_nccl *n, size_t bytes)
{
    if (bytes > n->bytes) {
        cudaFree(n->memory);
        n->memory = NULL;
        n->bytes = 0;
        if (!ridge_nccl_cuda_(n, cudaMalloc((void **)&n->memory, bytes), "cudaMalloc"))
            return 0;
        n->bytes = bytes;
    }
    return n->own ||
           ridge_nccl_cuda_(n, cudaStreamCreateWithFlags(&n->own, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

static inline int ridge_nccl_exchange_(void *engine, const void *send, void *recv, size_t bytes)
{
    const struct timespec pause = {0, 100000};
    ridge_nccl *n = (ridge_nccl *)engine;
    int state;

    if (!ridge_nccl_room_(n, bytes * (size_t)(n->size + 1)) ||
        !ridge_nccl_cuda_(n, cudaMemcpyAsync(n->memory, send, bytes, cudaMemcpyHostToDevice, n->own),
                          "cudaMemcpyAsync") ||
        ridge_nccl_all_gather_(n, n->memory, n->memory + bytes, bytes, n->own))
        return -1;
    state = ridge_nccl_progress_(n, n->own);
    for (double waited = 0; state == RIDGE_PEERS_RUNNING && waited < n->seconds; waited += 1e-4) {
        nanosleep(&pause, NULL);
        state = ridge_nccl_progress_(n, n->own);
    }
    if (state == RIDGE_PEERS_RUNNING)
        snprintf(n->text, sizeof n->text, "not done after %g seconds: a peer has died, stopped or not called",
                 n->seconds);
    if (state) {
        n->memory = NULL;
        n->bytes = 0;
        n->own = NULL;
        return -1;
    }
    return !ridge_nccl_cuda_(n, cudaMemcpy(recv, n->memory + bytes, bytes * (size_t)n->size, cudaMemcpyDeviceToHost),
                             "cudaMemcpy");
}

static inline const char *ridge_nccl_text_(void *engine)
{
    return ((ridge_nccl *)engine)->text;
}

/** Frees what ridge_nccl_peers and ridge_dist_agree have made, when nothing runs on the device any more: after an error
 * not before ncclCommAbort. */
static inline void ridge_nccl_close(ridge_nccl *state)
{
    cudaFree(state->memory);
    state->memory = NULL;
    state->bytes = 0;
    if (state->own)
        cudaStreamDestroy(state->own);
    state->own = NULL;
    if (!state->side)
        return;
    cudaEventDestroy(state->ready);
    cudaEventDestroy(state->done);
    cudaStreamDestroy(state->side);
    state->side = NULL;
}

/** A stream of its own and two events for all_to_all; without them (no memory) it runs on the caller's stream. */
static inline void ridge_nccl_side_(ridge_nccl *n)
{
    int least = 0, most = 0;

    if (cudaDeviceGetStreamPriorityRange(&least, &most) != cudaSuccess ||
        cudaStreamCreateWithPriority(&n->side, cudaStreamNonBlocking, most) != cudaSuccess) {
        n->side = NULL;
        return;
    }
    if (cudaEventCreateWithFlags(&n->ready, cudaEventDisableTiming) == cudaSuccess) {
        if (cudaEventCreateWithFlags(&n->done, cudaEventDisableTiming) == cudaSuccess)
            return;
        cudaEventDestroy(n->ready);
    }
    cudaStreamDestroy(n->side);
    n->side = NULL;
}

/** The peers of a communicator on the current device; `seconds` is how long ridge_dist_agree waits. The communicator
 * stays the caller's; after an error ncclCommAbort ends what is on the stream. ridge_nccl_close frees the streams that
 * this makes. */
static inline ridge_peers ridge_nccl_peers(ridge_nccl *state, ncclComm_t comm, double seconds)
{
    ridge_peers peers;
    int rank = 0, size = 0;

    memset(&peers, 0, sizeof peers);
    memset(state, 0, sizeof *state);
    ncclCommUserRank(comm, &rank);
    ncclCommCount(comm, &size);
    state->comm = comm;
    state->size = size;
    state->seconds = seconds;
    peers.struct_size = sizeof peers;
    peers.rank = rank;
    peers.size = size;
    peers.engine = state;
    peers.all_gather = ridge_nccl_all_gather_;
    peers.all_to_all = ridge_nccl_all_to_all_;
    peers.exchange = ridge_nccl_exchange_;
    peers.progress = ridge_nccl_progress_;
    peers.text = ridge_nccl_text_;
    ridge_nccl_side_(state);
    peers.join = state->side ? ridge_nccl_join_ : NULL;
    return peers;
}

#endif

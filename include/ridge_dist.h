/** @file ridge_dist.h
 * linear cross entropy over several devices, on the engine that a program has: NCCL, MPI or another one. Library:
 * ridge_dist. It makes no communicator, process or socket: it is given two collectives that move bytes, and every sum
 * is ridge's own, in the order of the ranks. So the bits of a result depend on no algorithm of the engine.
 * ridge_mpi.h and ridge_nccl.h make the two collectives of a communicator. A rank of a training step:
 *
 *     ridge_mpi mpi;
 *     ridge_peers peers = ridge_mpi_peers(&mpi, MPI_COMM_WORLD, 60);
 *     // This rank's classes: w is [count, hidden].
 *     ridge_dist_shard(vocab, 1, peers.rank, peers.size, &first, &count);
 *     ridge_call call = ridge_linear_ce_train(tokens, hidden, count, x, w, target, loss, dx, dw);
 *     call.opt.ce.vocab_offset = first, call.opt.ce.vocab_total = vocab;
 *     if (ridge_dist_open(device, &peers, &dist) || ridge_dist_agree(dist, &call, 0) ||
 *         ridge_dist_workspace_bytes(dist, &call, 0, &bytes) || // allocate
 *         ridge_dist_run(dist, &call, 0, offsets, workspace, bytes, stream) || ridge_dist_wait(dist, stream, 60))
 *         return puts(ridge_dist_error()), 1;
 *
 * Ops: linear_ce_eval (2BHV FLOP over the ranks) and linear_ce_train (6BHV as on one device, in the phases of ridge.h;
 * 8BHV for rows of kernels that keep nothing between them: f32, CPUs). w, bias, dw and dbias are this rank's classes,
 * at least one; target and class_weight speak of the whole vocabulary. loss and token outputs are the same bits on
 * every rank. dx is added in f32 from parts in its dtype, in the order of the ranks.
 *
 * A rank receives, of n: 12 bytes a token and other rank (24 with label smoothing); for dx its size times (n-1)/n, and
 * as much again where all rows are wanted; with RIDGE_DIST_ROWS the other ranks' x. */
#ifndef RIDGE_DIST_H
#define RIDGE_DIST_H

#include "ridge.h"

#ifdef __cplusplus
extern "C" {
#endif

/** This thread's last message of a ridge_dist function. Empty before the first error. Valid until this thread's next.
 */
RIDGE_API const char *ridge_dist_error(void);

/** What ridge_peers.progress answers besides 0, done: still running. Anything else is a failure. */
#define RIDGE_PEERS_RUNNING 1

/** A communicator of the caller's. Functions answer 0, or else that they failed; `text` then says why. */
typedef struct ridge_peers {
    uint32_t struct_size; /**< sizeof(ridge_peers) */
    int32_t rank;         /**< this rank, 0 .. size - 1 */
    int32_t size;         /**< ranks, 1 to 4096 */
    uint32_t reserved;    /**< 0 */
    void *engine;         /**< first argument of the functions */
    /** recv [size][bytes]: what every rank sends, in the device's memory, in the order of `stream`. */
    int (*all_gather)(void *engine, const void *send, void *recv, size_t bytes, void *stream);
    /** Part r [bytes] of send goes to rank r; part r of recv comes from it. Likewise. */
    int (*all_to_all)(void *engine, const void *send, void *recv, size_t bytes, void *stream);
    /** all_gather of host memory, which waits; at setup only. */
    int (*exchange)(void *engine, const void *send, void *recv, size_t bytes);
    /** 0 where all work on the stream is done, RIDGE_PEERS_RUNNING, or a failure; does not wait. */
    int (*progress)(void *engine, void *stream);
    /** Why the last function failed; may be NULL. */
    const char *(*text)(void *engine);
    /** Where it is not NULL, all_to_all may go on beside what follows on its stream; this makes the stream wait for it.
     * It is called before the next collective and before anything reads recv or writes send. */
    int (*join)(void *engine, void *stream);
} ridge_peers;

typedef struct ridge_dist ridge_dist; /**< A device and its peers. */

/** Binds a device to its peers; both stay the caller's and must outlive it. Errors: RIDGE_ERR_ARG (NULL, struct_size,
 * rank or size), RIDGE_ERR_DEVICE (no memory). On error *dist is NULL. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_dist_open(const ridge_device *device, const ridge_peers *peers,
                                                     ridge_dist **dist);

/** Closes it; NULL is allowed. */
RIDGE_API void ridge_dist_close(ridge_dist *dist);

/** This rank's part of n, in whole steps: the first ranks have one step more where they do not divide. */
RIDGE_API void ridge_dist_shard(int64_t n, int64_t step, int rank, int size, int64_t *first, int64_t *count);

/** With it x, target, dx and token outputs are this rank's rows, packed; dim[0], the tokens, is those of all ranks, and
 * every rank has as many. Without it every rank has all rows. The loss is that of all rows either way. */
#define RIDGE_DIST_ROWS 1u

/** Asks all ranks about a call, once for a problem, and waits for them: every rank gets the same error, which names
 * rank and field, where they differ in what must be the same, where slices leave a gap, or where a call is wrong on one
 * rank. `call` is as ridge_dist_run gets it. Errors: RIDGE_ERR_ARG, RIDGE_ERR_PEER. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_dist_agree(ridge_dist *dist, const ridge_call *call, uint32_t how);

/** The workspace of a call, in bytes: messages and what the device's kernels want. Errors: as ridge_dist_run's. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_dist_workspace_bytes(ridge_dist *dist, const ridge_call *call, uint32_t how,
                                                                size_t *bytes);

/** Runs a call over all ranks, on `stream`. offset [size] i64, in the device's memory: vocab_offset of every rank.
 * `workspace` is 256-byte aligned device memory. All ranks must run the same calls in the same order. What is wrong on
 * this rank is found before the first collective. Errors: RIDGE_ERR_ARG, RIDGE_ERR_UNSUPPORTED (another op; entropy,
 * argmax, accuracy or errors), RIDGE_ERR_WORKSPACE, RIDGE_ERR_DEVICE, and RIDGE_ERR_PEER where a collective failed:
 * outputs are undefined then, and the communicator is of no use any more. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_dist_run(ridge_dist *dist, const ridge_call *call, uint32_t how,
                                                    const int64_t *offset, void *workspace, size_t bytes, void *stream);

/** Waits until the stream's work is done. Errors: RIDGE_ERR_PEER: the engine has failed, or is not done after
 * `seconds`; the caller then aborts its communicator (ncclCommAbort, MPI_Abort). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_dist_wait(ridge_dist *dist, void *stream, double seconds);

#ifdef __cplusplus
}
#endif

#endif

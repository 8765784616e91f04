/* linear_ce_nccl.c: the loss of an output layer whose classes are cut among the GPUs of this machine, a thread a GPU:
 *
 *     linear_ce_nccl [GPUS]
 *
 * Every rank has all rows of x and a slice of the classes; it gets the same loss, all of dx and its slice of dw. It
 * prints what a step takes and fails if the ranks' losses differ in a bit. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ridge_nccl.h"

enum { TOKENS = 4096, HIDDEN = 2048, VOCAB = 32000, STEPS = 20, MOST = 16 };

typedef struct rank {
    pthread_t thread;
    ncclComm_t comm;
    int index, size;
    float loss, ms;
    int failed;
    char text[300];
} rank;

static int failed(rank *r, const char *what, const char *why)
{
    snprintf(r->text, sizeof r->text, "%s: %s", what, why);
    return r->failed = 1;
}

static int cuda(rank *r, cudaError_t error, const char *what)
{
    return error == cudaSuccess ? 0 : failed(r, what, cudaGetErrorString(error));
}

/* bf16 numbers around 0, the same wherever element i of the whole matrix lies. */
static int upload(rank *r, void **to, int64_t first, int64_t count, float size)
{
    uint16_t *host = malloc((size_t)count * 2);
    int bad = !host ? failed(r, "malloc", "no memory") : cuda(r, cudaMalloc(to, (size_t)count * 2), "cudaMalloc");

    for (int64_t i = 0; i < count && !bad; i++) {
        const uint32_t bits = (uint32_t)(first + i + 1) * 2654435761u;
        const float v = ((float)(bits >> 8) * 0x1p-23f - 1.0f) * size;
        uint32_t word;

        memcpy(&word, &v, sizeof word);
        host[i] = (uint16_t)(word >> 16);
    }
    bad = bad || cuda(r, cudaMemcpy(*to, host, (size_t)count * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(host);
    return bad;
}

/* What a rank has on its GPU. */
typedef struct layer {
    void *x, *w, *target, *dx, *dw, *loss, *offset, *workspace;
    size_t bytes;
    int64_t first, count;
} layer;

static int fill(rank *r, layer *l)
{
    int32_t *target = malloc(TOKENS * sizeof *target);
    int64_t offset[MOST] = {0}, count;
    int bad = target ? 0 : failed(r, "malloc", "no memory");

    for (int i = 0; i < r->size; i++)
        ridge_dist_shard(VOCAB, 1, i, r->size, &offset[i], &count);
    for (int i = 0; i < TOKENS && !bad; i++)
        target[i] = (int32_t)((uint32_t)i * 2654435761u % VOCAB);
    ridge_dist_shard(VOCAB, 1, r->index, r->size, &l->first, &l->count);
    bad = bad || upload(r, &l->x, 0, (int64_t)TOKENS * HIDDEN, 1.0f) ||
          upload(r, &l->w, l->first * HIDDEN, l->count * HIDDEN, 0.05f) ||
          cuda(r, cudaMalloc(&l->target, sizeof *target * TOKENS), "cudaMalloc") ||
          cuda(r, cudaMalloc(&l->dx, (size_t)TOKENS * HIDDEN * 2), "cudaMalloc") ||
          cuda(r, cudaMalloc(&l->dw, (size_t)l->count * HIDDEN * 4), "cudaMalloc") ||
          cuda(r, cudaMalloc(&l->loss, sizeof(float)), "cudaMalloc") ||
          cuda(r, cudaMalloc(&l->offset, sizeof offset), "cudaMalloc") ||
          cuda(r, cudaMemcpy(l->target, target, sizeof *target * TOKENS, cudaMemcpyHostToDevice), "cudaMemcpy") ||
          cuda(r, cudaMemcpy(l->offset, offset, sizeof offset, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(target);
    return bad;
}

static int train(rank *r, ridge_dist *dist, layer *l, cudaStream_t stream)
{
    ridge_call call = ridge_linear_ce_train(TOKENS, HIDDEN, l->count, ridge_matrix(l->x, RIDGE_BF16),
                                            ridge_matrix(l->w, RIDGE_BF16), ridge_matrix(l->target, RIDGE_I32), l->loss,
                                            ridge_matrix(l->dx, RIDGE_BF16), ridge_matrix(l->dw, RIDGE_F32));
    cudaEvent_t begin, end;
    int bad;

    call.opt.ce.vocab_offset = l->first;
    call.opt.ce.vocab_total = VOCAB;
    if (ridge_dist_workspace_bytes(dist, &call, 0, &l->bytes))
        return failed(r, "ridge_dist_workspace_bytes", ridge_dist_error());
    /* Before any collective: cudaMalloc may wait for other GPUs' kernels, and they for this rank. */
    if (cuda(r, cudaMalloc(&l->workspace, l->bytes + 1), "cudaMalloc") ||
        cuda(r, cudaEventCreate(&begin), "cudaEventCreate") || cuda(r, cudaEventCreate(&end), "cudaEventCreate"))
        return 1;
    if (ridge_dist_agree(dist, &call, 0))
        return failed(r, "ridge_dist_agree", ridge_dist_error());
    for (int step = -3; step < STEPS; step++) {
        if (step == 0 && cuda(r, cudaEventRecord(begin, stream), "cudaEventRecord"))
            return 1;
        if (ridge_dist_run(dist, &call, 0, l->offset, l->workspace, l->bytes, stream))
            return failed(r, "ridge_dist_run", ridge_dist_error());
    }
    bad = cuda(r, cudaEventRecord(end, stream), "cudaEventRecord");
    if (ridge_dist_wait(dist, stream, 60))
        return failed(r, "ridge_dist_wait", ridge_dist_error());
    return bad || cuda(r, cudaEventElapsedTime(&r->ms, begin, end), "cudaEventElapsedTime") ||
           cuda(r, cudaMemcpy(&r->loss, l->loss, sizeof r->loss, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

static void *run(void *arg)
{
    rank *r = arg;
    ridge_device *device = NULL;
    ridge_dist *dist = NULL;
    cudaStream_t stream = NULL;
    layer l = {0};
    ridge_nccl nccl;
    ridge_peers peers;
    char spec[16];

    snprintf(spec, sizeof spec, "cuda:%d", r->index);
    if (cuda(r, cudaSetDevice(r->index), "cudaSetDevice") || cuda(r, cudaStreamCreate(&stream), "cudaStreamCreate"))
        return NULL;
    peers = ridge_nccl_peers(&nccl, r->comm, 20);
    if (ridge_open(spec, &device))
        failed(r, spec, ridge_error());
    else if (ridge_dist_open(device, &peers, &dist))
        failed(r, spec, ridge_dist_error());
    else if (!fill(r, &l))
        train(r, dist, &l, stream);
    ridge_dist_close(dist);
    if (!r->failed)
        ridge_nccl_close(&nccl);
    ridge_close(device);
    return NULL; /* the process ends: its memory on the GPU goes with it */
}

int main(int argc, char **argv)
{
    static rank ranks[MOST];
    ncclComm_t comms[MOST];
    int size = 0, bad = 0;

    if (cudaGetDeviceCount(&size) != cudaSuccess || size == 0)
        return puts("no GPU"), 77;
    size = argc > 1 && atoi(argv[1]) > 0 && atoi(argv[1]) < size ? atoi(argv[1]) : size;
    size = size < MOST ? size : MOST;
    if (ncclCommInitAll(comms, size, NULL) != ncclSuccess)
        return puts("ncclCommInitAll failed"), 1;
    for (int i = 0; i < size; i++) {
        ranks[i] = (rank){.comm = comms[i], .index = i, .size = size};
        if (pthread_create(&ranks[i].thread, NULL, run, &ranks[i]))
            return puts("pthread_create failed"), 1;
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++) {
        if (ranks[i].failed)
            fprintf(stderr, "rank %d: %s\n", i, ranks[i].text);
        bad |= ranks[i].failed || memcmp(&ranks[i].loss, &ranks[0].loss, sizeof(float)) != 0;
        bad ? ncclCommAbort(comms[i]) : ncclCommDestroy(comms[i]);
    }
    if (!bad)
        printf("%d GPU%s: loss %.6f on every rank, %.3f ms a step\n", size, size > 1 ? "s" : "", (double)ranks[0].loss,
               (double)ranks[0].ms / STEPS);
    return bad;
}

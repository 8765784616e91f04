/* attention_gemms.c: the projections of Llama-3-70B's attention for a few tokens: qkv (10240 x 8192), out (8192 x
 * 8192), with the activations quantised by 1 x 128 before each; the attention between them is left out (its input's
 * first columns stand for its output). Several layers, each with weights of its own, run call by call and as one
 * replayed CUDA graph, which must give the same bits. Printed a layer: the time of both; the kernels, each timed in a
 * graph of as many calls of nothing but itself; and the gap, which is the difference over the number of kernels.
 *
 * The CUDA driver is opened at run time: the example links only ridge. Without a GPU it runs small layers on the CPU.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ridge.h"

enum { LAYERS = 4, CALLS = 4 /* quantise, qkv, quantise, out */, ROUNDS = 21, MOST_TOKENS = 64 };

typedef unsigned long long pointer; /* CUdeviceptr */

/* What this example needs of the driver, by the names of cuda.h. */
static struct {
    int (*cuInit)(unsigned);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuMemAlloc_v2)(pointer *, size_t);
    int (*cuMemcpyHtoD_v2)(pointer, const void *, size_t);
    int (*cuMemcpyDtoH_v2)(void *, pointer, size_t);
    int (*cuCtxSynchronize)(void);
    int (*cuStreamCreate)(void **, unsigned);
    int (*cuStreamSynchronize)(void *);
    int (*cuStreamBeginCapture_v2)(void *, int);
    int (*cuStreamEndCapture)(void *, void **);
    int (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long);
    int (*cuGraphLaunch)(void *, void *);
    int (*cuEventCreate)(void **, unsigned);
    int (*cuEventRecord)(void *, void *);
    int (*cuEventElapsedTime)(float *, void *, void *);
} cu;

static ridge_device *device;
static void *stream, *mark[2];
static int on_gpu;

static void fail(const char *what)
{
    fprintf(stderr, "attention_gemms: %s: %s\n", what, ridge_error());
    exit(1);
}

static void check(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "attention_gemms: %s: CUDA error %d\n", what, error);
        exit(1);
    }
}

#define FIND(name) good = good && (*(void **)&cu.name = dlsym(library, #name)) != NULL

static int open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int good = library != NULL;

    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemcpyHtoD_v2);
    FIND(cuMemcpyDtoH_v2);
    FIND(cuCtxSynchronize);
    FIND(cuStreamCreate);
    FIND(cuStreamSynchronize);
    FIND(cuStreamBeginCapture_v2);
    FIND(cuStreamEndCapture);
    FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphLaunch);
    FIND(cuEventCreate);
    FIND(cuEventRecord);
    FIND(cuEventElapsedTime);
    if (!good || cu.cuInit(0) || ridge_open("cuda", &device) != RIDGE_OK)
        return 0;
    check(cu.cuDevicePrimaryCtxRetain(&context, 0), "context"); /* the one that ridge uses */
    check(cu.cuCtxSetCurrent(context), "context");
    check(cu.cuStreamCreate(&stream, 1), "stream");
    check(cu.cuEventCreate(&mark[0], 0) || cu.cuEventCreate(&mark[1], 0), "event");
    return 1;
}

/* ---------------------------------------------------------------------------------------------------------- memory */

static void *take(size_t bytes)
{
    pointer p = 0;

    if (!on_gpu)
        return aligned_alloc(256, (bytes + 255) / 256 * 256);
    check(cu.cuMemAlloc_v2(&p, bytes), "memory");
    return (void *)(size_t)p;
}

static void put(void *to, const void *from, size_t bytes)
{
    if (on_gpu)
        check(cu.cuMemcpyHtoD_v2((pointer)(size_t)to, from, bytes) || cu.cuCtxSynchronize(), "upload"); /* has landed */
    else
        memcpy(to, from, bytes);
}

static void get(void *to, const void *from, size_t bytes)
{
    if (on_gpu)
        check(cu.cuStreamSynchronize(stream) || cu.cuMemcpyDtoH_v2(to, (pointer)(size_t)from, bytes), "download");
    else
        memcpy(to, from, bytes);
}

/* Random bytes with `keep` applied to each. */
static void *random_bytes(size_t bytes, unsigned char keep)
{
    static unsigned long long state = 88172645463325252u;
    unsigned long long *x = malloc(bytes + 8), mask;

    memset(&mask, keep, sizeof mask);
    for (size_t i = 0; i < bytes / 8 + 1; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        x[i] = state & mask;
    }
    return x;
}

/* ----------------------------------------------------------------------------------------------------------- layers */

typedef struct layer {
    void *qkv, *out; /* weights, e4m3 */
    float *scale_qkv, *scale_out;
} layer;

typedef struct model {
    int hidden, qkv, tokens;
    layer layer[LAYERS];
    void *x, *q, *y; /* bf16 activations of a layer, their codes, qkv's result */
    float *scale;
} model;

static void *weights(int64_t rows, int64_t cols, float **scales)
{
    const int64_t blocks = (rows + 127) / 128 * ((cols + 127) / 128);
    void *codes = random_bytes((size_t)(rows * cols), 0xbf), *to = take((size_t)(rows * cols)); /* below 2, no NaN */
    float *s = malloc((size_t)blocks * sizeof *s);

    for (int64_t i = 0; i < blocks; i++)
        s[i] = 1.3f / sqrtf((float)cols); /* results about as large as what goes in */
    *scales = take((size_t)blocks * sizeof *s);
    put(to, codes, (size_t)(rows * cols));
    put(*scales, s, (size_t)blocks * sizeof *s);
    free(codes);
    free(s);
    return to;
}

static ridge_call quantise(const model *m, const void *x, int64_t stride)
{
    const ridge_tensor from = {.data = (void *)(uintptr_t)x, .dtype = RIDGE_BF16, .stride = stride};

    return ridge_quantize_fp8(m->tokens, m->hidden, from,
                              ridge_scaled(m->q, RIDGE_E4M3, m->scale, RIDGE_SCALING_ROW128));
}

static ridge_call project(const model *m, int64_t n, const void *w, const float *scales, void *d)
{
    ridge_call call =
        ridge_gemm_fp8(m->tokens, n, m->hidden, ridge_scaled(m->q, RIDGE_E4M3, m->scale, RIDGE_SCALING_ROW128),
                       ridge_scaled(w, RIDGE_E4M3, scales, RIDGE_SCALING_BLK128), ridge_matrix(d, RIDGE_BF16));

    call.flags |= RIDGE_WEIGHTS_CONST; /* written long ago: they may be fetched before the previous kernel ends */
    return call;
}

static ridge_call call_of(const model *m, int index)
{
    const layer *l = &m->layer[index / CALLS];

    switch (index % CALLS) {
    case 0:
        return quantise(m, m->x, 0);
    case 1:
        return project(m, m->qkv, l->qkv, l->scale_qkv, m->y);
    case 2:
        return quantise(m, m->y, m->qkv);
    default:
        return project(m, m->hidden, l->out, l->scale_out, m->x);
    }
}

/* All layers' calls, or as many that are all of kind `kind`. */
static void run(const model *m, int kind)
{
    for (int i = 0; i < LAYERS * CALLS; i++) {
        const ridge_call call = call_of(m, kind < 0 ? i : i % LAYERS * CALLS + kind);

        if (ridge_run(device, &call, NULL, 0, stream) != RIDGE_OK)
            fail("ridge_run");
    }
}

/* ----------------------------------------------------------------------------------------------------------- timing */

static void *graph_of(const model *m, int kind)
{
    void *graph = NULL, *ready = NULL;

    check(cu.cuStreamBeginCapture_v2(stream, 1), "capture"); /* nothing that allocates or waits is legal in here */
    run(m, kind);
    check(cu.cuStreamEndCapture(stream, &graph), "capture");
    check(cu.cuGraphInstantiateWithFlags(&ready, graph, 0), "graph");
    return ready;
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* Median microseconds a layer: the graph, or the calls one by one where there is none. */
static double layer_us(const model *m, void *graph)
{
    float ms[ROUNDS];

    for (int i = -3; i < ROUNDS; i++) {
        check(cu.cuEventRecord(mark[0], stream), "event");
        if (graph)
            check(cu.cuGraphLaunch(graph, stream), "graph");
        else
            run(m, -1);
        check(cu.cuEventRecord(mark[1], stream) || cu.cuStreamSynchronize(stream), "event");
        if (i >= 0)
            check(cu.cuEventElapsedTime(&ms[i], mark[0], mark[1]), "event");
    }
    qsort(ms, ROUNDS, sizeof ms[0], ascending);
    return 1e3 * (double)ms[ROUNDS / 2] / LAYERS;
}

/* One number of tokens; 1 if the replayed graph gave the bits of the calls one by one. */
static int measure(const model *m, const void *x)
{
    static unsigned char eager[MOST_TOKENS * 8192 * 2], replayed[sizeof eager];
    const size_t bytes = (size_t)m->tokens * (size_t)m->hidden * 2;
    double one_by_one, layer, kernels = 0;
    void *graph;
    int same;

    put(m->x, x, bytes);
    run(m, -1);
    get(eager, m->x, bytes);
    if (!on_gpu) {
        printf("%2d tokens on the CPU: %d layers done\n", m->tokens, LAYERS);
        return 1;
    }
    graph = graph_of(m, -1);
    put(m->x, x, bytes);
    check(cu.cuGraphLaunch(graph, stream), "graph");
    get(replayed, m->x, bytes);
    same = memcmp(eager, replayed, bytes) == 0;
    one_by_one = layer_us(m, NULL);
    layer = layer_us(m, graph);
    for (int kind = 0; kind < CALLS; kind++)
        kernels += layer_us(m, graph_of(m, kind)) / CALLS;
    printf(
        "%2d tokens: call by call %7.2f us a layer, graph %7.2f, its kernels alone %7.2f, gap %5.2f us a kernel; %s\n",
        m->tokens, one_by_one, layer, kernels, (layer - kernels) / CALLS, same ? "the same bits" : "OTHER BITS");
    return same;
}

int main(void)
{
    static const int tokens[] = {1, 4, 16, 64};
    model m = {.hidden = 8192, .qkv = 10240};
    uint16_t *x;
    int good = 1;

    on_gpu = open_driver();
    if (!on_gpu) {
        m.hidden = 512, m.qkv = 640;
        if (ridge_open("cpu", &device) != RIDGE_OK)
            fail("ridge_open");
    }
    x = random_bytes((size_t)MOST_TOKENS * (size_t)m.hidden * 2, 0xff);
    for (int i = 0; i < MOST_TOKENS * m.hidden; i++)
        x[i] = (uint16_t)((x[i] & 0x80ff) | 0x3f00); /* bf16 of size 0.5 to 2 */
    for (int i = 0; i < LAYERS; i++) {
        m.layer[i].qkv = weights(m.qkv, m.hidden, &m.layer[i].scale_qkv);
        m.layer[i].out = weights(m.hidden, m.hidden, &m.layer[i].scale_out);
    }
    m.x = take((size_t)MOST_TOKENS * (size_t)m.hidden * 2);
    m.y = take((size_t)MOST_TOKENS * (size_t)m.qkv * 2);
    m.q = take((size_t)MOST_TOKENS * (size_t)m.hidden);
    m.scale = take((size_t)(m.hidden / 128) * MOST_TOKENS * sizeof(float));
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        m.tokens = tokens[i];
        good = measure(&m, x) && good;
    }
    free(x);
    ridge_close(device);
    return !good;
}

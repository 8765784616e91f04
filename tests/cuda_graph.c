/* cuda_graph.c: ridge_order_graph on graphs that this program captures: which edges stay, which become full ones and
 * which go; that results keep their bits; that a large graph takes milliseconds. Skipped (77) without a GPU. It is
 * linked with libridge.a, so that both have the same CUDA runtime. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ridge.h"

#if CUDART_VERSION < 12030
int main(void)
{
    printf("graphs: skipped: edges have no kinds before CUDA 12.3\n");
    return 77;
}
#else
#if CUDART_VERSION < 13000
#define cudaGraphGetEdges cudaGraphGetEdges_v2
#define cudaGraphAddDependencies cudaGraphAddDependencies_v2
#define cudaGraphRemoveDependencies cudaGraphRemoveDependencies_v2
#endif

enum { ROWS = 64, COLS = 4096, BYTES = ROWS * COLS * 4, BUFFERS = 8, MOST = 64 };

static ridge_device *device;
static char *memory; /* BUFFERS of them; the first is the input */
static cudaStream_t stream, branch;
static cudaEvent_t forked, joined;
static int failures;

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            printf("%s:%d: %s (ridge: %s)\n", __FILE__, __LINE__, #condition, ridge_error()); \
            failures++;                                                                       \
        }                                                                                     \
    } while (0)

/* Buffer `out` from two others, on one of the streams. */
static void call(cudaStream_t on, int gate, int up, int out)
{
    const ridge_call c = ridge_swiglu_fwd(ROWS, COLS, RIDGE_F32, memory + (size_t)gate * BYTES,
                                          memory + (size_t)up * BYTES, memory + (size_t)out * BYTES);

    CHECK(ridge_run(device, &c, NULL, 0, on) == RIDGE_OK);
}

static void follow(cudaStream_t on, cudaStream_t after, cudaEvent_t event)
{
    CHECK(cudaEventRecord(event, after) == cudaSuccess && cudaStreamWaitEvent(on, event, 0) == cudaSuccess);
}

/* Seven kernels: two branches and their joins; with a branch that is the stream itself, a chain. */
static void seven(cudaStream_t other)
{
    call(stream, 0, 0, 1);
    if (other != stream)
        follow(other, stream, forked);
    call(other, 1, 0, 2);
    call(stream, 1, 1, 3);
    call(stream, 3, 0, 4);
    if (other != stream)
        follow(stream, other, joined);
    call(stream, 2, 4, 5);
    if (other != stream)
        follow(other, stream, forked);
    call(other, 5, 2, 6);
    if (other != stream)
        follow(stream, other, joined);
    call(stream, 6, 5, 7);
}

static cudaGraph_t capture(int times)
{
    cudaGraph_t graph = NULL;

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    for (int i = 0; i < times; i++)
        seven(branch);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph);
    return graph;
}

typedef struct edges {
    cudaGraphNode_t from[MOST], to[MOST];
    cudaGraphEdgeData data[MOST];
    size_t count, early;
} edges;

static edges edges_of(cudaGraph_t graph)
{
    edges e = {.count = MOST};

    CHECK(cudaGraphGetEdges(graph, e.from, e.to, e.data, &e.count) == cudaSuccess && e.count <= MOST);
    for (size_t i = 0; i < e.count; i++)
        e.early += e.data[i].type == cudaGraphDependencyTypeProgrammatic;
    return e;
}

/* 0: there is no edge; 1: a full one; 2: a programmatic one. */
static int edge(const edges *e, const cudaGraphNode_t *node, int from, int to)
{
    for (size_t i = 0; i < e->count; i++)
        if (e->from[i] == node[from] && e->to[i] == node[to])
            return e->data[i].type == cudaGraphDependencyTypeProgrammatic ? 2 : 1;
    return 0;
}

static void joins(void)
{
    cudaGraph_t graph = capture(1);
    cudaGraphNode_t node[7];
    size_t nodes = 7;
    const edges before = edges_of(graph);
    edges after;

    CHECK(cudaGraphGetNodes(graph, node, &nodes) == cudaSuccess && nodes == 7 && before.count == 9);
    CHECK(edge(&before, node, 1, 5) && edge(&before, node, 4, 6));
    for (int i = 0; i < 2; i++) { /* a second call changes nothing */
        CHECK(ridge_order_graph(device, graph) == RIDGE_OK);
        after = edges_of(graph);
        if (before.early == 0) { /* a GPU before Hopper */
            CHECK(after.count == before.count && after.early == 0);
            continue;
        }
        CHECK(before.early == 9 && after.count == 7 && after.early == 6);
        CHECK(edge(&after, node, 3, 4) == 2 && edge(&after, node, 1, 4) == 1); /* a join */
        CHECK(edge(&after, node, 4, 5) == 2 && edge(&after, node, 1, 5) == 0); /* the branch's own kernel is implied */
        CHECK(edge(&after, node, 5, 6) == 2 && edge(&after, node, 4, 6) == 0);
        CHECK(edge(&after, node, 0, 1) == 2 && edge(&after, node, 0, 2) == 2 && edge(&after, node, 2, 3) == 2);
    }
    printf("edges: %zu, %zu of them programmatic; ordered %zu, %zu\n", before.count, before.early, after.count,
           after.early);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess && cudaGetLastError() == cudaSuccess);
}

/* Edges that lead to earlier nodes, which no capture makes. */
static void backwards(void)
{
    cudaGraph_t graph = capture(1);
    cudaGraphNode_t node[7];
    const int from[] = {6, 1, 5, 6}, to[] = {1, 5, 0, 0}; /* the last is implied by the others */
    size_t nodes = 7;
    const edges before = edges_of(graph);
    edges after;

    CHECK(cudaGraphGetNodes(graph, node, &nodes) == cudaSuccess);
    CHECK(cudaGraphRemoveDependencies(graph, before.from, before.to, before.data, before.count) == cudaSuccess);
    for (int i = 0; i < 4; i++)
        CHECK(cudaGraphAddDependencies(graph, &node[from[i]], &node[to[i]], before.data, 1) == cudaSuccess);
    CHECK(ridge_order_graph(device, graph) == RIDGE_OK);
    after = edges_of(graph);
    if (before.early)
        CHECK(after.count == 3 && after.early == 3 && edge(&after, node, 6, 0) == 0);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

/* Node 0 waits for the start of node 5 alone: that node 1 is before node 5 does not say that it has ended. */
static void starts(void)
{
    cudaGraph_t graph = capture(1);
    cudaGraphNode_t node[7];
    const int from[] = {1, 5, 1, 6}, to[] = {5, 0, 0, 0};
    size_t nodes = 7;
    const edges before = edges_of(graph);
    edges after;

    CHECK(cudaGraphGetNodes(graph, node, &nodes) == cudaSuccess);
    CHECK(cudaGraphRemoveDependencies(graph, before.from, before.to, before.data, before.count) == cudaSuccess);
    for (int i = 0; i < 4; i++) {
        cudaGraphEdgeData data = before.data[0];

        if (before.early && i == 1)
            data.from_port = cudaGraphKernelNodePortLaunchCompletion;
        CHECK(cudaGraphAddDependencies(graph, &node[from[i]], &node[to[i]], &data, 1) == cudaSuccess);
    }
    CHECK(ridge_order_graph(device, graph) == RIDGE_OK);
    after = edges_of(graph);
    CHECK(after.count == 4 && edge(&after, node, 1, 0) != 0);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

static void launch(cudaGraph_t graph)
{
    cudaGraphExec_t ready = NULL;

    CHECK(cudaMemset(memory + BYTES, 0xff, (BUFFERS - 1) * BYTES) == cudaSuccess &&
          cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    for (int i = 0; i < 50; i++)
        CHECK(cudaGraphLaunch(ready, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess && cudaGraphExecDestroy(ready) == cudaSuccess);
}

/* One kernel after the other, the graph as captured, and the graph with its edges in order. */
static void same_bits(void)
{
    static float host[ROWS * COLS], want[(BUFFERS - 1) * ROWS * COLS], got[(BUFFERS - 1) * ROWS * COLS];
    cudaGraph_t graph = capture(20);

    for (int i = 0; i < ROWS * COLS; i++)
        host[i] = (float)(i % 1009) / 505 - 1;
    CHECK(cudaMemcpy(memory, host, BYTES, cudaMemcpyHostToDevice) == cudaSuccess &&
          cudaDeviceSynchronize() == cudaSuccess);
    seven(stream);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaMemcpy(want, memory + BYTES, sizeof want, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int ordered = 0; ordered < 2; ordered++) {
        if (ordered)
            CHECK(ridge_order_graph(device, graph) == RIDGE_OK);
        launch(graph);
        CHECK(cudaMemcpy(got, memory + BYTES, sizeof got, cudaMemcpyDeviceToHost) == cudaSuccess);
        CHECK(memcmp(want, got, sizeof got) == 0);
    }
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

static void large(void)
{
    cudaGraph_t graph = capture(715); /* 5005 kernels */
    struct timespec begin, end;
    double ms;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK(ridge_order_graph(device, graph) == RIDGE_OK);
    clock_gettime(CLOCK_MONOTONIC, &end);
    ms = 1e3 * (double)(end.tv_sec - begin.tv_sec) + 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("a graph of 5005 kernels: %.2f ms\n", ms);
    CHECK(ms < 200);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

static void small(void)
{
    cudaGraph_t graph = NULL;

    CHECK(cudaGraphCreate(&graph, 0) == cudaSuccess && ridge_order_graph(device, graph) == RIDGE_OK);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(ridge_order_graph(device, NULL) == RIDGE_ERR_ARG && strstr(ridge_error(), "graph is NULL"));
    CHECK(cudaGetLastError() == cudaSuccess);
}

int main(void)
{
    if (ridge_open("cuda:0", &device) != RIDGE_OK) {
        printf("graphs: skipped: %s\n", ridge_error());
        return 77;
    }
    CHECK(cudaMalloc((void **)&memory, (size_t)BUFFERS * BYTES) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&branch, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming) == cudaSuccess);
    joins();
    backwards();
    starts();
    same_bits();
    large();
    small();
    ridge_close(device);
    printf("graphs: %d failures\n", failures);
    return failures != 0;
}
#endif

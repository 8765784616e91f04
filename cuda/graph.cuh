/* graph.cuh: order_edges: ridge_order_graph, and what device.cu does to the graphs that it captures. */
#ifndef RIDGE_CUDA_GRAPH_CUH
#define RIDGE_CUDA_GRAPH_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#if CUDART_VERSION >= 12030
#if CUDART_VERSION < 13000 /* their names before CUDA 13 */
#define cudaGraphGetEdges cudaGraphGetEdges_v2
#define cudaGraphAddDependencies cudaGraphAddDependencies_v2
#define cudaGraphRemoveDependencies cudaGraphRemoveDependencies_v2
#endif

typedef struct graph_node {
    cudaGraphNode_t handle;
    size_t number; /* in the order of capture */
} graph_node;

typedef struct graph_edge {
    size_t from, to; /* numbers */
    cudaGraphEdgeData data;
} graph_edge;

typedef struct graph_edges {
    cudaGraphNode_t *node, *from, *to; /* as CUDA tells them; from, to and data then hold the edges that change: */
    cudaGraphEdgeData *data;
    size_t nodes, edges, full, implied; /* those that become full ones first, those that go last */
    graph_node *by_handle;
    graph_edge *edge; /* by `to`; those of node n are edge[first[n]] .. edge[first[n + 1] - 1] */
    size_t *first, *mark, *stack;
    bool sorted; /* edges lead to later nodes, as captured ones do */
} graph_edges;

static int compare_handles(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const graph_node *)a)->handle, y = (uintptr_t)((const graph_node *)b)->handle;

    return x < y ? -1 : x > y;
}

static int compare_ends(const void *a, const void *b)
{
    const size_t x = ((const graph_edge *)a)->to, y = ((const graph_edge *)b)->to;

    return x < y ? -1 : x > y;
}

static size_t number_of(const graph_edges *g, cudaGraphNode_t handle)
{
    const graph_node key = {handle, 0};

    return ((const graph_node *)bsearch(&key, g->by_handle, g->nodes, sizeof key, compare_handles))->number;
}

static cudaError_t read_edges(cudaGraph_t graph, graph_edges *g)
{
    cudaError_t error;

    g->node = (cudaGraphNode_t *)malloc(g->nodes * sizeof *g->node);
    g->from = (cudaGraphNode_t *)malloc(g->edges * sizeof *g->from);
    g->to = (cudaGraphNode_t *)malloc(g->edges * sizeof *g->to);
    g->data = (cudaGraphEdgeData *)malloc(g->edges * sizeof *g->data);
    g->by_handle = (graph_node *)malloc(g->nodes * sizeof *g->by_handle);
    g->edge = (graph_edge *)malloc(g->edges * sizeof *g->edge);
    g->first = (size_t *)calloc(g->nodes + 1, sizeof *g->first);
    g->mark = (size_t *)calloc(g->nodes, sizeof *g->mark);
    g->stack = (size_t *)malloc(g->nodes * sizeof *g->stack);
    if (!g->node || !g->from || !g->to || !g->data || !g->by_handle || !g->edge || !g->first || !g->mark || !g->stack)
        return cudaErrorMemoryAllocation;
    error = cudaGraphGetNodes(graph, g->node, &g->nodes);
    if (!error)
        error = cudaGraphGetEdges(graph, g->from, g->to, g->data, &g->edges);
    if (error)
        return error;
    for (size_t n = 0; n < g->nodes; n++) {
        g->by_handle[n].handle = g->node[n];
        g->by_handle[n].number = n;
    }
    qsort(g->by_handle, g->nodes, sizeof *g->by_handle, compare_handles);
    g->sorted = true;
    for (size_t e = 0; e < g->edges; e++) {
        g->edge[e].from = number_of(g, g->from[e]);
        g->edge[e].to = number_of(g, g->to[e]);
        g->edge[e].data = g->data[e];
        g->first[g->edge[e].to + 1]++;
        g->sorted &= g->edge[e].from < g->edge[e].to;
    }
    for (size_t n = 0; n < g->nodes; n++)
        g->first[n + 1] += g->first[n];
    qsort(g->edge, g->edges, sizeof *g->edge, compare_ends);
    return cudaSuccess;
}

/* Behind such an edge a kernel may start before its predecessor has ended. */
static bool starts_early(const graph_edge *edge)
{
    return edge->data.type == cudaGraphDependencyTypeProgrammatic &&
           edge->data.from_port == cudaGraphKernelNodePortProgrammatic;
}

/* Marks the predecessors of `node` from number `low` on, and puts those that are new on the stack. An edge from the
 * start of a kernel (cudaGraphKernelNodePortLaunchCompletion) says nothing of its end. */
static size_t mark_before(graph_edges *g, size_t node, size_t low, size_t stamp, size_t depth)
{
    for (size_t e = g->first[node]; e < g->first[node + 1]; e++) {
        const size_t from = g->edge[e].from;

        if (from < low || g->mark[from] == stamp ||
            g->edge[e].data.from_port == cudaGraphKernelNodePortLaunchCompletion)
            continue;
        g->mark[from] = stamp;
        g->stack[depth++] = from;
    }
    return depth;
}

/* Lists what changes of the edges into `node`: those from a node before another predecessor are implied; of the other
 * programmatic ones that of the last predecessor stays as it is. */
static void order_join(graph_edges *g, size_t node)
{
    const graph_edge *const begin = g->edge + g->first[node], *const end = g->edge + g->first[node + 1];
    const size_t stamp = node + 1;
    size_t low = g->nodes, last = 0, depth = 0;
    int early = 0;

    for (const graph_edge *e = begin; e < end; e++)
        if (starts_early(e)) {
            low = e->from < low ? e->from : low;
            early++;
        }
    if (early < 2)
        return;
    low = g->sorted ? low : 0;
    for (const graph_edge *e = begin; e < end; e++)
        if (e->data.from_port != cudaGraphKernelNodePortLaunchCompletion)
            depth = mark_before(g, e->from, low, stamp, depth);
    while (depth)
        depth = mark_before(g, g->stack[depth - 1], low, stamp, depth - 1);
    for (const graph_edge *e = begin; e < end; e++)
        if (starts_early(e) && g->mark[e->from] != stamp)
            last = e->from > last ? e->from : last;
    for (const graph_edge *e = begin; e < end; e++) {
        const bool implied = g->mark[e->from] == stamp;
        size_t at;

        if (!starts_early(e) || (!implied && e->from == last))
            continue;
        at = implied ? g->edges - ++g->implied : g->full++;
        g->from[at] = g->node[e->from];
        g->to[at] = g->node[e->to];
        g->data[at] = e->data;
    }
}

static cudaError_t change_edges(cudaGraph_t graph, const graph_edges *g)
{
    const size_t at = g->edges - g->implied;
    cudaError_t error = cudaSuccess;

    if (g->implied)
        error = cudaGraphRemoveDependencies(graph, g->from + at, g->to + at, g->data + at, g->implied);
    if (!error && g->full)
        error = cudaGraphRemoveDependencies(graph, g->from, g->to, g->data, g->full);
    if (!error && g->full)
        error = cudaGraphAddDependencies(graph, g->from, g->to, NULL, g->full);
    return error;
}

/* Of several programmatic edges into a kernel only one lets it start early, and not that of the stream where it was
 * launched: a kernel that joins a branch would start when both have ended. So the branch gets a full edge, and edges
 * that others imply go. A token of DeepSeek-V4-Flash: see docs/lessons.md. */
static cudaError_t order_edges(cudaGraph_t graph)
{
    graph_edges g = {};
    cudaError_t error = cudaGraphGetNodes(graph, NULL, &g.nodes);

    if (error || g.nodes < 3) /* too few for a join; an empty graph has no edges to ask for */
        return error;
    error = cudaGraphGetEdges(graph, NULL, NULL, NULL, &g.edges);
    if (error == cudaErrorCallRequiresNewerDriver) { /* one of before CUDA 12.3, whose edges have no kinds */
        cudaGetLastError();
        return cudaSuccess;
    }
    if (error || g.edges < 2)
        return error;
    error = read_edges(graph, &g);
    for (size_t n = 0; n < g.nodes && !error; n++)
        order_join(&g, n);
    if (!error)
        error = change_edges(graph, &g);
    free(g.node);
    free(g.from);
    free(g.to);
    free(g.data);
    free(g.by_handle);
    free(g.edge);
    free(g.first);
    free(g.mark);
    free(g.stack);
    return error;
}
#else
static cudaError_t order_edges(cudaGraph_t) /* edges have no kinds before CUDA 12.3 */
{
    return cudaSuccess;
}
#endif

#endif

/* graph.cuh: order_edges, which device.cu calls before it instantiates a captured graph. */
#ifndef RIDGE_CUDA_GRAPH_CUH
#define RIDGE_CUDA_GRAPH_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#if CUDART_VERSION >= 13000
typedef struct graph_edges {
    cudaGraphNode_t *node, *from, *to;
    cudaGraphEdgeData *data;
    size_t nodes, edges;
    uint8_t *before; /* [node][node]: is an ancestor */
} graph_edges;

static size_t number_of(const graph_edges *g, cudaGraphNode_t node)
{
    size_t i = 0;

    while (i < g->nodes && g->node[i] != node)
        i++;
    return i;
}

/* Of the programmatic edges into a node, in[0 .. count): removes those that others imply; but for the one from the node
 * that was captured last, the rest become full ones. */
static cudaError_t order_join(cudaGraph_t graph, const graph_edges *g, size_t *in, int count)
{
    size_t last = 0;
    cudaError_t error = cudaSuccess;

    for (int i = 0; i < count; i++) {
        const size_t from = number_of(g, g->from[in[i]]);

        last = from > last ? from : last;
    }
    for (int i = 0; i < count && !error; i++) {
        cudaGraphNode_t *const from = &g->from[in[i]], *const to = &g->to[in[i]];
        const size_t own = number_of(g, *from);
        const cudaGraphEdgeData full = {};
        bool implied = false;

        if (own == last)
            continue;
        for (int k = 0; k < count; k++)
            implied |= g->before[number_of(g, g->from[in[k]]) * g->nodes + own];
        error = cudaGraphRemoveDependencies(graph, from, to, &g->data[in[i]], 1);
        if (!error && !implied)
            error = cudaGraphAddDependencies(graph, from, to, &full, 1);
    }
    return error;
}

/* Of several programmatic edges into a kernel only one lets it start early, and not that of the stream where it was
 * launched: a kernel that joins a branch would start when both have ended. So the branch gets a full edge, and edges
 * that others imply go. A token of DeepSeek-V4-Flash: see docs/lessons.md. */
static cudaError_t order_edges(cudaGraph_t graph)
{
    enum { MOST = 16 };
    graph_edges g = {};
    cudaError_t error = cudaGraphGetNodes(graph, NULL, &g.nodes);

    if (error || g.nodes < 3) /* too few for a join; an empty graph has no edges to ask for */
        return error;
    error = cudaGraphGetEdges(graph, NULL, NULL, NULL, &g.edges);
    if (error || g.edges < g.nodes) /* chains */
        return error;
    g.node = (cudaGraphNode_t *)malloc(g.nodes * sizeof *g.node);
    g.from = (cudaGraphNode_t *)malloc(g.edges * sizeof *g.from);
    g.to = (cudaGraphNode_t *)malloc(g.edges * sizeof *g.to);
    g.data = (cudaGraphEdgeData *)malloc(g.edges * sizeof *g.data);
    g.before = (uint8_t *)calloc(g.nodes, g.nodes);
    if (!g.node || !g.from || !g.to || !g.data || !g.before)
        error = cudaErrorMemoryAllocation;
    if (!error)
        error = cudaGraphGetNodes(graph, g.node, &g.nodes);
    if (!error)
        error = cudaGraphGetEdges(graph, g.from, g.to, g.data, &g.edges);
    for (size_t n = 0; n < g.nodes && !error; n++) { /* as captured: edges lead to later nodes */
        size_t in[MOST];                             /* further ones stay as they are */
        int count = 0;

        for (size_t e = 0; e < g.edges; e++) {
            const size_t from = g.to[e] == g.node[n] ? number_of(&g, g.from[e]) : n;

            if (from < n) {
                if (g.data[e].type == cudaGraphDependencyTypeProgrammatic && count < MOST)
                    in[count++] = e;
                g.before[n * g.nodes + from] = 1;
                for (size_t k = 0; k < from; k++)
                    g.before[n * g.nodes + k] |= g.before[from * g.nodes + k];
            }
        }
        if (count > 1)
            error = order_join(graph, &g, in, count);
    }
    free(g.node);
    free(g.from);
    free(g.to);
    free(g.data);
    free(g.before);
    return error;
}
#else
static cudaError_t order_edges(cudaGraph_t)
{
    return cudaSuccess;
}
#endif

#endif

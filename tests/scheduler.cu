/* scheduler.cu: cuda/sm90/scheduler.cuh on a GPU: the work tiles of random groups, whose offsets lie in device memory,
 * by a static persistent grid and by the queue of clusters of two, against scheduler_check.h. Needs sm_90; without one
 * the exit status is 77, "skipped". */
#include "scheduler_check.h"

#define TRY(call)                                                                                \
    do {                                                                                         \
        cudaError_t error_ = (call);                                                             \
        if (error_ != cudaSuccess)                                                               \
            return fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)), EXIT_FAILURE; \
    } while (0)

enum { CLUSTERS = 8 };

typedef struct results {
    work_tile tile[2][CHECK_TILES]; /* by CTA of a cluster; the static grid uses the first */
    int count[2], counter;
} results;

static __device__ void add(results *r, int list, work_tile tile)
{
    const int at = atomicAdd(&r->count[list], 1);

    if (at < CHECK_TILES)
        r->tile[list][at] = tile;
}

static __global__ void run_static(scheduler s, results *r)
{
    work_tile tile;

    s.index = (int)blockIdx.x;
    while (scheduler_next(&s, &tile))
        add(r, 0, tile);
}

/* Thread 0 of a CTA is its producer, warp 1 a reader. The index after the last tile's ends everybody's loop. */
static __global__ void __cluster_dims__(2) run_queue(scheduler s, int tiles, results *r)
{
#if __CUDA_ARCH__ >= 900
    __shared__ scheduler_queue queue;
    const uint32_t rank = ptx_cluster_rank();
    int index = -1;

    if (threadIdx.x == 0) {
        queue_init<2>(&queue, 2);
        ptx_mbarrier_fence_init();
    }
    __syncwarp();
    ptx_cluster_sync();
    queue_state at = queue_begin(&queue);

    if (threadIdx.x == 0)
        while (index < tiles) {
            if (rank == 0)
                queue_broadcast<2>(&queue, &at, index = atomicAdd(&r->counter, 1));
            else
                index = queue_next_producer(&at);
        }
    else if (threadIdx.x >= 32)
        for (index = queue_next(&at); index < tiles; index = queue_next(&at)) {
            work_tile tile;

            if (scheduler_find(&s, index, &tile) && threadIdx.x == 32)
                add(r, (int)rank, tile);
        }
    __syncwarp();
    ptx_cluster_sync(); /* the CTAs write to each other's shared memory until here */
#endif
}

static bool is_right(const check_problem *p, const results *r, int lists)
{
    for (int i = 0; i < lists; i++)
        if (r->count[i] > CHECK_TILES || !check_tiles(p, r->tile[i], r->count[i]))
            return false;
    return true;
}

int main(void)
{
    static results host;
    cudaDeviceProp prop;
    uint64_t state = 22;
    int devices = 0, count;
    int32_t *offset;
    results *r;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices || cudaGetDeviceProperties(&prop, 0) != cudaSuccess ||
        prop.major < 9)
        return puts("no GPU of sm_90 or later: skipped"), 77;
    TRY(cudaMalloc(&offset, sizeof(int32_t) * (CHECK_GROUPS + 1)));
    TRY(cudaMalloc(&r, sizeof *r));
    for (int i = 0; i < CHECK_PROBLEMS; i++) {
        check_problem p = check_problem_at(&state);

        p.s.offset = offset;
        TRY(cudaMemcpy(offset, p.offset, sizeof p.offset, cudaMemcpyHostToDevice));
        TRY(cudaMemset(r, 0, sizeof *r));
        run_static<<<p.workers, 1>>>(p.s, r);
        TRY(cudaMemcpy(&host, r, sizeof host, cudaMemcpyDeviceToHost));
        if (!is_right(&p, &host, 1))
            return fprintf(stderr, "problem %d, static\n", i), EXIT_FAILURE;
        count = host.count[0];
        TRY(cudaMemset(r, 0, sizeof *r));
        p.s.index = p.s.group = p.s.first = 0;
        run_queue<<<2 * CLUSTERS, 64>>>(p.s, count, r);
        TRY(cudaMemcpy(&host, r, sizeof host, cudaMemcpyDeviceToHost));
        if (!is_right(&p, &host, 2))
            return fprintf(stderr, "problem %d, queue\n", i), EXIT_FAILURE;
    }
    printf("%d problems: every tile once\n", CHECK_PROBLEMS);
    return EXIT_SUCCESS;
}

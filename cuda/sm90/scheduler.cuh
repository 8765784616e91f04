/* scheduler.cuh: which work tiles a worker (a CTA, or a cluster) computes, and in which order.
 *
 *     raster_tile      tile index -> tile coordinates, in bundles of rows: tiles that run at once share L2
 *     stream_k_at      the work units of a worker: whole tiles, then an equal share of the last, cut along k
 *     scheduler_next   the work tiles of a worker over groups, whose offsets only the device knows
 *     queue_*          dynamic: an atomic counter gives the indices, an mbarrier ring broadcasts them in a cluster
 *
 * All but the queue is plain C on integers: tests/test_scheduler.c runs it on the host, tests/scheduler.cu on a GPU. */
#ifndef RIDGE_SCHEDULER_CUH
#define RIDGE_SCHEDULER_CUH

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define SCHEDULER_FN static __host__ __device__ __forceinline__
#else
#define SCHEDULER_FN static inline
#endif

/* ----------------------------------------------------------------------------------------------------------- raster */

/* tiles_m x tiles_n tiles. A bundle is `bundle` rows of tiles (the last may have fewer) by all columns. The tiles of a
 * bundle are counted column by column, so that neighbours in the count share columns of B, and bundles one after
 * another. by_*: scheduler_reciprocal of the tiles of a bundle, of its rows, of the rows of the last one; 0 = divide.
 */
typedef struct raster {
    int tiles_m, tiles_n, bundle;
    uint32_t by_bundle, by_rows, by_last;
} raster;

SCHEDULER_FN uint32_t scheduler_reciprocal(int d)
{
    return 0xffffffffu / (uint32_t)(d > 1 ? d : 1);
}

/* n / d and n % d for n < 2^31. With the reciprocal at hand a tenth of the time of the division. */
SCHEDULER_FN int scheduler_divide(int n, int d, uint32_t reciprocal, int *rest)
{
    int q;

    if (!reciprocal) {
        *rest = n % d;
        return n / d;
    }
    q = (int)((uint64_t)(uint32_t)n * reciprocal >> 32); /* the quotient or one less */
    *rest = n - q * d;
    if (*rest >= d) {
        *rest -= d;
        q++;
    }
    return q;
}

SCHEDULER_FN void raster_tile(raster r, int index, int *tile_m, int *tile_n)
{
    int in_bundle;
    const int bundle = scheduler_divide(index, r.bundle * r.tiles_n, r.by_bundle, &in_bundle);
    const int left = r.tiles_m - bundle * r.bundle, rows = left < r.bundle ? left : r.bundle;

    *tile_n = scheduler_divide(in_bundle, rows, rows < r.bundle ? r.by_last : r.by_rows, &in_bundle);
    *tile_m = bundle * r.bundle + in_bundle;
}

/* --------------------------------------------------------------------------------------------------------- stream-K */

/* Where a worker's share of the stream-K tiles begins: at block `block` of k of tile `tile`, counted from the first
 * stream-K tile. */
typedef struct stream_k_cut {
    int tile, block;
} stream_k_cut;

/* Blocks begin .. end - 1 of k of a tile. end = 0: the worker has no more. */
typedef struct stream_k_unit {
    int tile, begin, end;
} stream_k_unit;

/* `tiles` stream-K tiles, laid end to end, cut into `workers` equal shares: where that of `worker` begins. A cut less
 * than two blocks of k from a tile's end moves there. */
SCHEDULER_FN stream_k_cut stream_k_cut_at(int64_t tiles, int blocks, int64_t worker, int64_t workers)
{
    enum { NEAR = 2 };
    const int64_t at = tiles * blocks * worker / workers, inside = at % blocks;
    const int64_t cut = inside < NEAR ? at - inside : blocks - inside < NEAR ? at + blocks - inside : at;
    stream_k_cut c;

    c.tile = (int)(cut / blocks);
    c.block = (int)(cut % blocks);
    return c;
}

/* Unit `number` of a worker. First its data-parallel tiles: worker, worker + workers, .. below data_parallel. Then its
 * share, [from, to) of the stream-K tiles: the head of the tile that it shares with the next worker, so that this one
 * need not wait long for the partial sums; the tiles it has whole; and last the tail of the tile that it shares with
 * the worker before. A share is at least one tile long, so that two workers at most share a tile. */
SCHEDULER_FN stream_k_unit stream_k_at(int number, int worker, int workers, int data_parallel, int blocks,
                                       stream_k_cut from, stream_k_cut to)
{
    const int tail = from.block, head = to.block, own = from.tile + (tail > 0), own_end = to.tile;
    const int rounds = (data_parallel - worker + workers - 1) / workers, after = number - rounds - (head > 0);
    stream_k_unit unit = {0, 0, blocks};

    if (number < rounds) {
        unit.tile = worker + number * workers;
    } else if (after < 0) {
        unit.tile = data_parallel + own_end;
        unit.end = head;
    } else if (after < own_end - own) {
        unit.tile = data_parallel + own + after;
    } else if (tail && after == own_end - own) {
        unit.tile = data_parallel + own - 1;
        unit.begin = tail;
    } else {
        unit.end = 0;
    }
    return unit;
}

/* ----------------------------------------------------------------------------------------------------------- groups */

/* D_g = A_g B_g^T for each group g. Grouped m: A and D have the rows offset[g] to offset[g + 1] of one matrix each, B
 * is a matrix a group. Grouped k: A and B have those elements of k, D is a matrix a group; one without any k has all
 * its tiles too, for D is then zero. */
typedef enum scheduler_grouping { SCHEDULER_DENSE = 0, SCHEDULER_GROUPED_M, SCHEDULER_GROUPED_K } scheduler_grouping;

typedef struct work_tile {
    int group;
    int row, row_end; /* the first row, and where the rows end that D has of this group */
    int col;
    int k, k_end; /* elements of k */
} work_tile;

/* The state of a worker, which begins at index = worker, step = workers, group = first = 0. */
typedef struct scheduler {
    scheduler_grouping grouping;
    const int32_t *offset;         /* [groups + 1], ascending, in device memory; unused when dense */
    int groups;                    /* 1 when dense */
    int m, n, k;                   /* the one that is grouped is unused */
    int block_m, block_n, bundle;  /* bundle: rows of tiles, see raster */
    int index, step, group, first; /* first: index of the first tile of `group` */
} scheduler;

/* The tile of an index, which is not below that of the call before; false beyond the last tile. */
SCHEDULER_FN bool scheduler_find(scheduler *s, int index, work_tile *tile)
{
    const int tiles_n = (s->n + s->block_n - 1) / s->block_n;

    for (; s->group < s->groups; s->group++) {
        const int from = s->grouping == SCHEDULER_DENSE ? 0 : s->offset[s->group];
        const int to = s->grouping == SCHEDULER_DENSE ? 0 : s->offset[s->group + 1];
        const int first_row = s->grouping == SCHEDULER_GROUPED_M ? from : 0;
        const int row_end = s->grouping == SCHEDULER_GROUPED_M ? to : s->m;
        const int tiles_m = (row_end - first_row + s->block_m - 1) / s->block_m;
        const raster r = {tiles_m, tiles_n, s->bundle, 0, 0, 0};
        int tile_m, tile_n;

        if (index - s->first >= tiles_m * tiles_n) {
            s->first += tiles_m * tiles_n;
            continue;
        }
        raster_tile(r, index - s->first, &tile_m, &tile_n);
        tile->group = s->group;
        tile->row = first_row + tile_m * s->block_m;
        tile->row_end = row_end;
        tile->col = tile_n * s->block_n;
        tile->k = s->grouping == SCHEDULER_GROUPED_K ? from : 0;
        tile->k_end = s->grouping == SCHEDULER_GROUPED_K ? to : s->k;
        return true;
    }
    return false;
}

/* The worker's next tile; false: it has no more. */
SCHEDULER_FN bool scheduler_next(scheduler *s, work_tile *tile)
{
    const int index = s->index;

    s->index += s->step;
    return scheduler_find(s, index, tile);
}

/* ------------------------------------------------------------------------------------------------------------ queue */

#ifdef __CUDACC__
#include "cuda/sm90/pipeline.cuh"

enum { QUEUE_STAGES = 4 };

/* In shared memory of every CTA of the cluster. The producer thread of CTA 0 takes an index from the counter and writes
 * it to all CTAs; everybody else reads it. full[s]: the index of stage s is there. empty[s] of CTA 0: all readers of
 * the cluster have read stage s. */
typedef struct scheduler_queue {
    int2 index[QUEUE_STAGES];
    uint64_t full[QUEUE_STAGES], empty[QUEUE_STAGES];
} scheduler_queue;

/* Shared-memory addresses of index[0], of full[0], and of empty[0] in CTA 0; indices passed so far. */
typedef struct queue_state {
    uint32_t index, full, empty, n;
} queue_state;

#if __CUDA_ARCH__ >= 900

/* By one thread of each CTA, before ptx_mbarrier_fence_init and a cluster barrier. readers: warps of all CTAs that call
 * queue_next. */
template <int CLUSTER> static __device__ __forceinline__ void queue_init(scheduler_queue *q, int readers)
{
    for (int i = 0; i < QUEUE_STAGES; i++) {
        ptx_mbarrier_init(ptx_shared(&q->full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&q->empty[i]), (uint32_t)(readers + CLUSTER - 1)); /* the other producers */
    }
}

static __device__ __forceinline__ queue_state queue_begin(scheduler_queue *q)
{
    return {ptx_shared(&q->index[0]), ptx_shared(&q->full[0]), ptx_map(ptx_shared(&q->empty[0]), 0), 0};
}

/* The producer thread of CTA 0: an index to all CTAs. */
template <int CLUSTER>
static __device__ __forceinline__ void queue_broadcast(scheduler_queue *q, queue_state *at, int index)
{
    const pipeline_state stage = pipeline_producer_at<QUEUE_STAGES>(at->n);
    const uint32_t byte = stage.stage * 8;

    pipeline_acquire(ptx_shared(&q->empty[0]), stage);
    pipeline_expect(at->full, stage.stage, 8);
#pragma unroll
    for (int i = 0; i < CLUSTER; i++)
        ptx_store_async2(ptx_map(at->index + byte, (uint32_t)i), __int_as_float(index), 0.0f,
                         ptx_map(at->full + byte, (uint32_t)i));
    at->n++;
}

static __device__ __forceinline__ int queue_read(queue_state *at, bool warp)
{
    const pipeline_state stage = pipeline_at<QUEUE_STAGES>(at->n);

    pipeline_wait(at->full, stage);
    const int index = (int)ptx_load_shared1(at->index + stage.stage * 8);

    if (warp)
        __syncwarp(); /* all lanes have read it before lane 0 releases the stage */
    /* The arrive could overtake the load (await.cuh), and the next index lies there then. So it depends on the index,
     * which is never below 0. */
    if (index >= 0 && (!warp || threadIdx.x % 32 == 0))
        pipeline_release_cluster(at->empty, stage.stage);
    at->n++;
    return index;
}

/* The next index, for all lanes of a warp. */
static __device__ __forceinline__ int queue_next(queue_state *at)
{
    return queue_read(at, true);
}

/* The same for the one producer thread of another CTA than 0, which also announces the bytes of the broadcast. */
static __device__ __forceinline__ int queue_next_producer(queue_state *at)
{
    pipeline_expect(at->full, at->n % QUEUE_STAGES, 8);
    return queue_read(at, false);
}

#endif
#endif

#endif

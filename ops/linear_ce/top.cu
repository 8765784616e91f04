/* top.cu: the top-k classes of rows on CUDA (top.cuh), and draws, from blocks of f32 logits; and the outputs from the
 * lists, which on Hopper the epilogue of the logits fills. */
#include "top.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, LISTED = 2048 };

/* A warp a row: the classes of a block, CE_TOP_STEP at a time, to the list of part 0. */
static __global__ void __launch_bounds__(THREADS) top_block(const ce_block b)
{
    ptx_grid_dependency_wait();
    const ce_params &p = b.p;
    const int64_t in = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = b.begin + in;
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;
    const int lane = threadIdx.x % 32;

    if (in >= b.rows || row >= p.totals->rows)
        return;
    uint64_t *entry = p.top + in * p.parts * CE_TOP_LIST;
    float least = CUDART_NAN_F;
    int count = p.top_count[row * p.parts];

    if (count >= p.top_k)
        count = top_cut<true>(entry, count, p.top_k, CE_TOP_STEP, &least);
    for (int64_t first = 0; first < b.count; first += CE_TOP_STEP) {
#pragma unroll
        for (int i = 0; i < CE_TOP_STEP / 32; i++) {
            const int64_t at = first + i * 32 + lane, v = b.first + at;
            const bool here = at < b.count;
            const float z = here ? ce_logit(p, b.z[in * b.ld + at] + ce_bias(p, v), cap_inverse, cool) : -CUDART_INF_F;
            const bool may = here && top_may(z, least);
            const uint32_t mask = __ballot_sync(~0u, may);

            if (may)
                entry[count + __popc(mask & ((1u << lane) - 1))] = top_entry(z, (int32_t)v);
            count += __popc(mask);
        }
        if (count > CE_TOP_LIST - CE_TOP_STEP)
            count = top_cut<true>(entry, count, p.top_k, CE_TOP_STEP, &least);
    }
    if (lane == 0)
        p.top_count[row * p.parts] = count;
}

/* A warp a row: the classes of a block to its draw, a lane four at a time. */
static __global__ void __launch_bounds__(THREADS) draw_block(const ce_block b)
{
    ptx_grid_dependency_wait();
    const ce_params &p = b.p;
    const int64_t in = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = b.begin + in;
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;

    if (in >= b.rows || row >= p.totals->rows)
        return;
    const int64_t token = p.list[row];
    uint64_t best = p.draw[row];

    for (int64_t unit = threadIdx.x % 32; unit / 4 * 16 < b.count; unit += 32) {
        const int64_t from = unit / 4 * 16 + unit % 4 * 2;
        uint32_t word[4];

        ridge_draw_words((uint64_t)p.seed[token], (uint64_t)p.counter[token], (p.offset + b.first + from) / 16,
                         (int)(unit % 4), word);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t at = from + 8 * (i / 2) + i % 2, v = b.first + at;

            if (at >= b.count)
                continue;
            const float z = ce_logit(p, b.z[in * b.ld + at] + ce_bias(p, v), cap_inverse, cool);

            if (draw_may(z, word[i], draw_bound(best)))
                best = max(best, top_entry(ridge_draw_score(z, word[i]), (int32_t)v));
        }
    }
    for (int step = 16; step > 0; step /= 2)
        best = max(best, __shfl_xor_sync(~0u, best, step));
    if (threadIdx.x % 32 == 0)
        p.draw[row] = best;
}

/* What a block knows of its row: those of its entries that may be among the best, and how many they are. */
typedef struct finish_smem {
    uint64_t list[LISTED];
    double log_sum, max;
    float least;
    int rank[2], listed;
} finish_smem;

/* By a block: the sum of all threads' `mine`. turn: every other call's. */
static __device__ __forceinline__ int sum_of(finish_smem *s, int mine, int turn)
{
    mine = (int)__reduce_add_sync(~0u, (uint32_t)mine);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&s->rank[turn], mine);
    __syncthreads(); /* orders the sum before its readers, */
    const int rank = s->rank[turn];
    if (threadIdx.x == 0)
        s->rank[!turn] = 0;
    __syncthreads(); /* and the reset before the next sum */
    return rank;
}

/* How many of a row's entries are `from` or better. */
static __device__ __forceinline__ int rank_of(const ce_params &p, finish_smem *s, const uint64_t *entry,
                                              const int32_t *count, uint64_t from, int turn)
{
    int mine = 0;

    for (int part = threadIdx.x / 32; part < p.parts; part += WARPS)
        for (int i = threadIdx.x % 32; i < count[part]; i += 32)
            mine += entry[part * CE_TOP_LIST + i] >= from;
    return sum_of(s, mine, turn);
}

/* The k-th best of a row's entries. */
static __device__ __forceinline__ uint64_t kth_of(const ce_params &p, finish_smem *s, const uint64_t *entry,
                                                  const int32_t *count)
{
    uint64_t low = 0, high = ~UINT64_C(0); /* no entry is that large */

    for (int turn = 0; high - low > 1; turn ^= 1) {
        const uint64_t middle = low + (high - low) / 2;
        const int above = rank_of(p, s, entry, count, middle, turn);

        if (above >= p.top_k)
            low = middle;
        else
            high = middle;
        if (above == p.top_k)
            break;
    }
    return low;
}

/* By a block: a row's entries that are `from` or better and may be among its best to the list; all of them count. */
static __device__ __forceinline__ void list_row(const ce_params &p, finish_smem *s, const uint64_t *entry,
                                                const int32_t *count, uint64_t from)
{
    const float least = s->least;

    for (int part = threadIdx.x / 32; part < p.parts; part += WARPS)
        for (int i = threadIdx.x % 32; i < count[part]; i += 32) {
            const uint64_t e = entry[part * CE_TOP_LIST + i];

            if (e < from || !top_may(top_value(e), least))
                continue;
            const int to = atomicAdd(&s->listed, 1);

            if (to < LISTED)
                s->list[to] = e;
        }
    __syncthreads();
}

/* A block a listed row: the k best of all parts, in order. What the bins say leaves few entries, as a rule. */
static __global__ void __launch_bounds__(THREADS) top_finish(const ce_top t)
{
    ptx_grid_dependency_wait();
    __shared__ finish_smem s;
    const ce_params &p = t.p;
    const int64_t row = t.begin + blockIdx.x;
    const bool slice = p.offset != 0 || p.total != p.vocab;

    if (row >= p.totals->rows || (t.if_redo && !p.totals->redo))
        return;
    const uint64_t *entry = p.top + (int64_t)blockIdx.x * p.parts * CE_TOP_LIST;
    const int32_t *count = p.top_count + row * p.parts;
    const int64_t token = p.list[row];

    if (threadIdx.x < 32) {
        const ce_sum sum = ce_row_sum<32>(p, row);

        if (threadIdx.x == 0) {
            s.log_sum = log(sum.sum);
            s.max = (double)sum.max;
            s.rank[0] = s.rank[1] = s.listed = 0;
        }
    } else if (threadIdx.x < 64) {
        s.least = t.bins ? top_known_by_warp(p, row) : CUDART_NAN_F; /* all lanes write the same */
    }
    __syncthreads();
    list_row(p, &s, entry, count, 0);
    if (s.listed > LISTED) {
        const uint64_t from = kth_of(p, &s, entry, count);

        if (threadIdx.x == 0)
            s.listed = 0;
        __syncthreads();
        list_row(p, &s, entry, count, from);
    }
    const int listed = s.listed;

    if (listed < p.top_k && threadIdx.x == 0)
        p.totals->redo = 1; /* any number of rows may write it */
    if (t.bins && threadIdx.x < CE_TOP_BINS)
        p.top_bins[row * CE_TOP_BINS + threadIdx.x] = 0; /* for the second pass, which begins with everything */
    if (t.bins && threadIdx.x == 0)
        p.top_least[row] = CUDART_NAN_F;
    for (int i = threadIdx.x; i < listed; i += THREADS) {
        const uint64_t own = s.list[i];
        const double z = (double)top_value(own);
        double value = slice ? z : -(s.log_sum + (s.max - z));
        int at = 0;

        for (int j = 0; j < listed && at < p.top_k; j++)
            at += s.list[j] > own;
        if (at >= p.top_k)
            continue;
        value = !slice && value > 0 ? 0 : value;
        p.top_id[token * p.top_id_stride + at] = p.offset + top_class(own);
        p.top_logprob[token * p.top_stride + at] = __uint_as_float(num_canonical_f32((float)value));
    }
}

/* Tokens that are not listed, a warp each. */
static __global__ void __launch_bounds__(THREADS) top_ignored(const ce_params p)
{
    ptx_grid_dependency_wait();
    const int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    if (token >= p.tokens || p.row_of[token] >= 0)
        return;
    for (int k = threadIdx.x % 32; k < p.top_k; k += 32) {
        p.top_id[token * p.top_id_stride + k] = -1;
        p.top_logprob[token * p.top_stride + k] = 0.0f;
    }
}

/* ------------------------------------------------------------------------------------------------------------- host */

static const void *const functions[4] = {(const void *)top_block, (const void *)top_finish, (const void *)top_ignored,
                                         (const void *)draw_block};

ridge_status ce_top_prepare(const ridge_device *device)
{
    return host_load(device, functions, 4, "linear_ce: loading kernels");
}

static unsigned blocks_of(int64_t rows)
{
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

ridge_status ce_top_block(const ridge_device *device, const char *name, ce_block *b, void *stream)
{
    ridge_status status = RIDGE_OK;

    if (b->p.top_k && b->rows > 0)
        status = host_launch(device, name, functions[0], dim3(blocks_of(b->rows)), THREADS, b, stream);
    if (!status && b->p.draw && b->rows > 0)
        status = host_launch(device, name, functions[3], dim3(blocks_of(b->rows)), THREADS, b, stream);
    return status;
}

ridge_status ce_top_finish(const ridge_device *device, const char *name, ce_top *t, void *stream)
{
    ridge_status status;

    if (!t->p.top_k || t->rows == 0)
        return RIDGE_OK;
    status = host_launch(device, name, functions[1], dim3((unsigned)t->rows), THREADS, t, stream);
    if (status || t->begin + t->rows < t->p.tokens)
        return status;
    return host_launch(device, name, functions[2], dim3(blocks_of(t->p.tokens)), THREADS, &t->p, stream);
}

/* generate.cu: embed and sample on CUDA. embed: a block of threads a token. sample: a block a row; the candidates that
 * top_k and top_p leave are found by their keys (src/math/sample.h) a byte at a time, from the highest on; each pass
 * reads the row from L2, a thread FLIGHT logits at a time. Where top_k leaves few tokens, they are gathered in shared
 * memory as soon as so many bytes of the keys are known that at most NARROW tokens are left, and what follows goes
 * through those. Sums are integers: atomics in any order give the same bits. */
#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "ops/blocks/value.h"
#include "src/math/sample.h"
#include "src/util.h"

enum { EMBED_THREADS = 256, THREADS = 1024, BINS = 256, FLIGHT = 8, NARROW = THREADS };
enum { CLUSTER = 8 }; /* CTAs that look for the largest logit of a row */

static __device__ __forceinline__ float element(int32_t dtype, const void *from, int64_t i)
{
    return dtype == RIDGE_F32    ? num_load<RIDGE_F32>(from, i)
           : dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(from, i)
                                 : num_load<RIDGE_F16>(from, i);
}

static __device__ __forceinline__ float weight(const embed_args &p, int64_t id, int64_t j)
{
    if (p.table_dtype == RIDGE_U8) {
        const uint16_t *block = (const uint16_t *)(p.table + id * p.stride + j / 32 * 34);
        const uint8_t *bytes = (const uint8_t *)block;

        return ptx_f32_from_f16((uint16_t)(bytes[0] | bytes[1] << 8)) * (float)(int8_t)bytes[2 + j % 32];
    }
    if (p.table_dtype == RIDGE_I8)
        return num_load<RIDGE_F16>(p.scales, id * p.scales_stride + j / 32) *
               (float)((const int8_t *)p.table)[id * p.stride + j];
    return element(p.table_dtype, p.table, id * p.stride + j);
}

static __device__ __forceinline__ void embed_store(const embed_args &p, int64_t at, float v)
{
    if (p.out_dtype == RIDGE_F32)
        num_store<RIDGE_F32>(p.out, at, v);
    else if (p.out_dtype == RIDGE_BF16)
        num_store<RIDGE_BF16>(p.out, at, v);
    else
        num_store<RIDGE_F16>(p.out, at, v);
}

static __global__ void __launch_bounds__(EMBED_THREADS) embed_rows(const __grid_constant__ embed_args p)
{
    const int64_t t = blockIdx.x;
    int64_t id;
    bool known;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    id = p.ids64 ? ((const int64_t *)p.ids)[t] : ((const int32_t *)p.ids)[t];
    known = id >= 0 && id < p.vocab;
    if (known && p.table_dtype >= RIDGE_Q4_0) {
        const uint8_t *tile = (const uint8_t *)p.table + id / BLOCK_ROWS * p.stride * 16;

#pragma unroll 1
        for (int64_t j = threadIdx.x; j < p.cols; j += EMBED_THREADS)
            embed_store(p, t * p.out_stride + j,
                        block_value((uint32_t)p.table_dtype, tile, p.cols, (int)(id % BLOCK_ROWS), j) * p.scale);
        return;
    }
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.cols; j += EMBED_THREADS)
        embed_store(p, t * p.out_stride + j, known ? weight(p, id, j) * p.scale : __uint_as_float(0x7fc00000u));
}

/* ---------------------------------------------------------------------------------------------------------- sample */

/* Tokens that are left: those with a larger key, and the first `equal` of those with this one. */
typedef struct sample_cut {
    uint32_t key;
    uint32_t equal;
} sample_cut;

typedef struct sample_shared {
    unsigned long long sum[BINS];
    uint32_t count[BINS];
    unsigned long long warp[32], above;
    sample_cut cut;
    int32_t reached, gathered;
    int32_t found[NARROW], id[NARROW]; /* in any order; by number */
    float found_logit[NARROW], logit[NARROW];
} sample_shared;

/* Calls each(i, logit of i, whether there is one) for all tokens; a warp's lanes call it together. */
template <class each_logit>
static __device__ __forceinline__ void for_logits(const float *logits, int64_t n, each_logit each)
{
    for (int64_t base = threadIdx.x; base - threadIdx.x < n; base += FLIGHT * THREADS) {
        float logit[FLIGHT];

#pragma unroll
        for (int k = 0; k < FLIGHT; k++)
            logit[k] = base + k * THREADS < n ? logits[base + k * THREADS] : 0.0f;
#pragma unroll
        for (int k = 0; k < FLIGHT; k++)
            each(base + k * THREADS, logit[k], base + k * THREADS < n);
    }
}

/* The sum over the block in every thread, *before: that of the threads before this one. */
static __device__ uint64_t scan(sample_shared *s, uint64_t v, uint64_t *before)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t sum = v, all = 0;

    for (int d = 1; d < 32; d *= 2) {
        const uint64_t other = __shfl_up_sync(~0u, sum, d);

        sum += lane >= d ? other : 0;
    }
    __syncthreads(); /* what a preceding scan left is read */
    if (lane == 31)
        s->warp[warp] = sum;
    __syncthreads(); /* all warps' sums are written before they are read */
    *before = sum - v;
    for (int i = 0; i < THREADS / 32; i++) {
        *before += i < warp ? s->warp[i] : 0;
        all += s->warp[i];
    }
    return all;
}

static __device__ __forceinline__ uint64_t measure(bool by_weight, float logit, float largest)
{
    return by_weight ? ridge_sample_weight(ridge_sample_ratio(logit, largest)) : 1;
}

/* One byte of the keys: the sums and counts of the tokens that agree with `c` above it. Counts of one warp go to a bin
 * together: the keys' first bytes are a few. */
static __device__ void fill_bins(sample_shared *s, const float *logits, int64_t n, float largest, bool by_weight,
                                 sample_cut from, uint32_t prefix, int shift)
{
    for_logits(logits, n, [&](int64_t, float logit, bool there) {
        const uint32_t key = ridge_sample_key(logit), bin = key >> shift & 255;
        const bool in = there && key > from.key && (uint64_t)key >> (shift + 8) == (uint64_t)prefix >> (shift + 8);
        const uint32_t mates = __match_any_sync(~0u, in ? bin : BINS);

        if (in && (int)threadIdx.x % 32 == __ffs((int)mates) - 1)
            atomicAdd(&s->count[bin], (uint32_t)__popc(mates));
        if (in && by_weight)
            atomicAdd(&s->sum[bin], (unsigned long long)measure(true, logit, largest));
    });
}

/* In which bin, from the highest on, the sum reaches `least`; by a warp, a lane eight bins. */
static __device__ void choose_bin(sample_shared *s, bool by_weight, uint64_t least, uint64_t from_sum, sample_cut from,
                                  int shift)
{
    const int lane = threadIdx.x % 32, highest = BINS - 1 - 8 * lane;
    const bool meets = (uint64_t)from.key >> (shift + 8) == (uint64_t)s->cut.key >> (shift + 8);
    uint64_t sum = 0, above, others;
    uint32_t hits;
    int bin = -1;

    if (lane == 0 && from.equal && meets) {
        s->count[from.key >> shift & 255] += from.equal;
        s->sum[from.key >> shift & 255] += from_sum;
    }
    __syncwarp(); /* it is added before the warp reads it */
    for (int i = 0; i < 8; i++)
        sum += by_weight ? s->sum[highest - i] : s->count[highest - i];
    others = sum;
    for (int d = 1; d < 32; d *= 2) {
        const uint64_t before = __shfl_up_sync(~0u, others, d);

        others += lane >= d ? before : 0;
    }
    above = s->above + others - sum;
    for (int i = 0; i < 8 && bin < 0; i++) {
        const uint64_t own = by_weight ? s->sum[highest - i] : s->count[highest - i];

        if (s->count[highest - i] && above + own >= least)
            bin = highest - i;
        else
            above += own;
    }
    hits = __ballot_sync(~0u, bin >= 0);
    if (hits ? lane == __ffs((int)hits) - 1 : lane == 31) { /* without a hit, what the last lane has is all of them */
        s->reached = bin >= 0;
        s->above = above;
        s->cut.key |= bin < 0 ? 0 : (uint32_t)bin << shift;
        s->cut.equal = bin < 0 ? 0 : s->count[bin];
    }
}

static __device__ __forceinline__ void empty_bins(sample_shared *s)
{
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        s->sum[i] = 0, s->count[i] = 0;
    __syncthreads(); /* bins are empty before they are filled */
}

/* Gathers tokens among which the `most` largest are, by number, in s->id and s->logit; 0: there are more than NARROW.
 * The row has more than `most`. */
static __device__ int narrow(sample_shared *s, const float *logits, int64_t n, int64_t most)
{
    const sample_cut all = {0, 0};
    uint32_t key = 0;
    int shift = 24, rank = 0;

    if (threadIdx.x == 0)
        s->above = 0, s->gathered = 0, s->cut = all;
    for (;; shift -= 8) {
        empty_bins(s);
        fill_bins(s, logits, n, 0.0f, false, all, key, shift);
        __syncthreads(); /* bins are full before they are walked */
        if (threadIdx.x < 32)
            choose_bin(s, false, (uint64_t)most, 0, all, shift);
        __syncthreads(); /* the choice is written before it is read */
        key = s->cut.key;
        if (s->above + s->cut.equal <= NARROW)
            break;
        if (shift == 0)
            return 0;
    }
    for_logits(logits, n, [&](int64_t i, float logit, bool there) {
        if (there && ridge_sample_key(logit) >> shift >= key >> shift) {
            const int at = atomicAdd(&s->gathered, 1);

            s->found[at] = (int32_t)i;
            s->found_logit[at] = logit;
        }
    });
    __syncthreads(); /* all are gathered before they are counted */
    if ((int)threadIdx.x < s->gathered) {
        for (int j = 0; j < s->gathered; j++)
            rank += s->found[j] < s->found[threadIdx.x];
        s->id[rank] = s->found[threadIdx.x];
        s->logit[rank] = s->found_logit[threadIdx.x];
    }
    __syncthreads(); /* they are in order before they are read */
    return s->gathered;
}

/* Cuts what `from` leaves after the first tokens whose sum reaches `least`; one is left at least. */
static __device__ sample_cut cut(sample_shared *s, const float *logits, int64_t n, float largest, bool by_weight,
                                 uint64_t least, sample_cut from)
{
    const uint64_t from_sum = measure(by_weight, ridge_sample_logit(from.key), largest) * from.equal;
    sample_cut c = {0, 0};
    uint64_t each, need;

    __syncthreads(); /* a preceding cut has been read */
    if (threadIdx.x == 0)
        s->above = 0, s->cut = c;
    for (int shift = 24; shift >= 0; shift -= 8) {
        empty_bins(s);
        fill_bins(s, logits, n, largest, by_weight, from, c.key, shift);
        __syncthreads(); /* bins are full before they are walked */
        if (threadIdx.x < 32)
            choose_bin(s, by_weight, least, from_sum, from, shift);
        __syncthreads(); /* the choice is written before it is read */
        c = s->cut;
        if (!s->reached) /* all of them are not enough */
            return from;
    }
    each = measure(by_weight, ridge_sample_logit(c.key), largest);
    need = each ? (least - s->above + each - 1) / each : 0;
    need = need ? need : 1;
    c.equal = need < c.equal ? (uint32_t)need : c.equal;
    return c;
}

/* This thread's part of a row, by number. */
typedef struct sample_part {
    int64_t begin, end;
    uint64_t equal; /* tokens with the key of the cut before it */
} sample_part;

static __device__ sample_part part_of(sample_shared *s, const float *logits, int64_t n, sample_cut c)
{
    const int64_t each = (n + THREADS - 1) / THREADS;
    sample_part part;
    uint64_t own = 0;

    part.begin = min((int64_t)threadIdx.x * each, n);
    part.end = min(part.begin + each, n);
    for (int64_t i = part.begin; i < part.end; i++)
        own += ridge_sample_key(logits[i]) == c.key;
    scan(s, own, &part.equal);
    return part;
}

/* The weight of a token that top_k and top_p leave, at temperature 1 or with `draw` as it is drawn; else 0. */
static __device__ __forceinline__ uint64_t weight_of(const sample_args &p, sample_cut c, float logit, float largest,
                                                     bool draw, uint64_t *equal)
{
    const uint32_t key = ridge_sample_key(logit);
    const float ratio = ridge_sample_ratio(logit, largest);

    if (!(key > c.key || (key == c.key && (*equal)++ < c.equal)))
        return 0;
    if (!draw)
        return ridge_sample_weight(ratio);
    return ratio >= p.min_p ? ridge_sample_weight(ridge_exp((logit - largest) / p.temperature)) : 0;
}

static __device__ uint64_t sum_of(const sample_args &p, const float *logits, sample_part part, sample_cut c,
                                  float largest, bool draw)
{
    uint64_t sum = 0, equal = part.equal;

    for (int64_t i = part.begin; i < part.end; i++)
        sum += weight_of(p, c, logits[i], largest, draw, &equal);
    return sum;
}

static __device__ __forceinline__ void put_token(const sample_args &p, int64_t row, int64_t token)
{
    if (p.token64)
        ((int64_t *)p.token)[row] = token;
    else
        ((int32_t *)p.token)[row] = (int32_t)token;
}

/* The row with the penalty, in the workspace. */
static __device__ const float *penalise(const sample_args &p, int64_t row, const float *logits)
{
    float *copy = p.copy + row * p.vocab;

    for (int64_t i = threadIdx.x; i < p.vocab; i += THREADS)
        copy[i] = logits[i];
    __syncthreads(); /* the copy is written before single logits are changed; each of them always to the same */
    for (int64_t h = threadIdx.x; h < p.past; h += THREADS) {
        const int32_t id = p.history[row * p.history_stride + h];

        if (id >= 0 && id < p.vocab)
            copy[id] = ridge_sample_penalised(logits[id], p.penalty);
    }
    __syncthreads(); /* and changed before they are read */
    return copy;
}

/* The largest key with the lowest number, as key << 32 | ~number; all ones if a logit is NaN. first: the number of the
 * first logit; warp: of every warp one. */
static __device__ uint64_t find_best(unsigned long long *warp, const float *logits, int64_t first, int64_t n)
{
    uint64_t best = 0;

    for_logits(logits, n, [&](int64_t i, float logit, bool there) {
        const uint64_t key = (uint64_t)ridge_sample_key(logit) << 32 | (uint32_t) ~(uint32_t)(first + i);

        if (there)
            best = logit != logit ? ~(uint64_t)0 : key > best ? key : best;
    });
    for (int d = 16; d > 0; d /= 2) {
        const uint64_t other = __shfl_xor_sync(~0u, best, d);

        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = best;
    __syncthreads(); /* all warps' best are written before they are read */
    for (int i = 0; i < THREADS / 32; i++)
        best = warp[i] > best ? warp[i] : best;
    return best;
}

static __device__ __forceinline__ void put_best(const sample_args &p, int64_t row, uint64_t best)
{
    put_token(p, row, best == ~(uint64_t)0 ? -1 : (int64_t)(uint32_t) ~(uint32_t)best);
}

/* Draws among the tokens that top_k and top_p leave of `logits`; ids: their numbers, NULL: they are counted from 0. */
static __device__ void draw(const sample_args &p, sample_shared *s, int64_t row, const float *logits,
                            const int32_t *ids, int64_t n, float largest)
{
    sample_cut c = {0, 0};
    sample_part part;
    uint64_t sum, before, own, at;

    if (p.top_k && p.top_k < n)
        c = cut(s, logits, n, largest, false, (uint64_t)p.top_k, c);
    if (p.top_p < 1.0f) {
        part = part_of(s, logits, n, c);
        sum = scan(s, sum_of(p, logits, part, c, largest, false), &before);
        c = cut(s, logits, n, largest, true, ridge_sample_share(p.top_p, sum), c);
    }
    part = part_of(s, logits, n, c);
    own = sum_of(p, logits, part, c, largest, true);
    sum = scan(s, own, &before);
    at = ridge_high64(ridge_philox((uint64_t)p.seed[row], (uint64_t)p.counter[row]), sum);
    if (before > at || before + own <= at)
        return;
    for (int64_t i = part.begin; i < part.end; i++) {
        before += weight_of(p, c, logits[i], largest, true, &part.equal);
        if (before > at) {
            put_token(p, row, ids ? ids[i] : i);
            return;
        }
    }
}

static __global__ void __launch_bounds__(THREADS) sample_rows(const __grid_constant__ sample_args p)
{
    __shared__ sample_shared s;
    const int64_t row = blockIdx.x, n = p.vocab;
    const float *logits = p.logits + row * p.stride;
    uint64_t best;
    float largest;
    int few = 0;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (p.past)
        logits = penalise(p, row, logits);
    best = find_best(s.warp, logits, 0, n);
    largest = ridge_sample_logit((uint32_t)(best >> 32));
    if (best == ~(uint64_t)0 || p.temperature == 0.0f || largest - largest != 0.0f) {
        if (threadIdx.x == 0)
            put_best(p, row, best);
        return;
    }
    if (p.top_k && p.top_k < n && p.top_k <= NARROW && n > NARROW)
        few = narrow(&s, logits, n, p.top_k);
    if (few)
        draw(p, &s, row, s.logit, s.id, few, largest);
    else
        draw(p, &s, row, logits, NULL, n, largest);
}

/* The likeliest token of a row, blockIdx.y, by a cluster: a CTA has a part of the logits. One multiprocessor alone
 * takes 22 us for 128256 of them. */
static __global__ void __launch_bounds__(THREADS) sample_best(const __grid_constant__ sample_args p)
{
#if __CUDA_ARCH__ >= 900
    __shared__ unsigned long long warp[THREADS / 32], own;
    const int64_t row = blockIdx.y, each = (p.vocab + CLUSTER - 1) / CLUSTER, first = blockIdx.x * each;
    uint64_t best;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    best = find_best(warp, p.logits + row * p.stride + first, first, max(min(each, p.vocab - first), (int64_t)0));
    if (threadIdx.x == 0)
        own = best;
    ptx_cluster_sync(); /* every CTA's best is written before it is read */
    if (blockIdx.x == 0 && threadIdx.x < 32) {
        const uint32_t at = ptx_map(ptx_shared(&own), threadIdx.x % CLUSTER);

        best = (uint64_t)__float_as_uint(ptx_load_cluster(at + 4)) << 32 | __float_as_uint(ptx_load_cluster(at));
        for (int d = CLUSTER / 2; d > 0; d /= 2) {
            const uint64_t other = __shfl_xor_sync(~0u, best, d);

            best = other > best ? other : best;
        }
        if (threadIdx.x == 0)
            put_best(p, row, best);
    }
    ptx_cluster_sync(); /* it is read before its CTA ends */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[3] = {(const void *)embed_rows, (const void *)sample_rows,
                                         (const void *)sample_best};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 3, "generate: loading kernels");
}

static ridge_status launch_embed(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                 void *, size_t, void *stream)
{
    embed_args p = embed_args_of(&bound->call);

    if (p.tokens == 0 || p.cols == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[0], dim3((unsigned)p.tokens), EMBED_THREADS, &p, stream);
}

static ridge_status launch_sample(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t, void *stream)
{
    sample_args p = sample_args_of(&bound->call);

    if (p.rows == 0)
        return RIDGE_OK;
    p.copy = (float *)workspace;
    if (kernel->param[0] && p.temperature == 0.0f)
        return host_launch_cluster(device, kernel->name, functions[2], dim3(CLUSTER, (unsigned)p.rows), CLUSTER,
                                   THREADS, 0, &p, stream);
    return host_launch(device, kernel->name, functions[1], dim3((unsigned)p.rows), THREADS, &p, stream);
}

static size_t workspace_of(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (kernel->op != RIDGE_SAMPLE || problem->dtype[RIDGE_SAMPLE_HISTORY] == RIDGE_NONE)
        return 0;
    return (size_t)problem->dim[0] * (size_t)problem->dim[1] * sizeof(float);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (kernel->param[0] && problem->dtype[RIDGE_SAMPLE_HISTORY] != RIDGE_NONE)
        return "logits have a penalty";
    if (kernel->param[0] && problem->dim[0] > 65535)
        return "more than 65535 rows";
    return problem->dim[0] > 0x7fffffff ? "more than 2^31 - 1 rows" : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return (kernel->param[0] ? 2 : 3) + (double)problem->dim[0] * (double)problem->dim[1] * 8e-3 / device->copy_gbps;
}

#define ROW(name, op_id, arch, cluster, launch)                                                                \
    {                                                                                                          \
        "cuda." name, op_id, arch, RIDGE_ARCH_CUDA_LAST,                                                       \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {cluster}, why_not, \
            workspace_of, cost, launch                                                                         \
    }

static const ridge_kernel rows[] = {ROW("embed.block", RIDGE_EMBED, RIDGE_ARCH_SM80, 0, launch_embed),
                                    ROW("sample.cluster", RIDGE_SAMPLE, RIDGE_ARCH_SM90, 1, launch_sample),
                                    ROW("sample.block", RIDGE_SAMPLE, RIDGE_ARCH_SM80, 0, launch_sample)};

extern "C" const ridge_kernel_list ridge_cuda_generate = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

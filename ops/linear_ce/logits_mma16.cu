/* logits_mma16.cu: the product x W^T of the linear cross entropy on every device from sm_80 on. A tile has 256 classes
 * (rows) by 128 tokens (columns); a CTA computes the tiles of a strip of classes one after another.
 *
 *     CE16_STATS          maximum and sum of each row, a part a strip
 *     CE16_STATS_FULL     the same with bias, softcap and temperature, and the sums of ce_more
 *     CE16_PROBS          P^T and the sum of E
 *     CE16_PROBS_OPTIONS  the same with every option and the gradient of the entropy
 *     CE16_SAMPLE         u of a sample of the classes, with split-K
 *
 * The targets' logits are stored too. Warp w has classes 64 (w / 2) and tokens 64 (w % 2) of the tile on; thread
 * (g, t) = (lane / 4, lane % 4) has class 16 i + g + 8 (q / 2) and token 8 j + 2 t + q % 2 of those in acc[i][j][q]. */
#include "linear_mma16.cuh"

/* ANY: the epilogues with options, 180 KB each, are compiled once for all dtypes and layouts of W. */
enum { ROW_WARPS = CE16_CLASSES / G80_WARP, ANY = -1 };

/* label .. mix: by token of the tile; a token beyond the last has label -1 and exponent +infinity. The rest is the
 * epilogue's, where the main loop has its stages: P^T of the tile, chunk c of 8 tokens of class v at c ^ (v % 8); and
 * by warp the reductions over its 64 classes. */
typedef struct logits_smem {
    union {
        uint8_t stages[G80_SHARED];
        struct {
            uint4 panel[CE16_CLASSES][CE16_TOKENS / 8];
            float max[ROW_WARPS][CE16_TOKENS], sum[ROW_WARPS][CE16_TOKENS];
            float spread[ROW_WARPS][CE16_TOKENS], z[ROW_WARPS][CE16_TOKENS], wz[ROW_WARPS][CE16_TOKENS];
            float argmax[ROW_WARPS][CE16_TOKENS]; /* an int32 in each */
            float base[CE16_TOKENS], top[CE16_TOKENS];
            float of_class[CE16_CLASSES]; /* bias or class weight */
        };
    };
    int32_t label[CE16_TOKENS];
    float exponent[CE16_TOKENS];
    float2 mix[CE16_TOKENS];
    int tokens, first_token, strip; /* of the launch; of the tile. Kept in registers over the main loop they spill */
} logits_smem;

/* threadIdx.x, read anew each time: what is computed from it may be kept from tile to tile, and spills. */
static __device__ __forceinline__ int thread_anew(void)
{
    int thread;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* What a thread's acc is of: the tile's first class; acc's first class, from 0 on; acc's first token, in the tile. */
typedef struct logits_place {
    int first_class, v, in_tile;
} logits_place;

static __device__ __forceinline__ logits_place place_of(int first_class)
{
    const int thread = thread_anew(), warp = thread / 32, lane = thread % 32;

    return {first_class, first_class + warp / 2 * G80_WARP + lane / 4, warp % 2 * G80_WARP + lane % 4 * 2};
}

/* The part of the row's sum that thread t merges into, of token t of the tile; -1: there is none. */
static __device__ __forceinline__ int64_t slot_of(const ce16_logits &a, const logits_smem *s)
{
    const int token = s->first_token + threadIdx.x;

    return threadIdx.x < CE16_TOKENS && token < s->tokens ? (a.c.begin + token) * a.c.p.parts + s->strip : -1;
}

static __device__ __forceinline__ float max_nan(float a, float b)
{
    float v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}

enum { SUM = 0, MAX, LEAST };
template <int OP> static __device__ __forceinline__ float combine(float a, float b)
{
    if (OP == LEAST)
        return __int_as_float(min(__float_as_int(a), __float_as_int(b)));
    return OP == MAX ? max_nan(a, b) : a + b;
}

/* Exchanges half of 2 N values with the lane whose number differs in `bit`; N combined ones remain. */
template <int OP, int N> static __device__ __forceinline__ void reduce_step(float *v, int bit)
{
    const bool upper = threadIdx.x & bit;

#pragma unroll
    for (int i = 0; i < N; i++) {
        const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[N + i], bit);

        v[i] = combine<OP>(upper ? v[N + i] : v[i], other);
    }
}

/* v[2 j + e] of each lane to one value for each token of the warp, combined over the eight lanes of a column. Lane g
 * keeps those of j = g and stores them in line `to` of the 128 tokens. */
template <int OP>
static __device__ __forceinline__ void reduce_columns(float *v, float (*to)[CE16_TOKENS], const logits_place &at)
{
    reduce_step<OP, 8>(v, 16);
    reduce_step<OP, 4>(v, 8);
    reduce_step<OP, 2>(v, 4);
    *(float2 *)&to[threadIdx.x / 64][at.in_tile + threadIdx.x % 32 / 4 * 8] = make_float2(v[0], v[1]);
}

static __device__ __forceinline__ float log2_base(float high)
{
    return high == -CUDART_INF_F ? 0.0f : high * CE_LOG2E;
}

/* ------------------------------------------------------------------------------------------------- the logits of a
 * tile */

/* Bias, or class weight, of the tile's classes to shared memory: 8 of each kept in registers would spill. */
static __device__ __forceinline__ void load_classes(const ce16_logits &a, logits_smem *s, const logits_place &at,
                                                    bool weights)
{
    const ce_params &p = a.c.p;
    const int c = at.first_class + threadIdx.x;
    float value = weights ? 1.0f : 0.0f;

    if (c < a.n && weights && p.class_weight)
        value = p.class_weight[p.offset + c];
    else if (c < a.n && !weights)
        value = ce_bias(p, c);
    __syncthreads(); /* orders the reads of the values before */
    s->of_class[threadIdx.x] = value;
    __syncthreads(); /* orders these writes before their reads */
}

/* u to z in place, -inf in classes beyond the last one. */
template <int OPTIONS>
static __device__ __forceinline__ void to_logits(const ce16_logits &a, logits_smem *s, const logits_place &at,
                                                 g80_acc acc)
{
    const ce_params &p = a.c.p;
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;

    if (OPTIONS) {
        load_classes(a, s, at, false);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float bias = s->of_class[at.v - at.first_class + 8 * i];

#pragma unroll
            for (int j = 0; j < 16; j++) {
                float *u = &acc[i / 2][j / 2][i % 2 * 2 + j % 2];

                *u = ce_logit(p, *u + bias, cap_inverse, cool);
            }
        }
    }
    if (at.first_class + CE16_CLASSES > a.n)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 16; j++)
                if (at.v + 8 * i >= a.n)
                    acc[i / 2][j / 2][i % 2 * 2 + j % 2] = -CUDART_INF_F;
}

/* The targets' logits, by the thread that has them. */
static __device__ __forceinline__ void store_target_logits(const ce16_logits &a, const logits_smem *s,
                                                           const logits_place &at, const g80_acc acc)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const int token = at.in_tile + j / 2 * 8 + j % 2, d = s->label[token] - at.v;

        if (d >= 0 && d < G80_WARP && d % 8 == 0) {
            float z = 0.0f;

#pragma unroll
            for (int i = 0; i < 8; i++)
                z = d == 8 * i ? acc[i / 2][j / 2][i % 2 * 2 + j % 2] : z;
            a.c.p.target_z[a.c.begin + s->first_token + token] = z;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ statistics */

/* Sum of e^(z - max) (z - max), of z, of w z, and the first class whose logit is the tile's maximum. */
static __device__ __forceinline__ void add_more(const ce16_logits &a, logits_smem *s, const logits_place &at,
                                                const g80_acc acc)
{
    float v[16];

    load_classes(a, s, at, true);
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float high = s->base[at.in_tile + j / 2 * 8 + j % 2], base = high == -CUDART_INF_F ? 0.0f : high;

        v[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float d = acc[i / 2][j / 2][i % 2 * 2 + j % 2] - base, e = ptx_ex2(d * CE_LOG2E);

            v[j] += e > 0.0f ? e * d : 0.0f;
        }
    }
    reduce_columns<SUM>(v, s->spread, at);
#pragma unroll
    for (int weighted = 0; weighted < 2; weighted++) {
        int left = a.n - at.v;

        asm volatile("" : "+r"(left)); /* else the results of the comparisons stay in registers */
#pragma unroll
        for (int j = 0; j < 16; j++)
            v[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float w = weighted ? s->of_class[at.v - at.first_class + 8 * i] : 1.0f;

            if (8 * i < left)
#pragma unroll
                for (int j = 0; j < 16; j++)
                    v[j] += w * acc[i / 2][j / 2][i % 2 * 2 + j % 2];
        }
        reduce_columns<SUM>(v, weighted ? s->wz : s->z, at);
    }
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float top = s->top[at.in_tile + j / 2 * 8 + j % 2];
        int first = INT32_MAX;

#pragma unroll
        for (int i = 7; i >= 0; i--) {
            const float z = acc[i / 2][j / 2][i % 2 * 2 + j % 2];

            first = z == top || (z != z && top != top) ? at.v + 8 * i : first;
        }
        v[j] = __int_as_float(first);
    }
    reduce_columns<LEAST>(v, s->argmax, at);
}

static __device__ __forceinline__ float sum_of_warps(const float (*from)[CE16_TOKENS])
{
    return (from[0][threadIdx.x] + from[1][threadIdx.x]) + (from[2][threadIdx.x] + from[3][threadIdx.x]);
}

/* Thread t merges the sums of token t over the tile into its part. */
template <int FULL> static __device__ __forceinline__ void merge(const ce16_logits &a, const logits_smem *s)
{
    const ce_params &p = a.c.p;
    const int64_t slot = slot_of(a, s);

    if (slot < 0)
        return;
    const float top = s->top[threadIdx.x], base = s->base[threadIdx.x];
    const ce_part old = p.part[slot];
    float scale = 0.0f;

    if (old.sum != 0.0f)
        scale = ptx_ex2(log2_base(old.max) - log2_base(base));
    p.part[slot] = {base, sum_of_warps(s->sum) + (scale != 0.0f ? old.sum * scale : 0.0f)};
    if (FULL && p.full) {
        const ce_more had = p.more[slot];
        const bool better = old.max == old.max && (!(top <= old.max) || had.argmax == INT32_MAX);
        int first = INT32_MAX;

#pragma unroll
        for (int i = 0; i < ROW_WARPS; i++)
            first = min(first, __float_as_int(s->argmax[i][threadIdx.x]));
        p.more[slot] = {sum_of_warps(s->spread) +
                            (scale != 0.0f ? scale * (had.spread + (old.max - base) * old.sum) : 0.0f),
                        sum_of_warps(s->z) + had.z, sum_of_warps(s->wz) + had.wz, better ? first : had.argmax};
    }
}

/* Maximum and sum of the tile's tokens; the base of the exponentials is the maximum of all tiles so far. */
template <int FULL>
static __device__ __forceinline__ void add_stats(const ce16_logits &a, logits_smem *s, const logits_place &at,
                                                 const g80_acc acc)
{
    float v[16];

#pragma unroll
    for (int j = 0; j < 16; j++) {
        v[j] = acc[0][j / 2][j % 2];
#pragma unroll
        for (int i = 1; i < 8; i++)
            v[j] = max_nan(v[j], acc[i / 2][j / 2][i % 2 * 2 + j % 2]);
    }
    reduce_columns<MAX>(v, s->max, at);
    __syncthreads(); /* orders the warps' maxima before their reads */
    if (threadIdx.x < CE16_TOKENS) {
        const int64_t slot = slot_of(a, s);
        float top = s->max[0][threadIdx.x];

#pragma unroll
        for (int i = 1; i < ROW_WARPS; i++)
            top = max_nan(top, s->max[i][threadIdx.x]);
        s->top[threadIdx.x] = top;
        s->base[threadIdx.x] = slot < 0 ? top : max_nan(top, a.c.p.part[slot].max);
    }
    __syncthreads(); /* orders the maxima before their reads */
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float base = log2_base(s->base[at.in_tile + j / 2 * 8 + j % 2]);

        v[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[j] += ptx_ex2(__fmaf_rn(acc[i / 2][j / 2][i % 2 * 2 + j % 2], CE_LOG2E, -base));
    }
    reduce_columns<SUM>(v, s->sum, at);
    if (FULL && a.c.p.full)
        add_more(a, s, at, acc);
    __syncthreads(); /* orders the warps' sums before their reads */
    merge<FULL>(a, s);
}

/* -------------------------------------------------------------------------------------------------------------- P^T */

/* One element of P from its logit; *sum receives E. bends: the call asks for the gradient of the entropy. */
template <int OPTIONS>
static __device__ __forceinline__ float prob_of(const ce_params &p, float z, float exponent, float2 mix, bool bends,
                                                float bend, float weight, float *sum)
{
    const float t = __fmaf_rn(z, CE_LOG2E, -exponent);
    float v = ptx_ex2(t);

    *sum += v;
    if (OPTIONS && bends) /* E is 0 from 2^-150 on; of a NaN it is NaN */
        mix.x = __fmaf_rn(bend, fmaxf(t, -512.0f), mix.x);
    if (OPTIONS)
        v = __fmaf_rn(v, mix.x, -weight * mix.y) *
            ce_slope(p, z, p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, 1.0f / p.temperature);
    return v;
}

/* The tile's P^T through shared memory, so that whole lines are written, and the sums of E. */
template <int BF16, int OPTIONS>
static __device__ __forceinline__ void store_probs(const ce16_logits &a, logits_smem *s, const logits_place &at,
                                                   const g80_acc acc)
{
    const ce_params &p = a.c.p;
    const int in_tile = at.v - at.first_class;
    const bool bf16 = BF16 == ANY ? p.dtype == RIDGE_BF16 : BF16, bends = OPTIONS && p.dentropy;
    float v[16] = {};

    if (bends && threadIdx.x < CE16_TOKENS) { /* load_classes orders it before its reads */
        const int token = s->first_token + threadIdx.x;

        const float4 r = token < s->tokens ? a.c.bend[a.c.begin + token] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        s->base[threadIdx.x] = r.y;
        s->mix[threadIdx.x].x = r.z;
    }
    if (OPTIONS)
        load_classes(a, s, at, true);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int token = at.in_tile + 8 * j;
        const float2 exponent = *(const float2 *)&s->exponent[token];
        const float2 mix0 = OPTIONS ? s->mix[token] : make_float2(1.0f, 0.0f);
        const float2 mix1 = OPTIONS ? s->mix[token + 1] : make_float2(1.0f, 0.0f);
        const float2 bend = bends ? *(const float2 *)&s->base[token] : make_float2(0.0f, 0.0f);

#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int c = in_tile + 8 * i;
            const float *z = &acc[i / 2][j][i % 2 * 2], weight = OPTIONS ? s->of_class[c] : 1.0f;
            const float p0 = prob_of<OPTIONS>(p, z[0], exponent.x, mix0, bends, bend.x, weight, &v[2 * j]);
            const float p1 = prob_of<OPTIONS>(p, z[1], exponent.y, mix1, bends, bend.y, weight, &v[2 * j + 1]);

            ((uint32_t *)&s->panel[c][token / 8 ^ c % 8])[token / 2 % 4] =
                bf16 ? num_pack2<RIDGE_BF16>(p0, p1) : num_pack2<RIDGE_F16>(p0, p1);
        }
    }
    if (a.sums)
        reduce_columns<SUM>(v, s->sum, at);
    __syncthreads(); /* orders the panel and the sums before their reads */
    for (int i = thread_anew(); i < CE16_CLASSES * CE16_TOKENS / 8; i += G80_THREADS) {
        const int c = i / (CE16_TOKENS / 8), chunk = i % (CE16_TOKENS / 8);

        if (at.first_class + c < a.n)
            *(uint4 *)(a.c.probs.data[0] + (at.first_class + c) * a.c.probs.ld[0] + s->first_token + chunk * 8) =
                s->panel[c][chunk ^ c % 8];
    }
    if (a.sums && slot_of(a, s) >= 0)
        a.c.p.part[slot_of(a, s)].sum += sum_of_warps(s->sum);
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

static __device__ __forceinline__ void store_sample(const ce16_logits &a, const logits_smem *s, const logits_place &at,
                                                    const g80_acc acc)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const int token = s->first_token + at.in_tile + j / 2 * 8 + j % 2;
        float *to = a.c.sample_u + (s->strip * a.c.rows + token) * CE_SAMPLE_CLASSES + at.v;

        if (token < s->tokens)
#pragma unroll
            for (int i = 0; i < 8; i++)
                to[8 * i] = acc[i / 2][j / 2][i % 2 * 2 + j % 2];
    }
}

/* Thread t: what the epilogues need of token t. */
template <int PROBS>
static __device__ __forceinline__ void load_token(const ce16_logits &a, logits_smem *s, int token, int tokens)
{
    const bool live = token < tokens;
    const int64_t row = a.c.begin + token;

    s->label[threadIdx.x] = live ? a.c.p.label[row] : -1;
    if (PROBS) {
        s->exponent[threadIdx.x] = live ? a.c.exponent[row] : CUDART_INF_F;
        s->mix[threadIdx.x] = !live ? make_float2(0.0f, 0.0f) : a.mixed ? a.c.mix[row] : make_float2(1.0f, 0.0f);
    }
}

/* The tile's product; of the sample a split of it, s->strip. */
template <int BF16, int HV, bool SAMPLE>
static __device__ __forceinline__ void multiply(const ce16_logits &a, const logits_smem *s, int first_class,
                                                g80_acc acc)
{
    const ce_params &p = a.c.p;
    const int k0 = SAMPLE ? s->strip * a.split : 0, k = SAMPLE ? min(a.k - k0, a.split) : a.k;
    const int64_t ld = SAMPLE && !HV ? p.w_stride * a.c.sample_stride : p.w_stride;
    const int64_t row = a.c.begin + s->first_token;
    const g80_operand w = {(const uint16_t *)p.w + (HV ? k0 * ld + first_class : first_class * ld + k0), ld,
                           a.n - first_class, NULL};
    const g80_operand x = {(const uint16_t *)p.x + k0 + (SAMPLE ? row * p.x_stride : 0), p.x_stride,
                           s->tokens - s->first_token, SAMPLE ? NULL : p.list + row};

    g80_mainloop<BF16, CE16_CLASSES, CE16_TOKENS, HV, 0>(w, x, k, ptx_shared(s), acc);
}

/* The same where a kernel is for every dtype and layout. */
static __device__ __forceinline__ void multiply_any(const ce16_logits &a, const logits_smem *s, int first_class,
                                                    g80_acc acc)
{
    if (a.c.p.dtype == RIDGE_BF16) {
        if (a.c.p.hv)
            multiply<1, 1, false>(a, s, first_class, acc);
        else
            multiply<1, 0, false>(a, s, first_class, acc);
    } else if (a.c.p.hv) {
        multiply<0, 1, false>(a, s, first_class, acc);
    } else {
        multiply<0, 0, false>(a, s, first_class, acc);
    }
}

template <int BF16, int HV, int WHAT>
static __global__ void __launch_bounds__(G80_THREADS, 1) ce16_logits_kernel(const __grid_constant__ ce16_logits a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr bool SAMPLE = WHAT == CE16_SAMPLE, PROBS = WHAT == CE16_PROBS || WHAT == CE16_PROBS_OPTIONS;
    constexpr bool OPTIONS = WHAT == CE16_STATS_FULL || WHAT == CE16_PROBS_OPTIONS;
    logits_smem *s = (logits_smem *)shared;
    int tile, strip;

    ptx_grid_dependency_wait();
    const int tokens = SAMPLE ? (int)a.c.rows : ce_skips(a.c) ? 0 : ce_chunk_rows(a.c);

    ce16_tile(blockIdx.x, (int)((a.c.rows + CE16_TOKENS - 1) / CE16_TOKENS), a.strips * a.splits, &tile, &strip);
    if (tile * CE16_TOKENS >= tokens)
        return;
    if (threadIdx.x == 0) {
        s->tokens = tokens;
        s->first_token = tile * CE16_TOKENS;
        s->strip = strip;
    }
    if (!SAMPLE && threadIdx.x < CE16_TOKENS)
        load_token<PROBS>(a, s, tile * CE16_TOKENS + threadIdx.x, tokens);
    __syncthreads(); /* orders these writes before their reads */
    for (int i = 0; i < a.each; i++) {
        const int first_class = SAMPLE ? 0 : (s->strip * a.each + i) * CE16_CLASSES;
        g80_acc acc;

        if (first_class >= a.n)
            return;
        if constexpr (BF16 == ANY)
            multiply_any(a, s, first_class, acc);
        else
            multiply<BF16, HV, SAMPLE>(a, s, first_class, acc);
        const logits_place at = place_of(first_class);

        if (SAMPLE) {
            store_sample(a, s, at, acc);
            continue;
        }
        to_logits<OPTIONS>(a, s, at, acc);
        store_target_logits(a, s, at, acc);
        if (PROBS)
            store_probs<BF16, OPTIONS>(a, s, at, acc);
        else
            add_stats<OPTIONS>(a, s, at, acc);
        __syncthreads(); /* orders the epilogue's reads before the next tile's copies */
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype, layout of W ([V, H] or [H, V]) and product. */
#define LOGITS_OF(bf16, hv)                                                                                         \
    (const void *)ce16_logits_kernel<bf16, hv, CE16_STATS>, (const void *)ce16_logits_kernel<bf16, hv, CE16_PROBS>, \
        (const void *)ce16_logits_kernel<ANY, ANY, CE16_STATS_FULL>,                                                \
        (const void *)ce16_logits_kernel<ANY, ANY, CE16_PROBS_OPTIONS>,                                             \
        (const void *)ce16_logits_kernel<bf16, hv, CE16_SAMPLE>

static const void *const functions[4][CE16_LOGITS] = {
    {LOGITS_OF(0, 0)}, {LOGITS_OF(0, 1)}, {LOGITS_OF(1, 0)}, {LOGITS_OF(1, 1)}};

ridge_status ce16_logits_prepare(const ridge_device *device)
{
    return host_prepare(device, &functions[0][0], 4 * CE16_LOGITS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        (int)sizeof(logits_smem), "linear_ce: loading kernels");
}

ridge_status ce16_logits_launch(const ce_job *j, int what, ce16_logits *g)
{
    const ce_params *p = &g->c.p;
    const int64_t blocks = ridge_ceil_div(g->c.rows, CE16_TOKENS) * g->strips * g->splits;

    if (blocks == 0)
        return RIDGE_OK;
    return host_launch_shared(j->device, j->name, functions[2 * (p->dtype == RIDGE_BF16) + p->hv][what],
                              dim3((unsigned)blocks), G80_THREADS, sizeof(logits_smem), g, j->stream);
}

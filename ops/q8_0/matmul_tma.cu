/* matmul_tma.cu: kernel and host side of the Q8_0 products by TMA, sm_90 up. matmul_tma.cuh tells the design. */
#include <math.h>

#include "matmul_tma_epilogue.cuh"
#include "matmul_tma_mainloop.cuh"

#if __CUDA_ARCH__ >= 900
/* The weight producer prepares what its first loads need and no more: all SMs wait for the last one to get here. One
 * thread initialises mbarriers faster than many: the instruction takes one lane's address at a time. */
template <int RAW> static __device__ __forceinline__ void start_producer(const q8_0_tma_args &a, uint32_t shared)
{
    const uint32_t full = shared + a.off_bars;

    ptx_prefetch_map(&a.codes[0]);
    if (!RAW)
        ptx_prefetch_map(&a.scales[0]);
    for (int i = 0; i < a.stages; i++)
        ptx_mbarrier_init(full + 8 * i, 1);
    ptx_mbarrier_init(full + BAR_READY, 1);
    ptx_mbarrier_fence_init();
}

/* A thread of the epilogue warps initialises the other mbarriers, and prefetches a box of x into L2: the primary grid
 * may still write x, but its writes go through L2 too. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void start_barriers(const q8_0_tma_args &a, uint32_t shared)
{
    const uint32_t empty = shared + a.off_bars + 8 * MAX_STAGES, sums_full = empty + 8 * MAX_STAGES;
    const int boxes = a.x_resident ? (a.k_steps + (1 << a.x_shift) - 1) >> a.x_shift : a.stages;
    const int k_step = a.x_resident ? (int)blockIdx.x % boxes << a.x_shift : (int)blockIdx.x % a.k_steps;

    for (int i = 0; i < a.stages; i++)
        ptx_mbarrier_init(empty + 8 * i, MMA_WARPS(SUBS));
    for (int i = 0; i < SUM_BUFFERS; i++) {
        ptx_mbarrier_init(sums_full + 8 * i, MMA_WARPS(SUBS));
        ptx_mbarrier_init(sums_full + 8 * (SUM_BUFFERS + i), EPILOGUE_WARPS(SUBS, TOKENS) >> a.two_teams);
    }
    for (int i = 0; i < boxes; i++)
        ptx_mbarrier_init(shared + a.off_bars + BAR_X_FULL + 8 * i, 1);
    ptx_mbarrier_fence_init();
    if (a.x_dtype == RIDGE_I8) {
        ptx_tma_prefetch_3d(&a.x, 0, 0, k_step * 8);
        ptx_tma_prefetch_2d(&a.x_scales, k_step * Q8_0_STEP, 0);
    }
}
#endif

#if __CUDA_ARCH__ >= 1200
#define CTAS(subs, tokens) 1 /* as an SM's shared memory allows */
#else
#define CTAS(subs, tokens) (LARGE(subs, tokens) ? 1 : 2)
#endif

template <int SUBS, int TOKENS, int RAW>
static __global__ void __launch_bounds__(THREADS(SUBS, TOKENS), CTAS(SUBS, TOKENS))
    q8_0_tma(const __grid_constant__ q8_0_tma_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const int warp = threadIdx.x / 32;

#if __CUDA_ARCH__ >= 1200
    if (SUBS == 4) /* needs more shared memory than there is: why_not refuses it */
        return;
#endif
    if (warp == MMA_WARPS(SUBS)) {
        if (threadIdx.x % 32 == 0)
            start_producer<RAW>(a, shared);
        __syncwarp();
        ptx_barrier_arrive(3, THREADS(SUBS, TOKENS));
        if (threadIdx.x % 32 == 0)
            produce<SUBS, RAW>(a, shared);
        return;
    }
    if (threadIdx.x == 32 * (MMA_WARPS(SUBS) + 1))
        start_barriers<SUBS, TOKENS>(a, shared);
    __syncwarp();
    /* orders the initialisation of the mbarriers before their use; the weight producer arrives and goes on */
    ptx_barrier_sync(3, THREADS(SUBS, TOKENS));
    if (threadIdx.x == 32 * (MMA_WARPS(SUBS) + 1))
        ptx_mbarrier_arrive(shared + a.off_bars + BAR_READY);
    if (warp < MMA_WARPS(SUBS))
        consume<SUBS, TOKENS, RAW>(a, memory, shared);
    else if (warp == MMA_WARPS(SUBS) + 1 + EPILOGUE_WARPS(SUBS, TOKENS))
        produce_x(a, shared);
    else if (a.p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND)
        epilogue_hc<SUBS, TOKENS>(a, memory, shared);
    else if (a.gate_up)
        epilogue_gate_up<SUBS, TOKENS>(a, memory, shared);
    else
        epilogue_store<SUBS, TOKENS>(a, memory, shared);
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORM(subs, tokens) (const void *)q8_0_tma<subs, tokens, 0>, (const void *)q8_0_tma<subs, tokens, 1>
#define BY_TOKENS(subs) BY_FORM(subs, 8), BY_FORM(subs, 16)

/* [planes, raw blocks] of one subtile and 8 tokens; then [2, 4 subtiles][8, 16 tokens][planes, raw blocks] */
static const void *const functions[10] = {BY_FORM(1, 8), BY_TOKENS(2), BY_TOKENS(4)};

/* MAX_PREFETCH: up to so many bytes of a CTA's weights, prefetching all of them into L2 before the primary grid has
 * ended saves time; with more, loads queue behind the prefetches (2048 -> 4096: 4.12 -> 4.36 us). MAX_PREFETCH_HALF:
 * the same with half of the shared memory, where the CTAs begin early and trigger the dependent launch late (4096 ->
 * 1024: 3.60 -> 2.81 us). WINDOW_BYTES: a CTA's weights in flight at a time, two to three stages. With one stage in
 * flight the CTA stalls; with six the memory system is so full that x takes 2.4 us instead of 1.0. */
enum { MAX_PREFETCH = 40 * 1024, MAX_PREFETCH_HALF = 72 * 1024, WINDOW_BYTES = 56 * 1024 };

static ridge_status prepare(const ridge_device *device)
{
    if (device->arch < RIDGE_ARCH_SM90)
        return RIDGE_OK;
    return host_prepare(device, functions, 10, cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device),
                        "q8_0_matmul: loading kernels");
}

/* Of the CTAs that have most. */
static int steps_of(const q8_0_tma_args *a, int units)
{
    return (int)ridge_ceil_div(a->tiles, a->tiles < units ? a->tiles : units) * a->k_steps;
}

/* Lays out `budget` bytes of shared memory; the stages take what the rest leaves, but are no more than a CTA's `steps`:
 * what is left lets a CTA of the next kernel in beside this one. False if there is room for less than two. */
static bool lay_out(q8_0_tma_args *a, int subs, int tokens, bool raw, int64_t budget, int steps, uint32_t *bytes)
{
    const int64_t codes = subs * (raw ? RAW_BYTES : CODE_BYTES), scales = raw ? 0 : subs * SCALE_BYTES;
    const int one = a->tokens == 1, max_shift = one ? 3 : 5; /* a box of x has at most 256 scales or lines */
    const int64_t x = a->tokens * 1024;
    const int64_t x_scales = one ? 4 * Q8_0_STEP : ridge_round_up(a->tokens * X_SCALE_PITCH, 128);
    const int64_t sums = SUM_BUFFERS * SUMS_BYTES(subs, tokens);
    const int64_t factors = a->p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND ? 4 * HC_FACTORS * a->tokens : 0;
    const int64_t available = budget - sums - factors - BAR_BYTES - 2048; /* for alignment */
    const int most = steps < 2 ? 2 : steps < MAX_STAGES ? steps : MAX_STAGES;
    uint32_t slots;

    a->x_scales_slot = (int)x_scales;
    while (a->x_shift < max_shift && MAX_STAGES << a->x_shift < a->k_steps) /* a k step a box while barriers suffice */
        a->x_shift++;
    slots = (uint32_t)ridge_round_up(a->k_steps, 1 << a->x_shift);
    a->x_resident =
        MAX_STAGES << a->x_shift >= a->k_steps && slots * (x + x_scales) + 3 * (codes + scales) <= available;
    if (a->x_resident) {
        a->stages = (int)((available - slots * (x + x_scales)) / (codes + scales));
    } else {
        a->stages = (int)(available / (codes + scales + x + x_scales));
        a->x_shift = 0;
    }
    a->stages = a->stages > most ? most : a->stages;
    slots = a->x_resident ? slots : (uint32_t)a->stages;
    a->off_x = (uint32_t)ridge_round_up(a->stages * codes, 1024);
    a->off_scales = a->off_x + slots * (uint32_t)x;
    a->off_x_scales = a->off_scales + (uint32_t)(a->stages * scales);
    a->off_sums = a->off_x_scales + slots * (uint32_t)x_scales;
    a->off_factors = a->off_sums + (uint32_t)sums;
    a->off_bars = (uint32_t)ridge_round_up(a->off_factors + factors, 128);
    *bytes = a->off_bars + BAR_BYTES;
    return a->stages >= 2 && *bytes <= (uint32_t)budget;
}

static ridge_status map_weight(const ridge_device *device, q8_0_tma_args *a, int i, bool raw)
{
    const q8_0_weight *m = &a->p.weight[i];
    const int64_t cols = a->p.blocks * RIDGE_Q8_0_BLOCK;
    ridge_status status;

    if (raw)
        return host_tensor_map(device, &a->codes[i], RIDGE_F64, m->scales, a->p.blocks * RIDGE_Q8_0_BYTES / 8, m->rows,
                               m->stride / 8, RAW_PITCH / 8, a->tile_rows, 0);
    status = host_tensor_map_lines(device, &a->codes[i], m->codes, cols, m->rows, m->stride, a->tile_rows, 8);
    if (!status)
        status = host_tensor_map(device, &a->scales[i], RIDGE_F16, m->scales, a->p.blocks, m->rows, m->scale_stride / 2,
                                 SCALE_PITCH / 2, a->tile_rows, 0);
    return status;
}

static ridge_status map_x(const ridge_device *device, q8_0_tma_args *a)
{
    const q8_0_matmul_args *p = &a->p;
    const ridge_status status = host_tensor_map_lines(device, &a->x, p->x, p->blocks * RIDGE_Q8_0_BLOCK, p->tokens,
                                                      p->x_stride, p->tokens, 8 << a->x_shift);

    return status ? status
                  : host_tensor_map(device, &a->x_scales, RIDGE_F32, p->x_scales, p->blocks, p->tokens, p->x_ld,
                                    p->tokens == 1 ? Q8_0_STEP << a->x_shift : X_SCALE_PITCH / 4, p->tokens, 0);
}

static_assert((int)RAW_BYTES == (int)CODE_BYTES + (int)SCALE_BYTES, "a stage has one size");

/* Chooses how many bytes are in flight when, and when a CTA triggers the dependent launch, which takes 3 to 4 us to
 * arrive. What a token's norm reads queues behind weights that are fetched early (Llama-3-8B 2316 -> 2257 us a step
 * with one k step of 32 rows in flight in the place of three, H200). With half of the shared memory (`half`) the
 * dependent grid's CTAs run beside these and compete with them. */
static void set_pace(q8_0_tma_args *a, int units, int subs, bool half, bool weights_const)
{
    const int grid = a->tiles < units ? a->tiles : units, stage = subs * (CODE_BYTES + SCALE_BYTES);
    const int steps = steps_of(a, units);

    a->cta_tiles = a->tiles / grid;
    a->extra_tiles = a->tiles % grid;
    a->window = WINDOW_BYTES / stage;
    a->window = a->window < 2 ? 2 : a->window > a->stages ? a->stages : a->window;
    a->early_steps = weights_const ? a->stages : 0;
    a->early_window = half        ? steps > 8 || (steps <= a->stages && a->tokens <= 2) ? 2 : 1
                      : subs == 4 ? a->tokens == 1 ? 1 : 3
                                  : a->window;
    a->trigger_left = steps; /* at entry */
    if (half && a->k_steps == 1 && steps > 8)
        a->trigger_left = 5;
    if (weights_const)
        return;
    if (a->cta_tiles == 1 && !a->extra_tiles && (int64_t)steps * stage <= (half ? MAX_PREFETCH_HALF : MAX_PREFETCH)) {
        a->prefetch_steps = steps;
        a->trigger_left = half && steps > 1 ? steps - 1 : steps;
    } else if (a->trigger_left < steps && a->tokens <= 2) { /* 1024 -> 32768: 10.54 -> 10.23 us */
        a->trigger_left = 3;
        a->prefetch_steps = 2;
    }
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    const ridge_call *call = &bound->call;
    const int subs = kernel->param[0] / SUB, tokens = call->dim[0] > 8 ? 16 : 8;
    const bool raw = call->arg[2].dtype == RIDGE_U8;
    q8_0_tma_args a = {};
    uint32_t bytes = 0;
    ridge_status status = RIDGE_OK;

    a.p = q8_0_collect(call);
    a.tokens = a.p.tokens;
    a.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.tile_rows = a.gate_up ? kernel->param[0] / 2 : kernel->param[0];
    a.tiles0 = (int)ridge_ceil_div(a.p.weight[0].rows, a.tile_rows);
    a.tiles = a.tiles0 + (a.gate_up ? 0 : (int)ridge_ceil_div(a.p.weight[1].rows, a.tile_rows));
    a.k_steps = (int)ridge_ceil_div(a.p.blocks, Q8_0_STEP);
    a.two_teams = call->op == RIDGE_Q8_0_MATMUL_HC_EXPAND && a.tokens <= 4 && a.k_steps <= 2;
    if (!a.tiles)
        return RIDGE_OK;
    if (((uintptr_t)a.p.x_scales | (uintptr_t)(a.p.x_ld * 4)) % 16 || (!raw && !q8_0_scales_aligned(&a.p, 16)) ||
        !lay_out(&a, subs, tokens, raw, kernel->param[1] * 1024, steps_of(&a, device->units), &bytes))
        return q8_0_launch_dp4a(device, kernel, bound, workspace, size, stream);
    set_pace(&a, device->units, subs, kernel->param[1] < 200, a.p.weights_const);
    a.x_dtype = (int)RIDGE_I8;
    if (q8_0_fuses_x(&bound->problem) && !a.p.norm && a.x_resident) {
        a.x_dtype = (int)call->arg[0].dtype;
        a.x_floats = (const char *)call->arg[0].data;
        a.x_stride = q8_0_row_bytes(&call->arg[0]);
    } else {
        status = q8_0_quantise(device, kernel, call, workspace, stream, &a.p);
        status = status ? status : map_x(device, &a);
    }
    for (int i = 0; i < 2 && !status; i++)
        if (a.p.weight[i].rows)
            status = map_weight(device, &a, i, raw);
    if (status)
        return status;
    return host_launch_shared(device, kernel->name,
                              functions[(subs == 1   ? 0
                                         : subs == 2 ? 2
                                                     : 6) +
                                        (tokens == 16 ? 2 : 0) + raw],
                              dim3((unsigned)(a.tiles < device->units ? a.tiles : device->units)),
                              THREADS(subs, tokens), bytes, &a, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1], rows = problem->dim[2];

    if (kernel->param[1] << 10 > host_max_shared(device))
        return "needs more shared memory than a CTA may have here";
    if (problem->dim[0] == 0 || cols == 0)
        return "nothing to multiply";
    if (problem->dim[0] > Q8_0_DECODE_TOKENS)
        return "more than 16 tokens";
    if (cols % 256)
        return "TMA needs cols that are a multiple of 256";
    if (problem->align < 4)
        return "TMA needs rows that begin at multiples of 16 bytes";
    if (cols > 0x3fffff00 || rows > 0x3fffff00 || problem->dim[3] > 0x3fffff00)
        return "more than 2^30 rows or columns";
    if (problem->dim[0] > 8 && kernel->param[0] < 2 * SUB)
        return "more than 8 tokens need tiles of 16 rows";
    return NULL;
}

/* --------------------------------------------------------------------------------------------------------- the cost */

/* Microseconds on an H200, fitted to 329 times measured there at 4 to 71 MB and 1 to 16 tokens, in graphs of 38 calls
 * and more: the row that is picked is on average within 0.1 % of the best, at worst 2.1 % behind it.
 *
 * A call takes start + (read^4 + work^4)^(1/4), where read is the time of the weights at `rate` and work the time of
 * the CTA that has most to do; the fourth power is between their sum and their maximum, because they overlap. */
typedef struct cost_fit {
    double start;            /* us: launch, first loads, last epilogue */
    double rate;             /* TB/s (= MB/us) of weights */
    double step, step_token; /* us a k step, and for each token beyond the first */
    double tile, tile_token; /* us a tile (its epilogue), and for each token beyond the first */
    double x_mb;             /* us a MB of x that all CTAs together fetch beyond the first token's */
    double wait, wait_mb; /* us without constant weights, when loads wait for the primary grid: once, a MB of weights */
} cost_fit;

enum { TMA32, TMA16, TMA16_HALF, TMA8_HALF, TMA16_SMALL };
static const cost_fit fits[] = {
    /* start rate  step    +token  tile   +token  x_mb    wait   wait_mb */
    {2.03, 4.46, 0.02, 0.0355, 0.29, 0.0244, 0.0851, 0.587, 0.0084},   /* TMA32 */
    {1.38, 4.39, 0.0005, 0.0168, 0.351, 0.0008, 0.125, 0.744, 0.0048}, /* TMA16 */
    {1.46, 4.38, 0.226, 0.0119, 0.181, 0.0037, 0.152, 0.572, 0},       /* TMA16_HALF */
    {1.29, 4.03, 0.129, 0.0079, 0.15, 0.0003, 0.184, 0.586, 0.0092},   /* TMA8_HALF */
    {1.56, 4.38, 0.226, 0.0119, 0.181, 0.0037, 0.152, 0.572, 0},       /* TMA16_SMALL: TMA16_HALF's, and 0.1 to start */
};

/* What the fit leaves over in some regimes, us (the same measurements, but as noted). */
static const double GAIN_PREFETCHED = 0.46, /* the CTA's one tile was prefetched into L2, up to 8 tokens */
    GAIN_SHORT_CONST = 1.0, /* a k step a tile, constant weights: the dependent launch is triggered late */
    GAIN_SHORT_2_TOKENS =
        0.64,              /* the same without constant weights: up to 2 tokens, whose first k steps are prefetched */
    GAIN_SHORT = 0.34,     /* and with more */
    GAIN_OVERLAP = 0.55,   /* few k steps, constant weights: the next call's CTAs fill their rings beside this one's */
    GAIN_UNEVEN = 3.58,    /* whole shared memory, constant weights: a wave of SMs that end early start the next call */
    LOSS_HC_TOKEN = 0.1,   /* a token of HC expand: two epilogue warps are late where the product is short */
    LOSS_HC_HALF = 1,      /* HC expand with long rows: 0.9 to 1.9 us behind the whole memory at 8192 -> 4096 */
    LOSS_X_FLOATS = 1,     /* x of floats follows other kernels, where the whole memory is faster (a layer of ds4flash
                              54.2 -> 51.5 us) */
    LOSS_X_LAUNCH = 3,     /* behind a launch that quantises x */
    LOSS_SHORT_STEP = 2.5, /* among the short kernels of a small model's step (Qwen3-0.6B 899 -> 767 us a step) */
    H200_COPY_GBPS = 4200;

static double pow4(double v)
{
    return v * v * v * v;
}

/* What set_pace gains with tiles of 16 rows and half of the shared memory. steps, tiles: of a CTA. */
static double pace_gain(const ridge_problem *problem, double steps, double tiles)
{
    const int64_t tokens = problem->dim[0];
    const bool weights_const = problem->flags & RIDGE_WEIGHTS_CONST;

    if (!weights_const && tiles <= 1 && steps <= 4)
        return tokens <= 8 ? GAIN_PREFETCHED : 0;
    if (steps > 8 && steps <= tiles)
        return weights_const ? GAIN_SHORT_CONST : tokens <= 2 ? GAIN_SHORT_2_TOKENS : GAIN_SHORT;
    return weights_const && steps <= 8 && tiles > 1 && (tokens <= 2 || steps <= 4) ? GAIN_OVERLAP : 0;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const cost_fit *t = &fits[kernel->param[2]];
    const bool half = kernel->param[1] < 200, hc = problem->op == RIDGE_Q8_0_MATMUL_HC_EXPAND;
    const bool weights_const = problem->flags & RIDGE_WEIGHTS_CONST;
    const bool floats = problem->dtype[0] != RIDGE_I8 && !q8_0_has_norm(problem); /* a norm makes codes */
    const double cols = (double)problem->dim[1], mb = q8_0_bytes(problem) * 1e-6, tile_rows = kernel->param[0];
    const double more = (double)problem->dim[0] - 1; /* tokens */
    const double tiles = (double)(int64_t)((mb * 1e6 / (cols * (34.0 / 32.0)) + tile_rows - 1) / tile_rows);
    const double cta_tiles = (double)(int64_t)((tiles + device->units - 1) / device->units);
    const double steps = cta_tiles * (double)((problem->dim[1] + 1023) / 1024);
    const double work = steps * (t->step + more * t->step_token) + cta_tiles * (t->tile + more * t->tile_token);
    const double bandwidth = device->copy_gbps / H200_COPY_GBPS;
    double us = t->start + sqrt(sqrt(pow4(mb / (t->rate * bandwidth)) + pow4(work)));

    us +=
        t->x_mb * more * cols * 1.14e-6 * (tiles < device->units ? tiles : device->units); /* 36 bytes for 32 columns */
    if (!weights_const)
        us += t->wait + t->wait_mb * mb / bandwidth;
    if (half && tile_rows == 16)
        us -= pace_gain(problem, steps, cta_tiles);
    if (!half && cta_tiles > 1 && weights_const)
        us -= GAIN_UNEVEN * (cta_tiles * device->units / tiles - 1);
    if (hc && tile_rows < 32 && cols <= 2048)
        us += LOSS_HC_TOKEN * more;
    if (half && tile_rows == 16 && cols >= 4096 && steps > 8 && hc)
        us += LOSS_HC_HALF;
    if (half && floats && device->arch < RIDGE_ARCH_SM120)
        us += LOSS_X_FLOATS;
    if (half && floats && !q8_0_fuses_x(problem))
        us += LOSS_X_LAUNCH;
    if (q8_0_follows(problem) && cols <= 3072 && mb < 8 && device->arch < RIDGE_ARCH_SM120)
        us += LOSS_SHORT_STEP;
    return us;
}

#define ROW(op_name, op_id, tile_rows, name, budget, fit)                                            \
    {                                                                                                \
        "cuda." op_name ".tma" name, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, \
            {tile_rows, budget, fit}, why_not, q8_0_workspace, cost, launch                          \
    }
#define ROWS_16_32(op_name, op_id)                                                        \
    ROW(op_name, op_id, 32, "32", 222, TMA32), ROW(op_name, op_id, 16, "16", 222, TMA16), \
        ROW(op_name, op_id, 16, "16half", 112, TMA16_HALF),                               \
        ROW(op_name, op_id, 16, "16small", 96, TMA16_SMALL) /* what a CTA of sm_120 may have */
#define ROWS(op_name, op_id) ROWS_16_32(op_name, op_id), ROW(op_name, op_id, 8, "8half", 112, TMA8_HALF)

/* param: rows of a tile (gate and up have at least 8 each), KB of shared memory, index of fits. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROWS_16_32("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_tma = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

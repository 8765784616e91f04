/* matmul_tma.cu: the products of Q8_0 decode at the rate of the weights' stream, sm_90 up.
 *
 * A persistent block works through tiles of 8, 16 or 32 weight rows. One warp loads: TMA brings one turn of the
 * partitions, 1024 columns of the tile's rows, into a ring of stages in shared memory. Eight warps compute (with 32
 * rows twice eight, 16 rows each), warp p the partition p of the canonical order (src/math/q8_0.h): of each turn its 4
 * blocks, one matrix instruction m16n8k32 a block, 16 rows and 8 tokens, the weights as its rows and the tokens as its
 * columns. The instruction's sum starts at the integer 0x4b400000, the bits of the float 12582912: sum + that, read as
 * a float, is 12582912 + dot exactly, and one subtraction makes it dot, where the conversion instruction runs at a
 * quarter of the rate. A lane keeps the chains of its tokens and rows; nothing crosses lanes or warps before the tile's
 * end, where the eight partitions go through shared memory to the finishing warps: a thread adds the tree of four rows
 * (of one, where more than a store follows) and does the rest, while the other warps are at the next tile.
 *
 * Outside of the matrices TMA writes zeros: ragged turns and rows are blocks of zero codes and zero scales,
 * which leave no trace. Bytes moved: the weights once for all tokens; x from L2 once a block where it fits beside the
 * ring, else once a tile. Barriers: full[s] (bytes of a stage) hands a stage's weights to the computing warps, X_FULL
 * + s its x (+ i box i, where x stays), empty[s] (an arrival a warp) gives both back; summed[i] hands partial sums to
 * the finishing warps, taken[i] gives their place back; READY: all but full[] are made. */
#include <math.h>

#include "matmul_tma_epilogue.cuh"

#if __CUDA_ARCH__ >= 900
/* What the loading thread needs for its first loads, and no more: all multiprocessors wait for the last one to get
 * here. One thread makes barriers faster than many: the instruction takes one address of all lanes. */
template <int RAW> static __device__ __forceinline__ void start_loading(const stream_args &a, uint32_t shared)
{
    const uint32_t full = shared + a.at_bars;

    ptx_prefetch_map(&a.codes[0]);
    if (!RAW)
        ptx_prefetch_map(&a.scales[0]);
    for (int i = 0; i < a.stages; i++)
        ptx_mbarrier_init(full + 8 * i, 1);
    ptx_mbarrier_init(full + READY, 1);
    ptx_mbarrier_fence_init();
}

/* A finishing thread makes the other barriers. x goes to L2, a box of it from this block: a kernel in front may still
 * write it, but all writes meet there. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void start_barriers(const stream_args &a, uint32_t shared)
{
    const uint32_t empty = shared + a.at_bars + 8 * MOST_STAGES, summed = empty + 8 * MOST_STAGES;
    const int boxes = a.resident ? (a.turns + (1 << a.x_shift) - 1) >> a.x_shift : a.stages;
    const int turn = a.resident ? (int)blockIdx.x % boxes << a.x_shift : (int)blockIdx.x % a.turns;

    for (int i = 0; i < a.stages; i++)
        ptx_mbarrier_init(empty + 8 * i, CONSUMERS(SUBS));
    for (int i = 0; i < SUMS; i++) {
        ptx_mbarrier_init(summed + 8 * i, CONSUMERS(SUBS));
        ptx_mbarrier_init(summed + 8 * (SUMS + i), FINISHERS(SUBS, TOKENS) >> a.two);
    }
    for (int i = 0; i < boxes; i++)
        ptx_mbarrier_init(shared + a.at_bars + X_FULL + 8 * i, 1);
    ptx_mbarrier_fence_init();
    if (a.x_dtype == RIDGE_I8) {
        ptx_tma_prefetch_3d(&a.x, 0, 0, turn * 8);
        ptx_tma_prefetch_2d(&a.x_scales, turn * Q8_0_TURN, 0);
    }
}
#endif

#if __CUDA_ARCH__ >= 1200
#define BLOCKS(subs, tokens) 1 /* a multiprocessor's shared memory */
#elif __CUDA_ARCH__ == 1030
#define BLOCKS(subs, tokens) (LARGE(subs, tokens) || (tokens) == 16 ? 1 : 2) /* two would spill registers */
#else
#define BLOCKS(subs, tokens) (LARGE(subs, tokens) ? 1 : 2)
#endif

template <int SUBS, int TOKENS, int RAW>
static __global__ void __launch_bounds__(THREADS(SUBS, TOKENS), BLOCKS(SUBS, TOKENS))
    q8_0_stream(const __grid_constant__ stream_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const int warp = threadIdx.x / 32;

#if __CUDA_ARCH__ >= 1200
    if (SUBS == 4) /* its rows want more shared memory than there is */
        return;
#endif
#if __CUDA_ARCH__ == 1030
    if (SUBS == 4 && TOKENS == 16) /* it would spill registers: why_not refuses it */
        return;
#endif
    if (warp == CONSUMERS(SUBS)) {
        if (threadIdx.x % 32 == 0)
            start_loading<RAW>(a, shared);
        __syncwarp();
        ptx_barrier_arrive(3, THREADS(SUBS, TOKENS));
        if (threadIdx.x % 32 == 0)
            produce<SUBS, RAW>(a, shared);
        return;
    }
    if (threadIdx.x == 32 * (CONSUMERS(SUBS) + 1))
        start_barriers<SUBS, TOKENS>(a, shared);
    __syncwarp();
    ptx_barrier_sync(3, THREADS(SUBS, TOKENS)); /* barriers are there */
    if (threadIdx.x == 32 * (CONSUMERS(SUBS) + 1))
        ptx_mbarrier_arrive(shared + a.at_bars + READY);
    if (warp < CONSUMERS(SUBS))
        consume<SUBS, TOKENS, RAW>(a, memory, shared);
    else if (warp == CONSUMERS(SUBS) + 1 + FINISHERS(SUBS, TOKENS))
        send_x(a, shared);
    else if (a.p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND)
        finish_hc<SUBS, TOKENS>(a, memory, shared);
    else if (a.gate_up)
        finish_gate_up<SUBS, TOKENS>(a, memory, shared);
    else
        finish<SUBS, TOKENS>(a, memory, shared);
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORM(subs, tokens) (const void *)q8_0_stream<subs, tokens, 0>, (const void *)q8_0_stream<subs, tokens, 1>
#define BY_TOKENS(subs) BY_FORM(subs, 8), BY_FORM(subs, 16)

/* [planes, blocks] of one sub and 8 tokens; then [2, 4 subs][8, 16 tokens][planes, blocks] */
static const void *const functions[10] = {BY_FORM(1, 8), BY_TOKENS(2), BY_TOKENS(4)};

/* AHEAD_MOST: bytes of a block's weights up to which bringing all of them into L2 before the kernels in front have
 * finished saves time; loads queue behind more (2048 -> 4096: 4.12 -> 4.36 us). AHEAD_HALF: where the blocks begin
 * early, and the next kernel is let in late (4096 -> 1024: 3.60 -> 2.81 us).
 * WINDOW_BYTES: of a block's weights, on their way at one time: two to three stages. With one the stream halts; with
 * six the memory system is so full that x takes 2.4 us instead of 1.0. */
enum {
    MEMORY_MOST = 227 * 1024,
    MEMORY_SMALL = 99 * 1024,
    AHEAD_MOST = 40 * 1024,
    AHEAD_HALF = 72 * 1024,
    WINDOW_BYTES = 56 * 1024
};

static ridge_status prepare(const ridge_device *device)
{
    if (device->arch < RIDGE_ARCH_SM90 || device->arch > RIDGE_ARCH_SM121)
        return RIDGE_OK;
    return host_prepare(device, functions, 10, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        device->arch < RIDGE_ARCH_SM120 ? MEMORY_MOST : MEMORY_SMALL, "q8_0_stream: loading kernels");
}

static uint32_t up_to(uint32_t bytes, uint32_t step)
{
    return (bytes + step - 1) / step * step;
}

/* Where everything lies in `budget` bytes of shared memory; the stages are what is left. False: not even two. */
static bool lay_out(stream_args *a, int subs, int tokens, bool raw, int64_t budget, uint32_t *bytes)
{
    const int64_t codes = subs * (raw ? RAW_BYTES : CODE_BYTES), scales = raw ? 0 : subs * SCALE_BYTES;
    const int one = a->tokens == 1, most = one ? 3 : 5; /* of x_shift: a box has at most 256 scales or lines */
    const int64_t x = a->tokens * 1024;
    const int64_t x_scales = one ? 4 * Q8_0_TURN : up_to((uint32_t)a->tokens * X_SCALE_PITCH, 128);
    const int64_t sums = SUMS * SUMS_BYTES(subs, tokens);
    const int64_t factors = a->p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND ? 4 * HC_FACTORS * a->tokens : 0;
    int64_t room = budget - sums - factors - BAR_BYTES - 2048; /* for alignment */
    uint32_t slots;

    a->x_scales_slot = (int)x_scales;
    while (a->x_shift < most && MOST_STAGES << a->x_shift < a->turns) /* turn by turn while there are barriers */
        a->x_shift++;
    slots = (uint32_t)up_to((uint32_t)a->turns, 1u << a->x_shift);
    a->resident = MOST_STAGES << a->x_shift >= a->turns && slots * (x + x_scales) + 3 * (codes + scales) <= room;
    if (a->resident) {
        a->stages = (int)((room - slots * (x + x_scales)) / (codes + scales));
    } else {
        a->stages = (int)(room / (codes + scales + x + x_scales));
        a->x_shift = 0;
    }
    a->stages = a->stages > MOST_STAGES ? MOST_STAGES : a->stages;
    slots = a->resident ? slots : (uint32_t)a->stages;
    a->at_x = up_to((uint32_t)(a->stages * codes), 1024);
    a->at_scales = a->at_x + slots * (uint32_t)x;
    a->at_x_scales = a->at_scales + (uint32_t)(a->stages * scales);
    a->at_sums = a->at_x_scales + slots * (uint32_t)x_scales;
    a->at_factors = a->at_sums + (uint32_t)sums;
    a->at_bars = up_to(a->at_factors + (uint32_t)factors, 128);
    *bytes = a->at_bars + BAR_BYTES;
    return a->stages >= 2 && *bytes <= (uint32_t)budget;
}

static ridge_status map_weight(const ridge_device *device, stream_args *a, int i, bool raw)
{
    const q8_0_weight *m = &a->p.weight[i];
    const int64_t cols = a->p.blocks * RIDGE_Q8_0_BLOCK;
    ridge_status status;

    if (raw)
        return host_tensor_map(device, &a->codes[i], RIDGE_F64, m->scales, a->p.blocks * RIDGE_Q8_0_BYTES / 8, m->rows,
                               m->stride / 8, RAW_PITCH / 8, a->high, 0);
    status = host_tensor_map_lines(device, &a->codes[i], m->codes, cols, m->rows, m->stride, a->high, 8);
    if (!status)
        status = host_tensor_map(device, &a->scales[i], RIDGE_F16, m->scales, a->p.blocks, m->rows, m->scale_stride / 2,
                                 SCALE_PITCH / 2, a->high, 0);
    return status;
}

/* Tables of scales are not part of a problem: their alignment is seen here only. */
static bool tables_aligned(const q8_0_args *p, bool raw)
{
    uintptr_t bits = (uintptr_t)p->x_scales | (uintptr_t)(p->x_ld * 4);

    for (int i = 0; i < 2 && !raw; i++)
        if (p->weight[i].rows)
            bits |= (uintptr_t)p->weight[i].scales | (uintptr_t)p->weight[i].scale_stride;
    return bits % 16 == 0;
}

static_assert((int)RAW_BYTES == (int)CODE_BYTES + (int)SCALE_BYTES, "a stage has one size");

/* How many bytes are on their way when, and when the next kernel is let in, which takes it 3 to 4 us. With half of the
 * shared memory (`half`) its blocks begin while these work, and what they ask for is what these do not get. */
static void set_pace(stream_args *a, int units, int subs, bool half, bool settled)
{
    const int grid = a->tiles < units ? a->tiles : units, stage = subs * (CODE_BYTES + SCALE_BYTES);
    const int turns = (a->tiles + grid - 1) / grid * a->turns; /* of a block */

    a->share = a->tiles / grid;
    a->rest = a->tiles % grid;
    a->window = WINDOW_BYTES / stage;
    a->window = a->window < 2 ? 2 : a->window > a->stages ? a->stages : a->window;
    a->early = settled ? a->stages : 0;
    a->early_window = half ? turns > 8 || (turns <= a->stages && a->tokens <= 2) ? 2 : 1 : subs == 4 ? 3 : a->window;
    a->late = turns; /* at once */
    if (half && a->turns == 1 && turns > 8)
        a->late = 5;
    if (settled)
        return;
    if (a->share == 1 && !a->rest && (int64_t)turns * stage <= (half ? AHEAD_HALF : AHEAD_MOST)) {
        a->ahead = turns;
        a->late = half && turns > 1 ? turns - 1 : turns;
    } else if (a->late < turns && a->tokens <= 2) { /* 1024 -> 32768: 10.54 -> 10.23 us */
        a->late = 3;
        a->ahead = 2;
    }
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const ridge_call *call = &bound->call;

    const int subs = kernel->param[0] / SUB, tokens = call->dim[0] > 8 ? 16 : 8;
    const bool raw = problem->dtype[2] == RIDGE_U8;
    const int64_t cols = call->dim[1];
    stream_args a = {};
    uint32_t bytes = 0;
    bool inside = q8_0_inside(problem);
    ridge_status status = q8_0_begin(device, kernel, call, !inside, workspace, stream, &a.p);

    a.tokens = a.p.tokens;
    a.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.high = a.gate_up ? kernel->param[0] / 2 : kernel->param[0];
    a.tiles0 = (int)((a.p.weight[0].rows + a.high - 1) / a.high);
    a.tiles = a.tiles0 + (a.gate_up ? 0 : (int)((a.p.weight[1].rows + a.high - 1) / a.high));
    a.turns = (int)((a.p.blocks + Q8_0_TURN - 1) / Q8_0_TURN);
    a.two = call->op == RIDGE_Q8_0_MATMUL_HC_EXPAND && a.tokens <= 4 && a.turns <= 2;
    if (status || !a.tiles)
        return status;
    if (!tables_aligned(&a.p, raw) || !lay_out(&a, subs, tokens, raw, kernel->param[1] * 1024, &bytes)) {
        status = inside ? q8_0_begin(device, kernel, call, true, workspace, stream, &a.p) : RIDGE_OK;
        return status ? status : q8_0_launch_portable(device, kernel->name, &a.p, stream);
    }
    set_pace(&a, device->units, subs, kernel->param[1] < 200, call->flags & RIDGE_WEIGHTS_CONST);
    if (inside && !a.resident) {
        inside = false;
        status = q8_0_begin(device, kernel, call, true, workspace, stream, &a.p);
    }
    a.x_dtype = inside ? (int)call->arg[0].dtype : (int)RIDGE_I8;
    a.x_floats = (const char *)call->arg[0].data;
    a.x_stride = (call->arg[0].stride ? call->arg[0].stride : cols) * (a.x_dtype == RIDGE_F32 ? 4 : 2);
    for (int i = 0; i < 2 && !status; i++)
        if (a.p.weight[i].rows)
            status = map_weight(device, &a, i, raw);
    if (!status && !inside)
        status = host_tensor_map_lines(device, &a.x, a.p.x, cols, a.tokens, a.p.x_stride, a.tokens, 8 << a.x_shift);
    if (!status && !inside)
        status = host_tensor_map(device, &a.x_scales, RIDGE_F32, a.p.x_scales, a.p.blocks, a.p.tokens, a.p.x_ld,
                                 a.tokens == 1 ? Q8_0_TURN << a.x_shift : X_SCALE_PITCH / 4, a.tokens, 0);
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

    if (problem->dim[0] == 0 || cols == 0)
        return "nothing to multiply";
    if (cols % 256)
        return "TMA needs cols that are a multiple of 256";
    if (problem->align < 4)
        return "TMA needs rows that begin at multiples of 16 bytes";
    if (cols > 0x3fffff00 || rows > 0x3fffff00 || problem->dim[3] > 0x3fffff00)
        return "more than 2^30 rows or columns";
    if (problem->dim[0] > 8 && kernel->param[0] == 32 && device->arch == RIDGE_ARCH_SM103)
        return "more than 8 tokens leave no registers for tiles of 32 rows on sm_103";
    if (problem->dim[0] > 8 && kernel->param[0] < 2 * SUB)
        return "more than 8 tokens need tiles of 16 rows";
    return NULL;
}

/* Microseconds on an H200, fitted to 329 times measured there at 4 to 71 MB and 1 to 16 tokens, in graphs of 38 calls
 * and more: the row that is picked is on average within 0.1 % of the best, at worst 2.1 % behind it. */
typedef struct stream_times {
    double start, rate;                        /* TB/s */
    double turn, turn_token, tile, tile_token; /* of the block with most of them; a token beyond the first */
    double x;                                  /* a MB of x that all blocks fetch together, beyond one token's */
    double waits, waits_mb;                    /* not settled: once, and a MB of weights */
} stream_times;

static const stream_times times[] = {{2.03, 4.46, 0.02, 0.0355, 0.29, 0.0244, 0.0851, 0.587, 0.0084},   /* 32 */
                                     {1.38, 4.39, 0.0005, 0.0168, 0.351, 0.0008, 0.125, 0.744, 0.0048}, /* 16 */
                                     {1.46, 4.38, 0.226, 0.0119, 0.181, 0.0037, 0.152, 0.572, 0},       /* 16half */
                                     {1.29, 4.03, 0.129, 0.0079, 0.15, 0.0003, 0.184, 0.586, 0.0092},   /* 8half */
                                     {1.56, 4.38, 0.226, 0.0119, 0.181, 0.0037, 0.152, 0.572, 0}};      /* 16small */

static double fourth(double v)
{
    return v * v * v * v;
}

/* What set_pace takes off with tiles of 16 rows and half of the shared memory, us: turns of a block, tiles of it. */
static double pace_gain(const ridge_problem *problem, double turns, double share)
{
    const int64_t tokens = problem->dim[0];
    const bool settled = problem->flags & RIDGE_WEIGHTS_CONST;

    if (!settled && share <= 1 && turns <= 4)
        return tokens <= 8 ? 0.46 : 0;
    if (turns > 8 && turns <= share) /* a turn a tile */
        return settled ? 1.0 : tokens <= 2 ? 0.64 : 0.34;
    return settled && turns <= 8 && share > 1 && (tokens <= 2 || turns <= 4) ? 0.55 : 0;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const stream_times *t = &times[kernel->param[2]];
    const bool half = kernel->param[1] < 200, hc = problem->op == RIDGE_Q8_0_MATMUL_HC_EXPAND;
    const double cols = (double)problem->dim[1], mb = q8_0_bytes(problem) * 1e-6, high = kernel->param[0];
    const double more = (double)problem->dim[0] - 1, speed = device->copy_gbps / 4200;
    const double tiles = (double)(int64_t)((mb * 1e6 / (cols * (34.0 / 32.0)) + high - 1) / high);
    const double share = (double)(int64_t)((tiles + device->units - 1) / device->units);
    const double turns = share * (double)((problem->dim[1] + 1023) / 1024);
    const double work = turns * (t->turn + more * t->turn_token) + share * (t->tile + more * t->tile_token);
    double us = t->start + sqrt(sqrt(fourth(mb / t->rate) + fourth(work)));

    us += t->x * more * cols * 1.14e-6 * (tiles < device->units ? tiles : device->units);
    if (!(problem->flags & RIDGE_WEIGHTS_CONST))
        us += t->waits + t->waits_mb * mb;
    if (half && high == 16)
        us -= pace_gain(problem, turns, share);
    if (!half && share > 1 && problem->flags & RIDGE_WEIGHTS_CONST) /* blocks that end early let the next ones begin */
        us -= 3.58 * (share * device->units / tiles - 1);
    if (hc && high < 32 && cols <= 2048) /* two finishing warps only: they are late where the product is short */
        us += 0.1 * more;
    if (half && high == 16 && cols >= 4096 && turns > 8 && hc)
        us += 1; /* 0.9 to 1.9 us behind whole blocks at 8192 -> 4096 */
    if (half && problem->dtype[0] != RIDGE_I8 && device->arch < RIDGE_ARCH_SM120)
        us += 1; /* x of floats stands between other kernels: there whole blocks are faster (ds4flash 54.2 -> 51.5) */
    if (half && problem->dtype[0] != RIDGE_I8 && !q8_0_inside(problem)) /* behind a launch that quantises x */
        us += 3;
    return us / speed;
}

#define ROW(op_name, op_id, high, name, budget, kind, arch_most)                                                   \
    {                                                                                                              \
        "cuda." op_name ".stream" name, op_id, RIDGE_ARCH_SM90, arch_most, Q8_0_CONTRACT, 0, {high, budget, kind}, \
            why_not, q8_0_workspace, cost, launch                                                                  \
    }
#define WIDE(op_name, op_id)                                                                                          \
    ROW(op_name, op_id, 32, "32", 222, 0, RIDGE_ARCH_SM103), ROW(op_name, op_id, 16, "16", 222, 1, RIDGE_ARCH_SM103), \
        ROW(op_name, op_id, 16, "16half", 112, 2, RIDGE_ARCH_SM103),                                                  \
        ROW(op_name, op_id, 16, "16small", 96, 4, RIDGE_ARCH_SM121) /* what a block of sm_120 may have */
#define ROWS(op_name, op_id) WIDE(op_name, op_id), ROW(op_name, op_id, 8, "8half", 112, 3, RIDGE_ARCH_SM103)

/* param: rows of a tile, KB of shared memory, place in times. Gate and up have at least 8 rows each. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    WIDE("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_stream = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

/* q8_0_stream.cu: the products of Q8_0 decode at the rate of the weights' stream, sm_90 up.
 *
 * A persistent block works through tiles of 8, 16 or 32 weight rows. One warp loads: TMA brings one turn of the
 * partitions, 1024 columns of the tile's rows, into a ring of stages in shared memory. Eight warps compute, warp p the
 * partition p of the canonical order (q8_0_math.h): of each turn its 4 blocks, one matrix instruction m16n8k32 a block
 * and 8 rows, the tokens as its 16 (or 8 and 8 unused) rows and the weight rows as its columns. The instruction's sum
 * starts at the integer 0x4b400000, the bits of the float 12582912: sum + that, read as a float, is 12582912 + dot
 * exactly, and one subtraction makes it dot, where the conversion instruction runs at a quarter of the rate. A lane
 * keeps the chains of its tokens and rows; nothing crosses lanes or warps before the tile's end, where the eight
 * partitions go through shared memory to the finishing warps: one thread an element adds the tree and does the rest,
 * while the other warps are at the next tile.
 *
 * Outside of the matrices TMA writes zeros: ragged turns and rows are blocks of zero codes and zero scales,
 * which leave no trace. Bytes moved: the weights once for all tokens; x from L2 once a block where it fits beside the
 * ring, else once a tile. Barriers: full[s] (bytes of a stage) hands a stage to the eight warps, empty[s] (eight
 * arrivals) gives it back; summed[i] (eight arrivals) hands partial sums to the finishing warps, taken[i] gives
 * their place back. */
#include "q8_0_stream.cuh"

#if __CUDA_ARCH__ >= 900
/* --------------------------------------------------------------------------------------------- the finishing warps */

/* One thread has one row of every tile, and every (WIDTH / high)-th token. What a tile needs is in registers before: a
 * warp that runs alone has only its own instructions to hide behind. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void finish(const stream_args &a, char *memory, uint32_t shared)
{
    enum { PITCH = SUMS_PITCH(SUBS), PLANE = TOKENS * PITCH, WIDTH = 32 * FINISHERS(SUBS, TOKENS) };
    const uint32_t summed = shared + a.at_bars + 8 * 2 * MOST_STAGES, taken = summed + 8 * SUMS;
    const int thread = threadIdx.x - 32 * (LOADER + 1), high = a.high, r = thread % high, begin = thread / high,
              step = WIDTH / high, tokens = a.tokens;
    const bool gate_up = a.gate_up, hc = a.p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND, bf16 = a.p.bf16;
    const int rows[2] = {(int)a.p.weight[0].rows, (int)a.p.weight[1].rows};
    char *const out[2] = {(char *)a.p.out[0], (char *)a.p.out[1]};
    const int64_t stride[2] = {a.p.out_stride[0], a.p.out_stride[1]};
    const float *from = (const float *)(memory + a.at_sums) + begin * PITCH + r;
    uint32_t parity = 0;
    int sums = 0;

    ptx_grid_wait(); /* before anything of the results is written, or read by the epilogues */
    for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        int row;
        const int which = tile_rows(a, tile, &row);
        const bool inside = row + r < (which ? rows[1] : rows[0]);
        const int64_t pitch = step * (which ? stride[1] : stride[0]);
        int64_t at = begin * (which ? stride[1] : stride[0]) + row + r;
        q8_0_streams streams;

        if (hc && inside && begin < tokens)
            q8_0_fetch(a.p, row + r, begin, &streams);
        ptx_mbarrier_wait(summed + 8 * sums, parity);
        for (int token = begin; token < tokens && inside;
             token += 2 * step) { /* two at a time hide each other's waits */
            const float *parts = from + sums * (RIDGE_Q8_0_PARTS * PLANE) + (token - begin) * PITCH;
            const bool more = token + step < tokens;
            float y[2] = {}, up[2] = {};

            if (more)
                y[0] = sum_parts<PLANE>(parts), y[1] = sum_parts<PLANE>(parts + step * PITCH);
            else
                y[0] = sum_parts<PLANE>(parts);
            if (gate_up) {
                up[0] = sum_parts<PLANE>(parts + high);
                up[1] = more ? sum_parts<PLANE>(parts + step * PITCH + high) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int t = token + i * step;

                if (i && !more)
                    break;
                if (hc) {
                    if (t != begin)
                        q8_0_fetch(a.p, row + r, t, &streams);
                    q8_0_finish_hc(a.p, row + r, t, y[i], &streams);
                    continue;
                }
                if (gate_up)
                    y[i] = q8_0_swiglu(a.p.act, y[i], up[i], a.p.token_scale ? a.p.token_scale[t] : 1.0f, a.p.swiglu);
                if (bf16)
                    num_store<RIDGE_BF16>(which ? out[1] : out[0], at, y[i]);
                else
                    num_store<RIDGE_F32>(which ? out[1] : out[0], at, y[i]);
                at += pitch;
            }
        }
        __syncwarp(); /* every lane has read the sums */
        if (threadIdx.x % 32 == 0)
            ptx_mbarrier_arrive(taken + 8 * sums);
        sums ^= 1;
        parity ^= sums == 0;
    }
}
#endif

template <int SUBS, int TOKENS, int RAW>
static __global__ void __launch_bounds__(THREADS(SUBS, TOKENS), LARGE(SUBS, TOKENS) ? 1 : 2)
    q8_0_stream(const __grid_constant__ stream_args a)
{
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200 /* not where a block has 99 KB */
    extern __shared__ __align__(1024) char memory[];
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const int warp = threadIdx.x / 32;

    ptx_grid_release();
    if (threadIdx.x == 32 * LOADER) {
        for (int i = 0; i < 2; i++)
            if (a.p.weight[i].rows) {
                ptx_prefetch_map(&a.codes[i]);
                if (!RAW)
                    ptx_prefetch_map(&a.scales[i]);
            }
        if (a.x_dtype == RIDGE_I8) {
            ptx_prefetch_map(&a.x);
            ptx_prefetch_map(&a.x_scales);
        }
        for (int i = 0; i < MOST_STAGES; i++) {
            ptx_mbarrier_init(shared + a.at_bars + 8 * i, 1);
            ptx_mbarrier_init(shared + a.at_bars + 8 * (MOST_STAGES + i), CONSUMERS);
        }
        for (int i = 0; i < SUMS; i++) {
            ptx_mbarrier_init(shared + a.at_bars + 8 * (2 * MOST_STAGES + i), CONSUMERS);
            ptx_mbarrier_init(shared + a.at_bars + 8 * (2 * MOST_STAGES + SUMS + i), FINISHERS(SUBS, TOKENS));
        }
        ptx_mbarrier_fence_init();
    }
    __syncthreads(); /* the barriers exist */
    if (warp < CONSUMERS)
        consume<SUBS, TOKENS, RAW>(a, memory, shared);
    else if (warp > LOADER)
        finish<SUBS, TOKENS>(a, memory, shared);
    else if (threadIdx.x % 32 == 0)
        produce<SUBS, RAW>(a, shared);
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORM(subs, tokens) (const void *)q8_0_stream<subs, tokens, 0>, (const void *)q8_0_stream<subs, tokens, 1>
#define BY_TOKENS(subs) BY_FORM(subs, 8), BY_FORM(subs, 16)

/* [1, 2, 4 subs][8, 16 tokens][planes, blocks] */
static const void *const functions[12] = {BY_TOKENS(1), BY_TOKENS(2), BY_TOKENS(4)};

enum { MEMORY_MOST = 227 * 1024 };

static ridge_status prepare(const ridge_device *device)
{
    if (device->arch < RIDGE_ARCH_SM90 || device->arch > RIDGE_ARCH_SM103)
        return RIDGE_OK;
    return host_prepare(device, functions, 12, cudaFuncAttributeMaxDynamicSharedMemorySize, MEMORY_MOST,
                        "q8_0_stream: loading kernels");
}

static uint32_t up_to(uint32_t bytes, uint32_t step)
{
    return (bytes + step - 1) / step * step;
}

/* Where everything lies in `budget` bytes of shared memory; the stages are what is left. False: not even two. */
static bool lay_out(stream_args *a, int subs, int tokens, bool raw, int64_t budget, uint32_t *bytes)
{
    const int64_t codes = subs * (raw ? RAW_BYTES : CODE_BYTES), scales = raw ? 0 : subs * SCALE_BYTES;
    const int64_t x = a->tokens * 1024, x_scales = up_to((uint32_t)a->tokens * X_SCALE_PITCH, 128);
    const int64_t sums = SUMS * SUMS_BYTES(subs, tokens);
    int64_t room = budget - sums - BAR_BYTES - 2048; /* for alignment */
    uint32_t slots;

    a->x_scales_slot = (int)x_scales;
    a->resident = a->turns * (x + x_scales) + 3 * (codes + scales) <= room;
    if (a->resident)
        a->stages = (int)((room - a->turns * (x + x_scales)) / (codes + scales));
    else
        a->stages = (int)(room / (codes + scales + x + x_scales));
    a->stages = a->stages > MOST_STAGES ? MOST_STAGES : a->stages;
    slots = (uint32_t)(a->resident ? a->turns : a->stages);
    a->at_x = up_to((uint32_t)(a->stages * codes), 1024);
    a->at_scales = a->at_x + slots * (uint32_t)x;
    a->at_x_scales = a->at_scales + (uint32_t)(a->stages * scales);
    a->at_sums = a->at_x_scales + slots * (uint32_t)x_scales;
    a->at_bars = up_to(a->at_sums + (uint32_t)sums, 128);
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

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                           const ridge_call *call, void *workspace, size_t, void *stream)
{
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
    a.early = (call->flags & RIDGE_WEIGHTS_SETTLED) != 0;
    if (status || !a.tiles)
        return status;
    if (!tables_aligned(&a.p, raw) || !lay_out(&a, subs, tokens, raw, kernel->param[1] * 1024, &bytes)) {
        status = inside ? q8_0_begin(device, kernel, call, true, workspace, stream, &a.p) : RIDGE_OK;
        return status ? status : q8_0_launch_portable(device, kernel->name, &a.p, stream);
    }
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
        status = host_tensor_map_lines(device, &a.x, a.p.x, cols, a.tokens, a.p.x_stride, a.tokens, 8);
    if (!status && !inside)
        status = host_tensor_map(device, &a.x_scales, RIDGE_F32, a.p.x_scales, a.p.blocks, a.p.tokens, a.p.x_ld,
                                 X_SCALE_PITCH / 4, a.tokens, 0);
    if (status)
        return status;
    return host_launch_shared(device, kernel->name,
                              functions[(subs == 1   ? 0
                                         : subs == 2 ? 4
                                                     : 8) +
                                        (tokens == 16 ? 2 : 0) + raw],
                              dim3((unsigned)(a.tiles < device->units ? a.tiles : device->units)),
                              THREADS(subs, tokens), bytes, &a, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
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
    if (problem->op == RIDGE_Q8_0_GATE_UP_SWIGLU && kernel->param[0] < 2 * SUB)
        return "gate and up need tiles of 16 rows";
    return NULL;
}

/* Microseconds on an H200, in the order that was measured there: a start, which two resident blocks of consecutive
 * kernels share; the stream of all weights; a multiprocessor's share at what its ring can pull; a least time a tile. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool half = kernel->param[1] < 200;
    const double width = (double)problem->dim[1] * (34.0 / 32.0), rows = q8_0_bytes(problem) / width;
    const double high = kernel->param[0], tokens = (double)problem->dim[0], speed = device->copy_gbps / 4200;
    const double tiles = (double)(int64_t)((rows + high - 1) / high);
    const double share = (double)(int64_t)((tiles + device->units - 1) / device->units);
    const double pull = share * high * width * 1e-3 / (half ? 32 : 75), least = share * kernel->param[2] * 0.01;
    double us = q8_0_bytes(problem) * 1e-3 / (half ? 3870 : 4250);

    us = us > pull ? us : pull;
    us = us > least ? us : least;
    us += half ? 1.3 + 0.06 * tokens : 1.8 + 0.03 * tokens;
    return (us + (high == 8 ? 0.5 : 0)) / speed;
}

#define ROW(op_name, op_id, high, name, budget, least)                                              \
    {                                                                                               \
        "cuda." op_name ".stream" name, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM103, Q8_0_CONTRACT, 0, \
            {high, budget, least}, why_not, q8_0_workspace, cost, launch                            \
    }
#define ROWS(op_name, op_id)                                                         \
    ROW(op_name, op_id, 32, "32", 222, 100), ROW(op_name, op_id, 16, "16", 222, 85), \
        ROW(op_name, op_id, 16, "16half", 112, 68), ROW(op_name, op_id, 8, "8half", 112, 62)

/* param: rows of a tile, KB of shared memory, hundredths of a microsecond that a tile takes at least. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROWS("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_stream = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

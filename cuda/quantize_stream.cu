/* quantize_stream.cu: swiglu_quantize on sm_90 up to sm_103: persistent blocks, gate and up by TMA.
 *
 * One warp keeps three stages of 32 KB on their way to shared memory; 8 warps turn them into codes and scales
 * (quantize_tile.cuh). A tile of 128 x 128 comes in two parts of 64 rows of gate and up, and a warp waits for its own
 * part only. A stage is free again as soon as its warps hold
 * it in registers, so loads never stop while tiles are computed. full[s]: the stage's bytes are there (orders TMA's
 * writes before the warps' reads); empty[s]: its warps have read it (orders their reads before TMA's next writes).
 * Ragged edges: TMA gives zeros there, which change no scale, and stores are guarded. */
#include <cuda.h>

#include "quantize_tile.cuh"
#include "swiglu_guess.cuh"

enum {
    PARTS = 2,
    STAGES = 3,
    STAGE_BYTES = 32768,
    PITCH = 256 /* bytes of a row in a stage */,
    STREAM_THREADS = TILE_THREADS + 32,
    STREAM_BLOCKS = 2
};

typedef struct stream_args {
    CUtensorMap x, up;
    quantize_args p;
    uint32_t tiles;
} stream_args;

typedef struct stream_memory {
    uint8_t stage[STAGES][STAGE_BYTES];
    tile_memory tile;
    uint64_t full[STAGES], empty[STAGES];
} stream_memory;

#if __CUDA_ARCH__ >= 900

/* The loading warp: one thread. */
static __device__ void stream_load(const stream_args &a, stream_memory *m)
{
    const int rows = 128 / PARTS;
    uint32_t n = 0;

    for (uint32_t t = blockIdx.x; t < a.tiles; t += gridDim.x) {
        const int tr = (int)(t / a.p.across), tc = (int)(t % a.p.across);

        for (int part = 0; part < PARTS; part++, n++) {
            const uint32_t stage = n % STAGES, full = ptx_shared(&m->full[stage]), to = ptx_shared(m->stage[stage]);

            ptx_mbarrier_wait(ptx_shared(&m->empty[stage]), (n / STAGES & 1) ^ 1);
            ptx_mbarrier_expect(full, STAGE_BYTES);
            ptx_tma_load_2d(to, &a.x, tc * 128, tr * 128 + part * rows, full);
            ptx_tma_load_2d(to + STAGE_BYTES / 2, &a.up, tc * 128, tr * 128 + part * rows, full);
        }
    }
}

/* 8 elements in shared memory. */
static __device__ __forceinline__ void stream_words(const uint8_t *from, uint32_t *raw)
{
    const uint4 v = *(const uint4 *)from;

    raw[0] = v.x, raw[1] = v.y, raw[2] = v.z, raw[3] = v.w;
}

/* The exact result of the rows of 8 elements in `doubt`, whose bits are rows of this thread: the warp takes a row a
 * turn, and a lane an element of it. */
static __device__ __forceinline__ void stream_settle(const uint8_t *from, uint32_t doubt, int lane, uint32_t (*raw)[4])
{
    for (uint32_t lanes; (lanes = __ballot_sync(~0u, doubt != 0)) != 0;) {
        const int owner = __ffs((int)lanes) - 1, row = __shfl_sync(~0u, __ffs((int)doubt) - 1, owner);
        const uint32_t at = __shfl_sync(~0u, ptx_shared(from), owner) + row * PITCH + 2 * (lane & 7);
        const float gate = __uint_as_float((uint32_t)ptx_load_shared_half(at) << 16);
        const float up = __uint_as_float((uint32_t)ptx_load_shared_half(at + STAGE_BYTES / 2) << 16);
        const float y = ridge_act_fwd(RIDGE_SILU, gate, 1.0f) * up;
        const uint32_t word = ptx_bf16x2(__shfl_down_sync(~0u, y, 1), y);
        uint32_t exact[4];

#pragma unroll
        for (int k = 0; k < 4; k++)
            exact[k] = __shfl_sync(~0u, word, 2 * k);
        doubt &= lane == owner ? doubt - 1 : ~0u;
#pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                raw[i][k] = i == row && lane == owner ? exact[k] : raw[i][k];
    }
}

/* SwiGLU of this thread's 8 x 8 elements. */
template <int DTYPE>
static __device__ __forceinline__ void stream_swiglu(const quantize_args &p, const uint8_t *from, int lane,
                                                     uint32_t (*raw)[4])
{
    uint32_t doubt = 0, range = 0;

#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++) {
        uint32_t up[4], near = ~0u;

        stream_words(from + i * PITCH, raw[i]);
        stream_words(from + i * PITCH + STAGE_BYTES / 2, up);
        if (!GUESS || DTYPE != RIDGE_BF16) {
            tile_swiglu<DTYPE, FROM_SILU>(p, 0, 8, raw[i], up);
            continue;
        }
        range = guess_range(raw[i][0], raw[i][1], guess_range(raw[i][2], raw[i][3], range));
#pragma unroll
        for (int k = 0; k < 4; k++)
            raw[i][k] = guess_silu2(raw[i][k], up[k], &near);
        doubt |= guess_near(near) ? 1u << i : 0;
    }
    if (GUESS && DTYPE == RIDGE_BF16)
        stream_settle(from, guess_far(range) ? 0xffu : doubt, lane, raw);
}

template <int DTYPE, int ROW, int COL, int E5M2>
static __device__ __forceinline__ void stream_tiles(const stream_args &a, stream_memory *m)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp * PARTS / TILE_WARPS;
    const int local = warp * 16 + lane / 16 * 8 - part * (128 / PARTS);
    uint32_t n = part;

    for (uint32_t t = blockIdx.x; t < a.tiles; t += gridDim.x, n += PARTS) {
        const uint32_t stage = n % STAGES;
        const int tr = (int)(t / a.p.across), tc = (int)(t % a.p.across);
        const uint8_t *from = m->stage[stage] + local * PITCH + (lane & 15) * 16;
        uint32_t raw[TILE_ROWS][4];

        ptx_mbarrier_wait(ptx_shared(&m->full[stage]), n / STAGES & 1);
        stream_swiglu<DTYPE>(a.p, from, lane, raw);
        __syncwarp(); /* all lanes have read the stage before it is given back */
        if (lane == 0)
            ptx_mbarrier_arrive(ptx_shared(&m->empty[stage]));
        tile_sync(); /* everybody has stored the previous tile's codes before m->tile changes */
        if (tr * 128 + 128 <= a.p.rows && tc * 128 + 128 <= a.p.cols && a.p.whole)
            tile_finish<DTYPE, ROW, COL, false>(a.p, m->tile, raw, tr, tc, true, E5M2);
        else
            tile_finish<DTYPE, ROW, COL, false>(a.p, m->tile, raw, tr, tc, false, E5M2);
    }
}

#endif

template <int DTYPE, int ROW, int COL, int E5M2>
static __global__ void __launch_bounds__(STREAM_THREADS, TILE_BLOCKS(STREAM_BLOCKS))
    quantize_stream(const __grid_constant__ stream_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    stream_memory *m = (stream_memory *)shared;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            ptx_mbarrier_init(ptx_shared(&m->full[s]), 1);
            ptx_mbarrier_init(ptx_shared(&m->empty[s]), TILE_WARPS / PARTS);
        }
        ptx_mbarrier_fence_init();
    }
    __syncthreads(); /* the mbarriers before anybody uses them */
    ptx_grid_wait();
    ptx_grid_release();
    if (threadIdx.x < TILE_THREADS)
        stream_tiles<DTYPE, ROW, COL, E5M2>(a, m);
    else if (threadIdx.x == TILE_THREADS)
        stream_load(a, m);
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORM(DTYPE, E5M2)                                                              \
    {                                                                                     \
        (const void *)quantize_stream<DTYPE, QUANTIZE_ROW128, QUANTIZE_ROW128, E5M2>,     \
            (const void *)quantize_stream<DTYPE, QUANTIZE_ROW128, QUANTIZE_BLK128, E5M2>, \
            (const void *)quantize_stream<DTYPE, QUANTIZE_BLK128, QUANTIZE_BLK128, E5M2>  \
    }

/* [f16, bf16][e4m3, e5m2][form] */
static const void *const functions[2][2][3] = {{BY_FORM(RIDGE_F16, 0), BY_FORM(RIDGE_F16, 1)},
                                               {BY_FORM(RIDGE_BF16, 0), BY_FORM(RIDGE_BF16, 1)}};

static ridge_status prepare(const ridge_device *device)
{
    if (device->arch < RIDGE_ARCH_SM90 || device->arch > RIDGE_ARCH_SM103)
        return RIDGE_OK;
    return host_prepare(device, &functions[0][0][0], 2 * 2 * 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        sizeof(stream_memory), "quantize: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                           const ridge_call *call, void *, size_t, void *stream)
{
    const int dtype = problem->dtype[0], form = (int)((call->flags & RIDGE_DUAL) / RIDGE_DUAL_ROW_BLK),
              rows = 128 / PARTS;
    const uint32_t blocks = (uint32_t)(device->units * STREAM_BLOCKS);
    stream_args a = {};
    ridge_status status;

    if (call->dim[0] == 0 || call->dim[1] == 0)
        return RIDGE_OK;
    a.p = tile_collect(call, RIDGE_SWIGLU_QUANTIZE_Q);
    a.tiles = (uint32_t)quantize_groups(a.p.rows) * a.p.across;
    status = host_tensor_map(device, &a.x, dtype, a.p.x, a.p.cols, a.p.rows, a.p.stride, 128, rows, 0);
    if (!status)
        status = host_tensor_map(device, &a.up, dtype, a.p.up, a.p.cols, a.p.rows, a.p.up_stride, 128, rows, 0);
    if (status)
        return status;
    return host_launch_shared(device, kernel->name, functions[dtype - RIDGE_F16][a.p.e5m2][form],
                              dim3(a.tiles < blocks ? a.tiles : blocks), STREAM_THREADS, sizeof(stream_memory), &a,
                              stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int row_scale = RIDGE_SWIGLU_QUANTIZE_ROW_SCALE;

    if (problem->dtype[0] == RIDGE_F32)
        return "f32 tiles do not fit the registers";
    if (problem->align < 4 || problem->dim[1] % 8)
        return "TMA needs rows that begin at multiples of 16 bytes";
    if (problem->dim[0] > 0x7fffff00 || problem->dim[1] > 0x7fffff00 ||
        (double)quantize_groups(problem->dim[0]) * (double)quantize_groups(problem->dim[1]) > 2147483647.0)
        return "more than 2^31 rows, columns or tiles";
    if (!problem->plain || problem->dtype[row_scale] != RIDGE_NONE ||
        (problem->flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED)))
        return "does plain SiLU of two tensors only";
    return NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 1.9 + 0.95 * 6 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.swiglu_quantize.stream128",
     RIDGE_SWIGLU_QUANTIZE,
     RIDGE_ARCH_SM90,
     RIDGE_ARCH_SM103,
     QUANTIZE_CONTRACT,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_quantize_stream = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

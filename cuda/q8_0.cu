/* q8_0.cu: q8_0_quantize, q8_0_repack and q8_0_unpack on CUDA.
 *
 * A warp works on a unit of 8 blocks, 256 columns: each lane has 8 columns, four lanes a block. The 272 bytes of raw
 * blocks pass through shared memory, so that global memory sees 16-byte accesses where the address allows them and
 * 2-byte ones elsewhere (rows of raw blocks are only 2-byte aligned in general). */
#include "quantize.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, UNIT_BLOCKS = 8, UNIT_BYTES = UNIT_BLOCKS * RIDGE_Q8_0_BYTES };

typedef struct q8_0_args {
    const char *x;
    char *raw, *codes, *scales;
    int64_t stride, raw_stride, codes_stride, scales_stride; /* bytes */
    int64_t rows, units;                                     /* units of a row */
    int64_t blocks;                                          /* of a row */
    int vector_x;
} q8_0_args;

/* The unit of this warp, or false. */
typedef struct q8_0_unit {
    int64_t row, block; /* first block */
    int blocks;         /* at most 8 */
} q8_0_unit;

static __device__ __forceinline__ bool locate(const q8_0_args &p, q8_0_unit *u)
{
    const int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    u->row = index / p.units;
    u->block = index % p.units * UNIT_BLOCKS;
    u->blocks = p.blocks - u->block < UNIT_BLOCKS ? (int)(p.blocks - u->block) : UNIT_BLOCKS;
    return u->row < p.rows;
}

/* Raw bytes of a unit between global and shared memory. */
static __device__ __forceinline__ void move_raw(const q8_0_unit &u, char *global, char *shared, bool store, int lane)
{
    const int bytes = u.blocks * RIDGE_Q8_0_BYTES;

    if (bytes == UNIT_BYTES && (uintptr_t)global % 16 == 0) {
        if (lane < UNIT_BYTES / 16) {
            if (store)
                ptx_store_once(global + lane * 16, *(const uint4 *)(shared + lane * 16));
            else
                *(uint4 *)(shared + lane * 16) = ptx_load_once(global + lane * 16);
        }
        return;
    }
    if ((uintptr_t)global % 2 == 0) {
        for (int i = lane; i < bytes / 2; i += 32)
            *(uint16_t *)((store ? global : shared) + 2 * i) = *(const uint16_t *)((store ? shared : global) + 2 * i);
        return;
    }
    for (int i = lane; i < bytes; i += 32)
        (store ? global : shared)[i] = (store ? shared : global)[i];
}

/* 8 codes of this lane in shared memory, whose blocks are 2-byte aligned. */
static __device__ __forceinline__ void put_codes(char *shared, int lane, uint2 v)
{
    uint16_t *to = (uint16_t *)(shared + lane / 4 * RIDGE_Q8_0_BYTES + 2 + lane % 4 * 8);

    to[0] = (uint16_t)v.x, to[1] = (uint16_t)(v.x >> 16), to[2] = (uint16_t)v.y, to[3] = (uint16_t)(v.y >> 16);
}

static __device__ __forceinline__ uint2 get_codes(const char *shared, int lane)
{
    const uint16_t *from = (const uint16_t *)(shared + lane / 4 * RIDGE_Q8_0_BYTES + 2 + lane % 4 * 8);

    return make_uint2(from[0] | (uint32_t)from[1] << 16, from[2] | (uint32_t)from[3] << 16);
}

static __device__ __forceinline__ uint32_t pack_codes(const float *x, float r)
{
    uint32_t word = 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
        word |= (uint32_t)(ridge_q8_0_code(x[i] * r) & 0xff) << (8 * i);
    return word;
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) q8_0_quantize(const __grid_constant__ q8_0_args p)
{
    __shared__ __align__(16) char raw[WARPS][UNIT_BYTES];
    const int lane = threadIdx.x % 32, size = DTYPE == RIDGE_F32 ? 4 : 2;
    char *mine = raw[threadIdx.x / 32];
    uint32_t words[QUANTIZE_WORDS(DTYPE)], amax;
    float x[8], d, r;
    q8_0_unit u;

    ptx_grid_wait();
    ptx_grid_release();
    if (!locate(p, &u)) /* whole warps leave */
        return;
    quantize_load<DTYPE>(p.x + u.row * p.stride + (u.block * RIDGE_Q8_0_BLOCK + lane * 8) * size,
                         lane / 4 < u.blocks ? 8 : 0, p.vector_x, words);
    amax = quantize_fold<DTYPE>(quantize_amax8<DTYPE>(words));
    amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
    amax = max(amax, __shfl_xor_sync(~0u, amax, 2));
    d = ridge_q8_0_scale(amax, &r);
    quantize_unpack<DTYPE>(words, x);
    put_codes(mine, lane, make_uint2(pack_codes(x, r), pack_codes(x + 4, r)));
    if (lane % 4 == 0)
        *(uint16_t *)(mine + lane / 4 * RIDGE_Q8_0_BYTES) =
            (uint16_t)num_canonical<RIDGE_F16>(num_pack2<RIDGE_F16>(d, 0.0f) & 0xffffu);
    __syncwarp(); /* all of `mine` before other lanes read it */
    move_raw(u, p.raw + u.row * p.raw_stride + u.block * RIDGE_Q8_0_BYTES, mine, true, lane);
}

template <int REPACK> static __global__ void __launch_bounds__(THREADS) q8_0_planes(const __grid_constant__ q8_0_args p)
{
    __shared__ __align__(16) char raw[WARPS][UNIT_BYTES];
    const int lane = threadIdx.x % 32;
    char *mine = raw[threadIdx.x / 32], *global, *codes;
    uint16_t *scale;
    q8_0_unit u;
    bool inside;

    ptx_grid_wait();
    ptx_grid_release();
    if (!locate(p, &u)) /* whole warps leave */
        return;
    inside = lane / 4 < u.blocks;
    global = p.raw + u.row * p.raw_stride + u.block * RIDGE_Q8_0_BYTES;
    codes = p.codes + u.row * p.codes_stride + u.block * RIDGE_Q8_0_BLOCK + lane * 8;
    scale = (uint16_t *)(p.scales + u.row * p.scales_stride) + u.block + lane / 4;
    if (REPACK) {
        move_raw(u, global, mine, false, lane);
        __syncwarp(); /* all of `mine` before other lanes read it */
    }
    if (inside && REPACK) {
        const uint2 v = get_codes(mine, lane);

        if ((uintptr_t)codes % 8 == 0)
            ptx_store_once8(codes, v);
        else
            for (int i = 0; i < 8; i++)
                codes[i] = (char)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
        if (lane % 4 == 0)
            *scale = *(const uint16_t *)(mine + lane / 4 * RIDGE_Q8_0_BYTES);
    }
    if (inside && !REPACK) {
        uint2 v = make_uint2(0, 0);

        if ((uintptr_t)codes % 8 == 0)
            v = *(const uint2 *)codes;
        else
            for (int i = 0; i < 8; i++)
                (i < 4 ? v.x : v.y) |= (uint32_t)(uint8_t)codes[i] << (i % 4 * 8);
        put_codes(mine, lane, v);
        if (lane % 4 == 0)
            *(uint16_t *)(mine + lane / 4 * RIDGE_Q8_0_BYTES) = *scale;
    }
    if (!REPACK) {
        __syncwarp(); /* all of `mine` before other lanes read it */
        move_raw(u, global, mine, true, lane);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[5] = {(const void *)q8_0_quantize<RIDGE_F32>, (const void *)q8_0_quantize<RIDGE_F16>,
                                         (const void *)q8_0_quantize<RIDGE_BF16>, (const void *)q8_0_planes<1>,
                                         (const void *)q8_0_planes<0>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 5, "q8_0: loading kernels");
}

static int64_t pitch(const ridge_operand *x, int64_t packed)
{
    return (x->stride ? x->stride : packed) * (int64_t)ridge_dtype_size(x->dtype);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                           const ridge_call *call, void *, size_t, void *stream)
{
    const ridge_operand *arg = call->arg;
    const bool quantize = call->op == RIDGE_Q8_0_QUANTIZE;
    const int64_t cols = call->dim[1];
    const int raw = quantize ? (int)RIDGE_Q8_0_QUANTIZE_BLOCKS : (int)RIDGE_Q8_0_REPACK_BLOCKS;
    const void *function =
        quantize ? functions[problem->dtype[0] - RIDGE_F32] : functions[call->op == RIDGE_Q8_0_REPACK ? 3 : 4];
    q8_0_args p = {};

    if (call->dim[0] == 0 || cols == 0)
        return RIDGE_OK;
    p.rows = call->dim[0];
    p.blocks = cols / RIDGE_Q8_0_BLOCK;
    p.units = (p.blocks + UNIT_BLOCKS - 1) / UNIT_BLOCKS;
    p.raw = (char *)arg[raw].data;
    p.raw_stride = pitch(&arg[raw], p.blocks * RIDGE_Q8_0_BYTES);
    if (quantize) {
        p.x = (const char *)arg[RIDGE_Q8_0_QUANTIZE_X].data;
        p.stride = pitch(&arg[RIDGE_Q8_0_QUANTIZE_X], cols);
        p.vector_x = quantize_aligned(p.x, p.stride, 16);
    } else {
        p.codes = (char *)arg[RIDGE_Q8_0_REPACK_CODES].data;
        p.codes_stride = pitch(&arg[RIDGE_Q8_0_REPACK_CODES], cols);
        p.scales = (char *)arg[RIDGE_Q8_0_REPACK_SCALES].data;
        p.scales_stride = pitch(&arg[RIDGE_Q8_0_REPACK_SCALES], p.blocks);
    }
    return host_launch(device, kernel->name, function, dim3((unsigned)((p.rows * p.units + WARPS - 1) / WARPS)),
                       THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[0] * ((double)problem->dim[1] / 1024 + 1) > 2147483647.0
               ? "more than 2^31 - 1 thread blocks"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + 3.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                         \
    {                                                                                                               \
        "cuda." op_name ".warp8", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121, QUANTIZE_CONTRACT | RIDGE_INVARIANT, 0, \
            {}, why_not, NULL, cost, launch                                                                         \
    }

static const ridge_kernel rows[] = {
    ROW("q8_0_quantize", RIDGE_Q8_0_QUANTIZE),
    ROW("q8_0_repack", RIDGE_Q8_0_REPACK),
    ROW("q8_0_unpack", RIDGE_Q8_0_UNPACK),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

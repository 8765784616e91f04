/* blocks.cu: q8_0_quantize, q8_0_repack and q8_0_unpack on CUDA.
 *
 * A warp processes a group of 4 units of 8 blocks, 1024 columns, and issues all loads of the group before it uses the
 * first. Each lane has 8 columns of a unit, four lanes a block. The raw blocks, 1088 bytes a group, go through shared
 * memory, so that accesses to global memory have 16 bytes where the address allows it and 2 bytes elsewhere (a row of
 * raw blocks is only 2-byte aligned in general). */
#include "ops/quantize_fp8/quantize.cuh"
#include "src/util.h"

enum { THREADS = 128, WARPS = THREADS / 32, UNITS = 4, UNIT_BLOCKS = 8, GROUP_BLOCKS = UNITS * UNIT_BLOCKS };
enum { UNIT_BYTES = UNIT_BLOCKS * RIDGE_Q8_0_BYTES, GROUP_BYTES = UNITS * UNIT_BYTES };

typedef struct q8_0_blocks_args {
    const char *x;
    char *raw, *codes, *scales;
    int64_t stride, raw_stride, codes_stride, scales_stride; /* bytes */
    int64_t rows;
    uint32_t groups; /* of a row */
    int64_t blocks;  /* of a row */
    int vector_x;
} q8_0_blocks_args;

/* Finds the group of this warp; false if it has none. */
typedef struct q8_0_group {
    int64_t row, block; /* first block */
    int blocks;         /* at most 32 */
} q8_0_group;

static __device__ __forceinline__ bool locate(const q8_0_blocks_args &p, q8_0_group *g)
{
    const uint32_t index = blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t row = index / p.groups;

    g->row = row;
    g->block = (int64_t)(index - row * p.groups) * GROUP_BLOCKS;
    g->blocks = p.blocks - g->block < GROUP_BLOCKS ? (int)(p.blocks - g->block) : GROUP_BLOCKS;
    return g->row < p.rows;
}

/* Copies the raw bytes of a group from global to shared memory. */
static __device__ __forceinline__ void load_raw(const q8_0_group &g, const char *global, char *shared, int lane)
{
    const int bytes = g.blocks * RIDGE_Q8_0_BYTES;

    if (bytes == GROUP_BYTES && (uintptr_t)global % 16 == 0) {
        uint4 v[3];

#pragma unroll
        for (int i = 0; i < 3; i++)
            if (lane + 32 * i < GROUP_BYTES / 16)
                v[i] = ptx_load_once(global + (lane + 32 * i) * 16);
#pragma unroll
        for (int i = 0; i < 3; i++)
            if (lane + 32 * i < GROUP_BYTES / 16)
                *(uint4 *)(shared + (lane + 32 * i) * 16) = v[i];
    } else if ((uintptr_t)global % 2 == 0) {
        for (int i = lane; i < bytes / 2; i += 32)
            *(uint16_t *)(shared + 2 * i) = *(const uint16_t *)(global + 2 * i);
    } else {
        for (int i = lane; i < bytes; i += 32)
            shared[i] = global[i];
    }
}

static __device__ __forceinline__ void store_raw(const q8_0_group &g, char *global, const char *shared, int lane)
{
    const int bytes = g.blocks * RIDGE_Q8_0_BYTES;

    if (bytes == GROUP_BYTES && (uintptr_t)global % 16 == 0) {
#pragma unroll
        for (int i = 0; i < 3; i++)
            if (lane + 32 * i < GROUP_BYTES / 16)
                ptx_store_once(global + (lane + 32 * i) * 16, *(const uint4 *)(shared + (lane + 32 * i) * 16));
    } else if ((uintptr_t)global % 2 == 0) {
        for (int i = lane; i < bytes / 2; i += 32)
            *(uint16_t *)(global + 2 * i) = *(const uint16_t *)(shared + 2 * i);
    } else {
        for (int i = lane; i < bytes; i += 32)
            global[i] = shared[i];
    }
}

/* Writes this lane's 8 codes to shared memory, where blocks are 2-byte aligned. */
static __device__ __forceinline__ void write_codes(char *shared, int lane, uint2 v)
{
    uint16_t *to = (uint16_t *)(shared + lane / 4 * RIDGE_Q8_0_BYTES + 2 + lane % 4 * 8);

    to[0] = (uint16_t)v.x, to[1] = (uint16_t)(v.x >> 16), to[2] = (uint16_t)v.y, to[3] = (uint16_t)(v.y >> 16);
}

static __device__ __forceinline__ uint2 read_codes(const char *shared, int lane)
{
    const uint16_t *from = (const uint16_t *)(shared + lane / 4 * RIDGE_Q8_0_BYTES + 2 + lane % 4 * 8);

    return make_uint2(from[0] | (uint32_t)from[1] << 16, from[2] | (uint32_t)from[3] << 16);
}

/* ridge_q8_0_code of four products x * r without conversion instructions, for finite x, where |x * r| < 128. |x * r| +
 * 0.5, rounded towards zero, has the integer part of the code's magnitude (an inexact sum stays below the next
 * integer). Adding 2^23, rounded towards zero, leaves that integer in the low byte. Negative codes: each magnitude is
 * subtracted from its byte of 0x80808080, which never borrows from the next byte; removing the 0x80 again gives the
 * two's complement. */
static __device__ __forceinline__ uint32_t pack_codes(const float *x, float r)
{
    uint32_t size[4], sign[4], sizes, signs;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float y = x[i] * r;

        sign[i] = (uint32_t)(__float_as_int(y) >> 31);
        size[i] = __float_as_uint(__fadd_rz(__fadd_rz(fabsf(y), 0.5f), 8388608.0f));
    }
    sizes = __byte_perm(__byte_perm(size[0], size[1], 0x0040), __byte_perm(size[2], size[3], 0x0040), 0x5410);
    signs = __byte_perm(__byte_perm(sign[0], sign[1], 0x0040), __byte_perm(sign[2], sign[3], 0x0040), 0x5410);
    return (sizes & ~signs) | (((0x80808080u - sizes) ^ 0x80808080u) & signs);
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) q8_0_quantize(const __grid_constant__ q8_0_blocks_args p)
{
    __shared__ __align__(16) char raw[WARPS][GROUP_BYTES];
    const int lane = threadIdx.x % 32, size = DTYPE == RIDGE_F32 ? 4 : 2;
    char *mine = raw[threadIdx.x / 32];
    uint32_t words[UNITS][QUANTIZE_WORDS(DTYPE)];
    const char *from;
    q8_0_group g;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (!locate(p, &g)) /* whole warps leave */
        return;
    from = p.x + g.row * p.stride + (g.block * RIDGE_Q8_0_BLOCK + lane * 8) * size;
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        quantize_load<DTYPE>(from + u * UNIT_BLOCKS * RIDGE_Q8_0_BLOCK * size,
                             u * UNIT_BLOCKS + lane / 4 < g.blocks ? 8 : 0, p.vector_x, words[u]);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        uint32_t amax = quantize_fold<DTYPE>(quantize_amax8<DTYPE>(words[u]));
        float x[8], d, r;

        amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
        amax = max(amax, __shfl_xor_sync(~0u, amax, 2));
        d = ridge_q8_0_scale(amax, &r);
        quantize_unpack<DTYPE>(words[u], x);
        write_codes(mine + u * UNIT_BYTES, lane,
                    amax < 0x7f800000u ? make_uint2(pack_codes(x, r), pack_codes(x + 4, r)) : make_uint2(0, 0));
        if (lane % 4 == 0)
            *(uint16_t *)(mine + u * UNIT_BYTES + lane / 4 * RIDGE_Q8_0_BYTES) =
                (uint16_t)num_canonical<RIDGE_F16>(num_pack2<RIDGE_F16>(d, 0.0f) & 0xffffu);
    }
    __syncwarp(); /* orders the writes of `mine` before the reads of other lanes */
    store_raw(g, p.raw + g.row * p.raw_stride + g.block * RIDGE_Q8_0_BYTES, mine, lane);
}

/* Loads 8 codes from any address. */
static __device__ __forceinline__ uint2 load_codes(const char *from)
{
    uint2 v = make_uint2(0, 0);

    if ((uintptr_t)from % 8 == 0)
        return *(const uint2 *)from;
    for (int i = 0; i < 8; i++)
        (i < 4 ? v.x : v.y) |= (uint32_t)(uint8_t)from[i] << (i % 4 * 8);
    return v;
}

static __device__ __forceinline__ void store_codes(char *to, uint2 v)
{
    if ((uintptr_t)to % 8 == 0)
        ptx_store_once8(to, v);
    else
        for (int i = 0; i < 8; i++)
            to[i] = (char)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
}

template <int REPACK>
static __global__ void __launch_bounds__(THREADS) q8_0_planes(const __grid_constant__ q8_0_blocks_args p)
{
    __shared__ __align__(16) char raw[WARPS][GROUP_BYTES];
    const int lane = threadIdx.x % 32;
    char *mine = raw[threadIdx.x / 32], *global, *codes;
    uint16_t *scales;
    q8_0_group g;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (!locate(p, &g)) /* whole warps leave */
        return;
    global = p.raw + g.row * p.raw_stride + g.block * RIDGE_Q8_0_BYTES;
    codes = p.codes + g.row * p.codes_stride + g.block * RIDGE_Q8_0_BLOCK + lane * 8;
    scales = (uint16_t *)(p.scales + g.row * p.scales_stride) + g.block; /* each lane has one block of the 32 */
    if (REPACK) {
        load_raw(g, global, mine, lane);
        __syncwarp(); /* orders the writes of `mine` before the reads of other lanes */
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (u * UNIT_BLOCKS + lane / 4 < g.blocks)
                store_codes(codes + u * UNIT_BLOCKS * RIDGE_Q8_0_BLOCK, read_codes(mine + u * UNIT_BYTES, lane));
        if (lane < g.blocks)
            scales[lane] = *(const uint16_t *)(mine + lane * RIDGE_Q8_0_BYTES);
    } else {
        uint2 v[UNITS];
        uint16_t scale = lane < g.blocks ? scales[lane] : 0;

#pragma unroll
        for (int u = 0; u < UNITS; u++)
            v[u] = u * UNIT_BLOCKS + lane / 4 < g.blocks ? load_codes(codes + u * UNIT_BLOCKS * RIDGE_Q8_0_BLOCK)
                                                         : make_uint2(0, 0);
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            write_codes(mine + u * UNIT_BYTES, lane, v[u]);
        *(uint16_t *)(mine + lane * RIDGE_Q8_0_BYTES) = scale;
        __syncwarp(); /* orders the writes of `mine` before the reads of other lanes */
        store_raw(g, global, mine, lane);
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

/* Bytes of a row. */
static int64_t pitch(const ridge_operand *x)
{
    return x->stride * (int64_t)ridge_dtype_size(x->dtype);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    const ridge_operand *arg = call->arg;
    const bool quantize = call->op == RIDGE_Q8_0_QUANTIZE;
    const int64_t cols = call->dim[1];
    const int raw = quantize ? (int)RIDGE_Q8_0_QUANTIZE_BLOCKS : (int)RIDGE_Q8_0_REPACK_BLOCKS;
    const void *function =
        quantize ? functions[arg[0].dtype - RIDGE_F32] : functions[call->op == RIDGE_Q8_0_REPACK ? 3 : 4];
    q8_0_blocks_args p = {};

    if (call->dim[0] == 0 || cols == 0)
        return RIDGE_OK;
    p.rows = call->dim[0];
    p.blocks = cols / RIDGE_Q8_0_BLOCK;
    p.groups = (uint32_t)ridge_ceil_div(p.blocks, GROUP_BLOCKS);
    p.raw = (char *)arg[raw].data;
    p.raw_stride = pitch(&arg[raw]);
    if (quantize) {
        p.x = (const char *)arg[RIDGE_Q8_0_QUANTIZE_X].data;
        p.stride = pitch(&arg[RIDGE_Q8_0_QUANTIZE_X]);
        p.vector_x = quantize_aligned(p.x, p.stride, 16);
    } else {
        p.codes = (char *)arg[RIDGE_Q8_0_REPACK_CODES].data;
        p.codes_stride = pitch(&arg[RIDGE_Q8_0_REPACK_CODES]);
        p.scales = (char *)arg[RIDGE_Q8_0_REPACK_SCALES].data;
        p.scales_stride = pitch(&arg[RIDGE_Q8_0_REPACK_SCALES]);
    }
    return host_launch(device, kernel->name, function, dim3((unsigned)ridge_ceil_div(p.rows * p.groups, WARPS)),
                       THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[0] * ((double)problem->dim[1] / 1024 + 1) > 2147483647.0 ? "more than 2^31 - 1 groups"
                                                                                         : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + 3.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                          \
    {                                                                                                                \
        "cuda." op_name ".warp8", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, QUANTIZE_CONTRACT | RIDGE_INVARIANT, \
            0, {}, why_not, NULL, cost, launch                                                                       \
    }

static const ridge_kernel rows[] = {
    ROW("q8_0_quantize", RIDGE_Q8_0_QUANTIZE),
    ROW("q8_0_repack", RIDGE_Q8_0_REPACK),
    ROW("q8_0_unpack", RIDGE_Q8_0_UNPACK),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_blocks = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

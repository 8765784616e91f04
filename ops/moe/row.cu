/* row.cu: moe_down of an only expert in f32 or bf16, which is how a router's logits are computed: a CTA of two warps a
 * row. Thread i has the chains 4 i .. 4 i + 3 of the row (products.h). Its weights, up to 4096 columns, are requested
 * at once, before the wait if they are constant, and kept for all tokens; so is all of x. Without shared memory a CTA
 * finds room beside a product by TMA, which has all of it but 5 KB. Behind the last column weights and x are zeros:
 * they turn a chain of -0 into +0 at most, which the sum over the slot, from +0, would do. */
#include "args.cuh"

enum { OWN = 4, THREADS = MOE_CHAINS / OWN, STEPS = 16 };

/* Four weights, of bf16 or f32. */
static __device__ __forceinline__ void load_word(const char *from, uint64_t policy, uint2 *to)
{
    *to = ptx_load8_policy(from, policy);
}

static __device__ __forceinline__ void load_word(const char *from, uint64_t, uint4 *to)
{
    *to = ptx_load_stream(from);
}

static __device__ __forceinline__ void unpack_word(uint2 w, float *v)
{
    num_unpack2<RIDGE_BF16>(w.x, v, v + 1);
    num_unpack2<RIDGE_BF16>(w.y, v + 2, v + 3);
}

static __device__ __forceinline__ void unpack_word(uint4 w, float *v)
{
    num_unpack<RIDGE_F32>(w, v);
}

/* Weights of the k steps first .. first + 15 of this thread. */
template <class W>
static __device__ __forceinline__ void load_codes(const char *from, uint64_t policy, int first, int steps, W *code)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        code[s] = {};
        if (first + s < steps)
            load_word(from + (int64_t)(first + s) * (MOE_CHAINS / OWN * (int)sizeof(W)), policy, &code[s]);
    }
}

/* Four columns of x. */
template <int X> struct row_word {
    typedef uint4 type;
};
template <> struct row_word<RIDGE_BF16> {
    typedef uint2 type;
};

template <class W, int X> static __global__ void __launch_bounds__(THREADS) moe_row(const __grid_constant__ moe_args p)
{
    typedef typename row_word<X>::type word;
    __shared__ float half[2][2]; /* of each warp, of every other token */
    const int first_column = OWN * (int)threadIdx.x;
    const int steps = ((int)p.cols - first_column + MOE_CHAINS - 1) / MOE_CHAINS; /* with columns of this thread */
    const int all = ((int)p.cols + MOE_CHAINS - 1) / MOE_CHAINS;
    const int64_t row = blockIdx.x;
    const char *const from = p.weight[0].data + (row * p.cols + first_column) * ((int)sizeof(W) / OWN);
    /* weights that are read once, not again for each token, leave L2 first */
    const uint64_t policy = p.tokens > 1 && all > STEPS ? ptx_policy_evict_normal() : ptx_policy_evict_first();
    W code[STEPS];

    ptx_launch_dependents();
    if (!p.weights_const)
        ptx_grid_dependency_wait();
    load_codes(from, policy, 0, steps, code);
    if (p.weights_const)
        ptx_grid_dependency_wait();
    for (int t = 0; t < p.tokens; t++) {
        const int e = p.ids[t * p.ids_stride];
        const float weight = p.weights[t * p.weights_stride];
        float chain[OWN] = {}, y;

        for (int first = 0; first < all; first += STEPS) {
            const word *const from_x = (const word *)(p.x + (t * p.x_stride + first_column) * (int)sizeof(word) / OWN);
            word x[STEPS];

#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                x[s] = {};
                if (first + s < steps)
                    x[s] = from_x[(first + s) * THREADS];
            }
            if (all > STEPS && (t || first))
                load_codes(from, policy, first, steps, code);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                float w[OWN], v[OWN];

                unpack_word(code[s], w);
                unpack_word(x[s], v);
#pragma unroll
                for (int i = 0; i < OWN; i++)
                    chain[i] = __fmaf_rn(w[i], v[i], chain[i]);
            }
        }
        y = (chain[0] + chain[1]) + (chain[2] + chain[3]);
#pragma unroll
        for (int s = 1; s < 32; s *= 2)
            y += __shfl_xor_sync(0xffffffffu, y, s);
        if (threadIdx.x % 32 == 0)
            half[t % 2][threadIdx.x / 32] = y;
        __syncthreads(); /* both halves are written before they are read, and those of the token before have been */
        if (threadIdx.x == 0) {
            y = moe_bias(p.weight[0], 0, row, half[t % 2][0] + half[t % 2][1]);
            y = moe_add(p, t, row, e == 0 ? __fmaf_rn(weight, y, 0.0f) : 0.0f);
            moe_store(p, t * p.out_stride + row, y);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By weights, x. */
static const void *const functions[4] = {
    (const void *)moe_row<uint4, RIDGE_F32>, (const void *)moe_row<uint4, RIDGE_BF16>,
    (const void *)moe_row<uint2, RIDGE_F32>, (const void *)moe_row<uint2, RIDGE_BF16>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 4, "moe_down: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    moe_args p = moe_args_of(&bound->call);

    if (p.tokens == 0 || p.rows == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[2 * (p.form == RIDGE_BF16) + p.x_bf16], dim3((unsigned)p.rows),
                       THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dtype[2] != RIDGE_BF16 && problem->dtype[2] != RIDGE_F32)
        return "weights are not f32 or bf16";
    if (problem->dim[3] != 1 || problem->dim[4] != 1)
        return "more than one expert or slot";
    if (problem->dtype[RIDGE_MOE_DOWN_POST] != RIDGE_NONE)
        return "makes no streams of hyper-connections";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    return problem->dim[1] > 1 << 30 || problem->dim[2] > 1 << 30 ? "more than 2^30 rows or columns" : NULL;
}

/* A launch, the weights, and x of each token again for every row. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + (double)problem->dim[1] * (double)problem->dim[2] *
                   (1.3 * moe_weight_size((int)problem->dtype[2]) + 0.5 * (double)problem->dim[0]) * 1e-3 /
                   device->copy_gbps;
}

static const ridge_kernel rows[] = {{"cuda.moe_down.row",
                                     RIDGE_MOE_DOWN,
                                     RIDGE_ARCH_SM80,
                                     RIDGE_ARCH_CUDA_LAST,
                                     MOE_CONTRACT,
                                     0,
                                     {},
                                     why_not,
                                     NULL,
                                     cost,
                                     launch}};

extern "C" const ridge_kernel_list ridge_cuda_moe_row = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

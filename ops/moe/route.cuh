/* route.cuh: what moe_route and moe_route_bwd share on CUDA. Both choose by a warp a token. */
#ifndef RIDGE_MOE_ROUTE_CUH
#define RIDGE_MOE_ROUTE_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/util.h"

enum { THREADS = 32 };
#define WARP 0xffffffffu

/* The sum of v over the slots before `slots`, in their order, in every lane. */
static __device__ __forceinline__ float sum_slots(float v, int slots)
{
    float sum = 0.0f;

    for (int s = 0; s < slots; s++)
        sum += __shfl_sync(WARP, v, s);
    return sum;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
        const float other = __shfl_xor_sync(WARP, v, s);

        v = other > v ? other : v;
    }
    return v;
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* functions: the kernel for up to 128, 256, 512 and 1024 experts. threads: of a CTA, which takes so many tokens. */
template <typename Args>
static ridge_status route_launch(const ridge_device *device, const ridge_kernel *kernel, const void *const *functions,
                                 int threads, int tokens, Args p, void *stream)
{
    const int size = p.experts <= 128 ? 0 : p.experts <= 256 ? 1 : p.experts <= 512 ? 2 : 3;

    if (p.tokens == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[size], dim3((unsigned)ridge_ceil_div(p.tokens, tokens)),
                       (unsigned)threads, &p, stream);
}

static const char *route_why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return problem->dim[0] > 0x7fffffff ? "more than 2^31 - 1 tokens" : NULL;
}

static double route_cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + (double)problem->dim[0] * (double)problem->dim[1] * 8e-3 / device->copy_gbps;
}

#define ROUTE_ROW(name, op, launch)                                                                                 \
    {                                                                                                               \
        name, op, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                                                            \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {}, route_why_not, NULL, \
            route_cost, launch                                                                                      \
    }

#endif

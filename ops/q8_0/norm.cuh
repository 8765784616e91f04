/* norm.cuh: rms_norm of the row of one token inside a product, before it is quantised, with the bits of add_rms_norm.
 * Thread i of 256 holds the columns i, i + 256, ..., which are partial sum i of the canonical order (src/math/norm.h),
 * so that a warp's columns are a block of 32. Row and weights are requested together and once: what is requested later
 * waits behind the product's weights. */
#ifndef RIDGE_Q8_0_NORM_CUH
#define RIDGE_Q8_0_NORM_CUH

#include "args.cuh"
#include "ops/norm/rows.cuh"

enum { Q8_0_NORM_HELD = Q8_0_MAX_FUSED_NORM / PARTS }; /* columns that a thread holds */

static_assert(PARTS == 256 && RIDGE_Q8_0_BLOCK == 32, "a warp has a block");

/* This thread's columns of a row; zeros past it. */
template <int HELD> static __device__ __forceinline__ void q8_0_norm_load(const char *row, int n, bool bf16, float *v)
{
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int j = (int)threadIdx.x + PARTS * k;

        v[k] = 0.0f;
        if (j < n)
            v[k] = bf16 ? num_load<RIDGE_BF16>(row, j) : num_load<RIDGE_F32>(row, j);
    }
}

/* The sum of the squares of those columns. */
template <int HELD> static __device__ __forceinline__ float q8_0_norm_partial(const float *v)
{
    float sum = 0.0f;

#pragma unroll
    for (int k = 0; k < HELD; k++)
        sum = ridge_fma(v[k], v[k], sum); /* zeros are added to what is not -0 */
    return sum;
}

/* The codes and scales of the row with its norm, into shared memory, by the first 256 threads of a CTA; all threads
 * call it. w: this thread's weights of the norm, as q8_0_norm_load has them; part: 256 floats of shared memory. */
template <int HELD>
static __device__ __forceinline__ void q8_0_normalise(const char *row, bool bf16, int blocks, float eps, const float *w,
                                                      float *part, char *codes, float *scales)
{
    const int n = blocks * RIDGE_Q8_0_BLOCK, lane = threadIdx.x % 32;
    const int first = (int)threadIdx.x - lane; /* of the warp's columns */
    float v[HELD], factor, scale, r;

    if (threadIdx.x < PARTS) {
        q8_0_norm_load<HELD>(row, n, bf16, v);
        part[threadIdx.x] = q8_0_norm_partial<HELD>(v);
    }
    __syncthreads(); /* all partial sums are written before they are read */
    if (threadIdx.x >= PARTS)
        return;
    factor = ridge_rms_factor(rows_tree(part), n, eps);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        v[k] = v[k] * factor * w[k];
    scale = rows_scales<HELD>(v, &r);
    if (lane < HELD && first + PARTS * lane < n)
        scales[(first + PARTS * lane) / RIDGE_Q8_0_BLOCK] = scale;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int code = ridge_q8_0_x_code(v[k], __shfl_sync(~0u, r, k));

        if (first + PARTS * k < n) /* whole warps */
            codes[(int)threadIdx.x + PARTS * k] = (char)code;
    }
}

#endif

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

/* ridge_q8_0_x_scale without a branch. A quotient by 127 is rn by one Newton step: its remainder is exact, also where
 * the quotient is subnormal, and no quotient lies halfway between two floats. */
static __device__ __forceinline__ float q8_0_x_scale(uint32_t amax, float *reciprocal)
{
    const float a = __uint_as_float(amax), inverse = 1.0f / 127.0f, near = a * inverse;
    const float d = ridge_fma(ridge_fma(-127.0f, near, a), inverse, near);
    const bool normal = amax < 0x7f800000u && d >= 0x1p-126f;

    *reciprocal = normal ? ridge_rcp(d) : 0.0f;
    return normal ? d : amax < 0x7f800000u ? 0.0f : __uint_as_float(0x7fc00000u);
}

/* This thread's columns of a row, of which it has n from `first` on; zeros past them. */
template <int HELD> static __device__ __forceinline__ void q8_0_norm_load(const char *first, int n, bool bf16, float *v)
{
    if (bf16) { /* one branch, so that the loads follow one another */
#pragma unroll
        for (int k = 0; k < HELD; k++)
            v[k] = PARTS * k < n ? num_load<RIDGE_BF16>(first, PARTS * k) : 0.0f;
    } else {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            v[k] = PARTS * k < n ? num_load<RIDGE_F32>(first, PARTS * k) : 0.0f;
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
 * call it. from: this thread's first column; w: this thread's weights of the norm, as q8_0_norm_load has them; part:
 * 256 floats of shared memory. */
template <int HELD, bool ROOM>
static __device__ __forceinline__ void q8_0_normalise(const char *from, bool bf16, int blocks, float eps,
                                                      const float *w, float *part, char *codes, float *scales)
{
    const int n = blocks * RIDGE_Q8_0_BLOCK, lane = threadIdx.x % 32;
    const int first = (int)threadIdx.x - lane; /* of the warp's columns */
    float v[HELD], factor, scale, r;
    uint32_t most = 0;

    if (ROOM || threadIdx.x < PARTS) {
        q8_0_norm_load<HELD>(from, n - (int)threadIdx.x, bf16, v);
        part[threadIdx.x] = q8_0_norm_partial<HELD>(v);
    }
    __syncthreads(); /* all partial sums are written before they are read */
    if (!ROOM && threadIdx.x >= PARTS)
        return;
    factor = ridge_rms_factor(rows_tree(part), n, eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        uint32_t block;

        v[k] = v[k] * factor * w[k];
        block = __reduce_max_sync(~0u, ridge_magnitude(v[k]));
        most = lane == k ? block : most;
    }
    scale = q8_0_x_scale(most, &r); /* lane k: of block k */
    if (lane < HELD && (ROOM || first + PARTS * lane < n))
        scales[(first + PARTS * lane) / RIDGE_Q8_0_BLOCK] = scale;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int code = ridge_q8_0_x_code(v[k], __shfl_sync(~0u, r, k));

        if (ROOM || first + PARTS * k < n) /* whole warps */
            codes[(int)threadIdx.x + PARTS * k] = (char)code;
    }
}

#endif

/* append_head.cuh: a head of a token of kv_append by a warp. Lane l holds columns l + 32 i, which are the partial sums
 * of rms_norm's order (src/math/norm.h); the head then lies in shared memory, where either form of pairs is read. In
 * decoding the time is that of one load after another, so position, head, bias, weights and frequencies are requested
 * together, and the angles are computed while the head arrives. */
#ifndef RIDGE_ATTENTION_APPEND_HEAD_CUH
#define RIDGE_ATTENTION_APPEND_HEAD_CUH

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"

enum { APPEND_FEW = 128 / 32, APPEND_MANY = RIDGE_MAX_HEAD_DIM / 32 }; /* columns that a lane holds */
enum { APPEND_AHEAD = APPEND_FEW / 2 }; /* pairs of a lane whose angles are computed before the head arrives */

static __device__ __forceinline__ void append_store(void *base, int64_t i, float v, int dtype)
{
    if (dtype == RIDGE_F32)
        num_store<RIDGE_F32>(base, i, v);
    else if (dtype == RIDGE_BF16)
        num_store<RIDGE_BF16>(base, i, v);
    else
        num_store<RIDGE_F16>(base, i, v);
}

/* q8_0_quantize of a head by a warp, a block at a time. */
static __device__ __forceinline__ void append_blocks(char *to, const float *row, int n)
{
    const int lane = threadIdx.x % 32;

    for (int b = 0; b < n; b += RIDGE_Q8_0_BLOCK, to += RIDGE_Q8_0_BYTES) {
        const float x = row[b + lane];
        const uint32_t amax = __reduce_max_sync(~0u, ridge_magnitude(x));
        float r;
        const float d = ridge_q8_0_scale(amax, &r);

        if (lane == 0) { /* a block may lie at an odd address */
            const uint32_t bits = num_canonical<RIDGE_F16>(num_pack2<RIDGE_F16>(d, 0.0f) & 0xffffu);

            to[0] = (char)bits;
            to[1] = (char)(bits >> 8);
        }
        to[2 + lane] = (char)ridge_q8_0_code(x * r);
    }
}

/* The norm of a head in the registers of a warp, as its weights are. */
template <int HELD> static __device__ __forceinline__ void append_norm(const append_args &p, const float *w, float *y)
{
    float part[8], factor;

#pragma unroll
    for (int i = 0; i < 8; i++) { /* columns past the head are +0 and change no sum */
        part[i] = i < HELD ? ridge_fma(y[i % HELD], y[i % HELD], 0.0f) : 0.0f;
        if (HELD > 8)
            part[i] = ridge_fma(y[(i + 8) % HELD], y[(i + 8) % HELD], part[i]);
    }
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            part[i] += part[i + s];
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        part[0] += __shfl_xor_sync(~0u, part[0], s);
    factor = ridge_rms_factor(part[0], (int)p.n, p.eps); /* of 32 bits: one instruction */
#pragma unroll
    for (int i = 0; i < HELD; i++)
        y[i] = y[i] * factor * w[i];
}

/* Turns the pair of `row` and the element `far` behind it. */
static __device__ __forceinline__ void append_turn(float *row, int far, float c, float s)
{
    float y0, y1;

    ridge_rope_rotate(row[0], row[far], c, s, &y0, &y1);
    row[0] = y0;
    row[far] = y1;
}

/* Head h of token t into `row`, in f32. Heads of k and v of a position outside the cache are left out: returns whether
 * the head is there. The whole warp calls it. */
template <int HELD>
static __device__ __forceinline__ bool append_head(const append_args &p, int64_t t, int h, float *row)
{
    const int lane = threadIdx.x % 32, n = (int)p.n, kv = h - (int)p.heads;
    const bool is_q = kv < 0, is_v = kv >= p.kv_heads;
    const int64_t first = (int64_t)h * n;
    const float *w = is_q ? p.q_norm : is_v ? NULL : p.k_norm;
    const char *x = p.x + t * p.x_stride;
    const int turned = is_v ? 0 : (int)p.n_rot, far = p.halves ? turned / 2 : 1, step = p.halves ? 1 : 2;
    const int64_t pos = p.pos[t];
    double freq[APPEND_AHEAD];
    float y[HELD], bias[HELD], weight[HELD], c[APPEND_AHEAD], s[APPEND_AHEAD];

#pragma unroll
    for (int i = 0; i < APPEND_AHEAD; i++)
        freq[i] = lane + 32 * i < turned / 2 ? p.freqs[lane + 32 * i] : 0.0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int64_t at = first + lane + 32 * i;

        y[i] = bias[i] = weight[i] = 0.0f;
        if (lane + 32 * i < n) {
            y[i] = p.x_bf16 ? num_load<RIDGE_BF16>(x, at) : num_load<RIDGE_F32>(x, at);
            if (p.bias)
                bias[i] = p.bias[at];
            if (w)
                weight[i] = w[lane + 32 * i];
        }
    }
    if (!is_q && (pos < 0 || pos >= p.positions))
        return false;
#pragma unroll
    for (int i = 0; i < APPEND_AHEAD; i++)
        if (32 * i < turned / 2)
            ridge_rope_angle(pos, freq[i], p.mscale, 0, &c[i], &s[i]);
    if (p.bias)
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (lane + 32 * i < n)
                y[i] += bias[i];
    if (w)
        append_norm<HELD>(p, weight, y);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + 32 * i < n)
            row[lane + 32 * i] = y[i];
    __syncwarp(); /* the head is written before other lanes read it */
#pragma unroll
    for (int i = 0; i < APPEND_AHEAD; i++)
        if (lane + 32 * i < turned / 2)
            append_turn(row + step * (lane + 32 * i), far, c[i], s[i]);
    for (int i = lane + 32 * APPEND_AHEAD; i < turned / 2; i += 32) {
        ridge_rope_angle(pos, p.freqs[i], p.mscale, 0, &c[0], &s[0]);
        append_turn(row + step * i, far, c[0], s[0]);
    }
    __syncwarp(); /* the head is turned before other lanes read it */
    return true;
}

/* A head in f32 as `dtype`, by a warp. */
static __device__ __forceinline__ void append_row(char *to, const float *row, int n, int dtype)
{
    if (dtype == RIDGE_U8)
        append_blocks(to, row, n);
    else
        for (int i = threadIdx.x % 32; i < n; i += 32)
            append_store(to, i, row[i], dtype);
}

/* kv_append's kernel, for calls that append first. In kv_append.cu. */
extern "C" ridge_status ridge_append_launch(const ridge_device *device, const char *name, append_args *args,
                                            void *stream);

/* A call of attention, or the second half of kv_append_attention, whose first half is launched here. */
static inline ridge_status append_first(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                                        void *workspace, void *stream, attention_args *p)
{
    append_args first;

    if (call->op != RIDGE_KV_APPEND_ATTENTION) {
        *p = attention_args_of(call, workspace);
        return RIDGE_OK;
    }
    first = attention_halves(call, workspace, p);
    return ridge_append_launch(device, kernel->name, &first, stream);
}

#endif

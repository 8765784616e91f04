/* tile.cuh: 256 threads quantise a tile of 128 x 128 elements for quantize_fp8, quantize_fp8_dual or swiglu_quantize:
 * SwiGLU of elements in registers, and from there the codes and scales in memory. Leaves out: the kernel and its
 * instances (tile.cu).
 *
 * Thread (warp w, lane l) owns rows 16 w + 8 (l / 16) .. + 7 and columns 8 (l % 16) .. + 7. Row scales: a butterfly
 * over 16 lanes leaves each lane the amax of one row. Column scales go through shared memory, where thread t < 128 owns
 * column t. The transposed codes of a thread's 8 rows are 8 consecutive bytes of a column. They pass through shared
 * memory, 8-byte chunk q of column c at chunk q ^ (c / 8), so that neither writes nor reads have bank conflicts. */
#ifndef RIDGE_QUANTIZE_TILE_CUH
#define RIDGE_QUANTIZE_TILE_CUH

#include "quantize.cuh"
#include "ops/swiglu/approx.cuh"

enum { TILE_THREADS = 256, TILE_WARPS = TILE_THREADS / 32, TILE_ROWS = 8 };
/* Blocks that must fit a multiprocessor, which caps the registers. Measured on an H200; elsewhere ptxas takes as many
 * registers as it wants, so that nothing spills. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TILE_BLOCKS(hopper) (hopper)
#else
#define TILE_BLOCKS(hopper) 1
#endif

/* The format is branched on once, around all codes: a choice at each conversion would cost both formats instructions.
 * Where a conversion is a call with the format as an argument, one copy of the code serves both. */
#if __CUDA_ARCH__ >= 890
enum { TILE_BY_FORMAT = 1 };
#else
enum { TILE_BY_FORMAT = 0 };
#endif

/* What a tile's elements are: x; SiLU(gate) * up, times a row's scale where there are some; SwiGLU with any option. */
enum { FROM_X = 0, FROM_SILU, FROM_SWIGLU };

/* Whether a GPU has kernels FROM_SILU: where their registers leave two blocks a multiprocessor. Elsewhere they have no
 * body, and no launch picks them. */
#define TILE_SILU_FIRST RIDGE_ARCH_SM90
#define TILE_SILU_LAST RIDGE_ARCH_SM103
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define TILE_HAS(source) true
#else
#define TILE_HAS(source) ((source) != FROM_SILU)
#endif

/* 17 KB a block. It is kept small because L1, where the loads in flight lie, has the rest of the SM's 256 KB. */
typedef struct tile_memory {
    union {
        struct {
            uint32_t amax[TILE_WARPS]
                         [128]; /* of the columns of a warp's rows: bits of f32, or packed halves in the first 64 */
            float sums[TILE_WARPS][128];
        };
        uint8_t codes[128 * 128]; /* transposed; written once the columns' scales are known */
    };
    float r[128]; /* reciprocals of the columns */
    uint32_t warp_amax[4];
} tile_memory;

/* Loads 8 columns of a row from column `col` on: of x into a, or of gate into a and of up into b (with
 * RIDGE_INTERLEAVED both hold pairs). n columns are inside the tensor. */
template <int DTYPE, int SOURCE>
static __device__ __forceinline__ void tile_load_row(const quantize_args &p, int64_t row, int64_t col, int64_t n,
                                                     uint32_t *a, uint32_t *b)
{
    const int size = DTYPE == RIDGE_F32 ? 4 : 2;

    if (SOURCE == FROM_SWIGLU && (p.flags & RIDGE_INTERLEAVED)) {
        const char *at = p.x + (row * p.stride + 2 * col) * size;

        quantize_load<DTYPE>(at, 2 * n, p.vector_x, a);
        quantize_load<DTYPE>(at + 8 * size, 2 * n - 8, p.vector_x, b);
        return;
    }
    quantize_load<DTYPE>(p.x + (row * p.stride + col) * size, n, p.vector_x, a);
    if (SOURCE != FROM_X)
        quantize_load<DTYPE>(p.up + (row * p.up_stride + col) * size, n, p.vector_x, b);
}

static __device__ __forceinline__ float tile_row_scale(const quantize_args &p, int64_t row)
{
    return p.row_scale ? p.row_scale[row] : 1.0f;
}

/* The words of 8 columns of a row: of gate and of up, or of pairs in both with RIDGE_INTERLEAVED. */
template <int DTYPE> struct tile_words {
    uint32_t a[QUANTIZE_WORDS(DTYPE)], b[QUANTIZE_WORDS(DTYPE)];
};

template <int DTYPE> static __device__ __forceinline__ void tile_round(const float *x, uint32_t *words)
{
#pragma unroll
    for (int k = 0; k < QUANTIZE_WORDS(DTYPE); k++)
        words[k] = DTYPE == RIDGE_F32 ? __float_as_uint(x[k % 8]) : num_pack2<DTYPE>(x[2 * k % 8], x[(2 * k + 1) % 8]);
}

/* swiglu_fwd with any option; the result is in a, the columns from n on are 0. A call, since it holds all activations
 * and a tile has eight rows. */
template <int DTYPE>
static __device__ __noinline__ tile_words<DTYPE> tile_any_swiglu(tile_words<DTYPE> w, int n, uint32_t flags,
                                                                 ridge_swiglu_options o, float scale)
{
    float g[8], u[8];

    quantize_unpack<DTYPE>(w.a, g);
    quantize_unpack<DTYPE>(w.b, u);
    if (flags & RIDGE_INTERLEAVED) {
        float x[16];

#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = g[i], x[8 + i] = u[i];
#pragma unroll
        for (int i = 0; i < 8; i++)
            g[i] = x[2 * i], u[i] = x[2 * i + 1];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float h = ridge_act_fwd(flags & RIDGE_ACTIVATION, ridge_swiglu_gate(g[i], o), o.alpha);

        if (flags & RIDGE_ROUND_GATE)
            h = num_round<DTYPE>(h);
        g[i] = i < n ? ridge_swiglu_scale(h * ridge_swiglu_up(u[i], o), scale, o) : 0.0f;
    }
    tile_round<DTYPE>(g, w.a);
    return w;
}

/* swiglu_fwd of 8 columns, rounded to the dtype as swiglu_fwd would store it; the result is in a. Columns from n on
 * become 0. A NaN is not made canonical: all codes of its group are 7F whatever its bits. */
template <int DTYPE, int SOURCE>
static __device__ __forceinline__ void tile_swiglu(const quantize_args &p, int64_t row, int64_t n, uint32_t *a,
                                                   const uint32_t *b)
{
    const float scale = tile_row_scale(p, row);

    if (SOURCE == FROM_SILU) {
        float g[8], u[8];

        quantize_unpack<DTYPE>(a, g);
        quantize_unpack<DTYPE>(b, u);
#pragma unroll
        for (int i = 0; i < 8; i++)
            g[i] = i < n ? ridge_act_fwd(RIDGE_SILU, g[i], 1.0f) * u[i] * scale : 0.0f;
        tile_round<DTYPE>(g, a);
    } else {
        tile_words<DTYPE> w;

#pragma unroll
        for (int k = 0; k < QUANTIZE_WORDS(DTYPE); k++)
            w.a[k] = a[k], w.b[k] = b[k];
        w = tile_any_swiglu<DTYPE>(w, n < 8 ? (int)n : 8, p.flags, p.o, scale);
#pragma unroll
        for (int k = 0; k < QUANTIZE_WORDS(DTYPE); k++)
            a[k] = w.a[k];
    }
}

/* Replaces rows of 8 elements by the exact formula's result. Bit i of `recheck` asks for this thread's row i. In one
 * step of the loop the warp computes one row for each of up to four lanes, the owners, and every lane computes one
 * element; a tile waits for the warp with the most steps. row, col: this thread's first element. */
template <bool SCALED>
static __device__ __forceinline__ void tile_recompute(const quantize_args &p, uint32_t recheck, int row, int col,
                                                      uint32_t (*raw)[4])
{
    enum { LANES = 8 /* of a row */, OWNERS = 32 / LANES };
    const int lane = threadIdx.x % 32;

    for (uint32_t lanes; (lanes = __ballot_sync(~0u, recheck != 0)) != 0;) {
        const int rank = __popc(lanes & ((1u << lane) - 1)), i_row = __ffs((int)recheck) - 1;
        const bool mine = recheck && rank < OWNERS;

#pragma unroll
        for (int i = 0; i < OWNERS - 1; i++) /* the lowest bit left is the owner that this lane computes for */
            lanes &= i < lane / LANES && (lanes & (lanes - 1)) ? lanes - 1 : ~0u;
        const int owner = __ffs((int)lanes) - 1;
        const int64_t at_row = (int64_t)__shfl_sync(~0u, row + i_row, owner);
        const int64_t at_col = __shfl_sync(~0u, col, owner) + lane % LANES;
        const float gate = num_load<RIDGE_BF16>(p.x, at_row * p.stride + at_col);
        const float y = ridge_act_fwd(RIDGE_SILU, gate, 1.0f) *
                        num_load<RIDGE_BF16>(p.up, at_row * p.up_stride + at_col) *
                        (SCALED ? tile_row_scale(p, at_row) : 1.0f);
        const uint32_t word = ptx_bf16x2(__shfl_down_sync(~0u, y, 1), y);
        uint32_t exact[4];

#pragma unroll
        for (int k = 0; k < 4; k++)
            exact[k] = __shfl_sync(~0u, word, rank % OWNERS * LANES + 2 * k);
        recheck &= mine ? recheck - 1 : ~0u;
#pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                raw[i][k] = mine && i == i_row ? exact[k] : raw[i][k];
    }
}

/* swiglu_fwd with SiLU and default options, with SCALED row scales, of this thread's 16-bit elements, all of them
 * inside the tensor. bf16 takes the approximation of ops/swiglu/approx.cuh, and the exact formula for rows that it
 * cannot decide. */
template <int DTYPE, bool SCALED>
static __device__ __forceinline__ void tile_silu(const quantize_args &p, int row, int col, uint32_t (*raw)[4],
                                                 const uint32_t (*up)[4])
{
    uint32_t recheck = 0, gates = 0;

#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++) {
        const float scale = SCALED ? tile_row_scale(p, row + i) : 1.0f;
        uint32_t distance = ~0u;

        if (!APPROX || DTYPE != RIDGE_BF16) {
            tile_swiglu<DTYPE, FROM_SILU>(p, row + i, 8, raw[i], up[i]);
            continue;
        }
        gates = approx_max_gates(raw[i][0], raw[i][1], approx_max_gates(raw[i][2], raw[i][3], gates));
#pragma unroll
        for (int k = 0; k < 4; k++)
            raw[i][k] = approx_silu2<SCALED>(raw[i][k], up[i][k], scale, &distance);
        recheck |= approx_near_boundary<SCALED>(distance) || (SCALED && !(fabsf(scale) <= APPROX_SCALE)) ? 1u << i : 0;
    }
    if (APPROX && DTYPE == RIDGE_BF16)
        tile_recompute<SCALED>(p, approx_out_of_range(gates) ? 0xffu : recheck, row, col, raw);
}

/* The largest over 16 lanes of each of 8 values: each lane ends with that of value 4 b3 + 2 b2 + b1, b its lane's bits.
 */
template <int DTYPE> static __device__ __forceinline__ uint32_t tile_butterfly(uint32_t *v, int lane)
{
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = lane & 2 * half;

#pragma unroll
        for (int i = 0; i < half; i++) {
            const uint32_t keep = upper ? v[i + half] : v[i], send = upper ? v[i] : v[i + half];

            v[i] = quantize_larger<DTYPE>(keep, __shfl_xor_sync(~0u, send, 2 * half));
        }
    }
    return quantize_larger<DTYPE>(v[0], __shfl_xor_sync(~0u, v[0], 1));
}

/* Element j of the 8 of a row. */
template <int DTYPE> static __device__ __forceinline__ float tile_element(const uint32_t *raw, int j)
{
    if (DTYPE == RIDGE_F32)
        return __uint_as_float(raw[j]);
    if (DTYPE == RIDGE_BF16)
        return __uint_as_float(j & 1 ? raw[j / 2] & 0xffff0000u : raw[j / 2] << 16);
    return ptx_f32_from_f16((uint16_t)(raw[j / 2] >> (j & 1) * 16));
}

/* Writes amax, and the sums if p.sums asks for them, of the columns of this warp's 16 rows to shared memory. */
template <int DTYPE, bool SUMS>
static __device__ __forceinline__ void tile_columns(const quantize_args &p, tile_memory &m,
                                                    const uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)], int warp, int lane)
{
    const int W = QUANTIZE_WORDS(DTYPE);
    uint32_t most[W];

#pragma unroll
    for (int k = 0; k < W; k++) {
        most[k] = quantize_magnitude<DTYPE>(raw[0][k]);
#pragma unroll
        for (int i = 1; i < TILE_ROWS; i++)
            most[k] = quantize_larger<DTYPE>(most[k], quantize_magnitude<DTYPE>(raw[i][k]));
        most[k] = quantize_larger<DTYPE>(most[k], __shfl_xor_sync(~0u, most[k], 16));
    }
    if (lane < 16)
#pragma unroll
        for (int k = 0; k < W; k += 4)
            *(uint4 *)&m.amax[warp][lane * W + k] = make_uint4(most[k], most[k + 1], most[k + 2], most[k + 3]);
    if (SUMS && p.sums) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float sum = 0;

#pragma unroll
            for (int i = 0; i < TILE_ROWS; i++)
                sum += tile_element<DTYPE>(raw[i], j);
            sum += __shfl_xor_sync(~0u, sum, 16);
            if (lane < 16)
                m.sums[warp][lane * 8 + j] = sum;
        }
    }
}

/* Thread t < 128: returns amax of column t as f32 bits, and writes the column's sum to global memory. */
template <int DTYPE, bool SUMS>
static __device__ __forceinline__ uint32_t tile_column(const quantize_args &p, const tile_memory &m, int t, int tr,
                                                       int col)
{
    uint32_t most = 0;

#pragma unroll
    for (int w = 0; w < TILE_WARPS; w++)
        most = max(most, DTYPE == RIDGE_F32 ? m.amax[w][t] : (uint32_t)((const uint16_t *)m.amax[w])[t]);
    if (SUMS && p.sums && col < p.cols) {
        float part = 0;

#pragma unroll
        for (int w = 0; w < TILE_WARPS; w++)
            part += m.sums[w][t];
        p.sums[tr * p.cols + col] = part;
    }
    return quantize_fold<DTYPE>(most);
}

/* Writes the transposed codes of this thread's 8 x 8 elements to shared memory. own: each column has its reciprocal in
 * m.r, else all have `block`. */
template <int DTYPE>
static __device__ __forceinline__ void tile_transpose(tile_memory &m, const uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)],
                                                      bool own, float block, bool e5m2, int warp, int lane)
{
    const int x = lane & 15, at = 8 * ((2 * warp + lane / 16) ^ x);
    float r[8] = {block, block, block, block, block, block, block, block};

    if (own) {
        const float4 lo = *(const float4 *)&m.r[8 * x], hi = *(const float4 *)&m.r[8 * x + 4];

        r[0] = lo.x, r[1] = lo.y, r[2] = lo.z, r[3] = lo.w, r[4] = hi.x, r[5] = hi.y, r[6] = hi.z, r[7] = hi.w;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float v[TILE_ROWS];

#pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
            v[i] = tile_element<DTYPE>(raw[i], j) * r[j];
        *(uint2 *)&m.codes[(8 * x + j) * 128 + at] =
            make_uint2(num_fp8x4(v[0], v[1], v[2], v[3], e5m2), num_fp8x4(v[4], v[5], v[6], v[7], e5m2));
    }
}

/* Copies the transposed codes from shared to global memory: 16 bytes a thread and step, 8 threads a column. `inside`:
 * the tile has no edge and its stores are aligned. */
static __device__ __forceinline__ void tile_store_transposed(const quantize_args &p, const tile_memory &m, int row,
                                                             int col, bool inside)
{
    enum { STEP = TILE_THREADS / 8 };
    const int first = (int)threadIdx.x >> 3, pair = (int)threadIdx.x & 7, n = (int)p.rows_t - row - 16 * pair;
    const int chunk = pair ^ first >> 4;
    uint8_t *to = p.col.q + (col + first) * p.col.stride + row + 16 * pair;

    static_assert(STEP == 32, "chunk and the order of its halves");
#pragma unroll 2
    for (int k = 0; k < 128 / STEP; k++, to += STEP * p.col.stride) {
        const int c = first + k * STEP;
        const uint4 v = *(const uint4 *)&m.codes[c * 128 + (chunk ^ 2 * k) * 16];
        const uint4 codes = first & 8 ? make_uint4(v.z, v.w, v.x, v.y) : v;

        if (inside || (p.vector_col && n >= 16 && col + c < p.cols)) {
            *(uint4 *)to = codes; /* not evict-first, which is half a percent slower: other blocks write the rest of the
                                     line later */
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < 16 && i < n && col + c < p.cols; i++) {
            const uint32_t word = i < 4 ? codes.x : i < 8 ? codes.y : i < 12 ? codes.z : codes.w;

            to[i] = (uint8_t)(word >> (i % 4 * 8));
        }
    }
}

/* Stores the scales and codes of this thread's rows. `amax` is the butterfly's result. own: each row has its scale,
 * else all have `block`. */
template <int DTYPE>
static __device__ __forceinline__ void tile_rows(const quantize_args &p, const uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)],
                                                 uint32_t amax, bool own, float block, int tc, int row, int col,
                                                 bool inside, bool e5m2, int lane)
{
    const int mine = (lane >> 1 & 1) + (lane >> 2 & 1) * 2 + (lane >> 3 & 1) * 4;
    const float s = own ? quantize_scale(p, quantize_fold<DTYPE>(amax)) : block, r = ridge_fp8_reciprocal(s);
    uint8_t *to = p.row.q + row * p.row.stride + col;

    if (own && !(lane & 1) && (inside || row + mine < p.rows))
        p.row.scale[tc * p.row.ld + row + mine] = s;
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++, to += p.row.stride) {
        const float ri = own ? __shfl_sync(~0u, r, (lane & 16) | (i & 1) << 1 | (i & 2) << 1 | (i & 4) << 1) : r;
        float x[8];

        quantize_unpack<DTYPE>(raw[i], x);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] *= ri;
        if (inside)
            quantize_store8(to, x, 8, true, e5m2);
        else if (row + i < p.rows)
            quantize_store8(to, x, p.cols - col, p.vector_row, e5m2);
    }
}

/* The codes that need the scales of the whole tile: rows with the block's one scale, and the transposed form. */
template <int DTYPE, int ROW, int COL>
static __device__ __forceinline__ void
tile_scaled_codes(const quantize_args &p, tile_memory &m, const uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)], float block,
                  int tc, int row, int col, bool inside, bool e5m2, int warp, int lane)
{
    if (ROW == QUANTIZE_BLK128)
        tile_rows<DTYPE>(p, raw, 0, false, block, tc, row, col, inside, e5m2, lane);
    if (COL != QUANTIZE_ABSENT)
        tile_transpose<DTYPE>(m, raw, COL == QUANTIZE_ROW128, ridge_fp8_reciprocal(block), e5m2, warp, lane);
}

/* A barrier of all threads of a tile. */
static __device__ __forceinline__ void tile_sync(void)
{
    ptx_barrier_sync(1, TILE_THREADS);
}

/* From the elements in `raw` to codes and scales in memory. No thread may still read m when it is called. `inside`: the
 * whole tile is inside the tensor and every wide store is aligned; a constant in every caller. SUMS: p.sums may ask for
 * the sums of columns. */
template <int DTYPE, int ROW, int COL, bool SUMS>
static __device__ __forceinline__ void tile_finish(const quantize_args &p, tile_memory &m,
                                                   const uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)], int tr, int tc,
                                                   bool inside)
{
    constexpr bool SHARED = ROW == QUANTIZE_BLK128 || COL != QUANTIZE_ABSENT;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = tr * 128 + warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    float block = 0;

    if (SHARED)
        tile_columns<DTYPE, SUMS>(p, m, raw, warp, lane);
    if (ROW == QUANTIZE_ROW128) {
        uint32_t most[TILE_ROWS];

#pragma unroll
        for (int i = 0; i < TILE_ROWS; i++)
            most[i] = quantize_amax8<DTYPE>(raw[i]);
        const uint32_t amax = tile_butterfly<DTYPE>(most, lane);

        if (!TILE_BY_FORMAT)
            tile_rows<DTYPE>(p, raw, amax, true, 0.0f, tc, row, col, inside, p.e5m2, lane);
        else if (p.e5m2)
            tile_rows<DTYPE>(p, raw, amax, true, 0.0f, tc, row, col, inside, true, lane);
        else
            tile_rows<DTYPE>(p, raw, amax, true, 0.0f, tc, row, col, inside, false, lane);
    }
    if (!SHARED)
        return;
    tile_sync(); /* m.amax and m.sums of all warps before column threads read them */
    if (threadIdx.x < 128) {
        const int c = tc * 128 + (int)threadIdx.x;
        const uint32_t amax = tile_column<DTYPE, SUMS>(p, m, threadIdx.x, tr, c);

        if (COL == QUANTIZE_ROW128) {
            const float s = quantize_scale(p, amax);

            if (inside || c < p.cols)
                p.col.scale[tr * p.col.ld + c] = s;
            m.r[threadIdx.x] = ridge_fp8_reciprocal(s);
        }
        if (ROW == QUANTIZE_BLK128 || COL == QUANTIZE_BLK128)
            m.warp_amax[warp] = __reduce_max_sync(~0u, amax);
    }
    tile_sync(); /* m.r and m.warp_amax before all threads read them */
    if (ROW == QUANTIZE_BLK128 || COL == QUANTIZE_BLK128) {
        block = quantize_scale(p, max(max(m.warp_amax[0], m.warp_amax[1]), max(m.warp_amax[2], m.warp_amax[3])));
        if (threadIdx.x == 0 && ROW == QUANTIZE_BLK128)
            p.row.scale[tr * p.row.ld + tc] = block;
        if (threadIdx.x == 0 && COL == QUANTIZE_BLK128)
            p.col.scale[tc * p.col.ld + tr] = block;
    }
    if (!TILE_BY_FORMAT)
        tile_scaled_codes<DTYPE, ROW, COL>(p, m, raw, block, tc, row, col, inside, p.e5m2, warp, lane);
    else if (p.e5m2)
        tile_scaled_codes<DTYPE, ROW, COL>(p, m, raw, block, tc, row, col, inside, true, warp, lane);
    else
        tile_scaled_codes<DTYPE, ROW, COL>(p, m, raw, block, tc, row, col, inside, false, warp, lane);
    if (COL == QUANTIZE_ABSENT)
        return;
    tile_sync(); /* m.codes before other warps read them */
    tile_store_transposed(p, m, tr * 128, tc * 128, inside);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* What only swiglu_quantize has. */
static inline void tile_args_swiglu(const ridge_call *call, quantize_args *p, int size)
{
    const ridge_operand *up = &call->arg[RIDGE_SWIGLU_QUANTIZE_UP];

    p->up = (const char *)up->data;
    p->up_stride = up->stride;
    p->vector_x = p->vector_x && (!p->up || quantize_aligned(p->up, p->up_stride * size, 16));
    p->flags = call->flags;
    p->o = ridge_swiglu_resolve(call->opt.swiglu_quantize.swiglu);
    p->floor = call->opt.swiglu_quantize.floor;
    p->row_scale = (const float *)call->arg[RIDGE_SWIGLU_QUANTIZE_ROW_SCALE].data;
}

static inline quantize_args tile_args(const ridge_call *call)
{
    const bool swiglu = call->op == RIDGE_SWIGLU_QUANTIZE, single = call->op == RIDGE_QUANTIZE_FP8;
    const int q = swiglu ? (int)RIDGE_SWIGLU_QUANTIZE_Q : (int)RIDGE_QUANTIZE_FP8_Q;
    const int size = call->arg[0].dtype == RIDGE_F32 ? 4 : 2;
    quantize_args p = {};

    p.rows = p.rows_t = call->dim[0];
    p.cols = call->dim[1];
    p.x = (const char *)call->arg[0].data;
    p.stride = call->arg[0].stride;
    p.across = (uint32_t)quantize_groups(p.cols);
    p.e5m2 = call->arg[q].dtype == RIDGE_E5M2;
    p.pow2 = (call->flags & RIDGE_POW2) != 0;
    p.vector_x = quantize_aligned(p.x, p.stride * size, 16);
    p.row = quantize_output(call, q);
    p.vector_row = quantize_aligned(p.row.q, p.row.stride, 8);
    if (!single) {
        p.col = quantize_output(call, q + 2);
        p.vector_col = quantize_aligned(p.col.q, p.col.stride, 16);
    }
    p.whole = p.vector_x && p.vector_row && (single || p.vector_col);
    p.floor = call->opt.quantize.floor;
    if (swiglu)
        tile_args_swiglu(call, &p, size);
    return p;
}

#endif

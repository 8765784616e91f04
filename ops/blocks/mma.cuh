/* mma.cuh: the main loop of products with weights in block formats, by mma.sync from sm_80 on; one for all formats.
 *
 * A team of four warps computes a tile of 16 rows. Warp w has the units w, w + 4, ... of 256 columns, which are the
 * partitions 2 w and 2 w + 1 of the canonical order. It copies unit after unit, one contiguous piece of memory, into
 * stages of its own in shared memory, by cp.async (16 bytes a lane) or by one bulk copy, `depth` ahead and from one
 * tile into the next (copies.cuh); no other warp reads them, so there is no barrier but within the warp. Of some
 * formats (TOGETHER) one warp of the team copies for all four, and mbarriers tell it what they have read. Lanes read
 * the codes back as A operands (layout.h).
 *
 * x is the B operand. With several tokens its eight columns are tokens: an instruction has a block's sums of 16 rows.
 * Of one token the columns are the eight blocks of a unit: x of block n is in column n alone, zeros elsewhere, so that
 * eight instructions onto one accumulator leave the sums of 16 rows and 8 blocks, and no lane computes for nothing.
 * Lane 4 g + t owns the scales of row g + 8 (t % 2), run t / 2; with one token it adds up that run of that row, after
 * an exchange with its neighbour, with several it hands the scales to the lanes of its group.
 *
 * Formats whose instructions bound one token (APART) have a result for each block instead: columns 0 to 3 are block j
 * of the first run, columns 4 to 7 of the second, so that lane 4 g + t, whose results are of rows g and g + 8 and of
 * columns 2 t and 2 t + 1, finds the sums that it owns by a select, without an exchange. (With sub-scales an even
 * column has the first half of a block, an odd one the second.) Their teams compute two tiles side by side, so that x
 * and what is around a unit serve both, and the instructions of one fill the waits of the other.
 *
 * Where a sum needs no sub-scales, it starts at 0x4b400000, the bits of 12582912.0f: read as a float, less 12582912, it
 * is exactly the integer; an offset times the sum of x goes away with 12582912.
 *
 * Named barrier 1 + team orders the writes of a tile's partial sums before their reads, and, since tiles alternate
 * between two buffers, those before the writes of the tile after the next. */
#ifndef RIDGE_BLOCKS_MMA_CUH
#define RIDGE_BLOCKS_MMA_CUH

#include "copies.cuh"
#include "cuda/ptx/load_store.cuh"
#include "hand.cuh"

enum { BLOCK_TEAM = 128, BLOCK_MAX_DEPTH = 4 };
/* Teams of a CTA, at most. Warps hide latencies; what bounds them is registers: 128 a thread, with one token and bulk
 * copies 80 (96 with two sums a block) unless two tiles are side by side, with the sums of 16 tokens 255. */
#define BLOCK_MAX_TEAMS(F, tokens, bulk)                       \
    ((tokens) > 8                                          ? 2 \
     : (tokens) > 1 && !(bulk) && F::X == BLOCK_X_START_16 ? 3 \
     : (tokens) > 1 || !(bulk) || F::APART                 ? 4 \
     : F::X >= BLOCK_X_START_16                            ? 5 \
                                                           : 6)
#define BLOCK_TEAMS_OF(F, bulk)                                                                \
    {                                                                                          \
        BLOCK_MAX_TEAMS(F, 1, bulk), BLOCK_MAX_TEAMS(F, 8, bulk), BLOCK_MAX_TEAMS(F, 16, bulk) \
    }

/* Partial sums of a tile: of one token those of the partitions; of several what the two of a warp add up to. Bytes of
 * a team's two buffers for a tile. */
#define BLOCK_PARTS(tokens) ((tokens) == 1 ? RIDGE_Q8_0_PARTS : RIDGE_Q8_0_PARTS / 2)
#define BLOCK_SUMS(tokens) (2 * BLOCK_PARTS(tokens) * (tokens)*64)

/* --------------------------------------------------------------------------------------------------------- products */

/* A sum that started at 0x4b400000; aux: the number of the block of x, of formats with an offset. */
template <class F> static __device__ __forceinline__ float block_from_start(int32_t sum, const float *aux)
{
    return __fadd_rn(__int_as_float(sum), F::X == BLOCK_X_START ? aux[0] : -12582912.0f);
}

/* Q2_K. sum: of both halves, and the start; of odd blocks four times. m: what the sums of x are multiplied by. */
static __device__ __forceinline__ float block_step_16(float acc, float w, float m0, float m1, int32_t sum, float xs,
                                                      const float *aux, int odd)
{
    const float i =
        odd ? __fmaf_rn(__int_as_float(sum), 0.25f, -3145728.0f) : __fadd_rn(__int_as_float(sum), -12582912.0f);

    acc = __fmaf_rn(__fmul_rn(w, xs), i, acc);
    acc = __fmaf_rn(m0, aux[0], acc);
    return __fmaf_rn(m1, aux[1], acc);
}

/* Two sums that fit 16 bits in one word; of other formats the first one. */
template <class F> static __device__ __forceinline__ int32_t block_both(int32_t first, int32_t second)
{
    return F::X == BLOCK_X_SUM_16 ? (int32_t)ptx_prmt((uint32_t)first, (uint32_t)second, 0x5410) : first;
}

/* Adds one block to its partition, out of its sums (of 16 and 16 columns with sub-scales); not of Q2_K. */
template <class F>
static __device__ __forceinline__ float block_step(float acc, float w, float m, uint32_t sub, const int32_t *sum,
                                                   float xs, const float *aux)
{
    if (F::X == BLOCK_X_START_16) { /* Q6_K */
        const int32_t i = (int16_t)sub * sum[0] + ((int32_t)sub >> 16) * sum[1];

        return __fmaf_rn(__fmul_rn(w, xs), (float)i, acc);
    }
    acc = __fmaf_rn(__fmul_rn(w, xs), block_from_start<F>(sum[0], aux), acc);
    return F::X == BLOCK_X_SUM ? __fmaf_rn(m, aux[0], acc) : acc;
}

/* Block j of the four that a lane owns. */
template <class F>
static __device__ __forceinline__ float block_own_step(float acc, const block_scales *s, int j, const int32_t *sum,
                                                       float xs, const float *aux)
{
    if (F::X == BLOCK_X_SUM_16) {
        const int subs = (int)s->subs[j >> 1];
        const uint32_t mins = s->mins[j >> 1];
        const int32_t i = j & 1 ? __dp2a_hi(sum[0], subs, 0x4b400000) : __dp2a_lo(sum[0], subs, 0x4b400000);

        return block_step_16(acc, s->w[0], -__fmul_rn(s->m[0], block_byte_float(mins, 2 * (j & 1))),
                             -__fmul_rn(s->m[0], block_byte_float(mins, 2 * (j & 1) + 1)), i, xs, aux, j & 1);
    }
    return block_step<F>(acc, s->w[j], s->m[j], s->sub[j], sum, xs, aux);
}

/* ptx_mma_s8_k16 with unsigned a. */
static __device__ __forceinline__ void block_mma_u8_k16(int32_t *d, const uint32_t *a, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* ptx_mma_s8 with unsigned a. */
static __device__ __forceinline__ void block_mma_u8(int32_t *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class F>
static __device__ __forceinline__ void block_mma_onto(int32_t (*d)[4], const uint32_t *a, const uint32_t *b)
{
    if (F::X == BLOCK_X_START_16) {
        ptx_mma_s8_k16(d[0], a, b[0]);
        ptx_mma_s8_k16(d[1], a + 2, b[1]);
    } else if (F::X == BLOCK_X_SUM_16) {
        block_mma_u8_k16(d[0], a, b[0]);
        block_mma_u8_k16(d[1], a + 2, b[1]);
    } else {
        ptx_mma_s8(d[0], a, b);
    }
}

/* column[j]: 1 if lane / 4 = j, else 0. */
static __device__ __forceinline__ void block_columns(int lane, uint32_t *column)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        column[j] = lane >> 2 == j;
        asm("" : "+r"(column[j])); /* or the compiler makes selects of the products */
    }
}

/* A unit times one token, of one accumulator: adds to the sum of the run that this lane owns. */
template <class F>
static __device__ __forceinline__ void block_unit_together(const char *unit, const char *tables, const char *record,
                                                           int lane, const uint32_t *column, float *acc)
{
    enum { SUMS = F::X >= BLOCK_X_START_16 ? 2 : 1, OWN = F::X == BLOCK_X_START_16 ? 2 : 1 };
    const int t = lane % 4, odd = t & 1, run = t >> 1;
    const uint2 x = *(const uint2 *)(record + lane * 8);
    const float4 xs = *(const float4 *)(record + 256 + run * 16);
    const float scale[4] = {xs.x, xs.y, xs.z, xs.w};
    float aux[4][2] = {};
    int32_t d[2][SUMS][4], own[4][OWN]; /* even and odd blocks, which are even and odd columns, apart: two chains */
    block_scales s;

#pragma unroll
    for (int k = 0; k < SUMS; k++) {
        const int start = F::X == BLOCK_X_START_16 || F::X == BLOCK_X_SUM_16 ? 0 : 0x4b400000;
        int2 v = make_int2(start, start);

        if (F::X == BLOCK_X_START_16)
            v = *(const int2 *)(record + 288 + 32 * k + t * 8);
        d[0][k][0] = d[0][k][2] = v.x;
        d[1][k][1] = d[1][k][3] = v.y;
        d[0][k][1] = d[0][k][3] = d[1][k][0] = d[1][k][2] = 0; /* not read */
    }
    if (F::X == BLOCK_X_START || F::X == BLOCK_X_SUM || F::X == BLOCK_X_SUM_16)
#pragma unroll
        for (int k = 0; k < SUMS; k++) {
            const float4 v = *(const float4 *)(record + 288 + 32 * k + run * 16);

            aux[0][k] = v.x, aux[1][k] = v.y, aux[2][k] = v.z, aux[3][k] = v.w;
        }
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t codes[4][4];

        block_codes(F(), unit, tables, lane, q, codes);
#pragma unroll
        for (int j = 0; j < 4; j++) { /* products, not selects: those wait for the pipe that unpacks codes */
            const uint32_t b[2] = {x.x * column[4 * q + j], x.y * column[4 * q + j]};

            block_mma_onto<F>(d[j & 1], codes[j], b);
        }
    }
    block_own_scales(F(), unit, tables, lane, &s);
#pragma unroll
    for (int e = 0; e < 4; e++)
        d[e & 1][0][e] = block_both<F>(d[e & 1][0][e], d[e & 1][SUMS - 1][e]);
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        const int32_t got0 = __shfl_xor_sync(~0u, odd ? d[0][k][0] : d[0][k][2], 1);
        const int32_t got1 = __shfl_xor_sync(~0u, odd ? d[1][k][1] : d[1][k][3], 1);

        own[0][k] = odd ? got0 : d[0][k][0];
        own[1][k] = odd ? got1 : d[1][k][1];
        own[2][k] = odd ? d[0][k][2] : got0;
        own[3][k] = odd ? d[1][k][3] : got1;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        *acc = block_own_step<F>(*acc, &s, j, own[j], scale[j], aux[j]);
}

/* The sums of the run and row that a lane owns, of both halves of a block in one word. v: block_own_x. */
template <class F>
static __device__ __forceinline__ void block_sums_apart(const char *unit, const char *tables, const uint4 (*v)[2],
                                                        int lane, int32_t *own)
{
    const bool odd = lane & 1;
    int32_t d[4][4] = {};

#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t codes[4][4];

        block_codes(F(), unit, tables, lane, q, codes);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint4 x = v[q][j >> 1];
            const uint32_t b[2] = {j & 1 ? x.z : x.x, j & 1 ? x.w : x.y};

            if (F::X == BLOCK_X_SUM_16) {
                uint32_t first = (lane >> 2 & 5) == 4 * q, last = (lane >> 2 & 5) == 4 * q + 1;

                asm("" : "+r"(first), "+r"(last)); /* or the compiler makes selects of the products */
                const uint32_t halves[2] = {b[0] * first, b[1] * last};

                block_mma_u8(d[j], codes[j], halves);
            } else {
                block_mma_onto<F>(&d[j], codes[j], b);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        own[j] = block_both<F>(odd ? d[j][2] : d[j][0], odd ? d[j][3] : d[j][1]);
}

/* x of a unit for results of their own, by runs: columns 0 to 3 of the operand are the first run, the others the
 * second. With sub-scales both are the same, since halves are masked; else each run is zero in the other one's columns.
 */
template <class F>
static __device__ __forceinline__ void block_own_x(const char *record, const char *tables, int lane, uint4 (*v)[2])
{
#pragma unroll
    for (int q = 0; q < 2; q++) {
        const char *x = record + (lane >> 4) * 128;

        if (F::X != BLOCK_X_SUM_16 && lane >> 4 != q)
            x = tables + F::ZEROS;
        x += lane % 4 * 16;
        v[q][0] = *(const uint4 *)x;
        v[q][1] = *(const uint4 *)(x + 64);
    }
}

/* N units, PITCH bytes apart, times one token, of results of their own: adds to the sums acc[n]. */
template <class F, int N, int PITCH>
static __device__ __forceinline__ void block_units_1(const char *unit, const char *tables, const char *record, int lane,
                                                     float *acc)
{
    const char *const numbers = record + 256 + (lane >> 1 & 1) * 16; /* of the lane's run */
    const float4 xs = *(const float4 *)numbers;
    const float scale[4] = {xs.x, xs.y, xs.z, xs.w};
    float aux[4][2] = {};
    uint4 v[2][2];

#pragma unroll
    for (int k = 0; k < BLOCK_AUX(F::X); k++) {
        const float4 a = *(const float4 *)(numbers + 32 * (1 + k));

        aux[0][k] = a.x, aux[1][k] = a.y, aux[2][k] = a.z, aux[3][k] = a.w;
    }
    block_own_x<F>(record, tables, lane, v);
#pragma unroll
    for (int n = 0; n < N; n++) {
        int32_t own[4];
        block_scales s;

        block_sums_apart<F>(unit + n * PITCH, tables, v, lane, own);
        block_own_scales(F(), unit + n * PITCH, tables, lane, &s);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (F::X == BLOCK_X_SUM_16) {
                acc[n] = block_own_step<F>(acc[n], &s, j, &own[j], scale[j], aux[j]);
            } else {
                const float i =
                    F::X == BLOCK_X_START ? __fadd_rn((float)own[j], __fadd_rn(aux[j][0], 12582912.0f)) : (float)own[j];

                acc[n] = __fmaf_rn(__fmul_rn(s.w[j], scale[j]), i, acc[n]);
            }
        }
    }
}

/* A unit times one token. */
template <class F>
static __device__ __forceinline__ void block_unit_1(const char *unit, const char *tables, const char *record, int lane,
                                                    const uint32_t *column, float *acc)
{
    if constexpr (F::APART)
        block_units_1<F, 1, F::UNIT>(unit, tables, record, lane, acc);
    else
        block_unit_together<F>(unit, tables, record, lane, column, acc);
}

/* Where a lane finds x of eight tokens: in a record of all of them, or in records of their own, those of token lane / 4
 * (codes) and of tokens 2 t and 2 t + 1 (numbers). */
typedef struct block_x_at {
    const char *codes, *number[2];
} block_x_at;

/* The records that x is read from: of eight tokens, by ldmatrix or by words (of global memory, or where registers are
 * scarce), or of each token its own. */
enum { BLOCK_X_MATRIX = 0, BLOCK_X_OWN, BLOCK_X_WORDS };

/* Codes of blocks 2 which and the next, as B operands. */
template <class F, int OWN>
static __device__ __forceinline__ uint4 block_x_codes(const block_x_at &at, int64_t skip, int which, int lane)
{
    if constexpr (OWN == BLOCK_X_OWN && F::APART) {
        return *(const uint4 *)(at.codes + which * 64 + lane % 4 * 16);
    } else if constexpr (OWN == BLOCK_X_OWN) {
        const char *from = at.codes + which * 64 + lane % 4 * 8;
        const uint2 x = *(const uint2 *)from, y = *(const uint2 *)(from + 32);

        return make_uint4(x.x, x.y, y.x, y.y);
    } else if constexpr (OWN == BLOCK_X_WORDS) {
        int l = lane;

        asm volatile("" : "+r"(l)); /* or the sum is kept in registers, and others spill */
        const char *from = at.codes + skip + l / 4 * BLOCK_X_PITCH + which * 64 + l % 4 * 4;

        return make_uint4(*(const uint32_t *)from, *(const uint32_t *)(from + 16), *(const uint32_t *)(from + 32),
                          *(const uint32_t *)(from + 48));
    } else {
        uint32_t v[4];

        ptx_ldmatrix4(v, ptx_shared(at.codes) + (uint32_t)(lane % 8 * BLOCK_X_PITCH + lane / 8 * 16) +
                             (uint32_t)(skip + which * 64));
        return make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Scales (k = 0) or the like of tokens 2 t and 2 t + 1: of an even block for both, then of the next. */
template <int OWN>
static __device__ __forceinline__ float4 block_numbers(const block_x_at &at, int64_t skip, int k, int which, int t)
{
    if constexpr (OWN == BLOCK_X_OWN) {
        const float2 x = *(const float2 *)(at.number[0] + 256 + 32 * k + 8 * which);
        const float2 y = *(const float2 *)(at.number[1] + 256 + 32 * k + 8 * which);

        return make_float4(x.x, y.x, x.y, y.y);
    } else {
        return *(const float4 *)(at.codes + skip + 8 * BLOCK_X_PITCH + 256 * k + which * 64 + t * 16);
    }
}

/* Codes of a block times its sub-scales, where they fit a byte: one product for four. */
template <class F> static __device__ __forceinline__ void block_times_sub(uint32_t *codes, const block_row_scales &r)
{
    if (F::X == BLOCK_X_SUM_16)
#pragma unroll
        for (int k = 0; k < 4; k++)
            codes[k] *= r.sub[k & 1][k >> 1];
}

/* A block times eight tokens, i of its pair. number: the scales of x, and what the format needs beside them. */
template <class F>
static __device__ __forceinline__ void block_times_8(const uint32_t *codes, uint4 x, const float4 *number, int i,
                                                     const block_row_scales &r, float *acc)
{
    enum { SUMS = F::X == BLOCK_X_START_16 ? 2 : 1, AUX = BLOCK_AUX(F::X) };
    const uint32_t b[2] = {i ? x.z : x.x, i ? x.w : x.y};
    float own[AUX + 1][2]; /* of this lane's two tokens */
    int32_t d[SUMS][4];

#pragma unroll
    for (int k = 0; k <= AUX; k++) {
        own[k][0] = i ? number[k].z : number[k].x;
        own[k][1] = i ? number[k].w : number[k].y;
    }
#pragma unroll
    for (int k = 0; k < SUMS; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[k][e] = F::X == BLOCK_X_START_16 ? __float_as_int(own[AUX ? 1 + k : 0][e & 1]) : 0x4b400000;
    if (F::X == BLOCK_X_SUM_16)
        block_mma_u8(d[0], codes, b);
    else
        block_mma_onto<F>(d, codes, b);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int32_t sum[2] = {d[0][e], d[SUMS - 1][e]};
        const float more[2] = {own[AUX ? 1 : 0][e & 1], own[AUX][e & 1]};
        const int h = e >> 1;

        if (F::X == BLOCK_X_SUM_16)
            acc[e] = block_step_16(acc[e], r.w[h], r.m[h][0], r.m[h][1], sum[0], own[0][e & 1], more, i);
        else
            acc[e] = block_step<F>(acc[e], r.w[h], r.m[h][0], r.sub[h][0], sum, own[0][e & 1], more);
    }
}

/* Run q of N units, PITCH bytes apart, which x is loaded once for, times 8 TILES tokens: acc[8 TILES n + 4 tile + i] as
 * the D operand has them. OWN: each token has records of its own. HAND: scales come from `hand`, not their owners. */
template <class F, int N, int PITCH, int TILES, int OWN, int HAND = 0>
static __device__ __forceinline__ void block_run_8(const char *unit, const char *tables, const block_scales *s,
                                                   const char *hand, int q, block_x_at record, int64_t tile_stride,
                                                   int lane, float *acc)
{
    enum { AUX = BLOCK_AUX(F::X) };
    uint32_t codes[N][4][4];

#pragma unroll
    for (int n = 0; n < N; n++)
        block_codes(F(), unit + n * PITCH, tables, lane, q, codes[n]);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const int which = 2 * q + pair;
        block_row_scales r[N][2] = {};
        uint4 x[TILES];
        float4 number[TILES][AUX + 1];
        const auto load = [&](int tile) {
            x[tile] = block_x_codes<F, OWN>(record, tile * tile_stride, which, lane);
#pragma unroll
            for (int k = 0; k <= AUX; k++)
                number[tile][k] = block_numbers<OWN>(record, tile * tile_stride, k, which, lane % 4);
        };

        if (TILES > 1 || N > 1 || OWN == BLOCK_X_WORDS)
            asm volatile("" ::: "memory"); /* keeps loads of x behind it: registers */
#pragma unroll
        for (int n = 0; n < N; n++) {
            if constexpr (HAND)
                block_get_scales<F>(unit + n * PITCH, hand + n * BLOCK_HAND(F::X), q, pair, lane, r[n]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if constexpr (!HAND)
                    block_hand_rows<F>(s + n, q, 2 * pair + i, lane, &r[n][i]);
                block_times_sub<F>(codes[n][2 * pair + i], r[n][i]);
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                if (n == 0)
                    load(tile);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    block_times_8<F>(codes[n][2 * pair + i], x[tile], number[tile], i, r[n][i],
                                     acc + 8 * TILES * n + 4 * tile);
            }
        }
    }
}

/* N units: acc[n][run]. */
template <class F, int N, int PITCH, int TILES, int OWN, int HAND = 0>
static __device__ __forceinline__ void block_units_8(const char *unit, const char *tables, char *hand,
                                                     block_x_at record, int64_t tile_stride, int lane,
                                                     float (*acc)[2][4 * TILES])
{
    block_scales s[N];

#pragma unroll
    for (int n = 0; n < N; n++) {
        block_own_scales(F(), unit + n * PITCH, tables, HAND ? block_hand_lane(lane) : lane, &s[n]);
        if constexpr (HAND)
            block_put_scales<F>(&s[n], lane, hand + n * BLOCK_HAND(F::X));
    }
    if (HAND)
        __syncwarp(); /* the lanes' scales are visible to each other */
#pragma unroll
    for (int q = 0; q < 2; q++)
        block_run_8<F, N, PITCH, TILES, OWN, HAND>(unit, tables, s, hand, q, record, tile_stride, lane, acc[0][q]);
}

template <int BULK> static __device__ __forceinline__ void block_wait(uint32_t bar, uint32_t parity, int depth)
{
    if constexpr (BULK) {
        ptx_mbarrier_wait(bar, parity);
    } else {
        if (depth == 4)
            mma_copy_wait_for<3>();
        else if (depth == 3)
            mma_copy_wait_for<2>();
        else if (depth == 2)
            mma_copy_wait_for<1>();
        else
            mma_copy_wait_for<0>();
        __syncwarp(); /* the lanes' copies are visible to each other */
    }
}

/* Formats without tables, or whose tables need no loads. */
template <class F> static __device__ __forceinline__ uint32_t block_load_table(F)
{
    return 0;
}

template <class F> static __device__ __forceinline__ void block_store_table(F, char *, uint32_t)
{
}

template <class F> static __device__ __forceinline__ void block_fill_tables(F f, char *tables)
{
    block_store_table(f, tables, block_load_table(f));
}

#endif

/* gemm_bf16.cuh: the product of 16-bit matrices on every device from sm_80 on: cp.async, ldmatrix, mma.sync. A kernel
 * adds its tile scheduler and its epilogue (ops/linear_ce/: logits_mma.cu, grads_mma.cu).
 *
 *     D [m, n] = A [m, k] B [n, k]^T, f32 in registers; A and B may each be contiguous along k (K-major) or along
 *     their rows (MN-major)
 *
 * A CTA has eight warps, each with 64 x 64 of the tile of 128 x 256 or 256 x 128. Global memory reaches shared memory
 * by cp.async, G80_STAGES stages of G80_BLOCK_K deep (96 KB, which sm_86 and sm_120 have), and registers by ldmatrix,
 * one step of 16 k ahead of the products. One barrier a stage: it orders the copies of all threads before the reads of
 * the next stage, and the reads of the present one before the copies that replace it.
 *
 * Of an operand that is K-major a stage has lines of 64 bytes, a row each; chunk c of 16 bytes of line r is at
 * c ^ (r / 2 % 4). Of an MN-major operand it has G80_BLOCK_K lines, a k each; chunk c of line k is at c ^ (k % 8). So
 * the eight addresses of an 8 x 8 matrix are in eight different groups of banks.
 *
 * What a stage lacks (k beyond the last, MN-major rows beyond the last chunk) becomes zero; K-major rows beyond the
 * last one are copies of the last one. An MN-major operand is read in whole chunks of 8 rows.
 *
 * Accumulators: warp w has rows 64 (w / WARPS_N) and columns 64 (w % WARPS_N) of the tile on. With g = lane / 4 and
 * t = lane % 4, acc[i][j][q] is row 16 i + g + 8 (q / 2), column 8 j + 2 t + q % 2 of these. */
#ifndef RIDGE_GEMM_BF16_SM80_CUH
#define RIDGE_GEMM_BF16_SM80_CUH

#include "cuda/mma.cuh"
#include "cuda/num.cuh"

enum { G80_BLOCK_K = 32, G80_STAGES = 4, G80_THREADS = 256, G80_WARP = 64 };
enum { G80_STAGE_BYTES = (128 + 256) * G80_BLOCK_K * 2, G80_SHARED = G80_STAGES * G80_STAGE_BYTES };

typedef float g80_acc[4][8][4]; /* 64 x 64 of a warp */

/* The rows of an operand from the tile's first one on. lines: how many there are, at least 1. list (K-major only): the
 * rows are data[list[i]]. */
typedef struct g80_operand {
    const uint16_t *data;
    int64_t ld;
    int lines;
    const int32_t *list;
} g80_operand;

/* ------------------------------------------------------------------------------------ global to shared memory */

/* What a thread copies of a tile of ROWS rows in each stage: EACH chunks. K-major: the same chunk of k of rows STEP
 * apart; MN-major: the same chunk of rows of k STEP apart. */
template <int ROWS, int MN> struct g80_copy {
    enum { CHUNKS = MN ? ROWS / 8 : G80_BLOCK_K / 8, STEP = G80_THREADS / CHUNKS };
    enum { EACH = ROWS * G80_BLOCK_K / 8 / G80_THREADS };
    const uint16_t *from[MN ? 1 : EACH]; /* in the first block of k: by row, or of the first k */
    int64_t ld;                          /* MN-major */
    uint32_t to;                         /* in the stage */
    int k;                               /* in the block: of the chunk, or the first one */
};

template <int ROWS, int MN> static __device__ __forceinline__ g80_copy<ROWS, MN> g80_copy_of(const g80_operand &a)
{
    using copy = g80_copy<ROWS, MN>;
    const int line = threadIdx.x / copy::CHUNKS, chunk = threadIdx.x % copy::CHUNKS;
    copy c;

    c.ld = a.ld;
    if (MN) {
        const bool there = chunk * 8 < a.lines;

        c.from[0] = a.data + (there ? line * a.ld + chunk * 8 : 0);
        c.to = line * (ROWS * 2) + (chunk ^ line % 8) * 16;
        c.k = there ? line : INT32_MAX / 2;
    } else {
#pragma unroll
        for (int i = 0; i < (MN ? 1 : copy::EACH); i++) {
            const int row = min(line + i * copy::STEP, a.lines - 1);

            c.from[i] = a.data + (a.list ? a.list[row] : row) * a.ld + chunk * 8;
        }
        c.to = line * (G80_BLOCK_K * 2) + (chunk ^ line / 2 % 4) * 16;
        c.k = chunk * 8;
    }
    return c;
}

/* Stage `block` of k to shared memory at `to`. k: its extent. */
template <int ROWS, int MN>
static __device__ __forceinline__ void g80_copy_block(const g80_copy<ROWS, MN> &c, uint32_t to, int block, int k)
{
    using copy = g80_copy<ROWS, MN>;

    to += c.to;
#pragma unroll
    for (int i = 0; i < copy::EACH; i++) {
        const bool there = block * G80_BLOCK_K + c.k + (MN ? i * copy::STEP : 0) < k;
        const uint16_t *from =
            MN ? c.from[0] + (block * G80_BLOCK_K + i * copy::STEP) * c.ld : c.from[MN ? 0 : i] + block * G80_BLOCK_K;

        mma_copy16(to + i * copy::STEP * (MN ? ROWS : G80_BLOCK_K) * 2, there ? from : c.from[0], there ? 16 : 0);
    }
}

/* -------------------------------------------------------------------------------------- shared memory to registers */

/* Where a lane's addresses begin: of 16 rows by 16 k, from the stage's first k on; for the other rows and k see
 * g80_fragment. first: the warp's first row of the tile. B: the matrices of the two halves of k come one after the
 * other, of A those of the two halves of the rows. */
template <int ROWS, int MN, bool B> static __device__ __forceinline__ uint32_t g80_lane(int first)
{
    const int lane = threadIdx.x % 32, half = lane / 16, quarter = lane / 8 % 2;
    const int row = B ? half : quarter, k = B ? quarter : half;

    if (MN)
        return (k * 8 + lane % 8) * (ROWS * 2) + ((first / 8 + row) ^ lane % 8) * 16;
    return (first + row * 8 + lane % 8) * (G80_BLOCK_K * 2) + (k ^ lane % 8 / 2) * 16;
}

/* Rows 16 i .. of the warp, k 16 step .. of the stage at `at`. */
template <int ROWS, int MN>
static __device__ __forceinline__ void g80_fragment(uint32_t *v, uint32_t stage, uint32_t lane, int i, int step)
{
    if (MN)
        ptx_ldmatrix4_transposed(v, stage + (lane ^ i * 32) + step * 16 * (ROWS * 2));
    else
        ptx_ldmatrix4(v, stage + (lane ^ step * 32) + i * 16 * (G80_BLOCK_K * 2));
}

/* One step of 16 k: v[0] .. v[3] four times 16 rows of A, v[4] .. v[7] of B. */
typedef uint32_t g80_step[8][4];

template <int BM, int BN, int MN_A, int MN_B>
static __device__ __forceinline__ void g80_load_step(g80_step v, uint32_t stage, uint32_t lane_a, uint32_t lane_b,
                                                     int step)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        g80_fragment<BM, MN_A>(v[i], stage, lane_a, i, step);
        g80_fragment<BN, MN_B>(v[4 + i], stage + BM * G80_BLOCK_K * 2, lane_b, i, step);
    }
}

template <int BF16> static __device__ __forceinline__ void g80_multiply(g80_acc acc, const g80_step v)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            mma_16<BF16>(acc[i][j], v[i], v[4 + j / 2] + j % 2 * 2);
}

/* ------------------------------------------------------------------------------------------------------ main loop */

/* acc = A B^T over k. shared: G80_SHARED bytes, which other warps may still read until a barrier behind it. */
template <int BF16, int BM, int BN, int MN_A, int MN_B>
static __device__ __forceinline__ void g80_mainloop(const g80_operand &a, const g80_operand &b, int k, uint32_t shared,
                                                    g80_acc acc)
{
    static_assert(BM * BN == 128 * 256, "eight warps of 64 x 64");
    enum { WARPS_N = BN / G80_WARP, B_AT = BM * G80_BLOCK_K * 2 };
    const g80_copy<BM, MN_A> copy_a = g80_copy_of<BM, MN_A>(a);
    const g80_copy<BN, MN_B> copy_b = g80_copy_of<BN, MN_B>(b);
    const int warp = threadIdx.x / 32, blocks = (k + G80_BLOCK_K - 1) / G80_BLOCK_K;
    const uint32_t lane_a = g80_lane<BM, MN_A, false>(warp / WARPS_N * G80_WARP);
    const uint32_t lane_b = g80_lane<BN, MN_B, true>(warp % WARPS_N * G80_WARP);
    uint32_t stage = shared;
    g80_step v[2];

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 32; j++)
            (&acc[i][0][0])[j] = 0.0f;
#pragma unroll
    for (int s = 0; s < G80_STAGES; s++) {
        if (s < blocks) {
            g80_copy_block<BM, MN_A>(copy_a, shared + s * G80_STAGE_BYTES, s, k);
            g80_copy_block<BN, MN_B>(copy_b, shared + s * G80_STAGE_BYTES + B_AT, s, k);
        }
        mma_copy_commit();
    }
    mma_copy_wait_for<G80_STAGES - 1>();
    __syncthreads(); /* orders the copies of all threads before the reads of stage 0 */
    g80_load_step<BM, BN, MN_A, MN_B>(v[0], stage, lane_a, lane_b, 0);
    for (int block = 0; block < blocks; block++) {
        g80_load_step<BM, BN, MN_A, MN_B>(v[1], stage, lane_a, lane_b, 1);
        g80_multiply<BF16>(acc, v[0]);
        mma_copy_wait_for<G80_STAGES - 2>();
        __syncthreads(); /* orders the copies before the reads of the next stage, the reads before the next copies */
        const uint32_t freed = stage;

        stage = stage == shared + (G80_STAGES - 1) * G80_STAGE_BYTES ? shared : stage + G80_STAGE_BYTES;
        if (block + 1 < blocks)
            g80_load_step<BM, BN, MN_A, MN_B>(v[0], stage, lane_a, lane_b, 0);
        if (block + G80_STAGES < blocks) {
            g80_copy_block<BM, MN_A>(copy_a, freed, block + G80_STAGES, k);
            g80_copy_block<BN, MN_B>(copy_b, freed + B_AT, block + G80_STAGES, k);
        }
        mma_copy_commit();
        g80_multiply<BF16>(acc, v[1]);
    }
    __syncthreads(); /* orders the reads of the last stages before what the caller writes there */
}

#endif

/* gemm.cuh: parts of the kernel for prompts (gemm_mma.cu) that do not depend on how operands are loaded: the rows of a
 * tile, the sums of partitions and their tree, the epilogue. T is a struct of a tile's numbers. */
#ifndef RIDGE_Q8_0_GEMM_CUH
#define RIDGE_Q8_0_GEMM_CUH

#include "args.cuh"
#include "cuda/mma.cuh"

typedef struct q8_0_gemm_args {
    int tiles[2];    /* of rows of each weight */
    int token_tiles; /* neighbouring CTAs have different tokens and the same weights */
    int stages;      /* of k */
    int gate_up;
    int64_t x_step; /* floats from a scale of x to the next block's */
    q8_0_matmul_args p;
} q8_0_gemm_args;

/* Row `i` of the tile: which weight, and its row. With gate_up the first half of a warp's rows are gate's and the
 * second half the same rows of up, so that the epilogue finds both in the tile. */
template <class T>
static __device__ __forceinline__ int gemm_row(const q8_0_gemm_args &a, int tile, int i, int64_t *row)
{
    const int which = tile >= a.tiles[0];

    if (a.gate_up) {
        *row = (int64_t)tile * (T::BM / 2) + i / (16 * T::TM) * (8 * T::TM) + i % (8 * T::TM);
        return i / (8 * T::TM) % 2;
    }
    *row = (int64_t)(which ? tile - a.tiles[0] : tile) * T::BM + i;
    return which;
}

/* ------------------------------------------------------------------------------------------------------- partitions */

/* The sums of earlier partitions that the tree still needs: up to three of each of the thread's elements, the first
 * KEEP_REGS of all of them in registers. */
template <class T> struct gemm_kept {
    static_assert(T::KEEP_REGS % 4 == 0 && T::ELEMENTS % 4 == 0, "four at a time");
    float value[T::KEEP_REGS];
    uint32_t shared; /* this thread's 16 bytes; THREADS of those apart */
};

template <class T> static __device__ __forceinline__ void gemm_keep(gemm_kept<T> *kept, int at, const float *v)
{
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i += 4) {
        const int n = at * T::ELEMENTS + i;

        if (n >= T::KEEP_REGS)
            mma_write16(kept->shared + (n - T::KEEP_REGS) / 4 * T::THREADS * 16,
                        make_uint4(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]),
                                   __float_as_uint(v[i + 3])));
#pragma unroll
        for (int j = 0; j < 4 && n < T::KEEP_REGS; j++)
            kept->value[n + j] = v[i + j];
    }
}

template <class T> static __device__ __forceinline__ void gemm_add_kept(const gemm_kept<T> &kept, int at, float *v)
{
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i += 4) {
        const int n = at * T::ELEMENTS + i;
        float from[4];

        if (n >= T::KEEP_REGS)
            ptx_load_shared4(from, kept.shared + (n - T::KEEP_REGS) / 4 * T::THREADS * 16);
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[i + j] = __fadd_rn(n < T::KEEP_REGS ? kept.value[n < T::KEEP_REGS ? n + j : 0] : from[j], v[i + j]);
    }
}

/* After partition `part`: adds what the tree has complete by now and puts the rest aside, 0 where partition 0, 0 + 1,
 * (0 + 1) + (2 + 3) lies, 1 for 2, 4 and 4 + 5, 2 for 6. After the last one v is the result. */
template <class T> static __device__ __forceinline__ void gemm_fold(gemm_kept<T> *kept, int part, float *v)
{
    if (part == 7)
        gemm_add_kept<T>(*kept, 2, v);
    if (part == 3 || part == 5 || part == 7)
        gemm_add_kept<T>(*kept, 1, v);
    if (part == 1 || part == 3 || part == 7)
        gemm_add_kept<T>(*kept, 0, v);
    if (part == 7)
        return;
    if (part == 6)
        gemm_keep<T>(kept, 2, v);
    else if (part == 2 || part >= 4)
        gemm_keep<T>(kept, 1, v);
    else
        gemm_keep<T>(kept, 0, v);
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        v[i] = 0.0f;
}

/* --------------------------------------------------------------------------------------------------------- epilogue */

/* A result: the sum itself, or the tree over the groups'. */
template <class T> static __device__ __forceinline__ float gemm_result(const float *from)
{
    return T::SPLIT == 1 ? *from : q8_0_sum_parts<T::PLANE>(from);
}

/* Through shared memory, [group][token][row], so that neighbouring threads store neighbouring rows. */
template <class T>
static __device__ __forceinline__ void gemm_store(const q8_0_gemm_args &a, int tile, int first_token, int group,
                                                  int warp_m, int warp_n, float *memory, float (*acc)[T::TN][4])
{
    const int lane = threadIdx.x % 32;
    float *to =
        memory + group * T::PLANE + (warp_n * T::TN * 8 + lane % 4 * 2) * T::PITCH + warp_m * T::TM * 16 + lane / 4;

    __syncthreads(); /* orders the reads of the last stages before these writes */
#pragma unroll
    for (int i = 0; i < T::TM; i++)
#pragma unroll
        for (int j = 0; j < T::TN; j++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                to[(j * 8 + q % 2) * T::PITCH + i * 16 + q / 2 * 8] = acc[i][j][q];
    __syncthreads(); /* orders the writes before the reads */
    for (int i = threadIdx.x; i < T::BM * T::BN; i += T::THREADS) {
        const int token = first_token + i / T::BM;
        const float *from = memory + i / T::BM * T::PITCH + i % T::BM;
        int64_t row;
        const int which = gemm_row<T>(a, tile, i % T::BM, &row);

        if (token >= a.p.tokens || row >= a.p.weight[which].rows || (a.gate_up && which))
            continue;
        if (a.gate_up)
            q8_0_epilogue_gate_up(a.p, row, token, gemm_result<T>(from), gemm_result<T>(from + 8 * T::TM));
        else
            q8_0_epilogue(a.p, which, row, token, gemm_result<T>(from), NULL);
    }
}

#endif

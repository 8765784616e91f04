/* gemm_mma.cuh: products of many tokens (prompts) with weights in block formats by mma.sync, sm_80 up; one kernel for
 * all formats.
 *
 * A CTA computes 64 rows by 64 tokens, a warp 16 rows and all tokens, partition by partition (q8_0/gemm.cuh), by the
 * products of decoding (mma.cuh). x lies in records of eight tokens, made by a kernel of their own. A stage has a run:
 * a warp's unit, and of eight records the codes and numbers of the run, at the places they have in a record.
 * __syncthreads orders the copies of a stage before its reads, and these before the next copies. */
#ifndef RIDGE_BLOCKS_GEMM_MMA_CUH
#define RIDGE_BLOCKS_GEMM_MMA_CUH

#include "mma.cuh"
#include "ops/q8_0/gemm.cuh"

enum { PROMPT_BM = 64, PROMPT_BN = 64, PROMPT_WARPS = PROMPT_BM / 16, PROMPT_THREADS = 32 * PROMPT_WARPS };

template <class F> struct block_prompt_tile {
    enum {
        WARPS = PROMPT_WARPS,
        GROUPS = PROMPT_BN / 8, /* of eight tokens */
        BM = PROMPT_BM,
        BN = PROMPT_BN,
        THREADS = PROMPT_THREADS,
        ELEMENTS = 4 * GROUPS,
        KEEP_REGS = (F::X >= BLOCK_X_START_16 ? 2 : 3) * ELEMENTS, /* with two sums a block registers would spill */
        RING = 2,
        RECORD = BLOCK_RECORD_8(F::X),
        AT_UNITS = GROUPS * RECORD,
        STAGE_BYTES = AT_UNITS + WARPS * F::UNIT,
        PITCH = BM + 4,
        AT_KEPT = F::TABLES + RING * STAGE_BYTES,
        SHARED = AT_KEPT + (3 * ELEMENTS - KEEP_REGS) * THREADS * 4
    };
    static_assert(BN * PITCH * 4 <= RING * STAGE_BYTES, "results where the stages were");
};

typedef struct block_prompt_args {
    int tiles[2], token_tiles, runs, groups; /* of rows, of each weight; groups of eight tokens that there are */
    block_mma_args p;
} block_prompt_args;

/* The tile of 16 rows that warp i has; of gate and up two each. Beyond the last one, the last one again. */
static __device__ __forceinline__ const uint8_t *prompt_tile_of(const block_prompt_args &a, int tile, int i)
{
    int which = tile >= a.tiles[0], first = (which ? tile - a.tiles[0] : tile) * 4 + i;

    if (a.p.gate_up) {
        which = i >> 1;
        first = tile * 2 + (i & 1);
    }
    return a.p.weight[which].tiles + min(first, (a.p.weight[which].rows - 1) / BLOCK_ROWS) * a.p.weight[which].stride;
}

/* Copies run `run` of the weights and of x into a stage. */
template <class F>
static __device__ __forceinline__ void prompt_copy(const block_prompt_args &a, const uint8_t *tile, int group, int run,
                                                   uint32_t stage)
{
    typedef block_prompt_tile<F> T;
    enum { PARTS = 64 + 8 * (1 + BLOCK_AUX(F::X)) }; /* of 16 bytes: codes and numbers of a run */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = run & 1;

    block_copy_unit<F, 0>(tile + (int64_t)(run >> 1) * F::UNIT, F::SMALL && a.p.tail && run >> 1 == a.p.units - 1,
                          stage + T::AT_UNITS + warp * F::UNIT, 0, lane);
    for (int i = threadIdx.x; i < T::GROUPS * PARTS; i += T::THREADS) {
        const int g = i / PARTS, c = i % PARTS;
        const int at = q * 128 + c % 8 * 16 + (c < 64 ? c / 8 * BLOCK_X_PITCH : 8 * BLOCK_X_PITCH + (c - 64) / 8 * 256);

        mma_copy16(stage + g * T::RECORD + at,
                   a.p.records + ((int64_t)min(group + g, a.groups - 1) * a.p.units + (run >> 1)) * T::RECORD + at, 16);
    }
}

/* The run after `run`, partition by partition; a.runs at the end. */
static __device__ __forceinline__ int prompt_next(int run, int runs, int *part)
{
    run += RIDGE_Q8_0_PARTS;
    while (run >= runs && *part < RIDGE_Q8_0_PARTS)
        run = ++*part;
    return run;
}

template <class F>
static __device__ __forceinline__ void prompt_store(const block_prompt_args &a, int tile, int first_token,
                                                    const float *results)
{
    typedef block_prompt_tile<F> T;
    const int which = !a.p.gate_up && tile >= a.tiles[0], height = T::BM >> a.p.gate_up;
    const block_weight &w = a.p.weight[which];

    for (int i = threadIdx.x; i < height * T::BN; i += T::THREADS) {
        const int row = (which ? tile - a.tiles[0] : tile) * height + i % height, token = first_token + i / height;
        const float *from = results + i / height * T::PITCH + i % height;
        float y;

        if (row >= w.rows || token >= a.p.tokens)
            continue;
        y = block_add_bias(w.bias, row, *from + 0.0f);
        if (a.p.gate_up)
            y = q8_0_swiglu(a.p.act, y, block_add_bias(a.p.weight[1].bias, row, from[T::BM / 2] + 0.0f),
                            a.p.token_scale ? a.p.token_scale[token] : 1.0f, a.p.swiglu);
        else if (a.p.residual)
            y += block_residual(a.p, row, token);
        block_store(a.p, w, row, token, y);
    }
}

template <class F>
static __global__ void __launch_bounds__(PROMPT_THREADS) block_prompt(const __grid_constant__ block_prompt_args a)
{
    typedef block_prompt_tile<F> T;
    extern __shared__ __align__(128) char memory[];
    char *const ring = memory + F::TABLES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile = (int)blockIdx.x / a.token_tiles, first_token = (int)blockIdx.x % a.token_tiles * T::BN;
    const uint8_t *const from = prompt_tile_of(a, tile, warp);
    int to_copy = 0, copy_part = 0, slot = 0;
    float acc[T::ELEMENTS] = {};
    gemm_kept<T> kept;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    block_fill_tables(F(), memory);
    kept.shared = ptx_shared(memory + T::AT_KEPT) + threadIdx.x * 16;
    for (int i = 0; i < T::RING - 1; i++) {
        if (copy_part < RIDGE_Q8_0_PARTS)
            prompt_copy<F>(a, from, first_token / 8, to_copy, ptx_shared(ring + i * T::STAGE_BYTES));
        mma_copy_commit();
        to_copy = prompt_next(to_copy, a.runs, &copy_part);
    }
#pragma unroll 1
    for (int part = 0; part < RIDGE_Q8_0_PARTS; part++) {
#pragma unroll 1
        for (int run = part; run < a.runs; run += RIDGE_Q8_0_PARTS) {
            const char *stage = ring + slot * T::STAGE_BYTES, *unit = stage + T::AT_UNITS + warp * F::UNIT;
            block_scales s;

            mma_copy_wait_for<T::RING - 2>();
            __syncthreads();
            slot = slot + 1 == T::RING ? 0 : slot + 1;
            if (copy_part < RIDGE_Q8_0_PARTS)
                prompt_copy<F>(a, from, first_token / 8, to_copy,
                               ptx_shared(ring + (slot + T::RING - 2) % T::RING * T::STAGE_BYTES));
            mma_copy_commit();
            to_copy = prompt_next(to_copy, a.runs, &copy_part);
            block_own_scales(F(), unit, memory, lane, &s);
            block_run_8<F, 1, 0, T::GROUPS, BLOCK_X_WORDS>(unit, memory, &s, NULL, run & 1,
                                                           block_x_at{stage, {NULL, NULL}}, T::RECORD, lane, acc);
        }
        gemm_fold<T>(&kept, part, acc);
    }
    mma_copy_wait_for<0>();
    __syncthreads(); /* orders the reads of the last stage before these writes */
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        ((float *)ring)[(i / 4 * 8 + lane % 4 * 2 + i % 2) * T::PITCH + warp * 16 + lane / 4 + i / 2 % 2 * 8] = acc[i];
    __syncthreads(); /* orders the writes before the reads */
    prompt_store<F>(a, tile, first_token, (const float *)ring);
}

#endif

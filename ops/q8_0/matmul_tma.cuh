/* matmul_tma.cuh: the Q8_0 products at the rate at which memory delivers the weights, sm_90 up: the design, and what
 * its warps share. The TMA producers and MMA warps are in matmul_tma_mainloop.cuh, the epilogue warps in
 * matmul_tma_epilogue.cuh, kernel and host side in matmul_tma.cu.
 *
 * A persistent CTA computes tiles of 8, 16 or 32 weight rows by all tokens (up to 16). Its warps:
 *
 *     weight producer   one warp: TMA loads a k step of the tile, 1024 columns of its rows, into a ring of stages
 *     x producer        one warp: TMA loads x, into memory of its own where all of x fits, else into the ring's stages
 *     MMA               eight warps (with 32 rows two groups of eight, 16 rows each): warp p has partition p of the
 *                       canonical order (src/math/q8_0.h), 4 blocks of a k step
 *     epilogue          2, 4 or 6 warps: add the eight partitions, finish and store
 *
 * A block is one m16n8k32: weights are its 16 rows, tokens its 8 columns. The integer sum starts at 0x4b400000, the
 * bits of 12582912.0f: read as a float it is 12582912 + dot, exactly, and a subtraction leaves the dot; the conversion
 * instruction runs at a quarter of that rate. A lane keeps the chains of its rows and tokens in registers, so nothing
 * crosses lanes or warps within a tile. The MMA warps then write their partial sums to one of two buffers of shared
 * memory and go on with the next tile while the epilogue warps add them.
 *
 * TMA fills columns and rows outside of the matrices with zeros: ragged k steps and rows are blocks of zero codes and
 * zero scales, which change no bit. Bytes moved: the weights once for all tokens; x from L2, once a CTA where it stays
 * in shared memory (x_resident), else once a tile.
 *
 * mbarriers, at off_bars + 8 i:
 *     full[s]       the bytes of a stage's weights have arrived: orders TMA's writes before the MMA warps' reads
 *     empty[s]      an arrival an MMA warp: its reads of weights (and x) of a stage come before TMA's next writes
 *     sums_full[b]  an arrival an MMA warp: its partial sums in buffer b are written before they are read
 *     sums_free[b]  an arrival an epilogue warp: it has read them before the next tile's are written
 *     BAR_READY     the barriers but full[] are initialised; the weight producer waits for it before it uses empty[]
 *     BAR_X_FULL    the bytes of x have arrived: by box of 1 << x_shift k steps, or by stage */
#ifndef RIDGE_Q8_0_MATMUL_TMA_CUH
#define RIDGE_Q8_0_MATMUL_TMA_CUH

#include "args.cuh"
#include "cuda/sm90/pipeline.cuh"

enum { MAX_STAGES = 16, SUM_BUFFERS = 2 };

/* A tile has SUBS subtiles of SUB rows. Large tiles have one CTA on an SM and a long epilogue, small ones two CTAs and
 * a short one. Tiles of 32 rows have two groups of MMA warps: a single warp spends most of its time waiting for its own
 * loads and products. */
#define LARGE(subs, tokens) ((subs) * (tokens) > 32 || (subs) == 4)
#define MMA_GROUPS(subs) ((subs) == 4 ? 2 : 1)
#define MMA_WARPS(subs) (RIDGE_Q8_0_PARTS * MMA_GROUPS(subs))
#define EPILOGUE_WARPS(subs, tokens) ((subs) == 4 ? 6 : LARGE(subs, tokens) ? 4 : 2)
#define THREADS(subs, tokens) (32 * (MMA_WARPS(subs) + 2 + EPILOGUE_WARPS(subs, tokens)))

/* Shared memory of a subtile and k step. Rows of raw blocks and of scales are padded by 16 bytes, so that eight of them
 * begin in different banks. */
enum {
    SUB = 8,
    RAW_PITCH = Q8_0_STEP * RIDGE_Q8_0_BYTES + 16,
    SCALE_PITCH = 2 * Q8_0_STEP + 16,
    X_SCALE_PITCH = 4 * Q8_0_STEP + 16,
    RAW_BYTES = SUB * RAW_PITCH,
    CODE_BYTES = SUB * 1024,
    SCALE_BYTES = SUB * SCALE_PITCH,
    BAR_READY = 8 * (2 * MAX_STAGES + 2 * SUM_BUFFERS),
    BAR_X_FULL = BAR_READY + 8,
    BAR_BYTES = BAR_X_FULL + 8 * MAX_STAGES
};

/* Hyper-connections with the usual four streams: post and comb of a token. */
enum { HC_STREAMS = 4, HC_FACTORS = HC_STREAMS + HC_STREAMS * HC_STREAMS };

/* Partial sums: rows of every other token begin 8 banks apart. */
#define SUMS_PITCH(subs) ((subs)*SUB + 4)
#define SUMS_BYTES(subs, tokens) (4 * RIDGE_Q8_0_PARTS * (tokens)*SUMS_PITCH(subs))

typedef struct q8_0_tma_args {
    /* What the loops read, in one line of the constant cache. */
    int tiles0, tiles; /* of the first weight, of both */
    int k_steps, stages, gate_up;
    int tile_rows;              /* with gate_up half of a stage's rows */
    int x_resident;             /* all of x stays in shared memory */
    int early_steps;            /* k steps that are loaded before the primary grid has ended (at most the stages), */
    int prefetch_steps;         /* and that are prefetched into L2 after them */
    int window;                 /* k steps in flight, */
    int early_window;           /* and before the primary grid has ended */
    int cta_tiles, extra_tiles; /* tiles of every CTA; the first extra_tiles CTAs have one more */
    int trigger_left;           /* k steps that a CTA has still to issue when it triggers the dependent launch */
    int tokens, x_scales_slot;
    int x_shift;   /* a box of x has 1 << x_shift k steps; 0 where x goes through the ring */
    int x_dtype;   /* RIDGE_I8: codes and scales, by TMA; else the MMA warps quantise x into its resident place */
    int two_teams; /* of epilogue warps, which alternate between tiles; else one */
    uint32_t off_x, off_scales, off_x_scales, off_sums, off_factors, off_bars; /* in shared memory */
    CUtensorMap codes[2], scales[2], x, x_scales;                              /* codes: raw blocks without planes */
    const char *x_floats;
    int64_t x_stride; /* bytes */
    q8_0_matmul_args p;
} q8_0_tma_args;

#if __CUDA_ARCH__ >= 900
/* Keeps the compiler from computing a value, or reading a kernel parameter, again in front of what uses it. */
static __device__ __forceinline__ uint32_t opaque(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}
#endif

#endif

/* append_attention.cu: kv_append_attention of one token in one kernel, by the CTAs of tile.cuh. More tokens, more
 * queries of a KV head, another head_dim or a cache for `piece` have kv_append's kernel first (attention.cu, piece.cu).
 *
 * Every CTA computes the heads of q of its KV head anew, a warp a head (append_head.cuh), while the cache's keys and
 * values are being copied; the CTA whose piece has the token's position computes its k and v as well. They go to the
 * cache and to the piece in shared memory, where they take the place of what was loaded for that row: no other CTA
 * reads the row. */
#include "append_head.cuh"
#include "tile.cuh"

enum { GROUP = ROWS - 2 }; /* queries of a KV head; k and v lie behind them */

typedef struct append_tile_args {
    attention_args p;
    append_args a;
} append_tile_args;

/* Keys and values of rows [low, high) of the piece: two groups of cp.async. */
template <class F>
static __device__ __forceinline__ void load_cache(const attention_args &p, tile_shared<F::N> *s, int low, int high)
{
    const int64_t base = (int64_t)blockIdx.x * PIECE * F::BYTES;

    load_rows<F::BYTES, F::PITCH, F::THREADS>(p.k + blockIdx.y * p.k_stride + base, s->k, low, high);
    load_rows<F::BYTES, F::BYTES, F::THREADS>(p.v + blockIdx.y * p.v_stride + base, s->v, low, high);
}

/* The queries, and k and v of the position if the cache has it, each by a warp; k and v go to the cache too. */
template <class F>
static __device__ __forceinline__ void append_heads(const append_tile_args &g, tile_shared<F::N> *s, int group)
{
    enum { HELD = F::N / 32 };
    const append_args &a = g.a;
    const int kv_head = blockIdx.y;

    for (int i = threadIdx.x / 32; i < group + 2; i += F::WARPS) {
        const int h = i < group ? kv_head * group + i : (int)a.heads + (i - group) * (int)a.kv_heads + kv_head;
        float *row = s->query[i] + PIECE;

        if (append_head<HELD>(a, 0, h, row) && i >= group && a.pos[0] / PIECE == (int)blockIdx.x)
            append_row((i == group ? a.k + kv_head * a.k_stride : a.v + kv_head * a.v_stride) + a.pos[0] * a.kv_row,
                       row, F::N, F::KV);
    }
}

template <int KV, int N, int CLUSTERED>
static __global__ void __launch_bounds__(CLUSTERED ? 512 : 256, CLUSTERED || N == 256 ? 1 : 2)
    append_tile(const __grid_constant__ append_tile_args g)
{
#if __CUDA_ARCH__ < 900
    if (CLUSTERED)
        return;
#endif
    typedef tile_form<KV, N, CLUSTERED ? 16 : 8> form;
    extern __shared__ float4 shared[];
    tile_shared<N> *s = (tile_shared<N> *)shared;
    const attention_args &p = g.p;
    const int group = (int)p.group, warp = threadIdx.x / 32;
    const int64_t base = (int64_t)blockIdx.x * PIECE;
    const int there = (int)max(min(p.positions - base, (int64_t)PIECE), (int64_t)0);
    const bool early = p.window == 0 && p.positions <= EARLY;

    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge reads positions before its own */
    if (early)
        load_cache<form>(p, s, 0, there);
    append_heads<form>(g, s, group);
    read_ranges(p, s, 0, group);
    const int row = (int)min(max(p.pos[0] - base, (int64_t)-1), (int64_t)PIECE); /* of the token in the piece */
    const bool seen = s->lowest < s->highest, own = row >= 0 && row < there;

    if (seen) {
        if (!early)
            load_cache<form>(p, s, s->lowest, s->highest);
        mma_copy_wait_for<1>();
        __syncthreads(); /* queries and keys are written before all threads read them */
        if (own) {
            if (warp == 0)
                append_row(s->k + row * form::PITCH, s->query[group] + PIECE, N, KV);
            __syncthreads(); /* the new key is written before all threads read it */
        }
        multiply_keys<form>(s, group);
    }
    mma_copy_wait_for<0>();
    __syncthreads(); /* all dot products, and the values, are written before they are read; all keys are read */
    if (own && warp == form::WARPS - 1) /* `finish` has a barrier before values are read */
        append_row(s->v + row * form::BYTES, s->query[group + 1] + PIECE, N, KV);
    finish<form, CLUSTERED>(p, s, 0, group);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const tile_functions functions = TILE_FUNCTIONS(append_tile);

static ridge_status prepare(const ridge_device *device)
{
    return tile_prepare(device, functions, "kv_append_attention: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    append_tile_args g = {attention_args_of(&bound->call, workspace), append_args_of(&bound->call)};

    return tile_launch(device, kernel, functions, &g.p, 1, g.p.group + 2, &g, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const char *why = problem->dim[0] > 1 ? "more than one token" : tile_why_not(device, kernel, problem);

    if (why)
        return why;
    if (problem->dim[1] > GROUP * problem->dim[2])
        return "more than 14 queries of a KV head";
    if (problem->dim[1] == 0)
        return "no queries";
    return problem->dim[2] > 65535 ? "more than 65535 KV heads" : NULL;
}

static const ridge_kernel rows[] = {
    TILE_ROW("cuda.kv_append_attention.cluster", RIDGE_KV_APPEND_ATTENTION, RIDGE_ARCH_SM90, 1),
    TILE_ROW("cuda.kv_append_attention.tile", RIDGE_KV_APPEND_ATTENTION, RIDGE_ARCH_SM80, 0),
};

extern "C" const ridge_kernel_list ridge_cuda_append_attention = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

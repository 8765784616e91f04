/* dense.cu: moe_down and moe_gate_up_swiglu of an only expert in bf16 or e4m3: the products of a dense layer for a few
 * tokens, which the stream of its weights bounds.
 *
 * A CTA a multiprocessor stays. Its teams of two warps have LINES rows at a time (gate and up: half of each): lane i of
 * warp h has the chains 128 h + 4 i .. + 3 (products.h) of each, for T tokens. A warp copies its weights, `depth`
 * stages of 1024 or 512 columns ahead and from one step of rows into the next, to a ring of its own in shared memory by
 * cp.async, the first before the wait if they are constant; no other warp reads them. (In registers, loads in flight
 * share six scoreboards of a warp, and a wait for the oldest waits for younger ones.) The scale of a block of e4m3, one
 * for a warp's 128 columns of a step, comes with the weights and multiplies x, once for all rows. x is in shared memory
 * as f32; what does not fit comes in chunks, which all teams take together. */
#include "args.cuh"
#include "chains.cuh"

enum { OWN = 4, HALF = MOE_CHAINS / 2 };

/* Warps by tokens: eight take the registers of two warps. */
#define DENSE_WARPS(T) ((T) == 8 ? 8 : 16)

typedef struct dense_args {
    moe_args p;
    int first, count;         /* of tokens */
    int items, rounds;        /* steps of rows; of the CTA with most of them */
    int stages, chunk_stages; /* of columns, in all and of x in shared memory */
    int depth, cols;
    uint32_t at_ring, at_sums, at_tokens;
} dense_args;

/* What a token's sums are multiplied with; ids outside of the experts have no product. */
typedef struct dense_token {
    float weight;
    int known;
} dense_token;

/* One kernel's sizes. A stage: [step][line: matrix and row][the warp's 128 columns], then scales [step][matrix]. */
template <int FORM, int SUBS, int T, int L> struct dense_shape {
    static const int LINES = L;
    static const int SIZE = FORM == RIDGE_BF16 ? 2 : 1;
    static const int ROWS = LINES / SUBS, STEPS = 4 / SIZE, COLUMNS = STEPS * MOE_CHAINS; /* of a stage */
    static const int WARPS = DENSE_WARPS(T), TEAMS = WARPS / 2, THREADS = 32 * WARPS;
    static const int LINE = HALF * SIZE, CODES = STEPS * LINES * LINE, STAGE = CODES + 32;
    static const int SUMS = TEAMS * 2 * 2 * T * LINES * 4;
};

static __device__ __forceinline__ void dense_unpack(uint32_t w, float *v)
{
    moe_unpack_e4m3(w, v);
}

static __device__ __forceinline__ void dense_unpack(uint2 w, float *v)
{
    num_unpack2<RIDGE_BF16>(w.x, v, v + 1);
    num_unpack2<RIDGE_BF16>(w.y, v + 2, v + 3);
}

/* ------------------------------------------------------------------------------------------------------------ loads */

/* The stage that a warp copies next. A lane has 16 bytes of a line in each copy: of COPIES lines, in turn. */
template <class S> struct dense_loader {
    static const int COPIES = S::LINES * S::SIZE / 4, STRIDE = S::LINES / COPIES;
    int item, stage, column;
    const char *line[COPIES];
    const char *scale; /* of the first lanes: of a step and matrix */
};

/* Goes to the first stage of its item; beyond the last row it reads the last row. */
template <class S>
static __device__ __forceinline__ void dense_seek(const dense_args &a, dense_loader<S> *l, int half, int lane)
{
    enum { LANES = 8 * S::SIZE, MATRICES = S::LINES / S::ROWS }; /* LANES: of a line */

    l->column = half * HALF + lane % LANES * (16 / S::SIZE);
#pragma unroll
    for (int i = 0; i < l->COPIES; i++) {
        const int line = i * l->STRIDE + lane / LANES, matrix = line / S::ROWS;
        const int64_t row = min((int64_t)l->item * S::ROWS + line % S::ROWS, a.p.rows - 1);

        l->line[i] = a.p.weight[matrix].data + (row * a.cols + l->column) * S::SIZE;
    }
    if (S::SIZE == 1)
        l->scale = a.p.weight[lane % MATRICES].scales +
                   (l->item * S::ROWS / 128 * (int64_t)((a.cols + 127) / 128) + lane / MATRICES * 2 + half) * 4;
}

/* Copies a stage and advances; what lies behind the last column becomes zero. */
template <class S>
static __device__ __forceinline__ void dense_copy(const dense_args &a, dense_loader<S> *l, uint32_t to, int half,
                                                  int lane, int step)
{
    enum { MATRICES = S::LINES / S::ROWS };

    if (l->item < a.items) {
#pragma unroll
        for (int s = 0; s < S::STEPS; s++)
#pragma unroll
            for (int i = 0; i < l->COPIES; i++)
                mma_copy16(to + (s * l->COPIES + i) * 512 + lane * 16, l->line[i] + s * MOE_CHAINS * S::SIZE,
                           l->column + s * MOE_CHAINS < a.cols ? 16 : 0);
        if (S::SIZE == 1 && lane < S::STEPS * MATRICES &&
            l->stage * S::COLUMNS + lane / MATRICES * MOE_CHAINS + half * HALF < a.cols)
            mma_copy4(to + S::CODES + lane * 4, l->scale, 4);
#pragma unroll
        for (int i = 0; i < l->COPIES; i++)
            l->line[i] += S::COLUMNS * S::SIZE;
        l->column += S::COLUMNS;
        l->scale += S::STEPS * 2 * 4;
        if (++l->stage == a.stages) {
            l->stage = 0;
            l->item += step;
            if (l->item < a.items)
                dense_seek<S>(a, l, half, lane);
        }
    }
    mma_copy_commit();
}

/* Columns from `column` on of all tokens to shared memory, [token][column]; zeros for tokens that there are not.
 * FLIGHT: tokens whose loads are in flight together. */
template <class S, int T, int FLIGHT>
static __device__ __forceinline__ void dense_stage_x(const dense_args &a, int column, float *x)
{
    const moe_args &p = a.p;
    const int cols = a.chunk_stages * S::COLUMNS, left = min(cols, a.cols - column);

    for (int c = (int)threadIdx.x * 8; c < left; c += S::THREADS * 8)
#pragma unroll FLIGHT
        for (int t = 0; t < T; t++) {
            const int64_t at = (a.first + t) * p.x_stride + column + c;
            float v[8] = {};

            if (t < a.count) {
                if (p.x_bf16) {
                    num_unpack<RIDGE_BF16>(*(const uint4 *)(p.x + at * 2), v);
                } else {
                    num_unpack<RIDGE_F32>(*(const uint4 *)(p.x + at * 4), v);
                    num_unpack<RIDGE_F32>(*(const uint4 *)(p.x + at * 4 + 16), v + 4);
                }
            }
            *(float4 *)(x + t * cols + c) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(x + t * cols + c + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* 256 columns of the four lines times T tokens; x: of this lane's four columns. */
template <int FORM, int SUBS, int T, int LINES>
static __device__ __forceinline__ void dense_step(const char *codes, const float *scales, const float *x, int x_token,
                                                  int lane, float (*chain)[T][OWN])
{
    typedef dense_shape<FORM, SUBS, T, LINES> S;
    float w[LINES][OWN], scale[SUBS];

#pragma unroll
    for (int r = 0; r < LINES; r++)
        if constexpr (FORM == RIDGE_BF16)
            dense_unpack(*(const uint2 *)(codes + r * S::LINE + lane * 8), w[r]);
        else
            dense_unpack(*(const uint32_t *)(codes + r * S::LINE + lane * 4), w[r]);
    if (FORM == RIDGE_E4M3)
#pragma unroll
        for (int s = 0; s < SUBS; s++)
            scale[s] = scales[s];
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float4 v = *(const float4 *)(x + t * x_token);

#pragma unroll
        for (int s = 0; s < SUBS; s++) {
            float four[OWN] = {v.x, v.y, v.z, v.w};

            if (FORM == RIDGE_E4M3)
#pragma unroll
                for (int i = 0; i < OWN; i++)
                    four[i] = __fmul_rn(four[i], scale[s]);
#pragma unroll
            for (int r = 0; r < S::ROWS; r++)
#pragma unroll
                for (int i = 0; i < OWN; i++)
                    chain[s * S::ROWS + r][t][i] =
                        __fmaf_rn(w[s * S::ROWS + r][i], four[i], chain[s * S::ROWS + r][t][i]);
        }
    }
}

/* What becomes of an item's sums: [half][line][token]. */
template <int FORM, int SUBS, int T, int LINES>
static __device__ __forceinline__ void dense_finish(const dense_args &a, int item, const dense_token *tokens,
                                                    const float *sums)
{
    typedef dense_shape<FORM, SUBS, T, LINES> S;
    const moe_args &p = a.p;

    for (int i = threadIdx.x % 64; i < S::ROWS * a.count; i += 64) {
        const int r = i % S::ROWS, t = i / S::ROWS, token = a.first + t;
        const int64_t row = (int64_t)item * S::ROWS + r;
        const dense_token k = tokens[t];
        float y[SUBS];

        if (row >= p.rows)
            continue;
#pragma unroll
        for (int s = 0; s < SUBS; s++)
            y[s] = moe_bias(p.weight[s], 0, row,
                            sums[(s * S::ROWS + r) * T + t] + sums[LINES * T + (s * S::ROWS + r) * T + t]);
        if (SUBS == 2)
            moe_store(p, token * p.out_stride + row, k.known ? moe_swiglu(p.act, y[0], y[SUBS - 1], p.swiglu) : 0.0f);
        else
            moe_store_sum(p, token, row, k.known ? __fmaf_rn(k.weight, y[0], 0.0f) : 0.0f);
    }
}

template <int FORM, int SUBS, int T, int LINES>
static __global__ void __launch_bounds__(32 * DENSE_WARPS(T), 1) moe_dense(const __grid_constant__ dense_args a)
{
    typedef dense_shape<FORM, SUBS, T, LINES> S;
    extern __shared__ __align__(16) char memory[];
    const int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, team = threadIdx.x / 64;
    const int own = half * HALF + lane * OWN, step = (int)gridDim.x * S::TEAMS;
    const int begin = (int)blockIdx.x + team * (int)gridDim.x, x_token = a.chunk_stages * S::COLUMNS;
    char *const ring = memory + a.at_ring + threadIdx.x / 32 * a.depth * S::STAGE;
    dense_token *const tokens = (dense_token *)(memory + a.at_tokens);
    float *const sums = (float *)(memory + a.at_sums) + team * (2 * 2 * T * LINES);
    const float *const x = (const float *)memory + own;
    dense_loader<S> l = {begin, 0};
    int at = 0;

    ptx_launch_dependents();
    if (!a.p.weights_const)
        ptx_grid_dependency_wait();
    if (l.item < a.items)
        dense_seek<S>(a, &l, half, lane);
#pragma unroll 1
    for (int i = 0; i < a.depth; i++)
        dense_copy<S>(a, &l, ptx_shared(ring + i * S::STAGE), half, lane, step);
    if (a.p.weights_const)
        ptx_grid_dependency_wait();
    if (threadIdx.x < a.count) {
        const int token = a.first + (int)threadIdx.x;

        tokens[threadIdx.x].known = a.p.ids[token * a.p.ids_stride] == 0;
        tokens[threadIdx.x].weight = SUBS == 1 ? a.p.weights[token * a.p.weights_stride] : 0.0f;
    }
    dense_stage_x<S, T, T>(a, 0, (float *)memory);
    __syncthreads(); /* x is written before it is read */
    for (int round = 0, item = begin; round < a.rounds; round++, item += step) {
        float chain[LINES][T][OWN] = {}, *v = &chain[0][0][0];
        float sum[LINES * T];

        for (int chunk = 0; chunk < a.stages; chunk += a.chunk_stages) {
            if (a.chunk_stages < a.stages && (round || chunk)) {
                __syncthreads(); /* x has been read before it is overwritten */
                dense_stage_x<S, T, T == 1 ? 1 : 2>(a, chunk * S::COLUMNS, (float *)memory);
                __syncthreads(); /* x is written before it is read */
            }
            if (item >= a.items)
                continue;
#pragma unroll 1
            for (int i = 0; i < a.chunk_stages && chunk + i < a.stages; i++) {
                const char *stage = ring + at * S::STAGE;

                moe_wait_stage(a.depth);
                __syncwarp(); /* the lanes' copies are visible to each other */
#pragma unroll
                for (int s = 0; s < S::STEPS; s++)
                    if ((chunk + i) * S::COLUMNS + s * MOE_CHAINS + own < a.cols)
                        dense_step<FORM, SUBS, T, LINES>(stage + s * (LINES * S::LINE),
                                                         (const float *)(stage + S::CODES) + s * SUBS,
                                                         x + i * S::COLUMNS + s * MOE_CHAINS, x_token, lane, chain);
                __syncwarp(); /* all lanes have read the stage before it is written again */
                dense_copy<S>(a, &l, ptx_shared(stage), half, lane, step);
                at = at + 1 == a.depth ? 0 : at + 1;
            }
        }
        if (item >= a.items)
            continue;
#pragma unroll
        for (int i = 0; i < LINES * T; i++)
            sum[i] = (v[OWN * i] + v[OWN * i + 1]) + (v[OWN * i + 2] + v[OWN * i + 3]);
        moe_add_lanes<LINES * T>(sum, lane);
        if (lane < LINES * T)
            sums[(round & 1) * (2 * T * LINES) + half * (T * LINES) + moe_chain_index<LINES * T>(lane)] = sum[0];
        ptx_barrier_sync(1 + team, 64); /* the sums are written before they are read; two buffers order the next */
        dense_finish<FORM, SUBS, T, LINES>(a, item, tokens, sums + (round & 1) * (2 * T * LINES));
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

enum { WIDTHS = 5 }; /* 1, 2, 4 and 8 tokens; and 1 with eight lines, for many rows of e4m3 */

#define KERNEL(form, subs, tokens, lines)                                                                  \
    {                                                                                                      \
        (const void *)moe_dense<form, subs, tokens, lines>, dense_shape<form, subs, tokens, lines>::STAGE, \
            dense_shape<form, subs, tokens, lines>::COLUMNS, dense_shape<form, subs, tokens, lines>::SUMS, \
            dense_shape<form, subs, tokens, lines>::TEAMS, lines                                           \
    }
#define FOUR(form, subs) \
    KERNEL(form, subs, 1, 4), KERNEL(form, subs, 2, 4), KERNEL(form, subs, 4, 4), KERNEL(form, subs, 8, 4)
#define MANY(subs) KERNEL(RIDGE_E4M3, subs, 1, 8)

/* By form, down, tokens. */
static const struct dense_kernel {
    const void *function;
    int stage, columns, sums, teams, lines;
} kernels[2][2][WIDTHS] = {{{FOUR(RIDGE_BF16, 2)}, {FOUR(RIDGE_BF16, 1)}},
                           {{FOUR(RIDGE_E4M3, 2), MANY(2)}, {FOUR(RIDGE_E4M3, 1), MANY(1)}}};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 2 * 2 * WIDTHS && !status; i++) {
        const struct dense_kernel *k = &kernels[i / WIDTHS / 2][i / WIDTHS % 2][i % WIDTHS];

        if (k->function)
            status = host_prepare(device, &k->function, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  host_max_shared(device), "moe_down: loading kernels");
    }
    return status;
}

/* As many stages as fit beside all of x; else three, or two, and as much of x as fits. Returns whether any does. */
static bool place(const ridge_device *device, const struct dense_kernel *k, int width, dense_args *a)
{
    static const int depths[] = {5, 3, 2};
    const int x_stage = 4 * k->columns << width;
    int64_t room = 0, ring = 0;

    a->stages = (int)ridge_ceil_div(a->cols, k->columns);
    for (int i = 0; i < 3; i++) {
        a->depth = depths[i];
        ring = (int64_t)k->teams * 2 * a->depth * k->stage;
        room = (host_max_shared(device) - ring - k->sums - (int64_t)sizeof(dense_token) * 8) / x_stage;
        if (room >= a->stages || (a->depth == 3 && room > 0))
            break;
    }
    a->chunk_stages = (int)ridge_max(1, ridge_min(room, a->stages));
    a->at_ring = (uint32_t)(a->chunk_stages * x_stage);
    a->at_sums = a->at_ring + (uint32_t)ring;
    a->at_tokens = a->at_sums + (uint32_t)k->sums;
    return room > 0;
}

/* The kernel of a launch. One token has eight lines where each team of a CTA still has some. */
static const struct dense_kernel *choose(const ridge_device *device, dense_args *a)
{
    const struct dense_kernel *k = kernels[a->p.form == RIDGE_E4M3][a->p.down];
    int width = 0;

    while (1 << width < a->count)
        width++;
    if (width == 0 && k[WIDTHS - 1].function && a->p.rows * (a->p.down ? 1 : 2) >= 64 * (int64_t)device->units &&
        place(device, &k[WIDTHS - 1], 0, a))
        return &k[WIDTHS - 1];
    place(device, &k[width], width, a);
    return &k[width];
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    ridge_status status = RIDGE_OK;
    dense_args a = {};

    a.p = moe_args_of(&bound->call);
    a.cols = (int)a.p.cols;
    for (a.first = 0; a.first < a.p.tokens && a.p.rows && !status; a.first += a.count) {
        const struct dense_kernel *k;
        int64_t grid;

        a.count = (int)ridge_min(a.p.tokens - a.first, 8);
        k = choose(device, &a);
        a.items = (int)ridge_ceil_div(a.p.rows, k->lines / (a.p.down ? 1 : 2));
        grid = ridge_min(device->units, a.items);
        a.rounds = (int)ridge_ceil_div(a.items, grid * k->teams);
        status = host_launch_shared(device, kernel->name, k->function, dim3((unsigned)grid), 32 * 2 * k->teams,
                                    a.at_tokens + sizeof(dense_token) * 8, &a, stream);
    }
    return status;
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dtype[2] != RIDGE_BF16 && problem->dtype[2] != RIDGE_E4M3)
        return "weights are not bf16 or e4m3";
    if (problem->dtype[0] == RIDGE_E4M3)
        return "x is e4m3";
    if (problem->dim[3] != 1 || problem->dim[4] != 1)
        return "more than one expert or slot";
    if (problem->op == RIDGE_MOE_GATE_UP_SWIGLU && problem->dtype[RIDGE_MOE_GATE_UP_SWIGLU_OUT] == RIDGE_I8)
        return "out is codes";
    if (problem->align < 4 || problem->dim[1] % 32)
        return "needs rows that begin at multiples of 16 bytes";
    return problem->dim[1] > 1 << 30 || problem->dim[2] > 1 << 30 ? "more than 2^30 rows or columns" : NULL;
}

/* A launch, and the weights at the rate of a read, or at that of fma. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double weights = (double)problem->dim[1] * (double)problem->dim[2] * (problem->op == RIDGE_MOE_DOWN ? 1 : 2) *
                           1e-3 / device->copy_gbps;
    const double size = problem->dtype[2] == RIDGE_BF16 ? 2 : 1, tokens = (double)problem->dim[0];

    return 3 + weights * (size * (double)ridge_ceil_div(problem->dim[0], 8) + 0.2 * tokens);
}

#define ROW(op_name, op_id)                                                                                         \
    {                                                                                                               \
        "cuda." op_name ".dense", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, launch                                                                                            \
    }

static const ridge_kernel rows[] = {ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
                                    ROW("moe_down", RIDGE_MOE_DOWN)};

extern "C" const ridge_kernel_list ridge_cuda_moe_dense = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

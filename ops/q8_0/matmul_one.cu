/* matmul_one.cu: the Q8_0 products of one token's floats with weights of up to 7 MB, sm_80 up: of a step that writes
 * text.
 *
 * Such a product's time is the latency of what follows the preceding kernel, and what its CTAs compute alike: x. So a
 * CTA has 8, 16, 24 or 32 rows (of gate and of up), the fewest that leave a CTA a multiprocessor. All of its weights
 * are requested at once, if they are constant before the preceding kernel has ended, by cp.async to shared memory,
 * which takes no registers. CTAs that start beside those of other kernels would lie two or three on a multiprocessor
 * while others have none; they ask for so much shared memory that a multiprocessor has room for two, of two kernels in
 * a row (shared_bytes).
 *
 * Warp p of eight has partition p of the canonical order (src/math/q8_0.h): a run of 4 blocks, 128 bytes a row, of each
 * k step of 1024 columns. Eight lanes bring a run of a row, 16 bytes each; chunk c of row r lies at c * ROWS + (r ^ c),
 * so that neither the copies nor the reads meet in a bank. A lane then has one or two of the four blocks of a row,
 * whose lanes exchange scales and dots, or, of tiles of 24 and 32 rows, all four; dots are by dp4a, two thirds of the
 * instructions that mma.sync takes for one token. The last run of a row may have two blocks only. The partitions are
 * added through shared memory. */
#include "cuda/keep.cuh"
#include "cuda/mma.cuh"

#include "args.cuh"
#include "norm.cuh"

enum { THREADS = 32 * RIDGE_Q8_0_PARTS, RUN = 128, RUN_CHUNKS = RUN / 16 };
enum { SUM = -1 }; /* a kind of kernel, see q8_0_one */
enum { STEP_COLS = RUN * RIDGE_Q8_0_PARTS };
enum { ROW_BYTES = RUN + 2 * RIDGE_Q8_0_RUN }; /* of a run in shared memory: codes and scales */

static_assert((int)THREADS == (int)PARTS, "a thread has a partial sum of the norm");

typedef struct q8_0_one_args {
    int runs, short_part; /* the partition whose last run has two blocks only, or -1 */
    int tiles0;           /* of the first weight */
    int each, more;       /* a tile has `each` rows, of the first `more` tiles one more */
    int late;             /* the next kernel begins when all CTAs of this one have waited */
    int x_bf16;
    uint32_t at_scales, at_sums, at_args, at_weights;
    const char *x;
    q8_0_matmul_args p;
} q8_0_one_args;

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Requests the runs of this warp of ROWS rows; rows beyond the last one are the last one again. */
template <int ROWS>
static __device__ __forceinline__ void request_rows(const q8_0_weight &m, int first, int part, int mine, int short_part,
                                                    uint32_t to, int pitch)
{
    const int lane = threadIdx.x % 32, c = lane % RUN_CHUNKS, last = (int)m.rows - 1;

    for (int k_step = 0; k_step < mine; k_step++, to += pitch) {
        const bool whole = part != short_part || k_step + 1 < mine;
        const int wanted = whole || c < RUN_CHUNKS / 2 ? 16 : 0;
        const int64_t column = (int64_t)k_step * STEP_COLS + part * RUN;
        const uint8_t *scale = m.scales + min(first + min(lane, ROWS - 1), last) * m.scale_stride + column / 16;

#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            const int r = i + lane / RUN_CHUNKS;

            mma_copy16(to + (c * ROWS + (r ^ c)) * 16,
                       m.codes + min(first + r, last) * m.stride + column + (wanted ? c * 16 : 0), wanted);
        }
        if (lane < ROWS) { /* words: where a run is short, scales are aligned to no more */
            mma_copy4(to + ROWS * RUN + lane * 8, scale, 4);
            mma_copy4(to + ROWS * RUN + lane * 8 + 4, scale + (whole ? 4 : 0), whole ? 4 : 0);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- x */

/* Codes and scales of x. A thread has 4 columns of every 1024, N groups of them at most, so that all of its loads and
 * divisions are under way together; `units` groups there are. */
template <int N>
static __device__ __forceinline__ void quantise_groups(const char *x, bool bf16, int first, int units, char *codes,
                                                       float *scales)
{
    float v[N][4], r[N], scale[N];
    uint32_t amax[N];

    if (bf16) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const uint2 raw = first + k * THREADS < units ? ptx_load8(x + k * THREADS * 8) : make_uint2(0, 0);

            num_unpack2<RIDGE_BF16>(raw.x, &v[k][0], &v[k][1]);
            num_unpack2<RIDGE_BF16>(raw.y, &v[k][2], &v[k][3]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            num_unpack<RIDGE_F32>(
                first + k * THREADS < units ? ptx_load_once(x + k * THREADS * 16) : make_uint4(0, 0, 0, 0), v[k]);
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        amax[k] = max(max(ridge_magnitude(v[k][0]), ridge_magnitude(v[k][1])),
                      max(ridge_magnitude(v[k][2]), ridge_magnitude(v[k][3])));
#pragma unroll
    for (int s = 1; s < 8; s *= 2) /* eight threads have a block */
#pragma unroll
        for (int k = 0; k < N; k++)
            amax[k] = max(amax[k], __shfl_xor_sync(~0u, amax[k], s));
#pragma unroll
    for (int k = 0; k < N; k++)
        scale[k] = q8_0_x_scale(amax[k], &r[k]);
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t word = 0;

#pragma unroll
        for (int i = 0; i < 4; i++)
            word |= (uint32_t)(ridge_q8_0_x_code(v[k][i], r[k]) & 0xff) << (i * 8);
        *(uint32_t *)(codes + (first + k * THREADS) * 4) = word;
        if (threadIdx.x % 8 == 0)
            scales[(first + k * THREADS) / 8] = scale[k];
    }
}

static __device__ __forceinline__ void quantise_x(const char *x, bool bf16, int units, char *codes, float *scales)
{
    if (units <= THREADS)
        quantise_groups<1>(x, bf16, threadIdx.x, units, codes, scales);
    else if (units <= 2 * THREADS)
        quantise_groups<2>(x, bf16, threadIdx.x, units, codes, scales);
    else if (units <= 3 * THREADS)
        quantise_groups<3>(x, bf16, threadIdx.x, units, codes, scales);
    else
#pragma unroll 1
        for (int first = threadIdx.x; first - (int)threadIdx.x < units;
             first += 2 * THREADS, x += 2048 * (bf16 ? 2 : 4))
            quantise_groups<2>(x, bf16, first, units, codes, scales);
}

/* --------------------------------------------------------------------------------------------------------- products */

static __device__ __forceinline__ int dot16(uint4 a, uint4 b, int sum)
{
    return __dp4a((int)a.w, (int)b.w,
                  __dp4a((int)a.z, (int)b.z, __dp4a((int)a.y, (int)b.y, __dp4a((int)a.x, (int)b.x, sum))));
}

/* The scale and the dot of block `block` of a run of row `row`, of ROWS. */
template <int ROWS>
static __device__ __forceinline__ void multiply_block(const char *weights, uint2 halves, const char *codes,
                                                      const float *scales, int row, int block, float *s, float *d)
{
    const int c = 2 * block;
    const uint32_t pair = block < 2 ? halves.x : halves.y;
    const uint4 w0 = *(const uint4 *)(weights + (c * ROWS + (row ^ c)) * 16);
    const uint4 w1 = *(const uint4 *)(weights + ((c + 1) * ROWS + (row ^ (c + 1))) * 16);
    const uint4 x0 = *(const uint4 *)(codes + block * 32), x1 = *(const uint4 *)(codes + block * 32 + 16);

    *s = __fmul_rn(ptx_f32_from_f16((uint16_t)(block % 2 ? pair >> 16 : pair)), scales[block]);
    *d = __int2float_rn(dot16(w0, x0, 0) + dot16(w1, x1, 0));
}

/* Adds the runs of this warp to the sum of the lane's row: of 8 or 16 rows four or two lanes have one, of more a lane
 * has all four blocks. */
template <int ROWS>
static __device__ __forceinline__ float multiply_rows(const char *weights, int pitch, const char *codes,
                                                      const float *scales, int mine)
{
    enum { LANES = ROWS > 16 ? 32 : ROWS, BLOCKS = RIDGE_Q8_0_RUN * LANES / 32 }; /* of a lane */
    enum { STEPS = ROWS == 8 ? 2 : 1 };                                           /* at once, as registers allow */
    const int row = min((int)threadIdx.x % LANES, ROWS - 1), first = threadIdx.x % 32 / LANES * BLOCKS;
    float acc = 0.0f;

#pragma unroll STEPS
    for (int k_step = 0; k_step < mine; k_step++, weights += pitch, codes += STEP_COLS, scales += Q8_0_STEP) {
        const uint2 halves = *(const uint2 *)(weights + ROWS * RUN + row * 8);
        float s[BLOCKS], d[BLOCKS];

        if (LANES == 32) {
#pragma unroll 2 /* registers */
            for (int block = 0; block < RIDGE_Q8_0_RUN; block++) {
                multiply_block<ROWS>(weights, halves, codes, scales, row, block, &s[0], &d[0]);
                acc = __fmaf_rn(s[0], d[0], acc);
            }
        } else {
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                multiply_block<ROWS>(weights, halves, codes, scales, row, first + b, &s[b], &d[b]);
#pragma unroll
            for (int block = 0; block < RIDGE_Q8_0_RUN; block++) {
                const int b = block % BLOCKS, lane = block / BLOCKS * ROWS + row;

                acc = __fmaf_rn(__shfl_sync(~0u, s[b], lane), __shfl_sync(~0u, d[b], lane), acc);
            }
        }
    }
    return acc;
}

/* --------------------------------------------------------------------------------------------------------- epilogue */

/* A product that is added to one stream: what the thread of a row reads and writes. */
typedef struct q8_0_one_sum {
    const float *res, *post, *comb, *add;
    float *out, *y;
} q8_0_one_sum;

static __device__ __forceinline__ q8_0_one_sum locate_sum(const q8_0_matmul_args &p, int row)
{
    const q8_0_one_sum s = {p.res + row,           p.post, p.comb, p.add ? p.add + row : NULL, (float *)p.out[0] + row,
                            p.y ? p.y + row : NULL};

    return s;
}

static __device__ __forceinline__ void store_sum(const q8_0_one_sum &s, float y, const q8_0_hc1_inputs &in)
{
    const float v = s.add ? y + in.add : y;

    if (s.y)
        num_store<RIDGE_F32>(s.y, 0, y);
    num_store<RIDGE_F32>(s.out, 0, ridge_hc_step(ridge_hc_start(v, in.post), in.comb, in.res));
}

/* A row's result, by the thread that has it: of gate and up, the sums of up follow those of gate. */
template <int ROWS, int MATRICES, int KIND>
static __device__ __forceinline__ void store_row(const q8_0_matmul_args &p, int which, int row, const float *from)
{
    const float y = q8_0_sum_parts<ROWS>(from);

    if (MATRICES == 2)
        q8_0_epilogue_gate_up(p, row, 0, y, q8_0_sum_parts<ROWS>(from + RIDGE_Q8_0_PARTS * ROWS));
    else if (KIND == 0 && p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND)
        q8_0_epilogue_hc(p, row, 0, y, NULL);
    else
        q8_0_store(p, which, row, 0, y);
}

/* KIND: SUM, a product that is added to one stream; else columns of x that a thread holds where there is a norm, or 0.
 * What can be computed before the wait is kept: from there on the CTAs' latency is the time of the product. */
template <int ROWS, int MATRICES, int KIND>
static __global__ void __launch_bounds__(THREADS, KIND > 4 ? 3 : 4) q8_0_one(const __grid_constant__ q8_0_one_args a)
{
    enum { PITCH = RIDGE_Q8_0_PARTS * ROWS * ROW_BYTES }; /* of a k step of a matrix */
    constexpr int HELD = KIND > 0 ? KIND : 0;
    extern __shared__ __align__(128) char shared[];
    char *const memory = keep_shared(shared);
    const int part = threadIdx.x / 32, mine = (a.runs - part + RIDGE_Q8_0_PARTS - 1) / RIDGE_Q8_0_PARTS;
    const int which = MATRICES == 1 && (int)blockIdx.x >= a.tiles0;
    const int tile = (int)blockIdx.x - (which ? a.tiles0 : 0);
    const int first = tile * a.each + min(tile, a.more), row = first + (int)threadIdx.x;
    const int end = min(first + a.each + (tile < a.more), (int)a.p.weight[which].rows);
    const bool stores = threadIdx.x < ROWS && row < end;
    const q8_0_matmul_args &p = *(const q8_0_matmul_args *)(memory + a.at_args);
    float *const sums = (float *)(memory + a.at_sums), *const scales = (float *)(memory + a.at_scales);
    char *const weights = memory + a.at_weights + part * ROWS * ROW_BYTES;
    float norm[HELD ? HELD : 1];
    q8_0_one_sum sum;
    q8_0_hc1_inputs in;

    if (!a.late)
        ptx_launch_dependents();
    if (!a.p.weights_const)
        ptx_grid_dependency_wait();
    if constexpr (HELD > 0) /* before the weights: it would wait for them */
        q8_0_norm_load<HELD>((const char *)(a.p.norm + threadIdx.x),
                             (int)a.p.blocks * RIDGE_Q8_0_BLOCK - (int)threadIdx.x, false, norm);
#pragma unroll
    for (int m = 0; m < MATRICES; m++)
        request_rows<ROWS>(a.p.weight[MATRICES == 2 ? m : which], first, part, mine, a.short_part,
                           ptx_shared(weights) + m * PITCH, MATRICES * PITCH);
    mma_copy_commit();
    /* The first read of a kernel parameter misses the constant cache: copied here, the misses overlap. */
    for (int i = threadIdx.x; i < (int)(sizeof a.p / 4); i += THREADS)
        ((uint32_t *)(memory + a.at_args))[i] = ((const uint32_t *)&a.p)[i];
    if (KIND == SUM)
        sum = locate_sum(a.p, row);
    /* This thread's first column of x. */
    const char *const x = keep_global(a.x + (int)threadIdx.x * (HELD ? 1 : 4) * (a.x_bf16 ? 2 : 4));

    if (a.p.weights_const)
        ptx_grid_dependency_wait();
    if (a.late)
        ptx_launch_dependents();
    if constexpr (HELD > 0)
        q8_0_normalise<HELD, true>(x, a.x_bf16, (int)a.p.blocks, a.p.eps, norm, sums, memory, scales);
    else
        quantise_x(x, a.x_bf16, (int)a.p.blocks * 8, memory, scales);
    if (KIND == SUM && stores) /* behind x, for which all threads wait */
        in = {*sum.res, *sum.post, *sum.comb, sum.add ? *sum.add : 0.0f};
    mma_copy_wait_for<0>();
    __syncthreads(); /* orders the writes of x, weights and arguments before their reads */
#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
        const float acc = multiply_rows<ROWS>(weights + m * PITCH, MATRICES * PITCH, memory + part * RUN,
                                              scales + part * RIDGE_Q8_0_RUN, mine);

        if (threadIdx.x % 32 < ROWS)
            sums[(m * RIDGE_Q8_0_PARTS + part) * ROWS + threadIdx.x % 32] = acc;
    }
    __syncthreads(); /* the partitions are written before they are added */
    if (KIND == SUM && stores)
        store_sum(sum, q8_0_sum_parts<ROWS>(sums + threadIdx.x), in);
    else if (stores)
        store_row<ROWS, MATRICES, KIND>(p, which, row, sums + threadIdx.x);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(rows, matrices)                                                                            \
    {                                                                                                    \
        (const void *)q8_0_one<rows, matrices, 0>, (const void *)q8_0_one<rows, matrices, 1024 / PARTS>, \
            (const void *)q8_0_one<rows, matrices, Q8_0_NORM_HELD>, (const void *)q8_0_one<rows, 1, SUM> \
    }

/* By rows 8, 16, 24, 32; one matrix, or gate and up; no norm, one of up to 1024 columns, of more, or a sum. */
static const void *const functions[4][2][4] = {{FORMS(8, 1), FORMS(8, 2)},
                                               {FORMS(16, 1), FORMS(16, 2)},
                                               {FORMS(24, 1), FORMS(24, 2)},
                                               {FORMS(32, 1), FORMS(32, 2)}};
enum { MOST = 4, FUNCTIONS = 8 * MOST };

/* All of an SM's shared memory, also for kv_append_attention: SMs whose kernels want another share of it for L1 empty
 * first (SmolLM2-135M 404 -> 395 us a step, H200). */
static ridge_status prepare(const ridge_device *device)
{
    const char *const what = "q8_0_matmul: loading kernels";
    const ridge_status status =
        host_prepare(device, &functions[0][0][0], FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                     host_max_shared(device), what);

    return status ? status
                  : host_prepare(device, &functions[0][0][0], FUNCTIONS, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared, what);
}

/* The layout of a CTA's shared memory, and how many rows it has at most: the fewest that leave each multiprocessor one
 * CTA, of pair's two weights up to 16. Other weights of more than 2 MB, or of more than 16 rows a CTA, are shared
 * evenly among all multiprocessors. */
typedef struct one_layout {
    int form; /* rows 8 (form + 1) */
    int64_t tiles[2], bytes;
    int each, more;
    uint32_t at_scales, at_sums, at_args, at_weights;
} one_layout;

static one_layout lay_out(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1], rows0 = problem->dim[2];
    const int64_t rows1 = problem->op == RIDGE_Q8_0_PAIR ? problem->dim[3] : 0;
    const int64_t matrices = problem->op == RIDGE_Q8_0_GATE_UP_SWIGLU ? 2 : 1;
    one_layout l = {};
    int64_t rows;

    while (l.form + 1 < (rows1 ? 2 : MOST) &&
           ridge_ceil_div(rows0, 8 * (l.form + 1)) + ridge_ceil_div(rows1, 8 * (l.form + 1)) > device->units)
        l.form++;
    rows = 8 * (l.form + 1);
    l.tiles[0] = ridge_ceil_div(rows0, rows);
    l.tiles[1] = ridge_ceil_div(rows1, rows);
    l.each = (int)rows;
    if (!rows1 && (rows > 16 || q8_0_bytes(problem) > Q8_0_SMALL_BYTES)) {
        l.tiles[0] = ridge_max(l.tiles[0], device->units);
        l.each = (int)(rows0 / l.tiles[0]);
        l.more = (int)(rows0 % l.tiles[0]);
    }
    l.at_scales = (uint32_t)ridge_round_up(cols, STEP_COLS) + STEP_COLS; /* threads write whole steps, of x two */
    l.at_sums = l.at_scales + l.at_scales / RIDGE_Q8_0_BLOCK * 4;
    l.at_args = l.at_sums + (uint32_t)ridge_max(PARTS * 4, matrices * RIDGE_Q8_0_PARTS * 4 * rows);
    l.at_weights = (uint32_t)ridge_round_up(l.at_args + (int64_t)sizeof(q8_0_matmul_args), 128);
    l.bytes = l.at_weights + ridge_ceil_div(cols, STEP_COLS) * matrices * RIDGE_Q8_0_PARTS * ROW_BYTES * rows;
    return l;
}

/* The most bytes of weights; and those above which the next kernel begins only when all CTAs of this one have waited
 * for the preceding one. Sooner, its weights would come before what they still load. */
static const double MOST_BYTES = 7e6, LATE_BYTES = 5e6;

/* Shared memory for which a CTA asks, so that a multiprocessor has two CTAs, of two kernels in a row: of a sum with
 * residuals more than a half, of the other products as much as is left beside one. With less, two or three CTAs of one
 * kernel lay on a multiprocessor and 20 to 50 others had none (Qwen3-0.6B 517 -> 474 us a step, H200). */
static int64_t shared_bytes(const ridge_device *device, const ridge_problem *problem, const one_layout *l)
{
    const int64_t half = host_max_shared(device) / 2;

    if (l->tiles[0] + l->tiles[1] > device->units)
        return l->bytes;
    return ridge_max(l->bytes, problem->op == RIDGE_Q8_0_MATMUL_HC_EXPAND ? half + 4608 : half - 8704);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    const ridge_call *call = &bound->call;
    const one_layout l = lay_out(device, &bound->problem);
    const int64_t ctas = l.tiles[0] + l.tiles[1];
    q8_0_one_args a = {};
    int kind;

    a.p = q8_0_collect(call);
    kind = call->op == RIDGE_Q8_0_MATMUL_HC_EXPAND && call->dim[3] == 1 ? 3 : a.p.norm ? 1 + (call->dim[1] > 1024) : 0;
    if (!q8_0_scales_aligned(&a.p, 4))
        return q8_0_launch_dp4a(device, kernel, bound, workspace, size, stream);
    if (ctas == 0)
        return RIDGE_OK;
    a.runs = (int)ridge_ceil_div(a.p.blocks, RIDGE_Q8_0_RUN);
    a.short_part = a.p.blocks % RIDGE_Q8_0_RUN ? (a.runs - 1) % RIDGE_Q8_0_PARTS : -1;
    a.tiles0 = (int)l.tiles[0];
    a.each = l.each;
    a.more = l.more;
    a.late = q8_0_bytes(&bound->problem) > LATE_BYTES;
    a.x = (const char *)call->arg[0].data;
    a.x_bf16 = call->arg[0].dtype == RIDGE_BF16;
    a.at_scales = l.at_scales;
    a.at_sums = l.at_sums;
    a.at_args = l.at_args;
    a.at_weights = l.at_weights;
    return host_launch_shared(device, kernel->name, functions[l.form][call->op == RIDGE_Q8_0_GATE_UP_SWIGLU][kind],
                              dim3((unsigned)ctas), THREADS, (size_t)shared_bytes(device, &bound->problem, &l), &a,
                              stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1];
    one_layout l;

    if (problem->dim[0] != 1 || cols == 0)
        return "not one token, or nothing to multiply";
    if (!q8_0_fuses_x(problem) || problem->dtype[2] == RIDGE_U8)
        return "needs weights in planes, and x as floats that each CTA may quantise";
    if (cols % 64)
        return "needs cols that are a multiple of 64";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (q8_0_bytes(problem) > MOST_BYTES)
        return "more than 7 MB of weights";
    l = lay_out(device, problem);
    if (q8_0_bytes(problem) > Q8_0_SMALL_BYTES && (l.tiles[0] + l.tiles[1] > device->units ||
                                                   (problem->op == RIDGE_Q8_0_MATMUL_HC_EXPAND && problem->dim[3] > 1)))
        return "more than 2 MB of weights, and several streams or more than 32 rows a multiprocessor";
    if (ridge_ceil_div(l.tiles[0] + l.tiles[1], device->units) * (l.bytes + 1024) > host_max_shared(device))
        return "the weights do not fit in shared memory";
    return NULL;
}

/* Microseconds: less than of the other rows where weights are constant. Else it was not timed, and those are taken. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return (problem->flags & RIDGE_WEIGHTS_CONST ? 1.5 : 20) + 45e-6 * (double)problem->dim[1] +
           q8_0_bytes(problem) * 1.1e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                  \
    {                                                                                                        \
        "cuda." op_name ".one", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, {}, why_not, \
            q8_0_workspace, cost, launch                                                                     \
    }

static const ridge_kernel rows[] = {
    ROW("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROW("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROW("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROW("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_one = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

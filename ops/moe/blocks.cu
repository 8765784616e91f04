/* blocks.cu: the host half of moe_gate_up_swiglu and moe_down with weights in block formats: the rows, how shared
 * memory is laid out, and the launch. The kernels are in ops/blocks/experts.cuh, compiled in a file a format. */
#include "ops/blocks/experts.cuh"

typedef struct expert_plan {
    uint32_t at_list, at_states, at_ring, at_results;
    int depth, warps, teams, split, works, batch;
    int columns, side; /* pairs of an entry, at most; tiles of a product */
    int results;       /* floats of a buffer of results, of a step of down */
    unsigned grid;
    bool records; /* x lies in global memory */
    bool one;     /* the kernels of one token, whose rows of x begin at multiples of 16 bytes */
    int64_t bytes;
} expert_plan;

/* Pairs of an entry. Eight cost as much as two entries of one, so that one is better where there are no more pairs than
 * experts: few experts have two then. Above 128 pairs the results of single ones would take much of shared memory. */
static int columns_of(const ridge_problem *problem)
{
    const int64_t pairs = problem->dim[0] * problem->dim[4];

    return problem->dim[0] == 1 || (pairs <= problem->dim[3] && pairs <= 128) ? 1 : MOE_COLUMNS;
}

static int64_t record_bytes(const ridge_problem *problem)
{
    const int64_t rows = problem->dim[0] * (problem->op == RIDGE_MOE_DOWN ? problem->dim[4] : 1);

    return rows * block_units(problem->dim[1]) * ridge_block_kernels_of(problem->dtype[2])->record[0];
}

/* Units of the first of `split` warps that share a product, which has most: those of 4 / split chains. */
static int64_t share_units(int64_t units, int split)
{
    int64_t sum = 0;

    for (int chain = 0; chain < 4 / split; chain++)
        sum += ridge_ceil_div(ridge_max(0, units - chain), 4);
    return sum;
}

/* Sets how products are shared out to p->warps, each to as many as makes the CTA with most to do finish first, with a
 * unit's time for the end of a product. */
static void share_out(const ridge_device *device, const ridge_problem *problem, expert_plan *p)
{
    const int64_t pairs = ridge_max(1, ridge_min(problem->dim[0] * problem->dim[4], MOE_PAIRS));
    const int64_t tiles = ridge_ceil_div(problem->dim[2], BLOCK_ROWS);
    const bool down = problem->op == RIDGE_MOE_DOWN;
    const int team = down ? 1 : EXPERT_TEAM(p->side);
    const int64_t steps = down ? tiles : ridge_ceil_div(tiles, 2), works = down ? steps : steps * pairs;
    const int64_t ctas = ridge_max(1, ridge_min(works, device->units)), most = ridge_ceil_div(works, ctas);
    int64_t least = INT64_MAX;

    p->grid = (unsigned)ctas;
    p->works = (int)steps;
    for (int split = 1; split <= 4 && team * split <= p->warps; split *= 2) {
        const int64_t teams = p->warps / (team * split), rounds = ridge_ceil_div(down ? most * pairs : most, teams);
        const int64_t units = rounds * (share_units(block_units(problem->dim[1]), split) + 1);

        if (units < least) {
            least = units;
            p->split = split;
            p->teams = (int)teams;
        }
    }
    p->batch = (int)ridge_max(1, ridge_min(most, 4 * p->warps / pairs));
    /* No warps without a product, so that the next kernel's CTA may fit too, but as many as hold all of x at once. */
    if (p->one && down && most * pairs < p->teams && block_units(problem->dim[1]) <= EXPERT_HELD * most * p->split) {
        p->teams = (int)(most * pairs);
        p->warps = (int)ridge_max(EXPERT_TEAM(1), p->teams * p->split);
    }
    p->results =
        (int)((p->columns == 1 ? 4 : p->split) * (down ? pairs * BLOCK_ROWS : 2 * p->columns * 2 * BLOCK_ROWS));
}

/* Bytes of weights in flight, beyond which more only delay those of x; with 24 warps and more than two stages of each,
 * a token of DeepSeek-V4-Flash took 1 to 2 % longer. */
enum { IN_FLIGHT = 96 << 10 };

/* Lays out shared memory; false: there is not enough. */
static bool lay_out(const ridge_device *device, const ridge_problem *problem, expert_plan *p)
{
    const int64_t records = p->records ? 0 : record_bytes(problem);
    const int buffers = problem->op == RIDGE_MOE_DOWN ? p->batch : 2 * p->teams;
    const block_kernels *k = ridge_block_kernels_of(problem->dtype[2]);

    if (records > host_max_shared(device))
        return false;
    p->at_list = (uint32_t)ridge_round_up(k->tables + records, 128);
    p->at_states = (uint32_t)ridge_round_up(p->at_list + (int64_t)(p->one ? sizeof(moe_list_1) : sizeof(moe_list)), 8);
    p->at_ring = (uint32_t)ridge_round_up(p->at_states + p->warps * (int)sizeof(expert_state), 128);
    p->at_results = p->at_ring + (uint32_t)(p->warps * p->depth * p->side * BLOCK_PITCH(k->unit));
    p->bytes = p->at_results + (int64_t)p->results * 4 * buffers;
    return p->bytes <= host_max_shared(device);
}

/* As many warps, and as many stages of each, as fit and help; where two stages do not, x stays in global memory, and
 * then there are half as many warps. */
static bool find_plan(const ridge_device *device, const ridge_problem *problem, expert_plan *p)
{
    const block_kernels *k = ridge_block_kernels_of(problem->dtype[2]);

    p->side = p->columns == 1 && problem->op != RIDGE_MOE_DOWN ? k->side[0][0] : 1;
    for (int least = 2; least > 0; least--)
        for (p->warps = EXPERT_WARPS(p->columns, p->side, device->arch == RIDGE_ARCH_SM90, k->x);
             p->warps >= EXPERT_TEAM(1); p->warps /= 2) {
            const int most = (int)(IN_FLIGHT / (p->warps * BLOCK_PITCH(k->unit)));

            share_out(device, problem, p);
            for (int records = 0; records < (p->one ? 1 : 2); records++) {
                p->records = records;
                for (p->depth = p->columns == 1 ? 2 : (int)ridge_max(2, ridge_min(BLOCK_MAX_DEPTH, most));
                     p->depth >= least; p->depth--)
                    if (lay_out(device, problem, p))
                        return true;
            }
        }
    return false;
}

/* Single pairs have larger results, which may not fit. Shapes alone decide, and for one token whether x is aligned:
 * its own kernels are a third shorter than those of several, and 3 to 5 % faster. */
static expert_plan plan(const ridge_device *device, const ridge_problem *problem, bool aligned)
{
    expert_plan p = {};

    p.columns = columns_of(problem);
    p.one = aligned && problem->dim[0] == 1;
    if (p.one && find_plan(device, problem, &p))
        return p;
    p.one = false;
    if (find_plan(device, problem, &p))
        return p;
    p.columns = MOE_COLUMNS;
    if (!find_plan(device, problem, &p))
        p.bytes = INT64_MAX;
    return p;
}

static size_t workspace(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return plan(device, problem, false).records ? (size_t)record_bytes(problem) : 0;
}

static block_mma_args x_of(const moe_args *p)
{
    block_mma_args x = {};

    x.units = (int)block_units(p->cols);
    x.tail = block_last_runs(p->cols) == 1;
    x.blocks = (int)(p->cols / 32);
    x.x_slots = p->down ? p->slots : 1;
    x.tokens = p->tokens * x.x_slots;
    x.x_dtype = RIDGE_I8;
    x.x = p->x;
    x.x_scales = p->x_scales;
    x.x_stride = p->x_stride;
    x.x_ld = p->x_ld;
    x.x_slot = p->x_slot;
    x.x_slot_ld = p->x_slot_ld;
    x.vector_x = ((uintptr_t)x.x | (uintptr_t)x.x_stride | (uintptr_t)x.x_slot) % 16 == 0;
    return x;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *space, size_t, void *stream)
{
    const block_kernels *k = ridge_block_kernels_of(bound->problem.dtype[2]);
    block_expert_args a = {};
    ridge_status status;
    expert_plan p;

    a.p = moe_args_of(&bound->call);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    a.x = x_of(&a.p);
    p = plan(device, &bound->problem, a.x.vector_x);
    a.x.depth = p.depth;
    a.x.at_ring = p.at_ring;
    a.at_list = p.at_list;
    a.at_states = p.at_states;
    a.at_results = p.at_results;
    a.results = p.results;
    a.warps = p.warps;
    a.teams = p.teams;
    a.split = p.split;
    a.own = 4 / p.split;
    a.steps = p.works / (int)p.grid;
    a.more = p.works % (int)p.grid;
    a.batch = p.batch;
    a.tiles = (int)ridge_ceil_div(a.p.rows, BLOCK_ROWS);
    a.works = p.works;
    a.tile_bytes = block_tile_bytes(block_layout_of(bound->problem.dtype[2]), a.p.cols);
    if (p.records) {
        a.x.records_out = (char *)space;
        status =
            host_launch(device, kernel->name, k->records[0],
                        dim3((unsigned)ridge_ceil_div((int64_t)a.x.units * 32 * a.x.tokens, 256)), 256, &a.x, stream);
        if (status)
            return status;
        a.x.records = (const char *)space;
    }
    return host_launch_shared(device, kernel->name,
                              k->experts[p.one           ? 0
                                         : p.columns > 1 ? 2
                                                         : 1][a.p.down],
                              dim3(p.grid), 32 * p.warps, (size_t)p.bytes, &a, stream);
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (uint32_t format = RIDGE_Q4_0; format < RIDGE_DTYPES && !status; format++)
        status =
            host_prepare(device, ridge_block_kernels_of(format)->experts[0], 6,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device), "moe: loading kernels");
    return status;
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    if (!moe_is_tiles(problem->dtype[2]))
        return "weights are in no block format";
    if (problem->dim[1] > 1 << 24 || problem->dim[2] > 1 << 30)
        return "more than 2^24 columns or 2^30 rows";
    if (record_bytes(problem) >= INT64_C(1) << 31)
        return "x takes 2 GB or more";
    return plan(device, problem, false).bytes == INT64_MAX ? "shared memory is too small" : NULL;
}

/* A launch, and the weights of as many experts as the tokens may name. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double pairs = (double)problem->dim[0] * (double)problem->dim[4], experts = (double)problem->dim[3];

    return 4 + (double)block_row_bytes(block_layout_of(problem->dtype[2]), problem->dim[1]) * (double)problem->dim[2] *
                   (problem->op == RIDGE_MOE_DOWN ? 1 : 2) * (pairs < experts ? pairs : experts) * 1.3e-3 /
                   device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                    \
    {                                                                                                          \
        "cuda." op_name ".blocks", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, \
            workspace, cost, launch                                                                            \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_blocks = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};

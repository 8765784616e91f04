/* family.c: the inputs, suites and planted faults of mixtures of experts, and what the family registers. */
#include <math.h>
#include <string.h>

#include "check/blocks/blocks.h"
#include "check/gemm_fp8/gemm.h"
#include "moe.h"
#include "ops/blocks/layout.h"

extern const ridge_family ridge_family_moe;

static void moe_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    if (op->id == RIDGE_MOE_ROUTE)
        cases_moe_route(op, level, list);
    else
        cases_moe_products(op, level, list);
}

static void moe_oracle(oracle_run *run)
{
    if (run->im->call.op == RIDGE_MOE_ROUTE)
        oracle_moe_route(run);
    else
        oracle_moe_products(run);
}

static unsigned char *element(const image *im, int arg, int64_t r, int64_t j)
{
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    return im->host + im->offset[arg] +
           (size_t)(r * (im->call.arg[arg].stride ? im->call.arg[arg].stride : cols) + j) *
               ridge_dtype_size(im->call.arg[arg].dtype);
}

/* Numbers of experts, now and then none of them, or one that the token has already. variant: 1 one expert for all, 2
 * ascending from token to token, 3 none. */
static void fill_ids(const image *im, int arg, int64_t experts, int variant, uint64_t seed)
{
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            static const int32_t none[] = {-1, INT32_MIN, INT32_MAX, 0};
            const uint64_t z = random_next(&seed);
            int32_t id = (int32_t)((z >> 8) % (uint64_t)experts);

            if (variant == 1)
                id = (int32_t)(experts / 2);
            else if (variant == 2)
                id = (int32_t)((r * cols + j) % experts);
            else if (variant == 3 || z % 16 == 3)
                id = z & 128 ? (int32_t)experts : none[z >> 5 & 3] | (int32_t)experts;
            memcpy(element(im, arg, r, j), &id, sizeof id);
        }
}

/* Weights in a block format: the tiles of each expert. */
static bool fill_experts(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_operand *w = &im->call.arg[arg];
    const bool hard = c->fill == FILL_GROUPS || c->fill == FILL_EDGE || c->fill == FILL_EVERY;
    const fill_scales scales = hard ? SCALES_HARD : SCALES_PLAIN;
    const int64_t rows = (im->call.dim[2] + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
    int64_t experts, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &experts, &cols);
    experts = im->periodic && experts > IMAGE_PERIOD ? IMAGE_PERIOD : experts;
    for (int64_t e = 0; e < experts; e++)
        if (!fill_tiles(w->dtype, rows, im->call.dim[1], scales, element(im, arg, e, 0), 0, seed + (uint64_t)(64 * e)))
            return false;
    return true;
}

static bool moe_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const char *name = op->arg[arg].name;
    int64_t rows, cols;

    op->extent(&im->call, arg, &rows, &cols);
    seed += (uint64_t)arg * 977;
    if (strcmp(name, "ids") == 0) {
        fill_ids(im, arg, im->call.dim[im->call.op == RIDGE_MOE_ROUTE ? 1 : 3], c->variant, seed);
        return true;
    }
    if (im->call.op != RIDGE_MOE_ROUTE && im->call.arg[0].dtype == RIDGE_E4M3 && strstr(name, "_scales")) {
        gemm_fill_scales(c, im, arg, seed);
        return true;
    }
    if (im->call.op != RIDGE_MOE_ROUTE)
        return is_block_format(im->call.arg[arg].dtype) && fill_experts(c, im, arg, seed);
    if (strcmp(name, "logits") && strcmp(name, "bias") && strcmp(name, "logit_bias"))
        return false;
    if (arg == 0 && c->fill != FILL_UNIT)
        return false;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            const float v = (arg == 0 ? 3.0f : 0.5f) * random_normal(&seed);

            dtype_store(element(im, arg, r, j), im->call.arg[arg].dtype, im->call.dim[0] % 2 ? v : rintf(v));
        }
    return true;
}

#define FP8(tokens, gate_up, down)                                                                    \
    {"moe-fp8", "moe_gate_up_swiglu tokens=" tokens " " gate_up " x=e4m3 w=e4m3 out=bf16 variant=2"}, \
    {                                                                                                 \
        "moe-fp8", "moe_down tokens=" tokens " " down " x=e4m3 w=e4m3 out=bf16 variant=2"             \
    }

static const suite_row suites[] = {
    {"moe", "moe_route tokens=1 experts=128 slots=8 normalise=1"},
    {"moe", "moe_route tokens=8 experts=128 slots=8 normalise=1"},
    {"moe", "moe_route tokens=1 experts=256 slots=8 groups=8 top_groups=4 rule=sigmoid normalise=1 bias=1 scale=2.5"},
    {"moe", "moe_route tokens=16 experts=256 slots=8 groups=8 top_groups=4 rule=sigmoid normalise=1 bias=1 scale=2.5"},
    {"moe", "moe_route tokens=1 experts=128 slots=4 rule=topk_softmax logit_bias=1"},
    {"moe", "moe_route tokens=4096 experts=256 slots=8 rule=sigmoid normalise=1 bias=1"},
    /* Every slot names another expert (variant=2), as long as there are some. Qwen3-30B-A3B: */
    {"moe-qwen3", "moe_route tokens=1 experts=128 slots=8 normalise=1"},
    {"moe-qwen3", "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=i8 w=i8 out=i8 variant=2"},
    {"moe-qwen3", "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=i8 w=i8 out=f32 residual=f32 variant=2"},
    {"moe-qwen3", "moe_gate_up_swiglu tokens=8 cols=2048 rows=768 experts=128 slots=8 x=i8 w=i8 out=i8 variant=2"},
    {"moe-qwen3", "moe_down tokens=8 cols=768 rows=2048 experts=128 slots=8 x=i8 w=i8 out=f32 residual=f32 variant=2"},
    {"moe-qwen3", "moe_gate_up_swiglu tokens=8 cols=2048 rows=768 experts=128 slots=8 x=i8 w=i8 out=i8 variant=1"},
    {"moe-qwen3",
     "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-qwen3", "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=bf16 out=f32 variant=2"},
    {"moe-qwen3",
     "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-qwen3", "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=e4m3 out=f32 variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=i8 w=q4_k out=i8 variant=2"},
    {"moe-blocks",
     "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=i8 w=q4_k out=f32 residual=f32 variant=2"},
    {"moe-blocks",
     "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=i8 w=q6_k out=f32 residual=f32 variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=i8 w=q8_0 out=i8 variant=2"},
    {"moe-blocks",
     "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=i8 w=q8_0 out=f32 residual=f32 variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=8 cols=2048 rows=768 experts=128 slots=8 x=i8 w=q4_k out=i8 variant=2"},
    {"moe-blocks",
     "moe_down tokens=8 cols=768 rows=2048 experts=128 slots=8 x=i8 w=q4_k out=f32 residual=f32 variant=2"},
    /* gpt-oss-120b, and DeepSeek-V4-Flash in IQ2_XXS and Q2_K */
    {"moe-blocks",
     "moe_gate_up_swiglu tokens=1 cols=2880 rows=2880 experts=128 slots=4 x=i8 w=mxfp4 out=i8 alpha=1.702 "
     "up_offset=1 limit=7 gate_bias=1 up_bias=1 variant=2"},
    {"moe-blocks", "moe_down tokens=1 cols=2880 rows=2880 experts=128 slots=4 x=i8 w=mxfp4 out=f32 bias=1 variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=1 cols=4096 rows=2048 experts=256 slots=6 x=i8 w=iq2_xxs out=i8 limit=10 "
                   "variant=2"},
    {"moe-blocks", "moe_down tokens=1 cols=2048 rows=4096 experts=256 slots=6 x=i8 w=q2_k out=f32 variant=2"},
    {"moe-blocks", "moe_down tokens=1 cols=2048 rows=4096 experts=256 slots=6 x=i8 w=q2_k out=f32 shared=f32 n_hc=4 "
                   "variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=8 cols=4096 rows=2048 experts=256 slots=6 x=i8 w=iq2_xxs out=i8 limit=10 "
                   "variant=2"},
    {"moe-blocks", "moe_down tokens=8 cols=2048 rows=4096 experts=256 slots=6 x=i8 w=q2_k out=f32 variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=1 cols=4096 rows=2048 experts=64 slots=6 x=i8 w=mxfp4 out=i8 limit=10 "
                   "variant=2"},
    {"moe-blocks", "moe_down tokens=1 cols=2048 rows=4096 experts=64 slots=6 x=i8 w=mxfp4 out=f32 variant=2"},
    /* Mixtral, and DeepSeek-V3's experts of one of eight devices */
    {"moe-blocks", "moe_gate_up_swiglu tokens=1 cols=4096 rows=14336 experts=8 slots=2 x=i8 w=q4_k out=i8 variant=2"},
    {"moe-blocks", "moe_down tokens=1 cols=14336 rows=4096 experts=8 slots=2 x=i8 w=q4_k out=f32 variant=2"},
    {"moe-blocks", "moe_gate_up_swiglu tokens=1 cols=7168 rows=2048 experts=32 slots=8 x=i8 w=q4_k out=i8 variant=2"},
    {"moe-blocks", "moe_down tokens=1 cols=2048 rows=7168 experts=32 slots=8 x=i8 w=q4_k out=f32 variant=2"},
    {"moe-gpt-oss", "moe_route tokens=1 experts=128 slots=4 rule=topk_softmax logit_bias=1"},
    {"moe-gpt-oss", "moe_gate_up_swiglu tokens=1 cols=2880 rows=2880 experts=128 slots=4 x=i8 w=i8 out=i8 alpha=1.702 "
                    "up_offset=1 limit=7 gate_bias=1 up_bias=1 variant=2"},
    {"moe-gpt-oss", "moe_down tokens=1 cols=2880 rows=2880 experts=128 slots=4 x=i8 w=i8 out=f32 bias=1 variant=2"},
    {"moe-gpt-oss", "moe_gate_up_swiglu tokens=1 cols=2880 rows=2880 experts=32 slots=4 x=bf16 w=bf16 out=bf16 "
                    "alpha=1.702 up_offset=1 limit=7 gate_bias=1 up_bias=1 variant=2"},
    {"moe-gpt-oss", "moe_down tokens=1 cols=2880 rows=2880 experts=32 slots=4 x=bf16 w=bf16 out=f32 bias=1 variant=2"},
    /* DeepSeek-V3, the experts of one of eight devices */
    {"moe-deepseek", "moe_route tokens=1 experts=256 slots=8 groups=8 top_groups=4 rule=sigmoid normalise=1 bias=1"},
    {"moe-deepseek",
     "moe_gate_up_swiglu tokens=1 cols=7168 rows=2048 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-deepseek", "moe_down tokens=1 cols=2048 rows=7168 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-deepseek", "moe_gate_up_swiglu tokens=1 cols=7168 rows=2048 experts=32 slots=8 x=i8 w=i8 out=i8 variant=2"},
    {"moe-deepseek", "moe_down tokens=1 cols=2048 rows=7168 experts=32 slots=8 x=i8 w=i8 out=f32 variant=2"},
    {"moe-mixtral", "moe_route tokens=1 experts=8 slots=2 normalise=1"},
    {"moe-mixtral", "moe_gate_up_swiglu tokens=1 cols=4096 rows=14336 experts=8 slots=2 x=i8 w=i8 out=i8 variant=2"},
    {"moe-mixtral", "moe_down tokens=1 cols=14336 rows=4096 experts=8 slots=2 x=i8 w=i8 out=f32 variant=2"},
    {"moe-mixtral", "moe_gate_up_swiglu tokens=8 cols=4096 rows=14336 experts=8 slots=2 x=i8 w=i8 out=i8 variant=2"},
    {"moe-mixtral", "moe_down tokens=8 cols=14336 rows=4096 experts=8 slots=2 x=i8 w=i8 out=f32 variant=2"},
    /* Few tokens: Qwen3-30B-A3B, DeepSeek-V3, Mixtral, gpt-oss */
    {"moe-floats",
     "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=2 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=2 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=8 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=8 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=16 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=16 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=1 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=1 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=8 cols=2048 rows=768 experts=128 slots=8 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=8 cols=768 rows=2048 experts=128 slots=8 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=1 cols=7168 rows=2048 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=1 cols=2048 rows=7168 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=2 cols=7168 rows=2048 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=2 cols=2048 rows=7168 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=8 cols=7168 rows=2048 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=8 cols=2048 rows=7168 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=16 cols=7168 rows=2048 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=16 cols=2048 rows=7168 experts=32 slots=8 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=1 cols=4096 rows=14336 experts=8 slots=2 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=1 cols=14336 rows=4096 experts=8 slots=2 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=8 cols=4096 rows=14336 experts=8 slots=2 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=8 cols=14336 rows=4096 experts=8 slots=2 x=bf16 w=e4m3 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=1 cols=2880 rows=2880 experts=32 slots=4 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=1 cols=2880 rows=2880 experts=32 slots=4 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats",
     "moe_gate_up_swiglu tokens=8 cols=2880 rows=2880 experts=32 slots=4 x=bf16 w=bf16 out=bf16 variant=2"},
    {"moe-floats", "moe_down tokens=8 cols=2880 rows=2880 experts=32 slots=4 x=bf16 w=bf16 out=bf16 variant=2"},
    /* The same in e4m3 with x in e4m3 */
    FP8("1", "cols=2048 rows=768 experts=128 slots=8", "cols=768 rows=2048 experts=128 slots=8"),
    FP8("2", "cols=2048 rows=768 experts=128 slots=8", "cols=768 rows=2048 experts=128 slots=8"),
    FP8("8", "cols=2048 rows=768 experts=128 slots=8", "cols=768 rows=2048 experts=128 slots=8"),
    FP8("16", "cols=2048 rows=768 experts=128 slots=8", "cols=768 rows=2048 experts=128 slots=8"),
    FP8("1", "cols=7168 rows=2048 experts=32 slots=8", "cols=2048 rows=7168 experts=32 slots=8"),
    FP8("2", "cols=7168 rows=2048 experts=32 slots=8", "cols=2048 rows=7168 experts=32 slots=8"),
    FP8("8", "cols=7168 rows=2048 experts=32 slots=8", "cols=2048 rows=7168 experts=32 slots=8"),
    FP8("16", "cols=7168 rows=2048 experts=32 slots=8", "cols=2048 rows=7168 experts=32 slots=8"),
    FP8("1", "cols=4096 rows=14336 experts=8 slots=2", "cols=14336 rows=4096 experts=8 slots=2"),
    FP8("8", "cols=4096 rows=14336 experts=8 slots=2", "cols=14336 rows=4096 experts=8 slots=2"),
    FP8("16", "cols=4096 rows=14336 experts=8 slots=2", "cols=14336 rows=4096 experts=8 slots=2"),
    {NULL, NULL},
};

static ridge_status takes_another_rule(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.flags ^= RIDGE_ROUTE_TOPK_SOFTMAX;
    return fault_run_changed(r, &copy);
}

static ridge_status keeps_all_groups(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.moe_route.top_groups = copy.opt.moe_route.groups;
    return fault_run_changed(r, &copy);
}

static bool is_product(const ridge_kernel *kernel)
{
    return kernel->op != RIDGE_MOE_ROUTE;
}

/* Writes the slots of an operand of [tokens, slots * n] in the opposite order, or as they were. */
static ridge_status write_slots(const faulty_run *r, const char *name, bool backwards)
{
    const int arg = fault_slot(r->call, name);
    const int64_t slots = r->call->dim[4];
    ridge_status status = RIDGE_OK;
    int64_t rows, cols;

    if (arg < 0)
        return RIDGE_OK;
    ridge_op_at(r->call->op)->extent(&r->im->call, arg, &rows, &cols);
    for (int64_t t = 0; t < rows && !status; t++)
        for (int64_t s = 0; s < slots && !status; s++)
            status = fault_write(r, fault_at(r->im, arg, t, s * (cols / slots)),
                                 element(r->im, arg, t, (backwards ? slots - 1 - s : s) * (cols / slots)),
                                 (size_t)(cols / slots) * ridge_dtype_size(r->im->call.arg[arg].dtype));
    return status;
}

/* Runs with these operands' slots in the opposite order. */
static ridge_status backwards(const faulty_run *r, const char *const *names, int count)
{
    ridge_status status = RIDGE_OK;

    if (r->call->dim[4] < 2)
        return fault_impossible("one slot");
    for (int i = 0; i < count && !status; i++)
        status = write_slots(r, names[i], true);
    status = status ? status : fault_run(r, r->call);
    for (int i = 0; i < count && !status; i++)
        status = write_slots(r, names[i], false);
    return status;
}

static ridge_status mixes_the_slots(const faulty_run *r)
{
    static const char *const names[] = {"ids"};

    return backwards(r, names, 1);
}

static bool is_exact(const ridge_kernel *kernel)
{
    return kernel->contract & RIDGE_EXACT;
}

/* The same terms, but the last slot's comes first. */
static ridge_status adds_the_last_slot_first(const faulty_run *r)
{
    static const char *const names[] = {"ids", "weights", "x", "x_scales"};

    return backwards(r, names, 4);
}

/* Of one expert less, so that the operand ends where it did; the last expert's pairs are passed over. */
static ridge_status takes_the_next_expert(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);
    ridge_operand *w = &copy.arg[fault_slot(r->call, r->planted->operand)];

    w->data = (char *)w->data + w->stride * (int64_t)ridge_dtype_size(w->dtype);
    copy.dim[3]--;
    return fault_run_changed(r, &copy);
}

static ridge_status drops_the_last_slot(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[4]--;
    return fault_run_changed(r, &copy);
}

static int route_bad_calls(const ridge_call *good, bad_call *list)
{
    enum { CALLS = 9 };

    for (int i = 0; i < CALLS; i++)
        list[i].call = *good;
    list[0].what = "no experts", list[0].names = "experts is outside 1 .. 1024";
    list[0].call.dim[1] = 0;
    list[1].what = "1025 experts", list[1].names = "experts is outside 1 .. 1024";
    list[1].call.dim[1] = 1025;
    list[2].what = "no slots", list[2].names = "slots is outside 1 .. 32";
    list[2].call.dim[2] = 0;
    list[3].what = "more slots than experts", list[3].names = "or above experts";
    list[3].call.dim[2] = good->dim[1] + 1;
    list[4].what = "groups that do not divide the experts", list[4].names = "option groups";
    list[4].call.opt.moe_route.groups = 3;
    list[5].what = "more groups than there are", list[5].names = "option top_groups";
    list[5].call.opt.moe_route.top_groups = 2;
    list[6].what = "groups with too few experts", list[6].names = "fewer experts than slots";
    list[6].call.opt.moe_route.groups = 2;
    list[7].what = "a negative eps", list[7].names = "option eps";
    list[7].call.opt.moe_route.eps = -1;
    list[8].what = "groups of given ids", list[8].names = "RIDGE_ROUTE_GIVEN";
    list[8].call.opt.moe_route.groups = list[8].call.opt.moe_route.top_groups = 2;
    list[8].call.flags |= RIDGE_ROUTE_GIVEN;
    return CALLS;
}

/* Weights in a format whose blocks have 256 columns, of which the good call has fewer. */
static void takes_blocks(ridge_call *call)
{
    for (int arg = 2; arg < (call->op == RIDGE_MOE_DOWN ? 3 : 6); arg += 2) {
        call->arg[arg].dtype = RIDGE_Q4_K;
        ridge_set(call, arg + 1, RIDGE_NONE, NULL, 0);
    }
}

static int moe_bad_calls(const ridge_call *good, bad_call *list)
{
    if (good->op == RIDGE_MOE_ROUTE)
        return route_bad_calls(good, list);
    for (int i = 0; i < 8; i++)
        list[i].call = *good;
    list[0].what = "17 tokens", list[0].names = "tokens is above 16";
    list[0].call.dim[0] = 17;
    list[1].what = "no experts", list[1].names = "experts is outside 1";
    list[1].call.dim[3] = 0;
    list[2].what = "no slots", list[2].names = "slots is outside 1 .. 32";
    list[2].call.dim[4] = 0;
    list[3].what = "33 slots", list[3].names = "slots is outside 1 .. 32";
    list[3].call.dim[4] = 33;
    list[4].what = "columns of no whole block", list[4].names = "cols is no multiple of 256";
    takes_blocks(&list[4].call);
    list[5].what = "x that is not codes", list[5].names = "operand x";
    list[5].call.arg[0].dtype = RIDGE_F32;
    if (good->op != RIDGE_MOE_DOWN)
        return 6;
    list[6].what = "a negative number of streams", list[6].names = "option n_hc is outside 0 .. 16";
    list[6].call.opt.moe_down.n_hc = -1;
    list[7].what = "2^62 streams", list[7].names = "option n_hc is outside 0 .. 16";
    list[7].call.opt.moe_down.n_hc = INT64_C(1) << 62;
    return 8;
}

#define OPTION(field) \
    .fault = fault_changes_option, .op = RIDGE_MOE_ROUTE, .option = offsetof(ridge_moe_route_options, field)

static const planted_fault faults[] = {
    {.name = "takes another rule", .fault = takes_another_rule, .op = RIDGE_MOE_ROUTE},
    {.name = "keeps all groups", .fault = keeps_all_groups, .op = RIDGE_MOE_ROUTE},
    {.name = "counts a group as its largest",
     .fault = fault_changes_flags,
     .op = RIDGE_MOE_ROUTE,
     .flags = RIDGE_ROUTE_GROUP_MAX},
    {.name = "does not normalise", .fault = fault_changes_flags, .op = RIDGE_MOE_ROUTE, .flags = RIDGE_ROUTE_NORMALISE},
    {.name = "forgets the scale", OPTION(scale), .value = 1},
    {.name = "forgets the bias of the choice", .fault = fault_forgets_operand, .operand = "bias"},
    {.name = "forgets the bias of the logits", .fault = fault_forgets_operand, .operand = "logit_bias"},
    {.name = "takes the next expert", .fault = takes_the_next_expert, .applies = is_product, .operand = "w"},
    {.name = "takes the next expert of gate", .fault = takes_the_next_expert, .applies = is_product, .operand = "gate"},
    {.name = "takes the next expert's scales", .fault = fault_takes_the_next, .operand = "w_scales"},
    {.name = "takes the next expert's scales of up", .fault = fault_takes_the_next, .operand = "up_scales"},
    {.name = "takes the next token's experts", .fault = fault_takes_the_next, .applies = is_product, .operand = "ids"},
    {.name = "takes the next token's weights",
     .fault = fault_takes_the_next,
     .op = RIDGE_MOE_DOWN,
     .operand = "weights"},
    {.name = "takes the next token", .fault = fault_takes_the_next, .applies = is_product, .operand = "x"},
    {.name = "takes the next token's scales", .fault = fault_takes_the_next, .operand = "x_scales"},
    {.name = "mixes the slots of a token", .fault = mixes_the_slots, .applies = is_product},
    {.name = "adds the last slot first", .fault = adds_the_last_slot_first, .applies = is_exact, .op = RIDGE_MOE_DOWN},
    {.name = "drops the last slot", .fault = drops_the_last_slot, .op = RIDGE_MOE_DOWN},
    {.name = "forgets the shared expert", .fault = fault_forgets_operand, .operand = "shared"},
    {.name = "forgets the residual", .fault = fault_forgets_operand, .operand = "residual"},
    {.name = "takes the next token's post", .fault = fault_takes_the_next, .op = RIDGE_MOE_DOWN, .operand = "post"},
    {.name = "takes the next token's comb", .fault = fault_takes_the_next, .op = RIDGE_MOE_DOWN, .operand = "comb"},
    {.name = "takes the next token's streams", .fault = fault_takes_the_next, .op = RIDGE_MOE_DOWN, .operand = "res"},
    {.name = "forgets the bias of gate", .fault = fault_forgets_operand, .operand = "gate_bias"},
    {.name = "forgets the bias of a product", .fault = fault_forgets_operand, .op = RIDGE_MOE_DOWN, .operand = "bias"},
    {0},
};

static const char *const fault_problems[] = {
    "moe_route tokens=37 experts=48 slots=7 groups=6 top_groups=3 rule=sigmoid normalise=1 bias=1 logit_bias=1 scale=3",
    "moe_gate_up_swiglu tokens=5 cols=288 rows=64 experts=6 slots=3 x=i8 w=i8 out=f32 limit=10 gate_bias=1 variant=2",
    "moe_gate_up_swiglu tokens=5 cols=512 rows=64 experts=6 slots=3 x=i8 w=i8 out=i8 pad=64 variant=2",
    "moe_down tokens=5 cols=288 rows=37 experts=6 slots=3 x=i8 w=i8 out=f32 bias=1 shared=f32 residual=f32 n_hc=4 "
    "variant=2",
    "moe_gate_up_swiglu tokens=5 cols=288 rows=64 experts=6 slots=3 x=bf16 w=e4m3 out=f32 limit=10 up_bias=1 variant=2",
    "moe_down tokens=5 cols=288 rows=37 experts=6 slots=3 x=f32 w=bf16 out=f32 bias=1 residual=f32 n_hc=4 variant=2",
    "moe_down tokens=5 cols=288 rows=37 experts=6 slots=3 x=bf16 w=e4m3 out=f32 bias=1 residual=f32 n_hc=4 variant=2",
    "moe_gate_up_swiglu tokens=5 cols=288 rows=64 experts=6 slots=3 x=e4m3 w=e4m3 out=f32 limit=10 up_bias=1 variant=2",
    "moe_down tokens=5 cols=288 rows=37 experts=6 slots=3 x=e4m3 w=e4m3 out=f32 bias=1 residual=f32 n_hc=4 variant=2",
    "moe_gate_up_swiglu tokens=5 cols=288 rows=64 experts=6 slots=3 x=i8 w=mxfp4 out=f32 limit=10 gate_bias=1 "
    "variant=2",
    "moe_down tokens=5 cols=512 rows=37 experts=6 slots=3 x=i8 w=q4_k out=f32 bias=1 shared=f32 residual=f32 n_hc=4 "
    "variant=2",
    "moe_down tokens=5 cols=512 rows=40 experts=6 slots=3 x=i8 w=i8 out=f32 shared=f32 residual=f32 n_hc=4 pad=64 "
    "variant=2",
    "moe_gate_up_swiglu tokens=5 cols=288 rows=64 experts=1 slots=1 x=bf16 w=e4m3 out=f32 limit=10 gate_bias=1 "
    "variant=1",
    "moe_down tokens=5 cols=288 rows=37 experts=1 slots=1 x=f32 w=bf16 out=f32 bias=1 residual=f32 n_hc=4 variant=1",
    "moe_down tokens=5 cols=288 rows=40 experts=1 slots=1 x=f32 w=bf16 out=f32 bias=1 residual=f32 variant=1",
    NULL,
};

const check_family check_moe = {
    .family = &ridge_family_moe,
    .cases = moe_cases,
    .oracle = moe_oracle,
    .fill = moe_fill,
    .variants = 3,
    .suites = suites,
    .bad_calls = moe_bad_calls,
    .fault_problems = fault_problems,
    .faults = faults,
};

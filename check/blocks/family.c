/* family.c: the suites of block formats, and what the family registers. */
#include "blocks.h"

extern const ridge_family ridge_family_blocks;

static void oracle_blocks(oracle_run *run)
{
    if (is_block_product(run->im->call.op))
        oracle_block_products(run);
    else
        oracle_blocks_moved(run);
}

static const char *const formats[] = {"q4_0", "q4_1", "q8_0", "mxfp4", "q2_k", "q4_k", "q5_k", "q6_k", "iq2_xxs"};
static const int tokens[] = {1, 2, 4, 8, 16};

/* Rows of a decoder layer's matrices: Qwen3-8B's and Llama-3-8B's, and a head. */
static const struct {
    int cols, rows;
} matrices[] = {{4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 32768}, {4096, 151936}};

enum {
    FORMATS = (int)(sizeof formats / sizeof formats[0]),
    TOKENS = (int)(sizeof tokens / sizeof tokens[0]),
    MATRICES = (int)(sizeof matrices / sizeof matrices[0]),
    LINES = FORMATS * TOKENS * MATRICES
};

/* Every format, number of tokens and matrix. */
static suite_line suite(int index)
{
    static char text[128];
    const int format = index / (TOKENS * MATRICES), matrix = index / TOKENS % MATRICES;

    snprintf(text, sizeof text, "block_matmul tokens=%d cols=%d rows=%d x=i8 w=%s out=f32", tokens[index % TOKENS],
             matrices[matrix].cols, matrices[matrix].rows, formats[format]);
    return (suite_line){"blocks", text, format + 1};
}

static const suite_row suites[] = {
    {"quick", "block_matmul tokens=4 cols=1024 rows=256 x=bf16 w=q4_k out=bf16"},
    {NULL, NULL},
};

static ridge_status drops_the_last_block(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[1] -= 32;
    return fault_run_changed(r, &copy);
}

static bool is_a_product(const ridge_kernel *kernel)
{
    return is_block_product(kernel->op);
}

static ridge_status mixes_gate_and_up(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.arg[RIDGE_BLOCK_GATE_UP_SWIGLU_GATE] = r->call->arg[RIDGE_BLOCK_GATE_UP_SWIGLU_UP];
    copy.arg[RIDGE_BLOCK_GATE_UP_SWIGLU_UP] = r->call->arg[RIDGE_BLOCK_GATE_UP_SWIGLU_GATE];
    return fault_run_changed(r, &copy);
}

static int bad_calls(const ridge_call *good, bad_call *list)
{
    list[0] = (bad_call){*good, "columns of no whole block", "cols is no multiple of 256"};
    for (int arg = 0; arg < ridge_op_at(good->op)->args; arg++)
        if (is_block_format(good->arg[arg].dtype))
            list[0].call.arg[arg].dtype = RIDGE_Q4_K;
    list[0].call.dim[1] = 128;
    if (!is_block_product(good->op))
        return 1;
    list[1] = (bad_call){*good, "65537 tokens", "tokens is above 65536"};
    list[1].call.dim[0] = 65537;
    list[2] = (bad_call){*good, "codes without scales", "x_scales"};
    list[2].call.arg[0].dtype = RIDGE_I8;
    ridge_set(&list[2].call, 1, RIDGE_NONE, NULL, 0);
    return 3;
}

static const planted_fault faults[] = {
    {.name = "drops the last block of a sum", .fault = drops_the_last_block, .applies = is_a_product},
    {.name = "takes the next token", .fault = fault_takes_the_next, .applies = is_a_product, .operand = "x"},
    {.name = "takes the next token's scales", .fault = fault_takes_the_next, .operand = "x_scales"},
    {.name = "gets a bit of the tiles wrong",
     .fault = fault_spoils_an_element,
     .op = RIDGE_BLOCK_REPACK,
     .operand = "tiles"},
    {.name = "gets a byte of the blocks wrong",
     .fault = fault_spoils_an_element,
     .op = RIDGE_BLOCK_UNPACK,
     .operand = "blocks"},
    {.name = "mixes gate and up", .fault = mixes_gate_and_up, .op = RIDGE_BLOCK_GATE_UP_SWIGLU},
    {.name = "forgets the bias", .fault = fault_forgets_operand, .operand = "bias"},
    {.name = "forgets the second bias", .fault = fault_forgets_operand, .operand = "bias1"},
    {.name = "forgets the bias of up", .fault = fault_forgets_operand, .operand = "up_bias"},
    {.name = "forgets the residual", .fault = fault_forgets_operand, .operand = "residual"},
    {.name = "forgets the token's scale", .fault = fault_forgets_operand, .operand = "token_scale"},
    {0},
};

/* With blocks of 32 columns, so that one can be left out. */
static const char *const fault_problems[] = {
    "block_repack rows=32 cols=512 format=q6_k",
    "block_unpack rows=32 cols=512 format=q6_k",
    "block_matmul tokens=5 cols=160 rows=35 x=bf16 w=q4_1 out=bf16 bias=1 residual=1 pad=256",
    "block_pair tokens=5 cols=160 rows0=35 rows1=19 x=i8 w=q4_0 out=f32 bias0=1 bias1=1 pad=256",
    "block_gate_up_swiglu tokens=5 cols=160 rows=35 x=f32 w=mxfp4 out=f32 gate_bias=1 up_bias=1 token_scale=1 limit=10 "
    "pad=256",
    NULL,
};

const check_family check_blocks = {
    .family = &ridge_family_blocks,
    .cases = cases_blocks,
    .oracle = oracle_blocks,
    .fill = fill_blocks,
    .periodic =
        UINT64_C(1) << RIDGE_BLOCK_MATMUL | UINT64_C(1) << RIDGE_BLOCK_PAIR | UINT64_C(1) << RIDGE_BLOCK_GATE_UP_SWIGLU,
    .suites = suites,
    .suite = suite,
    .suite_lines = LINES,
    .bad_calls = bad_calls,
    .fault_problems = fault_problems,
    .faults = faults,
};

/* family.c: the suites of Q8_0, and what it registers. */
#include "q8_0.h"

extern const ridge_family ridge_family_q8_0;

static void oracle_q8_0(oracle_run *run)
{
    const uint32_t op = run->im->call.op;

    if (op == RIDGE_Q8_0_QUANTIZE_ROWS)
        oracle_quantize_rows(run);
    else if (is_product(op))
        oracle_products(run);
    else
        oracle_blocks(run);
}

static const suite_row suites[] = {
    {"quick", "q8_0_quantize rows=64 cols=1024 dtype=f32"},
    {"quantize", "q8_0_quantize rows=8192 cols=14336 dtype=bf16"},
    {"quantize", "q8_0_quantize rows=8192 cols=14336 dtype=f32"},
    {"quantize", "q8_0_repack rows=8192 cols=14336"},
    {"quantize", "q8_0_unpack rows=8192 cols=14336"},
    {"quick", "q8_0_matmul tokens=4 cols=1024 rows=256 x=bf16 w=i8 out=bf16"},
    {"q8_0", "q8_0_matmul tokens=1 cols=4096 rows=1024 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=4096 rows=1024 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=4096 rows=1024 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=4096 rows=1024 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=4096 rows=1024 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=1 cols=2048 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=2048 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=2048 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=2048 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=2048 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=1 cols=4096 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=4096 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=4096 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=4096 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=4096 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=1 cols=1024 rows=32768 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=1024 rows=32768 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=1024 rows=32768 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=1024 rows=32768 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=1024 rows=32768 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=1 cols=14336 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=14336 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=14336 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=14336 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=14336 rows=4096 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=1 cols=4096 rows=14336 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=4096 rows=14336 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=4096 rows=14336 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=4096 rows=14336 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=4096 rows=14336 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=1 cols=8192 rows=8192 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=2 cols=8192 rows=8192 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=4 cols=8192 rows=8192 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=8 cols=8192 rows=8192 x=i8 w=i8 out=f32"},
    {"q8_0", "q8_0_matmul tokens=16 cols=8192 rows=8192 x=i8 w=i8 out=f32"},
    {"q8_0-forms", "q8_0_matmul tokens=1 cols=4096 rows=4096 x=f32 w=i8 out=f32"},
    {"q8_0-forms", "q8_0_matmul tokens=1 cols=4096 rows=4096 x=bf16 w=i8 out=bf16"},
    {"q8_0-forms", "q8_0_matmul tokens=1 cols=4096 rows=4096 x=f32 w=i8 out=f32 norm=1"},
    {"q8_0-forms", "q8_0_matmul_hc_expand tokens=1 cols=4096 rows=4096 n_hc=1 x=f32 w=i8"},
    {"q8_0-forms", "q8_0_matmul tokens=1 cols=4096 rows=4096 x=i8 w=u8 out=f32"},
    {"q8_0-forms", "q8_0_matmul tokens=8 cols=4096 rows=4096 x=i8 w=u8 out=f32"},
    {"q8_0-forms", "q8_0_quantize_rows rows=16 cols=4096 dtype=f32"},
    /* One layer of DeepSeek-V4-Flash in order: q_a and kv, q_b, head norm, output_a, output_b into the streams, norm,
     * shared gate and up, shared down. */
    {"ds4flash", "q8_0_pair tokens=1 cols=4096 rows0=1024 rows1=512 x=f32 w=i8 out=f32"},
    {"ds4flash", "q8_0_matmul tokens=1 cols=1024 rows=32768 x=f32 w=i8 out=f32"},
    {"ds4flash", "head_rms_norm_rope_tail tokens=1 heads=64 head_dim=512 n_rot=64 x=f32 pos=i32 out=f32"},
    {"ds4flash", "q8_0_matmul tokens=1 cols=4096 rows=8192 x=f32 w=i8 out=f32"},
    {"ds4flash", "q8_0_matmul_hc_expand tokens=1 cols=8192 rows=4096 n_hc=4 x=f32 w=i8"},
    {"ds4flash", "rms_norm rows=1 cols=4096 x=f32 w=f32 out=f32"},
    {"ds4flash", "q8_0_gate_up_swiglu tokens=1 cols=4096 rows=2048 x=f32 w=i8 out=f32 limit=10"},
    {"ds4flash", "q8_0_matmul_hc_expand tokens=1 cols=2048 rows=4096 n_hc=4 x=f32 w=i8 add=1"},
    {"ds4flash", "q8_0_pair tokens=4 cols=4096 rows0=1024 rows1=512 x=f32 w=i8 out=f32"},
    {"ds4flash", "q8_0_matmul tokens=4 cols=1024 rows=32768 x=f32 w=i8 out=f32"},
    {"ds4flash", "head_rms_norm_rope_tail tokens=4 heads=64 head_dim=512 n_rot=64 x=f32 pos=i32 out=f32"},
    {"ds4flash", "q8_0_matmul tokens=4 cols=4096 rows=8192 x=f32 w=i8 out=f32"},
    {"ds4flash", "q8_0_matmul_hc_expand tokens=4 cols=8192 rows=4096 n_hc=4 x=f32 w=i8"},
    {"ds4flash", "rms_norm rows=4 cols=4096 x=f32 w=f32 out=f32"},
    {"ds4flash", "q8_0_gate_up_swiglu tokens=4 cols=4096 rows=2048 x=f32 w=i8 out=f32 limit=10"},
    {"ds4flash", "q8_0_matmul_hc_expand tokens=4 cols=2048 rows=4096 n_hc=4 x=f32 w=i8 add=1"},
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
    return is_product(kernel->op);
}

static bool is_a_quantiser(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_Q8_0_QUANTIZE_ROWS || kernel->op == RIDGE_Q8_0_REPACK;
}

static ridge_status mixes_gate_and_up(const faulty_run *r)
{
    ridge_call copy = *r->call;

    for (int i = 0; i < 2; i++) {
        copy.arg[RIDGE_Q8_0_GATE_UP_SWIGLU_GATE + i] = r->call->arg[RIDGE_Q8_0_GATE_UP_SWIGLU_UP + i];
        copy.arg[RIDGE_Q8_0_GATE_UP_SWIGLU_UP + i] = r->call->arg[RIDGE_Q8_0_GATE_UP_SWIGLU_GATE + i];
    }
    return fault_run_changed(r, &copy);
}

static ridge_status forgets_the_limit(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.swiglu.limit = 0;
    return fault_run_changed(r, &copy);
}

static const planted_fault faults[] = {
    {.name = "drops the last block of a sum", .fault = drops_the_last_block, .applies = is_a_product},
    {.name = "takes the next row of weights", .fault = fault_takes_the_next, .operand = "w"},
    {.name = "takes the next row's scales of the weights", .fault = fault_takes_the_next, .operand = "w_scales"},
    {.name = "takes the next row of the second weights", .fault = fault_takes_the_next, .operand = "w1"},
    {.name = "takes the next token", .fault = fault_takes_the_next, .applies = is_a_product, .operand = "x"},
    {.name = "takes the next token's scales", .fault = fault_takes_the_next, .operand = "x_scales"},
    {.name = "gets a scale wrong", .fault = fault_spoils_an_element, .applies = is_a_quantiser, .operand = "scales"},
    {.name = "gets a code wrong", .fault = fault_spoils_an_element, .applies = is_a_quantiser, .operand = "codes"},
    {.name = "mixes gate and up of a token", .fault = mixes_gate_and_up, .op = RIDGE_Q8_0_GATE_UP_SWIGLU},
    {.name = "forgets the limit", .fault = forgets_the_limit, .op = RIDGE_Q8_0_GATE_UP_SWIGLU},
    {.name = "forgets the token's scale", .fault = fault_forgets_operand, .operand = "token_scale"},
    {.name = "forgets what is to be added", .fault = fault_forgets_operand, .operand = "add"},
    {.name = "forgets the norm", .fault = fault_forgets_operand, .operand = "norm"},
    {.name = "takes the next token's mixture", .fault = fault_takes_the_next, .operand = "comb"},
    {.name = "takes the next token's streams", .fault = fault_takes_the_next, .operand = "res"},
    {0},
};

static const char *const fault_problems[] = {
    "q8_0_quantize rows=5 cols=288 dtype=bf16",
    "q8_0_repack rows=5 cols=288",
    "q8_0_unpack rows=5 cols=288",
    "q8_0_quantize_rows rows=5 cols=288 dtype=bf16",
    "q8_0_matmul tokens=5 cols=288 rows=19 x=bf16 w=i8 out=bf16 norm=1",
    "q8_0_matmul tokens=5 cols=512 rows=24 x=bf16 w=i8 out=bf16 norm=1 pad=256",
    "q8_0_matmul tokens=70 cols=1600 rows=72 x=bf16 w=i8 out=bf16 norm=1",
    "q8_0_pair tokens=5 cols=288 rows0=19 rows1=9 x=f32 w=u8 out=f32",
    "q8_0_pair tokens=5 cols=512 rows0=24 rows1=8 x=f32 w=i8 out=f32 pad=256",
    "q8_0_gate_up_swiglu tokens=5 cols=288 rows=19 x=i8 w=i8 out=f32 token_scale=1 limit=10",
    "q8_0_gate_up_swiglu tokens=5 cols=512 rows=24 x=i8 w=i8 out=f32 token_scale=1 limit=10 pad=256",
    "q8_0_matmul_hc_expand tokens=5 cols=288 rows=19 n_hc=4 x=f32 w=u8 add=1 y=1",
    "q8_0_matmul_hc_expand tokens=5 cols=512 rows=24 n_hc=4 x=f32 w=i8 add=1 y=1 pad=256",
    /* one token */
    "q8_0_matmul tokens=1 cols=512 rows=24 x=f32 w=i8 out=f32 norm=1 pad=256",
    "q8_0_pair tokens=1 cols=512 rows0=24 rows1=8 x=f32 w=i8 out=f32 pad=256",
    "q8_0_gate_up_swiglu tokens=1 cols=512 rows=24 x=f32 w=i8 out=f32 token_scale=1 limit=0.5 pad=256",
    "q8_0_matmul_hc_expand tokens=1 cols=512 rows=24 n_hc=4 x=f32 w=i8 add=1 y=1 pad=256",
    NULL,
};

const check_family check_q8_0 = {
    .family = &ridge_family_q8_0,
    .cases = cases_q8_0,
    .oracle = oracle_q8_0,
    .fill = fill_q8_0,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};

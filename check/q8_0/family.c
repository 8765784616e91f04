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

static const char *const fault_problems[] = {
    "q8_0_quantize rows=5 cols=288 dtype=bf16",
    "q8_0_repack rows=5 cols=288",
    "q8_0_unpack rows=5 cols=288",
    "q8_0_quantize_rows rows=5 cols=288 dtype=bf16",
    "q8_0_matmul tokens=5 cols=288 rows=19 x=bf16 w=u8 out=bf16",
    "q8_0_matmul tokens=5 cols=512 rows=24 x=bf16 w=i8 out=bf16 pad=256",
    "q8_0_pair tokens=5 cols=288 rows0=19 rows1=9 x=f32 w=i8 out=f32",
    "q8_0_pair tokens=5 cols=512 rows0=24 rows1=8 x=f32 w=i8 out=f32 pad=256",
    "q8_0_gate_up_swiglu tokens=5 cols=288 rows=19 x=i8 w=i8 out=f32 token_scale=1 limit=10",
    "q8_0_gate_up_swiglu tokens=5 cols=512 rows=24 x=i8 w=i8 out=f32 token_scale=1 limit=10 pad=256",
    "q8_0_matmul_hc_expand tokens=5 cols=288 rows=19 n_hc=4 x=f32 w=u8 add=1 y=1",
    "q8_0_matmul_hc_expand tokens=5 cols=512 rows=24 n_hc=4 x=f32 w=i8 add=1 y=1 pad=256",
    NULL,
};

const check_family check_q8_0 = {
    .family = &ridge_family_q8_0,
    .cases = cases_q8_0,
    .oracle = oracle_q8_0,
    .fill = fill_q8_0,
    .suites = suites,
    .fault_problems = fault_problems,
};

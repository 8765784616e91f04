/* cases.c: the test cases of every op, and the suites that bench and tune run. Data, and the loops that spread it. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static const char *const suite_table[][2] = {
    {"quick", "swiglu_fwd rows=64 cols=1024 dtype=bf16"},
    {"quick", "swiglu_bwd rows=64 cols=1024 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=64 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=1024 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=2048 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=4096 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=11008 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=18944 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=28672 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=29568 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=53248 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=64 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=1024 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=2048 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=4096 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=11008 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=18944 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=28672 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=29568 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=53248 dtype=bf16"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=f16"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=f32"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 act=gelu_tanh"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 act=gelu_erf"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 act=relu2"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 round_gate=1"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 interleaved=1"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 fused=1"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=11009 dtype=bf16"},
    {"swiglu-options",
     "swiglu_fwd rows=8192 cols=14336 dtype=bf16 interleaved=1 row_scale=1 alpha=1.702 up_offset=1 limit=7"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=f16"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=f32"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 act=gelu_tanh"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 act=gelu_erf"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 round_gate_bwd=1"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 interleaved=1"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 fused=1"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 row_scale=1 drow=1"},
    {"quick", "quantize_fp8 rows=64 cols=1024 dtype=bf16 scale=row128"},
    {"quick", "quantize_fp8_dual rows=256 cols=1024 dtype=bf16"},
    {"quick", "swiglu_quantize rows=256 cols=1024 dtype=bf16"},
    {"quick", "gemm_fp8 m=16 n=512 k=1024"},
    {"quick", "gemm_fp8 m=256 n=512 k=512"},
    {"quick", "q8_0_quantize rows=64 cols=1024 dtype=f32"},
    {"quantize", "quantize_fp8 rows=8192 cols=4096 dtype=bf16 scale=row128"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=row128"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=blk128"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=row"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=tensor"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=tensor given=1 amax=1"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=f32 scale=row128"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=4096 dtype=bf16"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16 format=e5m2"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16 colsum=1"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=f32"},
    {"quantize", "quantize_fp8_dual rows=28672 cols=8192 dtype=bf16 form=blk_blk"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16 form=row_blk"},
    {"quantize", "swiglu_quantize rows=8192 cols=14336 dtype=bf16"},
    {"quantize", "swiglu_quantize rows=8192 cols=28672 dtype=bf16"},
    {"quantize", "q8_0_quantize rows=8192 cols=14336 dtype=bf16"},
    {"quantize", "q8_0_quantize rows=8192 cols=14336 dtype=f32"},
    {"quantize", "q8_0_repack rows=8192 cols=14336"},
    {"quantize", "q8_0_unpack rows=8192 cols=14336"},
    /* K -> rows with activations that arrive quantised; the last lines are one layer of DeepSeek-V4-Flash in order:
     * q_a and kv, q_b, head norm, output_a, output_b into the streams, norm, shared gate and up, shared down. */
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
    {"quick", "linear_ce_eval tokens=64 hidden=256 vocab=2048 dtype=bf16 target=i64"},
    {"quick", "linear_ce_train tokens=64 hidden=256 vocab=2048 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=4096 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=4096 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=4096 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=8192 hidden=2304 vocab=256000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=8192 hidden=2304 vocab=256000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=8192 hidden=2304 vocab=256000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=16384 hidden=2048 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=16384 hidden=2048 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=16384 hidden=2048 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=1024 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"multiply", "multiply rows=128256 cols=4096 x=f32 out=bf16"},
    {"multiply", "multiply rows=128256 cols=4096 x=f32 out=f32"},
    {"multiply", "multiply rows=8192 cols=4096 x=bf16 out=bf16"},
    {"linear_ce-cpu", "linear_ce_eval tokens=512 hidden=1024 vocab=16384 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "linear_ce_train tokens=512 hidden=1024 vocab=16384 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "linear_ce_backward tokens=512 hidden=1024 vocab=16384 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "ce_fwd tokens=1024 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "ce_bwd tokens=1024 vocab=32000 dtype=bf16 target=i64"},
    {NULL, NULL},
};

enum { LINES = (int)(sizeof suite_table / sizeof suite_table[0]) - 1 };

suite_line suite_at(int index)
{
    return index < LINES ? (suite_line){suite_table[index][0], suite_table[index][1], 0} : suite_gemm(index - LINES);
}

static void append(case_list *list, const test_case *c)
{
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 64;
        test_case *grown = realloc(list->at, (size_t)room * sizeof *grown);

        if (!grown)
            return;
        list->at = grown;
        list->room = room;
    }
    list->at[list->count++] = *c;
}

/* Parses the text and sets the rest; a wrong text is a bug of this table and ends the program. */
void cases_add(case_list *list, const ridge_op_row *op, const char *text, test_case layout)
{
    int align = 16, packed = 1;

    if (ridge_problem_parse(op, text, &layout.call, &align, &packed)) { /* not one case fewer, unnoticed */
        fprintf(stderr, "ridge: a case of this program is wrong: %s: %s\n", text, ridge_error());
        exit(1);
    }
    append(list, &layout);
}

static const char *const swiglu_acts[] = {"silu", "gelu_tanh", "gelu_erf", "relu2"};
static const char *const swiglu_dtypes[] = {"bf16", "f16", "f32"};

/* Shapes and layouts, in each dtype, plain SiLU. */
static void swiglu_shapes(const ridge_op_row *op, case_list *list, bool quick)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", {.fill = FILL_NORMAL}},
        {"rows=1 cols=7", {.fill = FILL_NORMAL}},
        {"rows=3 cols=8", {.fill = FILL_NORMAL, .shift = 1}},
        {"rows=2 cols=513", {.fill = FILL_EDGE}},
        {"rows=17 cols=127", {.fill = FILL_NORMAL, .slices = true}},
        {"rows=5 cols=2048", {.fill = FILL_NORMAL, .slices = true, .repeats = 1000}},
        {"rows=3 cols=4096", {.fill = FILL_EDGE, .pad = 8}},
        {"rows=3 cols=4100", {.fill = FILL_EDGE, .pad = 3}},
        {"rows=4 cols=1024", {.fill = FILL_NORMAL, .fused = true}},
        {"rows=4 cols=1031", {.fill = FILL_NORMAL, .fused = true}},
        {"rows=4 cols=1024", {.fill = FILL_EDGE, .alias = true}},
        {"rows=7 cols=1027", {.fill = FILL_EDGE, .alias = true, .pad = 5, .shift = 3}},
        {"rows=4 cols=520", {.fill = FILL_EDGE, .alias = true, .fused = true}},
        {"rows=3 cols=11009", {.fill = FILL_NORMAL}},
        {"rows=3 cols=14337", {.fill = FILL_NORMAL}},
        {"rows=2 cols=16384", {.fill = FILL_NORMAL}},
        {"rows=64 cols=14336", {.fill = FILL_NORMAL}},
        {"rows=300 cols=264", {.fill = FILL_NORMAL}},
    };
    char text[256];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int d = 0; d < 3; d++)
            for (int pair = 0; pair < 2; pair++) {
                if ((pair && shape[i].layout.fused) || (quick && (i + (size_t)d + (size_t)pair) % 3))
                    continue;
                snprintf(text, sizeof text, "%s dtype=%s interleaved=%d", shape[i].shape, swiglu_dtypes[d], pair);
                cases_add(list, op, text, shape[i].layout);
            }
}

/* Activations, options and flags; every 16-bit gate value. */
static void swiglu_options(const ridge_op_row *op, case_list *list, bool quick)
{
    static const char *const option[] = {
        "",
        "ROUND=1",
        "gate_mul=0.5 down_mul=1.5",
        "limit=2.5",
        "row_scale=1",
        "DROW",
        "limit=1.25 up_offset=1 gate_mul=-0.75 down_mul=3 row_scale=1 ROUND=1 DROW",
        "limit=7 up_offset=1 ALPHA",
    };
    static const test_case layout[] = {{.fill = FILL_EDGE}, {.fill = FILL_EVERY}, {.fill = FILL_NORMAL, .pad = 16}};
    bool backward = op->id == RIDGE_SWIGLU_BWD;
    char text[256], words[160];

    for (int act = 0; act < 4; act++)
        for (size_t i = 0; i < sizeof option / sizeof option[0]; i++)
            for (int d = 0; d < 3; d++)
                for (int pair = 0; pair < 2; pair++) {
                    size_t which = ((size_t)act + i + (size_t)d + (size_t)pair) % 3;
                    char *at;

                    if (quick && ((size_t)act * 5 + i * 3 + (size_t)d + (size_t)pair) % 7)
                        continue;
                    snprintf(words, sizeof words, "%s", option[i]);
                    if ((at = strstr(words, "ROUND=1")) != NULL) {
                        char rest[80];

                        snprintf(rest, sizeof rest, "%s", at + 7);
                        snprintf(at, sizeof words - (size_t)(at - words), "%s=1%s",
                                 backward ? "round_gate_bwd" : "round_gate", rest);
                    }
                    if ((at = strstr(words, "DROW")) != NULL)
                        snprintf(at, sizeof words - (size_t)(at - words), "%s", backward ? "drow=1" : "");
                    if ((at = strstr(words, "ALPHA")) != NULL)
                        snprintf(at, sizeof words - (size_t)(at - words), "%s", act ? "" : "alpha=1.702");
                    snprintf(text, sizeof text, "rows=%s dtype=%s act=%s interleaved=%d %s",
                             which == 1 && d < 2 ? "16 cols=4096" : "6 cols=1288", swiglu_dtypes[d], swiglu_acts[act],
                             pair, words);
                    cases_add(list, op, text, layout[which]);
                }
}

void cases_of(const ridge_op_row *op, case_level level, case_list *list)
{
    switch (op->id) {
    case RIDGE_SWIGLU_FWD:
    case RIDGE_SWIGLU_BWD:
        swiglu_shapes(op, list, level == CASES_QUICK);
        swiglu_options(op, list, level == CASES_QUICK);
        if (level == CASES_LARGE) {
            test_case large = {.fill = FILL_PERIOD};

            cases_add(list, op,
                      op->id == RIDGE_SWIGLU_FWD ? "rows=65600 cols=32768 dtype=bf16"
                                                 : "rows=16448 cols=131075 dtype=bf16",
                      large);
        }
        break;
    case RIDGE_QUANTIZE_FP8:
    case RIDGE_QUANTIZE_FP8_DUAL:
    case RIDGE_SWIGLU_QUANTIZE:
        cases_quantize(op, list, level);
        break;
    case RIDGE_Q8_0_QUANTIZE:
    case RIDGE_Q8_0_REPACK:
    case RIDGE_Q8_0_UNPACK:
    case RIDGE_Q8_0_QUANTIZE_ROWS:
        cases_q8_0(op, list, level);
        break;
    case RIDGE_GEMM_FP8:
        cases_gemm(op, list, level);
        break;
    case RIDGE_Q8_0_MATMUL:
    case RIDGE_Q8_0_PAIR:
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
    case RIDGE_Q8_0_MATMUL_HC_EXPAND:
    case RIDGE_RMS_NORM:
    case RIDGE_HEAD_RMS_NORM_ROPE_TAIL:
        cases_decode(op, list, level);
        break;
    case RIDGE_LINEAR_CE_EVAL:
    case RIDGE_LINEAR_CE_TRAIN:
    case RIDGE_LINEAR_CE_BACKWARD:
    case RIDGE_CE_FWD:
    case RIDGE_CE_BWD:
    case RIDGE_CE_COMBINE:
        cases_ce(op, list, level);
        break;
    case RIDGE_MULTIPLY:
        cases_multiply(op, list, level);
        break;
    default:
        break;
    }
}

void suite_missing(const char *verb, const char *name)
{
    const char *seen[64];
    int count = 0;

    fprintf(stderr, "ridge %s: there is no suite '%s', but:", verb, name);
    for (int i = 0; suite_at(i).suite; i++) {
        const char *suite = suite_at(i).suite;
        bool old = count == 64;

        for (int j = 0; j < count && !old; j++)
            old = strcmp(seen[j], suite) == 0;
        if (!old) {
            seen[count++] = suite;
            fprintf(stderr, " %s", suite);
        }
    }
    fprintf(stderr, "\n");
}

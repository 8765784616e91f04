/* teeth.c: does the test bite? Plants faults in copies of the kernel rows (check/faults.c) and
 * demands that test_one fails for every one, and passes without. */
#include <stdlib.h>
#include <string.h>

#include "check/faults.h"
#include "check/oracle.h"
#include "tools/args.h"

/* Cases, each row's the first of its op that it can run: ragged, with padded rows, so that a column too many lands in
 * the padding. */
static const char *const problems[] = {
    "swiglu_fwd rows=5 cols=264 dtype=bf16 row_scale=1 limit=0.5",
    "swiglu_fwd rows=5 cols=264 dtype=bf16 limit=0.5 pad=0",
    "swiglu_bwd rows=5 cols=264 dtype=bf16 row_scale=1 limit=0.5",
    "swiglu_bwd rows=5 cols=264 dtype=bf16 limit=0.5 pad=0",
    "quantize_fp8 rows=5 cols=264 dtype=bf16",
    "quantize_fp8 rows=5 cols=264 dtype=bf16 scale=row",
    "quantize_fp8 rows=5 cols=264 dtype=bf16 scale=tensor",
    "quantize_fp8_dual rows=133 cols=264 dtype=bf16",
    "swiglu_quantize rows=133 cols=264 dtype=bf16",
    "q8_0_quantize rows=5 cols=288 dtype=bf16",
    "q8_0_repack rows=5 cols=288",
    "q8_0_unpack rows=5 cols=288",
    "gemm_fp8 m=41 n=136 k=300 d=f32 scales=row128_row128 bias=1 accumulate=1",
    "gemm_fp8 m=41 n=136 k=304 d=f32 scales=row128_blk128 bias=1 accumulate=1 pad=16",
    "gemm_fp8 m=70 n=648 k=304 d=f32 scales=row128_row128 bias=1 accumulate=1 pad=16",
    "gemm_fp8 m=70 n=648 k=304 d=f32 scales=row128_blk128 bias=1 accumulate=1 pad=16",
    "gemm_fp8 m=70 n=648 k=304 d=bf16 scales=row128_row128 bias=bf16 accumulate=1 pad=16",
    "q8_0_quantize_rows rows=5 cols=288 dtype=bf16",
    "q8_0_matmul tokens=5 cols=288 rows=19 x=bf16 w=u8 out=bf16",
    "q8_0_matmul tokens=5 cols=512 rows=24 x=bf16 w=i8 out=bf16 pad=256",
    "q8_0_pair tokens=5 cols=288 rows0=19 rows1=9 x=f32 w=i8 out=f32",
    "q8_0_pair tokens=5 cols=512 rows0=24 rows1=8 x=f32 w=i8 out=f32 pad=256",
    "q8_0_gate_up_swiglu tokens=5 cols=288 rows=19 x=i8 w=i8 out=f32 token_scale=1 limit=10",
    "q8_0_gate_up_swiglu tokens=5 cols=512 rows=24 x=i8 w=i8 out=f32 token_scale=1 limit=10 pad=256",
    "q8_0_matmul_hc_expand tokens=5 cols=288 rows=19 n_hc=4 x=f32 w=u8 add=1 y=1",
    "q8_0_matmul_hc_expand tokens=5 cols=512 rows=24 n_hc=4 x=f32 w=i8 add=1 y=1 pad=256",
    "rms_norm rows=5 cols=264 x=bf16 w=bf16 out=bf16",
    "head_rms_norm_rope_tail tokens=5 heads=9 head_dim=8 n_rot=4 x=f32 w=f32 pos=i32 out=f32",
    "linear_ce_eval tokens=21 hidden=72 vocab=136 dtype=bf16 bias=1 class_weight=1 label_smoothing=0.2 "
    "lse_square_scale=0.05 softcap=6 temperature=0.8 token_loss=1 lse=1",
    "linear_ce_train tokens=21 hidden=72 vocab=136 dtype=f16 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 "
    "softcap=6 temperature=0.8 dbias=1",
    "linear_ce_backward tokens=21 hidden=72 vocab=136 dtype=bf16 class_weight=1 label_smoothing=0.2 "
    "lse_square_scale=0.05 softcap=6 temperature=0.8 reduction=none",
    "ce_fwd tokens=21 vocab=136 dtype=bf16 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 softcap=6",
    "ce_bwd tokens=21 vocab=136 dtype=bf16 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 softcap=6",
    "multiply rows=5 cols=264 x=f32 out=bf16",
    "ce_combine tokens=21 vocab=136 shards=3 sums=1 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05",
};

enum { PROBLEMS = (int)(sizeof problems / sizeof problems[0]), SEED = 3 };

static bool applies(int family, const ridge_kernel *kernel)
{
    const ridge_op_row *op = ridge_op_at(kernel->op);

    return family == ALL_OPS ||
           (family == EXACT_ROWS && ((op->contract & RIDGE_EXACT) || oracle_gemm_has_bits(kernel))) ||
           (family == GEMM_OPS && op->id == RIDGE_GEMM_FP8) ||
           (family == CE_OPS && op->id >= RIDGE_LINEAR_CE_EVAL && op->id <= RIDGE_CE_COMBINE) ||
           (family == LINEAR_CE_OPS && op->id >= RIDGE_LINEAR_CE_EVAL && op->id <= RIDGE_CE_BWD) ||
           (family == CE_LOSS_OPS &&
            (op->id == RIDGE_LINEAR_CE_EVAL || op->id == RIDGE_CE_FWD || op->id == RIDGE_CE_COMBINE)) ||
           (family == INVARIANT_OPS && (op->contract & RIDGE_INVARIANT)) ||
           (family == SWIGLU_OPS && (op->id == RIDGE_SWIGLU_FWD || op->id == RIDGE_SWIGLU_BWD));
}

/* The case of `text`, with what all cases have in common. */
static bool case_of(const char *text, const ridge_op_row *op, test_case *c)
{
    const int step = op->step[1];

    if (!case_parse(text, c))
        return false;
    c->fill = FILL_NORMAL;
    if (!strstr(text, " pad="))
        c->pad = step > 8 ? 2 * step : 8;
    c->slices = (op->contract & RIDGE_INVARIANT) != 0;
    c->repeats = 400;
    return true;
}

/* The first case that the row can run on the device. */
static bool find_case(const ridge_device *device, const ridge_kernel *kernel, test_case *c)
{
    const ridge_op_row *op = ridge_op_at(kernel->op);
    const size_t length = strlen(op->name);
    ridge_problem problem;
    ridge_call call;

    for (int i = 0; i < PROBLEMS; i++) {
        if (strncmp(problems[i], op->name, length) != 0 || problems[i][length] != ' ' || !case_of(problems[i], op, c))
            continue;
        if (case_problem(c, &call, &problem) && !ridge_why_not(device, kernel, &problem))
            return true;
    }
    return false;
}

typedef struct options {
    const char *device, *kernel;
} options;

static const struct argp_option option_table[] = {{"device", 'd', "SPEC", 0, "cpu, cuda:0, ... (default: cpu)", 0},
                                                  {"kernel", 'k', "PATTERN", 0, "only rows whose name matches", 0},
                                                  {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;

    if (key == 'd')
        o->device = arg;
    else if (key == 'k')
        o->kernel = arg;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

typedef struct tally {
    int caught, refused; /* copies of rows with a fault */
} tally;

/* One row: the case must pass without a fault and fail with each. Returns the number of things that went wrong. */
static int bite(const ridge_device *device, const ridge_kernel *kernel, const test_case *c, tally *t)
{
    test_row row = {.kernel = kernel};
    unsigned char *expected = NULL;
    char what[512], text[700] = "out of memory";
    int wrong = 0;
    image im;

    if (image_build(c, SEED, &im))
        expected = malloc(im.bytes);
    if (!expected || image_reference(&im, expected) || !test_one(&row, device, c, &im, expected, text, sizeof text)) {
        case_print(c, what, sizeof what);
        printf("FAIL %s without a fault: %s\n     ridge test %s --seed %d --kernel %s\n", kernel->name, text, what,
               SEED, kernel->name);
        wrong = 1;
    }
    for (const teeth_fault *fault = teeth_faults; fault->name && !wrong; fault++) {
        if ((!fault->eager && device->backend->graph_begin) || !applies(fault->family, kernel))
            continue;
        row.fault = fault->fault;
        teeth_refused = false;
        if (test_one(&row, device, c, &im, expected, text, sizeof text)) {
            printf("NOT CAUGHT: a copy of %s that %s\n", kernel->name, fault->name);
            wrong++;
        } else if (teeth_refused) {
            t->refused++;
            printf("SKIP a copy of %s that %s: %s\n", kernel->name, fault->name, text);
        } else {
            t->caught++;
        }
    }
    free(expected);
    image_free(&im);
    return wrong;
}

/* On the device, or as on a small one, where few tiles are many. */
static int bite_somewhere(const ridge_device *device, const ridge_kernel *kernel, tally *t)
{
    const bool belongs = device->arch >= kernel->arch_min && device->arch <= kernel->arch_max;
    ridge_device small = *device;
    test_case c;

    if (!belongs || ridge_kernel_backend(kernel) != device->backend_id)
        return 0;
    if (find_case(device, kernel, &c))
        return bite(device, kernel, &c, t);
    small.units = 4;
    if (device->backend_id == RIDGE_CUDA && find_case(&small, kernel, &c))
        return bite(&small, kernel, &c, t);
    printf("SKIP %s: no case that it can run\n", kernel->name);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp parser = {option_table, parse_option, "",  "Plants faults in copies of the rows.",
                                       NULL,         NULL,         NULL};
    options o = {.device = "cpu"};
    const ridge_kernel *kernel;
    ridge_device *device;
    tally t = {0};
    int wrong = 0, kinds = 0;

    args_parse(&parser, argc, argv, &o);
    device = device_open(o.device);
    if (!device || !device->backend) {
        if (device)
            fprintf(stderr, "teeth: a model device runs nothing\n");
        ridge_close(device);
        return 1;
    }
    for (int i = 0; (kernel = ridge_kernel_at(i)) != NULL; i++)
        if (name_matches(o.kernel, kernel->name))
            wrong += bite_somewhere(device, kernel, &t);
    while (teeth_faults[kinds].name)
        kinds++;
    printf("%d kinds of fault; %d copies of rows caught, %d not; %d could not be made\n", kinds, t.caught, wrong,
           t.refused);
    if (!t.caught && !wrong)
        fprintf(stderr, "teeth: no row%s%s was bitten\n", o.kernel ? " that matches " : "", o.kernel ? o.kernel : "");
    ridge_close(device);
    return wrong || !t.caught;
}

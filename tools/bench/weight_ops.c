/* weight_ops.c: the ops that `ridge bench --weights` runs, as a table: how each takes a weight, and which part of the
 * operands belongs to a range of the weight's rows, or of the tokens, so that large results are verified by parts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { BAND = 128, BAND_TOKENS = 4, WHOLE_MOST = 24 << 20 };
static const double WHOLE_FLOP = 1e9, MOST_FLOP = 8e9; /* of the C reference: about a second, and too long */

/* What belongs to a range of rows in an operand: the same rows or columns, or one for every 128 of them. */
typedef enum part { PART_ALL, PART_ROWS, PART_ROWS_128, PART_COLUMNS, PART_COLUMNS_128 } part;

struct weight_op {
    const char *problem; /* N x K is the weight */
    weight_use use;
    enum { AS_BF16, AS_BLOCKS, AS_PLANES, AS_FP8, AS_NOTHING } form;
    int arg;  /* the operand that the weight becomes; its scales become the next one */
    int step; /* K is a multiple of this */
    enum { BY_ROWS, BY_TOKENS, WHOLE } verified;
    part part[RIDGE_MAX_ARGS]; /* PART_ALL of an output: not compared by parts */
};

#define PART_PLANES(ARG) [ARG] = PART_ROWS, [ARG + 1] = PART_ROWS
#define GEMM_PARTS                                                                                                  \
    {                                                                                                               \
        [RIDGE_GEMM_FP8_B] = PART_ROWS, [RIDGE_GEMM_FP8_SCALE_B] = PART_ROWS_128, [RIDGE_GEMM_FP8_D] = PART_COLUMNS \
    }
#define Q8_0_PARTS                                                               \
    {                                                                            \
        PART_PLANES(RIDGE_Q8_0_MATMUL_W), [RIDGE_Q8_0_MATMUL_OUT] = PART_COLUMNS \
    }

static const weight_op op_table[] = {
    {"quantize_fp8 rows=N cols=K dtype=bf16 scale=blk128",
     USE_WEIGHT,
     AS_BF16,
     RIDGE_QUANTIZE_FP8_X,
     1,
     BY_ROWS,
     {[RIDGE_QUANTIZE_FP8_X] = PART_ROWS,
      [RIDGE_QUANTIZE_FP8_Q] = PART_ROWS,
      [RIDGE_QUANTIZE_FP8_SCALE] = PART_ROWS_128}},
    {"quantize_fp8_dual rows=N cols=K dtype=bf16 form=blk_blk",
     USE_WEIGHT,
     AS_BF16,
     RIDGE_QUANTIZE_FP8_DUAL_X,
     1,
     BY_ROWS,
     {[RIDGE_QUANTIZE_FP8_DUAL_X] = PART_ROWS,
      [RIDGE_QUANTIZE_FP8_DUAL_Q] = PART_ROWS,
      [RIDGE_QUANTIZE_FP8_DUAL_SCALE] = PART_ROWS_128,
      [RIDGE_QUANTIZE_FP8_DUAL_Q_T] = PART_COLUMNS,
      [RIDGE_QUANTIZE_FP8_DUAL_SCALE_T] = PART_COLUMNS_128}},
    {"gemm_fp8 m=1 n=N k=K a=e4m3 b=e4m3 d=bf16 scales=row128_blk128", USE_WEIGHT, AS_FP8, RIDGE_GEMM_FP8_B, 1, BY_ROWS,
     GEMM_PARTS},
    {"gemm_fp8 m=16 n=N k=K a=e4m3 b=e4m3 d=bf16 scales=row128_blk128", USE_WEIGHT, AS_FP8, RIDGE_GEMM_FP8_B, 1,
     BY_ROWS, GEMM_PARTS},
    {"gemm_fp8 m=512 n=N k=K a=e4m3 b=e4m3 d=bf16 scales=row128_blk128", USE_WEIGHT, AS_FP8, RIDGE_GEMM_FP8_B, 1,
     BY_ROWS, GEMM_PARTS},
    {"q8_0_quantize rows=N cols=K dtype=bf16",
     USE_WEIGHT,
     AS_BF16,
     RIDGE_Q8_0_QUANTIZE_X,
     32,
     BY_ROWS,
     {[RIDGE_Q8_0_QUANTIZE_X] = PART_ROWS, [RIDGE_Q8_0_QUANTIZE_BLOCKS] = PART_ROWS}},
    {"q8_0_repack rows=N cols=K",
     USE_WEIGHT,
     AS_BLOCKS,
     RIDGE_Q8_0_REPACK_BLOCKS,
     32,
     BY_ROWS,
     {[RIDGE_Q8_0_REPACK_BLOCKS] = PART_ROWS, PART_PLANES(RIDGE_Q8_0_REPACK_CODES)}},
    {"q8_0_unpack rows=N cols=K",
     USE_WEIGHT,
     AS_PLANES,
     RIDGE_Q8_0_REPACK_CODES,
     32,
     BY_ROWS,
     {[RIDGE_Q8_0_REPACK_BLOCKS] = PART_ROWS, PART_PLANES(RIDGE_Q8_0_REPACK_CODES)}},
    {"q8_0_matmul tokens=1 cols=K rows=N x=f32 w=i8 out=f32", USE_WEIGHT, AS_PLANES, RIDGE_Q8_0_MATMUL_W, 32, BY_ROWS,
     Q8_0_PARTS},
    {"q8_0_matmul tokens=8 cols=K rows=N x=f32 w=i8 out=f32", USE_WEIGHT, AS_PLANES, RIDGE_Q8_0_MATMUL_W, 32, BY_ROWS,
     Q8_0_PARTS},
    {"q8_0_pair tokens=1 cols=K rows0=N rows1=N x=f32 w=i8 out=f32",
     USE_GATE,
     AS_PLANES,
     RIDGE_Q8_0_PAIR_W0,
     32,
     BY_ROWS,
     {PART_PLANES(RIDGE_Q8_0_PAIR_W0),
      PART_PLANES(RIDGE_Q8_0_PAIR_W1), [RIDGE_Q8_0_PAIR_OUT0] = PART_COLUMNS, [RIDGE_Q8_0_PAIR_OUT1] = PART_COLUMNS}},
    {"q8_0_gate_up_swiglu tokens=1 cols=K rows=N x=f32 w=i8 out=f32",
     USE_GATE,
     AS_PLANES,
     RIDGE_Q8_0_GATE_UP_SWIGLU_GATE,
     32,
     BY_ROWS,
     {PART_PLANES(RIDGE_Q8_0_GATE_UP_SWIGLU_GATE),
      PART_PLANES(RIDGE_Q8_0_GATE_UP_SWIGLU_UP), [RIDGE_Q8_0_GATE_UP_SWIGLU_OUT] = PART_COLUMNS}},
    {"swiglu_fwd rows=512 cols=N dtype=bf16", USE_GATE, AS_NOTHING, 0, 1, WHOLE, {0}},
    {"swiglu_bwd rows=512 cols=N dtype=bf16", USE_GATE, AS_NOTHING, 0, 1, WHOLE, {0}},
    {"swiglu_quantize rows=512 cols=N dtype=bf16", USE_GATE, AS_NOTHING, 0, 1, WHOLE, {0}},
    {"linear_ce_eval tokens=512 hidden=K vocab=N dtype=bf16 reduction=none lse=1",
     USE_HEAD,
     AS_BF16,
     RIDGE_LINEAR_CE_W,
     1,
     BY_TOKENS,
     {[RIDGE_LINEAR_CE_X] = PART_ROWS,
      [RIDGE_LINEAR_CE_TARGET] = PART_COLUMNS,
      [RIDGE_LINEAR_CE_LOSS] = PART_COLUMNS,
      [RIDGE_LINEAR_CE_LSE] = PART_COLUMNS}},
    {"linear_ce_train tokens=16 hidden=K vocab=N dtype=bf16", USE_HEAD, AS_BF16, RIDGE_LINEAR_CE_W, 1, WHOLE, {0}},
};

const weight_op *weight_op_at(int index)
{
    return index < (int)(sizeof op_table / sizeof op_table[0]) ? &op_table[index] : NULL;
}

weight_use weight_op_use(const weight_op *op)
{
    return op->use;
}

/* The problem's text with n for N and k for K; tokens, if above 0, replaces the table's. */
static void expand(const weight_op *op, int64_t n, int64_t k, int64_t tokens, char *text, size_t size)
{
    size_t at = 0;

    for (const char *from = op->problem; *from && at + 24 < size; from++) {
        if (from > op->problem && from[-1] == '=' && (*from == 'N' || *from == 'K')) {
            at += (size_t)snprintf(text + at, size - at, "%" PRId64, *from == 'N' ? n : k);
        } else if (tokens && strncmp(from, "tokens=", 7) == 0) {
            at += (size_t)snprintf(text + at, size - at, "tokens=%" PRId64, tokens);
            from += strcspn(from, " ") - 1;
        } else {
            text[at++] = *from;
        }
    }
    text[at] = 0;
}

bool bench_on_cpu(const ridge_call *call)
{
    ridge_device *cpu;
    bool good = ridge_open("cpu", &cpu) == RIDGE_OK;

    if (!good)
        return false;
    good = ridge_run(cpu, call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(cpu);
    return good;
}

bool weight_planes(const weight *w, const image *im, int arg)
{
    const ridge_tensor planes = {im->host + im->offset[arg], RIDGE_I8,
                                 im->call.arg[arg].stride,   im->host + im->offset[arg + 1],
                                 RIDGE_SCALING_ROW32,        im->call.arg[arg + 1].stride};
    const ridge_call call = ridge_q8_0_repack(w->rows, w->cols, w->q8_0, planes);

    return bench_on_cpu(&call);
}

static bool place_weight(const weight_op *op, const weight *w, const weight *up, const image *im)
{
    unsigned char *to = im->host + im->offset[op->arg];
    ridge_call call;

    switch (op->form) {
    case AS_BF16:
        memcpy(to, w->bf16, (size_t)(w->rows * w->cols) * 2);
        return true;
    case AS_BLOCKS:
        memcpy(to, w->q8_0, (size_t)(w->rows * (w->cols / 32 * 34)));
        return true;
    case AS_PLANES:
        return weight_planes(w, im, op->arg) && (op->use != USE_GATE || weight_planes(up, im, op->arg + 2));
    case AS_FP8:
        call =
            ridge_quantize_fp8(w->rows, w->cols, ridge_matrix(w->bf16, RIDGE_BF16),
                               ridge_scaled(to, RIDGE_E4M3, im->host + im->offset[op->arg + 1], RIDGE_SCALING_BLK128));
        return bench_on_cpu(&call);
    default:
        return true;
    }
}

bool weight_op_case(const weight_op *op, const weight *w, test_case *c)
{
    char text[256];

    expand(op, w->rows, w->cols, 0, text, sizeof text);
    return w->cols % op->step == 0 && case_parse(text, c);
}

bool weight_op_build(const weight_op *op, const weight *w, const weight *up, uint64_t seed, const test_case *c,
                     image *im)
{
    return image_build(c, seed, im) && place_weight(op, w, up, im);
}

/* ----------------------------------------------------------------------------------------------------- verification */

/* Copies the part's elements of an operand from the image of the whole to that of the part. */
static void take(const image *im, const unsigned char *from, const image *band, unsigned char *to, int arg, part p,
                 int64_t begin)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const size_t size = ridge_dtype_size(im->call.arg[arg].dtype);
    const int64_t first = p == PART_ROWS_128 || p == PART_COLUMNS_128 ? begin / 128 : begin;
    const bool columns = p == PART_COLUMNS || p == PART_COLUMNS_128;
    int64_t stride = im->call.arg[arg].stride, band_stride = band->call.arg[arg].stride, rows, cols, all_rows, all_cols;

    op->extent(&band->call, arg, &rows, &cols);
    op->extent(&im->call, arg, &all_rows, &all_cols);
    stride = stride ? stride : all_cols;
    band_stride = band_stride ? band_stride : cols;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = p == PART_ALL ? r * stride : columns ? r * stride + first : (first + r) * stride;

        memcpy(to + band->offset[arg] + (size_t)(r * band_stride) * size, from + im->offset[arg] + (size_t)at * size,
               (size_t)cols * size);
    }
}

static bool verify_band(const weight_op *op, const image *im, const ridge_kernel *kernel, const unsigned char *got,
                        int64_t begin, image *band, char *text, size_t size)
{
    unsigned char *expected = malloc(band->bytes), *mine = malloc(band->bytes);
    bool good;

    for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++)
        if (im->length[arg] && !(ridge_operand_role(&im->call, arg) & RIDGE_OUT))
            take(im, im->host, band, band->host, arg, op->part[arg], begin);
    good = expected && mine && image_reference(band, expected) == RIDGE_OK;
    if (!good)
        snprintf(text, size, "the C reference: %s", expected && mine ? ridge_error() : "out of memory");
    if (good)
        memcpy(mine, expected, band->bytes);
    for (int arg = 0; arg < RIDGE_MAX_ARGS && good; arg++)
        if (im->length[arg] && ridge_operand_role(&im->call, arg) & RIDGE_OUT && op->part[arg])
            take(im, got, band, mine, arg, op->part[arg], begin);
    good = good && image_judge(band, kernel, expected, mine, text, size);
    free(expected);
    free(mine);
    return good;
}

/* Verifies rows (or tokens) [begin, begin + rows). */
static bool verify_part(const weight_op *op, const image *im, const ridge_kernel *kernel, const unsigned char *got,
                        int64_t n, int64_t k, int64_t begin, int64_t rows, char *text, size_t size)
{
    char problem[256], why[300];
    test_case c;
    image band = {0};
    bool good;

    if (op->verified == BY_TOKENS)
        expand(op, n, k, rows, problem, sizeof problem);
    else
        expand(op, rows, k, 0, problem, sizeof problem);
    good = case_parse(problem, &c) && image_build(&c, 1, &band);
    if (!good)
        snprintf(text, size, "out of memory");
    else if (!(good = verify_band(op, im, kernel, got, begin, &band, why, sizeof why)))
        snprintf(text, size, "%s %" PRId64 " to %" PRId64 ": %s", op->verified == BY_TOKENS ? "tokens" : "rows", begin,
                 begin + rows, why);
    image_free(&band);
    return good;
}

static bool verify_whole(const image *im, const ridge_kernel *kernel, const unsigned char *got, char *text, size_t size)
{
    unsigned char *expected = malloc(im->bytes);
    bool good = expected && image_reference(im, expected) == RIDGE_OK;

    if (!good)
        snprintf(text, size, "the C reference: %s", expected ? ridge_error() : "out of memory");
    good = good && image_judge(im, kernel, expected, got, text, size);
    free(expected);
    return good;
}

static double flop_of(const ridge_call *call)
{
    ridge_problem problem = {.op = call->op};

    memcpy(problem.dim, call->dim, sizeof problem.dim);
    return ridge_op_at(call->op)->flops(&problem);
}

bool weight_op_is_verifiable(const weight_op *op, const test_case *c)
{
    return op->verified != WHOLE || op->form == AS_NOTHING || flop_of(&c->call) <= MOST_FLOP;
}

int weight_op_images(const weight_op *op)
{
    return op->verified == BY_TOKENS ? 9 : 3;
}

bool weight_op_verify(const weight_op *op, const weight *w, const image *im, const ridge_kernel *kernel,
                      const unsigned char *got, char *text, size_t size)
{
    const int64_t band = op->verified == BY_TOKENS ? BAND_TOKENS : BAND;
    const int64_t all = op->verified == BY_TOKENS ? im->call.dim[0] : w->rows, last = (all - 1) / band * band;
    const int64_t begin[] = {0, last / 2 / band * band, last};
    bool good = true;

    if (op->verified == WHOLE || (w->rows * w->cols <= WHOLE_MOST && flop_of(&im->call) <= WHOLE_FLOP))
        return verify_whole(im, kernel, got, text, size);
    for (int i = 0; i < 3 && good; i++)
        good = verify_part(op, im, kernel, got, w->rows, w->cols, begin[i],
                           all - begin[i] < band ? all - begin[i] : band, text, size);
    return good;
}

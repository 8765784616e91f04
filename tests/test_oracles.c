/* test_oracles.c: an oracle demands NaN exactly where float64 has one. Of inputs with infinities and NaN it passes the
 * C reference's result, and fails it with any one NaN in it replaced by a number, or any one number by a NaN. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/family.h"

enum { SEED = 1, MOST = 600 /* elements of an output that are spoiled */ };

static const char *const problems[] = {
    "rms_norm rows=17 cols=40 x=bf16 w=bf16 out=f32",
    "rms_norm rows=9 cols=130 x=f32 out=bf16 eps=0",
    "head_rms_norm_rope_tail tokens=9 heads=2 head_dim=20 n_rot=8 x=f32 w=f32 out=bf16",
    "head_rms_norm_rope_tail tokens=9 heads=2 head_dim=20 n_rot=8 x=bf16 out=f32 rope_only=1",
    "add_rms_norm rows=17 cols=40 x=bf16 residual=bf16 w=bf16 out=bf16",
    "add_rms_norm rows=9 cols=130 x=f32 residual=f32 w=f32 out=e4m3",
    "add_rms_norm rows=9 cols=64 x=f16 residual=0 w=f16 out=i8",
    "rms_norm_bwd rows=17 cols=40 dout=bf16 x=bf16 w=bf16 dx=bf16 dw=f32 dsum=bf16",
    "rms_norm_bwd rows=9 cols=130 dout=f32 x=f32 w=f32 dx=f32 dw=f32",
    "rope tokens=9 heads=2 head_dim=20 n_rot=16 x=bf16 out=f16",
    "gemm_fp8 m=17 n=24 k=400 a=e4m3 b=e4m3 d=bf16 scales=row bias=1",
    "gemm_fp8 m=17 n=24 k=400 a=e5m2 b=e4m3 d=f32 scales=row128_row128 accumulate=1",
    "gemm_fp8 m=17 n=24 k=400 a=e4m3 b=e5m2 d=f16 scales=row128_blk128",
    "gemm_fp8 m=17 n=24 k=400 a=e4m3 b=e5m2 d=bf16 scales=row_tensor",
    "ce_fwd tokens=17 vocab=30 dtype=f32 reduction=none token_loss=1 lse=1 entropy=1 target_logit=1",
    "ce_fwd tokens=17 vocab=30 dtype=bf16 reduction=sum lse=1 label_smoothing=0.1",
    "ce_bwd tokens=17 vocab=30 dtype=f16 reduction=none",
    "linear_ce_eval tokens=17 hidden=24 vocab=30 dtype=f32 lse=1 reduction=none token_loss=1 entropy=1",
    "linear_ce_train tokens=17 hidden=24 vocab=30 dtype=bf16 dbias=1 lse=1",
    "linear_ce_backward tokens=17 hidden=24 vocab=30 dtype=f16 dbias=1 dw=f32 reduction=none",
};

/* A number where there was a NaN, a NaN where there was a number. */
static void spoil(unsigned char *at, uint32_t dtype)
{
    dtype_store(at, dtype, isnan(dtype_load(at, dtype)) ? 0.0f : NAN);
}

/* Spoils elements of one output, one after the other. */
static void spoil_each(const char *problem, const image *im, int arg, unsigned char *result, int *nans)
{
    const ridge_operand *operand = &im->call.arg[arg];
    const size_t size = ridge_dtype_size(operand->dtype);
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    for (int64_t i = 0; i < rows * cols; i += rows * cols / MOST + 1) {
        unsigned char *at = result + im->offset[arg] +
                            (size_t)(i / cols * (operand->stride ? operand->stride : cols) + i % cols) * size;
        unsigned char before[4];
        char text[400];
        double worst;

        memcpy(before, at, size);
        *nans += isnan(dtype_load(at, operand->dtype));
        spoil(at, operand->dtype);
        if (image_close(im, result, &worst, text, sizeof text))
            fail_msg("%s: %s[%lld,%lld] is %g and may be %g", problem, ridge_op_at(im->call.op)->arg[arg].name,
                     (long long)(i / cols), (long long)(i % cols), dtype_load(before, operand->dtype),
                     dtype_load(at, operand->dtype));
        memcpy(at, before, size);
    }
}

static void test_nan(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof problems / sizeof problems[0]; p++) {
        unsigned char *result;
        char text[400];
        double worst;
        int nans = 0;
        test_case c;
        image im;

        assert_true(case_parse(problems[p], &c));
        c.fill = FILL_SPECIAL;
        assert_true(image_build(&c, SEED, &im));
        result = aligned_alloc(256, (im.bytes + 255) / 256 * 256);
        assert_non_null(result);
        assert_int_equal(image_reference(&im, result), RIDGE_OK);
        if (!image_close(&im, result, &worst, text, sizeof text))
            fail_msg("%s: %s", problems[p], text);
        for (int arg = 0; arg < ridge_op_at(im.call.op)->args; arg++) {
            const uint32_t dtype = im.call.arg[arg].dtype;

            if (im.length[arg] && ridge_operand_role(&im.call, arg) & RIDGE_OUT &&
                (dtype == RIDGE_F32 || dtype == RIDGE_F16 || dtype == RIDGE_BF16))
                spoil_each(problems[p], &im, arg, result, &nans);
        }
        if (!nans)
            fail_msg("%s: no result is a NaN", problems[p]);
        free(result);
        image_free(&im);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nan)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_dimensions.c: dimensions that no memory holds are refused, and what computes strides of them overflows nowhere.
 */
#include "unit.h"
#include "src/internal.h"

static float operand[64];

/* Every pattern of dimensions of 2^40, its operands in one place, is refused; under UBSan: no extent overflows. */
TEST(absurd_dimensions)
{
    const int64_t most = INT64_C(1) << 40;
    ridge_bound bound;
    for (int id = 1, large = 0; id < RIDGE_OPS; large = (large + 1) % (1 << ridge_op_at(id)->dims), id += large == 0) {
        ridge_call call = {.struct_size = sizeof call, .op = (uint32_t)id};

        ridge_op_at(id)->defaults(&call);
        for (int arg = 0; arg < ridge_op_at(id)->args; arg++)
            ridge_set(&call, arg, (ridge_dtype)__builtin_ctz(ridge_op_at(id)->arg[arg].dtypes | 1u << 31), operand, 0);
        for (int d = 0; d < ridge_op_at(id)->dims; d++)
            call.dim[d] = large >> d & 1 ? most : 256;
        assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG);
    }
    assert_int_equal(ridge_ld_groups(INT64_MAX, 1024) | ridge_ld_groups(1, -1) | ridge_ld_groups(-1, 1), 0);
    assert_int_equal(ridge_ld_fp8(INT64_MAX) | ridge_ld_scale(-1) | ridge_ld_q8_0(INT64_MAX), 0);
    assert_int_equal(ridge_ld_fp8(most) & ridge_ld_scale(most) & ridge_ld_q8_0(most) & ridge_ld_groups(most, 1), most);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(absurd_dimensions)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

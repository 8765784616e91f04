/* test_cases.c: what the quick test cases of the driver reach: every row of the table, on a model of an architecture
 * that runs it, with random numbers, with parts of the rows where it is batch-invariant, and with a sum longer than its
 * pipeline. Rows of a backend that is not built in are not looked at. */
#include "unit.h"
#include "check/family.h"

/* Of one row. */
typedef struct reach {
    int cases, random, edge, slices; /* that it can run; with which fill; with parts of the rows */
    int64_t longest;                 /* sum of random numbers */
} reach;

/* The elements of a product's sum; 0: the op has none. */
static int64_t sum_of(const ridge_call *call)
{
    switch (call->op) {
    case RIDGE_GEMM_FP8:
    case RIDGE_GEMM_FP8_GROUPED:
        return call->dim[2];
    case RIDGE_LINEAR_CE_EVAL:
    case RIDGE_LINEAR_CE_TRAIN:
    case RIDGE_LINEAR_CE_BACKWARD:
    case RIDGE_Q8_0_MATMUL:
    case RIDGE_Q8_0_PAIR:
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
    case RIDGE_Q8_0_MATMUL_HC_EXPAND:
    case RIDGE_BLOCK_MATMUL:
    case RIDGE_BLOCK_PAIR:
    case RIDGE_BLOCK_GATE_UP_SWIGLU:
        return call->dim[1];
    case RIDGE_ATTENTION_PREFILL:
        return call->dim[4];
    default:
        return 0;
    }
}

/* More than the stages of any pipeline on Hopper: 14 of 128 codes, 5 of 64 numbers of 16 bits, of Q8_0 12 of 64 codes,
 * of block formats 6 of 128. */
static int64_t beyond_pipeline(const ridge_kernel *kernel)
{
    if (!strstr(kernel->name, ".wgmma") && !strstr(kernel->name, ".decode"))
        return 0;
    if (kernel->op >= RIDGE_Q8_0_MATMUL && kernel->op <= RIDGE_Q8_0_MATMUL_HC_EXPAND)
        return 13 * 64;
    if (kernel->op >= RIDGE_BLOCK_MATMUL && kernel->op <= RIDGE_BLOCK_GATE_UP_SWIGLU)
        return 7 * 128;
    if (strstr(kernel->name, ".wgmma_f32"))
        return 6 * 32; /* its stages have 32 columns, and there are four at most */
    return kernel->op == RIDGE_GEMM_FP8 || kernel->op == RIDGE_GEMM_FP8_GROUPED ? 15 * 128 : 6 * 64;
}

static reach reach_of(const ridge_device *device, const ridge_kernel *kernel, const case_list *list)
{
    reach r = {0};

    for (int i = 0; i < list->count; i++) {
        const test_case *c = &list->at[i];
        const ridge_device said = case_device(device, c);
        const bool random = c->fill == FILL_NORMAL || c->fill == FILL_UNIT;
        ridge_problem problem;
        ridge_call call;

        if ((c->gpu && device->backend_id == RIDGE_CPU) || !case_problem(c, &call, &problem) ||
            ridge_why_not(&said, kernel, &problem))
            continue;
        r.cases++;
        r.random += random;
        r.edge += c->fill == FILL_EDGE || c->fill == FILL_GROUPS || c->fill == FILL_EVERY;
        r.slices += c->slices;
        r.longest = random && sum_of(&call) > r.longest ? sum_of(&call) : r.longest;
    }
    return r;
}

/* Says what is missing. */
static bool enough(const ridge_kernel *kernel, reach r)
{
    const ridge_op_row *op = ridge_op_at(kernel->op);
    const bool slices = op->contract & RIDGE_INVARIANT;
    const bool good = r.cases >= 6 && r.random >= 2 && (!slices || r.slices >= 1) &&
                      r.longest >= beyond_pipeline(kernel) && (kernel->op != RIDGE_GEMM_FP8 || r.edge >= 1);

    if (!good)
        printf(
            "%s: %d cases, %d with random numbers, %d with special ones, %d with parts of the rows, longest sum %lld\n",
            kernel->name, r.cases, r.random, r.edge, r.slices, (long long)r.longest);
    return good;
}

/* A model that runs the row: of Hopper if it does, since there it is tested; of a CPU with every feature. */
static ridge_device *model_of(const ridge_kernel *kernel)
{
    const bool hopper = kernel->arch_min <= RIDGE_ARCH_SM90 && kernel->arch_max >= RIDGE_ARCH_SM90;
    const int arch = hopper ? RIDGE_ARCH_SM90 : kernel->arch_max < RIDGE_ARCHS ? kernel->arch_max : kernel->arch_min;
    ridge_device *device;
    char spec[32];

    snprintf(spec, sizeof spec, "model:%s", ridge_arch_table[arch].name);
    return ridge_open(spec, &device) == RIDGE_OK ? device : NULL;
}

TEST(every_row_has_quick_cases_of_every_kind)
{
    int wrong = 0;

    for (uint32_t id = 1; id < RIDGE_OPS; id++) {
        case_list list = {0};

        cases_of(ridge_op_at(id), CASES_QUICK, &list);
        for (int i = 0; ridge_kernel_at(i); i++) {
            const ridge_kernel *kernel = ridge_kernel_at(i);
            ridge_device *device;

            if (kernel->op != id)
                continue;
            device = model_of(kernel);
            assert_non_null(device);
            wrong += !enough(kernel, reach_of(device, kernel, &list));
            ridge_close(device);
        }
        free(list.at);
    }
    assert_int_equal(wrong, 0);
}

/* The longest predicted time of a row's cases where memory is so slow that nothing else counts, over that with the
 * chip's own memory; 1 for a cost that does not know it. */
static double slower_without_memory(const ridge_device *device, const ridge_kernel *kernel, const case_list *list)
{
    double most = 1;

    for (int i = 0; i < list->count; i++) {
        ridge_device said = case_device(device, &list->at[i]), slow;
        ridge_problem problem;
        ridge_call call;
        double ratio;

        if (!case_problem(&list->at[i], &call, &problem) || ridge_why_not(&said, kernel, &problem))
            continue;
        slow = said;
        slow.copy_gbps /= 1e6;
        ratio = kernel->cost(&slow, kernel, &problem) / kernel->cost(&said, kernel, &problem);
        most = ratio > most ? ratio : most;
    }
    return most;
}

/* Chips of one architecture differ in their memory most of all. */
TEST(every_cost_on_cuda_has_a_memory_term)
{
    int costs = 0, wrong = 0;

    for (uint32_t id = 1; id < RIDGE_OPS; id++) {
        case_list list = {0};

        cases_of(ridge_op_at(id), CASES_QUICK, &list);
        for (int i = 0; ridge_kernel_at(i); i++) {
            const ridge_kernel *kernel = ridge_kernel_at(i);
            ridge_device *device;

            if (kernel->op != id || !kernel->cost || ridge_kernel_backend(kernel) != RIDGE_CUDA)
                continue;
            device = model_of(kernel);
            assert_non_null(device);
            costs++;
            if (!(slower_without_memory(device, kernel, &list) > 100)) {
                printf("%s: its cost has no memory term\n", kernel->name);
                wrong++;
            }
            ridge_close(device);
        }
        free(list.at);
    }
    printf("%d costs\n", costs);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row_has_quick_cases_of_every_kind),
                                       cmocka_unit_test(every_cost_on_cuda_has_a_memory_term)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

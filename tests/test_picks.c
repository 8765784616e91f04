/* test_picks.c: which rows of gemm_fp8 are picked on the model devices: one arithmetic in a range of m, for every
 * layout; that of the chip; and none by a tuning file that has another. Needs a build with CUDA rows, and a GPU only to
 * run the rows of one arithmetic beside each other. */
#include <unistd.h>

#include "src/internal.h"
#include "unit.h"

typedef struct layout {
    const char *name;
    int64_t pad_a, pad_b, pad_d; /* elements added to the row strides; 0: packed */
    int shift;                   /* bytes from an aligned address of D */
} layout;

static const layout layouts[] = {
    {"packed", 0, 0, 0, 0},     {"D padded by 8", 0, 0, 8, 0},          {"D padded by 1", 0, 0, 1, 0},
    {"D off by 4", 0, 0, 0, 4}, {"A and B padded by 16", 16, 16, 0, 0}, {"A padded by 8", 8, 0, 0, 0},
};
static const int64_t shapes[][2] = {
    {4096, 4096}, {4100, 4096}, {4096, 4100}, {4096, 4104}, {128, 16384}, {14336, 4096}, {576, 7168},  {57344, 8192},
    {256, 256},   {64, 64},     {1, 2048},    {2112, 7168}, {8192, 96},   {32768, 512},  {4097, 2048}, {128256, 4096}};
static const struct {
    ridge_scaling a, b;
} scales[] = {{RIDGE_SCALING_TENSOR, RIDGE_SCALING_TENSOR},
              {RIDGE_SCALING_ROW, RIDGE_SCALING_ROW},
              {RIDGE_SCALING_ROW128, RIDGE_SCALING_BLK128},
              {RIDGE_SCALING_ROW128, RIDGE_SCALING_ROW128}};
static const ridge_dtype dtypes[] = {RIDGE_BF16, RIDGE_F32};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* m = 1, 2, 3, .. 24, then in steps of 1/12, and both sides of the range's border. */
static int64_t next_m(int64_t m)
{
    const int64_t next = m < 24 ? m + 1 : m + m / 12;

    return m < 64 && next > 64 ? 64 : m == 64 ? 65 : next;
}

/* The addresses are never read: the operands only have to lie apart. */
static ridge_call gemm(int64_t m, const int64_t *shape, size_t scale, ridge_dtype dtype, const layout *l)
{
    const int64_t n = shape[0], k = shape[1];
    char *at = (char *)((uintptr_t)1 << 50); /* every 2^44 bytes */
    ridge_tensor a = ridge_scaled(at, RIDGE_E4M3, at + ((uintptr_t)1 << 44), scales[scale].a);
    ridge_tensor b = ridge_scaled(at + ((uintptr_t)2 << 44), RIDGE_E4M3, at + ((uintptr_t)3 << 44), scales[scale].b);
    ridge_tensor d = ridge_matrix(at + ((uintptr_t)4 << 44) + l->shift, dtype);

    a.stride = l->pad_a ? k + l->pad_a : 0;
    b.stride = l->pad_b ? k + l->pad_b : 0;
    d.stride = l->pad_d ? n + l->pad_d : 0;
    return ridge_gemm_fp8(m, n, k, a, b, d);
}

static unsigned arithmetic_of(const char *name)
{
    return ridge_kernel_find(name, strlen(name))->contract & (RIDGE_FALLBACK | RIDGE_ARITHMETIC);
}

static bool has_cuda_rows(void)
{
    return ridge_kernel_find("cuda.gemm_fp8.decode", 20) != NULL;
}

/* One problem at every m: the rows of a range add alike; a CPU has one row. Returns the picks. */
static int walk(const ridge_device *device, const int64_t *shape, size_t scale, ridge_dtype dtype, const layout *l)
{
    const char *row = NULL;
    unsigned first = 0;
    int picks = 0;

    for (int64_t m = 1; m < 20000; m = next_m(m), picks++) {
        const ridge_call call = gemm(m, shape, scale, dtype, l);
        const char *name;

        if (ridge_pick(device, &call, SIZE_MAX, &name))
            fail_msg("%s: %s", device->name, ridge_error());
        if (m == 1 || m == 65)
            first = arithmetic_of(name);
        if (device->backend_id == RIDGE_CPU && m > 1)
            assert_string_equal(name, row);
        row = name;
        if (arithmetic_of(name) != first)
            fail_msg("%s, n=%d k=%d, %s, scales %d, dtype %d: at m=%d %s adds in another way than the rows for fewer",
                     device->name, (int)shape[0], (int)shape[1], l->name, (int)scale, (int)dtype, (int)m, name);
    }
    return picks;
}

TEST(one_arithmetic_in_a_range_of_m)
{
    ridge_backend_id backend;
    const char *name;
    int picks = 0;

    for (int chip = 0; (name = ridge_chip_name(chip, &backend)) != NULL; chip++) {
        char spec[64];
        ridge_device *device;

        if (backend == RIDGE_CUDA && !has_cuda_rows())
            continue;
        snprintf(spec, sizeof spec, "model:%s", name);
        assert_int_equal(ridge_open(spec, &device), RIDGE_OK);
        for (size_t l = 0; l < COUNT(layouts); l++)
            for (size_t s = 0; s < COUNT(shapes) * COUNT(scales) * COUNT(dtypes); s++)
                picks += walk(device, shapes[s % COUNT(shapes)], s / COUNT(shapes) % COUNT(scales),
                              dtypes[s / COUNT(shapes) / COUNT(scales)], &layouts[l]);
        ridge_close(device);
    }
    assert_true(picks >= (has_cuda_rows() ? 500000 : 100000));
}

/* Parts of a GPU, and more than any Hopper has: no tile runs at some m of a range alone. */
TEST(one_arithmetic_on_any_number_of_multiprocessors)
{
    static const int units[] = {1, 2, 3, 7, 16, 60, 78, 144, 161, 162, 200};
    ridge_device *device;

    if (!has_cuda_rows())
        skip();
    assert_int_equal(ridge_open("model:h200", &device), RIDGE_OK);
    for (size_t i = 0; i < COUNT(units); i++) {
        device->units = units[i];
        for (size_t s = 0; s < COUNT(shapes) * COUNT(scales); s++)
            walk(device, shapes[s % COUNT(shapes)], s / COUNT(shapes), RIDGE_BF16, &layouts[0]);
    }
    ridge_close(device);
}

/* Ops besides gemm_fp8 whose rows add in other orders; the first dimension is the batch. */
static const char *const batches[][2] = {
    {"divergence", "rows=%d cols=16384 dtype=f32 dlogits=bf16"},
    {"divergence", "rows=%d cols=32000 dtype=f32 dlogits=f32"},
    {"divergence", "rows=%d cols=65536 dtype=f32"},
    {"divergence", "rows=%d cols=128256 dtype=bf16 dlogits=bf16"},
    {"divergence", "rows=%d cols=128256 dtype=f32 dlogits=f32"},
    {"divergence", "rows=%d cols=256000 dtype=f32 dlogits=bf16 lse=1 teacher_lse=1 own=1"},
    {"attention_prefill", "tokens=%d heads=32 kv_heads=8 head_dim=128 positions=131072"},
    {"attention_prefill", "tokens=%d heads=8 kv_heads=8 head_dim=64 positions=64 window=16"},
    {"attention_prefill", "tokens=%d heads=64 kv_heads=1 head_dim=64 positions=1024 q=bf16 kv=bf16 out=bf16"},
    {"attention_prefill", "tokens=%d heads=8 kv_heads=1 head_dim=96 positions=8192"},
    {"moe_gate_up_swiglu", "tokens=%d cols=7168 rows=2048 experts=32 slots=8 x=e4m3 w=e4m3 out=bf16"},
    {"moe_gate_up_swiglu", "tokens=%d cols=416 rows=33 experts=256 slots=32 x=e4m3 w=e4m3"},
    {"moe_down", "tokens=%d cols=2048 rows=7168 experts=32 slots=8 x=e4m3 w=e4m3"},
    {"moe_down", "tokens=%d cols=96 rows=70001 experts=2 slots=32 x=e4m3 w=e4m3 n_hc=4"},
};

/* Returns 1, or 0 where no row runs it. */
static int walk_batches(const ridge_device *device, const char *const *batch)
{
    const ridge_op_row *op = ridge_op_find(batch[0], strlen(batch[0]));
    const char *first = NULL;

    for (int64_t n = 1; n < 20000 && n <= op->invariant_max; n = next_m(n)) {
        ridge_problem problem = {0};
        ridge_call call;
        const char *name;
        char text[160];

        snprintf(text, sizeof text, batch[1], (int)n);
        assert_int_equal(ridge_problem_parse(op, text, &call, &problem), RIDGE_OK);
        for (int arg = 0; arg < op->args; arg++)
            call.arg[arg].data = call.arg[arg].dtype == RIDGE_NONE ? NULL : (char *)((uintptr_t)(arg + 1) << 48);
        if (ridge_pick(device, &call, SIZE_MAX, &name)) /* tiles of attention_prefill that a chip has no room for */
            return 0;
        if (first && strcmp(first, name) != 0)
            fail_msg("%s, %d multiprocessors, %s %s: %s, not %s as for fewer", device->name, device->units, op->name,
                     text, name, first);
        first = name;
    }
    return 1;
}

TEST(one_row_whatever_the_batch)
{
    static const int units[] = {1, 7, 16, 60, 200};
    ridge_backend_id backend;
    const ridge_op_row *op;
    const char *name;
    int walked = 0;

    for (uint32_t id = RIDGE_OP_NONE + 1; (op = ridge_op_at(id)) != NULL; id++) {
        bool listed = op->id == RIDGE_GEMM_FP8;

        for (size_t i = 0; i < COUNT(batches); i++)
            listed |= strcmp(batches[i][0], op->name) == 0;
        if ((op->contract & (RIDGE_INVARIANT | RIDGE_EXACT)) == RIDGE_INVARIANT && !listed)
            fail_msg("%s: batch-invariant and not exact, but no test walks its batches", op->name);
    }
    for (int chip = 0; (name = ridge_chip_name(chip, &backend)) != NULL; chip++) {
        char spec[64];
        ridge_device *device;

        if (backend != RIDGE_CUDA || !has_cuda_rows())
            continue;
        snprintf(spec, sizeof spec, "model:%s", name);
        assert_int_equal(ridge_open(spec, &device), RIDGE_OK);
        for (size_t i = 0; i < COUNT(batches); i++)
            walked += walk_batches(device, batches[i]);
        for (size_t i = 0; i < COUNT(units) * COUNT(batches); i++) {
            device->units = units[i / COUNT(batches)];
            walked += walk_batches(device, batches[i % COUNT(batches)]);
        }
        ridge_close(device);
    }
    assert_true(walked >= (has_cuda_rows() ? 700 : 0));
}

/* A row of its own gets the kernel that it gets in a batch of the same strides. */
TEST(the_stride_of_a_single_row_counts)
{
    ridge_device *device;

    if (!has_cuda_rows())
        skip();
    assert_int_equal(ridge_open("model:h200", &device), RIDGE_OK);
    for (size_t l = 0; l < COUNT(layouts); l++) {
        const ridge_call one = gemm(1, shapes[0], 2, RIDGE_BF16, &layouts[l]);
        const ridge_call two = gemm(2, shapes[0], 2, RIDGE_BF16, &layouts[l]);
        const char *single, *batch;

        assert_int_equal(ridge_pick(device, &one, SIZE_MAX, &single), RIDGE_OK);
        assert_int_equal(ridge_pick(device, &two, SIZE_MAX, &batch), RIDGE_OK);
        assert_string_equal(single, batch);
    }
    ridge_close(device);
}

/* Hopper's rows write D element by element where they have to: its stride and address are no reason against them. */
TEST(hopper_rows_take_any_output)
{
    static const int64_t m[] = {1, 64, 512, 4096};
    ridge_device *device;
    const char *packed, *name;

    if (!has_cuda_rows())
        skip();
    assert_int_equal(ridge_open("model:h200", &device), RIDGE_OK);
    for (size_t i = 0; i < COUNT(m); i++)
        for (size_t l = 1; l < 4; l++) {
            const ridge_call call = gemm(m[i], shapes[0], 2, RIDGE_BF16, &layouts[l]);
            const ridge_call usual = gemm(m[i], shapes[0], 2, RIDGE_BF16, &layouts[0]);

            assert_int_equal(ridge_pick(device, &usual, SIZE_MAX, &packed), RIDGE_OK);
            assert_int_equal(ridge_pick(device, &call, SIZE_MAX, &name), RIDGE_OK);
            assert_string_equal(name, packed);
        }
    ridge_close(device);
}

/* The instruction where the chip has it (sm_89, sm_120), and f16 products where it is emulated. */
TEST(fp8_instruction_where_it_is_native)
{
    static const struct {
        const char *model, *row;
    } want[] = {{"rtx4090", ".mma_fp8."}, {"l40s", ".mma_fp8."}, {"rtx5090", ".mma_fp8."}, {"gb10", ".mma_fp8."},
                {"b200", ".mma_f16cvt."}, {"a100", ".mma_f16."}, {"h200", ".wgmma"},       {"h20", ".wgmma"}};

    if (!has_cuda_rows())
        skip();
    for (size_t i = 0; i < COUNT(want); i++) {
        const ridge_call call = gemm(4096, shapes[0], 2, RIDGE_BF16, &layouts[0]);
        ridge_device *device;
        const char *name;
        char spec[64];

        snprintf(spec, sizeof spec, "model:%s", want[i].model);
        assert_int_equal(ridge_open(spec, &device), RIDGE_OK);
        assert_int_equal(ridge_pick(device, &call, SIZE_MAX, &name), RIDGE_OK);
        if (!strstr(name, want[i].row))
            fail_msg("%s: %s, not %s", spec, name, want[i].row);
        ridge_close(device);
    }
}

/* No tile of 192 rows for 65 of them, where reading the weights takes longer than multiplying (docs/lessons.md). */
TEST(memory_counts_for_few_rows)
{
    static const char *const models[] = {"h200", "h100-sxm", "h100-pcie", "gh200"};
    static const int64_t large[2] = {57344, 8192};

    if (!has_cuda_rows())
        skip();
    for (size_t i = 0; i < COUNT(models); i++) {
        const ridge_call call = gemm(65, large, 2, RIDGE_BF16, &layouts[0]);
        ridge_device *device;
        const char *name;
        char spec[64];

        snprintf(spec, sizeof spec, "model:%s", models[i]);
        assert_int_equal(ridge_open(spec, &device), RIDGE_OK);
        assert_int_equal(ridge_pick(device, &call, SIZE_MAX, &name), RIDGE_OK);
        assert_null(strstr(name, "wgmma192x128"));
        ridge_close(device);
    }
}

/* Cross entropy of 16 bits that TMA can load never leaves Hopper's own rows where the tensor cores are whole. */
TEST(hopper_keeps_its_cross_entropy)
{
    static const char *const models[] = {"h200", "h100-sxm", "h100-pcie"};
    static const int64_t shape[][2] = {{1024, 32000}, {4096, 128256}, {512, 256000}, {8192, 151936}, {2048, 16000}};
    char *at = (char *)((uintptr_t)1 << 50);

    if (!has_cuda_rows())
        skip();
    for (size_t i = 0; i < COUNT(models) * COUNT(shape); i++) {
        const int64_t *s = shape[i / COUNT(models)];
        ridge_device *device;
        char spec[64];

        snprintf(spec, sizeof spec, "model:%s", models[i % COUNT(models)]);
        assert_int_equal(ridge_open(spec, &device), RIDGE_OK);
        for (int64_t tokens = 1; tokens < 70000; tokens *= 2) {
            const ridge_tensor x = ridge_matrix(at, RIDGE_BF16),
                               w = ridge_matrix(at + ((uintptr_t)1 << 44), RIDGE_BF16);
            const ridge_call call = ridge_linear_ce_train(
                tokens, s[0], s[1], x, w, ridge_matrix(at + ((uintptr_t)2 << 44), RIDGE_I64),
                (float *)(at + ((uintptr_t)3 << 44)), ridge_matrix(at + ((uintptr_t)4 << 44), RIDGE_BF16),
                ridge_matrix(at + ((uintptr_t)5 << 44), RIDGE_F32));
            const char *name;

            assert_int_equal(ridge_pick(device, &call, SIZE_MAX, &name), RIDGE_OK);
            if (!strstr(name, ".wgmma"))
                fail_msg("%s, %d tokens, %d, %d: %s", spec, (int)tokens, (int)s[0], (int)s[1], name);
        }
        ridge_close(device);
    }
}

/* A line of a tuning file decides between rows of one arithmetic, not between two. */
TEST(tuning_files_do_not_mix_arithmetic)
{
    static const char text[] = "gemm_fp8 m=100 n=4096 k=4096\tcuda.gemm_fp8.mma_f16cvt.128x96\t1\n"
                               "gemm_fp8 m=200 n=4096 k=4096\tcuda.gemm_fp8.mma_fp8.128x64\t1\n";
    static const struct {
        const char *model;
        int m;
        bool followed;
    } want[] = {{"model:b200", 100, true},    {"model:b200", 200, false}, {"model:rtx4090", 100, false},
                {"model:rtx4090", 200, true}, {"model:h200", 100, false}, {"model:h200", 200, false}};
    char file[] = "/tmp/ridge_test_XXXXXX";
    const int to = mkstemp(file);

    if (!has_cuda_rows())
        skip();
    assert_true(to >= 0 && write(to, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    close(to);
    setenv("RIDGE_TUNED", file, 1);
    for (size_t i = 0; i < COUNT(want); i++) {
        const ridge_call call = gemm(want[i].m, shapes[0], 2, RIDGE_BF16, &layouts[0]);
        ridge_device *device;
        const char *name;

        assert_int_equal(ridge_open(want[i].model, &device), RIDGE_OK);
        assert_int_equal(ridge_pick(device, &call, SIZE_MAX, &name), RIDGE_OK);
        assert_int_equal(strstr(text, name) != NULL && ridge_kernel_find(name, strlen(name)) &&
                             strcmp(name + 14, want[i].m == 100 ? "mma_f16cvt.128x96" : "mma_fp8.128x64") == 0,
                         want[i].followed);
        ridge_close(device);
    }
    unsetenv("RIDGE_TUNED");
    remove(file);
}

/* ------------------------------------------------------------------------------------- on a GPU, where there is one */

typedef struct gpu {
    ridge_device *device;
    char *memory; /* a, b, their scales, d, the workspace: every 2^24 bytes */
} gpu;

enum { PART = 1 << 24, PARTS = 6, K = 1040 };

/* Codes of any size, no NaN, and scales around 1 that are no powers of two. */
static void fill_gpu(const gpu *g)
{
    unsigned char *codes = malloc(PART);
    float *scale = malloc(PART);
    uint32_t state = 7;

    assert_true(codes && scale);
    for (int part = 0; part < 4; part++) {
        for (int i = 0; i < PART; i++, state = state * 1664525 + 1013904223)
            codes[i] = (unsigned char)(state >> 24 & 0x80 | (state >> 16 & 0xff) % 0x7f);
        for (int i = 0; i < PART / 4; i++, state = state * 1664525 + 1013904223)
            scale[i] = 0.25f + (float)(state >> 8) * 0x1p-23f;
        assert_int_equal(g->device->backend->upload(g->device, g->memory + (size_t)part * PART,
                                                    part < 2 ? (void *)codes : (void *)scale, PART),
                         RIDGE_OK);
    }
    free(codes);
    free(scale);
}

/* Runs the problem by every row that can; rows of one number agree in every bit. Returns the comparisons. */
static int compare_rows(const gpu *g, int64_t m, int64_t n, size_t scale, ridge_dtype dtype)
{
    const ridge_backend *backend = g->device->backend;
    const size_t bytes = (size_t)(m * n) * (dtype == RIDGE_F32 ? 4 : 2);
    ridge_call call =
        ridge_gemm_fp8(m, n, K, ridge_scaled(g->memory, RIDGE_E4M3, g->memory + 2 * PART, scales[scale].a),
                       ridge_scaled(g->memory + PART, RIDGE_E4M3, g->memory + 3 * PART, scales[scale].b),
                       ridge_matrix(g->memory + 4 * PART, dtype));
    unsigned char *first[8] = {0}, *got = malloc(bytes); /* by RIDGE_FALLBACK and RIDGE_ARITHMETIC */
    const ridge_kernel *row;
    int compared = 0;
    ridge_bound bound;

    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    for (int i = 0; (row = ridge_kernel_at(i)) != NULL; i++) {
        const unsigned kind =
            (row->contract & RIDGE_ARITHMETIC) / RIDGE_ARITHMETIC_1 * 2 + ((row->contract & RIDGE_FALLBACK) != 0);

        if (row->op != RIDGE_GEMM_FP8 || ridge_kernel_backend(row) != RIDGE_CUDA ||
            ridge_why_not(g->device, row, &bound.problem))
            continue;
        call.kernel = row->name;
        assert_int_equal(ridge_run(g->device, &call, g->memory + 5 * PART, PART, NULL), RIDGE_OK);
        assert_int_equal(backend->download(g->device, got, g->memory + 4 * PART, bytes), RIDGE_OK);
        if (first[kind] && memcmp(first[kind], got, bytes) != 0)
            fail_msg("%s gives other bits than rows of its arithmetic: m=%d, n=%d, scales %d, dtype %d", row->name,
                     (int)m, (int)n, (int)scale, (int)dtype);
        compared += first[kind] != NULL;
        if (!first[kind]) {
            first[kind] = got;
            got = malloc(bytes);
        }
        assert_non_null(got);
    }
    for (int kind = 0; kind < 8; kind++)
        free(first[kind]);
    free(got);
    return compared;
}

TEST(rows_of_one_arithmetic_give_the_same_bits)
{
    static const int64_t m[] = {1, 16, 40, 64, 65, 200, 700}, n[] = {392, 4360}; /* few tiles, and many */
    int compared = 0;
    gpu g;

    if (ridge_open("cuda", &g.device))
        skip();
    assert_int_equal(g.device->backend->alloc(g.device, (size_t)PARTS * PART, (void **)&g.memory), RIDGE_OK);
    fill_gpu(&g);
    for (size_t i = 0; i < COUNT(m) * COUNT(scales) * COUNT(dtypes) * COUNT(n); i++)
        compared += compare_rows(&g, m[i % COUNT(m)], n[i / COUNT(m) / COUNT(scales) / COUNT(dtypes)],
                                 i / COUNT(m) % COUNT(scales), dtypes[i / COUNT(m) / COUNT(scales) % COUNT(dtypes)]);
    printf("%d results compared\n", compared);
    assert_true(compared >= 100);
    g.device->backend->release(g.device, g.memory);
    ridge_close(g.device);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(one_arithmetic_in_a_range_of_m),
                                              cmocka_unit_test(one_arithmetic_on_any_number_of_multiprocessors),
                                              cmocka_unit_test(one_row_whatever_the_batch),
                                              cmocka_unit_test(the_stride_of_a_single_row_counts),
                                              cmocka_unit_test(hopper_rows_take_any_output),
                                              cmocka_unit_test(fp8_instruction_where_it_is_native),
                                              cmocka_unit_test(memory_counts_for_few_rows),
                                              cmocka_unit_test(hopper_keeps_its_cross_entropy),
                                              cmocka_unit_test(tuning_files_do_not_mix_arithmetic),
                                              cmocka_unit_test(rows_of_one_arithmetic_give_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

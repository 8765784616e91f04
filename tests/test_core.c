/* test_core.c: what the table driver cannot reach: opening devices, pins, picks, workspace, text, and
 * that a call allocates nothing. */
#include <locale.h>
#include <math.h>
#include <unistd.h>

#include "unit.h"
#include "cpu/num.h"
#include "src/internal.h"

/* Counts allocations of the whole program while armed. A sanitizer brings its own malloc, which stays. */
static int armed, allocations;
#ifndef RIDGE_SANITIZED
extern void *__libc_malloc(size_t size);
void *malloc(size_t size)
{
    allocations += armed;
    return __libc_malloc(size);
}
#endif

static float gate[64], up[64], out[64];

static ridge_call small(void)
{
    return ridge_swiglu_fwd(1, 64, RIDGE_F32, gate, up, out);
}

TEST(opening)
{
    /* clang-format off */
    static const char *const wrong[] = {
        "tpu", "cpu:", "cpu:neon", "cuda:", "cuda:x", "cuda:999999", "model:", "model:sm99", "cuda:99", "cpu/1",
        "model:sm90/", "model:sm90/0", "model:sm90/133", "model:sm90/x", "/1", "model:sm9/9", "model:sm90/-1",
        "model:sm90/1/1", "model:sm90/999999"};
    /* clang-format on */
    ridge_device *device = (void *)1;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int status = (int)ridge_open(wrong[i], &device);
        if (strcmp(wrong[i], "cpu:") == 0 && status == RIDGE_OK) { /* no level is the best level */
            ridge_close(device);
            continue;
        }
        assert_int_not_equal(status, RIDGE_OK);
        assert_null(device);
        assert_true(ridge_error()[0] != 0);
    }
    assert_int_equal(ridge_open("cpu", NULL), RIDGE_ERR_ARG);
    ridge_close(NULL);
}

TEST(query)
{
    ridge_device_info info = {.struct_size = sizeof info};
    ridge_device *device;

    assert_int_equal(ridge_open("model:sm90", &device), RIDGE_OK);
    assert_int_equal(ridge_device_query(device, &info), RIDGE_OK);
    assert_string_equal(info.arch, "sm90");
    assert_string_equal(info.backend, "cuda");
    assert_int_equal(info.units, 132);
    assert_true(info.memory_bytes == 0); /* of a model: not known */
    ridge_close(device);
    assert_int_equal(ridge_open("model:sm90/124", &device), RIDGE_OK); /* a part of its multiprocessors */
    assert_int_equal(ridge_device_query(device, &info), RIDGE_OK);
    assert_int_equal(info.units, 124);
    info.struct_size = 3;
    assert_int_equal(ridge_device_query(device, &info), RIDGE_ERR_ARG);
    assert_int_equal(ridge_device_query(NULL, &info), RIDGE_ERR_ARG);
    ridge_close(device);
    info.struct_size = sizeof info;
    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    assert_int_equal(ridge_device_query(device, &info), RIDGE_OK);
    assert_true(info.memory_bytes > 1 << 20);
    ridge_close(device);
}

/* Every code of e4m3 and e5m2, infinity and NaN too. */
TEST(fp8_codes)
{
    for (int code = 0; code < 256; code++)
        for (int e5m2 = 0; e5m2 < 2; e5m2++) {
            const int fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, magnitude = code & 0x7f;
            const int exponent = magnitude >> fraction, low = magnitude & ((1 << fraction) - 1);
            const float got = ridge_f32_from_fp8((uint8_t)code, e5m2);
            double want =
                exponent ? ldexp((1 << fraction) + low, exponent - bias - fraction) : ldexp(low, 1 - bias - fraction);

            if (e5m2 && exponent == 31)
                want = low ? NAN : INFINITY;
            if (!e5m2 && magnitude == 0x7f)
                want = NAN;
            if (isnan(want))
                assert_true(isnan(got));
            else
                assert_true((double)got == (code & 0x80 ? -want : want) && !signbit(got) == !(code & 0x80));
        }
}

/* Tables of scales of a matrix of 300 x 200. */
TEST(scale_tables)
{
    static const struct {
        uint32_t mode;
        int64_t rows, cols;
    } table[] = {{RIDGE_SCALE_TENSOR, 1, 1},
                 {RIDGE_SCALE_ROW, 1, 300},
                 {RIDGE_SCALE_ROW128, 2, 300},
                 {RIDGE_SCALE_BLK128, 3, 2}};

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int64_t rows, cols;

        ridge_scale_extent(table[i].mode, 300, 200, &rows, &cols);
        assert_int_equal(rows, table[i].rows);
        assert_int_equal(cols, table[i].cols);
    }
}

TEST(model_launches_nothing)
{
    ridge_device *device;
    ridge_call call = small();
    const char *kernel = NULL;

    assert_int_equal(ridge_open("model:avx2", &device), RIDGE_OK);
    out[0] = 5;
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_ERR_DEVICE);
    assert_true(out[0] == 5);
    assert_int_equal(ridge_pick(device, &call, 0, &kernel), RIDGE_OK);
    assert_non_null(kernel);
    ridge_close(device);
}

/* Of a CPU and a model; tests/cuda_graph.c has a GPU's. */
TEST(devices_without_graphs)
{
    static const char *const spec[] = {"cpu", "model:sm90"};
    ridge_device *device;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(ridge_open(spec[i], &device), RIDGE_OK);
        assert_int_equal(ridge_order_graph(device, &device), RIDGE_ERR_UNSUPPORTED);
        assert_non_null(strstr(ridge_error(), "ridge_order_graph: device "));
        assert_non_null(strstr(ridge_error(), " has no CUDA graphs"));
        assert_int_equal(ridge_order_graph(device, NULL), RIDGE_ERR_ARG);
        assert_string_equal(ridge_error(), "ridge_order_graph: graph is NULL");
        ridge_close(device);
    }
    assert_int_equal(ridge_order_graph(NULL, &device), RIDGE_ERR_ARG);
    assert_string_equal(ridge_error(), "ridge_order_graph: device is NULL");
}

TEST(pins)
{
    ridge_device *device;
    ridge_call call = small();
    const char *kernel;

    setenv("RIDGE_KERNEL", "swiglu_fwd=cpu.swiglu_fwd.c,swiglu_bwd=cpu.swiglu_bwd.c", 1);
    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    unsetenv("RIDGE_KERNEL");
    assert_int_equal(ridge_pick(device, &call, 0, &kernel), RIDGE_OK);
    assert_string_equal(kernel, "cpu.swiglu_fwd.c");
    call.kernel = "cpu.swiglu_bwd.c"; /* of another op */
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_ERR_ARG);
    ridge_close(device);
    assert_int_equal(ridge_open("model:sm90", &device), RIDGE_OK);
    call.kernel = "cpu.swiglu_fwd.c"; /* of another backend: valid, but it cannot run here */
    assert_int_equal(ridge_pick(device, &call, 0, &kernel), RIDGE_ERR_UNSUPPORTED);
    assert_non_null(strstr(ridge_error(), "another backend"));
    ridge_close(device);
}

/* Problem text has a point where the program's language has a comma. */
TEST(decimal_comma)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "es_ES.UTF-8", "pt_BR.UTF-8"};
    const ridge_op_row *op = ridge_op_at(RIDGE_SWIGLU_FWD);
    ridge_call call;
    char text[200];
    ridge_problem problem;
    int found = 0;
    ridge_status status;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]) != NULL;
    if (!found)
        skip();
    status = ridge_problem_parse(op, "rows=1 cols=8 alpha=1.5", &call, &problem);
    ridge_problem_print(&call, NULL, text, sizeof text);
    snprintf(text + strlen(text), sizeof text - strlen(text), " %.1f", 0.5); /* the program's own is as it was */
    setlocale(LC_NUMERIC, "C");
    assert_int_equal(status, RIDGE_OK);
    assert_string_equal(text, "swiglu_fwd rows=1 cols=8 dtype=bf16 alpha=1.5 0,5");
}

/* Of tokens with equal logits top_k leaves the first ones, and top_p the first of those. */
TEST(sample_of_equal_logits)
{
    enum { VOCAB = 1000, ROWS = 64, TOP_K = 400 };
    static float logits[ROWS * VOCAB]; /* zeros */
    int64_t seed[ROWS], counter[ROWS];
    int32_t token[ROWS], most = 0;
    ridge_call call = ridge_sample(ROWS, VOCAB, 0, ridge_matrix(logits, RIDGE_F32), seed, counter, (ridge_tensor){0},
                                   ridge_matrix(token, RIDGE_I32));
    ridge_device *device;

    for (int i = 0; i < ROWS; i++)
        seed[i] = i, counter[i] = 7;
    call.opt.sample.top_k = TOP_K;
    call.opt.sample.top_p = 0.5f;
    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_OK);
    for (int i = 0; i < ROWS; i++)
        most = token[i] > most ? token[i] : most;
    assert_in_range(most, TOP_K / 4, TOP_K / 2 - 1);
    ridge_close(device);
}

/* A cheaper row that is a fallback is passed over, and the reason says so. */
static double cost_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)problem;
    return kernel->contract & RIDGE_FALLBACK ? 1 : 2;
}

TEST(fallbacks)
{
    ridge_kernel row[2] = {{.name = "late", .op = RIDGE_SWIGLU_FWD, .contract = RIDGE_FALLBACK, .cost = cost_of},
                           {.name = "usual", .op = RIDGE_SWIGLU_FWD, .cost = cost_of}};
    const ridge_kernel *list[2] = {&row[0], &row[1]}, *picked;
    ridge_device *device;
    ridge_call call = small();
    ridge_bound bound;
    const char *because;

    assert_int_equal(ridge_open("cpu:c", &device), RIDGE_OK);
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    free((void *)device->row);
    device->row = list;
    device->first[RIDGE_SWIGLU_FWD] = 0;
    device->first[RIDGE_SWIGLU_FWD + 1] = 2;
    assert_int_equal(ridge_choose(device, call.kernel, &bound.problem, 0, &picked, &because), RIDGE_OK);
    assert_ptr_equal(picked, &row[1]);
    assert_string_equal(because, "lowest cost of the rows of its arithmetic, one for every m of a range");
    row[1].contract = RIDGE_FALLBACK;
    assert_int_equal(ridge_choose(device, call.kernel, &bound.problem, 0, &picked, &because), RIDGE_OK);
    assert_string_equal(because, "lowest cost");
    device->row = NULL;
    ridge_close(device);
}

/* Two rows of other arithmetic whose costs cross at 4000 rows: one of them for all numbers of rows. */
static double crossing_cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device;
    return kernel->contract & RIDGE_ARITHMETIC ? 4000 : (double)problem->dim[0];
}

TEST(one_arithmetic_for_all_rows)
{
    ridge_kernel row[3] = {
        {.name = "few", .op = RIDGE_SWIGLU_FWD, .cost = crossing_cost},
        {.name = "many", .op = RIDGE_SWIGLU_FWD, .contract = RIDGE_ARITHMETIC_1, .cost = crossing_cost},
        {.name = "late", .op = RIDGE_SWIGLU_FWD, .contract = RIDGE_ARITHMETIC_2 | RIDGE_FALLBACK, .cost = cost_of}};
    const ridge_kernel *list[3] = {&row[0], &row[1], &row[2]}, *picked;
    ridge_device *device;
    ridge_call call = small();
    ridge_bound bound;
    const char *because;

    assert_int_equal(ridge_open("cpu:c", &device), RIDGE_OK);
    free((void *)device->row);
    device->row = list;
    device->first[RIDGE_SWIGLU_FWD] = 0;
    device->first[RIDGE_SWIGLU_FWD + 1] = 3;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    for (int64_t rows = 1; rows < 100000; rows = 2 * rows + 1) {
        bound.problem.dim[0] = rows;
        assert_int_equal(ridge_choose(device, NULL, &bound.problem, 0, &picked, &because), RIDGE_OK);
        assert_ptr_equal(picked, &row[1]);
    }
    row[1].contract = RIDGE_FALLBACK; /* then it is no rival of the first */
    assert_int_equal(ridge_choose(device, NULL, &bound.problem, 0, &picked, &because), RIDGE_OK);
    assert_ptr_equal(picked, &row[0]);
    device->row = NULL;
    ridge_close(device);
}

/* The stride that a call states for a single row is as good as one for several; and outputs do not count as inputs. */
TEST(alignment_classes)
{
    static _Alignas(16) float x[2][40], y[40], z[40];
    ridge_call call = ridge_swiglu_fwd(1, 16, RIDGE_F32, x, y, z);
    ridge_bound bound;

    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    assert_int_equal(bound.problem.align, 4);
    assert_int_equal(bound.problem.packed, 1);
    call.arg[RIDGE_SWIGLU_FWD_OUT].stride = 17;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    assert_int_equal(bound.problem.align, 2);
    assert_int_equal(bound.problem.inputs_align, 4);
    assert_int_equal(bound.problem.packed, 0);
    call.arg[RIDGE_SWIGLU_FWD_OUT].stride = 0;
    call.arg[RIDGE_SWIGLU_FWD_GATE].stride = 18;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    assert_int_equal(bound.problem.align, 3);
    assert_int_equal(bound.problem.inputs_align, 3);
}

/* Text names the alignment of the inputs where it is another, and reads it back. */
TEST(alignment_text)
{
    static _Alignas(16) float x[40], y[40], z[40];
    ridge_call call = ridge_swiglu_fwd(2, 16, RIDGE_F32, x, y, z), again;
    ridge_problem problem;
    ridge_bound bound;
    char text[400];

    call.arg[RIDGE_SWIGLU_FWD_OUT].stride = 17;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    ridge_problem_print(&call, &bound.problem, text, sizeof text);
    assert_non_null(strstr(text, " align=4 inputs_align=16 packed=0"));
    assert_int_equal(ridge_problem_parse(bound.op, text + 10, &again, &problem), RIDGE_OK);
    assert_int_equal(problem.align, 2);
    assert_int_equal(problem.inputs_align, 4);
    assert_int_equal(problem.packed, 0);
    assert_int_equal(ridge_problem_parse(bound.op, "rows=1 cols=1 align=8", &again, &problem), RIDGE_OK);
    assert_int_equal(problem.inputs_align, 3);
    assert_int_equal(ridge_problem_parse(bound.op, "rows=1 cols=1 inputs_align=3", &again, &problem), RIDGE_ERR_ARG);
}

TEST(workspace)
{
    ridge_device *device;
    ridge_call call = small();
    size_t bytes = 77;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    assert_int_equal(ridge_workspace_bytes(device, &call, &bytes), RIDGE_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(ridge_workspace_bytes(device, &call, NULL), RIDGE_ERR_ARG);
    ridge_close(device);
}

/* A workspace may lie beside operands, and neither begin in one nor have one in it. */
TEST(workspace_apart_from_operands)
{
    static _Alignas(256) float memory[256];
    ridge_call call = ridge_swiglu_fwd(1, 64, RIDGE_F32, memory, memory + 64, out);
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    assert_int_equal(ridge_run(device, &call, memory + 128, 512, NULL), RIDGE_OK);
    assert_int_equal(ridge_run(device, &call, memory, 256, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "lies in the workspace"));
    call = ridge_swiglu_fwd(1, 128, RIDGE_F32, memory, memory + 128, memory);
    assert_int_equal(ridge_run(device, &call, memory + 64, 256, NULL), RIDGE_ERR_ARG); /* begins inside gate */
    assert_non_null(strstr(ridge_error(), "the workspace at"));
    ridge_close(device);
}

/* Explains into buffers of every size: never past the end, always terminated, always the same length. */
TEST(explain)
{
    ridge_device *device;
    ridge_call call = small();
    char text[4096];
    size_t whole = 0, length;

    assert_int_equal(ridge_open("model:sm100", &device), RIDGE_OK);
    assert_int_equal(ridge_explain(device, &call, NULL, 0, &whole), RIDGE_OK);
    assert_true(whole > 100 && whole < sizeof text);
    for (size_t size = 1; size < whole + 2; size += 13) {
        memset(text, '#', sizeof text);
        assert_int_equal(ridge_explain(device, &call, text, size, &length), RIDGE_OK);
        assert_int_equal(length, whole);
        assert_int_equal(text[size], '#');
        assert_true(strlen(text) < size);
    }
    ridge_close(device);
}

/* Every row of the op is listed or counted. */
TEST(explain_counts_the_other_backends_rows)
{
    ridge_device *device;
    ridge_call call = small();
    char text[4096], line[64];
    int others = 0;

    for (int i = 0; ridge_kernel_at(i); i++)
        others += ridge_kernel_at(i)->op == RIDGE_SWIGLU_FWD && ridge_kernel_backend(ridge_kernel_at(i)) != RIDGE_CPU;
    assert_int_equal(ridge_open("cpu:c", &device), RIDGE_OK);
    assert_int_equal(ridge_explain(device, &call, text, sizeof text, NULL), RIDGE_OK);
    snprintf(line, sizeof line, "  %d rows of the other backend\n", others);
    assert_true(others ? strstr(text, line) != NULL : strstr(text, "backend") == NULL);
    ridge_close(device);
}

TEST(a_call_allocates_nothing)
{
    ridge_device *device;
    ridge_call call = small();

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_OK);
    armed = 1;
    for (int i = 0; i < 100; i++)
        assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_OK);
    armed = 0;
    assert_int_equal(allocations, 0);
    ridge_close(device);
}

/* A caller that was told 0 passes NULL. */
TEST(no_workspace_where_none_is_needed)
{
    const ridge_op_row *op = ridge_op_at(RIDGE_ADD_RMS_NORM);
    ridge_problem problem;
    ridge_device *device;
    ridge_call call;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    assert_int_equal(ridge_problem_parse(op, "rows=4 cols=64", &call, &problem), RIDGE_OK);
    for (int i = device->first[op->id]; i < device->first[op->id + 1]; i++)
        assert_int_equal(ridge_kernel_workspace(device, device->row[i], &problem), 0);
    ridge_close(device);
}

/* Every way to copy that the bench has copies, and nothing else. */
TEST(stream_copy)
{
    enum { ROOM = 3 << 20, FIRST = 4096 };
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM);
    ridge_device *device;

    assert_true(from && to);
    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)(i * 31 + (i >> 8));
    for (int variant = 0; variant < device->backend->copy_variants; variant++)
        for (size_t bytes = 100; bytes < ROOM - 2 * FIRST; bytes = bytes * 19 + 7) {
            memset(to, 0xee, ROOM);
            assert_int_equal(device->backend->stream_copy(device, variant, to + FIRST, from, bytes, NULL), RIDGE_OK);
            assert_memory_equal(to + FIRST, from, bytes);
            for (size_t i = 0; i < FIRST; i++)
                assert_true(to[i] == 0xee && to[FIRST + bytes + i] == 0xee);
        }
    ridge_close(device);
    free(from);
    free(to);
}

/* Halves of one tensor do not overlap; anything that does is refused. */
TEST(aliasing)
{
    static float tensor[4 * 32], result[4 * 16];
    ridge_bound bound;
    ridge_call call = ridge_swiglu_fwd(4, 16, RIDGE_F32, tensor, tensor + 16, result);

    call.arg[RIDGE_SWIGLU_FWD_GATE].stride = call.arg[RIDGE_SWIGLU_FWD_UP].stride = 32;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    assert_int_equal(bound.problem.packed, 0);
    call.arg[RIDGE_SWIGLU_FWD_OUT] = call.arg[RIDGE_SWIGLU_FWD_UP]; /* exactly the up half */
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    call.arg[RIDGE_SWIGLU_FWD_OUT].data = tensor + 17;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG);
    call.arg[RIDGE_SWIGLU_FWD_OUT].data = tensor + 16;
    call.arg[RIDGE_SWIGLU_FWD_OUT].stride = 16;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG);
    /* gate has columns 0 .. 15 of 32: out's begin in them, or end in those of the next row */
    call.arg[RIDGE_SWIGLU_FWD_UP].data = result;
    call.arg[RIDGE_SWIGLU_FWD_UP].stride = 0;
    call.arg[RIDGE_SWIGLU_FWD_OUT].stride = 32;
    call.dim[0] = 3;
    for (int column = 8; column <= 24; column += 16) {
        call.arg[RIDGE_SWIGLU_FWD_OUT].data = tensor + column;
        assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG);
    }
    call.arg[RIDGE_SWIGLU_FWD_OUT].data = tensor + 16;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
}

TEST(text_round_trip)
{
    static const char text[] =
        "swiglu_bwd rows=3 cols=5 dtype=f16 act=gelu_erf round_gate_bwd=1 interleaved=1 row_scale=1 drow=1 "
        "gate_mul=0.5 limit=7 strict=1 weights_const=1";
    char printed[512];
    ridge_call call;
    ridge_problem problem;

    assert_int_equal(ridge_problem_parse(ridge_op_at(RIDGE_SWIGLU_BWD), text + 10, &call, &problem), RIDGE_OK);
    ridge_problem_print(&call, NULL, printed, sizeof printed);
    assert_string_equal(printed, text);
    assert_int_equal(ridge_problem_parse(ridge_op_at(RIDGE_SWIGLU_BWD), "rows=-1", &call, &problem), RIDGE_ERR_ARG);
    assert_int_equal(ridge_problem_parse(ridge_op_at(RIDGE_SWIGLU_BWD), "rows", &call, &problem), RIDGE_ERR_ARG);
    assert_int_equal(ridge_problem_parse(ridge_op_at(RIDGE_SWIGLU_BWD), "limit=nan", &call, &problem), RIDGE_ERR_ARG);
    for (int op = 1; op < RIDGE_OPS; op++) { /* a dimension that is not said is no 0 */
        assert_int_equal(ridge_problem_parse(ridge_op_at(op), "", &call, &problem), RIDGE_ERR_ARG);
        assert_non_null(strstr(ridge_error(), "= is missing"));
    }
}

/* Under UBSan: memcpy takes no NULL, not even for nothing. */
TEST(rows_of_nothing_need_no_workspace)
{
    static float scales[1], post[4], comb[16], res[4], out[4], y[4];
    static int8_t x[32];
    static uint8_t w[34];
    ridge_call call = ridge_q8_0_matmul_hc_expand(1, 32, 0, 4, ridge_scaled(x, RIDGE_I8, scales, RIDGE_SCALING_ROW32),
                                                  ridge_matrix(w, RIDGE_U8), post, comb, res, out);
    ridge_device *device;

    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_Y, RIDGE_F32, y, 0);
    assert_int_equal(ridge_open("cpu:c", &device), RIDGE_OK);
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_OK);
    ridge_close(device);
}

/* Every number of streams, whatever it is, gets an answer; under UBSan: operands of an empty call have extents, too. */
TEST(streams_outside_their_range)
{
    static const int64_t streams[] = {-1, 17, -(INT64_C(1) << 40), INT64_C(1) << 40, INT64_MIN, INT64_MAX};
    static float x[64], w[64], weights[2], out[2], more[2];
    static int32_t ids[2];
    ridge_bound bound;

    for (int i = 0; i < 12; i++) {
        ridge_call call = ridge_moe_down(1, 32, i % 2 * 2, 1, 2, ridge_matrix(x, RIDGE_F32), ridge_matrix(w, RIDGE_F32),
                                         ids, weights, ridge_matrix(out, RIDGE_F32));

        call.opt.moe_down.n_hc = streams[i / 2];
        assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG);
        assert_non_null(strstr(ridge_error(), "moe_down: o")); /* option n_hc, or operand out, which it makes so wide */
    }
    ridge_call call = ridge_moe_down(1, 32, 2, 1, 2, ridge_matrix(x, RIDGE_F32), ridge_matrix(w, RIDGE_F32), ids,
                                     weights, ridge_matrix(out, RIDGE_F32));

    assert_int_equal(ridge_validate(&call, &bound), RIDGE_OK);
    ridge_set(&call, RIDGE_MOE_DOWN_POST, RIDGE_F32, more, 0);
    call.opt.moe_down.n_hc = 1;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG); /* without comb and res */
    assert_non_null(strstr(ridge_error(), "post, comb and res must not be NULL"));
    call.opt.moe_down.n_hc = 0;
    assert_int_equal(ridge_validate(&call, &bound), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "must be absent"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(query),
        cmocka_unit_test(scale_tables),
        cmocka_unit_test(fp8_codes),
        cmocka_unit_test(model_launches_nothing),
        cmocka_unit_test(devices_without_graphs),
        cmocka_unit_test(pins),
        cmocka_unit_test(decimal_comma),
        cmocka_unit_test(sample_of_equal_logits),
        cmocka_unit_test(fallbacks),
        cmocka_unit_test(one_arithmetic_for_all_rows),
        cmocka_unit_test(alignment_classes),
        cmocka_unit_test(alignment_text),
        cmocka_unit_test(workspace),
        cmocka_unit_test(workspace_apart_from_operands),
        cmocka_unit_test(explain),
        cmocka_unit_test(explain_counts_the_other_backends_rows),
        cmocka_unit_test(no_workspace_where_none_is_needed),
        cmocka_unit_test(stream_copy),
        cmocka_unit_test(aliasing),
        cmocka_unit_test(a_call_allocates_nothing),
        cmocka_unit_test(text_round_trip),
        cmocka_unit_test(rows_of_nothing_need_no_workspace),
        cmocka_unit_test(streams_outside_their_range),
    };

    unsetenv("RIDGE_KERNEL");
    unsetenv("RIDGE_TUNED");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

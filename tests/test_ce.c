/* test_ce.c: what one call of a cross entropy op cannot show: slices of a vocabulary against the whole, in any order of
 * arrival; train against eval and backward; results that do not depend on the number of threads or the workspace; how
 * much memory a training call asks for. */
#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "unit.h"
#include "ridge.h"

enum { B = 170, H = 70, V = 333, MOST = 5 }; /* B: enough work for more than one thread */

static float x[B * H], w[V * H], weight[V];
static int64_t target[B];
static ridge_device *device;

static float noise(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static void run(const ridge_call *call)
{
    size_t bytes = 0;
    void *workspace = NULL;

    assert_int_equal(ridge_workspace_bytes(device, call, &bytes), RIDGE_OK);
    assert_int_equal(posix_memalign(&workspace, 256, bytes + 256), 0);
    memset(workspace, 0xff, bytes);
    if (ridge_run(device, call, workspace, bytes, NULL) != RIDGE_OK)
        fail_msg("%s", ridge_error());
    free(workspace);
}

static int set_up(void **state)
{
    unsigned seed = 7;

    (void)state;
    for (int i = 0; i < B * H; i++)
        x[i] = noise(&seed);
    for (int i = 0; i < V * H; i++)
        w[i] = 0.4f * noise(&seed);
    for (int i = 0; i < V; i++)
        weight[i] = 1.5f + noise(&seed);
    for (int i = 0; i < B; i++)
        target[i] = i % 6 == 4 ? -100 : i * 53 % V;
    return ridge_open("cpu", &device) != RIDGE_OK;
}

static int tear_down(void **state)
{
    (void)state;
    ridge_close(device);
    return 0;
}

static ridge_tensor f32(const float *data)
{
    return ridge_matrix(data, RIDGE_F32);
}

static void set_options(ridge_call *call)
{
    call->opt.ce.label_smoothing = 0.1f;
    call->opt.ce.lse_square_scale = 0.01f;
}

/* Runs the slices begin[i] .. begin[i + 1], arriving as `order` says: loss, lse, entropy, argmax, dX (summed in the
 * order of the slices) and dW. */
typedef struct outcome {
    float loss, lse[B], entropy[B], dx[B * H], dw[V * H];
    int64_t argmax[B];
} outcome;

static void run_slices(int shards, const int64_t *begin, const int *order, outcome *o)
{
    static float record[MOST * B * 6], part[B * H];
    static int64_t argmax[MOST * B];
    const ridge_tensor classes = ridge_matrix(target, RIDGE_I64);
    int64_t offset[MOST];
    ridge_call call;

    for (int i = 0; i < shards; i++) {
        const int64_t first = begin[order[i]], count = begin[order[i] + 1] - first;

        offset[i] = first;
        call = ridge_linear_ce_eval(B, H, count, f32(x), f32(w + first * H), classes, NULL);
        set_options(&call);
        call.flags |= RIDGE_CE_RECORD_SUMS;
        call.opt.ce.vocab_offset = first;
        call.opt.ce.vocab_total = V;
        ridge_set(&call, RIDGE_LINEAR_CE_CLASS_WEIGHT, RIDGE_F32, weight, 0);
        ridge_set(&call, RIDGE_LINEAR_CE_RECORD, RIDGE_F32, record + i * B * 6, 0);
        ridge_set(&call, RIDGE_LINEAR_CE_ARGMAX, RIDGE_I64, argmax + i * B, 0);
        run(&call);
    }
    call = ridge_ce_combine(B, V, shards, record, offset, classes, &o->loss);
    ridge_set(&call, RIDGE_CE_COMBINE_LSE, RIDGE_F32, o->lse, 0);
    set_options(&call);
    call.flags |= RIDGE_CE_RECORD_SUMS;
    ridge_set(&call, RIDGE_CE_COMBINE_CLASS_WEIGHT, RIDGE_F32, weight, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_ENTROPY, RIDGE_F32, o->entropy, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_ARGMAX, RIDGE_I64, o->argmax, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_SHARD_ARGMAX, RIDGE_I64, argmax, 0);
    run(&call);
    memset(o->dx, 0, sizeof o->dx);
    for (int i = 0; i < shards; i++) {
        const int64_t first = begin[i], count = begin[i + 1] - first;

        call = ridge_linear_ce_backward(B, H, count, f32(x), f32(w + first * H), classes, o->lse, f32(part),
                                        f32(o->dw + first * H));
        set_options(&call);
        call.opt.ce.vocab_offset = first;
        call.opt.ce.vocab_total = V;
        ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT, RIDGE_F32, weight, 0);
        run(&call);
        for (int j = 0; j < B * H; j++)
            o->dx[j] += part[j];
    }
}

static void run_whole(outcome *o)
{
    ridge_call call = ridge_linear_ce_train(B, H, V, f32(x), f32(w), ridge_matrix(target, RIDGE_I64), &o->loss,
                                            f32(o->dx), f32(o->dw));

    set_options(&call);
    ridge_set(&call, RIDGE_LINEAR_CE_CLASS_WEIGHT, RIDGE_F32, weight, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_LSE, RIDGE_F32, o->lse, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_ENTROPY, RIDGE_F32, o->entropy, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_ARGMAX, RIDGE_I64, o->argmax, 0);
    run(&call);
}

/* Largest difference over the largest value. */
static double apart(const float *a, const float *b, int count)
{
    double most = 0, size = 0;

    for (int i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)a[i]));
    }
    return most / size;
}

TEST(slices_agree_with_the_whole)
{
    static const int64_t begin[MOST + 1][MOST + 1] = {
        {0}, {0}, {0, 40, V}, {0, 1, 200, V}, {0, 100, 101, 259, V}, {0, 16, 90, 250, 332, V}};
    static outcome whole, first, other;

    run_whole(&whole);
    for (int shards = 2; shards <= MOST; shards++)
        for (int turn = 0; turn < shards; turn++) {
            int order[MOST];

            for (int i = 0; i < shards; i++)
                order[i] = turn % 2 ? (turn + shards - i) % shards : (turn + i) % shards;
            memset(&other, 0, sizeof other);
            run_slices(shards, begin[shards], order, turn ? &other : &first);
            if (turn)
                assert_memory_equal(&first, &other, sizeof first);
            assert_true(apart(&whole.loss, &first.loss, 1) < 1e-6);
            assert_true(apart(whole.lse, first.lse, B) < 1e-6);
            assert_true(apart(whole.entropy, first.entropy, B) < 1e-5);
            assert_memory_equal(whole.argmax, first.argmax, sizeof whole.argmax);
            assert_true(apart(whole.dx, first.dx, B * H) < 1e-5);
            assert_true(apart(whole.dw, first.dw, V * H) < 1e-5);
        }
}

/* The same bits with any number of threads, and again; close to each other with every workspace. */
TEST(threads_and_workspace)
{
    static const char *const rows[] = {"cpu.linear_ce_train.c", "cpu.linear_ce_train.avx2",
                                       "cpu.linear_ce_train.avx2.small", "cpu.linear_ce_train.avx2.recompute"};
    static outcome o[5], again;

    for (int i = 0; i < 4; i++) {
        ridge_call call = ridge_linear_ce_train(B, H, V, f32(x), f32(w), ridge_matrix(target, RIDGE_I64), &o[i].loss,
                                                f32(o[i].dx), f32(o[i].dw));
        const char *name;

        call.kernel = rows[i];
        if (ridge_pick(device, &call, SIZE_MAX, &name) != RIDGE_OK)
            continue; /* no AVX2 here */
        run(&call);
        for (int threads = 1; threads <= 7; threads += 3) {
#ifdef _OPENMP
            omp_set_num_threads(threads);
#endif
            call.arg[RIDGE_LINEAR_CE_LOSS].data = &again.loss;
            call.arg[RIDGE_LINEAR_CE_DX].data = again.dx;
            call.arg[RIDGE_LINEAR_CE_DW].data = again.dw;
            run(&call);
            assert_memory_equal(&again.loss, &o[i].loss, sizeof again.loss);
            assert_memory_equal(again.dx, o[i].dx, sizeof again.dx);
            assert_memory_equal(again.dw, o[i].dw, sizeof again.dw);
        }
        assert_true(apart(o[0].dx, o[i].dx, B * H) < 1e-5);
        assert_true(apart(o[0].dw, o[i].dw, V * H) < 1e-5);
    }
}

/* A smaller workspace picks a row that needs less. */
TEST(workspace_decides)
{
    float loss;
    ridge_call call = ridge_linear_ce_train(4096, 64, 50000, f32(x), f32(w), ridge_matrix(target, RIDGE_I64), &loss,
                                            f32(NULL), f32(NULL));
    const char *name;
    size_t bytes;

    assert_int_equal(ridge_workspace_bytes(device, &call, &bytes), RIDGE_OK);
    assert_int_equal(ridge_pick(device, &call, bytes, &name), RIDGE_OK);
    assert_null(strstr(name, "recompute"));
    if (strcmp(name, "cpu.linear_ce_train.c") != 0) {
        assert_int_equal(ridge_pick(device, &call, bytes / 2, &name), RIDGE_OK);
        assert_non_null(strstr(name, "recompute"));
    }
    assert_int_equal(ridge_pick(device, &call, 1000, &name), RIDGE_ERR_WORKSPACE);
}

/* An address that is never read: far from the others, and aligned. */
static void *place(int i)
{
    return (void *)((uintptr_t)(i + 1) << 40);
}

/* Beside dX and dW no more than brings all to dX + 4VH bytes + 300 MB (2 KB a class and 16 MB, if that is more),
 * whatever the type of dW and however many rows. The row with the plain loops in C is for looking things up, not for
 * size. */
TEST(workspace_is_bounded)
{
    static const int64_t shapes[][3] = {{16384, 2048, 32000},  {32768, 2048, 32000}, {16384, 4096, 128256},
                                        {8192, 4096, 128256},  {8192, 2304, 256000}, {65536, 1024, 32000},
                                        {16384, 2048, 256000}, {20000, 1000, 50001}};
    static const ridge_dtype types[] = {RIDGE_F32, RIDGE_BF16};
    static const char *const devices[] = {"model:sm90", "model:sm80", "cpu"};
    static const uint32_t flags[] = {0, RIDGE_ACCUMULATE, RIDGE_CE_W_HV};

    for (int i = 0; i < 8 * 2 * 3 * 3; i++) {
        const int64_t *dim = shapes[i % 8], weights = dim[1] * dim[2], more = 2048 * dim[2] + 16000000;
        const ridge_dtype type = types[i / 8 % 2];
        ridge_call call =
            ridge_linear_ce_train(dim[0], dim[1], dim[2], ridge_matrix(place(0), RIDGE_BF16),
                                  ridge_matrix(place(1), RIDGE_BF16), ridge_matrix(place(2), RIDGE_I64), place(3),
                                  ridge_matrix(place(4), RIDGE_BF16), ridge_matrix(place(5), type));
        const int64_t most = 4 * weights + (more > 300000000 ? more : 300000000);
        ridge_device *model;
        const char *name;
        ridge_status status;
        size_t bytes;

        call.flags |= flags[i / 48];
        assert_int_equal(ridge_open(devices[i / 16 % 3], &model), RIDGE_OK);
        status = ridge_pick(model, &call, SIZE_MAX, &name); /* a build without CUDA has no rows for the models */
        if (status != RIDGE_OK && (status != RIDGE_ERR_UNSUPPORTED || i / 16 % 3 == 2))
            fail_msg("%s", ridge_error());
        if (status == RIDGE_OK && strcmp(name, "cpu.linear_ce_train.c") != 0) {
            assert_int_equal(ridge_workspace_bytes(model, &call, &bytes), RIDGE_OK);
            if ((int64_t)bytes + (type == RIDGE_F32 ? 4 : 2) * weights > most)
                fail_msg("%s at %lld, %lld, %lld, dW of %d bytes: %zu bytes", name, (long long)dim[0],
                         (long long)dim[1], (long long)dim[2], type == RIDGE_F32 ? 4 : 2, bytes);
        }
        ridge_close(model);
    }
}

/* The loss alone: 8 bytes a token for each of at most 132 parts of the vocabulary, on Hopper, beside nothing else. */
TEST(eval_is_bounded)
{
    static const int64_t shapes[][3] = {
        {4096, 4096, 128256}, {8192, 2304, 256000}, {16384, 2048, 32000}, {1024, 4096, 128256}, {65536, 1024, 32000}};

    for (int i = 0; i < 5; i++) {
        const int64_t *dim = shapes[i];
        ridge_call call =
            ridge_linear_ce_eval(dim[0], dim[1], dim[2], ridge_matrix(place(0), RIDGE_BF16),
                                 ridge_matrix(place(1), RIDGE_BF16), ridge_matrix(place(2), RIDGE_I64), place(3));
        ridge_device *model;
        const char *name;
        size_t bytes;

        assert_int_equal(ridge_open("model:sm90", &model), RIDGE_OK);
        if (ridge_pick(model, &call, SIZE_MAX, &name) == RIDGE_OK) { /* not in a build without CUDA */
            assert_int_equal(ridge_workspace_bytes(model, &call, &bytes), RIDGE_OK);
            assert_in_range(bytes, 1, 8 * dim[0] * 132);
        }
        ridge_close(model);
    }
}

/* Shards in the order of their offsets, whatever the order of arrival: the lowest class among equals, and the bits of
 * (1 + 2^-53) + 2^-53 = 1, where the other order gives 1 + 2^-52. */
TEST(shards_fold_in_the_order_of_offsets)
{
    enum { LOW, MIDDLE, HIGH };
    static const int arrival[][3] = {{LOW, MIDDLE, HIGH}, {HIGH, MIDDLE, LOW}, {MIDDLE, HIGH, LOW}};
    static const float sum[] = {1, 0x1p-53f, 0x1p-53f};
    const int32_t zero = 0;
    float lse, loss;
    int64_t argmax;

    for (size_t n = 0; n < sizeof arrival / sizeof arrival[0]; n++) {
        float record[3][3];
        int64_t offset[3], of_shard[3];
        ridge_call call = ridge_ce_combine(1, 12, 3, record[0], offset, ridge_matrix(&zero, RIDGE_I32), &loss);

        for (int i = 0; i < 3; i++) {
            const int shard = arrival[n][i];

            memcpy(record[i], ((const float[]){0, sum[shard], shard == LOW ? 0 : -INFINITY}), sizeof record[i]);
            offset[i] = 4 * shard;
            of_shard[i] = 4 * shard + 1;
        }
        ridge_set(&call, RIDGE_CE_COMBINE_LSE, RIDGE_F32, &lse, 0);
        ridge_set(&call, RIDGE_CE_COMBINE_ARGMAX, RIDGE_I64, &argmax, 0);
        ridge_set(&call, RIDGE_CE_COMBINE_SHARD_ARGMAX, RIDGE_I64, of_shard, 0);
        run(&call);
        assert_int_equal(argmax, 1);
        assert_true(lse == 0);
    }
}

/* Logits that the entropy's gradient bends: capped, cooled, with a bias. */
static void set_logit_options(ridge_call *call, int bias_slot)
{
    static float bias[V];

    for (int c = 0; c < V; c++)
        bias[c] = weight[c] - 1.5f;
    call->opt.ce.softcap = 3;
    call->opt.ce.temperature = 0.7f;
    ridge_set(call, bias_slot, RIDGE_F32, bias, 0);
}

/* lse and entropy of x + h u and W + h v; returns sum_b up_b entropy_b. */
static double entropy_at(const float *u, const float *v, double h, const float *up, float *lse, float *entropy)
{
    static float moved_x[B * H], moved_w[V * H];
    float losses[B];
    double sum = 0;

    for (int i = 0; i < B * H; i++)
        moved_x[i] = x[i] + (float)h * u[i];
    for (int i = 0; i < V * H; i++)
        moved_w[i] = w[i] + (float)h * v[i];
    ridge_call call =
        ridge_linear_ce_eval(B, H, V, f32(moved_x), f32(moved_w), ridge_matrix(target, RIDGE_I64), losses);

    call.flags |= RIDGE_CE_NONE;
    set_logit_options(&call, RIDGE_LINEAR_CE_BIAS);
    ridge_set(&call, RIDGE_LINEAR_CE_LSE, RIDGE_F32, lse, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_ENTROPY, RIDGE_F32, entropy, 0);
    run(&call);
    for (int b = 0; b < B; b++)
        sum += (double)up[b] * (double)entropy[b];
    return sum;
}

/* Along a direction (u, v), dX . u + dW . v is the slope of sum_b up_b entropy_b; the loss has no gradient here. */
TEST(the_gradient_of_the_entropy_is_its_finite_difference)
{
    static float u[B * H], v[V * H], dx[B * H], dw[V * H];
    float up[B], lse[B], entropy[B], zero[B] = {0};
    const double h = 0x1p-6;
    double slope, gradient = 0, size = 0;
    unsigned seed = 11;

    for (int i = 0; i < B * H; i++)
        u[i] = noise(&seed);
    for (int i = 0; i < V * H; i++)
        v[i] = 0.4f * noise(&seed);
    for (int b = 0; b < B; b++)
        up[b] = noise(&seed);
    slope = (entropy_at(u, v, h, up, lse, entropy) - entropy_at(u, v, -h, up, lse, entropy)) / (2 * h);
    entropy_at(u, v, 0, up, lse, entropy);
    ridge_call call =
        ridge_linear_ce_backward(B, H, V, f32(x), f32(w), ridge_matrix(target, RIDGE_I64), lse, f32(dx), f32(dw));

    call.flags |= RIDGE_CE_NONE;
    set_logit_options(&call, RIDGE_LINEAR_CE_BACKWARD_BIAS);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DLOSS, RIDGE_F32, zero, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_ENTROPY, RIDGE_F32, entropy, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DENTROPY, RIDGE_F32, up, 0);
    run(&call);
    for (int i = 0; i < B * H; i++) {
        gradient += (double)dx[i] * (double)u[i];
        size += fabs((double)dx[i] * (double)u[i]);
    }
    for (int i = 0; i < V * H; i++) {
        gradient += (double)dw[i] * (double)v[i];
        size += fabs((double)dw[i] * (double)v[i]);
    }
    if (!(fabs(gradient - slope) <= 1e-4 * size))
        fail_msg("the gradient along a direction is %g, the finite difference %g, the terms sum to %g", gradient, slope,
                 size);
    assert_true(fabs(slope) > 1e-3 * size); /* else this shows nothing */
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_ENTROPY, RIDGE_NONE, NULL, 0);
    size_t bytes = 1 << 24;
    void *workspace = test_malloc(bytes);

    assert_int_equal(ridge_run(device, &call, workspace, bytes, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "operand entropy is NULL"));
    test_free(workspace);
}

enum { K = 7 };
static int64_t ids[B * K];

/* The gradients of sum_b up_b entropy_b + sum_bk g_bk log p(id_bk), without one of the loss, of classes [first, first +
 * count). */
static void backward_of_ids(int64_t first, int64_t count, const float *lse, const float *entropy, const float *up,
                            const float *logprob, const float *g, float *dx, float *dw)
{
    static const float zero[B];
    ridge_call call = ridge_linear_ce_backward(B, H, count, f32(x), f32(w + first * H), ridge_matrix(target, RIDGE_I64),
                                               lse, f32(dx), f32(dw));

    call.flags |= RIDGE_CE_NONE;
    call.opt.ce.vocab_offset = first;
    call.opt.ce.vocab_total = V;
    call.opt.ce.ids = K;
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DLOSS, RIDGE_F32, zero, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_ENTROPY, RIDGE_F32, entropy, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DENTROPY, RIDGE_F32, up, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_IDS, RIDGE_I64, ids, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_ID_LOGPROB, RIDGE_F32, logprob, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB, RIDGE_F32, g, 0);
    run(&call);
}

/* A slice's record with the sums, and z of the ids; or of the whole vocabulary lse, entropy and log-probabilities. */
static void eval_of_ids(int64_t first, int64_t count, float *record, float *lse, float *entropy, float *logprob)
{
    float losses[B];
    ridge_call call = ridge_linear_ce_eval(B, H, count, f32(x), f32(w + first * H), ridge_matrix(target, RIDGE_I64),
                                           record ? NULL : losses);

    call.flags |= RIDGE_CE_NONE | (record ? RIDGE_CE_RECORD_SUMS : 0);
    call.opt.ce.vocab_offset = first;
    call.opt.ce.vocab_total = V;
    call.opt.ce.ids = K;
    ridge_set(&call, RIDGE_LINEAR_CE_IDS, RIDGE_I64, ids, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_ID_LOGPROB, RIDGE_F32, logprob, 0);
    if (record) {
        ridge_set(&call, RIDGE_LINEAR_CE_RECORD, RIDGE_F32, record, 0);
    } else {
        ridge_set(&call, RIDGE_LINEAR_CE_LSE, RIDGE_F32, lse, 0);
        ridge_set(&call, RIDGE_LINEAR_CE_ENTROPY, RIDGE_F32, entropy, 0);
    }
    run(&call);
}

static void assert_all_near(const float *got, const float *want, int count, double most, const char *what)
{
    for (int i = 0; i < count; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= most))
            fail_msg("%s %d is %g, not %g", what, i, (double)got[i], (double)want[i]);
}

/* Three slices: entropy and log-probabilities of ids as of the whole, and their gradients. */
TEST(slices_agree_on_entropy_and_ids)
{
    static const int64_t begin[] = {0, 100, 233, V};
    static float record[3 * B * 6], z[3][B * K], logprob[B * K], whole[B * K], g[B * K];
    static float dx[B * H], dw[V * H], part[B * H], sum[B * H], slice_dw[V * H];
    float lse[B], entropy[B], losses[B], of_whole[2][B], up[B];
    int64_t offset[3];
    unsigned seed = 5;

    for (int i = 0; i < B * K; i++) {
        ids[i] = i % 11 == 3 ? -100 : i % K == 2 ? ids[i - 1] : (int64_t)i * 71 % V;
        g[i] = noise(&seed);
    }
    for (int b = 0; b < B; b++)
        up[b] = noise(&seed);
    eval_of_ids(0, V, NULL, of_whole[0], of_whole[1], whole);
    for (int i = 0; i < 3; i++) {
        offset[i] = begin[i];
        eval_of_ids(begin[i], begin[i + 1] - begin[i], record + i * B * 6, NULL, NULL, z[i]);
    }
    ridge_call call = ridge_ce_combine(B, V, 3, record, offset, ridge_matrix(target, RIDGE_I64), losses);

    call.flags |= RIDGE_CE_NONE | RIDGE_CE_RECORD_SUMS;
    ridge_set(&call, RIDGE_CE_COMBINE_LSE, RIDGE_F32, lse, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_ENTROPY, RIDGE_F32, entropy, 0);
    run(&call);
    for (int i = 0; i < B * K; i++) {
        const int counts = ids[i] != -100 && target[i / K] != -100;

        logprob[i] = counts ? fmaxf(fmaxf(z[0][i], z[1][i]), z[2][i]) - lse[i / K] : 0;
    }
    assert_all_near(lse, of_whole[0], B, 1e-5, "lse");
    assert_all_near(entropy, of_whole[1], B, 1e-5, "entropy");
    assert_all_near(logprob, whole, B * K, 2e-5, "id_logprob");
    backward_of_ids(0, V, of_whole[0], of_whole[1], up, whole, g, dx, dw);
    for (int i = 0; i < 3; i++) {
        backward_of_ids(begin[i], begin[i + 1] - begin[i], lse, entropy, up, logprob, g, part, slice_dw + begin[i] * H);
        for (int j = 0; j < B * H; j++)
            sum[j] = i ? sum[j] + part[j] : part[j];
    }
    assert_all_near(sum, dx, B * H, 2e-5, "dx");
    assert_all_near(slice_dw, dw, V * H, 2e-4, "dw");
}

/* Draws of rows [row, row + rows) from classes [first, first + count). */
static void draw(int64_t row, int64_t rows, int64_t first, int64_t count, int64_t *id, float *logprob, float *score)
{
    static float losses[B], record[B * 3];
    static int64_t seed[B], counter[B];
    ridge_call call = ridge_linear_ce_eval(rows, H, count, f32(x + row * H), f32(w + first * H),
                                           ridge_matrix(target + row, RIDGE_I64), count < V ? NULL : losses);

    for (int64_t i = 0; i < rows; i++) {
        seed[i] = (row + i) / 50 - 1;
        counter[i] = (row + i) % 50;
    }
    call.flags |= RIDGE_CE_NONE;
    call.opt.ce.vocab_offset = first;
    call.opt.ce.vocab_total = V;
    ridge_set(&call, RIDGE_LINEAR_CE_RECORD, RIDGE_F32, record, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_SEED, RIDGE_I64, seed, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_COUNTER, RIDGE_I64, counter, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_SAMPLE_ID, RIDGE_I64, id, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_SAMPLE_LOGPROB, RIDGE_F32, logprob, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_SAMPLE_SCORE, RIDGE_F32, score, 0);
    run(&call);
}

/* The same class beside other rows, alone, and by the largest score of slices; not the same for every row. */
TEST(a_draw_is_the_same_in_slices_and_alone)
{
    static const int64_t begin[] = {0, 96, 240, V};
    static int64_t id[3][B], whole[B], alone;
    static float logprob[3][B], score[3][B], of_whole[B], best[B], one, own, differ;

    draw(0, B, 0, V, whole, of_whole, best);
    for (int i = 0; i < 3; i++)
        draw(0, B, begin[i], begin[i + 1] - begin[i], id[i], logprob[i], score[i]);
    for (int b = 0; b < B; b++) {
        const int i = score[1][b] > score[0][b]   ? (score[2][b] > score[1][b] ? 2 : 1)
                      : score[2][b] > score[0][b] ? 2
                                                  : 0;

        assert_int_equal(id[i][b], whole[b]);
        assert_true(score[i][b] == best[b]);
        draw(b, 1, 0, V, &alone, &one, &own);
        assert_int_equal(alone, whole[b]);
        assert_true(one == of_whole[b] && own == best[b]);
        assert_true(target[b] == -100 ? whole[b] == -1 && one == 0 : one < 0);
        differ += (float)(whole[b] != whole[0]);
    }
    assert_true(differ > B / 2.0f);
}

TEST(refuses_half_a_draw)
{
    static float losses[B], logprob[B];
    static int64_t id[B], seed[B];
    ridge_call call = ridge_linear_ce_eval(B, H, V, f32(x), f32(w), ridge_matrix(target, RIDGE_I64), losses);
    void *workspace = test_malloc(1 << 24);

    call.flags |= RIDGE_CE_NONE;
    ridge_set(&call, RIDGE_LINEAR_CE_SEED, RIDGE_I64, seed, 0);
    assert_int_equal(ridge_run(device, &call, workspace, 1 << 24, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "operand seed needs sample_id"));
    ridge_set(&call, RIDGE_LINEAR_CE_SAMPLE_ID, RIDGE_I64, id, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_SAMPLE_LOGPROB, RIDGE_F32, logprob, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_COUNTER, RIDGE_I64, seed, 0);
    call.opt.ce.vocab_offset = 8;
    call.opt.ce.vocab_total = V + 8;
    assert_int_equal(ridge_run(device, &call, workspace, 1 << 24, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "multiple of 16"));
    test_free(workspace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_agree_with_the_whole),
        cmocka_unit_test(shards_fold_in_the_order_of_offsets),
        cmocka_unit_test(threads_and_workspace),
        cmocka_unit_test(workspace_decides),
        cmocka_unit_test(workspace_is_bounded),
        cmocka_unit_test(eval_is_bounded),
        cmocka_unit_test(the_gradient_of_the_entropy_is_its_finite_difference),
        cmocka_unit_test(slices_agree_on_entropy_and_ids),
        cmocka_unit_test(a_draw_is_the_same_in_slices_and_alone),
        cmocka_unit_test(refuses_half_a_draw),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

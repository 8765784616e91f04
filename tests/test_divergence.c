/* test_divergence.c: the divergence of rows whose classes are cut into slices, as ranks have them, against the whole:
 * loss and gradients, by the calls that include/ridge.h tells of. */
#include <math.h>

#include "unit.h"
#include "ridge.h"

enum { ROWS = 9, V = 301, SLICES = 3, T = ROWS * V };
static const int begin[SLICES + 1] = {0, 40, 41, V};

static float student[T], teacher[T], scale[ROWS];
static ridge_device *device;

static int set_up(void **state)
{
    unsigned seed = 5;

    (void)state;
    for (int i = 0; i < 2 * T; i++) {
        seed = seed * 1664525u + 1013904223u;
        (i < T ? student : teacher)[i % T] = (float)(seed >> 8) * 0x1p-21f - 4 + (float)(i % T / V) * 10;
    }
    for (int r = 0; r < ROWS; r++)
        scale[r] = r == 4 ? 0 : 0.25f * (float)(r + 1);
    return ridge_open("cpu", &device) != RIDGE_OK;
}

static int tear_down(void **state)
{
    (void)state;
    ridge_close(device);
    return 0;
}

static void run(const ridge_call *call)
{
    if (ridge_run(device, call, NULL, 0, NULL) != RIDGE_OK)
        fail_msg("%s", ridge_error());
}

static ridge_call divergence(int first, int count, float beta, float *loss)
{
    ridge_call call = ridge_divergence(ROWS, count, ridge_matrix(student + first, RIDGE_F32),
                                       ridge_matrix(teacher + first, RIDGE_F32), loss);

    call.arg[RIDGE_DIVERGENCE_STUDENT].stride = call.arg[RIDGE_DIVERGENCE_TEACHER].stride = V;
    call.opt.divergence = (ridge_divergence_options){.beta = beta, .temperature = 1.5f};
    ridge_set(&call, RIDGE_DIVERGENCE_SCALE, RIDGE_F32, scale, 0);
    return call;
}

/* lse[r] becomes log(e^lse[r] + the sum over a slice of e^(logit / temperature)). */
static void add_slice(const float *logits, int first, int count, float *lse)
{
    static const int64_t target[ROWS];
    float loss[ROWS], own[ROWS];
    ridge_call call = ridge_ce_fwd(ROWS, count, ridge_matrix(logits + first, RIDGE_F32),
                                   ridge_matrix((void *)(uintptr_t)target, RIDGE_I64), loss);
    void *workspace = NULL;
    size_t bytes = 0;

    call.arg[RIDGE_CE_FWD_LOGITS].stride = V;
    call.flags |= RIDGE_CE_NONE;
    call.opt.ce.temperature = 1.5f;
    ridge_set(&call, RIDGE_CE_FWD_LSE, RIDGE_F32, own, 0);
    assert_int_equal(ridge_workspace_bytes(device, &call, &bytes), RIDGE_OK);
    assert_int_equal(posix_memalign(&workspace, 256, bytes + 256), 0);
    if (ridge_run(device, &call, workspace, bytes, NULL) != RIDGE_OK)
        fail_msg("%s", ridge_error());
    free(workspace);
    for (int r = 0; r < ROWS; r++) {
        const float most = fmaxf(lse[r], own[r]);

        lse[r] = most + logf(expf(lse[r] - most) + expf(own[r] - most));
    }
}

static void in_slices(float beta, float *loss, float *gradient)
{
    float lse[2][ROWS], part[2][ROWS], own[ROWS] = {0};

    memset(loss, 0, ROWS * sizeof *loss);
    for (int r = 0; r < ROWS; r++)
        lse[0][r] = lse[1][r] = -INFINITY;
    for (int s = 0; s < SLICES; s++) {
        add_slice(student, begin[s], begin[s + 1] - begin[s], lse[0]);
        add_slice(teacher, begin[s], begin[s + 1] - begin[s], lse[1]);
    }
    for (int pass = 0; pass < 2; pass++)
        for (int s = 0; s < SLICES; s++) {
            ridge_call call = divergence(begin[s], begin[s + 1] - begin[s], beta, part[0]);

            ridge_set(&call, RIDGE_DIVERGENCE_LSE, RIDGE_F32, lse[0], 0);
            ridge_set(&call, RIDGE_DIVERGENCE_TEACHER_LSE, RIDGE_F32, lse[1], 0);
            ridge_set(&call, RIDGE_DIVERGENCE_OWN, RIDGE_F32, pass ? own : part[1], 0);
            if (pass) {
                ridge_set(&call, RIDGE_DIVERGENCE_DLOGITS, RIDGE_F32, gradient + begin[s], V);
                call.arg[RIDGE_DIVERGENCE_LOSS] = (ridge_operand){0};
            }
            run(&call);
            for (int r = 0; r < ROWS && !pass; r++) {
                loss[r] += part[0][r];
                own[r] += part[1][r];
            }
        }
}

TEST(slices_give_the_loss_and_the_gradients_of_the_whole)
{
    static const float betas[] = {0, 0.3f, 1};
    static float want[T], got[T];
    float loss[2][ROWS];

    for (int b = 0; b < 3; b++) {
        ridge_call call = divergence(0, V, betas[b], loss[0]);

        ridge_set(&call, RIDGE_DIVERGENCE_DLOGITS, RIDGE_F32, want, 0);
        run(&call);
        in_slices(betas[b], loss[1], got);
        for (int r = 0; r < ROWS; r++)
            if (!(fabsf(loss[1][r] - loss[0][r]) <= 1e-4f * (1 + fabsf(loss[0][r]))))
                fail_msg("beta %g: loss of row %d is %g, not %g", (double)betas[b], r, (double)loss[1][r],
                         (double)loss[0][r]);
        for (int i = 0; i < T; i++) /* what f32 leaves of an lse near 60 */
            if (!(fabsf(got[i] - want[i]) <= 2e-4f * fabsf(want[i]) + 1e-6f))
                fail_msg("beta %g: gradient %d is %g, not %g", (double)betas[b], i, (double)got[i], (double)want[i]);
    }
}

/* sum_r scale_r loss_r where the logits have moved by h along `to`. */
static double loss_at(float beta, double h, const float *to)
{
    static float before[T];
    float loss[ROWS];
    double sum = 0;
    ridge_call call = divergence(0, V, beta, loss);

    memcpy(before, student, sizeof before);
    for (int i = 0; i < T; i++)
        student[i] += (float)h * to[i];
    run(&call);
    memcpy(student, before, sizeof before);
    for (int r = 0; r < ROWS; r++)
        sum += (double)scale[r] * (double)loss[r];
    return sum;
}

/* Along a direction; row 4 is left out. */
TEST(gradients_are_finite_differences)
{
    static const float betas[] = {0, 0.3f, 0.8f, 1};
    static float to[T], gradient[T];
    const double h = 0x1p-5;
    unsigned seed = 7;

    for (int i = 0; i < T; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    for (int b = 0; b < 4; b++) {
        const double slope = (loss_at(betas[b], h, to) - loss_at(betas[b], -h, to)) / (2 * h);
        float loss[ROWS];
        double along = 0, size = 0;
        ridge_call call = divergence(0, V, betas[b], loss);

        ridge_set(&call, RIDGE_DIVERGENCE_DLOGITS, RIDGE_F32, gradient, 0);
        run(&call);
        for (int i = 0; i < T; i++) {
            along += (double)gradient[i] * (double)to[i];
            size += (double)gradient[i] * (double)gradient[i];
        }
        if (!(fabs(along - slope) <= 2e-3 * sqrt(size)))
            fail_msg("beta %g: the gradient along a direction is %g, the finite difference %g", (double)betas[b], along,
                     slope);
        assert_true(fabs(slope) > 0.05 * sqrt(size)); /* else this shows nothing */
    }
}

static void refuses(const ridge_call *call, const char *words)
{
    assert_int_equal(ridge_run(device, call, NULL, 0, NULL), RIDGE_ERR_ARG);
    if (!strstr(ridge_error(), words))
        fail_msg("%s", ridge_error());
}

TEST(refuses_half_a_slice)
{
    static float v[T], own[ROWS], lse[ROWS];
    ridge_call call = divergence(0, V, 0.5f, v);

    ridge_set(&call, RIDGE_DIVERGENCE_OWN, RIDGE_F32, own, 0);
    refuses(&call, "own is of a slice");
    ridge_set(&call, RIDGE_DIVERGENCE_LSE, RIDGE_F32, lse, 0);
    refuses(&call, "lse and teacher_lse go together");
    ridge_set(&call, RIDGE_DIVERGENCE_TEACHER_LSE, RIDGE_F32, lse, 0);
    ridge_set(&call, RIDGE_DIVERGENCE_DLOGITS, RIDGE_F32, v, 0);
    refuses(&call, "loss is made without dlogits where lse is given");
    call.arg[RIDGE_DIVERGENCE_OWN] = (ridge_operand){0};
    refuses(&call, "dlogits of a slice need own");
    call = divergence(0, V, 0.5f, v);
    call.arg[RIDGE_DIVERGENCE_LOSS] = (ridge_operand){0};
    refuses(&call, "loss is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_give_the_loss_and_the_gradients_of_the_whole),
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(refuses_half_a_slice),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

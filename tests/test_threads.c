/* test_threads.c: one device, many threads: calls, picks and errors at once; each thread has its own message. */

#include <pthread.h>

#include "unit.h"
#include "ridge.h"

enum { THREADS = 8, ROUNDS = 200, COLS = 96 };

static ridge_device *device;

/* Counts what went wrong in *argument. */
static void *work(void *argument)
{
    int *wrong = argument;
    float gate[COLS], up[COLS], first[COLS], out[COLS];
    char expected[32];

    snprintf(expected, sizeof expected, "cols is -%d", (int)(*wrong + 1));
    for (int i = 0; i < COLS; i++) {
        gate[i] = (float)i - 40.0f + (float)*wrong;
        up[i] = 0.5f;
    }
    for (int round = 0, id = *wrong + 1; round < ROUNDS; round++) {
        ridge_call call = ridge_swiglu_fwd(1, COLS, RIDGE_F32, gate, up, round ? out : first);
        if (round == 0)
            *wrong = 0;
        *wrong += ridge_run(device, &call, NULL, 0, NULL) != RIDGE_OK;
        *wrong += round && memcmp(out, first, sizeof out) != 0;
        call.dim[1] = -id;
        *wrong += ridge_run(device, &call, NULL, 0, NULL) != RIDGE_ERR_ARG || !strstr(ridge_error(), expected);
    }
    return NULL;
}

TEST(at_once)
{
    pthread_t thread[THREADS];
    int wrong[THREADS];

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (int i = 0; i < THREADS; i++) {
        wrong[i] = i;
        assert_int_equal(pthread_create(&thread[i], NULL, work, &wrong[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(wrong[i], 0);
    }
    ridge_close(device);
}

static void *open_close(void *argument)
{
    for (int i = 0; i < 50; i++) {
        ridge_device *mine;
        if (ridge_open("cpu", &mine) != RIDGE_OK)
            *(int *)argument += 1;
        else
            ridge_close(mine);
    }
    return NULL;
}

TEST(opening_at_once)
{
    pthread_t thread[THREADS];
    int wrong[THREADS] = {0};

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, open_close, &wrong[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(wrong[i], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(at_once), cmocka_unit_test(opening_at_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_measure.c: check/measure.c on a backend that fails where it is told to: a stream is never left capturing, no
 * graph is lost, no time is made up. */
#include "unit.h"
#include "check/measure.h"

enum step { NOWHERE, BEGIN, WORK, END, MARK, LAUNCH, SECOND_MARK, SYNC, ELAPSED };

static enum step fails;
static int capturing, graphs, marks;

static ridge_status at(enum step step)
{
    return fails == step ? ridge_fail(RIDGE_ERR_DEVICE, "step %d failed", step) : RIDGE_OK;
}

static ridge_status begin(const ridge_device *device, void *stream)
{
    (void)device, (void)stream;
    capturing += fails != BEGIN;
    return at(BEGIN);
}

/* As CUDA does: the capture ends whatever happens; a spoiled one gives no graph. */
static ridge_status end(const ridge_device *device, void *stream, void **graph)
{
    (void)device, (void)stream;
    capturing--;
    if (fails == WORK)
        return ridge_fail(RIDGE_ERR_DEVICE, "the capture was spoiled");
    if (at(END))
        return RIDGE_ERR_DEVICE;
    graphs++;
    *graph = &graphs;
    return RIDGE_OK;
}

static void drop(const ridge_device *device, void *graph)
{
    (void)device, (void)graph;
    graphs--;
}

static ridge_status launch(const ridge_device *device, void *graph, void *stream)
{
    (void)device, (void)graph, (void)stream;
    return at(LAUNCH);
}

static ridge_status mark(const ridge_device *device, int slot, void *stream)
{
    (void)device, (void)stream;
    marks++;
    return at(slot ? SECOND_MARK : MARK);
}

static ridge_status sync_all(const ridge_device *device, void *stream)
{
    (void)device, (void)stream;
    return at(SYNC);
}

static ridge_status elapsed(const ridge_device *device, int from, int to, double *us)
{
    (void)device, (void)from, (void)to;
    *us = 7;
    return at(ELAPSED);
}

static const ridge_backend backend = {.graph_begin = begin,
                                      .graph_end = end,
                                      .graph_free = drop,
                                      .graph_launch = launch,
                                      .mark = mark,
                                      .sync = sync_all,
                                      .elapsed = elapsed};
static const ridge_device device = {.backend = &backend};

static ridge_status do_work(const void *state)
{
    (void)state;
    return at(WORK);
}

static const work job = {do_work, NULL};

TEST(captures)
{
    void *graph;

    for (fails = NOWHERE; fails <= END; fails++) {
        const ridge_status status = measure_capture(&device, NULL, job, &graph);

        assert_int_equal(status == RIDGE_OK, fails == NOWHERE);
        assert_int_equal(capturing, 0);
        assert_int_equal(graph != NULL, fails == NOWHERE);
        if (fails == WORK) /* the reason, not that of the end */
            assert_string_equal(ridge_error(), "step 2 failed");
        if (graph)
            drop(&device, graph);
        assert_int_equal(graphs, 0);
    }
}

TEST(times)
{
    for (fails = NOWHERE; fails <= ELAPSED; fails++) {
        double us = 1e30;
        const bool graph = fails != WORK;
        const ridge_status status = measure_once(&device, NULL, graph ? &graphs : NULL, job, &us);
        const bool unused = fails == BEGIN || fails == END;

        assert_int_equal(status == RIDGE_OK, fails == NOWHERE || unused);
        assert_true(us == (status ? 0 : 7));
    }
}

TEST(orders)
{
    double round[] = {5, 1, 4, 2, 3}, us[3] = {9, 9, 9};

    measure_order(round, 0, us);
    assert_true(us[0] == 0 && us[1] == 0 && us[2] == 0);
    measure_order(round, 5, us);
    assert_true(us[0] == 3 && us[1] == 2 && us[2] == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(captures), cmocka_unit_test(times), cmocka_unit_test(orders)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

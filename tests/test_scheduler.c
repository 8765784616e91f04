/* test_scheduler.c: cuda/sm90/scheduler.cuh on the host: groups, the raster's reciprocals, the stream-K split. */
#include "unit.h"
#include "scheduler_check.h"

TEST(groups)
{
    static work_tile tile[CHECK_TILES];
    uint64_t state = 22;

    for (int i = 0; i < CHECK_PROBLEMS; i++) {
        const check_problem p = check_problem_at(&state);
        int count = 0;

        for (int worker = 0; worker < p.workers; worker++)
            count += check_worker(p.s, p.offset, worker, tile + count, CHECK_TILES - count);
        assert_true(check_tiles(&p, tile, count));
    }
}

/* No tile at all: nothing but empty groups, or no group. */
TEST(empty_groups)
{
    const int32_t offset[4] = {5, 5, 5, 5};
    scheduler s = {SCHEDULER_GROUPED_M, offset, 3, 0, 256, 64, 128, 128, 8, 0, 1, 0, 0};
    work_tile tile;

    assert_false(scheduler_next(&s, &tile));
    assert_false(scheduler_next(&s, &tile));
    s = (scheduler){SCHEDULER_GROUPED_K, offset, 0, 256, 256, 0, 128, 128, 8, 0, 1, 0, 0};
    assert_false(scheduler_next(&s, &tile));
}

TEST(reciprocals)
{
    uint64_t state = 1;

    for (int i = 0; i < 1000000; i++) {
        const int n = (int)(check_random(&state) & 0x7fffffff), d = 1 + (int)(check_random(&state) >> i % 31);
        int rest;

        assert_int_equal(scheduler_divide(n, d, scheduler_reciprocal(d), &rest), n / d);
        assert_int_equal(rest, n % d);
    }
    for (int i = 0; i < 2000; i++) {
        const int m = 1 + (int)(check_random(&state) % 50), n = 1 + (int)(check_random(&state) % 50),
                  bundle = 1 + i % 9;
        const int index = (int)(check_random(&state) % (uint32_t)(m * n)), last = m - (m - 1) / bundle * bundle;
        const raster plain = {m, n, bundle, 0, 0, 0};
        const raster fast = {
            m, n, bundle, scheduler_reciprocal(bundle * n), scheduler_reciprocal(bundle), scheduler_reciprocal(last)};
        int row[2], col[2];

        raster_tile(plain, index, &row[0], &col[0]);
        raster_tile(fast, index, &row[1], &col[1]);
        assert_int_equal(row[0], row[1]);
        assert_int_equal(col[0], col[1]);
    }
}

/* Every block of k of every tile once and in the order of k; a tile that two workers share begins as the first stream-K
 * unit of one and ends as the last unit of the next one. */
TEST(stream_k)
{
    uint64_t state = 7;

    for (int i = 0; i < CHECK_PROBLEMS; i++) {
        const int workers = 1 + (int)(check_random(&state) % 80), blocks = 1 + (int)(check_random(&state) % 200);
        const int tiles = workers + 1 + (int)(check_random(&state) % 500);
        const int data_parallel = (tiles / workers - 1) * workers, shared = tiles - data_parallel;
        int *done = calloc((size_t)tiles, sizeof *done), *head = calloc((size_t)tiles, sizeof *head);

        for (int pass = 0; pass < 2; pass++) /* heads, then what goes on from them */
            for (int w = 0; w < workers; w++) {
                const stream_k_cut from = stream_k_cut_at(shared, blocks, w, workers);
                const stream_k_cut to = stream_k_cut_at(shared, blocks, w + 1, workers);
                int heads = 0;

                for (int number = 0;; number++) {
                    const stream_k_unit u = stream_k_at(number, w, workers, data_parallel, blocks, from, to);

                    if (!u.end)
                        break;
                    assert_in_range(u.tile, 0, tiles - 1);
                    heads += u.begin == 0 && u.end < blocks;
                    if (pass == 0 && u.begin == 0) {
                        assert_int_equal(done[u.tile], 0);
                        done[u.tile] = u.end;
                        head[u.tile] = w;
                    } else if (pass == 1 && u.begin > 0) {
                        assert_int_equal(done[u.tile], u.begin);
                        assert_int_equal(head[u.tile], w - 1);
                        assert_int_equal(u.end, blocks);
                        assert_int_equal(stream_k_at(number + 1, w, workers, data_parallel, blocks, from, to).end, 0);
                        done[u.tile] = blocks;
                    }
                }
                assert_in_range(heads, 0, 1);
            }
        for (int t = 0; t < tiles; t++)
            assert_int_equal(done[t], blocks);
        free(done);
        free(head);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups), cmocka_unit_test(empty_groups),
                                       cmocka_unit_test(reciprocals), cmocka_unit_test(stream_k)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

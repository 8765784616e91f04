/* scheduler_check.h: random problems for cuda/sm90/scheduler.cuh and what their work tiles must be; for
 * test_scheduler.c on the host and scheduler.cu on a GPU. */
#ifndef RIDGE_SCHEDULER_CHECK_H
#define RIDGE_SCHEDULER_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/sm90/scheduler.cuh"

enum { CHECK_GROUPS = 40, CHECK_TILES = 16384, CHECK_UNITS = 64, CHECK_PROBLEMS = 300 };

typedef struct check_problem {
    scheduler s; /* of worker 0; `offset` is set by who runs it */
    int32_t offset[CHECK_GROUPS + 1];
    int workers;
} check_problem;

static inline uint32_t check_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Every third group is empty; sizes are up to a few tiles, and seldom multiples of one. */
static inline check_problem check_problem_at(uint64_t *state)
{
    check_problem p;

    memset(&p, 0, sizeof p);
    p.s.grouping = (scheduler_grouping)(check_random(state) % 3);
    p.s.groups = p.s.grouping == SCHEDULER_DENSE ? 1 : (int)(check_random(state) % CHECK_GROUPS) + 1;
    p.s.m = (int)(check_random(state) % 1000) + 1;
    p.s.n = (int)(check_random(state) % 500) + 1;
    p.s.k = (int)(check_random(state) % 4096) + 1;
    p.s.block_m = 64 << check_random(state) % 3;
    p.s.block_n = 32 * (1 + (int)(check_random(state) % 8));
    p.s.bundle = 1 + (int)(check_random(state) % 8);
    p.workers = 1 + (int)(check_random(state) % 132);
    p.s.step = p.workers;
    for (int g = 0; g < p.s.groups; g++)
        p.offset[g + 1] = p.offset[g] + (check_random(state) % 3 ? (int32_t)(check_random(state) % 600) : 0);
    return p;
}

/* Whether `count` work tiles are those of the problem, each once, in any order. Says on stderr what is wrong. */
static inline bool check_tiles(const check_problem *p, const work_tile *tile, int64_t count)
{
    const scheduler *s = &p->s;
    int64_t expected = 0;

    for (int g = 0; g < s->groups; g++) {
        const bool by_m = s->grouping == SCHEDULER_GROUPED_M, by_k = s->grouping == SCHEDULER_GROUPED_K;
        const int row_end = by_m ? p->offset[g + 1] : s->m;

        for (int row = by_m ? p->offset[g] : 0; row < row_end; row += s->block_m)
            for (int col = 0; col < s->n; col += s->block_n, expected++) {
                const work_tile want = {g, row, row_end, col, by_k ? p->offset[g] : 0, by_k ? p->offset[g + 1] : s->k};
                int found = 0;

                for (int64_t i = 0; i < count; i++)
                    found += memcmp(&tile[i], &want, sizeof want) == 0;
                if (found != 1)
                    return fprintf(stderr, "group %d, row %d, col %d: %d times\n", g, row, col, found), false;
            }
    }
    if (count != expected)
        fprintf(stderr, "%lld tiles instead of %lld\n", (long long)count, (long long)expected);
    return count == expected;
}

/* The tiles of one worker; their number. */
SCHEDULER_FN int check_worker(scheduler s, const int32_t *offset, int worker, work_tile *out, int most)
{
    int count = 0;

    s.offset = offset;
    s.index = worker;
    while (count < most && scheduler_next(&s, &out[count]))
        count++;
    return count;
}

#endif

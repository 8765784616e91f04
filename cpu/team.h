/* team.h: how many OpenMP threads a parallel region of a call gets. The results of a call never depend on it. */
#ifndef RIDGE_TEAM_H
#define RIDGE_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The calling thread's; valid until its next ridge_team_begin. */
typedef struct ridge_team {
    int threads;
    int late; /* rises with regions whose threads finished far apart, falls with the others */
    int64_t start, busy_until, busy_wait; /* ns */
    atomic_int left;
    _Atomic int64_t first;             /* when the first thread finished; 0: none has */
    _Alignas(64) _Atomic int64_t next; /* the part that ridge_team_next gives out next */
} ridge_team;

/* The threads of a region of `parts` independent parts that takes one thread about `us` microseconds: one below 16 us,
 * otherwise ridge_team_most. (Nothing between: libgomp ends the threads that a smaller team leaves out.) One in a
 * forked child, because fork copies no other thread; and one for a short region while other processes keep the
 * processors busy. */
ridge_team *ridge_team_begin(double us, int64_t parts);

/* No more threads than that, before the region. */
void ridge_team_limit(ridge_team *team, int64_t threads);

/* Of parts that any thread may take: the next one. They begin at `first`, which ridge_team_share sets before the
 * region. */
void ridge_team_share(ridge_team *team, int64_t first);
int64_t ridge_team_next(ridge_team *team);

/* Each thread of the region calls it when its work is done. */
void ridge_team_end(ridge_team *team);

/* Calls work(args, i) for 0 <= i < parts in the threads of such a region, every thread in the rounding mode of
 * cpu/num.h. */
void ridge_team_run(double us, int64_t parts, void (*work)(const void *args, int64_t i), const void *args);

/* Reads the most threads of a region, for ridge_open: OpenMP's default if the program has chosen it (`chosen`),
 * otherwise no more than the processors of the affinity mask and of the cgroups. Later calls of omp_set_num_threads
 * are followed. */
int ridge_team_most(bool chosen);

/* The processors that the cgroups of a process allow, rounded up; 0: no limit. membership: /proc/self/cgroup; root:
 * /sys/fs/cgroup. */
int ridge_cgroup_cpus(const char *membership, const char *root);

#endif

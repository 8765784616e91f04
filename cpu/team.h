/* team.h: how many OpenMP threads a parallel region of a call gets. The results of a call never depend on it. */
#ifndef RIDGE_TEAM_H
#define RIDGE_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ridge.h"

/* The calling thread's; valid until its next ridge_team_begin. */
typedef struct ridge_team {
    int threads;
    int late; /* rises with regions whose threads finished far apart, falls with the others */
    int64_t start, busy_until, busy_wait; /* ns */
    atomic_int left;
    _Atomic int64_t first;             /* when the first thread finished; 0: none has */
    _Alignas(64) _Atomic int64_t next; /* the part that ridge_team_next gives out next */
    _Alignas(64) atomic_int waiting;   /* threads in ridge_team_wait */
    _Alignas(64) atomic_uint turn;     /* how often they went on */
    _Alignas(64) atomic_int told;      /* of ridge_team_tell; 0: nothing yet */
} ridge_team;

/* The threads of a region of `parts` independent parts that takes one thread about `us` microseconds: one below 16 us,
 * otherwise ridge_team_most. (Nothing between: libgomp ends the threads that a smaller team leaves out.) One in a
 * forked child, because fork copies no other thread; and one for a short region while other processes keep the
 * processors busy. */
ridge_team *ridge_team_begin(double us, int64_t parts);

/* No more threads than that, before a region of OpenMP's own. (ridge_team_all has all of ridge_together's threads
 * there, however many ridge_team_begin said: what needs memory for each thread looks at ridge_thread.) */
void ridge_team_limit(ridge_team *team, int64_t threads);

/* Of parts that any thread may take: the next one. They begin at `first`, which ridge_team_share sets before the
 * region. */
void ridge_team_share(ridge_team *team, int64_t first);
int64_t ridge_team_next(ridge_team *team);

/* Each thread of a region of OpenMP's own calls it when its work is done. */
void ridge_team_end(ridge_team *team);

/* A thread of a region, and how many there are. */
typedef struct ridge_thread {
    ridge_team *team;
    int number, of;
} ridge_thread;

typedef void ridge_team_work(const void *args, ridge_thread thread);

/* The region: calls work in every thread of the team, in the rounding mode of cpu/num.h. Calls that work itself runs
 * get one thread. */
void ridge_team_all(ridge_team *team, ridge_team_work *work, const void *args);

/* The same as the last thing that a call does. In ridge_together it may return before the other threads are done;
 * ridge_team_settle waits for them: before the next call looks at its operands, in ridge_team_begin, whose team they
 * use, and before a fork. args, of `size` bytes, are copied: but for number 0, which is the calling thread, they may
 * point to nothing that ends with the call. */
void ridge_team_part(ridge_team *team, ridge_team_work *work, const void *args, size_t size);
void ridge_team_settle(void);

/* In such a work: parts [ridge_team_first(thread, parts), ridge_team_last(thread, parts)) are this thread's. */
static inline int64_t ridge_team_first(ridge_thread thread, int64_t parts)
{
    return parts * thread.number / thread.of;
}

static inline int64_t ridge_team_last(ridge_thread thread, int64_t parts)
{
    return parts * (thread.number + 1) / thread.of;
}

/* Until all threads of the region are here. */
void ridge_team_wait(ridge_thread thread);

/* For what one thread does before the others can go on: it tells them 1 to go on, 2 to give up. The others look what
 * they were told (0: nothing yet), or listen until it is something. */
void ridge_team_tell(ridge_thread thread, int what);
int ridge_team_told(ridge_thread thread);
int ridge_team_listen(ridge_thread thread);

/* Calls work(args, i) for 0 <= i < parts in the threads of such a region. */
void ridge_team_run(double us, int64_t parts, void (*work)(const void *args, int64_t i), const void *args);

/* ridge_together (ridge.h). */
ridge_status ridge_team_together(ridge_status (*body)(void *data), void *data);

/* Reads the most threads of a region, for ridge_open: OpenMP's default if the program has chosen it (`chosen`),
 * otherwise no more than the processors of the affinity mask and of the cgroups. Later calls of omp_set_num_threads
 * are followed. */
int ridge_team_most(bool chosen);

/* The processors that the cgroups of a process allow, rounded up; 0: no limit. membership: /proc/self/cgroup; root:
 * /sys/fs/cgroup. */
int ridge_cgroup_cpus(const char *membership, const char *root);

#endif

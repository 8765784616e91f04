/* team.c: how many OpenMP threads a parallel region gets: affinity and cgroup quota, the size of the work, forks, and
 * processors that others use. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "src/util.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* ------------------------------------------------------------------------------------------------------ cgroup quota
 */

/* v2: "200000 100000" or "max 100000" in one file. v1: two files, -1 for no limit. 0: none, or no such file. */
static int quota_of(const char *folder, bool v2)
{
    char path[640];
    long long quota = 0, period = 0;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    file = fopen(path, "r");
    if (!file)
        return 0;
    if (fscanf(file, "%lld %lld", &quota, &period) < (v2 ? 2 : 1))
        quota = 0;
    fclose(file);
    if (!v2) {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        file = fopen(path, "r");
        if (!file || fscanf(file, "%lld", &period) != 1)
            quota = 0;
        if (file)
            fclose(file);
    }
    if (quota <= 0 || period <= 0 || quota / period >= 1 << 20)
        return 0;
    return (int)((quota + period - 1) / period);
}

/* The smallest quota of a cgroup and of those above it. Inside a container the path may be the host's: then only the
 * top, which is the container's own, exists. */
static int smallest_quota(const char *mount, char *cgroup, bool v2)
{
    int least = 0;

    for (;;) {
        char folder[600], *slash = strrchr(cgroup, '/');
        int quota;

        snprintf(folder, sizeof folder, "%.300s%.290s", mount, cgroup);
        quota = quota_of(folder, v2);
        if (quota && (!least || quota < least))
            least = quota;
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* Whether "cpu" is one of the names in "cpu,cpuacct". */
static bool names_cpu(const char *names)
{
    while (*names) {
        const size_t length = strcspn(names, ",");

        if (length == 3 && memcmp(names, "cpu", 3) == 0)
            return true;
        names += length + (names[length] == ',');
    }
    return false;
}

int ridge_cgroup_cpus(const char *membership, const char *root)
{
    char line[512], mount[300];
    int least = 0;
    FILE *file = fopen(membership, "r");

    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) { /* "4:cpu,cpuacct:/user", "0::/user" */
        char *names = strchr(line, ':'), *cgroup = names ? strchr(names + 1, ':') : NULL;
        int quota;
        bool v2;

        if (!cgroup)
            continue;
        *cgroup++ = '\0';
        names++;
        cgroup[strcspn(cgroup, "\n")] = '\0';
        v2 = !*names;
        if (!v2 && !names_cpu(names))
            continue;
        snprintf(mount, sizeof mount, "%s%s", root, v2 ? "" : "/cpu");
        quota = smallest_quota(mount, cgroup, v2);
        if (quota && (!least || quota < least))
            least = quota;
    }
    fclose(file);
    return least;
}

/* ------------------------------------------------------------------------------------------------------------- forks
 */

static atomic_bool forked;

static void in_child(void)
{
    atomic_store(&forked, true);
}

/* A child has none of the threads that may be at work still: they finish before. */
static void watch_forks(void)
{
    pthread_atfork(ridge_team_settle, NULL, in_child);
}

/* OpenMP's default when a device was last opened, and what a region gets instead of it. */
static atomic_int openmp_most, region_most;

static int openmp_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

int ridge_team_most(bool chosen)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int most = openmp_threads();

    pthread_once(&once, watch_forks);
    atomic_store(&openmp_most, most);
    if (!chosen) {
        const int quota = ridge_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");

#ifdef _OPENMP
        most = (int)ridge_min(most, omp_get_num_procs()); /* of the affinity mask */
#endif
        most = quota ? (int)ridge_min(most, quota) : most;
    }
    atomic_store(&region_most, most);
    return most;
}

/* ------------------------------------------------------------------------------------------------------------- teams
 */

/* A region ends with its last thread. Where other processes compete for the processors, that thread waits for its turn
 * (3 ms on Linux), and the others spin meanwhile: a call of 0.1 ms takes 4 ms. No figure of the system says so cheaply
 * enough, but the finishing times do. A region is late if its last thread comes later than LATE after the first one,
 * and than twice the time that the first one took. After two late ones, or one in eight, short regions get one thread
 * for PAUSE; short is less than half of what was last waited. docs/lessons.md has the measurement. */
enum { LATE = 500000 /* ns */, PAUSE = 30 };
enum { LATE_STEP = 8, LATE_MOST = 16, LATE_AGAIN = 12 };

/* Threads that stay in one region of OpenMP's while the thread that opened it makes calls. It hands them a call's work
 * by counting `turn` up, and goes on when `left` is 0: 1.3 us for 16 threads, where a region of OpenMP's takes 3. */
enum { CREW_ROOM = 2048 };

typedef struct crew {
    _Alignas(64) atomic_uint turn;
    ridge_team_work *work; /* NULL: the end */
    const void *args;
    ridge_team *team;
    int threads;
    int place;                                     /* of the last call's arguments in room */
    _Alignas(64) atomic_int left;                  /* threads that are not done */
    _Alignas(64) unsigned char room[2][CREW_ROOM]; /* of the last two calls of ridge_team_part */
} crew;

static _Thread_local crew *own_crew;

static _Thread_local ridge_team own_team;
static _Thread_local bool working; /* in the work of a region */

static int64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

ridge_team *ridge_team_begin(double us, int64_t parts)
{
    static _Thread_local ridge_team inner;
    ridge_team *team = working ? &inner : &own_team;
    int most;

    team->threads = 1;
    if (working)
        return team;
    ridge_team_settle(); /* the call before has this team until then */
    if (!(us >= 16) || parts < 2 || atomic_load_explicit(&forked, memory_order_relaxed))
        return team;
    most = own_crew ? own_crew->threads : openmp_threads(); /* inside the region 1 with OMP_NUM_THREADS=16,1 */
    if (!own_crew && most == atomic_load_explicit(&openmp_most, memory_order_relaxed))
        most = atomic_load_explicit(&region_most, memory_order_relaxed);
    if (most == 1)
        return team;
    team->start = now();
    if (team->start < team->busy_until && us * 2e3 < (double)team->busy_wait)
        return team;
    team->threads = most;
    atomic_store_explicit(&team->left, most, memory_order_relaxed);
    atomic_store_explicit(&team->first, 0, memory_order_relaxed);
    return team;
}

void ridge_team_limit(ridge_team *team, int64_t threads)
{
    team->threads = (int)ridge_min(team->threads, threads);
    atomic_store_explicit(&team->left, team->threads, memory_order_relaxed);
}

void ridge_team_share(ridge_team *team, int64_t first)
{
    atomic_store_explicit(&team->next, first, memory_order_relaxed);
}

int64_t ridge_team_next(ridge_team *team)
{
    return atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
}

/* The last of `threads` threads to call it judges how far apart they were. */
static void finished(ridge_team *team, int threads)
{
    int64_t end, first = 0;

    if (threads == 1)
        return;
    end = now();
    if (atomic_compare_exchange_strong(&team->first, &first, end))
        first = end;
    if (atomic_fetch_sub(&team->left, 1) != 1)
        return;
    if (end - first > LATE && end - first > 2 * (first - team->start)) {
        team->late += LATE_STEP;
        team->busy_wait = end - first;
    } else if (team->late > 0)
        team->late--;
    if (team->late >= LATE_MOST) {
        team->late = LATE_AGAIN;
        team->busy_until = end + ridge_min(team->busy_wait * PAUSE, 1000000000);
    }
}

void ridge_team_end(ridge_team *team)
{
    finished(team, team->threads);
}

/* ----------------------------------------------------------------------------------------------------------- regions
 */

/* The i-th look at what another thread is to write. After 0.1 to 0.2 ms others get the processor. */
static void look_again(int i)
{
    if (i >= 4096)
        sched_yield();
#if defined(__SSE2__)
    else
        _mm_pause();
#endif
}

static void run_work(ridge_team_work *work, const void *args, ridge_thread thread)
{
    ridge_team_work *volatile const call = work; /* not inlined: no arithmetic may move across the change of mode */
    const unsigned mode = ridge_fp_begin();
    const bool before = working;

    working = true;
    call(args, thread);
    working = before;
    ridge_fp_end(mode);
}

static void follow(crew *c, int number)
{
    for (unsigned turn = 0;; turn++) {
        for (int i = 0; atomic_load_explicit(&c->turn, memory_order_acquire) == turn; i += i < 4096)
            look_again(i);
        if (!c->work)
            return;
        run_work(c->work, c->args, (ridge_thread){c->team, number, c->threads});
        finished(c->team, c->threads);
        atomic_fetch_sub_explicit(&c->left, 1, memory_order_release);
    }
}

void ridge_team_settle(void)
{
    crew *const c = working ? NULL : own_crew;

    for (int i = 0; c && atomic_load_explicit(&c->left, memory_order_acquire); i += i < 4096)
        look_again(i);
}

static void hand_out(crew *c, ridge_team *team, ridge_team_work *work, const void *args)
{
    ridge_team_settle();
    c->work = work;
    c->args = args;
    c->team = team;
    atomic_store_explicit(&c->left, c->threads - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->turn, 1, memory_order_release);
}

ridge_status ridge_team_together(ridge_status (*body)(void *data), void *data)
{
    ridge_status status = RIDGE_OK;
    crew c = {.threads = 1};

    if (own_crew || ridge_team_begin(16, 2)->threads == 1) {
        status = body(data);
        ridge_team_settle(); /* the caller of an inner ridge_together may look at results, too */
        return status;
    }
#pragma omp parallel num_threads(own_team.threads)
    {
#ifdef _OPENMP
        const int number = omp_get_thread_num();
#pragma omp single
        c.threads = omp_get_num_threads();
#else
        const int number = 0;
#endif
        if (number) {
            follow(&c, number);
        } else {
#ifdef _OPENMP
            const int levels = omp_get_max_active_levels();

            omp_set_max_active_levels(1); /* more with OMP_NUM_THREADS=16,1: kernels' own regions would make threads */
#endif
            own_crew = &c;
            status = body(data);
            hand_out(&c, NULL, NULL, NULL);
            own_crew = NULL;
#ifdef _OPENMP
            omp_set_max_active_levels(levels);
#endif
        }
    }
    return status;
}

void ridge_team_part(ridge_team *team, ridge_team_work *work, const void *args, size_t size)
{
    crew *const c = own_crew;

    atomic_store_explicit(&team->told, 0, memory_order_relaxed);
    if (team->threads == 1) { /* without libgomp, which would make a team of one and drop that of the others */
        run_work(work, args, (ridge_thread){team, 0, 1});
        return;
    }
    if (c) {
        atomic_store_explicit(&team->left, c->threads, memory_order_relaxed);
        if (size && size <= CREW_ROOM) {
            c->place ^= 1;
            args = memcpy(c->room[c->place], args, size);
        }
        hand_out(c, team, work, args);
        run_work(work, args, (ridge_thread){team, 0, c->threads});
        finished(team, c->threads);
        if (size == 0 || size > CREW_ROOM)
            ridge_team_settle();
        return;
    }
#pragma omp parallel num_threads(team->threads)
    {
#ifdef _OPENMP
        const int number = omp_get_thread_num(), threads = omp_get_num_threads();
#else
        const int number = 0, threads = 1;
#endif

        run_work(work, args, (ridge_thread){team, number, threads});
        finished(team, threads);
    }
}

void ridge_team_all(ridge_team *team, ridge_team_work *work, const void *args)
{
    ridge_team_part(team, work, args, 0);
}

void ridge_team_wait(ridge_thread thread)
{
    ridge_team *const team = thread.team;
    const unsigned turn = atomic_load_explicit(&team->turn, memory_order_relaxed);

    if (atomic_fetch_add_explicit(&team->waiting, 1, memory_order_acq_rel) == thread.of - 1) {
        atomic_store_explicit(&team->waiting, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&team->turn, 1, memory_order_release);
        return;
    }
    for (int i = 0; atomic_load_explicit(&team->turn, memory_order_acquire) == turn; i += i < 4096)
        look_again(i);
}

void ridge_team_tell(ridge_thread thread, int what)
{
    atomic_store_explicit(&thread.team->told, what, memory_order_release);
}

int ridge_team_told(ridge_thread thread)
{
    return atomic_load_explicit(&thread.team->told, memory_order_acquire);
}

int ridge_team_listen(ridge_thread thread)
{
    for (int i = 0; !ridge_team_told(thread); i += i < 4096)
        look_again(i);
    return ridge_team_told(thread);
}

typedef struct parts_args {
    void (*work)(const void *args, int64_t i);
    const void *args;
    int64_t parts;
} parts_args;

static void run_parts(const void *args, ridge_thread thread)
{
    const parts_args *p = args;

    for (int64_t i = ridge_team_first(thread, p->parts); i < ridge_team_last(thread, p->parts); i++)
        p->work(p->args, i);
}

void ridge_team_run(double us, int64_t parts, void (*work)(const void *args, int64_t i), const void *args)
{
    const parts_args p = {work, args, parts};

    ridge_team_all(ridge_team_begin(us, parts), run_parts, &p);
}

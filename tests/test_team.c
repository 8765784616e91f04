/* test_team.c: how many threads a call gets (cpu/team.c): work, parts, quota of cgroups, busy processors, forks. */

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu/team.h"
#include "ridge.h"
#include "unit.h"

static char root[] = "/tmp/ridge-cgroup-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[200];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int cpus_of(const char *membership)
{
    char path[200];

    write_file("self", membership);
    snprintf(path, sizeof path, "%s/self", root);
    return ridge_cgroup_cpus(path, root);
}

TEST(quota_of_cgroups)
{
    char command[200];

    assert_non_null(mkdtemp(root));
    assert_int_equal(cpus_of("0::/\n"), 0); /* no files */
    write_file("cpu.max", "max 100000\n");
    assert_int_equal(cpus_of("0::/\n"), 0);
    write_file("cpu.max", "250000 100000\n");
    assert_int_equal(cpus_of("0::/\n"), 3); /* rounded up */
    write_file("pod/box/cpu.max", "50000 100000\n");
    assert_int_equal(cpus_of("0::/pod/box\n"), 1);
    write_file("pod/box/cpu.max", "900000 100000\n");
    assert_int_equal(cpus_of("0::/pod/box\n"), 3); /* the smallest on the way up */
    assert_int_equal(cpus_of("0::/path/of/the/host\n"), 3);
    write_file("cpu.max", "malformed\n");
    assert_int_equal(cpus_of("0::/pod/box\n"), 9);
    assert_int_equal(cpus_of("0::/\nmalformed\n::\n:\n"), 0);
    write_file("cpu/pod/cpu.cfs_quota_us", "150000\n"); /* v1 */
    write_file("cpu/pod/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus_of("5:cpuset:/pod\n4:cpu,cpuacct:/pod\n0::/\n"), 2);
    assert_int_equal(cpus_of("4:cpuacct,cpu:/pod\n"), 2);
    assert_int_equal(cpus_of("4:cpuset:/pod\n"), 0);
    write_file("cpu/pod/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(cpus_of("4:cpu:/pod\n"), 0);
    assert_int_equal(ridge_cgroup_cpus("/no/such/file", root), 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

#ifdef _OPENMP

TEST(threads_follow_the_work)
{
    ridge_team *team;

    ridge_team_most(true);
    omp_set_num_threads(8);
    assert_int_equal(ridge_team_begin(15, 100)->threads, 1);
    assert_int_equal(ridge_team_begin(16, 100)->threads, 8);
    assert_int_equal(ridge_team_begin(1e9, 100)->threads, 8);
    assert_int_equal(ridge_team_begin(1e9, 2)->threads, 8);
    team = ridge_team_begin(1e9, 3);
    ridge_team_limit(team, 3);
    assert_int_equal(team->threads, 3);
    assert_int_equal(ridge_team_begin(1e9, 1)->threads, 1);
    assert_int_equal(ridge_team_begin(0.0 / 0.0, 100)->threads, 1);
}

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* A region of two threads; the second ends `ms` after the first. */
static void region(int ms)
{
    ridge_team *team = ridge_team_begin(100, 2);

    assert_int_equal(team->threads, 2);
    ridge_team_end(team);
    if (ms)
        sleep_ms(ms);
    ridge_team_end(team);
}

TEST(short_calls_get_one_thread_while_others_run)
{
    omp_set_num_threads(2);
    region(5);
    for (int i = 0; i < 8; i++)
        region(0);
    region(5); /* now and then is no reason */
    assert_int_equal(ridge_team_begin(100, 2)->threads, 2);
    region(5);
    assert_int_equal(ridge_team_begin(100, 2)->threads, 1);
    assert_int_equal(ridge_team_begin(2400, 2)->threads, 1);
    assert_int_equal(ridge_team_begin(100000, 2)->threads, 2); /* a long one can wait for its threads */
    sleep_ms(1100);
    region(0); /* asks again */
    region(5); /* and is soon convinced */
    assert_int_equal(ridge_team_begin(100, 2)->threads, 1);
    sleep_ms(1100);
    for (int i = 0; i < 20; i++)
        region(0);
}

/* ----------------------------------------------------------------------------------------------------------- forks */

enum { ROWS = 256, COLS = 4096 };

static void *call(void *out)
{
    static float gate[ROWS * COLS], up[ROWS * COLS];
    ridge_call call = ridge_swiglu_fwd(ROWS, COLS, RIDGE_F32, gate, up, out);
    ridge_device *device;
    bool good;

    for (int i = 0; i < ROWS * COLS; i++) {
        gate[i] = (float)(i % 999) - 500;
        up[i] = 0.5f;
    }
    good = ridge_open("cpu", &device) == RIDGE_OK && ridge_run(device, &call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(device);
    return good ? out : NULL;
}

/* OpenMP's threads are not in a child of fork: a team there would wait for them for ever. */
static void fork_and_call(void)
{
    static float before[ROWS * COLS], after[ROWS * COLS];
    int status = 0;
    pid_t child;

    omp_set_num_threads(4);
    assert_non_null(call(before));
    assert_true(ridge_team_begin(1e6, 100)->threads == 4);
    child = fork();
    if (child == 0) {
        alarm(20);
        if (!call(after) || memcmp(before, after, sizeof before) != 0 || ridge_team_begin(1e6, 100)->threads != 1)
            _exit(1);
        child = fork(); /* and its child */
        if (child == 0)
            _exit(call(after) && memcmp(before, after, sizeof before) == 0 ? 0 : 1);
        waitpid(child, &status, 0);
        exit(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1); /* with the handlers of exit */
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(ridge_team_begin(1e6, 100)->threads, 4); /* the parent goes on as before */
    assert_non_null(call(after));
    assert_memory_equal(before, after, sizeof before);
}

TEST(a_forked_child_computes_with_one_thread)
{
    fork_and_call();
}

static void *in_thread(void *nothing)
{
    fork_and_call();
    return nothing;
}

TEST(so_does_a_child_of_another_thread)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, in_thread, NULL), 0);
    pthread_join(thread, NULL);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quota_of_cgroups),
#ifdef _OPENMP
        cmocka_unit_test(threads_follow_the_work),
        cmocka_unit_test(short_calls_get_one_thread_while_others_run),
        cmocka_unit_test(a_forked_child_computes_with_one_thread),
        cmocka_unit_test(so_does_a_child_of_another_thread),
#endif
    };

    setenv("OMP_NUM_THREADS", "4", 1); /* for ridge_open: the numbers of threads here are meant */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_team.c: how many threads a call gets (cpu/team.c): work, parts, quota of cgroups, busy processors, forks; and
 * calls whose threads stay together. */

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

/* -------------------------------------------------------------------------------------------------------- together */

enum { SIDE = 1024, CHAIN = 40, TEAM = 4 };

/* Products that read each other's results, with a call between them whose kernel makes a region of OpenMP's own. */
typedef struct chain {
    ridge_device *device;
    int8_t codes[SIDE * SIDE];
    uint16_t scales[SIDE * SIDE / 32];
    float x[SIDE], y[SIDE], logits[8 * SIDE];
    _Alignas(256) char workspace[1 << 16];
    int32_t token;
} chain;

static chain *new_chain(void)
{
    chain *c = aligned_alloc(256, sizeof *c);

    assert_non_null(c);
    memset(c, 0, sizeof *c);
    assert_int_equal(ridge_open("cpu", &c->device), RIDGE_OK);
    for (int i = 0; i < SIDE * SIDE; i++)
        c->codes[i] = (int8_t)(i % 7919 * 131 % 255 - 127);
    for (int i = 0; i < SIDE * SIDE / 32; i++)
        c->scales[i] = 0x1400; /* 2^-10 */
    return c;
}

static ridge_status run_chain(void *data)
{
    chain *c = data;
    const ridge_tensor w = ridge_scaled(c->codes, RIDGE_I8, c->scales, RIDGE_SCALING_ROW32);
    const int64_t zero = 0;

    for (int i = 0; i < SIDE; i++)
        c->x[i] = (float)(i % 17) - 8;
    for (int i = 0; i < CHAIN; i++) {
        const ridge_tensor x = ridge_matrix(i % 2 ? c->y : c->x, RIDGE_F32);
        const ridge_tensor y = ridge_matrix(i % 2 ? c->x : c->y, RIDGE_F32);
        ridge_call call = ridge_q8_0_matmul(1, SIDE, SIDE, x, w, y);
        ridge_status status = ridge_run(c->device, &call, c->workspace, sizeof c->workspace, NULL);

        call = ridge_swiglu_fwd(1, SIDE, RIDGE_F32, y.data, y.data, c->logits + i % 8 * SIDE);
        status = status ? status : ridge_run(c->device, &call, NULL, 0, NULL);
        call = ridge_sample(1, 8 * SIDE, 0, ridge_matrix(c->logits, RIDGE_F32), &zero, &zero,
                            ridge_matrix(NULL, RIDGE_I32), ridge_matrix(&c->token, RIDGE_I32));
        call.opt.sample.temperature = 0;
        status = status ? status : ridge_run(c->device, &call, NULL, 0, NULL);
        if (status)
            return status;
    }
    return RIDGE_OK;
}

/* As OMP_NUM_THREADS=4,1 has it: one thread for regions inside others, which are allowed. */
static ridge_status run_chain_inside(void *data)
{
    if (!omp_in_parallel()) /* the processors are busy, and there is no region */
        return RIDGE_OK;
    omp_set_num_threads(1);
    return ridge_team_begin(1e6, 100)->threads == TEAM && omp_get_max_active_levels() == 1 ? run_chain(data)
                                                                                           : RIDGE_ERR_ARG;
}

TEST(they_keep_their_threads_where_inner_regions_have_one)
{
    const int levels = omp_get_max_active_levels();
    chain *c;

    omp_set_num_threads(TEAM);
    c = new_chain();
    omp_set_max_active_levels(2);
    assert_int_equal(ridge_together(c->device, run_chain_inside, c), RIDGE_OK);
    assert_int_equal(omp_get_max_active_levels(), 2);
    omp_set_max_active_levels(levels);
    ridge_close(c->device);
    free(c);
}

TEST(calls_that_stay_together_give_the_same_bits)
{
    chain *apart, *together;

    omp_set_num_threads(TEAM);
    apart = new_chain();
    together = new_chain();
    for (int i = 0; i < 25; i++) {
        assert_int_equal(run_chain(apart), RIDGE_OK);
        assert_int_equal(ridge_together(together->device, run_chain, together), RIDGE_OK);
        assert_memory_equal(apart->x, together->x, sizeof apart->x);
        assert_memory_equal(apart->y, together->y, sizeof apart->y);
        assert_memory_equal(apart->logits, together->logits, sizeof apart->logits);
        assert_int_equal(apart->token, together->token);
    }
    together->codes[0] ^= 1; /* it can tell */
    assert_int_equal(run_chain(apart), RIDGE_OK);
    assert_int_equal(ridge_together(together->device, run_chain, together), RIDGE_OK);
    assert_memory_not_equal(apart->x, together->x, sizeof apart->x);
    ridge_close(apart->device);
    ridge_close(together->device);
    free(apart);
    free(together);
}

typedef struct meeting {
    atomic_int *here, *late, *inner;
    int seen[TEAM], told[TEAM];
} meeting;

/* Every thread comes once, none goes on before all are here, and all hear what number 0 tells. */
static void meet(const void *args, ridge_thread thread)
{
    meeting *m = *(meeting *const *)args;

    *m->inner += ridge_team_begin(1e6, 100)->threads != 1;
    m->seen[thread.number]++;
    if (thread.number == thread.of - 1)
        sleep_ms(2);
    *m->here += 1;
    ridge_team_wait(thread);
    *m->late += *m->here != thread.of;
    if (thread.number == 0) {
        sleep_ms(2);
        ridge_team_tell(thread, 2);
    }
    m->told[thread.number] = ridge_team_listen(thread);
}

static ridge_status meetings(void *data)
{
    meeting *m = data;

    for (int i = 0; i < 3; i++) {
        *m->here = 0;
        if (i == 2) /* may return before the others are done */
            ridge_team_part(ridge_team_begin(1e6, 100), meet, &m, sizeof m);
        else
            ridge_team_all(ridge_team_begin(1e6, 100), meet, &m);
    }
    ridge_team_settle();
    return RIDGE_ERR_FILE; /* what body returns is returned */
}

typedef struct late_writer {
    ridge_device *device;
    float *gate, *out;
} late_writer;

static void write_late(const void *args, ridge_thread thread)
{
    const late_writer *w = args;

    if (thread.number != thread.of - 1)
        return;
    sleep_ms(20);
    w->gate[0] = 2;
}

static ridge_status read_late(void *data)
{
    const late_writer *w = data;
    ridge_call call = ridge_swiglu_fwd(1, 1, RIDGE_F32, w->gate, w->gate, w->out);

    ridge_team_part(ridge_team_begin(1e6, 100), write_late, w, sizeof *w);
    return ridge_run(w->device, &call, NULL, 0, NULL);
}

static void *late_in_thread(void *data)
{
    return ridge_together(((const late_writer *)data)->device, read_late, data) ? NULL : data;
}

/* In a thread of its own, whose calls no busy processor has slowed down yet. */
TEST(a_call_waits_for_the_threads_of_the_call_before)
{
    float gate = 0, out = 0;
    late_writer w = {NULL, &gate, &out};
    pthread_t thread;
    void *good;

    omp_set_num_threads(TEAM);
    assert_int_equal(ridge_open("cpu", &w.device), RIDGE_OK);
    assert_int_equal(pthread_create(&thread, NULL, late_in_thread, &w), 0);
    pthread_join(thread, &good);
    assert_ptr_equal(good, &w);
    assert_true(out > 3.5f && out < 3.6f); /* silu(2) * 2 */
    ridge_close(w.device);
}

static ridge_status start_late(void *data)
{
    ridge_team_part(ridge_team_begin(1e6, 100), write_late, data, sizeof(late_writer));
    return RIDGE_OK;
}

/* A function of the program's that uses ridge_together inside another's. */
static ridge_status read_after_inner(void *data)
{
    const late_writer *w = data;
    const ridge_status status = ridge_together(w->device, start_late, data);

    w->out[0] = w->gate[0];
    return status;
}

/* The child has what the threads that it lacks were about to write, and goes on alone. */
static ridge_status read_in_child(void *data)
{
    const late_writer *w = data;
    pid_t child;
    int status = -1;

    if (start_late(data))
        return RIDGE_ERR_ARG;
    child = fork();
    if (child == 0) {
        ridge_call call = ridge_swiglu_fwd(1, 1, RIDGE_F32, w->gate, w->gate, w->out);

        alarm(20);
        if (w->gate[0] != 2 || ridge_run(w->device, &call, NULL, 0, NULL))
            _exit(1);
        _exit(w->out[0] > 3.5f && w->out[0] < 3.6f ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? RIDGE_OK : RIDGE_ERR_FILE;
}

static void *inner_in_thread(void *data)
{
    return ridge_together(((const late_writer *)data)->device, read_after_inner, data) ? NULL : data;
}

static void *child_in_thread(void *data)
{
    return ridge_together(((const late_writer *)data)->device, read_in_child, data) ? NULL : data;
}

TEST(so_do_the_end_of_an_inner_one_and_a_fork)
{
    void *(*const run[])(void *) = {inner_in_thread, child_in_thread};

    omp_set_num_threads(TEAM);
    for (int i = 0; i < 2; i++) {
        float gate = 0, out = 0;
        late_writer w = {NULL, &gate, &out};
        pthread_t thread;
        void *good;

        assert_int_equal(ridge_open("cpu", &w.device), RIDGE_OK);
        assert_int_equal(pthread_create(&thread, NULL, run[i], &w), 0);
        pthread_join(thread, &good);
        assert_ptr_equal(good, &w);
        assert_true(i || out == 2);
        ridge_close(w.device);
    }
}

static ridge_status inside(void *data)
{
    chain *c = data;

    return ridge_together(c->device, run_chain, c);
}

TEST(threads_that_stay_together_meet)
{
    chain *c;

    omp_set_num_threads(TEAM);
    c = new_chain();
    for (int together = 0; together < 2; together++) {
        atomic_int here = 0, late = 0, inner = 0;
        meeting m = {&here, &late, &inner, {0}, {0}};

        assert_int_equal(together ? ridge_together(c->device, meetings, &m) : meetings(&m), RIDGE_ERR_FILE);
        assert_int_equal(late, 0);
        assert_int_equal(inner, 0);
        for (int i = 0; i < TEAM; i++) {
            assert_int_equal(m.seen[i], 3);
            assert_int_equal(m.told[i], 2);
        }
    }
    assert_int_equal(ridge_together(c->device, inside, c), RIDGE_OK);
    assert_int_equal(ridge_together(NULL, inside, c), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "device is NULL"));
    assert_int_equal(ridge_together(c->device, NULL, c), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "body is NULL"));
    ridge_close(c->device);
    free(c);
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
        cmocka_unit_test(calls_that_stay_together_give_the_same_bits),
        cmocka_unit_test(they_keep_their_threads_where_inner_regions_have_one),
        cmocka_unit_test(a_call_waits_for_the_threads_of_the_call_before),
        cmocka_unit_test(so_do_the_end_of_an_inner_one_and_a_fork),
        cmocka_unit_test(threads_that_stay_together_meet),
        cmocka_unit_test(a_forked_child_computes_with_one_thread),
        cmocka_unit_test(so_does_a_child_of_another_thread),
#endif
    };

    setenv("OMP_NUM_THREADS", "4", 1); /* for ridge_open: the numbers of threads here are meant */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

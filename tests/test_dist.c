/* test_dist.c: ridge_dist over ranks that are threads of this process: the results of 1 to 8 ranks against the whole
 * call, the same bits on all ranks and in all runs, what ranks say when they disagree, and collectives that fail. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "ridge_dist.h"
#include "unit.h"

enum { RANKS = 8, TOKENS = 24, HIDDEN = 40, VOCAB = 203 };

static const int sizes[] = {1, 2, 3, 4, RANKS};

/* ---------------------------------------------------------------------------------------------------- an engine */

/* All ranks meet. Once one has failed, or has waited past the deadline, no rank meets another again. */
typedef struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    long deadline_ms;
    int size, here, round;
    bool failed;
    const void *send[RANKS];
} meeting;

/* An all_to_all that waits for join. */
typedef struct pending {
    const void *send;
    void *recv;
    size_t bytes;
} pending;

typedef struct member {
    meeting *all;
    int rank, calls, fail_at; /* the collective that this rank fails in, from 1 on; 0: none */
    bool sleeps;              /* it fails by coming when the others have given up; else it says so */
    bool late;                /* all_to_all moves nothing before join */
    pending left;
} member;

static int meet(meeting *m)
{
    struct timespec until;
    int round;
    bool met;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += m->deadline_ms / 1000;
    until.tv_nsec += m->deadline_ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&m->mutex);
    round = m->round;
    if (!m->failed && ++m->here == m->size) {
        m->here = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round && !m->failed)
        if (pthread_cond_timedwait(&m->changed, &m->mutex, &until) && m->round == round) {
            m->failed = true;
            pthread_cond_broadcast(&m->changed);
        }
    met = m->round != round;
    pthread_mutex_unlock(&m->mutex);
    return met ? 0 : -1;
}

/* Makes the meeting fail, or waits until it has. */
static void fail_meeting(meeting *m, bool sleeps)
{
    pthread_mutex_lock(&m->mutex);
    if (!sleeps) {
        m->failed = true;
        pthread_cond_broadcast(&m->changed);
    }
    while (!m->failed)
        pthread_cond_wait(&m->changed, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

static int move(member *me, const void *send, void *recv, size_t bytes, bool all_to_all)
{
    meeting *m = me->all;

    if (++me->calls == me->fail_at)
        fail_meeting(m, me->sleeps);
    m->send[me->rank] = send;
    if (meet(m))
        return -1;
    for (int r = 0; r < m->size; r++)
        memcpy((char *)recv + (size_t)r * bytes, (const char *)m->send[r] + (all_to_all ? (size_t)me->rank * bytes : 0),
               bytes);
    return meet(m);
}

static int all_gather(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    (void)stream;
    return move((member *)engine, send, recv, bytes, false);
}

static int all_to_all(void *engine, const void *send, void *recv, size_t bytes, void *stream)
{
    member *me = (member *)engine;

    (void)stream;
    if (!me->late)
        return move(me, send, recv, bytes, true);
    me->left = (pending){send, recv, bytes};
    return 0;
}

static int join(void *engine, void *stream)
{
    member *me = (member *)engine;
    const pending left = me->left;

    (void)stream;
    me->left = (pending){0};
    return left.send ? move(me, left.send, left.recv, left.bytes, true) : 0;
}

static int exchange(void *engine, const void *send, void *recv, size_t bytes)
{
    return move((member *)engine, send, recv, bytes, false);
}

static int progress(void *engine, void *stream)
{
    (void)stream;
    meeting *m = ((member *)engine)->all;
    bool failed;

    pthread_mutex_lock(&m->mutex);
    failed = m->failed;
    pthread_mutex_unlock(&m->mutex);
    return failed ? RIDGE_PEERS_RUNNING : 0;
}

static const char *engine_text(void *engine)
{
    (void)engine;
    return "a thread did not come";
}

/* ---------------------------------------------------------------------------------------------------- a problem */

typedef struct problem {
    bool train, sharded, f32, none;
    int size, tokens;
    float label_smoothing;
    bool late;
    int fail_rank, fail_at;                 /* a collective that fails */
    bool sleeps;                            /* how */
    long deadline_ms;                       /* of every collective; 0: ten seconds */
    void (*spoil)(ridge_call *call, int r); /* changes a rank's call */
} problem;

typedef struct results {
    float loss[TOKENS], lse[TOKENS], dbias[VOCAB];
    float dx[TOKENS * HIDDEN], dw[VOCAB * HIDDEN];
    ridge_status agreed, ran;
    char text[1024];
} results;

static float x_f32[TOKENS * HIDDEN], w_f32[VOCAB * HIDDEN], bias[VOCAB];
static uint16_t x_bf16[TOKENS * HIDDEN], w_bf16[VOCAB * HIDDEN];
static int64_t target[TOKENS];
static ridge_device *device;

static uint16_t bf16_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

static float f32_of(uint16_t x)
{
    const uint32_t u = (uint32_t)x << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static int set_up(void **unused)
{
    unsigned state = 7;

    (void)unused;
    for (int i = 0; i < VOCAB * HIDDEN; i++) {
        state = state * 1664525u + 1013904223u;
        w_bf16[i] = bf16_of(((float)(state >> 8) * 0x1p-23f - 1.0f) * 0.5f);
        w_f32[i] = f32_of(w_bf16[i]);
        if (i < TOKENS * HIDDEN) {
            x_bf16[i] = bf16_of((float)(state >> 20) * 0x1p-10f - 2.0f);
            x_f32[i] = f32_of(x_bf16[i]);
        }
        bias[i % VOCAB] = (float)(i % 7) * 0.1f;
    }
    for (int t = 0; t < TOKENS; t++)
        target[t] = t % 5 == 3 ? -100 : (t * 61) % VOCAB;
    return ridge_open("cpu", &device);
}

/* The call of classes [first, first + count) and rows [row, row + rows), over outputs of type f32 or, of dx, x's. */
static ridge_call call_of(const problem *p, int64_t tokens, int64_t row, int64_t first, int64_t count, results *out,
                          uint16_t *dx)
{
    const ridge_dtype dtype = p->f32 ? RIDGE_F32 : RIDGE_BF16;
    const ridge_tensor x =
        ridge_matrix(p->f32 ? (void *)(x_f32 + row * HIDDEN) : (void *)(x_bf16 + row * HIDDEN), dtype);
    const ridge_tensor w =
        ridge_matrix(p->f32 ? (void *)(w_f32 + first * HIDDEN) : (void *)(w_bf16 + first * HIDDEN), dtype);
    const ridge_tensor y = ridge_matrix(target + row, RIDGE_I64);
    ridge_call call = p->train ? ridge_linear_ce_train(tokens, HIDDEN, count, x, w, y, out->loss,
                                                       ridge_matrix(p->f32 ? (void *)out->dx : (void *)dx, dtype),
                                                       ridge_matrix(out->dw, RIDGE_F32))
                               : ridge_linear_ce_eval(tokens, HIDDEN, count, x, w, y, out->loss);

    call.flags |= p->none ? RIDGE_CE_NONE : 0;
    call.opt.ce.label_smoothing = p->label_smoothing;
    ridge_set(&call, RIDGE_LINEAR_CE_BIAS, RIDGE_F32, bias + first, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_LSE, RIDGE_F32, out->lse, 0);
    if (p->train)
        ridge_set(&call, RIDGE_LINEAR_CE_DBIAS, RIDGE_F32, out->dbias, 0);
    return call;
}

static void widen_dx(const problem *p, results *out, const uint16_t *dx, int64_t rows)
{
    for (int64_t i = 0; i < rows * HIDDEN && p->train && !p->f32; i++)
        out->dx[i] = f32_of(dx[i]);
}

typedef struct rank_args {
    const problem *p;
    member me;
    results out;
} rank_args;

static void *rank_main(void *raw)
{
    rank_args *a = (rank_args *)raw;
    const problem *p = a->p;
    const int64_t rows = p->sharded ? p->tokens / p->size : p->tokens;
    int64_t first, count, offset[RANKS];
    uint16_t dx[TOKENS * HIDDEN];
    ridge_peers peers = {.struct_size = sizeof peers,
                         .rank = a->me.rank,
                         .size = p->size,
                         .engine = &a->me,
                         .all_gather = all_gather,
                         .all_to_all = all_to_all,
                         .exchange = exchange,
                         .progress = progress,
                         .text = engine_text,
                         .join = p->late ? join : NULL};
    const uint32_t how = p->sharded ? RIDGE_DIST_ROWS : 0;
    ridge_dist *dist;
    ridge_call call;
    size_t bytes;
    void *workspace;

    for (int r = p->size - 1; r >= 0; r--)
        ridge_dist_shard(VOCAB, 1, r, p->size, &offset[r], &count);
    ridge_dist_shard(VOCAB, 1, a->me.rank, p->size, &first, &count);
    call = call_of(p, p->tokens, p->sharded ? a->me.rank * rows : 0, first, count, &a->out, dx);
    call.opt.ce.vocab_offset = first;
    call.opt.ce.vocab_total = VOCAB;
    if (p->spoil)
        p->spoil(&call, a->me.rank);
    if (ridge_dist_open(device, &peers, &dist))
        return NULL;
    a->out.agreed = ridge_dist_agree(dist, &call, how);
    if (!a->out.agreed && !(a->out.ran = ridge_dist_workspace_bytes(dist, &call, how, &bytes))) {
        workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
        memset(workspace, 0x7f, bytes);
        a->out.ran = ridge_dist_run(dist, &call, how, offset, workspace, bytes, NULL);
        if (!a->out.ran)
            a->out.ran = ridge_dist_wait(dist, NULL, 0.2);
        free(workspace);
    }
    snprintf(a->out.text, sizeof a->out.text, "%s", ridge_dist_error());
    widen_dx(p, &a->out, dx, rows);
    ridge_dist_close(dist);
    return NULL;
}

static void run_ranks(const problem *p, rank_args *args)
{
    meeting all = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                   .changed = PTHREAD_COND_INITIALIZER,
                   .deadline_ms = p->deadline_ms ? p->deadline_ms : 10000,
                   .size = p->size};
    pthread_t threads[RANKS];

    memset(args, 0, sizeof *args * (size_t)p->size);
    for (int r = 0; r < p->size; r++) {
        args[r].p = p;
        args[r].me = (member){.all = &all,
                              .rank = r,
                              .fail_at = r == p->fail_rank ? p->fail_at : 0,
                              .sleeps = p->sleeps,
                              .late = p->late};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &args[r]), 0);
    }
    for (int r = 0; r < p->size; r++)
        pthread_join(threads[r], NULL);
}

static rank_args one[RANKS], two[RANKS];

/* ------------------------------------------------------------------------------------------------------- tests */

static void near(const float *got, const float *want, int64_t n, double tolerance, const char *what, const problem *p)
{
    double wrong = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        wrong += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    if (!(sqrt(wrong) <= tolerance * sqrt(size)))
        fail_msg("%s: off by %g (%d ranks, train %d, rows %d, f32 %d, none %d, smoothing %g)", what, sqrt(wrong / size),
                 p->size, p->train, p->sharded, p->f32, p->none, (double)p->label_smoothing);
}

static void against_the_whole(const problem *p)
{
    static results whole;
    uint16_t dx[TOKENS * HIDDEN];
    ridge_call call = call_of(p, p->tokens, 0, 0, VOCAB, &whole, dx);
    const int64_t rows = p->sharded ? p->tokens / p->size : p->tokens;
    const double tolerance = p->f32 ? 1e-6 : 8e-3;
    size_t bytes;
    void *workspace;

    assert_int_equal(ridge_workspace_bytes(device, &call, &bytes), RIDGE_OK);
    workspace = aligned_alloc(256, bytes + 256 - bytes % 256);
    assert_int_equal(ridge_run(device, &call, workspace, bytes, NULL), RIDGE_OK);
    free(workspace);
    widen_dx(p, &whole, dx, p->tokens);
    run_ranks(p, one);
    run_ranks(p, two);
    for (int r = 0; r < p->size; r++) {
        const results *out = &one[r].out;
        const int64_t row = p->sharded ? r * rows : 0;
        int64_t first, count;

        if (out->agreed || out->ran)
            fail_msg("rank %d: %s", r, out->text);
        ridge_dist_shard(VOCAB, 1, r, p->size, &first, &count);
        near(out->loss, whole.loss + (p->none ? row : 0), p->none ? rows : 1, 1e-6, "loss", p);
        near(out->lse, whole.lse + row, rows, 1e-6, "lse", p);
        assert_memory_equal(out, &two[r].out, offsetof(results, agreed));
        if (!p->sharded)
            assert_memory_equal(out->dx, one[0].out.dx, sizeof out->dx);
        if (!p->none)
            assert_memory_equal(out->loss, one[0].out.loss, sizeof out->loss[0]);
        if (!p->train)
            continue;
        near(out->dx, whole.dx + row * HIDDEN, rows * HIDDEN, tolerance, "dx", p);
        near(out->dw, whole.dw + first * HIDDEN, count * HIDDEN, tolerance, "dw", p);
        near(out->dbias, whole.dbias + first, count, tolerance, "dbias", p);
    }
}

TEST(ranks_give_the_whole_s_loss_and_gradients)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 16; form++) {
            const int size = sizes[i];
            problem p = {.size = size, .train = form & 1, .sharded = form & 2, .f32 = form & 4};

            p.none = form & 8 && !p.train;
            p.late = size % 2 == 0;
            p.label_smoothing = form & 8 ? 0.1f : 0.0f;
            p.tokens = p.sharded ? TOKENS : TOKENS - 1; /* 23 rows: only one rank divides them */
            against_the_whole(&p);
        }
}

static void other_flags(ridge_call *call, int r)
{
    call->flags |= r == 1 ? RIDGE_CE_SUM : 0;
}

static void other_tokens(ridge_call *call, int r)
{
    call->dim[0] -= r == 1;
}

static void other_smoothing(ridge_call *call, int r)
{
    call->opt.ce.label_smoothing = r == 1 ? 0.5f : 0.0f;
}

static void no_weight(ridge_call *call, int r)
{
    if (r == 1)
        call->arg[RIDGE_LINEAR_CE_W].data = NULL;
}

static void no_x(ridge_call *call, int r)
{
    if (r == 1)
        call->arg[RIDGE_LINEAR_CE_X].data = NULL;
}

static void other_dx(ridge_call *call, int r)
{
    if (r == 1)
        call->arg[RIDGE_LINEAR_CE_DX].dtype = RIDGE_BF16;
}

static void crooked_dx(ridge_call *call, int r)
{
    if (r == 1)
        call->arg[RIDGE_LINEAR_CE_DX].data = (char *)call->arg[RIDGE_LINEAR_CE_DX].data + 1;
}

static void a_gap(ridge_call *call, int r)
{
    call->opt.ce.vocab_offset += r == 1;
}

static void other_total(ridge_call *call, int r)
{
    (void)r;
    call->opt.ce.vocab_total++;
}

static void entropy(ridge_call *call, int r)
{
    if (r == 1)
        ridge_set(call, RIDGE_LINEAR_CE_ENTROPY, RIDGE_F32, call->arg[RIDGE_LINEAR_CE_LSE].data, 0);
}

TEST(ranks_that_disagree_get_the_same_error)
{
    static const struct {
        void (*spoil)(ridge_call *, int);
        const char *text;
    } cases[] = {
        {other_flags, "rank 1 has flags 256, rank 0 has 0"},
        {other_tokens, "rank 1 has tokens 23, rank 0 has 24"},
        {other_smoothing, "rank 1 has label_smoothing 0.5, rank 0 has 0"},
        {no_weight, "rank 1: linear_ce_train: operand w is NULL"},
        {no_x, "rank 1: ridge_dist: operand x is NULL"},
        {other_dx, "rank 1: ridge_dist: operand dx has another dtype than x"},
        {crooked_dx, "rank 1: sum: operand out"},
        {a_gap, "rank 1 has vocab_offset 69, but the slices before it end at 68"},
        {other_total, "the slices have 203 classes, vocab_total is 204"},
        {entropy, "rank 1: ridge_dist: operand entropy is not supported over several ranks"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const problem p = {
            .size = 3, .train = true, .f32 = true, .sharded = i > 3, .tokens = TOKENS, .spoil = cases[i].spoil};

        run_ranks(&p, one);
        for (int r = 0; r < p.size; r++) {
            assert_int_equal(one[r].out.agreed, RIDGE_ERR_ARG);
            if (!strstr(one[r].out.text, cases[i].text))
                fail_msg("rank %d says '%s', not '%s'", r, one[r].out.text, cases[i].text);
        }
    }
}

/* Of a sharded train: the exchange of agree, x, target, records, parts of dx. */
TEST(a_collective_that_fails_is_an_error_on_every_rank)
{
    for (int at = 1; at <= 5; at++) {
        const problem p = {
            .size = 3, .train = true, .sharded = true, .tokens = TOKENS, .fail_rank = at % 3, .fail_at = at};

        run_ranks(&p, one);
        for (int r = 0; r < p.size; r++)
            if ((at == 1 ? one[r].out.agreed : one[r].out.ran) != RIDGE_ERR_PEER ||
                !strstr(one[r].out.text, "a thread did not come"))
                fail_msg("collective %d, rank %d: '%s'", at, r, one[r].out.text);
    }
}

/* A hundred: a rank fails, or sleeps past the deadline, in each collective of a train of whole and of sharded rows. No
 * rank waits for longer than deadlines, and none takes what it has for a result. On a machine that stalls the deadline
 * may end an earlier collective: that is an error on every rank, too. */
TEST(a_hundred_failures_end_with_an_error_on_every_rank)
{
    int count = 0;

    for (size_t i = 1; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int sharded = 0; sharded < 2; sharded++)
            for (int at = 1; at <= 4 + sharded; at++)
                for (int rank = sizes[i] < 4 ? 0 : at; rank < (sizes[i] < 4 ? sizes[i] : at + 1); rank++)
                    for (int sleeps = 0; sleeps < 2; sleeps++, count++) {
                        const int size = sizes[i];
                        const problem p = {.size = size,
                                           .train = true,
                                           .late = at % 2,
                                           .sharded = sharded,
                                           .tokens = TOKENS,
                                           .fail_rank = rank % size,
                                           .fail_at = at,
                                           .sleeps = sleeps,
                                           .deadline_ms = sleeps ? 60 : 0};

                        run_ranks(&p, one);
                        for (int r = 0; r < size; r++)
                            if (one[r].out.agreed != RIDGE_ERR_PEER && one[r].out.ran != RIDGE_ERR_PEER)
                                fail_msg("collective %d of rank %d of %d: rank %d says '%s'", at, rank, size, r,
                                         one[r].out.text);
                    }
    assert_true(count >= 100);
}

static int never(void *engine, void *stream)
{
    (void)engine, (void)stream;
    return RIDGE_PEERS_RUNNING;
}

TEST(wait_ends_at_its_deadline_and_open_refuses)
{
    ridge_peers peers = {.struct_size = sizeof peers,
                         .rank = 0,
                         .size = 1,
                         .all_gather = all_gather,
                         .all_to_all = all_to_all,
                         .exchange = exchange,
                         .progress = never};
    ridge_dist *dist = NULL;
    int64_t first, count, next = 0;

    assert_int_equal(ridge_dist_open(device, &peers, &dist), RIDGE_OK);
    assert_int_equal(ridge_dist_wait(dist, NULL, 0.05), RIDGE_ERR_PEER);
    assert_non_null(strstr(ridge_dist_error(), "not done after 0.05 seconds"));
    ridge_dist_close(dist);
    peers.rank = 1;
    assert_int_equal(ridge_dist_open(device, &peers, &dist), RIDGE_ERR_ARG);
    assert_null(dist);
    peers.rank = 0;
    peers.all_to_all = NULL;
    assert_int_equal(ridge_dist_open(device, &peers, &dist), RIDGE_ERR_ARG);
    peers.struct_size = 3;
    assert_int_equal(ridge_dist_open(device, &peers, &dist), RIDGE_ERR_ARG);
    for (int r = 0; r < 7; r++, next += count) {
        ridge_dist_shard(1000, 8, r, 7, &first, &count);
        assert_int_equal(first, next);
        assert_true(first % 8 == 0 && count >= 0);
    }
    assert_int_equal(next, 1000);
    ridge_dist_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_whole_s_loss_and_gradients),
        cmocka_unit_test(ranks_that_disagree_get_the_same_error),
        cmocka_unit_test(a_collective_that_fails_is_an_error_on_every_rank),
        cmocka_unit_test(a_hundred_failures_end_with_an_error_on_every_rank),
        cmocka_unit_test(wait_ends_at_its_deadline_and_open_refuses),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}

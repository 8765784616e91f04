/* model.c: `ridge bench --model`: tokens per second of a whole model, prompts (pp512) and text (tg128) at three depths
 * and for three numbers of texts that step together, as llama.cpp's llama-bench names them, beside a read of what a
 * step must read: the weights, and the caches of keys and values. Text is drawn on the device, the likeliest token
 * each. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "lm/lm.h"
#include "tools/cli.h"
#include "tools/generate/generate.h"

enum { PROMPT = 512, STEPS = 128, WARM = 4, ROUNDS = 5, TEXTS = RIDGE_LM_MAX_SESSIONS };

static const double enough_time = 1.5; /* seconds; then no further round begins */

typedef struct model_bench {
    bench *b;
    ridge_lm *lm;
    ridge_lm_info info;
    const char *name;
    ridge_lm_session *session[TEXTS];
    int32_t next[TEXTS], prompt[PROMPT];
    ridge_lm_sampling sampling[TEXTS];
    float *logits;
    bool any; /* test was asked for */
} model_bench;

static bool failed(void)
{
    line_print(stderr, "ridge bench: %s", ridge_lm_error());
    return false;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* A line: seconds of `rounds` rounds, each of `steps` steps that make `tokens` tokens in all and read `bytes` each. */
static void report(model_bench *m, const char *test, double *time, int rounds, int steps, int tokens, double bytes)
{
    const double gbps = read_rate(m->b->device, (int64_t)bytes), floor_us = gbps > 0 ? bytes * 1e-3 / gbps : -1;
    record r;

    qsort(time, (size_t)rounds, sizeof *time, by_value);
    record_begin(&m->b->sink, &r);
    snprintf(r.suite, sizeof r.suite, "model");
    snprintf(r.op, sizeof r.op, "ridge_lm");
    snprintf(r.problem, sizeof r.problem, "%s %s", m->name, test);
    snprintf(r.provider, sizeof r.provider, "ridge");
    r.us = time[rounds / 2] * 1e6 / steps;
    r.us_p20 = time[rounds / 5] * 1e6 / steps;
    r.us_p80 = time[rounds - 1 - rounds / 5] * 1e6 / steps;
    r.gbps = bytes * 1e-3 / r.us;
    r.floor_us = floor_us;
    record_emit(&m->b->sink, &r);
    if (!m->b->sink.json)
        printf("%-24s %-22s %9.1f tokens/s %10.1f us a step %6.1f %% of a read (%.1f us)\n", m->name, test,
               tokens / time[rounds / 2], r.us, 100 * floor_us / r.us, floor_us);
    fflush(stdout);
}

static bool wanted(model_bench *m, const char *test)
{
    const args_list *list = &m->b->o->tests;
    bool any = list->count == 0;

    for (int i = 0; i < list->count && !any; i++)
        any = name_matches(list->at[i], test);
    m->any = m->any || any;
    return any;
}

/* With RIDGE_LM_FAST in `flags`, attention by attention_prefill. */
static bool prompts(model_bench *m, uint32_t flags)
{
    const char *test = flags ? "pp512 fast" : "pp512";
    double time[ROUNDS], sum = 0;
    int rounds = 0;

    if (!wanted(m, test))
        return true;
    if (ridge_lm_session_open(m->lm, PROMPT, &m->session[0]) ||
        ridge_lm_decode(m->session[0], m->prompt, PROMPT / 8, flags, m->logits))
        return failed();
    for (; rounds < ROUNDS && sum < enough_time; rounds++) {
        const double start = seconds();

        if (ridge_lm_rewind(m->session[0], 0) || ridge_lm_decode(m->session[0], m->prompt, PROMPT, flags, m->logits))
            return failed();
        time[rounds] = seconds() - start;
        sum += time[rounds];
    }
    report(m, test, time, rounds, 1, PROMPT, (double)m->info.step_bytes);
    return true;
}

static bool steps(model_bench *m, int64_t texts, int count)
{
    for (int i = 0; i < count; i++) {
        int32_t tokens[TEXTS];

        memcpy(tokens, m->next, sizeof tokens);
        for (int64_t t = 0; t < texts; t++)
            m->sampling[t].counter = (uint64_t)ridge_lm_position(m->session[t]);
        if (ridge_lm_step(m->session, texts, tokens, m->sampling, RIDGE_LM_AHEAD, m->next, NULL))
            return failed();
    }
    return true;
}

static bool text(model_bench *m, int64_t texts, int64_t depth)
{
    const double bytes =
        (double)m->info.step_bytes + (double)m->info.kv_bytes * (double)texts * ((double)depth + STEPS / 2);
    double time[ROUNDS], sum = 0;
    char test[64];
    int rounds = 0;

    snprintf(test, sizeof test, "tg%d", STEPS);
    if (depth)
        snprintf(test + strlen(test), sizeof test - strlen(test), " @ d%" PRId64, depth);
    if (texts > 1)
        snprintf(test + strlen(test), sizeof test - strlen(test), " x %" PRId64, texts);
    if (!wanted(m, test))
        return true;
    if (ridge_lm_sessions_open(m->lm, depth + STEPS + WARM + 1, texts, m->session)) {
        line_print(stderr, "%s %s left out: %s", m->name, test, ridge_lm_error());
        return true;
    }
    if (lm_skip(m->session, texts, depth))
        return failed();
    for (; rounds < ROUNDS && sum < enough_time; rounds++) {
        double start;

        for (int64_t t = 0; t < texts; t++) {
            m->next[t] = m->prompt[t];
            if (ridge_lm_rewind(m->session[t], depth))
                return failed();
        }
        if (!steps(m, texts, WARM))
            return false;
        start = seconds();
        if (!steps(m, texts, STEPS))
            return false;
        time[rounds] = seconds() - start;
        sum += time[rounds];
    }
    report(m, test, time, rounds, STEPS, STEPS * (int)texts, bytes);
    return true;
}

static void close_sessions(model_bench *m)
{
    for (int i = 0; i < TEXTS; i++) {
        ridge_lm_session_close(m->session[i]);
        m->session[i] = NULL;
    }
}

static bool run(model_bench *m)
{
    static const int64_t depths[] = {0, 4096, 16384}, texts[] = {1, 8, 16};
    bool good = prompts(m, 0);

    close_sessions(m);
    good = good && prompts(m, RIDGE_LM_FAST);
    close_sessions(m);
    for (int i = 0; i < 9 && good; i++)
        if (depths[i / 3] + STEPS < m->info.context) {
            good = text(m, texts[i % 3], depths[i / 3]);
            close_sessions(m);
        }
    if (good && !m->any)
        fprintf(
            stderr,
            "ridge bench: no test matches; there are pp512, 'pp512 fast', tg128, 'tg128 @ d4096' and 'tg128 @ d16384' "
            "(within %" PRId64 " positions), and those of text with ' x 8' and ' x 16' behind\n",
            m->info.context);
    return good && m->any;
}

bool bench_model(bench *b)
{
    model_bench m = {.b = b, .info = {.struct_size = sizeof m.info}, .name = b->o->model};
    const char *slash = strrchr(m.name, '/');
    bool good = false;

    if (strstr(m.name, ".gguf") ? ridge_lm_open(m.name, b->device, NULL, &m.lm)
                                : lm_open_shape(m.name, b->device, &m.lm))
        return failed();
    m.name = slash ? slash + 1 : m.name;
    if (ridge_lm_query(m.lm, &m.info)) {
        failed();
    } else if ((m.logits = malloc((size_t)m.info.vocabulary * sizeof *m.logits)) == NULL) {
        fprintf(stderr, "ridge bench: out of memory\n");
    } else {
        for (int i = 0; i < PROMPT; i++)
            m.prompt[i] = (int32_t)((i * 7919 + 11) % m.info.vocabulary);
        for (int i = 0; i < TEXTS; i++)
            m.sampling[i] = (ridge_lm_sampling){.struct_size = sizeof m.sampling[i], .top_p = 1};
        good = run(&m);
    }
    close_sessions(&m);
    free(m.logits);
    ridge_lm_close(m.lm);
    return good;
}

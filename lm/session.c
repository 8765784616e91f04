/* session.c: texts: prompts in panels, steps of several texts, and what may be asked of them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* --------------------------------------------------------------------------------------------------- open and close */

static ridge_status open_one(lm_batch *b, int32_t slot, ridge_lm_session **to)
{
    ridge_lm_session *s = calloc(1, sizeof *s);

    *to = s;
    if (s)
        s->text = malloc((size_t)b->positions * sizeof *s->text);
    if (!s || !s->text) {
        free(s);
        *to = NULL;
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for a session");
    }
    s->batch = b;
    s->slot = slot;
    b->open++;
    return RIDGE_OK;
}

ridge_status ridge_lm_sessions_open(ridge_lm *lm, int64_t positions, int64_t count, ridge_lm_session **to)
{
    ridge_status status = RIDGE_OK;
    lm_batch *b;

    for (int64_t i = 0; to && i < count && count <= RIDGE_LM_MAX_SESSIONS; i++)
        to[i] = NULL;
    if (!lm || !to || positions < 1 || positions > 1 << 24 || count < 1 || count > RIDGE_LM_MAX_SESSIONS)
        return lm_fail(RIDGE_ERR_ARG,
                       "ridge_lm_sessions_open: a pointer is NULL, positions is %" PRId64
                       ", outside 1 .. 2^24, or count is %" PRId64 ", outside 1 .. %d",
                       positions, count, (int)RIDGE_LM_MAX_SESSIONS);
    LM_TRY(lm_batch_open(lm, positions, count, &b));
    for (int64_t i = 0; i < count && !status; i++)
        status = open_one(b, (int32_t)i, &to[i]);
    if (status && !b->open)
        lm_batch_close(b);
    for (int64_t i = 0; i < count && status; i++) {
        ridge_lm_session_close(to[i]);
        to[i] = NULL;
    }
    return status;
}

ridge_status ridge_lm_session_open(ridge_lm *lm, int64_t positions, ridge_lm_session **to)
{
    return ridge_lm_sessions_open(lm, positions, 1, to);
}

void ridge_lm_session_close(ridge_lm_session *s)
{
    if (!s)
        return;
    if (--s->batch->open == 0)
        lm_batch_close(s->batch);
    free(s->text);
    free(s);
}

int64_t ridge_lm_position(const ridge_lm_session *s)
{
    return s ? s->at : 0;
}

const int32_t *ridge_lm_text(const ridge_lm_session *s)
{
    return s ? s->text : NULL;
}

ridge_status ridge_lm_rewind(ridge_lm_session *s, int64_t position)
{
    if (!s || position < 0 || position > s->at)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_rewind: to position %" PRId64 " of %" PRId64, position, s ? s->at : 0);
    s->at = position;
    return RIDGE_OK;
}

/* Numbers between 1/8 and 2 of either sign, as f16. */
static ridge_status fill_cache(lm_batch *b, char *to, int64_t bytes)
{
    uint16_t panel[4096];
    const int64_t first = bytes < (int64_t)sizeof panel ? bytes : (int64_t)sizeof panel;

    for (uint32_t i = 0; i < 4096; i++)
        panel[i] = (uint16_t)(((i * 40503u) & 0x8fff) | 0x3000);
    LM_TRY(b->lm->backend->upload(b->state, to, panel, first));
    for (int64_t at = first; at < bytes; at *= 2)
        LM_TRY(b->lm->backend->copy(b->state, to + at, to, at < bytes - at ? at : bytes - at));
    return RIDGE_OK;
}

ridge_status lm_skip(ridge_lm_session *const *s, int64_t count, int64_t positions)
{
    lm_batch *b = s[0]->batch;
    const lm_config *c = &b->lm->config;
    const int64_t bytes = c->layers * b->slots * c->kv_heads * c->head_dim * b->positions * 2;

    LM_TRY(fill_cache(b, b->k, bytes));
    LM_TRY(fill_cache(b, b->v, bytes));
    for (int64_t i = 0; i < count; i++) {
        s[i]->at = positions;
        memset(s[i]->text, 0, (size_t)positions * sizeof *s[i]->text);
    }
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------ steps */

/* Positions that attention is launched for: a power of two, so that a graph serves many steps. */
static int64_t reach(const lm_batch *b, int64_t end)
{
    int64_t positions = LM_REACH;

    while (positions < end)
        positions *= 2;
    return positions < b->positions ? positions : b->positions;
}

static ridge_status check_tokens(const ridge_lm *lm, const char *function, const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= lm->vocab.count)
            return lm_fail(RIDGE_ERR_ARG, "%s: token %" PRId64 " is %d, outside 0 .. %d", function, i, tokens[i],
                           lm->vocab.count - 1);
    return RIDGE_OK;
}

/* The host's inputs of the next step, free to be written. */
static ridge_status next_inputs(lm_batch *b, lm_inputs **in)
{
    b->turn ^= 1;
    *in = b->host[b->turn];
    return b->lm->backend->wait(b->state, b->turn); /* the step that had them before */
}

/* Runs a step with the inputs of this turn; with `drawn`, it goes on with the tokens that the step before it drew, and
 * the rest of its inputs arrives while that one runs. */
static ridge_status launch(lm_batch *b, const lm_step *step, bool drawn)
{
    const lm_backend *backend = b->lm->backend;
    const lm_inputs *in = b->host[b->turn];

    LM_TRY(drawn ? backend->send_beside(b->state, b->inputs[b->turn], in, (int64_t)offsetof(lm_inputs, token))
                 : backend->send(b->state, b->inputs[b->turn], in, (int64_t)sizeof *in));
    if (!b->lm->table.dtype) {
        LM_TRY(lm_embed(b->lm, in->token, step->tokens, b->host_x));
        LM_TRY(backend->upload(b->state, b->x[0], b->host_x, step->tokens * b->lm->config.hidden * 4));
    }
    LM_TRY(lm_run_step(b, step));
    return backend->fetch(b->state, b->drawn[b->turn], b->inputs[b->turn ^ 1]->token,
                          step->sampled ? step->rows * 4 : 0, b->turn);
}

static ridge_status take_logits(lm_batch *b, int64_t rows, float *logits)
{
    const float cap = (float)b->lm->config.final_softcap;
    const int64_t count = rows * b->lm->vocab.count;

    LM_TRY(b->lm->backend->download(b->state, logits, b->logits, count * 4));
    for (int64_t i = 0; i < count && cap > 0; i++)
        logits[i] = cap * tanhf(logits[i] / cap);
    return RIDGE_OK;
}

/* Up to a panel of tokens at position `at`; logits of the last `rows` of them. */
static ridge_status panel(ridge_lm_session *s, const int32_t *tokens, int64_t n, int64_t at, int64_t rows, bool fast,
                          float *logits)
{
    lm_batch *b = s->batch;
    lm_inputs *in;
    lm_step step;

    memset(&step, 0, sizeof step);
    step.tokens = n;
    step.rows = rows;
    step.positions = reach(b, at + n);
    step.runs = 1;
    step.fast = fast && b->prefill;
    step.run[0] = (lm_run){s->slot, (int32_t)n};
    LM_TRY(next_inputs(b, &in));
    for (int64_t i = 0; i < n; i++) {
        in->pos[i] = (int32_t)(at + i);
        in->token[i] = tokens[i];
    }
    LM_TRY(launch(b, &step, false));
    return rows ? take_logits(b, rows, logits) : RIDGE_OK;
}

ridge_status ridge_lm_decode(ridge_lm_session *s, const int32_t *tokens, int64_t count, uint32_t flags, float *logits)
{
    if (!s || !tokens || count < 1 || flags & ~(RIDGE_LM_ALL | RIDGE_LM_FAST))
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_decode: a pointer is NULL, count is %" PRId64 ", or a flag is unknown",
                       count);
    if (count > s->batch->positions - s->at)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_decode: %" PRId64 " tokens at position %" PRId64 " of %" PRId64, count,
                       s->at, s->batch->positions);
    LM_TRY(check_tokens(s->batch->lm, "ridge_lm_decode", tokens, count));
    s->batch->ahead = false;
    for (int64_t i = 0, n; i < count; i += n) {
        const bool all = logits && flags & RIDGE_LM_ALL;
        const int64_t most = all && s->batch->panel > LM_ROWS ? LM_ROWS : s->batch->panel;

        n = count - i < most ? count - i : most;
        LM_TRY(panel(s, tokens + i, n, s->at + i, all ? n : logits && i + n == count, flags & RIDGE_LM_FAST,
                     all ? logits + i * s->batch->lm->vocab.count : logits));
    }
    memcpy(s->text + s->at, tokens, (size_t)count * sizeof *tokens);
    s->at += count;
    return RIDGE_OK;
}

/* ---------------------------------------------------------------------------------------------------- several texts */

static ridge_status check_step(ridge_lm_session *const *s, int64_t count, const int32_t *tokens,
                               const ridge_lm_sampling *sampling, uint32_t flags, const int32_t *next)
{
    if (!s || !tokens || count < 1 || count > RIDGE_LM_MAX_SESSIONS || flags & ~RIDGE_LM_AHEAD || !sampling != !next ||
        (flags && !sampling))
        return lm_fail(RIDGE_ERR_ARG,
                       "ridge_lm_step: a pointer is NULL, count is %" PRId64
                       ", a flag is unknown, or only one of sampling and next is given",
                       count);
    for (int64_t i = 0; i < count; i++) {
        if (!s[i] || s[i]->batch != s[0]->batch)
            return lm_fail(RIDGE_ERR_ARG, "ridge_lm_step: session %" PRId64 " was not opened together with the first",
                           i);
        for (int64_t j = 0; j < i; j++)
            if (s[j] == s[i])
                return lm_fail(RIDGE_ERR_ARG, "ridge_lm_step: sessions %" PRId64 " and %" PRId64 " are the same", j, i);
        if (s[i]->at == s[i]->batch->positions)
            return lm_fail(RIDGE_ERR_ARG,
                           "ridge_lm_step: the text of session %" PRId64 " has all its %" PRId64 " positions", i,
                           s[i]->at);
        if (sampling && memcmp(&sampling[i], &sampling[0], offsetof(ridge_lm_sampling, seed)) != 0)
            return lm_fail(RIDGE_ERR_ARG,
                           "ridge_lm_step: sampling %" PRId64 " differs from the first in more than seed and counter",
                           i);
    }
    if (sampling)
        LM_TRY(lm_check_sampling("ridge_lm_step", sampling));
    return check_tokens(s[0]->batch->lm, "ridge_lm_step", tokens, count);
}

/* A token each of `count` sessions, `later` steps after the one that is asked for. */
static void describe(ridge_lm_session *const *s, int64_t count, const ridge_lm_sampling *sampling, int64_t later,
                     lm_step *step)
{
    int64_t end = 0;

    memset(step, 0, sizeof *step);
    step->tokens = step->rows = step->runs = count;
    for (int64_t i = 0; i < count; i++) {
        step->run[i] = (lm_run){s[i]->slot, 1};
        end = s[i]->at + later + 1 > end ? s[i]->at + later + 1 : end;
    }
    step->positions = reach(s[0]->batch, end);
    /* A cap on logits is applied to what the host gets of them, and draws follow it. */
    if (!sampling || s[0]->batch->lm->config.final_softcap > 0)
        return;
    step->sampled = 1;
    step->sample = (ridge_sample_options){sampling->top_k, sampling->temperature, sampling->top_p, sampling->min_p, 1};
}

static ridge_status begin_step(ridge_lm_session *const *s, const lm_step *step, const int32_t *tokens,
                               const ridge_lm_sampling *sampling, int64_t later)
{
    lm_inputs *in;

    LM_TRY(next_inputs(s[0]->batch, &in));
    for (int64_t i = 0; i < step->tokens; i++) {
        in->seed[i] = sampling ? (int64_t)sampling[i].seed : 0;
        in->counter[i] = sampling ? (int64_t)(sampling[i].counter + (uint64_t)later) : 0;
        in->pos[i] = (int32_t)(s[i]->at + later);
        in->token[i] = tokens ? tokens[i] : -1;
    }
    return launch(s[0]->batch, step, !tokens);
}

/* Whether the step that was begun ahead is the one that is asked for: then its inputs and tokens are those of `turn`.
 */
static bool was_begun(ridge_lm_session *const *s, const lm_step *step, const int32_t *tokens,
                      const ridge_lm_sampling *sampling)
{
    const lm_batch *b = s[0]->batch;
    const lm_inputs *in = b->host[b->turn];

    if (!b->ahead || memcmp(&b->ahead_step, step, sizeof *step) != 0)
        return false;
    for (int64_t i = 0; i < step->tokens; i++)
        if (in->pos[i] != s[i]->at || in->seed[i] != (int64_t)sampling[i].seed ||
            in->counter[i] != (int64_t)sampling[i].counter || b->drawn[b->turn ^ 1][i] != tokens[i])
            return false;
    return true;
}

/* Begins the step after this one with the tokens that this one draws, where every text has room for them. */
static ridge_status begin_ahead(ridge_lm_session *const *s, int64_t count, const ridge_lm_sampling *sampling)
{
    lm_batch *b = s[0]->batch;

    for (int64_t i = 0; i < count; i++)
        if (s[i]->at + 1 == b->positions)
            return RIDGE_OK;
    describe(s, count, sampling, 1, &b->ahead_step);
    LM_TRY(begin_step(s, &b->ahead_step, NULL, sampling, 1));
    b->ahead = true;
    return RIDGE_OK;
}

static ridge_status draw_on_host(lm_batch *b, int64_t count, const ridge_lm_sampling *sampling, int32_t *next,
                                 float *logits)
{
    float *own = logits ? NULL : malloc((size_t)(count * b->lm->vocab.count) * sizeof *own);
    ridge_status status = RIDGE_OK;

    if (!logits && !own)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for logits");
    if (own)
        status = take_logits(b, count, own);
    for (int64_t i = 0; i < count && !status; i++)
        status = ridge_lm_sample(b->lm, (own ? own : logits) + i * b->lm->vocab.count, &sampling[i], &next[i]);
    free(own);
    return status;
}

/* What the step of `turn` drew. */
static ridge_status take_drawn(lm_batch *b, int turn, int64_t count, int32_t *next)
{
    LM_TRY(b->lm->backend->wait(b->state, turn));
    for (int64_t i = 0; i < count; i++) {
        if (b->drawn[turn][i] < 0)
            return lm_fail(RIDGE_ERR_ARG, "ridge_lm_step: a logit of session %" PRId64 " is NaN", i);
        next[i] = b->drawn[turn][i];
    }
    return RIDGE_OK;
}

ridge_status ridge_lm_step(ridge_lm_session *const *s, int64_t count, const int32_t *tokens,
                           const ridge_lm_sampling *sampling, uint32_t flags, int32_t *next, float *logits)
{
    lm_batch *b;
    lm_step step;
    bool begun;
    int turn;

    LM_TRY(check_step(s, count, tokens, sampling, flags, next));
    b = s[0]->batch;
    describe(s, count, sampling, 0, &step);
    begun = was_begun(s, &step, tokens, sampling);
    b->ahead = false;
    if (!begun)
        LM_TRY(begin_step(s, &step, tokens, sampling, 0));
    turn = b->turn;
    if (logits)
        LM_TRY(take_logits(b, count, logits));
    if (sampling && !step.sampled)
        LM_TRY(draw_on_host(b, count, sampling, next, logits));
    if (step.sampled && flags & RIDGE_LM_AHEAD && !b->lm->backend->host)
        LM_TRY(begin_ahead(s, count, sampling));
    if (step.sampled)
        LM_TRY(take_drawn(b, turn, count, next));
    for (int64_t i = 0; i < count; i++)
        s[i]->text[s[i]->at++] = tokens[i];
    return RIDGE_OK;
}

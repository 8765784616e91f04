/* sample.c: which token comes next: the largest logit's by a loop of its own, since every token waits for it; a draw by
 * the op `sample` on the CPU. */
#include <math.h>

#include "lm.h"

/* The largest of the logits, in lanes that the compiler makes vectors of; *number: none is NaN. */
static float largest(const float *logits, int32_t count, bool *number)
{
    enum { LANES = 32 };
    float most[LANES];
    uint32_t nan = 0;

    for (int j = 0; j < LANES; j++)
        most[j] = -INFINITY;
    for (int32_t i = 0; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) {
            most[j] = logits[i + j] > most[j] ? logits[i + j] : most[j];
            nan |= logits[i + j] != logits[i + j];
        }
    for (int32_t i = count / LANES * LANES; i < count; i++) {
        most[0] = logits[i] > most[0] ? logits[i] : most[0];
        nan |= logits[i] != logits[i];
    }
    for (int j = 1; j < LANES; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    *number = nan == 0;
    return most[0];
}

ridge_status ridge_lm_argmax(const ridge_lm *lm, const float *logits, int32_t *token)
{
    int32_t i = 0;
    bool number;
    float most;

    if (!lm || !logits || !token)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_argmax: a pointer is NULL");
    most = largest(logits, lm->vocab.count, &number);
    if (!number) {
        while (!isnan(logits[i]))
            i++;
        return lm_fail(RIDGE_ERR_ARG, "the logit of token %d is NaN", i);
    }
    while (logits[i] != most)
        i++;
    *token = i;
    return RIDGE_OK;
}

ridge_status lm_check_sampling(const char *function, const ridge_lm_sampling *o)
{
    if (!o || o->struct_size != sizeof *o)
        return lm_fail(RIDGE_ERR_ARG, "%s: sampling is NULL or of another size", function);
    if (!(o->temperature >= 0) || isinf(o->temperature) || o->top_k < 0 || !(o->top_p > 0 && o->top_p <= 1) ||
        !(o->min_p >= 0 && o->min_p <= 1))
        return lm_fail(RIDGE_ERR_ARG, "%s: temperature %g, top_k %d, top_p %g or min_p %g is out of range", function,
                       (double)o->temperature, o->top_k, (double)o->top_p, (double)o->min_p);
    return RIDGE_OK;
}

ridge_status ridge_lm_sample(const ridge_lm *lm, const float *logits, const ridge_lm_sampling *o, int32_t *token)
{
    ridge_status status;
    ridge_call call;

    if (!lm || !logits || !token)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_sample: a pointer is NULL");
    status = lm_check_sampling("ridge_lm_sample", o);
    if (status)
        return status;
    if (o->temperature == 0.0f)
        return ridge_lm_argmax(lm, logits, token);
    call = ridge_sample(1, lm->vocab.count, 0, ridge_matrix(logits, RIDGE_F32), (const int64_t *)&o->seed,
                        (const int64_t *)&o->counter, ridge_matrix(NULL, RIDGE_I32), ridge_matrix(token, RIDGE_I32));
    call.opt.sample.top_k = o->top_k;
    call.opt.sample.temperature = o->temperature;
    call.opt.sample.top_p = o->top_p;
    call.opt.sample.min_p = o->min_p;
    status = lm_ridge_failed(ridge_run(lm->cpu, &call, NULL, 0, NULL));
    return status || *token >= 0 ? status : ridge_lm_argmax(lm, logits, token); /* which says where the NaN is */
}

/* dist.c: devices and their peers: opening, agreement of the ranks, deadlines, errors. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dist.h"

static _Thread_local char message[1024];

const char *ridge_dist_error(void)
{
    return message;
}

ridge_status dist_fail(ridge_status status, const char *format, ...)
{
    char text[sizeof message]; /* an argument may be the message itself */
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memcpy(message, text, sizeof message);
    return status;
}

ridge_status dist_local(ridge_status status)
{
    return status ? dist_fail(status, "%s", ridge_error()) : RIDGE_OK;
}

ridge_status dist_peer(const ridge_dist *dist, const char *what)
{
    const char *text = dist->peers.text ? dist->peers.text(dist->peers.engine) : NULL;

    return dist_fail(RIDGE_ERR_PEER, "rank %d of %d: %s: %s", (int)dist->peers.rank, (int)dist->peers.size, what,
                     text ? text : "failed");
}

ridge_status ridge_dist_open(const ridge_device *device, const ridge_peers *peers, ridge_dist **dist)
{
    if (!dist)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_open: dist is NULL");
    *dist = NULL;
    if (!device || !peers)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_open: %s is NULL", device ? "peers" : "device");
    if (peers->struct_size != sizeof *peers)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_open: struct_size of peers is %u, not %zu",
                         (unsigned)peers->struct_size, sizeof *peers);
    if (peers->size < 1 || peers->size > 4096 || peers->rank < 0 || peers->rank >= peers->size)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_open: rank %d of %d ranks (1 to 4096)", (int)peers->rank,
                         (int)peers->size);
    if (!peers->all_gather || !peers->all_to_all || !peers->exchange || !peers->progress)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_open: a function of peers is NULL");
    *dist = (ridge_dist *)malloc(sizeof **dist);
    if (!*dist)
        return dist_fail(RIDGE_ERR_DEVICE, "ridge_dist_open: out of memory");
    (*dist)->device = device;
    (*dist)->peers = *peers;
    return RIDGE_OK;
}

void ridge_dist_close(ridge_dist *dist)
{
    free(dist);
}

void ridge_dist_shard(int64_t n, int64_t step, int rank, int size, int64_t *first, int64_t *count)
{
    const int64_t steps = (n + step - 1) / step, each = steps / size, more = steps % size;
    int64_t begin = (each * rank + (rank < more ? rank : more)) * step;
    int64_t end = begin + (each + (rank < more)) * step;

    begin = begin < n ? begin : n;
    end = end < n ? end : n;
    *first = begin;
    *count = end - begin;
}

ridge_status ridge_dist_wait(ridge_dist *dist, void *stream, double seconds)
{
    const struct timespec pause = {0, 20000};
    struct timespec begin, now;

    if (!dist)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_wait: dist is NULL");
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        const int state = dist->peers.progress(dist->peers.engine, stream);

        if (state == 0)
            return RIDGE_OK;
        if (state != RIDGE_PEERS_RUNNING)
            return dist_peer(dist, "ridge_dist_wait");
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (!((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) < seconds))
            return dist_fail(RIDGE_ERR_PEER,
                             "rank %d of %d: not done after %g seconds: a peer has died, stopped or not called",
                             (int)dist->peers.rank, (int)dist->peers.size, seconds);
        nanosleep(&pause, NULL);
    }
}

/* ------------------------------------------------------------------------------------------------------- agreement */

enum { FIELDS = 14, TEXT = 400 };

static const char *const field_name[FIELDS] = {
    "op", "how",          "tokens",      "hidden",          "dtype of x", "dtype of target",  "flags",
    "dx", "class_weight", "vocab_total", "label_smoothing", "softcap",    "lse_square_scale", "temperature",
};

/* What a rank says of its call. */
typedef struct said {
    int64_t field[FIELDS]; /* the same on all ranks; options as the bits of a double */
    int64_t ignore_index, first, count;
    char error[TEXT]; /* of this rank; empty: none */
} said;

static int64_t bits_of(double x)
{
    int64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void say(said *s, const ridge_call *call, uint32_t how)
{
    const ridge_operand *arg = call->arg;
    const ridge_ce_options *o = &call->opt.ce;
    const int train = call->op == RIDGE_LINEAR_CE_TRAIN;
    const int64_t field[FIELDS] = {
        (int64_t)call->op,
        how,
        call->dim[0],
        call->dim[1],
        arg[RIDGE_LINEAR_CE_X].dtype,
        arg[RIDGE_LINEAR_CE_TARGET].dtype,
        (int64_t)call->flags,
        train && arg[RIDGE_LINEAR_CE_DX].data,
        arg[RIDGE_LINEAR_CE_CLASS_WEIGHT].data != NULL,
        o->vocab_total,
        bits_of((double)o->label_smoothing),
        bits_of((double)o->softcap),
        bits_of((double)o->lse_square_scale),
        bits_of((double)o->temperature),
    };

    memcpy(s->field, field, sizeof field);
    s->ignore_index = o->ignore_index;
    s->first = o->vocab_offset;
    s->count = call->dim[2];
}

static ridge_status differ(int rank, const char *name, int64_t mine, int64_t first, bool real)
{
    double a, b;

    memcpy(&a, &mine, sizeof a);
    memcpy(&b, &first, sizeof b);
    if (real)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_agree: rank %d has %s %g, rank 0 has %g", rank, name, a, b);
    return dist_fail(RIDGE_ERR_ARG, "ridge_dist_agree: rank %d has %s %lld, rank 0 has %lld", rank, name,
                     (long long)mine, (long long)first);
}

/* Every rank finds the same: the first rank that is wrong, in the order of the ranks. */
static ridge_status compare(const said *every, int size)
{
    int64_t next = 0;

    for (int r = 0; r < size; r++)
        if (every[r].error[0])
            return dist_fail(RIDGE_ERR_ARG, "ridge_dist_agree: rank %d: %.*s", r, TEXT, every[r].error);
    for (int r = 1; r < size; r++) {
        for (int i = 0; i < FIELDS; i++)
            if (every[r].field[i] != every[0].field[i])
                return differ(r, field_name[i], every[r].field[i], every[0].field[i], i >= 10);
        if (every[r].ignore_index != every[0].ignore_index)
            return differ(r, "ignore_index", every[r].ignore_index, every[0].ignore_index, false);
    }
    for (int r = 0; r < size; r++) {
        if (every[r].first != next)
            return dist_fail(RIDGE_ERR_ARG,
                             "ridge_dist_agree: rank %d has vocab_offset %lld, but the slices before it end at %lld", r,
                             (long long)every[r].first, (long long)next);
        next += every[r].count;
    }
    if (next != every[0].field[9])
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_agree: the slices have %lld classes, vocab_total is %lld",
                         (long long)next, (long long)every[0].field[9]);
    return RIDGE_OK;
}

ridge_status ridge_dist_agree(ridge_dist *dist, const ridge_call *call, uint32_t how)
{
    said mine, *every;
    dist_plan plan;
    ridge_status status;

    if (!dist)
        return dist_fail(RIDGE_ERR_ARG, "ridge_dist_agree: dist is NULL");
    memset(&mine, 0, sizeof mine);
    every = (said *)calloc((size_t)dist->peers.size, sizeof *every);
    if (!every)
        return dist_fail(RIDGE_ERR_DEVICE, "ridge_dist_agree: out of memory");
    if (dist_plan_of(dist, call, how, NULL, &plan))
        snprintf(mine.error, sizeof mine.error, "%.*s", TEXT - 1, message);
    else
        say(&mine, call, how);
    if (dist->peers.exchange(dist->peers.engine, &mine, every, sizeof mine))
        status = dist_peer(dist, "ridge_dist_agree");
    else
        status = compare(every, dist->peers.size);
    free(every);
    return status;
}

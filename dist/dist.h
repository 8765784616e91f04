/* dist.h: what the files of ridge_dist share. */
#ifndef RIDGE_DIST_PRIVATE_H
#define RIDGE_DIST_PRIVATE_H

#include <stdbool.h>

#include "ridge_dist.h"

#define dist_fail ridge_dist_fail
#define dist_local ridge_dist_local
#define dist_peer ridge_dist_peer
#define dist_plan_of ridge_dist_plan_of

struct ridge_dist {
    const ridge_device *device;
    ridge_peers peers;
};

/* The calls of this rank, and where their operands lie in the workspace. */
typedef struct dist_plan {
    ridge_call eval, combine, begin, dx, dw;                /* eval, or train in phases: begin, dx and dw */
    int64_t tokens, hidden, rows;                           /* of all ranks; columns of x; of one rank, rounded up */
    int train, sharded, wants_dx, direct;                   /* direct: the gathered rows of dx are dx itself */
    size_t record_bytes, x_bytes, target_bytes, part_bytes; /* messages of a rank */
    char *record, *records, *lse, *x, *target, *part, *received, *mine, *whole, *outputs, *inner, *between;
    size_t inner_bytes, between_bytes, bytes; /* what the calls want, combine apart; all of the workspace */
} dist_plan;

ridge_status dist_fail(ridge_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The error of a function of ridge.h. */
ridge_status dist_local(ridge_status status);
/* Of a collective that failed. */
ridge_status dist_peer(const ridge_dist *dist, const char *what);

/* vocab.c: the plan of a call with a workspace at `base`, checked as far as this rank can tell. */
ridge_status dist_plan_of(const ridge_dist *dist, const ridge_call *call, uint32_t how, char *base, dist_plan *plan);

#endif

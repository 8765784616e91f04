/* op.h: what the rows of op.c take from op_rules.c. */
#ifndef RIDGE_OPS_CE_H
#define RIDGE_OPS_CE_H

#include "phase.h"
#include "src/ops.h"

/* Of linear_ce_eval and ce_fwd; linear_ce_train; linear_ce_backward and ce_bwd; ce_combine. */
const char *ridge_ce_eval_rule(const ridge_call *call);
const char *ridge_ce_train_rule(const ridge_call *call);
const char *ridge_ce_backward_rule(const ridge_call *call);
const char *ridge_ce_combine_rule(const ridge_call *call);
/* Of linear_ce_eval and linear_ce_train; linear_ce_backward; ce_fwd and ce_bwd; ce_combine. */
void ridge_ce_linear_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols);
void ridge_ce_backward_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols);
void ridge_ce_given_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols);
void ridge_ce_combine_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols);

#endif

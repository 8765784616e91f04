/* norm.h: what family.c registers of train.c and of rope.c: cases and oracles of the ops that they are about. */
#ifndef RIDGE_CHECK_NORM_H
#define RIDGE_CHECK_NORM_H

#include "check/family.h"
#include "check/oracle.h"

/* add_rms_norm, rms_norm_bwd and rope. */
void norm_train_cases(const ridge_op_row *op, case_level level, case_list *list);
void norm_add_oracle(oracle_run *run);
void norm_bwd_oracle(oracle_run *run);
void norm_rope_oracle(oracle_run *run);

/* Notes an output: NaN exactly where the estimate has one. An error of infinity: any number; one of NaN: anything,
 * where f32 may overflow or underflow in between and float64 does not. An f16 may be infinite where its value rounds to
 * it. */
void norm_judge(oracle_run *run, int out, int64_t r, int64_t j, estimate e);

#endif

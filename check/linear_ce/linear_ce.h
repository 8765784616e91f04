/* linear_ce.h: what the files of this folder share. */
#ifndef RIDGE_CHECK_LINEAR_CE_H
#define RIDGE_CHECK_LINEAR_CE_H

#include "check/family.h"
#include "ops/linear_ce/phase.h"

/* test_case.variant: inputs of the cases: which targets (the first is a mixture: every fifth row ignored), and the
 * rest. */
enum ce_variant {
    CE_VALID = 1, /* every row has a target */
    CE_NO_ROW,    /* none has */
    CE_HALF,      /* every other */
    CE_WRONG,     /* some are out of range */
    CE_TARGETS = 7,
    CE_UP = 8,          /* logits near 1e4 (through the bias) */
    CE_DOWN = 16,       /* near -1e4 */
    CE_PEAK = 32,       /* p = 0.999 at the target (through the bias) */
    CE_MINUS = 64,      /* a bias of -infinity */
    CE_NO_WEIGHT = 128, /* all class weights are 0 */
    CE_FREQUENT = 256,  /* two of three rows have the same target */
    CE_SPECIAL = 512,   /* a NaN in every 64th row of x or of the logits; each class twice, V/2 apart */
    CE_NEGATIVE = 1024, /* all class weights are negative */
    CE_SAMPLED = 2048,  /* logits of the classes that Hopper's sample takes are four times as large */
    CE_VARIANTS = 4095
};

void cases_ce(const ridge_op_row *op, case_level level, case_list *list);
bool fill_ce(const test_case *c, const image *im, int arg, uint64_t seed);
void oracle_ce(oracle_run *run);
void oracle_ce_combine(oracle_run *run);
extern const planted_fault ce_faults[];

#endif

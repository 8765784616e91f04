/* experts.h: what the files of check/experts share. */
#ifndef RIDGE_CHECK_EXPERTS_H
#define RIDGE_CHECK_EXPERTS_H

#include "check/family.h"

/* pairs.c: moe_permute, moe_combine, moe_combine_bwd. */
void oracle_experts_permute(oracle_run *run);
void oracle_experts_combine(oracle_run *run);

/* quantize.c: moe_permute_quantize, moe_swiglu_quantize. */
void oracle_experts_quantize(oracle_run *run);

/* route.c: moe_route_bwd. */
void oracle_experts_route(oracle_run *run);

#endif

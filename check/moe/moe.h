/* moe.h: what the files of check/moe share. */
#ifndef RIDGE_CHECK_MOE_H
#define RIDGE_CHECK_MOE_H

#include "check/family.h"

/* route.c: the cases and the oracle of moe_route. */
void cases_moe_route(const ridge_op_row *op, case_level level, case_list *list);
void oracle_moe_route(oracle_run *run);

/* products.c: those of moe_gate_up_swiglu and moe_down. */
void cases_moe_products(const ridge_op_row *op, case_level level, case_list *list);
void oracle_moe_products(oracle_run *run);

#endif

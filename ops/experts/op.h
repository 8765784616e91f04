/* op.h: what the op rows of this folder share. */
#ifndef RIDGE_EXPERTS_OP_H
#define RIDGE_EXPERTS_OP_H

#include "src/ops.h"

#define EXPERTS_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)
#define EXPERTS_F32 (1u << RIDGE_F32)
#define EXPERTS_I32 (1u << RIDGE_I32)

/* What is wrong with the numbers of tokens and slots, or of experts; NULL: nothing. */
const char *ridge_experts_pairs_rule(int64_t tokens, int64_t slots);
const char *ridge_experts_rule(int64_t experts);

#endif

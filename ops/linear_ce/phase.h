/* phase.h: linear_ce_train in phases by rows that keep nothing between them. */
#ifndef RIDGE_LINEAR_CE_PHASE_H
#define RIDGE_LINEAR_CE_PHASE_H

#include "src/internal.h"

#define RIDGE_CE_PHASE (RIDGE_CE_BEGIN | RIDGE_CE_DX | RIDGE_CE_DW) /* none: all of linear_ce_train */

#ifdef __cplusplus
extern "C" {
#endif

/* Where the call is a phase, *bound becomes what a row does for it: RIDGE_CE_BEGIN as linear_ce_eval, RIDGE_CE_DX as
 * linear_ce_backward (in `other`), and NULL for RIDGE_CE_DW, since backward has made dW already. */
ridge_status ridge_ce_phase(const ridge_bound **bound, ridge_bound *other);

#ifdef __cplusplus
}
#endif

#endif

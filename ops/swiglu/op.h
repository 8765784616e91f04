/* op.h: SwiGLU's problem fields and rules, shared with swiglu_quantize. */
#ifndef RIDGE_SWIGLU_OP_H
#define RIDGE_SWIGLU_OP_H

#include "src/ops.h"

/* Fields of SwiGLU: the activation, and the options, with which the option struct of every op that has them begins. */
extern const char *const ridge_activations[];
extern const ridge_swiglu_options ridge_swiglu_defaults;
#define RIDGE_ACT_FIELD CHOICE("act", RIDGE_ACTIVATION, ridge_activations)
#define RIDGE_SWIGLU_FIELD(option, value) F32_OPTION(ridge_swiglu_options, option, value)
#define RIDGE_SWIGLU_FIELDS                                                                         \
    RIDGE_SWIGLU_FIELD(gate_mul, 1), RIDGE_SWIGLU_FIELD(down_mul, 1), RIDGE_SWIGLU_FIELD(alpha, 1), \
        RIDGE_SWIGLU_FIELD(up_offset, 0), RIDGE_SWIGLU_FIELD(limit, 0)

/* Rules of the options, as the op row's rule and plain. */
const char *ridge_swiglu_options_rule(const ridge_swiglu_options *o, uint32_t flags);
bool ridge_swiglu_options_plain(const ridge_swiglu_options *o);

#ifdef __cplusplus
extern "C"
#endif
    /* approx.cu, only with RIDGE_HAVE_CUDA: out[i], i < count, is 1 if the device's approximation of SwiGLU holds for
     * the bf16 gate in the high half of first + i * step and the up in its low half, 0 if not. */
    ridge_status
    ridge_cuda_swiglu_approx(const ridge_device *device, uint32_t first, uint32_t step, uint32_t count, float *out);

#endif

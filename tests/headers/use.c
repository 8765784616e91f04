/* use.c: only the public headers, in every language standard they promise. */
#include "ridge.h"
#include "ridge_dist.h"
#include "ridge_io.h"

int use(ridge_device *device, void *a, void *b, void *c);
int64_t use_io(const ridge_file *file);

int use(ridge_device *device, void *a, void *b, void *c)
{
    ridge_call call = ridge_swiglu_fwd(1, 8, RIDGE_BF16, a, b, c);
    call.flags |= RIDGE_GELU_TANH | RIDGE_STRICT;
    call.opt.swiglu.limit = 7.0f;
    ridge_set(&call, RIDGE_SWIGLU_FWD_ROW_SCALE, RIDGE_F32, a, 0);
    return (int)ridge_run(device, &call, NULL, 0, NULL);
}

int64_t use_io(const ridge_file *file)
{
    const ridge_entry *tensor = ridge_file_find(file, "w");
    return tensor ? tensor->shape[RIDGE_MAX_RANK - 1] : ridge_file_bytes(file, 0);
}

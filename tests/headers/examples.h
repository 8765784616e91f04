/* examples.h: what the examples in ridge.h take for given. */
#include "ridge.h"

extern ridge_device *device;
extern ridge_status status;
extern int64_t rows, cols, m, n, k, tokens, hidden, vocab;
extern void *x, *y, *w, *q, *out, *gate, *up, *dx, *dw, *blocks, *target, *workspace, *stream;
extern float *scale, *w_scale, *bias, *loss, *factor;
extern size_t bytes;

/* ops/swiglu/cpu.c: the smallest use of ridge: SwiGLU of one row on the CPU. */
#include <math.h>
#include <stdio.h>

#include "ridge.h"

int main(void)
{
    enum { COLS = 1000 };
    static float gate[COLS], up[COLS], out[COLS];
    ridge_device *device;
    ridge_call call;
    double worst = 0;

    for (int i = 0; i < COLS; i++) {
        gate[i] = 0.01f * (float)(i - 500);
        up[i] = 2.0f;
    }
    if (ridge_open("cpu", &device) != RIDGE_OK) {
        fprintf(stderr, "%s\n", ridge_error());
        return 1;
    }
    call = ridge_swiglu_fwd(1, COLS, RIDGE_F32, gate, up, out);
    if (ridge_run(device, &call, NULL, 0, NULL) != RIDGE_OK) {
        fprintf(stderr, "%s\n", ridge_error());
        return 1;
    }
    ridge_close(device);
    for (int i = 0; i < COLS; i++)
        worst = fmax(worst, fabs((double)out[i] - 2.0 * (double)gate[i] / (1.0 + exp(-(double)gate[i]))));
    printf("swiglu(-5 .. 5) * 2: out[999] = %.6f, largest error against float64 %.1e\n", (double)out[COLS - 1], worst);
    return !(worst < 1e-5);
}

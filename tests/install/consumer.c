/* consumer.c: a program that knows only the installed header. Valid C and C++. */
#include <stdio.h>

#include <ridge.h>

int main(void)
{
    float gate[4] = {-1, 0, 1, 2}, up[4] = {1, 1, 1, 1}, out[4] = {9, 9, 9, 9};
    ridge_device *device;
    ridge_call call = ridge_swiglu_fwd(1, 4, RIDGE_F32, gate, up, out);

    if (ridge_open("cpu", &device) != RIDGE_OK || ridge_run(device, &call, NULL, 0, NULL) != RIDGE_OK) {
        fprintf(stderr, "%s\n", ridge_error());
        return 1;
    }
    ridge_close(device);
    return !(out[1] == 0 && out[3] > 1.76f && out[3] < 1.77f);
}

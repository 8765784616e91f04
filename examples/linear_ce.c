/* linear_ce.c: trains the output layer of a tiny language model: the next letter from the two before it. The loss and
 * both gradients come from one call; the logits of the batch are never written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ridge.h"

enum { VOCAB = 27, HIDDEN = 48, STEPS = 120 };

static const char text[] = "the ridge point of the roofline is where the memory and the arithmetic of a machine are in "
                           "balance and a kernel to the left of the ridge is bound by bytes and one to the right of "
                           "the ridge is bound by operations ";

static int letter(int i)
{
    return text[i] == ' ' ? 26 : text[i] - 'a';
}

static float noise(void)
{
    static unsigned state = 1;

    state = state * 1664525u + 1013904223u;
    return ((float)(state >> 8) * 0x1p-23f - 1.0f) * 0.1f;
}

int main(void)
{
    enum { TOKENS = (int)sizeof text - 3 };
    static float first[VOCAB][HIDDEN], second[VOCAB][HIDDEN]; /* embeddings of the two letters before */
    static float x[TOKENS][HIDDEN], dx[TOKENS][HIDDEN], w[VOCAB][HIDDEN], dw[VOCAB][HIDDEN];
    static int32_t target[TOKENS];
    float loss = 0, begin = 0, accuracy = 0;
    ridge_device *device = NULL;
    ridge_call call = ridge_linear_ce_train(TOKENS, HIDDEN, VOCAB, ridge_matrix(x, RIDGE_F32),
                                            ridge_matrix(w, RIDGE_F32), ridge_matrix(target, RIDGE_I32), &loss,
                                            ridge_matrix(dx, RIDGE_F32), ridge_matrix(dw, RIDGE_F32));
    void *workspace = NULL;
    size_t bytes = 0;

    ridge_set(&call, RIDGE_LINEAR_CE_ACCURACY, RIDGE_F32, &accuracy, 0);
    for (int c = 0; c < VOCAB; c++)
        for (int j = 0; j < HIDDEN; j++) {
            first[c][j] = noise();
            second[c][j] = noise();
            w[c][j] = noise();
        }
    for (int t = 0; t < TOKENS; t++)
        target[t] = letter(t + 2);
    if (ridge_open("cpu", &device) != RIDGE_OK || ridge_workspace_bytes(device, &call, &bytes) != RIDGE_OK) {
        fprintf(stderr, "%s\n", ridge_error());
        return 1;
    }
    workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    for (int step = 0; step <= STEPS; step++) {
        const float rate = 4.0f;

        for (int t = 0; t < TOKENS; t++)
            for (int j = 0; j < HIDDEN; j++)
                x[t][j] = first[letter(t)][j] + second[letter(t + 1)][j];
        if (ridge_run(device, &call, workspace, bytes, NULL) != RIDGE_OK) {
            fprintf(stderr, "%s\n", ridge_error());
            return 1;
        }
        if (step == 0)
            begin = loss;
        if (step % 30 == 0)
            printf("step %3d  loss %.4f  right %.0f %%\n", step, (double)loss, 100 * (double)accuracy);
        for (int c = 0; c < VOCAB; c++)
            for (int j = 0; j < HIDDEN; j++)
                w[c][j] -= rate * dw[c][j];
        for (int t = 0; t < TOKENS; t++)
            for (int j = 0; j < HIDDEN; j++) {
                first[letter(t)][j] -= rate * dx[t][j];
                second[letter(t + 1)][j] -= rate * dx[t][j];
            }
    }
    free(workspace);
    ridge_close(device);
    /* it begins at the entropy of guessing, log 27, and must have learned something */
    return !(fabs((double)begin - log(VOCAB)) < 0.1 && loss < 0.5f * begin);
}

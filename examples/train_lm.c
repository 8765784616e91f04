/* train_lm.c: trains a small byte-level language model of the Llama kind (embedding, RMSNorm, rotary attention, SwiGLU
 * MLP, linear cross entropy) on a text file, with AdamW, in float. The norms, the rotation, SwiGLU and the loss with
 * its two gradients are ridge calls; the dense products and the attention are plain loops.
 *
 *     train_lm [FILE [STEPS [DEVICE]]]     default: this source, where its compiler found it, 60 steps, cpu
 *
 * Before the first update the loss and every gradient are compared with a float64 forward pass that shares no code with
 * the float one, and its central differences. The exit status says whether they agree, and whether the loss fell. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ridge.h"
#ifdef TRAIN_LM_CUDA
#include <cuda_runtime_api.h>
#endif

/* HEADS heads of HEAD elements; CONTEXT tokens a sequence, BATCH sequences a step */
#define F32(data) ridge_matrix(data, RIDGE_F32)
enum { VOCAB = 256, DIM = 64, HEADS = 4, HEAD = DIM / HEADS, FFN = 176, LAYERS = 2 };
enum { CONTEXT = 64, BATCH = 8, TOKENS = BATCH * CONTEXT };
static const float eps = 1e-5f;

/* -------------------------------------------------------------------------------------------------------- parameters
 *
 * A gradient and the two moments of AdamW have the same layout. */

typedef struct layer {
    float norm1[DIM], qkv[3 * DIM * DIM], out[DIM * DIM];
    float norm2[DIM], gate_up[2 * FFN * DIM], down[DIM * FFN];
} layer;

typedef struct params {
    float embed[VOCAB * DIM];
    layer layer[LAYERS];
    float norm[DIM], head[VOCAB * DIM];
} params;

enum { PARAMETERS = sizeof(params) / sizeof(float) };

/* The tensors in that order. */
#define OF_LAYER(l)                                                                         \
    {"norm1." l, DIM}, {"qkv." l, 3 * DIM * DIM}, {"out." l, DIM * DIM}, {"norm2." l, DIM}, \
        {"gate_up." l, 2 * FFN * DIM},                                                      \
    {                                                                                       \
        "down." l, DIM *FFN                                                                 \
    }
static const struct {
    const char *name;
    int size;
} tensors[] = {{"embed", VOCAB *DIM}, OF_LAYER("0"), OF_LAYER("1"), {"norm", DIM}, {"head", VOCAB *DIM}};
enum { TENSORS = sizeof tensors / sizeof *tensors };
_Static_assert(TENSORS == 3 + 6 * LAYERS, "one OF_LAYER a layer");

static unsigned long long state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 11) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

static void initialise(float *p)
{
    for (int i = 0; i < TENSORS; p += tensors[i++].size)
        for (int j = 0; j < tensors[i].size; j++)
            p[j] = tensors[i].size == DIM ? 1.0f : (float)(normal() / (i == 0 || i == TENSORS - 1 ? 50 : sqrt(DIM)));
}

/* ------------------------------------------------------------------------------------------------------- ridge calls
 *
 * All arrays lie in one arena. On the CPU operands are used where they are. For a GPU the arena has a mirror there, and
 * run() copies it over, launches, and copies it back: a program that keeps its tensors on the GPU just passes them. */

enum { ARENA = 32 << 20 };
static unsigned char *arena, *mirror;
static size_t used;
static ridge_device *device;

static void fail(const char *what)
{
    fprintf(stderr, "train_lm: %s\n", what);
    exit(1);
}

static void start(const char *spec)
{
    ridge_device_info info = {.struct_size = sizeof info};

    if (ridge_open(spec, &device) != RIDGE_OK || ridge_device_query(device, &info) != RIDGE_OK)
        fail(ridge_error());
    arena = aligned_alloc(256, ARENA);
    if (!arena)
        fail("out of memory");
    if (strcmp(info.backend, "cuda") == 0) {
#ifdef TRAIN_LM_CUDA
        if (cudaMalloc((void **)&mirror, ARENA) != cudaSuccess)
            fail("no GPU memory");
#else
        fail("built without CUDA: only the device cpu");
#endif
    }
}

static void *take(size_t bytes)
{
    void *memory = arena + used;

    used += (bytes + 255) / 256 * 256;
    if (used > ARENA)
        fail("the arena is too small");
    return memset(memory, 0, bytes);
}

static void transfer(void *to, const void *from)
{
#ifdef TRAIN_LM_CUDA
    if (mirror && cudaMemcpy(to, from, used, cudaMemcpyDefault) != cudaSuccess)
        fail("a copy to or from the GPU failed");
#else
    (void)to, (void)from;
#endif
}

static void run(const ridge_call *given)
{
    static unsigned char *workspace;
    static size_t enough;
    const ptrdiff_t move = mirror ? mirror - arena : 0;
    ridge_call call = *given;
    size_t bytes = 0;

    for (int i = 0; i < RIDGE_MAX_ARGS; i++)
        if (call.arg[i].data)
            call.arg[i].data = (unsigned char *)call.arg[i].data + move;
    if (ridge_workspace_bytes(device, &call, &bytes) != RIDGE_OK)
        fail(ridge_error());
    if (bytes > enough)
        workspace = (unsigned char *)take(enough = bytes) + move;
    transfer(mirror, arena);
    if (ridge_run(device, &call, workspace, enough, NULL) != RIDGE_OK)
        fail(ridge_error());
    transfer(arena, mirror);
}

static void norm_forward(const float *x, const float *w, float *y)
{
    ridge_call call = ridge_rms_norm(TOKENS, DIM, F32(x), F32(w), F32(y));

    call.opt.norm.eps = eps;
    run(&call);
}

/* Turns the heads of q and k, which lie side by side in rows of 3 DIM, in place; inverse: back. */
static void rotate(float *qkv, const int32_t *position, const double *freqs, uint32_t inverse)
{
    const ridge_tensor x = {.data = qkv, .dtype = RIDGE_F32, .stride = 3 * DIM}, none = {0};
    ridge_call call = ridge_head_rms_norm_rope_tail(TOKENS, 2 * HEADS, HEAD, HEAD, x, none,
                                                    ridge_matrix(position, RIDGE_I32), freqs, x);

    call.flags |= RIDGE_ROPE_ONLY | inverse;
    run(&call);
}

static void swiglu_forward(const float *gate_up, float *y)
{
    ridge_call call = ridge_swiglu_fwd(TOKENS, FFN, RIDGE_F32, gate_up, gate_up + FFN, y);

    call.arg[RIDGE_SWIGLU_FWD_GATE].stride = 2 * FFN;
    call.arg[RIDGE_SWIGLU_FWD_UP].stride = 2 * FFN;
    run(&call);
}

/* The gradients replace gate and up. */
static void swiglu_backward(const float *dy, float *gate_up)
{
    ridge_call call = ridge_swiglu_bwd(TOKENS, FFN, RIDGE_F32, dy, gate_up, gate_up + FFN, gate_up, gate_up + FFN);

    for (int slot = RIDGE_SWIGLU_BWD_GATE; slot <= RIDGE_SWIGLU_BWD_DUP; slot++)
        call.arg[slot].stride = 2 * FFN;
    run(&call);
}

/* --------------------------------------------------------------------------------------------------------- products */

/* y [n, out] (+)= x [n, in] w^T, w [out, in] */
static void linear(int n, int in, int out, const float *x, const float *w, int add, float *y)
{
#pragma omp parallel for
    for (int t = 0; t < n; t++)
        for (int o = 0; o < out; o++) {
            float sum = add ? y[t * out + o] : 0;

#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < in; i++)
                sum += x[t * in + i] * w[o * in + i];
            y[t * out + o] = sum;
        }
}

/* dx [n, in] = dy [n, out] w;  dw += dy^T x */
static void linear_backward(int n, int in, int out, const float *x, const float *w, const float *dy, float *dx,
                            float *dw)
{
#pragma omp parallel for
    for (int t = 0; t < n; t++) {
        float *row = dx + t * in;

        memset(row, 0, (size_t)in * sizeof *row);
        for (int o = 0; o < out; o++)
            for (int i = 0; i < in; i++)
                row[i] += dy[t * out + o] * w[o * in + i];
    }
#pragma omp parallel for
    for (int o = 0; o < out; o++)
        for (int t = 0; t < n; t++)
            for (int i = 0; i < in; i++)
                dw[o * in + i] += dy[t * out + o] * x[t * in + i];
}

/* dx += the gradient through y = x r w, r = 1/sqrt(mean(x^2) + eps);  dw += */
static void norm_backward(const float *x, const float *w, const float *dy, float *dx, float *dw)
{
    for (int t = 0; t < TOKENS; t++) {
        const float *row = x + t * DIM, *g = dy + t * DIM;
        float square = 0, dot = 0, r;

        for (int i = 0; i < DIM; i++)
            square += row[i] * row[i];
        r = 1 / sqrtf(square / DIM + eps);
        for (int i = 0; i < DIM; i++) {
            dot += g[i] * w[i] * row[i];
            dw[i] += g[i] * row[i] * r;
        }
        for (int i = 0; i < DIM; i++)
            dx[t * DIM + i] += r * (g[i] * w[i] - row[i] * dot * r * r / DIM);
    }
}

/* --------------------------------------------------------------------------------------------------------- attention
 *
 * Causal. qkv [TOKENS, 3 DIM]; weights [BATCH, HEADS, CONTEXT, CONTEXT] are kept for the backward pass. */

static void attend(const float *all_qkv, float *all_weights, float *all_y)
{
#pragma omp parallel for
    for (int j = 0; j < BATCH * HEADS; j++) {
        const float *qkv = all_qkv + j / HEADS * CONTEXT * 3 * DIM + j % HEADS * HEAD;
        float *y = all_y + j / HEADS * CONTEXT * DIM + j % HEADS * HEAD;

        for (int t = 0; t < CONTEXT; t++) {
            float *p = all_weights + (j * CONTEXT + t) * CONTEXT, top = -INFINITY, sum = 0;

            for (int s = 0; s <= t; s++) {
                float dot = 0;

                for (int i = 0; i < HEAD; i++)
                    dot += qkv[t * 3 * DIM + i] * qkv[s * 3 * DIM + DIM + i];
                p[s] = dot / sqrtf(HEAD);
                top = fmaxf(top, p[s]);
            }
            for (int s = 0; s <= t; s++)
                sum += p[s] = expf(p[s] - top);
            memset(y + t * DIM, 0, HEAD * sizeof *y);
            for (int s = 0; s <= t; s++) {
                p[s] /= sum;
                for (int i = 0; i < HEAD; i++)
                    y[t * DIM + i] += p[s] * qkv[s * 3 * DIM + 2 * DIM + i];
            }
        }
    }
}

static void attend_backward(const float *all_qkv, const float *all_weights, const float *all_dy, float *all_dqkv)
{
    memset(all_dqkv, 0, TOKENS * 3 * DIM * sizeof *all_dqkv);
#pragma omp parallel for
    for (int j = 0; j < BATCH * HEADS; j++) {
        const float *qkv = all_qkv + j / HEADS * CONTEXT * 3 * DIM + j % HEADS * HEAD;
        const float *dy = all_dy + j / HEADS * CONTEXT * DIM + j % HEADS * HEAD;
        float *dqkv = all_dqkv + (qkv - all_qkv);

        for (int t = 0; t < CONTEXT; t++) {
            const float *p = all_weights + (j * CONTEXT + t) * CONTEXT;
            float dp[CONTEXT], mean = 0;

            for (int s = 0; s <= t; s++) {
                dp[s] = 0;
                for (int i = 0; i < HEAD; i++) {
                    dp[s] += dy[t * DIM + i] * qkv[s * 3 * DIM + 2 * DIM + i];
                    dqkv[s * 3 * DIM + 2 * DIM + i] += p[s] * dy[t * DIM + i];
                }
                mean += p[s] * dp[s];
            }
            for (int s = 0; s <= t; s++)
                for (int i = 0; i < HEAD; i++) {
                    const float d = p[s] * (dp[s] - mean) / sqrtf(HEAD);

                    dqkv[t * 3 * DIM + i] += d * qkv[s * 3 * DIM + DIM + i];
                    dqkv[s * 3 * DIM + DIM + i] += d * qkv[t * 3 * DIM + i];
                }
        }
    }
}

/* ----------------------------------------------------------------------------------------------- the model in float */

typedef float stream[TOKENS * DIM];

typedef struct model {
    stream x[LAYERS + 1]; /* what enters each layer, and what leaves the last */
    struct {              /* what the backward pass needs */
        stream normed, mixed, middle, normed2;
        float qkv[TOKENS * 3 * DIM], weights[BATCH * HEADS * CONTEXT * CONTEXT];
        float gate_up[TOKENS * 2 * FFN], active[TOKENS * FFN];
    } layer[LAYERS];
    stream normed, dx, dnormed;
    float dqkv[TOKENS * 3 * DIM], dactive[TOKENS * FFN], loss;
    int32_t position[TOKENS], target[TOKENS];
    double freqs[HEAD / 2];
} model;

static void forward(model *m, const params *p, const unsigned char *const text[BATCH])
{
    for (int t = 0; t < TOKENS; t++) {
        const unsigned char *at = text[t / CONTEXT] + t % CONTEXT;

        memcpy(m->x[0] + t * DIM, p->embed + at[0] * DIM, DIM * sizeof(float));
        m->target[t] = at[1];
        m->position[t] = t % CONTEXT;
    }
    for (int l = 0; l < LAYERS; l++) {
        const layer *w = &p->layer[l];

        norm_forward(m->x[l], w->norm1, m->layer[l].normed);
        linear(TOKENS, DIM, 3 * DIM, m->layer[l].normed, w->qkv, 0, m->layer[l].qkv);
        rotate(m->layer[l].qkv, m->position, m->freqs, 0);
        attend(m->layer[l].qkv, m->layer[l].weights, m->layer[l].mixed);
        memcpy(m->layer[l].middle, m->x[l], sizeof(stream));
        linear(TOKENS, DIM, DIM, m->layer[l].mixed, w->out, 1, m->layer[l].middle);
        norm_forward(m->layer[l].middle, w->norm2, m->layer[l].normed2);
        linear(TOKENS, DIM, 2 * FFN, m->layer[l].normed2, w->gate_up, 0, m->layer[l].gate_up);
        swiglu_forward(m->layer[l].gate_up, m->layer[l].active);
        memcpy(m->x[l + 1], m->layer[l].middle, sizeof(stream));
        linear(TOKENS, FFN, DIM, m->layer[l].active, w->down, 1, m->x[l + 1]);
    }
    norm_forward(m->x[LAYERS], p->norm, m->normed);
}

/* The loss; g receives the gradients. */
static float forward_backward(model *m, const params *p, const unsigned char *const text[BATCH], params *g)
{
    const ridge_call loss =
        ridge_linear_ce_train(TOKENS, DIM, VOCAB, F32(m->normed), F32(p->head), ridge_matrix(m->target, RIDGE_I32),
                              &m->loss, F32(m->dnormed), F32(g->head));

    memset(g, 0, sizeof *g);
    forward(m, p, text);
    run(&loss);
    memset(m->dx, 0, sizeof m->dx);
    norm_backward(m->x[LAYERS], p->norm, m->dnormed, m->dx, g->norm);
    for (int l = LAYERS - 1; l >= 0; l--) {
        const layer *w = &p->layer[l];
        layer *dw = &g->layer[l];
        float *gate_up = m->layer[l].gate_up;

        linear_backward(TOKENS, FFN, DIM, m->layer[l].active, w->down, m->dx, m->dactive, dw->down);
        swiglu_backward(m->dactive, gate_up);
        linear_backward(TOKENS, DIM, 2 * FFN, m->layer[l].normed2, w->gate_up, gate_up, m->dnormed, dw->gate_up);
        norm_backward(m->layer[l].middle, w->norm2, m->dnormed, m->dx, dw->norm2);
        linear_backward(TOKENS, DIM, DIM, m->layer[l].mixed, w->out, m->dx, m->dnormed, dw->out);
        attend_backward(m->layer[l].qkv, m->layer[l].weights, m->dnormed, m->dqkv);
        rotate(m->dqkv, m->position, m->freqs, RIDGE_ROPE_INVERSE);
        linear_backward(TOKENS, DIM, 3 * DIM, m->layer[l].normed, w->qkv, m->dqkv, m->dnormed, dw->qkv);
        norm_backward(m->x[l], w->norm1, m->dnormed, m->dx, dw->norm1);
    }
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < DIM; i++)
            g->embed[text[t / CONTEXT][t % CONTEXT] * DIM + i] += m->dx[t * DIM + i];
    return m->loss;
}

/* ----------------------------------------------------------------------------------------------- the model in float64
 *
 * One sequence at a time, from the definition. */

static void norm64(const double *x, const double *w, double *y)
{
    double square = 0;

    for (int i = 0; i < DIM; i++)
        square += x[i] * x[i];
    for (int i = 0; i < DIM; i++)
        y[i] = x[i] / sqrt(square / DIM + (double)eps) * w[i];
}

static double dot64(int n, const double *a, const double *b)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void rotate64(double *head, int position)
{
    for (int i = 0; i < HEAD; i += 2) {
        const double angle = position * pow(10000, -(double)i / HEAD), c = cos(angle), s = sin(angle);
        const double a = head[i], b = head[i + 1];

        head[i] = a * c - b * s;
        head[i + 1] = a * s + b * c;
    }
}

static void attention64(double x[CONTEXT][DIM], const double *norm, const double *w_qkv, const double *w_out)
{
    static _Thread_local double qkv[CONTEXT][3 * DIM], mixed[CONTEXT][DIM];

    for (int t = 0; t < CONTEXT; t++) {
        double y[DIM];

        norm64(x[t], norm, y);
        for (int o = 0; o < 3 * DIM; o++)
            qkv[t][o] = dot64(DIM, y, w_qkv + o * DIM);
        for (int h = 0; h < 2 * HEADS; h++)
            rotate64(qkv[t] + h * HEAD, t);
    }
    for (int t = 0; t < CONTEXT; t++)
        for (int h = 0; h < HEADS; h++) {
            double total = 0, sum[HEAD] = {0};

            for (int s = 0; s <= t; s++) {
                const double e = exp(dot64(HEAD, qkv[t] + h * HEAD, qkv[s] + DIM + h * HEAD) / sqrt(HEAD));

                total += e;
                for (int i = 0; i < HEAD; i++)
                    sum[i] += e * qkv[s][2 * DIM + h * HEAD + i];
            }
            for (int i = 0; i < HEAD; i++)
                mixed[t][h * HEAD + i] = sum[i] / total;
        }
    for (int t = 0; t < CONTEXT; t++)
        for (int o = 0; o < DIM; o++)
            x[t][o] += dot64(DIM, mixed[t], w_out + o * DIM);
}

static double loss64(const double *p, const unsigned char *const text[BATCH])
{
    double loss = 0;

#pragma omp parallel for reduction(+ : loss)
    for (int b = 0; b < BATCH; b++) {
        static _Thread_local double x[CONTEXT][DIM], y[DIM];
        const double *w = p + VOCAB * DIM;

        for (int t = 0; t < CONTEXT; t++)
            memcpy(x[t], p + text[b][t] * DIM, sizeof x[t]);
        for (int l = 0; l < LAYERS; l++) {
            const double *norm2 = w + DIM + 4 * DIM * DIM, *gate_up = norm2 + DIM, *down = gate_up + 2 * FFN * DIM;

            attention64(x, w, w + DIM, w + DIM + 3 * DIM * DIM);
            for (int t = 0; t < CONTEXT; t++) {
                norm64(x[t], norm2, y);
                for (int f = 0; f < FFN; f++) {
                    const double gate = dot64(DIM, y, gate_up + f * DIM);
                    const double active = gate / (1 + exp(-gate)) * dot64(DIM, y, gate_up + (FFN + f) * DIM);

                    for (int o = 0; o < DIM; o++)
                        x[t][o] += active * down[o * FFN + f];
                }
            }
            w = down + DIM * FFN;
        }
        for (int t = 0; t < CONTEXT; t++) {
            double sum = 0;

            norm64(x[t], w, y);
            for (int v = 0; v < VOCAB; v++)
                sum += exp(dot64(DIM, y, w + DIM + v * DIM));
            loss += log(sum) - dot64(DIM, y, w + DIM + text[b][t + 1] * DIM);
        }
    }
    return loss / TOKENS;
}

/* (loss(p + h d) - loss(p - h d)) / 2h for a direction d of one tensor, |d| = 1; p is that tensor in all. */
static double slope(const double *all, double *p, int n, const double *d, const unsigned char *const text[BATCH])
{
    const double h = 1e-3;
    double loss[2];

    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < n; i++)
            p[i] += (k == 0 ? h : -2 * h) * d[i];
        loss[k] = loss64(all, text);
    }
    for (int i = 0; i < n; i++)
        p[i] += h * d[i];
    return (loss[0] - loss[1]) / (2 * h);
}

/* Prints the comparison; returns how many tensors disagree. An error along one random direction is multiplied by the
 * root of the dimension: the length of the whole error, if it has no direction of its own. */
static int compare(const float *p, float loss, const float *grad, const unsigned char *const text[BATCH])
{
    static double wide[PARAMETERS], d[PARAMETERS];
    double expected, *place = wide;
    int wrong;

    for (int i = 0; i < PARAMETERS; i++)
        wide[i] = (double)p[i];
    expected = loss64(wide, text);
    wrong = !(fabs((double)loss - expected) < 1e-5 * expected);
    printf("first step: loss %.7f, in float64 %.7f\n", (double)loss, expected);
    for (int i = 0; i < TENSORS; i++) {
        const float *g = grad + (place - wide);
        const int n = tensors[i].size;
        double norm = 0, inner = 0, length = 0, error;

        for (int j = 0; j < n; j++) {
            norm += (double)g[j] * (double)g[j];
            d[j] = normal();
            length += d[j] * d[j];
        }
        for (int j = 0; j < n; j++) {
            d[j] /= sqrt(length);
            inner += d[j] * (double)g[j];
        }
        error = fabs(inner - slope(wide, place, n, d, text)) / sqrt(norm / n);
        printf("%-12s  %.4e  %.1e\n", tensors[i].name, sqrt(norm), error);
        wrong += !(error < 1e-4);
        place += n;
    }
    return wrong;
}

/* ------------------------------------------------------------------------------------------------------- training */

static void adamw(float *p, const float *grad, float *first, float *second, int step)
{
    const float rate = 4e-3f * fminf(1, (float)(step + 1) / 20), beta1 = 0.9f, beta2 = 0.95f, decay = 0.01f;
    const float fix1 = 1 - powf(beta1, (float)(step + 1)), fix2 = 1 - powf(beta2, (float)(step + 1));

    for (int i = 0; i < PARAMETERS; i++) {
        first[i] += (1 - beta1) * (grad[i] - first[i]);
        second[i] += (1 - beta2) * (grad[i] * grad[i] - second[i]);
        p[i] -= rate * (first[i] / fix1 / (sqrtf(second[i] / fix2) + 1e-8f) + decay * p[i]);
    }
}

int main(int argc, char **argv)
{
    const int steps = argc > 2 ? atoi(argv[2]) : 60;
    static float first[PARAMETERS], second[PARAMETERS];
    static unsigned char text[16 << 20];
    FILE *file = fopen(argc > 1 ? argv[1] : __FILE__, "rb");
    const size_t size = file ? fread(text, 1, sizeof text, file) : 0;
    float begin = 0, recent = 0;
    int wrong = 0;
    params *p, *grad;
    model *m;

    if (size < 2 * CONTEXT)
        fail("the text cannot be read, or is too short; name a file");
    start(argc > 3 ? argv[3] : "cpu");
    p = take(sizeof *p);
    grad = take(sizeof *grad);
    m = take(sizeof *m);
    initialise((float *)p);
    if (ridge_rope_freqs(HEAD, 10000, NULL, m->freqs, NULL) != RIDGE_OK)
        fail(ridge_error());
    printf("%d parameters, %zu bytes of text, %d tokens a step\n", PARAMETERS, size, TOKENS);
    for (int step = 0; step < steps; step++) {
        const unsigned char *batch[BATCH];
        float loss;

        for (int b = 0; b < BATCH; b++)
            batch[b] = text + (size_t)(uniform() * (double)(size - CONTEXT));
        loss = forward_backward(m, p, batch, grad);
        if (step == 0) {
            wrong = compare((float *)p, loss, (float *)grad, batch);
            begin = recent = loss;
        }
        recent += 0.1f * (loss - recent);
        if (step % 10 == 0 || step == steps - 1)
            printf("step %4d  loss %.4f  %*c\n", step, (double)loss, (int)(loss * 10), '*');
        adamw((float *)p, (float *)grad, first, second, step);
    }
    ridge_close(device);
    return wrong || !(recent < 0.7f * begin);
}

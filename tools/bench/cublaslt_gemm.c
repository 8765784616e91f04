/* cublaslt_gemm.c: cuBLASLt as a rival of gemm_fp8: the fastest of the first algorithms that its heuristic names.
 * Row-major D = A B^T is column-major D^T = B A^T, so cuBLASLt's A is B here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cublaslt.h"

enum { ALGORITHMS = 4, PATIENCE = 5 };

/* Scale modes, cublasLtMatmulMatrixScale_t. */
enum { SCALE_SCALAR = 0, SCALE_OUTER = 3, SCALE_VEC128 = 4, SCALE_BLK128X128 = 5 };

typedef struct gemm_state {
    const ridge_device *device;
    void *desc, *layout[3]; /* of its A, B and D */
    void *scale[2];         /* tables in its layout where ours have another */
    heuristic algorithm;
} gemm_state;

/* One library handle and workspace for the life of the process. */
static struct {
    lt_api lt;
    void *handle, *workspace;
    size_t bytes;
} shared;

static bool open_shared(const ridge_device *device, char *why, size_t size)
{
    if (shared.handle)
        return true;
    shared.bytes = 64 << 20;
    if (!cublaslt_load(&shared.lt, why, size))
        return false;
    if (device->backend->alloc(device, shared.bytes, &shared.workspace) || shared.lt.create(&shared.handle)) {
        snprintf(why, size, "cublasLtCreate failed");
        shared.handle = NULL;
    }
    return shared.handle != NULL;
}

static int type_of(uint32_t dtype)
{
    return dtype == RIDGE_E4M3   ? REAL_8F_E4M3
           : dtype == RIDGE_E5M2 ? REAL_8F_E5M2
           : dtype == RIDGE_BF16 ? REAL_16BF
           : dtype == RIDGE_F16  ? REAL_16F
                                 : REAL_32F;
}

static int scale_of(uint32_t mode)
{
    return mode == RIDGE_SCALE_ROW      ? SCALE_OUTER
           : mode == RIDGE_SCALE_ROW128 ? SCALE_VEC128
           : mode == RIDGE_SCALE_BLK128 ? SCALE_BLK128X128
                                        : SCALE_SCALAR;
}

/* Allocates a table of scales in its layout, whose rows of 128x128 blocks are a multiple of 4 long. The values do not
 * affect the time. */
static bool own_table(gemm_state *s, int which, const ridge_call *call, uint32_t mode)
{
    const int64_t rows = call->dim[which ? 1 : 0], blocks = (call->dim[2] + 127) / 128;
    const size_t bytes = (size_t)((rows + 127) / 128 * ((blocks + 3) / 4 * 4)) * sizeof(float);
    float *ones;
    bool good;

    if (mode != RIDGE_SCALE_BLK128 || blocks % 4 == 0)
        return true;
    ones = malloc(bytes);
    for (size_t i = 0; ones && i < bytes / sizeof(float); i++)
        ones[i] = 1;
    good = ones && s->device->backend->alloc(s->device, bytes, &s->scale[which]) == RIDGE_OK &&
           s->device->backend->upload(s->device, s->scale[which], ones, bytes) == RIDGE_OK;
    free(ones);
    return good;
}

static ridge_status gemm_run(void *state, const ridge_call *call, void *stream)
{
    gemm_state *s = state;
    const ridge_operand *arg = call->arg;
    const float alpha = 1, beta = call->flags & RIDGE_ACCUMULATE ? 1.0f : 0.0f;
    const void *scale_a = s->scale[0] ? s->scale[0] : arg[RIDGE_GEMM_FP8_SCALE_A].data;
    const void *scale_b = s->scale[1] ? s->scale[1] : arg[RIDGE_GEMM_FP8_SCALE_B].data;
    void *d = arg[RIDGE_GEMM_FP8_D].data;

    if (shared.lt.desc_set(s->desc, DESC_A_SCALE, &scale_b, sizeof scale_b) ||
        shared.lt.desc_set(s->desc, DESC_B_SCALE, &scale_a, sizeof scale_a) ||
        shared.lt.matmul(shared.handle, s->desc, &alpha, arg[RIDGE_GEMM_FP8_B].data, s->layout[0],
                         arg[RIDGE_GEMM_FP8_A].data, s->layout[1], &beta, d, s->layout[2], d, s->layout[2],
                         s->algorithm.algo, shared.workspace, shared.bytes, stream))
        return ridge_fail(RIDGE_ERR_DEVICE, "cublasLtMatmul failed");
    return RIDGE_OK;
}

static void gemm_close(void *state)
{
    gemm_state *s = state;

    for (int i = 0; i < 2; i++)
        if (s->scale[i])
            s->device->backend->release(s->device, s->scale[i]);
    for (int i = 0; i < 3; i++)
        if (s->layout[i])
            shared.lt.layout_destroy(s->layout[i]);
    if (s->desc)
        shared.lt.desc_destroy(s->desc);
    free(s);
}

/* Describes the product to cuBLASLt. */
static bool describe(gemm_state *s, const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = (call->flags & RIDGE_SCALE_B) >> 4;
    const int transpose = OPERATION_T, a_mode = scale_of(mode_b), b_mode = scale_of(mode_a);
    const int8_t fast = mode_a == RIDGE_SCALE_TENSOR || mode_a == RIDGE_SCALE_ROW;
    const uint64_t m = (uint64_t)call->dim[0], n = (uint64_t)call->dim[1], k = (uint64_t)call->dim[2];
    lt_api *lt = &shared.lt;

    return !lt->desc_create(&s->desc, COMPUTE_32F, REAL_32F) &&
           !lt->desc_set(s->desc, DESC_TRANSA, &transpose, sizeof transpose) &&
           !lt->desc_set(s->desc, DESC_A_SCALE_MODE, &a_mode, sizeof a_mode) &&
           !lt->desc_set(s->desc, DESC_B_SCALE_MODE, &b_mode, sizeof b_mode) &&
           !lt->desc_set(s->desc, DESC_FAST_ACCUM, &fast, sizeof fast) &&
           !lt->layout_create(&s->layout[0], type_of(arg[RIDGE_GEMM_FP8_B].dtype), k, n, (int64_t)k) &&
           !lt->layout_create(&s->layout[1], type_of(arg[RIDGE_GEMM_FP8_A].dtype), k, m, (int64_t)k) &&
           !lt->layout_create(&s->layout[2], type_of(arg[RIDGE_GEMM_FP8_D].dtype), n, m, (int64_t)n) &&
           own_table(s, 0, call, mode_a) && own_table(s, 1, call, mode_b);
}

/* Asks its heuristic for algorithms; returns how many, or -1. */
static int ask(const gemm_state *s, heuristic list[ALGORITHMS])
{
    lt_api *lt = &shared.lt;
    void *preference = NULL;
    int found = 0;
    bool good = !lt->preference_create(&preference) &&
                !lt->preference_set(preference, PREFERENCE_WORKSPACE, &shared.bytes, sizeof shared.bytes) &&
                !lt->choose(shared.handle, s->desc, s->layout[0], s->layout[1], s->layout[2], s->layout[2], preference,
                            ALGORITHMS, list, &found);

    if (preference)
        lt->preference_destroy(preference);
    return good ? found : -1;
}

/* Times the first algorithms and keeps the fastest. */
static bool choose(gemm_state *s, const ridge_call *call, void *stream)
{
    const ridge_backend *b = s->device->backend;
    const void *pointer = call->arg[RIDGE_GEMM_FP8_SCALE_B].data;
    heuristic list[ALGORITHMS];
    double us, least = -1;
    int found, best = -1;

    if (shared.lt.desc_set(s->desc, DESC_A_SCALE, &pointer, sizeof pointer) ||
        shared.lt.desc_set(s->desc, DESC_B_SCALE, &pointer, sizeof pointer))
        return false;
    found = ask(s, list);
    for (int i = 0; i < found; i++) {
        double fastest = -1;
        bool good = true;

        s->algorithm = list[i];
        for (int turn = 0; turn < PATIENCE && good && (turn < 2 || fastest < 2e3); turn++) {
            good = !b->mark(s->device, 0, stream) && !gemm_run(s, call, stream) && !b->mark(s->device, 1, stream) &&
                   !b->sync(s->device, stream) && !b->elapsed(s->device, 0, 1, &us);
            fastest = good && (fastest < 0 || us < fastest) ? us : fastest;
        }
        if (good && (best < 0 || fastest < least)) {
            least = fastest;
            best = i;
        }
    }
    if (best >= 0)
        s->algorithm = list[best];
    return best >= 0;
}

/* NULL, or why not: describe() passes no leading dimensions, and scale tables have none, so operands must be packed. */
static const char *why_not(const ridge_call *call)
{
    static const int padded[] = {RIDGE_GEMM_FP8_A, RIDGE_GEMM_FP8_B, RIDGE_GEMM_FP8_D, RIDGE_GEMM_FP8_SCALE_A,
                                 RIDGE_GEMM_FP8_SCALE_B};

    if (call->flags & (RIDGE_SCALE_T | RIDGE_SCALE_B_T))
        return "tables of scales that are not transposed only";
    if (call->arg[RIDGE_GEMM_FP8_BIAS].dtype != RIDGE_NONE)
        return "no bias";
    if (call->dim[0] % 16 || call->dim[1] % 16 || call->dim[2] % 16)
        return "m, n and k that are multiples of 16 only";
    for (size_t i = 0; i < sizeof padded / sizeof padded[0]; i++) {
        int64_t rows, cols;
        const int64_t stride = call->arg[padded[i]].stride;

        ridge_op_at(call->op)->extent(call, padded[i], &rows, &cols);
        if (rows > 1 && stride && stride != cols)
            return "packed operands only";
    }
    return NULL;
}

static void *gemm_open(const ridge_device *device, const ridge_call *call, void *stream, char *why, size_t size)
{
    const char *reason = why_not(call);
    gemm_state *s;

    if (reason) {
        snprintf(why, size, "%s", reason);
        return NULL;
    }
    if (!open_shared(device, why, size))
        return NULL;
    s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    s->device = device;
    if (describe(s, call) && choose(s, call, stream))
        return s;
    snprintf(why, size, "cuBLASLt has no algorithm for this");
    gemm_close(s);
    return NULL;
}

static const rival table[] = {{"cublaslt", RIDGE_GEMM_FP8, gemm_open, gemm_run, gemm_close}};

const rival *rival_at(int index)
{
    return index < (int)(sizeof table / sizeof table[0]) ? &table[index] : NULL;
}

/* builders.c LIBRIDGE.SO RIDGE.H: each builder of the header through dlsym, as another language calls it: with zeros.
 * The call it returns has its op's number, in the order of enum ridge_op, and ridge_run answers without a crash.
 * Arguments that make no call are an error that says why. A builder of the header that the list here lacks fails. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ridge.h"

static void *library;
static ridge_device *device;
static int called;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        printf("%s is not exported\n", name);
        exit(1);
    }
    return found;
}

/* The library's functions have no other address here: nothing is linked. */
static const char *error(void)
{
    const char *(*function)(void);

    *(void **)&function = symbol("ridge_error");
    return function();
}

static ridge_status run(const ridge_call *call)
{
    ridge_status (*function)(const ridge_device *, const ridge_call *, void *, size_t, void *);

    *(void **)&function = symbol("ridge_run");
    return function(device, call, NULL, 0, NULL);
}

static void check(const char *name, ridge_op op, const ridge_call *call)
{
    const ridge_status status = run(call);
    const int empty = status == RIDGE_OK || status == RIDGE_ERR_ARG;

    called++;
    if (call->struct_size == sizeof *call && call->op == (uint32_t)op && empty && (!call->invalid || status) &&
        (!call->invalid || strstr(error(), call->invalid)))
        return;
    printf("%s: op %u of %u bytes, status %d: %s\n", name, call->op, call->struct_size, (int)status, error());
    exit(1);
}

#define BUILDER(op, name, types, arguments)       \
    {                                             \
        ridge_call(*build) types;                 \
        ridge_call call;                          \
                                                  \
        *(void **)&build = symbol("ridge_" name); \
        call = build arguments;                   \
        check("ridge_" name, op, &call);          \
    }
#define N int64_t
#define T ridge_tensor
#define IN const void *
#define OUT void *
#define FLOATS const float *

static void call_all(void)
{
    const ridge_tensor none = {NULL, RIDGE_NONE, 0, NULL, RIDGE_SCALING_NONE, 0};

    BUILDER(RIDGE_SWIGLU_FWD, "swiglu_fwd", (N, N, ridge_dtype, IN, IN, OUT), (0, 0, RIDGE_F32, NULL, NULL, NULL))
    BUILDER(RIDGE_SWIGLU_BWD, "swiglu_bwd", (N, N, ridge_dtype, IN, IN, IN, OUT, OUT),
            (0, 0, RIDGE_F32, NULL, NULL, NULL, NULL, NULL))
    BUILDER(RIDGE_QUANTIZE_FP8, "quantize_fp8", (N, N, T, T), (0, 0, none, none))
    BUILDER(RIDGE_QUANTIZE_FP8_DUAL, "quantize_fp8_dual", (N, N, T, T, T), (0, 0, none, none, none))
    BUILDER(RIDGE_SWIGLU_QUANTIZE, "swiglu_quantize", (N, N, ridge_dtype, IN, IN, T, T),
            (0, 0, RIDGE_F32, NULL, NULL, none, none))
    BUILDER(RIDGE_GEMM_FP8, "gemm_fp8", (N, N, N, T, T, T), (0, 0, 0, none, none, none))
    BUILDER(RIDGE_Q8_0_QUANTIZE, "q8_0_quantize", (N, N, T, OUT), (0, 0, none, NULL))
    BUILDER(RIDGE_Q8_0_REPACK, "q8_0_repack", (N, N, IN, T), (0, 0, NULL, none))
    BUILDER(RIDGE_Q8_0_UNPACK, "q8_0_unpack", (N, N, T, OUT), (0, 0, none, NULL))
    BUILDER(RIDGE_Q8_0_QUANTIZE_ROWS, "q8_0_quantize_rows", (N, N, T, T), (0, 0, none, none))
    BUILDER(RIDGE_Q8_0_MATMUL, "q8_0_matmul", (N, N, N, T, T, T), (0, 0, 0, none, none, none))
    BUILDER(RIDGE_Q8_0_PAIR, "q8_0_pair", (N, N, N, N, T, T, T, T, T), (0, 0, 0, 0, none, none, none, none, none))
    BUILDER(RIDGE_Q8_0_GATE_UP_SWIGLU, "q8_0_gate_up_swiglu", (N, N, N, T, T, T, T), (0, 0, 0, none, none, none, none))
    BUILDER(RIDGE_Q8_0_MATMUL_HC_EXPAND, "q8_0_matmul_hc_expand", (N, N, N, N, T, T, FLOATS, FLOATS, FLOATS, float *),
            (0, 0, 0, 1, none, none, NULL, NULL, NULL, NULL))
    BUILDER(RIDGE_RMS_NORM, "rms_norm", (N, N, T, T, T), (0, 0, none, none, none))
    BUILDER(RIDGE_HEAD_RMS_NORM_ROPE_TAIL, "head_rms_norm_rope_tail", (N, N, N, N, T, T, T, const double *, T),
            (0, 0, 0, 0, none, none, none, NULL, none))
    BUILDER(RIDGE_LINEAR_CE_EVAL, "linear_ce_eval", (N, N, N, T, T, T, float *), (0, 0, 0, none, none, none, NULL))
    BUILDER(RIDGE_LINEAR_CE_TRAIN, "linear_ce_train", (N, N, N, T, T, T, float *, T, T),
            (0, 0, 0, none, none, none, NULL, none, none))
    BUILDER(RIDGE_LINEAR_CE_BACKWARD, "linear_ce_backward", (N, N, N, T, T, T, FLOATS, T, T),
            (0, 0, 0, none, none, none, NULL, none, none))
    BUILDER(RIDGE_CE_FWD, "ce_fwd", (N, N, T, T, float *), (0, 0, none, none, NULL))
    BUILDER(RIDGE_CE_BWD, "ce_bwd", (N, N, T, T, FLOATS, T), (0, 0, none, none, NULL, none))
    BUILDER(RIDGE_CE_COMBINE, "ce_combine", (N, N, N, FLOATS, const int64_t *, T, float *),
            (0, 0, 0, NULL, NULL, none, NULL))
    BUILDER(RIDGE_MULTIPLY, "multiply", (N, N, T, FLOATS, T), (0, 0, none, NULL, none))
}

/* Declarations "RIDGE_API ridge_call ridge_...(" in the header. */
static int declared(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256];
    int count = 0;

    while (file && fgets(line, sizeof line, file))
        count += strncmp(line, "RIDGE_API ridge_call ridge_", 27) == 0;
    if (file)
        fclose(file);
    return count;
}

/* A real call through nothing but the symbols: out = a b^T of one number, with scales. */
static int multiplies(void)
{
    static unsigned char a[16] = {0x38}, b[16] = {0x40}; /* 1 and 2 */
    float scale_a = 3, scale_b = 5, d = 0;
    ridge_tensor ta = {a, RIDGE_E4M3, 0, &scale_a, RIDGE_SCALING_TENSOR, 0}, tb = ta,
                 td = {NULL, RIDGE_F32, 0, NULL, RIDGE_SCALING_NONE, 0};
    ridge_call (*gemm)(N, N, N, T, T, T);
    void (*set)(ridge_call *, int, ridge_dtype, const void *, int64_t);
    ridge_call call;

    tb.data = b;
    tb.scale = &scale_b;
    td.data = &d;
    *(void **)&gemm = symbol("ridge_gemm_fp8");
    call = gemm(1, 1, 16, ta, tb, td);
    if (run(&call) != RIDGE_OK || d != 30) {
        printf("gemm_fp8 through dlsym: %g, not 30: %s\n", (double)d, error());
        return 0;
    }
    tb.scaling = RIDGE_SCALING_ROW;
    call = gemm(1, 1, 16, ta, tb, td);
    td.scale = &scale_a;
    if (run(&call) != RIDGE_ERR_ARG || !strstr(error(), "no legal pair")) {
        printf("tensor x row: %s\n", error());
        return 0;
    }
    tb.scaling = RIDGE_SCALING_TENSOR;
    call = gemm(1, 1, 16, ta, tb, td);
    if (run(&call) != RIDGE_ERR_ARG || !strstr(error(), "takes none")) {
        printf("d with scales: %s\n", error());
        return 0;
    }
    td.scale = NULL;
    call = gemm(1, 1, 16, ta, tb, td);
    *(void **)&set = symbol("ridge_set");
    set(&call, RIDGE_MAX_ARGS, RIDGE_F32, &d, 0);
    if (run(&call) != RIDGE_ERR_ARG || !strstr(error(), "slot")) {
        printf("a slot beyond the last: %s\n", error());
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    ridge_status (*open)(const char *, ridge_device **);
    void (*close)(ridge_device *);

    library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        printf("builders: %s\n", argc == 3 ? dlerror() : "give the library and the header");
        return 1;
    }
    *(void **)&open = symbol("ridge_open");
    *(void **)&close = symbol("ridge_close");
    if (open("cpu", &device) != RIDGE_OK) {
        printf("%s\n", error());
        return 1;
    }
    call_all();
    if (called != declared(argv[2]) || called != RIDGE_OPS - 1) {
        printf("the header has %d builders and %d ops, %d are called here\n", declared(argv[2]), RIDGE_OPS - 1, called);
        return 1;
    }
    if (!multiplies())
        return 1;
    close(device);
    printf("%d builders called through dlsym\n", called);
    return 0;
}

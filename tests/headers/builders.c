/* builders.c LIBRIDGE.SO: each builder of ridge.h through dlsym, as another language calls it, with zeros. The call
 * that it returns has its op's number, and ridge_run answers without a crash. Arguments that make no call are an error
 * that says why. CMake writes the list of builders, builders.h, from the header; an op without a builder fails. */
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

/* One line of builders.h: arguments are 0, NULL and absent tensors. */
#define BUILDER(op, name, arguments)      \
    {                                     \
        __typeof__(name) *build;          \
        ridge_call call;                  \
                                          \
        *(void **)&build = symbol(#name); \
        call = build arguments;           \
        check(#name, op, &call);          \
    }

static void call_all(void)
{
    const ridge_tensor none = {NULL, RIDGE_NONE, 0, NULL, RIDGE_SCALING_NONE, 0};

#include "builders.h"
}

/* A real call through nothing but the symbols: out = a b^T of one number, with scales. */
static int multiplies(void)
{
    static unsigned char a[16] = {0x38}, b[16] = {0x40}; /* 1 and 2 */
    float scale_a = 3, scale_b = 5, d = 0;
    ridge_tensor ta = {a, RIDGE_E4M3, 0, &scale_a, RIDGE_SCALING_TENSOR, 0}, tb = ta,
                 td = {NULL, RIDGE_F32, 0, NULL, RIDGE_SCALING_NONE, 0};
    __typeof__(ridge_gemm_fp8) *gemm;
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
    if (run(&call) != RIDGE_OK || d != 30) {
        printf("tensor x row through dlsym: %g, not 30: %s\n", (double)d, error());
        return 0;
    }
    tb.scaling = RIDGE_SCALING_BLK128;
    call = gemm(1, 1, 16, ta, tb, td);
    td.scale = &scale_a;
    if (run(&call) != RIDGE_ERR_ARG || !strstr(error(), "no legal pair")) {
        printf("tensor x blk128: %s\n", error());
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

    library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        printf("builders: %s\n", argc == 2 ? dlerror() : "give the library");
        return 1;
    }
    *(void **)&open = symbol("ridge_open");
    *(void **)&close = symbol("ridge_close");
    if (open("cpu", &device) != RIDGE_OK) {
        printf("%s\n", error());
        return 1;
    }
    call_all();
    if (called != RIDGE_OPS - 1) {
        printf("the header has %d ops and %d builders\n", RIDGE_OPS - 1, called);
        return 1;
    }
    if (!multiplies())
        return 1;
    close(device);
    printf("%d builders called through dlsym\n", called);
    return 0;
}

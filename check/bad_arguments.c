/* bad_arguments.c: bad input. Takes a good call of an op, spoils one thing at a time, and demands RIDGE_ERR_ARG and a
 * message that names the op and what is wrong. Part of `ridge test`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "family.h"

typedef struct subject {
    const ridge_device *device;
    const ridge_op_row *op;
    ridge_call good;
    int count, failed;
} subject;

/* Runs a spoiled call; `names` must be in the message. */
static void refuse(subject *b, const ridge_call *call, const char *what, const char *names, void *workspace,
                   size_t bytes)
{
    ridge_status status = ridge_run(b->device, call, workspace, bytes, NULL);

    b->count++;
    if (status == RIDGE_ERR_ARG && strstr(ridge_error(), names))
        return;
    b->failed++;
    printf("FAIL %s: %s: %s '%s', expected RIDGE_ERR_ARG naming '%s'\n", b->op->name, what, ridge_status_name(status),
           status ? ridge_error() : "", names);
}

static void spoil_operand(subject *b, int arg)
{
    const ridge_operand_row *row = &b->op->arg[arg];
    size_t size = ridge_dtype_size(b->good.arg[arg].dtype);
    ridge_call call = b->good;
    int64_t rows, cols;

    b->op->extent(&call, arg, &rows, &cols);
    if (!row->optional) {
        call.arg[arg].data = NULL;
        refuse(b, &call, "NULL operand", row->name, NULL, 0);
    }
    call = b->good;
    call.arg[arg].data = (char *)call.arg[arg].data + 1;
    if (size > 1)
        refuse(b, &call, "misaligned operand", row->name, NULL, 0);
    call = b->good;
    call.arg[arg].stride = -1;
    refuse(b, &call, "negative stride", row->name, NULL, 0);
    call.arg[arg].stride = cols - 1;
    if (cols > 1) /* 0 is packed */
        refuse(b, &call, row->kind == RIDGE_VECTOR ? "stride of a vector" : "stride below the row", row->name, NULL, 0);
    call.arg[arg].stride = INT64_C(1) << 41;
    refuse(b, &call, "stride of 2^41", row->name, NULL, 0);
    call = b->good;
    call.arg[arg].dtype = row->dtypes >> RIDGE_F64 & 1u ? RIDGE_F16 : RIDGE_F64;
    refuse(b, &call, "dtype that the op does not take", row->name, NULL, 0);
    call.arg[arg].dtype = 1000;
    refuse(b, &call, "dtype that does not exist", row->name, NULL, 0);
    call.arg[arg].dtype = RIDGE_NONE;
    refuse(b, &call, "pointer without a dtype", row->name, NULL, 0);
    if (row->same_dtype >= 0) {
        call.arg[arg].dtype = b->good.arg[arg].dtype == RIDGE_F32 ? RIDGE_BF16 : RIDGE_F32;
        refuse(b, &call, "dtype that differs from its partner's", row->name, NULL, 0);
    }
}

/* Output on an input, one element off. */
static void spoil_overlap(subject *b, int out)
{
    for (int in = 0; in < b->op->args; in++) {
        ridge_call call = b->good;
        int64_t rows, cols;

        b->op->extent(&call, in, &rows, &cols);
        if (in == out || call.arg[in].dtype == RIDGE_NONE || call.arg[out].dtype != call.arg[in].dtype ||
            rows * cols < 2) /* one element off is beside it */
            continue;
        call.arg[out].data = (char *)call.arg[in].data + ridge_dtype_size(call.arg[in].dtype);
        refuse(b, &call, "overlap", b->op->arg[out].name, NULL, 0);
    }
}

static void spoil_numbers(subject *b)
{
    ridge_call call;

    for (int d = 0; d < b->op->dims; d++) {
        call = b->good;
        call.dim[d] = -1;
        refuse(b, &call, "negative dimension", b->op->dim_name[d], NULL, 0);
        call.dim[d] = INT64_C(1) << 41;
        refuse(b, &call, "dimension of 2^41", b->op->dim_name[d], NULL, 0);
    }
    for (const ridge_field *field = b->op->fields; field->name; field++) {
        float bad = NAN;

        if (field->kind != RIDGE_FIELD_F32)
            continue;
        call = b->good;
        memcpy((char *)&call.opt + field->index, &bad, sizeof bad);
        refuse(b, &call, "option that is NaN", field->name, NULL, 0);
        bad = INFINITY;
        memcpy((char *)&call.opt + field->index, &bad, sizeof bad);
        refuse(b, &call, "option that is infinite", field->name, NULL, 0);
    }
}

static void spoil_as_family(subject *b)
{
    const check_family *family = check_family_of(b->op->id);
    bad_call list[BAD_CALLS];
    const int count = family->bad_calls ? family->bad_calls(&b->good, list) : 0;

    for (int i = 0; i < count; i++)
        refuse(b, &list[i].call, list[i].what, list[i].names, NULL, 0);
}

static void spoil_head(subject *b, void *memory)
{
    ridge_call call = b->good;

    call.flags |= 0x80000000u;
    refuse(b, &call, "unknown flag", "0x80000000", NULL, 0);
    call = b->good;
    call.struct_size--;
    refuse(b, &call, "struct_size", "struct_size", NULL, 0);
    call = b->good;
    call.op = 999;
    refuse(b, &call, "unknown op", "999", NULL, 0);
    call = b->good;
    call.kernel = "no.such.kernel";
    refuse(b, &call, "unknown pin", "no.such.kernel", NULL, 0);
    call = b->good;
    call.dim[RIDGE_MAX_DIMS - 1] = 5;
    refuse(b, &call, "dimension that the op does not have", "dim[5]", NULL, 0);
    call = b->good;
    ridge_set(&call, RIDGE_MAX_ARGS - 1, RIDGE_F32, memory, 0);
    if (b->op->args < RIDGE_MAX_ARGS)
        refuse(b, &call, "operand slot that the op does not have", "slot 23", NULL, 0);
    refuse(b, &b->good, "NULL workspace with a size", "workspace", NULL, 4096);
    refuse(b, &b->good, "misaligned workspace", "workspace", (char *)memory + 16, 4096);
    refuse(b, &b->good, "workspace that holds operands", "lies in the workspace", memory, (size_t)1 << 40);
    if ((uintptr_t)b->good.arg[0].data % 256 == 0)
        refuse(b, &b->good, "workspace on an operand", b->op->arg[0].name, b->good.arg[0].data, 256);
    refuse(b, NULL, "NULL call", "call", NULL, 0);
}

int test_bad_arguments(const ridge_device *device, const ridge_op_row *op, int *count)
{
    const ridge_backend *backend = device->backend;
    subject b = {.device = device, .op = op};
    unsigned char *got = NULL;
    void *memory = NULL;
    char text[400];
    test_case c = {.fill = FILL_NORMAL};
    image im;
    bool good;

    *count = 0;
    op->defaults(&c.call);
    for (int d = 0; d < op->dims; d++)
        c.call.dim[d] = 4 * (op->step[d] ? op->step[d] : 1);
    if (!image_build(&c, 9, &im))
        return 1;
    got = malloc(im.bytes);
    good = got && backend->alloc(device, im.bytes, &memory) == RIDGE_OK &&
           backend->upload(device, memory, im.host, im.bytes) == RIDGE_OK;
    if (good) {
        b.good = image_call(&im, memory);
        spoil_head(&b, memory);
        spoil_numbers(&b);
        spoil_as_family(&b);
        for (int arg = 0; arg < op->args; arg++)
            if (b.good.arg[arg].dtype != RIDGE_NONE) {
                spoil_operand(&b, arg);
                if (op->arg[arg].role & RIDGE_OUT)
                    spoil_overlap(&b, arg);
            }
        b.count++;
        good = backend->sync(device, NULL) == RIDGE_OK && backend->download(device, got, memory, im.bytes) == RIDGE_OK;
    }
    if (!good || !image_equal(&im, im.host, got, text, sizeof text)) {
        printf("FAIL %s: refused calls wrote: %s\n", op->name, good ? text : ridge_error());
        b.failed++;
    }
    if (memory)
        backend->release(device, memory);
    free(got);
    image_free(&im);
    *count = b.count;
    return b.failed;
}

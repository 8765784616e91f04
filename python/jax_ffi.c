/* jax_ffi.c: one XLA FFI handler that makes any ridge call (python/ridge/jax.py). Attributes: `call`, the bytes of a
 * ridge_call without pointers, and `slots`, the operand slot of each argument, then of each result; slot -1 is the
 * workspace. JAX arrays are packed, so strides stay 0. The handler allocates and synchronises nothing, and says so: JAX
 * may put it into CUDA graphs. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ridge.h"
#include "xla_ffi.h"

enum { MAX_DEVICES = 64 };

/* Opened once and kept: cpu, then CUDA by ordinal. */
static ridge_device *devices[MAX_DEVICES + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Opens a device (ordinal -1: the CPU). Python calls it before the first trace, so that nothing is loaded while XLA
 * captures a graph. */
RIDGE_API int ridge_jax_open(int ordinal);
RIDGE_API xla_error *ridge_jax_cpu(xla_frame *frame);
RIDGE_API xla_error *ridge_jax_cuda(xla_frame *frame);

int ridge_jax_open(int ordinal)
{
    ridge_status status = RIDGE_OK;
    char name[32] = "cpu";

    if (ordinal < -1 || ordinal >= MAX_DEVICES)
        return RIDGE_ERR_DEVICE;
    if (ordinal >= 0)
        snprintf(name, sizeof name, "cuda:%d", ordinal);
    pthread_mutex_lock(&lock);
    if (!devices[ordinal + 1])
        status = ridge_open(name, &devices[ordinal + 1]);
    pthread_mutex_unlock(&lock);
    return (int)status;
}

static xla_error *fail(const xla_frame *frame, ridge_status status, const char *text)
{
    static const int code[] = {[RIDGE_OK] = 13,           [RIDGE_ERR_ARG] = 3,     [RIDGE_ERR_UNSUPPORTED] = 12,
                               [RIDGE_ERR_WORKSPACE] = 8, [RIDGE_ERR_DEVICE] = 13, [RIDGE_ERR_FILE] = 13};
    xla_error_args args = {sizeof args, NULL, text, code[status]};

    return frame->api->error_create(&args);
}

static uint32_t dtype_of(int xla)
{
    switch (xla) {
    case 2:
        return RIDGE_I8;
    case 4:
        return RIDGE_I32;
    case 5:
        return RIDGE_I64;
    case 6:
        return RIDGE_U8;
    case 10:
        return RIDGE_F16;
    case 11:
        return RIDGE_F32;
    case 12:
        return RIDGE_F64;
    case 16:
        return RIDGE_BF16;
    case 19:
        return RIDGE_E5M2;
    case 20:
        return RIDGE_E4M3;
    default:
        return RIDGE_NONE;
    }
}

static const xla_array *attribute(const xla_attributes *all, const char *name)
{
    for (int64_t i = 0; i < all->count; i++)
        if (all->kind[i] == 1 && all->name[i]->length == strlen(name) &&
            memcmp(all->name[i]->text, name, strlen(name)) == 0)
            return all->at[i];
    return NULL;
}

typedef struct scratch {
    char *at;
    size_t bytes;
} scratch;

/* Puts buffers into their slots; false if something is not as jax.py makes it. */
static int place(const xla_values *values, const int64_t *slot, ridge_call *call, scratch *workspace)
{
    for (int64_t i = 0; i < values->count; i++) {
        const xla_buffer *b = values->at[i];

        if (values->kind[i] != 1 || slot[i] < -1 || slot[i] >= RIDGE_MAX_ARGS)
            return 0;
        if (slot[i] >= 0) {
            ridge_set(call, (int)slot[i], (ridge_dtype)dtype_of(b->dtype), b->data, 0);
            continue;
        }
        workspace->at = (char *)(((uintptr_t)b->data + 255) / 256 * 256);
        workspace->bytes = b->dims[0] > 256 ? (size_t)b->dims[0] - 256 : 0;
    }
    return 1;
}

static xla_error *run(const xla_frame *frame, int ordinal, void *stream)
{
    const xla_array *bytes = attribute(&frame->attributes, "call"), *slots = attribute(&frame->attributes, "slots");
    scratch workspace = {NULL, 0};
    ridge_status status;
    ridge_call call;

    if (!bytes || bytes->size * 8 != sizeof call || !slots ||
        (int64_t)slots->size != frame->args.count + frame->results.count)
        return fail(frame, RIDGE_ERR_ARG, "ridge: the attributes are not this version's");
    memcpy(&call, bytes->data, sizeof call);
    call.kernel = call.invalid = NULL;
    if (!place(&frame->args, slots->data, &call, &workspace) ||
        !place(&frame->results, (const int64_t *)slots->data + frame->args.count, &call, &workspace))
        return fail(frame, RIDGE_ERR_ARG, "ridge: an operand is no buffer, or has no slot");
    status = (ridge_status)ridge_jax_open(ordinal);
    if (!status)
        status = ridge_run(devices[ordinal + 1], &call, workspace.bytes ? workspace.at : NULL, workspace.bytes, stream);
    return status ? fail(frame, status, ridge_error()) : NULL;
}

/* True for the call that asks what the handler can do, before any other. */
static int answer_metadata(xla_frame *frame)
{
    xla_metadata *to;

    if (!frame->extension || frame->extension->type != 1)
        return 0;
    to = ((xla_metadata_extension *)frame->extension)->metadata;
    to->version.major = 0;
    to->version.minor = 1;
    to->traits = XLA_COMMAND_BUFFER_COMPATIBLE;
    return 1;
}

xla_error *ridge_jax_cpu(xla_frame *frame)
{
    return answer_metadata(frame) ? NULL : run(frame, -1, NULL);
}

xla_error *ridge_jax_cuda(xla_frame *frame)
{
    xla_stream_args stream = {sizeof stream, NULL, frame->context, NULL};
    xla_ordinal_args ordinal = {sizeof ordinal, NULL, frame->context, 0};
    xla_error *error;

    if (answer_metadata(frame))
        return NULL;
    error = frame->api->stream_get(&stream);
    if (!error && frame->api->struct_size >= offsetof(xla_api, ordinal_get) + sizeof frame->api->ordinal_get)
        error = frame->api->ordinal_get(&ordinal);
    return error ? error : run(frame, ordinal.ordinal, stream.stream);
}

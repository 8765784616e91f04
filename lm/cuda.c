/* cuda.c: the memory, the stream and the graphs of a CUDA device, through the driver, which is looked up when a model
 * is opened on one: the library needs no CUDA to be built or loaded. Kernels are ridge's: they run in the device's
 * primary context, which is made current here for every call. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>

#include "lm.h"

typedef uint64_t device_pointer;

/* The driver's functions by the names of its ABI; every one answers 0 for success. */
typedef struct driver {
    int (*primary_retain)(void **context, int device);
    int (*primary_release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*alloc)(device_pointer *memory, size_t bytes);
    int (*release)(device_pointer memory);
    int (*info)(size_t *free_bytes, size_t *total);
    int (*upload)(device_pointer to, const void *from, size_t bytes, void *stream);
    int (*download)(void *to, device_pointer from, size_t bytes, void *stream);
    int (*capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_destroy)(void *graph);
    int (*graph_launch)(void *exec, void *stream);
    int (*exec_destroy)(void *exec);
    int (*copy)(device_pointer to, device_pointer from, size_t bytes, void *stream);
    int (*host_alloc)(void **memory, size_t bytes, unsigned flags);
    int (*host_free)(void *memory);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*stream_follow)(void *stream, void *event, unsigned flags);
    int (*error_text)(int error, const char **text);
} driver;

typedef struct cuda_state {
    driver f;
    void *library, *context, *stream, *mark[2];
    void *to_device, *to_host, *sent, *done; /* streams of copies beside `stream`, events */
    void *branch[RIDGE_LM_MAX_SESSIONS], *forked, *joined[RIDGE_LM_MAX_SESSIONS]; /* streams, events */
    const ridge_device *device;
    int ordinal;
} cuda_state;

static ridge_status failed(const cuda_state *s, int error, const char *what)
{
    const char *text = NULL;

    if (!error)
        return RIDGE_OK;
    if (s->f.error_text(error, &text) || !text)
        text = "unknown error";
    return lm_fail(RIDGE_ERR_DEVICE, "cuda: %s: %s", what, text);
}

/* A driver's call with the context current; what was current before is so again afterwards. */
#define WITH_CONTEXT(s, error, call)         \
    do {                                     \
        void *before_;                       \
        (error) = (s)->f.push((s)->context); \
        if (!(error)) {                      \
            (error) = (call);                \
            (s)->f.pop(&before_);            \
        }                                    \
    } while (0)

static ridge_status look_up(cuda_state *s)
{
    const struct {
        const char *name;
        void *to;
    } list[] = {{"cuDevicePrimaryCtxRetain", &s->f.primary_retain},
                {"cuDevicePrimaryCtxRelease_v2", &s->f.primary_release},
                {"cuCtxPushCurrent_v2", &s->f.push},
                {"cuCtxPopCurrent_v2", &s->f.pop},
                {"cuStreamCreate", &s->f.stream_create},
                {"cuStreamDestroy_v2", &s->f.stream_destroy},
                {"cuStreamSynchronize", &s->f.stream_wait},
                {"cuMemAlloc_v2", &s->f.alloc},
                {"cuMemFree_v2", &s->f.release},
                {"cuMemGetInfo_v2", &s->f.info},
                {"cuMemcpyHtoDAsync_v2", &s->f.upload},
                {"cuMemcpyDtoHAsync_v2", &s->f.download},
                {"cuStreamBeginCapture_v2", &s->f.capture},
                {"cuStreamEndCapture", &s->f.end_capture},
                {"cuGraphInstantiateWithFlags", &s->f.instantiate},
                {"cuGraphDestroy", &s->f.graph_destroy},
                {"cuGraphLaunch", &s->f.graph_launch},
                {"cuGraphExecDestroy", &s->f.exec_destroy},
                {"cuMemcpyDtoDAsync_v2", &s->f.copy},
                {"cuMemHostAlloc", &s->f.host_alloc},
                {"cuMemFreeHost", &s->f.host_free},
                {"cuEventCreate", &s->f.event_create},
                {"cuEventDestroy_v2", &s->f.event_destroy},
                {"cuEventRecord", &s->f.event_record},
                {"cuEventSynchronize", &s->f.event_wait},
                {"cuStreamWaitEvent", &s->f.stream_follow},
                {"cuGetErrorString", &s->f.error_text}};

    s->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!s->library)
        return lm_fail(RIDGE_ERR_DEVICE, "cuda: %s", dlerror());
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        void *found = dlsym(s->library, list[i].name);

        if (!found)
            return lm_fail(RIDGE_ERR_DEVICE, "cuda: the driver has no %s", list[i].name);
        *(void **)list[i].to = found;
    }
    return RIDGE_OK;
}

static void stop(void *state)
{
    cuda_state *s = state;
    int error = 0;

    for (int i = 0; i < 2; i++)
        if (s->mark[i])
            WITH_CONTEXT(s, error, s->f.event_destroy(s->mark[i]));
    if (s->forked)
        WITH_CONTEXT(s, error, s->f.event_destroy(s->forked));
    for (int i = 0; i < RIDGE_LM_MAX_SESSIONS; i++) {
        if (s->joined[i])
            WITH_CONTEXT(s, error, s->f.event_destroy(s->joined[i]));
        if (s->branch[i])
            WITH_CONTEXT(s, error, s->f.stream_destroy(s->branch[i]));
    }
    if (s->sent)
        WITH_CONTEXT(s, error, s->f.event_destroy(s->sent));
    if (s->done)
        WITH_CONTEXT(s, error, s->f.event_destroy(s->done));
    if (s->to_device)
        WITH_CONTEXT(s, error, s->f.stream_destroy(s->to_device));
    if (s->to_host)
        WITH_CONTEXT(s, error, s->f.stream_destroy(s->to_host));
    if (s->stream)
        WITH_CONTEXT(s, error, s->f.stream_destroy(s->stream));
    if (s->context)
        error = s->f.primary_release(s->ordinal);
    (void)error; /* a session that is being closed has no caller to report to */
    if (s->library)
        dlclose(s->library);
    free(s);
}

static ridge_status start(const ridge_device *device, void **state)
{
    ridge_device_info info = {.struct_size = sizeof info};
    cuda_state *s = calloc(1, sizeof *s);
    ridge_status status;
    int error = 0;

    if (!s)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for a device");
    status = lm_ridge_failed(ridge_device_query(device, &info));
    s->device = device;
    s->ordinal = info.ordinal;
    if (!status)
        status = look_up(s);
    if (!status)
        status = failed(s, s->f.primary_retain(&s->context, s->ordinal), "the device's context");
    if (!status) {
        WITH_CONTEXT(s, error, s->f.stream_create(&s->stream, 1)); /* 1: it does not wait for the default stream */
        for (int i = 0; i < 2 && !error; i++)
            WITH_CONTEXT(s, error, s->f.event_create(&s->mark[i], 2)); /* 2: without a time */
        if (!error)
            WITH_CONTEXT(s, error, s->f.event_create(&s->sent, 2));
        if (!error)
            WITH_CONTEXT(s, error, s->f.event_create(&s->done, 2));
        if (!error)
            WITH_CONTEXT(s, error, s->f.stream_create(&s->to_device, 1));
        if (!error)
            WITH_CONTEXT(s, error, s->f.stream_create(&s->to_host, 1));
        status = failed(s, error, "a stream");
    }
    if (status)
        stop(s);
    else
        *state = s;
    return status;
}

static ridge_status take(void *state, int64_t bytes, void **memory)
{
    cuda_state *s = state;
    device_pointer p = 0;
    int error;

    WITH_CONTEXT(s, error, s->f.alloc(&p, (size_t)bytes));
    *memory = (void *)(uintptr_t)p;
    return failed(s, error, "memory");
}

static void release(void *state, void *memory)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.release((uintptr_t)memory));
    (void)error;
}

static ridge_status upload(void *state, void *to, const void *from, int64_t bytes)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.upload((uintptr_t)to, from, (size_t)bytes, s->stream));
    if (!error)
        WITH_CONTEXT(s, error, s->f.stream_wait(s->stream));
    return failed(s, error, "a copy to the device");
}

static ridge_status host_take(void *state, int64_t bytes, void **memory)
{
    cuda_state *s = state;
    int error;

    *memory = NULL;
    WITH_CONTEXT(s, error, s->f.host_alloc(memory, (size_t)bytes, 0));
    return failed(s, error, "host memory");
}

static void host_release(void *state, void *memory)
{
    cuda_state *s = state;
    int error = 0;

    if (memory)
        WITH_CONTEXT(s, error, s->f.host_free(memory));
    (void)error;
}

static ridge_status send(void *state, void *to, const void *from, int64_t bytes)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.upload((uintptr_t)to, from, (size_t)bytes, s->stream));
    return failed(s, error, "a copy to the device");
}

static ridge_status send_beside(void *state, void *to, const void *from, int64_t bytes)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.upload((uintptr_t)to, from, (size_t)bytes, s->to_device));
    if (!error)
        WITH_CONTEXT(s, error, s->f.event_record(s->sent, s->to_device));
    if (!error)
        WITH_CONTEXT(s, error, s->f.stream_follow(s->stream, s->sent, 0));
    return failed(s, error, "a copy to the device");
}

/* By a stream of its own, so that what comes next on the other one does not wait for the copy. */
static ridge_status fetch(void *state, void *to, const void *from, int64_t bytes, int mark)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.event_record(s->done, s->stream));
    if (!error)
        WITH_CONTEXT(s, error, s->f.stream_follow(s->to_host, s->done, 0));
    if (!error && bytes)
        WITH_CONTEXT(s, error, s->f.download(to, (uintptr_t)from, (size_t)bytes, s->to_host));
    if (!error)
        WITH_CONTEXT(s, error, s->f.event_record(s->mark[mark], s->to_host));
    return failed(s, error, "a copy from the device");
}

static ridge_status wait_mark(void *state, int mark)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.event_wait(s->mark[mark]));
    return failed(s, error, "a step");
}

static ridge_status download(void *state, void *to, const void *from, int64_t bytes)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.download(to, (uintptr_t)from, (size_t)bytes, s->stream));
    if (!error)
        WITH_CONTEXT(s, error, s->f.stream_wait(s->stream));
    return failed(s, error, "a copy from the device");
}

static ridge_status copy(void *state, void *to, const void *from, int64_t bytes)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.copy((uintptr_t)to, (uintptr_t)from, (size_t)bytes, s->stream));
    return failed(s, error, "a copy on the device");
}

static int64_t free_bytes(void *state)
{
    cuda_state *s = state;
    size_t there = 0, total;
    int error;

    WITH_CONTEXT(s, error, s->f.info(&there, &total));
    return error ? 0 : (int64_t)there;
}

static void *stream_of(void *state, int branch)
{
    const cuda_state *s = state;

    return branch < 0 ? s->stream : s->branch[branch];
}

static ridge_status branches(void *state, int count)
{
    cuda_state *s = state;
    int error = 0;

    WITH_CONTEXT(s, error, s->f.event_create(&s->forked, 2));
    for (int i = 0; i < count && !error; i++) {
        WITH_CONTEXT(s, error, s->f.stream_create(&s->branch[i], 1));
        if (!error)
            WITH_CONTEXT(s, error, s->f.event_create(&s->joined[i], 2));
    }
    return failed(s, error, "a stream");
}

static ridge_status fork_branches(void *state, int count)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.event_record(s->forked, s->stream));
    for (int i = 0; i < count && !error; i++)
        WITH_CONTEXT(s, error, s->f.stream_follow(s->branch[i], s->forked, 0));
    return failed(s, error, "branches of a graph");
}

static ridge_status join_branches(void *state, int count)
{
    cuda_state *s = state;
    int error = 0;

    for (int i = 0; i < count && !error; i++) {
        WITH_CONTEXT(s, error, s->f.event_record(s->joined[i], s->branch[i]));
        if (!error)
            WITH_CONTEXT(s, error, s->f.stream_follow(s->stream, s->joined[i], 0));
    }
    return failed(s, error, "branches of a graph");
}

static ridge_status graph_begin(void *state)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.capture(s->stream, 1)); /* 1: only this thread's calls */
    return failed(s, error, "the beginning of a graph");
}

static ridge_status graph_end(void *state, void **graph)
{
    cuda_state *s = state;
    void *captured = NULL;
    ridge_status status;
    int error;

    *graph = NULL;
    WITH_CONTEXT(s, error, s->f.end_capture(s->stream, &captured));
    status = failed(s, error, "a graph");
    if (!status)
        status = lm_ridge_failed(ridge_order_graph(s->device, captured));
    if (!status) {
        WITH_CONTEXT(s, error, s->f.instantiate(graph, captured, 0));
        status = failed(s, error, "a graph");
    }
    if (captured)
        s->f.graph_destroy(captured);
    return status;
}

static ridge_status graph_launch(void *state, void *graph)
{
    cuda_state *s = state;
    int error;

    WITH_CONTEXT(s, error, s->f.graph_launch(graph, s->stream));
    return failed(s, error, "the launch of a graph");
}

static void graph_free(void *state, void *graph)
{
    cuda_state *s = state;

    if (graph)
        s->f.exec_destroy(graph);
}

const lm_backend lm_cuda_backend = {
    .start = start,
    .stop = stop,
    .alloc = take,
    .release = release,
    .upload = upload,
    .download = download,
    .host_alloc = host_take,
    .host_release = host_release,
    .send = send,
    .send_beside = send_beside,
    .fetch = fetch,
    .wait = wait_mark,
    .copy = copy,
    .free_bytes = free_bytes,
    .stream = stream_of,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .branches = branches,
    .fork = fork_branches,
    .join = join_branches,
};

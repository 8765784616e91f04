/* device.cu: CUDA as a backend: what ridge_open reads from a GPU, and memory, streams, graphs, events and ceilings for
 * the driver (tools/). The library's call path uses none of it. */
#include <stdio.h>
#include <string.h>

#include "graph.cuh"
#include "launch.cuh"
#include "num.cuh"
#include "src/math/exact.h"

#define TRY(call, what)                                      \
    do {                                                     \
        cudaError_t error_ = (call);                         \
        if (error_ != cudaSuccess)                           \
            return ridge_cuda_fail(NULL, (int)error_, what); \
    } while (0)

/* ----------------------------------------------------------------------------------------------------------- errors */

/* What the driver's own text does not say. */
static const char *hint_of(const ridge_device *device, int error)
{
    unsigned long long id = 0;

    if (error == cudaErrorInitializationError)
        return " (a process forked after CUDA had started cannot use it: start processes by spawn)";
    if (error == cudaErrorInsufficientDriver)
        return CUDART_VERSION >= 13000 ? " (this build needs a driver for CUDA 13)"
                                       : " (this build needs one for CUDA 12)";
    if (error == cudaErrorNoKernelImageForDevice)
        return " (this build has no code for this GPU: RIDGE_CUDA_ARCHS)";
    if (error == cudaErrorContextIsDestroyed || error == cudaErrorDeviceUninitialized)
        return " (the context of ridge_open is gone, cudaDeviceReset? open the device again)";
    if (device && device->context_id && device->entry[HOST_GET_ID] &&
        (((host_get_id *)device->entry[HOST_GET_ID])((CUcontext)device->context, &id) != CUDA_SUCCESS ||
         id != device->context_id))
        return " (the device was reset after ridge_open: open it again)";
    if (device && error == cudaErrorInvalidResourceHandle)
        return " (is the stream another device's or context's?)";
    return "";
}

extern "C" ridge_status ridge_cuda_fail(const ridge_device *device, int error, const char *what)
{
    return ridge_fail(RIDGE_ERR_DEVICE, "%s: %s%s", what, cudaGetErrorString((cudaError_t)error),
                      hint_of(device, error));
}

/* ---------------------------------------------------------------------------------------------------------- devices */

static int cuda_count(char *why_none, size_t size)
{
    const cudaError_t pending = cudaPeekAtLastError();
    int count = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&count);

    if (error == cudaSuccess && count > 0)
        return count;
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        snprintf(why_none, size, "the driver shows no device");
    else if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        snprintf(why_none, size, "there is no NVIDIA driver (libcuda.so.1)");
    else
        snprintf(why_none, size, "%s%s", cudaGetErrorString(error), hint_of(NULL, (int)error));
    host_forget(pending); /* a machine without a GPU is no error of the caller's */
    return 0;
}

/* The newest table entry that is not newer than the device. */
static ridge_arch arch_of(int compute)
{
    int best = RIDGE_ARCHS;

    for (int arch = RIDGE_ARCH_SM80; arch < RIDGE_ARCHS; arch++)
        if (ridge_arch_table[arch].compute <= compute)
            best = arch;
    return (ridge_arch)best;
}

/* A function of the driver that has been there since CUDA `version`; NULL if there is none. */
static void *entry_of(const char *name, unsigned version)
{
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
    (void)version;
    error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : NULL;
}

/* The primary context of the ordinal is current for the time of a call. (cudaSetDevice would make a context on another
 * GPU when it puts back what was current.) */
static ridge_status cuda_enter(const ridge_device *device, bool *pushed)
{
    CUcontext current = NULL;
    CUresult error = ((host_get_current *)device->entry[HOST_GET_CURRENT])(&current);

    *pushed = false;
    if (error == CUDA_SUCCESS && current != (CUcontext)device->context) {
        error = ((host_push_current *)device->entry[HOST_PUSH_CURRENT])((CUcontext)device->context);
        *pushed = error == CUDA_SUCCESS;
    }
    return error == CUDA_SUCCESS ? RIDGE_OK : ridge_cuda_fail(device, (int)error, "cannot enter the CUDA context");
}

static void cuda_leave(const ridge_device *device, bool pushed)
{
    CUcontext context;

    if (pushed)
        ((host_pop_current *)device->entry[HOST_POP_CURRENT])(&context);
}

/* The primary context stays until the process ends, as the runtime's own does: kernels may be in flight, and the
 * runtime keeps what it has loaded into it. */
static ridge_status open_context(ridge_device *device)
{
    static const struct {
        const char *name;
        unsigned version;
    } functions[HOST_ENTRIES] = {
        {"cuDevicePrimaryCtxRetain", 7000}, {"cuCtxGetCurrent", 4000}, {"cuCtxPushCurrent", 4000},
        {"cuCtxPopCurrent", 4000},          {"cuCtxGetId", 12000},     {"cuLaunchKernelEx", 11060}};
    CUcontext context = NULL;
    CUresult error;

    for (int i = 0; i < HOST_ENTRIES; i++) {
        device->entry[i] = entry_of(functions[i].name, functions[i].version);
        if (!device->entry[i] && i != HOST_GET_ID)
            return ridge_fail(RIDGE_ERR_DEVICE, "the NVIDIA driver has no %s: it is too old", functions[i].name);
    }
    error = ((host_primary_retain *)device->entry[HOST_PRIMARY_RETAIN])(&context, (CUdevice)device->ordinal);
    if (error != CUDA_SUCCESS)
        return ridge_cuda_fail(NULL, (int)error, "cuDevicePrimaryCtxRetain");
    device->context = context;
    if (device->entry[HOST_GET_ID] &&
        ((host_get_id *)device->entry[HOST_GET_ID])(context, &device->context_id) != CUDA_SUCCESS)
        device->context_id = 0;
    return RIDGE_OK;
}

static ridge_status open_device(ridge_device *device, int ordinal)
{
    cudaDeviceProp prop;
    int compute, memory_khz = 0, clock_khz = 0, driver = 0;
    ridge_status status;

    TRY(cudaGetDeviceProperties(&prop, ordinal), "cudaGetDeviceProperties");
    compute = prop.major * 10 + prop.minor;
    device->arch = arch_of(compute);
    if (device->arch == RIDGE_ARCHS)
        return ridge_fail(RIDGE_ERR_DEVICE, "CUDA device %d (%s) is sm%d; this build begins at sm80", ordinal,
                          prop.name, compute);
    device->ordinal = ordinal;
    status = open_context(device);
    if (status)
        return status;
    device->units = prop.multiProcessorCount;
    device->l2_bytes = prop.l2CacheSize;
    device->memory_bytes = (int64_t)prop.totalGlobalMem;
    cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, ordinal);
    cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, ordinal);
    /* Two transfers a clock; a copy reaches about 88 % of the pins on HBM. Only the cost model reads this. */
    device->copy_gbps = 0.88 * 2e-6 * memory_khz * (prop.memoryBusWidth / 8);
    device->clock_ghz = 1e-6 * clock_khz;
    cudaDriverGetVersion(&driver);
    device->tensor_map_encode = entry_of("cuTensorMapEncodeTiled", 12000);
    snprintf(device->driver, sizeof device->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(device->name, sizeof device->name, "%.*s", (int)sizeof device->name - 1, prop.name);
    ridge_chip_fill(device);
    return RIDGE_OK;
}

static ridge_status cuda_open(ridge_device *device, int ordinal)
{
    const cudaError_t pending = cudaPeekAtLastError();
    const ridge_status status = open_device(device, ordinal);

    if (pending == cudaSuccess)
        cudaGetLastError(); /* nothing of ridge_open's is left for the caller to find */
    return status;
}

/* ----------------------------------------------------------------------------------------------- memory and streams */

static ridge_status select_device(const ridge_device *device)
{
    TRY(cudaSetDevice(device->ordinal), "cudaSetDevice");
    return RIDGE_OK;
}

static ridge_status cuda_alloc(const ridge_device *device, size_t bytes, void **memory)
{
    ridge_status status = select_device(device);
    cudaError_t error;

    if (status)
        return status;
    error = cudaMalloc(memory, bytes ? bytes : 256);
    if (error == cudaSuccess)
        return RIDGE_OK;
    *memory = NULL;
    cudaGetLastError();
    return ridge_fail(RIDGE_ERR_DEVICE, "cannot allocate %zu bytes: %s", bytes, cudaGetErrorString(error));
}

static void cuda_release(const ridge_device *device, void *memory)
{
    if (select_device(device) == RIDGE_OK)
        cudaFree(memory);
}

static ridge_status cuda_upload(const ridge_device *, void *to, const void *from, size_t bytes)
{
    TRY(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload");
    /* A copy from pageable memory may return before it has landed, and a stream that does not wait for the legacy one
     * would not see it. */
    TRY(cudaDeviceSynchronize(), "upload");
    return RIDGE_OK;
}

static ridge_status cuda_download(const ridge_device *, void *to, const void *from, size_t bytes)
{
    TRY(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "download");
    return RIDGE_OK;
}

static ridge_status cuda_copy(const ridge_device *, void *to, const void *from, size_t bytes, void *stream)
{
    TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream), "copy");
    return RIDGE_OK;
}

static ridge_status cuda_stream_new(const ridge_device *device, void **stream)
{
    ridge_status status = select_device(device);

    if (status)
        return status;
    TRY(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return RIDGE_OK;
}

static void cuda_stream_free(const ridge_device *, void *stream)
{
    cudaStreamDestroy((cudaStream_t)stream);
}

static ridge_status cuda_sync(const ridge_device *, void *stream)
{
    TRY(cudaStreamSynchronize((cudaStream_t)stream), "the GPU");
    return RIDGE_OK;
}

/* ----------------------------------------------------------------------------------------------- graphs and events */

static ridge_status cuda_order_graph(const ridge_device *device, void *graph)
{
    const cudaError_t pending = cudaPeekAtLastError(), error = order_edges((cudaGraph_t)graph);

    if (error == cudaSuccess)
        return RIDGE_OK;
    host_forget(pending);
    return ridge_cuda_fail(device, (int)error, "ridge_order_graph: the edges of the graph");
}

static ridge_status cuda_graph_begin(const ridge_device *, void *stream)
{
    TRY(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal), "graph capture");
    return RIDGE_OK;
}

static ridge_status cuda_graph_end(const ridge_device *device, void *stream, void **graph)
{
    cudaGraph_t captured = NULL;
    ridge_status status;
    cudaError_t error;

    TRY(cudaStreamEndCapture((cudaStream_t)stream, &captured), "graph capture");
    status = cuda_order_graph(device, captured);
    if (!status) {
        error = cudaGraphInstantiate((cudaGraphExec_t *)graph, captured, 0);
        if (error != cudaSuccess)
            status = ridge_cuda_fail(NULL, (int)error, "cudaGraphInstantiate");
    }
    cudaGraphDestroy(captured);
    return status;
}

static ridge_status cuda_graph_launch(const ridge_device *, void *graph, void *stream)
{
    TRY(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "graph launch");
    return RIDGE_OK;
}

static void cuda_graph_free(const ridge_device *, void *graph)
{
    cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

/* The driver is one thread with one device: its marks are that thread's. */
static thread_local cudaEvent_t marks[64];

static ridge_status cuda_mark(const ridge_device *, int slot, void *stream)
{
    if (!marks[slot])
        TRY(cudaEventCreate(&marks[slot]), "cudaEventCreate");
    TRY(cudaEventRecord(marks[slot], (cudaStream_t)stream), "cudaEventRecord");
    return RIDGE_OK;
}

static ridge_status cuda_elapsed(const ridge_device *, int from, int to, double *us)
{
    float ms = 0;

    TRY(cudaEventElapsedTime(&ms, marks[from], marks[to]), "cudaEventElapsedTime");
    *us = 1e3 * (double)ms;
    return RIDGE_OK;
}

/* --------------------------------------------------------------------------------------------------------- ceilings */

enum { LOADS = 4 };

/* Reads words[0, n) once: blocks of threads x 4 words of 16 bytes, all blocks striding over the memory. */
static __global__ void read_kernel(const uint4 *words, size_t n, uint32_t *sink)
{
    size_t step = (size_t)gridDim.x * blockDim.x * LOADS;
    uint32_t sum = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x * LOADS + threadIdx.x; i < n; i += step) {
        uint4 v[LOADS];

#pragma unroll
        for (int u = 0; u < LOADS; u++)
            v[u] = i + (size_t)u * blockDim.x < n ? ptx_load_once(words + i + (size_t)u * blockDim.x)
                                                  : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (sum == 0x9e3779b9u) /* keeps the loads; random data meets it once in 2^32 threads, and then harmlessly */
        *sink = sum;
}

/* Copies n words: the flat geometry of swiglu_fwd, one 16-byte word a thread and step. */
static __global__ void copy_kernel(uint4 *to, const uint4 *from, size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x * LOADS;

    for (size_t i = (size_t)blockIdx.x * blockDim.x * LOADS + threadIdx.x; i < n; i += step) {
        uint4 v[LOADS];

#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (i + (size_t)u * blockDim.x < n)
                v[u] = ptx_load_once(from + i + (size_t)u * blockDim.x);
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            if (i + (size_t)u * blockDim.x < n)
                ptx_store_once(to + i + (size_t)u * blockDim.x, v[u]);
    }
}

static __global__ void empty_kernel(void)
{
}

static __device__ uint32_t read_sink;

enum { READ_VARIANTS = 8, COPY_VARIANTS = 3 };

/* Variants: 256 or 512 threads, 1, 2, 4 or 8 blocks a multiprocessor. */
static ridge_status cuda_stream_read(const ridge_device *device, int variant, const void *memory, size_t bytes,
                                     void *stream)
{
    int threads = variant & 1 ? 512 : 256, blocks = device->units << (variant >> 1);
    uint32_t *sink;

    TRY(cudaGetSymbolAddress((void **)&sink, read_sink), "stream");
    read_kernel<<<blocks, threads, 0, (cudaStream_t)stream>>>((const uint4 *)memory, bytes / 16, sink);
    TRY(cudaGetLastError(), "stream");
    return RIDGE_OK;
}

/* Variant 0: the driver's copy. Variant 1: one block for every 16 KiB. Variant 2: 8 blocks a multiprocessor. */
static ridge_status cuda_stream_copy(const ridge_device *device, int variant, void *to, const void *from, size_t bytes,
                                     void *stream)
{
    size_t blocks = variant == 1 ? (bytes + 16383) / 16384 : (size_t)device->units * 8;

    if (variant == 0)
        return cuda_copy(device, to, from, bytes, stream);
    copy_kernel<<<(unsigned)blocks, 256, 0, (cudaStream_t)stream>>>((uint4 *)to, (const uint4 *)from, bytes / 16);
    TRY(cudaGetLastError(), "copy");
    return RIDGE_OK;
}

static ridge_status cuda_empty(const ridge_device *, void *stream)
{
    empty_kernel<<<1, 32, 0, (cudaStream_t)stream>>>();
    TRY(cudaGetLastError(), "empty kernel");
    return RIDGE_OK;
}

/* ----------------------------------------------------------------------------------- tests of programmatic launch */

struct write_args {
    ridge_write list[RIDGE_MAX_WRITES];
    int count, nanoseconds;
};

/* Few CTAs, so that those of a dependent find multiprocessors free; they fit beside any others. */
enum { WRITE_CTAS = 8, WRITE_THREADS = 256 };

static __device__ uint64_t now_ns(void)
{
    uint64_t t;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* Dependents that wait, as they must, see nothing of this. */
static __global__ void write_kernel(const write_args p)
{
    const size_t thread = blockIdx.x * WRITE_THREADS + threadIdx.x, threads = WRITE_CTAS * WRITE_THREADS;
    uint64_t begin;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    begin = now_ns();
    while (now_ns() - begin < (uint64_t)p.nanoseconds)
        __nanosleep(200);
    for (int i = 0; i < p.count; i++) {
        unsigned char *to = (unsigned char *)p.list[i].to;
        const unsigned char *from = (const unsigned char *)p.list[i].from;
        const size_t bytes = p.list[i].bytes;
        const bool words = ((uintptr_t)to | (uintptr_t)from) % 16 == 0;
        const size_t whole = words ? bytes / 16 : 0;

        for (size_t w = thread; w < whole; w += threads)
            ((uint4 *)to)[w] = from ? ((const uint4 *)from)[w] : make_uint4(~0u, ~0u, ~0u, ~0u);
        for (size_t b = whole * 16 + thread; b < bytes; b += threads)
            to[b] = from ? from[b] : 0xff;
    }
}

static ridge_status cuda_write_late(const ridge_device *device, const ridge_write *list, int count, int microseconds,
                                    void *stream)
{
    write_args p = {};

    if (count > RIDGE_MAX_WRITES)
        return ridge_fail(RIDGE_ERR_ARG, "%d late writes, %d at most", count, RIDGE_MAX_WRITES);
    memcpy(p.list, list, (size_t)count * sizeof *list);
    p.count = count;
    p.nanoseconds = microseconds * 1000;
    return host_launch(device, "late writes", (const void *)write_kernel, dim3(WRITE_CTAS), WRITE_THREADS, &p, stream);
}

/* 4 CTAs a multiprocessor of 4 KB and few registers, which find room beside large ones. All lanes of a load want the
 * same bank: one load of a warp takes the multiprocessor 32 clocks, and those of other kernels' warps queue behind it.
 * The loads' values are not used. */
enum { NOISE_CTAS = 4, NOISE_THREADS = 128, NOISE_LOADS = 16 };

static __global__ void noise_kernel(const int nanoseconds)
{
    __shared__ volatile uint32_t words[32 * 32];
    const uint64_t begin = now_ns();

    while (now_ns() - begin < (uint64_t)nanoseconds)
#pragma unroll
        for (int i = 0; i < NOISE_LOADS; i++)
            (void)words[threadIdx.x % 32 * 32 + i];
}

static ridge_status cuda_noise(const ridge_device *device, int microseconds, void *stream)
{
    const void *const function = (const void *)noise_kernel;
    int nanoseconds = microseconds * 1000;

    TRY(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "noise");
    return host_launch(device, "noise", function, dim3((unsigned)device->units * NOISE_CTAS), NOISE_THREADS,
                       &nanoseconds, stream);
}

/* ------------------------------------------------------------------------------------------------ proof of exact.h */

static __global__ void exact_kernel(int function, uint32_t first, uint32_t step, uint32_t count, float *out)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = __uint_as_float(first + i * step), bell;

    if (i < count)
        out[i] = function == 0   ? ridge_rcp(x)
                 : function == 1 ? ridge_exp_neg(x)
                 : function == 2 ? ridge_sigmoid(x)
                 : function == 3 ? ridge_normal_cdf(x, &bell)
                                 : (float)(num_fp8x2(0.0f, x, function == 5) & 0xff);
}

static ridge_status cuda_exact(const ridge_device *device, int function, uint32_t first, uint32_t step, uint32_t count,
                               float *out)
{
    void *memory = NULL;
    ridge_status status = cuda_alloc(device, (size_t)count * 4, &memory);

    if (status)
        return status;
    exact_kernel<<<(count + 255) / 256, 256>>>(function, first, step, count, (float *)memory);
    status = cudaGetLastError() == cudaSuccess ? cuda_download(device, out, memory, (size_t)count * 4)
                                               : ridge_fail(RIDGE_ERR_DEVICE, "exact: the launch failed");
    cuda_release(device, memory);
    return status;
}

extern "C" const ridge_backend ridge_cuda_backend = {
    "cuda",           cuda_count,       cuda_open,    cuda_enter,       cuda_leave,       nullptr,
    cuda_order_graph, cuda_alloc,       cuda_release, cuda_upload,      cuda_download,    cuda_copy,
    cuda_stream_new,  cuda_stream_free, cuda_sync,    cuda_graph_begin, cuda_graph_end,   cuda_graph_launch,
    cuda_graph_free,  cuda_mark,        cuda_elapsed, READ_VARIANTS,    cuda_stream_read, COPY_VARIANTS,
    cuda_stream_copy, cuda_empty,       cuda_exact,   cuda_write_late,  cuda_noise,
};

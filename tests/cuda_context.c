/* cuda_context.c: what calls leave behind on a GPU: contexts, the runtime's last error; and what they say in a forked
 * process, with a stream of another context, after cudaDeviceReset, on a second GPU. Skipped (77) without a GPU. It is
 * linked with libridge.a, so that both have the same CUDA runtime. */
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ridge.h"

enum { ROWS = 64, COLS = 4096, BYTES = ROWS * COLS * 4, N = 512 };

static CUresult (*get_current)(CUcontext *);
static CUresult (*set_current)(CUcontext);
static CUresult (*primary_state)(CUdevice, unsigned *, int *);
static CUresult (*stream_create)(CUstream *, unsigned);
#if CUDA_VERSION >= 13000
static CUresult (*create)(CUcontext *, void *, unsigned, CUdevice);
#else
static CUresult (*create)(CUcontext *, unsigned, CUdevice);
#endif

static ridge_device *device;
static char *memory; /* gate, up, out */
static char *codes, *product;
static int gpu; /* the ordinal in use */
static int failures;

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            printf("%s:%d: %s (ridge: %s)\n", __FILE__, __LINE__, #condition, ridge_error()); \
            failures++;                                                                       \
        }                                                                                     \
    } while (0)

static void *entry(void *library, const char *name)
{
    void *function = dlsym(library, name);

    if (!function) {
        printf("no %s\n", name);
        exit(1);
    }
    return function;
}

static ridge_status run(void *stream)
{
    const ridge_call call = ridge_swiglu_fwd(ROWS, COLS, RIDGE_F32, memory, memory + BYTES, memory + 2 * BYTES);

    return ridge_run(device, &call, NULL, 0, stream);
}

/* silu(2) * 3, after poison. */
static int right(void)
{
    static float host[ROWS * COLS];

    cudaSetDevice(gpu);
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(host, memory + 2 * BYTES, BYTES, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemset(memory + 2 * BYTES, 0xff, BYTES) != cudaSuccess)
        return 0;
    for (int i = 0; i < ROWS * COLS; i++)
        if (!(host[i] > 5.28f && host[i] < 5.29f))
            return 0;
    return 1;
}

static void fill(void)
{
    static float host[2 * ROWS * COLS];

    for (int i = 0; i < ROWS * COLS; i++) {
        host[i] = 2;
        host[ROWS * COLS + i] = 3;
    }
    CHECK(cudaMalloc((void **)&memory, 3 * BYTES) == cudaSuccess);
    CHECK(cudaMemcpy(memory, host, 2 * BYTES, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemset(memory + 2 * BYTES, 0xff, BYTES) == cudaSuccess);
    CHECK(cudaMalloc((void **)&codes, N * N) == cudaSuccess && cudaMemset(codes, 0, N * N) == cudaSuccess);
    CHECK(cudaMalloc((void **)&product, N * N * 2) == cudaSuccess &&
          cudaMemset(product, 0xff, N * N * 2) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

/* An FP8 product of zeros into poison: its kernel takes tensor maps, and more shared memory than is had unasked. */
static ridge_status run_gemm(void)
{
    const ridge_tensor a = ridge_scaled(codes, RIDGE_E4M3, codes, RIDGE_SCALING_TENSOR);
    const ridge_call call = ridge_gemm_fp8(N, N, N, a, a, ridge_matrix(product, RIDGE_BF16));

    return ridge_run(device, &call, NULL, 0, NULL);
}

static int right_gemm(void)
{
    static unsigned short host[N * N];

    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(host, product, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemset(product, 0xff, sizeof host) != cudaSuccess)
        return 0;
    for (int i = 0; i < N * N; i++)
        if (host[i])
            return 0;
    return 1;
}

/* A thread that has not touched CUDA: nothing becomes current in it. */
static void *fresh_thread(void *mine)
{
    CUcontext current = NULL;
    ridge_device *other;

    (void)mine;
    CHECK(ridge_open("cuda:0", &other) == RIDGE_OK);
    ridge_close(other);
    CHECK(run(NULL) == RIDGE_OK);
    CHECK(run_gemm() == RIDGE_OK);
    CHECK(get_current(&current) == CUDA_SUCCESS && current == NULL);
    return NULL;
}

/* A context made by hand stays current; a stream of it is refused in words and leaves no error behind. */
static void foreign_context(void)
{
    CUcontext foreign = NULL, current = NULL, primary = NULL;
    CUstream stream = NULL;

    CHECK(get_current(&primary) == CUDA_SUCCESS && primary);
#if CUDA_VERSION >= 13000
    CHECK(create(&foreign, NULL, 0, 0) == CUDA_SUCCESS);
#else
    CHECK(create(&foreign, 0, 0) == CUDA_SUCCESS);
#endif
    CHECK(run(NULL) == RIDGE_OK);
    CHECK(get_current(&current) == CUDA_SUCCESS && current == foreign);
    CHECK(stream_create(&stream, 1) == CUDA_SUCCESS);
    CHECK(run(stream) == RIDGE_ERR_DEVICE);
    printf("a stream of another context: %s\n", ridge_error());
    CHECK(strstr(ridge_error(), "stream"));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(get_current(&current) == CUDA_SUCCESS && current == foreign);
    CHECK(set_current(primary) == CUDA_SUCCESS);
    CHECK(right());
}

/* An error of the caller's is still there after a call; ridge_open leaves none. */
static void pending_error(void)
{
    const cudaError_t mine = cudaSetDevice(12345);
    ridge_device *other;

    CHECK(mine != cudaSuccess && cudaPeekAtLastError() == mine);
    CHECK(run(NULL) == RIDGE_OK);
    CHECK(cudaPeekAtLastError() == mine);
    cudaGetLastError();
    CHECK(ridge_open("cuda:0", &other) == RIDGE_OK);
    ridge_close(other);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(ridge_open("cuda:77", &other) == RIDGE_ERR_DEVICE);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(right());
}

static void forked_child(void)
{
    int status = 0;
    const pid_t child = fork();

    if (child == 0) {
        ridge_device *other;
        ridge_status opened;

        alarm(20);
        failures = 0;
        CHECK(run(NULL) == RIDGE_ERR_DEVICE);
        printf("in a forked child: %s\n", ridge_error());
        CHECK(strstr(ridge_error(), "forked"));
        opened = ridge_open("cuda", &other);
        CHECK(opened == RIDGE_ERR_DEVICE);
        printf("in a forked child: %s\n", ridge_error());
        CHECK(strstr(ridge_error(), "forked"));
        fflush(stdout);
        _exit(failures != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(run(NULL) == RIDGE_OK && right());
}

/* After a reset a call works or says what happened; the device opened again works. */
static void device_reset(void)
{
    ridge_status status;

    CHECK(cudaDeviceReset() == cudaSuccess);
    fill(); /* the runtime makes the context anew */
    status = run(NULL);
    printf("after a reset: %s\n", status ? ridge_error() : "works");
    CHECK(status == RIDGE_OK ? right() : strstr(ridge_error(), "open") != NULL);
    status = run_gemm();
    printf("after a reset, gemm_fp8: %s\n", status ? ridge_error() : "works");
    CHECK(status == RIDGE_OK ? right_gemm() : strstr(ridge_error(), "open") != NULL);
    CHECK(cudaGetLastError() == cudaSuccess);
    ridge_close(device);
    CHECK(ridge_open("cuda:0", &device) == RIDGE_OK);
    CHECK(run(NULL) == RIDGE_OK && right());
    CHECK(run_gemm() == RIDGE_OK && right_gemm());
}

/* To a thread that never named a GPU, 0 is the current one. */
static void *unnamed_thread(void *mine)
{
    (void)mine;
    CHECK(run(NULL) == RIDGE_OK && run_gemm() == RIDGE_OK);
    return NULL;
}

/* A process of its own that uses GPU 1 alone gets no context on GPU 0. */
static void second_gpu(void)
{
    const pid_t child = fork();
    int status = 0;

    if (child == 0) {
        unsigned flags;
        int count = 0, active = -1;
        pthread_t thread;

        alarm(60);
        if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2)
            _exit(77);
        gpu = 1;
        CHECK(cudaSetDevice(1) == cudaSuccess);
        fill();
        CHECK(ridge_open("cuda:1", &device) == RIDGE_OK);
        CHECK(run(NULL) == RIDGE_OK && run_gemm() == RIDGE_OK && right() && right_gemm());
        CHECK(pthread_create(&thread, NULL, unnamed_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(right() && right_gemm());
        ridge_close(device);
        CHECK(primary_state(0, &flags, &active) == CUDA_SUCCESS && active == 0);
        CHECK(primary_state(1, &flags, &active) == CUDA_SUCCESS && active == 1);
        fflush(stdout);
        _exit(failures != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
    printf("a second GPU: %s\n", WEXITSTATUS(status) == 77 ? "there is none" : "used alone");
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    pthread_t thread;

    setvbuf(stdout, NULL, _IONBF, 0); /* children would print again what is not written yet */
    if (driver) {                     /* before this process has started CUDA, which its children could not use then */
        *(void **)&primary_state = entry(driver, "cuDevicePrimaryCtxGetState");
        second_gpu();
    }
    if (!driver || ridge_open("cuda:0", &device) != RIDGE_OK) {
        printf("contexts: skipped: %s\n", driver ? ridge_error() : "there is no NVIDIA driver");
        return 77;
    }
    *(void **)&get_current = entry(driver, "cuCtxGetCurrent");
    *(void **)&set_current = entry(driver, "cuCtxSetCurrent");
    *(void **)&stream_create = entry(driver, "cuStreamCreate");
    *(void **)&create = entry(driver, CUDA_VERSION >= 13000 ? "cuCtxCreate_v4" : "cuCtxCreate_v2");
    fill();
    CHECK(pthread_create(&thread, NULL, fresh_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(right() && right_gemm());
    foreign_context();
    pending_error();
    forked_child();
    device_reset();
    ridge_close(device);
    printf("contexts: %d failures\n", failures);
    return failures != 0;
}

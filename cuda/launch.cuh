/* launch.cuh: the host side that every .cu shares: loading and launching kernels in the device's context, errors ->
 * ridge_status.
 *
 * ridge_run and ridge_open have made the device's context current (device.cu). Kernels are launched through the driver,
 * so that the runtime's last error stays the caller's. */
#ifndef RIDGE_LAUNCH_CUH
#define RIDGE_LAUNCH_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include "cuda/tensor_map.cuh"
#include "src/internal.h"

/* The message of a CUDA error; CUresult and cudaError_t have the same numbers. device may be NULL. In device.cu. */
extern "C" ridge_status ridge_cuda_fail(const ridge_device *device, int error, const char *what);

/* Functions of the driver, ridge_device.entry; ridge_open looks them up. */
enum {
    HOST_PRIMARY_RETAIN,
    HOST_GET_CURRENT,
    HOST_PUSH_CURRENT,
    HOST_POP_CURRENT,
    HOST_GET_ID, /* NULL before CUDA 12 */
    HOST_LAUNCH,
    HOST_ENTRIES
};
static_assert((int)HOST_ENTRIES <= (int)RIDGE_ENTRIES, "ridge_device.entry is too short");

typedef CUresult host_primary_retain(CUcontext *, CUdevice);
typedef CUresult host_get_current(CUcontext *);
typedef CUresult host_push_current(CUcontext);
typedef CUresult host_pop_current(CUcontext *);
typedef CUresult host_get_id(CUcontext, unsigned long long *);
typedef CUresult host_launch_kernel(const CUlaunchConfig *, CUfunction, void **, void **);

/* Takes back the runtime's last error, unless an earlier one was pending. */
static inline void host_forget(cudaError_t pending)
{
    if (pending == cudaSuccess)
        cudaGetLastError();
}

/* Bytes of shared memory that a CTA may have. */
static inline int host_max_shared(const ridge_device *device)
{
    return ridge_arch_table[device->arch].shared_kb << 10;
}

/* What an SM's tensor cores do, in those of an H200 at 1.98 GHz, where the cost functions of Hopper's rows were fitted.
 */
static inline double host_sm_share(const ridge_device *device)
{
    return device->clock_ghz / 1.98 * device->tensor;
}

/* Loads the code of `count` kernels and sets an attribute of theirs, so that nothing is lazy on the call path. */
static inline ridge_status host_prepare(const ridge_device *device, const void *const *function, int count,
                                        cudaFuncAttribute attribute, int value, const char *what)
{
    const cudaError_t pending = cudaPeekAtLastError();
    cudaError_t error = cudaSuccess;

    for (int i = 0; i < count && error == cudaSuccess; i++)
        error = cudaFuncSetAttribute(function[i], attribute, value);
    if (error == cudaSuccess)
        return RIDGE_OK;
    host_forget(pending);
    return ridge_cuda_fail(device, (int)error, what);
}

/* The same without an attribute of its own: sets one to its default. */
static inline ridge_status host_load(const ridge_device *device, const void *const *function, int count,
                                     const char *what)
{
    return host_prepare(device, function, count, cudaFuncAttributePreferredSharedMemoryCarveout,
                        cudaSharedmemCarveoutDefault, what);
}

/* Launches a kernel with one struct argument. From sm_90 on with programmatic dependent launch: the kernel calls
 * ptx_grid_dependency_wait before it reads or writes global memory that a preceding kernel may write. (It may prefetch
 * to L2 before that.) */
static inline ridge_status host_launch_cluster(const ridge_device *device, const char *name, const void *function,
                                               dim3 grid, int cluster, int threads, size_t shared, void *argument,
                                               void *stream)
{
    CUlaunchConfig config = {};
    CUlaunchAttribute attribute[2];
    void *arguments[1] = {argument};
    cudaFunction_t code = NULL;
    int error;

    attribute[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute[0].value.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute[1].value.clusterDim.x = (unsigned)cluster;
    attribute[1].value.clusterDim.y = attribute[1].value.clusterDim.z = 1;
    config.gridDimX = grid.x;
    config.gridDimY = grid.y;
    config.gridDimZ = grid.z;
    config.blockDimX = (unsigned)threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = (unsigned)shared;
    config.hStream = (CUstream)stream;
    config.attrs = attribute;
    config.numAttrs = device->arch < RIDGE_ARCH_SM90 ? 0 : cluster > 1 ? 2 : 1;
    error = (int)cudaGetFuncBySymbol(&code, function);
    if (error)
        cudaGetLastError(); /* the kernel is not in this build, which ridge_open has said */
    else
        error = (int)((host_launch_kernel *)device->entry[HOST_LAUNCH])(&config, (CUfunction)code, arguments, NULL);
    return error ? ridge_cuda_fail(device, error, name) : RIDGE_OK;
}

static inline ridge_status host_launch_shared(const ridge_device *device, const char *name, const void *function,
                                              dim3 grid, int threads, size_t shared, void *argument, void *stream)
{
    return host_launch_cluster(device, name, function, grid, 1, threads, shared, argument, stream);
}

static inline ridge_status host_launch(const ridge_device *device, const char *name, const void *function, dim3 grid,
                                       int threads, void *argument, void *stream)
{
    return host_launch_shared(device, name, function, grid, threads, 0, argument, stream);
}

#endif

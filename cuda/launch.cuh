/* launch.cuh: the host side that every .cu shares: loading and launching kernels on the device's ordinal, cudaError ->
 * ridge_status. */
#ifndef RIDGE_LAUNCH_CUH
#define RIDGE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "cuda/tensor_map.cuh"
#include "src/internal.h"

static inline ridge_status host_fail(cudaError_t error, const char *what)
{
    return ridge_fail(RIDGE_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

/* Makes the device current for the calls that follow; *before receives the device that host_leave makes current again.
 */
static inline ridge_status host_enter(const ridge_device *device, int *before)
{
    cudaError_t error = cudaGetDevice(before);

    if (error == cudaSuccess && *before != device->ordinal)
        error = cudaSetDevice(device->ordinal);
    return error == cudaSuccess ? RIDGE_OK : host_fail(error, "cannot select the CUDA device");
}

static inline void host_leave(const ridge_device *device, int before)
{
    if (before != device->ordinal)
        cudaSetDevice(before);
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
    cudaError_t error = cudaSuccess;
    int before;
    ridge_status status = host_enter(device, &before);

    if (status)
        return status;
    for (int i = 0; i < count && error == cudaSuccess; i++)
        error = cudaFuncSetAttribute(function[i], attribute, value);
    host_leave(device, before);
    return error == cudaSuccess ? RIDGE_OK : host_fail(error, what);
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
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2];
    void *arguments[1] = {argument};
    cudaError_t error;
    int before;
    ridge_status status = host_enter(device, &before);

    if (status)
        return status;
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = cudaLaunchAttributeClusterDimension;
    attribute[1].val.clusterDim.x = (unsigned)cluster;
    attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t)stream;
    config.attrs = attribute;
    config.numAttrs = device->arch < RIDGE_ARCH_SM90 ? 0 : cluster > 1 ? 2 : 1;
    error = cudaLaunchKernelExC(&config, function, arguments);
    host_leave(device, before);
    return error == cudaSuccess ? RIDGE_OK : host_fail(error, name);
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

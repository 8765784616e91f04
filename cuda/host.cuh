/* host.cuh: the host side that every .cu shares: launching on the device's ordinal, cudaError -> ridge_status. */
#ifndef RIDGE_HOST_CUH
#define RIDGE_HOST_CUH

#include <cuda_runtime.h>

#include "internal.h"

static inline ridge_status host_fail(cudaError_t error, const char *what)
{
    return ridge_fail(RIDGE_ERR_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

/* Makes the device current for the calls that follow; *before receives what host_leave puts back. */
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

/* Launches a kernel with one struct argument. From sm_90 on with programmatic dependent launch: the kernel calls
 * ptx_grid_wait before it touches global memory. */
static inline ridge_status host_launch(const ridge_device *device, const char *name, const void *function, dim3 grid,
                                       int threads, void *argument, void *stream)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    void *arguments[1] = {argument};
    cudaError_t error;
    int before;
    ridge_status status = host_enter(device, &before);

    if (status)
        return status;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = device->arch >= RIDGE_ARCH_SM90 ? 1 : 0;
    error = cudaLaunchKernelExC(&config, function, arguments);
    host_leave(device, before);
    return error == cudaSuccess ? RIDGE_OK : host_fail(error, name);
}

#endif

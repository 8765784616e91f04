/* approx.cu: the proof of approx.cuh on the device, for `ridge test exact`: for each pair of gate and up, is the
 * approximation right or computed again? */
#include "approx.cuh"
#include "cuda/launch.cuh"
#include "op.h"

static __global__ void approx_kernel(uint32_t first, uint32_t step, uint32_t count, float *out)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        out[i] = (float)approx_holds(first + i * step);
}

extern "C" ridge_status ridge_cuda_swiglu_approx(const ridge_device *device, uint32_t first, uint32_t step,
                                                 uint32_t count, float *out)
{
    void *memory = NULL;
    ridge_status status = device->backend->alloc(device, (size_t)count * 4, &memory);

    if (status)
        return status;
    approx_kernel<<<(count + 255) / 256, 256>>>(first, step, count, (float *)memory);
    status = cudaGetLastError() == cudaSuccess ? device->backend->download(device, out, memory, (size_t)count * 4)
                                               : ridge_fail(RIDGE_ERR_DEVICE, "swiglu_approx: the launch failed");
    device->backend->release(device, memory);
    return status;
}

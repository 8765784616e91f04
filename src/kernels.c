/* kernels.c: the kernel table: the lists of cpu/ and cuda/ in table order, fast rows first, the C reference last. */
#include <string.h>

#include "internal.h"

static const ridge_kernel_list *const lists[] = {
#if RIDGE_HAVE_CUDA               // the bare comments keep one list a line
    &ridge_cuda_swiglu_fwd,       //
    &ridge_cuda_swiglu_bwd,       //
    &ridge_cuda_quantize_tile,    //
    &ridge_cuda_quantize_whole,   //
    &ridge_cuda_q8_0,             //
    &ridge_cuda_gemm_sm90,        //
    &ridge_cuda_ce_sm90,          //
    &ridge_cuda_ce_linear,        //
    &ridge_cuda_ce_rows,          //
    &ridge_cuda_gemm_stream_sm90, //
    &ridge_cuda_q8_0_direct,      //
    &ridge_cuda_q8_0_stream,      //
    &ridge_cuda_q8_0_decode,      //
    &ridge_cuda_norm,             //
    &ridge_cuda_gemm_sm89,        //
    &ridge_cuda_gemm_sm80,        //
    &ridge_cuda_multiply,         //
#endif
    &ridge_cpu_swiglu,      //
    &ridge_cpu_quantize,    //
    &ridge_cpu_q8_0,        //
    &ridge_cpu_gemm_fp8,    //
    &ridge_cpu_q8_0_matmul, //
    &ridge_cpu_norm,        //
    &ridge_cpu_ce,          //
    &ridge_cpu_multiply,    //
};

enum { LISTS = (int)(sizeof lists / sizeof lists[0]) };

int ridge_kernel_count(void)
{
    int count = 0;

    for (int i = 0; i < LISTS; i++)
        count += lists[i]->count;
    return count;
}

const ridge_kernel *ridge_kernel_at(int index)
{
    for (int i = 0; i < LISTS; i++) {
        if (index < lists[i]->count)
            return &lists[i]->row[index];
        index -= lists[i]->count;
    }
    return NULL;
}

const ridge_kernel *ridge_kernel_find(const char *name, size_t length)
{
    const ridge_kernel *kernel;

    for (int i = 0; (kernel = ridge_kernel_at(i)) != NULL; i++)
        if (strlen(kernel->name) == length && memcmp(kernel->name, name, length) == 0)
            return kernel;
    return NULL;
}

ridge_backend_id ridge_kernel_backend(const ridge_kernel *kernel)
{
    return ridge_arch_table[kernel->arch_min].backend;
}

ridge_status ridge_kernels_prepare(const ridge_device *device)
{
    for (int i = 0; i < LISTS; i++) {
        ridge_status status = RIDGE_OK;

        if (lists[i]->count && lists[i]->prepare && ridge_kernel_backend(lists[i]->row) == device->backend_id)
            status = lists[i]->prepare(device);
        if (status)
            return status;
    }
    return RIDGE_OK;
}

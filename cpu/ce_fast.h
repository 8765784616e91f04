/* ce_fast.h: the fast rows of cross entropy: the chunked algorithm, its workspace, and what ce_simd.h gives it. */
#ifndef RIDGE_CPU_CE_FAST_H
#define RIDGE_CPU_CE_FAST_H

#include "ce.h"

ridge_status ridge_cpu_ce_fast(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                               const ridge_call *call, void *workspace, size_t bytes, void *stream);
size_t ridge_cpu_ce_fast_workspace(const ridge_device *device, const ridge_kernel *kernel,
                                   const ridge_problem *problem);

#endif

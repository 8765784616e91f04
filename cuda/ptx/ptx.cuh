/* ptx.cuh: all of ptx/: one inline function for each PTX instruction that CUDA C has no name for. */
#ifndef RIDGE_PTX_CUH
#define RIDGE_PTX_CUH

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/load_store.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"

#endif

/* cache_map.cuh: keys or values of a call for TMA. */
#ifndef RIDGE_ATTENTION_CACHE_MAP_CUH
#define RIDGE_ATTENTION_CACHE_MAP_CUH

#include "args.h"
#include "cuda/launch.cuh"

/* A cache of f16 or bf16, [kv_heads, positions, n], by boxes of `columns` elements of `box_rows` positions, with a
 * swizzle or none; outside reads as zero. A cache without positions has no map. */
static inline ridge_status cache_boxes(const ridge_device *device, CUtensorMap *map, const attention_args *p,
                                       const char *base, int64_t stride, int64_t columns, int box_rows,
                                       CUtensorMapSwizzle swizzle)
{
    const cuuint64_t extent[3] = {(cuuint64_t)p->n, (cuuint64_t)p->positions, (cuuint64_t)p->kv_heads};
    const cuuint64_t pitch[2] = {(cuuint64_t)(2 * p->n), host_pitch(stride, p->positions * 2 * p->n, p->kv_heads)};
    const cuuint32_t box[3] = {(cuuint32_t)columns, (cuuint32_t)box_rows, 1}, step[3] = {1, 1, 1};
    host_encode_tiled *encode = (host_encode_tiled *)device->tensor_map_encode;
    CUresult result;

    if (p->positions == 0)
        return RIDGE_OK;
    if (!encode)
        return ridge_fail(RIDGE_ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled");
    result = encode(map, p->kv == RIDGE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                    (void *)(uintptr_t)base, extent, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? RIDGE_OK
                                  : ridge_fail(RIDGE_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
}

/* By boxes of 64 elements with the 128-byte swizzle. */
static inline ridge_status cache_map(const ridge_device *device, CUtensorMap *map, const attention_args *p,
                                     const char *base, int64_t stride, int box_rows)
{
    return cache_boxes(device, map, p, base, stride, 64, box_rows, CU_TENSOR_MAP_SWIZZLE_128B);
}

#endif

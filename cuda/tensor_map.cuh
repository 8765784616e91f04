/* tensor_map.cuh: tensor maps of matrices for TMA. The encoder is the driver's, found by ridge_open; it touches no
 * device. */
#ifndef RIDGE_TENSOR_MAP_CUH
#define RIDGE_TENSOR_MAP_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include "src/internal.h"

/* cuTensorMapEncodeTiled */
typedef CUresult host_encode_tiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                   const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Bytes between rows. With one row the stride is unused and unchecked; TMA still wants a multiple of 16 that covers the
 * row of `width` bytes. */
static inline cuuint64_t host_pitch(int64_t stride, int64_t width, int64_t rows)
{
    return (cuuint64_t)(rows > 1 ? stride : (width + 15) / 16 * 16);
}

/* A tensor map of a matrix: `inner` contiguous elements of a dtype, `outer` rows `stride` elements apart, boxes of
 * box_inner x box_outer; outside reads as zero. swizzle: 0, 32, 64 or 128 bytes. L2 fetches whole multiples of
 * `promotion` bytes. */
static inline ridge_status host_tensor_map_l2(const ridge_device *device, CUtensorMap *map, int dtype, const void *base,
                                              int64_t inner, int64_t outer, int64_t stride, int box_inner,
                                              int box_outer, int swizzle, CUtensorMapL2promotion promotion)
{
    const CUtensorMapDataType type = dtype == RIDGE_F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                     : dtype == RIDGE_F16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                     : dtype == RIDGE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : dtype == RIDGE_F64  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT64
                                                           : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const CUtensorMapSwizzle kind = swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                    : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                    : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                    : CU_TENSOR_MAP_SWIZZLE_NONE;
    const cuuint64_t extent[2] = {(cuuint64_t)inner, (cuuint64_t)outer};
    const int64_t size = (int64_t)ridge_dtype_size((uint32_t)dtype);
    const cuuint64_t pitch[1] = {host_pitch(stride * size, inner * size, outer)};
    const cuuint32_t box[2] = {(cuuint32_t)box_inner, (cuuint32_t)box_outer}, step[2] = {1, 1};
    host_encode_tiled *encode = (host_encode_tiled *)device->tensor_map_encode;
    CUresult result;

    if (!encode)
        return ridge_fail(RIDGE_ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled");
    result = encode(map, type, 2, (void *)(uintptr_t)base, extent, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                    kind, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? RIDGE_OK
                                  : ridge_fail(RIDGE_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
}

static inline ridge_status host_tensor_map(const ridge_device *device, CUtensorMap *map, int dtype, const void *base,
                                           int64_t inner, int64_t outer, int64_t stride, int box_inner, int box_outer,
                                           int swizzle)
{
    return host_tensor_map_l2(device, map, dtype, base, inner, outer, stride, box_inner, box_outer, swizzle,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

/* A tensor map of bytes [rows, cols], cols a multiple of 128, as lines of 128 bytes: (byte, row, line), boxes of 128 x
 * box_rows x box_lines, swizzled by 128 bytes, so that eight rows of one line lie in different banks. stride: bytes of
 * a row. Outside reads as zero. */
static inline ridge_status host_tensor_map_lines_l2(const ridge_device *device, CUtensorMap *map, const void *base,
                                                    int64_t cols, int64_t rows, int64_t stride, int box_rows,
                                                    int box_lines, CUtensorMapL2promotion promotion)
{
    const cuuint64_t extent[3] = {128, (cuuint64_t)rows, (cuuint64_t)cols / 128};
    const cuuint64_t pitch[2] = {host_pitch(stride, cols, rows), 128};
    const cuuint32_t box[3] = {128, (cuuint32_t)box_rows, (cuuint32_t)box_lines}, step[3] = {1, 1, 1};
    host_encode_tiled *encode = (host_encode_tiled *)device->tensor_map_encode;
    CUresult result;

    if (!encode)
        return ridge_fail(RIDGE_ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled");
    result =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)(uintptr_t)base, extent, pitch, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? RIDGE_OK
                                  : ridge_fail(RIDGE_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
}

static inline ridge_status host_tensor_map_lines(const ridge_device *device, CUtensorMap *map, const void *base,
                                                 int64_t cols, int64_t rows, int64_t stride, int box_rows,
                                                 int box_lines)
{
    return host_tensor_map_lines_l2(device, map, base, cols, rows, stride, box_rows, box_lines,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

#endif

/* io_stub.c: stands in for io/types.c and io/gguf.c while they are not there; see cmake/io.cmake. */
#include "io.h"

#define ROW(type, name, block, bytes, gguf, safetensors) \
    [RIDGE_TYPE_##type] = {name, block, bytes, gguf, safetensors, 0}

__attribute__((weak)) const ridge_type_info *ridge_type_query(uint32_t type)
{
    static const ridge_type_info info[RIDGE_TYPES] = {
        ROW(F64, "F64", 1, 8, 28, 1),
        ROW(F32, "F32", 1, 4, 0, 1),
        ROW(F16, "F16", 1, 2, 1, 1),
        ROW(BF16, "BF16", 1, 2, 30, 1),
        ROW(F8_E4M3, "F8_E4M3", 1, 1, -1, 1),
        ROW(F8_E5M2, "F8_E5M2", 1, 1, -1, 1),
        ROW(F8_E8M0, "F8_E8M0", 1, 1, -1, 1),
        ROW(F8_E4M3FNUZ, "F8_E4M3FNUZ", 1, 1, -1, 1),
        ROW(F8_E5M2FNUZ, "F8_E5M2FNUZ", 1, 1, -1, 1),
        ROW(F6_E2M3, "F6_E2M3", 4, 3, -1, 1),
        ROW(F6_E3M2, "F6_E3M2", 4, 3, -1, 1),
        ROW(F4, "F4", 2, 1, -1, 1),
        ROW(BOOL, "BOOL", 1, 1, -1, 1),
        ROW(I8, "I8", 1, 1, 24, 1),
        ROW(U8, "U8", 1, 1, -1, 1),
        ROW(I16, "I16", 1, 2, 25, 1),
        ROW(U16, "U16", 1, 2, -1, 1),
        ROW(I32, "I32", 1, 4, 26, 1),
        ROW(U32, "U32", 1, 4, -1, 1),
        ROW(I64, "I64", 1, 8, 27, 1),
        ROW(U64, "U64", 1, 8, -1, 1),
        ROW(C64, "C64", 1, 8, -1, 1),
        ROW(Q8_0, "Q8_0", 32, 34, 8, 0),
    };

    return type < RIDGE_TYPES && info[type].name ? &info[type] : NULL;
}

__attribute__((weak)) ridge_status ridge_dequantize(uint32_t type, const void *from, int64_t count, float *to)
{
    (void)from;
    (void)count;
    (void)to;
    return io_fail(RIDGE_ERR_UNSUPPORTED, "ridge_dequantize: type %u: not built in", (unsigned)type);
}

__attribute__((weak)) ridge_status io_parse_gguf(ridge_file *file, int32_t index)
{
    return io_fail(RIDGE_ERR_UNSUPPORTED, "%s: GGUF is not built in", file->shard[index].path);
}

__attribute__((weak)) ridge_status io_layout_gguf(ridge_writer *writer, unsigned char **header, int64_t *bytes)
{
    (void)header;
    *bytes = 0;
    return io_fail(RIDGE_ERR_UNSUPPORTED, "%s: GGUF is not built in", writer->path);
}

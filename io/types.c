/* types.c: the element and block types of safetensors and GGUF: names, sizes, and which format has which. */

#include "io.h"

/* Flags of a row. */
enum { ST = 1, DQ = 2 };

/* safetensors spells a type as `name` does; a type with ST is one that it has. GGUF's ids 4, 5, 31..33 and 36..38 are
 * those of formats that ggml has dropped. */
#define ROW(type, block, bytes, gguf, flags) \
    [RIDGE_TYPE_##type] = {#type, block, bytes, gguf, ((flags)&ST) != 0, ((flags)&DQ) != 0}

static const ridge_type_info table[RIDGE_TYPES] = {
    [RIDGE_TYPE_NONE] = {"NONE", 1, 0, -1, 0, 0},
    ROW(F64, 1, 8, 28, ST | DQ),
    ROW(F32, 1, 4, 0, ST | DQ),
    ROW(F16, 1, 2, 1, ST | DQ),
    ROW(BF16, 1, 2, 30, ST | DQ),
    ROW(F8_E4M3, 1, 1, -1, ST | DQ),
    ROW(F8_E5M2, 1, 1, -1, ST | DQ),
    ROW(F8_E8M0, 1, 1, -1, ST),
    ROW(F8_E4M3FNUZ, 1, 1, -1, ST),
    ROW(F8_E5M2FNUZ, 1, 1, -1, ST),
    ROW(F6_E2M3, 4, 3, -1, ST),
    ROW(F6_E3M2, 4, 3, -1, ST),
    ROW(F4, 2, 1, -1, ST),
    ROW(BOOL, 1, 1, -1, ST),
    ROW(I8, 1, 1, 24, ST),
    ROW(U8, 1, 1, -1, ST),
    ROW(I16, 1, 2, 25, ST),
    ROW(U16, 1, 2, -1, ST),
    ROW(I32, 1, 4, 26, ST),
    ROW(U32, 1, 4, -1, ST),
    ROW(I64, 1, 8, 27, ST),
    ROW(U64, 1, 8, -1, ST),
    ROW(C64, 1, 8, -1, ST),
    ROW(Q4_0, 32, 18, 2, DQ),
    ROW(Q4_1, 32, 20, 3, DQ),
    ROW(Q5_0, 32, 22, 6, DQ),
    ROW(Q5_1, 32, 24, 7, DQ),
    ROW(Q8_0, 32, 34, 8, DQ),
    ROW(Q8_1, 32, 36, 9, 0),
    ROW(Q2_K, 256, 84, 10, DQ),
    ROW(Q3_K, 256, 110, 11, DQ),
    ROW(Q4_K, 256, 144, 12, DQ),
    ROW(Q5_K, 256, 176, 13, DQ),
    ROW(Q6_K, 256, 210, 14, DQ),
    ROW(Q8_K, 256, 292, 15, 0),
    ROW(IQ2_XXS, 256, 66, 16, DQ),
    ROW(IQ2_XS, 256, 74, 17, 0),
    ROW(IQ2_S, 256, 82, 22, 0),
    ROW(IQ3_XXS, 256, 98, 18, 0),
    ROW(IQ3_S, 256, 110, 21, 0),
    ROW(IQ1_S, 256, 50, 19, 0),
    ROW(IQ1_M, 256, 56, 29, 0),
    ROW(IQ4_NL, 32, 18, 20, 0),
    ROW(IQ4_XS, 256, 136, 23, 0),
    ROW(TQ1_0, 256, 54, 34, 0),
    ROW(TQ2_0, 256, 66, 35, 0),
    ROW(MXFP4, 32, 17, 39, DQ),
    ROW(NVFP4, 64, 36, 40, 0),
    ROW(Q1_0, 128, 18, 41, 0),
    ROW(Q2_0, 64, 18, 42, 0),
};

const ridge_type_info *ridge_type_query(uint32_t type)
{
    return type > RIDGE_TYPE_NONE && type < RIDGE_TYPES ? &table[type] : NULL;
}

uint32_t io_type_of_gguf(uint32_t id)
{
    for (uint32_t type = 1; type < RIDGE_TYPES; type++)
        if (table[type].gguf >= 0 && (uint32_t)table[type].gguf == id)
            return type;
    return RIDGE_TYPE_NONE;
}

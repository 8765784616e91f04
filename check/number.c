/* number.c: pseudo-random numbers, elements of a dtype, and numbers in text. */
#include "number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "ridge.h"

uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

float random_normal(uint64_t *state)
{
    uint64_t z = random_next(state);
    float sum = (float)(z & 0xffff) + (float)(z >> 16 & 0xffff) + (float)(z >> 32 & 0xffff) + (float)(z >> 48);

    return (sum * 0x1p-16f - 2.0f) * 1.7320508f;
}

void dtype_store(void *memory, uint32_t dtype, float value)
{
    uint16_t half = dtype == RIDGE_BF16 ? ridge_bf16_from_f32(value) : ridge_f16_from_f32(value);

    if (dtype == RIDGE_F32)
        memcpy(memory, &value, 4);
    else
        memcpy(memory, &half, 2);
}

double dtype_load(const void *memory, uint32_t dtype)
{
    const unsigned char byte = *(const unsigned char *)memory;
    uint16_t half;
    int32_t whole;
    int64_t wide;
    double real;
    float value;

    switch (dtype) {
    case RIDGE_F64:
        memcpy(&real, memory, 8);
        return real;
    case RIDGE_I64:
        memcpy(&wide, memory, 8);
        return (double)wide;
    case RIDGE_F32:
        memcpy(&value, memory, 4);
        return (double)value;
    case RIDGE_BF16:
    case RIDGE_F16:
        memcpy(&half, memory, 2);
        return (double)(dtype == RIDGE_BF16 ? ridge_f32_from_bf16(half) : ridge_f32_from_f16(half));
    case RIDGE_E4M3:
    case RIDGE_E5M2:
        return (double)ridge_f32_from_fp8(byte, dtype == RIDGE_E5M2);
    case RIDGE_I8:
        return (double)(int8_t)byte;
    case RIDGE_I32:
        memcpy(&whole, memory, 4);
        return (double)whole;
    default:
        return (double)byte;
    }
}

double dtype_ulp(double value, uint32_t dtype)
{
    int bits = dtype == RIDGE_F32 ? 24 : dtype == RIDGE_F16 ? 11 : 8, least = dtype == RIDGE_F16 ? -14 : -126, exponent;

    frexp(value, &exponent);
    exponent--;
    if (!(fabs(value) > 0) || exponent < least)
        exponent = least;
    return ldexp(1.0, exponent - bits + 1);
}

double dtype_unit(uint32_t dtype)
{
    return 0.5 * dtype_ulp(1, dtype);
}

bool number_whole(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    if (!*text || text[strspn(text, "0123456789")])
        return false;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    return errno == 0 && *value >= low && *value <= high;
}

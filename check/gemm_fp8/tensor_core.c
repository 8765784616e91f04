/* tensor_core.c: the matrix instructions of Hopper, one sum at a time. */
#include "tensor_core.h"

#include <math.h>
#include <stdlib.h>

#include "src/math/exact.h"

enum { NOTHING = -1000 /* the exponent of a zero: below that of any product, whatever the other factor */ };

int16_t tensor_exponent(float value, int format)
{
    const int exponent = (int)(ridge_bits(value) >> 23 & 255) - 127;

    return (int16_t)(!(fabsf(value) > 0) ? NOTHING : exponent < format ? format : exponent);
}

static float power_of_two(int n)
{
    return ridge_float((uint32_t)(127 + n) << 23);
}

/* The terms, cut towards zero to multiples of 2^-kept of the largest exponent's unit, are added exactly; the sum is cut
 * towards zero to `bits` significant ones. */
static inline float add(tensor_numbers a, tensor_numbers b, int count, float acc, int kept, int bits)
{
    int16_t most = tensor_exponent(acc, -126);
    float unit;
    uint32_t size;
    int32_t sum;
    int over = 0;

    if (a.special || b.special) {
        float plain = acc;

        for (int i = 0; i < count; i++)
            plain += a.value[i] * b.value[i];
        if (!isfinite(plain))
            return plain;
    }
    for (int i = 0; i < count; i++) {
        const int16_t e = (int16_t)(a.exponent[i] + b.exponent[i]);

        most = e > most ? e : most;
    }
    if (most < NOTHING / 2)
        return 0.0f;
    unit = power_of_two(kept - most);
    sum = (int32_t)(acc * unit);
    for (int i = 0; i < count; i++)
        sum += (int32_t)(a.value[i] * b.value[i] * unit);
    size = (uint32_t)abs(sum);
    while (size >> over >> bits)
        over++;
    size = size >> over << over;
    return (sum < 0 ? -1.0f : 1.0f) * (float)size * power_of_two(most - kept);
}

float tensor_add_fp8(tensor_numbers a, tensor_numbers b, float acc)
{
    return add(a, b, 32, acc, 13, 14);
}

float tensor_add_bf16(tensor_numbers a, tensor_numbers b)
{
    return add(a, b, 16, 0.0f, 25, 24);
}

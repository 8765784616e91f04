/* check.c: arithmetic that cannot overflow on the sizes that a file claims, growing arrays, and UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "io.h"

bool io_multiply(int64_t a, int64_t b, int64_t *product)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, product);
}

/* Grows the array that `array` points to (of any element type, hence the copies of the pointer) to `need` elements. */
bool io_grow(void *array, int64_t *capacity, int64_t need, size_t element)
{
    int64_t more = *capacity < 8 ? 8 : *capacity, bytes;
    void *memory;

    if (need <= *capacity)
        return true;
    while (more < need)
        if (!io_multiply(more, 2, &more))
            return false;
    if (!io_multiply(more, (int64_t)element, &bytes))
        return false;
    memcpy(&memory, array, sizeof memory);
    memory = realloc(memory, (size_t)bytes);
    if (!memory)
        return false;
    memcpy(array, &memory, sizeof memory);
    *capacity = more;
    return true;
}

/* Continuation bytes that must follow a first byte, and the range of the second (shortest form, no surrogates, up to
 * U+10FFFF); -1 = cannot begin a character. */
static int follow(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0x80)
        return first ? 0 : -1;
    if (first < 0xc2 || first > 0xf4)
        return -1;
    return first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
}

bool io_utf8(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char low, high;
        int more = follow((unsigned char)text[i], &low, &high);

        if (more < 0 || (size_t)more > length - 1 - i)
            return false;
        for (; more > 0; more--, low = 0x80, high = 0xbf) {
            i++;
            if ((unsigned char)text[i] < low || (unsigned char)text[i] > high)
                return false;
        }
    }
    return true;
}

/* {2^40, 2^40, 0} is refused although it is empty: code that computes strides from the shape would overflow. */
bool io_elements(const int64_t *shape, int32_t rank, int64_t *elements)
{
    bool empty = false;

    *elements = 1;
    for (int32_t i = 0; i < rank; i++) {
        empty |= shape[i] == 0;
        if (shape[i] != 0 && !io_multiply(*elements, shape[i], elements))
            return false;
    }
    if (empty)
        *elements = 0;
    return true;
}

bool io_bytes(uint32_t type, int64_t elements, int64_t *bytes)
{
    const ridge_type_info *info = ridge_type_query(type);

    return info && info->block > 0 && elements >= 0 && elements % info->block == 0 &&
           io_multiply(elements / info->block, info->bytes, bytes);
}

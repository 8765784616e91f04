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

/* Bytes of the character that text begins with; 0: it is none. */
static size_t character(const char *text, size_t length)
{
    unsigned char low, high;
    int more = follow((unsigned char)text[0], &low, &high);

    if (more < 0 || (size_t)more > length - 1)
        return 0;
    for (int i = 1; i <= more; i++, low = 0x80, high = 0xbf)
        if ((unsigned char)text[i] < low || (unsigned char)text[i] > high)
            return 0;
    return (size_t)more + 1;
}

bool io_utf8(const char *text, size_t length)
{
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = character(text + i, length - i);
        if (!bytes)
            return false;
    }
    return true;
}

size_t io_printable(const char *text, size_t length)
{
    static const struct {
        uint32_t first, last;
    } hidden[] = {{0, 0x1f}, {0x7f, 0x9f}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}};
    size_t bytes = length ? character(text, length) : 0;
    uint32_t code = bytes ? (unsigned char)text[0] & (bytes == 1 ? 0x7fu : 0x7fu >> bytes) : 0;

    for (size_t i = 1; i < bytes; i++)
        code = code << 6 | ((unsigned char)text[i] & 0x3fu);
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
        if (code >= hidden[i].first && code <= hidden[i].last)
            return 0;
    return bytes;
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

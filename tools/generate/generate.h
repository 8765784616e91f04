/* generate.h: what the files of `ridge generate` share. */
#ifndef RIDGE_TOOLS_GENERATE_H
#define RIDGE_TOOLS_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ridge_lm.h"

/* Text as it comes, byte by byte: whole characters go out, control characters as \xNN, bytes that are no UTF-8 as
 * U+FFFD. */
typedef struct text_stream {
    char *text; /* everything so far; NULL: none */
    size_t length, room;
    unsigned char tail[4]; /* of a character that is not complete */
    int held;
    bool print; /* to standard output, at once */
} text_stream;

void text_put(text_stream *s, const char *bytes, int64_t count);
void text_end(text_stream *s); /* what is held is no character any more */
void text_free(text_stream *s);

/* GB/s of a read of as many bytes on the device: the floor of a step. 0: not measured. */
double read_rate(const ridge_device *device, int64_t bytes);

#endif

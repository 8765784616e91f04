/* error.c: the last error message of a ridge_io function on this thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io.h"

static _Thread_local char message[1024];

const char *ridge_io_error(void)
{
    return message;
}

ridge_status io_fail(ridge_status status, const char *format, ...)
{
    char text[sizeof message]; /* an argument may be the message itself */
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    /* Names come from files that are not trusted, and messages go to terminals. */
    for (size_t i = 0, length = strlen(text), bytes; i < length; i += bytes) {
        bytes = io_printable(text + i, length - i);
        if (!bytes) {
            text[i] = '?';
            bytes = 1;
        }
    }
    memcpy(message, text, sizeof message);
    return status;
}

ridge_status io_no_memory(const char *path)
{
    return io_fail(RIDGE_ERR_FILE, "%s: out of memory", path);
}

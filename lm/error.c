/* error.c: the last error message of a ridge_lm function on this thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lm.h"

static _Thread_local char message[1024];

const char *ridge_lm_error(void)
{
    return message;
}

ridge_status lm_fail(ridge_status status, const char *format, ...)
{
    char text[sizeof message]; /* an argument may be the message itself */
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    /* Names come from files that are not trusted, and messages go to terminals: no control characters. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    memcpy(message, text, sizeof message);
    return status;
}

ridge_status lm_ridge_failed(ridge_status status)
{
    return status ? lm_fail(status, "%s", ridge_error()) : RIDGE_OK;
}

ridge_status lm_io_failed(ridge_status status)
{
    return status ? lm_fail(status, "%s", ridge_io_error()) : RIDGE_OK;
}

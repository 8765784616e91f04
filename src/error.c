/* error.c: this thread's last error message. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local char message[1024];

const char *ridge_error(void)
{
    return message;
}

ridge_status ridge_fail(ridge_status status, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    return status;
}

const char *ridge_status_name(ridge_status status)
{
    static const char *const name[] = {
        "RIDGE_OK",         "RIDGE_ERR_ARG",  "RIDGE_ERR_UNSUPPORTED", "RIDGE_ERR_WORKSPACE",
        "RIDGE_ERR_DEVICE", "RIDGE_ERR_FILE", "RIDGE_ERR_PEER"};
    unsigned index = (unsigned)status;

    return index < sizeof name / sizeof name[0] ? name[index] : "RIDGE_ERR_UNKNOWN";
}

#define RIDGE_TEXT(x) #x
#define RIDGE_STRING(x) RIDGE_TEXT(x)

const char *ridge_version(void)
{
    return RIDGE_STRING(RIDGE_VERSION_MAJOR) "." RIDGE_STRING(RIDGE_VERSION_MINOR) "." RIDGE_STRING(
        RIDGE_VERSION_PATCH);
}

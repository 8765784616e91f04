/* json.h: reads an object of a JSON text member by member. */
#ifndef RIDGE_IO_JSON_H
#define RIDGE_IO_JSON_H

#include <jansson.h>

#include "io.h"

#define io_json_end ridge_io_json_end
#define io_json_enter ridge_io_json_enter
#define io_json_next ridge_io_json_next
#define io_json_value ridge_io_json_value

typedef struct io_json {
    const char *path;
    const char *text;
    size_t length, at;
    int64_t base; /* offset of text in the file */
} io_json;

enum { IO_JSON_VALUE = 1 << 16 }; /* bytes of text of a value that is not a string */

/* Steps into the object that begins here. */
ridge_status io_json_enter(io_json *json);
/* Reads the object's next key and stops at its value; *key = NULL at the object's end. *count: members so far, 0 at
 * first. */
ridge_status io_json_next(io_json *json, int64_t *count, json_t **key);
/* Reads a value; `what` and `name` are for the message. NULL: it failed. */
json_t *io_json_value(io_json *json, const char *what, const char *name);
/* Nothing but white space may follow. */
ridge_status io_json_end(io_json *json);

#endif

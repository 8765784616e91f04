/* json.c: reads a JSON object of a million members one member at a time. A tree of the whole would need up to 40 bytes
 * of memory for each byte of a hostile text ("[[],[],..."); this way only one value of at most 64 KiB, or one string,
 * is in memory. jansson parses keys and values; this file reads the braces, colons and commas around them. */
#include <inttypes.h>
#include <string.h>

#include "json.h"

static int64_t where(const io_json *json)
{
    return json->base + (int64_t)json->at;
}

/* Skips white space and returns the next character; 0 at the end. */
static char look(io_json *json)
{
    while (json->at < json->length && json->text[json->at] && strchr(" \t\n\r", json->text[json->at]))
        json->at++;
    return json->at < json->length ? json->text[json->at] : 0;
}

static ridge_status expect(io_json *json, char c)
{
    if (look(json) != c || json->at == json->length)
        return io_fail(RIDGE_ERR_FILE, "%s: byte %" PRId64 ": JSON: '%c' expected", json->path, where(json), c);
    json->at++;
    return RIDGE_OK;
}

ridge_status io_json_enter(io_json *json)
{
    return expect(json, '{');
}

/* Reads a string that has no escapes without jansson, which halves the time of a million names; NULL: it has some. */
static json_t *plain_string(io_json *json)
{
    const char *text = json->text + json->at + 1, *end = memchr(text, '"', json->length - json->at - 1);
    size_t length = end ? (size_t)(end - text) : 0;
    json_t *string;

    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] >= 0x7f || text[i] == '\\')
            return NULL;
    string = end ? json_stringn_nocheck(text, length) : NULL;
    if (string)
        json->at += length + 2;
    return string;
}

ridge_status io_json_next(io_json *json, int64_t *count, json_t **key)
{
    ridge_status status = RIDGE_OK;
    bool end = look(json) == '}';

    *key = NULL;
    if (end)
        json->at++;
    else if (*count)
        status = expect(json, ',');
    if (end || status != RIDGE_OK)
        return status;
    if (look(json) != '"')
        return io_fail(RIDGE_ERR_FILE, "%s: byte %" PRId64 ": JSON: a name in quotes expected", json->path,
                       where(json));
    *key = plain_string(json);
    if (!*key)
        *key = io_json_value(json, "a name", "");
    if (!*key)
        return RIDGE_ERR_FILE;
    status = strlen(json_string_value(*key)) == json_string_length(*key)
                 ? expect(json, ':')
                 : io_fail(RIDGE_ERR_FILE, "%s: byte %" PRId64 ": a name holds a NUL", json->path, where(json));
    if (status != RIDGE_OK) {
        json_decref(*key);
        *key = NULL;
    }
    (*count)++;
    return status;
}

json_t *io_json_value(io_json *json, const char *what, const char *name)
{
    json_error_t error = {0};
    bool string = look(json) == '"';
    size_t left = json->length - json->at, part = string || left < IO_JSON_VALUE ? left : IO_JSON_VALUE;
    json_t *value =
        json_loadb(json->text + json->at, part,
                   JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    if (value)
        json->at += (size_t)error.position;
    else if (part < left && json_error_code(&error) == json_error_premature_end_of_input)
        io_fail(RIDGE_ERR_FILE, "%s: byte %" PRId64 ": %s \"%.200s\": its value is longer than %d bytes", json->path,
                where(json), what, name, IO_JSON_VALUE);
    else
        io_fail(RIDGE_ERR_FILE, "%s: byte %" PRId64 ": %s \"%.200s\": JSON: %s", json->path,
                where(json) + error.position, what, name, error.text);
    return value;
}

ridge_status io_json_end(io_json *json)
{
    look(json);
    if (json->at < json->length)
        return io_fail(RIDGE_ERR_FILE, "%s: byte %" PRId64 ": the JSON ends here, but more follows", json->path,
                       where(json));
    return RIDGE_OK;
}

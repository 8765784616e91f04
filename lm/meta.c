/* meta.c: metadata by key: whatever kind of number a file has, checked against what is possible. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lm.h"

static const ridge_meta *find(const lm_meta *m, const char *key, char *full, size_t size)
{
    snprintf(full, size, "%s%s", key[0] == '.' ? m->arch : "", key);
    return ridge_file_meta_find(m->file, full);
}

/* A number of any kind; false: it is none. Integers beyond 2^53 come out as what they are only in *whole. */
static bool number_of(const ridge_meta *meta, double *number, int64_t *whole, bool *integer)
{
    uint64_t u = 0;
    float f;
    static const signed char width[] = {1, 1, 2, 2, 4, 4, 0, 0, 0, 0, 8, 8, 0};

    *integer = meta->kind <= RIDGE_META_F64 && width[meta->kind];
    if (meta->kind == RIDGE_META_F32) {
        memcpy(&f, meta->data, sizeof f);
        *number = (double)f;
        return true;
    }
    if (meta->kind == RIDGE_META_F64) {
        memcpy(number, meta->data, sizeof *number);
        return true;
    }
    if (!*integer)
        return false;
    memcpy(&u, meta->data, (size_t)width[meta->kind]);
    if (meta->kind == RIDGE_META_I8)
        u = (uint64_t)(int64_t)(int8_t)u;
    else if (meta->kind == RIDGE_META_I16)
        u = (uint64_t)(int64_t)(int16_t)u;
    else if (meta->kind == RIDGE_META_I32)
        u = (uint64_t)(int64_t)(int32_t)u;
    *whole = meta->kind == RIDGE_META_U64 && u > INT64_MAX ? INT64_MAX : (int64_t)u;
    *number = (double)*whole;
    return true;
}

ridge_status lm_meta_integer(const lm_meta *m, const char *key, int64_t low, int64_t high, int64_t *value)
{
    char full[128];
    const ridge_meta *meta = find(m, key, full, sizeof full);
    double number;
    int64_t whole = 0;
    bool integer;

    if (!meta)
        return RIDGE_OK;
    if (meta->kind == RIDGE_META_ARRAY)
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "%s is an array: layers that differ are not supported", full);
    if (!number_of(meta, &number, &whole, &integer) || !integer)
        return lm_fail(RIDGE_ERR_FILE, "%s is no integer", full);
    if (whole < low || whole > high)
        return lm_fail(RIDGE_ERR_FILE, "%s is %" PRId64 ", outside %" PRId64 " .. %" PRId64, full, whole, low, high);
    *value = whole;
    return RIDGE_OK;
}

ridge_status lm_meta_number(const lm_meta *m, const char *key, double low, double high, double *value)
{
    char full[128];
    const ridge_meta *meta = find(m, key, full, sizeof full);
    double number;
    int64_t whole;
    bool integer;

    if (!meta)
        return RIDGE_OK;
    if (!number_of(meta, &number, &whole, &integer))
        return lm_fail(RIDGE_ERR_FILE, "%s is no number", full);
    if (!(number >= low && number <= high))
        return lm_fail(RIDGE_ERR_FILE, "%s is %g, outside %g .. %g", full, number, low, high);
    *value = number;
    return RIDGE_OK;
}

ridge_status lm_meta_flag(const lm_meta *m, const char *key, bool *value)
{
    char full[128];
    const ridge_meta *meta = find(m, key, full, sizeof full);

    if (!meta)
        return RIDGE_OK;
    if (meta->kind != RIDGE_META_BOOL)
        return lm_fail(RIDGE_ERR_FILE, "%s is no bool", full);
    *value = *(const unsigned char *)meta->data != 0;
    return RIDGE_OK;
}

ridge_status lm_meta_text(const lm_meta *m, const char *key, char *text, size_t size, bool *found)
{
    char full[128];
    const ridge_meta *meta = find(m, key, full, sizeof full);
    lm_strings s;
    const char *from;
    uint64_t length;

    text[0] = '\0';
    if (found)
        *found = meta != NULL;
    if (!meta)
        return RIDGE_OK;
    if (meta->kind != RIDGE_META_STRING)
        return lm_fail(RIDGE_ERR_FILE, "%s is no string", full);
    s = lm_meta_strings(meta);
    from = lm_next_string(&s, &length);
    length = from ? length : 0;
    length = length < size ? length : size - 1;
    if (length)
        memcpy(text, from, length);
    text[length] = '\0';
    return RIDGE_OK;
}

const ridge_meta *lm_meta_array(const lm_meta *m, const char *key, uint32_t element)
{
    char full[128];
    const ridge_meta *meta = find(m, key, full, sizeof full);

    return meta && meta->kind == RIDGE_META_ARRAY && meta->element == element ? meta : NULL;
}

lm_strings lm_meta_strings(const ridge_meta *array)
{
    return (lm_strings){array->data, array->count};
}

/* ridge_io has checked that the lengths fit into the data. */
const char *lm_next_string(lm_strings *s, uint64_t *length)
{
    const unsigned char *at = s->at;

    if (s->left <= 0)
        return NULL;
    memcpy(length, at, sizeof *length);
    s->at = at + sizeof *length + *length;
    s->left--;
    return (const char *)at + sizeof *length;
}

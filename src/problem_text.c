/* problem_text.c: a problem as text, "op name=value ...", and back: one syntax for tests, benchmarks, logs, tuning
 * files and bug reports. The fields of an op's row say what its text may name. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* In the text of every op, after its own fields. */
static const ridge_field common_fields[] = {
    {.name = "strict", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_STRICT},
    {.name = "weights_const", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_WEIGHTS_CONST},
    {.name = NULL},
};

static uint32_t choice_bits(const ridge_field *field, uint32_t choice)
{
    return field->bits ? field->bits[choice] : choice << __builtin_ctz(field->mask);
}

/* NULL: bits that no choice has. */
static const char *choice_of(const ridge_field *field, uint32_t flags)
{
    uint32_t i = 0;

    while (field->choices[i] && choice_bits(field, i) != (flags & field->mask))
        i++;
    return field->choices[i];
}

static uint32_t first_dtype(uint32_t mask)
{
    return mask ? (uint32_t)__builtin_ctz(mask) : (uint32_t)RIDGE_NONE;
}

/* Problem text has a decimal point in whatever locale the program set; the C library allocates nothing for this one. */
static locale_t enter_c_locale(locale_t *before)
{
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);

    *before = uselocale(c);
    return c;
}

static void leave_c_locale(locale_t c, locale_t before)
{
    uselocale(before);
    if (c)
        freelocale(c);
}

static float option_of(const ridge_call *call, const ridge_field *field)
{
    float value;

    memcpy(&value, (const char *)&call->opt + field->index, sizeof value);
    return value;
}

/* " name=value" of one field; "" for an option at its default, a flag that is not set, and a choice without bits unless
 * the op's default has some. */
static void print_field(const ridge_call *call, const ridge_call *preset, const ridge_field *field, char *text,
                        size_t size)
{
    const uint32_t mask = field->kind == RIDGE_FIELD_HAS ? ridge_op_at(call->op)->arg[field->index].dtypes : 0;
    locale_t c, before;
    uint32_t dtype, usual;
    int64_t whole;

    text[0] = 0;
    switch (field->kind) {
    case RIDGE_FIELD_DTYPE:
        if (call->arg[field->index].dtype != RIDGE_NONE)
            snprintf(text, size, " %s=%s", field->name, ridge_dtype_name(call->arg[field->index].dtype));
        break;
    case RIDGE_FIELD_FLAG:
        if (call->flags & field->mask)
            snprintf(text, size, " %s=1", field->name);
        break;
    case RIDGE_FIELD_CHOICE:
        if ((call->flags & field->mask || preset->flags & field->mask) && choice_of(field, call->flags))
            snprintf(text, size, " %s=%s", field->name, choice_of(field, call->flags));
        break;
    case RIDGE_FIELD_HAS:
        dtype = call->arg[field->index].dtype;
        usual = preset->arg[field->index].dtype;
        if (dtype == RIDGE_NONE && usual != RIDGE_NONE)
            snprintf(text, size, " %s=0", field->name);
        else if (dtype != RIDGE_NONE &&
                 (usual == RIDGE_NONE || (dtype != usual && ridge_op_at(call->op)->arg[field->index].same_dtype < 0)))
            snprintf(text, size, " %s=%s", field->name, dtype == first_dtype(mask) ? "1" : ridge_dtype_name(dtype));
        break;
    case RIDGE_FIELD_F32:
        if (option_of(call, field) == field->preset)
            break;
        c = enter_c_locale(&before);
        snprintf(text, size, " %s=%.9g", field->name, (double)option_of(call, field));
        leave_c_locale(c, before);
        break;
    case RIDGE_FIELD_I64:
        memcpy(&whole, (const char *)&call->opt + field->index, sizeof whole);
        if (whole != (int64_t)field->preset)
            snprintf(text, size, " %s=%" PRId64, field->name, whole);
        break;
    }
}

int ridge_problem_print(const ridge_call *call, const ridge_problem *problem, char *text, size_t size)
{
    const ridge_op_row *op = ridge_op_at(call->op);
    const ridge_field *const list[] = {op->fields, common_fields};
    size_t used = (size_t)snprintf(text, size, "%s", op->name);
    ridge_call preset;
    char word[96];

    op->defaults(&preset);
    for (int d = 0; d < op->dims; d++)
        used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, " %s=%" PRId64,
                                 op->dim_name[d], call->dim[d]);
    for (int i = 0; i < 2; i++)
        for (const ridge_field *field = list[i]; field->name; field++) {
            print_field(call, &preset, field, word, sizeof word);
            used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, "%s", word);
        }
    if (problem && problem->align < 4)
        used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, " align=%d",
                                 1 << problem->align);
    if (problem && problem->inputs_align != problem->align)
        used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, " inputs_align=%d",
                                 1 << problem->inputs_align);
    if (problem && !problem->packed)
        used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, " packed=0");
    return (int)used;
}

static bool parse_int(const char *text, size_t length, int64_t low, int64_t high, int64_t *value)
{
    char copy[32], *end;
    long long number;

    if (length == 0 || length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    errno = 0;
    number = strtoll(copy, &end, 10);
    *value = number;
    return errno == 0 && *end == 0 && number >= low && number <= high &&
           (copy[0] == '-' || (copy[0] >= '0' && copy[0] <= '9'));
}

static bool parse_float(const char *text, size_t length, float *value)
{
    char copy[48], *end;
    locale_t c, before;

    if (length == 0 || length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    c = enter_c_locale(&before);
    *value = strtof(copy, &end);
    leave_c_locale(c, before);
    return *end == 0 && end != copy && isfinite(*value);
}

static bool parse_choice(const ridge_field *field, const char *text, size_t length, uint32_t *flags)
{
    for (uint32_t i = 0; field->choices[i]; i++)
        if (strlen(field->choices[i]) == length && memcmp(field->choices[i], text, length) == 0) {
            *flags = (*flags & ~field->mask) | choice_bits(field, i);
            return true;
        }
    return false;
}

/* Applies one "name=value" whose field is known. */
static bool parse_field(const ridge_op_row *op, const ridge_field *field, const char *text, size_t length,
                        ridge_call *call)
{
    int64_t number;
    float real;
    uint32_t dtype;

    switch (field->kind) {
    case RIDGE_FIELD_DTYPE:
        dtype = ridge_dtype_find(text, length);
        if (dtype >= RIDGE_DTYPES || !(op->arg[field->index].dtypes >> dtype & 1u))
            return false;
        call->arg[field->index].dtype = dtype;
        for (int arg = 0; arg < op->args; arg++)
            if (op->arg[arg].same_dtype == field->index)
                call->arg[arg].dtype = dtype;
        return true;
    case RIDGE_FIELD_FLAG:
        if (!parse_int(text, length, 0, 1, &number))
            return false;
        call->flags = number ? call->flags | field->mask : call->flags & ~field->mask;
        return true;
    case RIDGE_FIELD_CHOICE:
        return parse_choice(field, text, length, &call->flags);
    case RIDGE_FIELD_HAS:
        dtype = ridge_dtype_find(text, length);
        if (parse_int(text, length, 0, 1, &number))
            dtype = number ? first_dtype(op->arg[field->index].dtypes) : (uint32_t)RIDGE_NONE;
        else if (dtype >= RIDGE_DTYPES || !(op->arg[field->index].dtypes >> dtype & 1u))
            return false;
        call->arg[field->index].dtype = dtype;
        return true;
    case RIDGE_FIELD_F32:
        if (!parse_float(text, length, &real))
            return false;
        memcpy((char *)&call->opt + field->index, &real, sizeof real);
        return true;
    case RIDGE_FIELD_I64:
        if (!parse_int(text, length, INT64_MIN, INT64_MAX, &number))
            return false;
        memcpy((char *)&call->opt + field->index, &number, sizeof number);
        return true;
    }
    return false;
}

static const ridge_field *find_field(const ridge_field *field, const char *name, size_t length)
{
    while (field->name && (strlen(field->name) != length || memcmp(field->name, name, length) != 0))
        field++;
    return field->name ? field : NULL;
}

/* The dimension of this name; the number of dimensions if there is none. */
static int find_dim(const ridge_op_row *op, const char *name, size_t length)
{
    int d = 0;

    while (d < op->dims && (strlen(op->dim_name[d]) != length || memcmp(op->dim_name[d], name, length) != 0))
        d++;
    return d;
}

/* A dimension that the text does not name and that no default sets would be 0 unnoticed. */
static ridge_status check_dims(const ridge_op_row *op, const ridge_call *call, unsigned given)
{
    for (int d = 0; d < op->dims; d++)
        if (!(given >> d & 1u) && call->dim[d] == 0)
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s= is missing", op->name, op->dim_name[d]);
    return RIDGE_OK;
}

/* Applies "align=8", "inputs_align=16" or "packed=0". False: it is none of them; *good: whether its value is right. */
static bool parse_layout(const char *text, size_t name, size_t length, ridge_problem *problem, bool *good)
{
    const bool inputs = name == 12 && memcmp(text, "inputs_align", 12) == 0;
    int64_t number = 0;

    if (name == 6 && memcmp(text, "packed", 6) == 0) {
        *good = parse_int(text + name + 1, length - name - 1, 0, 1, &number);
        problem->packed = (uint8_t)number;
        return true;
    }
    if (!inputs && (name != 5 || memcmp(text, "align", 5) != 0))
        return false;
    *good = parse_int(text + name + 1, length - name - 1, 1, 16, &number) && (number & (number - 1)) == 0;
    if (*good)
        *(inputs ? &problem->inputs_align : &problem->align) = (uint8_t)__builtin_ctzll((unsigned long long)number);
    return true;
}

static ridge_status no_such_field(const ridge_op_row *op, const char *name, size_t length)
{
    const ridge_field *const list[] = {op->fields, common_fields};
    char text[800] = "";
    size_t used = 0;

    for (int d = 0; d < op->dims; d++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s=", op->dim_name[d]);
    for (int i = 0; i < 2; i++)
        for (const ridge_field *field = list[i]; field->name && used < sizeof text; field++)
            used += (size_t)snprintf(text + used, sizeof text - used, " %s=", field->name);
    return ridge_fail(RIDGE_ERR_ARG, "%s: there is no field '%.*s'; the fields are%s", op->name,
                      (int)(length < 80 ? length : 80), name, text);
}

/* field: NULL for a dimension and for what is no field of the op. */
static ridge_status bad_value(const ridge_op_row *op, const ridge_field *field, const char *text, size_t length)
{
    char takes[200] = "";
    size_t used = 0;

    if (field && field->kind == RIDGE_FIELD_CHOICE)
        for (int i = 0; field->choices[i] && used < sizeof takes; i++)
            used += (size_t)snprintf(takes + used, sizeof takes - used, " %s", field->choices[i]);
    if (field && (field->kind == RIDGE_FIELD_DTYPE || field->kind == RIDGE_FIELD_HAS))
        for (uint32_t dtype = 0; dtype < RIDGE_DTYPES && used < sizeof takes; dtype++)
            if (op->arg[field->index].dtypes >> dtype & 1u)
                used += (size_t)snprintf(takes + used, sizeof takes - used, " %s", ridge_dtype_name(dtype));
    return ridge_fail(RIDGE_ERR_ARG, "%s: bad value in '%.*s'%s%s", op->name, (int)(length < 80 ? length : 80), text,
                      used ? "; it takes" : "", takes);
}

ridge_status ridge_problem_parse(const ridge_op_row *op, const char *text, ridge_call *call, ridge_problem *problem)
{
    unsigned given = 0; /* dimensions, a bit each */
    ridge_status status;

    op->defaults(call);
    problem->align = 4;
    problem->inputs_align = UINT8_MAX; /* not given */
    problem->packed = 1;
    while (*text) {
        size_t length = strcspn(text, " \t"), name = strcspn(text, "= \t");
        const char *value = text + name + 1;
        const ridge_field *field;
        bool good;
        int dim;

        if (length == 0) {
            text++;
            continue;
        }
        if (name >= length)
            return ridge_fail(RIDGE_ERR_ARG, "%s: '%.*s' is not name=value", op->name, (int)(length < 80 ? length : 80),
                              text);
        dim = find_dim(op, text, name);
        field = find_field(op->fields, text, name);
        field = field ? field : find_field(common_fields, text, name);
        if (dim < op->dims) {
            good = parse_int(value, length - name - 1, 0, INT64_C(1) << 40, &call->dim[dim]);
        } else if (field) {
            good = parse_field(op, field, value, length - name - 1, call);
        } else if (!parse_layout(text, name, length, problem, &good)) {
            return no_such_field(op, text, name);
        }
        if (!good)
            return bad_value(op, dim < op->dims ? NULL : field, text, length);
        if (given >> dim & 1u)
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s= is there twice", op->name, op->dim_name[dim]);
        given |= dim < op->dims ? 1u << dim : 0;
        text += length;
    }
    status = check_dims(op, call, given);
    if (status)
        return status;
    if (problem->inputs_align < problem->align || problem->inputs_align == UINT8_MAX)
        problem->inputs_align = problem->align;
    if (op->derive)
        op->derive(call);
    return RIDGE_OK;
}

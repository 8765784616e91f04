/* problem.c: validates a call against its op row and turns it into a problem; prints and parses problem text. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

#define COMMON_FLAGS (RIDGE_STRICT | RIDGE_WEIGHTS_SETTLED)

/* In the text of every op, after its own fields. */
static const ridge_field common_fields[] = {
    {.name = "strict", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_STRICT},
    {.name = "settled", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_WEIGHTS_SETTLED},
    {.name = NULL},
};

/* ------------------------------------------------------------------------------------------------------ validation */

/* Where an operand lies: rows of `width` bytes, `pitch` bytes apart. */
typedef struct span {
    uintptr_t base;
    int64_t rows, width, pitch;
} span;

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* True if some byte belongs to both. Equal pitches are solved exactly (halves of one tensor do not overlap); with
 * unequal pitches any common address range counts, since no caller needs that case. */
static bool overlap(const span *a, const span *b)
{
    int64_t a_end = (a->rows - 1) * a->pitch + a->width, b_end = (b->rows - 1) * b->pitch + b->width;
    int64_t gap, row;

    if (a->rows == 0 || b->rows == 0 || a->width == 0 || b->width == 0)
        return false;
    if (a->base + (uint64_t)a_end <= b->base || b->base + (uint64_t)b_end <= a->base)
        return false;
    if (a->pitch != b->pitch || a->rows == 1 || b->rows == 1)
        return true;
    gap = (int64_t)(b->base - a->base);
    row = floor_div(gap, a->pitch); /* b's first row starts between a's rows `row` and `row + 1` */
    gap -= row * a->pitch;
    return (gap < a->width && row > -b->rows && row < a->rows) ||
           (a->pitch - gap < b->width && row + 1 > -b->rows && row + 1 < a->rows);
}

/* What is wrong, then the problem: where a reason speaks of several values, or of none. */
static ridge_status fail_with_values(const ridge_call *call, const char *format, ...)
{
    char what[256], text[512];
    va_list list;

    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    ridge_problem_print(call, NULL, text, sizeof text);
    return ridge_fail(RIDGE_ERR_ARG, "%s: %s: %s", ridge_op_at(call->op)->name, what, text);
}

/* Checks one present operand and describes where it lies. */
static ridge_status check_operand(const ridge_call *call, const ridge_op_row *op, int arg, span *where)
{
    const ridge_operand_row *row = &op->arg[arg];
    const ridge_operand *operand = &call->arg[arg];
    int64_t size, rows, cols, pitch, last;

    if (operand->dtype >= RIDGE_DTYPES)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has dtype %u, which does not exist", op->name, row->name,
                          operand->dtype);
    if (!(row->dtypes >> operand->dtype & 1u))
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has dtype %s, which this op does not take", op->name,
                          row->name, ridge_dtype_name(operand->dtype));
    if (row->same_dtype >= 0 && operand->dtype != call->arg[row->same_dtype].dtype)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has dtype %s but %s has %s", op->name, row->name,
                          ridge_dtype_name(operand->dtype), op->arg[row->same_dtype].name,
                          ridge_dtype_name(call->arg[row->same_dtype].dtype));
    size = (int64_t)ridge_dtype_size(operand->dtype);
    op->extent(call, arg, &rows, &cols);
    if (rows < 0 || cols < 0) /* an option that the rule will refuse */
        return fail_with_values(call, "operand %s would have %" PRId64 " rows x %" PRId64, row->name, rows, cols);
    if (operand->stride < 0 || (operand->stride != 0 && operand->stride < cols))
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has row stride %" PRId64 " below its row of %" PRId64,
                          op->name, row->name, operand->stride, cols);
    if (row->kind == RIDGE_VECTOR && operand->stride != 0)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is a vector, its stride must be 0, not %" PRId64, op->name,
                          row->name, operand->stride);
    pitch = operand->stride ? operand->stride : cols;
    if (__builtin_mul_overflow(pitch, size, &pitch) || pitch >= (INT64_C(1) << 40))
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has row stride %" PRId64 ", 2^40 bytes or more", op->name,
                          row->name, operand->stride ? operand->stride : cols);
    if (__builtin_mul_overflow(rows, pitch, &last) || last < 0 || last > (INT64_C(1) << 60) ||
        (uintptr_t)operand->data > UINTPTR_MAX - (uintptr_t)last)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s of %" PRId64 " rows x %" PRId64 " overflows the address space",
                          op->name, row->name, rows, cols);
    if ((uintptr_t)operand->data % (uintptr_t)size)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is misaligned: %p is not a multiple of %d bytes", op->name,
                          row->name, operand->data, (int)size);
    where->base = (uintptr_t)operand->data;
    where->rows = rows;
    where->width = cols * size;
    where->pitch = pitch;
    return RIDGE_OK;
}

static ridge_status check_aliases(const ridge_call *call, const ridge_op_row *op, const span *where)
{
    for (int out = 0; out < op->args; out++) {
        if (!(op->arg[out].role & RIDGE_OUT) || !ridge_has(call, out))
            continue;
        for (int other = 0; other < op->args; other++) {
            const span *a = &where[out], *b = &where[other];
            bool exact;

            if (other == out || !ridge_has(call, other) || ((op->arg[other].role & RIDGE_OUT) && other < out))
                continue;
            exact = a->base == b->base && a->pitch == b->pitch && a->width == b->width && a->rows == b->rows &&
                    call->arg[out].dtype == call->arg[other].dtype;
            if (exact && (op->arg[out].alias >> other & 1u))
                continue;
            if (overlap(a, b))
                return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s at %p overlaps %s at %p", op->name, op->arg[out].name,
                                  call->arg[out].data, op->arg[other].name, call->arg[other].data);
        }
    }
    return RIDGE_OK;
}

static ridge_status check_head(const ridge_call *call, const ridge_op_row **row)
{
    const ridge_op_row *op;

    if (!call)
        return ridge_fail(RIDGE_ERR_ARG, "the call is NULL");
    if (call->struct_size != sizeof *call)
        return ridge_fail(RIDGE_ERR_ARG, "call.struct_size is %u, this library's ridge_call has %u bytes",
                          call->struct_size, (unsigned)sizeof *call);
    if (call->op == RIDGE_OP_NONE || call->op >= RIDGE_OPS)
        return ridge_fail(RIDGE_ERR_ARG, "call.op is %u, there is no such op", call->op);
    op = ridge_op_at(call->op);
    if (call->flags & ~(op->flags | COMMON_FLAGS))
        return ridge_fail(RIDGE_ERR_ARG, "%s: unknown flags 0x%x", op->name, call->flags & ~(op->flags | COMMON_FLAGS));
    for (int d = 0; d < RIDGE_MAX_DIMS; d++) {
        if (d < op->dims && (call->dim[d] < 0 || call->dim[d] > (INT64_C(1) << 40)))
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s is %" PRId64 ", outside 0 .. 2^40", op->name, op->dim_name[d],
                              call->dim[d]);
        if (d < op->dims && op->step[d] && call->dim[d] % op->step[d])
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s is %" PRId64 ", no multiple of %d", op->name, op->dim_name[d],
                              call->dim[d], op->step[d]);
        if (d >= op->dims && call->dim[d] != 0)
            return ridge_fail(RIDGE_ERR_ARG, "%s: dim[%d] is %" PRId64 ", this op has %d", op->name, d, call->dim[d],
                              op->dims);
    }
    *row = op;
    return RIDGE_OK;
}

ridge_status ridge_validate(const ridge_call *call, ridge_problem *problem)
{
    const ridge_op_row *op = NULL;
    span where[RIDGE_MAX_ARGS];
    uintptr_t bits = 16, packed_bits = 0;
    bool packed = true;
    const char *reason;
    ridge_status status = check_head(call, &op);

    if (status)
        return status;
    memset(problem, 0, sizeof *problem);
    for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++) {
        int64_t rows, cols;

        if (arg >= op->args) {
            if (call->arg[arg].dtype != RIDGE_NONE)
                return ridge_fail(RIDGE_ERR_ARG, "%s: operand slot %d is set, this op has %d", op->name, arg, op->args);
            continue;
        }
        if (call->arg[arg].dtype == RIDGE_NONE && call->arg[arg].data)
            return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has a pointer but no dtype", op->name, op->arg[arg].name);
        if (!ridge_has(call, arg)) {
            op->extent(call, arg, &rows, &cols);
            if (!op->arg[arg].optional && rows != 0 && cols != 0)
                return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is NULL", op->name, op->arg[arg].name);
            if (!op->arg[arg].optional)
                problem->dtype[arg] = (uint8_t)call->arg[arg].dtype;
            continue;
        }
        status = check_operand(call, op, arg, &where[arg]);
        if (status)
            return status;
        problem->dtype[arg] = (uint8_t)call->arg[arg].dtype;
        if (op->arg[arg].kind != RIDGE_MATRIX)
            continue;
        bits |= where[arg].base;
        if (where[arg].rows > 1 && where[arg].pitch != where[arg].width) {
            bits |= (uintptr_t)where[arg].pitch;
            packed = false;
        } else if (where[arg].rows > 1 && !(op->arg[arg].role & RIDGE_OUT)) {
            packed_bits |= (uintptr_t)where[arg].pitch;
        }
    }
    if (!packed)
        bits |= packed_bits;
    reason = op->rule ? op->rule(call) : NULL;
    if (reason)
        return fail_with_values(call, "%s", reason);
    status = check_aliases(call, op, where);
    if (status)
        return status;
    problem->op = call->op;
    problem->flags = call->flags;
    memcpy(problem->dim, call->dim, sizeof problem->dim);
    problem->align = (uint8_t)__builtin_ctzll(bits);
    problem->packed = packed;
    problem->plain = !op->plain || op->plain(call);
    return RIDGE_OK;
}

uint8_t ridge_operand_role(const ridge_call *call, int arg)
{
    const ridge_op_row *op = ridge_op_at(call->op);

    return op->role ? op->role(call, arg) : op->arg[arg].role;
}

int64_t ridge_operand_bytes(const ridge_call *call, int arg)
{
    int64_t rows, cols, stride = call->arg[arg].stride, bytes;

    ridge_op_at(call->op)->extent(call, arg, &rows, &cols);
    if (rows == 0 || cols == 0)
        return 0;
    if (__builtin_mul_overflow(rows - 1, stride ? stride : cols, &bytes) ||
        __builtin_add_overflow(bytes, cols, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)ridge_dtype_size(call->arg[arg].dtype), &bytes))
        return INT64_MAX;
    return bytes;
}

double ridge_problem_bytes(const ridge_call *call)
{
    const ridge_op_row *op = ridge_op_at(call->op);
    double sum = 0;

    for (int arg = 0; arg < op->args; arg++) {
        int64_t rows, cols;
        double once;

        op->extent(call, arg, &rows, &cols);
        once = (double)rows * (double)cols * (double)ridge_dtype_size(call->arg[arg].dtype);
        sum += once * __builtin_popcount(ridge_operand_role(call, arg));
    }
    return sum;
}

uint64_t ridge_problem_hash(const ridge_problem *problem)
{
    ridge_problem p = *problem;
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15), word;

    p.flags &= ~COMMON_FLAGS;
    for (size_t at = 0; at + sizeof word <= sizeof p; at += sizeof word) {
        memcpy(&word, (const char *)&p + at, sizeof word);
        hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    return hash;
}

/* ------------------------------------------------------------------------------------------------------------ text */

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
    case RIDGE_FIELD_DIM:
        snprintf(text, size, " %s=%" PRId64, field->name, call->dim[field->index]);
        break;
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
    for (int i = 0; i < 2; i++)
        for (const ridge_field *field = list[i]; field->name; field++) {
            print_field(call, &preset, field, word, sizeof word);
            used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, "%s", word);
        }
    if (problem && problem->align < 4)
        used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0, " align=%d",
                                 1 << problem->align);
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
    case RIDGE_FIELD_DIM:
        return parse_int(text, length, 0, INT64_C(1) << 40, &call->dim[field->index]);
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

/* A dimension that the text does not name and that no default sets would be 0 unnoticed. */
static ridge_status check_dims(const ridge_op_row *op, const ridge_call *call, unsigned given)
{
    for (const ridge_field *field = op->fields; field->name; field++)
        if (field->kind == RIDGE_FIELD_DIM && !(given >> field->index & 1u) && call->dim[field->index] == 0)
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s= is missing", op->name, field->name);
    return RIDGE_OK;
}

ridge_status ridge_problem_parse(const ridge_op_row *op, const char *text, ridge_call *call, int *align, int *packed)
{
    unsigned given = 0; /* dimensions, a bit each */
    ridge_status status;

    op->defaults(call);
    while (*text) {
        size_t length = strcspn(text, " \t"), name = strcspn(text, "= \t");
        const char *value = text + name + 1;
        const ridge_field *field;
        int64_t number = 0;
        bool good;

        if (length == 0) {
            text++;
            continue;
        }
        if (name >= length)
            return ridge_fail(RIDGE_ERR_ARG, "%s: '%.*s' is not name=value", op->name, (int)(length < 80 ? length : 80),
                              text);
        field = find_field(op->fields, text, name);
        field = field ? field : find_field(common_fields, text, name);
        if (field) {
            good = parse_field(op, field, value, length - name - 1, call);
        } else if (name == 5 && memcmp(text, "align", 5) == 0) {
            good = parse_int(value, length - name - 1, 1, 16, &number) && (number & (number - 1)) == 0;
            *align = (int)number;
        } else if (name == 6 && memcmp(text, "packed", 6) == 0) {
            good = parse_int(value, length - name - 1, 0, 1, &number);
            *packed = (int)number;
        } else {
            return ridge_fail(RIDGE_ERR_ARG, "%s: there is no field '%.*s'", op->name, (int)(name < 80 ? name : 80),
                              text);
        }
        if (!good)
            return ridge_fail(RIDGE_ERR_ARG, "%s: bad value in '%.*s'", op->name, (int)(length < 80 ? length : 80),
                              text);
        if (field && field->kind == RIDGE_FIELD_DIM && given >> field->index & 1u)
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s= is there twice", op->name, field->name);
        given |= field && field->kind == RIDGE_FIELD_DIM ? 1u << field->index : 0;
        text += length;
    }
    status = check_dims(op, call, given);
    if (status)
        return status;
    if (op->settle)
        op->settle(call);
    return RIDGE_OK;
}

/* cmd_inspect.c: `ridge inspect`: prints what a checkpoint holds as a table or as JSON. The table is for a terminal:
 * text from the file is truncated, arrays are shortened. The JSON has everything but the tensors' data. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "ridge_io.h"
#include "check/check.h"
#include "tools/cli.h"

enum { TEXT_MOST = 96, ARRAY_MOST = 4 };

typedef struct options {
    const char *file, *pattern;
    bool json, meta;
} options;

/* --------------------------------------------------------------------------------------------------------- metadata */

static int kind_size(uint32_t kind)
{
    static const int size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    return kind < sizeof size / sizeof size[0] ? size[kind] : 0;
}

static const char *kind_name(uint32_t kind)
{
    static const char *const name[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};

    return kind < sizeof name / sizeof name[0] ? name[kind] : "?";
}

/* Reads the value at *at and advances: a string is a u64 length and bytes. The file reader has checked the bounds. */
typedef struct value {
    uint32_t kind;
    int64_t i;
    uint64_t u;
    double f;
    const char *text;
    size_t length;
} value;

static value next_value(const unsigned char **at, uint32_t kind)
{
    value v = {.kind = kind};
    float f;

    if (kind == RIDGE_META_STRING) {
        memcpy(&v.u, *at, 8);
        v.text = (const char *)*at + 8;
        v.length = (size_t)v.u;
        *at += 8 + v.length;
        return v;
    }
    memcpy(&v.u, *at, (size_t)kind_size(kind)); /* little endian, as the host: io/dequantize.c insists */
    switch (kind) {
    case RIDGE_META_F32:
        memcpy(&f, *at, 4);
        v.f = (double)f;
        break;
    case RIDGE_META_F64:
        memcpy(&v.f, *at, 8);
        break;
    case RIDGE_META_I8:
        v.i = (int8_t)v.u;
        break;
    case RIDGE_META_I16:
        v.i = (int16_t)v.u;
        break;
    case RIDGE_META_I32:
        v.i = (int32_t)v.u;
        break;
    default:
        v.i = (int64_t)v.u;
    }
    *at += kind_size(kind);
    return v;
}

/* Prints at most `most` bytes of text from a file. */
static void print_short(const char *text, size_t length, size_t most)
{
    size_t shown = length < most ? length : most;

    while (shown < length && shown && ((unsigned char)text[shown] & 0xc0) == 0x80)
        shown--; /* not within a character */
    text_print(stdout, text, shown);
    if (shown < length)
        printf("... (%zu bytes)", length);
}

static void print_value(value v, bool quote)
{
    if (v.kind == RIDGE_META_STRING) {
        fputs(quote ? "\"" : "", stdout);
        print_short(v.text, v.length, quote ? 24 : TEXT_MOST);
        fputs(quote ? "\"" : "", stdout);
    } else if (v.kind == RIDGE_META_F32 || v.kind == RIDGE_META_F64) {
        printf(v.kind == RIDGE_META_F32 ? "%.7g" : "%.15g", v.f);
    } else if (v.kind == RIDGE_META_BOOL) {
        fputs(v.u ? "true" : "false", stdout);
    } else if (v.kind == RIDGE_META_U64) {
        printf("%" PRIu64, v.u);
    } else {
        printf("%" PRId64, v.i);
    }
}

static void print_meta(const ridge_meta *meta)
{
    const unsigned char *at = meta->data;
    int64_t shown = meta->count < ARRAY_MOST ? meta->count : ARRAY_MOST;
    bool array = meta->kind == RIDGE_META_ARRAY;

    printf("  ");
    print_short(meta->key, strlen(meta->key), 200);
    printf(" = ");
    if (array)
        printf("%" PRId64 " x %s [", meta->count, kind_name(meta->element));
    for (int64_t i = 0; i < (array ? shown : 1); i++) {
        fputs(i ? ", " : "", stdout);
        print_value(next_value(&at, meta->element), array);
    }
    printf("%s\n", !array ? "" : shown < meta->count ? ", ...]" : "]");
}

/* A JSON string; bytes that are not UTF-8, which GGUF's own strings may hold, become U+FFFD one by one. */
static json_t *text_json(const char *text, size_t length)
{
    json_t *json = json_stringn(text, length);
    char *clean, *to;

    if (json)
        return json;
    clean = to = malloc(3 * length + 1);
    for (size_t i = 0; clean && i < length;) {
        size_t bytes = 1;
        json_t *one = NULL;

        for (; bytes <= 4 && i + bytes <= length && !(one = json_stringn(text + i, bytes)); bytes++)
            ;
        memcpy(to, one ? text + i : "\xef\xbf\xbd", one ? bytes : 3);
        to += one ? bytes : 3;
        i += one ? bytes : 1;
        json_decref(one);
    }
    json = clean ? json_stringn(clean, (size_t)(to - clean)) : NULL;
    free(clean);
    return json;
}

static json_t *value_json(value v)
{
    char digits[24];

    switch (v.kind) {
    case RIDGE_META_STRING:
        return text_json(v.text, v.length);
    case RIDGE_META_F32:
    case RIDGE_META_F64:
        return isfinite(v.f) ? json_real(v.f) : json_null();
    case RIDGE_META_BOOL:
        return json_boolean(v.u != 0);
    case RIDGE_META_U64:
        if (v.u > INT64_MAX) { /* beyond JSON libraries' integers: not rounded, but spelled */
            snprintf(digits, sizeof digits, "%" PRIu64, v.u);
            return json_string(digits);
        }
        return json_integer((json_int_t)v.u);
    default:
        return json_integer((json_int_t)v.i);
    }
}

static json_t *meta_json(const ridge_meta *meta)
{
    const unsigned char *at = meta->data;
    json_t *array;

    if (meta->kind != RIDGE_META_ARRAY)
        return value_json(next_value(&at, meta->element));
    array = json_array();
    for (int64_t i = 0; i < meta->count; i++)
        json_array_append_new(array, value_json(next_value(&at, meta->element)));
    return array;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

static void shape_print(const ridge_entry *t, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");

    for (int32_t i = 0; i < t->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

/* What the chosen tensors add up to, by type. */
typedef struct totals {
    int64_t tensors[RIDGE_TYPES], elements[RIDGE_TYPES], bytes[RIDGE_TYPES];
    int64_t all, all_elements, all_bytes;
} totals;

static bool chosen(const options *o, const char *name)
{
    return name_matches(o->pattern, name);
}

static void add_up(const options *o, const ridge_file *file, totals *sum)
{
    memset(sum, 0, sizeof *sum);
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);

        if (!chosen(o, t->name))
            continue;
        sum->tensors[t->type]++;
        sum->elements[t->type] += t->elements;
        sum->bytes[t->type] += t->bytes;
        sum->all++;
        sum->all_elements += t->elements;
        sum->all_bytes += t->bytes;
    }
}

static void print_tensors(const options *o, const ridge_file *file)
{
    int width = (int)strlen("tensor");
    char shape[256];

    for (int64_t i = 0; i < ridge_file_tensors(file); i++)
        if (chosen(o, ridge_file_tensor(file, i)->name)) {
            int length = (int)strlen(ridge_file_tensor(file, i)->name);

            width = length > width && length <= 80 ? length : width;
        }
    printf("\n%-*s  %-8s %-20s %15s\n", width, "tensor", "type", "shape", "bytes");
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        int pad = width - (int)strlen(t->name);

        if (!chosen(o, t->name))
            continue;
        shape_print(t, shape, sizeof shape);
        print_short(t->name, strlen(t->name), 400);
        printf("%*s  %-8s %-20s %15" PRId64 "\n", pad > 0 ? pad : 0, "", ridge_type_query(t->type)->name, shape,
               t->bytes);
    }
}

static void print_all(const options *o, const ridge_file *file, const totals *sum)
{
    bool gguf = ridge_file_format(file) == RIDGE_GGUF;

    printf("%s, %d %s\n", gguf ? "GGUF" : "safetensors", (int)ridge_file_shards(file),
           ridge_file_shards(file) == 1 ? "file" : "shards");
    for (int32_t i = 0; i < ridge_file_shards(file); i++)
        line_print(stdout, "  %s: %" PRId64 " bytes", ridge_file_path(file, i), ridge_file_bytes(file, i));
    if (!o->pattern || o->meta) {
        printf("\nmetadata: %" PRId64 "\n", ridge_file_metas(file));
        for (int64_t i = 0; i < ridge_file_metas(file); i++)
            if (!o->meta || chosen(o, ridge_file_meta(file, i)->key))
                print_meta(ridge_file_meta(file, i));
    }
    if (o->meta)
        return;
    print_tensors(o, file);
    printf("\n%-8s %8s %15s %17s\n", "type", "tensors", "elements", "bytes");
    for (uint32_t type = 0; type < RIDGE_TYPES; type++)
        if (sum->tensors[type])
            printf("%-8s %8" PRId64 " %15" PRId64 " %17" PRId64 "\n", ridge_type_query(type)->name, sum->tensors[type],
                   sum->elements[type], sum->bytes[type]);
    printf("%-8s %8" PRId64 " %15" PRId64 " %17" PRId64 "\n", "all", sum->all, sum->all_elements, sum->all_bytes);
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static json_t *tensor_json(const ridge_entry *t)
{
    json_t *shape = json_array();

    for (int32_t i = 0; i < t->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    return json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:i}", "name", t->name, "type", ridge_type_query(t->type)->name,
                     "shape", shape, "elements", (json_int_t)t->elements, "bytes", (json_int_t)t->bytes, "offset",
                     (json_int_t)t->offset, "shard", (int)t->shard);
}

static json_t *shards_json(const ridge_file *file)
{
    json_t *shards = json_array();

    for (int32_t i = 0; i < ridge_file_shards(file); i++) {
        const char *path = ridge_file_path(file, i);

        json_array_append_new(shards, json_pack("{s:o, s:I}", "path", text_json(path, strlen(path)), "bytes",
                                                (json_int_t)ridge_file_bytes(file, i)));
    }
    return shards;
}

static int dump_json(const options *o, const ridge_file *file, const totals *sum)
{
    json_t *metas = json_object(), *tensors = json_array(), *types = json_object(), *all;

    for (int64_t i = 0; i < ridge_file_metas(file); i++)
        if (!o->meta || chosen(o, ridge_file_meta(file, i)->key))
            json_object_set_new(metas, ridge_file_meta(file, i)->key, meta_json(ridge_file_meta(file, i)));
    for (int64_t i = 0; i < ridge_file_tensors(file) && !o->meta; i++)
        if (chosen(o, ridge_file_tensor(file, i)->name))
            json_array_append_new(tensors, tensor_json(ridge_file_tensor(file, i)));
    for (uint32_t type = 0; type < RIDGE_TYPES; type++)
        if (sum->tensors[type])
            json_object_set_new(types, ridge_type_query(type)->name,
                                json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)sum->tensors[type], "elements",
                                          (json_int_t)sum->elements[type], "bytes", (json_int_t)sum->bytes[type]));
    all = json_pack("{s:s, s:o, s:o}", "format", ridge_file_format(file) == RIDGE_GGUF ? "gguf" : "safetensors",
                    "shards", shards_json(file), "metadata", metas);
    if (o->meta) {
        json_decref(tensors);
        json_decref(types);
    } else {
        json_object_set_new(all, "tensors", tensors);
        json_object_set_new(all, "totals", types);
    }
    return !print_json(all);
}

static bool matches_none(const options *o, const ridge_file *file, const totals *sum)
{
    if (!o->pattern)
        return false;
    for (int64_t i = 0; i < ridge_file_metas(file) && o->meta; i++)
        if (chosen(o, ridge_file_meta(file, i)->key))
            return false;
    return o->meta || sum->all == 0;
}

int cmd_inspect(int argc, char **argv)
{
    options o = {0};
    const args_option list[] = {{"json", 'j', NULL,
                                 "JSON: arrays in full; u64 above 2^63-1 as a string, NaN and infinity as null",
                                 .flag = &o.json},
                                {"meta", 'm', NULL, "metadata only; PATTERN then chooses keys", .flag = &o.meta},
                                {0}};
    args_list words = {0};
    ridge_file *file;
    totals sum;
    int bad = 0;

    args_parse(argc, argv, "FILE [PATTERN]",
               "Shows what a checkpoint holds: a safetensors or GGUF file, an index with its shards, or a directory. "
               "PATTERN (with * and ?) chooses tensors.",
               list, &words, 2);
    if (!words.count) {
        fprintf(stderr, "usage: ridge inspect FILE [PATTERN]\n");
        return 2;
    }
    o.file = words.at[0];
    o.pattern = words.at[1];
    if (ridge_file_open(o.file, &file) != RIDGE_OK) {
        line_print(stderr, "ridge inspect: %s", ridge_io_error());
        return 1;
    }
    add_up(&o, file, &sum);
    if (matches_none(&o, file, &sum)) {
        line_print(stderr, "ridge inspect: nothing matches '%s'", o.pattern);
        bad = 1;
    } else if (o.json) {
        bad = dump_json(&o, file, &sum);
    } else {
        print_all(&o, file, &sum);
    }
    ridge_file_close(file);
    return bad;
}

/* safetensors.c: reads a safetensors header. The file holds the header's length (u64), the header (JSON) and the data.
 * The tensors' byte ranges must tile the data exactly, so that no two tensors share a byte and no byte is hidden. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "safetensors.h"

typedef struct entries { /* the tensors of one header, first in its order, then sorted by offset */
    ridge_entry *tensor;
    int64_t count, capacity;
} entries;

/* What a message names: the file and the tensor. */
typedef struct tensor_id {
    const char *path, *name;
} tensor_id;

#define FAIL(at, format, ...) \
    io_fail(RIDGE_ERR_FILE, "%s: tensor \"%.200s\": " format, (at)->path, (at)->name, __VA_ARGS__)

static bool is_type(uint32_t type, const char *name)
{
    const ridge_type_info *info = ridge_type_query(type);

    return info && info->safetensors && strcmp(info->name, name) == 0;
}

/* Tries the type of the tensor before first: most tensors share it. */
static uint32_t find_type(const char *name, uint32_t last)
{
    if (is_type(last, name))
        return last;
    for (uint32_t type = RIDGE_TYPE_NONE + 1; type < RIDGE_TYPES; type++)
        if (is_type(type, name))
            return type;
    return RIDGE_TYPE_NONE;
}

static const char *kind(const json_t *value)
{
    static const char *const name[] = {"an object", "an array", "a string", "an integer", "a number that is no integer",
                                       "true",      "false",    "null"};
    unsigned type = value ? (unsigned)json_typeof(value) : 8;

    return type < sizeof name / sizeof name[0] ? name[type] : "missing";
}

static ridge_status integer(const tensor_id *at, const char *field, const json_t *value, int64_t *number)
{
    if (!json_is_integer(value))
        return FAIL(at, "%s holds %s instead of an integer", field, kind(value));
    *number = json_integer_value(value);
    return *number < 0 ? FAIL(at, "%s holds %" PRId64, field, *number) : RIDGE_OK;
}

static ridge_status parse_shape(const tensor_id *at, const json_t *shape, ridge_entry *t)
{
    ridge_status status = RIDGE_OK;

    if (!json_is_array(shape))
        return FAIL(at, "its shape is %s instead of an array", kind(shape));
    if (json_array_size(shape) > RIDGE_MAX_RANK)
        return FAIL(at, "its shape has rank %zu; ridge takes at most %d", json_array_size(shape), RIDGE_MAX_RANK);
    t->rank = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < t->rank && status == RIDGE_OK; i++)
        status = integer(at, "its shape", json_array_get(shape, (size_t)i), &t->shape[i]);
    if (status == RIDGE_OK && !io_elements(t->shape, t->rank, &t->elements))
        status = FAIL(at, "its shape overflows (%" PRId64 " x ... of rank %d)", t->shape[0], (int)t->rank);
    return status;
}

/* Offsets stay relative to the data for now. */
static ridge_status parse_range(const tensor_id *at, const json_t *range, int64_t data, ridge_entry *t)
{
    int64_t end = 0;
    ridge_status status;

    if (!json_is_array(range) || json_array_size(range) != 2)
        return FAIL(at, "its data_offsets are %s instead of an array of two",
                    json_is_array(range) ? "an array of another size" : kind(range));
    status = integer(at, "data_offsets", json_array_get(range, 0), &t->offset);
    if (status == RIDGE_OK)
        status = integer(at, "data_offsets", json_array_get(range, 1), &end);
    if (status != RIDGE_OK)
        return status;
    if (t->offset > end || end > data)
        return FAIL(at, "its data_offsets [%" PRId64 ", %" PRId64 "] are not within the data of %" PRId64 " bytes",
                    t->offset, end, data);
    if (t->bytes != end - t->offset)
        return FAIL(at, "its shape needs %" PRId64 " bytes, its data_offsets [%" PRId64 ", %" PRId64 "] hold %" PRId64,
                    t->bytes, t->offset, end, end - t->offset);
    return RIDGE_OK;
}

/* Other fields of an entry are allowed, as in the reference reader. */
static ridge_status parse_entry(const tensor_id *at, const json_t *entry, int64_t data, uint32_t last, ridge_entry *t)
{
    const json_t *dtype = json_object_get(entry, "dtype");
    ridge_status status;

    if (!json_is_object(entry))
        return FAIL(at, "its entry is %s instead of an object", kind(entry));
    if (!json_is_string(dtype))
        return FAIL(at, "its dtype is %s instead of a string", kind(dtype));
    if (strlen(json_string_value(dtype)) == json_string_length(dtype)) /* no NUL in it */
        t->type = find_type(json_string_value(dtype), last);
    if (t->type == RIDGE_TYPE_NONE)
        return FAIL(at, "unknown dtype \"%.40s\"", json_string_value(dtype));
    status = parse_shape(at, json_object_get(entry, "shape"), t);
    if (status != RIDGE_OK)
        return status;
    if (!io_bytes(t->type, t->elements, &t->bytes))
        return FAIL(at, "%" PRId64 " elements of %s overflow or are no whole bytes", t->elements,
                    ridge_type_query(t->type)->name);
    return parse_range(at, json_object_get(entry, "data_offsets"), data, t);
}

static bool skip(const char **at, const char *text)
{
    const size_t length = strlen(text);

    if (strncmp(*at, text, length) != 0)
        return false;
    *at += length;
    return true;
}

/* Reads at most 18 digits, so that nothing overflows; the caller then finds another digit where it expects more. */
static bool skip_number(const char **at, int64_t *number)
{
    const char *const first = *at;

    for (*number = 0; **at >= '0' && **at <= '9' && *at < first + 18; (*at)++)
        *number = *number * 10 + (**at - '0');
    return *at > first && (*first != '0' || *at == first + 1);
}

/* Reads an entry in the form that all writers print, without jansson, which would take two thirds of the time of a
 * million of them. False, with json->at unchanged: the entry has another form or is wrong, and jansson reads it. */
static bool plain_entry(io_json *json, int64_t data, uint32_t last, ridge_entry *t)
{
    const char *at = json->text + json->at;
    char dtype[16] = "";
    int64_t end;

    if (!skip(&at, "{\"dtype\":\""))
        return false;
    for (size_t i = 0; i + 1 < sizeof dtype && *at && *at != '"'; i++)
        dtype[i] = *at++;
    t->type = find_type(dtype, last);
    if (t->type == RIDGE_TYPE_NONE || !skip(&at, "\",\"shape\":["))
        return false;
    while (*at != ']' && t->rank < RIDGE_MAX_RANK && (!t->rank || skip(&at, ",")))
        if (!skip_number(&at, &t->shape[t->rank++]))
            return false;
    if (!skip(&at, "],\"data_offsets\":[") || !skip_number(&at, &t->offset) || !skip(&at, ",") ||
        !skip_number(&at, &end) || !skip(&at, "]}") || !io_elements(t->shape, t->rank, &t->elements) ||
        !io_bytes(t->type, t->elements, &t->bytes) || end > data || t->bytes != end - t->offset)
        return false;
    json->at = (size_t)(at - json->text);
    return true;
}

static char *keep_text(ridge_file *file, const json_t *string)
{
    size_t bytes = json_string_length(string) + 1;
    char *text = io_keep(file, bytes);

    if (text)
        memcpy(text, json_string_value(string), bytes);
    return text;
}

/* Keeps a metadata entry as ridge_meta holds a string: its length, then its bytes. */
static ridge_status keep_meta(ridge_file *file, const json_t *key, const json_t *value, int64_t first)
{
    uint64_t length = json_string_length(value);
    int64_t there = io_names_find(&file->keys, json_string_value(key));
    ridge_meta meta = {NULL, RIDGE_META_STRING, RIDGE_META_STRING, 1, NULL, (int64_t)length + 8};
    char *data;

    if (there >= 0 && there < first)
        return RIDGE_OK; /* an earlier shard has this key: its value counts */
    meta.key = keep_text(file, key);
    data = meta.key ? io_keep(file, (size_t)length + 8) : NULL;
    if (!data)
        return RIDGE_ERR_FILE;
    memcpy(data, &length, 8);
    memcpy(data + 8, json_string_value(value), (size_t)length);
    meta.data = data;
    return io_add_meta(file, &meta);
}

static ridge_status parse_metadata(ridge_file *file, io_json *json)
{
    int64_t count = 0, first = file->metas;
    ridge_status status = io_json_enter(json);
    json_t *key = NULL, *value;

    while (status == RIDGE_OK && (status = io_json_next(json, &count, &key)) == RIDGE_OK && key) {
        value = io_json_value(json, "metadata key", json_string_value(key));
        if (!value)
            status = RIDGE_ERR_FILE;
        else if (!json_is_string(value))
            status = io_fail(RIDGE_ERR_FILE, "%s: metadata key \"%.200s\": its value is %s instead of a string",
                             json->path, json_string_value(key), kind(value));
        else
            status = keep_meta(file, key, value, first);
        json_decref(value);
        json_decref(key);
    }
    return status;
}

static ridge_status parse_tensor(ridge_file *file, io_json *json, const json_t *key, int64_t data, entries *list)
{
    const tensor_id at = {json->path, json_string_value(key)};
    const uint32_t last = list->count ? list->tensor[list->count - 1].type : 0;
    ridge_entry t = {0};

    if (!plain_entry(json, data, last, &t)) {
        json_t *entry = io_json_value(json, "tensor", at.name);
        ridge_status status;

        t = (ridge_entry){0};
        status = entry ? parse_entry(&at, entry, data, last, &t) : RIDGE_ERR_FILE;
        json_decref(entry);
        if (status != RIDGE_OK)
            return status;
    }
    t.shard = file->shards - 1;
    t.name = keep_text(file, key);
    if (!t.name)
        return RIDGE_ERR_FILE;
    if (!io_grow(&list->tensor, &list->capacity, list->count + 1, sizeof *list->tensor))
        return io_no_memory(json->path);
    list->tensor[list->count++] = t;
    return RIDGE_OK;
}

static int by_offset(const void *left, const void *right)
{
    const ridge_entry *a = left, *b = right;

    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* empty ones first */
}

static void sort(entries *list)
{
    for (int64_t i = 1; i < list->count; i++)
        if (by_offset(&list->tensor[i - 1], &list->tensor[i]) > 0) { /* most files are in order already */
            qsort(list->tensor, (size_t)list->count, sizeof *list->tensor, by_offset);
            return;
        }
}

static ridge_status check_tiling(const char *path, const entries *list, int64_t data)
{
    int64_t end = 0;

    for (int64_t i = 0; i < list->count; i++) {
        const ridge_entry *t = &list->tensor[i];
        tensor_id at = {path, t->name};

        if (t->offset != end)
            return FAIL(&at, "its data begins at %" PRId64 ", %s the end of the data before it, %" PRId64, t->offset,
                        t->offset < end ? "which overlaps: it is below" : "which leaves a hole: it is above", end);
        end += t->bytes;
    }
    if (end != data)
        return io_fail(RIDGE_ERR_FILE,
                       "%s: the tensors' data ends at %" PRId64 ", but there are %" PRId64 " bytes of data", path, end,
                       data);
    return RIDGE_OK;
}

static ridge_status parse_header(ridge_file *file, io_json *json, int64_t data, entries *list)
{
    int64_t count = 0;
    bool metadata = false;
    json_t *key = NULL;
    ridge_status status = io_json_enter(json);

    while (status == RIDGE_OK && (status = io_json_next(json, &count, &key)) == RIDGE_OK && key) {
        if (strcmp(json_string_value(key), "__metadata__") != 0)
            status = parse_tensor(file, json, key, data, list);
        else if (metadata)
            status = io_fail(RIDGE_ERR_FILE, "%s: there are two __metadata__", json->path);
        else
            status = parse_metadata(file, json);
        metadata |= strcmp(json_string_value(key), "__metadata__") == 0;
        json_decref(key);
    }
    return status == RIDGE_OK ? io_json_end(json) : status;
}

/* The header's text; *length its bytes. The caller frees it. */
static ridge_status read_header(const io_shard *shard, char **text, int64_t *length)
{
    unsigned char raw[8];
    uint64_t bytes = 0;
    ridge_status status;

    if (shard->bytes < 8)
        return io_fail(RIDGE_ERR_FILE, "%s: %" PRId64 " bytes are too few for a safetensors or a GGUF file",
                       shard->path, shard->bytes);
    status = io_read_at(shard, 0, raw, 8);
    if (status != RIDGE_OK)
        return status;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | raw[i];
    if (bytes > IO_SAFETENSORS_HEADER)
        return io_fail(RIDGE_ERR_FILE,
                       "%s: not a safetensors file: its header would have %" PRIu64 " bytes, %d at most", shard->path,
                       bytes, IO_SAFETENSORS_HEADER);
    if ((int64_t)bytes > shard->bytes - 8)
        return io_fail(RIDGE_ERR_FILE, "%s: its header has %" PRIu64 " bytes, the file only %" PRId64 " after byte 8",
                       shard->path, bytes, shard->bytes - 8);
    *text = malloc(bytes + 1);
    if (!*text)
        return io_no_memory(shard->path);
    *length = (int64_t)bytes;
    (*text)[bytes] = 0; /* plain_entry stops there */
    status = io_read_at(shard, 8, *text, *length);
    if (status == RIDGE_OK && (bytes == 0 || (*text)[0] != '{'))
        status = io_fail(RIDGE_ERR_FILE, "%s: byte 8: the header does not begin with '{'", shard->path);
    return status;
}

ridge_status io_parse_safetensors(ridge_file *file, int32_t index)
{
    const io_shard *shard = &file->shard[index];
    entries list = {NULL, 0, 0};
    char *text = NULL;
    int64_t length = 0, data = 0;
    ridge_status status = read_header(shard, &text, &length);

    if (status == RIDGE_OK) {
        io_json json = {shard->path, text, (size_t)length, 0, 8};
        data = shard->bytes - 8 - length;
        status = parse_header(file, &json, data, &list);
    }
    free(text);
    sort(&list);
    for (int64_t i = 0; i < list.count && status == RIDGE_OK; i++) {
        ridge_entry placed = list.tensor[i];
        placed.offset += 8 + length;
        status = io_add_tensor(file, &placed);
    }
    if (status == RIDGE_OK) /* last: two tensors of one name overlap too, but then the name is the error to report */
        status = check_tiling(shard->path, &list, data);
    free(list.tensor);
    return status;
}

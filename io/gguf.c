/* gguf.c: reads the header of a GGUF file, versions 2 and 3, little endian. gguf_layout.c writes one, parts.c opens the
 * parts of a file that was split.
 *
 * Header: "GGUF", u32 version, u64 tensors, u64 entries of metadata; the entries; the descriptions of the tensors;
 * padding; data. A string is a u64 length and its bytes. The header is read once, front to back, through a buffer of
 * fixed size. No number is trusted before it is compared with the bytes that remain in the file: a count with the least
 * number of bytes that each entry takes, a size before it is multiplied, a length before memory is allocated for it.
 *
 * The reader is stricter than the published format: names and keys are UTF-8 without NUL, of 1 to 65535 bytes, and
 * unique; no array of arrays; a bool is 0 or 1; at most 4 dimensions, none of them 0 (older ggml divides by it);
 * general.alignment is a u32, a power of two, at most 2^20; tensors follow one another without gaps but padding, as
 * ggml demands; nothing but padding follows the last one, and that may be missing. Strings of metadata may hold any
 * bytes, as tokens do. Not supported: version 1, big-endian files. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

enum {
    CHUNK = 1 << 16,   /* bytes of the read buffer, and of a block that small allocations are cut from */
    NAME_MOST = 65535, /* bytes of a key or name */
    ALIGNMENT_MOST = 1 << 20,
    DEFAULT_ALIGNMENT = 32,
    DIMENSIONS_MOST = 4,
    ENTRY_LEAST = 8 + 1 + 4 + 1,     /* key, kind, one byte of value */
    TENSOR_LEAST = 8 + 1 + 4 + 4 + 8 /* name, n_dims, type, offset */
};

_Static_assert(sizeof(size_t) >= 8, "sizes of files go through size_t");

typedef struct reader {
    ridge_file *file;
    const io_shard *shard;
    int32_t index;
    int64_t at; /* offset in the file of the next byte */
    unsigned char *buffer;
    int64_t begin, end; /* offsets in the file of what the buffer holds; begin <= at <= end */
    char *block;        /* what is left of the block that small allocations are cut from; the file owns it */
    size_t left;
    char *strings; /* the array of strings that is being read: its size is not known before its end */
    int64_t strings_capacity;
    int64_t alignment;
    int64_t first_key; /* keys before this one are earlier shards' */
    io_part *part;
    const char *what, *name; /* what is being read, for messages; NULL name: its number is printed */
    int64_t number;
} reader;

static bool fail(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(const reader *r, const char *format, ...)
{
    char text[512];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (r->name)
        io_fail(RIDGE_ERR_FILE, "%s: %s \"%.200s\": %s", r->shard->path, r->what, r->name, text);
    else if (r->what)
        io_fail(RIDGE_ERR_FILE, "%s: %s %" PRId64 ": %s", r->shard->path, r->what, r->number, text);
    else
        io_fail(RIDGE_ERR_FILE, "%s: %s", r->shard->path, text);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------ bytes */

static int64_t remaining(const reader *r)
{
    return r->shard->bytes - r->at;
}

static bool available(const reader *r, uint64_t bytes, const char *part)
{
    if (bytes <= (uint64_t)remaining(r))
        return true;
    return fail(r, "%s takes %" PRIu64 " bytes from byte %" PRId64 ", but the file ends at %" PRId64, part, bytes,
                r->at, r->shard->bytes);
}

/* Copies the next bytes; `part` names them in the message if the file ends before. Large reads bypass the buffer. */
static bool get(reader *r, void *to, int64_t bytes, const char *part)
{
    unsigned char *memory = to;

    if (!available(r, (uint64_t)bytes, part))
        return false;
    while (bytes > 0) {
        int64_t ready = r->end - r->at;

        if (ready == 0 && bytes >= CHUNK) {
            if (io_read_at(r->shard, r->at, memory, bytes) != RIDGE_OK)
                return false;
            r->at += bytes;
            r->begin = r->end = r->at;
            return true;
        }
        if (ready == 0) {
            ready = remaining(r) < CHUNK ? remaining(r) : CHUNK;
            if (io_read_at(r->shard, r->at, r->buffer, ready) != RIDGE_OK)
                return false;
            r->begin = r->at;
            r->end = r->at + ready;
        }
        ready = ready < bytes ? ready : bytes;
        memcpy(memory, r->buffer + (r->at - r->begin), (size_t)ready);
        r->at += ready;
        memory += ready;
        bytes -= ready;
    }
    return true;
}

static bool get_u32(reader *r, uint32_t *value, const char *part)
{
    return get(r, value, 4, part);
}

static bool get_u64(reader *r, uint64_t *value, const char *part)
{
    return get(r, value, 8, part);
}

/* Memory that the file owns. The caller has checked that so many bytes remain in the file. */
static void *keep(reader *r, int64_t bytes)
{
    size_t size = bytes ? (size_t)bytes : 1;
    void *memory;

    if (size > CHUNK / 4 || r->shard->bytes < CHUNK) {
        memory = io_keep(r->file, size);
    } else {
        if (size > r->left) {
            r->block = io_keep(r->file, CHUNK);
            r->left = r->block ? CHUNK : 0;
        }
        memory = r->block;
        if (memory) {
            r->block += size;
            r->left -= size;
        }
    }
    if (!memory)
        fail(r, "no memory for %" PRId64 " bytes", bytes);
    return memory;
}

/* Reads a key or a tensor's name, NUL-terminated; NULL on error. */
static const char *get_name(reader *r, const char *part)
{
    uint64_t length;
    char *name;

    if (!get_u64(r, &length, part))
        return NULL;
    if (length == 0 || length > NAME_MOST) {
        fail(r, "%s has %" PRIu64 " bytes, must be 1 to %d", part, length, (int)NAME_MOST);
        return NULL;
    }
    if (!available(r, length, part))
        return NULL;
    name = keep(r, (int64_t)length + 1);
    if (!name || !get(r, name, (int64_t)length, part))
        return NULL;
    name[length] = 0;
    if (!io_utf8(name, (size_t)length)) {
        fail(r, "%s is not UTF-8 or holds a NUL", part);
        return NULL;
    }
    return name;
}

/* --------------------------------------------------------------------------------------------------------- metadata */

static const struct {
    const char *name;
    int32_t bytes; /* 0: not a plain value */
} kinds[] = {
    [RIDGE_META_U8] = {"u8", 1},       [RIDGE_META_I8] = {"i8", 1},     [RIDGE_META_U16] = {"u16", 2},
    [RIDGE_META_I16] = {"i16", 2},     [RIDGE_META_U32] = {"u32", 4},   [RIDGE_META_I32] = {"i32", 4},
    [RIDGE_META_F32] = {"f32", 4},     [RIDGE_META_BOOL] = {"bool", 1}, [RIDGE_META_STRING] = {"string", 0},
    [RIDGE_META_ARRAY] = {"array", 0}, [RIDGE_META_U64] = {"u64", 8},   [RIDGE_META_I64] = {"i64", 8},
    [RIDGE_META_F64] = {"f64", 8},
};

static bool known_kind(uint32_t kind)
{
    return kind < sizeof kinds / sizeof kinds[0];
}

/* Grows `strings` to `need` bytes, which the caller has checked to be in the file. */
static bool gather(reader *r, int64_t need)
{
    int64_t capacity = r->strings_capacity < 256 ? 256 : r->strings_capacity;
    char *more;

    if (need <= r->strings_capacity)
        return true;
    while (capacity < need)
        capacity *= 2;
    more = realloc(r->strings, (size_t)capacity);
    if (!more)
        return fail(r, "no memory for %" PRId64 " bytes", capacity);
    r->strings = more;
    r->strings_capacity = capacity;
    return true;
}

static bool get_strings(reader *r, ridge_meta *meta)
{
    int64_t bytes = 0;
    void *data;

    for (int64_t i = 0; i < meta->count; i++) {
        uint64_t length;

        if (!get_u64(r, &length, "the length of a string") || !available(r, length, "a string") ||
            !gather(r, bytes + 8 + (int64_t)length))
            return false;
        memcpy(r->strings + bytes, &length, 8);
        if (!get(r, r->strings + bytes + 8, (int64_t)length, "a string"))
            return false;
        bytes += 8 + (int64_t)length;
    }
    data = keep(r, bytes);
    if (!data)
        return false;
    if (bytes)
        memcpy(data, r->strings, (size_t)bytes);
    meta->data = data;
    meta->bytes = bytes;
    return true;
}

static bool get_plain(reader *r, ridge_meta *meta)
{
    unsigned char *data;

    meta->bytes = meta->count * kinds[meta->element].bytes;
    data = keep(r, meta->bytes);
    if (!data || !get(r, data, meta->bytes, "the value"))
        return false;
    if (meta->element == RIDGE_META_BOOL)
        for (int64_t i = 0; i < meta->bytes; i++)
            if (data[i] > 1)
                return fail(r, "bool %" PRId64 " is %u, must be 0 or 1", i, (unsigned)data[i]);
    meta->data = data;
    return true;
}

static bool check_alignment(reader *r, const ridge_meta *meta)
{
    uint32_t value;

    if (meta->kind != RIDGE_META_U32)
        return fail(r, "is of kind %s, must be u32", kinds[meta->kind].name);
    memcpy(&value, meta->data, sizeof value);
    if (value == 0 || (value & (value - 1)) || value > ALIGNMENT_MOST)
        return fail(r, "is %" PRIu32 ", must be a power of two up to %d", value, (int)ALIGNMENT_MOST);
    r->alignment = value;
    return true;
}

/* split.no, split.count and split.tensors.count, integers of any kind. */
static bool note_part(reader *r, const ridge_meta *meta)
{
    int64_t *const to[] = {&r->part->number, &r->part->count, &r->part->tensors};
    static const char *const key[] = {"split.no", "split.count", "split.tensors.count"};
    const bool is_signed = meta->kind == RIDGE_META_I8 || meta->kind == RIDGE_META_I16 ||
                           meta->kind == RIDGE_META_I32 || meta->kind == RIDGE_META_I64;

    for (int i = 0; i < 3; i++) {
        uint64_t value = 0;

        if (strcmp(meta->key, key[i]) != 0)
            continue;
        if (meta->kind >= sizeof kinds / sizeof kinds[0] || meta->kind == RIDGE_META_F32 ||
            meta->kind == RIDGE_META_F64 || meta->kind == RIDGE_META_BOOL || !kinds[meta->kind].bytes)
            return fail(r, "is of kind %s, must be an integer", kinds[meta->kind].name);
        memcpy(&value, meta->data, (size_t)meta->bytes);
        if (value > INT32_MAX || (is_signed && value >> (8 * meta->bytes - 1)))
            return fail(r, "is negative or above 2^31 - 1");
        *to[i] = (int64_t)value;
    }
    return true;
}

static bool get_meta(reader *r)
{
    ridge_meta meta = {.count = 1};
    uint64_t count = 1;
    int64_t least, there;

    meta.key = get_name(r, "the key");
    if (!meta.key)
        return false;
    r->name = meta.key;
    if (!get_u32(r, &meta.kind, "the kind"))
        return false;
    meta.element = meta.kind;
    if (meta.kind == RIDGE_META_ARRAY &&
        (!get_u32(r, &meta.element, "the kind of its elements") || !get_u64(r, &count, "the count of its elements")))
        return false;
    if (meta.kind == RIDGE_META_ARRAY && meta.element == RIDGE_META_ARRAY)
        return fail(r, "is an array of arrays");
    if (!known_kind(meta.element))
        return fail(r, "there is no kind %" PRIu32, meta.element);
    least = meta.element == RIDGE_META_STRING ? 8 : kinds[meta.element].bytes;
    if (count > (uint64_t)(remaining(r) / least))
        return fail(r, "%" PRIu64 " values of kind %s do not fit into the %" PRId64 " bytes that follow", count,
                    kinds[meta.element].name, remaining(r));
    meta.count = (int64_t)count;
    if (!(meta.element == RIDGE_META_STRING ? get_strings(r, &meta) : get_plain(r, &meta)))
        return false;
    if ((strcmp(meta.key, "general.alignment") == 0 && !check_alignment(r, &meta)) || !note_part(r, &meta))
        return false;
    there = io_names_find(&r->file->keys, meta.key);
    return (there >= 0 && there < r->first_key) || io_add_meta(r->file, &meta) == RIDGE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

/* `at`, rounded up to the alignment. Offsets in a file are far from overflow: see io_parse_gguf. */
static int64_t padded(const reader *r, int64_t at)
{
    return (at + r->alignment - 1) & -r->alignment;
}

static bool get_shape(reader *r, ridge_entry *t)
{
    uint32_t rank;

    if (!get_u32(r, &rank, "the number of dimensions"))
        return false;
    if (rank > DIMENSIONS_MOST)
        return fail(r, "has %" PRIu32 " dimensions, at most %d are allowed", rank, (int)DIMENSIONS_MOST);
    t->rank = (int32_t)rank;
    t->elements = 1;
    for (int32_t i = 0; i < t->rank; i++) {
        int64_t size;

        if (!get(r, &size, 8, "a dimension"))
            return false;
        if (size < 1)
            return fail(r, "dimension %d is %" PRId64 ", must be at least 1", (int)i, size);
        if (!io_multiply(t->elements, size, &t->elements))
            return fail(r, "dimension %d is %" PRId64 ": the number of elements overflows", (int)i, size);
        t->shape[t->rank - 1 - i] = size;
    }
    return true;
}

static bool get_tensor(reader *r, int64_t *next)
{
    ridge_entry t = {.shard = r->index};
    const ridge_type_info *info;
    uint64_t offset;
    uint32_t id;
    int64_t row;

    t.name = get_name(r, "the name");
    if (!t.name)
        return false;
    r->name = t.name;
    if (!get_shape(r, &t) || !get_u32(r, &id, "the type") || !get_u64(r, &offset, "the offset"))
        return false;
    t.type = io_type_of_gguf(id);
    info = ridge_type_query(t.type);
    if (!info)
        return fail(r, "there is no type %" PRIu32, id);
    row = t.rank ? t.shape[t.rank - 1] : 1;
    if (row % info->block)
        return fail(r, "rows of %" PRId64 " elements are not whole blocks of %s (%d)", row, info->name,
                    (int)info->block);
    if (!io_multiply(t.elements / info->block, info->bytes, &t.bytes))
        return fail(r, "the size of %" PRId64 " elements of type %s overflows", t.elements, info->name);
    if (offset != (uint64_t)*next)
        return fail(r, "is at offset %" PRIu64 ", must be at %" PRId64 ", where the one before it ends", offset, *next);
    if (t.bytes > r->shard->bytes - *next) /* checked again, with the header's size, when that is known */
        return fail(r, "%" PRId64 " bytes at offset %" PRId64 " do not fit into a file of %" PRId64, t.bytes, *next,
                    r->shard->bytes);
    t.offset = *next;
    *next = padded(r, t.offset + t.bytes);
    return io_add_tensor(r->file, &t) == RIDGE_OK;
}

/* Makes offsets absolute; all data must be there, and nothing after it. */
static bool place_tensors(reader *r, int64_t first)
{
    int64_t data = padded(r, r->at), end = r->at;

    for (int64_t i = first; i < r->file->tensors; i++) {
        ridge_entry *t = &r->file->tensor[i];

        t->offset += data;
        end = t->offset + t->bytes;
        r->what = "tensor";
        r->name = t->name;
        if (end > r->shard->bytes)
            return fail(r, "its data ends at byte %" PRId64 ", but the file at %" PRId64, end, r->shard->bytes);
    }
    r->what = r->name = NULL;
    if (r->shard->bytes > padded(r, end))
        return fail(r, "%" PRId64 " bytes follow the end of the data at byte %" PRId64, r->shard->bytes - end, end);
    return true;
}

/* --------------------------------------------------------------------------------------------------------- the file */

static bool get_counts(reader *r, uint64_t *tensors, uint64_t *entries)
{
    char magic[4];
    uint32_t version;

    if (!get(r, magic, 4, "the magic number"))
        return false;
    if (memcmp(magic, "GGUF", 4) != 0)
        return fail(r, "does not begin with \"GGUF\"");
    if (!get_u32(r, &version, "the version"))
        return false;
    if (version != 0 && (version & 0xffff) == 0)
        return fail(r, "a big-endian GGUF file (version %#" PRIx32 "); only little-endian ones are read", version);
    if (version != 2 && version != 3)
        return fail(r, "GGUF version %" PRIu32 "; versions 2 and 3 are read", version);
    if (!get_u64(r, tensors, "the number of tensors") || !get_u64(r, entries, "the number of metadata entries"))
        return false;
    if (*tensors > (uint64_t)remaining(r) / TENSOR_LEAST)
        return fail(r, "%" PRIu64 " tensors do not fit into the %" PRId64 " bytes that follow", *tensors, remaining(r));
    if (*entries > (uint64_t)remaining(r) / ENTRY_LEAST)
        return fail(r, "%" PRIu64 " metadata entries do not fit into the %" PRId64 " bytes that follow", *entries,
                    remaining(r));
    return true;
}

static bool parse(reader *r)
{
    int64_t first = r->file->tensors, next = 0;
    uint64_t tensors, entries;

    if (!get_counts(r, &tensors, &entries))
        return false;
    for (uint64_t i = 0; i < entries; i++) {
        r->what = "metadata";
        r->name = NULL;
        r->number = (int64_t)i;
        if (!get_meta(r))
            return false;
    }
    for (uint64_t i = 0; i < tensors; i++) {
        r->what = "tensor";
        r->name = NULL;
        r->number = (int64_t)i;
        if (!get_tensor(r, &next))
            return false;
    }
    r->what = r->name = NULL;
    return place_tensors(r, first);
}

ridge_status io_parse_gguf(ridge_file *file, int32_t index, io_part *part)
{
    reader r = {.file = file,
                .shard = &file->shard[index],
                .index = index,
                .alignment = DEFAULT_ALIGNMENT,
                .first_key = file->metas,
                .part = part};
    bool good;

    *part = (io_part){0, 0, -1};

    if (r.shard->bytes > INT64_MAX / 4) /* so that an offset, a size and padding never add up to an overflow */
        good = fail(&r, "a file of %" PRId64 " bytes", r.shard->bytes);
    else if (!(r.buffer = malloc(CHUNK)))
        good = fail(&r, "no memory for %d bytes", (int)CHUNK);
    else
        good = parse(&r);
    free(r.buffer);
    free(r.strings);
    return good ? RIDGE_OK : RIDGE_ERR_FILE;
}

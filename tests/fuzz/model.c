/* model.c: checkpoints made of choices. Headers are built right, from numbers that matter to the readers and to the
 * plan of `ridge quantize`, and then a choice may spoil a number, a byte, or the end of a file. */
#include "model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ridge_io.h"

enum { TENSORS_MOST = 6, DATA_MOST = 1 << 16 };

/* Text or bytes that grow. */
typedef struct text {
    char *at;
    size_t length, capacity;
} text;

static void add(text *t, const void *from, size_t bytes)
{
    if (t->length + bytes + 1 > t->capacity) {
        t->capacity = 2 * (t->length + bytes + 1);
        t->at = realloc(t->at, t->capacity);
        if (!t->at)
            abort();
    }
    if (bytes)
        memcpy(t->at + t->length, from, bytes);
    t->length += bytes;
    t->at[t->length] = 0;
}

static void print(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void print(text *t, const char *format, ...)
{
    char part[1024];
    va_list list;
    int length;

    va_start(list, format);
    length = vsnprintf(part, sizeof part, format, list);
    va_end(list);
    add(t, part, (size_t)length);
}

static void number(text *t, uint64_t value, int bytes)
{
    add(t, &value, (size_t)bytes);
}

static unsigned byte(source *s)
{
    if (s->at < s->end)
        return *s->at++;
    s->state = s->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(s->state >> 56);
}

unsigned pick(source *s, unsigned n)
{
    return byte(s) % n;
}

static bool rarely(source *s, unsigned n)
{
    return pick(s, n) == n - 1;
}

void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *to = fopen(path, "wb");

    if (!to) /* a name that the file system does not take */
        return;
    if (bytes)
        (void)!fwrite(data, 1, bytes, to);
    fclose(to);
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

typedef struct tensor {
    char name[80];
    uint32_t type;
    int rank;
    int64_t shape[5], offset;
    size_t bytes;
} tensor;

static const char *const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                    "model.layers.0.self_attn.q_proj.weight_scale_inv",
                                    "model.layers.0.self_attn.q_proj.weight_scale",
                                    "model.layers.0.self_attn.q_proj.input_scale",
                                    "model.layers.0.mlp.gate.weight",
                                    "m.mlp.experts.gate_up_proj",
                                    "m.mlp.experts.down_proj",
                                    "m.mlp.experts.gate_up_proj_scale_inv",
                                    "m.mlp.experts.down_proj_scale",
                                    "lm_head.weight",
                                    "model.embed_tokens.weight",
                                    "blk.0.ffn_up_exps.weight",
                                    "blk.0.ffn_gate.weight",
                                    "token_embd.weight",
                                    "output_norm.weight",
                                    "a",
                                    "",
                                    "x\x1b[31m\nw.weight",
                                    "\xc2\x9b.weight",
                                    "__metadata__"};
enum { NAMES = (int)(sizeof names / sizeof names[0]) };

static const int64_t sizes[] = {1, 2, 3, 8, 16, 32, 48, 64, 96, 127, 128, 129, 130, 144, 160, 256, 257, 300, 512, 0};
enum { SIZES = (int)(sizeof sizes / sizeof sizes[0]) };
static const uint32_t common[] = {RIDGE_TYPE_F32,     RIDGE_TYPE_BF16,    RIDGE_TYPE_F16,  RIDGE_TYPE_F8_E4M3,
                                  RIDGE_TYPE_F8_E5M2, RIDGE_TYPE_F8_E8M0, RIDGE_TYPE_Q8_0, RIDGE_TYPE_Q4_K};

static const char *spelled(uint32_t type)
{
    const ridge_type_info *info = ridge_type_query(type);

    return info ? info->name : "NONE";
}

static void choose(source *s, tensor *t, bool gguf, uint32_t *used)
{
    const ridge_type_info *info;
    int64_t elements = 1;
    unsigned name = pick(s, NAMES);

    *t = (tensor){.rank = (int)pick(s, 8)};
    t->rank = t->rank > 4 ? 2 : t->rank;
    while (*used >> name & 1 && !rarely(s, 16))
        name = (name + 1) % NAMES;
    *used |= 1u << name;
    snprintf(t->name, sizeof t->name, "%s", names[name]);
    if (rarely(s, 32) && t->name[0])
        t->name[strlen(t->name) / 2] = (char)byte(s);
    t->type = pick(s, 4) ? common[pick(s, 8)] : 1 + pick(s, RIDGE_TYPES - 1);
    if (gguf && ridge_type_query(t->type)->gguf < 0)
        t->type = RIDGE_TYPE_BF16;
    info = ridge_type_query(t->type);
    for (int i = 0; i < t->rank; i++) {
        t->shape[i] = sizes[pick(s, SIZES - gguf)]; /* readers of GGUF refuse 0 */
        if (elements * t->shape[i] * info->bytes / info->block > DATA_MOST)
            t->shape[i] = 1;
        if (i == t->rank - 1 && info->block > 1)
            t->shape[i] = elements * info->bytes <= DATA_MOST ? info->block : 0;
        elements *= t->shape[i];
    }
    t->bytes = (size_t)(elements / info->block * info->bytes);
    if (rarely(s, 128) && t->rank)
        t->shape[0] = (int64_t)(UINT64_C(1) << (8 * pick(s, 8) + 7));
}

/* Finite, special and random numbers. */
static void fill(source *s, text *data, size_t bytes)
{
    static const uint32_t pattern[] = {0,          0x3f803f80, 0x7fc07fc0, 0xff80ff80, 0x7f7f7f7f,
                                       0x00010001, 0x80000000, 0x7bff7bff, 0x80808080, 0x3c003c00};
    uint32_t value = pattern[pick(s, 10)], step = pick(s, 3) ? 2 * byte(s) + 1 : 0;

    uint32_t part[256];

    for (size_t i = 0; i < bytes; i += sizeof part) {
        for (size_t k = 0; k < 256; k++, value = value * (step ? 1664525u : 1) + step)
            part[k] = value;
        add(data, part, bytes - i < sizeof part ? bytes - i : sizeof part);
    }
}

/* -------------------------------------------------------------------------------------------------------------- files
 */

/* A number that is wrong now and then. */
static int64_t spoil(source *s, int64_t value)
{
    static const int64_t by[] = {1, -1, 32, INT64_MAX, INT64_MIN, -1000000, (int64_t)1 << 32};

    return !rarely(s, 200) ? value : (int64_t)((uint64_t)value + (uint64_t)by[pick(s, 7)]);
}

/* A byte changed, removed or added, the end cut off. */
static void damage(source *s, text *file)
{
    const size_t at = file->length ? (byte(s) << 8 | byte(s)) % file->length : 0;
    const char c = (char)byte(s);

    if (!file->length)
        return;
    switch (pick(s, 4)) {
    case 0:
        file->at[at] = c;
        break;
    case 1:
        memmove(file->at + at, file->at + at + 1, file->length - at);
        file->length--;
        break;
    case 2:
        add(file, &c, 1);
        break;
    default:
        file->length = at;
    }
}

static void write_out(source *s, const char *folder, const char *name, text *file)
{
    char path[512];

    if (rarely(s, 24))
        damage(s, file);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    put_file(path, file->at, file->length);
    free(file->at);
    *file = (text){0};
}

static void escaped(text *t, const char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || *name == '"' || *name == '\\')
            print(t, "\\u%04x", (unsigned char)*name);
        else
            add(t, name, 1);
}

/* Adds its names to the index. */
static void make_safetensors(source *s, const char *folder, const char *name, text *index, uint32_t *used)
{
    const int count = 1 + (int)pick(s, TENSORS_MOST);
    text header = {0}, data = {0}, file = {0};
    tensor t;

    print(&header, "{");
    if (pick(s, 3) == 0)
        print(&header, "\"__metadata__\":{\"format\":\"pt\",\"k\\u001b\":\"v\\u009b\"}%s", count ? "," : "");
    for (int i = 0; i < count; i++) {
        choose(s, &t, false, used);
        if (!ridge_type_query(t.type)->safetensors)
            t.type = RIDGE_TYPE_I8;
        t.bytes = (size_t)ridge_type_query(t.type)->bytes;
        for (int k = 0; k < t.rank; k++)
            t.bytes *= t.shape[k] <= DATA_MOST ? (size_t)t.shape[k] : 1;
        t.bytes = t.bytes / (size_t)ridge_type_query(t.type)->block;
        t.bytes = t.bytes > 4 * DATA_MOST ? 0 : t.bytes;
        print(&header, "%s\"", i ? "," : "");
        escaped(&header, t.name);
        print(&header, "\":{\"dtype\":\"%s\",\"shape\":[", spelled(t.type));
        for (int k = 0; k < t.rank; k++)
            print(&header, "%s%" PRId64, k ? "," : "", spoil(s, t.shape[k]));
        print(&header, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", spoil(s, (int64_t)data.length),
              spoil(s, (int64_t)(data.length + t.bytes)));
        fill(s, &data, t.bytes);
        print(index, "%s\"", index->length > 20 ? "," : "");
        escaped(index, t.name);
        print(index, "\":\"%s\"", name);
    }
    print(&header, "}");
    while (header.length % 8)
        print(&header, " ");
    number(&file, (uint64_t)spoil(s, (int64_t)header.length), 8);
    add(&file, header.at, header.length);
    add(&file, data.at, data.length);
    free(header.at);
    free(data.at);
    write_out(s, folder, name, &file);
}

static void put_string(text *t, const char *string)
{
    number(t, strlen(string), 8);
    add(t, string, strlen(string));
}

static int put_metas(source *s, text *t, int part, int parts, int64_t tensors)
{
    static const char *const key[] = {"general.architecture", "general.name", "general.file_type", "general.alignment",
                                      "k\x1b"};
    static const char *const split[] = {"split.no", "split.count", "split.tensors.count"};
    static const uint8_t kinds[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12};
    const int64_t value[] = {part, parts, tensors};
    const int others = (int)pick(s, 4), first = (int)pick(s, 5);

    for (int i = 0; i < others; i++) {
        const bool alignment = (first + i) % 5 == 3;
        const unsigned kind = rarely(s, 40) ? pick(s, 14) : alignment ? RIDGE_META_U32 : (unsigned)kinds[pick(s, 12)];

        put_string(t, key[(first + i) % 5]);
        number(t, kind, 4);
        if (kind == RIDGE_META_STRING) {
            put_string(t, pick(s, 2) ? "llama" : "\x9b\x1b[2J\xff\n");
        } else if (kind == RIDGE_META_ARRAY) {
            number(t, RIDGE_META_STRING, 4);
            number(t, 2, 8);
            put_string(t, "a");
            put_string(t, "\xc2\x9b");
        } else {
            static const int bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8, 0};

            number(t, kind == RIDGE_META_BOOL ? 1 : alignment ? 32u << pick(s, 3) / 2 : byte(s), bytes[kind]);
        }
    }
    for (int i = 0; i < 3 && parts > 1; i++) {
        put_string(t, split[i]);
        number(t, i < 2 ? RIDGE_META_U16 : RIDGE_META_I32, 4);
        number(t, (uint64_t)spoil(s, value[i]), i < 2 ? 2 : 4);
    }
    return others + (parts > 1 ? 3 : 0);
}

static void make_gguf(source *s, const char *folder, const char *name, int part, int parts)
{
    const int count = parts > 1 ? 2 : (int)pick(s, TENSORS_MOST + 1);
    text metas = {0}, tensors = {0}, data = {0}, file = {0};
    uint32_t used = 0;
    const int keys = put_metas(s, &metas, part, parts, (int64_t)parts * count);

    for (int i = 0; i < count; i++) {
        tensor t;

        choose(s, &t, true, &used);
        if (parts > 1)
            t.name[0] = (char)('a' + part * 8 + i);
        put_string(&tensors, t.name);
        number(&tensors, (uint64_t)t.rank, 4);
        for (int k = t.rank - 1; k >= 0; k--)
            number(&tensors, (uint64_t)spoil(s, t.shape[k]), 8);
        number(&tensors, (uint64_t)ridge_type_query(t.type)->gguf, 4);
        number(&tensors, (uint64_t)spoil(s, (int64_t)data.length), 8);
        fill(s, &data, t.bytes);
        while (data.length % 32)
            add(&data, "", 1);
    }
    print(&file, "GGUF");
    number(&file, 2 + pick(s, 2), 4);
    number(&file, (uint64_t)spoil(s, count), 8);
    number(&file, (uint64_t)spoil(s, keys), 8);
    add(&file, metas.at, metas.length);
    add(&file, tensors.at, tensors.length);
    while (file.length % 32)
        add(&file, "", 1);
    add(&file, data.at, data.length);
    free(metas.at);
    free(tensors.at);
    free(data.at);
    write_out(s, folder, name, &file);
}

/* ------------------------------------------------------------------------------------------------------- what is
 * beside */

static void make_config(source *s, const char *folder)
{
    static const char *const member[] = {"\"model_type\": \"llama\"",
                                         "\"torch_dtype\" : \"float32\"",
                                         "\"dtype\":null",
                                         "\"quantization_config\": {\"quant_method\": \"fp8\", \"x\": [1, \"}\"]}",
                                         "\"eps\": 1e-5",
                                         "\"a\\u0062\": {\"c\": [0.10, -0.0, {}]}",
                                         "\"compression_config\":[]",
                                         "\"model_type\": \"\\u001b[31m\""};
    text file = {0};
    const int count = (int)pick(s, 5), first = (int)pick(s, 8);

    print(&file, "%s{%s", pick(s, 8) ? "" : " \n", pick(s, 2) ? "\n  " : "");
    for (int i = 0; i < count; i++)
        print(&file, "%s%s", i ? ", " : "", member[(first + i + rarely(s, 16)) % 8]);
    print(&file, "%s}%s", pick(s, 2) ? "\n" : "", pick(s, 2) ? "\n" : "");
    if (rarely(s, 20))
        print(&file, "[]");
    write_out(s, folder, "config.json", &file);
}

static void make_others(source *s, const char *folder)
{
    char path[512], from[512];

    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (pick(s, 2))
        put_file(path, "{}", 2);
    snprintf(from, sizeof from, "%s/link", folder);
    if (pick(s, 4) == 0)
        (void)!symlink(pick(s, 2) ? "tokenizer.json" : "/etc/hostname", from);
    snprintf(path, sizeof path, "%s/1_Pooling", folder);
    if (pick(s, 4) == 0 && mkdir(path, 0777) == 0) {
        snprintf(path, sizeof path, "%s/1_Pooling/config.json", folder);
        put_file(path, "{}", 2);
    }
    snprintf(path, sizeof path, "%s/pipe", folder);
    if (rarely(s, 16))
        (void)!mkfifo(path, 0666);
}

void make_model(source *s, const char *folder, char *path, size_t size)
{
    const unsigned kind = pick(s, 6), parts = 1 + pick(s, 3);
    text index = {0};
    uint32_t used = 0;
    char name[64];

    print(&index, "{\"weight_map\":{");
    for (unsigned i = 0; i < parts; i++) {
        snprintf(name, sizeof name, "x-%05u-of-%05u.gguf", i + 1, parts);
        if (kind == 0 || kind == 1)
            make_gguf(s, folder, name, (int)i, (int)parts);
        else if (kind == 2 || kind == 3)
            make_safetensors(s, folder,
                             i == 0   ? "1.safetensors"
                             : i == 1 ? "2.safetensors"
                                      : "3.safetensors",
                             &index, &used);
        else if (i == 0)
            make_safetensors(s, folder, "model.safetensors", &index, &used);
    }
    print(&index, "}}");
    snprintf(path, size, "%s", folder);
    if (kind == 0)
        snprintf(path, size, "%s/x-%05u-of-%05u.gguf", folder, 1 + pick(s, parts), parts);
    if (kind == 2)
        snprintf(path, size, "%s/model.safetensors.index.json", folder);
    if (kind == 4)
        snprintf(path, size, "%s/model.safetensors", folder);
    if (kind == 2 || kind == 3)
        write_out(s, folder, "model.safetensors.index.json", &index);
    free(index.at);
    if (pick(s, 2))
        make_config(s, folder);
    make_others(s, folder);
}

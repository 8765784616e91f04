/* config.c: writes the JSON files beside the weights: the index of the shards, and config.json with what loaders must
 * know about the quantisation. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quantize.h"
#include "src/file.h"

static bool no_memory(void)
{
    line_print(stderr, "ridge quantize: out of memory");
    return false;
}

/* Writes a new file, complete and synced, or none: the index from its tree, config.json from its text. */
static bool write_new(const char *path, const json_t *json, const char *text)
{
    FILE *to = fopen(path, "wx");
    bool good = to &&
                (json ? json_dumpf(json, to, JSON_INDENT(2)) == 0 && fputc('\n', to) != EOF : fputs(text, to) >= 0) &&
                fflush(to) == 0 && fsync(fileno(to)) == 0;
    const int error = errno;

    if (to && fclose(to) != 0)
        good = false;
    if (!good) {
        line_print(stderr, "ridge quantize: %s: writing: %s", path, strerror(error));
        if (to)
            unlink(path);
    }
    return good;
}

bool config_index(const plan *p, const char *folder, char *const *shard)
{
    char *path = path_join(folder, "model.safetensors.index.json");
    json_t *map = json_object(), *all;
    bool good;

    for (int64_t i = 0; i < p->count; i++) {
        const char *name = shard[p->at[i].in->shard];

        if (p->at[i].action == ACTION_DROP)
            continue;
        json_object_set_new(map, p->at[i].in->name, json_string(name));
        if (p->at[i].scale_name)
            json_object_set_new(map, p->at[i].scale_name, json_string(name));
    }
    all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->bytes_out, "weight_map", map);
    good = path && all && write_new(path, all, NULL);
    json_decref(all);
    free(path);
    return good;
}

/* The modules, as loaders name them, of linear layers that were not quantised. The head is listed even where the file
 * does not have it: tied to the embedding, it must not be taken for FP8. */
static json_t *kept_modules(const plan *p)
{
    json_t *list = json_array();

    json_array_append_new(list, json_string("lm_head"));
    for (int64_t i = 0; i < p->count; i++) {
        const plan_tensor *t = &p->at[i];
        const size_t length = strlen(t->in->name);
        const bool linear = t->in->rank == 2 && length > 7 && path_ends(t->in->name, ".weight");
        const bool experts = t->in->rank == 3 && path_ends(t->in->name, "experts.down_proj");

        if ((!linear && !experts) || t->type == RIDGE_TYPE_F8_E4M3 || strcmp(t->in->name, "lm_head.weight") == 0 ||
            (t->why && strcmp(t->why, "embedding") == 0))
            continue;
        json_array_append_new(list, json_stringn(t->in->name, length - strlen(linear ? ".weight" : ".down_proj")));
    }
    return list;
}

/* fp8-block128: the fields of DeepSeek's checkpoints. fp8-row: compressed-tensors' description of FP8 weights with a
 * scale per output channel and activations quantised per token. */
static json_t *quantization_config(const plan *p)
{
    if (p->o->to == TO_FP8_BLOCK32)
        return json_pack("{s:s, s:s, s:s, s:s, s:[i,i], s:o, s:o}", "activation_scheme", "dynamic", "fmt", "e4m3",
                         "scale_fmt", "ue8m0", "quant_method", "fp8", "weight_block_size", 32, 32,
                         "modules_to_not_convert", kept_modules(p), "ignored_layers", kept_modules(p));
    if (p->o->to == TO_FP8_BLOCK128) /* loaders know the list under two names */
        return json_pack("{s:s, s:s, s:s, s:[i,i], s:o, s:o}", "activation_scheme", "dynamic", "fmt", "e4m3",
                         "quant_method", "fp8", "weight_block_size", 128, 128, "modules_to_not_convert",
                         kept_modules(p), "ignored_layers", kept_modules(p));
    return json_pack("{s:s, s:s, s:s, s:n, s:o, s:{s:{s:[s], s:s, s:{s:i, s:s, s:s, s:b, s:b}, "
                     "s:{s:i, s:s, s:s, s:b, s:b}}}}",
                     "quant_method", "compressed-tensors", "format", "float-quantized", "quantization_status",
                     "compressed", "kv_cache_scheme", "ignore", kept_modules(p), "config_groups", "group_0", "targets",
                     "Linear", "format", "float-quantized", "weights", "num_bits", 8, "type", "float", "strategy",
                     "channel", "symmetric", 1, "dynamic", 0, "input_activations", "num_bits", 8, "type", "float",
                     "strategy", "token", "symmetric", 1, "dynamic", 1);
}

enum { CONFIG_MOST = 4 << 20 };

/* The file's text; NULL with the reason in *why, which is NULL where there is no such file. */
static char *read_text(const plan *p, const char *path, const char **why)
{
    FILE *from;
    char *text;
    size_t length;

    *why = NULL;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return NULL;
    if (!link_stays(p->folder, path)) {
        *why = "is a link that leads out of the model's directory";
        return NULL;
    }
    from = ridge_open_regular(path, why);
    if (!from)
        return NULL;
    text = malloc(CONFIG_MOST + 2); /* what is read, and a zero behind it */
    length = text ? fread(text, 1, CONFIG_MOST + 1, from) : 0;
    *why = !text                  ? "out of memory"
           : ferror(from)         ? strerror(errno)
           : length > CONFIG_MOST ? "is larger than 4 MiB"
                                  : NULL;
    if (!*why && memchr(text, 0, length))
        *why = "is not text";
    fclose(from);
    if (*why) {
        free(text);
        return NULL;
    }
    text[length] = 0;
    return text;
}

bool config_load(plan *p)
{
    char *path = path_join(p->folder, "config.json"), *text;
    const char *why = NULL;
    json_error_t error;
    json_t *config;
    bool good = path != NULL;

    text = path ? read_text(p, path, &why) : NULL;
    config = text ? json_loads(text, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (why)
        line_print(stderr, "ridge quantize: %s: %s", path, why);
    else if (text && !config)
        line_print(stderr, "ridge quantize: %s:%d: %s", path, error.line, *error.text ? error.text : "out of memory");
    else if (text && !json_is_object(config))
        line_print(stderr, "ridge quantize: %s: not an object", path);
    else
        p->config = text;
    good = good && p->config == text && !why;
    if (!good)
        free(text);
    json_decref(config);
    free(path);
    return good;
}

char *config_string(const plan *p, const char *key, const char *inner)
{
    json_t *config = p->config ? json_loads(p->config, 0, NULL) : NULL, *at = json_object_get(config, key);
    const char *text = json_string_value(inner ? json_object_get(at, inner) : at);
    char *copy = text ? strdup(text) : NULL;

    json_decref(config);
    return copy;
}

/* Sets a member to a value, which is freed; nested lines are indented as in the file. */
static bool set(char **text, const char *key, json_t *value)
{
    char *dump = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY), *lines = NULL;
    size_t used = 0, size = 1;
    bool good;

    for (const char *c = dump; c && *c; c++)
        size += *c == '\n' ? 3 : 1;
    lines = dump ? malloc(size) : NULL;
    for (const char *c = dump; lines && *c; c++) {
        lines[used++] = *c;
        if (*c == '\n') {
            lines[used++] = ' ';
            lines[used++] = ' ';
        }
    }
    if (lines)
        lines[used] = 0;
    good = lines && json_edit(text, key, lines);
    free(lines);
    free(dump);
    json_decref(value);
    return good;
}

static bool has_fp8(const plan *p)
{
    for (int64_t i = 0; i < p->count; i++)
        if (is_fp8(p->at[i].in->type))
            return true;
    return false;
}

/* The dtype is changed where the configuration has one: loaders take it as the default for the weights. */
static bool edit(const plan *p, char **text)
{
    static const char *const dtypes[] = {"torch_dtype", "dtype"};
    bool good = true;

    if (p->packed && !json_edit(text, "expert_dtype", NULL)) /* DeepSeek-V4: what is no longer true of its experts */
        return no_memory();
    if (to_fp8(p->o->to) && p->packed && has_fp8(p))
        return true; /* the others' description holds for them now */
    if (to_fp8(p->o->to))
        return !p->quantised || set(text, "quantization_config", quantization_config(p));
    for (int i = 0; i < 2 && good; i++) {
        char *dtype = config_string(p, dtypes[i], NULL);

        good = !dtype || set(text, dtypes[i], json_string(p->o->to == TO_BF16 ? "bfloat16" : "float16"));
        free(dtype);
    }
    if (p->dropped) /* no longer FP8 */
        good = good && json_edit(text, "quantization_config", NULL) && json_edit(text, "compression_config", NULL);
    return good;
}

static bool write_config(const plan *p, const char *path)
{
    char *text = strdup(p->config);
    bool good = (text && edit(p, &text)) || no_memory();

    good = good && write_new(path, NULL, text);
    free(text);
    return good;
}

bool config_write(const plan *p, const char *folder)
{
    char *path = p->config ? path_join(folder, "config.json") : NULL;
    const bool good = !p->config || (path && write_config(p, path));

    free(path);
    return good;
}

bool config_beside(const plan *p, const char *out, char **made)
{
    const char *slash = strrchr(out, '/');
    char *folder = slash ? strndup(out, slash == out ? 1 : (size_t)(slash - out)) : strdup(".");
    char *path = folder ? path_join(folder, "config.json") : NULL;
    bool good = path || no_memory();

    *made = NULL;
    if (good && p->format == RIDGE_SAFETENSORS && p->config && !same_file(p->folder, folder)) {
        if (access(path, F_OK) == 0) {
            line_print(stderr, "ridge quantize: %s is there and stays as it is", path);
        } else {
            good = write_config(p, path);
            *made = good ? path : NULL;
        }
    }
    free(folder);
    if (!*made)
        free(path);
    return good;
}

bool config_architecture(const plan *p, ridge_writer *w)
{
    char *type = config_string(p, "model_type", NULL);
    const bool good = !type || ridge_writer_meta_string(w, "general.architecture", type) == RIDGE_OK;

    if (!good)
        line_print(stderr, "ridge quantize: %s", ridge_io_error());
    free(type);
    return good;
}

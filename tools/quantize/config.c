/* config.c: writes the JSON files beside the weights: the index of the shards, and config.json with what loaders must
 * know about the quantisation. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quantize.h"

char *path_join(const char *folder, const char *name)
{
    char *path;

    if (asprintf(&path, "%s/%s", folder, name) >= 0)
        return path;
    fprintf(stderr, "ridge quantize: out of memory\n");
    return NULL;
}

/* Writes a new file, complete and synced, or none. */
static bool write_json(const char *path, json_t *json)
{
    FILE *to = fopen(path, "wx");
    bool good = to && json_dumpf(json, to, JSON_INDENT(2)) == 0 && fputc('\n', to) != EOF && fflush(to) == 0 &&
                fsync(fileno(to)) == 0;
    if (to && fclose(to) != 0)
        good = false;
    if (!good) {
        fprintf(stderr, "ridge quantize: %s: writing: %s\n", path, strerror(errno));
        if (to)
            unlink(path);
    }
    return good;
}

bool config_index(const plan *p, const char *folder)
{
    char *path = path_join(folder, "model.safetensors.index.json");
    json_t *map = json_object(), *all;
    bool good;

    for (int64_t i = 0; i < p->count; i++) {
        const char *shard = strrchr(ridge_file_path(p->file, p->at[i].in->shard), '/');
        const char *name = shard ? shard + 1 : ridge_file_path(p->file, p->at[i].in->shard);

        json_object_set_new(map, p->at[i].in->name, json_string(name));
        if (p->at[i].scale_name)
            json_object_set_new(map, p->at[i].scale_name, json_string(name));
    }
    all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->bytes_out, "weight_map", map);
    good = path && all && write_json(path, all);
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
        size_t length = strlen(t->in->name);

        if (t->in->rank != 2 || t->type == RIDGE_TYPE_F8_E4M3 || length < 8 ||
            strcmp(t->in->name + length - 7, ".weight") || strcmp(t->in->name, "lm_head.weight") == 0 ||
            (t->why && strcmp(t->why, "embedding") == 0))
            continue;
        json_array_append_new(list, json_stringn(t->in->name, length - 7));
    }
    return list;
}

/* fp8-block128: the fields of DeepSeek's checkpoints. fp8-row: compressed-tensors' description of FP8 weights with a
 * scale per output channel and activations quantised per token. */
static json_t *quantization_config(const plan *p)
{
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

static json_t *load_config(const plan *p, bool *broken)
{
    char *path = path_join(p->folder, "config.json");
    json_error_t error;
    json_t *config = NULL;

    *broken = path == NULL;
    if (path && access(path, F_OK) == 0) {
        config = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
        if (!json_is_object(config)) {
            fprintf(stderr, "ridge quantize: %s:%d: %s\n", path, config ? 1 : error.line,
                    config        ? "not an object"
                    : *error.text ? error.text
                                  : "out of memory");
            json_decref(config);
            config = NULL;
            *broken = true;
        }
    }
    free(path);
    return config;
}

/* Changes a dtype that the configuration has: loaders take it as the default for the weights. */
static void set_dtype(json_t *config, const char *key, const char *name)
{
    if (json_object_get(config, key))
        json_object_set_new(config, key, json_string(name));
}

bool config_write(const plan *p, const char *folder)
{
    char *path = path_join(folder, "config.json");
    bool broken, good = path != NULL;
    json_t *config = load_config(p, &broken);

    if (config && p->o->to <= TO_FP8_ROW && p->quantised)
        json_object_set_new(config, "quantization_config", quantization_config(p));
    if (config && (p->o->to == TO_BF16 || p->o->to == TO_F16)) {
        set_dtype(config, "torch_dtype", p->o->to == TO_BF16 ? "bfloat16" : "float16");
        set_dtype(config, "dtype", p->o->to == TO_BF16 ? "bfloat16" : "float16");
    }
    if (good && config)
        good = write_json(path, config);
    json_decref(config);
    free(path);
    return good && !broken;
}

bool config_beside(const plan *p, const char *out)
{
    const char *slash = strrchr(out, '/');
    char *folder = slash ? strndup(out, slash == out ? 1 : (size_t)(slash - out)) : strdup(".");
    char *there = path_join(folder ? folder : p->folder, "config.json"), *here = path_join(p->folder, "config.json");
    struct stat a, b;
    bool good = folder && there && here;

    if (!folder)
        fprintf(stderr, "ridge quantize: out of memory\n");
    if (good && p->format == RIDGE_SAFETENSORS && stat(p->folder, &a) == 0 && stat(folder, &b) == 0 &&
        (a.st_dev != b.st_dev || a.st_ino != b.st_ino) && access(here, F_OK) == 0) {
        if (access(there, F_OK) != 0)
            good = config_write(p, folder);
        else
            fprintf(stderr, "ridge quantize: %s is there and stays as it is\n", there);
    }
    free(folder);
    free(there);
    free(here);
    return good;
}

bool config_architecture(const plan *p, ridge_writer *w)
{
    bool broken;
    json_t *config = load_config(p, &broken);
    const char *type = config ? json_string_value(json_object_get(config, "model_type")) : NULL;
    bool good = !type || ridge_writer_meta_string(w, "general.architecture", type) == RIDGE_OK;

    if (!good)
        fprintf(stderr, "ridge quantize: %s\n", ridge_io_error());
    json_decref(config);
    return good && !broken;
}

/* index.c: reads a sharded checkpoint (model.safetensors.index.json: {"weight_map": {tensor: shard file}}), and finds
 * the checkpoint in a directory. Index and shards must name the same tensors. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "json.h"

typedef struct weight {
    char *name;
    int32_t shard;
} weight;

typedef struct index_map {
    weight *weight; /* in the order of `names` */
    int64_t weights, weight_capacity;
    char **shard; /* in the order of `shards` until sort_shards */
    int64_t shard_count, shard_capacity;
    int32_t *sorted; /* the index of each shard once they are sorted by name */
    io_names names, shards;
} index_map;

static void free_index(index_map *map)
{
    for (int64_t i = 0; i < map->weights; i++)
        free(map->weight[i].name);
    for (int64_t i = 0; i < map->shard_count; i++)
        free(map->shard[i]);
    free(map->weight);
    free(map->shard);
    free(map->sorted);
    io_names_free(&map->names);
    io_names_free(&map->shards);
}

/* The name of a file in the index's own directory and nothing else: an index is not trusted. */
static bool plain_name(const json_t *value)
{
    const char *name = json_string_value(value);

    return name && name[0] && strlen(name) == json_string_length(value) && !strchr(name, '/') &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int64_t shard_number(index_map *map, const char *name)
{
    int64_t at = io_names_find(&map->shards, name);
    char *copy;

    if (at >= 0)
        return at;
    copy = io_grow(&map->shard, &map->shard_capacity, map->shard_count + 1, sizeof *map->shard) ? strdup(name) : NULL;
    if (!copy)
        return -1;
    map->shard[map->shard_count++] = copy;
    return io_names_add(&map->shards, copy);
}

static ridge_status add_weight(index_map *map, const char *path, const char *name, const json_t *value)
{
    int64_t shard, at;
    char *copy;

    if (!plain_name(value))
        return io_fail(RIDGE_ERR_FILE,
                       "%s: weight_map: tensor \"%.200s\": \"%.200s\" is not the name of a file in the same directory",
                       path, name, json_is_string(value) ? json_string_value(value) : "(not a string)");
    shard = shard_number(map, json_string_value(value));
    copy = shard >= 0 && io_grow(&map->weight, &map->weight_capacity, map->weights + 1, sizeof *map->weight)
               ? strdup(name)
               : NULL;
    if (!copy)
        return io_no_memory(path);
    map->weight[map->weights++] = (weight){copy, (int32_t)shard};
    at = io_names_add(&map->names, copy);
    if (at == -1)
        return io_fail(RIDGE_ERR_FILE, "%s: weight_map: tensor \"%.200s\" is there twice", path, name);
    return at < 0 ? io_no_memory(path) : RIDGE_OK;
}

static ridge_status parse_weight_map(io_json *json, index_map *map)
{
    int64_t count = 0;
    ridge_status status = io_json_enter(json);
    json_t *key = NULL, *value;

    while (status == RIDGE_OK && (status = io_json_next(json, &count, &key)) == RIDGE_OK && key) {
        value = io_json_value(json, "tensor", json_string_value(key));
        status = value ? add_weight(map, json->path, json_string_value(key), value) : RIDGE_ERR_FILE;
        json_decref(value);
        json_decref(key);
    }
    return status;
}

static ridge_status parse_index(io_json *json, index_map *map)
{
    int64_t count = 0;
    int maps = 0;
    json_t *key = NULL, *value;
    ridge_status status = io_json_enter(json);

    while (status == RIDGE_OK && (status = io_json_next(json, &count, &key)) == RIDGE_OK && key) {
        if (strcmp(json_string_value(key), "weight_map") == 0) {
            status = maps++ ? io_fail(RIDGE_ERR_FILE, "%s: there are two weight_maps", json->path)
                            : parse_weight_map(json, map);
        } else {
            value = io_json_value(json, "key", json_string_value(key));
            status = value ? RIDGE_OK : RIDGE_ERR_FILE;
            json_decref(value);
        }
        json_decref(key);
    }
    if (status == RIDGE_OK && !maps)
        return io_fail(RIDGE_ERR_FILE, "%s: not an index of safetensors files: it has no weight_map", json->path);
    if (status == RIDGE_OK)
        status = io_json_end(json);
    if (status == RIDGE_OK && !map->weights)
        status = io_fail(RIDGE_ERR_FILE, "%s: its weight_map names no tensor", json->path);
    return status;
}

/* Opens the index as a shard of its own, which checks that it is a regular file, and closes it again. */
static ridge_status read_index(const char *path, index_map *map)
{
    ridge_file *file = calloc(1, sizeof *file);
    char *text = NULL;
    ridge_status status = file ? RIDGE_OK : io_no_memory(path);

    if (file) {
        file->directory = -1;
        status = io_add_shard(file, path);
    }

    if (status == RIDGE_OK && file->shard[0].bytes > 100000000)
        status =
            io_fail(RIDGE_ERR_FILE, "%s: an index of %" PRId64 " bytes; 100000000 at most", path, file->shard[0].bytes);
    if (status == RIDGE_OK) {
        text = malloc((size_t)file->shard[0].bytes + 1);
        status = text ? io_read_at(&file->shard[0], 0, text, file->shard[0].bytes) : io_no_memory(path);
    }
    if (status == RIDGE_OK) {
        io_json json = {path, text, (size_t)file->shard[0].bytes, 0, 0};
        status = parse_index(&json, map);
    }
    free(text);
    ridge_file_close(file);
    return status;
}

static int by_name(const void *left, const void *right)
{
    const char *const *a = left, *const *b = right;

    return strcmp(*a, *b);
}

/* Sorts the shards by name; map->sorted maps the order of the index to that order. */
static bool sort_shards(index_map *map)
{
    map->sorted = calloc((size_t)map->shard_count + 1, sizeof *map->sorted);
    if (!map->sorted)
        return false;
    if (map->shard_count) /* map->shards, the hash table, keeps the pointers in the old order */
        qsort(map->shard, (size_t)map->shard_count, sizeof *map->shard, by_name);
    for (int64_t i = 0; i < map->shard_count; i++)
        map->sorted[io_names_find(&map->shards, map->shard[i])] = (int32_t)i;
    return true;
}

static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t directory = slash ? (size_t)(slash - path) + 1 : 0, length = strlen(name) + 1;
    char *full = malloc(directory + length);

    if (full) {
        memcpy(full, path, directory);
        memcpy(full + directory, name, length);
    }
    return full;
}

static ridge_status open_shard(ridge_file *file, const char *path, const char *name)
{
    char *full = beside(path, name);
    ridge_status status = full ? io_add_shard(file, full) : io_no_memory(path);

    free(full);
    if (status == RIDGE_OK)
        status = io_parse_safetensors(file, file->shards - 1);
    return status == RIDGE_OK ? io_close_shard(file, file->shards - 1) : status;
}

/* Checks that index and shards name the same tensors. Names are unique on both sides, so equal counts and one direction
 * suffice. */
static ridge_status compare(const ridge_file *file, const char *path, const index_map *map)
{
    for (int64_t i = 0; i < file->tensors; i++) {
        const ridge_entry *t = &file->tensor[i];
        int64_t at = io_names_find(&map->names, t->name);

        if (at < 0 || map->sorted[map->weight[at].shard] != t->shard)
            return io_fail(RIDGE_ERR_FILE, "%s: weight_map: tensor \"%.200s\" is in %s, but the index says %s", path,
                           t->name, file->shard[t->shard].path,
                           at < 0 ? "nothing of it" : map->shard[map->sorted[map->weight[at].shard]]);
    }
    for (int64_t i = 0; i < map->weights && file->tensors < map->weights; i++)
        if (io_names_find(&file->names, map->weight[i].name) < 0)
            return io_fail(RIDGE_ERR_FILE, "%s: weight_map: tensor \"%.200s\" is not in %s", path, map->weight[i].name,
                           map->shard[map->sorted[map->weight[i].shard]]);
    return RIDGE_OK;
}

ridge_status io_open_index(ridge_file *file, const char *path)
{
    index_map map;
    ridge_status status;

    memset(&map, 0, sizeof map);
    file->format = RIDGE_SAFETENSORS;
    status = read_index(path, &map);
    if (status == RIDGE_OK && !sort_shards(&map))
        status = io_no_memory(path);
    for (int64_t i = 0; i < map.shard_count && status == RIDGE_OK; i++)
        status = open_shard(file, path, map.shard[i]);
    if (status == RIDGE_OK)
        status = compare(file, path, &map);
    free_index(&map);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ directories */

static char *join(const char *directory, const char *name)
{
    size_t length = strlen(directory), bytes = length + strlen(name) + 2;
    char *path = malloc(bytes);

    if (path) {
        memcpy(path, directory, length);
        path[length] = '/';
        memcpy(path + length + 1, name, bytes - length - 1);
    }
    return path;
}

static bool ends(const char *name, const char *end)
{
    size_t a = strlen(name), b = strlen(end);

    return a > b && name[0] != '.' && strcmp(name + a - b, end) == 0;
}

/* Is it a part of a GGUF whose first part is there too? */
static bool is_further_part(const char *directory, const char *name)
{
    int64_t number, count, length = io_part_name(name, &number, &count);
    struct stat status;
    char *first = NULL;
    bool further = false;

    if (length >= 0 && number > 1 &&
        asprintf(&first, "%s/%.*s-00001-of-%05d.gguf", directory, (int)length, name, (int)count) >= 0) {
        further = stat(first, &status) == 0;
        free(first);
    }
    return further;
}

/* The one *.safetensors or *.gguf of a directory, or the first of the parts that make it; several are an error. */
static ridge_status find_single(const char *directory, char **path)
{
    DIR *list = opendir(directory);
    const struct dirent *entry;
    ridge_status status = RIDGE_OK;

    if (!list)
        return io_fail(RIDGE_ERR_FILE, "%s: %s", directory, strerror(errno));
    while (status == RIDGE_OK && (entry = readdir(list))) {
        if (!ends(entry->d_name, ".safetensors") && !ends(entry->d_name, ".gguf"))
            continue;
        if (is_further_part(directory, entry->d_name))
            continue;
        if (*path)
            status = io_fail(RIDGE_ERR_FILE, "%s: holds several files: %s and %s/%s; name one", directory, *path,
                             directory, entry->d_name);
        else if (!(*path = join(directory, entry->d_name)))
            status = io_no_memory(directory);
    }
    closedir(list);
    if (status == RIDGE_OK && !*path)
        status =
            io_fail(RIDGE_ERR_FILE, "%s: holds no model.safetensors.index.json, *.safetensors or *.gguf", directory);
    return status;
}

ridge_status io_find_in_directory(const char *directory, char **path)
{
    static const char *const known[] = {"model.safetensors.index.json", "model.safetensors"};
    struct stat status;

    for (int i = 0; i < 2; i++) {
        *path = join(directory, known[i]);
        if (!*path)
            return io_no_memory(directory);
        if (stat(*path, &status) == 0)
            return RIDGE_OK;
        free(*path);
        *path = NULL;
    }
    return find_single(directory, path);
}

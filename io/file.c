/* file.c: opens a checkpoint (which reader takes it), looks up its tensors and metadata, reads data. The readers,
 * safetensors.c, index.c, gguf.c and parts.c, fill the ridge_file that they are given through the functions of
 * builder.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io.h"

/* A safetensors file that began with these four bytes would have a header of 1.2 GB, which is not allowed. */
static ridge_status open_single(ridge_file *file, const char *path)
{
    char magic[4] = {0};
    ridge_status status = io_add_shard(file, path);

    if (status == RIDGE_OK && file->shard[0].bytes >= 4)
        status = io_read_at(&file->shard[0], 0, magic, 4);
    if (status != RIDGE_OK)
        return status;
    file->format = memcmp(magic, "GGUF", 4) == 0 ? RIDGE_GGUF : RIDGE_SAFETENSORS;
    return file->format == RIDGE_GGUF ? io_open_gguf(file, path) : io_parse_safetensors(file, 0);
}

static bool ends(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);

    return a >= b && strcmp(text + a - b, end) == 0;
}

static ridge_status open_any(ridge_file *file, const char *path)
{
    struct stat status;
    char *found = NULL;
    ridge_status result = RIDGE_OK;

    if (stat(path, &status))
        return io_fail(RIDGE_ERR_FILE, "%s: %s", path, strerror(errno));
    if (S_ISDIR(status.st_mode)) {
        result = io_find_in_directory(path, &found);
        path = found;
    }
    if (result == RIDGE_OK)
        result = ends(path, ".json") ? io_open_index(file, path) : open_single(file, path);
    free(found);
    return result;
}

ridge_status ridge_file_open(const char *path, ridge_file **file)
{
    ridge_status status;
    ridge_file *f;

    if (file)
        *file = NULL;
    if (!path || !file)
        return io_fail(RIDGE_ERR_ARG, "ridge_file_open: %s is NULL", path ? "file" : "path");
    if (!*path)
        return io_fail(RIDGE_ERR_FILE, "ridge_file_open: path is empty");
    f = calloc(1, sizeof *f);
    if (!f)
        return io_no_memory(path);
    f->directory = -1;
    status = open_any(f, path);
    if (status == RIDGE_OK)
        *file = f;
    else
        ridge_file_close(f);
    return status;
}

/* What the getters see instead of NULL. */
static const ridge_file *some(const ridge_file *file)
{
    static const ridge_file nothing;

    return file ? file : &nothing;
}

ridge_format ridge_file_format(const ridge_file *file)
{
    return some(file)->format;
}

int32_t ridge_file_shards(const ridge_file *file)
{
    return some(file)->shards;
}

const char *ridge_file_path(const ridge_file *file, int32_t shard)
{
    return shard >= 0 && shard < some(file)->shards ? file->shard[shard].path : NULL;
}

int64_t ridge_file_bytes(const ridge_file *file, int32_t shard)
{
    return shard >= 0 && shard < some(file)->shards ? file->shard[shard].bytes : -1;
}

int64_t ridge_file_tensors(const ridge_file *file)
{
    return some(file)->tensors;
}

const ridge_entry *ridge_file_tensor(const ridge_file *file, int64_t index)
{
    return index >= 0 && index < some(file)->tensors ? &file->tensor[index] : NULL;
}

const ridge_entry *ridge_file_find(const ridge_file *file, const char *name)
{
    return name ? ridge_file_tensor(file, io_names_find(&some(file)->names, name)) : NULL;
}

int64_t ridge_file_metas(const ridge_file *file)
{
    return some(file)->metas;
}

const ridge_meta *ridge_file_meta(const ridge_file *file, int64_t index)
{
    return index >= 0 && index < some(file)->metas ? &file->meta[index] : NULL;
}

const ridge_meta *ridge_file_meta_find(const ridge_file *file, const char *key)
{
    return key ? ridge_file_meta(file, io_names_find(&some(file)->keys, key)) : NULL;
}

ridge_status ridge_file_read(const ridge_file *file, const ridge_entry *tensor, int64_t begin, void *memory,
                             int64_t bytes)
{
    if (!file || !tensor || (!memory && bytes != 0))
        return io_fail(RIDGE_ERR_ARG, "ridge_file_read: %s is NULL", !file ? "file" : !tensor ? "tensor" : "memory");
    if (tensor->shard < 0 || tensor->shard >= file->shards)
        return io_fail(RIDGE_ERR_ARG, "ridge_file_read: the tensor is not of this file (shard %d of %d)",
                       (int)tensor->shard, (int)file->shards);
    if (begin < 0 || bytes < 0 || begin > tensor->bytes || bytes > tensor->bytes - begin)
        return io_fail(RIDGE_ERR_ARG,
                       "%s: tensor \"%.200s\": bytes %" PRId64 " + %" PRId64 " are not within its %" PRId64,
                       file->shard[tensor->shard].path, tensor->name, begin, bytes, tensor->bytes);
    return io_read_at(&file->shard[tensor->shard], tensor->offset + begin, memory, bytes);
}

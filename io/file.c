/* file.c: opening, looking up, reading, closing. The formats' own rules are in safetensors.c and gguf.c. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io.h"

void *io_keep(ridge_file *file, size_t bytes)
{
    const char *path = file->shards ? file->shard[0].path : "file";
    void *memory;

    if (!io_grow(&file->block, &file->block_room, file->blocks + 1, sizeof *file->block)) {
        io_no_memory(path);
        return NULL;
    }
    memory = malloc(bytes ? bytes : 1);
    if (memory)
        file->block[file->blocks++] = memory;
    else
        io_no_memory(path);
    return memory;
}

ridge_status io_add_tensor(ridge_file *file, const ridge_entry *tensor)
{
    const char *path = file->shard[tensor->shard].path;
    int64_t at;

    if (!io_grow(&file->tensor, &file->tensor_room, file->tensors + 1, sizeof *file->tensor))
        return io_no_memory(path);
    at = io_names_add(&file->names, tensor->name);
    if (at == -1)
        return io_fail(RIDGE_ERR_FILE, "%s: tensor \"%.200s\": there are two of this name", path, tensor->name);
    if (at < 0)
        return io_no_memory(path);
    file->tensor[file->tensors++] = *tensor;
    return RIDGE_OK;
}

ridge_status io_add_meta(ridge_file *file, const ridge_meta *meta)
{
    const char *path = file->shard[file->shards - 1].path;
    int64_t at;

    if (!io_grow(&file->meta, &file->meta_room, file->metas + 1, sizeof *file->meta))
        return io_no_memory(path);
    at = io_names_add(&file->keys, meta->key);
    if (at == -1)
        return io_fail(RIDGE_ERR_FILE, "%s: metadata key \"%.200s\": there are two of this name", path, meta->key);
    if (at < 0)
        return io_no_memory(path);
    file->meta[file->metas++] = *meta;
    return RIDGE_OK;
}

ridge_status io_add_shard(ridge_file *file, const char *path)
{
    struct stat status;
    io_shard *shard = realloc(file->shard, (size_t)(file->shards + 1) * sizeof *shard);
    int fd;

    if (!shard)
        return io_no_memory(path);
    file->shard = shard;
    shard += file->shards;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang us */
    if (fd < 0)
        return io_fail(RIDGE_ERR_FILE, "%s: %s", path, strerror(errno));
    *shard = (io_shard){strdup(path), fd, 0};
    file->shards++;
    if (!shard->path)
        return io_no_memory(path);
    if (fstat(fd, &status))
        return io_fail(RIDGE_ERR_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return io_fail(RIDGE_ERR_FILE, "%s: not a regular file", path);
    shard->bytes = (int64_t)status.st_size;
    return RIDGE_OK;
}

ridge_status io_read_at(const io_shard *shard, int64_t at, void *to, int64_t bytes)
{
    char *memory = to;

    while (bytes > 0) {
        size_t part = bytes < 1 << 30 ? (size_t)bytes : (size_t)1 << 30;
        ssize_t got = pread(shard->fd, memory, part, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return io_fail(RIDGE_ERR_FILE, "%s: reading at byte %" PRId64 ": %s", shard->path, at, strerror(errno));
        if (got == 0)
            return io_fail(RIDGE_ERR_FILE,
                           "%s: ends at byte %" PRId64 ", where %" PRId64 " more were expected: the file had %" PRId64
                           " bytes when it was opened",
                           shard->path, at, bytes, shard->bytes);
        memory += got;
        at += got;
        bytes -= got;
    }
    return RIDGE_OK;
}

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
    return file->format == RIDGE_GGUF ? io_parse_gguf(file, 0) : io_parse_safetensors(file, 0);
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
    status = open_any(f, path);
    if (status == RIDGE_OK)
        *file = f;
    else
        ridge_file_close(f);
    return status;
}

void ridge_file_close(ridge_file *file)
{
    if (!file)
        return;
    for (int32_t i = 0; i < file->shards; i++) {
        close(file->shard[i].fd);
        free(file->shard[i].path);
    }
    for (int64_t i = 0; i < file->blocks; i++)
        free(file->block[i]);
    io_names_free(&file->names);
    io_names_free(&file->keys);
    free(file->shard);
    free(file->tensor);
    free(file->meta);
    free(file->block);
    free(file);
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

/* builder.c: a ridge_file while a reader fills it: its shards, tensors, metadata, and the memory that they live in. */
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

    if (!io_grow(&file->block, &file->block_capacity, file->blocks + 1, sizeof *file->block)) {
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

    if (!io_grow(&file->tensor, &file->tensor_capacity, file->tensors + 1, sizeof *file->tensor))
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

    if (!io_grow(&file->meta, &file->meta_capacity, file->metas + 1, sizeof *file->meta))
        return io_no_memory(path);
    at = io_names_add(&file->keys, meta->key);
    if (at == -1)
        return io_fail(RIDGE_ERR_FILE, "%s: metadata key \"%.200s\": there are two of this name", path, meta->key);
    if (at < 0)
        return io_no_memory(path);
    file->meta[file->metas++] = *meta;
    return RIDGE_OK;
}

/* Beyond these a shard's descriptor is closed while it is not read: a process may have 1024 open, and a model more
 * files.
 */
enum { OPEN_MOST = 256 };

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
    *shard = (io_shard){strdup(path), fd, -1, 0, 0, 0};
    file->shards++;
    if (!shard->path)
        return io_no_memory(path);
    if (fstat(fd, &status))
        return io_fail(RIDGE_ERR_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return io_fail(RIDGE_ERR_FILE, "%s: not a regular file", path);
    shard->device = status.st_dev;
    shard->node = status.st_ino;
    shard->bytes = (int64_t)status.st_size;
    return RIDGE_OK;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

ridge_status io_close_shard(ridge_file *file, int32_t index)
{
    io_shard *shard = &file->shard[index];

    if (index < OPEN_MOST)
        return RIDGE_OK;
    if (file->directory < 0) {
        const size_t length = (size_t)(base_name(shard->path) - shard->path);
        char *path = length ? strndup(shard->path, length) : strdup(".");

        file->directory = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        free(path);
        if (file->directory < 0)
            return io_fail(RIDGE_ERR_FILE, "%s: opening its directory: %s", shard->path, strerror(errno));
    }
    close(shard->fd);
    shard->fd = -1;
    shard->directory = file->directory;
    return RIDGE_OK;
}

/* Opens a shard for one read; -1 with a message. */
static int open_again(const io_shard *shard)
{
    int fd = openat(shard->directory, base_name(shard->path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;

    if (fd < 0 || fstat(fd, &status)) {
        io_fail(RIDGE_ERR_FILE, "%s: %s", shard->path, strerror(errno));
    } else if (status.st_dev != shard->device || status.st_ino != shard->node) {
        io_fail(RIDGE_ERR_FILE, "%s: is another file than the one that was opened", shard->path);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static ridge_status read_all(const io_shard *shard, int fd, int64_t at, char *memory, int64_t bytes)
{
    while (bytes > 0) {
        size_t part = bytes < 1 << 30 ? (size_t)bytes : (size_t)1 << 30;
        ssize_t got = pread(fd, memory, part, (off_t)at);

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

ridge_status io_read_at(const io_shard *shard, int64_t at, void *to, int64_t bytes)
{
    const int fd = shard->fd >= 0 ? shard->fd : open_again(shard);
    ridge_status status;

    if (fd < 0)
        return RIDGE_ERR_FILE;
    status = read_all(shard, fd, at, to, bytes);
    if (fd != shard->fd)
        close(fd);
    return status;
}

void io_clear(ridge_file *file)
{
    for (int32_t i = 0; i < file->shards; i++) {
        if (file->shard[i].fd >= 0)
            close(file->shard[i].fd);
        free(file->shard[i].path);
    }
    if (file->directory >= 0)
        close(file->directory);
    for (int64_t i = 0; i < file->blocks; i++)
        free(file->block[i]);
    io_names_free(&file->names);
    io_names_free(&file->keys);
    free(file->shard);
    free(file->tensor);
    free(file->meta);
    free(file->block);
    *file = (struct ridge_file){.directory = -1};
}

void ridge_file_close(ridge_file *file)
{
    if (!file)
        return;
    io_clear(file);
    free(file);
}

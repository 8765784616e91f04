/* writer.c: declares the contents of a file of either format, writes them, and puts the file in place. The file has no
 * name (O_TMPFILE) until ridge_writer_finish gives it one, so that even SIGKILL leaves nothing behind (but for the
 * empty probe that create makes for a moment; the directory of a sharded output is the caller's and has a name all the
 * time). On file systems without O_TMPFILE it has a random name beside the target, created exclusively, so that no
 * planted link is followed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io.h"

static ridge_status system_error(const ridge_writer *w, const char *doing)
{
    return io_fail(RIDGE_ERR_FILE, "%s: %s: %s", w->path, doing, strerror(errno));
}

bool io_nameless = true;

static char *target(const ridge_writer *w)
{
    char *slash = strrchr(w->path, '/');

    return slash ? slash + 1 : w->path;
}

/* The directory is looked up once: a chdir or a rename of a parent before the end must not move the target. */
static int open_directory(const ridge_writer *w)
{
    char *name = target(w), first = *name;
    int directory;

    *name = '\0'; /* for the moment */
    directory = open(w->path[0] ? w->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *name = first;
    return directory;
}

/* Draws a random name; 128 bits do not repeat. The functions from here to create return -1 and set errno. */
static int choose_name(ridge_writer *w)
{
    uint64_t number[2];

    if (getrandom(number, sizeof number, 0) != (ssize_t)sizeof number)
        return -1;
    snprintf(w->temporary, sizeof w->temporary, ".ridge-%016" PRIx64 "%016" PRIx64 ".tmp", number[0], number[1]);
    return 0;
}

/* On file systems without ACLs Linux before 6.0 ignores the umask here, and the file is 0666 (fixed by its commit
 * ac6800e279a2, which stable series may have). Reading the umask means setting it, for every thread: not done. */
static int create_nameless(const ridge_writer *w)
{
#ifdef O_TMPFILE
    return openat(w->directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
#else
    (void)w;
    return -1;
#endif
}

/* Gives the file a temporary name: a rename needs one, and a link cannot replace the target. */
static int link_nameless(ridge_writer *w, int fd)
{
    char from[64];

    if (choose_name(w))
        return -1;
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, from, w->directory, w->temporary, AT_SYMLINK_FOLLOW);
}

/* Tries that with an empty file first: a missing /proc, or a sandbox that refuses links, must not show after the work.
 */
static bool links_work(ridge_writer *w)
{
    int fd = create_nameless(w);
    bool work = fd >= 0 && !link_nameless(w, fd) && !unlinkat(w->directory, w->temporary, 0);

    if (fd >= 0)
        close(fd);
    return work;
}

static int create_named(ridge_writer *w)
{
    int fd = -1;

    if (!choose_name(w))
        fd = openat(w->directory, w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    w->named = fd >= 0;
    return fd;
}

/* Creates the file; from here on w->directory is open while w->fd is. */
static ridge_status create(ridge_writer *w)
{
    ridge_status status = RIDGE_OK;

    w->directory = open_directory(w);
    if (w->directory < 0)
        return system_error(w, "opening its directory");
    w->fd = io_nameless ? create_nameless(w) : -1;
    if (w->fd >= 0 && !links_work(w)) {
        close(w->fd);
        w->fd = -1;
    }
    if (w->fd < 0)
        w->fd = create_named(w);
    if (w->fd < 0) {
        status = system_error(w, "creating a temporary file in its directory");
        close(w->directory);
    }
    return status;
}

static void discard(ridge_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    if (w->named)
        unlinkat(w->directory, w->temporary, 0);
    w->named = false;
    close(w->directory);
}

ridge_status ridge_writer_open(const char *path, ridge_format format, ridge_writer **writer)
{
    struct stat there;
    ridge_status status;
    ridge_writer *w;

    if (writer)
        *writer = NULL;
    if (!path || !writer)
        return io_fail(RIDGE_ERR_ARG, "ridge_writer_open: %s is NULL", path ? "writer" : "path");
    if (format != RIDGE_SAFETENSORS && format != RIDGE_GGUF)
        return io_fail(RIDGE_ERR_ARG, "%s: there is no format %d", path, (int)format);
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) /* a rename would replace a device or a pipe */
        return io_fail(RIDGE_ERR_FILE, "%s: is there, and is not a regular file", path);
    if (!path[0] || path[strlen(path) - 1] == '/')
        return io_fail(RIDGE_ERR_FILE, "ridge_writer_open: '%s' is not the name of a file", path);
    w = calloc(1, sizeof *w);
    if (!w)
        return io_no_memory(path);
    w->fd = -1;
    w->format = format;
    w->path = strdup(path);
    status = w->path ? create(w) : io_no_memory(path);
    if (status == RIDGE_OK)
        *writer = w;
    else
        ridge_writer_abort(w);
    return status;
}

static ridge_status too_late(const ridge_writer *w, const char *function)
{
    return io_fail(RIDGE_ERR_ARG, "%s: %s: the header is written already", w->path, function);
}

/* --------------------------------------------------------------------------------------------------------- metadata */

static int32_t kind_bytes(uint32_t kind)
{
    static const int8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    return kind < sizeof bytes ? bytes[kind] : 0;
}

/* NULL, or what is wrong with the packed values. */
static const char *check_values(const ridge_meta *meta, uint32_t kind, bool text)
{
    const char *data = meta->data;
    int64_t at = 0, bytes;

    if (kind != RIDGE_META_STRING) {
        if (!kind_bytes(kind))
            return "there is no such kind";
        if (!io_multiply(meta->count, kind_bytes(kind), &bytes) || bytes != meta->bytes)
            return "its bytes do not match its count";
        for (; kind == RIDGE_META_BOOL && at < bytes; at++)
            if (data[at] != 0 && data[at] != 1)
                return "a bool is neither 0 nor 1";
        return NULL;
    }
    for (int64_t i = 0; i < meta->count; i++) {
        uint64_t length;
        if (meta->bytes - at < 8)
            return "its strings do not fit its bytes";
        memcpy(&length, data + at, 8);
        at += 8;
        if (length > (uint64_t)(meta->bytes - at))
            return "its strings do not fit its bytes";
        if (text && !io_utf8(data + at, (size_t)length))
            return "a string is not UTF-8, or holds a NUL";
        at += (int64_t)length;
    }
    return at == meta->bytes ? NULL : "its strings do not fill its bytes";
}

static const char *check_meta(const ridge_writer *w, const ridge_meta *meta)
{
    bool array = meta->kind == RIDGE_META_ARRAY, safetensors = w->format == RIDGE_SAFETENSORS;

    if (!meta->key[0] || !io_utf8(meta->key, strlen(meta->key)))
        return "the key is empty or not UTF-8";
    if (safetensors && meta->kind != RIDGE_META_STRING)
        return "safetensors holds strings only";
    if (meta->count < 0 || meta->bytes < 0 || (meta->bytes && !meta->data))
        return "it has no data, or a negative size";
    if (!array && (meta->count != 1 || meta->element != meta->kind))
        return "only an array has a count or a kind of elements";
    return check_values(meta, array ? meta->element : meta->kind, safetensors);
}

static ridge_status set_meta(ridge_writer *w, const ridge_meta *meta)
{
    int64_t at = io_names_find(&w->keys, meta->key);
    char *data = malloc(meta->bytes ? (size_t)meta->bytes : 1);

    if (!data || !io_grow(&w->meta, &w->meta_capacity, w->metas + 1, sizeof *w->meta)) {
        free(data);
        return io_no_memory(w->path);
    }
    if (meta->bytes)
        memcpy(data, meta->data, (size_t)meta->bytes);
    if (at < 0) {
        char *key = strdup(meta->key);
        at = key ? io_names_add(&w->keys, key) : -2;
        if (at < 0) {
            free(key);
            free(data);
            return io_no_memory(w->path);
        }
        w->meta[w->metas++] = (ridge_meta){key, 0, 0, 0, NULL, 0};
    }
    free((void *)(uintptr_t)w->meta[at].data);
    w->meta[at] = (ridge_meta){w->meta[at].key, meta->kind, meta->element, meta->count, data, meta->bytes};
    return RIDGE_OK;
}

ridge_status ridge_writer_meta(ridge_writer *writer, const ridge_meta *meta)
{
    const char *wrong;

    if (!writer || !meta || !meta->key)
        return io_fail(RIDGE_ERR_ARG, "ridge_writer_meta: %s is NULL", !writer ? "writer" : !meta ? "meta" : "key");
    if (writer->begun)
        return too_late(writer, "ridge_writer_meta");
    if (strcmp(meta->key, "general.alignment") == 0 && writer->format == RIDGE_GGUF)
        return RIDGE_OK;
    wrong = check_meta(writer, meta);
    if (wrong)
        return io_fail(RIDGE_ERR_ARG, "%s: metadata \"%.200s\" (kind %u): %s", writer->path, meta->key,
                       (unsigned)meta->kind, wrong);
    return set_meta(writer, meta);
}

ridge_status ridge_writer_meta_string(ridge_writer *writer, const char *key, const char *value)
{
    uint64_t length = value ? strlen(value) : 0;
    char *data = malloc((size_t)length + 8);
    ridge_meta meta = {key, RIDGE_META_STRING, RIDGE_META_STRING, 1, data, (int64_t)length + 8};
    ridge_status status;

    if (data) {
        memcpy(data, &length, 8);
        memcpy(data + 8, value ? value : "", (size_t)length);
    }
    if (!value)
        status = io_fail(RIDGE_ERR_ARG, "ridge_writer_meta_string: value is NULL");
    else
        status = data ? ridge_writer_meta(writer, &meta) : io_no_memory(key ? key : "metadata");
    free(data);
    return status;
}

ridge_status ridge_writer_meta_u32(ridge_writer *writer, const char *key, uint32_t value)
{
    ridge_meta meta = {key, RIDGE_META_U32, RIDGE_META_U32, 1, &value, 4};

    return ridge_writer_meta(writer, &meta);
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

/* GGUF's limits are ggml's: names below 64 bytes, four dimensions, rows of whole blocks. */
static const char *check_tensor(const ridge_writer *w, const char *name, io_out *out)
{
    const ridge_type_info *info = ridge_type_query(out->type);
    bool gguf = w->format == RIDGE_GGUF;
    int64_t elements;

    if (!name[0] || !io_utf8(name, strlen(name)))
        return "its name is empty or not UTF-8";
    if (gguf ? strlen(name) >= 64 : strcmp(name, "__metadata__") == 0)
        return gguf ? "its name is too long: GGUF takes 63 bytes" : "this name means metadata";
    if (!info || (gguf ? info->gguf < 0 : !info->safetensors))
        return gguf ? "GGUF lacks its type" : "safetensors lacks its type";
    if (out->rank < 0 || out->rank > (gguf ? 4 : RIDGE_MAX_RANK))
        return gguf ? "GGUF takes at most 4 dimensions" : "its rank is not within 0 and RIDGE_MAX_RANK";
    for (int32_t i = 0; i < out->rank; i++)
        if (out->shape[i] < 0)
            return "its shape holds a negative size";
    if (!io_elements(out->shape, out->rank, &elements))
        return "its shape overflows";
    if (gguf && (out->rank ? out->shape[out->rank - 1] : 1) % info->block != 0)
        return "its rows do not divide into blocks";
    return io_bytes(out->type, elements, &out->bytes) ? NULL : "its size overflows or is no whole bytes";
}

ridge_status ridge_writer_tensor(ridge_writer *writer, const char *name, uint32_t type, int32_t rank,
                                 const int64_t *shape, int64_t *index)
{
    io_out out;
    const char *wrong;
    int64_t at;

    if (!writer || !name || (!shape && rank > 0))
        return io_fail(RIDGE_ERR_ARG, "ridge_writer_tensor: %s is NULL", !writer ? "writer" : !name ? "name" : "shape");
    if (writer->begun)
        return too_late(writer, "ridge_writer_tensor");
    memset(&out, 0, sizeof out);
    out.type = type;
    out.rank = rank;
    if (rank > 0 && rank <= RIDGE_MAX_RANK)
        memcpy(out.shape, shape, (size_t)rank * sizeof *shape);
    wrong = check_tensor(writer, name, &out);
    if (!wrong && io_names_find(&writer->names, name) >= 0)
        wrong = "there is one of this name already";
    if (wrong)
        return io_fail(RIDGE_ERR_ARG, "%s: tensor \"%.200s\" (type %u, rank %d): %s", writer->path, name,
                       (unsigned)type, (int)rank, wrong);
    out.name = strdup(name);
    at = out.name && io_grow(&writer->tensor, &writer->tensor_capacity, writer->tensors + 1, sizeof *writer->tensor)
             ? io_names_add(&writer->names, out.name)
             : -2;
    if (at < 0) {
        free(out.name);
        return io_no_memory(writer->path);
    }
    writer->tensor[writer->tensors++] = out;
    if (index)
        *index = at;
    return RIDGE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- writing */

static ridge_status write_at(const ridge_writer *w, int64_t at, const void *from, int64_t bytes)
{
    const char *memory = from;

    while (bytes > 0) {
        size_t part = bytes < 1 << 30 ? (size_t)bytes : (size_t)1 << 30;
        ssize_t done = pwrite(w->fd, memory, part, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done == 0)
            errno = ENOSPC;
        if (done <= 0)
            return io_fail(RIDGE_ERR_FILE, "%s: writing at byte %" PRId64 " of %" PRId64 ": %s", w->path, at, w->end,
                           strerror(errno));
        memory += done;
        at += done;
        bytes -= done;
    }
    return RIDGE_OK;
}

/* The file gets its size now: a full disk is an error before the work rather than after it. */
static ridge_status reserve(ridge_writer *w)
{
    if (w->end == 0 || fallocate(w->fd, 0, 0, (off_t)w->end) == 0)
        return RIDGE_OK;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR && errno != EINVAL)
        return io_fail(RIDGE_ERR_FILE, "%s: no room for its %" PRId64 " bytes: %s", w->path, w->end, strerror(errno));
    return ftruncate(w->fd, (off_t)w->end) ? system_error(w, "giving it its size") : RIDGE_OK;
}

/* Offsets become absolute here. */
static ridge_status place_tensors(ridge_writer *w)
{
    for (int64_t i = 0; i < w->tensors; i++) {
        io_out *t = &w->tensor[i];
        int64_t last;
        if (__builtin_add_overflow(t->offset, t->bytes, &last) ||
            __builtin_add_overflow(t->offset, w->data, &t->offset))
            return io_fail(RIDGE_ERR_ARG, "%s: tensor \"%.200s\": the file's size overflows", w->path, t->name);
        w->end = last > w->end ? last : w->end;
    }
    if (__builtin_add_overflow(w->end, w->data, &w->end))
        return io_fail(RIDGE_ERR_ARG, "%s: the file's size overflows", w->path);
    return RIDGE_OK;
}

ridge_status ridge_writer_begin(ridge_writer *writer)
{
    unsigned char *header = NULL;
    ridge_status status;

    if (!writer)
        return io_fail(RIDGE_ERR_ARG, "ridge_writer_begin: writer is NULL");
    if (writer->begun)
        return too_late(writer, "ridge_writer_begin");
    writer->begun = true;
    writer->failed = true;
    status = writer->format == RIDGE_GGUF ? io_layout_gguf(writer, &header, &writer->data)
                                          : io_layout_safetensors(writer, &header, &writer->data);
    if (status == RIDGE_OK)
        status = place_tensors(writer);
    if (status == RIDGE_OK)
        status = reserve(writer);
    if (status == RIDGE_OK)
        status = write_at(writer, 0, header, writer->data);
    free(header);
    writer->failed = status != RIDGE_OK;
    return status;
}

ridge_status ridge_writer_write(ridge_writer *writer, int64_t index, int64_t begin, const void *memory, int64_t bytes)
{
    io_out *t;
    ridge_status status;

    if (!writer || (!memory && bytes != 0))
        return io_fail(RIDGE_ERR_ARG, "ridge_writer_write: %s is NULL", writer ? "memory" : "writer");
    if (!writer->begun || writer->failed)
        return io_fail(RIDGE_ERR_ARG, "%s: ridge_writer_write: %s", writer->path,
                       writer->begun ? "an earlier call has failed" : "call ridge_writer_begin first");
    if (index < 0 || index >= writer->tensors)
        return io_fail(RIDGE_ERR_ARG, "%s: there is no tensor %" PRId64, writer->path, index);
    t = &writer->tensor[index];
    if (begin < 0 || bytes < 0 || begin > t->bytes || bytes > t->bytes - begin || bytes > t->bytes - t->written)
        return io_fail(RIDGE_ERR_ARG,
                       "%s: tensor \"%.200s\": bytes %" PRId64 " + %" PRId64 " are not within its %" PRId64
                       ", of which %" PRId64 " are written",
                       writer->path, t->name, begin, bytes, t->bytes, t->written);
    status = write_at(writer, t->offset + begin, memory, bytes);
    t->written += status == RIDGE_OK ? bytes : 0;
    writer->failed = status != RIDGE_OK;
    return status;
}

/* -------------------------------------------------------------------------------------------------------- finishing */

static ridge_status check_complete(const ridge_writer *w)
{
    if (!w->begun || w->failed)
        return io_fail(RIDGE_ERR_ARG, "%s: not finished: %s", w->path,
                       w->begun ? "an earlier call has failed" : "ridge_writer_begin was not called");
    for (int64_t i = 0; i < w->tensors; i++)
        if (w->tensor[i].written != w->tensor[i].bytes)
            return io_fail(RIDGE_ERR_ARG, "%s: not finished: tensor \"%.200s\" has %" PRId64 " of %" PRId64 " bytes",
                           w->path, w->tensor[i].name, w->tensor[i].written, w->tensor[i].bytes);
    return RIDGE_OK;
}

/* The second sync is for btrfs, which logs nothing for a file without links. */
static ridge_status give_name(ridge_writer *w)
{
    if (link_nameless(w, w->fd))
        return system_error(w, "naming the temporary file");
    w->named = true;
    return fsync(w->fd) ? system_error(w, "syncing") : RIDGE_OK;
}

/* Data, then name, each on the disk before the next. Some file systems cannot sync a directory (EINVAL), and need
 * not. */
static ridge_status put_in_place(ridge_writer *w)
{
    ridge_status status = fsync(w->fd) ? system_error(w, "syncing") : RIDGE_OK;
    int closed;

    if (status == RIDGE_OK && !w->named)
        status = give_name(w);
    closed = close(w->fd);
    w->fd = -1;
    if (status == RIDGE_OK && closed)
        status = system_error(w, "closing");
    if (status == RIDGE_OK && renameat(w->directory, w->temporary, w->directory, target(w)))
        status = system_error(w, "renaming the temporary file");
    if (status == RIDGE_OK) {
        w->named = false;
        if (fsync(w->directory) && errno != EINVAL)
            status = system_error(w, "is in place, but syncing its directory failed");
    }
    discard(w);
    return status;
}

ridge_status ridge_writer_finish(ridge_writer *writer)
{
    ridge_status status;

    if (!writer)
        return io_fail(RIDGE_ERR_ARG, "ridge_writer_finish: writer is NULL");
    status = check_complete(writer);
    if (status == RIDGE_OK)
        status = put_in_place(writer);
    ridge_writer_abort(writer);
    return status;
}

void ridge_writer_abort(ridge_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        discard(writer);
    for (int64_t i = 0; i < writer->tensors; i++)
        free(writer->tensor[i].name);
    for (int64_t i = 0; i < writer->metas; i++) {
        free((void *)(uintptr_t)writer->meta[i].key);
        free((void *)(uintptr_t)writer->meta[i].data);
    }
    io_names_free(&writer->names);
    io_names_free(&writer->keys);
    free(writer->tensor);
    free(writer->meta);
    free(writer->path);
    free(writer);
}

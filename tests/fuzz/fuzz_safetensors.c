/* fuzz_safetensors.c: any bytes as a safetensors file, as a header and data with the right length before them, and as
 * an index. What opens must lie within the file, be readable, and survive writing and reading again. No disk: the file
 * is a memfd. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int memory_file = -1;
static char path[64], directory[] = "/tmp/ridge-fuzz-XXXXXX", index_path[64];

static void check(bool good)
{
    if (!good)
        abort();
}

static void remove_links(void)
{
    unlink(index_path);
    rmdir(directory);
}

static void prepare(void)
{
    memory_file = memfd_create("fuzz", MFD_CLOEXEC);
    check(memory_file >= 0 && mkdtemp(directory));
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory_file);
    snprintf(index_path, sizeof index_path, "%s/index.json", directory);
    check(symlink(path, index_path) == 0);
    atexit(remove_links);
}

static void put(const void *bytes, size_t size, off_t at)
{
    check(pwrite(memory_file, bytes, size, at) == (ssize_t)size);
}

static void walk(const ridge_file *file)
{
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        char *memory = malloc((size_t)t->bytes + 1);

        check(memory && t->bytes >= 0 && t->offset >= 8 && t->rank >= 0 && t->rank <= RIDGE_MAX_RANK);
        check(t->offset <= ridge_file_bytes(file, 0) && t->bytes <= ridge_file_bytes(file, 0) - t->offset);
        check(ridge_file_find(file, t->name) == t && io_utf8(t->name, strlen(t->name)));
        check(ridge_file_read(file, t, 0, memory, t->bytes) == RIDGE_OK);
        free(memory);
    }
    for (int64_t i = 0; i < ridge_file_metas(file); i++)
        check(ridge_file_meta_find(file, ridge_file_meta(file, i)->key) == ridge_file_meta(file, i));
}

/* A writer that has no file: declares what the file holds. False for what only the reader takes: empty names, and
 * metadata with an empty key or a NUL. */
static bool declare(ridge_writer *w, const ridge_file *file)
{
    for (int64_t i = 0; i < ridge_file_metas(file); i++)
        if (ridge_writer_meta(w, ridge_file_meta(file, i)) != RIDGE_OK)
            return false;
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        if (!t->name[0])
            return false;
        check(ridge_writer_tensor(w, t->name, t->type, t->rank, t->shape, NULL) == RIDGE_OK);
    }
    return true;
}

static void again(const ridge_file *file)
{
    ridge_writer *w = calloc(1, sizeof *w);
    unsigned char *header = NULL;
    int64_t bytes = 0;
    ridge_file *copy;

    check(w != NULL);
    w->format = RIDGE_SAFETENSORS;
    w->fd = -1;
    w->path = strdup("fuzz");
    if (declare(w, file)) {
        check(io_layout_safetensors(w, &header, &bytes) == RIDGE_OK && bytes % 8 == 0);
        check(ftruncate(memory_file, 0) == 0);
        put(header, (size_t)bytes, 0);
        for (int64_t i = 0; i < w->tensors; i++)
            check(ftruncate(memory_file, lseek(memory_file, 0, SEEK_END) + w->tensor[i].bytes) == 0);
        check(ridge_file_open(path, &copy) == RIDGE_OK && ridge_file_tensors(copy) == ridge_file_tensors(file));
        check(ridge_file_metas(copy) == ridge_file_metas(file));
        for (int64_t i = 0; i < w->tensors; i++) {
            const ridge_entry *a = ridge_file_tensor(file, i), *b = ridge_file_find(copy, a->name);
            check(b && a->type == b->type && a->rank == b->rank && a->bytes == b->bytes &&
                  memcmp(a->shape, b->shape, sizeof a->shape) == 0 && b->offset == bytes + w->tensor[i].offset);
        }
        ridge_file_close(copy);
    }
    free(header);
    ridge_writer_abort(w);
}

static void try_open(const char *name, bool index)
{
    ridge_file *file;

    if (ridge_file_open(name, &file) != RIDGE_OK) {
        check(!file && ridge_io_error()[0]);
        return;
    }
    if (!index) {
        walk(file);
        again(file);
    }
    ridge_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *brace = memrchr(data, '}', size);
    unsigned char length[8];

    if (memory_file < 0)
        prepare();
    check(ftruncate(memory_file, 0) == 0);
    put(data, size, 0);
    if (size < 4 || memcmp(data, "GGUF", 4) != 0) /* fuzz_gguf's */
        try_open(path, false);
    if (!brace)
        return 0;
    check(ftruncate(memory_file, 0) == 0); /* the file may be another one by now */
    put(data, size, 0);
    try_open(index_path, true);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)(brace + 1 - data) >> 8 * i);
    check(ftruncate(memory_file, 0) == 0);
    put(length, 8, 0);
    put(data, size, 8);
    try_open(path, false);
    return 0;
}

/* fuzz_gguf.c: any bytes as a GGUF file. What is accepted must hold together: names found, values read to their end,
 * data read to its end, and a copy that the writer makes must be accepted too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ridge_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sum; /* every byte is touched, for the sanitizers */

static void touch(const void *data, int64_t bytes)
{
    const uint8_t *at = data;

    for (int64_t i = 0; i < bytes; i++)
        sum += at[i];
}

static void demand(int good)
{
    if (!good)
        abort();
}

static void use_meta(const ridge_file *file, const ridge_meta *meta)
{
    const char *at = meta->data;
    int64_t left = meta->bytes;

    demand(ridge_file_meta_find(file, meta->key) == meta);
    touch(meta->data, meta->bytes);
    for (int64_t i = 0; meta->element == RIDGE_META_STRING && i < meta->count; i++) {
        uint64_t length;
        demand(left >= 8);
        memcpy(&length, at, 8);
        demand(length <= (uint64_t)left - 8);
        at += 8 + length;
        left -= 8 + (int64_t)length;
    }
    demand(meta->element != RIDGE_META_STRING || left == 0);
}

static void use_tensor(const ridge_file *file, const ridge_entry *t)
{
    const ridge_type_info *info = ridge_type_query(t->type);
    int64_t elements = 1;
    char *memory = malloc((size_t)t->bytes);

    demand(memory && info && ridge_file_find(file, t->name) == t);
    for (int32_t i = 0; i < t->rank; i++)
        elements *= t->shape[i];
    demand(elements == t->elements && t->bytes == elements / info->block * info->bytes);
    demand(t->offset + t->bytes <= ridge_file_bytes(file, 0));
    demand(ridge_file_read(file, t, 0, memory, t->bytes) == RIDGE_OK);
    touch(memory, t->bytes);
    if (info->dequantize && t->elements <= 1 << 16) {
        float *values = malloc((size_t)t->elements * sizeof *values);
        demand(values && ridge_dequantize(t->type, memory, t->elements, values) == RIDGE_OK);
        touch(values, t->elements * (int64_t)sizeof *values);
        free(values);
    }
    free(memory);
}

/* Once in a while, since it syncs a file: names longer than ggml's 63 bytes are all that the writer may refuse. */
static void copy(const ridge_file *file)
{
    static char path[64];
    ridge_writer *writer;
    ridge_file *again;
    int64_t index;

    snprintf(path, sizeof path, "/tmp/ridge_fuzz_gguf_%ld.gguf", (long)getpid());
    demand(ridge_writer_open(path, RIDGE_GGUF, &writer) == RIDGE_OK);
    for (int64_t i = 0; i < ridge_file_metas(file); i++)
        demand(ridge_writer_meta(writer, ridge_file_meta(file, i)) == RIDGE_OK);
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        if (ridge_writer_tensor(writer, t->name, t->type, t->rank, t->shape, &index) != RIDGE_OK) {
            demand(strlen(t->name) > 63);
            ridge_writer_abort(writer);
            return;
        }
    }
    demand(ridge_writer_begin(writer) == RIDGE_OK);
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        char *memory = malloc((size_t)t->bytes);
        demand(memory && ridge_file_read(file, t, 0, memory, t->bytes) == RIDGE_OK);
        demand(ridge_writer_write(writer, i, 0, memory, t->bytes) == RIDGE_OK);
        free(memory);
    }
    demand(ridge_writer_finish(writer) == RIDGE_OK);
    demand(ridge_file_open(path, &again) == RIDGE_OK);
    demand(ridge_file_tensors(again) == ridge_file_tensors(file));
    ridge_file_close(again);
    remove(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    static int memory = -1;
    static unsigned accepted;
    ridge_file *file;

    if (memory < 0) {
        memory = memfd_create("fuzz_gguf", 0);
        demand(memory >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    }
    demand(ftruncate(memory, 0) == 0 && pwrite(memory, data, size, 0) == (ssize_t)size);
    if (size < 4 || memcmp(data, "GGUF", 4) != 0)
        return 0; /* another format's */
    if (ridge_file_open(path, &file) != RIDGE_OK) {
        demand(file == NULL && strlen(ridge_io_error()) > 10);
        return 0;
    }
    for (int64_t i = 0; i < ridge_file_metas(file); i++)
        use_meta(file, ridge_file_meta(file, i));
    for (int64_t i = 0; i < ridge_file_tensors(file); i++)
        use_tensor(file, ridge_file_tensor(file, i));
    if (accepted++ % 1024 == 0)
        copy(file);
    ridge_file_close(file);
    return 0;
}

/* gguf_file.h: GGUF files made byte by byte, for tests. Included by the one source file of each test. */
#ifndef RIDGE_TESTS_GGUF_FILE_H
#define RIDGE_TESTS_GGUF_FILE_H

#include <unistd.h>

#include "unit.h"
#include "ridge_io.h"

/* Not every test uses every function. */
#define MAKER __attribute__((unused)) static

static char directory[64], path[96], other[96];

/* --------------------------------------------------------------------------------------------- a file in the making */

static unsigned char *made;
static size_t made_bytes, made_room;

MAKER void put(const void *from, size_t bytes)
{
    if (made_bytes + bytes > made_room) {
        made_room = (made_bytes + bytes) * 2;
        made = realloc(made, made_room);
        assert_non_null(made);
    }
    if (bytes)
        memcpy(made + made_bytes, from, bytes);
    made_bytes += bytes;
}

MAKER void u8(unsigned value)
{
    unsigned char byte = (unsigned char)value;

    put(&byte, 1);
}

MAKER void u32(uint32_t value)
{
    put(&value, 4);
}

MAKER void u64(uint64_t value)
{
    put(&value, 8);
}

MAKER void text(const char *value)
{
    u64(strlen(value));
    put(value, strlen(value));
}

MAKER void start(uint32_t version, uint64_t tensors, uint64_t entries)
{
    made_bytes = 0;
    put("GGUF", 4);
    u32(version);
    u64(tensors);
    u64(entries);
}

MAKER void key(const char *name, uint32_t kind)
{
    text(name);
    u32(kind);
}

MAKER void array(const char *name, uint32_t element, uint64_t count)
{
    key(name, RIDGE_META_ARRAY);
    u32(element);
    u64(count);
}

MAKER void tensor(const char *name, uint32_t rank, const uint64_t *ne, uint32_t id, uint64_t offset)
{
    text(name);
    u32(rank);
    for (uint32_t i = 0; i < rank; i++)
        u64(ne[i]);
    u32(id);
    u64(offset);
}

MAKER void one(const char *name, uint64_t ne, uint32_t id, uint64_t offset)
{
    tensor(name, 1, &ne, id, offset);
}

MAKER void zeros(size_t count)
{
    static const char zero[4096];

    for (; count > sizeof zero; count -= sizeof zero)
        put(zero, sizeof zero);
    put(zero, count);
}

MAKER void pad(size_t alignment)
{
    zeros((alignment - made_bytes % alignment) % alignment);
}

MAKER void save(const char *to, size_t bytes)
{
    FILE *stream = fopen(to, "wb");

    assert_non_null(stream);
    assert_true(fwrite(made, 1, bytes, stream) == bytes);
    assert_int_equal(fclose(stream), 0);
}

MAKER ridge_file *accept(void)
{
    ridge_file *file = NULL;

    save(path, made_bytes);
    if (ridge_file_open(path, &file) != RIDGE_OK)
        fail_msg("%s", ridge_io_error());
    assert_int_equal(ridge_file_format(file), RIDGE_GGUF);
    return file;
}

/* The message must have the file's path and both parts (NULL: none). */
MAKER void refuse(const char *part, const char *second)
{
    ridge_file *file = (void *)&file;

    save(path, made_bytes);
    if (ridge_file_open(path, &file) != RIDGE_ERR_FILE)
        fail_msg("accepted, should say: %s", part);
    assert_null(file);
    if (!strstr(ridge_io_error(), path) || !strstr(ridge_io_error(), part) ||
        (second && !strstr(ridge_io_error(), second)))
        fail_msg("'%s' lacks '%s' or '%s'", ridge_io_error(), part, second ? second : "");
}

MAKER int set_up(void **state)
{
    const char *parent = getenv("TMPDIR");

    (void)state;
    snprintf(directory, sizeof directory, "%.40s/ridge-XXXXXX", parent && strlen(parent) <= 40 ? parent : "/tmp");
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/a.gguf", directory);
    snprintf(other, sizeof other, "%s/b.gguf", directory);
    return 0;
}

MAKER int tear_down(void **state)
{
    (void)state;
    remove(path);
    remove(other);
    free(made);
    return rmdir(directory);
}

#endif

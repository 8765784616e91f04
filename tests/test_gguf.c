/* test_gguf.c: the GGUF reader and writer: round trips, damaged files, unusual but good ones, large ones. */
#include <time.h>

#include "gguf_file.h"

/* ------------------------------------------------------------------------------------------------------ round trips */

static const unsigned char many[] = {1, 0, 1, 1, 0, 1, 0, 0, 2, 3, 5, 7, 11, 13, 17, 19}; /* bools first */

/* Strings with a NUL, bytes that are not UTF-8, and nothing. */
static const char strings[] = "\3\0\0\0\0\0\0\0a\0b"
                              "\2\0\0\0\0\0\0\0\xff\xfe"
                              "\0\0\0\0\0\0\0\0";

typedef struct example {
    const char *name;
    uint32_t type;
    int32_t rank;
    int64_t shape[4];
} example;

static const example examples[] = {
    {"scalar", RIDGE_TYPE_F32, 0, {0}},      {"blk.0.a", RIDGE_TYPE_F16, 1, {7}},
    {"blk.0.b", RIDGE_TYPE_BF16, 2, {3, 5}}, {"blk.0.c", RIDGE_TYPE_Q8_0, 2, {3, 64}},
    {"d", RIDGE_TYPE_Q4_K, 3, {2, 1, 256}},  {"e", RIDGE_TYPE_IQ4_NL, 1, {32}},
    {"f", RIDGE_TYPE_F64, 4, {2, 1, 3, 2}},  {"g", RIDGE_TYPE_I8, 1, {1}},
    {"h", RIDGE_TYPE_I64, 1, {3}},           {"\xc3\xa9.weight", RIDGE_TYPE_MXFP4, 2, {1, 32}},
};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };

static unsigned char byte_of(int64_t i, int64_t b)
{
    return (unsigned char)(37 * i + 11 * b + 1);
}

static void write_examples(const char *to, const ridge_file *metas)
{
    static const int32_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    ridge_writer *writer;
    unsigned char data[2048];
    char name[32];
    int64_t index;

    assert_int_equal(ridge_writer_open(to, RIDGE_GGUF, &writer), RIDGE_OK);
    for (uint32_t kind = 0; !metas && kind <= RIDGE_META_F64; kind++) {
        ridge_meta meta = {name, kind, kind, 1, many, bytes[kind]};
        if (kind == RIDGE_META_ARRAY)
            continue;
        if (kind == RIDGE_META_STRING) {
            meta.data = strings;
            meta.bytes = 11;
        }
        snprintf(name, sizeof name, "plain.%u", (unsigned)kind);
        assert_int_equal(ridge_writer_meta(writer, &meta), RIDGE_OK);
        for (int64_t count = 0; count < 3; count += 2) { /* empty arrays, and arrays of 2 (3 strings) */
            meta = (ridge_meta){name, RIDGE_META_ARRAY, kind, count, many, count * bytes[kind]};
            if (kind == RIDGE_META_STRING && count)
                meta = (ridge_meta){name, RIDGE_META_ARRAY, kind, 3, strings, sizeof strings - 1};
            snprintf(name, sizeof name, "array.%u.%d", (unsigned)kind, (int)count);
            assert_int_equal(ridge_writer_meta(writer, &meta), RIDGE_OK);
        }
    }
    for (int64_t i = 0; metas && i < ridge_file_metas(metas); i++)
        assert_int_equal(ridge_writer_meta(writer, ridge_file_meta(metas, i)), RIDGE_OK);
    assert_int_equal(ridge_writer_meta_u32(writer, "general.alignment", 1024), RIDGE_OK); /* the writer's own */
    for (int64_t i = 0; i < EXAMPLES; i++) {
        const example *e = &examples[i];
        if (ridge_writer_tensor(writer, e->name, e->type, e->rank, e->shape, &index) != RIDGE_OK)
            fail_msg("%s", ridge_io_error());
        assert_int_equal(index, i);
    }
    assert_int_equal(ridge_writer_begin(writer), RIDGE_OK);
    for (int64_t i = 0; i < EXAMPLES; i++) {
        const ridge_type_info *info = ridge_type_query(examples[i].type);
        int64_t size = info->bytes;
        for (int32_t k = 0; k < examples[i].rank; k++)
            size *= k == examples[i].rank - 1 ? examples[i].shape[k] / info->block : examples[i].shape[k];
        for (int64_t b = 0; b < size; b++)
            data[b] = byte_of(i, b);
        assert_int_equal(ridge_writer_write(writer, i, 0, data, size), RIDGE_OK);
    }
    assert_int_equal(ridge_writer_finish(writer), RIDGE_OK);
}

static void load(const char *from)
{
    FILE *stream = fopen(from, "rb");
    int c;

    assert_non_null(stream);
    made_bytes = 0;
    while ((c = getc(stream)) != EOF)
        u8((unsigned)c);
    fclose(stream);
}

TEST(round_trip)
{
    ridge_file *file;
    const ridge_meta *meta;
    size_t bytes;

    write_examples(path, NULL);
    assert_int_equal(ridge_file_open(path, &file), RIDGE_OK);
    assert_int_equal(ridge_file_tensors(file), EXAMPLES);
    assert_int_equal(ridge_file_metas(file), 36);
    assert_null(ridge_file_meta_find(file, "general.alignment"));
    for (int64_t i = 0; i < EXAMPLES; i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        unsigned char data[2048];

        assert_string_equal(t->name, examples[i].name);
        assert_ptr_equal(t, ridge_file_find(file, t->name));
        assert_int_equal(t->type, examples[i].type);
        assert_int_equal(t->rank, examples[i].rank);
        assert_true(memcmp(t->shape, examples[i].shape, (size_t)t->rank * 8) == 0);
        assert_int_equal(t->offset % 32, 0);
        assert_int_equal(ridge_file_read(file, t, 0, data, t->bytes), RIDGE_OK);
        for (int64_t b = 0; b < t->bytes; b++)
            assert_int_equal(data[b], byte_of(i, b));
    }
    for (uint32_t kind = 0; kind <= RIDGE_META_F64; kind++) {
        char name[32];
        if (kind == RIDGE_META_ARRAY)
            continue;
        snprintf(name, sizeof name, "plain.%u", (unsigned)kind);
        meta = ridge_file_meta_find(file, name);
        assert_non_null(meta);
        assert_true(meta->kind == kind && meta->element == kind && meta->count == 1);
        assert_memory_equal(meta->data, kind == RIDGE_META_STRING ? (const void *)strings : many, (size_t)meta->bytes);
        snprintf(name, sizeof name, "array.%u.2", (unsigned)kind);
        meta = ridge_file_meta_find(file, name);
        assert_non_null(meta);
        assert_true(meta->kind == RIDGE_META_ARRAY && meta->element == kind);
        assert_int_equal(meta->count, kind == RIDGE_META_STRING ? 3 : 2);
        assert_memory_equal(meta->data, kind == RIDGE_META_STRING ? (const void *)strings : many, (size_t)meta->bytes);
        snprintf(name, sizeof name, "array.%u.0", (unsigned)kind);
        assert_int_equal(ridge_file_meta_find(file, name)->count, 0);
    }
    /* ggml wants the padding of the last tensor too; what is copied is the same file */
    assert_int_equal(ridge_file_bytes(file, 0) % 32, 0);
    write_examples(other, file);
    ridge_file_close(file);
    load(path);
    bytes = made_bytes;
    load(other);
    assert_int_equal(bytes, made_bytes);
    file = accept();
    ridge_file_close(file);
}

static void set_byte(const char *of, size_t at, unsigned value)
{
    FILE *stream = fopen(of, "r+b");

    assert_non_null(stream);
    assert_int_equal(fseek(stream, (long)at, SEEK_SET), 0);
    assert_int_equal(putc((int)value, stream), value);
    assert_int_equal(fclose(stream), 0);
}

/* Every beginning of a good file, and every bit of its header inverted: an error or not, but never worse. The file is
 * changed in place, since file systems take their time over files that are truncated and written again. */
TEST(damage)
{
    ridge_file *file;
    size_t bytes, data, end;

    write_examples(path, NULL);
    load(path);
    bytes = made_bytes;
    assert_int_equal(ridge_file_open(path, &file), RIDGE_OK);
    data = (size_t)ridge_file_tensor(file, 0)->offset;
    end = (size_t)ridge_file_tensor(file, EXAMPLES - 1)->offset + (size_t)ridge_file_tensor(file, EXAMPLES - 1)->bytes;
    ridge_file_close(file);
    save(other, bytes);
    for (size_t bit = 0; bit < 8 * data; bit++) {
        set_byte(other, bit / 8, made[bit / 8] ^ 1u << bit % 8);
        if (ridge_file_open(other, &file) == RIDGE_OK)
            ridge_file_close(file);
        else
            assert_true(file == NULL && strlen(ridge_io_error()) > 10);
        if (bit % 8 == 7)
            set_byte(other, bit / 8, made[bit / 8]);
    }
    for (size_t cut = bytes; cut-- > 0;) {
        assert_int_equal(truncate(other, (off_t)cut), 0);
        assert_int_equal(ridge_file_open(other, &file), cut < end ? RIDGE_ERR_FILE : RIDGE_OK);
        assert_true(cut >= end || (file == NULL && strstr(ridge_io_error(), other)));
        ridge_file_close(file);
    }
}

/* Gone bytes are an error of the read, not a signal. */
TEST(shrinking)
{
    unsigned char data[64];
    ridge_file *file;

    start(3, 1, 0);
    one("t", 64, 24, 0);
    pad(32);
    zeros(64);
    file = accept();
    assert_int_equal(truncate(path, (off_t)made_bytes - 10), 0);
    assert_int_equal(ridge_file_read(file, ridge_file_tensor(file, 0), 0, data, 54), RIDGE_OK);
    assert_int_equal(ridge_file_read(file, ridge_file_tensor(file, 0), 0, data, 55), RIDGE_ERR_FILE);
    ridge_file_close(file);
}

/* ------------------------------------------------------------------------------------------------------ unusual but
 * good */

TEST(unusual)
{
    ridge_file *file;
    uint64_t square[2] = {32, 3};

    for (uint32_t version = 2; version <= 3; version++) { /* empty, with and without padding */
        start(version, 0, 0);
        ridge_file_close(accept());
        pad(32);
        ridge_file_close(accept());
        u8(0);
        refuse("9 bytes follow the end of the data", NULL);
    }
    for (uint32_t alignment = 1; alignment <= 1u << 20; alignment *= 4) {
        start(3, 2, 1);
        key("general.alignment", RIDGE_META_U32);
        u32(alignment);
        one("a", 5, 24, 0);
        tensor("b", 2, square, 8, (5 + (uint64_t)alignment - 1) / alignment * alignment);
        pad(alignment);
        zeros(5);
        pad(alignment);
        zeros(102);
        file = accept(); /* the last padding may be missing */
        assert_int_equal(ridge_file_tensor(file, 1)->offset % alignment, 0);
        assert_int_equal(ridge_file_tensor(file, 1)->shape[0], 3);
        assert_int_equal(ridge_file_tensor(file, 1)->shape[1], 32);
        assert_int_equal(ridge_file_tensor(file, 1)->bytes, 102);
        ridge_file_close(file);
        pad(alignment);
        ridge_file_close(accept());
        u8(0);
        refuse("follow the end of the data", NULL);
    }
    start(3, 0, 2); /* larger than any buffer, and something after it */
    array("tokenizer.ggml.scores", RIDGE_META_F32, 300000);
    for (uint32_t i = 0; i < 300000; i++)
        u32(i);
    key("after", RIDGE_META_U8);
    u8(77);
    file = accept();
    assert_int_equal(*(const unsigned char *)ridge_file_meta_find(file, "after")->data, 77);
    assert_int_equal(ridge_file_meta(file, 0)->bytes, 1200000);
    assert_memory_equal((const char *)ridge_file_meta(file, 0)->data + 4 * 299999, "\xdf\x93\x04\0", 4);
    ridge_file_close(file);
    start(3, 0, 1);
    array("tokenizer.ggml.tokens", RIDGE_META_STRING, 100000);
    for (uint32_t i = 0; i < 100000; i++)
        text(i % 2 ? "token" : "\xff");
    file = accept();
    assert_int_equal(ridge_file_meta(file, 0)->bytes, 50000 * (8 + 5) + 50000 * (8 + 1));
    assert_memory_equal(ridge_file_meta(file, 0)->data, made + 24 + 8 + 21 + 4 + 4 + 8, 1100000);
    ridge_file_close(file);
}

/* What the writer must not write. */
TEST(not_written)
{
    int64_t shape[5] = {1, 1, 0, 1, 32}, index;
    ridge_writer *writer;

    remove(other);
    assert_int_equal(ridge_writer_open(other, RIDGE_GGUF, &writer), RIDGE_OK);
    assert_int_not_equal(ridge_writer_tensor(writer, "t", RIDGE_TYPE_F8_E4M3, 1, shape, &index), RIDGE_OK);
    assert_int_not_equal(ridge_writer_tensor(writer, "t", RIDGE_TYPE_U8, 1, shape, &index), RIDGE_OK);
    ridge_writer_abort(writer);
    assert_int_equal(ridge_writer_open(other, RIDGE_GGUF, &writer), RIDGE_OK);
    if (ridge_writer_tensor(writer, "t", RIDGE_TYPE_F32, 3, shape, &index) == RIDGE_OK) {
        assert_int_equal(ridge_writer_begin(writer), RIDGE_ERR_ARG);
        assert_non_null(strstr(ridge_io_error(), "dimension"));
    }
    ridge_writer_abort(writer);
    assert_int_not_equal(access(other, F_OK), 0);
}

/* -----------------------------------------------------------------------------------------------------------------
 * size */

TEST(million)
{
    enum { MANY = 1000000 };
    ridge_file *file;
    char name[32];
    clock_t begin;
    double seconds;

    start(3, MANY, MANY + 1);
    key("general.alignment", RIDGE_META_U32);
    u32(1);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        key(name, RIDGE_META_U8);
        u8(0);
    }
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        one(name, 1, 24, (uint64_t)i);
    }
    zeros(MANY);
    save(path, made_bytes);
    begin = clock(); /* CPU time: other programs do not count */
    assert_int_equal(ridge_file_open(path, &file), RIDGE_OK);
    seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    print_message("%d tensors and as many keys in %.2f s\n", (int)MANY, seconds);
#ifndef RIDGE_SANITIZED
    assert_true(seconds < 2.0);
#endif
    assert_int_equal(ridge_file_tensors(file), MANY);
    assert_non_null(ridge_file_find(file, "blk.999999.weight"));
    ridge_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip),  cmocka_unit_test(damage),
                                       cmocka_unit_test(shrinking),   cmocka_unit_test(unusual),
                                       cmocka_unit_test(not_written), cmocka_unit_test(million)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* test_io_safetensors.c: every rule of the safetensors format, and what must be accepted. */
#include <time.h>

#include "test_io.h"

typedef struct bad {
    const char *header;
    size_t data;
    const char *first, *second; /* both must be in the message */
} bad;

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Fields of an entry. */
static const bad entry[] = {
    {"{" T("w", "F31", "[1]", "[0,4]") "}", 4, "\"w\"", "\"F31\""},
    {"{" T("w", "f32", "[1]", "[0,4]") "}", 4, "\"w\"", "\"f32\""},
    {"{" T("w", "", "[1]", "[0,4]") "}", 4, "\"w\"", "dtype \"\""},
    {"{" T("w", "F32\\u0000", "[1]", "[0,4]") "}", 4, "\"w\"", "dtype"},
    {"{" T("w", "Q8_0", "[32]", "[0,34]") "}", 34, "\"w\"", "\"Q8_0\""},
    {"{\"w\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"w\"", "dtype is an integer"},
    {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"w\"", "dtype is missing"},
    {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"w\"", "shape is missing"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"w\"", "data_offsets are missing"},
    {"{\"w\":{}}", 0, "\"w\"", "dtype is missing"},
    {"{\"w\":[]}", 0, "\"w\"", "an array instead of an object"},
    {"{\"w\":null}", 0, "\"w\"", "null instead of an object"},
    {"{\"w\":\"F32\"}", 0, "\"w\"", "a string instead"},
    {"{" T("w", "F32", "{}", "[0,4]") "}", 4, "\"w\"", "shape is an object"},
    {"{" T("w", "F32", "1", "[0,4]") "}", 4, "\"w\"", "shape is an integer"},
    {"{" T("w", "F32", "[[1]]", "[0,4]") "}", 4, "\"w\"", "shape holds an array"},
    {"{" T("w", "F32", "[-1]", "[0,4]") "}", 4, "\"w\"", "shape holds -1"},
    {"{" T("w", "F32", "[1.0]", "[0,4]") "}", 4, "\"w\"", "no integer"},
    {"{" T("w", "F32", "[1e0]", "[0,4]") "}", 4, "\"w\"", "no integer"},
    {"{" T("w", "F32", "[\"1\"]", "[0,4]") "}", 4, "\"w\"", "shape holds a string"},
    {"{" T("w", "F32", "[true]", "[0,4]") "}", 4, "\"w\"", "shape holds true"},
    {"{" T("w", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "\"w\"", "too big integer"},
    {"{" T("w", "F32", "[18446744073709551617]", "[0,4]") "}", 4, "\"w\"", "too big integer"},
    {"{" T("w", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "\"w\"", "rank 9"},
    {"{" T("w", "F32", "[1]", "{}") "}", 4, "\"w\"", "data_offsets are an object"},
    {"{" T("w", "F32", "[1]", "[4]") "}", 4, "\"w\"", "another size"},
    {"{" T("w", "F32", "[1]", "[0,4,8]") "}", 4, "\"w\"", "another size"},
    {"{" T("w", "F32", "[1]", "[-4,0]") "}", 4, "\"w\"", "data_offsets holds -4"},
    {"{" T("w", "F32", "[1]", "[0.0,4]") "}", 4, "\"w\"", "no integer"},
    {"{" T("w", "F32", "[1]", "[0,null]") "}", 4, "\"w\"", "holds null"},
    {"{" T("w", "F32", "[1]", "[4,0]") "}", 4, "\"w\"", "[4, 0]"},
    {"{" T("w", "F32", "[1]", "[0,8]") "}", 4, "\"w\"", "[0, 8]"},
    {"{" T("w", "F32", "[1]", "[0,9223372036854775807]") "}", 4, "\"w\"", "9223372036854775807"},
    {"{" T("w", "I8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 4, "\"w\"", "not within the data"},
    {"{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"w\"", "duplicate"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"w\"", "duplicate"},
};

/* Sizes. */
static const bad size[] = {
    {"{" T("w", "F32", "[2]", "[0,4]") "}", 4, "\"w\"", "needs 8 bytes"},
    {"{" T("w", "F32", "[1]", "[0,8]") "}", 8, "\"w\"", "needs 4 bytes"},
    {"{" T("w", "F32", "[]", "[0,0]") "}", 0, "\"w\"", "needs 4 bytes"},
    {"{" T("w", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "I8", "[4294967296,2147483648,2]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "I8", "[9223372036854775807,2]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "F32", "[2305843009213693952]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "F64", "[4611686018427387904]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "F32", "[1099511627776,1099511627776,0]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "F32", "[0,1099511627776,1099511627776]", "[0,0]") "}", 0, "\"w\"", "overflow"},
    {"{" T("w", "F4", "[3]", "[0,2]") "}", 2, "\"w\"", "no whole bytes"},
    {"{" T("w", "F6_E2M3", "[3]", "[0,3]") "}", 3, "\"w\"", "no whole bytes"},
    {"{" T("w", "F6_E3M2", "[2]", "[0,2]") "}", 2, "\"w\"", "no whole bytes"},
    {"{" T("w", "F4", "[]", "[0,1]") "}", 1, "\"w\"", "no whole bytes"},
};

/* The data is tiled exactly. */
static const bad tiling[] = {
    {"{}", 1, "ends at 0", "1 bytes of data"},
    {"{" T("w", "U8", "[4]", "[0,4]") "}", 5, "ends at 4", "5 bytes"},
    {"{" T("w", "U8", "[4]", "[1,5]") "}", 5, "\"w\"", "hole"},
    {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[5,9]") "}", 9, "\"b\"", "hole"},
    {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[3,7]") "}", 7, "\"b\"", "overlap"},
    {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[0,4]") "}", 4, "\"b\"", "overlap"},
    {"{" T("b", "U8", "[2]", "[1,3]") "," T("a", "U8", "[4]", "[0,4]") "}", 4, "\"b\"", "overlap"},
    {"{" T("a", "U8", "[4]", "[0,4]") "," T("z", "U8", "[0]", "[2,2]") "}", 4, "\"z\"", "overlap"},
    {"{" T("z", "U8", "[0]", "[4,4]") "}", 4, "\"z\"", "hole"},
};

/* The JSON around the entries, names and metadata. */
static const bad json[] = {
    {"", 0, "'{'", "byte 8"},
    {" {}", 0, "'{'", "byte 8"},
    {"[]", 0, "'{'", "byte 8"},
    {"{", 0, "byte 9", "JSON"},
    {"{\"", 0, "byte 10", "JSON"},
    {"{\"w\"", 0, "':'", "JSON"},
    {"{\"w\":", 0, "\"w\"", "JSON"},
    {"{\"w\":}", 0, "\"w\"", "JSON"},
    {"{\"w\":{\"dtype\":\"F32\"", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[0]", "[0,0]"), 0, "','", "JSON"},
    {"{" T("w", "U8", "[0]", "[0,0]") ",}", 0, "quotes", "JSON"},
    {"{," T("w", "U8", "[0]", "[0,0]") "}", 0, "quotes", "JSON"},
    {"{" T("w", "U8", "[0]", "[0,0]") " " T("x", "U8", "[0]", "[0,0]") "}", 0, "','", "JSON"},
    {"{" T("w", "U8", "[0,]", "[0,0]") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[00]", "[0,0]") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[,0]", "[0,0]") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[0,,0]", "[0,0]") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[0", "[0,0]") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[0]", "[0,00]") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[0]", "[0,0") "}", 0, "\"w\"", "JSON"},
    {"{" T("w", "U8", "[1]", "[0,01]") "}", 1, "\"w\"", "JSON"},
    {"{w:{}}", 0, "quotes", "JSON"},
    {"{'w':{}}", 0, "quotes", "JSON"},
    {"{}x", 0, "byte 10", "more follows"},
    {"{}{}", 0, "byte 10", "more follows"},
    {"{" T("w", "U8", "[0]", "[0,0]") "," T("w", "U8", "[0]", "[0,0]") "}", 0, "\"w\"", "two of this name"},
    {"{" T("w", "U8", "[1]", "[0,1]") "," T("w", "U8", "[1]", "[0,1]") "}", 1, "\"w\"", "two of this name"},
    {"{" T("w", "U8", "[0]", "[0,0]") "," T("\\u0077", "U8", "[0]", "[0,0]") "}", 0, "\"w\"", "two of this name"},
    {"{" T("a\\u0000b", "U8", "[0]", "[0,0]") "}", 0, "NUL", "name"},
    {"{" T("a\xff", "U8", "[0]", "[0,0]") "}", 0, "decode", "byte"},
    {"{" T("a\xc0\x80", "U8", "[0]", "[0,0]") "}", 0, "decode", "byte"},
    {"{" T("a\xed\xa0\x80", "U8", "[0]", "[0,0]") "}", 0, "decode", "byte"},
    {"{" T("a\xf4\x90\x80\x80", "U8", "[0]", "[0,0]") "}", 0, "decode", "byte"},
    {"{" T("a\\ud800", "U8", "[0]", "[0,0]") "}", 0, "JSON", "byte"},
    {"{" T("a\n", "U8", "[0]", "[0,0]") "}", 0, "JSON", "byte"},
    {"{" T("a\\x", "U8", "[0]", "[0,0]") "}", 0, "JSON", "byte"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "\"k\"", "an integer instead of a string"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, "\"k\"", "an object instead of a string"},
    {"{\"__metadata__\":{\"k\":null}}", 0, "\"k\"", "null"},
    {"{\"__metadata__\":{\"k\":\"a\",\"k\":\"b\"}}", 0, "\"k\"", "two of this name"},
    {"{\"__metadata__\":[]}", 0, "'{'", "byte"},
    {"{\"__metadata__\":\"x\"}", 0, "'{'", "byte"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "two __metadata__", "__"},
};

static void all(const bad *list, size_t count)
{
    const char *path = in_directory("bad.safetensors");

    for (size_t i = 0; i < count; i++) {
        put_safetensors(path, list[i].header, list[i].data);
        refused(path, list[i].first, list[i].second);
    }
}

TEST(rules)
{
    all(entry, sizeof entry / sizeof entry[0]);
    all(size, sizeof size / sizeof size[0]);
    all(tiling, sizeof tiling / sizeof tiling[0]);
    all(json, sizeof json / sizeof json[0]);
}

TEST(accepted)
{
    static const struct {
        const char *header;
        size_t data;
    } good[] = {
        {"{}", 0},
        {"{}   ", 0},
        {"{}\n", 0},
        {"{ \"__metadata__\" : { } }", 0},
        {"{\"__metadata__\":{\"a\":\"\\u0000\\ud83d\\ude00\"}}", 0},
        {"{" T("w", "F32", "[]", "[0,4]") "}", 4},
        {"{" T("w", "F32", "[0]", "[0,0]") "}", 0},
        {"{" T("w", "F32", "[4,0,1000000]", "[0,0]") "}", 0},
        {"{" T("w", "F4", "[2,3]", "[0,3]") "," T("x", "F6_E2M3", "[4]", "[3,6]") "}", 6},
        {"{" T("w", "U8", "[1,1,1,1,1,1,1,2]", "[0,2]") "}", 2},
        {"{" T("b", "U8", "[2]", "[4,6]") "," T("z", "U8", "[0]", "[4,4]") "," T("a", "I32", "[1]", "[0,4]") "}", 6},
        {"{" T("a", "U8", "[1]", "[0,1]") "," T("b", "F64", "[1]", "[1,9]") "}", 9}, /* not aligned: legal */
        {"{" T("w", "\\u0055\\u0038", "[1]", "[0,1]") "}", 1},
        {"{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", " [ 1 , 2 ]", "[1 ,3]") " ," T("c", "U8", "[1]",
                                                                                          "[3,4]") "}",
         4},
        {"{\"w\":{\"data_offsets\":[0,4],\"new\":[{}],\"shape\":[1],\"dtype\":\"F32\"}}", 4},
        {"{" T("", "U8", "[1]", "[0,1]") "}", 1},
    };
    const char *path = in_directory("good.safetensors");

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        put_safetensors(path, good[i].header, good[i].data);
        ridge_file_close(opened(path));
    }
}

TEST(contents)
{
    const char *path = in_directory("contents.safetensors");
    const ridge_entry *t;
    unsigned char byte[6];
    ridge_file *file;
    uint64_t length;

    put_safetensors(path,
                    "{\"__metadata__\":{\"k\":\"a\\\"\\u00e9\"}," T("b", "U8", "[2]",
                                                                    "[4,6]") "," T("a", "F16", "[1,2]", "[0,4]") "}",
                    6);
    file = opened(path);
    assert_int_equal(ridge_file_format(file), RIDGE_SAFETENSORS);
    assert_int_equal(ridge_file_shards(file), 1);
    assert_string_equal(ridge_file_path(file, 0), path);
    assert_null(ridge_file_path(file, 1));
    assert_int_equal(ridge_file_bytes(file, -1), -1);
    assert_int_equal(ridge_file_tensors(file), 2);
    t = ridge_file_tensor(file, 0); /* in the order of the data */
    assert_string_equal(t->name, "a");
    assert_ptr_equal(t, ridge_file_find(file, "a"));
    assert_int_equal(t->type, RIDGE_TYPE_F16);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[1], 2);
    assert_int_equal(t->elements, 2);
    assert_int_equal(t->bytes, 4);
    assert_int_equal(t->offset + 6, ridge_file_bytes(file, 0));
    assert_int_equal(ridge_file_read(file, t, 1, byte, 3), RIDGE_OK);
    assert_memory_equal(byte, "\1\2\3", 3);
    t = ridge_file_find(file, "b");
    assert_int_equal(ridge_file_read(file, t, 0, byte, 2), RIDGE_OK);
    assert_memory_equal(byte, "\4\5", 2);
    assert_int_equal(ridge_file_read(file, t, 2, NULL, 0), RIDGE_OK);
    assert_int_equal(ridge_file_read(file, t, 1, byte, 2), RIDGE_ERR_ARG);
    assert_int_equal(ridge_file_read(file, t, -1, byte, 1), RIDGE_ERR_ARG);
    assert_int_equal(ridge_file_read(file, t, 3, byte, 0), RIDGE_ERR_ARG);
    assert_int_equal(ridge_file_read(file, t, 1, byte, INT64_MAX), RIDGE_ERR_ARG);
    assert_int_equal(ridge_file_read(file, t, 0, NULL, 1), RIDGE_ERR_ARG);
    assert_int_equal(ridge_file_read(file, NULL, 0, byte, 1), RIDGE_ERR_ARG);
    assert_null(ridge_file_find(file, "c"));
    assert_null(ridge_file_tensor(file, 2));
    assert_int_equal(ridge_file_metas(file), 1);
    assert_null(ridge_file_meta_find(file, "x"));
    assert_non_null(ridge_file_meta_find(file, "k"));
    assert_int_equal(ridge_file_meta(file, 0)->kind, RIDGE_META_STRING);
    memcpy(&length, ridge_file_meta(file, 0)->data, 8);
    assert_int_equal(length, 4);
    assert_memory_equal((const char *)ridge_file_meta(file, 0)->data + 8, "a\"\xc3\xa9", 4);
    ridge_file_close(file);
}

/* Every dtype of the format, with its size. */
TEST(dtypes)
{
    static const struct {
        const char *name;
        int bits;
    } list[] = {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
                {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
                {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
                {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
    const char *path = in_directory("dtype.safetensors");
    char header[200];

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        size_t bytes = (size_t)list[i].bits * 12 / 8;
        ridge_file *file;

        snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"%s\",\"shape\":[3,4],\"data_offsets\":[0,%zu]}}",
                 list[i].name, bytes);
        put_safetensors(path, header, bytes);
        file = opened(path);
        assert_string_equal(ridge_type_query(ridge_file_tensor(file, 0)->type)->name, list[i].name);
        assert_int_equal(ridge_file_tensor(file, 0)->bytes, bytes);
        ridge_file_close(file);
    }
}

/* Each prefix of a file is refused, and so is the file with a byte more. */
TEST(truncated)
{
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"}," T("a", "F16", "[1,2]", "[0,4]") "," T("b", "U8", "[3]", "[4,7]") "}  ";
    const char *path = in_directory("cut.safetensors");
    char bytes[sizeof header + 64];
    size_t count = 8 + sizeof header - 1 + 7;
    uint64_t length = sizeof header - 1;

    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, sizeof header - 1);
    put_file(path, bytes, count);
    ridge_file_close(opened(path));
    for (size_t cut = 0; cut < count; cut++) {
        put_file(path, bytes, cut);
        refused(path, "cut.safetensors", "");
    }
    put_file(path, bytes, count + 1);
    refused(path, "bytes of data", "");
}

TEST(header_length)
{
    static const uint64_t wrong[] = {3,         100000000,         100000001,      UINT64_C(1) << 32,
                                     INT64_MAX, UINT64_C(1) << 63, UINT64_MAX - 7, UINT64_MAX};
    const char *path = in_directory("length.safetensors");
    char bytes[10] = "........{}";

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char number[24];
        memcpy(bytes, &wrong[i], 8);
        put_file(path, bytes, sizeof bytes);
        snprintf(number, sizeof number, "%llu", (unsigned long long)wrong[i]);
        refused(path, number, "header");
    }
}

/* Deep and long values: an error, with bounded stack and memory. */
TEST(nested)
{
    const char *path = in_directory("nested.safetensors");
    size_t depth = 200000;
    char *header = malloc(depth + 32);

    assert_non_null(header);
    memcpy(header, "{\"w\":", 5);
    memset(header + 5, '[', depth);
    header[5 + depth] = 0;
    put_safetensors(path, header, 0);
    refused(path, "\"w\"", "");
    memcpy(header, "{\"w\":[", 6);
    for (size_t i = 0; i < depth / 3; i++)
        memcpy(header + 6 + 3 * i, "[],", 3);
    header[6 + depth / 3 * 3] = 0;
    put_safetensors(path, header, 0);
    refused(path, "\"w\"", "longer than 65536");
    free(header);
}

/* ------------------------------------------------------------------------------------------------------------- size */

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* other tests may be running */
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Written backwards, so that the offsets must be sorted; the names share long prefixes. */
TEST(million)
{
    enum { COUNT = 1000000 };
    const char *path = in_directory("million.safetensors");
    char *header = malloc(100 * COUNT), *to = header;
    char name[32];
    ridge_file *file = NULL;
    double best = 1e9;
#ifdef RIDGE_SANITIZED
    double limit = 60;
#else
    double limit = 1;
#endif

    assert_non_null(header);
    for (int i = COUNT - 1; i >= 0; i--)
        to += sprintf(to, "%c\"layer.%07d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i == COUNT - 1 ? '{' : ',', i, i, i + 1);
    strcpy(to, "}");
    put_safetensors(path, header, COUNT);
    free(header);
    for (int i = 0; i < 40 && best >= limit; i++) { /* other programs on the same core make it slower */
        double begin = seconds(), spent;

        ridge_file_close(file);
        file = opened(path);
        spent = seconds() - begin;
        best = spent < best ? spent : best;
    }
    print_message("a million tensors: opened in %.2f s\n", best);
    assert_true(best < limit);
    assert_int_equal(ridge_file_tensors(file), COUNT);
    for (int i = 0; i < COUNT; i += 9973) {
        snprintf(name, sizeof name, "layer.%07d", i);
        assert_ptr_equal(ridge_file_find(file, name), ridge_file_tensor(file, i));
    }
    ridge_file_close(file);
}

int run_safetensors_tests(void)
{
    const struct CMUnitTest safetensors[] = {
        cmocka_unit_test(rules),  cmocka_unit_test(accepted),  cmocka_unit_test(contents),
        cmocka_unit_test(dtypes), cmocka_unit_test(truncated), cmocka_unit_test(header_length),
        cmocka_unit_test(nested), cmocka_unit_test(million),
    };

    return cmocka_run_group_tests(safetensors, NULL, NULL);
}

/* test_gguf_bad.c: crafted GGUF files, each of which must be refused with a message that names the key or tensor and
 * the value. Several are the known holes of other readers. */
#include "gguf_file.h"

/* ---------------------------------------------------------------------------------------------------- crafted files */

TEST(bad_version)
{
    made_bytes = 0;
    put("GGUF", 4);
    refuse("the version", "ends at 4");
    start(1, 0, 0);
    refuse("version 1", "2 and 3");
    start(0, 0, 0);
    refuse("version 0", NULL);
    start(4, 0, 0);
    refuse("version 4", NULL);
    start(0x03000000, 0, 0);
    refuse("big-endian", NULL);
}

TEST(large_counts)
{
    static const uint64_t large[] = {
        3,          1u << 31, 1ull << 32,     1ull << 62,
        1ull << 63, ~0ull,    ~0ull / 25 + 1, ~0ull / 14 + 1}; /* the last two wrap when multiplied by the least size */

    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        char number[32];
        snprintf(number, sizeof number, "%llu", (unsigned long long)large[i]);
        start(3, large[i], 0);
        zeros(60);
        refuse(number, "tensors do not fit");
        start(3, 0, large[i]);
        zeros(40);
        refuse(number, "metadata entries do not fit");
        start(3, 0, 1);
        array("some.array", RIDGE_META_STRING, large[i]);
        zeros(20);
        refuse("some.array", number);
        if (i > 0) {
            start(3, 0, 1);
            array("some.array", RIDGE_META_U64, large[i]);
            zeros(20);
            refuse("some.array", number);
            start(3, 0, 1);
            key("some.string", RIDGE_META_STRING);
            u64(large[i]);
            zeros(20);
            refuse("some.string", number);
            start(3, 0, 1);
            array("some.array", RIDGE_META_STRING, 1);
            u64(large[i]);
            zeros(20);
            refuse("some.array", number);
            start(3, 0, 1);
            u64(large[i]);
            zeros(20);
            refuse("metadata 0", number);
            start(3, 1, 0);
            u64(large[i]);
            zeros(40);
            refuse("tensor 0", number);
        }
    }
}

static void entry(const char *name, size_t bytes) /* one bool of value 1 */
{
    u64(bytes);
    put(name, bytes);
    u32(RIDGE_META_BOOL);
    u8(1);
}

TEST(bad_metadata)
{
    start(3, 0, 2);
    entry("a.key", 5);
    entry("a.key", 5);
    refuse("a.key", NULL);
    start(3, 0, 1);
    entry("", 0);
    zeros(8);
    refuse("metadata 0", "has 0 bytes");
    start(3, 0, 1);
    entry("\xc3(", 2);
    refuse("not UTF-8", NULL);
    start(3, 0, 1);
    entry("a\0b", 3);
    refuse("NUL", NULL);
    start(3, 0, 1);
    key("flag", RIDGE_META_BOOL);
    u8(2);
    refuse("flag", "is 2, must be 0 or 1");
    start(3, 0, 1);
    array("flags", RIDGE_META_BOOL, 3);
    u8(1);
    u8(0);
    u8(255);
    refuse("flags", "bool 2 is 255");
    start(3, 0, 1);
    array("nested", RIDGE_META_ARRAY, 1);
    u32(RIDGE_META_U8);
    u64(1);
    u8(1);
    refuse("nested", "array of arrays");
    start(3, 0, 1);
    key("kind", 13);
    zeros(16);
    refuse("kind", "no kind 13");
    start(3, 0, 1);
    array("kind", ~0u, 1);
    zeros(16);
    refuse("kind", "no kind 4294967295");
}

TEST(bad_alignment)
{
    static const uint32_t wrong[] = {0, 3, 24, 1u << 21, 1u << 31, ~0u};

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char number[32];
        start(3, 0, 1);
        key("general.alignment", RIDGE_META_U32);
        u32(wrong[i]);
        snprintf(number, sizeof number, "is %u,", (unsigned)wrong[i]);
        refuse("general.alignment", number);
    }
    for (uint32_t kind = 0; kind <= RIDGE_META_F64; kind++) { /* right value, wrong kind */
        if (kind == RIDGE_META_U32)
            continue;
        start(3, 0, 1);
        key("general.alignment", kind);
        u32(kind == RIDGE_META_BOOL ? 1 : kind == RIDGE_META_STRING ? 0 : kind == RIDGE_META_ARRAY ? 4 : 32);
        u64(kind == RIDGE_META_ARRAY ? 1 : 0);
        u32(32);
        refuse("general.alignment", "must be u32");
    }
}

TEST(bad_shapes)
{
    static const struct {
        uint32_t rank, id;
        uint64_t ne[4];
        const char *part;
    } shapes[] = {
        {2, 0, {1ull << 32, 1ull << 32}, "overflows"}, /* the product wraps to 0 */
        {3, 24, {1ull << 32, 1ull << 31, 2}, "overflows"},
        {2, 8, {1ull << 33, 1ull << 31}, "overflows"},
        {4, 0, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}, "overflows"},
        {2, 0, {1ull << 31, 1ull << 31}, "overflows"}, /* the elements do not, their bytes do */
        {1, 28, {1ull << 60}, "overflows"},
        {1, 24, {(1ull << 63) - 1}, "do not fit into a file"},
        {1, 24, {1ull << 62}, "do not fit into a file"},
        {2, 24, {1ull << 30, 1ull << 30}, "do not fit into a file"},
        {1, 24, {1ull << 63}, "must be at least 1"},
        {1, 24, {~0ull}, "is -1"},
        {1, 0, {0}, "dimension 0 is 0"},
        {2, 0, {0, 1ull << 63}, "dimension 0 is 0"},
        {2, 0, {4, 0}, "dimension 1 is 0"},
        {1, 8, {33}, "not whole blocks of Q8_0"},
        {2, 8, {16, 2}, "not whole blocks of Q8_0"}, /* blocks do not span rows */
        {1, 12, {128}, "not whole blocks of Q4_K"},
        {0, 8, {0}, "not whole blocks"},
        {1, 4, {32}, "no type 4"}, /* dropped by ggml */
        {1, 31, {32}, "no type 31"},
        {1, 43, {32}, "no type 43"},
        {1, ~0u, {32}, "no type 4294967295"},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        start(3, 1, 0);
        tensor("shapely", shapes[i].rank, shapes[i].ne, shapes[i].id, 0);
        pad(32);
        zeros(4096);
        refuse("shapely", shapes[i].part);
    }
    for (uint32_t rank = 5; rank; rank <<= 1) {
        char number[32];
        start(3, 1, 0);
        text("shapely");
        u32(rank);
        zeros(4096);
        snprintf(number, sizeof number, "has %u dimensions", (unsigned)rank);
        refuse("shapely", number);
    }
}

TEST(bad_tensors)
{
    static const uint64_t offsets[] = {0, 1, 4, 31, 33, 64, 1ull << 32, 1ull << 63, ~0ull};

    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) { /* 32 is right */
        start(3, 2, 0);
        one("first", 1, 0, 0);
        one("second", 1, 0, offsets[i]);
        pad(32);
        zeros(128);
        refuse("second", "must be at 32");
    }
    start(3, 1, 0);
    one("first", 1, 0, 32);
    zeros(128);
    refuse("first", "must be at 0");
    start(3, 2, 0);
    one("same", 1, 0, 0);
    one("same", 1, 0, 32);
    pad(32);
    zeros(64);
    refuse("same", NULL);
    start(3, 1, 0);
    one("", 1, 0, 0);
    zeros(128);
    refuse("tensor 0", "has 0 bytes");
    start(3, 1, 0);
    one("\xed\xa0\x80", 1, 0, 0); /* a surrogate */
    zeros(128);
    refuse("tensor 0", "UTF-8");
    start(3, 1, 0); /* larger than the file, larger than what the header leaves, and by one byte */
    one("big", 1000, 0, 0);
    pad(32);
    zeros(64);
    refuse("big", "4000 bytes");
    start(3, 1, 0);
    one("big", 100, 24, 0);
    pad(32);
    zeros(64);
    refuse("big", "ends at byte");
    start(3, 2, 0);
    one("first", 1, 24, 0);
    one("last", 100, 24, 32);
    pad(32);
    zeros(32 + 99);
    refuse("last", "ends at byte");
    u8(0);
    ridge_file_close(accept());
    start(3, 1, 1); /* padded sums that would wrap */
    key("general.alignment", RIDGE_META_U32);
    u32(1u << 20);
    one("big", (1ull << 63) - 1, 24, 0);
    zeros(4096);
    refuse("big", "do not fit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_version),  cmocka_unit_test(large_counts),
                                       cmocka_unit_test(bad_metadata), cmocka_unit_test(bad_alignment),
                                       cmocka_unit_test(bad_shapes),   cmocka_unit_test(bad_tensors)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* test_io.c: ridge_io but for the formats' rules: round trips, sharded checkpoints, failing disks, large files. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test_io.h"

static char directory[256];

/* ---------------------------------------------------------------------------------------------------------- helpers */

const char *in_directory(const char *name)
{
    static char path[8][512];
    static int next;

    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", directory, name);
    return path[next];
}

void put_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void put_safetensors(const char *path, const char *header, size_t data)
{
    size_t length = strlen(header);
    unsigned char *bytes = malloc(8 + length + data);

    assert_non_null(bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data; i++)
        bytes[8 + length + i] = (unsigned char)i;
    put_file(path, bytes, 8 + length + data);
    free(bytes);
}

void refused(const char *path, const char *first, const char *second)
{
    ridge_file *file = (void *)1;
    ridge_status status = ridge_file_open(path, &file);
    const char *text = ridge_io_error(), *name = strrchr(path, '/');

    if (status != RIDGE_ERR_FILE || file || !strstr(text, name ? name + 1 : path) || !strstr(text, first) ||
        !strstr(text, second))
        fail_msg("%s: status %d, \"%s\" lacks \"%s\" or \"%s\"", path, (int)status, status ? text : "", first, second);
}

ridge_file *opened(const char *path)
{
    ridge_file *file = NULL;

    if (ridge_file_open(path, &file) != RIDGE_OK)
        fail_msg("%s", ridge_io_error());
    return file;
}

int entries_in(const char *name)
{
    DIR *list = opendir(name);
    int count = 0;

    assert_non_null(list);
    while (readdir(list))
        count++;
    closedir(list);
    return count - 2;
}

static void make_directory(const char *path)
{
    assert_int_equal(mkdir(path, 0777), 0);
}

#define ok(call)                              \
    do {                                      \
        if ((call) != RIDGE_OK)               \
            fail_msg("%s", ridge_io_error()); \
    } while (0)

/* One tensor "name" of `count` bytes. */
static ridge_writer *begun(const char *path, const char *name, int64_t count)
{
    ridge_writer *w;

    ok(ridge_writer_open(path, RIDGE_SAFETENSORS, &w));
    ok(ridge_writer_tensor(w, name, RIDGE_TYPE_U8, 1, &count, NULL));
    ok(ridge_writer_begin(w));
    return w;
}

static void write_small(const char *path, const char *name)
{
    ridge_writer *w = begun(path, name, 3);

    ok(ridge_writer_write(w, 0, 0, "abc", 3));
    ok(ridge_writer_finish(w));
}

/* ------------------------------------------------------------------------------------------------------ round trips */

static const uint32_t types[] = {RIDGE_TYPE_F4,      RIDGE_TYPE_U8,  RIDGE_TYPE_BF16, RIDGE_TYPE_F64,
                                 RIDGE_TYPE_F6_E3M2, RIDGE_TYPE_F32, RIDGE_TYPE_I64,  RIDGE_TYPE_BOOL,
                                 RIDGE_TYPE_F8_E4M3, RIDGE_TYPE_C64};
enum { TYPES = sizeof types / sizeof types[0] };
static const char odd[] = "\"\\/\b\f\n\r\t\x01\x7f{}[],: \xc3\xa9\xf0\x9f\x98\x80\xe2\x80\xa8";

static void declare(ridge_writer *w, int64_t index[TYPES])
{
    static const int64_t shape[] = {3, 5, 4};
    char name[80];

    ok(ridge_writer_meta_string(w, odd, odd));
    ok(ridge_writer_meta_string(w, "twice", "first"));
    ok(ridge_writer_meta_string(w, "twice", "second"));
    ok(ridge_writer_meta_string(w, "empty", ""));
    for (int i = 0; i < TYPES; i++) {
        snprintf(name, sizeof name, "%d%s", i, odd);
        ok(ridge_writer_tensor(w, name, types[i], i % 3 + 1, shape + 2 - i % 3, &index[i]));
    }
    ok(ridge_writer_tensor(w, "scalar", RIDGE_TYPE_F32, 0, NULL, NULL));
    ok(ridge_writer_tensor(w, "none", RIDGE_TYPE_F32, 3, (int64_t[]){2, 0, 4}, NULL));
}

static void meta_is(const ridge_file *file, const char *key, const char *value)
{
    const ridge_meta *meta = ridge_file_meta_find(file, key);
    uint64_t length = 0;

    assert_non_null(meta);
    memcpy(&length, meta->data, 8);
    assert_int_equal(length, strlen(value));
    assert_int_equal(meta->bytes, length + 8);
    assert_memory_equal((const char *)meta->data + 8, value, length);
}

TEST(round_trip)
{
    const char *path = in_directory("round.safetensors");
    unsigned char data[600], back[600];
    int64_t index[TYPES];
    ridge_writer *w;
    ridge_file *file;

    ok(ridge_writer_open(path, RIDGE_SAFETENSORS, &w));
    declare(w, index);
    ok(ridge_writer_begin(w));
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37);
    for (int i = TYPES - 1; i >= 0; i--) { /* backwards, in two parts, the second first */
        int64_t bytes = w->tensor[index[i]].bytes;
        ok(ridge_writer_write(w, index[i], 1, data + i + 1, bytes - 1));
        ok(ridge_writer_write(w, index[i], 0, data + i, 1));
    }
    ok(ridge_writer_write(w, TYPES, 0, "1234", 4));
    ok(ridge_writer_write(w, TYPES + 1, 0, NULL, 0));
    ok(ridge_writer_finish(w));
    file = opened(path);
    assert_int_equal(ridge_file_tensors(file), TYPES + 2);
    assert_int_equal(ridge_file_metas(file), 3);
    meta_is(file, odd, odd);
    meta_is(file, "twice", "second");
    meta_is(file, "empty", "");
    for (int i = 0; i < TYPES; i++) {
        char name[80];
        const ridge_entry *t;
        const ridge_type_info *info = ridge_type_query(types[i]);
        snprintf(name, sizeof name, "%d%s", i, odd);
        t = ridge_file_find(file, name);
        assert_non_null(t);
        assert_int_equal(t->type, types[i]);
        assert_int_equal(t->rank, i % 3 + 1);
        assert_int_equal(t->shape[t->rank - 1], 4);
        ok(ridge_file_read(file, t, 0, back, t->bytes));
        assert_memory_equal(back, data + i, (size_t)t->bytes);
        assert_int_equal(t->offset % (info->block == 1 ? info->bytes : 1), 0);
    }
    assert_int_equal(ridge_file_find(file, "scalar")->rank, 0);
    assert_int_equal(ridge_file_find(file, "none")->bytes, 0);
    ridge_file_close(file);
}

TEST(empty)
{
    const char *path = in_directory("empty.safetensors");
    ridge_writer *w;

    ok(ridge_writer_open(path, RIDGE_SAFETENSORS, &w));
    ok(ridge_writer_begin(w));
    ok(ridge_writer_finish(w));
    ridge_file_close(opened(path));
}

/* What the writer must refuse; it stays usable. */
TEST(writer_arguments)
{
    const char *path = in_directory("arguments.safetensors");
    const int64_t one = 1, minus = -1, shape[] = {INT64_C(1) << 32, INT64_C(1) << 31, 2};
    uint32_t value = 7;
    ridge_meta meta = {"k", RIDGE_META_U32, RIDGE_META_U32, 1, &value, 4};
    ridge_writer *w = (ridge_writer *)&value;
    ridge_file *file = (ridge_file *)&value;

    assert_int_equal(ridge_file_open(NULL, &file), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_open(NULL, RIDGE_GGUF, &w), RIDGE_ERR_ARG);
    assert_true(!file && !w);
    assert_int_equal(ridge_writer_open(path, (ridge_format)3, &w), RIDGE_ERR_ARG);
    ok(ridge_writer_open(path, RIDGE_SAFETENSORS, &w));
    assert_int_equal(ridge_writer_tensor(w, "", RIDGE_TYPE_U8, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "\xff", RIDGE_TYPE_U8, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "__metadata__", RIDGE_TYPE_U8, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_Q8_0, 1, (int64_t[]){32}, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPES, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_NONE, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, 9, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, -1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, 1, NULL, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, 1, &minus, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, 3, shape, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_F64, 2, shape, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_F4, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_meta(w, &meta), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_meta_string(w, "k", "\xff"), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_meta_string(w, "k", NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_meta_string(w, NULL, "v"), RIDGE_ERR_ARG);
    meta = (ridge_meta){"k", RIDGE_META_STRING, RIDGE_META_STRING, 1, "\xff\xff\xff\xff\xff\xff\xff\xff", 8};
    assert_int_equal(ridge_writer_meta(w, &meta), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_write(w, 0, 0, "x", 1), RIDGE_ERR_ARG);
    ok(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, 1, &one, NULL));
    assert_int_equal(ridge_writer_tensor(w, "a", RIDGE_TYPE_U8, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_io_error(), "\"a\""));
    ok(ridge_writer_begin(w));
    assert_int_equal(ridge_writer_begin(w), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_tensor(w, "b", RIDGE_TYPE_U8, 1, &one, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_meta_string(w, "k", "v"), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_write(w, 0, 0, "xy", 2), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_write(w, 0, -1, "x", 1), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_write(w, 1, 0, "x", 1), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_write(w, 0, 0, NULL, 1), RIDGE_ERR_ARG);
    ok(ridge_writer_write(w, 0, 0, "x", 1));
    assert_int_equal(ridge_writer_write(w, 0, 0, "x", 1), RIDGE_ERR_ARG);
    ok(ridge_writer_finish(w));
    ridge_file_close(opened(path));
}

/* ----------------------------------------------------------------------------------------------------------- shards */

static void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

TEST(sharded)
{
    const char *where = in_directory("sharded"), *index = in_directory("sharded/model.safetensors.index.json");
    char bytes[3];
    ridge_file *file;

    make_directory(where);
    write_small(in_directory("sharded/b.safetensors"), "one");
    write_small(in_directory("sharded/a.safetensors"), "two");
    put_text(index,
             "{\"metadata\":{\"total_size\":6},\"weight_map\":{\"one\":\"b.safetensors\",\"two\":\"a.safetensors\"}}");
    for (int i = 0; i < 2; i++) {
        file = opened(i ? where : index);
        assert_int_equal(ridge_file_shards(file), 2);
        assert_int_equal(ridge_file_tensors(file), 2);
        assert_string_equal(ridge_file_tensor(file, 0)->name, "two"); /* shards by name */
        assert_int_equal(ridge_file_find(file, "one")->shard, 1);
        assert_string_equal(ridge_file_path(file, 1), in_directory("sharded/b.safetensors"));
        ok(ridge_file_read(file, ridge_file_find(file, "one"), 0, bytes, 3));
        assert_memory_equal(bytes, "abc", 3);
        ridge_file_close(file);
    }
}

TEST(wrong_index)
{
    static const struct {
        const char *text, *first, *second;
    } wrong[] = {
        {"", "'{'", "JSON"},
        {"[]", "'{'", "JSON"},
        {"{}", "no weight_map", ""},
        {"{\"weight_map\":[]}", "'{'", "JSON"},
        {"{\"weight_map\":{}} x", "more follows", ""},
        {"{\"weight_map\":{},\"weight_map\":{}}", "two weight_maps", ""},
        {"{\"weight_map\":{\"one\":\"b.safetensors\"", "JSON", "byte"},
        {"{\"weight_map\":{\"one\":3}}", "\"one\"", "not a string"},
        {"{\"weight_map\":{\"one\":\"b.safetensors\",\"one\":\"b.safetensors\"}}", "\"one\"", "twice"},
        {"{\"weight_map\":{\"one\":\"\"}}", "\"one\"", "same directory"},
        {"{\"weight_map\":{\"one\":\".\"}}", "\"one\"", "same directory"},
        {"{\"weight_map\":{\"one\":\"..\"}}", "\"one\"", "same directory"},
        {"{\"weight_map\":{\"one\":\"../wrong/b.safetensors\"}}", "\"one\"", "../wrong"},
        {"{\"weight_map\":{\"one\":\"x/../b.safetensors\"}}", "\"one\"", "same directory"},
        {"{\"weight_map\":{\"one\":\"/etc/passwd\"}}", "\"one\"", "/etc/passwd"},
        {"{\"weight_map\":{\"one\":\"b.safetensors\\u0000\"}}", "\"one\"", "same directory"},
        {"{\"weight_map\":{\"one\":\"b.safetensors\",\"two\":\"c.safetensors\"}}", "c.safetensors", "No such file"},
        {"{\"weight_map\":{\"one\":\"b.safetensors\",\"two\":\"b.safetensors\"}}", "\"two\"", "not in b.safetensors"},
        {"{\"weight_map\":{\"two\":\"b.safetensors\"}}", "\"one\"", "says nothing"},
        {"{\"weight_map\":{\"one\":\"a.safetensors\",\"two\":\"b.safetensors\"}}", "is in", "but the index says"},
        {"{\"weight_map\":{\"one\":\"b.safetensors\",\"three\":\"d.safetensors\"}}", "\"one\"", "two of this name"},
        {"{\"weight_map\":{\"one\":\"model.safetensors.index.json\"}}", "not a safetensors file", ""},
        {"{\"weight_map\":{\"one\":\"pipe\"}}", "pipe", "not a regular file"},
    };
    const char *index = in_directory("wrong/model.safetensors.index.json");

    make_directory(in_directory("wrong"));
    write_small(in_directory("wrong/b.safetensors"), "one");
    write_small(in_directory("wrong/a.safetensors"), "two");
    write_small(in_directory("wrong/d.safetensors"), "one");
    assert_int_equal(mkfifo(in_directory("wrong/pipe"), 0666), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ridge_file *file;
        put_text(index, wrong[i].text);
        assert_int_equal(ridge_file_open(index, &file), RIDGE_ERR_FILE);
        assert_null(file);
        if (!strstr(ridge_io_error(), wrong[i].first) || !strstr(ridge_io_error(), wrong[i].second))
            fail_msg("%s: \"%s\" lacks \"%s\" or \"%s\"", wrong[i].text, ridge_io_error(), wrong[i].first,
                     wrong[i].second);
    }
}

TEST(directories)
{
    make_directory(in_directory("files"));
    refused(in_directory("files"), "holds no", "");
    write_small(in_directory("files/x.safetensors"), "x");
    ridge_file_close(opened(in_directory("files")));
    write_small(in_directory("files/y.safetensors"), "y");
    refused(in_directory("files"), "several", "x.safetensors");
    write_small(in_directory("files/model.safetensors"), "m");
    ridge_file_close(opened(in_directory("files")));
    refused(in_directory("nothing"), "No such file", "");
    refused("/dev/null", "not a regular file", "");
}

/* --------------------------------------------------------------------------------------------------------- failures */

TEST(shrinking)
{
    const char *path = in_directory("shrinking.safetensors");
    char bytes[1000];
    ridge_writer *w;
    ridge_file *file;

    memset(bytes, 1, sizeof bytes);
    w = begun(path, "w", sizeof bytes);
    ok(ridge_writer_write(w, 0, 0, bytes, sizeof bytes));
    ok(ridge_writer_finish(w));
    file = opened(path);
    assert_int_equal(truncate(path, 500), 0);
    assert_int_equal(ridge_file_read(file, ridge_file_tensor(file, 0), 0, bytes, sizeof bytes), RIDGE_ERR_FILE);
    assert_non_null(strstr(ridge_io_error(), "shrinking.safetensors: ends at byte 500"));
    ok(ridge_file_read(file, ridge_file_tensor(file, 0), 0, bytes, 100));
    ridge_file_close(file);
}

/* Given up at every stage: the target keeps its bytes and nothing stays beside it. */
static void give_up(const char *where, const char *path, int entries)
{
    char before[4];
    ridge_writer *w;

    put_text(path, "keep");
    for (int stage = 0; stage < 5; stage++) {
        FILE *file;
        if (stage == 0)
            ok(ridge_writer_open(path, RIDGE_SAFETENSORS, &w));
        else
            w = begun(path, "w", 100);
        assert_int_equal(entries_in(where), entries);
        if (stage >= 2)
            ok(ridge_writer_write(w, 0, 0, where, 5));
        if (stage < 3)
            ridge_writer_abort(w);
        else
            assert_int_equal(ridge_writer_finish(w), RIDGE_ERR_ARG);
        assert_int_equal(entries_in(where), 1);
        file = fopen(path, "rb");
        assert_int_equal(fread(before, 1, 4, file), 4);
        fclose(file);
        assert_memory_equal(before, "keep", 4);
    }
    write_small(path, "w"); /* and a finished one replaces it */
    assert_int_equal(entries_in(where), 1);
    ridge_file_close(opened(path));
}

TEST(interrupted)
{
    const char *where = in_directory("interrupted"), *path = in_directory("interrupted/w.safetensors");
    int fd;

    make_directory(where);
    fd = open(where, O_TMPFILE | O_WRONLY, 0600);
    give_up(where, path, fd < 0 ? 2 : 1); /* not every file system can */
    close(fd);
    io_nameless = false;
    give_up(where, path, 2);
    io_nameless = true;
    ridge_writer_abort(NULL);
    assert_int_equal(ridge_writer_finish(NULL), RIDGE_ERR_ARG);
}

/* The file goes to the directory that its path meant when it was opened, with the mode that the umask meant. */
TEST(moved)
{
    int back = open(".", O_RDONLY | O_DIRECTORY);
    mode_t mask = umask(077);
    struct stat there;

    for (int way = 0; way < 2; way++) {
        ridge_writer *w;
        io_nameless = !way;
        assert_int_equal(mkdir(in_directory("from"), 0777) + chdir(in_directory("from")), 0);
        w = begun("w.safetensors", "w", 0);
        assert_int_equal(fchdir(back) + rename(in_directory("from"), in_directory(way ? "to1" : "to0")), 0);
        ok(ridge_writer_finish(w));
        assert_int_equal(stat(in_directory(way ? "to1/w.safetensors" : "to0/w.safetensors"), &there), 0);
        assert_int_equal(there.st_mode & 0777, 0600);
        assert_int_equal(entries_in(in_directory(way ? "to1" : "to0")), 1);
    }
    io_nameless = true;
    umask(mask);
    close(back);
}

TEST(no_file)
{
    ridge_file *file = (void *)1;

    assert_int_equal(ridge_file_open("", &file), RIDGE_ERR_FILE);
    assert_null(file);
    assert_non_null(strstr(ridge_io_error(), "path is empty"));
    assert_int_equal(ridge_file_format(NULL), 0);
    assert_int_equal(ridge_file_shards(NULL) + ridge_file_tensors(NULL) + ridge_file_metas(NULL), 0);
    assert_null(ridge_file_path(NULL, 0));
    assert_int_equal(ridge_file_bytes(NULL, 0), -1);
    assert_null(ridge_file_tensor(NULL, 0));
    assert_null(ridge_file_find(NULL, "a"));
    assert_null(ridge_file_meta(NULL, 0));
    assert_null(ridge_file_meta_find(NULL, "a"));
}

/* A limit on the size of files stands for a full disk: both end in a failing fallocate or pwrite. */
TEST(no_space)
{
    struct rlimit old, low;
    char *bytes = calloc(1, 1 << 20);
    const char *where = in_directory("full"), *path = in_directory("full/w.safetensors");
    ridge_writer *w;
    int64_t count = 1 << 20;

    assert_non_null(bytes);
    make_directory(where);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    low = (struct rlimit){4096, old.rlim_max};
    ok(ridge_writer_open(path, RIDGE_SAFETENSORS, &w));
    ok(ridge_writer_tensor(w, "w", RIDGE_TYPE_U8, 1, &count, NULL));
    setrlimit(RLIMIT_FSIZE, &low);
    assert_int_equal(ridge_writer_begin(w), RIDGE_ERR_FILE);
    assert_non_null(strstr(ridge_io_error(), "full/w.safetensors: no room"));
    assert_int_equal(ridge_writer_write(w, 0, 0, bytes, count), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_finish(w), RIDGE_ERR_ARG);
    assert_int_equal(entries_in(where), 0);
    setrlimit(RLIMIT_FSIZE, &old);
    w = begun(path, "w", count);
    setrlimit(RLIMIT_FSIZE, &low);
    assert_int_equal(ridge_writer_write(w, 0, 0, bytes, count), RIDGE_ERR_FILE);
    assert_non_null(strstr(ridge_io_error(), "full/w.safetensors: writing at byte 4096"));
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(ridge_writer_write(w, 0, 0, bytes, count), RIDGE_ERR_ARG);
    assert_int_equal(ridge_writer_finish(w), RIDGE_ERR_ARG);
    assert_int_equal(entries_in(where), 0);
    signal(SIGXFSZ, SIG_DFL);
    free(bytes);
}

TEST(no_place)
{
    uid_t user = geteuid();
    ridge_writer *w = NULL;

    assert_int_equal(ridge_writer_open(in_directory("nothing/w.safetensors"), RIDGE_SAFETENSORS, &w), RIDGE_ERR_FILE);
    assert_non_null(strstr(ridge_io_error(), "nothing/w.safetensors"));
    assert_non_null(strstr(ridge_io_error(), "No such file"));
    assert_null(w);
    assert_int_equal(ridge_writer_open("/dev/full", RIDGE_SAFETENSORS, &w), RIDGE_ERR_FILE);
    assert_int_equal(ridge_writer_open(directory, RIDGE_SAFETENSORS, &w), RIDGE_ERR_FILE);
    assert_int_equal(ridge_writer_open("", RIDGE_SAFETENSORS, &w), RIDGE_ERR_FILE);
    make_directory(in_directory("closed"));
    assert_int_equal(chmod(in_directory("closed"), 0555), 0);
    if (user == 0 && seteuid(65534)) /* root may write anywhere; nobody may not */
        skip();
    assert_int_equal(ridge_writer_open(in_directory("closed/w.safetensors"), RIDGE_SAFETENSORS, &w), RIDGE_ERR_FILE);
    assert_non_null(strstr(ridge_io_error(), "closed/w.safetensors"));
    assert_non_null(strstr(ridge_io_error(), "Permission denied"));
    assert_int_equal(seteuid(user), 0);
}

static int remove_directory(void **state)
{
    char command[300];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest files[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(empty),       cmocka_unit_test(writer_arguments),
        cmocka_unit_test(sharded),    cmocka_unit_test(wrong_index), cmocka_unit_test(directories),
        cmocka_unit_test(shrinking),  cmocka_unit_test(interrupted), cmocka_unit_test(no_space),
        cmocka_unit_test(no_place),   cmocka_unit_test(no_file),     cmocka_unit_test(moved),
    };
    const char *parent = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%s/ridge-io-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(directory) || chmod(directory, 0755))
        return 1;
    return run_safetensors_tests() + cmocka_run_group_tests(files, NULL, remove_directory);
}

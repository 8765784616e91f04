/* fuzz_session.c: saved sessions that lie. The input is a list of edits of a good file: the first byte says whether the
 * sum is made right afterwards, then every four bytes are a place in the file and what is put there. What loads must
 * decode without harm. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lm/session.h"
#include "tests/lm_model.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 16, TEXT = 5 };

static unsigned char good[MOST];
static size_t length, part[4]; /* of tokens, keys, values and sum */
static int64_t rows, row;      /* of keys, and of values; their bytes */
static ridge_lm *lm;
static ridge_lm_session *session;
static int fd;

static void look_at(const char *path)
{
    static const char *const names[] = {"tokens", "keys", "values", "sum"};
    ridge_file *file;

    lm_must(ridge_file_open(path, &file) == RIDGE_OK, path);
    for (int i = 0; i < 4; i++)
        part[i] = (size_t)ridge_file_find(file, names[i])->offset;
    rows = ridge_file_find(file, "keys")->shape[0] * ridge_file_find(file, "keys")->shape[1];
    row = ridge_file_find(file, "keys")->bytes / rows;
    ridge_file_close(file);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const int32_t tokens[TEXT] = {5, 6, 7, 8, 9};
    char folder[] = "/tmp/fuzz-session-XXXXXX", path[64];
    ridge_device *cpu;
    FILE *file;

    (void)argc, (void)argv;
    lm_must(mkdtemp(folder) && ridge_open("cpu:c", &cpu) == RIDGE_OK, "a folder");
    snprintf(path, sizeof path, "%s/file", folder);
    lm_model_write(path, "llama", NULL);
    lm_must(ridge_lm_open(path, cpu, NULL, &lm) == RIDGE_OK, "a model");
    lm_must(ridge_lm_session_open(lm, 8, &session) == RIDGE_OK, "a session");
    lm_must(ridge_lm_decode(session, tokens, TEXT, 0, NULL) == RIDGE_OK, "decode");
    lm_must(ridge_lm_save(session, path) == RIDGE_OK, "save");
    look_at(path);
    file = fopen(path, "rb");
    lm_must(file != NULL, path);
    length = fread(good, 1, MOST, file);
    lm_must(length < MOST, "a small file");
    fclose(file);
    remove(path);
    rmdir(folder);
    fd = memfd_create("session", 0);
    lm_must(fd >= 0, "memfd_create");
    return 0;
}

static void make_sum_right(unsigned char *copy)
{
    uint64_t sum = lm_sum(0, copy + part[0], TEXT * 4);

    for (int64_t i = 0; i < rows; i++)
        for (int which = 1; which < 3; which++)
            sum = lm_sum(sum, copy + part[which] + i * row, row);
    memcpy(copy + part[3], &sum, sizeof sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char copy[MOST];
    char path[32];
    int32_t token = 3;

    memcpy(copy, good, length);
    for (size_t i = 1; i + 4 <= size; i += 4) {
        const size_t at =
            (data[i] & 0x80 ? (size_t)data[i + 1] << 8 | data[i + 2] : (size_t)(data[i + 1] & 3) << 8 | data[i + 2]);

        copy[at % length] = data[i + 3];
    }
    if (size && data[0] & 1)
        make_sum_right(copy);
    lm_must(ftruncate(fd, 0) == 0 && pwrite(fd, copy, length, 0) == (ssize_t)length, "write");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ridge_lm_load(session, path) == RIDGE_OK) {
        const int32_t *text = ridge_lm_text(session);

        for (int64_t i = 0; i < ridge_lm_position(session); i++)
            lm_must(text[i] >= 0, "a token");
        lm_must(ridge_lm_step(&session, 1, &token, NULL, 0, NULL, NULL) == RIDGE_OK, "a step");
    }
    return 0;
}

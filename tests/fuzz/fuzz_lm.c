/* fuzz_lm.c: models that lie. The input is a list of edits of a small model of one of the families: a byte says which
 * family, then every six bytes are a place among the first bytes of the file (metadata and tensor descriptions), how
 * many bytes change there, and which. What opens must tokenise and decode without harm. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ridge_lm.h"
#include "tests/lm_model.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FAMILIES = 6, MOST = 1 << 22 };

static unsigned char *model[FAMILIES];
static size_t length[FAMILIES], head[FAMILIES];
static ridge_device *cpu;
static int fd;

static size_t read_file(const char *path, unsigned char **to)
{
    FILE *file = fopen(path, "rb");
    size_t size;

    *to = malloc(MOST);
    lm_must(file && *to, path);
    size = fread(*to, 1, MOST, file);
    fclose(file);
    return size;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const families[FAMILIES] = {"llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "gpt-oss"};
    char folder[] = "/tmp/fuzz-lm-XXXXXX", path[64];
    ridge_file *file;

    (void)argc, (void)argv;
    lm_must(mkdtemp(folder) && ridge_open("cpu:c", &cpu) == RIDGE_OK, "a folder");
    for (int i = 0; i < FAMILIES; i++) {
        snprintf(path, sizeof path, "%s/model.gguf", folder);
        lm_model_write(path, families[i], NULL);
        lm_must(ridge_file_open(path, &file) == RIDGE_OK, path);
        head[i] = (size_t)ridge_file_tensor(file, 0)->offset;
        ridge_file_close(file);
        length[i] = read_file(path, &model[i]);
        remove(path);
    }
    rmdir(folder);
    fd = memfd_create("model", 0);
    lm_must(fd >= 0, "memfd_create");
    return 0;
}

static void use(ridge_lm *lm, const uint8_t *data, size_t size)
{
    ridge_lm_info info = {.struct_size = sizeof info};
    int32_t tokens[256];
    ridge_lm_session *session;
    int64_t count, bytes;
    const char *text;
    float *logits;

    if (ridge_lm_query(lm, &info) || ridge_lm_tokenize(lm, (const char *)data, (int64_t)(size < 60 ? size : 60),
                                                       RIDGE_LM_SPECIAL | RIDGE_LM_BOS, tokens, 256, &count))
        return;
    logits = malloc((size_t)info.vocabulary * sizeof *logits);
    for (int64_t i = 0; i < count; i++)
        lm_must(tokens[i] >= 0 && ridge_lm_token(lm, tokens[i], &text, &bytes) == RIDGE_OK, "a token's text");
    if (count && logits && ridge_lm_session_open(lm, 24, &session) == RIDGE_OK) {
        if (ridge_lm_decode(session, tokens, count < 3 ? count : 3, 0, logits) == RIDGE_OK)
            (void)ridge_lm_argmax(lm, logits, tokens); /* NaN is an error, not a crash */
        ridge_lm_session_close(session);
    }
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ridge_lm_options options = {.struct_size = sizeof options, .memory_limit = 1 << 24};
    const int which = size ? data[0] % FAMILIES : 0;
    unsigned char *copy = malloc(length[which]);
    char path[32];
    ridge_lm *lm;

    lm_must(copy != NULL, "memory");
    memcpy(copy, model[which], length[which]);
    for (size_t i = 1; i + 6 <= size; i += 6) {
        const size_t at = ((size_t)data[i] | (size_t)data[i + 1] << 8 | (size_t)(data[i + 2] & 3) << 16) % head[which];

        for (int j = 0; j < 1 + data[i + 2] / 64 && at + (size_t)j < length[which]; j++)
            copy[at + (size_t)j] = data[i + 3 + (size_t)(j < 3 ? j : 2)];
    }
    lm_must(ftruncate(fd, 0) == 0 && pwrite(fd, copy, length[which], 0) == (ssize_t)length[which], "write");
    free(copy);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ridge_lm_open(path, cpu, &options, &lm) == RIDGE_OK) {
        use(lm, data, size);
        ridge_lm_close(lm);
    }
    return 0;
}

/* lm_tool.c: ridge_lm for scripts.
 *     lm_tool make FAMILY FILE            a small model with random weights
 *     lm_tool logits FILE DEVICE PANEL TOKEN...   logits after every token, f32, on standard output; PANEL tokens a
 * call lm_tool tokenize FILE               texts from standard input, each ended by a byte 0: their tokens, a line each
 *     lm_tool chat FILE TEXT              the tokens of a user's message */
#include <inttypes.h>

#include "lm_model.h"
#include "ridge_lm.h"

static int failed(void)
{
    fprintf(stderr, "lm_tool: %s\n", ridge_lm_error());
    return 1;
}

static int logits(ridge_lm *lm, int panel, int count, char **words)
{
    ridge_lm_info info = {.struct_size = sizeof info};
    ridge_lm_session *session;
    float *out;

    if (ridge_lm_query(lm, &info) || ridge_lm_session_open(lm, count + 3, &session))
        return failed();
    out = malloc((size_t)(panel * info.vocabulary) * sizeof *out);
    for (int i = 0, n; i < count; i += n) {
        int32_t tokens[4096];

        n = count - i < panel ? count - i : panel;
        for (int j = 0; j < n; j++)
            tokens[j] = atoi(words[i + j]);
        if (!out || ridge_lm_decode(session, tokens, n, RIDGE_LM_ALL, out))
            return failed();
        fwrite(out, sizeof *out, (size_t)(n * info.vocabulary), stdout);
    }
    free(out);
    ridge_lm_session_close(session);
    return 0;
}

static int print_tokens(const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        printf("%s%d", i ? " " : "", tokens[i]);
    puts("");
    return 0;
}

static int tokenize(const ridge_lm *lm)
{
    static int32_t tokens[1 << 22];
    char *line = NULL;
    size_t room = 0;
    int64_t count;
    ssize_t length;

    while ((length = getdelim(&line, &room, 0, stdin)) > 0) {
        length -= line[length - 1] == '\0';
        if (ridge_lm_tokenize(lm, line, length, 0, tokens, 1 << 22, &count))
            return failed();
        print_tokens(tokens, count);
    }
    free(line);
    return 0;
}

static int chat(const ridge_lm *lm, const char *text)
{
    const ridge_lm_message message = {"user", text};
    static int32_t tokens[65536];
    int64_t count;

    return ridge_lm_chat(lm, &message, 1, 0, tokens, 65536, &count) ? failed() : print_tokens(tokens, count);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    ridge_device *device;
    ridge_lm *lm;
    int status = 2;

    if (strcmp(verb, "make") == 0 && argc == 4) {
        lm_model_write(argv[3], argv[2], NULL);
        return 0;
    }
    if (argc < 3)
        return 2;
    if (ridge_open(strcmp(verb, "logits") == 0 && argc > 3 ? argv[3] : "cpu", &device)) {
        fprintf(stderr, "lm_tool: %s\n", ridge_error());
        return 77;
    }
    if (ridge_lm_open(argv[2], device, NULL, &lm))
        return failed();
    if (strcmp(verb, "logits") == 0 && argc > 5)
        status = logits(lm, atoi(argv[4]), argc - 5, argv + 5);
    else if (strcmp(verb, "tokenize") == 0)
        status = tokenize(lm);
    else if (strcmp(verb, "chat") == 0 && argc == 4)
        status = chat(lm, argv[3]);
    ridge_lm_close(lm);
    ridge_close(device);
    return status;
}

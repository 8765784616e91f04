/* lm_tool.c: ridge_lm for scripts.
 *     lm_tool make FAMILY FILE                     a small model with random weights
 *     lm_tool logits FILE DEVICE PANEL TOKEN...    logits after every token, f32, PANEL tokens a call
 *     lm_tool steps FILE DEVICE TEXTS STEPS TEMPERATURE   texts that step together: tokens, and a sum of logits
 *     lm_tool greedy FILE DEVICE COUNT TOKEN...    the likeliest tokens that follow
 *     lm_tool tokenize FILE                        texts from standard input, each ended by a byte 0: a line each
 *     lm_tool chat FILE TEXT                       the tokens of a user's message */
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

/* Text t begins with t + 2 tokens; the last one of them is its first step. */
static int steps(ridge_lm *lm, int texts, int count, double temperature)
{
    ridge_lm_session *session[RIDGE_LM_MAX_SESSIONS];
    ridge_lm_sampling sampling[RIDGE_LM_MAX_SESSIONS];
    ridge_lm_info info = {.struct_size = sizeof info};
    int32_t token[RIDGE_LM_MAX_SESSIONS], next[RIDGE_LM_MAX_SESSIONS];
    uint64_t sum = 0;
    float *logits;

    if (ridge_lm_query(lm, &info) || ridge_lm_sessions_open(lm, count + 20, texts, session))
        return failed();
    logits = malloc((size_t)(texts * info.vocabulary) * sizeof *logits);
    for (int t = 0; t < texts; t++) {
        int32_t prompt[RIDGE_LM_MAX_SESSIONS + 2];

        for (int i = 0; i < t + 2; i++)
            prompt[i] = 7 + (t + i) * 37 % 250;
        token[t] = prompt[t + 1];
        sampling[t] = (ridge_lm_sampling){.struct_size = sizeof *sampling,
                                          .top_k = 40,
                                          .temperature = (float)temperature,
                                          .top_p = 0.95f,
                                          .seed = (uint64_t)t};
        if (!logits || ridge_lm_decode(session[t], prompt, t + 1, 0, NULL))
            return failed();
    }
    for (int i = 0; i < count; i++) {
        for (int t = 0; t < texts; t++)
            sampling[t].counter = (uint64_t)ridge_lm_position(session[t]);
        if (ridge_lm_step(session, texts, token, sampling, RIDGE_LM_AHEAD, next, i + 1 == count ? logits : NULL))
            return failed();
        for (int t = 0; t < texts; t++)
            printf("%d%s", token[t] = next[t], t + 1 < texts ? " " : "\n");
    }
    for (int64_t i = 0; i < (int64_t)texts * info.vocabulary; i++) {
        uint32_t bits;

        memcpy(&bits, &logits[i], 4);
        sum = sum * 6364136223846793005u + bits;
    }
    printf("%016" PRIx64 "\n", sum);
    for (int t = 0; t < texts; t++)
        ridge_lm_session_close(session[t]);
    free(logits);
    return 0;
}

static int greedy(ridge_lm *lm, int count, int words, char **word)
{
    const ridge_lm_sampling sampling = {.struct_size = sizeof sampling, .top_p = 1};
    ridge_lm_session *session;
    int32_t token, next;

    if (ridge_lm_session_open(lm, words + count, &session))
        return failed();
    for (int i = 0; i + 1 < words; i++) {
        token = atoi(word[i]);
        if (ridge_lm_decode(session, &token, 1, 0, NULL))
            return failed();
    }
    token = atoi(word[words - 1]);
    for (int i = 0; i < count; i++, token = next) {
        if (ridge_lm_step(&session, 1, &token, &sampling, RIDGE_LM_AHEAD, &next, NULL))
            return failed();
        printf("%d\n", next);
    }
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
    if (ridge_open(argc > 4 ? argv[3] : "cpu", &device)) {
        fprintf(stderr, "lm_tool: %s\n", ridge_error());
        return 77;
    }
    if (ridge_lm_open(argv[2], device, NULL, &lm))
        return failed();
    if (strcmp(verb, "logits") == 0 && argc > 5)
        status = logits(lm, atoi(argv[4]), argc - 5, argv + 5);
    else if (strcmp(verb, "steps") == 0 && argc == 7)
        status = steps(lm, atoi(argv[4]), atoi(argv[5]), atof(argv[6]));
    else if (strcmp(verb, "greedy") == 0 && argc > 5)
        status = greedy(lm, atoi(argv[4]), argc - 5, argv + 5);
    else if (strcmp(verb, "tokenize") == 0)
        status = tokenize(lm);
    else if (strcmp(verb, "chat") == 0 && argc == 4)
        status = chat(lm, argv[3]);
    ridge_lm_close(lm);
    ridge_close(device);
    return status;
}

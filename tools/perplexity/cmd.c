/* cmd.c: `ridge perplexity MODEL.gguf FILE`: how well a model foretells a text: e to the mean of -log p of its tokens.
 * The text is cut into windows; of each the second half is scored, so that every token has at least half a window
 * before it (as llama.cpp's tool does, whose figures this is comparable with). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ridge_lm.h"
#include "tools/args.h"
#include "tools/cli.h"

typedef struct scoring {
    ridge_lm *lm;
    ridge_lm_session *session;
    ridge_lm_info info;
    int32_t *tokens;
    float *logits;
    int64_t count, window, scored;
    int32_t bos; /* every window begins with it; -1: the model wants none */
    double sum, squares;
} scoring;

static bool failed(void)
{
    fprintf(stderr, "ridge perplexity: %s\n", ridge_lm_error());
    return false;
}

static bool no_memory(void)
{
    fprintf(stderr, "ridge perplexity: out of memory\n");
    return false;
}

/* The whole file; NULL where it cannot be read. */
static char *read_text(const char *path, int64_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL, *more;
    size_t size = 0, room = 1 << 16, got = 1;

    while (file && got && (more = realloc(text, room)) != NULL) {
        text = more;
        got = fread(text + size, 1, room - size, file);
        size += got;
        room = size == room ? 2 * room : room;
    }
    if (!file || ferror(file)) {
        fprintf(stderr, "ridge perplexity: cannot read %s\n", path);
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    *bytes = (int64_t)size;
    return text;
}

/* -log p of a token under the softmax of its logits. */
static double surprise(const float *logits, int32_t count, int32_t token)
{
    double most = (double)logits[0], sum = 0;

    for (int32_t i = 1; i < count; i++)
        most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[token];
}

static bool score_window(scoring *s, int32_t *tokens)
{
    const int64_t half = s->window / 2;

    if (s->bos >= 0)
        tokens[0] = s->bos;

    if (ridge_lm_rewind(s->session, 0) || ridge_lm_decode(s->session, tokens, half, 0, NULL) ||
        ridge_lm_decode(s->session, tokens + half, s->window - 1 - half, RIDGE_LM_ALL, s->logits))
        return failed();
    for (int64_t i = 0; i < s->window - 1 - half; i++) {
        const double x = surprise(s->logits + i * s->info.vocabulary, s->info.vocabulary, tokens[half + i + 1]);

        s->sum += x;
        s->squares += x * x;
        s->scored++;
    }
    return true;
}

static bool tokenize(scoring *s, const char *path)
{
    int64_t bytes, begins;
    char *text = read_text(path, &bytes);
    bool good;

    if (!text)
        return false;
    s->bos = -1;
    if (ridge_lm_tokenize(s->lm, "", 0, RIDGE_LM_BOS, &s->bos, 1, &begins)) {
        free(text);
        return failed();
    }
    if (ridge_lm_tokenize(s->lm, text, bytes, RIDGE_LM_BOS, NULL, 0, &s->count)) {
        free(text);
        return failed();
    }
    s->tokens = malloc((size_t)(s->count + 1) * sizeof *s->tokens);
    good = s->tokens
               ? !ridge_lm_tokenize(s->lm, text, bytes, RIDGE_LM_BOS, s->tokens, s->count + 1, &s->count) || failed()
               : no_memory();
    free(text);
    if (good && s->count < s->window) {
        fprintf(stderr,
                "ridge perplexity: the text has %" PRId64 " tokens, fewer than a window of %" PRId64 " (--ctx)\n",
                s->count, s->window);
        good = false;
    }
    return good;
}

static bool run(scoring *s, bool json, bool quiet)
{
    const int64_t windows = s->count / s->window;
    double mean, deviation;
    progress p;

    s->logits = malloc((size_t)(s->window * s->info.vocabulary) * sizeof *s->logits);
    if (!s->logits)
        return no_memory();
    if (ridge_lm_session_open(s->lm, s->window, &s->session))
        return failed();
    progress_start(&p, (int)windows, quiet || json);
    for (int64_t i = 0; i < windows; i++) {
        if (!score_window(s, s->tokens + i * s->window))
            return false;
        progress_step(&p, "windows");
    }
    progress_end(&p);
    mean = s->sum / (double)s->scored;
    deviation = sqrt(fmax(s->squares / (double)s->scored - mean * mean, 0) / (double)s->scored);
    if (json)
        return print_json(json_pack("{s:s, s:f, s:f, s:I, s:I}", "model", s->info.name, "perplexity", exp(mean),
                                    "error", exp(mean) * deviation, "tokens", (json_int_t)s->scored, "window",
                                    (json_int_t)s->window));
    printf("perplexity %.4f +- %.4f, %" PRId64 " tokens in windows of %" PRId64 "\n", exp(mean), exp(mean) * deviation,
           s->scored, s->window);
    return true;
}

int cmd_perplexity(int argc, char **argv)
{
    const char *spec = NULL;
    uint64_t window = 512;
    bool json = false, quiet = false, good;
    const args_option list[] = {
        {"ctx", 0, "N", "tokens of a window (default 512)", .whole = &window, .least = 4, .most = 1 << 20},
        ARGS_DEVICE(&spec),
        ARGS_JSON(&json),
        {"quiet", 'q', NULL, "no progress", .flag = &quiet},
        {0}};
    scoring s = {.info = {.struct_size = sizeof s.info}};
    args_list words = {0};
    ridge_device *device;

    args_parse(argc, argv, "MODEL.gguf FILE", "The perplexity of a text under a model.", list, &words, 2);
    if (words.count != 2) {
        fprintf(stderr, "ridge perplexity: MODEL.gguf and FILE are needed\n");
        return 2;
    }
    s.window = (int64_t)window;
    device = device_open(spec);
    good = device && (!ridge_lm_open(words.at[0], device, NULL, &s.lm) || failed()) &&
           (!ridge_lm_query(s.lm, &s.info) || failed()) && tokenize(&s, words.at[1]) && run(&s, json, quiet);
    ridge_lm_session_close(s.session);
    ridge_lm_close(s.lm);
    ridge_close(device);
    free(s.tokens);
    free(s.logits);
    return good ? 0 : 1;
}

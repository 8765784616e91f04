/* cmd.c: `ridge generate MODEL.gguf`: text from a model, token by token, or a dialogue; then how fast it was, beside a
 * read of the weights, which is the floor of a step. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "generate.h"
#include "ridge_io.h"
#include "tools/args.h"
#include "tools/cli.h"

static volatile sig_atomic_t interrupted; /* ends an answer, and a dialogue that waits for a message */
static volatile sig_atomic_t ending;      /* and this one any dialogue */

static void on_interrupt(int signal_number)
{
    interrupted = 1;
    ending |= signal_number != SIGINT;
}

/* Where the signal would end the program, it ends the dialogue; one that is ignored (nohup) stays so. */
static void end_with(int signal_number)
{
    const struct sigaction action = {.sa_handler = on_interrupt};
    struct sigaction old;

    if (sigaction(signal_number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(signal_number, &action, NULL);
}

typedef struct options {
    const char *prompt, *device, *system, *temp, *top_p, *min_p, *save, *load;
    uint64_t most, top_k, seed, positions;
    bool chat, dialogue, fast, q8_0, json, quiet;
} options;

typedef struct generation {
    const options *o;
    ridge_device *device;
    ridge_lm *lm;
    ridge_lm_session *session;
    ridge_lm_info info;
    ridge_lm_sampling sampling;
    int32_t *tokens;
    float *logits;
    int64_t positions, read, written; /* of the cache; tokens of prompts and of answers */
    double read_time, written_time;
    const char *stop;
} generation;

static bool failed(void)
{
    fprintf(stderr, "ridge generate: %s\n", ridge_lm_error());
    return false;
}

static void note(void *state, const char *line)
{
    (void)state;
    fprintf(stderr, "%s\n", line);
}

/* A number within low .. high; without text the value stays. */
static bool number(const char *name, const char *text, double low, double high, float *to)
{
    char *end;
    double value;

    if (!text)
        return true;
    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end || errno || !(value >= low && value <= high)) {
        fprintf(stderr, "ridge generate: --%s is '%s', not a number within %g .. %g\n", name, text, low, high);
        return false;
    }
    *to = (float)value;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- text */

/* Tokens of a prompt, or of a message with what the chat form puts round it; without text the last token that the
 * session has read, once more, so that it goes on where it was saved. */
static bool prompt_tokens(generation *g, const char *text, bool more, int64_t *count)
{
    const ridge_lm_message list[] = {{"system", g->o->system ? g->o->system : ""}, {"user", text}};
    const bool system = g->o->system && !more, chat = g->o->chat || g->o->dialogue;
    const int64_t at = ridge_lm_position(g->session), room = g->positions - at;

    if (!text) {
        *count = 1;
        g->tokens[0] = ridge_lm_text(g->session)[at - 1];
        return ridge_lm_rewind(g->session, at - 1) ? failed() : true;
    }
    if (chat ? ridge_lm_chat(g->lm, system ? list : list + 1, system ? 2 : 1, more, g->tokens, room, count)
             : ridge_lm_tokenize(g->lm, text, (int64_t)strlen(text), at ? 0 : RIDGE_LM_BOS, g->tokens, room, count))
        return failed();
    if (*count > 0 && *count < room)
        return true;
    fprintf(stderr,
            "ridge generate: the prompt has %" PRId64 " tokens, the text may have %" PRId64 " more (see --ctx)\n",
            *count, room);
    return false;
}

/* Asked before the text is made: --save replaces a text that was saved, or an empty file, but nothing else, such as a
 * model. */
static bool may_save(const char *path)
{
    ridge_writer *trial; /* whether a file can be made there */
    ridge_file *there = NULL;
    struct stat is;
    bool good;

    if (ridge_writer_open(path, RIDGE_SAFETENSORS, &trial) != RIDGE_OK) {
        fprintf(stderr, "ridge generate: --save: %s\n", ridge_io_error());
        return false;
    }
    ridge_writer_abort(trial);
    good = stat(path, &is) != 0 || is.st_size == 0 ||
           (ridge_file_open(path, &there) == RIDGE_OK && ridge_file_meta_find(there, "ridge_lm.session"));
    ridge_file_close(there);
    if (!good)
        fprintf(stderr, "ridge generate: --save: %s is there and is no saved text: it stays as it is\n", path);
    return good;
}

/* Reads the prompt's tokens, then writes until a token ends the text, or as many as were asked for. */
static bool answer(generation *g, int64_t count, text_stream *out)
{
    double start = seconds();
    int32_t token = 0, next;

    g->sampling.counter = (uint64_t)(ridge_lm_position(g->session) + count);
    if (ridge_lm_decode(g->session, g->tokens, count, g->o->fast ? RIDGE_LM_FAST : 0, g->logits) ||
        ridge_lm_sample(g->lm, g->logits, &g->sampling, &next))
        return failed();
    g->read += count;
    g->read_time += seconds() - start;
    g->stop = "length";
    start = seconds();
    for (uint64_t i = 0; i < g->o->most; i++) {
        const char *bytes;
        int64_t length;

        token = next;
        g->written += i > 0; /* the first one came with the prompt */
        if (interrupted || ridge_lm_ends(g->lm, token)) {
            g->stop = interrupted ? "interrupt" : "end";
            break;
        }
        if (ridge_lm_token(g->lm, token, &bytes, &length))
            return failed();
        text_put(out, bytes, length);
        if (ridge_lm_position(g->session) == g->positions) {
            g->stop = "context";
            break;
        }
        g->sampling.counter++;
        if (i + 1 < g->o->most && ridge_lm_step(&g->session, 1, &token, &g->sampling, RIDGE_LM_AHEAD, &next, NULL))
            return failed();
    }
    text_end(out);
    g->written_time += seconds() - start;
    /* What goes on after this answer must have read its last token, which nothing else needs. */
    if (strcmp(g->stop, "length") == 0 && (g->o->save || g->o->dialogue) &&
        ridge_lm_decode(g->session, &token, 1, 0, NULL))
        return failed();
    return true;
}

/* A line of standard input without its end; NULL at the end of the file. */
static char *read_line(void)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length = getline(&line, &room, stdin);

    while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
        line[--length] = '\0';
    if (length >= 0)
        return line;
    free(line);
    return NULL;
}

/* Questions from standard input until it ends; an interrupt ends an answer, and at the prompt the dialogue. */
static bool dialogue(generation *g)
{
    const char *text = g->o->prompt;
    char *line = NULL;
    bool good = true;

    for (bool more = ridge_lm_position(g->session) > 0; good; more = true) {
        text_stream out = {.print = true};
        int64_t count;

        if (!text) {
            fputs("> ", stdout);
            fflush(stdout);
            interrupted = 0;
            free(line);
            text = line = ending ? NULL : read_line();
        }
        if (!text || interrupted)
            break;
        good = prompt_tokens(g, text, more, &count) && answer(g, count, &out);
        fputs("\n", stdout);
        text_free(&out);
        text = NULL;
    }
    free(line);
    return good;
}

/* ----------------------------------------------------------------------------------------------------------- report */

static double rate(int64_t count, double time)
{
    return time > 0 ? (double)count / time : 0;
}

static bool report(const generation *g, const text_stream *out)
{
    const double text_rate = rate(g->written, g->written_time), prompt_rate = rate(g->read, g->read_time);
    const double gbps = read_rate(g->device, g->info.step_bytes);
    /* What a step must read: the weights, and the cache so far. */
    const double floor_bytes =
        (double)g->info.step_bytes +
        (double)g->info.kv_bytes * ((double)ridge_lm_position(g->session) - (double)g->written / 2);
    const double share = gbps > 0 ? text_rate * floor_bytes * 1e-9 / gbps : 0;

    if (g->o->json)
        return print_json(json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f}", "model", g->info.name, "text",
                                    out->text ? out->text : "", "stop", g->stop ? g->stop : "", "prompt_tokens",
                                    (json_int_t)g->read, "text_tokens", (json_int_t)g->written,
                                    "prompt_tokens_per_second", prompt_rate, "text_tokens_per_second", text_rate,
                                    "read_gbps", gbps, "share_of_read", share));
    fprintf(stderr, "prompt: %" PRId64 " tokens, %.1f tokens/s\n", g->read, prompt_rate);
    if (g->written)
        fprintf(stderr, "text: %" PRId64 " tokens, %.1f tokens/s: %.0f %% of a read of %.0f MB at %.1f GB/s\n",
                g->written, text_rate, 100 * share, floor_bytes * 1e-6, gbps);
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- run */

static bool run(generation *g)
{
    text_stream out = {.print = !g->o->json};
    bool good;
    int64_t count;

    if (g->o->dialogue) {
        good = dialogue(g);
    } else {
        good = prompt_tokens(g, g->o->prompt, g->o->load, &count);
        if (good && !g->o->json && !g->o->chat && g->o->prompt) /* the text goes on from its prompt */
            text_put(&out, g->o->prompt, (int64_t)strlen(g->o->prompt));
        good = good && answer(g, count, &out);
        if (!g->o->json)
            puts("");
    }
    fflush(stdout);
    /* A dialogue is kept also where its last message failed, up to what had been read and written by then. */
    if (g->o->save && (good || g->o->dialogue) && ridge_lm_position(g->session) > 0 &&
        ridge_lm_save(g->session, g->o->save))
        good = failed();
    if (good && !(g->o->quiet && !g->o->json))
        good = report(g, &out);
    text_free(&out);
    return good;
}

static bool open_session(generation *g)
{
    int64_t positions = g->info.context < 4096 ? g->info.context : 4096;

    if (g->o->positions)
        positions = (int64_t)g->o->positions;
    if (positions > g->info.context)
        fprintf(stderr, "ridge generate: --ctx %" PRId64 " is more than the %" PRId64 " the model was trained for\n",
                positions, g->info.context);
    g->positions = positions;
    g->tokens = malloc((size_t)positions * sizeof *g->tokens);
    g->logits = malloc((size_t)g->info.vocabulary * sizeof *g->logits);
    if (!g->tokens || !g->logits) {
        fprintf(stderr, "ridge generate: out of memory\n");
        return false;
    }
    if (ridge_lm_session_open(g->lm, positions, &g->session) || (g->o->load && ridge_lm_load(g->session, g->o->load)))
        return failed();
    return true;
}

static bool open_model(generation *g, const char *path)
{
    const ridge_lm_options options = {.struct_size = sizeof options,
                                      .flags = g->o->q8_0 ? RIDGE_LM_Q8_0 : 0,
                                      .note = g->o->quiet || g->o->json ? NULL : note};

    g->device = device_open(g->o->device);
    if (!g->device)
        return false;
    g->info.struct_size = sizeof g->info;
    if (ridge_lm_open(path, g->device, &options, &g->lm) || ridge_lm_query(g->lm, &g->info))
        return failed();
    if ((g->o->chat || g->o->dialogue) && !g->info.chat[0]) {
        fprintf(stderr, "ridge generate: %s has no chat template of a known form; without --chat it goes on with -p\n",
                path);
        return false;
    }
    return true;
}

int cmd_generate(int argc, char **argv)
{
    options o = {.most = 128, .top_k = 40, .seed = 1};
    const args_option list[] = {
        {"prompt", 'p', "TEXT", "the text to go on with; with --chat a message", .text = &o.prompt},
        {"chat", 'c', NULL, "as a message, in the chat form of the model", .flag = &o.chat},
        {"interactive", 'i', NULL, "a dialogue: messages are lines of standard input", .flag = &o.dialogue},
        {"system", 0, "TEXT", "the system's message of a chat", .text = &o.system},
        {"tokens", 'n', "N", "tokens to write at most (default 128)", .whole = &o.most, .least = 1, .most = 1 << 24},
        {"temp", 't', "T", "temperature (default 0.8); 0: always the likeliest token", .text = &o.temp},
        {"top-k", 'k', "N", "only the N likeliest tokens (default 40; 0: all)", .whole = &o.top_k, .most = 1 << 24},
        {"top-p", 0, "P", "only the likeliest tokens that reach P together (default 0.95)", .text = &o.top_p},
        {"min-p", 0, "P", "only tokens with P times the largest probability (default 0.05)", .text = &o.min_p},
        {"seed", 's', "N", "of the draws (default 1)", .whole = &o.seed, .most = UINT64_MAX},
        {"ctx", 0, "N", "tokens of the whole text at most (default 4096, or the model's)", .whole = &o.positions,
         .least = 1, .most = 1 << 24},
        {"save", 0, "FILE", "at the end the text and its cache go to FILE", .text = &o.save},
        {"load", 0, "FILE", "goes on with a text that --save wrote; -p is then optional", .text = &o.load},
        {"fast-prompt", 0, NULL, "prompts by attention_prefill: faster on a GPU, other bits than on the CPU",
         .flag = &o.fast},
        {"requantize", 0, NULL, "weights of all formats become Q8_0: faster long prompts, more memory, other text",
         .flag = &o.q8_0},
        ARGS_DEVICE(&o.device),
        ARGS_JSON(&o.json),
        {"quiet", 'q', NULL, "nothing but the text", .flag = &o.quiet},
        {0}};
    generation g = {
        .o = &o, .sampling = {.struct_size = sizeof g.sampling, .temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f}};
    struct sigaction action = {.sa_handler = on_interrupt};
    args_list words = {0};
    bool good;

    args_parse(argc, argv, "MODEL.gguf -p TEXT", "Generates text with a model, on the CPU or a GPU.", list, &words, 1);
    if (!words.at[0] || (!o.prompt && !o.dialogue && !o.load) || (o.dialogue && o.json)) {
        fprintf(stderr, "ridge generate: MODEL.gguf and -p TEXT, -i or --load are needed; -i has no --json\n");
        return 2;
    }
    if (!number("temp", o.temp, 0, 100, &g.sampling.temperature) ||
        !number("top-p", o.top_p, 1e-6, 1, &g.sampling.top_p) || !number("min-p", o.min_p, 0, 1, &g.sampling.min_p))
        return 2;
    g.sampling.top_k = (int32_t)o.top_k;
    g.sampling.seed = o.seed;
    sigaction(SIGINT, &action, NULL);
    good = (!o.save || may_save(o.save)) && open_model(&g, words.at[0]) && open_session(&g);
    if (good && o.save) { /* the end of a terminal or of a service does not lose the text */
        end_with(SIGTERM);
        end_with(SIGHUP);
    }
    good = good && run(&g);
    ridge_lm_session_close(g.session);
    ridge_lm_close(g.lm);
    ridge_close(g.device);
    free(g.logits);
    free(g.tokens);
    return good ? 0 : 1;
}

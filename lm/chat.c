/* chat.c: the chat forms of the families, as their templates write them. A file's template is matched against what is
 * known and never run: it is a program of whoever wrote the file. */
#include <string.h>

#include "lm.h"

const char *lm_chat_form(const char *t)
{
    if (strstr(t, "<|im_start|>"))
        return "chatml";
    if (strstr(t, "<|start_header_id|>"))
        return "llama3";
    if (strstr(t, "<start_of_turn>"))
        return "gemma";
    if (strstr(t, "<|channel|>") && strstr(t, "<|start|>"))
        return "harmony";
    return strstr(t, "[INST]") && !strstr(t, "[SYSTEM_PROMPT]") ? "mistral" : "";
}

/* What a template puts first where the first message is of no system; NULL: nothing. */
const char *lm_chat_system(const char *t)
{
    static const char *const known[] = {
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    };

    if (strcmp(lm_chat_form(t), "harmony") == 0) /* the template has the day's date after the second line */
        return "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\nReasoning: "
               "medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.";
    if (strstr(t, "<|start_header_id|>") && strstr(t, "Cutting Knowledge Date: December 2023"))
        return "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strstr(t, known[i]))
            return known[i];
    return NULL;
}

typedef struct writer {
    const lm_vocab *v;
    lm_tokens *out;
    ridge_status status;
} writer;

/* Text whose names of control tokens are tokens: a template's own. */
static void mark(writer *w, const char *text)
{
    if (!w->status)
        w->status = lm_cut(w->v, text, (int64_t)strlen(text), true, false, w->out);
}

/* Text of a message. */
static void plain(writer *w, const char *text, bool trimmed)
{
    int64_t bytes = (int64_t)strlen(text);

    while (trimmed && bytes && strchr(" \t\r\n", text[bytes - 1]))
        bytes--;
    while (trimmed && bytes && strchr(" \t\r\n", text[0]))
        text++, bytes--;
    if (!w->status)
        w->status = lm_cut(w->v, text, bytes, false, false, w->out);
}

static bool is(const ridge_lm_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static void chatml(writer *w, const char *role, const char *text)
{
    mark(w, "<|im_start|>");
    plain(w, role, false);
    mark(w, "\n");
    plain(w, text, false);
    mark(w, "<|im_end|>");
    mark(w, "\n");
}

static void llama3(writer *w, const char *role, const char *text)
{
    mark(w, "<|start_header_id|>");
    plain(w, role, false);
    mark(w, "<|end_header_id|>");
    mark(w, "\n\n");
    plain(w, text, true);
    mark(w, "<|eot_id|>");
}

/* A caller's system is the developer there; an answer is in the channel of that name. */
static void harmony(writer *w, const char *role, const char *text)
{
    const bool system = strcmp(role, "system") == 0;

    mark(w, "<|start|>");
    mark(w, system ? "developer" : role);
    mark(w, strcmp(role, "assistant") == 0 ? "<|channel|>final<|message|>" : "<|message|>");
    if (system)
        mark(w, "# Instructions\n\n");
    plain(w, text, false);
    mark(w, system ? "\n\n<|end|>" : "<|end|>");
}

/* What stands before all messages. */
static void preamble(writer *w, const char *form, const char *text)
{
    if (strcmp(form, "harmony") == 0) {
        mark(w, "<|start|>system<|message|>");
        mark(w, text);
        mark(w, "<|end|>");
    } else {
        (strcmp(form, "llama3") == 0 ? llama3 : chatml)(w, "system", text);
    }
}

/* Gemma and Mistral have no system's turn: it stands before the first user's text. */
static void gemma(writer *w, const char *system, const ridge_lm_message *m)
{
    mark(w, "<start_of_turn>");
    plain(w, is(m, "assistant") ? "model" : "user", false);
    mark(w, "\n");
    if (system) {
        plain(w, system, true);
        mark(w, "\n\n");
    }
    plain(w, m->text, true);
    mark(w, "<end_of_turn>");
    mark(w, "\n");
}

static void mistral(writer *w, const char *system, const ridge_lm_message *m)
{
    if (is(m, "assistant")) {
        plain(w, m->text, true);
        mark(w, "</s>");
        return;
    }
    mark(w, "[INST]");
    mark(w, " ");
    if (system) {
        plain(w, system, true);
        mark(w, "\n\n");
    }
    plain(w, m->text, false);
    mark(w, " [/INST]");
}

static void write_messages(writer *w, const ridge_lm_message *m, int64_t number, bool more)
{
    const char *form = w->v->chat, *system = NULL;

    if (!more && (w->v->add_bos || strcmp(form, "llama3") == 0 || strcmp(form, "gemma") == 0) && w->v->bos >= 0)
        lm_put(w->out, w->v->bos);
    if (more) /* the answer's turn ends: its last token was not read by the model */
        mark(w, strcmp(form, "chatml") == 0    ? "<|im_end|>\n"
                : strcmp(form, "llama3") == 0  ? "<|eot_id|>"
                : strcmp(form, "gemma") == 0   ? "<end_of_turn>\n"
                : strcmp(form, "harmony") == 0 ? "<|end|>"
                                               : "</s>");
    if (!more && w->v->chat_system && (number == 0 || !is(&m[0], "system") || strcmp(form, "harmony") == 0))
        preamble(w, form, w->v->chat_system);
    for (int64_t i = 0; i < number; i++) {
        if (strcmp(form, "chatml") == 0)
            chatml(w, m[i].role, m[i].text);
        else if (strcmp(form, "llama3") == 0)
            llama3(w, m[i].role, m[i].text);
        else if (strcmp(form, "harmony") == 0)
            harmony(w, m[i].role, m[i].text);
        else if (is(&m[i], "system"))
            system = m[i].text;
        else
            (strcmp(form, "gemma") == 0 ? gemma : mistral)(w, system, &m[i]), system = NULL;
    }
    if (strcmp(form, "chatml") == 0)
        mark(w, "<|im_start|>assistant\n");
    else if (strcmp(form, "llama3") == 0)
        mark(w, "<|start_header_id|>assistant<|end_header_id|>\n\n");
    else if (strcmp(form, "gemma") == 0)
        mark(w, "<start_of_turn>model\n");
    else if (strcmp(form, "harmony") == 0)
        mark(w, "<|start|>assistant");
}

ridge_status ridge_lm_chat(const ridge_lm *lm, const ridge_lm_message *messages, int64_t number, int more,
                           int32_t *tokens, int64_t capacity, int64_t *count)
{
    lm_tokens out = {tokens, capacity, 0};
    writer w = {lm ? &lm->vocab : NULL, &out, RIDGE_OK};

    if (!lm || (!messages && number) || number < 0 || capacity < 0 || (!tokens && capacity) || !count)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_chat: a pointer is NULL or a size negative");
    if (!lm->vocab.chat[0])
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "the model has no chat template of a known form");
    for (int64_t i = 0; i < number; i++)
        if (!messages[i].role || !messages[i].text ||
            !(is(&messages[i], "system") || is(&messages[i], "user") || is(&messages[i], "assistant")))
            return lm_fail(RIDGE_ERR_ARG,
                           "ridge_lm_chat: a message has no text, or a role that is none of system, user "
                           "and assistant");
    write_messages(&w, messages, number, more);
    return w.status ? w.status : lm_tokens_done(&out, count);
}

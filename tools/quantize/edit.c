/* edit.c: changes members of a JSON object in its text, so that everything else stays as it was written: a parser and a
 * printer would turn 0.1 into 0.10000000000000001. The text has been parsed by jansson, hence is valid. */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

static const char *blanks(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* The end of the string that begins here. */
static const char *string_end(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        at += *at == '\\' && at[1];
    return *at ? at + 1 : at;
}

/* The end of the value that begins here. */
static const char *value_end(const char *at)
{
    int depth = 0;

    do {
        if (*at == '"') {
            at = string_end(at);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
    } while (*at && (depth > 0 || !strchr(",}] \t\r\n", *at)));
    return at;
}

/* A member, from its key to the end of its value; `before` is the end of the one before it or of the brace. */
typedef struct member {
    const char *before, *key, *value, *end;
} member;

static bool is_key(const char *from, const char *end, const char *key)
{
    json_t *name = json_loadb(from, (size_t)(end - from), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const bool same = name && strcmp(json_string_value(name), key) == 0;

    json_decref(name);
    return same;
}

/* False if there is no such member; m then has `before` only, where one can be added. */
static bool find(const char *text, const char *key, member *m)
{
    m->before = blanks(text) + 1;
    m->key = blanks(m->before);
    while (*m->key == '"') {
        const char *end = string_end(m->key);

        m->value = blanks(blanks(end) + 1);
        m->end = value_end(m->value);
        if (is_key(m->key, end, key))
            return true;
        m->before = m->end;
        m->key = blanks(m->end);
        if (*m->key == ',')
            m->key = blanks(m->key + 1);
    }
    return false;
}

/* *text with [from, to) replaced by `middle`. */
static bool splice(char **text, const char *from, const char *to, const char *middle)
{
    char *whole;

    if (asprintf(&whole, "%.*s%s%s", (int)(from - *text), *text, middle, to) < 0)
        return false;
    free(*text);
    *text = whole;
    return true;
}

bool json_edit(char **text, const char *key, const char *value)
{
    member m;
    const bool found = find(*text, key, &m);
    char *added;
    bool good;

    if (found && value)
        return splice(text, m.value, m.end, value);
    if (found) { /* with the comma before it, or of the first member the one after it */
        const bool first = m.before == blanks(*text) + 1;
        const char *after = blanks(m.end);

        return first ? splice(text, m.key, *after == ',' ? blanks(after + 1) : m.end, "")
                     : splice(text, m.before, m.end, "");
    }
    if (!value)
        return true;
    if (asprintf(&added, "%s\n  \"%s\": %s%s", m.before[-1] == '{' && m.before == blanks(*text) + 1 ? "" : ",", key,
                 value, *blanks(m.before) == '}' && m.before[0] == '}' ? "\n" : "") < 0)
        return false;
    good = splice(text, m.before, m.before, added);
    free(added);
    return good;
}

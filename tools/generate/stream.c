/* stream.c: prints what a model writes to a terminal: it may be no UTF-8, and it may hold control sequences. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"

static void out(text_stream *s, const char *text, size_t length)
{
    if (s->print)
        fwrite(text, 1, length, stdout);
    if (s->length + length + 1 > s->room) {
        const size_t room = 2 * (s->length + length + 64);
        char *more = realloc(s->text, room);

        if (!more) {
            fprintf(stderr, "ridge: out of memory\n");
            exit(1);
        }
        s->text = more;
        s->room = room;
    }
    memcpy(s->text + s->length, text, length);
    s->length += length;
    s->text[s->length] = '\0';
}

/* How many bytes the character that begins so has; 0: none begins so. */
static int expected(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* Whether `next` may follow what is held: neither overlong nor a surrogate nor above U+10FFFF. */
static bool continues(const text_stream *s, unsigned char next)
{
    const unsigned char first = s->tail[0];

    if ((next & 0xc0) != 0x80)
        return false;
    if (s->held > 1)
        return true;
    return !((first == 0xe0 && next < 0xa0) || (first == 0xed && next >= 0xa0) || (first == 0xf0 && next < 0x90) ||
             (first == 0xf4 && next >= 0x90));
}

void text_end(text_stream *s)
{
    if (s->held)
        out(s, "\xef\xbf\xbd", 3);
    s->held = 0;
}

static void whole(text_stream *s)
{
    const unsigned char c = s->tail[0];
    const bool high = c == 0xc2 && s->held == 2 && s->tail[1] < 0xa0; /* U+0080 .. U+009F */
    char escape[8];

    if (high || (s->held == 1 && ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)))
        out(s, escape, (size_t)snprintf(escape, sizeof escape, "\\x%02x", high ? s->tail[1] : c));
    else
        out(s, (const char *)s->tail, (size_t)s->held);
    s->held = 0;
}

void text_put(text_stream *s, const char *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)bytes[i];

        if (s->held && !continues(s, c))
            text_end(s);
        if (!s->held && !expected(c)) {
            out(s, "\xef\xbf\xbd", 3);
            continue;
        }
        s->tail[s->held++] = c;
        if (s->held == expected(s->tail[0]))
            whole(s);
    }
    if (s->print)
        fflush(stdout);
}

void text_free(text_stream *s)
{
    free(s->text);
    s->text = NULL;
}

/* split.c: pre-tokenisers: where byte-level BPE cuts text before it merges, as the regular expressions of the models'
 * tokenizer.json do under Oniguruma (Hugging Face's tokenizers). A byte that is no UTF-8 is a character of no class.
 *
 *     gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *     smollm     every \p{N} alone, then gpt-2 on the rests, each a text of its own
 *     llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *                \s*[\r\n]+|\s+(?!\S)|\s+
 *     qwen2      the same with \p{N} for \p{N}{1,3}
 *     gpt-4o     [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
 *                \s*[\r\n]+|\s+(?!\S)|\s+, with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W = [\p{Ll}\p{Lm}\p{Lo}\p{M}] and
 *                C = (?i:'s|'t|'re|'ve|'m|'ll|'d)
 */
#include <utf8proc.h>

#include "lm.h"

enum { LETTER = 1, NUMBER = 2, SPACE = 4, OTHER = 8, END = 16 };

typedef struct cursor {
    const unsigned char *text;
    int64_t end;
    bool digits_end; /* smollm: a number ends the text */
} cursor;

typedef struct character {
    int32_t code; /* -1 at the end; of a stray byte -2 */
    int64_t next; /* where the following one begins */
    int kind;
} character;

static int kind_of(int32_t code)
{
    if ((code >= '\t' && code <= '\r') || code == ' ' || code == 0x85 || code == 0xa0 || code == 0x1680 ||
        (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
        code == 0x3000)
        return SPACE;
    if (code < 128)
        return (code | 32) >= 'a' && (code | 32) <= 'z' ? LETTER : code >= '0' && code <= '9' ? NUMBER : OTHER;
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return NUMBER;
    default:
        return OTHER;
    }
}

static character at(const cursor *c, int64_t i)
{
    character x = {-1, i, END};
    utf8proc_int32_t code;
    utf8proc_ssize_t length;

    if (i >= c->end)
        return x;
    if (c->text[i] < 128) {
        x.code = c->text[i];
        x.next = i + 1;
        x.kind = kind_of(x.code);
    } else {
        length = utf8proc_iterate(c->text + i, c->end - i < 4 ? (utf8proc_ssize_t)(c->end - i) : 4, &code);
        x.code = length > 0 ? code : -2;
        x.next = i + (length > 0 ? length : 1);
        x.kind = length > 0 ? kind_of(code) : OTHER;
    }
    if (c->digits_end && x.kind == NUMBER)
        return (character){-1, i, END};
    return x;
}

/* The end of the run of characters of these kinds. */
static int64_t run(const cursor *c, int64_t i, int kinds)
{
    for (character x = at(c, i); x.kind & kinds; x = at(c, i))
        i = x.next;
    return i;
}

/* After 's 't 're 've 'm 'll 'd; i where there is none. */
static int64_t contraction(const cursor *c, int64_t i, bool any_case)
{
    character x = at(c, i), y;
    int32_t a, b;

    if (x.code != '\'')
        return i;
    x = at(c, x.next);
    a = any_case && x.code >= 'A' && x.code <= 'Z' ? x.code + 32 : x.code;
    if (a == 's' || a == 't' || a == 'm' || a == 'd' || (any_case && a == 0x17f)) /* the long s is an s */
        return x.next;
    y = at(c, x.next);
    b = any_case && y.code >= 'A' && y.code <= 'Z' ? y.code + 32 : y.code;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? y.next : i;
}

/* \s+(?!\S)|\s+: a run of spaces leaves its last one to what follows. */
static int64_t spaces(const cursor *c, int64_t i)
{
    const int64_t end = run(c, i, SPACE);
    int64_t last = i;

    if (at(c, end).kind == END)
        return end;
    for (int64_t j = i; j < end; j = at(c, j).next)
        last = j;
    return last > i ? last : end;
}

static int64_t split_gpt2(const cursor *c, int64_t i)
{
    const int64_t short_form = contraction(c, i, false);
    character x = at(c, i);
    int64_t from = i;

    if (short_form > i)
        return short_form;
    if (x.code == ' ') {
        const character y = at(c, x.next);

        if (y.kind & (LETTER | NUMBER | OTHER)) {
            from = x.next;
            x = y;
        }
    }
    return x.kind == SPACE ? spaces(c, i) : run(c, from, x.kind);
}

/* Numbers of at most `digits` digits, other characters with line breaks (and `also`) behind them, spaces. */
static int64_t split_rest(const cursor *c, int64_t i, int digits, int32_t also)
{
    character x = at(c, i), y = at(c, x.next);
    int64_t last = i;

    if (x.kind == NUMBER) {
        for (int n = 0; n < digits && x.kind == NUMBER; n++) {
            i = x.next;
            x = at(c, i);
        }
        return i;
    }
    if (x.kind == OTHER || (x.code == ' ' && y.kind == OTHER)) {
        i = run(c, x.kind == OTHER ? i : x.next, OTHER);
        for (x = at(c, i); x.code == '\r' || x.code == '\n' || x.code == also; x = at(c, i))
            i = x.next;
        return i;
    }
    for (int64_t j = i; (x = at(c, j)).kind == SPACE; j = x.next) /* \s*[\r\n]+: to the last line break of the run */
        if (x.code == '\r' || x.code == '\n')
            last = x.next;
    return last > i ? last : spaces(c, i);
}

static int64_t split_llama3(const cursor *c, int64_t i, int digits)
{
    const int64_t short_form = contraction(c, i, true);
    const character x = at(c, i), y = at(c, x.next);

    if (short_form > i)
        return short_form;
    if (x.kind == LETTER)
        return run(c, i, LETTER);
    if (x.kind != NUMBER && x.code != '\r' && x.code != '\n' && y.kind == LETTER)
        return run(c, x.next, LETTER);
    return split_rest(c, i, digits, '\n');
}

/* What gpt-4o's expression tells apart in words: letters that begin them, letters that go on, and both. */
enum { BEGINS = 1, GOES_ON = 2 };

static int part_of_word(character x)
{
    if (x.code < 0)
        return 0;
    switch (utf8proc_category(x.code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return BEGINS;
    case UTF8PROC_CATEGORY_LL:
        return GOES_ON;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return BEGINS | GOES_ON;
    default:
        return 0;
    }
}

/* U*W+ from i on; i where it does not match. `*capitals` is where U* ends. */
static int64_t word(const cursor *c, int64_t i, int64_t *capitals)
{
    int64_t end = i, last = i;
    character x = at(c, i);

    for (; part_of_word(x) & BEGINS; x = at(c, end)) {
        end = x.next;
        last = part_of_word(x) & GOES_ON ? end : last;
    }
    *capitals = end;
    if (!(part_of_word(x) & GOES_ON))
        return last; /* U* backtracks over what follows its last letter that goes on, and that letter */
    for (; part_of_word(x) & GOES_ON; x = at(c, last))
        last = x.next;
    return last;
}

static int64_t split_gpt4o(const cursor *c, int64_t i)
{
    const character x = at(c, i);
    const bool before = !(x.kind & (LETTER | NUMBER | END)) && x.code != '\r' && x.code != '\n';
    const int64_t from[] = {before ? x.next : i, i};
    int64_t end[2], capitals[2];

    for (int k = 0; k < 2; k++)
        if ((end[k] = word(c, from[k], &capitals[k])) > from[k])
            return contraction(c, end[k], true);
    for (int k = 0; k < 2; k++)
        if (capitals[k] > from[k])
            return contraction(c, capitals[k], true);
    return split_rest(c, i, 3, '/');
}

int64_t lm_split(lm_pre pre, const char *text, int64_t bytes, int64_t from)
{
    cursor c = {(const unsigned char *)text, bytes, false};

    switch (pre) {
    case LM_PRE_LLAMA3:
        return split_llama3(&c, from, 3);
    case LM_PRE_QWEN2:
        return split_llama3(&c, from, 1);
    case LM_PRE_GPT4O:
        return split_gpt4o(&c, from);
    case LM_PRE_SMOLLM:
        if (at(&c, from).kind == NUMBER)
            return at(&c, from).next;
        c.digits_end = true;
        return split_gpt2(&c, from);
    default:
        return split_gpt2(&c, from);
    }
}

/* normalize.c: NFC, which Qwen's tokenizers begin with: text as composed characters. Bytes that are no UTF-8 stay. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "lm.h"

/* Where the UTF-8 that begins at `at` ends. */
static int64_t valid_end(const char *text, int64_t bytes, int64_t at)
{
    utf8proc_int32_t code;

    while (at < bytes) {
        const int64_t left = bytes - at < 4 ? bytes - at : 4;
        const utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)left, &code);

        if (length <= 0)
            break;
        at += length;
    }
    return at;
}

ridge_status lm_compose(const char *text, int64_t bytes, char **to, int64_t *length)
{
    /* A character of n bytes has at most 3 n once it is composed (Unicode Standard Annex 15, section 9). */
    char *out = malloc((size_t)(3 * bytes + 1));
    int64_t at = 0, count = 0;

    *to = NULL;
    while (out && at < bytes) {
        const int64_t end = valid_end(text, bytes, at);
        utf8proc_uint8_t *part = NULL;
        utf8proc_ssize_t size = 0;

        if (end > at)
            size = utf8proc_map((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(end - at), &part,
                                UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (size < 0 || size > 3 * (end - at)) {
            free(part);
            free(out);
            return lm_fail(RIDGE_ERR_ARG, "the text has no composed form: %s", utf8proc_errmsg(size));
        }
        if (size)
            memcpy(out + count, part, (size_t)size);
        free(part);
        count += size;
        at = end;
        if (at < bytes && valid_end(text, bytes, at) == at)
            out[count++] = text[at++];
    }
    *to = out;
    *length = count;
    return out ? RIDGE_OK : lm_fail(RIDGE_ERR_ARG, "no memory for a text of %" PRId64 " bytes", bytes);
}

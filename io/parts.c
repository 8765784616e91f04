/* parts.c: reads a GGUF that was split into several files, as shards of one checkpoint. Each part is a GGUF of its own
 * with split.no (from 0), split.count and split.tensors.count (of all parts) in its metadata, and a name that ends in
 * -00001-of-00003.gguf: by these names the others are found (gguf-split of llama.cpp writes both, and its loader goes
 * by them). A part alone is no model, and is refused. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

enum { DIGITS = 5, ENDING = 2 * DIGITS + 4 + 5 /* -NNNNN-of-NNNNN.gguf, with its dashes */ };

static bool digits(const char *text, int64_t *number)
{
    *number = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *number = *number * 10 + (text[i] - '0');
    }
    return true;
}

int64_t io_part_name(const char *name, int64_t *number, int64_t *count)
{
    const size_t length = strlen(name);
    const char *end = name + length - (ENDING + 1);

    if (length < ENDING + 1 || end[0] != '-' || !digits(end + 1, number) || memcmp(end + 1 + DIGITS, "-of-", 4) != 0 ||
        !digits(end + 5 + DIGITS, count) || strcmp(end + 5 + 2 * DIGITS, ".gguf") != 0)
        return -1;
    return end - name;
}

static ridge_status add_part(ridge_file *file, const char *path, int64_t number, const io_part *all)
{
    int64_t other, count, length = io_part_name(path, &other, &count);
    char *name = NULL;
    ridge_status status;
    io_part part;

    if (asprintf(&name, "%.*s-%05" PRId64 "-of-%05" PRId64 ".gguf", (int)length, path, number + 1, count) < 0)
        return io_no_memory(path);
    status = io_add_shard(file, name);
    if (status != RIDGE_OK)
        io_fail(status, "%s: is part %" PRId64 " of %" PRId64 "; part %" PRId64 ": %s", path, all->number + 1,
                all->count, number + 1, ridge_io_error());
    if (status == RIDGE_OK)
        status = io_parse_gguf(file, file->shards - 1, &part);
    if (status == RIDGE_OK && (part.number != number || part.count != all->count || part.tensors != all->tensors))
        status =
            io_fail(RIDGE_ERR_FILE,
                    "%s: says that it is part %" PRId64 " of %" PRId64 ", of %" PRId64
                    " tensors together, but %s is part %" PRId64 " of %" PRId64 ", of %" PRId64,
                    name, part.number + 1, part.count, part.tensors, path, all->number + 1, all->count, all->tensors);
    if (status == RIDGE_OK)
        status = io_close_shard(file, file->shards - 1);
    free(name);
    return status;
}

ridge_status io_open_gguf(ridge_file *file, const char *path)
{
    int64_t number, count;
    io_part part;
    ridge_status status = io_parse_gguf(file, 0, &part);

    if (status != RIDGE_OK || part.count <= 1)
        return status;
    if (io_part_name(path, &number, &count) < 0 || number != part.number + 1 || count != part.count)
        return io_fail(RIDGE_ERR_FILE,
                       "%s: is part %" PRId64 " of %" PRId64 ", and its name does not end in -%05" PRId64
                       "-of-%05" PRId64 ".gguf: the other parts cannot be found",
                       path, part.number + 1, part.count, part.number + 1, part.count);
    if (part.number > 0) { /* the first part's metadata counts, and its tensors come first */
        io_clear(file);
        file->format = RIDGE_GGUF;
        status = add_part(file, path, 0, &part);
    }
    for (int64_t i = 1; i < part.count && status == RIDGE_OK; i++)
        status = add_part(file, path, i, &part);
    if (status == RIDGE_OK && part.tensors != file->tensors)
        status = io_fail(RIDGE_ERR_FILE, "%s: its %" PRId64 " parts have %" PRId64 " tensors, and say %" PRId64, path,
                         part.count, file->tensors, part.tensors);
    return status;
}

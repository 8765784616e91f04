/* out.c: writes a temporary file and renames it. */
#include "out.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static bool say(const out_file *out, const char *why)
{
    fprintf(stderr, "%s: cannot write %s: %s\n", out->verb, *out->path ? out->path : "a file without a name", why);
    return false;
}

/* The path with links followed; NULL and a message where a link leads nowhere. */
static char *target_of(const out_file *out)
{
    struct stat there;
    char *target;

    if (!*out->path || strcmp(out->path, "-") == 0) {
        say(out, *out->path ? "this goes to a file, not to standard output" : strerror(ENOENT));
        return NULL;
    }
    if (lstat(out->path, &there) != 0 || !S_ISLNK(there.st_mode)) {
        target = strdup(out->path);
        if (!target)
            say(out, "out of memory");
        return target;
    }
    target = realpath(out->path, NULL);
    if (!target)
        say(out, errno == ENOENT ? "it is a link to nothing" : strerror(errno));
    return target;
}

/* Removed at exit: OpenMP's runtime ends the program when memory is short. */
static const char *unfinished;

static void drop_unfinished(void)
{
    if (unfinished)
        unlink(unfinished);
}

/* An unpredictable name that must be new: in a directory that others may write to, a link planted under a
 * known name would be written through. */
static FILE *create(out_file *out)
{
    uint64_t number;
    int fd = -1;
    FILE *to;

    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number ||
        asprintf(&out->temporary, "%s.part%016" PRIx64, out->target, number) < 0)
        out->temporary = NULL;
    else
        fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    to = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !to) {
        close(fd);
        unlink(out->temporary);
    }
    return to;
}

/* An empty file, or one that `ridge tune` wrote. */
static bool replaceable(const char *file)
{
    char first[9] = "";
    FILE *from = fopen(file, "r");
    const size_t length = from ? fread(first, 1, 8, from) : 1;

    if (from)
        fclose(from);
    return length == 0 || memcmp(first, "# ridge ", 8) == 0;
}

bool out_open(out_file *out, const char *verb, const char *path)
{
    struct stat there;
    bool replaces;

    *out = (out_file){.verb = verb, .path = path};
    out->target = target_of(out);
    if (!out->target)
        return false;
    replaces = stat(out->target, &there) == 0;
    if (replaces && !S_ISREG(there.st_mode))
        say(out, S_ISDIR(there.st_mode) ? strerror(EISDIR) : "it is no regular file");
    else if (replaces && !replaceable(out->target)) /* a record, a model: probably a slip */
        say(out, "it is there and is no tuning file");
    else if ((out->to = create(out)) == NULL)
        say(out, strerror(errno));
    if (out->to) {
        if (replaces)
            fchmod(fileno(out->to), there.st_mode & 07777); /* keep its mode; not all file systems can */
        unfinished = out->temporary;
        atexit(drop_unfinished);
        return true;
    }
    free(out->temporary);
    free(out->target);
    return false;
}

bool out_close(out_file *out, bool good)
{
    bool written;

    errno = 0;
    written = fflush(out->to) == 0 && !ferror(out->to) && fsync(fileno(out->to)) == 0;
    written = fclose(out->to) == 0 && written;
    if (good && written && rename(out->temporary, out->target) != 0)
        written = false;
    if (!written)
        say(out, strerror(errno));
    if (!good || !written)
        unlink(out->temporary);
    unfinished = NULL;
    free(out->temporary);
    free(out->target);
    return good && written;
}

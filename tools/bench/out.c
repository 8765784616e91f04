/* out.c: writes a temporary file and renames it. */
#include "out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "record.h"

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
    else if (replaces && record_is(out->target)) /* probably the one that was read */
        say(out, "it is a record");
    else if (asprintf(&out->temporary, "%s.part%d", out->target, (int)getpid()) < 0)
        say(out, "out of memory");
    else if ((out->to = fopen(out->temporary, "w")) == NULL)
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

/* out.c: see out.h. */
#include "out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool say(const out_file *out, const char *why)
{
    fprintf(stderr, "%s: cannot write %s: %s\n", out->verb, *out->path ? out->path : "a file without a name", why);
    return false;
}

bool out_open(out_file *out, const char *verb, const char *path)
{
    const size_t size = strlen(path) + 32;
    struct stat there;

    *out = (out_file){.verb = verb, .path = path};
    if (!*path)
        return say(out, strerror(ENOENT));
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return say(out, S_ISDIR(there.st_mode) ? strerror(EISDIR) : "it is no regular file");
    out->part = malloc(size);
    if (!out->part)
        return say(out, "out of memory");
    snprintf(out->part, size, "%s.part%d", path, (int)getpid());
    out->to = fopen(out->part, "w");
    if (out->to)
        return true;
    say(out, strerror(errno));
    free(out->part);
    return false;
}

bool out_close(out_file *out, bool good)
{
    bool written;

    errno = 0;
    written = fflush(out->to) == 0 && !ferror(out->to) && fsync(fileno(out->to)) == 0;
    written = fclose(out->to) == 0 && written;
    if (good && written && rename(out->part, out->path) != 0)
        written = false;
    if (!written)
        say(out, strerror(errno));
    if (!good || !written)
        unlink(out->part);
    free(out->part);
    return good && written;
}

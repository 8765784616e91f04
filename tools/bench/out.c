/* out.c: see out.h. */
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

/* Where the file really is: behind a link, its target; NULL and a message where there is none to replace. */
static char *place_of(const out_file *out)
{
    struct stat there;
    char *place;

    if (!*out->path || strcmp(out->path, "-") == 0) {
        say(out, *out->path ? "this goes to a file, not to standard output" : strerror(ENOENT));
        return NULL;
    }
    if (lstat(out->path, &there) != 0 || !S_ISLNK(there.st_mode)) {
        place = strdup(out->path);
        if (!place)
            say(out, "out of memory");
        return place;
    }
    place = realpath(out->path, NULL);
    if (!place)
        say(out, errno == ENOENT ? "it is a link to nothing" : strerror(errno));
    return place;
}

/* OpenMP's runtime ends the program where it has no memory. */
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
    out->place = place_of(out);
    if (!out->place)
        return false;
    replaces = stat(out->place, &there) == 0;
    if (replaces && !S_ISREG(there.st_mode))
        say(out, S_ISDIR(there.st_mode) ? strerror(EISDIR) : "it is no regular file");
    else if (replaces && record_is(out->place)) /* as likely as not the one that was read */
        say(out, "it is a record");
    else if (asprintf(&out->part, "%s.part%d", out->place, (int)getpid()) < 0)
        say(out, "out of memory");
    else if ((out->to = fopen(out->part, "w")) == NULL)
        say(out, strerror(errno));
    if (out->to) {
        if (replaces)
            fchmod(fileno(out->to), there.st_mode & 07777); /* as it was; not all file systems can */
        unfinished = out->part;
        atexit(drop_unfinished);
        return true;
    }
    free(out->part);
    free(out->place);
    return false;
}

bool out_close(out_file *out, bool good)
{
    bool written;

    errno = 0;
    written = fflush(out->to) == 0 && !ferror(out->to) && fsync(fileno(out->to)) == 0;
    written = fclose(out->to) == 0 && written;
    if (good && written && rename(out->part, out->place) != 0)
        written = false;
    if (!written)
        say(out, strerror(errno));
    if (!good || !written)
        unlink(out->part);
    unfinished = NULL;
    free(out->part);
    free(out->place);
    return good && written;
}

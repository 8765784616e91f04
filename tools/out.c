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

/* Writes the file beside the place. */
static bool write_part(const out_file *out)
{
    FILE *to = fopen(out->part, "w");
    struct stat there;
    bool good;

    if (!to)
        return false;
    if (stat(out->place, &there) == 0)
        fchmod(fileno(to), there.st_mode & 07777); /* as it was; not all file systems can */
    good = fwrite(out->text, 1, out->bytes, to) == out->bytes && fflush(to) == 0 && fsync(fileno(to)) == 0;
    good = fclose(to) == 0 && good;
    if (!good)
        unlink(out->part);
    return good;
}

bool out_open(out_file *out, const char *verb, const char *path)
{
    struct stat there;

    *out = (out_file){.verb = verb, .path = path};
    out->place = place_of(out);
    if (!out->place)
        return false;
    if (stat(out->place, &there) == 0 && !S_ISREG(there.st_mode))
        say(out, S_ISDIR(there.st_mode) ? strerror(EISDIR) : "it is no regular file");
    else if (asprintf(&out->part, "%s.part%d", out->place, (int)getpid()) < 0)
        say(out, "out of memory");
    else if (!write_part(out) || unlink(out->part) != 0 || (out->to = open_memstream(&out->text, &out->bytes)) == NULL)
        say(out, strerror(errno)); /* tried while it is empty: not after an hour of work */
    if (out->to)
        return true;
    free(out->part);
    free(out->place);
    return false;
}

bool out_close(out_file *out, bool good)
{
    bool written;

    errno = ENOMEM;
    written = !ferror(out->to);
    written = fclose(out->to) == 0 && written;
    if (good && written) {
        written = write_part(out) && rename(out->part, out->place) == 0;
        if (!written) {
            say(out, strerror(errno));
            unlink(out->part);
        }
    } else if (!written) {
        say(out, strerror(errno));
    }
    free(out->text);
    free(out->part);
    free(out->place);
    return good && written;
}

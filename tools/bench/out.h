/* out.h: a file that is there whole or not at all: written beside its place, then renamed. */
#ifndef RIDGE_OUT_H
#define RIDGE_OUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct out_file {
    const char *verb, *path; /* verb: for messages */
    char *place, *part;      /* path with links followed; the file beside it until it is whole */
    FILE *to;
} out_file;

/* False with the reason on stderr. A path that is there and no file (a device, a folder) is refused: a rename would
 * replace it; so is a record, which these verbs read. Behind a link its target is replaced, and the link stays. */
bool out_open(out_file *out, const char *verb, const char *path);
/* Puts it in its place if `good` and everything was written, else drops it; returns whether it is there. */
bool out_close(out_file *out, bool good);

#endif

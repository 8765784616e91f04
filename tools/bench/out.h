/* out.h: an output file that is complete or does not exist: a temporary file beside the target, renamed at the end. */
#ifndef RIDGE_OUT_H
#define RIDGE_OUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct out_file {
    const char *verb, *path;  /* verb: for messages */
    char *target, *temporary; /* target: path with links followed */
    FILE *to;
} out_file;

/* False with the reason on stderr. A path that exists and is no regular file (a device, a directory) is refused, since
 * a rename would replace it; so is one that is no tuning file. Of a link the target is replaced. */
bool out_open(out_file *out, const char *verb, const char *path);
/* Renames the file to its target if `good` and everything was written, else removes it; true if it is in place. */
bool out_close(out_file *out, bool good);

#endif

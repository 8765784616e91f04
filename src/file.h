/* file.h: opening files for reading. */
#ifndef RIDGE_FILE_H
#define RIDGE_FILE_H

#include <stdio.h>

/* A regular file, opened for reading; NULL with the reason in *why. Anything else is refused, and not waited for: a
 * pipe would block until somebody writes to it. */
FILE *ridge_open_regular(const char *path, const char **why);

#endif

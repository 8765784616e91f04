/* file.c: opens what is to be read. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

FILE *ridge_open_regular(const char *path, const char **why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat is;
    FILE *stream = NULL;

    if (fd >= 0 && fstat(fd, &is) == 0) {
        errno = S_ISDIR(is.st_mode) ? EISDIR : 0;
        if (S_ISREG(is.st_mode))
            stream = fdopen(fd, "rb");
    }
    *why = errno ? strerror(errno) : "not a regular file";
    if (fd >= 0 && !stream)
        close(fd);
    return stream;
}

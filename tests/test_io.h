/* test_io.h: what the tests of ridge_io share. */
#ifndef RIDGE_TEST_IO_H
#define RIDGE_TEST_IO_H

#include "unit.h"
#include "io/io.h"

/* A path in this run's own directory; one of a few static buffers. */
const char *in_directory(const char *name);
void put_file(const char *path, const void *bytes, size_t count);
/* A safetensors file of this header and `data` bytes 0, 1, 2, ... */
void put_safetensors(const char *path, const char *header, size_t data);
/* Opening must fail with RIDGE_ERR_FILE and a message that holds the path's last part and both texts. */
void refused(const char *path, const char *first, const char *second);
ridge_file *opened(const char *path);
/* Names that are there besides . and .. */
int entries_in(const char *directory);

int run_safetensors_tests(void);

#endif

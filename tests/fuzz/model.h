/* model.h: checkpoints made of choices that are read from a fuzzer's input. */
#ifndef RIDGE_TESTS_FUZZ_MODEL_H
#define RIDGE_TESTS_FUZZ_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* What is left of the input; after its end random numbers, which begin with `state`. */
typedef struct source {
    const uint8_t *at, *end;
    uint64_t state;
} source;

/* A choice below n, which is at most 256. */
unsigned pick(source *s, unsigned n);
void put_file(const char *path, const void *data, size_t bytes);
/* Fills an empty directory; *path is what the tool is given: the directory, or a file of it. */
void make_model(source *s, const char *folder, char *path, size_t size);

#endif

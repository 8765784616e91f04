/* record.h: records: one CSV line per measurement, the same columns as bench/peers.py. */
#ifndef RIDGE_RECORD_H
#define RIDGE_RECORD_H

#include <stdio.h>

#include "check/check.h"
#include "tools/cli.h"

typedef struct record {
    char run[40], date[24], commit[48], device[128], driver[32], suite[48], op[48], problem[256], provider[32],
        kernel[64];
    double us, us_p20, us_p80, tflops, gbps, floor_us, err, peak_bytes; /* negative = not measured */
} record;

extern const char record_header[];

/* run (one id per process), date, commit, device and driver; the rest is empty. */
void record_begin(record *r, const ridge_device *device);
void record_write(FILE *to, const record *r);
/* A file that begins as one of these. */
bool record_is(const char *file);
/* Opens for appending and writes the header if the file is new; NULL with the reason on stderr (one of which is that
 * the file is there and begins otherwise). */
FILE *record_open(const char *file);
/* False with the reason on stderr if something was not written. */
bool record_close(FILE *to, const char *file);
/* Reads a file; on a malformed one prints file:line: reason and returns false. The caller frees *at. */
bool record_read(const char *file, record **at, int *count);

/* The fastest row of ridge for r's op and problem; in the same run unless `any`. NULL if there is none. */
const record *record_of_ridge(const record *at, int count, const record *r, bool any);

#endif

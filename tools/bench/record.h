/* record.h: a record is a CSV file with a line for each measurement, in the columns of bench/peers.py. Here are a line,
 * the sink that a verb emits lines to, and reading. */
#ifndef RIDGE_RECORD_H
#define RIDGE_RECORD_H

#include <jansson.h>
#include <stdio.h>

#include "src/internal.h"

typedef struct record {
    char run[40], date[24], commit[48], device[128], driver[32], suite[48], op[48], problem[256], provider[32],
        kernel[64];
    double us, us_p20, us_p80, tflops, gbps, floor_us, err, peak_bytes; /* negative = not measured */
} record;

/* Where a verb's lines go: appended to a CSV file, gathered as JSON, or neither. */
typedef struct record_sink {
    const ridge_device *device;
    const char *file; /* NULL: no CSV */
    FILE *csv;
    json_t *json; /* NULL: a table is printed instead */
    char run[40]; /* one id per process */
} record_sink;

/* Opens the file for appending and writes the header if it is new. False with the reason on stderr, one of which is
 * that the file exists and does not begin with that header. */
bool record_open(record_sink *sink, const ridge_device *device, const char *file, bool json);
/* Prints the JSON and closes the file. False with the reason on stderr if something was not written. */
bool record_close(record_sink *sink);
/* Fills in run, date, commit, device and driver; everything else is not measured. */
void record_begin(const record_sink *sink, record *r);
void record_emit(record_sink *sink, const record *r);
/* True where the 80th percentile is over 1.5 times the 20th: something else ran, and the median says little. */
bool record_is_noisy(const record *r);

/* Reads a file; on a malformed one prints file:line: reason and returns false. The caller frees *at. */
bool record_read(const char *file, record **at, int *count);

/* The fastest line of ridge for r's op and problem; in the same run unless `any`. NULL if there is none. */
const record *record_of_ridge(const record *at, int count, const record *r, bool any);

#endif

/* measure.h: work on a stream: captured as a graph, timed, and the order of what was timed. */
#ifndef RIDGE_MEASURE_H
#define RIDGE_MEASURE_H

#include "src/internal.h"

/* Calls on a stream, and what they are told. */
typedef struct work {
    ridge_status (*run)(const void *state);
    const void *state;
} work;

/* The work as a graph. Whatever fails, the stream captures no more afterwards, *graph is NULL, and ridge_error() has
 * the first reason. */
ridge_status measure_capture(const ridge_device *device, void *stream, work w, void **graph);

/* Microseconds of the graph once, or of the work where there is none; 0 on failure. */
ridge_status measure_once(const ridge_device *device, void *stream, void *graph, work w, double *us);

/* Sorts what `rounds` rounds took: median, 20th and 80th percentile. No rounds: zeros. */
void measure_order(double *round, int rounds, double us[3]);

#endif

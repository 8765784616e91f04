/* measure.c: what every timing of the driver does: capture, launch between two marks, sort. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

ridge_status measure_capture(const ridge_device *device, void *stream, work w, void **graph)
{
    const ridge_backend *b = device->backend;
    ridge_status status = b->graph_begin(device, stream), ended;
    char why[512];

    *graph = NULL;
    if (status)
        return status;
    status = w.run(w.state);
    snprintf(why, sizeof why, "%s", status ? ridge_error() : "");
    ended = b->graph_end(device, stream, graph);
    if (!status)
        return ended;
    if (!ended && *graph)
        b->graph_free(device, *graph);
    *graph = NULL;
    return ridge_fail(status, "%s", why); /* the end of a spoiled capture says less */
}

ridge_status measure_once(const ridge_device *device, void *stream, void *graph, work w, double *us)
{
    const ridge_backend *b = device->backend;
    ridge_status status = b->mark(device, 0, stream);

    if (!status)
        status = graph ? b->graph_launch(device, graph, stream) : w.run(w.state);
    if (!status)
        status = b->mark(device, 1, stream);
    if (!status)
        status = b->sync(device, stream);
    if (!status)
        status = b->elapsed(device, 0, 1, us);
    if (status)
        *us = 0;
    return status;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void measure_order(double *round, int rounds, double us[3])
{
    us[0] = us[1] = us[2] = 0;
    if (rounds < 1)
        return;
    qsort(round, (size_t)rounds, sizeof round[0], ascending);
    us[0] = round[rounds / 2];
    us[1] = round[rounds / 5];
    us[2] = round[rounds - 1 - rounds / 5];
}

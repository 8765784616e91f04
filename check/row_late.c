/* row_late.c: a row behind a kernel that lets it start at once and writes its inputs late, and in front of one that
 * overwrites inputs and workspace as soon as it may (programmatic dependent launch). */
#include <string.h>

#include "family.h"
#include "row.h"

enum { LATE_US = 60 }; /* longer than the host takes to launch a row's kernels */

/* No output lies on any byte of an input. */
static bool is_input_alone(const image *im, int arg)
{
    if (!im->length[arg] || ridge_operand_role(&im->call, arg) != RIDGE_IN)
        return false;
    for (int i = 0; i < ridge_op_at(im->call.op)->args; i++)
        if (im->length[i] && ridge_operand_role(&im->call, i) & RIDGE_OUT &&
            im->offset[i] < im->offset[arg] + im->length[arg] && im->offset[arg] < im->offset[i] + im->length[i])
            return false;
    return true;
}

/* The writes of the kernel behind: 0xff over inputs and workspace. */
static int writes_behind(const row_run *t, ridge_write *list)
{
    int count = 0;

    for (int arg = 0; arg < ridge_op_at(t->im->call.op)->args; arg++)
        if (is_input_alone(t->im, arg))
            list[count++] = (ridge_write){(char *)t->l[0].image + t->im->offset[arg], NULL, t->im->length[arg]};
    if (t->bytes)
        list[count++] = (ridge_write){t->l[0].workspace, NULL, t->bytes};
    return count;
}

static bool is_steady(const row_run *t, int arg)
{
    const check_family *family = check_family_of(t->im->call.op);

    return row_step_of(t->im, arg) == 0 || (family->steady && family->steady(&t->im->call, arg));
}

/* The writes of the preceding kernel: everything, from the second lane; if the next launch has RIDGE_WEIGHTS_CONST
 * what follows the rows of the call, since operands that do not may be weights. */
static int writes_in_front(const row_run *t, ridge_write *list)
{
    const bool weights_const = (t->l[0].launches & 1) || (t->im->call.flags & RIDGE_WEIGHTS_CONST);
    char *const to = t->l[0].image, *const from = t->l[1].image;
    int count = 0;

    if (!weights_const)
        list[count++] = (ridge_write){to, from, t->im->bytes};
    for (int arg = 0; arg < ridge_op_at(t->im->call.op)->args && weights_const; arg++)
        if (t->im->length[arg] && !is_steady(t, arg))
            list[count++] = (ridge_write){to + t->im->offset[arg], from + t->im->offset[arg], t->im->length[arg]};
    if (t->bytes)
        list[count++] = (ridge_write){t->l[0].workspace, NULL, t->bytes};
    return count;
}

/* The row between the two, on the first lane. */
static ridge_status launch_between(const void *state)
{
    const row_run *const t = *(row_run *const *)state;
    const ridge_backend *b = t->device->backend;
    ridge_write list[RIDGE_MAX_WRITES];
    int count = writes_in_front(t, list);
    ridge_status status = b->write_late(t->device, list, count, LATE_US, t->l[0].stream);

    if (!status)
        status = row_launch_again(state);
    count = writes_behind(t, list);
    return status ? status : b->write_late(t->device, list, count, 0, t->l[0].stream);
}

/* 0xff in the first lane wherever the preceding kernel writes. */
static bool poison(row_run *t)
{
    ridge_write list[RIDGE_MAX_WRITES];
    const int count = writes_in_front(t, list);

    if (!row_upload(t, &t->l[0]))
        return false;
    for (int i = 0; i < count; i++)
        list[i].from = NULL;
    return t->device->backend->write_late(t->device, list, count, 0, t->l[0].stream) == RIDGE_OK &&
           t->device->backend->sync(t->device, t->l[0].stream) == RIDGE_OK;
}

/* The inputs of the first lane are what the kernel behind wrote; all else is as the eager run left it. */
static bool overwritten_last(row_run *t, const char *way)
{
    const ridge_backend *b = t->device->backend;
    ridge_write list[RIDGE_MAX_WRITES];
    const int count = writes_behind(t, list) - (t->bytes != 0);
    char reason[400];

    if (b->sync(t->device, t->l[0].stream) || b->download(t->device, t->again, t->l[0].image, t->im->bytes))
        return row_failed(t, way);
    for (int i = 0; i < count; i++) /* two halves of a tensor share their rows: compare all, then put back all */
        for (size_t byte = 0; byte < list[i].bytes; byte++)
            if (t->again[(size_t)((char *)list[i].to - (char *)t->l[0].image) + byte] != 0xff) {
                snprintf(t->text, t->size, "%s: the kernel behind wrote before the one in front", way);
                return false;
            }
    for (int i = 0; i < count; i++) {
        const size_t at = (size_t)((char *)list[i].to - (char *)t->l[0].image);

        memcpy(t->again + at, t->first + at, list[i].bytes);
    }
    if (image_equal(t->im, t->first, t->again, reason, sizeof reason))
        return true;
    snprintf(t->text, t->size, "%s: %s", way, reason);
    return false;
}

/* Behind a kernel that lets the row start at once and writes its inputs late, and in front of one that overwrites
 * inputs and workspace as soon as it may: the bits of the eager run, or the row reads or writes before its dependency
 * wait, or a kernel of its chain ends without having waited for the ones before. With and without RIDGE_WEIGHTS_CONST,
 * eager and as a graph. */
bool row_run_late(row_run *t)
{
    const ridge_backend *b = t->device->backend;
    void *graph;
    bool good;

    if (!b->write_late)
        return true;
    for (int i = 0; i < 4; i++) {
        const char *const way = i < 2 ? "between late writes" : "between late writes, as a graph";

        if (!row_upload(t, &t->l[1]) || !poison(t))
            return row_failed(t, way);
        if (i < 2) {
            if (launch_between(&t))
                return row_failed(t, way);
        } else if (measure_capture(t->device, t->l[0].stream, (work){launch_between, &t}, &graph))
            return row_failed(t, way);
        else if (b->graph_launch(t->device, graph, t->l[0].stream))
            return b->graph_free(t->device, graph), row_failed(t, way);
        good = overwritten_last(t, way);
        if (i >= 2)
            b->graph_free(t->device, graph);
        if (!good)
            return false;
    }
    return true;
}

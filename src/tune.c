/* tune.c: tuning files. Reads them in ridge_open, finds a problem's row on the call path. Writing is the CLI's.
 *
 * A tuning file is lines of tab-separated columns: problem, kernel, then figures that only people read:
 *     swiglu_fwd rows=64 cols=14336 dtype=bf16<TAB>cuda.swiglu_fwd.flat<TAB>3.91<TAB>...
 * '#' begins a comment line. A line names an exact problem; it is passed over if its kernel cannot run it on this
 * device, or would give other bits than the kernels that run the problem otherwise: lines must not break
 * batch-invariance. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "internal.h"

enum { MAX_FILE = 16 << 20 };

/* Completes the problem that a call of this text would have: dtypes, flags and sizes without pointers. */
static void problem_of(const ridge_call *call, ridge_problem *problem)
{
    const ridge_op_row *op = ridge_op_at(call->op);

    problem->op = call->op;
    problem->flags = call->flags;
    memcpy(problem->dim, call->dim, sizeof problem->dim);
    for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++)
        problem->dtype[arg] = (uint8_t)call->arg[arg].dtype;
    problem->plain = !op->plain || op->plain(call);
}

static ridge_status read_line(ridge_device *device, const char *file, int number, char *line)
{
    char *kernel_name = strchr(line, '\t'), *problem_text = strchr(line, ' ');
    const ridge_kernel *kernel;
    const ridge_op_row *op;
    ridge_tuned_row *grown;
    unsigned kind;
    ridge_call call;
    ridge_problem problem = {0};

    if (!kernel_name || !problem_text || problem_text > kernel_name)
        return ridge_fail(RIDGE_ERR_FILE, "%s:%d: not 'op name=value ...<TAB>kernel'", file, number);
    *kernel_name++ = 0;
    kernel_name[strcspn(kernel_name, "\t")] = 0;
    op = ridge_op_find(line, (size_t)(problem_text - line));
    if (!op)
        return ridge_fail(RIDGE_ERR_FILE, "%s:%d: unknown op '%.*s'", file, number,
                          problem_text - line < 100 ? (int)(problem_text - line) : 100, line);
    if (ridge_problem_parse(op, problem_text, &call, &problem)) {
        char reason[256];

        snprintf(reason, sizeof reason, "%s", ridge_error());
        return ridge_fail(RIDGE_ERR_FILE, "%s:%d: %s", file, number, reason);
    }
    if (call.flags & RIDGE_STRICT) /* a line is asked whatever the flags of a call are */
        return ridge_fail(RIDGE_ERR_FILE, "%s:%d: strict=1 has no place in a tuning file", file, number);
    kernel = ridge_kernel_find(kernel_name, strlen(kernel_name));
    if (!kernel && strncmp(kernel_name, "cuda.", 5) == 0)
        return RIDGE_OK; /* a CPU-only build does not know the names of CUDA rows */
    if (!kernel || kernel->op != op->id)
        return ridge_fail(RIDGE_ERR_FILE, "%s:%d: %s has no kernel named '%.100s'", file, number, op->name,
                          kernel_name);
    problem_of(&call, &problem);
    if (ridge_why_not(device, kernel, &problem))
        return RIDGE_OK;
    kind = ridge_arithmetic(device, &problem);
    if ((kernel->contract & (RIDGE_FALLBACK | RIDGE_ARITHMETIC)) != kind) {
        if (device->log)
            fprintf(stderr, "ridge: %s:%d: passed over, since %s would change the bits of results\n", file, number,
                    kernel->name);
        return RIDGE_OK;
    }
    if ((device->tuned_count & (device->tuned_count - 1)) == 0) { /* full at every power of two */
        size_t capacity = device->tuned_count ? 2 * (size_t)device->tuned_count : 1;

        grown = realloc(device->tuned, capacity * sizeof *grown);
        if (!grown)
            return ridge_fail(RIDGE_ERR_FILE, "%s:%d: out of memory", file, number);
        device->tuned = grown;
    }
    device->tuned[device->tuned_count].hash = ridge_problem_hash(&problem);
    device->tuned[device->tuned_count].problem = problem;
    device->tuned[device->tuned_count].order = device->tuned_count;
    device->tuned[device->tuned_count++].kernel = kernel;
    return RIDGE_OK;
}

static ridge_status read_text(ridge_device *device, const char *file, char *text)
{
    int number = 1;

    while (*text) {
        size_t length = strcspn(text, "\n");
        char *next = text + length + (text[length] == '\n');
        ridge_status status = RIDGE_OK;

        text[length] = 0;
        if (length && text[length - 1] == '\r')
            text[length - 1] = 0;
        if (text[0] && text[0] != '#')
            status = read_line(device, file, number, text);
        if (status)
            return status;
        text = next;
        number++;
    }
    return RIDGE_OK;
}

static ridge_status read_file(ridge_device *device, const char *file)
{
    const char *why;
    FILE *stream = ridge_open_regular(file, &why);
    char *text;
    size_t length;
    ridge_status status;

    if (!stream)
        return ridge_fail(RIDGE_ERR_FILE, "RIDGE_TUNED: cannot open %.200s: %s", file, why);
    text = malloc(MAX_FILE + 1);
    if (!text) {
        fclose(stream);
        return ridge_fail(RIDGE_ERR_FILE, "RIDGE_TUNED: out of memory");
    }
    length = fread(text, 1, MAX_FILE + 1, stream);
    if (ferror(stream))
        status = ridge_fail(RIDGE_ERR_FILE, "RIDGE_TUNED: cannot read %.200s: %s", file, strerror(errno));
    else if (length > MAX_FILE)
        status = ridge_fail(RIDGE_ERR_FILE, "RIDGE_TUNED: %.200s is larger than 16 MiB", file);
    else if (memchr(text, 0, length))
        status = ridge_fail(RIDGE_ERR_FILE, "RIDGE_TUNED: %.200s is not text", file);
    else {
        text[length] = 0;
        status = read_text(device, file, text);
    }
    free(text);
    fclose(stream);
    return status;
}

static int by_hash(const void *a, const void *b)
{
    const ridge_tuned_row *x = a, *y = b;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return x->order - y->order;
}

static int by_hash_only(const void *a, const void *b)
{
    const ridge_tuned_row *x = a, *y = b;

    return x->hash == y->hash ? 0 : x->hash < y->hash ? -1 : 1;
}

ridge_status ridge_tuned_load(ridge_device *device, const char *user_file)
{
    ridge_status status = RIDGE_OK;
    int kept = 0;

    if (user_file && *user_file)
        status = read_file(device, user_file);
    if (status)
        return status;
    if (device->tuned_count)
        qsort(device->tuned, (size_t)device->tuned_count, sizeof *device->tuned, by_hash);
    for (int i = 0; i < device->tuned_count; i++) /* the first line of a problem wins */
        if (kept == 0 || device->tuned[kept - 1].hash != device->tuned[i].hash)
            device->tuned[kept++] = device->tuned[i];
    device->tuned_count = kept;
    return RIDGE_OK;
}

const ridge_kernel *ridge_tuned_find(const ridge_device *device, const ridge_problem *problem)
{
    ridge_tuned_row key;
    const ridge_tuned_row *found;

    if (device->tuned_count == 0)
        return NULL;
    key.hash = ridge_problem_hash(problem);
    found = bsearch(&key, device->tuned, (size_t)device->tuned_count, sizeof key, by_hash_only);
    if (!found || memcmp(found->problem.dim, problem->dim, sizeof problem->dim) != 0 ||
        found->problem.op != problem->op)
        return NULL;
    return found->kernel;
}

/* run.c: the call path: validate, choose a row, launch. Allocates nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* A pinned kernel either runs or is an error: it is never replaced silently. */
static ridge_status choose_pinned(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                                  size_t bytes)
{
    const char *why = ridge_why_not(device, kernel, problem);

    if (why)
        return ridge_fail(RIDGE_ERR_UNSUPPORTED, "%s: pinned kernel %s: %s", ridge_op_at(problem->op)->name,
                          kernel->name, why);
    if (ridge_kernel_workspace(device, kernel, problem) > bytes)
        return ridge_fail(RIDGE_ERR_WORKSPACE, "%s: pinned kernel %s needs %zu bytes of workspace, there are %zu",
                          ridge_op_at(problem->op)->name, kernel->name, ridge_kernel_workspace(device, kernel, problem),
                          bytes);
    return RIDGE_OK;
}

static ridge_status fail_none(const ridge_device *device, const ridge_problem *problem, size_t bytes, size_t least)
{
    const ridge_op_row *op = ridge_op_at(problem->op);
    char text[800] = "";
    size_t used = 0;
    const char *why;

    if (least != SIZE_MAX)
        return ridge_fail(RIDGE_ERR_WORKSPACE, "%s: the workspace has %zu bytes, the smallest row needs %zu", op->name,
                          bytes, least);
    if (!ridge_backend_at((int)device->backend_id, &why)) /* a model */
        return ridge_fail(RIDGE_ERR_UNSUPPORTED, "%s: %s", op->name, why);
    for (int i = device->first[problem->op]; i < device->first[problem->op + 1] && used + 1 < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "; %s: %s", device->row[i]->name,
                                 ridge_why_not(device, device->row[i], problem));
    return ridge_fail(RIDGE_ERR_UNSUPPORTED, "%s: no kernel of this build runs it on %s%s", op->name,
                      ridge_arch_table[device->arch].name, text);
}

enum { KIND = RIDGE_FALLBACK | RIDGE_ARITHMETIC };

/* The architecture first: ridge_why_not would compose a sentence. */
static bool can_run(const ridge_device *device, const ridge_kernel *row, const ridge_problem *problem)
{
    return device->arch >= row->arch_min && device->arch <= row->arch_max && !ridge_why_not(device, row, problem);
}

/* A choice by cost between rows of other arithmetic would change with dim[0], and break batch-invariance from call to
 * call. So fallbacks come last whatever they cost, and the arithmetic is chosen by the costs at one dim[0], which
 * stands for its whole range. */
unsigned ridge_arithmetic(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t split = ridge_op_at(problem->op)->invariant_split;
    unsigned kind = KIND, runs = 0; /* a bit for each number of RIDGE_ARITHMETIC */
    bool found = false;
    double least = 0;
    ridge_problem one;

    for (int i = device->first[problem->op]; i < device->first[problem->op + 1]; i++) {
        const unsigned of = device->row[i]->contract & KIND;

        if ((of & RIDGE_FALLBACK) > (kind & RIDGE_FALLBACK) || !can_run(device, device->row[i], problem))
            continue;
        runs = (of & RIDGE_FALLBACK) < (kind & RIDGE_FALLBACK) ? 0 : runs;
        runs |= 1u << of / RIDGE_ARITHMETIC_1;
        kind = of;
    }
    if ((runs & (runs - 1)) == 0)
        return kind;
    one = *problem;
    one.dim[0] = split && problem->dim[0] <= split ? split : 8192;
    for (int i = device->first[problem->op]; i < device->first[problem->op + 1]; i++) {
        const ridge_kernel *row = device->row[i];
        const unsigned of = row->contract & KIND;
        double cost;

        if ((of & RIDGE_FALLBACK) != (kind & RIDGE_FALLBACK) || !(runs >> of / RIDGE_ARITHMETIC_1 & 1u) ||
            !can_run(device, row, &one))
            continue;
        cost = row->cost ? row->cost(device, row, &one) : 0;
        if (!found || cost < least) {
            kind = of;
            least = cost;
        }
        found = true;
    }
    return kind;
}

/* The row of lowest cost among those of one arithmetic, whose workspace is large enough. *least: the smallest need. */
static const ridge_kernel *cheapest(const ridge_device *device, const ridge_problem *problem, size_t bytes,
                                    const char **because, size_t *least)
{
    const unsigned kind = ridge_arithmetic(device, problem);
    const ridge_kernel *best = NULL;
    double best_cost = 0;

    *because = "lowest cost";
    for (int i = device->first[problem->op]; i < device->first[problem->op + 1]; i++) {
        const ridge_kernel *row = device->row[i];
        size_t need;
        double cost;

        if (!can_run(device, row, problem))
            continue;
        if ((row->contract & KIND) != kind) {
            *because = "lowest cost of the rows of its arithmetic, one for every m of a range";
            continue;
        }
        need = ridge_kernel_workspace(device, row, problem);
        if (need > bytes) {
            *least = need < *least ? need : *least;
            continue;
        }
        cost = row->cost ? row->cost(device, row, problem) : 0;
        if (!best || cost < best_cost) {
            best = row;
            best_cost = cost;
        }
    }
    return best;
}

ridge_status ridge_choose(const ridge_device *device, const char *pinned, const ridge_problem *problem, size_t bytes,
                          const ridge_kernel **kernel, const char **because)
{
    const ridge_kernel *pin = device->pin[problem->op];
    size_t least = SIZE_MAX;

    if (pinned) {
        pin = ridge_kernel_find(pinned, strlen(pinned));
        if (!pin || pin->op != problem->op)
            return ridge_fail(RIDGE_ERR_ARG, "%s: there is no kernel named '%.100s'", ridge_op_at(problem->op)->name,
                              pinned);
    }
    if (pin) {
        *kernel = pin;
        *because = "pinned";
        return choose_pinned(device, pin, problem, bytes);
    }
    *kernel = ridge_tuned_find(device, problem);
    *because = "tuned";
    if (*kernel && !ridge_why_not(device, *kernel, problem) &&
        ridge_kernel_workspace(device, *kernel, problem) <= bytes)
        return RIDGE_OK;
    *kernel = cheapest(device, problem, bytes, because, &least);
    return *kernel ? RIDGE_OK : fail_none(device, problem, bytes, least);
}

static void log_call(const ridge_device *device, const ridge_call *call, const ridge_problem *problem,
                     const ridge_kernel *kernel)
{
    char text[1024];

    ridge_problem_print(call, problem, text, sizeof text);
    if (device->ordinal > 0)
        fprintf(stderr, "ridge bench %s --device cuda:%d --kernel %s\n", text, device->ordinal, kernel->name);
    else
        fprintf(stderr, "ridge bench %s --device %s --kernel %s\n", text, device->backend->name, kernel->name);
}

/* Scratch memory over an operand would spoil one of them unnoticed. */
static ridge_status check_workspace(const ridge_bound *bound, const void *workspace, size_t bytes)
{
    const ridge_op_row *op = bound->op;
    const uintptr_t begin = (uintptr_t)workspace;

    if (bytes && !workspace)
        return ridge_fail(RIDGE_ERR_ARG, "%s: workspace is NULL but has %zu bytes", op->name, bytes);
    if (begin % 256)
        return ridge_fail(RIDGE_ERR_ARG, "%s: workspace is misaligned: %p is not a multiple of 256 bytes", op->name,
                          workspace);
    for (int arg = 0; arg < op->args && bytes; arg++) {
        const ridge_operand *operand = &bound->call.arg[arg];
        const uintptr_t at = (uintptr_t)operand->data;
        const int64_t elements =
            bound->rows[arg] && bound->cols[arg] ? (bound->rows[arg] - 1) * operand->stride + bound->cols[arg] : 0;
        const uintptr_t size = (uintptr_t)elements * ridge_dtype_size(operand->dtype);

        if (size && at - begin < bytes)
            return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s at %p lies in the workspace, %zu bytes at %p", op->name,
                              op->arg[arg].name, operand->data, bytes, workspace);
        if (begin - at < size)
            return ridge_fail(RIDGE_ERR_ARG, "%s: the workspace at %p lies in operand %s at %p", op->name, workspace,
                              op->arg[arg].name, operand->data);
    }
    return RIDGE_OK;
}

ridge_status ridge_run(const ridge_device *device, const ridge_call *call, void *workspace, size_t bytes, void *stream)
{
    const ridge_kernel *kernel;
    const char *because;
    ridge_bound bound;
    ridge_status status;
    bool entered;

    if (!device)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_run: device is NULL");
    status = ridge_validate(call, &bound);
    if (!status)
        status = check_workspace(&bound, workspace, bytes);
    if (!status)
        status = ridge_choose(device, call->kernel, &bound.problem, bytes, &kernel, &because);
    if (status)
        return status;
    if (!device->backend)
        return ridge_fail(RIDGE_ERR_DEVICE, "%s: a model device launches nothing", bound.op->name);
    if (device->log)
        log_call(device, call, &bound.problem, kernel);
    if (device->backend->enter)
        status = device->backend->enter(device, &entered);
    if (status)
        return status;
    status = kernel->launch(device, kernel, &bound, workspace, bytes, stream);
    if (device->backend->leave)
        device->backend->leave(device, entered);
    return status;
}

ridge_status ridge_together(const ridge_device *device, ridge_status (*body)(void *data), void *data)
{
    if (!device || !body)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_together: %s is NULL", device ? "body" : "device");
    return device->backend && device->backend->together ? device->backend->together(body, data) : body(data);
}

ridge_status ridge_order_graph(const ridge_device *device, void *graph)
{
    ridge_status status;
    bool entered;

    if (!device || !graph)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_order_graph: %s is NULL", device ? "graph" : "device");
    if (!device->backend || !device->backend->order_graph)
        return ridge_fail(RIDGE_ERR_UNSUPPORTED, "ridge_order_graph: device %s has no CUDA graphs", device->name);
    status = device->backend->enter(device, &entered);
    if (status)
        return status;
    status = device->backend->order_graph(device, graph);
    device->backend->leave(device, entered);
    return status;
}

/* The row for a call, and the workspace that it needs. */
static ridge_status pick(const ridge_device *device, const ridge_call *call, size_t bytes, const ridge_kernel **kernel,
                         size_t *need)
{
    const char *because;
    ridge_bound bound;
    ridge_status status;

    if (!device)
        return ridge_fail(RIDGE_ERR_ARG, "the device is NULL");
    status = ridge_validate(call, &bound);
    if (!status)
        status = ridge_choose(device, call->kernel, &bound.problem, bytes, kernel, &because);
    *need = status ? 0 : ridge_kernel_workspace(device, *kernel, &bound.problem);
    return status;
}

ridge_status ridge_workspace_bytes(const ridge_device *device, const ridge_call *call, size_t *bytes)
{
    const ridge_kernel *kernel;
    size_t need;
    ridge_status status = pick(device, call, SIZE_MAX, &kernel, &need);

    if (!bytes)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_workspace_bytes: bytes is NULL");
    *bytes = need;
    return status;
}

ridge_status ridge_pick(const ridge_device *device, const ridge_call *call, size_t workspace_bytes, const char **name)
{
    const ridge_kernel *kernel;
    size_t need;
    ridge_status status = pick(device, call, workspace_bytes, &kernel, &need);

    if (!name)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_pick: kernel is NULL");
    *name = status ? NULL : kernel->name;
    return status;
}

typedef struct writer {
    char *text;
    size_t size, used;
} writer;

static void put(writer *w, const char *line)
{
    size_t length = strlen(line);

    if (w->used < w->size)
        snprintf(w->text + w->used, w->size - w->used, "%s", line);
    w->used += length;
}

ridge_status ridge_explain(const ridge_device *device, const ridge_call *call, char *text, size_t size, size_t *length)
{
    const ridge_kernel *kernel = NULL, *row;
    const char *because = "", *why;
    writer w = {text, size, 0};
    ridge_bound bound;
    ridge_status status;
    char line[1200];
    int others = 0;

    if (!device || (size && !text))
        return ridge_fail(RIDGE_ERR_ARG, "ridge_explain: %s is NULL", device ? "text" : "device");
    status = ridge_validate(call, &bound);
    if (status)
        return status;
    ridge_problem_print(call, &bound.problem, line, sizeof line);
    put(&w, line);
    snprintf(line, sizeof line, " on %s (%s)\n", ridge_arch_table[device->arch].name, device->name);
    put(&w, line);
    if (ridge_choose(device, call->kernel, &bound.problem, SIZE_MAX, &kernel,
                     &because)) /* no row, or a pin that cannot run */
        kernel = NULL;
    for (int i = 0; (row = ridge_kernel_at(i)) != NULL; i++) {
        if (row->op != bound.problem.op)
            continue;
        if (ridge_kernel_backend(row) != device->backend_id) {
            others++;
            continue;
        }
        why = ridge_why_not(device, row, &bound.problem);
        if (why)
            snprintf(line, sizeof line, "  %-28s no: %s\n", row->name, why);
        else
            snprintf(line, sizeof line, "%c %-28s can run; predicted %.2f us, workspace %zu bytes%s%s\n",
                     row == kernel ? '*' : ' ', row->name, row->cost ? row->cost(device, row, &bound.problem) : 0.0,
                     ridge_kernel_workspace(device, row, &bound.problem), row == kernel ? "; picked: " : "",
                     row == kernel ? because : "");
        put(&w, line);
    }
    if (others) {
        snprintf(line, sizeof line, "  %d rows of the other backend\n", others);
        put(&w, line);
    }
    if (!ridge_backend_at((int)device->backend_id, &why)) { /* a model */
        snprintf(line, sizeof line, "  no row of this one: %s\n", why);
        put(&w, line);
    }
    if (length)
        *length = w.used;
    return RIDGE_OK;
}

/* common.c: what every verb needs: devices, name patterns, cases as text, progress. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/args.h"
#include "check.h"

ridge_device *device_open(const char *spec)
{
    ridge_device *device;

    if (ridge_open(spec, &device) == RIDGE_OK)
        return device;
    fprintf(stderr, "ridge: %s\n", ridge_error());
    return NULL;
}

/* What has no memory comes back NULL, which json_pack and the lists take: a part would be missing unnoticed. */
static bool json_lost;

static void *json_memory(size_t size)
{
    void *memory = malloc(size);

    json_lost |= !memory;
    return memory;
}

void json_watch(void)
{
    json_set_alloc_funcs(json_memory, free);
}

bool json_whole(void)
{
    if (json_lost)
        fprintf(stderr, "ridge: out of memory\n");
    return !json_lost;
}

bool print_json(json_t *json)
{
    const bool good = json_dumpf(json, stdout, JSON_INDENT(1)) == 0;

    putchar('\n');
    json_decref(json);
    return json_whole() && good;
}

bool name_matches(const char *pattern, const char *name)
{
    if (!pattern)
        return true;
    if (*pattern == '*')
        return name_matches(pattern + 1, name) || (*name && name_matches(pattern, name + 1));
    if (!*pattern || !*name)
        return *pattern == *name;
    return (*pattern == '?' || *pattern == *name) && name_matches(pattern + 1, name + 1);
}

/* ----------------------------------------------------------------------------------------------------- case text */

static const char *const pad_names[] = {"all", "outputs", "single_rows", NULL};
static const char *const fill_names[] = {"normal", "unit", "edge", "every", "groups", "period", "exact", NULL};

/* The place of `value` in a list of names. */
static bool number_of_name(const char *const *names, const char *value, uint64_t *number)
{
    for (*number = 0; names[*number]; ++*number)
        if (strcmp(names[*number], value) == 0)
            return true;
    return false;
}

/* Words that only the driver knows: how operands lie in memory, what they hold, which runs a test makes. False: not one
 * of those, or (*bad) not its value. */
static bool layout_word(const char *word, test_case *c, bool *bad)
{
    static const struct layout_name {
        const char *name;
        uint64_t most;
        const char *const *choices;
    } list[] = {{"pad=", 4096, NULL},     {"shift=", 4096, NULL},    {"fused=", 1, NULL},
                {"alias=", 1, NULL},      {"slices=", 1, NULL},      {"repeats=", 1000000, NULL},
                {"variant=", 1023, NULL}, {"pad_of=", 0, pad_names}, {"fill=", 0, fill_names}};
    int *const number[] = {&c->pad, &c->shift, NULL, NULL, NULL, &c->repeats, &c->variant};
    bool *const flag[] = {NULL, NULL, &c->fused, &c->alias, &c->slices};
    const char *given;
    uint64_t value = 0;
    size_t i = 0;

    while (i < sizeof list / sizeof list[0] && strncmp(word, list[i].name, strlen(list[i].name)) != 0)
        i++;
    if (i == sizeof list / sizeof list[0])
        return false;
    given = word + strlen(list[i].name);
    *bad = !(list[i].choices ? number_of_name(list[i].choices, given, &value)
                             : number_whole(given, 0, list[i].most, &value));
    if (*bad)
        return false;
    if (list[i].choices == pad_names)
        c->pad_of = (pad_of)value;
    else if (list[i].choices)
        c->fill = (fill_kind)value;
    else if (list[i].most == 1)
        *flag[i] = value != 0;
    else
        *number[i] = (int)value;
    return true;
}

static size_t smallest_element(const ridge_call *call)
{
    const ridge_op_row *op = ridge_op_at(call->op);
    size_t size = 16;

    for (int arg = 0; arg < op->args; arg++)
        if (op->arg[arg].kind == RIDGE_MATRIX && call->arg[arg].dtype != RIDGE_NONE &&
            ridge_dtype_size(call->arg[arg].dtype) < size)
            size = ridge_dtype_size(call->arg[arg].dtype);
    return size;
}

/* A result row depends on nothing but its own inputs. */
static bool is_row_wise(const ridge_op_row *op, const ridge_call *call)
{
    const uint32_t scale = call->flags & RIDGE_SCALE;

    if (op->id == RIDGE_QUANTIZE_FP8)
        return scale == RIDGE_SCALE_ROW || scale == RIDGE_SCALE_ROW128;
    return op->contract & RIDGE_INVARIANT;
}

bool case_parse(const char *text, test_case *c)
{
    char copy[1024], *rest = NULL, problem[1024] = "";
    size_t used = 0, name;
    const ridge_op_row *op;
    int align = 16, packed = 1;
    bool good, bad = false;

    text += strspn(text, args_blanks);
    name = strcspn(text, args_blanks);
    op = ridge_op_find(text, name);
    good = op && strlen(text) < sizeof copy;
    memset(c, 0, sizeof *c);
    c->fill = FILL_UNIT;
    if (!op)
        fprintf(stderr, "ridge: there is no op '%.*s' (see `ridge ops`)\n", (int)name, text);
    else if (!good)
        fprintf(stderr, "ridge: %s: the problem is longer than %zu characters\n", op->name, sizeof copy - 1);
    if (good)
        memcpy(copy, text, strlen(text) + 1);
    for (char *word = good ? strtok_r(copy + name, args_blanks, &rest) : NULL; word && good;
         word = strtok_r(NULL, args_blanks, &rest)) {
        if (layout_word(word, c, &bad))
            continue;
        good = !bad && used + strlen(word) + 2 <= sizeof problem;
        if (good)
            used += (size_t)snprintf(problem + used, sizeof problem - used, " %s", word);
        else
            fprintf(stderr, "ridge: %s: %s '%s'\n", op->name, bad ? "bad value in" : "the problem is too long at",
                    word);
    }
    if (good && ridge_problem_parse(op, problem, &c->call, &align, &packed)) {
        fprintf(stderr, "ridge: %s\n", ridge_error());
        good = false;
    }
    if (good && align < (int)smallest_element(&c->call)) {
        fprintf(stderr, "ridge: %s: no operand is aligned to %d byte%s alone: its elements are %zu\n", op->name, align,
                align == 1 ? "" : "s", smallest_element(&c->call));
        good = false;
    }
    if (good && c->fill == FILL_EXACT && op->id != RIDGE_GEMM_FP8) {
        fprintf(stderr, "ridge: %s: fill=exact is for gemm_fp8: only its sums are exact on small integers\n", op->name);
        good = false;
    }
    if (good && c->slices && !is_row_wise(op, &c->call)) {
        fprintf(stderr, "ridge: %s: slices=1 is for ops whose rows depend on nothing else\n", op->name);
        good = false;
    }
    if (good && align < 16)
        c->shift = align / (int)smallest_element(&c->call);
    if (good && !packed && c->pad == 0 && !c->fused)
        c->pad = 16 / (int)smallest_element(&c->call);
    return good;
}

bool case_problem(const test_case *c, ridge_call *call, ridge_problem *problem)
{
    ridge_status status;
    ridge_bound bound;
    image im;

    image_place(c, &im);
    *call = image_call(&im, (void *)(uintptr_t)(1u << 20));
    status = ridge_validate(call, &bound);
    *problem = bound.problem;
    return status == RIDGE_OK;
}

/* Of the host, what can still be had; 0: not known. A container's own limit is not looked at: what its cgroup counts as
 * used holds the page cache, which would be given up. */
static double free_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    double kilobytes = 0;

    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %lf kB", &kilobytes) != 1)
        ;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* Operands without a byte are still gone through by rows or columns. */
enum { EMPTY_MOST = 1 << 24 };

bool case_fits(const ridge_device *device, const test_case *c, int host, int on_device)
{
    const bool cpu = device->backend_id == RIDGE_CPU;
    const double room = free_memory(), room_there = (double)device->memory_bytes;
    const ridge_op_row *op = ridge_op_at(c->call.op);
    double bytes = 0, here, there;

    for (int arg = 0; arg < op->args; arg++) {
        int64_t rows, cols;

        op->extent(&c->call, arg, &rows, &cols);
        if (c->call.arg[arg].dtype != RIDGE_NONE && (rows == 0 || cols == 0) && rows + cols > EMPTY_MOST) {
            ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is %" PRId64 " x %" PRId64 ", empty ones are run up to %d",
                       op->name, op->arg[arg].name, rows, cols, EMPTY_MOST);
            return false;
        }
        bytes += (double)rows * ((double)cols * (c->fused ? 2 : 1) + c->pad) *
                 (double)ridge_dtype_size(c->call.arg[arg].dtype);
    }
    here = bytes * (host + (cpu ? on_device : 0));
    there = cpu ? 0 : bytes * on_device;
    if (room > 0 && here > room)
        ridge_fail(RIDGE_ERR_DEVICE, "it needs %.1f GB of memory, %.1f GB are free", 1e-9 * here, 1e-9 * room);
    else if (room_there > 0 && there > room_there)
        ridge_fail(RIDGE_ERR_DEVICE, "it needs %.1f GB on the device, which has %.1f GB", 1e-9 * there,
                   1e-9 * room_there);
    else
        return true;
    return false;
}

void case_print(const test_case *c, char *text, size_t size)
{
    const size_t used = (size_t)ridge_problem_print(&c->call, NULL, text, size);
    char fill[24] = "", pad[48] = "", shift[24] = "", variant[24] = "", repeats[24] = "";

    if (used >= size)
        return;
    if (c->fill != FILL_UNIT) /* what case_parse takes it for */
        snprintf(fill, sizeof fill, " fill=%s", fill_names[c->fill]);
    if (c->pad)
        snprintf(pad, sizeof pad, " pad=%d%s%s", c->pad, c->pad_of ? " pad_of=" : "",
                 c->pad_of ? pad_names[c->pad_of] : "");
    if (c->shift)
        snprintf(shift, sizeof shift, " shift=%d", c->shift);
    if (c->variant)
        snprintf(variant, sizeof variant, " variant=%d", c->variant);
    if (c->repeats)
        snprintf(repeats, sizeof repeats, " repeats=%d", c->repeats);
    snprintf(text + used, size - used, "%s%s%s%s%s%s%s%s", c->fused ? " fused=1" : "", c->alias ? " alias=1" : "", fill,
             pad, shift, variant, c->slices ? " slices=1" : "", repeats);
}

/* ------------------------------------------------------------------------------------------------------- progress */

double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_start(progress *p, int total, bool quiet)
{
    p->terminal = isatty(STDERR_FILENO);
    p->quiet = quiet;
    p->start = seconds();
    p->shown = 0;
    p->done = 0;
    p->total = total;
}

void progress_step(progress *p, const char *what)
{
    double spent = seconds() - p->start;
    int tenth = p->total / 10 ? p->total / 10 : 1;

    p->done++;
    if (p->quiet || (!p->terminal && p->done % tenth && p->done != p->total))
        return;
    fprintf(stderr, "%s%s %d/%d, %.0f s left%s", p->terminal ? "\r" : "", what, p->done, p->total,
            spent / p->done * (p->total - p->done), p->terminal ? "   " : "\n");
}

void progress_bytes(progress *p, const char *what, double done, double total)
{
    double now = seconds(), spent = now - p->start;

    if (p->quiet || now - p->shown < (p->terminal ? 0.1 : 5) || spent < (p->terminal ? 0.3 : 5) || !(done > 0))
        return;
    p->shown = now;
    fprintf(stderr, "%s%-40.40s %3.0f %%, %.2f GB/s, %.0f s left%s", p->terminal ? "\r" : "", what, 100 * done / total,
            done / spent * 1e-9, spent / done * (total - done), p->terminal ? "   " : "\n");
}

void progress_end(progress *p)
{
    if (p->terminal && !p->quiet)
        fprintf(stderr, "\r%78s\r", "");
}

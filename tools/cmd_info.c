/* cmd_info.c: `ridge info`, `ridge ops`, `ridge kernels`, `ridge explain`: print devices and tables as text or JSON. */
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "check/check.h"
#include "tools/cli.h"

/* ------------------------------------------------------------------------------------------------------------- info */

static json_t *device_json(const ridge_device *device)
{
    ridge_device_info info = {.struct_size = sizeof info};

    (void)!ridge_device_query(device, &info); /* neither pointer is NULL */
    return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:I, s:I, s:s}", "backend", info.backend, "ordinal", info.ordinal,
                     "arch", info.arch, "name", info.name, "units", info.units, "tuned_rows", info.tuned_rows,
                     "l2_bytes", (json_int_t)info.l2_bytes, "memory_bytes", (json_int_t)info.memory_bytes, "driver",
                     device->driver);
}

static void device_line(const ridge_device *device)
{
    ridge_device_info info = {.struct_size = sizeof info};

    (void)!ridge_device_query(device, &info);
    printf("%-4s %-7s %s: %d %s, last-level cache %.0f MiB, memory %.0f GiB, %d tuned rows%s%s\n", info.backend,
           info.arch, info.name, info.units, device->backend_id == RIDGE_CPU ? "threads" : "multiprocessors",
           (double)info.l2_bytes / 1048576, (double)info.memory_bytes / 1073741824, info.tuned_rows,
           device->driver[0] ? ", " : "", device->driver);
}

int cmd_info(int argc, char **argv)
{
    bool json = false;
    const args_option list[] = {ARGS_JSON(&json), {0}};
    json_t *devices, *models;
    char reason[256] = "", spec[32];
    const char *why = NULL;
    const ridge_backend *cuda = ridge_backend_at(RIDGE_CUDA, &why);
    ridge_backend_id backend;
    int count;

    args_parse(argc, argv, "", "Lists the devices of this machine.", list, NULL, 0);
    devices = json_array();
    models = json_array();
    count = cuda ? cuda->count(reason, sizeof reason) : 0;
    for (int i = -1; i < count; i++) {
        ridge_device *device;

        snprintf(spec, sizeof spec, i < 0 ? "cpu" : "cuda:%d", i);
        device = device_open(spec);
        if (!device) {
            json_decref(devices);
            json_decref(models);
            return 1;
        }
        if (json)
            json_array_append_new(devices, device_json(device));
        else
            device_line(device);
        ridge_close(device);
    }
    for (int i = 0; ridge_chip_name(i, &backend); i++) /* those that this build has rows for */
        if (cuda || backend != RIDGE_CUDA)
            json_array_append_new(models, json_string(ridge_chip_name(i, &backend)));
    if (json)
        return !print_json(json_pack("{s:s, s:o, s:s?, s:o}", "version", ridge_version(), "devices", devices, "no_cuda",
                                     count ? NULL
                                     : why ? why
                                           : reason,
                                     "models", models));
    if (!count)
        printf("cuda none: %s\n", why ? why : reason);
    printf("models for `ridge explain --device model:NAME`:");
    for (size_t i = 0; i < json_array_size(models); i++)
        printf(" %s", json_string_value(json_array_get(models, i)));
    printf("\nridge %s\n", ridge_version());
    json_decref(devices);
    json_decref(models);
    return 0;
}

/* -------------------------------------------------------------------------------------------------- ops and kernels */

static void contract_text(uint32_t contract, char *text, size_t size)
{
    snprintf(text, size, "%s%s%s%s%s%s%s", contract & RIDGE_EXACT ? "exact " : "",
             contract & RIDGE_UNIFORM ? "uniform " : "", contract & RIDGE_STABLE ? "stable " : "",
             contract & RIDGE_INVARIANT ? "batch-invariant " : "", contract & RIDGE_CLOSE ? "close" : "",
             contract & RIDGE_TYPICAL ? "close on random data" : "", contract & RIDGE_FALLBACK ? " (fallback)" : "");
}

static void dtypes_text(uint32_t mask, char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    for (uint32_t dtype = 1; dtype < RIDGE_DTYPES; dtype++)
        if ((mask >> dtype & 1u) && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "", ridge_dtype_name(dtype));
}

static json_t *op_json(const ridge_op_row *op)
{
    json_t *args = json_array(), *fields = json_array();
    char dtypes[96], contract[96];

    for (int i = 0; i < op->args; i++) {
        const ridge_operand_row *arg = &op->arg[i];

        if (!arg->dtypes) /* a slot of another op of the family */
            continue;
        dtypes_text(arg->dtypes, dtypes, sizeof dtypes);
        json_array_append_new(args, json_pack("{s:s, s:b, s:b, s:b, s:s, s:s}", "name", arg->name, "in",
                                              !!(arg->role & RIDGE_IN), "out", !!(arg->role & RIDGE_OUT), "optional",
                                              arg->optional, "dtypes", dtypes, "shape", arg->shape));
    }
    for (int d = 0; d < op->dims; d++)
        json_array_append_new(fields, json_string(op->dim_name[d]));
    for (const ridge_field *field = op->fields; field->name; field++)
        json_array_append_new(fields, json_string(field->name));
    json_array_append_new(fields, json_string("strict"));
    json_array_append_new(fields, json_string("weights_const"));
    contract_text(op->contract, contract, sizeof contract);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", op->name, "summary", op->summary, "contract", contract,
                     "bound", op->bound, "operands", args, "fields", fields);
}

static void op_print(const ridge_op_row *op)
{
    char dtypes[96], contract[96];

    contract_text(op->contract, contract, sizeof contract);
    printf("%s: %s\n  contract %s\n  close means %s\n", op->name, op->summary, contract, op->bound);
    for (int i = 0; i < op->args; i++) {
        if (!op->arg[i].dtypes)
            continue;
        dtypes_text(op->arg[i].dtypes, dtypes, sizeof dtypes);
        printf("  %-12s %s%s  %-14s %s\n", op->arg[i].name, op->arg[i].role & RIDGE_OUT ? "out" : "in ",
               op->arg[i].optional ? "?" : " ", dtypes, op->arg[i].shape);
    }
    printf("  fields:");
    for (int d = 0; d < op->dims; d++)
        printf(" %s=", op->dim_name[d]);
    for (const ridge_field *field = op->fields; field->name; field++) {
        printf(" %s=", field->name);
        for (int i = 0; field->choices && field->choices[i]; i++)
            printf("%s%s", i ? "|" : "", field->choices[i]);
    }
    printf(" strict= weights_const=\n");
}

typedef struct list_options {
    const char *pattern;
    bool json, names;
} list_options;

static list_options parse_list(int argc, char **argv, const char *doc)
{
    list_options o = {NULL, false, false};
    const args_option list[] = {
        ARGS_JSON(&o.json), {"names", 'n', NULL, "only the names, a line each", .flag = &o.names}, {0}};
    args_list words = {0};

    args_parse(argc, argv, "[PATTERN]", doc, list, &words, 1);
    o.pattern = words.at[0];
    return o;
}

int cmd_ops(int argc, char **argv)
{
    const list_options o = parse_list(argc, argv, "Lists the ops whose name matches.");
    json_t *all = json_array();
    int shown = 0;

    for (uint32_t op = 1; op < RIDGE_OPS; op++) {
        if (!name_matches(o.pattern, ridge_op_at(op)->name))
            continue;
        shown++;
        if (o.json)
            json_array_append_new(all, op_json(ridge_op_at(op)));
        else if (o.names)
            puts(ridge_op_at(op)->name);
        else
            op_print(ridge_op_at(op));
    }
    if (!shown)
        fprintf(stderr, "ridge ops: nothing matches '%s'\n", o.pattern);
    if (o.json)
        return !print_json(all) || !shown;
    json_decref(all);
    return !shown;
}

int cmd_kernels(int argc, char **argv)
{
    const list_options o =
        parse_list(argc, argv, "Lists the kernel rows of this build whose name, or whose op's name, matches.");
    json_t *all = json_array();
    const ridge_kernel *row;
    char contract[96];
    int shown = 0;

    for (int i = 0; (row = ridge_kernel_at(i)) != NULL; i++) {
        const char *low = ridge_arch_table[row->arch_min].name, *high = ridge_arch_table[row->arch_max].name;

        if (!name_matches(o.pattern, row->name) && !name_matches(o.pattern, ridge_op_at(row->op)->name))
            continue;
        shown++;
        contract_text(row->contract, contract, sizeof contract);
        if (o.json)
            json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", row->name, "op",
                                                 ridge_op_at(row->op)->name, "arch_min", low, "arch_max", high,
                                                 "contract", contract));
        else if (o.names)
            puts(row->name);
        else
            printf("%-42s %-6s to %-6s  %s\n", row->name, low, high, contract);
    }
    if (!shown)
        fprintf(stderr, "ridge kernels: nothing matches '%s'\n", o.pattern);
    if (o.json)
        return !print_json(all) || !shown;
    json_decref(all);
    return !shown;
}

/* ---------------------------------------------------------------------------------------------------------- explain */

/* Prints problem, row, reason and predicted time, a line for each problem. */
static int explain_suite(const char *spec, const char *suite, bool json)
{
    ridge_device *device = device_open(spec);
    json_t *all = json_array();
    int lines = 0, bad = 0;

    for (int i = 0; device && suite_at(i).suite; i++) {
        const suite_line line = suite_at(i);
        const ridge_kernel *row;
        const char *because;
        ridge_problem problem;
        ridge_call call;
        test_case c;
        double us;

        if (strcmp(line.suite, suite) != 0 || !case_parse(line.text, &c))
            continue;
        lines++;
        if (!case_problem(&c, &call, &problem) || ridge_choose(device, call.kernel, &problem, SIZE_MAX, &row, &because))
            row = NULL;
        us = row && row->cost ? row->cost(device, row, &problem) : 0.0;
        if (json)
            json_array_append_new(all, row ? json_pack("{s:s, s:s, s:s, s:f}", "problem", line.text, "kernel",
                                                       row->name, "because", because, "predicted_us", us)
                                           : json_pack("{s:s, s:s}", "problem", line.text, "error", ridge_error()));
        else if (row)
            printf("%s\t%s\t%s\t%.3f\n", line.text, row->name, because, us);
        else
            printf("%s\t%s\n", line.text, ridge_error());
    }
    if (device && !lines)
        suite_missing("explain", suite);
    ridge_close(device);
    if (json && lines)
        bad = !print_json(all);
    else
        json_decref(all);
    return bad || !lines;
}

int cmd_explain(int argc, char **argv)
{
    const char *spec = NULL, *suite = NULL;
    bool json = false;
    const args_option list[] = {ARGS_JSON(&json),
                                {"device", 'd', "SPEC", "cpu, cuda:0, model:sm100", .text = &spec},
                                {"suite", 'S', "NAME",
                                 "every problem of a suite: only the row, the reason and the predicted time",
                                 .text = &suite},
                                {0}};
    args_list words = {0};
    char problem_text[1024];
    test_case c;
    ridge_device *device;
    ridge_problem problem;
    ridge_call call;
    char *text = NULL;
    size_t length = 0;
    bool good;

    args_parse(argc, argv, "OP name=value...", "Says which row a problem gets, and why not the others.", list, &words,
               ARGS_MOST);
    args_join(argv[0], &words, problem_text, sizeof problem_text);
    if (suite && !problem_text[0])
        return explain_suite(spec, suite, json);
    if (suite || !problem_text[0] || !case_parse(problem_text, &c)) {
        fprintf(stderr, "usage: ridge explain OP name=value... | --suite NAME (see `ridge ops`)\n");
        return 2;
    }
    device = device_open(spec);
    if (!device)
        return 1;
    good = case_problem(&c, &call, &problem) && ridge_explain(device, &call, NULL, 0, &length) == RIDGE_OK;
    text = good ? malloc(length + 1) : NULL;
    if (good && !text)
        ridge_fail(RIDGE_ERR_DEVICE, "out of memory");
    good = text && ridge_explain(device, &call, text, length + 1, &length) == RIDGE_OK;
    if (!good)
        fprintf(stderr, "ridge: %s\n", ridge_error());
    else if (json)
        good = print_json(json_pack("{s:s}", "text", text));
    else
        fputs(text, stdout);
    free(text);
    ridge_close(device);
    return !good;
}

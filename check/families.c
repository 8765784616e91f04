/* families.c: every family of checks; cases and suites are gathered from them. */
#include <stdlib.h>
#include <string.h>

#include "family.h"
#include "ops/families.h"

#define DECLARE(name) extern const check_family check_##name;
#define ADDRESS(name) &check_##name,
RIDGE_FAMILIES(DECLARE)

const check_family *const check_families[] = {RIDGE_FAMILIES(ADDRESS) NULL};

/* An op without one is a bug of this program and ends it: it would pass untested. */
const check_family *check_family_of(uint32_t op)
{
    for (const check_family *const *at = check_families; *at; at++)
        for (uint32_t i = 0; i < (*at)->family->ops; i++)
            if ((*at)->family->op[i]->id == op)
                return *at;
    fprintf(stderr, "ridge: op %u has no family in ops/families.h\n", op);
    exit(1);
}

bool check_has_bits(const ridge_kernel *kernel)
{
    const check_family *family = check_family_of(kernel->op);

    return family->has_bits && family->has_bits(kernel);
}

void cases_of(const ridge_op_row *op, case_level level, case_list *list)
{
    const int before = list->count;

    check_family_of(op->id)->cases(op, level, list);
    for (int i = before; level == CASES_LARGE && i < list->count; i++)
        if (list->at[i].repeats)
            list->at[i].repeats = 1000;
}

suite_line suite_at(int index)
{
    for (const check_family *const *at = check_families; *at; at++) {
        const check_family *family = *at;

        for (const suite_row *row = family->suites; row && row->suite; row++)
            if (index-- == 0)
                return (suite_line){row->suite, row->text, 0};
        if (index < family->suite_lines)
            return family->suite(index);
        index -= family->suite_lines;
    }
    return (suite_line){NULL, NULL, 0};
}

void suite_missing(const char *verb, const char *name)
{
    const char *seen[64];
    int count = 0;

    fprintf(stderr, "ridge %s: there is no suite '%s', but:", verb, name);
    for (int i = 0; suite_at(i).suite; i++) {
        const char *suite = suite_at(i).suite;
        bool old = count == 64;

        for (int j = 0; j < count && !old; j++)
            old = strcmp(seen[j], suite) == 0;
        if (!old) {
            seen[count++] = suite;
            fprintf(stderr, " %s", suite);
        }
    }
    if (strcmp(verb, "bench") == 0)
        fprintf(stderr, " ds4flash-token"); /* tools/bench/token.c: a whole model's step, and no list of problems */
    fprintf(stderr, "\n");
}

ridge_status check_run(const ridge_device *device, const ridge_call *call, void *workspace, size_t bytes, void *stream)
{
    const check_family *family = check_family_of(call->op);
    ridge_call list[CALLS_BEFORE];
    const int count = family->before ? family->before(call, list) : 0;
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < count && !status; i++)
        status = ridge_run(device, &list[i], workspace, bytes, stream);
    return status ? status : ridge_run(device, call, workspace, bytes, stream);
}

/* compare.c: `ridge compare`: compares ridge with the other providers of records, within one run only; with --diff two
 * records of ridge itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/args.h"
#include "tools/cli.h"
#include "record.h"

/* ridge beside one provider on one op: log_sum and worst are of the provider's time over ridge's. */
typedef struct summary {
    const char *op, *provider, *worst_problem;
    double log_sum, worst;
    int count;
} summary;

static void add(summary *list, int *count, const record *r, double ratio)
{
    summary *s = list;

    while (s < list + *count && (strcmp(s->op, r->op) || strcmp(s->provider, r->provider)))
        s++;
    if (s == list + *count) {
        *s = (summary){.op = r->op, .provider = r->provider, .worst = INFINITY};
        ++*count;
    }
    s->log_sum += log(ratio);
    s->count++;
    if (ratio < s->worst) {
        s->worst = ratio;
        s->worst_problem = r->problem;
    }
}

/* Every provider that shares a run and a problem with ridge, in the order of the file; returns their number, -1 with
 * the reason on stderr if memory is short. The caller frees *list. */
static int summaries(const record *at, int count, summary **list)
{
    int found = 0;

    *list = calloc((size_t)count + 1, sizeof **list);
    if (!*list) {
        fprintf(stderr, "ridge compare: out of memory\n");
        return -1;
    }
    for (int i = 0; i < count; i++) {
        const record *ridge =
            at[i].us > 0 && strcmp(at[i].provider, "ridge") ? record_of_ridge(at, count, &at[i], false) : NULL;

        if (ridge)
            add(*list, &found, &at[i], at[i].us / ridge->us);
    }
    return found;
}

static int show(const summary *list, int count, bool json)
{
    json_t *all = json ? json_array() : NULL;

    for (int i = 0; i < count; i++) {
        double mean = exp(list[i].log_sum / list[i].count);

        if (json)
            json_array_append_new(all, json_pack("{s:s, s:s, s:i, s:f, s:f, s:s}", "op", list[i].op, "provider",
                                                 list[i].provider, "problems", list[i].count, "geometric_mean", mean,
                                                 "worst", list[i].worst, "worst_problem", list[i].worst_problem));
        else
            line_print(stdout, "%-12s %-14s %3d problems: ridge is %.3f x as fast, worst %.3f at %s", list[i].op,
                       list[i].provider, list[i].count, mean, list[i].worst, list[i].worst_problem);
    }
    return (json && !print_json(all)) || count == 0;
}

static int compare_providers(const record *at, int count, bool json)
{
    summary *list = NULL;
    int found = summaries(at, count, &list), bad = found < 0 || show(list, found, json);

    if (found == 0)
        fprintf(stderr, "ridge compare: no provider shares a run and a problem with ridge\n");
    free(list);
    return bad;
}

static int compare_files(const record *old, int olds, const record *new, int news, bool json)
{
    json_t *all = json ? json_array() : NULL;
    double log_sum = 0;
    int found = 0;

    for (int i = 0; i < olds; i++) {
        const record *before = record_of_ridge(old, olds, &old[i], true),
                     *after = record_of_ridge(new, news, &old[i], true);

        if (before != &old[i] || !after)
            continue;
        if (json)
            json_array_append_new(all,
                                  json_pack("{s:s, s:s, s:f, s:f, s:f}", "op", old[i].op, "problem", old[i].problem,
                                            "us_before", before->us, "us", after->us, "ratio", before->us / after->us));
        else
            line_print(stdout, "%-12s %-56s %10.2f -> %10.2f us  %.3f x", old[i].op, old[i].problem, before->us,
                       after->us, before->us / after->us);
        log_sum += log(before->us / after->us);
        found++;
    }
    if (found && json)
        return !print_json(all);
    if (found)
        printf("geometric mean of %d problems: %.3f x\n", found, exp(log_sum / found));
    json_decref(all);
    if (!found)
        fprintf(stderr, "ridge compare: the two files share no problem of ridge\n");
    return found == 0;
}

int cmd_compare(int argc, char **argv)
{
    bool json = false, diff = false;
    const args_option list[] = {
        ARGS_JSON(&json),
        {"diff", 'd', NULL, "two files: ridge in the first against ridge in the second", .flag = &diff},
        {0}};
    args_list files = {0};
    record *at = NULL;
    int count = 0, first = 0, bad = 0;

    args_parse(argc, argv, "FILE...", "Per op and provider: geometric mean and worst ratio to ridge, inside each run.",
               list, &files, ARGS_MOST);
    if (!files.count || (diff && files.count != 2)) {
        fprintf(stderr, "usage: ridge compare FILE... | ridge compare --diff OLD NEW\n");
        return 2;
    }
    for (int i = 0; i < files.count && !bad; i++) {
        bad = !record_read(files.at[i], &at, &count);
        first = i == 0 ? count : first;
    }
    if (!bad)
        bad = diff ? compare_files(at, first, at + first, count - first, json) : compare_providers(at, count, json);
    free(at);
    return bad;
}

/* cmd_report.c: `ridge report`: records as one self-contained page. Plots: report_plots.c. Providers are compared
 * inside one run only, as `ridge compare` does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"
#include "out.h"
#include "report.h"

typedef struct options {
    args_files files;
    const char *out, *baseline, *title;
} options;

static const struct argp_option option_table[] = {
    {"output", 'o', "FILE", 0, "the page; a name that ends in .svg gets the first device's roofline alone", 0},
    {"baseline", 'b', "FILE", 0, "an older record: what became faster and slower since", 0},
    {"title", 't', "TEXT", 0, "heading of the page", 0},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;

    switch (key) {
    case 'o':
        o->out = arg;
        break;
    case 'b':
        o->baseline = arg;
        break;
    case 't':
        o->title = arg;
        break;
    case ARGP_KEY_ARG:
        args_file(state, arg, &o->files);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------ the data
 */

/* Where a copy of the operands says nothing about the time. */
static bool bound_by_arithmetic(const record *r)
{
    return r->tflops > 0 && r->gbps > 0 && r->tflops / r->gbps * 1e3 > 20;
}

/* The fastest row of every provider in ridge's run. */
static measured measured_of(const record *at, int count, const record *ridge)
{
    measured m = {.ridge = ridge, .by = {ridge}, .count = 1};

    for (int i = 0; i < count; i++) {
        const record *r = &at[i];
        int j = 0;

        if (r->us <= 0 || strcmp(r->run, ridge->run) || strcmp(r->op, ridge->op) || strcmp(r->problem, ridge->problem))
            continue;
        if (strcmp(r->provider, "copy") == 0 && bound_by_arithmetic(ridge))
            continue;
        while (j < m.count && strcmp(m.by[j]->provider, r->provider))
            j++;
        if (j == m.count && m.count < REPORT_PROVIDERS)
            m.by[m.count++] = r;
        else if (j > 0 && j < m.count && r->us < m.by[j]->us)
            m.by[j] = r;
    }
    return m;
}

/* Zeroed memory; without it the program ends, since a page must not lack a part. */
static void *list_new(int count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);

    if (!memory) {
        fprintf(stderr, "ridge report: out of memory\n");
        exit(1);
    }
    return memory;
}

/* Every problem of ridge on a device, from the run that has most providers (the later one of equals, by its date). */
static measured_list measured_on(const record *at, int count, const char *device)
{
    measured_list list = {list_new(count, sizeof *list.at), 0};

    for (int i = 0; i < count; i++) {
        measured m;
        int j = 0;

        if (strcmp(at[i].device, device) || record_of_ridge(at, count, &at[i], false) != &at[i])
            continue;
        m = measured_of(at, count, &at[i]);
        while (j < list.count &&
               (strcmp(list.at[j].ridge->op, at[i].op) || strcmp(list.at[j].ridge->problem, at[i].problem)))
            j++;
        if (j == list.count)
            list.at[list.count++] = m;
        else if (m.count > list.at[j].count ||
                 (m.count == list.at[j].count && strcmp(m.ridge->date, list.at[j].ridge->date) >= 0))
            list.at[j] = m;
    }
    return list;
}

/* Those of one op. */
static measured_list select_op(const measured_list *from, const char *op)
{
    measured_list list = {list_new(from->count, sizeof *list.at), 0};

    for (int i = 0; i < from->count; i++)
        if (strcmp(from->at[i].ridge->op, op) == 0)
            list.at[list.count++] = from->at[i];
    return list;
}

/* ------------------------------------------------------------------------------------------------------------ the page
 */

static void escape(FILE *to, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", to);
            break;
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            if ((unsigned char)*text >= ' ')
                fputc(*text, to);
        }
}

static void cell(FILE *to, const char *text)
{
    fputs("<td>", to);
    escape(to, text);
    fputs("</td>", to);
}

/* A number cell; empty if it was not measured. */
static void number(FILE *to, const char *format, double value)
{
    fputs("<td class=\"n\">", to);
    if (value > 0)
        fprintf(to, format, value); /* formats are constants of this file */
    fputs("</td>", to);
}

static void base64(FILE *to, const char *text)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = strlen(text);

    for (size_t i = 0; i < length; i += 3) {
        unsigned v = 0;

        for (size_t j = 0; j < 3; j++)
            v = v << 8 | (i + j < length ? (unsigned char)text[i + j] : 0);
        for (size_t j = 0; j < 4; j++)
            fputc(i + j > length ? '=' : digit[v >> (18 - 6 * j) & 63], to);
    }
}

/* Draws a script (and frees it) as an image of the page: each keeps its own names, which inline SVG would mix. */
static bool figure(FILE *to, char *script, const char *alt)
{
    char *svg = script ? plot_run(script) : NULL;

    if (!script)
        fprintf(stderr, "ridge report: out of memory\n");
    free(script);
    if (!svg)
        return false;
    fputs("<img alt=\"", to);
    escape(to, alt);
    fputs("\" src=\"data:image/svg+xml;base64,", to);
    base64(to, svg);
    fputs("\"/>\n", to);
    free(svg);
    return true;
}

static void environment(FILE *to, const record *at, int count)
{
    fputs("<h2>Environment</h2>\n<div class=\"wide\"><table><tr><th>run</th><th>date</th><th>commit</th><th>device</th>"
          "<th>software</th><th>suite</th><th>lines</th></tr>\n",
          to);
    for (int i = 0; i < count; i++) {
        int lines = 0, first = 0;

        while (strcmp(at[first].run, at[i].run) || strcmp(at[first].suite, at[i].suite))
            first++;
        if (first < i)
            continue;
        for (int j = i; j < count; j++)
            lines += strcmp(at[j].run, at[i].run) == 0 && strcmp(at[j].suite, at[i].suite) == 0;
        fputs("<tr>", to);
        cell(to, at[i].run);
        cell(to, at[i].date);
        cell(to, at[i].commit);
        cell(to, at[i].device);
        cell(to, at[i].driver);
        cell(to, at[i].suite);
        number(to, "%.0f", lines);
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

/* Geometric mean and worst of each provider's time / ridge's, over the problems of a device. */
static void summary(FILE *to, const measured_list *list)
{
    bool any = false;

    for (int i = 0; i < list->count; i++)
        for (int j = 1; j < list->at[i].count; j++) {
            const record *first = list->at[i].by[j];
            double logs = 0, worst = INFINITY;
            const char *where = "";
            int problems = 0;
            bool seen = false;

            for (int k = 0; k < list->count; k++)
                for (int l = 1; l < list->at[k].count; l++) {
                    const record *r = list->at[k].by[l];
                    double ratio = r->us / list->at[k].ridge->us;

                    if (strcmp(r->op, first->op) || strcmp(r->provider, first->provider))
                        continue;
                    seen |= k < i;
                    logs += log(ratio);
                    problems++;
                    if (ratio < worst) {
                        worst = ratio;
                        where = r->problem;
                    }
                }
            if (seen)
                continue;
            if (!any)
                fputs("<div class=\"wide\"><table><tr><th>op</th><th>beside</th><th>problems</th><th>ridge is faster "
                      "by</th>"
                      "<th>worst</th><th>at</th></tr>\n",
                      to);
            any = true;
            fputs("<tr>", to);
            cell(to, first->op);
            cell(to, first->provider);
            number(to, "%.0f", problems);
            number(to, "%.2f x", exp(logs / problems));
            number(to, "%.2f x", worst);
            cell(to, where);
            fputs("</tr>\n", to);
        }
    fputs(any ? "</table></div>\n" : "", to);
}

static void all_figures(FILE *to, const measured_list *list)
{
    fputs("<details><summary>All figures</summary><div "
          "class=\"wide\"><table><tr><th>problem</th><th>kernel</th><th>us</th>"
          "<th>20 %</th><th>80 %</th><th>TFLOP/s</th><th>GB/s</th><th>floor / us</th><th>rivals, us</th></tr>\n",
          to);
    for (int i = 0; i < list->count; i++) {
        const record *r = list->at[i].ridge;

        fputs("<tr>", to);
        cell(to, r->problem);
        cell(to, r->kernel);
        number(to, "%.2f", r->us);
        number(to, "%.2f", r->us_p20);
        number(to, "%.2f", r->us_p80);
        number(to, "%.1f", r->tflops);
        number(to, "%.0f", r->gbps);
        number(to, "%.2f", r->floor_us / r->us);
        fputs("<td>", to);
        for (int j = 1; j < list->at[i].count; j++) {
            fputs(j > 1 ? ", " : "", to);
            escape(to, list->at[i].by[j]->provider);
            fprintf(to, " %.2f", list->at[i].by[j]->us);
        }
        fputs("</td></tr>\n", to);
    }
    fputs("</table></div></details>\n", to);
}

/* Problems that differ in `axis` alone, three and more of them up to 64: a decoding curve each. */
static bool decode(FILE *to, const measured_list *list, const char *axis)
{
    bool good = true;
    char key[256], other[256], word[48], title[400];
    bool *done = list_new(list->count, sizeof *done);

    for (int i = 0; i < list->count && good; i++) {
        measured_list group = {NULL, 0};
        double x = problem_value(list->at[i].ridge->problem, axis);

        if (done[i] || x < 1 || x > 64)
            continue;
        group.at = list_new(list->count, sizeof *group.at);
        snprintf(word, sizeof word, "%s=%g", axis, x);
        problem_short(list->at[i].ridge->problem, word, key, sizeof key);
        for (int j = i; j < list->count; j++) {
            double y = problem_value(list->at[j].ridge->problem, axis);

            snprintf(word, sizeof word, "%s=%g", axis, y);
            problem_short(list->at[j].ridge->problem, word, other, sizeof other);
            if (y < 1 || y > 64 || strcmp(key, other))
                continue;
            done[j] = true;
            group.at[group.count++] = list->at[j];
        }
        snprintf(title, sizeof title, "%s %s", list->at[i].ridge->op, key);
        if (group.count >= 3)
            good = figure(to, plot_decode(&group, axis, title), title);
        free(group.at);
    }
    free(done);
    return good;
}

static bool op_section(FILE *to, const measured_list *all, const char *op)
{
    enum { A_CHART = 12 };
    measured_list list = select_op(all, op);
    char common[256], title[400];
    bool good = true;

    fputs("<div><h3>", to);
    escape(to, op);
    fputs("</h3>\n", to);
    for (int first = 0; first < list.count && good; first += A_CHART) {
        int count = list.count - first < A_CHART ? list.count - first : A_CHART;

        problem_common(&list, first, count, common, sizeof common);
        snprintf(title, sizeof title, "%s %s", op, count > 1 ? common : "");
        good = figure(to, plot_bars(&list, first, count, title), title);
    }
    good = good && decode(to, &list, "m") && decode(to, &list, "tokens");
    all_figures(to, &list);
    fputs("</div>\n", to);
    free(list.at);
    return good;
}

/* Loss curves of the device's training runs. */
static bool losses(FILE *to, const record *at, int count, const char *device)
{
    bool good = true;

    for (int i = 0; i < count && good; i++) {
        int first = 0;

        if (strcmp(at[i].op, "train_loss") || strcmp(at[i].device, device))
            continue;
        while (strcmp(at[first].op, "train_loss") || strcmp(at[first].run, at[i].run))
            first++;
        if (first == i)
            good = figure(to, plot_losses(at, count, at[i].run), "Loss against step");
    }
    return good;
}

static bool device_section(FILE *to, const record *at, int count, const char *device)
{
    measured_list list = measured_on(at, count, device);
    char alt[200], *roofline = plot_roofline(at, count, &list, device);
    bool good = true;

    if (!list.count) {
        free(list.at);
        return true;
    }
    fputs("<h2>", to);
    escape(to, device);
    fputs("</h2>\n", to);
    snprintf(alt, sizeof alt, "Roofline of %s", device);
    if (roofline)
        good = figure(to, roofline, alt);
    summary(to, &list);
    for (int i = 0; i < list.count && good; i++) {
        int first = 0;

        while (strcmp(list.at[first].ridge->op, list.at[i].ridge->op))
            first++;
        if (first == i)
            good = op_section(to, &list, list.at[i].ridge->op);
    }
    good = good && losses(to, at, count, device);
    free(list.at);
    return good;
}

static void diff(FILE *to, const char *name, const record *old, int olds, const record *new, int news)
{
    double logs = 0;
    int found = 0;

    fputs("<h2>Since an older record</h2>\n<p>", to);
    escape(to, name);
    fputs("</p>\n<div class=\"wide\"><table><tr><th>op</th><th>problem</th><th>us before</th><th>us now</th><th>before "
          "/ now</th></tr>\n",
          to);
    for (int i = 0; i < olds; i++) {
        const record *before = record_of_ridge(old, olds, &old[i], true),
                     *after = record_of_ridge(new, news, &old[i], true);
        double ratio;

        if (before != &old[i] || !after || strcmp(before->device, after->device))
            continue;
        ratio = before->us / after->us;
        logs += log(ratio);
        found++;
        fprintf(to, "<tr class=\"%s\">", ratio > 1.015 ? "up" : ratio < 1 / 1.015 ? "down" : "");
        cell(to, before->op);
        cell(to, before->problem);
        number(to, "%.2f", before->us);
        number(to, "%.2f", after->us);
        number(to, "%.3f x", ratio);
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
    if (found)
        fprintf(to, "<p>Geometric mean of %d problems: %.3f x.</p>\n", found, exp(logs / found));
    else
        fputs("<p>The two share no problem on one device.</p>\n", to);
}

static const char style[] =
    "body{font:16px/1.45 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;color:#1a1a1a;background:#fff}"
    "h1{font-size:1.6rem;margin:.2em 0}h2{margin:1.6em 0 .4em;border-bottom:2px solid #0b5fa5}h3{margin:1.2em 0 .3em}"
    "img{display:block;width:100%;max-width:46rem;height:auto;margin:.6em 0}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.85rem;min-width:100%}"
    "th,td{padding:.2em .6em;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap}"
    ".n{text-align:right;font-variant-numeric:tabular-nums}.up .n:last-child{color:#067a3b}.down "
    ".n:last-child{color:#b00020}"
    "summary{cursor:pointer;color:#0b5fa5}"
    "@media "
    "print{body{max-width:none;padding:0;font-size:10pt}img,tr{break-inside:avoid}img{width:auto;max-width:100%;max-"
    "height:23cm}h2,h3{break-after:avoid}.wide{overflow:visible}"
    "td,th{white-space:normal}details::details-content{content-visibility:visible}}";

static bool page(FILE *to, const options *o, const record *at, int count, const record *old, int olds)
{
    const char *title = o->title ? o->title : "ridge: what was measured";
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    bool good = true;

    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
          to);
    escape(to, title);
    fprintf(to, "</title>\n<style>%s</style></head>\n<body>\n<h1>", style);
    escape(to, title);
    fprintf(to, "</h1>\n<p>%d lines of %d record%s, page made %s. Bars are times beside ridge's in the same run.</p>\n",
            count, o->files.count, o->files.count == 1 ? "" : "s", date);
    for (int i = 0; i < count && good; i++) {
        int first = 0;

        while (strcmp(at[first].device, at[i].device))
            first++;
        if (first == i)
            good = device_section(to, at, count, at[i].device);
    }
    if (o->baseline && good)
        diff(to, o->baseline, old, olds, at, count);
    environment(to, at, count);
    fputs("</body></html>\n", to);
    return good;
}

/* The roofline of the first device that has ridge's figures. */
static bool picture(FILE *to, const record *at, int count)
{
    for (int i = 0; i < count; i++) {
        measured_list list;
        char *script, *svg;

        if (strcmp(at[i].provider, "ridge"))
            continue;
        list = measured_on(at, count, at[i].device);
        script = plot_roofline(at, count, &list, at[i].device);
        svg = script ? plot_run(script) : NULL;
        if (svg)
            fputs(svg, to);
        else if (!script)
            fprintf(stderr, "ridge report: no line has both TFLOP/s and GB/s\n");
        free(script);
        free(svg);
        free(list.at);
        return svg != NULL;
    }
    fprintf(stderr, "ridge report: no line of ridge\n");
    return false;
}

static int write_out(const options *o, const record *at, int count, const record *old, int olds)
{
    const size_t length = strlen(o->out);
    const bool svg = length > 4 && strcmp(o->out + length - 4, ".svg") == 0;
    out_file out;

    return !out_open(&out, "ridge report", o->out) ||
           !out_close(&out, svg ? picture(out.to, at, count) : page(out.to, o, at, count, old, olds));
}

/* GB/s where a record has none, from the operands that its problem names: what the roofline needs. */
static void fill_gbps(record *at, int count)
{
    for (int i = 0; i < count; i++) {
        const ridge_op_row *op = ridge_op_find(at[i].op, strlen(at[i].op));
        int align = 16, packed = 1;
        ridge_call call;

        if (op && at[i].gbps < 0 && at[i].us > 0 &&
            ridge_problem_parse(op, at[i].problem, &call, &align, &packed) == RIDGE_OK)
            at[i].gbps = ridge_problem_bytes(&call) / at[i].us * 1e-3;
    }
}

int cmd_report(int argc, char **argv)
{
    static const struct argp parser = {
        option_table, parse_option,
        "FILE...",    "Records as one self-contained page: rooflines, bars beside rivals, decoding, what changed.",
        NULL,         NULL,
        NULL};
    options o = {.out = NULL};
    record *at = NULL, *old = NULL;
    int count = 0, olds = 0, bad = 0;

    args_parse(&parser, argc, argv, &o);
    if (!o.files.count || !o.out) {
        fprintf(stderr, "usage: ridge report FILE... -o PAGE.html [--baseline OLD]\n");
        return 2;
    }
    for (int i = 0; i < o.files.count && !bad; i++)
        bad = !record_read(o.files.at[i], &at, &count);
    bad = bad || (o.baseline && !record_read(o.baseline, &old, &olds));
    if (!bad && !count) {
        fprintf(stderr, "ridge report: the records hold no line\n");
        bad = 1;
    }
    fill_gbps(at, count);
    bad = bad || !plot_ready() || write_out(&o, at, count, old, olds);
    free(at);
    free(old);
    return bad;
}

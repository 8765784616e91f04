/* report.h: the parts of `ridge report`. cmd_report.c writes the page, report_plots.c the gnuplot scripts. */
#ifndef RIDGE_REPORT_H
#define RIDGE_REPORT_H

#include "tools/bench/record.h"

/* One problem of one op on one device: the fastest row of each provider in the run that has most of them, ridge's
 * first. */
enum { REPORT_PROVIDERS = 12 };
typedef struct measured {
    const record *ridge;
    const record *by[REPORT_PROVIDERS]; /* by[0] is ridge */
    int count;
} measured;

typedef struct measured_list {
    measured *at;
    int count;
} measured_list;

/* Runs gnuplot on a script; the SVG as text, or NULL with the reason on stderr. The caller frees it. */
char *plot_run(const char *script);
/* False, with a message that says what to install, if there is no gnuplot. */
bool plot_ready(void);

/* Scripts. Text in them comes from records and is escaped. NULL if there is nothing to draw; the caller frees it. */
char *plot_roofline(const record *at, int count, const measured_list *list, const char *device);
char *plot_bars(const measured_list *list, int first, int count, const char *title);
/* us against the tokens of a decoding problem: list holds problems that differ in `axis` alone. */
char *plot_decode(const measured_list *list, const char *axis, const char *title);

/* The losses of one run of bench/train_llama.py (records of op train_loss), a line for each provider. */
char *plot_losses(const record *at, int count, const char *run);

/* The value of "name=" in a problem text, or -1. */
double problem_value(const char *problem, const char *name);
/* The problem without the words that `common` has (space-separated, as problem_common writes them). */
void problem_short(const char *problem, const char *common, char *text, size_t size);
/* The words that all problems of a list share. */
void problem_common(const measured_list *list, int first, int count, char *text, size_t size);

#endif

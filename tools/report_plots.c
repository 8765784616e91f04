/* report_plots.c: what `ridge report` draws, as gnuplot scripts. Owns no statistics: times come from records. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

static const char *const palette[] = {"#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                      "#56b4e9", "#8c564b", "#7f7f00", "#5d3a9b"};
enum { COLOURS = (int)(sizeof palette / sizeof palette[0]) };
static const char ridge_colour[] = "#0b5fa5", copy_colour[] = "#a9b2ba";

/* ------------------------------------------------------------------------------------------------------------ gnuplot
 */

bool plot_ready(void)
{
    const char *path = getenv("PATH");
    char file[4096];

    while (path && *path) {
        size_t length = strcspn(path, ":");

        if (length && length + sizeof "/gnuplot" < sizeof file) {
            snprintf(file, sizeof file, "%.*s/gnuplot", (int)length, path);
            if (access(file, X_OK) == 0)
                return true;
        }
        path += length + (path[length] == ':');
    }
    fprintf(stderr, "ridge report: there is no gnuplot on PATH, which draws the plots; "
                    "`make deps` installs it (Debian: gnuplot-nox)\n");
    return false;
}

static char *read_all(FILE *from)
{
    char *text = NULL, part[4096];
    size_t size = 0, got;
    FILE *to = open_memstream(&text, &size);

    while (to && (got = fread(part, 1, sizeof part, from)) > 0)
        fwrite(part, 1, got, to);
    if (to)
        fclose(to);
    return text;
}

char *plot_run(const char *script)
{
    char file[] = "/tmp/ridge-report-XXXXXX", command[64], *svg = NULL;
    int fd = mkstemp(file), status = -1;
    FILE *pipe;
    ssize_t wrote;

    if (fd < 0) {
        fprintf(stderr, "ridge report: cannot make a file in /tmp: %s\n", strerror(errno));
        return NULL;
    }
    wrote = write(fd, script, strlen(script));
    close(fd);
    snprintf(command, sizeof command, "gnuplot %s", file);
    fflush(NULL);
    pipe = wrote == (ssize_t)strlen(script) ? popen(command, "r") : NULL;
    if (pipe) {
        svg = read_all(pipe);
        status = pclose(pipe);
    }
    unlink(file);
    if (status || !svg || !strstr(svg, "</svg>")) {
        fprintf(stderr, "ridge report: gnuplot failed (status %d)\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        free(svg);
        return NULL;
    }
    return svg;
}

/* A string constant of gnuplot: single quotes, doubled inside; what would end a line becomes a space. */
static void quote(FILE *to, const char *text)
{
    fputc('\'', to);
    for (; *text; text++)
        fprintf(to, "%s", *text == '\'' ? "''" : (char[]){(char)((unsigned char)*text < ' ' ? ' ' : *text), 0});
    fputc('\'', to);
}

/* 560 wide, so that a phone shows the text at two thirds of its size. */
static void start(FILE *to, int height, const char *title)
{
    fprintf(to,
            "set terminal svg size 560,%d dynamic noenhanced font 'sans-serif,13' background '#ffffff'\n"
            "set encoding utf8\nset border 3 lc rgb '#555555'\nset tics nomirror\nset grid lc rgb '#dddddd'\n"
            "set title ",
            height);
    quote(to, title);
    fputs("\n", to);
}

/* -------------------------------------------------------------------------------------------------------- problem text
 */

double problem_value(const char *problem, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = problem; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return strtod(at + length + 1, NULL);
    return -1;
}

/* True if `word` (length bytes) is one of text's words. */
static bool has_word(const char *text, const char *word, size_t length)
{
    for (const char *at = text; *at; at += strspn(at, " ")) {
        size_t here = strcspn(at, " ");

        if (here == length && memcmp(at, word, length) == 0)
            return true;
        at += here;
    }
    return false;
}

/* Words of problem that `other` has (with = true) or lacks, into text. */
static void words(const char *problem, const char *other, bool with, char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    for (const char *at = problem; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");

        if (has_word(other, at, length) == with && used + length + 2 < size)
            used += (size_t)snprintf(text + used, size - used, "%s%.*s", used ? " " : "", (int)length, at);
        at += length;
    }
}

void problem_short(const char *problem, const char *common, char *text, size_t size)
{
    words(problem, common, false, text, size);
    if (!*text)
        snprintf(text, size, "%s", problem);
}

void problem_common(const measured_list *list, int first, int count, char *text, size_t size)
{
    char part[256];

    snprintf(text, size, "%s", count ? list->at[first].ridge->problem : "");
    for (int i = first + 1; i < first + count; i++) {
        snprintf(part, sizeof part, "%s", text);
        words(part, list->at[i].ridge->problem, true, text, size);
    }
}

/* ------------------------------------------------------------------------------------------------------------ roofline
 */

/* The best measured ceilings of a device: GB/s of the copy and the read, TFLOP/s of each matrix rate. */
typedef struct roof {
    double gbps, bf16, fp8;
} roof;

static roof roof_of(const record *at, int count, const char *device)
{
    roof r = {0, 0, 0};

    for (int i = 0; i < count; i++) {
        if (strcmp(at[i].op, "ceiling") || strcmp(at[i].device, device))
            continue;
        r.gbps = fmax(r.gbps, at[i].gbps);
        if (strstr(at[i].problem, "bf16"))
            r.bf16 = fmax(r.bf16, at[i].tflops);
        if (strstr(at[i].problem, "e4m3"))
            r.fp8 = fmax(r.fp8, at[i].tflops);
    }
    return r;
}

/* A point of the roofline: its FLOP a byte, or 0 where the record lacks one of the rates. */
static double intensity_of(const record *p)
{
    return p->tflops > 0 && p->gbps > 0 ? p->tflops / p->gbps * 1e3 : 0;
}

/* The ops that have a point on the roofline. */
static int ops_of(const measured_list *list, const char *op[64])
{
    int ops = 0;

    for (int i = 0; i < list->count; i++) {
        int j = 0;

        if (!(intensity_of(list->at[i].ridge) > 0))
            continue;
        while (j < ops && strcmp(op[j], list->at[i].ridge->op))
            j++;
        if (j == ops && ops < 64)
            op[ops++] = list->at[i].ridge->op;
    }
    return ops;
}

/* The lines above the points; returns what stands before the next part of gnuplot's list. */
static const char *put_roofs(FILE *to, const roof *r)
{
    const double peak[2] = {r->bf16, r->fp8 > 0 ? r->fp8 : r->bf16 > 0 ? 0 : 1e30};
    const char *name[2] = {"bf16", "fp8"}, *comma = "";

    for (int k = 0; k < 2 && r->gbps > 0; k++) {
        if (!(peak[k] > 0))
            continue;
        if (peak[k] < 1e29)
            fprintf(to, "%smin(%g*x, %g) lc rgb '#333333' dt %d lw 1.5 title '%.0f GB/s; %s %.0f TFLOP/s'", comma,
                    r->gbps * 1e-3, peak[k], k + 1, r->gbps, name[k], peak[k]);
        else
            fprintf(to, "%s%g*x lc rgb '#333333' lw 1.5 title '%.0f GB/s'", comma, r->gbps * 1e-3, r->gbps);
        comma = ", ";
    }
    return comma;
}

char *plot_roofline(const record *at, int count, const measured_list *list, const char *device)
{
    const char *op[64], *comma;
    const roof r = roof_of(at, count, device);
    double low = INFINITY, high = 0, slowest = INFINITY, fastest = fmax(r.bf16, r.fp8);
    char *script = NULL, title[160];
    size_t size;
    enum { KEY_LINE = 17 }; /* pixels; below the label of the axis, which an automatic place would touch */
    int ops = ops_of(list, op), key_lines = (ops + 1) / 2 + 1;
    FILE *to;

    for (int i = 0; i < list->count; i++) {
        double x = intensity_of(list->at[i].ridge);

        if (x > 0) {
            low = fmin(low, x);
            high = fmax(high, x);
            slowest = fmin(slowest, list->at[i].ridge->tflops);
            fastest = fmax(fastest, list->at[i].ridge->tflops);
        }
    }
    to = high > 0 ? open_memstream(&script, &size) : NULL;
    if (!to)
        return NULL;
    snprintf(title, sizeof title, "Roofline, %.100s", device);
    start(to, 420 + KEY_LINE * key_lines, title);
    fprintf(to,
            "set logscale xy\nset xlabel 'FLOP a byte of operands'\nset ylabel 'TFLOP/s'\nset format '%%g'\n"
            "set bmargin at screen %g\nset key at screen 0.5, 0.01 bottom center horizontal Left reverse samplen 1 "
            "font ',11' maxcols 2\nset xrange [%g:%g]\nset yrange [%g:%g]\n",
            (66 + KEY_LINE * key_lines) / (420.0 + KEY_LINE * key_lines), low / 2, fmax(high * 2, low * 16),
            slowest / 2, fastest * 2);
    for (int k = 0; k < ops; k++) {
        fprintf(to, "$d%d << END\n", k);
        for (int i = 0; i < list->count; i++) {
            const record *p = list->at[i].ridge;

            if (strcmp(p->op, op[k]) == 0 && intensity_of(p) > 0)
                fprintf(to, "%g %g\n", intensity_of(p), p->tflops);
        }
        fputs("END\n", to);
    }
    fputs("min(a,b) = a < b ? a : b\nplot ", to);
    comma = put_roofs(to, &r);
    for (int k = 0; k < ops; k++) {
        fprintf(to, "%s$d%d with points pt %d ps 0.9 lc rgb '%s' title ", comma, k, 5 + 2 * (k % 5),
                k ? palette[(k - 1) % COLOURS] : ridge_colour);
        quote(to, op[k]);
        comma = ", ";
    }
    fputs("\n", to);
    fclose(to);
    return script;
}

/* ---------------------------------------------------------------------------------------------------------------- bars
 */

static int providers_of(const measured_list *list, int first, int count, const char *name[REPORT_PROVIDERS])
{
    int names = 0;

    for (int i = first; i < first + count; i++)
        for (int j = 0; j < list->at[i].count; j++) {
            const char *provider = list->at[i].by[j]->provider;
            int k = 0;

            while (k < names && strcmp(name[k], provider))
                k++;
            if (k == names && names < REPORT_PROVIDERS)
                name[names++] = provider;
        }
    return names;
}

static const char *colour_of(const char *provider, int index)
{
    if (strcmp(provider, "ridge") == 0)
        return ridge_colour;
    return strcmp(provider, "copy") == 0 ? copy_colour : palette[(index + COLOURS - 1) % COLOURS];
}

static double low_of(const record *r)
{
    return r->us_p20 > 0 ? r->us_p20 : r->us;
}

static double high_of(const record *r)
{
    return r->us_p80 > 0 ? r->us_p80 : r->us;
}

/* Rows of the chart that a problem takes: its text, and a bar for each provider. */
static int rows_of(const measured *m)
{
    return m->count + 1;
}

/* One provider's bars as data: length, row, 20 and 80 %, label. */
static void bar_data(FILE *to, const measured_list *list, int first, int count, const char *provider)
{
    for (int i = first, y = 0; i < first + count; y += rows_of(&list->at[i++]))
        for (int j = 0; j < list->at[i].count; j++) {
            const record *r = list->at[i].by[j];
            double unit = list->at[i].ridge->us;

            if (strcmp(r->provider, provider))
                continue;
            fprintf(to, "%g %d %g %g ", r->us / unit, y + 1 + j, low_of(r) / unit, high_of(r) / unit);
            if (r->us >= 1e4)
                fprintf(to, "\"%.1f ms", r->us * 1e-3);
            else
                fprintf(to, "\"%.*f us", r->us < 10 ? 2 : r->us < 100 ? 1 : 0, r->us);
            if (r->peak_bytes > 0)
                fprintf(to, ", %.0f MiB", r->peak_bytes / (1 << 20));
            fputs("\"\n", to);
        }
}

/* Horizontal bars, one group a problem under its text, lengths as multiples of ridge's time. */
char *plot_bars(const measured_list *list, int first, int count, const char *title)
{
    const char *name[REPORT_PROVIDERS];
    char *script = NULL, common[256], text[256];
    int names = providers_of(list, first, count, name), rows = 0;
    double widest = 1;
    bool peaks = false; /* labels have memory in them */
    size_t size;
    FILE *to = open_memstream(&script, &size);

    if (!to)
        return NULL;
    problem_common(list, first, count, common, sizeof common);
    for (int i = first; i < first + count; i++) {
        rows += rows_of(&list->at[i]);
        for (int j = 0; j < list->at[i].count; j++) {
            widest = fmax(widest, high_of(list->at[i].by[j]) / list->at[i].ridge->us);
            peaks |= list->at[i].by[j]->peak_bytes > 0;
        }
    }
    start(to, 160 + 19 * rows, title);
    fprintf(to,
            "set yrange [%d:-1]\nset xrange [0:%g]\nset xlabel 'time, ridge = 1; whiskers: 20 and 80 %%'\n"
            "set key outside bottom center horizontal samplen 1\nunset ytics\nset border 1\nset lmargin 2\n",
            rows, widest * (peaks ? 1.34 : 1.16));
    for (int i = first, y = 0; i < first + count; y += rows_of(&list->at[i++])) {
        problem_short(list->at[i].ridge->problem, common, text, sizeof text);
        fputs("set label ", to);
        quote(to, text);
        fprintf(to, " at 0,%g left\n", y + 0.1);
    }
    for (int k = 0; k < names; k++) {
        fprintf(to, "$p%d << END\n", k);
        bar_data(to, list, first, count, name[k]);
        fputs("END\n", to);
    }
    fputs("plot ", to);
    for (int k = 0; k < names; k++) {
        fprintf(to, "%s$p%d using ($1/2):2:($1/2):(0.42) with boxxyerror fs solid 0.9 noborder lc rgb '%s' title ",
                k ? ", " : "", k, colour_of(name[k], k));
        quote(to, name[k]);
        fprintf(to,
                ", $p%d using 1:2:3:4 with xerrorbars pt 0 lw 1.2 lc rgb '#222222' notitle, $p%d using "
                "4:2:5 with labels left offset 0.6,0 font ',11' tc rgb '#444444' notitle",
                k, k);
    }
    fputs("\n", to);
    fclose(to);
    return script;
}

/* -------------------------------------------------------------------------------------------------------------- decode
 */

char *plot_decode(const measured_list *list, const char *axis, const char *title)
{
    const char *name[REPORT_PROVIDERS];
    int names = providers_of(list, 0, list->count, name);
    bool floor = false;
    char *script = NULL;
    size_t size;
    FILE *to = open_memstream(&script, &size);

    if (!to)
        return NULL;
    start(to, 360, title);
    fputs("set logscale x 2\nset yrange [0:*]\nset ylabel 'us'\nset key outside bottom center horizontal Left reverse "
          "samplen 2\nset "
          "xlabel ",
          to);
    quote(to, axis);
    fputs("\n", to);
    for (int k = 0; k <= names; k++) { /* the last block is the floor */
        fprintf(to, "$p%d << END\n", k);
        for (int i = 0; i < list->count; i++) {
            const record *ridge = list->at[i].ridge;
            double x = problem_value(ridge->problem, axis);

            for (int j = 0; k < names && j < list->at[i].count; j++) {
                const record *r = list->at[i].by[j];

                if (strcmp(r->provider, name[k]) == 0)
                    fprintf(to, "%g %g %g %g\n", x, r->us, low_of(r), high_of(r));
            }
            if (k == names && ridge->floor_us > 0) {
                fprintf(to, "%g %g\n", x, ridge->floor_us);
                floor = true;
            }
        }
        fputs("END\n", to);
    }
    fputs("plot ", to);
    for (int k = 0; k < names; k++) {
        const char *colour = colour_of(name[k], k);

        fprintf(to, "%s$p%d with linespoints pt 7 ps 0.6 lw 2 lc rgb '%s' title ", k ? ", " : "", k, colour);
        quote(to, name[k]);
        fprintf(to, ", $p%d with yerrorbars pt 0 lc rgb '%s' notitle", k, colour);
    }
    if (floor)
        fprintf(to, ", $p%d with lines dt 2 lc rgb '#333333' title 'measured floor'", names);
    fputs("\n", to);
    fclose(to);
    return script;
}

/* -------------------------------------------------------------------------------------------------------------- losses
 */

char *plot_losses(const record *at, int count, const char *run)
{
    const char *name[REPORT_PROVIDERS];
    int names = 0;
    char *script = NULL, title[160] = "Loss against step";
    size_t size;
    FILE *to = open_memstream(&script, &size);

    if (!to)
        return NULL;
    for (int i = 0; i < count; i++) /* which run it is: the problem without its step */
        if (!strcmp(at[i].op, "train_loss") && !strcmp(at[i].run, run) && strchr(at[i].problem, ' ')) {
            snprintf(title, sizeof title, "Loss against step,%.120s", strchr(at[i].problem, ' '));
            break;
        }
    start(to, 380, title);
    fputs("set xlabel 'step'\nset key inside top right Left reverse samplen 2\n", to);
    for (int i = 0; i < count; i++) {
        int k = 0;

        if (strcmp(at[i].op, "train_loss") || strcmp(at[i].run, run))
            continue;
        while (k < names && strcmp(name[k], at[i].provider))
            k++;
        if (k == names && names < REPORT_PROVIDERS)
            name[names++] = at[i].provider;
    }
    for (int k = 0; k < names; k++) {
        fprintf(to, "$p%d << END\n", k);
        for (int i = 0; i < count; i++)
            if (!strcmp(at[i].op, "train_loss") && !strcmp(at[i].run, run) && !strcmp(at[i].provider, name[k]))
                fprintf(to, "%g %g\n", problem_value(at[i].problem, "step"), at[i].err);
        fputs("END\n", to);
    }
    fputs("plot ", to);
    for (int k = 0; k < names; k++) {
        fprintf(to, "%s$p%d with lines lw 2 dt %d lc rgb '%s' title ", k ? ", " : "", k, k % 4 + 1,
                colour_of(name[k], k + 1));
        quote(to, name[k]);
    }
    fputs("\n", to);
    fclose(to);
    return script;
}

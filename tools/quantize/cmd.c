/* cmd.c: `ridge quantize`: converts a checkpoint to FP8, blocks of GGUF, bf16 or f16. Here are the options, signals,
 * and the summary; quantize.h lists the other parts. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

#define FORMATS \
    "fp8-block128, fp8-row, fp8-block32, bf16, f16 (safetensors); q8_0, q4_0, q4_k_m, q5_k_m, q6_k, mxfp4 (GGUF)"

/* False with the reason on stderr. */
static bool find_format(const char *name, quantize_to *to)
{
    for (*to = 0; *to < TO_FORMATS; ++*to)
        if (strcmp(name, quantize_to_name(*to)) == 0)
            return true;
    line_print(stderr, "ridge quantize: there is no format '%s': " FORMATS, name);
    return false;
}

static void on_signal(int number)
{
    (void)number;
    quantize_stop = 1;
}

/* Every signal that ends a program and is no fault of its own. SIGXFSZ becomes an error of write. */
static void catch_signals(void)
{
    static const int list[] = {SIGINT,  SIGTERM, SIGQUIT,   SIGUSR1, SIGUSR2, SIGALRM,
                               SIGXCPU, SIGPROF, SIGVTALRM, SIGPOLL, SIGPWR,  SIGSTKFLT};
    static const int unless_ignored[] = {SIGHUP, SIGPIPE}; /* nohup stays nohup */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        sigaction(list[i], &action, NULL);
    for (size_t i = 0; i < sizeof unless_ignored / sizeof unless_ignored[0]; i++)
        if (signal(unless_ignored[i], SIG_IGN) != SIG_IGN)
            sigaction(unless_ignored[i], &action, NULL);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        sigaction(number, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
}

/* ---------------------------------------------------------------------------------------------------------- summary */

/* The errors of all quantised tensors. */
typedef struct overview {
    double mean; /* of the tensors' SNR in dB; tensors without any error are left out */
    const plan_tensor *worst;
    int64_t measured, not_finite, blocks, inexact;
} overview;

static overview look_over(const plan *p)
{
    overview v = {0};

    for (int64_t i = 0; i < p->count; i++) {
        const plan_tensor *t = &p->at[i];
        double snr = error_snr(&t->error);

        v.not_finite += t->error.not_finite;
        v.blocks += t->error.blocks;
        v.inexact += t->error.inexact;
        if (t->error.worst_at < 0 || t->why || !isfinite(snr))
            continue;
        v.mean += snr;
        v.measured++;
        if (!v.worst || snr < error_snr(&v.worst->error))
            v.worst = t;
    }
    v.mean = v.measured ? v.mean / (double)v.measured : NAN;
    return v;
}

static const char *verdict(const plan_tensor *t)
{
    return t->action == ACTION_DROP ? "applied to its weight" : t->why;
}

static void print_tensors(const plan *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        const plan_tensor *t = &p->at[i];

        line_print(stdout, "%-48s %-6s -> %-8s %13" PRId64 " -> %12" PRId64 "  %s", t->in->name,
                   ridge_type_query(t->in->type)->name,
                   t->action == ACTION_DROP ? "none" : ridge_type_query(t->type)->name, t->in->bytes, t->bytes,
                   verdict(t) ? verdict(t) : "");
    }
}

static void print_summary(const plan *p, const ridge_device *device, double spent)
{
    overview v = look_over(p);

    line_print(stdout, "%s -> %s: %s%s", p->o->in, p->o->out, quantize_to_name(p->o->to),
               p->o->dry_run ? " (dry run)" : "");
    printf("  tensors     %" PRId64 " %s, %" PRId64 " stored in a wider type, %" PRId64 " kept", p->quantised,
           p->o->to == TO_BF16 || p->o->to == TO_F16 ? "converted" : "quantised", p->cast, p->kept);
    if (p->dropped)
        printf(", %" PRId64 " of FP8 scales applied", p->dropped);
    putchar('\n');
    printf("  bytes       %" PRId64 " -> %" PRId64 " (%.3f)\n", p->bytes_in, p->bytes_out,
           p->bytes_in ? (double)p->bytes_out / (double)p->bytes_in : 1.0);
    if (v.worst)
        line_print(stdout, "  SNR         mean %.2f dB, worst %.2f dB: %s[%" PRId64 "] = %.6g is off by %.3g", v.mean,
                   error_snr(&v.worst->error), v.worst->in->name, v.worst->error.worst_at, (double)v.worst->error.value,
                   (double)v.worst->error.worst);
    if (v.blocks)
        printf("  MXFP4       %" PRId64 " of %" PRId64 " blocks of FP8 hold its values exactly\n", v.blocks - v.inexact,
               v.blocks);
    if (v.not_finite)
        printf("  not finite  %" PRId64 " elements, in the input or after conversion\n", v.not_finite);
    if (!p->o->dry_run)
        printf("  time        %.2f s, %.2f GB/s of input, %s %s\n", spent, (double)p->bytes_in / spent * 1e-9,
               device->backend->name, device->name);
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *tensor_json(const plan_tensor *t)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s?, s:b, s:I, s:I}", "name", t->in->name, "from", ridge_type_query(t->in->type)->name,
                  "to", t->action == ACTION_DROP ? NULL : ridge_type_query(t->type)->name, "quantised", !verdict(t),
                  "bytes_in", (json_int_t)t->in->bytes, "bytes_out", (json_int_t)t->bytes);

    if (verdict(t))
        json_object_set_new(json, "why", json_string(verdict(t)));
    if (t->scale_name)
        json_object_set_new(json, "scale", json_string(t->scale_name));
    if (t->error.worst_at >= 0) {
        json_object_set_new(json, "snr_db", number(error_snr(&t->error)));
        json_object_set_new(json, "worst",
                            json_pack("{s:I, s:o, s:o}", "index", (json_int_t)t->error.worst_at, "value",
                                      number((double)t->error.value), "error", number((double)t->error.worst)));
    }
    if (t->error.blocks) {
        json_object_set_new(json, "blocks", json_integer((json_int_t)t->error.blocks));
        json_object_set_new(json, "inexact_blocks", json_integer((json_int_t)t->error.inexact));
    }
    if (t->error.worst_at >= 0 || t->error.not_finite)
        json_object_set_new(json, "not_finite", json_integer((json_int_t)t->error.not_finite));
    return json;
}

/* A path need not be UTF-8, a JSON string must. */
static json_t *path_json(const char *path)
{
    json_t *json = json_string(path);

    return json ? json : json_null();
}

static int dump_summary(const plan *p, const ridge_device *device, double spent)
{
    overview v = look_over(p);
    json_t *tensors = json_array(), *all;

    for (int64_t i = 0; i < p->count; i++)
        json_array_append_new(tensors, tensor_json(&p->at[i]));
    all = json_pack("{s:o, s:o, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I}", "in", path_json(p->o->in),
                    "out", path_json(p->o->out), "to", quantize_to_name(p->o->to), "dry_run", p->o->dry_run,
                    "quantised", (json_int_t)p->quantised, "cast", (json_int_t)p->cast, "kept", (json_int_t)p->kept,
                    "scales_applied", (json_int_t)p->dropped, "bytes_in", (json_int_t)p->bytes_in, "bytes_out",
                    (json_int_t)p->bytes_out, "snr_mean_db", number(v.mean), "snr_worst_db",
                    number(v.worst ? error_snr(&v.worst->error) : NAN), "not_finite", (json_int_t)v.not_finite);
    if (device) {
        json_object_set_new(all, "device", json_string(device->backend->name));
        json_object_set_new(all, "seconds", json_real(spent));
        json_object_set_new(all, "gbps", json_real((double)p->bytes_in / spent * 1e-9));
    }
    json_object_set_new(all, "tensors", tensors);
    return !print_json(all);
}

/* ------------------------------------------------------------------------------------------------------------- main */

bool quantize_report(const plan *p, converter *c)
{
    const double spent = seconds() - c->start;
    bool good = true;

    progress_end(&c->progress);
    c->progress.quiet = true;
    if (p->o->json)
        good = dump_summary(p, c->device, spent) == 0;
    else
        print_summary(p, c->device, spent);
    good = fflush(stdout) == 0 && good;
    if (!good && !quantize_stop)
        line_print(stderr, "ridge quantize: the summary cannot be printed; nothing was written");
    return good;
}

/* Blocks other than Q8_0's are made by ridge_io, which knows the CPU alone. */
static ridge_device *choose_device(const quantize_options *o)
{
    if (o->to <= TO_Q8_0 && o->to != TO_FP8_BLOCK32)
        return device_open(o->device);
    if (!o->device || strncmp(o->device, "cpu", 3) == 0)
        return device_open(o->device ? o->device : "cpu");
    line_print(stderr, "ridge quantize: --device %s: %s is made on the CPU", o->device, quantize_to_name(o->to));
    return NULL;
}

static int convert(plan *p)
{
    converter c = {.stats = !p->o->no_stats, .bytes_total = (double)p->bytes_in, .start = seconds()};
    ridge_device *device = choose_device(p->o);
    int status = 1;

    if (!device)
        return 1;
    if (!device->backend) {
        line_print(stderr, "ridge quantize: a model device runs nothing");
        ridge_close(device);
        return 1;
    }
    c.device = device;
    if (!converter_start(&c)) {
        line_print(stderr, "ridge quantize: out of memory");
        ridge_close(device);
        return 1;
    }
    catch_signals();
    progress_start(&c.progress, 1, p->o->quiet);
    status = quantize_write(p, &c);
    progress_end(&c.progress);
    converter_free(&c);
    ridge_close(device);
    return status;
}

/* Warns of what other programs will make of the result. */
static void advise(const plan *p)
{
    int64_t ragged = 0, mxfp4 = 0;

    for (int64_t i = 0; i < p->count; i++) {
        mxfp4 += p->at[i].type == RIDGE_TYPE_MXFP4;
        ragged += p->at[i].action == ACTION_FP8_BLOCK128 && p->at[i].in->shape[0] % 128 != 0;
    }
    if (p->o->to == TO_MXFP4 && !mxfp4)
        line_print(stderr,
                   "ridge quantize: %s has no experts: as llama.cpp's, this format makes MXFP4 of them alone, and "
                   "Q8_0 of the rest; --include chooses other tensors",
                   p->o->in);
    if (p->quantised == 0 && p->cast == 0)
        line_print(stderr, "ridge quantize: no tensor of %s is to be converted", p->o->in);
    if (p->format == RIDGE_GGUF && ridge_file_format(p->file) != RIDGE_GGUF)
        line_print(stderr, "ridge quantize: names stay as they are: llama.cpp itself needs its own names and metadata");
    if (ragged)
        line_print(stderr,
                   "ridge quantize: %" PRId64
                   " weights have rows that are no multiple of 128: vLLM refuses them in merged "
                   "layers (qkv, gate and up); fp8-row has no such limit",
                   ragged);
}

static int run(const quantize_options *o, const ridge_file *file)
{
    plan p;
    int status = 1;

    if (plan_build(o, file, &p) && output_allowed(&p)) {
        advise(&p);
        if (o->dry_run && o->json) {
            status = dump_summary(&p, NULL, 0);
        } else if (o->dry_run) {
            print_tensors(&p);
            print_summary(&p, NULL, 0);
            status = 0;
        } else {
            status = convert(&p);
        }
    }
    plan_free(&p);
    return status;
}

int cmd_quantize(int argc, char **argv)
{
    quantize_options o = {.to = TO_FORMATS};
    const char *format = NULL;
    const args_option list[] = {
        {"output", 'o', "OUT", "file, or directory if IN is one", .text = &o.out},
        {"to", 't', "FORMAT", FORMATS, .text = &format},
        {"include", 'i', "PATTERN", "quantise the tensors whose name matches, and no others (repeatable)",
         .list = &o.include},
        {"exclude", 'x', "PATTERN", "keep the tensors whose name matches (repeatable)", .list = &o.exclude},
        ARGS_DEVICE(&o.device),
        {"force", 0, NULL, "replace OUT if it is there", .flag = &o.force},
        {"dry-run", 0, NULL, "say what would be done, write nothing", .flag = &o.dry_run},
        {"no-stats", 0, NULL, "do not measure the error", .flag = &o.no_stats},
        {"json", 'j', NULL, "the summary as JSON", .flag = &o.json},
        {"quiet", 'q', NULL, "no progress", .flag = &o.quiet},
        {0}};
    args_list words = {0};
    ridge_file *file;
    int status;

    args_parse(argc, argv, "IN -o OUT --to FORMAT",
               "Quantises the weights of a checkpoint (safetensors, GGUF, an index or a directory) tensor by tensor.",
               list, &words, 1);
    o.in = words.at[0];
    if (format && !find_format(format, &o.to))
        return 2;
    if (!o.in || !o.out || !format) {
        line_print(stderr, "ridge quantize: IN, -o OUT and --to FORMAT are needed");
        return 2;
    }
    if (ridge_file_open(o.in, &file) != RIDGE_OK) {
        line_print(stderr, "ridge quantize: %s", ridge_io_error());
        return 1;
    }
    status = run(&o, file);
    ridge_file_close(file);
    return status;
}

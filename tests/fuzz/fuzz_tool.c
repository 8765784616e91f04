/* fuzz_tool.c: `ridge inspect` and `ridge quantize` as whole programs, on checkpoints that the input describes byte by
 * byte: single and sharded safetensors, single and split GGUFs, with config.json, other files, directories and links
 * beside them; mostly right, some wrong in one place. Whatever comes: an exit status that means what the manual says,
 * an output that opens and has the input's tensors, or none and the old one untouched; inputs as they were; no
 * temporary left; no control character printed. model.h builds the files. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"
#include "model.h"
#include "tools/quantize/quantize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SLOW_SECONDS = 20 };

static char root[64], in_folder[96], out_folder[96];
static long cases, inspected, inspected_well, converted, refused; /* printed at the end: are the files good enough? */

static void demand(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "fuzz_tool: %s\n", what);
    abort();
}

static void drop_root(void)
{
    folder_remove(root);
    fprintf(stderr, "fuzz_tool: %ld cases: inspect %ld, %ld of them opened; quantize converted %ld and refused %ld\n",
            cases, inspected, inspected_well, converted, refused);
}

static void prepare(void)
{
    const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";

    snprintf(root, sizeof root, "%s/ridge-fuzz-XXXXXX", memory);
    demand(mkdtemp(root) != NULL, "no temporary directory");
    atexit(drop_root);
    snprintf(in_folder, sizeof in_folder, "%s/in", root);
    snprintf(out_folder, sizeof out_folder, "%s/out", root);
}

/* ------------------------------------------------------------------------------------------------- what must not
 * change */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;

        memcpy(&word, at, 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Of names, kinds, links and contents; of a directory the sum over its entries, in whatever order. */
static uint64_t hash_path(const char *path, int depth)
{
    static uint8_t bytes[1 << 16];
    struct stat there;
    uint64_t hash;
    ssize_t n;
    int fd;

    if (lstat(path, &there) != 0)
        return 0;
    hash = hash_bytes(UINT64_C(14695981039346656037) + there.st_mode, path, strlen(path));
    if (S_ISLNK(there.st_mode)) {
        n = readlink(path, (char *)bytes, sizeof bytes);
        return hash_bytes(hash, bytes, n > 0 ? (size_t)n : 0);
    }
    if (S_ISREG(there.st_mode)) {
        fd = open(path, O_RDONLY);
        while (fd >= 0 && (n = read(fd, bytes, sizeof bytes)) > 0)
            hash = hash_bytes(hash, bytes, (size_t)n);
        close(fd);
    }
    if (S_ISDIR(there.st_mode) && depth < 8) {
        DIR *folder = opendir(path);

        for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
            char *inner = NULL;

            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            demand(asprintf(&inner, "%s/%s", path, entry->d_name) >= 0, "memory");
            hash += hash_path(inner, depth + 1);
            free(inner);
        }
        if (folder)
            closedir(folder);
    }
    return hash;
}

/* In the output's directory is nothing but the output, and config.json where it was written. */
static void check_nothing_left(const char *name, bool written)
{
    DIR *folder = opendir(out_folder);

    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;)
        demand(strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
                   strcmp(entry->d_name, name) == 0 || (written && strcmp(entry->d_name, "config.json") == 0),
               "something is left beside the output");
    if (folder)
        closedir(folder);
}

/* ------------------------------------------------------------------------------------------------------------- one run
 */

/* Runs a verb with its output in memory; signals are the fuzzer's again afterwards. *json: what it printed, if it was
 * asked for that. */
static int run(int (*verb)(int, char **), char **words, json_t **json)
{
    FILE *streams[2] = {stdout, stderr};
    char *text[2];
    size_t length[2];
    struct sigaction saved[NSIG];
    int count = 0, status;
    time_t begin = time(NULL);

    while (words[count])
        count++;
    for (int i = 1; i < NSIG; i++)
        sigaction(i, NULL, &saved[i]);
    stdout = open_memstream(&text[0], &length[0]);
    stderr = open_memstream(&text[1], &length[1]);
    status = verb(count, words);
    fclose(stdout);
    fclose(stderr);
    stdout = streams[0];
    stderr = streams[1];
    for (int i = 1; i < NSIG; i++)
        if (i != SIGKILL && i != SIGSTOP)
            sigaction(i, &saved[i], NULL);
    *json = status == 0 ? json_loadb(text[0], length[0], 0, NULL) : NULL;
    for (int i = 0; i < 2; i++) {
        for (size_t at = 0, bytes; at < length[i]; at += bytes) {
            bytes = text[i][at] == '\n' ? 1 : io_printable(text[i] + at, length[i] - at);
            if (!bytes)
                fprintf(stderr, "%s", text[i]);
            demand(bytes != 0, "a control character is printed");
        }
        demand(status == 0 || i == 0 || length[i] > 0, "a failure without a message");
        free(text[i]);
    }
    demand(time(NULL) - begin < SLOW_SECONDS, "it took too long");
    return status;
}

static void inspect(source *s, char *path)
{
    static char verb[] = "inspect", json[] = "--json", meta[] = "--meta", pattern[] = "*w*";
    char *words[6] = {verb, path};
    const bool wants_json = pick(s, 2);
    int count = 2, status;
    json_t *printed;

    if (wants_json)
        words[count++] = json;
    if (!pick(s, 4))
        words[count++] = meta;
    if (!pick(s, 8))
        words[count++] = pattern;
    status = run(cmd_inspect, words, &printed);
    demand(status != 0 || !wants_json || printed, "inspect: no JSON");
    json_decref(printed);
    demand(status == 0 || status == 1, "inspect: another status than 0 or 1");
    inspected++;
    inspected_well += status == 0;
}

/* Every tensor of the input is in the output, in its shape; but for scales that were applied. */
static void check_output(const char *in, const char *out)
{
    ridge_file *from, *to;

    demand(ridge_file_open(in, &from) == RIDGE_OK, "an input was converted that does not open");
    demand(ridge_file_open(out, &to) == RIDGE_OK, "the output does not open");
    for (int64_t i = 0; i < ridge_file_tensors(from); i++) {
        const ridge_entry *a = ridge_file_tensor(from, i), *b = ridge_file_find(to, a->name);

        demand(b ? a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0
                 : strstr(a->name, "scale") != NULL,
               "a tensor of the input is not in the output");
    }
    demand(ridge_file_tensors(to) <= 2 * ridge_file_tensors(from), "the output has tensors too many");
    ridge_file_close(from);
    ridge_file_close(to);
}

/* The worst element of a tensor is one of its elements. */
static void check_summary(const char *in, const json_t *summary)
{
    const json_t *tensors = json_object_get(summary, "tensors"), *t;
    ridge_file *from;
    size_t i;

    demand(ridge_file_open(in, &from) == RIDGE_OK && json_array_size(tensors) == (size_t)ridge_file_tensors(from),
           "the summary has other tensors");
    json_array_foreach(tensors, i, t)
    {
        const json_t *worst = json_object_get(t, "worst");
        const ridge_entry *entry = ridge_file_tensor(from, (int64_t)i);
        const json_int_t at = json_integer_value(json_object_get(worst, "index"));

        demand(strcmp(json_string_value(json_object_get(t, "name")), entry->name) == 0, "the summary has other names");
        demand(!worst || (at >= 0 && at < entry->elements), "the worst element is not in the tensor");
        demand(!worst || json_integer_value(json_object_get(t, "not_finite")) < entry->elements,
               "the worst element of none that is finite");
    }
    ridge_file_close(from);
}

static void quantize(source *s, char *in)
{
    static char verb[] = "quantize", to[] = "--to", o[] = "-o", quiet[] = "--quiet", device[] = "--device",
                cpu[] = "cpu:c";
    static char json[] = "--json", force[] = "--force", dry[] = "--dry-run", no_stats[] = "--no-stats",
                exclude[] = "--exclude", include[] = "--include", some[] = "*q_proj*", all[] = "*";
    static char format[5][16] = {"fp8-block128", "fp8-row", "q8_0", "bf16", "f16"};
    char out[160], *words[24] = {verb, in, o, out, to, format[pick(s, 5)], quiet, device, cpu};
    const bool wants_json = pick(s, 2), replace = pick(s, 2), exists = pick(s, 3) == 0, rehearse = pick(s, 8) == 0;
    int count = 9, status;
    uint64_t before, old;
    json_t *summary;
    struct stat there;

    snprintf(out, sizeof out, "%s/x", out_folder);
    if (exists && pick(s, 2)) {
        demand(mkdir(out, 0777) == 0, "mkdir");
    } else if (exists) {
        put_file(out, "old", 3);
    }
    if (wants_json)
        words[count++] = json;
    if (replace)
        words[count++] = force;
    if (rehearse)
        words[count++] = dry;
    if (pick(s, 4) == 0)
        words[count++] = no_stats;
    if (pick(s, 6) == 0) {
        words[count++] = pick(s, 2) ? exclude : include;
        words[count++] = pick(s, 2) ? some : all;
    }
    before = hash_path(in_folder, 0);
    old = hash_path(out, 0);
    quantize_stop = 0;
    status = run(cmd_quantize, words, &summary);
    demand(status != 0 || !wants_json || summary, "quantize: no JSON");
    if (summary)
        check_summary(in, summary);
    json_decref(summary);
    demand(status == 0 || status == 1 || (status == 130 && quantize_stop), "quantize: another status than 0 or 1");
    converted += status == 0 && !rehearse;
    refused += status != 0;
    demand(hash_path(in_folder, 0) == before, "the input has changed");
    check_nothing_left("x", status == 0 && !rehearse);
    if (status != 0 || rehearse)
        demand(hash_path(out, 0) == old, "a run that failed has changed the output");
    else
        check_output(in, out);
    if (status == 0 && !rehearse)
        demand(!exists || replace, "the old output was replaced without --force");
    if (lstat(out, &there) == 0 && S_ISDIR(there.st_mode))
        folder_remove(out);
    else
        unlink(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    source s = {data, data + size, hash_bytes(UINT64_C(14695981039346656037), data, size)};
    char path[192];

    if (!root[0])
        prepare();
    cases++;
    demand(mkdir(in_folder, 0777) == 0 && mkdir(out_folder, 0777) == 0, "mkdir");
    make_model(&s, in_folder, path, sizeof path);
    if (pick(&s, 3) == 0)
        inspect(&s, path);
    if (pick(&s, 8) != 0)
        quantize(&s, path);
    folder_remove(in_folder);
    folder_remove(out_folder);
    return 0;
}

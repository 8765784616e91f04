/* output.c: writes the output: one file through the library's writer, or a directory that is built beside its target
 * and renamed when it is complete. An error or a signal leaves nothing behind; files of the input are only read. All
 * that can fail comes before the result gets its name, the summary too: exit status 1 means that nothing is in place.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quantize.h"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

static bool say(const char *path, const char *doing)
{
    line_print(stderr, "ridge quantize: %s: %s: %s", path, doing, strerror(errno));
    return false;
}

static bool refuse(const char *path, const char *why)
{
    line_print(stderr, "ridge quantize: %s: %s", path, why);
    return false;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

/* --------------------------------------------------------------------------------------------------------- one file */

static bool writer_fail(void)
{
    line_print(stderr, "ridge quantize: %s", ridge_io_error());
    return false;
}

/* safetensors holds strings only, and they must be UTF-8: of GGUF's metadata only general.* is copied to it. */
static bool write_metadata(const plan *p, ridge_writer *w)
{
    bool from_gguf = ridge_file_format(p->file) == RIDGE_GGUF, to_gguf = p->format == RIDGE_GGUF;
    bool good = true;

    for (int64_t i = 0; i < ridge_file_metas(p->file) && good; i++) {
        const ridge_meta *m = ridge_file_meta(p->file, i);

        if (from_gguf && strncmp(m->key, "split.", 6) == 0)
            continue; /* the parts of the input are one file now */
        if (from_gguf == to_gguf)
            good = ridge_writer_meta(w, m) == RIDGE_OK;
        else if (from_gguf && strncmp(m->key, "general.", 8) == 0 && m->kind == RIDGE_META_STRING)
            ridge_writer_meta(w, m); /* one that is not UTF-8 is left out */
    }
    if (good && to_gguf) {
        if (!from_gguf && !config_architecture(p, w)) /* it has printed why */
            return false;
        good = ridge_writer_meta_u32(w, "general.file_type", quantize_file_type(p->o->to)) == RIDGE_OK &&
               (ridge_file_meta_find(p->file, "general.quantization_version") ||
                ridge_writer_meta_u32(w, "general.quantization_version", 2) == RIDGE_OK);
    } else if (good && !ridge_file_meta_find(p->file, "format")) {
        good = ridge_writer_meta_string(w, "format", "pt") == RIDGE_OK; /* loaders require it */
    }
    return good || writer_fail();
}

/* Is tensor i of shard `shard` (-1: of any) of the input written? */
static bool is_written(const plan *p, int64_t i, int32_t shard)
{
    return (shard < 0 || p->at[i].in->shard == shard) && p->at[i].action != ACTION_DROP;
}

static bool declare(plan_tensor *t, ridge_writer *w)
{
    return (ridge_writer_tensor(w, t->in->name, t->type, t->in->rank, t->in->shape, &t->index) == RIDGE_OK &&
            (!t->scale_name || ridge_writer_tensor(w, t->scale_name, t->e8m0 ? RIDGE_TYPE_F8_E8M0 : RIDGE_TYPE_F32,
                                                   t->in->rank, t->scale_shape, &t->scale_index) == RIDGE_OK)) ||
           writer_fail();
}

/* Tensors of one shard of the input, or of all (-1), into one file that is not finished; NULL: it failed. */
static ridge_writer *fill_file(plan *p, converter *c, const char *path, int32_t shard)
{
    ridge_writer *w = NULL;
    bool good = ridge_writer_open(path, p->format, &w) == RIDGE_OK || writer_fail();

    good = good && write_metadata(p, w);
    for (int64_t i = 0; i < p->count && good; i++)
        if (is_written(p, i, shard))
            good = declare(&p->at[i], w);
    good = good && (ridge_writer_begin(w) == RIDGE_OK || writer_fail());
    for (int64_t i = 0; i < p->count && good; i++)
        if (is_written(p, i, shard))
            good = convert_tensor(c, p->file, &p->at[i], w);
    if (good && !quantize_stop)
        return w;
    ridge_writer_abort(w);
    return NULL;
}

static bool finish(ridge_writer *w)
{
    return ridge_writer_finish(w) == RIDGE_OK || writer_fail();
}

static bool write_file(plan *p, converter *c, const char *out)
{
    ridge_writer *w = fill_file(p, c, out, -1);
    char *config = NULL;
    bool good;

    if (!w)
        return false;
    good = config_beside(p, out, &config) && quantize_report(p, c) && !quantize_stop;
    if (good)
        good = finish(w);
    else
        ridge_writer_abort(w);
    if (!good && config)
        unlink(config);
    free(config);
    return good;
}

/* ------------------------------------------------------------------------------------------------------ a directory */

/* Renames the finished directory to the target; with --force the two are exchanged and the old one is then removed. */
static bool put_folder(const char *made, const char *out)
{
    mode_t mask = umask(0);
    char *parent = path_join(out, "..");

    umask(mask);
    chmod(made, 0777 & ~mask);
    folder_sync(made);
    if (access(out, F_OK) != 0) {
        if (rename(made, out) != 0) {
            free(parent);
            return say(out, "renaming the finished directory");
        }
    } else if (renameat2(AT_FDCWD, made, AT_FDCWD, out, RENAME_EXCHANGE) != 0) {
        free(parent);
        return say(out, "replacing the directory");
    } else if (!folder_remove(made)) {
        say(made, "is the old directory and could not be removed");
    }
    if (parent)
        folder_sync(parent);
    free(parent);
    return true;
}

static void free_names(char **name, int32_t count)
{
    for (int32_t i = 0; name && i < count; i++)
        free(name[i]);
    free(name);
}

/* The file of each shard of the input: its own name; parts of a GGUF are numbered, those without tensors left out
 * (NULL).
 */
static char **name_shards(const plan *p)
{
    const int32_t shards = ridge_file_shards(p->file);
    const bool gguf = ridge_file_format(p->file) == RIDGE_GGUF;
    char **name = calloc((size_t)shards + 1, sizeof *name);
    bool *used = calloc((size_t)shards + 1, sizeof *used), good = name && used;
    int32_t parts = 0, part = 0;

    for (int64_t i = 0; i < p->count && good; i++) {
        parts += !used[p->at[i].in->shard];
        used[p->at[i].in->shard] = true;
    }
    for (int32_t i = 0; i < shards && good; i++) {
        if (!gguf)
            name[i] = strdup(base_name(ridge_file_path(p->file, i)));
        else if (shards == 1)
            name[i] = strdup("model.safetensors");
        else if (!used[i])
            continue;
        else if (asprintf(&name[i], "model-%05" PRId32 "-of-%05" PRId32 ".safetensors", ++part, parts) < 0)
            name[i] = NULL;
        good = name[i] != NULL;
    }
    free(used);
    if (good)
        return name;
    free_names(name, shards);
    refuse(p->o->out, "out of memory");
    return NULL;
}

static bool fill_folder(plan *p, converter *c, const char *made, const char *out)
{
    const int32_t shards = ridge_file_shards(p->file);
    char **name = name_shards(p);
    bool good = name != NULL;

    for (int32_t shard = 0; shard < shards && good; shard++) {
        char *path = name[shard] ? path_join(made, name[shard]) : NULL;
        ridge_writer *w = path ? fill_file(p, c, path, shard) : NULL;

        good = name[shard] ? w && finish(w) : true;
        free(path);
    }
    if (good && shards > 1)
        good = config_index(p, made, name);
    free_names(name, shards);
    return good && folder_copy(p->folder, made, out) && config_write(p, made);
}

/* Removed at exit: OpenMP's runtime ends the program when memory is short. */
static const char *unfinished;

static void drop_unfinished(void)
{
    if (unfinished)
        folder_remove(unfinished);
}

static bool write_folder(plan *p, converter *c, const char *out)
{
    const char *slash = strrchr(out, '/');
    static bool registered;
    char *made = NULL;
    bool good;

    if (asprintf(&made, "%.*s.ridge-XXXXXX", slash ? (int)(slash - out) + 1 : 0, out) < 0)
        return refuse(out, "out of memory");
    if (!mkdtemp(made)) {
        say(out, "creating a temporary directory beside it");
        free(made);
        return false;
    }
    unfinished = made;
    if (!registered)
        atexit(drop_unfinished);
    registered = true;
    good = fill_folder(p, c, made, out) && quantize_report(p, c) && !quantize_stop && put_folder(made, out);
    if (access(made, F_OK) == 0)
        drop_unfinished();
    unfinished = NULL;
    free(made);
    return good;
}

/* -------------------------------------------------------------------------------------------------- what is allowed */

/* NULL, or what is wrong with the output's name: an ending that belongs to another format. */
static const char *misnamed(const plan *p)
{
    const bool gguf = path_ends(p->o->out, ".gguf"), safetensors = path_ends(p->o->out, ".safetensors");

    if (strcmp(p->o->out, "-") == 0)
        return "is no file's name; nothing is written to standard output";
    if (p->directory && (gguf || safetensors))
        return "is a file's name; the input is a directory, and so is the result";
    if (p->format == RIDGE_GGUF && safetensors)
        return "this format is written as GGUF; give a name that ends in .gguf";
    if (p->format != RIDGE_GGUF && gguf)
        return "this format is written as safetensors; give a name that ends in .safetensors";
    return NULL;
}

/* Does `path` lie in `folder`, or is it the same? Both are there. */
static bool is_within(const char *path, const char *folder)
{
    char *a = realpath(path, NULL), *b = realpath(folder, NULL);
    const size_t length = b ? strlen(b) : 0;
    const bool within = a && b && strncmp(a, b, length) == 0 && (!a[length] || a[length] == '/' || length == 1);

    free(a);
    free(b);
    return within;
}

/* A file that the input consists of beside its shards: of a directory everything that is no checkpoint, of a file the
 * config.json and the indices beside it. */
static bool is_of_input(const plan *p, const char *out)
{
    char *config = path_join(p->folder, "config.json");
    const bool is_config = config && same_file(out, config);

    free(config);
    return is_config || same_file(out, p->o->in) || (path_ends(out, ".index.json") && is_within(out, p->folder)) ||
           (p->many && is_within(out, p->folder) && !path_ends(out, ".gguf") && !path_ends(out, ".safetensors"));
}

/* What is there may be replaced: NULL, or why not. */
static const char *irreplaceable(const plan *p, const char *out, const struct stat *there)
{
    if (!p->directory && is_of_input(p, out))
        return "is a file of the input";
    if (p->directory != (bool)S_ISDIR(there->st_mode))
        return p->directory ? "is there, and is not a directory" : "is a directory; give a file's name";
    if (p->directory && is_within(p->folder, out))
        return "is the input, or holds it";
    if (p->directory && !folder_resembles(out, p->folder))
        return "is there and holds directories that the model does not have; it is not replaced";
    if (!p->o->force && !p->o->dry_run)
        return "is there already; --force replaces it";
    return NULL;
}

bool output_allowed(const plan *p)
{
    const char *out = p->o->out, *why;
    struct stat there, link;

    for (int32_t i = 0; i < ridge_file_shards(p->file); i++)
        if (same_file(out, ridge_file_path(p->file, i)))
            return refuse(out, "is the input");
    if (same_file(out, p->o->in) || (p->directory && same_file(out, p->folder)))
        return refuse(out, "is the input");
    if (misnamed(p))
        return refuse(out, misnamed(p));
    if (stat(out, &there) != 0)
        return !p->directory || lstat(out, &link) != 0 || refuse(out, "is a link to nothing");
    why = irreplaceable(p, out, &there);
    return !why || refuse(out, why);
}

/* The output's path without slashes at its end; of a directory that is a link, what it leads to: the link stays. */
static char *target_of(const plan *p)
{
    char *out = strdup(p->o->out), *real;

    for (size_t n = out ? strlen(out) : 0; p->directory && n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = 0;
    real = out && p->directory ? realpath(out, NULL) : NULL;
    if (real) {
        free(out);
        out = real;
    }
    return out;
}

int quantize_write(plan *p, converter *c)
{
    char *out = target_of(p);
    bool good = out != NULL || refuse(p->o->out, "out of memory");

    if (good)
        good = p->directory ? write_folder(p, c, out) : write_file(p, c, out);
    free(out);
    if (!good && quantize_stop) { /* a signal that came after the rename changes nothing */
        progress_end(&c->progress);
        line_print(stderr, "ridge quantize: interrupted; nothing was written");
        return 130;
    }
    return !good;
}

/* output.c: writes the output: one file through the library's writer, or a directory that is built beside its target
 * and renamed when it is complete. An error or a signal leaves nothing behind; files of the input are only read.
 * config.c writes the JSON files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
    fprintf(stderr, "ridge quantize: %s: %s: %s\n", path, doing, strerror(errno));
    return false;
}

static bool refuse(const char *path, const char *why)
{
    fprintf(stderr, "ridge quantize: %s: %s\n", path, why);
    return false;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

/* --------------------------------------------------------------------------------------------------------- one file */

static bool writer_fail(void)
{
    fprintf(stderr, "ridge quantize: %s\n", ridge_io_error());
    return false;
}

/* safetensors holds strings only, and they must be UTF-8: of GGUF's metadata only general.* is copied to it. */
static bool write_metadata(const plan *p, ridge_writer *w)
{
    bool from_gguf = ridge_file_format(p->file) == RIDGE_GGUF, to_gguf = p->format == RIDGE_GGUF;
    bool good = true;

    for (int64_t i = 0; i < ridge_file_metas(p->file) && good; i++) {
        const ridge_meta *m = ridge_file_meta(p->file, i);

        if (from_gguf == to_gguf)
            good = ridge_writer_meta(w, m) == RIDGE_OK;
        else if (from_gguf && strncmp(m->key, "general.", 8) == 0 && m->kind == RIDGE_META_STRING)
            ridge_writer_meta(w, m); /* one that is not UTF-8 is left out */
    }
    if (good && to_gguf) {
        if (!from_gguf && !config_architecture(p, w)) /* it has printed why */
            return false;
        good = ridge_writer_meta_u32(w, "general.file_type", 7) == RIDGE_OK && /* mostly Q8_0 */
               (ridge_file_meta_find(p->file, "general.quantization_version") ||
                ridge_writer_meta_u32(w, "general.quantization_version", 2) == RIDGE_OK);
    } else if (good && !ridge_file_meta_find(p->file, "format")) {
        good = ridge_writer_meta_string(w, "format", "pt") == RIDGE_OK; /* loaders require it */
    }
    return good || writer_fail();
}

static bool declare(plan_tensor *t, ridge_writer *w)
{
    return (ridge_writer_tensor(w, t->in->name, t->type, t->in->rank, t->in->shape, &t->index) == RIDGE_OK &&
            (!t->scale_name ||
             ridge_writer_tensor(w, t->scale_name, RIDGE_TYPE_F32, 2, t->scale_shape, &t->scale_index) == RIDGE_OK)) ||
           writer_fail();
}

/* Tensors of one shard of the input, or of all (-1), into one file. */
static bool write_file(plan *p, converter *c, const char *path, int32_t shard)
{
    ridge_writer *w = NULL;
    bool good = ridge_writer_open(path, p->format, &w) == RIDGE_OK || writer_fail();

    good = good && write_metadata(p, w);
    for (int64_t i = 0; i < p->count && good; i++)
        if (shard < 0 || p->at[i].in->shard == shard)
            good = declare(&p->at[i], w);
    good = good && (ridge_writer_begin(w) == RIDGE_OK || writer_fail());
    for (int64_t i = 0; i < p->count && good; i++)
        if (shard < 0 || p->at[i].in->shard == shard)
            good = convert_tensor(c, p->file, &p->at[i], w);
    if (good && !quantize_stop)
        return ridge_writer_finish(w) == RIDGE_OK || writer_fail();
    ridge_writer_abort(w);
    return false;
}

/* ------------------------------------------------------------------------------------------------------ a directory */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);

    return n >= e && strcmp(name + n - e, end) == 0;
}

/* True for files of the input's directory that are copied: all but weights, hidden files and what is rewritten. */
static bool is_copied(const char *name)
{
    static const char *const weights[] = {".safetensors", ".gguf",    ".bin",  ".pt",        ".pth",
                                          ".h5",          ".msgpack", ".onnx", ".index.json"};

    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        if (ends_with(name, weights[i]))
            return false;
    return name[0] != '.' && strcmp(name, "config.json") != 0;
}

static bool copy_bytes(int from, int to)
{
    static char bytes[1 << 18];
    ssize_t n = 0;

    while (!quantize_stop && (n = read(from, bytes, sizeof bytes)) > 0)
        for (ssize_t done = 0; done < n;) {
            ssize_t wrote = write(to, bytes + done, (size_t)(n - done));

            if (wrote < 0)
                return false;
            done += wrote;
        }
    return n == 0 && !quantize_stop && fsync(to) == 0;
}

static bool copy_file(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_CLOEXEC),
        out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool good = out >= 0 && copy_bytes(in, out);

    if (!good && !quantize_stop)
        say(in < 0 ? from : to, "copying");
    if (in >= 0)
        close(in);
    if (out >= 0 && close(out) != 0 && good)
        good = say(to, "closing");
    return good;
}

static bool copy_others(const char *from, const char *to)
{
    DIR *folder = opendir(from);
    bool good = folder != NULL || say(from, "reading the directory");

    for (struct dirent *entry; good && !quantize_stop && (entry = readdir(folder)) != NULL;) {
        char *source, *target;
        struct stat there;

        if (!is_copied(entry->d_name))
            continue;
        source = path_join(from, entry->d_name);
        target = path_join(to, entry->d_name);
        good = source && target;
        if (good && stat(source, &there) == 0 && S_ISREG(there.st_mode)) /* links are followed: caches have them */
            good = copy_file(source, target);
        free(source);
        free(target);
    }
    if (folder)
        closedir(folder);
    return good && !quantize_stop;
}

/* Removes a directory of plain files. */
static bool remove_flat(const char *path)
{
    DIR *folder = opendir(path);

    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    return rmdir(path) == 0;
}

static bool has_folders(const char *path)
{
    DIR *folder = opendir(path);
    bool found = false;

    for (struct dirent *entry; folder && !found && (entry = readdir(folder)) != NULL;) {
        struct stat there;

        found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                (fstatat(dirfd(folder), entry->d_name, &there, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(there.st_mode));
    }
    if (folder)
        closedir(folder);
    return found;
}

static void sync_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (folder >= 0) {
        fsync(folder); /* some file systems cannot, and need not */
        close(folder);
    }
}

/* Renames the finished directory to the target; with --force the two are exchanged and the old one is then removed. */
static bool put_folder(const char *made, const char *out)
{
    mode_t mask = umask(0);
    char *parent = path_join(out, "..");

    umask(mask);
    chmod(made, 0777 & ~mask);
    sync_folder(made);
    if (access(out, F_OK) != 0) {
        if (rename(made, out) != 0) {
            free(parent);
            return say(out, "renaming the finished directory");
        }
    } else if (renameat2(AT_FDCWD, made, AT_FDCWD, out, RENAME_EXCHANGE) != 0) {
        free(parent);
        return say(out, "replacing the directory");
    } else if (!remove_flat(made)) {
        say(made, "is the old directory and could not be removed");
    }
    if (parent)
        sync_folder(parent);
    free(parent);
    return true;
}

static bool fill_folder(plan *p, converter *c, const char *made)
{
    bool good = true;

    for (int32_t shard = 0; shard < ridge_file_shards(p->file) && good; shard++) {
        bool gguf = ridge_file_format(p->file) == RIDGE_GGUF;
        char *path = path_join(made, gguf ? "model.safetensors" : base_name(ridge_file_path(p->file, shard)));

        good = path && write_file(p, c, path, shard);
        free(path);
    }
    if (good && ridge_file_shards(p->file) > 1)
        good = config_index(p, made);
    return good && copy_others(p->folder, made) && config_write(p, made);
}

/* Removed at exit: OpenMP's runtime ends the program when memory is short. */
static const char *unfinished;

static void drop_unfinished(void)
{
    if (unfinished)
        remove_flat(unfinished);
}

static bool write_folder(plan *p, converter *c, const char *out)
{
    const char *slash = strrchr(out, '/');
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
    atexit(drop_unfinished);
    good = fill_folder(p, c, made) && !quantize_stop && put_folder(made, out);
    drop_unfinished();
    unfinished = NULL;
    free(made);
    return good;
}

/* -------------------------------------------------------------------------------------------------- what is allowed */

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* NULL, or what is wrong with the output's name: an ending that belongs to another format. */
static const char *misnamed(const plan *p)
{
    const bool gguf = ends_with(p->o->out, ".gguf"), safetensors = ends_with(p->o->out, ".safetensors");

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

bool output_allowed(const plan *p)
{
    const char *out = p->o->out;
    struct stat there;

    for (int32_t i = 0; i < ridge_file_shards(p->file); i++)
        if (same_file(out, ridge_file_path(p->file, i)))
            return refuse(out, "is the input");
    if (same_file(out, p->o->in) || (p->directory && same_file(out, p->folder)))
        return refuse(out, "is the input");
    if (misnamed(p))
        return refuse(out, misnamed(p));
    if (stat(out, &there) != 0)
        return true;
    if (p->directory != (bool)S_ISDIR(there.st_mode))
        return refuse(out, p->directory ? "is there, and is not a directory" : "is a directory; give a file's name");
    if (p->directory && has_folders(out))
        return refuse(out, "is there and holds directories; it is not replaced");
    if (!p->o->force && !p->o->dry_run)
        return refuse(out, "is there already; --force replaces it");
    return true;
}

int quantize_write(plan *p, converter *c)
{
    char *out = strdup(p->o->out);
    bool good = out != NULL || refuse(p->o->out, "out of memory");

    for (size_t n = out ? strlen(out) : 0; p->directory && n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = 0;
    if (good)
        good = p->directory ? write_folder(p, c, out) : write_file(p, c, out, -1) && config_beside(p, out);
    free(out);
    if (!good && quantize_stop) { /* a signal that came after the rename changes nothing */
        fprintf(stderr, "\nridge quantize: interrupted; nothing was written\n");
        return 130;
    }
    return !good;
}

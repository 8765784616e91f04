/* folder.c: copies what lies beside the weights of a model, and removes directories. The model may come from a
 * stranger: nothing but regular files is opened, and no link is followed out of the model. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "quantize.h"

enum { DEPTH_MOST = 16 };

static bool say(const char *path, const char *doing, const char *why)
{
    line_print(stderr, "ridge quantize: %s: %s: %s", path, doing, why);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------ paths */

char *path_join(const char *folder, const char *name)
{
    char *path;

    if (asprintf(&path, "%s/%s", folder, name) >= 0)
        return path;
    line_print(stderr, "ridge quantize: out of memory");
    return NULL;
}

bool path_ends(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);

    return n >= e && strcmp(name + n - e, end) == 0;
}

bool same_file(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool lies_in(const char *path, const char *folder, size_t length)
{
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* The cache of downloads has models--X/snapshots/REVISION/file -> models--X/blobs/..., or the same from a folder in it.
 */
bool link_stays(const char *folder, const char *path)
{
    struct stat there;
    char *root, *target, *cache;
    bool stays = false;

    if (lstat(path, &there) != 0 || !S_ISLNK(there.st_mode))
        return true;
    root = realpath(folder, NULL);
    target = realpath(path, NULL);
    cache = root ? strstr(root, "/snapshots/") : NULL;
    if (root && target)
        stays = lies_in(target, root, strlen(root)) ||
                (cache && lies_in(target, root, (size_t)(cache - root)) &&
                 strncmp(target + (cache - root), "/blobs/", strlen("/blobs/")) == 0);
    free(root);
    free(target);
    return stays;
}

/* ---------------------------------------------------------------------------------------------------------- copying */

/* Weights of other formats; those of the directory itself are what is converted. */
static bool is_weights(const char *name, bool top)
{
    static const char *const other[] = {".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".onnx_data"};
    const bool torch = path_ends(name, ".bin");

    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (path_ends(name, other[i]))
            return true;
    /* A folder's own module (1_Pooling, 2_Dense) is not converted: it is copied with its weights. */
    return top ? torch || path_ends(name, ".safetensors") || path_ends(name, ".index.json")
               : torch && strcmp(name, "pytorch_model.bin") != 0;
}

bool folder_copies(const char *name)
{
    return name[0] != '.' && !is_weights(name, true) && strcmp(name, "config.json") != 0;
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

static bool copy_file(int in, const char *from, const char *to)
{
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool good = out >= 0 && copy_bytes(in, out);

    if (!good && !quantize_stop)
        say(from, "copying", strerror(errno));
    if (out >= 0 && close(out) != 0 && good)
        good = say(to, "closing", strerror(errno));
    return good;
}

/* A copy of a directory: paths are those of the model's directory `model` and below it. */
typedef struct copying {
    const char *model, *except;
    int depth;
} copying;

static bool copy_entries(const copying *c, const char *from, const char *to);

static bool copy_folder(const copying *c, const char *from, const char *to)
{
    const copying below = {c->model, c->except, c->depth + 1};
    bool good;

    if (c->except && same_file(from, c->except)) /* the output, from an earlier run */
        return true;
    if (below.depth > DEPTH_MOST)
        return say(from, "copying", "directories in directories, too many");
    if (mkdir(to, 0777) != 0)
        return say(to, "creating", strerror(errno));
    good = copy_entries(&below, from, to);
    folder_sync(to);
    rmdir(to); /* of a directory that has nothing to copy */
    return good;
}

static bool copy_entry(const copying *c, const char *from, const char *to)
{
    struct stat there;
    bool good = true, link = lstat(from, &there) == 0 && S_ISLNK(there.st_mode);
    int in;

    if (!link && S_ISDIR(there.st_mode))
        return copy_folder(c, from, to);
    if (link && !link_stays(c->model, from)) {
        say(from, "not copied", "a link that leads out of the model's directory");
        return true;
    }
    in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (in < 0 || fstat(in, &there) != 0)
        good = say(from, "copying", strerror(errno));
    else if (S_ISREG(there.st_mode))
        good = copy_file(in, from, to);
    else
        say(from, "not copied", S_ISDIR(there.st_mode) ? "a link to a directory" : "no regular file");
    if (in >= 0)
        close(in);
    return good;
}

static bool copy_entries(const copying *c, const char *from, const char *to)
{
    DIR *folder = opendir(from);
    bool good = folder != NULL || say(from, "reading the directory", strerror(errno));

    for (struct dirent *entry; good && !quantize_stop && (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        char *source, *target;

        if (c->depth ? name[0] == '.' || is_weights(name, false) : !folder_copies(name))
            continue;
        source = path_join(from, name);
        target = path_join(to, name);
        good = source && target && copy_entry(c, source, target);
        free(source);
        free(target);
    }
    if (folder)
        closedir(folder);
    return good && !quantize_stop;
}

bool folder_copy(const char *from, const char *to, const char *except)
{
    const copying c = {from, except, 0};

    return copy_entries(&c, from, to);
}

/* --------------------------------------------------------------------------------------------------------- removing */

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

bool folder_resembles(const char *path, const char *model)
{
    DIR *folder = opendir(path);
    bool good = folder != NULL;

    for (struct dirent *entry; good && (entry = readdir(folder)) != NULL;) {
        struct stat here, there;
        char *mine, *its;

        if (is_dots(entry->d_name))
            continue;
        mine = path_join(path, entry->d_name);
        its = path_join(model, entry->d_name);
        good = mine && its && lstat(mine, &here) == 0;
        if (good && S_ISDIR(here.st_mode))
            good = lstat(its, &there) == 0 && S_ISDIR(there.st_mode) && folder_resembles(mine, its);
        free(mine);
        free(its);
    }
    if (folder)
        closedir(folder);
    return good;
}

/* Takes over the descriptor. */
static bool remove_entries(int fd)
{
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    bool good = folder != NULL;

    if (!folder && fd >= 0)
        close(fd);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (is_dots(entry->d_name) || unlinkat(dirfd(folder), entry->d_name, 0) == 0)
            continue;
        good = remove_entries(openat(dirfd(folder), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) &&
               unlinkat(dirfd(folder), entry->d_name, AT_REMOVEDIR) == 0 && good;
    }
    if (folder)
        closedir(folder);
    return good;
}

bool folder_remove(const char *path)
{
    return remove_entries(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) && rmdir(path) == 0;
}

void folder_sync(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (folder >= 0) {
        fsync(folder); /* some file systems cannot, and need not */
        close(folder);
    }
}

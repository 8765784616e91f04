/* against.c: another build of ridge, opened at run time, as a rival of every op (`ridge bench --against`): whether a
 * change cost speed is seen only by calls of both in the same rounds. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

typedef struct against_state {
    const ridge_device *device;
    void *workspace;
    size_t bytes;
} against_state;

/* The library, open for the life of the process. */
static struct {
    const char *(*version)(void);
    const char *(*error)(void);
    ridge_status (*open)(const char *spec, ridge_device **device);
    ridge_status (*workspace_bytes)(const ridge_device *device, const ridge_call *call, size_t *bytes);
    ridge_status (*run)(const ridge_device *device, const ridge_call *call, void *workspace, size_t bytes,
                        void *stream);
    ridge_device *device;
} other;

static bool same_abi(const char *version)
{
    return strncmp(version, ridge_version(), (size_t)(strrchr(ridge_version(), '.') - ridge_version())) == 0;
}

bool against_load(const char *path, const ridge_device *device)
{
    static const char *const name[] = {"ridge_version", "ridge_error", "ridge_open", "ridge_workspace_bytes",
                                       "ridge_run"};
    void **const function[] = {(void **)&other.version, (void **)&other.error, (void **)&other.open,
                               (void **)&other.workspace_bytes, (void **)&other.run};
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    char spec[32] = "cpu";

    if (!library) {
        fprintf(stderr, "ridge bench: --against: %s\n", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        if ((*function[i] = dlsym(library, name[i])) == NULL) {
            fprintf(stderr, "ridge bench: --against: %s has no %s\n", path, name[i]);
            return false;
        }
    if (!same_abi(other.version())) {
        fprintf(stderr, "ridge bench: --against: %s is version %s, whose calls this one does not write\n", path,
                other.version());
        return false;
    }
    if (device->ordinal >= 0)
        snprintf(spec, sizeof spec, "cuda:%d", device->ordinal);
    if (other.open(spec, &other.device) == RIDGE_OK)
        return true;
    fprintf(stderr, "ridge bench: --against: %s\n", other.error());
    return false;
}

static void against_close(void *state)
{
    against_state *s = state;

    if (s->workspace)
        s->device->backend->release(s->device, s->workspace);
    free(s);
}

static void *against_open(const ridge_device *device, const ridge_call *call, void *stream, char *why, size_t size)
{
    against_state *s = calloc(1, sizeof *s);

    (void)stream;
    snprintf(why, size, "out of memory");
    if (!s)
        return NULL;
    s->device = device;
    if (other.workspace_bytes(other.device, call, &s->bytes))
        snprintf(why, size, "%s", other.error());
    else if (!s->bytes || device->backend->alloc(device, s->bytes, &s->workspace) == RIDGE_OK)
        return s;
    against_close(s);
    return NULL;
}

static ridge_status against_run(void *state, const ridge_call *call, void *stream)
{
    const against_state *s = state;

    return other.run(other.device, call, s->workspace, s->bytes, stream);
}

const rival against = {"other", RIDGE_OP_NONE, against_open, against_run, against_close};

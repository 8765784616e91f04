/* model.c: opens and closes a model, and describes it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

void lm_note(const ridge_lm *lm, const char *format, ...)
{
    char line[512];
    va_list list;

    if (!lm->options.note)
        return;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    lm->options.note(lm->options.state, line);
}

static ridge_status open_all(ridge_lm *lm, const char *path)
{
    char arch[32];
    lm_meta m = {NULL, arch};
    ridge_status status = lm_io_failed(ridge_file_open(path, &lm->file));

    if (status)
        return status;
    m.file = lm->file;
    if (ridge_file_format(lm->file) != RIDGE_GGUF)
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "%s is no GGUF file", path);
    status = lm_meta_text(&m, "general.architecture", arch, sizeof arch, NULL);
    if (!status)
        status = lm_config_read(&m, &lm->config);
    if (!status)
        status = lm_vocab_read(&m, &lm->vocab);
    if (!status && lm_meta_text(&m, "general.name", lm->name, sizeof lm->name, NULL))
        lm->name[0] = '\0';
    if (!status)
        status = lm_ridge_failed(ridge_open("cpu", &lm->cpu));
    if (!status)
        status = lm->backend->start(lm->device, &lm->state);
    lm->started = !status;
    return status ? status : lm_weights_load(lm);
}

ridge_status lm_begin(const ridge_device *device, const ridge_lm_options *options, ridge_lm **to)
{
    const lm_backend *backend = lm_backend_of(device);
    ridge_lm *lm = backend ? calloc(1, sizeof *lm) : NULL;

    *to = lm;
    if (!lm)
        return backend ? lm_fail(RIDGE_ERR_DEVICE, "no memory for a model")
                       : lm_fail(RIDGE_ERR_UNSUPPORTED, "a model device runs nothing");
    lm->device = device;
    lm->backend = backend;
    if (options)
        lm->options = *options;
    return RIDGE_OK;
}

ridge_status ridge_lm_open(const char *path, const ridge_device *device, const ridge_lm_options *options, ridge_lm **to)
{
    ridge_status status;
    ridge_lm *lm;

    if (to)
        *to = NULL;
    if (!path || !device || !to || (options && options->struct_size != sizeof *options) ||
        (options && (options->memory_limit < 0 || options->flags & ~RIDGE_LM_Q8_0)))
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_open: a pointer is NULL, struct_size is not this library's, a flag is "
                                      "unknown, or memory_limit is negative");
    status = lm_begin(device, options, &lm);
    if (status)
        return status;
    status = open_all(lm, path);
    if (status)
        ridge_lm_close(lm);
    else
        *to = lm;
    return status;
}

void ridge_lm_close(ridge_lm *lm)
{
    if (!lm)
        return;
    lm_weights_free(lm);
    if (lm->started)
        lm->backend->stop(lm->state);
    lm_vocab_free(&lm->vocab);
    ridge_file_close(lm->file);
    ridge_close(lm->cpu);
    free(lm);
}

ridge_status ridge_lm_query(const ridge_lm *lm, ridge_lm_info *info)
{
    if (!lm || !info || info->struct_size != sizeof *info)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_query: a pointer is NULL, or struct_size is not this library's");
    info->vocabulary = lm->vocab.count;
    info->context = lm->config.context;
    info->layers = lm->config.layers;
    info->weight_bytes = lm->weight_bytes;
    info->step_bytes = lm->step_bytes;
    info->kv_bytes = lm->config.layers * 2 * lm->config.kv_heads * lm->config.head_dim * 2;
    snprintf(info->architecture, sizeof info->architecture, "%s", lm->config.family->name);
    snprintf(info->name, sizeof info->name, "%s", lm->name);
    snprintf(info->chat, sizeof info->chat, "%s", lm->vocab.chat);
    return RIDGE_OK;
}

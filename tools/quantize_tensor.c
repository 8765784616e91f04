/* quantize_tensor.c: one tensor through the quantiser, a piece of some rows at a time: read, to f32 if the quantiser
 * does not take the type as it is, quantise on the device, compare, write. A piece is small enough for the cache of a
 * CPU, so that each step finds there what the one before left, and memory does not grow with the tensor. */
#include <stdlib.h>
#include <string.h>

#include "../cpu/num.h"
#include "quantize.h"

enum { PIECE_CPU = 4 << 20, PIECE_GPU = 64 << 20, FLAT = 4096, SLICE = 1 << 19 };

/* Rows of a tensor that are converted at once. first: index of the first element. */
typedef struct piece {
    int64_t first, rows, cols;
} piece;

static bool fail(const plan_tensor *t, const char *why)
{
    fprintf(stderr, "ridge quantize: %s: %s\n", t->in->name, why);
    return false;
}

static bool grow(buffer *b, size_t bytes)
{
    if (bytes <= b->room)
        return true;
    free(b->at);
    b->room = (bytes + 255) / 256 * 256;
    b->at = aligned_alloc(256, b->room);
    b->room = b->at ? b->room : 0;
    return b->at != NULL;
}

static bool grow_device(const converter *c, buffer *b, size_t bytes)
{
    if (bytes <= b->room)
        return true;
    if (b->at)
        c->device->backend->release(c->device, b->at);
    b->room = bytes;
    if (c->device->backend->alloc(c->device, bytes, &b->at) == RIDGE_OK)
        return true;
    *b = (buffer){NULL, 0};
    return false;
}

static void release_device(const converter *c, buffer *b)
{
    if (b->at)
        c->device->backend->release(c->device, b->at);
}

void converter_free(converter *c)
{
    free(c->raw.at);
    free(c->floats.at);
    free(c->codes.at);
    free(c->scales.at);
    release_device(c, &c->device_x);
    release_device(c, &c->device_codes);
    release_device(c, &c->device_scales);
    release_device(c, &c->workspace);
    if (c->stream)
        c->device->backend->stream_free(c->device, c->stream);
}

static int64_t type_bytes(uint32_t type, int64_t elements)
{
    return elements / ridge_type_query(type)->block * ridge_type_query(type)->bytes;
}

/* --------------------------------------------------------------------------------------------------- reading, casting
 */

/* By all threads: one alone does not copy out of the page cache as fast as two quantise. */
static bool read_bytes(converter *c, const ridge_file *file, const plan_tensor *t, int64_t begin, int64_t bytes)
{
    int bad = 0;

    if (!grow(&c->raw, (size_t)bytes))
        return fail(t, "out of memory");
#pragma omp parallel for schedule(dynamic) reduction(+ : bad)
    for (int64_t at = 0; at < bytes; at += SLICE)
        bad += ridge_file_read(file, t->in, begin + at, (char *)c->raw.at + at,
                               bytes - at < SLICE ? bytes - at : SLICE) != RIDGE_OK;
    if (!bad)
        return true;
    /* the message is a thread's own: ask again in this one */
    ridge_file_read(file, t->in, begin, c->raw.at, bytes);
    return fail(t, ridge_io_error());
}

static bool to_floats(converter *c, const plan_tensor *t, int64_t elements)
{
    if (!grow(&c->floats, (size_t)elements * sizeof(float)))
        return fail(t, "out of memory");
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < elements; at += FLAT) {
        int64_t n = elements - at < FLAT ? elements - at : FLAT;

        ridge_dequantize(t->in->type, (char *)c->raw.at + type_bytes(t->in->type, at), n, (float *)c->floats.at + at);
    }
    return true;
}

static void cast_floats(const float *from, int64_t elements, uint32_t type, void *to)
{
    uint16_t *half = to;

#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < elements; at += FLAT) {
        int64_t end = elements - at < FLAT ? elements : at + FLAT;

        if (type == RIDGE_TYPE_F32)
            memcpy((float *)to + at, from + at, (size_t)(end - at) * sizeof *from);
        else if (type == RIDGE_TYPE_BF16)
            for (int64_t i = at; i < end; i++)
                half[i] = ridge_bf16_from_f32(from[i]);
        else
            for (int64_t i = at; i < end; i++)
                half[i] = ridge_f16_from_f32(from[i]);
    }
}

/* -------------------------------------------------------------------------------------------------------- quantising
 */

static ridge_dtype dtype_of(uint32_t type)
{
    return type == RIDGE_TYPE_F32 ? RIDGE_F32 : type == RIDGE_TYPE_BF16 ? RIDGE_BF16 : RIDGE_F16;
}

static ridge_call quantise_call(quantize_action action, const piece *p, ridge_dtype dtype, const void *x, void *codes,
                                float *scales)
{
    if (action == ACTION_Q8_0)
        return ridge_q8_0_quantize(p->rows, p->cols, dtype, x, codes);
    return ridge_quantize_fp8(p->rows, p->cols, dtype, x,
                              action == ACTION_FP8_ROW ? RIDGE_SCALE_ROW : RIDGE_SCALE_BLK128, RIDGE_E4M3, codes,
                              scales);
}

static ridge_status run_call(converter *c, const ridge_call *call)
{
    size_t bytes = 0;
    ridge_status status = ridge_workspace_bytes(c->device, call, &bytes);

    if (status == RIDGE_OK && !grow_device(c, &c->workspace, bytes))
        return RIDGE_ERR_DEVICE;
    return status ? status : ridge_run(c->device, call, c->workspace.at, c->workspace.room, c->stream);
}

static bool quantise(converter *c, const plan_tensor *t, const piece *p, const void *x, uint32_t type, size_t codes,
                     size_t scales)
{
    const ridge_backend *b = c->device->backend;
    const size_t bytes = (size_t)type_bytes(type, p->rows * p->cols);
    ridge_call call;
    bool good;

    if (c->device->backend_id == RIDGE_CPU) {
        call = quantise_call(t->action, p, dtype_of(type), x, c->codes.at, c->scales.at);
        return run_call(c, &call) == RIDGE_OK || fail(t, ridge_error());
    }
    good = (c->stream || b->stream_new(c->device, &c->stream) == RIDGE_OK) && grow_device(c, &c->device_x, bytes) &&
           grow_device(c, &c->device_codes, codes) && grow_device(c, &c->device_scales, scales) &&
           b->upload(c->device, c->device_x.at, x, bytes) == RIDGE_OK;
    if (good) {
        call = quantise_call(t->action, p, dtype_of(type), c->device_x.at, c->device_codes.at, c->device_scales.at);
        good = run_call(c, &call) == RIDGE_OK && b->sync(c->device, c->stream) == RIDGE_OK &&
               b->download(c->device, c->codes.at, c->device_codes.at, codes) == RIDGE_OK &&
               (!scales || b->download(c->device, c->scales.at, c->device_scales.at, scales) == RIDGE_OK);
    }
    return good || fail(t, ridge_error());
}

/* ------------------------------------------------------------------------------------------------------------ pieces
 */

static bool write_piece(const converter *c, const plan_tensor *t, const piece *p, ridge_writer *w, size_t codes,
                        size_t scales)
{
    const bool block = t->action == ACTION_FP8_BLOCK128;
    const int64_t row = p->first / p->cols, at = 4 * (block ? row / 128 * t->scale_shape[1] : row);

    return (ridge_writer_write(w, t->index, type_bytes(t->type, p->first), c->codes.at, (int64_t)codes) == RIDGE_OK &&
            (!scales || ridge_writer_write(w, t->scale_index, at, c->scales.at, (int64_t)scales) == RIDGE_OK)) ||
           fail(t, ridge_io_error());
}

static bool convert_piece(converter *c, const ridge_file *file, plan_tensor *t, const piece *p, ridge_writer *w)
{
    const int64_t elements = p->rows * p->cols, bytes = type_bytes(t->in->type, elements);
    const bool ready = t->in->type == RIDGE_TYPE_F32 ||
                       (t->action != ACTION_CAST && (t->in->type == RIDGE_TYPE_BF16 || t->in->type == RIDGE_TYPE_F16));
    const uint32_t type = ready ? t->in->type : RIDGE_TYPE_F32;
    const size_t codes = (size_t)type_bytes(t->type, elements);
    const int64_t scale_rows = t->action == ACTION_FP8_BLOCK128 ? (p->rows + 127) / 128 : p->rows;
    const size_t scales = t->scale_name ? 4 * (size_t)(scale_rows * t->scale_shape[1]) : 0;
    const void *x;

    if (!read_bytes(c, file, t, type_bytes(t->in->type, p->first), bytes) || (!ready && !to_floats(c, t, elements)))
        return false;
    if (!grow(&c->codes, codes) || !grow(&c->scales, scales))
        return fail(t, "out of memory");
    x = ready ? c->raw.at : c->floats.at;
    if (t->action == ACTION_CAST)
        cast_floats(x, elements, t->type, c->codes.at);
    else if (!quantise(c, t, p, x, type, codes, scales))
        return false;
    if (c->stats) {
        error_input in = {x,       type,         c->codes.at,
                          t->type, c->scales.at, t->action == ACTION_FP8_BLOCK128 ? t->scale_shape[1] : 0,
                          p->rows, p->cols,      p->first};

        if (!error_add(&t->error, &in))
            return fail(t, "out of memory");
    }
    c->bytes_done += (double)bytes;
    progress_bytes(&c->progress, t->in->name, c->bytes_done, c->bytes_total);
    return write_piece(c, t, p, w, codes, scales);
}

static bool keep_tensor(converter *c, const ridge_file *file, const plan_tensor *t, ridge_writer *w)
{
    for (int64_t at = 0; at < t->in->bytes && !quantize_stop; at += PIECE_CPU) {
        int64_t bytes = t->in->bytes - at < PIECE_CPU ? t->in->bytes - at : PIECE_CPU;

        if (!read_bytes(c, file, t, at, bytes))
            return false;
        if (ridge_writer_write(w, t->index, at, c->raw.at, bytes) != RIDGE_OK)
            return fail(t, ridge_io_error());
        c->bytes_done += (double)bytes;
        progress_bytes(&c->progress, t->in->name, c->bytes_done, c->bytes_total);
    }
    return !quantize_stop;
}

bool convert_tensor(converter *c, const ridge_file *file, plan_tensor *t, ridge_writer *writer)
{
    const bool flat = t->action == ACTION_CAST; /* a cast does not care for rows */
    const int64_t cols = flat ? FLAT : t->in->rank ? t->in->shape[t->in->rank - 1] : 1;
    const int64_t rows = cols ? t->in->elements / cols : 0, rest = flat ? t->in->elements % FLAT : 0;
    const int64_t most = c->device->backend_id == RIDGE_CPU ? PIECE_CPU : PIECE_GPU;
    int64_t step = cols ? most / (2 * cols) / 128 * 128 : 128;

    if (t->action == ACTION_KEEP)
        return keep_tensor(c, file, t, writer);
    step = step < 128 ? 128 : step; /* whole blocks of 128 rows */
    for (int64_t row = 0; row < rows; row += step) {
        piece p = {row * cols, rows - row < step ? rows - row : step, cols};

        if (quantize_stop || !convert_piece(c, file, t, &p, writer))
            return false;
    }
    if (rest) {
        piece p = {rows * cols, 1, rest};

        return !quantize_stop && convert_piece(c, file, t, &p, writer);
    }
    return !quantize_stop;
}

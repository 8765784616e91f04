/* convert.c: converts one tensor in chunks of some rows: read, convert to f32 if the quantiser does not take the type,
 * quantise on the device, measure the error, write. On a CPU every thread takes whole chunks, small enough for its
 * cache, and waits for the others only to write: steps that all threads share would each end in a barrier, and on a
 * busy machine a barrier costs a time slice. The chunks do not depend on the number of threads. */
#include <stdlib.h>
#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "cpu/num.h"
#include "quantize.h"

/* Elements of a chunk, about; a cast does not depend on rows and takes FLAT as their length. */
enum { CHUNK_CPU = 1 << 18, CHUNK_GPU = 32 << 20, FLAT = 4096 };

/* Rows of a tensor that are converted at once. first: index of the first element; of a kept tensor, of the first byte.
 * at: of the first scale of the output. */
typedef struct chunk {
    int64_t first, rows, cols, at;
} chunk;

volatile sig_atomic_t quantize_stop;

static bool fail(const plan_tensor *t, const char *why)
{
    line_print(stderr, "ridge quantize: %s: %s", t->in->name, why);
    return false;
}

static bool grow(buffer *b, size_t bytes)
{
    if (bytes <= b->capacity)
        return true;
    free(b->at);
    b->capacity = (bytes + 255) / 256 * 256;
    b->at = aligned_alloc(256, b->capacity);
    b->capacity = b->at ? b->capacity : 0;
    return b->at != NULL;
}

static bool grow_device(const converter *c, buffer *b, size_t bytes)
{
    if (bytes <= b->capacity)
        return true;
    if (b->at)
        c->device->backend->release(c->device, b->at);
    b->capacity = bytes;
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

bool converter_start(converter *c)
{
    c->workers = 1;
#if defined(_OPENMP)
    if (c->device->backend_id == RIDGE_CPU)
        c->workers = omp_get_max_threads();
#endif
    c->worker = calloc((size_t)c->workers, sizeof *c->worker);
    return c->worker != NULL;
}

void converter_free(converter *c)
{
    for (int i = 0; c->worker && i < c->workers; i++) {
        worker *w = &c->worker[i];

        free(w->raw.at);
        free(w->floats.at);
        free(w->codes.at);
        free(w->scales.at);
        free(w->decoded.at);
        release_device(c, &w->device_x);
        release_device(c, &w->device_codes);
        release_device(c, &w->device_scales);
        release_device(c, &w->workspace);
        if (w->stream)
            c->device->backend->stream_free(c->device, w->stream);
    }
    free(c->worker);
}

static int64_t type_bytes(uint32_t type, int64_t elements)
{
    return elements / ridge_type_query(type)->block * ridge_type_query(type)->bytes;
}

/* ------------------------------------------------------------------------------------------------- reading, casting */

static bool read_bytes(worker *w, const ridge_file *file, const plan_tensor *t, int64_t begin, int64_t bytes)
{
    const int64_t whole = (bytes + 33) / 17 * 17; /* blocks that hold `bytes`, wherever they begin */

    if (!grow(&w->raw, (size_t)(t->packed ? 2 * whole : bytes)))
        return fail(t, "out of memory");
    if (t->packed)
        return packed_read(file, t, begin, bytes, w->raw.at) == RIDGE_OK || fail(t, ridge_io_error());
    return ridge_file_read(file, t->in, begin, w->raw.at, bytes) == RIDGE_OK || fail(t, ridge_io_error());
}

static bool to_floats(worker *w, const plan_tensor *t, int64_t elements)
{
    if (!grow(&w->floats, (size_t)elements * sizeof(float)))
        return fail(t, "out of memory");
    return ridge_dequantize(t->in->type, w->raw.at, elements, w->floats.at) == RIDGE_OK || fail(t, ridge_io_error());
}

/* FP8 of 32 x 32 or blocks of GGUF, and for the error what they decode to. */
static bool to_blocks(const converter *c, worker *w, const plan_tensor *t, const chunk *p, const float *x)
{
    const int64_t elements = p->rows * p->cols;

    if (c->stats && !grow(&w->decoded, (size_t)elements * sizeof(float)))
        return fail(t, "out of memory");
    if (t->action == ACTION_FP8_BLOCK32) {
        block32_quantise(x, p->rows, p->cols, w->codes.at, w->scales.at, c->stats ? w->decoded.at : NULL);
        return true;
    }
    if (ridge_quantize(t->type, x, elements, w->codes.at) != RIDGE_OK)
        return fail(t, ridge_io_error());
    if (!c->stats)
        return true;
    return ridge_dequantize(t->type, w->codes.at, elements, w->decoded.at) == RIDGE_OK || fail(t, ridge_io_error());
}

static void cast_floats(const float *from, int64_t elements, uint32_t type, void *to)
{
    uint16_t *half = to;

    if (type == RIDGE_TYPE_F32)
        memcpy(to, from, (size_t)elements * sizeof *from);
    else if (type == RIDGE_TYPE_BF16)
        for (int64_t i = 0; i < elements; i++)
            half[i] = ridge_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < elements; i++)
            half[i] = ridge_f16_from_f32(from[i]);
}

/* ------------------------------------------------------------------------------------------------------- quantising */

static ridge_dtype dtype_of(uint32_t type)
{
    return type == RIDGE_TYPE_F32 ? RIDGE_F32 : type == RIDGE_TYPE_BF16 ? RIDGE_BF16 : RIDGE_F16;
}

/* Blocks of FP8 from MXFP4 have scales that are powers of two: codes and scales then hold its values exactly, where
 * the exponents in a block are not too far apart. */
static bool from_mxfp4(const plan_tensor *t)
{
    return t->in->type == RIDGE_TYPE_MXFP4 && fp8_block(t);
}

static ridge_call quantise_call(const plan_tensor *t, const chunk *p, ridge_dtype dtype, const void *x, void *codes,
                                float *scales)
{
    ridge_call call;

    if (t->action == ACTION_Q8_0)
        return ridge_q8_0_quantize(p->rows, p->cols, ridge_matrix(x, dtype), codes);
    call = ridge_quantize_fp8(
        p->rows, p->cols, ridge_matrix(x, dtype),
        ridge_scaled(codes, RIDGE_E4M3, scales, fp8_block(t) ? RIDGE_SCALING_BLK128 : RIDGE_SCALING_ROW));
    call.flags |= from_mxfp4(t) ? RIDGE_POW2 : 0;
    return call;
}

static ridge_status run_call(const converter *c, worker *w, const ridge_call *call)
{
    size_t bytes = 0;
    ridge_status status = ridge_workspace_bytes(c->device, call, &bytes);

    if (status == RIDGE_OK && !grow_device(c, &w->workspace, bytes))
        return RIDGE_ERR_DEVICE;
    return status ? status : ridge_run(c->device, call, w->workspace.at, w->workspace.capacity, w->stream);
}

static bool quantise(const converter *c, worker *w, const plan_tensor *t, const chunk *p, const void *x, uint32_t type,
                     size_t codes, size_t scales)
{
    const ridge_backend *b = c->device->backend;
    const size_t bytes = (size_t)type_bytes(type, p->rows * p->cols);
    ridge_call call;
    bool good;

    if (c->device->backend_id == RIDGE_CPU) {
        call = quantise_call(t, p, dtype_of(type), x, w->codes.at, w->scales.at);
        return run_call(c, w, &call) == RIDGE_OK || fail(t, ridge_error());
    }
    good = (w->stream || b->stream_new(c->device, &w->stream) == RIDGE_OK) && grow_device(c, &w->device_x, bytes) &&
           grow_device(c, &w->device_codes, codes) && grow_device(c, &w->device_scales, scales) &&
           b->upload(c->device, w->device_x.at, x, bytes) == RIDGE_OK;
    if (good) {
        call = quantise_call(t, p, dtype_of(type), w->device_x.at, w->device_codes.at, w->device_scales.at);
        good = run_call(c, w, &call) == RIDGE_OK && b->sync(c->device, w->stream) == RIDGE_OK &&
               b->download(c->device, w->codes.at, w->device_codes.at, codes) == RIDGE_OK &&
               (!scales || b->download(c->device, w->scales.at, w->device_scales.at, scales) == RIDGE_OK);
    }
    return good || fail(t, ridge_error());
}

/* ----------------------------------------------------------------------------------------------------------- chunks */

/* The bytes of a chunk's codes, and of its scales as f32. */
typedef struct extent {
    size_t codes, scales;
} extent;

static int64_t scale_cols(const plan_tensor *t)
{
    return t->scale_shape[t->in->rank - 1];
}

static extent extent_of(const plan_tensor *t, const chunk *p)
{
    const int64_t side = fp8_block(t), scale_rows = side ? (p->rows + side - 1) / side : p->rows;

    return (extent){(size_t)type_bytes(t->type, p->rows * p->cols),
                    t->scale_name ? 4 * (size_t)(scale_rows * scale_cols(t)) : 0};
}

static bool count_exact(worker *w, const plan_tensor *t, const chunk *p, const float *x, error_stats *error)
{
    if (!grow(&w->decoded, (size_t)(p->rows * p->cols) * sizeof(float)))
        return fail(t, "out of memory");
    if (t->action == ACTION_FP8_BLOCK128)
        block128_decode(w->codes.at, w->scales.at, p->rows, p->cols, w->decoded.at);
    exact_count(x, w->decoded.at, p->rows, p->cols, fp8_block(t), error);
    return true;
}

static bool convert_chunk(const converter *c, worker *w, const ridge_file *file, const plan_tensor *t,
                          const float *scale, const chunk *p, error_stats *error)
{
    const int64_t elements = p->rows * p->cols;
    const bool cast = t->action == ACTION_CAST, blocks = t->action == ACTION_BLOCKS || t->action == ACTION_FP8_BLOCK32;
    const bool ready = t->in->type == RIDGE_TYPE_F32 ||
                       (!cast && !blocks && (t->in->type == RIDGE_TYPE_BF16 || t->in->type == RIDGE_TYPE_F16));
    const uint32_t type = ready ? t->in->type : RIDGE_TYPE_F32;
    const extent out = extent_of(t, p);
    const void *x;

    if (!read_bytes(w, file, t, type_bytes(t->in->type, p->first), type_bytes(t->in->type, elements)) ||
        (!ready && !to_floats(w, t, elements)))
        return false;
    if (scale)
        scales_apply(t, scale, p->first, elements, w->floats.at);
    if (!grow(&w->codes, out.codes) || !grow(&w->scales, out.scales))
        return fail(t, "out of memory");
    x = ready ? w->raw.at : w->floats.at;
    if (cast)
        cast_floats(x, elements, t->type, w->codes.at);
    else if (!(blocks ? to_blocks(c, w, t, p, x) : quantise(c, w, t, p, x, type, out.codes, out.scales)))
        return false;
    if (c->stats) {
        error_input in = {x,
                          type,
                          blocks ? w->decoded.at : w->codes.at,
                          blocks ? RIDGE_TYPE_F32 : t->type,
                          w->scales.at,
                          t->action == ACTION_FP8_BLOCK128 ? scale_cols(t) : 0,
                          p->rows,
                          p->cols,
                          p->first};

        error_add(error, &in);
        if (from_mxfp4(t) && !count_exact(w, t, p, x, error))
            return false;
    }
    if (t->e8m0 && t->action == ACTION_FP8_BLOCK128) /* powers of two, and NaN */
        for (size_t i = 0; i < out.scales / 4; i++)
            ((uint8_t *)w->scales.at)[i] = (uint8_t)(ridge_bits(((const float *)w->scales.at)[i]) >> 23);
    return true;
}

/* Only one thread at a time may use the writer: the caller is in a critical section. */
static bool write_chunk(converter *c, const worker *w, const plan_tensor *t, const chunk *p, ridge_writer *writer)
{
    const bool keep = t->action == ACTION_KEEP;
    const extent out = keep ? (extent){(size_t)p->cols, 0} : extent_of(t, p);
    const int64_t scale = t->e8m0 ? 1 : 4;

    if (ridge_writer_write(writer, t->index, keep ? p->first : type_bytes(t->type, p->first),
                           keep ? w->raw.at : w->codes.at, (int64_t)out.codes) != RIDGE_OK ||
        (out.scales && ridge_writer_write(writer, t->scale_index, scale * p->at, w->scales.at,
                                          (int64_t)out.scales / 4 * scale) != RIDGE_OK))
        return fail(t, ridge_io_error());
    c->bytes_done += keep ? (double)p->cols : (double)type_bytes(t->in->type, p->rows * p->cols);
    progress_bytes(&c->progress, t->in->name, c->bytes_done, c->bytes_total);
    return true;
}

/* How a tensor is divided: each of its matrices into `per` steps of rows. Where neither rows nor matrices matter the
 * whole is one matrix of columns of FLAT, and the last chunk the rest after it. */
typedef struct chunks {
    int64_t rows, cols, step, per, count, rest;
} chunks;

static chunks chunks_of(const converter *c, const plan_tensor *t)
{
    const int64_t most = c->device->backend_id == RIDGE_CPU ? CHUNK_CPU : CHUNK_GPU;
    const bool keep = t->action == ACTION_KEEP, flat = keep || (t->action == ACTION_CAST && !t->scale);
    const int64_t all = keep ? t->in->bytes : t->in->elements;
    chunks k = {.cols = flat || !all ? FLAT : matrix_cols(t->in)};

    k.rows = fp8_block(t) ? matrix_rows(t->in) : all / k.cols;
    k.rest = all % k.cols;
    k.step = most / k.cols / 128 * 128; /* whole blocks of 128 rows */
    k.step = flat ? most / FLAT : k.step < 128 ? 128 : k.step;
    k.per = (k.rows + k.step - 1) / k.step;
    k.count = (k.rows ? all / k.cols / k.rows * k.per : 0) + (k.rest != 0);
    return k;
}

static chunk chunk_at(const plan_tensor *t, const chunks *k, int64_t index)
{
    const int64_t side = fp8_block(t), matrix = k->per ? index / k->per : 0,
                  row = k->per ? index % k->per * k->step : 0;
    chunk p = {(matrix * k->rows + row) * k->cols, k->rows - row < k->step ? k->rows - row : k->step, k->cols, 0};

    p.at = p.first / k->cols;
    if (side)
        p.at = (matrix * ((k->rows + side - 1) / side) + row / side) * scale_cols(t);
    if (k->rest && index == k->count - 1)
        p = (chunk){k->rows * k->cols, 1, k->rest, 0};
    if (t->action == ACTION_KEEP)
        p = (chunk){p.first, 1, p.rows * p.cols, 0};
    return p;
}

static bool read_chunk(const converter *c, worker *w, const ridge_file *file, const plan_tensor *t, const float *scale,
                       const chunk *p, error_stats *error)
{
    return t->action == ACTION_KEEP ? read_bytes(w, file, t, p->first, p->cols)
                                    : convert_chunk(c, w, file, t, scale, p, error);
}

bool convert_tensor(converter *c, const ridge_file *file, plan_tensor *t, ridge_writer *writer)
{
    const chunks k = chunks_of(c, t);
    error_stats *error = malloc((size_t)(k.count + 1) * sizeof *error);
    float *scale = t->scale ? scales_load(file, t) : NULL;
    int bad = (error == NULL && !fail(t, "out of memory")) || (t->scale && !scale);

#pragma omp parallel for schedule(dynamic, 1) num_threads(c->workers) if (k.count > 1)
    for (int64_t i = 0; i < k.count; i++) {
        int number = 0, stop;
        chunk p = chunk_at(t, &k, i);

#if defined(_OPENMP)
        number = omp_get_thread_num();
#endif
#pragma omp atomic read
        stop = bad;
        if (stop || quantize_stop)
            continue;
        error[i] = (error_stats){.worst_at = -1};
        stop = !read_chunk(c, &c->worker[number], file, t, scale, &p, &error[i]);
#pragma omp critical
        if (stop || bad || !write_chunk(c, &c->worker[number], t, &p, writer)) {
#pragma omp atomic write
            bad = 1;
        }
    }
    for (int64_t i = 0; i < k.count && !bad && !quantize_stop; i++)
        error_merge(&t->error, &error[i]);
    free(error);
    free(scale);
    return !bad && !quantize_stop;
}

/* matrix.c: a file's matrices on the device. Those in a block format that products read are kept in it, as tiles; all
 * others become planes of Q8_0. Either is made piece by piece, so that memory for one piece is all that it takes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

/* ----------------------------------------------------------------------------------------------------------- formats
 */

ridge_dtype lm_format_of(uint32_t type)
{
    switch (type) {
    case RIDGE_TYPE_Q4_0:
        return RIDGE_Q4_0;
    case RIDGE_TYPE_Q4_1:
        return RIDGE_Q4_1;
    case RIDGE_TYPE_MXFP4:
        return RIDGE_MXFP4;
    case RIDGE_TYPE_Q2_K:
        return RIDGE_Q2_K;
    case RIDGE_TYPE_Q4_K:
        return RIDGE_Q4_K;
    case RIDGE_TYPE_Q5_K:
        return RIDGE_Q5_K;
    case RIDGE_TYPE_Q6_K:
        return RIDGE_Q6_K;
    case RIDGE_TYPE_IQ2_XXS:
        return RIDGE_IQ2_XXS;
    default: /* Q8_0 has ops of its own */
        return RIDGE_I8;
    }
}

/* Gate and up are operands of one call, and of one format: where a file has two, both become Q8_0. */
ridge_dtype lm_stored_as(const ridge_lm *lm, const ridge_entry *e)
{
    const char *gate = strstr(e->name, "ffn_gate"), *up = strstr(e->name, "ffn_up");
    const ridge_entry *other = NULL;
    char name[64];

    if (lm->options.flags & RIDGE_LM_Q8_0)
        return RIDGE_I8;
    if (gate || up) {
        const int before = (int)((gate ? gate : up) - e->name);
        const char *rest = gate ? gate + strlen("ffn_gate") : up + strlen("ffn_up");

        snprintf(name, sizeof name, "%.*s%s%s", before, e->name, gate ? "ffn_up" : "ffn_gate", rest);
        other = ridge_file_find(lm->file, name);
    }
    return other && other->type != e->type ? RIDGE_I8 : lm_format_of(e->type);
}

int64_t lm_code_bytes(ridge_dtype format, int64_t rows, int64_t cols, bool packed)
{
    return format == RIDGE_I8 ? rows * (packed ? cols : ridge_ld_q8_0(cols))
                              : (rows + 15) / 16 * ridge_block_tile_bytes(format, cols);
}

int64_t lm_scale_bytes(ridge_dtype format, int64_t rows, int64_t cols)
{
    return format == RIDGE_I8 ? rows * (cols / 32) * 2 : 0;
}

ridge_tensor lm_weights(const lm_matrix *m)
{
    ridge_tensor t = lm_expert_weights(m);

    if (m->format == RIDGE_I8)
        t.stride = ridge_ld_q8_0(m->cols);
    return t;
}

ridge_tensor lm_expert_weights(const lm_matrix *m)
{
    return m->format == RIDGE_I8 ? ridge_scaled(m->codes, RIDGE_I8, m->scales, RIDGE_SCALING_ROW32)
                                 : ridge_matrix(m->codes, m->format);
}

/* ------------------------------------------------------------------------------------------------------------- tiles
 */

static int64_t row_bytes(const ridge_entry *e)
{
    return e->bytes / (e->rank == 3 ? e->shape[0] * e->shape[1] : e->shape[0]);
}

/* `rows` rows of a tensor become tiles from row `at` of the matrix on. The device moves the bits. */
static ridge_status load_tiles(lm_loader *l, const ridge_entry *e, int64_t rows, int64_t at, const lm_matrix *m)
{
    const lm_backend *backend = l->lm->backend;
    const int64_t row = row_bytes(e), most = l->raw_bytes / row / 16 * 16;
    const ridge_device *device = backend->host ? l->lm->cpu : l->lm->device;

    for (int64_t first = 0; first < rows; first += most) {
        const int64_t some = rows - first < most ? rows - first : most;
        char *const tiles = (char *)m->codes + (at + first) / 16 * ridge_block_tile_bytes(m->format, m->cols);
        ridge_call call;

        TRY(lm_io_failed(ridge_file_read(l->lm->file, e, first * row, l->raw, some * row)));
        if (l->staged)
            TRY(backend->upload(l->lm->state, l->staged, l->raw, some * row));
        call = ridge_block_repack(some, m->cols, l->staged ? l->staged : l->raw, ridge_matrix(tiles, m->format));
        TRY(lm_ridge_failed(ridge_run(device, &call, NULL, 0, backend->stream(l->lm->state, -1))));
    }
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------ planes
 */

/* `count` rows of a tensor from row `first` on become planes. */
static ridge_status convert_panel(lm_loader *l, const ridge_entry *e, int64_t first, int64_t count, int64_t cols,
                                  ridge_tensor planes)
{
    const void *blocks = l->raw;
    ridge_call call;

    TRY(lm_io_failed(ridge_file_read(l->lm->file, e, first * row_bytes(e), l->raw, count * row_bytes(e))));
    if (e->type != RIDGE_TYPE_Q8_0) {
        TRY(lm_io_failed(ridge_dequantize(e->type, l->raw, count * cols, l->values)));
        call = ridge_q8_0_quantize(count, cols, ridge_matrix(l->values, RIDGE_F32), l->blocks);
        TRY(lm_ridge_failed(ridge_run(l->lm->cpu, &call, NULL, 0, NULL)));
        blocks = l->blocks;
    }
    call = ridge_q8_0_repack(count, cols, blocks, planes);
    return lm_ridge_failed(ridge_run(l->lm->cpu, &call, NULL, 0, NULL));
}

/* `rows` rows of a tensor become planes in host memory, rows of codes `ld` apart. */
static ridge_status load_planes(lm_loader *l, const ridge_entry *e, int64_t rows, int64_t cols, int64_t ld, char *codes,
                                char *scales)
{
    const int64_t panel = LM_LOAD_PANEL / cols > 0 ? LM_LOAD_PANEL / cols : 1;

    for (int64_t r = 0; r < rows; r += panel) {
        ridge_tensor planes = ridge_scaled(codes + r * ld, RIDGE_I8, scales + r * (cols / 32) * 2, RIDGE_SCALING_ROW32);

        planes.stride = ld;
        TRY(convert_panel(l, e, r, rows - r < panel ? rows - r : panel, cols, planes));
    }
    return RIDGE_OK;
}

/* -------------------------------------------------------------------------------------------------------------- both
 */

static void count_part(lm_loader *l, const ridge_entry *e, const lm_matrix *m, int64_t rows, bool packed)
{
    const int64_t bytes = lm_code_bytes(m->format, rows, m->cols, packed) + lm_scale_bytes(m->format, rows, m->cols);

    if (m->format != RIDGE_I8) {
        l->kept[e->type]++;
        l->kept_bytes[e->type] += bytes;
        return;
    }
    l->matrices[e->type]++;
    l->file_bytes[e->type] += e->bytes;
    l->device_bytes[e->type] += bytes;
}

ridge_status lm_matrix_load(lm_loader *l, const ridge_entry *const *parts, const int64_t *rows, int count, int64_t cols,
                            bool packed, lm_matrix *m)
{
    const int64_t ld = packed ? cols : ridge_ld_q8_0(cols);
    ridge_status status = RIDGE_OK;
    char *codes, *scales, *host = NULL;
    int64_t code_bytes, scale_bytes, at = 0;

    *m = (lm_matrix){.format = lm_stored_as(l->lm, parts[0]), .cols = cols};
    for (int i = 0; i < count; i++)
        m->rows += rows[i];
    code_bytes = lm_code_bytes(m->format, m->rows, cols, packed);
    scale_bytes = lm_scale_bytes(m->format, m->rows, cols);
    TRY(lm_take(l->lm, code_bytes, &m->codes));
    if (scale_bytes)
        TRY(lm_take(l->lm, scale_bytes, &m->scales));
    l->lm->step_bytes += code_bytes + scale_bytes;
    if (scale_bytes && !l->lm->backend->host && !(host = malloc((size_t)(code_bytes + scale_bytes))))
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", code_bytes + scale_bytes);
    codes = host ? host : m->codes;
    scales = host ? host + code_bytes : m->scales;
    for (int i = 0; i < count && !status; i++) {
        status = scale_bytes
                     ? load_planes(l, parts[i], rows[i], cols, ld, codes + at * ld, scales + at * (cols / 32) * 2)
                     : load_tiles(l, parts[i], rows[i], at, m);
        at += rows[i];
        count_part(l, parts[i], m, rows[i], packed);
    }
    if (!status && host)
        status = l->lm->backend->upload(l->lm->state, m->codes, codes, code_bytes);
    if (!status && host)
        status = l->lm->backend->upload(l->lm->state, m->scales, scales, scale_bytes);
    free(host);
    return status;
}

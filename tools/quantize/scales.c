/* scales.c: the scales of FP8 tensors. Of the output: their name and shape. Of the input: a checkpoint keeps them
 * beside the codes, as X_scale_inv (DeepSeek: one for each 128 x 128 block, or 32 x 32) or X_scale (compressed-tensors:
 * one for each row, or one for all); a weight is code * scale. The shape of the scales tells which. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

bool is_fp8(uint32_t type)
{
    return type == RIDGE_TYPE_F8_E4M3 || type == RIDGE_TYPE_F8_E5M2 || type == RIDGE_TYPE_F8_E4M3FNUZ ||
           type == RIDGE_TYPE_F8_E5M2FNUZ;
}

static bool fail(const plan_tensor *t, const char *why)
{
    line_print(stderr, "ridge quantize: %s: %s", t->in->name, why);
    return false;
}

/* ----------------------------------------------------------------------------------------------------------- output */

bool scales_declare(const plan *p, plan_tensor *t)
{
    const int32_t rank = t->in->rank;
    const int64_t block = fp8_block(t);
    const bool v4 = t->packed && t->packed->type == RIDGE_TYPE_I8; /* its scales keep their name and type */

    t->scale_shape[0] = t->in->shape[0];
    t->scale_shape[rank - 2] = block ? (matrix_rows(t->in) + block - 1) / block : matrix_rows(t->in);
    t->scale_shape[rank - 1] = block ? (matrix_cols(t->in) + block - 1) / block : 1;
    t->e8m0 = block == 32 || (v4 && block);
    if ((v4 ? asprintf(&t->scale_name, "%s", t->exponents->name)
            : asprintf(&t->scale_name, "%s_scale%s", t->in->name, block ? "_inv" : "")) < 0) {
        t->scale_name = NULL;
        return fail(t, "out of memory");
    }
    if (!v4 && ridge_file_find(p->file, t->scale_name)) { /* in another shard even the writer would not notice */
        line_print(stderr, "ridge quantize: %s: its scales would be %s, and the input has a tensor of that name",
                   t->in->name, t->scale_name);
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ input */

static plan_tensor *plan_of(const plan *p, const ridge_entry *t)
{
    return &p->at[t - ridge_file_tensor(p->file, 0)];
}

const ridge_entry *tensor_beside(const plan *p, const ridge_entry *t, size_t cut, const char *end)
{
    const size_t length = strlen(t->name);
    const ridge_entry *found = NULL;
    char *name;

    if (cut <= length && asprintf(&name, "%.*s%s", (int)(length - cut), t->name, end) >= 0) {
        found = ridge_file_find(p->file, name);
        free(name);
    }
    return found;
}

static bool map_blocks(plan_tensor *t, const ridge_entry *scale, int64_t side)
{
    const int64_t rows = matrix_rows(t->in), cols = matrix_cols(t->in);
    const int64_t down = (rows + side - 1) / side, across = (cols + side - 1) / side;

    if (scale->elements * rows * cols != t->in->elements * down * across || matrix_rows(scale) != down ||
        matrix_cols(scale) != across)
        return false;
    t->map = (scale_map){down * across, across, side, side};
    return true;
}

static bool map_scales(plan_tensor *t, const ridge_entry *scale)
{
    const int64_t rows = matrix_rows(t->in), cols = matrix_cols(t->in), all = t->in->elements;
    const int64_t matrices = all ? all / (rows * cols) : 0, n = scale->elements;

    if (n == 1)
        t->map = (scale_map){0, 1, rows, cols};
    else if (n == matrices * rows && (matrix_cols(scale) == 1 || scale->rank == 1))
        t->map = (scale_map){rows, 1, 1, cols};
    else if (n == matrices && t->in->rank > 2)
        t->map = (scale_map){1, 1, rows, cols};
    else
        return map_blocks(t, scale, 128) || map_blocks(t, scale, 32);
    return true;
}

bool scales_find(const plan *p, plan_tensor *t)
{
    const bool weight = path_ends(t->in->name, "weight");
    const ridge_entry *scale = tensor_beside(p, t->in, 0, "_scale_inv"), *input;

    scale = scale ? scale : tensor_beside(p, t->in, 0, "_scale");
    scale = scale || !weight ? scale : tensor_beside(p, t->in, strlen("weight"), "scale"); /* DeepSeek-V4 */
    if (!ridge_type_query(t->in->type)->dequantize)
        return fail(t, "is of a type of FP8 that ridge cannot convert");
    if (!scale)
        return fail(t, "is FP8, and its scales are not in the file: neither ..._scale_inv nor ..._scale");
    if (!(scale->type == RIDGE_TYPE_F8_E8M0 || (ridge_type_query(scale->type)->dequantize && !is_fp8(scale->type) &&
                                                ridge_type_query(scale->type)->block == 1)))
        return fail(t, "its scales are of a type that ridge cannot apply");
    if (!map_scales(t, scale))
        return fail(t, "its scales fit neither its rows nor its blocks of 128 x 128 or 32 x 32");
    t->scale = scale;
    plan_of(p, scale)->action = ACTION_DROP;
    input = weight ? tensor_beside(p, t->in, strlen("weight"), "input_scale") : NULL;
    if (input)
        plan_of(p, input)->action = ACTION_DROP;
    return true;
}

float *scales_load(const ridge_file *file, const plan_tensor *t)
{
    const ridge_entry *s = t->scale;
    unsigned char *raw = malloc((size_t)s->bytes + 1);
    float *scale = malloc((size_t)s->elements * sizeof *scale + 1);
    bool good = raw && scale;

    if (!good)
        fail(t, "out of memory");
    else if (ridge_file_read(file, s, 0, raw, s->bytes) != RIDGE_OK)
        good = fail(t, ridge_io_error());
    else if (s->type == RIDGE_TYPE_F8_E8M0)
        for (int64_t i = 0; i < s->elements; i++)
            scale[i] = raw[i] == 255 ? NAN : ldexpf(1, raw[i] - 127);
    else if (ridge_dequantize(s->type, raw, s->elements, scale) != RIDGE_OK)
        good = fail(t, ridge_io_error());
    free(raw);
    if (good)
        return scale;
    free(scale);
    return NULL;
}

void scales_apply(const plan_tensor *t, const float *scale, int64_t first, int64_t elements, float *x)
{
    const int64_t cols = matrix_cols(t->in), rows = matrix_rows(t->in);
    const scale_map *map = &t->map;

    for (int64_t row = first / cols, end = (first + elements) / cols; row < end; row++, x += cols) {
        const float *of = scale + row / rows * map->per_matrix + row % rows / map->block_rows * map->cols;

        for (int64_t at = 0; at < cols; at += map->block_cols)
            for (int64_t i = at; i < cols && i < at + map->block_cols; i++)
                x[i] *= of[at / map->block_cols];
    }
}

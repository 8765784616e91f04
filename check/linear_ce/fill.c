/* fill.c: inputs of the cross entropy ops, by operand name: logits of a few units, targets in range with some
 * ignored, NaN in what belongs to ignored rows, and the variants that the cases ask for. */
#include <math.h>
#include <string.h>

#include "linear_ce.h"

typedef struct filler {
    const test_case *c;
    const ridge_call *call;
    int64_t tokens, vocab, total, shards;
    uint64_t seed;
} filler;

static double normal(uint64_t *state)
{
    double sum = 0;

    for (int i = 0; i < 6; i++)
        sum += (double)(random_next(state) >> 40) * 0x1p-24;
    return (sum - 3) * 1.41421356;
}

/* The first class of shard i of a combine: uneven slices that arrive rotated by one. */
static int64_t shard_begin(const filler *f, int64_t i)
{
    const int64_t k = (i + 1) % f->shards;

    return k == 0 ? 0 : f->total * k / f->shards + (k % 2 && f->total > 4 * f->shards ? f->total / f->shards / 3 : 0);
}

static int64_t shard_end(const filler *f, int64_t i)
{
    const int64_t begin = shard_begin(f, i);
    int64_t end = f->total;

    for (int64_t other = 0; other < f->shards; other++)
        if (shard_begin(f, other) > begin && shard_begin(f, other) < end)
            end = shard_begin(f, other);
    return end;
}

/* The token whose numbers token i has. */
static int64_t token_of(const filler *f, int64_t i)
{
    return f->c->fill == FILL_PERIOD ? i % IMAGE_PERIOD : i;
}

static int64_t target_of(const filler *f, int64_t token)
{
    const int64_t i = token_of(f, token);
    uint64_t state = f->seed + (uint64_t)i * 77;
    const bool same = f->c->variant & CE_PEAK || (f->c->variant & CE_FREQUENT && i % 3);
    const int64_t valid = same ? 3 % f->total : (int64_t)(random_next(&state) % (uint64_t)f->total);
    const int64_t ignored = f->call->opt.ce.ignore_index;

    switch (f->c->variant & CE_TARGETS) {
    case CE_VALID:
        return valid == ignored ? (valid + 1) % f->total : valid;
    case CE_NO_ROW:
        return ignored;
    case CE_HALF:
        return i % 2 ? ignored : valid;
    case CE_WRONG:
        return i % 7 == 2 ? f->total + 3 : i % 7 == 5 ? -5 : i % 5 == 3 ? ignored : valid;
    default:
        return i % 5 == 3 ? ignored : valid;
    }
}

/* Id k of a token: the target, any class, the one before again, none, and where targets may be wrong a wrong one. */
static int64_t id_of(const filler *f, int64_t token, int64_t k)
{
    const int64_t i = token_of(f, token), ignored = f->call->opt.ce.ignore_index;
    uint64_t state = f->seed + (uint64_t)(i * 300 + (k % 5 == 4 ? k - 1 : k)) * UINT64_C(0x9e3779b97f4a7c15);
    int64_t id;

    if (k == i % 3)
        return target_of(f, token);
    if (k % 7 == 6)
        return (f->c->variant & CE_TARGETS) == CE_WRONG ? f->total + k : ignored;
    random_next(&state);
    id = (int64_t)(random_next(&state) % (uint64_t)f->total);
    return id == ignored ? (id + 1) % f->total : id;
}

static bool is_ignored(const filler *f, int64_t i)
{
    return target_of(f, i) == f->call->opt.ce.ignore_index;
}

/* The class whose numbers class c has. */
static int64_t twin_of(const filler *f, int64_t c)
{
    return f->c->variant & CE_SPECIAL && f->vocab > 1 ? c % (f->vocab / 2) : c;
}

static bool is_sampled(const filler *f, int64_t c)
{
    const int64_t step = f->vocab / 256;

    return f->c->variant & CE_SAMPLED && step > 0 && c % step == 0 && c / step < 256;
}

static double offset_of(const filler *f)
{
    return f->c->variant & CE_UP ? 1e4 : f->c->variant & CE_DOWN ? -1e4 : 0;
}

static double bias_of(const filler *f, int64_t c, uint64_t *state)
{
    if (f->c->variant & CE_PEAK) /* p = 0.999 or so at class 3 */
        return c == 3 % f->total ? log(999.0 * (double)f->total) + 1 : 0;
    if ((f->c->variant & CE_MINUS) && f->total > 8 && c == f->total - 2)
        return -INFINITY;
    return offset_of(f) + normal(state);
}

/* Numbers of a vector of f32, bf16 or f16, one a token or class. */
static double vector_value(const filler *f, const char *name, int64_t i, uint64_t *state)
{
    if (strcmp(name, "bias") == 0)
        return bias_of(f, i, state);
    if (strcmp(name, "class_weight") == 0)
        return f->c->variant & CE_NO_WEIGHT || i % 7 == 6
                   ? 0
                   : (f->c->variant & CE_NEGATIVE ? -1 : 1) * (0.25 + (double)(random_next(state) >> 41) * 0x1p-22);
    if (strcmp(name, "entropy") == 0)
        return 0.7 * log((double)f->total) + 0.2 * normal(state);
    if (strcmp(name, "lse") == 0) /* p sums to about 1; that of a class with a bias of its own is not far above 1 */
        return (f->c->variant & CE_PEAK ? bias_of(f, 3 % f->total, state) + 3 : log((double)f->total) + 1.2) +
               0.3 * normal(state) + offset_of(f);
    return strcmp(name, "grad_scale") == 0 && !(f->call->flags & RIDGE_CE_NONE) ? 0.75 : normal(state);
}

static void fill_record(const filler *f, float *r, int64_t row, int64_t width, uint64_t *state)
{
    const int64_t shard = row / f->tokens, begin = shard_begin(f, shard), end = shard_end(f, shard);
    const int64_t y = target_of(f, row % f->tokens);
    const double classes = (double)(end - begin), max = 3 + 0.5 * normal(state) + offset_of(f);

    r[0] = (float)max;
    r[1] = (float)(1 + 0.1 * classes * (1 + 0.1 * normal(state)));
    r[2] = y >= begin && y < end ? (float)(max - 2) : -INFINITY;
    if (width == 6) {
        r[3] = (float)(classes * (offset_of(f) + 0.2 * normal(state)));
        r[4] = (float)(classes * (offset_of(f) + 0.2 * normal(state)));
        r[5] = (float)((double)r[1] * (max - 1));
    }
}

/* A NaN in every eighth row of x or of the logits; of given logits also +inf, -inf beside the target and at it, and
 * nothing but -inf. */
static void fill_special(const filler *f, bool logits, uint32_t dtype, unsigned char *row, int64_t r, int64_t cols)
{
    const int64_t size = (int64_t)ridge_dtype_size(dtype), y = target_of(f, r) - f->call->opt.ce.vocab_offset;
    const int64_t label = y >= 0 && y < cols ? y : 0;

    if (r % 8 == 4)
        dtype_store(row + cols / 3 * size, dtype, NAN);
    if (logits && r % 8 == 1)
        dtype_store(row + cols / 3 * size, dtype, INFINITY);
    if (logits && r % 8 == 2)
        dtype_store(row + (label + 1) % cols * size, dtype, -INFINITY);
    if (logits && r % 8 == 5)
        dtype_store(row + label * size, dtype, -INFINITY);
    for (int64_t j = 0; logits && r % 8 == 7 && j < cols; j++)
        dtype_store(row + j * size, dtype, -INFINITY);
}

static void fill_matrix(const filler *f, const char *name, uint32_t dtype, unsigned char *base, int64_t rows,
                        int64_t cols, int64_t pitch)
{
    const bool w = strcmp(name, "w") == 0, logits = strcmp(name, "logits") == 0, record = strcmp(name, "record") == 0;
    const bool hv = w && (f->call->flags & RIDGE_CE_W_HV), of_tokens = logits || strcmp(name, "x") == 0;
    const int64_t hidden = f->call->dim[1];
    const double scale = w ? 1.5 / sqrt((double)(hidden > 0 ? hidden : 1)) : logits ? 1.5 : 1;
    const int64_t size = (int64_t)ridge_dtype_size(dtype);
    const int64_t distinct = of_tokens && f->c->fill == FILL_PERIOD && rows > IMAGE_PERIOD ? IMAGE_PERIOD : rows;

#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < distinct; r++) {
        const uint64_t seed = (uint64_t)(w && !hv ? twin_of(f, r) : r) * UINT64_C(0xd1342543de82ef95);
        const double size_of_row = w && !hv && is_sampled(f, r) ? 4 * scale : scale;
        uint64_t state = f->seed + seed + (uint64_t)(unsigned char)name[0] * 131;
        unsigned char *row = base + r * pitch;

        if (record)
            fill_record(f, (float *)(void *)row, r, cols, &state);
        for (int64_t j = 0; j < cols && !record; j++) {
            const int64_t twin = logits || hv ? twin_of(f, j) : j;
            const double value = size_of_row * normal(&state) + (logits ? offset_of(f) : 0);

            if (twin < j)
                memcpy(row + j * size, row + twin * size, (size_t)size);
            else
                dtype_store(row + j * size, dtype, of_tokens && is_ignored(f, r) ? NAN : (float)value);
        }
        if (of_tokens && f->c->variant & CE_SPECIAL && r % 64 == 4 && cols > 0)
            dtype_store(row + cols / 3 * size, dtype, NAN);
        if (of_tokens && f->c->fill == FILL_SPECIAL && cols > 0)
            fill_special(f, logits, dtype, row, r, cols);
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = distinct; r < rows; r++)
        memcpy(base + r * pitch, base + token_of(f, r) * pitch, (size_t)(cols * size));
}

static void fill_whole(const filler *f, const char *name, uint32_t dtype, unsigned char *base, int64_t cols)
{
    const bool draws = strcmp(name, "seed") == 0 || strcmp(name, "counter") == 0;

    for (int64_t i = 0; i < cols; i++) {
        uint64_t state = f->seed + (uint64_t)token_of(f, i) * 31 + (uint64_t)(unsigned char)name[0] * 977;

        if (draws) { /* any 64 bits, and small ones */
            random_next(&state);
            ((uint64_t *)(void *)base)[i] = token_of(f, i) % 3 ? random_next(&state) : (uint64_t)token_of(f, i);
            continue;
        }
        const int64_t shard = i / (f->tokens ? f->tokens : 1);
        const int64_t value = strcmp(name, "target") == 0   ? target_of(f, i)
                              : strcmp(name, "offset") == 0 ? shard_begin(f, i)
                                                            : shard_begin(f, shard) + i % 2;

        if (dtype == RIDGE_I32)
            ((int32_t *)(void *)base)[i] = (int32_t)value;
        else
            ((int64_t *)(void *)base)[i] = value;
    }
}

/* ids, id_logprob or did_logprob: a row a token. */
static void fill_ids(const filler *f, const char *name, uint32_t dtype, unsigned char *base, int64_t cols,
                     int64_t pitch)
{
    for (int64_t b = 0; b < f->tokens; b++)
        for (int64_t k = 0; k < cols; k++) {
            uint64_t state =
                f->seed + (uint64_t)(token_of(f, b) * 300 + k) * 31 + (uint64_t)(unsigned char)name[0] * 977;
            unsigned char *to = base + b * pitch + k * (int64_t)ridge_dtype_size(dtype);

            random_next(&state);
            if (dtype == RIDGE_I32)
                *(int32_t *)(void *)to = (int32_t)id_of(f, b, k);
            else if (dtype == RIDGE_I64)
                *(int64_t *)(void *)to = id_of(f, b, k);
            else
                *(float *)(void *)to = (float)(name[0] == 'd' ? normal(&state) : -6 * fabs(normal(&state)));
        }
}

bool fill_ce(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const ridge_operand *x = &im->call.arg[arg];
    const char *name = op->arg[arg].name;
    unsigned char *base = im->host + im->offset[arg];
    filler f = {.c = c, .call = &im->call, .tokens = im->call.dim[0], .seed = seed};
    int64_t rows, cols, stride;

    f.vocab = im->call.dim[op->dims == 2 || op->id == RIDGE_CE_COMBINE ? 1 : 2];
    f.total = im->call.opt.ce.vocab_total ? im->call.opt.ce.vocab_total : f.vocab;
    f.shards = op->id == RIDGE_CE_COMBINE ? im->call.dim[2] : 1;
    op->extent(&im->call, arg, &rows, &cols);
    stride = x->stride ? x->stride : cols;
    if (strcmp(name, "ids") == 0 || strstr(name, "id_logprob"))
        fill_ids(&f, name, x->dtype, base, cols, stride * (int64_t)ridge_dtype_size(x->dtype));
    else if (x->dtype == RIDGE_I32 || x->dtype == RIDGE_I64)
        for (int64_t r = 0; r < rows; r++)
            fill_whole(&f, name, x->dtype, base + r * stride * (int64_t)ridge_dtype_size(x->dtype), cols);
    else if (op->arg[arg].kind == RIDGE_MATRIX)
        fill_matrix(&f, name, x->dtype, base, rows, cols, stride * (int64_t)ridge_dtype_size(x->dtype));
    else
        for (int64_t i = 0; i < cols; i++) {
            const bool of_tokens = strcmp(name, "lse") == 0 || strcmp(name, "dloss") == 0 ||
                                   strcmp(name, "entropy") == 0 || strcmp(name, "dentropy") == 0 ||
                                   strcmp(name, "grad_scale") == 0;
            const int64_t same = strcmp(name, "bias") == 0 ? twin_of(&f, i) : of_tokens ? token_of(&f, i) : i;
            uint64_t state =
                seed + (uint64_t)same * 31 + (uint64_t)(unsigned char)name[1] * UINT64_C(0x9e3779b97f4a7c15);

            random_next(&state);
            dtype_store(base + i * (int64_t)ridge_dtype_size(x->dtype), x->dtype,
                        (float)vector_value(&f, name, i, &state));
        }
    return true;
}

/* image.c: images. An image holds all operands of one call with guard bands round each: building, filling, running
 * the C reference on it, comparing. Leaves out: which cases there are (cases.c), the float64 bounds (oracle.c),
 * verdicts (row.c). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "oracle.h"

enum { GUARD = 512 };

/* splitmix64 */
uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

float random_normal(uint64_t *state)
{
    uint64_t z = random_next(state);
    float sum = (float)(z & 0xffff) + (float)(z >> 16 & 0xffff) + (float)(z >> 32 & 0xffff) + (float)(z >> 48);

    return (sum * 0x1p-16f - 2.0f) * 1.7320508f;
}

void dtype_store(void *memory, uint32_t dtype, float value)
{
    uint16_t half = dtype == RIDGE_BF16 ? ridge_bf16_from_f32(value) : ridge_f16_from_f32(value);

    if (dtype == RIDGE_F32)
        memcpy(memory, &value, 4);
    else
        memcpy(memory, &half, 2);
}

double dtype_load(const void *memory, uint32_t dtype)
{
    const unsigned char byte = *(const unsigned char *)memory;
    uint16_t half;
    int32_t whole;
    int64_t wide;
    double real;
    float value;

    switch (dtype) {
    case RIDGE_F64:
        memcpy(&real, memory, 8);
        return real;
    case RIDGE_I64:
        memcpy(&wide, memory, 8);
        return (double)wide;
    case RIDGE_F32:
        memcpy(&value, memory, 4);
        return (double)value;
    case RIDGE_BF16:
    case RIDGE_F16:
        memcpy(&half, memory, 2);
        return (double)(dtype == RIDGE_BF16 ? ridge_f32_from_bf16(half) : ridge_f32_from_f16(half));
    case RIDGE_E4M3:
    case RIDGE_E5M2:
        return (double)ridge_f32_from_fp8(byte, dtype == RIDGE_E5M2);
    case RIDGE_I8:
        return (double)(int8_t)byte;
    case RIDGE_I32:
        memcpy(&whole, memory, 4);
        return (double)whole;
    default:
        return (double)byte;
    }
}

double dtype_ulp(double value, uint32_t dtype)
{
    int bits = dtype == RIDGE_F32 ? 24 : dtype == RIDGE_F16 ? 11 : 8, least = dtype == RIDGE_F16 ? -14 : -126, exponent;

    frexp(value, &exponent);
    exponent--;
    if (!(fabs(value) > 0) || exponent < least)
        exponent = least;
    return ldexp(1.0, exponent - bits + 1);
}

double dtype_unit(uint32_t dtype)
{
    return 0.5 * dtype_ulp(1, dtype);
}

/* ------------------------------------------------------------------------------------------------------------ fill */

static float edge_value(uint64_t *state)
{
    static const float special[] = {0.0f,     -0.0f,  1.0f,     -1.0f,     0x1p-126f, -0x1p-126f, 0x1p-133f, -0x1p-140f,
                                    0x1p-24f, 88.0f,  -88.0f,   -104.0f,   104.0f,    -103.5f,    30.0f,     -17.25f,
                                    3e38f,    -3e38f, 65504.0f, -65504.0f, 1e5f,      -1.278f,    15.0f,     -14.5f};
    uint64_t z = random_next(state);
    unsigned kind = (unsigned)(z & 31);

    if (kind < 2)
        return kind ? INFINITY : -INFINITY;
    if (kind == 2)
        return ridge_float(0x7f800001u | (uint32_t)(z >> 40));
    if (kind < 16)
        return special[(z >> 8) % (sizeof special / sizeof special[0])];
    return random_normal(state) * ridge_float((uint32_t)(127 + (int)(z >> 8 & 15) - 8) << 23);
}

/* 128 columns of a kind of their own: zeros, a power of two as amax, subnormal, huge, now and then a NaN or infinity.
 */
static float group_value(uint64_t *state, int64_t j, unsigned *kind, float *scale)
{
    uint64_t z = random_next(state);

    if (j % 128 == 0) {
        *kind = (unsigned)(z & 15);
        *scale = ridge_float(((uint32_t)(z >> 8) % 250u + 1u) << 23);
    }
    if (*kind == 0 || (z >> 32 & 7) == 0)
        return z & 64 ? 0.0f : -0.0f;
    if (*kind == 1) /* ties of the encoding, and an amax that is a power of two */
        return j % 128 == 5 ? *scale : *scale * 0x1p-8f * (float)((int)(z >> 40 & 255) - 128);
    if (*kind == 2)
        return ridge_float((uint32_t)(z >> 41)); /* subnormal */
    if (*kind == 3 && (z >> 48) % 128 == 0)
        return z & 64 ? INFINITY : ridge_float(0xff800001u);
    return random_normal(state) * *scale;
}

/* An fp8 code: N(0,1), now and then an edge of the format; NaN and infinity only in every eighth row, or every result
 * would be one. */
static unsigned char fp8_value(const test_case *c, uint64_t *state, int e5m2, int64_t row)
{
    static const unsigned char edge[] = {0x00, 0x80, 0x01, 0x81, 0x03, 0x04, 0x07, 0x08, 0x7b, 0xfb};
    static const unsigned char special[] = {0x7c, 0xfc, 0x7e, 0x7f, 0xff};
    uint64_t z;

    if (c->fill == FILL_EXACT && row % 31 == 6)
        return 0; /* rows of A and of B, columns of D: nothing but zeros */
    if (c->fill == FILL_EXACT)
        return ridge_fp8_from_f32((float)(random_next(state) % 5) - 2.0f, e5m2);
    if (c->fill != FILL_EDGE || ((z = random_next(state)) & 7))
        return ridge_fp8_from_f32(random_normal(state), e5m2);
    if ((z & 0x3f8) == 0 && row % 8 == 5)
        return special[(z >> 16) % sizeof special];
    return edge[(z >> 16) % sizeof edge];
}

static void fill_row(const test_case *c, uint32_t dtype, unsigned char *row, int64_t cols, int64_t index, uint64_t seed,
                     bool first)
{
    uint64_t state =
        seed ^ (uint64_t)(c->fill == FILL_PERIOD ? index % IMAGE_PERIOD : index) * UINT64_C(0xd1342543de82ef95);
    size_t size = ridge_dtype_size(dtype);
    float scale = 1.0f;
    unsigned kind = 0;

    random_next(&state);
    if (c->fill == FILL_NORMAL)
        scale = ridge_float((uint32_t)(127 + (int)(random_next(&state) % 13) - 6) << 23);
    for (int64_t j = 0; j < cols; j++, row += size) {
        if (dtype == RIDGE_E4M3 || dtype == RIDGE_E5M2) {
            *row = fp8_value(c, &state, dtype == RIDGE_E5M2, index);
        } else if (c->fill == FILL_EXACT) {
            dtype_store(row, dtype, (float)((int)(random_next(&state) >> 60) - 8));
        } else if (size == 1) {
            *row = (unsigned char)(random_next(&state) >> 24);
        } else if (c->fill == FILL_EVERY && first && size == 2) {
            uint16_t pattern = (uint16_t)(index * cols + j);
            memcpy(row, &pattern, 2);
        } else if (c->fill == FILL_EDGE || (c->fill == FILL_EVERY && !first)) {
            dtype_store(row, dtype, edge_value(&state));
        } else if (c->fill == FILL_GROUPS) {
            dtype_store(row, dtype, group_value(&state, j, &kind, &scale));
        } else {
            dtype_store(row, dtype, random_normal(&state) * scale);
        }
    }
}

/* Scales that a caller gives: positive, over many binades, the last one wrong when there are several. A benchmark's
 * are those of an amax of 4 to 8. */
static void fill_scales(const test_case *c, unsigned char *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++, to += 4) {
        uint64_t z = random_next(&seed);
        float value = ridge_float((uint32_t)(z % (40u << 23)) + (107u << 23));

        if (c->fill == FILL_UNIT)
            value = (4.0f + (float)(z >> 40) * 0x1p-22f) / 448.0f;
        else if (i > 2 && i == count - 1)
            value = -value;
        memcpy(to, &value, 4);
    }
}

/* Scales of fp8 operands: 2^-6 .. 2^6, not powers of two; exact ones 1/2, 1, 2; among edges zeros and NaN. */
static void fill_scale_row(const test_case *c, unsigned char *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++, to += 4) {
        uint64_t z = random_next(&seed);
        float value = ridge_float((uint32_t)(z >> 41) + ((uint32_t)(121 + (int)(z & 0xffff) % 12) << 23));

        if (c->fill == FILL_EXACT)
            value = ridge_float((uint32_t)(126 + (int)(z & 0xffff) % 3) << 23);
        if (c->fill == FILL_EDGE && (z >> 16 & 63) == 0)
            value = z >> 22 & 1 ? 0.0f : ridge_float(0x7fc00000u);
        memcpy(to, &value, 4);
    }
}

static void fill_operand(const test_case *c, const image *im, int arg, uint64_t seed, bool first)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const ridge_operand *operand = &im->call.arg[arg];
    unsigned char *base = im->host + im->offset[arg];
    int64_t rows, cols, pitch;

    if (fill_ce(c, im, arg, seed) || fill_multiply(c, im, arg))
        return;
    op->extent(&im->call, arg, &rows, &cols);
    pitch = (operand->stride ? operand->stride : cols) * (int64_t)ridge_dtype_size(operand->dtype);
    rows = im->periodic && rows > IMAGE_PERIOD ? IMAGE_PERIOD : rows;
    if (strcmp(op->arg[arg].name, "given") == 0) {
        fill_scales(c, base, cols, seed);
        return;
    }
    if (strncmp(op->arg[arg].name, "scale_", 6) == 0) {
        for (int64_t r = 0; r < rows; r++)
            fill_scale_row(c, base + r * pitch, cols, seed + (uint64_t)(arg * 1000003 + r) * 77);
        return;
    }
    if (fill_decode(c, im, arg, seed))
        return;
#pragma omp parallel for schedule(static) if (rows * cols > 100000)
    for (int64_t r = 0; r < rows; r++) {
        if (c->fill != FILL_PERIOD || r < IMAGE_PERIOD)
            fill_row(c, operand->dtype, base + r * pitch, cols, r, seed + (uint64_t)arg, first);
    }
#pragma omp parallel for schedule(static) if (rows * cols > 100000)
    for (int64_t r = IMAGE_PERIOD; r < rows; r++)
        if (c->fill == FILL_PERIOD)
            memcpy(base + r * pitch, base + r % IMAGE_PERIOD * pitch, (size_t)cols * ridge_dtype_size(operand->dtype));
}

/* ---------------------------------------------------------------------------------------------------------- layout */

static int slot_of(const ridge_op_row *op, const char *name)
{
    for (int arg = 0; arg < op->args; arg++)
        if (strcmp(op->arg[arg].name, name) == 0)
            return arg;
    return -1;
}

/* The operand whose first half a fused layout shares with `arg`: up with gate, dup with dgate. -1 = none. */
static int fused_with(const ridge_op_row *op, int arg)
{
    if (strcmp(op->arg[arg].name, "up") == 0)
        return slot_of(op, "gate");
    return strcmp(op->arg[arg].name, "dup") == 0 ? slot_of(op, "dgate") : -1;
}

/* The input that output `arg` lies on in an aliased case: dgate on gate, dup on up, else the first it may be. */
static int alias_of(const image *im, const ridge_op_row *op, int arg)
{
    int named = op->arg[arg].name[0] == 'd' ? slot_of(op, op->arg[arg].name + 1) : -1;
    int64_t rows, cols, other_rows, other_cols;

    op->extent(&im->call, arg, &rows, &cols);
    for (int i = -1; i < op->args; i++) {
        int other = i < 0 ? named : i;

        if (other < 0 || !(op->arg[arg].alias >> other & 1u) || !im->length[other])
            continue;
        op->extent(&im->call, other, &other_rows, &other_cols);
        if (rows == other_rows && cols == other_cols)
            return other;
    }
    return -1;
}

/* The row stride of an operand; 0: packed. */
static int64_t stride_of(const test_case *c, const ridge_op_row *op, int arg, int64_t rows, int64_t cols, bool fused)
{
    const bool padded =
        c->pad && (c->pad_of == PAD_ALL || (c->pad_of == PAD_OUTPUTS && op->arg[arg].role & RIDGE_OUT) ||
                   (c->pad_of == PAD_SINGLE_ROWS && rows == 1));

    if (op->arg[arg].kind == RIDGE_VECTOR || (!padded && !fused))
        return 0;
    return (c->fused ? 2 * cols : cols) + (padded ? c->pad : 0);
}

static void place_operands(const test_case *c, image *im)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    size_t at = GUARD;

    for (int arg = 0; arg < op->args; arg++) {
        ridge_operand *operand = &im->call.arg[arg];
        size_t size = ridge_dtype_size(operand->dtype);
        int64_t rows, cols;
        int other = c->fused ? fused_with(op, arg) : -1, base;

        if (operand->dtype == RIDGE_NONE)
            continue;
        op->extent(&im->call, arg, &rows, &cols);
        operand->stride = stride_of(c, op, arg, rows, cols, c->fused && (other >= 0 || slot_of(op, "up") >= 0));
        im->length[arg] = (size_t)ridge_operand_bytes(&im->call, arg);
        base = c->alias && (op->arg[arg].role & RIDGE_OUT) ? alias_of(im, op, arg) : -1;
        if (base >= 0) {
            im->offset[arg] = im->offset[base];
            continue;
        }
        if (other >= 0 && im->length[other] && im->length[arg]) {
            im->offset[arg] = im->offset[other] + (size_t)cols * size; /* inside the space left for it */
            continue;
        }
        im->offset[arg] = at + (size_t)c->shift * size;
        at += (size_t)c->shift * size + im->length[arg] + (c->fused ? (size_t)cols * size : 0) + GUARD;
        at = (at + 255) / 256 * 256;
    }
    im->bytes = at + GUARD;
}

void image_place(const test_case *c, image *im)
{
    memset(im, 0, sizeof *im);
    im->call = c->call;
    im->fill = c->fill;
    place_operands(c, im);
}

bool image_build(const test_case *c, uint64_t seed, image *im)
{
    const ridge_op_row *op = ridge_op_at(c->call.op);
    bool first = true;

    image_place(c, im);
    im->host = aligned_alloc(256, (im->bytes + 255) / 256 * 256);
    im->memo = calloc(1, sizeof *im->memo);
    if (!im->host || !im->memo)
        return false;
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < im->bytes; block += 65536) /* guards and padding: NaN in every float dtype */
        memset(im->host + block, 0xff, im->bytes - block < 65536 ? im->bytes - block : 65536);
    for (int arg = 0; arg < op->args; arg++) /* other than input padding, so that copying that one into it shows */
        if (im->length[arg] && ridge_operand_role(&im->call, arg) == RIDGE_OUT)
            memset(im->host + im->offset[arg], 0xfe, im->length[arg]);
    for (int arg = 0; arg < op->args; arg++) {
        if (!im->length[arg] || !(ridge_operand_role(&im->call, arg) & RIDGE_IN))
            continue;
        fill_operand(c, im, arg, seed, first);
        first = false;
    }
    return true;
}

bool image_build_to_time(const test_case *c, uint64_t seed, image *im)
{
    const ridge_op_row *op = ridge_op_at(c->call.op);

    image_place(c, im);
    if ((c->call.op != RIDGE_GEMM_FP8 && c->call.op != RIDGE_QUANTIZE_FP8_DUAL) || im->bytes < (size_t)16 << 20)
        return image_build(c, seed, im);
    im->periodic = true;
    im->host = calloc(1, im->bytes); /* the pages that nothing is written to cost nothing */
    im->memo = calloc(1, sizeof *im->memo);
    if (!im->host || !im->memo)
        return false;
    for (int arg = 0; arg < op->args; arg++)
        if (im->length[arg] && (ridge_operand_role(&im->call, arg) & RIDGE_IN))
            fill_operand(c, im, arg, seed, arg == 0);
    return true;
}

bool image_upload(const image *im, const ridge_device *device, unsigned char *memory, void *stream)
{
    const ridge_backend *b = device->backend;
    const ridge_op_row *op = ridge_op_at(im->call.op);
    bool good = true;

    if (!im->periodic)
        return b->upload(device, memory, im->host, im->bytes) == RIDGE_OK;
    for (int arg = 0; arg < op->args && good; arg++) {
        const ridge_operand *operand = &im->call.arg[arg];
        size_t done, bytes = im->length[arg];
        int64_t rows, cols;

        if (!bytes || !(ridge_operand_role(&im->call, arg) & RIDGE_IN))
            continue;
        op->extent(&im->call, arg, &rows, &cols);
        done = IMAGE_PERIOD * (size_t)(operand->stride ? operand->stride : cols) * ridge_dtype_size(operand->dtype);
        done = done < bytes ? done : bytes;
        good = b->upload(device, memory + im->offset[arg], im->host + im->offset[arg], done) == RIDGE_OK;
        for (; done < bytes && good; done *= 2)
            good = b->copy(device, memory + im->offset[arg] + done, memory + im->offset[arg],
                           done < bytes - done ? done : bytes - done, stream) == RIDGE_OK;
    }
    return good;
}

enum { CHUNK = 1 << 22 };

/* memcpy and memcmp by all cores. */
static void copy_all(unsigned char *to, const unsigned char *from, size_t bytes)
{
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += CHUNK)
        memcpy(to + at, from + at, bytes - at < CHUNK ? bytes - at : CHUNK);
}

static bool same(const unsigned char *a, const unsigned char *b, size_t bytes)
{
    int differ = 0;

#pragma omp parallel for schedule(static) reduction(+ : differ)
    for (size_t at = 0; at < bytes; at += CHUNK)
        differ += memcmp(a + at, b + at, bytes - at < CHUNK ? bytes - at : CHUNK) != 0;
    return differ == 0;
}

void image_free(image *im)
{
    if (im->memo) {
        free(im->memo->reference);
        free(im->memo->bound);
        for (int i = 0; i < 4; i++)
            free(im->memo->bits[i]);
    }
    free(im->memo);
    free(im->host);
    im->memo = NULL;
    im->host = NULL;
}

ridge_call image_call(const image *im, void *base)
{
    ridge_call call = im->call;

    for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++)
        if (call.arg[arg].dtype != RIDGE_NONE)
            call.arg[arg].data =
                (void *)((uintptr_t)base + im->offset[arg]); /* sizes that overflow are refused later */
    return call;
}

/* ------------------------------------------------------------------------------------------------------ comparison */

static bool some_row_is_exact(uint32_t op)
{
    for (int i = 0; ridge_kernel_at(i); i++)
        if (ridge_kernel_at(i)->op == op && (ridge_kernel_at(i)->contract & RIDGE_EXACT))
            return true;
    return false;
}

ridge_status image_reference(const image *im, unsigned char *expected)
{
    ridge_device *cpu;
    ridge_call call = image_call(im, expected);
    ridge_status status = ridge_open("cpu:c", &cpu);
    size_t bytes = 0;
    void *workspace = NULL;

    if (status)
        return status;
    copy_all(expected, im->host, im->bytes);
    if (im->fill == FILL_PERIOD && !some_row_is_exact(im->call.op)) {
        ridge_close(cpu);
        return RIDGE_OK;
    }
    call.kernel = NULL;
    status = ridge_workspace_bytes(cpu, &call, &bytes);
    if (!status && bytes)
        workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!status)
        status = ridge_run(cpu, &call, workspace, workspace ? bytes : 0, NULL);
    free(workspace);
    ridge_close(cpu);
    return status;
}

/* Names the place of byte `at`: "out[3,17]", "the guard after up". */
static void place_name(const image *im, size_t at, char *text, size_t size, int *arg_out, size_t *element)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    int before = -1;

    *arg_out = -1;
    for (int pass = 0; pass < 2; pass++) /* outputs first: an aliased byte belongs to the output */
        for (int arg = 0; arg < op->args; arg++) {
            size_t bytes = ridge_dtype_size(im->call.arg[arg].dtype);
            int64_t rows, cols, pitch;

            if (!im->length[arg] || (pass == 0) != !!(op->arg[arg].role & RIDGE_OUT))
                continue;
            if (im->offset[arg] <= at && (before < 0 || im->offset[arg] > im->offset[before]))
                before = arg;
            op->extent(&im->call, arg, &rows, &cols);
            pitch = im->call.arg[arg].stride ? im->call.arg[arg].stride : cols;
            if (at >= im->offset[arg] && at < im->offset[arg] + im->length[arg]) {
                int64_t index = (int64_t)((at - im->offset[arg]) / bytes);

                if (index % pitch >= cols)
                    continue;
                *arg_out = arg;
                *element = im->offset[arg] + (size_t)index * bytes;
                snprintf(text, size, "%s[%" PRId64 ",%" PRId64 "]%s", op->arg[arg].name, index / pitch, index % pitch,
                         op->arg[arg].role & RIDGE_OUT ? "" : " (an input)");
                return;
            }
        }
    snprintf(text, size, "guard or padding %zu bytes after the start of %s", before < 0 ? at : at - im->offset[before],
             before < 0 ? "the block" : op->arg[before].name);
}

bool image_equal(const image *im, const unsigned char *expected, const unsigned char *got, char *text, size_t size)
{
    size_t at = 0, wrong = 0, element = 0;
    char where[160];
    int arg;

    if (same(expected, got, im->bytes))
        return true;
    while (expected[at] == got[at])
        at++;
    for (size_t i = at; i < im->bytes; i++)
        wrong += expected[i] != got[i];
    place_name(im, at, where, sizeof where, &arg, &element);
    if (arg >= 0)
        snprintf(text, size, "%s is %.9g, expected %.9g (%zu bytes differ)", where,
                 dtype_load(got + element, im->call.arg[arg].dtype),
                 dtype_load(expected + element, im->call.arg[arg].dtype), wrong);
    else
        snprintf(text, size, "wrote into the %s: 0x%02x, was 0x%02x (%zu bytes differ)", where, got[at], expected[at],
                 wrong);
    return false;
}

/* Compares all but the elements of outputs: guards, padding, inputs. */
static bool image_intact(const image *im, const unsigned char *expected, const unsigned char *got, char *text,
                         size_t size)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    unsigned char *copy = malloc(im->bytes);
    bool good = copy != NULL;

    if (!good)
        snprintf(text, size, "out of memory");
    else
        copy_all(copy, got, im->bytes);
    for (int arg = 0; arg < op->args && good; arg++) {
        const size_t element = ridge_dtype_size(im->call.arg[arg].dtype);
        int64_t rows, cols, stride = im->call.arg[arg].stride;

        if (!im->length[arg] || !(op->arg[arg].role & RIDGE_OUT))
            continue;
        op->extent(&im->call, arg, &rows, &cols);
        for (int64_t r = 0; r < rows; r++) {
            const size_t at = im->offset[arg] + (size_t)(r * (stride ? stride : cols)) * element;

            memcpy(copy + at, expected + at, (size_t)cols * element);
        }
    }
    good = good && image_equal(im, expected, copy, text, size);
    free(copy);
    return good;
}

/* Rows must give the reference's bits on this image. */
static bool image_bitwise(const image *im, const ridge_kernel *kernel)
{
    return (kernel->contract & RIDGE_EXACT) || im->fill == FILL_EXACT;
}

bool image_judge(const image *im, const ridge_kernel *kernel, const unsigned char *expected, const unsigned char *got,
                 char *text, size_t size)
{
    double worst = 0;

    if (image_bitwise(im, kernel))
        return image_equal(im, expected, got, text, size);
    if (!oracle_gemm_has_bits(kernel))
        return image_intact(im, expected, got, text, size) && image_close(im, got, &worst, text, size);
    return oracle_gemm_bits(im, got, text, size) && (im->fill == FILL_EDGE || image_close(im, got, &worst, text, size));
}

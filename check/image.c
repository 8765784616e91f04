/* image.c: images: where the operands of a case lie, guard bands round each, upload, and comparing every byte. What is
 * in them is fill.c's; what a difference means is judge.c's. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { GUARD = 512 };

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
    for (int arg = 0; arg < op->args; arg++) {
        int64_t rows, cols;

        if (!im->length[arg])
            continue;
        op->extent(&im->call, arg, &rows, &cols);
        im->pitch[arg] = im->call.arg[arg].stride ? im->call.arg[arg].stride : cols;
    }
}

void image_place(const test_case *c, image *im)
{
    memset(im, 0, sizeof *im);
    im->call = c->call;
    im->fill = c->fill;
    place_operands(c, im);
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

void image_copy(unsigned char *to, const unsigned char *from, size_t bytes)
{
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += CHUNK)
        memcpy(to + at, from + at, bytes - at < CHUNK ? bytes - at : CHUNK);
}

/* memcmp by all cores. */
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
        if (im->memo->own)
            im->memo->free_own(im->memo->own);
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

bool image_intact(const image *im, const unsigned char *expected, const unsigned char *got, char *text, size_t size)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    unsigned char *copy = malloc(im->bytes);
    bool good = copy != NULL;

    if (!good)
        snprintf(text, size, "out of memory");
    else
        image_copy(copy, got, im->bytes);
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

/* packed.c: weights that a safetensors checkpoint stores as MXFP4 in two tensors, read as blocks of GGUF's MXFP4. Both
 * forms have 16 bytes for 32 elements, the first in the low nibble, and an exponent (E8M0):
 *
 *     DeepSeek-V4   X.weight I8 [out, in/2], X.scale F8_E8M0 [out, in/32]
 *     gpt-oss       X_blocks U8 [experts, out, in/32, 16], X_scales U8 [experts, out, in/32]
 *
 * (inference/convert.py of DeepSeek-V4-Flash-0731; llama.cpp, conversion/gpt_oss.py.) */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

enum { NIBBLES = 16, BLOCK = 17 };

/* Are these the exponents of those bytes? The last dimension of `bytes` is cut to a sixteenth, or to nothing. */
static bool fits(const ridge_entry *bytes, const ridge_entry *exponents, bool blocks)
{
    const int32_t rank = bytes->rank - (blocks ? 1 : 0);
    const int64_t last = bytes->rank ? bytes->shape[bytes->rank - 1] : 0;

    if (!exponents || rank < 2 || exponents->rank != rank || last % NIBBLES || (blocks && last != NIBBLES))
        return false;
    for (int32_t i = 0; i < rank - (blocks ? 0 : 1); i++)
        if (exponents->shape[i] != bytes->shape[i])
            return false;
    return blocks || exponents->shape[rank - 1] == last / NIBBLES;
}

bool packed_find(const plan *p, plan_tensor *t)
{
    const ridge_entry *in = t->in, *exponents = NULL;
    const bool blocks = in->type == RIDGE_TYPE_U8 && path_ends(in->name, "_blocks");

    if (blocks)
        exponents = tensor_beside(p, in, strlen("blocks"), "scales");
    else if (in->type == RIDGE_TYPE_I8 && path_ends(in->name, ".weight"))
        exponents = tensor_beside(p, in, strlen("weight"), "scale");
    if (exponents && exponents->type != (blocks ? RIDGE_TYPE_U8 : RIDGE_TYPE_F8_E8M0))
        return true;
    if (!fits(in, exponents, blocks))
        return true;
    t->packed = in;
    t->exponents = exponents;
    t->view = *in;
    t->view.name = t->view_name = strndup(in->name, strlen(in->name) - (blocks ? strlen("_blocks") : 0));
    t->view.type = RIDGE_TYPE_MXFP4;
    t->view.rank = exponents->rank;
    t->view.shape[t->view.rank - 1] = 32 * exponents->shape[exponents->rank - 1];
    t->view.elements = 32 * exponents->elements;
    t->view.bytes = BLOCK * exponents->elements;
    t->in = &t->view;
    if (!t->view_name)
        line_print(stderr, "ridge quantize: out of memory");
    return t->view_name != NULL;
}

void packed_join(const uint8_t *nibbles, const uint8_t *exponents, int64_t blocks, uint8_t *to)
{
    for (int64_t b = 0; b < blocks; b++, nibbles += NIBBLES, to += BLOCK) {
        to[0] = exponents[b];
        for (int i = 0; i < 8; i++) { /* elements 2i and 2i + 1, and those 16 on */
            const unsigned low = nibbles[i], high = nibbles[8 + i];

            to[1 + 2 * i] = (uint8_t)((low & 15) | (high & 15) << 4);
            to[2 + 2 * i] = (uint8_t)(low >> 4 | (high & 0xf0));
        }
    }
}

ridge_status packed_read(const ridge_file *file, const plan_tensor *t, int64_t begin, int64_t bytes, uint8_t *room)
{
    const int64_t first = begin / BLOCK, blocks = (begin + bytes + BLOCK - 1) / BLOCK - first;
    uint8_t *nibbles = room + BLOCK * blocks, *exponents = nibbles + NIBBLES * blocks;
    ridge_status status = ridge_file_read(file, t->packed, NIBBLES * first, nibbles, NIBBLES * blocks);

    if (status == RIDGE_OK)
        status = ridge_file_read(file, t->exponents, first, exponents, blocks);
    if (status == RIDGE_OK) {
        packed_join(nibbles, exponents, blocks, room);
        memmove(room, room + begin % BLOCK, (size_t)bytes);
    }
    return status;
}

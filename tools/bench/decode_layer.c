/* decode_layer.c: `ridge bench --weights FILE --suite decode`: times the matrix products of a token: every matrix of a
 * checkpoint as Q8_0 planes, one q8_0_matmul each, in the order of the file in one graph, beside a read of the same
 * bytes. Every product is first run by itself and compared with the C reference, byte for byte. Each has random
 * activations of its own. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* Builds the case's image with the planes of the weight instead of random ones. */
static bool build(const weight *w, int tokens, uint64_t seed, image *im)
{
    char text[160];
    test_case t;

    snprintf(text, sizeof text, "q8_0_matmul tokens=%d cols=%" PRId64 " rows=%" PRId64 " x=i8 w=i8 out=f32", tokens,
             w->cols, w->rows);
    memset(im, 0, sizeof *im);
    return case_parse(text, &t) && image_build(&t, seed, im) && weight_planes(w, im, RIDGE_Q8_0_MATMUL_W);
}

static bool add(bench *b, chain *c, const ridge_file *file, const ridge_entry *t, int tokens)
{
    char text[400] = "";
    weight w;
    image im = {0};
    bool good = weight_load(file, t, &w);

    if (good && w.q8_0) {
        good = build(&w, tokens, b->o->seed + (uint64_t)c->links, &im);
        if (!good)
            snprintf(text, sizeof text, "%s", ridge_error());
        if (good && timing_verify(b->device, &im, NULL, text, sizeof text)) {
            good = chain_add(c, &im);
        } else {
            good = false;
            image_free(&im);
        }
    }
    if (!good)
        line_print(stderr, "ridge bench: %s: %s", t->name, *text ? text : ridge_error());
    weight_free(&w);
    return good;
}

static bool run(bench *b, const ridge_file *file, int tokens)
{
    chain c = {.device = b->device};
    double us[3], floor_us;
    bool good = true;

    for (int64_t i = 0; i < ridge_file_tensors(file) && good; i++)
        if (is_weight(ridge_file_tensor(file, i)))
            good = add(b, &c, file, ridge_file_tensor(file, i), tokens);
    if (good && !c.links) {
        fprintf(stderr, "ridge bench: %s has no matrix with a multiple of 32 columns\n", b->o->weights);
        good = false;
    } else if (good) {
        good = chain_time(b, &c, "decode", tokens, us, &floor_us);
        if (!good)
            fprintf(stderr, "ridge bench: decode tokens=%d: %s\n", tokens, ridge_error());
        else if (!b->sink.json)
            printf(
                "decode tokens=%d: %d matrices, each verified against the C reference; %.1f MB in %.2f us, %.2f us a "
                "token, %.1f %% of one read of as many bytes (%.2f us)\n",
                tokens, c.links, c.bytes * 1e-6, us[0], us[0] / tokens, 100 * floor_us / us[0], floor_us);
    }
    chain_drop(&c);
    return good;
}

bool bench_decode(bench *b)
{
    static const int tokens[] = {1, 8};
    ridge_file *file;
    bool good = true;

    if (!b->device->backend->graph_begin || !b->device->backend->stream_read) {
        fprintf(stderr, "ridge bench: --weights with --suite decode needs a device with graphs\n");
        return false;
    }
    if (ridge_file_open(b->o->weights, &file) != RIDGE_OK) {
        line_print(stderr, "ridge bench: %s", ridge_io_error());
        return false;
    }
    for (int i = 0; i < 2 && good; i++)
        good = run(b, file, tokens[i]);
    ridge_file_close(file);
    return good;
}

/* decode_layer.c: decode_layer MODEL.gguf [LAYER]: one layer of a Llama model, its weights turned into Q8_0, for 1, 5
 * and 16 tokens: every op runs on the CPU and through every CUDA row that can run it, and the results must be the same
 * bytes. The CPU's results are what the next op reads; attention and the two additions are plain C of this file.
 * Weights as blocks and as planes, positions from 0 and from 1,000,000. Exit status 77 (skipped) without a model or a
 * GPU. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/internal.h"
#include "ridge_io.h"

enum { MOST_TOKENS = 16, SKIP = 77, NAME = 96 };

static ridge_device *cpu, *gpu;
static int compared, different;

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "decode_layer: %s: %s\n", what, why);
    exit(1);
}

static void *room(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);

    if (!p)
        stop("memory", "there is none");
    memset(p, 0, bytes);
    return p;
}

/* ------------------------------------------------------------------------------------------------------- comparison */

static void same_outputs(const ridge_call *call, void *const *memory, const char *row, const char *what)
{
    for (int arg = 0; arg < ridge_op_at(call->op)->args; arg++) {
        const size_t bytes = call->arg[arg].data ? (size_t)ridge_operand_bytes(call, arg) : 0;
        void *got;

        if (!bytes || !(ridge_operand_role(call, arg) & RIDGE_OUT))
            continue;
        got = room(bytes);
        if (gpu->backend->download(gpu, got, memory[arg], bytes))
            stop(row, ridge_error());
        compared++;
        if (memcmp(got, call->arg[arg].data, bytes) != 0) {
            different++;
            printf("%s: %s differs from the CPU\n", what, row);
        }
        free(got);
    }
}

/* The call, whose operands are on the host, on the CPU; then through every row of the GPU. */
static void run(const ridge_call *call, const char *what)
{
    const int args = ridge_op_at(call->op)->args;
    void *memory[RIDGE_MAX_ARGS] = {NULL}, *workspace = NULL, *stream, *scratch;
    size_t scratch_bytes;
    ridge_bound bound;
    ridge_call on_gpu = *call;

    if (ridge_workspace_bytes(cpu, call, &scratch_bytes))
        stop(what, ridge_error());
    scratch = room(scratch_bytes);
    if (ridge_run(cpu, call, scratch, scratch_bytes, NULL) || ridge_validate(call, &bound) ||
        gpu->backend->stream_new(gpu, &stream))
        stop(what, ridge_error());
    free(scratch);
    for (int arg = 0; arg < args; arg++)
        if (call->arg[arg].data) {
            const size_t bytes = (size_t)ridge_operand_bytes(call, arg);

            if (gpu->backend->alloc(gpu, bytes, &memory[arg]) ||
                ((ridge_operand_role(call, arg) & RIDGE_IN) &&
                 gpu->backend->upload(gpu, memory[arg], call->arg[arg].data, bytes)))
                stop(what, ridge_error());
            on_gpu.arg[arg].data = memory[arg];
        }
    for (int i = gpu->first[call->op]; i < gpu->first[call->op + 1]; i++) {
        const ridge_kernel *row = gpu->row[i];
        size_t need;

        if (ridge_why_not(gpu, row, &bound.problem))
            continue;
        need = row->workspace ? row->workspace(gpu, row, &bound.problem) : 0;
        on_gpu.kernel = row->name;
        if ((need && gpu->backend->alloc(gpu, need, &workspace)) || ridge_run(gpu, &on_gpu, workspace, need, stream) ||
            gpu->backend->sync(gpu, stream))
            stop(row->name, ridge_error());
        same_outputs(call, memory, row->name, what);
        if (workspace)
            gpu->backend->release(gpu, workspace);
        workspace = NULL;
    }
    for (int arg = 0; arg < args; arg++)
        if (memory[arg])
            gpu->backend->release(gpu, memory[arg]);
    gpu->backend->stream_free(gpu, stream);
}

/* ---------------------------------------------------------------------------------------------------------- weights */

typedef struct matrix {
    unsigned char *blocks;
    int8_t *codes;
    uint16_t *scales;
    int64_t rows, cols;
} matrix;

static ridge_tensor f32(const float *data)
{
    return ridge_matrix(data, RIDGE_F32);
}

static ridge_tensor form(const matrix *m, bool planes)
{
    return planes ? ridge_scaled(m->codes, RIDGE_I8, m->scales, RIDGE_SCALING_ROW32)
                  : ridge_matrix(m->blocks, RIDGE_U8);
}

static float *load(const ridge_file *file, int layer, const char *name, int64_t *rows, int64_t *cols)
{
    char full[NAME];
    const ridge_entry *t;
    unsigned char *raw;
    float *values;

    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    t = ridge_file_find(file, full);
    if (!t || t->rank > 2)
        stop(full, "is not there");
    raw = room((size_t)t->bytes);
    values = room((size_t)t->elements * sizeof *values);
    if (ridge_file_read(file, t, 0, raw, t->bytes) || ridge_dequantize(t->type, raw, t->elements, values))
        stop(full, ridge_io_error());
    *rows = t->rank == 2 ? t->shape[0] : 1;
    *cols = t->shape[t->rank - 1];
    free(raw);
    return values;
}

static matrix load_matrix(const ridge_file *file, int layer, const char *name)
{
    matrix m;
    float *values = load(file, layer, name, &m.rows, &m.cols);
    ridge_call call;

    m.blocks = room((size_t)(m.rows * m.cols / 32 * 34));
    m.codes = room((size_t)(m.rows * ridge_ld_q8_0(m.cols)));
    m.scales = room((size_t)(m.rows * m.cols / 32) * 2);
    call = ridge_q8_0_quantize(m.rows, m.cols, f32(values), m.blocks);
    run(&call, "q8_0_quantize");
    call = ridge_q8_0_repack(m.rows, m.cols, m.blocks, form(&m, true));
    run(&call, "q8_0_repack");
    free(values);
    return m;
}

static void drop(matrix *m)
{
    free(m->blocks);
    free(m->codes);
    free(m->scales);
}

/* ------------------------------------------------------------------------------------------------------------ layer */

static void multiply(const matrix *m, int tokens, bool planes, const float *x, float *out, const char *what)
{
    const ridge_call call = ridge_q8_0_matmul(tokens, m->cols, m->rows, f32(x), form(m, planes), f32(out));

    run(&call, what);
}

/* Causal, heads of q in groups that share a head of k and v. */
static void attend(int tokens, int heads, int kv_heads, int dim, const float *q, const float *k, const float *v,
                   float *out)
{
    for (int t = 0; t < tokens; t++)
        for (int h = 0; h < heads; h++) {
            const int g = h / (heads / kv_heads);
            float weight[MOST_TOKENS], sum = 0;

            for (int s = 0; s <= t; s++) {
                float dot = 0;

                for (int i = 0; i < dim; i++)
                    dot += q[(t * heads + h) * dim + i] * k[(s * kv_heads + g) * dim + i];
                weight[s] = expf(dot / sqrtf((float)dim));
                sum += weight[s];
            }
            for (int i = 0; i < dim; i++) {
                float y = 0;

                for (int s = 0; s <= t; s++)
                    y += weight[s] / sum * v[(s * kv_heads + g) * dim + i];
                out[(t * heads + h) * dim + i] = y;
            }
        }
}

typedef struct layer {
    float *attn_norm, *ffn_norm;
    matrix q, k, v, out, gate, up, down;
    double *freqs;
    int head_dim;
} layer;

static void rope(const layer *l, int tokens, int64_t heads, const int32_t *pos, float *x)
{
    float *turned = room((size_t)(tokens * heads * l->head_dim) * sizeof *turned);
    ridge_call call = ridge_head_rms_norm_rope_tail(tokens, heads, l->head_dim, l->head_dim, f32(x), f32(NULL),
                                                    ridge_matrix(pos, RIDGE_I32), l->freqs, f32(turned));

    call.flags |= RIDGE_ROPE_ONLY;
    run(&call, "head_rms_norm_rope_tail");
    memcpy(x, turned, (size_t)(tokens * heads * l->head_dim) * sizeof *turned);
    free(turned);
}

static void run_layer(const layer *l, int tokens, bool planes, int first)
{
    const int64_t hidden = l->q.cols, wide = l->gate.rows, qs = l->q.rows, kvs = l->k.rows;
    const size_t size = (size_t)tokens * (size_t)(wide + hidden + qs) * sizeof(float);
    float *x = room(size), *normed = room(size), *q = room(size), *k = room(size), *v = room(size), *y = room(size);
    int32_t pos[MOST_TOKENS];
    uint32_t state = 1;
    ridge_call call;

    for (int64_t i = 0; i < tokens * hidden; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    for (int t = 0; t < tokens; t++)
        pos[t] = first + t;
    call = ridge_rms_norm(tokens, hidden, f32(x), f32(l->attn_norm), f32(normed));
    run(&call, "rms_norm");
    multiply(&l->q, tokens, planes, normed, q, "q");
    call = ridge_q8_0_pair(tokens, hidden, kvs, kvs, f32(normed), form(&l->k, planes), form(&l->v, planes), f32(k),
                           f32(v));
    run(&call, "k and v");
    rope(l, tokens, qs / l->head_dim, pos, q);
    rope(l, tokens, kvs / l->head_dim, pos, k);
    attend(tokens, (int)qs / l->head_dim, (int)kvs / l->head_dim, l->head_dim, q, k, v, normed);
    multiply(&l->out, tokens, planes, normed, y, "attention's output");
    for (int64_t i = 0; i < tokens * hidden; i++)
        x[i] += y[i];
    call = ridge_rms_norm(tokens, hidden, f32(x), f32(l->ffn_norm), f32(normed));
    run(&call, "rms_norm");
    call = ridge_q8_0_gate_up_swiglu(tokens, hidden, wide, f32(normed), form(&l->gate, planes), form(&l->up, planes),
                                     f32(q));
    run(&call, "gate and up");
    multiply(&l->down, tokens, planes, q, y, "down");
    free(x), free(normed), free(q), free(k), free(v), free(y);
}

int main(int argc, char **argv)
{
    const int number = argc > 2 ? atoi(argv[2]) : 0;
    static const int tokens[] = {1, 5, 16};
    int64_t rows, cols;
    ridge_file *file;
    layer l;

    if (argc < 2 || ridge_file_open(argv[1], &file) != RIDGE_OK) {
        printf("decode_layer: skipped: %s\n", argc < 2 ? "no model" : ridge_io_error());
        return SKIP;
    }
    if (ridge_open("cuda", &gpu) != RIDGE_OK) {
        printf("decode_layer: skipped: %s\n", ridge_error());
        return SKIP;
    }
    if (ridge_open("cpu", &cpu) != RIDGE_OK)
        stop("cpu", ridge_error());
    l.attn_norm = load(file, number, "attn_norm", &rows, &cols);
    l.ffn_norm = load(file, number, "ffn_norm", &rows, &cols);
    l.q = load_matrix(file, number, "attn_q");
    l.k = load_matrix(file, number, "attn_k");
    l.v = load_matrix(file, number, "attn_v");
    l.out = load_matrix(file, number, "attn_output");
    l.gate = load_matrix(file, number, "ffn_gate");
    l.up = load_matrix(file, number, "ffn_up");
    l.down = load_matrix(file, number, "ffn_down");
    l.head_dim = 64;
    l.freqs = room((size_t)l.head_dim * sizeof *l.freqs);
    if (l.q.rows % 64 || l.k.rows % 64 || ridge_rope_freqs(l.head_dim, 100000, NULL, l.freqs, NULL))
        stop("heads", "are not of 64 columns");
    for (int i = 0; i < 3; i++)
        for (int form = 0; form < 2; form++)
            run_layer(&l, tokens[i], form == 1, form ? 1000000 : 0);
    printf("layer %d of %s: %d results compared, %d differ\n", number, argv[1], compared, different);
    drop(&l.q), drop(&l.k), drop(&l.v), drop(&l.out), drop(&l.gate), drop(&l.up), drop(&l.down);
    free(l.attn_norm), free(l.ffn_norm), free(l.freqs);
    ridge_file_close(file);
    ridge_close(cpu);
    ridge_close(gpu);
    return different || !compared;
}

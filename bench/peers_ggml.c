/* peers_ggml.c: the products of ggml (llama.cpp) on its CUDA or CPU backend, as records (bench/records) of the problems
 * that ridge has: q8_0_matmul, block_matmul, moe_gate_up_swiglu and moe_down. x is f32 and ggml quantises it in the
 * same graph. moe_down is measured twice: the products alone (mul_mat_id), and with the nodes that llama.cpp adds for
 * biases, the weighted sum over slots and the residual (mul_mat_id+sum), which is what ridge's moe_down returns. On a
 * CPU it has OMP_NUM_THREADS threads, or one for each processor, and weights in the form into which it repacks them,
 * where the type has one.
 *
 *     cc -O2 bench/peers_ggml.c -I GGML/include -I GGML/src -L LIB -lggml -lggml-base -lm -o peers_ggml
 *     ./peers_ggml LIB/libggml-cuda.so [OP [TOKENS, 0 for all [TYPE]]] >> FILE.csv
 *
 * Nodes have llama.cpp's order, so that ggml's backend fuses them: on CUDA gate, up and swiglu are one kernel where the
 * products are mul_mat_vec_q's, the weighted sum is one, and a graph is replayed as a CUDA graph with programmatic
 * launches. A graph has as many products as it takes to read 1200 MB of weights, 24 times an H100's L2 (CPU: 600 MB),
 * none twice; the time of one is that of as many graphs as take 6 ms by the host's clock, over their products. err: the
 * largest difference from float64 over dequantised weights, of some results, over the largest of these results. */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-impl.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 256, NODES = 24 * MOST, ROUNDS = 15, CHUNK = 64 };

static double rotation = 1200e6;

struct problem {
    const char *op;
    int64_t cols, rows, experts, slots; /* experts: 0 for a dense product */
    enum ggml_type type;
    enum { PLAIN, CLAMPED, GPT_OSS } form; /* CLAMPED: limit 10; GPT_OSS: biases, limit 7, alpha 1.702, offset 1 */
};

static const struct problem dense[] = {
    {"q8_0_matmul", 4096, 1024, 0, 0, GGML_TYPE_Q8_0},   {"q8_0_matmul", 2048, 4096, 0, 0, GGML_TYPE_Q8_0},
    {"q8_0_matmul", 4096, 4096, 0, 0, GGML_TYPE_Q8_0},   {"q8_0_matmul", 1024, 32768, 0, 0, GGML_TYPE_Q8_0},
    {"q8_0_matmul", 14336, 4096, 0, 0, GGML_TYPE_Q8_0},  {"q8_0_matmul", 4096, 14336, 0, 0, GGML_TYPE_Q8_0},
    {"q8_0_matmul", 8192, 8192, 0, 0, GGML_TYPE_Q8_0},   {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q4_0},
    {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q4_1}, {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q4_K},
    {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q5_K}, {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q6_K},
    {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q8_0}, {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_MXFP4},
    {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_Q2_K}, {"block_matmul", 4096, 32768, 0, 0, GGML_TYPE_IQ2_XXS},
};
static const struct problem experts[] = {
    {"moe_gate_up_swiglu", 2048, 768, 128, 8, GGML_TYPE_Q8_0},
    {"moe_down", 768, 2048, 128, 8, GGML_TYPE_Q8_0},
    {"moe_gate_up_swiglu", 2048, 768, 128, 8, GGML_TYPE_Q4_K},
    {"moe_down", 768, 2048, 128, 8, GGML_TYPE_Q4_K},
    {"moe_down", 768, 2048, 128, 8, GGML_TYPE_Q6_K},
    {"moe_gate_up_swiglu", 2880, 2880, 64, 4, GGML_TYPE_MXFP4, GPT_OSS},
    {"moe_down", 2880, 2880, 64, 4, GGML_TYPE_MXFP4, GPT_OSS},
    {"moe_gate_up_swiglu", 4096, 2048, 96, 6, GGML_TYPE_IQ2_XXS, CLAMPED},
    {"moe_down", 2048, 4096, 96, 6, GGML_TYPE_Q2_K},
    {"moe_gate_up_swiglu", 4096, 2048, 96, 6, GGML_TYPE_MXFP4, CLAMPED},
    {"moe_down", 2048, 4096, 96, 6, GGML_TYPE_MXFP4},
    {"moe_gate_up_swiglu", 4096, 14336, 8, 2, GGML_TYPE_Q4_K},
    {"moe_down", 14336, 4096, 8, 2, GGML_TYPE_Q4_K},
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float noise(uint32_t *state)
{
    float sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (float)((*state = *state * 1664525 + 1013904223) >> 8) / 8388608 - 1;
    return sum;
}

static void *must(void *p)
{
    if (!p)
        fprintf(stderr, "peers_ggml: out of memory\n"), exit(1);
    return p;
}

/* CHUNK rows of random weights, as often as the tensor has rows; the float values of the first are kept in `first`. All
 * are set at once, since a CPU's buffer repacks them then. On a GPU, `same` is a tensor that has them already. */
static void fill_weights(struct ggml_tensor *w, float *first, const struct ggml_tensor *same)
{
    int64_t cols = w->ne[0], rows = ggml_nrows(w);
    size_t row = ggml_row_size(w->type, cols);
    float *values, *importance;
    char *codes;
    uint32_t state = 7;

    if (same) {
        ggml_backend_tensor_copy(same, w);
        return;
    }
    values = must(malloc(sizeof(float) * (size_t)(CHUNK * cols)));
    importance = must(malloc(sizeof(float) * (size_t)cols));
    codes = must(malloc(row * (size_t)(rows + CHUNK)));
    for (int64_t i = 0; i < CHUNK * cols; i++)
        values[i] = noise(&state);
    for (int64_t i = 0; i < cols; i++)
        importance[i] = 1;
    ggml_quantize_chunk(w->type, values, codes, 0, CHUNK, cols, importance);
    ggml_get_type_traits(w->type)->to_float(codes, first, cols);
    for (int64_t i = CHUNK; i < rows; i += CHUNK)
        memcpy(codes + (size_t)i * row, codes, row * CHUNK);
    ggml_backend_tensor_set(w, codes, 0, row * (size_t)rows);
    free(values), free(importance), free(codes);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct built {
    struct ggml_context *ctx, *weights_ctx;
    struct ggml_cgraph *graph;
    struct ggml_tensor *x, *ids[MOST], *weights[2 * MOST], *out; /* out: the last result */
    struct ggml_tensor *slots, *residual, *bias;                 /* of sums: weights of the slots; of GPT_OSS: biases */
    int products, count;                                         /* products, and tensors of weights */
};

/* The nodes of llama.cpp behind a product of moe_down. */
static void build_sum(struct built *b, const struct problem *p)
{
    struct ggml_tensor *all = ggml_mul(b->ctx, b->out, b->slots), *slot[16] = {NULL}, *sum;

    for (int i = 0; i < p->slots; i++) {
        slot[i] = ggml_view_2d(b->ctx, all, all->ne[0], all->ne[2], all->nb[2], (size_t)i * all->nb[1]);
        ggml_build_forward_expand(b->graph, slot[i]);
    }
    sum = slot[0];
    for (int i = 1; i < p->slots; i++)
        sum = ggml_add(b->ctx, sum, slot[i]);
    ggml_build_forward_expand(b->graph, sum);
    b->out = ggml_add(b->ctx, sum, b->residual);
    ggml_build_forward_expand(b->graph, b->out);
}

static struct ggml_tensor *biased(struct built *b, struct ggml_tensor *product, struct ggml_tensor *ids)
{
    return b->bias ? ggml_add_id(b->ctx, product, b->bias, ids) : product;
}

static struct ggml_tensor *swiglu(struct built *b, const struct problem *p, struct ggml_tensor *gate,
                                  struct ggml_tensor *up)
{
    return p->form == GPT_OSS   ? ggml_swiglu_oai(b->ctx, gate, up, 1.702f, 7)
           : p->form == CLAMPED ? ggml_swiglu_clamp(b->ctx, gate, up, 10)
                                : ggml_swiglu_split(b->ctx, gate, up);
}

static void build(struct built *b, const struct problem *p, int64_t tokens, int sums)
{
    static uint64_t graphs;
    struct ggml_init_params params = {ggml_tensor_overhead() * NODES + ggml_graph_overhead_custom(NODES, false), NULL,
                                      true};
    int gate_up = !strcmp(p->op, "moe_gate_up_swiglu"), down = !strcmp(p->op, "moe_down");
    double bytes = (double)ggml_row_size(p->type, p->cols) * (double)p->rows;
    int64_t active = p->experts ? p->slots * tokens : 1;

    if (active > p->experts && p->experts)
        active = p->experts;
    memset(b, 0, sizeof(*b));
    b->ctx = must(ggml_init(params));
    b->weights_ctx = must(ggml_init(params));
    b->graph = must(ggml_new_graph_custom(b->ctx, NODES, false));
    b->products = (int)(rotation / (bytes * (double)active * (gate_up ? 2 : 1))) + 2;
    if (b->products > MOST)
        b->products = MOST;
    b->x = p->experts ? ggml_new_tensor_3d(b->ctx, GGML_TYPE_F32, p->cols, down ? p->slots : 1, tokens)
                      : ggml_new_tensor_2d(b->ctx, GGML_TYPE_F32, p->cols, tokens);
    b->slots = sums ? ggml_new_tensor_3d(b->ctx, GGML_TYPE_F32, 1, p->slots, tokens) : NULL;
    b->residual = sums ? ggml_new_tensor_2d(b->ctx, GGML_TYPE_F32, p->rows, tokens) : NULL;
    if (p->form == GPT_OSS && (sums || gate_up))
        b->bias = ggml_new_tensor_2d(b->ctx, GGML_TYPE_F32, p->rows, p->experts);
    b->graph->uid = ++graphs; /* as llama.cpp's scheduler, so that a replay is recognised */
    for (int i = 0; i < b->products; i++) {
        struct ggml_tensor *out;

        if (!p->experts) {
            out = ggml_mul_mat(
                b->ctx, b->weights[b->count++] = ggml_new_tensor_2d(b->weights_ctx, p->type, p->cols, p->rows), b->x);
        } else { /* a new layer of experts when all of the last one's have been named */
            if (i % (int)(p->experts / active) == 0)
                for (int j = 0; j <= gate_up; j++)
                    b->weights[b->count++] = ggml_new_tensor_3d(b->weights_ctx, p->type, p->cols, p->rows, p->experts);
            b->ids[i] = ggml_new_tensor_2d(b->ctx, GGML_TYPE_I32, p->slots, tokens);
            out = ggml_mul_mat_id(b->ctx, b->weights[b->count - 1 - gate_up], b->x, b->ids[i]);
            out = biased(b, out, b->ids[i]);
            if (gate_up)
                out = swiglu(b, p, out,
                             biased(b, ggml_mul_mat_id(b->ctx, b->weights[b->count - 1], b->x, b->ids[i]), b->ids[i]));
        }
        ggml_build_forward_expand(b->graph, out);
        b->out = out;
        if (sums)
            build_sum(b, p);
    }
}

/* Every slot of every token another expert, as long as there are enough of them. */
static void fill_ids(struct built *b, const struct problem *p, int64_t tokens)
{
    int32_t *ids = must(malloc(sizeof(int32_t) * (size_t)(p->slots * tokens)));

    for (int i = 0; i < b->products; i++) {
        for (int64_t j = 0; j < p->slots * tokens; j++)
            ids[j] = (int32_t)((i * p->slots * tokens + j) % p->experts);
        ggml_backend_tensor_set(b->ids[i], ids, 0, ggml_nbytes(b->ids[i]));
    }
    free(ids);
}

static void fill(struct ggml_tensor *t, float value)
{
    float *values = must(malloc(ggml_nbytes(t)));

    for (int64_t i = 0; i < ggml_nelements(t); i++)
        values[i] = value;
    ggml_backend_tensor_set(t, values, 0, ggml_nbytes(t));
    free(values);
}

/* What every result should be whose row is a first row of CHUNK: all of these rows are the same, and so is x in all
 * tokens and slots. */
static double wanted_result(const struct built *b, const struct problem *p, const float *x, const float *first)
{
    double want = b->bias ? 0.125 : 0;

    for (int64_t i = 0; i < p->cols; i++)
        want += (double)x[i] * first[i];
    if (!strcmp(p->op, "moe_gate_up_swiglu"))
        want *= p->form == GPT_OSS ? (want + 1) / (1 + exp(-1.702 * want)) : want / (1 + exp(-want));
    return b->residual ? 0.125 * (double)p->slots * want + 0.125 : want;
}

static double error(const struct built *b, const struct problem *p, const float *x, const float *first)
{
    float *got = must(malloc(ggml_nbytes(b->out)));
    double want = wanted_result(b, p, x, first), worst = 0;

    ggml_backend_tensor_get(b->out, got, 0, ggml_nbytes(b->out));
    for (int64_t i = 0; i < ggml_nelements(b->out); i++)
        if (i % p->rows % CHUNK == 0)
            worst = fmax(worst, fabs(got[i] - want));
    free(got);
    return worst / fabs(want);
}

/* The kind of memory in which a product takes its weights fastest: the first of the device's own that it supports. */
static ggml_backend_buffer_type_t weights_memory(ggml_backend_t backend, struct built *b)
{
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    ggml_backend_dev_get_extra_bufts_t extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");

    for (ggml_backend_buffer_type_t *kind = extra ? extra(device) : NULL; kind && *kind; kind++) {
        int supported;

        b->weights[0]->buffer = ggml_backend_buft_alloc_buffer(*kind, 0);
        supported = ggml_backend_dev_supports_op(device, ggml_graph_node(b->graph, 0));
        ggml_backend_buffer_free(b->weights[0]->buffer);
        b->weights[0]->buffer = NULL;
        if (supported)
            return *kind;
    }
    return ggml_backend_get_default_buffer_type(backend);
}

/* One line of a record; times: of a product, ascending. */
static void print_record(ggml_backend_t backend, const struct problem *p, int64_t tokens, int sums, const double *times,
                         double worst)
{
    char date[32], run[32];
    time_t stamp = time(NULL);
    double us = times[ROUNDS / 2], matrices = p->experts ? (double)(p->slots * tokens) : (double)tokens;
    double flops = 2 * matrices * (double)(p->cols * p->rows) * (strcmp(p->op, "moe_gate_up_swiglu") ? 1 : 2);
    double active = p->experts ? fmin((double)p->experts, matrices) * (strcmp(p->op, "moe_gate_up_swiglu") ? 1 : 2) : 1;
    double bytes = active * (double)ggml_row_size(p->type, p->cols) * (double)p->rows;

    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime(&stamp));
    strftime(run, sizeof(run), "%Y%m%dT%H%M%S", gmtime(&stamp));
    printf("%s-ggml%d,%s,%s,%s,ggml,peers,%s,tokens=%lld cols=%lld rows=%lld", run, (int)getpid(), date, ggml_commit(),
           ggml_backend_dev_description(ggml_backend_get_device(backend)), p->op, (long long)tokens, (long long)p->cols,
           (long long)p->rows);
    if (p->experts)
        printf(" experts=%lld slots=%lld", (long long)p->experts, (long long)p->slots);
    printf(" x=f32 w=%s out=f32%s,ggml,%s,%.6g,%.6g,%.6g,%.6g,%.6g,,%.3g,\n", ggml_type_name(p->type),
           sums ? " residual=1" : "",
           sums         ? "mul_mat_id+sum"
           : p->experts ? "mul_mat_id"
                        : "mul_mat",
           us, times[ROUNDS / 5], times[ROUNDS - 1 - ROUNDS / 5], flops / us * 1e-6, bytes / us * 1e-3, worst);
    fflush(stdout);
}

static void measure(ggml_backend_t backend, const struct problem *p, int64_t tokens, int sums)
{
    struct built b;
    double times[ROUNDS];
    uint32_t state = 3;
    double dot = 0;
    int repeats = 4, cpu = ggml_backend_dev_type(ggml_backend_get_device(backend)) == GGML_BACKEND_DEVICE_TYPE_CPU;

    build(&b, p, tokens, sums);
    ggml_backend_buffer_t weights =
        must(ggml_backend_alloc_ctx_tensors_from_buft(b.weights_ctx, weights_memory(backend, &b)));
    ggml_backend_buffer_t buffer = must(ggml_backend_alloc_ctx_tensors(b.ctx, backend));
    float *first = must(malloc(sizeof(float) * (size_t)p->cols)), *x = must(malloc(ggml_nbytes(b.x)));

    for (int i = 0; i < b.count; i++)
        fill_weights(b.weights[i], first, i && !cpu ? b.weights[0] : NULL);
    for (int64_t i = 0; i < p->cols; i++) { /* like the weights, so that the sum that is checked does not cancel */
        x[i] = noise(&state) + first[i];
        dot += (double)x[i] * first[i];
    }
    for (int64_t i = 0; i < ggml_nelements(b.x); i++)
        x[i] = i < p->cols ? (float)(5 / dot) * x[i] : x[i - p->cols];
    ggml_backend_tensor_set(b.x, x, 0, ggml_nbytes(b.x));
    if (p->experts)
        fill_ids(&b, p, tokens);
    if (sums)
        fill(b.slots, 0.125f), fill(b.residual, 0.125f);
    if (b.bias)
        fill(b.bias, 0.125f);
    for (int round = -3; round < ROUNDS; round++) {
        ggml_backend_graph_compute(backend, b.graph);
        double begin = now();
        for (int i = 0; i < repeats; i++)
            ggml_backend_graph_compute_async(backend, b.graph);
        ggml_backend_synchronize(backend);
        double us = (now() - begin) * 1e6 / repeats;
        if (round < 0)
            repeats = us < 6000 ? (int)(6000 / us) + 1 : 1;
        else
            times[round] = us / b.products;
    }
    qsort(times, ROUNDS, sizeof(*times), compare);
    print_record(backend, p, tokens, sums, times, error(&b, p, x, first));
    free(x), free(first);
    ggml_backend_buffer_free(buffer);
    ggml_backend_buffer_free(weights);
    ggml_free(b.ctx), ggml_free(b.weights_ctx);
}

static int wanted(char **argv, const struct problem *p, int64_t tokens)
{
    if (!argv[2] || strcmp(argv[2], p->op))
        return !argv[2];
    if (!argv[3] || (atoi(argv[3]) && atoi(argv[3]) != tokens))
        return !argv[3];
    return !argv[4] || !strcmp(argv[4], ggml_type_name(p->type));
}

int main(int argc, char **argv)
{
    static const int64_t tokens[] = {1, 8, 16, 512};

    ggml_backend_reg_t library = argc >= 2 && argc <= 5 ? ggml_backend_load(argv[1]) : NULL;
    if (!library || ggml_backend_reg_dev_count(library) == 0)
        return fprintf(stderr, "usage: peers_ggml LIBGGML-CUDA.SO [OP [TOKENS [TYPE]]], or LIBGGML-CPU.SO\n"), 2;
    ggml_backend_t backend = must(ggml_backend_dev_init(ggml_backend_reg_dev_get(library, 0), NULL));
    ggml_backend_set_n_threads_t set_threads =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(library, "ggml_backend_set_n_threads");

    if (set_threads) { /* a CPU, whose last-level cache may have 300 MB */
        const char *threads = getenv("OMP_NUM_THREADS");

        set_threads(backend, threads ? atoi(threads) : (int)sysconf(_SC_NPROCESSORS_ONLN));
        rotation = 600e6;
    }

    for (size_t i = 0; i < sizeof(dense) / sizeof(*dense); i++)
        for (int j = 0; j < (strcmp(dense[i].op, "q8_0_matmul") ? 3 : 4); j++)
            if (wanted(argv, &dense[i], tokens[j]))
                measure(backend, &dense[i], tokens[j], 0);
    for (size_t i = 0; i < sizeof(experts) / sizeof(*experts); i++)
        for (int j = 0; j < 3; j++)
            for (int sums = 0; sums <= !strcmp(experts[i].op, "moe_down"); sums++)
                if (wanted(argv, &experts[i], tokens[j]))
                    measure(backend, &experts[i], tokens[j], sums);
    ggml_backend_free(backend);
    return 0;
}

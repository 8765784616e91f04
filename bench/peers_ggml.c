/* peers_ggml.c: the products of ggml (llama.cpp) on its CUDA or CPU backend, as records (bench/records) of the problems
 * that ridge has: q8_0_matmul, block_matmul, moe_gate_up_swiglu and moe_down. x is f32 and ggml quantises it in the
 * same graph. moe_down is measured twice: the products alone (mul_mat_id), and with the nodes that llama.cpp adds for
 * the weighted sum over slots and the residual (mul_mat_id+sum), which is what ridge's moe_down returns. On a CPU it
 * has OMP_NUM_THREADS threads, or one for each processor, and weights in the form into which it repacks them, where the
 * type has one.
 *
 *     cc -O2 bench/peers_ggml.c -I GGML/include -L LIB -lggml -lggml-base -lm -o peers_ggml
 *     ./peers_ggml LIB/libggml-cuda.so [OP [TOKENS [TYPE]]] >> FILE.csv
 *
 * A graph has as many products as it takes to read 280 MB of weights (CPU: 600), none twice; the time of one is that of
 * four graphs by the host's clock, over their products. err: the largest difference from float64 over dequantised
 * weights, of some results, over the largest of these results. */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 256, NODES = 24 * MOST, ROUNDS = 15, REPEATS = 4, CHUNK = 64 };

static double rotation = 280e6;

struct problem {
    const char *op;
    int64_t cols, rows, experts, slots; /* experts: 0 for a dense product */
    enum ggml_type type;
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
    {"moe_gate_up_swiglu", 2880, 2880, 128, 4, GGML_TYPE_MXFP4},
    {"moe_down", 2880, 2880, 128, 4, GGML_TYPE_MXFP4},
    {"moe_gate_up_swiglu", 4096, 2048, 256, 6, GGML_TYPE_IQ2_XXS},
    {"moe_down", 2048, 4096, 256, 6, GGML_TYPE_Q2_K},
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
 * are set at once, since a CPU's buffer repacks them then. */
static void fill_weights(struct ggml_tensor *w, float *first)
{
    int64_t cols = w->ne[0], rows = ggml_nrows(w);
    size_t row = ggml_row_size(w->type, cols);
    float *values = must(malloc(sizeof(float) * (size_t)(CHUNK * cols))),
          *importance = must(malloc(sizeof(float) * (size_t)cols));
    char *codes = must(malloc(row * (size_t)(rows + CHUNK)));
    uint32_t state = 7;

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
    struct ggml_tensor *x, *ids[MOST], *weights[2 * MOST], *out; /* out: the last product */
    struct ggml_tensor *slots, *residual;                        /* of sums: weights of the slots */
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
    ggml_build_forward_expand(b->graph, ggml_add(b->ctx, sum, b->residual));
}

static void build(struct built *b, const struct problem *p, int64_t tokens, int sums)
{
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
            if (gate_up)
                out =
                    ggml_swiglu_split(b->ctx, out, ggml_mul_mat_id(b->ctx, b->weights[b->count - 1], b->x, b->ids[i]));
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

static void fill_sums(struct built *b)
{
    size_t bytes = ggml_nbytes(b->residual);
    float *values = must(malloc(bytes + ggml_nbytes(b->slots)));

    for (size_t i = 0; i < (bytes + ggml_nbytes(b->slots)) / sizeof(float); i++)
        values[i] = 0.125f;
    ggml_backend_tensor_set(b->residual, values, 0, bytes);
    ggml_backend_tensor_set(b->slots, values, 0, ggml_nbytes(b->slots));
    free(values);
}

/* Results whose row is a first row of CHUNK (all of these rows are the same), of the first token. */
static double error(struct built *b, const struct problem *p, const float *x, const float *first)
{
    float *got = must(malloc(ggml_nbytes(b->out)));
    double want = 0, worst = 0;

    ggml_backend_tensor_get(b->out, got, 0, ggml_nbytes(b->out));
    for (int64_t i = 0; i < p->cols; i++)
        want += (double)x[i] * first[i];
    if (!strcmp(p->op, "moe_gate_up_swiglu"))
        want *= want / (1 + exp(-want));
    for (int64_t i = 0; i < p->rows; i += CHUNK)
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

static void measure(ggml_backend_t backend, const struct problem *p, int64_t tokens, int sums)
{
    struct built b;
    double times[ROUNDS];
    char date[32], run[32];
    time_t stamp = time(NULL);
    uint32_t state = 3;

    build(&b, p, tokens, sums);
    ggml_backend_buffer_t weights =
        must(ggml_backend_alloc_ctx_tensors_from_buft(b.weights_ctx, weights_memory(backend, &b)));
    ggml_backend_buffer_t buffer = must(ggml_backend_alloc_ctx_tensors(b.ctx, backend));
    float *first = must(malloc(sizeof(float) * (size_t)p->cols)), *x = must(malloc(ggml_nbytes(b.x)));

    for (int i = 0; i < b.count; i++)
        fill_weights(b.weights[i], first);
    for (int64_t i = 0; i < ggml_nelements(b.x);
         i++) /* like the weights, so that the sum that is checked does not cancel */
        x[i] = noise(&state) + (i < p->cols ? first[i] : 0);
    ggml_backend_tensor_set(b.x, x, 0, ggml_nbytes(b.x));
    if (p->experts)
        fill_ids(&b, p, tokens);
    if (sums)
        fill_sums(&b);
    for (int round = -3; round < ROUNDS; round++) {
        ggml_backend_graph_compute(backend, b.graph);
        double begin = now();
        for (int i = 0; i < REPEATS; i++)
            ggml_backend_graph_compute_async(backend, b.graph);
        ggml_backend_synchronize(backend);
        if (round >= 0)
            times[round] = (now() - begin) * 1e6 / REPEATS / b.products;
    }
    qsort(times, ROUNDS, sizeof(*times), compare);
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
           us, times[ROUNDS / 5], times[ROUNDS - 1 - ROUNDS / 5], flops / us * 1e-6, bytes / us * 1e-3,
           error(&b, p, x, first));
    fflush(stdout);
    free(x), free(first);
    ggml_backend_buffer_free(buffer);
    ggml_backend_buffer_free(weights);
    ggml_free(b.ctx), ggml_free(b.weights_ctx);
}

static int wanted(char **argv, const struct problem *p, int64_t tokens)
{
    return !argv[2] ||
           (!strcmp(argv[2], p->op) &&
            (!argv[3] || (atoi(argv[3]) == tokens && (!argv[4] || !strcmp(argv[4], ggml_type_name(p->type))))));
}

int main(int argc, char **argv)
{
    static const int64_t tokens[] = {1, 8, 512};

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
        for (int j = 0; j < (strcmp(dense[i].op, "q8_0_matmul") ? 2 : 3); j++)
            if (wanted(argv, &dense[i], tokens[j]))
                measure(backend, &dense[i], tokens[j], 0);
    for (size_t i = 0; i < sizeof(experts) / sizeof(*experts); i++)
        for (int j = 0; j < 2; j++)
            for (int sums = 0; sums <= !strcmp(experts[i].op, "moe_down"); sums++)
                if (wanted(argv, &experts[i], tokens[j]))
                    measure(backend, &experts[i], tokens[j], sums);
    ggml_backend_free(backend);
    return 0;
}

/* cublaslt.c: opens cuBLASLt at run time and measures its matrix rates for the ceilings. As a rival: cublaslt_gemm.c.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cublaslt.h"

bool cublaslt_load(lt_api *lt, char *why, size_t size)
{
    static const char *const file[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    static const char *const name[] = {"cublasLtCreate",
                                       "cublasLtDestroy",
                                       "cublasLtMatmulDescCreate",
                                       "cublasLtMatmulDescDestroy",
                                       "cublasLtMatmulDescSetAttribute",
                                       "cublasLtMatrixLayoutCreate",
                                       "cublasLtMatrixLayoutDestroy",
                                       "cublasLtMatmulPreferenceCreate",
                                       "cublasLtMatmulPreferenceDestroy",
                                       "cublasLtMatmulPreferenceSetAttribute",
                                       "cublasLtMatmulAlgoGetHeuristic",
                                       "cublasLtMatmul"};
    void *library = NULL, *symbol;

    for (size_t i = 0; i < sizeof file / sizeof file[0] && !library; i++)
        library = dlopen(file[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "%s", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        symbol = dlsym(library, name[i]);
        if (!symbol) {
            snprintf(why, size, "the library has no %s", name[i]);
            return false;
        }
        memcpy((char *)lt + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return true;
}

/* Random codes: e4m3 without NaN, or bf16 in +-[2^-1, 2). */
static bool fill(const ridge_device *device, void *memory, size_t bytes, bool fp8)
{
    uint64_t state = 7;
    uint16_t *host = malloc(bytes);
    bool good;

    for (size_t i = 0; host && i < bytes / 2; i++) {
        uint64_t z = random_next(&state);
        host[i] = fp8 ? (uint16_t)(z & 0xbfbf) : (uint16_t)((z & 0x80ff) | 0x3f00);
    }
    good = host && device->backend->upload(device, memory, host, bytes) == RIDGE_OK;
    free(host);
    return good;
}

typedef struct product {
    lt_api lt;
    void *handle, *desc, *ab, *d, *preference, *a, *b, *c, *scale, *workspace, *stream;
    heuristic best;
    size_t workspace_bytes;
} product;

static bool set_up(const ridge_device *device, product *p, bool fp8, int n)
{
    const ridge_backend *b = device->backend;
    size_t bytes = (size_t)n * (size_t)n * (fp8 ? 1 : 2);
    const int transpose = OPERATION_T, type = fp8 ? REAL_8F_E4M3 : REAL_16BF;
    const int8_t fast = 1;
    const float one = 1;
    uint64_t side = (uint64_t)n;
    int found = 0;

    p->workspace_bytes = 64 << 20;
    if (b->alloc(device, bytes, &p->a) || b->alloc(device, bytes, &p->b) ||
        b->alloc(device, (size_t)n * (size_t)n * 2, &p->c) || b->alloc(device, 256, &p->scale) ||
        b->alloc(device, p->workspace_bytes, &p->workspace) || b->upload(device, p->scale, &one, sizeof one) ||
        b->stream_new(device, &p->stream) || !fill(device, p->a, bytes, fp8) || !fill(device, p->b, bytes, fp8))
        return false;
    if (p->lt.create(&p->handle) || p->lt.desc_create(&p->desc, COMPUTE_32F, REAL_32F) ||
        p->lt.desc_set(p->desc, DESC_TRANSA, &transpose, sizeof transpose) ||
        p->lt.layout_create(&p->ab, type, side, side, n) || p->lt.layout_create(&p->d, REAL_16BF, side, side, n) ||
        p->lt.preference_create(&p->preference) ||
        p->lt.preference_set(p->preference, PREFERENCE_WORKSPACE, &p->workspace_bytes, sizeof p->workspace_bytes))
        return false;
    if (fp8 && (p->lt.desc_set(p->desc, DESC_A_SCALE, &p->scale, sizeof p->scale) ||
                p->lt.desc_set(p->desc, DESC_B_SCALE, &p->scale, sizeof p->scale) ||
                p->lt.desc_set(p->desc, DESC_FAST_ACCUM, &fast, sizeof fast)))
        return false;
    return p->lt.choose(p->handle, p->desc, p->ab, p->ab, p->d, p->d, p->preference, 1, &p->best, &found) == 0 &&
           found == 1;
}

static bool run(const ridge_device *device, product *p, int n, double *tflops)
{
    const float alpha = 1, beta = 0;
    const ridge_backend *b = device->backend;
    double us, best = -1; /* none yet */

    for (int round = 0; round < 12; round++) { /* the clocks rise in the first rounds */
        if (b->mark(device, 0, p->stream))
            return false;
        for (int i = 0; i < 10; i++)
            if (p->lt.matmul(p->handle, p->desc, &alpha, p->a, p->ab, p->b, p->ab, &beta, p->c, p->d, p->c, p->d,
                             p->best.algo, p->workspace, p->workspace_bytes, p->stream))
                return false;
        if (b->mark(device, 1, p->stream) || b->sync(device, p->stream) || b->elapsed(device, 0, 1, &us))
            return false;
        if (round >= 4 && (best < 0 || us < best))
            best = us;
    }
    *tflops = 2e-6 * (double)n * n * n / (best / 10);
    return true;
}

bool cublaslt_rate(const ridge_device *device, bool fp8, int n, double *tflops, char *why, size_t size)
{
    product p;
    bool good;

    memset(&p, 0, sizeof p);
    if (!cublaslt_load(&p.lt, why, size))
        return false;
    good = set_up(device, &p, fp8, n) && run(device, &p, n, tflops);
    if (!good)
        snprintf(why, size, "cuBLASLt refused the %s product", fp8 ? "e4m3" : "bf16");
    if (p.preference)
        p.lt.preference_destroy(p.preference);
    if (p.ab)
        p.lt.layout_destroy(p.ab);
    if (p.d)
        p.lt.layout_destroy(p.d);
    if (p.desc)
        p.lt.desc_destroy(p.desc);
    if (p.handle)
        p.lt.destroy(p.handle);
    for (int i = 0; i < 5; i++) {
        void *memory = i == 0 ? p.a : i == 1 ? p.b : i == 2 ? p.c : i == 3 ? p.scale : p.workspace;
        if (memory)
            device->backend->release(device, memory);
    }
    if (p.stream)
        device->backend->stream_free(device, p.stream);
    return good;
}

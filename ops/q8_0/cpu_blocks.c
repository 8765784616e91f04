/* cpu_blocks.c: q8_0_quantize, q8_0_repack and q8_0_unpack on the CPU: the C reference, the threads around the SIMD
 * function of ops/quantize_fp8/cpu_q8_0.h, and the kernel list. Moving bytes needs no instruction set: repack and
 * unpack have one row.
 */
#include <string.h>

#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/quantize_fp8/cpu.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { PER_US = 2048 /* elements */ };

static bool streams(const ridge_device *device, const ridge_call *call)
{
    return ridge_cpu_streams(device, (double)call->dim[0] * (double)call->dim[1]);
}

/* Ends a thread's work. The fence orders its stores that bypassed the cache before whatever follows the join of the
 * threads. */
static void finish(bool stream, unsigned mode)
{
#if defined(__x86_64__)
    if (stream)
        _mm_sfence();
#endif
    (void)stream;
    ridge_fp_end(mode);
}

/* -------------------------------------------------------------------------------------------------------- reference */

static void reference_row(uint32_t dtype, const void *x, int64_t cols, uint8_t *blocks, bool stream, const void *next)
{
    (void)stream, (void)next;
    for (int64_t col = 0; col < cols; col += RIDGE_Q8_0_BLOCK, blocks += RIDGE_Q8_0_BYTES) {
        uint32_t amax = 0;
        uint16_t half;
        float r, d;

        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            if (ridge_magnitude(ridge_load_element(dtype, x, col + i)) > amax)
                amax = ridge_magnitude(ridge_load_element(dtype, x, col + i));
        d = ridge_q8_0_scale(amax, &r);
        half = ridge_f16_from_f32(d);
        memcpy(blocks, &half, 2);
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            blocks[2 + i] = (uint8_t)ridge_q8_0_code(ridge_load_element(dtype, x, col + i) * r);
    }
}

typedef void quantize_row(uint32_t dtype, const void *x, int64_t cols, uint8_t *blocks, bool stream, const void *next);

static ridge_status quantize(const ridge_device *device, const ridge_call *call, quantize_row *row)
{
    const ridge_operand *x = &call->arg[RIDGE_Q8_0_QUANTIZE_X], *b = &call->arg[RIDGE_Q8_0_QUANTIZE_BLOCKS];
    const int64_t cols = call->dim[1], rows = cols ? call->dim[0] : 0, size = x->dtype == RIDGE_F32 ? 4 : 2;
    const int64_t stride = x->stride * size;
    const bool stream = streams(device, call);
    ridge_team *team;

    team = ridge_team_begin((double)(rows * cols) / PER_US, rows);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {
            const char *from = (const char *)x->data + r * stride;

            row(x->dtype, from, cols, (uint8_t *)b->data + r * b->stride, stream, r + 1 < rows ? from + stride : NULL);
        }
        finish(stream, mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static ridge_status launch_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                     void *workspace, size_t bytes, void *stream)
{
    quantize_row *volatile row = reference_row; /* no arithmetic moves across the change of mode */

    (void)kernel, (void)workspace, (void)bytes, (void)stream;
    return quantize(device, &bound->call, row);
}

#if defined(__x86_64__)
static ridge_status launch_avx2(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                void *workspace, size_t bytes, void *stream)
{
    (void)kernel, (void)workspace, (void)bytes, (void)stream;
    return quantize(device, &bound->call, ridge_cpu_quantize_avx2.q8_0);
}

static ridge_status launch_avx512(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    (void)kernel, (void)workspace, (void)bytes, (void)stream;
    return quantize(device, &bound->call, ridge_cpu_quantize_avx512.q8_0);
}
#endif

/* ----------------------------------------------------------------------------------------------------------- planes */

/* One row of either op. */
typedef struct planes {
    uint8_t *raw, *codes;
    uint16_t *scales;
    int64_t blocks;
    bool stream;
} planes;

/* 32 bytes that need not be read again soon; `to` is a multiple of 16. */
static inline void stream32(uint8_t *to, const uint8_t *from)
{
#if defined(__SSE2__)
    const __m128i *x = (const __m128i *)(const void *)from;
    __m128i *y = (__m128i *)(void *)to;

    _mm_stream_si128(y, _mm_loadu_si128(x));
    _mm_stream_si128(y + 1, _mm_loadu_si128(x + 1));
#else
    memcpy(to, from, 32);
#endif
}

static void repack_row(const planes *p)
{
    const bool stream = p->stream && (uintptr_t)p->codes % 64 == 0;
    const uint8_t *from = p->raw;

    for (int64_t b = 0; b < p->blocks; b++, from += RIDGE_Q8_0_BYTES) {
        memcpy(p->scales + b, from, 2);
        if (stream)
            stream32(p->codes + b * RIDGE_Q8_0_BLOCK, from + 2);
        else
            memcpy(p->codes + b * RIDGE_Q8_0_BLOCK, from + 2, RIDGE_Q8_0_BLOCK);
    }
}

/* Blocks straddle cache lines: assembling whole lines in L1, for stores that bypass the cache, costs more than the
 * reads of lines that it saves (Zen 4, two cores: 40 GB/s instead of 44). */
static void unpack_row(const planes *p)
{
    uint8_t *to = p->raw;

    for (int64_t b = 0; b < p->blocks; b++, to += RIDGE_Q8_0_BYTES) {
        memcpy(to, p->scales + b, 2);
        memcpy(to + 2, p->codes + b * RIDGE_Q8_0_BLOCK, RIDGE_Q8_0_BLOCK);
    }
}

static ridge_status launch_planes(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    const ridge_operand *raw = &call->arg[RIDGE_Q8_0_REPACK_BLOCKS], *codes = &call->arg[RIDGE_Q8_0_REPACK_CODES],
                        *scales = &call->arg[RIDGE_Q8_0_REPACK_SCALES];
    void (*const work)(const planes *) = call->op == RIDGE_Q8_0_REPACK ? repack_row : unpack_row;
    const int64_t cols = call->dim[1], rows = cols ? call->dim[0] : 0, blocks = cols / RIDGE_Q8_0_BLOCK;
    const bool past_cache = streams(device, call);
    ridge_team *team;

    (void)kernel, (void)workspace, (void)bytes, (void)stream;
    team = ridge_team_begin((double)(rows * cols) / PER_US, rows);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {
            const planes p = {(uint8_t *)raw->data + r * raw->stride, (uint8_t *)codes->data + r * codes->stride,
                              (uint16_t *)scales->data + r * scales->stride, blocks, past_cache};

            work(&p);
        }
        finish(past_cache, mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- list */

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[1] * 3e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define ROW(op_name, op_id, arch_name, low, percent, launcher)                                                      \
    {                                                                                                               \
        .name = "cpu." op_name "." arch_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,          \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .param = {percent}, \
        .cost = cost, .launch = launcher                                                                            \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("q8_0_quantize", RIDGE_Q8_0_QUANTIZE, "avx512", RIDGE_ARCH_AVX512, 120, launch_avx512),
    ROW("q8_0_quantize", RIDGE_Q8_0_QUANTIZE, "avx2", RIDGE_ARCH_AVX2, 130, launch_avx2),
#endif
    ROW("q8_0_quantize", RIDGE_Q8_0_QUANTIZE, "c", RIDGE_ARCH_C, 5000, launch_reference),
    ROW("q8_0_repack", RIDGE_Q8_0_REPACK, "c", RIDGE_ARCH_C, 100, launch_planes),
    ROW("q8_0_unpack", RIDGE_Q8_0_UNPACK, "c", RIDGE_ARCH_C, 100, launch_planes),
};

const ridge_kernel_list ridge_cpu_q8_0 = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};

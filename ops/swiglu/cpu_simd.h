/* cpu_simd.h: the SIMD rows of swiglu_fwd and swiglu_bwd, once an instruction set: some columns of one row, block by
 * block (cpu_lanes.h), or for plain SiLU of bf16 by an approximation (cpu_approx.h), and the sum drow. Leaves out:
 * threads and argument checks (cpu.c).
 * Compiled for: avx2, avx512. */
#include "cpu_approx.h"

/* Adds the terms of columns j0..j0+n-1 (j0 a multiple of BLOCK) to the partials they belong to. A partial never is -0,
 * so that the zeros put after column n leave it as it is. */
static inline __attribute__((always_inline)) void drow_add(float *part, float *p, int64_t j0, int n, bool split)
{
    enum { GROUP = RIDGE_DROW_GROUP };
    float *restrict to = part + j0 / GROUP % RIDGE_DROW_PARTS;
    const int whole = whole_steps(n), odd = split ? whole / 2 : 1;

    for (int j = n; j < whole; j++)
        p[(split ? j / 2 : j - j % 2) + j % 2 * odd] = 0.0f;
    for (int i = 0; i < GROUP; i++) {
        const float *from = p + (split ? i / 2 : i - i % 2) + i % 2 * odd;
        for (int k = 0; k < whole / GROUP; k++)
            to[k] += from[split ? k * (GROUP / 2) : k * GROUP];
    }
}

static float drow_total(float *part)
{
    for (int s = RIDGE_DROW_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    return ridge_f32_canonical(part[0]);
}

/* Where column j of this row is. */
static inline char *at(const swiglu_args *args, swiglu_matrix m, int64_t row, int64_t j)
{
    return m.data + (row * m.stride + j) * args->size;
}

/* Computes columns from begin on by the approximation, all but a rest that is no whole step; returns how many. */
static __attribute__((noinline)) int64_t approx_columns(const swiglu_args *args, int64_t row, int64_t begin,
                                                        int64_t end)
{
    const char *gate = at(args, args->gate, row, begin), *up = at(args, args->up, row, begin);
    char *out = at(args, args->out, row, begin);
    const int64_t n = end - begin;

    if (!args->backward)
        return approx_steps(gate, up, NULL, out, NULL, n, false, args->stream);
    return approx_steps(gate, up, at(args, args->dout, row, begin), out, at(args, args->second, row, begin), n, true,
                        args->stream);
}

void RIDGE_SIMD(ridge_cpu_swiglu)(const swiglu_args *args, int64_t row, int64_t begin, int64_t end)
{
    const bool pairs = args->flags & RIDGE_INTERLEAVED;
    const uint32_t dtype = args->dtype;
    const bool split = dtype == RIDGE_BF16 && !pairs;
    const uint32_t rounding = args->backward ? RIDGE_ROUND_GATE_BWD : RIDGE_ROUND_GATE;
    const uint32_t round = args->flags & rounding ? dtype : RIDGE_NONE;
    const float scale = args->row_scale ? args->row_scale[row] : 1.0f;
    const bool approx = split && args->plain && (args->flags & RIDGE_ACTIVATION) == RIDGE_SILU;
    lanes_fn *compute = pick_lanes(args);
    float part[RIDGE_DROW_PARTS] = {0};
    lanes l;

    if (approx)
        begin += approx_columns(args, row, begin, end);
    for (int64_t j = begin; j < end; j += BLOCK) {
        int n = end - j < BLOCK ? (int)(end - j) : BLOCK;

        if (args->stream) {
            prefetch_ahead(at(args, args->gate, row, pairs ? 2 * j : j), n * args->size * (pairs ? 2 : 1));
            if (!pairs)
                prefetch_ahead(at(args, args->up, row, j), n * args->size);
            if (args->backward)
                prefetch_ahead(at(args, args->dout, row, j), n * args->size);
        }
        if (pairs) {
            load_pairs(dtype, &l, at(args, args->gate, row, 2 * j), n);
        } else {
            load_block(dtype, split, l.a, at(args, args->gate, row, j), n, l.half[0]);
            load_block(dtype, split, l.b, at(args, args->up, row, j), n, l.half[0]);
        }
        if (args->backward)
            load_block(dtype, split, l.dy, at(args, args->dout, row, j), n, l.half[0]);
        compute(&l, whole_steps(n), round, scale, args->o);
        if (args->drow && split)
            drow_add(part, l.p, j, n, true);
        else if (args->drow)
            drow_add(part, l.p, j, n, false);
        if (args->backward && pairs) {
            store_pairs(dtype, at(args, args->out, row, 2 * j), &l, n, args->stream);
            continue;
        }
        store_block(dtype, split, at(args, args->out, row, j), l.y0, n, l.half[0], args->stream);
        if (args->backward)
            store_block(dtype, split, at(args, args->second, row, j), l.y1, n, l.half[0], args->stream);
    }
    if (args->drow)
        args->drow[row] = drow_total(part);
}

/* cpu_runs.h: the fp8 codes of a run of groups, by table or by arithmetic, and of a group at an edge. */
#ifndef RIDGE_CPU_QUANTIZE_RUNS_H
#define RIDGE_CPU_QUANTIZE_RUNS_H

#ifdef __AVX512VBMI__
#include "cpu_tables.h"
#endif
#include "cpu_vectors.h"

/* The codes of a run. The scale of group i and its reciprocal are s[i * step] and r[i * step]. */
static void encode_run(const quantize_args *a, const group_run *g, const float *s, const float *r, int step)
{
    encoder *encode = pick_encoder(a->dtype, a->e5m2, ONE);
    group_run row = *g;
    int64_t done = 0;

#ifdef __AVX512VBMI__
    if (a->tables && a->e5m2)
        encode_by_table(a, 1, row, s, r, step);
    else if (a->tables)
        encode_by_table(a, 0, row, s, r, step);
    if (a->tables)
        return;
#endif
    do {
        for (int i = 0; i < row.n; i++) {
            prefetch_next(&row, i);
            encode_one(encode, &row, i, s[i * step], r + i * step);
        }
        next_row(&row);
    } while (++done < g->rows);
}

/* The n < 128 elements at the edge. */
static void encode_edge(const quantize_args *a, const char *x, int64_t n, float s, float r, uint8_t *q)
{
    _Alignas(64) uint8_t codes[G];
    _Alignas(64) char padded[G * 4];

    if (n > 0) {
        encode_scaled(pick_encoder(a->dtype, a->e5m2, ONE), whole_group(x, n, a->size, padded), s, &r, codes);
        put(q, codes, n, a->stream);
    }
}

#endif

/* cpu_tables.h: fp8 codes of bf16 by table, for processors with AVX512-VBMI.
 *
 * x = 2^(E-127) (1 + m/128) times r = 2^(R-127) (1 + f) is rounded to f32 and then to fp8, both times relative to its
 * size while the code is a normal number. So code(x) = code(1 + m/128, at 1 + f) + units (E + R - 254), where a unit is
 * one in the exponent field: a table of 128 bytes that depends only on f, and byte arithmetic. Smaller codes follow
 * the table no more; such a group is left to the arithmetic, but for what becomes zero in any case. Groups whose amax
 * is bf16 have 128 different f, which differ in their first eight bits: a thread keeps its tables and finds them by
 * those.
 *
 * Per 64 codes 18 micro-operations on Intel's two ports instead of 47: bytes of two vectors are merged by shifts and
 * selections, low bytes with low bytes, because a permutation of two sources is three; one at the end puts the codes
 * in order. */
#ifndef RIDGE_CPU_QUANTIZE_TABLES_H
#define RIDGE_CPU_QUANTIZE_TABLES_H

#include "cpu_vectors.h"

/* What the loop needs of a group: which table, and the largest exponent field whose numbers all have code 0. */
typedef struct by_table {
    uint32_t tag; /* NO_TABLE: r is not a number, or so large that `least` would be negative */
    int least;
} by_table;

enum { TABLE_USED = 0x800000, NO_TABLE = 1 };

INLINE uint32_t slot_of(uint32_t tag)
{
    return tag >> 15 & 255;
}

static void make_table(quantize_tables *tables, int e5m2, uint32_t tag)
{
    const float one = ridge_float(0x3f800000u | (tag & 0x7fffffu));
    const uint8_t least = e5m2 ? 19 * 4 : 12 * 8; /* exponent fields start there, and not at 254 */
    uint8_t *code = tables->code[slot_of(tag)];
    uint16_t x[G];

    for (int m = 0; m < G; m++)
        x[m] = (uint16_t)(0x3f80 + m);
    pick_encoder(RIDGE_BF16, e5m2, ONE)((const char *)x, &one, code);
    for (int m = 0; m < G; m++)
        code[m] = (uint8_t)(code[m] - least);
    tables->tag[slot_of(tag)] = tag;
}

/* Makes the table of r unless it is there. It may displace another. */
INLINE by_table find_table(quantize_tables *tables, int e5m2, float r)
{
    const uint32_t bits = ridge_bits(r), exponent = bits >> 23, below = e5m2 ? 19 : 12;
    by_table t = {TABLE_USED | (bits & 0x7fffffu), (int)(254 - below - exponent)};

    if (exponent - 1 > 253 - below)
        t.tag = NO_TABLE;
    else if (tables->tag[slot_of(t.tag)] != t.tag)
        make_table(tables, e5m2, t.tag);
    return t;
}

/* What does not change from group to group, hidden from the compiler, which would compute it again for each. */
typedef struct table_constants {
    __m512i evens, ones, sign, tiny, order;
} table_constants;

INLINE table_constants table_constants_of(int e5m2)
{
    table_constants c = {_mm512_set1_epi16(0x00ff), _mm512_set1_epi8(-1), _mm512_set1_epi8((char)0x80),
                         _mm512_set1_epi8(e5m2 ? 4 : 5), zeros()};
    uint8_t order[64]; /* byte 2i of the codes is element i, byte 2i + 1 element i + 32 */

    for (int i = 0; i < 64; i++)
        order[i] = (uint8_t)(2 * (i % 32) + i / 32);
    c.order = load(order);
    __asm__("" : "+v"(c.evens), "+v"(c.ones), "+v"(c.sign), "+v"(c.tiny), "+v"(c.order));
    return c;
}

/* The codes of 64 elements as if they were all normal, in the order of `high`, and how far their exponents are above
 * `least`. */
INLINE __m512i codes_by_table(int e5m2, const table_constants *c, const uint8_t *code, __m512i least, __m512i x,
                              __m512i y, __m512i *high, __m512i *above)
{
    const __m512i low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(y, 8), x, c->evens, 0xf8); /* a | b & c */
    const __m512i mantissa = _mm512_permutex2var_epi8(load(code), low, load(code + 64));
    __m512i twice;

    *high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(x, 8), y, c->evens, 0xf4); /* a | b & ~c */
    twice = _mm512_add_epi8(*high, *high);
    *above = _mm512_subs_epu8(_mm512_mask_sub_epi8(twice, _mm512_movepi8_mask(low), twice, c->ones), least);
    return _mm512_add_epi8(mantissa, _mm512_slli_epi16(*above, e5m2 ? 2 : 3));
}

/* The codes of a row of a run, without the groups that have an element that is neither zero nor surely normal: `left`
 * lists these, and their number is returned. */
INLINE int run_by_table(const quantize_tables *tables, int e5m2, const table_constants *c, group_run g,
                        const by_table *t, uint8_t *left)
{
    int count = 0;

    for (int i = 0; i < g.n; i++) {
        const char *x = g.x + i * g.x_step;
        const __m512i least = _mm512_set1_epi8((char)t[i].least);
        __m512i q[2], high[2], above[2];

        prefetch_next(&g, i);
        if (tables->tag[slot_of(t[i].tag)] != t[i].tag) { /* none, or displaced by that of a later group */
            left[count++] = (uint8_t)i;
            continue;
        }
        UNROLL
        for (int k = 0; k < 2; k++)
            q[k] = codes_by_table(e5m2, c, tables->code[slot_of(t[i].tag)], least, load(x + k * 128),
                                  load(x + k * 128 + 64), &high[k], &above[k]);
        if (_mm512_cmple_epu8_mask(_mm512_min_epu8(above[0], above[1]), c->tiny)) {
            __mmask64 small[2], none[2];

            for (int k = 0; k < 2; k++) {
                small[k] = _mm512_cmple_epu8_mask(above[k], c->tiny);
                none[k] = _mm512_testn_epi8_mask(above[k], above[k]);
                q[k] = _mm512_mask_mov_epi8(q[k], small[k], zeros());
            }
            if (small[0] != none[0] || small[1] != none[1]) {
                left[count++] = (uint8_t)i;
                continue;
            }
        }
        UNROLL
        for (int k = 0; k < 2; k++)
            q[k] = _mm512_permutexvar_epi8(c->order, _mm512_ternarylogic_epi32(q[k], high[k], c->sign, 0xf8));
        put_vectors(g.q + i * g.q_step, q, g.stream);
    }
    return count;
}

/* The codes of a run, the tables of which are found once for all rows. */
INLINE void encode_by_table(const quantize_args *a, int e5m2, group_run g, const float *s, const float *r, int step)
{
    const table_constants c = table_constants_of(e5m2);
    int64_t done = 0;
    by_table t[G];

    for (int i = 0; i < g.n; i++)
        t[i] = find_table(a->tables, e5m2, r[i * step]);
    do {
        uint8_t left[G];
        const int count = run_by_table(a->tables, e5m2, &c, g, t, left);

        for (int k = 0; k < count; k++)
            encode_one(pick_encoder(a->dtype, e5m2, ONE), &g, left[k], s[left[k] * step], r + left[k] * step);
        next_row(&g);
    } while (++done < g.rows);
}

#endif

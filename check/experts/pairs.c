/* pairs.c: the oracles of moe_permute, which is checked by what a sorted order is, and of moe_combine and its gradient
 * in float64. */
#include <math.h>
#include <stdlib.h>

#include "experts.h"

void oracle_experts_permute(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    const int64_t slots = call->dim[1], experts = call->dim[2], pairs = call->dim[0] * slots;
    int64_t before = -1, row = 0, dropped = 0;
    double last = -1;

    oracle_note(s, oracle_out(s, RIDGE_MOE_PERMUTE_OFFSETS, 0, 0) == 0 ? 0 : INFINITY, "first offset", 0, 0);
    for (int64_t i = 0; i < pairs; i++) {
        const double place = oracle_out(s, RIDGE_MOE_PERMUTE_PLACE, i / slots, i % slots);
        const double id = oracle_in(s, RIDGE_MOE_PERMUTE_IDS, i / slots, i % slots);
        const bool valid = id >= 0 && id < (double)experts;

        dropped += !valid;
        oracle_note(s,
                    valid         ? (place >= 0 && place < (double)pairs ? 0 : INFINITY)
                    : place == -1 ? 0
                                  : INFINITY,
                    "place", i / slots, i % slots);
        if (valid && place >= 0 && place < (double)pairs)
            oracle_note(s, oracle_out(s, RIDGE_MOE_PERMUTE_ROWS, 0, (int64_t)place) == (double)i ? 0 : INFINITY,
                        "row of a pair", 0, i);
    }
    for (int64_t e = 0; e < experts; e++) {
        const double end = oracle_out(s, RIDGE_MOE_PERMUTE_OFFSETS, 0, e + 1);

        last = -1;
        for (; row < pairs && (double)row < end; row++) {
            before = (int64_t)oracle_out(s, RIDGE_MOE_PERMUTE_ROWS, 0, row);
            if (before < 0 || before >= pairs || (double)before <= last) {
                oracle_note(s, INFINITY, "order of rows", 0, row);
                continue;
            }
            last = (double)before;
            oracle_note(s,
                        oracle_in(s, RIDGE_MOE_PERMUTE_IDS, before / slots, before % slots) == (double)e ? 0 : INFINITY,
                        "row among those of another expert", 0, row);
        }
        oracle_note(s, (double)row == end ? 0 : INFINITY, "offset", 0, e + 1);
    }
    oracle_note(s, row + dropped == pairs ? 0 : INFINITY, "number of rows", 0, row);
    for (; row < pairs; row++)
        oracle_note(s, oracle_out(s, RIDGE_MOE_PERMUTE_ROWS, 0, row) == -1 ? 0 : INFINITY, "row of no expert", 0, row);
}

/* The row of a slot; -1: none. */
static int64_t row_of(const oracle_run *s, int place, int64_t t, int64_t slot)
{
    const double row = oracle_in(s, place, t, slot);

    return row >= 0 && row < (double)(s->im->call.dim[0] * s->im->call.dim[1]) ? (int64_t)row : -1;
}

/* One result of a sum whose terms have the magnitude `size`. Beyond 2^120 an f32 intermediate may be infinite: only a
 * NaN must show. */
static void check(oracle_run *s, int out, int64_t r, int64_t j, double sum, double size, double units)
{
    const uint32_t dtype = s->im->call.arg[out].dtype;
    const double got = oracle_out(s, out, r, j);

    if (!(size < 0x1p120))
        oracle_note(s, isnan(sum) && !isnan(got) ? INFINITY : 0, "a number where NaN belongs", r, j);
    else
        oracle_note(s,
                    oracle_ratio(got, sum,
                                 units * (0x1p-24 * size + 0x1p-149) + 0.5 * dtype_ulp(sum, dtype) * (1 + 0x1p-20),
                                 dtype),
                    "result", r, j);
}

static void forward(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    const int64_t slots = call->dim[1];

    for (int64_t t = 0; t < call->dim[0]; t++)
        for (int64_t j = 0; j < call->dim[2]; j++) {
            double sum = 0, size = 0;

            for (int64_t i = 0; i < slots; i++) {
                const int64_t row = row_of(s, RIDGE_MOE_COMBINE_PLACE, t, i);
                const double w =
                    s->im->length[RIDGE_MOE_COMBINE_WEIGHTS] ? oracle_in(s, RIDGE_MOE_COMBINE_WEIGHTS, t, i) : 1;

                if (row >= 0) {
                    sum += w * oracle_in(s, RIDGE_MOE_COMBINE_Y, row, j);
                    size += fabs(w * oracle_in(s, RIDGE_MOE_COMBINE_Y, row, j));
                }
            }
            for (int arg = RIDGE_MOE_COMBINE_SHARED; arg <= RIDGE_MOE_COMBINE_RESIDUAL; arg++)
                if (s->im->length[arg]) {
                    sum += oracle_in(s, arg, t, j);
                    size += fabs(oracle_in(s, arg, t, j));
                }
            check(s, RIDGE_MOE_COMBINE_OUT, t, j, sum, size, (double)slots + 2);
        }
}

static void backward(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    const int64_t cols = call->dim[2];

    for (int64_t t = 0; t < call->dim[0]; t++)
        for (int64_t i = 0; i < call->dim[1]; i++) {
            const int64_t row = row_of(s, RIDGE_MOE_COMBINE_BWD_PLACE, t, i);
            const double w =
                s->im->length[RIDGE_MOE_COMBINE_BWD_WEIGHTS] ? oracle_in(s, RIDGE_MOE_COMBINE_BWD_WEIGHTS, t, i) : 1;
            const bool dot = s->im->length[RIDGE_MOE_COMBINE_BWD_DWEIGHTS] > 0;
            double sum = 0, size = 0;

            for (int64_t j = 0; j < cols && row >= 0; j++) {
                const double g = oracle_in(s, RIDGE_MOE_COMBINE_BWD_DOUT, t, j);

                check(s, RIDGE_MOE_COMBINE_BWD_DY, row, j, w * g, fabs(w * g), 1);
                if (dot && cols) {
                    sum += g * oracle_in(s, RIDGE_MOE_COMBINE_BWD_Y, row, j);
                    size += fabs(g * oracle_in(s, RIDGE_MOE_COMBINE_BWD_Y, row, j));
                }
            }
            if (dot)
                check(s, RIDGE_MOE_COMBINE_BWD_DWEIGHTS, t, i, sum, size, (double)cols / 32 + 8);
        }
}

void oracle_experts_combine(oracle_run *s)
{
    if (s->im->call.op == RIDGE_MOE_COMBINE)
        forward(s);
    else
        backward(s);
}

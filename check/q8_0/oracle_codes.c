/* oracle_codes.c: float64 checks of what makes Q8_0 codes and moves them: q8_0_quantize, q8_0_quantize_rows,
 * q8_0_repack, q8_0_unpack. */
#include <math.h>
#include <string.h>

#include "q8_0.h"

static void check_block(oracle_run *run, int64_t r, int64_t b)
{
    const uint8_t *block = oracle_address(run->im, run->got, RIDGE_Q8_0_QUANTIZE_BLOCKS, r, b * 34);
    double d = dtype_load(block, RIDGE_F16), amax = 0, want;
    bool finite = true;

    for (int i = 0; i < 32; i++) {
        finite = finite && isfinite(oracle_in(run, 0, r, 32 * b + i));
        amax = fmax(amax, fabs(oracle_in(run, 0, r, 32 * b + i)));
    }
    want = amax / 127;
    if (!finite)
        oracle_note(run, isnan(d) ? 0 : INFINITY, "d of a block that is not finite", r, b);
    else if (want >= 65520)
        oracle_note(run, isinf(d) ? 0 : INFINITY, "d above the range of f16", r, b);
    else
        oracle_note(run, fabs(d - want) / (0.5 * dtype_ulp(want, RIDGE_F16) + want * 0x1p-22), "d", r, b);
    for (int i = 0; i < 32; i++) {
        int code = (int8_t)block[2 + i];
        double v = finite && want >= 0x1p-127 ? oracle_in(run, 0, r, 32 * b + i) / want : code;

        oracle_note(run, finite || code == 0 ? fabs(code - v) / (0.5 + 0x1p-16) : INFINITY, "code", r, b * 32 + i);
    }
}

void oracle_blocks(oracle_run *run)
{
    const image *im = run->im;

    for (int64_t r = 0; r < im->call.dim[0]; r++)
        for (int64_t b = 0; b < im->call.dim[1] / 32; b++) {
            const uint8_t *raw = oracle_address(im, run->got, RIDGE_Q8_0_REPACK_BLOCKS, r, b * 34);

            if (im->call.op == RIDGE_Q8_0_QUANTIZE)
                check_block(run, r, b);
            else if (memcmp(raw, oracle_address(im, run->got, RIDGE_Q8_0_REPACK_SCALES, r, b), 2) ||
                     memcmp(raw + 2, oracle_address(im, run->got, RIDGE_Q8_0_REPACK_CODES, r, b * 32), 32))
                oracle_note(run, INFINITY, "block", r, b);
        }
}

void oracle_quantize_rows(oracle_run *run)
{
    const image *im = run->im;

    for (int64_t r = 0; r < im->call.dim[0]; r++)
        for (int64_t b = 0; b < im->call.dim[1] / 32; b++) {
            const double d = oracle_out(run, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES, r, b);
            const int8_t *codes = oracle_address(im, run->got, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, r, 32 * b);
            double amax = 0, want;
            bool finite = true;

            for (int i = 0; i < 32; i++) {
                finite = finite && isfinite(oracle_in(run, 0, r, 32 * b + i));
                amax = fmax(amax, fabs(oracle_in(run, 0, r, 32 * b + i)));
            }
            want = amax / 127;
            if (!finite)
                oracle_note(run, isnan(d) ? 0 : INFINITY, "scale of a group that is not finite", r, b);
            else if (want < 0x1p-126 * (1 - 0x1p-24)) /* just below it may round up to it */
                oracle_note(run, d == 0 ? 0 : INFINITY, "scale below 2^-126", r, b);
            else
                oracle_note(run, fabs(d - want) / dtype_ulp(want, RIDGE_F32), "scale", r, b);
            for (int i = 0; i < 32; i++) {
                const double v = finite && d > 0 ? oracle_in(run, 0, r, 32 * b + i) / want : 0;

                oracle_note(run, fabs(codes[i] - v) / (finite && d > 0 ? 0.5 + 0x1p-15 : 0x1p-99), "code", r,
                            32 * b + i);
            }
        }
}

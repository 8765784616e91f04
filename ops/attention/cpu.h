/* cpu.h: what the files of kv_append and attention_decode on the CPU share. */
#ifndef RIDGE_CPU_ATTENTION_H
#define RIDGE_CPU_ATTENTION_H

#include "args.h"

/* The work of one instruction set. */

/* Head h of q, k and v of token t: bias, norm, RoPE, into out or the cache; c and s have n_rot/2 entries each. */
typedef void append_head(const append_args *args, int64_t t, int64_t h, const float *c, const float *s);

/* Up to ROWS queries of a KV head against one piece: their o, m and l into the workspace. Row r is token
 * r / group, head kv_head * group + r % group. */
enum { RIDGE_ATTENTION_ROWS = 16 };
typedef void attention_piece(const attention_args *args, int64_t kv_head, int64_t piece, int64_t first_row, int rows);

/* The pieces of a query and head into out. */
typedef void attention_merge(const attention_args *args, int64_t t, int64_t head);

typedef struct attention_level {
    append_head *append;
    attention_piece *piece;
    attention_merge *merge;
} attention_level;

extern const attention_level ridge_cpu_attention_c;
#if defined(__x86_64__)
extern const attention_level ridge_cpu_attention_avx2, ridge_cpu_attention_avx512;
#endif

#endif

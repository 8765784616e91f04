/* load.h: what weights.c and matrix.c share while a file's weights are put on a device. */
#ifndef RIDGE_LM_LOAD_H
#define RIDGE_LM_LOAD_H

#include "lm.h"

#define lm_code_bytes ridge_lm_code_bytes
#define lm_format_of ridge_lm_format_of
#define lm_matrix_load ridge_lm_matrix_load
#define lm_scale_bytes ridge_lm_scale_bytes
#define lm_stored_as ridge_lm_stored_as

#define TRY(expression)                       \
    do {                                      \
        const ridge_status s_ = (expression); \
        if (s_)                               \
            return s_;                        \
    } while (0)

enum { LM_LOAD_PANEL = 1 << 20 }; /* elements that are converted at a time */

/* What loading has seen. */
typedef struct lm_loader {
    ridge_lm *lm;
    void *raw, *blocks; /* host memory: a piece of the file, its blocks of Q8_0 */
    int64_t raw_bytes;
    void *staged; /* the device's, for a piece of the file; NULL where the device's memory is the host's */
    float *values;
    bool *used;                                                                        /* tensors, by their number */
    int64_t matrices[RIDGE_TYPES], file_bytes[RIDGE_TYPES], device_bytes[RIDGE_TYPES]; /* by type and as Q8_0, or ... */
    int64_t kept[RIDGE_TYPES], kept_bytes[RIDGE_TYPES];                                /* ... in the file's format */
} lm_loader;

/* A type's format, where products read it; else RIDGE_I8: Q8_0. lm_stored_as: in which a matrix of a file is kept. */
ridge_dtype lm_format_of(uint32_t type);
ridge_dtype lm_stored_as(const ridge_lm *lm, const ridge_entry *e);
/* Bytes of codes or tiles, and of scales. packed: rows of codes are not padded, as products of experts want them. */
int64_t lm_code_bytes(ridge_dtype format, int64_t rows, int64_t cols, bool packed);
int64_t lm_scale_bytes(ridge_dtype format, int64_t rows, int64_t cols);
/* Some tensors with equally long rows, stored alike, one after the other; step_bytes counts them. */
ridge_status lm_matrix_load(lm_loader *l, const ridge_entry *const *parts, const int64_t *rows, int count, int64_t cols,
                            bool packed, lm_matrix *m);

#endif

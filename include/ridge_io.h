/** @file ridge_io.h
 * checkpoint files in and out: safetensors (single and sharded) and GGUF (single and split). Library: ridge_io.
 *
 *     ridge_file *file;
 *     if (ridge_file_open("model.safetensors", &file) != RIDGE_OK) puts(ridge_io_error());
 *     const ridge_entry *t = ridge_file_find(file, "lm_head.weight");
 *     ridge_file_read(file, t, 0, memory, t->bytes);
 *     ridge_file_close(file);
 *
 * Files are read with pread, never mapped, so that a file that shrinks is an error and not a signal. Everything that a
 * header claims is checked against the file's size before it is used or allocated. Writing is atomic: a file without a
 * name (where that is not to be had: with a random one beside the target), fsync, rename. An open ridge_file is
 * immutable and may be used by any number of threads; a ridge_writer belongs to one. The library never prints, aborts
 * or exits. docs/numerics.md, Formats. */
#ifndef RIDGE_IO_H
#define RIDGE_IO_H

#include "ridge.h"

#ifdef __cplusplus
extern "C" {
#endif

/** This thread's last message of a ridge_io function: file, offset, value. Empty before the first error. Valid until
 * this thread's next error. */
RIDGE_API const char *ridge_io_error(void);

/* ----------------------------------------------------------------------------------------------------------- types */

/** Element and block types of both formats. A block type stores `block` elements in `bytes` bytes. */
typedef enum ridge_type {
    RIDGE_TYPE_NONE = 0,
    RIDGE_TYPE_F64,
    RIDGE_TYPE_F32,
    RIDGE_TYPE_F16,
    RIDGE_TYPE_BF16,
    RIDGE_TYPE_F8_E4M3,
    RIDGE_TYPE_F8_E5M2,
    RIDGE_TYPE_F8_E8M0,
    RIDGE_TYPE_F8_E4M3FNUZ,
    RIDGE_TYPE_F8_E5M2FNUZ,
    RIDGE_TYPE_F6_E2M3, /**< sub-byte types: 4 elements in 3 bytes, 2 in 1 */
    RIDGE_TYPE_F6_E3M2,
    RIDGE_TYPE_F4,
    RIDGE_TYPE_BOOL,
    RIDGE_TYPE_I8,
    RIDGE_TYPE_U8,
    RIDGE_TYPE_I16,
    RIDGE_TYPE_U16,
    RIDGE_TYPE_I32,
    RIDGE_TYPE_U32,
    RIDGE_TYPE_I64,
    RIDGE_TYPE_U64,
    RIDGE_TYPE_C64,
    RIDGE_TYPE_Q4_0, /**< GGUF block types */
    RIDGE_TYPE_Q4_1,
    RIDGE_TYPE_Q5_0,
    RIDGE_TYPE_Q5_1,
    RIDGE_TYPE_Q8_0,
    RIDGE_TYPE_Q8_1,
    RIDGE_TYPE_Q2_K,
    RIDGE_TYPE_Q3_K,
    RIDGE_TYPE_Q4_K,
    RIDGE_TYPE_Q5_K,
    RIDGE_TYPE_Q6_K,
    RIDGE_TYPE_Q8_K,
    RIDGE_TYPE_IQ2_XXS,
    RIDGE_TYPE_IQ2_XS,
    RIDGE_TYPE_IQ2_S,
    RIDGE_TYPE_IQ3_XXS,
    RIDGE_TYPE_IQ3_S,
    RIDGE_TYPE_IQ1_S,
    RIDGE_TYPE_IQ1_M,
    RIDGE_TYPE_IQ4_NL,
    RIDGE_TYPE_IQ4_XS,
    RIDGE_TYPE_TQ1_0,
    RIDGE_TYPE_TQ2_0,
    RIDGE_TYPE_MXFP4,
    RIDGE_TYPE_NVFP4,
    RIDGE_TYPE_Q1_0,
    RIDGE_TYPE_Q2_0,
    RIDGE_TYPES
} ridge_type;

/** A type of a file. */
typedef struct ridge_type_info {
    const char *name;    /**< "BF16", "Q4_K" */
    int32_t block;       /**< elements of a block; 1 for plain types */
    int32_t bytes;       /**< bytes of a block */
    int32_t gguf;        /**< GGUF's id, -1 if it has none */
    int32_t safetensors; /**< 1 if safetensors has it */
    int32_t dequantize;  /**< 1 if ridge_dequantize knows it */
} ridge_type_info;

/** Describes a type; NULL if type is RIDGE_TYPE_NONE or out of range. */
RIDGE_API const ridge_type_info *ridge_type_query(uint32_t type);

/** `count` elements (a multiple of the block) of `from` as f32, byte for byte what ggml's reference gives. Types: F64,
 * F32, F16, BF16, F8_E4M3, F8_E5M2, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K .. Q6_K. `from` needs no alignment. Errors:
 * RIDGE_ERR_ARG (NULL, count), RIDGE_ERR_UNSUPPORTED (type). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_dequantize(uint32_t type, const void *from, int64_t count, float *to);

/** The reverse, from f32 to blocks: byte for byte what ggml's reference quantisers give for finite input. Types: Q4_0,
 * Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4 (Q8_0: the op q8_0_quantize). A block that holds NaN or infinity decodes to
 * NaN, of MXFP4 to infinity. `to` needs no alignment. Errors: those of ridge_dequantize. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_quantize(uint32_t type, const float *from, int64_t count, void *to);

/* --------------------------------------------------------------------------------------------------------- reading */

/** Dimensions of a tensor at most. */
enum { RIDGE_MAX_RANK = 8 };

/** File formats. */
typedef enum ridge_format { RIDGE_SAFETENSORS = 1, RIDGE_GGUF } ridge_format;

typedef struct ridge_file ridge_file; /**< An open checkpoint. */

/** A tensor of a file. */
typedef struct ridge_entry {
    const char *name;              /**< UTF-8 without NUL bytes */
    uint32_t type;                 /**< ridge_type */
    int32_t rank;                  /**< 0 = a scalar */
    int64_t shape[RIDGE_MAX_RANK]; /**< outermost first, innermost (contiguous) last: GGUF's ne[] reversed */
    int64_t elements;              /**< product of the shape */
    int64_t bytes;                 /**< of its data */
    int64_t offset;                /**< from the beginning of its file */
    int32_t shard;                 /**< index of its file; 0 unless sharded */
    int32_t reserved;              /**< 0 */
} ridge_entry;

/** Kinds of metadata. */
typedef enum ridge_meta_kind {
    RIDGE_META_U8 = 0, /**< the numbers are GGUF's */
    RIDGE_META_I8,
    RIDGE_META_U16,
    RIDGE_META_I16,
    RIDGE_META_U32,
    RIDGE_META_I32,
    RIDGE_META_F32,
    RIDGE_META_BOOL,
    RIDGE_META_STRING,
    RIDGE_META_ARRAY,
    RIDGE_META_U64,
    RIDGE_META_I64,
    RIDGE_META_F64
} ridge_meta_kind;

/** A metadata entry. safetensors' __metadata__ holds strings only. */
typedef struct ridge_meta {
    const char *key;  /**< UTF-8 */
    uint32_t kind;    /**< ridge_meta_kind */
    uint32_t element; /**< kind of an array's elements; else equal to kind */
    int64_t count;    /**< elements of an array; else 1 */
    const void *data; /**< packed values, unaligned, little endian; strings: u64 length + bytes, one after the other */
    int64_t bytes;    /**< of data */
} ridge_meta;

/** Opens a .safetensors file, a .gguf file (told apart by their first bytes), a model.safetensors.index.json with its
 * shards, any part of a split GGUF (X-00001-of-00003.gguf: all of them are opened, and must be there), or a directory
 * that holds one of these (index first, then model.safetensors, then a single *.safetensors or *.gguf). Shards beyond
 * the first 256 are opened for each read, and must not be replaced meanwhile. Errors: RIDGE_ERR_ARG (NULL),
 * RIDGE_ERR_FILE (the text names the file, the tensor or key and the value). On error *file is NULL. Every rule of the
 * two formats is enforced: see docs/numerics.md. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_file_open(const char *path, ridge_file **file);

/** Closes a file; NULL is allowed. */
RIDGE_API void ridge_file_close(ridge_file *file);

/** The format of a file. A file that is NULL has no format (0), no shards, no tensors and no metadata. */
RIDGE_API ridge_format ridge_file_format(const ridge_file *file);
/** How many files it is. */
RIDGE_API int32_t ridge_file_shards(const ridge_file *file);
/** The path of a shard; NULL if out of range. */
RIDGE_API const char *ridge_file_path(const ridge_file *file, int32_t shard);
/** The size of a shard; -1 if out of range. */
RIDGE_API int64_t ridge_file_bytes(const ridge_file *file, int32_t shard);

/** How many tensors there are. */
RIDGE_API int64_t ridge_file_tensors(const ridge_file *file);
/** A tensor, in the order of their data (sharded: shard by shard); NULL if out of range. */
RIDGE_API const ridge_entry *ridge_file_tensor(const ridge_file *file, int64_t index);
/** A tensor by name; NULL if it is not there. */
RIDGE_API const ridge_entry *ridge_file_find(const ridge_file *file, const char *name);

/** How many metadata entries there are. */
RIDGE_API int64_t ridge_file_metas(const ridge_file *file);
/** A metadata entry; NULL if out of range. */
RIDGE_API const ridge_meta *ridge_file_meta(const ridge_file *file, int64_t index);
/** A metadata entry by key; NULL if it is not there. */
RIDGE_API const ridge_meta *ridge_file_meta_find(const ridge_file *file, const char *key);

/** Copies bytes [begin, begin + bytes) of a tensor's data to memory. Errors: RIDGE_ERR_ARG (range), RIDGE_ERR_FILE
 * (read error, or the file has become shorter). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_file_read(const ridge_file *file, const ridge_entry *tensor, int64_t begin,
                                                     void *memory, int64_t bytes);

/* --------------------------------------------------------------------------------------------------------- writing */

typedef struct ridge_writer ridge_writer; /**< A file that is being written. */

/** Starts a file: declare metadata and all tensors, ridge_writer_begin, write the data, ridge_writer_finish. The target
 * does not change before ridge_writer_finish succeeds; a symbolic link at path is then replaced, not followed. The
 * directory is the one that path names now, whatever becomes of it or of the working directory. Errors: RIDGE_ERR_ARG,
 * RIDGE_ERR_FILE (no such directory, none that can be read and written, no space; the text says which). On error
 * *writer is NULL. The functions that follow fail likewise: RIDGE_ERR_ARG also for another order than this; the writer
 * is still there then (but after ridge_writer_finish), after RIDGE_ERR_ARG to go on with, else to abort. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_writer_open(const char *path, ridge_format format, ridge_writer **writer);

/** Adds metadata; for safetensors only strings. A key that is there
 * already is replaced. general.alignment is the writer's own and ignored here. */
RIDGE_API ridge_status ridge_writer_meta(ridge_writer *writer, const ridge_meta *meta);
/** Adds one string. */
RIDGE_API ridge_status ridge_writer_meta_string(ridge_writer *writer, const char *key, const char *value);
/** Adds one number. */
RIDGE_API ridge_status ridge_writer_meta_u32(ridge_writer *writer, const char *key, uint32_t value);

/** Declares a tensor; *index is its handle. Errors: a type that the format lacks, a shape that overflows or does not
 * divide into blocks, a duplicate, empty or too long name. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_writer_tensor(ridge_writer *writer, const char *name, uint32_t type,
                                                         int32_t rank, const int64_t *shape, int64_t *index);

/** Lays the file out and writes its header. safetensors: tensors by descending alignment, then in declared order. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_writer_begin(ridge_writer *writer);

/** Writes bytes [begin, begin + bytes) of a tensor's data, in any order, each byte once. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_writer_write(ridge_writer *writer, int64_t index, int64_t begin,
                                                        const void *memory, int64_t bytes);

/** Checks that all data was written, syncs, and renames into place. Frees the writer in any case; on error the target
 * is untouched and what was written is gone, unless the text says that the directory could not be synced: the file is
 * in place then. The file has a name beside the target for a moment before the rename, which a crash then may leave. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_writer_finish(ridge_writer *writer);

/** Gives up what was written and frees the writer; the target is untouched. NULL is allowed. */
RIDGE_API void ridge_writer_abort(ridge_writer *writer);

#ifdef __cplusplus
}
#endif

#endif

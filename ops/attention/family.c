/* family.c: what ops/attention registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_kv_append, ridge_op_attention_decode, ridge_op_attention_prefill,
    ridge_op_kv_append_attention;
extern const ridge_kernel_list ridge_cuda_kv_append, ridge_cuda_attention, ridge_cuda_attention_tile,
    ridge_cuda_attention_piece, ridge_cuda_attention_prefill, ridge_cuda_attention_prefill_sm90,
    ridge_cuda_append_attention, ridge_cuda_append_query, ridge_cuda_attention_prompt, ridge_cpu_attention,
    ridge_cpu_attention_prefill;

static const ridge_op_row *const ops[] = {&ridge_op_kv_append, &ridge_op_attention_decode, &ridge_op_attention_prefill,
                                          &ridge_op_kv_append_attention};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_kv_append,       &ridge_cuda_attention_tile,    &ridge_cuda_attention,
    &ridge_cuda_attention_piece, &ridge_cuda_attention_prefill, &ridge_cuda_attention_prefill_sm90,
    &ridge_cuda_append_query,    &ridge_cuda_append_attention,  &ridge_cuda_attention_prompt,
#endif
    &ridge_cpu_attention,        &ridge_cpu_attention_prefill,  NULL};

const ridge_family ridge_family_attention = {"attention", sizeof ops / sizeof ops[0], ops, rows};

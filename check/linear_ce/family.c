/* family.c: the suites of cross entropy, and what it registers. */
#include "linear_ce.h"

extern const ridge_family ridge_family_linear_ce;

static void oracle(oracle_run *run)
{
    if (run->im->call.op == RIDGE_CE_COMBINE)
        oracle_ce_combine(run);
    else
        oracle_ce(run);
}

/* A phase of linear_ce_train goes on with what the phases before it left. */
static int before(const ridge_call *call, ridge_call *list)
{
    const uint32_t phase = call->op == RIDGE_LINEAR_CE_TRAIN ? call->flags & RIDGE_CE_PHASE : 0;
    const int count = phase == RIDGE_CE_DX ? 1 : phase == RIDGE_CE_DW ? 2 : 0;

    for (int i = 0; i < count; i++) {
        list[i] = *call;
        list[i].flags = (call->flags & ~RIDGE_CE_PHASE) | (i ? RIDGE_CE_DX : RIDGE_CE_BEGIN);
    }
    return count;
}

static const suite_row suites[] = {
    {"quick", "linear_ce_eval tokens=64 hidden=256 vocab=2048 dtype=bf16 target=i64"},
    {"quick", "linear_ce_train tokens=64 hidden=256 vocab=2048 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=4096 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=4096 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=4096 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=8192 hidden=2304 vocab=256000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=8192 hidden=2304 vocab=256000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=8192 hidden=2304 vocab=256000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=16384 hidden=2048 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_eval tokens=16384 hidden=2048 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_backward tokens=16384 hidden=2048 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce", "linear_ce_train tokens=1024 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"losses", "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none lse=1"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none lse=1 entropy=1"},
    {"losses", "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none lse=1 ids=64"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none lse=1 topk=64"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none lse=1 topk=256"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none lse=1 sample=1"},
    {"losses", "linear_ce_backward tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none"},
    {"losses", "linear_ce_train tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64"},
    {"losses", "linear_ce_train tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none scale=1"},
    {"losses",
     "linear_ce_backward tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none dentropy=1"},
    {"losses", "linear_ce_backward tokens=8192 hidden=4096 vocab=128256 dtype=bf16 target=i64 reduction=none ids=64"},
    {"losses", "linear_ce_eval tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64 reduction=none lse=1"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64 reduction=none lse=1 entropy=1"},
    {"losses", "linear_ce_backward tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64 reduction=none"},
    {"losses",
     "linear_ce_backward tokens=8192 hidden=4096 vocab=151936 dtype=bf16 target=i64 reduction=none dentropy=1"},
    {"losses", "linear_ce_eval tokens=8192 hidden=2880 vocab=201088 dtype=bf16 target=i64 reduction=none lse=1"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=2880 vocab=201088 dtype=bf16 target=i64 reduction=none lse=1 entropy=1"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=2880 vocab=201088 dtype=bf16 target=i64 reduction=none lse=1 topk=64"},
    {"losses", "linear_ce_backward tokens=8192 hidden=2880 vocab=201088 dtype=bf16 target=i64 reduction=none"},
    {"losses",
     "linear_ce_backward tokens=8192 hidden=2880 vocab=201088 dtype=bf16 target=i64 reduction=none dentropy=1"},
    {"losses", "linear_ce_eval tokens=8192 hidden=2048 vocab=248320 dtype=bf16 target=i64 reduction=none lse=1"},
    {"losses",
     "linear_ce_eval tokens=8192 hidden=2048 vocab=248320 dtype=bf16 target=i64 reduction=none lse=1 entropy=1"},
    {"losses", "linear_ce_backward tokens=8192 hidden=2048 vocab=248320 dtype=bf16 target=i64 reduction=none"},
    {"losses",
     "linear_ce_backward tokens=8192 hidden=2048 vocab=248320 dtype=bf16 target=i64 reduction=none dentropy=1"},
    {"losses", "linear_ce_eval tokens=4096 hidden=3840 vocab=262144 dtype=bf16 target=i64 reduction=none lse=1"},
    {"losses",
     "linear_ce_eval tokens=4096 hidden=3840 vocab=262144 dtype=bf16 target=i64 reduction=none lse=1 entropy=1"},
    {"losses",
     "linear_ce_eval tokens=4096 hidden=3840 vocab=262144 dtype=bf16 target=i64 reduction=none lse=1 topk=64"},
    {"losses", "linear_ce_backward tokens=4096 hidden=3840 vocab=262144 dtype=bf16 target=i64 reduction=none"},
    {"losses",
     "linear_ce_backward tokens=4096 hidden=3840 vocab=262144 dtype=bf16 target=i64 reduction=none dentropy=1"},
    {"losses", "linear_ce_eval tokens=4096 hidden=7168 vocab=129280 dtype=bf16 target=i64 reduction=none lse=1"},
    {"losses",
     "linear_ce_eval tokens=4096 hidden=7168 vocab=129280 dtype=bf16 target=i64 reduction=none lse=1 entropy=1"},
    {"losses",
     "linear_ce_eval tokens=4096 hidden=7168 vocab=129280 dtype=bf16 target=i64 reduction=none lse=1 topk=64"},
    {"losses", "linear_ce_backward tokens=4096 hidden=7168 vocab=129280 dtype=bf16 target=i64 reduction=none"},
    {"losses",
     "linear_ce_backward tokens=4096 hidden=7168 vocab=129280 dtype=bf16 target=i64 reduction=none dentropy=1"},
    {"linear_ce-cpu", "linear_ce_eval tokens=512 hidden=1024 vocab=16384 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "linear_ce_train tokens=512 hidden=1024 vocab=16384 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "linear_ce_backward tokens=512 hidden=1024 vocab=16384 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "ce_fwd tokens=1024 vocab=32000 dtype=bf16 target=i64"},
    {"linear_ce-cpu", "ce_bwd tokens=1024 vocab=32000 dtype=bf16 target=i64"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "linear_ce_eval tokens=21 hidden=72 vocab=136 dtype=bf16 bias=1 class_weight=1 label_smoothing=0.2 "
    "lse_square_scale=0.05 softcap=6 temperature=0.8 token_loss=1 lse=1 target_logit=1 entropy=1 argmax=1 accuracy=1 "
    "errors=1 ids=3 topk=5 sample=1 sample_score=1",
    "linear_ce_eval tokens=21 hidden=72 vocab=136 dtype=bf16 bias=1 class_weight=1 label_smoothing=0.2 softcap=6 "
    "temperature=0.8 token_loss=1 lse=1 target_logit=1 entropy=1 argmax=1 accuracy=1 errors=1 ids=3",
    "linear_ce_eval tokens=21 hidden=72 vocab=136 dtype=f32 bias=1 class_weight=1 label_smoothing=0.2 softcap=6 "
    "temperature=0.8 token_loss=1 lse=1 target_logit=1 entropy=1 argmax=1 accuracy=1 errors=1 ids=3",
    "linear_ce_train tokens=21 hidden=72 vocab=136 dtype=f16 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 "
    "softcap=6 temperature=0.8 bias=1 dbias=1 accumulate=1 grad_scale=0.5 scale=1",
    "linear_ce_train tokens=21 hidden=72 vocab=136 dtype=f32 class_weight=1 label_smoothing=0.2 softcap=6 "
    "temperature=0.8 bias=1 dbias=1 accumulate=1 grad_scale=0.5 scale=1",
    "linear_ce_backward tokens=21 hidden=72 vocab=136 dtype=bf16 class_weight=1 label_smoothing=0.2 "
    "lse_square_scale=0.05 softcap=6 temperature=0.8 reduction=none dentropy=1 ids=4",
    "linear_ce_backward tokens=21 hidden=72 vocab=136 dtype=f32 class_weight=1 label_smoothing=0.2 softcap=6 "
    "temperature=0.8 reduction=none dentropy=1 ids=4",
    "ce_fwd tokens=21 vocab=136 dtype=bf16 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 softcap=6 "
    "temperature=0.8 "
    "token_loss=1 lse=1 target_logit=1 entropy=1 argmax=1 accuracy=1 errors=1",
    "ce_bwd tokens=21 vocab=136 dtype=bf16 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 softcap=6 "
    "temperature=0.8 dentropy=1",
    "ce_combine tokens=21 vocab=136 shards=3 sums=1 class_weight=1 label_smoothing=0.2 lse_square_scale=0.05 "
    "token_loss=1 lse=1 target_logit=1 entropy=1 errors=1",
    NULL,
};

const check_family check_linear_ce = {
    .family = &ridge_family_linear_ce,
    .cases = cases_ce,
    .oracle = oracle,
    .fill = fill_ce,
    .before = before,
    .variants = CE_VARIANTS,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = ce_faults,
};

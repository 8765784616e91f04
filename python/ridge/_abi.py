"""Made from include/ridge.h by python/generate_abi.py: do not edit."""
VERSION = (0, 2, 0)

STRICT = 0x1
WEIGHTS_CONST = 0x2
SILU = 0x0
GELU_TANH = 0x100
GELU_ERF = 0x200
RELU2 = 0x300
ROUND_GATE = 0x400
ROUND_GATE_BWD = 0x800
INTERLEAVED = 0x1000
POW2 = 0x40000
ACCUMULATE = 0x400000
GROUPED_M = 0x0
GROUPED_K = 0x100
GROUPED_MASKED = 0x200
ROPE_INVERSE = 0x100
ROPE_ONLY = 0x200
ROPE_HALVES = 0x400
CE_MEAN = 0x0
CE_SUM = 0x100
CE_NONE = 0x200
CE_W_HV = 0x400
CE_RECORD_SUMS = 0x1000
CE_BEGIN = 0x2000
CE_DX = 0x4000
CE_DW = 0x8000
ROUTE_SOFTMAX = 0x0
ROUTE_TOPK_SOFTMAX = 0x100
ROUTE_SIGMOID = 0x200
ROUTE_SQRT_SOFTPLUS = 0x300
ROUTE_NORMALISE = 0x400
ROUTE_GROUP_MAX = 0x800
ROUTE_GIVEN = 0x1000
OK = 0
ERR_ARG = 1
ERR_UNSUPPORTED = 2
ERR_WORKSPACE = 3
ERR_DEVICE = 4
ERR_FILE = 5
ERR_PEER = 6
NONE = 0
F32 = 1
F16 = 2
BF16 = 3
E4M3 = 4
E5M2 = 5
F64 = 6
I8 = 7
U8 = 8
I32 = 9
I64 = 10
Q4_0 = 11
Q4_1 = 12
Q8_0 = 13
MXFP4 = 14
Q2_K = 15
Q4_K = 16
Q5_K = 17
Q6_K = 18
IQ2_XXS = 19
DTYPES = 20
SCALING_NONE = 0
SCALING_TENSOR = 1
SCALING_ROW = 2
SCALING_ROW128 = 3
SCALING_BLK128 = 4
SCALING_ROW32 = 5
SCALING_ROW128_T = 6
Q8_0_MAX_TOKENS = 16
Q8_0_MAX_PROMPT = 65536
MAX_HC = 16
MAX_HEAD_DIM = 512
MOE_MAX_EXPERTS = 1024
MOE_MAX_SLOTS = 32
MOE_MAX_TOKENS = 16
OP_NONE = 0
SWIGLU_FWD = 1
SWIGLU_BWD = 2
QUANTIZE_FP8 = 3
QUANTIZE_FP8_DUAL = 4
SWIGLU_QUANTIZE = 5
GEMM_FP8 = 6
Q8_0_QUANTIZE = 7
Q8_0_REPACK = 8
Q8_0_UNPACK = 9
Q8_0_QUANTIZE_ROWS = 10
Q8_0_MATMUL = 11
Q8_0_PAIR = 12
Q8_0_GATE_UP_SWIGLU = 13
Q8_0_MATMUL_HC_EXPAND = 14
RMS_NORM = 15
HEAD_RMS_NORM_ROPE_TAIL = 16
ADD_RMS_NORM = 17
RMS_NORM_BWD = 18
ROPE = 19
LINEAR_CE_EVAL = 20
LINEAR_CE_TRAIN = 21
LINEAR_CE_BACKWARD = 22
CE_FWD = 23
CE_BWD = 24
CE_COMBINE = 25
MULTIPLY = 26
SUM = 27
KV_APPEND = 28
ATTENTION_DECODE = 29
ATTENTION_PREFILL = 30
KV_APPEND_ATTENTION = 31
EMBED = 32
SAMPLE = 33
BLOCK_REPACK = 34
BLOCK_UNPACK = 35
BLOCK_MATMUL = 36
BLOCK_PAIR = 37
BLOCK_GATE_UP_SWIGLU = 38
MOE_ROUTE = 39
MOE_GATE_UP_SWIGLU = 40
MOE_DOWN = 41
GEMM_FP8_GROUPED = 42
MOE_PERMUTE = 43
MOE_PERMUTE_QUANTIZE = 44
MOE_SWIGLU_QUANTIZE = 45
MOE_COMBINE = 46
MOE_COMBINE_BWD = 47
MOE_ROUTE_BWD = 48
MOE_SWIGLU_BWD_QUANTIZE = 49
HC_MIX = 50
HC_SPLIT = 51
TRANSPOSE_FP8 = 52
DIVERGENCE = 53
OPS = 54
MAX_DIMS = 6
MAX_ARGS = 24

# number of each op; operand slots of each op by name
OPS_BY_NAME = {
    'swiglu_fwd': 1, 'swiglu_bwd': 2, 'quantize_fp8': 3, 'quantize_fp8_dual': 4, 'swiglu_quantize': 5,
    'gemm_fp8': 6, 'q8_0_quantize': 7, 'q8_0_repack': 8, 'q8_0_unpack': 9, 'q8_0_quantize_rows': 10,
    'q8_0_matmul': 11, 'q8_0_pair': 12, 'q8_0_gate_up_swiglu': 13, 'q8_0_matmul_hc_expand': 14,
    'rms_norm': 15, 'head_rms_norm_rope_tail': 16, 'add_rms_norm': 17, 'rms_norm_bwd': 18, 'rope': 19,
    'linear_ce_eval': 20, 'linear_ce_train': 21, 'linear_ce_backward': 22, 'ce_fwd': 23, 'ce_bwd': 24,
    'ce_combine': 25, 'multiply': 26, 'sum': 27, 'kv_append': 28, 'attention_decode': 29,
    'attention_prefill': 30, 'kv_append_attention': 31, 'embed': 32, 'sample': 33, 'block_repack': 34,
    'block_unpack': 35, 'block_matmul': 36, 'block_pair': 37, 'block_gate_up_swiglu': 38, 'moe_route': 39,
    'moe_gate_up_swiglu': 40, 'moe_down': 41, 'gemm_fp8_grouped': 42, 'moe_permute': 43,
    'moe_permute_quantize': 44, 'moe_swiglu_quantize': 45, 'moe_combine': 46, 'moe_combine_bwd': 47,
    'moe_route_bwd': 48, 'moe_swiglu_bwd_quantize': 49, 'hc_mix': 50, 'hc_split': 51, 'transpose_fp8': 52,
    'divergence': 53,
}
SLOTS = {
    'swiglu_fwd': {
        'gate': 0, 'up': 1, 'out': 2, 'row_scale': 3,
    },
    'swiglu_bwd': {
        'dout': 0, 'gate': 1, 'up': 2, 'dgate': 3, 'dup': 4, 'row_scale': 5, 'drow': 6,
    },
    'quantize_fp8': {
        'x': 0, 'q': 1, 'scale': 2, 'given': 3, 'amax': 4,
    },
    'quantize_fp8_dual': {
        'x': 0, 'q': 1, 'scale': 2, 'q_t': 3, 'scale_t': 4, 'colsum': 5,
    },
    'swiglu_quantize': {
        'gate': 0, 'up': 1, 'q': 2, 'scale': 3, 'q_t': 4, 'scale_t': 5, 'row_scale': 6,
    },
    'gemm_fp8': {
        'a': 0, 'scale_a': 1, 'b': 2, 'scale_b': 3, 'd': 4, 'bias': 5,
    },
    'q8_0_quantize': {
        'x': 0, 'blocks': 1,
    },
    'q8_0_repack': {
        'blocks': 0, 'codes': 1, 'scales': 2,
    },
    'q8_0_unpack': {
        'blocks': 0, 'codes': 1, 'scales': 2,
    },
    'q8_0_quantize_rows': {
        'x': 0, 'codes': 1, 'scales': 2,
    },
    'q8_0_matmul': {
        'x': 0, 'x_scales': 1, 'w': 2, 'w_scales': 3, 'out': 4, 'norm': 5,
    },
    'q8_0_pair': {
        'x': 0, 'x_scales': 1, 'w0': 2, 'w0_scales': 3, 'w1': 4, 'w1_scales': 5, 'out0': 6, 'out1': 7,
    },
    'q8_0_gate_up_swiglu': {
        'x': 0, 'x_scales': 1, 'gate': 2, 'gate_scales': 3, 'up': 4, 'up_scales': 5, 'out': 6,
        'token_scale': 7, 'norm': 8,
    },
    'q8_0_matmul_hc_expand': {
        'x': 0, 'x_scales': 1, 'w': 2, 'w_scales': 3, 'post': 4, 'comb': 5, 'res': 6, 'add': 7, 'out': 8,
        'y': 9,
    },
    'rms_norm': {
        'x': 0, 'w': 1, 'out': 2,
    },
    'head_rms_norm_rope_tail': {
        'x': 0, 'w': 1, 'pos': 2, 'freqs': 3, 'out': 4,
    },
    'add_rms_norm': {
        'x': 0, 'residual': 1, 'w': 2, 'sum': 3, 'out': 4, 'scale': 5,
    },
    'rms_norm_bwd': {
        'dout': 0, 'x': 1, 'w': 2, 'dx': 3, 'dw': 4, 'dsum': 5,
    },
    'rope': {
        'x': 0, 'pos': 1, 'freqs': 2, 'out': 3,
    },
    'linear_ce_eval': {
        'x': 0, 'w': 1, 'target': 2, 'loss': 3, 'bias': 4, 'class_weight': 5, 'token_loss': 6, 'lse': 7,
        'target_logit': 8, 'entropy': 9, 'argmax': 10, 'accuracy': 11, 'errors': 12, 'record': 13,
        'grad_scale': 14, 'dx': 15, 'dw': 16, 'dbias': 17, 'ids': 18, 'id_logprob': 19, 'top_id': 20,
        'top_logprob': 21, 'sample_id': 22, 'sample_logprob': 23, 'seed': 14, 'counter': 15,
        'sample_score': 16,
    },
    'linear_ce_train': {
        'x': 0, 'w': 1, 'target': 2, 'loss': 3, 'bias': 4, 'class_weight': 5, 'token_loss': 6, 'lse': 7,
        'target_logit': 8, 'entropy': 9, 'argmax': 10, 'accuracy': 11, 'errors': 12, 'record': 13,
        'grad_scale': 14, 'dx': 15, 'dw': 16, 'dbias': 17, 'ids': 18, 'id_logprob': 19, 'top_id': 20,
        'top_logprob': 21, 'sample_id': 22, 'sample_logprob': 23, 'seed': 14, 'counter': 15,
        'sample_score': 16,
    },
    'linear_ce_backward': {
        'x': 0, 'w': 1, 'target': 2, 'lse': 3, 'dloss': 4, 'bias': 5, 'class_weight': 6, 'dx': 7, 'dw': 8,
        'dbias': 9, 'entropy': 10, 'dentropy': 11, 'ids': 12, 'id_logprob': 13, 'did_logprob': 14,
    },
    'ce_fwd': {
        'logits': 0, 'target': 1, 'loss': 2, 'class_weight': 3, 'token_loss': 4, 'lse': 5, 'target_logit': 6,
        'entropy': 7, 'argmax': 8, 'accuracy': 9, 'errors': 10, 'record': 11,
    },
    'ce_bwd': {
        'logits': 0, 'target': 1, 'lse': 2, 'dloss': 3, 'class_weight': 4, 'dlogits': 5, 'entropy': 6,
        'dentropy': 7,
    },
    'ce_combine': {
        'record': 0, 'offset': 1, 'target': 2, 'loss': 3, 'class_weight': 4, 'token_loss': 5, 'lse': 6,
        'target_logit': 7, 'entropy': 8, 'argmax': 9, 'accuracy': 10, 'errors': 11, 'shard_argmax': 12,
    },
    'multiply': {
        'x': 0, 'factor': 1, 'out': 2,
    },
    'sum': {
        'x': 0, 'out': 1,
    },
    'kv_append': {
        'qkv': 0, 'pos': 1, 'freqs': 2, 'out': 3, 'k': 4, 'v': 5, 'bias': 6, 'q_norm': 7, 'k_norm': 8,
    },
    'attention_decode': {
        'q': 0, 'k': 1, 'v': 2, 'pos': 3, 'out': 4, 'sinks': 5,
    },
    'attention_prefill': {
        'q': 0, 'k': 1, 'v': 2, 'pos': 3, 'out': 4, 'sinks': 5,
    },
    'kv_append_attention': {
        'qkv': 0, 'pos': 1, 'freqs': 2, 'out': 3, 'k': 4, 'v': 5, 'bias': 6, 'q_norm': 7, 'k_norm': 8,
        'sinks': 9,
    },
    'embed': {
        'table': 0, 'table_scales': 1, 'ids': 2, 'out': 3,
    },
    'sample': {
        'logits': 0, 'seed': 1, 'counter': 2, 'history': 3, 'token': 4,
    },
    'block_repack': {
        'blocks': 0, 'tiles': 1,
    },
    'block_unpack': {
        'blocks': 0, 'tiles': 1,
    },
    'block_matmul': {
        'x': 0, 'x_scales': 1, 'w': 2, 'out': 3, 'bias': 4, 'residual': 5,
    },
    'block_pair': {
        'x': 0, 'x_scales': 1, 'w0': 2, 'w1': 3, 'out0': 4, 'out1': 5, 'bias0': 6, 'bias1': 7,
    },
    'block_gate_up_swiglu': {
        'x': 0, 'x_scales': 1, 'gate': 2, 'up': 3, 'out': 4, 'gate_bias': 5, 'up_bias': 6, 'token_scale': 7,
    },
    'moe_route': {
        'logits': 0, 'ids': 1, 'weights': 2, 'bias': 3, 'logit_bias': 4,
    },
    'moe_gate_up_swiglu': {
        'x': 0, 'x_scales': 1, 'gate': 2, 'gate_scales': 3, 'up': 4, 'up_scales': 5, 'ids': 6, 'out': 7,
        'out_scales': 8, 'gate_bias': 9, 'up_bias': 10,
    },
    'moe_down': {
        'x': 0, 'x_scales': 1, 'w': 2, 'w_scales': 3, 'ids': 4, 'weights': 5, 'out': 6, 'bias': 7,
        'shared': 8, 'residual': 9, 'post': 10, 'comb': 11, 'res': 12,
    },
    'gemm_fp8_grouped': {
        'a': 0, 'scale_a': 1, 'b': 2, 'scale_b': 3, 'd': 4, 'offsets': 5, 'bad': 6, 'bias': 7,
    },
    'moe_permute': {
        'ids': 0, 'offsets': 1, 'rows': 2, 'place': 3,
    },
    'moe_permute_quantize': {
        'x': 0, 'rows': 1, 'offsets': 2, 'q': 3, 'scale': 4, 'q_t': 5, 'scale_t': 6, 'offsets_t': 7,
    },
    'moe_swiglu_quantize': {
        'gate': 0, 'up': 1, 'offsets': 2, 'q': 3, 'scale': 4, 'q_t': 5, 'scale_t': 6, 'offsets_t': 7,
        'row_scale': 8,
    },
    'moe_combine': {
        'y': 0, 'place': 1, 'weights': 2, 'out': 3, 'shared': 4, 'residual': 5,
    },
    'moe_combine_bwd': {
        'dout': 0, 'y': 1, 'place': 2, 'weights': 3, 'dy': 4, 'dweights': 5,
    },
    'moe_route_bwd': {
        'logits': 0, 'ids': 1, 'dweights': 2, 'dlogits': 3, 'logit_bias': 4,
    },
    'moe_swiglu_bwd_quantize': {
        'dout': 0, 'gate': 1, 'up': 2, 'offsets': 3, 'q': 4, 'scale': 5, 'q_t': 6, 'scale_t': 7,
        'offsets_t': 8, 'row_scale': 9, 'drow': 10,
    },
    'hc_mix': {
        'res': 0, 'fn': 1, 'out': 2,
    },
    'hc_split': {
        'res': 0, 'fn': 1, 'scale': 2, 'base': 3, 'out': 4, 'out_scales': 5, 'w': 6, 'post': 7, 'comb': 8,
        'floats': 9,
    },
    'transpose_fp8': {
        'q': 0, 'scale': 1, 'q_t': 2, 'scale_t': 3,
    },
    'divergence': {
        'student': 0, 'teacher': 1, 'loss': 2, 'dlogits': 3, 'scale': 4, 'lse': 5, 'teacher_lse': 6,
        'own': 7,
    },
}

# arguments of each builder, and fields of each option struct, as "type name"
BUILDERS = {
    'swiglu_fwd': 'int64 rows, int64 cols, dtype dtype, pointer gate, pointer up, pointer out',
    'swiglu_bwd': 'int64 rows, int64 cols, dtype dtype, pointer dout, pointer gate, pointer up, pointer dgate, pointer dup',
    'quantize_fp8': 'int64 rows, int64 cols, tensor x, tensor q',
    'quantize_fp8_dual': 'int64 rows, int64 cols, tensor x, tensor q, tensor q_t',
    'transpose_fp8': 'int64 rows, int64 cols, tensor q, tensor q_t',
    'swiglu_quantize': 'int64 rows, int64 cols, dtype dtype, pointer gate, pointer up, tensor q, tensor q_t',
    'gemm_fp8': 'int64 m, int64 n, int64 k, tensor a, tensor b, tensor d',
    'gemm_fp8_grouped': 'int64 m, int64 n, int64 k, int64 groups, tensor a, tensor b, tensor d, tensor offsets',
    'q8_0_quantize': 'int64 rows, int64 cols, tensor x, pointer blocks',
    'q8_0_repack': 'int64 rows, int64 cols, pointer blocks, tensor planes',
    'q8_0_unpack': 'int64 rows, int64 cols, tensor planes, pointer blocks',
    'q8_0_quantize_rows': 'int64 rows, int64 cols, tensor x, tensor codes',
    'q8_0_matmul': 'int64 tokens, int64 cols, int64 rows, tensor x, tensor w, tensor out',
    'q8_0_pair': 'int64 tokens, int64 cols, int64 rows0, int64 rows1, tensor x, tensor w0, tensor w1, tensor out0, tensor out1',
    'q8_0_gate_up_swiglu': 'int64 tokens, int64 cols, int64 rows, tensor x, tensor gate, tensor up, tensor out',
    'q8_0_matmul_hc_expand': 'int64 tokens, int64 cols, int64 rows, int64 n_hc, tensor x, tensor w, pointer post, pointer comb, pointer res,'
        ' pointer out',
    'block_repack': 'int64 rows, int64 cols, pointer blocks, tensor tiles',
    'block_unpack': 'int64 rows, int64 cols, tensor tiles, pointer blocks',
    'block_matmul': 'int64 tokens, int64 cols, int64 rows, tensor x, tensor w, tensor out',
    'block_pair': 'int64 tokens, int64 cols, int64 rows0, int64 rows1, tensor x, tensor w0, tensor w1, tensor out0, tensor out1',
    'block_gate_up_swiglu': 'int64 tokens, int64 cols, int64 rows, tensor x, tensor gate, tensor up, tensor out',
    'rms_norm': 'int64 rows, int64 cols, tensor x, tensor w, tensor out',
    'head_rms_norm_rope_tail': 'int64 tokens, int64 heads, int64 head_dim, int64 n_rot, tensor x, tensor w, tensor pos, pointer freqs, tensor '
        'out',
    'add_rms_norm': 'int64 rows, int64 cols, tensor x, tensor residual, tensor w, tensor sum, tensor out',
    'rms_norm_bwd': 'int64 rows, int64 cols, tensor dout, tensor x, tensor w, tensor dx, tensor dw',
    'rope': 'int64 tokens, int64 heads, int64 head_dim, int64 n_rot, tensor x, tensor pos, pointer freqs, tensor out',
    'linear_ce_eval': 'int64 tokens, int64 hidden, int64 vocab, tensor x, tensor w, tensor target, pointer loss',
    'linear_ce_train': 'int64 tokens, int64 hidden, int64 vocab, tensor x, tensor w, tensor target, pointer loss, tensor dx, tensor dw',
    'linear_ce_backward': 'int64 tokens, int64 hidden, int64 vocab, tensor x, tensor w, tensor target, pointer lse, tensor dx, tensor dw',
    'ce_fwd': 'int64 tokens, int64 vocab, tensor logits, tensor target, pointer loss',
    'ce_bwd': 'int64 tokens, int64 vocab, tensor logits, tensor target, pointer lse, tensor dlogits',
    'ce_combine': 'int64 tokens, int64 vocab, int64 shards, pointer record, pointer offset, tensor target, pointer loss',
    'multiply': 'int64 rows, int64 cols, tensor x, pointer factor, tensor out',
    'sum': 'int64 rows, int64 cols, int64 parts, tensor x, tensor out',
    'kv_append': 'int64 tokens, int64 heads, int64 kv_heads, int64 head_dim, int64 positions, tensor qkv, pointer pos, pointer '
        'freqs, tensor out, tensor k, tensor v',
    'attention_decode': 'int64 tokens, int64 heads, int64 kv_heads, int64 head_dim, int64 positions, tensor q, tensor k, tensor v, '
        'pointer pos, tensor out',
    'attention_prefill': 'int64 tokens, int64 heads, int64 kv_heads, int64 head_dim, int64 positions, tensor q, tensor k, tensor v, '
        'pointer pos, tensor out',
    'kv_append_attention': 'int64 tokens, int64 heads, int64 kv_heads, int64 head_dim, int64 positions, tensor qkv, pointer pos, pointer '
        'freqs, tensor out, tensor k, tensor v',
    'embed': 'int64 tokens, int64 cols, int64 vocab, tensor table, tensor ids, tensor out',
    'sample': 'int64 rows, int64 vocab, int64 history, tensor logits, pointer seed, pointer counter, tensor past, tensor '
        'token',
    'moe_route': 'int64 tokens, int64 experts, int64 slots, tensor logits, pointer ids, pointer weights',
    'moe_gate_up_swiglu': 'int64 tokens, int64 cols, int64 rows, int64 experts, int64 slots, tensor x, tensor gate, tensor up, pointer '
        'ids, tensor out',
    'moe_down': 'int64 tokens, int64 cols, int64 rows, int64 experts, int64 slots, tensor x, tensor w, pointer ids, pointer '
        'weights, tensor out',
    'moe_permute': 'int64 tokens, int64 slots, int64 experts, pointer ids, pointer offsets, pointer rows, pointer place',
    'moe_permute_quantize': 'int64 tokens, int64 slots, int64 cols, int64 experts, tensor x, pointer rows, pointer offsets, tensor q, '
        'tensor q_t, pointer offsets_t',
    'moe_swiglu_quantize': 'int64 rows, int64 cols, int64 experts, dtype dtype, pointer gate, pointer up, pointer offsets, tensor q, '
        'tensor q_t, pointer offsets_t',
    'moe_swiglu_bwd_quantize': 'int64 rows, int64 cols, int64 experts, dtype dtype, pointer dout, pointer gate, pointer up, pointer offsets, '
        'tensor q, tensor q_t, pointer offsets_t',
    'moe_combine': 'int64 tokens, int64 slots, int64 cols, tensor y, pointer place, pointer weights, tensor out',
    'moe_combine_bwd': 'int64 tokens, int64 slots, int64 cols, tensor dout, tensor y, pointer place, pointer weights, tensor dy, '
        'pointer dweights',
    'moe_route_bwd': 'int64 tokens, int64 experts, int64 slots, tensor logits, pointer ids, pointer dweights, tensor dlogits',
    'hc_mix': 'int64 tokens, int64 cols, int64 n_hc, int64 mixes, pointer res, tensor fn, pointer mix',
    'hc_split': 'int64 tokens, int64 cols, int64 n_hc, pointer res, tensor fn, pointer scale, pointer base, tensor w, pointer '
        'post, pointer comb, tensor out',
    'divergence': 'int64 rows, int64 cols, tensor student, tensor teacher, pointer loss',
}
OPTIONS = {
    'swiglu': 'float gate_mul, float down_mul, float alpha, float up_offset, float limit',
    'quantize': 'float floor, int64_t matrices',
    'swiglu_quantize': 'float gate_mul, float down_mul, float alpha, float up_offset, float limit, float floor',
    'q8_0': 'float gate_mul, float down_mul, float alpha, float up_offset, float limit, float eps',
    'norm': 'float eps, float mscale',
    'ce': 'int64_t ignore_index, int64_t vocab_offset, int64_t vocab_total, int64_t ids, int64_t topk, float '
        'label_smoothing, float softcap, float temperature, float lse_square_scale, float grad_scale, float reserved',
    'kv_append': 'int64_t n_rot, float eps, float mscale',
    'attention': 'int64_t window, float scale, float softcap',
    'kv_append_attention': 'int64_t n_rot, float eps, float mscale, int64_t window, float scale, float softcap',
    'embed': 'float scale',
    'sample': 'int64_t top_k, float temperature, float top_p, float min_p, float penalty',
    'moe_route': 'int64_t groups, int64_t top_groups, float scale, float eps',
    'moe_down': 'int64_t n_hc',
    'hc': 'float eps, float hc_eps, int64_t iterations',
    'divergence': 'float beta, float temperature',
}

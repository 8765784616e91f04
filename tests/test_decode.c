/* test_decode.c: what holds between the decode ops, on every CPU level there is: both forms of weights and activations
 * give the same bytes, a fused op gives the bytes of its parts run one after another through f32 memory, a token alone
 * those of the token among others, RoPE at position 1,000,000 included. */
#include <unistd.h>

#include "unit.h"
#include "src/internal.h"

enum { TOKENS = 16, COLS = 1376, ROWS = 45, HC = 4, BLOCKS = COLS / 32, RAW = BLOCKS * 34 };

typedef struct data {
    uint8_t raw[2][ROWS * RAW];
    int8_t codes[2][ROWS * COLS];
    uint16_t scales[2][ROWS * BLOCKS];
    float x[TOKENS * COLS];
    int8_t x_codes[TOKENS * COLS];
    float x_scales[TOKENS * BLOCKS];
    float post[TOKENS * HC], comb[TOKENS * HC * HC], res[TOKENS * HC * ROWS], add[TOKENS * ROWS], weight[TOKENS];
} data;

static data d;
static _Alignas(256) unsigned char workspace[1 << 20];
static uint64_t state = 7;

static float uniform(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(state >> 40) * 0x1p-23f - 1.0f;
}

static void floats(float *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = uniform();
}

static void run(const ridge_device *device, ridge_call call)
{
    ridge_status status = ridge_run(device, &call, workspace, sizeof workspace, NULL);

    if (status)
        printf("%s\n", ridge_error());
    assert_int_equal(status, RIDGE_OK);
}

static ridge_tensor f32(const void *data)
{
    return ridge_matrix(data, RIDGE_F32);
}

#define X_CODES ridge_scaled(d.x_codes, RIDGE_I8, d.x_scales, RIDGE_SCALING_ROW32)

static ridge_tensor weights(int which, bool planes)
{
    return planes ? ridge_scaled(d.codes[which], RIDGE_I8, d.scales[which], RIDGE_SCALING_ROW32)
                  : ridge_matrix(d.raw[which], RIDGE_U8);
}

static void fill(const ridge_device *device)
{
    static float w[ROWS * COLS];
    static uint8_t back[ROWS * RAW];

    for (int i = 0; i < 2; i++) {
        floats(w, ROWS * COLS);
        run(device, ridge_q8_0_quantize(ROWS, COLS, f32(w), d.raw[i]));
        run(device, ridge_q8_0_repack(ROWS, COLS, d.raw[i], weights(i, true)));
        memset(back, 0xff, sizeof back);
        run(device, ridge_q8_0_unpack(ROWS, COLS, weights(i, true), back));
        assert_memory_equal(back, d.raw[i], sizeof back);
    }
    floats(d.x, TOKENS * COLS);
    run(device, ridge_q8_0_quantize_rows(TOKENS, COLS, f32(d.x), X_CODES));
    floats(d.post, TOKENS * HC);
    floats(d.comb, TOKENS * HC * HC);
    floats(d.res, TOKENS * HC * ROWS);
    floats(d.add, TOKENS * ROWS);
    floats(d.weight, TOKENS);
}

static ridge_call product(int tokens, int which, bool planes, bool codes, void *out)
{
    return ridge_q8_0_matmul(tokens, COLS, ROWS, codes ? X_CODES : f32(d.x), weights(which, planes), f32(out));
}

static void forms(const ridge_device *device)
{
    static float y[TOKENS * ROWS], other[TOKENS * ROWS];

    run(device, product(TOKENS, 0, false, false, y));
    for (int form = 1; form < 4; form++) {
        run(device, product(TOKENS, 0, form & 1, form & 2, other));
        assert_memory_equal(y, other, sizeof y);
    }
    for (int tokens = 1; tokens < TOKENS; tokens++) { /* fewer tokens: the same rows */
        memset(other, 0xff, sizeof other);
        run(device, product(tokens, 0, tokens & 1, tokens & 2, other));
        assert_memory_equal(y, other, (size_t)tokens * ROWS * sizeof *y);
    }
}

/* What the header says of tiles: their size, and that matrices of 16 n rows below one another are repacked in one call.
 */
static void tile_layout(const ridge_device *device)
{
    static _Alignas(16) uint8_t one[2 * 16 * (RAW + 64)], parts[sizeof one];
    const int64_t tile = ridge_block_tile_bytes(RIDGE_Q8_0, COLS);

    for (int64_t cols = 32; cols <= 4096; cols += 32) {
        const int64_t most = (cols + 127) / 128 * 128 + 26;

        assert_in_range(ridge_block_tile_bytes(RIDGE_Q4_0, cols), cols / 2 * 18, most / 2 * 18);
        assert_in_range(ridge_block_tile_bytes(RIDGE_Q4_1, cols), cols / 2 * 20, most / 2 * 20);
        assert_in_range(ridge_block_tile_bytes(RIDGE_Q8_0, cols), cols / 2 * 34, most / 2 * 34);
        assert_in_range(ridge_block_tile_bytes(RIDGE_MXFP4, cols), cols / 2 * 17, most / 2 * 17);
    }
    assert_true((size_t)(2 * tile) <= sizeof one);
    run(device, ridge_block_repack(32, COLS, d.raw[0], ridge_matrix(one, RIDGE_Q8_0)));
    for (int i = 0; i < 2; i++)
        run(device,
            ridge_block_repack(16, COLS, d.raw[0] + (size_t)i * 16 * RAW, ridge_matrix(parts + i * tile, RIDGE_Q8_0)));
    assert_memory_equal(one, parts, (size_t)(2 * tile));
}

/* block_matmul of the same blocks in tiles; its fused forms, with biases, give the bits of their parts. */
static void tiles(const ridge_device *device)
{
    static _Alignas(16) uint8_t tiled[2][(ROWS + 15) / 16 * 16 * (RAW + 64)];
    static float y[2][TOKENS * ROWS], other[2][TOKENS * ROWS], act[TOKENS * ROWS], fused[TOKENS * ROWS];
    ridge_tensor w[2];
    ridge_call call;

    assert_true((size_t)ridge_block_tile_bytes(RIDGE_Q8_0, COLS) * ((ROWS + 15) / 16) <= sizeof tiled[0]);
    for (int i = 0; i < 2; i++) {
        w[i] = ridge_matrix(tiled[i], RIDGE_Q8_0);
        run(device, ridge_block_repack(ROWS, COLS, d.raw[i], w[i]));
        run(device, product(TOKENS, i, false, true, y[i]));
        run(device, ridge_block_matmul(TOKENS, COLS, ROWS, f32(d.x), w[i], f32(other[i])));
        assert_memory_equal(y[i], other[i], sizeof y[i]);
    }
    run(device, ridge_block_pair(TOKENS, COLS, ROWS, ROWS, X_CODES, w[0], w[1], f32(other[0]), f32(other[1])));
    assert_memory_equal(y, other, sizeof y);
    for (int i = 0; i < 2; i++) {
        call = ridge_block_matmul(TOKENS, COLS, ROWS, f32(d.x), w[i], f32(other[i]));
        ridge_set(&call, RIDGE_BLOCK_MATMUL_BIAS, RIDGE_F32, d.add, 0);
        run(device, call);
    }
    run(device, ridge_swiglu_fwd(TOKENS, ROWS, RIDGE_F32, other[0], other[1], act));
    call = ridge_block_gate_up_swiglu(TOKENS, COLS, ROWS, X_CODES, w[0], w[1], f32(fused));
    ridge_set(&call, RIDGE_BLOCK_GATE_UP_SWIGLU_GATE_BIAS, RIDGE_F32, d.add, 0);
    ridge_set(&call, RIDGE_BLOCK_GATE_UP_SWIGLU_UP_BIAS, RIDGE_F32, d.add, 0);
    run(device, call);
    assert_memory_equal(act, fused, sizeof act);
}

static void pair(const ridge_device *device)
{
    static float y[2][TOKENS * ROWS], fused[2][TOKENS * ROWS];

    for (int i = 0; i < 2; i++)
        run(device, product(TOKENS, i, false, true, y[i]));
    run(device, ridge_q8_0_pair(TOKENS, COLS, ROWS, ROWS, f32(d.x), weights(0, true), weights(1, true), f32(fused[0]),
                                f32(fused[1])));
    assert_memory_equal(y, fused, sizeof y);
}

static void gate_up(const ridge_device *device)
{
    static float gate[TOKENS * ROWS], up[TOKENS * ROWS], y[TOKENS * ROWS], fused[TOKENS * ROWS];
    static const uint32_t acts[] = {RIDGE_SILU, RIDGE_GELU_TANH, RIDGE_GELU_ERF, RIDGE_RELU2};

    for (int i = 0; i < 4; i++) {
        ridge_call parts = ridge_swiglu_fwd(TOKENS, ROWS, RIDGE_F32, gate, up, y);
        ridge_call whole =
            ridge_q8_0_gate_up_swiglu(TOKENS, COLS, ROWS, X_CODES, weights(0, false), weights(1, false), f32(fused));

        run(device, product(TOKENS, 0, true, false, gate));
        run(device, product(TOKENS, 1, true, false, up));
        parts.flags = whole.flags = acts[i];
        parts.opt.swiglu.limit = whole.opt.swiglu.limit = 4;
        ridge_set(&parts, RIDGE_SWIGLU_FWD_ROW_SCALE, RIDGE_F32, d.weight, 0);
        ridge_set(&whole, RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE, RIDGE_F32, d.weight, 0);
        run(device, parts);
        run(device, whole);
        assert_memory_equal(y, fused, sizeof y);
    }
}

static void expand(const ridge_device *device)
{
    static float v[TOKENS * ROWS], y[TOKENS * ROWS], want[TOKENS * HC * ROWS], fused[TOKENS * HC * ROWS];
    ridge_call whole =
        ridge_q8_0_matmul_hc_expand(TOKENS, COLS, ROWS, HC, f32(d.x), weights(0, true), d.post, d.comb, d.res, fused);

    run(device, product(TOKENS, 0, true, true, v));
    for (int t = 0; t < TOKENS; t++)
        for (int dst = 0; dst < HC; dst++)
            for (int r = 0; r < ROWS; r++) {
                const float sum = v[t * ROWS + r] + d.add[t * ROWS + r];
                float acc = sum * d.post[t * HC + dst];

                for (int src = 0; src < HC; src++)
                    acc = __builtin_fmaf(d.comb[t * HC * HC + dst + HC * src], d.res[(t * HC + src) * ROWS + r], acc);
                want[(t * HC + dst) * ROWS + r] = acc;
            }
    ridge_set(&whole, RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD, RIDGE_F32, d.add, 0);
    ridge_set(&whole, RIDGE_Q8_0_MATMUL_HC_EXPAND_Y, RIDGE_F32, y, 0);
    run(device, whole);
    assert_memory_equal(want, fused, sizeof want);
    assert_memory_equal(v, y, sizeof v);
}

/* The norm of every head as rows of rms_norm, then the rotation alone, at one position and another. */
static void rope(const ridge_device *device)
{
    enum { HEADS = 3, DIM = 192, ROT = 64 };
    static float x[2 * HEADS * DIM], w[DIM], normed[2 * HEADS * DIM], y[2 * HEADS * DIM], fused[2 * HEADS * DIM];
    static double freqs[ROT / 2];
    const int32_t pos[2] = {1000000, 3};
    float mscale;
    ridge_yarn yarn = {sizeof yarn, 0, 1.0 / 16, 65536, 1, 1, 32, 1};
    ridge_call parts, whole;

    assert_int_equal(ridge_rope_freqs(ROT, 160000.0, &yarn, freqs, &mscale), RIDGE_OK);
    floats(x, 2 * HEADS * DIM);
    floats(w, DIM);
    run(device, ridge_rms_norm(2 * HEADS, DIM, f32(x), f32(w), f32(normed)));
    parts = ridge_head_rms_norm_rope_tail(2, HEADS, DIM, ROT, f32(normed), f32(NULL), ridge_matrix(pos, RIDGE_I32),
                                          freqs, f32(y));
    whole = ridge_head_rms_norm_rope_tail(2, HEADS, DIM, ROT, f32(x), f32(w), ridge_matrix(pos, RIDGE_I32), freqs,
                                          f32(fused));
    parts.flags = RIDGE_ROPE_ONLY;
    parts.opt.norm.mscale = whole.opt.norm.mscale = mscale;
    run(device, parts);
    run(device, whole);
    assert_memory_equal(y, fused, sizeof y);
    assert_true(memcmp(normed, y, sizeof y) != 0);
    whole.dim[3] = 0; /* no rotation: the norm of every head */
    run(device, whole);
    assert_memory_equal(normed, fused, sizeof y);
}

/* Rows without columns are no work, however many they are: a loop over them would take an hour. */
static void empty(const ridge_device *device)
{
    const ridge_tensor planes = ridge_scaled(NULL, RIDGE_I8, NULL, RIDGE_SCALING_ROW32);
    const int64_t rows = INT64_C(1) << 40;

    alarm(60);
    run(device, ridge_q8_0_quantize(rows, 0, f32(NULL), NULL));
    run(device, ridge_q8_0_repack(rows, 0, NULL, planes));
    run(device, ridge_q8_0_unpack(rows, 0, planes, NULL));
    run(device, ridge_q8_0_quantize_rows(rows, 0, f32(NULL), planes));
    run(device, ridge_rms_norm(rows, 0, f32(NULL), f32(NULL), f32(NULL)));
    run(device, ridge_swiglu_fwd(rows, 0, RIDGE_F32, NULL, NULL, NULL));
    alarm(0);
}

static void on_level(const char *spec)
{
    ridge_device *device;

    if (ridge_open(spec, &device)) /* this processor has not got it */
        return;
    fill(device);
    forms(device);
    pair(device);
    tile_layout(device);
    tiles(device);
    gate_up(device);
    expand(device);
    rope(device);
    empty(device);
    ridge_close(device);
}

TEST(levels)
{
    on_level("cpu:c");
    on_level("cpu:avx2");
    on_level("cpu:avx512");
}

/* Refusals that name what is wrong. */
TEST(refusals)
{
    static float y[TOKENS * ROWS];
    ridge_device *device;
    ridge_call call;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    call = product(TOKENS, 0, true, true, y);
    call.dim[0] = RIDGE_Q8_0_MAX_PROMPT + 1;
    assert_int_equal(ridge_run(device, &call, workspace, sizeof workspace, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "tokens"));
    call = product(TOKENS, 0, true, true, y);
    call.arg[RIDGE_Q8_0_MATMUL_W_SCALES].data = NULL;
    assert_int_equal(ridge_run(device, &call, workspace, sizeof workspace, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "w_scales"));
    call = product(TOKENS, 0, true, true, y);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_X_SCALES, RIDGE_NONE, NULL, 0);
    assert_int_equal(ridge_run(device, &call, workspace, sizeof workspace, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "x_scales"));
    call = product(TOKENS, 0, false, true, y);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_W_SCALES, RIDGE_F16, d.scales[0], 0);
    assert_int_equal(ridge_run(device, &call, workspace, sizeof workspace, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "w_scales must be absent"));
    call = product(1, 0, true, false, y); /* x is quantised inside: even the reference needs room for that */
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_ERR_WORKSPACE);
    call = ridge_head_rms_norm_rope_tail(1, INT64_C(1) << 40, INT64_C(1) << 40, 2, f32(y), f32(NULL),
                                         ridge_matrix(NULL, RIDGE_I32), NULL, f32(y));
    assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_ERR_ARG);
    ridge_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels), cmocka_unit_test(refusals)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

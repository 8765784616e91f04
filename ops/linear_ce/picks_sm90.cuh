/* picks_sm90.cuh: the epilogues on Hopper that pick classes of a row (top.cuh): its best ones, and one that is drawn.
 * They come after add_logits. Few groups of eight logits have one that counts: a thread finds them by one maximum a
 * group, and writes such a group to shared memory, from where it takes logits by an index, which it could not in
 * registers. N: columns of the tile. */
#ifndef RIDGE_LINEAR_CE_PICKS_SM90_CUH
#define RIDGE_LINEAR_CE_PICKS_SM90_CUH

#include "logits_epilogue_sm90.cuh"
#include "top.cuh"

/* What a consumer knows of its work tile. sums: each thread's, of 64 rows; part, first: by warp, the first row of the
 * consumer's tile. In registers they would spill. */
typedef struct pick_tile {
    row_sums sums[2][128];
    int part[4], first[4];
    float cool[4]; /* 1 / temperature */
} pick_tile;

/* value: eight logits of each thread, columns 8 i + {0, 1} of a group of 32. row: of the rows of the tile, what is
 * known of their lists of this part; a warp's rows are its own. */
typedef struct pick_row {
    float least;
    int count;
} pick_row;

/* id: of the rows of the tile, the class of the next of their ids, and its place in id_order. */
typedef struct pick_smem {
    pick_tile tile;
    float2 value[4][128];
    union {
        pick_row row[G16_BLOCK_M];
        int2 id[G16_BLOCK_M];
    };
} pick_smem;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The first row of a thread in a tile of 64 rows. */
static __device__ __forceinline__ int pick_first(void)
{
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* Asked for where they are used, since kept they would spill: the part, and a thread's first row of 64. */
static __device__ __forceinline__ int pick_warp(void)
{
    int warp = threadIdx.x % 128 / 32;

    asm volatile("" : "+r"(warp));
    return warp;
}

static __device__ __forceinline__ int pick_row_of(const pick_tile *t, int half)
{
    return t->first[pick_warp()] + 64 * half + pick_first();
}

/* Group index / 2 of 32 columns, row index % 2. */
template <int N> static __device__ __forceinline__ void pick_to_shared(pick_smem *s, const float *acc, int index)
{
#pragma unroll
    for (int i = 0; i < N / 16; i++)
        if (i == index)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = i / 2 * 16 + 4 * j + i % 2 * 2;

                s->value[j][threadIdx.x % 128] = make_float2(acc[at], acc[at + 1]);
            }
}

/* Column 8 (i / 2) + i % 2 of the group. */
static __device__ __forceinline__ float pick_value(const pick_smem *s, int i)
{
    return (&s->value[i / 2][threadIdx.x % 128].x)[i % 2];
}

/* Before a work tile. rows: of the consumer, from `first` on. */
static __device__ __forceinline__ void pick_tile_begin(pick_tile *t, int rows, int first, int part, float cool)
{
    if (threadIdx.x % 32 == 0) {
        t->part[threadIdx.x % 128 / 32] = part;
        t->first[threadIdx.x % 128 / 32] = first;
        t->cool[threadIdx.x % 128 / 32] = cool;
    }
    for (int half = 0; half < rows / 64; half++)
        t->sums[half][threadIdx.x % 128] = {{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}, {0.0f, 0.0f}};
}

static __device__ __forceinline__ uint64_t *top_list(const ce_logits_args &a, int row, int part)
{
    return a.c.p.top + ((int64_t)row * a.c.p.parts + part) * CE_TOP_LIST;
}

/* A logit that goes into a list of the row. A NaN is in bin 0, though it is the largest. */
static __device__ __forceinline__ void top_count(const ce_params &p, int64_t row, float z)
{
    const float2 scale = p.top_scale[row];
    const float at = (z - scale.x) * scale.y;

    if (!(at < 0.0f))
        atomicAdd(&p.top_bins[row * CE_TOP_BINS + min((int)at, CE_TOP_BINS - 1)], 1u);
}

static __device__ __forceinline__ void top_begin(const ce_logits_args &a, pick_smem *s, int rows, int first, int part)
{
    const int own = threadIdx.x % 4, r = own / 2 * 64 + own % 2 * 8 + pick_first();

    pick_tile_begin(&s->tile, rows, first, part, 1.0f / a.c.p.temperature);
    if (r < rows)
        s->row[r] = {a.c.p.top_k && first + r < a.c.rows ? a.c.p.top_least[a.c.begin + first + r] : CUDART_NAN_F, 0};
    __syncwarp(); /* orders these writes before the quad's reads */
}

/* By a warp: cuts the lists of its rows that have no room for another N logits. */
template <int N> static __device__ __forceinline__ void top_make_room(const ce_logits_args &a, pick_smem *s, int rows)
{
    const int own = threadIdx.x % 4, r = own / 2 * 64 + own % 2 * 8 + pick_first();
    const bool cuts = r < rows && s->row[r].count > CE_TOP_LIST - N;

#pragma unroll 1
    for (uint32_t full = __ballot_sync(~0u, cuts); full; full &= full - 1) {
        const int of = __shfl_sync(~0u, r, __ffs((int)full) - 1);
        float least;
        const int count = top_cut<false>(top_list(a, s->tile.first[pick_warp()] + of, s->tile.part[pick_warp()]),
                                         s->row[of].count, a.c.p.top_k, N, &least);

        if (threadIdx.x % 32 == 0)
            s->row[of] = {fmaxf(least, s->row[of].least), count};
    }
    __syncwarp(); /* orders the writes before the quads' reads */
}

/* Before a tile: makes room in the lists, and asks what all parts of the rows have found. Each lane of a quad has one
 * row, the consumer `rows` of them. */
template <int N> static __device__ __forceinline__ void top_before_tile(const ce_logits_args &a, pick_smem *s, int rows)
{
    const int own = threadIdx.x % 4, r = own / 2 * 64 + own % 2 * 8 + pick_first();
    const int row = s->tile.first[pick_warp()] + r;

    if (!a.c.p.top_k)
        return;
    top_make_room<N>(a, s, rows);
    if (r < rows && row < a.c.rows)
        s->row[r].least = fmaxf(s->row[r].least, top_known(a.c.p, a.c.begin + row));
    __syncwarp(); /* orders these writes before the quad's reads */
}

/* The larger one, NaN if there is one: NaN is the largest here. */
static __device__ __forceinline__ float max_nan(float a, float b)
{
    float d;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

/* The groups of a thread's two rows that may have a logit for their lists, for pick_to_shared's index; high: the
 * largest of each row. */
template <int N>
static __device__ __forceinline__ uint32_t top_groups(const pick_row *of, int left_rows, const float *acc, float *high)
{
    uint32_t groups = 0;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float least = of[8 * h].least;

        high[h] = -CUDART_INF_F;
#pragma unroll
        for (int g = 0; g < N / GROUP_COLUMNS; g++) {
            float v[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = max_nan(acc[GROUP * g + 4 * j + 2 * h], acc[GROUP * g + 4 * j + 2 * h + 1]);
            v[0] = max_nan(max_nan(v[0], v[1]), max_nan(v[2], v[3]));
            groups |= (uint32_t)(top_may(v[0], least) && 8 * h < left_rows) << (2 * g + h);
            high[h] = fmaxf(high[h], v[0]);
        }
    }
    return __reduce_or_sync(~0u, groups);
}

/* Of 64 x N logits those of `groups` to the lists of their rows. */
template <int N>
static __device__ __forceinline__ void add_top(const ce_logits_args &a, const gemm16_plan &w, pick_smem *s, int half,
                                               int col, uint32_t groups, const float *acc)
{
    const int own = threadIdx.x % 4, class_ = col + 2 * own;

#pragma unroll 1
    for (; groups; groups &= groups - 1) {
        const int index = __ffs((int)groups) - 1, row = pick_row_of(&s->tile, half) + index % 2 * 8;
        const int from = class_ + index / 2 * GROUP_COLUMNS, part = s->tile.part[pick_warp()];
        pick_row *of = &s->row[64 * half + pick_first() + index % 2 * 8];
        const pick_row had = *of;
        uint32_t mask = 0;

        pick_to_shared<N>(s, acc, index);
#pragma unroll
        for (int i = 0; i < GROUP / 2; i++)
            mask |= (uint32_t)(top_may(pick_value(s, i), had.least) && from + 8 * (i / 2) + i % 2 < a.n) << i;
        mask = row < w.m ? mask : 0;
        const int mine = __popc(mask);
        int sum = mine;

#pragma unroll
        for (int up = 1; up < 4; up *= 2) {
            const int before = __shfl_up_sync(~0u, sum, up, 4);

            sum += own >= up ? before : 0;
        }
        __syncwarp(); /* orders the quad's reads of the row before this write */
        if (own == 3)
            of->count = had.count + sum;
        int to = (row * a.c.p.parts + part) * CE_TOP_LIST + had.count + sum - mine;

#pragma unroll 1
        for (; mask; mask &= mask - 1, to++) {
            const int i = __ffs((int)mask) - 1;
            const float z = pick_value(s, i);

            a.c.p.top[to] = top_entry(z, from + 8 * (i / 2) + i % 2);
            top_count(a.c.p, a.c.begin + row, z);
        }
        __syncwarp(); /* orders the write before the next reads */
    }
}

static __device__ __forceinline__ uint64_t quad_max(uint64_t x)
{
    x = max(x, __shfl_xor_sync(~0u, x, 1));
    return max(x, __shfl_xor_sync(~0u, x, 2));
}

/* 64 x N logits to the draws. Whichever entry of other tiles is there already: it only spares scores. */
template <int N>
static __device__ __forceinline__ void add_draw(const ce_logits_args &a, const gemm16_plan &w, int first, int col,
                                                const float *acc)
{
    enum { EACH = GROUP / 2 }; /* of a row: 4 of each of two blocks of 16 classes */
    const int own = threadIdx.x % 4, class_ = col + 2 * own;
    const ce_params &p = a.c.p;
    const int64_t block = (p.offset + col) / 16;

    uint64_t seed[2], counter[2], best[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = (int)a.c.begin + min(first + 8 * h, w.m - 1), token = p.list[row];

        seed[h] = (uint64_t)p.seed[token];
        counter[h] = (uint64_t)p.counter[token];
        best[h] = __ldcg((const unsigned long long *)p.draw + row);
    }
#pragma unroll 1
    for (int g = 0; g < N / GROUP_COLUMNS; g++) {
        const int from = class_ + g * GROUP_COLUMNS;
        float v[GROUP];

        take_group(acc, g, v);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float bound = draw_bound(best[h]);
            uint32_t word[EACH], mask = 0;

            ridge_draw_words(seed[h], counter[h], block + 2 * g, own, word);
            ridge_draw_words(seed[h], counter[h], block + 2 * g + 1, own, word + 4);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                mask |= (uint32_t)(draw_may(v[i / 2 * 4 + 2 * h + i % 2], word[i], bound) &&
                                   from + 8 * (i / 2) + i % 2 < w.n)
                        << i;
#pragma unroll 1
            for (; mask; mask &= mask - 1) {
                const int k = __ffs((int)mask) - 1;
                float z = 0.0f;
                uint32_t of_class = 0;

#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    z = i == k ? v[i / 2 * 4 + 2 * h + i % 2] : z;
                    of_class = i == k ? word[i] : of_class;
                }
                best[h] = max(best[h], top_entry(ridge_draw_score(z, of_class), from + 8 * (k / 2) + k % 2));
            }
            __syncwarp();
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        best[h] = quad_max(best[h]);
        if (first + 8 * h < w.m && own == 0)
            atomicMax((unsigned long long *)p.draw + a.c.begin + first + 8 * h, (unsigned long long)best[h]);
    }
}

/* The epilogue of 64 rows. */
template <int N, bool DRAW>
static __device__ __forceinline__ void add_picks(const ce_logits_args &a, const gemm16_plan &w, pick_smem *s, int half,
                                                 int col, const float *acc)
{
    row_sums sums = s->tile.sums[half][threadIdx.x % 128];
    uint32_t groups = 0;

    if (DRAW) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_logits<N, 1>(&sums, h, acc);
    } else {
        float high[2];

        groups = top_groups<N>(&s->row[64 * half + pick_first()], w.m - pick_row_of(&s->tile, half), acc, high);
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_logits<N, 1>(&sums, h, high[h], acc);
    }
    s->tile.sums[half][threadIdx.x % 128] = sums;
    if (DRAW)
        add_draw<N>(a, w, pick_row_of(&s->tile, half), col, acc);
    else if (a.c.p.top_k)
        add_top<N>(a, w, s, half, col, groups, acc);
}

/* Before a work tile whose first column is col: of each row the first id from there on. */
static __device__ __forceinline__ void ids_begin(const ce_logits_args &a, const gemm16_plan &w, pick_smem *s, int rows,
                                                 int first, int part, int col)
{
    const int own = threadIdx.x % 4, r = own / 2 * 64 + own % 2 * 8 + pick_first(), row = first + r;
    const int2 *order = a.c.p.id_order + (int64_t)row * a.c.p.k;
    int low = 0, high = r < rows && row < w.m ? a.c.p.k : 0, class_ = INT32_MAX;

    pick_tile_begin(&s->tile, rows, first, part, 1.0f / a.c.p.temperature);
    while (low < high) {
        const int middle = (low + high) / 2, v = order[middle].x;

        class_ = v >= col ? v : class_;
        high = v >= col ? middle : high;
        low = v >= col ? low : middle + 1;
    }
    if (r < rows)
        s->id[r] = {class_, low};
}

/* Of 64 x N logits those of ids. A row is a lane's (as in top_before_tile); a consumer passes over ids of tiles that
 * are the other one's. */
template <int N>
static __device__ __forceinline__ void add_ids(const ce_logits_args &a, pick_smem *s, int half, int col,
                                               const float *acc)
{
    const int lane = threadIdx.x % 32, r = 64 * half + lane % 2 * 8 + pick_first();
    const bool mine = lane % 4 / 2 == half;
    const int at = (s->tile.first[pick_warp()] + r) * a.c.p.k;
    int2 next = mine ? s->id[r] : make_int2(INT32_MAX, 0);

#pragma unroll 1
    while (__any_sync(~0u, next.x < col + N)) {
        const bool passes = next.x < col + N;

#pragma unroll 1
        for (uint32_t hits = __ballot_sync(~0u, passes && next.x >= col); hits; hits &= hits - 1) {
            const int from = __ffs((int)hits) - 1, c = __shfl_sync(~0u, next.x, from) - col;

            pick_to_shared<N>(s, acc, c / GROUP_COLUMNS * 2 + from % 2);
            __syncwarp(); /* orders the quad's writes before this read, */
            if (lane == from)
                a.c.p.id_z[at + next.y] =
                    (&s->value[c % GROUP_COLUMNS / 8][threadIdx.x % 128 / 4 * 4 + c % 8 / 2].x)[c % 2];
            __syncwarp(); /* and that before the next writes */
        }
        if (passes) {
            next.y++;
            next.x = next.y < a.c.p.k ? a.c.p.id_order[at + next.y].x : INT32_MAX;
        }
    }
    if (mine)
        s->id[r] = next;
}

/* The epilogue of 64 rows of which ids are wanted. */
template <int N>
static __device__ __forceinline__ void add_sums_and_ids(const ce_logits_args &a, pick_smem *s, int half, int col,
                                                        const float *acc)
{
    row_sums sums = s->tile.sums[half][threadIdx.x % 128];

#pragma unroll
    for (int h = 0; h < 2; h++)
        add_logits<N, 1>(&sums, h, acc);
    s->tile.sums[half][threadIdx.x % 128] = sums;
    add_ids<N>(a, s, half, col, acc);
}

/* After a work tile: the sums of 64 rows. */
static __device__ __forceinline__ void store_pick_sums(const ce_logits_args &a, const gemm16_plan &w,
                                                       const pick_tile *t, int half)
{
    const row_sums sums = t->sums[half][threadIdx.x % 128];
    const int part = t->part[threadIdx.x % 128 / 32], first = pick_row_of(t, half);

    if (!a.only_top && a.c.p.full)
        store_part<1>(a, w, sums, first, part);
    if (!a.only_top && !a.c.p.full)
        store_part<0>(a, w, sums, first, part);
}

/* And how long their lists are. */
template <bool DRAW>
static __device__ __forceinline__ void store_picks(const ce_logits_args &a, const gemm16_plan &w, const pick_smem *s,
                                                   int half)
{
    const int part = s->tile.part[threadIdx.x % 128 / 32], first = pick_row_of(&s->tile, half);

    store_pick_sums(a, w, &s->tile, half);
#pragma unroll
    for (int h = 0; h < 2 && !DRAW && a.c.p.top_k; h++)
        if (first + 8 * h < w.m && threadIdx.x % 4 == 0)
            a.c.p.top_count[((int64_t)a.c.begin + first + 8 * h) * a.c.p.parts + part] =
                s->row[64 * half + pick_first() + 8 * h].count;
}

#endif

#endif

// MiniMax Sparse Attention on a CPU: block choice, attention, index KL and all gradients. README.md derives them.
//
// cpu.py builds this file with the system's compiler: once for float (BF16=0) on the compiler's own vectors, and once
// for bfloat16 (BF16=1) where the machine multiplies it: on AMX tiles or AVX-512 vectors. Each entry point works through items that its callers' threads
// claim from a shared counter, and an item writes only what it owns: the result does not depend on the threads.
//
// Words: a block is `block_size` keys of a document; a tile is a run of query tokens of one document; a row is one head
// of one query; a panel is the right-hand side of a product, in the order in which `multiply` reads it. Letters as in
// reference.py: D head width, E index width, B keys of a block, all three padded with zeros to a multiple of 32.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif
#if BF16 && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#elif BF16 && !defined(__AVX512BF16__)
#error "no products of bfloat16 on this machine"
#endif
#if BF16
typedef uint16_t element;
#else
typedef float element;
#endif

#define LANES 16
#define CHUNK_ROWS 128 // rows that meet a block together: enough to use a tile's registers, few enough for the L2 cache
typedef float vector __attribute__((vector_size(64)));
typedef int32_t lanes __attribute__((vector_size(64)));
typedef vector loose_vector __attribute__((aligned(4), may_alias));

typedef struct {
    int64_t heads, groups, head_dim, index_dim, block_size, top_k; // heads: of one group
    int64_t dense, choose, num_tiles, num_blocks, max_tile, max_seen;
    double scale, index_scale, kl_weight; // kl_weight: what the loss gains per KL of one token and group
    const int64_t *tiles;  // [tiles, 4]: first query, queries, position of a query less its number, first block
    const int64_t *blocks; // [blocks, 4]: first key, keys, position of the first key, position of a query less its number
    const element *q, *k, *v, *index_q, *index_k;
    element *k_columns, *v_columns, *k_rows, *v_rows; // panels [blocks, groups, ...]
    element *index_columns, *index_rows;              // panels [blocks, ...]
    element *out;
    float *lse, *kl, *index_lse; // lse in units of log 2 until the caller scales it
    int32_t *block_ids;
    const element *grad_out;
    float *delta;                          // sum over D of out times its gradient [queries, heads]
    const element *q_turned, *grad_out_turned; // [queries, groups, D, heads of a group]
    element *grad_q, *grad_k, *grad_v, *grad_index_q, *grad_index_k;
    const int64_t *reader_edges; // [groups, blocks, 2]: where in readers those of a block begin and end
    const int32_t *readers;      // queries, ascending within a block
} Problem;

static int64_t up_to(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- vectors ---------------------------------------------------------------------------------------------------------

static inline vector load(const float *from) { return *(const loose_vector *)from; }
static inline void store(float *to, vector x) { *(loose_vector *)to = x; }
static inline vector splat(float x) { return x - (vector){}; }
static inline vector pick(lanes mask, vector yes, vector no) { return (vector)((mask & (lanes)yes) | (~mask & (lanes)no)); }
static inline vector larger(vector a, vector b) { return pick(a > b, a, b); }

static inline lanes before(int64_t count) // lanes below `count`, for masks at the end of a row
{
    const lanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lane < (int32_t)(count < 0 ? 0 : least(count, LANES));
}

static inline float sum_of(vector x)
{
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#else
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
#endif
}

static inline float largest_of(vector x)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    float best = x[0];
    for (int i = 1; i < LANES; i++) best = x[i] > best ? x[i] : best;
    return best;
#endif
}

// 2^x for x <= 0, to 2e-7; NaN stays NaN. Taylor's series of 2^f on |f| <= 1/2.
static inline vector exp2_of(vector x)
{
    x = pick(x < -126.f, splat(-126.f), x);
    const vector whole = (x + 12582912.f) - 12582912.f, f = x - whole; // 1.5 * 2^23: rounds to nearest
    vector y = splat(1.5403530e-4f);
    y = y * f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.f;
#ifdef __AVX512F__
    return (vector)_mm512_scalef_ps((__m512)y, (__m512)whole);
#else
    return y * (vector)((__builtin_convertvector(whole, lanes) + 127) << 23);
#endif
}

// log x for normal x > 0, to 2e-7: 2 artanh((m - 1)/(m + 1)) of the mantissa m in [sqrt(1/2), sqrt(2)).
static inline vector log_of(vector x)
{
    const lanes bits = (lanes)x - 0x3f3504f3;
    const vector exponent = __builtin_convertvector(bits >> 23, vector);
    const vector m = (vector)((bits & 0x007fffff) + 0x3f3504f3), s = (m - 1.f) / (m + 1.f), z = s * s;
    const vector series = (((z * 0.2222222222f + 0.2857142857f) * z + 0.4f) * z + 0.6666666667f) * z + 2.f;
    return s * series + exponent * 0.69314718f;
}

// ---- elements --------------------------------------------------------------------------------------------------------

#if BF16
static inline float widen(element x)
{
    union { uint32_t bits; float value; } as = {(uint32_t)x << 16};
    return as.value;
}
static inline void narrow(element *to, vector x) { _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
static inline vector widen_all(const element *from)
{
    return (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
}
static inline int64_t in_panel(int64_t k, int64_t j, int64_t width) { return (k / 2 * width + j) * 2 + k % 2; }
#else
static inline float widen(element x) { return x; }
static inline void narrow(element *to, vector x) { store(to, x); }
static inline vector widen_all(const element *from) { return load(from); }
static inline int64_t in_panel(int64_t k, int64_t j, int64_t width) { return k * width + j; }
#endif

static inline void narrow_some(element *to, const float *from, int64_t count)
{
    element last[LANES];
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) narrow(to + i, load(from + i));
    if (i == count) return;
    float padded[LANES] = {0};
    memcpy(padded, from + i, (count - i) * sizeof(float));
    narrow(last, load(padded));
    memcpy(to + i, last, (count - i) * sizeof(element));
}

// ---- products --------------------------------------------------------------------------------------------------------

// c [m, n] (+)= a [m, depth] times a panel of [depth, width], of which the first n columns. m is a multiple of 16, n and
// depth of 32. Every row of c is summed in the same order whatever the other rows are.
#if TILES
// The tile registers: 0 to 3 hold c (rows by halves of 16 columns), 4 and 5 a, 6 and 7 the panel.

static void multiply(float *c, int64_t ldc, const element *a, int64_t lda, const element *panel, int64_t width, int64_t m, int64_t n,
                     int64_t depth, int add)
{
    __asm__ volatile("" ::: "memory"); // GCC's tile loads do not tell it that they read memory
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += 32) {
            float *low = c + i * ldc + j, *high = low + 16 * ldc;
            const element *upper = a + i * lda, *lower = upper + 16 * lda, *panel_j = panel + 2 * j;
            const int64_t c_bytes = 4 * ldc, a_bytes = 2 * lda, panel_bytes = 4 * width;
            const int both = i + 16 < m;
            if (add) {
                _tile_loadd(0, low, c_bytes);
                _tile_loadd(1, low + 16, c_bytes);
                if (both) {
                    _tile_loadd(2, high, c_bytes);
                    _tile_loadd(3, high + 16, c_bytes);
                }
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t k = 0; k < depth; k += 32) {
                _tile_loadd(6, panel_j + k * width, panel_bytes);
                _tile_loadd(7, panel_j + k * width + 32, panel_bytes);
                _tile_loadd(4, upper + k, a_bytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (both) {
                    _tile_loadd(5, lower + k, a_bytes);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, low, c_bytes);
            _tile_stored(1, low + 16, c_bytes);
            if (both) {
                _tile_stored(2, high, c_bytes);
                _tile_stored(3, high + 16, c_bytes);
            }
        }
}

static void begin_products(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1, .row_bytes = {[0 ... 7] = 64}, .rows = {[0 ... 7] = 16}};
    _tile_loadconfig(&tiles);
}
static void end_products(void) { _tile_release(); }

// Ask Linux for the tile registers, once a process (Documentation/arch/x86/xstate.rst): 0 where they may be used.
int msa_start(void)
{
    const long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) ? 1 : 0;
}
#else
#ifdef __AVX512F__
#define PRODUCT_ROWS 8 // times two vectors: the accumulators that fit the registers
#else
#define PRODUCT_ROWS 2
#endif

// One step in depth: of bfloat16 two numbers, which lie beside each other in a row and in a panel.
#if BF16
#define STEP 2
static inline vector add_product(vector sum, const element *x, vector panel)
{
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)panel);
}
#else
#define STEP 1
static inline vector add_product(vector sum, const element *x, vector panel) { return sum + *x * panel; }
#endif

static void multiply(float *c, int64_t ldc, const element *a, int64_t lda, const element *panel, int64_t width, int64_t m, int64_t n,
                     int64_t depth, int add)
{
    for (int64_t j = 0; j < n; j += 2 * LANES)
        for (int64_t i = 0; i < m; i += PRODUCT_ROWS) {
            vector sum[PRODUCT_ROWS][2] = {};
            for (int64_t k = 0; k < depth; k += STEP) {
                const float *at = (const float *)(panel + k * width + STEP * j);
                const vector low = load(at), high = load(at + LANES);
#pragma GCC unroll 8
                for (int row = 0; row < PRODUCT_ROWS; row++) {
                    const element *x = a + (i + row) * lda + k;
                    sum[row][0] = add_product(sum[row][0], x, low), sum[row][1] = add_product(sum[row][1], x, high);
                }
            }
            for (int row = 0; row < PRODUCT_ROWS; row++)
                for (int half = 0; half < 2; half++) {
                    float *at = c + (i + row) * ldc + j + half * LANES;
                    store(at, add ? load(at) + sum[row][half] : sum[row][half]);
                }
        }
}

static void begin_products(void) {}
static void end_products(void) {}
int msa_start(void) { return 0; }
#endif

// Fill a panel of [depth, width] with from[k, j], zeros beyond num_k and num_j.
static void pack(element *panel, int64_t depth, int64_t width, const element *from, int64_t k_stride, int64_t j_stride, int64_t num_k,
                 int64_t num_j)
{
    memset(panel, 0, depth * width * sizeof(element));
    for (int64_t k = 0; k < num_k; k++)
        for (int64_t j = 0; j < num_j; j++) panel[in_panel(k, j, width)] = from[k * k_stride + j * j_stride];
}

// The same from floats [depth, width] without gaps.
static void pack_floats(element *panel, int64_t depth, int64_t width, const float *from)
{
#if BF16
    for (int64_t k = 0; k < depth; k += 2)
        for (int64_t j = 0; j < width; j += LANES) {
            const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(from + k * width + j)));
            const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(from + (k + 1) * width + j)));
            _mm512_storeu_si512(panel + in_panel(k, j, width), _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
#else
    memcpy(panel, from, depth * width * sizeof(float));
#endif
}

// ---- what the items share --------------------------------------------------------------------------------------------

typedef struct {
    int64_t width, index_width, keys; // D, E and B, padded
    float *scores, *grad_probs;       // [CHUNK_ROWS, B], a row's logits and what becomes of them
    float *product;                   // [CHUNK_ROWS, D or E]
    float *index_scores, *teacher;    // [CHUNK_ROWS, B], a query each
    element *a, *b, *index_a;         // gathered left-hand sides [CHUNK_ROWS, D or E]
    element *probs, *index_grads;     // [CHUNK_ROWS, B], as a left-hand side or a panel
    float *sum, *index_sum;           // what an item adds up: [tile rows, D], [tile, E], or [D, B], [E, B]
    float *second_sum;                // [D, B]
    float *row_max, *row_sum, *index_max, *teacher_terms;
    float *best;                      // [tile, blocks]: the highest index score
    int32_t *edges, *queries;         // the tile's queries by block that they read
} Scratch;

static void *room(int64_t bytes)
{
    void *memory = aligned_alloc(64, up_to(bytes + 64, 64));
    if (!memory) abort();
    memset(memory, 0, bytes);
    return memory;
}

static Scratch begin(const Problem *p)
{
    Scratch s = {.width = up_to(p->head_dim, 32), .index_width = up_to(p->index_dim, 32), .keys = up_to(p->block_size, 32)};
    const int64_t widest = s.width > s.index_width ? s.width : s.index_width, tile = up_to(p->max_tile, 16);
    const int64_t tile_rows = tile * p->heads, chunk = up_to(p->heads, CHUNK_ROWS), size = sizeof(float);
    s.scores = room(chunk * s.keys * size), s.grad_probs = room(chunk * s.keys * size);
    s.index_scores = room(up_to(chunk > tile ? chunk : tile, 32) * s.keys * size), s.teacher = room(s.keys * size);
    s.product = room(chunk * widest * size);
    s.a = room(chunk * s.width * size), s.b = room(chunk * s.width * size);
    s.index_a = room((chunk > tile ? chunk : tile) * s.index_width * size);
    s.probs = room(chunk * s.keys * size), s.index_grads = room(chunk * s.keys * size);
    s.sum = room((tile_rows > s.keys ? tile_rows : s.keys) * s.width * size);
    s.second_sum = room(s.keys * s.width * size);
    s.index_sum = room((tile > s.keys ? tile : s.keys) * s.index_width * size);
    s.row_max = room(tile_rows * size), s.row_sum = room(tile_rows * size);
    s.index_max = room(tile * size), s.teacher_terms = room(2 * tile * size);
    s.best = room(tile * p->max_seen * size);
    s.edges = room((p->max_seen + 1) * size), s.queries = room(tile * (p->dense ? 1 : p->top_k) * size);
    begin_products();
    return s;
}

static void end(Scratch *s)
{
    end_products();
    void *all[] = {s->scores,    s->grad_probs, s->index_scores, s->teacher, s->product,   s->a,         s->b,
                   s->index_a,   s->probs,      s->index_grads,  s->sum,     s->second_sum, s->index_sum, s->row_max,
                   s->row_sum,   s->index_max,  s->teacher_terms, s->best,   s->edges,     s->queries};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

typedef struct {
    int64_t block, group; // block: its number among those of all documents
    const int32_t *queries;
    int64_t count, rows; // rows: count times heads, up to a multiple of 16
    int64_t first_position;
    int64_t num_keys, query_shift;
} Chunk;

static Chunk chunk_of(const Problem *p, int64_t block, int64_t group, const int32_t *queries, int64_t count)
{
    const int64_t *facts = p->blocks + 4 * block;
    return (Chunk){block, group, queries, count, up_to(count * p->heads, 16), facts[2], facts[1], facts[3]};
}

static int64_t chunk_queries(const Problem *p) { return p->heads > CHUNK_ROWS ? 1 : CHUNK_ROWS / p->heads; }

// Keys of the block that a query may see: all of an earlier one, those up to itself in its own.
static inline int64_t visible(const Chunk *c, int64_t i)
{
    return least(c->num_keys, c->queries[i] + c->query_shift - c->first_position + 1);
}

// Rows [count * rows_each, width] of the chunk's queries out of [queries, groups, rows_each, from_width].
static void gather(element *to, int64_t width, const element *from, const Problem *p, const Chunk *c, int64_t rows_each, int64_t from_width)
{
    for (int64_t i = 0; i < c->count; i++) {
        const element *row = from + (c->queries[i] * p->groups + c->group) * rows_each * from_width;
        for (int64_t h = 0; h < rows_each; h++) memcpy(to + (i * rows_each + h) * width, row + h * from_width, from_width * sizeof(element));
    }
    const int64_t rows = c->count * rows_each, padded = up_to(rows, 16);
    memset(to + rows * width, 0, (padded - rows) * width * sizeof(element));
}

// The same turned: to [from_width, depth], the columns being rows of queries, zeros up to depth.
static void gather_turned(element *to, int64_t depth, const element *from, const Problem *p, const Chunk *c, int64_t rows_each, int64_t from_width)
{
    const int64_t rows = c->count * rows_each;
    for (int64_t i = 0; i < c->count; i++) {
        const element *piece = from + (c->queries[i] * p->groups + c->group) * rows_each * from_width;
        element *column = to + i * rows_each;
        if (rows_each == 16) // the published shape; a copy of a size known to the compiler
            for (int64_t d = 0; d < from_width; d++) memcpy(column + d * depth, piece + d * 16, 16 * sizeof(element));
        else
            for (int64_t d = 0; d < from_width; d++)
                for (int64_t h = 0; h < rows_each; h++) column[d * depth + h] = piece[d * rows_each + h];
    }
    for (int64_t d = 0; d < from_width && rows < depth; d++) memset(to + d * depth + rows, 0, (depth - rows) * sizeof(element));
}

static const element *panel_of(const element *panels, const Problem *p, const Scratch *s, const Chunk *c)
{
    return panels + (c->block * p->groups + c->group) * s->width * s->keys;
}

static void index_scores(const Problem *p, Scratch *s, const Chunk *c)
{
    gather(s->index_a, s->index_width, p->index_q, p, c, 1, p->index_dim);
    multiply(s->index_scores, s->keys, s->index_a, s->index_width, p->index_columns + c->block * s->index_width * s->keys, s->keys,
             up_to(c->count, 16), s->keys, s->index_width, 0);
}

// ---- forward ---------------------------------------------------------------------------------------------------------

// The top_k - 1 best of the blocks before `own`, the lower on a tie, and `own`: ascending, -1 beyond.
static void choose(int32_t *ids, const float *best, int64_t own, int64_t top_k)
{
    float kept[top_k + 1];
    int64_t count = 0;
    for (int64_t b = 0; b < own; b++) {
        if (count == top_k - 1 && (!count || !(best[b] > kept[count - 1]))) continue;
        int64_t at = count < top_k - 1 ? count++ : count - 1;
        for (; at && best[b] > kept[at - 1]; at--) kept[at] = kept[at - 1], ids[at] = ids[at - 1];
        kept[at] = best[b], ids[at] = (int32_t)b;
    }
    for (int64_t i = 1; i < count; i++) {
        const int32_t id = ids[i];
        int64_t at = i;
        for (; at && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
        ids[at] = id;
    }
    ids[count++] = (int32_t)own;
    for (; count < top_k; count++) ids[count] = -1;
}

static void choose_blocks(const Problem *p, Scratch *s, const int64_t *tile, int64_t group)
{
    const int64_t first = tile[0], count = tile[1], last = first + count - 1 + tile[2], seen = last / p->block_size + 1;
    int32_t every[count];
    for (int64_t i = 0; i < count; i++) every[i] = (int32_t)(first + i);
    for (int64_t b = 0; b + 1 < seen && seen > p->top_k; b++) {
        const Chunk c = chunk_of(p, tile[3] + b, group, every, count);
        if (b == 0) gather(s->index_a, s->index_width, p->index_q, p, &c, 1, p->index_dim);
        multiply(s->index_scores, s->keys, s->index_a, s->index_width, p->index_columns + c.block * s->index_width * s->keys, s->keys,
                 up_to(count, 16), s->keys, s->index_width, 0);
        for (int64_t i = 0; i < count; i++) {
            const float *row = s->index_scores + i * s->keys;
            vector best = splat(-INFINITY);
            int64_t j = 0;
            for (; j + LANES <= p->block_size; j += LANES) best = larger(load(row + j), best);
            if (j < p->block_size) best = pick(before(p->block_size - j), larger(load(row + j), best), best);
            s->best[i * p->max_seen + b] = largest_of(best);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        int32_t *ids = p->block_ids + ((first + i) * p->groups + group) * p->top_k;
        const int64_t own = (first + i + tile[2]) / p->block_size;
        if (own < p->top_k)
            for (int64_t b = 0; b < p->top_k; b++) ids[b] = b <= own ? (int32_t)b : -1;
        else choose(ids, s->best + i * p->max_seen, own, p->top_k);
    }
}

// Turn the choice round: the queries of a tile that read block b are queries[edges[b]] up to queries[edges[b + 1]].
static void find_readers(const Problem *p, Scratch *s, const int64_t *tile, int64_t group, int64_t seen)
{
    if (p->dense) {
        for (int64_t i = 0; i < tile[1]; i++) s->queries[i] = (int32_t)(tile[0] + i);
        return;
    }
    const int32_t *ids = p->block_ids + (tile[0] * p->groups + group) * p->top_k;
    const int64_t stride = p->groups * p->top_k;
    memset(s->edges, 0, (seen + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < tile[1]; i++)
        for (int64_t slot = 0; slot < p->top_k && ids[i * stride + slot] >= 0; slot++) s->edges[ids[i * stride + slot] + 1]++;
    for (int64_t b = 0; b < seen; b++) s->edges[b + 1] += s->edges[b];
    for (int64_t i = 0; i < tile[1]; i++)
        for (int64_t slot = 0; slot < p->top_k && ids[i * stride + slot] >= 0; slot++)
            s->queries[s->edges[ids[i * stride + slot]]++] = (int32_t)(tile[0] + i);
    for (int64_t b = seen; b > 0; b--) s->edges[b] = s->edges[b - 1];
    s->edges[0] = 0;
}

typedef void Step(const Problem *p, Scratch *s, const Chunk *c, int64_t first_query);

// Take every block that a query of the tile reads, in order, with chunks of its readers.
static void for_each_chunk(Step *step, const Problem *p, Scratch *s, const int64_t *tile, int64_t group, int64_t seen)
{
    const int64_t most = chunk_queries(p);
    for (int64_t b = 0; b < seen; b++) {
        int64_t from = p->dense ? 0 : s->edges[b], to = p->dense ? tile[1] : s->edges[b + 1];
        if (p->dense && b * p->block_size > tile[0] + tile[2]) from = b * p->block_size - tile[0] - tile[2];
        for (; from < to; from += most) {
            const Chunk c = chunk_of(p, tile[3] + b, group, s->queries + from, least(most, to - from));
            step(p, s, &c, tile[0]);
        }
    }
}

static void attend(const Problem *p, Scratch *s, const Chunk *c, int64_t first_query)
{
    const float scale = (float)(p->scale * M_LOG2E);
    gather(s->a, s->width, p->q, p, c, p->heads, p->head_dim);
    multiply(s->scores, s->keys, s->a, s->width, panel_of(p->k_columns, p, s, c), s->keys, c->rows, s->keys, s->width, 0);
    float shrink[c->rows];
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t seen = visible(c, i), state = (c->queries[i] - first_query) * p->heads;
        for (int64_t h = 0; h < p->heads; h++) {
            float *row = s->scores + (i * p->heads + h) * s->keys;
            element *probs = s->probs + (i * p->heads + h) * s->keys;
            vector most = splat(-INFINITY), total = {};
            for (int64_t j = 0; j < seen; j += LANES) {
                const vector x = pick(before(seen - j), load(row + j), splat(-INFINITY));
                most = larger(x, most);
            }
            const float old = s->row_max[state + h], now = fmaxf(old, largest_of(most) * scale);
            for (int64_t j = 0; j < s->keys; j += LANES) {
                vector x = {};
                if (j < seen) {
                    x = exp2_of(load(row + j) * scale - now);
                    if (j + LANES > seen) x = (vector)((lanes)x & before(seen - j));
                }
                total += x;
                narrow(probs + j, x);
            }
            shrink[i * p->heads + h] = exp2f(old - now);
            s->row_max[state + h] = now;
            s->row_sum[state + h] = s->row_sum[state + h] * shrink[i * p->heads + h] + sum_of(total);
        }
    }
    multiply(s->product, s->width, s->probs, s->keys, panel_of(p->v_rows, p, s, c), s->width, c->rows, s->width, s->keys, 0);
    for (int64_t i = 0; i < c->count * p->heads; i++) {
        float *sum = s->sum + ((c->queries[i / p->heads] - first_query) * p->heads + i % p->heads) * s->width;
        const float *product = s->product + i * s->width;
        for (int64_t d = 0; d < s->width; d += LANES) store(sum + d, load(sum + d) * shrink[i] + load(product + d));
    }
}

// The mean over heads of a query's probabilities, which go to `probs` too where it is given.
static void teacher_of(const Problem *p, Scratch *s, const Chunk *c, int64_t i)
{
    const float scale = (float)(p->scale * M_LOG2E), share = 1.f / (float)p->heads;
    const float *lse = p->lse + (c->queries[i] * p->groups + c->group) * p->heads;
    const int64_t seen = visible(c, i);
    for (int64_t j = 0; j < s->keys; j += LANES) {
        vector sum = {};
        for (int64_t h = 0; h < p->heads && j < seen; h++) {
            float *at = s->scores + (i * p->heads + h) * s->keys + j;
            const vector x = exp2_of(load(at) * scale - lse[h]);
            sum += x;
        }
        store(s->teacher + j, (vector)((lanes)(sum * share) & before(seen - j)));
    }
}

// The sums of which a query's KL is made: of t log t, of t times the index score, and of the student's exponentials.
static void compare(const Problem *p, Scratch *s, const Chunk *c, int64_t first_query)
{
    const float index_scale = (float)(p->index_scale * M_LOG2E);
    gather(s->a, s->width, p->q, p, c, p->heads, p->head_dim);
    multiply(s->scores, s->keys, s->a, s->width, panel_of(p->k_columns, p, s, c), s->keys, c->rows, s->keys, s->width, 0);
    index_scores(p, s, c);
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t seen = visible(c, i), state = c->queries[i] - first_query;
        const float *row = s->index_scores + i * s->keys;
        teacher_of(p, s, c, i);
        vector most = splat(-INFINITY), entropy = {}, cross = {}, total = {};
        for (int64_t j = 0; j < seen; j += LANES) {
            const lanes inside = before(seen - j);
            const vector x = load(row + j) * index_scale, t = load(s->teacher + j);
            most = larger(pick(inside, x, splat(-INFINITY)), most);
            entropy += t * log_of(larger(t, splat(1.17549435e-38f)));
            cross += (vector)((lanes)(t * x) & inside);
        }
        const float old = s->index_max[state], now = fmaxf(old, largest_of(most));
        for (int64_t j = 0; j < seen; j += LANES)
            total += (vector)((lanes)exp2_of(load(row + j) * index_scale - now) & before(seen - j));
        float *terms = s->teacher_terms + 2 * state;
        terms[0] += sum_of(entropy) - sum_of(cross) * (float)M_LN2;
        terms[1] = terms[1] * exp2f(old - now) + sum_of(total);
        s->index_max[state] = now;
    }
}

static void forward_tile(const Problem *p, Scratch *s, const int64_t *tile, int64_t group)
{
    const int64_t seen = (tile[0] + tile[1] - 1 + tile[2]) / p->block_size + 1, rows = tile[1] * p->heads;
    if (p->choose) choose_blocks(p, s, tile, group);
    if (!p->out) return;
    find_readers(p, s, tile, group, seen);
    memset(s->sum, 0, rows * s->width * sizeof(float)), memset(s->row_sum, 0, rows * sizeof(float));
    for (int64_t i = 0; i < rows; i++) s->row_max[i] = -INFINITY;
    for_each_chunk(attend, p, s, tile, group, seen);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = ((tile[0] + i / p->heads) * p->groups + group) * p->heads + i % p->heads;
        const float share = s->row_sum[i] == 0 ? 0 : 1 / s->row_sum[i];
        for (int64_t d = 0; d < s->width; d += LANES) store(s->product + d, load(s->sum + i * s->width + d) * share);
        narrow_some(p->out + row * p->head_dim, s->product, p->head_dim);
        p->lse[row] = s->row_max[i] + log2f(s->row_sum[i]);
    }
    if (!p->kl) return;
    for (int64_t i = 0; i < tile[1]; i++) s->index_max[i] = -INFINITY, s->teacher_terms[2 * i] = s->teacher_terms[2 * i + 1] = 0;
    for_each_chunk(compare, p, s, tile, group, seen);
    for (int64_t i = 0; i < tile[1]; i++) {
        const int64_t row = (tile[0] + i) * p->groups + group;
        const float *terms = s->teacher_terms + 2 * i;
        p->index_lse[row] = s->index_max[i] + log2f(terms[1]);
        p->kl[row] = terms[1] == 0 ? 0 : terms[0] + p->index_lse[row] * (float)M_LN2;
    }
}

// ---- backward --------------------------------------------------------------------------------------------------------

// With the gathered queries in `a` and gradients in `b`: scores become probabilities, grad_probs the gradient of the
// logits, and index_scores that of the index scores.
static void differentiate(const Problem *p, Scratch *s, const Chunk *c)
{
    const float scale = (float)(p->scale * M_LOG2E), index_scale = (float)(p->index_scale * M_LOG2E), share = 1.f / (float)p->heads;
    const float weight = (float)(p->kl_weight * p->index_scale);
    multiply(s->scores, s->keys, s->a, s->width, panel_of(p->k_columns, p, s, c), s->keys, c->rows, s->keys, s->width, 0);
    if (p->grad_out)
        multiply(s->grad_probs, s->keys, s->b, s->width, panel_of(p->v_columns, p, s, c), s->keys, c->rows, s->keys, s->width, 0);
    if (p->kl_weight != 0) index_scores(p, s, c);
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t query = c->queries[i] * p->groups + c->group, seen = visible(c, i);
        const float *lse = p->lse + query * p->heads, *delta = p->delta + query * p->heads;
        float *index_row = s->index_scores + i * s->keys;
        for (int64_t j = 0; j < s->keys; j += LANES) {
            const lanes inside = before(seen - j);
            vector teacher = {};
            for (int64_t h = 0; h < p->heads; h++) {
                const int64_t at = (i * p->heads + h) * s->keys + j;
                const vector x = (vector)((lanes)exp2_of(load(s->scores + at) * scale - lse[h]) & inside);
                teacher += x;
                store(s->scores + at, x);
                if (p->grad_out) store(s->grad_probs + at, x * (load(s->grad_probs + at) - delta[h]) * (float)p->scale);
            }
            if (p->kl_weight == 0) continue;
            const vector student = exp2_of(load(index_row + j) * index_scale - p->index_lse[query]);
            store(index_row + j, (vector)((lanes)((student - teacher * share) * weight) & inside));
        }
    }
}

static void add_query_gradients(const Problem *p, Scratch *s, const Chunk *c, int64_t first_query)
{
    gather(s->a, s->width, p->q, p, c, p->heads, p->head_dim);
    if (p->grad_out) gather(s->b, s->width, p->grad_out, p, c, p->heads, p->head_dim);
    differentiate(p, s, c);
    if (p->grad_out) {
        for (int64_t i = 0; i < c->rows * s->keys; i += LANES) narrow(s->probs + i, load(s->grad_probs + i));
        multiply(s->product, s->width, s->probs, s->keys, panel_of(p->k_rows, p, s, c), s->width, c->rows, s->width, s->keys, 0);
        for (int64_t i = 0; i < c->count * p->heads; i++) {
            float *sum = s->sum + ((c->queries[i / p->heads] - first_query) * p->heads + i % p->heads) * s->width;
            for (int64_t d = 0; d < s->width; d += LANES) store(sum + d, load(sum + d) + load(s->product + i * s->width + d));
        }
    }
    if (p->kl_weight == 0) return;
    for (int64_t i = 0; i < up_to(c->count, 16) * s->keys; i += LANES) narrow(s->index_grads + i, load(s->index_scores + i));
    multiply(s->product, s->index_width, s->index_grads, s->keys, p->index_rows + c->block * s->keys * s->index_width, s->index_width,
             up_to(c->count, 16), s->index_width, s->keys, 0);
    for (int64_t i = 0; i < c->count; i++) {
        float *sum = s->index_sum + (c->queries[i] - first_query) * s->index_width;
        for (int64_t d = 0; d < s->index_width; d += LANES) store(sum + d, load(sum + d) + load(s->product + i * s->index_width + d));
    }
}

static void backward_tile(const Problem *p, Scratch *s, const int64_t *tile, int64_t group)
{
    const int64_t seen = (tile[0] + tile[1] - 1 + tile[2]) / p->block_size + 1;
    for (int64_t i = 0; i < tile[1] * p->heads && p->grad_out; i++) {
        const int64_t row = ((tile[0] + i / p->heads) * p->groups + group) * p->heads + i % p->heads;
        float total = 0;
        for (int64_t d = 0; d < p->head_dim; d++) total += widen(p->out[row * p->head_dim + d]) * widen(p->grad_out[row * p->head_dim + d]);
        p->delta[row] = total;
    }
    find_readers(p, s, tile, group, seen);
    memset(s->sum, 0, tile[1] * p->heads * s->width * sizeof(float)), memset(s->index_sum, 0, tile[1] * s->index_width * sizeof(float));
    for_each_chunk(add_query_gradients, p, s, tile, group, seen);
    for (int64_t i = 0; i < tile[1]; i++) {
        const int64_t query = (tile[0] + i) * p->groups + group;
        for (int64_t h = 0; h < p->heads && p->grad_out; h++)
            narrow_some(p->grad_q + (query * p->heads + h) * p->head_dim, s->sum + (i * p->heads + h) * s->width, p->head_dim);
        if (p->kl_weight != 0) narrow_some(p->grad_index_q + query * p->index_dim, s->index_sum + i * s->index_width, p->index_dim);
    }
}

// Gradients of a block's keys and values, summed over those who read it: [width, B], turned when they are written.
static void add_key_gradients(const Problem *p, Scratch *s, const Chunk *c)
{
    const int64_t depth = up_to(c->count * p->heads, 32), index_depth = up_to(c->count, 32);
    gather(s->a, s->width, p->q, p, c, p->heads, p->head_dim);
    if (p->grad_out) gather(s->b, s->width, p->grad_out, p, c, p->heads, p->head_dim);
    differentiate(p, s, c);
    if (p->grad_out) {
        const int64_t rows = c->count * p->heads;
        memset(s->scores + rows * s->keys, 0, (depth - rows) * s->keys * sizeof(float));
        memset(s->grad_probs + rows * s->keys, 0, (depth - rows) * s->keys * sizeof(float));
        pack_floats(s->probs, depth, s->keys, s->scores);
        gather_turned(s->b, depth, p->grad_out_turned, p, c, p->heads, p->head_dim);
        multiply(s->second_sum, s->keys, s->b, depth, s->probs, s->keys, s->width, s->keys, depth, 1);
        pack_floats(s->probs, depth, s->keys, s->grad_probs);
        gather_turned(s->a, depth, p->q_turned, p, c, p->heads, p->head_dim);
        multiply(s->sum, s->keys, s->a, depth, s->probs, s->keys, s->width, s->keys, depth, 1);
    }
    if (p->kl_weight == 0) return;
    memset(s->index_scores + c->count * s->keys, 0, (index_depth - c->count) * s->keys * sizeof(float));
    pack_floats(s->index_grads, index_depth, s->keys, s->index_scores);
    gather_turned(s->index_a, index_depth, p->index_q, p, c, 1, p->index_dim);
    multiply(s->index_sum, s->keys, s->index_a, index_depth, s->index_grads, s->keys, s->index_width, s->keys, index_depth, 1);
}

static void write_turned(element *to, int64_t stride, const float *from, int64_t num_keys, int64_t keys, int64_t width)
{
    float row[width];
    for (int64_t j = 0; j < num_keys; j++) {
        for (int64_t d = 0; d < width; d++) row[d] = from[d * keys + j];
        narrow_some(to + j * stride, row, width);
    }
}

static void backward_block(const Problem *p, Scratch *s, int64_t block)
{
    const int64_t first_key = p->blocks[4 * block], num_keys = p->blocks[4 * block + 1], most = chunk_queries(p), dim = p->head_dim;
    memset(s->index_sum, 0, s->keys * s->index_width * sizeof(float));
    for (int64_t group = 0; group < p->groups; group++) {
        const int64_t *edges = p->reader_edges + 2 * (group * p->num_blocks + block);
        memset(s->sum, 0, s->keys * s->width * sizeof(float)), memset(s->second_sum, 0, s->keys * s->width * sizeof(float));
        for (int64_t from = edges[0]; from < edges[1]; from += most) {
            const Chunk c = chunk_of(p, block, group, p->readers + from, least(most, edges[1] - from));
            add_key_gradients(p, s, &c);
        }
        if (!p->grad_out) continue;
        write_turned(p->grad_k + (first_key * p->groups + group) * dim, p->groups * dim, s->sum, num_keys, s->keys, dim);
        write_turned(p->grad_v + (first_key * p->groups + group) * dim, p->groups * dim, s->second_sum, num_keys, s->keys, dim);
    }
    if (p->kl_weight != 0) write_turned(p->grad_index_k + first_key * p->index_dim, p->index_dim, s->index_sum, num_keys, s->keys, p->index_dim);
}

// ---- entry points: each works until the shared counter has run out -----------------------------------------------------

static int64_t claim(int64_t *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

void msa_pack(const Problem *p, int64_t *next)
{
    const int64_t width = up_to(p->head_dim, 32), index_width = up_to(p->index_dim, 32), keys = up_to(p->block_size, 32);
    const int64_t stride = p->groups * p->head_dim, size = width * keys;
    for (int64_t b; (b = claim(next)) < p->num_blocks;) {
        const int64_t first = p->blocks[4 * b], count = p->blocks[4 * b + 1];
        for (int64_t group = 0; group < p->groups; group++) {
            const int64_t at = (b * p->groups + group) * size, from = first * stride + group * p->head_dim;
            if (p->k_columns) pack(p->k_columns + at, width, keys, p->k + from, 1, stride, p->head_dim, count);
            if (p->v_columns) pack(p->v_columns + at, width, keys, p->v + from, 1, stride, p->head_dim, count);
            if (p->k_rows) pack(p->k_rows + at, keys, width, p->k + from, stride, 1, count, p->head_dim);
            if (p->v_rows) pack(p->v_rows + at, keys, width, p->v + from, stride, 1, count, p->head_dim);
        }
        const element *index_k = p->index_k + first * p->index_dim;
        if (p->index_columns) pack(p->index_columns + b * index_width * keys, index_width, keys, index_k, 1, p->index_dim, p->index_dim, count);
        if (p->index_rows) pack(p->index_rows + b * keys * index_width, keys, index_width, index_k, p->index_dim, 1, count, p->index_dim);
    }
}

void msa_forward(const Problem *p, int64_t *next)
{
    Scratch s = begin(p);
    for (int64_t item; (item = claim(next)) < p->num_tiles * p->groups;)
        forward_tile(p, &s, p->tiles + 4 * (p->num_tiles - 1 - item / p->groups), item % p->groups);
    end(&s);
}

void msa_backward_queries(const Problem *p, int64_t *next)
{
    Scratch s = begin(p);
    for (int64_t item; (item = claim(next)) < p->num_tiles * p->groups;)
        backward_tile(p, &s, p->tiles + 4 * (p->num_tiles - 1 - item / p->groups), item % p->groups);
    end(&s);
}

void msa_backward_keys(const Problem *p, int64_t *next)
{
    Scratch s = begin(p);
    for (int64_t b; (b = claim(next)) < p->num_blocks;) backward_block(p, &s, b);
    end(&s);
}

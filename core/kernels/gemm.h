/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/gemm.h - the micro-kernels, and `project` on top of them.
 *
 * Model. A micro-kernel multiplies a few rows of A by a panel of B, nv vectors wide: acc[m][v] += A[m][k] * B[k][v] for
 * k in order. A comes in two shapes: `rows`, where k runs along memory (tokens times a weight, keys times queries), and
 * `columns`, where the rows of A lie side by side (values, read as V^T). B is always [k][nv vectors]. The number of
 * rows and vectors are constants to the compiler, so that the accumulators stay in registers; the macros at the end of
 * each section make one function per pair.
 *
 * A step of the inner loops is written so that the compiler keeps it as it stands (vector.h, KERNEL_SUM_HERE), and repeated
 * four times (KERNEL_STEPS); a look at the loops of a new compiler is worth it: no accumulator may pass through memory.
 *
 * `project` keeps one block of a panel (MHA_BLOCK rows of B, 24 to 48 KiB) in the first-level cache and a block of x in the
 * second-level cache, and adds block sums to y in place.
 *
 * What this does not do: reorder, split or reduce across lanes anything that would change a bit (core/kernels/kernels.h).
 */
#ifndef MHA_KERNELS_GEMM_H
#define MHA_KERNELS_GEMM_H

#include "kernels.h"
#include "one_row.h"
#include "vector.h"

#include <string.h>

/* ---- how sums are cut -------------------------------------------------------------------------------------------- */

/* A sum of n products is made of short blocks, each with accumulators of its own: its rounding error grows with the length
 * of a block plus the number of blocks, not with n. Blocks are as short as time allows (folding one costs about 12 cycles),
 * which for small n is shorter. Functions of n alone; with these, errors are below those of NumPy with OpenBLAS
 * (tests/unit/test_accuracy.c). */
static size_t fold_of_projection(size_t n_in) { return n_in <= 64 ? 8 : n_in <= 256 ? 32 : 128; }
static size_t larger_of(size_t a, size_t b) { return a > b ? a : b; }
static size_t fold_of_score(size_t d_k) { return d_k < 64 ? 8 : 64; }

/* Contexts are sums over keys, cut by position alone: where the short block that holds `key` ends. */
static size_t fold_end(size_t key) { return key < 64 ? (key / 16 + 1) * 16 : (key / 64 + 1) * 64; }

/* ---- the two products -------------------------------------------------------------------------------------------- */

/* Stores are done, and what is read from here on is read anew. */
#define KERNEL_THROUGH_MEMORY(p) __asm__ volatile("" : : "r"(p) : "memory")

KERNEL_INLINE void store_all(const int size, real *to, const vec *c) {
    KERNEL_UNROLL
    for (int x = 0; x < size; x++) store(to + x * VL, c[x]);
    KERNEL_THROUGH_MEMORY(to);
}

KERNEL_INLINE void load_all(const int size, const real *from, vec *c) {
    KERNEL_UNROLL
    for (int x = 0; x < size; x++) c[x] = load(from + x * VL);
}

/* What came before, plus the accumulators of the block that follows. */
KERNEL_INLINE void add_before(const int size, const bool first, const real *sums, vec *c) {
    if (first) return;
    KERNEL_UNROLL
    for (int x = 0; x < size; x++) c[x] = load(sums + x * VL) + c[x];
}

/* One step: c[m*nv + v] += a_m * b[v*VL], where the scalars a_m lie at rows[m][k], or without rows at column[m]. */
KERNEL_INLINE void multiply_add(const int mr, const int nv, const real *const *rows, size_t k, const real *column,
                                const real *b, vec *c) {
    vec b_v[NV];
    KERNEL_UNROLL
    for (int v = 0; v < nv; v++) b_v[v] = load_once(b + v * VL);
    KERNEL_UNROLL
    for (int m = 0; m < mr; m++) {
        const vec a_m = splat(rows != NULL ? rows[m][k] : column[m]);
        KERNEL_UNROLL
        for (int v = 0; v < nv; v++) {
            c[m * nv + v] += a_m * b_v[v];
            KERNEL_SUM_HERE(c[m * nv + v], a_m, b_v[v]);
        }
    }
}

/* acc[m*nv + v] = sum over k < n of a[m*a_row + k] * b[k*b_row + v*VL], in blocks of `fold`. */
KERNEL_INLINE void multiply_rows(const int mr, const int nv, size_t n, size_t fold, const real *a, size_t a_row,
                                 const real *b, size_t b_row, vec *acc) {
    real sums[MR_MAX * NR] __attribute__((aligned(64)));
    const real *a_m[MR_MAX];
    KERNEL_UNROLL
    for (int m = 0; m < mr; m++) a_m[m] = a + (size_t)m * a_row;
    for (size_t k = 0;;) {
        const bool first = k == 0;
        const size_t end = n - k < fold ? n : k + fold;
        KERNEL_UNROLL
        for (int x = 0; x < mr * nv; x++) acc[x] = (vec){0};
        KERNEL_STEPS
        for (; k < end; k++, b += b_row) multiply_add(mr, nv, a_m, k, NULL, b, acc);
        add_before(mr * nv, first, sums, acc);
        if (k == n) return;
        store_all(mr * nv, sums, acc);
    }
}

/* Rows of values, from `column` on: the first n_past lie at `past`, the others at `fresh`; `row` numbers apart. */
struct value_rows {
    const real *past, *fresh;
    size_t n_past, row, column;
};

/* acc[m*nv + v] = sum over k < n of value[k][m] * b[k*b_row + v*VL], in blocks by fold_end(first_key + k). */
KERNEL_INLINE void multiply_columns(const int mr, const int nv, size_t n, size_t first_key,
                                    const struct value_rows *values, const real *b, size_t b_row, vec *acc) {
    real sums[MR_MAX * NR] __attribute__((aligned(64)));
    const size_t row = values->row;
    for (size_t k = 0;;) {
        const bool first = k == 0;
        const size_t left = fold_end(first_key + k) - (first_key + k), end = n - k < left ? n : k + left;
        KERNEL_UNROLL
        for (int x = 0; x < mr * nv; x++) acc[x] = (vec){0};
        while (k < end) {
            const bool past = k < values->n_past;
            const real *a = past ? values->past + k * row : values->fresh + (k - values->n_past) * row;
            a += values->column;
            const size_t stop = past && values->n_past < end ? values->n_past : end;
            const size_t steps = stop - k;
            KERNEL_STEPS
            for (size_t step = 0; step < steps; step++)
                multiply_add(mr, nv, NULL, 0, a + step * row, b + step * b_row, acc);
            b += steps * b_row;
            k = stop;
        }
        add_before(mr * nv, first, sums, acc);
        if (k == n) return;
        store_all(mr * nv, sums, acc);
    }
}

/* Calls f(mr, nv) for every pair that gets a function; f(mr, nv) is a macro. The first mr of an nv is its full tile. */
#define KERNEL_EVERY_TILE(f)                                                                                           \
    f(1, 1) f(2, 1) f(4, 1) KERNEL_FULL_TILES(f) f(1, 2) f(2, 2) KERNEL_FOUR_BY_TWO(f) f(1, 3) f(2, 3)                 \
        KERNEL_FOUR_BY_THREE(f)
#if KERNEL_CODE == kernel_code_base
#define KERNEL_FULL_TILES(f) f(8, 1) f(4, 2) f(3, 3)
#define KERNEL_FOUR_BY_TWO(f)
#define KERNEL_FOUR_BY_THREE(f)
#elif KERNEL_CODE == kernel_code_v3
#define KERNEL_FULL_TILES(f)  f(12, 1) f(6, 2) f(4, 3)
#define KERNEL_FOUR_BY_TWO(f) f(4, 2)
#define KERNEL_FOUR_BY_THREE(f)
#else
#define KERNEL_FULL_TILES(f)    f(12, 1) f(12, 2) f(8, 3)
#define KERNEL_FOUR_BY_TWO(f)   f(4, 2)
#define KERNEL_FOUR_BY_THREE(f) f(4, 3)
#endif

/* Rows of a full tile of nv vectors, and how many rows the next tile takes when `left` are left. */
KERNEL_INLINE int full_rows(int nv) { return nv == 3 ? MR3 : nv == 2 ? MR2 : MR1; }
KERNEL_INLINE int tile_rows(int nv, size_t left) {
    const int full = full_rows(nv);
    if (left >= (size_t)full) return full;
    if (left >= 4) return 4;
    return left >= 2 ? 2 : 1;
}

/* Finds the function of a pair in a table [nv][mr]. */
#define KERNEL_TABLE_ENTRY(name, mr, nv) [nv][mr] = name##_##mr##x##nv,

/* ---- tokens times weights ---------------------------------------------------------------------------------------- */

/* One tile of y: rows at y_m[m], vectors at offsets y_v[v] from there. */
struct project_tile {
    size_t n;      /* terms */
    size_t fold;   /* terms of a short block */
    const real *x; /* first row */
    size_t x_row;
    const real *b;     /* the block of the panel */
    bool adds;         /* onto what y holds: not the first block */
    const real *bias;  /* for the last block: added at the end, one per column of the panel; else NULL */
    real *y_m[MR_MAX]; /* each row's place */
    size_t y_v[NV];    /* each vector's offset */
};

/* y = acc, plus what y holds where the tile adds, plus the bias. */
KERNEL_INLINE void finish_tile(const int mr, const int nv, const struct project_tile *t, const bool adds,
                               const bool has_bias, vec *acc) {
    KERNEL_UNROLL
    for (int m = 0; m < mr; m++) {
        KERNEL_UNROLL
        for (int v = 0; v < nv; v++) {
            vec *y = &acc[m * nv + v];
            if (adds) *y = load(t->y_m[m] + t->y_v[v]) + *y;
            if (has_bias) *y = *y + load(t->bias + v * VL);
            store(t->y_m[m] + t->y_v[v], *y);
        }
    }
}

/* Returns the sum of y*0 over the tile: 0, or NaN where something is not finite. */
KERNEL_INLINE vec project_one(const int mr, const int nv, const struct project_tile *t) {
    vec acc[MR_MAX * NV];
    KERNEL_UNROLL
    for (int m = 0; m < mr; m++) /* the places of y, while the products are computed */
        for (int v = 0; v < nv; v += 2) __builtin_prefetch(t->y_m[m] + t->y_v[v], 1);
    multiply_rows(mr, nv, t->n, t->fold, t->x, t->x_row, t->b, NR, acc);
    if (t->bias != NULL)
        finish_tile(mr, nv, t, t->adds, true, acc);
    else if (t->adds)
        finish_tile(mr, nv, t, true, false, acc);
    else
        finish_tile(mr, nv, t, false, false, acc);
    vec finite[NV] = {{0}};
    KERNEL_UNROLL
    for (int x = 0; x < mr * nv; x++) finite[x % nv] += acc[x] * 0;
    for (int v = 1; v < nv; v++) finite[0] += finite[v];
    return finite[0];
}

#define KERNEL_PROJECT(mr, nv)                                                                                         \
    static __attribute__((noinline)) vec project_##mr##x##nv(const struct project_tile *t) {                           \
        return project_one(mr, nv, t);                                                                                 \
    }
KERNEL_EVERY_TILE(KERNEL_PROJECT)

#define KERNEL_PROJECT_ENTRY(mr, nv) KERNEL_TABLE_ENTRY(project, mr, nv)
static vec (*const project_table[NV + 1][MR_MAX + 1])(const struct project_tile *t) = {
    KERNEL_EVERY_TILE(KERNEL_PROJECT_ENTRY)};

/* Where rows go: row r = (sample, i), kept while r counts up. */
struct row_place {
    real *sample;
    size_t i;
};

static struct row_place place_of(const struct mha_projection *p, size_t row) {
    return (struct row_place){(real *)p->y + row / p->n * p->y_sample, row % p->n};
}

KERNEL_INLINE real *next_place(const struct mha_projection *p, struct row_place *at) {
    real *y = at->sample + at->i * p->y_row;
    if (++at->i == p->n) {
        at->i = 0;
        at->sample += p->y_sample;
    }
    return y;
}

/* The part of a panel that is wanted: columns [begin, end) of all heads*d, nv vectors from `first` on. */
struct panel_part {
    size_t first, begin, end;
    int nv;
};

static struct panel_part part_of(const struct mha_projection *p, size_t panel) {
    struct panel_part part = {.first = panel * NR, .begin = p->head_begin * p->d, .end = p->head_end * p->d};
    if (part.begin < part.first) part.begin = part.first;
    if (part.end > part.first + NR) part.end = part.first + NR;
    part.nv = part.end > part.first ? (int)((part.end - part.first + VL - 1) / VL) : 0;
    return part;
}

static size_t offset_of(const struct mha_projection *p, size_t column) {
    return (column / p->d - p->head_begin) * p->y_head + column % p->d;
}

/* Do all vectors of the part lie whole in one head of y? */
static bool lies_in_vectors(const struct mha_projection *p, struct panel_part part) {
    if (part.begin != part.first || part.end != part.first + (size_t)part.nv * VL) return false;
    for (int v = 0; v < part.nv; v++)
        if ((part.first + (size_t)v * VL) % p->d + VL > p->d) return false;
    return true;
}

/* Terms [k, k_end) of all rows; k is a multiple of MHA_BLOCK. */
static vec project_vectors(const struct mha_projection *p, size_t row, size_t row_end, struct panel_part part, size_t k,
                           size_t k_end) {
    struct project_tile t = {.x_row = p->x_row, .fold = fold_of_projection(p->n_in)};
    const real *b = (const real *)p->panels + part.first * p->n_in, *x = p->x;
    const real *bias = p->bias == NULL ? NULL : (const real *)p->bias + part.first;
    vec finite = {0};
    for (int v = 0; v < part.nv; v++) t.y_v[v] = offset_of(p, part.first + (size_t)v * VL);
    do {
        const bool last = k + MHA_BLOCK >= p->n_in;
        t.n = last ? p->n_in - k : MHA_BLOCK;
        t.b = b + k * NR;
        t.adds = k > 0;
        t.bias = last ? bias : NULL;
        struct row_place at = place_of(p, row);
        for (size_t r = row; r < row_end;) {
            const int mr = tile_rows(part.nv, row_end - r);
            t.x = x + r * p->x_row + k;
            for (int m = 0; m < mr; m++) t.y_m[m] = next_place(p, &at);
            const vec f = project_table[part.nv][mr](&t);
            if (last) finite += f;
            r += (size_t)mr;
        }
        k += MHA_BLOCK;
    } while (k < k_end);
    return finite;
}

/* The same, all terms, for a part whose columns straddle heads or end within a vector: by way of a tile of its own. */
static vec project_scattered(const struct mha_projection *p, size_t row, size_t row_end, struct panel_part part) {
    real tile[MR_MAX * NR] __attribute__((aligned(64))), bias[NR];
    struct project_tile t = {.x_row = p->x_row, .fold = fold_of_projection(p->n_in)};
    const real *b = (const real *)p->panels + part.first * p->n_in, *x = p->x;
    memset(bias, 0, sizeof bias);
    if (p->bias != NULL) memcpy(bias, (const real *)p->bias + part.first, (part.end - part.first) * sizeof(real));
    size_t offset[NR];
    for (size_t c = part.begin; c < part.end; c++) offset[c - part.first] = offset_of(p, c);
    for (int v = 0; v < part.nv; v++) t.y_v[v] = (size_t)v * VL;
    for (int m = 0; m < MR_MAX; m++) t.y_m[m] = tile + m * NR;

    vec finite = {0};
    struct row_place at = place_of(p, row);
    for (size_t r = row; r < row_end;) {
        const int mr = tile_rows(part.nv, row_end - r);
        for (size_t k = 0; k == 0 || k < p->n_in; k += MHA_BLOCK) {
            const bool last = k + MHA_BLOCK >= p->n_in;
            t.n = last ? p->n_in - k : MHA_BLOCK;
            t.x = x + r * p->x_row + k;
            t.b = b + k * NR;
            t.adds = k > 0;
            t.bias = last && p->bias != NULL ? bias : NULL;
            const vec f = project_table[part.nv][mr](&t);
            if (last) finite += f;
        }
        for (int m = 0; m < mr; m++) {
            real *y = next_place(p, &at);
            for (size_t c = part.begin - part.first; c < part.end - part.first; c++)
                y[offset[c]] = tile[m * NR + (int)c];
        }
        r += (size_t)mr;
    }
    return finite;
}

/* No weight: the columns of the panels as they are. */
static bool project_identity(const struct mha_projection *p, size_t row, size_t row_end, size_t panel,
                             size_t panel_end) {
    size_t begin = panel * NR, end = panel_end * NR;
    if (begin < p->head_begin * p->d) begin = p->head_begin * p->d;
    if (end > p->head_end * p->d) end = p->head_end * p->d;
    real finite = 0;
    struct row_place at = place_of(p, row);
    for (size_t r = row; r < row_end; r++) {
        const real *x = (const real *)p->x + r * p->x_row, *bias = p->bias;
        real *y = next_place(p, &at);
        for (size_t c = begin; c < end; c++) {
            const real sum = bias == NULL ? x[c] : x[c] + bias[c];
            y[offset_of(p, c)] = sum;
            finite += sum * 0;
        }
    }
    return finite == 0;
}

/* A run of columns of a raw weight that lie evenly apart, from `column` on: at most `end`. */
static size_t end_of_run(const struct mha_weight_view *w, size_t column, size_t end) {
    const bool evenly = w->heads == 1 || w->head == w->d * w->column;
    const size_t head_end = (column / w->d + 1) * w->d;
    return evenly || head_end > end ? end : head_end;
}

/* y[c] = sum over e of x[e] * W[e][c] for n <= SEGMENT columns side by side, in rows `stride` apart. */
static void multiply_segment(const real *x, size_t n_in, const real *W, size_t stride, size_t n, real *y) {
    real fold_sum[SEGMENT], block_sum[SEGMENT];
    const size_t fold = fold_of_projection(n_in);
    memset(fold_sum, 0, n * sizeof(real));
    memset(y, 0, n * sizeof(real));
    for (size_t k = 0; k < n_in; k += MHA_BLOCK) {
        const size_t block_end = n_in - k < MHA_BLOCK ? n_in : k + MHA_BLOCK;
        for (size_t e = k; e < block_end; e += fold) {
            add_rows(block_end - e < fold ? block_end - e : fold, x + e, W + e * stride, stride, n, fold_sum);
            end_block(n, e == k, fold_sum, block_sum);
        }
        end_block(n, k == 0, block_sum, y);
    }
}

/* One row times a weight as it came: columns [column, end), at most SEGMENT, evenly apart. */
static real project_run(const struct mha_projection *p, const real *x, real *y, size_t column, size_t end) {
    const struct mha_weight_view *w = p->raw;
    const real *W = (const real *)w->W + column / w->d * w->head + column % w->d * w->column, *bias = p->bias;
    const size_t n = end - column;
    real sum[SEGMENT], finite = 0;
    if (w->column == 1)
        multiply_segment(x, p->n_in, W, w->input, n, sum);
    else
        dot_rows(p->n_in, fold_of_projection(p->n_in), x, W, w->column, n, sum);
    for (size_t c = 0; c < n; c++) {
        if (bias != NULL) sum[c] += bias[column + c];
        y[offset_of(p, column + c)] = sum[c];
        finite += sum[c] * 0;
    }
    return finite;
}

/* Few rows, a weight as it came. */
static bool project_raw(const struct mha_projection *p, size_t row, size_t row_end, size_t panel, size_t panel_end) {
    size_t begin = panel * NR, end = panel_end * NR;
    if (begin < p->head_begin * p->d) begin = p->head_begin * p->d;
    if (end > p->head_end * p->d) end = p->head_end * p->d;
    struct row_place at = place_of(p, row);
    real finite = 0;
    for (size_t r = row; r < row_end; r++) {
        const real *x = (const real *)p->x + r * p->x_row;
        real *y = next_place(p, &at);
        for (size_t c = begin; c < end;) {
            size_t stop = end_of_run(p->raw, c, end);
            if (stop - c > SEGMENT) stop = c + SEGMENT;
            finite += project_run(p, x, y, c, stop);
            c = stop;
        }
    }
    return finite == 0;
}

/* Many rows: a block of terms of all panels, then the next block, so that the block of x stays in the second-level cache
 * while the panels pass by, and each of their blocks in the first-level cache while the rows do. Few rows: panel by panel,
 * straight through memory. */
static bool project(const struct mha_projection *p, size_t row, size_t row_end, size_t panel, size_t panel_end) {
    if (p->raw != NULL) return project_raw(p, row, row_end, panel, panel_end);
    if (p->panels == NULL) return project_identity(p, row, row_end, panel, panel_end);
    const size_t step = row_end - row <= 4 * MR3 ? larger_of(p->n_in, 1) : MHA_BLOCK;
    vec finite = {0};
    for (size_t k = 0; k == 0 || k < p->n_in; k += step)
        for (size_t x = panel; x < panel_end; x++) {
            const struct panel_part part = part_of(p, x);
            if (part.begin >= part.end) continue;
            if (lies_in_vectors(p, part))
                finite += project_vectors(p, row, row_end, part, k, k + step);
            else if (k == 0)
                finite += project_scattered(p, row, row_end, part);
        }
    return !any_lane(finite);
}

/* ---- packing weights --------------------------------------------------------------------------------------------- */

/* Column `column` of the weight, or NULL beyond the last. */
static const real *column_of(const struct mha_weight_view *w, size_t column) {
    if (column >= w->heads * w->d) return NULL;
    return (const real *)w->W + column / w->d * w->head + column % w->d * w->column;
}

static void pack_panel(const struct mha_weight_view *w, real *panel, size_t first) {
    const real *col[NR];
    bool dense = true; /* the columns lie side by side */
    for (size_t j = 0; j < NR; j++) {
        col[j] = column_of(w, first + j);
        dense = dense && col[j] != NULL && col[j] == col[0] + j;
    }
    if (dense) {
        for (size_t e = 0; e < w->n_in; e++) memcpy(panel + e * NR, col[0] + e * w->input, NR * sizeof(real));
        return;
    }
    for (size_t j = 0; j < NR; j++)
        for (size_t e = 0; e < w->n_in; e++) panel[e * NR + j] = col[j] == NULL ? 0 : col[j][e * w->input];
}

/* Whole panels of a weight whose rows lie one after the other: read as they lie. Panel by panel, every 96 bytes would come from
 * another page. */
static void pack_rows(const struct mha_weight_view *w, real *panels, size_t n_panels, size_t first) {
    const real *row = (const real *)w->W + first;
    for (size_t e = 0; e < w->n_in; e++, row += w->input)
        for (size_t x = 0; x < n_panels; x++) memcpy(panels + (x * w->n_in + e) * NR, row + x * NR, NR * sizeof(real));
}

static void pack(const struct mha_weight_view *view, void *panels, size_t begin, size_t end) {
    const size_t whole = view->heads * view->d / NR; /* panels without padding */
    const bool rows = view->column == 1 && (view->head == view->d || view->heads == 1);
    real *const to = panels;
    if (rows && begin < whole) {
        const size_t n = (end < whole ? end : whole) - begin;
        pack_rows(view, to + begin * view->n_in * NR, n, begin * NR);
        begin += n;
    }
    for (; begin < end; begin++) pack_panel(view, to + begin * view->n_in * NR, begin * NR);
}

#endif

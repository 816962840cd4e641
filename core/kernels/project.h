/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/project.h - rows times a weight: packed, as it came (for few rows), or none (identity).
 *
 * Model. `project` keeps one block of a panel (MHA_BLOCK rows of B, 24 to 48 KiB) in the first-level cache and a block of x in
 * the second-level cache, and adds block sums to y in place. A weight that came with the problem and serves few rows is read as
 * it lies (one_row.h), with the same sums.
 *
 * What this does not do: pack (pack.h), choose the way (core/fused.c).
 */
#ifndef MHA_KERNELS_PROJECT_H
#define MHA_KERNELS_PROJECT_H

#include "gemm.h"
#include "one_row.h"

/* ---- packed ------------------------------------------------------------------------------------------------------ */

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
    multiply_rows(mr, nv, t->n, t->fold, t->x, t->x_row, t->b, NR, NULL, acc);
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

/* Columns [begin, end) of all heads*d; none where end <= begin. */
struct columns {
    size_t begin, end;
};

/* Those of panels [panel, panel_end) whose heads are wanted. */
static struct columns wanted_columns(const struct mha_projection *p, size_t panel, size_t panel_end) {
    struct columns c = {panel * NR, panel_end * NR};
    if (c.begin < p->head_begin * p->d) c.begin = p->head_begin * p->d;
    if (c.end > p->head_end * p->d) c.end = p->head_end * p->d;
    return c;
}

/* The part of a panel that is wanted: columns [begin, end) of all heads*d, nv vectors from `first` on. */
struct panel_part {
    size_t first, begin, end;
    int nv;
};

static struct panel_part part_of(const struct mha_projection *p, size_t panel) {
    const struct columns wanted = wanted_columns(p, panel, panel + 1);
    struct panel_part part = {.first = panel * NR, .begin = wanted.begin, .end = wanted.end};
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

/* Terms [k, k_end) of all rows; k is a multiple of MHA_BLOCK. The block of the next panel is asked for meanwhile: it comes from
 * the third-level cache or from memory, and the first tile that meets it would wait. With two or three tiles there is too little
 * to do meanwhile. */
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
        const size_t tiles = (row_end - row) / (size_t)full_rows(part.nv) + 1;
        struct ahead ahead = ahead_of(t.b + p->n_in * NR, tiles > 3 ? t.n * NR : 0, tiles);
        for (size_t r = row; r < row_end;) {
            const int mr = tile_rows(part.nv, row_end - r);
            t.x = x + r * p->x_row + k;
            look_ahead(&ahead);
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

/* ---- as it came, or none ----------------------------------------------------------------------------------------- */

/* No weight: the columns of the panels as they are. */
static bool project_identity(const struct mha_projection *p, size_t row, size_t row_end, size_t panel,
                             size_t panel_end) {
    const struct columns wanted = wanted_columns(p, panel, panel_end);
    real finite = 0;
    struct row_place at = place_of(p, row);
    for (size_t r = row; r < row_end; r++) {
        const real *x = (const real *)p->x + r * p->x_row, *bias = p->bias;
        real *y = next_place(p, &at);
        for (size_t c = wanted.begin; c < wanted.end; c++) {
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
    memset(y, 0, n * sizeof(real));
    if (n_in <= fold) { /* one sum */
        add_rows(n_in, x, W, stride, n, y);
        return;
    }
    memset(fold_sum, 0, n * sizeof(real));
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
    y += offset_of(p, column);
    for (size_t c = 0, left = p->d - column % p->d; c < n; c++, left--) {
        if (left == 0) { /* on to the next head */
            y += p->y_head - p->d;
            left = p->d;
        }
        if (bias != NULL) sum[c] += bias[column + c];
        *y++ = sum[c];
        finite += sum[c] * 0;
    }
    return finite;
}

/* Few rows, a weight as it came. */
static bool project_raw(const struct mha_projection *p, size_t row, size_t row_end, size_t panel, size_t panel_end) {
    const struct columns wanted = wanted_columns(p, panel, panel_end);
    struct row_place at = place_of(p, row);
    real finite = 0;
    for (size_t r = row; r < row_end; r++) {
        const real *x = (const real *)p->x + r * p->x_row;
        real *y = next_place(p, &at);
        for (size_t c = wanted.begin; c < wanted.end;) {
            size_t stop = end_of_run(p->raw, c, wanted.end);
            if (stop - c > SEGMENT) stop = c + SEGMENT;
            finite += project_run(p, x, y, c, stop);
            c = stop;
        }
    }
    return finite == 0;
}

/* ---- any --------------------------------------------------------------------------------------------------------- */

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

#endif

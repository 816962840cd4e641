/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/one_row.h - one row times a matrix that lies in memory as it came: decoding, and weights used once.
 *
 * Model. With one row every element of the matrix is used once, and reading it is the work. So the matrix is read as it
 * lies, row by row, with the lanes along what it has many of:
 *   - dot_rows, y[j] = sum over k of x[k] * rows[j][k] (keys; weights out_in): lanes are rows, 16 bytes of each of several
 *     rows are read and turned in registers. A vector of 16 bytes is enough for what memory delivers, and is the same
 *     code for every instruction set;
 *   - add_rows, y[c] += sum over k of x[k] * rows[k][c] (values; weights in_out): lanes are columns, several rows at once.
 * Several rows at once are no order that a hardware prefetcher follows: both ask for the rows that come next, in step.
 * Each sum has the terms, blocks and order of its twin in gemm.h, so that a row alone has the bits of the row in a batch.
 *
 * What this does not do: several rows of x. From a few on, packing pays (gemm.h).
 */
#ifndef MHA_KERNELS_ONE_ROW_H
#define MHA_KERNELS_ONE_ROW_H

#include "kernels.h"
#include "vector.h"

enum { ROWS = 8 };                      /* that are read at once */
enum { SEGMENT = 4096 / sizeof(real) }; /* columns of a wide matrix taken before others: their sums stay in the cache */

/* ---- lanes along rows -------------------------------------------------------------------------------------------- */

/* Asks for `bytes` of what will be read. They need not exist. */
KERNEL_INLINE void ask_for(const real *rows, size_t offset, const size_t bytes) {
    const uintptr_t at = (uintptr_t)rows + offset * sizeof(real);
    KERNEL_UNROLL
    for (size_t line = 0; line < bytes / LINE; line++) __builtin_prefetch((const void *)(at + line * LINE), 0, 3);
}

/* acc[g] += x[i] * (rows g*FEW ... of column i) for i < FEW in order */
KERNEL_INLINE void dot_step(const int groups, const real *x, const real *rows, size_t stride, few *acc) {
    KERNEL_UNROLL
    for (int g = 0; g < groups; g++) {
        few turned[FEW];
        load_turned(rows + (size_t)(g * FEW) * stride, stride, turned);
        KERNEL_UNROLL
        for (int i = 0; i < FEW; i++) acc[g] += x[i] * turned[i];
    }
}

/* The same for one column alone. */
KERNEL_INLINE void dot_rest(const int groups, real x, const real *rows, size_t stride, few *acc) {
    KERNEL_UNROLL
    for (int g = 0; g < groups; g++) {
        few column;
        for (int lane = 0; lane < FEW; lane++) column[lane] = rows[(size_t)(g * FEW + lane) * stride];
        KERNEL_PIN(column); /* or else products come before lanes, and are rounded */
        acc[g] += x * column;
    }
}

/* acc = sums over k < n, in blocks of `fold`. */
KERNEL_INLINE void dot_block(const int groups, size_t n, size_t fold, const real *x, const real *rows, size_t stride,
                             few *acc) {
    few sums[ROWS / FEW];
    for (size_t k = 0;;) {
        const bool first = k == 0;
        const size_t end = n - k < fold ? n : k + fold;
        KERNEL_UNROLL
        for (int g = 0; g < groups; g++) acc[g] = (few){0};
        for (; k + FEW <= end; k += FEW) {
            if (groups > 1) ask_for(rows, ROWS * stride + k * ROWS, ROWS * sizeof(few));
            dot_step(groups, x + k, rows + k, stride, acc);
        }
        for (; k < end; k++) dot_rest(groups, x[k], rows + k, stride, acc);
        KERNEL_UNROLL
        for (int g = 0; g < groups; g++) {
            if (!first) acc[g] = sums[g] + acc[g];
            sums[g] = acc[g];
        }
        if (k == n) return;
    }
}

/* y[j] for the rows of some groups; all terms. */
KERNEL_INLINE void dot_groups(const int groups, size_t n, size_t fold, const real *x, const real *rows, size_t stride,
                              real *y) {
    few acc[ROWS / FEW];
    for (size_t k = 0; k == 0 || k < n; k += MHA_BLOCK) {
        dot_block(groups, n - k < MHA_BLOCK ? n - k : MHA_BLOCK, fold, x + k, rows + k, stride, acc);
        KERNEL_UNROLL
        for (int g = 0; g < groups; g++) {
            few_at_any *to = (few_at_any *)(y + g * FEW);
            if (k > 0) acc[g] = *to + acc[g];
            *to = acc[g];
        }
    }
}

/* The same sum for one row. */
static real dot_row(size_t n, size_t fold, const real *x, const real *row) {
    real sum = 0, block = 0;
    for (size_t k = 0, end; k < n; k = end) {
        const size_t block_end = n - k / MHA_BLOCK * MHA_BLOCK < MHA_BLOCK ? n : (k / MHA_BLOCK + 1) * MHA_BLOCK;
        real part = 0;
        end = block_end - k < fold ? block_end : k + fold;
        for (size_t e = k; e < end; e++) part += x[e] * row[e];
        block = k % MHA_BLOCK == 0 ? part : block + part;
        if (end == block_end) sum = k < MHA_BLOCK ? block : sum + block;
    }
    return sum;
}

/* y[j] = sum over k < n of x[k] * rows[j*stride + k], j < n_rows. */
static __attribute__((noinline)) void dot_rows(size_t n, size_t fold, const real *x, const real *rows, size_t stride,
                                               size_t n_rows, real *y) {
    size_t j = 0;
    for (; j + ROWS <= n_rows; j += ROWS) dot_groups(ROWS / FEW, n, fold, x, rows + j * stride, stride, y + j);
    for (; j + FEW <= n_rows; j += FEW) dot_groups(1, n, fold, x, rows + j * stride, stride, y + j);
    for (; j < n_rows; j++) y[j] = dot_row(n, fold, x, rows + j * stride);
}

/* ---- lanes along columns ----------------------------------------------------------------------------------------- */

KERNEL_INLINE void add_some(const int n, const real *x, const real *rows, size_t stride, size_t columns, real *y) {
    vec x_k[ROWS];
    KERNEL_UNROLL
    for (int k = 0; k < n; k++) x_k[k] = splat(x[k]);
    size_t c = 0;
    for (; c + VL <= columns; c += VL) {
        if (n == ROWS) ask_for(rows, ROWS * stride + c * ROWS, ROWS * sizeof(vec));
        vec sum = load(y + c);
        KERNEL_UNROLL
        for (int k = 0; k < n; k++) sum += x_k[k] * load(rows + (size_t)k * stride + c);
        store(y + c, sum);
    }
    for (; c < columns; c++)
        for (int k = 0; k < n; k++) y[c] += x[k] * rows[(size_t)k * stride + c];
}

/* y[c] += x[k] * rows[k*stride + c] for k < n in order, c < columns. */
static __attribute__((noinline)) void add_rows(size_t n, const real *x, const real *rows, size_t stride, size_t columns,
                                               real *y) {
    size_t k = 0;
    for (; k + ROWS <= n; k += ROWS) add_some(ROWS, x + k, rows + k * stride, stride, columns, y);
    for (; k < n; k++) add_some(1, x + k, rows + k * stride, stride, columns, y);
}

/* total = block, or total + block; block = 0 for the next. */
static void end_block(size_t n, bool first, real *block, real *total) {
    for (size_t c = 0; c < n; c++) {
        total[c] = first ? block[c] : total[c] + block[c];
        block[c] = 0;
    }
}

#endif

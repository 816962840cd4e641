/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/gemm.h - the micro-kernels: a few rows times a panel of vectors, and how their sums are cut.
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
 * What this does not do: reorder, split or reduce across lanes anything that would change a bit (core/kernels/kernels.h).
 */
#ifndef MHA_KERNELS_GEMM_H
#define MHA_KERNELS_GEMM_H

#include "kernels.h"
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

/* Few vectors make few operations of a number of A: then it is memory that takes time, and is asked for in every step. */
KERNEL_INLINE int lines_of_step(const int mr) { return (mr * (int)sizeof(real) + LINE - 1) / LINE; }

/* acc[m*nv + v] = sum over k < n of a[m*a_row + k] * b[k*b_row + v*VL], in blocks of `fold`. */
KERNEL_INLINE void multiply_rows(const int mr, const int nv, size_t n, size_t fold, const real *a, size_t a_row,
                                 const real *b, size_t b_row, struct ahead *ahead, vec *acc) {
    real sums[MR_MAX * NR] __attribute__((aligned(64)));
    const real *a_m[MR_MAX];
    struct ahead_steps steps = {0};
    if (ahead != NULL) steps = ahead_steps_of(ahead);
    KERNEL_UNROLL
    for (int m = 0; m < mr; m++) a_m[m] = a + (size_t)m * a_row;
    for (size_t k = 0;;) {
        const bool first = k == 0;
        const size_t end = n - k < fold ? n : k + fold;
        KERNEL_UNROLL
        for (int x = 0; x < mr * nv; x++) acc[x] = (vec){0};
        KERNEL_STEPS
        for (; k < end; k++, b += b_row) {
            if (ahead != NULL) step_ahead(lines_of_step(mr), &steps);
            multiply_add(mr, nv, a_m, k, NULL, b, acc);
        }
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
                                    const struct value_rows *values, const real *b, size_t b_row, struct ahead *ahead,
                                    vec *acc) {
    real sums[MR_MAX * NR] __attribute__((aligned(64)));
    const size_t row = values->row;
    struct ahead_steps ahead_steps = {0};
    if (ahead != NULL) ahead_steps = ahead_steps_of(ahead);
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
            for (size_t step = 0; step < steps; step++) {
                if (ahead != NULL) step_ahead(lines_of_step(mr), &ahead_steps);
                multiply_add(mr, nv, NULL, 0, a + step * row, b + step * b_row, acc);
            }
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

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/softmax.h - S^T of one tile becomes P^T: the online softmax of core/kernels/vmath.h, down the columns.
 *
 * Model. Weights are relative to the panel's reference, which moves in powers of two; the sum l of a row is kept together
 * with what its additions round away. A row alone has its lanes along keys, with the same operations for each number.
 *
 * What this does not do: divide by l (context.h, maps.h).
 */
#ifndef MHA_KERNELS_SOFTMAX_H
#define MHA_KERNELS_SOFTMAX_H

#include "panel.h"

/* max[x] = the largest of max[x] and column x. gcc makes vector maxima of this only at -O3. */
#if defined(__clang__)
#define KERNEL_MAXIMA __attribute__((noinline))
#else
#define KERNEL_MAXIMA __attribute__((noinline, optimize("O3")))
#endif
#define KERNEL_MAX_COLUMNS(nv)                                                                                         \
    static KERNEL_MAXIMA void max_columns_##nv(real *restrict max, const real *restrict s, size_t rows) {              \
        enum { width = nv * VL, step = 8 };                                                                            \
        size_t row = 0;                                                                                                \
        for (; row + step <= rows; row += step, s += step * width)                                                     \
            for (int x = 0; x < width; x++) {                                                                          \
                real m = max[x];                                                                                       \
                for (int y = 0; y < step; y++) m = s[y * width + x] > m ? s[y * width + x] : m;                        \
                max[x] = m;                                                                                            \
            }                                                                                                          \
        for (; row < rows; row++, s += width)                                                                          \
            for (int x = 0; x < width; x++) max[x] = s[x] > max[x] ? s[x] : max[x];                                    \
    }
KERNEL_MAX_COLUMNS(1)
KERNEL_MAX_COLUMNS(2)
KERNEL_MAX_COLUMNS(3)

static void max_columns(struct panel *w, const real *s, size_t rows) {
    if (w->nv == 3) max_columns_3(w->max, s, rows);
    if (w->nv == 2) max_columns_2(w->max, s, rows);
    if (w->nv == 1) max_columns_1(w->max, s, rows);
}

KERNEL_INLINE vec weight_of(const real *s, softmax_ref ref, const bool wide) {
    vec score = load(s);
    if (wide) score = score - ref.base;
    return VMF(vm_exp)(score, ref.magic);
}

/* One vector of columns: S^T becomes P^T in place; returns the sum, in its fixed order. */
KERNEL_INLINE vec exponentiate(real *s, size_t width, size_t n, softmax_ref ref, const bool wide) {
    vec sum[4];
    KERNEL_UNROLL
    for (int lane = 0; lane < 4; lane++) sum[lane] = (vec){0};
    size_t j = 0;
    for (; j + 4 <= n; j += 4) {
        vec p[4];
        KERNEL_UNROLL
        for (int lane = 0; lane < 4; lane++) {
            p[lane] = load(s + (j + (size_t)lane) * width);
            if (wide) p[lane] = p[lane] - ref.base;
        }
        VMF(vm_exp_n)(4, p, ref.magic);
        KERNEL_UNROLL
        for (int lane = 0; lane < 4; lane++) {
            store(s + (j + (size_t)lane) * width, p[lane]);
            sum[lane] += p[lane];
        }
    }
    for (int lane = 0; lane < 3 && j < n; lane++, j++) {
        real *at = s + j * width;
        const vec p = weight_of(at, ref, wide);
        store(at, p);
        sum[lane] += p;
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static __attribute__((noinline)) vec exponentiate_narrow(real *s, size_t width, size_t n, softmax_ref ref) {
    return exponentiate(s, width, n, ref, false);
}

static __attribute__((noinline)) vec exponentiate_wide(real *s, size_t width, size_t n, softmax_ref ref) {
    return exponentiate(s, width, n, ref, true);
}

/* l = l * shrink + sum, with what the addition rounds away kept in l_low (Knuth's two-sum). */
KERNEL_INLINE void add_to_l(struct panel *w, int x, vec shrink, vec sum) {
    vec before = load(w->l + x) * shrink;
    KERNEL_PIN(before);
    const vec l = before + sum, grown = l - before;
    const vec lost = (before - (l - grown)) + (sum - grown);
    store(w->l + x, l);
    store(w->l_low + x, load(w->l_low + x) * shrink + lost);
}

/* softmax_tile for a row alone: lanes along keys. */
static void softmax_alone(const struct tile_at *t, struct panel *w, real *alpha) {
    real *s = t->s, sum[4] = {0}, max = w->max[0];
    for (size_t j = t->n; j % VL != 0; j++) s[j] = -(real)__builtin_inf();
    vec most = load(w->max);
    for (size_t j = 0; j < t->n; j += VL) most = VMF(vm_max)(most, load(s + j));
    for (int lane = 0; lane < VL; lane++) max = most[lane] > max ? most[lane] : max;

    const softmax_ref old = ref_of(w, 0), ref = VMF(vm_ref)(splat(max));
    const vec shrink = VMF(vm_alpha)(old, ref);
    if (VMF(vm_ref_is_wide)(ref))
        for (size_t j = 0; j < t->n; j += VL) store(s + j, weight_of(s + j, ref, true));
    else
        for (size_t j = 0; j < t->n; j += VL) store(s + j, weight_of(s + j, ref, false));
    size_t j = 0;
    for (; j + 4 <= t->n; j += 4)
        for (size_t lane = 0; lane < 4; lane++) sum[lane] += s[j + lane];
    for (size_t lane = 0; j < t->n; j++, lane++) sum[lane] += s[j];

    add_to_l(w, 0, shrink, splat((sum[0] + sum[1]) + (sum[2] + sum[3])));
    store(w->max, splat(max));
    store(w->base, ref.base);
    store(w->magic, ref.magic);
    store(alpha, shrink);
}

/* S^T becomes P^T; max, reference and l move on. alpha: what contexts have to be multiplied by. */
static void softmax_tile(const struct tile_at *t, struct panel *w, real *alpha) {
    max_columns(w, t->s, t->n);
    for (int v = 0; v < w->nv; v++) {
        const int x = v * VL;
        const softmax_ref old = ref_of(w, v), ref = VMF(vm_ref)(load(w->max + x));
        const vec shrink = VMF(vm_alpha)(old, ref);
        const vec sum = VMF(vm_ref_is_wide)(ref) ? exponentiate_wide(t->s + x, w->width, t->n, ref)
                                                 : exponentiate_narrow(t->s + x, w->width, t->n, ref);
        add_to_l(w, x, shrink, sum);
        store(w->base + x, ref.base);
        store(w->magic + x, ref.magic);
        store(alpha + x, shrink);
    }
}

#endif

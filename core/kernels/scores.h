/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/scores.h - S^T of one tile: scores, softcap, masks, and the check for what is not finite.
 *
 * Model. S^T is [key][width]; the order of things is core/mha.h's: scaled, capped, then masked. What is hidden becomes
 * -infinity before anybody looks at it.
 *
 * What this does not do: decide which keys a tile has (attention.h).
 */
#ifndef MHA_KERNELS_SCORES_H
#define MHA_KERNELS_SCORES_H

#include "one_row.h"
#include "panel.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define KERNEL_SCORE(mr, nv)                                                                                           \
    static __attribute__((noinline)) void score_##mr##x##nv(size_t n, size_t fold, const real *k, size_t k_row,        \
                                                            const real *q, real *s, bool adds, struct ahead *ahead) {  \
        vec acc[MR_MAX * NV];                                                                                          \
        multiply_rows(mr, nv, n, fold, k, k_row, q, nv *VL, nv < NV ? ahead : NULL, acc);                              \
        KERNEL_UNROLL                                                                                                  \
        for (int x = 0; x < mr * nv; x++) {                                                                            \
            if (adds) acc[x] = load(s + x * VL) + acc[x];                                                              \
            store(s + x * VL, acc[x]);                                                                                 \
        }                                                                                                              \
    }
KERNEL_EVERY_TILE(KERNEL_SCORE)

#define KERNEL_SCORE_ENTRY(mr, nv) KERNEL_TABLE_ENTRY(score, mr, nv)
static void (*const score_table[NV + 1][MR_MAX + 1])(size_t n, size_t fold, const real *k, size_t k_row, const real *q,
                                                     real *s, bool adds,
                                                     struct ahead *ahead) = {KERNEL_EVERY_TILE(KERNEL_SCORE_ENTRY)};

/* S^T of n keys that lie one after the other. */
static void score_keys(struct panel *w, size_t n, size_t d_k, const real *k, real *s) {
    for (size_t c = 0; c < d_k; c += MHA_BLOCK) {
        const size_t block = d_k - c < MHA_BLOCK ? d_k - c : MHA_BLOCK;
        for (size_t j = 0; j < n;) {
            const int mr = tile_rows(w->nv, n - j);
            score_table[w->nv][mr](block, fold_of_score(d_k), k + j * d_k + c, d_k, w->q + c * w->width,
                                   s + j * w->width, c > 0, &w->ahead);
            if (w->nv == NV) look_ahead(&w->ahead);
            j += (size_t)mr;
        }
    }
}

/* S^T of keys [key, key + n). */
static void score_range(const struct mha_attention *a, struct panel *w, size_t key, size_t n, real *s) {
    const size_t d_k = a->problem->d_k;
    while (n > 0) {
        size_t run;
        const real *k = rows_from(a, a->k, d_k, key, n, &run);
        if (is_alone(w))
            dot_rows(d_k, fold_of_score(d_k), w->q, k, d_k, run, s);
        else
            score_keys(w, run, d_k, k, s);
        key += run;
        n -= run;
        s += run * w->width;
    }
}

static void cap_range(const struct mha_attention *a, const struct panel *w, size_t n, real *s) {
    const real cap = (real)a->problem->softcap;
    for (size_t x = 0; x < n * w->width; x += VL) {
        const vec inner = load(s + x) / splat(cap);
        store(s + x, VMF(vm_tanh)(inner) * cap);
    }
}

/* Into the map of scores, scaled and capped, before masks. */
static void write_scores(const struct mha_attention *a, const struct panel *w, size_t key, size_t n, const real *s) {
    const struct mha_problem *p = a->problem;
    const size_t n_kv = mha_n_kv(p), listed = a->result->heads_listed != NULL ? a->result->n_heads_listed : p->h;
    real *to[NR];
    for (size_t x = 0; x < w->n_rows; x++) {
        const size_t row = (a->b * listed + w->listed[x]) * p->n_q + w->i[x];
        to[x] = w->listed[x] == NOT_LISTED ? NULL : (real *)a->result->scores + row * n_kv + key;
    }
    write_lanes(w, s, n, to);
}

/* ---- what is not finite ------------------------------------------------------------------------------------------ */

/* Is every score of the tile finite? */
static bool scores_are_finite(const struct tile_at *t, const struct panel *w) {
    vec z[4];
    KERNEL_UNROLL
    for (int u = 0; u < 4; u++) z[u] = (vec){0};
    const size_t n = t->n * w->width;
    size_t x = 0;
    for (; x + 4 * VL <= n; x += 4 * VL) {
        KERNEL_UNROLL
        for (int u = 0; u < 4; u++) z[u] += load(t->s + x + (size_t)u * VL) * 0;
    }
    for (; x < n; x += VL) z[0] += load(t->s + x) * 0;
    return !any_lane((z[0] + z[1]) + (z[2] + z[3]));
}

/* Some score is not finite: that is a failure where a row sees the key. */
static __attribute__((noinline)) void note_scores(const struct tile_at *t, const struct panel *w) {
    for (size_t x = 0; x < w->n_rows; x++)
        for (size_t j = 0; j < t->n; j++) {
            if (__builtin_isfinite(t->s[j * w->width + x])) continue;
            if (mha_visible(t->a->problem, t->a->b, w->head[x], w->i[x], t->key + j))
                note(t->a, w, x, MHA_STAGE_SCORES, 4, t->key + j);
        }
}

/* ---- what is hidden ---------------------------------------------------------------------------------------------- */

static void hide_by_span(const struct tile_at *t, const struct panel *w) {
    real begin[NR], end[NR];
    const vec hidden = splat(-(real)__builtin_inf());
    for (size_t x = 0; x < w->width; x++) { /* clamped to the tile, so that they are exact */
        begin[x] = w->begin[x] <= t->key ? 0 : w->begin[x] - t->key < t->n ? (real)(w->begin[x] - t->key) : (real)t->n;
        end[x] = w->end[x] <= t->key ? 0 : w->end[x] - t->key < t->n ? (real)(w->end[x] - t->key) : (real)t->n;
    }
    for (size_t j = 0; j < t->n; j++) {
        if (t->key + j >= w->full_begin && t->key + j < w->full_end) continue;
        const vec at = splat((real)j);
        for (int v = 0; v < w->nv; v++) {
            real *s = t->s + j * w->width + (size_t)v * VL;
            const ivec seen = (at >= load(begin + v * VL)) & (at < load(end + v * VL));
            store(s, VMF(vm_select)(seen, load(s), hidden));
        }
    }
}

static void hide_by_key_mask(const struct tile_at *t, const struct panel *w) {
    const struct mha_problem *p = t->a->problem;
    const uint8_t *exists = p->key_mask + (p->key_mask_B == 1 ? 0 : t->a->b) * mha_n_kv(p) + t->key;
    for (size_t j = 0; j < t->n; j++)
        for (size_t x = 0; !exists[j] && x < w->width; x++) t->s[j * w->width + x] = -(real)__builtin_inf();
}

/* attn_mask of row x from the tile's first key on; *step is 0 where the mask does not vary along keys. */
static size_t mask_row_of(const struct tile_at *t, const struct panel *w, size_t x, size_t *step) {
    const struct mha_mask *m = &t->a->problem->attn_mask;
    *step = m->dim[3] == 1 ? 0 : 1;
    return mha_mask_index(m, t->a->b, w->head[x], w->i[x], t->key);
}

/* No branch on the mask: a random one would be mispredicted half of the time. */
static void hide_by_bool_mask(const struct tile_at *t, const struct panel *w) {
    const real keeps[2] = {-(real)__builtin_inf(), 0};
    const uint8_t *may[NR];
    size_t step = 0;
    for (size_t x = 0; x < w->width; x++) { /* lanes without a row read the first row's mask */
        const size_t row = mask_row_of(t, w, x < w->n_rows ? x : 0, &step);
        may[x] = (const uint8_t *)t->a->problem->attn_mask.data + row;
    }
    for (size_t j = 0; j < t->n; j++) {
        real keep[NR];
        for (size_t x = 0; x < w->width; x++) keep[x] = keeps[may[x][j * step] != 0];
        for (int v = 0; v < w->nv; v++) {
            real *s = t->s + j * w->width + (size_t)v * VL;
            const vec k = load(keep + v * VL);
            store(s, VMF(vm_select)(k == splat(0), load(s), k));
        }
    }
}

/* An addend of -infinity hides, whatever the score is. */
static void add_mask(const struct tile_at *t, const struct panel *w) {
    const vec hidden = splat(-(real)__builtin_inf());
    const real *addends[NR];
    size_t step = 0;
    for (size_t x = 0; x < w->width; x++) {
        const size_t row = mask_row_of(t, w, x < w->n_rows ? x : 0, &step);
        addends[x] = (const real *)t->a->problem->attn_mask.data + row;
    }
    vec finite = {0};
    for (size_t j = 0; j < t->n; j++) {
        real addend[NR];
        for (size_t x = 0; x < w->width; x++) addend[x] = addends[x][j * step];
        for (int v = 0; v < w->nv; v++) {
            real *s = t->s + j * w->width + (size_t)v * VL;
            const vec sum = load(s) + load(addend + v * VL);
            const ivec hides = load(addend + v * VL) == hidden;
            finite += VMF(vm_select)(hides, splat(0), sum) * 0;
            store(s, VMF(vm_select)(hides, hidden, sum));
        }
    }
    if (any_lane(finite)) note_scores(t, w); /* what is hidden is not visible, and does not count there */
}

/* A row alone spreads its scores over lanes for the masks, which are rare where it is, and gathers them again. */
static void spread_scores(const struct tile_at *t, struct panel *w) {
    w->width = w->lanes;
    for (size_t j = t->n; j-- > 0;) {
        const vec s = splat(t->s[j]);
        for (int v = 0; v < w->nv; v++) store(t->s + j * w->width + (size_t)v * VL, s);
    }
}

static void gather_scores(const struct tile_at *t, struct panel *w) {
    for (size_t j = 0; j < t->n; j++) t->s[j] = t->s[j * w->width];
    w->width = 1;
}

/* Adds the mask and hides: a hidden score becomes -infinity. */
static void mask_tile(const struct tile_at *t, struct panel *w) {
    const struct mha_problem *p = t->a->problem;
    const bool by_span = t->key < w->full_begin || t->key + t->n > w->full_end, alone = is_alone(w);
    if (p->attn_mask.kind == MHA_MASK_NONE && p->key_mask == NULL && !by_span) return;
    if (alone) spread_scores(t, w);
    if (p->attn_mask.kind == MHA_MASK_ADDITIVE) add_mask(t, w);
    if (p->attn_mask.kind == MHA_MASK_BOOL) hide_by_bool_mask(t, w);
    if (p->key_mask != NULL) hide_by_key_mask(t, w);
    if (by_span) hide_by_span(t, w);
    if (alone) gather_scores(t, w);
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/maps.h - maps of heads: weights into `attention`, scores into `scores`, heads that are listed, means over heads.
 *
 * Model. Weights are written tile by tile relative to the tile's reference of the softmax (struct tile_ref), and multiplied
 * into place at the end by powers of two and 1/l, in the same arithmetic as the context.
 *
 * What this does not do: anything where no map is wanted.
 */
#ifndef MHA_KERNELS_MAPS_H
#define MHA_KERNELS_MAPS_H

#include "panel.h"

/* The row of the map that query row x writes, or NULL. */
static real *map_row(const struct mha_attention *a, const struct panel *w, size_t x) {
    const struct mha_problem *p = a->problem;
    const struct mha_result *r = a->result;
    if (r->attention == NULL || w->listed[x] == NOT_LISTED) return NULL;
    if (r->attention_mean) return w->mean_rows + x * mha_n_kv(p);
    const size_t listed = r->heads_listed != NULL ? r->n_heads_listed : p->h;
    return (real *)r->attention + ((a->b * listed + w->listed[x]) * p->n_q + w->i[x]) * mha_n_kv(p);
}

static bool wants_attention(const struct mha_attention *a, const struct panel *w) {
    return a->result->attention != NULL && w->any_listed;
}

static bool wants_scores(const struct mha_attention *a, const struct panel *w) {
    return a->result->scores != NULL && w->any_listed;
}

/* P^T of the tile goes into the map as it is; finish_map multiplies. */
static void keep_weights(const struct tile_at *t, struct panel *w) {
    real *to[NR];
    for (size_t x = 0; x < w->n_rows; x++) {
        real *row = map_row(t->a, w, x);
        to[x] = row == NULL ? NULL : row + t->key;
    }
    write_lanes(w, t->s, t->n, to);
    struct tile_ref *ref = &w->refs[t->tile_key / MHA_KEY_TILE];
    memcpy(ref->base, w->base, w->lanes * sizeof(real));
    memcpy(ref->magic, w->magic, w->lanes * sizeof(real));
}

static void clear_map(const struct mha_attention *a, struct panel *w) {
    for (size_t x = 0; x < w->n_rows; x++) {
        real *row = map_row(a, w, x);
        if (row != NULL) memset(row, 0, mha_n_kv(a->problem) * sizeof(real));
    }
}

/* row * factor / l */
static void scale_row(real *row, size_t n, real factor, real l) {
    size_t j = 0;
    for (; j + VL <= n; j += VL) store(row + j, load(row + j) * splat(factor) / splat(l));
    for (; j < n; j++) row[j] = row[j] * factor / l;
}

static void finish_map_tile(const struct mha_attention *a, struct panel *w, size_t key, size_t n) {
    const struct tile_ref *from = &w->refs[key / MHA_KEY_TILE];
    real factor[NR];
    for (int v = 0; v < w->nv; v++) {
        const softmax_ref then = {load(from->base + v * VL), load(from->magic + v * VL)};
        store(factor + v * VL, VMF(vm_alpha)(then, ref_of(w, v)));
    }
    for (size_t x = 0; x < w->n_rows; x++) {
        real *row = map_row(a, w, x);
        if (row == NULL || !w->sees[x]) continue;
        scale_row(row + key, n, factor[x], w->l[x]);
    }
}

/* Weights relative to the end, divided by l; rows without keys get 0. Then to the other places of a head in the list. */
static void finish_map(const struct mha_attention *a, struct panel *w) {
    const struct mha_problem *p = a->problem;
    const size_t n_kv = mha_n_kv(p);
    for (size_t key = w->first_key / MHA_KEY_TILE * MHA_KEY_TILE; key < w->last_key; key += MHA_KEY_TILE)
        finish_map_tile(a, w, key, n_kv - key < MHA_KEY_TILE ? n_kv - key : MHA_KEY_TILE);
    for (size_t x = 0; x < w->n_rows; x++) {
        real *row = map_row(a, w, x);
        if (row != NULL && !w->sees[x]) memset(row, 0, n_kv * sizeof(real));
    }
}

/* A head that is listed more than once has its rows copied. */
static void repeat_listed(const struct mha_attention *a, const struct panel *w, real *map) {
    const struct mha_problem *p = a->problem;
    const struct mha_result *r = a->result;
    const size_t n_kv = mha_n_kv(p), listed = r->n_heads_listed;
    if (r->heads_listed == NULL || map == NULL || n_kv == 0) return;
    for (size_t x = 0; x < w->n_rows; x++)
        for (size_t s = 0; s < listed; s++) {
            if (r->heads_listed[s] != w->head[x] || s == w->listed[x]) continue;
            memcpy(map + ((a->b * listed + s) * p->n_q + w->i[x]) * n_kv,
                   map + ((a->b * listed + w->listed[x]) * p->n_q + w->i[x]) * n_kv, n_kv * sizeof(real));
        }
}

/* attention_mean: adds each row once for every place of its head in the list, and divides at the last head. */
static void add_to_mean(const struct mha_attention *a, const struct panel *w) {
    const struct mha_problem *p = a->problem;
    const struct mha_result *r = a->result;
    const size_t n_kv = mha_n_kv(p), listed = r->heads_listed != NULL ? r->n_heads_listed : p->h;
    for (size_t x = 0; x < w->n_rows; x++) {
        real *mean = (real *)r->attention + (a->b * p->n_q + w->i[x]) * n_kv;
        if (w->head[x] == 0) memset(mean, 0, n_kv * sizeof(real));
        for (size_t s = 0; s < listed; s++) {
            if ((r->heads_listed != NULL ? r->heads_listed[s] : s) != w->head[x]) continue;
            for (size_t j = 0; j < n_kv; j++) mean[j] += w->mean_rows[x * n_kv + j];
        }
        if (w->head[x] + 1 == p->h)
            for (size_t j = 0; j < n_kv; j++) mean[j] /= (real)listed;
    }
}

#endif

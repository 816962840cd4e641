/* SPDX-License-Identifier: Apache-2.0
 *
 * core/visible.h - which keys a query may see. Private to core and its tests.
 *
 * Model. Five things can hide a key: causal, window, key_lengths, key_mask, attn_mask. They intersect. The first three
 * make one contiguous span of keys per (sample, query), the same for every head: `mha_visible_span`. The masks punch
 * holes into it: `mha_mask_hides`. Query i stands at key position i + offset; the same offset serves causal and window:
 *     top_left      offset = n_past
 *     bottom_right  offset = keys - n_q     keys = key_lengths[b] if given, else n_kv; may be negative
 *
 * What this does not do: look at scores. An additive mask hides where it is -infinity; its other values are the
 * caller's to add. Expects a problem that mha_plan accepts, so that every position fits ptrdiff_t.
 */
#ifndef MHA_CORE_VISIBLE_H
#define MHA_CORE_VISIBLE_H

#include "mha.h"

/* Keys begin <= j < end; begin == end: none. */
struct mha_span {
    size_t begin, end;
};

static inline size_t mha_n_kv(const struct mha_problem *p) { return p->n_past + p->n_k; }

/* How many keys of sample b exist, past and new together. */
static inline size_t mha_keys_of(const struct mha_problem *p, size_t b) {
    return p->key_lengths != NULL ? p->key_lengths[b] : mha_n_kv(p);
}

/* Query i of sample b stands at key position i + offset. */
static inline ptrdiff_t mha_offset_of(const struct mha_problem *p, size_t b) {
    if (p->alignment == MHA_TOP_LEFT) return (ptrdiff_t)p->n_past;
    return (ptrdiff_t)mha_keys_of(p, b) - (ptrdiff_t)p->n_q;
}

/* The smaller of a reach (possibly MHA_WINDOW_OPEN) and what can matter, as a signed number. */
static inline ptrdiff_t mha_reach(size_t reach) { return reach > PTRDIFF_MAX / 4 ? PTRDIFF_MAX / 4 : (ptrdiff_t)reach; }

/* What causal, window and key_lengths leave of the keys for query i of sample b. */
static inline struct mha_span mha_visible_span(const struct mha_problem *p, size_t b, size_t i) {
    ptrdiff_t position = (ptrdiff_t)i + mha_offset_of(p, b);
    ptrdiff_t begin = 0, end = (ptrdiff_t)mha_keys_of(p, b);
    if (p->causal && end > position + 1) end = position + 1;
    if (p->window) {
        ptrdiff_t left = position - mha_reach(p->window_left);
        ptrdiff_t right = position + mha_reach(p->window_right) + 1;
        if (begin < left) begin = left;
        if (end > right) end = right;
    }
    if (end <= begin) return (struct mha_span){0, 0};
    return (struct mha_span){(size_t)begin, (size_t)end};
}

/* Index into attn_mask.data: a dim of 1 is broadcast. */
static inline size_t mha_mask_index(const struct mha_mask *m, size_t b, size_t head, size_t i, size_t j) {
    const size_t at[4] = {b, head, i, j};
    size_t index = 0;
    for (int axis = 0; axis < 4; axis++) index = index * m->dim[axis] + (m->dim[axis] == 1 ? 0 : at[axis]);
    return index;
}

/* The value of an additive mask, widened. */
static inline double mha_mask_addend(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t j) {
    size_t index = mha_mask_index(&p->attn_mask, b, head, i, j);
    return p->dtype == MHA_F32 ? (double)((const float *)p->attn_mask.data)[index]
                               : ((const double *)p->attn_mask.data)[index];
}

/* Does key_mask or attn_mask hide key j from query i of a head? */
static inline bool mha_mask_hides(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t j) {
    if (p->key_mask != NULL && !p->key_mask[(p->key_mask_B == 1 ? 0 : b) * mha_n_kv(p) + j]) return true;
    switch (p->attn_mask.kind) {
    case MHA_MASK_BOOL:
        return !((const uint8_t *)p->attn_mask.data)[mha_mask_index(&p->attn_mask, b, head, i, j)];
    case MHA_MASK_ADDITIVE:
        return mha_mask_addend(p, b, head, i, j) == -__builtin_inf();
    default:
        return false;
    }
}

static inline bool mha_visible(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t j) {
    struct mha_span span = mha_visible_span(p, b, i);
    return span.begin <= j && j < span.end && !mha_mask_hides(p, b, head, i, j);
}

/* Does query i of a head see any key? */
static inline bool mha_row_sees(const struct mha_problem *p, size_t b, size_t head, size_t i) {
    struct mha_span span = mha_visible_span(p, b, i);
    for (size_t j = span.begin; j < span.end; j++)
        if (!mha_mask_hides(p, b, head, i, j)) return true;
    return false;
}

/* Does query i of a head see one key and no other? Then *key is it. */
static inline bool mha_row_sees_only(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t *key) {
    struct mha_span span = mha_visible_span(p, b, i);
    size_t seen = 0;
    for (size_t j = span.begin; j < span.end && seen < 2; j++) {
        if (mha_mask_hides(p, b, head, i, j)) continue;
        *key = j;
        seen++;
    }
    return seen == 1;
}

/* Does any query of any head that reads key/value head g see key j? */
static inline bool mha_key_is_seen(const struct mha_problem *p, size_t b, size_t g, size_t j) {
    size_t group = p->h / p->h_kv;
    for (size_t head = g * group; head < (g + 1) * group; head++)
        for (size_t i = 0; i < p->n_q; i++)
            if (mha_visible(p, b, head, i, j)) return true;
    return false;
}

#endif

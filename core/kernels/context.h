/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/context.h - contexts: O^T = O^T * alpha + V'^T P^T tile by tile, rounds of keys, and the division by l at the end.
 *
 * Model. O^T is [d_v][width], for a row alone [d_v]. Each tile is a sum of short blocks (gemm.h, fold_end), each round of
 * MHA_KEY_ROUND keys begins anew. CAREFUL and SHRUNK (panel.h) leave hidden values out one by one, for values that are not
 * finite or whose sum is not.
 *
 * What this does not do: choose which panels are done again carefully (attention.h).
 */
#ifndef MHA_KERNELS_CONTEXT_H
#define MHA_KERNELS_CONTEXT_H

#include "one_row.h"
#include "panel.h"

/* o = o * alpha + the product, or the product alone where o has nothing yet. */
KERNEL_INLINE void finish_context(const int mr, const int nv, const vec *acc, real *o, const real *alpha) {
    KERNEL_UNROLL
    for (int m = 0; m < mr; m++) {
        KERNEL_UNROLL
        for (int v = 0; v < nv; v++) {
            real *at = o + (m * nv + v) * VL;
            vec sum = acc[m * nv + v];
            if (alpha != NULL) sum = load(at) * load(alpha + v * VL) + sum;
            store(at, sum);
        }
    }
}

#define KERNEL_CONTEXT(mr, nv)                                                                                         \
    static __attribute__((noinline)) void context_##mr##x##nv(size_t n, size_t first, const struct value_rows *values, \
                                                              const real *p, real *o, const real *alpha,               \
                                                              struct ahead *ahead) {                                   \
        vec acc[MR_MAX * NV];                                                                                          \
        multiply_columns(mr, nv, n, first, values, p, nv *VL, nv < NV ? ahead : NULL, acc);                            \
        if (alpha == NULL)                                                                                             \
            finish_context(mr, nv, acc, o, NULL);                                                                      \
        else                                                                                                           \
            finish_context(mr, nv, acc, o, alpha);                                                                     \
    }
KERNEL_EVERY_TILE(KERNEL_CONTEXT)

#define KERNEL_CONTEXT_ENTRY(mr, nv) KERNEL_TABLE_ENTRY(context, mr, nv)
static void (*const context_table[NV + 1][MR_MAX + 1])(size_t n, size_t first, const struct value_rows *values,
                                                       const real *p, real *o, const real *alpha,
                                                       struct ahead *ahead) = {KERNEL_EVERY_TILE(KERNEL_CONTEXT_ENTRY)};

static struct value_rows values_from(const struct mha_attention *a, size_t key) {
    const size_t n_past = a->problem->n_past, d_v = a->problem->d_v;
    struct value_rows values = {.past = a->v.past, .fresh = a->v.fresh, .row = d_v};
    if (key < n_past) {
        values.past = values.past + key * d_v;
        values.n_past = n_past - key;
    } else {
        values.fresh = values.fresh + (key - n_past) * d_v;
    }
    return values;
}

/* Where column c of the packed values of a tile begins. */
static size_t value_column(size_t c) { return c / MR3 * VALUE_GROUP + c % MR3; }

/* V' of keys [key, key + n) as [d_v / MR3] groups of [MHA_KEY_TILE][MR3]: what one tile of the product reads lies together. In
 * rows, at a width that is a power of two, it would share a few sets of the first-level cache; so would groups without a line
 * between them. */
static void pack_values(const struct mha_attention *a, size_t key, size_t n, real *to) {
    const size_t d_v = a->problem->d_v;
    for (size_t j = 0; j < n;) {
        size_t run;
        const real *v = rows_from(a, a->v, d_v, key + j, n - j, &run);
        for (size_t end = j + run; j < end; j++, v += d_v) {
            real *row = to + j * MR3;
            size_t c = 0;
            KERNEL_STEPS
            for (; c + MR3 <= d_v; c += MR3) memcpy(row + value_column(c), v + c, MR3 * sizeof(real));
            for (; c < d_v; c++) row[value_column(c)] = v[c];
        }
    }
}

/* One number of the context with hidden values left out: the same sums, of fewer terms. */
static real careful_sum(const struct tile_at *t, const struct panel *w, const struct value_rows *values, size_t x,
                        size_t c) {
    const real shrink = t->care == SHRUNK ? SHRINK : 1;
    real sum = 0, block = 0;
    for (size_t j = 0; j < t->n; j++) {
        const real *value =
            j < values->n_past ? values->past + j * values->row : values->fresh + (j - values->n_past) * values->row;
        if (mha_visible(t->a->problem, t->a->b, w->head[x], w->i[x], t->key + j))
            block += t->s[j * w->width + x] * (value[c] * shrink);
        if (t->key + j + 1 == fold_end(t->key + j) || j + 1 == t->n) {
            sum += block;
            block = 0;
        }
    }
    return sum;
}

/* For a row alone: lanes along columns, contexts [d_v]; behind them lie the sum of the tile and that of the block in work. */
static void context_alone(const struct tile_at *t, struct panel *w, real alpha) {
    const size_t d_v = t->a->problem->d_v;
    real *o = w->o, *total = o + d_v, *block = total + d_v;
    memset(block, 0, d_v * sizeof(real));
    for (size_t j = 0; j < t->n;) {
        const bool first = j == 0;
        const size_t left = fold_end(t->key + j) - (t->key + j), end = t->n - j < left ? t->n : j + left;
        while (j < end) {
            size_t run;
            const real *v = rows_from(t->a, t->a->v, d_v, t->key + j, end - j, &run);
            add_rows(run, t->s + j, v, d_v, d_v, block);
            j += run;
        }
        end_block(d_v, first, block, total);
    }
    for (size_t c = 0; c < d_v; c++) o[c] = w->begun ? o[c] * alpha + total[c] : total[c];
}

/* With hidden values left out. */
static void context_carefully(const struct tile_at *t, struct panel *w, const real *alpha) {
    const struct value_rows values = values_from(t->a, t->key);
    for (size_t x = 0; x < w->n_rows; x++)
        for (size_t c = 0; c < t->a->problem->d_v; c++) {
            real *o = w->o + c * w->width + x;
            const real sum = careful_sum(t, w, &values, x, c);
            *o = w->begun ? *o * alpha[x] + sum : sum;
        }
}

static void context_of_panel(const struct tile_at *t, struct panel *w, const real *alpha) {
    const size_t d_v = t->a->problem->d_v;
    struct value_rows values = values_from(t->a, t->key);
    const bool packed = t->v != NULL && w->nv == NV;
    if (packed) values = (struct value_rows){.fresh = t->v + (t->key - t->tile_key) * MR3, .row = MR3};
    for (size_t c = 0; c < d_v;) {
        const int mr = tile_rows(w->nv, d_v - c);
        values.column = packed ? value_column(c) : c;
        context_table[w->nv][mr](t->n, t->key, &values, t->s, w->o + c * w->width, w->begun ? alpha : NULL, &w->ahead);
        if (w->nv == NV) look_ahead(&w->ahead);
        c += (size_t)mr;
    }
}

static void context_tile(const struct tile_at *t, struct panel *w, const real *alpha) {
    if (t->care != PLAIN)
        context_carefully(t, w, alpha);
    else if (is_alone(w))
        context_alone(t, w, alpha[0]);
    else
        context_of_panel(t, w, alpha);
    w->begun = true;
}

/* o_rounds = o_rounds * shrink + o */
static void add_round(const struct mha_attention *a, struct panel *w, int v, vec shrink) {
    const size_t d_v = a->problem->d_v, row = w->width;
    if (is_alone(w)) {
        for (size_t c = 0; c < d_v; c++) w->o_rounds[c] = w->o_rounds[c] * shrink[0] + w->o[c];
        return;
    }
    for (size_t at = (size_t)v * VL; at < d_v * row; at += row)
        store(w->o_rounds + at, load(w->o_rounds + at) * shrink + load(w->o + at));
}

/* Ends a round of keys: o_rounds takes o in, and o begins anew. A long sum of contexts is thus a sum of short sums. */
static void end_round(const struct mha_attention *a, struct panel *w) {
    if (!w->begun) return;
    for (int v = 0; v < w->nv; v++) {
        const softmax_ref then = {load(w->base_rounds + v * VL), load(w->magic_rounds + v * VL)}, now = ref_of(w, v);
        if (w->rounds_begun) add_round(a, w, v, VMF(vm_alpha)(then, now));
        store(w->base_rounds + v * VL, now.base);
        store(w->magic_rounds + v * VL, now.magic);
    }
    if (!w->rounds_begun) {
        real *o = w->o;
        w->o = w->o_rounds;
        w->o_rounds = o;
    }
    w->rounds_begun = true;
    w->begun = false;
}

/* The last round. Without any, contexts are 0. */
static void end_all_rounds(const struct mha_attention *a, struct panel *w) {
    end_round(a, w);
    if (!w->rounds_begun) memset(w->o_rounds, 0, a->problem->d_v * w->width * sizeof(real));
}

/* divide_contexts for a row alone. */
static bool divide_alone(const struct mha_attention *a, struct panel *w) {
    real finite = 0;
    for (size_t c = 0; c < a->problem->d_v; c++) {
        w->o[c] = w->sees[0] ? w->o_rounds[c] / w->l[0] + 0 : 0;
        finite += w->o[c] * 0;
    }
    return finite == 0;
}

/* O = O / l; rows that see nothing get 0. Returns whether what rows get is finite. */
static bool divide_contexts(const struct mha_attention *a, struct panel *w) {
    const size_t d_v = a->problem->d_v;
    if (is_alone(w)) return divide_alone(a, w);
    real keep[NR];
    for (size_t x = 0; x < w->lanes; x++) keep[x] = w->sees[x] ? 1 : 0;
    vec finite = {0};
    for (int v = 0; v < w->nv; v++) {
        const vec l = load(w->l + v * VL);
        const ivec kept = load(keep + v * VL) != splat(0);
        for (size_t c = 0; c < d_v; c++) {
            const real *sum = w->o_rounds + c * w->width + (size_t)v * VL;
            real *o = w->o + c * w->width + (size_t)v * VL;
            /* + 0: a context of -0 becomes +0, because padding may have turned it already */
            const vec context = (vec)((ivec)(load(sum) / l + 0) & kept);
            finite += context * 0;
            store(o, context);
        }
    }
    return !any_lane(finite);
}

/* A row that sees one key gets its value itself: p * v / p may be an ulp away. With one key l is its weight, at most 2^(1/2):
 * most rows need not be asked. */
static void give_only_values(const struct mha_attention *a, struct panel *w) {
    const struct mha_problem *p = a->problem;
    for (size_t x = 0; x < w->n_rows; x++) {
        size_t key, run;
        if (!(w->l[x] < (real)1.5) || !w->sees[x] || p->sinks != NULL) continue;
        if (!mha_row_sees_only(p, a->b, w->head[x], w->i[x], &key)) continue;
        const real *v = rows_from(a, a->v, p->d_v, key, 1, &run);
        for (size_t c = 0; c < p->d_v; c++) w->o[c * w->width + x] = v[c] + 0;
    }
}

static real *context_row(const struct mha_attention *a, const struct panel *w, size_t x) {
    const struct mha_problem *p = a->problem;
    return (real *)a->context + (w->i[x] * p->h + w->head[x]) * p->d_v;
}

/* Where contexts will be written is often far from the caches; there is something to do meanwhile. */
static void ask_for_contexts(const struct mha_attention *a, const struct panel *w) {
    for (size_t x = 0; x < w->n_rows; x++)
        for (size_t c = 0; c < a->problem->d_v; c += LINE / sizeof(real))
            __builtin_prefetch(context_row(a, w, x) + c, 1);
}

static void write_contexts(const struct mha_attention *a, const struct panel *w) {
    const struct mha_problem *p = a->problem;
    real *to[NR];
    for (size_t x = 0; x < w->n_rows; x++) to[x] = context_row(a, w, x);
    write_lanes(w, w->o, p->d_v, to);
    for (size_t x = 0; a->result->heads != NULL && x < w->n_rows; x++) {
        real *head = (real *)a->result->heads + ((a->b * p->h + w->head[x]) * p->n_q + w->i[x]) * p->d_v;
        memcpy(head, to[x], p->d_v * sizeof(real));
    }
}

/* After the SHRUNK pass: what the CAREFUL one wrote stays where it is finite, so that a number never depends on its neighbours. */
static __attribute__((noinline)) void mend_contexts(const struct mha_attention *a, const struct panel *w) {
    const struct mha_problem *p = a->problem;
    for (size_t x = 0; x < w->n_rows; x++) {
        real *to = context_row(a, w, x);
        for (size_t c = 0; c < p->d_v; c++) {
            if (__builtin_isfinite(to[c])) continue;
            to[c] = w->o[c * w->width + x] / SHRINK;
            if (!__builtin_isfinite(to[c])) note(a, w, x, MHA_STAGE_HEADS, 4, c);
        }
        if (a->result->heads == NULL) continue;
        real *head = (real *)a->result->heads + ((a->b * p->h + w->head[x]) * p->n_q + w->i[x]) * p->d_v;
        memcpy(head, to, p->d_v * sizeof(real));
    }
}

#endif

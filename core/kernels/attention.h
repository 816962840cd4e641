/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/attention.h - fused attention: scores, softmax and context tile by tile, never n_q x n_kv numbers at once.
 *
 * Model. Lanes are query rows. A panel is up to NR rows (of one query head; of several heads that share keys when n_q is
 * small), its Q' packed as [d_k][width] and scaled. For each tile of MHA_KEY_TILE keys:
 *     S^T [key][width]  = K' rows times the panel of Q'
 *     softcap, additive mask, hiding (a hidden score becomes -infinity)
 *     P^T [key][width]  = online softmax down the columns (core/kernels/vmath.h)
 *     O^T [d_v][width]  = O^T * alpha + V'^T P^T          (begun anew every MHA_KEY_ROUND keys)
 * and at the end context = O / l. No number is ever reduced across lanes, and P^T lies as the next product wants it.
 * Keys and values are read where they are, row by row: the cache first, then the new ones.
 *
 * Which keys a tile takes. Keys before the first and after the last one that any row of the panel may see are left out:
 * their weight would be exactly 0. Rows that see no key at all, and lanes without a row, compute along and are ignored.
 *
 * Hidden keys may hold NaN or infinity. Their scores are replaced before anything looks at them. 0 * V' would spoil a
 * context, so a panel whose context is not finite is done again carefully, which leaves hidden values out one
 * by one; for what is finite both ways give the same bits. What is not finite even so is done once more with shrunk values.
 *
 * Where what is: panel.h (what a panel and a tile are), scores.h, softmax.h, context.h, maps.h; here their order.
 */
#ifndef MHA_KERNELS_ATTENTION_H
#define MHA_KERNELS_ATTENTION_H

#include "context.h"
#include "maps.h"
#include "scores.h"
#include "softmax.h"

/* ---- the end of a panel ------------------------------------------------------------------------------------------ */

static void write_logsumexp(const struct mha_attention *a, const struct panel *w) {
    const struct mha_problem *p = a->problem;
    real lse[NR];
    for (int v = 0; v < w->nv; v++) store(lse + v * VL, VMF(vm_lse)(ref_of(w, v), load(w->l + v * VL)));
    for (size_t x = 0; x < w->n_rows; x++)
        ((real *)a->result->logsumexp)[(a->b * p->h + w->head[x]) * p->n_q + w->i[x]] =
            w->sees[x] ? lse[x] : -(real)__builtin_inf();
}

static void note_sinks(const struct mha_attention *a, const struct panel *w) {
    const real *sinks_h = a->problem->sinks;
    for (size_t x = 0; sinks_h != NULL && x < w->n_rows; x++) {
        const real sink = sinks_h[w->head[x]];
        if (w->sees[x] && !(sink <= LARGEST_FINITE)) note(a, w, x, MHA_STAGE_SCORES, 3, 0);
    }
}

/* ---- a panel ----------------------------------------------------------------------------------------------------- */

/* Calls of a micro-kernel for n rows. */
static size_t tiles_of(const struct panel *w, size_t n) {
    return (n + (size_t)full_rows(w->nv) - 1) / (size_t)full_rows(w->nv);
}

/* Asks for rows [key, key + n) of K' or V', in `calls` calls; the panels of a task each for their part. */
static void ask_for_rows(const struct mha_attention *a, struct panel *w, struct mha_rows rows, size_t d, size_t key,
                         size_t n, size_t calls) {
    size_t run;
    const real *from = rows_from(a, rows, d, key + w->part * n / w->parts, n / w->parts + 1, &run);
    w->ahead = ahead_of(from, run * d, calls);
}

static size_t keys_of_next(const struct tile_at *t, const struct panel *w) {
    const size_t next = t->tile_key + MHA_KEY_TILE;
    if (next >= w->last_key) return 0;
    return w->last_key - next < MHA_KEY_TILE ? w->last_key - next : MHA_KEY_TILE;
}

/* While scores are computed: a single panel asks for the values of this tile, several for the keys of the next (their values
 * are packed already). */
static void ahead_of_scores(const struct tile_at *t, struct panel *w) {
    const struct mha_problem *p = t->a->problem;
    const size_t blocks = (p->d_k + MHA_BLOCK - 1) / MHA_BLOCK, next = keys_of_next(t, w);
    const size_t calls = larger_of(tiles_of(w, t->n) * blocks, 1);
    if (w->parts > 1 && next > 0)
        ask_for_rows(t->a, w, t->a->k, p->d_k, t->tile_key + MHA_KEY_TILE, next, calls);
    else if (w->parts == 1 && t->a->context != NULL && t->n > 0)
        ask_for_rows(t->a, w, t->a->v, p->d_v, t->key, t->n, calls);
}

/* While contexts are computed: a single panel asks for the keys of the next tile, several for its values. */
static void ahead_of_context(const struct tile_at *t, struct panel *w) {
    const struct mha_problem *p = t->a->problem;
    const size_t calls = tiles_of(w, p->d_v), next = keys_of_next(t, w);
    if (next == 0) return;
    if (w->parts > 1)
        ask_for_rows(t->a, w, t->a->v, p->d_v, t->tile_key + MHA_KEY_TILE, next, calls);
    else
        ask_for_rows(t->a, w, t->a->k, p->d_k, t->tile_key + MHA_KEY_TILE, next, calls);
}

/* Which keys of a tile get scores: all of them for a map, else what some row may see, from a multiple of 4 on. */
static void attend_tile(const struct mha_attention *a, struct panel *w, size_t tile_key, real *s, const real *v,
                        enum care care) {
    const struct mha_problem *p = a->problem;
    const size_t n_kv = mha_n_kv(p), tile_end = n_kv - tile_key < MHA_KEY_TILE ? n_kv : tile_key + MHA_KEY_TILE;
    size_t key = w->first_key > tile_key ? w->first_key / 4 * 4 : tile_key;
    size_t end = w->last_key < tile_end ? w->last_key : tile_end;
    if (end <= key) key = end = tile_key;
    const bool for_map = wants_scores(a, w);
    const size_t from = for_map ? tile_key : key, to = for_map ? tile_end : end;
    struct tile_at t = {a, key, end - key, tile_key, s + (key - from) * w->width, v, care};

    if (from == to) return;
    ahead_of_scores(&t, w);
    score_range(a, w, from, to - from, s);
    if (is_alone(w)) store(s + (to - from), splat(0)); /* what whole vectors take along */
    if (!scores_are_finite(&t, w)) note_scores(&t, w);
    if (p->softcap > 0) cap_range(a, w, to - from, s);
    if (for_map) write_scores(a, w, from, to - from, s);
    if (t.n == 0) return;
    mask_tile(&t, w);
    real alpha[NR];
    if (is_alone(w))
        softmax_alone(&t, w, alpha);
    else
        softmax_tile(&t, w, alpha);
    if (wants_attention(a, w)) keep_weights(&t, w);
    if (a->context == NULL) return;
    ahead_of_context(&t, w);
    context_tile(&t, w, alpha);
    if ((tile_key + MHA_KEY_TILE) % MHA_KEY_ROUND == 0) end_round(a, w);
}

/* False: not finite, and more care may help. */
static bool finish_contexts(const struct mha_attention *a, struct panel *w, enum care care) {
    ask_for_contexts(a, w);
    end_all_rounds(a, w);
    const bool finite = divide_contexts(a, w);
    if (care == SHRUNK) {
        mend_contexts(a, w);
        return true;
    }
    if (!finite && care == PLAIN) return false;
    give_only_values(a, w);
    write_contexts(a, w);
    return finite;
}

/* Returns false where the panel has to be done again, carefully. */
static bool finish_panel(const struct mha_attention *a, struct panel *w, enum care care) {
    for (size_t x = 0; x < w->lanes; x++) w->l[x] += w->l_low[x];
    if (a->context != NULL && !finish_contexts(a, w, care)) return false;
    note_sinks(a, w);
    if (a->result->logsumexp != NULL) write_logsumexp(a, w);
    if (wants_attention(a, w)) finish_map(a, w);
    if (a->result->attention != NULL && a->result->attention_mean) add_to_mean(a, w);
    if (wants_attention(a, w) && !a->result->attention_mean) repeat_listed(a, w, a->result->attention);
    if (wants_scores(a, w)) repeat_listed(a, w, a->result->scores);
    return true;
}

static void begin_panel(const struct mha_attention *a, struct panel *w) {
    begin_softmax(a, w);
    if (wants_attention(a, w)) clear_map(a, w);
}

static bool stopped(const struct mha_attention *a) { return atomic_load_explicit(a->stop, memory_order_relaxed); }

/* Returns false where the panel has to be done again with more care. */
static bool attend_again(const struct mha_attention *a, struct panel *w, real *s, enum care care) {
    w->width = w->lanes;
    pack_queries(a, w);
    begin_panel(a, w);
    for (size_t key = 0; key < mha_n_kv(a->problem) && !stopped(a); key += MHA_KEY_TILE)
        attend_tile(a, w, key, s, NULL, care);
    return finish_panel(a, w, care);
}

static __attribute__((noinline)) void attend_carefully(const struct mha_attention *a, struct panel *w, real *s) {
    if (!attend_again(a, w, s, CAREFUL) && !stopped(a)) attend_again(a, w, s, SHRUNK);
}

/* ---- scratch, and the panels of a task --------------------------------------------------------------------------- */

/* Where the parts of the scratch of one task begin, in bytes. */
struct scratch_plan {
    size_t panel, q, o, o_rounds, refs, mean_rows, panel_bytes; /* of one panel */
    size_t scores, values, bytes;                               /* after all panels */
};

static bool take(size_t *at, size_t n, size_t m, size_t element, size_t *begin) {
    size_t bytes;
    *begin = *at;
    return !__builtin_mul_overflow(n, m, &bytes) && !__builtin_mul_overflow(bytes, element, &bytes) &&
           !__builtin_add_overflow(bytes, MHA_ALIGN - 1, &bytes) &&
           !__builtin_add_overflow(*at, bytes / MHA_ALIGN * MHA_ALIGN, at);
}

/* Worth it where several panels read the values. */
static bool packs_values(size_t panels) { return panels > 2; }
static size_t value_groups(const struct mha_problem *p) { return p->d_v / MR3 + (p->d_v % MR3 != 0); }

static bool plan_scratch(const struct mha_problem *p, const struct mha_result *r, size_t panels,
                         struct scratch_plan *plan) {
    size_t at = 0, unused;
    const size_t refs = r->attention != NULL ? n_tiles_of(p) : 0;
    const size_t mean = r->attention != NULL && r->attention_mean ? mha_n_kv(p) : 0;
    if (!take(&at, 1, 1, sizeof(struct panel), &plan->panel) || !take(&at, p->d_k, NR, sizeof(real), &plan->q) ||
        !take(&at, p->d_v, NR, sizeof(real), &plan->o) || !take(&at, p->d_v, NR, sizeof(real), &plan->o_rounds) ||
        !take(&at, refs, 1, sizeof(struct tile_ref), &plan->refs) ||
        !take(&at, mean, NR, sizeof(real), &plan->mean_rows))
        return false;
    plan->panel_bytes = at;
    at = 0;
    return take(&at, panels, plan->panel_bytes, 1, &unused) &&
           take(&at, MHA_KEY_TILE, NR, sizeof(real), &plan->scores) &&
           take(&at, packs_values(panels) ? value_groups(p) : 0, VALUE_GROUP, sizeof(real), &plan->values) &&
           (plan->bytes = at, true);
}

static size_t attend_scratch(const struct mha_problem *problem, const struct mha_result *result, size_t panels) {
    struct scratch_plan plan;
    return plan_scratch(problem, result, panels, &plan) ? plan.bytes : SIZE_MAX;
}

static struct panel *open_panel(const struct mha_attention *a, size_t panel, char *scratch,
                                const struct scratch_plan *plan) {
    struct panel *w = (struct panel *)(void *)(scratch + plan->panel);
    w->ahead = (struct ahead){0};
    w->q = (real *)(void *)(scratch + plan->q);
    w->o = (real *)(void *)(scratch + plan->o);
    w->o_rounds = (real *)(void *)(scratch + plan->o_rounds);
    w->refs = (struct tile_ref *)(void *)(scratch + plan->refs);
    w->mean_rows = (real *)(void *)(scratch + plan->mean_rows);
    find_rows(a, panel, w);
    find_spans(a, w);
    find_listed(a, w);
    pack_queries(a, w);
    begin_panel(a, w);
    return w;
}

/* Keys outermost, so that a tile of K' and V' stays in the second-level cache for all panels of the task. */
static void attend(const struct mha_attention *a, size_t panel, size_t panel_end, void *scratch) {
    const struct mha_problem *p = a->problem;
    const size_t n = panel_end - panel;
    struct scratch_plan plan;
    if (!plan_scratch(p, a->result, n, &plan)) return; /* cannot be: mha_plan has counted */
    char *at = scratch;
    real *s = (real *)(void *)(at + plan.scores);
    size_t first = SIZE_MAX, last = 0;
    for (size_t x = 0; x < n; x++) {
        struct panel *w = open_panel(a, panel + x, at + x * plan.panel_bytes, &plan);
        w->part = x;
        w->parts = n;
        const bool all = wants_scores(a, w);
        const size_t begin = all ? 0 : w->first_key, end = all ? mha_n_kv(p) : w->last_key;
        if (begin < first) first = begin;
        if (end > last) last = end;
    }
    real *v = a->context != NULL && packs_values(n) ? (real *)(void *)(at + plan.values) : NULL;
    for (size_t key = first / MHA_KEY_TILE * MHA_KEY_TILE; key < last && !stopped(a); key += MHA_KEY_TILE) {
        if (v != NULL) pack_values(a, key, last - key < MHA_KEY_TILE ? last - key : MHA_KEY_TILE, v);
        for (size_t x = 0; x < n; x++)
            attend_tile(a, (struct panel *)(void *)(at + x * plan.panel_bytes), key, s, v, PLAIN);
    }
    if (stopped(a)) return;
    for (size_t x = 0; x < n; x++) {
        struct panel *w = (struct panel *)(void *)(at + x * plan.panel_bytes);
        if (!finish_panel(a, w, PLAIN)) attend_carefully(a, w, s);
    }
}

#endif

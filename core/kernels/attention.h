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
 * context, so a panel whose context is not finite is done again with `careful` set, which leaves hidden values out one
 * by one; for what is finite both ways give the same bits.
 *
 * Maps. Weights are written tile by tile relative to the tile's reference of the softmax, and multiplied into place at
 * the end by powers of two and 1/l, in the same arithmetic as the context.
 */
#ifndef MHA_KERNELS_ATTENTION_H
#define MHA_KERNELS_ATTENTION_H

#include "../visible.h"
#include "gemm.h"
#include "one_row.h"

typedef struct VMF(vm_ref) softmax_ref;
#define LARGEST_FINITE (REAL_BITS == 64 ? (real)0x1.fffffffffffffp+1023 : (real)0x1.fffffep+127)

/* Memory that will be needed next, asked for a few lines at a time while something else is computed. */
struct ahead {
    const char *at;
    size_t lines, per_call;
};

enum { LINE = 64 };

/* One panel at work. Arrays by lane; a lane is a query row. */
struct panel {
    int nv;
    size_t lanes, n_rows;        /* nv * VL lanes, of which n_rows have a row */
    size_t width;                /* of S^T and O^T: lanes; 1 where one row is alone (one_row.h) */
    size_t head[NR], i[NR];      /* which query head (of all h), which query */
    size_t begin[NR], end[NR];   /* keys that causal, window and lengths leave it */
    bool sees[NR];               /* some key, after all masks */
    size_t first_key, last_key;  /* first_key <= keys of any row < last_key */
    size_t full_begin, full_end; /* keys inside are in every row's span */
    size_t listed[NR];           /* the first place of the head in heads_listed; NOT_LISTED */
    bool any_listed;
    real *q;        /* [d_k][width], scaled */
    real *o;        /* [d_v][width], of the round of keys in work */
    real *o_rounds; /* [d_v][width], of the rounds before it, relative to base_rounds, magic_rounds */
    struct ahead ahead;
    struct tile_ref *refs; /* by tile, for maps */
    real *mean_rows;       /* [n_rows][n_kv], for attention_mean */
    real max[NR], base[NR], magic[NR], base_rounds[NR], magic_rounds[NR];
    real l[NR], l_low[NR]; /* their sum is the sum of weights */
};

/* What the weights of one tile are relative to. */
struct tile_ref {
    real base[NR], magic[NR];
};

#define NOT_LISTED SIZE_MAX

/* What the passes over one tile share. */
struct tile_at {
    const struct mha_attention *a;
    size_t key, n;   /* keys [key, key + n) of the softmax; key is a multiple of 4 */
    size_t tile_key; /* first key of the tile */
    real *s;         /* S^T of `key`, then P^T */
    const real *v;   /* the tile's V' in column groups (pack_values), or NULL: read where it is */
    bool careful;
};

static size_t n_heads_of_group(const struct mha_problem *p) { return p->h / p->h_kv; }

static size_t n_tiles_of(const struct mha_problem *p) { return (mha_n_kv(p) + MHA_KEY_TILE - 1) / MHA_KEY_TILE; }

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* Few queries: panels run on through the heads of a group. Many: every head starts a panel. */
static bool heads_share_panels(const struct mha_problem *p) { return p->n_q < NR; }

static size_t attend_panels(const struct mha_problem *p) {
    const size_t group = n_heads_of_group(p);
    if (heads_share_panels(p)) return (group * p->n_q + NR - 1) / NR;
    return group * ((p->n_q + NR - 1) / NR);
}

static size_t place_in_list(const struct mha_result *r, size_t head) {
    if (r->heads_listed == NULL) return head;
    for (size_t s = 0; s < r->n_heads_listed; s++)
        if (r->heads_listed[s] == head) return s;
    return NOT_LISTED;
}

static void find_rows(const struct mha_attention *a, size_t panel, struct panel *w) {
    const struct mha_problem *p = a->problem;
    const size_t group = n_heads_of_group(p);
    size_t row, n;
    if (heads_share_panels(p)) {
        row = panel * NR;
        n = group * p->n_q - row;
    } else {
        const size_t per_head = (p->n_q + NR - 1) / NR, i = panel % per_head * NR;
        row = panel / per_head * p->n_q + i;
        n = p->n_q - i;
    }
    w->n_rows = n < NR ? n : NR;
    w->nv = (int)((w->n_rows + VL - 1) / VL);
    w->lanes = (size_t)w->nv * VL;
    w->width = w->n_rows == 1 ? 1 : w->lanes;
    for (size_t x = 0; x < w->n_rows; x++) {
        w->head[x] = a->g * group + (row + x) / p->n_q;
        w->i[x] = (row + x) % p->n_q;
    }
}

static void find_spans(const struct mha_attention *a, struct panel *w) {
    const struct mha_problem *p = a->problem;
    w->first_key = w->full_begin = 0;
    w->last_key = 0;
    w->full_end = SIZE_MAX;
    bool any = false;
    for (size_t x = 0; x < w->n_rows; x++) {
        const struct mha_span span = mha_visible_span(p, a->b, w->i[x]);
        w->begin[x] = span.begin;
        w->end[x] = span.end;
        w->sees[x] = mha_row_sees(p, a->b, w->head[x], w->i[x]);
        if (!w->sees[x]) continue;
        if (!any || span.begin < w->first_key) w->first_key = span.begin;
        if (!any || span.end > w->last_key) w->last_key = span.end;
        if (span.begin > w->full_begin) w->full_begin = span.begin;
        if (span.end < w->full_end) w->full_end = span.end;
        any = true;
    }
    for (size_t x = w->n_rows; x < w->lanes; x++) {
        w->begin[x] = w->end[x] = 0;
        w->sees[x] = false;
    }
}

static void find_listed(const struct mha_attention *a, struct panel *w) {
    w->any_listed = false;
    for (size_t x = 0; x < w->n_rows; x++) {
        w->listed[x] = place_in_list(a->result, w->head[x]);
        w->any_listed = w->any_listed || w->listed[x] != NOT_LISTED;
    }
}

/* The scale comes first, so that a large product whose scaled value fits does not overflow. */
static void pack_queries(const struct mha_attention *a, struct panel *w) {
    const struct mha_problem *p = a->problem;
    const real scale = (real)p->scale;
    const size_t first_head = a->g * n_heads_of_group(p);
    for (size_t x = 0; x < w->width; x++) {
        if (x >= w->n_rows) {
            for (size_t c = 0; c < p->d_k; c++) w->q[c * w->width + x] = 0;
            continue;
        }
        const real *q = (const real *)a->q + (w->head[x] - first_head) * a->q_head + w->i[x] * p->d_k;
        real *to = w->q + x;
        KERNEL_STEPS
        for (size_t c = 0; c < p->d_k; c++) to[c * w->width] = q[c] * scale;
    }
}

static bool is_alone(const struct panel *w) { return w->width == 1; }

static softmax_ref ref_of(const struct panel *w, int v) {
    return (softmax_ref){load(w->base + v * VL), load(w->magic + v * VL)};
}

/* Before the first key: nothing, or the sink, which is one more logit without a value. */
static void begin_softmax(const struct mha_attention *a, struct panel *w) {
    const real *sinks_h = a->problem->sinks;
    real sink[NR];
    for (size_t x = 0; x < w->lanes; x++) /* lanes without a row do what the first does */
        sink[x] = sinks_h != NULL ? sinks_h[w->head[x < w->n_rows ? x : 0]] : -(real)__builtin_inf();
    for (int v = 0; v < w->nv; v++) {
        const vec s = load(sink + v * VL), max = VMF(vm_max)(splat(-LARGEST_FINITE), s);
        const softmax_ref ref = VMF(vm_ref)(max);
        store(w->max + v * VL, max);
        store(w->base + v * VL, ref.base);
        store(w->magic + v * VL, ref.magic);
        store(w->base_rounds + v * VL, ref.base);
        store(w->magic_rounds + v * VL, ref.magic);
        store(w->l + v * VL, VMF(vm_exp)(s - ref.base, ref.magic));
        store(w->l_low + v * VL, splat(0));
    }
    if (a->context == NULL) return;
    memset(w->o, 0, a->problem->d_v * w->width * sizeof(real));
    memset(w->o_rounds, 0, a->problem->d_v * w->width * sizeof(real));
}

static void note(const struct mha_attention *a, const struct panel *w, size_t x, enum mha_stage stage, size_t rank,
                 size_t last) {
    a->note(a->note_arg, (struct mha_failure){stage, rank, {a->b, w->head[x], w->i[x], last}});
}

/* ---- the scores of one tile -------------------------------------------------------------------------------------- */

#define KERNEL_SCORE(mr, nv)                                                                                           \
    static __attribute__((noinline)) void score_##mr##x##nv(size_t n, size_t fold, const real *k, size_t k_row,        \
                                                            const real *q, real *s, bool adds) {                       \
        vec acc[MR_MAX * NV];                                                                                          \
        multiply_rows(mr, nv, n, fold, k, k_row, q, nv *VL, acc);                                                      \
        KERNEL_UNROLL                                                                                                  \
        for (int x = 0; x < mr * nv; x++) {                                                                            \
            if (adds) acc[x] = load(s + x * VL) + acc[x];                                                              \
            store(s + x * VL, acc[x]);                                                                                 \
        }                                                                                                              \
    }
KERNEL_EVERY_TILE(KERNEL_SCORE)

#define KERNEL_SCORE_ENTRY(mr, nv) KERNEL_TABLE_ENTRY(score, mr, nv)
static void (*const score_table[NV + 1][MR_MAX + 1])(size_t n, size_t fold, const real *k, size_t k_row, const real *q,
                                                     real *s, bool adds) = {KERNEL_EVERY_TILE(KERNEL_SCORE_ENTRY)};

/* ---- reading ahead ----------------------------------------------------------------------------------------------- */

/* With one panel alone every row of K' and V' is read once, in the order of the products, which no hardware prefetcher
 * follows well: decoding would wait for memory most of its time. */
static bool reads_once(const struct mha_attention *a) { return attend_panels(a->problem) == 1; }

static void set_ahead(struct panel *w, const real *from, size_t n, size_t calls) {
    w->ahead.at = (const char *)from;
    w->ahead.lines = (n * sizeof(real) + LINE - 1) / LINE;
    w->ahead.per_call = w->ahead.lines / calls + 1;
}

KERNEL_INLINE void look_ahead(struct panel *w) {
    size_t n = w->ahead.per_call < w->ahead.lines ? w->ahead.per_call : w->ahead.lines;
    w->ahead.lines -= n;
    for (; n > 0; n--, w->ahead.at += LINE) __builtin_prefetch(w->ahead.at, 0, 3);
}

/* S^T of n keys that lie one after the other. */
static void score_keys(struct panel *w, size_t n, size_t d_k, const real *k, real *s) {
    for (size_t c = 0; c < d_k; c += MHA_BLOCK) {
        const size_t block = d_k - c < MHA_BLOCK ? d_k - c : MHA_BLOCK;
        for (size_t j = 0; j < n;) {
            const int mr = tile_rows(w->nv, n - j);
            score_table[w->nv][mr](block, fold_of_score(d_k), k + j * d_k + c, d_k, w->q + c * w->width,
                                   s + j * w->width, c > 0);
            look_ahead(w);
            j += (size_t)mr;
        }
    }
}

/* Rows of K' or V' from `key` on that lie one after the other: at most n; *run says how many. */
static const real *rows_from(const struct mha_attention *a, struct mha_rows rows, size_t d, size_t key, size_t n,
                             size_t *run) {
    const size_t n_past = a->problem->n_past;
    const bool in_past = key < n_past;
    *run = in_past && n_past - key < n ? n_past - key : n;
    return in_past ? (const real *)rows.past + key * d : (const real *)rows.fresh + (key - n_past) * d;
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
    for (size_t x = 0; x < w->n_rows; x++) {
        if (w->listed[x] == NOT_LISTED) continue;
        real *row = (real *)a->result->scores + ((a->b * listed + w->listed[x]) * p->n_q + w->i[x]) * n_kv + key;
        for (size_t j = 0; j < n; j++) row[j] = s[j * w->width + x];
    }
}

/* ---- what is not finite, what is hidden -------------------------------------------------------------------------- */

/* Is every score of the tile finite? */
static bool scores_are_finite(const struct tile_at *t, const struct panel *w) {
    vec z[4] = {{0}, {0}, {0}, {0}};
    const size_t n = t->n * w->width;
    size_t x = 0;
    for (; x + 4 * VL <= n; x += 4 * VL)
        for (int u = 0; u < 4; u++) z[u] += load(t->s + x + (size_t)u * VL) * 0;
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

/* A row alone takes its scores apart into lanes for this: masks are rare where it is, and few scores. */
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

/* ---- softmax of one tile ----------------------------------------------------------------------------------------- */

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
    vec sum[4] = {{0}, {0}, {0}, {0}};
    size_t j = 0;
    for (; j + 4 <= n; j += 4) {
        KERNEL_UNROLL
        for (int lane = 0; lane < 4; lane++) {
            real *at = s + (j + (size_t)lane) * width;
            const vec p = weight_of(at, ref, wide);
            store(at, p);
            sum[lane] += p;
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

/* The same for a row alone, lanes along keys. */
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

/* ---- context of one tile ----------------------------------------------------------------------------------------- */

#define KERNEL_CONTEXT(mr, nv)                                                                                         \
    static __attribute__((noinline)) void context_##mr##x##nv(size_t n, size_t first, const struct value_rows *values, \
                                                              const real *p, real *o, const real *alpha) {             \
        vec acc[MR_MAX * NV];                                                                                          \
        multiply_columns(mr, nv, n, first, values, p, nv *VL, acc);                                                    \
        KERNEL_UNROLL                                                                                                  \
        for (int m = 0; m < mr; m++) {                                                                                 \
            KERNEL_UNROLL                                                                                              \
            for (int v = 0; v < nv; v++)                                                                               \
                store(o + (m * nv + v) * VL, load(o + (m * nv + v) * VL) * load(alpha + v * VL) + acc[m * nv + v]);    \
        }                                                                                                              \
    }
KERNEL_EVERY_TILE(KERNEL_CONTEXT)

#define KERNEL_CONTEXT_ENTRY(mr, nv) KERNEL_TABLE_ENTRY(context, mr, nv)
static void (*const context_table[NV + 1][MR_MAX + 1])(size_t n, size_t first, const struct value_rows *values,
                                                       const real *p, real *o,
                                                       const real *alpha) = {KERNEL_EVERY_TILE(KERNEL_CONTEXT_ENTRY)};

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

/* V' of keys [key, key + n) as [d_v / MR3][MHA_KEY_TILE][MR3]: what one tile of the product reads lies together. In rows, at a
 * width that is a power of two, it would share a few sets of the first-level cache. */
static void pack_values(const struct mha_attention *a, size_t key, size_t n, real *to) {
    const size_t d_v = a->problem->d_v;
    for (size_t j = 0; j < n;) {
        size_t run;
        const real *v = rows_from(a, a->v, d_v, key + j, n - j, &run);
        for (size_t end = j + run; j < end; j++, v += d_v) {
            real *row = to + j * MR3;
            size_t c = 0;
            KERNEL_STEPS
            for (; c + MR3 <= d_v; c += MR3) memcpy(row + c * MHA_KEY_TILE, v + c, MR3 * sizeof(real));
            for (; c < d_v; c++) row[c / MR3 * MR3 * MHA_KEY_TILE + c % MR3] = v[c];
        }
    }
}

/* One number of the context with hidden values left out: the same sums, of fewer terms. */
static real careful_sum(const struct tile_at *t, const struct panel *w, const struct value_rows *values, size_t x,
                        size_t c) {
    real sum = 0, block = 0;
    for (size_t j = 0; j < t->n; j++) {
        const real *value =
            j < values->n_past ? values->past + j * values->row : values->fresh + (j - values->n_past) * values->row;
        if (mha_visible(t->a->problem, t->a->b, w->head[x], w->i[x], t->key + j))
            block += t->s[j * w->width + x] * value[c];
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
    for (size_t c = 0; c < d_v; c++) o[c] = o[c] * alpha + total[c];
}

static void context_tile(const struct tile_at *t, struct panel *w, real *alpha) {
    const size_t d_v = t->a->problem->d_v;
    struct value_rows values = values_from(t->a, t->key);
    for (size_t x = 0; t->careful && x < w->n_rows; x++)
        for (size_t c = 0; c < d_v; c++) {
            real *o = w->o + c * w->width + x;
            *o = *o * alpha[x] + careful_sum(t, w, &values, x, c);
        }
    const bool packed = t->v != NULL && w->nv == NV;
    if (packed) values = (struct value_rows){.fresh = t->v + (t->key - t->tile_key) * MR3, .row = MR3};
    for (size_t c = 0; !t->careful && c < d_v;) {
        const int mr = tile_rows(w->nv, d_v - c);
        values.column = packed ? c / MR3 * MR3 * MHA_KEY_TILE + c % MR3 : c;
        context_table[w->nv][mr](t->n, t->key, &values, t->s, w->o + c * w->width, alpha);
        look_ahead(w);
        c += (size_t)mr;
    }
}

/* Ends a round of keys: o_rounds takes o in, and o begins anew. A long sum of contexts is thus a sum of short sums. */
static void end_round(const struct mha_attention *a, struct panel *w) {
    const size_t d_v = a->problem->d_v;
    if (is_alone(w)) {
        const softmax_ref then = {load(w->base_rounds), load(w->magic_rounds)}, now = ref_of(w, 0);
        const vec shrink = VMF(vm_alpha)(then, now);
        for (size_t c = 0; c < d_v; c++) {
            w->o_rounds[c] = w->o_rounds[c] * shrink[0] + w->o[c];
            w->o[c] = 0;
        }
        store(w->base_rounds, now.base);
        store(w->magic_rounds, now.magic);
        return;
    }
    for (int v = 0; v < w->nv; v++) {
        const softmax_ref then = {load(w->base_rounds + v * VL), load(w->magic_rounds + v * VL)}, now = ref_of(w, v);
        const vec shrink = VMF(vm_alpha)(then, now);
        for (size_t c = 0; c < d_v; c++) {
            const size_t at = c * w->width + (size_t)v * VL;
            store(w->o_rounds + at, load(w->o_rounds + at) * shrink + load(w->o + at));
            store(w->o + at, splat(0));
        }
        store(w->base_rounds + v * VL, now.base);
        store(w->magic_rounds + v * VL, now.magic);
    }
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

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
    for (size_t x = 0; x < w->n_rows; x++) {
        real *row = map_row(t->a, w, x);
        if (row == NULL) continue;
        for (size_t j = 0; j < t->n; j++) row[t->key + j] = t->s[j * w->width + x];
    }
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

/* ---- the end of a panel ------------------------------------------------------------------------------------------ */

/* O = O / l; rows that see nothing get 0. Returns whether what rows get is finite. */
static bool divide_contexts(const struct mha_attention *a, struct panel *w) {
    const size_t d_v = a->problem->d_v;
    if (is_alone(w)) {
        real finite = 0;
        for (size_t c = 0; c < d_v; c++) {
            w->o[c] = w->sees[0] ? w->o_rounds[c] / w->l[0] + 0 : 0;
            finite += w->o[c] * 0;
        }
        return finite == 0;
    }
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

static void write_contexts(const struct mha_attention *a, const struct panel *w) {
    const struct mha_problem *p = a->problem;
    for (size_t x = 0; x < w->n_rows; x++) {
        real *context = (real *)a->context + (w->i[x] * p->h + w->head[x]) * p->d_v;
        const real *from = w->o + x;
        KERNEL_STEPS
        for (size_t c = 0; c < p->d_v; c++) context[c] = from[c * w->width];
        if (a->result->heads == NULL) continue;
        real *head = (real *)a->result->heads + ((a->b * p->h + w->head[x]) * p->n_q + w->i[x]) * p->d_v;
        memcpy(head, context, p->d_v * sizeof(real));
    }
}

static __attribute__((noinline)) void note_contexts(const struct mha_attention *a, const struct panel *w) {
    for (size_t x = 0; x < w->n_rows; x++)
        for (size_t c = 0; c < a->problem->d_v; c++)
            if (!__builtin_isfinite(w->o[c * w->width + x])) note(a, w, x, MHA_STAGE_HEADS, 4, c);
}

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

/* Asks for the values of a tile while its scores are computed, and for the keys of the next while its context is. */
static void ahead_of_scores(const struct tile_at *t, struct panel *w) {
    const struct mha_problem *p = t->a->problem;
    if (t->a->context == NULL || t->n == 0 || !reads_once(t->a)) return;
    size_t run;
    const real *v = rows_from(t->a, t->a->v, p->d_v, t->key, t->n, &run);
    const size_t calls = (t->n + (size_t)full_rows(w->nv) - 1) / (size_t)full_rows(w->nv);
    set_ahead(w, v, run * p->d_v, calls * ((p->d_k + MHA_BLOCK - 1) / MHA_BLOCK));
}

static void ahead_of_context(const struct tile_at *t, struct panel *w) {
    const struct mha_problem *p = t->a->problem;
    const size_t next = t->tile_key + MHA_KEY_TILE;
    if (next >= w->last_key || !reads_once(t->a)) return;
    size_t run;
    const size_t left = w->last_key - next;
    const real *k = rows_from(t->a, t->a->k, p->d_k, next, left < MHA_KEY_TILE ? left : MHA_KEY_TILE, &run);
    set_ahead(w, k, run * p->d_k, (p->d_v + (size_t)full_rows(w->nv) - 1) / (size_t)full_rows(w->nv));
}

/* Which keys of a tile get scores: all of them for a map, else what some row may see, from a multiple of 4 on. */
static void attend_tile(const struct mha_attention *a, struct panel *w, size_t tile_key, real *s, const real *v,
                        bool careful) {
    const struct mha_problem *p = a->problem;
    const size_t n_kv = mha_n_kv(p), tile_end = n_kv - tile_key < MHA_KEY_TILE ? n_kv : tile_key + MHA_KEY_TILE;
    size_t key = w->first_key > tile_key ? w->first_key / 4 * 4 : tile_key;
    size_t end = w->last_key < tile_end ? w->last_key : tile_end;
    if (end <= key) key = end = tile_key;
    const bool for_map = wants_scores(a, w);
    const size_t from = for_map ? tile_key : key, to = for_map ? tile_end : end;
    struct tile_at t = {a, key, end - key, tile_key, s + (key - from) * w->width, v, careful};

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
    ahead_of_context(&t, w);
    if (a->context != NULL && is_alone(w))
        context_alone(&t, w, alpha[0]);
    else if (a->context != NULL)
        context_tile(&t, w, alpha);
    if (a->context != NULL && (tile_key + MHA_KEY_TILE) % MHA_KEY_ROUND == 0) end_round(a, w);
}

/* Returns false where the panel has to be done again, carefully. */
static bool finish_panel(const struct mha_attention *a, struct panel *w, bool careful) {
    for (size_t x = 0; x < w->lanes; x++) w->l[x] += w->l_low[x];
    if (a->context != NULL) end_round(a, w);
    if (a->context != NULL && !divide_contexts(a, w)) {
        if (!careful) return false;
        note_contexts(a, w);
    }
    note_sinks(a, w);
    if (a->context != NULL) write_contexts(a, w);
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

static __attribute__((noinline)) void attend_carefully(const struct mha_attention *a, struct panel *w, real *s) {
    w->width = w->lanes;
    pack_queries(a, w);
    begin_panel(a, w);
    for (size_t key = 0; key < mha_n_kv(a->problem) && !stopped(a); key += MHA_KEY_TILE)
        attend_tile(a, w, key, s, NULL, true);
    finish_panel(a, w, true);
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
           take(&at, packs_values(panels) ? value_groups(p) : 0, MHA_KEY_TILE * MR3, sizeof(real), &plan->values) &&
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
        const struct panel *w = open_panel(a, panel + x, at + x * plan.panel_bytes, &plan);
        const bool all = wants_scores(a, w);
        const size_t begin = all ? 0 : w->first_key, end = all ? mha_n_kv(p) : w->last_key;
        if (begin < first) first = begin;
        if (end > last) last = end;
    }
    real *v = a->context != NULL && packs_values(n) ? (real *)(void *)(at + plan.values) : NULL;
    for (size_t key = first / MHA_KEY_TILE * MHA_KEY_TILE; key < last && !stopped(a); key += MHA_KEY_TILE) {
        if (v != NULL) pack_values(a, key, last - key < MHA_KEY_TILE ? last - key : MHA_KEY_TILE, v);
        for (size_t x = 0; x < n; x++)
            attend_tile(a, (struct panel *)(void *)(at + x * plan.panel_bytes), key, s, v, false);
    }
    if (stopped(a)) return;
    for (size_t x = 0; x < n; x++) {
        struct panel *w = (struct panel *)(void *)(at + x * plan.panel_bytes);
        if (!finish_panel(a, w, false)) attend_carefully(a, w, s);
    }
}

#endif

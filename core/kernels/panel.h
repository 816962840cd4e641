/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/panel.h - a panel of query rows at work, and a tile of keys.
 *
 * Model. A panel is up to NR rows (of one query head; of several heads that share keys when n_q is small), a row per lane.
 * struct panel holds what lasts over all keys: which rows, which keys they may see, Q', the context so far, the softmax so
 * far. struct tile_at holds what the passes over one tile of keys share. Here too: where rows of K' and V' lie.
 *
 * What this does not do: compute (scores.h, softmax.h, context.h, maps.h).
 */
#ifndef MHA_KERNELS_PANEL_H
#define MHA_KERNELS_PANEL_H

#include "../visible.h"
#include "gemm.h"

typedef struct VMF(vm_ref) softmax_ref;
#define LARGEST_FINITE (REAL_BITS == 64 ? (real)0x1.fffffffffffffp+1023 : (real)0x1.fffffep+127)

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
    real *o;        /* [d_v][width], of the round of keys in work; not written before `begun`, and then 0 */
    real *o_rounds; /* the same of the rounds before it, before `rounds_begun`; relative to base_rounds, magic_rounds */
    bool begun, rounds_begun;
    struct ahead ahead;
    size_t part, parts;    /* of the panels of the task, each of which asks for its part of the next tile */
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

/* Elements from one group of packed values to the next (context.h). */
enum { VALUE_GROUP = MHA_KEY_TILE * MR3 + LINE / (int)sizeof(real) };

/* How contexts are computed: PLAIN; where that was not finite, CAREFUL, hidden values left out one by one; where that was not
 * either, SHRUNK, visible values times 2^-40, because their weighted mean may fit although their sum does not. */
enum care { PLAIN, CAREFUL, SHRUNK };
#define SHRINK ((real)0x1p-40)

/* What the passes over one tile share. */
struct tile_at {
    const struct mha_attention *a;
    size_t key, n;   /* keys [key, key + n) of the softmax; key is a multiple of 4 */
    size_t tile_key; /* first key of the tile */
    real *s;         /* S^T of `key`, then P^T */
    const real *v;   /* the tile's V' in column groups (pack_values), or NULL: read where it is */
    enum care care;
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

/* FEW rows of Q' that lie one after the other, as lanes of `to`. */
KERNEL_INLINE void pack_few_queries(const real *q, size_t d_k, size_t width, real scale, real *to) {
    size_t c = 0;
    for (; c + FEW <= d_k; c += FEW) {
        few turned[FEW];
        load_turned(q + c, d_k, turned);
        KERNEL_UNROLL
        for (int i = 0; i < FEW; i++) store_few(to + (c + (size_t)i) * width, turned[i] * scale);
    }
    for (; c < d_k; c++)
        for (size_t x = 0; x < FEW; x++) to[c * width + x] = q[x * d_k + c] * scale;
}

/* The scale comes first, so that a large product whose scaled value fits does not overflow. */
static void pack_queries(const struct mha_attention *a, struct panel *w) {
    const struct mha_problem *p = a->problem;
    const real scale = (real)p->scale;
    const size_t first_head = a->g * n_heads_of_group(p), d_k = p->d_k;
    for (size_t x = 0; x < w->width;) {
        real *to = w->q + x;
        if (x >= w->n_rows) {
            for (size_t c = 0; c < d_k; c++) to[c * w->width] = 0;
            x++;
            continue;
        }
        const real *q = (const real *)a->q + (w->head[x] - first_head) * a->q_head + w->i[x] * d_k;
        if (x + FEW <= w->n_rows && w->head[x + FEW - 1] == w->head[x]) {
            struct ahead next = ahead_of(q + NR * d_k, FEW * d_k, 1); /* the next panel's */
            look_ahead(&next);
            pack_few_queries(q, d_k, w->width, scale, to);
            x += FEW;
        } else {
            for (size_t c = 0; c < d_k; c++) to[c * w->width] = q[c] * scale;
            x++;
        }
    }
}

/* to[x][j] = from[j*width + x] for j < n, for every row x of the panel that has a place: to[x] not NULL. */
static void write_lanes(const struct panel *w, const real *from, size_t n, real *const *to) {
    for (size_t x = 0; x < w->n_rows;) {
        bool together = x + FEW <= w->n_rows;
        for (size_t i = 0; together && i < FEW; i++) together = to[x + i] != NULL;
        size_t j = 0;
        for (; together && j + FEW <= n; j += FEW) {
            few turned[FEW];
            load_turned(from + j * w->width + x, w->width, turned);
            KERNEL_UNROLL
            for (int i = 0; i < FEW; i++) store_few(to[x + (size_t)i] + j, turned[i]);
        }
        for (const size_t end = together ? x + FEW : x + 1; x < end; x++)
            for (size_t k = j; to[x] != NULL && k < n; k++) to[x][k] = from[k * w->width + x];
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
    w->begun = w->rounds_begun = false;
}

static void note(const struct mha_attention *a, const struct panel *w, size_t x, enum mha_stage stage, size_t rank,
                 size_t last) {
    a->note(a->note_arg, (struct mha_failure){stage, rank, {a->b, w->head[x], w->i[x], last}});
}

/* ---- rows of keys and values ------------------------------------------------------------------------------------- */

/* Rows of K' or V' from `key` on that lie one after the other: at most n; *run says how many. */
static const real *rows_from(const struct mha_attention *a, struct mha_rows rows, size_t d, size_t key, size_t n,
                             size_t *run) {
    const size_t n_past = a->problem->n_past;
    const bool in_past = key < n_past;
    *run = in_past && n_past - key < n ? n_past - key : n;
    return in_past ? (const real *)rows.past + key * d : (const real *)rows.fresh + (key - n_past) * d;
}

#endif

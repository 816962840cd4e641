/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/random_problem.c - see random_problem.h.
 */
#include "random_problem.h"

#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double random_unit(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

size_t random_below(uint64_t *state, size_t n) { return (size_t)(random_unit(state) * (double)n); }

static bool chance(uint64_t *state, double probability) { return random_unit(state) < probability; }

/* In [low, high]. */
static size_t between(uint64_t *state, size_t low, size_t high) {
    return high <= low ? low : low + random_below(state, high - low + 1);
}

/* A dimension: often small, sometimes 0 when that is allowed. */
static size_t dimension(uint64_t *state, bool no_empty, size_t high) {
    if (!no_empty && chance(state, 0.03)) return 0;
    return chance(state, 0.25) ? between(state, 1, high < 3 ? high : 3) : between(state, 1, high);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Never NULL, also for 0 bytes: a tensor without elements still has a pointer. */
static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL && (memory = malloc(1)) == NULL) abort();
    return memory;
}

static void *own(struct random_problem *r, void *memory) {
    if (r->n_owned == sizeof r->owned / sizeof r->owned[0]) abort();
    return r->owned[r->n_owned++] = memory;
}

static void store(enum mha_dtype dtype, void *data, size_t index, double value) {
    if (dtype == MHA_F32)
        ((float *)data)[index] = (float)value;
    else
        ((double *)data)[index] = value;
}

/* n numbers in [-amplitude, amplitude]. */
static void *numbers(struct random_problem *r, uint64_t *state, size_t n, double amplitude) {
    enum mha_dtype dtype = r->problem.dtype;
    void *data = own(r, allocate(n * mha_dtype_size(dtype)));
    for (size_t x = 0; x < n; x++) store(dtype, data, x, (2 * random_unit(state) - 1) * amplitude);
    return data;
}

/* n bytes, each nonzero (not always 1) with the given probability. */
static uint8_t *flags(struct random_problem *r, uint64_t *state, size_t n, double probability) {
    uint8_t *data = own(r, allocate(n));
    for (size_t x = 0; x < n; x++) data[x] = chance(state, probability) ? (uint8_t)(1 + random_below(state, 255)) : 0;
    return data;
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static struct random_limits with_defaults(const struct random_limits *given) {
    struct random_limits l = given != NULL ? *given : (struct random_limits){0};
    if (l.B == 0) l.B = 3;
    if (l.n_q == 0) l.n_q = 9;
    if (l.n_k == 0) l.n_k = 12;
    if (l.n_past == 0) l.n_past = 7;
    if (l.h_kv == 0) l.h_kv = 3;
    if (l.group == 0) l.group = 3;
    if (l.d == 0) l.d = 9;
    if (l.d_in == 0) l.d_in = 11;
    return l;
}

static void draw_dimensions(struct mha_problem *p, uint64_t *s, const struct random_limits *l) {
    p->dtype = l->dtype == 0 ? (chance(s, 0.5) ? MHA_F64 : MHA_F32) : l->dtype == 1 ? MHA_F64 : MHA_F32;
    p->B = dimension(s, l->no_empty, l->B);
    p->n_q = dimension(s, l->no_empty, l->n_q);
    p->n_k = chance(s, 0.4) && p->n_q <= l->n_k ? p->n_q : dimension(s, l->no_empty, l->n_k);
    p->n_past = chance(s, 0.6) ? 0 : between(s, 0, l->n_past);
    p->h_kv = between(s, 1, l->h_kv);
    p->h = p->h_kv * (chance(s, 0.5) ? 1 : between(s, 1, l->group));
    p->d_k = between(s, 1, l->d);
    p->d_v = chance(s, 0.6) ? p->d_k : between(s, 1, l->d);
}

/* A width: that of the heads where there is no projection, else free. *W says whether there is one. */
static size_t width(uint64_t *s, const struct random_limits *l, size_t heads_width, bool *projected) {
    *projected = chance(s, 0.8);
    return *projected ? dimension(s, l->no_empty, l->d_in) : heads_width;
}

/* Rows of about the size of an embedding's; weights so that a projection keeps the size. */
static void draw_tensors(struct random_problem *r, uint64_t *s, const struct random_limits *l) {
    struct mha_problem *p = &r->problem;
    struct mha_weights *w = &p->weights;
    bool q, k, v, o;
    w->layout = (enum mha_layout)random_below(s, 4);
    p->d_q = width(s, l, p->h * p->d_k, &q);
    p->d_kin = width(s, l, p->h_kv * p->d_k, &k);
    p->d_vin = width(s, l, p->h_kv * p->d_v, &v);
    p->d_out = width(s, l, p->h * p->d_v, &o);
    if (q) w->W_q = numbers(r, s, p->d_q * p->h * p->d_k, 2 / sqrt((double)p->d_q + 1));
    if (k) w->W_k = numbers(r, s, p->d_kin * p->h_kv * p->d_k, 2 / sqrt((double)p->d_kin + 1));
    if (v) w->W_v = numbers(r, s, p->d_vin * p->h_kv * p->d_v, 2 / sqrt((double)p->d_vin + 1));
    if (o) w->W_o = numbers(r, s, p->h * p->d_v * p->d_out, 2 / sqrt((double)(p->h * p->d_v)));
    if (chance(s, 0.4)) w->b_q = numbers(r, s, p->h * p->d_k, 1);
    if (chance(s, 0.4)) w->b_k = numbers(r, s, p->h_kv * p->d_k, 1);
    if (chance(s, 0.4)) w->b_v = numbers(r, s, p->h_kv * p->d_v, 1);
    if (chance(s, 0.4)) w->b_o = numbers(r, s, p->d_out, 1);
    double amplitude = chance(s, 0.2) ? 8 : 2;
    p->Q = numbers(r, s, p->B * p->n_q * p->d_q, amplitude);
    p->K = numbers(r, s, p->B * p->n_k * p->d_kin, amplitude);
    p->V = numbers(r, s, p->B * p->n_k * p->d_vin, amplitude);
    if (p->n_past > 0) p->past_K = numbers(r, s, p->B * p->h_kv * p->n_past * p->d_k, amplitude);
    if (p->n_past > 0) p->past_V = numbers(r, s, p->B * p->h_kv * p->n_past * p->d_v, amplitude);
}

static void draw_positions(struct mha_problem *p, uint64_t *s) {
    const size_t n_kv = p->n_past + p->n_k;
    p->causal = chance(s, 0.35);
    p->alignment = chance(s, 0.4) ? MHA_BOTTOM_RIGHT : MHA_TOP_LEFT;
    p->window = chance(s, 0.25);
    p->window_left = chance(s, 0.3) ? MHA_WINDOW_OPEN : between(s, 0, n_kv);
    p->window_right = chance(s, 0.3) ? MHA_WINDOW_OPEN : between(s, 0, n_kv);
}

static void draw_attn_mask(struct random_problem *r, uint64_t *s) {
    struct mha_problem *p = &r->problem;
    struct mha_mask *m = &p->attn_mask;
    const size_t full[4] = {p->B, p->h, p->n_q, p->n_past + p->n_k};
    size_t n = 1;
    m->kind = chance(s, 0.5) ? MHA_MASK_BOOL : MHA_MASK_ADDITIVE;
    for (int axis = 0; axis < 4; axis++) {
        m->dim[axis] = chance(s, 0.4) ? 1 : full[axis];
        n *= m->dim[axis];
    }
    if (m->kind == MHA_MASK_BOOL) {
        m->data = flags(r, s, n, 0.7);
        return;
    }
    void *data = numbers(r, s, n, 3);
    for (size_t x = 0; x < n; x++)
        if (chance(s, 0.2)) store(p->dtype, data, x, -INFINITY);
    m->data = data;
}

static void draw_masks(struct random_problem *r, uint64_t *s) {
    struct mha_problem *p = &r->problem;
    const size_t n_kv = p->n_past + p->n_k;
    if (chance(s, 0.35)) draw_attn_mask(r, s);
    if (chance(s, 0.25)) {
        p->key_mask_B = chance(s, 0.5) ? 1 : p->B;
        p->key_mask = flags(r, s, p->key_mask_B * n_kv, 0.7);
    }
    if (chance(s, 0.25)) {
        size_t *lengths = own(r, allocate(p->B * sizeof *lengths));
        for (size_t b = 0; b < p->B; b++) lengths[b] = between(s, 0, n_kv);
        p->key_lengths = lengths;
    }
}

static void draw_options(struct random_problem *r, uint64_t *s) {
    struct mha_problem *p = &r->problem;
    p->scale = 1 / sqrt((double)p->d_k);
    if (chance(s, 0.25)) p->scale = 2 * random_unit(s) - 0.5;
    if (chance(s, 0.25)) p->softcap = 0.5 + 4 * random_unit(s); /* 4: exact, so that no FMA can change it */
    if (chance(s, 0.25)) p->sinks = numbers(r, s, p->h, 3);
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

static bool seen_by_head(const struct mha_problem *p, size_t b, size_t head, size_t j) {
    for (size_t i = 0; i < p->n_q; i++)
        if (oracle_visible(p, b, head, i, j)) return true;
    return false;
}

/* Is key j of sample b seen by any head that reads g? */
static bool seen(const struct mha_problem *p, size_t b, size_t g, size_t j) {
    for (size_t head = 0; head < p->h; head++)
        if (head * p->h_kv / p->h == g && seen_by_head(p, b, head, j)) return true;
    return false;
}

static void poison_row(struct mha_problem *p, uint64_t *s, const void *data, size_t row, size_t d) {
    const double huge = p->dtype == MHA_F32 ? 3e38 : 1e308;
    const double poisons[] = {NAN, INFINITY, -INFINITY, huge, -huge};
    for (size_t c = 0; c < d; c++) store(p->dtype, (void *)(uintptr_t)data, row * d + c, poisons[random_below(s, 5)]);
}

/* Whatever a key holds that nobody may see, the results must not know it. */
static void poison_hidden(struct mha_problem *p, uint64_t *s) {
    for (size_t b = 0; b < p->B; b++)
        for (size_t j = 0; j < p->n_past + p->n_k; j++) {
            bool seen_at_all = false;
            for (size_t g = 0; g < p->h_kv; g++) {
                bool here = seen(p, b, g, j);
                seen_at_all = seen_at_all || here;
                if (here || j >= p->n_past || chance(s, 0.3)) continue;
                poison_row(p, s, p->past_K, (b * p->h_kv + g) * p->n_past + j, p->d_k);
                poison_row(p, s, p->past_V, (b * p->h_kv + g) * p->n_past + j, p->d_v);
            }
            if (seen_at_all || j < p->n_past || chance(s, 0.3)) continue;
            poison_row(p, s, p->K, b * p->n_k + (j - p->n_past), p->d_kin);
            poison_row(p, s, p->V, b * p->n_k + (j - p->n_past), p->d_vin);
        }
}

/* ---- the public part --------------------------------------------------------------------------------------------- */

/* Self-attention hands in the same tensor twice or three times. */
static void draw_aliases(struct mha_problem *p, uint64_t *s) {
    if (chance(s, 0.5) && p->n_k == p->n_q && p->d_kin == p->d_q) p->K = p->Q;
    if (chance(s, 0.5) && p->d_vin == p->d_kin) p->V = p->K;
}

struct random_problem *random_problem_new(uint64_t seed, const struct random_limits *limits) {
    const struct random_limits l = with_defaults(limits);
    struct random_problem *r = calloc(1, sizeof *r);
    if (r == NULL) abort();
    r->seed = seed;
    uint64_t state = seed * 0x2545f4914f6cdd1du + 1;
    draw_dimensions(&r->problem, &state, &l);
    draw_tensors(r, &state, &l);
    draw_positions(&r->problem, &state);
    draw_masks(r, &state);
    draw_options(r, &state);
    draw_aliases(&r->problem, &state);
    r->state = ~seed;
    if (!l.no_poison && r->problem.K != r->problem.Q) poison_hidden(&r->problem, &state);
    return r;
}

void *random_numbers(struct random_problem *r, size_t n, double amplitude) {
    return numbers(r, &r->state, n, amplitude);
}

void random_problem_free(struct random_problem *r) {
    if (r == NULL) return;
    for (size_t x = 0; x < r->n_owned; x++) free(r->owned[x]);
    free(r);
}

void random_problem_describe(const struct random_problem *r, char *text, size_t size) {
    static const char *const layouts[] = {"in_out", "out_in", "head_in_out", "in_head_out"};
    static const char *const kinds[] = {"none", "bool", "additive"};
    const struct mha_problem *p = &r->problem;
    snprintf(text, size,
             "seed %llu %s B%zu n_q%zu n_k%zu n_past%zu h%zu h_kv%zu d_k%zu d_v%zu d_q%zu d_kin%zu d_vin%zu d_out%zu "
             "W:%s%s%s%s b:%s%s%s%s %s scale %g cap %g%s%s window %zd/%zd%s mask %s [%zu,%zu,%zu,%zu]%s%s%s%s",
             (unsigned long long)r->seed, p->dtype == MHA_F32 ? "f32" : "f64", p->B, p->n_q, p->n_k, p->n_past, p->h,
             p->h_kv, p->d_k, p->d_v, p->d_q, p->d_kin, p->d_vin, p->d_out, p->weights.W_q ? "q" : "",
             p->weights.W_k ? "k" : "", p->weights.W_v ? "v" : "", p->weights.W_o ? "o" : "", p->weights.b_q ? "q" : "",
             p->weights.b_k ? "k" : "", p->weights.b_v ? "v" : "", p->weights.b_o ? "o" : "",
             layouts[p->weights.layout], p->scale, p->softcap, p->causal ? " causal" : "",
             p->alignment == MHA_BOTTOM_RIGHT ? " bottom_right" : "", (ptrdiff_t)p->window_left,
             (ptrdiff_t)p->window_right, p->window ? "" : " (off)", kinds[p->attn_mask.kind], p->attn_mask.dim[0],
             p->attn_mask.dim[1], p->attn_mask.dim[2], p->attn_mask.dim[3], p->key_mask ? " key_mask" : "",
             p->key_lengths ? " lengths" : "", p->sinks ? " sinks" : "", p->K == p->Q ? " K=Q" : "");
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void *unwritten(enum mha_dtype dtype, bool wanted, size_t n) {
    if (!wanted) return NULL;
    void *data = allocate(n * mha_dtype_size(dtype));
    for (size_t x = 0; x < n; x++) store(dtype, data, x, NAN);
    return data;
}

struct mha_result random_result_new(const struct mha_problem *p, unsigned wanted, const size_t *heads_listed,
                                    size_t n_heads_listed) {
    const size_t n_kv = p->n_past + p->n_k, listed = heads_listed != NULL ? n_heads_listed : p->h;
    const size_t map = p->B * p->n_q * n_kv;
    const bool mean = (wanted & WANT_MEAN) != 0;
    return (struct mha_result){
        .output = unwritten(p->dtype, wanted & WANT_OUTPUT, p->B * p->n_q * p->d_out),
        .attention = unwritten(p->dtype, wanted & WANT_ATTENTION, map * (mean ? 1 : listed)),
        .heads = unwritten(p->dtype, wanted & WANT_HEADS, p->B * p->h * p->n_q * p->d_v),
        .proj_Q = unwritten(p->dtype, wanted & WANT_PROJECTIONS, p->B * p->h * p->n_q * p->d_k),
        .proj_K = unwritten(p->dtype, wanted & WANT_PROJECTIONS, p->B * p->h_kv * p->n_k * p->d_k),
        .proj_V = unwritten(p->dtype, wanted & WANT_PROJECTIONS, p->B * p->h_kv * p->n_k * p->d_v),
        .scores = unwritten(p->dtype, wanted & WANT_SCORES, map * listed),
        .logsumexp = unwritten(p->dtype, wanted & WANT_LOGSUMEXP, p->B * p->h * p->n_q),
        .concat = unwritten(p->dtype, wanted & WANT_CONCAT, p->B * p->n_q * p->h * p->d_v),
        .present_K = unwritten(p->dtype, wanted & WANT_PRESENT, p->B * p->h_kv * n_kv * p->d_k),
        .present_V = unwritten(p->dtype, wanted & WANT_PRESENT, p->B * p->h_kv * n_kv * p->d_v),
        .heads_listed = heads_listed,
        .n_heads_listed = n_heads_listed,
        .attention_mean = mean,
    };
}

void random_result_free(struct mha_result *r) {
    void *all[] = {r->output, r->attention, r->heads,  r->proj_Q,    r->proj_K,   r->proj_V,
                   r->scores, r->logsumexp, r->concat, r->present_K, r->present_V};
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++) free(all[t]);
    *r = (struct mha_result){0};
}

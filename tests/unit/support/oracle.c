/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/oracle.c - see oracle.h. Every tensor element is computed by one small function of its index.
 */
#include "oracle.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
extern quad expq(quad), logq(quad), tanhq(quad); /* libquadmath; its header is gcc's alone */
#define QEXP  expq
#define QLOG  logq
#define QTANH tanhq
#else
#define QEXP  expl
#define QLOG  logl
#define QTANH tanhl
#endif

/* A value, and how far an ordinary evaluation may be off, in units of u. */
struct approx {
    quad value;
    double bound;
};

static double magnitude(quad x) { return fabs((double)x); }

static struct approx exact(quad x) { return (struct approx){x, 0}; }

/* A sum of products, and the bound on it: (n + 6) u of the magnitudes, plus what the factors bring along. */
struct sum {
    quad value;
    double magnitudes, inherited;
    size_t n;
};

static void add_product(struct sum *s, struct approx a, struct approx b) {
    s->value += a.value * b.value;
    s->magnitudes += magnitude(a.value) * magnitude(b.value);
    s->inherited += magnitude(a.value) * b.bound + a.bound * magnitude(b.value);
    s->n++;
}

static struct approx total(const struct sum *s) {
    return (struct approx){s->value, s->inherited + (double)(s->n + 6) * s->magnitudes};
}

static struct approx plus_exact(struct approx a, quad b) {
    quad value = a.value + b;
    return (struct approx){value, a.bound + 2 * magnitude(value) + 2 * magnitude(b)};
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static quad element(const struct mha_problem *p, const void *data, size_t index) {
    return p->dtype == MHA_F32 ? (quad)((const float *)data)[index] : (quad)((const double *)data)[index];
}

/* Weight (input e, head g, column c) of a projection with `heads` heads of width d from width d_in. */
static quad projection_weight(const struct mha_problem *p, const void *W, size_t d_in, size_t heads, size_t d, size_t e,
                              size_t g, size_t c) {
    switch (p->weights.layout) {
    case MHA_IN_OUT:
        return element(p, W, e * (heads * d) + (g * d + c)); /* [in, heads*d]  */
    case MHA_OUT_IN:
        return element(p, W, (g * d + c) * d_in + e); /* [heads*d, in]  */
    case MHA_HEAD_IN_OUT:
        return element(p, W, (g * d_in + e) * d + c); /* [heads, in, d] */
    case MHA_IN_HEAD_OUT:
        return element(p, W, (e * heads + g) * d + c); /* [in, heads, d] */
    }
    abort();
}

static struct approx project(const struct mha_problem *p, const void *x, size_t row, size_t d_in, const void *W,
                             const void *bias, size_t heads, size_t d, size_t g, size_t c) {
    struct approx y;
    if (W == NULL) {
        y = exact(element(p, x, row * d_in + g * d + c));
    } else {
        struct sum s = {0};
        for (size_t e = 0; e < d_in; e++)
            add_product(&s, exact(element(p, x, row * d_in + e)),
                        exact(projection_weight(p, W, d_in, heads, d, e, g, c)));
        y = total(&s);
    }
    return bias == NULL ? y : plus_exact(y, element(p, bias, g * d + c));
}

/* ---- visibility -------------------------------------------------------------------------------------------------- */

bool oracle_visible(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t j) {
    const __int128 keys = p->key_lengths != NULL ? p->key_lengths[b] : p->n_past + p->n_k;
    const __int128 offset = p->alignment == MHA_BOTTOM_RIGHT ? keys - (__int128)p->n_q : (__int128)p->n_past;
    const __int128 key = j, position = (__int128)i + offset;
    if (key >= keys) return false;
    if (p->causal && !(key <= position)) return false;
    if (p->window && p->window_left != MHA_WINDOW_OPEN && !(position - (__int128)p->window_left <= key)) return false;
    if (p->window && p->window_right != MHA_WINDOW_OPEN && !(key <= position + (__int128)p->window_right)) return false;
    if (p->key_mask != NULL && p->key_mask[(p->key_mask_B > 1 ? b : 0) * (p->n_past + p->n_k) + j] == 0) return false;
    if (p->attn_mask.kind == MHA_MASK_NONE) return true;

    const size_t *dim = p->attn_mask.dim;
    size_t ib = b % dim[0], ih = head % dim[1], ii = i % dim[2], ij = j % dim[3]; /* a dim is 1 or full */
    size_t index = ((ib * dim[1] + ih) * dim[2] + ii) * dim[3] + ij;
    if (p->attn_mask.kind == MHA_MASK_BOOL) return ((const unsigned char *)p->attn_mask.data)[index] != 0;
    return element(p, p->attn_mask.data, index) != -(quad)INFINITY;
}

static quad mask_addend(const struct mha_problem *p, size_t b, size_t head, size_t i, size_t j) {
    const size_t *dim = p->attn_mask.dim;
    if (p->attn_mask.kind != MHA_MASK_ADDITIVE) return 0;
    return element(p, p->attn_mask.data,
                   ((b % dim[0] * dim[1] + head % dim[1]) * dim[2] + i % dim[2]) * dim[3] + j % dim[3]);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void *allocate(size_t n, size_t size) {
    void *memory = calloc(n + 1, size);
    if (memory == NULL) abort();
    return memory;
}

static struct oracle_tensor tensor(size_t a, size_t b, size_t c, size_t d) {
    size_t n = a * b * c * d;
    return (struct oracle_tensor){n, allocate(n, sizeof(quad)), allocate(n, sizeof(double))};
}

static void set(struct oracle_tensor *t, size_t index, struct approx a) {
    t->value[index] = a.value;
    t->bound[index] = a.bound;
}

static struct approx get(const struct oracle_tensor *t, size_t index) {
    return (struct approx){t->value[index], t->bound[index]};
}

static void fill_projections(struct oracle *o, const struct mha_problem *p) {
    const struct mha_weights *w = &p->weights;
    for (size_t b = 0; b < p->B; b++) {
        for (size_t head = 0; head < p->h; head++)
            for (size_t i = 0; i < p->n_q; i++)
                for (size_t c = 0; c < p->d_k; c++)
                    set(&o->proj_Q, ((b * p->h + head) * p->n_q + i) * p->d_k + c,
                        project(p, p->Q, b * p->n_q + i, p->d_q, w->W_q, w->b_q, p->h, p->d_k, head, c));
        for (size_t g = 0; g < p->h_kv; g++)
            for (size_t j = 0; j < p->n_k; j++) {
                for (size_t c = 0; c < p->d_k; c++)
                    set(&o->proj_K, ((b * p->h_kv + g) * p->n_k + j) * p->d_k + c,
                        project(p, p->K, b * p->n_k + j, p->d_kin, w->W_k, w->b_k, p->h_kv, p->d_k, g, c));
                for (size_t c = 0; c < p->d_v; c++)
                    set(&o->proj_V, ((b * p->h_kv + g) * p->n_k + j) * p->d_v + c,
                        project(p, p->V, b * p->n_k + j, p->d_vin, w->W_v, w->b_v, p->h_kv, p->d_v, g, c));
            }
    }
}

/* present: the cache, then what was projected. */
static void fill_present(const struct mha_problem *p, const void *past, const struct oracle_tensor *fresh, size_t d,
                         struct oracle_tensor *present) {
    const size_t n_kv = p->n_past + p->n_k;
    for (size_t bg = 0; bg < p->B * p->h_kv; bg++)
        for (size_t j = 0; j < n_kv; j++)
            for (size_t c = 0; c < d; c++)
                set(present, (bg * n_kv + j) * d + c,
                    j < p->n_past ? exact(element(p, past, (bg * p->n_past + j) * d + c))
                                  : get(fresh, (bg * p->n_k + (j - p->n_past)) * d + c));
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* Where row (b, head, i) lies. */
struct row {
    size_t b, head, i;
    size_t bg;  /* b * h_kv + the key/value head it reads */
    size_t bhi; /* row number in [B, h, n_q] */
    size_t n_kv;
};

static struct approx score_of(const struct oracle *o, const struct mha_problem *p, struct row r, size_t j) {
    struct sum s = {0};
    for (size_t c = 0; c < p->d_k; c++)
        add_product(&s, get(&o->proj_Q, r.bhi * p->d_k + c), get(&o->present_K, (r.bg * r.n_kv + j) * p->d_k + c));
    struct approx score = total(&s);
    score.value *= (quad)p->scale;
    score.bound *= fabs(p->scale);
    if (p->softcap > 0) {
        score.value = (quad)p->softcap * QTANH(score.value / (quad)p->softcap);
        score.bound += 8 * magnitude(score.value);
    }
    return score;
}

/* Weights [n_kv] of one row from its masked scores; a sink takes part without being a key. */
static void softmax_row(struct oracle *o, const struct mha_problem *p, struct row r, const struct approx *masked) {
    const unsigned char *visible = o->visible + r.bhi * r.n_kv;
    struct approx sink = p->sinks != NULL ? exact(element(p, p->sinks, r.head)) : exact(-(quad)INFINITY);
    quad largest = sink.value, denominator = 0;
    for (size_t j = 0; j < r.n_kv; j++)
        if (visible[j] && masked[j].value > largest) largest = masked[j].value;

    /* relative error of each exponential, and their mean under the weights, which is that of the denominator */
    double *error = allocate(r.n_kv, sizeof *error), mean = 0;
    for (size_t j = 0; j < r.n_kv; j++) {
        if (!visible[j]) continue;
        quad e = QEXP(masked[j].value - largest);
        error[j] = masked[j].bound + 2 * magnitude(masked[j].value - largest) + 8;
        mean += (double)e * error[j];
        denominator += e;
        o->attention.value[r.bhi * r.n_kv + j] = e;
    }
    quad sink_share = QEXP(sink.value - largest);
    if (p->sinks != NULL)
        mean += (double)sink_share * (2 * magnitude(sink.value - largest) + 2 * magnitude(sink.value) + 8);
    denominator += sink_share;
    mean = mean / (double)denominator + (double)r.n_kv + 4;

    for (size_t j = 0; j < r.n_kv; j++) {
        if (!visible[j]) continue;
        quad w = o->attention.value[r.bhi * r.n_kv + j] / denominator;
        set(&o->attention, r.bhi * r.n_kv + j, (struct approx){w, (double)w * (error[j] + mean)});
    }
    quad logsumexp = largest + QLOG(denominator);
    set(&o->logsumexp, r.bhi, (struct approx){logsumexp, mean + 4 * magnitude(largest) + 4 * magnitude(logsumexp)});
    free(error);
}

static void attend_row(struct oracle *o, const struct mha_problem *p, struct row r) {
    struct approx *masked = allocate(r.n_kv, sizeof *masked);
    bool any = false;
    for (size_t j = 0; j < r.n_kv; j++) {
        bool visible = oracle_visible(p, r.b, r.head, r.i, j);
        struct approx score = score_of(o, p, r, j);
        set(&o->scores, r.bhi * r.n_kv + j, score);
        o->visible[r.bhi * r.n_kv + j] = visible;
        any = any || visible;
        if (visible) masked[j] = plus_exact(score, mask_addend(p, r.b, r.head, r.i, j));
    }
    if (any)
        softmax_row(o, p, r, masked);
    else
        set(&o->logsumexp, r.bhi, exact(-(quad)INFINITY));
    free(masked);
    if (any) return;
    if (o->masked_rows++ == 0) memcpy(o->masked_first, (size_t[3]){r.b, r.head, r.i}, sizeof o->masked_first);
}

static void context_row(struct oracle *o, const struct mha_problem *p, struct row r) {
    for (size_t c = 0; c < p->d_v; c++) {
        struct sum s = {0};
        for (size_t j = 0; j < r.n_kv; j++)
            if (o->visible[r.bhi * r.n_kv + j])
                add_product(&s, get(&o->attention, r.bhi * r.n_kv + j),
                            get(&o->present_V, (r.bg * r.n_kv + j) * p->d_v + c));
        set(&o->heads, r.bhi * p->d_v + c, total(&s));
        set(&o->concat, (r.b * p->n_q + r.i) * p->h * p->d_v + r.head * p->d_v + c, total(&s));
    }
}

static struct approx output_of(const struct oracle *o, const struct mha_problem *p, size_t row, size_t out) {
    const struct mha_weights *w = &p->weights;
    const size_t width = p->h * p->d_v;
    struct approx y;
    if (w->W_o == NULL) {
        y = get(&o->concat, row * width + out);
    } else {
        struct sum s = {0};
        for (size_t x = 0; x < width; x++)
            add_product(&s, get(&o->concat, row * width + x),
                        exact(element(p, w->W_o, w->layout == MHA_OUT_IN ? out * width + x : x * p->d_out + out)));
        y = total(&s);
    }
    return w->b_o == NULL ? y : plus_exact(y, element(p, w->b_o, out));
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void allocate_tensors(struct oracle *o, const struct mha_problem *p) {
    const size_t n_kv = p->n_past + p->n_k;
    o->proj_Q = tensor(p->B, p->h, p->n_q, p->d_k);
    o->proj_K = tensor(p->B, p->h_kv, p->n_k, p->d_k);
    o->proj_V = tensor(p->B, p->h_kv, p->n_k, p->d_v);
    o->present_K = tensor(p->B, p->h_kv, n_kv, p->d_k);
    o->present_V = tensor(p->B, p->h_kv, n_kv, p->d_v);
    o->scores = tensor(p->B, p->h, p->n_q, n_kv);
    o->attention = tensor(p->B, p->h, p->n_q, n_kv);
    o->logsumexp = tensor(p->B, p->h, p->n_q, 1);
    o->heads = tensor(p->B, p->h, p->n_q, p->d_v);
    o->concat = tensor(p->B, p->n_q, p->h, p->d_v);
    o->output = tensor(p->B, p->n_q, p->d_out, 1);
    o->visible = allocate(o->scores.n, 1);
}

struct oracle *oracle_new(const struct mha_problem *p) {
    struct oracle *o = allocate(1, sizeof *o);
    if (p->layer != NULL) abort();
    allocate_tensors(o, p);
    fill_projections(o, p);
    fill_present(p, p->past_K, &o->proj_K, p->d_k, &o->present_K);
    fill_present(p, p->past_V, &o->proj_V, p->d_v, &o->present_V);
    for (size_t b = 0; b < p->B; b++)
        for (size_t head = 0; head < p->h; head++)
            for (size_t i = 0; i < p->n_q; i++) {
                struct row r = {b,
                                head,
                                i,
                                b * p->h_kv + head * p->h_kv / p->h,
                                (b * p->h + head) * p->n_q + i,
                                p->n_past + p->n_k};
                attend_row(o, p, r);
                context_row(o, p, r);
            }
    for (size_t row = 0; row < p->B * p->n_q; row++)
        for (size_t out = 0; out < p->d_out; out++) set(&o->output, row * p->d_out + out, output_of(o, p, row, out));
    return o;
}

void oracle_free(struct oracle *o) {
    if (o == NULL) return;
    struct oracle_tensor *all[] = {&o->output, &o->attention, &o->heads,  &o->proj_Q,    &o->proj_K,   &o->proj_V,
                                   &o->scores, &o->logsumexp, &o->concat, &o->present_K, &o->present_V};
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++) {
        free(all[t]->value);
        free(all[t]->bound);
    }
    free(o->visible);
    free(o);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

struct comparison {
    const struct mha_problem *p;
    double worst;
    char *text;
    size_t text_size;
};

static double got_at(enum mha_dtype dtype, const void *data, size_t index) {
    return dtype == MHA_F32 ? (double)((const float *)data)[index] : ((const double *)data)[index];
}

__attribute__((format(printf, 3, 4))) static void judge(struct comparison *k, double ratio, const char *format, ...) {
    va_list arguments;
    if (ratio <= k->worst) return;
    va_start(arguments, format);
    if (ratio > 1 && k->worst <= 1 && k->text != NULL) vsnprintf(k->text, k->text_size, format, arguments);
    va_end(arguments);
    k->worst = ratio;
}

/* How many tolerances got is away from want. */
static double ratio_of(const struct comparison *k, quad want, double bound, double got) {
    const bool f32 = k->p->dtype == MHA_F32;
    const double u = f32 ? 0x1p-24 : 0x1p-53, floor = f32 ? 0x1p-120 : 0x1p-1010;
    const double largest = f32 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
    if (want != want) return isnan(got) ? 0 : INFINITY;
    if (want == (quad)INFINITY || want == -(quad)INFINITY) return (quad)got == want ? 0 : INFINITY;
    if (want > (quad)largest || want < -(quad)largest) return isfinite(got) ? INFINITY : 0;
    double ratio = magnitude((quad)got - want) / (u * bound + floor);
    return isnan(ratio) ? INFINITY : ratio;
}

static void compare_one(struct comparison *k, const char *name, size_t index, struct approx want, double got) {
    judge(k, ratio_of(k, want.value, want.bound, got), "%s[%zu] is %.17g, should be %.17g (may be off by %.3g u)", name,
          index, got, (double)want.value, want.bound);
}

/* Something of a hidden key: poison, or a sum so large that it may overflow on the way. Nothing can be said about it
 * then. */
static bool beyond_judging(const struct comparison *k, struct approx want) {
    const double magnitudes = magnitude(want.value) + want.bound; /* of the sum's terms, at least */
    return !(magnitudes < (k->p->dtype == MHA_F32 ? 0x1p110 : 0x1p1000));
}

/* A whole tensor. `loose`: hidden keys may be in it. */
static void compare_tensor(struct comparison *k, const char *name, const struct oracle_tensor *want, const void *got,
                           bool loose) {
    for (size_t x = 0; got != NULL && x < want->n; x++)
        if (!loose || !beyond_judging(k, get(want, x)))
            compare_one(k, name, x, get(want, x), got_at(k->p->dtype, got, x));
}

/* attention or scores of the listed heads. */
static void compare_maps(struct comparison *k, const char *name, const struct oracle *o,
                         const struct oracle_tensor *want, const struct mha_result *r, const void *got) {
    const struct mha_problem *p = k->p;
    const size_t listed = r->heads_listed != NULL ? r->n_heads_listed : p->h, map = p->n_q * (p->n_past + p->n_k);
    for (size_t b = 0; got != NULL && b < p->B; b++)
        for (size_t s = 0; s < listed; s++)
            for (size_t x = 0; x < map; x++) {
                size_t from = (b * p->h + (r->heads_listed != NULL ? r->heads_listed[s] : s)) * map + x;
                if (!o->visible[from] && beyond_judging(k, get(want, from))) continue;
                compare_one(k, name, (b * listed + s) * map + x, get(want, from),
                            got_at(p->dtype, got, (b * listed + s) * map + x));
            }
}

static void compare_mean(struct comparison *k, const struct oracle *o, const struct mha_result *r) {
    const struct mha_problem *p = k->p;
    const size_t listed = r->heads_listed != NULL ? r->n_heads_listed : p->h, map = p->n_q * (p->n_past + p->n_k);
    for (size_t b = 0; b < p->B; b++)
        for (size_t x = 0; x < map; x++) {
            struct approx mean = exact(0);
            for (size_t s = 0; s < listed; s++) {
                struct approx w = get(&o->attention, (b * p->h + (r->heads_listed ? r->heads_listed[s] : s)) * map + x);
                mean.value += w.value / (quad)listed;
                mean.bound += (w.bound + ((double)listed + 4) * (double)w.value) / (double)listed;
            }
            compare_one(k, "attention (mean)", b * map + x, mean, got_at(p->dtype, r->attention, b * map + x));
        }
}

double oracle_compare(const struct oracle *o, const struct mha_problem *p, const struct mha_result *r, char *text,
                      size_t text_size) {
    struct comparison k = {.p = p, .text = text, .text_size = text_size};
    if (text != NULL && text_size > 0) text[0] = '\0';
    compare_tensor(&k, "proj_Q", &o->proj_Q, r->proj_Q, true);
    compare_tensor(&k, "proj_K", &o->proj_K, r->proj_K, true);
    compare_tensor(&k, "proj_V", &o->proj_V, r->proj_V, true);
    compare_tensor(&k, "present_K", &o->present_K, r->present_K, true);
    compare_tensor(&k, "present_V", &o->present_V, r->present_V, true);
    compare_maps(&k, "scores", o, &o->scores, r, r->scores);
    if (r->attention_mean && r->attention != NULL)
        compare_mean(&k, o, r);
    else
        compare_maps(&k, "attention", o, &o->attention, r, r->attention);
    compare_tensor(&k, "logsumexp", &o->logsumexp, r->logsumexp, false);
    compare_tensor(&k, "heads", &o->heads, r->heads, false);
    compare_tensor(&k, "concat", &o->concat, r->concat, false);
    compare_tensor(&k, "output", &o->output, r->output, false);
    if (r->masked_rows != o->masked_rows)
        judge(&k, INFINITY, "masked_rows is %llu, should be %llu", (unsigned long long)r->masked_rows,
              (unsigned long long)o->masked_rows);
    else if (o->masked_rows > 0 && memcmp(r->masked_first, o->masked_first, sizeof o->masked_first) != 0)
        judge(&k, INFINITY, "masked_first is [%zu,%zu,%zu], should be [%zu,%zu,%zu]", r->masked_first[0],
              r->masked_first[1], r->masked_first[2], o->masked_first[0], o->masked_first[1], o->masked_first[2]);
    return k.worst;
}

double oracle_max_error(const struct oracle_tensor *want, enum mha_dtype dtype, const void *got) {
    double worst = 0;
    for (size_t x = 0; x < want->n; x++) {
        double error = magnitude((quad)got_at(dtype, got, x) - want->value[x]);
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

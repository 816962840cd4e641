/* SPDX-License-Identifier: Apache-2.0
 *
 * core/check.c - refuses problems that cannot be computed, before anybody allocates for them.
 *
 * Model. A list of small checks, in the order: options, dimensions, sizes, pointers, indices. Each returns MHA_OK or
 * fills *detail. Sizes come first among what a client can choose: after them every product of dimensions that any
 * evaluation forms is known to fit (core/check.h: 2^60 bytes a tensor), so the rest of core multiplies without looking.
 *
 * What this does not do: look at tensor data (key_lengths and heads_listed are indices and are looked at), or decide
 * whether the memory can be had (struct mha_need says how much it would be; the caller decides).
 */
#include "check.h"

#include "layer.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Cold: the compiler keeps what calls it apart from what a good problem runs. */
static __attribute__((cold)) enum mha_error refuse(struct mha_detail *detail, enum mha_error code, const char *field,
                                                   size_t expected, size_t actual) {
    *detail = (struct mha_detail){.code = code, .field = field, .expected = expected, .actual = actual};
    return code;
}

bool mha_tensor_bytes(const size_t *dim, size_t rank, size_t element, size_t *bytes) {
    size_t product = element;
    bool empty = false;
    for (size_t axis = 0; axis < rank; axis++) {
        if (dim[axis] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, dim[axis], &product))
            return false;
    }
    *bytes = empty ? 0 : product;
    return product <= MHA_MAX_BYTES;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Finite also in the type it will be used in. */
static bool finite_in(enum mha_dtype dtype, double x) { return dtype == MHA_F32 ? isfinite((float)x) : isfinite(x); }

/* A softcap that float32 rounds to 0 would turn itself off. */
static bool usable_softcap(enum mha_dtype dtype, double cap) {
    if (!finite_in(dtype, cap) || !(cap >= 0)) return false;
    return cap == 0 || dtype != MHA_F32 || (float)cap > 0;
}

static enum mha_error check_options(const struct mha_problem *p, const struct mha_result *r, size_t threads,
                                    struct mha_detail *detail) {
    const struct {
        bool ok;
        const char *field;
    } rules[] = {
        {p->dtype == MHA_F64 || p->dtype == MHA_F32, "dtype"},
        {p->layer != NULL || (unsigned)p->weights.layout <= MHA_IN_HEAD_OUT, "weight_layout"},
        {p->alignment == MHA_TOP_LEFT || p->alignment == MHA_BOTTOM_RIGHT, "causal_alignment"},
        {(unsigned)p->attn_mask.kind <= MHA_MASK_ADDITIVE, "attn_mask"},
        {finite_in(p->dtype, p->scale), "scale"},
        {usable_softcap(p->dtype, p->softcap), "softcap"},
        {!r->attention_mean || r->heads_listed == NULL || r->n_heads_listed > 0, "attention_heads"},
        {threads >= 1, "threads"},
    };
    for (size_t k = 0; k < COUNT(rules); k++)
        if (!rules[k].ok) return refuse(detail, MHA_ERR_OPTION, rules[k].field, 0, 0);
    return MHA_OK;
}

/* ---- dimensions -------------------------------------------------------------------------------------------------- */

static enum mha_error check_heads(const struct mha_layer_shape *s, struct mha_detail *detail) {
    const struct {
        size_t value;
        const char *field;
    } positive[] = {{s->h, "h"}, {s->h_kv, "h_kv"}, {s->d_k, "d_k"}, {s->d_v, "d_v"}};
    for (size_t k = 0; k < COUNT(positive); k++)
        if (positive[k].value == 0) return refuse(detail, MHA_ERR_DIMENSION, positive[k].field, 1, 0);
    if (s->h % s->h_kv != 0) return refuse(detail, MHA_ERR_DIMENSION, "h_kv", s->h, s->h_kv);
    return MHA_OK;
}

/* Without a projection the width of the input is the width of the heads. */
static enum mha_error check_identities(const struct mha_layer_shape *s, const struct mha_weights *w,
                                       struct mha_detail *detail) {
    const struct {
        const void *W;
        size_t heads, d, width;
        const char *field;
    } rules[] = {
        {w->W_q, s->h, s->d_k, s->d_q, "d_q"},
        {w->W_k, s->h_kv, s->d_k, s->d_kin, "d_kin"},
        {w->W_v, s->h_kv, s->d_v, s->d_vin, "d_vin"},
        {w->W_o, s->h, s->d_v, s->d_out, "d_out"},
    };
    for (size_t k = 0; k < COUNT(rules); k++) {
        size_t expected;
        if (rules[k].W != NULL) continue;
        if (__builtin_mul_overflow(rules[k].heads, rules[k].d, &expected))
            return refuse(detail, MHA_ERR_OVERFLOW, rules[k].field, 0, 0);
        if (expected != rules[k].width)
            return refuse(detail, MHA_ERR_DIMENSION, rules[k].field, expected, rules[k].width);
    }
    return MHA_OK;
}

struct mha_layer_shape mha_shape_of(const struct mha_problem *p) {
    return (struct mha_layer_shape){.dtype = p->dtype,
                                    .h = p->h,
                                    .h_kv = p->h_kv,
                                    .d_k = p->d_k,
                                    .d_v = p->d_v,
                                    .d_q = p->d_q,
                                    .d_kin = p->d_kin,
                                    .d_vin = p->d_vin,
                                    .d_out = p->d_out};
}

/* A layer brings its own dimensions; the problem's must be the same. */
static enum mha_error check_against_layer(const struct mha_problem *p, struct mha_detail *detail) {
    const struct mha_layer_shape *s = mha_layer_shape(p->layer);
    const struct {
        size_t expected, actual;
        const char *field;
    } rules[] = {
        {s->dtype, p->dtype, "dtype"}, {s->h, p->h, "h"},
        {s->h_kv, p->h_kv, "h_kv"},    {s->d_k, p->d_k, "d_k"},
        {s->d_v, p->d_v, "d_v"},       {s->d_q, p->d_q, "d_q"},
        {s->d_kin, p->d_kin, "d_kin"}, {s->d_vin, p->d_vin, "d_vin"},
        {s->d_out, p->d_out, "d_out"},
    };
    for (size_t k = 0; k < COUNT(rules); k++)
        if (rules[k].expected != rules[k].actual)
            return refuse(detail, MHA_ERR_DIMENSION, rules[k].field, rules[k].expected, rules[k].actual);
    return MHA_OK;
}

static enum mha_error check_mask_dims(const struct mha_problem *p, struct mha_detail *detail) {
    const size_t full[4] = {p->B, p->h, p->n_q, p->n_past + p->n_k};
    for (size_t axis = 0; p->attn_mask.kind != MHA_MASK_NONE && axis < 4; axis++) {
        size_t dim = p->attn_mask.dim[axis];
        if (dim == 1 || dim == full[axis]) continue;
        refuse(detail, MHA_ERR_DIMENSION, "attn_mask", full[axis], dim);
        detail->index[0] = axis;
        detail->rank = 1;
        return MHA_ERR_DIMENSION;
    }
    if (p->key_mask != NULL && p->key_mask_B != 1 && p->key_mask_B != p->B)
        return refuse(detail, MHA_ERR_DIMENSION, "key_mask", p->B, p->key_mask_B);
    return MHA_OK;
}

/* ---- sizes and pointers ------------------------------------------------------------------------------------------ */

/* One tensor whose size is to be checked. */
struct tensor {
    const char *field;
    size_t dim[4]; /* unused ones are 1 */
};

static enum mha_error check_sizes(const struct tensor *tensors, size_t n, struct mha_detail *detail) {
    size_t bytes;
    for (size_t t = 0; t < n; t++)
        if (!mha_tensor_bytes(tensors[t].dim, 4, sizeof(double), &bytes))
            return refuse(detail, MHA_ERR_OVERFLOW, tensors[t].field, 0, 0);
    return MHA_OK;
}

/* Dimensions below 2^14, n_kv below 2^15: then no tensor of four of them passes 2^57 elements, and sizes need no look one by
 * one. A request of a few rows is checked as often as a large one, and spends more of its time on that. */
#define SMALL_DIMENSION ((size_t)1 << 14)
_Static_assert((SMALL_DIMENSION * SMALL_DIMENSION * SMALL_DIMENSION * (2 * SMALL_DIMENSION)) <=
                   MHA_MAX_BYTES / sizeof(double),
               "small problems must not need check_sizes");

static bool is_small_layer(const struct mha_layer_shape *s) {
    return (s->h | s->h_kv | s->d_k | s->d_v | s->d_q | s->d_kin | s->d_vin | s->d_out) < SMALL_DIMENSION;
}

static bool is_small(const struct mha_problem *p, const struct mha_layer_shape *s) {
    return is_small_layer(s) && (p->B | p->n_q | p->n_k | p->n_past) < SMALL_DIMENSION;
}

static enum mha_error check_weight_sizes(const struct mha_layer_shape *s, struct mha_detail *detail) {
    if (is_small_layer(s)) return MHA_OK;
    const struct tensor tensors[] = {
        {"W_q", {s->d_q, s->h, s->d_k, 1}},
        {"W_k", {s->d_kin, s->h_kv, s->d_k, 1}},
        {"W_v", {s->d_vin, s->h_kv, s->d_v, 1}},
        {"W_o", {s->h, s->d_v, s->d_out, 1}},
    };
    return check_sizes(tensors, COUNT(tensors), detail);
}

static enum mha_error check_input_sizes(const struct mha_problem *p, struct mha_detail *detail) {
    size_t n_kv;
    if (__builtin_add_overflow(p->n_past, p->n_k, &n_kv)) return refuse(detail, MHA_ERR_OVERFLOW, "n_past", 0, 0);
    const struct tensor tensors[] = {
        {"Q", {p->B, p->n_q, p->d_q, 1}},
        {"K", {p->B, p->n_k, p->d_kin, 1}},
        {"V", {p->B, p->n_k, p->d_vin, 1}},
        {"past_K", {p->B, p->h_kv, p->n_past, p->d_k}},
        {"past_V", {p->B, p->h_kv, p->n_past, p->d_v}},
        {"Q", {p->B, p->h, p->n_q, p->d_k}},  /* Q' */
        {"K", {p->B, p->h_kv, n_kv, p->d_k}}, /* K' */
        {"V", {p->B, p->h_kv, n_kv, p->d_v}}, /* V' */
        {"Q", {p->B, p->n_q, p->h, p->d_v}},  /* contexts */
        {"W_o", {p->B, p->n_q, p->d_out, 1}}, /* the output, whether wanted or not */
        {"sinks", {p->h, 1, 1, 1}},
    };
    return check_sizes(tensors, COUNT(tensors), detail);
}

/* An empty tensor may lack its pointer; h_kv, d_k and d_v are not 0. */
static enum mha_error check_pointers(const struct mha_problem *p, struct mha_detail *detail) {
    const bool queries = p->B > 0 && p->n_q > 0, keys = p->B > 0 && p->n_k > 0, past = p->B > 0 && p->n_past > 0;
    const char *missing = queries && p->d_q > 0 && p->Q == NULL  ? "Q"
                          : keys && p->d_kin > 0 && p->K == NULL ? "K"
                          : keys && p->d_vin > 0 && p->V == NULL ? "V"
                          : past && p->past_K == NULL            ? "past_K"
                          : past && p->past_V == NULL            ? "past_V"
                                                                 : NULL;
    return missing != NULL ? refuse(detail, MHA_ERR_POINTER, missing, 0, 0) : MHA_OK;
}

static enum mha_error check_masks(const struct mha_problem *p, bool small, struct mha_detail *detail) {
    const size_t *dim = p->attn_mask.dim; /* each 1 or full: check_mask_dims */
    const bool masked = p->attn_mask.kind != MHA_MASK_NONE;
    const struct tensor attn_mask = {"attn_mask", {dim[0], dim[1], dim[2], dim[3]}};
    const struct tensor key_mask = {"key_mask", {p->key_mask_B, p->n_past + p->n_k, 1, 1}};
    enum mha_error error = MHA_OK;
    if (masked && !small) error = check_sizes(&attn_mask, 1, detail);
    if (error == MHA_OK && p->key_mask != NULL && !small) error = check_sizes(&key_mask, 1, detail);
    if (error == MHA_OK && masked && p->attn_mask.data == NULL && dim[0] && dim[1] && dim[2] && dim[3])
        error = refuse(detail, MHA_ERR_POINTER, "attn_mask", 0, 0);
    return error;
}

/* Maps are the only results that are not as small as something checked already. */
static enum mha_error check_maps(const struct mha_problem *p, const struct mha_result *r, bool small,
                                 struct mha_detail *detail) {
    const size_t n_kv = p->n_past + p->n_k;
    const size_t listed = r->heads_listed != NULL ? r->n_heads_listed : p->h;
    const struct tensor attention = {"attention", {p->B, r->attention_mean ? 1 : listed, p->n_q, n_kv}};
    const struct tensor scores = {"scores", {p->B, listed, p->n_q, n_kv}};
    enum mha_error error = MHA_OK;
    if (small && listed < SMALL_DIMENSION) return MHA_OK;
    if (r->attention != NULL) error = check_sizes(&attention, 1, detail);
    if (error == MHA_OK && r->scores != NULL) error = check_sizes(&scores, 1, detail);
    return error;
}

/* ---- indices ----------------------------------------------------------------------------------------------------- */

static enum mha_error refuse_element(struct mha_detail *detail, const char *field, size_t expected, size_t actual,
                                     size_t index) {
    refuse(detail, MHA_ERR_DIMENSION, field, expected, actual);
    detail->index[0] = index;
    detail->rank = 1;
    return MHA_ERR_DIMENSION;
}

static enum mha_error check_indices(const struct mha_problem *p, const struct mha_result *r,
                                    struct mha_detail *detail) {
    const size_t n_kv = p->n_past + p->n_k;
    for (size_t b = 0; p->key_lengths != NULL && b < p->B; b++)
        if (p->key_lengths[b] > n_kv) return refuse_element(detail, "key_lengths", n_kv, p->key_lengths[b], b);
    for (size_t s = 0; r->heads_listed != NULL && s < r->n_heads_listed; s++)
        if (r->heads_listed[s] >= p->h) return refuse_element(detail, "attention_heads", p->h, r->heads_listed[s], s);
    return MHA_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static enum mha_error check_weights(const struct mha_layer_shape *s, const struct mha_weights *w,
                                    struct mha_detail *detail) {
    enum mha_error error = check_heads(s, detail);
    if (error == MHA_OK) error = check_identities(s, w, detail);
    if (error == MHA_OK) error = check_weight_sizes(s, detail);
    return error;
}

enum mha_error mha_check(const struct mha_problem *p, const struct mha_result *r, size_t threads,
                         struct mha_detail *detail) {
    *detail = (struct mha_detail){.code = MHA_OK};
    const struct mha_layer_shape shape = mha_shape_of(p);
    enum mha_error error = check_options(p, r, threads, detail);
    if (error == MHA_OK && p->layer != NULL) error = check_against_layer(p, detail);
    if (error == MHA_OK && p->layer == NULL) error = check_weights(&shape, &p->weights, detail);
    const bool small = is_small(p, &shape);
    if (error == MHA_OK && !small) error = check_input_sizes(p, detail);
    if (error == MHA_OK) error = check_pointers(p, detail);
    if (error == MHA_OK) error = check_mask_dims(p, detail);
    if (error == MHA_OK) error = check_masks(p, small, detail);
    if (error == MHA_OK) error = check_maps(p, r, small, detail);
    if (error == MHA_OK) error = check_indices(p, r, detail);
    return error;
}

enum mha_error mha_check_layer(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                               struct mha_detail *detail) {
    *detail = (struct mha_detail){.code = MHA_OK};
    if (shape->dtype != MHA_F64 && shape->dtype != MHA_F32) return refuse(detail, MHA_ERR_OPTION, "dtype", 0, 0);
    if ((unsigned)weights->layout > MHA_IN_HEAD_OUT) return refuse(detail, MHA_ERR_OPTION, "weight_layout", 0, 0);
    return check_weights(shape, weights, detail);
}

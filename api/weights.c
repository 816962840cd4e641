/* SPDX-License-Identifier: Apache-2.0
 *
 * api/weights.c - the rules of api/weights.h.
 *
 * Model. A layout is a row of a table that says which axis of a weight is what. One function reads any of W_q, W_k, W_v by that
 * table, another W_o; when a weight does not fit, the other layouts are tried, and one that fits becomes the hint in the
 * message.
 */
#include "weights.h"

#include <stdio.h>
#include <string.h>

/* Which axis holds the inputs, the heads (-1: merged with `out`, or with `in` for W_o) and the outputs. */
struct axes {
    size_t rank;
    int in, heads, out;
};

static const struct axes project_axes[] = {[MHA_IN_OUT] = {2, 0, -1, 1},
                                           [MHA_OUT_IN] = {2, 1, -1, 0},
                                           [MHA_HEAD_IN_OUT] = {3, 1, 0, 2},
                                           [MHA_IN_HEAD_OUT] = {3, 0, 1, 2}};
static const struct axes output_axes[] = {[MHA_IN_OUT] = {2, 0, -1, 1},
                                          [MHA_OUT_IN] = {2, 1, -1, 0},
                                          [MHA_HEAD_IN_OUT] = {3, 1, 0, 2},
                                          [MHA_IN_HEAD_OUT] = {3, 1, 0, 2}};

static const char *const forms[4][4] = {
    {"[d_q, h*d_k]", "[h*d_k, d_q]", "[h, d_q, d_k]", "[d_q, h, d_k]"},
    {"[d_kin, h_kv*d_k]", "[h_kv*d_k, d_kin]", "[h_kv, d_kin, d_k]", "[d_kin, h_kv, d_k]"},
    {"[d_vin, h_kv*d_v]", "[h_kv*d_v, d_vin]", "[h_kv, d_vin, d_v]", "[d_vin, h_kv, d_v]"},
    {"[h*d_v, d_out]", "[d_out, h*d_v]", "[h, d_v, d_out]", "[h, d_v, d_out]"},
};
static const char *const ordinal[] = {"first", "second", "third"};

/* One of W_q, W_k, W_v while it is checked. */
struct projection {
    enum tensor_id id;
    const char *name, *input; /* "W_q", "Q" */
    size_t width;             /* of the input, or WIDTH_UNKNOWN */
    size_t heads;
    const char *heads_name;     /* "num_heads" or "num_kv_heads" */
    size_t d;                   /* found: features per head */
    const struct projection *q; /* for W_k and W_v: what W_q was found to be */
};

static const char *form_of(enum tensor_id id, enum mha_layout layout) { return forms[id - T_W_q][layout]; }

static void pointer_of(char out[PROBLEM_POINTER_MAX], enum tensor_id id) {
    problem_pointer_index(out, field_of_tensor(id)->name, NULL, 0);
}

static bool mismatch(struct request *request, const char *field, size_t expected, size_t actual, const char *text) {
    char pointer[PROBLEM_POINTER_MAX];
    problem_pointer_index(pointer, field, NULL, 0);
    problem_set(request->problem, PROBLEM_SHAPE_MISMATCH, pointer, "%s", text);
    problem_expected(request->problem, "%zu", expected);
    problem_actual(request->problem, "%zu", actual);
    return false;
}

#define TEXT_MAX 640

/* ---- hints ---- */

/* "1, 2, 4": the divisors of n, the first few. */
static const char *divisors(char out[64], size_t n) {
    size_t at = 0, found = 0;
    out[0] = 0;
    for (size_t d = 1; d <= n && d <= 4096 && found < 8; d++) {
        if (n % d) continue;
        at += (size_t)snprintf(out + at, 64 - at, found ? ", %zu" : "%zu", d);
        found++;
    }
    return out;
}

static bool fits(const struct projection *p, const struct tensor *w, enum mha_layout layout) {
    const struct axes *a = &project_axes[layout];
    if (w->rank != a->rank || (p->width != WIDTH_UNKNOWN && w->dim[a->in] != p->width)) return false;
    return a->heads >= 0 ? w->dim[a->heads] == p->heads : w->dim[a->out] % p->heads == 0;
}

static bool output_fits(const struct tensor *w, size_t h, size_t d_v, enum mha_layout layout) {
    const struct axes *a = &output_axes[layout];
    if (w->rank != a->rank) return false;
    return a->heads >= 0 ? w->dim[a->heads] == h && w->dim[a->in] == d_v : w->dim[a->in] == h * d_v;
}

/* " Did you mean its transpose, weight_layout "out_in"?" or nothing. `other`: a layout that fits, or `layout` itself. */
static const char *hint(char out[160], enum mha_layout layout, enum mha_layout other) {
    bool transposed = layout <= MHA_OUT_IN && other <= MHA_OUT_IN;
    if (other == layout)
        out[0] = 0;
    else
        snprintf(out, 160, " Did you mean %sweight_layout \"%s\"?", transposed ? "its transpose, " : "",
                 layout_name(other));
    return out;
}

static enum mha_layout layout_that_fits(const struct projection *p, const struct tensor *w, enum mha_layout layout) {
    for (int other = MHA_IN_OUT; other <= MHA_IN_HEAD_OUT; other++)
        if (fits(p, w, (enum mha_layout)other)) return (enum mha_layout)other;
    return layout;
}

static enum mha_layout output_layout_that_fits(const struct tensor *w, size_t h, size_t d_v, enum mha_layout layout) {
    for (int other = MHA_IN_OUT; other <= MHA_IN_HEAD_OUT; other++)
        if (output_fits(w, h, d_v, (enum mha_layout)other)) return (enum mha_layout)other;
    return layout;
}

/* ---- one projection ---- */

static bool wrong_rank(struct request *request, enum tensor_id id, enum mha_layout layout, enum mha_layout other,
                       size_t rank) {
    const struct tensor *w = &request->tensor[id];
    char pointer[PROBLEM_POINTER_MAX], shape[PROBLEM_SHAPE_MAX], more[160];
    pointer_of(pointer, id);
    problem_set(request->problem, PROBLEM_RANK, pointer,
                "%s has rank %zu (%s), but weight_layout \"%s\" takes rank %zu, %s.%s", field_of_tensor(id)->name,
                w->rank, problem_shape(shape, w->dim, w->rank), layout_name(layout), rank, form_of(id, layout),
                hint(more, layout, other));
    problem_expected(request->problem, "%zu", rank);
    problem_actual(request->problem, "%zu", w->rank);
    return false;
}

/* " Did you mean grouped-query attention, num_kv_heads 2?" when that many heads as wide as W_q's make up `features`; as many as
 * queries have are not grouped. */
static const char *grouped_hint(char out[120], const struct projection *p, size_t features) {
    out[0] = 0;
    if (!p->q || p->q->d == 0 || features == 0 || features % p->q->d != 0) return out;
    size_t h_kv = features / p->q->d;
    if (h_kv == p->heads || p->q->heads % h_kv != 0) return out;
    if (h_kv == p->q->heads)
        snprintf(out, 120, " Did you mean to leave num_kv_heads out (as many as num_heads, %zu)?", h_kv);
    else
        snprintf(out, 120, " Did you mean grouped-query attention, num_kv_heads %zu?", h_kv);
    return out;
}

/* Why `features` cannot be split into p->heads equal heads. */
static bool split_problem(struct request *request, const struct projection *p, size_t features) {
    char text[TEXT_MAX], source[160], list[64], more[120], shape[PROBLEM_SHAPE_MAX];
    const struct tensor *w = &request->tensor[p->id];
    if (w->given)
        snprintf(source, sizeof source, "%s %s", p->name, problem_shape(shape, w->dim, w->rank));
    else
        snprintf(source, sizeof source, "%s (%s is null, so it is not projected)", p->input, p->name);
    if (features == 0) {
        snprintf(text, sizeof text, "%s gives no features at all; a head needs at least one.", source);
        return mismatch(request, w->given ? p->name : p->input, p->heads, 0, text);
    }
    snprintf(text, sizeof text,
             "%s gives %zu features, which %s %zu does not divide: each head gets an equal slice. %s can be %s.%s",
             source, features, p->heads_name, p->heads, p->heads_name, divisors(list, features),
             grouped_hint(more, p, features));
    return mismatch(request, w->given ? p->name : p->heads_name, p->heads, features, text);
}

/* The width `features` is split into p->heads equal heads. */
static bool split(struct request *request, struct projection *p, size_t features) {
    p->d = features / p->heads;
    return (features > 0 && features % p->heads == 0) || split_problem(request, p, features);
}

/* A null projection passes its input through. */
static bool read_identity(struct request *request, struct projection *p) {
    char pointer[PROBLEM_POINTER_MAX];
    if (p->width != WIDTH_UNKNOWN) return split(request, p, p->width);
    pointer_of(pointer, p->id);
    return problem_set(
        request->problem, PROBLEM_MISSING_FIELD, pointer,
        "%s is null (no projection), and nothing else says how wide its input is. Send an identity matrix "
        "instead.",
        p->name);
}

/* Dimension `axis` must be what `owner` (a field) says, `want`. */
static bool axis_problem(struct request *request, const struct projection *p, enum mha_layout layout, int axis,
                         size_t want, const char *owner) {
    const struct tensor *w = &request->tensor[p->id];
    char text[TEXT_MAX], more[160], shape[PROBLEM_SHAPE_MAX];
    snprintf(text, sizeof text,
             "%s is %s but %s %zu: weight_layout \"%s\" means %s, so its %s dimension must be %zu, not %zu.%s", p->name,
             problem_shape(shape, w->dim, w->rank), owner, want, layout_name(layout), form_of(p->id, layout),
             ordinal[axis], want, w->dim[axis], hint(more, layout, layout_that_fits(p, w, layout)));
    return mismatch(request, p->name, want, w->dim[axis], text);
}

static bool read_projection(struct request *request, struct projection *p, enum mha_layout layout) {
    const struct tensor *w = &request->tensor[p->id];
    const struct axes *a = &project_axes[layout];
    char owner[64];
    size_t features;
    if (!w->given) return read_identity(request, p);
    if (w->rank != a->rank) return wrong_rank(request, p->id, layout, layout_that_fits(p, w, layout), a->rank);
    if (p->width != WIDTH_UNKNOWN && w->dim[a->in] != p->width) {
        snprintf(owner, sizeof owner, "%s has width", p->input);
        return axis_problem(request, p, layout, a->in, p->width, owner);
    }
    p->width = w->dim[a->in];
    if (a->heads < 0) return split(request, p, w->dim[a->out]);
    if (w->dim[a->heads] != p->heads) {
        snprintf(owner, sizeof owner, "%s is", p->heads_name);
        return axis_problem(request, p, layout, a->heads, p->heads, owner);
    }
    return split(request, p, mem_mul(w->dim[a->out], p->heads, &features) ? features : 0);
}

/* Q' and K' meet in a dot product, so their heads must be equally wide. */
static bool same_d_k(struct request *request, const struct projection *q, const struct projection *k) {
    char text[TEXT_MAX], more[120], source[64] = "W_k";
    if (q->d == k->d) return true;
    size_t features = k->d * k->heads;
    if (!request->tensor[T_W_k].given) snprintf(source, sizeof source, "%s, W_k being null,", k->input);
    snprintf(text, sizeof text,
             "The heads of K' are %zu wide (the features of %s over %s %zu: %zu) but those of Q' are %zu (%zu over "
             "num_heads %zu); a query and a key must have the same width d_k.%s",
             k->d, source, k->heads_name, k->heads, features, q->d, q->d * q->heads, q->heads,
             grouped_hint(more, k, features));
    return mismatch(request, "W_k", q->d, k->d, text);
}

/* ---- W_o and the biases ---- */

static bool read_output(struct request *request, size_t h, size_t d_v, enum mha_layout layout, size_t *d_out) {
    const struct tensor *w = &request->tensor[T_W_o];
    const struct axes *a = &output_axes[layout];
    char text[TEXT_MAX], more[160], shape[PROBLEM_SHAPE_MAX];
    if (!w->given) {
        *d_out = h * d_v;
        return true;
    }
    if (w->rank != a->rank)
        return wrong_rank(request, T_W_o, layout, output_layout_that_fits(w, h, d_v, layout), a->rank);
    bool heads_differ = a->heads >= 0 && w->dim[a->heads] != h;
    size_t want = heads_differ ? h : a->heads >= 0 ? d_v : h * d_v;
    int axis = heads_differ ? a->heads : a->in;
    if (w->dim[axis] != want) {
        snprintf(text, sizeof text,
                 "W_o is %s but the concatenated heads have width %zu (num_heads %zu times d_v %zu): weight_layout "
                 "\"%s\" means "
                 "%s, so its %s dimension must be %zu, not %zu.%s",
                 problem_shape(shape, w->dim, w->rank), h * d_v, h, d_v, layout_name(layout), form_of(T_W_o, layout),
                 ordinal[axis], want, w->dim[axis], hint(more, layout, output_layout_that_fits(w, h, d_v, layout)));
        return mismatch(request, "W_o", want, w->dim[axis], text);
    }
    *d_out = w->dim[a->out];
    return true;
}

/* `what` it is added to and its width. */
static bool check_bias(struct request *request, enum tensor_id id, size_t width, const char *what) {
    const struct tensor *b = &request->tensor[id];
    const char *name = field_of_tensor(id)->name;
    char pointer[PROBLEM_POINTER_MAX], shape[PROBLEM_SHAPE_MAX], text[TEXT_MAX];
    if (!b->given || (b->rank == 1 && b->dim[0] == width)) return true;
    pointer_of(pointer, id);
    if (b->rank != 1) {
        problem_set(
            request->problem, PROBLEM_RANK, pointer,
            "%s is %s, but a bias has one dimension, [%zu]: one number for each feature of %s, head after head.", name,
            problem_shape(shape, b->dim, b->rank), width, what);
        problem_expected(request->problem, "[%zu]", width);
        problem_actual(request->problem, "%s", shape);
        return false;
    }
    snprintf(text, sizeof text, "%s has %zu numbers but %s has %zu features; it needs one for each.", name, b->dim[0],
             what, width);
    return mismatch(request, name, width, b->dim[0], text);
}

/* ---- all of them ---- */

static bool check_required(struct request *request) {
    static const struct {
        enum tensor_id id;
        const char *null_means;
    } required[] = {{T_W_q, "for no projection (the queries are used as they are)"},
                    {T_W_k, "for no projection (the keys are used as they are)"},
                    {T_W_v, "for no projection (the values are used as they are)"},
                    {T_W_o, "to get the concatenated heads without an output projection"}};
    for (size_t i = 0; i < 4; i++) {
        const struct tensor *w = &request->tensor[required[i].id];
        const char *name = field_of_tensor(required[i].id)->name;
        char pointer[PROBLEM_POINTER_MAX];
        if (w->given || w->null) continue;
        pointer_of(pointer, required[i].id);
        return problem_set(request->problem, PROBLEM_MISSING_FIELD, pointer,
                           "%s is missing. Send it (%s), or \"%s\": null %s.%s", name,
                           form_of(required[i].id, MHA_IN_OUT), name, required[i].null_means,
                           request->where == IN_MHA ? " Or name a resident layer in \"layer\"." : "");
    }
    return true;
}

static bool check_heads(struct request *request, const struct options *o) {
    if (!o->has_num_heads)
        return problem_set(
            request->problem, PROBLEM_MISSING_FIELD, "/num_heads",
            "num_heads is missing: the number of heads, an integer >= 1 that divides the projected width.");
    if (o->num_heads % o->num_kv_heads == 0) return true;
    char list[64];
    problem_set(
        request->problem, PROBLEM_SHAPE_MISMATCH, "/num_kv_heads",
        "num_kv_heads %zu does not divide num_heads %zu: each key/value head serves the same number of query heads. It "
        "can be %s.",
        o->num_kv_heads, o->num_heads, divisors(list, o->num_heads));
    problem_expected(request->problem, "%zu", o->num_heads);
    problem_actual(request->problem, "%zu", o->num_kv_heads);
    return false;
}

static bool convert(struct request *request, enum tensor_id id, enum mha_dtype dtype, const void **out) {
    struct tensor *tensor = request_tensor(request, id);
    *out = NULL;
    if (!tensor) return true;
    if (tensor->type == TENSOR_BOOL) {
        char pointer[PROBLEM_POINTER_MAX];
        pointer_of(pointer, id);
        return problem_set(request->problem, PROBLEM_WRONG_TYPE, pointer, "%s must hold numbers, not booleans.",
                           field_of_tensor(id)->name);
    }
    if (!tensor_convert(tensor, field_of_tensor(id)->name, dtype, false, request->arena, request->budget,
                        request->problem))
        return false;
    *out = tensor->data ? tensor->data : (const void *)request; /* no elements: any address, never read */
    return true;
}

bool weights_shape(struct request *request, const struct options *o, const struct input_widths *in,
                   struct mha_layer_shape *shape) {
    const char *kv_name = o->has_num_kv_heads ? "num_kv_heads" : "num_heads";
    struct projection q = {T_W_q, "W_q", in->q_name, in->d_q, o->num_heads, "num_heads", 0, NULL};
    struct projection k = {T_W_k, "W_k", in->k_name, in->d_kin, o->num_kv_heads, kv_name, 0, &q};
    struct projection v = {T_W_v, "W_v", in->v_name, in->d_vin, o->num_kv_heads, kv_name, 0, &q};
    size_t d_out = 0;
    if (!check_required(request) || !check_heads(request, o)) return false;
    if (!read_projection(request, &q, o->layout) || !read_projection(request, &k, o->layout) ||
        !same_d_k(request, &q, &k) || !read_projection(request, &v, o->layout))
        return false;
    size_t concat;
    if (!mem_mul(o->num_heads, v.d, &concat))
        return problem_set(request->problem, PROBLEM_OUT_OF_RANGE, "/num_heads", "num_heads times d_v is too large.");
    if (!read_output(request, o->num_heads, v.d, o->layout, &d_out)) return false;
    bool ok = check_bias(request, T_b_q, q.d * q.heads, "Q'") && check_bias(request, T_b_k, k.d * k.heads, "K'") &&
              check_bias(request, T_b_v, v.d * v.heads, "V'") && check_bias(request, T_b_o, d_out, "the output");
    if (!ok) return false;
    *shape = (struct mha_layer_shape){.h = o->num_heads,
                                      .h_kv = o->num_kv_heads,
                                      .d_k = q.d,
                                      .d_v = v.d,
                                      .d_q = q.width,
                                      .d_kin = k.width,
                                      .d_vin = v.width,
                                      .d_out = d_out};
    return true;
}

bool weights_build(struct request *request, const struct options *o, enum mha_dtype dtype,
                   const struct input_widths *in, struct mha_layer_shape *shape, struct mha_weights *weights) {
    bool ok = weights_shape(request, o, in, shape) && convert(request, T_W_q, dtype, &weights->W_q) &&
              convert(request, T_W_k, dtype, &weights->W_k) && convert(request, T_W_v, dtype, &weights->W_v) &&
              convert(request, T_W_o, dtype, &weights->W_o) && convert(request, T_b_q, dtype, &weights->b_q) &&
              convert(request, T_b_k, dtype, &weights->b_k) && convert(request, T_b_v, dtype, &weights->b_v) &&
              convert(request, T_b_o, dtype, &weights->b_o);
    if (!ok) return false;
    weights->layout = o->layout;
    shape->dtype = dtype;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/request.c - the life of a struct request, and the road from it to a problem that core can run.
 *
 * Model of request_build, each step able to refuse: the inputs Q, K, V (with K = Q and V = K when absent), the weights or the
 * resident layer, the cache, the masks, the numbers (scale, softcap, sinks), the results
 * (results.h).
 */
#include "request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "json_tree.h"
#include "masks.h"
#include "results.h"
#include "weights.h"

/* ---- the life of a request ---- */

void request_init(struct request *request, unsigned where, struct mem_arena *arena, struct mem_budget *budget,
                  struct problem *problem) {
    memset(request, 0, sizeof *request);
    request->where = where;
    request->arena = arena;
    request->budget = budget;
    request->problem = problem;
}

const struct field *request_field(struct request *request, const char *name, size_t length) {
    const struct field *field = field_find(name, length);
    uint64_t bit = field ? 1ull << (field - fields) : 0;
    if (field && (field->where & request->where) && !(request->seen & bit)) {
        request->seen |= bit;
        return field;
    }
    char pointer[PROBLEM_POINTER_MAX];
    problem_pointer_index(pointer, name, NULL, 0);
    if (field && !(field->where & request->where)) {
        problem_set(request->problem, PROBLEM_UNKNOWN_FIELD, pointer, "%s is a field of %s, not of this document.",
                    field->name, request->where == IN_LAYER ? "POST /v1/mha" : "PUT /v1/layers");
        return NULL;
    }
    if (!field) {
        const char *meant = field_suggest(name, request->where);
        problem_set(request->problem, PROBLEM_UNKNOWN_FIELD, pointer, "There is no field \"%.80s\".%s%s%s", name,
                    meant ? " Did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
        return NULL;
    }
    problem_set(request->problem, PROBLEM_DUPLICATE_FIELD, pointer, "%s occurs twice; which one is meant?",
                field->name);
    return NULL;
}

struct tensor *request_tensor(struct request *request, enum tensor_id id) {
    return request->tensor[id].given ? &request->tensor[id] : NULL;
}

bool request_options(struct request *request, const char *text, size_t length) {
    enum mem_status why;
    request->rest = json_tree_in(request->arena, text, length, &why);
    if (request->rest) return true; /* the text was checked before: only memory can have failed */
    if (why == MEM_OK) why = MEM_FAILED;
    return problem_memory(request->problem, why, request->budget, "", length, "The options of the request");
}

/* ---- Q, K, V ---- */

static bool refuse_shape(struct request *request, enum problem_code code, const char *name, const char *expected,
                         const char *actual, const char *text) {
    char pointer[PROBLEM_POINTER_MAX];
    problem_set(request->problem, code, problem_pointer_index(pointer, name, NULL, 0), "%s", text);
    problem_expected(request->problem, "%s", expected);
    problem_actual(request->problem, "%s", actual);
    return false;
}

/* Nested arrays cannot say the dimensions behind an empty one. */
static const char empty_hint[] = " An empty tensor says its shape: {\"shape\":[...],\"data\":[]}.";

/* An input has rank 2 or 3 and holds numbers. */
static bool check_input(struct request *request, enum tensor_id id) {
    const struct tensor *t = &request->tensor[id];
    const struct field *field = field_of_tensor(id);
    char text[400], shape[PROBLEM_SHAPE_MAX];
    if ((t->rank == 2 || t->rank == 3) && t->type != TENSOR_BOOL) return true;
    problem_shape(shape, t->dim, t->rank);
    if (t->type == TENSOR_BOOL)
        return refuse_shape(request, PROBLEM_WRONG_TYPE, field->name, "\"numbers\"", "\"booleans\"",
                            "Q, K and V must hold numbers, not booleans.");
    const char *more = "";
    if (t->rank == 1) more = " One row still takes two pairs of brackets: [[...]].";
    if (t->count == 0) more = empty_hint;
    if (t->rank == 4)
        more = " Inputs already split by head are past_K and past_V, or merge the heads into the last dimension.";
    snprintf(text, sizeof text, "%s has rank %zu (%s) but must be %s.%s", field->name, t->rank, shape, field->form,
             more);
    return refuse_shape(request, PROBLEM_RANK, field->name, "\"rank 2 or 3\"", shape, text);
}

/* An input must agree with Q on having a batch and on its size. */
static bool check_batch(struct request *request, const char *name, const struct tensor *t) {
    const struct tensor *q = &request->tensor[T_Q];
    char text[400], shape[PROBLEM_SHAPE_MAX], q_shape[PROBLEM_SHAPE_MAX];
    if (t->rank == q->rank && (q->rank == 2 || t->dim[0] == q->dim[0])) return true;
    problem_shape(shape, t->dim, t->rank);
    problem_shape(q_shape, q->dim, q->rank);
    if (t->rank != q->rank) {
        snprintf(text, sizeof text, "%s is %s but Q is %s: either both have a batch dimension or neither.", name, shape,
                 q_shape);
        return refuse_shape(request, PROBLEM_RANK, name, q_shape, shape, text);
    }
    snprintf(text, sizeof text, "%s is %s but Q is %s: the batch sizes %zu and %zu must be equal.", name, shape,
             q_shape, t->dim[0], q->dim[0]);
    return refuse_shape(request, PROBLEM_SHAPE_MISMATCH, name, q_shape, shape, text);
}

static bool check_rows(struct request *request, const char *k_name, const struct tensor *k, const char *v_name,
                       const struct tensor *v) {
    char text[400], expected[32], actual[32];
    size_t n_k = k->dim[k->rank - 2], n_v = v->dim[v->rank - 2];
    if (n_k == n_v) return true;
    snprintf(text, sizeof text, "%s has %zu rows (keys) but %s has %zu (values); each key needs one value.%s", k_name,
             n_k, v_name, n_v, k_name[0] == 'Q' ? " (K was not sent, so K = Q.)" : "");
    snprintf(expected, sizeof expected, "%zu", n_k);
    snprintf(actual, sizeof actual, "%zu", n_v);
    return refuse_shape(request, PROBLEM_SHAPE_MISMATCH, v_name, expected, actual, text);
}

static bool convert(struct request *request, enum tensor_id id, enum mha_dtype dtype) {
    return tensor_convert(&request->tensor[id], field_of_tensor(id)->name, dtype, false, request->arena,
                          request->budget, request->problem);
}

static bool build_inputs(struct request *request, struct job *job, struct input_widths *widths) {
    struct mha_problem *p = &job->problem;
    if (!request_tensor(request, T_Q))
        return problem_set(request->problem, PROBLEM_MISSING_FIELD, "/Q",
                           "Q is missing: the queries, [n_q, d_q] or [B, n_q, d_q]. K defaults to Q, and V to K.");
    bool has_k = request_tensor(request, T_K), has_v = request_tensor(request, T_V);
    const struct tensor *q = &request->tensor[T_Q];
    const struct tensor *k = has_k ? &request->tensor[T_K] : q;
    const struct tensor *v = has_v ? &request->tensor[T_V] : k;
    widths->q_name = "Q";
    widths->k_name = has_k ? "K" : "Q";
    widths->v_name = has_v ? "V" : widths->k_name;
    if (!check_input(request, T_Q) || (has_k && !check_input(request, T_K)) || (has_v && !check_input(request, T_V)))
        return false;
    if (!check_batch(request, widths->k_name, k) || !check_batch(request, widths->v_name, v)) return false;
    if (!check_rows(request, widths->k_name, k, widths->v_name, v)) return false;
    if (!convert(request, T_Q, p->dtype) || !convert(request, T_K, p->dtype) || !convert(request, T_V, p->dtype))
        return false;
    job->batched = q->rank == 3;
    p->B = job->batched ? q->dim[0] : 1;
    p->n_q = q->dim[q->rank - 2];
    p->n_k = k->dim[k->rank - 2];
    widths->d_q = p->d_q = q->dim[q->rank - 1];
    widths->d_kin = p->d_kin = k->dim[k->rank - 1];
    widths->d_vin = p->d_vin = v->dim[v->rank - 1];
    p->Q = q->data;
    p->K = k->data;
    p->V = v->data;
    return true;
}

/* ---- weights or a layer ---- */

static void take_shape(struct mha_problem *p, const struct mha_layer_shape *s) {
    p->h = s->h;
    p->h_kv = s->h_kv;
    p->d_k = s->d_k;
    p->d_v = s->d_v;
    p->d_q = s->d_q;
    p->d_kin = s->d_kin;
    p->d_vin = s->d_vin;
    p->d_out = s->d_out;
}

/* A layer brings weights, biases, head counts and layout: none of them may come with the request. */
static bool refuse_beside_layer(struct request *request, const struct options *o) {
    const char *name = NULL;
    for (int id = T_W_q; id <= T_b_o && !name; id++)
        if (request->tensor[id].given || request->tensor[id].null) name = field_of_tensor((enum tensor_id)id)->name;
    if (!name && o->has_num_heads) name = "num_heads";
    if (!name && o->has_num_kv_heads) name = "num_kv_heads";
    if (!name && o->has_layout) name = "weight_layout";
    if (!name) return true;
    char pointer[PROBLEM_POINTER_MAX];
    return problem_set(
        request->problem, PROBLEM_CONFLICT, problem_pointer_index(pointer, name, NULL, 0),
        "layer \"%.60s\" brings its own weights, biases and head counts, so %s cannot be sent beside it. Leave one "
        "of the two out.",
        o->layer, name);
}

static bool check_layer_width(struct request *request, const char *layer, const char *name, size_t width,
                              const char *weight, size_t expects) {
    char text[400], expected[32], actual[32];
    if (width == expects) return true;
    snprintf(text, sizeof text, "%s has width %zu but %s of layer \"%.60s\" takes width %zu.", name, width, weight,
             layer, expects);
    snprintf(expected, sizeof expected, "%zu", expects);
    snprintf(actual, sizeof actual, "%zu", width);
    return refuse_shape(request, PROBLEM_SHAPE_MISMATCH, name, expected, actual, text);
}

static bool build_from_layer(struct request *request, struct job *job, const struct mha_layer *layer,
                             const struct input_widths *in) {
    const struct mha_layer_shape *s = mha_layer_shape(layer);
    const char *name = job->options.layer;
    if (!check_layer_width(request, name, in->q_name, in->d_q, "W_q", s->d_q) ||
        !check_layer_width(request, name, in->k_name, in->d_kin, "W_k", s->d_kin) ||
        !check_layer_width(request, name, in->v_name, in->d_vin, "W_v", s->d_vin))
        return false;
    take_shape(&job->problem, s);
    job->problem.layer = layer;
    return true;
}

static bool build_from_weights(struct request *request, struct job *job, const struct input_widths *in) {
    struct mha_layer_shape shape;
    if (!weights_build(request, &job->options, job->problem.dtype, in, &shape, &job->problem.weights)) return false;
    take_shape(&job->problem, &shape);
    return true;
}

/* The working precision: the layer's, the request's, float64. */
static bool choose_dtype(struct request *request, struct job *job, const struct mha_layer *layer) {
    const struct options *o = &job->options;
    job->problem.dtype = o->dtype;
    if (!layer) return true;
    enum mha_dtype own = mha_layer_shape(layer)->dtype;
    job->problem.dtype = own;
    if (!o->has_dtype || o->dtype == own) return true;
    return problem_set(request->problem, PROBLEM_CONFLICT, "/dtype",
                       "dtype is \"%s\" but layer \"%.60s\" was loaded as %s; leave dtype out to use the layer's.",
                       o->dtype == MHA_F64 ? "float64" : "float32", o->layer, own == MHA_F64 ? "float64" : "float32");
}

/* ---- the cache and the sinks ---- */

/* past_K [h_kv, n_past, d_k] or past_V [h_kv, n_past, d_v], with B in front when Q has it. */
static bool check_past(struct request *request, const struct job *job, enum tensor_id id, size_t d,
                       const char *d_name) {
    const struct tensor *t = &request->tensor[id];
    const char *name = field_of_tensor(id)->name;
    const struct mha_problem *p = &job->problem;
    char text[500], shape[PROBLEM_SHAPE_MAX], want[128];
    size_t lead = job->batched ? 1 : 0;
    bool rank_fits = t->rank == 3 + lead;
    if (rank_fits && (!lead || t->dim[0] == p->B) && t->dim[lead] == p->h_kv && t->dim[lead + 2] == d) return true;
    problem_shape(shape, t->dim, t->rank);
    if (lead)
        snprintf(want, sizeof want, "[%zu,%zu,\"n_past\",%zu]", p->B, p->h_kv, d);
    else
        snprintf(want, sizeof want, "[%zu,\"n_past\",%zu]", p->h_kv, d);
    snprintf(text, sizeof text,
             "%s is %s but must be %s: %s%zu key/value heads (h_kv), n_past rows, %s = %zu. A cache is already "
             "projected and split "
             "by head.%s",
             name, shape, job->batched ? "[B, h_kv, n_past, d]" : "[h_kv, n_past, d] (Q has no batch dimension)",
             job->batched ? "B as in Q, " : "", p->h_kv, d_name, d, t->count ? "" : empty_hint);
    return refuse_shape(request, rank_fits ? PROBLEM_SHAPE_MISMATCH : PROBLEM_RANK, name, want, shape, text);
}

static bool build_past(struct request *request, struct job *job) {
    struct tensor *k = request_tensor(request, T_past_K), *v = request_tensor(request, T_past_V);
    struct mha_problem *p = &job->problem;
    if (!k && !v) return true;
    if (!k || !v)
        return problem_set(request->problem, PROBLEM_MISSING_FIELD, k ? "/past_V" : "/past_K",
                           "%s is there but %s is missing; a cache needs both.", k ? "past_K" : "past_V",
                           k ? "past_V" : "past_K");
    if (!check_past(request, job, T_past_K, p->d_k, "d_k") || !check_past(request, job, T_past_V, p->d_v, "d_v"))
        return false;
    size_t lead = job->batched ? 1 : 0, n_k = k->dim[lead + 1], n_v = v->dim[lead + 1];
    if (n_k != n_v) {
        char text[200], expected[32], actual[32];
        snprintf(text, sizeof text, "past_K holds %zu keys but past_V %zu values; each key needs one value.", n_k, n_v);
        snprintf(expected, sizeof expected, "%zu", n_k);
        snprintf(actual, sizeof actual, "%zu", n_v);
        return refuse_shape(request, PROBLEM_SHAPE_MISMATCH, "past_V", expected, actual, text);
    }
    if (!convert(request, T_past_K, p->dtype) || !convert(request, T_past_V, p->dtype)) return false;
    p->n_past = n_k;
    p->past_K = k->data;
    p->past_V = v->data;
    size_t n_kv;
    return mem_add(p->n_past, p->n_k, &n_kv) ||
           problem_memory(request->problem, MEM_TOO_LARGE, request->budget, "/past_K", SIZE_MAX, "The cache");
}

static bool build_sinks(struct request *request, struct job *job) {
    struct tensor *t = request_tensor(request, T_sinks);
    if (!t) return true;
    char text[300], shape[PROBLEM_SHAPE_MAX], expected[32];
    if (t->rank != 1 || t->dim[0] != job->problem.h) {
        problem_shape(shape, t->dim, t->rank);
        snprintf(expected, sizeof expected, "[%zu]", job->problem.h);
        snprintf(text, sizeof text, "sinks is %s but must be %s, one logit for each of the %zu heads.", shape, expected,
                 job->problem.h);
        return refuse_shape(request, t->rank == 1 ? PROBLEM_SHAPE_MISMATCH : PROBLEM_RANK, "sinks", expected, shape,
                            text);
    }
    if (!convert(request, T_sinks, job->problem.dtype)) return false;
    job->problem.sinks = t->data;
    return true;
}

/* ---- the whole ---- */

static void take_options(struct job *job) {
    const struct options *o = &job->options;
    struct mha_problem *p = &job->problem;
    p->scale = o->has_scale ? o->scale : 1 / sqrt((double)p->d_k);
    p->softcap = o->softcap;
    p->causal = o->causal;
    p->alignment = o->alignment;
    p->window = o->has_window;
    p->window_left = o->window_left;
    p->window_right = o->window_right;
}

/* An empty tensor may still claim a huge dimension beside the 0, for which somebody would loop: what could not be held in memory
 * without the zeros is refused. */
static bool check_sizes(struct request *request) {
    for (int id = 0; id < TENSOR_COUNT; id++) {
        const struct tensor *t = request_tensor(request, (enum tensor_id)id);
        size_t bytes = sizeof(double);
        bool counted = true;
        if (!t || t->count) continue;
        for (size_t axis = 0; axis < t->rank; axis++)
            counted = counted && mem_mul(bytes, t->dim[axis] ? t->dim[axis] : 1, &bytes);
        if (counted && bytes <= request->budget->limit) continue;
        char pointer[PROBLEM_POINTER_MAX];
        const char *name = field_of_tensor((enum tensor_id)id)->name;
        return problem_memory(request->problem, MEM_TOO_LARGE, request->budget,
                              problem_pointer_index(pointer, name, NULL, 0), counted ? bytes : SIZE_MAX, name);
    }
    return true;
}

bool request_build(struct request *request, const struct mha_layer *layer, size_t threads, struct job *job) {
    struct input_widths in = {0};
    job->problem = (struct mha_problem){0};
    job->result = (struct mha_result){0};
    job->response.count = 0; /* a tensor on the list is set whole */
    job->response.masked_rows = 0;
    if (!check_sizes(request) || !choose_dtype(request, job, layer)) return false;
    if (job->options.layer && !refuse_beside_layer(request, &job->options)) return false;
    if (!build_inputs(request, job, &in)) return false;
    if (layer ? !build_from_layer(request, job, layer, &in) : !build_from_weights(request, job, &in)) return false;
    if (!build_past(request, job) || !masks_build(request, job) || !build_sinks(request, job)) return false;
    take_options(job);
    return results_build(request, job, threads);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/masks.c - the rules of api/masks.h.
 *
 * What people get wrong elsewhere is refused here with both readings named: a mask of rank 3 (per sample or per head?), an
 * attn_mask of 0 and 1 (added or hiding?). key_padding_mask has torch's meaning (true = ignore) and is turned round while it
 * is merged with key_mask (true = exists), so that core knows one meaning only.
 */
#include "masks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "number.h"

static bool shape_problem(struct request *request, enum problem_code code, const char *name, const struct tensor *t,
                          const char *want, const char *text) {
    char pointer[PROBLEM_POINTER_MAX], shape[PROBLEM_SHAPE_MAX];
    problem_pointer_index(pointer, name, NULL, 0);
    problem_shape(shape, t->dim, t->rank);
    problem_set(request->problem, code, pointer, "%s is %s, but %s", name, shape, text);
    problem_expected(request->problem, "%s", want);
    problem_actual(request->problem, "%s", shape);
    return false;
}

static bool out_of_memory(struct request *request, enum mem_status why, const char *name, size_t bytes) {
    char pointer[PROBLEM_POINTER_MAX];
    return problem_memory(request->problem, why, request->budget, problem_pointer_index(pointer, name, NULL, 0), bytes,
                          name);
}

/* ---- values ---- */

/* Every element as double, whatever its type, through tensor_convert. */
static bool as_doubles(struct request *request, struct tensor *t, const char *name, bool minus_infinity_allowed) {
    return tensor_convert(t, name, MHA_F64, minus_infinity_allowed, request->arena, request->budget, request->problem);
}

static bool only_zero_one(const struct tensor *t) {
    const double *data = t->data;
    for (size_t i = 0; i < t->count; i++)
        if (data[i] != 0 && data[i] != 1) return false;
    return true;
}

static const char *number_text(char out[NUMBER_ROOM], double value) {
    out[number_write_f64(out, value)] = 0;
    return out;
}

static bool not_zero_one(struct request *request, const struct tensor *t, const char *name, size_t i, double value) {
    char pointer[PROBLEM_POINTER_MAX], text[NUMBER_ROOM];
    tensor_pointer(pointer, t, name, i);
    if (!isfinite(value))
        return problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer,
                           "%s holds true/false or 0/1, but %s is null (-infinity), which only an additive mask has.",
                           name, pointer);
    problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer, "%s holds true/false or 0/1, but %s is %s.", name,
                pointer, number_text(text, value));
    problem_actual(request->problem, "%s", text);
    return false;
}

/* Bytes 0 and 1 from booleans or from the numbers 0 and 1. [count], in the arena or the tensor itself. */
static bool as_bits(struct request *request, struct tensor *t, const char *name, const uint8_t **out) {
    if (t->type == TENSOR_BOOL) {
        const uint8_t *data = t->data;
        for (size_t i = 0; i < t->count; i++)
            if (data[i] > 1) return not_zero_one(request, t, name, i, data[i]);
        *out = data;
        return true;
    }
    if (!as_doubles(request, t, name, true)) return false;
    enum mem_status why;
    uint8_t *bits = mem_alloc(request->arena, t->count, &why);
    if (!bits) return out_of_memory(request, why, name, t->count);
    const double *data = t->data;
    for (size_t i = 0; i < t->count; i++) {
        if (data[i] != 0 && data[i] != 1) return not_zero_one(request, t, name, i, data[i]);
        bits[i] = data[i] == 1;
    }
    *out = bits;
    return true;
}

/* ---- attn_mask ---- */

static bool rank_3(struct request *request, const struct tensor *t) {
    char text[400], want[64];
    const size_t *d = t->dim;
    snprintf(text, sizeof text,
             "a mask of rank 3 could mean one mask per sample ([%zu,1,%zu,%zu]) or one per head ([1,%zu,%zu,%zu]). "
             "Write the one "
             "you mean with four dimensions, [B or 1, h or 1, n_q or 1, n_k or 1].",
             d[0], d[1], d[2], d[0], d[1], d[2]);
    snprintf(want, sizeof want, "\"rank 2 or 4\"");
    return shape_problem(request, PROBLEM_AMBIGUOUS_MASK, "attn_mask", t, want, text);
}

/* Why a mask with two dimensions that do not fit may have been meant. */
static const char *rank_2_hint(char out[200], const struct tensor *t, const struct mha_problem *p) {
    size_t n_kv = p->n_past + p->n_k;
    if (p->n_past && t->dim[1] == p->n_k)
        snprintf(out, 200, " Masks cover past and new keys (%zu + %zu).", p->n_past, p->n_k);
    else if (t->dim[0] == 1 && t->dim[1] == n_kv)
        snprintf(out, 200, " To use one row for all queries write it as [1,1,1,%zu].", n_kv);
    else if (t->dim[0] == p->B && t->dim[1] == n_kv)
        snprintf(out, 200, " A row of keys per sample is key_mask.");
    else if (t->dim[0] == n_kv && t->dim[1] == p->n_q)
        snprintf(out, 200, " Is it transposed? Rows are queries, columns keys.");
    else
        out[0] = 0;
    return out;
}

static bool check_rank_2(struct request *request, const struct tensor *t, struct mha_problem *p) {
    size_t n_kv = p->n_past + p->n_k;
    char text[400], want[64], more[200];
    if (t->dim[0] != p->n_q || t->dim[1] != n_kv) {
        snprintf(want, sizeof want, "[%zu,%zu]", p->n_q, n_kv);
        snprintf(text, sizeof text,
                 "it must be %s: a row for each of the %zu queries, a column for each of the %zu keys.%s", want, p->n_q,
                 n_kv, rank_2_hint(more, t, p));
        return shape_problem(request, PROBLEM_SHAPE_MISMATCH, "attn_mask", t, want, text);
    }
    p->attn_mask.dim[0] = p->attn_mask.dim[1] = 1;
    p->attn_mask.dim[2] = t->dim[0];
    p->attn_mask.dim[3] = t->dim[1];
    return true;
}

static bool check_rank_4(struct request *request, const struct tensor *t, struct mha_problem *p) {
    const size_t full[4] = {p->B, p->h, p->n_q, p->n_past + p->n_k};
    static const char *const axes[4] = {"samples (B)", "heads (h)", "queries (n_q)", "keys (past + new)"};
    for (size_t axis = 0; axis < 4; axis++) {
        p->attn_mask.dim[axis] = t->dim[axis];
        if (t->dim[axis] == full[axis] || t->dim[axis] == 1) continue;
        char text[400], want[PROBLEM_SHAPE_MAX];
        snprintf(text, sizeof text, "dimension %zu counts %s and must be %zu, or 1 for all of them, not %zu.", axis + 1,
                 axes[axis], full[axis], t->dim[axis]);
        return shape_problem(request, PROBLEM_SHAPE_MISMATCH, "attn_mask", t, problem_shape(want, full, 4), text);
    }
    return true;
}

static bool check_attn_shape(struct request *request, const struct tensor *t, struct mha_problem *p) {
    if (t->rank == 2) return check_rank_2(request, t, p);
    if (t->rank == 3) return rank_3(request, t);
    if (t->rank == 4) return check_rank_4(request, t, p);
    return shape_problem(
        request, PROBLEM_RANK, "attn_mask", t, "\"rank 2 or 4\"",
        "it must be [n_q, n_k] or [B or 1, h or 1, n_q or 1, n_k or 1]. A mask of keys alone is key_mask.");
}

static bool additive(struct request *request, struct tensor *t, struct mha_problem *p) {
    if (t->type == TENSOR_BOOL)
        return problem_set(
            request->problem, PROBLEM_CONFLICT, "/attn_mask",
            "attn_mask holds true and false, but attn_mask_kind is \"additive\", which takes numbers to be added to "
            "the scores. Leave attn_mask_kind out, or send numbers.");
    if (!tensor_convert(t, "attn_mask", p->dtype, true, request->arena, request->budget, request->problem))
        return false;
    p->attn_mask.kind = MHA_MASK_ADDITIVE;
    p->attn_mask.data = t->data;
    return true;
}

static bool boolean(struct request *request, struct tensor *t, struct mha_problem *p) {
    const uint8_t *bits = NULL;
    if (!as_bits(request, t, "attn_mask", &bits)) return false;
    p->attn_mask.kind = MHA_MASK_BOOL;
    p->attn_mask.data = bits;
    return true;
}

/* Numbers without attn_mask_kind: additive, unless they could be meant as booleans. */
static bool by_look(struct request *request, struct tensor *t, struct mha_problem *p) {
    if (t->type == TENSOR_BOOL || t->count == 0) return boolean(request, t, p);
    enum tensor_type before = t->type;
    bool zero_one = false;
    if (t->text == NULL && before != TENSOR_F32) {
        if (!as_doubles(request, t, "attn_mask", true)) return false;
        zero_one = only_zero_one(t);
    } else if (before == TENSOR_F32) {
        const float *data = t->data;
        zero_one = true;
        for (size_t i = 0; zero_one && i < t->count; i++) zero_one = data[i] == 0 || data[i] == 1;
    } /* with ties there is a number that is neither 0 nor 1 */
    if (zero_one)
        return problem_set(
            request->problem, PROBLEM_AMBIGUOUS_MASK, "/attn_mask",
            "attn_mask holds only the numbers 0 and 1, which could be added to the scores or mean hidden and "
            "visible. Write true (may attend) and false, or say \"attn_mask_kind\": \"additive\" to add them "
            "(\"bool\" to read 1 as true).");
    return additive(request, t, p);
}

static bool build_attn_mask(struct request *request, struct job *job) {
    struct tensor *t = request_tensor(request, T_attn_mask);
    struct mha_problem *p = &job->problem;
    if (!t) return true;
    if (!check_attn_shape(request, t, p)) return false;
    switch (job->options.mask_reading) {
    case MASK_ADDITIVE:
        return additive(request, t, p);
    case MASK_BOOL:
        return boolean(request, t, p);
    default:
        return by_look(request, t, p);
    }
}

/* ---- key masks ---- */

/* Rows of a key mask: 1 for all samples, or B. */
static bool check_key_shape(struct request *request, const struct tensor *t, const char *name,
                            const struct mha_problem *p, size_t *rows) {
    size_t n_kv = p->n_past + p->n_k;
    char text[400], want[64];
    bool fits = t->rank == 1 ? t->dim[0] == n_kv : t->rank == 2 && t->dim[0] == p->B && t->dim[1] == n_kv;
    *rows = t->rank == 1 ? 1 : p->B;
    if (fits) return true;
    snprintf(want, sizeof want, "[%zu,%zu]", p->B, n_kv);
    if (p->n_past && t->rank >= 1 && t->dim[t->rank - 1] == p->n_k)
        snprintf(text, sizeof text, "it must be [%zu] or [%zu,%zu]: it covers past and new keys (%zu + %zu).", n_kv,
                 p->B, n_kv, p->n_past, p->n_k);
    else
        snprintf(text, sizeof text, "it must be [%zu] (one entry for each key) or [%zu,%zu] (for each sample).", n_kv,
                 p->B, n_kv);
    return shape_problem(request, t->rank == 1 || t->rank == 2 ? PROBLEM_SHAPE_MISMATCH : PROBLEM_RANK, name, t, want,
                         text);
}

/* Others mark with 1 the keys that exist: a key_padding_mask of numbers would be read the wrong way round by one side. */
static bool check_key_type(struct request *request, const struct tensor *t, enum tensor_id id) {
    if (id != T_key_padding_mask || t->type == TENSOR_BOOL || t->count == 0) return true;
    problem_set(
        request->problem, PROBLEM_WRONG_TYPE, "/key_padding_mask",
        "key_padding_mask holds booleans, true = ignore this key, not numbers. A mask in which 1 means that the "
        "key exists is key_mask.");
    problem_expected_text(request->problem, "bool");
    problem_actual_text(request->problem, tensor_type_name(t->type));
    return false;
}

static bool read_key_mask(struct request *request, enum tensor_id id, const struct mha_problem *p, const uint8_t **bits,
                          size_t *rows) {
    struct tensor *t = request_tensor(request, id);
    const char *name = field_of_tensor(id)->name;
    *bits = NULL;
    *rows = 1;
    return !t || (check_key_shape(request, t, name, p, rows) && check_key_type(request, t, id) &&
                  as_bits(request, t, name, bits));
}

static bool build_key_mask(struct request *request, struct job *job) {
    struct mha_problem *p = &job->problem;
    const uint8_t *exists = NULL, *ignored = NULL;
    size_t exists_rows, ignored_rows, n_kv = p->n_past + p->n_k;
    if (!read_key_mask(request, T_key_mask, p, &exists, &exists_rows)) return false;
    if (!read_key_mask(request, T_key_padding_mask, p, &ignored, &ignored_rows)) return false;
    p->key_mask = exists;
    p->key_mask_B = exists_rows;
    if (!ignored) return true; /* not sent, or no keys at all */
    /* both fit [rows, n_kv], and a row that is there for all samples repeats */
    size_t rows = exists_rows > ignored_rows ? exists_rows : ignored_rows;
    if (p->B == 0) rows = 0;
    enum mem_status why;
    uint8_t *merged = mem_alloc(request->arena, rows * n_kv, &why);
    if (!merged) return out_of_memory(request, why, "key_padding_mask", rows * n_kv);
    for (size_t row = 0; row < rows; row++)
        for (size_t j = 0; j < n_kv; j++) {
            bool hidden = ignored[(ignored_rows == 1 ? 0 : row) * n_kv + j];
            bool there = !exists || exists[(exists_rows == 1 ? 0 : row) * n_kv + j];
            merged[row * n_kv + j] = there && !hidden;
        }
    p->key_mask = merged;
    p->key_mask_B = rows;
    return true;
}

/* ---- key_lengths ---- */

static bool check_length(struct request *request, const struct tensor *t, size_t i, size_t n_kv) {
    double length = ((const double *)t->data)[i];
    if (length == floor(length) && length >= 0 && length <= (double)n_kv) return true;
    char pointer[PROBLEM_POINTER_MAX], text[NUMBER_ROOM], want[48];
    tensor_pointer(pointer, t, "key_lengths", i);
    snprintf(want, sizeof want, "an integer from 0 to %zu", n_kv);
    problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer,
                "key_lengths counts the keys that exist, past and new: %s must be %s, but is %s.", pointer, want,
                number_text(text, length));
    problem_expected_text(request->problem, want);
    problem_actual(request->problem, "%s", text);
    return false;
}

static bool build_key_lengths(struct request *request, struct job *job) {
    struct tensor *t = request_tensor(request, T_key_lengths);
    struct mha_problem *p = &job->problem;
    if (!t) return true;
    if (t->type == TENSOR_BOOL)
        return problem_set(
            request->problem, PROBLEM_WRONG_TYPE, "/key_lengths",
            "key_lengths holds integers, how many keys each sample has; true and false belong in key_mask.");
    if (t->rank > 1 || (t->rank == 1 && t->dim[0] != p->B)) {
        char text[200], want[32];
        snprintf(want, sizeof want, "[%zu]", p->B);
        snprintf(text, sizeof text, "it must be one integer, or %s, one for each of the %zu samples.", want, p->B);
        return shape_problem(request, t->rank > 1 ? PROBLEM_RANK : PROBLEM_SHAPE_MISMATCH, "key_lengths", t, want,
                             text);
    }
    if (!as_doubles(request, t, "key_lengths", false)) return false;
    size_t bytes = 0;
    enum mem_status why = MEM_TOO_LARGE;
    size_t *lengths = mem_mul(p->B, sizeof *lengths, &bytes) ? mem_alloc(request->arena, bytes, &why) : NULL;
    if (!lengths) return out_of_memory(request, why, "key_lengths", bytes);
    for (size_t i = 0; i < t->count; i++)
        if (!check_length(request, t, i, p->n_past + p->n_k)) return false;
    for (size_t b = 0; b < p->B; b++) lengths[b] = (size_t)((const double *)t->data)[t->rank ? b : 0];
    p->key_lengths = lengths;
    return true;
}

bool masks_build(struct request *request, struct job *job) {
    return build_attn_mask(request, job) && build_key_mask(request, job) && build_key_lengths(request, job);
}

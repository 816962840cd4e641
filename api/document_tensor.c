/* SPDX-License-Identifier: Apache-2.0
 *
 * api/document_tensor.c - the members of a document that are tensors: nested arrays, {"shape", "data"}, {"shape", "dtype", "base64"},
 * null, and key_lengths as one number.
 *
 * Model. The automaton (document.c) finds where values begin and end and calls here: with the bytes of numbers, which the tensor
 * reader takes, with the characters of base64, with the names of an object's members, and when a member or the tensor is
 * complete. Here it is decided whether what came is a tensor, and said what is wrong if not.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "document_parts.h"
#include "number.h"

static const char *const member_names[MEMBER_COUNT] = {"shape", "data", "dtype", "base64"};

/* A problem of the tensor being read; `tail` is "", or a member such as "shape". */
static void bad_tensor(struct document *d, enum problem_code code, const char *tail, const size_t *index, size_t rank,
                       const char *text) {
    char pointer[PROBLEM_POINTER_MAX], path[PROBLEM_POINTER_MAX] = "";
    size_t at = problem_pointer_append(pointer, sizeof pointer, 0, d->field->name);
    if (tail[0]) at = problem_pointer_append(pointer, sizeof pointer, at, tail);
    for (size_t i = 0; i < rank; i++) {
        snprintf(path, sizeof path, "%zu", index[i]);
        at = problem_pointer_append(pointer, sizeof pointer, at, path);
    }
    problem_set(d->request->problem, code, pointer, "%s", text);
}

/* The same with a text that begins with the name of the field: "data of W_q" for `what` "data of ". */
static void bad_member(struct document *d, enum problem_code code, const char *tail, const char *what,
                       const char *rule) {
    char text[300];
    snprintf(text, sizeof text, "%s%s %s", what, d->field->name, rule);
    bad_tensor(d, code, tail, NULL, 0, text);
}

/* ---- tensors as base64 ---- */

static bool base64_problem(struct document *d) {
    static const char *const why[] = {
        [BASE64_BAD_CHARACTER] = "a character that base64 does not have",
        [BASE64_BAD_PADDING] = "misplaced padding",
        [BASE64_STRAY_BITS] = "stray bits in its last character",
        [BASE64_TRUNCATED] = "a length that is not a multiple of four",
    };
    char text[200];
    snprintf(
        text, sizeof text,
        "base64 of %s has %s (character %llu). It takes the standard alphabet A-Z a-z 0-9 + / with = padding and no "
        "line breaks.",
        d->field->name, why[d->base64.status], (unsigned long long)d->base64.offset);
    bad_tensor(d, PROBLEM_BAD_BASE64, "base64", NULL, 0, text);
    return false;
}

bool document_base64(struct document *d, const char *text, size_t length) {
    struct mem_grow *grow = &d->tensor->grow;
    size_t written, need = grow->size + base64_decoded_max(length);
    enum mem_status why = MEM_OK;
    if (need > grow->capacity) {
        size_t roomy = need + (need / 8 < 65536 ? need / 8 : 65536);
        why = mem_grow_reserve(grow, roomy);
        if (why != MEM_OK) why = mem_grow_reserve(grow, need);
    }
    if (why != MEM_OK) return document_no_memory(d, why, need, d->field->name);
    enum base64_status status =
        base64_decode_feed(&d->base64, text, length, (unsigned char *)grow->data + grow->size, &written);
    grow->size += written;
    return status == BASE64_OK || base64_problem(d);
}

/* ---- tensors: beginning and end ---- */

static enum tensor_text_reals reals_for(const struct document *d) {
    if (d->field->id == T_key_lengths) return TENSOR_TEXT_F64;
    if (!d->request->dtype_known) return TENSOR_TEXT_F64_TIES;
    return d->request->dtype == MHA_F32 ? TENSOR_TEXT_F32 : TENSOR_TEXT_F64;
}

void document_begin_numbers(struct document *d, const struct piece *piece) {
    d->tensor_start = d->consumed + piece->at;
    if (d->member == MEMBER_SHAPE)
        tensor_text_begin(&d->shape, &d->shape_data, NULL, TENSOR_TEXT_F64, TENSOR_TEXT_NUMBERS);
    else
        tensor_text_begin(&d->text, &d->tensor->grow, &d->tensor->ties, reals_for(d), d->field->accept);
}

/* What a tensor may hold, for messages. */
static const char *elements_text(unsigned accept) {
    if (accept & TENSOR_TEXT_ZERO_ONE) return "true/false or 0/1";
    if (accept == TENSOR_TEXT_BOOLEANS) return "true/false";
    if (accept & TENSOR_TEXT_BOOLEANS) return "numbers (null = -infinity) or true/false";
    return "numbers";
}

static const char *element_found(const struct document *d, const struct piece *piece, uint64_t offset) {
    switch (document_byte_at(d, piece, offset)) {
    case '"':
        return "a string";
    case '{':
        return "an object";
    case 'n':
        return "null";
    case 't':
        return "true";
    case 'f':
        return "false";
    default:
        return "a number";
    }
}

/* Why the text at `offset` is not JSON, in words. `place`: the element that would come there. */
static void syntax_text(char text[600], const struct document *d, const struct piece *piece, uint64_t offset,
                        const char *place, enum tensor_text_expect expect) {
    char found[48], token[DOCUMENT_TOKEN_MAX];
    document_token_at(token, d, piece, offset);
    document_found(found, d, piece, offset);
    bool number = (token[0] >= '0' && token[0] <= '9') || token[0] == '-' || token[0] == '+' || token[0] == '.';
    if (expect == TENSOR_TEXT_EXPECT_SEPARATOR)
        snprintf(text, 600, "The body is not JSON: before %s expected ',' or ']', %s", place, found);
    else if (number)
        snprintf(text, 600,
                 "The body is not JSON: %s is %s, and JSON has no such number (digits on both sides of a point, no "
                 "leading zeros, no plus sign)",
                 place, token);
    else if (token[0])
        snprintf(
            text, 600,
            "The body is not JSON: %s is %s, which is not a value; JSON writes true, false and null, in lower case",
            place, token);
    else
        snprintf(text, 600, "The body is not JSON: at %s expected %s, %s", place,
                 expect == TENSOR_TEXT_EXPECT_VALUE ? "another element after the comma" : "an element or ']'", found);
}

/* "/W_q/data/0/1", where the tensor reader stopped. */
static void place_of(char place[PROBLEM_POINTER_MAX], const struct document *d, const struct tensor_text *t,
                     const char *tail) {
    problem_pointer_index(place, d->field->name, t->index, 0);
    size_t at = strlen(place);
    if (tail[0]) at = problem_pointer_append(place, PROBLEM_POINTER_MAX, at, tail);
    for (size_t i = 0; i < t->index_length; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", t->index[i]);
        at = problem_pointer_append(place, PROBLEM_POINTER_MAX, at, number);
    }
}

/* What is wrong with the text itself: that has a position in the body. */
static void text_problem(struct document *d, const struct piece *piece, enum tensor_text_status status,
                         const struct tensor_text *t, const char *place) {
    const char *name = d->field->name;
    uint64_t offset = d->tensor_start + t->offset;
    char text[600], pointer[PROBLEM_POINTER_MAX];
    switch (status) {
    case TENSOR_TEXT_SYNTAX:
        syntax_text(text, d, piece, offset, place, t->expect);
        document_bad_json_at(d, piece, offset, PROBLEM_JSON_SYNTAX, text);
        break;
    case TENSOR_TEXT_NON_FINITE:
        snprintf(text, sizeof text,
                 "%s is NaN, an infinity, or too large for a float64: JSON has no such numbers, and inputs must be "
                 "finite.%s",
                 place, d->field->id == T_attn_mask ? " In attn_mask, null stands for -infinity." : "");
        text[strlen(text) - 1] = 0;
        document_bad_json_at(d, piece, offset, PROBLEM_JSON_NON_FINITE, text);
        document_point_to(d, place);
        break;
    case TENSOR_TEXT_NUMBER_TOO_LONG:
        snprintf(text, sizeof text, "%s has more than %d characters", place, TENSOR_TEXT_NUMBER_MAX);
        document_bad_json_at(d, piece, offset, PROBLEM_NUMBER_TOO_LONG, text);
        document_point_to(d, place);
        break;
    default: /* TENSOR_TEXT_TOO_DEEP */
        snprintf(text, sizeof text, "%s is nested more than %d deep; no tensor has so many dimensions", name,
                 TENSOR_TEXT_RANK_MAX);
        document_bad_json_at(d, piece, offset, PROBLEM_JSON_TOO_DEEP, text);
        document_point_to(d, problem_pointer_index(pointer, name, NULL, 0));
        break;
    }
}

static void ragged_problem(struct document *d, const struct tensor_text *t, const char *place, const char *tail) {
    const char *name = d->field->name;
    char text[600];
    if (t->expected == t->actual)
        snprintf(text, sizeof text, "%s mixes numbers and arrays at %s; all elements must be nested equally deep.",
                 name, place);
    else
        snprintf(text, sizeof text,
                 "%s is ragged: %s has %zu elements, the rows before it %zu; all must have the same length.", name,
                 place, t->actual, t->expected);
    bad_tensor(d, PROBLEM_RAGGED, tail, t->index, t->index_length, text);
    if (t->expected != t->actual) {
        problem_expected(d->request->problem, "%zu", t->expected);
        problem_actual(d->request->problem, "%zu", t->actual);
    }
}

/* What is wrong with an element, or with how elements lie. */
static void element_problem(struct document *d, const struct piece *piece, enum tensor_text_status status,
                            const struct tensor_text *t, const char *place, const char *tail) {
    bool in_shape = d->member == MEMBER_SHAPE;
    const char *name = d->field->name;
    uint64_t offset = d->tensor_start + t->offset;
    char text[600], token[DOCUMENT_TOKEN_MAX];
    switch (status) {
    case TENSOR_TEXT_OUT_OF_RANGE:
        snprintf(text, sizeof text, "%s is too large for float32. Use \"dtype\": \"float64\", or %s.", place,
                 d->field->id == T_attn_mask ? "write null, which hides the key" : "scale the numbers");
        bad_tensor(d, PROBLEM_NON_FINITE_INPUT, tail, t->index, t->index_length, text);
        break;
    case TENSOR_TEXT_MIXED:
        snprintf(text, sizeof text, "%s mixes booleans with numbers or null (at %s); use one kind.", name, place);
        bad_tensor(d, PROBLEM_WRONG_TYPE, tail, t->index, t->index_length, text);
        break;
    case TENSOR_TEXT_NOT_ZERO_ONE:
        document_token_at(token, d, piece, offset);
        snprintf(text, sizeof text, "%s holds true/false or 0/1, but %s is %s.", name, place, token);
        bad_tensor(d, PROBLEM_OUT_OF_RANGE, tail, t->index, t->index_length, text);
        break;
    default: /* TENSOR_TEXT_WRONG_TYPE */
        snprintf(text, sizeof text, "%s%s must hold %s, but %s is %s.%s", in_shape ? "The shape of " : "", name,
                 in_shape ? "integers from 0 to 2^53" : elements_text(d->field->accept), place,
                 element_found(d, piece, offset),
                 d->field->id == T_key_padding_mask
                     ? " true = ignore this key; a mask in which 1 means that the key exists is key_mask."
                     : "");
        bad_tensor(d, PROBLEM_WRONG_TYPE, tail, t->index, t->index_length, text);
        break;
    }
}

/* Says what the tensor reader found. */
static void numbers_problem(struct document *d, const struct piece *piece, enum tensor_text_status status) {
    bool in_shape = d->member == MEMBER_SHAPE;
    const struct tensor_text *t = in_shape ? &d->shape : &d->text;
    const char *tail = d->member >= 0 ? member_names[d->member] : "";
    char place[PROBLEM_POINTER_MAX];
    place_of(place, d, t, tail);
    switch (status) {
    case TENSOR_TEXT_SYNTAX:
    case TENSOR_TEXT_NON_FINITE:
    case TENSOR_TEXT_NUMBER_TOO_LONG:
    case TENSOR_TEXT_TOO_DEEP:
        text_problem(d, piece, status, t, place);
        break;
    case TENSOR_TEXT_RAGGED:
        ragged_problem(d, t, place, tail);
        break;
    case TENSOR_TEXT_MEMORY:
        document_no_memory(d, t->memory, (in_shape ? &d->shape_data : &d->tensor->grow)->size, d->field->name);
        break;
    default:
        element_problem(d, piece, status, t, place, tail);
        break;
    }
}

/* Notes with which the reader can round once later outlive the next tensor only if there are any. */
static bool keep_ties(struct document *d, struct tensor *t) {
    if (!d->text.ties || d->text.ties->size == 0) return true;
    enum mem_status why;
    t->text = mem_alloc(d->request->arena, sizeof *t->text, &why);
    if (!t->text) return document_no_memory(d, why, sizeof *t->text, d->field->name);
    memcpy(t->text, &d->text, offsetof(struct tensor_text, carry));
    return true;
}

/* The numbers of a tensor are complete. */
static bool numbers_done(struct document *d) {
    struct tensor *t = d->tensor;
    const struct tensor_text *text = &d->text;
    static const enum tensor_type types[] = {[TENSOR_TEXT_STORED_NONE] = TENSOR_F64,
                                             [TENSOR_TEXT_STORED_F64] = TENSOR_F64,
                                             [TENSOR_TEXT_STORED_F32] = TENSOR_F32,
                                             [TENSOR_TEXT_STORED_U8] = TENSOR_BOOL};
    t->from_text = true;
    t->type = types[text->stored];
    t->seen = text->seen;
    t->rank = text->rank;
    memcpy(t->dim, text->dim, sizeof t->dim);
    t->count = text->count;
    mem_grow_trim(&t->grow);
    t->data = t->grow.data;
    return keep_ties(d, t);
}

bool document_feed_numbers(struct document *d, const struct piece *piece, size_t *used) {
    struct tensor_text *text = d->member == MEMBER_SHAPE ? &d->shape : &d->text;
    d->carry_start = d->consumed + piece->at - text->carried;
    enum tensor_text_status status = tensor_text_feed(text, piece->bytes + piece->at, piece->size - piece->at, used);
    if (d->member == MEMBER_SHAPE && text->count > 64) {
        bad_member(d, PROBLEM_RANK, "shape", "The shape of ", "has more than 8 dimensions.");
    } else if (status == TENSOR_TEXT_DONE) {
        return true;
    } else if (status != TENSOR_TEXT_MORE) {
        numbers_problem(d, piece, status);
    }
    if (document_failed(d)) *used = 0;
    return false;
}

/* ---- {"shape": ..., "data": ...} and {"shape": ..., "dtype": ..., "base64": ...} ---- */

static bool member_missing(struct document *d, const char *name) {
    char text[200];
    snprintf(text, sizeof text,
             "%s is an object without \"%s\"; it takes {\"shape\",\"data\"} or {\"shape\",\"dtype\",\"base64\"}.",
             d->field->name, name);
    bad_tensor(d, PROBLEM_MISSING_FIELD, name, NULL, 0, text);
    return false;
}

#define DIM_MAX 9007199254740992.0 /* 2^53: a JSON number beyond may not be the integer that was meant */

static bool bad_dim(struct document *d, size_t axis, double value) {
    char text[200], number[NUMBER_ROOM];
    number[number_write_f64(number, value)] = 0;
    snprintf(text, sizeof text, "The shape of %s must hold integers from 0 to 2^53, but /%s/shape/%zu is %s.",
             d->field->name, d->field->name, axis, number);
    bad_tensor(d, PROBLEM_OUT_OF_RANGE, "shape", &axis, 1, text);
    problem_expected_text(d->request->problem, "an integer from 0 to 2^53");
    problem_actual(d->request->problem, "%s", number);
    return false;
}

/* The shape into t->dim, its product into *count. */
static bool take_shape(struct document *d, struct tensor *t, size_t *count) {
    const double *dims = (const double *)(const void *)d->shape_data.data;
    char text[200];
    if (d->shape.rank != 1 || d->shape.count > TENSOR_RANK_MAX) {
        bad_member(d, PROBLEM_RANK, "shape", "The shape of ", "must be one array of at most 8 integers.");
        return false;
    }
    t->rank = d->shape.count;
    *count = 1;
    bool fits = true;
    for (size_t i = 0; i < t->rank; i++) {
        if (!(dims[i] >= 0 && dims[i] == floor(dims[i]) && dims[i] <= DIM_MAX)) return bad_dim(d, i, dims[i]);
        t->dim[i] = (size_t)dims[i];
        fits = fits && (t->dim[i] == 0 || mem_mul(*count, t->dim[i], count));
    }
    for (size_t i = 0; i < t->rank; i++)
        if (t->dim[i] == 0) *count = 0;
    if (fits) return true;
    snprintf(text, sizeof text, "shape of %s means more numbers than can be counted.", d->field->name);
    bad_tensor(d, PROBLEM_OUT_OF_RANGE, "shape", NULL, 0, text);
    return false;
}

static bool count_differs(struct document *d, const char *member, size_t expected, size_t actual, const char *unit) {
    char text[300], shape[PROBLEM_SHAPE_MAX];
    problem_shape(shape, d->tensor->dim, d->tensor->rank);
    snprintf(text, sizeof text, "shape %s of %s means %zu %s, but %s holds %zu.", shape, d->field->name, expected, unit,
             member, actual);
    bad_tensor(d, PROBLEM_SHAPE_MISMATCH, member, NULL, 0, text);
    problem_expected(d->request->problem, "%zu", expected);
    problem_actual(d->request->problem, "%zu", actual);
    return false;
}

static bool flat_done(struct document *d, size_t count) {
    if (d->members & 1u << MEMBER_DTYPE) {
        bad_member(d, PROBLEM_CONFLICT, "dtype", "dtype of ",
                   "belongs to base64: the numbers in data are read straight to the dtype of the request.");
        return false;
    }
    if (d->flat != count) return count_differs(d, "data", count, d->flat, "numbers");
    return true;
}

static bool base64_done(struct document *d, size_t count) {
    struct tensor *t = d->tensor;
    bool bits = d->field->accept & TENSOR_TEXT_BOOLEANS;
    size_t bytes;
    if (!(d->members & 1u << MEMBER_DTYPE)) return member_missing(d, "dtype");
    if (base64_decode_end(&d->base64) != BASE64_OK) return base64_problem(d);
    if (d->member_type == TENSOR_BOOL && !bits) {
        bad_member(d, PROBLEM_WRONG_TYPE, "dtype", "dtype of ",
                   "cannot be bool, which is for masks: it holds numbers.");
        return false;
    }
    if (!mem_mul(count, tensor_type_size(d->member_type), &bytes)) bytes = SIZE_MAX;
    if (bytes != t->grow.size) return count_differs(d, "base64", bytes, t->grow.size, "bytes");
    t->type = d->member_type;
    t->count = count;
    t->from_text = false;
    t->seen = t->type == TENSOR_BOOL ? TENSOR_TEXT_BOOLEANS : TENSOR_TEXT_NUMBERS;
    mem_grow_trim(&t->grow);
    t->data = t->grow.data;
    return true;
}

/* At the '}' of a tensor's object. */
static bool tensor_object_done(struct document *d) {
    bool data = d->members & 1u << MEMBER_DATA, base64 = d->members & 1u << MEMBER_BASE64;
    size_t count;
    if (data && base64) {
        bad_member(d, PROBLEM_CONFLICT, "base64", "data and base64 of ",
                   "are two ways to send the same numbers; send one.");
        return false;
    }
    if (!(d->members & 1u << MEMBER_SHAPE)) return member_missing(d, "shape");
    if (!data && !base64) return member_missing(d, "data");
    if (!take_shape(d, d->tensor, &count)) return false;
    if (!(data ? flat_done(d, count) : base64_done(d, count))) return false;
    if (d->tensor->text) { /* paths of elements follow the shape that was declared */
        d->tensor->text->rank = d->tensor->rank;
        memcpy(d->tensor->text->dim, d->tensor->dim, sizeof d->tensor->dim);
    }
    d->tensor->given = true;
    return true;
}

bool document_member_key(struct document *d) {
    char text[300];
    d->member = MEMBER_NONE;
    for (int i = 0; i < MEMBER_COUNT; i++)
        if (strcmp(d->token, member_names[i]) == 0) d->member = i;
    if (d->member == MEMBER_NONE) {
        const char *meant = word_suggest(d->token, member_names, MEMBER_COUNT);
        snprintf(text, sizeof text,
                 "%s, a tensor, has no member \"%.80s\": it takes {\"shape\",\"data\"} or "
                 "{\"shape\",\"dtype\",\"base64\"}.%s%s%s",
                 d->field->name, d->token, meant ? " Did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
        bad_tensor(d, PROBLEM_UNKNOWN_FIELD, d->token, NULL, 0, text);
        return false;
    }
    if (d->members & 1u << d->member) {
        snprintf(text, sizeof text, "%s has the member \"%.60s\" twice.", d->field->name, d->token);
        bad_tensor(d, PROBLEM_DUPLICATE_FIELD, d->token, NULL, 0, text);
        return false;
    }
    d->members |= 1u << d->member;
    return true;
}

/* A member of a tensor's object is complete. */
bool document_member_done(struct document *d, enum kind kind) {
    char text[200];
    if (d->member == MEMBER_DTYPE && kind == KIND_STRING) {
        d->member_type = tensor_type_find(d->token);
        if (d->member_type != TENSOR_TYPE_COUNT) return true;
        snprintf(text, sizeof text,
                 "dtype of %s must be float64, float32, float16, bfloat16 or bool, but is \"%.60s\".", d->field->name,
                 d->token);
        bad_tensor(d, PROBLEM_OUT_OF_RANGE, "dtype", NULL, 0, text);
        return false;
    }
    if (d->member == MEMBER_DATA && kind == KIND_ARRAY) {
        if (!numbers_done(d)) return false;
        d->flat = d->tensor->count;
        if (d->tensor->rank == 1) return true;
        bad_member(d, PROBLEM_RANK, "data", "data of ",
                   "must be one flat array, row after row; to send nested arrays, leave {\"shape\",\"data\"} out.");
        return false;
    }
    bool fits =
        (d->member == MEMBER_SHAPE && kind == KIND_ARRAY) || (d->member == MEMBER_BASE64 && kind == KIND_STRING);
    if (fits) return true;
    snprintf(text, sizeof text, "\"%s\" of %s must be %s.", member_names[d->member], d->field->name,
             d->member == MEMBER_SHAPE || d->member == MEMBER_DATA ? "an array" : "a string");
    bad_tensor(d, PROBLEM_WRONG_TYPE, member_names[d->member], NULL, 0, text);
    return false;
}

/* A tensor field that is a scalar: null, key_lengths as one number, or a mistake. */
static bool scalar_tensor(struct document *d, enum kind kind) {
    struct tensor *t = d->tensor;
    double value;
    size_t used;
    char text[300];
    if (kind == KIND_NULL) {
        t->null = true;
        return true;
    }
    if (kind == KIND_NUMBER && d->field->id == T_key_lengths) {
        enum mem_status why = mem_grow_reserve(&t->grow, sizeof value);
        if (why != MEM_OK) return document_no_memory(d, why, sizeof value, d->field->name);
        number_read_f64(d->token, d->length + 1, &value, &used); /* checked before */
        memcpy(t->grow.data, &value, sizeof value);
        t->grow.size = sizeof value;
        t->data = t->grow.data;
        t->given = t->from_text = true;
        t->type = TENSOR_F64;
        t->seen = TENSOR_TEXT_NUMBERS;
        t->count = 1;
        return true;
    }
    static const char *const kinds[] = {[KIND_STRING] = "a string",
                                        [KIND_NUMBER] = "a number",
                                        [KIND_TRUE] = "true",
                                        [KIND_FALSE] = "false",
                                        [KIND_NULL] = "null"};
    snprintf(text, sizeof text, "%s must be a tensor, %s, but is %s.%s", d->field->name, d->field->form, kinds[kind],
             kind == KIND_STRING ? " To send base64 write {\"shape\":[...],\"dtype\":\"float32\",\"base64\":\"...\"}."
                                 : "");
    bad_tensor(d, PROBLEM_WRONG_TYPE, "", NULL, 0, text);
    return false;
}

/* The value of a tensor field is complete. */
bool document_tensor_done(struct document *d, enum kind kind) {
    bool ok = kind == KIND_ARRAY    ? numbers_done(d)
              : kind == KIND_OBJECT ? tensor_object_done(d)
                                    : scalar_tensor(d, kind);
    if (ok && kind == KIND_ARRAY) d->tensor->given = true;
    d->tensor = NULL;
    return ok;
}

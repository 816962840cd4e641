/* SPDX-License-Identifier: Apache-2.0
 *
 * api/options.c - reads struct options from the request's cJSON object.
 *
 * Model. One small reader per kind of value (integer, number, truth, word, list), each with the same message shape: what the
 * field is, what it should be, what it was. null means "not given" for every option but num_heads, so that a client may send
 * all its fields always.
 */
#include "options.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "number.h"
#include "request.h"

const char *const output_names[OUT_COUNT] = {
    [OUT_OUTPUT] = "output", [OUT_ATTENTION] = "attention", [OUT_HEADS] = "heads",   [OUT_PROJECTIONS] = "projections",
    [OUT_SCORES] = "scores", [OUT_LOGSUMEXP] = "logsumexp", [OUT_CONCAT] = "concat", [OUT_PRESENT] = "present",
};

static const char *const layout_words[] = {"in_out", "out_in", "head_in_out", "in_head_out", NULL};
static const char *const alignment_words[] = {"top_left", "bottom_right", NULL};
static const char *const mask_words[] = {"additive", "bool", NULL};
static const char *const dtype_words[] = {"float64", "float32", NULL};
static const char *const reduce_words[] = {"none", "mean", NULL};
static const char *const format_words[] = {"nested", "flat", "base64", NULL};

const char *layout_name(enum mha_layout layout) { return layout_words[layout]; }

/* ---- saying what is wrong ---- */

#define VALUE_MAX   96
#define INTEGER_MAX 2147483647.0

/* A value as short JSON text: 1.5, "eight", null, [...], {...}. */
static const char *value_text(char out[VALUE_MAX], const cJSON *value) {
    char number[NUMBER_ROOM];
    if (cJSON_IsNumber(value) && isfinite(value->valuedouble)) {
        number[number_write_f64(number, value->valuedouble)] = 0;
        snprintf(out, VALUE_MAX, "%s", number);
    } else if (cJSON_IsString(value)) {
        snprintf(out, VALUE_MAX, "\"%.60s\"", value->valuestring);
    } else {
        snprintf(out, VALUE_MAX, "%s",
                 cJSON_IsNull(value)    ? "null"
                 : cJSON_IsTrue(value)  ? "true"
                 : cJSON_IsFalse(value) ? "false"
                 : cJSON_IsArray(value) ? "an array"
                                        : "an object");
    }
    return out;
}

/* The member `actual`: the value itself where it is short, else what it is. */
static void actual_value(struct request *request, const cJSON *value, const char *text) {
    if (cJSON_IsString(value))
        problem_actual_text(request->problem, value->valuestring);
    else if (cJSON_IsArray(value) || cJSON_IsObject(value))
        problem_actual_text(request->problem, text);
    else
        problem_actual(request->problem, "%s", text);
}

/* `name` is the field, `pointer` the place ("/return/1"). */
static bool wrong(struct request *request, enum problem_code code, const char *pointer, const char *name,
                  const char *form, const cJSON *value) {
    char text[VALUE_MAX];
    value_text(text, value);
    bool above = code == PROBLEM_OUT_OF_RANGE && cJSON_IsNumber(value) && value->valuedouble > INTEGER_MAX;
    problem_set(request->problem, code, pointer, "%s must be %s, but %s is %s.%s", name, form, pointer, text,
                above ? " The largest integer allowed is 2147483647." : "");
    problem_expected_text(request->problem, form);
    actual_value(request, value, text);
    return false;
}

static const cJSON *option(const struct request *request, enum option_id id) {
    const struct field *field = field_of_option(id);
    if (!(request->seen >> (field - fields) & 1)) return NULL;
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(request->rest, field->name);
    return value && !cJSON_IsNull(value) ? value : NULL;
}

static bool wrong_option(struct request *request, enum problem_code code, enum option_id id, const cJSON *value) {
    const struct field *field = field_of_option(id);
    char pointer[PROBLEM_POINTER_MAX];
    return wrong(request, code, problem_pointer_index(pointer, field->name, NULL, 0), field->name, field->form, value);
}

/* ---- one value of each kind ---- */

/* A number without a fraction in least..2^31-1. */
static enum problem_code integer_of(const cJSON *value, double least, size_t *out) {
    if (!cJSON_IsNumber(value)) return PROBLEM_WRONG_TYPE;
    double number = value->valuedouble;
    if (!(number == floor(number))) return PROBLEM_WRONG_TYPE;
    if (!(number >= least && number <= INTEGER_MAX)) return PROBLEM_OUT_OF_RANGE;
    *out = (size_t)number;
    return PROBLEM_NONE;
}

static bool read_integer(struct request *request, enum option_id id, size_t *out, bool *has) {
    const cJSON *value = option(request, id);
    if (!value) return true;
    enum problem_code code = integer_of(value, 1, out);
    *has = true;
    return code == PROBLEM_NONE || wrong_option(request, code, id, value);
}

static bool read_number(struct request *request, enum option_id id, double least, double *out, bool *has) {
    const cJSON *value = option(request, id);
    if (!value) return true;
    if (!cJSON_IsNumber(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, id, value);
    if (!isfinite(value->valuedouble) || value->valuedouble < least)
        return wrong_option(request, PROBLEM_OUT_OF_RANGE, id, value);
    *out = value->valuedouble;
    if (has) *has = true;
    return true;
}

static bool read_truth(struct request *request, enum option_id id, bool *out) {
    const cJSON *value = option(request, id);
    if (!value) return true;
    if (!cJSON_IsBool(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, id, value);
    *out = cJSON_IsTrue(value);
    return true;
}

/* The place of the word among `words` (NULL-terminated); *out stays when the option is absent. */
static bool read_word(struct request *request, enum option_id id, const char *const *words, int *out, bool *has) {
    const cJSON *value = option(request, id);
    if (!value) return true;
    if (!cJSON_IsString(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, id, value);
    size_t count = 0;
    for (; words[count]; count++)
        if (strcmp(words[count], value->valuestring) == 0) {
            *out = (int)count;
            if (has) *has = true;
            return true;
        }
    const struct field *field = field_of_option(id);
    char pointer[PROBLEM_POINTER_MAX];
    problem_pointer_index(pointer, field->name, NULL, 0);
    const char *meant = word_suggest(value->valuestring, words, count);
    problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer, "%s must be %s, but is \"%.60s\".%s%s%s", field->name,
                field->form, value->valuestring, meant ? " Did you mean \"" : "", meant ? meant : "",
                meant ? "\"?" : "");
    problem_expected_text(request->problem, field->form);
    problem_actual_text(request->problem, value->valuestring);
    return false;
}

/* ---- the options with a shape of their own ---- */

static bool read_window_side(struct request *request, const cJSON *side, size_t *out) {
    if (cJSON_IsNull(side)) return true;
    char pointer[PROBLEM_POINTER_MAX];
    size_t at = problem_pointer_append(pointer, sizeof pointer, 0, "window");
    problem_pointer_append(pointer, sizeof pointer, at, side->string);
    enum problem_code code = integer_of(side, 0, out);
    return code == PROBLEM_NONE ||
           wrong(request, code, pointer, "A side of window", "an integer >= 0 or null (no limit)", side);
}

static bool read_window(struct request *request, struct options *o) {
    const cJSON *value = option(request, O_window), *side;
    o->window_left = o->window_right = MHA_WINDOW_OPEN;
    if (!value) return true;
    if (!cJSON_IsObject(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, O_window, value);
    static const char *const sides[] = {"left", "right"};
    unsigned seen = 0;
    cJSON_ArrayForEach(side, value) {
        char pointer[PROBLEM_POINTER_MAX];
        size_t at = problem_pointer_append(pointer, sizeof pointer, 0, "window");
        problem_pointer_append(pointer, sizeof pointer, at, side->string);
        unsigned which = strcmp(side->string, "left") == 0 ? 1 : strcmp(side->string, "right") == 0 ? 2 : 0;
        if (!which) {
            const char *meant = word_suggest(side->string, sides, 2);
            return problem_set(request->problem, PROBLEM_UNKNOWN_FIELD, pointer,
                               "window has no member \"%.60s\", only \"left\" and \"right\".%s%s%s", side->string,
                               meant ? " Did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
        }
        if (seen & which)
            return problem_set(request->problem, PROBLEM_DUPLICATE_FIELD, pointer,
                               "window has the member \"%s\" twice.", side->string);
        seen |= which;
        if (!read_window_side(request, side, which == 1 ? &o->window_left : &o->window_right)) return false;
    }
    o->has_window = o->window_left != MHA_WINDOW_OPEN || o->window_right != MHA_WINDOW_OPEN;
    return true;
}

static bool unknown_return(struct request *request, const cJSON *name, size_t place) {
    const char *words[OUT_COUNT + 1];
    char pointer[PROBLEM_POINTER_MAX];
    problem_pointer_index(pointer, "return", &place, 1);
    if (!cJSON_IsString(name)) return wrong(request, PROBLEM_WRONG_TYPE, pointer, "return", "an array of names", name);
    memcpy(words, output_names, sizeof output_names);
    words[OUT_COUNT] = "trace";
    const char *meant = word_suggest(name->valuestring, words, OUT_COUNT + 1);
    return problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer,
                       "return cannot name \"%.60s\".%s%s%s It takes output, attention, heads, projections, scores, "
                       "logsumexp, concat, present, and trace for all but present.",
                       name->valuestring, meant ? " Did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
}

static bool read_return_name(struct request *request, const cJSON *name, size_t place, struct options *o) {
    unsigned all = (1u << OUT_COUNT) - 1;
    for (unsigned i = 0; cJSON_IsString(name) && i < OUT_COUNT; i++)
        if (strcmp(output_names[i], name->valuestring) == 0) {
            o->outputs |= 1u << i;
            return true;
        }
    if (!cJSON_IsString(name) || strcmp(name->valuestring, "trace") != 0) return unknown_return(request, name, place);
    o->trace = true;
    o->outputs |= all & ~(1u << OUT_PRESENT);
    return true;
}

static bool read_return(struct request *request, struct options *o) {
    const cJSON *value = option(request, O_return), *name;
    if (!value) {
        o->outputs = 1u << OUT_OUTPUT;
        return true;
    }
    if (cJSON_IsString(value))
        return problem_set(request->problem, PROBLEM_WRONG_TYPE, "/return",
                           "return must be an array of names; write [\"%.60s\"] instead of \"%.60s\".",
                           value->valuestring, value->valuestring);
    if (!cJSON_IsArray(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, O_return, value);
    size_t place = 0;
    cJSON_ArrayForEach(name, value) if (!read_return_name(request, name, place++, o)) return false;
    if (!o->outputs)
        return problem_set(request->problem, PROBLEM_OUT_OF_RANGE, "/return",
                           "return is an empty array, so nothing would come back; leave it out to get [\"output\"].");
    return true;
}

/* Their range needs num_heads, perhaps a layer's: checked in request.c. */
static bool read_attention_heads(struct request *request, struct options *o) {
    const cJSON *value = option(request, O_attention_heads), *head;
    if (!value) return true;
    if (!cJSON_IsArray(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, O_attention_heads, value);
    size_t count = (size_t)cJSON_GetArraySize(value), place = 0;
    enum mem_status why;
    o->heads = mem_alloc(request->arena, count * sizeof *o->heads, &why);
    if (!o->heads)
        return problem_memory(request->problem, why, request->budget, "/attention_heads", count * sizeof *o->heads,
                              "attention_heads");
    cJSON_ArrayForEach(head, value) {
        char pointer[PROBLEM_POINTER_MAX];
        enum problem_code code = integer_of(head, 0, &o->heads[place]);
        problem_pointer_index(pointer, "attention_heads", &place, 1);
        if (code != PROBLEM_NONE)
            return wrong(request, code, pointer, "attention_heads", "an array of head numbers, integers >= 0", head);
        place++;
    }
    o->n_heads = count;
    if (count == 0)
        return problem_set(request->problem, PROBLEM_OUT_OF_RANGE, "/attention_heads",
                           "attention_heads is an empty array; leave it out to get all heads.");
    return true;
}

static bool read_layer(struct request *request, struct options *o) {
    const cJSON *value = option(request, O_layer);
    if (!value) return true;
    if (!cJSON_IsString(value)) return wrong_option(request, PROBLEM_WRONG_TYPE, O_layer, value);
    o->layer = value->valuestring;
    return true;
}

/* num_heads null is a mistake, not an absence: it is what a client without the number sends. */
static bool refuse_null_heads(struct request *request) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(request->rest, "num_heads");
    if (!cJSON_IsNull(value)) return true;
    return wrong_option(request, PROBLEM_WRONG_TYPE, O_num_heads, value);
}

/* Options that would do nothing are mistakes, too. */
static bool refuse_useless(struct request *request, const struct options *o) {
    unsigned maps = 1u << OUT_ATTENTION | 1u << OUT_SCORES;
    if (o->heads && !(o->outputs & maps))
        return problem_set(request->problem, PROBLEM_CONFLICT, "/attention_heads",
                           "attention_heads chooses heads of attention and scores, but return asks for neither; add "
                           "\"attention\" or \"scores\" to return, or leave attention_heads out.");
    if (o->attention_mean && !(o->outputs & 1u << OUT_ATTENTION))
        return problem_set(
            request->problem, PROBLEM_CONFLICT, "/attention_reduce",
            "attention_reduce \"mean\" averages attention, but return does not ask for it; add \"attention\" "
            "to return, or leave attention_reduce out.");
    if (o->mask_reading != MASK_BY_LOOK && !request_tensor(request, T_attn_mask))
        return problem_set(request->problem, PROBLEM_CONFLICT, "/attn_mask_kind",
                           "attn_mask_kind says how to read attn_mask, but there is no attn_mask.");
    return true;
}

bool options_read(struct request *request, struct options *o) {
    memset(o, 0, sizeof *o);
    int layout = 0, alignment = 0, mask = -1, dtype = 0, reduce = 0, format = 0;
    bool ok = refuse_null_heads(request) && read_integer(request, O_num_heads, &o->num_heads, &o->has_num_heads) &&
              read_integer(request, O_num_kv_heads, &o->num_kv_heads, &o->has_num_kv_heads) &&
              read_word(request, O_weight_layout, layout_words, &layout, &o->has_layout) && read_layer(request, o) &&
              read_number(request, O_scale, -INFINITY, &o->scale, &o->has_scale) &&
              read_number(request, O_softcap, 0, &o->softcap, NULL) && read_truth(request, O_causal, &o->causal) &&
              read_word(request, O_causal_alignment, alignment_words, &alignment, &o->has_causal_alignment) &&
              read_window(request, o) && read_word(request, O_attn_mask_kind, mask_words, &mask, NULL) &&
              read_word(request, O_dtype, dtype_words, &dtype, &o->has_dtype) && read_return(request, o) &&
              read_attention_heads(request, o) && read_word(request, O_attention_reduce, reduce_words, &reduce, NULL) &&
              read_word(request, O_tensor_format, format_words, &format, NULL);
    if (!ok) return false;
    if (!o->has_num_kv_heads) o->num_kv_heads = o->num_heads;
    o->layout = (enum mha_layout)layout;
    o->alignment = (enum mha_alignment)alignment;
    o->mask_reading = (enum mask_reading)(mask + 1);
    o->dtype = dtype ? MHA_F32 : MHA_F64;
    o->attention_mean = reduce == 1;
    o->format = (enum tensor_write_format)format;
    return refuse_useless(request, o);
}

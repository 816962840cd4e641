/* SPDX-License-Identifier: Apache-2.0
 *
 * api/safetensors_body.c - the stages of safetensors_body.h: prefix, header, data.
 */
#include "safetensors_body.h"

#include <stdio.h>
#include <string.h>

#include "document.h"

enum stage { IN_PREFIX, IN_HEADER, IN_DATA, FAILED };

/* What the bytes of a tensor become. */
enum mode { MODE_SKIP, MODE_COPY, MODE_F64, MODE_F32, MODE_INTEGER };

struct sink {
    enum mode mode;
    struct tensor *tensor; /* of a request, NULL otherwise */
    unsigned char *to;     /* where the next element goes */
};

static bool failed(const struct safetensors_body *body) { return body->request->problem->code != PROBLEM_NONE; }

bool safetensors_problem(struct problem *problem, const struct st_error *error, const struct mem_budget *budget) {
    if (error->rule == ST_NO_MEMORY) return problem_memory(problem, MEM_FAILED, budget, "", 0, "The header");
    if (error->rule == ST_FILE_ACCESS)
        return problem_set(problem, PROBLEM_STORAGE, "", "The layer's file cannot be read: %s.", error->text);
    return problem_set(problem, PROBLEM_SAFETENSORS, "", "This is not a valid safetensors body: %s.", error->text);
}

/* ---- which tensor is which field --------------------------------------------------------------------------------- */

static bool integers_allowed(const struct field *field) {
    return field->id == T_key_lengths || (field->accept & TENSOR_TEXT_ZERO_ONE) != 0;
}

/* The element type that a field's tensor gets; what it cannot hold is a problem. */
static bool choose_type(struct request *request, const struct field *field, const struct st_tensor *from,
                        enum tensor_type *type) {
    static const enum tensor_type types[ST_DTYPE_COUNT] = {[ST_F64] = TENSOR_F64,
                                                           [ST_F32] = TENSOR_F32,
                                                           [ST_F16] = TENSOR_F16,
                                                           [ST_BF16] = TENSOR_BF16,
                                                           [ST_BOOL] = TENSOR_BOOL};
    char pointer[PROBLEM_POINTER_MAX];
    bool booleans = (field->accept & TENSOR_TEXT_BOOLEANS) != 0, floats = (field->accept & TENSOR_TEXT_NUMBERS) != 0;
    bool integers = integers_allowed(field);
    *type = types[from->dtype];
    if (from->dtype == ST_BOOL && booleans) return true;
    if (st_dtype_is_float(from->dtype) && (floats || integers)) return true;
    if (st_dtype_is_integer(from->dtype) && integers) {
        *type = TENSOR_F64;
        return true;
    }
    return problem_set(request->problem, PROBLEM_WRONG_TYPE, problem_pointer_index(pointer, field->name, NULL, 0),
                       "Tensor %s has dtype %s, but it takes %s%s%s.", field->name, st_dtype_name(from->dtype),
                       floats ? "F64, F32, F16 or BF16" : "BOOL", floats && booleans ? " (added), or BOOL" : "",
                       integers ? (floats ? ", or integers" : ", or integers 0 and 1") : "");
}

/* The request's tensor for this one of the file: its field, type and shape. NULL with the request's problem set. */
static struct tensor *take_tensor(struct request *request, const struct st_tensor *from, const struct field **found) {
    const struct field *field = request_field(request, from->name, strlen(from->name));
    char pointer[PROBLEM_POINTER_MAX];
    if (!field) return NULL;
    problem_pointer_index(pointer, field->name, NULL, 0);
    if (field->kind != FIELD_TENSOR) {
        problem_set(request->problem, PROBLEM_WRONG_TYPE, pointer,
                    "%s is not a tensor: put it, as JSON, into the object that is the text of __metadata__.mha.",
                    field->name);
        return NULL;
    }
    if (from->rank > TENSOR_RANK_MAX) {
        problem_set(request->problem, PROBLEM_RANK, pointer, "Tensor %s has %zu dimensions; no field has more than %d.",
                    field->name, from->rank, TENSOR_RANK_MAX);
        return NULL;
    }
    struct tensor *tensor = &request->tensor[field->id];
    if (!choose_type(request, field, from, &tensor->type)) return NULL;
    tensor->given = true;
    tensor->rank = from->rank;
    memcpy(tensor->dim, from->dim, from->rank * sizeof *from->dim);
    tensor->count = from->count;
    *found = field;
    return tensor;
}

/* Positions and "the body" of a message about JSON are those of the text in the metadata. Returns false. */
static bool name_metadata(struct problem *problem) {
    char detail[sizeof problem->detail];
    if (problem_status(problem->code) != 400) return false;
    snprintf(detail, sizeof detail, "%s", problem->detail);
    snprintf(problem->detail, sizeof problem->detail, "In the text of __metadata__.mha: %.*s", (int)sizeof detail - 40,
             detail);
    return false;
}

/* The options: the text of __metadata__.mha through the JSON reader, or an empty object. */
static bool read_options(struct request *request, const struct st_header *header) {
    const char *text = st_metadata_get(header, "mha");
    if (!text) return request_options(request, "{}", 2);
    enum mem_status why;
    struct document *document = mem_alloc(request->arena, sizeof *document, &why);
    if (!document) return problem_memory(request->problem, why, request->budget, "", sizeof *document, "The options");
    document_init(document, request);
    document_feed(document, text, strlen(text));
    return document_end(document) || name_metadata(request->problem);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static double integer_at(enum st_dtype dtype, const unsigned char *from, size_t i) {
    union {
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x;
    size_t size = st_dtype_bits(dtype) / 8;
    if (size > 1) memcpy(&x, from + i * size, size);
    switch (dtype) {
    case ST_U8:
        return from[i];
    case ST_I8:
        return (signed char)from[i];
    case ST_U16:
        return x.u16;
    case ST_I16:
        return x.i16;
    case ST_U32:
        return x.u32;
    case ST_I32:
        return x.i32;
    case ST_U64:
        return (double)x.u64; /* beyond 2^53 it is too large for a length whichever way it rounds */
    default:
        return (double)x.i64;
    }
}

/* `count` whole elements to where the sink goes on. */
static void put_elements(struct sink *sink, enum st_dtype dtype, const unsigned char *from, size_t count) {
    size_t size = st_dtype_bits(dtype) / 8;
    switch (sink->mode) {
    case MODE_COPY:
        memcpy(sink->to, from, count * size);
        sink->to += count * size;
        break;
    case MODE_F64:
        st_widen(MHA_F64, sink->to, dtype, from, count);
        sink->to += count * 8;
        break;
    case MODE_F32:
        st_widen(MHA_F32, sink->to, dtype, from, count);
        sink->to += count * 4;
        break;
    case MODE_INTEGER:
        for (size_t i = 0; i < count; i++, sink->to += 8) {
            double value = integer_at(dtype, from, i);
            memcpy(sink->to, &value, 8);
        }
        break;
    default:
        break;
    }
}

/* Looks at them too while they are in the cache; where something is not finite, tensor_convert finds the place. */
static void pour(struct sink *sink, enum st_dtype dtype, const unsigned char *from, size_t count) {
    unsigned char *first = sink->to;
    put_elements(sink, dtype, from, count);
    if (sink->tensor && sink->tensor->finite)
        sink->tensor->finite = tensor_all_finite(sink->tensor->type, first, count);
}

/* ---- the sinks of a request -------------------------------------------------------------------------------------- */

/* Numbers may be widened as they come when the working precision is certain: it was said, or it is the default of a request
 * that brings its own weights. A layer's numbers stay as they are. */
static bool precision_certain(const struct request *request, enum mha_dtype *dtype) {
    bool named = (request->seen & 1ull << (field_of_option(O_layer) - fields)) != 0;
    *dtype = request->dtype_known ? request->dtype : MHA_F64;
    return request->where == IN_MHA && (request->dtype_known || !named);
}

static void choose_mode(const struct request *request, const struct st_tensor *from, struct sink *sink) {
    enum mha_dtype dtype;
    struct tensor *tensor = sink->tensor;
    bool half = from->dtype == ST_F16 || from->dtype == ST_BF16;
    sink->mode = st_dtype_is_integer(from->dtype) ? MODE_INTEGER : MODE_COPY;
    if (!precision_certain(request, &dtype)) return;
    if (dtype == MHA_F64 && (half || from->dtype == ST_F32)) sink->mode = MODE_F64;
    if (dtype == MHA_F32 && half) sink->mode = MODE_F32;
    if (sink->mode == MODE_F64) tensor->type = TENSOR_F64;
    if (sink->mode == MODE_F32) tensor->type = TENSOR_F32;
}

/* Memory for a tensor whose type is final. */
static bool allocate(struct request *request, struct sink *sink, const char *name) {
    struct tensor *tensor = sink->tensor;
    size_t bytes;
    enum mem_status why = MEM_TOO_LARGE;
    char pointer[PROBLEM_POINTER_MAX];
    problem_pointer_index(pointer, name, NULL, 0);
    if (!mem_mul(tensor->count, tensor_type_size(tensor->type), &bytes))
        return problem_memory(request->problem, why, request->budget, pointer, SIZE_MAX, name);
    mem_grow_init(&tensor->grow, request->arena);
    why = mem_grow_whole(&tensor->grow, bytes);
    if (why != MEM_OK) return problem_memory(request->problem, why, request->budget, pointer, bytes, name);
    tensor->data = tensor->grow.data;
    tensor->finite = true;
    sink->to = tensor->data;
    return true;
}

static bool request_sinks(struct safetensors_body *body) {
    struct request *request = body->request;
    const struct st_header *header = body->header;
    const struct field *field;
    if (!read_options(request, header)) return false;
    for (size_t i = 0; i < header->n_tensors; i++) {
        struct sink *sink = &body->sinks[i];
        sink->tensor = take_tensor(request, &header->tensors[i], &field);
        if (!sink->tensor) return false;
        choose_mode(request, &header->tensors[i], sink);
        if (!allocate(request, sink, field->name)) return false;
    }
    return true;
}

bool safetensors_request(const struct st_header *header, const unsigned char *data, struct request *request) {
    const struct field *field;
    if (!read_options(request, header)) return false;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const struct st_tensor *from = &header->tensors[i];
        struct tensor *tensor = take_tensor(request, from, &field);
        if (!tensor) return false;
        tensor->data = (void *)(uintptr_t)(data + from->begin); /* borrowed: never written to */
    }
    return true;
}

/* ---- the sinks of a checkpoint ----------------------------------------------------------------------------------- */

/* A home for each tensor of the layer in its own arena; slices of one tensor share it. */
static bool layer_sinks(struct safetensors_body *body, struct checkpoint_layer *layer) {
    struct problem *problem = body->request->problem;
    struct mem_budget *budget = body->request->budget;
    layer->source.arena = mem_arena_new(budget);
    if (!layer->source.arena) return problem_memory(problem, MEM_FAILED, budget, "", 0, "The layer");
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        const struct st_tensor *from = layer->tensor[i];
        if (!from) continue;
        struct sink *sink = &body->sinks[from - body->header->tensors];
        if (sink->mode == MODE_SKIP) {
            enum mem_status why;
            sink->to = mem_alloc(layer->source.arena, from->end - from->begin, &why);
            if (!sink->to) return problem_memory(problem, why, budget, "", from->end - from->begin, "The layer");
            sink->mode = MODE_COPY;
        }
        layer->source.tensor[i].data = sink->to + layer->offset[i];
    }
    return true;
}

static bool checkpoint_sinks(struct safetensors_body *body) {
    struct st_error error;
    struct problem *problem = body->request->problem;
    const char *config = st_metadata_get(body->header, "mha");
    if (!checkpoint_find(body->header, NULL, config, body->num_heads, &body->found, &error)) {
        if (error.rule == ST_NO_MEMORY) return safetensors_problem(problem, &error, body->request->budget);
        return problem_set(problem, PROBLEM_OUT_OF_RANGE, "", "Not a checkpoint that can be used: %s.", error.text);
    }
    if (body->found.usable == 0)
        return problem_set(problem, PROBLEM_OUT_OF_RANGE, "",
                           "None of the %zu attention layers of this checkpoint can be used; "
                           "%s: %s.",
                           body->found.count, body->found.layers[0].name, body->found.layers[0].refusal);
    for (size_t i = 0; i < body->found.count; i++)
        if (body->found.layers[i].usable && !layer_sinks(body, &body->found.layers[i])) return false;
    return true;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

void safetensors_body_init(struct safetensors_body *body, struct request *request) {
    memset(body, 0, sizeof *body);
    body->request = request;
    body->stage = IN_PREFIX;
    mem_grow_init(&body->text, request->arena);
}

void safetensors_body_checkpoint(struct safetensors_body *body, struct request *request, size_t num_heads) {
    safetensors_body_init(body, request);
    body->checkpoint = true;
    body->num_heads = num_heads;
}

/* The header is parsed at once, on the thread that every client waits for: some 20000 tensors take it 50 ms. */
#define MARKS_MAX 250000

static bool parse_header(struct safetensors_body *body) {
    struct request *request = body->request;
    struct st_error error;
    size_t marks = st_header_marks(body->text.data, body->header_length);
    if (marks > MARKS_MAX)
        return problem_set(
            request->problem, PROBLEM_OUT_OF_RANGE, "",
            "The header of a safetensors body may have some 20000 tensors, and this one has more. A larger "
            "model is loaded from its file, with --checkpoint.");
    size_t need = st_header_need(body->header_length, marks);
    enum mem_status why = mem_would(request->arena, need);
    if (why == MEM_OK && !mem_charge(request->budget, need)) why = MEM_BUSY;
    if (why != MEM_OK) return problem_memory(request->problem, why, request->budget, "", need, "The header");
    body->header_charged = need;
    body->header = st_header_parse(body->text.data, body->header_length, &error);
    if (!body->header) return safetensors_problem(request->problem, &error, request->budget);
    mem_grow_free(&body->text);
    size_t bytes = (body->header->n_tensors + 1) * sizeof *body->sinks;
    body->sinks = mem_alloc(request->arena, bytes, &why);
    if (!body->sinks) return problem_memory(request->problem, why, request->budget, "", bytes, "The header");
    memset(body->sinks, 0, bytes);
    return body->checkpoint ? checkpoint_sinks(body) : request_sinks(body);
}

/* All return how many bytes they took; a problem may have been set. */
static size_t feed_prefix(struct safetensors_body *body, const unsigned char *bytes, size_t size) {
    struct st_error error;
    size_t n = 8 - body->have < size ? 8 - body->have : size;
    memcpy(body->prefix + body->have, bytes, n);
    body->have += n;
    if (body->have < 8) return n;
    if (st_header_length(body->prefix, &body->header_length, &error) != ST_OK) {
        safetensors_problem(body->request->problem, &error, body->request->budget);
        return n;
    }
    body->have = 0;
    body->stage = IN_HEADER;
    return n;
}

static size_t feed_header(struct safetensors_body *body, const unsigned char *bytes, size_t size) {
    size_t left = body->header_length - body->have, n = left < size ? left : size;
    enum mem_status why = mem_grow_reserve(&body->text, body->have + n + 1);
    if (why != MEM_OK) {
        problem_memory(body->request->problem, why, body->request->budget, "", body->header_length, "The header");
        return n;
    }
    if (n > 0) memcpy(body->text.data + body->have, bytes, n);
    body->have += n;
    body->text.size = body->have;
    if (body->have == body->header_length && parse_header(body)) body->stage = IN_DATA;
    return n;
}

/* Bytes of the tensor that the data has reached. Elements of less than a byte or of more than eight do not get here. */
static size_t feed_tensor(struct safetensors_body *body, const unsigned char *bytes, size_t size) {
    const struct st_tensor *tensor = &body->header->tensors[body->next];
    struct sink *sink = &body->sinks[body->next];
    size_t left = tensor->end - body->position, n = left < size ? left : size, used = 0;
    if (sink->mode != MODE_SKIP) {
        size_t element = st_dtype_bits(tensor->dtype) / 8;
        if (body->carried) {
            while (body->carried < element && used < n) body->carry[body->carried++] = bytes[used++];
            if (body->carried == element) {
                pour(sink, tensor->dtype, body->carry, 1);
                body->carried = 0;
            }
        }
        size_t whole = body->carried ? 0 : (n - used) / element;
        pour(sink, tensor->dtype, bytes + used, whole);
        used += whole * element;
        while (used < n) body->carry[body->carried++] = bytes[used++];
    }
    body->position += n;
    return n;
}

static size_t feed_data(struct safetensors_body *body, const unsigned char *bytes, size_t size) {
    const struct st_header *header = body->header;
    while (body->next < header->n_tensors && header->tensors[body->next].end == body->position) body->next++;
    if (body->next < header->n_tensors) return feed_tensor(body, bytes, size);
    struct st_error error;
    st_header_fits(header, body->position + size, &error);
    safetensors_problem(body->request->problem, &error, body->request->budget);
    body->request->problem->position = (long long)body->consumed;
    return size;
}

void safetensors_body_feed(struct safetensors_body *body, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    while (size > 0 && !failed(body)) {
        size_t n = body->stage == IN_PREFIX   ? feed_prefix(body, at, size)
                   : body->stage == IN_HEADER ? feed_header(body, at, size)
                                              : feed_data(body, at, size);
        body->consumed += n;
        at += n;
        size -= n;
        if (body->stage == IN_HEADER && body->header_length == 0 && !failed(body)) feed_header(body, at, 0);
    }
}

bool safetensors_body_end(struct safetensors_body *body) {
    struct st_error error = {0};
    struct problem *problem = body->request->problem;
    if (failed(body)) return false;
    if (body->consumed == 0)
        return problem_set(problem, PROBLEM_JSON_EMPTY, "", "The body is empty; it should be a safetensors file.");
    if (body->stage == IN_PREFIX)
        return problem_set(
            problem, PROBLEM_SAFETENSORS, "",
            "This is not a valid safetensors body: it has %zu bytes, and the length of the header alone takes 8.",
            body->have);
    if (body->stage == IN_HEADER)
        return problem_set(problem, PROBLEM_SAFETENSORS, "",
                           "This is not a valid safetensors body: the header has %zu bytes, but only %zu follow.",
                           body->header_length, body->have);
    if (st_header_fits(body->header, body->position, &error) != ST_OK)
        return safetensors_problem(problem, &error, body->request->budget);
    return true;
}

void safetensors_body_free(struct safetensors_body *body) {
    for (size_t i = 0; i < body->found.count; i++) mem_arena_free(body->found.layers[i].source.arena);
    checkpoint_free(&body->found);
    st_header_free(body->header);
    mem_uncharge(body->request->budget, body->header_charged);
    body->header = NULL;
    body->header_charged = 0;
}

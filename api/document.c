/* SPDX-License-Identifier: Apache-2.0
 *
 * api/document.c - the automaton of api/document.h.
 *
 * Reading order: document_feed loops over `step`, which dispatches on the state to one small function each; such a function
 * returns how many bytes it took (0: it only changed the state, the byte is looked at again) and latches a problem on error.
 * What a completed value means is decided in one place, value_done.
 */
#include "document.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "number.h"

enum state {
    AT_START,       /* nothing but white space so far */
    AT_VALUE,       /* a value must come */
    AT_FIRST_VALUE, /* after '[': a value or ']' */
    AT_FIRST_KEY,   /* after '{': a name or '}' */
    AT_KEY,         /* after ',' in an object: a name */
    IN_KEY,         /* inside a name */
    AT_COLON,
    IN_STRING,
    IN_NUMBER,
    IN_WORD,
    IN_TENSOR,    /* the tensor reader takes the bytes */
    AT_SEPARATOR, /* after a value inside brackets: ',' or the closing bracket */
    AT_END,       /* after the document */
};

/* Members of a tensor's object. */
enum member { MEMBER_NONE = -1, MEMBER_SHAPE = 0, MEMBER_DATA, MEMBER_DTYPE, MEMBER_BASE64, MEMBER_COUNT };
static const char *const member_names[MEMBER_COUNT] = {"shape", "data", "dtype", "base64"};

/* What a completed value was. */
enum kind { KIND_STRING, KIND_NUMBER, KIND_TRUE, KIND_FALSE, KIND_NULL, KIND_ARRAY, KIND_OBJECT };

static bool failed(const struct document *d) { return d->request->problem->code != PROBLEM_NONE; }

/* ---- places and errors ---- */

/* Line and column of a byte at or after line_start's line, given the piece being read. */
static void locate(const struct document *d, const char *bytes, size_t size, uint64_t offset, uint64_t *line,
                   uint64_t *column) {
    uint64_t start = d->line_start;
    *line = d->line + 1;
    for (size_t i = 0; i < size && d->consumed + i < offset; i++)
        if (bytes[i] == '\n') {
            ++*line;
            start = d->consumed + i + 1;
        }
    *column = offset >= start ? offset - start + 1 : 1;
}

/* Remembers the lines of a piece before it goes away. */
static void count_lines(struct document *d, const char *bytes, size_t size) {
    const char *at = bytes, *end = bytes + size;
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        d->line++;
        at++;
        d->line_start = d->consumed + (uint64_t)(at - bytes);
    }
    d->consumed += size;
}

/* A piece of the body with the byte the automaton looks at. */
struct piece {
    const char *bytes;
    size_t size, at;
};

/* The byte at `offset`, or -1 at the end of the body. A byte before this piece is in a token that the tensor reader carried over
 * to it. */
static int byte_at(const struct document *d, const struct piece *piece, uint64_t offset) {
    if (!piece->bytes || offset >= d->consumed + piece->size) return -1;
    if (offset >= d->consumed) return (unsigned char)piece->bytes[offset - d->consumed];
    const struct tensor_text *text = d->member == MEMBER_SHAPE ? &d->shape : &d->text;
    uint64_t at = offset - d->carry_start;
    return offset >= d->carry_start && at < sizeof text->carry ? (unsigned char)text->carry[at] : ' ';
}

/* "but found '2'", "but found the byte 0x01", "but the body ends". */
static const char *found_text(char out[48], const struct document *d, const struct piece *piece, uint64_t offset) {
    int c = byte_at(d, piece, offset);
    if (c < 0)
        snprintf(out, 48, "but the body ends");
    else if (c > 0x20 && c < 0x7F)
        snprintf(out, 48, "but found '%c'", c);
    else
        snprintf(out, 48, "but found the byte 0x%02x", (unsigned)c);
    return out;
}

/* A problem of the JSON text itself, at `offset`. `what` ends before the place. */
static void bad_json_at(struct document *d, const struct piece *piece, uint64_t offset, enum problem_code code,
                        const char *what) {
    uint64_t line, column;
    locate(d, piece->bytes, piece->size, offset, &line, &column);
    problem_set(d->request->problem, code, "", "%s (line %llu, column %llu, byte %llu).", what,
                (unsigned long long)line, (unsigned long long)column, (unsigned long long)offset);
    d->request->problem->position = (long long)offset;
}

static void bad_json(struct document *d, const struct piece *piece, enum problem_code code, const char *what) {
    bad_json_at(d, piece, d->consumed + piece->at, code, what);
}

/* "Expected X, but found Y". */
static size_t unexpected(struct document *d, const struct piece *piece, const char *expected) {
    char text[300], found[48];
    uint64_t offset = d->consumed + piece->at;
    snprintf(text, sizeof text, "The body is not JSON: expected %s, %s", expected, found_text(found, d, piece, offset));
    bad_json_at(d, piece, offset, PROBLEM_JSON_SYNTAX, text);
    return 0;
}

static bool no_memory(struct document *d, enum mem_status why, size_t bytes, const char *what) {
    return problem_memory(d->request->problem, why, d->request->budget, "", bytes, what);
}

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

/* ---- strings ---- */

static void string_begin(struct document *d) {
    d->escape = 0;
    d->surrogate = d->utf8_left = 0;
    d->length = 0;
    d->nul = false;
}

static bool base64_text(struct document *d, const char *text, size_t length);

/* Decoded bytes of the current string: to the base64 decoder, or to the token as far as it has room. */
static bool string_emit(struct document *d, const char *text, size_t length) {
    if (d->tensor && d->depth == 2 && d->member == MEMBER_BASE64 && d->state == IN_STRING)
        return base64_text(d, text, length);
    size_t room = DOCUMENT_NAME_MAX - d->length;
    if (length > room) length = room;
    memcpy(d->token + d->length, text, length);
    d->length += length;
    return true;
}

static bool emit_code_point(struct document *d, unsigned c) {
    char out[4];
    size_t n = 1;
    if (c == 0) {
        d->nul = true;
        return string_emit(d, "\xEF\xBF\xBD", 3); /* names and words are C strings further on */
    }
    if (c < 0x80) {
        out[0] = (char)c;
    } else if (c < 0x800) {
        n = 2;
        out[0] = (char)(0xC0 | c >> 6);
    } else if (c < 0x10000) {
        n = 3;
        out[0] = (char)(0xE0 | c >> 12);
    } else {
        n = 4;
        out[0] = (char)(0xF0 | c >> 18);
    }
    for (size_t i = 1; i < n; i++) out[i] = (char)(0x80 | (c >> (6 * (n - 1 - i)) & 0x3F));
    return string_emit(d, out, n);
}

/* \uXXXX complete. */
static bool code_unit_done(struct document *d, const struct piece *piece) {
    unsigned c = d->code_unit;
    bool low = c >= 0xDC00 && c <= 0xDFFF, high = c >= 0xD800 && c <= 0xDBFF;
    if (low != (d->surrogate != 0)) {
        bad_json(d, piece, PROBLEM_JSON_SYNTAX,
                 "The body is not JSON: a \\u escape is half of a surrogate pair without the other");
        return false;
    }
    if (high) {
        d->surrogate = c;
        return true;
    }
    if (low) c = 0x10000 + ((d->surrogate - 0xD800) << 10) + (c - 0xDC00);
    d->surrogate = 0;
    return emit_code_point(d, c);
}

static size_t escape_byte(struct document *d, const struct piece *piece, unsigned char c) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (d->escape == 1) {
        const char *found = c ? strchr(from, c) : NULL;
        if (c == 'u') {
            d->escape = 2;
            d->code_unit = 0;
            return 1;
        }
        if (!found || d->surrogate) return unexpected(d, piece, "one of \" \\ / b f n r t u after a backslash");
        d->escape = 0;
        return string_emit(d, &to[found - from], 1) ? 1 : 0;
    }
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return unexpected(d, piece, "four hexadecimal digits after \\u");
    d->code_unit = d->code_unit << 4 | (unsigned)digit;
    if (++d->escape < 6) return 1;
    d->escape = 0;
    return code_unit_done(d, piece) ? 1 : 0;
}

/* First byte of a UTF-8 sequence of two to four (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF). */
static bool utf8_begin(struct document *d, unsigned char c) {
    d->utf8_low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    d->utf8_high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    d->utf8_left = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
    return d->utf8_left != 0;
}

static size_t utf8_byte(struct document *d, const struct piece *piece, unsigned char c) {
    bool fits = d->utf8_left ? c >= d->utf8_low && c <= d->utf8_high : utf8_begin(d, c);
    if (!fits) {
        bad_json(d, piece, PROBLEM_JSON_SYNTAX, "The body is not JSON: a string is not valid UTF-8");
        return 0;
    }
    if (c < 0xC0) {
        d->utf8_left--;
        d->utf8_low = 0x80;
        d->utf8_high = 0xBF;
    }
    char byte = (char)c;
    return string_emit(d, &byte, 1) ? 1 : 0;
}

static size_t string_done(struct document *d, struct piece *piece);

/* Inside a string, after its first quote: a run of plain characters, or one of the others. */
static size_t in_string(struct document *d, struct piece *piece) {
    const char *run = piece->bytes + piece->at;
    size_t n = 0, most = piece->size - piece->at;
    unsigned char c = (unsigned char)*run;
    if (d->escape) return escape_byte(d, piece, c);
    if (d->surrogate && c != '\\') return unexpected(d, piece, "the other half of a surrogate pair (\\u)");
    if (d->utf8_left || c >= 0x80) return utf8_byte(d, piece, c);
    if (c == '"') return string_done(d, piece);
    if (c == '\\') {
        d->escape = 1;
        return 1;
    }
    if (c < 0x20) return unexpected(d, piece, "no control character inside a string (write \\n, \\t or \\u00XX)");
    while (n < most && (unsigned char)run[n] >= 0x20 && (unsigned char)run[n] < 0x80 && run[n] != '"' && run[n] != '\\')
        n++;
    return string_emit(d, run, n) ? n : 0;
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

static bool base64_text(struct document *d, const char *text, size_t length) {
    struct mem_grow *grow = &d->tensor->grow;
    size_t written, need = grow->size + base64_decoded_max(length);
    enum mem_status why = MEM_OK;
    if (need > grow->capacity) {
        size_t roomy = need + (need / 8 < 65536 ? need / 8 : 65536);
        why = mem_grow_reserve(grow, roomy);
        if (why != MEM_OK) why = mem_grow_reserve(grow, need);
    }
    if (why != MEM_OK) return no_memory(d, why, need, d->field->name);
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

/* At the '[' of the numbers. */
static size_t begin_numbers(struct document *d, const struct piece *piece) {
    d->tensor_start = d->consumed + piece->at;
    if (d->member == MEMBER_SHAPE)
        tensor_text_begin(&d->shape, &d->shape_data, NULL, TENSOR_TEXT_F64, TENSOR_TEXT_NUMBERS);
    else
        tensor_text_begin(&d->text, &d->tensor->grow, &d->tensor->ties, reals_for(d), d->field->accept);
    d->state = IN_TENSOR;
    return 0;
}

/* What a tensor may hold, for messages. */
static const char *elements_text(unsigned accept) {
    if (accept & TENSOR_TEXT_ZERO_ONE) return "true/false or 0/1";
    if (accept & TENSOR_TEXT_BOOLEANS) return "numbers (null = -infinity) or true/false";
    return "numbers";
}

static const char *element_found(const struct document *d, const struct piece *piece, uint64_t offset) {
    switch (byte_at(d, piece, offset)) {
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

/* Says what the tensor reader found. Statuses of the text itself carry a place, the others a pointer. */
static void numbers_problem(struct document *d, const struct piece *piece, enum tensor_text_status status) {
    bool in_shape = d->member == MEMBER_SHAPE;
    const struct tensor_text *t = in_shape ? &d->shape : &d->text;
    const char *name = d->field->name, *tail = d->member >= 0 ? member_names[d->member] : "";
    uint64_t offset = d->tensor_start + t->offset;
    char place[PROBLEM_POINTER_MAX], text[600], found[48];
    problem_pointer_index(place, name, t->index, 0);
    size_t at = strlen(place);
    if (tail[0]) at = problem_pointer_append(place, sizeof place, at, tail);
    for (size_t i = 0; i < t->index_length; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", t->index[i]);
        at = problem_pointer_append(place, sizeof place, at, number);
    }
    const char *elements = in_shape ? "integers >= 0" : elements_text(d->field->accept);
    switch (status) {
    case TENSOR_TEXT_SYNTAX:
        snprintf(text, sizeof text, "The body is not JSON: at %s expected a number, ',' or ']', %s", place,
                 found_text(found, d, piece, offset));
        bad_json_at(d, piece, offset, PROBLEM_JSON_SYNTAX, text);
        break;
    case TENSOR_TEXT_NON_FINITE:
        snprintf(text, sizeof text,
                 "%s is NaN, an infinity, or too large for a float64: JSON has no such numbers, and inputs must be "
                 "finite.%s",
                 place, d->field->id == T_attn_mask ? " In attn_mask, null stands for -infinity." : "");
        text[strlen(text) - 1] = 0;
        bad_json_at(d, piece, offset, PROBLEM_JSON_NON_FINITE, text);
        break;
    case TENSOR_TEXT_NUMBER_TOO_LONG:
        snprintf(text, sizeof text, "%s has more than %d characters", place, TENSOR_TEXT_NUMBER_MAX);
        bad_json_at(d, piece, offset, PROBLEM_NUMBER_TOO_LONG, text);
        break;
    case TENSOR_TEXT_TOO_DEEP:
        snprintf(text, sizeof text, "%s is nested more than %d deep; no tensor has so many dimensions", name,
                 TENSOR_TEXT_RANK_MAX);
        bad_json_at(d, piece, offset, PROBLEM_JSON_TOO_DEEP, text);
        break;
    case TENSOR_TEXT_OUT_OF_RANGE:
        snprintf(text, sizeof text, "%s is too large for float32. Use \"dtype\": \"float64\", or scale the numbers.",
                 place);
        bad_tensor(d, PROBLEM_NON_FINITE_INPUT, tail, t->index, t->index_length, text);
        break;
    case TENSOR_TEXT_RAGGED:
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
        break;
    case TENSOR_TEXT_MIXED:
        snprintf(text, sizeof text, "%s mixes booleans with numbers or null (at %s); use one kind.", name, place);
        bad_tensor(d, PROBLEM_WRONG_TYPE, tail, t->index, t->index_length, text);
        break;
    case TENSOR_TEXT_NOT_ZERO_ONE:
        snprintf(text, sizeof text, "%s holds true/false or 0/1, but %s is another number.", name, place);
        bad_tensor(d, PROBLEM_OUT_OF_RANGE, tail, t->index, t->index_length, text);
        break;
    case TENSOR_TEXT_MEMORY:
        no_memory(d, t->memory, (in_shape ? &d->shape_data : &d->tensor->grow)->size, name);
        break;
    default: /* TENSOR_TEXT_WRONG_TYPE */
        snprintf(text, sizeof text, "%s must hold %s, but %s is %s.", name, elements, place,
                 element_found(d, piece, offset));
        bad_tensor(d, PROBLEM_WRONG_TYPE, tail, t->index, t->index_length, text);
        break;
    }
}

/* Notes with which the reader can round once later outlive the next tensor only if there are any. */
static bool keep_ties(struct document *d, struct tensor *t) {
    if (!d->text.ties || d->text.ties->size == 0) return true;
    enum mem_status why;
    t->text = mem_alloc(d->request->arena, sizeof *t->text, &why);
    if (!t->text) return no_memory(d, why, sizeof *t->text, d->field->name);
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

static size_t value_done(struct document *d, enum kind kind, size_t taken);

static size_t in_tensor(struct document *d, struct piece *piece) {
    struct tensor_text *text = d->member == MEMBER_SHAPE ? &d->shape : &d->text;
    size_t used;
    d->carry_start = d->consumed + piece->at - text->carried;
    enum tensor_text_status status = tensor_text_feed(text, piece->bytes + piece->at, piece->size - piece->at, &used);
    if (d->member == MEMBER_SHAPE && text->count > 64) {
        bad_tensor(d, PROBLEM_RANK, "shape", NULL, 0, "A shape has at most 8 dimensions.");
        return 0;
    }
    if (status == TENSOR_TEXT_MORE) return used;
    if (status != TENSOR_TEXT_DONE) {
        numbers_problem(d, piece, status);
        return 0;
    }
    return value_done(d, KIND_ARRAY, used);
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

/* The shape into t->dim, its product into *count. */
static bool take_shape(struct document *d, struct tensor *t, size_t *count) {
    const double *dims = (const double *)(const void *)d->shape_data.data;
    char text[200];
    if (d->shape.rank != 1 || d->shape.count > TENSOR_RANK_MAX) {
        bad_tensor(d, PROBLEM_RANK, "shape", NULL, 0, "A shape is one array of at most 8 integers.");
        return false;
    }
    t->rank = d->shape.count;
    *count = 1;
    bool fits = true;
    for (size_t i = 0; i < t->rank; i++) {
        if (!(dims[i] >= 0 && dims[i] == floor(dims[i]) && dims[i] <= 9007199254740992.0)) {
            snprintf(text, sizeof text, "shape of %s must hold integers >= 0.", d->field->name);
            bad_tensor(d, PROBLEM_OUT_OF_RANGE, "shape", &i, 1, text);
            return false;
        }
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
        bad_tensor(d, PROBLEM_CONFLICT, "dtype", NULL, 0,
                   "dtype belongs to base64: the numbers in data are read straight to the dtype of the request.");
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
        bad_tensor(d, PROBLEM_WRONG_TYPE, "dtype", NULL, 0, "bool is for masks; this tensor holds numbers.");
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
        bad_tensor(d, PROBLEM_CONFLICT, "base64", NULL, 0,
                   "data and base64 are two ways to send the same numbers; send one.");
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

static bool member_key(struct document *d) {
    char text[300];
    d->member = MEMBER_NONE;
    for (int i = 0; i < MEMBER_COUNT; i++)
        if (strcmp(d->token, member_names[i]) == 0) d->member = i;
    if (d->member == MEMBER_NONE) {
        const char *meant = word_suggest(d->token, member_names, MEMBER_COUNT);
        snprintf(text, sizeof text,
                 "A tensor has no member \"%.80s\": it takes {\"shape\",\"data\"} or "
                 "{\"shape\",\"dtype\",\"base64\"}.%s%s%s",
                 d->token, meant ? " Did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
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
static bool member_done(struct document *d, enum kind kind) {
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
        bad_tensor(d, PROBLEM_RANK, "data", NULL, 0,
                   "data must be one flat array, row after row; leave {\"shape\",\"data\"} out to send nested arrays.");
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

/* ---- the options' text ---- */

static bool rest_append(struct document *d, const char *text, size_t length) {
    struct mem_grow *rest = &d->rest;
    if (length > DOCUMENT_REST_MAX - rest->size) {
        problem_set(d->request->problem, PROBLEM_BODY_TOO_LARGE, "",
                    "The fields that are not tensors take more than %zu bytes of text%s%s.", DOCUMENT_REST_MAX,
                    d->field ? ", the last of them " : "", d->field ? d->field->name : "");
        d->request->problem->limit = DOCUMENT_REST_MAX;
        d->request->problem->size = rest->size + length;
        return false;
    }
    enum mem_status why = mem_grow_reserve(rest, rest->size + length);
    if (why != MEM_OK) return no_memory(d, why, rest->size + length, "the options");
    memcpy(rest->data + rest->size, text, length);
    rest->size += length;
    return true;
}

/* Canonical name and colon; the value follows as it comes. */
static bool rest_begin(struct document *d) {
    if (!rest_append(d, d->rest.size ? ",\"" : "{\"", 2) || !rest_append(d, d->field->name, strlen(d->field->name)) ||
        !rest_append(d, "\":", 2))
        return false;
    d->rest_value = d->rest.size;
    d->collecting = true;
    return true;
}

/* The value of an option is complete. dtype is of use at once, for the tensors that follow. */
static void rest_value_done(struct document *d) {
    static const char f64[] = "\"float64\"", f32[] = "\"float32\"";
    d->collecting = false;
    if (d->field->id != O_dtype) return;
    const char *value = d->rest.data + d->rest_value;
    size_t length = d->rest.size - d->rest_value;
    bool is_f64 = length == sizeof f64 - 1 && memcmp(value, f64, length) == 0;
    bool is_f32 = length == sizeof f32 - 1 && memcmp(value, f32, length) == 0;
    d->request->dtype_known = is_f64 || is_f32;
    d->request->dtype = is_f32 ? MHA_F32 : MHA_F64;
}

/* ---- values ---- */

static bool inside_object(const struct document *d) { return d->depth > 0 && d->objects >> (d->depth - 1) & 1; }

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
        if (why != MEM_OK) return no_memory(d, why, sizeof value, d->field->name);
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
static bool tensor_done(struct document *d, enum kind kind) {
    bool ok = kind == KIND_ARRAY    ? numbers_done(d)
              : kind == KIND_OBJECT ? tensor_object_done(d)
                                    : scalar_tensor(d, kind);
    if (ok && kind == KIND_ARRAY) d->tensor->given = true;
    d->tensor = NULL;
    return ok;
}

/* A value ends `taken` bytes from here; depth is that of its surroundings. */
static size_t value_done(struct document *d, enum kind kind, size_t taken) {
    d->state = d->depth ? AT_SEPARATOR : AT_END;
    if (d->depth == 1 && d->field) {
        d->collecting = false;
        if (d->tensor && !tensor_done(d, kind)) return 0;
    } else if (d->depth == 2 && d->tensor) {
        if (!member_done(d, kind)) return 0;
        d->member = MEMBER_NONE;
    }
    return taken;
}

static size_t string_done(struct document *d, struct piece *piece) {
    if (d->utf8_left) {
        bad_json(d, piece, PROBLEM_JSON_SYNTAX, "The body is not JSON: a string ends inside a UTF-8 character");
        return 0;
    }
    d->token[d->length] = 0;
    if (d->state == IN_STRING) {
        if (d->nul && d->field && !d->tensor) {
            char pointer[PROBLEM_POINTER_MAX];
            problem_set(d->request->problem, PROBLEM_OUT_OF_RANGE,
                        problem_pointer_index(pointer, d->field->name, NULL, 0),
                        "%s holds a string with the character U+0000.", d->field->name);
            return 0;
        }
        return value_done(d, KIND_STRING, 1);
    }
    d->state = AT_COLON;
    if (d->depth == 1) {
        d->field = request_field(d->request, d->token, d->length);
        return d->field ? 1 : 0;
    }
    if (d->depth == 2 && d->tensor) return member_key(d) ? 1 : 0;
    return 1;
}

/* The characters of a number are complete; the byte after them is looked at, or the body has ended. */
static size_t number_done(struct document *d, struct piece *piece) {
    double value;
    size_t used;
    uint64_t start = d->consumed + piece->at - d->length;
    char next = piece->at < piece->size ? piece->bytes[piece->at] : 0;
    if (d->length == 1 && d->token[0] == '-' && next && strchr("IiNn", next)) {
        bad_json_at(d, piece, start, PROBLEM_JSON_NON_FINITE, "-Infinity and NaN are not JSON, and must not be sent");
        return 0;
    }
    d->token[d->length] = ',';
    enum number_status status = number_read_f64(d->token, d->length + 1, &value, &used);
    if (status == NUMBER_OVERFLOW) {
        bad_json_at(d, piece, start, PROBLEM_JSON_NON_FINITE, "A number is too large for a float64");
        return 0;
    }
    if (status != NUMBER_OK || used != d->length) {
        d->token[d->length < 40 ? d->length : 40] = 0;
        char text[200];
        snprintf(text, sizeof text, "The body is not JSON: %.60s is not a number", d->token);
        bad_json_at(d, piece, start, PROBLEM_JSON_SYNTAX, text);
        return 0;
    }
    return value_done(d, KIND_NUMBER, 0);
}

static size_t in_number(struct document *d, struct piece *piece) {
    char c = piece->bytes[piece->at];
    if (!((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'))
        return number_done(d, piece);
    if (d->length == TENSOR_TEXT_NUMBER_MAX) {
        bad_json(d, piece, PROBLEM_NUMBER_TOO_LONG, "A number has more than 1000 characters");
        return 0;
    }
    d->token[d->length++] = c;
    return 1;
}

#define WORD_MAX 15

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* true, false, null, or a word of another language. */
static size_t word_done(struct document *d, struct piece *piece) {
    static const struct {
        const char *word;
        enum kind kind;
    } words[] = {{"true", KIND_TRUE}, {"false", KIND_FALSE}, {"null", KIND_NULL}};
    uint64_t start = d->consumed + piece->at - d->length;
    char lower[WORD_MAX + 1], text[200];
    d->token[d->length] = 0;
    for (size_t i = 0; i < 3; i++)
        if (strcmp(d->token, words[i].word) == 0) return value_done(d, words[i].kind, 0);
    for (size_t i = 0; i <= d->length; i++)
        lower[i] = (char)(is_letter(d->token[i]) ? d->token[i] | 0x20 : d->token[i]);
    if (strcmp(lower, "nan") == 0 || strcmp(lower, "inf") == 0 || strcmp(lower, "infinity") == 0) {
        bad_json_at(d, piece, start, PROBLEM_JSON_NON_FINITE, "NaN and infinities are not JSON, and must not be sent");
        return 0;
    }
    const char *python = strcmp(lower, "none") == 0 || strcmp(lower, "true") == 0 || strcmp(lower, "false") == 0
                             ? "; JSON writes true, false and null, in lower case"
                             : "";
    snprintf(text, sizeof text, "The body is not JSON: %.60s is not a value%s", d->token, python);
    bad_json_at(d, piece, start, PROBLEM_JSON_SYNTAX, text);
    return 0;
}

static size_t in_word(struct document *d, struct piece *piece) {
    char c = piece->bytes[piece->at];
    if (!is_letter(c) || d->length == WORD_MAX) return word_done(d, piece);
    d->token[d->length++] = c;
    return 1;
}

/* ---- where values begin ---- */

static bool push(struct document *d, const struct piece *piece, bool object) {
    if (d->depth == DOCUMENT_DEPTH_MAX) {
        bad_json(d, piece, PROBLEM_JSON_TOO_DEEP, "The body is nested too deeply");
        return false;
    }
    d->objects = (d->objects & ~(1ull << d->depth)) | (uint64_t)object << d->depth;
    d->depth++;
    d->state = object ? AT_FIRST_KEY : AT_FIRST_VALUE;
    return true;
}

/* A value of JSON at large. */
static size_t begin_any(struct document *d, const struct piece *piece) {
    char c = piece->bytes[piece->at];
    if (d->collecting) d->values++;
    if (c == '{' || c == '[') return push(d, piece, c == '{') ? 1 : 0;
    if (c == '"') {
        string_begin(d);
        d->state = IN_STRING;
        return 1;
    }
    d->length = 0;
    if (c == '-' || (c >= '0' && c <= '9'))
        d->state = IN_NUMBER;
    else if (is_letter(c))
        d->state = IN_WORD;
    else if (c == '\'')
        return unexpected(d, piece, "a value (strings take double quotes)");
    else
        return unexpected(d, piece, c == ']' || c == '}' ? "another value after the comma" : "a value");
    return 0;
}

/* The value of a tensor field. */
static size_t begin_tensor(struct document *d, const struct piece *piece) {
    char c = piece->bytes[piece->at];
    d->tensor = &d->request->tensor[d->field->id];
    d->member = MEMBER_NONE;
    d->members = 0;
    d->text.ties = NULL;
    mem_grow_init(&d->tensor->grow, d->request->arena);
    mem_grow_init(&d->tensor->ties, d->request->arena);
    return c == '[' ? begin_numbers(d, piece) : begin_any(d, piece);
}

/* The value of a member of a tensor's object. */
static size_t begin_member(struct document *d, const struct piece *piece) {
    char c = piece->bytes[piece->at];
    bool array = d->member == MEMBER_SHAPE || d->member == MEMBER_DATA;
    if (c == '[' && array) return begin_numbers(d, piece);
    if (c == '[' || c == '{') {
        member_done(d, KIND_OBJECT);
        return 0;
    }
    if (d->member == MEMBER_BASE64) {
        base64_decode_begin(&d->base64);
        d->tensor->grow.size = 0;
    }
    return begin_any(d, piece);
}

static size_t at_value(struct document *d, struct piece *piece) {
    if (d->state == AT_FIRST_VALUE && piece->bytes[piece->at] == ']') {
        d->depth--;
        return value_done(d, KIND_ARRAY, 1);
    }
    if (d->depth == 2 && d->tensor) return begin_member(d, piece);
    if (d->depth == 1 && d->field) {
        if (d->field->kind == FIELD_TENSOR) return begin_tensor(d, piece);
        if (!rest_begin(d)) return 0;
    }
    return begin_any(d, piece);
}

/* The first byte that is not white space; says what wrong encodings look like. */
static size_t at_start(struct document *d, struct piece *piece) {
    unsigned char c = (unsigned char)piece->bytes[piece->at];
    const char *what = c == 0xEF   ? "The body begins with a byte order mark; send UTF-8 without one"
                       : c >= 0xFE ? "The body looks like UTF-16; send UTF-8"
                       : c == 0    ? "The body begins with a zero byte; send JSON text in UTF-8"
                       : c == 0x1F ? "The body looks compressed; send it as it is, without Content-Encoding"
                                   : NULL;
    if (what) {
        bad_json(d, piece, PROBLEM_JSON_SYNTAX, what);
        return 0;
    }
    if (c == '{') return push(d, piece, true) ? 1 : 0;
    return begin_any(d, piece);
}

/* ---- between values ---- */

static size_t at_key(struct document *d, struct piece *piece) {
    char c = piece->bytes[piece->at];
    if (c == '}' && d->state == AT_FIRST_KEY) {
        d->depth--;
        return value_done(d, KIND_OBJECT, 1);
    }
    if (c != '"')
        return unexpected(d, piece,
                          c == '}'                   ? "another name after the comma"
                          : d->state == AT_FIRST_KEY ? "a name in double quotes or '}'"
                                                     : "a name in double quotes");
    string_begin(d);
    d->state = IN_KEY;
    return 1;
}

static size_t at_colon(struct document *d, struct piece *piece) {
    if (piece->bytes[piece->at] != ':') return unexpected(d, piece, "':' after a name");
    d->state = AT_VALUE;
    return 1;
}

static size_t at_separator(struct document *d, struct piece *piece) {
    char c = piece->bytes[piece->at];
    bool object = inside_object(d);
    if (c == ',') {
        d->state = object ? AT_KEY : AT_VALUE;
        return 1;
    }
    if (c != (object ? '}' : ']')) return unexpected(d, piece, object ? "',' or '}'" : "',' or ']'");
    d->depth--;
    return value_done(d, object ? KIND_OBJECT : KIND_ARRAY, 1);
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* One step of the automaton: how many bytes it took. */
static size_t step(struct document *d, struct piece *piece) {
    bool between = d->state != IN_KEY && d->state != IN_STRING && d->state != IN_NUMBER && d->state != IN_WORD &&
                   d->state != IN_TENSOR;
    if (between && is_space(piece->bytes[piece->at])) return 1;
    switch (d->state) {
    case AT_START:
        return at_start(d, piece);
    case AT_VALUE:
    case AT_FIRST_VALUE:
        return at_value(d, piece);
    case AT_FIRST_KEY:
    case AT_KEY:
        return at_key(d, piece);
    case IN_KEY:
    case IN_STRING:
        return in_string(d, piece);
    case AT_COLON:
        return at_colon(d, piece);
    case IN_NUMBER:
        return in_number(d, piece);
    case IN_WORD:
        return in_word(d, piece);
    case IN_TENSOR:
        return in_tensor(d, piece);
    case AT_SEPARATOR:
        return at_separator(d, piece);
    default:
        return unexpected(d, piece, "nothing after the end of the document");
    }
}

/* ---- the document ---- */

void document_init(struct document *d, struct request *request) {
    memset(d, 0, offsetof(struct document, token));
    d->request = request;
    d->state = AT_START;
    d->field = NULL;
    d->tensor = NULL;
    d->member = MEMBER_NONE;
    d->members = 0;
    d->collecting = false;
    d->values = 0;
    mem_grow_init(&d->shape_data, request->arena);
    mem_grow_init(&d->rest, request->arena);
}

void document_feed(struct document *d, const char *bytes, size_t size) {
    struct piece piece = {bytes, size, 0};
    while (piece.at < size && !failed(d)) {
        bool was = d->collecting;
        size_t taken = step(d, &piece);
        if (failed(d)) return;
        if ((was || d->collecting) && taken && !rest_append(d, bytes + piece.at, taken)) return;
        if (was && !d->collecting) rest_value_done(d);
        piece.at += taken;
    }
    if (!failed(d)) count_lines(d, bytes, size);
}

/* What was still to come when the body ended. */
static const char *wanted(const struct document *d) {
    switch (d->state) {
    case AT_FIRST_KEY:
        return "a name or '}'";
    case AT_KEY:
        return "a name";
    case IN_KEY:
        return "the rest of a name";
    case AT_COLON:
        return "':' after a name";
    case IN_STRING:
        return "the rest of a string";
    case IN_TENSOR:
        return "the rest of a tensor";
    case AT_SEPARATOR:
        return inside_object(d) ? "',' or '}'" : "',' or ']'";
    default:
        return "a value";
    }
}

bool document_end(struct document *d) {
    struct piece piece = {NULL, 0, 0};
    if (failed(d)) return false;
    if (d->state == AT_START)
        return problem_set(
            d->request->problem, PROBLEM_JSON_EMPTY, "",
            "The body is empty. Send a JSON object such as {\"Q\":[[1,0]],\"W_q\":null,\"W_k\":null,\"W_v\":null,"
            "\"W_o\":null,\"num_heads\":1}.");
    bool object = d->objects & 1;
    if (d->depth == 0 && d->state == IN_NUMBER) number_done(d, &piece);
    if (d->depth == 0 && d->state == IN_WORD) word_done(d, &piece);
    if (failed(d)) return false;
    if (d->state != AT_END) {
        unexpected(d, &piece, wanted(d));
        return false;
    }
    if (!object)
        return problem_set(
            d->request->problem, PROBLEM_WRONG_TYPE, "",
            "The body must be a JSON object {...} with the fields of the request, not another kind of value.");
    if (!rest_append(d, d->rest.size ? "}" : "{}", d->rest.size ? 1 : 2)) return false;
    return request_options(d->request, d->rest.data, d->rest.size, d->values);
}

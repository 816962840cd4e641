/* SPDX-License-Identifier: Apache-2.0
 *
 * api/document.c - the automaton of api/document.h. What tensors mean is in document_tensor.c, places and problems in
 * document_place.c.
 *
 * Reading order: document_feed loops over `step`, which dispatches on the state to one small function each; such a function
 * returns how many bytes it took (0: it only changed the state, the byte is looked at again) and latches a problem on error.
 * What a completed value means is decided in one place, value_done.
 */
#include "document.h"

#include <stdio.h>
#include <string.h>

#include "document_parts.h"
#include "number.h"

enum state {
    IN_KEY, /* inside a name */
    IN_STRING,
    IN_NUMBER,
    IN_WORD,
    IN_TENSOR,      /* the tensor reader takes the bytes */
    AT_START,       /* nothing but white space so far; from here on white space means nothing */
    AT_VALUE,       /* a value must come */
    AT_FIRST_VALUE, /* after '[': a value or ']' */
    AT_FIRST_KEY,   /* after '{': a name or '}' */
    AT_KEY,         /* after ',' in an object: a name */
    AT_COLON,
    AT_SEPARATOR, /* after a value inside brackets: ',' or the closing bracket */
    AT_END,       /* after the document */
};

/* ---- strings ---- */

static void string_begin(struct document *d) {
    d->escape = 0;
    d->surrogate = d->utf8_left = 0;
    d->length = 0;
    d->nul = false;
}

/* Decoded bytes of the current string: to the base64 decoder, or to the token as far as it has room. */
static bool string_emit(struct document *d, const char *text, size_t length) {
    if (d->tensor && d->depth == 2 && d->member == MEMBER_BASE64 && d->state == IN_STRING)
        return document_base64(d, text, length);
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
        document_bad_json(d, piece, PROBLEM_JSON_SYNTAX,
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
        if (!found || d->surrogate)
            return document_unexpected(d, piece, "one of \" \\ / b f n r t u after a backslash");
        d->escape = 0;
        return string_emit(d, &to[found - from], 1) ? 1 : 0;
    }
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return document_unexpected(d, piece, "four hexadecimal digits after \\u");
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
        document_bad_json(d, piece, PROBLEM_JSON_SYNTAX, "The body is not JSON: a string is not valid UTF-8");
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

static size_t string_done(struct document *d);

/* What stands for itself inside a string. */
static const bool is_plain[256] = {[' ' ... '!'] = true, ['#' ... '['] = true, [']' ... 0x7F] = true};

/* Inside a string, after its first quote: a run of plain characters, or one of the others. */
static size_t in_string(struct document *d, struct piece *piece) {
    const char *run = piece->bytes + piece->at;
    size_t n = 0, most = piece->size - piece->at;
    unsigned char c = (unsigned char)*run;
    if (d->escape) return escape_byte(d, piece, c);
    if (d->surrogate && c != '\\') return document_unexpected(d, piece, "the other half of a surrogate pair (\\u)");
    if (d->utf8_left || c >= 0x80) return utf8_byte(d, piece, c);
    if (c == '"') return string_done(d);
    if (c == '\\') {
        d->escape = 1;
        return 1;
    }
    if (c < 0x20)
        return document_unexpected(d, piece, "no control character inside a string (write \\n, \\t or \\u00XX)");
    while (n < most && is_plain[(unsigned char)run[n]]) n++;
    if (!string_emit(d, run, n)) return 0;
    return n < most && run[n] == '"' ? n + string_done(d) : n; /* mostly the whole string is here */
}

/* ---- the options' text ---- */

/* Whether `more` bytes still go into the options' text. */
static bool rest_fits(struct document *d, size_t more) {
    if (more <= DOCUMENT_REST_MAX - d->rest.size) return true;
    problem_set(d->request->problem, PROBLEM_BODY_TOO_LARGE, "",
                "The fields that are not tensors take more than %zu bytes of text%s%s.", DOCUMENT_REST_MAX,
                d->field ? ", the last of them " : "", d->field ? d->field->name : "");
    d->request->problem->limit = DOCUMENT_REST_MAX;
    d->request->problem->size = d->rest.size + more;
    return false;
}

static bool rest_append(struct document *d, const char *text, size_t length) {
    struct mem_grow *rest = &d->rest;
    if (!rest_fits(d, length)) return false;
    enum mem_status why = mem_grow_reserve(rest, rest->size + length);
    if (why != MEM_OK) return document_no_memory(d, why, rest->size + length, "the options");
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

/* A value ends `taken` bytes from here; depth is that of its surroundings. */
static size_t value_done(struct document *d, enum kind kind, size_t taken) {
    d->state = d->depth ? AT_SEPARATOR : AT_END;
    if (d->depth == 1 && d->field) {
        d->collecting = false;
        if (d->tensor && !document_tensor_done(d, kind)) return 0;
    } else if (d->depth == 2 && d->tensor) {
        if (!document_member_done(d, kind)) return 0;
        d->member = MEMBER_NONE;
    }
    return taken;
}

static size_t string_done(struct document *d) {
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
    if (d->depth == 2 && d->tensor) return document_member_key(d) ? 1 : 0;
    return 1;
}

/* A number that no float64 is. Returns 0, the bytes taken. */
static size_t non_finite(struct document *d, const struct piece *piece, uint64_t offset, const char *what) {
    char text[200], pointer[PROBLEM_POINTER_MAX];
    snprintf(text, sizeof text, "%s is %s, and inputs must be finite", d->field ? d->field->name : "The body", what);
    document_bad_json_at(d, piece, offset, PROBLEM_JSON_NON_FINITE, text);
    if (d->field) document_point_to(d, problem_pointer_index(pointer, d->field->name, NULL, 0));
    return 0;
}

/* The characters of a number are complete; the byte after them is looked at, or the body has ended. */
static size_t number_done(struct document *d, struct piece *piece) {
    double value;
    size_t used;
    uint64_t start = d->consumed + piece->at - d->length;
    char next = piece->at < piece->size ? piece->bytes[piece->at] : 0;
    if (d->length == 1 && d->token[0] == '-' && next && strchr("IiNn", next))
        return non_finite(d, piece, start, "-Infinity or NaN, which JSON does not have");
    d->token[d->length] = ',';
    enum number_status status = number_read_f64(d->token, d->length + 1, &value, &used);
    if (status == NUMBER_OVERFLOW) return non_finite(d, piece, start, "too large for a float64");
    if (status != NUMBER_OK || used != d->length) {
        d->token[d->length < 40 ? d->length : 40] = 0;
        char text[200];
        snprintf(text, sizeof text, "The body is not JSON: %.60s is not a number", d->token);
        document_bad_json_at(d, piece, start, PROBLEM_JSON_SYNTAX, text);
        return 0;
    }
    return value_done(d, KIND_NUMBER, 0);
}

static size_t in_number(struct document *d, struct piece *piece) {
    char c = piece->bytes[piece->at];
    if (!((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'))
        return number_done(d, piece);
    if (d->length == TENSOR_TEXT_NUMBER_MAX) {
        document_bad_json(d, piece, PROBLEM_NUMBER_TOO_LONG, "A number has more than 1000 characters");
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
    if (strcmp(lower, "nan") == 0 || strcmp(lower, "inf") == 0 || strcmp(lower, "infinity") == 0)
        return non_finite(d, piece, start, "NaN or an infinity, which JSON does not have");
    const char *python = strcmp(lower, "none") == 0 || strcmp(lower, "true") == 0 || strcmp(lower, "false") == 0
                             ? "; JSON writes true, false and null, in lower case"
                             : "";
    snprintf(text, sizeof text, "The body is not JSON: %.60s is not a value%s", d->token, python);
    document_bad_json_at(d, piece, start, PROBLEM_JSON_SYNTAX, text);
    return 0;
}

static size_t in_word(struct document *d, struct piece *piece) {
    char c = piece->bytes[piece->at];
    if (!is_letter(c) || d->length == WORD_MAX) return word_done(d, piece);
    d->token[d->length++] = c;
    return 1;
}

/* The tensor reader takes the bytes. */
static size_t in_tensor(struct document *d, struct piece *piece) {
    size_t used;
    return document_feed_numbers(d, piece, &used) ? value_done(d, KIND_ARRAY, used) : used;
}

/* ---- where values begin ---- */

static size_t begin_numbers(struct document *d, const struct piece *piece) {
    document_begin_numbers(d, piece);
    d->state = IN_TENSOR;
    return 0;
}

static bool push(struct document *d, const struct piece *piece, bool object) {
    if (d->depth == DOCUMENT_DEPTH_MAX) {
        document_bad_json(d, piece, PROBLEM_JSON_TOO_DEEP, "The body is nested too deeply");
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
        return document_unexpected(d, piece, "a value (strings take double quotes)");
    else
        return document_unexpected(d, piece, c == ']' || c == '}' ? "another value after the comma" : "a value");
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
        document_member_done(d, KIND_OBJECT);
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
        document_bad_json(d, piece, PROBLEM_JSON_SYNTAX, what);
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
        return document_unexpected(d, piece,
                                   c == '}'                   ? "another name after the comma"
                                   : d->state == AT_FIRST_KEY ? "a name in double quotes or '}'"
                                                              : "a name in double quotes");
    string_begin(d);
    d->state = IN_KEY;
    return 1;
}

static size_t at_colon(struct document *d, struct piece *piece) {
    if (piece->bytes[piece->at] != ':') return document_unexpected(d, piece, "':' after a name");
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
    if (c != (object ? '}' : ']')) return document_unexpected(d, piece, object ? "',' or '}'" : "',' or ']'");
    d->depth--;
    return value_done(d, object ? KIND_OBJECT : KIND_ARRAY, 1);
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* One step of the automaton: how many bytes it took. */
static size_t step(struct document *d, struct piece *piece) {
    if (d->state >= AT_START && is_space(piece->bytes[piece->at])) return 1;
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
        return document_unexpected(d, piece, "nothing after the end of the document");
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
    mem_grow_init(&d->shape_data, request->arena);
    mem_grow_init(&d->rest, request->arena);
}

/* An option's value is copied in runs: from where it, or the piece, begins to where either ends. */
void document_feed(struct document *d, const char *bytes, size_t size) {
    struct piece piece = {bytes, size, 0};
    size_t run = 0;
    while (piece.at < size && !document_failed(d)) {
        bool was = d->collecting;
        if (!was) run = piece.at;
        piece.at += step(d, &piece);
        if (document_failed(d) || (d->collecting && !rest_fits(d, piece.at - run))) return;
        if (!was || d->collecting) continue;
        if (!rest_append(d, bytes + run, piece.at - run)) return;
        rest_value_done(d);
    }
    if (document_failed(d) || (d->collecting && !rest_append(d, bytes + run, size - run))) return;
    document_count_lines(d, bytes, size);
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
    if (document_failed(d)) return false;
    if (d->state == AT_START)
        return problem_set(
            d->request->problem, PROBLEM_JSON_EMPTY, "",
            "The body is empty. Send a JSON object such as {\"Q\":[[1,0]],\"W_q\":null,\"W_k\":null,\"W_v\":null,"
            "\"W_o\":null,\"num_heads\":1}.");
    bool object = d->objects & 1;
    if (d->depth == 0 && d->state == IN_NUMBER) number_done(d, &piece);
    if (d->depth == 0 && d->state == IN_WORD) word_done(d, &piece);
    if (document_failed(d)) return false;
    if (d->state != AT_END) {
        document_unexpected(d, &piece, wanted(d));
        return false;
    }
    if (!object)
        return problem_set(
            d->request->problem, PROBLEM_WRONG_TYPE, "",
            "The body must be a JSON object {...} with the fields of the request, not another kind of value.");
    if (!rest_append(d, d->rest.size ? "}" : "{}", d->rest.size ? 1 : 2)) return false;
    return request_options(d->request, d->rest.data, d->rest.size);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/problem.c - the table of all errors and the renderer to application/problem+json (RFC 9457).
 *
 * Model. One row per code: HTTP status, stable name, title. The rendered document is built in a fixed buffer by a writer that
 * drops what does not fit, so rendering cannot fail and needs no memory. Text that came from a client may be cut in the
 * middle of a character or not be UTF-8 at all; it is repaired (U+FFFD) while it is escaped.
 */
#include "problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct row {
    int status;
    const char *name;
    const char *title;
};

static const struct row table[PROBLEM_COUNT] = {
    [PROBLEM_NONE] = {200, "none", "No problem"},
    [PROBLEM_JSON_SYNTAX] = {400, "json_syntax", "The body is not JSON"},
    [PROBLEM_JSON_EMPTY] = {400, "json_empty", "The body is empty"},
    [PROBLEM_JSON_NON_FINITE] = {400, "json_non_finite", "NaN and infinities are not JSON numbers"},
    [PROBLEM_JSON_TOO_DEEP] = {400, "json_too_deep", "The JSON is nested too deeply"},
    [PROBLEM_NUMBER_TOO_LONG] = {400, "number_too_long", "A number has too many characters"},
    [PROBLEM_SAFETENSORS] = {400, "safetensors", "The body is not a valid safetensors file"},
    [PROBLEM_HTTP] = {400, "http", "The request is not proper HTTP/1.1"},
    [PROBLEM_MISSING_FIELD] = {422, "missing_field", "A required field is missing"},
    [PROBLEM_UNKNOWN_FIELD] = {422, "unknown_field", "A field is not known"},
    [PROBLEM_DUPLICATE_FIELD] = {422, "duplicate_field", "A field occurs twice"},
    [PROBLEM_WRONG_TYPE] = {422, "wrong_type", "A value is of the wrong type"},
    [PROBLEM_OUT_OF_RANGE] = {422, "out_of_range", "A value is out of its range"},
    [PROBLEM_SHAPE_MISMATCH] = {422, "shape_mismatch", "Shapes do not fit together"},
    [PROBLEM_RAGGED] = {422, "ragged", "The rows of a tensor differ in length"},
    [PROBLEM_RANK] = {422, "rank", "A tensor has the wrong number of dimensions"},
    [PROBLEM_AMBIGUOUS_MASK] = {422, "ambiguous_mask", "A mask could mean two things"},
    [PROBLEM_CONFLICT] = {422, "conflict", "Options contradict each other or would do nothing"},
    [PROBLEM_BAD_BASE64] = {422, "bad_base64", "The base64 text of a tensor is wrong"},
    [PROBLEM_NON_FINITE_INPUT] = {422, "non_finite_input", "A tensor holds a number that is not finite"},
    [PROBLEM_NON_FINITE_RESULT] = {422, "non_finite_result", "The result is not finite"},
    [PROBLEM_UNAUTHORIZED] = {401, "unauthorized", "A token is needed"},
    [PROBLEM_FORBIDDEN] = {403, "forbidden", "This is not allowed"},
    [PROBLEM_NOT_FOUND] = {404, "not_found", "There is nothing at this path"},
    [PROBLEM_METHOD_NOT_ALLOWED] = {405, "method_not_allowed", "This path does not take this method"},
    [PROBLEM_NOT_ACCEPTABLE] = {406, "not_acceptable", "None of the accepted media types can be produced"},
    [PROBLEM_TIMEOUT] = {408, "timeout", "The request came too slowly"},
    [PROBLEM_LENGTH_REQUIRED] = {411, "length_required", "The length of the body must be known"},
    [PROBLEM_BODY_TOO_LARGE] = {413, "body_too_large", "The body is too large"},
    [PROBLEM_RESULT_TOO_LARGE] = {413, "result_too_large", "The result would be too large"},
    [PROBLEM_MEMORY_TOO_LARGE] = {413, "memory_too_large", "The request needs more memory than the limit"},
    [PROBLEM_UNSUPPORTED_MEDIA_TYPE] = {415, "unsupported_media_type",
                                        "The body is of a media type that is not read here"},
    [PROBLEM_EXPECTATION_FAILED] = {417, "expectation_failed", "The Expect header asks for something unknown"},
    [PROBLEM_URI_TOO_LONG] = {414, "uri_too_long", "The request line is too long"},
    [PROBLEM_HEADERS_TOO_LARGE] = {431, "headers_too_large", "The headers are too large"},
    [PROBLEM_HTTP_VERSION] = {505, "http_version", "This version of HTTP is not spoken here"},
    [PROBLEM_INTERNAL] = {500, "internal", "The server made a mistake"},
    [PROBLEM_NOT_IMPLEMENTED] = {501, "not_implemented", "This is not implemented"},
    [PROBLEM_STORAGE] = {507, "storage", "The server cannot read or write its files"},
    [PROBLEM_QUEUE_FULL] = {503, "queue_full", "Too many requests are waiting"},
    [PROBLEM_MEMORY_BUSY] = {503, "memory_busy", "Other requests hold the memory"},
    [PROBLEM_DRAINING] = {503, "draining", "The server is shutting down"},
    [PROBLEM_OUT_OF_MEMORY] = {503, "out_of_memory", "The system has no memory left"},
    [PROBLEM_DEADLINE] = {408, "deadline", "The request took longer than it may"},
    [PROBLEM_LAYER_NOT_FOUND] = {404, "layer_not_found", "There is no such layer"},
};

static const struct row *row_of(enum problem_code code) {
    return &table[(unsigned)code < PROBLEM_COUNT ? code : PROBLEM_INTERNAL];
}

int problem_status(enum problem_code code) { return row_of(code)->status; }
const char *problem_name(enum problem_code code) { return row_of(code)->name; }
const char *problem_title(enum problem_code code) { return row_of(code)->title; }

void problem_init(struct problem *p) {
    p->code = PROBLEM_NONE;
    p->detail[0] = p->pointer[0] = p->expected[0] = p->actual[0] = p->stage[0] = 0;
    p->rank = 0;
    p->position = -1;
    p->limit = p->size = 0;
}

bool problem_set(struct problem *p, enum problem_code code, const char *pointer, const char *format, ...) {
    if (p->code != PROBLEM_NONE) return false;
    problem_init(p);
    p->code = code;
    snprintf(p->pointer, sizeof p->pointer, "%s", pointer ? pointer : "");
    va_list args;
    va_start(args, format);
    vsnprintf(p->detail, sizeof p->detail, format, args);
    va_end(args);
    return false;
}

/* JSON text must not be cut: what does not fit is left out. */
static void member_text(char *out, size_t size, const char *format, va_list args) {
    int length = vsnprintf(out, size, format, args);
    if (length < 0 || (size_t)length >= size) out[0] = 0;
}

void problem_expected(struct problem *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    member_text(p->expected, sizeof p->expected, format, args);
    va_end(args);
}

void problem_actual(struct problem *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    member_text(p->actual, sizeof p->actual, format, args);
    va_end(args);
}

/* ---- text helpers ---- */

size_t problem_pointer_append(char *out, size_t size, size_t at, const char *token) {
    if (at + 1 < size) out[at++] = '/';
    for (const char *c = token; *c; c++) {
        const char *piece = *c == '~' ? "~0" : *c == '/' ? "~1" : NULL;
        size_t need = piece ? 2 : 1;
        if (at + need >= size) break;
        if (piece) {
            out[at++] = piece[0];
            out[at++] = piece[1];
        } else {
            out[at++] = *c;
        }
    }
    if (at < size) out[at] = 0;
    return at;
}

const char *problem_pointer_index(char out[PROBLEM_POINTER_MAX], const char *field, const size_t *index, size_t rank) {
    size_t at = problem_pointer_append(out, PROBLEM_POINTER_MAX, 0, field);
    for (size_t i = 0; i < rank; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", index[i]);
        at = problem_pointer_append(out, PROBLEM_POINTER_MAX, at, number);
    }
    return out;
}

const char *problem_shape(char out[PROBLEM_SHAPE_MAX], const size_t *dim, size_t rank) {
    size_t at = 0;
    out[at++] = '[';
    for (size_t i = 0; i < rank && at < PROBLEM_SHAPE_MAX - 24; i++)
        at += (size_t)snprintf(out + at, PROBLEM_SHAPE_MAX - at, i ? ",%zu" : "%zu", dim[i]);
    snprintf(out + at, PROBLEM_SHAPE_MAX - at, "]");
    return out;
}

bool problem_memory(struct problem *p, enum mem_status why, const struct mem_budget *budget, const char *pointer,
                    size_t bytes, const char *what) {
    if (p->code != PROBLEM_NONE) return false;
    switch (why) {
    case MEM_TOO_LARGE:
        problem_set(
            p, PROBLEM_MEMORY_TOO_LARGE, pointer,
            "%s needs %zu bytes more, which takes this request past the memory limit of %zu bytes (--max-memory). "
            "Send less at once, or raise the limit.",
            what, bytes, budget->limit);
        break;
    case MEM_BUSY:
        problem_set(
            p, PROBLEM_MEMORY_BUSY, pointer,
            "%s needs %zu bytes more; the limit of %zu bytes (--max-memory) would allow it, but other requests hold "
            "the memory now. Try again later.",
            what, bytes, budget->limit);
        break;
    default:
        problem_set(p, PROBLEM_OUT_OF_MEMORY, pointer, "The system refused %zu bytes for %s. Try again later.", bytes,
                    what);
        break;
    }
    p->limit = budget->limit;
    p->size = bytes;
    return false;
}

/* ---- rendering ---- */

struct out {
    char *text;
    size_t at, max; /* max: no byte at or past it may be written */
};

static void put(struct out *o, const char *text, size_t length) {
    if (length > o->max - o->at) return;
    memcpy(o->text + o->at, text, length);
    o->at += length;
}

static void put_text(struct out *o, const char *text) { put(o, text, strlen(text)); }

/* Length of the well-formed UTF-8 sequence (RFC 3629) at s, 0 if it is not one. Stops at the NUL by itself. */
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xC2 && s[0] <= 0xDF   ? 2
               : s[0] >= 0xE0 && s[0] <= 0xEF ? 3
               : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4
                                              : 0;
    if (n == 0) return 0;
    unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    return n;
}

/* A JSON string of at most `room` bytes with its quotes. */
static void put_string(struct out *o, const char *text, size_t room) {
    size_t stop = o->at + room;
    put(o, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        char piece[8];
        size_t taken = utf8_length(s), length = taken;
        if (taken == 0) {
            taken = 1;
            length = 3;
            memcpy(piece, "\xEF\xBF\xBD", 3);
        } else if (*s == '"' || *s == '\\') {
            piece[0] = '\\';
            piece[1] = (char)*s;
            length = 2;
        } else if (*s < 0x20 || *s == 0x7F) {
            length = (size_t)snprintf(piece, sizeof piece, "\\u%04x", *s);
        } else {
            memcpy(piece, s, taken);
        }
        if (o->at + length + 1 > stop) break;
        put(o, piece, length);
        s += taken;
    }
    put(o, "\"", 1);
}

static void put_member(struct out *o, const char *name, const char *json) {
    if (!json[0]) return;
    put_text(o, ",\"");
    put_text(o, name);
    put_text(o, "\":");
    put_text(o, json);
}

static void put_string_member(struct out *o, const char *name, const char *text, size_t room) {
    if (!text || !text[0]) return;
    put_member(o, name, " ");
    o->at--; /* the blank */
    put_string(o, text, room);
}

static void put_number_member(struct out *o, const char *name, size_t value) {
    char number[24];
    snprintf(number, sizeof number, "%zu", value);
    put_member(o, name, number);
}

static void member_string(char *out, size_t size, const char *text) {
    struct out o = {.text = out, .max = size - 1};
    put_string(&o, text, size - 1);
    out[o.at] = 0;
}

void problem_expected_text(struct problem *p, const char *text) {
    member_string(p->expected, sizeof p->expected, text);
}
void problem_actual_text(struct problem *p, const char *text) { member_string(p->actual, sizeof p->actual, text); }

size_t problem_render(const struct problem *p, const char *request_id, char out[PROBLEM_TEXT_MAX]) {
    const struct row *row = row_of(p->code);
    struct out o = {.text = out, .max = PROBLEM_TEXT_MAX - 2}; /* room for the last brace and a NUL */
    put_text(&o, "{\"type\":\"/problems/");
    put_text(&o, row->name);
    put_text(&o, "\"");
    put_string_member(&o, "title", row->title, 200);
    put_number_member(&o, "status", (size_t)row->status);
    put_string_member(&o, "detail", p->detail, 1700);
    put_string_member(&o, "code", row->name, 64);
    put_string_member(&o, "pointer", p->pointer, 700);
    put_member(&o, "expected", p->expected);
    put_member(&o, "actual", p->actual);
    if (p->stage[0]) {
        char index[PROBLEM_SHAPE_MAX];
        put_string_member(&o, "stage", p->stage, 64);
        put_member(&o, "index", problem_shape(index, p->index, p->rank));
    }
    if (p->position >= 0) put_number_member(&o, "position", (size_t)p->position);
    if (p->limit || p->size) {
        put_number_member(&o, "limit", p->limit);
        put_number_member(&o, "size", p->size);
    }
    put_string_member(&o, "request_id", request_id, 200);
    out[o.at++] = '}';
    out[o.at] = 0;
    return o.at;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/document_place.c - where in the body we are, and the problems that name a place there.
 *
 * Model. Pieces of the body go away once read. Of those before the current one three numbers are kept (bytes, lines, where the
 * last line began); a line and a column are counted from them only when a problem is latched.
 */
#include <stdio.h>
#include <string.h>

#include "document_parts.h"

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
void document_count_lines(struct document *d, const char *bytes, size_t size) {
    const char *at = bytes, *end = bytes + size;
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        d->line++;
        at++;
        d->line_start = d->consumed + (uint64_t)(at - bytes);
    }
    d->consumed += size;
}

/* The byte at `offset`, or -1 at the end of the body. A byte before this piece is in a token that the tensor reader carried over
 * to it. */
int document_byte_at(const struct document *d, const struct piece *piece, uint64_t offset) {
    if (!piece->bytes || offset >= d->consumed + piece->size) return -1;
    if (offset >= d->consumed) return (unsigned char)piece->bytes[offset - d->consumed];
    const struct tensor_text *text = d->member == MEMBER_SHAPE ? &d->shape : &d->text;
    uint64_t at = offset - d->carry_start;
    return offset >= d->carry_start && at < sizeof text->carry ? (unsigned char)text->carry[at] : ' ';
}

/* "but found '2'", "but found the byte 0x01", "but the body ends". */
const char *document_found(char out[48], const struct document *d, const struct piece *piece, uint64_t offset) {
    int c = document_byte_at(d, piece, offset);
    if (c < 0)
        snprintf(out, 48, "but the body ends");
    else if (c > 0x20 && c < 0x7F)
        snprintf(out, 48, "but found '%c'", c);
    else
        snprintf(out, 48, "but found the byte 0x%02x", (unsigned)c);
    return out;
}

/* What numbers and words are made of. */
static bool in_token(int c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' ||
           c == '.';
}

const char *document_token_at(char out[DOCUMENT_TOKEN_MAX], const struct document *d, const struct piece *piece,
                              uint64_t offset) {
    size_t length = 0;
    int c = document_byte_at(d, piece, offset);
    for (; length < 40 && in_token(c); c = document_byte_at(d, piece, offset + length)) out[length++] = (char)c;
    snprintf(out + length, DOCUMENT_TOKEN_MAX - length, "%s", in_token(c) ? "..." : "");
    return out;
}

/* A problem of the JSON text itself, at `offset`. `what` ends before the place. */
void document_bad_json_at(struct document *d, const struct piece *piece, uint64_t offset, enum problem_code code,
                          const char *what) {
    uint64_t line, column;
    locate(d, piece->bytes, piece->size, offset, &line, &column);
    problem_set(d->request->problem, code, "", "%s (line %llu, column %llu, byte %llu).", what,
                (unsigned long long)line, (unsigned long long)column, (unsigned long long)offset);
    d->request->problem->position = (long long)offset;
}

void document_point_to(struct document *d, const char *pointer) {
    snprintf(d->request->problem->pointer, sizeof d->request->problem->pointer, "%s", pointer);
}

void document_bad_json(struct document *d, const struct piece *piece, enum problem_code code, const char *what) {
    document_bad_json_at(d, piece, d->consumed + piece->at, code, what);
}

/* "Expected X, but found Y". */
size_t document_unexpected(struct document *d, const struct piece *piece, const char *expected) {
    char text[300], found[48];
    uint64_t offset = d->consumed + piece->at;
    snprintf(text, sizeof text, "The body is not JSON: expected %s, %s", expected,
             document_found(found, d, piece, offset));
    document_bad_json_at(d, piece, offset, PROBLEM_JSON_SYNTAX, text);
    return 0;
}

bool document_no_memory(struct document *d, enum mem_status why, size_t bytes, const char *what) {
    return problem_memory(d->request->problem, why, d->request->budget, "", bytes, what);
}

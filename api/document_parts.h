/* SPDX-License-Identifier: Apache-2.0
 *
 * api/document_parts.h - what the three files of the document reader share; private to them. document.c is the automaton,
 * document_tensor.c what tensors mean, document_place.c places and problems.
 */
#ifndef MHA_API_DOCUMENT_PARTS_H
#define MHA_API_DOCUMENT_PARTS_H

#include "document.h"

/* Members of a tensor's object. */
enum member { MEMBER_NONE = -1, MEMBER_SHAPE = 0, MEMBER_DATA, MEMBER_DTYPE, MEMBER_BASE64, MEMBER_COUNT };

/* What a completed value was. */
enum kind { KIND_STRING, KIND_NUMBER, KIND_TRUE, KIND_FALSE, KIND_NULL, KIND_ARRAY, KIND_OBJECT };

/* A piece of the body with the byte the automaton looks at. */
struct piece {
    const char *bytes;
    size_t size, at;
};

static inline bool document_failed(const struct document *d) { return d->request->problem->code != PROBLEM_NONE; }

/* ---- document_place.c ---- */

/* The byte at `offset`, or -1 at the end of the body. */
int document_byte_at(const struct document *d, const struct piece *piece, uint64_t offset) PROBLEM_COLD;
/* "but found '2'", "but found the byte 0x01", "but the body ends". */
const char *document_found(char out[48], const struct document *d, const struct piece *piece,
                           uint64_t offset) PROBLEM_COLD;
/* The number or word at `offset`, cut after 40 characters: "01", "True". Returns `out`. */
#define DOCUMENT_TOKEN_MAX 48
const char *document_token_at(char out[DOCUMENT_TOKEN_MAX], const struct document *d, const struct piece *piece,
                              uint64_t offset) PROBLEM_COLD;
/* A problem of the JSON text itself, at `offset` or where the automaton is. `what` ends before the place. */
void document_bad_json_at(struct document *d, const struct piece *piece, uint64_t offset, enum problem_code code,
                          const char *what) PROBLEM_COLD;
/* Afterwards: the element or field that the problem just set is about. */
void document_point_to(struct document *d, const char *pointer) PROBLEM_COLD;
void document_bad_json(struct document *d, const struct piece *piece, enum problem_code code,
                       const char *what) PROBLEM_COLD;
/* "Expected X, but found Y". Returns 0, the bytes taken. */
size_t document_unexpected(struct document *d, const struct piece *piece, const char *expected) PROBLEM_COLD;
/* Returns false. */
bool document_no_memory(struct document *d, enum mem_status why, size_t bytes, const char *what) PROBLEM_COLD;
/* Remembers the lines of a piece before it goes away. */
void document_count_lines(struct document *d, const char *bytes, size_t size);

/* ---- document_tensor.c: all of the tensor d->tensor, of the field d->field; false: a problem is latched ---- */

/* At the '[' of the numbers. */
void document_begin_numbers(struct document *d, const struct piece *piece);
/* Hands the rest of the piece to the tensor reader, which takes *used of it; true: the array is complete. */
bool document_feed_numbers(struct document *d, const struct piece *piece, size_t *used);
/* Decoded characters of the string "base64". */
bool document_base64(struct document *d, const char *text, size_t length);
/* The name of a member of a tensor's object, in d->token; its value is complete; the tensor's value is complete. */
bool document_member_key(struct document *d);
bool document_member_done(struct document *d, enum kind kind);
bool document_tensor_done(struct document *d, enum kind kind);

#endif

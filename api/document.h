/* SPDX-License-Identifier: Apache-2.0
 *
 * api/document.h - reads the JSON document of a request while it arrives, in pieces of any size, into a struct request.
 *
 * Model. One automaton without recursion walks the bytes once. Members of the top-level object that are tensors go to the
 * tensor reader (nested arrays) or, as {"shape", "data"} or {"shape", "dtype", "base64"} with members in any order, to it and to
 * the base64 decoder: their text is never stored. The text of all other members is collected, at most DOCUMENT_REST_MAX
 * bytes, and parsed by cJSON when the document is complete. Everything is checked strictly against RFC 8259 on the way, so
 * cJSON never sees text that is not JSON: UTF-8, escapes, control characters, numbers, nesting, nothing after the end.
 *
 * Errors name line, column and byte offset (all of bytes; line and column from 1, offset from 0). After the first error the rest
 * is dropped. "dtype" is best sent first: numbers that follow are then read straight to that precision; when it comes later
 * they are kept as float64 with notes that let the later rounding be exact.
 *
 * What it does not do: know what fields mean (request.c and below), or duplicates inside the values of options (options.c).
 */
#ifndef MHA_API_DOCUMENT_H
#define MHA_API_DOCUMENT_H

#include "base64.h"
#include "request.h"

#define DOCUMENT_REST_MAX  ((size_t)256 * 1024) /* bytes of text that are not tensors */
#define DOCUMENT_DEPTH_MAX 60                   /* open brackets outside tensors */
#define DOCUMENT_NAME_MAX  128                  /* bytes of a name that are kept; no field is as long */

struct document {
    struct request *request;

    /* where we are */
    uint64_t consumed;   /* bytes before the current piece */
    uint64_t line;       /* lines before it */
    uint64_t line_start; /* offset of the first byte of the line it begins in */

    /* the automaton */
    int state;
    size_t depth;
    uint64_t objects; /* bit d: the bracket at depth d + 1 is a brace */

    /* the string, number or word being read */
    int escape;                        /* 0, or which byte of an escape comes next */
    unsigned code_unit;                /* of \uXXXX */
    unsigned surrogate;                /* a high one waiting for its low one, or 0 */
    unsigned utf8_left;                /* continuation bytes still to come */
    unsigned char utf8_low, utf8_high; /* bounds of the next one */
    bool nul;                          /* the string had \u0000 */
    size_t length;                     /* bytes in token; may stop short of the text */
    char token[TENSOR_TEXT_NUMBER_MAX + 32];

    /* the member being read */
    const struct field *field;
    struct tensor *tensor; /* inside a tensor's value */
    int member;            /* inside a tensor's object: which member, and which were seen */
    unsigned members;
    enum tensor_type member_type;
    size_t flat;           /* numbers in data, bytes in base64 */
    uint64_t tensor_start; /* offset of its '[' */
    uint64_t carry_start;  /* offset of the token that the tensor reader carried into this piece */
    struct tensor_text text, shape;
    struct mem_grow shape_data;
    struct base64_decoder base64;

    /* everything that is not a tensor */
    struct mem_grow rest;
    size_t rest_value; /* where the value being collected began in it */
    bool collecting;
};

void document_init(struct document *document, struct request *request);
void document_feed(struct document *document, const char *bytes, size_t size);
/* The body is complete: the options are parsed, or the request's problem says what is missing. */
bool document_end(struct document *document);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/problem.h - every error a client can see: one enum, one table (status, code, title), one detail struct, one renderer
 * to application/problem+json (RFC 9457).
 *
 * Model. A `struct problem` starts as PROBLEM_NONE and latches: the first problem set stays. `detail` names the field, both
 * numbers, the rule and a way out. The table in problem.c is also the README's and OpenAPI's error table. `type` is the
 * relative reference /problems/<code>: it identifies the problem; nothing needs to be served there.
 */
#ifndef MHA_API_PROBLEM_H
#define MHA_API_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>

#include "memory.h"

enum problem_code {
    PROBLEM_NONE = 0,
    /* 400: the body is not JSON (or not safetensors) */
    PROBLEM_JSON_SYNTAX,     /* {"Q":[[1 2]]                                  */
    PROBLEM_JSON_EMPTY,      /* no body at all                                 */
    PROBLEM_JSON_NON_FINITE, /* [[NaN]], [[-Infinity]], [[1e999]]              */
    PROBLEM_JSON_TOO_DEEP,   /* 100000 brackets                                */
    PROBLEM_NUMBER_TOO_LONG, /* one number of more than 1,000 characters       */
    PROBLEM_SAFETENSORS,     /* a file that breaks a rule of the format        */
    PROBLEM_HTTP,            /* a request that is not HTTP/1.1 as it should be */
    /* 422: JSON, but wrong */
    PROBLEM_MISSING_FIELD,
    PROBLEM_UNKNOWN_FIELD,
    PROBLEM_DUPLICATE_FIELD,
    PROBLEM_WRONG_TYPE,
    PROBLEM_OUT_OF_RANGE,
    PROBLEM_SHAPE_MISMATCH,
    PROBLEM_RAGGED,
    PROBLEM_RANK,
    PROBLEM_AMBIGUOUS_MASK,
    PROBLEM_CONFLICT,
    PROBLEM_BAD_BASE64,
    PROBLEM_NON_FINITE_INPUT,
    PROBLEM_NON_FINITE_RESULT,
    /* as HTTP says */
    PROBLEM_UNAUTHORIZED,
    PROBLEM_FORBIDDEN,
    PROBLEM_NOT_FOUND,
    PROBLEM_METHOD_NOT_ALLOWED,
    PROBLEM_NOT_ACCEPTABLE,
    PROBLEM_TIMEOUT,
    PROBLEM_LENGTH_REQUIRED,
    PROBLEM_BODY_TOO_LARGE,
    PROBLEM_RESULT_TOO_LARGE,
    PROBLEM_MEMORY_TOO_LARGE,
    PROBLEM_UNSUPPORTED_MEDIA_TYPE,
    PROBLEM_EXPECTATION_FAILED,
    PROBLEM_URI_TOO_LONG,
    PROBLEM_HEADERS_TOO_LARGE,
    PROBLEM_HTTP_VERSION,
    PROBLEM_INTERNAL,
    PROBLEM_NOT_IMPLEMENTED,
    PROBLEM_STORAGE,
    PROBLEM_QUEUE_FULL,
    PROBLEM_MEMORY_BUSY,
    PROBLEM_DRAINING,
    PROBLEM_OUT_OF_MEMORY,
    PROBLEM_DEADLINE,
    PROBLEM_LAYER_NOT_FOUND,
    PROBLEM_COUNT
};

struct problem {
    enum problem_code code;
    char detail[768];
    char pointer[256];  /* RFC 6901, or "" */
    char expected[160]; /* JSON text of the member, or "" when it does not apply */
    char actual[160];
    char stage[32];  /* non_finite_result: where */
    size_t index[4]; /* non_finite_result: first element */
    size_t rank;
    long long position; /* byte offset in the body, -1: none (with line and column in detail) */
    size_t limit, size; /* 413; both 0: none */
};

int problem_status(enum problem_code code);       /* 422 */
const char *problem_name(enum problem_code code); /* "shape_mismatch" */
const char *problem_title(enum problem_code code);

/* PROBLEM_NONE, everything else empty. Zeroed memory with position -1 is the same. */
void problem_init(struct problem *p);

/* What only a refused request runs. The compiler then keeps such code apart, also in the functions that call it: a small request
 * runs through more code than a first-level cache holds, so what it does not run should not lie in between. */
#define PROBLEM_COLD __attribute__((cold))

/* Sets code, pointer and a printf-style detail, if none is set yet. Returns false always, so `return problem_set(...)`. */
bool problem_set(struct problem *p, enum problem_code code, const char *pointer, const char *format, ...)
    __attribute__((format(printf, 4, 5))) PROBLEM_COLD;
/* Afterwards, on the problem just set: JSON text for the members. */
void problem_expected(struct problem *p, const char *format, ...) __attribute__((format(printf, 2, 3))) PROBLEM_COLD;
void problem_actual(struct problem *p, const char *format, ...) __attribute__((format(printf, 2, 3))) PROBLEM_COLD;
/* The same, as a JSON string with what needs it escaped. */
void problem_expected_text(struct problem *p, const char *text) PROBLEM_COLD;
void problem_actual_text(struct problem *p, const char *text) PROBLEM_COLD;

/* The problem for a refused allocation of `bytes` for `what` ("The weights", "Q"): 413 with limit and size, or 503. Returns
 * false. */
bool problem_memory(struct problem *p, enum mem_status why, const struct mem_budget *budget, const char *pointer,
                    size_t bytes, const char *what) PROBLEM_COLD;

/* Text for details: "/Q/0/1" (RFC 6901, `field` gets escaped), "[3,4]". All return `out`. */
#define PROBLEM_POINTER_MAX 256
#define PROBLEM_SHAPE_MAX   128
size_t problem_pointer_append(char *out, size_t size, size_t at, const char *token) PROBLEM_COLD; /* new length */
const char *problem_pointer_index(char out[PROBLEM_POINTER_MAX], const char *field, const size_t *index,
                                  size_t rank) PROBLEM_COLD;
const char *problem_shape(char out[PROBLEM_SHAPE_MAX], const size_t *dim, size_t rank) PROBLEM_COLD;

/* Renders into out (always a whole JSON document; long members are cut at a UTF-8 boundary). Returns the length. Needs no
 * allocation, so that "out of memory" can be said. */
#define PROBLEM_TEXT_MAX 4096
size_t problem_render(const struct problem *p, const char *request_id, char out[PROBLEM_TEXT_MAX]);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/answer.h - a whole answer at once, for everything that is small and needs no run: lists, descriptions, deletions.
 *
 * Model. The server hands an empty answer (status 200) to one function per route and sends what it finds in it. Setting a
 * problem (problem_set(&answer->problem, ...)) makes the answer that problem, whatever else is set.
 *
 * What it does not do: stream. Large answers are calls (api/call.h).
 */
#ifndef MHA_API_ANSWER_H
#define MHA_API_ANSWER_H

#include "call.h"

struct api_answer {
    int status;               /* 200 unless set; 204 sends no body */
    const char *content_type; /* constant storage */
    char *body;               /* malloc'd, the server frees it; or, with `borrowed`, constant storage */
    size_t size;
    bool borrowed;
    struct problem problem;
};

/* A route of the route table: `name` is what stood for {name} in its path ("" when it has none), `out` the media type that the
 * client accepts. */
typedef void api_answer_function(const struct api_env *env, const char *name, enum api_media out,
                                 struct api_answer *answer);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/post.h - one request through api_call_*, computed on the calling thread: what the unit tests of api share.
 */
#ifndef MHA_TESTS_UNIT_SUPPORT_POST_H
#define MHA_TESTS_UNIT_SUPPORT_POST_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../../api/call.h"

struct answer {
    int status;
    enum problem_code code;
    struct problem problem;
    char *text; /* NUL-terminated; free it */
    size_t length;
    bool refused; /* api_call_open said NULL */
};

/* Feeds the body in pieces of at most `piece` bytes, each in a block of its own so that a sanitizer sees a read past it. */
static inline struct answer post_pieces(const struct api_env *env, const char *body, size_t length, size_t piece) {
    struct answer answer = {0};
    struct api_call *call = api_call_open(env, API_MHA, API_JSON, API_JSON, length);
    answer.text = calloc(1, 1);
    if (!call) {
        answer.refused = true;
        answer.status = 503;
        return answer;
    }
    for (size_t at = 0; at < length; at += piece) {
        size_t size = length - at < piece ? length - at : piece;
        char *copy = malloc(size);
        memcpy(copy, body + at, size);
        api_call_feed(call, copy, size);
        free(copy);
    }
    api_call_end(call);
    if (api_call_run(call)) {
        mha_run_here(api_call_run(call));
        api_call_computed(call);
    }
    answer.status = api_call_status(call);
    answer.code = api_call_problem(call)->code;
    answer.problem = *api_call_problem(call);
    char block[4096];
    for (size_t n; (n = api_call_read(call, block, sizeof block)) > 0;) {
        answer.text = realloc(answer.text, answer.length + n + 1);
        memcpy(answer.text + answer.length, block, n);
        answer.length += n;
        answer.text[answer.length] = 0;
    }
    api_call_close(call);
    return answer;
}

static inline struct answer post(const struct api_env *env, const char *body) {
    return post_pieces(env, body, strlen(body), SIZE_MAX >> 1);
}

#endif

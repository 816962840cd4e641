/* SPDX-License-Identifier: Apache-2.0
 *
 * api/response.c - writes the answer as JSON, block by block.
 *
 * Model. A place in the list of tensors, a stage inside it (name, numbers, end), and the tensor writer's own place. What
 * surrounds the numbers is short, so a block always has room for it; the numbers fill what is left.
 */
#include "response.h"

#include <stdio.h>
#include <string.h>

enum stage { STAGE_NAME, STAGE_NUMBERS, STAGE_WARNINGS, STAGE_DONE };

#define AROUND_MAX 256 /* bytes of names, brackets, warnings written in one piece */

void response_json_begin(struct response_json *w, const struct response *response) {
    w->response = response;
    w->next = 0;
    w->stage = response->count ? STAGE_NAME : STAGE_WARNINGS;
}

/* Whether tensor i is a member of the same object as the one before it (step -1) or after it (+1). */
static bool same_object(const struct response *r, size_t i, size_t other) {
    return other < r->count && r->tensor[i].member && r->tensor[other].name == r->tensor[i].name;
}

static size_t put(char *out, size_t at, const char *text) {
    size_t length = strlen(text);
    memcpy(out + at, text, length);
    return at + length;
}

static size_t put_key(char *out, size_t at, const char *name) {
    at = put(out, at, "\"");
    at = put(out, at, name);
    return put(out, at, "\":");
}

/* ,"projections":{"Q": or ,"K": or ,"output": */
static size_t write_name(struct response_json *w, char *out) {
    const struct response *r = w->response;
    const struct response_tensor *t = &r->tensor[w->next];
    size_t at = put(out, 0, w->next ? "," : "{");
    if (!w->next || !same_object(r, w->next, w->next - 1)) {
        at = put_key(out, at, t->name);
        if (t->member) at = put(out, at, "{");
    }
    if (t->member) at = put_key(out, at, t->member);
    enum tensor_write_type type = r->dtype == MHA_F32 ? TENSOR_WRITE_F32 : TENSOR_WRITE_F64;
    tensor_write_begin(&w->tensor, r->format, type, t->data, t->rank, t->dim);
    w->stage = STAGE_NUMBERS;
    return at;
}

/* The numbers are complete: the brace of the object, if it ends here. */
static size_t write_end(struct response_json *w, char *out) {
    const struct response *r = w->response;
    bool closes = r->tensor[w->next].member && !same_object(r, w->next, w->next + 1);
    if (closes) out[0] = '}';
    w->next++;
    w->stage = w->next < r->count ? STAGE_NAME : STAGE_WARNINGS;
    return closes;
}

static size_t write_warnings(struct response_json *w, char *out) {
    const struct response *r = w->response;
    size_t at = r->count ? 0 : put(out, 0, "{");
    w->stage = STAGE_DONE;
    if (r->masked_rows)
        at +=
            (size_t)snprintf(out + at, AROUND_MAX - at,
                             "%s\"warnings\":[{\"code\":\"fully_masked_rows\",\"count\":%llu,\"first\":[%zu,%zu,%zu]}]",
                             r->count ? "," : "", (unsigned long long)r->masked_rows, r->masked_first[0],
                             r->masked_first[1], r->masked_first[2]);
    return put(out, at, "}\n");
}

size_t response_json_read(struct response_json *w, char *out, size_t max) {
    size_t at = 0;
    while (w->stage != STAGE_DONE && max - at >= AROUND_MAX) {
        if (w->stage == STAGE_NAME) {
            at += write_name(w, out + at);
        } else if (w->stage == STAGE_NUMBERS) {
            if (max - at < TENSOR_WRITE_BLOCK_MIN) break;
            size_t written = tensor_write(&w->tensor, out + at, max - at);
            at += written;
            if (written == 0) at += write_end(w, out + at);
        } else {
            at += write_warnings(w, out + at);
        }
    }
    return at;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/call.c - the life of one request, api/call.h: reading, building, running, answering.
 *
 * Everything of a call lies in its arena, the struct itself included. Errors latch in call->problem; from then on the body is
 * dropped and the answer is the rendered problem.
 */
#include "call.h"

#include <stdio.h>
#include <string.h>

#include "document.h"

struct api_call {
    const struct api_env *env;
    struct mem_arena *arena;
    enum api_endpoint endpoint;
    enum api_media in, out;
    size_t body; /* bytes fed */
    struct problem problem;
    struct request request;
    struct document *document; /* NULL once read */
    struct job job;
    bool built, computed;
    struct mha_run *run;
    char request_id[132];

    /* the answer */
    bool answering;
    struct response_json json;
    size_t text_at, text_length; /* of a rendered problem */
    char text[PROBLEM_TEXT_MAX];
};

/* ---- reading ---- */

struct api_call *api_call_open(const struct api_env *env, enum api_endpoint endpoint, enum api_media in,
                               enum api_media out, size_t body_bytes) {
    struct mem_arena *arena = mem_arena_new(env->budget);
    if (!arena) return NULL;
    struct api_call *call = mem_alloc(arena, sizeof *call, NULL);
    struct document *document = mem_alloc(arena, sizeof *document, NULL);
    if (!call || !document) {
        mem_arena_free(arena);
        return NULL;
    }
    memset(call, 0, offsetof(struct api_call, text));
    call->env = env;
    call->arena = arena;
    call->endpoint = endpoint;
    call->in = in;
    call->out = out;
    problem_init(&call->problem);
    request_init(&call->request, endpoint == API_LAYER_PUT ? IN_LAYER : IN_MHA, arena, env->budget, &call->problem);
    document_init(document, &call->request);
    call->document = document;
    if (body_bytes != SIZE_MAX && body_bytes > env->max_body) {
        problem_set(&call->problem, PROBLEM_BODY_TOO_LARGE, "",
                    "The body has %zu bytes; the limit is %zu bytes (--max-body). Send less at once, or load the "
                    "weights once as a "
                    "resident layer.",
                    body_bytes, env->max_body);
        call->problem.limit = env->max_body;
        call->problem.size = body_bytes;
    }
    return call;
}

void api_call_feed(struct api_call *call, const void *bytes, size_t size) {
    if (api_call_failed(call)) return;
    if (size > call->env->max_body - call->body) {
        problem_set(&call->problem, PROBLEM_BODY_TOO_LARGE, "",
                    "The body has more than %zu bytes, the limit (--max-body). Send less at once, or load the weights "
                    "once as a "
                    "resident layer.",
                    call->env->max_body);
        call->problem.limit = call->env->max_body;
        call->problem.size = call->body + size;
        return;
    }
    call->body += size;
    document_feed(call->document, bytes, size);
}

/* ---- building ---- */

/* The resident layer that the request names. The seam for api/layers.h: look it up, hold a reference until api_call_close. */
static bool find_layer(struct api_call *call, const struct mha_layer **layer) {
    const char *name = call->job.options.layer;
    *layer = NULL;
    if (!name) return true;
    return problem_set(
        &call->problem, PROBLEM_LAYER_NOT_FOUND, "/layer",
        "There is no layer \"%.60s\": no layers are loaded. Start with --layers DIR or PUT /v1/layers/{name}, or "
        "send the weights with the request.",
        name);
}

static void build(struct api_call *call) {
    const struct mha_layer *layer;
    struct job *job = &call->job;
    if (!document_end(call->document)) return;
    if (!options_read(&call->request, &job->options) || !find_layer(call, &layer)) return;
    if (!request_build(&call->request, layer, call->env->threads, job)) return;
    call->built = true;
    call->run = mha_run_init(job->workspace, &job->problem, &job->result, call->env->threads);
}

void api_call_end(struct api_call *call) {
    if (!api_call_failed(call)) build(call);
    call->document = NULL;
}

struct problem *api_call_problem(struct api_call *call) {
    return &call->problem;
}
bool api_call_failed(const struct api_call *call) { return call->problem.code != PROBLEM_NONE; }

/* ---- running ---- */

struct mha_run *api_call_run(struct api_call *call) {
    return api_call_failed(call) ? NULL : call->run;
}
double api_call_flops(const struct api_call *call) { return call->built ? call->job.need.flops : 0; }

static void non_finite_result(struct api_call *call, const struct mha_detail *detail) {
    char place[PROBLEM_SHAPE_MAX];
    const char *stage = detail->field ? detail->field : "output";
    problem_shape(place, detail->index, detail->rank);
    problem_set(&call->problem, PROBLEM_NON_FINITE_RESULT, "",
                "The result is not finite: %s%s is NaN or infinite, the first place where it went wrong. The numbers "
                "overflow %s; "
                "scale the inputs or weights%s.",
                stage, place, call->job.problem.dtype == MHA_F32 ? "float32" : "float64",
                call->job.problem.dtype == MHA_F32 ? ", or use \"dtype\": \"float64\"" : "");
    if (call->problem.code != PROBLEM_NON_FINITE_RESULT) return;
    snprintf(call->problem.stage, sizeof call->problem.stage, "%s", stage);
    call->problem.rank = detail->rank;
    memcpy(call->problem.index, detail->index, sizeof call->problem.index);
}

void api_call_computed(struct api_call *call) {
    if (!call->run) return;
    struct response *response = &call->job.response;
    switch (mha_run_status(call->run)) {
    case MHA_OK:
        break;
    case MHA_ERR_NON_FINITE:
        non_finite_result(call, &call->job.result.detail);
        break;
    case MHA_ERR_CANCELLED:
        problem_set(&call->problem, PROBLEM_DEADLINE, "", "The computation was cancelled before it was complete.");
        break;
    default:
        problem_set(&call->problem, PROBLEM_INTERNAL, "", "The computation failed for an unknown reason.");
        break;
    }
    response->masked_rows = call->job.result.masked_rows;
    memcpy(response->masked_first, call->job.result.masked_first, sizeof response->masked_first);
    call->run = NULL;
    call->computed = true;
}

/* ---- answering ---- */

int api_call_status(const struct api_call *call) { return problem_status(call->problem.code); }

const char *api_call_content_type(const struct api_call *call) {
    return api_call_failed(call) ? "application/problem+json" : "application/json";
}

void api_call_request_id(struct api_call *call, const char *id) {
    snprintf(call->request_id, sizeof call->request_id, "%s", id ? id : "");
}

static size_t read_problem(struct api_call *call, char *out, size_t max) {
    size_t length = call->text_length - call->text_at;
    if (length > max) length = max;
    memcpy(out, call->text + call->text_at, length);
    call->text_at += length;
    return length;
}

size_t api_call_read(struct api_call *call, char *out, size_t max) {
    if (!call->answering) {
        call->answering = true;
        if (!api_call_failed(call) && !call->computed)
            problem_set(&call->problem, PROBLEM_INTERNAL, "", "The answer was asked for before it was computed.");
        if (api_call_failed(call))
            call->text_length = problem_render(&call->problem, call->request_id, call->text);
        else
            response_json_begin(&call->json, &call->job.response);
    }
    return call->text_length ? read_problem(call, out, max) : response_json_read(&call->json, out, max);
}

size_t api_call_summary(const struct api_call *call, char *out, size_t max) {
    const struct mha_problem *p = &call->job.problem;
    int length;
    if (!call->built)
        length = snprintf(out, max, "-");
    else
        length =
            snprintf(out, max, "B=%zu n_q=%zu n_kv=%zu h=%zu h_kv=%zu d_k=%zu d_v=%zu %s%s%s", p->B, p->n_q,
                     p->n_past + p->n_k, p->h, p->h_kv, p->d_k, p->d_v, p->dtype == MHA_F32 ? "float32" : "float64",
                     call->job.options.layer ? " layer" : "", p->causal ? " causal" : "");
    return length < 0 ? 0 : (size_t)length < max ? (size_t)length : max ? max - 1 : 0;
}

void api_call_close(struct api_call *call) {
    if (!call) return;
    request_free(&call->request);
    mem_arena_free(call->arena);
}

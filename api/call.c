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
#include "layer_put.h"
#include "layers.h"
#include "response_safetensors.h"
#include "safetensors_body.h"

struct api_call {
    const struct api_env *env;
    struct mem_arena *arena;
    enum api_endpoint endpoint;
    enum api_media in, out;
    size_t body;                     /* bytes fed */
    struct document *document;       /* JSON: NULL once read */
    struct safetensors_body *binary; /* safetensors: NULL if it is JSON */
    struct layer *layer;             /* the resident layer that is used: our reference */
    struct layer_put *put;           /* API_LAYER_PUT, else NULL */
    bool read, unfinished;           /* the body has been read to its end; what follows from it is left to do */
    bool built, computed;
    struct mha_run *run;
    char request_id[132];

    /* the answer */
    bool answering;
    struct response_safetensors safetensors;
    size_t text_at, text_length; /* of a rendered problem */

    /* Large, and so not zeroed with the rest: each has a function that makes it, called before anything reads it. */
    struct problem problem;
    struct request request;
    struct job job; /* options_read, then request_build */
    struct response_json json;
    char text[PROBLEM_TEXT_MAX];
};

/* ---- reading ---- */

/* The reader for the body's format, in the call's arena. */
static bool open_reader(struct api_call *call) {
    if (call->in == API_SAFETENSORS) {
        call->binary = mem_alloc(call->arena, sizeof *call->binary, NULL);
        if (call->binary) safetensors_body_init(call->binary, &call->request);
        return call->binary != NULL;
    }
    call->document = mem_alloc(call->arena, sizeof *call->document, NULL);
    if (call->document) document_init(call->document, &call->request);
    return call->document != NULL;
}

/* What a layer's body becomes lives on after the call, so it has an arena of its own. */
static bool open_request(struct api_call *call) {
    bool layer = call->endpoint == API_LAYER_PUT;
    struct mem_arena *arena = call->arena;
    if (layer) {
        call->put = mem_alloc(call->arena, sizeof *call->put, NULL);
        if (!call->put || !layer_put_init(call->put, call->env)) {
            call->put = NULL;
            return false;
        }
        arena = call->put->arena;
    }
    request_init(&call->request, layer ? IN_LAYER : IN_MHA, arena, call->env->budget, &call->problem);
    return open_reader(call);
}

struct api_call *api_call_open(const struct api_env *env, enum api_endpoint endpoint, enum api_media in,
                               enum api_media out, size_t body_bytes) {
    struct mem_arena *arena = mem_arena_new(env->budget);
    if (!arena) return NULL;
    struct api_call *call = mem_alloc(arena, sizeof *call, NULL);
    if (!call) {
        mem_arena_free(arena);
        return NULL;
    }
    memset(call, 0, offsetof(struct api_call, problem));
    call->env = env;
    call->arena = arena;
    call->endpoint = endpoint;
    call->in = in;
    call->out = out;
    problem_init(&call->problem);
    if (!open_request(call)) {
        if (call->put) layer_put_free(call->put);
        mem_arena_free(arena);
        return NULL;
    }
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

void api_call_layer(struct api_call *call, const char *name, bool checkpoint, size_t num_heads) {
    if (!layer_put_target(call->put, name, &call->problem) || !checkpoint) return;
    if (call->in == API_SAFETENSORS)
        safetensors_body_checkpoint(call->binary, &call->request, num_heads);
    else
        problem_set(&call->problem, PROBLEM_CONFLICT, "",
                    "checkpoint=1 takes a whole model as a safetensors file: send Content-Type: "
                    "application/vnd.safetensors.");
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
    if (call->binary)
        safetensors_body_feed(call->binary, bytes, size);
    else
        document_feed(call->document, bytes, size);
}

/* ---- building ---- */

static bool no_such_layer(struct api_call *call, const char *name) {
    char near[LAYER_NAME_MAX + 1] = "";
    size_t count = call->env->layers ? layer_store_count(call->env->layers) : 0;
    if (count == 0)
        return problem_set(&call->problem, PROBLEM_LAYER_NOT_FOUND, "/layer",
                           "There is no layer \"%.60s\": no layers are loaded. Start with --layers DIR or PUT "
                           "/v1/layers/{name}, or send the weights with the request.",
                           name);
    layer_store_suggest(call->env->layers, name, near);
    return problem_set(&call->problem, PROBLEM_LAYER_NOT_FOUND, "/layer",
                       "There is no layer \"%.60s\" among the %zu that are loaded (GET /v1/layers lists them).%s%s%s",
                       name, count, near[0] ? " Did you mean \"" : "", near, near[0] ? "\"?" : "");
}

/* What the request leaves open is as the layer says. */
static void take_defaults(struct api_call *call, const struct layer_source *source) {
    struct options *o = &call->job.options;
    bool softcap = call->request.seen >> (field_of_option(O_softcap) - fields) & 1;
    if (!o->has_scale && source->has_scale) {
        o->has_scale = true;
        o->scale = source->scale;
    }
    if (!softcap && source->has_softcap) o->softcap = source->softcap;
}

/* The resident layer that the request names, if it names one; our reference lasts until api_call_close. */
static bool find_layer(struct api_call *call) {
    const struct options *o = &call->job.options;
    if (!o->layer) return true;
    call->layer = call->env->layers ? layer_store_get(call->env->layers, o->layer) : NULL;
    if (!call->layer) return no_such_layer(call, o->layer);
    take_defaults(call, layer_source(call->layer));
    return true;
}

static enum mha_dtype layer_dtype(const struct api_call *call) {
    const struct options *o = &call->job.options;
    return o->has_dtype ? o->dtype : layer_source(call->layer)->dtype;
}

/* In the precision that the request wants; may take long. */
static bool pack_layer(struct api_call *call, const struct mha_layer **packed) {
    struct problem why;
    *packed = NULL;
    if (!call->layer) return true;
    problem_init(&why);
    *packed = layer_packed(call->layer, layer_dtype(call), &why);
    if (*packed) return true;
    problem_set(&call->problem, why.code, "/layer", "Layer \"%.60s\": %.600s", call->job.options.layer, why.detail);
    call->problem.limit = why.limit;
    call->problem.size = why.size;
    return false;
}

static bool end_reader(struct api_call *call) {
    return call->binary ? safetensors_body_end(call->binary) : document_end(call->document);
}

static void build(struct api_call *call) {
    const struct mha_layer *layer;
    struct job *job = &call->job;
    if (!pack_layer(call, &layer)) return;
    if (!request_build(&call->request, layer, call->env->threads, job)) return;
    call->built = true;
    call->run = mha_run_init(job->workspace, &job->problem, &job->result, call->env->threads);
}

static void put_layer(struct api_call *call) {
    if (call->binary && call->binary->checkpoint)
        layer_put_checkpoint(call->put, &call->binary->found, &call->problem);
    else
        layer_put_one(call->put, &call->request);
    call->computed = true;
}

/* Up to so many bytes of weights are packed faster than another thread is woken. */
#define PACKED_AT_ONCE ((size_t)64 << 10)

static bool may_take_long(const struct api_call *call) {
    if (call->put) return call->env->layers_dir || call->body > PACKED_AT_ONCE;
    return call->layer && layer_source_bytes(call->layer) > PACKED_AT_ONCE &&
           !layer_is_packed(call->layer, layer_dtype(call));
}

/* Ends the reader; what is left then is unfinished. */
static void read_end(struct api_call *call) {
    bool good = !api_call_failed(call) && end_reader(call);
    call->document = NULL;
    call->read = true;
    call->unfinished = good && (call->put || (options_read(&call->request, &call->job.options) && find_layer(call)));
}

bool api_call_end_soon(struct api_call *call) {
    read_end(call);
    if (call->unfinished && may_take_long(call)) return false;
    api_call_end(call);
    return true;
}

void api_call_end(struct api_call *call) {
    if (!call->read) read_end(call);
    if (!call->unfinished) return;
    call->unfinished = false;
    if (call->put)
        put_layer(call);
    else
        build(call);
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

double api_call_work(const struct api_call *call) {
    enum { ROW_FLOPS = 64, BYTE_FLOPS = 2 };
    if (!call->built) return 0;
    const struct mha_problem *p = &call->job.problem;
    double rows = (double)p->h * (double)p->n_q + (double)p->h_kv * (double)p->n_k + 1, bytes = 0;
    for (size_t i = 0; i < call->job.response.count; i++) bytes += (double)call->job.response.tensor[i].bytes;
    return call->job.need.flops + ROW_FLOPS * (double)p->B * rows + BYTE_FLOPS * bytes;
}

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
    if (call->out == API_SAFETENSORS && !api_call_failed(call) &&
        !response_safetensors_begin(&call->safetensors, response))
        problem_memory(&call->problem, MEM_FAILED, call->env->budget, "", 0, "The answer");
}

/* ---- answering ---- */

int api_call_status(const struct api_call *call) {
    if (call->put && !api_call_failed(call)) return call->put->created ? 201 : 200;
    return problem_status(call->problem.code);
}

const char *api_call_content_type(const struct api_call *call) {
    if (api_call_failed(call)) return "application/problem+json";
    return call->out == API_SAFETENSORS && !call->put ? "application/vnd.safetensors" : "application/json";
}

void api_call_request_id(struct api_call *call, const char *id) {
    size_t length = id ? strlen(id) : 0;
    if (length >= sizeof call->request_id) length = sizeof call->request_id - 1;
    if (length) memcpy(call->request_id, id, length);
    call->request_id[length] = 0;
}

/* The whole text of an answer that is one: a problem or what a PUT says. */
static size_t read_text(const char *text, size_t length, size_t *at, char *out, size_t max) {
    size_t n = length - *at < max ? length - *at : max;
    memcpy(out, text + *at, n);
    *at += n;
    return n;
}

static void begin_answer(struct api_call *call) {
    call->answering = true;
    if (!api_call_failed(call) && !call->computed)
        problem_set(&call->problem, PROBLEM_INTERNAL, "", "The answer was asked for before it was computed.");
    if (api_call_failed(call))
        call->text_length = problem_render(&call->problem, call->request_id, call->text);
    else if (!call->put && call->out == API_JSON)
        response_json_begin(&call->json, &call->job.response);
}

size_t api_call_length(const struct api_call *call) {
    bool known = call->out == API_SAFETENSORS && !call->put && call->computed && !api_call_failed(call);
    return known ? response_safetensors_bytes(&call->safetensors) : SIZE_MAX;
}

size_t api_call_read(struct api_call *call, char *out, size_t max) {
    if (!call->answering) begin_answer(call);
    if (call->text_length) return read_text(call->text, call->text_length, &call->text_at, out, max);
    if (call->put) return read_text(call->put->text, strlen(call->put->text), &call->text_at, out, max);
    return call->out == API_SAFETENSORS ? response_safetensors_read(&call->safetensors, out, max)
                                        : response_json_read(&call->json, out, max);
}

#define SUMMARY_MAX 512

/* Not snprintf: this is part of every request's log line. Inline, so that the lengths of literals are constants. */
static inline __attribute__((always_inline)) char *put_text(char *p, const char *text) {
    size_t length = strlen(text);
    memcpy(p, text, length);
    return p + length;
}

static char *put_size(char *p, size_t value) {
    char digits[20], *first = digits + sizeof digits;
    do *--first = (char)('0' + value % 10);
    while (value /= 10);
    while (first < digits + sizeof digits) *p++ = *first++;
    return p;
}

static char *put_summary(char *p, const struct api_call *call) {
    const struct mha_problem *m = &call->job.problem;
    p = put_size(put_text(p, "B="), m->B);
    p = put_size(put_text(p, " n_q="), m->n_q);
    p = put_size(put_text(p, " n_kv="), m->n_past + m->n_k);
    p = put_size(put_text(p, " h="), m->h);
    p = put_size(put_text(p, " h_kv="), m->h_kv);
    p = put_size(put_text(p, " d_k="), m->d_k);
    p = put_size(put_text(p, " d_v="), m->d_v);
    p = put_text(p, m->dtype == MHA_F32 ? " float32" : " float64");
    if (call->job.options.layer) p = put_text(p, " layer");
    return m->causal ? put_text(p, " causal") : p;
}

size_t api_call_summary(const struct api_call *call, char *out, size_t max) {
    char text[SUMMARY_MAX];
    size_t length = (size_t)((call->built ? put_summary(text, call) : put_text(text, "-")) - text);
    if (max == 0) return 0;
    if (length >= max) length = max - 1;
    memcpy(out, text, length);
    out[length] = 0;
    return length;
}

void api_call_close(struct api_call *call) {
    if (!call) return;
    if (call->binary) safetensors_body_free(call->binary);
    response_safetensors_end(&call->safetensors);
    layer_release(call->layer);
    if (call->put) layer_put_free(call->put);
    mem_arena_free(call->arena);
}

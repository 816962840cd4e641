/* SPDX-License-Identifier: Apache-2.0
 *
 * server/answer.c - see answer.h.
 */
#include "answer.h"

#include <stdlib.h>
#include <string.h>

#include "mhd_errors.h"
#include "request.h"
#include "service.h"
#include "text.h"

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static void add_timing(struct MHD_Response *response, const struct request *request, bool streamed) {
    char buffer[256];
    struct text out = text_in(buffer, sizeof buffer);
    text_add(&out, "read;dur=");
    text_ms(&out, request->read_at - request->head_at);
    if (request->run_at) {
        text_add(&out, ", queue;dur=");
        text_ms(&out, request->run_at - request->read_at);
        text_add(&out, ", compute;dur=");
        text_ms(&out, request->computed_at - request->run_at);
    } else {
        text_add(&out, ", compute;dur=0.000");
    }
    text_add(&out, ", write;dur=");
    text_ms(&out, request->write_ns);
    if (streamed) text_format(&out, ";desc=\"first %d bytes, the rest is written while it is sent\"", SCRATCH_BYTES);
    MHD_add_response_header(response, "Server-Timing", buffer);
}

static void add_cors(struct MHD_Response *response, const struct request *request) {
    const char *origin = request->conn->service->config->cors_origin;
    if (!*origin) return;
    if (strcmp(origin, "*") != 0) MHD_add_response_header(response, "Vary", "Origin");
    if (!request->origin_allowed) return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers", "Server-Timing, X-Request-Id, Retry-After");
}

static void add_allow(struct MHD_Response *response, const struct request *request) {
    char methods[128];
    if (!request->match.path) return;
    route_methods(request->match.path, methods, sizeof methods);
    MHD_add_response_header(response, "Allow", methods);
}

static void add_common(struct MHD_Response *response, const struct request *request) {
    MHD_add_response_header(response, "X-Request-Id", request->id);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (request->trace_id[0]) MHD_add_response_header(response, "traceparent", request->headers.traceparent);
    if (request->close_after || request->conn->service->draining)
        MHD_add_response_header(response, "Connection", "close");
    add_cors(response, request);
}

/* What a status asks for besides (RFC 9110, sections 10.2.3, 11.6.1, 15.5.6). */
static void add_for_status(struct MHD_Response *response, const struct request *request, int status) {
    if (status == 405) add_allow(response, request);
    if (status == 503) MHD_add_response_header(response, "Retry-After", request->conn->service->draining ? "5" : "1");
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"mhad\"");
    if (status == 415)
        MHD_add_response_header(response, "Accept-Post", "application/json, application/vnd.safetensors");
}

/* ---- queueing ---------------------------------------------------------------------------------------------------- */

static enum MHD_Result queue(struct request *request, int status, struct MHD_Response *response) {
    struct service *service = request->conn->service;
    if (!response) return MHD_NO;
    add_common(response, request);
    add_for_status(response, request, status);
    request->status = status;
    request->phase = PHASE_ANSWERING;
    request->answered_at = clock_now();
    conn_arm(request->conn, request->answered_at + service->config->write_timeout);
    enum MHD_Result result = mhd_errors_queue(request->conn->mhd, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

/* A body of at most SCRATCH_BYTES, copied by libmicrohttpd. */
static struct MHD_Response *small_response(struct request *request, const char *content_type, const char *body,
                                           size_t size) {
    union {
        const char *in;
        char *out;
    } bytes = {.in = body}; /* libmicrohttpd's parameter is not const, but it only copies */
    struct MHD_Response *response = MHD_create_response_from_buffer(size, bytes.out, MHD_RESPMEM_MUST_COPY);
    if (response && content_type) MHD_add_response_header(response, "Content-Type", content_type);
    request->bytes_out = request->match.head ? 0 : size;
    return response;
}

enum MHD_Result answer_problem(struct request *request) {
    char body[PROBLEM_TEXT_MAX];
    size_t size = problem_render(&request->problem, request->id, body);
    return queue(request, problem_status(request->problem.code),
                 small_response(request, "application/problem+json", body, size));
}

enum MHD_Result answer_whole(struct request *request, struct api_answer *answer) {
    struct MHD_Response *response;
    if (answer->problem.code != PROBLEM_NONE) {
        request->problem = answer->problem;
        if (!answer->borrowed) free(answer->body);
        return answer_problem(request);
    }
    request->bytes_out = request->match.head ? 0 : answer->size;
    response = MHD_create_response_from_buffer(answer->size, answer->body,
                                               answer->borrowed ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (!response && !answer->borrowed) free(answer->body);
    if (response && answer->content_type) MHD_add_response_header(response, "Content-Type", answer->content_type);
    return queue(request, answer->status, response);
}

enum MHD_Result answer_options(struct request *request) {
    char methods[128];
    struct MHD_Response *response = small_response(request, NULL, "", 0);
    if (!response) return MHD_NO;
    add_allow(response, request);
    if (request->origin_allowed && request->headers.preflight_method) {
        route_methods(request->match.path, methods, sizeof methods);
        MHD_add_response_header(response, "Access-Control-Allow-Methods", methods);
        MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                "Content-Type, Accept, Authorization, X-Request-Id, X-Request-Timeout, traceparent");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    return queue(request, 204, response);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Formats into out[size] until it is full or the answer ends. */
static size_t format(struct request *request, char *out, size_t size, bool *last) {
    uint64_t begun = clock_now();
    size_t filled = 0;
    *last = false;
    while (size - filled >= 4096) {
        size_t got = api_call_read(request->call, out + filled, size - filled);
        filled += got;
        if (got == 0) {
            *last = true;
            break;
        }
    }
    request->write_ns += clock_now() - begun;
    return filled;
}

/* MHD_ContentReaderCallback: hands out the stash and fills it anew. */
static ssize_t next_block(void *context, uint64_t position, char *out, size_t max) {
    struct request *request = context;
    (void)position;
    if (request->stash_sent == request->stash_size) {
        if (request->stash_last) return MHD_CONTENT_READER_END_OF_STREAM;
        request->stash_size = format(request, request->stash, SCRATCH_BYTES, &request->stash_last);
        request->stash_sent = 0;
        if (request->stash_size == 0) return MHD_CONTENT_READER_END_OF_STREAM;
    }
    size_t size = request->stash_size - request->stash_sent;
    if (size > max) size = max;
    memcpy(out, request->stash + request->stash_sent, size);
    request->stash_sent += size;
    request->bytes_out += size;
    request->conn->service->progress++;
    /* A second more for every 32 KiB that it has taken, but never more than --write-timeout from now. */
    uint64_t earned = request->conn->deadline.at + size * (NS_PER_SECOND / STASH_BYTES);
    uint64_t most = clock_now() + request->conn->service->config->write_timeout;
    conn_arm(request->conn, earned < most ? earned : most);
    return (ssize_t)size;
}

static struct MHD_Response *streamed_response(struct request *request, const char *content_type, size_t first) {
    struct service *service = request->conn->service;
    if (!mem_charge(&service->budget, SCRATCH_BYTES)) return NULL;
    request->stash = malloc(SCRATCH_BYTES);
    if (!request->stash) {
        mem_uncharge(&service->budget, SCRATCH_BYTES);
        return NULL;
    }
    memcpy(request->stash, service->scratch, first);
    request->stash_size = first;
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STASH_BYTES, next_block, request, NULL);
    if (response) MHD_add_response_header(response, "Content-Type", content_type);
    return response;
}

enum MHD_Result answer_call(struct request *request) {
    struct service *service = request->conn->service;
    struct MHD_Response *response;
    bool last;
    api_call_request_id(request->call, request->id);
    int status = api_call_status(request->call);
    const char *content_type = api_call_content_type(request->call);
    size_t size = format(request, service->scratch, SCRATCH_BYTES, &last);
    if (last)
        response = small_response(request, content_type, service->scratch, size);
    else
        response = streamed_response(request, content_type, size);
    if (!response) {
        problem_set(&request->problem, PROBLEM_MEMORY_BUSY, "", "Other requests hold the memory that the answer needs");
        return answer_problem(request);
    }
    add_timing(response, request, !last);
    return queue(request, status, response);
}

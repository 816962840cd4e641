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

#define BLOCK_BYTES      ((size_t)256 << 10) /* sent at once of an answer of known length */
#define CHUNK_BYTES      32768               /* asked for at once while an answer of unknown length is sent */
#define EARNING_BYTES    32768               /* what gives a client another second */
#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(digits) #digits

/* ---- headers ----------------------------------------------------------------------------------------------------- */

/* `later`: whether and how much of the answer is written while it is sent. */
static void add_timing(struct MHD_Response *response, const struct request *request, const char *later) {
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
    if (later) text_format(&out, ";desc=\"%s\"", later);
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

#define FORMAT_LEAST 4096 /* room that api_call_read wants */

/* Formats into out[size] until it is full or the answer ends. */
static size_t format(struct request *request, char *out, size_t size, bool *last) {
    uint64_t begun = clock_now();
    size_t filled = 0;
    *last = false;
    while (size - filled >= FORMAT_LEAST) {
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

/* The client has taken all before these bytes: a second more for every EARNING_BYTES of them, but never more than
 * --write-timeout from now. */
static void earn(struct request *request, size_t size) {
    struct service *service = request->conn->service;
    uint64_t earned = request->conn->deadline.at + size * (NS_PER_SECOND / EARNING_BYTES);
    uint64_t most = clock_now() + service->config->write_timeout;
    conn_arm(request->conn, earned < most ? earned : most);
    request->bytes_out += size;
    service->progress++;
}

/* MHD_ContentReaderCallback: hands out the stash and fills it anew. */
static ssize_t next_of_stash(void *context, uint64_t position, char *out, size_t max) {
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
    earn(request, size);
    return (ssize_t)size;
}

/* MHD_ContentReaderCallback of an answer whose length is known: straight into libmicrohttpd's block. */
static ssize_t next_block(void *context, uint64_t position, char *out, size_t max) {
    struct request *request = context;
    (void)position;
    uint64_t begun = clock_now();
    size_t size = api_call_read(request->call, out, max);
    request->write_ns += clock_now() - begun;
    if (size == 0) return MHD_CONTENT_READER_END_WITH_ERROR; /* the length was wrong: a fault of ours */
    earn(request, size);
    return (ssize_t)size;
}

/* The block or the stash of a streamed answer; given back by handler_completed. */
static bool charge_block(struct request *request, size_t bytes) {
    if (!mem_charge(&request->conn->service->budget, bytes)) return false;
    request->block_charged = bytes;
    return true;
}

/* The first `first` bytes are in scratch. Its length is known only at the end. */
static struct MHD_Response *chunked_response(struct request *request, size_t first) {
    request->stash = charge_block(request, SCRATCH_BYTES) ? malloc(SCRATCH_BYTES) : NULL;
    if (!request->stash) return NULL;
    memcpy(request->stash, request->conn->service->scratch, first);
    request->stash_size = first;
    return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK_BYTES, next_of_stash, request, NULL);
}

static struct MHD_Response *sized_response(struct request *request, size_t length) {
    size_t block = length < BLOCK_BYTES ? length : BLOCK_BYTES;
    if (!charge_block(request, block)) return NULL;
    return MHD_create_response_from_callback(length, block, next_block, request, NULL);
}

/* What is small is copied whole; *later says what the rest of a larger one waits for. */
static struct MHD_Response *call_response(struct request *request, const char *content_type, const char **later) {
    struct service *service = request->conn->service;
    struct MHD_Response *response;
    size_t length = api_call_length(request->call);
    bool last;
    if (length != SIZE_MAX && length > SCRATCH_BYTES - FORMAT_LEAST) {
        *later = "it is written while it is sent";
        response = sized_response(request, length);
    } else {
        size_t size = format(request, service->scratch, SCRATCH_BYTES, &last);
        if (last) return small_response(request, content_type, service->scratch, size);
        *later = "first " TEXT_OF(SCRATCH_BYTES) " bytes, the rest is written while it is sent";
        response = chunked_response(request, size);
    }
    if (response) MHD_add_response_header(response, "Content-Type", content_type);
    return response;
}

enum MHD_Result answer_call(struct request *request) {
    const char *later = NULL;
    api_call_request_id(request->call, request->id);
    int status = api_call_status(request->call);
    struct MHD_Response *response = call_response(request, api_call_content_type(request->call), &later);
    if (!response) {
        problem_set(&request->problem, PROBLEM_MEMORY_BUSY, "", "Other requests hold the memory that the answer needs");
        return answer_problem(request);
    }
    add_timing(response, request, later);
    return queue(request, status, response);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/head.c - see head.h.
 */
#include "head.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "layers.h"
#include "media.h"
#include "request.h"
#include "service.h"
#include "text.h"

/* ---- names of a request: X-Request-Id, traceparent ---------------------------------------------------------------- */

static bool is_hex(const char *s, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f'))) return false;
    return true;
}

/* What may be echoed into a header and a log line without a thought. */
static bool id_is_clean(const char *id) {
    size_t size = strlen(id);
    if (size == 0 || size > ID_MAX) return false;
    for (size_t i = 0; i < size; i++) {
        char c = id[i];
        bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!word && !strchr("-._:/+=@", c)) return false;
    }
    return true;
}

/* 64 bits: a secret start, then a counter through the finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_id(void) {
    static uint64_t state;
    if (state == 0 && getrandom(&state, sizeof state, GRND_NONBLOCK) != sizeof state) state = clock_wall();
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

void head_take_id(struct request *request) {
    const char *given = request->headers.request_id;
    struct text out = text_in(request->id, sizeof request->id);
    if (given && id_is_clean(given))
        text_add(&out, given);
    else
        text_hex(&out, next_id());
}

/* W3C Trace Context: 00-<32 hex>-<16 hex>-<2 hex>, neither id all zero. Anything else is ignored, as the standard says. */
void head_take_trace(struct request *request) {
    const char *s = request->headers.traceparent;
    if (!s || strlen(s) != 55 || memcmp(s, "00-", 3) != 0 || s[35] != '-' || s[52] != '-') return;
    if (!is_hex(s + 3, 32) || !is_hex(s + 36, 16) || !is_hex(s + 53, 2)) return;
    if (strspn(s + 3, "0") >= 32 || strspn(s + 36, "0") >= 16) return;
    memcpy(request->trace_id, s + 3, 32);
    memcpy(request->parent_id, s + 36, 16);
    memcpy(request->trace_flags, s + 53, 2);
}

/* ---- the checks of the header, in the order in which they are answered -------------------------------------------- */

static bool check_route(struct request *request) {
    struct route_match *match = &request->match;
    char methods[128];
    if (request->nul_in_path) return problem_set(&request->problem, PROBLEM_HTTP, "", "The path holds a NUL (%%00)");
    if (!match->path)
        return problem_set(&request->problem, PROBLEM_NOT_FOUND, "",
                           "There is nothing at %.100s; POST /v1/mha computes, GET /openapi.json lists everything",
                           request->path);
    if (match->route || strcmp(request->method, "OPTIONS") == 0) return true;
    route_methods(match->path, methods, sizeof methods);
    return problem_set(&request->problem, PROBLEM_METHOD_NOT_ALLOWED, "", "%.100s takes %s, not %s", request->path,
                       methods, request->method);
}

static bool check_token(struct request *request) {
    bool open = request->match.route ? request->match.route->open : strcmp(request->method, "OPTIONS") == 0;
    if (open || tokens_allow(&request->conn->service->tokens, request->headers.authorization)) return true;
    return problem_set(&request->problem, PROBLEM_UNAUTHORIZED, "",
                       request->headers.authorization ? "The token is not one of those that are valid here"
                                                      : "Send a header Authorization: Bearer TOKEN");
}

static bool check_media(struct request *request) {
    const struct route *route = request->match.route;
    const char *content_type = request->headers.content_type;
    if (!route || !route->offers) return true;
    if (route->takes && !media_of_body(content_type, route->takes, &request->in))
        return problem_set(
            &request->problem, PROBLEM_UNSUPPORTED_MEDIA_TYPE, "",
            "Content-Type is %.100s; send application/json (with curl: add -H 'Content-Type: application/json') "
            "or application/vnd.safetensors",
            content_type ? content_type : "missing");
    if (!media_accepted(request->headers.accept, route->offers, &request->out))
        return problem_set(&request->problem, PROBLEM_NOT_ACCEPTABLE, "",
                           "Accept is %.100s; what can be had here is application/json%s", request->headers.accept,
                           route->offers & MEDIA(API_SAFETENSORS) ? " and application/vnd.safetensors" : "");
    return true;
}

static bool check_length(struct request *request) {
    const struct headers *headers = &request->headers;
    size_t max_body = request->conn->service->env.max_body;
    bool takes_body = request->match.route && request->match.route->takes;
    if (takes_body && !headers->content_lengths && !headers->transfer_encodings)
        return problem_set(&request->problem, PROBLEM_LENGTH_REQUIRED, "",
                           "A %s needs a Content-Length, or Transfer-Encoding: chunked", request->method);
    if (request->body_declared == SIZE_MAX || request->body_declared <= max_body) return true;
    problem_set(&request->problem, PROBLEM_BODY_TOO_LARGE, "", "The body has %zu bytes and may have %zu (--max-body)",
                request->body_declared, max_body);
    request->problem.limit = max_body;
    request->problem.size = request->body_declared;
    return false;
}

static bool check_expect(struct request *request) {
    const char *expect = request->headers.expect;
    if (!expect || strcasecmp(expect, "100-continue") == 0) return true;
    return problem_set(&request->problem, PROBLEM_EXPECTATION_FAILED, "",
                       "Expect is %.100s; only 100-continue is known", expect);
}

static bool check_timeout(struct request *request) {
    const char *text = request->headers.request_timeout;
    uint64_t asked;
    request->limit_ns = request->conn->service->config->request_timeout;
    if (!text) return true;
    if (!config_duration(text, &asked) || asked == 0)
        return problem_set(&request->problem, PROBLEM_HTTP, "",
                           "X-Request-Timeout is %.40s; write seconds, or a time like 500ms or 10s", text);
    if (asked < request->limit_ns) request->limit_ns = asked;
    return true;
}

/* Large bodies are work for the pool for sure; while it takes nothing, reading them would only fill the memory. */
#define SURELY_LARGE 65536

static bool check_room(struct request *request) {
    struct service *service = request->conn->service;
    if (!request->match.route || request->match.route->kind != ROUTE_CALL) return true;
    if (service->stopping)
        return problem_set(&request->problem, PROBLEM_DRAINING, "",
                           "The server is shutting down; send this again elsewhere");
    if (request->body_declared > SURELY_LARGE && request->body_declared != SIZE_MAX &&
        admission_full(&service->admission))
        return problem_set(&request->problem, PROBLEM_QUEUE_FULL, "",
                           "%zu computations wait already (--max-queue); try again", service->admission.waiting);
    return true;
}

static bool check_origin(struct request *request) {
    const char *allowed = request->conn->service->config->cors_origin, *origin = request->headers.origin;
    request->origin_allowed = *allowed && origin && (strcmp(allowed, "*") == 0 || strcmp(allowed, origin) == 0);
    return true;
}

static bool open_call(struct request *request) {
    const struct route *route = request->match.route;
    if (!route || route->kind != ROUTE_CALL) return true;
    request->call =
        api_call_open(&request->conn->service->env, route->endpoint, request->in, request->out, request->body_declared);
    if (!request->call)
        return problem_set(&request->problem, PROBLEM_OUT_OF_MEMORY, "",
                           "There is no memory for another request right now");
    if (route->endpoint == API_LAYER_PUT) layers_target(request);
    return true;
}

bool head_check(struct request *request) {
    static bool (*const checks[])(struct request *) = {check_origin, check_route,   check_token,
                                                       check_expect, check_timeout, check_media,
                                                       check_length, check_room,    open_call};
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (!checks[i](request)) return false;
    return true;
}

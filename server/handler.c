/* SPDX-License-Identifier: Apache-2.0
 *
 * server/handler.c - the state machine of a request; see handler.h, and request.h for the phases.
 *
 *   HEAD --take_head--> BODY ----take_end--> (inline) ------------------------> ANSWERING
 *            |           | ^                    \--> QUEUED -> RUNNING -> COMPUTED -^
 *            |           v too large                                               |
 *            +-------> DISCARD ----------------------------------------------------+
 *
 * A request that is refused is still read to its end before it is answered (up to DISCARD_FACTOR times --max-body), because a
 * plain client that is still writing would meet a reset instead of the answer. With "Expect: 100-continue" it waits for our
 * word, so there the answer goes out at once.
 */
#include "handler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "head.h"
#include "record.h"
#include "request.h"
#include "service.h"
#include "text.h"

#define DISCARD_FACTOR 10
#define DISCARD_LEAST  ((size_t)256 << 20) /* and at least this much */

/* How much of a refused body is read before we give up and let the client meet a reset. */
static size_t discard_bound(const struct request *request) {
    size_t bound = request->conn->service->env.max_body * DISCARD_FACTOR;
    return bound > DISCARD_LEAST ? bound : DISCARD_LEAST;
}

static void copy_text(char *out, size_t size, const char *text) {
    struct text copy = text_in(out, size);
    text_add(&copy, text);
}

/* ---- the header --------------------------------------------------------------------------------------------------- */

void *handler_line(void *context, const char *uri, struct MHD_Connection *mhd) {
    struct service *service = context;
    struct conn *conn = conns_of(mhd);
    struct request *request = conn ? shelf_take(service) : NULL;
    if (!request) return NULL;
    request->nul_in_path = strstr(uri, "%00") != NULL;
    request->line.uri = uri;
    request->line.uri_size = strlen(uri);
    request->conn = conn;
    request->begun = clock_now();
    conn->request = request;
    service->metrics.in_flight++;
    conn_arm(conn, request->begun + service->config->header_timeout);
    return request;
}

static enum MHD_Result take_head(struct request *request, const char *url, const char *method, const char *version) {
    request->head_at = clock_now();
    headers_read(&request->headers, request->conn->mhd);
    copy_text(request->method, sizeof request->method, method);
    copy_text(request->path, sizeof request->path, url);
    head_take_id(request);
    head_take_trace(request);
    request->line.method = method;
    request->line.version = version;
    if (!guard_check(&request->headers, &request->line, &request->problem)) {
        request->close_after = true; /* nobody knows where the next request begins */
        return answer_problem(request);
    }
    bool has_body = headers_body(&request->headers, &request->body_declared);
    route_find(&request->match, request->method, url);
    request->phase = head_check(request) ? PHASE_BODY : PHASE_DISCARD;
    if (request->limit_ns == 0) request->limit_ns = request->conn->service->config->request_timeout;
    conn_arm(request->conn, request->head_at + request->limit_ns);
    if (request->phase == PHASE_BODY || !has_body) return MHD_YES;
    bool too_much = request->body_declared != SIZE_MAX && request->body_declared > discard_bound(request);
    if (!request->headers.expect && !too_much) return MHD_YES;
    request->close_after = true;
    return answer_problem(request);
}

/* ---- the body ----------------------------------------------------------------------------------------------------- */

static void drop_call(struct request *request) {
    if (request->call) api_call_close(request->call);
    request->call = NULL;
    request->run = NULL;
}

static enum MHD_Result take_body(struct request *request, const char *upload, size_t size) {
    size_t max_body = request->conn->service->env.max_body;
    request->bytes_in += size;
    if (request->conn->half_closed) conn_nudge(request->conn);
    if (request->phase == PHASE_BODY && request->bytes_in > max_body) {
        drop_call(request);
        problem_set(&request->problem, PROBLEM_BODY_TOO_LARGE, "", "The body has more than %zu bytes (--max-body)",
                    max_body);
        request->problem.limit = max_body;
        request->problem.size = (size_t)request->bytes_in;
        request->phase = PHASE_DISCARD;
    }
    if (request->phase == PHASE_BODY && request->call) api_call_feed(request->call, upload, size);
    if (request->bytes_in <= discard_bound(request)) return MHD_YES;
    request->status = problem_status(request->problem.code);
    request->told = true;
    conn_answer_raw(request->conn, &request->problem, request->id);
    return MHD_NO;
}

/* ---- while it is suspended ----------------------------------------------------------------------------------------- */

/* Back to libmicrohttpd, which calls handler_access for the answer. */
static void resume(struct request *request) {
    conn_arm(request->conn, 0);
    request->phase = PHASE_COMPUTED;
    MHD_resume_connection(request->conn->mhd);
}

/* Ends a suspended request early: at once if it only waits, else when its workers notice, within a tile. */
static void end_early(struct request *request) {
    struct service *service = request->conn->service;
    conn_arm(request->conn, 0);
    if (request->phase == PHASE_QUEUED) {
        admission_withdraw(&service->admission, request);
        request->run = NULL;
        resume(request);
    } else if (!request->cancelled) {
        request->cancelled = true;
        mha_run_cancel(request->run);
    }
}

/* A client that only closed its sending side is told why it gets nothing else. It is told past libmicrohttpd, which reads the
 * end of the stream at the resume and then drops any answer. */
static void client_left(struct request *request, const char *advice) {
    request->gone = true;
    request->conn->service->metrics.disconnects++;
    problem_set(&request->problem, PROBLEM_HTTP, "",
                "The client closed its side of the connection before the answer; that is taken as having left. %s",
                advice);
    conn_answer_raw(request->conn, &request->problem, request->id);
}

static void client_left_run(struct request *request) {
    client_left(request, "Keep it open");
    end_early(request);
}

/* The keeper goes on with it. */
static void client_left_keeper(struct request *request) {
    client_left(request, "A change of a layer is carried through all the same");
}

/* ---- the end of the body: compute --------------------------------------------------------------------------------- */

/* The run is over, on whatever thread. */
static void take_computed(struct request *request) {
    struct service *service = request->conn->service;
    request->computed_at = clock_now();
    api_call_computed(request->call);
    metrics_phase(&service->metrics, METRICS_QUEUE, request->run_at - request->read_at);
    metrics_phase(&service->metrics, METRICS_COMPUTE, request->computed_at - request->run_at);
    if (!api_call_failed(request->call)) service->metrics.flops += api_call_flops(request->call);
}

static void compute_here(struct request *request) {
    request->run_at = clock_now();
    mha_run_here(request->run);
    take_computed(request);
}

static void say_draining(struct problem *problem) {
    problem_set(problem, PROBLEM_DRAINING, "", "The server is shutting down; send this again elsewhere");
}

/* Whether a run cannot be handed to the pool, and why. */
static bool pool_refuses(struct request *request) {
    const struct service *service = request->conn->service;
    struct problem *problem = api_call_problem(request->call);
    if (service->stopping)
        say_draining(problem);
    else if (admission_full(&service->admission))
        problem_set(problem, PROBLEM_QUEUE_FULL, "", "%zu computations wait already (--max-queue); try again",
                    service->admission.waiting);
    else
        return false;
    return true;
}

static enum MHD_Result compute_on_pool(struct request *request) {
    struct service *service = request->conn->service;
    if (pool_refuses(request)) return answer_call(request);
    MHD_suspend_connection(request->conn->mhd); /* before anybody else may know of the run */
    admission_take(&service->admission, request);
    if (request->conn->half_closed) client_left_run(request);
    return MHD_YES;
}

/* ---- what may wait for the disk ------------------------------------------------------------------------------------ */

/* Hands the request to the keeper, unless it has too many. */
static enum MHD_Result keep(struct request *request, void (*work)(struct request *request)) {
    struct service *service = request->conn->service;
    if (service->stopping)
        say_draining(&request->problem);
    else if (service->keeper.count > service->admission.waiting_max)
        problem_set(&request->problem, PROBLEM_QUEUE_FULL, "",
                    "%zu changes of layers wait already (--max-queue); try again", service->keeper.count);
    if (request->problem.code != PROBLEM_NONE) return answer_problem(request);
    request->work = work;
    request->run_at = clock_now();
    MHD_suspend_connection(request->conn->mhd); /* before anybody else may have it */
    keeper_take(&service->keeper, request);
    if (request->conn->half_closed) client_left_keeper(request);
    return MHD_YES;
}

static void finish_call(struct request *request) { api_call_end(request->call); }

static void call_route(struct request *request) {
    const struct service *service = request->conn->service;
    request->match.route->api(&service->env, request->match.name, request->out, request->kept);
}

static enum MHD_Result keep_route(struct request *request) {
    request->kept = malloc(sizeof *request->kept);
    if (!request->kept) {
        problem_set(&request->problem, PROBLEM_OUT_OF_MEMORY, "", "There is no memory for this right now.");
        return answer_problem(request);
    }
    *request->kept = (struct api_answer){.status = 200, .problem.position = -1};
    return keep(request, call_route);
}

static enum MHD_Result take_call_end(struct request *request) {
    if (!api_call_end_soon(request->call)) return keep(request, finish_call);
    request->run = api_call_failed(request->call) ? NULL : api_call_run(request->call);
    if (!request->run) return answer_call(request);
    if (!admission_inline(api_call_work(request->call))) return compute_on_pool(request);
    compute_here(request);
    return answer_call(request);
}

static enum MHD_Result answer_at_once(struct request *request, const struct route *route) {
    struct service *service = request->conn->service;
    struct api_answer answer = {.status = 200, .problem.position = -1};
    if (route->keeps && service->env.layers_dir) return keep_route(request);
    if (route->kind == ROUTE_API)
        route->api(&service->env, request->match.name, request->out, &answer);
    else
        route->server(service, &answer);
    return answer_whole(request, &answer);
}

static enum MHD_Result take_end(struct request *request) {
    const struct route *route = request->match.route;
    request->read_at = clock_now();
    if (request->phase == PHASE_DISCARD) return answer_problem(request);
    if (!route) return answer_options(request);
    if (route->kind != ROUTE_CALL) return answer_at_once(request, route);
    metrics_phase(&request->conn->service->metrics, METRICS_READ, request->read_at - request->head_at);
    return take_call_end(request);
}

enum MHD_Result handler_access(void *service, struct MHD_Connection *mhd, const char *url, const char *method,
                               const char *version, const char *upload, size_t *upload_size, void **context) {
    struct request *request = *context;
    (void)mhd;
    ((struct service *)service)->progress++;
    if (!request || request->conn->closing) return MHD_NO;
    switch (request->phase) {
    case PHASE_HEAD:
        return take_head(request, url, method, version);
    case PHASE_BODY:
    case PHASE_DISCARD:
        if (*upload_size == 0) return take_end(request);
        {
            size_t size = *upload_size;
            *upload_size = 0;
            return take_body(request, upload, size);
        }
    case PHASE_COMPUTED:
        return request->kept ? answer_whole(request, request->kept) : answer_call(request);
    default:
        return MHD_YES; /* suspended or answered: nothing to do */
    }
}

/* ---- from the loop ------------------------------------------------------------------------------------------------ */

void handler_run_ended(struct request *request) {
    take_computed(request);
    resume(request);
}

/* The layer is stored or deleted, or one is packed: then the run itself is still to be done. */
void handler_kept(struct request *request) {
    struct service *service = request->conn->service;
    if (request->call && !request->conn->closing && !api_call_failed(request->call))
        request->run = api_call_run(request->call);
    if (request->run && service->stopping) {
        say_draining(api_call_problem(request->call));
        request->run = NULL;
    }
    if (!request->run) {
        request->computed_at = clock_now();
        resume(request);
    } else if (admission_inline(api_call_work(request->call))) {
        compute_here(request);
        resume(request);
    } else if (pool_refuses(request)) {
        request->run = NULL;
        resume(request);
    } else {
        admission_take(&service->admission, request);
    }
}

void handler_client_left(struct conn *conn) {
    struct request *request = conn->request;
    if (conn->half_closed || conn->closing) return; /* our own shutdown gives another edge */
    conn->half_closed = true;
    if (request && (request->phase == PHASE_QUEUED || request->phase == PHASE_RUNNING))
        client_left_run(request);
    else if (request && request->phase == PHASE_KEEPING)
        client_left_keeper(request);
    else
        conn_nudge(conn);
}

void handler_cut(struct request *request) {
    if (request->phase != PHASE_QUEUED && request->phase != PHASE_RUNNING) return;
    problem_set(api_call_problem(request->call), PROBLEM_DRAINING, "",
                "The server is shutting down and this took longer than --drain; send it again elsewhere");
    end_early(request);
}

/* An answer past libmicrohttpd to a request that has not come whole; then the connection is shut. */
static void tell_and_shut(struct request *request, const struct problem *problem) {
    request->status = problem_status(problem->code);
    request->problem = *problem;
    request->told = true;
    if (!request->id[0]) head_take_id(request);
    conn_answer_raw(request->conn, problem, request->id);
}

/* The keeper goes on with it. */
static void too_long_kept(struct request *request) {
    struct problem late = {.position = -1};
    problem_set(&late, PROBLEM_DEADLINE, "",
                "The answer was not there after %" PRIu64
                " ms (--request-timeout, X-Request-Timeout); a change of a layer is "
                "carried through all the same",
                request->limit_ns / NS_PER_MS);
    tell_and_shut(request, &late);
}

/* The request has not come whole in time. */
static void too_slow(struct request *request) {
    struct problem late = {.position = -1};
    problem_set(&late, PROBLEM_TIMEOUT, "", "The request did not come whole within %" PRIu64 " ms",
                (request->phase == PHASE_HEAD ? request->conn->service->config->header_timeout : request->limit_ns) /
                    NS_PER_MS);
    tell_and_shut(request, &late);
}

void handler_deadline(struct conn *conn) {
    struct request *request = conn->request;
    enum phase phase = request ? request->phase : PHASE_ANSWERING;
    switch (phase) {
    case PHASE_HEAD:
    case PHASE_BODY:
    case PHASE_DISCARD:
        too_slow(request);
        break;
    case PHASE_KEEPING:
        too_long_kept(request);
        break;
    case PHASE_QUEUED:
    case PHASE_RUNNING:
        problem_set(api_call_problem(request->call), PROBLEM_DEADLINE, "",
                    "The answer was not there after %" PRIu64 " ms (--request-timeout, X-Request-Timeout)",
                    request->limit_ns / NS_PER_MS);
        end_early(request);
        break;
    default:
        conn_shut(conn);
        break; /* idle, or it does not take its answer */
    }
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

void handler_refused(struct conn *conn, const struct problem *problem) {
    struct service *service = conn->service;
    struct request *request = conn->request;
    if (request) { /* handler_completed comes */
        if (request->phase == PHASE_HEAD) headers_read(&request->headers, conn->mhd);
        tell_and_shut(request, problem);
        return;
    }
    request = shelf_take(service);
    if (!request) {
        conn_answer_raw(conn, problem, "");
        return;
    }
    request->conn = conn;
    request->begun = clock_now();
    service->metrics.in_flight++;
    tell_and_shut(request, problem);
    record_request(request, request->status, clock_now());
    shelf_give(service, request);
}

void handler_completed(void *context, struct MHD_Connection *mhd, void **slot, enum MHD_RequestTerminationCode code) {
    struct service *service = context;
    struct request *request = *slot;
    (void)mhd;
    if (!request) return;
    struct conn *conn = request->conn;
    uint64_t now = clock_now();
    bool whole = request->told || (code == MHD_REQUEST_TERMINATED_COMPLETED_OK && !conn->closing);
    int status = request->gone || !whole || !request->status ? 499 : request->status;
    record_request(request, status, now);
    drop_call(request);
    if (request->kept && !request->answered_at && !request->kept->borrowed) free(request->kept->body);
    free(request->kept);
    mem_uncharge(&service->budget, request->block_charged);
    free(request->stash);
    shelf_give(service, request);
    *slot = NULL;
    conn->request = NULL;
    if (!conn->closing) conn_arm(conn, now + service->config->idle_timeout);
    if (conn->half_closed) conn_nudge(conn);
}

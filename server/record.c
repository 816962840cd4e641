/* SPDX-License-Identifier: Apache-2.0
 *
 * server/record.c - see record.h.
 */
#include "record.h"

#include "request.h"
#include "service.h"

/* What the client was told, or would have been. */
static const struct problem *problem_of(struct request *request) {
    return request->call && request->problem.code == PROBLEM_NONE ? api_call_problem(request->call) : &request->problem;
}

static void write_line(struct request *request, int status, uint64_t now) {
    struct log *log = &request->conn->service->log;
    const struct route *route = request->match.route;
    enum log_level level = status >= 500 ? LOG_WARN : route && route->quiet && status < 400 ? LOG_DEBUG : LOG_INFO;
    char shape[512];
    if (!log_begin(log, level, "request")) return;
    log_plain(log, "id", request->id);
    log_plain(log, "trace_id", request->trace_id);
    log_plain(log, "parent_id", request->parent_id);
    log_plain(log, "remote", request->conn->remote);
    log_string(log, "method", request->method);
    log_plain(log, "route", request->match.path ? request->match.path->path : "other");
    if (!request->match.path) log_string(log, "path", request->path);
    log_count(log, "status", (uint64_t)status);
    const struct problem *problem = problem_of(request);
    if (problem->code != PROBLEM_NONE) log_plain(log, "problem", problem_name(problem->code));
    log_count(log, "bytes_in", request->bytes_in);
    log_count(log, "bytes_out", request->bytes_out);
    if (request->call && api_call_summary(request->call, shape, sizeof shape)) log_plain(log, "shape", shape);
    if (request->read_at) log_ms(log, "read_ms", request->read_at - request->head_at);
    if (request->run_at) log_ms(log, "queue_ms", request->run_at - request->read_at);
    if (request->computed_at) log_ms(log, "compute_ms", request->computed_at - request->run_at);
    if (request->answered_at) log_ms(log, "write_ms", now - request->answered_at);
    log_ms(log, "total_ms", now - request->begun);
    log_end(log);
}

static void count(struct request *request, int status, uint64_t now) {
    struct metrics *metrics = &request->conn->service->metrics;
    const struct problem *problem = problem_of(request);
    metrics_rejected(metrics, metrics_reason_of(problem->code));
    metrics_request(metrics, request->match.path, request->method, status, now - request->begun, request->bytes_in,
                    request->bytes_out);
    if (request->call && request->answered_at) metrics_phase(metrics, METRICS_WRITE, request->write_ns);
    metrics->in_flight--;
}

void record_request(struct request *request, int status, uint64_t now) {
    write_line(request, status, now);
    count(request, status, now);
}

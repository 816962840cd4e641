/* SPDX-License-Identifier: Apache-2.0
 *
 * server/metrics.h - what GET /metrics tells, in the Prometheus text format (version 0.0.4).
 *
 * Model. Plain counters, touched by the I/O thread alone. Labels are bounded: routes are those of the route table and "other",
 * methods a fixed list and "other", status codes a fixed list. Durations are kept in integer nanoseconds and printed as
 * seconds.
 */
#ifndef MHA_SERVER_METRICS_H
#define MHA_SERVER_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "../api/answer.h"

#define METRICS_ROUTES  24 /* of the route table, the last is "other" */
#define METRICS_METHODS 8
#define METRICS_CODES   26
#define METRICS_BUCKETS 20

struct histogram {
    uint64_t bucket[METRICS_BUCKETS + 1]; /* not cumulative; the last is +Inf */
    uint64_t sum, count;
};

enum metrics_phase { METRICS_READ = 0, METRICS_QUEUE, METRICS_COMPUTE, METRICS_WRITE, METRICS_PHASES };

enum metrics_reason {
    REJECT_QUEUE_FULL = 0,
    REJECT_MEMORY_BUSY,
    REJECT_TOO_LARGE,
    REJECT_DRAINING,
    REJECT_TIMEOUT,
    REJECT_DEADLINE,
    REJECT_UNAUTHORIZED,
    REJECT_HTTP,
    REJECT_CONNECTIONS,
    REJECT_CONNECTIONS_PER_IP,
    METRICS_REASONS
};

struct metrics {
    uint64_t requests[METRICS_ROUTES][METRICS_METHODS][METRICS_CODES];
    struct histogram duration[METRICS_ROUTES], request_size[METRICS_ROUTES], response_size[METRICS_ROUTES];
    struct histogram phase[METRICS_PHASES];
    uint64_t rejected[METRICS_REASONS];
    uint64_t disconnects; /* clients that left while their request was with the pool */
    uint64_t in_flight, connections, connections_total;
    double flops;
    uint64_t started_wall_ns;
};

struct service;
struct route;

/* One request is over. `route` is the first route of its path (NULL: "other"), so that a path is one label. status 0: the client left before an answer (counted as code 499). */
void metrics_request(struct metrics *metrics, const struct route *route, const char *method, int status, uint64_t ns,
                     uint64_t bytes_in, uint64_t bytes_out);
void metrics_phase(struct metrics *metrics, enum metrics_phase phase, uint64_t ns);
void metrics_rejected(struct metrics *metrics, enum metrics_reason reason);
/* The reason that a problem counts under, METRICS_REASONS for none (a 422 is no rejection). */
enum metrics_reason metrics_reason_of(enum problem_code code);

/* GET /metrics */
void metrics_answer(struct service *service, struct api_answer *answer);

#endif

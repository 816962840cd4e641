/* SPDX-License-Identifier: Apache-2.0
 *
 * server/metrics.c - see metrics.h.
 */
#include "metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "routes.h"
#include "service.h"
#include "text.h"

#define PAGE_BYTES 524288

static const char *const methods[METRICS_METHODS] = {"GET",    "HEAD",    "POST",  "PUT",
                                                     "DELETE", "OPTIONS", "PATCH", "other"};

/* Code 0 stands for every other one; 499: the client left before the answer. */
static const int codes[METRICS_CODES] = {200, 201, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411,
                                         413, 414, 415, 417, 422, 431, 499, 500, 501, 503, 505, 507, 0};

/* Upper bounds: nanoseconds, bytes. */
static const uint64_t time_bounds[METRICS_BUCKETS] = {50000,      100000,      250000,      500000,      1000000,
                                                      2500000,    5000000,     10000000,    25000000,    50000000,
                                                      100000000,  250000000,   500000000,   1000000000,  2500000000,
                                                      5000000000, 10000000000, 30000000000, 60000000000, 120000000000};
static const uint64_t size_bounds[METRICS_BUCKETS] = {
    64,     128,    256,     512,     1024,     4096,     16384,     32768,     65536,     131072,
    262144, 524288, 1048576, 4194304, 16777216, 67108864, 134217728, 268435456, 536870912, 1073741824};

static const char *const phases[METRICS_PHASES] = {"read", "queue", "compute", "write"};

static const char *const reasons[METRICS_REASONS] = {"queue_full",  "memory_busy",       "too_large",    "draining",
                                                     "timeout",     "deadline",          "unauthorized", "http",
                                                     "connections", "connections_per_ip"};

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static void observe(struct histogram *histogram, const uint64_t *bounds, uint64_t value) {
    size_t i = 0;
    while (i < METRICS_BUCKETS && value > bounds[i]) i++;
    histogram->bucket[i]++;
    histogram->sum += value;
    histogram->count++;
}

void metrics_request(struct metrics *metrics, const struct route *route, const char *method, int status, uint64_t ns,
                     uint64_t bytes_in, uint64_t bytes_out) {
    size_t r = route && route_index(route) < METRICS_ROUTES - 1 ? route_index(route) : METRICS_ROUTES - 1;
    size_t m = 0, c = 0;
    while (m < METRICS_METHODS - 1 && strcmp(methods[m], method) != 0) m++;
    if (status == 0) status = 499;
    while (c < METRICS_CODES - 1 && codes[c] != status) c++;
    metrics->requests[r][m][c]++;
    observe(&metrics->duration[r], time_bounds, ns);
    observe(&metrics->request_size[r], size_bounds, bytes_in);
    observe(&metrics->response_size[r], size_bounds, bytes_out);
}

void metrics_phase(struct metrics *metrics, enum metrics_phase phase, uint64_t ns) {
    observe(&metrics->phase[phase], time_bounds, ns);
}

void metrics_rejected(struct metrics *metrics, enum metrics_reason reason) {
    if (reason < METRICS_REASONS) metrics->rejected[reason]++;
}

enum metrics_reason metrics_reason_of(enum problem_code code) {
    switch (code) {
    case PROBLEM_QUEUE_FULL:
        return REJECT_QUEUE_FULL;
    case PROBLEM_MEMORY_BUSY:
    case PROBLEM_OUT_OF_MEMORY:
        return REJECT_MEMORY_BUSY;
    case PROBLEM_BODY_TOO_LARGE:
    case PROBLEM_RESULT_TOO_LARGE:
    case PROBLEM_MEMORY_TOO_LARGE:
        return REJECT_TOO_LARGE;
    case PROBLEM_DRAINING:
        return REJECT_DRAINING;
    case PROBLEM_TIMEOUT:
        return REJECT_TIMEOUT;
    case PROBLEM_DEADLINE:
        return REJECT_DEADLINE;
    case PROBLEM_UNAUTHORIZED:
        return REJECT_UNAUTHORIZED;
    case PROBLEM_HTTP:
    case PROBLEM_HTTP_VERSION:
    case PROBLEM_URI_TOO_LONG:
    case PROBLEM_HEADERS_TOO_LARGE:
        return REJECT_HTTP;
    default:
        return METRICS_REASONS;
    }
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void head(struct text *out, const char *name, const char *type, const char *help) {
    text_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(struct text *out, const char *name, const char *type, const char *help, uint64_t value) {
    head(out, name, type, help);
    text_format(out, "%s %" PRIu64 "\n", name, value);
}

/* A bucket's bound: seconds without trailing zeros. */
static void bound_seconds(struct text *out, uint64_t ns) {
    text_seconds(out, ns);
    while (out->size && out->at[out->size - 1] == '0') out->size--;
    if (out->size && out->at[out->size - 1] == '.') out->size--;
    out->at[out->size] = '\0';
}

static void single_seconds(struct text *out, const char *name, const char *type, const char *help, uint64_t ns) {
    head(out, name, type, help);
    text_format(out, "%s ", name);
    text_seconds(out, ns);
    text_add(out, "\n");
}

static const char *route_label(size_t r) {
    const struct route *route = r < METRICS_ROUTES - 1 ? route_at(r) : NULL;
    return route ? route->path : "other";
}

static void print_requests(struct text *out, const struct metrics *metrics) {
    head(out, "mha_http_requests_total", "counter",
         "Requests by route, method and status; 499: the client left first.");
    for (size_t r = 0; r < METRICS_ROUTES; r++)
        for (size_t m = 0; m < METRICS_METHODS; m++)
            for (size_t c = 0; c < METRICS_CODES; c++)
                if (metrics->requests[r][m][c])
                    text_format(out, "mha_http_requests_total{route=\"%s\",method=\"%s\",code=\"%d\"} %" PRIu64 "\n",
                                route_label(r), methods[m], codes[c], metrics->requests[r][m][c]);
}

/* One series: cumulative buckets, sum, count. `seconds`: the values are nanoseconds. */
static void print_series(struct text *out, const char *name, const char *label, const char *value,
                         const struct histogram *histogram, const uint64_t *bounds, bool seconds) {
    uint64_t below = 0;
    for (size_t i = 0; i <= METRICS_BUCKETS; i++) {
        below += histogram->bucket[i];
        text_format(out, "%s_bucket{%s=\"%s\",le=\"", name, label, value);
        if (i == METRICS_BUCKETS)
            text_add(out, "+Inf");
        else if (seconds)
            bound_seconds(out, bounds[i]);
        else
            text_format(out, "%" PRIu64, bounds[i]);
        text_format(out, "\"} %" PRIu64 "\n", below);
    }
    text_format(out, "%s_sum{%s=\"%s\"} ", name, label, value);
    if (seconds)
        text_seconds(out, histogram->sum);
    else
        text_format(out, "%" PRIu64, histogram->sum);
    text_format(out, "\n%s_count{%s=\"%s\"} %" PRIu64 "\n", name, label, value, histogram->count);
}

static void print_by_route(struct text *out, const char *name, const char *help, const struct histogram *by_route,
                           const uint64_t *bounds, bool seconds) {
    head(out, name, "histogram", help);
    for (size_t r = 0; r < METRICS_ROUTES; r++)
        if (by_route[r].count) print_series(out, name, "route", route_label(r), &by_route[r], bounds, seconds);
}

static void print_build(struct text *out) {
    head(out, "mha_build_info", "gauge", "Version and instruction set of the kernels in use.");
    text_format(out, "mha_build_info{version=\"%s\",isa=\"%s\"} 1\n", mha_version(), mha_isa_name());
}

static uint64_t count_open_files(void) {
    uint64_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count > 3 ? count - 3 : 0; /* ".", ".." and the folder itself */
}

static void print_process(struct text *out, const struct metrics *metrics) {
    struct rusage usage;
    struct rlimit files;
    unsigned long long pages = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    if (statm) {
        if (fscanf(statm, "%llu %llu", &pages, &resident) != 2) pages = resident = 0;
        fclose(statm);
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        uint64_t us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                      (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
        single_seconds(out, "process_cpu_seconds_total", "counter", "User and system CPU time.", us * 1000);
    }
    single(out, "process_resident_memory_bytes", "gauge", "Resident memory.", resident * page);
    single(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", pages * page);
    single(out, "process_open_fds", "gauge", "Open file descriptors.", count_open_files());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        single(out, "process_max_fds", "gauge", "Most file descriptors allowed.", (uint64_t)files.rlim_cur);
    single_seconds(out, "process_start_time_seconds", "gauge", "Start, seconds since 1970.", metrics->started_wall_ns);
}

static void print_all(struct text *out, struct service *service) {
    const struct metrics *metrics = &service->metrics;
    print_requests(out, metrics);
    print_by_route(out, "mha_http_request_duration_seconds",
                   "From the request line to the last byte handed to the kernel.", metrics->duration, time_bounds,
                   true);
    print_by_route(out, "mha_http_request_size_bytes", "Bytes of request bodies.", metrics->request_size, size_bounds,
                   false);
    print_by_route(out, "mha_http_response_size_bytes", "Bytes of answers' bodies.", metrics->response_size,
                   size_bounds, false);
    head(out, "mha_phase_seconds", "histogram", "Where the time of a computation goes.");
    for (size_t p = 0; p < METRICS_PHASES; p++)
        print_series(out, "mha_phase_seconds", "phase", phases[p], &metrics->phase[p], time_bounds, true);
    head(out, "mha_rejected_total", "counter", "Requests and connections refused, by reason.");
    for (size_t r = 0; r < METRICS_REASONS; r++)
        text_format(out, "mha_rejected_total{reason=\"%s\"} %" PRIu64 "\n", reasons[r], metrics->rejected[r]);
    single(out, "mha_client_disconnects_total", "counter",
           "Clients that left while their request was queued or computed.", metrics->disconnects);
    single(out, "mha_inflight_requests", "gauge", "Requests between their first line and the end of their answer.",
           metrics->in_flight);
    single(out, "mha_queue_depth", "gauge", "Computations waiting for the workers.", service->admission.waiting);
    single(out, "mha_running", "gauge", "Computations that the workers have.", service->admission.running);
    single(out, "mha_keeping", "gauge", "Requests that wait until a layer is packed, stored or deleted.",
           service->keeper.count);
    single(out, "mha_connections", "gauge", "Open connections.", metrics->connections);
    single(out, "mha_connections_total", "counter", "Connections accepted.", metrics->connections_total);
    single(out, "mha_memory_bytes", "gauge", "Charged to --max-memory now.", atomic_load(&service->budget.used));
    single(out, "mha_memory_peak_bytes", "gauge", "Most ever charged.", atomic_load(&service->budget.peak));
    single(out, "mha_memory_limit_bytes", "gauge", "--max-memory.", service->budget.limit);
    head(out, "mha_flops_total", "counter",
         "Floating-point operations of computations that ended well (a multiply-add is two).");
    text_format(out, "mha_flops_total %.0f\n", metrics->flops);
    single(out, "mha_threads", "gauge", "Workers.", service->env.threads);
    single(out, "mha_log_dropped_total", "counter", "Log lines lost because nobody read stderr.", service->log.dropped);
    print_build(out);
    print_process(out, metrics);
}

void metrics_answer(struct service *service, struct api_answer *answer) {
    char *page = malloc(PAGE_BYTES);
    if (!page) {
        problem_set(&answer->problem, PROBLEM_OUT_OF_MEMORY, "", "No memory for the metrics page");
        return;
    }
    struct text out = text_in(page, PAGE_BYTES);
    print_all(&out, service);
    answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer->body = page;
    answer->size = out.size;
}

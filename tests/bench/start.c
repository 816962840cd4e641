/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/start.c - how long the server takes from fork to its first 200 on /readyz, and what memory it holds then.
 *
 * Thirty starts on a Unix socket, the median and the extremes; memory is the resident set of the last one, one second after it
 * got ready and again after it answered a request. Time includes fork, exec, dynamic linking and up to half a millisecond of polling.
 */
#include "../integration/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STARTS = 30 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void row(const char *what, double figure, const char *unit, double target) {
    printf("| %-42s | %8.2f %-3s | %6.0f %-3s | %s |\n", what, figure, unit, target, unit,
           figure <= target ? "met" : "NOT met");
}

static void start_once(struct service *service, const char *path) {
    const char *const arguments[] = {"--unix", path, NULL};
    if (!service_spawn(service, arguments, NULL) || !service_wait_ready(service, 20)) {
        char *log = service_log(service);
        fprintf(stderr, "the server did not get ready:\n%s\n", log);
        free(log);
        service_stop(service);
        exit(1);
    }
}

int main(void) {
    char path[64];
    struct service service;
    double ready[STARTS];
    snprintf(path, sizeof path, "/tmp/mhad-start-%d.sock", (int)getpid());
    for (int i = 0; i < STARTS; i++) {
        if (i > 0) service_stop(&service);
        start_once(&service, path);
        ready[i] = service.ready_ms;
    }
    qsort(ready, STARTS, sizeof *ready, by_value);
    sleep(1);
    long idle = service_status(&service, "VmRSS"), threads = service_status(&service, "Threads");
    CURL *client = client_new(&service);
    struct reply reply = client_post(client, &service,
                                     "{\"Q\":[[1,0,1,0],[0,1,0,1]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,"
                                     "\"num_heads\":2}");
    long after = service_status(&service, "VmRSS");
    printf("| %-42s | %-12s | %-10s | %-7s |\n|---|---|---|---|\n", "start and idle", "mhad", "target", "");
    row("start to ready, median of 30", ready[STARTS / 2], "ms", 20);
    row("start to ready, fastest", ready[0], "ms", 20);
    row("start to ready, slowest", ready[STARTS - 1], "ms", 20);
    row("idle memory (resident set)", (double)idle / 1024, "MiB", 16);
    row("after one request", (double)after / 1024, "MiB", 16);
    printf("threads: %ld; the request was answered with %ld\n", threads, reply.status);
    int failed = reply.status != 200;
    reply_free(&reply);
    client_free(client);
    unlink(path);
    return service_stop(&service) != 0 || failed;
}

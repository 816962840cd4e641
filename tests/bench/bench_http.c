/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/bench_http.c - the worked example over HTTP against a bare libmicrohttpd handler, and health checks under load.
 *
 * Model. Both servers are processes of their own with default settings (ours writes its log line for every request, to a file);
 * one load generator drives them in turn, the order changing from round to round. Two figures: requests a second, and CPU time
 * of the server a request, which says more where neighbours or the client itself compete for the cores. The yardstick
 * (http_yardstick.c) reads the same body and answers a constant as long as our answer.
 *
 * Health: clients keep every worker busy and the queue full with layers of some 100 ms while /healthz is asked again and again;
 * the 99th percentile of its answers counts.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../server/cpus.h"
#include "../integration/harness.h"
#include "support/load.h"
#include "support/rows.h"

enum { ROUNDS = 9, HUNGRY = 12 };
#define ROUND_SECONDS 0.5

#define W "[[0.1,0.2,0.3,0.4],[0.5,0.6,0.7,0.8],[0.2,0.1,0.4,0.3],[0.6,0.5,0.8,0.7]]"
static const char example[] = "{\"Q\":[[1,0,1,0],[0,1,0,1]],\"W_q\":" W ",\"W_k\":" W ",\"W_v\":" W
                              ",\"W_o\":[[1,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]],\"num_heads\":2,"
                              "\"return\":[\"output\",\"attention\"]}";

static char *http_post(const char *body, size_t *size) {
    size_t room = strlen(body) + 256;
    char *text = malloc(room);
    if (!text) exit(2);
    *size = (size_t)snprintf(text, room,
                             "POST /v1/mha HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                             "Content-Length: %zu\r\n\r\n%s",
                             strlen(body), body);
    return text;
}

static void start(struct service *service, const char *binary, const char *const *arguments) {
    const char *ours = getenv("TEST_MHAD");
    char *kept = strdup(ours ? ours : "build/mhad");
    if (binary) setenv("TEST_MHAD", binary, 1);
    bool good = service_spawn(service, arguments, NULL) && service_wait_ready(service, 20);
    setenv("TEST_MHAD", kept, 1);
    free(kept);
    if (good) return;
    fprintf(stderr, "bench_http: the server did not start: %s\n", service_log(service));
    exit(2);
}

/* ---- the worked example ---------------------------------------------------------------------------------------------- */

static size_t answer_length(const struct service *service) {
    CURL *client = client_new(service);
    struct reply reply = client_post(client, service, example);
    size_t size = reply.size;
    if (reply.status != 200) {
        fprintf(stderr, "bench_http: the example was answered with %ld: %s\n", reply.status, reply.body);
        exit(2);
    }
    reply_free(&reply);
    client_free(client);
    return size;
}

struct side {
    const struct service *service;
    double rate[ROUNDS], cpu[ROUNDS]; /* requests a second, microseconds a request */
};

static void drive(struct side *side, size_t round, const char *request, size_t size, size_t connections) {
    double cpu = process_cpu_of(side->service->pid);
    struct load load = load_run(side->service->port, request, size, connections, ROUND_SECONDS);
    if (load.wrong > 0 || load.answers == 0) {
        fprintf(stderr, "bench_http: %zu of %zu answers were wrong\n", load.wrong, load.answers);
        exit(2);
    }
    side->rate[round] = (double)load.answers / load.seconds;
    side->cpu[round] = (process_cpu_of(side->service->pid) - cpu) / (double)load.answers * 1e6;
}

static void compare(const struct service *ours, const struct service *yardstick, size_t connections, double target) {
    struct side sides[2] = {{.service = ours}, {.service = yardstick}};
    double rate[ROUNDS], cpu[ROUNDS];
    size_t size;
    char *request = http_post(example, &size);
    for (size_t i = 0; i < 2; i++) load_run(sides[i].service->port, request, size, connections, 0.2);
    for (size_t round = 0; round < ROUNDS; round++) {
        drive(&sides[round % 2], round, request, size, connections);
        drive(&sides[(round + 1) % 2], round, request, size, connections);
        rate[round] = sides[0].rate[round] / sides[1].rate[round];
        cpu[round] = sides[0].cpu[round] / sides[1].cpu[round];
    }
    double ratio = median(rate, ROUNDS), cpu_ratio = median(cpu, ROUNDS);
    row("HTTP", say("worked example, keep-alive, %zu connection%s", connections, connections == 1 ? "" : "s"),
        say("%.1f k/s", median(sides[0].rate, ROUNDS) / 1e3),
        say("bare handler %.1f k/s", median(sides[1].rate, ROUNDS) / 1e3), say("%.2fx", ratio),
        target > 0 ? say(">= %.1fx", target) : "", target > 0 ? verdict(ratio >= target) : "",
        say("server CPU a request %.1f us, yardstick %.1f us (%.2fx)", median(sides[0].cpu, ROUNDS),
            median(sides[1].cpu, ROUNDS), cpu_ratio));
    free(request);
}

static void worked_example(const char *yardstick_binary) {
    struct service ours, yardstick;
    start(&ours, NULL, NULL);
    const char *length = say("%zu", answer_length(&ours));
    const char *const arguments[] = {"--port", "0", "--length", length, NULL};
    start(&yardstick, yardstick_binary, arguments);
    compare(&ours, &yardstick, 8, 0.7);
    compare(&ours, &yardstick, 1, 0);
    compare(&ours, &yardstick, 32, 0);
    service_stop(&ours);
    service_stop(&yardstick);
}

/* ---- health under load ------------------------------------------------------------------------------------------------- */

/* 4096 tokens of width 64, h 8, integers: half a megabyte of text, 4.3 GF of work. */
static char *hungry_body(void) {
    size_t count = (size_t)4096 * 64, room = count * 2 + 4096 * 2 + 256;
    char *body = malloc(room), *p = body;
    if (!body) exit(2);
    p += sprintf(
        p, "{\"num_heads\":8,\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"return\":[\"logsumexp\"],\"Q\":[");
    for (size_t i = 0; i < count; i++) {
        if (i % 64 == 0) *p++ = '[';
        *p++ = (char)('0' + (i * i / 7) % 4);
        *p++ = i % 64 == 63 ? ']' : ',';
        if (i % 64 == 63 && i + 1 < count) *p++ = ',';
    }
    memcpy(p, "]}", 3);
    return body;
}

struct hunger {
    const struct service *service;
    const char *body;
    _Atomic bool over;
    _Atomic size_t computed, refused, other;
};

static void *keep_busy(void *argument) {
    struct hunger *hunger = argument;
    CURL *client = client_new(hunger->service);
    while (!hunger->over) {
        struct reply reply = client_post(client, hunger->service, hunger->body);
        if (reply.status == 200)
            hunger->computed++;
        else if (reply.status == 503)
            hunger->refused++;
        else
            hunger->other++;
        if (reply.status == 503) usleep(20000);
        reply_free(&reply);
    }
    client_free(client);
    return NULL;
}

static double ask_health(int fd, const char *path) {
    char answer[4096], request[128];
    int size = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    double begun = wall_seconds();
    if (send(fd, request, (size_t)size, MSG_NOSIGNAL) != size || recv(fd, answer, sizeof answer, 0) < 12 ||
        memcmp(answer, "HTTP/1.1 200", 12) != 0) {
        fprintf(stderr, "bench_http: %s failed under load\n", path);
        exit(2);
    }
    return wall_seconds() - begun;
}

static void health_under_load(double for_seconds) {
    struct service service;
    const char *const arguments[] = {"--port", "0", "--max-queue", "2", NULL};
    start(&service, NULL, arguments);
    struct hunger hunger = {.service = &service, .body = hungry_body()};
    pthread_t clients[HUNGRY];
    for (size_t i = 0; i < HUNGRY; i++)
        if (pthread_create(&clients[i], NULL, keep_busy, &hunger) != 0) exit(2);
    static double taken[20000];
    size_t count = 0;
    int fd = load_connect(service.port);
    sleep(1);
    for (double stop = wall_seconds() + for_seconds; wall_seconds() < stop && count < 20000; usleep(2000))
        taken[count++] = ask_health(fd, "/healthz") * 1e3;
    hunger.over = true;
    for (size_t i = 0; i < HUNGRY; i++) pthread_join(clients[i], NULL);
    double worst = quantile(taken, count, 1), p99 = quantile(taken, count, 0.99), middle = median(taken, count);
    row("HTTP", "/healthz, all cores computing, queue full: p99", say("%.2f ms", p99), "", "", "<= 50 ms",
        verdict(p99 <= 50),
        say("%zu asked, median %.2f ms, worst %.2f ms; meanwhile %zu layers of 4.3 GF computed, %zu refused with 503, "
            "%zu else",
            count, middle, worst, (size_t)hunger.computed, (size_t)hunger.refused, (size_t)hunger.other));
    close(fd);
    service_stop(&service);
    free((void *)(uintptr_t)hunger.body);
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: bench_http YARDSTICK-PROGRAM\n");
        return 2;
    }
    worked_example(arguments[1]);
    health_under_load(8);
    return 0;
}

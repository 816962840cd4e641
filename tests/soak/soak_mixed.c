/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/soak/soak_mixed.c - `make soak`: SOAK_SECONDS (600) of everything at once against one process: small and large requests,
 * maps, wrong requests, layers put, used, replaced and deleted, clients that leave at every point, deadlines, probes. In the end
 * memory, file descriptors and the budget must be where they were after the first minute (or fifth) of it.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "../integration/raw.h"

#define CLIENTS 12

static struct service service;
static atomic_bool over;
static atomic_uint answers[600], left, resets;

struct client {
    pthread_t thread;
    uint64_t seed;
};

static uint64_t next(struct client *client) { /* xorshift64 (Marsaglia 2003) */
    client->seed ^= client->seed << 13, client->seed ^= client->seed >> 7, client->seed ^= client->seed << 17;
    return client->seed;
}

static void count(int status) { atomic_fetch_add(&answers[status >= 0 && status < 600 ? status : 0], 1); }

/* Sends, perhaps only a part, perhaps leaves before the answer. */
static void exchange(struct client *client, const char *method, const char *path, const char *headers,
                     const char *body) {
    size_t size = strlen(body), room = size + 512;
    char *text = malloc(room);
    int fd = service_connect(&service);
    size_t length = (size_t)snprintf(
        text, room, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n%s",
        method, path, headers, size, body);
    unsigned fate = (unsigned)(next(client) % 16);
    if (fate == 0) length = next(client) % length;
    socket_send(fd, text, length);
    if (fate <= 1) {
        usleep((useconds_t)(next(client) % 20000));
        atomic_fetch_add(&left, 1);
    } else {
        struct answer answer = raw_answer(fd, 60000);
        if (answer.status == 0) atomic_fetch_add(&resets, 1);
        count(answer.status);
        answer_free(&answer);
    }
    if (fate == 2) {
        struct linger abrupt = {.l_onoff = 1, .l_linger = 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
    }
    close(fd);
    free(text);
}

static void compute(struct client *client, size_t n, size_t h, const char *more) {
    char *body = heavy_body(n, h);
    size_t size = strlen(body);
    body = realloc(body, size + strlen(more) + 8);
    sprintf(body + size - 1, "%s}", more);
    exchange(client, "POST", "/v1/mha", next(client) % 8 ? "" : "X-Request-Timeout: 20ms\r\n", body);
    free(body);
}

static void use_layers(struct client *client) {
    char path[64];
    snprintf(path, sizeof path, "/v1/layers/l%u", (unsigned)(next(client) % 4));
    switch (next(client) % 4) {
    case 0:
        exchange(client, "PUT", path, "",
                 "{\"W_q\":[[1,2],[3,4]],\"W_k\":[[1,0],[0,1]],\"W_v\":[[1,2],[3,4]],\"W_o\":null,\"num_heads\":1}");
        break;
    case 1:
        exchange(client, "DELETE", path, "", "");
        break;
    case 2:
        exchange(client, "GET", path, "", "");
        break;
    default: {
        char body[128];
        snprintf(body, sizeof body, "{\"Q\":[[1,2],[3,4],[5,6]],\"layer\":\"%s\"}", path + 11);
        exchange(client, "POST", "/v1/mha", "", body);
    }
    }
}

static void wrong(struct client *client) {
    static const char *const bodies[] = {
        "", "{", "[]", "{\"Q\":[[1,2],[3]]}", "{\"Q\":[[1e999]]}", "{\"q\":1}", "{\"Q\":[[1]],\"num_heads\":0}"};
    exchange(client, "POST", next(client) % 8 ? "/v1/mha" : "/nowhere", "", bodies[next(client) % 7]);
}

static void *run(void *argument) {
    struct client *client = argument;
    while (!atomic_load(&over)) {
        switch (next(client) % 8) {
        case 0:
            compute(client, 1 + next(client) % 600, 8, "");
            break;
        case 1:
            compute(client, 1 + next(client) % 200, 4, ",\"return\":[\"attention\",\"scores\"]");
            break;
        case 2:
            compute(client, 1 + next(client) % 100, 2, ",\"dtype\":\"float32\",\"return\":[\"trace\"],\"causal\":true");
            break;
        case 3:
            use_layers(client);
            break;
        case 4:
            wrong(client);
            break;
        case 5:
            exchange(client, "GET", "/metrics", "", "");
            break;
        default:
            exchange(client, "POST", "/v1/mha", "", SMALL_BODY);
            break;
        }
    }
    return NULL;
}

static void load_for(double seconds) {
    struct client clients[CLIENTS];
    static uint64_t seed = 0x9E3779B97F4A7C15u;
    atomic_store(&over, false);
    for (size_t i = 0; i < CLIENTS; i++) {
        clients[i].seed = seed += 0x9E3779B97F4A7C15u;
        pthread_create(&clients[i].thread, NULL, run, &clients[i]);
    }
    for (double end = seconds_now() + seconds; seconds_now() < end;) {
        usleep(200000);
        assert_true(service_alive(&service));
    }
    atomic_store(&over, true);
    for (size_t i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
}

struct state {
    long rss_kib, fds;
};

/* Nothing in flight any more, all layers gone: what is left is the process itself. */
static struct state settle(void) {
    for (unsigned i = 0; i < 4; i++) {
        char text[128];
        int fd = service_connect(&service);
        snprintf(text, sizeof text, "DELETE /v1/layers/l%u HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", i);
        raw_say(fd, text);
        struct answer answer = raw_answer(fd, 5000);
        answer_free(&answer);
        close(fd);
    }
    assert_true(metric_becomes(&service, "mha_running", 0, 60));
    assert_true(metric_becomes(&service, "mha_inflight_requests", 1, 30));
    assert_true(metric_becomes(&service, "mha_connections", 1, 30));
    assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 30));
    usleep(
        1500000); /* the connection that asked for the metrics closes too, and mappings that wait are given back after a second */
    return (struct state){.rss_kib = service_status(&service, "VmRSS"), .fds = service_count_fds(&service)};
}

static void memory_and_descriptors_are_flat_after_hours_of_everything(void **state) {
    (void)state;
    const char *text = getenv("SOAK_SECONDS");
    double seconds = text ? atof(text) : 600;
    static const char *const arguments[] = {"--log",  "off",        "--max-queue", "16", "--max-memory",
                                            "512MiB", "--max-body", "64MiB",       NULL};
    service_start(&service, arguments);
    load_for(seconds < 300 ? seconds / 5 : 60);
    struct state before = settle();
    load_for(seconds - (seconds < 300 ? seconds / 5 : 60));
    struct state after = settle();
    unsigned total = 0;
    for (int i = 1; i < 600; i++) {
        if (answers[i]) print_message("  %d: %u\n", i, answers[i]);
        total += answers[i];
    }
    print_message(
        "%u answers, %u clients left early, %u without an answer; RSS %ld -> %ld KiB, descriptors %ld -> %ld\n", total,
        left, resets, before.rss_kib, after.rss_kib, before.fds, after.fds);
    assert_true(after.fds <= before.fds);
    assert_true(after.rss_kib < before.rss_kib + 8 * 1024);
    assert_int_equal(answers[500], 0);
    assert_int_equal(resets, 0);
    assert_true(answers[200] > 0 && answers[422] > 0 && answers[400] > 0 && answers[404] > 0);
    assert_int_equal(service_stop(&service), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_and_descriptors_are_flat_after_hours_of_everything)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

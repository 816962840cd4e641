/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/bench_memory.c - what a request holds: while its JSON is read, and for 8192 tokens without maps.
 *
 * Model. A real server over a socket; its peak resident set (VmHWM, set back by /proc/PID/clear_refs) minus what it held before
 * the request. Reading: the body is sent whole but for its last byte, and the peak is taken once the server has read all of that,
 * so that nothing has been computed yet; what is not tensors counts as ours. Computing: a whole request, with the answer taken.
 * The body names its dtype first: a reader that meets numbers before it knows has to hold 8 bytes a number until it does.
 *
 * What this does not do: count page tables and socket buffers, which the kernel holds.
 */
#include <linux/sockios.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../integration/harness.h"
#include "support/load.h"
#include "support/rows.h"

#define MIB 0x1p20

static void start(struct service *service) {
    const char *const arguments[] = {"--port", "0", "--max-body", "1GiB", "--max-memory", "4GiB", "--request-timeout",
                                     "300s",   NULL};
    if (service_spawn(service, arguments, NULL) && service_wait_ready(service, 20)) return;
    fprintf(stderr, "bench_memory: the server did not start: %s\n", service_log(service));
    exit(2);
}

/* From now on VmHWM is the peak since now. */
static bool reset_peak(const struct service *service) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)service->pid);
    FILE *file = fopen(path, "w");
    bool good = file && fputs("5", file) >= 0;
    if (file && fclose(file) != 0) good = false;
    if (!good) fprintf(stderr, "bench_memory: cannot set back the peak: counting from the start\n");
    return good;
}

/* The first request makes the server's buffers; they are not the second one's. */
static void warm_up(const struct service *service) {
    CURL *client = client_new(service);
    struct reply reply = client_post(client, service,
                                     "{\"Q\":[[1,0,1,0],[0,1,0,1]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,"
                                     "\"num_heads\":2}");
    if (reply.status != 200) exit(2);
    reply_free(&reply);
    client_free(client);
}

/* ---- a body as it goes out -------------------------------------------------------------------------------------------- */

struct body {
    int fd;
    size_t sent; /* bytes in block */
    char block[1 << 16];
};

static void body_flush(struct body *body) {
    if (!socket_send(body->fd, body->block, body->sent)) {
        fprintf(stderr, "bench_memory: the server closed the connection\n");
        exit(2);
    }
    body->sent = 0;
}

static void body_add(struct body *body, const char *text, size_t size) {
    if (body->sent + size > sizeof body->block) body_flush(body);
    memcpy(body->block + body->sent, text, size);
    body->sent += size;
}

static void body_text(struct body *body, const char *text) { body_add(body, text, strlen(text)); }

/* A matrix of `rows` lines that are all the same. */
static void body_matrix(struct body *body, const char *name, size_t rows, const char *line, size_t size) {
    body_text(body, say(",\"%s\":[", name));
    for (size_t i = 0; i < rows; i++) {
        body_add(body, line, size);
        body_text(body, i + 1 < rows ? "," : "]");
    }
}

static size_t matrix_bytes(const char *name, size_t rows, size_t size) { return strlen(name) + 5 + rows * (size + 1); }

/* "[0.1234...,...]" of `count` numbers with `digits` digits. */
static char *make_line(size_t count, int digits, size_t *size) {
    char *line = malloc(count * 32 + 3), *p = line;
    if (!line) exit(2);
    for (size_t i = 0; i < count; i++) {
        uint64_t x = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
        p += sprintf(p, "%c%.*f", i ? ',' : '[', digits, (double)(x >> 11) * 0x1p-53 + 1e-3);
    }
    *p++ = ']';
    *size = (size_t)(p - line);
    return line;
}

static void send_head(struct body *body, size_t length) {
    body_text(body, say("POST /v1/mha HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n\r\n",
                        length));
}

/* ---- reading 400 MB ----------------------------------------------------------------------------------------------------- */

/* Waits until the server has taken all that was sent, and used no CPU for a while. */
static void wait_until_read(const struct service *service, int fd) {
    int unsent = 1;
    for (int i = 0; i < 6000 && unsent > 0; i++) {
        if (ioctl(fd, SIOCOUTQ, &unsent) != 0) break;
        usleep(5000);
    }
    for (double before = -1, now = 0; now != before; usleep(200000)) {
        before = now;
        now = process_cpu_of(service->pid);
    }
}

static void reading(const char *dtype, size_t element) {
    const size_t d = 1024, rows = 20000;
    struct service service;
    start(&service);
    warm_up(&service);
    size_t line_size;
    char *line = make_line(d, 17, &line_size);
    const char *head = say("{\"num_heads\":16,\"dtype\":\"%s\"", dtype);
    const char *tail = ",\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null}";
    size_t length = strlen(head) + matrix_bytes("Q", rows, line_size) + strlen(tail);
    struct body *body = calloc(1, sizeof *body);
    if (!body) exit(2);
    body->fd = service_connect(&service);
    long before = service_status(&service, "VmRSS");
    reset_peak(&service);
    double begun = wall_seconds(), cpu = process_cpu_of(service.pid);
    send_head(body, length);
    body_text(body, head);
    body_matrix(body, "Q", rows, line, line_size);
    body_add(body, tail, strlen(tail) - 1);
    body_flush(body);
    double took = wall_seconds() - begun;
    wait_until_read(&service, body->fd);
    long peak = service_status(&service, "VmHWM");
    double tensors = (double)(rows * d * element) / MIB, extra = (double)(peak - before) / 1024 - tensors;
    row("memory", say("reading %.0f MB of JSON into %s: beyond the tensors", (double)length / 1e6, dtype),
        say("%.2f MiB", extra), say("tensors %.1f MiB", tensors), "", "<= 1 MiB", verdict(extra <= 1 && extra > -1),
        say("%.0f MB/s, %.0f ms of server CPU", (double)length / 1e6 / took,
            (process_cpu_of(service.pid) - cpu) * 1e3));
    close(body->fd);
    free(body);
    free(line);
    service_stop(&service);
}

/* ---- 8192 tokens ------------------------------------------------------------------------------------------------------------ */

static void drain_answer(int fd) {
    char block[65536];
    size_t total = 0;
    ssize_t got;
    while ((got = recv(fd, block, sizeof block, 0)) > 0) {
        if (total == 0 && memcmp(block, "HTTP/1.1 200", 12) != 0) {
            fprintf(stderr, "bench_memory: %.*s\n", (int)(got < 600 ? got : 600), block);
            exit(2);
        }
        total += (size_t)got;
    }
}

static void long_layer(const char *dtype, size_t element) {
    const size_t n = 8192, d = 512;
    static const char *const weights[] = {"W_q", "W_k", "W_v", "W_o"};
    struct service service;
    start(&service);
    warm_up(&service);
    size_t line_size;
    char *line = make_line(d, 3, &line_size);
    const char *head = say("{\"num_heads\":8,\"dtype\":\"%s\",\"scale\":0.001", dtype);
    size_t length = strlen(head) + matrix_bytes("Q", n, line_size) + 4 * matrix_bytes("W_q", d, line_size) + 1;
    struct body *body = calloc(1, sizeof *body);
    if (!body) exit(2);
    body->fd = service_connect(&service);
    struct timeval patient = {.tv_sec = 300};
    setsockopt(body->fd, SOL_SOCKET, SO_RCVTIMEO, &patient, sizeof patient);
    long before = service_status(&service, "VmRSS");
    reset_peak(&service);
    body_text(body,
              say("POST /v1/mha HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  length, head));
    body_matrix(body, "Q", n, line, line_size);
    for (size_t i = 0; i < 4; i++) body_matrix(body, weights[i], d, line, line_size);
    body_text(body, "}");
    body_flush(body);
    drain_answer(body->fd);
    long peak = service_status(&service, "VmHWM");
    double tensors = (double)((2 * n * d + 4 * d * d) * element) / MIB,
           extra = (double)(peak - before) / 1024 - tensors;
    row("memory", say("n 8192, d 512, h 8, %s, no maps: beyond inputs and outputs", dtype), say("%.1f MiB", extra),
        say("inputs and outputs %.1f MiB", tensors), "", "<= 64 MiB", verdict(extra <= 64),
        "one n x n map would be 512 MiB in float64");
    close(body->fd);
    free(body);
    free(line);
    service_stop(&service);
}

int main(void) {
    reading("float64", 8);
    reading("float32", 4);
    long_layer("float64", 8);
    long_layer("float32", 4);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/raw.h - requests byte by byte and answers read from a bare socket, for what libcurl would never send.
 */
#ifndef MHA_TESTS_RAW_H
#define MHA_TESTS_RAW_H

#include <ctype.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

/* The worked example of the README, and the smallest thing the service can be asked. */
#define SMALL_BODY "{\"Q\":[[1]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"num_heads\":1}"
#define JSON_POST  "POST /v1/mha HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

/* Sanitizers pad every allocation and, at the end, make system calls that the service itself never makes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

struct answer {
    int status;      /* 0: none came */
    char head[4096]; /* terminated */
    char *body;      /* malloc'ed, terminated */
    size_t size;
};

static inline void answer_free(struct answer *answer) {
    free(answer->body);
    *answer = (struct answer){0};
}

/* Up to `max` bytes within `ms`; 0: end of stream; -1: nothing came in time or the connection was reset. */
static inline ssize_t raw_read(int fd, void *out, size_t max, int ms) {
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    if (poll(&poller, 1, ms) != 1) return -1;
    return recv(fd, out, max, 0);
}

/* The value of a header in `head`, NULL if it is not there. In static storage of the thread until its next call. */
static inline const char *raw_header(const char *head, const char *name) {
    static _Thread_local char value[1024];
    size_t length = strlen(name);
    for (const char *line = head; (line = strstr(line, "\r\n")); line += 2) {
        if (strncasecmp(line + 2, name, length) != 0 || line[2 + length] != ':') continue;
        const char *start = line + 3 + length + strspn(line + 3 + length, " ");
        snprintf(value, sizeof value, "%.*s", (int)strcspn(start, "\r"), start);
        return value;
    }
    return NULL;
}

/* Reads the head of one answer and nothing behind it: looks first, takes then. */
static inline bool raw_read_head(int fd, struct answer *answer, int ms) {
    size_t size = 0;
    double end = seconds_now() + ms / 1e3;
    char *stop = NULL;
    while (!stop && seconds_now() < end) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        if (poll(&poller, 1, ms) != 1) return false;
        ssize_t seen = recv(fd, answer->head, sizeof answer->head - 1, MSG_PEEK);
        if (seen <= 0) return false;
        answer->head[seen] = '\0';
        stop = strstr(answer->head, "\r\n\r\n");
        if (!stop && (size_t)seen == size) usleep(1000); /* half a head: the rest is on its way */
        size = (size_t)seen;
    }
    if (!stop) return false;
    size = (size_t)(stop + 4 - answer->head);
    if (recv(fd, answer->head, size, 0) != (ssize_t)size) return false;
    answer->head[size] = '\0';
    if (strncmp(answer->head, "HTTP/1.1 ", 9) != 0) return false;
    answer->status = atoi(answer->head + 9);
    return true;
}

static inline void raw_read_exactly(int fd, struct answer *answer, size_t size, int ms) {
    answer->body = realloc(answer->body, answer->size + size + 1);
    while (size) {
        ssize_t got = raw_read(fd, answer->body + answer->size, size, ms);
        if (got <= 0) break;
        answer->size += (size_t)got;
        size -= (size_t)got;
    }
    answer->body[answer->size] = '\0';
}

static inline void raw_read_chunks(int fd, struct answer *answer, int ms) {
    for (;;) {
        char line[32] = "";
        for (size_t i = 0; i < sizeof line - 1; i++)
            if (raw_read(fd, line + i, 1, ms) != 1 || line[i] == '\n') break;
        size_t size = strtoul(line, NULL, 16);
        raw_read_exactly(fd, answer, size, ms);
        char end[2];
        if (raw_read(fd, end, 1, ms) != 1 || raw_read(fd, end + 1, 1, ms) != 1) return;
        if (size == 0) return;
    }
}

/* One answer (100 Continue is passed over), waiting at most `ms` for every piece. */
static inline struct answer raw_answer(int fd, int ms) {
    struct answer answer = {0};
    do {
        answer = (struct answer){0};
        if (!raw_read_head(fd, &answer, ms)) return answer;
    } while (answer.status == 100);
    const char *length = raw_header(answer.head, "Content-Length");
    if (length)
        raw_read_exactly(fd, &answer, strtoul(length, NULL, 10), ms);
    else if (raw_header(answer.head, "Transfer-Encoding"))
        raw_read_chunks(fd, &answer, ms);
    return answer;
}

static inline void raw_say(int fd, const char *text) { assert_true(socket_send(fd, text, strlen(text))); }

/* POST of a JSON text with its Content-Length; `headers`: more lines, each with CR LF. */
static inline void raw_post(int fd, const char *headers, const char *body) {
    char head[1024];
    snprintf(head, sizeof head, JSON_POST "%sContent-Length: %zu\r\n\r\n", headers, strlen(body));
    raw_say(fd, head);
    raw_say(fd, body);
}

/* The peer closes (or resets) within `ms`. */
static inline bool raw_is_closed(int fd, int ms) {
    char byte;
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    if (poll(&poller, 1, ms) != 1) return false;
    return recv(fd, &byte, 1, 0) <= 0;
}

/* A request of n queries and keys in h heads of width 1: much computing (n * n * h exponentials) for few bytes. malloc'ed. */
static inline char *heavy_body(size_t n, size_t h) {
    size_t room = n * (2 * h + 3) + 256;
    char *body = malloc(room), *at = body;
    at += sprintf(at, "{\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"num_heads\":%zu,\"Q\":[", h);
    for (size_t i = 0; i < n; i++) {
        *at++ = i ? ',' : ' ';
        for (size_t j = 0; j < h; j++) {
            *at++ = j ? ',' : '[';
            *at++ = (char)('0' + (i * 7 + j) % 3);
        }
        *at++ = ']';
    }
    strcpy(at, "]}");
    return body;
}

/* A number of /metrics, by the whole name with its labels; -1 if it is not there. */
static inline double metric(const struct service *service, const char *name) {
    CURL *client = client_new(service);
    struct request request = {.path = "/metrics"};
    struct reply reply = client_send(client, service, &request);
    double value = -1;
    size_t length = strlen(name);
    for (const char *line = reply.body; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ' ') value = atof(line + length);
    reply_free(&reply);
    client_free(client);
    return value;
}

/* Waits until a metric has a value. */
static inline bool metric_becomes(const struct service *service, const char *name, double value, double seconds) {
    double end = seconds_now() + seconds;
    while (metric(service, name) != value) {
        if (seconds_now() > end) return false;
        usleep(5000);
    }
    return true;
}

#endif

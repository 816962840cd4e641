/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_body_shapes.c - the same request in every shape a body can take on the wire gives the same
 * bytes back.
 *
 * Whole with a Content-Length, chunked in pieces of any size, one byte at a time over a bare socket, after a 100
 * Continue, one after the other on a kept connection, and from 32 clients at once, each with another request and each
 * getting its own answer. The yardstick is always the answer to the same text sent whole by one client alone.
 */
#include "harness.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const same_id[] = {"X-Request-Id: body-shapes", NULL};

static struct service service;
static CURL *client;
static struct http_case *cases;
static size_t n_cases;
static struct reply *whole; /* [n_cases], the answers to the bodies sent whole */

static struct reply send_case(CURL *handle, size_t index, size_t piece, bool expect_continue) {
    struct request request = {.path = "/v1/mha",
                              .body = cases[index].body,
                              .size = cases[index].body_size,
                              .headers = same_id,
                              .piece = piece,
                              .expect_continue = expect_continue};
    return client_send(handle, &service, &request);
}

static int start(void **state) {
    (void)state;
    cases = http_cases_load(&n_cases);
    whole = calloc(n_cases, sizeof *whole);
    service_start(&service, NULL);
    client = client_new(&service);
    for (size_t i = 0; whole && i < n_cases; i++) whole[i] = send_case(client, i, 0, false);
    return whole ? 0 : 1;
}

static int stop(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++) reply_free(&whole[i]);
    free(whole);
    http_cases_free(cases, n_cases);
    client_free(client);
    return service_stop(&service);
}

/* "" or what differs. */
static const char *difference(size_t index, const struct reply *reply, char *out, size_t max) {
    if (reply->status == whole[index].status && reply->size == whole[index].size &&
        !memcmp(reply->body, whole[index].body, reply->size))
        return "";
    snprintf(out, max, "%s: %ld %.200s (%s), sent whole: %ld %.200s", cases[index].name, reply->status, reply->body,
             curl_easy_strerror(reply->curl), whole[index].status, whole[index].body);
    return out;
}

static void assert_same(size_t index, struct reply *reply) {
    char text[600];
    if (*difference(index, reply, text, sizeof text)) fail_msg("%s", text);
    reply_free(reply);
}

static void every_case_was_answered(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++)
        assert_true(whole[i].status == 200 || (whole[i].status >= 400 && whole[i].status < 500));
}

static void chunked_bodies_give_the_same_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++) {
        if (cases[i].body_size == 0) continue;
        struct reply reply = send_case(client, i, 1 + i % 97 + cases[i].body_size / 500, false);
        assert_same(i, &reply);
    }
}

static void expect_100_continue_gives_the_same_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i += 7) {
        struct reply reply = send_case(client, i, i % 2 ? 64 + cases[i].body_size / 100 : 0, true);
        assert_same(i, &reply);
    }
}

static void one_connection_serves_them_all(void **state) {
    (void)state;
    long connections = 0;
    CURL *kept = client_new(&service);
    for (size_t i = 0; i < n_cases; i++) {
        if (cases[i].body_size == 0) continue; /* libmicrohttpd 1.0 closes after it */
        struct reply reply = send_case(kept, i, 0, false);
        connections += reply.connects;
        assert_same(i, &reply);
    }
    client_free(kept);
    assert_int_equal(connections, 1);
}

/* Sends a whole request one byte a packet and compares the answer's body. */
static void drip(size_t index, bool chunked) {
    char head[256], *answer = malloc(1 << 20);
    int fd = service_connect(&service), on = 1;
    assert_non_null(answer);
    if (service.port) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    snprintf(head, sizeof head,
             "POST /v1/mha HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: body-shapes\r\n"
             "Content-Type: application/json\r\n");
    assert_true(socket_send(fd, head, strlen(head)));
    if (chunked)
        snprintf(head, sizeof head, "Transfer-Encoding: chunked\r\n\r\n");
    else
        snprintf(head, sizeof head, "Content-Length: %zu\r\n\r\n", cases[index].body_size);
    for (size_t i = 0; head[i]; i++) assert_true(socket_send(fd, head + i, 1));
    for (size_t i = 0; i < cases[index].body_size; i++) {
        char piece[8] = {'1', '\r', '\n', cases[index].body[i], '\r', '\n'};
        assert_true(chunked ? socket_send(fd, piece, 6) : socket_send(fd, cases[index].body + i, 1));
    }
    if (chunked) assert_true(socket_send(fd, "0\r\n\r\n", 5));
    size_t size = socket_read_all(fd, answer, (1 << 20) - 1);
    close(fd);
    const char *body = strstr(answer, "\r\n\r\n");
    if (!body) fail_msg("%s: no answer: %.200s", cases[index].name, answer);
    body += 4;
    /* An answer of unknown length comes chunked: its pieces are compared by what they contain. */
    if (strcasestr(answer, "Transfer-Encoding: chunked")) {
        char *joined = malloc(size + 1);
        size_t used = 0;
        for (unsigned long n; (n = strtoul(body, (char **)&body, 16)) > 0; body += n + 2) {
            memcpy(joined + used, body + 2, n);
            used += n;
            body += 2;
        }
        assert_int_equal(used, whole[index].size);
        assert_memory_equal(joined, whole[index].body, used);
        free(joined);
    } else {
        assert_int_equal(size - (size_t)(body - answer), whole[index].size);
        assert_memory_equal(body, whole[index].body, whole[index].size);
    }
    free(answer);
}

static void one_byte_at_a_time_gives_the_same_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++)
        if (cases[i].body_size > 0 && cases[i].body_size < 900 && i % 3 == 0) drip(i, false);
}

static void chunks_of_one_byte_give_the_same_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++)
        if (cases[i].body_size > 0 && cases[i].body_size < 900 && i % 3 == 1) drip(i, true);
}

enum { CLIENTS = 32, ROUNDS = 30 };

struct one_client {
    pthread_t thread;
    size_t number;
    size_t answered;
    char problem[600]; /* "" = all well */
};

static void *be_a_client(void *arg) {
    struct one_client *self = arg;
    CURL *handle = client_new(&service);
    for (size_t round = 0; round < ROUNDS && !*self->problem; round++) {
        size_t index = (self->number + round * CLIENTS) % n_cases;
        struct reply reply = send_case(handle, index, round % 3 == 2 ? 256 : 0, false);
        difference(index, &reply, self->problem, sizeof self->problem);
        self->answered++;
        reply_free(&reply);
    }
    client_free(handle);
    return NULL;
}

static void thirty_two_clients_at_once_each_get_their_own_answer(void **state) {
    (void)state;
    static struct one_client clients[CLIENTS];
    for (size_t i = 0; i < CLIENTS; i++) {
        clients[i].number = i;
        assert_int_equal(pthread_create(&clients[i].thread, NULL, be_a_client, &clients[i]), 0);
    }
    for (size_t i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    for (size_t i = 0; i < CLIENTS; i++) {
        if (*clients[i].problem) fail_msg("client %zu: %s", i, clients[i].problem);
        assert_int_equal(clients[i].answered, ROUNDS);
    }
}

int main(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_was_answered),
        cmocka_unit_test(chunked_bodies_give_the_same_bytes),
        cmocka_unit_test(expect_100_continue_gives_the_same_bytes),
        cmocka_unit_test(one_connection_serves_them_all),
        cmocka_unit_test(one_byte_at_a_time_gives_the_same_bytes),
        cmocka_unit_test(chunks_of_one_byte_give_the_same_bytes),
        cmocka_unit_test(thirty_two_clients_at_once_each_get_their_own_answer),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

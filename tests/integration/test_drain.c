/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_drain.c - how the process ends: SIGTERM under load, with work that does not end, with idle clients.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "raw.h"

/* ---- load ---------------------------------------------------------------------------------------------------------------- */

/* A client that sends one request after the other, keep-alive, until the server is gone. */
struct load {
    const struct service *service;
    const char *body;
    atomic_uint answered;
    unsigned sent, lost, refused_connections, bad;
    pthread_t thread;
};

/* -1: refused. Unlike service_connect this may fail. */
static int try_connect(const struct service *service) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)service->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static bool send_request(int fd, const char *body) {
    size_t size = strlen(body), room = size + 256;
    char *text = malloc(room); /* in one piece: two would wait 40 ms for each other */
    int length = snprintf(text, room, JSON_POST "Content-Length: %zu\r\n\r\n%s", size, body);
    bool sent = socket_send(fd, text, (size_t)length);
    free(text);
    return sent;
}

static void *run_load(void *argument) {
    struct load *load = argument;
    int fd = -1;
    while (load->refused_connections == 0) {
        bool fresh = fd < 0;
        if (fresh) fd = try_connect(load->service);
        if (fd < 0) {
            load->refused_connections++;
            break;
        }
        struct answer answer = {0};
        bool sent = send_request(fd, load->body);
        if (sent) answer = raw_answer(fd, 20000);
        load->sent++;
        load->answered += answer.status == 200;
        load->bad += answer.status != 200 && answer.status != 0;
        /* A kept-alive connection may be closed between two requests: then the client sends again on a fresh one, as every HTTP
         * client does (RFC 9112, section 9.3.1). A request on a connection just accepted may not be lost. */
        if (answer.status == 0 && fresh) load->lost++;
        bool over = answer.status == 0 ||
                    (raw_header(answer.head, "Connection") && !strcmp(raw_header(answer.head, "Connection"), "close"));
        answer_free(&answer);
        if (over) {
            close(fd);
            fd = -1;
        }
    }
    if (fd >= 0) close(fd);
    return NULL;
}

static void sigterm_under(const char *body, size_t clients) {
    struct service service;
    struct load load[32];
    service_start(&service, NULL);
    for (size_t i = 0; i < clients; i++) {
        load[i] = (struct load){.service = &service, .body = body};
        pthread_create(&load[i].thread, NULL, run_load, &load[i]);
    }
    unsigned answered = 0;
    for (int i = 0; i < 1500 && (i < 40 || answered <= 2 * clients);
         i++) { /* 0.4 s, or more until everybody is at work */
        usleep(10000);
        answered = 0;
        for (size_t c = 0; c < clients; c++) answered += load[c].answered;
    }
    assert_int_equal(service_stop_within(&service, 15), 0);
    answered = 0;
    for (size_t i = 0; i < clients; i++) {
        pthread_join(load[i].thread, NULL);
        answered += load[i].answered;
        assert_int_equal(load[i].lost, 0);
        assert_int_equal(load[i].bad, 0);
    }
    print_message("%u requests answered, none lost\n", answered);
    assert_true(answered > clients);
}

static void sigterm_under_load_loses_no_request_that_runs_inline(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) sigterm_under(SMALL_BODY, 32); /* the gap that lost some was hit in one of ten */
}

static void sigterm_under_load_loses_no_request_that_runs_on_the_pool(void **state) {
    (void)state;
    char *body = heavy_body(192, 32);
    for (int i = 0; i < 3; i++) sigterm_under(body, 16);
    free(body);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------ */

static void readyz_says_503_at_once_and_requests_go_on_during_the_delay(void **state) {
    (void)state;
    static const char *const arguments[] = {"--drain-delay", "1500ms", "--drain", "3s", NULL};
    struct service service;
    service_start(&service, arguments);
    double start = seconds_now();
    kill(service.pid, SIGTERM);
    usleep(50000);
    int fd = service_connect(&service); /* still accepts */
    raw_say(fd, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n");
    struct answer answer = raw_answer(fd, 2000);
    assert_int_equal(answer.status, 503);
    assert_string_equal(raw_header(answer.head, "Connection"), "close");
    assert_non_null(raw_header(answer.head, "Retry-After"));
    answer_free(&answer);
    close(fd);
    fd = service_connect(&service);
    raw_post(fd, "", SMALL_BODY);
    answer = raw_answer(fd, 2000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
    close(fd);
    fd = service_connect(&service);
    raw_say(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    answer = raw_answer(fd, 2000);
    assert_int_equal(answer.status, 200); /* alive to the end: nobody shall kill it */
    answer_free(&answer);
    close(fd);
    assert_int_equal(service_stop_within(&service, 5), 0); /* a second SIGTERM: no need to wait any longer */
    assert_true(seconds_now() - start < 3);
}

static void an_idle_keep_alive_client_does_not_hold_up_the_end(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    int fd = service_connect(&service);
    raw_post(fd, "", SMALL_BODY);
    struct answer answer = raw_answer(fd, 2000);
    answer_free(&answer);
    double start = seconds_now();
    assert_int_equal(service_stop_within(&service, 5), 0);
    assert_true(seconds_now() - start < 1.5);
    assert_true(raw_is_closed(fd, 1000));
    close(fd);
}

static void a_computation_in_flight_is_finished(void **state) {
    (void)state;
    char *body = heavy_body(512, 64);
    struct service service;
    service_start(&service, NULL);
    int fd = service_connect(&service);
    raw_post(fd, "", body);
    usleep(30000);
    kill(service.pid, SIGTERM);
    struct answer answer = raw_answer(fd, 20000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
    assert_int_equal(service_stop_within(&service, 10), 0);
    close(fd);
    free(body);
}

/* libmicrohttpd aborts the process when it is stopped with a suspended connection. */
static void what_takes_longer_than_drain_is_answered_503_and_the_exit_is_clean(void **state) {
    (void)state;
    static const char *const arguments[] = {"--drain", "300ms", "--request-timeout", "600s", "--log", "text", NULL};
    char *body = heavy_body(6000, 64);
    struct service service;
    service_start(&service, arguments);
    int fd[8]; /* running and waiting ones */
    for (size_t i = 0; i < 8; i++) {
        fd[i] = service_connect(&service);
        raw_post(fd[i], "", body);
    }
    assert_true(metric_becomes(&service, "mha_running", 4, 10));
    assert_true(metric_becomes(&service, "mha_queue_depth", 4, 10));
    double start = seconds_now();
    kill(service.pid, SIGTERM);
    for (size_t i = 0; i < 8; i++) {
        struct answer answer = raw_answer(fd[i], 20000);
        assert_int_equal(answer.status, 503);
        assert_non_null(strstr(answer.body, "\"code\":\"draining\""));
        answer_free(&answer);
        close(fd[i]);
    }
    int status;
    assert_int_equal(waitpid(service.pid, &status, 0), service.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(seconds_now() - start < 5);
    unlink(service.log_path);
    free(body);
}

static void a_half_sent_body_does_not_hold_up_the_end_beyond_drain(void **state) {
    (void)state;
    static const char *const arguments[] = {"--drain", "500ms", NULL};
    struct service service;
    service_start(&service, arguments);
    int fd = service_connect(&service);
    raw_say(fd, JSON_POST "Content-Length: 100\r\n\r\n{");
    usleep(50000);
    double start = seconds_now();
    assert_int_equal(service_stop_within(&service, 5), 0);
    assert_true(seconds_now() - start < 3);
    close(fd);
}

static void a_unix_socket_is_removed_at_the_end(void **state) {
    (void)state;
    static const char *const arguments[] = {"--unix", "/tmp/mhad-test-drain.sock", NULL};
    struct service service;
    service_start(&service, arguments);
    assert_int_equal(access("/tmp/mhad-test-drain.sock", F_OK), 0);
    assert_int_equal(service_stop(&service), 0);
    assert_int_equal(access("/tmp/mhad-test-drain.sock", F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sigterm_under_load_loses_no_request_that_runs_inline),
        cmocka_unit_test(sigterm_under_load_loses_no_request_that_runs_on_the_pool),
        cmocka_unit_test(readyz_says_503_at_once_and_requests_go_on_during_the_delay),
        cmocka_unit_test(an_idle_keep_alive_client_does_not_hold_up_the_end),
        cmocka_unit_test(a_computation_in_flight_is_finished),
        cmocka_unit_test(what_takes_longer_than_drain_is_answered_503_and_the_exit_is_clean),
        cmocka_unit_test(a_half_sent_body_does_not_hold_up_the_end_beyond_drain),
        cmocka_unit_test(a_unix_socket_is_removed_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

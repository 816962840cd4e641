/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_overload.c - more work than there is room for: the queue, deadlines, clients that leave, memory, and
 * probes that answer meanwhile.
 */
#include <pthread.h>

#include "raw.h"

/* Keeps the workers busy for long; cancelled when its connection closes. */
struct busy {
    int fd[64];
    size_t count;
    char *body;
};

static void busy_start(struct busy *busy, const struct service *service, size_t count) {
    busy->count = count;
    busy->body = heavy_body(6000, 64);
    for (size_t i = 0; i < count; i++) {
        busy->fd[i] = service_connect(service);
        raw_post(busy->fd[i], "", busy->body);
    }
}

static void busy_end(struct busy *busy) {
    for (size_t i = 0; i < busy->count; i++) close(busy->fd[i]);
    free(busy->body);
}

static void a_full_queue_gets_503_with_retry_after(void **state) {
    (void)state;
    static const char *const arguments[] = {"--threads", "2", "--max-queue", "3", "--request-timeout", "600s", NULL};
    struct service service;
    struct busy busy;
    service_start(&service, arguments);
    busy_start(&busy, &service, 7); /* 4 run, 3 wait */
    assert_true(metric_becomes(&service, "mha_running", 4, 10));
    assert_true(metric_becomes(&service, "mha_queue_depth", 3, 10));
    int fd = service_connect(&service);
    raw_post(fd, "", busy.body);
    struct answer answer = raw_answer(fd, 10000);
    assert_int_equal(answer.status, 503);
    assert_string_equal(raw_header(answer.head, "Retry-After"), "1");
    assert_non_null(strstr(answer.body, "\"code\":\"queue_full\""));
    answer_free(&answer);
    raw_post(fd, "", SMALL_BODY); /* small ones need no place in the queue */
    answer = raw_answer(fd, 2000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
    close(fd);
    assert_true(metric(&service, "mha_rejected_total{reason=\"queue_full\"}") == 1);
    busy_end(&busy);
    assert_true(metric_becomes(&service, "mha_running", 0, 20));
    assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 5));
    assert_int_equal(service_stop(&service), 0);
}

static void a_client_that_leaves_frees_its_workers_and_its_place(void **state) {
    (void)state;
    static const char *const arguments[] = {"--request-timeout", "600s", NULL};
    struct service service;
    struct busy busy;
    service_start(&service, arguments);
    for (int abrupt = 0; abrupt < 2; abrupt++) {
        busy_start(&busy, &service, 8);
        assert_true(metric_becomes(&service, "mha_running", 4, 10));
        assert_true(metric_becomes(&service, "mha_queue_depth", 4, 10));
        if (abrupt) {
            struct linger reset = {.l_onoff = 1, .l_linger = 0};
            for (size_t i = 0; i < busy.count; i++) setsockopt(busy.fd[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        double start = seconds_now();
        busy_end(&busy);
        assert_true(metric_becomes(&service, "mha_running", 0, 5));
        assert_true(metric_becomes(&service, "mha_queue_depth", 0, 1));
        print_message("8 clients left: workers free after %.0f ms\n", 1e3 * (seconds_now() - start));
        assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 5));
    }
    assert_int_equal(metric(&service, "mha_client_disconnects_total"), 16);
    assert_int_equal(service_stop(&service), 0);
}

static void the_deadline_of_the_flag_and_a_lower_one_of_the_header_hold(void **state) {
    (void)state;
    static const char *const arguments[] = {"--request-timeout", "1500ms", NULL};
    static const struct {
        const char *header;
        double least, most;
    } rows[] = {{"", 1.4, 3}, {"X-Request-Timeout: 300ms\r\n", 0.25, 1.4}, {"X-Request-Timeout: 100\r\n", 1.4, 3}};
    struct service service;
    char *body = heavy_body(6000, 64);
    service_start(&service, arguments);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int fd = service_connect(&service);
        double start = seconds_now();
        raw_post(fd, rows[i].header, body);
        struct answer answer = raw_answer(fd, 10000);
        double took = seconds_now() - start;
        assert_int_equal(answer.status, 408);
        /* a slow build may still be reading when the time is over: then it is "timeout" */
        assert_true(strstr(answer.body, "\"code\":\"deadline\"") || strstr(answer.body, "\"code\":\"timeout\""));
        if (took < rows[i].least || took > rows[i].most) fail_msg("%s: %.2f s", rows[i].header, took);
        answer_free(&answer);
        close(fd);
    }
    int fd = service_connect(&service);
    raw_post(fd, "X-Request-Timeout: soon\r\n", SMALL_BODY);
    struct answer answer = raw_answer(fd, 2000);
    assert_int_equal(answer.status, 400);
    answer_free(&answer);
    close(fd);
    free(body);
    assert_int_equal(service_stop(&service), 0);
}

static void a_queued_request_meets_its_deadline_too(void **state) {
    (void)state;
    static const char *const arguments[] = {"--request-timeout", "600s", NULL};
    struct service service;
    struct busy busy;
    service_start(&service, arguments);
    busy_start(&busy, &service, 4);
    assert_true(metric_becomes(&service, "mha_running", 4, 10));
    int fd = service_connect(&service);
    raw_post(fd, "X-Request-Timeout: 400ms\r\n", busy.body);
    struct answer answer = raw_answer(fd, 5000);
    assert_int_equal(answer.status, 408);
    answer_free(&answer);
    close(fd);
    busy_end(&busy);
    assert_int_equal(service_stop(&service), 0);
}

static void what_can_never_fit_gets_413_before_anything_is_computed(void **state) {
    (void)state;
    static const char *const arguments[] = {"--max-memory", "64MiB", "--max-body", "32MiB", NULL};
    struct service service;
    service_start(&service, arguments);
    char *body = heavy_body(4000, 4);
    size_t size = strlen(body);
    body = realloc(body, size + 64);
    strcpy(body + size - 1, ",\"return\":[\"attention\"]}"); /* 4 * 4000 * 4000 * 8 = 512 MB */
    int fd = service_connect(&service);
    double start = seconds_now();
    raw_post(fd, "", body);
    struct answer answer = raw_answer(fd, 10000);
    assert_int_equal(answer.status, 413);
    double limit = metric(&service, "mha_memory_limit_bytes"); /* 64 MiB without what connections have */
    assert_true(limit > 55 * 1048576.0 && limit < 64 * 1048576.0);
    char said[64];
    snprintf(said, sizeof said, "\"limit\":%.0f", limit);
    assert_non_null(strstr(answer.body, said));
    assert_true(seconds_now() - start < 2);
    answer_free(&answer);
    close(fd);
    free(body);
    assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 5));
    assert_true(service_status(&service, "VmHWM") < 64 * 1024);
    assert_int_equal(service_stop(&service), 0);
}

/* An eighth of 16 MiB is set aside for the first 56 connections, the rest holds 399 more of 36 KiB. Each sends a request, so that
 * libmicrohttpd touches what it has for it. */
static void connections_count_against_max_memory(void **state) {
    (void)state;
    enum { TRIED = 600, FIT = 56 + 399 };
    static const char *const arguments[] = {"--max-memory", "16MiB", "--max-body", "1MiB", "--log", "off", NULL};
    static int fd[TRIED];
    struct service service;
    service_start(&service, arguments);
    double each = 36864, limit = metric(&service, "mha_memory_limit_bytes");
    long before = service_status(&service, "VmRSS");
    assert_true(limit == 16 * 1048576.0 - 56 * each);
    assert_true(metric_becomes(&service, "mha_connections", 1, 5));
    size_t served = 0, refused = 0;
    for (size_t i = 0; i < TRIED; i++) {
        fd[i] = service_connect(&service);
        raw_say(fd[i], "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        struct answer answer = raw_answer(fd[i], 5000);
        served += answer.status == 200;
        refused += answer.status == 503 && strstr(answer.body, "--max-memory") != NULL;
        answer_free(&answer);
    }
    long after = service_status(&service, "VmRSS");
    assert_true(SANITIZED || after - before <= 16 * 1024);
    for (size_t i = 0; i < TRIED; i++) close(fd[i]);
    assert_true(served >= FIT - 1 && served <= FIT); /* the connection of a metric() may not have gone yet */
    assert_int_equal(served + refused, TRIED);
    assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 5)); /* all of it came back */
    assert_true(metric(&service, "mha_memory_peak_bytes") <= limit);
    assert_true(metric(&service, "mha_rejected_total{reason=\"memory_busy\"}") == (double)refused);
    assert_int_equal(service_stop(&service), 0);
}

/* ---- probes under load ------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void probes_answer_within_50_ms_while_every_worker_computes_and_the_queue_is_full(void **state) {
    (void)state;
    enum { PROBES = 400 };
    static const char *const paths[] = {"/healthz", "/readyz", "/metrics"};
    static const char *const arguments[] = {"--max-queue", "8", "--request-timeout", "600s", "--log", "off", NULL};
    static double took[PROBES];
    struct service service;
    struct busy busy;
    service_start(&service, arguments);
    busy_start(&busy, &service, 12);
    assert_true(metric_becomes(&service, "mha_queue_depth", 8, 20));
    CURL *client = client_new(&service);
    for (size_t i = 0; i < PROBES; i++) {
        struct request request = {.path = paths[i % 3]};
        double start = seconds_now();
        struct reply reply = client_send(client, &service, &request);
        took[i] = seconds_now() - start;
        assert_int_equal(reply.status, 200);
        reply_free(&reply);
        usleep(2000);
    }
    client_free(client);
    qsort(took, PROBES, sizeof *took, compare);
    print_message("probes under load: p50 %.2f ms, p99 %.2f ms, worst %.2f ms\n", 1e3 * took[PROBES / 2],
                  1e3 * took[PROBES * 99 / 100], 1e3 * took[PROBES - 1]);
    assert_true(took[PROBES * 99 / 100] < 0.050);
    busy_end(&busy);
    assert_int_equal(service_stop(&service), 0);
}

/* Large bodies are read and large answers written in slices: probes come in between. */
static void probes_answer_while_a_large_body_is_read_and_a_large_answer_written(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    size_t size = 40 << 20;
    char *body = malloc(size + 64), *at = body + sprintf(body, "{\"unknown\":[");
    while (at - body < (long)size) at += sprintf(at, "0.12345678901234567,");
    strcpy(at, "1]}");
    int fd = service_connect(&service);
    char head[256];
    snprintf(head, sizeof head, JSON_POST "Content-Length: %zu\r\n\r\n", strlen(body));
    raw_say(fd, head);
    int probe = service_connect(&service);
    double worst = 0;
    for (size_t sent = 0, length = strlen(body); sent < length;) {
        size_t piece = length - sent < 1 << 20 ? length - sent : 1 << 20;
        assert_true(socket_send(fd, body + sent, piece));
        sent += piece;
        double start = seconds_now();
        raw_say(probe, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        struct answer answer = raw_answer(probe, 5000);
        assert_int_equal(answer.status, 200);
        answer_free(&answer);
        if (seconds_now() - start > worst) worst = seconds_now() - start;
    }
    struct answer answer = raw_answer(fd, 10000);
    assert_int_equal(answer.status, 422);
    answer_free(&answer);
    print_message("worst probe while 40 MiB came in: %.2f ms\n", 1e3 * worst);
    assert_true(worst < 0.25);
    close(probe);
    close(fd);
    free(body);
    assert_int_equal(service_stop(&service), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_gets_503_with_retry_after),
        cmocka_unit_test(a_client_that_leaves_frees_its_workers_and_its_place),
        cmocka_unit_test(the_deadline_of_the_flag_and_a_lower_one_of_the_header_hold),
        cmocka_unit_test(a_queued_request_meets_its_deadline_too),
        cmocka_unit_test(what_can_never_fit_gets_413_before_anything_is_computed),
        cmocka_unit_test(connections_count_against_max_memory),
        cmocka_unit_test(probes_answer_within_50_ms_while_every_worker_computes_and_the_queue_is_full),
        cmocka_unit_test(probes_answer_while_a_large_body_is_read_and_a_large_answer_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

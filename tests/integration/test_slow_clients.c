/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_slow_clients.c - clients that are slow, many, or both: absolute deadlines, thousands of idle
 * connections, limits that answer instead of hanging.
 */
#include <sys/resource.h>

#include "raw.h"

/* Sends one byte of `text` every `ms` until the peer says something or closes; returns the seconds that took. */
static double dribble(int fd, const char *text, int ms) {
    double start = seconds_now();
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    for (; *text && seconds_now() - start < 20; text++) {
        if (send(fd, text, 1, MSG_NOSIGNAL) != 1) break;
        if (poll(&poller, 1, ms) == 1) break;
    }
    return seconds_now() - start;
}

static void a_header_byte_by_byte_meets_its_deadline(void **state) {
    (void)state;
    static const char *const arguments[] = {"--header-timeout", "700ms", NULL};
    struct service service;
    service_start(&service, arguments);
    int fd = service_connect(&service);
    raw_say(fd, "GET /healthz HTTP/1.1\r\n");
    double took = dribble(fd, "X-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 100);
    assert_true(took > 0.5 && took < 3);
    struct answer answer = raw_answer(fd, 1000);
    assert_int_equal(answer.status, 408);
    assert_non_null(strstr(answer.body, "\"code\":\"timeout\""));
    answer_free(&answer);
    assert_true(raw_is_closed(fd, 1000));
    close(fd);
    /* not even a request line: nothing to answer, just the end */
    fd = service_connect(&service);
    took = dribble(fd, "GET /healthzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", 100);
    assert_true(took > 0.5 && took < 3);
    assert_true(raw_is_closed(fd, 1000));
    close(fd);
    assert_int_equal(service_stop(&service), 0);
}

static void a_body_byte_by_byte_meets_its_deadline(void **state) {
    (void)state;
    static const char *const arguments[] = {"--request-timeout", "700ms", NULL};
    struct service service;
    service_start(&service, arguments);
    for (int refused = 0; refused < 2; refused++) { /* also while a refused body is being dropped */
        int fd = service_connect(&service);
        raw_say(fd, refused ? "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
                            : JSON_POST "Content-Length: 1000\r\n\r\n");
        double took = dribble(fd, "{\"Q\":[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24", 100);
        assert_true(took > 0.5 && took < 3);
        struct answer answer = raw_answer(fd, 1000);
        assert_int_equal(answer.status, 408);
        answer_free(&answer);
        assert_true(raw_is_closed(fd, 1000));
        close(fd);
    }
    assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 5));
    assert_true(metric(&service, "mha_rejected_total{reason=\"timeout\"}") == 2);
    assert_int_equal(service_stop(&service), 0);
}

static void x_request_timeout_lowers_the_deadline_of_a_body(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    int fd = service_connect(&service);
    raw_say(fd, JSON_POST "X-Request-Timeout: 300ms\r\nContent-Length: 1000\r\n\r\n{");
    double start = seconds_now();
    struct answer answer = raw_answer(fd, 5000);
    assert_int_equal(answer.status, 408);
    assert_true(seconds_now() - start < 2);
    answer_free(&answer);
    close(fd);
    assert_int_equal(service_stop(&service), 0);
}

static void an_idle_connection_is_closed_after_its_time_and_not_before(void **state) {
    (void)state;
    static const char *const arguments[] = {"--idle-timeout", "600ms", "--header-timeout", "400ms", NULL};
    struct service service;
    service_start(&service, arguments);
    int fresh = service_connect(&service), used = service_connect(&service);
    double start = seconds_now();
    raw_say(used, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    struct answer answer = raw_answer(used, 2000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
    assert_true(raw_is_closed(fresh, 2000)); /* never said anything: the header's time */
    assert_true(seconds_now() - start > 0.3);
    assert_true(raw_is_closed(used, 2000));
    assert_true(seconds_now() - start > 0.55 && seconds_now() - start < 2);
    close(fresh);
    close(used);
    assert_int_equal(service_stop(&service), 0);
}

/* An answer of tens of megabytes, far more than socket buffers hold, to a client that takes nothing of it. */
static void nobody_reads(const char *headers) {
    static const char *const arguments[] = {"--write-timeout", "500ms", NULL};
    struct service service;
    service_start(&service, arguments);
    int fd = service_connect(&service), little = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    char *body = heavy_body(1500, 1);
    size_t size = strlen(body);
    body = realloc(body, size + 64);
    strcpy(body + size - 1, ",\"return\":[\"attention\"]}");
    raw_post(fd, headers, body);
    assert_true(
        metric_becomes(&service, "mha_http_requests_total{route=\"/v1/mha\",method=\"POST\",code=\"499\"}", 1, 60));
    assert_true(metric_becomes(&service, "mha_memory_bytes", 0, 5));
    assert_true(metric_becomes(&service, "mha_connections", 1, 5));
    close(fd);
    free(body);
    assert_int_equal(service_stop(&service), 0);
}

static void a_client_that_does_not_read_its_answer_is_let_go(void **state) {
    (void)state;
    nobody_reads("");
}

static void a_client_that_does_not_read_its_binary_answer_is_let_go(void **state) {
    (void)state;
    nobody_reads("Accept: application/vnd.safetensors\r\n");
}

/* ---- many --------------------------------------------------------------------------------------------------------------- */

static void thousands_of_idle_connections_cost_little_and_the_next_is_served(void **state) {
    (void)state;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    size_t count = limit.rlim_cur > 10200 ? 10000 : limit.rlim_cur > 5200 ? 5000 : (size_t)limit.rlim_cur - 200;
    struct service service;
    service_start(&service, NULL);
    long before = service_status(&service, "VmRSS");
    int *fd = malloc(count * sizeof *fd);
    for (size_t i = 0; i < count; i++) fd[i] = service_connect(&service);
    assert_true(metric_becomes(&service, "mha_connections", (double)count + 1, 20));
    long after = service_status(&service, "VmRSS");
    print_message("%zu idle connections: %.1f KiB each\n", count, (double)(after - before) / (double)count);
    assert_true(after - before <
                (long)count * (SANITIZED ? 256 : 8)); /* KiB: an unused connection holds no buffer yet */
    for (size_t i = 0; i < count; i += count / 100) { /* any of them still works */
        raw_post(fd[i], "", SMALL_BODY);
        struct answer answer = raw_answer(fd[i], 5000);
        assert_int_equal(answer.status, 200);
        answer_free(&answer);
    }
    for (size_t i = 0; i < count; i++) close(fd[i]);
    assert_true(metric_becomes(&service, "mha_connections", 1, 20));
    assert_int_equal(service_stop(&service), 0);
    free(fd);
}

static void use(int fd) {
    raw_post(fd, "", SMALL_BODY);
    struct answer answer = raw_answer(fd, 5000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
}

/* Opens and uses `count` connections; one more gets 503 that names the limit. */
static void fill_up(const struct service *service, int *fd, size_t count, const char *limit) {
    for (size_t i = 0; i < count; i++) use(fd[i] = service_connect(service));
    int extra = service_connect(service);
    struct answer answer = raw_answer(extra, 5000);
    assert_int_equal(answer.status, 503);
    assert_non_null(raw_header(answer.head, "Retry-After"));
    assert_non_null(strstr(answer.body, limit));
    answer_free(&answer);
    close(extra);
}

static void a_connection_too_many_gets_503_and_room_again_later(void **state) {
    (void)state;
    static const char *const arguments[] = {"--max-connections", "20", NULL};
    struct service service;
    service_start(&service, arguments);
    int fd[20];
    fill_up(&service, fd, 20, "--max-connections)");
    for (size_t i = 0; i < 20; i++) close(fd[i]);
    assert_true(metric_becomes(&service, "mha_connections", 1, 5));
    assert_true(metric(&service, "mha_rejected_total{reason=\"connections\"}") >= 1);
    assert_int_equal(service_stop(&service), 0);
}

static void one_address_has_no_more_connections_than_its_share(void **state) {
    (void)state;
    static const char *const arguments[] = {
        "--max-connections-per-ip", "5", "--unix", "/tmp/mhad-test-per-ip.sock", "--port", "0", NULL};
    struct service service;
    service_start(&service, arguments);
    int fd[5];
    fill_up(&service, fd, 5, "--max-connections-per-ip");
    close(fd[0]);
    usleep(100000);
    fd[0] = service_connect(&service); /* room again */
    use(fd[0]);
    for (size_t i = 0; i < 5; i++) close(fd[i]);
    assert_int_equal(service_stop(&service), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_byte_by_byte_meets_its_deadline),
        cmocka_unit_test(a_body_byte_by_byte_meets_its_deadline),
        cmocka_unit_test(x_request_timeout_lowers_the_deadline_of_a_body),
        cmocka_unit_test(an_idle_connection_is_closed_after_its_time_and_not_before),
        cmocka_unit_test(a_client_that_does_not_read_its_answer_is_let_go),
        cmocka_unit_test(a_client_that_does_not_read_its_binary_answer_is_let_go),
        cmocka_unit_test(thousands_of_idle_connections_cost_little_and_the_next_is_served),
        cmocka_unit_test(a_connection_too_many_gets_503_and_room_again_later),
        cmocka_unit_test(one_address_has_no_more_connections_than_its_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

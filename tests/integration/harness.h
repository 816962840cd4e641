/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/harness.h - what integration tests share: the real server as a child process, requests through
 * libcurl or a bare socket, JSON compared with tolerances.
 *
 * Model. `service_start` runs the binary named by $TEST_MHAD (build/mhad) on a port that the kernel chooses, waits
 * until /readyz says 200 and finds the port by asking /proc which sockets the child listens on. The child dies with the
 * test (PR_SET_PDEATHSIG). `service_stop` sends SIGTERM and returns how it ended, so that a sanitizer's complaint or a
 * crash shows. What the child writes to stderr lands in a file that tests may read.
 *
 * Errors of the harness itself (no memory, cannot fork) end the test program: they are nobody's feature.
 */
#ifndef MHA_TESTS_HARNESS_H
#define MHA_TESTS_HARNESS_H

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* cmocka wants these three before itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

struct service {
    pid_t pid;
    int port;            /* on 127.0.0.1; 0 when only a Unix socket was asked for */
    char unix_path[104]; /* "" or the path given with --unix in the arguments */
    char log_path[64];   /* what the child wrote to stderr */
    double ready_ms;     /* from fork to the first 200 of /readyz */
};

/* Arguments after the program name, NULL-terminated (NULL: none). "--port 0" is added unless they choose where to
 * listen. `environment`: "NAME=value" strings to add, NULL-terminated, or NULL. Fails the current test if the server
 * does not get ready within 20 s. */
void service_start_env(struct service *service, const char *const *arguments, const char *const *environment);
void service_start(struct service *service, const char *const *arguments);
/* Starts without waiting for readiness; false if the child ended within the time. For servers that are meant to fail.
 */
bool service_spawn(struct service *service, const char *const *arguments, const char *const *environment);
/* Waits up to `seconds` for /readyz. */
bool service_wait_ready(struct service *service, double seconds);
/* SIGTERM, then SIGKILL after `seconds`. Returns the exit status, or 128 + signal. Removes the log file. */
int service_stop_within(struct service *service, double seconds);
int service_stop(struct service *service);
bool service_alive(const struct service *service);
/* The log so far, malloc'ed, terminated. */
char *service_log(const struct service *service);

/* From /proc/PID/status, in KiB; key "VmHWM" (peak), "VmRSS" (now), "Threads". -1 if there is none. */
long service_status(const struct service *service, const char *key);
long service_count_fds(const struct service *service);

/* ---- requests
 * ---------------------------------------------------------------------------------------------------------- */

struct reply {
    long status; /* 0: no HTTP answer came; see `curl` */
    CURLcode curl;
    char *body; /* terminated */
    size_t size;
    char *head; /* header lines of the final answer, terminated */
    size_t head_size;
    long connects; /* new connections this request needed: 0 = kept alive */
};

struct request {
    const char *method; /* NULL: POST if there is a body, else GET */
    const char *path;   /* "/v1/mha" */
    const char *body;   /* NULL: none */
    size_t size;        /* of the body */
    const char *const
        *headers; /* "Name: value", NULL-terminated; Content-Type: application/json is sent unless named here */
    size_t piece; /* > 0: chunked transfer coding, this many bytes a piece */
    bool expect_continue;
    double timeout; /* seconds, 0: 60 */
};

/* A handle keeps its connection alive between requests; one per thread. */
CURL *client_new(const struct service *service);
void client_free(CURL *client);
/* The reply belongs to the caller; reply_free also takes a zeroed one. */
struct reply client_send(CURL *client, const struct service *service, const struct request *request);
/* POST /v1/mha of a text, whole. */
struct reply client_post(CURL *client, const struct service *service, const char *json);
void reply_free(struct reply *reply);
/* The value of a header of the answer in `out`; false if there is none. */
bool reply_header(const struct reply *reply, const char *name, char *out, size_t max);
/* The body as JSON, to be freed with cJSON_Delete; fails the test if it is not JSON. */
cJSON *reply_json(const struct reply *reply);

/* A connected socket, blocking, with 30 s receive and send timeouts; fails the test if it cannot connect. */
int service_connect(const struct service *service);
bool socket_send(int fd, const void *bytes, size_t size);
/* Reads until the peer closes, `max` is reached or the timeout; returns the number of bytes, terminates `out` (max + 1
 * bytes). */
size_t socket_read_all(int fd, char *out, size_t max);

/* A server and a kept connection for all tests of a group: cmocka's set-up and tear-down (default arguments; the tear-down fails
 * unless the server ends with 0). */
extern struct service group_service;
extern CURL *group_client;
int group_start(void **state);
int group_stop(void **state);

/* ---- comparing
 * --------------------------------------------------------------------------------------------------------- */

/* Numbers agree if |a - e| <= atol + rtol |e| (so NaN never agrees), arrays element by element, objects in every member
 * of `expect`, everything else exactly. False: `where` tells the first difference. */
bool json_matches(const cJSON *actual, const cJSON *expect, double rtol, double atol, char *where, size_t max);
/* Same, failing the test with the difference. */
void assert_json(const cJSON *actual, const char *field, const char *expect_json, double rtol, double atol);

/* ---- files
 * ------------------------------------------------------------------------------------------------------------- */

/* Whole file, malloc'ed, terminated; NULL if it cannot be read. */
char *file_read(const char *path, size_t *size);

/* One file of tests/cases. */
struct http_case {
    char *name; /* "conformance/onnx__3d" */
    char *body; /* what to POST to /v1/mha */
    size_t body_size;
    cJSON *document; /* the whole file */
};
/* All of them, sorted by name; fails the test program when there are none. */
struct http_case *http_cases_load(size_t *count);
void http_cases_free(struct http_case *cases, size_t count);

double seconds_now(void);

#endif

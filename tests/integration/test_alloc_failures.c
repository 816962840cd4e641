/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_alloc_failures.c - the Nth allocation of a request fails, for every N, in the real process.
 *
 * Allowed outcomes of a request whose Nth allocation failed: the right answer (the failure did not matter), a 503 or 500 problem,
 * or no answer on a connection that was closed. Not allowed: a crash, a hang, a wrong answer with a 2xx, a 4xx that blames the
 * client for it. Afterwards the server must answer as before, and a second sweep must leave as many blocks in use as the first
 * (whatever leaks at one N leaks at each sweep).
 *
 * Each kind of request is swept twice: one failing allocation, and all of them failing from the Nth on. A sweep ends at the first N
 * that the request does not reach. Sanitizers bring their own allocator, so their builds skip this.
 */
#include "alloc_shim.h"
#include "harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MOST = 5000 }; /* allocations of one request; more would mean that something grows */

static struct service service;
static struct alloc_shim *shim;
static char shim_file[64], preload[600];

static const char *const headers[] = {"X-Request-Id: failing", "Connection: close", NULL};

static int start(void **state) {
    (void)state;
    if (SANITIZED) return 0;
    snprintf(shim_file, sizeof shim_file, "/tmp/mhad-test-shim-%d", (int)getpid());
    int fd = open(shim_file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *shim) != 0) return 1;
    shim = mmap(NULL, sizeof *shim, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    char file[100];
    snprintf(file, sizeof file, ALLOC_SHIM_FILE "=%s", shim_file);
    const char *const environment[] = {preload, file, NULL};
    service_start_env(&service, (const char *const[]){"--threads", "2", NULL}, environment);
    return 0;
}

static int stop(void **state) {
    (void)state;
    if (SANITIZED) return 0;
    atomic_store(&shim->persistent, 0);
    atomic_store(&shim->countdown, 0);
    unlink(shim_file);
    return service_stop(&service);
}

static struct reply ask(const struct request *request) {
    CURL *client = client_new(&service);
    struct reply reply = client_send(client, &service, request);
    client_free(client);
    return reply;
}

static void judge(long n, const struct reply *reply, const struct reply *right) {
    if (!service_alive(&service)) fail_msg("allocation %ld failed and the server died", n);
    if (reply->curl == CURLE_OPERATION_TIMEDOUT) fail_msg("allocation %ld failed and no answer came in time", n);
    if (reply->curl != CURLE_OK) return; /* refused or closed */
    if (reply->status == 503 || reply->status == 500) return;
    if (reply->status != right->status)
        fail_msg("allocation %ld failed: status %ld: %.300s", n, reply->status, reply->body);
    if (reply->size != right->size || memcmp(reply->body, right->body, right->size))
        fail_msg("allocation %ld failed and the answer is another: %.300s", n, reply->body);
}

/* Runs until the request no longer gets to its Nth allocation; returns how many it has. */
static long sweep(const struct request *request, const struct reply *right, bool persistent) {
    for (long n = 1; n < MOST; n++) {
        atomic_store(&shim->persistent, persistent);
        atomic_store(&shim->countdown, n);
        long failed = atomic_load(&shim->failed);
        struct reply reply = ask(request);
        bool reached = atomic_load(&shim->failed) > failed;
        atomic_store(&shim->countdown, 0);
        atomic_store(&shim->persistent, 0);
        judge(n, &reply, right);
        reply_free(&reply);
        if (!reached) return n - 1;
    }
    fail_msg("a request makes more than %d allocations", MOST);
    return 0;
}

/* Blocks in use once nothing happens any more. */
static long settled(const struct request *request, const struct reply *right) {
    for (int i = 0; i < 20; i++) {
        struct reply reply = ask(request);
        assert_int_equal(reply.status, right->status);
        assert_int_equal(reply.size, right->size);
        assert_memory_equal(reply.body, right->body, right->size);
        reply_free(&reply);
    }
    long live = atomic_load(&shim->live);
    for (int still = 0; still < 10; still++) {
        usleep(20000);
        if (atomic_load(&shim->live) != live) still = 0;
        live = atomic_load(&shim->live);
    }
    return live;
}

static void survives(const struct request *request, long expect_status) {
    struct reply right = ask(request);
    if (right.status != expect_status) fail_msg("status %ld: %.300s", right.status, right.body);
    for (int persistent = 0; persistent < 2; persistent++) {
        sweep(request, &right, persistent);
        long before = settled(request, &right);
        long reached = sweep(request, &right, persistent);
        long after = settled(request, &right);
        print_message("           %ld allocations, %ld blocks in use\n", reached, after);
        assert_true(reached > 0);
        if (after > before) fail_msg("a sweep leaks: %ld blocks in use before, %ld after", before, after);
    }
    reply_free(&right);
}

#define EXAMPLE "\"Q\":[[1,0,1,0],[0,1,0,1]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"num_heads\":2"

static void post_survives(const char *body, long expect_status, size_t piece) {
    if (SANITIZED) skip();
    struct request request = {
        .path = "/v1/mha", .body = body, .size = strlen(body), .headers = headers, .piece = piece, .timeout = 20};
    survives(&request, expect_status);
}

static void a_small_request_survives_every_failing_allocation(void **state) {
    (void)state;
    post_survives("{" EXAMPLE ",\"return\":[\"trace\",\"present\"]}", 200, 0);
}

static void a_chunked_request_with_masks_survives(void **state) {
    (void)state;
    post_survives("{" EXAMPLE ",\"attn_mask\":[[true,false],[true,true]],\"key_mask\":[true,true],\"causal\":true,"
                  "\"b_o\":[1,2,3,4],\"dtype\":\"float32\",\"tensor_format\":\"base64\"}",
                  200, 11);
}

static void a_wrong_request_survives(void **state) {
    (void)state;
    post_survives("{" EXAMPLE ",\"num_haeds\":2}", 422, 0);
}

static void a_body_that_is_not_json_survives(void **state) {
    (void)state;
    post_survives("{\"Q\":[[1,2],[NaN", 400, 0);
}

/* Large enough to be handed to the worker pool, tensors of several pages. */
static void a_large_request_survives(void **state) {
    (void)state;
    enum { N = 192, D = 64 };
    if (SANITIZED) skip();
    char *body = malloc(N * D * 8 + 200);
    assert_non_null(body);
    char *at = body + sprintf(body, "{\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"num_heads\":4,\"Q\":");
    for (int i = 0; i < N; i++) {
        *at++ = i ? ',' : '[';
        for (int j = 0; j < D; j++) at += sprintf(at, "%c%d.%d", j ? ',' : '[', (i * 7 + j * 3) % 5, (i + j) % 10);
        *at++ = ']';
    }
    strcpy(at, "]}");
    post_survives(body, 200, 0);
    free(body);
}

/* PUT replaces a layer that is there, so that its answer is always the same; then the layer is used and described. */
static void resident_layers_survive(void **state) {
    (void)state;
    if (SANITIZED) skip();
    static const char layer[] = "{\"W_q\":[[1,2],[3,4]],\"W_k\":[[1,0],[0,1]],\"W_v\":[[1,2],[2,1]],\"W_o\":null,"
                                "\"b_q\":[1,2],\"num_heads\":1}";
    struct request put = {.method = "PUT",
                          .path = "/v1/layers/failing",
                          .body = layer,
                          .size = sizeof layer - 1,
                          .headers = headers,
                          .timeout = 20};
    struct reply first = ask(&put);
    assert_int_equal(first.status, 201);
    reply_free(&first);
    survives(&put, 200);
    post_survives("{\"layer\":\"failing\",\"Q\":[[1,2],[3,4]]}", 200, 0);
    post_survives("{\"layer\":\"failin\",\"Q\":[[1,2],[3,4]]}", 404, 0);
    struct request get = {.path = "/v1/layers/failing", .headers = headers, .timeout = 20};
    survives(&get, 200);
    get.path = "/v1/layers";
    survives(&get, 200);
}

/* Q [1,2] of float32 and the layer above, in and out as safetensors. */
static void a_binary_request_survives(void **state) {
    (void)state;
    if (SANITIZED) skip();
    static const char json[] = "{\"__metadata__\":{\"mha\":\"{\\\"layer\\\":\\\"failing\\\"}\"},"
                               "\"Q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}";
    static const char *const binary[] = {"X-Request-Id: failing", "Connection: close",
                                         "Content-Type: application/vnd.safetensors",
                                         "Accept: application/vnd.safetensors", NULL};
    char body[8 + sizeof json - 1 + 8] = {(char)(sizeof json - 1)};
    const float q[2] = {1, -2};
    memcpy(body + 8, json, sizeof json - 1);
    memcpy(body + 8 + sizeof json - 1, q, 8);
    struct request request = {.path = "/v1/mha", .body = body, .size = sizeof body, .headers = binary, .timeout = 20};
    survives(&request, 200);
}

static void the_health_endpoints_survive(void **state) {
    (void)state;
    if (SANITIZED) skip();
    struct request request = {.path = "/healthz", .headers = headers, .timeout = 20};
    survives(&request, 200);
}

int main(int argc, char **argv) {
    (void)argc;
    char *slash = strrchr(argv[0], '/');
    char *folder = realpath(slash ? (*slash = 0, argv[0]) : ".", NULL);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s/alloc_shim.so", folder ? folder : ".");
    free(folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_request_survives_every_failing_allocation),
        cmocka_unit_test(a_chunked_request_with_masks_survives),
        cmocka_unit_test(a_wrong_request_survives),
        cmocka_unit_test(a_body_that_is_not_json_survives),
        cmocka_unit_test(a_large_request_survives),
        cmocka_unit_test(resident_layers_survive),
        cmocka_unit_test(a_binary_request_survives),
        cmocka_unit_test(the_health_endpoints_survive),
    };
    return cmocka_run_group_tests(tests, start, stop);
}

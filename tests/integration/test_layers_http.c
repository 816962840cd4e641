/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_layers_http.c - resident layers and safetensors bodies against the real process: the same bytes as
 * inline weights, errors, use while replaced and deleted, the directory, and SIGKILL at any moment of a change.
 *
 * Safetensors bodies are laid by our writer (held against the format in tests/unit/test_safetensors.c) from tensors that
 * the test also writes as JSON, so the two wires can be compared number by number.
 */
#include "raw.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../api/safetensors.h"
#include "../unit/support/half.h"

enum { WIDTH = 8, ROWS = 3 };

static struct service service;
static CURL *client;

/* ---- tensors that can be written both ways ----------------------------------------------------------------------- */

static double number_at(unsigned seed, size_t i) {
    uint32_t x = seed * 2654435761u ^ (uint32_t)i * 2246822519u;
    x ^= x >> 15;
    x *= 3266489917u;
    x ^= x >> 13;
    return ((double)(x >> 16) - 32768) / 65536;
}

/* [[...],[...]] of rows x columns numbers, malloc'd. */
static char *matrix_json(unsigned seed, size_t rows, size_t columns) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; i < rows * columns; i++) {
        if (i % columns == 0) fputs(i ? "],[" : "[[", out);
        fprintf(out, "%s%.17g", i % columns ? "," : "", number_at(seed, i));
    }
    fputs("]]", out);
    fclose(out);
    return text;
}

static double *matrix_f64(unsigned seed, size_t count) {
    double *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++) data[i] = number_at(seed, i);
    return data;
}

/* A safetensors body of these tensors, malloc'd. `mha` NULL: no metadata. */
static char *pack(struct st_out *tensors, size_t n, const char *mha, size_t *size) {
    struct st_metadata metadata = {"mha", mha};
    size_t head = 0;
    char *header = st_write_header(tensors, n, &metadata, mha ? 1 : 0, &head);
    *size = head;
    for (size_t i = 0; i < n; i++) *size += tensors[i].end - tensors[i].begin;
    char *body = malloc(*size + 1);
    memcpy(body, header, head);
    for (size_t i = 0; i < n; i++)
        if (tensors[i].end > tensors[i].begin)
            memcpy(body + head + tensors[i].begin, tensors[i].data, tensors[i].end - tensors[i].begin);
    free(header);
    return body;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static const char *const binary_headers[] = {"Content-Type: application/vnd.safetensors",
                                             "Accept: application/vnd.safetensors", NULL};
static const char *const binary_in_json_out[] = {"Content-Type: application/vnd.safetensors",
                                                 "Accept: application/json", NULL};

static const char *const json_in_binary_out[] = {"Content-Type: application/json",
                                                 "Accept: application/vnd.safetensors", NULL};

static struct reply send_to(CURL *from, const char *method, const char *path, const char *body, size_t size,
                            const char *const *headers, size_t piece) {
    struct request request = {
        .method = method, .path = path, .body = body, .size = size, .headers = headers, .piece = piece};
    return client_send(from, &service, &request);
}

static struct reply send_json(const char *method, const char *path, const char *body) {
    return send_to(client, method, path, body, body ? strlen(body) : 0, NULL, 0);
}

static void expect_status(struct reply *reply, long status, const char *word) {
    if (reply->status != status || (word && !strstr(reply->body, word)))
        fail_msg("status %ld, not %ld (%s): %.600s", reply->status, status, word ? word : "", reply->body);
    reply_free(reply);
}

/* The body of PUT: four matrices of one seed. */
static char *layer_json(unsigned seed, size_t width, const char *more) {
    char *text = NULL, *w[4];
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (unsigned i = 0; i < 4; i++) w[i] = matrix_json(seed + i, width, width);
    fprintf(out, "{\"W_q\":%s,\"W_k\":%s,\"W_v\":%s,\"W_o\":%s,\"num_heads\":2%s}", w[0], w[1], w[2], w[3], more);
    for (unsigned i = 0; i < 4; i++) free(w[i]);
    fclose(out);
    return text;
}

static void put_layer(const char *name, unsigned seed, size_t width, long status) {
    char path[300], *body = layer_json(seed, width, "");
    snprintf(path, sizeof path, "/v1/layers/%s", name);
    struct reply reply = send_json("PUT", path, body);
    expect_status(&reply, status, NULL);
    free(body);
}

/* {"layer":name,"Q":[...]} and what the same weights inline give. */
static char *use_json(const char *name, size_t width, const char *more) {
    char *q = matrix_json(77, ROWS, width), *text = NULL;
    if (asprintf(&text, "{\"layer\":\"%s\",\"Q\":%s%s}", name, q, more) < 0) abort();
    free(q);
    return text;
}

static char *answer_of(const char *body) {
    struct reply reply = client_post(client, &service, body);
    if (reply.status != 200) fail_msg("%ld: %s", reply.status, reply.body);
    char *text = strdup(reply.body);
    reply_free(&reply);
    return text;
}

static char *inline_answer(unsigned seed, size_t width, const char *more) {
    char *q = matrix_json(77, ROWS, width), *rest = NULL;
    if (asprintf(&rest, ",\"Q\":%s%s", q, more) < 0) abort();
    char *body = layer_json(seed, width, rest), *answer = answer_of(body);
    free(q);
    free(rest);
    free(body);
    return answer;
}

/* ---- the plain life of a layer ----------------------------------------------------------------------------------- */

static void a_layer_is_put_listed_described_used_and_deleted(void **state) {
    (void)state;
    put_layer("one", 1, WIDTH, 201);
    put_layer("two", 2, WIDTH, 201);
    put_layer("one", 1, WIDTH, 200);
    struct reply reply = send_json("GET", "/v1/layers", NULL);
    assert_string_equal(reply.body, "{\"layers\":[\"one\",\"two\"]}\n");
    reply_free(&reply);
    reply = send_json("GET", "/v1/layers/one", NULL);
    cJSON *json = reply_json(&reply);
    assert_json(json, "num_heads", "2", 0, 0);
    assert_json(json, "d_k", "4", 0, 0);
    assert_json(json, "tensors",
                "{\"W_q\":{\"shape\":[8,8],\"dtype\":\"float64\"},\"W_k\":{\"shape\":[8,8],\"dtype\":\"float64\"},"
                "\"W_v\":{\"shape\":[8,8],\"dtype\":\"float64\"},\"W_o\":{\"shape\":[8,8],\"dtype\":\"float64\"}}",
                0, 0);
    cJSON_Delete(json);
    reply_free(&reply);
    static const char *const settings[] = {"", ",\"dtype\":\"float32\"", ",\"causal\":true,\"return\":[\"trace\"]",
                                           ",\"dtype\":\"float32\",\"softcap\":0.3,\"scale\":2"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char *body = use_json("one", WIDTH, settings[i]), *with_layer = answer_of(body);
        char *with_weights = inline_answer(1, WIDTH, settings[i]);
        assert_string_equal(with_layer, with_weights);
        free(body);
        free(with_layer);
        free(with_weights);
    }
    for (int i = 0; i < 2; i++) {
        reply = send_json("DELETE", i ? "/v1/layers/two" : "/v1/layers/one", NULL);
        expect_status(&reply, 204, "");
    }
    reply = send_json("DELETE", "/v1/layers/one", NULL);
    expect_status(&reply, 404, "layer_not_found");
    reply = send_json("GET", "/v1/layers/one", NULL);
    expect_status(&reply, 404, "layer_not_found");
}

static void a_layers_defaults_hold_until_the_request_says_otherwise(void **state) {
    (void)state;
    char *body = layer_json(5, WIDTH, ",\"scale\":0.125,\"softcap\":0.5,\"dtype\":\"float32\"");
    struct reply reply = send_json("PUT", "/v1/layers/defaults", body);
    expect_status(&reply, 201, "\"packed\":[\"float32\"]");
    free(body);
    static const char *const pairs[][2] = {
        {"", ",\"scale\":0.125,\"softcap\":0.5,\"dtype\":\"float32\""},
        {",\"scale\":3", ",\"scale\":3,\"softcap\":0.5,\"dtype\":\"float32\""},
        {",\"softcap\":0", ",\"scale\":0.125,\"dtype\":\"float32\""},
    };
    for (size_t i = 0; i < 3; i++) {
        char *use = use_json("defaults", WIDTH, pairs[i][0]), *with_layer = answer_of(use);
        char *with_weights = inline_answer(5, WIDTH, pairs[i][1]);
        assert_string_equal(with_layer, with_weights);
        free(use);
        free(with_layer);
        free(with_weights);
    }
    reply = send_json("DELETE", "/v1/layers/defaults", NULL);
    expect_status(&reply, 204, NULL);
}

/* 1 + 2^-24 lies exactly between two float32, and these texts, which float64 cannot tell from it, on either side. */
#define TIES "[[1.0000000596046448,1.0000000596046447],[-1.0000000596046448,-1.0000000596046447]]"
#define REST "\"W_q\":[[1,0],[0,1]],\"W_k\":[[1,0],[0,1]],\"W_o\":null,\"num_heads\":1"

static void float32_requests_round_the_numbers_of_a_layer_once(void **state) {
    (void)state;
    static const char *const spelled[] = {TIES, "{\"shape\":[2,2],\"data\":[1.0000000596046448,1.0000000596046447,"
                                                "-1.0000000596046448,-1.0000000596046447]}"};
    char body[400];
    char *first = answer_of("{\"dtype\":\"float32\",\"Q\":[[1,0],[0,1]],\"scale\":1000,\"W_v\":" TIES "," REST "}");
    char *last = answer_of("{\"Q\":[[1,0],[0,1]],\"scale\":1000,\"W_v\":" TIES "," REST ",\"dtype\":\"float32\"}");
    assert_string_equal(first, "{\"output\":[[1.0000001,1],[-1.0000001,-1]]}\n");
    assert_string_equal(first, last);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body, "{\"W_v\":%s," REST "}", spelled[i]);
        struct reply reply = send_json("PUT", "/v1/layers/ties", body);
        expect_status(&reply, i ? 200 : 201, NULL);
        char *use = answer_of("{\"dtype\":\"float32\",\"Q\":[[1,0],[0,1]],\"scale\":1000,\"layer\":\"ties\"}");
        assert_string_equal(use, first);
        free(use);
        use = answer_of("{\"Q\":[[1,0],[0,1]],\"scale\":1000,\"layer\":\"ties\"}");
        assert_string_equal(use, "{\"output\":[[1.0000000596046448,1.0000000596046448],"
                                 "[-1.0000000596046448,-1.0000000596046448]]}\n");
        free(use);
    }
    /* what was said to be float64 is that number and no other, wherever dtype stands */
    static const char *const said[] = {"{\"dtype\":\"float64\",\"W_v\":" TIES "," REST "}",
                                       "{\"W_v\":" TIES "," REST ",\"dtype\":\"float64\"}"};
    for (int i = 0; i < 2; i++) {
        struct reply reply = send_json("PUT", "/v1/layers/ties", said[i]);
        expect_status(&reply, 200, NULL);
        char *use = answer_of("{\"dtype\":\"float32\",\"Q\":[[1,0],[0,1]],\"scale\":1000,\"layer\":\"ties\"}");
        assert_string_equal(use, "{\"output\":[[1,1],[-1,-1]]}\n");
        free(use);
    }
    struct reply reply = send_json("DELETE", "/v1/layers/ties", NULL);
    expect_status(&reply, 204, NULL);
    free(first);
    free(last);
}

static void a_request_cannot_bring_what_the_layer_brings(void **state) {
    (void)state;
    static const char *const beside[] = {"W_q\":[[1]]",   "W_o\":null",       "b_k\":[1]",
                                         "num_heads\":2", "num_kv_heads\":1", "weight_layout\":\"in_out\""};
    put_layer("one", 1, WIDTH, 201);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        char more[64], *body;
        snprintf(more, sizeof more, ",\"%s", beside[i]);
        body = use_json("one", WIDTH, more);
        struct reply reply = send_json("POST", "/v1/mha", body);
        expect_status(&reply, 422, "\"code\":\"conflict\"");
        free(body);
    }
    struct reply reply = send_json("POST", "/v1/mha", "{\"layer\":\"one\",\"Q\":[[1,2,3]]}");
    expect_status(&reply, 422, "takes width 8");
    reply = send_json("POST", "/v1/mha", "{\"layer\":\"onee\",\"Q\":[[1,2,3]]}");
    expect_status(&reply, 404, "Did you mean \\\"one\\\"?");
    reply = send_json("POST", "/v1/mha", "{\"layer\":5,\"Q\":[[1,2,3]]}");
    expect_status(&reply, 422, "wrong_type");
}

static void names_cannot_be_paths(void **state) {
    (void)state;
    static const char *const paths[] = {"/v1/layers/..%2Fx", "/v1/layers/%2e%2e", "/v1/layers/.hidden",
                                        "/v1/layers/a%00b",  "/v1/layers/a%20b",  "/v1/layers/%C3%A9",
                                        "/v1/layers/a%5Cb"};
    char *body = layer_json(1, WIDTH, ""), longest[300] = "/v1/layers/";
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct request request = {.method = "PUT", .path = paths[i], .body = body, .size = strlen(body)};
        struct reply reply = client_send(client, &service, &request);
        if (reply.status < 400 || reply.status >= 500) fail_msg("%s: %ld", paths[i], reply.status);
        reply_free(&reply);
    }
    memset(longest + 11, 'a', 201);
    struct reply reply = send_json("PUT", longest, body);
    expect_status(&reply, 422, "200 characters");
    free(body);
}

static void a_put_that_fails_leaves_the_old_layer(void **state) {
    (void)state;
    put_layer("one", 3, WIDTH, 200);
    char *before_body = use_json("one", WIDTH, ""), *before = answer_of(before_body);
    static const struct {
        const char *body;
        long status;
        const char *word;
    } bad[] = {
        {"{\"W_q\":[[1]]", 400, "json_syntax"},
        {"{\"W_q\":[[1]],\"W_k\":[[1]],\"W_v\":[[1]],\"num_heads\":1}", 422, "W_o is missing"},
        {"{\"W_q\":[[1]],\"W_k\":[[1]],\"W_v\":[[1]],\"W_o\":[[1]]}", 422, "num_heads"},
        {"{\"W_q\":[[1]],\"W_k\":[[1]],\"W_v\":[[1]],\"W_o\":[[1,2],[3,4]],\"num_heads\":1}", 422, "shape_mismatch"},
        {"{\"W_q\":null,\"W_k\":[[1]],\"W_v\":[[1]],\"W_o\":[[1]],\"num_heads\":1}", 422, "W_q is null"},
        {"{\"W_q\":[[1]],\"W_k\":[[1]],\"W_v\":[[1]],\"W_o\":[[1]],\"num_heads\":1,\"Q\":[[1]]}", 422, "unknown_field"},
        {"{\"W_q\":[[1e39]],\"W_k\":[[1]],\"W_v\":[[1]],\"W_o\":[[1]],\"num_heads\":1,\"dtype\":\"float32\"}", 422,
         "non_finite_input"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct reply reply = send_json("PUT", "/v1/layers/one", bad[i].body);
        expect_status(&reply, bad[i].status, bad[i].word);
    }
    char *after = answer_of(before_body);
    assert_string_equal(before, after);
    free(before_body);
    free(before);
    free(after);
}

/* ---- safetensors in and out -------------------------------------------------------------------------------------- */

/* Name, dtype and numbers of a tensor in a binary answer. */
static const struct st_tensor *find_in(const struct reply *reply, struct st_header **header, const char *name,
                                       const unsigned char **data) {
    struct st_error error;
    size_t length = 0;
    assert_true(reply->size > 8);
    assert_int_equal(st_header_length((const unsigned char *)reply->body, &length, &error), ST_OK);
    assert_true(length <= reply->size - 8);
    *header = st_header_parse(reply->body + 8, length, &error);
    if (!*header) fail_msg("%s", error.text);
    assert_int_equal(st_header_fits(*header, reply->size - 8 - length, &error), ST_OK);
    const struct st_tensor *tensor = st_find(*header, name);
    if (!tensor) fail_msg("no tensor %s in the answer", name);
    *data = (const unsigned char *)reply->body + 8 + length + tensor->begin;
    return tensor;
}

static void compare_with_json(const cJSON *json, const struct st_tensor *tensor, const unsigned char *data,
                              size_t *at) {
    const cJSON *item;
    if (cJSON_IsNumber(json)) {
        double wide;
        float narrow;
        if (tensor->dtype == ST_F64) {
            memcpy(&wide, data + 8 * *at, 8);
            assert_true(json->valuedouble == wide);
        } else {
            memcpy(&narrow, data + 4 * *at, 4);
            assert_true((float)json->valuedouble == narrow);
        }
        ++*at;
        return;
    }
    cJSON_ArrayForEach(item, json) compare_with_json(item, tensor, data, at);
}

static void safetensors_and_json_give_the_same_numbers_however_they_are_cut(void **state) {
    (void)state;
    static const char *const dtypes[] = {"float64", "float32"};
    static const size_t pieces[] = {0, 1, 7, 64};
    put_layer("one", 1, WIDTH, 200);
    double *q = matrix_f64(77, ROWS * WIDTH);
    size_t dim[] = {ROWS, WIDTH};
    for (int d = 0; d < 2; d++) {
        char mha[128], more[64];
        snprintf(more, sizeof more, ",\"dtype\":\"%s\",\"return\":[\"output\",\"projections\"]", dtypes[d]);
        snprintf(mha, sizeof mha, "{\"layer\":\"one\"%s}", more);
        char *json_body = use_json("one", WIDTH, more), *text = answer_of(json_body);
        cJSON *json = cJSON_Parse(text);
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
            struct st_out tensor = {.name = "Q", .dtype = ST_F64, .rank = 2, .dim = dim, .data = q};
            size_t size, at = 0;
            char *body = pack(&tensor, 1, mha, &size), type[64];
            struct reply reply = send_to(client, "POST", "/v1/mha", body, size, binary_headers, pieces[p]);
            if (reply.status != 200) fail_msg("%ld: %s", reply.status, reply.body);
            assert_true(reply_header(&reply, "Content-Type", type, sizeof type));
            assert_string_equal(type, "application/vnd.safetensors");
            struct st_header *header;
            const unsigned char *data;
            const struct st_tensor *output = find_in(&reply, &header, "output", &data);
            assert_int_equal(output->dtype, d ? ST_F32 : ST_F64);
            assert_int_equal(output->count, ROWS * WIDTH);
            compare_with_json(cJSON_GetObjectItem(json, "output"), output, data, &at);
            assert_int_equal(at, ROWS * WIDTH);
            assert_string_equal(st_metadata_get(header, "mha"), "{}");
            st_header_free(header);
            output = find_in(&reply, &header, "projections.K", &data);
            at = 0;
            compare_with_json(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "projections"), "K"), output, data, &at);
            assert_int_equal(at, output->count);
            st_header_free(header);
            reply_free(&reply);
            free(body);
        }
        cJSON_Delete(json);
        free(json_body);
        free(text);
    }
    free(q);
}

/* Maps of 250 queries: an answer of several blocks, sent while it is copied. */
static void a_large_safetensors_answer_says_its_length_and_holds_the_numbers_of_the_json_one(void **state) {
    (void)state;
    enum { QUERIES = 250 };
    put_layer("one", 1, WIDTH, 200);
    char *text = matrix_json(78, QUERIES, WIDTH), *json_body = NULL, *json_text;
    const char *more = ",\"return\":[\"attention\",\"logsumexp\",\"output\"]";
    if (asprintf(&json_body, "{\"layer\":\"one\",\"Q\":%s%s}", text, more) < 0) abort();
    json_text = answer_of(json_body);
    cJSON *json = cJSON_Parse(json_text);
    struct reply reply = send_to(client, "POST", "/v1/mha", json_body, strlen(json_body), json_in_binary_out, 0);
    if (reply.status != 200) fail_msg("%ld: %s", reply.status, reply.body);
    char length[32], coding[32];
    assert_true(reply_header(&reply, "Content-Length", length, sizeof length));
    assert_false(reply_header(&reply, "Transfer-Encoding", coding, sizeof coding));
    assert_true(reply.size > 3 * 262144);
    assert_int_equal(strtoul(length, NULL, 10), reply.size);
    static const char *const names[] = {"attention", "logsumexp", "output"};
    for (size_t i = 0; i < 3; i++) {
        struct st_header *header;
        const unsigned char *data;
        size_t at = 0;
        const struct st_tensor *tensor = find_in(&reply, &header, names[i], &data);
        compare_with_json(cJSON_GetObjectItem(json, names[i]), tensor, data, &at);
        assert_int_equal(at, tensor->count);
        st_header_free(header);
    }
    reply_free(&reply);
    cJSON_Delete(json);
    free(json_text);
    free(json_body);
    free(text);
}

/* Around the largest answer that is copied whole, 64 KiB. */
static void safetensors_answers_of_every_size_say_their_length(void **state) {
    (void)state;
    put_layer("one", 1, WIDTH, 200);
    for (size_t queries = 58; queries <= 66; queries++) { /* maps of 2 * queries^2 numbers: 53,824 to 69,696 bytes */
        char *q = matrix_json(78, queries, WIDTH), *body = NULL, length[32];
        if (asprintf(&body, "{\"layer\":\"one\",\"Q\":%s,\"return\":[\"attention\"]}", q) < 0) abort();
        struct reply reply = send_to(client, "POST", "/v1/mha", body, strlen(body), json_in_binary_out, 0);
        assert_int_equal(reply.status, 200);
        assert_true(reply_header(&reply, "Content-Length", length, sizeof length));
        assert_int_equal(strtoul(length, NULL, 10), reply.size);
        struct st_header *header;
        const unsigned char *data;
        assert_int_equal(find_in(&reply, &header, "attention", &data)->count, 2 * queries * queries);
        st_header_free(header);
        reply_free(&reply);
        free(body);
        free(q);
    }
}

/* Numbers are looked at as they arrive; what is wrong is found wherever it lies and however the body is cut. */
static void a_number_that_is_not_finite_is_named_wherever_it_lies_in_a_binary_body(void **state) {
    (void)state;
    static const struct {
        enum st_dtype dtype;
        const char *mha;
        double value;
        long status;
    } cases[] = {
        {ST_F64, "{\"layer\":\"one\"}", NAN, 422},
        {ST_F64, "{\"layer\":\"one\"}", -INFINITY, 422},
        {ST_F64, "{\"layer\":\"one\"}", 1e30, 200},
        {ST_F64, "{\"layer\":\"one\",\"dtype\":\"float32\"}", 1e39, 422},
        {ST_F32, "{\"layer\":\"one\"}", NAN, 422},
        {ST_F32, "{\"layer\":\"one\",\"dtype\":\"float64\"}", INFINITY, 422},
        {ST_F32, "{\"layer\":\"one\",\"dtype\":\"float32\"}", INFINITY, 422},
    };
    enum { QUERIES = 50 };
    static const size_t pieces[] = {0, 1000, 13}, places[] = {0, 77, QUERIES * WIDTH - 1};
    put_layer("one", 1, WIDTH, 200);
    double *wide = matrix_f64(79, QUERIES * WIDTH);
    float narrow[QUERIES * WIDTH];
    size_t dim[] = {QUERIES, WIDTH};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
            const size_t at = places[place];
            const double kept = wide[at];
            wide[at] = cases[c].value;
            for (size_t i = 0; i < QUERIES * WIDTH; i++) narrow[i] = (float)wide[i];
            struct st_out tensor = {.name = "Q", .dtype = cases[c].dtype, .rank = 2, .dim = dim, .data = wide};
            if (tensor.dtype == ST_F32) tensor.data = narrow;
            size_t size;
            char *body = pack(&tensor, 1, cases[c].mha, &size), pointer[64];
            snprintf(pointer, sizeof pointer, "\"pointer\":\"/Q/%zu/%zu\"", at / WIDTH, at % WIDTH);
            for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
                struct reply reply = send_to(client, "POST", "/v1/mha", body, size, binary_in_json_out, pieces[p]);
                expect_status(&reply, cases[c].status, cases[c].status == 422 ? pointer : NULL);
            }
            wide[at] = kept;
            free(body);
        }
    free(wide);
}

static void a_layer_put_as_safetensors_is_the_layer_put_as_json(void **state) {
    (void)state;
    size_t dim[] = {WIDTH, WIDTH}, size;
    double *w[4];
    struct st_out tensors[4];
    static const char *const names[] = {"W_q", "W_k", "W_v", "W_o"};
    for (unsigned i = 0; i < 4; i++) {
        w[i] = matrix_f64(1 + i, WIDTH * WIDTH);
        tensors[i] = (struct st_out){.name = names[i], .dtype = ST_F64, .rank = 2, .dim = dim, .data = w[i]};
    }
    char *body = pack(tensors, 4, "{\"num_heads\":2}", &size);
    for (size_t piece = 0; piece < 2; piece++) {
        struct reply reply = send_to(client, "PUT", "/v1/layers/binary", body, size, binary_in_json_out, piece);
        expect_status(&reply, piece ? 200 : 201, "\"num_heads\":2");
        char *use = use_json("binary", WIDTH, ""), *actual = answer_of(use), *expected = inline_answer(1, WIDTH, "");
        assert_string_equal(actual, expected);
        free(use);
        free(actual);
        free(expected);
    }
    free(body);
    for (unsigned i = 0; i < 4; i++) free(w[i]);
    struct reply reply = send_json("DELETE", "/v1/layers/binary", NULL);
    expect_status(&reply, 204, NULL);
}

static void masks_and_lengths_come_as_booleans_and_integers(void **state) {
    (void)state;
    put_layer("one", 1, WIDTH, 200);
    double *q = matrix_f64(77, ROWS * WIDTH);
    size_t dim[] = {ROWS, WIDTH}, square[] = {ROWS, ROWS}, keys[] = {ROWS}, one[] = {1}, size;
    unsigned char mask[ROWS * ROWS] = {0, 0, 0, 1, 1, 0, 1, 0, 1}, exists[ROWS] = {1, 1, 0};
    int64_t length = 2;
    struct st_out tensors[] = {{.name = "Q", .dtype = ST_F64, .rank = 2, .dim = dim, .data = q},
                               {.name = "attn_mask", .dtype = ST_BOOL, .rank = 2, .dim = square, .data = mask},
                               {.name = "key_mask", .dtype = ST_U8, .rank = 1, .dim = keys, .data = exists},
                               {.name = "key_lengths", .dtype = ST_I64, .rank = 1, .dim = one, .data = &length}};
    char *body = pack(tensors, 4, "{\"layer\":\"one\"}", &size);
    struct reply reply = send_to(client, "POST", "/v1/mha", body, size, binary_in_json_out, 0);
    if (reply.status != 200) fail_msg("%s", reply.body);
    char *json_body = use_json("one", WIDTH,
                               ",\"attn_mask\":[[false,false,false],[true,true,false],[true,false,true]],"
                               "\"key_mask\":[true,true,false],\"key_lengths\":2");
    char *expected = answer_of(json_body);
    assert_string_equal(reply.body, expected);
    assert_non_null(strstr(expected, "fully_masked_rows"));
    reply_free(&reply);
    reply = send_to(client, "POST", "/v1/mha", body, size, binary_headers, 0);
    struct st_header *header;
    const unsigned char *data;
    find_in(&reply, &header, "output", &data);
    assert_string_equal(st_metadata_get(header, "mha"),
                        "{\"warnings\":[{\"code\":\"fully_masked_rows\",\"count\":2,\"first\":[0,0,0]}]}");
    st_header_free(header);
    reply_free(&reply);
    free(body);
    free(json_body);
    free(expected);
    free(q);
}

static void half_precision_bodies_are_widened_exactly(void **state) {
    (void)state;
    put_layer("one", 1, WIDTH, 200);
    uint16_t half[WIDTH];
    uint16_t brain[WIDTH];
    size_t dim[] = {1, WIDTH}, size;
    char *text = NULL;
    size_t text_size;
    for (int kind = 0; kind < 2; kind++) {
        FILE *out = open_memstream(&text, &text_size);
        fprintf(out, "{\"layer\":\"one\",\"Q\":[[");
        for (size_t i = 0; i < WIDTH; i++) {
            half[i] = half_bits((float)number_at(9, i));
            float wide = (float)number_at(9, i);
            uint32_t bits;
            memcpy(&bits, &wide, 4);
            brain[i] = (uint16_t)(bits >> 16);
            bits &= 0xffff0000u;
            memcpy(&wide, &bits, 4);
            fprintf(out, "%s%.17g", i ? "," : "", kind ? (double)wide : half_value(half[i]));
        }
        fprintf(out, "]]}");
        fclose(out);
        struct st_out tensor = {.name = "Q",
                                .dtype = kind ? ST_BF16 : ST_F16,
                                .rank = 2,
                                .dim = dim,
                                .data = kind ? (void *)brain : (void *)half};
        char *body = pack(&tensor, 1, "{\"layer\":\"one\"}", &size), *expected = answer_of(text);
        struct reply reply = send_to(client, "POST", "/v1/mha", body, size, binary_in_json_out, 3);
        assert_string_equal(reply.body, expected);
        reply_free(&reply);
        free(body);
        free(expected);
        free(text);
    }
}

static void broken_safetensors_bodies_get_400_and_name_the_rule(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t declared; /* 0: its length */
        size_t data;
        long status;
        const char *word;
    } bad[] = {
        {"", 0, 0, 400, "not JSON"},
        {"{", 0, 0, 400, "not JSON"},
        {"{}", 200000000, 0, 400, "at most 100000000"},
        {"{}", 5, 0, 400, "only 2 follow"},
        {"{}", 0, 3, 400, "follow the last tensor"},
        {"{\"Q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 0, 7, 400, "only 7"},
        {"{\"Q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 0, 9, 400, "follow the last tensor"},
        {"{\"Q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}", 0, 16, 400, "a hole"},
        {"{\"Q\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[0,8]}}", 0, 8, 400, "shape takes 12 bytes"},
        {"{\"Q\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 0, 8, 422, "dtype I32"},
        {"{\"Q\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,8],\"data_offsets\":[0,8]}}", 0, 8, 422, "dtype F8_E4M3"},
        {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 0, 8, 422, "Did you mean \\\"Q\\\"?"},
        {"{\"causal\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[0,1]}}", 0, 1, 422, "__metadata__.mha"},
        {"{\"__metadata__\":{\"mha\":\"{\"}}", 0, 0, 400, "json_syntax"},
        {"{\"__metadata__\":{\"mha\":\"{\"}}", 0, 0, 400, "In the text of __metadata__.mha"},
        {"{\"__metadata__\":{\"mha\":\"\"}}", 0, 0, 400, "In the text of __metadata__.mha"},
        {"{\"__metadata__\":{\"mha\":\"{\\\"num_heds\\\":2}\"}}", 0, 0, 422, "Did you mean \\\"num_heads\\\"?"},
        {"{\"__metadata__\":{\"mha\":\"{\\\"Q\\\":[[1]]}\"},\"Q\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":["
         "0,8]}}",
         0, 8, 422, "twice"},
        {"{}", 0, 0, 422, "Q is missing"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t piece = 0; piece < 2; piece++) {
            size_t n = strlen(bad[i].header);
            uint64_t declared = bad[i].declared ? bad[i].declared : n;
            char body[512] = {0};
            memcpy(body, &declared, 8);
            memcpy(body + 8, bad[i].header, n);
            struct reply reply = send_to(client, "POST", "/v1/mha", body, 8 + n + bad[i].data, binary_headers, piece);
            if (reply.status != bad[i].status || !strstr(reply.body, bad[i].word))
                fail_msg("%s: %ld, not %ld (%s): %s", bad[i].header, reply.status, bad[i].status, bad[i].word,
                         reply.body);
            assert_non_null(strstr(reply.head, "application/problem+json"));
            reply_free(&reply);
        }
    struct reply reply = send_to(client, "POST", "/v1/mha", "\1\0\0", 3, binary_headers, 0);
    expect_status(&reply, 400, "3 bytes");
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* Its parsing would keep all other clients waiting. Commas inside strings do not count: options may be long. */
static void a_header_of_more_tensors_than_any_body_needs_is_refused_before_it_is_parsed(void **state) {
    (void)state;
    enum { MANY = 30000 };
    static struct st_out out[MANY];
    static char names[MANY][8];
    const size_t none = 0;
    const char *const paths[][2] = {
        {"POST", "/v1/mha"}, {"PUT", "/v1/layers/many"}, {"PUT", "/v1/layers/many?checkpoint=1"}};
    size_t size;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        out[i] = (struct st_out){.name = names[i], .dtype = ST_F32, .rank = 1, .dim = &none};
    }
    char *body = pack(out, MANY, NULL, &size);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct reply reply = send_to(client, paths[i][0], paths[i][1], body, size, binary_in_json_out, 0);
        expect_status(&reply, 422, "--checkpoint");
    }
    free(body);
    char *mha = malloc(1000000), *at = mha;
    at += sprintf(at, "{\"layer\":\"one\",\"K\":[[1,0,1,0,1,0,1,0]],\"Q\":[");
    for (int i = 0; i < 40000; i++) at += sprintf(at, "%s[0,1,0,1,0,1,0,1]", i ? "," : "");
    sprintf(at, "]}");
    put_layer("one", 1, WIDTH, 200);
    body = pack(out, 0, mha, &size);
    struct reply reply = send_to(client, "POST", "/v1/mha", body, size, binary_in_json_out, 0);
    expect_status(&reply, 200, NULL);
    free(body);
    free(mha);
}

static void a_whole_model_that_is_put_becomes_its_layers(void **state) {
    (void)state;
    enum { LAYERS = 2 };
    static const char *const stems[] = {"self.query.weight", "self.key.weight", "self.value.weight",
                                        "output.dense.weight"};
    struct st_out tensors[LAYERS * 4 + 1];
    char names[LAYERS * 4][64];
    double *w[LAYERS * 4], *words = matrix_f64(4, 10 * WIDTH);
    size_t dim[] = {WIDTH, WIDTH}, word_dim[] = {10, WIDTH}, size;
    for (unsigned i = 0; i < LAYERS * 4; i++) {
        snprintf(names[i], sizeof names[i], "encoder.layer.%u.attention.%s", i / 4, stems[i % 4]);
        w[i] = matrix_f64(100 + i, WIDTH * WIDTH);
        tensors[i] = (struct st_out){.name = names[i], .dtype = ST_F64, .rank = 2, .dim = dim, .data = w[i]};
    }
    tensors[LAYERS * 4] =
        (struct st_out){.name = "embeddings.word", .dtype = ST_F64, .rank = 2, .dim = word_dim, .data = words};
    char *body = pack(tensors, LAYERS * 4 + 1, NULL, &size);
    struct reply reply = send_to(client, "PUT", "/v1/layers/m?checkpoint=1", body, size, binary_in_json_out, 0);
    expect_status(&reply, 422, "number of heads is not known");
    reply = send_to(client, "PUT", "/v1/layers/m?num_heads=2", body, size, binary_in_json_out, 0);
    expect_status(&reply, 422, "goes with checkpoint=1 alone");
    reply = send_to(client, "PUT", "/v1/layers/m?checkpoint=1&num_heads=2", body, size, binary_in_json_out, 5);
    expect_status(&reply, 201, "{\"layers\":[\"m.encoder.layer.0.attention\",\"m.encoder.layer.1.attention\"]}");
    free(body);
    body = pack(tensors, LAYERS * 4 + 1, "{\"num_attention_heads\":2}", &size);
    reply = send_to(client, "PUT", "/v1/layers/m?checkpoint=1", body, size, binary_in_json_out, 0);
    expect_status(&reply, 200, "m.encoder.layer.1.attention");
    char *use = use_json("m.encoder.layer.1.attention", WIDTH, ""), *actual = answer_of(use);
    char *expected = inline_answer(104, WIDTH, ",\"weight_layout\":\"out_in\"");
    assert_string_equal(actual, expected);
    reply = send_to(client, "PUT", "/v1/layers/m?checkpoint=2", body, size, binary_in_json_out, 0);
    expect_status(&reply, 422, "checkpoint");
    reply = send_json("PUT", "/v1/layers/m?checkpoint=1", "{}");
    expect_status(&reply, 422, "safetensors");
    for (int i = 0; i < LAYERS; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/layers/m.encoder.layer.%d.attention", i);
        reply = send_json("DELETE", path, NULL);
        expect_status(&reply, 204, NULL);
    }
    for (int i = 0; i < LAYERS * 4; i++) free(w[i]);
    free(words);
    free(body);
    free(use);
    free(actual);
    free(expected);
}

/* ---- while others use it ----------------------------------------------------------------------------------------- */

enum { USERS = 4, CHANGES = 120, VERSIONS = 2 };

static char *versions[VERSIONS];
static char *crowd_body;
static atomic_bool crowd_stop;
static atomic_size_t crowd_right, crowd_absent, crowd_wrong;

static void *user(void *argument) {
    (void)argument;
    CURL *own = client_new(&service);
    while (!atomic_load(&crowd_stop)) {
        struct reply reply = client_post(own, &service, crowd_body);
        bool right = reply.status == 200 && (!strcmp(reply.body, versions[0]) || !strcmp(reply.body, versions[1]));
        bool absent = reply.status == 404 && strstr(reply.body, "layer_not_found");
        atomic_fetch_add(right ? &crowd_right : absent ? &crowd_absent : &crowd_wrong, 1);
        if (!right && !absent) print_error("%ld: %.300s\n", reply.status, reply.body);
        reply_free(&reply);
    }
    client_free(own);
    return NULL;
}

static void a_request_gets_one_whole_version_while_the_layer_is_replaced_and_deleted(void **state) {
    (void)state;
    enum { WIDE = 96 }; /* enough work to be with the pool while the layer goes away */
    pthread_t users[USERS];
    for (unsigned v = 0; v < VERSIONS; v++) versions[v] = inline_answer(200 + 10 * v, WIDE, "");
    assert_string_not_equal(versions[0], versions[1]);
    crowd_body = use_json("shared", WIDE, "");
    put_layer("shared", 200, WIDE, 201);
    for (int i = 0; i < USERS; i++) pthread_create(&users[i], NULL, user, NULL);
    for (unsigned i = 0; i < CHANGES || (atomic_load(&crowd_right) < CHANGES / 4 && i < 20 * CHANGES); i++) {
        if (i % 5 == 4) {
            struct reply reply = send_json("DELETE", "/v1/layers/shared", NULL);
            expect_status(&reply, 204, NULL);
        }
        put_layer("shared", 200 + 10 * (i % VERSIONS), WIDE, i % 5 == 4 ? 201 : 200);
    }
    atomic_store(&crowd_stop, true);
    for (int i = 0; i < USERS; i++) pthread_join(users[i], NULL);
    assert_int_equal(atomic_load(&crowd_wrong), 0);
    assert_true(atomic_load(&crowd_right) >= CHANGES / 4);
    for (int v = 0; v < VERSIONS; v++) free(versions[v]);
    free(crowd_body);
    struct reply reply = send_json("DELETE", "/v1/layers/shared", NULL);
    expect_status(&reply, 204, NULL);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void layers_count_against_the_budget_and_give_it_back(void **state) {
    (void)state;
    static const char *const arguments[] = {"--max-memory", "12MiB", "--max-body", "8MiB", NULL};
    struct service before = service;
    CURL *before_client = client;
    service_start(&service, arguments);
    client = client_new(&service);
    enum { WIDE = 256 };           /* 4 matrices of 512 KiB, as they came and packed: 4 MiB */
    for (int i = 0; i < 12; i++) { /* would be 48 MiB if anything stayed behind */
        put_layer("big", (unsigned)i, WIDE, i == 0 ? 201 : 200);
    }
    put_layer("big2", 1, WIDE, 201);
    char *body = layer_json(1, WIDE, "");
    struct reply reply = send_json("PUT", "/v1/layers/big3", body);
    if (reply.status != 503 && reply.status != 413) fail_msg("%ld: %s", reply.status, reply.body);
    assert_non_null(strstr(reply.body, "memory"));
    reply_free(&reply);
    reply = send_json("DELETE", "/v1/layers/big", NULL);
    expect_status(&reply, 204, NULL);
    reply = send_json("PUT", "/v1/layers/big3", body);
    expect_status(&reply, 201, NULL);
    free(body);
    client_free(client);
    assert_int_equal(service_stop(&service), 0);
    service = before;
    client = before_client;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

static char directory[] = "/tmp/test_layers_http_XXXXXX";

static void empty_directory(void) {
    DIR *dir = opendir(directory);
    struct dirent *entry;
    char path[400];
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (entry->d_name[0] != '.' || entry->d_name[1] == 'm') unlink(path);
    }
    closedir(dir);
}

static size_t count_files(const char *prefix) {
    DIR *dir = opendir(directory);
    struct dirent *entry;
    size_t count = 0;
    while ((entry = readdir(dir)) != NULL) count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return count;
}

static void write_file(const char *name, const void *bytes, size_t size) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(bytes, 1, size, f);
    fclose(f);
}

/* Runs `body` against a server of its own on the directory. */
static void with_server(bool writable, void (*body)(void)) {
    const char *const arguments[] = {"--layers", directory, writable ? "--layers-writable" : NULL, NULL};
    struct service before = service;
    CURL *before_client = client;
    service_start(&service, arguments);
    client = client_new(&service);
    body();
    client_free(client);
    assert_int_equal(service_stop(&service), 0);
    service = before;
    client = before_client;
}

static void expect_layer(const char *name, unsigned seed, size_t width) {
    char *use = use_json(name, width, ""), *actual = answer_of(use), *expected = inline_answer(seed, width, "");
    assert_string_equal(actual, expected);
    free(use);
    free(actual);
    free(expected);
}

static void expect_json_and_binary(void) {
    expect_layer("from.json", 21, WIDTH);
    put_layer("memory.only", 22, WIDTH, 201);
    struct reply reply = send_json("DELETE", "/v1/layers/from.json", NULL);
    expect_status(&reply, 204, NULL);
}

static void put_three(void) {
    put_layer("from.json", 23, WIDTH, 200);
    put_layer("a", 24, WIDTH, 201);
    put_layer("b", 25, WIDTH, 201);
    expect_layer("from.json", 23, WIDTH);
    struct reply reply = send_json("DELETE", "/v1/layers/b", NULL);
    expect_status(&reply, 204, NULL);
    /* a file cannot hold what either precision would make of these */
    reply = send_json("PUT", "/v1/layers/c", "{\"W_v\":" TIES "," REST "}");
    expect_status(&reply, 422, "\"pointer\":\"/dtype\"");
    reply = send_json("PUT", "/v1/layers/c", "{\"dtype\":\"float64\",\"W_v\":" TIES "," REST "}");
    expect_status(&reply, 201, NULL);
    reply = send_json("DELETE", "/v1/layers/c", NULL);
    expect_status(&reply, 204, NULL);
}

static void expect_two(void) {
    struct reply reply = send_json("GET", "/v1/layers", NULL);
    expect_status(&reply, 200, "{\"layers\":[\"a\",\"from.json\"]}");
    expect_layer("a", 24, WIDTH);
    expect_layer("from.json", 23, WIDTH);
}

static void the_directory_is_loaded_and_written_only_when_writable(void **state) {
    (void)state;
    empty_directory();
    char *body = layer_json(21, WIDTH, "");
    write_file("from.json.json", body, strlen(body));
    write_file("README.txt", "x", 1);
    write_file(".mhad-leftover", "x", 1);
    with_server(false, expect_json_and_binary);
    assert_int_equal(count_files("from.json.json"), 1);
    assert_int_equal(count_files("memory.only"), 0);
    assert_int_equal(count_files(".mhad-"), 1); /* not ours to remove */
    with_server(true, put_three);
    assert_int_equal(count_files(".mhad-"), 0);
    assert_int_equal(count_files("from.json.json"), 0); /* replaced by the safetensors file */
    assert_int_equal(count_files("from.json.safetensors"), 1);
    assert_int_equal(count_files("a.safetensors"), 1);
    assert_int_equal(count_files("b."), 0);
    with_server(false, expect_two);
    free(body);
}

/* A server on the directory ends by itself, and its log says the word. */
static void expect_no_start(const char *word) {
    const char *const arguments[] = {"--layers", directory, NULL};
    struct service own;
    service_spawn(&own, arguments, NULL);
    for (int wait_ms = 0; service_alive(&own) && wait_ms < 5000; wait_ms += 20) usleep(20000);
    char *log = service_log(&own);
    if (!strstr(log, word)) fail_msg("the log does not say %s: %s", word, log);
    free(log);
    setenv("TEST_KEEP_QUIET", "1", 1);
    assert_int_equal(service_stop(&own), 2);
    unsetenv("TEST_KEEP_QUIET");
}

static void a_file_that_is_no_layer_stops_the_start_and_is_named(void **state) {
    (void)state;
    static const struct {
        const char *name, *content, *word;
    } bad[] = {{"broken.json", "{", "broken.json"},
               {"empty.safetensors", "", "empty.safetensors"},
               {"two words.json", "{}", "two words.json"},
               {"nothing.json", "{\"num_heads\":2}", "W_q is missing"},
               {"config.json", "{\"num_attention_heads\":2}", "--checkpoint"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        empty_directory();
        write_file(bad[i].name, bad[i].content, strlen(bad[i].content));
        expect_no_start(bad[i].word);
    }
    empty_directory();
}

/* A device never ends, a FIFO never begins, and of a long file the first wrong byte is enough. */
static void a_file_that_never_ends_does_not_keep_the_start(void **state) {
    (void)state;
    static const char *const names[] = {"endless.json", "endless.safetensors"};
    char path[400];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        empty_directory();
        assert_int_equal(symlink("/dev/zero", path), 0);
        expect_no_start("not a regular file");
        empty_directory();
        assert_int_equal(mkfifo(path, 0600), 0);
        expect_no_start("not a regular file");
        empty_directory();
        write_file(names[i], "", 0);
        assert_int_equal(truncate(path, 1l << 40), 0);
        expect_no_start(names[i]);
    }
    empty_directory();
}

/* ---- large layers beside others ---------------------------------------------------------------------------------- */

enum { LARGE = 1900 }; /* 4 matrices of 29 MB */

static char *large_body(size_t *size) {
    static const char *const names[] = {"W_q", "W_k", "W_v", "W_o"};
    static const size_t dim[] = {LARGE, LARGE};
    double *w = matrix_f64(5, LARGE * LARGE);
    struct st_out tensors[4];
    for (int i = 0; i < 4; i++)
        tensors[i] = (struct st_out){.name = names[i], .dtype = ST_F64, .rank = 2, .dim = dim, .data = w};
    char *body = pack(tensors, 4, "{\"num_heads\":19}", size);
    free(w);
    return body;
}

/* One request on a thread of its own. */
struct errand {
    const char *method, *path, *body;
    const char *const *headers;
    size_t size;
    long status;
    atomic_bool done;
    pthread_t thread;
};

static void *run_errand(void *argument) {
    struct errand *errand = argument;
    CURL *own = client_new(&service);
    struct reply reply = send_to(own, errand->method, errand->path, errand->body, errand->size, errand->headers, 0);
    errand->status = reply.status;
    if (reply.status >= 300) print_error("%s\n", reply.body);
    reply_free(&reply);
    client_free(own);
    atomic_store(&errand->done, true);
    return NULL;
}

static void send_errand(struct errand *errand) {
    atomic_init(&errand->done, false);
    assert_int_equal(pthread_create(&errand->thread, NULL, run_errand, errand), 0);
}

/* Asks /healthz until the errand is done; ms of the slowest answer. */
static double worst_probe_during(struct errand *errand, size_t *count) {
    static const struct request probe = {.path = "/healthz"};
    CURL *own = client_new(&service);
    double worst = 0;
    send_errand(errand);
    for (*count = 0; !atomic_load(&errand->done); ++*count) {
        double start = seconds_now();
        struct reply reply = client_send(own, &service, &probe);
        double ms = 1e3 * (seconds_now() - start);
        if (ms > worst) worst = ms;
        assert_int_equal(reply.status, 200);
        reply_free(&reply);
        usleep(1000);
    }
    pthread_join(errand->thread, NULL);
    client_free(own);
    return worst;
}

static void start_on_directory(void) {
    const char *const arguments[] = {"--layers", directory, "--layers-writable", "--log", "off", NULL};
    service_start(&service, arguments);
    client = client_new(&service);
}

static int stop_on_directory(void) {
    client_free(client);
    return service_stop(&service);
}

/* With this soft limit for what is started meanwhile. */
static struct rlimit lower_limit(int resource, rlim_t soft) {
    struct rlimit before, lower;
    assert_int_equal(getrlimit(resource, &before), 0);
    lower = before;
    lower.rlim_cur = soft;
    assert_int_equal(setrlimit(resource, &lower), 0);
    return before;
}

static void a_limit_of_file_sizes_fails_the_put_and_not_the_process(void **state) {
    (void)state;
    struct service old = service;
    CURL *old_client = client;
    empty_directory();
    struct rlimit before = lower_limit(RLIMIT_FSIZE, 16384);
    start_on_directory();
    setrlimit(RLIMIT_FSIZE, &before);
    put_layer("a", 31, WIDTH, 201);
    put_layer("a", 32, 64, 507);
    assert_true(service_alive(&service));
    put_layer("a", 31, WIDTH, 200);
    assert_int_equal(count_files("a.safetensors"), 1);
    assert_int_equal(count_files(".mhad-"), 0);
    assert_int_equal(stop_on_directory(), 0);
    service = old;
    client = old_client;
}

/* PUT of a model of the layers "a", 8 wide, and "b", `wide` wide. */
static void put_model(unsigned seed, size_t wide, long status) {
    static const char *const stems[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"};
    const size_t dim[2][2] = {{WIDTH, WIDTH}, {wide, wide}};
    struct st_out out[8];
    char names[8][32];
    double *w[8];
    size_t size;
    for (unsigned i = 0; i < 8; i++) {
        size_t width = dim[i / 4][0];
        snprintf(names[i], sizeof names[i], "%c.%s", i < 4 ? 'a' : 'b', stems[i % 4]);
        w[i] = matrix_f64(seed + i, width * width);
        out[i] = (struct st_out){.name = names[i], .dtype = ST_F64, .rank = 2, .dim = dim[i / 4], .data = w[i]};
    }
    char *body = pack(out, 8, "{\"num_attention_heads\":2}", &size);
    struct reply reply = send_to(client, "PUT", "/v1/layers/m?checkpoint=1", body, size, binary_in_json_out, 0);
    expect_status(&reply, status, NULL);
    for (int i = 0; i < 8; i++) free(w[i]);
    free(body);
}

static void a_model_whose_last_layer_cannot_be_written_leaves_all_files_of_the_old_one(void **state) {
    (void)state;
    struct service old = service;
    CURL *old_client = client;
    char *use = use_json("m.a", WIDTH, ""), *first = NULL;
    empty_directory();
    struct rlimit before = lower_limit(RLIMIT_FSIZE, 16384);
    for (int round = 0; round < 2; round++) {
        start_on_directory();
        if (round == 0) put_model(61, WIDTH, 201);
        char *answer = answer_of(use);
        if (first) assert_string_equal(answer, first); /* after a restart, too */
        if (round == 0) {
            put_model(71, 64, 507);
            first = answer_of(use);
            assert_string_equal(answer, first);
            assert_int_equal(count_files(".mhad-"), 0);
        } else {
            put_model(71, WIDTH, 200);
            char *second = answer_of(use);
            assert_string_not_equal(second, first);
            free(second);
        }
        free(answer);
        assert_int_equal(stop_on_directory(), 0);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    empty_directory();
    free(first);
    free(use);
    service = old;
    client = old_client;
}

static void a_put_over_a_layer_of_the_checkpoint_holds_after_a_restart(void **state) {
    (void)state;
    static const char *const names[] = {"a.q_proj.weight", "a.k_proj.weight", "a.v_proj.weight", "a.out_proj.weight"};
    char path[100];
    const char *const arguments[] = {
        "--layers", directory, "--layers-writable", "--checkpoint", path, "--num-heads", "2", "--log", "off", NULL};
    struct service old = service;
    CURL *old_client = client;
    const size_t dim[2] = {WIDTH, WIDTH};
    struct st_out out[4];
    double *w = matrix_f64(81, WIDTH * WIDTH);
    size_t size;
    for (int i = 0; i < 4; i++)
        out[i] = (struct st_out){.name = names[i], .dtype = ST_F64, .rank = 2, .dim = dim, .data = w};
    char *file = pack(out, 4, NULL, &size), *use = use_json("a", WIDTH, "");
    empty_directory();
    snprintf(path, sizeof path, "%s/model.checkpoint", directory);
    write_file("model.checkpoint", file, size);
    service_start(&service, arguments);
    client = client_new(&service);
    char *found = answer_of(use);
    put_layer("a", 91, WIDTH, 200);
    char *put = answer_of(use);
    assert_string_not_equal(put, found);
    assert_int_equal(stop_on_directory(), 0);
    service_start(&service, arguments);
    client = client_new(&service);
    char *again = answer_of(use);
    assert_string_equal(again, put);
    assert_int_equal(stop_on_directory(), 0);
    empty_directory();
    free(found);
    free(put);
    free(again);
    free(file);
    free(use);
    free(w);
    service = old;
    client = old_client;
}

static void more_layer_files_than_the_soft_limit_of_descriptors_are_loaded(void **state) {
    (void)state;
    struct service old = service;
    CURL *old_client = client;
    char name[32];
    size_t size;
    double *w = matrix_f64(33, WIDTH * WIDTH);
    const size_t dim[2] = {WIDTH, WIDTH};
    struct st_out out[4] = {{.name = "W_q"}, {.name = "W_k"}, {.name = "W_v"}, {.name = "W_o"}};
    for (int i = 0; i < 4; i++)
        out[i] = (struct st_out){.name = out[i].name, .dtype = ST_F64, .rank = 2, .dim = dim, .data = w};
    char *file = pack(out, 4, "{\"num_heads\":2}", &size);
    empty_directory();
    for (int i = 0; i < 80; i++) {
        snprintf(name, sizeof name, "l%d.safetensors", i);
        write_file(name, file, size);
    }
    struct rlimit before = lower_limit(RLIMIT_NOFILE, 60);
    start_on_directory();
    setrlimit(RLIMIT_NOFILE, &before);
    put_layer("l79", 34, WIDTH, 200);
    assert_int_equal(stop_on_directory(), 0);
    empty_directory();
    free(file);
    free(w);
    service = old;
    client = old_client;
}

struct writer {
    struct service *service;
    unsigned seed;
    int failed;
    char answer[300];
};

static void *put_again_and_again(void *argument) {
    struct writer *writer = argument;
    CURL *own = client_new(writer->service);
    char *body = layer_json(writer->seed, 96, "");
    for (int i = 0; i < 40; i++) {
        struct request request = {
            .method = i % 8 == 7 ? "DELETE" : "PUT", .path = "/v1/layers/shared", .body = i % 8 == 7 ? NULL : body};
        request.size = request.body ? strlen(body) : 0;
        struct reply reply = client_send(own, writer->service, &request);
        if (reply.status >= 500 || reply.status == 400) {
            writer->failed++;
            snprintf(writer->answer, sizeof writer->answer, "%.290s", reply.body);
        }
        reply_free(&reply);
    }
    free(body);
    client_free(own);
    return NULL;
}

static void two_servers_on_one_directory_write_one_after_the_other(void **state) {
    (void)state;
    struct service old = service;
    CURL *old_client = client;
    const char *const arguments[] = {"--layers", directory, "--layers-writable", "--log", "off", NULL};
    struct service both[2];
    struct writer writers[2] = {{.service = &both[0], .seed = 41}, {.service = &both[1], .seed = 51}};
    pthread_t threads[2];
    empty_directory();
    for (int i = 0; i < 2; i++) service_start(&both[i], arguments);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, put_again_and_again, &writers[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        if (writers[i].failed) fail_msg("%d failed: %s", writers[i].failed, writers[i].answer);
        assert_int_equal(service_stop(&both[i]), 0);
    }
    assert_int_equal(count_files(".mhad-"), 0);
    start_on_directory(); /* what they left is whole */
    assert_int_equal(stop_on_directory(), 0);
    empty_directory();
    service = old;
    client = old_client;
}

static void probes_answer_within_50_ms_while_a_large_layer_is_stored_and_first_used(void **state) {
    (void)state;
    size_t size, count;
    char *body = large_body(&size), *use = use_json("large", LARGE, "");
    empty_directory();
    struct service common = service;
    CURL *of_common = client;
    start_on_directory();
    struct errand put = {"PUT", "/v1/layers/large", body, binary_in_json_out, size, 0, false, 0};
    double worst = worst_probe_during(&put, &count);
    print_message("stored %zu MB: worst of %zu probes %.1f ms\n", size / 1000000, count, worst);
    assert_int_equal(put.status, 201);
    assert_true(count > 20);
    assert_true(worst < (SANITIZED ? 1000 : 50));
    assert_int_equal(count_files("large.safetensors"), 1);
    char *before = answer_of(use);
    assert_int_equal(stop_on_directory(), 0);
    start_on_directory(); /* from the mapped file, which the first request packs */
    struct errand post = {"POST", "/v1/mha", use, NULL, strlen(use), 0, false, 0};
    worst = worst_probe_during(&post, &count);
    print_message("first use: worst of %zu probes %.1f ms\n", count, worst);
    assert_int_equal(post.status, 200);
    assert_true(worst < (SANITIZED ? 1000 : 50));
    char *after = answer_of(use);
    assert_string_equal(before, after);
    assert_int_equal(stop_on_directory(), 0);
    service = common;
    client = of_common;
    free(before);
    free(after);
    free(use);
    free(body);
}

static void a_layer_is_stored_whole_though_its_client_leaves_or_the_server_ends(void **state) {
    (void)state;
    size_t size;
    char *body = large_body(&size), head[256];
    empty_directory();
    struct service common = service;
    CURL *of_common = client;
    start_on_directory();
    int fd = service_connect(&service);
    snprintf(head, sizeof head,
             "PUT /v1/layers/left HTTP/1.1\r\nHost: x\r\nContent-Type: application/vnd.safetensors\r\n"
             "Content-Length: %zu\r\n\r\n",
             size);
    raw_say(fd, head);
    assert_true(socket_send(fd, body, size));
    assert_true(metric_becomes(&service, "mha_keeping", 1, 20));
    close(fd);
    assert_true(metric_becomes(&service, "mha_keeping", 0, 60));
    assert_true(metric_becomes(&service, "mha_connections", 1, 5)); /* of metric() alone */
    struct reply reply = send_json("GET", "/v1/layers/left", NULL);
    expect_status(&reply, 200, "\"num_heads\":19");
    struct errand put = {"PUT", "/v1/layers/ended", body, binary_in_json_out, size, 0, false, 0};
    send_errand(&put);
    assert_true(metric_becomes(&service, "mha_keeping", 1, 20));
    assert_int_equal(stop_on_directory(), 0);
    pthread_join(put.thread, NULL);
    assert_int_equal(put.status, 201);
    assert_int_equal(count_files("left.safetensors") + count_files("ended.safetensors"), 2);
    assert_int_equal(count_files(".mhad-"), 0);
    start_on_directory();
    reply = send_json("GET", "/v1/layers", NULL);
    expect_status(&reply, 200, "{\"layers\":[\"ended\",\"left\"]}");
    assert_int_equal(stop_on_directory(), 0);
    service = common;
    client = of_common;
    empty_directory();
    free(body);
}

enum { VICTIM = 96 };

static char *victim_bodies[2];
static atomic_size_t changes;

/* Changes the layer without end, until the server dies under it. */
static void *changer(void *argument) {
    CURL *own = client_new(&service);
    unsigned first = *(unsigned *)argument;
    for (unsigned i = first;; i++) {
        const char *body = i % 3 == 2 ? NULL : victim_bodies[i % 2];
        struct reply reply =
            send_to(own, body ? "PUT" : "DELETE", "/v1/layers/victim", body, body ? strlen(body) : 0, NULL, 0);
        long status = reply.status;
        reply_free(&reply);
        if (status == 0) break;
        atomic_fetch_add(&changes, 1);
    }
    client_free(own);
    return NULL;
}

/* 0 and 1: the layer of that body, 2: none, -1: something else. */
static int victim_version(char *const expected[2], const char *use) {
    CURL *own = client_new(&service);
    struct reply reply = client_post(own, &service, use);
    int which = -1;
    if (reply.status == 404) which = 2;
    for (int v = 0; v < 2; v++)
        if (reply.status == 200 && strcmp(reply.body, expected[v]) == 0) which = v;
    if (which < 0) print_error("%ld %.300s\n", reply.status, reply.body);
    reply_free(&reply);
    client_free(own);
    return which;
}

/* Lets changes happen, then kills the server somewhere inside one. */
static void kill_while_changing(unsigned first) {
    pthread_t thread;
    size_t until = atomic_load(&changes) + 1 + (size_t)(rand() % 3);
    struct timespec moment = {0, rand() % 6000000};
    pthread_create(&thread, NULL, changer, &first);
    for (int i = 0; i < 20000 && atomic_load(&changes) < until; i++) usleep(500);
    nanosleep(&moment, NULL);
    kill(service.pid, SIGKILL);
    pthread_join(thread, NULL);
    assert_int_equal(service_stop(&service), 128 + SIGKILL);
}

static void a_kill_at_any_moment_leaves_the_old_or_the_new_layer_whole(void **state) {
    (void)state;
    const char *const arguments[] = {"--layers", directory, "--layers-writable", NULL};
    struct service before = service;
    char *expected[2], *use = use_json("victim", VICTIM, "");
    size_t seen[3] = {0};
    for (unsigned v = 0; v < 2; v++) {
        expected[v] = inline_answer(31 + v, VICTIM, "");
        victim_bodies[v] = layer_json(31 + v, VICTIM, "");
    }
    empty_directory();
    srand(7);
    setenv("TEST_KEEP_QUIET", "1", 1);
    for (unsigned round = 0; round < 24; round++) {
        service_start(&service, arguments); /* fails the test if a file is broken */
        int which = victim_version(expected, use);
        assert_true(which >= 0);
        seen[which]++;
        kill_while_changing(round);
    }
    unsetenv("TEST_KEEP_QUIET");
    print_message("%zu changes, 24 kills; found after a restart: %zu of one version, %zu of the other, %zu none\n",
                  atomic_load(&changes), seen[0], seen[1], seen[2]);
    assert_true(atomic_load(&changes) >= 24);
    for (unsigned v = 0; v < 2; v++) {
        free(expected[v]);
        free(victim_bodies[v]);
    }
    free(use);
    service = before;
    empty_directory();
}

static int start(void **state) {
    (void)state;
    if (!mkdtemp(directory)) return -1;
    service_start(&service, NULL);
    client = client_new(&service);
    return 0;
}

static int stop(void **state) {
    (void)state;
    client_free(client);
    rmdir(directory);
    return service_stop(&service);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_is_put_listed_described_used_and_deleted),
        cmocka_unit_test(a_layers_defaults_hold_until_the_request_says_otherwise),
        cmocka_unit_test(float32_requests_round_the_numbers_of_a_layer_once),
        cmocka_unit_test(a_request_cannot_bring_what_the_layer_brings),
        cmocka_unit_test(names_cannot_be_paths),
        cmocka_unit_test(a_put_that_fails_leaves_the_old_layer),
        cmocka_unit_test(safetensors_and_json_give_the_same_numbers_however_they_are_cut),
        cmocka_unit_test(a_large_safetensors_answer_says_its_length_and_holds_the_numbers_of_the_json_one),
        cmocka_unit_test(safetensors_answers_of_every_size_say_their_length),
        cmocka_unit_test(a_number_that_is_not_finite_is_named_wherever_it_lies_in_a_binary_body),
        cmocka_unit_test(a_layer_put_as_safetensors_is_the_layer_put_as_json),
        cmocka_unit_test(masks_and_lengths_come_as_booleans_and_integers),
        cmocka_unit_test(half_precision_bodies_are_widened_exactly),
        cmocka_unit_test(broken_safetensors_bodies_get_400_and_name_the_rule),
        cmocka_unit_test(a_header_of_more_tensors_than_any_body_needs_is_refused_before_it_is_parsed),
        cmocka_unit_test(a_whole_model_that_is_put_becomes_its_layers),
        cmocka_unit_test(a_request_gets_one_whole_version_while_the_layer_is_replaced_and_deleted),
        cmocka_unit_test(layers_count_against_the_budget_and_give_it_back),
        cmocka_unit_test(the_directory_is_loaded_and_written_only_when_writable),
        cmocka_unit_test(a_file_that_is_no_layer_stops_the_start_and_is_named),
        cmocka_unit_test(a_file_that_never_ends_does_not_keep_the_start),
        cmocka_unit_test(a_limit_of_file_sizes_fails_the_put_and_not_the_process),
        cmocka_unit_test(a_model_whose_last_layer_cannot_be_written_leaves_all_files_of_the_old_one),
        cmocka_unit_test(a_put_over_a_layer_of_the_checkpoint_holds_after_a_restart),
        cmocka_unit_test(more_layer_files_than_the_soft_limit_of_descriptors_are_loaded),
        cmocka_unit_test(two_servers_on_one_directory_write_one_after_the_other),
        cmocka_unit_test(probes_answer_within_50_ms_while_a_large_layer_is_stored_and_first_used),
        cmocka_unit_test(a_layer_is_stored_whole_though_its_client_leaves_or_the_server_ends),
        cmocka_unit_test(a_kill_at_any_moment_leaves_the_old_or_the_new_layer_whole),
    };
    return cmocka_run_group_tests_name("layers over HTTP", tests, start, stop);
}

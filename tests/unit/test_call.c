/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_call.c - the life of a call when things go wrong around it: the Nth allocation fails for every N, the client
 * goes away at any point, the run is cancelled, the answer is read in odd blocks.
 *
 * Model. The budget's test hook refuses the Nth allocation of a whole call, cJSON's included. For each N the call must end in an answer (503, out_of_memory) or a refused open, with nothing left
 * charged; the sanitizer builds see leaks and bad accesses. The count ends when a call needs fewer than N.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>

#include "support/post.h"

static struct mem_budget budget = {.limit = (size_t)64 << 20};
static struct api_env env = {.budget = &budget, .max_body = (size_t)8 << 20, .threads = 1};

/* Everything that allocates: late dtype with a tie, base64, flat, masks merged, lengths, heads, trace and present. */
static const char rich[] =
    "{\"num_heads\":2,\"num_kv_heads\":1,\"Q\":[[[1.000000059604644775390626,2,3,4],[5,6,7,8]]],"
    "\"K\":{\"shape\":[1,1,4],\"data\":[1,2,3,4]},\"V\":{\"shape\":[1,1,4],\"dtype\":\"float16\",\"base64\":"
    "\"ADwAPAA8ADw=\"},"
    "\"W_q\":[[1,2,3,4],[1,2,3,4],[1,2,3,4],[1,2,3,4]],\"W_k\":[[1,2],[1,2],[1,2],[1,2]],\"W_v\":[[1,2],[1,2],[1,2],[1,"
    "2]],"
    "\"W_o\":[[1],[2],[3],[4]],\"b_q\":[1,2,3,4],\"b_o\":[1],\"past_K\":[[[[1,2]]]],\"past_V\":[[[[1,2]]]],"
    "\"attn_mask\":[[0.5,null],[0,1]],\"key_mask\":[[1,1]],\"key_padding_mask\":[false,false],\"key_lengths\":[2],"
    "\"sinks\":[0,0],\"attention_heads\":[1,0],\"window\":{\"left\":5},\"return\":[\"trace\",\"present\"],"
    "\"tensor_format\":\"base64\",\"dtype\":\"float32\"}";

/* A tensor of 16,000 numbers, so that mappings grow; two keys, so that little is computed. */
static char *long_body(void) {
    char *body = malloc(100000);
    size_t at = (size_t)sprintf(
        body, "{\"num_heads\":1,\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"K\":[[1,2],[3,4]],\"Q\":[[1,2]");
    for (int i = 1; i < 8000; i++) at += (size_t)sprintf(body + at, ",[%d,2]", i % 10);
    strcpy(body + at, "],\"return\":[\"output\"]}");
    return body;
}

/* ---- allocations that fail ---- */

static size_t allocations, refuse_at;

static bool refuse(void *arg) {
    (void)arg;
    return ++allocations == refuse_at;
}

/* Fails each allocation of one call in turn; returns how many of them ended the call. A reader that asked for slack may go on
 * without it: then the answer must be the right one. */
static size_t fail_each(const char *body, size_t piece) {
    refuse_at = 0;
    struct answer right = post_pieces(&env, body, strlen(body), piece);
    assert_int_equal(right.status, 200);
    size_t ended = 0;
    for (refuse_at = 1;; refuse_at++) {
        allocations = 0;
        struct answer a = post_pieces(&env, body, strlen(body), piece);
        assert_int_equal(atomic_load(&budget.used), 0);
        bool reached = allocations >= refuse_at;
        if (a.status == 200)
            assert_string_equal(a.text, right.text);
        else
            assert_int_equal(a.status, 503);
        if (a.status == 503 && !a.refused) assert_int_equal(a.code, PROBLEM_OUT_OF_MEMORY);
        ended += a.status == 503;
        free(a.text);
        if (!reached) break;
    }
    free(right.text);
    return ended;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    char *body = long_body();
    budget.refuse = refuse;
    size_t few = fail_each(rich, SIZE_MAX >> 1), pieces = fail_each(rich, 5), many = fail_each(body, 4096);
    budget.refuse = NULL;
    print_message("  %zu, %zu and %zu failing allocations ended the call\n", few, pieces, many);
    assert_true(few > 40); /* cJSON's are among them */
    assert_true(many > 5);
    free(body);
}

/* ---- clients that go away, runs that are cancelled ---- */

static void a_call_may_be_closed_after_any_byte(void **state) {
    (void)state;
    for (size_t stop = 0; stop <= strlen(rich); stop += stop < 50 ? 1 : 7) {
        struct api_call *call = api_call_open(&env, API_MHA, API_JSON, API_JSON, SIZE_MAX);
        api_call_feed(call, rich, stop);
        api_call_close(call);
        assert_int_equal(atomic_load(&budget.used), 0);
    }
    struct api_call *call = api_call_open(&env, API_MHA, API_JSON, API_JSON, SIZE_MAX);
    api_call_feed(call, rich, strlen(rich));
    api_call_end(call);
    assert_non_null(api_call_run(call));
    api_call_close(call);
    assert_int_equal(atomic_load(&budget.used), 0);
}

static struct api_call *ready(const char *body) {
    struct api_call *call = api_call_open(&env, API_MHA, API_JSON, API_JSON, strlen(body));
    api_call_feed(call, body, strlen(body));
    api_call_end(call);
    assert_non_null(api_call_run(call));
    return call;
}

static void a_cancelled_run_says_why_it_was_cancelled_or_that_it_was(void **state) {
    (void)state;
    struct api_call *call = ready(rich);
    mha_run_cancel(api_call_run(call));
    mha_run_here(api_call_run(call));
    api_call_computed(call);
    assert_int_equal(api_call_problem(call)->code, PROBLEM_DEADLINE);
    api_call_close(call);
    call = ready(rich);
    struct mha_run *run = api_call_run(call);
    problem_set(api_call_problem(call), PROBLEM_DRAINING, "", "The server is stopping.");
    assert_null(api_call_run(call)); /* nothing is started any more */
    mha_run_cancel(run);
    mha_run_here(run);
    api_call_computed(call);
    assert_int_equal(api_call_status(call), 503);
    assert_string_equal(api_call_content_type(call), "application/problem+json");
    char text[4096];
    size_t length = api_call_read(call, text, sizeof text);
    text[length] = 0;
    assert_non_null(strstr(text, "\"draining\""));
    assert_int_equal(api_call_read(call, text, sizeof text), 0);
    api_call_close(call);
}

static void an_answer_that_was_not_computed_is_an_internal_error_and_not_garbage(void **state) {
    (void)state;
    struct api_call *call = ready(rich);
    char text[4096];
    size_t length = api_call_read(call, text, sizeof text);
    text[length] = 0;
    assert_int_equal(api_call_status(call), 500);
    assert_non_null(strstr(text, "\"internal\""));
    api_call_close(call);
}

static void the_answer_is_the_same_in_blocks_of_any_size(void **state) {
    (void)state;
    char *body = long_body();
    struct answer whole = post(&env, body);
    assert_int_equal(whole.status, 200);
    for (size_t max = 4096; max < 9000; max += 777) {
        struct api_call *call = ready(body);
        mha_run_here(api_call_run(call));
        api_call_computed(call);
        char *block = malloc(max);
        size_t at = 0;
        for (size_t n; (n = api_call_read(call, block, max)) > 0; at += n) {
            assert_true(n <= max && at + n <= whole.length);
            assert_memory_equal(block, whole.text + at, n);
        }
        assert_int_equal(at, whole.length);
        free(block);
        api_call_close(call);
    }
    free(whole.text);
    free(body);
}

/* 120 bytes of text can ask for minutes without one multiplication; whoever runs it must not think that it is small. */
static void rows_samples_and_copies_without_flops_are_work(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"Q\":{\"shape\":[1000000,0],\"data\":[]},\"K\":{\"shape\":[0,0],\"data\":[]},"
        "\"W_q\":{\"shape\":[0,1],\"data\":[]},\"W_k\":{\"shape\":[0,1],\"data\":[]},"
        "\"W_v\":{\"shape\":[0,1],\"data\":[]},\"W_o\":null,\"num_heads\":1}",
        "{\"Q\":{\"shape\":[1000000,0,1],\"data\":[]},\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,"
        "\"num_heads\":1}",
        "{\"Q\":{\"shape\":[0,0],\"data\":[]},\"K\":{\"shape\":[1000000,0],\"data\":[]},"
        "\"W_q\":{\"shape\":[0,1],\"data\":[]},\"W_k\":{\"shape\":[0,1],\"data\":[]},"
        "\"W_v\":{\"shape\":[0,1],\"data\":[]},\"W_o\":null,\"num_heads\":1,\"return\":[\"present\"]}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct api_call *call = ready(bodies[i]);
        assert_non_null(api_call_run(call));
        assert_true(api_call_flops(call) == 0);
        assert_true(api_call_work(call) >= 6.4e7);
        api_call_close(call);
    }
    struct api_call *small = ready(rich);
    assert_true(api_call_work(small) < 1e5); /* stays where it was read */
    api_call_close(small);
}

static void the_request_id_goes_into_problems_and_the_summary_names_shapes_only(void **state) {
    (void)state;
    struct api_call *call = api_call_open(&env, API_MHA, API_JSON, API_JSON, 2);
    api_call_feed(call, "{}", 2);
    api_call_end(call);
    api_call_request_id(call, "abc\"1");
    char text[4096];
    text[api_call_read(call, text, sizeof text)] = 0;
    assert_non_null(strstr(text, "\"request_id\":\"abc\\\"1\""));
    api_call_summary(call, text, sizeof text);
    assert_string_equal(text, "-");
    api_call_close(call);
    call = ready(rich);
    size_t length = api_call_summary(call, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_string_equal(text, "B=1 n_q=2 n_kv=2 h=2 h_kv=1 d_k=2 d_v=2 float32");
    assert_int_equal(api_call_summary(call, text, 8), 7);
    assert_true(api_call_flops(call) > 0);
    api_call_close(call);
}

/* ---- many at once ---- */

struct client {
    pthread_t thread;
    unsigned number;
    size_t wrong;
};

/* Its own request, over and over: V is a power of two of the client's own, so is every answer; odd clients make mistakes of their
 * own. */
static void *call_often(void *arg) {
    struct client *client = arg;
    char good[300], bad[100], right[100], wrong[100];
    snprintf(good, sizeof good,
             "{\"num_heads\":1,\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"Q\":[[1]],\"V\":[[%u]],\"return\":"
             "[\"output\"]}",
             1u << client->number);
    snprintf(right, sizeof right, "{\"output\":[[%u]]}\n", 1u << client->number);
    snprintf(bad, sizeof bad, "{\"field_%u\":1}", client->number);
    snprintf(wrong, sizeof wrong, "\"pointer\":\"/field_%u\"", client->number);
    for (int i = 0; i < 200; i++) {
        struct answer a = post(&env, i % 3 && client->number % 2 ? bad : good);
        client->wrong += i % 3 && client->number % 2 ? !strstr(a.text, wrong) : strcmp(a.text, right) != 0;
        free(a.text);
    }
    return NULL;
}

static void calls_on_many_threads_get_their_own_answers(void **state) {
    (void)state;
    struct client clients[16];
    for (unsigned i = 0; i < 16; i++) {
        clients[i] = (struct client){.number = i};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, call_often, &clients[i]), 0);
    }
    for (unsigned i = 0; i < 16; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    assert_int_equal(atomic_load(&budget.used), 0);
}

/* ---- memory while reading ---- */

static void reading_holds_the_tensor_and_less_than_a_mebibyte(void **state) {
    (void)state;
    struct mem_budget own = {.limit = (size_t)1 << 30};
    struct api_env big = env;
    big.budget = &own;
    big.max_body = (size_t)1 << 30;
    const size_t rows = 40000, columns = 100; /* 4 million numbers of 18 characters: 72 MB of text, 32 MB of numbers */
    char row[2200];
    size_t at = 0;
    for (size_t i = 0; i < columns; i++)
        at += (size_t)sprintf(row + at, "%c0.%015zu", i ? ',' : '[', i + 123456789012345);
    strcpy(row + at, "]");
    static const char *const dtypes[] = {"", "\"dtype\":\"float64\",", "\"dtype\":\"float32\","};
    for (size_t d = 0; d < 3; d++) {
        struct api_call *call = api_call_open(&big, API_MHA, API_JSON, API_JSON, SIZE_MAX);
        api_call_feed(call, "{", 1);
        api_call_feed(call, dtypes[d], strlen(dtypes[d]));
        api_call_feed(call, "\"Q\":[", 5);
        for (size_t i = 0; i < rows; i++) {
            if (i) api_call_feed(call, ",", 1);
            api_call_feed(call, row, at + 1);
        }
        size_t tensor = rows * columns * (d == 2 ? 4 : 8), peak = atomic_load(&own.peak);
        assert_false(api_call_failed(call));
        print_message("  %zu bytes of numbers, %zu more at the peak\n", tensor, peak - tensor);
        assert_true(peak >= tensor);
        assert_true(peak - tensor <= (size_t)1 << 20);
        api_call_close(call);
        assert_int_equal(atomic_load(&own.used), 0);
        atomic_store(&own.peak, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_call_may_be_closed_after_any_byte),
        cmocka_unit_test(a_cancelled_run_says_why_it_was_cancelled_or_that_it_was),
        cmocka_unit_test(an_answer_that_was_not_computed_is_an_internal_error_and_not_garbage),
        cmocka_unit_test(the_answer_is_the_same_in_blocks_of_any_size),
        cmocka_unit_test(rows_samples_and_copies_without_flops_are_work),
        cmocka_unit_test(the_request_id_goes_into_problems_and_the_summary_names_shapes_only),
        cmocka_unit_test(calls_on_many_threads_get_their_own_answers),
        cmocka_unit_test(reading_holds_the_tensor_and_less_than_a_mebibyte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_example.c - the worked example, step by step, from the `trace` answer of the real server.
 *
 * d_model 4, two heads, two tokens. X = [[1,0,1,0],[0,1,0,1]] is Q, K and V, and W_q = W_k = W_v, so everything can be
 * followed with a pencil. The rounded decimals below are those of the hand calculation (tolerance: half of their last
 * digit); beside them stand closed forms, computed here from the definition with exp and sqrt alone, that must agree to
 * 1e-15.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define X        "[[1,0,1,0],[0,1,0,1]]"
#define W        "[[0.1,0.2,0.3,0.4],[0.5,0.6,0.7,0.8],[0.2,0.1,0.4,0.3],[0.6,0.5,0.8,0.7]]"
#define IDENTITY "[[1,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]]"
/* Each output column takes from both heads: columns of W_o mix rows 0, 1 (head 1) with rows 2, 3 (head 2). */
#define MIXING "[[0.5,0,1,-1],[0,0.5,0,2],[0.5,0,-1,0],[0,0.5,0,1]]"

static cJSON *ask(const char *W_o, const char *more) {
    char body[1024];
    snprintf(body, sizeof body,
             "{\"Q\":" X ",\"K\":" X ",\"V\":" X ",\"W_q\":" W ",\"W_k\":" W ",\"W_v\":" W
             ",\"W_o\":%s,\"num_heads\":2%s}",
             W_o, more);
    struct reply reply = client_post(group_client, &group_service, body);
    if (reply.status != 200) fail_msg("status %ld: %s", reply.status, reply.body);
    cJSON *answer = reply_json(&reply);
    reply_free(&reply);
    return answer;
}

static cJSON *trace(void) { return ask(IDENTITY, ",\"return\":[\"trace\"]"); }

static double at(const cJSON *answer, const char *field, int a, int b, int c) {
    const cJSON *tensor = cJSON_GetObjectItemCaseSensitive(answer, field);
    tensor = cJSON_GetArrayItem(cJSON_GetArrayItem(tensor, a), b);
    if (c >= 0) tensor = cJSON_GetArrayItem(tensor, c);
    if (!cJSON_IsNumber(tensor)) fail_msg("%s has no element [%d][%d][%d]", field, a, b, c);
    return tensor->valuedouble;
}

static void assert_near(double actual, double expected, double tolerance) {
    if (!(fabs(actual - expected) <= tolerance)) fail_msg("%.17g should be %.17g", actual, expected);
}

static void the_projected_queries_are_split_into_two_heads(void **state) {
    (void)state;
    cJSON *answer = trace();
    /* Q' = [[.3,.3,.7,.7],[1.1,1.1,1.5,1.5]]: head 1 takes the first two columns, head 2 the others. */
    static const char split[] =
        "{\"Q\":[[[0.3,0.3],[1.1,1.1]],[[0.7,0.7],[1.5,1.5]]],\"K\":[[[0.3,0.3],[1.1,1.1]],[[0.7,0.7],[1.5,1.5]]],"
        "\"V\":[[[0.3,0.3],[1.1,1.1]],[[0.7,0.7],[1.5,1.5]]]}";
    assert_json(answer, "projections", split, 1e-15, 0);
    cJSON_Delete(answer);
}

static void the_scores_are_the_products_over_the_root_of_d_k(void **state) {
    (void)state;
    cJSON *answer = trace();
    /* S1 = [[.18,.66],[.66,2.42]]; over sqrt(2): [[.127,.467],[.467,1.711]] */
    assert_near(at(answer, "scores", 0, 0, 0), 0.18 / sqrt(2), 1e-15);
    assert_near(at(answer, "scores", 0, 0, 1), 0.66 / sqrt(2), 1e-15);
    assert_near(at(answer, "scores", 0, 1, 0), 0.66 / sqrt(2), 1e-15);
    assert_near(at(answer, "scores", 0, 1, 1), 2.42 / sqrt(2), 1e-15);
    assert_near(at(answer, "scores", 0, 0, 0), 0.127, 5e-4);
    assert_near(at(answer, "scores", 0, 0, 1), 0.467, 5e-4);
    assert_near(at(answer, "scores", 0, 1, 1), 1.711, 5e-4);
    /* S2 = [[.98,2.1],[2.1,4.5]] */
    assert_near(at(answer, "scores", 1, 0, 0), 0.98 / sqrt(2), 1e-15);
    assert_near(at(answer, "scores", 1, 0, 1), 2.10 / sqrt(2), 1e-15);
    assert_near(at(answer, "scores", 1, 1, 1), 4.50 / sqrt(2), 1e-15);
    cJSON_Delete(answer);
}

static void the_weights_are_the_softmax_of_each_row(void **state) {
    (void)state;
    cJSON *answer = trace();
    static const double gap[2][2] = {{0.66 - 0.18, 2.42 - 0.66},
                                     {2.10 - 0.98, 4.50 - 2.10}}; /* [head][row], before scaling */
    for (int head = 0; head < 2; head++)
        for (int row = 0; row < 2; row++) {
            double second =
                1 / (1 + exp(-gap[head][row] / sqrt(2))); /* softmax of two: a logistic of their difference */
            assert_near(at(answer, "attention", head, row, 1), second, 1e-15);
            assert_near(at(answer, "attention", head, row, 0), 1 - second, 1e-15);
            assert_near(at(answer, "attention", head, row, 0) + at(answer, "attention", head, row, 1), 1, 1e-15);
        }
    assert_near(at(answer, "attention", 0, 0, 0), 0.416, 5e-4);
    assert_near(at(answer, "attention", 0, 0, 1), 0.584, 5e-4);
    assert_near(at(answer, "attention", 0, 1, 0), 0.224, 5e-4);
    assert_near(at(answer, "attention", 0, 1, 1), 0.776, 5e-4);
    cJSON_Delete(answer);
}

static void each_head_is_its_weights_times_its_values(void **state) {
    (void)state;
    cJSON *answer = trace();
    assert_json(answer, "heads", "[[[0.767,0.767],[0.921,0.921]],[[1.251,1.251],[1.376,1.376]]]", 0, 5e-4);
    static const double values[2][2] = {{0.3, 1.1}, {0.7, 1.5}}; /* [head][token]; both columns are equal */
    for (int head = 0; head < 2; head++)
        for (int row = 0; row < 2; row++) {
            double sum = at(answer, "attention", head, row, 0) * values[head][0] +
                         at(answer, "attention", head, row, 1) * values[head][1];
            assert_near(at(answer, "heads", head, row, 0), sum, 1e-15);
            assert_near(at(answer, "heads", head, row, 1), sum, 1e-15);
        }
    cJSON_Delete(answer);
}

static void logsumexp_is_the_log_of_the_denominator(void **state) {
    (void)state;
    cJSON *answer = trace();
    assert_near(at(answer, "logsumexp", 0, 0, -1), log(exp(0.18 / sqrt(2)) + exp(0.66 / sqrt(2))), 2e-15);
    assert_near(at(answer, "logsumexp", 1, 1, -1), log(exp(2.10 / sqrt(2)) + exp(4.50 / sqrt(2))), 2e-15);
    cJSON_Delete(answer);
}

static void the_heads_are_put_side_by_side_and_identity_leaves_them(void **state) {
    (void)state;
    cJSON *answer = trace();
    for (int row = 0; row < 2; row++)
        for (int column = 0; column < 4; column++) {
            double head = at(answer, "heads", column / 2, row, column % 2);
            assert_true(at(answer, "concat", row, column, -1) == head);
            assert_near(at(answer, "output", row, column, -1), head, 1e-16);
        }
    assert_json(answer, "output", "[[0.767,0.767,1.251,1.251],[0.921,0.921,1.376,1.376]]", 0, 5e-4);
    cJSON_Delete(answer);
}

static void an_output_projection_mixes_the_heads(void **state) {
    (void)state;
    cJSON *answer = ask(MIXING, ",\"return\":[\"trace\"]");
    for (int row = 0; row < 2; row++) {
        double one = at(answer, "heads", 0, row, 0), two = at(answer, "heads", 1, row, 0);
        assert_near(at(answer, "output", row, 0, -1), (one + two) / 2, 1e-15);
        assert_near(at(answer, "output", row, 1, -1), (one + two) / 2, 1e-15);
        assert_near(at(answer, "output", row, 2, -1), one - two, 1e-15);
        assert_near(at(answer, "output", row, 3, -1), one + two,
                    1e-15); /* -one + 2 one + two: equal columns in each head */
    }
    cJSON_Delete(answer);
}

static void a_causal_decoder_sees_the_first_token_only_from_the_first(void **state) {
    (void)state;
    cJSON *answer = ask(IDENTITY, ",\"causal\":true,\"return\":[\"output\",\"attention\"]");
    cJSON *whole = trace();
    for (int head = 0; head < 2; head++) {
        assert_true(at(answer, "attention", head, 0, 0) == 1.0);
        assert_true(at(answer, "attention", head, 0, 1) == 0.0);
        assert_true(at(answer, "attention", head, 1, 0) == at(whole, "attention", head, 1, 0));
    }
    assert_json(answer, "output",
                "[[0.3,0.3,0.7,0.7],[0.9210781685841689,0.9210781685841689,1.3761199010475975,1.3761199010475975]]",
                1e-15, 0);
    cJSON_Delete(answer);
    cJSON_Delete(whole);
}

static void trace_has_every_step_and_by_default_there_is_only_the_output(void **state) {
    (void)state;
    static const char *const steps[] = {"projections", "scores", "attention", "heads", "concat", "output", "logsumexp"};
    cJSON *answer = trace(), *plain = ask(IDENTITY, "");
    for (size_t i = 0; i < 7; i++) assert_non_null(cJSON_GetObjectItemCaseSensitive(answer, steps[i]));
    assert_null(cJSON_GetObjectItemCaseSensitive(answer, "warnings"));
    assert_int_equal(cJSON_GetArraySize(plain), 1);
    assert_non_null(cJSON_GetObjectItemCaseSensitive(plain, "output"));
    cJSON_Delete(answer);
    cJSON_Delete(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_projected_queries_are_split_into_two_heads),
        cmocka_unit_test(the_scores_are_the_products_over_the_root_of_d_k),
        cmocka_unit_test(the_weights_are_the_softmax_of_each_row),
        cmocka_unit_test(each_head_is_its_weights_times_its_values),
        cmocka_unit_test(logsumexp_is_the_log_of_the_denominator),
        cmocka_unit_test(the_heads_are_put_side_by_side_and_identity_leaves_them),
        cmocka_unit_test(an_output_projection_mixes_the_heads),
        cmocka_unit_test(a_causal_decoder_sees_the_first_token_only_from_the_first),
        cmocka_unit_test(trace_has_every_step_and_by_default_there_is_only_the_output),
    };
    return cmocka_run_group_tests(tests, group_start, group_stop);
}

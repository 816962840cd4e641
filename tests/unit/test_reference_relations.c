/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_reference_relations.c - the configurations of the paper against 113 bits, and relations that must hold
 * between one problem and another whatever the numbers are.
 *
 * Relations are checked to the bit where the reference does the same operations in the same order, else within rounding.
 */
#include "../../core/mha.h"
#include "support/oracle.h"
#include "support/random_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void evaluate(const struct mha_problem *p, struct mha_result *r) {
    void *workspace = aligned_alloc(MHA_ALIGN, mha_reference_need(p) + MHA_ALIGN);
    assert_non_null(workspace);
    assert_int_equal(mha_reference(p, r, workspace), MHA_OK);
    free(workspace);
}

/* ---- the paper ----------------------------------------------------------------------------------------------------------- */

/* Self-attention of n tokens of width d_model with h heads, all four projections, against the oracle. */
static void check_layer(enum mha_dtype dtype, size_t d_model, size_t h, size_t n, bool causal) {
    const struct random_limits limits = {.dtype = dtype == MHA_F64 ? 1 : 2};
    struct random_problem *x = random_problem_new(d_model + h, &limits);
    struct mha_problem p = {.dtype = dtype,
                            .B = 1,
                            .n_q = n,
                            .n_k = n,
                            .h = h,
                            .h_kv = h,
                            .d_k = d_model / h,
                            .d_v = d_model / h,
                            .d_q = d_model,
                            .d_kin = d_model,
                            .d_vin = d_model,
                            .d_out = d_model,
                            .scale = 1 / sqrt((double)(d_model / h)),
                            .causal = causal};
    p.Q = p.K = p.V = random_numbers(x, n * d_model, 2);
    const double amplitude = 2 / sqrt((double)d_model);
    p.weights.W_q = random_numbers(x, d_model * d_model, amplitude);
    p.weights.W_k = random_numbers(x, d_model * d_model, amplitude);
    p.weights.W_v = random_numbers(x, d_model * d_model, amplitude);
    p.weights.W_o = random_numbers(x, d_model * d_model, amplitude);

    struct mha_result r = random_result_new(&p, WANT_ALL, NULL, 0);
    evaluate(&p, &r);
    struct oracle *o = oracle_new(&p);
    char text[300];
    if (!(oracle_compare(o, &p, &r, text, sizeof text) <= 1)) fail_msg("%s", text);
    oracle_free(o);
    random_result_free(&r);
    random_problem_free(x);
}

static void the_base_configuration_agrees_with_113_bits(void **unused) {
    (void)unused;
    check_layer(MHA_F64, 512, 8, 4, false);
    check_layer(MHA_F32, 512, 8, 4, true);
}

static void the_big_configuration_agrees_with_113_bits(void **unused) {
    (void)unused;
    check_layer(MHA_F64, 1024, 16, 2, true);
    check_layer(MHA_F32, 1024, 16, 2, false);
}

static void one_head_and_32_heads_agree_with_113_bits(void **unused) {
    (void)unused;
    check_layer(MHA_F64, 512, 1, 3, false);
    check_layer(MHA_F64, 512, 32, 3, false);
    check_layer(MHA_F32, 512, 32, 3, true);
}

/* ---- relations ------------------------------------------------------------------------------------------------------------ */

/* A self-made problem to vary: B 2, n_q 5, n_k 6, h 4, h_kv 2, everything projected, float64. */
struct base {
    struct random_problem *x;
    struct mha_problem p;
    struct mha_result r;
};

static struct base base_new(uint64_t seed) {
    const struct random_limits limits = {.dtype = 1};
    struct base t = {.x = random_problem_new(seed, &limits)};
    t.p = (struct mha_problem){.B = 2,
                               .n_q = 5,
                               .n_k = 6,
                               .h = 4,
                               .h_kv = 2,
                               .d_k = 3,
                               .d_v = 5,
                               .d_q = 7,
                               .d_kin = 8,
                               .d_vin = 9,
                               .d_out = 10,
                               .scale = 1 / sqrt(3)};
    t.p.Q = random_numbers(t.x, 2 * 5 * 7, 2);
    t.p.K = random_numbers(t.x, 2 * 6 * 8, 2);
    t.p.V = random_numbers(t.x, 2 * 6 * 9, 2);
    t.p.weights.W_q = random_numbers(t.x, 7 * 4 * 3, 1);
    t.p.weights.W_k = random_numbers(t.x, 8 * 2 * 3, 1);
    t.p.weights.W_v = random_numbers(t.x, 9 * 2 * 5, 1);
    t.p.weights.W_o = random_numbers(t.x, 4 * 5 * 10, 1);
    t.p.weights.b_q = random_numbers(t.x, 4 * 3, 1);
    t.p.weights.b_o = random_numbers(t.x, 10, 1);
    t.r = random_result_new(&t.p, WANT_ALL, NULL, 0);
    evaluate(&t.p, &t.r);
    return t;
}

static void base_free(struct base *t) {
    random_result_free(&t->r);
    random_problem_free(t->x);
}

static void assert_near(const void *got, const void *want, size_t n, double tolerance) {
    for (size_t x = 0; x < n; x++) {
        double a = ((const double *)got)[x], b = ((const double *)want)[x];
        if (!(fabs(a - b) <= tolerance * (1 + fabs(b)))) fail_msg("[%zu] is %.17g, should be %.17g", x, a, b);
    }
}

/* Rows of [B, n, d] in the order given. */
static double *permuted(struct base *t, const void *from, size_t B, size_t n, size_t d, const size_t *order) {
    double *to = random_numbers(t->x, B * n * d, 1);
    for (size_t b = 0; b < B; b++)
        for (size_t j = 0; j < n; j++)
            memcpy(to + (b * n + j) * d, (const double *)from + (b * n + order[j]) * d, d * sizeof(double));
    return to;
}

static void permuting_keys_with_their_values_changes_nothing(void **unused) {
    (void)unused;
    const size_t order[] = {3, 0, 5, 1, 4, 2};
    struct base t = base_new(1);
    struct mha_problem p = t.p;
    p.K = permuted(&t, t.p.K, 2, 6, 8, order);
    p.V = permuted(&t, t.p.V, 2, 6, 9, order);
    struct mha_result r = random_result_new(&p, WANT_OUTPUT | WANT_LOGSUMEXP, NULL, 0);
    evaluate(&p, &r);
    assert_near(r.output, t.r.output, 2 * 5 * 10, 1e-13);
    assert_near(r.logsumexp, t.r.logsumexp, 2 * 4 * 5, 1e-13);
    random_result_free(&r);
    base_free(&t);
}

static void permuting_queries_permutes_the_output(void **unused) {
    (void)unused;
    const size_t order[] = {4, 2, 0, 1, 3};
    struct base t = base_new(2);
    struct mha_problem p = t.p;
    p.Q = permuted(&t, t.p.Q, 2, 5, 7, order);
    struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
    evaluate(&p, &r);
    double *want = permuted(&t, t.r.output, 2, 5, 10, order);
    assert_memory_equal(r.output, want, 2 * 5 * 10 * sizeof(double));
    random_result_free(&r);
    base_free(&t);
}

/* Four ways to say "only the first 4 keys", and 4 keys: the same bytes. */
static void hiding_keys_at_the_end_equals_leaving_them_out(void **unused) {
    (void)unused;
    static const uint8_t first_4[] = {1, 1, 1, 1, 0, 0};
    static const double additive[] = {0, 0, 0, 0, -INFINITY, -INFINITY};
    static const size_t lengths[] = {4, 4};
    struct base t = base_new(3);
    struct mha_problem shorter = t.p;
    shorter.n_k = 4;
    double *K = random_numbers(t.x, 2 * 4 * 8, 1), *V = random_numbers(t.x, 2 * 4 * 9, 1);
    for (size_t b = 0; b < 2; b++) {
        memcpy(K + b * 4 * 8, (const double *)t.p.K + b * 6 * 8, 4 * 8 * sizeof(double));
        memcpy(V + b * 4 * 9, (const double *)t.p.V + b * 6 * 9, 4 * 9 * sizeof(double));
    }
    shorter.K = K;
    shorter.V = V;
    struct mha_result want = random_result_new(&shorter, WANT_OUTPUT, NULL, 0);
    evaluate(&shorter, &want);
    for (int way = 0; way < 4; way++) {
        struct mha_problem p = t.p;
        if (way == 0) p.key_lengths = lengths;
        if (way == 1) p.key_mask = first_4, p.key_mask_B = 1;
        if (way == 2) p.attn_mask = (struct mha_mask){MHA_MASK_BOOL, first_4, {1, 1, 1, 6}};
        if (way == 3) p.attn_mask = (struct mha_mask){MHA_MASK_ADDITIVE, additive, {1, 1, 1, 6}};
        struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
        evaluate(&p, &r);
        assert_memory_equal(r.output, want.output, 2 * 5 * 10 * sizeof(double));
        random_result_free(&r);
    }
    random_result_free(&want);
    base_free(&t);
}

static void a_batch_equals_its_samples(void **unused) {
    (void)unused;
    struct base t = base_new(4);
    for (size_t b = 0; b < 2; b++) {
        struct mha_problem p = t.p;
        p.B = 1;
        p.Q = (const double *)t.p.Q + b * 5 * 7;
        p.K = (const double *)t.p.K + b * 6 * 8;
        p.V = (const double *)t.p.V + b * 6 * 9;
        struct mha_result r = random_result_new(&p, WANT_ALL, NULL, 0);
        evaluate(&p, &r);
        assert_memory_equal(r.output, (double *)t.r.output + b * 5 * 10, 5 * 10 * sizeof(double));
        assert_memory_equal(r.attention, (double *)t.r.attention + b * 4 * 5 * 6, 4 * 5 * 6 * sizeof(double));
        random_result_free(&r);
    }
    base_free(&t);
}

/* Head 2 alone, its weights cut out by hand: softmax(q k^T scale) v, written out once more. */
static void one_head_equals_plain_attention(void **unused) {
    (void)unused;
    struct base t = base_new(5);
    const double *Q = t.r.proj_Q, *K = t.r.proj_K, *V = t.r.proj_V;
    const size_t head = 2, g = 1;
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < 5; i++) {
            double e[6], sum = 0;
            for (size_t j = 0; j < 6; j++) {
                double s = 0;
                for (size_t c = 0; c < 3; c++)
                    s += Q[((b * 4 + head) * 5 + i) * 3 + c] * K[((b * 2 + g) * 6 + j) * 3 + c];
                e[j] = exp(s / sqrt(3));
                sum += e[j];
            }
            for (size_t c = 0; c < 5; c++) {
                double want = 0;
                for (size_t j = 0; j < 6; j++) want += e[j] / sum * V[((b * 2 + g) * 6 + j) * 5 + c];
                assert_near((double *)t.r.heads + ((b * 4 + head) * 5 + i) * 5 + c, &want, 1, 1e-13);
            }
        }
    base_free(&t);
}

static void an_identity_as_W_o_returns_the_heads_side_by_side(void **unused) {
    (void)unused;
    struct base t = base_new(6);
    struct mha_problem p = t.p;
    double *identity = random_numbers(t.x, 20 * 20, 1);
    for (size_t x = 0; x < 400; x++) identity[x] = x / 20 == x % 20;
    p.d_out = 20;
    p.weights.W_o = identity;
    p.weights.b_o = NULL;
    struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
    evaluate(&p, &r);
    assert_memory_equal(r.output, t.r.concat, 2 * 5 * 20 * sizeof(double));
    random_result_free(&r);
    base_free(&t);
}

static void weights_of_visible_keys_add_up_to_one(void **unused) {
    (void)unused;
    struct base t = base_new(7);
    for (size_t row = 0; row < 2 * 4 * 5; row++) {
        double sum = 0;
        for (size_t j = 0; j < 6; j++) sum += ((double *)t.r.attention)[row * 6 + j];
        assert_true(fabs(sum - 1) <= 1e-15);
    }
    base_free(&t);
}

/* Token by token with a cache equals all at once with causal: the same bytes. */
static void decoding_with_a_cache_equals_one_causal_pass(void **unused) {
    (void)unused;
    enum { N = 6 };
    struct base t = base_new(8);
    struct mha_problem whole = t.p;
    whole.B = 1;
    whole.n_q = N;
    whole.d_q = 8; /* Q is K: self-attention */
    whole.Q = whole.K;
    whole.weights.W_q = random_numbers(t.x, 8 * 4 * 3, 1);
    whole.causal = true;
    struct mha_result want = random_result_new(&whole, WANT_OUTPUT | WANT_PRESENT, NULL, 0);
    evaluate(&whole, &want);

    struct mha_result before = {0};
    for (size_t n = 0; n < N; n++) {
        struct mha_problem step = whole;
        step.n_q = step.n_k = 1;
        step.n_past = n;
        step.Q = step.K = (const double *)whole.K + n * 8;
        step.V = (const double *)whole.V + n * 9;
        step.past_K = before.present_K;
        step.past_V = before.present_V;
        struct mha_result r = random_result_new(&step, WANT_OUTPUT | WANT_PRESENT, NULL, 0);
        evaluate(&step, &r);
        assert_memory_equal(r.output, (double *)want.output + n * 10, 10 * sizeof(double));
        random_result_free(&before);
        before = r;
    }
    assert_memory_equal(before.present_K, want.present_K, 2 * N * 3 * sizeof(double));
    assert_memory_equal(before.present_V, want.present_V, 2 * N * 5 * sizeof(double));
    random_result_free(&before);
    random_result_free(&want);
    base_free(&t);
}

static void asking_for_maps_does_not_change_the_output(void **unused) {
    (void)unused;
    struct base t = base_new(9);
    const unsigned wanted[] = {WANT_OUTPUT, WANT_OUTPUT | WANT_ATTENTION | WANT_MEAN, WANT_OUTPUT | WANT_SCORES};
    for (size_t k = 0; k < 3; k++) {
        struct mha_result r = random_result_new(&t.p, wanted[k], NULL, 0);
        evaluate(&t.p, &r);
        assert_memory_equal(r.output, t.r.output, 2 * 5 * 10 * sizeof(double));
        random_result_free(&r);
    }
    base_free(&t);
}

static void grouped_heads_equal_repeated_heads(void **unused) {
    (void)unused;
    struct base t = base_new(10);
    struct mha_problem p = t.p; /* W_k [8, 2*3] to [8, 4*3], W_v [9, 2*5] to [9, 4*5]: each head twice */
    double *W_k = random_numbers(t.x, 8 * 4 * 3, 1), *W_v = random_numbers(t.x, 9 * 4 * 5, 1);
    for (size_t e = 0; e < 8; e++)
        for (size_t x = 0; x < 12; x++) W_k[e * 12 + x] = ((const double *)p.weights.W_k)[e * 6 + x / 6 * 3 + x % 3];
    for (size_t e = 0; e < 9; e++)
        for (size_t x = 0; x < 20; x++) W_v[e * 20 + x] = ((const double *)p.weights.W_v)[e * 10 + x / 10 * 5 + x % 5];
    p.weights.W_k = W_k;
    p.weights.W_v = W_v;
    p.h_kv = 4;
    struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
    evaluate(&p, &r);
    assert_memory_equal(r.output, t.r.output, 2 * 5 * 10 * sizeof(double));
    random_result_free(&r);
    base_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_base_configuration_agrees_with_113_bits),
        cmocka_unit_test(the_big_configuration_agrees_with_113_bits),
        cmocka_unit_test(one_head_and_32_heads_agree_with_113_bits),
        cmocka_unit_test(permuting_keys_with_their_values_changes_nothing),
        cmocka_unit_test(permuting_queries_permutes_the_output),
        cmocka_unit_test(hiding_keys_at_the_end_equals_leaving_them_out),
        cmocka_unit_test(a_batch_equals_its_samples),
        cmocka_unit_test(one_head_equals_plain_attention),
        cmocka_unit_test(an_identity_as_W_o_returns_the_heads_side_by_side),
        cmocka_unit_test(weights_of_visible_keys_add_up_to_one),
        cmocka_unit_test(decoding_with_a_cache_equals_one_causal_pass),
        cmocka_unit_test(asking_for_maps_does_not_change_the_output),
        cmocka_unit_test(grouped_heads_equal_repeated_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

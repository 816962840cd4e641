/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_reference_random.c - the reference against the __float128 oracle, over random problems of every kind.
 *
 * Also shows that the comparison can fail (a small error in any one result is seen), and that the generator reaches everything.
 */
#include "support/oracle.h"
#include "support/random_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static enum mha_error evaluate(const struct mha_problem *p, struct mha_result *r) {
    void *workspace = aligned_alloc(MHA_ALIGN, mha_reference_need(p) + MHA_ALIGN);
    assert_non_null(workspace);
    enum mha_error error = mha_reference(p, r, workspace);
    free(workspace);
    return error;
}

/* One seed: everything wanted, or a random part of it, with a random list of heads. Returns the worst ratio. */
static double check_seed(uint64_t seed, const struct random_limits *limits) {
    char text[400], problem_text[500];
    struct random_problem *r = random_problem_new(seed, limits);
    const struct mha_problem *p = &r->problem;
    uint64_t state = seed ^ 0x5eed;
    unsigned wanted = random_below(&state, 2) ? WANT_ALL : (unsigned)random_below(&state, WANT_ALL + 1);
    if (random_below(&state, 4) == 0) wanted |= WANT_MEAN;
    size_t list[4], n_list = 1 + random_below(&state, 4);
    for (size_t s = 0; s < n_list; s++) list[s] = random_below(&state, p->h);
    struct mha_result result = random_result_new(p, wanted, random_below(&state, 3) ? NULL : list, n_list);

    struct mha_need need;
    struct mha_detail detail;
    random_problem_describe(r, problem_text, sizeof problem_text);
    if (mha_plan(p, &result, 1, &need, &detail) != MHA_OK)
        fail_msg("%s\nrefused: %s %s", problem_text, mha_error_text(detail.code), detail.field);
    if (evaluate(p, &result) != MHA_OK)
        fail_msg("%s\nnot finite: %s [%zu,%zu,%zu,%zu]", problem_text, result.detail.field, result.detail.index[0],
                 result.detail.index[1], result.detail.index[2], result.detail.index[3]);
    struct oracle *o = oracle_new(p);
    double worst = oracle_compare(o, p, &result, text, sizeof text);
    if (!(worst <= 1)) fail_msg("%s\n%s", problem_text, text);
    oracle_free(o);
    random_result_free(&result);
    random_problem_free(r);
    return worst;
}

static void every_option_agrees_with_113_bits(void **unused) {
    (void)unused;
    double worst = 0;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        double ratio = check_seed(seed, NULL);
        if (ratio > worst) worst = ratio;
    }
    print_message("worst error: %.3f of its bound\n", worst);
}

static void wider_heads_and_more_keys_agree_with_113_bits(void **unused) {
    (void)unused;
    const struct random_limits limits = {.n_q = 30, .n_k = 60, .n_past = 40, .d = 40, .d_in = 50};
    for (uint64_t seed = 1; seed <= 60; seed++) check_seed(seed, &limits);
}

/* Moves one element of each result in turn by 1e-9 of its size (float64) or 1e-3 (float32): it is seen. */
static void an_error_in_any_one_element_is_seen(void **unused) {
    (void)unused;
    const struct random_limits limits = {.no_empty = true, .no_poison = true};
    size_t tried = 0, seen = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct random_problem *x = random_problem_new(seed, &limits);
        const struct mha_problem *p = &x->problem;
        struct mha_result r = random_result_new(p, WANT_ALL, NULL, 0);
        assert_int_equal(evaluate(p, &r), MHA_OK);
        struct oracle *o = oracle_new(p);
        void *const results[] = {r.output, r.attention, r.heads,  r.proj_Q,    r.proj_K,   r.proj_V,
                                 r.scores, r.logsumexp, r.concat, r.present_K, r.present_V};
        const size_t n[] = {o->output.n, o->attention.n, o->heads.n,  o->proj_Q.n,    o->proj_K.n,   o->proj_V.n,
                            o->scores.n, o->logsumexp.n, o->concat.n, o->present_K.n, o->present_V.n};
        for (size_t t = 0; t < sizeof n / sizeof n[0]; t++) {
            size_t at = (size_t)(seed * 7919) % n[t];
            double *d = results[t];
            float *f = results[t], kept_f = f[at];
            double kept_d = p->dtype == MHA_F32 ? 0 : d[at];
            if (p->dtype == MHA_F32)
                f[at] += 1e-3f * (1 + fabsf(f[at]));
            else
                d[at] += 1e-9 * (1 + fabs(d[at]));
            if (isfinite(p->dtype == MHA_F32 ? (double)f[at] : d[at]) != 0) {
                seen += !(oracle_compare(o, p, &r, NULL, 0) <= 1);
                tried++;
            }
            if (p->dtype == MHA_F32)
                f[at] = kept_f;
            else
                d[at] = kept_d;
        }
        r.masked_rows++;
        assert_false(oracle_compare(o, p, &r, NULL, 0) <= 1);
        oracle_free(o);
        random_result_free(&r);
        random_problem_free(x);
    }
    print_message("seen: %zu of %zu\n", seen, tried);
    assert_true(tried > 500);
    assert_true(seen >= tried * 99 / 100); /* large scores make a softmax in float32 worse than that now and then */
}

static void the_generator_reaches_every_option(void **unused) {
    (void)unused;
    enum { N = 1500 };
    size_t count[24] = {0};
    for (uint64_t seed = 1; seed <= N; seed++) {
        struct random_problem *x = random_problem_new(seed, NULL);
        const struct mha_problem *p = &x->problem;
        const bool features[] = {p->dtype == MHA_F32,
                                 p->B == 0,
                                 p->n_q == 0,
                                 p->n_k == 0,
                                 p->n_past > 0,
                                 p->h_kv<p->h, p->d_k != p->d_v, p->weights.W_q == NULL, p->weights.W_o == NULL,
                                         p->weights.b_v != NULL, p->softcap> 0,
                                 p->causal,
                                 p->alignment == MHA_BOTTOM_RIGHT && p->causal,
                                 p->window && p->window_left != MHA_WINDOW_OPEN,
                                 p->attn_mask.kind == MHA_MASK_BOOL,
                                 p->attn_mask.kind == MHA_MASK_ADDITIVE,
                                 p->key_mask != NULL,
                                 p->key_lengths != NULL,
                                 p->sinks != NULL,
                                 p->K == p->Q,
                                 p->V == p->K,
                                 p->n_q > p->n_k + p->n_past,
                                 p->weights.layout == MHA_OUT_IN,
                                 p->n_q == 1};
        for (size_t f = 0; f < 24; f++) count[f] += features[f];
        random_problem_free(x);
    }
    for (size_t f = 0; f < 24; f++)
        if (count[f] < 10 || count[f] > N * 9 / 10) fail_msg("feature %zu is in %zu of %d problems", f, count[f], N);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_agrees_with_113_bits),
        cmocka_unit_test(an_error_in_any_one_element_is_seen),
        cmocka_unit_test(the_generator_reaches_every_option),
        cmocka_unit_test(wider_heads_and_more_keys_agree_with_113_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

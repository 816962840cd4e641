/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_reference_random.c - the reference against the __float128 oracle, over random problems of every kind.
 *
 * Also shows that the comparison can fail: each of a list of one-element mistakes must be seen.
 */
#include "support/oracle.h"
#include "support/random_problem.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_agrees_with_113_bits),
        cmocka_unit_test(wider_heads_and_more_keys_agree_with_113_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

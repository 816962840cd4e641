/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_fast.c - the fast evaluation against the __float128 oracle, and against the reference where something is not
 * finite: over random problems of every kind, on every instruction set of this machine, on one thread and on a pool.
 */
#include "support/evaluate.h"
#include "support/oracle.h"
#include "support/random_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const isas[] = {"x86-64", "x86-64-v3", "x86-64-v4", "neon", "generic"};
enum { N_ISAS = sizeof isas / sizeof isas[0] };

static struct mha_pool *pool;

/* Runs `check` with every instruction set that this build and CPU have. */
static void on_every_isa(void (*check)(const char *isa)) {
    size_t n = 0;
    const char *before = mha_isa_name();
    for (size_t x = 0; x < N_ISAS; x++) {
        if (!mha_isa_force(isas[x])) continue;
        check(isas[x]);
        n++;
    }
    assert_true(mha_isa_force(before));
    assert_true(n > 0);
}

/* ---- against the oracle ------------------------------------------------------------------------------------------ */

static double check_seed(uint64_t seed, const struct random_limits *limits) {
    char text[400], problem_text[500];
    struct random_problem *x = random_problem_new(seed, limits);
    struct mha_problem p = x->problem;
    uint64_t state = seed ^ 0xfa57;
    unsigned wanted = random_below(&state, 2) ? WANT_ALL : (unsigned)random_below(&state, WANT_ALL + 1);
    if (random_below(&state, 4) == 0) wanted |= WANT_MEAN;
    size_t list[4], n_list = 1 + random_below(&state, 4);
    for (size_t s = 0; s < n_list; s++) list[s] = random_below(&state, p.h);
    struct mha_result r = random_result_new(&p, wanted, random_below(&state, 3) ? NULL : list, n_list);
    struct mha_layer *layer = NULL;
    if (random_below(&state, 2)) {
        struct mha_detail detail;
        const struct mha_layer_shape shape = {p.dtype, p.h, p.h_kv, p.d_k, p.d_v, p.d_q, p.d_kin, p.d_vin, p.d_out};
        layer = mha_layer_new(&shape, &p.weights, &detail);
        assert_non_null(layer);
        p.layer = layer;
        p.weights = (struct mha_weights){0};
    }

    random_problem_describe(x, problem_text, sizeof problem_text);
    if (evaluate(&p, &r, random_below(&state, 2) ? pool : NULL) != MHA_OK)
        fail_msg("%s\n%s: not finite: %s [%zu,%zu,%zu,%zu]", problem_text, mha_isa_name(), r.detail.field,
                 r.detail.index[0], r.detail.index[1], r.detail.index[2], r.detail.index[3]);
    struct oracle *o = oracle_new(&x->problem);
    double worst = oracle_compare(o, &x->problem, &r, text, sizeof text);
    if (!(worst <= 1)) fail_msg("%s\n%s wanted %x: %s", problem_text, mha_isa_name(), wanted, text);
    oracle_free(o);
    random_result_free(&r);
    mha_layer_free(layer);
    random_problem_free(x);
    return worst;
}

static void check_small(const char *isa) {
    double worst = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) worst = fmax(worst, check_seed(seed, NULL));
    print_message("%s: worst error %.3f of its bound\n", isa, worst);
}

static void check_wide(const char *isa) {
    const struct random_limits limits = {.n_q = 110, .n_k = 300, .n_past = 140, .d = 70, .d_in = 300, .h_kv = 2};
    double worst = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) worst = fmax(worst, check_seed(seed, &limits));
    print_message("%s: worst error %.3f of its bound\n", isa, worst);
}

static void check_deep(const char *isa) {
    const struct random_limits limits = {.B = 2, .n_q = 3, .n_k = 5, .n_past = 3, .d = 600, .d_in = 600, .h_kv = 2};
    double worst = 0;
    for (uint64_t seed = 1; seed <= 15; seed++) worst = fmax(worst, check_seed(seed, &limits));
    print_message("%s: worst error %.3f of its bound\n", isa, worst);
}

static void check_rows_alone(const char *isa) {
    const struct random_limits limits = {
        .B = 1, .n_q = 1, .n_k = 1, .n_past = 1500, .d = 40, .d_in = 900, .h_kv = 2, .group = 1};
    double worst = 0;
    for (uint64_t seed = 1; seed <= 25; seed++) worst = fmax(worst, check_seed(seed, &limits));
    print_message("%s: worst error %.3f of its bound\n", isa, worst);
}

static void every_option_agrees_with_113_bits(void **unused) {
    (void)unused;
    on_every_isa(check_small);
}

static void several_tiles_and_panels_agree_with_113_bits(void **unused) {
    (void)unused;
    on_every_isa(check_wide);
}

static void several_blocks_of_a_product_agree_with_113_bits(void **unused) {
    (void)unused;
    on_every_isa(check_deep);
}

static void one_row_with_many_keys_and_wide_inputs_agrees_with_113_bits(void **unused) {
    (void)unused;
    on_every_isa(check_rows_alone);
}

/* ---- exactly ----------------------------------------------------------------------------------------------------- */

/* Causal without weights: query 0 sees key 0 alone, by a mask query 2 key 1 alone. */
static void check_only_key(const char *isa) {
    enum { n = 40, d = 5 };
    static float x[n * d], v[n * d], output[n * d];
    static uint8_t mask[n * n];
    uint64_t state = 7;
    for (size_t k = 0; k < n * d; k++) {
        x[k] = (float)(6 * random_unit(&state) - 3);
        v[k] = (float)(200 * random_unit(&state) - 100);
    }
    memset(mask, 1, sizeof mask);
    mask[2 * n + 0] = mask[2 * n + 2] = 0;
    const struct mha_problem p = {.dtype = MHA_F32,
                                  .B = 1,
                                  .n_q = n,
                                  .n_k = n,
                                  .h = 1,
                                  .h_kv = 1,
                                  .d_k = d,
                                  .d_v = d,
                                  .d_q = d,
                                  .d_kin = d,
                                  .d_vin = d,
                                  .d_out = d,
                                  .scale = 0.7,
                                  .causal = true,
                                  .attn_mask = {.kind = MHA_MASK_BOOL, .data = mask, .dim = {1, 1, n, n}},
                                  .Q = x,
                                  .K = x,
                                  .V = v};
    struct mha_result r = {.output = output};
    assert_int_equal(evaluate(&p, &r, NULL), MHA_OK);
    for (size_t c = 0; c < d; c++)
        if (output[c] != v[c] || output[2 * d + c] != v[d + c])
            fail_msg("%s: element %zu is %a and not %a, or %a and not %a", isa, c, output[c], v[c], output[2 * d + c],
                     v[d + c]);
}

static void a_row_that_sees_one_key_gets_its_value_to_the_bit(void **unused) {
    (void)unused;
    on_every_isa(check_only_key);
}

/* Two columns of values: one near the largest float64, whose sums overflow, and one beside it. With the first times 2^-600 no sum
 * overflows: the mean must be the same but for that factor, and the second column the same to the bit. */
static void check_huge_values(const char *isa) {
    enum { most_q = 40, most_k = 600, d = 3 };
    static const size_t n_q[] = {1, 3, most_q}, n_k[] = {2, 39, most_k};
    static double q[most_q * d], k[most_k * d], huge[most_k * 2], tame[most_k * 2];
    uint64_t state = 11;
    for (size_t x = 0; x < most_q * d; x++) q[x] = 2 * random_unit(&state) - 1;
    for (size_t x = 0; x < most_k * d; x++) k[x] = 2 * random_unit(&state) - 1;
    for (size_t j = 0; j < most_k; j++) {
        huge[2 * j] = 0x1.8p1023 + 0x0.7p1023 * random_unit(&state);
        huge[2 * j + 1] = 0x1p-1060 * random_unit(&state); /* would lose bits if it were shrunk */
        if (j % 3 == 2) huge[2 * j] = -huge[2 * j];
        tame[2 * j] = huge[2 * j] * 0x1p-600;
        tame[2 * j + 1] = huge[2 * j + 1];
    }
    for (size_t x = 0; x < 9; x++) {
        struct mha_problem p = {.B = 1,
                                .n_q = n_q[x / 3],
                                .n_k = n_k[x % 3],
                                .h = 1,
                                .h_kv = 1,
                                .d_k = d,
                                .d_v = 2,
                                .d_q = d,
                                .d_kin = d,
                                .d_vin = 2,
                                .d_out = 2,
                                .scale = 2,
                                .softcap = 3,
                                .Q = q,
                                .K = k,
                                .V = huge};
        double output[most_q * 2], heads[most_q * 2], expected[most_q * 2];
        struct mha_result r = {.output = output, .heads = heads}, tamed = {.output = expected};
        if (evaluate(&p, &r, NULL) != MHA_OK) fail_msg("%s: problem %zu is refused at %s", isa, x, r.detail.field);
        p.V = tame;
        assert_int_equal(evaluate(&p, &tamed, NULL), MHA_OK);
        for (size_t i = 0; i < p.n_q; i++) {
            const double error = fabs(output[2 * i] * 0x1p-600 - expected[2 * i]), bound = 1e-13 * 0x1p423;
            if (!(error <= bound)) fail_msg("%s: problem %zu, row %zu: %a", isa, x, i, output[2 * i]);
            assert_true(output[2 * i + 1] == expected[2 * i + 1]);
        }
        assert_memory_equal(output, heads, p.n_q * 2 * sizeof *output);
    }
}

static void values_whose_sum_overflows_have_a_mean(void **unused) {
    (void)unused;
    on_every_isa(check_huge_values);
}

/* ---- what is not finite ------------------------------------------------------------------------------------------ */

static void overwrite(enum mha_dtype dtype, const void *tensor, size_t index, double value) {
    if (dtype == MHA_F32)
        ((float *)(uintptr_t)tensor)[index] = (float)value;
    else
        ((double *)(uintptr_t)tensor)[index] = value;
}

/* Puts NaN, an infinity or something huge somewhere; fast and reference agree on the status and its place. Numbers so huge that
 * the order of a sum decides are left out by making it all or nothing. */
static bool check_poisoned(uint64_t seed) {
    const struct random_limits limits = {.no_empty = true};
    struct random_problem *x = random_problem_new(seed, &limits);
    struct mha_problem *p = &x->problem;
    uint64_t state = seed ^ 0xbad;
    const double poisons[] = {NAN, INFINITY, -INFINITY};
    const double poison = poisons[random_below(&state, 3)];
    const struct {
        const void *tensor;
        size_t n;
    } places[] = {
        {p->Q, p->B * p->n_q * p->d_q},
        {p->K, p->B * p->n_k * p->d_kin},
        {p->V, p->B * p->n_k * p->d_vin},
        {p->past_K, p->B * p->h_kv * p->n_past * p->d_k},
        {p->past_V, p->B * p->h_kv * p->n_past * p->d_v},
        {p->weights.W_k, p->weights.W_k == NULL ? 0 : p->d_kin},
        {p->weights.b_o, p->weights.b_o == NULL ? 0 : p->d_out},
        {p->sinks, p->sinks == NULL ? 0 : p->h},
    };
    const size_t n_places = sizeof places / sizeof places[0], place = random_below(&state, n_places);
    bool failed = false;
    if (places[place].n > 0) {
        overwrite(p->dtype, places[place].tensor, random_below(&state, places[place].n), poison);
        const unsigned wanted = random_below(&state, 3) ? WANT_ALL : WANT_OUTPUT;
        struct mha_result fast = random_result_new(p, wanted, NULL, 0), slow = random_result_new(p, wanted, NULL, 0);
        const enum mha_error want = evaluate_reference(p, &slow), got = evaluate(p, &fast, seed % 2 ? pool : NULL);
        char text[500];
        random_problem_describe(x, text, sizeof text);
        const char *const want_field = want == MHA_OK ? "fine" : slow.detail.field;
        const char *const got_field = got == MHA_OK ? "fine" : fast.detail.field;
        if (want != got || strcmp(want_field, got_field) != 0 || slow.detail.rank != fast.detail.rank ||
            memcmp(slow.detail.index, fast.detail.index, sizeof slow.detail.index) != 0)
            fail_msg("%s\nplace %zu, %g: reference %s [%zu,%zu,%zu,%zu], fast %s [%zu,%zu,%zu,%zu]", text, place,
                     poison, want_field, slow.detail.index[0], slow.detail.index[1], slow.detail.index[2],
                     slow.detail.index[3], got_field, fast.detail.index[0], fast.detail.index[1], fast.detail.index[2],
                     fast.detail.index[3]);
        assert_int_equal(slow.masked_rows, fast.masked_rows);
        failed = want != MHA_OK;
        random_result_free(&fast);
        random_result_free(&slow);
    }
    random_problem_free(x);
    return failed;
}

static void what_is_not_finite_is_named_as_the_reference_names_it(void **unused) {
    (void)unused;
    size_t failed = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) failed += check_poisoned(seed);
    print_message("%zu of 2000 were not finite\n", failed);
    assert_true(failed > 400 && failed < 1600);
}

static int set_up(void **unused) {
    (void)unused;
    pool = mha_pool_new(3);
    return pool == NULL;
}

static int tear_down(void **unused) {
    (void)unused;
    mha_pool_free(pool);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_agrees_with_113_bits),
        cmocka_unit_test(several_tiles_and_panels_agree_with_113_bits),
        cmocka_unit_test(several_blocks_of_a_product_agree_with_113_bits),
        cmocka_unit_test(one_row_with_many_keys_and_wide_inputs_agrees_with_113_bits),
        cmocka_unit_test(a_row_that_sees_one_key_gets_its_value_to_the_bit),
        cmocka_unit_test(values_whose_sum_overflows_have_a_mean),
        cmocka_unit_test(what_is_not_finite_is_named_as_the_reference_names_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

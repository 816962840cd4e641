/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_accuracy.c - the library's errors against 113-bit results, held against NumPy's on the same layers.
 *
 * NumPy's errors are recorded in support/accuracy_numpy.inc (`make accuracy` measures them anew); the layers are those of
 * support/accuracy_layer.h. A single layer is luck, so what is compared are sums over a kind of layers: the mean error, the
 * largest error averaged over layers, and, over the 200 random layers, also the worst of all.
 */
#include "support/accuracy_layer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct accuracy numpy[ACCURACY_LAYERS][2] = {
#include "support/accuracy_numpy.inc"
};

struct tally {
    double worst, max, mean; /* the worst, and sums, of both sides */
};

static void add(struct tally *t, struct accuracy a) {
    if (!(a.max <= t->worst)) t->worst = a.max;
    t->max += a.max;
    t->mean += a.mean;
}

/* All layers of one kind. The kinds of hard layers come in turn. */
static void compare(const char *kind, enum mha_dtype dtype, struct tally *ours, struct tally *theirs) {
    size_t n = 0;
    *ours = *theirs = (struct tally){0};
    for (size_t i = 0; i < ACCURACY_LAYERS; i++) {
        if (strcmp(accuracy_kind(i), kind) != 0) continue;
        struct accuracy_layer *layer = accuracy_layer_new(i, dtype);
        struct oracle *exact = oracle_new(&layer->problem);
        add(ours, accuracy_measure(layer, exact));
        add(theirs, numpy[i][dtype]);
        oracle_free(exact);
        accuracy_layer_free(layer);
        n++;
    }
    assert_true(n > 0);
    print_message("  %s %-26s ours/NumPy's: worst %.2f, largest %.2f, mean %.2f (worst %.3g)\n",
                  dtype == MHA_F32 ? "f32" : "f64", kind, ours->worst / theirs->worst, ours->max / theirs->max,
                  ours->mean / theirs->mean, ours->worst);
}

static void random_layers(enum mha_dtype dtype) {
    struct tally ours, theirs;
    compare("random", dtype, &ours, &theirs);
    assert_true(ours.mean <= theirs.mean);
    assert_true(ours.max <= theirs.max);
    assert_true(ours.worst <= theirs.worst);
}

static void errors_of_200_random_float64_layers_are_no_larger_than_numpys(void **state) {
    (void)state;
    random_layers(MHA_F64);
}

static void errors_of_200_random_float32_layers_are_no_larger_than_numpys(void **state) {
    (void)state;
    random_layers(MHA_F32);
}

/* Few layers of each kind, so luck shows: a kind may lose by a quarter, all of them together may not lose. */
static void hard_layers(enum mha_dtype dtype) {
    double max = 0, mean = 0;
    size_t kinds = 0;
    for (size_t i = ACCURACY_RANDOM; i == ACCURACY_RANDOM || accuracy_kind(i) != accuracy_kind(ACCURACY_RANDOM); i++) {
        struct tally ours, theirs;
        compare(accuracy_kind(i), dtype, &ours, &theirs);
        assert_true(ours.mean <= 1.25 * theirs.mean);
        assert_true(ours.max <= 1.25 * theirs.max);
        max += ours.max / theirs.max;
        mean += ours.mean / theirs.mean;
        kinds++;
    }
    assert_true(max / (double)kinds <= 1);
    assert_true(mean / (double)kinds <= 1);
}

static void errors_of_hard_float64_layers_are_no_larger_than_numpys(void **state) {
    (void)state;
    hard_layers(MHA_F64);
}

static void errors_of_hard_float32_layers_are_no_larger_than_numpys(void **state) {
    (void)state;
    hard_layers(MHA_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_of_200_random_float64_layers_are_no_larger_than_numpys),
        cmocka_unit_test(errors_of_200_random_float32_layers_are_no_larger_than_numpys),
        cmocka_unit_test(errors_of_hard_float64_layers_are_no_larger_than_numpys),
        cmocka_unit_test(errors_of_hard_float32_layers_are_no_larger_than_numpys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

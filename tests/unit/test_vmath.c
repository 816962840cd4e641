/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_vmath.c - core/kernels/vmath.h against 113-bit arithmetic, and bit for bit against
 * itself on every instruction set and vector width this CPU can run.
 *
 * Every accuracy test prints the largest and the mean error it saw, in units in the last place of the exact value, and
 * holds the largest against a bound. VMATH_TEST_ROUNDS=50 in the environment looks at 50 times as many points.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/quad.h"
#include "support/vmath_hash.h"

enum { N = VMATH_POINTS };

/* ---- the two element types behind one face -------------------------------------------------------------------------
 */

static double get(const struct vmath_ops *ops, const void *x, size_t i) {
    return ops->size == sizeof(double) ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void set(const struct vmath_ops *ops, void *x, size_t i, double value) {
    if (ops->size == sizeof(double)) {
        ((double *)x)[i] = value;
    } else {
        ((float *)x)[i] = (float)value;
    }
}

static double largest(const struct vmath_ops *ops) { return ops->size == sizeof(double) ? DBL_MAX : (double)FLT_MAX; }
static double smallest(const struct vmath_ops *ops) { return ops->size == sizeof(double) ? DBL_MIN : (double)FLT_MIN; }

/* log2 of the smallest exact result that must not be flushed to 0, and of the largest that must. */
static double flush_log2(const struct vmath_ops *ops) { return ops->size == sizeof(double) ? -1021.5 : -125.5; }

static void *points(const struct vmath_ops *ops) {
    void *x = calloc(N, ops->size);
    assert_non_null(x);
    return x;
}

/* |got - exact| in units in the last place of `exact`; infinite when it is not a number. */
static double ulps(const struct vmath_ops *ops, double got, quad exact) {
    const int exponent = exact == 0 ? -20000 : QUAD(ilogb)(exact);
    const int least = ops->size == sizeof(double) ? -1074 : -149;
    const int unit = exponent - ops->mantissa < least ? least : exponent - ops->mantissa;
    const double d = (double)(((quad)got - exact) / QUAD(ldexp)(1, unit));
    return isnan(d) ? (double)INFINITY : fabs(d);
}

struct errors {
    double max, sum, at;
    size_t count;
};

static void note(struct errors *e, double error, double at) {
    if (!(error <= e->max)) e->max = error, e->at = at;
    e->sum += error;
    e->count++;
}

static void verdict(const struct vmath_probe *probe, const struct vmath_ops *ops, const char *what,
                    const struct errors *e, double bound) {
    print_message("  %-5s f%zu %-16s max %.3f ulp at %.17g, mean %.3f, %zu points\n", what, 8 * ops->size, probe->name,
                  e->max, e->at, e->sum / (double)e->count, e->count);
    assert_true(e->count > 0);
    assert_true(e->max <= bound);
}

static uint64_t rounds(void) {
    const char *text = getenv("VMATH_TEST_ROUNDS");
    const long n = text ? atol(text) : 1;
    return n > 0 ? (uint64_t)n : 1;
}

/* ---- over what a test runs ----------------------------------------------------------------------------------------
 */

typedef void check(const struct vmath_probe *probe, const struct vmath_ops *ops);

/* Both types on one width per instruction set: the other widths give the same bytes, which has its own test. */
static void on_every_isa(check *run) {
    const struct vmath_probe *probes[16];
    const size_t n = vmath_probes(probes);
    assert_true(n >= 3);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(probes[i]->isa, probes[i - 1]->isa) == 0) continue;
        run(probes[i], &probes[i]->f64);
        run(probes[i], &probes[i]->f32);
    }
}

/* ---- exp ------------------------------------------------------------------------------------------------------------
 */

/* Rows of 16 scores: the maximum first, the others below it by up to `spread`. */
static void score_rows(const struct vmath_ops *ops, void *S, void *max, int max_log2, int spread_log2,
                       uint64_t series) {
    vmath_moderate_points(ops, max, series, max_log2, -1);
    vmath_moderate_points(ops, S, series + 1, spread_log2, 1);
    for (size_t i = 0; i < N; i++) {
        const double m = get(ops, max, i - i % 16);
        set(ops, max, i, m);
        set(ops, S, i, i % 16 ? m + get(ops, S, i) : m);
    }
}

static void exp_errors(const struct vmath_ops *ops, int max_log2, int spread_log2, uint64_t series, struct errors *e) {
    void *S = points(ops), *max = points(ops), *p = points(ops), *base = points(ops), *shift = points(ops);
    score_rows(ops, S, max, max_log2, spread_log2, series);
    ops->exp(p, S, max, N);
    ops->ref(base, shift, max, N);
    for (size_t i = 0; i < N; i++) {
        const double s = get(ops, S, i), got = get(ops, p, i);
        const quad power = ((quad)s - get(ops, base, i)) * QUAD_LOG2E - get(ops, shift, i);
        if (got == 0) {
            assert_true(power < (quad)flush_log2(ops) + 1e-3);
        } else {
            assert_true(got >= smallest(ops)); /* never subnormal, never NaN */
            assert_true(power > (quad)flush_log2(ops) - 1e-3);
            note(e, ulps(ops, got, QUAD(exp2)(power)), s);
        }
    }
    free(S), free(max), free(p), free(base), free(shift);
}

static void check_exp(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    struct errors e = {0};
    const int top = ops->size == sizeof(double) ? 60 : 30;
    for (uint64_t r = 0; r < rounds(); r++)
        for (int max_log2 = -2; max_log2 <= top; max_log2 += 8)
            exp_errors(ops, max_log2, (max_log2 + 2) / 8 % 3 * 4 - 1, 1000 * r + 2 * (uint64_t)(max_log2 + 2), &e);
    verdict(probe, ops, "exp", &e, probe->fma ? 1.0 : 1.25);
}

static void exp_is_within_one_ulp_for_maxima_of_any_size(void **state) {
    (void)state;
    on_every_isa(check_exp);
}

static void check_exp_of_reference(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    (void)probe;
    void *x = points(ops), *p = points(ops), *base = points(ops), *shift = points(ops);
    ops->exp(p, x, x, N);
    for (size_t i = 0; i < N; i++) assert_true(get(ops, p, i) == 1.0);

    /* m - (base + shift*ln2) is at most half a power of two, so the weight of the maximum is near 1 however large it is
     */
    vmath_points(ops, x, 7);
    for (size_t i = 0; i < N; i++)
        if (!isfinite(get(ops, x, i))) set(ops, x, i, i % 2 ? largest(ops) : -largest(ops));
    ops->exp(p, x, x, N);
    ops->ref(base, shift, x, N);
    for (size_t i = 0; i < N; i++) {
        const double got = get(ops, p, i), s = get(ops, shift, i);
        assert_true(got > 0.70 && got < 1.42);
        assert_true(s == nearbyint(s));
        assert_true(get(ops, base, i) == 0 || (get(ops, base, i) == get(ops, x, i) && s == 0 && got == 1.0));
    }
    free(x), free(p), free(base), free(shift);
}

static void the_maximum_of_a_row_weighs_about_one_and_exp_0_is_exactly_1(void **state) {
    (void)state;
    on_every_isa(check_exp_of_reference);
}

static void check_exp_special(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    (void)probe;
    void *S = points(ops), *max = points(ops), *p = points(ops);
    const double maxima[] = {-largest(ops), -1e30, -700, 0, 3.5, 700, 1e30, largest(ops)};
    for (size_t k = 0; k < sizeof maxima / sizeof maxima[0]; k++) {
        for (size_t i = 0; i < N; i++) {
            set(ops, max, i, maxima[k]);
            set(ops, S, i,
                i % 4 == 0   ? -(double)INFINITY
                : i % 4 == 1 ? (double)NAN
                : i % 4 == 2 ? (double)INFINITY
                             : -largest(ops));
        }
        /* NaN with a full payload must not turn into a number when exponents are added */
        if (ops->size == sizeof(double)) {
            memset((double *)S + 5, 0xff, sizeof(double));
        } else {
            memset((float *)S + 5, 0xff, sizeof(float));
        }
        ops->exp(p, S, max, N);
        for (size_t i = 0; i < N; i++) {
            const double got = get(ops, p, i);
            switch (i % 4) {
            case 0:
                assert_true(got == 0 && !signbit(got));
                break;
            case 1:
            case 2:
                assert_true(isnan(got));
                break;
            default:
                assert_true(got == (maxima[k] == -largest(ops) ? 1.0 : 0.0));
                break;
            }
        }
    }
    for (size_t i = 0; i < N; i++) {
        set(ops, max, i, i % 2 ? (double)INFINITY : (double)NAN);
        set(ops, S, i, i % 2 ? (double)INFINITY : 1.0);
    }
    ops->exp(p, S, max, N);
    for (size_t i = 0; i < N; i++) assert_true(isnan(get(ops, p, i)));
    free(S), free(max), free(p);
}

static void hidden_scores_weigh_exactly_0_and_nan_and_infinite_ones_nan(void **state) {
    (void)state;
    on_every_isa(check_exp_special);
}

/* ---- alpha ----------------------------------------------------------------------------------------------------------
 */

static void check_alpha(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    void *from = points(ops), *to = points(ops), *alpha = points(ops);
    void *base_from = points(ops), *shift_from = points(ops), *base_to = points(ops), *shift_to = points(ops);
    struct errors e = {0};
    const int top = ops->size == sizeof(double) ? 60 : 30;
    for (int log2_size = -2; log2_size <= top; log2_size += 7) {
        vmath_moderate_points(ops, from, 2 * (uint64_t)(log2_size + 2), log2_size, -1);
        vmath_moderate_points(ops, to, 2 * (uint64_t)(log2_size + 2) + 1, log2_size % 8, 0);
        for (size_t i = 0; i < N; i++) {
            if (i % 64 == 0) set(ops, from, i, -largest(ops));
            set(ops, to, i, get(ops, from, i) + get(ops, to, i));
        }
        ops->alpha(alpha, from, to, N);
        ops->ref(base_from, shift_from, from, N);
        ops->ref(base_to, shift_to, to, N);
        for (size_t i = 0; i < N; i++) {
            const double got = get(ops, alpha, i), d = get(ops, shift_from, i) - get(ops, shift_to, i);
            const quad db = (quad)get(ops, base_from, i) - get(ops, base_to, i);
            const quad power = db * QUAD_LOG2E + d;
            if (db == 0) assert_true(got == (d < flush_log2(ops) ? 0.0 : ldexp(1.0, (int)d)));
            if (got == 0) {
                assert_true(power < (quad)flush_log2(ops) + 1e-3);
            } else {
                assert_true(got >= smallest(ops));
                note(&e, ulps(ops, got, QUAD(exp2)(power)), get(ops, from, i));
            }
        }
    }
    verdict(probe, ops, "alpha", &e, probe->fma ? 1.0 : 1.25);
    free(from), free(to), free(alpha), free(base_from), free(shift_from), free(base_to), free(shift_to);
}

static void alpha_is_an_exact_power_of_two_and_0_below_the_limit(void **state) {
    (void)state;
    on_every_isa(check_alpha);
}

static void check_rescaling(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    (void)probe;
    void *S = points(ops), *from = points(ops), *to = points(ops), *p = points(ops), *q = points(ops), *a = points(ops);
    for (int log2_size = -2; log2_size <= 9; log2_size++) {
        score_rows(ops, S, from, log2_size, 3, 2 * (uint64_t)(log2_size + 2));
        vmath_moderate_points(ops, to, 77, 5, 0);
        for (size_t i = 0; i < N; i++) set(ops, to, i, get(ops, from, i) + get(ops, to, i));
        ops->exp(p, S, from, N);
        ops->alpha(a, from, to, N);
        ops->exp(q, S, to, N);
        size_t equal = 0;
        for (size_t i = 0; i < N; i++) equal += get(ops, p, i) * get(ops, a, i) == get(ops, q, i);
        /* round(x*log2e) may fall on the other side when x*log2e is half an integer to the last bit; then, and only
         * then, the two differ, by less than two ulp */
        assert_true(equal > N - N / 64);
        for (size_t i = 0; i < N; i++)
            assert_true(ulps(ops, get(ops, p, i) * get(ops, a, i), (quad)get(ops, q, i)) <= 2.5);
    }
    free(S), free(from), free(to), free(p), free(q), free(a);
}

static void a_weight_rescaled_by_alpha_is_the_weight_under_the_later_reference(void **state) {
    (void)state;
    on_every_isa(check_rescaling);
}

/* ---- tanh -----------------------------------------------------------------------------------------------------------
 */

static void check_tanh(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    struct errors e = {0};
    void *x = points(ops), *y = points(ops);
    for (uint64_t r = 0; r < rounds(); r++)
        for (int limit_log2 = -8; limit_log2 <= 7; limit_log2 += 3) {
            vmath_moderate_points(ops, x, 100 * r + (uint64_t)(limit_log2 + 8),
                                  limit_log2 > 4 ? limit_log2 - 5 : limit_log2, -1);
            ops->tanh(y, x, N);
            for (size_t i = 0; i < N; i++)
                note(&e, ulps(ops, get(ops, y, i), QUAD(tanh)(get(ops, x, i))), get(ops, x, i));
        }
    verdict(probe, ops, "tanh", &e, 1.0);

    struct errors wild = {0}; /* every exponent there is */
    vmath_points(ops, x, 3);
    ops->tanh(y, x, N);
    for (size_t i = 0; i < N; i++) {
        const double a = get(ops, x, i), got = get(ops, y, i);
        if (isnan(a)) {
            assert_true(isnan(got));
            continue;
        }
        if (fabs(a) > 20) assert_true(got == (a < 0 ? -1.0 : 1.0));
        assert_true(!signbit(got) == !signbit(a));
        note(&wild, ulps(ops, got, QUAD(tanh)(a)), a);
    }
    verdict(probe, ops, "tanh", &wild, 1.0);
    free(x), free(y);
}

static void tanh_is_within_one_ulp_from_subnormal_to_infinite(void **state) {
    (void)state;
    on_every_isa(check_tanh);
}

static void check_tanh_odd(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    (void)probe;
    void *x = points(ops), *y = points(ops), *minus = points(ops);
    for (int limit_log2 = -30; limit_log2 < 6; limit_log2++) {
        vmath_moderate_points(ops, x, (uint64_t)(limit_log2 + 30), limit_log2, -1);
        ops->tanh(y, x, N);
        for (size_t i = 0; i < N; i++) set(ops, x, i, -get(ops, x, i));
        ops->tanh(minus, x, N);
        for (size_t i = 0; i < N; i++) {
            assert_true(get(ops, minus, i) == -get(ops, y, i));
            assert_true(fabs(get(ops, y, i)) <= 1.0);
        }
    }
    free(x), free(y), free(minus);
}

static void tanh_is_odd_to_the_bit_and_never_above_one(void **state) {
    (void)state;
    on_every_isa(check_tanh_odd);
}

/* ---- logsumexp ------------------------------------------------------------------------------------------------------
 */

static void check_lse(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    struct errors e = {0};
    void *max = points(ops), *l = points(ops), *y = points(ops), *base = points(ops), *shift = points(ops);
    const int top = ops->size == sizeof(double) ? 60 : 30;
    for (uint64_t r = 0; r < rounds(); r++)
        for (int max_log2 = -2; max_log2 <= top; max_log2 += 8) {
            const uint64_t series = 1000 * r + 2 * (uint64_t)(max_log2 + 2);
            vmath_moderate_points(ops, max, series, max_log2, -1);
            vmath_moderate_points(ops, l, series + 1, max_log2 % 20, 0);
            for (size_t i = 0; i < N; i++)
                set(ops, l, i, i % 8 ? 0.7 + get(ops, l, i) : 1 + ldexp(get(ops, l, i), -25));
            ops->lse(y, max, l, N);
            ops->ref(base, shift, max, N);
            for (size_t i = 0; i < N; i++) {
                const quad exact =
                    (quad)get(ops, base, i) + (quad)get(ops, shift, i) * QUAD_LN2 + QUAD(log)(get(ops, l, i));
                if (exact == 0) {
                    assert_true(get(ops, y, i) == 0);
                } else {
                    note(&e, ulps(ops, get(ops, y, i), exact), get(ops, l, i));
                }
            }
        }
    verdict(probe, ops, "lse", &e, 1.0);

    for (size_t i = 0; i < N; i++) {
        set(ops, max, i, i % 2 ? -largest(ops) : 5.0);
        set(ops, l, i, i % 4 < 2 ? 0.0 : (double)NAN);
    }
    ops->lse(y, max, l, N);
    for (size_t i = 0; i < N; i++)
        assert_true(i % 4 < 2 ? get(ops, y, i) == -(double)INFINITY : (bool)isnan(get(ops, y, i)));
    free(max), free(l), free(y), free(base), free(shift);
}

static void logsumexp_is_within_one_ulp_and_minus_infinity_without_keys(void **state) {
    (void)state;
    on_every_isa(check_lse);
}

/* ---- max ------------------------------------------------------------------------------------------------------------
 */

static void check_max(const struct vmath_probe *probe, const struct vmath_ops *ops) {
    (void)probe;
    void *a = points(ops), *b = points(ops), *y = points(ops);
    vmath_points(ops, a, 11);
    vmath_points(ops, b, 12);
    ops->max(y, a, b, N);
    for (size_t i = 0; i < N; i++) {
        const double x = get(ops, a, i), z = get(ops, b, i), got = get(ops, y, i);
        assert_true(isnan(x) ? (bool)isnan(got) : got == (z > x ? z : x));
    }

    for (size_t rows = 0; rows < 40; rows++) {
        for (size_t c = 0; c < ops->columns; c++) set(ops, y, c, -largest(ops));
        ops->max_rows(y, b, rows);
        for (size_t c = 0; c < ops->columns; c++) {
            double m = -largest(ops);
            for (size_t r = 0; r < rows; r++)
                m = get(ops, b, r * ops->columns + c) > m ? get(ops, b, r * ops->columns + c) : m;
            assert_true(get(ops, y, c) == m);
        }
    }
    free(a), free(b), free(y);
}

static void max_ignores_nan_in_the_new_scores(void **state) {
    (void)state;
    on_every_isa(check_max);
}

/* ---- bits -----------------------------------------------------------------------------------------------------------
 */

/* What AVX2, AVX-512 and NEON make of vmath_hash.c's points, by gcc and by clang. */
static const uint64_t fma_hash_f64 = 0xa8c216204c72271f, fma_hash_f32 = 0x263472e1f191230b;

static void bits_are_the_same_on_every_target_with_fma_and_at_every_width(void **state) {
    (void)state;
    const struct vmath_probe *probes[16];
    const size_t n = vmath_probes(probes);
    const uint64_t base_f64 = vmath_hash(&probes[0]->f64), base_f32 = vmath_hash(&probes[0]->f32);
    for (size_t i = 0; i < n; i++) {
        const bool fma = probes[i]->fma;
        const uint64_t f64 = vmath_hash(&probes[i]->f64), f32 = vmath_hash(&probes[i]->f32);
        print_message("  f64 %016" PRIx64 " f32 %016" PRIx64 " %s\n", f64, f32, probes[i]->name);
        assert_int_equal(f64, fma ? fma_hash_f64 : base_f64);
        assert_int_equal(f32, fma ? fma_hash_f32 : base_f32);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_one_ulp_for_maxima_of_any_size),
        cmocka_unit_test(the_maximum_of_a_row_weighs_about_one_and_exp_0_is_exactly_1),
        cmocka_unit_test(hidden_scores_weigh_exactly_0_and_nan_and_infinite_ones_nan),
        cmocka_unit_test(alpha_is_an_exact_power_of_two_and_0_below_the_limit),
        cmocka_unit_test(a_weight_rescaled_by_alpha_is_the_weight_under_the_later_reference),
        cmocka_unit_test(tanh_is_within_one_ulp_from_subnormal_to_infinite),
        cmocka_unit_test(tanh_is_odd_to_the_bit_and_never_above_one),
        cmocka_unit_test(logsumexp_is_within_one_ulp_and_minus_infinity_without_keys),
        cmocka_unit_test(max_ignores_nan_in_the_new_scores),
        cmocka_unit_test(bits_are_the_same_on_every_target_with_fma_and_at_every_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_reference.c - the reference by numbers that can be checked by hand, one pitfall of the method per test.
 *
 * Most problems here have heads of width 1, no projections, and scores of 0, so that weights are 1 / (number of visible keys).
 * Random problems of every option are in test_reference_random.c, relations between problems in test_reference_relations.c.
 */
#include "../../core/mha.h"
#include "support/random_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static enum mha_error evaluate(const struct mha_problem *p, struct mha_result *r) {
    struct mha_need need;
    struct mha_detail detail;
    if (mha_plan(p, r, 1, &need, &detail) != MHA_OK) fail_msg("refused: %s", detail.field);
    void *workspace = aligned_alloc(MHA_ALIGN, mha_reference_need(p) + MHA_ALIGN);
    assert_non_null(workspace);
    enum mha_error error = mha_reference(p, r, workspace);
    free(workspace);
    return error;
}

/* A result of the wanted parts, computed; random_result_free gives it back. */
static struct mha_result solve(const struct mha_problem *p, unsigned wanted) {
    struct mha_result r = random_result_new(p, wanted, NULL, 0);
    assert_int_equal(evaluate(p, &r), MHA_OK);
    return r;
}

/* h heads of widths d_k and d_v side by side in the inputs and in the output, nothing projected, scores as they are. */
static struct mha_problem heads_of(size_t h, size_t d_k, size_t d_v, size_t n_q, size_t n_k, const void *Q,
                                   const void *K, const void *V) {
    return (struct mha_problem){.B = 1,
                                .n_q = n_q,
                                .n_k = n_k,
                                .h = h,
                                .h_kv = h,
                                .d_k = d_k,
                                .d_v = d_v,
                                .d_q = h * d_k,
                                .d_kin = h * d_k,
                                .d_vin = h * d_v,
                                .d_out = h * d_v,
                                .Q = Q,
                                .K = K,
                                .V = V,
                                .scale = 1};
}

static struct mha_problem unprojected(size_t h, size_t n_q, size_t n_k, const double *Q, const double *K,
                                      const double *V) {
    return heads_of(h, 1, 1, n_q, n_k, Q, K, V);
}

static void assert_near(const double *got, const double *want, size_t n, double tolerance) {
    for (size_t x = 0; x < n; x++)
        if (!(fabs(got[x] - want[x]) <= tolerance)) fail_msg("[%zu] is %.17g, should be %.17g", x, got[x], want[x]);
}

static void assert_all(const double *got, double want, size_t n) {
    for (size_t x = 0; x < n; x++)
        if (got[x] != want) fail_msg("[%zu] is %.17g, should be %.17g", x, got[x], want);
}

/* Which weights are above 0, as '1' and '0', rows apart by ' '. */
static void assert_pattern(const double *weights, size_t n_kv, const char *pattern) {
    size_t rows = (strlen(pattern) + 1) / (n_kv + 1);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < n_kv; j++) {
            double w = weights[i * n_kv + j];
            bool visible = pattern[i * (n_kv + 1) + j] == '1';
            if (!(visible ? w > 0 : w == 0)) fail_msg("weight [%zu,%zu] is %g, pattern %s", i, j, w, pattern);
        }
}

static const double zeros[64];

/* ---- the worked example ------------------------------------------------------------------------------------------- */

static const double example_X[] = {1, 0, 1, 0, 0, 1, 0, 1};
static const double example_W[] = {.1, .2, .3, .4, .5, .6, .7, .8, .2, .1, .4, .3, .6, .5, .8, .7};

static struct mha_problem example(void) {
    struct mha_problem p = heads_of(2, 2, 2, 2, 2, example_X, example_X, example_X);
    p.weights = (struct mha_weights){.W_q = example_W, .W_k = example_W, .W_v = example_W};
    p.scale = 1 / sqrt(2);
    return p;
}

static void the_worked_example_step_by_step(void **unused) {
    (void)unused;
    struct mha_problem p = example();
    struct mha_result r = solve(&p, WANT_ALL);

    const double projected[] = {.3, .3, 1.1, 1.1,
                                .7, .7, 1.5, 1.5}; /* head 1: columns 1 and 2, head 2: columns 3 and 4 */
    assert_near(r.proj_Q, projected, 8, 1e-15);
    assert_near(r.proj_K, projected, 8, 1e-15);
    assert_near(r.proj_V, projected, 8, 1e-15);
    assert_near(r.present_K, projected, 8, 1e-15);

    const double products[] = {.18, .66, .66, 2.42, .98, 2.1, 2.1, 4.5};
    double scores[8], weights[8], heads[8];
    for (size_t x = 0; x < 8; x++) scores[x] = products[x] / sqrt(2);
    assert_near(r.scores, scores, 8, 1e-15);
    const double rounded_scores[] = {.127, .467, .467, 1.711};
    assert_near(r.scores, rounded_scores, 4, 6e-4);

    /* a softmax over two keys is a logistic function of the difference */
    for (size_t row = 0; row < 4; row++) {
        weights[2 * row] = 1 / (1 + exp(scores[2 * row + 1] - scores[2 * row]));
        weights[2 * row + 1] = 1 - weights[2 * row];
    }
    const double rounded_weights[] = {.416, .584, .224, .776};
    assert_near(r.attention, weights, 8, 1e-15);
    assert_near(r.attention, rounded_weights, 4, 6e-4);

    for (size_t row = 0; row < 4; row++)
        for (size_t c = 0; c < 2; c++)
            heads[2 * row + c] =
                weights[2 * row] * projected[4 * (row / 2)] + weights[2 * row + 1] * projected[4 * (row / 2) + 2];
    const double rounded_head_1[] = {.767, .767, .921, .921};
    assert_near(r.heads, heads, 8, 1e-15);
    assert_near(r.heads, rounded_head_1, 4, 6e-4);

    const double concat[] = {heads[0], heads[1], heads[4], heads[5], heads[2], heads[3], heads[6], heads[7]};
    assert_near(r.concat, concat, 8, 1e-15);
    assert_near(r.output, concat, 8, 1e-15);
    assert_int_equal(r.masked_rows, 0);
    random_result_free(&r);
}

static void the_output_projection_mixes_the_heads(void **unused) {
    (void)unused;
    struct mha_problem p = example();
    const double swap_and_sum[] = {0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1}; /* columns: c2, 0, c0, sum */
    const double identity[] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    struct mha_result plain = random_result_new(&p, WANT_OUTPUT, NULL, 0);
    assert_int_equal(evaluate(&p, &plain), MHA_OK);
    const double *o = plain.output;

    struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
    p.weights.W_o = identity;
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    assert_near(r.output, o, 8, 0);
    p.weights.W_o = swap_and_sum;
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    for (size_t i = 0; i < 2; i++) {
        const double *row = o + 4 * i;
        const double want[] = {row[2], 0, row[0], row[0] + row[1] + row[2] + row[3]};
        assert_near((double *)r.output + 4 * i, want, 4, 1e-15);
    }
    random_result_free(&plain);
    random_result_free(&r);
}

/* ---- heads ---------------------------------------------------------------------------------------------------------- */

static void heads_are_contiguous_slices(void **unused) {
    (void)unused;
    /* two heads of width 2; V' tells which columns a head owns: (0,1) and (2,3), not (0,2) and (1,3) */
    const double V[] = {10, 11, 20, 21};
    struct mha_problem p = heads_of(2, 2, 2, 1, 1, zeros, zeros, V);
    struct mha_result r = solve(&p, WANT_HEADS | WANT_CONCAT);
    assert_near(r.heads, V, 4, 0);
    assert_near(r.concat, V, 4, 0);
    random_result_free(&r);
}

static void grouped_heads_repeat_and_do_not_tile(void **unused) {
    (void)unused;
    const double V[] = {10, 20}; /* h_kv 2 */
    struct mha_problem p = unprojected(4, 1, 1, zeros, zeros, V);
    p.h_kv = p.d_kin = p.d_vin = 2;
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_near(r.output, (const double[]){10, 10, 20, 20}, 4, 0);
    random_result_free(&r);
}

static void d_k_and_d_v_may_differ(void **unused) {
    (void)unused;
    const double V[] = {1, 2, 3, 5, 6, 7}; /* two keys of width 3 */
    struct mha_problem p = heads_of(1, 2, 3, 1, 2, zeros, zeros, V);
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_near(r.output, (const double[]){3, 4, 5}, 3, 0);
    random_result_free(&r);
}

static void listed_heads_come_in_the_order_of_the_list(void **unused) {
    (void)unused;
    const double Q[] = {0, 1, 2}, K[] = {1, 1, 1, 0, 0, 0}; /* scores of head i: i and 0 */
    const double V[6] = {0};
    struct mha_problem p = unprojected(3, 1, 2, Q, K, V);
    const size_t list[] = {2, 0, 2};
    double w[3];
    for (size_t head = 0; head < 3; head++) w[head] = 1 / (1 + exp(-Q[head]));

    struct mha_result r = random_result_new(&p, WANT_ATTENTION | WANT_SCORES, list, 3);
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    assert_near(r.attention, (const double[]){w[2], 1 - w[2], w[0], 1 - w[0], w[2], 1 - w[2]}, 6, 1e-15);
    assert_near(r.scores, (const double[]){2, 0, 0, 0, 2, 0}, 6, 0);
    random_result_free(&r);

    r = random_result_new(&p, WANT_ATTENTION | WANT_SCORES | WANT_MEAN, list, 2); /* scores are never averaged */
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    assert_near(r.attention, (const double[]){(w[2] + w[0]) / 2, 1 - (w[2] + w[0]) / 2}, 2, 1e-15);
    assert_near(r.scores, (const double[]){2, 0, 0, 0}, 4, 0);
    random_result_free(&r);
}

/* ---- which keys are visible ------------------------------------------------------------------------------------------ */

static void causal_rows_average_what_came_before(void **unused) {
    (void)unused;
    const double V[] = {2, 4, 9};
    struct mha_problem p = unprojected(1, 3, 3, zeros, zeros, V);
    p.causal = true;
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_near(r.output, (const double[]){2, 3, 5}, 3, 1e-15);
    random_result_free(&r);
}

static void cross_attention_has_its_own_keys(void **unused) {
    (void)unused;
    const double Q[] = {0, 100}, K[] = {0, 0, 1}, V[] = {1, 2, 6};
    struct mha_problem p = unprojected(1, 2, 3, Q, K, V);
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_near(r.output, (const double[]){3, 6}, 2, 1e-15);
    random_result_free(&r);
}

/* Causal, window, alignment, cache and lengths against patterns drawn by hand. */
static void positions_follow_the_contract(void **unused) {
    (void)unused;
    enum { OPEN = -1 };
    const struct {
        const char *pattern;
        size_t n_q, n_k, n_past;
        bool causal, bottom_right;
        int left, right; /* both OPEN: no window */
        size_t length;   /* 0: all */
    } rows[] = {
        {"100 110 111", 3, 3, 0, true, false, OPEN, OPEN, 0},
        {"10000 11000", 2, 5, 0, true, false, OPEN, OPEN, 0},       /* top_left, wide           */
        {"11110 11111", 2, 5, 0, true, true, OPEN, OPEN, 0},        /* bottom_right, wide       */
        {"00 00 10 11", 4, 2, 0, true, true, OPEN, OPEN, 0},        /* bottom_right, tall       */
        {"10 11 11 11", 4, 2, 0, true, false, OPEN, OPEN, 0},       /* top_left, tall           */
        {"11100 11110 11111", 3, 3, 2, true, false, OPEN, OPEN, 0}, /* a cache moves top_left   */
        {"11100 11110 11111", 3, 3, 2, true, true, OPEN, OPEN, 0},
        {"1000 1100 0110 0011", 4, 4, 0, true, false, 1, 0, 0},
        {"1100 1110 0111 0011", 4, 4, 0, false, false, 1, 1, 0},
        {"1000 0100 0010 0001", 4, 4, 0, false, false, 0, 0, 0}, /* left 0 keeps itself      */
        {"1111 0111 0011 0001", 4, 4, 0, false, false, 0, OPEN, 0},
        {"1000 1100 1110 1111", 4, 4, 0, false, false, OPEN, 0, 0}, /* same as causal           */
        {"0111 0011", 2, 4, 0, false, true, 1, 2, 0},
        {"0110 0011", 2, 2, 2, true, false, 1, 0, 0},        /* a window over the cache  */
        {"1110 1110", 2, 4, 0, false, false, OPEN, OPEN, 3}, /* length                   */
        {"1000 1100 1100", 3, 4, 0, true, false, OPEN, OPEN, 2},
        {"11000 11100", 2, 5, 0, true, true, OPEN, OPEN, 3}, /* bottom_right of 3 keys   */
        {"0000 0000 1000", 3, 4, 0, true, true, OPEN, OPEN, 1},
        {"0001", 1, 4, 0, false, true, 0, 0, 4},
    };
    for (size_t k = 0; k < COUNT(rows); k++) {
        struct mha_problem p = unprojected(1, rows[k].n_q, rows[k].n_k, zeros, zeros, zeros);
        const size_t n_kv = rows[k].n_k + rows[k].n_past, length = rows[k].length;
        p.n_past = rows[k].n_past;
        p.past_K = p.past_V = zeros;
        p.causal = rows[k].causal;
        p.alignment = rows[k].bottom_right ? MHA_BOTTOM_RIGHT : MHA_TOP_LEFT;
        p.window = rows[k].left != OPEN || rows[k].right != OPEN;
        p.window_left = rows[k].left == OPEN ? MHA_WINDOW_OPEN : (size_t)rows[k].left;
        p.window_right = rows[k].right == OPEN ? MHA_WINDOW_OPEN : (size_t)rows[k].right;
        p.key_lengths = length > 0 ? &length : NULL;
        struct mha_result r = solve(&p, WANT_ATTENTION);
        assert_pattern(r.attention, n_kv, rows[k].pattern);
        random_result_free(&r);
    }
}

static void a_window_may_reach_any_distance(void **unused) {
    (void)unused;
    const size_t far[] = {3, 1000, SIZE_MAX / 2, SIZE_MAX - 1, MHA_WINDOW_OPEN};
    for (size_t k = 0; k < COUNT(far); k++) {
        struct mha_problem p = unprojected(1, 3, 3, zeros, zeros, zeros);
        p.window = true;
        p.window_left = p.window_right = far[k];
        struct mha_result r = solve(&p, WANT_ATTENTION);
        assert_pattern(r.attention, 3, "111 111 111");
        random_result_free(&r);
    }
}

static void masks_broadcast_over_every_axis(void **unused) {
    (void)unused;
    /* B 2, h 2, n_q 2, n_kv 2; pattern of [b][head] rows */
    const uint8_t bytes[16] = {1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0, 200, 1};
    const struct {
        size_t dim[4];
        const char *pattern;
    } rows[] = {
        {{2, 2, 2, 2}, "11 10 01 11 10 11 00 11"}, {{1, 2, 2, 2}, "11 10 01 11 11 10 01 11"},
        {{2, 1, 2, 2}, "11 10 11 10 01 11 01 11"}, {{2, 2, 1, 2}, "11 11 10 10 01 01 11 11"},
        {{2, 2, 2, 1}, "11 11 11 00 00 11 11 11"}, {{1, 1, 1, 2}, "11 11 11 11 11 11 11 11"},
        {{1, 1, 2, 2}, "11 10 11 10 11 10 11 10"}, {{1, 1, 1, 1}, "11 11 11 11 11 11 11 11"},
    };
    double additive[16];
    for (size_t x = 0; x < 16; x++) additive[x] = bytes[x] ? 0.25 : -INFINITY;
    for (size_t k = 0; k < COUNT(rows); k++)
        for (int kind = MHA_MASK_BOOL; kind <= MHA_MASK_ADDITIVE; kind++) {
            struct mha_problem p = unprojected(2, 2, 2, zeros, zeros, zeros);
            p.B = 2;
            p.attn_mask = (struct mha_mask){.kind = (enum mha_mask_kind)kind,
                                            .data = kind == MHA_MASK_BOOL ? (const void *)bytes : additive};
            memcpy(p.attn_mask.dim, rows[k].dim, sizeof rows[k].dim);
            struct mha_result r = solve(&p, WANT_ATTENTION);
            assert_pattern(r.attention, 2, rows[k].pattern);
            random_result_free(&r);
        }
}

static void key_masks_belong_to_a_sample_or_to_all(void **unused) {
    (void)unused;
    const uint8_t keys[] = {1, 0, 1, 0, 1, 1};
    struct mha_problem p = unprojected(1, 1, 3, zeros, zeros, zeros);
    p.B = 2;
    p.key_mask = keys;
    p.key_mask_B = 2;
    struct mha_result r = solve(&p, WANT_ATTENTION);
    assert_pattern(r.attention, 3, "101 011");
    p.key_mask_B = 1;
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    assert_pattern(r.attention, 3, "101 101");
    random_result_free(&r);
}

static void everything_that_hides_intersects(void **unused) {
    (void)unused;
    const uint8_t attn[] = {1, 1, 0, 1}, keys[] = {1, 0, 1, 1};
    const size_t length = 3;
    struct mha_problem p = unprojected(1, 4, 4, zeros, zeros, zeros);
    p.causal = true;
    p.window = true;
    p.window_left = 2;
    p.window_right = MHA_WINDOW_OPEN;
    p.attn_mask = (struct mha_mask){MHA_MASK_BOOL, attn, {1, 1, 1, 4}};
    p.key_mask = keys;
    p.key_mask_B = 1;
    p.key_lengths = &length;
    struct mha_result r = solve(&p, WANT_ATTENTION | WANT_LOGSUMEXP);
    assert_pattern(r.attention, 4, "1000 1000 1000 0000");
    assert_int_equal(r.masked_rows, 1);
    assert_true(((double *)r.logsumexp)[3] == -INFINITY);
    random_result_free(&r);
}

static void an_additive_mask_adds_to_the_scaled_score(void **unused) {
    (void)unused;
    const double mask[] = {log(3), 0}, V[] = {4, 8};
    struct mha_problem p = unprojected(1, 1, 2, zeros, zeros, V);
    p.scale = 0.125; /* must not scale the mask */
    p.attn_mask = (struct mha_mask){MHA_MASK_ADDITIVE, mask, {1, 1, 1, 2}};
    struct mha_result r = solve(&p, WANT_ALL);
    assert_near(r.attention, (const double[]){.75, .25}, 2, 1e-15);
    assert_near(r.output, (const double[]){5}, 1, 1e-15);
    assert_near(r.scores, (const double[]){0, 0}, 2, 0); /* scores are those before masks */
    random_result_free(&r);
}

/* ---- rows without keys, hidden poison ------------------------------------------------------------------------------- */

static void a_row_without_keys_gives_b_o_and_not_nan(void **unused) {
    (void)unused;
    const double V[] = {5, 7}, W_o[] = {3}, b_o[] = {.5}, sink[] = {2};
    const uint8_t mask[] = {0, 0, 1, 1};
    struct mha_problem p = unprojected(1, 2, 2, zeros, zeros, V);
    p.weights.W_o = W_o;
    p.weights.b_o = b_o;
    p.attn_mask = (struct mha_mask){MHA_MASK_BOOL, mask, {1, 1, 2, 2}};
    for (int with_sink = 0; with_sink < 2; with_sink++) {
        p.sinks = with_sink ? sink : NULL;
        struct mha_result r = solve(&p, WANT_ALL);
        assert_true(((double *)r.output)[0] == .5);
        assert_true(((double *)r.heads)[0] == 0);
        assert_true(((double *)r.logsumexp)[0] == -INFINITY);
        assert_pattern(r.attention, 2, "00 11");
        assert_int_equal(r.masked_rows, 1);
        assert_int_equal(r.masked_first[2], 0);
        random_result_free(&r);
    }
}

static void masked_rows_are_counted_per_head_and_the_first_is_named(void **unused) {
    (void)unused;
    const uint8_t mask[] = {1, 1, 0, 1, 1, 0, 0, 0}; /* [2, 2, 2, 1] */
    struct mha_problem p = unprojected(2, 2, 1, zeros, zeros, zeros);
    p.B = 2;
    p.attn_mask = (struct mha_mask){MHA_MASK_BOOL, mask, {2, 2, 2, 1}};
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_int_equal(r.masked_rows, 4);
    assert_memory_equal(r.masked_first, ((const size_t[]){0, 1, 0}), sizeof r.masked_first);
    random_result_free(&r);
}

static void a_hidden_key_may_hold_anything(void **unused) {
    (void)unused;
    const double poison[] = {NAN, INFINITY, -INFINITY, 1e308};
    const uint8_t mask[] = {1, 0};
    for (size_t k = 0; k < COUNT(poison); k++) {
        const double K[] = {1, poison[k]}, V[] = {2, poison[k]}, Q[] = {10}, W[] = {10};
        struct mha_problem p = unprojected(1, 1, 2, Q, K, V);
        p.weights.W_k = p.weights.W_v = W;
        p.attn_mask = (struct mha_mask){MHA_MASK_BOOL, mask, {1, 1, 1, 2}};
        struct mha_result r = solve(&p, WANT_ALL);
        assert_true(((double *)r.output)[0] == 20);
        assert_true(((double *)r.attention)[0] == 1 && ((double *)r.attention)[1] == 0);
        assert_true(isfinite(((double *)r.scores)[1]) == 0); /* as computed */
        random_result_free(&r);
    }
}

static void empty_dimensions_are_legal(void **unused) {
    (void)unused;
    const double b_o[] = {1, 2, 3};
    struct mha_problem p = unprojected(3, 2, 0, zeros, zeros, zeros);
    p.weights.b_o = b_o;
    struct mha_result r = solve(&p, WANT_ALL); /* no keys: context 0, output b_o */
    assert_near(r.output, (const double[]){1, 2, 3, 1, 2, 3}, 6, 0);
    assert_int_equal(r.masked_rows, 6);
    random_result_free(&r);

    p.n_q = 0; /* no queries */
    r = solve(&p, WANT_ALL);
    assert_int_equal(r.masked_rows, 0);
    random_result_free(&r);

    p = unprojected(1, 2, 2, zeros, zeros, zeros);
    p.B = 0; /* no samples */
    r = solve(&p, WANT_ALL);
    random_result_free(&r);

    p = unprojected(1, 0, 0, zeros, zeros, zeros);
    p.B = (size_t)1 << 50; /* very many samples of nothing take no time */
    r = solve(&p, WANT_ALL);
    assert_int_equal(r.masked_rows, 0);
    random_result_free(&r);

    p = unprojected(1, 1, 2, zeros, zeros, zeros); /* inputs of width 0: V' is b_v */
    p.d_q = p.d_kin = p.d_vin = 0;
    p.weights.W_q = p.weights.W_k = p.weights.W_v = zeros;
    p.weights.b_v = b_o + 2;
    r = solve(&p, WANT_ALL);
    assert_true(((double *)r.output)[0] == 3);
    random_result_free(&r);
}

/* ---- scores and softmax --------------------------------------------------------------------------------------------- */

static void the_softcap_comes_after_the_scale_and_before_the_mask(void **unused) {
    (void)unused;
    const double Q[] = {10}, K[] = {1, 0}, V[] = {1, 0}, mask[] = {-3, 0};
    struct mha_problem p = unprojected(1, 1, 2, Q, K, V);
    p.scale = 0.5;
    p.softcap = 2;
    p.attn_mask = (struct mha_mask){MHA_MASK_ADDITIVE, mask, {1, 1, 1, 2}};
    struct mha_result r = solve(&p, WANT_SCORES | WANT_OUTPUT);
    double capped = 2 * tanh(5 / 2.0);
    assert_near(r.scores, (const double[]){capped, 0}, 2, 1e-15);
    assert_near(r.output, (const double[]){1 / (1 + exp(3 - capped))}, 1, 1e-15);
    random_result_free(&r);
}

static void a_sink_takes_weight_and_gives_nothing(void **unused) {
    (void)unused;
    const double V[] = {6, 6, 6, 6}, sinks[] = {0, log(2)};
    struct mha_problem p = unprojected(2, 1, 2, zeros, zeros, V);
    p.sinks = sinks;
    struct mha_result r = solve(&p, WANT_ALL);
    assert_near(r.attention, (const double[]){1 / 3., 1 / 3., .25, .25}, 4, 1e-15);
    assert_near(r.output, (const double[]){4, 3}, 2, 1e-14);
    assert_near(r.logsumexp, (const double[]){log(3), log(4)}, 2, 1e-15);
    random_result_free(&r);
}

static void a_sink_of_minus_infinity_is_no_sink(void **unused) {
    (void)unused;
    const double V[] = {6, 8}, sinks[] = {-INFINITY};
    struct mha_problem p = unprojected(1, 1, 2, zeros, zeros, V);
    p.sinks = sinks;
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_near(r.output, (const double[]){7}, 1, 1e-15);
    random_result_free(&r);
}

static void scores_of_any_size_survive_the_softmax(void **unused) {
    (void)unused;
    const double Q[] = {1000, -1e5, 1e300, 0}, K[] = {1, 0}, V[] = {7, 9};
    struct mha_problem p = unprojected(1, 4, 2, Q, K, V);
    struct mha_result r = solve(&p, WANT_OUTPUT | WANT_LOGSUMEXP);
    assert_near(r.output, (const double[]){7, 9, 7, 8}, 4, 0);
    assert_near(r.logsumexp, (const double[]){1000, 0, 1e300, log(2)}, 4, 1e-15);

    const double very_negative[] = {-1e5, -1e5}; /* both keys equally far below any sentinel */
    p.Q = (const double[]){1, 1, 1, 1};
    p.K = very_negative;
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    assert_near(r.output, (const double[]){8, 8, 8, 8}, 4, 0);
    random_result_free(&r);
}

static void a_product_that_fits_once_scaled_does_not_overflow(void **unused) {
    (void)unused;
    float Q[16], K[32], V[32] = {0};
    for (size_t x = 0; x < 16; x++) Q[x] = K[x] = K[16 + x] = 5e18f; /* 16 * 5e18^2 = 4e38 is too much for float32 */
    V[0] = 2;
    V[16] = 4;
    struct mha_problem p = heads_of(1, 16, 16, 1, 2, Q, K, V);
    p.dtype = MHA_F32;
    p.scale = 0.25;
    struct mha_result r = solve(&p, WANT_OUTPUT);
    assert_true(((float *)r.output)[0] == 3);
    assert_true(((float *)r.output)[1] == 0);

    p.d_k = p.d_q = p.d_kin = 1; /* 3e19^2 = 9e38 is too much for one product already */
    Q[0] = K[0] = K[1] = 3e19f;
    assert_int_equal(evaluate(&p, &r), MHA_OK);
    assert_true(((float *)r.output)[0] == 3);
    random_result_free(&r);
}

/* ---- weights, biases, cache ------------------------------------------------------------------------------------------- */

static void every_bias_goes_to_its_own_place(void **unused) {
    (void)unused;
    const double b_q[] = {1}, b_k[] = {10}, b_v[] = {100}, b_o[] = {1000}, W_o[] = {2}, Q[] = {2}, K[] = {3}, V[] = {4};
    struct mha_problem p = unprojected(1, 1, 1, Q, K, V);
    p.weights = (struct mha_weights){.b_q = b_q, .b_k = b_k, .b_v = b_v, .b_o = b_o, .W_o = W_o};
    struct mha_result r = solve(&p, WANT_ALL);
    assert_all(r.proj_Q, 3, 1);
    assert_all(r.proj_K, 13, 1);
    assert_all(r.proj_V, 104, 1);
    assert_all(r.scores, 39, 1);
    assert_all(r.output, 1208, 1);
    random_result_free(&r);
}

/* x [1, 2] times W (2 inputs, 2 heads, width 2) with W(e, g, c) = 100 e + 10 g + c, written in each layout. */
static void each_layout_reads_the_same_weights(void **unused) {
    (void)unused;
    const double X[] = {1, 2};
    const double in_out[] = {0, 1, 10, 11, 100, 101, 110, 111};      /* [2, 4] */
    const double out_in[] = {0, 100, 1, 101, 10, 110, 11, 111};      /* [4, 2] */
    const double head_in_out[] = {0, 1, 100, 101, 10, 11, 110, 111}; /* [2, 2, 2] */
    const double *const W[] = {in_out, out_in, head_in_out, in_out};
    const double W_o[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                 W_o_out_in[] = {1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12};
    const double projected[] = {200, 203, 230, 233};
    for (int layout = MHA_IN_OUT; layout <= MHA_IN_HEAD_OUT; layout++) {
        struct mha_problem p = heads_of(2, 2, 2, 1, 1, X, X, X);
        p.d_q = p.d_kin = p.d_vin = 2;
        p.d_out = 3;
        p.scale = 1e-6;
        p.weights = (struct mha_weights){.layout = (enum mha_layout)layout,
                                         .W_q = W[layout],
                                         .W_k = W[layout],
                                         .W_v = W[layout],
                                         .W_o = layout == MHA_OUT_IN ? W_o_out_in : W_o};
        struct mha_result r = solve(&p, WANT_PROJECTIONS | WANT_OUTPUT);
        assert_near(r.proj_Q, projected, 4, 0);
        assert_near(r.proj_K, projected, 4, 0);
        assert_near(r.proj_V, projected, 4, 0);
        double want[3];
        for (size_t o = 0; o < 3; o++) want[o] = 200 * W_o[o] + 203 * W_o[3 + o] + 230 * W_o[6 + o] + 233 * W_o[9 + o];
        assert_near(r.output, want, 3, 0);
        random_result_free(&r);
    }
}

static void a_cache_comes_before_the_new_keys(void **unused) {
    (void)unused;
    const double past_K[] = {7, 8, 70, 80}, past_V[] = {1, 2, 10, 20}; /* [h_kv 2, n_past 2, 1] */
    const double K[] = {9, 90}, V[] = {6, 60};                         /* [n_k 1, 2] */
    struct mha_problem p = unprojected(2, 1, 1, zeros, K, V);
    p.n_past = 2;
    p.past_K = past_K;
    p.past_V = past_V;
    struct mha_result r = solve(&p, WANT_ALL);
    assert_near(r.present_K, (const double[]){7, 8, 9, 70, 80, 90}, 6, 0);
    assert_near(r.present_V, (const double[]){1, 2, 6, 10, 20, 60}, 6, 0);
    assert_near(r.proj_K, (const double[]){9, 90}, 2, 0); /* new ones only */
    assert_near(r.output, (const double[]){3, 30}, 2, 1e-14);
    random_result_free(&r);
}

/* ---- not finite -------------------------------------------------------------------------------------------------------- */

/* 1 sample, 2 heads of width 1, 2 queries, 3 keys; key 2 is hidden from all. What each row breaks, and what is said. */
struct breakage {
    const char *field;
    size_t rank, index[4];
    double Q[4], K[6], V[6], W_o[4], b_o[2], mask[6], sinks[2];
    unsigned wanted;
};

static const struct breakage breakages[] = {
    {"projections.Q", 4, {0, 0, 1, 0}, .Q = {0, NAN, NAN, 0}, .wanted = WANT_OUTPUT},
    {"projections.K", 4, {0, 0, 1, 0}, .K = {0, 0, INFINITY, 0, NAN, NAN}, .V = {NAN}, .wanted = WANT_OUTPUT},
    {"projections.V", 4, {0, 1, 0, 0}, .V = {0, -INFINITY, 0, 0, NAN, NAN}, .wanted = WANT_OUTPUT},
    {NULL, 0, {0}, .V = {0, -INFINITY, 0, 0, NAN, NAN}, .wanted = WANT_ATTENTION}, /* V does not matter for the map */
    {"projections.V", 4, {0, 1, 0, 0}, .V = {0, -INFINITY}, .wanted = WANT_PRESENT},
    {"scores", 4, {0, 1, 1, 0}, .Q = {0, 0, 0, 1e200}, .K = {0, 1e200, 0, 0, 1e300, 1e300}, .wanted = WANT_OUTPUT},
    {"scores", 4, {0, 0, 0, 1}, .Q = {-1e200, 0, 0, 0}, .K = {0, 0, 1e200}, .wanted = WANT_OUTPUT}, /* to -infinity */
    {NULL, 0, {0}, .Q = {-1e200, 0, 0, 0}, .K = {0, 0, 0, 0, 1e200}, .wanted = WANT_ALL},           /* a hidden one  */
    {NULL, 0, {0}, .Q = {-1e200, 0, 0, 0}, .K = {0, 0, 1e200}, .wanted = WANT_PROJECTIONS},
    {"scores", 4, {0, 0, 1, 1}, .mask = {0, 0, 0, 0, NAN, 0}, .wanted = WANT_LOGSUMEXP},
    {"scores", 4, {0, 0, 1, 1}, .mask = {0, 0, 0, 0, INFINITY, 0}, .wanted = WANT_ATTENTION},
    {"scores", 3, {0, 1, 0}, .sinks = {0, NAN}, .wanted = WANT_OUTPUT},
    {"scores", 3, {0, 0, 0}, .sinks = {INFINITY, 0}, .wanted = WANT_OUTPUT},
    {"output", 3, {0, 0, 1}, .b_o = {0, NAN}, .wanted = WANT_OUTPUT},
    {"output",
     3,
     {0, 1, 0},
     .V = {1e300, 0, 1e300, 0},
     .Q = {0, 0, 0, 0},
     .W_o = {1e10, 0, 0, 0},
     .mask = {-INFINITY, -INFINITY},
     .wanted = WANT_ALL},
    {NULL, 0, {0}, .b_o = {0, NAN}, .wanted = WANT_HEADS | WANT_SCORES},
};

static void what_is_not_finite_is_named_by_its_first_stage(void **unused) {
    (void)unused;
    for (size_t k = 0; k < COUNT(breakages); k++) {
        const struct breakage *x = &breakages[k];
        struct mha_problem p = unprojected(2, 2, 3, x->Q, x->K, x->V);
        double mask[6];
        memcpy(mask, x->mask, sizeof mask);
        mask[2] = mask[5] = -INFINITY;
        p.attn_mask = (struct mha_mask){MHA_MASK_ADDITIVE, mask, {1, 1, 2, 3}};
        p.weights.W_o = x->W_o;
        p.weights.b_o = x->b_o;
        p.sinks = x->sinks;
        struct mha_result r = random_result_new(&p, x->wanted, NULL, 0);
        enum mha_error error = evaluate(&p, &r);
        if (error != (x->field != NULL ? MHA_ERR_NON_FINITE : MHA_OK) || error != r.detail.code)
            fail_msg("row %zu gave %d at %s", k, error, r.detail.field != NULL ? r.detail.field : "nothing");
        if (x->field != NULL) {
            assert_string_equal(r.detail.field, x->field);
            assert_int_equal(r.detail.rank, x->rank);
            assert_memory_equal(r.detail.index, x->index, sizeof x->index);
        }
        random_result_free(&r);
    }
}

static void a_cache_that_is_not_finite_is_named_by_what_it_breaks(void **unused) {
    (void)unused;
    const double good[] = {1, 1, 1, 1}, bad[] = {1, 1, 1, NAN}; /* [h_kv 2, n_past 2, 1] */
    struct mha_problem p = unprojected(2, 1, 1, zeros, zeros, zeros);
    p.n_past = 2;
    for (int of_V = 0; of_V < 2; of_V++) {
        p.past_K = of_V ? good : bad;
        p.past_V = of_V ? bad : good;
        struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
        assert_int_equal(evaluate(&p, &r), MHA_ERR_NON_FINITE);
        assert_string_equal(r.detail.field, of_V ? "heads" : "scores");
        assert_memory_equal(r.detail.index, ((const size_t[]){0, 1, 0, of_V ? 0 : 1}), sizeof r.detail.index);
        random_result_free(&r);
    }
}

static void an_overflow_that_the_softcap_would_hide_is_an_error(void **unused) {
    (void)unused;
    const double Q[] = {1e200, -1e200}, K[] = {1e200, 1e200}, V[] = {1, 1}; /* 1e400 - 1e400 on two columns */
    struct mha_problem p = unprojected(1, 1, 1, Q, K, V);
    p.d_k = p.d_q = p.d_kin = 2;
    p.softcap = 10;
    struct mha_result r = random_result_new(&p, WANT_OUTPUT, NULL, 0);
    assert_int_equal(evaluate(&p, &r), MHA_ERR_NON_FINITE);
    assert_string_equal(r.detail.field, "scores");
    p.Q = (const double[]){1e200, 1};
    assert_int_equal(evaluate(&p, &r), MHA_ERR_NON_FINITE);
    random_result_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worked_example_step_by_step),
        cmocka_unit_test(the_output_projection_mixes_the_heads),
        cmocka_unit_test(heads_are_contiguous_slices),
        cmocka_unit_test(grouped_heads_repeat_and_do_not_tile),
        cmocka_unit_test(d_k_and_d_v_may_differ),
        cmocka_unit_test(listed_heads_come_in_the_order_of_the_list),
        cmocka_unit_test(causal_rows_average_what_came_before),
        cmocka_unit_test(cross_attention_has_its_own_keys),
        cmocka_unit_test(positions_follow_the_contract),
        cmocka_unit_test(a_window_may_reach_any_distance),
        cmocka_unit_test(masks_broadcast_over_every_axis),
        cmocka_unit_test(key_masks_belong_to_a_sample_or_to_all),
        cmocka_unit_test(everything_that_hides_intersects),
        cmocka_unit_test(an_additive_mask_adds_to_the_scaled_score),
        cmocka_unit_test(a_row_without_keys_gives_b_o_and_not_nan),
        cmocka_unit_test(masked_rows_are_counted_per_head_and_the_first_is_named),
        cmocka_unit_test(a_hidden_key_may_hold_anything),
        cmocka_unit_test(empty_dimensions_are_legal),
        cmocka_unit_test(the_softcap_comes_after_the_scale_and_before_the_mask),
        cmocka_unit_test(a_sink_takes_weight_and_gives_nothing),
        cmocka_unit_test(a_sink_of_minus_infinity_is_no_sink),
        cmocka_unit_test(scores_of_any_size_survive_the_softmax),
        cmocka_unit_test(a_product_that_fits_once_scaled_does_not_overflow),
        cmocka_unit_test(every_bias_goes_to_its_own_place),
        cmocka_unit_test(each_layout_reads_the_same_weights),
        cmocka_unit_test(a_cache_comes_before_the_new_keys),
        cmocka_unit_test(what_is_not_finite_is_named_by_its_first_stage),
        cmocka_unit_test(a_cache_that_is_not_finite_is_named_by_what_it_breaks),
        cmocka_unit_test(an_overflow_that_the_softcap_would_hide_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

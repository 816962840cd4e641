/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_check.c - what mha_plan and mha_layer_new refuse, each code with the input that triggers it; hostile sizes;
 * and that what was planned is enough: a run in exactly need.workspace bytes, between guard bytes.
 */
#include "../../core/check.h"
#include "../../core/visible.h"
#include "support/random_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const double numbers[64] = {1};
static const uint8_t flags[64] = {1};

/* Everything at once, and all right: B 2, n_q 3, n_k 4, n_past 1, h 4, h_kv 2, d_k 2, d_v 3. Tensors are never read here. */
static struct mha_problem good(void) {
    static const size_t lengths[] = {5, 2};
    return (struct mha_problem){.B = 2,
                                .n_q = 3,
                                .n_k = 4,
                                .n_past = 1,
                                .h = 4,
                                .h_kv = 2,
                                .d_k = 2,
                                .d_v = 3,
                                .d_q = 5,
                                .d_kin = 6,
                                .d_vin = 7,
                                .d_out = 8,
                                .Q = numbers,
                                .K = numbers,
                                .V = numbers,
                                .past_K = numbers,
                                .past_V = numbers,
                                .weights = {.W_q = numbers, .W_k = numbers, .W_v = numbers, .W_o = numbers},
                                .scale = 1,
                                .attn_mask = {MHA_MASK_BOOL, flags, {2, 1, 3, 5}},
                                .key_mask = flags,
                                .key_mask_B = 2,
                                .key_lengths = lengths,
                                .sinks = numbers};
}

/* ---- each refusal ----------------------------------------------------------------------------------------------------- */

/* One change to the good problem, and what is said to it. */
struct refusal {
    void (*change)(struct mha_problem *p, struct mha_result *r, size_t *threads);
    enum mha_error code;
    const char *field;
    size_t expected, actual;
};

#define CHANGE(name, statement)                                                                                        \
    static void name(struct mha_problem *p, struct mha_result *r, size_t *threads) {                                   \
        (void)p, (void)r, (void)threads;                                                                               \
        statement;                                                                                                     \
    }

static const size_t too_long[] = {5, 6}, no_such_head[] = {0, 4};

CHANGE(h_0, p->h = 0)
CHANGE(h_kv_0, p->h_kv = 0)
CHANGE(d_k_0, p->d_k = 0)
CHANGE(d_v_0, p->d_v = 0)
CHANGE(h_kv_3, p->h_kv = 3)
CHANGE(no_W_q, p->weights.W_q = NULL)
CHANGE(no_W_k, p->weights.W_k = NULL)
CHANGE(no_W_v, p->weights.W_v = NULL)
CHANGE(no_W_o, p->weights.W_o = NULL)
CHANGE(mask_B, p->attn_mask.dim[0] = 3)
CHANGE(mask_n_kv, p->attn_mask.dim[3] = 4)
CHANGE(mask_0, p->attn_mask.dim[1] = 0)
CHANGE(key_mask_B_3, p->key_mask_B = 3)
CHANGE(length_6, p->key_lengths = too_long)
CHANGE(head_4, (r->heads_listed = no_such_head, r->n_heads_listed = 2))
CHANGE(no_Q, p->Q = NULL)
CHANGE(no_K, p->K = NULL)
CHANGE(no_V, p->V = NULL)
CHANGE(no_past_K, p->past_K = NULL)
CHANGE(no_past_V, p->past_V = NULL)
CHANGE(no_mask, p->attn_mask.data = NULL)
CHANGE(dtype_2, p->dtype = (enum mha_dtype)2)
CHANGE(layout_4, p->weights.layout = (enum mha_layout)4)
CHANGE(alignment_2, p->alignment = (enum mha_alignment)2)
CHANGE(kind_3, p->attn_mask.kind = (enum mha_mask_kind)3)
CHANGE(scale_nan, p->scale = NAN)
CHANGE(scale_infinite, p->scale = -INFINITY)
CHANGE(scale_too_large, (p->dtype = MHA_F32, p->scale = 1e39))
CHANGE(softcap_negative, p->softcap = -1)
CHANGE(softcap_nan, p->softcap = NAN)
CHANGE(softcap_infinite, p->softcap = INFINITY)
CHANGE(softcap_too_small, (p->dtype = MHA_F32, p->softcap = 1e-60))
CHANGE(mean_of_none, (r->attention_mean = true, r->heads_listed = no_such_head, r->n_heads_listed = 0))
CHANGE(no_threads, *threads = 0)

static const struct refusal refusals[] = {
    {h_0, MHA_ERR_DIMENSION, "h", 1, 0},
    {h_kv_0, MHA_ERR_DIMENSION, "h_kv", 1, 0},
    {d_k_0, MHA_ERR_DIMENSION, "d_k", 1, 0},
    {d_v_0, MHA_ERR_DIMENSION, "d_v", 1, 0},
    {h_kv_3, MHA_ERR_DIMENSION, "h_kv", 4, 3},
    {no_W_q, MHA_ERR_DIMENSION, "d_q", 8, 5},
    {no_W_k, MHA_ERR_DIMENSION, "d_kin", 4, 6},
    {no_W_v, MHA_ERR_DIMENSION, "d_vin", 6, 7},
    {no_W_o, MHA_ERR_DIMENSION, "d_out", 12, 8},
    {mask_B, MHA_ERR_DIMENSION, "attn_mask", 2, 3},
    {mask_n_kv, MHA_ERR_DIMENSION, "attn_mask", 5, 4},
    {mask_0, MHA_ERR_DIMENSION, "attn_mask", 4, 0},
    {key_mask_B_3, MHA_ERR_DIMENSION, "key_mask", 2, 3},
    {length_6, MHA_ERR_DIMENSION, "key_lengths", 5, 6},
    {head_4, MHA_ERR_DIMENSION, "attention_heads", 4, 4},
    {no_Q, MHA_ERR_POINTER, "Q", 0, 0},
    {no_K, MHA_ERR_POINTER, "K", 0, 0},
    {no_V, MHA_ERR_POINTER, "V", 0, 0},
    {no_past_K, MHA_ERR_POINTER, "past_K", 0, 0},
    {no_past_V, MHA_ERR_POINTER, "past_V", 0, 0},
    {no_mask, MHA_ERR_POINTER, "attn_mask", 0, 0},
    {dtype_2, MHA_ERR_OPTION, "dtype", 0, 0},
    {layout_4, MHA_ERR_OPTION, "weight_layout", 0, 0},
    {alignment_2, MHA_ERR_OPTION, "causal_alignment", 0, 0},
    {kind_3, MHA_ERR_OPTION, "attn_mask", 0, 0},
    {scale_nan, MHA_ERR_OPTION, "scale", 0, 0},
    {scale_infinite, MHA_ERR_OPTION, "scale", 0, 0},
    {scale_too_large, MHA_ERR_OPTION, "scale", 0, 0},
    {softcap_negative, MHA_ERR_OPTION, "softcap", 0, 0},
    {softcap_nan, MHA_ERR_OPTION, "softcap", 0, 0},
    {softcap_infinite, MHA_ERR_OPTION, "softcap", 0, 0},
    {softcap_too_small, MHA_ERR_OPTION, "softcap", 0, 0},
    {mean_of_none, MHA_ERR_OPTION, "attention_heads", 0, 0},
    {no_threads, MHA_ERR_OPTION, "threads", 0, 0},
};

static void every_refusal_names_its_field_and_both_numbers(void **unused) {
    (void)unused;
    for (size_t k = 0; k < COUNT(refusals); k++) {
        struct mha_problem p = good();
        struct mha_result r = {0};
        struct mha_need need;
        struct mha_detail detail;
        size_t threads = 1;
        assert_int_equal(mha_plan(&p, &r, threads, &need, &detail), MHA_OK);
        assert_int_equal(detail.code, MHA_OK);
        refusals[k].change(&p, &r, &threads);
        enum mha_error error = mha_plan(&p, &r, threads, &need, &detail);
        if (error != refusals[k].code || detail.code != error || strcmp(detail.field, refusals[k].field) != 0 ||
            detail.expected != refusals[k].expected || detail.actual != refusals[k].actual)
            fail_msg("row %zu: %s at %s, %zu %zu", k, mha_error_text(error), detail.field ? detail.field : "nothing",
                     detail.expected, detail.actual);
    }
}

static void an_offending_element_or_axis_is_named(void **unused) {
    (void)unused;
    struct mha_need need;
    struct mha_detail detail;
    struct mha_problem p = good();
    struct mha_result r = {.heads_listed = no_such_head, .n_heads_listed = 2};
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_DIMENSION);
    assert_true(detail.rank == 1 && detail.index[0] == 1);
    r = (struct mha_result){0};
    p.key_lengths = too_long;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_DIMENSION);
    assert_true(detail.rank == 1 && detail.index[0] == 1);
    p = good();
    p.attn_mask.dim[3] = 2;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_DIMENSION);
    assert_true(detail.rank == 1 && detail.index[0] == 3);
}

static void an_empty_tensor_needs_no_pointer(void **unused) {
    (void)unused;
    struct mha_need need;
    struct mha_detail detail;
    struct mha_problem p = good();
    struct mha_result r = {0};
    p.n_q = p.n_k = 0;
    p.Q = p.K = p.V = NULL;
    p.attn_mask.kind = MHA_MASK_NONE;
    p.key_mask = NULL;
    p.key_lengths = NULL;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_OK);
}

static void every_code_has_a_text_of_its_own(void **unused) {
    (void)unused;
    for (int a = MHA_OK; a <= MHA_ERR_NON_FINITE; a++)
        for (int b = MHA_OK; b < a; b++)
            assert_string_not_equal(mha_error_text((enum mha_error)a), mha_error_text((enum mha_error)b));
    assert_string_equal(mha_error_text((enum mha_error)99), "unknown error");
    assert_string_equal(mha_error_text((enum mha_error) - 1), "unknown error");
}

/* ---- hostile sizes ------------------------------------------------------------------------------------------------------- */

/* The dimensions of a problem, to be set one by one. */
static size_t *dimension_of(struct mha_problem *p, size_t k) {
    size_t *const all[] = {&p->B,   &p->n_q, &p->n_k, &p->n_past, &p->h,     &p->h_kv,
                           &p->d_k, &p->d_v, &p->d_q, &p->d_kin,  &p->d_vin, &p->d_out};
    return k < COUNT(all) ? all[k] : NULL;
}

static void sizes_whose_product_overflows_are_refused(void **unused) {
    (void)unused;
    const size_t big = (size_t)1 << 32;
    const size_t pairs[][2] = {{1, 8}, {0, 1}, {0, 2}, {2, 9},  {2, 10}, {3, 6}, {3, 7},
                               {4, 8}, {4, 6}, {4, 7}, {4, 11}, {1, 11}, {0, 3}};
    for (size_t k = 0; k < COUNT(pairs); k++) {
        struct mha_problem p = good();
        struct mha_result r = {0};
        struct mha_detail detail;
        p.attn_mask.kind = MHA_MASK_NONE;
        p.key_mask = NULL;
        p.key_lengths = NULL;
        *dimension_of(&p, pairs[k][0]) = big;
        *dimension_of(&p, pairs[k][1]) = big;
        if (mha_check(&p, &r, 1, &detail) != MHA_ERR_OVERFLOW) fail_msg("pair %zu: %s", k, detail.field);
        assert_int_equal(detail.code, MHA_ERR_OVERFLOW);
        assert_non_null(detail.field);
    }
}

static void a_map_that_overflows_is_refused_only_when_asked_for(void **unused) {
    (void)unused;
    struct mha_problem p = {.B = 1,
                            .n_q = (size_t)1 << 30,
                            .n_k = (size_t)1 << 30,
                            .h = 1,
                            .h_kv = 1,
                            .d_k = 1,
                            .d_v = 1,
                            .d_q = 1,
                            .d_kin = 1,
                            .d_vin = 1,
                            .d_out = 1,
                            .Q = numbers,
                            .K = numbers,
                            .V = numbers,
                            .scale = 1};
    struct mha_result r = {0};
    struct mha_need need;
    struct mha_detail detail;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_OK);
    r.attention = (void *)(uintptr_t)numbers;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_OVERFLOW);
    assert_string_equal(detail.field, "attention");
    r = (struct mha_result){.scores = (void *)(uintptr_t)numbers};
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_OVERFLOW);
    assert_string_equal(detail.field, "scores");
}

static void a_zero_does_not_excuse_the_other_dimensions(void **unused) {
    (void)unused;
    struct mha_problem p = good();
    struct mha_result r = {0};
    struct mha_need need;
    struct mha_detail detail;
    p.attn_mask.kind = MHA_MASK_NONE;
    p.key_mask = NULL;
    p.key_lengths = NULL;
    p.B = 0;
    p.n_q = (size_t)1 << 40;
    p.d_q = (size_t)1 << 40;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_OVERFLOW);
    p = good();
    p.n_past = SIZE_MAX; /* n_kv itself overflows */
    p.attn_mask.kind = MHA_MASK_NONE;
    p.key_mask = NULL;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_OVERFLOW);
    assert_string_equal(detail.field, "n_past");
}

/* Bytes of a tensor by 128-bit arithmetic. */
static unsigned __int128 wide_bytes(size_t a, size_t b, size_t c, size_t d) {
    return (unsigned __int128)a * b * c * d * 8;
}

/* Any dimensions: refused, or everything that mha_run_init lays out fits, by another arithmetic, into what was planned. */
static void what_is_accepted_never_overflows(void **unused) {
    (void)unused;
    const size_t sizes[] = {0,
                            1,
                            2,
                            3,
                            255,
                            65536,
                            (size_t)1 << 20,
                            (size_t)1 << 31,
                            (size_t)1 << 32,
                            ((size_t)1 << 32) + 1,
                            (size_t)1 << 52,
                            (size_t)1 << 59,
                            (size_t)1 << 60,
                            (size_t)1 << 62,
                            (size_t)1 << 63,
                            SIZE_MAX / 8,
                            SIZE_MAX - 63,
                            SIZE_MAX};
    uint64_t state = 42;
    size_t accepted = 0, refused = 0;
    for (int k = 0; k < 200000; k++) {
        struct mha_problem p = good();
        struct mha_result r = {0};
        struct mha_need need;
        struct mha_detail detail;
        p.attn_mask.kind = MHA_MASK_NONE;
        p.key_mask = NULL;
        p.key_lengths = NULL;
        for (size_t x = 0; dimension_of(&p, x) != NULL; x++)
            if (random_below(&state, 3) == 0) *dimension_of(&p, x) = sizes[random_below(&state, COUNT(sizes))];
        size_t threads = 1 + random_below(&state, 4);
        if (mha_check(&p, &r, threads, &detail) != MHA_OK) {
            refused++;
            continue;
        }
        accepted++;
        const size_t n_kv = p.n_past + p.n_k;
        const unsigned __int128 limit = (unsigned __int128)1 << 62;
        assert_true(n_kv >= p.n_past);
        assert_true(wide_bytes(p.B, p.n_q, p.d_q, 1) < limit && wide_bytes(p.B, p.n_k, p.d_kin, 1) < limit);
        assert_true(wide_bytes(p.B, p.h, p.n_q, p.d_k) < limit && wide_bytes(p.B, p.h_kv, n_kv, p.d_k) < limit);
        assert_true(wide_bytes(p.B, p.h_kv, n_kv, p.d_v) < limit && wide_bytes(p.B, p.n_q, p.h, p.d_v) < limit);
        assert_true(wide_bytes(p.d_q, p.h, p.d_k, 1) < limit && wide_bytes(p.h, p.d_v, p.d_out, 1) < limit);
        assert_true(wide_bytes(p.B, p.n_q, p.d_out, 1) < limit && wide_bytes(p.B, p.h, p.n_q, 1) < limit);
        if (mha_plan(&p, &r, threads, &need, &detail) !=
            MHA_OK) { /* the workspace may be too large where no tensor is */
            assert_string_equal(detail.field, "workspace");
            continue;
        }
        assert_true(need.workspace < limit);
        assert_true(need.flops >= 0 && isfinite(need.flops) && need.bytes >= 0 && isfinite(need.bytes));
    }
    assert_true(accepted > 1000 && refused > 1000); /* both sides were tried */
}

/* ---- what was planned is enough ------------------------------------------------------------------------------------------ */

enum { GUARD = 256 };

static void a_run_stays_within_its_workspace(void **unused) {
    (void)unused;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct random_problem *x = random_problem_new(seed, NULL);
        struct mha_result r = random_result_new(&x->problem, seed % 3 == 0 ? WANT_OUTPUT : WANT_ALL, NULL, 0);
        struct mha_need need;
        struct mha_detail detail;
        assert_int_equal(mha_plan(&x->problem, &r, 1, &need, &detail), MHA_OK);
        size_t bytes = (need.workspace + GUARD + MHA_ALIGN - 1) / MHA_ALIGN * MHA_ALIGN;
        unsigned char *workspace = aligned_alloc(MHA_ALIGN, bytes);
        assert_non_null(workspace);
        memset(workspace, 0xA5, bytes);
        struct mha_run *run = mha_run_init(workspace, &x->problem, &r, 1);
        assert_int_equal(mha_run_here(run), MHA_OK);
        for (size_t k = need.workspace; k < bytes; k++) assert_int_equal(workspace[k], 0xA5);
        free(workspace);
        random_result_free(&r);
        random_problem_free(x);
    }
}

/* ---- work ------------------------------------------------------------------------------------------------------------------ */

static void flops_count_visible_work_only(void **unused) {
    (void)unused;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct random_problem *x = random_problem_new(seed, NULL);
        struct mha_problem p = x->problem;
        struct mha_result r = {0};
        struct mha_need need;
        struct mha_detail detail;
        p.weights = (struct mha_weights){0};
        p.d_q = p.h * p.d_k, p.d_kin = p.h_kv * p.d_k, p.d_vin = p.h_kv * p.d_v, p.d_out = p.h * p.d_v;
        assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_OK);
        size_t pairs = 0;
        for (size_t b = 0; b < p.B; b++)
            for (size_t i = 0; i < p.n_q; i++) {
                struct mha_span span = mha_visible_span(&p, b, i);
                pairs += span.end - span.begin;
            }
        double want = 2.0 * (double)(pairs * p.h * (p.d_k + p.d_v));
        if (need.flops != want) fail_msg("seed %d: %g flops, should be %g", (int)seed, need.flops, want);
        random_problem_free(x);
    }
}

static void flops_of_a_layer_are_those_of_the_paper(void **unused) {
    (void)unused;
    const double n = 2048, d = 1024;
    struct mha_problem p = {.B = 1,
                            .n_q = 2048,
                            .n_k = 2048,
                            .h = 16,
                            .h_kv = 16,
                            .d_k = 64,
                            .d_v = 64,
                            .d_q = 1024,
                            .d_kin = 1024,
                            .d_vin = 1024,
                            .d_out = 1024,
                            .Q = numbers,
                            .K = numbers,
                            .V = numbers,
                            .weights = {.W_q = numbers, .W_k = numbers, .W_v = numbers, .W_o = numbers},
                            .scale = 0.125};
    struct mha_result r = {0};
    struct mha_need need;
    struct mha_detail detail;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_OK);
    assert_true(need.flops == 8 * n * d * d + 4 * n * n * d);
    p.causal = true;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_OK);
    assert_true(need.flops == 8 * n * d * d + 2 * n * (n + 1) * d);
}

/* ---- layers ---------------------------------------------------------------------------------------------------------------- */

static const struct mha_layer_shape layer_shape = {
    .h = 4, .h_kv = 2, .d_k = 2, .d_v = 2, .d_q = 8, .d_kin = 4, .d_vin = 4, .d_out = 8};

static void layers_refuse_what_problems_refuse(void **unused) {
    (void)unused;
    const struct mha_weights identity = {0}, weights = {.W_q = numbers};
    struct mha_detail detail;
    struct mha_layer_shape s = layer_shape;
    s.h_kv = 3;
    assert_null(mha_layer_new(&s, &identity, &detail));
    assert_int_equal(detail.code, MHA_ERR_DIMENSION);
    assert_string_equal(detail.field, "h_kv");
    assert_true(mha_layer_bytes(&s, &identity) == SIZE_MAX);

    s = layer_shape;
    s.d_q = 9; /* without W_q the width of Q is that of the heads */
    assert_null(mha_layer_new(&s, &identity, &detail));
    assert_string_equal(detail.field, "d_q");
    assert_int_equal(detail.expected, 8);
    s.d_q = SIZE_MAX / 16;
    assert_null(mha_layer_new(&s, &weights, &detail));
    assert_int_equal(detail.code, MHA_ERR_OVERFLOW);
    s = layer_shape;
    s.dtype = (enum mha_dtype)7;
    assert_null(mha_layer_new(&s, &identity, &detail));
    assert_int_equal(detail.code, MHA_ERR_OPTION);
    mha_layer_free(NULL);
}

static void a_problem_must_fit_its_layer(void **unused) {
    (void)unused;
    const struct mha_weights identity = {0};
    struct mha_detail detail;
    struct mha_need need;
    struct mha_result r = {0};
    struct mha_layer *layer = mha_layer_new(&layer_shape, &identity, &detail);
    assert_non_null(layer);
    assert_memory_equal(mha_layer_shape(layer), &layer_shape, sizeof layer_shape);
    struct mha_problem p = {.layer = layer,
                            .B = 1,
                            .n_q = 1,
                            .n_k = 1,
                            .h = 4,
                            .h_kv = 2,
                            .d_k = 2,
                            .d_v = 2,
                            .d_q = 8,
                            .d_kin = 4,
                            .d_vin = 4,
                            .d_out = 8,
                            .Q = numbers,
                            .K = numbers,
                            .V = numbers,
                            .scale = 1};
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_OK);
    p.d_q = 10;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_DIMENSION);
    assert_string_equal(detail.field, "d_q");
    assert_true(detail.expected == 8 && detail.actual == 10);
    p.d_q = 8;
    p.dtype = MHA_F32;
    assert_int_equal(mha_plan(&p, &r, 1, &need, &detail), MHA_ERR_DIMENSION);
    assert_string_equal(detail.field, "dtype");
    mha_layer_free(layer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_refusal_names_its_field_and_both_numbers),
        cmocka_unit_test(an_offending_element_or_axis_is_named),
        cmocka_unit_test(an_empty_tensor_needs_no_pointer),
        cmocka_unit_test(every_code_has_a_text_of_its_own),
        cmocka_unit_test(sizes_whose_product_overflows_are_refused),
        cmocka_unit_test(a_map_that_overflows_is_refused_only_when_asked_for),
        cmocka_unit_test(a_zero_does_not_excuse_the_other_dimensions),
        cmocka_unit_test(what_is_accepted_never_overflows),
        cmocka_unit_test(a_run_stays_within_its_workspace),
        cmocka_unit_test(flops_count_visible_work_only),
        cmocka_unit_test(flops_of_a_layer_are_those_of_the_paper),
        cmocka_unit_test(layers_refuse_what_problems_refuse),
        cmocka_unit_test(a_problem_must_fit_its_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

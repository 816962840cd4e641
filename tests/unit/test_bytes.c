/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_bytes.c - the promise that a row's bytes depend on that row's inputs alone, tested by comparing bytes.
 *
 * Model. Random problems of every kind are evaluated twice in ways that must not matter: on other instruction sets, with
 * other numbers of threads, with and without maps, each row alone, with hidden keys appended, as a prefill and single steps
 * with a cache, and many at once. NaN compares equal to NaN, because its bits are the processor's business; it occurs only in
 * scores and projections of hidden keys.
 *
 * x86-64 without FMA has other bits than the rest, and is held to all the other promises. The tile geometry of AVX-512 is
 * compared on every x86-64 machine, compiled for AVX2 ("x86-64-v4-emulated", linked into this test alone); the real one where
 * the CPU has it; NEON by `make check-neon`.
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

static const char *const isas[] = {"x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-emulated", "neon", "generic"};
enum { N_ISAS = sizeof isas / sizeof isas[0] };

static const char *default_isa;

/* Sizes that give several tiles, panels and blocks, and some that stay below one vector; and several rounds of keys with
 * several blocks of terms for one to three rows. */
static const struct random_limits size_limits[] = {
    {.no_empty = true},
    {.B = 2, .n_q = 70, .n_k = 150, .n_past = 140, .d = 20, .d_in = 40, .h_kv = 2, .no_empty = true},
    {.B = 2, .n_q = 5, .n_k = 20, .n_past = 300, .d = 70, .d_in = 300, .h_kv = 2, .no_empty = true},
    {.B = 1, .n_q = 3, .n_k = 4, .n_past = 2500, .d = 40, .d_in = 900, .h_kv = 2, .group = 2, .no_empty = true},
};
enum { N_SIZES = sizeof size_limits / sizeof size_limits[0] };

static void on_every_isa(void (*check)(void)) {
    for (size_t x = 0; x < N_ISAS; x++)
        if (mha_isa_force(isas[x])) check();
    assert_true(mha_isa_force(default_isa));
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static double number_at(enum mha_dtype dtype, const void *x, size_t k) {
    return dtype == MHA_F32 ? (double)((const float *)x)[k] : ((const double *)x)[k];
}

/* Fails where n numbers differ in a bit, NaN apart. */
static void same_bytes(const struct random_problem *x, const char *what, const void *a, const void *b, size_t n) {
    const size_t element = mha_dtype_size(x->problem.dtype);
    if (a == NULL || b == NULL || memcmp(a, b, n * element) == 0) return;
    for (size_t k = 0; k < n; k++) {
        if (memcmp((const char *)a + k * element, (const char *)b + k * element, element) == 0) continue;
        const double va = number_at(x->problem.dtype, a, k), vb = number_at(x->problem.dtype, b, k);
        if (isnan(va) && isnan(vb)) continue;
        char text[500];
        random_problem_describe(x, text, sizeof text);
        fail_msg("%s\n%s, %s: element %zu is %a and %a", text, mha_isa_name(), what, k, va, vb);
    }
}

static void same_results(const struct random_problem *x, const char *what, const struct mha_result *a,
                         const struct mha_result *b) {
    const struct mha_problem *p = &x->problem;
    const size_t n_kv = p->n_past + p->n_k, rows = p->B * p->h * p->n_q;
    const size_t maps = rows * n_kv;
    char name[80];
#define SAME(field, n)                                                                                                 \
    do {                                                                                                               \
        snprintf(name, sizeof name, "%s, " #field, what);                                                              \
        same_bytes(x, name, a->field, b->field, n);                                                                    \
    } while (0)
    SAME(output, p->B * p->n_q * p->d_out);
    SAME(concat, p->B * p->n_q * p->h * p->d_v);
    SAME(heads, rows * p->d_v);
    SAME(logsumexp, rows);
    if (a->attention_mean == b->attention_mean) SAME(attention, a->attention_mean ? maps / p->h : maps);
    SAME(scores, maps);
    SAME(proj_Q, rows * p->d_k);
    SAME(proj_K, p->B * p->h_kv * p->n_k * p->d_k);
    SAME(proj_V, p->B * p->h_kv * p->n_k * p->d_v);
    SAME(present_K, p->B * p->h_kv * n_kv * p->d_k);
    SAME(present_V, p->B * p->h_kv * n_kv * p->d_v);
#undef SAME
    assert_int_equal(a->masked_rows, b->masked_rows);
}

static struct mha_result evaluated(const struct mha_problem *p, unsigned wanted, struct mha_pool *on) {
    struct mha_result r = random_result_new(p, wanted, NULL, 0);
    assert_int_equal(evaluate(p, &r, on), MHA_OK);
    return r;
}

/* Calls check(problem, arg) for n seeds of every size. */
static void for_problems(size_t n, uint64_t salt, void (*check)(struct random_problem *x, void *arg), void *arg) {
    for (size_t s = 0; s < N_SIZES; s++)
        for (uint64_t seed = 1; seed <= (s == 0 ? 4 * n : n); seed++) {
            struct random_problem *x = random_problem_new(seed + (salt << 20), &size_limits[s]);
            check(x, arg);
            random_problem_free(x);
        }
}

/* ---- instruction sets -------------------------------------------------------------------------------------------- */

static bool has_fma(const char *isa) { return strcmp(isa, "x86-64") != 0 && strcmp(isa, "generic") != 0; }

static void compare_isas(struct random_problem *x, void *arg) {
    size_t *compared = arg;
    struct mha_result first = {0};
    bool have_first = false;
    for (size_t k = 0; k < N_ISAS; k++) {
        if (!has_fma(isas[k]) || !mha_isa_force(isas[k])) continue;
        struct mha_result r = evaluated(&x->problem, WANT_ALL, NULL);
        if (have_first) {
            same_results(x, "instruction sets", &first, &r);
            random_result_free(&r);
            ++*compared;
        } else {
            first = r;
            have_first = true;
        }
    }
    if (have_first) random_result_free(&first);
}

static void instruction_sets_give_the_same_bytes(void **unused) {
    (void)unused;
    size_t compared = 0;
    for_problems(60, 1, compare_isas, &compared);
    assert_true(mha_isa_force(default_isa));
    print_message("%zu pairs compared\n", compared);
#if defined(__x86_64__) && !defined(MHA_NO_EMULATION)
    if (strcmp(default_isa, "x86-64") != 0) assert_true(compared >= 300);
#endif
}

/* ---- threads, maps, company -------------------------------------------------------------------------------------- */

static struct mha_pool *pools[4];

static void compare_threads(struct random_problem *x, void *arg) {
    (void)arg;
    struct mha_result alone = evaluated(&x->problem, WANT_ALL, NULL);
    for (size_t k = 0; k < 4; k++) {
        struct mha_result r = evaluated(&x->problem, WANT_ALL, pools[k]);
        same_results(x, "threads", &alone, &r);
        random_result_free(&r);
    }
    random_result_free(&alone);
}

static void threads_on_this_isa(void) { for_problems(15, 2, compare_threads, NULL); }

static void one_two_three_and_eight_threads_give_the_same_bytes(void **unused) {
    (void)unused;
    on_every_isa(threads_on_this_isa);
}

static void compare_maps(struct random_problem *x, void *arg) {
    (void)arg;
    struct mha_result all = evaluated(&x->problem, WANT_ALL, NULL);
    const unsigned parts[] = {WANT_OUTPUT,      WANT_ATTENTION, WANT_HEADS,
                              WANT_PROJECTIONS, WANT_SCORES,    WANT_LOGSUMEXP,
                              WANT_CONCAT,      WANT_PRESENT,   WANT_OUTPUT | WANT_ATTENTION | WANT_MEAN};
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        struct mha_result r = evaluated(&x->problem, parts[k], NULL);
        same_results(x, "wanted", &all, &r);
        random_result_free(&r);
    }
    random_result_free(&all);
}

static void maps_on_this_isa(void) { for_problems(15, 3, compare_maps, NULL); }

static void what_is_asked_for_changes_no_byte_of_the_rest(void **unused) {
    (void)unused;
    on_every_isa(maps_on_this_isa);
}

static void thirty_two_runs_at_once_give_the_bytes_of_each_alone(void **unused) {
    (void)unused;
    enum { N = 32 };
    for (uint64_t round = 0; round < 4; round++) {
        struct random_problem *x[N];
        const struct mha_problem *p[N];
        struct mha_result alone[N], together[N];
        enum mha_error status[N];
        for (size_t k = 0; k < N; k++) {
            x[k] = random_problem_new(900 + round * N + k, &size_limits[k % N_SIZES]);
            p[k] = &x[k]->problem;
            alone[k] = evaluated(p[k], WANT_ALL, NULL);
            together[k] = random_result_new(p[k], WANT_ALL, NULL, 0);
        }
        evaluate_together(p, together, N, pools[2], status);
        for (size_t k = 0; k < N; k++) {
            assert_int_equal(status[k], MHA_OK);
            same_results(x[k], "at once", &alone[k], &together[k]);
            random_result_free(&alone[k]);
            random_result_free(&together[k]);
            random_problem_free(x[k]);
        }
    }
}

/* ---- a row alone ------------------------------------------------------------------------------------------------- */

/* What row i of sample b may see, and adds, as an explicit mask [1, h, 1, n_kv] that replaces all else that hides. */
static void *mask_of_row(const struct mha_problem *p, size_t b, size_t i) {
    const size_t n_kv = p->n_past + p->n_k, element = mha_dtype_size(p->dtype);
    const bool additive = p->attn_mask.kind == MHA_MASK_ADDITIVE;
    char *mask = calloc(p->h * n_kv + 1, element);
    assert_non_null(mask);
    for (size_t head = 0; head < p->h; head++)
        for (size_t j = 0; j < n_kv; j++) {
            const bool visible = oracle_visible(p, b, head, i, j);
            const size_t at = head * n_kv + j;
            if (!additive) {
                mask[at] = visible;
                continue;
            }
            const size_t *dim = p->attn_mask.dim;
            const size_t from =
                (((dim[0] == 1 ? 0 : b) * dim[1] + (dim[1] == 1 ? 0 : head)) * dim[2] + (dim[2] == 1 ? 0 : i)) *
                    dim[3] +
                (dim[3] == 1 ? 0 : j);
            const double addend = visible ? number_at(p->dtype, p->attn_mask.data, from) : -INFINITY;
            if (p->dtype == MHA_F32)
                ((float *)(void *)mask)[at] = (float)addend;
            else
                ((double *)(void *)mask)[at] = addend;
        }
    return mask;
}

static const void *at_element(const struct mha_problem *p, const void *x, size_t index) {
    return x == NULL ? NULL : (const char *)x + index * mha_dtype_size(p->dtype);
}

static struct mha_problem row_alone(const struct mha_problem *p, size_t b, size_t i, const void *mask) {
    struct mha_problem q = *p;
    q.B = q.n_q = 1;
    q.Q = at_element(p, p->Q, (b * p->n_q + i) * p->d_q);
    q.K = at_element(p, p->K, b * p->n_k * p->d_kin);
    q.V = at_element(p, p->V, b * p->n_k * p->d_vin);
    q.past_K = at_element(p, p->past_K, b * p->h_kv * p->n_past * p->d_k);
    q.past_V = at_element(p, p->past_V, b * p->h_kv * p->n_past * p->d_v);
    q.causal = q.window = false;
    q.key_mask = NULL;
    q.key_mask_B = 0;
    q.key_lengths = NULL;
    q.attn_mask.kind = p->attn_mask.kind == MHA_MASK_ADDITIVE ? MHA_MASK_ADDITIVE : MHA_MASK_BOOL;
    q.attn_mask.data = mask;
    const size_t dim[4] = {1, p->h, 1, p->n_past + p->n_k};
    memcpy(q.attn_mask.dim, dim, sizeof dim);
    return q;
}

static void compare_row(struct random_problem *x, void *arg) {
    uint64_t *state = arg;
    const struct mha_problem *p = &x->problem;
    const size_t n_kv = p->n_past + p->n_k, b = random_below(state, p->B), i = random_below(state, p->n_q);
    struct mha_result whole = evaluated(p, WANT_ALL, NULL);
    void *mask = mask_of_row(p, b, i);
    const struct mha_problem q = row_alone(p, b, i, mask);
    struct mha_result one = evaluated(&q, WANT_ALL, NULL);
    same_bytes(x, "row alone, output", at_element(p, whole.output, (b * p->n_q + i) * p->d_out), one.output, p->d_out);
    same_bytes(x, "row alone, concat", at_element(p, whole.concat, (b * p->n_q + i) * p->h * p->d_v), one.concat,
               p->h * p->d_v);
    for (size_t head = 0; head < p->h; head++) {
        const size_t row = (b * p->h + head) * p->n_q + i;
        same_bytes(x, "row alone, logsumexp", at_element(p, whole.logsumexp, row), at_element(p, one.logsumexp, head),
                   1);
        same_bytes(x, "row alone, attention", at_element(p, whole.attention, row * n_kv),
                   at_element(p, one.attention, head * n_kv), n_kv);
        same_bytes(x, "row alone, scores", at_element(p, whole.scores, row * n_kv),
                   at_element(p, one.scores, head * n_kv), n_kv);
    }
    free(mask);
    random_result_free(&one);
    random_result_free(&whole);
}

static void rows_on_this_isa(void) {
    uint64_t state = 4;
    for_problems(60, 4, compare_row, &state);
}

static void a_row_alone_has_the_bytes_of_its_row_in_the_batch(void **unused) {
    (void)unused;
    on_every_isa(rows_on_this_isa);
}

/* ---- hidden keys appended ---------------------------------------------------------------------------------------- */

/* K or V with `more` rows of NaN, infinity and huge numbers after those of each sample. */
static void *longer(const struct mha_problem *p, const void *from, size_t d, size_t more, uint64_t *state) {
    const size_t element = mha_dtype_size(p->dtype), n = p->n_k + more;
    char *to = malloc(p->B * n * d * element + 1);
    assert_non_null(to);
    for (size_t b = 0; b < p->B; b++) {
        memcpy(to + b * n * d * element, (const char *)from + b * p->n_k * d * element, p->n_k * d * element);
        for (size_t k = p->n_k * d; k < n * d; k++) {
            const double poison[] = {NAN, INFINITY, -INFINITY, 3e38, -3e38, 1};
            const double value = poison[random_below(state, 6)];
            if (p->dtype == MHA_F32)
                ((float *)(void *)to)[b * n * d + k] = (float)value;
            else
                ((double *)(void *)to)[b * n * d + k] = value;
        }
    }
    return to;
}

static size_t longer_compared;

static void compare_longer(struct random_problem *x, void *arg) {
    uint64_t *state = arg;
    struct mha_problem *p = &x->problem;
    p->attn_mask = (struct mha_mask){0}; /* masks would have to grow; the other ways to hide stay */
    p->key_mask = NULL;
    p->key_mask_B = 0;
    size_t lengths[8];
    for (size_t b = 0; b < p->B; b++) lengths[b] = p->key_lengths != NULL ? p->key_lengths[b] : p->n_past + p->n_k;
    p->key_lengths = lengths;
    /* Without its masks the problem may show keys that the generator has poisoned. */
    struct mha_result before = random_result_new(p, WANT_OUTPUT | WANT_HEADS | WANT_LOGSUMEXP, NULL, 0);
    if (evaluate(p, &before, NULL) == MHA_OK) {
        const size_t more = 1 + random_below(state, 200);
        struct mha_problem q = *p;
        q.n_k += more;
        void *K = longer(p, p->K, p->d_kin, more, state), *V = longer(p, p->V, p->d_vin, more, state);
        q.K = K;
        q.V = V;
        struct mha_result after = evaluated(&q, WANT_OUTPUT | WANT_HEADS | WANT_LOGSUMEXP, NULL);
        same_results(x, "keys appended", &before, &after);
        longer_compared++;
        random_result_free(&after);
        free(K);
        free(V);
    }
    random_result_free(&before);
}

static void longer_on_this_isa(void) {
    uint64_t state = 5;
    for_problems(40, 5, compare_longer, &state);
}

static void hidden_keys_appended_change_no_byte(void **unused) {
    (void)unused;
    longer_compared = 0;
    on_every_isa(longer_on_this_isa);
    print_message("%zu pairs compared\n", longer_compared);
    assert_true(longer_compared >= 100);
}

/* ---- prefill and decoding ---------------------------------------------------------------------------------------- */

/* Rows [from, from + n) of x, which is queries, keys and values. */
static void step_problem(const struct mha_problem *p, size_t from, size_t n, struct mha_problem *q) {
    *q = *p;
    q->n_q = q->n_k = n;
    q->n_past = from;
    q->Q = at_element(p, p->Q, from * p->d_q);
    q->K = at_element(p, p->K, from * p->d_kin);
    q->V = at_element(p, p->V, from * p->d_vin);
}

static void compare_decoding(struct random_problem *x, void *arg) {
    uint64_t *state = arg;
    struct mha_problem *p = &x->problem;
    *p = (struct mha_problem){.dtype = p->dtype,
                              .B = 1,
                              .h = p->h,
                              .h_kv = p->h_kv,
                              .d_k = p->d_k,
                              .d_v = p->d_v,
                              .d_q = p->d_q,
                              .d_kin = p->d_kin,
                              .d_vin = p->d_vin,
                              .d_out = p->d_out,
                              .weights = p->weights,
                              .scale = p->scale,
                              .softcap = p->softcap,
                              .causal = true,
                              .window = p->window,
                              .window_left = p->window_left,
                              .window_right = MHA_WINDOW_OPEN,
                              .sinks = p->sinks};
    const size_t n = 2 + random_below(state, 300), prefill = 1 + random_below(state, n - 1);
    p->n_q = p->n_k = n;
    p->Q = random_numbers(x, n * p->d_q, 1);
    p->K = random_numbers(x, n * p->d_kin, 1);
    p->V = random_numbers(x, n * p->d_vin, 1);
    struct mha_result whole = evaluated(p, WANT_OUTPUT | WANT_PRESENT, NULL);

    struct mha_problem q;
    step_problem(p, 0, prefill, &q);
    struct mha_result last = evaluated(&q, WANT_OUTPUT | WANT_PRESENT, NULL);
    same_bytes(x, "prefill", whole.output, last.output, prefill * p->d_out);
    for (size_t at = prefill; at < n;) {
        const size_t left = n - at, step = random_below(state, 4) ? 1 : 1 + random_below(state, left < 9 ? left : 9);
        step_problem(p, at, step, &q);
        q.past_K = last.present_K;
        q.past_V = last.present_V;
        struct mha_result next = evaluated(&q, WANT_OUTPUT | WANT_PRESENT, NULL);
        same_bytes(x, "decoding", at_element(p, whole.output, at * p->d_out), next.output, step * p->d_out);
        random_result_free(&last);
        last = next;
        at += step;
    }
    same_bytes(x, "cache, K", whole.present_K, last.present_K, p->h_kv * n * p->d_k);
    same_bytes(x, "cache, V", whole.present_V, last.present_V, p->h_kv * n * p->d_v);
    random_result_free(&last);
    random_result_free(&whole);
}

static void decoding_on_this_isa(void) {
    uint64_t state = 6;
    for_problems(4, 6, compare_decoding, &state);
}

static void prefill_and_cached_steps_give_the_bytes_of_the_whole(void **unused) {
    (void)unused;
    on_every_isa(decoding_on_this_isa);
}

static int set_up(void **unused) {
    (void)unused;
    const size_t threads[] = {1, 2, 3, 8};
    default_isa = mha_isa_name();
    for (size_t k = 0; k < 4; k++)
        if ((pools[k] = mha_pool_new(threads[k])) == NULL) return 1;
    return 0;
}

static int tear_down(void **unused) {
    (void)unused;
    for (size_t k = 0; k < 4; k++) mha_pool_free(pools[k]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instruction_sets_give_the_same_bytes),
        cmocka_unit_test(a_row_alone_has_the_bytes_of_its_row_in_the_batch),
        cmocka_unit_test(hidden_keys_appended_change_no_byte),
        cmocka_unit_test(prefill_and_cached_steps_give_the_bytes_of_the_whole),
        cmocka_unit_test(one_two_three_and_eight_threads_give_the_same_bytes),
        cmocka_unit_test(what_is_asked_for_changes_no_byte_of_the_rest),
        cmocka_unit_test(thirty_two_runs_at_once_give_the_bytes_of_each_alone),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

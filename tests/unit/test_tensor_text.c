/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_tensor_text.c - the streaming tensor reader: shapes, grammar, errors with their places, and that no split
 * of the text changes anything. Every chunk lies in memory of exactly its size, so that ASan sees a byte read beyond.
 * Independent routes: cJSON's tree for values and shapes, strtof for rounding once, hand-written expectations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/number.h"
#include "../../api/tensor_text.h"

/* ---- tools -------------------------------------------------------------------------------------------------------- */

static uint64_t random_state = 7;

static uint64_t random_below(uint64_t n) { /* splitmix64 */
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % n;
}

struct reading {
    struct mem_budget budget;
    struct mem_arena *arena;
    struct mem_grow data, ties;
    struct tensor_text text;
    enum tensor_text_status status;
    size_t used; /* bytes taken in all */
};

static void begin(struct reading *r, enum tensor_text_reals reals, unsigned accept, size_t limit) {
    memset(r, 0, sizeof *r);
    r->budget.limit = limit;
    r->arena = mem_arena_new(&r->budget);
    assert_non_null(r->arena);
    assert_true(mem_grow_init(&r->data, r->arena));
    assert_true(mem_grow_init(&r->ties, r->arena));
    tensor_text_begin(&r->text, &r->data, reals == TENSOR_TEXT_F64_TIES ? &r->ties : NULL, reals, accept);
}

static void end(struct reading *r) { mem_arena_free(r->arena); }

/* most: largest chunk; 0 = everything at once; random sizes when `shuffle` */
static void feed(struct reading *r, const char *bytes, size_t size, size_t most, bool shuffle) {
    r->status = TENSOR_TEXT_MORE;
    for (size_t at = 0; at < size && r->status == TENSOR_TEXT_MORE;) {
        size_t chunk = most == 0 ? size : shuffle ? random_below(most) + 1 : most;
        if (chunk > size - at) chunk = size - at;
        char *copy = malloc(chunk);
        assert_non_null(copy);
        memcpy(copy, bytes + at, chunk);
        size_t used = 0;
        r->status = tensor_text_feed(&r->text, copy, chunk, &used);
        free(copy);
        if (r->status == TENSOR_TEXT_MORE) assert_int_equal(used, chunk);
        assert_true(used <= chunk);
        at += used;
        r->used = at;
    }
}

static void read_all(struct reading *r, const char *text, enum tensor_text_reals reals, unsigned accept, size_t most) {
    begin(r, reals, accept, SIZE_MAX);
    feed(r, text, strlen(text), most, false);
}

#define REALS (TENSOR_TEXT_NUMBERS)
#define MASK  (TENSOR_TEXT_NUMBERS | TENSOR_TEXT_NULLS | TENSOR_TEXT_BOOLEANS)
#define KEYS  (TENSOR_TEXT_BOOLEANS | TENSOR_TEXT_ZERO_ONE)

/* Both readings ended alike: verdict, place, shape, bytes. */
static void expect_alike(const struct reading *a, const struct reading *b, const char *what) {
    if (a->status != b->status) fail_msg("%s: status %d and %d", what, (int)a->status, (int)b->status);
    if (a->status == TENSOR_TEXT_MORE) return;
    if (a->status != TENSOR_TEXT_DONE) {
        if (a->text.offset != b->text.offset)
            fail_msg("%s: offset %zu and %zu", what, (size_t)a->text.offset, (size_t)b->text.offset);
        assert_int_equal(a->text.index_length, b->text.index_length);
        assert_memory_equal(a->text.index, b->text.index, a->text.index_length * sizeof(size_t));
        assert_int_equal(a->text.expected, b->text.expected);
        assert_int_equal(a->text.actual, b->text.actual);
        return;
    }
    assert_int_equal(a->used, b->used);
    assert_int_equal(a->text.rank, b->text.rank);
    assert_memory_equal(a->text.dim, b->text.dim, sizeof a->text.dim);
    assert_int_equal(a->text.count, b->text.count);
    assert_int_equal(a->text.stored, b->text.stored);
    assert_int_equal(a->text.seen, b->text.seen);
    assert_int_equal(a->data.size, b->data.size);
    if (a->data.size > 0) assert_memory_equal(a->data.data, b->data.data, a->data.size);
    assert_int_equal(a->ties.size, b->ties.size);
    if (a->ties.size > 0) assert_memory_equal(a->ties.data, b->ties.data, a->ties.size);
}

/* ---- shapes and values -------------------------------------------------------------------------------------------- */

static void nested_arrays_give_shape_and_values(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t rank, dim[TENSOR_TEXT_RANK_MAX];
        double value[8];
    } cases[] = {
        {"[1]", 1, {1}, {1}},
        {"[]", 1, {0}, {0}},
        {"[ ]", 1, {0}, {0}},
        {"[[],[]]", 2, {2, 0}, {0}},
        {"[[[]]]", 3, {1, 1, 0}, {0}},
        {"[1,2,3]", 1, {3}, {1, 2, 3}},
        {"[[1,2],[3,4]]", 2, {2, 2}, {1, 2, 3, 4}},
        {" [ [ 1 , 2 ] , [ -0.5e1,4 ] ]", 2, {2, 2}, {1, 2, -5, 4}},
        {"[[1,2,3],\n\t[4,5,6]\r\n]", 2, {2, 3}, {1, 2, 3, 4, 5, 6}},
        {"[[[1],[2]],[[3],[4]],[[5],[6]]]", 3, {3, 2, 1}, {1, 2, 3, 4, 5, 6}},
        {"[[[[[[[[7,8]]]]]]]]", 8, {1, 1, 1, 1, 1, 1, 1, 2}, {7, 8}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reading r;
        read_all(&r, cases[i].text, TENSOR_TEXT_F64, REALS, 0);
        if (r.status != TENSOR_TEXT_DONE) fail_msg("%s: status %d", cases[i].text, (int)r.status);
        assert_int_equal(r.used, strlen(cases[i].text));
        assert_int_equal(r.text.rank, cases[i].rank);
        assert_memory_equal(r.text.dim, cases[i].dim, sizeof cases[i].dim);
        size_t count = 1;
        for (size_t k = 0; k < r.text.rank; k++) count *= cases[i].dim[k];
        assert_int_equal(r.text.count, count);
        assert_int_equal(r.data.size, count * sizeof(double));
        if (count > 0) assert_memory_equal(r.data.data, cases[i].value, count * sizeof(double));
        assert_int_equal(r.text.seen, count > 0 ? TENSOR_TEXT_NUMBERS : 0);
        assert_int_equal(r.text.stored, count > 0 ? TENSOR_TEXT_STORED_F64 : TENSOR_TEXT_STORED_NONE);
        end(&r);
    }
}

static void what_follows_the_value_is_left_alone(void **state) {
    (void)state;
    const char *text = "[[1,2],[3,4]],\"K\":[]}";
    for (size_t most = 0; most < 20; most++) {
        struct reading r;
        read_all(&r, text, TENSOR_TEXT_F32, REALS, most);
        assert_int_equal(r.status, TENSOR_TEXT_DONE);
        assert_int_equal(r.used, 13);
        size_t used = 99;
        assert_int_equal(tensor_text_feed(&r.text, "[1]", 3, &used), TENSOR_TEXT_DONE);
        assert_int_equal(used, 0);
        end(&r);
    }
}

static void masks_are_booleans_or_reals_by_their_first_element(void **state) {
    (void)state;
    struct reading r;
    read_all(&r, "[[true,false],[false,true]]", TENSOR_TEXT_F64, MASK, 0);
    assert_int_equal(r.status, TENSOR_TEXT_DONE);
    assert_int_equal(r.text.stored, TENSOR_TEXT_STORED_U8);
    assert_int_equal(r.text.seen, TENSOR_TEXT_BOOLEANS);
    assert_int_equal(r.data.size, 4);
    assert_memory_equal(r.data.data, "\1\0\0\1", 4);
    end(&r);

    read_all(&r, "[[null,0.5],[-1,null]]", TENSOR_TEXT_F32, MASK, 0);
    assert_int_equal(r.status, TENSOR_TEXT_DONE);
    assert_int_equal(r.text.stored, TENSOR_TEXT_STORED_F32);
    assert_int_equal(r.text.seen, TENSOR_TEXT_NUMBERS | TENSOR_TEXT_NULLS);
    const float f32[] = {-INFINITY, 0.5f, -1, -INFINITY};
    assert_memory_equal(r.data.data, f32, sizeof f32);
    end(&r);

    read_all(&r, "[null,null]", TENSOR_TEXT_F64_TIES, MASK, 0);
    assert_int_equal(r.status, TENSOR_TEXT_DONE);
    assert_int_equal(r.text.seen, TENSOR_TEXT_NULLS);
    assert_int_equal(tensor_text_to_f32(&r.text), TENSOR_TEXT_DONE);
    const float hidden[] = {-INFINITY, -INFINITY};
    assert_int_equal(r.data.size, sizeof hidden);
    assert_memory_equal(r.data.data, hidden, sizeof hidden);
    end(&r);
}

static void key_masks_are_booleans_or_zero_and_one(void **state) {
    (void)state;
    struct reading r;
    read_all(&r, "[1,0,true,1.0,0e5,-0,false]", TENSOR_TEXT_F64, KEYS, 0);
    assert_int_equal(r.status, TENSOR_TEXT_DONE);
    assert_int_equal(r.text.stored, TENSOR_TEXT_STORED_U8);
    assert_int_equal(r.text.seen, TENSOR_TEXT_BOOLEANS | TENSOR_TEXT_NUMBERS);
    assert_memory_equal(r.data.data, "\1\0\1\1\0\0\0", 7);
    end(&r);
}

static void only_zero_and_one_is_noticed(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool only;
    } cases[] = {{"[[1,0],[0,1]]", true}, {"[0]", true},     {"[1,0,0.5]", false}, {"[null,0]", false},
                 {"[]", false},           {"[true]", false}, {"[-1,0]", false},    {"[1.0,0e1]", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int reals = TENSOR_TEXT_F64; reals <= TENSOR_TEXT_F64_TIES; reals++) {
            struct reading r;
            read_all(&r, cases[i].text, (enum tensor_text_reals)reals, MASK, 0);
            assert_int_equal(r.status, TENSOR_TEXT_DONE);
            if (tensor_text_only_zero_one(&r.text) != cases[i].only) fail_msg("%s", cases[i].text);
            end(&r);
        }
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------- */

static const struct wrong {
    const char *text;
    unsigned accept;
    enum tensor_text_status status;
    size_t offset, index_length, index[3], expected, actual;
} wrongs[] = {
    /* grammar */
    {"[1 2]", REALS, TENSOR_TEXT_SYNTAX, 3, 1, {1}, 0, 0},
    {"[1,]", REALS, TENSOR_TEXT_SYNTAX, 3, 1, {1}, 0, 0},
    {"[,1]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[[1],,[2]]", REALS, TENSOR_TEXT_SYNTAX, 5, 1, {1}, 0, 0},
    {"[[1][2]]", REALS, TENSOR_TEXT_SYNTAX, 4, 1, {1}, 0, 0},
    {"[01]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[1.]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[5,.5]", REALS, TENSOR_TEXT_SYNTAX, 3, 1, {1}, 0, 0},
    {"[+1]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[1e]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[1e+]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[--1]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[-]", REALS, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[0x10]", REALS, TENSOR_TEXT_SYNTAX, 2, 1, {1}, 0, 0},
    {"[1.5.2]", REALS, TENSOR_TEXT_SYNTAX, 4, 1, {1}, 0, 0},
    {"[1}", REALS, TENSOR_TEXT_SYNTAX, 2, 1, {1}, 0, 0},
    {"[1:2]", REALS, TENSOR_TEXT_SYNTAX, 2, 1, {1}, 0, 0},
    {"[tru]", MASK, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[true1]", MASK, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[nul]", MASK, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[True]", MASK, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[None]", MASK, TENSOR_TEXT_SYNTAX, 1, 1, {0}, 0, 0},
    {"[1,\x01]", REALS, TENSOR_TEXT_SYNTAX, 3, 1, {1}, 0, 0},
    {"[1,\xEF\xBB\xBF]", REALS, TENSOR_TEXT_SYNTAX, 3, 1, {1}, 0, 0},
    {"[1/*x*/]", REALS, TENSOR_TEXT_SYNTAX, 2, 1, {1}, 0, 0},
    /* not finite */
    {"[[NaN]]", REALS, TENSOR_TEXT_NON_FINITE, 2, 2, {0, 0}, 0, 0},
    {"[[1,Infinity]]", REALS, TENSOR_TEXT_NON_FINITE, 4, 2, {0, 1}, 0, 0},
    {"[[1],[-Infinity]]", REALS, TENSOR_TEXT_NON_FINITE, 6, 2, {1, 0}, 0, 0},
    {"[nan]", REALS, TENSOR_TEXT_NON_FINITE, 1, 1, {0}, 0, 0},
    {"[-inf]", REALS, TENSOR_TEXT_NON_FINITE, 1, 1, {0}, 0, 0},
    {"[1e999]", REALS, TENSOR_TEXT_NON_FINITE, 1, 1, {0}, 0, 0},
    {"[2,-1e309,3]", REALS, TENSOR_TEXT_NON_FINITE, 3, 1, {1}, 0, 0},
    /* shape */
    {"[[1,2],[3]]", REALS, TENSOR_TEXT_RAGGED, 9, 1, {1}, 2, 1},
    {"[[1],[2,3]]", REALS, TENSOR_TEXT_RAGGED, 9, 1, {1}, 1, 2},
    {"[[[1],[2]],[[3]]]", REALS, TENSOR_TEXT_RAGGED, 15, 1, {1}, 2, 1},
    {"[[[1],[2]],[[3],[]]]", REALS, TENSOR_TEXT_RAGGED, 17, 2, {1, 1}, 1, 0},
    {"[[1],[]]", REALS, TENSOR_TEXT_RAGGED, 6, 1, {1}, 1, 0},
    {"[[],[1]]", REALS, TENSOR_TEXT_RAGGED, 6, 1, {1}, 0, 1},
    {"[1,[2]]", REALS, TENSOR_TEXT_RAGGED, 3, 1, {1}, 0, 0},
    {"[[1],2]", REALS, TENSOR_TEXT_RAGGED, 5, 1, {1}, 0, 0},
    {"[[],1]", REALS, TENSOR_TEXT_RAGGED, 4, 1, {1}, 0, 0},
    {"[[],[[]]]", REALS, TENSOR_TEXT_RAGGED, 5, 2, {1, 0}, 0, 0},
    {"[[[]],[]]", REALS, TENSOR_TEXT_RAGGED, 7, 1, {1}, 1, 0},
    {"[[true],true]", MASK, TENSOR_TEXT_RAGGED, 8, 1, {1}, 0, 0},
    {"[[[[[[[[[1]]]]]]]]]", REALS, TENSOR_TEXT_TOO_DEEP, 8, 8, {0, 0, 0}, 0, 0},
    /* type */
    {"[[1,\"2\"]]", REALS, TENSOR_TEXT_WRONG_TYPE, 4, 2, {0, 1}, 0, 0},
    {"[{}]", REALS, TENSOR_TEXT_WRONG_TYPE, 1, 1, {0}, 0, 0},
    {"5", REALS, TENSOR_TEXT_WRONG_TYPE, 0, 0, {0}, 0, 0},
    {"\"x\"", REALS, TENSOR_TEXT_WRONG_TYPE, 0, 0, {0}, 0, 0},
    {"[1,true]", REALS, TENSOR_TEXT_WRONG_TYPE, 3, 1, {1}, 0, 0},
    {"[1,null]", REALS, TENSOR_TEXT_WRONG_TYPE, 3, 1, {1}, 0, 0},
    {"[true,null]", KEYS, TENSOR_TEXT_WRONG_TYPE, 6, 1, {1}, 0, 0},
    {"[true,1]", TENSOR_TEXT_BOOLEANS, TENSOR_TEXT_WRONG_TYPE, 6, 1, {1}, 0, 0},
    {"[[true,false],[1,true]]", MASK, TENSOR_TEXT_MIXED, 15, 2, {1, 0}, 0, 0},
    {"[0.5,true]", MASK, TENSOR_TEXT_MIXED, 5, 1, {1}, 0, 0},
    {"[null,true]", MASK, TENSOR_TEXT_MIXED, 6, 1, {1}, 0, 0},
    {"[true,null]", MASK, TENSOR_TEXT_MIXED, 6, 1, {1}, 0, 0},
    {"[256,1]", KEYS, TENSOR_TEXT_NOT_ZERO_ONE, 1, 1, {0}, 0, 0},
    {"[[1,0],[1,-1]]", KEYS, TENSOR_TEXT_NOT_ZERO_ONE, 10, 2, {1, 1}, 0, 0},
    {"[1,01]", KEYS, TENSOR_TEXT_SYNTAX, 3, 1, {1}, 0, 0},
    {"[1,1e999]", KEYS, TENSOR_TEXT_NON_FINITE, 3, 1, {1}, 0, 0},
};

static void every_error_names_its_place_however_the_text_is_split(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *w = &wrongs[i];
        for (int reals = TENSOR_TEXT_F64; reals <= TENSOR_TEXT_F64_TIES; reals++) {
            for (size_t most = 0; most <= strlen(w->text); most++) {
                struct reading r;
                read_all(&r, w->text, (enum tensor_text_reals)reals, w->accept, most);
                /* the last token is only judged when its delimiter comes */
                if (r.status == TENSOR_TEXT_MORE) feed(&r, " ", 1, 0, false);
                if (r.status != w->status || r.text.offset != w->offset || r.text.index_length != w->index_length)
                    fail_msg("%s by %zu: status %d at %zu, %zu indices", w->text, most, (int)r.status,
                             (size_t)r.text.offset, r.text.index_length);
                size_t shown = w->index_length < 3 ? w->index_length : 3;
                assert_memory_equal(r.text.index, w->index, shown * sizeof(size_t));
                assert_int_equal(r.text.expected, w->expected);
                assert_int_equal(r.text.actual, w->actual);
                size_t used = 9;
                assert_int_equal(tensor_text_feed(&r.text, "]", 1, &used), w->status); /* it stays */
                assert_int_equal(used, 0);
                end(&r);
            }
        }
    }
}

static void a_number_too_large_for_float32_is_named(void **state) {
    (void)state;
    struct reading r;
    read_all(&r, "[[1,2],[3,-1e39]]", TENSOR_TEXT_F32, REALS, 0);
    assert_int_equal(r.status, TENSOR_TEXT_OUT_OF_RANGE);
    assert_int_equal(r.text.index_length, 2);
    assert_true(r.text.index[0] == 1 && r.text.index[1] == 1);
    end(&r);
    read_all(&r, "[[1,2],[3,-1e39]]", TENSOR_TEXT_F64_TIES, REALS, 0);
    assert_int_equal(r.status, TENSOR_TEXT_DONE);
    assert_int_equal(tensor_text_to_f32(&r.text), TENSOR_TEXT_OUT_OF_RANGE);
    assert_int_equal(r.text.index_length, 2);
    assert_true(r.text.index[0] == 1 && r.text.index[1] == 1);
    end(&r);
    read_all(&r, "[1e999]", TENSOR_TEXT_F32, REALS, 0); /* fits no type: not a question of dtype */
    assert_int_equal(r.status, TENSOR_TEXT_NON_FINITE);
    end(&r);
}

static void numbers_of_a_thousand_characters_are_read_and_longer_ones_refused(void **state) {
    (void)state;
    char text[3000];
    for (size_t length = 990; length < 1010; length++) {
        for (size_t most = 0; most < 400; most += 57) {
            text[0] = '[';
            memset(text + 1, '0', length);
            memcpy(text + 1, "1.", 2);
            strcpy(text + 1 + length, ",2]");
            struct reading r;
            read_all(&r, text, TENSOR_TEXT_F64, REALS, most);
            if (length <= TENSOR_TEXT_NUMBER_MAX) {
                assert_int_equal(r.status, TENSOR_TEXT_DONE);
                assert_true(((double *)(void *)r.data.data)[0] == 1);
            } else {
                assert_int_equal(r.status, TENSOR_TEXT_NUMBER_TOO_LONG);
                assert_int_equal(r.text.offset, 1);
            }
            end(&r);
        }
    }
}

static void endless_tokens_are_refused_early_and_alike(void **state) {
    (void)state;
    static const struct {
        char fill;
        enum tensor_text_status status;
    } cases[] = {{'1', TENSOR_TEXT_NUMBER_TOO_LONG}, {'-', TENSOR_TEXT_NUMBER_TOO_LONG}, {'t', TENSOR_TEXT_SYNTAX},
                 {'e', TENSOR_TEXT_SYNTAX},          {'+', TENSOR_TEXT_SYNTAX},          {'[', TENSOR_TEXT_TOO_DEEP},
                 {'0', TENSOR_TEXT_NUMBER_TOO_LONG}};
    enum { SIZE = 100000 };
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memset(text, cases[i].fill, SIZE);
        text[0] = '[';
        struct reading whole;
        begin(&whole, TENSOR_TEXT_F64, MASK, SIZE_MAX);
        feed(&whole, text, SIZE, 0, false);
        if (whole.status != cases[i].status) fail_msg("'%c...': status %d", cases[i].fill, (int)whole.status);
        assert_true(whole.used < 20000);
        for (size_t most = 1; most < 5000; most = most * 3 + 1) {
            struct reading r;
            begin(&r, TENSOR_TEXT_F64, MASK, SIZE_MAX);
            feed(&r, text, SIZE, most, false);
            expect_alike(&whole, &r, "endless token");
            end(&r);
        }
        end(&whole);
    }
    free(text);
}

/* One digit, or two around a point, take a shorter road; the number reader's road is the other one. */
static void short_numbers_are_those_of_the_number_reader(void **state) {
    (void)state;
    static const char *const tails[] = {"", "0", "e1", "e-1", ".0", "5", "x", "."};
    static const enum tensor_text_reals reals[] = {TENSOR_TEXT_F64, TENSOR_TEXT_F32, TENSOR_TEXT_F64_TIES};
    for (int tenths = 0; tenths < 110; tenths++)
        for (size_t t = 0; t < sizeof tails / sizeof tails[0]; t++)
            for (size_t k = 0; k < 3; k++) {
                char text[32], number[24];
                int length = tenths < 100
                                 ? snprintf(number, sizeof number, "%d.%d%s", tenths / 10, tenths % 10, tails[t])
                                 : snprintf(number, sizeof number, "%d%s", tenths - 100, tails[t]);
                snprintf(text, sizeof text, "[%s,2]", number);
                struct reading r;
                size_t used64, used32;
                double wide = 0;
                float narrow = 0;
                number[length] = ',';
                bool good = number_read_f64(number, (size_t)length + 1, &wide, &used64) == NUMBER_OK &&
                            number_read_f32(number, (size_t)length + 1, &narrow, &used32) == NUMBER_OK &&
                            used64 == (size_t)length;
                read_all(&r, text, reals[k], REALS, 0);
                if (good != (r.status == TENSOR_TEXT_DONE)) fail_msg("%s: status %d", text, (int)r.status);
                if (good && reals[k] == TENSOR_TEXT_F32) assert_memory_equal(r.data.data, &narrow, sizeof narrow);
                if (good && reals[k] != TENSOR_TEXT_F32) assert_memory_equal(r.data.data, &wide, sizeof wide);
                assert_int_equal(r.ties.size, 0);
                end(&r);
            }
}

static void memory_that_runs_out_is_an_error_and_not_a_crash(void **state) {
    (void)state;
    static const char piece[] = "0.25,0.125,1,";
    struct reading r;
    begin(&r, TENSOR_TEXT_F64, REALS, 1 << 20);
    feed(&r, "[", 1, 0, false);
    for (size_t i = 0; i < 1000000 && r.status == TENSOR_TEXT_MORE; i++) feed(&r, piece, sizeof piece - 1, 0, false);
    assert_int_equal(r.status, TENSOR_TEXT_MEMORY);
    assert_int_equal(r.text.memory, MEM_TOO_LARGE);
    assert_true(r.text.count * sizeof(double) > (1 << 20) / 2); /* but the budget could be used */
    end(&r);
}

/* ---- splits ------------------------------------------------------------------------------------------------------- */

static const char *const documents[] = {
    "[[1,2,3],[4,5,6]]",
    "[ -0.0, 1E2 , 0e0,1e+2, 12345678901234567890, 5e-324 ]",
    "[true,false,true]",
    "[[null, -1.5e-3],[0,1]]",
    "[[[[]]]]",
    "[16777217.0000000000000000000001, 1.00000005960464477539062500001, 0.1]",
    "[[1,2],[3]]",
    "[1,2,NaN]",
    "[-Infinity]",
    "[12345678.12345678,1234567890123456.7,0.000000000000000000000001234567890123456789]",
    "[1e5,1e-5,1E+5,1.25e10]",
    "[[\t1\n,\r2 ] , [3,4]]  ",
    "[1,[2]]",
    "[false, 1]",
    "[1e999]",
    "[1,2",
    "[tru",
    "[\"a\"]",
};

static void every_split_point_gives_the_same(void **state) {
    (void)state;
    for (size_t d = 0; d < sizeof documents / sizeof documents[0]; d++) {
        const char *text = documents[d];
        size_t length = strlen(text);
        for (int reals = TENSOR_TEXT_F64; reals <= TENSOR_TEXT_F64_TIES; reals++) {
            struct reading whole;
            read_all(&whole, text, (enum tensor_text_reals)reals, MASK, 0);
            for (size_t a = 0; a <= length; a++) {
                for (size_t b = a; b <= length; b++) {
                    struct reading r;
                    begin(&r, (enum tensor_text_reals)reals, MASK, SIZE_MAX);
                    size_t cut[] = {0, a, b, length};
                    size_t used = 0;
                    for (int k = 0; k < 3 && r.status == TENSOR_TEXT_MORE; k++) {
                        if (cut[k + 1] == cut[k]) continue;
                        feed(&r, text + cut[k], cut[k + 1] - cut[k], 0, false);
                        used = cut[k] + r.used;
                    }
                    r.used = used;
                    expect_alike(&whole, &r, text);
                    end(&r);
                }
            }
            end(&whole);
        }
    }
}

static size_t random_number(char *p) {
    switch (random_below(6)) {
    case 0:
        return (size_t)sprintf(p, "%d", (int)random_below(2000) - 1000);
    case 1:
        return (size_t)sprintf(p, "%.17g", ((double)random_below(1ull << 53) - 0x1p52) * 0x1p-52);
    case 2:
        return (size_t)sprintf(p, "%.*e", (int)random_below(25), (double)random_below(1ull << 60) * 1e-30);
    case 3:
        return (size_t)sprintf(p, "%.3f", (double)random_below(100000) / 1000);
    case 4:
        return (size_t)sprintf(p, "%llu.%llu", (unsigned long long)random_below(UINT64_MAX),
                               (unsigned long long)random_below(UINT64_MAX));
    default:
        return (size_t)sprintf(p, "%llue-%d", (unsigned long long)random_below(1000), (int)random_below(50));
    }
}

static char *put_space(char *p) {
    static const char space[] = " \t\n\r";
    while (random_below(8) == 0) *p++ = space[random_below(4)];
    return p;
}

/* Nested arrays of the given dims; now and then a row one element short or long when `ragged`. */
static char *put_random(char *p, const size_t *dim, size_t rank, bool ragged) {
    p = put_space(p);
    *p++ = '[';
    size_t count = dim[0] + (ragged && random_below(12) == 0);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) *p++ = ',';
        if (rank > 1) {
            p = put_random(p, dim + 1, rank - 1, ragged);
        } else {
            p = put_space(p);
            p += random_number(p);
        }
        p = put_space(p);
    }
    *p++ = ']';
    return p;
}

static void random_documents_do_not_depend_on_their_chunks(void **state) {
    (void)state;
    char *text = malloc(1 << 18);
    assert_non_null(text);
    for (int round = 0; round < 6000; round++) {
        size_t rank = random_below(4) + 1, dim[4];
        for (size_t k = 0; k < rank; k++) dim[k] = random_below(k + 1 == rank ? 40 : 4) + (random_below(8) > 0);
        size_t length = (size_t)(put_random(text, dim, rank, random_below(4) == 0) - text);
        if (random_below(8) == 0) text[random_below(length)] = "[]{},:.0-eE+x\"n t1"[random_below(18)];
        enum tensor_text_reals reals = (enum tensor_text_reals)random_below(3);
        struct reading whole, split;
        begin(&whole, reals, MASK, SIZE_MAX);
        feed(&whole, text, length, 0, false);
        begin(&split, reals, MASK, SIZE_MAX);
        feed(&split, text, length, random_below(60) + 1, true);
        text[length] = '\0';
        expect_alike(&whole, &split, text);
        end(&whole);
        end(&split);
    }
    free(text);
}

/* ---- against cJSON ------------------------------------------------------------------------------------------------ */

static bool same_as_tree(const struct reading *r, const cJSON *node, size_t level, size_t *flat) {
    if (level == r->text.rank) {
        double mine = ((const double *)(const void *)r->data.data)[(*flat)++];
        return cJSON_IsNumber(node) && memcmp(&mine, &node->valuedouble, sizeof mine) == 0;
    }
    if (!cJSON_IsArray(node) || (size_t)cJSON_GetArraySize(node) != r->text.dim[level]) return false;
    for (const cJSON *child = node->child; child != NULL; child = child->next) {
        if (!same_as_tree(r, child, level + 1, flat)) return false;
    }
    return true;
}

static void shapes_and_values_are_those_of_cjson(void **state) {
    (void)state;
    char *text = malloc(1 << 18);
    assert_non_null(text);
    int done = 0;
    for (int round = 0; round < 3000; round++) {
        size_t rank = random_below(4) + 1, dim[4];
        for (size_t k = 0; k < rank; k++) dim[k] = random_below(k + 1 == rank ? 40 : 4) + (k + 1 < rank);
        char *p = put_random(text, dim, rank, random_below(4) == 0);
        *p = '\0';
        struct reading r;
        begin(&r, TENSOR_TEXT_F64, REALS, SIZE_MAX);
        feed(&r, text, (size_t)(p - text), 100, true);
        cJSON *tree = cJSON_Parse(text);
        assert_non_null(tree);
        size_t flat = 0;
        if (r.status == TENSOR_TEXT_DONE) {
            done++;
            if (!same_as_tree(&r, tree, 0, &flat)) fail_msg("%s differs from cJSON", text);
            assert_int_equal(flat, r.text.count);
        } else {
            assert_int_equal(r.status, TENSOR_TEXT_RAGGED); /* cJSON takes those */
        }
        cJSON_Delete(tree);
        end(&r);
    }
    assert_true(done > 1500);
    free(text);
}

/* ---- float32 afterwards ------------------------------------------------------------------------------------------- */

static void converting_later_gives_the_bytes_of_reading_float32(void **state) {
    (void)state;
    enum { COUNT = 4000 };
    char *text = malloc(COUNT * 200), *p = text;
    assert_non_null(text);
    float *expected = malloc(COUNT * sizeof *expected);
    assert_non_null(expected);
    *p++ = '[';
    for (size_t i = 0; i < COUNT; i++) {
        char *start = p;
        if (random_below(3) == 0) { /* exactly between two float32, or a hair beside */
            uint32_t bits = (uint32_t)random_below(0x7F7FFFFF) >> (random_below(4) == 0 ? random_below(24) : 0);
            float low, high;
            memcpy(&low, &bits, sizeof low);
            bits++;
            memcpy(&high, &bits, sizeof high);
            p += sprintf(p, "%s%.150e", random_below(2) == 0 ? "-" : "", ((double)low + (double)high) / 2);
            char *e = strchr(start, 'e');
            if (random_below(3) == 0) e[-1] = '1';
        } else {
            p += random_number(p);
        }
        expected[i] = strtof(start, NULL);
        *p++ = ',';
    }
    p[-1] = ']';
    for (size_t most = 0; most < 300; most += 73) {
        struct reading late, direct;
        begin(&late, TENSOR_TEXT_F64_TIES, REALS, SIZE_MAX);
        feed(&late, text, (size_t)(p - text), most, false);
        assert_int_equal(late.status, TENSOR_TEXT_DONE);
        assert_true(late.ties.size > 100 * sizeof(size_t)); /* the case was met */
        assert_int_equal(tensor_text_to_f32(&late.text), TENSOR_TEXT_DONE);
        assert_int_equal(late.text.stored, TENSOR_TEXT_STORED_F32);
        assert_int_equal(late.data.size, COUNT * sizeof(float));
        assert_memory_equal(late.data.data, expected, COUNT * sizeof(float));
        begin(&direct, TENSOR_TEXT_F32, REALS, SIZE_MAX);
        feed(&direct, text, (size_t)(p - text), most, false);
        assert_int_equal(direct.status, TENSOR_TEXT_DONE);
        assert_memory_equal(direct.data.data, expected, COUNT * sizeof(float));
        end(&late);
        end(&direct);
    }
    free(expected);
    free(text);
}

static void reading_takes_the_tensor_and_little_more(void **state) {
    (void)state;
    struct reading r;
    begin(&r, TENSOR_TEXT_F64_TIES, REALS, SIZE_MAX);
    feed(&r, "[", 1, 0, false);
    char row[16384];
    for (size_t i = 0; i < sizeof row; i += 2) memcpy(row + i, "7,", 2);
    const size_t rows = 512; /* 4 Mi numbers, 32 MiB */
    for (size_t i = 0; i < rows; i++) feed(&r, row, i + 1 < rows ? sizeof row : sizeof row - 1, 0, false);
    feed(&r, "]", 1, 0, false);
    assert_int_equal(r.status, TENSOR_TEXT_DONE);
    assert_int_equal(r.text.count, rows * sizeof row / 2);
    assert_true(atomic_load(&r.budget.peak) <= r.text.count * sizeof(double) + (1 << 20));
    end(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nested_arrays_give_shape_and_values),
        cmocka_unit_test(what_follows_the_value_is_left_alone),
        cmocka_unit_test(masks_are_booleans_or_reals_by_their_first_element),
        cmocka_unit_test(key_masks_are_booleans_or_zero_and_one),
        cmocka_unit_test(only_zero_and_one_is_noticed),
        cmocka_unit_test(every_error_names_its_place_however_the_text_is_split),
        cmocka_unit_test(a_number_too_large_for_float32_is_named),
        cmocka_unit_test(numbers_of_a_thousand_characters_are_read_and_longer_ones_refused),
        cmocka_unit_test(endless_tokens_are_refused_early_and_alike),
        cmocka_unit_test(short_numbers_are_those_of_the_number_reader),
        cmocka_unit_test(memory_that_runs_out_is_an_error_and_not_a_crash),
        cmocka_unit_test(every_split_point_gives_the_same),
        cmocka_unit_test(random_documents_do_not_depend_on_their_chunks),
        cmocka_unit_test(shapes_and_values_are_those_of_cjson),
        cmocka_unit_test(converting_later_gives_the_bytes_of_reading_float32),
        cmocka_unit_test(reading_takes_the_tensor_and_little_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

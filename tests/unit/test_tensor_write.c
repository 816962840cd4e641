/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_tensor_write.c - tensors as JSON, block by block: known texts, empty dimensions, values that JSON has no
 * word for, and that block sizes change nothing. Independent routes: hand-written texts, cJSON, the tensor reader.
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

#include "../../api/base64.h"
#include "../../api/tensor_text.h"
#include "../../api/tensor_write.h"

static uint64_t random_state = 11;

static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* The whole text, NUL-terminated, written in blocks of `block` (0: sizes by chance), each in memory of its size. */
static char *write_all(enum tensor_write_format format, enum tensor_write_type type, const void *data, size_t rank,
                       const size_t *dim, size_t block) {
    struct tensor_write writer;
    tensor_write_begin(&writer, format, type, data, rank, dim);
    size_t room = writer.count * 44 + 100000, length = 0;
    char *text = malloc(room);
    assert_non_null(text);
    for (;;) {
        size_t max = block > 0 ? block : TENSOR_WRITE_BLOCK_MIN + random_bits() % 1000;
        char *out = malloc(max);
        assert_non_null(out);
        size_t size = tensor_write(&writer, out, max);
        assert_true(size <= max && length + size < room);
        memcpy(text + length, out, size);
        free(out);
        length += size;
        if (size == 0) break;
    }
    text[length] = '\0';
    char spare[TENSOR_WRITE_BLOCK_MIN];
    assert_int_equal(tensor_write(&writer, spare, sizeof spare), 0); /* and stays at the end */
    return text;
}

static void expect_text(enum tensor_write_format format, enum tensor_write_type type, const void *data, size_t rank,
                        const size_t *dim, const char *expected) {
    char *text = write_all(format, type, data, rank, dim, 4096);
    assert_string_equal(text, expected);
    free(text);
}

static void the_three_spellings_of_a_matrix(void **state) {
    (void)state;
    const double f64[] = {1, -2.5, 0.1, 1e300, -0.0, 12};
    const float f32[] = {1, -2.5f, 0.1f, 1e30f, -0.0f, 12};
    const size_t dim[] = {2, 3};
    expect_text(TENSOR_WRITE_NESTED, TENSOR_WRITE_F64, f64, 2, dim, "[[1,-2.5,0.1],[1e300,-0,12]]");
    expect_text(TENSOR_WRITE_NESTED, TENSOR_WRITE_F32, f32, 2, dim, "[[1,-2.5,0.1],[1e30,-0,12]]");
    expect_text(TENSOR_WRITE_FLAT, TENSOR_WRITE_F64, f64, 2, dim,
                "{\"shape\":[2,3],\"data\":[1,-2.5,0.1,1e300,-0,12]}");
    const float two[] = {1, 2};
    const size_t pair[] = {2};
    expect_text(TENSOR_WRITE_BASE64, TENSOR_WRITE_F32, two, 1, pair,
                "{\"shape\":[2],\"dtype\":\"float32\",\"base64\":\"AACAPwAAAEA=\"}");
    const double one[] = {1};
    const size_t single[] = {1, 1};
    expect_text(TENSOR_WRITE_BASE64, TENSOR_WRITE_F64, one, 2, single,
                "{\"shape\":[1,1],\"dtype\":\"float64\",\"base64\":\"AAAAAAAA8D8=\"}");
}

static void booleans_are_true_and_false(void **state) {
    (void)state;
    const uint8_t mask[] = {1, 0, 0, 1};
    const size_t dim[] = {2, 2};
    expect_text(TENSOR_WRITE_NESTED, TENSOR_WRITE_BOOL, mask, 2, dim, "[[true,false],[false,true]]");
    expect_text(TENSOR_WRITE_FLAT, TENSOR_WRITE_BOOL, mask, 2, dim,
                "{\"shape\":[2,2],\"data\":[true,false,false,true]}");
    expect_text(TENSOR_WRITE_BASE64, TENSOR_WRITE_BOOL, mask, 2, dim,
                "{\"shape\":[2,2],\"dtype\":\"bool\",\"base64\":\"AQAAAQ==\"}");
}

static void what_is_not_finite_becomes_null(void **state) {
    (void)state;
    const double f64[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1};
    const float f32[] = {NAN, INFINITY, -INFINITY, 1};
    const size_t dim[] = {4};
    expect_text(TENSOR_WRITE_NESTED, TENSOR_WRITE_F64, f64, 1, dim, "[null,null,null,1]");
    expect_text(TENSOR_WRITE_FLAT, TENSOR_WRITE_F32, f32, 1, dim, "{\"shape\":[4],\"data\":[null,null,null,1]}");
}

static void empty_dimensions_end_the_nesting(void **state) {
    (void)state;
    static const struct {
        size_t rank, dim[4];
        const char *nested, *flat, *base64;
    } cases[] = {
        {1, {0}, "[]", "{\"shape\":[0],\"data\":[]}", "{\"shape\":[0],\"dtype\":\"float64\",\"base64\":\"\"}"},
        {2, {0, 3}, "[]", "{\"shape\":[0,3],\"data\":[]}", "{\"shape\":[0,3],\"dtype\":\"float64\",\"base64\":\"\"}"},
        {2,
         {2, 0},
         "[[],[]]",
         "{\"shape\":[2,0],\"data\":[]}",
         "{\"shape\":[2,0],\"dtype\":\"float64\",\"base64\":\"\"}"},
        {3,
         {2, 0, 3},
         "[[],[]]",
         "{\"shape\":[2,0,3],\"data\":[]}",
         "{\"shape\":[2,0,3],\"dtype\":\"float64\",\"base64\":\"\"}"},
        {4,
         {1, 2, 2, 0},
         "[[[[],[]],[[],[]]]]",
         "{\"shape\":[1,2,2,0],\"data\":[]}",
         "{\"shape\":[1,2,2,0],\"dtype\":\"float64\",\"base64\":\"\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_text(TENSOR_WRITE_NESTED, TENSOR_WRITE_F64, NULL, cases[i].rank, cases[i].dim, cases[i].nested);
        expect_text(TENSOR_WRITE_FLAT, TENSOR_WRITE_F64, NULL, cases[i].rank, cases[i].dim, cases[i].flat);
        expect_text(TENSOR_WRITE_BASE64, TENSOR_WRITE_F64, NULL, cases[i].rank, cases[i].dim, cases[i].base64);
    }
}

static void rank_zero_is_a_bare_number(void **state) {
    (void)state;
    const double value = 0.25;
    expect_text(TENSOR_WRITE_NESTED, TENSOR_WRITE_F64, &value, 0, NULL, "0.25");
    expect_text(TENSOR_WRITE_FLAT, TENSOR_WRITE_F64, &value, 0, NULL, "{\"shape\":[],\"data\":[0.25]}");
}

static void many_empty_rows_are_written_in_small_blocks(void **state) {
    (void)state;
    const size_t dim[] = {1000, 0};
    char *text = write_all(TENSOR_WRITE_NESTED, TENSOR_WRITE_F64, NULL, 2, dim, TENSOR_WRITE_BLOCK_MIN);
    assert_int_equal(strlen(text), 2 + 1000 * 3 - 1);
    for (size_t i = 0; i < 1000; i++) assert_memory_equal(text + 1 + 3 * i, "[],", i < 999 ? 3 : 2);
    free(text);
}

static void fill(void *data, enum tensor_write_type type, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits();
        double unit = (double)(bits >> 11) * 0x1p-53;
        if (type == TENSOR_WRITE_BOOL) ((uint8_t *)data)[i] = bits & 1;
        if (type == TENSOR_WRITE_F32) ((float *)data)[i] = (float)(bits % 3 == 0 ? unit : (double)(bits % 1000) / 8);
        if (type != TENSOR_WRITE_F64) continue;
        if (bits % 3 == 0)
            memcpy((double *)data + i, &bits, sizeof bits); /* any finite value */
        else
            ((double *)data)[i] = bits % 3 == 1 ? unit : (double)(bits % 1000);
        if (!isfinite(((double *)data)[i])) ((double *)data)[i] = 1;
    }
}

static void blocks_of_any_size_give_the_same_bytes_that_read_back(void **state) {
    (void)state;
    double *data = malloc(6000 * sizeof *data);
    assert_non_null(data);
    for (int round = 0; round < 300; round++) {
        size_t rank = 1 + random_bits() % 5, dim[5], count = 1;
        for (size_t k = 0; k < rank; k++) count *= dim[k] = 1 + random_bits() % (k == 0 ? 20 : 4);
        enum tensor_write_type type = (enum tensor_write_type)(random_bits() % 3);
        fill(data, type, count);
        for (int format = TENSOR_WRITE_NESTED; format <= TENSOR_WRITE_BASE64; format++) {
            char *whole = write_all((enum tensor_write_format)format, type, data, rank, dim, 1 << 20);
            for (size_t block = TENSOR_WRITE_BLOCK_MIN; block < 530; block += 5) {
                char *text = write_all((enum tensor_write_format)format, type, data, rank, dim, block);
                assert_string_equal(text, whole);
                free(text);
            }
            char *text = write_all((enum tensor_write_format)format, type, data, rank, dim, 0);
            assert_string_equal(text, whole);
            free(text);
            cJSON *tree = cJSON_Parse(whole);
            assert_non_null(tree); /* JSON at all */
            cJSON_Delete(tree);
            if (format == TENSOR_WRITE_NESTED) {
                struct mem_budget budget = {.limit = SIZE_MAX};
                struct mem_arena *arena = mem_arena_new(&budget);
                struct mem_grow grow;
                struct tensor_text back;
                size_t used;
                assert_true(arena != NULL && mem_grow_init(&grow, arena));
                tensor_text_begin(&back, &grow, NULL, type == TENSOR_WRITE_F32 ? TENSOR_TEXT_F32 : TENSOR_TEXT_F64,
                                  TENSOR_TEXT_NUMBERS | TENSOR_TEXT_BOOLEANS);
                assert_int_equal(tensor_text_feed(&back, whole, strlen(whole), &used), TENSOR_TEXT_DONE);
                assert_int_equal(back.rank, rank);
                assert_memory_equal(back.dim, dim, rank * sizeof dim[0]);
                assert_memory_equal(grow.data, data, grow.size);
                mem_arena_free(arena);
            }
            free(whole);
        }
    }
    free(data);
}

static void base64_carries_the_bytes(void **state) {
    (void)state;
    double data[777];
    const size_t dim[] = {7, 111};
    for (size_t i = 0; i < 777; i++) {
        uint64_t bits = random_bits(); /* NaN and infinities, too */
        memcpy(data + i, &bits, sizeof bits);
    }
    char *text = write_all(TENSOR_WRITE_BASE64, TENSOR_WRITE_F64, data, 2, dim, 0);
    cJSON *tree = cJSON_Parse(text);
    const char *coded = cJSON_GetStringValue(cJSON_GetObjectItem(tree, "base64"));
    assert_non_null(coded);
    unsigned char back[sizeof data + 3];
    struct base64_decoder decoder;
    size_t written;
    base64_decode_begin(&decoder);
    assert_int_equal(base64_decode_feed(&decoder, coded, strlen(coded), back, &written), BASE64_OK);
    assert_int_equal(base64_decode_end(&decoder), BASE64_OK);
    assert_int_equal(written, sizeof data);
    assert_memory_equal(back, data, sizeof data);
    cJSON_Delete(tree);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_spellings_of_a_matrix),
        cmocka_unit_test(booleans_are_true_and_false),
        cmocka_unit_test(what_is_not_finite_becomes_null),
        cmocka_unit_test(empty_dimensions_end_the_nesting),
        cmocka_unit_test(rank_zero_is_a_bare_number),
        cmocka_unit_test(many_empty_rows_are_written_in_small_blocks),
        cmocka_unit_test(blocks_of_any_size_give_the_same_bytes_that_read_back),
        cmocka_unit_test(base64_carries_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

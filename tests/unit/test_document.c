/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_document.c - the document reader by itself: what ends up in struct request, at every split of the text, and
 * where errors are said to be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/document.h"

static struct mem_budget budget = {.limit = (size_t)64 << 20};

struct reading {
    struct mem_arena *arena;
    struct problem problem;
    struct request request;
    struct document document;
    bool ok;
};

static struct reading *begin(void) {
    struct reading *r = malloc(sizeof *r);
    r->arena = mem_arena_new(&budget);
    problem_init(&r->problem);
    request_init(&r->request, IN_MHA, r->arena, &budget, &r->problem);
    document_init(&r->document, &r->request);
    return r;
}

static void feed(struct reading *r, const char *text, size_t size) {
    char *copy = malloc(size + !size);
    memcpy(copy, text, size);
    document_feed(&r->document, copy, size);
    free(copy);
}

static void end(struct reading *r) {
    mem_arena_free(r->arena);
    free(r);
    assert_int_equal(atomic_load(&budget.used), 0);
}

static struct reading *read_cut(const char *text, size_t cut) {
    struct reading *r = begin();
    size_t size = strlen(text);
    if (cut > size) cut = size;
    feed(r, text, cut);
    feed(r, text + cut, size - cut);
    r->ok = document_end(&r->document);
    assert_int_equal(r->ok, r->problem.code == PROBLEM_NONE);
    return r;
}

static const char rich[] =
    "\t{ \"num\\u005fheads\" : 2 ,\n \"Q\" : [ [ 1.5 , -2e3 ] , [ 0 , 1e-3 ] ] "
    ",\r\n\"K\":{\"data\":[1,2,3,4],\"shape\":[2,2]},"
    "\"V\":{\"base64\":\"AAAAPwAA\\u0041M\\u0041\\u003d\",\"dtype\":\"float\\u00332\",\"shape\":[1,2]},"
    "\"attn_mask\":[[true,false],[false,true]],\"W_q\":null,\"key_lengths\":2,"
    "\"layer\":\"\xC3\xA9\\ud83d\\ude00\\\"\\\\\",\"window\":{\"left\":[{\"a\":[1,{}]}]},\"return\":[\"output\"]} \n";

static void check_rich(struct reading *r) {
    struct tensor *t = r->request.tensor;
    assert_true(r->ok);
    assert_true(t[T_Q].given && t[T_Q].rank == 2 && t[T_Q].dim[0] == 2 && t[T_Q].dim[1] == 2 &&
                t[T_Q].type == TENSOR_F64);
    const double q[] = {1.5, -2000, 0, 0.001}, k[] = {1, 2, 3, 4};
    const float v[] = {0.5f, -2};
    assert_memory_equal(t[T_Q].data, q, sizeof q);
    assert_true(t[T_K].given && t[T_K].rank == 2 && t[T_K].dim[0] == 2 && t[T_K].from_text);
    assert_memory_equal(t[T_K].data, k, sizeof k);
    assert_true(t[T_V].given && t[T_V].type == TENSOR_F32 && t[T_V].dim[1] == 2 && !t[T_V].from_text);
    assert_memory_equal(t[T_V].data, v, sizeof v);
    assert_true(t[T_attn_mask].type == TENSOR_BOOL && t[T_attn_mask].seen == TENSOR_TEXT_BOOLEANS);
    assert_memory_equal(t[T_attn_mask].data, "\1\0\0\1", 4);
    assert_true(t[T_W_q].null && !t[T_W_q].given && !t[T_W_k].null);
    assert_true(t[T_key_lengths].given && t[T_key_lengths].rank == 0 && *(double *)t[T_key_lengths].data == 2);
    const cJSON *rest = r->request.rest;
    assert_int_equal(cJSON_GetArraySize(rest), 4);
    assert_int_equal(cJSON_GetObjectItem(rest, "num_heads")->valueint, 2);
    assert_string_equal(cJSON_GetObjectItem(rest, "layer")->valuestring, "\xC3\xA9\xF0\x9F\x98\x80\"\\");
    assert_non_null(cJSON_GetObjectItem(cJSON_GetObjectItem(rest, "window"), "left"));
}

static void a_document_is_read_the_same_at_every_split(void **state) {
    (void)state;
    for (size_t cut = 0; cut <= strlen(rich); cut++) {
        struct reading *r = read_cut(rich, cut);
        if (!r->ok) print_error("cut %zu: %s\n", cut, r->problem.detail);
        check_rich(r);
        end(r);
    }
}

static void a_document_is_read_the_same_byte_by_byte_with_empty_pieces(void **state) {
    (void)state;
    struct reading *r = begin();
    for (size_t i = 0; i < strlen(rich); i++) {
        feed(r, rich + i, 1);
        feed(r, rich + i, 0);
    }
    r->ok = document_end(&r->document);
    check_rich(r);
    end(r);
}

static void every_prefix_of_a_document_is_refused_at_its_end(void **state) {
    (void)state;
    size_t whole = strlen(rich) - 2; /* the last two bytes are white space */
    for (size_t n = 0; n < whole; n++) {
        char *text = strndup(rich, n);
        struct reading *r = read_cut(text, n / 2);
        assert_false(r->ok);
        bool empty = strspn(text, " \t\r\n") == n;
        assert_int_equal(r->problem.code, empty ? PROBLEM_JSON_EMPTY : PROBLEM_JSON_SYNTAX);
        if (!empty) assert_int_equal(r->problem.position, n);
        end(r);
        free(text);
    }
}

/* ---- places ---- */

static const struct {
    const char *text, *place;
} places[] = {
    {"x", "(line 1, column 1, byte 0)"},
    {"{\"scale\":1,\n\n  \"causal\" true}", "(line 3, column 12, byte 24)"},
    {"{\"Q\":[[1,2],\n[3,,4]]}", "(line 2, column 4, byte 16)"},
    {"{\"Q\":\n[\n[12345,\n678x]]}", "(line 4, column 4, byte 19)"},
    {"{\r\n\"Q\":[[1,\r\n  NaN]]}", "(line 3, column 3, byte 15)"},
    {"{\"Q\":[[1,\n1e999]]}", "(line 2, column 1, byte 10)"},
    {"{\n\"scale\":\n 1e999}", "(line 3, column 2, byte 12)"},
    {"{\"layer\":\"a\nb\"}", "(line 1, column 12, byte 11)"},
    {"{\"Q\":[[[[[[[[[1]]]]]]]]]}", "(line 1, column 14, byte 13)"},
    {"{\"K\":{\"shape\":[1,\n2,01]}}", "(line 2, column 3, byte 20)"},
};

static void errors_name_line_column_and_byte_at_every_split(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char first[sizeof((struct problem *)0)->detail] = "";
        for (size_t cut = 0; cut <= strlen(places[i].text); cut++) {
            struct reading *r = read_cut(places[i].text, cut);
            if (cut == 0) strcpy(first, r->problem.detail);
            bool ok = !r->ok && strstr(r->problem.detail, places[i].place) && strcmp(first, r->problem.detail) == 0;
            if (!ok)
                print_error("%s\n  cut at %zu: %s, wanted %s\n", places[i].text, cut, r->problem.detail,
                            places[i].place);
            wrong += !ok;
            end(r);
        }
    }
    assert_int_equal(wrong, 0);
}

static void after_an_error_the_rest_is_dropped(void **state) {
    (void)state;
    struct reading *r = begin();
    feed(r, "{\"Q\":[[1,2],[3]]", 16);
    assert_int_equal(r->problem.code, PROBLEM_RAGGED);
    for (int i = 0; i < 1000; i++) feed(r, "]}{{{\"\x01", 7);
    assert_false(document_end(&r->document));
    assert_int_equal(r->problem.code, PROBLEM_RAGGED);
    end(r);
}

/* ---- depth ---- */

static void brackets_outside_tensors_may_be_sixty_deep_and_not_more(void **state) {
    (void)state;
    for (size_t depth = 58; depth <= 61; depth++) {
        char text[300] = "{\"window\":";
        size_t at = strlen(text);
        for (size_t i = 0; i < depth; i++) text[at++] = '[';
        for (size_t i = 0; i < depth; i++) text[at++] = ']';
        strcpy(text + at, "}");
        struct reading *r = read_cut(text, 20);
        assert_int_equal(r->problem.code, depth + 1 <= DOCUMENT_DEPTH_MAX ? PROBLEM_NONE : PROBLEM_JSON_TOO_DEEP);
        end(r);
    }
    size_t deep = 1000000;
    char *text = malloc(deep + 1);
    memset(text, '[', deep);
    text[deep] = 0;
    struct reading *r = read_cut(text, 1000);
    assert_int_equal(r->problem.code, PROBLEM_JSON_TOO_DEEP);
    end(r);
    free(text);
}

/* ---- the precision ---- */

static void dtype_is_of_use_as_soon_as_it_was_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum tensor_type type;
        bool notes;
    } rows[] = {
        {"{\"dtype\":\"float32\",\"Q\":[[0.1]]}", TENSOR_F32, false},
        {"{\"dtype\" : \"float64\" ,\"Q\":[[0.1]]}", TENSOR_F64, false},
        {"{\"Q\":[[0.1]],\"dtype\":\"float32\"}", TENSOR_F64, false},
        {"{\"Q\":[[1.000000059604644775390626]],\"dtype\":\"float32\"}", TENSOR_F64, true},
        {"{\"dtype\":\"float\\u00332\",\"Q\":[[0.1]]}", TENSOR_F64, false}, /* later is right, too */
        {"{\"dtype\":\"float16\",\"Q\":[[0.1]]}", TENSOR_F64, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t cut = 0; cut <= strlen(rows[i].text); cut++) {
            struct reading *r = read_cut(rows[i].text, cut);
            assert_true(r->ok);
            assert_int_equal(r->request.tensor[T_Q].type, rows[i].type);
            assert_int_equal(r->request.tensor[T_Q].text != NULL, rows[i].notes);
            end(r);
        }
    }
}

/* ---- the budget of options ---- */

static void the_tree_of_options_is_charged_and_given_back(void **state) {
    (void)state;
    char *text = malloc(250000);
    size_t at = (size_t)sprintf(text, "{\"attention_heads\":[0");
    for (int i = 0; i < 100000; i++) at += (size_t)sprintf(text + at, ",1");
    strcpy(text + at, "]}");
    struct reading *r = read_cut(text, at / 2);
    assert_true(r->ok);
    assert_true(mem_arena_used(r->arena) >= 100000 * sizeof(cJSON));
    end(r);
    size_t limit = budget.limit;
    budget.limit = (size_t)4 << 20;
    r = read_cut(text, at / 2);
    assert_int_equal(r->problem.code, PROBLEM_MEMORY_TOO_LARGE);
    end(r);
    budget.limit = limit;
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_is_read_the_same_at_every_split),
        cmocka_unit_test(a_document_is_read_the_same_byte_by_byte_with_empty_pieces),
        cmocka_unit_test(every_prefix_of_a_document_is_refused_at_its_end),
        cmocka_unit_test(errors_name_line_column_and_byte_at_every_split),
        cmocka_unit_test(after_an_error_the_rest_is_dropped),
        cmocka_unit_test(brackets_outside_tensors_may_be_sixty_deep_and_not_more),
        cmocka_unit_test(dtype_is_of_use_as_soon_as_it_was_read),
        cmocka_unit_test(the_tree_of_options_is_charged_and_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_problem.c - the table of errors and the rendered document, also when texts are too long, hostile or cut.
 *
 * Rendered documents are read back by cJSON: an independent judge of whether they are JSON and of what they say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "../../api/problem.h"

static cJSON *render(const struct problem *p, const char *id) {
    char text[PROBLEM_TEXT_MAX];
    memset(text, 'x', sizeof text);
    size_t length = problem_render(p, id, text);
    assert_true(length < sizeof text);
    assert_int_equal(strlen(text), length);
    cJSON *json = cJSON_ParseWithLength(text, length);
    if (!json) print_error("%s\n", text);
    assert_non_null(json);
    return json;
}

static const char *member(const cJSON *json, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
}

static void every_code_has_a_status_a_unique_snake_case_name_and_a_title(void **state) {
    (void)state;
    for (int code = PROBLEM_NONE + 1; code < PROBLEM_COUNT; code++) {
        const char *name = problem_name((enum problem_code)code);
        int status = problem_status((enum problem_code)code);
        assert_true(status >= 400 && status <= 507);
        assert_non_null(name);
        assert_true(strlen(problem_title((enum problem_code)code)) > 8);
        for (const char *c = name; *c; c++)
            assert_true(islower((unsigned char)*c) || *c == '_' || isdigit((unsigned char)*c));
        for (int other = 0; other < code; other++)
            assert_string_not_equal(name, problem_name((enum problem_code)other));
    }
    assert_int_equal(problem_status(PROBLEM_NONE), 200);
    assert_int_equal(problem_status(PROBLEM_SHAPE_MISMATCH), 422);
    assert_int_equal(problem_status(PROBLEM_JSON_SYNTAX), 400);
    assert_int_equal(problem_status(PROBLEM_RESULT_TOO_LARGE), 413);
    assert_int_equal(problem_status((enum problem_code)9999), 500);
}

static void the_first_problem_stays(void **state) {
    (void)state;
    struct problem p;
    problem_init(&p);
    assert_false(problem_set(&p, PROBLEM_RAGGED, "/Q/1", "first %d", 1));
    assert_false(problem_set(&p, PROBLEM_RANK, "/K", "second"));
    problem_memory(&p, MEM_BUSY, &(struct mem_budget){.limit = 5}, "", 1, "x");
    assert_int_equal(p.code, PROBLEM_RAGGED);
    assert_string_equal(p.detail, "first 1");
    assert_string_equal(p.pointer, "/Q/1");
    assert_int_equal(p.limit, 0);
}

static void a_rendered_problem_has_the_members_of_the_contract(void **state) {
    (void)state;
    struct problem p;
    problem_init(&p);
    problem_set(&p, PROBLEM_SHAPE_MISMATCH, "/W_q", "W_q is [3,4] but Q has width 4");
    problem_expected(&p, "%d", 4);
    problem_actual(&p, "[%d,%d]", 3, 4);
    cJSON *json = render(&p, "id-1");
    assert_string_equal(member(json, "type"), "/problems/shape_mismatch");
    assert_string_equal(member(json, "title"), "Shapes do not fit together");
    assert_int_equal(cJSON_GetObjectItem(json, "status")->valueint, 422);
    assert_string_equal(member(json, "detail"), "W_q is [3,4] but Q has width 4");
    assert_string_equal(member(json, "code"), "shape_mismatch");
    assert_string_equal(member(json, "pointer"), "/W_q");
    assert_int_equal(cJSON_GetObjectItem(json, "expected")->valueint, 4);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "actual")), 2);
    assert_string_equal(member(json, "request_id"), "id-1");
    assert_null(cJSON_GetObjectItem(json, "stage"));
    assert_null(cJSON_GetObjectItem(json, "limit"));
    assert_null(cJSON_GetObjectItem(json, "position"));
    cJSON_Delete(json);
}

static void position_limit_size_and_stage_are_members_when_they_apply(void **state) {
    (void)state;
    struct problem p;
    problem_init(&p);
    problem_set(&p, PROBLEM_NON_FINITE_RESULT, "", "scores");
    p.position = 0;
    p.limit = 10;
    p.size = (size_t)1 << 40;
    strcpy(p.stage, "scores");
    p.rank = 2;
    p.index[0] = 1;
    p.index[1] = 7;
    cJSON *json = render(&p, NULL);
    assert_int_equal(cJSON_GetObjectItem(json, "position")->valueint, 0);
    assert_true(cJSON_GetObjectItem(json, "size")->valuedouble == 1099511627776.0);
    assert_string_equal(member(json, "stage"), "scores");
    assert_int_equal(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "index"), 1)->valueint, 7);
    assert_null(cJSON_GetObjectItem(json, "request_id"));
    assert_null(cJSON_GetObjectItem(json, "pointer"));
    cJSON_Delete(json);
}

static void hostile_text_stays_inside_its_string(void **state) {
    (void)state;
    struct problem p;
    problem_init(&p);
    problem_set(&p, PROBLEM_UNKNOWN_FIELD, "/a\"b\\",
                "quote \" backslash \\ newline \n escape \x1b delete \x7f e-acute \xC3\xA9 half \xC3");
    cJSON *json = render(&p, "\"},{\"");
    assert_string_equal(member(json, "detail"),
                        "quote \" backslash \\ newline \n escape \x1b delete \x7f e-acute \xC3\xA9 half \xEF\xBF\xBD");
    assert_string_equal(member(json, "pointer"), "/a\"b\\");
    assert_string_equal(member(json, "request_id"), "\"},{\"");
    cJSON_Delete(json);
}

/* Every length of every kind of text around the limits. */
static void texts_of_any_length_give_a_whole_document(void **state) {
    (void)state;
    static const char *const pieces[] = {"a", "\x01", "\xC3\xA9", "\xF0\x9F\x98\x80", "\xFF", "\\", "\xE2\x82"};
    for (size_t kind = 0; kind < sizeof pieces / sizeof *pieces; kind++) {
        char text[4000] = "";
        size_t n = strlen(pieces[kind]);
        for (size_t at = 0; at + n < 3000; at += n) memcpy(text + at, pieces[kind], n);
        for (size_t length = 600; length < 2900; length += 61) {
            char cut[4000];
            snprintf(cut, length, "%s", text);
            struct problem p;
            problem_init(&p);
            problem_set(&p, PROBLEM_NON_FINITE_RESULT, cut, "%s", cut);
            problem_expected(&p, "\"%s\"", "a long text that is cut nowhere");
            problem_actual(&p, "\"%0300d\"", 1); /* too long for the member: left out, not cut */
            memset(p.stage, 'x', sizeof p.stage - 1);
            p.stage[sizeof p.stage - 1] = 0;
            p.position = 1;
            p.limit = p.size = SIZE_MAX;
            cJSON *json = render(&p, cut);
            assert_non_null(member(json, "expected"));
            assert_null(cJSON_GetObjectItem(json, "actual"));
            assert_non_null(member(json, "code"));
            assert_non_null(member(json, "request_id"));
            cJSON_Delete(json);
        }
    }
}

static void pointers_escape_slash_and_tilde(void **state) {
    (void)state;
    char out[PROBLEM_POINTER_MAX];
    assert_string_equal(problem_pointer_index(out, "a/b~c", NULL, 0), "/a~1b~0c");
    assert_string_equal(problem_pointer_index(out, "Q", (size_t[]){0, 12}, 2), "/Q/0/12");
    char name[600];
    memset(name, '/', sizeof name);
    name[sizeof name - 1] = 0;
    problem_pointer_index(out, name, (size_t[]){5}, 1);
    assert_true(strlen(out) < sizeof out);
    assert_string_equal(problem_shape(out, (size_t[]){3, 4}, 2), "[3,4]");
    assert_string_equal(problem_shape(out, NULL, 0), "[]");
    size_t large[8] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    char shape[PROBLEM_SHAPE_MAX];
    problem_shape(shape, large, 8);
    assert_true(strlen(shape) < sizeof shape);
    assert_int_equal(shape[strlen(shape) - 1], ']');
}

static void memory_problems_are_413_or_503_with_limit_and_size(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 1000};
    static const struct {
        enum mem_status why;
        enum problem_code code;
        int status;
    } rows[] = {{MEM_TOO_LARGE, PROBLEM_MEMORY_TOO_LARGE, 413},
                {MEM_BUSY, PROBLEM_MEMORY_BUSY, 503},
                {MEM_FAILED, PROBLEM_OUT_OF_MEMORY, 503}};
    for (size_t i = 0; i < 3; i++) {
        struct problem p;
        problem_init(&p);
        assert_false(problem_memory(&p, rows[i].why, &budget, "/Q", 2000, "Q"));
        assert_int_equal(p.code, rows[i].code);
        assert_int_equal(problem_status(p.code), rows[i].status);
        assert_int_equal(p.limit, 1000);
        assert_int_equal(p.size, 2000);
        assert_non_null(strstr(p.detail, "2000"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_status_a_unique_snake_case_name_and_a_title),
        cmocka_unit_test(the_first_problem_stays),
        cmocka_unit_test(a_rendered_problem_has_the_members_of_the_contract),
        cmocka_unit_test(position_limit_size_and_stage_are_members_when_they_apply),
        cmocka_unit_test(hostile_text_stays_inside_its_string),
        cmocka_unit_test(texts_of_any_length_give_a_whole_document),
        cmocka_unit_test(pointers_escape_slash_and_tilde),
        cmocka_unit_test(memory_problems_are_413_or_503_with_limit_and_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

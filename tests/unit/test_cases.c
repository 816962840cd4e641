/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_cases.c - every file of tests/cases and tests/cases/conformance through api_call_* without HTTP: the body whole,
 * one byte at a time, and in pieces of seven.
 *
 * A case is compared as the contract says: the status, every member of `expect` (numbers by rtol and atol, NaN-safe), members
 * of the problem, words in its detail, members that must be absent. The answer is read back by cJSON, whose number reader is
 * strtod: a route independent of the product's own. The answers to the ways of feeding must be the same bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/post.h"

#define TOLERANCE_R 1e-12
#define TOLERANCE_A 1e-14

static struct mem_budget budget = {.limit = (size_t)1 << 30};
static const struct api_env env = {.budget = &budget, .max_body = (size_t)256 << 20, .threads = 1};

static struct answer feed(const char *body, size_t piece) {
    struct answer answer = post_pieces(&env, body, strlen(body), piece);
    assert_false(answer.refused);
    assert_int_equal(atomic_load(&budget.used), 0);
    return answer;
}

/* ---- comparing ---- */

/* Prints a line and is false. */
static bool no(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool no(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("    ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return false;
}

static bool close_enough(double expected, double actual, double rtol, double atol) {
    return fabs(expected - actual) <= atol + rtol * fabs(expected);
}

/* Everything in `expected` is in `actual`; says where not. */
static bool contains(const cJSON *expected, const cJSON *actual, double rtol, double atol, char *path, size_t at) {
    if (!actual) return no("%s is missing", path);
    if (cJSON_IsNumber(expected)) {
        if (cJSON_IsNumber(actual) && close_enough(expected->valuedouble, actual->valuedouble, rtol, atol)) return true;
        return no("%s: expected %.17g, got %.17g", path, expected->valuedouble, actual->valuedouble);
    }
    if (cJSON_IsString(expected))
        return cJSON_IsString(actual) && strcmp(expected->valuestring, actual->valuestring) == 0;
    if (!cJSON_IsArray(expected) && !cJSON_IsObject(expected)) return (expected->type & 0xFF) == (actual->type & 0xFF);
    if ((expected->type & 0xFF) != (actual->type & 0xFF)) return no("%s is of another kind", path);
    if (cJSON_IsArray(expected) && cJSON_GetArraySize(expected) != cJSON_GetArraySize(actual))
        return no("%s: expected %d elements, got %d", path, cJSON_GetArraySize(expected), cJSON_GetArraySize(actual));
    const cJSON *other = actual->child;
    size_t i = 0;
    for (const cJSON *child = expected->child; child; child = child->next, i++) {
        const cJSON *twin = cJSON_IsArray(expected) ? other : cJSON_GetObjectItemCaseSensitive(actual, child->string);
        int n = cJSON_IsArray(expected) ? snprintf(path + at, 200 - at, "/%zu", i)
                                        : snprintf(path + at, 200 - at, "/%s", child->string);
        if (!contains(child, twin, rtol, atol, path, at + (size_t)n)) return false;
        path[at] = 0;
        if (other) other = other->next;
    }
    return true;
}

static bool status_allowed(const cJSON *status, int actual) {
    if (cJSON_IsNumber(status)) return status->valueint == actual;
    const cJSON *one;
    cJSON_ArrayForEach(one, status) if (one->valueint == actual) return true;
    return false;
}

static bool names_all(const cJSON *names, const char *detail) {
    const cJSON *name;
    cJSON_ArrayForEach(name, names) {
        char text[64];
        if (cJSON_IsString(name))
            snprintf(text, sizeof text, "%s", name->valuestring);
        else
            snprintf(text, sizeof text, "%.17g", name->valuedouble);
        if (!strstr(detail, text)) return no("the detail does not name %s: %s", text, detail);
    }
    return true;
}

static double number_or(const cJSON *object, const char *name, double otherwise) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(value) ? value->valuedouble : otherwise;
}

static bool judge(const cJSON *file, const struct answer *answer) {
    const cJSON *expect = cJSON_GetObjectItemCaseSensitive(file, "expect"), *name;
    const cJSON *problem = cJSON_GetObjectItemCaseSensitive(expect, "problem");
    char path[256] = "";
    if (!status_allowed(cJSON_GetObjectItemCaseSensitive(file, "status"), answer->status))
        return no("status %d: %.300s", answer->status, answer->text);
    cJSON *got = cJSON_Parse(answer->text);
    bool ok = got && contains(problem ? problem : expect, got, number_or(file, "rtol", TOLERANCE_R),
                              number_or(file, "atol", TOLERANCE_A), path, 0);
    cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(file, "absent")) {
        if (!cJSON_GetObjectItemCaseSensitive(got, name->valuestring)) continue;
        printf("    %s must be absent\n", name->valuestring);
        ok = false;
    }
    const cJSON *detail = cJSON_GetObjectItemCaseSensitive(got, "detail");
    if (problem && !cJSON_IsString(detail)) ok = no("the problem has no detail");
    if (detail && !names_all(cJSON_GetObjectItemCaseSensitive(file, "detail_names"), detail->valuestring)) ok = false;
    if (!ok) printf("    %.300s\n", answer->text);
    cJSON_Delete(got);
    return ok;
}

/* ---- the files ---- */

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*length + 1);
    assert_int_equal(fread(text, 1, *length, file), *length);
    text[*length] = 0;
    fclose(file);
    return text;
}

static bool run_case(const char *path) {
    size_t length;
    char *text = read_file(path, &length);
    cJSON *file = cJSON_Parse(text);
    assert_non_null(file);
    const cJSON *raw = cJSON_GetObjectItemCaseSensitive(file, "request_text");
    char *body =
        raw ? strdup(raw->valuestring) : cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(file, "request"));
    struct answer whole = feed(body, SIZE_MAX >> 1);
    struct answer bytes = feed(body, 1);
    struct answer sevens = feed(body, 7);
    bool ok = judge(file, &whole);
    if (bytes.length != whole.length || memcmp(bytes.text, whole.text, whole.length) != 0)
        ok = no("fed byte by byte the answer differs:\n    %.400s\n    %.400s", whole.text, bytes.text);
    if (sevens.length != whole.length || memcmp(sevens.text, whole.text, whole.length) != 0)
        ok = no("fed in sevens the answer differs: %.400s", sevens.text);
    free(whole.text);
    free(bytes.text);
    free(sevens.text);
    free(body);
    free(text);
    cJSON_Delete(file);
    return ok;
}

static void run_folder(const char *folder, int at_least) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int run = 0, wrong = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[600];
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".json") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        run++;
        if (run_case(path)) continue;
        printf("  FAILED %s\n", path);
        wrong++;
    }
    closedir(dir);
    printf("  %d cases, %d wrong\n", run, wrong);
    assert_int_equal(wrong, 0);
    assert_true(run >= at_least);
}

static void every_case_gets_its_answer(void **state) {
    (void)state;
    run_folder("tests/cases", 80);
}

static void every_conformance_case_gets_its_answer(void **state) {
    (void)state;
    run_folder("tests/cases/conformance", 150);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_gets_its_answer),
        cmocka_unit_test(every_conformance_case_gets_its_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_cases_http.c - replays every file of tests/cases against the real server.
 *
 * A case is {"name","about","request"|"request_text","status","expect","rtol","atol","detail_names","absent"}: the
 * request is POSTed to /v1/mha; the status must be (one of) `status`; every member of `expect` must be in the answer,
 * tensors element by element within the tolerances; {"problem": {...}} compares those members of an error; `detail`
 * must contain the words of `detail_names`; the fields of `absent` must not be there. One test per file, all over one
 * kept connection.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool status_allowed(const cJSON *allowed, long status) {
    if (cJSON_IsNumber(allowed)) return (long)allowed->valuedouble == status;
    for (const cJSON *each = allowed ? allowed->child : NULL; each; each = each->next)
        if ((long)each->valuedouble == status) return true;
    return false;
}

static double member(const cJSON *document, const char *name) {
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(document, name);
    return cJSON_IsNumber(number) ? number->valuedouble : 0;
}

static void check_problem_form(const struct reply *reply, const cJSON *answer) {
    static const char *const members[] = {"type", "title", "detail", "code", "request_id"};
    char type[100] = "";
    reply_header(reply, "Content-Type", type, sizeof type);
    assert_string_equal(type, "application/problem+json");
    for (size_t i = 0; i < 5; i++)
        if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(answer, members[i])))
            fail_msg("no %s in %s", members[i], reply->body);
    assert_int_equal((long)member(answer, "status"), reply->status);
}

static void check_words(const cJSON *document, const cJSON *answer) {
    const cJSON *words = cJSON_GetObjectItemCaseSensitive(document, "detail_names");
    const cJSON *member_detail = cJSON_GetObjectItemCaseSensitive(answer, "detail");
    const char *detail = cJSON_IsString(member_detail) ? member_detail->valuestring : "";
    for (const cJSON *word = words ? words->child : NULL; word; word = word->next) {
        char number[32];
        snprintf(number, sizeof number, "%.17g", word->valuedouble);
        const char *wanted = cJSON_IsString(word) ? word->valuestring : number;
        if (!strstr(detail, wanted)) fail_msg("the detail \"%s\" does not say \"%s\"", detail, wanted);
    }
    const cJSON *absent = cJSON_GetObjectItemCaseSensitive(document, "absent");
    for (const cJSON *name = absent ? absent->child : NULL; name; name = name->next)
        if (cJSON_GetObjectItemCaseSensitive(answer, name->valuestring))
            fail_msg("%s should not be there", name->valuestring);
}

static void replay(void **state) {
    const struct http_case *entry = *state;
    struct request request = {.path = "/v1/mha", .body = entry->body, .size = entry->body_size};
    struct reply reply = client_send(group_client, &group_service, &request);
    if (!status_allowed(cJSON_GetObjectItemCaseSensitive(entry->document, "status"), reply.status))
        fail_msg("status %ld (%s): %.600s", reply.status, curl_easy_strerror(reply.curl), reply.body);
    cJSON *answer = reply_json(&reply);
    if (reply.status >= 400) check_problem_form(&reply, answer);
    check_words(entry->document, answer);

    const cJSON *expect = cJSON_GetObjectItemCaseSensitive(entry->document, "expect");
    const cJSON *problem = cJSON_GetObjectItemCaseSensitive(expect, "problem");
    char where[1024] = "";
    if (!json_matches(answer, problem ? problem : expect, member(entry->document, "rtol"),
                      member(entry->document, "atol"), where, sizeof where))
        fail_msg("%s\n  answer: %.800s", where, reply.body);
    cJSON_Delete(answer);
    reply_free(&reply);
}

int main(void) {
    size_t count;
    struct http_case *cases = http_cases_load(&count);
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (!tests) return 1;
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name, .test_func = replay, .initial_state = &cases[i]};
    int failed = _cmocka_run_group_tests("cases", tests, count, group_start, group_stop);
    free(tests);
    http_cases_free(cases, count);
    return failed;
}

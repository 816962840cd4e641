/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_server_parts.c - the parts of the server that need no socket: options, times and sizes, media types, the heap
 * of deadlines, CPU quotas, tokens, texts, the route table, lines of the log.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../server/config.h"
#include "../../server/cpus.h"
#include "../../server/deadline.h"
#include "../../server/log.h"
#include "../../server/media.h"
#include "../../server/routes.h"
#include "../../server/text.h"
#include "../../server/token.h"

/* ---- options -------------------------------------------------------------------------------------------------------- */

static void durations_have_units_and_sizes_too(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t ns; /* UINT64_MAX: refused */
    } times[] = {{"30s", 30000000000u},
                 {"500ms", 500000000},
                 {"2m", 120000000000u},
                 {"1h", 3600000000000u},
                 {"7", 7000000000u},
                 {"1.5s", 1500000000},
                 {"0.25", 250000000},
                 {"10us", 10000},
                 {"0s", 0},
                 {"1.0000000019s", 1000000001},
                 {"", UINT64_MAX},
                 {"s", UINT64_MAX},
                 {"-1s", UINT64_MAX},
                 {"1 s", UINT64_MAX},
                 {"1.s", UINT64_MAX},
                 {"1e3s", UINT64_MAX},
                 {"5d", UINT64_MAX},
                 {"99999999999999999999s", UINT64_MAX},
                 {"18446744073s", 18446744073000000000u},
                 {"18446744074s", UINT64_MAX},
                 {" 1s", UINT64_MAX},
                 {"1S", UINT64_MAX}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        uint64_t ns = 0;
        bool good = config_duration(times[i].text, &ns);
        if (good != (times[i].ns != UINT64_MAX) || (good && ns != times[i].ns))
            fail_msg("\"%s\": %d, %llu", times[i].text, good, (unsigned long long)ns);
    }
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"4096", 4096},           {"256MiB", 268435456},
                 {"2GiB", 2147483648u},    {"1GB", 1000000000},
                 {"1.5KiB", 1536},         {"3kB", 3000},
                 {"1TiB", 1099511627776u}, {"12QiB", UINT64_MAX},
                 {"", UINT64_MAX},         {"17179869184GiB", UINT64_MAX},
                 {"0x10", UINT64_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t bytes = 0;
        bool good = config_bytes(sizes[i].text, &bytes);
        if (good != (sizes[i].bytes != UINT64_MAX) || (good && bytes != sizes[i].bytes))
            fail_msg("\"%s\"", sizes[i].text);
    }
}

static int read_config(struct config *config, const char *const *words, char **environment, char *said, size_t size) {
    char *argv[16] = {"mhad"};
    int argc = 1;
    for (; words && words[argc - 1]; argc++) argv[argc] = (char *)(uintptr_t)words[argc - 1];
    FILE *out = fmemopen(said, size, "w");
    int status = config_read(config, argc, argv, environment, out, out);
    fclose(out);
    return status;
}

static void every_default_reads_back_and_flag_forms_agree(void **state) {
    (void)state;
    char said[512] = "", *none[] = {NULL};
    struct config config;
    assert_int_equal(read_config(&config, NULL, none, said, sizeof said), -1);
    assert_string_equal(config.host, "127.0.0.1");
    assert_int_equal(config.port, 8080);
    assert_int_equal(config.max_body, 256 << 20);
    assert_int_equal(config.request_timeout, 30000000000u);
    assert_int_equal(config.unix_mode, 0660);
    assert_false(config.port_given);
    const char *const separate[] = {"--port", "9000", "--no-page", NULL}, *const joined[] = {"--port=9000",
                                                                                             "--no-page=true", NULL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read_config(&config, i ? joined : separate, none, said, sizeof said), -1);
        assert_int_equal(config.port, 9000);
        assert_true(config.no_page && config.port_given && !config.host_given);
    }
    char *environment[] = {"MHAD_PORT=7000", "MHAD_NO_PAGE=1", "MHAD_LOG=text", "PORT=1", "MHAD_DRAIN=", NULL};
    const char *const off[] = {"--no-page=false", NULL};
    assert_int_equal(read_config(&config, off, environment, said, sizeof said), -1);
    assert_int_equal(config.port, 7000);
    assert_int_equal(config.log, LOG_TEXT);
    assert_int_equal(config.drain, 10000000000u);
    assert_false(config.no_page);
}

/* ---- media types ------------------------------------------------------------------------------------------------------ */

static void accept_is_read_with_ranges_and_qualities(void **state) {
    (void)state;
    enum { NONE = 9 };
    static const struct {
        const char *accept;
        int media;
    } rows[] = {{NULL, API_JSON},
                {"", API_JSON},
                {"*/*", API_JSON},
                {"application/json", API_JSON},
                {"application/vnd.safetensors", API_SAFETENSORS},
                {"application/*", API_JSON},
                {"application/json;q=0.5, application/vnd.safetensors", API_SAFETENSORS},
                {"application/json;q=0.5,application/vnd.safetensors;q=0.4", API_JSON},
                {"text/html", NONE},
                {"text/html, */*;q=0.1", API_JSON},
                {"application/json;q=0, */*", API_SAFETENSORS},
                {"application/json;q=0", NONE},
                {"APPLICATION/JSON", API_JSON},
                {"application/json; charset=utf-8", API_JSON},
                {"application/vnd.safetensors;q=0.999, */*;q=1.0", API_JSON},
                {"application/jsonx", NONE},
                {",,", NONE},
                {"*/*;q=0", NONE},
                {"application/vnd.safetensors ; q=1", API_SAFETENSORS}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum api_media media = API_JSON;
        bool good = media_accepted(rows[i].accept, MEDIA(API_JSON) | MEDIA(API_SAFETENSORS), &media);
        if (good != (rows[i].media != NONE) || (good && (int)media != rows[i].media)) fail_msg("%s", rows[i].accept);
    }
    enum api_media media = API_JSON;
    assert_false(media_accepted("application/vnd.safetensors", MEDIA(API_JSON), &media));
    assert_true(media_of_body("application/json; charset=utf-8", MEDIA(API_JSON), &media));
    assert_true(media_of_body(" Application/VND.safetensors", MEDIA(API_SAFETENSORS), &media) &&
                media == API_SAFETENSORS);
    assert_false(media_of_body("application/vnd.safetensors", MEDIA(API_JSON), &media));
    assert_false(media_of_body("text/plain", MEDIA(API_JSON), &media));
    assert_false(media_of_body(NULL, MEDIA(API_JSON), &media));
}

/* ---- deadlines ---------------------------------------------------------------------------------------------------------- */

static void the_heap_gives_the_earliest_under_any_moves(void **state) {
    (void)state;
    enum { COUNT = 300 };
    static struct deadline deadline[COUNT];
    struct deadline_heap heap = {0};
    assert_true(deadline_reserve(&heap, COUNT));
    uint64_t seed = 88172645463325252u;
    for (int step = 0; step < 20000; step++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17; /* xorshift64 (Marsaglia 2003) */
        struct deadline *one = &deadline[seed % COUNT];
        deadline_set(&heap, one, seed >> 40 & 3 ? (seed >> 20) % 1000 + 1 : 0);
        uint64_t earliest = UINT64_MAX;
        size_t count = 0;
        for (size_t i = 0; i < COUNT; i++) {
            if (!deadline[i].at) continue;
            count++;
            if (deadline[i].at < earliest) earliest = deadline[i].at;
        }
        assert_int_equal(heap.count, count);
        if (count)
            assert_int_equal(deadline_first(&heap)->at, earliest);
        else
            assert_null(deadline_first(&heap));
    }
    deadline_heap_free(&heap);
}

/* ---- CPUs ------------------------------------------------------------------------------------------------------------------ */

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void the_least_quota_of_the_own_group_and_those_above_counts(void **state) {
    (void)state;
    char folder[] = "/tmp/mhad-test-cgroup-XXXXXX", membership[64], command[128];
    assert_non_null(mkdtemp(folder));
    snprintf(membership, sizeof membership, "%s/self", folder);
    put(folder, "self", "0::/a/b\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 8); /* no file says anything */
    put(folder, "a/b/cpu.max", "max 100000\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 8);
    put(folder, "a/cpu.max", "350000 100000\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 4); /* 3.5, rounded up */
    put(folder, "a/b/cpu.max", "50000 100000\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 1);
    put(folder, "cpu.max", "600000 100000\n");
    put(folder, "self", "0::/\n"); /* a container sees itself at the root */
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 6);
    assert_int_equal(cpus_from_cgroup(folder, membership, 2), 2); /* the affinity mask is smaller */
    put(folder, "self", "12:memory:/x\n4:cpu,cpuacct:/x\n");
    put(folder, "cpu,cpuacct/x/cpu.cfs_quota_us", "250000\n");
    put(folder, "cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 3);
    put(folder, "cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 8), 8);
    put(folder, "self", "nonsense\n::\n");
    assert_int_equal(cpus_from_cgroup(folder, membership, 5), 5);
    assert_int_equal(cpus_from_cgroup(folder, "/nonexistent", 5), 5);
    assert_true(cpus_granted() >= 1);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------ */

static void a_token_list_that_is_bad_changes_nothing(void **state) {
    (void)state;
    char path[] = "/tmp/mhad-test-tokens-XXXXXX", why[200], text[1024];
    struct token_list list = {0};
    assert_true(tokens_allow(&list, NULL)); /* none is asked for */
    close(mkstemp(path));
    put("", path + 1, "alpha\n");
    assert_true(tokens_read(&list, path, why, sizeof why));
    assert_true(tokens_allow(&list, "Bearer alpha"));
    assert_false(tokens_allow(&list, NULL));
    memset(text, 'x', 600);
    text[600] = '\0';
    put("", path + 1, text);
    assert_false(tokens_read(&list, path, why, sizeof why));
    assert_non_null(strstr(why, "longer"));
    put("", path + 1, "# nothing\n");
    assert_false(tokens_read(&list, path, why, sizeof why));
    unlink(path);
    assert_false(tokens_read(&list, path, why, sizeof why));
    assert_true(tokens_allow(&list, "Bearer alpha"));
    memcpy(text, "Bearer ", 7);
    assert_false(tokens_allow(&list, text)); /* longer than any token can be */
    tokens_free(&list);
    assert_true(list.required);
    assert_false(tokens_allow(&list, "Bearer alpha")); /* and never open by accident */
}

/* ---- texts, the log ------------------------------------------------------------------------------------------------------------ */

static void texts_are_cut_and_never_overrun(void **state) {
    (void)state;
    char buffer[16];
    memset(buffer, '#', sizeof buffer);
    struct text out = text_in(buffer, 8);
    text_add(&out, "abc");
    text_format(&out, "%d", 12345);
    assert_string_equal(buffer, "abc1234");
    assert_true(out.cut);
    text_json(&out, "more");
    assert_string_equal(buffer, "abc1234");
    assert_int_equal(buffer[8], '#');
    char wide[256];
    out = text_in(wide, sizeof wide);
    text_json(&out, "a\"b\\c\n\x01\x7f\xc3\xa9\xff\xed\xa0\x80");
    assert_string_equal(wide, "\"a\\\"b\\\\c\\u000a\\u0001\\u007f\xc3\xa9\\ufffd\\ufffd\\ufffd\\ufffd\"");
    out = text_in(wide, sizeof wide);
    text_ms(&out, 1234567);
    text_add(&out, " ");
    text_seconds(&out, 1000000001);
    text_add(&out, " ");
    text_decimal(&out, UINT64_MAX);
    text_add(&out, " ");
    text_decimal(&out, 0);
    text_add(&out, " ");
    text_hex(&out, 0x0123456789abcdefu);
    text_add(&out, " ");
    text_second(&out, 951827696); /* a leap day */
    assert_string_equal(wide, "1.234 1.000000001 18446744073709551615 0 0123456789abcdef 2000-02-29T12:34:56");
}

static void a_log_line_is_whole_or_not_there(void **state) {
    (void)state;
    char path[] = "/tmp/mhad-test-log-XXXXXX", *text = calloc(1, 1 << 20), *huge = malloc(70000);
    int fd = mkstemp(path);
    struct log log;
    log_open(&log, LOG_JSON, LOG_INFO, fd);
    assert_false(log_begin(&log, LOG_DEBUG, "quiet"));
    for (int i = 0; i < 1000; i++) log_message(&log, LOG_INFO, "many", "number %d \"quoted\"", i);
    memset(huge, 'x', 69999);
    huge[69999] = '\0';
    assert_true(log_begin(&log, LOG_INFO, "huge")); /* longer than the buffer */
    log_string(&log, "value", huge);
    log_end(&log);
    log_message(&log, LOG_INFO, "last", "end");
    log_close(&log);
    assert_int_equal(log.dropped, 1);
    assert_true(pread(fd, text, (1 << 20) - 1, 0) > 0);
    size_t lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++)
        if (line[0] != '{' || line[strlen(line) - 1] != '}') fail_msg("%s", line);
    assert_int_equal(lines, 1001);
    close(fd);
    unlink(path);
    free(text);
    free(huge);
}

/* ---- routes ---------------------------------------------------------------------------------------------------------------------- */

static void routes_are_found_by_method_and_path(void **state) {
    (void)state;
    struct route_match match;
    route_find(&match, "POST", "/v1/mha");
    assert_non_null(match.route);
    route_find(&match, "HEAD", "/healthz");
    assert_true(match.route && match.head);
    route_find(&match, "HEAD", "/v1/mha"); /* no GET, so no HEAD */
    assert_true(!match.route && match.path);
    route_find(&match, "GET", "http://example/healthz");
    assert_non_null(match.route);
    route_find(&match, "GET", "http://example");
    assert_string_equal(match.route->path, "/");
    route_find(&match, "PUT", "/v1/layers/block 0.attn");
    assert_true(match.route && !strcmp(match.name, "block 0.attn"));
    static const char *const nowhere[] = {"",          "/v1/mha/",  "/v1", "/v1/layers/", "/v1/layers/a/b",
                                          "//healthz", "/healthz?x"};
    for (size_t i = 0; i < sizeof nowhere / sizeof nowhere[0]; i++) {
        route_find(&match, "GET", nowhere[i]);
        if (match.path) fail_msg("%s is %s", nowhere[i], match.path->path);
    }
    char methods[128];
    route_find(&match, "PATCH", "/v1/layers/a");
    assert_true(match.path && !match.route);
    route_methods(match.path, methods, sizeof methods);
    assert_string_equal(methods, "PUT, GET, HEAD, DELETE, OPTIONS");
    for (size_t i = 0; route_at(i); i++) assert_int_equal(route_index(route_at(i)), i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_have_units_and_sizes_too),
        cmocka_unit_test(every_default_reads_back_and_flag_forms_agree),
        cmocka_unit_test(accept_is_read_with_ranges_and_qualities),
        cmocka_unit_test(the_heap_gives_the_earliest_under_any_moves),
        cmocka_unit_test(the_least_quota_of_the_own_group_and_those_above_counts),
        cmocka_unit_test(a_token_list_that_is_bad_changes_nothing),
        cmocka_unit_test(texts_are_cut_and_never_overrun),
        cmocka_unit_test(a_log_line_is_whole_or_not_there),
        cmocka_unit_test(routes_are_found_by_method_and_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

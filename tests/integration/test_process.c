/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_process.c - what an operator sees: flags, help, exit statuses, metrics, logs, the OpenAPI document.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "../../api/fields.h"
#include "../../server/config.h"
#include "../../server/routes.h"
/* server/request.h and the harness both have a `struct service`; only the tables are needed here */
#include "raw.h"

/* Runs the binary with `environment` and `arguments`; its exit status. stdout and stderr go to `said`. */
static int run(const char *environment, const char *arguments, char *said, size_t size) {
    char command[1024];
    snprintf(command, sizeof command, "%s timeout 10 %s %s 2>&1", environment, getenv("TEST_MHAD"), arguments);
    FILE *pipe = popen(command, "r");
    size_t got = fread(said, 1, size - 1, pipe);
    said[got] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static size_t lines(const char *text) {
    size_t count = 0;
    for (; *text; text++) count += *text == '\n';
    return count;
}

/* ---- flags --------------------------------------------------------------------------------------------------------------------- */

static void a_bad_flag_variable_or_file_ends_with_status_2_and_one_line(void **state) {
    (void)state;
    static const struct {
        const char *environment, *arguments, *word;
    } rows[] = {
        {"", "--port 99999", "--port"},
        {"", "--port -1", "--port"},
        {"", "--port 80x", "--port"},
        {"", "--port", "--port needs a value"},
        {"", "--prot 80", "--prot"},
        {"", "8080", "8080"},
        {"", "--max-body 12QiB", "--max-body"},
        {"", "--max-body 1", "--max-body"},
        {"", "--max-body 4GiB --max-memory 1GiB", "larger than --max-memory"},
        {"", "--request-timeout 0s", "--request-timeout"},
        {"", "--request-timeout soon", "--request-timeout"},
        {"", "--unix-mode 0888", "--unix-mode"},
        {"", "--log xml", "json|text|off"},
        {"", "--threads 100000", "--threads"},
        {"", "--isa z80", "--isa"},
        {"", "--token-file /nonexistent", "--token-file"},
        {"", "--token-file /dev/null", "no token"},
        {"", "--tls-cert /nonexistent", "come together"},
        {"", "--tls-cert /nonexistent --tls-key /nonexistent", "TLS"},
        {"", "--host 256.1.1.1.example.invalid", "--host"},
        {"", "--host 192.0.2.1 --port 0", "192.0.2.1"},
        {"", "--port 0 --port-file /nonexistent/file", "--port-file"},
        {"", "--unix /nonexistent/dir/sock", "--unix"},
        {"", "--layers-writable", "--layers"},
        {"MHAD_PORT=nine", "", "MHAD_PORT"},
        {"MHAD_NO_PAGE=perhaps", "", "MHAD_NO_PAGE"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char said[2048];
        int status = run(rows[i].environment, rows[i].arguments, said, sizeof said);
        if (status != 2 || lines(said) != 1 || !strstr(said, rows[i].word) || strncmp(said, "mhad: ", 6) != 0)
            fail_msg("%s %s: status %d, said: %s", rows[i].environment, rows[i].arguments, status, said);
    }
}

static void a_port_in_use_is_named(void **state) {
    (void)state;
    struct service service;
    char arguments[64], said[512];
    service_start(&service, NULL);
    snprintf(arguments, sizeof arguments, "--port %d", service.port);
    assert_int_equal(run("", arguments, said, sizeof said), 2);
    assert_non_null(strstr(said, "Address already in use"));
    assert_int_equal(lines(said), 1);
    snprintf(arguments, sizeof arguments, "--healthcheck --port %d", service.port);
    assert_int_equal(run("", arguments, said, sizeof said), 0);
    assert_int_equal(service_stop(&service), 0);
    assert_int_equal(run("", arguments, said, sizeof said), 1);
}

static void the_flag_beats_the_variable_and_the_variable_the_default(void **state) {
    (void)state;
    char said[8192];
    assert_int_equal(run("MHAD_THREADS=3 MHAD_MAX_BODY=1MiB", "--threads 2 --print-config", said, sizeof said), 0);
    assert_non_null(strstr(said, "threads=2\t(flag)\n"));
    assert_non_null(strstr(said, "max-body=1MiB\t(environment)\n"));
    assert_non_null(strstr(said, "max-memory=2GiB\t(default)\n"));
    assert_non_null(strstr(said, "request-timeout=30s\t(default)\n"));
    /* what Kubernetes puts into every pod beside a service called mhad is not for us */
    assert_int_equal(run("MHAD_PORT=tcp://10.0.0.1:80 MHAD_SERVICE_HOST=10.0.0.1 MHAD_PORT_80_TCP=x MHAD_HOST=",
                         "--print-config", said, sizeof said),
                     0);
    assert_non_null(strstr(said, "port=8080\t(default)\n"));
    assert_non_null(strstr(said, "host=127.0.0.1\t(default)\n"));
}

static void help_names_every_flag_and_version_the_version(void **state) {
    (void)state;
    char said[16384], flag[64];
    assert_int_equal(run("", "--help", said, sizeof said), 0);
    for (size_t i = 0; config_flag(i); i++) {
        snprintf(flag, sizeof flag, "  --%s", config_flag(i));
        if (!strstr(said, flag)) fail_msg("%s is not in --help", flag);
    }
    assert_int_equal(run("", "--version", said, sizeof said), 0);
    assert_string_equal(said, "mhad " MHA_VERSION "\n");
}

static void the_readme_names_every_flag(void **state) {
    (void)state;
    char flag[64];
    size_t size;
    char *readme = file_read("README.md", &size);
    if (!readme) skip();
    for (size_t i = 0; config_flag(i); i++) {
        snprintf(flag, sizeof flag, "--%s", config_flag(i));
        if (!strstr(readme, flag)) fail_msg("%s is not in README.md", flag);
    }
    free(readme);
}

static void port_file_gets_the_port(void **state) {
    (void)state;
    static const char *const arguments[] = {"--port", "0", "--port-file", "/tmp/mhad-test-port", NULL};
    struct service service;
    size_t size;
    service_start(&service, arguments);
    char *text = file_read("/tmp/mhad-test-port", &size);
    assert_int_equal(atoi(text), service.port);
    free(text);
    unlink("/tmp/mhad-test-port");
    assert_int_equal(service_stop(&service), 0);
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------------- */

static struct answer ask(const struct service *service, const char *text) {
    int fd = service_connect(service);
    raw_say(fd, text);
    struct answer answer = raw_answer(fd, 5000);
    close(fd);
    return answer;
}

static void head_has_the_headers_of_get_and_no_body(void **state) {
    (void)state;
    static const char *const paths[] = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/"};
    struct service service;
    service_start(&service, NULL);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char text[256];
        int fd = service_connect(&service);
        snprintf(text, sizeof text, "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
                 paths[i]);
        raw_say(fd, text);
        struct answer answer = {0};
        assert_true(raw_read_head(fd, &answer, 5000));
        assert_int_equal(answer.status, 200);
        assert_true(atoi(raw_header(answer.head, "Content-Length")) > 10);
        answer = raw_answer(fd, 5000); /* the next answer begins right behind the head */
        assert_int_equal(answer.status, 200);
        assert_non_null(strstr(answer.body, "alive"));
        answer_free(&answer);
        close(fd);
    }
    assert_int_equal(service_stop(&service), 0);
}

static void request_ids_are_echoed_or_made_and_never_dirty(void **state) {
    (void)state;
    struct service service;
    char seen[2][64];
    service_start(&service, NULL);
    struct answer answer = ask(&service, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: a-b_c.1:2/3+4=5@6\r\n\r\n");
    assert_string_equal(raw_header(answer.head, "X-Request-Id"), "a-b_c.1:2/3+4=5@6");
    answer_free(&answer);
    static const char *const bad[] = {"two words", "quote\"", "<script>", "\xc3\xa9", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "GET /nope HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\n\r\n", bad[i]);
        answer = ask(&service, text);
        const char *id = raw_header(answer.head, "X-Request-Id");
        assert_int_equal(strspn(id, "0123456789abcdef"), 16);
        char member[64];
        snprintf(member, sizeof member, "\"request_id\":\"%.40s\"", id);
        assert_non_null(strstr(answer.body, member));
        snprintf(seen[i % 2], sizeof seen[0], "%.40s", id);
        if (i) assert_string_not_equal(seen[0], seen[1]);
        answer_free(&answer);
    }
    assert_int_equal(service_stop(&service), 0);
}

static void server_timing_has_its_durations(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    int fd = service_connect(&service);
    raw_post(fd, "", SMALL_BODY);
    struct answer answer = raw_answer(fd, 5000);
    const char *timing = raw_header(answer.head, "Server-Timing");
    assert_non_null(timing);
    assert_non_null(strstr(timing, "read;dur="));
    assert_non_null(strstr(timing, "compute;dur="));
    assert_non_null(strstr(timing, "write;dur="));
    answer_free(&answer);
    close(fd);
    assert_int_equal(service_stop(&service), 0);
}

/* Answers over 64 KiB are chunked; HTTP/1.0 knows no chunks and gets the connection's end instead. */
static void a_large_answer_is_whole_in_http_1_1_and_1_0(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    char *body = heavy_body(200, 1), *text = malloc(8 << 20), head[256];
    size_t size = strlen(body);
    body = realloc(body, size + 64);
    strcpy(body + size - 1, ",\"return\":[\"attention\"]}"); /* 200 x 200 numbers */
    int fd = service_connect(&service);
    raw_post(fd, "", body);
    struct answer answer = raw_answer(fd, 20000);
    assert_int_equal(answer.status, 200);
    assert_true(answer.size > 200000);
    assert_non_null(strstr(raw_header(answer.head, "Server-Timing"), "desc="));
    cJSON *json = cJSON_Parse(answer.body);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "attention"), 0)),
                     200);
    cJSON_Delete(json);
    close(fd);
    fd = service_connect(&service);
    snprintf(head, sizeof head,
             "POST /v1/mha HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    raw_say(fd, head);
    raw_say(fd, body);
    size_t got = socket_read_all(fd, text, (8 << 20) - 1);
    text[got] = '\0';
    assert_string_equal(strstr(text, "\r\n\r\n") + 4, answer.body);
    answer_free(&answer);
    close(fd);
    free(body);
    free(text);
    assert_int_equal(service_stop(&service), 0);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------------------------- */

/* The rules of the text format: a TYPE before the samples, no name twice, counters end in _total, histogram buckets grow and end
 * in +Inf = count. */
static void check_metrics_page(const char *page) {
    char name[128] = "", type[32] = "", seen[8192] = "";
    double below = 0;
    for (const char *line = page; *line; line = strchr(line, '\n') + 1) {
        char sample[160];
        if (strncmp(line, "# TYPE ", 7) == 0) {
            assert_int_equal(sscanf(line, "# TYPE %127s %31s", name, type), 2);
            snprintf(sample, sizeof sample, " %s ", name);
            if (strstr(seen, sample)) fail_msg("%s comes twice", name);
            strcat(seen, sample);
            if (!strcmp(type, "counter") && strcmp(name + strlen(name) - 6, "_total") != 0)
                fail_msg("%s: no _total", name);
            continue;
        }
        if (line[0] == '#') continue;
        size_t length = strcspn(line, "{ ");
        snprintf(sample, sizeof sample, "%.*s", (int)length, line);
        bool histogram = !strcmp(type, "histogram");
        if (strncmp(sample, name, strlen(name)) != 0 || (!histogram && strcmp(sample, name) != 0))
            fail_msg("sample %s under %s", sample, name);
        const char *value = strchr(line + length, line[length] == '{' ? '}' : ' ');
        double number = atof(value + 1);
        assert_true(number >= 0);
        if (!histogram) continue;
        const char *what = sample + strlen(name);
        if (!strcmp(what, "_bucket")) {
            const char *le = strstr(line, "le=\"");
            assert_non_null(le);
            if (!strncmp(le + 4, "5e-05", 5) || !strncmp(le + 4, "0.00005", 7) || !strncmp(le + 4, "64\"", 3))
                below = 0;
            assert_true(number >= below);
            below = number;
        } else if (!strcmp(what, "_count")) {
            assert_true(number == below); /* +Inf came last */
        }
    }
}

/* No series comes twice. */
static void check_series(const char *page) {
    for (const char *line = page; *line; line = strchr(line, '\n') + 1) {
        char series[300];
        if (line[0] == '#') continue;
        size_t length = (size_t)(strchr(line, '\n') - line);
        while (length && line[length] != ' ') length--;
        snprintf(series, sizeof series, "\n%.*s ", (int)length, line);
        if (strstr(strchr(line, '\n'), series)) fail_msg("%s comes twice", series + 1);
    }
}

/* Prometheus's own checker, where it is installed. */
static void check_with_promtool(const char *page) {
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        print_message("promtool is not on PATH: its check of the page is skipped\n");
        return;
    }
    FILE *promtool = popen("promtool check metrics", "w");
    assert_non_null(promtool);
    fputs(page, promtool);
    assert_int_equal(pclose(promtool), 0);
}

static void metrics_follow_the_text_format_and_count_what_happened(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    for (int i = 0; i < 3; i++) {
        struct answer answer = ask(&service, "GET /nope HTTP/1.1\r\nHost: x\r\n\r\n");
        answer_free(&answer);
        int fd = service_connect(&service);
        raw_post(fd, "", i ? SMALL_BODY : "{");
        answer = raw_answer(fd, 5000);
        answer_free(&answer);
        close(fd);
    }
    static const char *const mixed[] = {
        "GET /v1/layers HTTP/1.1\r\nHost: x\r\n\r\n", "DELETE /v1/layers/none HTTP/1.1\r\nHost: x\r\n\r\n",
        "BREW /v1/mha HTTP/1.1\r\nHost: x\r\n\r\n", "GET /healthz HTTP/3.0\r\nHost: x\r\n\r\n",
        "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"};
    for (size_t i = 0; i < sizeof mixed / sizeof mixed[0]; i++) {
        struct answer answer = ask(&service, mixed[i]);
        assert_int_not_equal(answer.status, 0);
        answer_free(&answer);
    }
    struct answer answer = ask(&service, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_string_equal(raw_header(answer.head, "Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    check_metrics_page(answer.body);
    check_series(answer.body);
    static const char *const wanted[] = {
        "mha_http_requests_total{route=\"/v1/mha\",method=\"POST\",code=\"200\"} 2\n",
        "mha_http_requests_total{route=\"/v1/mha\",method=\"POST\",code=\"400\"} 1\n",
        "mha_http_requests_total{route=\"other\",method=\"GET\",code=\"404\"} 3\n",
        "mha_http_request_duration_seconds_bucket{route=\"/v1/mha\",le=\"0.00005\"} ",
        "mha_http_request_size_bytes_sum{route=\"/v1/mha\"} 139\n",
        "mha_phase_seconds_count{phase=\"compute\"} 2\n",
        "mha_build_info{version=\"" MHA_VERSION "\",isa=\"",
        "mha_inflight_requests 1\n",
        "mha_queue_depth 0\n",
        "mha_flops_total ",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_start_time_seconds ",
        "process_open_fds ",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!strstr(answer.body, wanted[i])) fail_msg("not there: %s", wanted[i]);
    check_with_promtool(answer.body);
    answer_free(&answer);
    assert_int_equal(service_stop(&service), 0);
}

/* ---- logs --------------------------------------------------------------------------------------------------------------------------- */

static void every_request_is_one_json_line_with_ids_shape_and_times(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    int fd = service_connect(&service);
    raw_post(fd, "X-Request-Id: logged-1\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
             "{\"Q\":[[41.0625]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null,\"num_heads\":1}");
    struct answer answer = raw_answer(fd, 5000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
    raw_post(fd, "X-Request-Id: logged-2\r\ntraceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01\r\n",
             "{\"Q\":41.0625}");
    answer = raw_answer(fd, 5000);
    answer_free(&answer);
    close(fd);
    assert_int_equal(kill(service.pid, 0), 0);
    usleep(50000);
    char *log = service_log(&service);
    assert_null(strstr(log, "41.0625")); /* never what tensors hold */
    unsigned found = 0;
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *json = cJSON_Parse(line);
        if (!json) fail_msg("not JSON: %s", line);
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(json, "id");
        if (id && !strcmp(id->valuestring, "logged-1")) {
            found |= 1;
            assert_string_equal(cJSON_GetObjectItemCaseSensitive(json, "trace_id")->valuestring,
                                "0af7651916cd43dd8448eb211c80319c");
            assert_string_equal(cJSON_GetObjectItemCaseSensitive(json, "parent_id")->valuestring, "b7ad6b7169203331");
            assert_string_equal(cJSON_GetObjectItemCaseSensitive(json, "route")->valuestring, "/v1/mha");
            assert_int_equal(cJSON_GetObjectItemCaseSensitive(json, "status")->valueint, 200);
            assert_int_equal(cJSON_GetObjectItemCaseSensitive(json, "bytes_in")->valueint, 75);
            static const char *const members[] = {"time",  "level",   "remote",     "method",   "bytes_out",
                                                  "shape", "read_ms", "compute_ms", "write_ms", "total_ms"};
            for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
                if (!cJSON_HasObjectItem(json, members[i])) fail_msg("%s is not in %s", members[i], line);
        }
        if (id && !strcmp(id->valuestring, "logged-2")) {
            found |= 2;
            assert_false(cJSON_HasObjectItem(json, "trace_id")); /* all zero is not valid */
            assert_true(cJSON_HasObjectItem(json, "problem"));
        }
        cJSON_Delete(json);
    }
    assert_int_equal(found, 3);
    free(log);
    assert_int_equal(service_stop(&service), 0);
}

/* A reader of stderr that has gone to sleep must not stop the service. */
static void a_full_log_pipe_drops_lines_and_nothing_else(void **state) {
    (void)state;
    int pipe_fd[2];
    size_t size;
    char port_text[16], path[] = "/tmp/mhad-test-pipe-port";
    assert_int_equal(pipe(pipe_fd), 0);
    unlink(path);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pipe_fd[1], 2);
        dup2(pipe_fd[1], 1);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        execl(getenv("TEST_MHAD"), "mhad", "--port", "0", "--port-file", path, "--log-level", "debug", (char *)NULL);
        _exit(126);
    }
    close(pipe_fd[1]);
    for (int i = 0; i < 400 && access(path, F_OK) != 0; i++) usleep(5000);
    usleep(20000);
    char *text = file_read(path, &size);
    assert_non_null(text);
    snprintf(port_text, sizeof port_text, "%s", text);
    free(text);
    struct service service = {.pid = pid, .port = atoi(port_text)};
    int fd = service_connect(&service);
    for (int i = 0; i < 2000; i++) { /* some 500 KB of lines into a pipe of 64 */
        raw_say(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        struct answer answer = raw_answer(fd, 5000);
        assert_int_equal(answer.status, 200);
        answer_free(&answer);
    }
    assert_true(metric(&service, "mha_log_dropped_total") > 100);
    close(fd);
    kill(pid, SIGTERM);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(pipe_fd[0]);
    unlink(path);
}

/* ---- OpenAPI ------------------------------------------------------------------------------------------------------------------------- */

static void openapi_has_every_route_with_its_media_types_and_no_other(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    struct answer answer = ask(&service, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(answer.status, 200);
    cJSON *document = cJSON_Parse(answer.body);
    assert_non_null(document);
    answer_free(&answer);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(document, "openapi")->valuestring, "3.1.0");
    const cJSON *info = cJSON_GetObjectItemCaseSensitive(document, "info");
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(info, "version")->valuestring, MHA_VERSION);
    const cJSON *paths = cJSON_GetObjectItemCaseSensitive(document, "paths");
    size_t routes = 0, described = 0;
    for (const struct route *route; (route = route_at(routes)); routes++) {
        char method[16];
        size_t i = 0;
        for (; route->method[i]; i++) method[i] = (char)tolower(route->method[i]);
        method[i] = '\0';
        const cJSON *path = cJSON_GetObjectItemCaseSensitive(paths, route->path);
        const cJSON *operation = cJSON_GetObjectItemCaseSensitive(path, method);
        if (!operation) fail_msg("%s %s is not in openapi.json", route->method, route->path);
        if (route->takes) {
            const cJSON *content =
                cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(operation, "requestBody"), "content");
            assert_true(cJSON_HasObjectItem(content, "application/json"));
            assert_true(cJSON_HasObjectItem(content, "application/vnd.safetensors"));
        }
    }
    const cJSON *path, *operation;
    cJSON_ArrayForEach(path, paths) {
        cJSON_ArrayForEach(operation, path) described += strcmp(operation->string, "parameters") != 0;
    }
    assert_int_equal(described, routes);
    cJSON_Delete(document);
    assert_int_equal(service_stop(&service), 0);
}

static bool allows_null(const cJSON *schema) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type"), *each;
    cJSON_ArrayForEach(each, type) if (strcmp(each->valuestring, "null") == 0) return true;
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(schema, "enum")) if (cJSON_IsNull(each)) return true;
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(schema, "oneOf")) {
        const cJSON *one = cJSON_GetObjectItemCaseSensitive(each, "type");
        if (cJSON_IsString(one) && strcmp(one->valuestring, "null") == 0) return true;
    }
    const char *reference = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(schema, "$ref"));
    return reference && (strstr(reference, "/OptionalTensor") || strstr(reference, "/Projection"));
}

static void check_fields(const cJSON *schemas, const char *schema, unsigned where) {
    const cJSON *described =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(schemas, schema), "properties");
    int count = 0;
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (!(fields[i].where & where)) continue;
        const cJSON *property = cJSON_GetObjectItemCaseSensitive(described, fields[i].name);
        if (!property) fail_msg("%s has no %s", schema, fields[i].name);
        bool required = strcmp(fields[i].name, "Q") == 0 || strcmp(fields[i].name, "num_heads") == 0;
        if (allows_null(property) == required) fail_msg("null for %s in %s", fields[i].name, schema);
        count++;
    }
    assert_int_equal(cJSON_GetArraySize(described), count);
}

static void openapi_has_every_field_and_lets_null_mean_not_given(void **state) {
    (void)state;
    struct service service;
    service_start(&service, NULL);
    struct answer answer = ask(&service, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n");
    cJSON *document = cJSON_Parse(answer.body);
    answer_free(&answer);
    const cJSON *schemas =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(document, "components"), "schemas");
    check_fields(schemas, "Request", IN_MHA);
    check_fields(schemas, "LayerRequest", IN_LAYER);
    cJSON_Delete(document);
    assert_int_equal(service_stop(&service), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_flag_variable_or_file_ends_with_status_2_and_one_line),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(the_flag_beats_the_variable_and_the_variable_the_default),
        cmocka_unit_test(help_names_every_flag_and_version_the_version),
        cmocka_unit_test(the_readme_names_every_flag),
        cmocka_unit_test(port_file_gets_the_port),
        cmocka_unit_test(head_has_the_headers_of_get_and_no_body),
        cmocka_unit_test(request_ids_are_echoed_or_made_and_never_dirty),
        cmocka_unit_test(server_timing_has_its_durations),
        cmocka_unit_test(a_large_answer_is_whole_in_http_1_1_and_1_0),
        cmocka_unit_test(metrics_follow_the_text_format_and_count_what_happened),
        cmocka_unit_test(every_request_is_one_json_line_with_ids_shape_and_times),
        cmocka_unit_test(a_full_log_pipe_drops_lines_and_nothing_else),
        cmocka_unit_test(openapi_has_every_route_with_its_media_types_and_no_other),
        cmocka_unit_test(openapi_has_every_field_and_lets_null_mean_not_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

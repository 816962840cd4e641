/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/test_access.c - who gets in and how: tokens, TLS, Unix sockets, inherited sockets, CORS, the sandbox.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "raw.h"

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int status_with(const struct service *service, const char *path, const char *header) {
    int fd = service_connect(service);
    char text[1024];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, header);
    raw_say(fd, text);
    struct answer answer = raw_answer(fd, 5000);
    int status = answer.status;
    if (status == 401) assert_non_null(raw_header(answer.head, "WWW-Authenticate"));
    answer_free(&answer);
    close(fd);
    return status;
}

/* Waits until the log says something. */
static bool log_says(const struct service *service, const char *what) {
    for (int i = 0; i < 400; i++) {
        char *log = service_log(service);
        bool found = strstr(log, what) != NULL;
        free(log);
        if (found) return true;
        usleep(5000);
    }
    return false;
}

/* ---- tokens ----------------------------------------------------------------------------------------------------------------- */

static void without_a_valid_token_only_the_probes_answer(void **state) {
    (void)state;
    char path[] = "/tmp/mhad-test-token-XXXXXX";
    close(mkstemp(path));
    write_file(path, "# two tokens\n\n  first-secret  \nsecond-secret\n");
    const char *const arguments[] = {"--token-file", path, "--log-level", "debug", NULL};
    struct service service;
    service_start(&service, arguments);
    assert_int_equal(status_with(&service, "/healthz", ""), 200);
    assert_int_equal(status_with(&service, "/readyz", ""), 200);
    assert_int_equal(status_with(&service, "/metrics", ""), 401);
    assert_int_equal(status_with(&service, "/openapi.json", ""), 401);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer first-secret\r\n"), 200);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: bearer second-secret\r\n"), 200);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer first-secre\r\n"), 401);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer first-secret1\r\n"), 401);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer \r\n"), 401);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Basic first-secret\r\n"), 401);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer # two tokens\r\n"), 401);
    int fd = service_connect(&service); /* a body without a token is read to its end, never parsed */
    raw_post(fd, "", "{\"Q\":[[");
    struct answer answer = raw_answer(fd, 5000);
    assert_int_equal(answer.status, 401);
    answer_free(&answer);
    close(fd);
    /* SIGHUP: the new list replaces the old one; a bad file leaves it */
    write_file(path, "third-secret\n");
    kill(service.pid, SIGHUP);
    assert_true(log_says(&service, "1 tokens"));
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer first-secret\r\n"), 401);
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer third-secret\r\n"), 200);
    write_file(path, "\n");
    kill(service.pid, SIGHUP);
    assert_true(log_says(&service, "the old tokens stay"));
    assert_int_equal(status_with(&service, "/metrics", "Authorization: Bearer third-secret\r\n"), 200);
    char *log = service_log(&service);
    assert_null(strstr(log, "secret")); /* never a token in the log */
    free(log);
    assert_int_equal(service_stop(&service), 0);
    unlink(path);
}

/* ---- TLS -------------------------------------------------------------------------------------------------------------------- */

static void make_certificate(const char *folder, const char *name) {
    char command[1024];
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=%s "
             "-addext subjectAltName=DNS:%s,IP:127.0.0.1 -keyout %s/key.pem -out %s/cert.pem 2>/dev/null",
             name, name, folder, folder);
    assert_int_equal(system(command), 0);
}

/* A folder with a certificate, and where its files and a Unix socket are. */
struct tls_folder {
    char path[32], cert[64], key[64], unix_path[64];
};

static void open_folder(struct tls_folder *folder, const char *name) {
    snprintf(folder->path, sizeof folder->path, "/tmp/mhad-test-tls-XXXXXX");
    assert_non_null(mkdtemp(folder->path));
    snprintf(folder->cert, sizeof folder->cert, "%s/cert.pem", folder->path);
    snprintf(folder->key, sizeof folder->key, "%s/key.pem", folder->path);
    snprintf(folder->unix_path, sizeof folder->unix_path, "%s/sock", folder->path);
    make_certificate(folder->path, name);
}

static void remove_folder(const struct tls_folder *folder) {
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder->path);
    assert_int_equal(system(command), 0);
}

/* GET /healthz over TLS that trusts only `cert`; the status, 0 if the handshake failed. */
static long tls_status(const struct service *service, const char *cert, const char *path, long version) {
    char url[128];
    long status = 0;
    CURL *curl = curl_easy_init();
    snprintf(url, sizeof url, "https://127.0.0.1:%d%s", service->port, path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_CAINFO, cert);
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 10L);
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, version);
    if (curl_easy_perform(curl) == CURLE_OK) curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    return status;
}

/* TLS on a port of the kernel's choice; readiness is told by the Unix socket, which stays plain. */
static void start_tls(struct service *service, const struct tls_folder *folder) {
    const char *const arguments[] = {"--tls-cert", folder->cert, "--tls-key",       folder->key, "--port",
                                     "0",          "--unix",     folder->unix_path, NULL};
    service_start(service, arguments);
    for (int i = 0; i < 400 && !service->port; i++) {
        char *log = service_log(service), *at = strstr(log, "https://127.0.0.1:");
        if (at) service->port = atoi(at + 18);
        free(log);
        usleep(5000);
    }
    assert_int_not_equal(service->port, 0);
}

/* An answer past libmicrohttpd goes through the session of the connection. */
static void a_bad_length_over_tls_gets_one_problem(void **state) {
    (void)state;
    char url[64];
    struct tls_folder folder;
    struct service service;
    open_folder(&folder, "one.test");
    start_tls(&service, &folder);
    snprintf(url, sizeof url, "https://127.0.0.1:%d/healthz", service.port);
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Length: abc");
    FILE *body = tmpfile();
    char text[2048] = "", *type = NULL;
    long status = 0;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CAINFO, folder.cert);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 10L);
    assert_int_equal(curl_easy_perform(curl), CURLE_OK); /* not CURLE_RECV_ERROR: TLS was ended properly, too */
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &type);
    assert_int_equal(status, 400);
    assert_string_equal(type, "application/problem+json");
    rewind(body);
    assert_true(fread(text, 1, sizeof text - 1, body) > 0);
    assert_non_null(strstr(text, "\"code\":\"http\""));
    fclose(body);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    assert_int_equal(service_stop(&service), 0);
    remove_folder(&folder);
}

static void tls_serves_with_its_certificate_and_takes_a_new_one_at_sighup(void **state) {
    (void)state;
    char old[64], command[256];
    struct tls_folder folder;
    struct service service;
    open_folder(&folder, "first.test");
    start_tls(&service, &folder);
    const char *cert = folder.cert, *key = folder.key;
    snprintf(old, sizeof old, "%s/old.pem", folder.path);
    assert_int_equal(tls_status(&service, cert, "/healthz", CURL_SSLVERSION_DEFAULT), 200);
    assert_int_equal(tls_status(&service, cert, "/healthz", CURL_SSLVERSION_TLSv1_2 | CURL_SSLVERSION_MAX_TLSv1_2),
                     200);
    assert_int_equal(tls_status(&service, cert, "/healthz", CURL_SSLVERSION_TLSv1_1 | CURL_SSLVERSION_MAX_TLSv1_1), 0);
    /* plain HTTP on the TLS port gets nothing and hurts nobody */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)service.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    raw_say(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(raw_is_closed(fd, 5000));
    close(fd);
    /* a new pair */
    assert_int_equal(rename(cert, old), 0);
    make_certificate(folder.path, "second.test");
    assert_int_equal(tls_status(&service, old, "/healthz", CURL_SSLVERSION_DEFAULT), 200); /* not before SIGHUP */
    kill(service.pid, SIGHUP);
    assert_true(log_says(&service, "\"message\":\"certificate "));
    assert_int_equal(tls_status(&service, cert, "/healthz", CURL_SSLVERSION_DEFAULT), 200);
    assert_int_equal(tls_status(&service, old, "/healthz", CURL_SSLVERSION_DEFAULT), 0);
    /* a broken pair leaves the one in use */
    write_file(key, "this is no key\n");
    kill(service.pid, SIGHUP);
    assert_true(log_says(&service, "the old certificate stays"));
    assert_int_equal(tls_status(&service, cert, "/healthz", CURL_SSLVERSION_DEFAULT), 200);
    /* the health check speaks TLS too */
    snprintf(command, sizeof command, "%s --healthcheck --port %d --tls-cert %s --tls-key %s", getenv("TEST_MHAD"),
             service.port, cert, key);
    assert_int_equal(system(command), 0);
    assert_int_equal(service_stop(&service), 0);
    remove_folder(&folder);
}

/* ---- Unix sockets and inherited ones ------------------------------------------------------------------------------------------ */

/* Runs the binary with arguments; its exit status. Its stderr goes to `said`. */
static int run(const char *arguments, char *said, size_t size) {
    char command[1024];
    snprintf(command, sizeof command, "timeout 10 %s %s 2>&1 >/dev/null", getenv("TEST_MHAD"), arguments);
    FILE *pipe = popen(command, "r");
    size_t got = fread(said, 1, size - 1, pipe);
    said[got] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_unix_socket_has_its_mode_and_replaces_only_a_dead_one(void **state) {
    (void)state;
    char path[] = "/tmp/mhad-test-unix.sock", said[512];
    const char *const arguments[] = {"--unix", path, "--unix-mode", "0600", NULL};
    struct service service;
    struct stat made;
    unlink(path);
    service_start(&service, arguments);
    assert_int_equal(service.port, 0); /* --unix alone opens no TCP port */
    assert_int_equal(stat(path, &made), 0);
    assert_int_equal(made.st_mode & 07777, 0600);
    int fd = service_connect(&service);
    raw_post(fd, "", SMALL_BODY);
    struct answer answer = raw_answer(fd, 5000);
    assert_int_equal(answer.status, 200);
    answer_free(&answer);
    close(fd);
    assert_int_equal(run("--unix /tmp/mhad-test-unix.sock", said, sizeof said), 2); /* in use */
    assert_non_null(strstr(said, "another process listens there"));
    assert_int_equal(run("--healthcheck --unix /tmp/mhad-test-unix.sock", said, sizeof said), 0);
    kill(service.pid, SIGKILL); /* leaves the file behind */
    service_stop(&service);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(run("--healthcheck --unix /tmp/mhad-test-unix.sock", said, sizeof said), 1);
    service_start(&service, arguments); /* and the next start replaces it */
    assert_int_equal(service_stop(&service), 0);
    write_file(path, "precious\n");
    assert_int_equal(run("--unix /tmp/mhad-test-unix.sock", said, sizeof said), 2);
    assert_non_null(strstr(said, "not a socket"));
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
}

static void sockets_from_systemd_are_used_and_nothing_else_is_opened(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 16), 0);
    getsockname(listener, (struct sockaddr *)&address, &size);
    pid_t pid = fork();
    if (pid == 0) { /* as systemd does it: descriptor 3, the variables, the same pid */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char text[32];
        int null = open("/dev/null", O_RDWR);
        dup2(listener, 3);
        dup2(null, 1);
        dup2(null, 2);
        snprintf(text, sizeof text, "%d", (int)getpid());
        setenv("LISTEN_PID", text, 1);
        setenv("LISTEN_FDS", "1", 1);
        execl(getenv("TEST_MHAD"), "mhad", (char *)NULL); /* 8080, were it not for the variables */
        _exit(126);
    }
    close(listener);
    struct service service = {.pid = pid, .port = ntohs(address.sin_port)};
    assert_int_equal(status_with(&service, "/healthz", ""), 200); /* the kernel queues us until it accepts */
    kill(pid, SIGTERM);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- CORS, the sandbox ---------------------------------------------------------------------------------------------------------- */

static void pages_of_one_origin_may_call_and_others_may_not(void **state) {
    (void)state;
    static const char *const arguments[] = {"--cors-origin", "https://app.example", NULL};
    struct service service;
    service_start(&service, arguments);
    for (int mine = 0; mine < 2; mine++) {
        char text[512];
        int fd = service_connect(&service);
        snprintf(text, sizeof text,
                 "OPTIONS /v1/mha HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\nAccess-Control-Request-Method: POST\r\n\r\n",
                 mine ? "https://app.example" : "https://evil.example");
        raw_say(fd, text);
        struct answer answer = raw_answer(fd, 5000);
        assert_int_equal(answer.status, 204);
        assert_int_equal(raw_header(answer.head, "Access-Control-Allow-Origin") != NULL, mine);
        assert_int_equal(raw_header(answer.head, "Access-Control-Allow-Methods") != NULL, mine);
        answer_free(&answer);
        raw_post(fd, mine ? "Origin: https://app.example\r\n" : "Origin: https://evil.example\r\n", SMALL_BODY);
        answer = raw_answer(fd, 5000);
        assert_int_equal(raw_header(answer.head, "Access-Control-Allow-Origin") != NULL, mine);
        assert_string_equal(raw_header(answer.head, "Vary"), "Origin");
        answer_free(&answer);
        close(fd);
    }
    assert_int_equal(service_stop(&service), 0);
    service_start(&service, NULL); /* and without the flag there is no CORS at all */
    int fd = service_connect(&service);
    raw_post(fd, "Origin: https://app.example\r\n", SMALL_BODY);
    struct answer answer = raw_answer(fd, 5000);
    assert_null(raw_header(answer.head, "Access-Control-Allow-Origin"));
    answer_free(&answer);
    close(fd);
    assert_int_equal(service_stop(&service), 0);
}

static void every_thread_has_no_new_privileges_and_the_filter(void **state) {
    (void)state;
    static const char *const arguments[] = {"--seccomp", "on", NULL};
    if (SANITIZED) skip(); /* the leak checker could not stop the threads; that is why its builds default to off */
    struct service service;
    service_start(&service, arguments);
    assert_int_equal(service_status(&service, "NoNewPrivs"), 1);
    char *log = service_log(&service);
    bool filtered = strstr(log, "\"sandbox\":\"seccomp\"") != NULL;
    if (!filtered) print_message("no filter here: %s\n", strstr(log, "\"sandbox\""));
    free(log);
    assert_int_equal(service_status(&service, "Seccomp"), filtered ? 2 : service_status(&service, "Seccomp"));
    char path[64], command[256];
    snprintf(path, sizeof path, "/proc/%d/task", (int)service.pid);
    snprintf(command, sizeof command, "! grep -h -E '^(NoNewPrivs:.0|Seccomp:.%s)' %s/*/status",
             filtered ? "[01]" : "9", path);
    assert_int_equal(system(command), 0);
    /* and everything still works under it: a pool request, metrics, a reload */
    char *body = heavy_body(300, 32);
    struct reply reply = {0};
    CURL *client = client_new(&service);
    reply = client_post(client, &service, body);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
    client_free(client);
    free(body);
    assert_true(metric(&service, "process_open_fds") > 5);
    kill(service.pid, SIGHUP);
    assert_true(log_says(&service, "\"event\":\"reload\""));
    assert_int_equal(service_stop(&service), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_valid_token_only_the_probes_answer),
        cmocka_unit_test(a_bad_length_over_tls_gets_one_problem),
        cmocka_unit_test(tls_serves_with_its_certificate_and_takes_a_new_one_at_sighup),
        cmocka_unit_test(a_unix_socket_has_its_mode_and_replaces_only_a_dead_one),
        cmocka_unit_test(sockets_from_systemd_are_used_and_nothing_else_is_opened),
        cmocka_unit_test(pages_of_one_origin_may_call_and_others_may_not),
        cmocka_unit_test(every_thread_has_no_new_privileges_and_the_filter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/harness.c - see harness.h.
 */
#include "harness.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void sleep_ms(double ms) {
    struct timespec pause = {(time_t)(ms / 1e3), (long)(fmod(ms, 1e3) * 1e6)};
    nanosleep(&pause, NULL);
}

static void *need(void *pointer) {
    if (!pointer) {
        perror("test harness");
        abort();
    }
    return pointer;
}

/* ---- the process ---------------------------------------------------------------------------------------------------
 */

static const char *server_binary(void) {
    const char *path = getenv("TEST_MHAD");
    return path && *path ? path : "build/mhad";
}

static bool chooses_listener(const char *const *arguments) {
    for (size_t i = 0; arguments && arguments[i]; i++)
        if (!strcmp(arguments[i], "--port") || !strcmp(arguments[i], "--unix")) return true;
    return false;
}

/* In the child: becomes the server. */
static void become_server(const struct service *service, const char *const *arguments, const char *const *environment,
                          pid_t parent) {
    const char *argv[64] = {server_binary()};
    size_t n = 1;
    if (!chooses_listener(arguments)) {
        argv[n++] = "--port";
        argv[n++] = "0";
    }
    for (size_t i = 0; arguments && arguments[i] && n < 62; i++) argv[n++] = arguments[i];
    for (size_t i = 0; environment && environment[i]; i++) putenv((char *)(uintptr_t)environment[i]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(125);
    int log = open(service->log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int null = open("/dev/null", O_RDWR);
    if (log < 0 || null < 0) _exit(125);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    for (int fd = 3; fd < 64; fd++) close(fd);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

bool service_spawn(struct service *service, const char *const *arguments, const char *const *environment) {
    static unsigned counter;
    memset(service, 0, sizeof *service);
    snprintf(service->log_path, sizeof service->log_path, "/tmp/mhad-test-%d-%u.log", (int)getpid(), counter++);
    for (size_t i = 0; arguments && arguments[i]; i++)
        if (!strcmp(arguments[i], "--unix") && arguments[i + 1])
            snprintf(service->unix_path, sizeof service->unix_path, "%s", arguments[i + 1]);
    signal(SIGPIPE, SIG_IGN);
    pid_t parent = getpid();
    service->pid = fork();
    if (service->pid == 0) become_server(service, arguments, environment, parent);
    return service->pid > 0;
}

bool service_alive(const struct service *service) {
    siginfo_t info = {0};
    return service->pid > 0 && waitid(P_PID, (id_t)service->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

/* Whether the process has the socket of this inode open. */
static bool child_has_socket(pid_t pid, unsigned long inode) {
    char path[320], target[64], wanted[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *fds = opendir(path);
    bool found = false;
    for (struct dirent *entry; fds && !found && (entry = readdir(fds));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        found = !strcmp(target, wanted);
    }
    if (fds) closedir(fds);
    return found;
}

static int listening_port(pid_t pid) {
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    for (size_t t = 0; t < 2; t++) {
        FILE *table = fopen(tables[t], "r");
        char line[512];
        while (table && fgets(line, sizeof line, table)) {
            unsigned port, state;
            unsigned long inode;
            if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*d %*d %lu", &port, &state, &inode) !=
                3)
                continue;
            if (state == 0x0A && child_has_socket(pid, inode)) {
                fclose(table);
                return (int)port;
            }
        }
        if (table) fclose(table);
    }
    return 0;
}

/* One GET /readyz over a bare socket; the status or 0. */
static int probe_ready(const struct service *service) {
    int family = service->port ? AF_INET : AF_UNIX;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_port = htons((uint16_t)service->port)};
    tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    snprintf(local.sun_path, sizeof local.sun_path, "%s", service->unix_path);
    const struct sockaddr *address = service->port ? (struct sockaddr *)&tcp : (struct sockaddr *)&local;
    socklen_t length = service->port ? sizeof tcp : sizeof local;
    static const char ask[] = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct timeval limit = {5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char answer[64] = "";
    int status = 0;
    if (fd >= 0 && connect(fd, address, length) == 0 && send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) > 0 &&
        recv(fd, answer, sizeof answer - 1, 0) > 0)
        sscanf(answer, "HTTP/1.1 %d", &status);
    if (fd >= 0) close(fd);
    return status;
}

bool service_wait_ready(struct service *service, double seconds) {
    double start = seconds_now();
    while (seconds_now() - start < seconds && service_alive(service)) {
        if (!service->port && !*service->unix_path) service->port = listening_port(service->pid);
        if ((service->port || *service->unix_path) && probe_ready(service) == 200) {
            service->ready_ms = 1e3 * (seconds_now() - start);
            if (!service->port) service->port = listening_port(service->pid);
            return true;
        }
        sleep_ms(0.5);
    }
    return false;
}

void service_start_env(struct service *service, const char *const *arguments, const char *const *environment) {
    if (!service_spawn(service, arguments, environment) || !service_wait_ready(service, 20)) {
        char *log = service_log(service);
        print_error("the server did not get ready; its log:\n%s\n", log);
        free(log);
        service_stop(service);
        fail();
    }
}

void service_start(struct service *service, const char *const *arguments) {
    service_start_env(service, arguments, NULL);
}

int service_stop_within(struct service *service, double seconds) {
    int status = 0;
    if (service->pid <= 0) return -1;
    kill(service->pid, SIGTERM);
    double start = seconds_now();
    while (seconds_now() - start < seconds && service_alive(service)) sleep_ms(2);
    kill(service->pid, SIGKILL);
    waitpid(service->pid, &status, 0);
    service->pid = 0;
    int result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (result != 0 && getenv("TEST_KEEP_QUIET") == NULL) {
        char *log = service_log(service);
        print_error("the server ended with %d; the end of its log:\n%s\n", result,
                    log + (strlen(log) > 4000 ? strlen(log) - 4000 : 0));
        free(log);
    }
    unlink(service->log_path);
    return result;
}

int service_stop(struct service *service) { return service_stop_within(service, 20); }

char *service_log(const struct service *service) {
    size_t size;
    char *text = file_read(service->log_path, &size);
    return text ? text : need(strdup(""));
}

long service_status(const struct service *service, const char *key) {
    char path[64], line[256];
    size_t length = strlen(key);
    long value = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)service->pid);
    FILE *file = fopen(path, "r");
    while (file && value < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ':') value = atol(line + length + 1);
    if (file) fclose(file);
    return value;
}

long service_count_fds(const struct service *service) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)service->pid);
    DIR *fds = opendir(path);
    long count = 0;
    for (struct dirent *entry; fds && (entry = readdir(fds));) count += entry->d_name[0] != '.';
    if (fds) closedir(fds);
    return count;
}

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

CURL *client_new(const struct service *service) {
    CURL *client = need(curl_easy_init());
    (void)service;
    return client;
}

void client_free(CURL *client) { curl_easy_cleanup(client); }

static void append(char **text, size_t *size, const char *bytes, size_t count) {
    *text = need(realloc(*text, *size + count + 1));
    memcpy(*text + *size, bytes, count);
    *size += count;
    (*text)[*size] = 0;
}

static size_t take_body(char *bytes, size_t one, size_t count, void *arg) {
    struct reply *reply = arg;
    append(&reply->body, &reply->size, bytes, one * count);
    return one * count;
}

static size_t take_head(char *bytes, size_t one, size_t count, void *arg) {
    struct reply *reply = arg;
    if (count > 5 && !memcmp(bytes, "HTTP/", 5)) reply->head_size = 0; /* a 100 Continue came before */
    append(&reply->head, &reply->head_size, bytes, one * count);
    return one * count;
}

struct pieces {
    const struct request *request;
    size_t sent;
};

static size_t give_piece(char *out, size_t one, size_t count, void *arg) {
    struct pieces *pieces = arg;
    size_t left = pieces->request->size - pieces->sent, room = one * count;
    size_t n = pieces->request->piece < room ? pieces->request->piece : room;
    if (n > left) n = left;
    memcpy(out, pieces->request->body + pieces->sent, n);
    pieces->sent += n;
    return n;
}

static bool names_header(const char *const *headers, const char *name) {
    for (size_t i = 0; headers && headers[i]; i++)
        if (!strncasecmp(headers[i], name, strlen(name)) && strchr(":;", headers[i][strlen(name)])) return true;
    return false;
}

static struct curl_slist *header_list(const struct request *request) {
    struct curl_slist *list = NULL;
    if (request->body && !names_header(request->headers, "Content-Type"))
        list = curl_slist_append(list, "Content-Type: application/json");
    if (request->body && request->piece) list = curl_slist_append(list, "Transfer-Encoding: chunked");
    list = curl_slist_append(list, request->expect_continue ? "Expect: 100-continue" : "Expect:");
    for (size_t i = 0; request->headers && request->headers[i]; i++)
        list = curl_slist_append(list, request->headers[i]);
    return list;
}

struct reply client_send(CURL *client, const struct service *service, const struct request *request) {
    struct reply reply = {0};
    struct pieces pieces = {request, 0};
    struct curl_slist *headers = header_list(request);
    char url[512];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", service->port ? service->port : 80, request->path);
    curl_easy_reset(client);
    curl_easy_setopt(client, CURLOPT_URL, url);
    curl_easy_setopt(client, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(client, CURLOPT_PROXY, "");
    if (!service->port) curl_easy_setopt(client, CURLOPT_UNIX_SOCKET_PATH, service->unix_path);
    curl_easy_setopt(client, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(client, CURLOPT_TIMEOUT_MS, (long)(1e3 * (request->timeout > 0 ? request->timeout : 60)));
    curl_easy_setopt(client, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(client, CURLOPT_WRITEDATA, &reply);
    curl_easy_setopt(client, CURLOPT_HEADERFUNCTION, take_head);
    curl_easy_setopt(client, CURLOPT_HEADERDATA, &reply);
    if (request->body && request->piece) {
        curl_easy_setopt(client, CURLOPT_POST, 1L);
        curl_easy_setopt(client, CURLOPT_READFUNCTION, give_piece);
        curl_easy_setopt(client, CURLOPT_READDATA, &pieces);
    } else if (request->body) {
        curl_easy_setopt(client, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->size);
        curl_easy_setopt(client, CURLOPT_POSTFIELDS, request->body);
    }
    if (request->method && !strcmp(request->method, "HEAD")) curl_easy_setopt(client, CURLOPT_NOBODY, 1L);
    if (request->method) curl_easy_setopt(client, CURLOPT_CUSTOMREQUEST, request->method);
    append(&reply.body, &reply.size, "", 0);
    append(&reply.head, &reply.head_size, "", 0);
    reply.curl = curl_easy_perform(client);
    curl_easy_getinfo(client, CURLINFO_RESPONSE_CODE, &reply.status);
    curl_easy_getinfo(client, CURLINFO_NUM_CONNECTS, &reply.connects);
    curl_slist_free_all(headers);
    return reply;
}

struct reply client_post(CURL *client, const struct service *service, const char *json) {
    struct request request = {.path = "/v1/mha", .body = json, .size = strlen(json)};
    return client_send(client, service, &request);
}

void reply_free(struct reply *reply) {
    free(reply->body);
    free(reply->head);
    memset(reply, 0, sizeof *reply);
}

bool reply_header(const struct reply *reply, const char *name, char *out, size_t max) {
    size_t length = strlen(name);
    for (const char *line = reply->head; line && *line;) {
        const char *end = strstr(line, "\r\n");
        if (!end) return false;
        if (!strncasecmp(line, name, length) && line[length] == ':') {
            line += length + 1;
            while (*line == ' ') line++;
            snprintf(out, max, "%.*s", (int)(end - line), line);
            return true;
        }
        line = end + 2;
    }
    return false;
}

cJSON *reply_json(const struct reply *reply) {
    cJSON *json = cJSON_ParseWithLength(reply->body, reply->size);
    if (!json) {
        print_error("status %ld (%s), and the body is not JSON: %.300s\n", reply->status,
                    curl_easy_strerror(reply->curl), reply->body ? reply->body : "");
        fail();
    }
    return json;
}

int service_connect(const struct service *service) {
    int fd = socket(service->port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {30, 0};
    int result;
    if (service->port) {
        struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_port = htons((uint16_t)service->port)};
        tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        result = connect(fd, (struct sockaddr *)&tcp, sizeof tcp);
    } else {
        struct sockaddr_un local = {.sun_family = AF_UNIX};
        snprintf(local.sun_path, sizeof local.sun_path, "%s", service->unix_path);
        result = connect(fd, (struct sockaddr *)&local, sizeof local);
    }
    assert_int_equal(result, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return fd;
}

bool socket_send(int fd, const void *bytes, size_t size) {
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(fd, (const char *)bytes + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0) return false;
        sent += (size_t)n;
    }
    return true;
}

size_t socket_read_all(int fd, char *out, size_t max) {
    size_t size = 0;
    for (ssize_t n; size < max && (n = recv(fd, out + size, max - size, 0)) > 0;) size += (size_t)n;
    out[size] = 0;
    return size;
}

struct service group_service;
CURL *group_client;

int group_start(void **state) {
    (void)state;
    service_start(&group_service, NULL);
    group_client = client_new(&group_service);
    return 0;
}

int group_stop(void **state) {
    (void)state;
    client_free(group_client);
    return service_stop(&group_service);
}

/* ---- comparing -----------------------------------------------------------------------------------------------------
 */

static bool differs(char *where, size_t max, const cJSON *actual, const cJSON *expect) {
    char *a = actual ? cJSON_PrintUnformatted(actual) : NULL, *e = cJSON_PrintUnformatted(expect);
    size_t used = strlen(where);
    if (actual && cJSON_IsNumber(actual) && cJSON_IsNumber(expect))
        snprintf(where + used, max - used, " is %.17g and should be %.17g", actual->valuedouble, expect->valuedouble);
    else
        snprintf(where + used, max - used, " is %.200s and should be %.200s", a ? a : "missing", e ? e : "?");
    cJSON_free(a);
    cJSON_free(e);
    return false;
}

static bool arrays_match(const cJSON *actual, const cJSON *expect, double rtol, double atol, char *where, size_t max) {
    size_t used = strlen(where), index = 0;
    if (cJSON_GetArraySize(actual) != cJSON_GetArraySize(expect)) return differs(where, max, actual, expect);
    const cJSON *a = actual->child;
    for (const cJSON *e = expect->child; e; e = e->next, a = a->next, index++) {
        snprintf(where + used, max - used, "[%zu]", index);
        if (!json_matches(a, e, rtol, atol, where, max)) return false;
    }
    where[used] = 0;
    return true;
}

bool json_matches(const cJSON *actual, const cJSON *expect, double rtol, double atol, char *where, size_t max) {
    size_t used = strlen(where);
    if (!actual || (actual->type & 0xff) != (expect->type & 0xff)) return differs(where, max, actual, expect);
    if (cJSON_IsNumber(expect)) {
        double error = fabs(actual->valuedouble - expect->valuedouble);
        return error <= atol + rtol * fabs(expect->valuedouble) || differs(where, max, actual, expect);
    }
    if (cJSON_IsString(expect))
        return !strcmp(actual->valuestring, expect->valuestring) || differs(where, max, actual, expect);
    if (cJSON_IsArray(expect)) return arrays_match(actual, expect, rtol, atol, where, max);
    for (const cJSON *e = expect->child; e; e = e->next) {
        snprintf(where + used, max - used, "/%s", e->string);
        if (!json_matches(cJSON_GetObjectItemCaseSensitive(actual, e->string), e, rtol, atol, where, max)) return false;
    }
    where[used] = 0;
    return true;
}

void assert_json(const cJSON *actual, const char *field, const char *expect_json, double rtol, double atol) {
    char where[1024];
    cJSON *expect = need(cJSON_Parse(expect_json));
    snprintf(where, sizeof where, "%s", field);
    bool same = json_matches(cJSON_GetObjectItemCaseSensitive(actual, field), expect, rtol, atol, where, sizeof where);
    cJSON_Delete(expect);
    if (!same) fail_msg("%s", where);
}

/* ---- files ---------------------------------------------------------------------------------------------------------
 */

char *file_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *text = NULL, block[65536];
    *size = 0;
    if (!file) return NULL;
    append(&text, size, "", 0);
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) append(&text, size, block, n);
    fclose(file);
    return text;
}

/* The end of the JSON value that starts at `at`: brackets are counted outside strings. */
static const char *value_end(const char *at) {
    int depth = 0;
    for (bool quoted = false; *at; at++) {
        if (quoted) {
            if (*at == '\\')
                at++;
            else if (*at == '"')
                quoted = false;
        } else if (*at == '"')
            quoted = true;
        else if (strchr("[{", *at))
            depth++;
        else if (strchr("]}", *at) && --depth == 0)
            return at + 1;
    }
    return at;
}

/* The text of the member "request" as it stands in the file: printed anew, its numbers might change. */
static bool request_slice(const char *text, char **body, size_t *size) {
    static const char key[] = "\"request\":";
    const char *start = strstr(text, key);
    if (!start) return false;
    start += sizeof key - 1;
    while (isspace((unsigned char)*start)) start++;
    *size = 0;
    append(body, size, start, (size_t)(value_end(start) - start));
    return true;
}

static void load_case(struct http_case *entry, const char *path, const char *name) {
    size_t size;
    char *text = need(file_read(path, &size));
    entry->name = need(strndup(name, strlen(name) - strlen(".json")));
    entry->document = cJSON_Parse(text);
    const cJSON *raw = cJSON_GetObjectItemCaseSensitive(entry->document, "request_text");
    if (cJSON_IsString(raw))
        append(&entry->body, &entry->body_size, raw->valuestring, strlen(raw->valuestring));
    else if (!entry->document || !request_slice(text, &entry->body, &entry->body_size)) {
        fprintf(stderr, "%s is not a case\n", path);
        abort();
    }
    free(text);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct http_case *)a)->name, ((const struct http_case *)b)->name);
}

static void load_folder(const char *folder, const char *prefix, struct http_case **cases, size_t *count) {
    DIR *files = need(opendir(folder));
    for (struct dirent *entry; (entry = readdir(files));) {
        size_t length = strlen(entry->d_name);
        char path[512], name[300];
        if (length < 6 || strcmp(entry->d_name + length - 5, ".json")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        snprintf(name, sizeof name, "%s%s", prefix, entry->d_name);
        *cases = need(realloc(*cases, (*count + 1) * sizeof **cases));
        memset(&(*cases)[*count], 0, sizeof **cases);
        load_case(&(*cases)[(*count)++], path, name);
    }
    closedir(files);
}

struct http_case *http_cases_load(size_t *count) {
    struct http_case *cases = NULL;
    *count = 0;
    load_folder("tests/cases", "", &cases, count);
    load_folder("tests/cases/conformance", "conformance/", &cases, count);
    if (*count == 0) {
        fprintf(stderr, "no cases in tests/cases; run from the top of the repository\n");
        abort();
    }
    qsort(cases, *count, sizeof *cases, by_name);
    return cases;
}

void http_cases_free(struct http_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(cases[i].name);
        free(cases[i].body);
        cJSON_Delete(cases[i].document);
    }
    free(cases);
}

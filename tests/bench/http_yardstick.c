/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/http_yardstick.c --port N --length N - the least that libmicrohttpd can do with a POST: read the body, answer a constant.
 *
 * It counts the bytes of the body and answers "200, application/json" with a constant of the given length, one response object
 * for all, on the library's own epoll thread. No parsing, no log, no limits: what our server is compared with in bench_http.
 */
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct MHD_Response *constant;

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state) {
    static char seen;
    (void)context, (void)url, (void)method, (void)version, (void)upload;
    if (!*state) {
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size > 0) {
        *upload_size = 0;
        return MHD_YES;
    }
    return MHD_queue_response(connection, 200, constant);
}

int main(int count, char **arguments) {
    long port = 0, length = 100;
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(arguments[i], "--port") == 0) port = strtol(arguments[i + 1], NULL, 10);
        if (strcmp(arguments[i], "--length") == 0) length = strtol(arguments[i + 1], NULL, 10);
    }
    if (length <= 0) return 2;
    char *body = malloc((size_t)length);
    if (!body) return 2;
    memset(body, ' ', (size_t)length);
    memcpy(body, "1", 1); /* any JSON */
    constant = MHD_create_response_from_buffer((size_t)length, body, MHD_RESPMEM_MUST_FREE);
    if (!constant) return 2;
    MHD_add_response_header(constant, "Content-Type", "application/json");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    struct MHD_Daemon *daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, answer, NULL,
                                                 MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address, MHD_OPTION_END);
    int signal_number;
    if (!daemon) return 1;
    sigwait(&stop, &signal_number);
    MHD_stop_daemon(daemon);
    MHD_destroy_response(constant);
    return 0;
}

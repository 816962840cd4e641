/* SPDX-License-Identifier: Apache-2.0
 *
 * server/healthcheck.c - see healthcheck.h.
 */
#include "healthcheck.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "tls.h"

#define PATIENCE_SECONDS 5

static const char question[] = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

static int patient_socket(int family) {
    struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = patient_socket(AF_UNIX);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* getaddrinfo without AI_PASSIVE: an address as it is; wildcards are replaced before. */
static int connect_tcp(const char *host, unsigned port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    char service[8];
    int fd = -1;
    snprintf(service, sizeof service, "%u", port);
    if (strcmp(host, "0.0.0.0") == 0) host = "127.0.0.1";
    if (strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0) host = "::1";
    if (getaddrinfo(host, service, &hints, &found) != 0) return -1;
    for (struct addrinfo *info = found; info && fd < 0; info = info->ai_next) {
        fd = patient_socket(info->ai_family);
        if (fd < 0 || connect(fd, info->ai_addr, info->ai_addrlen) == 0) continue;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static long ask(int fd, char *answer, size_t size) {
    if (send(fd, question, sizeof question - 1, MSG_NOSIGNAL) < 0) return -1;
    return (long)recv(fd, answer, size, 0);
}

int healthcheck(const struct config *config, FILE *err) {
    char answer[512] = "";
    bool local = *config->unix_path != '\0';
    int fd = local ? connect_unix(config->unix_path) : connect_tcp(config->host, (unsigned)config->port);
    if (fd < 0) {
        fprintf(err, "mhad: --healthcheck: nobody answers at %s\n", local ? config->unix_path : config->host);
        return 1;
    }
    bool tls = !local && *config->tls_cert;
    long got = tls ? tls_ask(fd, question, answer, sizeof answer - 1) : ask(fd, answer, sizeof answer - 1);
    close(fd);
    if (got >= 12 && memcmp(answer, "HTTP/1.1 200", 12) == 0) return 0;
    answer[got > 0 ? (size_t)got : 0] = '\0';
    answer[strcspn(answer, "\r\n")] = '\0';
    fprintf(err, "mhad: --healthcheck: not ready: %s\n", answer[0] ? answer : "no answer");
    return 1;
}

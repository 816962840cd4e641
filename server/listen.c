/* SPDX-License-Identifier: Apache-2.0
 *
 * server/listen.c - TCP sockets and those of systemd; see listen.h. unix_socket.c has the Unix ones.
 */
#include "listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "unix_socket.h"

#define BACKLOG 4096 /* the kernel cuts it to net.core.somaxconn */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un local;
    struct sockaddr_storage room;
};

/* Fills port and address from what the kernel says the socket is bound to. */
static void describe(struct listener *listener) {
    union address address = {.room = {0}};
    socklen_t size = sizeof address;
    char host[INET6_ADDRSTRLEN] = "?";
    const char *scheme = listener->tls ? "https" : "http";
    if (getsockname(listener->fd, &address.any, &size) != 0) return;
    if (address.any.sa_family == AF_INET) {
        listener->port = ntohs(address.v4.sin_port);
        inet_ntop(AF_INET, &address.v4.sin_addr, host, sizeof host);
        snprintf(listener->address, sizeof listener->address, "%s://%s:%u", scheme, host, listener->port);
    } else if (address.any.sa_family == AF_INET6) {
        listener->port = ntohs(address.v6.sin6_port);
        inet_ntop(AF_INET6, &address.v6.sin6_addr, host, sizeof host);
        snprintf(listener->address, sizeof listener->address, "%s://[%s]:%u", scheme, host, listener->port);
    } else {
        listener->tls = false;
        snprintf(listener->address, sizeof listener->address, "unix:%.107s", address.local.sun_path);
    }
}

static bool keep(struct listeners *listeners, int fd, bool tls, bool inherited) {
    struct listener *listener = &listeners->at[listeners->count++];
    *listener = (struct listener){.fd = fd, .tls = tls, .inherited = inherited};
    describe(listener);
    return true;
}

/* ---- TCP --------------------------------------------------------------------------------------------------------- */

static int open_tcp(const struct addrinfo *info) {
    int on = 1;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* Every address that the name has gets a socket ("localhost" may be ::1 and 127.0.0.1). With port 0 only the first, since each
 * would get another port. One that works is enough. */
static bool listen_tcp(struct listeners *listeners, const struct config *config, FILE *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char port[8], host[256];
    size_t length = strlen(config->host);
    bool brackets = length > 2 && length < sizeof host && config->host[0] == '[' && config->host[length - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? length - 2 : length), config->host + (brackets ? 1 : 0));
    snprintf(port, sizeof port, "%u", (unsigned)config->port);
    int status = getaddrinfo(host, port, &hints, &found);
    if (status != 0) {
        fprintf(err, "mhad: --host \"%s\": %s\n", config->host, gai_strerror(status));
        return false;
    }
    size_t before = listeners->count;
    int why = 0;
    for (struct addrinfo *info = found; info && listeners->count < LISTENERS_MAX; info = info->ai_next) {
        int fd = open_tcp(info);
        if (fd < 0)
            why = errno;
        else
            keep(listeners, fd, *config->tls_cert != '\0', false);
        if (fd >= 0 && config->port == 0) break;
    }
    freeaddrinfo(found);
    if (listeners->count > before) return true;
    fprintf(err, "mhad: cannot listen on %s port %u: %s\n", config->host, (unsigned)config->port, strerror(why));
    return false;
}

/* ---- systemd ----------------------------------------------------------------------------------------------------- */

/* A decimal variable of the environment, 0 if it is not one. */
static unsigned long environment_number(const char *name) {
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9') return 0;
    unsigned long value = strtoul(text, &end, 10);
    return *end == '\0' ? value : 0;
}

static bool take_inherited(struct listeners *listeners, unsigned long count, bool tls, FILE *err) {
    for (int fd = 3; fd < 3 + (int)count; fd++) {
        int listening = 0, type = 0;
        socklen_t size = sizeof listening;
        bool good = getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening;
        size = sizeof type;
        good = good && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
        if (!good || listeners->count == LISTENERS_MAX) {
            fprintf(err, "mhad: file descriptor %d of LISTEN_FDS is not a listening stream socket\n", fd);
            return false;
        }
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        keep(listeners, fd, tls, true);
    }
    return true;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static bool write_port_file(const struct listeners *listeners, const char *path, FILE *err) {
    if (!*path) return true;
    unsigned port = 0;
    for (size_t i = 0; i < listeners->count && !port; i++) port = listeners->at[i].port;
    FILE *file = fopen(path, "we");
    bool good = file && fprintf(file, "%u\n", port) > 0;
    if (file && fclose(file) != 0) good = false;
    if (!good) fprintf(err, "mhad: --port-file %s: %s\n", path, strerror(errno));
    return good;
}

static bool open_all(struct listeners *listeners, const struct config *config, FILE *err) {
    unsigned long inherited = environment_number("LISTEN_FDS");
    if (inherited && environment_number("LISTEN_PID") == (unsigned long)getpid())
        return take_inherited(listeners, inherited, *config->tls_cert != '\0', err);
    if (*config->unix_path) {
        int fd = unix_socket_open(listeners, config->unix_path, (mode_t)config->unix_mode, BACKLOG, err);
        if (fd < 0) return false;
        keep(listeners, fd, false, false);
    }
    if (!*config->unix_path || config->host_given || config->port_given) return listen_tcp(listeners, config, err);
    return true;
}

bool listeners_open(struct listeners *listeners, const struct config *config, FILE *err) {
    *listeners = (struct listeners){0};
    if (open_all(listeners, config, err) && write_port_file(listeners, config->port_file, err)) return true;
    listeners_close(listeners);
    return false;
}

/* Whoever connects between the last accept and the close is reset by the kernel, although it has seen its connection made. A
 * filter that drops SYN (byte 13 of the TCP header, without ACK; RFC 9293, section 3.1) lets handshakes that have begun end
 * and begins no new ones; such a client asks again a second later and is refused. */
static void drop_syn(int fd) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13),          BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x12),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x02, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFF),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program); /* without it the gap is microseconds */
}

void listeners_hold(struct listeners *listeners) {
    for (size_t i = 0; i < listeners->count; i++)
        if (listeners->at[i].port && !listeners->at[i].inherited) drop_syn(listeners->at[i].fd);
    unix_socket_remove(listeners);
}

void listeners_close(struct listeners *listeners) {
    for (size_t i = 0; i < listeners->count; i++) close(listeners->at[i].fd);
    listeners->count = 0;
    unix_socket_remove(listeners);
}

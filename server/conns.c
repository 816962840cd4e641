/* SPDX-License-Identifier: Apache-2.0
 *
 * server/conns.c - see conns.h.
 */
#include "conns.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "request.h"
#include "service.h"
#include "text.h"

#define ACCEPT_AT_ONCE 64

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un local;
    struct sockaddr_storage room;
};

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static void take_address(struct conn *conn, const union address *address) {
    char host[INET6_ADDRSTRLEN] = "";
    struct text out = text_in(conn->remote, sizeof conn->remote);
    if (address->any.sa_family == AF_INET) {
        conn->address.s6_addr[10] = conn->address.s6_addr[11] = 0xFF;
        memcpy(&conn->address.s6_addr[12], &address->v4.sin_addr, 4);
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
        text_format(&out, "%s:%u", host, (unsigned)ntohs(address->v4.sin_port));
    } else if (address->any.sa_family == AF_INET6) {
        conn->address = address->v6.sin6_addr;
        inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
        text_format(&out, "[%s]:%u", host, (unsigned)ntohs(address->v6.sin6_port));
    } else {
        text_add(&out, "unix");
    }
}

static struct conn **bucket_of(struct conns *conns, const struct conn *conn) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < 16; i++) hash = (hash ^ conn->address.s6_addr[i]) * 16777619u;
    return &conns->bucket[(hash ^ hash >> 16) % CONN_BUCKETS];
}

static void watch(struct conn *conn) {
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = conn};
    conn->watched = epoll_ctl(conn->service->epoll, EPOLL_CTL_ADD, conn->fd, &event) == 0;
}

static void unwatch(struct conn *conn) {
    if (conn->watched) epoll_ctl(conn->service->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
    conn->watched = false;
}

static bool is_unix(const struct conn *conn) { return conn->remote[0] == 'u'; }

static size_t count_from(struct conns *conns, const struct conn *conn) {
    size_t count = 0;
    for (const struct conn *other = *bucket_of(conns, conn); other; other = other->same_bucket)
        count += memcmp(&other->address, &conn->address, sizeof conn->address) == 0 && !is_unix(other);
    return count;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define SET_ASIDE_MOST 256 /* connections */
#define SET_ASIDE_PART 8   /* of the budget at most this part */

void conns_set_aside(struct service *service) {
    const struct config *config = service->config;
    size_t each = *config->tls_cert ? CONN_TLS_BYTES : CONN_BYTES;
    size_t count = service->budget.limit / SET_ASIDE_PART / each;
    if (count > SET_ASIDE_MOST) count = SET_ASIDE_MOST;
    if (count > config->max_connections) count = (size_t)config->max_connections;
    service->conns.set_aside = count;
    service->budget.limit -= count * each;
}

static bool charge(struct conn *conn) {
    struct service *service = conn->service;
    if (service->conns.uncharged < service->conns.set_aside) {
        service->conns.uncharged++;
        return true;
    }
    size_t bytes = conn->tls ? CONN_TLS_BYTES : CONN_BYTES;
    if (!mem_charge(&service->budget, bytes)) return false;
    conn->charged = bytes;
    return true;
}

static void free_conn(struct conn *conn) {
    if (conn->charged)
        mem_uncharge(&conn->service->budget, conn->charged);
    else
        conn->service->conns.uncharged--;
    free(conn);
}

/* ---- the set ----------------------------------------------------------------------------------------------------- */

static void insert(struct conns *conns, struct conn *conn) {
    conn->next = conns->head;
    if (conns->head) conns->head->prev = conn;
    conns->head = conn;
    struct conn **bucket = bucket_of(conns, conn);
    conn->same_bucket = *bucket;
    *bucket = conn;
    conns->count++;
    conn->service->metrics.connections = conns->count;
}

static void forget_nudge(struct conns *conns, struct conn *conn);

static void remove_conn(struct conns *conns, struct conn *conn) {
    struct conn **link = bucket_of(conns, conn);
    while (*link != conn) link = &(*link)->same_bucket;
    *link = conn->same_bucket;
    if (conn->next) conn->next->prev = conn->prev;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        conns->head = conn->next;
    conns->count--;
    conn->service->metrics.connections = conns->count;
    conn_arm(conn, 0);
    unwatch(conn);
    forget_nudge(conns, conn);
    free_conn(conn);
}

struct conn *conns_of(struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void conns_notify(void *context, struct MHD_Connection *mhd, void **socket_context,
                  enum MHD_ConnectionNotificationCode code) {
    struct service *service = context;
    struct conns *conns = &service->conns;
    service->progress++;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct conn *conn = conns->joining;
        conns->joining = NULL;
        conn->mhd = mhd;
        *socket_context = conn;
        insert(conns, conn);
        return;
    }
    if (*socket_context) remove_conn(conns, *socket_context);
    *socket_context = NULL;
}

/* ---- accepting --------------------------------------------------------------------------------------------------- */

static void send_now(int fd, const char *bytes, size_t size) {
    ssize_t sent = send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; /* a client that does not even take this has lost it */
}

/* 503 to a connection that never becomes one. */
static void refuse(struct service *service, int fd, bool tls, enum metrics_reason reason, const char *detail) {
    char body[PROBLEM_TEXT_MAX], head[256];
    struct problem problem = {.code = PROBLEM_NONE, .position = -1};
    metrics_rejected(&service->metrics, reason);
    if (!tls) {
        problem_set(&problem, PROBLEM_QUEUE_FULL, "", "%s", detail);
        size_t size = problem_render(&problem, "", body);
        struct text out = text_in(head, sizeof head);
        text_format(&out,
                    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
                    "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                    size);
        send_now(fd, head, out.size);
        send_now(fd, body, size);
        shutdown(fd, SHUT_WR);
    }
    close(fd);
}

static void add(struct service *service, const struct listener *listener, int fd, const union address *address,
                socklen_t size) {
    struct conns *conns = &service->conns;
    struct conn *conn = calloc(1, sizeof *conn);
    if (!conn || !deadline_reserve(&conns->deadlines, conns->count + 1)) {
        free(conn);
        refuse(service, fd, listener->tls, REJECT_MEMORY_BUSY, "The system has no memory for another connection");
        return;
    }
    conn->service = service;
    conn->fd = fd;
    conn->tls = listener->tls;
    take_address(conn, address);
    if (conns->per_ip_limit && !is_unix(conn) && count_from(conns, conn) >= conns->per_ip_limit) {
        free(conn);
        refuse(service, fd, listener->tls, REJECT_CONNECTIONS_PER_IP,
               "Your address has as many connections as it may (--max-connections-per-ip)");
        return;
    }
    if (!charge(conn)) {
        free(conn);
        refuse(service, fd, listener->tls, REJECT_MEMORY_BUSY,
               "Requests and connections hold the memory that another connection needs (--max-memory)");
        return;
    }
    service->metrics.connections_total++;
    conns->joining = conn;
    struct MHD_Daemon *daemon = listener->tls ? service->secure : service->plain;
    if (MHD_add_connection(daemon, fd, &address->any, size) == MHD_YES) {
        conn_arm(conn, clock_now() + service->config->header_timeout);
        watch(conn);
        return;
    }
    if (conns->joining) free_conn(conns->joining); /* else conns_notify has taken it in and out again */
    conns->joining = NULL;
}

bool conns_accept(struct service *service, const struct listener *listener) {
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        union address address = {.room = {0}};
        socklen_t size = sizeof address;
        int fd = accept4(listener->fd, &address.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) return false;
        if (fd < 0 && errno == EAGAIN) return true;
        if (fd < 0) continue; /* ECONNABORTED, EINTR and network errors are that one client's */
        if (service->conns.count >= service->conns.limit)
            refuse(service, fd, listener->tls, REJECT_CONNECTIONS,
                   "As many connections are open as may be (--max-connections)");
        else
            add(service, listener, fd, &address, size);
    }
    return true;
}

/* ---- one connection ---------------------------------------------------------------------------------------------- */

void conn_arm(struct conn *conn, uint64_t at) { deadline_set(&conn->service->conns.deadlines, &conn->deadline, at); }

void conn_shut(struct conn *conn) {
    conn->closing = true;
    conn_arm(conn, 0);
    shutdown(conn->fd, SHUT_RDWR);
}

/* The session, NULL on a plain connection. */
static gnutls_session_t session_of(const struct conn *conn) {
    const union MHD_ConnectionInfo *info =
        conn->tls ? MHD_get_connection_info(conn->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION) : NULL;
    return info ? info->tls_session : NULL;
}

/* What the socket does not take at once is lost: the client has not even read what came before. */
static void say(struct conn *conn, const char *bytes, size_t size) {
    gnutls_session_t session = session_of(conn);
    if (!conn->tls) {
        send_now(conn->fd, bytes, size);
    } else if (session) {
        gnutls_record_send(session, bytes, size); /* before or during the handshake it refuses, and so be it */
        gnutls_bye(session, GNUTLS_SHUT_WR);
    }
}

void conn_answer_raw(struct conn *conn, const struct problem *problem, const char *request_id) {
    char body[PROBLEM_TEXT_MAX], bytes[512 + PROBLEM_TEXT_MAX];
    size_t size = problem_render(problem, request_id, body);
    int status = problem_status(problem->code);
    struct text out = text_in(bytes, sizeof bytes);
    text_format(&out, "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nConnection: close\r\n", status,
                MHD_get_reason_phrase_for((unsigned)status));
    if (request_id[0]) text_format(&out, "X-Request-Id: %s\r\n", request_id);
    text_format(&out, "Content-Length: %zu\r\n\r\n", size);
    text_bytes(&out, body, size);
    say(conn, bytes, out.size);
    conn_shut(conn);
}

void conn_nudge(struct conn *conn) {
    struct conns *conns = &conn->service->conns;
    if (conn->nudge) return;
    conn->nudge = true;
    conn->nudge_next = conns->nudged;
    conns->nudged = conn;
}

static void forget_nudge(struct conns *conns, struct conn *conn) {
    struct conn **link = &conns->nudged;
    while (conn->nudge && *link != conn) link = &(*link)->nudge_next;
    if (conn->nudge) *link = conn->nudge_next;
    conn->nudge = false;
}

void conns_nudge_all(struct conns *conns) {
    while (conns->nudged) {
        struct conn *conn = conns->nudged;
        forget_nudge(conns, conn);
        shutdown(conn->fd, SHUT_RD); /* takes nothing away, since the stream has ended, and gives a new edge */
    }
}

void conns_shut_idle(struct service *service) {
    for (struct conn *conn = service->conns.head; conn; conn = conn->next)
        if (!conn->request && !conn->closing) conn_shut(conn);
}

void conns_shut_all(struct service *service) {
    for (struct conn *conn = service->conns.head; conn; conn = conn->next)
        if (!conn->closing) conn_shut(conn);
}

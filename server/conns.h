/* SPDX-License-Identifier: Apache-2.0
 *
 * server/conns.h - the open connections: accepting them, limiting them, timing them, closing them.
 *
 * Model. We accept ourselves and hand the socket to libmicrohttpd (MHD_add_connection): so the limits answer 503 instead of
 * leaving clients in the accept queue (libmicrohttpd 0.9.75 stops silently at 1,020), several listeners share one loop, and
 * every connection has one absolute deadline that its own bytes cannot move. libmicrohttpd's timeouts are off. To close a
 * connection from outside we shut its socket down; libmicrohttpd sees the end of the stream and tears it down. Every socket is
 * also in our own epoll set, for one event: the client's side closing, which libmicrohttpd cannot see while a request is
 * suspended and may miss otherwise.
 */
#ifndef MHA_SERVER_CONNS_H
#define MHA_SERVER_CONNS_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../api/problem.h"
#include "deadline.h"

struct service;
struct conn;
struct listener;

#define CONN_BUCKETS 1024
#define CONN_POOL_BYTES                                                                                                \
    32768 /* per connection in libmicrohttpd: its header and one piece of its body; more gains nothing */

/* What a connection may hold: libmicrohttpd's memory and its own record, ours, and of TLS the session (measured: tests). */
#define CONN_BYTES     (CONN_POOL_BYTES + 4096)
#define CONN_TLS_BYTES (CONN_BYTES + 32768)

struct conns {
    size_t
        set_aside; /* connections whose memory was taken from the budget at start: probes get in when requests hold all */
    size_t uncharged; /* open ones that use it; all others are charged to the budget */
    struct conn *head;
    size_t count, limit, per_ip_limit; /* per_ip_limit 0: none */
    struct deadline_heap deadlines;
    struct conn *bucket[CONN_BUCKETS];
    struct conn *nudged;  /* see conn_nudge */
    struct conn *joining; /* handed to libmicrohttpd, which has not said yet that it started */
};

/* Takes the memory of the first connections out of the budget, before anything is charged to it. */
void conns_set_aside(struct service *service);
/* Accepts what waits at the listener, up to a bounded number. False: no file descriptors left, try later. */
bool conns_accept(struct service *service, const struct listener *listener);
/* MHD_OPTION_NOTIFY_CONNECTION, with the service. */
void conns_notify(void *context, struct MHD_Connection *mhd, void **socket_context,
                  enum MHD_ConnectionNotificationCode code);
struct conn *conns_of(struct MHD_Connection *mhd);

/* The one deadline of a connection; 0: none. */
void conn_arm(struct conn *conn, uint64_t at);
/* Lets libmicrohttpd see the end of the stream. */
void conn_shut(struct conn *conn);
/* Writes an answer past libmicrohttpd, over TLS too, and shuts: for requests that have not come whole. */
void conn_answer_raw(struct conn *conn, const struct problem *problem, const char *request_id);
/* For a connection whose client has closed its side: makes libmicrohttpd look again once it has done this turn's work. It reads
 * until a read comes back short and then waits for an edge; a FIN that was already there gives none, and half a request, or an
 * idle connection, would lie there until its deadline. */
void conn_nudge(struct conn *conn);
/* After libmicrohttpd has run. */
void conns_nudge_all(struct conns *conns);
/* Shuts every connection without a request. */
void conns_shut_idle(struct service *service);
void conns_shut_all(struct service *service);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/request.h - a connection and the request that is on it.
 *
 * Model. A `struct conn` lives from accept to close; a `struct request` from the request line to the end of its answer. Both
 * belong to the I/O thread. While a request is with the pool or the keeper (KEEPING, QUEUED, RUNNING) its connection is suspended in
 * libmicrohttpd, which then sees no disconnect; our own loop does.
 *
 * Phases, in order (see handler.c):
 *   HEAD     the request line has come, the header is on its way
 *   BODY     the body is fed to the call                     DISCARD   the body is read and dropped, an error stands
 *   KEEPING  the keeper has it (keeper.h): a layer is packed, stored or deleted
 *   QUEUED   waiting for a place in the pool                 RUNNING   the workers have it
 *   COMPUTED the run has ended, the answer is to be queued   ANSWERING the answer is on its way
 */
#ifndef MHA_SERVER_REQUEST_H
#define MHA_SERVER_REQUEST_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <stdatomic.h>

#include "../api/call.h"
#include "deadline.h"
#include "http_guard.h"
#include "routes.h"

struct service;

struct conn {
    struct service *service;
    struct MHD_Connection *mhd;
    int fd;
    bool tls;
    size_t charged;   /* bytes of the budget; 0: of what was set aside */
    bool watched;     /* its fd is in our epoll set, for the end of the client's stream */
    bool half_closed; /* that end has come */
    bool nudge;       /* in conns.nudged */
    struct conn *nudge_next;
    bool closing;             /* shut down by us, libmicrohttpd will notice */
    struct deadline deadline; /* what it is for follows from request->phase, or idle without a request */
    struct request *request;  /* NULL between requests */
    struct conn *next, *prev; /* all connections */
    struct conn *same_bucket; /* by address, for the limit per address */
    struct in6_addr address;  /* IPv4 mapped; :: for Unix sockets */
    char remote[56];          /* "127.0.0.1:40312", "[::1]:40312", "unix" */
};

enum phase {
    PHASE_HEAD = 0,
    PHASE_BODY,
    PHASE_DISCARD,
    PHASE_KEEPING,
    PHASE_QUEUED,
    PHASE_RUNNING,
    PHASE_COMPUTED,
    PHASE_ANSWERING,
};

#define ID_MAX 128 /* of X-Request-Id */

struct request {
    struct conn *conn;
    enum phase phase;
    bool nul_in_path;         /* %00: what a C string holds of the path is not the path */
    struct route_match match; /* match.route is NULL: no such path or method */
    struct request_line line;
    struct headers headers;
    char id[ID_MAX + 1];
    char trace_id[33], parent_id[17], trace_flags[3]; /* of a valid traceparent, else "" */
    char method[16], path[200];
    enum api_media in, out;
    bool close_after; /* the connection cannot go on after the answer */
    bool origin_allowed;
    uint64_t limit_ns; /* how long it may take, header to answer */

    struct api_call *call; /* NULL: `problem` is the answer */
    struct mha_run *run;
    void (*work)(struct request *request); /* KEEPING: what the keeper does */
    struct api_answer *kept;               /* the answer of a route function that the keeper has called; malloc'd */
    struct request *queue_next; /* QUEUED: in the queue. RUNNING: in the list of ended runs. Free: on the shelf */
    bool cancelled;             /* mha_run_cancel was called */
    bool gone;                  /* the client has left */
    bool told;                  /* its answer went out past libmicrohttpd */

    size_t body_declared; /* SIZE_MAX: chunked */
    uint64_t bytes_in, bytes_out;
    int status;
    /* ns, monotonic: request line, end of header, end of body, start and end of the run, answer queued */
    uint64_t begun, head_at, read_at, run_at, computed_at, answered_at;
    uint64_t write_ns;    /* spent writing the answer's text */
    size_t block_charged; /* for the block in which an answer is streamed */
    char *stash;          /* that block, SCRATCH_BYTES, of an answer of unknown length */
    size_t stash_size, stash_sent;
    bool stash_last;

    struct problem problem; /* last, because it is large: shelf_take clears only its first members */
};

/* Zeroed, from the service's shelf of used ones or new; NULL: no memory. */
struct request *shelf_take(struct service *service);
void shelf_give(struct service *service, struct request *request);
void shelf_clear(struct service *service);

#endif

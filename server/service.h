/* SPDX-License-Identifier: Apache-2.0
 *
 * server/service.h - what one process has: its parts in one place, so that a request can be followed from any of them.
 *
 * A function takes the part that it needs; only those that glue parts together (handler, loop, drain) take the whole.
 */
#ifndef MHA_SERVER_SERVICE_H
#define MHA_SERVER_SERVICE_H

#include "../api/call.h"
#include "admission.h"
#include "clock.h"
#include "config.h"
#include "conns.h"
#include "keeper.h"
#include "listen.h"
#include "log.h"
#include "metrics.h"
#include "tls.h"
#include "token.h"

struct service {
    const struct config *config; /* read once at start */
    struct mem_budget budget;
    struct api_env env;
    struct admission admission;
    struct keeper keeper;
    struct metrics metrics;
    struct log log;
    struct token_list tokens;
    struct tls_files tls;
    struct listeners listeners;
    struct conns conns;
    struct MHD_Daemon *plain, *secure; /* libmicrohttpd, one per kind of connection; secure is NULL without TLS */
    int epoll;
    uint64_t progress; /* counts what libmicrohttpd brings or takes; stands still while it turns in vain, see loop.c */
    bool ready, draining;
    bool stopping;         /* the drain deadline has passed: nothing new is computed */
    char *scratch;         /* SCRATCH_BYTES for one small answer */
    struct request *shelf; /* used requests, see shelf.c */
    size_t shelf_count;
};

#define SCRATCH_BYTES 65536

#endif

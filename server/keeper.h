/* SPDX-License-Identifier: Apache-2.0
 *
 * server/keeper.h - the one thread that may wait for the disk: it stores, deletes and packs layers.
 *
 * Model. Packing 100 MB of weights takes a tenth of a second and fsync as long as the disk likes; on the I/O thread every other
 * client, health checks included, would wait with it. So such a request is suspended (PHASE_KEEPING) and handed to this
 * thread, which does one after the other in the order in which they came: changes of the layers directory never overlap, and
 * the last PUT or DELETE of a name wins in the store and on the disk alike. Ended requests come back by ended.h.
 *
 * What it does not do: cancel. A change that has begun is carried through, whether the client waits for it or not.
 */
#ifndef MHA_SERVER_KEEPER_H
#define MHA_SERVER_KEEPER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "ended.h"

struct request;

struct keeper {
    pthread_t thread;
    bool started;
    size_t count; /* requests handed over and not collected yet; the I/O thread's alone */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    struct request *first, *last; /* by queue_next */
    bool running, ending;
    struct ended ended; /* its eventfd is admission's */
};

/* False: no thread. It has a lower priority than the caller, like the workers. */
bool keeper_open(struct keeper *keeper, int eventfd);
/* Finishes what it has, joins the thread. */
void keeper_close(struct keeper *keeper);
/* request->work(request) will run there; until it is collected, the call and the answer of the request are the thread's. */
void keeper_take(struct keeper *keeper, struct request *request);
/* Requests that have ended since the last call, linked by queue_next, oldest first. */
struct request *keeper_collect(struct keeper *keeper);

#endif

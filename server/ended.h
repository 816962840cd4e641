/* SPDX-License-Identifier: Apache-2.0
 *
 * server/ended.h - how other threads give requests back to the I/O thread: a lock-free list and an eventfd that its loop watches.
 *
 * Model. Workers of the pool (admission.h) and the keeper (keeper.h) push, each onto a list of its own; the I/O thread takes the
 * whole list at once. The links are request->queue_next.
 *
 * What it does not do: own the eventfd, which several lists may share.
 */
#ifndef MHA_SERVER_ENDED_H
#define MHA_SERVER_ENDED_H

#include <stdatomic.h>

struct request;

struct ended {
    int eventfd;
    _Atomic(struct request *) newest;
};

/* From any thread. Afterwards the request may be gone. */
void ended_push(struct ended *ended, struct request *request);
/* What was pushed since the last call, oldest first; NULL: nothing. */
struct request *ended_take(struct ended *ended);

#endif

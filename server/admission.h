/* SPDX-License-Identifier: Apache-2.0
 *
 * server/admission.h - which computation runs when: on the I/O thread, on the pool, or not now.
 *
 * Model. A run of few operations is done at once on the I/O thread (the caller asks admission_inline). Others go to the pool,
 * a few at a time, since the pool shares itself between all runs that it has and too many would all end late. The rest wait
 * in one queue, first come first served, of bounded length; beyond that the answer is 503. Ended runs come back by ended.h.
 *
 * What it does not do: memory (api/memory.h counts that before a run exists) or time (the loop cancels).
 */
#ifndef MHA_SERVER_ADMISSION_H
#define MHA_SERVER_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>

#include "../core/mha.h"
#include "ended.h"

struct request;

struct admission {
    struct mha_pool *pool;
    size_t running, running_max;
    size_t waiting, waiting_max;
    struct request *first, *last; /* the queue */
    struct ended ended;           /* its eventfd is ours */
};

/* False: no memory or threads. The workers get a lower priority than the caller, who keeps answering while they compute. */
bool admission_open(struct admission *admission, size_t threads, size_t max_queue);
/* Waits for what runs, joins the workers. */
void admission_close(struct admission *admission);

bool admission_inline(double work);
/* The queue is full: a run handed over now would be refused. */
bool admission_full(const struct admission *admission);
/* Takes request->run: starts it (PHASE_RUNNING) or queues it (PHASE_QUEUED). False: full. */
bool admission_take(struct admission *admission, struct request *request);
/* Takes a QUEUED request out of the queue again. */
void admission_withdraw(struct admission *admission, struct request *request);
/* Runs that have ended since the last call, linked by queue_next, oldest first. Starts waiting ones in their place. */
struct request *admission_collect(struct admission *admission);

#endif

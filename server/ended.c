/* SPDX-License-Identifier: Apache-2.0
 *
 * server/ended.c - see ended.h.
 */
#include "ended.h"

#include <stdint.h>
#include <unistd.h>

#include "request.h"

void ended_push(struct ended *ended, struct request *request) {
    struct request *top = atomic_load_explicit(&ended->newest, memory_order_relaxed);
    do request->queue_next = top;
    while (!atomic_compare_exchange_weak_explicit(&ended->newest, &top, request, memory_order_release,
                                                  memory_order_relaxed));
    uint64_t one = 1;
    ssize_t written = write(ended->eventfd, &one, sizeof one); /* cannot be full: the loop reads it to 0 */
    (void)written;
}

struct request *ended_take(struct ended *ended) {
    struct request *newest = atomic_exchange_explicit(&ended->newest, NULL, memory_order_acquire), *oldest = NULL;
    while (newest) {
        struct request *next = newest->queue_next;
        newest->queue_next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

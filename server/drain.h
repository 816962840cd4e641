/* SPDX-License-Identifier: Apache-2.0
 *
 * server/drain.h - from SIGTERM to the end, so that no accepted request is lost.
 *
 *   1. at once         /readyz says 503, every answer says Connection: close; all else goes on (a load balancer needs time)
 *   2. --drain-delay   no new connections; HOLD later the accept queue is emptied, the listeners are closed
 *   3. quiet           nothing in flight for LINGER: idle connections are shut
 *   4. --drain         what still runs is cancelled and answered 503; 1 s for the answers to leave; the rest is shut
 *
 * A second SIGTERM goes to 4 at once. libmicrohttpd aborts when it is stopped with a suspended connection, so 4 waits until
 * the workers have let go of every run, which takes a tile.
 */
#ifndef MHA_SERVER_DRAIN_H
#define MHA_SERVER_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

struct service;

struct drain {
    bool begun, listeners_held, listeners_closed, cut;
    uint64_t close_at;    /* end of --drain-delay, then of HOLD */
    uint64_t deadline;    /* end of --drain */
    uint64_t quiet_since; /* 0: something is in flight */
    uint64_t give_up_at;  /* after the cut */
    uint64_t cut_count;
};

/* On SIGTERM or SIGINT; again: do not wait any longer. */
void drain_begin(struct drain *drain, struct service *service, uint64_t now);
/* One step, after every turn of the loop. True: all is over. Sets *wake to when to be called again at the latest. */
bool drain_step(struct drain *drain, struct service *service, uint64_t now, uint64_t *wake);

#endif

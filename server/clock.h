/* SPDX-License-Identifier: Apache-2.0
 *
 * server/clock.h - the two clocks of the process, in nanoseconds. Durations and deadlines use the monotonic one, which no
 * operator can set; only log lines and process_start_time_seconds use the wall clock.
 */
#ifndef MHA_SERVER_CLOCK_H
#define MHA_SERVER_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_SECOND UINT64_C(1000000000)
#define NS_PER_MS     UINT64_C(1000000)

static inline uint64_t clock_read(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_now(void) { return clock_read(CLOCK_MONOTONIC); }
static inline uint64_t clock_wall(void) { return clock_read(CLOCK_REALTIME); }

#endif

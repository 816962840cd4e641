/* SPDX-License-Identifier: Apache-2.0
 *
 * server/deadline.h - "wake me at": a binary heap of absolute times, one entry per connection.
 *
 * Model. A `struct deadline` is embedded in its owner; setting it again moves it, a time of 0 takes it out. The heap's array
 * has room for every connection before one is accepted, so setting cannot fail.
 *
 * What it does not do: call anybody. The loop asks for what has passed.
 */
#ifndef MHA_SERVER_DEADLINE_H
#define MHA_SERVER_DEADLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct deadline {
    uint64_t at;  /* monotonic ns; 0 = none */
    size_t place; /* private: index in the heap + 1; 0 = not in it */
};

struct deadline_heap {
    struct deadline **entry;
    size_t count, capacity;
};

/* Room for `count` deadlines. False: no memory, nothing changed. */
bool deadline_reserve(struct deadline_heap *heap, size_t count);
void deadline_set(struct deadline_heap *heap, struct deadline *deadline, uint64_t at);
/* The earliest, NULL if there is none. */
struct deadline *deadline_first(const struct deadline_heap *heap);
void deadline_heap_free(struct deadline_heap *heap);

#endif

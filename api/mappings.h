/* SPDX-License-Identifier: Apache-2.0
 *
 * api/mappings.h - the large mappings that requests have left behind, kept a while for the next ones.
 *
 * Model. A tensor of 2 MiB in a fresh mapping costs 512 page faults, each with a page to clear: as much time as the kernel's
 * copy from the socket and our own reading of it together. Requests to a service mostly look like the one before, so up to PLACES
 * mappings of at most `limit` bytes together wait for one that asks for the same size, or a little less. Lock-free: whoever
 * exchanges a place for NULL owns what was there.
 *
 * What it does not do: count against the budget. It holds what fits below the limit beside what is charged: memory.c empties it
 * before it refuses anything, and the server when nothing has happened for a second.
 */
#ifndef MHA_API_MAPPINGS_H
#define MHA_API_MAPPINGS_H

#include <stdatomic.h>
#include <stddef.h>

#define MAPPINGS_PLACES 16

struct mappings {
    size_t limit; /* bytes; 0: keeps nothing. Set once before use */
    atomic_size_t held;
    atomic_uint next; /* place to empty when all are taken */
    _Atomic(struct mapping *) place[MAPPINGS_PLACES];
};

/* A private anonymous mapping of at least `bytes` (a multiple of a page) and at most an eighth more; *mapped says how many. Its
 * contents are whatever they were. NULL: the kernel has none. Give it back by mappings_give or munmap. */
void *mappings_take(struct mappings *kept, size_t bytes, size_t *mapped);
/* The same, untouched and of that size. */
void *mappings_new(size_t bytes);
/* Keeps it or unmaps it. All of it should have been touched: what waits here counts as resident. */
void mappings_give(struct mappings *kept, void *base, size_t mapped);
/* Unmaps all that is kept. */
void mappings_empty(struct mappings *kept);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/mappings.h - the large mappings that requests have left behind, kept a while for the next ones.
 *
 * Model. A tensor of 2 MiB in a fresh mapping costs 512 page faults, each with a page to clear: as much time as the kernel's
 * copy from the socket and our own reading of it together. Requests to a service mostly look like the one before, so up to PLACES
 * mappings of at most `limit` bytes together wait for the next one. Those that had their size from the start wait for one that asks
 * for as much, or a little less; those that grew for one that will grow: it is lent the smallest with room for its beginning, and
 * what it has not charged of it counts as lent. Lock-free: whoever exchanges a place for NULL owns what was there.
 *
 * What it does not do: count against the budget. It holds what fits below the limit beside what is charged: memory.c empties it
 * before it refuses anything, and the server when nothing has happened for a second.
 */
#ifndef MHA_API_MAPPINGS_H
#define MHA_API_MAPPINGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define MAPPINGS_PLACES 16

struct mappings {
    size_t limit;       /* bytes; 0: keeps nothing. Set once before use */
    atomic_size_t held; /* bytes that wait */
    atomic_size_t lent; /* bytes of lent mappings that their holders have not charged */
    atomic_uint next;   /* place to empty when all are taken */
    _Atomic(struct mapping *) place[MAPPINGS_PLACES];
    atomic_size_t grown[MAPPINGS_PLACES]; /* the size of what lies or has lain there, if it grew, else 0: a hint */
};

/* A private anonymous mapping of at least `bytes` (a multiple of a page) and at most an eighth more, which did not grow; *mapped says how many. Its
 * contents are whatever they were. NULL: the kernel has none. Give it back by mappings_give or munmap. */
void *mappings_take(struct mappings *kept, size_t bytes, size_t *mapped);
/* The smallest that grew, waits and has at least `bytes`; NULL: none. Counted as lent, whole: mappings_lent_change says what the holder
 * charges of it. */
void *mappings_lend(struct mappings *kept, size_t bytes, size_t *mapped);
/* Of a lent mapping `now` bytes are uncharged instead of `before`; 0 before it is given back. */
void mappings_lent_change(struct mappings *kept, size_t before, size_t now);
/* A private anonymous mapping of that size, untouched. */
void *mappings_new(size_t bytes);
/* Keeps it or unmaps it. All of it should have been touched: what waits here counts as resident. */
void mappings_give(struct mappings *kept, void *base, size_t mapped, bool grew);
/* Unmaps all that is kept. */
void mappings_empty(struct mappings *kept);

#endif

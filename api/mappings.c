/* SPDX-License-Identifier: Apache-2.0
 *
 * api/mappings.c - see mappings.h.
 */
#include "mappings.h"

#include <stdint.h>
#include <sys/mman.h>

/* At the beginning of a mapping while it waits. */
struct mapping {
    size_t mapped;
    bool grew;
};

static void drop(struct mappings *kept, struct mapping *mapping) {
    atomic_fetch_sub_explicit(&kept->held, mapping->mapped, memory_order_relaxed);
    munmap(mapping, mapping->mapped);
}

static void note(struct mappings *kept, unsigned place, size_t grown) {
    atomic_store_explicit(&kept->grown[place], grown, memory_order_relaxed);
}

/* Into this place, if it is empty. */
static bool put(struct mappings *kept, unsigned place, struct mapping *mapping) {
    struct mapping *none = NULL;
    const size_t grown = mapping->grew ? mapping->mapped : 0; /* once it is there it may be anybody's */
    if (!atomic_compare_exchange_strong(&kept->place[place], &none, mapping)) return false;
    note(kept, place, grown);
    return true;
}

/* What lies in this place, if it grew or not, as wanted, and has from `bytes` to `most` bytes; it is the caller's then. */
static struct mapping *take_from(struct mappings *kept, unsigned place, bool grew, size_t bytes, size_t most) {
    struct mapping *mapping = atomic_exchange(&kept->place[place], NULL);
    if (!mapping || (mapping->grew == grew && mapping->mapped >= bytes && mapping->mapped <= most)) return mapping;
    if (!put(kept, place, mapping)) drop(kept, mapping); /* another has come there meanwhile */
    return NULL;
}

static bool is_there(struct mappings *kept, unsigned place) {
    return atomic_load_explicit(&kept->place[place], memory_order_relaxed) != NULL;
}

static struct mapping *find(struct mappings *kept, size_t bytes) {
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++) {
        const bool grew = atomic_load_explicit(&kept->grown[i], memory_order_relaxed) > 0;
        struct mapping *mapping =
            grew || !is_there(kept, i) ? NULL : take_from(kept, i, false, bytes, bytes + bytes / 8);
        if (mapping) return mapping;
    }
    return NULL;
}

/* The place of the smallest that grew and has at least `bytes`, as far as can be known of what is not ours; PLACES: none. */
static unsigned smallest(struct mappings *kept, size_t bytes) {
    size_t least = SIZE_MAX;
    unsigned best = MAPPINGS_PLACES;
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++) {
        const size_t size = atomic_load_explicit(&kept->grown[i], memory_order_relaxed);
        if (size < bytes || size >= least || !is_there(kept, i)) continue;
        least = size;
        best = i;
    }
    return best;
}

void *mappings_new(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

void *mappings_take(struct mappings *kept, size_t bytes, size_t *mapped) {
    struct mapping *mapping = atomic_load_explicit(&kept->held, memory_order_relaxed) ? find(kept, bytes) : NULL;
    if (mapping) {
        *mapped = mapping->mapped;
        atomic_fetch_sub_explicit(&kept->held, mapping->mapped, memory_order_relaxed);
        return mapping;
    }
    *mapped = bytes;
    return mappings_new(bytes);
}

void *mappings_lend(struct mappings *kept, size_t bytes, size_t *mapped) {
    if (!atomic_load_explicit(&kept->held, memory_order_relaxed)) return NULL;
    const unsigned place = smallest(kept, bytes);
    struct mapping *mapping = place < MAPPINGS_PLACES ? take_from(kept, place, true, bytes, SIZE_MAX) : NULL;
    if (!mapping) return NULL;
    *mapped = mapping->mapped;
    atomic_fetch_add_explicit(&kept->lent, mapping->mapped, memory_order_relaxed);
    atomic_fetch_sub_explicit(&kept->held, mapping->mapped, memory_order_relaxed);
    return mapping;
}

void mappings_lent_change(struct mappings *kept, size_t before, size_t now) {
    if (now >= before)
        atomic_fetch_add_explicit(&kept->lent, now - before, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&kept->lent, before - now, memory_order_relaxed);
}

void mappings_give(struct mappings *kept, void *base, size_t mapped, bool grew) {
    const size_t held = atomic_fetch_add_explicit(&kept->held, mapped, memory_order_relaxed);
    struct mapping *mapping = base;
    if (mapped > kept->limit || held > kept->limit - mapped) {
        atomic_fetch_sub_explicit(&kept->held, mapped, memory_order_relaxed);
        munmap(base, mapped);
        return;
    }
    *mapping = (struct mapping){mapped, grew};
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++)
        if (put(kept, i, mapping)) return;
    const unsigned place = atomic_fetch_add_explicit(&kept->next, 1, memory_order_relaxed) % MAPPINGS_PLACES;
    note(kept, place, grew ? mapped : 0);
    mapping = atomic_exchange(&kept->place[place], mapping);
    if (mapping) drop(kept, mapping);
}

void mappings_empty(struct mappings *kept) {
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++) {
        struct mapping *mapping = atomic_exchange(&kept->place[i], NULL);
        if (mapping) drop(kept, mapping);
    }
}

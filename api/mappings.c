/* SPDX-License-Identifier: Apache-2.0
 *
 * api/mappings.c - see mappings.h.
 */
#include "mappings.h"

#include <sys/mman.h>

/* At the beginning of a mapping while it waits. */
struct mapping {
    size_t mapped;
};

static void drop(struct mappings *kept, struct mapping *mapping) {
    atomic_fetch_sub_explicit(&kept->held, mapping->mapped, memory_order_relaxed);
    munmap(mapping, mapping->mapped);
}

/* Back into its place, unless another has come there meanwhile. */
static void put_back(struct mappings *kept, unsigned place, struct mapping *mapping) {
    struct mapping *none = NULL;
    if (!atomic_compare_exchange_strong(&kept->place[place], &none, mapping)) drop(kept, mapping);
}

static struct mapping *find(struct mappings *kept, size_t bytes) {
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++) {
        if (!atomic_load_explicit(&kept->place[i], memory_order_relaxed)) continue;
        struct mapping *mapping = atomic_exchange(&kept->place[i], NULL);
        if (!mapping) continue;
        if (mapping->mapped >= bytes && mapping->mapped - bytes <= bytes / 8) return mapping;
        put_back(kept, i, mapping);
    }
    return NULL;
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

void mappings_give(struct mappings *kept, void *base, size_t mapped) {
    const size_t held = atomic_fetch_add_explicit(&kept->held, mapped, memory_order_relaxed);
    struct mapping *mapping = base;
    if (mapped > kept->limit || held > kept->limit - mapped) {
        atomic_fetch_sub_explicit(&kept->held, mapped, memory_order_relaxed);
        munmap(base, mapped);
        return;
    }
    mapping->mapped = mapped;
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++) {
        struct mapping *none = NULL;
        if (atomic_compare_exchange_strong(&kept->place[i], &none, mapping)) return;
    }
    const unsigned place = atomic_fetch_add_explicit(&kept->next, 1, memory_order_relaxed) % MAPPINGS_PLACES;
    mapping = atomic_exchange(&kept->place[place], mapping);
    if (mapping) drop(kept, mapping);
}

void mappings_empty(struct mappings *kept) {
    for (unsigned i = 0; i < MAPPINGS_PLACES; i++) {
        struct mapping *mapping = atomic_exchange(&kept->place[i], NULL);
        if (mapping) drop(kept, mapping);
    }
}

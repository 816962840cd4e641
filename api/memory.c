/* SPDX-License-Identifier: Apache-2.0
 *
 * api/memory.c - the arena, the budget and the growing blocks of api/memory.h.
 *
 * Model. Small things are cut from chunks got by malloc: the first chunk also holds the arena itself, so that a small request
 * costs one malloc and one free. What is larger than LARGE gets a mapping of its own (a mem_slot remembers it). A growing block
 * begins inside a chunk, where it can mostly be extended in place because nothing else is allocated while a tensor streams
 * in; past LARGE it moves into a mapping that doubles its address space but is charged in steps, as it is touched:
 * untouched pages of a private mapping cost nothing.
 *
 * Every byte is charged before it is asked for and given back exactly once: `arena->used` is the sum, and mem_arena_free
 * returns it whole.
 */
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT   64u
#define FIRST_CHUNK (32u * 1024)
#define NEXT_CHUNK  (64u * 1024)
#define LARGE       (48u * 1024)  /* from here on a mapping of its own */
#define PAGE        4096u         /* granularity of charges for mappings */
#define GROW_STEP   (256u * 1024) /* a mapped growing block is charged in steps of this size */
#define GROW_FIRST  512u

struct mem_slot {
    struct mem_slot *next;
    void *base;     /* NULL once given back */
    size_t mapped;  /* bytes of address space */
    size_t charged; /* bytes charged to the budget */
    bool grows;     /* began with less than it could need */
    bool lent;      /* had waited as a whole (mappings.h): what is not charged counts as lent */
};

struct chunk {
    struct chunk *next;
    size_t bytes;
};

struct mem_arena {
    struct mem_budget *budget;
    struct chunk *chunks; /* newest first; the oldest holds the arena */
    struct mem_slot *slots;
    char *at, *end; /* what is left of the newest chunk */
    size_t used;    /* bytes charged */
};

/* ---- the budget ---- */

/* What is kept for later must not be in the way: charged and kept bytes stay below the limit together. */
static void make_room(struct mem_budget *budget, size_t used) {
    const size_t held = atomic_load_explicit(&budget->mappings.held, memory_order_relaxed);
    const size_t kept = held + atomic_load_explicit(&budget->mappings.lent, memory_order_relaxed);
    if (held && (used > budget->limit || kept > budget->limit - used)) mappings_empty(&budget->mappings);
}

bool mem_charge(struct mem_budget *budget, size_t bytes) {
    size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (bytes > budget->limit || used > budget->limit - bytes) return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used, &used, used + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    size_t now = used + bytes, peak = atomic_load_explicit(&budget->peak, memory_order_relaxed);
    while (peak < now && !atomic_compare_exchange_weak_explicit(&budget->peak, &peak, now, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
    make_room(budget, now);
    return true;
}

void mem_uncharge(struct mem_budget *budget, size_t bytes) {
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}

static bool refused(struct mem_budget *budget) { return budget->refuse && budget->refuse(budget->refuse_arg); }

/* ---- the arena ---- */

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static char *align_up(char *p) { return p + (-(uintptr_t)p & (ALIGNMENT - 1)); }

/* A charged first chunk: the one that the last request left, or a new one. Keeping it saves malloc from merging and splitting 32
 * KiB for every small request. */
static struct chunk *first_chunk(struct mem_budget *budget) {
    const size_t bytes = FIRST_CHUNK;
    if (refused(budget) || !mem_charge(budget, bytes)) return NULL;
    struct chunk *chunk = budget->keeps_chunk ? atomic_exchange(&budget->kept, NULL) : NULL;
    if (!chunk) chunk = malloc(bytes);
    if (!chunk) {
        mem_uncharge(budget, bytes);
        return NULL;
    }
    chunk->next = NULL;
    chunk->bytes = bytes;
    return chunk;
}

/* Keeps the chunk if none is kept, else frees it. */
static void give_back(struct mem_budget *budget, struct chunk *first) {
    void *none = NULL;
    if (budget->keeps_chunk && atomic_compare_exchange_strong(&budget->kept, &none, first)) return;
    free(first);
}

void mem_budget_keep(struct mem_budget *budget, size_t mapped) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)budget, (void)mapped;
#else
    budget->keeps_chunk = true;
    budget->mappings.limit = mapped;
#endif
}

void mem_budget_close(struct mem_budget *budget) {
    free(atomic_exchange(&budget->kept, NULL));
    mappings_empty(&budget->mappings);
}

struct mem_arena *mem_arena_new(struct mem_budget *budget) {
    struct chunk *chunk = first_chunk(budget);
    if (!chunk) return NULL;
    struct mem_arena *arena = (struct mem_arena *)(chunk + 1);
    *arena = (struct mem_arena){.budget = budget,
                                .chunks = chunk,
                                .at = (char *)(arena + 1),
                                .end = (char *)chunk + FIRST_CHUNK,
                                .used = FIRST_CHUNK};
    return arena;
}

static size_t lent_of(const struct mem_slot *slot) { return slot->lent ? slot->mapped - slot->charged : 0; }

/* Keeps a mapping that was charged, and so may have been touched, as a whole; unmaps others. */
static void give_mapping(struct mem_budget *budget, struct mem_slot *slot) {
    mappings_lent_change(&budget->mappings, lent_of(slot), 0);
    if (slot->lent || slot->charged + slot->charged / 8 >= slot->mapped)
        mappings_give(&budget->mappings, slot->base, slot->mapped, slot->grows);
    else
        munmap(slot->base, slot->mapped);
}

void mem_arena_free(struct mem_arena *arena) {
    if (!arena) return;
    struct mem_budget *budget = arena->budget;
    size_t used = arena->used;
    for (struct mem_slot *slot = arena->slots; slot; slot = slot->next)
        if (slot->base) give_mapping(budget, slot);
    for (struct chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next; /* the last one holds the arena */
        if (next)
            free(chunk);
        else
            give_back(budget, chunk);
    }
    mem_uncharge(budget, used);
}

size_t mem_arena_used(const struct mem_arena *arena) { return arena->used; }

/* 413 when this request alone would pass the limit, 503 when the others hold what it needs. */
static enum mem_status arena_charge(struct mem_arena *arena, size_t bytes) {
    if (refused(arena->budget)) return MEM_FAILED;
    if (mem_charge(arena->budget, bytes)) {
        arena->used += bytes;
        return MEM_OK;
    }
    return bytes > arena->budget->limit - arena->used ? MEM_TOO_LARGE : MEM_BUSY;
}

enum mem_status mem_would(const struct mem_arena *arena, size_t bytes) {
    size_t limit = arena->budget->limit, used = atomic_load_explicit(&arena->budget->used, memory_order_relaxed);
    if (bytes > limit - arena->used) return MEM_TOO_LARGE;
    return used <= limit && bytes <= limit - used ? MEM_OK : MEM_BUSY;
}

/* Cuts `bytes` from the newest chunk, or from a new one. */
static void *cut(struct mem_arena *arena, size_t bytes, enum mem_status *why) {
    char *p = align_up(arena->at);
    if (p > arena->end || bytes > (size_t)(arena->end - p)) {
        *why = arena_charge(arena, NEXT_CHUNK);
        if (*why != MEM_OK) return NULL;
        struct chunk *chunk = malloc(NEXT_CHUNK);
        if (!chunk) {
            mem_uncharge(arena->budget, NEXT_CHUNK);
            arena->used -= NEXT_CHUNK;
            *why = MEM_FAILED;
            return NULL;
        }
        *chunk = (struct chunk){.next = arena->chunks, .bytes = NEXT_CHUNK};
        arena->chunks = chunk;
        arena->end = (char *)chunk + NEXT_CHUNK;
        p = align_up((char *)(chunk + 1));
    }
    arena->at = p + bytes;
    *why = MEM_OK;
    return p;
}

/* A mapping with its slot, `charge` of its bytes charged. One that is to grow is lent one that waits, or gets a new one. */
static struct mem_slot *map(struct mem_arena *arena, size_t mapped, size_t charge, enum mem_status *why) {
    struct mem_slot *slot = cut(arena, sizeof *slot, why);
    if (!slot) return NULL;
    *why = arena_charge(arena, charge);
    if (*why != MEM_OK) return NULL;
    struct mappings *kept = &arena->budget->mappings;
    const bool grows = charge < mapped;
    void *base = grows ? mappings_lend(kept, charge, &mapped) : mappings_take(kept, mapped, &mapped);
    const bool lent = grows && base;
    if (!base) base = mappings_new(mapped);
    if (!base) {
        mem_uncharge(arena->budget, charge);
        arena->used -= charge;
        *why = MEM_FAILED;
        return NULL;
    }
    *slot = (struct mem_slot){
        .next = arena->slots, .base = base, .mapped = mapped, .charged = charge, .grows = grows, .lent = lent};
    if (lent) mappings_lent_change(kept, mapped, lent_of(slot));
    arena->slots = slot;
    return slot;
}

void *mem_alloc(struct mem_arena *arena, size_t bytes, enum mem_status *why) {
    enum mem_status local;
    if (!why) why = &local;
    if (bytes > SIZE_MAX / 4) {
        *why = MEM_TOO_LARGE;
        return NULL;
    }
    if (refused(arena->budget)) {
        *why = MEM_FAILED;
        return NULL;
    }
    if (bytes <= LARGE) return cut(arena, bytes ? bytes : 1, why);
    size_t mapped = round_up(bytes, PAGE);
    struct mem_slot *slot = map(arena, mapped, mapped, why);
    return slot ? slot->base : NULL;
}

char *mem_strndup(struct mem_arena *arena, const char *text, size_t length) {
    char *copy = length < SIZE_MAX / 4 ? mem_alloc(arena, length + 1, NULL) : NULL;
    if (!copy) return NULL;
    memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

/* ---- growing blocks ---- */

bool mem_grow_init(struct mem_grow *grow, struct mem_arena *arena) {
    *grow = (struct mem_grow){.arena = arena};
    return true;
}

/* Still inside a chunk: extend in place when it is the last thing there, else move to a larger place. */
static enum mem_status grow_in_chunk(struct mem_grow *grow, size_t bytes) {
    struct mem_arena *arena = grow->arena;
    size_t capacity = grow->capacity ? grow->capacity : GROW_FIRST;
    while (capacity < bytes) capacity *= 2;
    if (capacity > LARGE) capacity = LARGE; /* and so bytes: a chunk has room for it */
    if (grow->data && grow->data + grow->capacity == arena->at && capacity <= (size_t)(arena->end - grow->data)) {
        arena->at = grow->data + capacity;
        grow->capacity = capacity;
        return MEM_OK;
    }
    enum mem_status why;
    char *data = cut(arena, capacity, &why);
    if (!data) return why;
    if (grow->data && grow->size) memcpy(data, grow->data, grow->size);
    grow->data = data;
    grow->capacity = capacity;
    return MEM_OK;
}

/* A block that was the last in its chunk has left it for the mapping of this slot, which was cut behind it: the slot moves to
 * where the block began, and what follows is free again. */
static struct mem_slot *close_gap(struct mem_grow *grow, struct mem_slot *slot) {
    struct mem_arena *arena = grow->arena;
    if (!grow->data || (char *)slot != align_up(grow->data + grow->capacity)) return slot;
    struct mem_slot *moved = (struct mem_slot *)(void *)grow->data;
    *moved = *slot;
    arena->slots = moved;
    arena->at = (char *)(moved + 1);
    return moved;
}

/* Into a mapping of `mapped` bytes, of which `bytes` are charged. */
static enum mem_status grow_out(struct mem_grow *grow, size_t bytes, size_t mapped) {
    size_t charge = round_up(bytes, PAGE);
    enum mem_status why;
    struct mem_slot *slot = map(grow->arena, round_up(mapped, PAGE), charge, &why);
    if (!slot) return why;
    if (grow->size) memcpy(slot->base, grow->data, grow->size);
    slot = grow->slot = close_gap(grow, slot);
    grow->data = slot->base;
    grow->capacity = charge;
    return MEM_OK;
}

/* Into a mapping that waits and has room for `want` bytes: the old one waits then in its place. */
static bool move_to_lent(struct mem_grow *grow, size_t want) {
    struct mem_budget *budget = grow->arena->budget;
    struct mem_slot *slot = grow->slot, old = *slot;
    void *base = mappings_lend(&budget->mappings, want, &slot->mapped);
    if (!base) return false;
    memcpy(base, old.base, grow->size);
    slot->base = base;
    slot->lent = true;
    mappings_lent_change(&budget->mappings, slot->mapped, lent_of(slot));
    give_mapping(budget, &old);
    return true;
}

/* Address space for `want` bytes, more than there are. What was lent had the size of a tensor before it, and readers ask for more
 * than comes in the end: it gets a step more, and only then another one. */
static bool widen(struct mem_grow *grow, size_t want) {
    struct mem_slot *slot = grow->slot;
    if (!slot->lent && move_to_lent(grow, want)) return true;
    size_t mapped = slot->lent ? want + GROW_STEP : slot->mapped * 2 > want ? slot->mapped * 2 : want;
    void *base = mremap(slot->base, slot->mapped, mapped, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) return false;
    mappings_lent_change(&grow->arena->budget->mappings, lent_of(slot), 0);
    slot->base = base;
    slot->mapped = mapped;
    slot->lent = false;
    return true;
}

static enum mem_status grow_mapped(struct mem_grow *grow, size_t bytes) {
    struct mem_slot *slot = grow->slot;
    /* Ask for a whole step, but take the exact pages when the budget has no more. */
    size_t want = round_up(bytes, GROW_STEP), least = round_up(bytes, PAGE);
    enum mem_status why = arena_charge(grow->arena, want - slot->charged);
    if (why == MEM_TOO_LARGE || why == MEM_BUSY) {
        want = least;
        why = arena_charge(grow->arena, want - slot->charged);
    }
    if (why != MEM_OK) return why;
    if (want > slot->mapped && !widen(grow, want)) {
        mem_uncharge(grow->arena->budget, want - slot->charged);
        grow->arena->used -= want - slot->charged;
        return MEM_FAILED;
    }
    const size_t lent = lent_of(slot);
    slot->charged = want;
    mappings_lent_change(&grow->arena->budget->mappings, lent, lent_of(slot));
    grow->data = slot->base;
    grow->capacity = want;
    return MEM_OK;
}

enum mem_status mem_grow_reserve(struct mem_grow *grow, size_t bytes) {
    if (bytes <= grow->capacity) return MEM_OK;
    if (bytes > SIZE_MAX / 8) return MEM_TOO_LARGE;
    if (refused(grow->arena->budget)) return MEM_FAILED;
    if (grow->slot) return grow_mapped(grow, bytes);
    return bytes <= LARGE ? grow_in_chunk(grow, bytes) : grow_out(grow, bytes, 2 * bytes);
}

enum mem_status mem_grow_whole(struct mem_grow *grow, size_t bytes) {
    if (bytes > SIZE_MAX / 8) return MEM_TOO_LARGE;
    if (refused(grow->arena->budget)) return MEM_FAILED;
    enum mem_status why = bytes <= LARGE ? grow_in_chunk(grow, bytes) : grow_out(grow, bytes, bytes);
    if (why != MEM_OK) return why;
    grow->size = bytes;
    mem_grow_trim(grow);
    return MEM_OK;
}

void mem_grow_trim(struct mem_grow *grow) {
    struct mem_arena *arena = grow->arena;
    struct mem_slot *slot = grow->slot;
    if (!slot) {
        if (grow->data && grow->data + grow->capacity == arena->at) {
            arena->at = grow->data + grow->size;
            grow->capacity = grow->size;
        }
        return;
    }
    size_t keep = round_up(grow->size ? grow->size : 1, PAGE);
    const size_t lent = lent_of(slot), spare = slot->lent ? keep / 8 : 0; /* as much as mappings_take may give */
    if (keep + spare < slot->mapped && mremap(slot->base, slot->mapped, keep, 0) != MAP_FAILED) slot->mapped = keep;
    if (keep < slot->charged) {
        mem_uncharge(arena->budget, slot->charged - keep);
        arena->used -= slot->charged - keep;
        slot->charged = keep;
    }
    mappings_lent_change(&arena->budget->mappings, lent, lent_of(slot));
    grow->capacity = keep;
}

void mem_grow_free(struct mem_grow *grow) {
    struct mem_slot *slot = grow->slot;
    if (slot && slot->base) {
        give_mapping(grow->arena->budget, slot);
        mem_uncharge(grow->arena->budget, slot->charged);
        grow->arena->used -= slot->charged;
        *slot = (struct mem_slot){.next = slot->next};
    } else if (grow->data) {
        grow->size = 0;
        mem_grow_trim(grow);
    }
    *grow = (struct mem_grow){.arena = grow->arena};
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/memory.h - memory with a lifetime and a limit: the process-wide budget, a request's arena, and growing tensors.
 *
 * Model. A `mem_budget` counts every byte that requests hold, against --max-memory. A `mem_arena` belongs to one request; all
 * that the request allocates comes from it, is charged to the budget before it exists, and dies with it. A `mem_grow` is one
 * tensor whose length is not known yet: it grows in place by pages (mremap), so that reading never needs twice the tensor,
 * and is charged for what it has touched.
 *
 * What it does not do: free single small objects (the arena dies whole), or know what the bytes are.
 */
#ifndef MHA_API_MEMORY_H
#define MHA_API_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "mappings.h"

struct mem_budget {
    size_t limit;       /* bytes; set once before use */
    atomic_size_t used; /* bytes charged now */
    atomic_size_t peak; /* most ever charged */
    /* What arenas have left behind for the next ones, uncharged, where mem_budget_keep has asked for it: one first chunk, and
     * large mappings. */
    bool keeps_chunk;
    _Atomic(void *) kept;
    struct mappings mappings;
    /* Tests only: asked before every allocation; true = behave as if the allocator had said no. NULL in the server. */
    bool (*refuse)(void *refuse_arg);
    void *refuse_arg;
};

/* True and charged, or false and nothing changed. Never overflows. */
bool mem_charge(struct mem_budget *budget, size_t bytes);
void mem_uncharge(struct mem_budget *budget, size_t bytes);

/* From now on a first chunk and up to `mapped` bytes of large mappings are kept for the next arenas, until mem_budget_close; nothing
 * under a sanitizer, which would not see a use after free. Before use. */
void mem_budget_keep(struct mem_budget *budget, size_t mapped);
/* Frees what the budget keeps. */
void mem_budget_close(struct mem_budget *budget);

enum mem_status {
    MEM_OK = 0,
    MEM_TOO_LARGE, /* more than the limit could ever grant: 413 */
    MEM_BUSY,      /* others hold what this needs: 503 */
    MEM_FAILED,    /* the allocator said no: 503 */
};

struct mem_arena;
struct mem_slot;

struct mem_arena *mem_arena_new(struct mem_budget *budget); /* NULL: no memory */
void mem_arena_free(struct mem_arena *arena);               /* NULL is fine */
/* Zeroed? No. Aligned to 64. NULL, and *why (if not NULL), when the budget or the allocator refuses. bytes may be 0. */
void *mem_alloc(struct mem_arena *arena, size_t bytes, enum mem_status *why);
char *mem_strndup(struct mem_arena *arena, const char *text, size_t length);
/* Bytes held now, charged. */
size_t mem_arena_used(const struct mem_arena *arena);
/* The status mem_alloc would give for bytes, deciding only (413 before 503). */
enum mem_status mem_would(const struct mem_arena *arena, size_t bytes);

struct mem_grow {
    struct mem_arena *arena;
    char *data;            /* aligned to 64; NULL while empty */
    size_t size;           /* bytes in use, set by the owner */
    size_t capacity;       /* bytes that may be written; all of them are charged */
    struct mem_slot *slot; /* private: the mapping it has outgrown the arena into, or NULL */
};

/* Starts an empty one; it belongs to the arena and is freed with it. */
bool mem_grow_init(struct mem_grow *grow, struct mem_arena *arena);
/* Makes capacity >= bytes. On failure nothing changes. */
enum mem_status mem_grow_reserve(struct mem_grow *grow, size_t bytes);
/* An empty one becomes `bytes` large, once and for all. */
enum mem_status mem_grow_whole(struct mem_grow *grow, size_t bytes);
/* Gives back what lies beyond size. */
void mem_grow_trim(struct mem_grow *grow);
void mem_grow_free(struct mem_grow *grow);

/* Products and sums of client-sent sizes. False on overflow, *out untouched. */
static inline bool mem_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool mem_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

#endif

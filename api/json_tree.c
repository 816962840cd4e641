/* SPDX-License-Identifier: Apache-2.0
 *
 * api/json_tree.c - see json_tree.h.
 */
#include "json_tree.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/* While this thread parses into an arena: which, and why it gave nothing. cJSON's allocator has no argument to carry them. */
static _Thread_local struct mem_arena *arena_now;
static _Thread_local enum mem_status why_not;

static void *take(size_t bytes) { return arena_now ? mem_alloc(arena_now, bytes, &why_not) : malloc(bytes); }

static void give(void *memory) {
    if (!arena_now) free(memory);
}

static void set_allocator(void) {
    cJSON_Hooks hooks = {.malloc_fn = take, .free_fn = give};
    cJSON_InitHooks(&hooks);
}

struct cJSON *json_tree(const char *text, size_t length) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
    pthread_mutex_lock(&turn);
    cJSON *tree = cJSON_ParseWithLength(text, length);
    pthread_mutex_unlock(&turn);
    return tree;
}

struct cJSON *json_tree_in(struct mem_arena *arena, const char *text, size_t length, enum mem_status *why) {
    arena_now = arena;
    why_not = MEM_OK;
    cJSON *tree = json_tree(text, length);
    arena_now = NULL;
    *why = tree ? MEM_OK : why_not;
    return tree;
}

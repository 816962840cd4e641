/* SPDX-License-Identifier: Apache-2.0
 *
 * api/json_tree.h - the one place where cJSON parses: cJSON notes where its last parse failed in a process-wide variable, so
 * parses take turns, for the microseconds that one lasts. cJSON's allocator is set to ours here, at the first parse, so that a
 * tree can lie in an arena: it then costs no call of malloc or free a node, and what it takes is charged like everything else.
 */
#ifndef MHA_API_JSON_TREE_H
#define MHA_API_JSON_TREE_H

#include <stddef.h>

#include "memory.h"

struct cJSON;

/* The tree of a JSON text (with nothing after it checked); NULL: not JSON, or no memory. Free with cJSON_Delete. */
struct cJSON *json_tree(const char *text, size_t length);

/* The same in an arena, which frees it: neither cJSON_Delete nor changes. NULL: *why says which memory there was not, or
 * MEM_OK if the text is not JSON. */
struct cJSON *json_tree_in(struct mem_arena *arena, const char *text, size_t length, enum mem_status *why);

#endif

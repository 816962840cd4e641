/* SPDX-License-Identifier: Apache-2.0
 *
 * api/json_tree.h - the one place where cJSON parses: cJSON notes where its last parse failed in a process-wide variable, so
 * parses take turns, for the microseconds that one lasts.
 */
#ifndef MHA_API_JSON_TREE_H
#define MHA_API_JSON_TREE_H

#include <stddef.h>

struct cJSON;

/* The tree of a JSON text (with nothing after it checked); NULL: not JSON, or no memory. Free with cJSON_Delete. */
struct cJSON *json_tree(const char *text, size_t length);

#endif

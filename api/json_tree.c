/* SPDX-License-Identifier: Apache-2.0
 *
 * api/json_tree.c - see json_tree.h.
 */
#include "json_tree.h"

#include <cjson/cJSON.h>
#include <pthread.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

struct cJSON *json_tree(const char *text, size_t length) {
    pthread_mutex_lock(&turn);
    cJSON *tree = cJSON_ParseWithLength(text, length);
    pthread_mutex_unlock(&turn);
    return tree;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layer_answers.c - see layer_answers.h.
 */
#include "layer_answers.h"

#include <string.h>

#include "layer_dir.h"
#include "layers.h"

static void json_answer(struct api_answer *answer, char *text) {
    if (!text) {
        problem_set(&answer->problem, PROBLEM_OUT_OF_MEMORY, "", "There is no memory for this right now.");
        return;
    }
    answer->content_type = "application/json";
    answer->body = text;
    answer->size = strlen(text);
}

static void not_found(const struct api_env *env, const char *name, struct api_answer *answer) {
    char near[LAYER_NAME_MAX + 1] = "";
    if (env->layers) layer_store_suggest(env->layers, name, near);
    problem_set(&answer->problem, PROBLEM_LAYER_NOT_FOUND, "",
                "There is no layer \"%.100s\" (GET /v1/layers lists them).%s%s%s", name,
                near[0] ? " Did you mean \"" : "", near, near[0] ? "\"?" : "");
}

void layers_list_answer(const struct api_env *env, const char *name, enum api_media out, struct api_answer *answer) {
    (void)name;
    (void)out;
    json_answer(answer, env->layers ? layer_store_list(env->layers) : strdup("{\"layers\":[]}\n"));
}

void layers_get_answer(const struct api_env *env, const char *name, enum api_media out, struct api_answer *answer) {
    (void)out;
    struct layer *layer = env->layers ? layer_store_get(env->layers, name) : NULL;
    if (!layer) {
        not_found(env, name, answer);
        return;
    }
    json_answer(answer, layer_describe(layer, name));
    layer_release(layer);
}

void layers_delete_answer(const struct api_env *env, const char *name, enum api_media out, struct api_answer *answer) {
    (void)out;
    struct layer *layer = env->layers ? layer_store_get(env->layers, name) : NULL;
    if (!layer) {
        not_found(env, name, answer);
        return;
    }
    layer_release(layer);
    if (env->layers_dir && !layer_dir_delete(env->layers_dir, name, &answer->problem)) return;
    layer_store_delete(env->layers, name);
    answer->status = 204;
}

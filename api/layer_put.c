/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layer_put.c - see layer_put.h.
 */
#include "layer_put.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_dir.h"

static bool no_memory(struct problem *problem) {
    return problem_set(problem, PROBLEM_OUT_OF_MEMORY, "", "There is no memory for this right now.");
}

bool layer_put_init(struct layer_put *put, const struct api_env *env) {
    *put = (struct layer_put){.env = env, .arena = mem_arena_new(env->budget)};
    return put->arena != NULL;
}

void layer_put_free(struct layer_put *put) {
    mem_arena_free(put->arena);
    free(put->text);
}

bool layer_put_target(struct layer_put *put, const char *name, struct problem *problem) {
    if (!put->env->layers) return problem_set(problem, PROBLEM_NOT_FOUND, "", "This server keeps no layers.");
    if (!layer_name_check(name, problem)) return false;
    snprintf(put->name, sizeof put->name, "%s", name);
    return true;
}

/* Writes the layer's file, if there is a directory for it; the layer then reads from there. Takes the reference and returns one
 * again, or NULL and *problem. */
static struct layer *keep_on_disk(const struct api_env *env, const char *name, struct layer *layer,
                                  struct problem *problem) {
    if (!env->layers_dir) return layer;
    struct layer *stored = layer_dir_put(env->layers_dir, name, layer, env->budget, problem);
    if (stored) layer_take_packed(stored, layer);
    layer_release(layer);
    return stored;
}

bool layer_put_one(struct layer_put *put, struct request *request) {
    struct layer_source source;
    struct problem *problem = request->problem;
    bool replaced;
    if (!layer_read_request(request, &source)) return false;
    source.arena = put->arena;
    struct layer *layer = layer_new(put->env->budget, &source, "PUT", problem);
    if (!layer) return false;
    put->arena = NULL;
    if (!layer_packed(layer, source.dtype, problem)) {
        layer_release(layer);
        return false;
    }
    layer = keep_on_disk(put->env, put->name, layer, problem);
    if (!layer) return false;
    put->text = layer_describe(layer, put->name);
    if (!put->text || !layer_store_put(put->env->layers, put->name, layer, &replaced)) {
        layer_release(layer);
        return no_memory(problem);
    }
    put->created = !replaced;
    return true;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static bool name_of(const struct layer_put *put, const struct checkpoint_layer *found, char name[LAYER_NAME_MAX + 1],
                    struct problem *problem) {
    int n = snprintf(name, LAYER_NAME_MAX + 1, "%s.%s", put->name, found->name);
    if (n > 0 && n <= LAYER_NAME_MAX) return true;
    return problem_set(problem, PROBLEM_OUT_OF_RANGE, "",
                       "The name \"%.60s.%.100s\" is longer than the %d characters of a layer's name.", put->name,
                       found->name, LAYER_NAME_MAX);
}

static struct layer *make_found(const struct layer_put *put, struct checkpoint_layer *found, struct problem *problem) {
    const struct api_env *env = put->env;
    char name[LAYER_NAME_MAX + 1], origin[64];
    if (!name_of(put, found, name, problem)) return NULL;
    snprintf(origin, sizeof origin, "PUT checkpoint (%s)", found->family);
    struct layer *layer = layer_new(env->budget, &found->source, origin, problem);
    if (!layer) return NULL;
    found->source.arena = NULL;
    if (!env->layers_dir) return layer;
    struct layer *staged = layer_dir_stage(env->layers_dir, name, layer, env->budget, problem);
    layer_release(layer);
    return staged;
}

/* All of the layers or, with *problem, none. */
static bool make_all(const struct layer_put *put, const struct checkpoint *found, struct layer **layers,
                     struct problem *problem) {
    for (size_t i = 0; i < found->count; i++) {
        if (!found->layers[i].usable) continue;
        layers[i] = make_found(put, &found->layers[i], problem);
        if (!layers[i]) return false;
    }
    return true;
}

static bool commit_all(const struct layer_put *put, const struct checkpoint *found, struct layer **layers, bool good,
                       struct problem *problem) {
    char name[LAYER_NAME_MAX + 1];
    for (size_t i = 0; i < found->count; i++) {
        if (!layers[i] || !name_of(put, &found->layers[i], name, problem)) continue;
        good = good && layer_dir_commit(put->env->layers_dir, name, layers[i], problem);
        if (!good) layer_dir_discard(put->env->layers_dir, name);
    }
    return good;
}

/* On disk all files are written before the first takes its place: a disk that fills up leaves the old ones. */
static bool make_and_keep(const struct layer_put *put, const struct checkpoint *found, struct layer **layers,
                          struct problem *problem) {
    const char *directory = put->env->layers_dir;
    if (!directory) return make_all(put, found, layers, problem);
    int lock = layer_dir_begin(directory, problem);
    bool ok = lock >= 0 && commit_all(put, found, layers, make_all(put, found, layers, problem), problem);
    layer_dir_end(lock);
    return ok;
}

/* {"layers":["m.a","m.b"],"refused":[{"name":"m.c","reason":"..."}]} */
static char *describe_found(const struct layer_put *put, const struct checkpoint *found) {
    char *text = NULL;
    size_t size = 0, shown = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    fprintf(out, "{\"layers\":[");
    for (size_t i = 0; i < found->count; i++)
        if (found->layers[i].usable) fprintf(out, "%s\"%s.%s\"", shown++ ? "," : "", put->name, found->layers[i].name);
    fprintf(out, "]");
    shown = 0;
    for (size_t i = 0; i < found->count; i++) {
        if (found->layers[i].usable) continue;
        fprintf(out, "%s{\"name\":\"%s.%s\",\"reason\":", shown++ ? "," : ",\"refused\":[", put->name,
                found->layers[i].name);
        layer_print_string(out, found->layers[i].refusal);
        fprintf(out, "}");
    }
    fprintf(out, "%s}\n", shown ? "]" : "");
    return fclose(out) == 0 ? text : NULL;
}

static bool store_found(struct layer_put *put, const struct checkpoint *found, struct layer **layers,
                        struct problem *problem) {
    char name[LAYER_NAME_MAX + 1];
    for (size_t i = 0; i < found->count; i++) {
        bool replaced;
        if (!layers[i]) continue;
        if (!name_of(put, &found->layers[i], name, problem)) return false;
        if (!layer_store_put(put->env->layers, name, layers[i], &replaced)) return no_memory(problem);
        layers[i] = NULL;
        put->created = put->created || !replaced;
    }
    return true;
}

bool layer_put_checkpoint(struct layer_put *put, struct checkpoint *found, struct problem *problem) {
    struct layer **layers = calloc(found->count + 1, sizeof *layers);
    put->text = describe_found(put, found);
    bool ok = (layers && put->text) || no_memory(problem);
    ok = ok && make_and_keep(put, found, layers, problem) && store_found(put, found, layers, problem);
    for (size_t i = 0; layers && i < found->count; i++) layer_release(layers[i]);
    free(layers);
    return ok;
}

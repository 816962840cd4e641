/* SPDX-License-Identifier: Apache-2.0
 *
 * server/layers.c - see layers.h.
 */
#include "layers.h"

#include <stdlib.h>
#include <string.h>

#include "../api/layer_dir.h"
#include "../api/layers.h"
#include "request.h"
#include "service.h"

static bool load_directory(struct service *service, const struct config *config, struct problem *problem) {
    size_t count = 0;
    if (!*config->layers) return true;
    if (!layer_dir_load(config->layers, config->layers_writable, &service->budget, service->env.layers, &count,
                        problem))
        return false;
    if (config->layers_writable) service->env.layers_dir = config->layers;
    log_message(&service->log, LOG_INFO, "layers", "%zu from %.200s", count, config->layers);
    return true;
}

static bool load_checkpoint(struct service *service, const struct config *config, struct problem *problem) {
    size_t count = 0, refused = 0;
    if (!*config->checkpoint) return true;
    if (!layer_checkpoint_load(config->checkpoint, (size_t)config->num_heads, &service->budget, service->env.layers,
                               &count, &refused, problem))
        return false;
    log_message(&service->log, LOG_INFO, "layers", "%zu from %.200s", count, config->checkpoint);
    if (refused) log_message(&service->log, LOG_WARN, "layers", "%zu not used; %.400s", refused, problem->detail);
    problem_init(problem); /* the refusal of a layer is none of the start */
    return true;
}

bool layers_open(struct service *service, const struct config *config, char *why, size_t size) {
    struct problem problem;
    problem_init(&problem);
    service->env.layers = layer_store_new();
    bool ok = service->env.layers || problem_set(&problem, PROBLEM_OUT_OF_MEMORY, "", "out of memory");
    /* in this order: what was PUT over a layer of the checkpoint is in the directory */
    ok = ok && load_checkpoint(service, config, &problem) && load_directory(service, config, &problem);
    if (!ok) snprintf(why, size, "%s", problem.detail);
    return ok;
}

void layers_close(struct service *service) {
    layer_store_free(service->env.layers);
    service->env.layers = NULL;
}

static const char *argument(struct request *request, const char *name) {
    return MHD_lookup_connection_value(request->conn->mhd, MHD_GET_ARGUMENT_KIND, name);
}

void layers_target(struct request *request) {
    const char *checkpoint = argument(request, "checkpoint"), *heads = argument(request, "num_heads");
    size_t num_heads = 0;
    if (heads &&
        (strspn(heads, "0123456789") != strlen(heads) || strlen(heads) > 6 || (num_heads = (size_t)atol(heads)) == 0))
        problem_set(api_call_problem(request->call), PROBLEM_OUT_OF_RANGE, "",
                    "num_heads in the query is \"%.20s\", but must be an integer from 1 to 999999.", heads);
    if (heads && !checkpoint)
        problem_set(api_call_problem(request->call), PROBLEM_CONFLICT, "",
                    "num_heads in the query goes with checkpoint=1 alone; a layer's is in its body.");
    if (checkpoint && strcmp(checkpoint, "1") != 0)
        problem_set(api_call_problem(request->call), PROBLEM_OUT_OF_RANGE, "",
                    "checkpoint in the query is \"%.20s\"; the only value is 1.", checkpoint);
    api_call_layer(request->call, request->match.name, checkpoint != NULL, num_heads);
}

int layers_print(const struct config *config, FILE *out, FILE *err) {
    struct problem problem;
    problem_init(&problem);
    char *table = layer_checkpoint_list(config->list_layers, (size_t)config->num_heads, &problem);
    if (!table) {
        fprintf(err, "mhad: --list-layers: %s\n", problem.detail[0] ? problem.detail : "out of memory");
        return 2;
    }
    fputs(table, out);
    free(table);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layer_put.h - what PUT /v1/layers/{name} does with a body that was read.
 *
 * Order of a PUT: check, pack (so that a weight that is not finite is told now), write the file if layers have a directory,
 * then let others see it. A failure at any step leaves the layers as they were. A checkpoint becomes several layers; they are
 * all made before the first is seen, and packed when first used.
 */
#ifndef MHA_API_LAYER_PUT_H
#define MHA_API_LAYER_PUT_H

#include "call.h"
#include "checkpoint.h"
#include "layers.h"
#include "request.h"

struct layer_put {
    const struct api_env *env;
    struct mem_arena *arena; /* of the body; NULL once a layer owns it */
    char name[LAYER_NAME_MAX + 1];
    bool created; /* there was none of that name */
    char *text;   /* the answer, malloc'd */
};

/* False: no memory. */
bool layer_put_init(struct layer_put *put, const struct api_env *env);
void layer_put_free(struct layer_put *put);
/* The name in the path. False and *problem if it cannot be one. */
bool layer_put_target(struct layer_put *put, const char *name, struct problem *problem);
/* After the body: its layer, or request->problem. */
bool layer_put_one(struct layer_put *put, struct request *request);
bool layer_put_checkpoint(struct layer_put *put, struct checkpoint *found, struct problem *problem);

#endif

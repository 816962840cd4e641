/* SPDX-License-Identifier: Apache-2.0
 *
 * api/request.h - a request between the wire and core: what a body reader filled in, and the mha_problem made from it.
 *
 * Model. A body reader (document.c for JSON, another for safetensors) calls request_init, asks request_field for every field
 * name it meets (that refuses unknown and duplicate ones), fills request->tensor[id] for tensor fields, and hands the text of
 * one JSON object with all the other fields to request_options. From there on nothing knows which format the body had:
 * request_build checks everything (options.c, weights.c, masks.c) and fills a struct job, the problem core computes.
 *
 * Every function here that can fail returns false with request->problem set.
 */
#ifndef MHA_API_REQUEST_H
#define MHA_API_REQUEST_H

#include <stdint.h>

#include "options.h"
#include "response.h"
#include "tensor.h"

struct cJSON;

struct request {
    struct mem_arena *arena;
    struct mem_budget *budget;
    struct problem *problem;
    unsigned where;   /* IN_MHA or IN_LAYER: which document this is */
    uint64_t seen;    /* a bit per field, by its place in `fields` */
    bool dtype_known; /* the reader met "dtype" already: numbers may be read straight to it */
    enum mha_dtype dtype;
    struct tensor tensor[TENSOR_COUNT];
    struct cJSON *rest; /* the object of all other fields, in the arena; NULL until request_options */
};

void request_init(struct request *request, unsigned where, struct mem_arena *arena, struct mem_budget *budget,
                  struct problem *problem);

/* The field of that name (length bytes, UTF-8, NUL-terminated too), noted as seen. NULL: unknown here or seen before. */
const struct field *request_field(struct request *request, const char *name, size_t length);

/* The tensor of that id if it occurred and was not null, else NULL. */
struct tensor *request_tensor(struct request *request, enum tensor_id id);

/* Parses `text`, one strictly valid JSON object with the option fields in canonical spelling. */
bool request_options(struct request *request, const char *text, size_t length);

/* The problem for core, its results and workspace, and the answer they will make. */
struct job {
    struct options options;
    bool batched; /* Q had a batch dimension */
    struct mha_problem problem;
    struct mha_result result;
    struct mha_need need;
    void *workspace;
    struct response response;
};

/* Checks the request and fills the job: tensors converted, results and workspace allocated for `threads`, nothing computed.
 * `layer` is the resident layer that request->options names (found by the caller), or NULL. The job borrows from the request's
 * arena. job->options must have been filled by options_read. */
bool request_build(struct request *request, const struct mha_layer *layer, size_t threads, struct job *job);

#endif

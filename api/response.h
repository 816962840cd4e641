/* SPDX-License-Identifier: Apache-2.0
 *
 * api/response.h - the answer to a computed request: a list of named tensors and warnings, and the JSON writer for it.
 *
 * Model. request.c decides which tensors the answer holds, in which order, with which shapes, and allocates them before
 * anything is computed. After the run a writer (here JSON, elsewhere safetensors) goes through the list once and produces
 * the bytes block by block, with a constant amount of memory.
 */
#ifndef MHA_API_RESPONSE_H
#define MHA_API_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../core/mha.h"
#include "tensor_write.h"

struct response_tensor {
    const char *name;   /* "output", "projections" */
    const char *member; /* "Q" inside {"projections": {"Q": ...}}, or NULL; members of one name stand together */
    size_t rank;
    size_t dim[4];
    size_t bytes;
    void *data;  /* elements of the response's dtype */
    void **slot; /* the member of struct mha_result that gets the address */
};

#define RESPONSE_TENSORS 12

struct response {
    enum mha_dtype dtype;
    enum tensor_write_format format;
    size_t count;
    struct response_tensor tensor[RESPONSE_TENSORS];
    /* the warning fully_masked_rows; masked_rows 0: none. [b, h, i] */
    uint64_t masked_rows;
    size_t masked_first[3];
};

/* The JSON writer's place in the answer. */
struct response_json {
    const struct response *response;
    size_t next; /* tensor to write */
    int stage;
    struct tensor_write tensor;
};

void response_json_begin(struct response_json *writer, const struct response *response);
/* The next bytes (max >= 4096); 0 = the end. */
size_t response_json_read(struct response_json *writer, char *out, size_t max);

#endif

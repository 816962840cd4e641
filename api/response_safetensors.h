/* SPDX-License-Identifier: Apache-2.0
 *
 * api/response_safetensors.h - writes the answer as a safetensors file, block by block.
 *
 * Tensors have the names of the JSON answer, members of an object with a dot: "output", "projections.Q", "present.V". Their
 * dtype is the working precision, F64 or F32. __metadata__.mha is the JSON text of everything else: {} or
 * {"warnings":[...]}. What JSON writes as null (logsumexp of a row without keys, the score of a hidden key) is here the
 * number as it is: -infinity, or whatever was computed.
 */
#ifndef MHA_API_RESPONSE_SAFETENSORS_H
#define MHA_API_RESPONSE_SAFETENSORS_H

#include "response.h"
#include "safetensors.h"

struct response_safetensors {
    struct st_out tensors[RESPONSE_TENSORS];
    size_t count;
    char *header; /* malloc'd */
    size_t header_bytes;
    size_t next;   /* 0: the header, i + 1: tensor i */
    size_t offset; /* bytes of that written */
};

/* False: no memory. The response must live as long as the writer. */
bool response_safetensors_begin(struct response_safetensors *writer, const struct response *response);
/* Of the whole file. */
size_t response_safetensors_bytes(const struct response_safetensors *writer);
/* The next bytes; 0 = the end. */
size_t response_safetensors_read(struct response_safetensors *writer, char *out, size_t max);
void response_safetensors_end(struct response_safetensors *writer);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/safetensors_body.h - reads a body of type application/vnd.safetensors while it arrives, in pieces of any size.
 *
 * Model. The header comes first and is checked whole (api/safetensors.h) before a byte of data is taken: a bad file costs
 * nothing. Then every tensor has a *sink*: aligned memory of its final size, to which its bytes go straight from the piece,
 * widened on the way where the working precision is known. Nothing else of the data is ever stored.
 *
 * As a request (safetensors_body_init) it fills the same struct request as the JSON reader: tensors have the names of the
 * fields; all other fields are the JSON text of one object under __metadata__.mha, read by that reader. As a checkpoint
 * (safetensors_body_checkpoint) it finds the attention layers of a whole model (api/checkpoint.h), keeps their tensors, each
 * layer in an arena of its own, and skips all others; __metadata__.mha then stands for config.json.
 *
 * Element types: F64 F32 F16 BF16 where numbers are taken; BOOL for masks; integers for key_lengths, and as 0/1 for key_mask
 * and key_padding_mask. Any other is refused by the tensor's name.
 */
#ifndef MHA_API_SAFETENSORS_BODY_H
#define MHA_API_SAFETENSORS_BODY_H

#include "checkpoint.h"
#include "request.h"
#include "safetensors.h"

struct sink;

struct safetensors_body {
    struct request *request; /* its problem latches the first error */
    bool checkpoint;
    size_t num_heads;        /* checkpoint: from outside, 0 = from the metadata */
    struct checkpoint found; /* checkpoint: the layers; sources of usable ones own their arenas until taken */

    /* private */
    int stage;
    uint64_t consumed;
    unsigned char prefix[8];
    size_t have; /* of prefix, then of the header */
    size_t header_length;
    struct mem_grow text;
    struct st_header *header;
    size_t header_charged;
    struct sink *sinks; /* [header->n_tensors] */
    size_t next;        /* tensor that the data has reached */
    size_t position;    /* bytes of data consumed */
    size_t carried;
    unsigned char carry[8]; /* a number cut by the end of a piece */
};

void safetensors_body_init(struct safetensors_body *body, struct request *request);
void safetensors_body_checkpoint(struct safetensors_body *body, struct request *request, size_t num_heads);
void safetensors_body_feed(struct safetensors_body *body, const void *bytes, size_t size);
/* The body is complete. False with the request's problem set. */
bool safetensors_body_end(struct safetensors_body *body);
void safetensors_body_free(struct safetensors_body *body); /* also when never fed */

/* The same for a file in memory: fills the request with tensors that borrow `data`. */
bool safetensors_request(const struct st_header *header, const unsigned char *data, struct request *request);

/* PROBLEM_SAFETENSORS (or out of memory) for a broken rule. Returns false. */
bool safetensors_problem(struct problem *problem, const struct st_error *error, const struct mem_budget *budget);

#endif

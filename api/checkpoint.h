/* SPDX-License-Identifier: Apache-2.0
 *
 * api/checkpoint.h - finds the attention layers of a whole-model safetensors file by the names of its tensors.
 *
 * Model. Every family of models has its own names for the same four projections. One table (checkpoint.c) holds them; a
 * layer is found where all four are there under a common prefix, and its name is that prefix. What the names cannot tell
 * (the number of heads; whether positions are rotated into Q and K) is read from the model's config.json. A layer that would
 * compute something else than the model does is found, too, but carries the reason why it is refused: rotary positions,
 * norms on Q and K, relative position embeddings inside the attention.
 *
 * The tensors stay where they are: a part of a layer is a view of (a slice of) a tensor of the file.
 *
 * What it does not do: normalisation before the attention, residuals, position embeddings, causality: the caller sends what
 * goes into the attention and says `causal`. T5's relative bias is the caller's attn_mask.
 */
#ifndef MHA_API_CHECKPOINT_H
#define MHA_API_CHECKPOINT_H

#include "../core/mha.h"
#include "layers.h"
#include "safetensors.h"

struct checkpoint_layer {
    char name[LAYER_NAME_MAX + 1];
    const char *family; /* "BERT" */
    const char *note;   /* what the caller must know, or NULL */
    bool usable;
    char refusal[240]; /* why not, when not usable */
    /* per weight, in the order of layer_source: the tensor of the file it is (a slice of), or NULL, and the slice's first byte */
    const struct st_tensor *tensor[LAYER_TENSORS];
    size_t offset[LAYER_TENSORS]; /* from the tensor's begin */
    struct layer_source source;   /* no owner set; tensor[].data only if checkpoint_find got the data */
};

struct checkpoint {
    struct checkpoint_layer *layers; /* in the order of the names, numbers by value (layer.2 before layer.10) */
    size_t count;
    size_t usable;
};

/* Finds the layers. `data` is where the tensors' bytes are, NULL if they are yet to come. `config` is the text of config.json or NULL. num_heads 0: from the config. False and
 * *error (rule ST_HEADER_STRUCTURE or ST_NO_MEMORY) when there is none at all, or config is no JSON object. */
bool checkpoint_find(const struct st_header *header, const unsigned char *data, const char *config, size_t num_heads,
                     struct checkpoint *out, struct st_error *error);
void checkpoint_free(struct checkpoint *checkpoint);

/* The table that `mhad --list-layers FILE` prints. malloc'd, NULL: no memory. */
char *checkpoint_table(const struct checkpoint *checkpoint);

/* The text of config.json beside `path` (malloc'd), NULL if there is none or it is larger than 16 MiB. */
char *checkpoint_config_beside(const char *path);

#endif

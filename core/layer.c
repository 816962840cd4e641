/* SPDX-License-Identifier: Apache-2.0
 *
 * core/layer.c - resident weights: a private copy of them, made once, shared read-only by any number of runs.
 *
 * Model. One allocation: the struct, then each tensor that is there, each aligned to MHA_ALIGN.
 */
#include "layer.h"

#include "check.h"
#include "workspace.h"

#include <stdlib.h>
#include <string.h>

struct mha_layer {
    struct mha_layer_shape shape;
    struct mha_weights weights;
};

enum { TENSORS = 8 };

/* The tensors of a layer: where the pointer is in struct mha_weights, and how many elements. */
struct part {
    const void **data;
    size_t elements;
};

static void list_parts(const struct mha_layer_shape *s, struct mha_weights *w, struct part part[TENSORS]) {
    const struct part all[TENSORS] = {
        {&w->W_q, s->d_q * s->h * s->d_k},
        {&w->W_k, s->d_kin * s->h_kv * s->d_k},
        {&w->W_v, s->d_vin * s->h_kv * s->d_v},
        {&w->W_o, s->h * s->d_v * s->d_out},
        {&w->b_q, s->h * s->d_k},
        {&w->b_k, s->h_kv * s->d_k},
        {&w->b_v, s->h_kv * s->d_v},
        {&w->b_o, s->d_out},
    };
    memcpy(part, all, sizeof all);
}

size_t mha_layer_bytes(const struct mha_layer_shape *shape, const struct mha_weights *weights) {
    struct mha_detail detail;
    if (mha_check_layer(shape, weights, &detail) != MHA_OK) return SIZE_MAX;
    struct mha_weights w = *weights;
    struct part part[TENSORS];
    list_parts(shape, &w, part);
    size_t total = mha_align_up(sizeof(struct mha_layer));
    for (size_t t = 0; t < TENSORS; t++)
        if (*part[t].data != NULL) total += mha_align_up(part[t].elements * mha_dtype_size(shape->dtype));
    return total;
}

struct mha_layer *mha_layer_new(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                                struct mha_detail *detail) {
    if (mha_check_layer(shape, weights, detail) != MHA_OK) return NULL;
    struct mha_layer *layer = aligned_alloc(MHA_ALIGN, mha_layer_bytes(shape, weights));
    if (layer == NULL) {
        *detail = (struct mha_detail){.code = MHA_ERR_MEMORY, .field = "layer"};
        return NULL;
    }
    layer->shape = *shape;
    layer->weights = *weights;
    struct part part[TENSORS];
    list_parts(shape, &layer->weights, part);
    char *at = (char *)layer + mha_align_up(sizeof *layer);
    for (size_t t = 0; t < TENSORS; t++) {
        size_t bytes = part[t].elements * mha_dtype_size(shape->dtype);
        if (*part[t].data == NULL) continue;
        memcpy(at, *part[t].data, bytes);
        *part[t].data = at;
        at += mha_align_up(bytes);
    }
    return layer;
}

const struct mha_weights *mha_layer_weights(const struct mha_layer *layer) { return &layer->weights; }

const struct mha_layer_shape *mha_layer_shape(const struct mha_layer *layer) { return &layer->shape; }

void mha_layer_free(struct mha_layer *layer) { free(layer); }

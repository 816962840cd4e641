/* SPDX-License-Identifier: Apache-2.0
 *
 * core/layer.h - weights as the evaluations see them: in a layer, or in a problem. Private to core.
 */
#ifndef MHA_CORE_LAYER_H
#define MHA_CORE_LAYER_H

#include "kernels/kernels.h"
#include "mha.h"

enum mha_tensor { T_Q = 0, T_K, T_V, T_O, TENSORS };

/* The layer's weights as plain tensors of layout MHA_IN_OUT, for the reference: copied to `to`, which has room for
 * mha_layer_plain_bytes. */
size_t mha_layer_plain_bytes(const struct mha_layer *layer);
struct mha_weights mha_layer_plain(const struct mha_layer *layer, void *to);

/* A weight packed for the kernels, its bias; NULL where the layer has none. */
const void *mha_layer_packed(const struct mha_layer *layer, enum mha_tensor tensor);
const void *mha_layer_bias(const struct mha_layer *layer, enum mha_tensor tensor);

/* Where the elements of a weight lie. W_o is one head, d_out wide, of h*d_v inputs. */
struct mha_weight_view mha_view_of(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                                   enum mha_tensor tensor);

/* The same of a problem's own weights. */
struct mha_weight_view mha_view_of_weight(const struct mha_problem *problem, enum mha_tensor tensor);

#endif

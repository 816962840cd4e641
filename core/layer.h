/* SPDX-License-Identifier: Apache-2.0
 *
 * core/layer.h - the inside of a layer, for the evaluations. Private to core.
 */
#ifndef MHA_CORE_LAYER_H
#define MHA_CORE_LAYER_H

#include "mha.h"

/* The layer's weights in the layout they came in. Borrowed, as long as the layer. */
const struct mha_weights *mha_layer_weights(const struct mha_layer *layer);

#endif

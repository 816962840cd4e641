/* SPDX-License-Identifier: Apache-2.0
 *
 * api/weights.h - W_*, b_*, num_heads, num_kv_heads and weight_layout: whether they fit together and the widths they mean.
 *
 * Model. The widths of Q, K and V are given (POST /v1/mha) or not known (PUT /v1/layers). Each projection has in x heads x
 * features; what is known of in must agree with the input, heads with num_heads, features of W_q with those of W_k. A null
 * projection passes its input through, so its width must be known.
 */
#ifndef MHA_API_WEIGHTS_H
#define MHA_API_WEIGHTS_H

#include "request.h"

#define WIDTH_UNKNOWN SIZE_MAX

/* Widths of the inputs and, for messages, which field each comes from (K may be Q, V may be K). */
struct input_widths {
    size_t d_q, d_kin, d_vin;
    const char *q_name, *k_name, *v_name;
};

/* Checks the shapes of the weights against each other; reads and converts no number. dtype of *shape is not set. False with
 * request->problem set. */
bool weights_shape(struct request *request, const struct options *options, const struct input_widths *in,
                   struct mha_layer_shape *shape);

/* Checks and converts the weights of the request; fills *shape and *weights (pointers into the request). dtype: the working
 * precision. False with request->problem set. */
bool weights_build(struct request *request, const struct options *options, enum mha_dtype dtype,
                   const struct input_widths *in, struct mha_layer_shape *shape, struct mha_weights *weights);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/layout.h - where an element of a weight lies, for each of the four layouts of core/mha.h. Private to core.
 *
 * Model. A projection W_q, W_k, W_v is a function of (input e, head g, column c); W_o is one of (head g, column c,
 * output o). Each layout is three strides, in elements, and every reader of a weight (reference, packing, decode) goes
 * through them.
 */
#ifndef MHA_CORE_LAYOUT_H
#define MHA_CORE_LAYOUT_H

#include "mha.h"

/* Element (e, g, c) of a projection is W[e*input + g*head + c*column]. */
struct mha_strides_in {
    size_t input, head, column;
};

static inline struct mha_strides_in mha_projection_strides(enum mha_layout layout, size_t d_in, size_t heads,
                                                           size_t d) {
    switch (layout) {
    case MHA_OUT_IN:
        return (struct mha_strides_in){.input = 1, .head = d * d_in, .column = d_in};
    case MHA_HEAD_IN_OUT:
        return (struct mha_strides_in){.input = d, .head = d_in * d, .column = 1};
    case MHA_IN_OUT:
    case MHA_IN_HEAD_OUT:
        break;
    }
    return (struct mha_strides_in){.input = heads * d, .head = d, .column = 1};
}

/* Element (g, c, o) of W_o is W_o[(g*d_v + c)*context + o*output]. */
struct mha_strides_out {
    size_t context, output;
};

static inline struct mha_strides_out mha_output_strides(enum mha_layout layout, size_t h, size_t d_v, size_t d_out) {
    if (layout == MHA_OUT_IN) return (struct mha_strides_out){.context = 1, .output = h * d_v};
    return (struct mha_strides_out){.context = d_out, .output = 1};
}

#endif

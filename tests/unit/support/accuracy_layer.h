/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/accuracy_layer.h - attention layers on which accuracy is measured, ours and NumPy's alike.
 *
 * Model. Layer i of type t is a function of (i, t) alone, the same on every machine: ACCURACY_RANDOM ordinary layers
 * (self- and cross-attention, with and without biases and causal mask, inputs of unit variance), then hard ones, named by
 * accuracy_kind: scores of hundreds, scores that nearly agree, thousands of keys, thousands of inputs. The numbers are
 * rounded to the type before anything sees them, so all parties compute the same layer.
 *
 * Error of a result: |got - exact| over the largest |exact| of the layer's output; its largest value and its mean over
 * the output's elements.
 *
 * What this does not do: every option of the contract (that is random_problem.h).
 */
#ifndef MHA_TESTS_UNIT_SUPPORT_ACCURACY_LAYER_H
#define MHA_TESTS_UNIT_SUPPORT_ACCURACY_LAYER_H

#include "../../../core/mha.h"
#include "oracle.h"

enum { ACCURACY_RANDOM = 200, ACCURACY_HARD = 54, ACCURACY_LAYERS = ACCURACY_RANDOM + ACCURACY_HARD };

struct accuracy_layer {
    struct mha_problem problem; /* B = 1, layout in_out, all four projections; biases all or none */
    struct mha_result result;   /* only `output`, to be filled */
    void *owned[12];
    size_t n_owned;
};

/* Never NULL. */
struct accuracy_layer *accuracy_layer_new(size_t index, enum mha_dtype dtype);
void accuracy_layer_free(struct accuracy_layer *layer);
const char *accuracy_kind(size_t index);

struct accuracy {
    double max, mean; /* infinite when something is not a number */
};

/* Runs the library on the layer (result.output is filled) and measures it. */
struct accuracy accuracy_measure(struct accuracy_layer *layer, const struct oracle *exact);

#endif

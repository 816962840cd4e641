/* SPDX-License-Identifier: Apache-2.0
 *
 * core/check.h - what mha_plan refuses. Private to core.
 */
#ifndef MHA_CORE_CHECK_H
#define MHA_CORE_CHECK_H

#include "mha.h"

/* Largest dimension and largest size in bytes of one tensor: 2^60. Sums of a few of them, and signed positions, still
 * fit. */
#define MHA_MAX_BYTES ((size_t)1 << 60)

/* Product of `rank` dims (zeros left out) times `element`, in *bytes. False: above MHA_MAX_BYTES. With a zero among the
 * dims *bytes is 0, but the others must fit all the same, so that no stride ever overflows. */
bool mha_tensor_bytes(const size_t *dim, size_t rank, size_t element, size_t *bytes);

/* Refuses with a code and *detail, or says MHA_OK: then every dimension, stride and byte count of the problem and of
 * the results fits, every needed pointer is there, and no index in heads_listed or key_lengths leads out. Reads no
 * tensor data. */
enum mha_error mha_check(const struct mha_problem *problem, const struct mha_result *result, size_t threads,
                         struct mha_detail *detail);

/* The same for a layer's shape and weights. */
enum mha_error mha_check_layer(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                               struct mha_detail *detail);

/* The dimensions of a problem that a layer fixes. */
struct mha_layer_shape mha_shape_of(const struct mha_problem *problem);

#endif

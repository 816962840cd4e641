/* SPDX-License-Identifier: Apache-2.0
 *
 * api/masks.h - attn_mask, key_mask, key_padding_mask and key_lengths: their shapes, their values, what they mean.
 */
#ifndef MHA_API_MASKS_H
#define MHA_API_MASKS_H

#include "request.h"

/* Reads the mask fields of the request into job->problem, whose dtype, B, n_q, n_k, n_past and h are set. False with
 * request->problem set. */
bool masks_build(struct request *request, struct job *job);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * api/results.h - what a request gets back: which tensors, in which order, of which shapes, and the memory for them.
 *
 * Model. A table of all that could be asked for, in the order of the contract; each tensor that is asked for goes onto the answer's
 * list with its size. Sizes are compared with the memory limit one by one, so that the refusal names the tensor, and only when
 * all are known to be allowed is memory taken, for them and for core's workspace.
 *
 * What it does not do: compute, or write the answer (response.h).
 */
#ifndef MHA_API_RESULTS_H
#define MHA_API_RESULTS_H

#include "request.h"

/* The job's problem is complete; fills result, need, workspace (planned for `threads`) and response. False with
 * request->problem set: an unknown or doubled head in attention_heads, results over the limit (413), no memory (503), or what
 * core refuses. */
bool results_build(struct request *request, struct job *job, size_t threads);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/fused.h - the fast evaluation of a problem as a chain of regions. Private to core; core/run.c executes the chain.
 */
#ifndef MHA_CORE_FUSED_H
#define MHA_CORE_FUSED_H

#include "run.h"

/* Bytes that mha_fused_init will lay out; SIZE_MAX: they do not fit. */
size_t mha_fused_need(const struct mha_problem *problem, const struct mha_result *result, size_t threads);

/* Lays the evaluation out in the workspace that follows the run, and sets run->state, next_regions and conclude. */
void mha_fused_init(struct mha_run *run, void *workspace);

#endif

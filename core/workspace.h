/* SPDX-License-Identifier: Apache-2.0
 *
 * core/workspace.h - how many bytes a run needs: asked by mha_plan, answered by core/run.c, which lays them out.
 * Private.
 */
#ifndef MHA_CORE_WORKSPACE_H
#define MHA_CORE_WORKSPACE_H

#include "mha.h"

/* The next multiple of MHA_ALIGN. Of sizes that are known to be small, such as a struct's. */
static inline size_t mha_align_up(size_t bytes) { return (bytes + (MHA_ALIGN - 1)) / MHA_ALIGN * MHA_ALIGN; }

/* Bytes of workspace that mha_run_init will lay out for the same three; SIZE_MAX: they do not fit size_t. The problem
 * has been checked (core/check.h). */
size_t mha_run_need(const struct mha_problem *problem, const struct mha_result *result, size_t threads);

#endif

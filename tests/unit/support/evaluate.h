/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/evaluate.h - plans and runs a problem, in one call, for tests.
 */
#ifndef MHA_TESTS_UNIT_SUPPORT_EVALUATE_H
#define MHA_TESTS_UNIT_SUPPORT_EVALUATE_H

#include "../../../core/mha.h"

/* On the calling thread, or on a pool if one is given. The workspace is filled with NaN first, so that what a run reads before
 * it wrote it shows. Aborts where mha_plan refuses. */
enum mha_error evaluate(const struct mha_problem *p, struct mha_result *r, struct mha_pool *on);

/* All n problems in the pool at once; waits for the last. status[n] gets what each came to. */
void evaluate_together(const struct mha_problem *const *p, struct mha_result *r, size_t n, struct mha_pool *on,
                       enum mha_error *status);

enum mha_error evaluate_reference(const struct mha_problem *p, struct mha_result *r);

#endif

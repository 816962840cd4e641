/* SPDX-License-Identifier: Apache-2.0
 *
 * core/failure.h - when a result went NaN or infinite: which stage was the first. Private to core and its tests.
 *
 * Model. A run fails with MHA_ERR_NON_FINITE when one of these is NaN or infinite, and names the first of them, in this
 * order and then by index. A stage counts only if a wanted result depends on it (`mha_needs`).
 *     projections.Q  [b, head, i, c]  Q' of a query that sees at least one key in that head
 *     projections.K  [b, g, j, c]     K' of a new key j < n_k that some query of some head reading g sees
 *     projections.V  [b, g, j, c]     V' of such a key
 *     scores         [b, head, i, j]  of a visible key: the scaled product before the softcap, or that capped plus the
 * mask scores         [b, head, i]     (rank 3) a row that sees a key, in a head whose sink is NaN or +infinity heads
 * [b, head, i, c]  the context output         [b, i, o] The product counts before the softcap, because a sum that
 * overflowed on the way may be small in truth, and tanh would hide that. A product that overflows to -infinity counts
 * too, although its weight would only be 0. What is hidden never counts: projections, scores and caches of hidden keys
 * are written as computed, and may be NaN.
 *
 * What this does not do: find failures. An evaluation calls mha_failure_note for what it meets, in any order.
 */
#ifndef MHA_CORE_FAILURE_H
#define MHA_CORE_FAILURE_H

#include "mha.h"

enum mha_stage {
    MHA_STAGE_Q = 0,
    MHA_STAGE_K,
    MHA_STAGE_V,
    MHA_STAGE_SCORES,
    MHA_STAGE_HEADS,
    MHA_STAGE_OUTPUT,
    MHA_STAGE_NONE, /* nothing failed */
};

/* The first failure so far. Start with MHA_NO_FAILURE. */
struct mha_failure {
    enum mha_stage stage;
    size_t rank;
    size_t index[4];
};

#define MHA_NO_FAILURE ((struct mha_failure){.stage = MHA_STAGE_NONE})

static inline bool mha_failure_before(const struct mha_failure *a, const struct mha_failure *b) {
    if (a->stage != b->stage) return a->stage < b->stage;
    size_t rank = a->rank < b->rank ? a->rank : b->rank;
    for (size_t axis = 0; axis < rank; axis++)
        if (a->index[axis] != b->index[axis]) return a->index[axis] < b->index[axis];
    return a->rank < b->rank;
}

/* Keeps the earlier of *first and found. */
static inline void mha_failure_note(struct mha_failure *first, struct mha_failure found) {
    if (mha_failure_before(&found, first)) *first = found;
}

/* What an evaluation has to compute for the wanted results. */
struct mha_needs {
    bool proj_Q, proj_K, proj_V, scores, heads, output;
};

static inline struct mha_needs mha_needs_of(const struct mha_result *r) {
    struct mha_needs n = {0};
    n.output = r->output != NULL;
    n.heads = n.output || r->heads != NULL || r->concat != NULL;
    n.scores = n.heads || r->attention != NULL || r->scores != NULL || r->logsumexp != NULL;
    n.proj_Q = n.scores || r->proj_Q != NULL;
    n.proj_K = n.scores || r->proj_K != NULL || r->present_K != NULL;
    n.proj_V = n.heads || r->proj_V != NULL || r->present_V != NULL;
    return n;
}

/* Fills masked_rows and masked_first: the (sample, head, query) rows that see no key. Needs no numbers but the masks. */
void mha_count_masked_rows(const struct mha_problem *p, struct mha_result *r);

/* Writes the verdict into *detail and returns its code: MHA_OK or MHA_ERR_NON_FINITE. */
enum mha_error mha_failure_verdict(const struct mha_failure *failure, struct mha_detail *detail);

#endif

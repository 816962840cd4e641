/* SPDX-License-Identifier: Apache-2.0
 *
 * core/run.c - a run as a chain of regions: opening, cutting short, ending, and executing it on the calling thread.
 *
 * Model: core/run.h. What the regions compute is core/fused.c's.
 */
#include "run.h"

#include "fused.h"
#include "workspace.h"

size_t mha_run_need(const struct mha_problem *problem, const struct mha_result *result, size_t threads) {
    size_t bytes = mha_fused_need(problem, result, threads);
    return __builtin_add_overflow(bytes, mha_align_up(sizeof(struct mha_run)), &bytes) ? SIZE_MAX : bytes;
}

struct mha_run *mha_run_init(void *workspace, const struct mha_problem *problem, struct mha_result *result,
                             size_t threads) {
    struct mha_run *run = workspace;
    *run = (struct mha_run){.problem = problem, .result = result, .threads = threads};
    atomic_init(&run->cancelled, false);
    mha_fused_init(run, (char *)workspace + mha_align_up(sizeof(struct mha_run)));
    return run;
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

bool mha_run_open(struct mha_run *run) {
    while (run->current < run->n_regions && run->region[run->current].n_tasks == 0) run->current++;
    if (run->current == run->n_regions && run->next_regions != NULL && run->next_regions(run)) run->current = 0;
    run->next = 0;
    run->unfinished = run->current < run->n_regions ? run->region[run->current].n_tasks : 0;
    return run->current < run->n_regions;
}

void mha_run_cut(struct mha_run *run) {
    run->cut_short = true;
    run->unfinished -= run->region[run->current].n_tasks - run->next;
    run->next = run->region[run->current].n_tasks;
    run->n_regions = run->current + 1;
    run->next_regions = NULL;
}

void mha_run_nothing(struct mha_run *run, size_t task, size_t slot) {
    (void)run;
    (void)task;
    (void)slot;
}

void mha_run_finish(struct mha_run *run) {
    if (run->cut_short || mha_run_stopped(run)) {
        run->result->detail = (struct mha_detail){.code = MHA_ERR_CANCELLED};
        run->status = MHA_ERR_CANCELLED;
        return;
    }
    run->status = run->conclude != NULL ? run->conclude(run) : MHA_OK;
}

enum mha_error mha_run_here(struct mha_run *run) {
    for (bool more = mha_run_open(run); more; run->current++, more = mha_run_open(run)) {
        const struct mha_region *region = &run->region[run->current];
        for (size_t task = 0; task < region->n_tasks && !mha_run_stopped(run); task++) region->task(run, task, 0);
        if (mha_run_stopped(run)) break;
    }
    mha_run_finish(run);
    return run->status;
}

void mha_run_cancel(struct mha_run *run) { atomic_store_explicit(&run->cancelled, true, memory_order_relaxed); }

enum mha_error mha_run_status(const struct mha_run *run) { return run->status; }

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/run.c - lays a run out in the caller's workspace, and executes it on the calling thread.
 *
 * Model: core/run.h. The chain is one region of one task, the reference evaluation; its workspace follows the run.
 */
#include "run.h"

#include "workspace.h"

static void evaluate_all(struct mha_run *run, size_t task, size_t slot) {
    (void)task;
    (void)slot;
    mha_reference(run->problem, run->result, run->state);
}

static enum mha_error code_of_result(struct mha_run *run) { return run->result->detail.code; }

size_t mha_run_need(const struct mha_problem *problem, const struct mha_result *result, size_t threads) {
    (void)result;
    (void)threads;
    size_t bytes = mha_reference_need(problem);
    return __builtin_add_overflow(bytes, mha_align_up(sizeof(struct mha_run)), &bytes) ? SIZE_MAX : bytes;
}

struct mha_run *mha_run_init(void *workspace, const struct mha_problem *problem, struct mha_result *result,
                             size_t threads) {
    struct mha_run *run = workspace;
    *run = (struct mha_run){.problem = problem, .result = result, .threads = threads};
    atomic_init(&run->cancelled, false);
    run->state = (char *)workspace + mha_align_up(sizeof(struct mha_run));
    run->region[0] = (struct mha_region){.n_tasks = 1, .task = evaluate_all};
    run->n_regions = 1;
    run->conclude = code_of_result;
    return run;
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

bool mha_run_open(struct mha_run *run) {
    while (run->current < run->n_regions && run->region[run->current].n_tasks == 0) run->current++;
    run->next = 0;
    run->unfinished = run->current < run->n_regions ? run->region[run->current].n_tasks : 0;
    return run->current < run->n_regions;
}

void mha_run_cut(struct mha_run *run) {
    run->cut_short = true;
    run->unfinished -= run->region[run->current].n_tasks - run->next;
    run->next = run->region[run->current].n_tasks;
    run->n_regions = run->current + 1;
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

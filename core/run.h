/* SPDX-License-Identifier: Apache-2.0
 *
 * core/run.h - a run as a state machine, shared by core/run.c (what is computed) and core/pool.c (who computes it).
 * Private.
 *
 * Model. A run is a chain of regions, done one after the other; a region is n_tasks tasks, done in any order by any
 * number of threads. Whoever finishes the last task of a region opens the next one: nobody ever waits for a region to
 * end. A region with 0 tasks is skipped; a serial step is a region of one task. What one region wrote, the next may
 * read (the pool orders them). After the last region `conclude` gives the status.
 *
 * core/run.c fills the part "what"; the part "progress" belongs to whoever executes the run (core/pool.c, under its
 * lock, or mha_run_here); tasks touch neither. The struct lies at the start of the caller's workspace.
 *
 * Cancelling: the flag is looked at before every task; a task longer than about one tile looks at mha_run_stopped
 * itself and returns early. A chain cut short ends with MHA_ERR_CANCELLED, whatever its tasks had found.
 */
#ifndef MHA_CORE_RUN_H
#define MHA_CORE_RUN_H

#include "mha.h"

#include <stdatomic.h>

#define MHA_RUN_REGIONS 8

/* `slot` < run->threads is the scratch that is this task's alone while it runs. */
typedef void mha_task(struct mha_run *run, size_t task, size_t slot);

struct mha_region {
    size_t n_tasks;
    mha_task *task;
};

struct mha_run {
    /* what */
    const struct mha_problem *problem;
    struct mha_result *result;
    size_t threads;
    size_t n_regions;
    struct mha_region region[MHA_RUN_REGIONS];
    bool (*next_regions)(
        struct mha_run *run); /* at the end of the regions: puts others in their place (region, n_regions),
                                                  with tasks. False: there are none. May be NULL */
    enum mha_error (*conclude)(
        struct mha_run *run); /* after a complete chain; fills result->detail and returns its code */
    void *state;              /* of core/run.c, in the workspace */

    /* asked for from any thread */
    atomic_bool cancelled;

    /* progress */
    enum mha_error status;   /* valid after the end */
    size_t current;          /* the open region; n_regions: the end */
    size_t next;             /* first task of it that nobody has claimed */
    size_t unfinished;       /* tasks of it not finished, claimed or not */
    bool cut_short;          /* some task was dropped because of a cancel */
    void (*done)(void *arg); /* the pool's */
    void *done_arg;
    struct mha_run *left, *right; /* neighbours in the pool's ring of runs with unclaimed tasks */
};

/* Has somebody asked for the end? */
static inline bool mha_run_stopped(struct mha_run *run) {
    return atomic_load_explicit(&run->cancelled, memory_order_relaxed);
}

/* Opens the first region with tasks from run->current on. False: the chain is at its end. */
bool mha_run_open(struct mha_run *run);

/* Drops the tasks of the open region that nobody has claimed, and all later regions. */
void mha_run_cut(struct mha_run *run);

/* A task that does nothing. */
void mha_run_nothing(struct mha_run *run, size_t task, size_t slot);

/* The chain is at its end: settles status and result->detail. */
void mha_run_finish(struct mha_run *run);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * core/pool.c - the worker pool: a fixed set of threads that execute the tasks of all runs given to it.
 *
 * Model. Runs whose open region still has unclaimed tasks sit in a ring. A worker takes the lock, reports the task it
 * has just finished, claims one task of the run whose turn it is, moves the turn on, and lets the lock go; tasks
 * compute without it. So runs share the workers task by task, and a run of one task waits for at most one task per
 * worker, never for the end of a larger run. The worker that finishes the last task of a region opens the next region
 * of that run (core/run.h); the one that finishes the last region calls done. A worker without work watches `openings`
 * for a moment (a region often follows the one before within microseconds, and waking a sleeper takes about 50), then
 * sleeps on the condition.
 *
 * Guarantees. A worker's number is its scratch slot, so a slot is never used twice at once. done is called exactly once
 * per run, without the lock, after the last access of the pool to that run: it may free the run. Signals are blocked in
 * workers.
 *
 * What this does not do: order runs by priority or size, bind threads to CPUs, preempt a task, or limit how many runs
 * are in.
 */
#include "run.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* About 14 us where it was measured. Longer spinning was seen to keep a woken worker off the CPU of its waker. */
enum { SPINS_BEFORE_SLEEP = 200 };

struct worker {
    struct mha_pool *pool;
    size_t slot;
    pthread_t thread;
};

struct mha_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;  /* tasks were opened, or the end has come */
    atomic_uint openings; /* counts what `work` signals; spinners watch it without the lock */
    struct mha_run *turn; /* in the ring of runs with unclaimed tasks; NULL: the ring is empty */
    size_t n_runs;        /* submitted, and done not yet returned */
    size_t n_asleep;      /* workers waiting for `work` */
    bool stopping;        /* mha_pool_free waits */
    size_t n_workers;
    struct worker worker[];
};

static inline void spin_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- the ring (under the lock) ----------------------------------------------------------------------------------- */

/* Last in turn. */
static void ring_add(struct mha_pool *pool, struct mha_run *run) {
    if (pool->turn == NULL) {
        pool->turn = run->left = run->right = run;
        return;
    }
    run->right = pool->turn;
    run->left = pool->turn->left;
    run->left->right = run;
    run->right->left = run;
}

static void ring_remove(struct mha_pool *pool, struct mha_run *run) {
    if (pool->turn == run) pool->turn = run->right == run ? NULL : run->right;
    run->left->right = run->right;
    run->right->left = run->left;
    run->left = run->right = NULL;
}

/* Tasks have been opened; `takers` of them will be taken by nobody who is awake for sure. */
static void wake(struct mha_pool *pool, size_t takers) {
    atomic_fetch_add_explicit(&pool->openings, 1, memory_order_relaxed);
    if (takers >= pool->n_asleep) {
        if (pool->n_asleep > 0) pthread_cond_broadcast(&pool->work);
        return;
    }
    while (takers-- > 0) pthread_cond_signal(&pool->work);
}

/* ---- one worker -------------------------------------------------------------------------------------------------- */

/* What a worker has claimed. */
struct claim {
    struct mha_run *run;
    mha_task *task;
    size_t index;
};

/* Claims the next task in turn. False: there is none, or a run has come to its end by being cancelled: *ended. */
static bool claim_next(struct mha_pool *pool, struct claim *claim, struct mha_run **ended) {
    *ended = NULL;
    while (pool->turn != NULL) {
        struct mha_run *run = pool->turn;
        if (mha_run_stopped(run)) {
            ring_remove(pool, run);
            mha_run_cut(run);
            if (run->unfinished > 0) continue; /* whoever finishes its last task in flight ends it */
            *ended = run;
            return false;
        }
        const struct mha_region *region = &run->region[run->current];
        *claim = (struct claim){.run = run, .task = region->task, .index = run->next++};
        pool->turn = run->right;
        if (run->next == region->n_tasks) ring_remove(pool, run);
        return true;
    }
    return false;
}

/* One task of the run is finished. Opens the next region if it was the last of its own. True: the run is at its end. */
static bool report(struct mha_pool *pool, struct mha_run *run) {
    if (--run->unfinished > 0) return false;
    run->current++;
    if (!mha_run_open(run)) return true;
    ring_add(pool, run);
    wake(pool, run->unfinished - 1);
    return false;
}

/* Settles a run at its end and hands it back. Called with the lock, which it lets go meanwhile. */
static void end_run(struct mha_pool *pool, struct mha_run *run) {
    void (*done)(void *) = run->done;
    void *arg = run->done_arg;
    pthread_mutex_unlock(&pool->lock);
    mha_run_finish(run);
    done(arg); /* the run may be gone from here on */
    pthread_mutex_lock(&pool->lock);
    if (--pool->n_runs == 0 && pool->stopping) wake(pool, pool->n_workers);
}

/* Waits until there may be work. Called with the lock; lets it go meanwhile. */
static void wait_for_work(struct mha_pool *pool) {
    unsigned seen = atomic_load_explicit(&pool->openings, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    int spins = 0;
    while (spins < SPINS_BEFORE_SLEEP && atomic_load_explicit(&pool->openings, memory_order_relaxed) == seen) {
        spin_pause();
        spins++;
    }
    pthread_mutex_lock(&pool->lock);
    if (spins < SPINS_BEFORE_SLEEP) return;
    pool->n_asleep++;
    while (pool->turn == NULL && !(pool->stopping && pool->n_runs == 0)) pthread_cond_wait(&pool->work, &pool->lock);
    pool->n_asleep--;
}

static void *worker_main(void *arg) {
    const struct worker *self = arg;
    struct mha_pool *pool = self->pool;
    struct claim claim;
    struct mha_run *ended;
    pthread_mutex_lock(&pool->lock);
    while (!(pool->stopping && pool->n_runs == 0)) {
        if (claim_next(pool, &claim, &ended)) {
            pthread_mutex_unlock(&pool->lock);
            claim.task(claim.run, claim.index, self->slot);
            pthread_mutex_lock(&pool->lock);
            if (report(pool, claim.run)) ended = claim.run;
        } else if (ended == NULL) {
            wait_for_work(pool);
        }
        if (ended != NULL) end_run(pool, ended);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- the public part --------------------------------------------------------------------------------------------- */

/* A mutex that spins for a moment before it sleeps: it is held for a few dozen instructions at a time. */
static bool init_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0) return false;
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    int failed = pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return failed == 0;
}

/* Starts the workers with all signals blocked, so that the process handles them elsewhere. False: not all could be
 * started. */
static bool start_workers(struct mha_pool *pool, size_t threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->n_workers < threads) {
        struct worker *worker = &pool->worker[pool->n_workers];
        *worker = (struct worker){.pool = pool, .slot = pool->n_workers};
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) break;
        pool->n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool->n_workers == threads;
}

struct mha_pool *mha_pool_new(size_t threads) {
    size_t bytes;
    struct mha_pool *pool = NULL;
    if (threads == 0 || __builtin_mul_overflow(threads, sizeof(struct worker), &bytes) ||
        __builtin_add_overflow(bytes, sizeof *pool, &bytes))
        return NULL;
    pool = calloc(1, bytes);
    if (pool == NULL) return NULL;
    if (!init_lock(&pool->lock)) goto no_lock;
    if (pthread_cond_init(&pool->work, NULL) != 0) goto no_condition;
    atomic_init(&pool->openings, 0);
    if (start_workers(pool, threads)) return pool;
    mha_pool_free(pool);
    return NULL;

no_condition:
    pthread_mutex_destroy(&pool->lock);
no_lock:
    free(pool);
    return NULL;
}

size_t mha_pool_threads(const struct mha_pool *pool) { return pool->n_workers; }

void mha_pool_submit(struct mha_pool *pool, struct mha_run *run, void (*done)(void *arg), void *arg) {
    run->done = done;
    run->done_arg = arg;
    pthread_mutex_lock(&pool->lock);
    pool->n_runs++;
    if (!mha_run_open(run)) { /* nothing to compute; a worker still has to call done */
        run->region[0] = (struct mha_region){.n_tasks = 1, .task = mha_run_nothing};
        run->n_regions = 1;
        run->current = 0;
        mha_run_open(run);
    }
    ring_add(pool, run);
    wake(pool, run->unfinished);
    pthread_mutex_unlock(&pool->lock);
}

void mha_pool_free(struct mha_pool *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    wake(pool, pool->n_workers);
    pthread_mutex_unlock(&pool->lock);
    for (size_t k = 0; k < pool->n_workers; k++) pthread_join(pool->worker[k].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

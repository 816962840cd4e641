/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_pool.c - the worker pool: every task once, regions in order, slots apart, fair, cancellable, no loss.
 *
 * Runs are made by hand (core/run.h): their tasks only count, and check what the pool promises. Meant to be run under TSan too.
 */
#include "../../core/run.h"
#include "support/random_problem.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_THREADS = 8, MAX_TASKS = 10000 };

static const size_t thread_counts[] = {1, 2, 3, MAX_THREADS};
#define EACH_THREAD_COUNT(threads) for (size_t tc_ = 0, threads; tc_ < 4 && (threads = thread_counts[tc_], true); tc_++)

/* ---- a run that watches the pool ---------------------------------------------------------------------------------- */

struct watched {
    struct mha_run run; /* first, so that a task finds the rest */
    struct mha_result result;
    atomic_size_t finished[MHA_RUN_REGIONS];        /* tasks of each region */
    atomic_uchar times[MHA_RUN_REGIONS][MAX_TASKS]; /* how often each task ran */
    atomic_bool slot_taken[MAX_THREADS];
    atomic_size_t violations;
    atomic_size_t times_done;
    size_t spin;           /* how much each task works */
    size_t cancel_at;      /* task number (over all regions) that cancels its own run; 0: none */
    struct mha_pool *pool; /* from here on: see the test of fairness */
    struct watched *small;
    atomic_size_t big_when_small_ended;
};

static void burn(size_t rounds) {
    volatile size_t sink = 0;
    for (size_t k = 0; k < rounds; k++) sink = sink + k;
}

static void violate_unless(struct watched *w, bool promise) {
    if (!promise) atomic_fetch_add(&w->violations, 1);
}

static void watch(struct mha_run *run, size_t task, size_t slot) {
    struct watched *w = (struct watched *)run;
    const size_t region = run->current;
    violate_unless(w, slot < run->threads && !atomic_exchange(&w->slot_taken[slot], true));
    for (size_t r = 0; r < region; r++) violate_unless(w, atomic_load(&w->finished[r]) == run->region[r].n_tasks);
    violate_unless(w, task < run->region[region].n_tasks && atomic_fetch_add(&w->times[region][task], 1) == 0);
    violate_unless(w, atomic_load(&w->times_done) == 0);
    burn(w->spin);
    if (atomic_fetch_add(&w->finished[region], 1) + 1 == w->cancel_at) mha_run_cancel(run);
    if (slot < MAX_THREADS) atomic_store(&w->slot_taken[slot], false);
}

static enum mha_error conclude_ok(struct mha_run *run) {
    run->result->detail.code = MHA_OK;
    return MHA_OK;
}

/* A run of the given regions. */
static struct watched *watched_new(size_t threads, size_t n_regions, const size_t *n_tasks) {
    struct watched *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->run.threads = threads;
    w->run.result = &w->result;
    w->run.conclude = conclude_ok;
    w->run.n_regions = n_regions;
    for (size_t r = 0; r < n_regions; r++) w->run.region[r] = (struct mha_region){n_tasks[r], watch};
    return w;
}

static size_t finished_tasks(struct watched *w) {
    size_t sum = 0;
    for (size_t r = 0; r < MHA_RUN_REGIONS; r++) sum += atomic_load(&w->finished[r]);
    return sum;
}

/* ---- waiting for runs ---------------------------------------------------------------------------------------------- */

static pthread_mutex_t ended_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended_condition = PTHREAD_COND_INITIALIZER;
static size_t n_ended;

static void ended(void *arg) {
    struct watched *w = arg;
    pthread_mutex_lock(&ended_lock);
    atomic_fetch_add(&w->times_done, 1);
    n_ended++;
    pthread_cond_broadcast(&ended_condition);
    pthread_mutex_unlock(&ended_lock);
}

static void wait_for(size_t runs) {
    pthread_mutex_lock(&ended_lock);
    while (n_ended < runs) pthread_cond_wait(&ended_condition, &ended_lock);
    n_ended = 0;
    pthread_mutex_unlock(&ended_lock);
}

/* ---- what the pool promises ----------------------------------------------------------------------------------------- */

static void check_complete(struct watched *w) {
    assert_int_equal(atomic_load(&w->violations), 0);
    assert_int_equal(atomic_load(&w->times_done), 1);
    assert_int_equal(mha_run_status(&w->run), MHA_OK);
    for (size_t r = 0; r < w->run.n_regions; r++)
        assert_int_equal(atomic_load(&w->finished[r]), w->run.region[r].n_tasks);
}

static void every_task_runs_once_and_regions_run_in_order(void **unused) {
    (void)unused;
    const size_t regions[][4] = {{1, 1, 1, 1}, {0, 7, 0, 3}, {1000, 1, 2, 500}, {3, 0, 0, 0}, {2, 2, 2, 2}};
    EACH_THREAD_COUNT(threads) {
        struct mha_pool *pool = mha_pool_new(threads);
        assert_non_null(pool);
        assert_int_equal(mha_pool_threads(pool), threads);
        for (size_t k = 0; k < sizeof regions / sizeof regions[0]; k++) {
            struct watched *w = watched_new(threads, 4, regions[k]);
            mha_pool_submit(pool, &w->run, ended, w);
            wait_for(1);
            check_complete(w);
            free(w);
        }
        mha_pool_free(pool);
    }
}

static void a_run_without_tasks_ends_too(void **unused) {
    (void)unused;
    struct mha_pool *pool = mha_pool_new(2);
    struct watched *w = watched_new(2, 3, (const size_t[]){0, 0, 0});
    mha_pool_submit(pool, &w->run, ended, w);
    wait_for(1);
    assert_int_equal(atomic_load(&w->times_done), 1);
    assert_int_equal(mha_run_status(&w->run), MHA_OK);
    assert_int_equal(finished_tasks(w), 0);
    mha_pool_free(pool);
    free(w);
}

/* The first region has one task and lets the other workers fall asleep; the tasks of the second wait for each other. */
static void meet(struct mha_run *run, size_t task, size_t slot) {
    struct watched *w = (struct watched *)run;
    if (run->current == 0) usleep(5000);
    atomic_fetch_add(&w->finished[run->current], 1);
    for (int ms = 0; ms < 10000 && atomic_load(&w->finished[run->current]) < run->region[run->current].n_tasks; ms++)
        usleep(1000);
    violate_unless(w, atomic_load(&w->finished[run->current]) == run->region[run->current].n_tasks);
    (void)task;
    (void)slot;
}

static void all_workers_take_part_in_a_region(void **unused) {
    (void)unused;
    EACH_THREAD_COUNT(threads) {
        struct mha_pool *pool = mha_pool_new(threads);
        struct watched *w = watched_new(threads, 4, (const size_t[]){1, threads, 1, threads});
        for (size_t r = 0; r < 4; r++) w->run.region[r].task = meet;
        mha_pool_submit(pool, &w->run, ended, w);
        wait_for(1);
        check_complete(w);
        mha_pool_free(pool);
        free(w);
    }
}

/* ---- several submitters ---------------------------------------------------------------------------------------------- */

enum { SUBMITTERS = 4, RUNS_EACH = 12 };

struct submitter {
    struct mha_pool *pool;
    struct watched *watched[RUNS_EACH];
    uint64_t seed;
};

static void *submit_many(void *arg) {
    struct submitter *s = arg;
    for (size_t k = 0; k < RUNS_EACH; k++) {
        size_t n_tasks[5];
        for (size_t r = 0; r < 5; r++) n_tasks[r] = random_below(&s->seed, 4) ? random_below(&s->seed, 20) : 300;
        s->watched[k] = watched_new(mha_pool_threads(s->pool), 5, n_tasks);
        s->watched[k]->spin = random_below(&s->seed, 2000);
        mha_pool_submit(s->pool, &s->watched[k]->run, ended, s->watched[k]);
        if (random_below(&s->seed, 3) == 0) usleep((useconds_t)random_below(&s->seed, 300));
    }
    return NULL;
}

static void runs_of_many_submitters_all_complete(void **unused) {
    (void)unused;
    EACH_THREAD_COUNT(threads) {
        struct mha_pool *pool = mha_pool_new(threads);
        struct submitter submitter[SUBMITTERS];
        pthread_t thread[SUBMITTERS];
        for (size_t k = 0; k < SUBMITTERS; k++) {
            submitter[k] = (struct submitter){.pool = pool, .seed = 100 * threads + k};
            assert_int_equal(pthread_create(&thread[k], NULL, submit_many, &submitter[k]), 0);
        }
        for (size_t k = 0; k < SUBMITTERS; k++) pthread_join(thread[k], NULL);
        wait_for(SUBMITTERS * RUNS_EACH);
        for (size_t k = 0; k < SUBMITTERS; k++)
            for (size_t x = 0; x < RUNS_EACH; x++) {
                check_complete(submitter[k].watched[x]);
                free(submitter[k].watched[x]);
            }
        mha_pool_free(pool);
    }
}

/* ---- cancelling ------------------------------------------------------------------------------------------------------ */

static void a_cancelled_run_ends_early_and_says_so(void **unused) {
    (void)unused;
    EACH_THREAD_COUNT(threads) {
        struct mha_pool *pool = mha_pool_new(threads);
        struct watched *w = watched_new(threads, 2, (const size_t[]){5000, 5000});
        w->spin = 100;
        w->cancel_at = 100;
        mha_pool_submit(pool, &w->run, ended, w);
        wait_for(1);
        assert_int_equal(atomic_load(&w->violations), 0);
        assert_int_equal(atomic_load(&w->times_done), 1);
        assert_int_equal(mha_run_status(&w->run), MHA_ERR_CANCELLED);
        assert_int_equal(w->result.detail.code, MHA_ERR_CANCELLED);
        assert_true(finished_tasks(w) >= 100);
        assert_true(finished_tasks(w) < 9000);
        if (threads == 1) assert_int_equal(finished_tasks(w), 100); /* the flag is looked at before every task */
        mha_pool_free(pool);
        free(w);
    }
}

static void a_run_cancelled_before_it_starts_computes_nothing(void **unused) {
    (void)unused;
    struct mha_pool *pool = mha_pool_new(3);
    struct watched *w = watched_new(3, 1, (const size_t[]){50});
    mha_run_cancel(&w->run);
    mha_pool_submit(pool, &w->run, ended, w);
    wait_for(1);
    assert_int_equal(mha_run_status(&w->run), MHA_ERR_CANCELLED);
    assert_int_equal(finished_tasks(w), 0);
    mha_pool_free(pool);
    free(w);
}

static void cancelling_one_run_leaves_the_others_alone(void **unused) {
    (void)unused;
    EACH_THREAD_COUNT(threads) {
        struct mha_pool *pool = mha_pool_new(threads);
        struct watched *w[12];
        for (size_t k = 0; k < 12; k++) {
            w[k] = watched_new(threads, 3, (const size_t[]){200, 1, 100});
            w[k]->spin = 200;
            mha_pool_submit(pool, &w[k]->run, ended, w[k]);
        }
        for (size_t k = 0; k < 12; k += 2) mha_run_cancel(&w[k]->run);
        wait_for(12);
        for (size_t k = 0; k < 12; k++) {
            assert_int_equal(atomic_load(&w[k]->times_done), 1);
            if (k % 2 == 1) check_complete(w[k]);
            free(w[k]);
        }
        mha_pool_free(pool);
    }
}

/* ---- fairness -------------------------------------------------------------------------------------------------------- */

static void small_ended(void *arg) {
    struct watched *big = arg;
    atomic_store(&big->big_when_small_ended, atomic_load(&big->finished[0]));
    ended(big->small);
}

/* A task of the large run: the 50th hands in the small run, the later ones take their time until that has ended. */
static void watch_big(struct mha_run *run, size_t task, size_t slot) {
    struct watched *big = (struct watched *)run;
    if (task == 50) mha_pool_submit(big->pool, &big->small->run, small_ended, big);
    if (task > 50 && atomic_load(&big->small->times_done) == 0) usleep(300);
    watch(run, task, slot);
}

static void a_small_run_does_not_wait_for_a_large_one(void **unused) {
    (void)unused;
    EACH_THREAD_COUNT(threads) {
        struct watched *big = watched_new(threads, 1, (const size_t[]){MAX_TASKS});
        big->run.region[0].task = watch_big;
        big->small = watched_new(threads, 3, (const size_t[]){1, 1, 1});
        big->pool = mha_pool_new(threads);
        mha_pool_submit(big->pool, &big->run, ended, big);
        wait_for(2);
        check_complete(big);
        check_complete(big->small);
        assert_true(atomic_load(&big->big_when_small_ended) < MAX_TASKS);
        if (threads == 1) /* in turn: one task of the large run between two of the small */
            assert_in_range(atomic_load(&big->big_when_small_ended), 51, 54);
        mha_pool_free(big->pool);
        free(big->small);
        free(big);
    }
}

/* ---- the end --------------------------------------------------------------------------------------------------------- */

static void freeing_the_pool_waits_for_what_is_in_it(void **unused) {
    (void)unused;
    EACH_THREAD_COUNT(threads) {
        struct mha_pool *pool = mha_pool_new(threads);
        struct watched *w[20];
        for (size_t k = 0; k < 20; k++) {
            w[k] = watched_new(threads, 2, (const size_t[]){30, 5});
            w[k]->spin = 500;
            mha_pool_submit(pool, &w[k]->run, ended, w[k]);
        }
        mha_pool_free(pool);
        for (size_t k = 0; k < 20; k++) {
            check_complete(w[k]);
            free(w[k]);
        }
        wait_for(20);
    }
}

/* done frees its run and submits the next, also while the pool is being freed. */
struct chain {
    struct mha_pool *pool;
    struct watched *current;
    atomic_size_t left;
};

static void go_on(void *arg) {
    struct chain *c = arg;
    free(c->current);
    if (atomic_fetch_sub(&c->left, 1) == 1) return;
    c->current = watched_new(mha_pool_threads(c->pool), 2, (const size_t[]){3, 2});
    mha_pool_submit(c->pool, &c->current->run, go_on, c);
}

static void done_may_free_its_run_and_submit_another(void **unused) {
    (void)unused;
    struct chain c = {.pool = mha_pool_new(3)};
    atomic_init(&c.left, 200);
    c.current = watched_new(3, 1, (const size_t[]){4});
    mha_pool_submit(c.pool, &c.current->run, go_on, &c);
    mha_pool_free(c.pool);
    assert_int_equal(atomic_load(&c.left), 0);
}

static void idle_workers_sleep(void **unused) {
    (void)unused;
    struct mha_pool *pool = mha_pool_new(4);
    struct timespec before, after;
    usleep(20000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    assert_true(used < 0.02);
    mha_pool_free(pool);
}

static void look_at_signals(struct mha_run *run, size_t task, size_t slot) {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    violate_unless((struct watched *)run, sigismember(&blocked, SIGTERM) && sigismember(&blocked, SIGHUP));
    (void)task;
    (void)slot;
}

static void workers_leave_signals_to_other_threads(void **unused) {
    (void)unused;
    sigset_t here;
    struct mha_pool *pool = mha_pool_new(2);
    struct watched *w = watched_new(2, 1, (const size_t[]){8});
    w->run.region[0].task = look_at_signals;
    mha_pool_submit(pool, &w->run, ended, w);
    wait_for(1);
    assert_int_equal(atomic_load(&w->violations), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &here);
    assert_false(sigismember(&here, SIGTERM));
    mha_pool_free(pool);
    free(w);
}

static void a_pool_of_no_threads_or_too_many_is_refused(void **unused) {
    (void)unused;
    assert_null(mha_pool_new(0));
    assert_null(mha_pool_new(SIZE_MAX));
    assert_null(mha_pool_new(SIZE_MAX / 16));
    mha_pool_free(NULL);
}

/* ---- real runs ------------------------------------------------------------------------------------------------------- */

/* A problem with its run. */
struct real {
    struct random_problem *r;
    struct mha_result here, pooled;
    void *workspace;
    struct mha_run *run;
    struct watched counter; /* only for `ended` */
};

static struct mha_run *prepare(struct real *x, struct mha_result *result, size_t threads) {
    struct mha_need need;
    struct mha_detail detail;
    assert_int_equal(mha_plan(&x->r->problem, result, threads, &need, &detail), MHA_OK);
    x->workspace = aligned_alloc(MHA_ALIGN, (need.workspace + MHA_ALIGN - 1) / MHA_ALIGN * MHA_ALIGN);
    assert_non_null(x->workspace);
    return x->run = mha_run_init(x->workspace, &x->r->problem, result, threads);
}

static void the_pool_gives_the_same_bytes_as_the_calling_thread(void **unused) {
    (void)unused;
    enum { N = 40 };
    struct real *real = calloc(N, sizeof *real);
    for (size_t k = 0; k < N; k++) {
        struct real *x = &real[k];
        x->r = random_problem_new(7000 + k, NULL);
        x->here = random_result_new(&x->r->problem, WANT_ALL, NULL, 0);
        x->pooled = random_result_new(&x->r->problem, WANT_ALL, NULL, 0);
        assert_int_equal(mha_run_here(prepare(x, &x->here, 1)), MHA_OK);
        free(x->workspace);
    }
    struct mha_pool *pool = mha_pool_new(3);
    for (size_t k = 0; k < N; k++)
        mha_pool_submit(pool, prepare(&real[k], &real[k].pooled, 3), ended, &real[k].counter);
    wait_for(N);
    mha_pool_free(pool);
    for (size_t k = 0; k < N; k++) {
        struct real *x = &real[k];
        const struct mha_problem *p = &x->r->problem;
        const size_t element = mha_dtype_size(p->dtype), n_kv = p->n_past + p->n_k;
        assert_int_equal(mha_run_status(x->run), MHA_OK);
        assert_memory_equal(x->here.output, x->pooled.output, p->B * p->n_q * p->d_out * element);
        assert_memory_equal(x->here.attention, x->pooled.attention, p->B * p->h * p->n_q * n_kv * element);
        assert_memory_equal(x->here.heads, x->pooled.heads, p->B * p->h * p->n_q * p->d_v * element);
        assert_int_equal(x->here.masked_rows, x->pooled.masked_rows);
        random_result_free(&x->here);
        random_result_free(&x->pooled);
        random_problem_free(x->r);
        free(x->workspace);
    }
    free(real);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_and_regions_run_in_order),
        cmocka_unit_test(a_run_without_tasks_ends_too),
        cmocka_unit_test(all_workers_take_part_in_a_region),
        cmocka_unit_test(runs_of_many_submitters_all_complete),
        cmocka_unit_test(a_cancelled_run_ends_early_and_says_so),
        cmocka_unit_test(a_run_cancelled_before_it_starts_computes_nothing),
        cmocka_unit_test(cancelling_one_run_leaves_the_others_alone),
        cmocka_unit_test(a_small_run_does_not_wait_for_a_large_one),
        cmocka_unit_test(freeing_the_pool_waits_for_what_is_in_it),
        cmocka_unit_test(done_may_free_its_run_and_submit_another),
        cmocka_unit_test(idle_workers_sleep),
        cmocka_unit_test(workers_leave_signals_to_other_threads),
        cmocka_unit_test(a_pool_of_no_threads_or_too_many_is_refused),
        cmocka_unit_test(the_pool_gives_the_same_bytes_as_the_calling_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

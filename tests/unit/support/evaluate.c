/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/evaluate.c - see evaluate.h.
 */
#include "evaluate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ends {
    pthread_mutex_t lock;
    pthread_cond_t last;
    size_t missing;
};

static void count_end(void *arg) {
    struct ends *ends = arg;
    pthread_mutex_lock(&ends->lock);
    if (--ends->missing == 0) pthread_cond_signal(&ends->last);
    pthread_mutex_unlock(&ends->lock);
}

static void *checked(void *p) {
    if (p == NULL) abort();
    return p;
}

static struct mha_run *new_run(const struct mha_problem *p, struct mha_result *r, size_t threads, void **workspace) {
    struct mha_need need;
    struct mha_detail detail;
    if (mha_plan(p, r, threads, &need, &detail) != MHA_OK) {
        fprintf(stderr, "refused: %s %s\n", mha_error_text(detail.code), detail.field);
        abort();
    }
    *workspace = checked(aligned_alloc(MHA_ALIGN, (need.workspace + MHA_ALIGN - 1) / MHA_ALIGN * MHA_ALIGN));
    memset(*workspace, 0xff, need.workspace);
    return mha_run_init(*workspace, p, r, threads);
}

void evaluate_together(const struct mha_problem *const *p, struct mha_result *r, size_t n, struct mha_pool *on,
                       enum mha_error *status) {
    void **workspace = checked(calloc(n, sizeof *workspace));
    struct mha_run **run = checked(calloc(n, sizeof *run));
    struct ends ends = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n};
    for (size_t x = 0; x < n; x++) run[x] = new_run(p[x], &r[x], mha_pool_threads(on), &workspace[x]);
    for (size_t x = 0; x < n; x++) mha_pool_submit(on, run[x], count_end, &ends);
    pthread_mutex_lock(&ends.lock);
    while (ends.missing > 0) pthread_cond_wait(&ends.last, &ends.lock);
    pthread_mutex_unlock(&ends.lock);
    for (size_t x = 0; x < n; x++) {
        status[x] = mha_run_status(run[x]);
        free(workspace[x]);
    }
    free(workspace);
    free(run);
}

enum mha_error evaluate(const struct mha_problem *p, struct mha_result *r, struct mha_pool *on) {
    enum mha_error error;
    if (on != NULL) {
        evaluate_together(&p, r, 1, on, &error);
        return error;
    }
    void *workspace;
    error = mha_run_here(new_run(p, r, 1, &workspace));
    free(workspace);
    return error;
}

enum mha_error evaluate_reference(const struct mha_problem *p, struct mha_result *r) {
    void *workspace = checked(aligned_alloc(MHA_ALIGN, mha_reference_need(p) + MHA_ALIGN));
    enum mha_error error = mha_reference(p, r, workspace);
    free(workspace);
    return error;
}

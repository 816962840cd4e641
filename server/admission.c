/* SPDX-License-Identifier: Apache-2.0
 *
 * server/admission.c - see admission.h.
 */
#include "admission.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "request.h"
#include "service.h"

/* Up to here the run is cheaper than handing it over (suspend, wake a worker, resume: 10 to 30 us) and short enough not to
 * keep the other connections waiting: about 100 us on one core. */
#define INLINE_FLOPS 4e6

/* Threads inherit the niceness of their creator, and only root may lower it again: so a thread of its own creates the pool. */
struct creation {
    size_t threads;
    struct mha_pool *pool;
};

#define WORKER_NICE 5

static void *create_pool(void *argument) {
    struct creation *creation = argument;
    id_t self = (id_t)syscall(SYS_gettid);
    int nice = getpriority(PRIO_PROCESS, self);
    setpriority(PRIO_PROCESS, self, nice + WORKER_NICE); /* if it fails, so be it: only latency under load suffers */
    creation->pool = mha_pool_new(creation->threads);
    return NULL;
}

bool admission_open(struct admission *admission, size_t threads, size_t max_queue) {
    *admission = (struct admission){.ended.eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .waiting_max = max_queue};
    admission->running_max = threads < 2 ? 4 : 2 * threads;
    struct creation creation = {.threads = threads};
    pthread_t thread;
    if (admission->ended.eventfd < 0 || pthread_create(&thread, NULL, create_pool, &creation) != 0) return false;
    pthread_join(thread, NULL);
    admission->pool = creation.pool;
    return admission->pool != NULL;
}

void admission_close(struct admission *admission) {
    mha_pool_free(admission->pool);
    admission->pool = NULL;
    if (admission->ended.eventfd >= 0) close(admission->ended.eventfd);
    admission->ended.eventfd = -1;
}

bool admission_inline(double work) { return work <= INLINE_FLOPS; }

bool admission_full(const struct admission *admission) {
    return admission->running >= admission->running_max && admission->waiting >= admission->waiting_max;
}

/* On a worker. */
static void run_ended(void *argument) {
    struct request *request = argument;
    ended_push(&request->conn->service->admission.ended, request);
}

static void start(struct admission *admission, struct request *request) {
    request->phase = PHASE_RUNNING;
    request->run_at = clock_now();
    admission->running++;
    mha_pool_submit(admission->pool, request->run, run_ended, request);
}

bool admission_take(struct admission *admission, struct request *request) {
    if (admission->running < admission->running_max) {
        start(admission, request);
        return true;
    }
    if (admission->waiting >= admission->waiting_max) return false;
    request->phase = PHASE_QUEUED;
    request->queue_next = NULL;
    if (admission->last)
        admission->last->queue_next = request;
    else
        admission->first = request;
    admission->last = request;
    admission->waiting++;
    return true;
}

void admission_withdraw(struct admission *admission, struct request *request) {
    struct request *before = NULL;
    for (struct request *r = admission->first; r && r != request; r = r->queue_next) before = r;
    if (before)
        before->queue_next = request->queue_next;
    else
        admission->first = request->queue_next;
    if (admission->last == request) admission->last = before;
    request->queue_next = NULL;
    admission->waiting--;
}

struct request *admission_collect(struct admission *admission) {
    uint64_t count;
    ssize_t got = read(admission->ended.eventfd, &count, sizeof count); /* EAGAIN: nothing has ended */
    (void)got;
    struct request *oldest = ended_take(&admission->ended);
    for (struct request *request = oldest; request; request = request->queue_next) admission->running--;
    while (admission->first && admission->running < admission->running_max) {
        struct request *request = admission->first;
        admission_withdraw(admission, request);
        start(admission, request);
    }
    return oldest;
}

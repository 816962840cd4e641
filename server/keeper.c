/* SPDX-License-Identifier: Apache-2.0
 *
 * server/keeper.c - see keeper.h.
 */
#include "keeper.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "request.h"

#define KEEPER_NICE 5

/* The next request, NULL at the end. */
static struct request *wait_for_work(struct keeper *keeper) {
    pthread_mutex_lock(&keeper->lock);
    while (!keeper->first && !keeper->ending) pthread_cond_wait(&keeper->changed, &keeper->lock);
    struct request *request = keeper->first;
    if (request) keeper->first = request->queue_next;
    if (!keeper->first) keeper->last = NULL;
    pthread_mutex_unlock(&keeper->lock);
    return request;
}

static void *work(void *argument) {
    struct keeper *keeper = argument;
    struct request *request;
    id_t self = (id_t)syscall(SYS_gettid);
    setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + KEEPER_NICE);
    pthread_mutex_lock(&keeper->lock);
    keeper->running = true;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
    while ((request = wait_for_work(keeper))) {
        request->work(request);
        ended_push(&keeper->ended, request);
    }
    return NULL;
}

bool keeper_open(struct keeper *keeper, int eventfd) {
    *keeper = (struct keeper){.ended.eventfd = eventfd};
    pthread_mutex_init(&keeper->lock, NULL);
    pthread_cond_init(&keeper->changed, NULL);
    keeper->started = pthread_create(&keeper->thread, NULL, work, keeper) == 0;
    /* its priority is set before the sandbox refuses that */
    pthread_mutex_lock(&keeper->lock);
    while (keeper->started && !keeper->running) pthread_cond_wait(&keeper->changed, &keeper->lock);
    pthread_mutex_unlock(&keeper->lock);
    return keeper->started;
}

void keeper_close(struct keeper *keeper) {
    if (!keeper->started) return;
    pthread_mutex_lock(&keeper->lock);
    keeper->ending = true;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
    pthread_join(keeper->thread, NULL);
    keeper->started = false;
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->lock);
}

void keeper_take(struct keeper *keeper, struct request *request) {
    request->phase = PHASE_KEEPING;
    request->queue_next = NULL;
    keeper->count++;
    pthread_mutex_lock(&keeper->lock);
    if (keeper->last)
        keeper->last->queue_next = request;
    else
        keeper->first = request;
    keeper->last = request;
    pthread_cond_signal(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
}

struct request *keeper_collect(struct keeper *keeper) {
    struct request *oldest = ended_take(&keeper->ended);
    for (struct request *request = oldest; request; request = request->queue_next) keeper->count--;
    return oldest;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/deadline.c - see deadline.h.
 */
#include "deadline.h"

#include <stdlib.h>

bool deadline_reserve(struct deadline_heap *heap, size_t count) {
    if (count <= heap->capacity) return true;
    size_t capacity = count < 64 ? 64 : count + count / 2;
    struct deadline **entry = realloc(heap->entry, capacity * sizeof *entry);
    if (!entry) return false;
    heap->entry = entry;
    heap->capacity = capacity;
    return true;
}

void deadline_heap_free(struct deadline_heap *heap) {
    free(heap->entry);
    *heap = (struct deadline_heap){0};
}

struct deadline *deadline_first(const struct deadline_heap *heap) {
    return heap->count ? heap->entry[0] : NULL;
}

static void put(struct deadline_heap *heap, size_t i, struct deadline *deadline) {
    heap->entry[i] = deadline;
    deadline->place = i + 1;
}

static void sift_up(struct deadline_heap *heap, size_t i) {
    struct deadline *moving = heap->entry[i];
    while (i && heap->entry[(i - 1) / 2]->at > moving->at) {
        put(heap, i, heap->entry[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(heap, i, moving);
}

static void sift_down(struct deadline_heap *heap, size_t i) {
    struct deadline *moving = heap->entry[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && heap->entry[child + 1]->at < heap->entry[child]->at) child++;
        if (heap->entry[child]->at >= moving->at) break;
        put(heap, i, heap->entry[child]);
        i = child;
    }
    put(heap, i, moving);
}

static void take_out(struct deadline_heap *heap, struct deadline *deadline) {
    size_t i = deadline->place - 1;
    struct deadline *last = heap->entry[--heap->count];
    deadline->place = 0;
    if (last == deadline) return;
    put(heap, i, last);
    sift_up(heap, i);
    sift_down(heap, last->place - 1);
}

void deadline_set(struct deadline_heap *heap, struct deadline *deadline, uint64_t at) {
    uint64_t before = deadline->at;
    deadline->at = at;
    if (at == 0) {
        if (deadline->place) take_out(heap, deadline);
        return;
    }
    if (!deadline->place) {
        put(heap, heap->count++, deadline);
        sift_up(heap, heap->count - 1);
    } else if (at < before) {
        sift_up(heap, deadline->place - 1);
    } else {
        sift_down(heap, deadline->place - 1);
    }
}

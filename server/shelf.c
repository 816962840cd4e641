/* SPDX-License-Identifier: Apache-2.0
 *
 * server/shelf.c - requests from a shelf: the last few that ended are used again, so that a keep-alive client costs no
 * allocation of them. See request.h.
 */
#include "request.h"

#include <stdlib.h>
#include <string.h>

#include "service.h"

#define SHELF_MAX 64

struct request *shelf_take(struct service *service) {
    struct request *request = service->shelf;
    if (request) {
        service->shelf = request->queue_next;
        service->shelf_count--;
    } else {
        request = malloc(sizeof *request);
        if (!request) return NULL;
    }
    memset(request, 0, offsetof(struct request, problem));
    problem_init(&request->problem);
    return request;
}

void shelf_give(struct service *service, struct request *request) {
    if (service->shelf_count == SHELF_MAX) {
        free(request);
        return;
    }
    request->queue_next = service->shelf;
    service->shelf = request;
    service->shelf_count++;
}

void shelf_clear(struct service *service) {
    while (service->shelf) {
        struct request *next = service->shelf->queue_next;
        free(service->shelf);
        service->shelf = next;
    }
    service->shelf_count = 0;
}

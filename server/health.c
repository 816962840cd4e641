/* SPDX-License-Identifier: Apache-2.0
 *
 * server/health.c - see health.h.
 */
#include "health.h"

#include <string.h>

#include "service.h"

static void fixed(struct api_answer *answer, const char *content_type, const char *body) {
    answer->content_type = content_type;
    answer->body = (char *)body; /* borrowed: never written to */
    answer->size = strlen(body);
    answer->borrowed = true;
}

void health_alive(struct service *service, struct api_answer *answer) {
    (void)service;
    fixed(answer, "application/json", "{\"status\":\"alive\"}\n");
}

void health_ready(struct service *service, struct api_answer *answer) {
    if (service->draining) {
        problem_set(&answer->problem, PROBLEM_DRAINING, "", "The server is shutting down; send new requests elsewhere");
    } else if (!service->ready) {
        answer->status = 503;
        fixed(answer, "application/json", "{\"status\":\"starting\"}\n");
    } else {
        fixed(answer, "application/json", "{\"status\":\"ready\"}\n");
    }
}

void health_pointer(struct service *service, struct api_answer *answer) {
    if (service->config->no_page) {
        problem_set(&answer->problem, PROBLEM_NOT_FOUND, "",
                    "The page is switched off (--no-page); POST /v1/mha is the service");
        return;
    }
    fixed(answer, "application/json",
          "{\"service\":\"mhad\",\"compute\":\"POST "
          "/v1/mha\",\"describes\":\"/openapi.json\",\"metrics\":\"/metrics\"}\n");
}

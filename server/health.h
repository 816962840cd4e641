/* SPDX-License-Identifier: Apache-2.0
 *
 * server/health.h - the probes: /healthz (the process answers), /readyz (it wants traffic), and GET /.
 *
 * They run on the I/O thread and touch nothing that a computation holds, so they answer under any load.
 */
#ifndef MHA_SERVER_HEALTH_H
#define MHA_SERVER_HEALTH_H

#include "../api/answer.h"

struct service;

void health_alive(struct service *service, struct api_answer *answer);
/* 503 while starting and draining. */
void health_ready(struct service *service, struct api_answer *answer);
/* GET /: where to go from here. */
void health_pointer(struct service *service, struct api_answer *answer);

#endif

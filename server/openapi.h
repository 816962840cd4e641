/* SPDX-License-Identifier: Apache-2.0
 *
 * server/openapi.h - GET /openapi.json: the description of everything, api/openapi.json, put into the binary by the assembler.
 * A test compares it with the route table.
 */
#ifndef MHA_SERVER_OPENAPI_H
#define MHA_SERVER_OPENAPI_H

#include "../api/answer.h"

struct service;

void openapi_answer(struct service *service, struct api_answer *answer);

#endif

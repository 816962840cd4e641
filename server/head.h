/* SPDX-License-Identifier: Apache-2.0
 *
 * server/head.h - what is known and decided when the header of a request has come: its names (X-Request-Id, traceparent) and
 * whether it may go on.
 *
 * Model. A list of checks in the order in which they are answered: route, token, Expect, time, media types, length, room; the
 * last one opens the call. The first that fails leaves its problem in the request.
 *
 * What it does not do: judge the syntax of the header (http_guard.h), or answer.
 */
#ifndef MHA_SERVER_HEAD_H
#define MHA_SERVER_HEAD_H

#include <stdbool.h>

struct request;

/* The client's id where it may be echoed, else a new one. */
void head_take_id(struct request *request);
/* The ids of a valid traceparent. */
void head_take_trace(struct request *request);
/* False: request->problem says why not. */
bool head_check(struct request *request);

#endif

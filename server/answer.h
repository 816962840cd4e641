/* SPDX-License-Identifier: Apache-2.0
 *
 * server/answer.h - putting an answer on a connection: status, headers, body.
 *
 * Model. Up to SCRATCH_BYTES an answer is formatted whole before its header is sent: it has a Content-Length, and
 * Server-Timing tells how long all of the writing took. A larger one is chunked and formatted block by block while it is sent,
 * so that its text never lies in memory whole; Server-Timing then has the time of the first block and says so.
 */
#ifndef MHA_SERVER_ANSWER_H
#define MHA_SERVER_ANSWER_H

#include <microhttpd.h>

#include "../api/answer.h"

struct request;

/* Queue the answer of request->call, of request->problem, or of a route function. The request is ANSWERING afterwards. Only
 * in libmicrohttpd's handler. The value is the handler's to return. */
enum MHD_Result answer_call(struct request *request);
enum MHD_Result answer_problem(struct request *request);
enum MHD_Result answer_whole(struct request *request, struct api_answer *answer);
/* 204 to OPTIONS, for CORS preflights and curious people. */
enum MHD_Result answer_options(struct request *request);

#endif

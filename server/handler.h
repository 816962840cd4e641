/* SPDX-License-Identifier: Apache-2.0
 *
 * server/handler.h - a request from its first line to its last byte: the callbacks that libmicrohttpd calls.
 *
 * libmicrohttpd calls handler_line when the request line is there, handler_access once with the header, once for every piece
 * of the body and once at its end (and again after a resume), and handler_completed when all is over, however it ended. All
 * on the I/O thread.
 */
#ifndef MHA_SERVER_HANDLER_H
#define MHA_SERVER_HANDLER_H

#include <microhttpd.h>

#include "../api/problem.h"

struct service;
struct conn;
struct request;

void *handler_line(void *context, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result handler_access(void *service, struct MHD_Connection *mhd, const char *url, const char *method,
                               const char *version, const char *upload, size_t *upload_size, void **context);
void handler_completed(void *context, struct MHD_Connection *mhd, void **slot, enum MHD_RequestTerminationCode code);

/* From the loop: the deadline of a connection has passed; the client has closed its side; a run, the keeper's work has ended. */
void handler_deadline(struct conn *conn);
void handler_client_left(struct conn *conn);
void handler_run_ended(struct request *request);
void handler_kept(struct request *request);
/* Ends a request that is queued or running, with 503 draining. */
void handler_cut(struct request *request);
/* libmicrohttpd cannot read the request, or what should have become one: answers, logs and counts it, shuts the connection. */
void handler_refused(struct conn *conn, const struct problem *problem);

#endif

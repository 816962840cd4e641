/* SPDX-License-Identifier: Apache-2.0
 *
 * server/mhd_errors.c - see mhd_errors.h.
 */
#include "mhd_errors.h"

#include <dlfcn.h>
#include <string.h>

#include "conns.h"
#include "handler.h"
#include "request.h"
#include "service.h"

typedef enum MHD_Result queue_function(struct MHD_Connection *mhd, unsigned status, struct MHD_Response *response);

/* Set once before the first connection. */
static queue_function *library_queue;

bool mhd_errors_open(void) {
    union {
        void *found;
        queue_function *function;
    } symbol = {.found = dlsym(RTLD_NEXT, "MHD_queue_response")};
    library_queue = symbol.function;
    return library_queue != NULL;
}

enum MHD_Result mhd_errors_queue(struct MHD_Connection *mhd, unsigned status, struct MHD_Response *response) {
    return library_queue(mhd, status, response);
}

/* ---- what was wrong, from the status and from how far the request had come ---------------------------------------- */

static void header_problem(struct problem *problem, struct MHD_Connection *mhd) {
    const char *length = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && (!*length || length[strspn(length, "0123456789")]))
        problem_set(problem, PROBLEM_HTTP, "", "Content-Length is \"%.40s\", which is not a number of bytes", length);
    else
        problem_set(problem, PROBLEM_HTTP, "", "A header line is not \"Name: value\"");
}

static void malformed(struct problem *problem, struct MHD_Connection *mhd, const struct request *request) {
    if (!request)
        problem_set(problem, PROBLEM_HTTP, "", "The first line is not METHOD SP path SP HTTP/1.1");
    else if (request->phase == PHASE_HEAD)
        header_problem(problem, mhd);
    else
        problem_set(problem, PROBLEM_HTTP, "",
                    "The chunked body is malformed: a chunk is its size in hexadecimal, CR LF, its bytes, CR LF");
}

static void too_large(struct problem *problem, const struct request *request) {
    problem_set(problem, PROBLEM_BODY_TOO_LARGE, "", "%s",
                request && request->phase == PHASE_HEAD ? "Content-Length is 2^64 bytes or more"
                                                        : "A chunk of the body has 2^64 bytes or more");
}

static void describe(struct problem *problem, struct MHD_Connection *mhd, const struct request *request,
                     unsigned status) {
    switch (status) {
    case 413:
        too_large(problem, request);
        break;
    case 414:
        problem_set(problem, PROBLEM_URI_TOO_LONG, "", "The request line does not fit into the %d bytes of a header",
                    CONN_POOL_BYTES);
        break;
    case 431:
        problem_set(problem, PROBLEM_HEADERS_TOO_LARGE, "",
                    "The header, with what is noted about each of its lines, does not fit into %d bytes",
                    CONN_POOL_BYTES);
        break;
    case 505:
        problem_set(problem, PROBLEM_HTTP_VERSION, "", "The version is not HTTP/1.1 (or 1.0); only these are spoken");
        break;
    default:
        malformed(problem, mhd, request);
        break;
    }
}

/* ---- in the place of the library's function ----------------------------------------------------------------------- */

/* Called by libmicrohttpd alone. Its answer is queued all the same, since its states depend on that (0.9.75 goes on with a
 * connection that it has closed when there are too many query arguments), but the socket is shut and nothing of it goes out. */
_MHD_EXTERN enum MHD_Result MHD_queue_response(struct MHD_Connection *mhd, unsigned status,
                                               struct MHD_Response *response) {
    struct conn *conn = conns_of(mhd);
    struct problem problem;
    if (conn && !conn->closing) {
        problem_init(&problem);
        describe(&problem, mhd, conn->request, status);
        handler_refused(conn, &problem);
    }
    return library_queue(mhd, status, response);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/http_guard.h - the header of a request, read once, and the checks that libmicrohttpd 0.9.75 does not make.
 *
 * Model. `headers_read` walks the header fields once and keeps pointers to the few that matter (they live as long as the
 * request). `guard_check` refuses what a proxy in front could understand differently (request smuggling: RFC 9112, sections
 * 5.2, 6.1, 6.3 and 11.2): more than one Content-Length, Content-Length beside Transfer-Encoding, a transfer coding other
 * than exactly "chunked", not exactly one Host, names with white space, folded lines, bare CR or LF, and NUL bytes. The
 * connection must be closed after such an answer, because nobody knows where the next request begins.
 *
 * What it does not do: see what libmicrohttpd refuses by itself ("Content-Length: -1", 40 KB of headers): mhd_errors.h does.
 * Of a bare line feed at the very end of the header 0.9.75 leaves no trace; RFC 9112, section 2.2 allows to take it.
 */
#ifndef MHA_SERVER_HTTP_GUARD_H
#define MHA_SERVER_HTTP_GUARD_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../api/problem.h"

struct headers {
    const char *content_type, *accept, *expect, *authorization, *origin;
    const char *request_id, *request_timeout, *traceparent, *preflight_method;
    const char *transfer_encoding, *content_length, *host;
    unsigned hosts, content_lengths, transfer_encodings;
    const char *malformed; /* what is wrong with one of the lines, NULL if nothing */
};

/* The request line as libmicrohttpd keeps it. `uri` is the whole of it, query included, and may have been cut in pieces since
 * its size was taken. */
struct request_line {
    const char *method, *uri, *version;
    size_t uri_size;
};

void headers_read(struct headers *headers, struct MHD_Connection *connection);

/* False, and *problem set, if the request must be refused and the connection closed. */
bool guard_check(const struct headers *headers, const struct request_line *line, struct problem *problem);

/* Whether a body follows, and its length (SIZE_MAX: not known before its end). */
bool headers_body(const struct headers *headers, size_t *length);

#endif

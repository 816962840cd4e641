/* SPDX-License-Identifier: Apache-2.0
 *
 * server/mhd_errors.h - libmicrohttpd's own refusals become problem documents.
 *
 * Model. libmicrohttpd answers what it cannot read by itself (a request line without a version, a Content-Length that is no
 * number, too large headers, a broken chunk) in HTML, and offers no hook for it. But it queues those answers through its own
 * public function MHD_queue_response, which in a shared library is looked up like any other symbol: the program defines a
 * function of that name, which comes first (ELF symbol interposition, as LD_PRELOAD uses it). Our own answers go straight to
 * the library's function; whatever arrives at ours is a refusal. It is answered past libmicrohttpd, logged and counted, and
 * the socket is shut, so that the library's own answer goes nowhere and it closes the connection. That also hides that 0.9.75
 * answers a bad Content-Length twice, and that it never answers too many query arguments.
 *
 * What it does not do: answer where libmicrohttpd closes without a word (a first line without a space: binary garbage, TLS on
 * the plain port). With a libmicrohttpd that was linked statically or with -Bsymbolic, its HTML goes out as ever.
 */
#ifndef MHA_SERVER_MHD_ERRORS_H
#define MHA_SERVER_MHD_ERRORS_H

#include <microhttpd.h>
#include <stdbool.h>

/* Before anything is answered. False: the library's function cannot be found. */
bool mhd_errors_open(void);
/* MHD_queue_response, the library's. */
enum MHD_Result mhd_errors_queue(struct MHD_Connection *mhd, unsigned status, struct MHD_Response *response);

#endif

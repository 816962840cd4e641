/* SPDX-License-Identifier: Apache-2.0
 *
 * server/media.h - media types: which one a body is of, which one a client accepts (RFC 9110, sections 8.3 and 12.5.1).
 */
#ifndef MHA_SERVER_MEDIA_H
#define MHA_SERVER_MEDIA_H

#include <stdbool.h>

#include "../api/call.h"

#define MEDIA(type) (1u << (type)) /* a set of enum api_media */

/* The name of a type: "application/json". */
const char *media_name(enum api_media media);
/* What Content-Type names; false if it is NULL or none of the types in `allowed`. Parameters (charset=utf-8) are ignored. */
bool media_of_body(const char *content_type, unsigned allowed, enum api_media *media);
/* The type of `offered` that Accept likes best (JSON on a tie; NULL likes all); false if it takes none. */
bool media_accepted(const char *accept, unsigned offered, enum api_media *media);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * server/healthcheck.h - `mhad --healthcheck`: asks the server that runs with the same configuration for /readyz.
 *
 * For images without a shell or curl (Docker HEALTHCHECK, exec probes). It goes to the Unix socket if there is one, else to
 * the TCP port (a wildcard address means loopback), with TLS if that is configured; certificates are not checked, since it
 * talks to itself.
 */
#ifndef MHA_SERVER_HEALTHCHECK_H
#define MHA_SERVER_HEALTHCHECK_H

#include <stdio.h>

#include "config.h"

/* The exit status: 0 ready, 1 not (one line on err). */
int healthcheck(const struct config *config, FILE *err);

#endif

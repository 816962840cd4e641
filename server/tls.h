/* SPDX-License-Identifier: Apache-2.0
 *
 * server/tls.h - the certificate and key that TLS connections get, replaceable while running.
 *
 * Model. libmicrohttpd does TLS (GnuTLS); it asks us for the certificate at each handshake, so a new pair takes effect with
 * the next connection and open ones go on. A replaced pair is kept until every handshake that may have begun with it has met
 * its deadline. A pair that does not load or does not match changes nothing.
 *
 * What it does not do: ask clients for certificates.
 */
#ifndef MHA_SERVER_TLS_H
#define MHA_SERVER_TLS_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

struct tls_pair;

struct tls_files {
    bool on;
    struct tls_pair *old; /* replaced ones, newest first */
};

/* Reads --tls-cert and --tls-key (both "": TLS stays off). False: nothing changed, and `why` says what is wrong. */
bool tls_read(struct tls_files *tls, const struct config *config, uint64_t now, char *why, size_t why_size);
void tls_free(struct tls_files *tls);

/* The options that make a libmicrohttpd daemon use it: fills option[0..1], to be passed with MHD_OPTION_ARRAY. */
void tls_options(struct MHD_OptionItem option[2]);

/* For the health check: a TLS client on a connected socket that trusts whatever answers (it is our own address). Sends
 * `request`, reads up to size bytes of the answer; returns how many, or -1. */
long tls_ask(int fd, const char *request, char *answer, size_t size);

#endif

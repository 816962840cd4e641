/* SPDX-License-Identifier: Apache-2.0
 *
 * server/tls.c - see tls.h.
 */
#include "tls.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define CHAIN_MAX 16

struct tls_pair {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned length;
    gnutls_privkey_t key;
    uint64_t replaced_at;
    struct tls_pair *older;
};

/* GnuTLS's callback has no argument of ours; set at start and at SIGHUP, both on the I/O thread, as the handshakes are. */
static struct tls_pair *current;

static void pair_free(struct tls_pair *pair) {
    if (!pair) return;
    for (unsigned i = 0; i < pair->length; i++) gnutls_pcert_deinit(&pair->chain[i]);
    if (pair->key) gnutls_privkey_deinit(pair->key);
    free(pair);
}

/* GnuTLS itself says whether the two belong together. */
static int check_pair(const gnutls_datum_t *cert, const gnutls_datum_t *key) {
    gnutls_certificate_credentials_t credentials;
    int status = gnutls_certificate_allocate_credentials(&credentials);
    if (status < 0) return status;
    status = gnutls_certificate_set_x509_key_mem(credentials, cert, key, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(credentials);
    return status;
}

static struct tls_pair *pair_new(const gnutls_datum_t *cert, const gnutls_datum_t *key, int *status) {
    struct tls_pair *pair = calloc(1, sizeof *pair);
    unsigned length = CHAIN_MAX;
    *status = pair ? check_pair(cert, key) : GNUTLS_E_MEMORY_ERROR;
    if (*status >= 0) *status = gnutls_pcert_list_import_x509_raw(pair->chain, &length, cert, GNUTLS_X509_FMT_PEM, 0);
    if (*status >= 0) pair->length = length;
    if (*status >= 0) *status = gnutls_privkey_init(&pair->key);
    if (*status >= 0) *status = gnutls_privkey_import_x509_raw(pair->key, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (*status >= 0) return pair;
    pair_free(pair);
    return NULL;
}

/* Frees those whose last possible handshake is over. */
static void forget_old(struct tls_files *tls, uint64_t before) {
    struct tls_pair **link = &tls->old;
    while (*link) {
        struct tls_pair *pair = *link;
        if (pair->replaced_at >= before) {
            link = &pair->older;
            continue;
        }
        *link = pair->older;
        pair_free(pair);
    }
}

bool tls_read(struct tls_files *tls, const struct config *config, uint64_t now, char *why, size_t why_size) {
    gnutls_datum_t cert = {0}, key = {0};
    struct tls_pair *pair = NULL;
    if (!*config->tls_cert) return true;
    int status = gnutls_load_file(config->tls_cert, &cert);
    const char *path = config->tls_cert;
    if (status >= 0) {
        path = config->tls_key;
        status = gnutls_load_file(config->tls_key, &key);
    }
    if (status >= 0) pair = pair_new(&cert, &key, &status);
    if (!pair) snprintf(why, why_size, "%s: %s", path, gnutls_strerror(status));
    gnutls_free(cert.data);
    if (key.data) explicit_bzero(key.data, key.size);
    gnutls_free(key.data);
    if (!pair) return false;
    if (current) {
        current->replaced_at = now;
        current->older = tls->old;
        tls->old = current;
    }
    current = pair;
    tls->on = true;
    uint64_t lifetime = config->header_timeout + 10 * NS_PER_SECOND;
    forget_old(tls, now > lifetime ? now - lifetime : 0);
    return true;
}

void tls_free(struct tls_files *tls) {
    forget_old(tls, UINT64_MAX);
    pair_free(current);
    current = NULL;
    tls->on = false;
}

/* gnutls_certificate_retrieve_function2: what it gets stays ours. */
static int give_pair(gnutls_session_t session, const gnutls_datum_t *authorities, int authority_count,
                     const gnutls_pk_algorithm_t *algorithms, int algorithm_count, gnutls_pcert_st **chain,
                     unsigned int *length, gnutls_privkey_t *key) {
    (void)session, (void)authorities, (void)authority_count, (void)algorithms, (void)algorithm_count;
    *chain = current->chain;
    *length = current->length;
    *key = current->key;
    return 0;
}

void tls_options(struct MHD_OptionItem option[2]) {
    static char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.2:+VERS-TLS1.3";
    option[0] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK, 0, NULL};
    gnutls_certificate_retrieve_function2 *callback = give_pair;
    memcpy(&option[0].ptr_value, &callback, sizeof callback);
    option[1] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, priorities};
}

long tls_ask(int fd, const char *request, char *answer, size_t size) {
    gnutls_session_t session = NULL;
    gnutls_certificate_credentials_t credentials = NULL;
    long got = -1;
    int status;
    if (gnutls_init(&session, GNUTLS_CLIENT) < 0) return -1;
    if (gnutls_certificate_allocate_credentials(&credentials) < 0) goto out;
    if (gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials) < 0) goto out;
    if (gnutls_set_default_priority(session) < 0) goto out;
    gnutls_transport_set_int(session, fd);
    do status = gnutls_handshake(session);
    while (status < 0 && !gnutls_error_is_fatal(status) && status != GNUTLS_E_AGAIN);
    if (status < 0 || gnutls_record_send(session, request, strlen(request)) < 0) goto out;
    got = (long)gnutls_record_recv(session, answer, size);
out:
    gnutls_deinit(session);
    if (credentials) gnutls_certificate_free_credentials(credentials);
    return got;
}

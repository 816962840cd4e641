/* SPDX-License-Identifier: Apache-2.0
 *
 * server/token.h - Bearer tokens (RFC 6750) from a file.
 *
 * Model. Every line of the file is a token (white space around it, empty lines and lines that begin with # do not count), so
 * that an old and a new one can be valid together. Comparing takes the same time whatever the presented token is: every token
 * of the list is compared over its whole room. The file is read again at SIGHUP; if that fails the old tokens stay.
 */
#ifndef MHA_SERVER_TOKEN_H
#define MHA_SERVER_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

#define TOKEN_ROOM 512
#define TOKENS_MAX 64

struct token_list {
    bool required; /* a file was given */
    size_t count;
    char (*token)[TOKEN_ROOM]; /* zero-padded */
};

/* Reads the file ("" = none) in place of what the list holds. False: nothing changed, and `why` says what is wrong. */
bool tokens_read(struct token_list *list, const char *path, char *why, size_t why_size);
/* Whether the Authorization header (NULL: none) carries one of them. Always true when none is required. */
bool tokens_allow(const struct token_list *list, const char *authorization);
void tokens_free(struct token_list *list);

#endif

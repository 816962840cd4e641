/* SPDX-License-Identifier: Apache-2.0
 *
 * server/unix_socket.h - a listening Unix socket at a path, with permissions, where perhaps a dead one lies.
 */
#ifndef MHA_SERVER_UNIX_SOCKET_H
#define MHA_SERVER_UNIX_SOCKET_H

#include "listen.h"

/* The listening descriptor, or -1 after one line on err. Notes in `listeners` what unix_socket_remove must remove. */
int unix_socket_open(struct listeners *listeners, const char *path, mode_t mode, int backlog, FILE *err);
/* Unlinks the path if it still is the socket that we made. */
void unix_socket_remove(struct listeners *listeners);

#endif
